//! References: the rows that a write needs in parent tables, and the rows that it must not leave in child
//! tables.
//!
//! The gateway reads the keys behind the block's steps, and the results are compared when the block commits.
//! So a parent that another transaction deletes meanwhile, or a child that it adds, is a conflict.
//!
//! ```text
//! insert into line (book) values (7)
//!   1  insert into line …
//!   2  select id from book where id in (7)          compared: the parent exists
//!
//! delete from book where id = 7
//!   1  select id from book where id = 7             the gateway reads the keys that vanish
//!   2  delete from book where id = 7
//!   3  select book from line where book in (7)      compared: no row refers to the key
//! ```
//!
//! **When.** A check is made at the end of its statement. If the statement is deferred, or the constraint is
//! INITIALLY DEFERRED, the check waits until the results are needed, and until COMMIT at the latest. A row
//! that has gone by then needs no parent.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use quorate_table::{
    constraint::Reference,
    schema::Schema,
    value::{Type, Value, key_of},
};

use super::{
    Session,
    block::TransactionBlock,
    key_condition::{KeyValues, column_of, has_any_key, has_null},
    reference_check::{ReferenceCheck, ReferenceSide},
};
use crate::{
    backend::Table,
    budget::weight,
    error::{Result, SqlError},
    statement::upkeep::{ChildReference, ParentReference, Upkeep},
};

/// Code 23503: a row refers to no row.
const FOREIGN_KEY_VIOLATION: &str = "23503";

/// Maximum number of keys that are read together.
const KEYS_MAX: usize = 10_000;

impl Session {
    /// Makes a check of these keys, except those with NULL. `None` if there are none.
    pub(super) fn reference_check(
        &self,
        table: &Arc<Table>,
        upkeep: &Arc<Upkeep>,
        (side, waits): (ReferenceSide, bool),
        keys: impl Iterator<Item = KeyValues>,
    ) -> Result<Option<ReferenceCheck>> {
        let mut hold = self.hold();
        let mut distinct = BTreeMap::new();
        for key in keys.filter(|key| !has_null(key)) {
            if let Entry::Vacant(place) = distinct.entry(key_of(&key)) {
                hold.grow(weight(&key) + place.key().len())?;
                place.insert(key);
            }
        }
        let keys: Vec<KeyValues> = distinct.into_values().collect();
        let (table, upkeep) = (table.clone(), upkeep.clone());
        Ok((!keys.is_empty()).then_some(ReferenceCheck { table, upkeep, side, waits, keys, _hold: hold }))
    }

    /// Makes the checks that were put off until COMMIT. The block ends if one fails.
    pub(super) async fn check_at_commit(&mut self) -> Result<()> {
        let TransactionBlock::Open(open) = &mut self.block else { return Ok(()) };
        let mut checks = std::mem::take(&mut open.checks);
        checks.extend(open.deferred.iter_mut().flat_map(|write| std::mem::take(&mut write.checks)));
        if checks.is_empty() {
            return Ok(());
        }
        let checked = self.check_references(checks).await;
        if checked.is_err() {
            self.drop_block();
        }
        checked
    }

    /// Makes checks. Those of one reference are made together.
    pub(super) async fn check_references(&mut self, mut checks: Vec<ReferenceCheck>) -> Result<()> {
        while !checks.is_empty() {
            let mut check = checks.remove(0);
            let (same, others) = checks.into_iter().partition(|other: &ReferenceCheck| {
                other.side == check.side && Arc::ptr_eq(&other.upkeep, &check.upkeep)
            });
            checks = others;
            let mut keys: BTreeMap<Vec<u8>, KeyValues> = BTreeMap::new();
            let all = std::mem::take(&mut check.keys).into_iter();
            for key in all.chain(same.iter().flat_map(|check| check.keys.iter().cloned())) {
                keys.insert(key_of(&key), key);
            }
            let upkeep = check.upkeep.clone();
            match check.side {
                ReferenceSide::Parent(number) => {
                    self.check_parents(&check.table, &upkeep.parents[number], keys).await?;
                }
                ReferenceSide::Child(number) => {
                    self.check_children(&check.table, &upkeep.children[number], keys).await?;
                }
            }
        }
        Ok(())
    }

    /// Fails if a row of the table refers to one of these keys, and the parent does not have it.
    async fn check_parents(
        &mut self,
        table: &Arc<Table>,
        parent: &ParentReference,
        mut keys: BTreeMap<Vec<u8>, KeyValues>,
    ) -> Result<()> {
        let ParentReference { reference, parent, parent_columns } = parent;
        if let Some(parent) = parent {
            let sought = converted(&parent.schema, parent_columns, keys.values());
            for found in self.keys_in(parent, parent_columns, &sought).await? {
                keys.remove(&key_of(&found));
            }
        }
        if keys.is_empty() {
            return Ok(());
        }
        let missing: Vec<KeyValues> = keys.into_values().collect();
        let rows = self.keys_in(table, &reference.columns, &missing).await?;
        match rows.first() {
            Some(key) => Err(missing_parent(&table.schema, reference, key)),
            None => Ok(()),
        }
    }

    /// Fails if a child refers to one of these keys, and the table does not have it.
    async fn check_children(
        &mut self,
        table: &Arc<Table>,
        child: &ChildReference,
        keys: BTreeMap<Vec<u8>, KeyValues>,
    ) -> Result<()> {
        let ChildReference { reference, child, columns } = child;
        let vanished: Vec<KeyValues> = keys.into_values().collect();
        let sought = converted(&child.schema, &reference.columns, vanished.iter());
        let referring = self.keys_in(child, &reference.columns, &sought).await?;
        let mut referring: BTreeMap<Vec<u8>, KeyValues> =
            referring.into_iter().map(|key| (key_of(&key), key)).collect();
        if referring.is_empty() {
            return Ok(());
        }
        // A row that has the key again satisfies the reference.
        let sought = converted(&table.schema, columns, referring.values());
        for found in self.keys_in(table, columns, &sought).await? {
            referring.remove(&key_of(&found));
        }
        let Some(key) = referring.into_values().next() else { return Ok(()) };
        let (parent, child, name) = (&table.schema.name, &child.schema.name, &reference.name);
        let message = format!(
            "update or delete on table \"{parent}\" violates foreign key constraint \"{name}\" on table \"{child}\""
        );
        let shown = shown(&table.schema, columns, &key);
        let detail = format!("Key {shown} is still referenced from table \"{child}\".");
        Err(violation(message, detail, child, name))
    }

    /// Returns those of some keys that rows of a table have, one for each row.
    async fn keys_in(
        &mut self,
        table: &Arc<Table>,
        columns: &[usize],
        keys: &[KeyValues],
    ) -> Result<Vec<KeyValues>> {
        let mut found = Vec::new();
        for keys in keys.chunks(KEYS_MAX) {
            let filter = has_any_key(&table.schema, columns, keys);
            let output = columns.iter().map(|&column| column_of(&table.schema, column)).collect();
            found.extend(self.key_rows(table, Some(filter), output).await?);
        }
        Ok(found)
    }
}

/// Returns the error of a row whose parent does not exist.
pub(super) fn missing_parent(schema: &Schema, reference: &Reference, key: &[Value]) -> SqlError {
    let (child, name) = (&schema.name, &reference.name);
    let message = format!("insert or update on table \"{child}\" violates foreign key constraint \"{name}\"");
    let shown = shown(schema, &reference.columns, key);
    let detail = format!("Key {shown} is not present in table \"{}\".", reference.parent);
    violation(message, detail, child, name)
}

/// Returns keys in the types of some columns of another table. Leaves out those that its types cannot have.
pub(super) fn converted<'k>(
    schema: &Schema,
    columns: &[usize],
    keys: impl Iterator<Item = &'k KeyValues>,
) -> Vec<KeyValues> {
    let convert = |key: &KeyValues| {
        let values = key.iter().zip(columns).map(|(value, &column)| {
            let ty = schema.columns[column].ty;
            match value.as_integer() {
                _ if value.fits(ty) => Some(value.clone()),
                Some(number) => match ty {
                    Type::Int2 => number.try_into().ok().map(Value::Int2),
                    Type::Int4 => number.try_into().ok().map(Value::Int4),
                    Type::Int8 => Some(Value::Int8(number)),
                    _ => None,
                },
                None => None,
            }
        });
        values.collect()
    };
    keys.filter_map(convert).collect()
}

/// Shows the columns of a key and their values, as in `(a, b)=(1, 2)`.
fn shown(schema: &Schema, columns: &[usize], key: &[Value]) -> String {
    let names: Vec<&str> = columns.iter().map(|&column| &*schema.columns[column].name).collect();
    let values: Vec<String> = key.iter().map(|value| value.text().unwrap_or_default()).collect();
    format!("({})=({})", names.join(", "), values.join(", "))
}

fn violation(message: String, detail: String, table: &str, constraint: &str) -> SqlError {
    let mut error = SqlError::new(FOREIGN_KEY_VIOLATION, message).detail(detail);
    error.about.table = Some(table.to_owned());
    error.about.constraint = Some(constraint.to_owned());
    error
}
