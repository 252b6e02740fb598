//! A query: what one operation of a batch asks of the rows. And its harvest: what it has been given of them so far.
//!
//! All threads that look at rows read the same queries; each has harvests of its own.

use std::sync::Arc;

use crate::{
    eval::satisfies,
    expr::{Aggregate, Expr},
    operation::{Output, Select},
    schema::{KeyRange, Schema},
    value::{Row, Value},
    versions::{Allowance, Gathering, Spot, Task, reach},
};

use super::{
    Columns,
    block::Block,
    compile::{Plan, compile},
    results::Shapes,
};

/// Of so many points of the ring the rows are asked about the whole filter, which costs less than finding the codes of
/// constants as long as a point holds few rows.
const POINTS_EVALUATED: usize = 4;
/// The most rows that are remembered of a read that makes something of columns, so that it can be brought up to date.
const GIVEN_MAX: usize = 4096;

/// Where the rows go that a query is given.
pub(super) enum Sink<'a> {
    /// The answer of a read.
    Rows(Box<Gathering<'a>>),
    /// Where the rows lie that a write may change, and whether all of them satisfy its filter.
    Spots(Vec<Spot>, bool),
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

/// What one operation asks.
pub(super) struct Query<'a> {
    /// What becomes of the rows, and what may be gathered of them; None of a write.
    read: Option<(&'a Select, Allowance<'a>)>,
    /// Whether a read remembers what it is given.
    followed: bool,
    pub(super) depends: Depends,
    pub(super) plan: Plan,
    /// The filter, if rows are asked about it whole so far.
    uncompiled: Option<&'a Expr>,
    pub(super) ranges: Vec<KeyRange>,
    /// Which columns to give out, if it wants columns as they are.
    pub(super) shape: Option<usize>,
    /// The columns that expressions look at, of the filter as far as it is evaluated and of the output; of a write those
    /// that it will look at or change, the former in front.
    pub(super) used: Vec<usize>,
    /// The filter of a write that may have to be evaluated, and how many columns it looks at.
    judged: Option<(&'a Expr, usize)>,
    /// What a write changes of the rows that it finds.
    pub(super) changes: ColumnSet,
    pub(super) way: Way,
    /// How many rows it takes, of a read that wants columns as they are.
    limit: usize,
    /// Which job of the batch it is, if it may be withdrawn.
    pub(super) job: Option<usize>,
    /// Whether its rows must be given to one harvest, because floats are rounded as they are added.
    pub(super) in_order: bool,
}

/// What a query has been given.
pub(super) struct Harvest<'a> {
    /// None as long as one of several parts was given nothing.
    sink: Option<Sink<'a>>,
    /// The most bytes that a read may gather in it.
    bytes_max: u64,
    /// Where the rows lie that a read was given, one after another, unless nobody asks or they are too many. Of one that
    /// wants columns as they are the shapes tell it.
    pub(super) given: Option<Vec<Spot>>,
    /// The first of the shapes' lists in which it stands.
    pub(super) given_from: usize,
    /// The blocks that were looked at for it alone.
    pub(super) visited: u64,
    /// How many more rows it takes, of a read that wants columns as they are.
    pub(super) left: usize,
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
            Task::Find { ranges, filter, .. } => (*filter, reach(schema, ranges, *filter)),
            Task::Nothing => (None, Vec::new()),
        };
        let points = ranges.len() <= POINTS_EVALUATED && ranges.iter().all(KeyRange::is_point);
        let plan = match points {
            true => Plan { terms: Vec::new(), residual: filter.is_some() },
            false => compile(schema, &columns.dictionaries, filter),
        };
        let mut query = Query {
            read: None,
            followed,
            depends: Depends::default(),
            plan,
            uncompiled: filter.filter(|_| points),
            ranges,
            shape: None,
            used: Vec::new(),
            judged: None,
            changes: ColumnSet::default(),
            way: Way::Nowhere,
            limit: 0,
            job: None,
            in_order: false,
        };
        let width = schema.columns.len();
        if followed {
            let asked = filter.filter(|_| query.plan.residual).map(Expr::columns);
            let found = match &asked {
                Some(columns) => ColumnSet::THERE.and(ColumnSet::of(columns)),
                None => query.plan.terms.iter().fold(ColumnSet::THERE, |all, term| all.with(term.column)),
            };
            query.depends = Depends { found, searched: found, given: found };
            if let Task::Find { assigned, .. } = task {
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
        let Task::Read(read) = task else { return query };
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
        query.used = match (query.shape, query.plan.residual) {
            (None, true) => read.select.mentioned(),
            (None, false) => read.select.output.mentioned(),
            (Some(_), true) => filter.map(Expr::columns).unwrap_or_default(),
            (Some(_), false) => Vec::new(),
        };
        query.used.retain(|column| *column < width);
        query.read = Some((read.select, read.allowance));
        query.job = Some(read.job);
        if let Output::Groups { aggregates, .. } = &read.select.output {
            query.in_order = aggregates.iter().any(Aggregate::adds_floats);
        }
        if followed {
            let output = match query.shape {
                Some(shape) => ColumnSet::of(shapes.columns(shape)),
                None => ColumnSet::of(&read.select.output.mentioned()),
            };
            query.depends.given = query.depends.found.and(output);
            if query.shape.is_none() {
                query.depends.searched = query.depends.given;
            }
        }
        query
    }

    /// Compiles the filter if rows in these blocks are to be asked about it whole and a point may hold many.
    pub(super) fn expect(&mut self, columns: &Columns, blocks: &[Arc<Block>]) {
        if self.uncompiled.is_some() && blocks.iter().any(|block| block.crowded) {
            self.plan = compile(&columns.schema, &columns.dictionaries, self.uncompiled.take());
        }
    }

    /// Nothing yet.
    pub(super) fn harvest(&self) -> Harvest<'a> {
        let bytes_max = self.read.map_or(0, |(_, allowance)| allowance.bytes_max);
        let mut harvest = Harvest { bytes_max, ..self.part(1) };
        harvest.sink(self);
        harvest
    }

    /// One of so many parts of a harvest. It takes its share of the bytes, all of them together less than would have a
    /// single one drop rows in vain.
    pub(super) fn part(&self, parts: usize) -> Harvest<'a> {
        let bytes_max = self.read.map_or(0, |(_, allowance)| allowance.bytes_max);
        let bytes_max = (bytes_max - bytes_max / 8) / parts as u64;
        let given = (self.followed && self.read.is_some()).then(Vec::new);
        Harvest { sink: None, bytes_max, given, given_from: 0, visited: 0, left: self.limit }
    }

    /// Whether it finds rows for a write.
    pub(super) fn is_write(&self) -> bool {
        self.read.is_none()
    }

    /// Whether a row passes the terms and lies in the ranges.
    pub(super) fn admits(&self, block: &Block, index: usize) -> bool {
        self.plan.terms.iter().all(|term| term.admits(block.columns[term.column].value(index)))
            && KeyRange::cover(&self.ranges, block.key(index))
    }
}

impl<'a> Harvest<'a> {
    /// Where what the query is given goes.
    fn sink(&mut self, query: &Query<'a>) -> &mut Sink<'a> {
        self.sink.get_or_insert_with(|| match query.read {
            Some((select, allowance)) => {
                let allowance = Allowance { bytes_max: self.bytes_max, ..allowance };
                Sink::Rows(Box::new(Gathering::new(select, allowance)))
            }
            None => Sink::Spots(Vec::new(), true),
        })
    }

    /// The answer of a read so far.
    fn gathering(&mut self, query: &Query<'a>) -> &mut Gathering<'a> {
        match self.sink(query) {
            Sink::Rows(gathering) => gathering,
            Sink::Spots(..) => unreachable!("a write gathers no rows"),
        }
    }

    /// What became of a harvest that is no part of one.
    pub(super) fn into_sink(self) -> Sink<'a> {
        self.sink.expect("there from the beginning")
    }

    /// Where the rows lie that were found for a write.
    pub(super) fn spots(&self) -> &[Spot] {
        match &self.sink {
            Some(Sink::Spots(spots, _)) => spots,
            _ => &[],
        }
    }

    /// Gives up what was found: nobody waits for it any more.
    pub(super) fn withdraw(&mut self, query: &Query<'a>) {
        self.gathering(query).withdraw();
        self.given = None;
    }

    /// Whether further rows would change nothing.
    pub(super) fn is_complete(&self) -> bool {
        matches!(&self.sink, Some(Sink::Rows(gathering)) if gathering.is_complete())
    }

    /// Takes a row that passes the terms.
    pub(super) fn give(&mut self, query: &Query<'a>, columns: &Columns, spot: Spot, scratch: &mut Row) {
        let gathering = match self.sink(query) {
            Sink::Rows(gathering) => gathering,
            Sink::Spots(spots, certain) => {
                if query.plan.residual {
                    let (filter, asked) = query.judged.expect("what a write asks of rows");
                    columns.fill(scratch, &query.used[..asked], spot);
                    match satisfies(Some(filter), scratch) {
                        Ok(true) => {}
                        Ok(false) => return,
                        // When it is its turn it fails, unless the row has changed.
                        Err(_) => *certain = false,
                    }
                }
                return spots.push(spot);
            }
        };
        columns.fill(scratch, &query.used, spot);
        if !query.plan.residual || gathering.wants(scratch) {
            gathering.take(scratch);
            match &mut self.given {
                Some(given) if given.len() < GIVEN_MAX => given.push(spot),
                given => *given = None,
            }
        }
    }

    /// Whether a row that passes the terms satisfies the filter.
    pub(super) fn wants(
        &mut self,
        query: &Query<'a>,
        columns: &Columns,
        (block, index): (&Block, usize),
        scratch: &mut Row,
    ) -> bool {
        for &column in &query.used {
            scratch[column] = columns.value(block, column, index);
        }
        self.gathering(query).wants(scratch)
    }

    /// Takes rows of columns as they are.
    pub(super) fn take(&mut self, query: &Query<'a>, rows: impl ExactSizeIterator<Item = Row>) {
        self.gathering(query).extend(rows);
    }

    /// Takes over what was found in the rows behind, as if it had been found here; false if that cannot be said.
    #[must_use]
    pub(super) fn absorb(&mut self, behind: Harvest<'a>) -> bool {
        self.visited += behind.visited;
        self.given = match (self.given.take(), behind.given) {
            (Some(mut given), Some(more)) if given.len() + more.len() <= GIVEN_MAX => {
                given.extend(more);
                Some(given)
            }
            _ => None,
        };
        match (&mut self.sink, behind.sink) {
            (_, None) => true,
            (Some(Sink::Rows(gathering)), Some(Sink::Rows(more))) => gathering.absorb(*more),
            (Some(Sink::Spots(spots, certain)), Some(Sink::Spots(more, certain_too))) => {
                spots.extend(more);
                *certain &= certain_too;
                true
            }
            _ => unreachable!("two harvests of one query"),
        }
    }
}

/// What the answer to a query depends on.
#[derive(Clone, Copy, Default)]
pub(super) struct Depends {
    /// Which rows it finds.
    found: ColumnSet,
    /// That, and what is given of them unless it wants columns as they are.
    searched: ColumnSet,
    /// That, and what is given of them.
    given: ColumnSet,
}

/// When a row is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Before it changes, goes or comes.
    Before,
    /// Before it changes, where it is known which of those that want columns as they are were given it.
    Told,
    /// After it has changed, so that it must only be if it may be found by others now.
    After,
}

impl Depends {
    pub(super) fn and(self, other: Depends) -> Depends {
        Depends {
            found: self.found.and(other.found),
            searched: self.searched.and(other.searched),
            given: self.given.and(other.given),
        }
    }

    /// Whether a row that changes in these columns is to be noted.
    pub(super) fn meets(self, changing: ColumnSet, moment: Moment) -> bool {
        let on = match moment {
            Moment::Before => self.given,
            Moment::Told => self.searched,
            Moment::After => self.found,
        };
        on.meets(changing)
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

impl Columns {
    /// Puts the values of a row in these columns where they belong.
    fn fill(&self, scratch: &mut Row, columns: &[usize], spot: Spot) {
        let block = &*self.blocks[spot.block as usize];
        columns.iter().for_each(|&column| scratch[column] = self.value(block, column, spot.row as usize));
    }
}

/// An empty row to put values into as they are asked for.
pub(super) fn scratch(schema: &Schema) -> Row {
    vec![Value::Null; schema.columns.len()]
}
