//! A query under way: what one operation of a batch asks of the rows, and what it is given.

use crate::{
    expr::Expr,
    operation::Output,
    schema::{KeyRange, Schema},
    value::{Row, Value},
    versions::{Found, Gathering, Spot, Task, reach},
};

use super::{
    Columns,
    block::Block,
    compile::{Plan, compile},
    results::Shapes,
};

/// Of so many points of the ring the rows are asked about the whole filter.
const POINTS_EVALUATED: usize = 4;
/// The most rows that are remembered of a read, so that it can be brought up to date.
const GIVEN_MAX: usize = 4096;

/// What a query is asked for.
pub(super) enum Sink<'a> {
    /// The answer of a read.
    Rows(Box<Gathering<'a>>),
    /// The rows that a write may change.
    Places(Vec<Found>),
}

/// How a query finds its rows.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// There are none.
    Nowhere,
    /// Block by block.
    Alone,
    /// In a group, by its number.
    Group(usize),
}

/// A query under way.
pub(super) struct Query<'a> {
    pub(super) sink: Sink<'a>,
    /// Where the rows lie that a read was given, one after another, unless nobody asks or they are too many.
    pub(super) given: Option<Vec<Spot>>,
    /// The columns that what it finds depends on.
    pub(super) depends: ColumnSet,
    pub(super) plan: Plan,
    pub(super) ranges: Vec<KeyRange>,
    /// Which columns to give out, if it wants columns as they are.
    pub(super) shape: Option<usize>,
    /// The columns that expressions look at, of the filter as far as it is evaluated and of the output.
    used: Vec<usize>,
    pub(super) way: Way,
    /// The blocks that were looked at for it alone.
    pub(super) visited: u64,
    /// How many more rows it takes, of a read that wants columns as they are.
    pub(super) left: usize,
    /// Which job of the batch it is, if it may be withdrawn.
    pub(super) job: Option<usize>,
}

impl<'a> Query<'a> {
    pub(super) fn new(
        columns: &Columns,
        schema: &Schema,
        task: &Task<'a>,
        followed: bool,
        shapes: &mut Shapes,
    ) -> Query<'a> {
        let (filter, ranges) = match task {
            Task::Read(read) => (read.select.filter.as_ref(), read.reach(schema)),
            Task::Find { ranges, filter } => (*filter, reach(schema, ranges, *filter)),
            Task::Nothing => (None, Vec::new()),
        };
        let plan = if ranges.len() <= POINTS_EVALUATED && ranges.iter().all(KeyRange::is_point) {
            // A point of the ring holds so few rows that asking them costs less than finding the codes of constants.
            Plan { terms: Vec::new(), residual: filter.is_some() }
        } else {
            compile(schema, &columns.dictionaries, filter)
        };
        let mut query = Query {
            sink: Sink::Places(Vec::new()),
            given: None,
            depends: ColumnSet::THERE,
            plan,
            ranges,
            shape: None,
            used: Vec::new(),
            way: Way::Nowhere,
            visited: 0,
            left: 0,
            job: None,
        };
        if followed {
            query.depends = match (query.plan.residual, filter) {
                (true, Some(filter)) => query.depends.and(ColumnSet::of(&filter.columns())),
                _ => query.plan.terms.iter().fold(query.depends, |all, term| all.with(term.column)),
            };
        }
        let Task::Read(read) = task else { return query };
        let width = schema.columns.len();
        if let Output::Rows { columns, order, distinct: false, limit } = &read.select.output
            && order.is_empty()
        {
            let column = |expr: &Expr| match expr {
                Expr::Column(column, _) if *column < width => Some(*column),
                _ => None,
            };
            query.shape = shapes.find(columns.iter().map(column));
            query.left = limit.map_or(usize::MAX, |limit| limit.try_into().unwrap_or(usize::MAX));
        }
        query.used = match (query.shape, query.plan.residual) {
            (None, true) => read.select.mentioned(),
            (None, false) => read.select.output.mentioned(),
            (Some(_), true) => filter.map(Expr::columns).unwrap_or_default(),
            (Some(_), false) => Vec::new(),
        };
        query.used.retain(|column| *column < width);
        query.sink = Sink::Rows(Box::new(Gathering::new(read.select, read.bytes_max)));
        query.given = followed.then(Vec::new);
        query.job = Some(read.job);
        if followed {
            let output = match query.shape {
                Some(shape) => shapes.columns(shape),
                None => ColumnSet::of(&read.select.output.mentioned()),
            };
            query.depends = query.depends.and(output);
        }
        query
    }

    /// Gives up what was found for it: nobody waits for it any more.
    pub(super) fn withdraw(&mut self) {
        if let Sink::Rows(gathering) = &mut self.sink {
            gathering.withdraw();
            self.given = None;
        }
    }

    /// Whether further rows would change nothing.
    pub(super) fn is_complete(&self) -> bool {
        match &self.sink {
            Sink::Rows(gathering) => gathering.is_complete(),
            Sink::Places(_) => false,
        }
    }

    /// Whether a row passes the terms and lies in the ranges.
    pub(super) fn admits(&self, block: &Block, index: usize) -> bool {
        self.plan.terms.iter().all(|term| term.admits(block.columns[term.column].value(index)))
            && KeyRange::cover(&self.ranges, block.key(index))
    }

    /// Remembers where the rows lie that it is given.
    pub(super) fn remember(&mut self, spots: impl ExactSizeIterator<Item = Spot>) {
        match &mut self.given {
            Some(given) if given.len() + spots.len() <= GIVEN_MAX => given.extend(spots),
            given => *given = None,
        }
    }

    /// Takes a row that passes the terms.
    pub(super) fn give(&mut self, columns: &Columns, spot: Spot, scratch: &mut Row) {
        let (block, index) = (&*columns.blocks[spot.block as usize], spot.row as usize);
        let gathering = match &mut self.sink {
            Sink::Rows(gathering) => gathering,
            Sink::Places(found) => return found.push(Found { place: block.place(index), spot }),
        };
        for &column in &self.used {
            scratch[column] = columns.value(block, column, index);
        }
        if !self.plan.residual || gathering.wants(scratch) {
            gathering.take(scratch);
            self.remember(std::iter::once(spot));
        }
    }

    /// Whether a row that passes the terms satisfies the filter.
    #[inline]
    pub(super) fn wants(
        &mut self,
        columns: &Columns,
        block: &Block,
        index: usize,
        scratch: &mut Row,
    ) -> bool {
        if !self.plan.residual {
            return true;
        }
        for &column in &self.used {
            scratch[column] = columns.value(block, column, index);
        }
        match &mut self.sink {
            Sink::Rows(gathering) => gathering.wants(scratch),
            Sink::Places(_) => unreachable!("a write wants no columns"),
        }
    }

    /// Takes rows of columns as they are.
    pub(super) fn take(&mut self, rows: impl ExactSizeIterator<Item = Row>) {
        match &mut self.sink {
            Sink::Rows(gathering) => gathering.extend(rows),
            Sink::Places(_) => unreachable!("a write wants no columns"),
        }
    }
}

/// What of rows: that they are there, and some columns, and perhaps others (a bit stands for each of which the number
/// leaves the same when divided by 63).
#[derive(Clone, Copy, Default)]
pub(super) struct ColumnSet(u64);

impl ColumnSet {
    pub(super) const ALL: ColumnSet = ColumnSet(u64::MAX);
    /// Only that they are there.
    const THERE: ColumnSet = ColumnSet(1 << 63);

    pub(super) fn of(columns: &[usize]) -> ColumnSet {
        columns.iter().fold(ColumnSet::default(), |all, &column| all.with(column))
    }

    pub(super) fn with(self, column: usize) -> ColumnSet {
        ColumnSet(self.0 | 1 << (column % 63))
    }

    pub(super) fn and(self, other: ColumnSet) -> ColumnSet {
        ColumnSet(self.0 | other.0)
    }

    /// Whether something may be in both.
    pub(super) fn meets(self, other: ColumnSet) -> bool {
        self.0 & other.0 != 0
    }
}

/// An empty row to put values into as they are asked for.
pub(super) fn scratch(schema: &Schema) -> Row {
    vec![Value::Null; schema.columns.len()]
}
