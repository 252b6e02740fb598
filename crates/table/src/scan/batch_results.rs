//! Batch results: the results of a batch's operations in the version before the batch, kept up to date with
//! the writes of the batch.
//!
//! Promise: each operation gets the result that a search at the operation's turn in the batch would return.
//!
//! Source: 002 §3.1, where a record is probed again once an update has changed it. Here the pass comes first.
//! A row that no write of the batch touches satisfies the same operations afterwards. For each row that a
//! write touches, the write finds the operations whose terms the row passes before or after the change, and
//! notes the row for these operations. An operation then corrects its result by the noted rows alone. It runs
//! a new search only if it remembers too many rows or had reached its limit.
//!
//! A write does not note a change of columns on which an operation does not depend. If a change only affects
//! the values that an operation returns, one note suffices. For reads of unchanged columns, a list from the
//! pass ([`ReadersOfRows`]) then names the operations that received the row, so that no terms are tested.
//!
//! A term ignores a text that entered the dictionary after the term was compiled. The engine therefore gives
//! codes to the values of a batch before it compiles ([`Columns::expect`]), so that only computed values are
//! new later. A row with a new code is noted for every operation that has a term on its column.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    engine::{Answer, Epoch, Failure},
    explain::{Explanation, Strategy},
    operation::Select,
    schema::KeyRange,
    value::Value,
    versions::{FoundRow, FoundRows, ReadOutput, RowPlace, Spot, output_of},
};

use super::{
    Columns,
    block::{Block, Places, STEPS},
    query::{
        compile::Term,
        group::QueryGroup,
        received::ReceivedRows,
        scan_query::{ColumnSet, Dependencies, NoteTime, QueryResult, ScanQuery, SearchPlan, Sink},
    },
};

/// The results of a batch's operations, and the rows that have changed since.
#[derive(Default)]
pub struct BatchResults<'a> {
    queries: Vec<ScanQuery<'a>>,
    /// The result of each query; `None` once the engine has taken it.
    query_results: Vec<Option<QueryResult<'a>>>,
    /// For each query, the touched rows that concern the query now or concerned it before the change.
    touched: Vec<Vec<FoundRow>>,
    /// The rows that reads of unchanged columns received.
    received: Vec<ReceivedRows>,
    readers: ReadersOfRows,
    groups: Vec<QueryGroup>,
    /// The columns that the members of each group depend on, and (`depends_all`) the columns that all queries
    /// together depend on.
    depends: Vec<Dependencies>,
    depends_all: Dependencies,
    /// Queries for single keys of the ring, as pairs of key and query, in order.
    points: Vec<(u64, usize)>,
    /// Queries outside the groups that are not for single keys, by the column of their guards.
    guards: Vec<Guard>,
    /// The size of each column's dictionary, in codes, when the terms were compiled.
    dictionary_sizes: Vec<Option<u64>>,
    /// The places of the rows during the pass, by block.
    places: Vec<Arc<Places>>,
    /// The number of queries that look at any row and whose results have not been taken.
    untaken: usize,
    write_prefetch: WritePrefetch,
}

/// The next writes, whose rows are prefetched. A write reads many columns of a few rows, which may lie
/// anywhere in the table.
#[derive(Default)]
struct WritePrefetch {
    /// The tasks of the writes, in order, and whether their changes will be noted.
    writes: Vec<(usize, bool)>,
    /// The index of the next write in `writes`.
    next: usize,
    /// The columns that are read when a row is noted.
    noted: Vec<usize>,
}

impl WritePrefetch {
    fn new(
        queries: &[ScanQuery<'_>],
        depends: Dependencies,
        groups: &[(&QueryGroup, Dependencies)],
        guards: &[Guard],
    ) -> WritePrefetch {
        let finds = |(_, query): &(usize, &ScanQuery<'_>)| query.is_write() && !query.ranges.is_empty();
        let writes = || queries.iter().enumerate().filter(finds);
        let changes = writes().fold(ColumnSet::default(), |all, (_, query)| all.and(query.changes));
        let are_noted = |depends: &Dependencies| depends.meets(changes, NoteTime::BeforeListed);
        let in_groups = groups.iter().filter(|(_, depends)| are_noted(depends));
        let in_groups = in_groups.flat_map(|(group, _)| group.columns());
        let outside = guards.iter().filter(|guard| are_noted(&guard.depends)).map(|guard| guard.column);
        let noted: BTreeSet<usize> = in_groups.chain(outside).collect();
        let is_noted = |query: &ScanQuery<'_>| depends.meets(query.changes, NoteTime::BeforeListed);
        let writes = writes().map(|(number, query)| (number, is_noted(query))).collect();
        WritePrefetch { writes, next: 0, noted: noted.into_iter().collect() }
    }

    /// Prefetches the rows of the next writes. The rows of the next write get the last step of prefetching,
    /// and the rows of each later write get one step less.
    fn prefetch_step(
        &mut self,
        columns: &Columns,
        queries: &[ScanQuery<'_>],
        query_results: &[Option<QueryResult<'_>>],
    ) {
        while self.writes.get(self.next).is_some_and(|&(write, _)| query_results[write].is_none()) {
            self.next += 1;
        }
        for (ahead, &(write, noted)) in self.writes[self.next..].iter().take(STEPS).enumerate() {
            let noted = if noted { &self.noted[..] } else { &[] };
            let spots = query_results[write].as_ref().map_or(&[][..], QueryResult::spots);
            // Inserts and deletes may have moved the rows. The prefetch is then useless, and the write waits
            // for the memory of its rows.
            for &Spot { block, row } in spots.iter().take(ROWS_PREFETCHED_MAX) {
                if let Some(block) = columns.blocks.get(block as usize) {
                    let columns = queries[write].used.iter().chain(noted).copied();
                    block.prefetch_step(STEPS - 1 - ahead, row as usize, columns);
                }
            }
        }
    }
}

/// The reads of unchanged columns that received the rows that writes will change. A change that only affects
/// the returned values needs no search for the reads that it concerns.
#[derive(Default)]
struct ReadersOfRows {
    /// The rows that writes will change, by their spots during the pass, in order. The number of each row is
    /// the end of its slice of `queries`.
    rows: Vec<(Spot, u32)>,
    queries: Vec<u32>,
}

impl ReadersOfRows {
    fn new(
        queries: &[ScanQuery<'_>],
        query_results: &[Option<QueryResult<'_>>],
        received: &[ReceivedRows],
        all: Dependencies,
    ) -> ReadersOfRows {
        let concerns = |query: &ScanQuery<'_>| query.is_write() && all.meets(query.changes, NoteTime::Before);
        let writes = queries.iter().zip(query_results).filter(|(query, _)| concerns(query));
        let spots = writes.filter_map(|(_, query_result)| query_result.as_ref()).flat_map(QueryResult::spots);
        let mut spots: Vec<Spot> = spots.copied().collect();
        spots.sort_unstable();
        spots.dedup();
        let mut readers = Vec::new();
        received
            .iter()
            .for_each(|received| received.receivers_of(&spots, |spot, query| readers.push((spot, query))));
        readers.sort_unstable();
        let mut end = 0;
        let rows = spots.into_iter().map(|row| {
            end += readers[end..].partition_point(|(spot, _)| *spot == row);
            (row, end as u32)
        });
        ReadersOfRows { rows: rows.collect(), queries: readers.iter().map(|(_, query)| *query).collect() }
    }

    /// Returns the reads that received a row; `None` if no write of the batch will change the row.
    fn of(&self, row: Spot) -> Option<&[u32]> {
        let number = self.rows.binary_search_by_key(&row, |(row, _)| *row).ok()?;
        let start = number.checked_sub(1).map_or(0, |before| self.rows[before].1);
        Some(&self.queries[start as usize..self.rows[number].1 as usize])
    }
}

/// A test that a row must pass before a query is fetched. Most rows concern few queries, so the test saves
/// memory accesses.
struct Guard {
    column: usize,
    low: u64,
    high: u64,
    nulls: bool,
    depends: Dependencies,
    query: usize,
}

impl Guard {
    fn new(query: usize, ScanQuery { plan, depends, .. }: &ScanQuery<'_>) -> Guard {
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

/// Maximum number of rows of a write that are prefetched.
const ROWS_PREFETCHED_MAX: usize = 64;

impl<'a> BatchResults<'a> {
    pub(super) fn new(
        columns: &Columns,
        (queries, query_results): (Vec<ScanQuery<'a>>, Vec<QueryResult<'a>>),
        received: Vec<ReceivedRows>,
        groups: Vec<QueryGroup>,
        outside: Vec<u32>,
        corrected_later: bool,
    ) -> BatchResults<'a> {
        let query_results: Vec<Option<QueryResult<'a>>> = query_results.into_iter().map(Some).collect();
        if !corrected_later {
            return BatchResults { queries, query_results, groups, ..BatchResults::default() };
        }
        let (mut points, mut guards) = (Vec::new(), Vec::new());
        for query in outside.into_iter().map(|query| query as usize) {
            let ranges = &queries[query].ranges;
            if ranges.iter().all(KeyRange::is_point) {
                points.extend(ranges.iter().map(|range| (range.low, query)));
            } else {
                guards.push(Guard::new(query, &queries[query]));
            }
        }
        points.sort_unstable();
        guards.sort_by_key(|guard| guard.column);
        let dictionaries = columns.dictionaries.iter();
        let dictionary_sizes =
            dictionaries.map(|dictionary| dictionary.as_ref().map(|one| one.len() as u64)).collect();
        let together = |all: Dependencies, query: &ScanQuery<'_>| all.and(query.depends);
        let of_group = |group: &QueryGroup| {
            group.members().map(|query| &queries[query as usize]).fold(Dependencies::default(), together)
        };
        let depends_all = queries.iter().fold(Dependencies::default(), together);
        let depends: Vec<Dependencies> = groups.iter().map(of_group).collect();
        let by_group: Vec<(&QueryGroup, Dependencies)> = groups.iter().zip(depends.iter().copied()).collect();
        let mut batch_results = BatchResults {
            readers: ReadersOfRows::new(&queries, &query_results, &received, depends_all),
            write_prefetch: WritePrefetch::new(&queries, depends_all, &by_group, &guards),
            depends,
            depends_all,
            untaken: queries.iter().filter(|query| !query.ranges.is_empty()).count(),
            touched: queries.iter().map(|_| Vec::new()).collect(),
            places: columns.blocks.iter().map(|block| block.places.clone()).collect(),
            queries,
            query_results,
            received,
            groups,
            points,
            guards,
            dictionary_sizes,
        };
        batch_results.write_prefetch.prefetch_step(
            columns,
            &batch_results.queries,
            &batch_results.query_results,
        );
        batch_results
    }

    fn take(&mut self, task: usize) -> Option<(QueryResult<'a>, Vec<FoundRow>)> {
        let query_result = self.query_results[task].take()?;
        let Some(touched) = self.touched.get_mut(task) else { return Some((query_result, Vec::new())) };
        self.untaken -= usize::from(!self.queries[task].ranges.is_empty());
        let mut touched = std::mem::take(touched);
        touched.sort_unstable_by_key(|found| found.place);
        touched.dedup_by_key(|found| found.place);
        Some((query_result, touched))
    }

    /// Returns the answer of a read; `None` if the read must run again.
    pub(super) fn answer(&mut self, columns: &Columns, task: usize) -> Option<Result<Answer, Failure>> {
        let (mut query_result, touched) = self.take(task)?;
        let (own, from) = (query_result.received.take(), query_result.received_from);
        let Sink::Rows(read_output) = query_result.into_sink() else {
            unreachable!("only a read is answered with rows")
        };
        if touched.is_empty() {
            return Some(read_output.finish());
        }
        let own = own.filter(|_| !read_output.is_complete())?;
        let received = match self.queries[task].shape {
            Some(_) => self.received[from..].iter().flat_map(|received| received.to(task)).collect(),
            None => own,
        };
        let place = |spot: &Spot| self.places[spot.block as usize].place(spot.row as usize);
        if read_output.is_plain() {
            return columns.patch(*read_output, &received, place, &touched).map(Ok);
        }
        let mut places: Vec<RowPlace> = received.iter().map(place).collect();
        places.extend(touched.iter().map(|found| found.place));
        places.sort_unstable();
        places.dedup();
        Some(columns.gather(read_output.anew(), places))
    }

    /// Explains the execution of a read that has not been answered yet.
    pub(super) fn explain(&self, columns: &Columns, task: usize) -> Explanation {
        let query_result =
            self.query_results[task].as_ref().expect("only a read that is not answered yet is explained");
        let query = &self.queries[task];
        let strategy = match query.way {
            SearchPlan::Nothing => Strategy::Nothing,
            SearchPlan::Single if query.ranges.iter().all(KeyRange::is_point) => Strategy::Points,
            SearchPlan::Single => Strategy::Alone,
            SearchPlan::Group(group) => self.groups[group].explain(),
        };
        Explanation {
            epoch: Epoch::default(),
            batch: self.queries.len() as u64,
            conditions: query.plan.terms.len() as u64,
            evaluated: query.plan.filter_left,
            blocks: columns.blocks.len() as u64,
            visited: match query.way {
                SearchPlan::Group(group) => self.groups[group].cover.count() as u64,
                _ => query_result.visited,
            },
            strategy,
            rows: 0,
        }
    }

    /// Returns the rows that a write must look at.
    pub(super) fn rows(&mut self, columns: &Columns, task: usize) -> Option<FoundRows> {
        let (query_result, touched) = self.take(task)?;
        let Sink::Spots(spots, satisfy) = query_result.into_sink() else {
            unreachable!("only a write is answered with found rows")
        };
        self.write_prefetch.prefetch_step(columns, &self.queries, &self.query_results);
        let certain = touched.is_empty() && satisfy;
        let place = |spot: &Spot| self.places[spot.block as usize].place(spot.row as usize);
        let mut rows: Vec<FoundRow> =
            spots.iter().map(|spot| FoundRow { place: place(spot), spot: *spot }).collect();
        if !touched.is_empty() {
            rows.extend(touched);
            rows.sort_unstable_by_key(|found| found.place);
            rows.dedup_by_key(|found| found.place);
        }
        Some(FoundRows { rows, certain })
    }

    /// Notes a changed row for each query that depends on the change and whose filter the row's present state
    /// may satisfy. `grown` lists the columns whose dictionaries have grown, each with the first code that
    /// the queries' terms do not know.
    fn note(
        &mut self,
        found: FoundRow,
        block: &Block,
        (changing, again): (ColumnSet, bool),
        grown: &[(usize, u64)],
    ) {
        let BatchResults {
            queries,
            query_results,
            touched,
            readers,
            places,
            groups,
            depends,
            points,
            guards,
            ..
        } = self;
        let (place, index) = (&found.place, found.spot.row as usize);
        let mut note = |number: usize, moment: NoteTime, concerns: &dyn Fn(&ScanQuery<'_>) -> bool| {
            let (query, touched) = (&queries[number], &mut touched[number]);
            if touched.last().is_none_or(|last| last.place != *place)
                && query_results[number].is_some()
                && query.depends.meets(changing, moment)
                && concerns(query)
            {
                touched.push(found);
            }
        };
        // The lists of the pass are only valid for a row whose block has the same places as during the
        // pass.
        let lies =
            || places.get(found.spot.block as usize).is_some_and(|there| Arc::ptr_eq(there, &block.places));
        let moment = match readers.of(found.spot) {
            _ if again => NoteTime::After,
            Some(reads) if lies() => {
                reads.iter().for_each(|&read| note(read as usize, NoteTime::Before, &|_| true));
                NoteTime::BeforeListed
            }
            _ => NoteTime::Before,
        };
        let mut note = |number, concerns: &dyn Fn(&ScanQuery<'_>) -> bool| note(number, moment, concerns);
        let admits = |query: &ScanQuery<'_>| query.admits(block, index);
        let first = points.partition_point(|(key, _)| *key < place.key);
        let here = points[first..].iter().take_while(|(key, _)| *key == place.key);
        here.for_each(|(_, query)| note(*query, &admits));
        let (mut column, mut value) = (usize::MAX, None);
        for guard in guards.iter().filter(|guard| guard.depends.meets(changing, moment)) {
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
        for &(column, size) in grown {
            if block.columns[column].value(index).is_some_and(|code| code >= size) {
                let asks = |query: &ScanQuery<'_>| {
                    query.plan.terms.iter().any(|term| term.column == column)
                        && KeyRange::cover(&query.ranges, block.key(index))
                };
                (0..queries.len()).for_each(|query| note(query, &asks));
            }
        }
    }
}

impl Columns {
    /// Notes rows for the queries that the rows concern. The caller is about to change these columns of the
    /// rows, or to delete the rows, or it has just changed or inserted them. `again` says that the rows were
    /// noted before the same change, too.
    pub(super) fn note(
        &self,
        batch_results: &mut BatchResults<'_>,
        rows: &[FoundRow],
        changing: Option<&[usize]>,
        again: bool,
    ) {
        let changing = changing.map_or(ColumnSet::ALL, ColumnSet::of);
        let moment = if again { NoteTime::After } else { NoteTime::Before };
        if batch_results.untaken == 0 || !batch_results.depends_all.meets(changing, moment) {
            return;
        }
        let dictionaries = self.dictionaries.iter().zip(&batch_results.dictionary_sizes).enumerate();
        let grown = dictionaries.filter_map(|(column, (dictionary, size))| {
            let size = (*size)?;
            (dictionary.as_ref()?.len() as u64 > size).then_some((column, size))
        });
        let grown: Vec<(usize, u64)> = grown.collect();
        for found in rows {
            let spot = self.spot_of(found).expect("a row that is there");
            let found = FoundRow { spot, ..*found };
            batch_results.note(found, &self.blocks[spot.block as usize], (changing, again), &grown);
        }
    }

    /// Returns the answer of a read of plain rows, corrected at the touched rows; `received` are the spots of
    /// its rows, in order. Returns `None` if an expression fails, so that a new search fails on the row that
    /// comes first.
    fn patch(
        &self,
        mut read_output: ReadOutput<'_>,
        received: &[Spot],
        place: impl Fn(&Spot) -> RowPlace,
        touched: &[FoundRow],
    ) -> Option<Answer> {
        let select = read_output.select();
        let used = self.used(select);
        let mut row = vec![Value::Null; self.width()];
        let (limit, before) = read_output.take_output();
        let mut output = Vec::with_capacity(before.len() + touched.len());
        let (mut before, mut next) = (before.into_iter(), 0);
        for found in touched {
            let at = next + received[next..].partition_point(|spot| place(spot) < found.place);
            output.extend(before.by_ref().take(at - next));
            next = at;
            if output.len() >= limit {
                break;
            }
            if received.get(at).is_some_and(|spot| place(spot) == found.place) {
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
        read_output.answer(output)
    }

    /// Returns the columns that a read evaluates.
    fn used(&self, select: &Select) -> Vec<usize> {
        let mut used = select.mentioned();
        used.retain(|&column| column < self.width());
        used
    }

    /// Returns the answer of a read whose filter only the rows at these places can satisfy.
    fn gather(&self, mut read_output: ReadOutput<'_>, places: Vec<RowPlace>) -> Result<Answer, Failure> {
        let used = self.used(read_output.select());
        let mut row = vec![Value::Null; self.width()];
        for place in places {
            if read_output.is_complete() {
                break;
            }
            if let Some((block, index)) = self.find(&place) {
                used.iter().for_each(|&column| row[column] = self.value(block, column, index));
                read_output.offer(&row);
            }
        }
        read_output.finish()
    }
}
