//! The pass: one walk over the blocks for all reads that wait.
//!
//! A block is looked at for every query before the next one is: each [`Group`] hashes all rows and asks its members
//! about the few that may interest them; a query that goes alone asks whether the block can hold what it wants, which
//! codes pass the term that fewest pass, which of those rows pass the rest. What queries want of a block is gathered
//! while it lies in the cache (`results.rs`).
//!
//! Blocks come in the order of places and so do the rows of each, so that every read is given its rows in that order
//! whatever the plan was, and one that has reached its limit takes no more. Nor does one that is withdrawn meanwhile: the
//! host is asked before each block, and the pass ends when nobody waits for it.
//!
//! A pass looks at some neighbouring blocks; how many passes a search takes is decided in `segment.rs`.

use std::ops::Range;

use crate::{
    host::Host,
    schema::{KeyRange, Schema},
    value::Row,
    versions::{Spot, Task},
};

use super::{
    Columns,
    ahead::{self, Ahead},
    block::{BLOCK_ROWS, Block},
    compile::Term,
    costs::Costs,
    find::find,
    foresight::Foresight,
    group::{Group, arrange},
    points,
    query::{Harvest, Query, Way, scratch},
    results::{Given, Shapes},
    segment::Reached,
};

impl Columns {
    /// What the tasks find; `followed` if it is to be brought up to date later.
    pub(super) fn foresee<'a>(
        &self,
        schema: &Schema,
        tasks: &[Task<'a>],
        followed: bool,
        costs: &Costs,
        host: &dyn Host,
    ) -> Foresight<'a> {
        let mut shapes = Shapes::new(followed);
        let query = |task: &Task<'a>| Query::new(self, schema, task, followed, &mut shapes);
        let mut queries: Vec<Query<'_>> = tasks.iter().map(query).collect();
        let mut harvests: Vec<Harvest<'_>> = queries.iter().map(Query::harvest).collect();
        let (mut stretches, asked) = self.stretches(&mut queries, &harvests);
        let (groups, alone) = arrange(self, &queries, &asked, &stretches, costs);
        for &query in &alone {
            let query = &mut queries[query as usize];
            query.way = Way::Alone;
            self.arrange(&mut query.plan.terms);
        }
        for (number, group) in groups.iter().enumerate() {
            group.members().for_each(|query| queries[query as usize].way = Way::Group(number));
        }
        stretches.retain(|stretch| matches!(queries[stretch.query as usize].way, Way::Alone));
        // Arcs of one query stay in order.
        stretches.sort_by_key(|stretch| (stretch.first, stretch.range.low));
        let search = Search::new(self, &queries, &shapes, &groups, &stretches, costs);
        let given = search.run(&mut harvests, host);
        Foresight::new(self, (queries, harvests), given, groups, alone, followed)
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

    /// The blocks that queries look at, arc by arc; and all queries that something may satisfy.
    fn stretches(&self, queries: &mut [Query<'_>], harvests: &[Harvest<'_>]) -> (Vec<Stretch>, Vec<Asking>) {
        let arcs: usize = queries.iter().map(|query| query.ranges.len()).sum();
        // Where many look for their place, the ends of blocks lie side by side.
        let lasts: Vec<u64> = match arcs > self.blocks.len() / 8 {
            true => self.blocks.iter().map(|block| block.last.key).collect(),
            false => Vec::new(),
        };
        let before = |holds: &dyn Fn(u64) -> bool| match lasts.is_empty() {
            true => self.blocks.partition_point(|block| holds(block.last.key)),
            false => lasts.partition_point(|last| holds(*last)),
        };
        let (mut stretches, mut asking) = (Vec::with_capacity(arcs), Vec::with_capacity(queries.len()));
        for ((query, harvest), number) in queries.iter_mut().zip(harvests).zip(0..) {
            if query.ranges.is_empty() || query.plan.is_empty() || harvest.is_complete() {
                continue;
            }
            let (mut blocks, before_it) = (0usize, stretches.len());
            for &range in &query.ranges {
                let first = if range.low == 0 { 0 } else { before(&|last| last < range.low) };
                let end = match range.high {
                    u64::MAX => self.blocks.len(),
                    high => (before(&|last| last <= high) + 1).min(self.blocks.len()),
                };
                if first < end {
                    stretches.push(Stretch { first, end, range, query: number });
                    blocks += end - first;
                }
            }
            for stretch in &stretches[before_it..] {
                query.expect(self, &self.blocks[stretch.first..stretch.end]);
            }
            asking.push(Asking { query: number, blocks, stretches: before_it..stretches.len() });
        }
        (stretches, asking)
    }
}

/// A query that something may satisfy.
pub(super) struct Asking {
    pub(super) query: u32,
    /// How many blocks it looks at.
    pub(super) blocks: usize,
    /// Where its stretches lie among those of all.
    pub(super) stretches: Range<usize>,
}

/// Neighbouring blocks in which a query looks at the rows of an arc.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stretch {
    pub(super) first: usize,
    pub(super) end: usize,
    pub(super) range: KeyRange,
    pub(super) query: u32,
}

/// What must be known of a query to say whether it wants a row: little, and that of all of them side by side.
#[derive(Clone, Copy)]
struct Asked {
    /// Its checks, and how many.
    first: u32,
    count: u32,
    /// Which columns to give out, if it wants columns as they are.
    shape: Option<u32>,
    /// Whether rows that pass the terms must be asked about the whole filter.
    residual: bool,
    /// Whether it looks at all rows.
    everywhere: bool,
    /// Whether it takes no more.
    over: bool,
}

/// A term of a query in a group.
#[derive(Clone, Copy)]
struct Check {
    low: u64,
    high: u64,
    column: u32,
    /// Which term of the plan must be asked, where the range does not say it all.
    term: Option<u32>,
}

/// What is looked for, and how: the same for all passes that it takes.
pub(super) struct Search<'p, 'a> {
    pub(super) columns: &'p Columns,
    pub(super) queries: &'p [Query<'a>],
    pub(super) shapes: &'p Shapes,
    pub(super) groups: &'p [Group],
    /// Of the queries that go alone, sorted by where they begin.
    pub(super) stretches: &'p [Stretch],
    pub(super) costs: &'p Costs,
    asked: Vec<Asked>,
    checks: Vec<Check>,
}

impl<'p, 'a> Search<'p, 'a> {
    fn new(
        columns: &'p Columns,
        queries: &'p [Query<'a>],
        shapes: &'p Shapes,
        groups: &'p [Group],
        stretches: &'p [Stretch],
        costs: &'p Costs,
    ) -> Search<'p, 'a> {
        let mut checks = Vec::new();
        let mut asked = Vec::with_capacity(queries.len());
        for query in queries {
            let terms = &query.plan.terms;
            asked.push(Asked {
                first: checks.len() as u32,
                count: terms.len() as u32,
                shape: query.shape.map(|shape| shape as u32),
                residual: query.plan.residual,
                everywhere: query.ranges == [KeyRange::ALL],
                over: false,
            });
            checks.extend(terms.iter().enumerate().map(|(position, term)| Check {
                low: term.low,
                high: term.high,
                column: term.column as u32,
                term: (!term.is_range()).then_some(position as u32),
            }));
        }
        Search { columns, queries, shapes, groups, stretches, costs, asked, checks }
    }
}

/// A pass under way.
pub(super) struct Pass<'p, 'a> {
    search: &'p Search<'p, 'a>,
    harvests: &'p mut [Harvest<'a>],
    asked: Vec<Asked>,
    shapes: Shapes,
    scratch: Row,
    /// Queries and the rows of the block at hand that they want.
    wanted: Vec<(u32, u32)>,
    /// The row of the block at hand that was last asked about a whole filter, for which query, and whether it satisfies it.
    judged: Option<(u32, u32, bool)>,
    /// How many of the withdrawn have been noticed.
    withdrawn: usize,
    /// Which segment it looks at, what the passes over the others say, and how many of their notes have been read.
    segment: Option<(usize, &'p Reached, usize)>,
    /// How many queries of each group take more, and of all groups.
    live: Vec<usize>,
    grouped: usize,
}

impl<'p, 'a> Pass<'p, 'a> {
    /// Of those queries that are to take part.
    pub(super) fn new(
        search: &'p Search<'p, 'a>,
        harvests: &'p mut [Harvest<'a>],
        takes_part: impl Fn(usize) -> bool,
    ) -> Pass<'p, 'a> {
        let mut asked = search.asked.clone();
        let mut live = vec![0; search.groups.len()];
        for (number, (asked, query)) in asked.iter_mut().zip(search.queries).enumerate() {
            asked.over = !takes_part(number);
            if let (Way::Group(group), false) = (query.way, asked.over) {
                live[group] += 1;
            }
        }
        let (scratch, shapes) = (scratch(&search.columns.schema), search.shapes.alike());
        let (grouped, wanted) = (live.iter().sum(), Vec::new());
        let (judged, withdrawn, segment) = (None, 0, None);
        Pass { search, harvests, asked, shapes, scratch, wanted, judged, withdrawn, segment, live, grouped }
    }

    /// One of several at once.
    pub(super) fn in_segment(self, number: usize, reached: &'p Reached) -> Pass<'p, 'a> {
        Pass { segment: Some((number, reached, 0)), ..self }
    }

    /// Looks at these blocks; what it has given to whom, if that is remembered.
    pub(super) fn run(mut self, blocks: Range<usize>, host: &dyn Host) -> Vec<Given> {
        let Search { columns, queries, groups, stretches, costs, .. } = *self.search;
        let touches = |stretch: &&Stretch| stretch.first < blocks.end && stretch.end > blocks.start;
        let mut coming = stretches.iter().enumerate().filter(|(_, stretch)| touches(stretch)).peekable();
        let mut ahead = Ahead::of(columns.width());
        let mut announced = 0;
        let mut active: Vec<Stretch> = Vec::new();
        let (mut hashes, mut rows) = match groups.is_empty() {
            true => (Vec::new(), Vec::new()),
            false => (vec![0; BLOCK_ROWS], vec![0; BLOCK_ROWS + 16]),
        };
        let mut matches = Vec::new();
        // The next block at which a group looks, as far as it was looked for.
        let mut together = blocks.start;
        let mut number = blocks.start;
        while number < blocks.end {
            while let Some((position, stretch)) = coming.next_if(|(_, stretch)| stretch.first <= number) {
                if position >= announced {
                    announced = stretches.len().min(position + points::TOGETHER);
                    self.search.announce_points(&stretches[position..announced], self.harvests);
                }
                ahead.begin(stretch, &queries[stretch.query as usize].plan.terms);
                active.push(*stretch);
            }
            self.withdraw(host);
            self.end_reached();
            let block = &*columns.blocks[number];
            ahead.ask(&columns.blocks, number, groups);
            for (at, group) in groups.iter().enumerate() {
                if self.live[at] > 0 && group.cover.holds(number) {
                    self.join(block, group, &mut hashes[..block.len()], &mut rows);
                }
            }
            for stretch in &active {
                if !self.asked[stretch.query as usize].over {
                    matches.clear();
                    let terms = &queries[stretch.query as usize].plan.terms;
                    if ahead.is_few() {
                        ahead::ask(&columns.blocks[number..stretch.end], terms);
                    }
                    let looks = find(block, terms, block.slice(&stretch.range), costs, &mut matches);
                    self.harvests[stretch.query as usize].visited += u64::from(looks);
                    if let Some(shape) = self.asked[stretch.query as usize].shape {
                        matches.iter().for_each(|&row| self.shapes.prefetch(shape as usize, block, row));
                    }
                    self.wanted.extend(matches.iter().map(|&row| (stretch.query, row)));
                }
            }
            self.take(number);
            active.retain(|stretch| {
                let goes_on = stretch.end > number + 1 && !self.asked[stretch.query as usize].over;
                if !goes_on {
                    ahead.end(stretch, &queries[stretch.query as usize].plan.terms);
                }
                goes_on
            });
            number += 1;
            if active.is_empty() {
                if together < number {
                    let live = groups.iter().zip(&self.live).filter(|(_, live)| **live > 0);
                    let next = live.filter_map(|(group, _)| group.cover.next(number)).min();
                    together = next.unwrap_or(blocks.end);
                }
                let alone = coming.peek().map_or(blocks.end, |(_, next)| next.first.max(number));
                number = together.min(alone);
            }
        }
        self.shapes.give_out(columns, queries, self.harvests)
    }

    /// Gives up what nobody waits for any more.
    fn withdraw(&mut self, host: &dyn Host) {
        for job in host.withdrawn(self.withdrawn) {
            self.withdrawn += 1;
            if let Some(query) = self.search.queries.iter().position(|query| query.job == Some(job)) {
                self.harvests[query].withdraw(&self.search.queries[query]);
                self.end(query);
            }
        }
    }

    /// Ends what has come to its end in the rows before.
    fn end_reached(&mut self) {
        if let Some((number, reached, notes)) = self.segment
            && let Some((now, over)) = reached.before(number, notes)
        {
            self.segment = Some((number, reached, now));
            over.for_each(|query| self.end(query));
        }
    }

    /// A query takes no more.
    fn end(&mut self, query: usize) {
        let over = std::mem::replace(&mut self.asked[query].over, true);
        if let (Way::Group(group), false) = (self.search.queries[query].way, over) {
            self.live[group] -= 1;
            self.grouped -= 1;
        }
    }

    /// One block for all queries of a group.
    fn join(&mut self, block: &Block, group: &Group, hashes: &mut [u32], rows: &mut [u32]) {
        let Search { queries, ref asked, ref checks, .. } = *self.search;
        for &row in group.probe(block, hashes, rows) {
            let index = row as usize;
            group.candidates(hashes[index], block, index, |query| {
                let asked = &asked[query as usize];
                if asked.over {
                    return;
                }
                let checks = &checks[asked.first as usize..(asked.first + asked.count) as usize];
                let passes = checks.iter().all(|check| {
                    let value = block.columns[check.column as usize].value(index);
                    match check.term {
                        None => value.is_some_and(|number| check.low <= number && number <= check.high),
                        Some(term) => queries[query as usize].plan.terms[term as usize].admits(value),
                    }
                });
                if passes
                    && (asked.everywhere
                        || KeyRange::cover(&queries[query as usize].ranges, block.key(index)))
                {
                    asked.shape.iter().for_each(|&shape| self.shapes.prefetch(shape as usize, block, row));
                    self.wanted.push((query, row));
                }
            });
        }
    }

    /// Gives the rows of a block to those that want them.
    fn take(&mut self, here: usize) {
        let Search { columns, queries, .. } = *self.search;
        let block = &*columns.blocks[here];
        let mut wanted = std::mem::take(&mut self.wanted);
        for (number, row) in wanted.drain(..) {
            let asked = self.asked[number as usize];
            if asked.over {
                continue;
            }
            let query = || &queries[number as usize];
            let over = match asked.shape {
                Some(shape) if !asked.residual || self.satisfies(number, block, row) => {
                    let harvest = &mut self.harvests[number as usize];
                    self.shapes.note(shape as usize, number, row);
                    harvest.left -= 1;
                    harvest.left == 0
                }
                Some(_) => self.harvests[number as usize].is_complete(),
                None => {
                    let harvest = &mut self.harvests[number as usize];
                    harvest.give(query(), columns, Spot { block: here as u32, row }, &mut self.scratch);
                    harvest.is_complete()
                }
            };
            if over {
                self.end(number as usize);
                if let Some((segment, reached, _)) = self.segment {
                    reached.note(number as usize, segment);
                }
            }
        }
        self.wanted = wanted;
        self.judged = None;
        self.shapes.gather(columns, here, queries, self.harvests);
    }

    /// Whether a row that passes the terms satisfies the whole filter. Rows of one key mostly lie side by side and differ in
    /// nothing that the filter looks at.
    #[inline(never)] // So that the loop that calls it stays small.
    fn satisfies(&mut self, query: u32, block: &Block, row: u32) -> bool {
        let Search { columns, queries, .. } = *self.search;
        let asking = &queries[query as usize];
        if let Some((before, like, satisfies)) = self.judged
            && before == query
            && block.are_alike(&asking.used, like, row)
        {
            return satisfies;
        }
        let harvest = &mut self.harvests[query as usize];
        let satisfies = harvest.wants(asking, columns, (block, row as usize), &mut self.scratch);
        self.judged = Some((query, row, satisfies));
        satisfies
    }
}
