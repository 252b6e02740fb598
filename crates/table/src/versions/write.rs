//! Writes: from an operation to its effect.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    engine::{Failure, Job, RowId, Written},
    eval::{eval, satisfies},
    expr::Expr,
    operation::{LoadId, Operation},
    schema::{KeyRange, Schema, TableId},
    value::{Row, Value},
};

use super::{Place, Rows, Seen, Stored, Table, Version, nothing_written};

/// What a write does if it takes place. It has been checked: nothing in it can fail any more.
pub(super) enum Effect {
    CreateTable {
        table: TableId,
        schema: Box<Schema>,
    },
    DropTable {
        table: TableId,
    },
    /// Rows go, then rows come.
    Rows {
        table: TableId,
        removed: Vec<Place>,
        added: Vec<(Place, Stored)>,
    },
    /// Rows change in these columns and stay where they are.
    Change {
        table: TableId,
        columns: Vec<usize>,
        rows: Vec<(Place, Stored)>,
    },
    Stage {
        table: TableId,
        load: LoadId,
        rows: Vec<(Place, Stored)>,
    },
    /// Staged rows become visible.
    Publish {
        table: TableId,
        load: LoadId,
        rows: Vec<(Place, Stored)>,
    },
    Discard {
        table: TableId,
        load: LoadId,
    },
}

impl Effect {
    /// Where rows of the table change or go, and where they change or come.
    pub(super) fn places(&self) -> (Vec<Place>, Vec<Place>) {
        let of = |rows: &[(Place, Stored)]| rows.iter().map(|(place, _)| *place).collect::<Vec<_>>();
        match self {
            Effect::Rows { removed, added, .. } => (removed.clone(), of(added)),
            Effect::Change { rows, .. } => (of(rows), of(rows)),
            _ => (Vec::new(), Vec::new()),
        }
    }
}

/// The results of a write, range by range.
struct Results<'a> {
    ranges: &'a [KeyRange],
    returning: &'a [Expr],
    written: Vec<Written>,
}

impl<'a> Results<'a> {
    fn new(ranges: &'a [KeyRange], returning: &'a [Expr]) -> Results<'a> {
        Results { ranges, returning, written: nothing_written(ranges) }
    }

    /// Counts a row if it lies in one of the ranges; says whether it does.
    fn count(&mut self, key: u64, row: &[Value]) -> Result<bool, Failure> {
        let Some(range) = self.ranges.iter().position(|range| range.contains(key)) else { return Ok(false) };
        let written = &mut self.written[range];
        written.rows += 1;
        if !self.returning.is_empty() {
            let output = self.returning.iter().map(|expr| eval(expr, row)).collect::<Result<Row, _>>()?;
            written.returning.push(output);
        }
        Ok(true)
    }
}

impl<R: Rows> Version<R> {
    /// What a write answers and would do. The rows it must look at may have been found before.
    pub(super) fn evaluate(
        &self,
        job: &Job,
        found: Option<Vec<Place>>,
    ) -> Result<(Vec<Written>, Effect), Failure> {
        let ranges = &job.ranges[..];
        match &job.operation {
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
            Operation::Insert { table: id, rows, returning } => {
                let table = self.table(*id)?;
                let mut results = Results::new(ranges, returning);
                let added = table.arrivals(job, rows, &mut results)?;
                table.check_unique(&[], &added)?;
                Ok((results.written, Effect::Rows { table: *id, removed: Vec::new(), added }))
            }
            Operation::Update { table: id, assignments, filter, returning } => {
                let table = self.table(*id)?;
                let results = Results::new(ranges, returning);
                table.update(*id, assignments, filter.as_ref(), found, results)
            }
            Operation::Delete { table: id, filter, returning } => {
                let table = self.table(*id)?;
                let mut results = Results::new(ranges, returning);
                let mut removed = Vec::new();
                let reach = table.reach(ranges, filter.as_ref());
                for (place, row) in table.rows_for(&reach, filter.as_ref(), found) {
                    if satisfies(filter.as_ref(), &row)? && results.count(place.key, &row)? {
                        removed.push(place);
                    }
                }
                Ok((results.written, Effect::Rows { table: *id, removed, added: Vec::new() }))
            }
            Operation::Stage { table: id, load, rows } => {
                let table = self.table(*id)?;
                let mut results = Results::new(ranges, &[]);
                let rows = table.arrivals(job, rows, &mut results)?;
                Ok((results.written, Effect::Stage { table: *id, load: *load, rows }))
            }
            Operation::Publish { table: id, load, rows: _ } => {
                let table = self.table(*id)?;
                let mut results = Results::new(ranges, &[]);
                let mut staged = Vec::new();
                if let Some(blocks) = table.staged.get(load) {
                    for (place, row) in blocks.within(&KeyRange::union(ranges.to_vec()), Place::first(0)) {
                        results.count(place.key, &row)?;
                        staged.push((place, row[..].into()));
                    }
                }
                table.check_unique(&[], &staged)?;
                Ok((results.written, Effect::Publish { table: *id, load: *load, rows: staged }))
            }
            Operation::Discard { table: id, load } => {
                self.table(*id)?;
                Ok((nothing_written(ranges), Effect::Discard { table: *id, load: *load }))
            }
            Operation::Select(_) => Err(Failure::malformed("a read among the writes")),
        }
    }

    pub(super) fn take_place(&mut self, effect: Effect) {
        match effect {
            Effect::CreateTable { table, schema } => {
                self.tables.insert(table, Arc::new(Table::new(*schema)));
            }
            Effect::DropTable { table } => {
                self.tables.remove(&table);
            }
            Effect::Rows { table, removed, added } => {
                if removed.is_empty() && added.is_empty() {
                    return;
                }
                let rows = &mut self.table_mut(table).rows;
                rows.remove(&removed);
                rows.insert(added);
            }
            Effect::Change { table, columns, rows } => {
                if !rows.is_empty() {
                    self.table_mut(table).rows.replace(&columns, rows);
                }
            }
            Effect::Stage { table, load, rows } => {
                self.table_mut(table).staged.entry(load).or_default().insert(rows);
            }
            Effect::Publish { table, load, rows } => {
                let table = self.table_mut(table);
                let Some(staged) = table.staged.get_mut(&load) else { return };
                let places: Vec<Place> = rows.iter().map(|(place, _)| *place).collect();
                staged.remove(&places);
                if staged.len() == 0 {
                    table.staged.remove(&load);
                }
                table.rows.insert(rows);
            }
            Effect::Discard { table, load } => {
                self.table_mut(table).staged.remove(&load);
            }
        }
    }

    pub(super) fn table_mut(&mut self, table: TableId) -> &mut Table<R> {
        Arc::make_mut(self.tables.get_mut(&table).expect("a table that was evaluated"))
    }
}

impl<R: Rows> Table<R> {
    /// The rows that a filter must be asked about.
    fn rows_for<'a>(
        &'a self,
        reach: &'a [KeyRange],
        filter: Option<&'a Expr>,
        found: Option<Vec<Place>>,
    ) -> Box<dyn Iterator<Item = (Place, Seen<'a>)> + 'a> {
        match found {
            Some(places) => {
                Box::new(places.into_iter().filter_map(|place| Some((place, self.rows.at(&place)?))))
            }
            None => Box::new(self.rows.candidates(reach, filter)),
        }
    }

    /// Those of an operation's rows that lie in the job's ranges, checked and at their places.
    fn arrivals(
        &self,
        job: &Job,
        rows: &[Row],
        results: &mut Results<'_>,
    ) -> Result<Vec<(Place, Stored)>, Failure> {
        let mut added = Vec::new();
        for (line, row) in rows.iter().enumerate() {
            let key = self.schema.partition.key(row);
            if !job.ranges.iter().any(|range| range.contains(key)) {
                continue;
            }
            self.schema.check_row(row)?;
            results.count(key, row)?;
            let line = u32::try_from(line).map_err(|_| Failure::malformed("too many rows"))?;
            added.push((self.place(row, RowId { epoch: job.epoch, line }), row.as_slice().into()));
        }
        Ok(added)
    }

    fn update(
        &self,
        id: TableId,
        assignments: &[(usize, Expr)],
        filter: Option<&Expr>,
        found: Option<Vec<Place>>,
        mut results: Results<'_>,
    ) -> Result<(Vec<Written>, Effect), Failure> {
        if assignments.iter().any(|(column, _)| *column == self.schema.partition.column()) {
            return Err(Failure::new("0A000", "the partition column cannot be assigned"));
        }
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        let reach = self.reach(results.ranges, filter);
        for (place, row) in self.rows_for(&reach, filter, found) {
            if !satisfies(filter, &row)? {
                continue;
            }
            let mut changed: Row = row.to_vec();
            for (column, expr) in assignments {
                let value = eval(expr, &row)?;
                *changed.get_mut(*column).ok_or_else(|| Failure::malformed("no such column"))? = value;
            }
            self.schema.check_row(&changed)?;
            if results.count(place.key, &changed)? {
                removed.push(place);
                added.push((Place { tie: self.schema.primary_key_hash(&changed), ..place }, changed.into()));
            }
        }
        if assignments.iter().any(|(column, _)| self.schema.primary_key.contains(column)) {
            self.check_unique(&removed, &added)?;
            return Ok((results.written, Effect::Rows { table: id, removed, added }));
        }
        let columns = assignments.iter().map(|(column, _)| *column).collect();
        Ok((results.written, Effect::Change { table: id, columns, rows: added }))
    }

    /// Refuses rows whose primary key another row will have once `removed` are gone and `added` are there.
    fn check_unique(&self, removed: &[Place], added: &[(Place, Stored)]) -> Result<(), Failure> {
        if self.schema.primary_key.is_empty() {
            return Ok(());
        }
        let removed: BTreeSet<&Place> = removed.iter().collect();
        let same_key = |a: &[Value], b: &[Value]| {
            self.schema.primary_key.iter().all(|&column| a[column].order(&b[column]).is_eq())
        };
        let mut coming: BTreeMap<(u64, u64), Vec<&Stored>> = BTreeMap::new();
        for (place, row) in added {
            let beside = coming.entry((place.key, place.tie)).or_default();
            let tied = self.rows.tied(place.key, place.tie);
            let mut staying = tied.iter().filter(|(other, _)| !removed.contains(other));
            if beside.iter().any(|other| same_key(row, other))
                || staying.any(|(_, other)| same_key(row, other))
            {
                return Err(self.schema.duplicate(row));
            }
            beside.push(row);
        }
        Ok(())
    }
}
