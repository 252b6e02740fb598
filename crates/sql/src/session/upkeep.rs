//! Writes of tables whose constraints concern rows of other tables.
//!
//! A unique key other than the primary key has a table of its own, which holds the keys ([`crate::index`]). A
//! write of the indexed table is one transaction with the change of these keys:
//!
//! ```text
//! insert into person (id, mail) values (7, 'a@b.c')
//!   1  insert into person           (7, 'a@b.c')
//!   2  insert into person_mail_key  ('a@b.c')          fails with 23505 if the key exists
//!
//! update person set mail = 'd@e.f' where id = 7
//!   1  select mail, 'd@e.f' from person where id = 7   the gateway reads the old key: 'a@b.c'
//!   2  update person …
//!   3  delete from person_mail_key  ('a@b.c')
//!   4  insert into person_mail_key  ('d@e.f')
//! ```
//!
//! The results of the reads are compared at the position of the transaction. If another transaction changed
//! such a row meanwhile, nothing takes effect. Outside of a block the gateway then begins again; in a block
//! the client receives 40001.
//!
//! **Uniqueness** is judged when the statement ends: all old keys are deleted before new keys are inserted,
//! so rows can exchange their keys.

use std::{collections::BTreeMap, mem};

use quorate_table::{
    eval::{eval, satisfies},
    expr::{Binary, Expr},
    operation::{Compared, Conflict, Operation, Output, Select},
    schema::Schema,
    value::{Row, Value, key_of},
};

use super::{
    Session, StatementOutcome,
    deferred::{StatementPart, of_table},
    settle::written_rows,
    steps::Origin,
    write::{ReturnedRows, in_order},
};
use crate::{
    backend::Table,
    budget::{self, MemoryReservation},
    error::{Result, SqlError, code},
    finish::{RowWindow, Rows},
    index::IndexDefinition,
    statement::{
        action::{Action, Arbiter},
        upkeep::{UniqueKey, Upkeep},
        write::{self, Write},
    },
};

/// Maximum number of attempts of a statement whose rows other transactions change meanwhile.
const ATTEMPTS_MAX: usize = 8;

/// The old and the new key of a row.
type KeyChange = (Vec<Value>, Vec<Value>);

impl Session {
    /// Executes a write together with the changes that constraints need.
    pub(super) async fn write_with_upkeep(
        &mut self,
        write: &Write,
        upkeep: &Upkeep,
        operation: Operation,
        returned: ReturnedRows,
    ) -> Result<StatementOutcome> {
        let (rows, returned, hold) = if self.is_in_block() {
            let ReturnedRows { rows, hold, .. } = returned;
            let defers = self.defers;
            let (changed, rows, hold) = self.parts(write, upkeep, operation, rows, hold).await?;
            if defers {
                return Ok(StatementOutcome::Deferred);
            }
            (changed, rows, hold)
        } else {
            self.alone(write, upkeep, operation, returned).await?
        };
        if write.restarts {
            self.restart_sequences(&write.table.schema.name).await?;
        }
        let tag = write::tag(write.action.verb(), rows);
        Ok(match write.fields.is_empty() {
            true => StatementOutcome::Done(tag),
            false => StatementOutcome::Buffered(returned, tag, hold),
        })
    }

    /// Executes a write outside of a block. Begins again if another transaction changes its rows meanwhile.
    async fn alone(
        &mut self,
        write: &Write,
        upkeep: &Upkeep,
        operation: Operation,
        returned: ReturnedRows,
    ) -> Result<(u64, Vec<Row>, MemoryReservation)> {
        let mut attempt = 1;
        loop {
            let began = self.statement_began;
            self.begin_implicit();
            self.statement_began = began;
            let defers = mem::replace(&mut self.defers, true);
            let hold = self.hold();
            let parts = self.parts(write, upkeep, operation.clone(), returned.rows.clone(), hold).await;
            self.defers = defers;
            let ended = match parts {
                Ok(_) => self.end_implicit().await,
                Err(error) => Err(error),
            };
            let error = match ended {
                Ok(()) => {
                    let result = self.results.pop().ok_or_else(no_result)?;
                    let (changed, rows, hold) = result.into_parts();
                    let rows = if returned.are_remembered { in_order(rows) } else { rows };
                    return Ok((changed, rows, hold));
                }
                Err(error) => error,
            };
            self.drop_block();
            if !self.take_conflict() || attempt == ATTEMPTS_MAX {
                return Err(error);
            }
            attempt += 1;
        }
    }

    /// Executes the parts of a write in the open block. Returns the number of changed rows and the rows of
    /// RETURNING, unless they are deferred.
    async fn parts(
        &mut self,
        write: &Write,
        upkeep: &Upkeep,
        operation: Operation,
        returned: Vec<Row>,
        hold: MemoryReservation,
    ) -> Result<(u64, Vec<Row>, MemoryReservation)> {
        let table = &write.table;
        match operation {
            Operation::Insert { rows, returning, .. } => {
                let keys = upkeep.uniques.iter().map(|unique| (unique, keys_of(unique, &rows))).collect();
                let insert = Operation::Insert { table: table.id, rows, returning };
                let result = self.first_part(insert, write, returned, hold).await?;
                self.change_keys(write, Vec::new(), keys).await?;
                Ok(result)
            }
            Operation::Delete { filter: None, returning, .. } => {
                let delete = Operation::Delete { table: table.id, filter: None, returning };
                let result = self.first_part(delete, write, returned, hold).await?;
                for unique in &upkeep.uniques {
                    let index = unique.index.clone();
                    let all = Operation::Delete { table: index.id, filter: None, returning: Vec::new() };
                    self.part(all, write, StatementPart::Keys { index }).await?;
                }
                Ok(result)
            }
            Operation::Delete { filter, returning, .. } => {
                self.wait_for_row(table, filter.as_ref()).await;
                let columns: Vec<usize> =
                    upkeep.uniques.iter().flat_map(|unique| unique.columns.iter().copied()).collect();
                let output = columns.iter().map(|&column| column_of(&table.schema, column)).collect();
                let old = self.key_rows(table, filter.clone(), output).await?;
                let delete = Operation::Delete { table: table.id, filter, returning };
                let result = self.first_part(delete, write, returned, hold).await?;
                let mut at = 0;
                let mut keys = Vec::with_capacity(upkeep.uniques.len());
                for unique in &upkeep.uniques {
                    let part = at..at + unique.columns.len();
                    keys.push((unique, old.iter().map(|row| row[part.clone()].to_vec()).collect()));
                    at = part.end;
                }
                self.change_keys(write, keys, Vec::new()).await?;
                Ok(result)
            }
            Operation::Update { assignments, filter, returning, .. } => {
                self.wait_for_row(table, filter.as_ref()).await;
                let is_assigned = |column: &usize| assignments.iter().any(|(assigned, _)| assigned == column);
                let concerned: Vec<&UniqueKey> =
                    upkeep.uniques.iter().filter(|unique| unique.columns.iter().any(is_assigned)).collect();
                let new = |column: usize| {
                    let assigned = assignments.iter().find(|(assigned, _)| *assigned == column);
                    assigned.map_or_else(|| column_of(&table.schema, column), |(_, value)| value.clone())
                };
                let mut output = Vec::new();
                for unique in &concerned {
                    output.extend(unique.columns.iter().map(|&column| column_of(&table.schema, column)));
                    output.extend(unique.columns.iter().map(|&column| new(column)));
                }
                let found = self.key_rows(table, filter.clone(), output).await?;
                let update = Operation::Update { table: table.id, assignments, filter, returning };
                let result = self.first_part(update, write, returned, hold).await?;
                let (mut removed, mut added) = (Vec::new(), Vec::new());
                let mut at = 0;
                for unique in concerned {
                    let (middle, end) = (at + unique.columns.len(), at + 2 * unique.columns.len());
                    let change = |row: &Row| (row[at..middle].to_vec(), row[middle..end].to_vec());
                    let (old, new) = changed(found.iter().map(change));
                    removed.push((unique, old));
                    added.push((unique, new));
                    at = end;
                }
                self.change_keys(write, removed, added).await?;
                Ok(result)
            }
            Operation::Upsert { rows, conflict, returning, .. } => {
                self.upsert(write, upkeep, rows, conflict, &returning, hold).await
            }
            other => {
                let message = format!("a write of a table with constraints is no write: {other:?}");
                Err(SqlError::new(code::INTERNAL_ERROR, message))
            }
        }
    }

    /// Executes INSERT … ON CONFLICT: reads the rows that have the keys of the rows to add, and decides for
    /// each row whether it is added, changes an existing row, or is left out.
    async fn upsert(
        &mut self,
        write: &Write,
        upkeep: &Upkeep,
        rows: Vec<Row>,
        conflict: Conflict,
        returning: &[Expr],
        mut hold: MemoryReservation,
    ) -> Result<(u64, Vec<Row>, MemoryReservation)> {
        let table = &write.table;
        let schema = &table.schema;
        let arbiters = arbiters(arbiter_of(write), schema, upkeep);
        let filter = Expr::any(arbiters.iter().map(|columns| has_any_key(schema, columns, &rows)).collect());
        let all = (0..schema.columns.len()).map(|column| column_of(schema, column)).collect();
        let existing = self.key_rows(table, Some(filter), all).await?;
        let decision = UpsertDecision::of(&arbiters, rows, &existing, &conflict, returning)?;
        for row in &decision.returned {
            hold.grow(budget::weight(row))?;
        }
        let UpsertDecision { added, changes, returned } = decision;
        let mut added_keys: Vec<(&UniqueKey, Vec<Vec<Value>>)> =
            upkeep.uniques.iter().map(|unique| (unique, keys_of(unique, &added))).collect();
        let mut removed_keys = Vec::new();
        for (unique, new) in &mut added_keys {
            let key = |row: &Row| unique.columns.iter().map(|&column| row[column].clone()).collect();
            let (old, changed) = changed(changes.iter().map(|change| (key(change.old), key(&change.new))));
            removed_keys.push((*unique, old));
            new.extend(changed);
        }
        let insert = Operation::Insert { table: table.id, rows: added, returning: Vec::new() };
        let (mut total, returned, hold) = self.first_part(insert, write, returned, hold).await?;
        for change in changes {
            let assignments = change.assigned.into_iter().map(|column| {
                let ty = schema.columns[column].ty;
                (column, Expr::constant(change.new[column].clone(), ty))
            });
            let update = Operation::Update {
                table: table.id,
                assignments: assignments.collect(),
                filter: Some(has_key(schema, change.arbiter, change.old)),
                returning: Vec::new(),
            };
            total += self.part(update, write, StatementPart::Rows).await?.0;
        }
        self.change_keys(write, removed_keys, added_keys).await?;
        Ok((total, returned, hold))
    }

    /// Deletes and inserts keys of indexes.
    async fn change_keys(
        &mut self,
        write: &Write,
        removed: Vec<(&UniqueKey, Vec<Vec<Value>>)>,
        added: Vec<(&UniqueKey, Vec<Vec<Value>>)>,
    ) -> Result<()> {
        for (unique, keys) in removed {
            let index = unique.index.clone();
            let rows: Vec<Row> =
                keys.into_iter().filter_map(|key| IndexDefinition::row(&index.schema, key)).collect();
            if rows.is_empty() {
                continue;
            }
            let filter = Some(has_any_key(&index.schema, &index.schema.primary_key, &rows));
            let delete = Operation::Delete { table: index.id, filter, returning: Vec::new() };
            self.part(delete, write, StatementPart::Keys { index }).await?;
        }
        for (unique, keys) in added {
            let index = unique.index.clone();
            let rows: Vec<Row> =
                keys.into_iter().filter_map(|key| IndexDefinition::row(&index.schema, key)).collect();
            if rows.is_empty() {
                continue;
            }
            let insert = Operation::Insert { table: index.id, rows, returning: Vec::new() };
            self.part(insert, write, StatementPart::Keys { index }).await?;
        }
        Ok(())
    }

    /// Executes the first part of a write.
    async fn first_part(
        &mut self,
        operation: Operation,
        write: &Write,
        mut returned: Vec<Row>,
        hold: MemoryReservation,
    ) -> Result<(u64, Vec<Row>, MemoryReservation)> {
        if self.defers {
            self.defer_part(operation, write, StatementPart::First, (returned, hold))?;
            return Ok((0, Vec::new(), self.hold()));
        }
        let (changed, more) = self.part(operation, write, StatementPart::First).await?;
        returned.extend(more);
        Ok((changed, returned, hold))
    }

    /// Executes or defers a part of a write. Returns the number of changed rows and the rows of RETURNING,
    /// unless it is deferred.
    pub(super) async fn part(
        &mut self,
        operation: Operation,
        write: &Write,
        part: StatementPart,
    ) -> Result<(u64, Vec<Row>)> {
        if self.defers {
            let nothing = (Vec::new(), self.hold());
            self.defer_part(operation, write, part, nothing)?;
            return Ok((0, Vec::new()));
        }
        let (table, origin) = match &part {
            StatementPart::First => (&write.table, self.client_write()),
            StatementPart::Rows => (&write.table, Origin::WritePart),
            StatementPart::Keys { index } => (index, Origin::WritePart),
        };
        let within = |error: SqlError| of_table(error.within(&table.schema), &write.table);
        let stream = self.attempt(operation, Compared::All, table, origin).await.map_err(within)?;
        written_rows(stream).await
    }

    /// Reads rows behind the block's earlier steps, and has them compared at COMMIT.
    async fn key_rows(
        &mut self,
        table: &Table,
        filter: Option<Expr>,
        columns: Vec<Expr>,
    ) -> Result<Vec<Row>> {
        let visible = columns.len();
        let output = Output::Rows { columns, order: Vec::new(), limit: None, distinct: false };
        let select = Operation::Select(Select { table: table.id, filter, output });
        let answers = self.attempt(select, Compared::All, table, Origin::KeyRead).await?;
        let window = RowWindow { distinct: false, offset: 0, limit: None, visible };
        Rows::merged(answers, Vec::new(), window, self.hold()).all().await
    }
}

/// The effects of an INSERT … ON CONFLICT.
struct UpsertDecision<'a> {
    /// The rows to add.
    added: Vec<Row>,
    /// The changes of existing rows.
    changes: Vec<RowChange<'a>>,
    /// The rows of RETURNING, in the order of the rows to add.
    returned: Vec<Row>,
}

/// The change of an existing row.
struct RowChange<'a> {
    old: &'a Row,
    new: Row,
    /// The columns that the statement assigns.
    assigned: Vec<usize>,
    /// The columns of the key by which the row was found.
    arbiter: &'a [usize],
}

impl<'a> UpsertDecision<'a> {
    fn of(
        arbiters: &'a [Vec<usize>],
        rows: Vec<Row>,
        existing: &'a [Row],
        conflict: &Conflict,
        returning: &[Expr],
    ) -> Result<UpsertDecision<'a>> {
        /// The owner of a key.
        #[derive(Clone, Copy)]
        enum Owner {
            Existing(usize),
            Changed,
            Added,
        }
        let keys = |row: &Row| {
            let key = |(number, columns): (usize, &Vec<usize>)| {
                let values = columns.iter().map(|&column| &row[column]);
                let has_null = values.clone().any(Value::is_null);
                (!has_null).then(|| (number, key_of(values)))
            };
            arbiters.iter().enumerate().filter_map(key).collect::<Vec<_>>()
        };
        let mut owners = BTreeMap::new();
        for (index, row) in existing.iter().enumerate() {
            owners.extend(keys(row).into_iter().map(|key| (key, Owner::Existing(index))));
        }
        let mut decision = UpsertDecision { added: Vec::new(), changes: Vec::new(), returned: Vec::new() };
        let returned = |row: &Row| returning.iter().map(|expr| Ok(eval(expr, row)?)).collect::<Result<Row>>();
        for row in rows {
            let owner = keys(&row).into_iter().find_map(|key| Some((key.0, *owners.get(&key)?, key)));
            match (owner, conflict) {
                (Some(_), Conflict::Skip) => {}
                (Some((_, Owner::Changed | Owner::Added, _)), Conflict::Update { .. }) => {
                    return Err(changed_twice());
                }
                (Some((number, Owner::Existing(index), key)), Conflict::Update { assignments, filter }) => {
                    let old = &existing[index];
                    owners.insert(key, Owner::Changed);
                    let both: Row = old.iter().chain(&row).cloned().collect();
                    if !satisfies(filter.as_ref(), &both)? {
                        continue;
                    }
                    let mut new = old.clone();
                    for (column, value) in assignments {
                        new[*column] = eval(value, &both)?;
                    }
                    if !returning.is_empty() {
                        decision.returned.push(returned(&new)?);
                    }
                    let assigned = assignments.iter().map(|(column, _)| *column).collect();
                    decision.changes.push(RowChange { old, new, assigned, arbiter: &arbiters[number] });
                }
                (None, _) => {
                    owners.extend(keys(&row).into_iter().map(|key| (key, Owner::Added)));
                    if !returning.is_empty() {
                        decision.returned.push(returned(&row)?);
                    }
                    decision.added.push(row);
                }
            }
        }
        Ok(decision)
    }
}

/// Returns the columns of the keys whose conflicts ON CONFLICT handles.
fn arbiters(arbiter: Arbiter, schema: &Schema, upkeep: &Upkeep) -> Vec<Vec<usize>> {
    let primary = (!schema.primary_key.is_empty()).then(|| schema.primary_key.clone());
    let uniques = upkeep.uniques.iter().map(|unique| unique.columns.clone());
    match arbiter {
        Arbiter::Any => primary.into_iter().chain(uniques).collect(),
        Arbiter::PrimaryKey => primary.into_iter().collect(),
        Arbiter::Unique(number) => uniques.skip(number).take(1).collect(),
    }
}

/// Returns the keys of rows. Some may have NULL.
fn keys_of(unique: &UniqueKey, rows: &[Row]) -> Vec<Vec<Value>> {
    let key = |row: &Row| unique.columns.iter().map(|&column| row[column].clone()).collect();
    rows.iter().map(key).collect()
}

/// Returns the old and the new keys of those rows whose key changes.
fn changed(changes: impl Iterator<Item = KeyChange>) -> (Vec<Vec<Value>>, Vec<Vec<Value>>) {
    changes.filter(|(old, new)| key_of(old) != key_of(new)).unzip()
}

fn column_of(schema: &Schema, column: usize) -> Expr {
    Expr::Column(column, schema.columns[column].ty)
}

/// Returns the condition that a row has this value in a column.
fn equals(schema: &Schema, column: usize, value: &Value) -> Expr {
    let constant = Expr::constant(value.clone(), schema.columns[column].ty);
    Expr::binary(Binary::Equal, column_of(schema, column), constant)
}

/// Returns the condition that a row has the values of another row in some columns.
fn has_key(schema: &Schema, columns: &[usize], row: &Row) -> Expr {
    Expr::all(columns.iter().map(|&column| equals(schema, column, &row[column])).collect())
}

/// Returns the condition that a row has in some columns, at least one, the values of any of these rows.
fn has_any_key(schema: &Schema, columns: &[usize], rows: &[Row]) -> Expr {
    let keyed = rows.iter().filter(|row| columns.iter().all(|&column| !row[column].is_null()));
    let first = |row: &Row| Expr::constant(row[columns[0]].clone(), schema.columns[columns[0]].ty);
    let listed = Expr::In(Box::new(column_of(schema, columns[0])), keyed.clone().map(first).collect());
    match columns {
        [_] => listed,
        _ => Expr::all(vec![listed, Expr::any(keyed.map(|row| has_key(schema, columns, row)).collect())]),
    }
}

/// Returns the keys whose conflicts a write handles.
fn arbiter_of(write: &Write) -> Arbiter {
    match &write.action {
        Action::Insert { conflict: Some(on), .. } => on.arbiter,
        _ => Arbiter::Any,
    }
}

fn changed_twice() -> SqlError {
    SqlError::new(
        code::CARDINALITY_VIOLATION,
        "ON CONFLICT DO UPDATE command cannot affect row a second time",
    )
    .hint("Ensure that no rows proposed for insertion within the same command have duplicate constrained values.")
}

fn no_result() -> SqlError {
    SqlError::new(code::INTERNAL_ERROR, "a write was applied and has no result")
}
