//! Foresight: what the operations of a batch find in the version before all of them, brought up to date by the writes
//! among them.
//!
//! Promise: each operation gets what it would have found if it had been asked when it was its turn.
//! Source: 002 §3.1, where a record is probed again once an update has changed it. Here the pass comes first. A row that
//! no write of the batch has touched concerns an operation afterwards as it did before; so a write notes each row it
//! touches, as it was and as it is, at the operations whose terms it passes, and when it is their turn these look at the
//! rows they were given and at those noted, and at no others. What remembers too many rows, or had reached its limit, is
//! asked anew. A change of columns on which nothing depends that an operation finds is not noted at it, and one that only
//! changes what it is given of a row is noted once: at reads of columns as they are by a list of those that the pass gave
//! the row to ([`Told`]), without asking their terms.
//!
//! A term says nothing about a text that came into the dictionary after it was compiled. The engine gives the values
//! that a batch brings their codes before it compiles ([`Columns::expect`]), so that only computed ones are met later; a
//! row with such a code is noted at every operation that asks about its column.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    engine::{Answer, Epoch, Failure},
    explain::{Explained, Strategy},
    operation::Select,
    schema::KeyRange,
    value::Value,
    versions::{Foreseen, Found, Gathering, Place, Spot, output_of},
};

use super::{
    Columns,
    block::{Block, Places, STEPS},
    compile::Term,
    group::Group,
    query::{ColumnSet, Depends, Harvest, Moment, Query, Sink, Way},
    results::Given,
};

/// What the operations of a batch have found, and which rows have changed since.
#[derive(Default)]
pub struct Foresight<'a> {
    queries: Vec<Query<'a>>,
    /// None once it was given.
    harvests: Vec<Option<Harvest<'a>>>,
    /// Rows that were touched and concern a query, or did.
    touched: Vec<Vec<Found>>,
    /// Which rows reads of columns as they are were given.
    given: Vec<Given>,
    told: Told,
    groups: Vec<Group>,
    /// What the members of each group depend on, and what all queries do.
    depends: Vec<Depends>,
    depends_all: Depends,
    /// Queries for single keys of the ring, by key.
    points: Vec<(u64, usize)>,
    /// The other queries outside the groups, by the column of their guards.
    alone: Vec<Guard>,
    /// How many codes each column's dictionary had when the terms were compiled.
    known: Vec<Option<u64>>,
    /// The places of the rows as the pass found them, by block.
    places: Vec<Arc<Places>>,
    /// How many have not been given yet, of those that look anywhere.
    waiting: usize,
    coming: Coming,
}

/// The writes that come, so that the memory of their rows is asked for ahead: each looks at few rows, which lie anywhere,
/// and at many columns of them.
#[derive(Default)]
struct Coming {
    /// Their numbers, in order, and whether what they change will be noted.
    writes: Vec<(usize, bool)>,
    /// The next of them.
    next: usize,
    /// The columns that a row is looked at in to note it.
    noted: Vec<usize>,
}

impl Coming {
    fn new(queries: &[Query<'_>], depends: Depends, groups: &[(&Group, Depends)], alone: &[Guard]) -> Coming {
        let finds = |(_, query): &(usize, &Query<'_>)| query.is_write() && !query.ranges.is_empty();
        let writes = || queries.iter().enumerate().filter(finds);
        let changes = writes().fold(ColumnSet::default(), |all, (_, query)| all.and(query.changes));
        let are_noted = |depends: &Depends| depends.meets(changes, Moment::Told);
        let in_groups = groups.iter().filter(|(_, depends)| are_noted(depends));
        let in_groups = in_groups.flat_map(|(group, _)| group.columns());
        let outside = alone.iter().filter(|guard| are_noted(&guard.depends)).map(|guard| guard.column);
        let noted: BTreeSet<usize> = in_groups.chain(outside).collect();
        let is_noted = |query: &Query<'_>| depends.meets(query.changes, Moment::Told);
        let writes = writes().map(|(number, query)| (number, is_noted(query))).collect();
        Coming { writes, next: 0, noted: noted.into_iter().collect() }
    }

    /// Asks for what the next write will look at, and of those behind it for what leads there, each step a write earlier.
    fn announce(&mut self, columns: &Columns, queries: &[Query<'_>], harvests: &[Option<Harvest<'_>>]) {
        while self.writes.get(self.next).is_some_and(|&(write, _)| harvests[write].is_none()) {
            self.next += 1;
        }
        for (ahead, &(write, noted)) in self.writes[self.next..].iter().take(STEPS).enumerate() {
            let noted = if noted { &self.noted[..] } else { &[] };
            let spots = harvests[write].as_ref().map_or(&[][..], Harvest::spots);
            // Rows that have come or gone since may have moved others, which are then waited for.
            for &Spot { block, row } in spots.iter().take(ROWS_ANNOUNCED) {
                if let Some(block) = columns.blocks.get(block as usize) {
                    let columns = queries[write].used.iter().chain(noted).copied();
                    block.announce(STEPS - 1 - ahead, row as usize, columns);
                }
            }
        }
    }
}

/// To which reads of columns as they are the rows were given that writes will change, so that it need not be looked for
/// again what is the same after a change but for what is given.
#[derive(Default)]
struct Told {
    /// Rows that writes were found to change, in order, as they lay when the pass found them; each with the end of its
    /// queries.
    rows: Vec<(Spot, u32)>,
    queries: Vec<u32>,
}

impl Told {
    fn new(queries: &[Query<'_>], harvests: &[Option<Harvest<'_>>], given: &[Given], all: Depends) -> Told {
        let concerns = |query: &Query<'_>| query.is_write() && all.meets(query.changes, Moment::Before);
        let writes = queries.iter().zip(harvests).filter(|(query, _)| concerns(query));
        let spots = writes.filter_map(|(_, harvest)| harvest.as_ref()).flat_map(Harvest::spots);
        let mut spots: Vec<Spot> = spots.copied().collect();
        spots.sort_unstable();
        spots.dedup();
        let mut told = Vec::new();
        given.iter().for_each(|given| given.among(&spots, |spot, query| told.push((spot, query))));
        told.sort_unstable();
        let mut end = 0;
        let rows = spots.into_iter().map(|row| {
            end += told[end..].partition_point(|(spot, _)| *spot == row);
            (row, end as u32)
        });
        Told { rows: rows.collect(), queries: told.iter().map(|(_, query)| *query).collect() }
    }

    /// The reads that were given a row, if it is known of this one.
    fn of(&self, row: Spot) -> Option<&[u32]> {
        let number = self.rows.binary_search_by_key(&row, |(row, _)| *row).ok()?;
        let start = number.checked_sub(1).map_or(0, |before| self.rows[before].1);
        Some(&self.queries[start as usize..self.rows[number].1 as usize])
    }
}

/// What a row must pass for a query to be looked at: most rows concern few queries, which then need not be fetched.
struct Guard {
    column: usize,
    low: u64,
    high: u64,
    nulls: bool,
    depends: Depends,
    query: usize,
}

impl Guard {
    fn new(query: usize, Query { plan, depends, .. }: &Query<'_>) -> Guard {
        let depends = *depends;
        let ranges = plan.terms.iter().filter(|term| term.is_range());
        match ranges.min_by_key(|term| term.high.wrapping_sub(term.low)) {
            Some(&Term { column, low, high, .. }) => {
                Guard { column, low, high, nulls: false, depends, query }
            }
            None => Guard { column: 0, low: 0, high: u64::MAX, nulls: true, depends, query },
        }
    }
}

/// So many rows of a write are asked for.
const ROWS_ANNOUNCED: usize = 64;

impl<'a> Foresight<'a> {
    pub(super) fn new(
        columns: &Columns,
        (queries, harvests): (Vec<Query<'a>>, Vec<Harvest<'a>>),
        given: Vec<Given>,
        groups: Vec<Group>,
        outside: Vec<u32>,
        followed: bool,
    ) -> Foresight<'a> {
        let harvests: Vec<Option<Harvest<'a>>> = harvests.into_iter().map(Some).collect();
        if !followed {
            return Foresight { queries, harvests, groups, ..Foresight::default() };
        }
        let (mut points, mut alone) = (Vec::new(), Vec::new());
        for query in outside.into_iter().map(|query| query as usize) {
            let ranges = &queries[query].ranges;
            if ranges.iter().all(KeyRange::is_point) {
                points.extend(ranges.iter().map(|range| (range.low, query)));
            } else {
                alone.push(Guard::new(query, &queries[query]));
            }
        }
        points.sort_unstable();
        alone.sort_by_key(|guard| guard.column);
        let known = columns.dictionaries.iter();
        let known = known.map(|dictionary| dictionary.as_ref().map(|one| one.len() as u64)).collect();
        let together = |all: Depends, query: &Query<'_>| all.and(query.depends);
        let of_group = |group: &Group| {
            group.members().map(|query| &queries[query as usize]).fold(Depends::default(), together)
        };
        let depends_all = queries.iter().fold(Depends::default(), together);
        let depends: Vec<Depends> = groups.iter().map(of_group).collect();
        let by_group: Vec<(&Group, Depends)> = groups.iter().zip(depends.iter().copied()).collect();
        let mut foresight = Foresight {
            told: Told::new(&queries, &harvests, &given, depends_all),
            coming: Coming::new(&queries, depends_all, &by_group, &alone),
            depends,
            depends_all,
            waiting: queries.iter().filter(|query| !query.ranges.is_empty()).count(),
            touched: queries.iter().map(|_| Vec::new()).collect(),
            places: columns.blocks.iter().map(|block| block.places.clone()).collect(),
            queries,
            harvests,
            given,
            groups,
            points,
            alone,
            known,
        };
        foresight.coming.announce(columns, &foresight.queries, &foresight.harvests);
        foresight
    }

    fn take(&mut self, task: usize) -> Option<(Harvest<'a>, Vec<Found>)> {
        let harvest = self.harvests[task].take()?;
        let Some(touched) = self.touched.get_mut(task) else { return Some((harvest, Vec::new())) };
        self.waiting -= usize::from(!self.queries[task].ranges.is_empty());
        let mut touched = std::mem::take(touched);
        touched.sort_unstable_by_key(|found| found.place);
        touched.dedup_by_key(|found| found.place);
        Some((harvest, touched))
    }

    /// What a read answers; nothing if it must be asked anew.
    pub(super) fn answer(&mut self, columns: &Columns, task: usize) -> Option<Result<Answer, Failure>> {
        let (mut harvest, touched) = self.take(task)?;
        let (own, from) = (harvest.given.take(), harvest.given_from);
        let Sink::Rows(gathering) = harvest.into_sink() else { unreachable!("a write is no read") };
        if touched.is_empty() {
            return Some(gathering.finish());
        }
        let own = own.filter(|_| !gathering.is_complete())?;
        let given = match self.queries[task].shape {
            Some(_) => self.given[from..].iter().flat_map(|given| given.to(task)).collect(),
            None => own,
        };
        let place = |spot: &Spot| self.places[spot.block as usize].place(spot.row as usize);
        if gathering.is_plain() {
            return columns.patch(*gathering, &given, place, &touched).map(Ok);
        }
        let mut places: Vec<Place> = given.iter().map(place).collect();
        places.extend(touched.iter().map(|found| found.place));
        places.sort_unstable();
        places.dedup();
        Some(columns.gather(gathering.anew(), places))
    }

    /// How a read was done that is not answered yet.
    pub(super) fn explain(&self, columns: &Columns, task: usize) -> Explained {
        let harvest = self.harvests[task].as_ref().expect("a read that is not answered yet");
        let query = &self.queries[task];
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
            blocks: columns.blocks.len() as u64,
            visited: match query.way {
                Way::Group(group) => self.groups[group].cover.count() as u64,
                _ => harvest.visited,
            },
            strategy,
            rows: 0,
        }
    }

    /// The rows that a write must look at.
    pub(super) fn rows(&mut self, columns: &Columns, task: usize) -> Option<Foreseen> {
        let (harvest, touched) = self.take(task)?;
        let Sink::Spots(spots, satisfy) = harvest.into_sink() else { unreachable!("a read is no write") };
        self.coming.announce(columns, &self.queries, &self.harvests);
        let certain = touched.is_empty() && satisfy;
        let place = |spot: &Spot| self.places[spot.block as usize].place(spot.row as usize);
        let mut rows: Vec<Found> =
            spots.iter().map(|spot| Found { place: place(spot), spot: *spot }).collect();
        if !touched.is_empty() {
            rows.extend(touched);
            rows.sort_unstable_by_key(|found| found.place);
            rows.dedup_by_key(|found| found.place);
        }
        Some(Foreseen { rows, certain })
    }

    /// Notes a row at the queries that it concerns as it is now and that depend on what changes of it. Dictionaries that
    /// have grown come with the first code that no term knows.
    fn note(
        &mut self,
        found: Found,
        block: &Block,
        (changing, again): (ColumnSet, bool),
        grown: &[(usize, u64)],
    ) {
        let Foresight { queries, harvests, touched, told, places, groups, depends, points, alone, .. } = self;
        let (place, index) = (&found.place, found.spot.row as usize);
        let mut note = |number: usize, moment: Moment, concerns: &dyn Fn(&Query<'_>) -> bool| {
            let (query, touched) = (&queries[number], &mut touched[number]);
            if touched.last().is_none_or(|last| last.place != *place)
                && harvests[number].is_some()
                && query.depends.meets(changing, moment)
                && concerns(query)
            {
                touched.push(found);
            }
        };
        // A row that lies where it lay can be known to the reads that were given it.
        let lies =
            || places.get(found.spot.block as usize).is_some_and(|there| Arc::ptr_eq(there, &block.places));
        let moment = match told.of(found.spot) {
            _ if again => Moment::After,
            Some(reads) if lies() => {
                reads.iter().for_each(|&read| note(read as usize, Moment::Before, &|_| true));
                Moment::Told
            }
            _ => Moment::Before,
        };
        let mut note = |number, concerns: &dyn Fn(&Query<'_>) -> bool| note(number, moment, concerns);
        let admits = |query: &Query<'_>| query.admits(block, index);
        let first = points.partition_point(|(key, _)| *key < place.key);
        let here = points[first..].iter().take_while(|(key, _)| *key == place.key);
        here.for_each(|(_, query)| note(*query, &admits));
        let (mut column, mut value) = (usize::MAX, None);
        for guard in alone.iter().filter(|guard| guard.depends.meets(changing, moment)) {
            if guard.column != column {
                column = guard.column;
                value = block.columns[column].value(index);
            }
            if value.map_or(guard.nulls, |number| guard.low <= number && number <= guard.high) {
                note(guard.query, &admits);
            }
        }
        for (group, _) in groups.iter().zip(depends).filter(|(_, depends)| depends.meets(changing, moment)) {
            group.candidates(group.hash(block, index), block, index, |query| note(query as usize, &admits));
        }
        for &(column, known) in grown {
            if block.columns[column].value(index).is_some_and(|code| code >= known) {
                let asks = |query: &Query<'_>| {
                    query.plan.terms.iter().any(|term| term.column == column)
                        && KeyRange::cover(&query.ranges, block.key(index))
                };
                (0..queries.len()).for_each(|query| note(query, &asks));
            }
        }
    }
}

impl Columns {
    /// Notes these rows at what they concern: they are about to change in these columns (or to go), or have just done so
    /// (or come). `again` if they have been noted before the same change.
    pub(super) fn note(
        &self,
        foresight: &mut Foresight<'_>,
        rows: &[Found],
        changing: Option<&[usize]>,
        again: bool,
    ) {
        let changing = changing.map_or(ColumnSet::ALL, ColumnSet::of);
        let moment = if again { Moment::After } else { Moment::Before };
        if foresight.waiting == 0 || !foresight.depends_all.meets(changing, moment) {
            return;
        }
        let dictionaries = self.dictionaries.iter().zip(&foresight.known).enumerate();
        let grown = dictionaries.filter_map(|(column, (dictionary, known))| {
            let known = (*known)?;
            (dictionary.as_ref()?.len() as u64 > known).then_some((column, known))
        });
        let grown: Vec<(usize, u64)> = grown.collect();
        for found in rows {
            let spot = self.spot_of(found).expect("a row that is there");
            let found = Found { spot, ..*found };
            foresight.note(found, &self.blocks[spot.block as usize], (changing, again), &grown);
        }
    }

    /// The answer of a read of plain rows, in the order of these spots, brought up to date where rows were touched.
    /// What fails is asked anew, so that it fails on the row that it would have met first.
    fn patch(
        &self,
        mut gathering: Gathering<'_>,
        given: &[Spot],
        place: impl Fn(&Spot) -> Place,
        touched: &[Found],
    ) -> Option<Answer> {
        let select = gathering.select();
        let used = self.used(select);
        let mut row = vec![Value::Null; self.width()];
        let (limit, before) = gathering.take_output();
        let mut output = Vec::with_capacity(before.len() + touched.len());
        let (mut before, mut next) = (before.into_iter(), 0);
        for found in touched {
            let at = next + given[next..].partition_point(|spot| place(spot) < found.place);
            output.extend(before.by_ref().take(at - next));
            next = at;
            if output.len() >= limit {
                break;
            }
            if given.get(at).is_some_and(|spot| place(spot) == found.place) {
                before.next();
                next += 1;
            }
            if let Some(Spot { block, row: index }) = self.spot_of(found) {
                let block = &self.blocks[block as usize];
                used.iter().for_each(|&column| row[column] = self.value(block, column, index as usize));
                output.extend(output_of(select, &row).ok()?);
            }
        }
        output.extend(before);
        gathering.answer(output)
    }

    /// The columns that a read looks at.
    fn used(&self, select: &Select) -> Vec<usize> {
        let mut used = select.mentioned();
        used.retain(|&column| column < self.width());
        used
    }

    /// The answer of a read that no rows can satisfy but these.
    fn gather(&self, mut gathering: Gathering<'_>, places: Vec<Place>) -> Result<Answer, Failure> {
        let used = self.used(gathering.select());
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
