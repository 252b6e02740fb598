//! Writes: they turn an operation into its effect.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    engine::{Epoch, Failure, Job, RowId, Written},
    eval::{eval, refuses, satisfies},
    expr::Expr,
    operation::{LoadId, Operation},
    schema::{KeyRange, ROW_BYTES_MAX, Schema, TEXT_BYTES_SHORT, TableId},
    value::{Row, Value},
};

use super::{
    FoundRow, FoundRows, OwnedRow, RowPlace, RowUpdate, RowView, Rows, Table, Version, nothing_written,
    staged::Staged,
};

/// Whether a value may make a row too long.
pub(super) fn is_long(value: &Value) -> bool {
    value.text_bytes() > TEXT_BYTES_SHORT
}

/// Refuses a row, given by its values, that exceeds the length limit: a move could not carry it.
pub(super) fn check_length<'a>(row: impl Iterator<Item = &'a Value>) -> Result<(), Failure> {
    let bytes: usize = row.map(Value::text_bytes).sum();
    if bytes <= ROW_BYTES_MAX {
        return Ok(());
    }
    Err(Failure::new("54000", format!("the row would take {bytes} bytes, over the limit of {ROW_BYTES_MAX}")))
}

/// The changes of a write. They have been checked, so applying them cannot fail.
pub(super) enum Effect<R> {
    CreateTable {
        table: TableId,
        schema: Box<Schema>,
    },
    DropTable {
        table: TableId,
    },
    /// A table that ends, and the table that begins with its rows.
    AlterTable {
        table: TableId,
        altered: TableId,
        rows: Arc<Table<R>>,
    },
    /// Rows to remove, and rows to add afterwards.
    Rows {
        table: TableId,
        removed: Vec<RowPlace>,
        added: Vec<(RowPlace, OwnedRow)>,
    },
    /// Rows that change and keep their places.
    Change {
        table: TableId,
        change: RowUpdate,
    },
    Stage {
        table: TableId,
        load: LoadId,
        run: Box<R>,
    },
    /// The arcs whose staged rows become visible.
    Publish {
        table: TableId,
        load: LoadId,
        ranges: Vec<KeyRange>,
    },
    Discard {
        table: TableId,
        load: LoadId,
    },
    /// Tables that several statements have changed together, in their new state.
    Tables(BTreeMap<TableId, Arc<Table<R>>>),
}

impl<R> Effect<R> {
    /// Returns the table that the effect changes; the first table if there are several.
    pub(super) fn table(&self) -> TableId {
        match self {
            Effect::Tables(tables) => tables.keys().next().copied().unwrap_or(TableId(0)),
            Effect::CreateTable { table, .. }
            | Effect::DropTable { table }
            | Effect::AlterTable { table, .. }
            | Effect::Rows { table, .. }
            | Effect::Change { table, .. }
            | Effect::Stage { table, .. }
            | Effect::Publish { table, .. }
            | Effect::Discard { table, .. } => *table,
        }
    }

    /// Returns the number of log entries that would reverse the effect; `None` if a log cannot reverse it.
    pub(super) fn changes(&self) -> Option<usize> {
        match self {
            Effect::Rows { removed, added, .. } => Some(removed.len() + added.len()),
            Effect::Change { change, .. } => Some(change.rows.len() * change.columns.len()),
            _ => None,
        }
    }

    /// Returns the touched rows. If rows were removed or added: the removed rows, the added rows, and
    /// `None`. If rows changed in place: the changed rows, no rows, and the changed columns.
    pub(super) fn touched_rows(&self) -> (Vec<FoundRow>, Vec<FoundRow>, Option<Vec<usize>>) {
        let found = |place: &RowPlace| FoundRow::somewhere(*place);
        match self {
            Effect::Rows { removed, added, .. } => {
                let added = added.iter().map(|(place, _)| found(place)).collect();
                (removed.iter().map(found).collect(), added, None)
            }
            Effect::Change { change, .. } => (change.rows.clone(), Vec::new(), Some(change.columns.clone())),
            _ => (Vec::new(), Vec::new(), None),
        }
    }
}

/// The results of a write, range by range.
pub(super) struct Results<'a> {
    ranges: &'a [KeyRange],
    returning: &'a [Expr],
    pub(super) written: Vec<Written>,
    /// The size of the returned rows of each range, in bytes.
    bytes: Vec<usize>,
}

/// Maximum number of bytes of rows that a statement returns for one range. Every replica has the same fixed
/// bound, because replicas must agree on failures. Returned rows fit into a message, and are kept in case the
/// client repeats the request.
const RETURNING_BYTES_MAX: usize = 32 << 20;

impl<'a> Results<'a> {
    fn new(ranges: &'a [KeyRange], returning: &'a [Expr]) -> Results<'a> {
        Results { ranges, returning, written: nothing_written(ranges), bytes: vec![0; ranges.len()] }
    }

    /// Counts a row if it lies in one of the ranges, and returns whether it does. Fails if RETURNING fails or
    /// returns too much.
    pub(super) fn count(&mut self, key: u64, row: &[Value]) -> Result<bool, Failure> {
        let Some(range) = self.ranges.iter().position(|range| range.contains(key)) else { return Ok(false) };
        let written = &mut self.written[range];
        written.rows += 1;
        if !self.returning.is_empty() {
            let output = self.returning.iter().map(|expr| eval(expr, row)).collect::<Result<Row, _>>()?;
            let bytes = &mut self.bytes[range];
            *bytes += size_of::<Row>() + output.iter().map(Value::bytes).sum::<usize>();
            if *bytes > RETURNING_BYTES_MAX {
                let what = format!("the rows of RETURNING take more than {RETURNING_BYTES_MAX} bytes");
                let detail = "Nothing was written. Write fewer rows at a time, or return fewer columns.";
                return Err(Failure::new("54000", what).with_detail(detail));
            }
            written.returning.push(output);
        }
        Ok(true)
    }
}

/// A write to evaluate.
#[derive(Clone, Copy)]
pub(super) struct WriteTask<'a> {
    /// The epoch of the rows that the write adds.
    pub(super) epoch: Epoch,
    /// The number of the first row that the write adds, within the epoch.
    pub(super) first_line: u32,
    /// The ranges that this replica must answer for.
    pub(super) ranges: &'a [KeyRange],
    /// The operation to evaluate.
    pub(super) operation: &'a Operation,
}

impl<'a> WriteTask<'a> {
    /// Returns the write of a job.
    pub(super) fn of(job: &'a Job) -> WriteTask<'a> {
        WriteTask { epoch: job.epoch, first_line: 0, ranges: &job.ranges, operation: &job.operation }
    }
}

impl<R: Rows> Version<R> {
    /// Returns the answer and the effect of a write. `found_rows` are the rows that an earlier search found
    /// for it.
    pub(super) fn evaluate(
        &self,
        task: WriteTask<'_>,
        found_rows: Option<FoundRows>,
    ) -> Result<(Vec<Written>, Effect<R>), Failure> {
        let ranges = task.ranges;
        match task.operation {
            Operation::CreateTable { table, schema } => {
                schema.check()?;
                if self.tables.contains_key(table) {
                    return Err(Failure::new("42P07", format!("table {} already exists", table.0)));
                }
                let schema = Box::new(schema.clone());
                Ok((nothing_written(ranges), Effect::CreateTable { table: *table, schema }))
            }
            Operation::DropTable { table } => {
                self.table(*table)?;
                Ok((nothing_written(ranges), Effect::DropTable { table: *table }))
            }
            Operation::AlterTable { table: id, altered, alteration } => {
                let table = self.table(*id)?;
                if self.tables.contains_key(altered) {
                    return Err(Failure::new("42P07", format!("table {} already exists", altered.0)));
                }
                alteration.check(&table.schema)?;
                let schema = Arc::new(alteration.schema.clone());
                let rows = table.rows.altered(&schema, alteration);
                let rows = Arc::new(Table { schema, rows, staged: BTreeMap::new() });
                Ok((nothing_written(ranges), Effect::AlterTable { table: *id, altered: *altered, rows }))
            }
            Operation::Insert { table: id, rows, returning } => {
                let table = self.table(*id)?;
                let mut results = Results::new(ranges, returning);
                let added = table.counted_rows(task, rows, &mut results)?;
                table.check_unique(&[], &added)?;
                Ok((results.written, Effect::Rows { table: *id, removed: Vec::new(), added }))
            }
            Operation::Upsert { table: id, rows, conflict, returning } => {
                let results = Results::new(ranges, returning);
                self.table(*id)?.upsert(*id, task, rows, conflict, results)
            }
            Operation::Update { table: id, assignments, filter, returning } => {
                let table = self.table(*id)?;
                let results = Results::new(ranges, returning);
                table.update(*id, assignments, filter.as_ref(), found_rows, results)
            }
            Operation::Delete { table: id, filter, returning } => {
                let table = self.table(*id)?;
                let mut results = Results::new(ranges, returning);
                let mut removed = Vec::new();
                let filter = filter.as_ref().filter(|_| !is_certain(&found_rows));
                let reach = table.reach_unless(&found_rows, ranges, filter);
                let columns = mentioned(filter.into_iter().chain(returning));
                for (FoundRow { place, .. }, row) in table.rows_for(&reach, filter, found_rows, &columns) {
                    if satisfies(filter, &row)? && results.count(place.key, &row)? {
                        removed.push(place);
                    }
                }
                Ok((results.written, Effect::Rows { table: *id, removed, added: Vec::new() }))
            }
            Operation::Stage { table: id, load, rows } => {
                let table = self.table(*id)?;
                let mut results = Results::new(ranges, &[]);
                let mut coming = Vec::with_capacity(rows.len());
                for arrival in table.checked_rows(task, rows) {
                    let (place, row) = arrival?;
                    results.count(place.key, row)?;
                    coming.push((place, &row[..]));
                }
                let run = Box::new(R::gathered(&table.schema, coming.into_iter()));
                Ok((results.written, Effect::Stage { table: *id, load: *load, run }))
            }
            Operation::Publish { table: id, load, rows: _ } => {
                let table = self.table(*id)?;
                let mut results = Results::new(ranges, &[]);
                let union = KeyRange::union(ranges.to_vec());
                if let Some(staged) = table.staged.get(load) {
                    for place in staged.places(&union) {
                        results.count(place.key, &[])?;
                    }
                    table.check_unique_staged(staged, &union)?;
                }
                Ok((results.written, Effect::Publish { table: *id, load: *load, ranges: union }))
            }
            Operation::Discard { table: id, load } => {
                self.table(*id)?;
                Ok((nothing_written(ranges), Effect::Discard { table: *id, load: *load }))
            }
            Operation::Transaction(_) => Err(Failure::malformed("a transaction was sent within another")),
            Operation::Select(_) | Operation::Explain(_) | Operation::Backup(_) | Operation::Trial(_) => {
                Err(Failure::malformed("a read was sent as a write"))
            }
        }
    }

    pub(super) fn take_place(&mut self, effect: Effect<R>, mut log: Option<&mut Vec<R::Undo>>) {
        match effect {
            Effect::CreateTable { table, schema } => {
                self.tables.insert(table, Arc::new(Table::new(*schema)));
            }
            Effect::DropTable { table } => {
                self.tables.remove(&table);
            }
            Effect::AlterTable { table, altered, rows } => {
                self.tables.remove(&table);
                self.tables.insert(altered, rows);
            }
            Effect::Rows { table, removed, added } => {
                if removed.is_empty() && added.is_empty() {
                    return;
                }
                let rows = &mut self.table_mut(table).rows;
                rows.remove(&removed, log.as_deref_mut());
                rows.insert(added, log);
            }
            Effect::Change { table, change } => {
                if !change.rows.is_empty() {
                    self.table_mut(table).rows.change(&change, log);
                }
            }
            Effect::Stage { table, load, run } => {
                self.table_mut(table).staged.entry(load).or_default().add(*run);
            }
            Effect::Publish { table, load, ranges } => {
                let table = self.table_mut(table);
                let Some(staged) = table.staged.get_mut(&load) else { return };
                let coming = staged.take(&table.schema, &ranges);
                if staged.is_empty() {
                    table.staged.remove(&load);
                }
                table.rows.join(coming);
            }
            Effect::Discard { table, load } => {
                self.table_mut(table).staged.remove(&load);
            }
            Effect::Tables(tables) => self.tables.extend(tables),
        }
    }

    pub(super) fn table_mut(&mut self, table: TableId) -> &mut Table<R> {
        Arc::make_mut(self.tables.get_mut(&table).expect("the table of an evaluated write exists"))
    }
}

fn is_certain(found_rows: &Option<FoundRows>) -> bool {
    found_rows.as_ref().is_some_and(|found_rows| found_rows.certain)
}

impl<R: Rows> Table<R> {
    /// Returns the arcs to search; none if the rows were found.
    fn reach_unless(
        &self,
        found_rows: &Option<FoundRows>,
        ranges: &[KeyRange],
        filter: Option<&Expr>,
    ) -> Vec<KeyRange> {
        if found_rows.is_some() { Vec::new() } else { self.reach(ranges, filter) }
    }

    /// Returns the rows on which the filter must be evaluated, with at least these columns.
    fn rows_for<'a>(
        &'a self,
        reach: &'a [KeyRange],
        filter: Option<&'a Expr>,
        found_rows: Option<FoundRows>,
        columns: &'a [usize],
    ) -> Box<dyn Iterator<Item = (FoundRow, RowView<'a>)> + 'a> {
        match found_rows {
            Some(found_rows) => {
                Box::new(found_rows.rows.into_iter().filter_map(|found| self.rows.at(&found, columns)))
            }
            None => Box::new(self.rows.candidates(reach, filter, columns)),
        }
    }

    /// Returns the rows of an operation that lie in the job's ranges, checked and with their places.
    pub(super) fn checked_rows<'a>(
        &self,
        task: WriteTask<'a>,
        rows: &'a [Row],
    ) -> impl Iterator<Item = Result<(RowPlace, &'a Row), Failure>> {
        rows.iter().enumerate().filter_map(move |(line, row)| {
            let key = self.schema.partition.key(row);
            task.ranges.iter().any(|range| range.contains(key)).then(|| {
                self.schema.check_row(row)?;
                self.schema.check_conditions(row)?;
                let line = u32::try_from(line).ok().and_then(|line| line.checked_add(task.first_line));
                let line = line
                    .ok_or_else(|| Failure::malformed("a write has more rows than a row number can count"))?;
                let (tie, id) = (self.schema.primary_key_hash(row), RowId { epoch: task.epoch, line });
                Ok((RowPlace { key, tie, id }, row))
            })
        })
    }

    /// Returns the rows of an operation that lie in the job's ranges, and counts them.
    fn counted_rows(
        &self,
        task: WriteTask<'_>,
        rows: &[Row],
        results: &mut Results<'_>,
    ) -> Result<Vec<(RowPlace, OwnedRow)>, Failure> {
        let mut added = Vec::new();
        for arrival in self.checked_rows(task, rows) {
            let (place, row) = arrival?;
            results.count(place.key, row)?;
            added.push((place, row.as_slice().into()));
        }
        Ok(added)
    }

    fn update(
        &self,
        id: TableId,
        assignments: &[(usize, Expr)],
        filter: Option<&Expr>,
        found_rows: Option<FoundRows>,
        mut results: Results<'_>,
    ) -> Result<(Vec<Written>, Effect<R>), Failure> {
        if assignments.iter().any(|(column, _)| *column == self.schema.partition.column()) {
            return Err(Failure::new("0A000", "the partition column cannot be assigned"));
        }
        let all = || (0..self.schema.columns.len()).collect::<Vec<usize>>();
        // A row whose primary key changes moves to another place.
        let moves = assignments.iter().any(|(column, _)| self.schema.primary_key.contains(column));
        // Rows that certainly satisfy the filter are not tested again.
        let filter = filter.filter(|_| !is_certain(&found_rows));
        let mut columns: Vec<usize> = assignments.iter().map(|(column, _)| *column).collect();
        columns.sort_unstable();
        columns.dedup();
        // A condition that reads no assigned column stays as it is.
        let checks = self.schema.checks_of(&columns);
        let exprs = filter.into_iter().chain(assignments.iter().map(|(_, expr)| expr));
        let exprs = exprs.chain(checks.iter().map(|check| &check.condition));
        let looked_at = if moves { all() } else { mentioned(exprs.chain(results.returning)) };
        let uniform = assignments.iter().all(|(_, expr)| matches!(expr, Expr::Constant(..)));
        let mut change = RowUpdate { columns, rows: Vec::new(), values: Vec::new(), numbers: None };
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        let reach = self.reach_unless(&found_rows, results.ranges, filter);
        for (found, row) in self.rows_for(&reach, filter, found_rows, &looked_at) {
            if !satisfies(filter, &row)? {
                continue;
            }
            let known = uniform && !change.values.is_empty();
            if !known {
                let values = self.assigned(&change.columns, assignments, &found, &row)?;
                change.values.extend(values);
            }
            let first = change.values.len() - change.columns.len();
            let values = &change.values[first..];
            if values.iter().any(is_long) {
                let all = all();
                let (_, whole) = self.rows.at(&found, &all).expect("a row that was found");
                let stays = |(column, _): &(usize, &Value)| change.columns.binary_search(column).is_err();
                let staying = whole.iter().enumerate().filter(stays).map(|(_, value)| value);
                check_length(staying.chain(values))?;
            }
            if moves || !results.returning.is_empty() || !checks.is_empty() {
                let mut changed = row.to_vec();
                for (column, value) in change.columns.iter().zip(&change.values[first..]) {
                    changed[*column] = value.clone();
                }
                for check in &checks {
                    if refuses(&check.condition, &changed)? {
                        let whole = self.changed_row(&found, &change.columns, &change.values[first..]);
                        return Err(self.schema.violation(check, &whole));
                    }
                }
                results.count(found.place.key, &changed)?;
                if moves {
                    let tie = self.schema.primary_key_hash(&changed);
                    removed.push(found.place);
                    added.push((RowPlace { tie, ..found.place }, changed.into()));
                }
            } else {
                results.count(found.place.key, &row)?;
            }
            change.rows.push(found);
        }
        if moves {
            self.check_unique(&removed, &added)?;
            return Ok((results.written, Effect::Rows { table: id, removed, added }));
        }
        self.rows.prepare(&mut change);
        Ok((results.written, Effect::Change { table: id, change }))
    }

    /// Returns the new values of a row in these columns. The last assignment of a column counts.
    fn assigned(
        &self,
        columns: &[usize],
        assignments: &[(usize, Expr)],
        found: &FoundRow,
        row: &[Value],
    ) -> Result<Vec<Value>, Failure> {
        let mut values = vec![Value::Null; columns.len()];
        for (column, expr) in assignments {
            if *column >= self.schema.columns.len() {
                return Err(Failure::malformed("an UPDATE assigns a column that does not exist"));
            }
            let position = columns.binary_search(column).expect("the list has all assigned columns");
            values[position] = eval(expr, row)?;
        }
        if !columns.iter().zip(&values).all(|(&column, value)| self.schema.takes(column, value)) {
            // The error message needs the whole row.
            self.schema.check_row(&self.changed_row(found, columns, &values))?;
        }
        Ok(values)
    }

    /// Returns a whole row with these values in these columns.
    fn changed_row(&self, found: &FoundRow, columns: &[usize], values: &[Value]) -> Row {
        let all: Vec<usize> = (0..self.schema.columns.len()).collect();
        let (_, whole) = self.rows.at(found, &all).expect("a row that was found");
        let mut whole = whole.into_owned();
        columns.iter().zip(values).for_each(|(&column, value)| whole[column] = value.clone());
        whole
    }

    /// Whether two rows have the same primary key.
    pub(super) fn same_key(&self, one: &[Value], other: &[Value]) -> bool {
        self.schema.primary_key.iter().all(|&column| one[column].order(&other[column]).is_eq())
    }

    /// Fails if an added row would have the primary key of another row after `removed` are gone.
    fn check_unique(&self, removed: &[RowPlace], added: &[(RowPlace, OwnedRow)]) -> Result<(), Failure> {
        if self.schema.primary_key.is_empty() {
            return Ok(());
        }
        let removed: BTreeSet<&RowPlace> = removed.iter().collect();
        let mut coming: BTreeMap<(u64, u64), Vec<&OwnedRow>> = BTreeMap::new();
        for (place, row) in added {
            let beside = coming.entry((place.key, place.tie)).or_default();
            let tied = self.rows.tied(place.key, place.tie);
            let mut staying = tied.iter().filter(|(other, _)| !removed.contains(other));
            if beside.iter().any(|other| self.same_key(row, other))
                || staying.any(|(_, other)| self.same_key(row, other))
            {
                return Err(self.schema.duplicate(row));
            }
            beside.push(row);
        }
        Ok(())
    }

    /// Checks the staged rows of these arcs for publication. Fails if one of them has the primary key of
    /// another, or of a row of the table.
    fn check_unique_staged(&self, staged: &Staged<R>, ranges: &[KeyRange]) -> Result<(), Failure> {
        if self.schema.primary_key.is_empty() {
            return Ok(());
        }
        let runs = staged.runs.iter().enumerate();
        let mut ties: Vec<(u64, u64, usize)> = runs
            .flat_map(|(number, run)| run.places().map(move |place| (place.key, place.tie, number)))
            .filter(|(key, ..)| KeyRange::cover(ranges, *key))
            .collect();
        ties.sort_unstable();
        for tied in ties.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let (key, tie, _) = tied[0];
            let there = self.rows.tied(key, tie);
            // Most keys have no other row.
            if tied.len() == 1 && there.is_empty() {
                continue;
            }
            let runs: BTreeSet<usize> = tied.iter().map(|(.., number)| *number).collect();
            let coming = runs.into_iter().flat_map(|number| staged.runs[number].tied(key, tie));
            let mut coming: Vec<(RowPlace, RowView<'_>)> = coming.collect();
            coming.sort_unstable_by_key(|(place, _)| *place);
            for (number, (_, row)) in coming.iter().enumerate() {
                let mut others = coming[..number].iter().chain(&there);
                if others.any(|(_, other)| self.same_key(row, other)) {
                    return Err(self.schema.duplicate(row));
                }
            }
        }
        Ok(())
    }
}

/// Returns the columns that expressions read, sorted.
fn mentioned<'a>(exprs: impl Iterator<Item = &'a Expr>) -> Vec<usize> {
    let mut columns = Vec::new();
    exprs.for_each(|expr| expr.mentioned(&mut columns));
    columns.sort_unstable();
    columns.dedup();
    columns
}
