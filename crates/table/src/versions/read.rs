//! Reads: what becomes of the rows that a read is given, in the order of their places.

use std::collections::HashSet;

use rustc_hash::FxBuildHasher;

use crate::{
    aggregate::Groups,
    engine::{Answer, Cursor, Epoch, Failure, Page, RowId},
    eval::{eval, satisfies},
    expr::Expr,
    operation::{Order, Output, Select},
    schema::KeyRange,
    value::{Row, Value, key_of},
};

use super::{Found, Place, Rows, Table};

/// A read under way: what it has made of the rows so far.
pub(crate) struct Gathering<'a> {
    select: &'a Select,
    limit: usize,
    output: Vec<Row>,
    /// Keys of the output rows so far, for DISTINCT.
    seen: HashSet<Vec<u8>, FxBuildHasher>,
    /// Partial groups, if the read has any.
    groups: Option<Groups>,
    failure: Option<Failure>,
}

impl<'a> Gathering<'a> {
    /// Nothing yet.
    pub(crate) fn new(select: &'a Select) -> Gathering<'a> {
        let (mut groups, mut failure, mut most) = (None, None, usize::MAX);
        match &select.output {
            Output::Rows { columns, order, limit, .. } => {
                failure = Order::check(order, columns.len()).err();
                most = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
            }
            Output::Groups { keys, aggregates } => groups = Some(Groups::new(keys.len(), aggregates.clone())),
        }
        let seen = HashSet::with_hasher(FxBuildHasher);
        Gathering { select, limit: most, output: Vec::new(), seen, groups, failure }
    }

    /// The read that it is for.
    pub(crate) fn select(&self) -> &'a Select {
        self.select
    }

    /// Whether further rows would change nothing.
    pub(crate) fn is_complete(&self) -> bool {
        let full = match &self.select.output {
            Output::Rows { order, .. } => order.is_empty() && self.output.len() >= self.limit,
            Output::Groups { .. } => false,
        };
        full || self.failure.is_some()
    }

    /// Takes the next row if it satisfies the filter.
    pub(crate) fn offer(&mut self, row: &[Value]) {
        if self.wants(row) {
            self.take(row);
        }
    }

    /// Gives everything up: nobody waits for it any more.
    pub(crate) fn withdraw(&mut self) {
        *self = Gathering { failure: Some(Failure::withdrawn()), ..Gathering::new(self.select) };
    }

    /// Whether a row satisfies the filter; if that cannot be said, the read has failed.
    pub(crate) fn wants(&mut self, row: &[Value]) -> bool {
        satisfies(self.select.filter.as_ref(), row).unwrap_or_else(|failure| {
            self.failure = Some(failure);
            false
        })
    }

    /// Takes the next row, which satisfies the filter.
    pub(crate) fn take(&mut self, row: &[Value]) {
        if let Err(failure) = self.add(row) {
            self.failure = Some(failure);
        }
    }

    fn add(&mut self, row: &[Value]) -> Result<(), Failure> {
        match &self.select.output {
            Output::Rows { columns, order, limit: _, distinct } => {
                let result = project(columns, row)?;
                if *distinct && !self.seen.insert(key_of(&result)) {
                    return Ok(());
                }
                self.output.push(result);
                if !order.is_empty() && self.output.len() >= self.limit.saturating_add(Order::SURPLUS) {
                    Order::keep_first(&mut self.output, order, self.limit);
                }
                Ok(())
            }
            Output::Groups { keys, .. } => {
                let groups = self.groups.as_mut().expect("made at the beginning");
                groups.add(project(keys, row)?, row)
            }
        }
    }

    /// Takes the next output rows, of a read without DISTINCT and order, no more than its limit.
    pub(crate) fn extend(&mut self, rows: impl ExactSizeIterator<Item = Row>) {
        if self.failure.is_none() {
            self.output.extend(rows);
        }
    }

    /// After the last row.
    pub(crate) fn finish(mut self) -> Result<Answer, Failure> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if let Some(groups) = self.groups {
            return Ok(Answer::Groups(groups.into_groups()));
        }
        if let Output::Rows { order, .. } = &self.select.output {
            Order::keep_first(&mut self.output, order, self.limit);
        }
        Ok(Answer::Rows(self.output))
    }
}

impl<R: Rows> Table<R> {
    /// Part of a read of plain rows.
    pub(super) fn page(
        &self,
        ranges: &[KeyRange],
        select: &Select,
        cursor: Option<Cursor>,
        rows: usize,
    ) -> Result<Page, Failure> {
        let columns = match &select.output {
            Output::Rows { columns, order, limit: None, distinct: false } if order.is_empty() => columns,
            _ => return Err(Failure::malformed("only plain rows are read page by page")),
        };
        let ranges = self.reach(ranges, select.filter.as_ref());
        let start = match cursor {
            None => Place::first(0),
            Some(cursor) => place_of(&cursor.0)?,
        };
        let rest = KeyRange::intersection(&ranges, &[KeyRange { low: start.key, high: u64::MAX }]);
        let mut output = Vec::new();
        let seen = select.mentioned();
        for (Found { place, .. }, row) in self.rows.candidates(&rest, select.filter.as_ref(), &seen) {
            if place < start {
                continue;
            }
            if output.len() >= rows.max(1) {
                return Ok(Page { rows: output, next: Some(Cursor(numbers_of(&place).to_vec())) });
            }
            if satisfies(select.filter.as_ref(), &row)? {
                output.push(project(columns, &row)?);
            }
        }
        Ok(Page { rows: output, next: None })
    }
}

/// A place as it stands in a cursor.
pub(crate) fn numbers_of(place: &Place) -> [u64; 4] {
    [place.key, place.tie, place.id.epoch.0, place.id.line.into()]
}

/// The place in a cursor, which may come from anywhere.
pub(crate) fn place_of(numbers: &[u64]) -> Result<Place, Failure> {
    let malformed = || Failure::malformed("a cursor");
    let &[key, tie, epoch, line] = numbers else { return Err(malformed()) };
    let line = u32::try_from(line).map_err(|_| malformed())?;
    Ok(Place { key, tie, id: RowId { epoch: Epoch(epoch), line } })
}

fn project(columns: &[Expr], row: &[Value]) -> Result<Row, Failure> {
    columns.iter().map(|column| eval(column, row)).collect()
}
