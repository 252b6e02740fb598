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

use super::{Allowance, Found, Place, Rows, Table, budget::Grant};

/// A read under way: what it has made of the rows so far. It takes a bounded number of bytes, of which a read with an order
/// and a limit needs few: rows beyond the limit are dropped now and then. Together with the other reads of its batch it takes
/// no more than their [budget](super::budget).
pub(crate) struct Gathering<'a> {
    select: &'a Select,
    limit: usize,
    bytes_max: u64,
    bytes: u64,
    grant: Grant<'a>,
    output: Vec<Row>,
    /// Keys of the output rows so far, for DISTINCT.
    seen: HashSet<Vec<u8>, FxBuildHasher>,
    /// Partial groups, if the read has any.
    groups: Option<Groups>,
    failure: Option<Failure>,
}

impl<'a> Gathering<'a> {
    /// Nothing yet.
    pub(crate) fn new(select: &'a Select, allowance: Allowance<'a>) -> Gathering<'a> {
        let Allowance { bytes_max, batch } = allowance;
        let (mut groups, mut failure, mut most) = (None, None, usize::MAX);
        match &select.output {
            Output::Rows { columns, order, limit, .. } => {
                failure = Order::check(order, columns.len()).err();
                most = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
            }
            Output::Groups { keys, aggregates } => groups = Some(Groups::new(keys.len(), aggregates.clone())),
        }
        let seen = HashSet::with_hasher(FxBuildHasher);
        let (grant, output) = (Grant::new(batch), Vec::new());
        Gathering { select, limit: most, bytes_max, bytes: 0, grant, output, seen, groups, failure }
    }

    /// The read that it is for.
    pub(crate) fn select(&self) -> &'a Select {
        self.select
    }

    /// The same read from the beginning.
    pub(crate) fn anew(&self) -> Gathering<'a> {
        Gathering::new(self.select, Allowance { bytes_max: self.bytes_max, batch: self.grant.batch() })
    }

    /// Whether its rows stand in the order in which it was given them, one for each.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(&self.select.output, Output::Rows { order, distinct: false, .. } if order.is_empty())
    }

    /// How many rows it takes at most, and those that it has made.
    pub(crate) fn take_output(&mut self) -> (usize, Vec<Row>) {
        (self.limit, std::mem::take(&mut self.output))
    }

    /// The answer of a read of plain rows with these rows, unless they are too much.
    pub(crate) fn answer(&mut self, mut rows: Vec<Row>) -> Option<Answer> {
        rows.truncate(self.limit);
        let bytes: u64 = rows.iter().map(bytes_of).sum();
        if bytes > self.bytes_max || !self.grant.covers(bytes) {
            return None;
        }
        self.grant.keep();
        Some(Answer::Rows(rows))
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
        self.fail(Failure::withdrawn());
    }

    /// Whether a row satisfies the filter; if that cannot be said, the read has failed.
    pub(crate) fn wants(&mut self, row: &[Value]) -> bool {
        satisfies(self.select.filter.as_ref(), row).unwrap_or_else(|failure| {
            self.fail(failure);
            false
        })
    }

    /// Takes the next row, which satisfies the filter.
    pub(crate) fn take(&mut self, row: &[Value]) {
        if let Err(failure) = self.add(row) {
            self.fail(failure);
        }
    }

    /// The read has failed: what it gathered is of no use, and others may take as much.
    fn fail(&mut self, failure: Failure) {
        *self = Gathering { failure: Some(failure), ..self.anew() };
    }

    fn add(&mut self, row: &[Value]) -> Result<(), Failure> {
        match &self.select.output {
            Output::Rows { columns, order, distinct, .. } => {
                self.push(project(columns, row)?, order, *distinct)
            }
            Output::Groups { keys, .. } => {
                let groups = self.groups.as_mut().expect("made at the beginning");
                groups.add(project(keys, row)?, row)?;
                self.bytes = groups.bytes();
                self.check()
            }
        }
    }

    /// Takes the next output row.
    fn push(&mut self, row: Row, order: &[Order], distinct: bool) -> Result<(), Failure> {
        if distinct {
            let key = key_of(&row);
            let bytes = key.len() as u64 + KEY_BYTES;
            if !self.seen.insert(key) {
                return Ok(());
            }
            self.bytes += bytes;
        }
        self.bytes += bytes_of(&row);
        self.output.push(row);
        if !order.is_empty() && self.output.len() >= self.limit.saturating_add(Order::SURPLUS) {
            self.drop_surplus();
        }
        self.check()
    }

    /// Fails if too much was gathered.
    fn check(&mut self) -> Result<(), Failure> {
        let fits = self.bytes <= self.bytes_max;
        if fits && self.grant.covers(self.bytes) {
            return Ok(());
        }
        self.drop_surplus();
        // So near a bound, rows would be dropped again and again.
        let is_well_within = |bytes_max: u64| self.bytes <= bytes_max - bytes_max / 8;
        if !fits && !is_well_within(self.bytes_max) {
            return Err(Failure::too_much(self.bytes_max));
        }
        match is_well_within(self.grant.covered()) || !fits && self.grant.covers(self.bytes) {
            true => Ok(()),
            false => Err(Failure::crowded()),
        }
    }

    /// Drops what lies beyond the limit of a read with an order. A row like one that was dropped is dropped again.
    fn drop_surplus(&mut self) {
        let Output::Rows { order, distinct, .. } = &self.select.output else { return };
        if order.is_empty() || self.output.len() <= self.limit {
            return;
        }
        Order::keep_first(&mut self.output, order, self.limit);
        self.bytes = self.output.iter().map(bytes_of).sum();
        if *distinct {
            let keys: Vec<Vec<u8>> = self.output.iter().map(key_of).collect();
            self.bytes += keys.iter().map(|key| key.len() as u64 + KEY_BYTES).sum::<u64>();
            self.seen = keys.into_iter().collect();
        }
    }

    /// Takes the next output rows, of a read without DISTINCT and order, no more than its limit.
    pub(crate) fn extend(&mut self, rows: impl ExactSizeIterator<Item = Row>) {
        if self.failure.is_some() {
            return;
        }
        let first = self.output.len();
        self.output.extend(rows);
        self.bytes += self.output[first..].iter().map(bytes_of).sum::<u64>();
        if let Err(failure) = self.check() {
            self.fail(failure);
        }
    }

    /// Takes over what the rows behind have come to in a gathering of their own, as if they had been taken here one after
    /// another; false if they might have failed here, or not where they did. No floats must be added up.
    #[must_use]
    pub(crate) fn absorb(&mut self, mut behind: Gathering<'a>) -> bool {
        if self.is_complete() {
            return true;
        }
        if behind.failure.is_some() {
            return false;
        }
        if self.bytes == 0 {
            *self = Gathering { bytes_max: self.bytes_max, ..behind };
            return true;
        }
        self.grant.absorb(std::mem::replace(&mut behind.grant, Grant::new(self.grant.batch())));
        match (&self.select.output, &mut self.groups, behind.groups) {
            (Output::Groups { .. }, Some(groups), Some(more)) => {
                if !more.into_groups().into_iter().all(|group| groups.absorb(group).is_ok()) {
                    return false;
                }
                self.bytes = groups.bytes();
            }
            (Output::Rows { order, distinct, .. }, ..) if *distinct || !order.is_empty() => {
                for row in behind.output {
                    if self.is_complete() {
                        break;
                    }
                    if self.push(row, order, *distinct).is_err() {
                        return false;
                    }
                }
            }
            _ => {
                behind.output.truncate(self.limit - self.output.len());
                self.bytes += behind.bytes;
                self.output.append(&mut behind.output);
            }
        }
        self.check().is_ok()
    }

    /// After the last row.
    pub(crate) fn finish(mut self) -> Result<Answer, Failure> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        self.grant.keep();
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

/// What a read of plain rows makes of one of the table, if that satisfies the filter.
pub(crate) fn output_of(select: &Select, row: &[Value]) -> Result<Option<Row>, Failure> {
    let Output::Rows { columns, .. } = &select.output else { unreachable!("a read of plain rows") };
    match satisfies(select.filter.as_ref(), row)? {
        true => project(columns, row).map(Some),
        false => Ok(None),
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

/// The bytes of a row in memory.
fn bytes_of(row: &Row) -> u64 {
    (size_of::<Row>() + row.iter().map(Value::bytes).sum::<usize>()) as u64
}

/// What an entry in a set of keys takes beside its bytes, with room to grow.
const KEY_BYTES: u64 = 2 * size_of::<Vec<u8>>() as u64;

fn project(columns: &[Expr], row: &[Value]) -> Result<Row, Failure> {
    columns.iter().map(|column| eval(column, row)).collect()
}
