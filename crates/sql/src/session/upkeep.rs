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
//! **References** are checked by reads of the other table ([`super::reference`]). ON DELETE and ON UPDATE
//! with an action are further writes, of the child table, which have constraints of their own.
//!
//! **Uniqueness** is judged when the statement ends: all old keys are deleted before new keys are inserted,
//! so rows can exchange their keys.

use std::{
    collections::{BTreeSet, VecDeque},
    mem,
    sync::Arc,
};

use quorate_table::{
    constraint::{Deferral, ReferenceAction},
    expr::Expr,
    operation::{Compared, Operation, Output, Select},
    value::{Row, Value, key_of},
};

use super::{
    Session, StatementOutcome,
    deferred::{StatementPart, of_table},
    key_condition::{KeyValues, column_of, has_any_key, has_key, has_null, key_of_row},
    reference::converted,
    reference_check::{ReferenceCheck, ReferenceSide},
    setting::REQUEST_ID,
    settle::written_rows,
    steps::Origin,
    upsert::UpsertDecision,
    write::{ReturnedRows, in_order},
};
use crate::{
    backend::Table,
    budget::{self, MemoryReservation},
    error::{Result, SqlError, code},
    fault,
    finish::{RowWindow, Rows},
    index::IndexDefinition,
    statement::{
        action::{Action, Arbiter},
        fold,
        parameters::Arguments,
        upkeep::{ChildReference, UniqueKey, Upkeep},
        write::{self, Write},
    },
};

/// Maximum number of attempts of a statement whose rows other transactions change meanwhile.
const ATTEMPTS_MAX: usize = 8;

/// Maximum number of attempts of INSERT … ON CONFLICT after a key exists that was not there when the gateway
/// read the keys.
const UPSERT_ATTEMPTS_MAX: usize = 3;

/// The result of a write: the number of rows, the rows of RETURNING, and their memory. Empty if the write is
/// deferred.
type WriteSum = (u64, Vec<Row>, MemoryReservation);

/// A write of a table, and what its constraints need.
struct TableWrite<'a> {
    /// The client's statement.
    statement: &'a Write,
    table: &'a Arc<Table>,
    upkeep: &'a Arc<Upkeep>,
    part: StatementPart,
    /// The rows of RETURNING that the gateway knows.
    returned: Vec<Row>,
    hold: MemoryReservation,
}

/// The writes and checks that follow from a write.
#[derive(Default)]
struct Consequences {
    /// Writes of child tables; bounded by the memory of the session, which holds the keys.
    writes: VecDeque<(Arc<Table>, Operation)>,
    checks: Vec<ReferenceCheck>,
}

/// The old and the new values of some columns of the rows that a write changes.
struct OldRows {
    /// The columns, sorted. A row has their old values, and then their new values.
    columns: Vec<usize>,
    rows: Vec<Row>,
}

impl OldRows {
    /// Returns the old keys in some columns.
    fn old_keys<'r>(&'r self, columns: &'r [usize]) -> impl Iterator<Item = KeyValues> + 'r {
        self.keys(columns, 0)
    }

    /// Returns the new keys in some columns.
    fn new_keys<'r>(&'r self, columns: &'r [usize]) -> impl Iterator<Item = KeyValues> + 'r {
        self.keys(columns, self.columns.len())
    }

    fn keys<'r>(&'r self, columns: &'r [usize], from: usize) -> impl Iterator<Item = KeyValues> + 'r {
        let place = |column: &usize| from + self.columns.binary_search(column).expect("the column was read");
        let places: Vec<usize> = columns.iter().map(place).collect();
        self.rows.iter().map(move |row| key_of_row(&places, row))
    }

    /// Returns the old and the new keys of those rows whose key changes.
    fn changes(&self, columns: &[usize]) -> Vec<(KeyValues, KeyValues)> {
        let both = self.old_keys(columns).zip(self.new_keys(columns));
        both.filter(|(old, new)| key_of(old) != key_of(new)).collect()
    }
}

impl Session {
    /// Executes a write together with what the table's constraints need.
    pub(super) async fn write_with_upkeep(
        &mut self,
        write: &Write,
        upkeep: &Arc<Upkeep>,
        operation: Operation,
        returned: ReturnedRows,
    ) -> Result<StatementOutcome> {
        refuse_truncation(write, upkeep)?;
        let (rows, returned, hold) = if self.is_in_block() {
            let ReturnedRows { rows, hold, .. } = returned;
            let defers = self.defers;
            let sum = self.parts(write, upkeep, operation, rows, hold).await?;
            if defers {
                return Ok(StatementOutcome::Deferred);
            }
            sum
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
        upkeep: &Arc<Upkeep>,
        operation: Operation,
        returned: ReturnedRows,
    ) -> Result<WriteSum> {
        // A statement under an id that the client chose is sent once, because the id stands for its outcome.
        let is_upsert =
            matches!(operation, Operation::Upsert { .. }) && self.settings.get(REQUEST_ID).is_none();
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
            // Another transaction may have added the key between the read and the write. A key that ON
            // CONFLICT does not name fails again.
            let may_be_race =
                is_upsert && error.code == code::UNIQUE_VIOLATION && attempt < UPSERT_ATTEMPTS_MAX;
            if !(self.take_conflict() || may_be_race) || attempt == ATTEMPTS_MAX {
                return Err(fault::of_one_statement(error));
            }
            attempt += 1;
        }
    }

    /// Executes the parts of a write in the open block.
    async fn parts(
        &mut self,
        statement: &Write,
        upkeep: &Arc<Upkeep>,
        operation: Operation,
        returned: Vec<Row>,
        hold: MemoryReservation,
    ) -> Result<WriteSum> {
        let mut consequences = Consequences::default();
        let (table, part) = (&statement.table, StatementPart::First);
        let first = TableWrite { statement, table, upkeep, part, returned, hold };
        let sum = self.write_table(first, operation, &mut consequences).await?;
        while let Some((table, operation)) = consequences.writes.pop_front() {
            let upkeep = Upkeep::of(&self.backend.catalog(), &table.schema).unwrap_or_default();
            let part = StatementPart::Other { table: table.clone(), owner: table.clone() };
            let (table, upkeep) = (&table, &upkeep);
            let write =
                TableWrite { statement, table, upkeep, part, returned: Vec::new(), hold: self.hold() };
            self.write_table(write, operation, &mut consequences).await?;
        }
        let (waiting, due): (Vec<_>, Vec<_>) = consequences.checks.into_iter().partition(|check| check.waits);
        self.put_off(waiting, false);
        if self.defers {
            self.put_off(due, true);
        } else {
            self.check_references(due).await?;
        }
        Ok(sum)
    }

    /// Executes a write of a table, with the changes of the keys of its indexes. Adds what follows from it.
    async fn write_table(
        &mut self,
        write: TableWrite<'_>,
        operation: Operation,
        consequences: &mut Consequences,
    ) -> Result<WriteSum> {
        let TableWrite { statement, table, upkeep, .. } = write;
        match operation {
            Operation::Insert { rows, returning, .. } => {
                let keys = upkeep.uniques.iter().map(|unique| (unique, keys_of(unique, &rows))).collect();
                for (number, parent) in upkeep.parents.iter().enumerate() {
                    let new = rows.iter().map(|row| key_of_row(&parent.reference.columns, row));
                    self.needs_parents(table, upkeep, number, new, consequences)?;
                }
                let insert = Operation::Insert { table: table.id, rows, returning };
                let sum = self.main_part(insert, write).await?;
                self.change_keys(statement, table, Vec::new(), keys).await?;
                Ok(sum)
            }
            Operation::Delete { filter: None, returning, .. } if upkeep.children.is_empty() => {
                let delete = Operation::Delete { table: table.id, filter: None, returning };
                let sum = self.main_part(delete, write).await?;
                for unique in &upkeep.uniques {
                    let index = unique.index.clone();
                    let all = Operation::Delete { table: index.id, filter: None, returning: Vec::new() };
                    self.part(all, statement, StatementPart::Other { table: index, owner: table.clone() })
                        .await?;
                }
                Ok(sum)
            }
            Operation::Delete { filter, returning, .. } => {
                self.wait_for_row(table, filter.as_ref()).await;
                let uniques = upkeep.uniques.iter().flat_map(|unique| &unique.columns);
                let referenced = upkeep.children.iter().flat_map(|child| &child.columns);
                let columns: BTreeSet<usize> = uniques.chain(referenced).copied().collect();
                let old = self.old_rows(table, filter.clone(), columns, None).await?;
                let delete = Operation::Delete { table: table.id, filter, returning };
                let sum = self.main_part(delete, write).await?;
                let keys = upkeep.uniques.iter();
                let keys = keys.map(|unique| (unique, old.old_keys(&unique.columns).collect())).collect();
                self.change_keys(statement, table, keys, Vec::new()).await?;
                for (number, child) in upkeep.children.iter().enumerate() {
                    let vanished: Vec<KeyValues> =
                        old.old_keys(&child.columns).filter(|key| !has_null(key)).collect();
                    self.deleted(table, upkeep, number, vanished, consequences)?;
                }
                Ok(sum)
            }
            Operation::Update { assignments, filter, returning, .. } => {
                self.wait_for_row(table, filter.as_ref()).await;
                let is_assigned = |column: &usize| assignments.iter().any(|(assigned, _)| assigned == column);
                let concerns = |columns: &[usize]| columns.iter().any(is_assigned);
                let uniques: Vec<&UniqueKey> =
                    upkeep.uniques.iter().filter(|unique| concerns(&unique.columns)).collect();
                let parents: Vec<usize> = (0..upkeep.parents.len())
                    .filter(|&number| concerns(&upkeep.parents[number].reference.columns))
                    .collect();
                let children: Vec<usize> = (0..upkeep.children.len())
                    .filter(|&number| concerns(&upkeep.children[number].columns))
                    .collect();
                let columns: BTreeSet<usize> = uniques
                    .iter()
                    .flat_map(|unique| &unique.columns)
                    .chain(parents.iter().flat_map(|&number| &upkeep.parents[number].reference.columns))
                    .chain(children.iter().flat_map(|&number| &upkeep.children[number].columns))
                    .copied()
                    .collect();
                let found = self.old_rows(table, filter.clone(), columns, Some(&assignments)).await?;
                let update = Operation::Update { table: table.id, assignments, filter, returning };
                let sum = self.main_part(update, write).await?;
                let (mut removed, mut added) = (Vec::new(), Vec::new());
                for unique in uniques {
                    let (old, new) = found.changes(&unique.columns).into_iter().unzip();
                    removed.push((unique, old));
                    added.push((unique, new));
                }
                self.change_keys(statement, table, removed, added).await?;
                for number in parents {
                    let columns = &upkeep.parents[number].reference.columns;
                    let new = found.changes(columns).into_iter().map(|(_, new)| new);
                    self.needs_parents(table, upkeep, number, new, consequences)?;
                }
                for number in children {
                    let changes = found.changes(&upkeep.children[number].columns);
                    self.changed(table, upkeep, number, changes, consequences)?;
                }
                Ok(sum)
            }
            Operation::Upsert { .. } => self.upsert(write, operation, consequences).await,
            other => {
                let message = format!("a write of a table with constraints is no write of rows: {other:?}");
                Err(SqlError::new(code::INTERNAL_ERROR, message))
            }
        }
    }

    /// Executes INSERT … ON CONFLICT: reads the rows that have the keys of the rows to add, and decides for
    /// each row whether it is added, changes an existing row, or is left out.
    async fn upsert(
        &mut self,
        mut write: TableWrite<'_>,
        operation: Operation,
        consequences: &mut Consequences,
    ) -> Result<WriteSum> {
        let Operation::Upsert { rows, conflict, returning, .. } = operation else {
            unreachable!("only INSERT … ON CONFLICT is executed here")
        };
        let TableWrite { statement, table, upkeep, .. } = write;
        let schema = &table.schema;
        let arbiters = arbiters(statement, table, upkeep);
        let keys = |columns: &Vec<usize>| {
            let keys: Vec<KeyValues> = rows.iter().map(|row| key_of_row(columns, row)).collect();
            has_any_key(schema, columns, &keys)
        };
        let filter = Expr::any(arbiters.iter().map(keys).collect());
        let all = (0..schema.columns.len()).map(|column| column_of(schema, column)).collect();
        let existing = self.key_rows(table, Some(filter), all).await?;
        let taken = |number: usize| {
            let is_key = arbiters[number] == schema.primary_key;
            let unique = upkeep.uniques.iter().find(|unique| unique.columns == arbiters[number]);
            let name = match unique {
                Some(unique) if !is_key => unique.index.schema.name.clone(),
                _ => schema.key_name(),
            };
            let message = format!("duplicate key value violates unique constraint \"{name}\"");
            let mut error = of_table(SqlError::new(code::UNIQUE_VIOLATION, message), table);
            error.about.constraint = Some(name);
            error
        };
        let decision = UpsertDecision::of(&arbiters, rows, &existing, &conflict, &returning, taken)?;
        let UpsertDecision { added, changes, returned } = decision;
        for row in &returned {
            write.hold.grow(budget::weight(row))?;
        }
        write.returned = returned;
        let (mut removed_keys, mut added_keys) = (Vec::new(), Vec::new());
        for unique in &upkeep.uniques {
            let key = |row: &Row| key_of_row(&unique.columns, row);
            let both = changes.iter().map(|change| (key(change.old), key(&change.new)));
            let (old, new): (Vec<KeyValues>, Vec<KeyValues>) =
                both.filter(|(old, new)| key_of(old) != key_of(new)).unzip();
            removed_keys.push((unique, old));
            added_keys.push((unique, keys_of(unique, &added).into_iter().chain(new).collect()));
        }
        for (number, parent) in upkeep.parents.iter().enumerate() {
            let rows = added.iter().chain(changes.iter().map(|change| &change.new));
            let new = rows.map(|row| key_of_row(&parent.reference.columns, row));
            self.needs_parents(table, upkeep, number, new, consequences)?;
        }
        for (number, child) in upkeep.children.iter().enumerate() {
            let key = |row: &Row| key_of_row(&child.columns, row);
            let both = changes.iter().map(|change| (key(change.old), key(&change.new)));
            let changed = both.filter(|(old, new)| key_of(old) != key_of(new)).collect();
            self.changed(table, upkeep, number, changed, consequences)?;
        }
        let insert = Operation::Insert { table: table.id, rows: added, returning: Vec::new() };
        let (mut total, returned, hold) = self.main_part(insert, write).await?;
        for change in changes {
            let assignment = |column: usize| {
                (column, Expr::constant(change.new[column].clone(), schema.columns[column].ty))
            };
            let update = Operation::Update {
                table: table.id,
                assignments: change.assigned.iter().map(|&column| assignment(column)).collect(),
                filter: Some(has_key(schema, change.arbiter, &key_of_row(change.arbiter, change.old))),
                returning: Vec::new(),
            };
            total += self.part(update, statement, StatementPart::Rows).await?.0;
        }
        self.change_keys(statement, table, removed_keys, added_keys).await?;
        Ok((total, returned, hold))
    }

    /// Adds the check that parents have these keys.
    fn needs_parents(
        &self,
        table: &Arc<Table>,
        upkeep: &Arc<Upkeep>,
        number: usize,
        keys: impl Iterator<Item = KeyValues>,
        consequences: &mut Consequences,
    ) -> Result<()> {
        let waits = upkeep.parents[number].reference.deferral == Deferral::Deferred;
        let check = self.reference_check(table, upkeep, (ReferenceSide::Parent(number), waits), keys)?;
        consequences.checks.extend(check);
        Ok(())
    }

    /// Adds what follows for a child table from the deletion of keys to which it may refer.
    fn deleted(
        &self,
        table: &Arc<Table>,
        upkeep: &Arc<Upkeep>,
        number: usize,
        vanished: Vec<KeyValues>,
        consequences: &mut Consequences,
    ) -> Result<()> {
        let child = &upkeep.children[number];
        let action = child.reference.on_delete;
        if matches!(action, ReferenceAction::NoAction | ReferenceAction::Restrict) || vanished.is_empty() {
            return self.forbids_children(table, upkeep, (number, action), vanished, consequences);
        }
        let (own, columns) = (&child.child, &child.reference.columns);
        let keys = converted(&own.schema, columns, vanished.iter());
        let filter = Some(has_any_key(&own.schema, columns, &keys));
        let operation = match self.assigned(child, action)? {
            None => Operation::Delete { table: own.id, filter, returning: Vec::new() },
            Some(assignments) => {
                Operation::Update { table: own.id, assignments, filter, returning: Vec::new() }
            }
        };
        consequences.writes.push_back((own.clone(), operation));
        self.forbids_default(table, upkeep, (number, action), vanished, consequences)
    }

    /// Adds the check that no child refers to these keys, if the default of its columns may be one of them.
    fn forbids_default(
        &self,
        table: &Arc<Table>,
        upkeep: &Arc<Upkeep>,
        (number, action): (usize, ReferenceAction),
        vanished: Vec<KeyValues>,
        consequences: &mut Consequences,
    ) -> Result<()> {
        if action != ReferenceAction::SetDefault {
            return Ok(());
        }
        self.forbids_children(table, upkeep, (number, action), vanished, consequences)
    }

    /// Adds what follows for a child table from changes of keys to which it may refer.
    fn changed(
        &self,
        table: &Arc<Table>,
        upkeep: &Arc<Upkeep>,
        number: usize,
        changes: Vec<(KeyValues, KeyValues)>,
        consequences: &mut Consequences,
    ) -> Result<()> {
        let child = &upkeep.children[number];
        let action = child.reference.on_update;
        let changes: Vec<(KeyValues, KeyValues)> =
            changes.into_iter().filter(|(old, _)| !has_null(old)).collect();
        if matches!(action, ReferenceAction::NoAction | ReferenceAction::Restrict) || changes.is_empty() {
            let vanished = changes.into_iter().map(|(old, _)| old).collect();
            return self.forbids_children(table, upkeep, (number, action), vanished, consequences);
        }
        let (own, columns) = (&child.child, &child.reference.columns);
        if columns.contains(&own.schema.partition.column()) {
            let column = &own.schema.columns[own.schema.partition.column()].name;
            let what = format!("ON UPDATE with an action on the partition column \"{column}\"");
            return Err(SqlError::unsupported(what));
        }
        let vanished = changes.iter().map(|(old, _)| old.clone()).collect();
        self.forbids_default(table, upkeep, (number, action), vanished, consequences)?;
        let in_child = |key: &KeyValues| converted(&own.schema, columns, std::iter::once(key)).pop();
        let assignments = match self.assigned(child, action)? {
            Some(assignments) => assignments,
            None => {
                // One statement changes all children. With one statement for each key, a child that has just
                // got a key would be changed again if that key changes, too.
                let mut branches: Vec<Vec<(Expr, Expr)>> = vec![Vec::new(); columns.len()];
                for (old, new) in &changes {
                    let Some(old) = in_child(old) else { continue };
                    let Some(new) = in_child(new) else {
                        let message = "a key is out of range for a column that refers to it";
                        return Err(SqlError::new("22003", message));
                    };
                    let is_old = has_key(&own.schema, columns, &old);
                    for ((branches, &column), value) in branches.iter_mut().zip(columns).zip(new) {
                        let value = Expr::constant(value, own.schema.columns[column].ty);
                        branches.push((is_old.clone(), value));
                    }
                }
                let changed = |(branches, &column): (Vec<(Expr, Expr)>, &usize)| {
                    let otherwise = Some(Box::new(column_of(&own.schema, column)));
                    (column, Expr::Case { branches, otherwise, ty: own.schema.columns[column].ty })
                };
                branches.into_iter().zip(columns).map(changed).collect()
            }
        };
        let old: Vec<KeyValues> = changes.iter().filter_map(|(old, _)| in_child(old)).collect();
        if !old.is_empty() {
            let filter = Some(has_any_key(&own.schema, columns, &old));
            let update = Operation::Update { table: own.id, assignments, filter, returning: Vec::new() };
            consequences.writes.push_back((own.clone(), update));
        }
        Ok(())
    }

    /// Adds the check that no child refers to these keys.
    fn forbids_children(
        &self,
        table: &Arc<Table>,
        upkeep: &Arc<Upkeep>,
        (number, action): (usize, ReferenceAction),
        vanished: Vec<KeyValues>,
        consequences: &mut Consequences,
    ) -> Result<()> {
        let is_deferred = upkeep.children[number].reference.deferral == Deferral::Deferred;
        let waits = is_deferred && action != ReferenceAction::Restrict;
        let side = (ReferenceSide::Child(number), waits);
        let check = self.reference_check(table, upkeep, side, vanished.into_iter())?;
        consequences.checks.extend(check);
        Ok(())
    }

    /// Returns the assignments of SET NULL and SET DEFAULT. `None` for CASCADE.
    fn assigned(
        &self,
        child: &ChildReference,
        action: ReferenceAction,
    ) -> Result<Option<Vec<(usize, Expr)>>> {
        let schema = &child.child.schema;
        let session = |value| self.session_value(value);
        let arguments = Arguments { values: &[], session: &session };
        let value = |&column: &usize| {
            let ty = schema.columns[column].ty;
            let default = schema.columns[column].default.as_ref();
            let value = match (action, default) {
                (ReferenceAction::SetDefault, Some(default)) => fold::value(default, &arguments)?,
                _ => Value::Null,
            };
            Ok((column, Expr::constant(value, ty)))
        };
        match action {
            ReferenceAction::SetNull | ReferenceAction::SetDefault => {
                child.reference.columns.iter().map(value).collect::<Result<_>>().map(Some)
            }
            ReferenceAction::Cascade | ReferenceAction::NoAction | ReferenceAction::Restrict => Ok(None),
        }
    }

    /// Deletes and inserts keys of the indexes of a table.
    async fn change_keys(
        &mut self,
        statement: &Write,
        owner: &Arc<Table>,
        removed: Vec<(&UniqueKey, Vec<KeyValues>)>,
        added: Vec<(&UniqueKey, Vec<KeyValues>)>,
    ) -> Result<()> {
        for (unique, keys) in removed {
            if keys.iter().all(|key| has_null(key)) {
                continue;
            }
            let table = unique.index.clone();
            let filter = Some(has_any_key(&table.schema, &table.schema.primary_key, &keys));
            let delete = Operation::Delete { table: table.id, filter, returning: Vec::new() };
            self.part(delete, statement, StatementPart::Other { table, owner: owner.clone() }).await?;
        }
        for (unique, keys) in added {
            let table = unique.index.clone();
            let rows: Vec<Row> =
                keys.into_iter().filter_map(|key| IndexDefinition::row(&table.schema, key)).collect();
            if rows.is_empty() {
                continue;
            }
            let insert = Operation::Insert { table: table.id, rows, returning: Vec::new() };
            self.part(insert, statement, StatementPart::Other { table, owner: owner.clone() }).await?;
        }
        Ok(())
    }

    /// Executes the main part of a write of a table.
    async fn main_part(&mut self, operation: Operation, write: TableWrite<'_>) -> Result<WriteSum> {
        let TableWrite { statement, part, mut returned, hold, .. } = write;
        if self.defers {
            self.defer_part(operation, statement, part, (returned, hold))?;
            return Ok((0, Vec::new(), self.hold()));
        }
        let (changed, more) = self.part(operation, statement, part).await?;
        returned.extend(more);
        Ok((changed, returned, hold))
    }

    /// Executes or defers a part of a write. Returns the number of changed rows and the rows of RETURNING,
    /// unless it is deferred.
    async fn part(
        &mut self,
        operation: Operation,
        statement: &Write,
        part: StatementPart,
    ) -> Result<(u64, Vec<Row>)> {
        if self.defers {
            let nothing = (Vec::new(), self.hold());
            self.defer_part(operation, statement, part, nothing)?;
            return Ok((0, Vec::new()));
        }
        let (table, owner, origin) = match &part {
            StatementPart::First => (&statement.table, &statement.table, self.client_write()),
            StatementPart::Rows => (&statement.table, &statement.table, Origin::WritePart),
            StatementPart::Other { table, owner } => (table, owner, Origin::WritePart),
        };
        let within = |error: SqlError| of_table(error.within(&table.schema), owner);
        let stream = self.attempt(operation, Compared::All, table, origin).await.map_err(within)?;
        written_rows(stream).await
    }

    /// Reads the old values of some columns of the rows that a write changes, and the values that
    /// `assignments` give them.
    async fn old_rows(
        &mut self,
        table: &Table,
        filter: Option<Expr>,
        columns: BTreeSet<usize>,
        assignments: Option<&[(usize, Expr)]>,
    ) -> Result<OldRows> {
        let columns: Vec<usize> = columns.into_iter().collect();
        if columns.is_empty() {
            return Ok(OldRows { columns, rows: Vec::new() });
        }
        let mut output: Vec<Expr> = columns.iter().map(|&column| column_of(&table.schema, column)).collect();
        if let Some(assignments) = assignments {
            let new = |&column: &usize| {
                let assigned = assignments.iter().find(|(assigned, _)| *assigned == column);
                assigned.map_or_else(|| column_of(&table.schema, column), |(_, value)| value.clone())
            };
            output.extend(columns.iter().map(new));
        }
        let rows = self.key_rows(table, filter, output).await?;
        Ok(OldRows { columns, rows })
    }

    /// Reads rows behind the block's earlier steps, and has them compared when the block commits.
    pub(super) async fn key_rows(
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

/// Refuses to truncate a table to which another table refers.
fn refuse_truncation(write: &Write, upkeep: &Upkeep) -> Result<()> {
    let is_other = |child: &&ChildReference| child.child.id != write.table.id;
    let (Action::Truncate, Some(child)) = (&write.action, upkeep.children.iter().find(is_other)) else {
        return Ok(());
    };
    let (child, parent) = (&child.child.schema.name, &write.table.schema.name);
    Err(SqlError::new(
        code::FEATURE_NOT_SUPPORTED,
        "cannot truncate a table referenced in a foreign key constraint",
    )
    .detail(format!("Table \"{child}\" references \"{parent}\"."))
    .hint(format!("DELETE FROM {parent} checks each reference.")))
}

/// Returns the columns of the keys whose conflicts ON CONFLICT handles.
fn arbiters(statement: &Write, table: &Table, upkeep: &Upkeep) -> Vec<Vec<usize>> {
    let Action::Insert { conflict: Some(on), .. } = &statement.action else { return Vec::new() };
    let primary_key = &table.schema.primary_key;
    let primary = (!primary_key.is_empty()).then(|| primary_key.clone());
    let uniques = upkeep.uniques.iter().map(|unique| unique.columns.clone());
    match on.arbiter {
        Arbiter::Any => primary.into_iter().chain(uniques).collect(),
        Arbiter::PrimaryKey => primary.into_iter().collect(),
        Arbiter::Unique(number) => uniques.skip(number).take(1).collect(),
    }
}

/// Returns the keys of rows. Some may have NULL.
fn keys_of(unique: &UniqueKey, rows: &[Row]) -> Vec<KeyValues> {
    rows.iter().map(|row| key_of_row(&unique.columns, row)).collect()
}

fn no_result() -> SqlError {
    SqlError::new(code::INTERNAL_ERROR, "a write was applied and has no result")
}
