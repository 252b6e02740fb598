//! The pass: one walk over the blocks for all reads that wait.
//!
//! Reads whose filters ask for equality on the same columns (their *signature*) share a [`Group`], if they are many:
//! every row's hash over those columns is looked up in a filter in the first cache that knows the hashes of all queries,
//! and what passes is compared with the queries of its hash. So a row costs a group the same however many queries it
//! has. A read of few companions is asked block by block: is it among what the block can hold, which codes pass the
//! term that fewest pass, which of those rows pass the rest.
//!
//! Blocks come in the order of places and so do the rows of each, so that every read is given its rows in that order
//! whatever the plan was, and one that has reached its limit takes no more.

use std::collections::BTreeMap;

use crate::{
    expr::Expr,
    operation::Output,
    schema::{KeyRange, Schema},
    value::{Row, Value},
    versions::{Gathering, Place, Task, reach},
};

use super::{
    Columns,
    block::{BLOCK_ROWS, Block},
    compile::{Plan, Term, compile},
    foresight::Foresight,
    kernel,
};

/// How many reads of one signature make a group worth its cost: hashing a row costs about as much as this many looks at
/// a 16-bit code (measured: 2.4 ns against 0.06).
const GROUP_MIN: usize = 32;
/// The most alternatives of an IN that are looked up; a longer one is compared.
const ALTERNATIVES_MAX: usize = 16;
/// The most bits of a group's filter: 32 KiB, what the first cache has room for beside the codes.
const FILTER_BITS_MAX: u32 = 18;
/// Of each query so many bits of the filter, so that of rows that interest nobody few pass.
const FILTER_BITS_PER_KEY: usize = 32;

/// The most rows that are remembered of a read, so that it can be brought up to date.
const GIVEN_MAX: usize = 4096;

/// What a query is asked for.
pub(super) enum Sink<'a> {
    /// The answer of a read.
    Rows(Box<Gathering<'a>>),
    /// Where the rows are that a write may change.
    Places(Vec<Place>),
}

/// A query under way.
pub(super) struct Query<'a> {
    pub(super) sink: Sink<'a>,
    /// Where the rows lie that a read was given, unless nobody asks or they are too many.
    pub(super) given: Option<Vec<Place>>,
    pub(super) plan: Plan,
    pub(super) ranges: Vec<KeyRange>,
    /// Columns to be given out as they are; otherwise expressions look at the columns in `used`.
    direct: Option<Vec<usize>>,
    used: Vec<usize>,
}

impl<'a> Query<'a> {
    fn new(columns: &Columns, schema: &Schema, task: &Task<'a>, followed: bool) -> Query<'a> {
        let places = |plan: Plan, ranges: Vec<KeyRange>| {
            let sink = Sink::Places(Vec::new());
            Query { sink, given: None, plan, ranges, direct: None, used: Vec::new() }
        };
        let read = match task {
            Task::Read(read) => read,
            Task::Find { ranges, filter } => {
                let plan = compile(schema, &columns.dictionaries, *filter);
                return places(plan, reach(schema, ranges, *filter));
            }
            Task::Nothing => return places(Plan::default(), Vec::new()),
        };
        let plan = compile(schema, &columns.dictionaries, read.select.filter.as_ref());
        let width = schema.columns.len();
        let mut direct = None;
        if let Output::Rows { columns, order, distinct, .. } = &read.select.output
            && order.is_empty()
            && !distinct
            && !plan.residual
        {
            let column = |expr: &Expr| match expr {
                Expr::Column(column, _) if *column < width => Some(*column),
                _ => None,
            };
            direct = columns.iter().map(column).collect();
        }
        let mut used = match plan.residual {
            true => read.select.mentioned(),
            false => read.select.output.mentioned(),
        };
        used.retain(|column| *column < width);
        let sink = Sink::Rows(Box::new(Gathering::new(read.select)));
        let given = followed.then(Vec::new);
        Query { sink, given, plan, ranges: read.reach(schema), direct, used }
    }

    fn is_complete(&self) -> bool {
        match &self.sink {
            Sink::Rows(gathering) => gathering.is_complete(),
            Sink::Places(_) => false,
        }
    }

    /// Whether a row passes the terms and lies in the ranges.
    #[inline]
    pub(super) fn admits(&self, block: &Block, index: usize) -> bool {
        self.plan.terms.iter().all(|term| term.admits(block.columns[term.column].value(index)))
            && inside(&self.ranges, block, index)
    }

    /// Takes a row that passes the terms.
    fn give(&mut self, columns: &Columns, block: &Block, index: usize, scratch: &mut Row) {
        let gathering = match &mut self.sink {
            Sink::Rows(gathering) => gathering,
            Sink::Places(places) => return places.push(block.place(index)),
        };
        if let Some(given) = &mut self.given {
            given.push(block.place(index));
            if given.len() > GIVEN_MAX {
                self.given = None;
            }
        }
        if let Some(direct) = &self.direct {
            let row = direct.iter().map(|&column| columns.value(block, column, index)).collect();
            return gathering.push(row);
        }
        for &column in &self.used {
            scratch[column] = columns.value(block, column, index);
        }
        if self.plan.residual {
            gathering.offer(scratch);
        } else {
            gathering.take(scratch);
        }
    }
}

/// Queries of one signature.
pub(super) struct Group {
    columns: Vec<usize>,
    filter: Vec<u32>,
    /// Where the entries of the hashes with these upper bits begin.
    starts: Vec<u32>,
    shift: u32,
    entries: Vec<Entry>,
}

/// A query in a group, with what it asks beside the signature's columns as far as one comparison says it: most rows of
/// the right hash fail here, and the query itself need not be fetched.
#[derive(Clone, Copy)]
struct Entry {
    hash: u32,
    query: u32,
    column: usize,
    low: u64,
    high: u64,
}

/// An odd number for each column of a signature.
fn factor(position: usize) -> u32 {
    0x85EB_CA6Bu32.wrapping_mul(2 * position as u32 + 1) ^ 0x27D4_EB2E
}

impl Group {
    fn new(columns: Vec<usize>, keys: &[(Vec<u64>, u32)], queries: &[Query<'_>]) -> Group {
        let entry = |(numbers, query): &(Vec<u64>, u32)| {
            let products = numbers.iter().enumerate();
            let sum = products.fold(0, |sum: u32, (position, number)| {
                sum.wrapping_add(kernel::fold(*number).wrapping_mul(factor(position)))
            });
            let mut terms = queries[*query as usize].plan.terms.iter();
            let beside = terms.find(|term| term.is_range() && !columns.contains(&term.column));
            let (column, low, high) =
                beside.map_or((columns[0], 0, u64::MAX), |term| (term.column, term.low, term.high));
            Entry { hash: kernel::finish(sum), query: *query, column, low, high }
        };
        let mut entries: Vec<Entry> = keys.iter().map(entry).collect();
        entries.sort_unstable_by_key(|entry| (entry.hash, entry.column, entry.low, entry.query));
        let bits = (keys.len() * FILTER_BITS_PER_KEY).next_power_of_two().trailing_zeros();
        let bits = bits.clamp(10, FILTER_BITS_MAX);
        let mut filter = vec![0; 1 << (bits - 5)];
        for Entry { hash, .. } in &entries {
            let bit = hash >> (32 - bits);
            filter[(bit >> 5) as usize] |= 1 << (bit & 31);
        }
        let shift = 32 - keys.len().next_power_of_two().trailing_zeros().max(1);
        let mut starts = vec![0; (1 << (32 - shift)) + 1];
        for Entry { hash, .. } in &entries {
            starts[(hash >> shift) as usize + 1] += 1;
        }
        for index in 1..starts.len() {
            starts[index] += starts[index - 1];
        }
        Group { columns, filter, starts, shift, entries }
    }

    /// The queries that one row may concern, some of them twice.
    pub(super) fn queries(&self, block: &Block, index: usize) -> impl Iterator<Item = usize> {
        let sum = self.columns.iter().enumerate().fold(0u32, |sum, (position, &column)| {
            let number = block.columns[column].numbers.number(index);
            sum.wrapping_add(kernel::fold(number).wrapping_mul(factor(position)))
        });
        let hash = kernel::finish(sum);
        self.entries(hash).iter().filter(move |entry| entry.hash == hash).map(|entry| entry.query as usize)
    }

    /// The entries of a hash, and some others.
    #[inline]
    fn entries(&self, hash: u32) -> &[Entry] {
        let bucket = (hash >> self.shift) as usize;
        &self.entries[self.starts[bucket] as usize..self.starts[bucket + 1] as usize]
    }
}

impl Columns {
    /// What the tasks find; `followed` if it is to be brought up to date later.
    pub(super) fn foresee<'a>(&self, schema: &Schema, tasks: &[Task<'a>], followed: bool) -> Foresight<'a> {
        let query = |task: &Task<'a>| Query::new(self, schema, task, followed);
        let mut queries: Vec<Query<'_>> = tasks.iter().map(query).collect();
        let (groups, alone) = self.group(&queries);
        let mut scratch = vec![Value::Null; schema.columns.len()];
        for &index in &alone {
            self.ask(&mut queries[index], &mut scratch);
        }
        if !groups.is_empty() {
            let (mut sums, mut rows) = (vec![0; BLOCK_ROWS], vec![0; BLOCK_ROWS + 16]);
            for block in &self.blocks {
                for group in &groups {
                    self.join(block, group, &mut queries, &mut sums[..block.len()], &mut rows, &mut scratch);
                }
            }
        }
        Foresight::new(self, queries, groups, alone)
    }

    /// Which queries go together, and which alone; those that nothing can satisfy go nowhere.
    fn group(&self, queries: &[Query<'_>]) -> (Vec<Group>, Vec<usize>) {
        let mut signatures: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
        let mut alone = Vec::new();
        for (index, query) in queries.iter().enumerate() {
            if query.ranges.is_empty() || query.plan.is_empty() || query.is_complete() {
                continue;
            }
            let equalities = query.plan.terms.iter();
            let mut signature: Vec<usize> = equalities
                .filter(|term| term.alternatives(ALTERNATIVES_MAX).is_some())
                .map(|term| term.column)
                .collect();
            signature.sort_unstable();
            signature.dedup();
            // A point of the ring is found by halving, without a look at any other row.
            let point = query.ranges.iter().all(|range| range.low == range.high);
            if signature.is_empty() || point {
                alone.push(index);
            } else {
                signatures.entry(signature).or_default().push(index);
            }
        }
        let mut groups = Vec::new();
        for (columns, members) in signatures {
            let few = members.len() < GROUP_MIN;
            let mut keys = Vec::with_capacity(members.len());
            for index in members {
                match keys_of(&queries[index].plan, &columns).filter(|_| !few) {
                    Some(own) => keys.extend(own.into_iter().map(|key| (key, index as u32))),
                    None => alone.push(index),
                }
            }
            if !keys.is_empty() {
                groups.push(Group::new(columns, &keys, queries));
            }
        }
        alone.sort_unstable();
        (groups, alone)
    }

    /// One block for all queries of a group.
    fn join(
        &self,
        block: &Block,
        group: &Group,
        queries: &mut [Query<'_>],
        sums: &mut [u32],
        rows: &mut [u32],
        scratch: &mut Row,
    ) {
        sums.fill(0);
        for (position, &column) in group.columns.iter().enumerate() {
            let chunk = &block.columns[column];
            kernel::mix(&chunk.numbers, chunk.high, factor(position), sums);
        }
        let listed = kernel::probe(sums, &group.filter, rows);
        for &row in &rows[..listed] {
            let index = row as usize;
            let hash = sums[index];
            let (mut column, mut number) = (usize::MAX, 0);
            for entry in group.entries(hash) {
                if entry.hash != hash {
                    continue;
                }
                if entry.column != column {
                    column = entry.column;
                    number = block.columns[column].numbers.number(index);
                }
                if number < entry.low || entry.high < number {
                    continue;
                }
                let query = &mut queries[entry.query as usize];
                if query.admits(block, index) && !query.is_complete() {
                    query.give(self, block, index, scratch);
                }
            }
        }
    }

    /// Orders terms by how little passes them, judged by a block in the middle.
    pub(super) fn arrange(&self, terms: &mut [Term]) {
        if let Some(block) = self.blocks.get(self.blocks.len() / 2)
            && terms.len() > 1
        {
            let part = |term: &Term| term.selectivity(&block.columns[term.column]);
            terms.sort_by(|a, b| part(a).total_cmp(&part(b)));
        }
    }

    /// The whole table for one query.
    fn ask(&self, query: &mut Query<'_>, scratch: &mut Row) {
        let ranges = query.ranges.clone();
        self.arrange(&mut query.plan.terms);
        let mut matches = Vec::new();
        for (number, slice) in self.slices(&ranges) {
            let block = &self.blocks[number];
            matches.clear();
            find(block, &query.plan.terms, slice, &mut matches);
            for &index in &matches {
                if query.is_complete() {
                    return;
                }
                query.give(self, block, index as usize, scratch);
            }
            if query.is_complete() {
                return;
            }
        }
    }
}

/// The combinations of numbers that pass the equalities of a plan, for the columns of its signature.
fn keys_of(plan: &Plan, columns: &[usize]) -> Option<Vec<Vec<u64>>> {
    let mut keys = vec![Vec::with_capacity(columns.len())];
    for &column in columns {
        let mut terms = plan.terms.iter().filter(|term| term.column == column);
        let alternatives = terms.find_map(|term| term.alternatives(ALTERNATIVES_MAX))?;
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
        if keys.len() > ALTERNATIVES_MAX {
            return None;
        }
    }
    Some(keys)
}

/// Whether a row's key lies in sorted, disjoint arcs.
pub(super) fn inside(ranges: &[KeyRange], block: &Block, index: usize) -> bool {
    if ranges == [KeyRange::ALL] {
        return true;
    }
    let key = block.key(index);
    let position = ranges.partition_point(|range| range.high < key);
    ranges.get(position).is_some_and(|range| range.low <= key)
}

/// Lists the rows of a slice of a block that pass all terms. The first says whether the others are looked at.
pub(super) fn find(block: &Block, terms: &[Term], slice: std::ops::Range<usize>, matches: &mut Vec<u32>) {
    if terms.first().is_some_and(|term| !term.may_pass(&block.columns[term.column])) {
        return;
    }
    let passes = |index: usize, terms: &[Term]| {
        terms.iter().all(|term| term.admits(block.columns[term.column].value(index)))
    };
    if slice.len() < 64 {
        matches.extend(slice.filter(|&index| passes(index, terms)).map(|index| index as u32));
        return;
    }
    let mut bits = [0u64; BLOCK_ROWS.div_ceil(64)];
    let words = block.len().div_ceil(64);
    let bits = &mut bits[..words];
    let mut scanned = 0;
    if let Some(first) = terms.first()
        && first.others.is_empty()
    {
        scanned = 1;
        let chunk = &block.columns[first.column];
        kernel::within(&chunk.numbers, first.low, first.high, bits);
        if first.negated {
            bits.iter_mut().for_each(|word| *word = !*word);
        }
        if let Some(nulls) = chunk.nulls() {
            for (word, null) in bits.iter_mut().zip(nulls) {
                *word = if first.nulls { *word | null } else { *word & !null };
            }
        }
    } else {
        bits.fill(u64::MAX);
    }
    kernel::clear_behind(slice.end, bits);
    bits[..slice.start / 64].fill(0);
    bits[slice.start / 64] &= u64::MAX << (slice.start % 64);
    for (number, word) in bits.iter().enumerate() {
        let mut word = *word;
        while word != 0 {
            let index = number * 64 + word.trailing_zeros() as usize;
            word &= word - 1;
            if passes(index, &terms[scanned..]) {
                matches.push(index as u32);
            }
        }
    }
}
