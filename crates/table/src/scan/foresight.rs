//! Foresight: what the operations of a batch find in the version before all of them, brought up to date by the writes
//! among them.
//!
//! Promise: each operation gets what it would have found if it had been asked when it was its turn.
//! Source: 002 §3.1, where a record is probed again once an update has changed it. Here the pass comes first. A row that
//! no write of the batch has touched concerns an operation afterwards as it did before; so a write notes each row it
//! touches, as it was and as it is, at the operations whose terms it passes, and when it is their turn these look at the
//! rows they were given and at those noted, and at no others. What remembers too many rows, or had reached its limit, is
//! asked anew.
//!
//! A term says nothing about a text that came into the dictionary after it was compiled. The engine gives the values
//! that a batch brings their codes before it compiles ([`Columns::expect`]), so that only computed ones are met later; a
//! row with such a code is noted at every operation that asks about its column.

use crate::{
    engine::{Answer, Epoch, Failure},
    explain::{Explained, Strategy},
    schema::KeyRange,
    value::Value,
    versions::{Gathering, Place},
};

use super::{
    Columns,
    block::Block,
    compile::{Plan, Term},
    group::Group,
    query::{Query, Sink, Way},
};

/// What the operations of a batch have found, and which rows have changed since.
pub struct Foresight<'a> {
    queries: Vec<Foreseen<'a>>,
    groups: Vec<Group>,
    /// Queries for single keys of the ring, by key.
    points: Vec<(u64, usize)>,
    /// The other queries outside the groups, by the column of their guards.
    alone: Vec<Guard>,
    /// How many codes each column's dictionary had when the terms were compiled.
    known: Vec<Option<u64>>,
    /// How many have not been given yet, of those that look anywhere.
    waiting: usize,
}

/// What a row must pass for a query to be looked at: most rows concern few queries, which then need not be fetched.
struct Guard {
    column: usize,
    low: u64,
    high: u64,
    nulls: bool,
    query: usize,
}

impl Guard {
    fn new(query: usize, plan: &Plan) -> Guard {
        let ranges = plan.terms.iter().filter(|term| term.is_range());
        match ranges.min_by_key(|term| term.high.wrapping_sub(term.low)) {
            Some(&Term { column, low, high, .. }) => Guard { column, low, high, nulls: false, query },
            None => Guard { column: 0, low: 0, high: u64::MAX, nulls: true, query },
        }
    }
}

struct Foreseen<'a> {
    /// None once it was given.
    query: Option<Query<'a>>,
    /// Rows that were touched and concern it, or did.
    touched: Vec<Place>,
}

impl<'a> Foresight<'a> {
    pub(super) fn new(
        columns: &Columns,
        queries: Vec<Query<'a>>,
        groups: Vec<Group>,
        outside: Vec<u32>,
    ) -> Foresight<'a> {
        let (mut points, mut alone) = (Vec::new(), Vec::new());
        for query in outside.into_iter().map(|query| query as usize) {
            let ranges = &queries[query].ranges;
            if ranges.iter().all(KeyRange::is_point) {
                points.extend(ranges.iter().map(|range| (range.low, query)));
            } else {
                alone.push(Guard::new(query, &queries[query].plan));
            }
        }
        points.sort_unstable();
        alone.sort_by_key(|guard| guard.column);
        let known = columns.dictionaries.iter();
        let known = known.map(|dictionary| dictionary.as_ref().map(|one| one.len() as u64)).collect();
        let waiting = queries.iter().filter(|query| !query.ranges.is_empty()).count();
        let foreseen = |query| Foreseen { query: Some(query), touched: Vec::new() };
        let queries = queries.into_iter().map(foreseen).collect();
        Foresight { queries, groups, points, alone, known, waiting }
    }

    fn take(&mut self, task: usize) -> Option<(Query<'a>, Vec<Place>)> {
        let Foreseen { query, touched } = &mut self.queries[task];
        let query = query.take()?;
        self.waiting -= usize::from(!query.ranges.is_empty());
        Some((query, std::mem::take(touched)))
    }

    /// What a read answers; nothing if it must be asked anew.
    pub(super) fn answer(&mut self, columns: &Columns, task: usize) -> Option<Result<Answer, Failure>> {
        let (query, touched) = self.take(task)?;
        let Sink::Rows(gathering) = query.sink else { unreachable!("a write is no read") };
        if touched.is_empty() {
            return Some(gathering.finish());
        }
        let places = query.given.filter(|_| !gathering.is_complete())?;
        Some(columns.gather(gathering.anew(), merged(places, touched)))
    }

    /// How a read was done that is not answered yet.
    pub(super) fn explain(&self, columns: &Columns, task: usize) -> Explained {
        let query = self.queries[task].query.as_ref().expect("a read that is not answered yet");
        let everywhere = columns.blocks.len() as u64;
        let strategy = match query.way {
            Way::Nowhere => Strategy::Nothing,
            Way::Alone if query.ranges.iter().all(KeyRange::is_point) => Strategy::Points,
            Way::Alone => Strategy::Alone,
            Way::Group(group) => self.groups[group].explain(),
        };
        Explained {
            epoch: Epoch::default(),
            batch: self.queries.len() as u64,
            conditions: query.plan.terms.len() as u64,
            evaluated: query.plan.residual,
            blocks: everywhere,
            visited: if matches!(query.way, Way::Group(_)) { everywhere } else { query.visited },
            strategy,
            rows: 0,
        }
    }

    /// The rows that a write must look at; some of them may be gone.
    pub(super) fn places(&mut self, task: usize) -> Option<Vec<Place>> {
        let (query, touched) = self.take(task)?;
        match query.sink {
            Sink::Rows(_) => unreachable!("a read is no write"),
            Sink::Places(places) => Some(merged(places, touched)),
        }
    }

    /// Notes a row at the queries that it concerns as it is now. Dictionaries that have grown come with the first code
    /// that no term knows.
    fn note(&mut self, place: &Place, block: &Block, index: usize, grown: &[(usize, u64)]) {
        let Foresight { queries, groups, points, alone, .. } = self;
        let note = |foreseen: &mut Foreseen<'_>, concerns: &dyn Fn(&Query<'_>) -> bool| {
            if foreseen.touched.last() != Some(place)
                && let Some(query) = &foreseen.query
                && concerns(query)
            {
                foreseen.touched.push(*place);
            }
        };
        let admits = |query: &Query<'_>| query.admits(block, index);
        let first = points.partition_point(|(key, _)| *key < place.key);
        let here = points[first..].iter().take_while(|(key, _)| *key == place.key);
        here.for_each(|(_, query)| note(&mut queries[*query], &admits));
        let (mut column, mut value) = (usize::MAX, None);
        for guard in alone.iter() {
            if guard.column != column {
                column = guard.column;
                value = block.columns[column].value(index);
            }
            if value.map_or(guard.nulls, |number| guard.low <= number && number <= guard.high) {
                note(&mut queries[guard.query], &admits);
            }
        }
        for group in groups.iter() {
            group.candidates(group.hash(block, index), block, index, |query| {
                note(&mut queries[query as usize], &admits);
            });
        }
        for &(column, known) in grown {
            if block.columns[column].value(index).is_some_and(|code| code >= known) {
                let asks = |query: &Query<'_>| {
                    query.plan.terms.iter().any(|term| term.column == column)
                        && KeyRange::cover(&query.ranges, block.key(index))
                };
                queries.iter_mut().for_each(|foreseen| note(foreseen, &asks));
            }
        }
    }
}

impl Columns {
    /// Notes these rows at what they concern: they are about to change, or have just come to be.
    pub(super) fn note(&self, foresight: &mut Foresight<'_>, places: &[Place]) {
        if foresight.waiting == 0 {
            return;
        }
        let dictionaries = self.dictionaries.iter().zip(&foresight.known).enumerate();
        let grown = dictionaries.filter_map(|(column, (dictionary, known))| {
            let known = (*known)?;
            (dictionary.as_ref()?.len() as u64 > known).then_some((column, known))
        });
        let grown: Vec<(usize, u64)> = grown.collect();
        for place in places {
            let block = &*self.blocks[self.block_of(place)];
            foresight.note(place, block, block.before(place), &grown);
        }
    }

    /// The answer of a read that no rows can satisfy but these.
    fn gather(&self, mut gathering: Gathering<'_>, places: Vec<Place>) -> Result<Answer, Failure> {
        let mut used = gathering.select().mentioned();
        used.retain(|&column| column < self.width());
        let mut row = vec![Value::Null; self.width()];
        for place in places {
            if gathering.is_complete() {
                break;
            }
            if let Some((block, index)) = self.find(&place) {
                used.iter().for_each(|&column| row[column] = self.value(block, column, index));
                gathering.offer(&row);
            }
        }
        gathering.finish()
    }
}

/// Each place once, in order.
fn merged(mut places: Vec<Place>, others: Vec<Place>) -> Vec<Place> {
    if !others.is_empty() {
        places.extend(others);
        places.sort_unstable();
        places.dedup();
    }
    places
}
