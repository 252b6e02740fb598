//! Groups: queries whose filters are alike, found for a row by one hash.
//!
//! The *signature* of a query is the columns that it compares for equality, and one more that it compares with a range.
//! Queries of one signature are hashed together over its columns; of the range's column only the upper bits are
//! hashed, and a query stands under each value of these that its range touches. So of a thousand queries on a name and
//! some days a row meets those of its own name and fortnight only.
//!
//! A group costs each row the same however many queries it has: it is worth that if its members asked one by one would
//! cost more. Queries that look at a small part of the table, because they bind the column that places rows, go
//! alone for that reason. Few queries with an equality and a range fall back on the group of the equality.
//!
//! Differs: 2009's index union join takes one attribute of each query, greedily; see `mod.rs`.

use std::collections::BTreeMap;

use crate::explain::Strategy;

use super::{
    Columns,
    block::Block,
    compile::{Plan, Term},
    kernel,
    query::Query,
};

/// Looks at one column that a row of a group costs, hashing and the filter included (measured: 1.3 ns against 0.06).
const GROUP_MIN: f64 = 24.0;
/// The most alternatives of an IN that are looked up; a longer one is compared.
const ALTERNATIVES_MAX: usize = 16;
/// The most places in a group that one query takes.
const KEYS_MAX: usize = 64;
/// On the average a range may take so many.
const KEYS_PER_RANGE: u64 = 3;
/// A range is worth hashing if it leaves out all but such a part of its column.
const RANGE_PART_MAX: f64 = 0.25;
/// The most bits of a group's filter: 32 KiB, what the first cache has room for beside the codes.
const FILTER_BITS_MAX: u32 = 18;
/// Of each query so many bits of the filter, so that of rows that interest nobody few pass.
const FILTER_BITS_PER_KEY: usize = 32;
/// So many blocks tell how wide a column is.
const SAMPLES: usize = 16;

/// The columns that queries are hashed by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Signature {
    equal: Vec<usize>,
    range: Option<usize>,
}

/// A column of a signature, and how its numbers enter the hash.
struct Part {
    column: usize,
    /// Bits that are left out.
    shift: u32,
    factor: u32,
}

/// Queries of one signature.
pub(super) struct Group {
    signature: Signature,
    parts: Vec<Part>,
    filter: Vec<u32>,
    /// Where the entries of the hashes with these upper bits begin.
    starts: Vec<u32>,
    shift: u32,
    entries: Vec<Entry>,
}

/// A query in a group, with what it asks beside the equalities as far as one comparison says it: most rows of the right
/// hash that it does not want fail here, and the query itself need not be fetched.
#[derive(Clone, Copy)]
struct Entry {
    hash: u32,
    query: u32,
    column: u32,
    /// Behind the last entry of this hash and column; among them `low` ascends.
    end: u32,
    low: u64,
    high: u64,
}

impl Group {
    fn new(signature: &Signature, shift: u32, keys: &[(Vec<u64>, u32)], queries: &[Query<'_>]) -> Group {
        let columns = signature.equal.iter().chain(&signature.range).enumerate();
        let parts: Vec<Part> = columns
            .map(|(position, &column)| Part {
                column,
                shift: if Some(column) == signature.range { shift } else { 0 },
                // An odd number for each.
                factor: 0x85EB_CA6Bu32.wrapping_mul(2 * position as u32 + 1) ^ 0x27D4_EB2E,
            })
            .collect();
        let entry = |(numbers, query): &(Vec<u64>, u32)| {
            let terms = &queries[*query as usize].plan.terms;
            let ranged = terms.iter().find(|term| term.is_range() && Some(term.column) == signature.range);
            let beside = terms.iter().find(|term| term.is_range() && !signature.equal.contains(&term.column));
            let (column, low, high) = ranged
                .or(beside)
                .map_or((parts[0].column, 0, u64::MAX), |term| (term.column, term.low, term.high));
            let hash = kernel::finish(sum(&parts, numbers.iter().copied()));
            Entry { hash, query: *query, column: column as u32, end: 0, low, high }
        };
        let mut entries: Vec<Entry> = keys.iter().map(entry).collect();
        entries.sort_unstable_by_key(|entry| (entry.hash, entry.column, entry.low, entry.query));
        // A query stands once under a hash, or it would be given a row twice.
        entries.dedup_by_key(|entry| (entry.hash, entry.query));
        let mut end = entries.len();
        for index in (0..entries.len()).rev() {
            let run = |entry: &Entry| (entry.hash, entry.column);
            if entries.get(index + 1).is_some_and(|next| run(next) != run(&entries[index])) {
                end = index + 1;
            }
            entries[index].end = end as u32;
        }
        let bits = (entries.len() * FILTER_BITS_PER_KEY).next_power_of_two().trailing_zeros();
        let bits = bits.clamp(10, FILTER_BITS_MAX);
        let mut filter = vec![0; 1 << (bits - 5)];
        for Entry { hash, .. } in &entries {
            let bit = hash >> (32 - bits);
            filter[(bit >> 5) as usize] |= 1 << (bit & 31);
        }
        let shift = 32 - entries.len().next_power_of_two().trailing_zeros().max(1);
        let mut starts = vec![0; (1 << (32 - shift)) + 1];
        for Entry { hash, .. } in &entries {
            starts[(hash >> shift) as usize + 1] += 1;
        }
        for index in 1..starts.len() {
            starts[index] += starts[index - 1];
        }
        Group { signature: signature.clone(), parts, filter, starts, shift, entries }
    }

    /// The queries in it; some more than once.
    pub(super) fn members(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().map(|entry| entry.query)
    }

    pub(super) fn explain(&self) -> Strategy {
        let mut queries: Vec<u32> = self.members().collect();
        queries.sort_unstable();
        queries.dedup();
        let Signature { equal, range } = self.signature.clone();
        Strategy::Group { equal, range, queries: queries.len() as u64 }
    }

    /// Lists the rows of a block that may interest some query, and the hashes of all.
    pub(super) fn probe<'s>(&self, block: &Block, hashes: &mut [u32], rows: &'s mut [u32]) -> &'s [u32] {
        hashes.fill(0);
        for part in &self.parts {
            let chunk = &block.columns[part.column];
            kernel::mix(&chunk.numbers, chunk.high, part.shift, part.factor, hashes);
        }
        let listed = kernel::probe(hashes, &self.filter, rows);
        &rows[..listed]
    }

    /// The hash of one row.
    pub(super) fn hash(&self, block: &Block, index: usize) -> u32 {
        let numbers =
            self.parts.iter().map(|part| block.columns[part.column].numbers.number(index) >> part.shift);
        kernel::finish(sum(&self.parts, numbers))
    }

    /// The queries that may want a row of this hash; NULL is not looked at.
    #[inline]
    pub(super) fn candidates(&self, hash: u32, block: &Block, index: usize, mut found: impl FnMut(u32)) {
        let bucket = (hash >> self.shift) as usize;
        let (mut next, end) = (self.starts[bucket] as usize, self.starts[bucket + 1] as usize);
        while next < end {
            let Entry { hash: its, column, end: run, .. } = self.entries[next];
            let run = run as usize;
            if its == hash {
                let number = block.columns[column as usize].numbers.number(index);
                for entry in &self.entries[next..run] {
                    if number < entry.low {
                        break;
                    }
                    if number <= entry.high {
                        found(entry.query);
                    }
                }
            }
            next = run;
        }
    }
}

fn sum(parts: &[Part], numbers: impl Iterator<Item = u64>) -> u32 {
    parts
        .iter()
        .zip(numbers)
        .fold(0, |sum: u32, (part, number)| sum.wrapping_add(kernel::fold(number).wrapping_mul(part.factor)))
}

/// Which queries go together, and which alone. Each is given with the part of the table that it looks at.
pub(super) fn arrange(
    columns: &Columns,
    queries: &[Query<'_>],
    asked: &[(u32, f64)],
) -> (Vec<Group>, Vec<u32>) {
    let mut alone = Vec::new();
    let mut groups = Vec::new();
    if asked.iter().map(|(_, part)| part).sum::<f64>() < GROUP_MIN {
        alone.extend(asked.iter().map(|(query, _)| query));
        return (groups, alone);
    }
    let mut spans: Vec<Option<f64>> = vec![None; columns.width()];
    let mut signatures: BTreeMap<Signature, Vec<(u32, f64)>> = BTreeMap::new();
    for &(query, part) in asked {
        match signature(columns, &queries[query as usize].plan, &mut spans) {
            Some(signature) => signatures.entry(signature).or_default().push((query, part)),
            None => alone.push(query),
        }
    }
    // Those with a range come behind those without.
    while let Some((signature, members)) = signatures.pop_last() {
        if members.iter().map(|(_, part)| part).sum::<f64>() < GROUP_MIN {
            match signature.range {
                Some(_) if !signature.equal.is_empty() => {
                    let without = Signature { range: None, ..signature };
                    signatures.entry(without).or_default().extend(members);
                }
                _ => alone.extend(members.into_iter().map(|(query, _)| query)),
            }
            continue;
        }
        let plan = |query: u32| &queries[query as usize].plan;
        let shift = signature.range.map_or(0, |column| {
            let ranges = members.iter().filter_map(|&(query, _)| range_of(plan(query), column));
            coarseness(&ranges.map(|term| (term.low, term.high)).collect::<Vec<_>>())
        });
        let mut keys = Vec::with_capacity(members.len());
        for (query, _) in members {
            match keys_of(plan(query), &signature, shift) {
                Some(own) => keys.extend(own.into_iter().map(|key| (key, query))),
                None => alone.push(query),
            }
        }
        if !keys.is_empty() {
            groups.push(Group::new(&signature, shift, &keys, queries));
        }
    }
    alone.sort_unstable();
    (groups, alone)
}

/// The signature of a plan, if it has one.
fn signature(columns: &Columns, plan: &Plan, spans: &mut [Option<f64>]) -> Option<Signature> {
    let equalities = plan.terms.iter().filter(|term| term.alternatives(ALTERNATIVES_MAX).is_some());
    let mut equal: Vec<usize> = equalities.map(|term| term.column).collect();
    equal.sort_unstable();
    equal.dedup();
    let ranges = plan.terms.iter().filter(|term| term.is_range() && !equal.contains(&term.column));
    let parts = ranges.map(|term| {
        let span = *spans[term.column].get_or_insert_with(|| span(columns, term.column));
        ((term.high - term.low) as f64 / span, term.column)
    });
    let narrow = parts.filter(|(part, _)| *part <= RANGE_PART_MAX).min_by(|a, b| a.0.total_cmp(&b.0));
    let range = narrow.map(|(_, column)| column);
    (!equal.is_empty() || range.is_some()).then_some(Signature { equal, range })
}

/// About how many numbers a column spans.
fn span(columns: &Columns, column: usize) -> f64 {
    let step = columns.blocks.len().div_ceil(SAMPLES).max(1);
    let chunks = columns.blocks.iter().step_by(step).map(|block| &block.columns[column]);
    let (low, high) =
        chunks.fold((u64::MAX, 0), |(low, high), chunk| (chunk.low.min(low), chunk.high.max(high)));
    high.saturating_sub(low) as f64 + 1.0
}

fn range_of(plan: &Plan, column: usize) -> Option<&Term> {
    plan.terms.iter().find(|term| term.column == column && term.is_range())
}

/// How many bits to leave out so that these ranges stand under few values each.
fn coarseness(ranges: &[(u64, u64)]) -> u32 {
    let keys = |shift: u32| -> u64 {
        let each = ranges.iter().map(|(low, high)| (high >> shift) - (low >> shift));
        each.fold(0, |sum, more| sum.saturating_add(more).saturating_add(1))
    };
    let most = ranges.len() as u64 * KEYS_PER_RANGE;
    (0..31).find(|&shift| keys(shift) <= most).unwrap_or(31)
}

/// The combinations of numbers that pass the equalities and the range of a plan, for the columns of its signature.
fn keys_of(plan: &Plan, signature: &Signature, shift: u32) -> Option<Vec<Vec<u64>>> {
    let mut keys = vec![Vec::with_capacity(signature.equal.len() + 1)];
    let mut multiply = |alternatives: &mut dyn Iterator<Item = u64>| {
        let alternatives: Vec<u64> = alternatives.take(KEYS_MAX + 1).collect();
        keys = keys
            .iter()
            .flat_map(|key: &Vec<u64>| {
                alternatives.iter().map(move |&number| {
                    let mut key = key.clone();
                    key.push(number);
                    key
                })
            })
            .collect();
        (keys.len() <= KEYS_MAX).then_some(())
    };
    for &column in &signature.equal {
        let mut terms = plan.terms.iter().filter(|term| term.column == column);
        let alternatives = terms.find_map(|term| term.alternatives(ALTERNATIVES_MAX))?;
        multiply(&mut alternatives.into_iter())?;
    }
    if let Some(column) = signature.range {
        let term = range_of(plan, column)?;
        multiply(&mut (term.low >> shift..=term.high >> shift))?;
    }
    Some(keys)
}
