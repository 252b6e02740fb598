//! Groups: queries with similar filters, which one hash of a row finds.
//!
//! The *signature* of a query is the set of columns that it compares for equality, and one more column that
//! it compares with a range. Queries of one signature share a hash table over its columns. Only the upper
//! bits of the range's column are hashed, and a query has an entry under each of their values that its range
//! touches. So of a thousand queries on a name and some days, a row meets only the queries on its own name
//! and fortnight.
//!
//! A group costs the same for each row of the blocks at which its members look, however many members it has.
//! A group is worth this cost if its members would cost more one by one. For this reason queries that bind
//! the column that places rows, and so look at a small part of the table, are not put into groups. Queries
//! with equalities and a range that are too few for a group join the group of the equalities.
//!
//! The index union join of Crescando (2009) takes one attribute of each query, greedily; see the
//! introduction of `scan` for the difference.

use std::collections::BTreeMap;

use crate::{
    explain::Strategy,
    scan::{Columns, block::Block, code::kernel},
};

use super::{
    block_set::BlockSet,
    compile::{FilterPlan, Term},
    costs::Costs,
    scan_query::ScanQuery,
    span::{ActiveQuery, BlockSpan},
};

/// Maximum number of alternatives of an IN that are entered in a hash table. A longer list is compared.
const ALTERNATIVES_MAX: usize = 16;
/// Maximum number of entries of one query in a group.
const KEYS_MAX: usize = 64;
/// The average number of entries that a range may take.
const KEYS_PER_RANGE: u64 = 3;
/// A range is hashed only if it spans at most this fraction of the values that its column spans.
const RANGE_PART_MAX: f64 = 0.25;
/// Maximum size of a group's filter, as the binary logarithm of the number of bits. 2^18 bits are 32 KiB,
/// which fit the first-level cache together with the codes.
const FILTER_BITS_MAX: u32 = 18;
/// The bits of the filter for each entry. With 32 bits for each entry, few rows that interest no query pass
/// the filter.
const FILTER_BITS_PER_KEY: usize = 32;
/// The number of blocks that are sampled to estimate the span of a column.
const SAMPLES: usize = 16;

/// The columns by which queries are hashed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Signature {
    equal: Vec<usize>,
    range: Option<usize>,
}

/// A column of a signature, and the way its numbers enter the hash.
struct SignatureColumn {
    column: usize,
    /// The number of low bits that are left out.
    shift: u32,
    factor: u32,
}

/// Queries of one signature.
pub(in crate::scan) struct QueryGroup {
    signature: Signature,
    parts: Vec<SignatureColumn>,
    filter: Vec<u32>,
    /// The start of the entries for each value of the upper hash bits.
    starts: Vec<u32>,
    shift: u32,
    entries: Vec<QueryEntry>,
    /// The blocks at which some of its queries look.
    pub(in crate::scan) cover: BlockSet,
}

/// An entry of a query in a group, with one comparison that the query makes in addition to its equalities.
/// Most unwanted rows of the same hash fail that comparison, so that the query itself need not be fetched.
#[derive(Clone, Copy)]
struct QueryEntry {
    hash: u32,
    query: u32,
    column: u32,
    /// The end of the entries of this hash and column, among which `low` ascends.
    end: u32,
    low: u64,
    high: u64,
}

impl QueryGroup {
    /// Creates a group; `None` if no query can be placed in it. Queries that cannot be placed are added to
    /// `aside`.
    fn new(
        signature: Signature,
        members: Vec<u32>,
        queries: &[ScanQuery<'_>],
        cover: BlockSet,
        aside: &mut Vec<u32>,
    ) -> Option<QueryGroup> {
        let plan = |query: u32| &queries[query as usize].plan;
        let coarse = signature.range.map_or(0, |column| {
            let ranges = members.iter().filter_map(|&query| term_of(plan(query), column, true));
            coarseness(&ranges.map(|term| (term.low, term.high)).collect::<Vec<_>>())
        });
        let columns = signature.equal.iter().chain(&signature.range).enumerate();
        let parts: Vec<SignatureColumn> = columns
            .map(|(position, &column)| SignatureColumn {
                column,
                shift: if Some(column) == signature.range { coarse } else { 0 },
                // An odd factor for the first column, and a different one for each further column.
                factor: 0x85EB_CA6Bu32.wrapping_mul(2 * position as u32 + 1) ^ 0x27D4_EB2E,
            })
            .collect();
        let mut entries: Vec<QueryEntry> = Vec::with_capacity(2 * members.len());
        for query in members {
            let Some(keys) = keys_of(plan(query), &parts, signature.range) else {
                aside.push(query);
                continue;
            };
            let beside = match signature.range {
                Some(_) => None,
                None => plan(query)
                    .terms
                    .iter()
                    .find(|term| term.is_range() && !signature.equal.contains(&term.column)),
            };
            entries.extend(keys.into_iter().map(|(sum, (low, high))| {
                let column = signature.range.unwrap_or(parts[0].column);
                let (column, low, high) =
                    beside.map_or((column, low, high), |term| (term.column, term.low, term.high));
                QueryEntry { hash: kernel::finish(sum), query, column: column as u32, end: 0, low, high }
            }));
        }
        if entries.is_empty() {
            return None;
        }
        entries.sort_unstable_by_key(|entry| (entry.hash, entry.column, entry.low, entry.query));
        // A query has one entry per hash and interval; otherwise it would receive a row twice.
        entries.dedup_by_key(|entry| (entry.hash, entry.column, entry.low, entry.query));
        let mut end = entries.len();
        for index in (0..entries.len()).rev() {
            let run = |entry: &QueryEntry| (entry.hash, entry.column);
            if entries.get(index + 1).is_some_and(|next| run(next) != run(&entries[index])) {
                end = index + 1;
            }
            entries[index].end = end as u32;
        }
        let bits = (entries.len() * FILTER_BITS_PER_KEY).next_power_of_two().trailing_zeros();
        let bits = bits.clamp(10, FILTER_BITS_MAX);
        let mut filter = vec![0; 1 << (bits - 5)];
        for QueryEntry { hash, .. } in &entries {
            let bit = hash >> (32 - bits);
            filter[(bit >> 5) as usize] |= 1 << (bit & 31);
        }
        let shift = 32 - entries.len().next_power_of_two().trailing_zeros().max(1);
        let mut starts = vec![0; (1 << (32 - shift)) + 1];
        for QueryEntry { hash, .. } in &entries {
            starts[(hash >> shift) as usize + 1] += 1;
        }
        for index in 1..starts.len() {
            starts[index] += starts[index - 1];
        }
        Some(QueryGroup { signature, parts, filter, starts, shift, entries, cover })
    }

    /// Returns the queries of the group, possibly with repetitions.
    pub(in crate::scan) fn members(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().map(|entry| entry.query)
    }

    /// Returns the columns that the group hashes.
    pub(in crate::scan) fn columns(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().map(|part| part.column)
    }

    pub(in crate::scan) fn explain(&self) -> Strategy {
        let mut queries: Vec<u32> = self.members().collect();
        queries.sort_unstable();
        queries.dedup();
        let Signature { equal, range } = self.signature.clone();
        Strategy::Group { equal, range, queries: queries.len() as u64 }
    }

    /// Hashes all rows of a block, and returns the rows that may interest some query.
    pub(in crate::scan) fn probe<'s>(
        &self,
        block: &Block,
        hashes: &mut [u32],
        rows: &'s mut [u32],
    ) -> &'s [u32] {
        hashes.fill(0);
        for part in &self.parts {
            let chunk = &block.columns[part.column];
            kernel::mix(&chunk.numbers, chunk.high, part.shift, part.factor, hashes);
        }
        let listed = kernel::probe(hashes, &self.filter, rows);
        &rows[..listed]
    }

    /// Returns the hash of one row.
    pub(in crate::scan) fn hash(&self, block: &Block, index: usize) -> u32 {
        let numbers =
            self.parts.iter().map(|part| block.columns[part.column].numbers.number(index) >> part.shift);
        kernel::finish(sum(&self.parts, numbers))
    }

    /// Finds the queries that may want a row of this hash. NULLs are not distinguished from numbers here.
    #[inline]
    pub(in crate::scan) fn candidates(
        &self,
        hash: u32,
        block: &Block,
        index: usize,
        mut found: impl FnMut(u32),
    ) {
        let bucket = (hash >> self.shift) as usize;
        let (mut next, end) = (self.starts[bucket] as usize, self.starts[bucket + 1] as usize);
        while next < end {
            let QueryEntry { hash: its, column, end: run, .. } = self.entries[next];
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

fn sum(parts: &[SignatureColumn], numbers: impl Iterator<Item = u64>) -> u32 {
    parts
        .iter()
        .zip(numbers)
        .fold(0, |sum: u32, (part, number)| sum.wrapping_add(kernel::fold(number).wrapping_mul(part.factor)))
}

/// Divides queries into groups, and a rest of queries that search outside of groups.
pub(in crate::scan) fn arrange(
    columns: &Columns,
    queries: &[ScanQuery<'_>],
    asking: &[ActiveQuery],
    block_spans: &[BlockSpan],
    costs: &Costs,
) -> (Vec<QueryGroup>, Vec<u32>) {
    let mut alone = Vec::new();
    let mut groups = Vec::new();
    // Returns the blocks that these queries look at, if a group costs less than the queries one by one.
    let together = |members: &[&ActiveQuery]| {
        // A query looks at each block about once, so fewer members than `costs.group` are never worth a
        // group.
        (members.len() as f64 >= costs.group).then_some(())?;
        let looks: usize = members.iter().map(|asking| asking.blocks).sum();
        let block_spans = members.iter().flat_map(|asking| &block_spans[asking.block_spans.clone()]);
        let cover = BlockSet::of(columns.blocks.len(), block_spans);
        (looks as f64 >= costs.group * cover.count() as f64).then_some(cover)
    };
    let all: Vec<&ActiveQuery> = asking.iter().collect();
    if together(&all).is_none() {
        alone.extend(asking.iter().map(|asking| asking.query));
        return (groups, alone);
    }
    let mut spans: Vec<Option<f64>> = vec![None; columns.width()];
    let mut signatures: BTreeMap<Signature, Vec<&ActiveQuery>> = BTreeMap::new();
    for asking in all {
        match signature(columns, &queries[asking.query as usize].plan, &mut spans) {
            Some(signature) => signatures.entry(signature).or_default().push(asking),
            None => alone.push(asking.query),
        }
    }
    // A signature with a range sorts behind the same signature without the range, and is therefore handled
    // first. So its queries can still fall back to the signature without the range.
    while let Some((signature, members)) = signatures.pop_last() {
        let numbers = members.iter().map(|asking| asking.query);
        match (together(&members), signature.range) {
            (Some(cover), _) => {
                groups.extend(QueryGroup::new(signature, numbers.collect(), queries, cover, &mut alone));
            }
            (None, Some(_)) if !signature.equal.is_empty() => {
                let without = Signature { range: None, ..signature };
                signatures.entry(without).or_default().extend(members);
            }
            (None, _) => alone.extend(numbers),
        }
    }
    alone.sort_unstable();
    (groups, alone)
}

/// Returns the signature of a plan, if it has one.
fn signature(columns: &Columns, plan: &FilterPlan, spans: &mut [Option<f64>]) -> Option<Signature> {
    let equalities = plan.terms.iter().filter(|term| term.is_equality(ALTERNATIVES_MAX));
    let mut equal: Vec<usize> = equalities.map(|term| term.column).collect();
    equal.sort_unstable();
    equal.dedup();
    let ranges =
        plan.terms.iter().filter(|term| term.is_interval(ALTERNATIVES_MAX) && !equal.contains(&term.column));
    let parts = ranges.map(|term| {
        let span = *spans[term.column].get_or_insert_with(|| span(columns, term.column));
        ((term.high - term.low) as f64 / span, term.column)
    });
    let narrow = parts.filter(|(part, _)| *part <= RANGE_PART_MAX).min_by(|a, b| a.0.total_cmp(&b.0));
    let range = narrow.map(|(_, column)| column);
    (!equal.is_empty() || range.is_some()).then_some(Signature { equal, range })
}

/// Estimates the number of values that a column spans.
fn span(columns: &Columns, column: usize) -> f64 {
    let step = columns.blocks.len().div_ceil(SAMPLES).max(1);
    let chunks = columns.blocks.iter().step_by(step).map(|block| &block.columns[column]);
    let (low, high) =
        chunks.fold((u64::MAX, 0), |(low, high), chunk| (chunk.low.min(low), chunk.high.max(high)));
    high.saturating_sub(low) as f64 + 1.0
}

/// Returns the fewest low bits to leave out so that these ranges touch few values each.
fn coarseness(ranges: &[(u64, u64)]) -> u32 {
    let keys = |shift: u32| -> u64 {
        let each = ranges.iter().map(|(low, high)| (high >> shift) - (low >> shift));
        each.fold(0, |sum, more| sum.saturating_add(more).saturating_add(1))
    };
    let most = ranges.len() as u64 * KEYS_PER_RANGE;
    (0..31).find(|&shift| keys(shift) <= most).unwrap_or(31)
}

/// Returns the entries of a plan in a group, one for each combination of numbers that its equalities and its
/// range admit. An entry has the hash sum of the numbers, and the interval of the range that it stands for.
/// Returns `None` if there are more than `KEYS_MAX`.
fn keys_of(
    plan: &FilterPlan,
    parts: &[SignatureColumn],
    range: Option<usize>,
) -> Option<Vec<(u32, (u64, u64))>> {
    let mut keys = vec![(0u32, (0, u64::MAX))];
    for part in parts {
        let added = |number: u64| kernel::fold(number).wrapping_mul(part.factor);
        let term = term_of(plan, part.column, Some(part.column) == range)?;
        let mut multiplied = Vec::with_capacity(keys.len());
        for &(sum, beside) in &keys {
            for (low, high) in term.intervals() {
                let interval = if Some(part.column) == range { (low, high) } else { beside };
                for number in low >> part.shift..=high >> part.shift {
                    if multiplied.len() == KEYS_MAX {
                        return None;
                    }
                    multiplied.push((sum.wrapping_add(added(number)), interval));
                }
            }
        }
        keys = multiplied;
    }
    Some(keys)
}

/// Returns the term that makes a column part of a signature.
fn term_of(plan: &FilterPlan, column: usize, range: bool) -> Option<&Term> {
    plan.terms.iter().find(|term| {
        term.column == column
            && if range { term.is_interval(ALTERNATIVES_MAX) } else { term.is_equality(ALTERNATIVES_MAX) }
    })
}
