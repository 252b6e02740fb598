//! Reads: they turn the rows of a search, in the order of their places, into an answer.

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

use super::{FoundRow, MemoryBounds, RowPlace, Rows, Table, budget::Grant};

/// A read under way, with its output so far. Its memory is bounded. A read with an order and a limit needs
/// little of it, because rows beyond the limit are dropped from time to time. All reads of a batch together
/// stay within their [budget](super::budget).
pub(crate) struct ReadOutput<'a> {
    select: &'a Select,
    limit: usize,
    bytes_max: u64,
    bytes: u64,
    grant: Grant<'a>,
    output: Vec<Row>,
    /// The keys of the output rows so far, for DISTINCT.
    seen: HashSet<Vec<u8>, FxBuildHasher>,
    /// The partial groups, if the read groups rows.
    groups: Option<Groups>,
    failure: Option<Failure>,
}

impl<'a> ReadOutput<'a> {
    /// Begins a read.
    pub(crate) fn new(select: &'a Select, memory_bounds: MemoryBounds<'a>) -> ReadOutput<'a> {
        let MemoryBounds { bytes_max, batch } = memory_bounds;
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
        ReadOutput { select, limit: most, bytes_max, bytes: 0, grant, output, seen, groups, failure }
    }

    /// Returns the read.
    pub(crate) fn select(&self) -> &'a Select {
        self.select
    }

    /// Returns the same read, without its output.
    pub(crate) fn anew(&self) -> ReadOutput<'a> {
        ReadOutput::new(self.select, MemoryBounds { bytes_max: self.bytes_max, batch: self.grant.batch() })
    }

    /// Whether the read's output has one row per received row, in the same order.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(&self.select.output, Output::Rows { order, distinct: false, .. } if order.is_empty())
    }

    /// Returns the limit in rows, and takes the output so far.
    pub(crate) fn take_output(&mut self) -> (usize, Vec<Row>) {
        (self.limit, std::mem::take(&mut self.output))
    }

    /// Returns these rows as the answer of a read of plain rows; `None` if they exceed the memory bounds.
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

    /// Drops the output of a read whose client no longer waits.
    pub(crate) fn withdraw(&mut self) {
        self.fail(Failure::withdrawn());
    }

    /// Whether a row satisfies the filter. If the filter fails, so does the read.
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

    /// Makes the read fail, and frees the memory of its output for other reads.
    fn fail(&mut self, failure: Failure) {
        *self = ReadOutput { failure: Some(failure), ..self.anew() };
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

    /// Drops surplus rows if the output is too large. Fails if it is still too large, or so close to a bound
    /// that rows would have to be dropped repeatedly.
    fn check(&mut self) -> Result<(), Failure> {
        let fits = self.bytes <= self.bytes_max;
        if fits && self.grant.covers(self.bytes) {
            return Ok(());
        }
        self.drop_surplus();
        // If the rows fill more than seven eighths of a bound, almost every further row would make the read
        // drop rows again.
        let is_well_within = |bytes_max: u64| self.bytes <= bytes_max - bytes_max / 8;
        if !fits && !is_well_within(self.bytes_max) {
            return Err(Failure::too_much(self.bytes_max));
        }
        match is_well_within(self.grant.covered()) || !fits && self.grant.covers(self.bytes) {
            true => Ok(()),
            false => Err(Failure::crowded()),
        }
    }

    /// Drops the rows beyond the limit of a read with an order. A later duplicate of a dropped row is
    /// dropped, too.
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

    /// Takes output rows of a read without DISTINCT and order. The caller passes no more rows than the read's
    /// limit.
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

    /// Appends the output of rows that follow in the order and that another gathering received, as if this
    /// gathering had received them. Returns false if a single gathering might have failed although both
    /// gatherings succeeded, or might have succeeded although the other one failed. The read must not add
    /// floats.
    #[must_use]
    pub(crate) fn absorb(&mut self, mut behind: ReadOutput<'a>) -> bool {
        if self.is_complete() {
            return true;
        }
        if behind.failure.is_some() {
            return false;
        }
        if self.bytes == 0 {
            *self = ReadOutput { bytes_max: self.bytes_max, ..behind };
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

    /// Returns the answer, after the last row.
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
    /// Reads one page of plain rows.
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
            None => RowPlace::first(0),
            Some(cursor) => place_of(&cursor.0)?,
        };
        let rest = KeyRange::intersection(&ranges, &[KeyRange { low: start.key, high: u64::MAX }]);
        let mut output = Vec::new();
        let seen = select.mentioned();
        for (FoundRow { place, .. }, row) in self.rows.candidates(&rest, select.filter.as_ref(), &seen) {
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

/// Returns the output of a read of plain rows for one row; `None` if the row does not satisfy the filter.
pub(crate) fn output_of(select: &Select, row: &[Value]) -> Result<Option<Row>, Failure> {
    let Output::Rows { columns, .. } = &select.output else { unreachable!("a read of plain rows") };
    match satisfies(select.filter.as_ref(), row)? {
        true => project(columns, row).map(Some),
        false => Ok(None),
    }
}

/// Encodes a place for a cursor.
pub(crate) fn numbers_of(place: &RowPlace) -> [u64; 4] {
    [place.key, place.tie, place.id.epoch.0, place.id.line.into()]
}

/// Decodes the place in a cursor. The cursor is untrusted, and a malformed one is refused.
pub(crate) fn place_of(numbers: &[u64]) -> Result<RowPlace, Failure> {
    let malformed = || Failure::malformed("a cursor");
    let &[key, tie, epoch, line] = numbers else { return Err(malformed()) };
    let line = u32::try_from(line).map_err(|_| malformed())?;
    Ok(RowPlace { key, tie, id: RowId { epoch: Epoch(epoch), line } })
}

/// Returns the memory of a row, in bytes.
fn bytes_of(row: &Row) -> u64 {
    (size_of::<Row>() + row.iter().map(Value::bytes).sum::<usize>()) as u64
}

/// The memory of an entry in a set of keys in addition to its key, with room to grow, in bytes.
const KEY_BYTES: u64 = 2 * size_of::<Vec<u8>>() as u64;

fn project(columns: &[Expr], row: &[Value]) -> Result<Row, Failure> {
    columns.iter().map(|column| eval(column, row)).collect()
}
