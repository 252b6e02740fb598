//! Queries and query results. A query is the demand of one operation of a batch; a query result is the rows
//! that it has received so far.
//!
//! All threads of a search read the same queries. Each thread has its own query results.

use std::sync::Arc;

use crate::{
    eval::satisfies,
    expr::{Aggregate, Expr},
    operation::{Output, Select},
    scan::{Columns, block::Block},
    schema::{KeyRange, Schema},
    value::{Row, Value},
    versions::{MemoryBounds, ReadOutput, RowTask, Spot, reach},
};

use super::{
    compile::{FilterPlan, compile},
    shape::OutputShapes,
};

/// Maximum number of points of the ring at which a query evaluates its whole filter on each row. As long as a
/// point holds few rows, that costs less than looking up the codes of the filter's constants.
const POINTS_EVALUATED: usize = 4;
/// Maximum number of rows remembered for a read that computes its output, so that later writes can correct
/// its answer.
const RECEIVED_MAX: usize = 4096;

/// The destination of the rows that a query receives.
pub(in crate::scan) enum Sink<'a> {
    /// The answer of a read.
    Rows(Box<ReadOutput<'a>>),
    /// The rows that a write may change, and whether all of them are known to satisfy its filter.
    Spots(Vec<Spot>, bool),
}

/// The way in which a query finds its rows.
#[derive(Clone, Copy)]
pub(in crate::scan) enum SearchPlan {
    Nothing,
    /// The query looks at its blocks one by one.
    Single,
    /// The query belongs to the group of this index.
    Group(usize),
}

/// The demand of one operation.
pub(in crate::scan) struct ScanQuery<'a> {
    /// The read and the limits of its answer; `None` for a write.
    read: Option<(&'a Select, MemoryBounds<'a>)>,
    /// Whether later writes of the batch may correct the result, so that a read must remember its rows.
    corrected_later: bool,
    pub(in crate::scan) depends: Dependencies,
    pub(in crate::scan) plan: FilterPlan,
    /// The filter, as long as it is evaluated whole and has not been compiled.
    uncompiled: Option<&'a Expr>,
    pub(in crate::scan) ranges: Vec<KeyRange>,
    /// The index of the query's shape, if a read returns columns unchanged.
    pub(in crate::scan) shape: Option<usize>,
    /// The columns that a read evaluates: those of its output, and those of a filter that terms do not cover.
    /// For a write, the columns of its filter, then the columns that it changes.
    pub(in crate::scan) used: Vec<usize>,
    /// The filter of a write, and the number of columns at the front of `used` that the filter reads.
    judged: Option<(&'a Expr, usize)>,
    /// The columns that a write changes in the rows that it finds.
    pub(in crate::scan) changes: ColumnSet,
    pub(in crate::scan) way: SearchPlan,
    /// The limit of a read that returns columns unchanged, in rows.
    limit: usize,
    /// The index, in the batch, of the job to which a read belongs. The host can withdraw the read by this
    /// index. `None` for a write.
    pub(in crate::scan) job: Option<usize>,
    /// Whether one query result must receive all rows, in order, because sums of floats depend on the order.
    pub(in crate::scan) needs_one_pass: bool,
}

/// The rows that a query has received.
pub(in crate::scan) struct QueryResult<'a> {
    /// The destination of the rows; `None` for a part of the result, from one segment, that has received no
    /// row.
    sink: Option<Sink<'a>>,
    /// The memory that a read may gather in this query result, in bytes.
    bytes_max: u64,
    /// The rows that a read has received, in order; `None` if nobody needs them or there are more than
    /// `RECEIVED_MAX`. For a read that returns columns unchanged, the shapes remember the rows instead.
    pub(in crate::scan) received: Option<Vec<Spot>>,
    /// The number of lists of received rows that an earlier attempt has left. The lists of this query
    /// result follow them.
    pub(in crate::scan) received_from: usize,
    /// The number of blocks that were looked at for this query alone.
    pub(in crate::scan) visited: u64,
    /// Number of rows that the read still takes, if it returns columns without computing on them.
    pub(in crate::scan) left: usize,
}

impl<'a> ScanQuery<'a> {
    pub(in crate::scan) fn new(
        columns: &Columns,
        schema: &Schema,
        task: &RowTask<'a>,
        corrected_later: bool,
        shapes: &mut OutputShapes,
    ) -> ScanQuery<'a> {
        let (filter, ranges) = match task {
            RowTask::Read(read) => (read.select.filter.as_ref(), read.reach(schema)),
            RowTask::Find { ranges, filter, .. } => (*filter, reach(schema, ranges, *filter)),
            RowTask::Nothing => (None, Vec::new()),
        };
        let points = ranges.len() <= POINTS_EVALUATED && ranges.iter().all(KeyRange::is_point);
        let plan = match points {
            true => FilterPlan { terms: Vec::new(), filter_left: filter.is_some() },
            false => compile(schema, &columns.dictionaries, filter),
        };
        let mut query = ScanQuery {
            read: None,
            corrected_later,
            depends: Dependencies::default(),
            plan,
            uncompiled: filter.filter(|_| points),
            ranges,
            shape: None,
            used: Vec::new(),
            judged: None,
            changes: ColumnSet::default(),
            way: SearchPlan::Nothing,
            limit: 0,
            job: None,
            needs_one_pass: false,
        };
        let width = schema.columns.len();
        if corrected_later {
            let asked = filter.filter(|_| query.plan.filter_left).map(Expr::columns);
            let found = match &asked {
                Some(columns) => ColumnSet::EXISTENCE.and(ColumnSet::of(columns)),
                None => query.plan.terms.iter().fold(ColumnSet::EXISTENCE, |all, term| all.with(term.column)),
            };
            query.depends = Dependencies { filter: found, search: found, output: found };
            if let RowTask::Find { assigned, .. } = task {
                let columns = assigned.iter().map(|(column, _)| *column);
                query.changes = match assigned {
                    [] => ColumnSet::ALL,
                    _ => columns.clone().fold(ColumnSet::default(), ColumnSet::with),
                };
                query.used = asked.unwrap_or_default();
                query.used.retain(|column| *column < width);
                query.judged = filter.map(|filter| (filter, query.used.len()));
                query.used.extend(columns.filter(|column| *column < width));
            }
        }
        let RowTask::Read(read) = task else { return query };
        if let Output::Rows { columns, order, distinct: false, limit } = &read.select.output
            && order.is_empty()
        {
            let column = |expr: &Expr| match expr {
                Expr::Column(column, _) if *column < width => Some(*column),
                _ => None,
            };
            query.shape = shapes.find(columns.iter().map(column));
            query.limit = limit.map_or(usize::MAX, |limit| limit.try_into().unwrap_or(usize::MAX));
        }
        query.used = match (query.shape, query.plan.filter_left) {
            (None, true) => read.select.mentioned(),
            (None, false) => read.select.output.mentioned(),
            (Some(_), true) => filter.map(Expr::columns).unwrap_or_default(),
            (Some(_), false) => Vec::new(),
        };
        query.used.retain(|column| *column < width);
        query.read = Some((read.select, read.memory_bounds));
        query.job = Some(read.job);
        if let Output::Groups { aggregates, .. } = &read.select.output {
            query.needs_one_pass = aggregates.iter().any(Aggregate::adds_floats);
        }
        if corrected_later {
            let output = match query.shape {
                Some(shape) => ColumnSet::of(shapes.columns(shape)),
                None => ColumnSet::of(&read.select.output.mentioned()),
            };
            query.depends.output = query.depends.filter.and(output);
            if query.shape.is_none() {
                query.depends.search = query.depends.output;
            }
        }
        query
    }

    /// Compiles the filter if it would be evaluated whole and one of these blocks may hold many rows of one
    /// key.
    pub(in crate::scan) fn expect(&mut self, columns: &Columns, blocks: &[Arc<Block>]) {
        if self.uncompiled.is_some() && blocks.iter().any(|block| block.crowded) {
            self.plan = compile(&columns.schema, &columns.dictionaries, self.uncompiled.take());
        }
    }

    pub(in crate::scan) fn empty_result(&self) -> QueryResult<'a> {
        let bytes_max = self.read.map_or(0, |(_, memory_bounds)| memory_bounds.bytes_max);
        let mut query_result = QueryResult { bytes_max, ..self.part(1) };
        query_result.sink(self);
        query_result
    }

    /// Returns an empty query result for one of `parts` segments, with its share of the memory. The shares
    /// add up to seven eighths of the limit, the most that a gathering may hold after it has dropped rows.
    pub(in crate::scan) fn part(&self, parts: usize) -> QueryResult<'a> {
        let bytes_max = self.read.map_or(0, |(_, memory_bounds)| memory_bounds.bytes_max);
        let bytes_max = (bytes_max - bytes_max / 8) / parts as u64;
        let received = (self.corrected_later && self.read.is_some()).then(Vec::new);
        QueryResult { sink: None, bytes_max, received, received_from: 0, visited: 0, left: self.limit }
    }

    /// Whether the query finds rows for a write.
    pub(in crate::scan) fn is_write(&self) -> bool {
        self.read.is_none()
    }

    /// Whether a row passes the terms and lies in the ranges.
    pub(in crate::scan) fn admits(&self, block: &Block, index: usize) -> bool {
        self.plan.terms.iter().all(|term| term.admits(block.columns[term.column].value(index)))
            && KeyRange::cover(&self.ranges, block.key(index))
    }
}

impl<'a> QueryResult<'a> {
    /// Returns the destination of the query's rows, and creates it if there is none.
    fn sink(&mut self, query: &ScanQuery<'a>) -> &mut Sink<'a> {
        self.sink.get_or_insert_with(|| match query.read {
            Some((select, memory_bounds)) => {
                let memory_bounds = MemoryBounds { bytes_max: self.bytes_max, ..memory_bounds };
                Sink::Rows(Box::new(ReadOutput::new(select, memory_bounds)))
            }
            None => Sink::Spots(Vec::new(), true),
        })
    }

    /// Returns the answer of a read so far.
    fn read_output(&mut self, query: &ScanQuery<'a>) -> &mut ReadOutput<'a> {
        match self.sink(query) {
            Sink::Rows(read_output) => read_output,
            Sink::Spots(..) => unreachable!("a write gathers no rows"),
        }
    }

    /// Returns the destination of the rows. The query result of a single segment may have none, so only the
    /// query result of a whole search is passed to this function.
    pub(in crate::scan) fn into_sink(self) -> Sink<'a> {
        self.sink.expect("a whole query result has a destination from the beginning")
    }

    /// Returns the rows found for a write; no rows for a read.
    pub(in crate::scan) fn spots(&self) -> &[Spot] {
        match &self.sink {
            Some(Sink::Spots(spots, _)) => spots,
            _ => &[],
        }
    }

    /// Drops the rows of a read whose client no longer waits.
    pub(in crate::scan) fn withdraw(&mut self, query: &ScanQuery<'a>) {
        self.read_output(query).withdraw();
        self.received = None;
    }

    /// Whether further rows would change nothing.
    pub(in crate::scan) fn is_complete(&self) -> bool {
        matches!(&self.sink, Some(Sink::Rows(read_output)) if read_output.is_complete())
    }

    /// Takes a row that passes the terms, if it also satisfies the filter.
    pub(in crate::scan) fn give(
        &mut self,
        query: &ScanQuery<'a>,
        columns: &Columns,
        spot: Spot,
        scratch: &mut Row,
    ) {
        let read_output = match self.sink(query) {
            Sink::Rows(read_output) => read_output,
            Sink::Spots(spots, certain) => {
                if query.plan.filter_left {
                    let (filter, asked) = query.judged.expect("a write has a filter for its rows");
                    columns.fill(scratch, &query.used[..asked], spot);
                    match satisfies(Some(filter), scratch) {
                        Ok(true) => {}
                        Ok(false) => return,
                        // The write must evaluate this row again in its turn, because an earlier write of the
                        // batch may change it.
                        Err(_) => *certain = false,
                    }
                }
                return spots.push(spot);
            }
        };
        columns.fill(scratch, &query.used, spot);
        if !query.plan.filter_left || read_output.wants(scratch) {
            read_output.take(scratch);
            match &mut self.received {
                Some(received) if received.len() < RECEIVED_MAX => received.push(spot),
                received => *received = None,
            }
        }
    }

    /// Whether a row that passes the terms satisfies the filter.
    pub(in crate::scan) fn wants(
        &mut self,
        query: &ScanQuery<'a>,
        columns: &Columns,
        (block, index): (&Block, usize),
        scratch: &mut Row,
    ) -> bool {
        for &column in &query.used {
            scratch[column] = columns.value(block, column, index);
        }
        self.read_output(query).wants(scratch)
    }

    /// Takes rows of unchanged columns.
    pub(in crate::scan) fn take(&mut self, query: &ScanQuery<'a>, rows: impl ExactSizeIterator<Item = Row>) {
        self.read_output(query).extend(rows);
    }

    /// Appends the query result of the segment behind this one, as if one pass had found both. Returns false
    /// if the result may differ from the result of one pass. Then the query must run again.
    #[must_use]
    pub(in crate::scan) fn absorb(&mut self, behind: QueryResult<'a>) -> bool {
        self.visited += behind.visited;
        self.received = match (self.received.take(), behind.received) {
            (Some(mut received), Some(more)) if received.len() + more.len() <= RECEIVED_MAX => {
                received.extend(more);
                Some(received)
            }
            _ => None,
        };
        match (&mut self.sink, behind.sink) {
            (_, None) => true,
            (Some(Sink::Rows(read_output)), Some(Sink::Rows(more))) => read_output.absorb(*more),
            (Some(Sink::Spots(spots, certain)), Some(Sink::Spots(more, certain_too))) => {
                spots.extend(more);
                *certain &= certain_too;
                true
            }
            _ => unreachable!("two results of one query are of one kind"),
        }
    }
}

/// The columns that the result of a query depends on.
#[derive(Clone, Copy, Default)]
pub(in crate::scan) struct Dependencies {
    filter: ColumnSet,
    /// The columns of `filter`, and the columns of the output if the query computes the output.
    search: ColumnSet,
    /// The columns of `filter`, and all columns of the output.
    output: ColumnSet,
}

/// The time, relative to a change, at which a row is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scan) enum NoteTime {
    /// Before the row changes, disappears or is inserted.
    Before,
    /// Before the row changes, if the reads of unchanged columns that received the row are known already.
    BeforeListed,
    /// After the row has changed. Then only queries that may newly find the row matter.
    After,
}

impl Dependencies {
    pub(in crate::scan) fn and(self, other: Dependencies) -> Dependencies {
        Dependencies {
            filter: self.filter.and(other.filter),
            search: self.search.and(other.search),
            output: self.output.and(other.output),
        }
    }

    /// Whether a query must note a row that changes in these columns.
    pub(in crate::scan) fn meets(self, changing: ColumnSet, moment: NoteTime) -> bool {
        let on = match moment {
            NoteTime::Before => self.output,
            NoteTime::BeforeListed => self.search,
            NoteTime::After => self.filter,
        };
        on.meets(changing)
    }
}

/// A set of columns, in which the highest bit stands for the existence of rows. Column numbers are taken
/// modulo 63, so the set may report a column that is not in it, and never misses one that is.
#[derive(Clone, Copy, Default)]
pub(in crate::scan) struct ColumnSet(u64);

impl ColumnSet {
    pub(in crate::scan) const ALL: ColumnSet = ColumnSet(u64::MAX);
    /// The set of a read that depends only on the existence of rows.
    const EXISTENCE: ColumnSet = ColumnSet(1 << 63);

    pub(in crate::scan) fn of(columns: &[usize]) -> ColumnSet {
        columns.iter().fold(ColumnSet::default(), |all, &column| all.with(column))
    }

    pub(in crate::scan) fn with(self, column: usize) -> ColumnSet {
        ColumnSet(self.0 | 1 << (column % 63))
    }

    pub(in crate::scan) fn and(self, other: ColumnSet) -> ColumnSet {
        ColumnSet(self.0 | other.0)
    }

    /// Whether the two sets may have a column in common.
    pub(in crate::scan) fn meets(self, other: ColumnSet) -> bool {
        self.0 & other.0 != 0
    }
}

impl Columns {
    /// Copies the values of a row in these columns into `scratch`.
    fn fill(&self, scratch: &mut Row, columns: &[usize], spot: Spot) {
        let block = &*self.blocks[spot.block as usize];
        columns.iter().for_each(|&column| scratch[column] = self.value(block, column, spot.row as usize));
    }
}

/// Returns a row of NULLs, to be filled with the values that an expression needs.
pub(in crate::scan) fn scratch(schema: &Schema) -> Row {
    vec![Value::Null; schema.columns.len()]
}
