//! References in definitions: the effect of CREATE TABLE, ALTER TABLE and DROP TABLE on the other table.
//!
//! **A new reference gives its parent a new number.** A gateway that is behind does not know the reference.
//! That gateway would delete a row of the parent without a look at the child. So the message that makes the
//! reference also ends the parent's number, and the parent goes on under another number with the same
//! definition. From that position on, every statement that was bound without the reference is refused, and
//! bound again.
//!
//! ```text
//! gateway A                             routers                          gateway B, behind
//!   create table line (                 @50  line is table 9
//!     book int references book)   ───▶       book was 7, is 8
//!   insert into line values (3)   ───▶  @51  reads book 8: 3 exists
//!                                       @52  table 7 has ended      ◀───  delete from book (7) where id = 3
//!                                       @53  8 has 3, line refers   ◀───  bound again: 23503
//! ```
//!
//! **The end of a reference** needs no new number of the parent. A gateway that is behind still asks the
//! child by its earlier number, which has ended with the reference. So that statement is refused, too.
//!
//! **Existing rows.** ADD FOREIGN KEY first makes the reference, so that no statement can break it from that
//! position on. Then the session looks for rows that break it. If there are any, it takes the reference back.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use quorate_table::{
    alter::Alteration,
    constraint::{Constraint, Reference},
    engine::Answer,
    expr::{Expr, Unary},
    operation::{Output, Select},
    schema::{Schema, TableId},
    value::key_of,
};

use super::{
    Session,
    key_condition::{KeyValues, column_of, has_any_key},
    reference::{converted, missing_parent},
};
use crate::{
    backend::{AnswerStream, Catalog, Definition, Strength, Table, next_of},
    budget::weight,
    error::{Result, SqlError, code},
    fault,
    statement::upkeep::positions,
};

/// Maximum number of keys that are looked up in a parent together.
const KEYS_MAX: usize = 10_000;

/// Number of times that a key without a parent is looked up again. A row that another session changes in
/// the meantime may be read without its parent.
const LOOKS: usize = 3;

/// A reference to a table that is about to be dropped.
pub(super) struct Dependent {
    child: Arc<Table>,
    reference: Reference,
}

/// Returns the definition that gives a table another number.
pub(super) fn renumber(table: &Table) -> Definition {
    Definition::Alter { table: table.id, alteration: Alteration::of_definition(table.schema.clone()) }
}

/// Returns the references of other tables to these tables.
pub(super) fn dependents(catalog: &Catalog, tables: &[Arc<Table>]) -> Vec<Dependent> {
    let others = catalog.tables.iter().filter(|table| tables.iter().all(|dropped| dropped.id != table.id));
    let mut dependents = Vec::new();
    for child in others {
        for reference in child.schema.references() {
            if tables.iter().any(|dropped| dropped.schema.name == reference.parent) {
                dependents.push(Dependent { child: child.clone(), reference: reference.clone() });
            }
        }
    }
    dependents
}

/// Refuses to drop tables to which other tables refer.
pub(super) fn refuse_dependents(tables: &[Arc<Table>], dependents: &[Dependent]) -> Result<()> {
    if dependents.is_empty() {
        return Ok(());
    }
    let message = match tables {
        [table] => format!("cannot drop table {} because other objects depend on it", table.schema.name),
        _ => "cannot drop desired object(s) because other objects depend on them".to_owned(),
    };
    let line = |Dependent { child, reference: Reference { name, parent, .. } }: &Dependent| {
        format!("constraint {name} on table {} depends on table {parent}", child.schema.name)
    };
    let lines: Vec<String> = dependents.iter().map(line).collect();
    Err(SqlError::new(code::DEPENDENT_OBJECTS, message)
        .detail(lines.join("\n"))
        .hint("Use DROP ... CASCADE to drop the dependent objects too."))
}

/// Returns the definitions that take references from their tables, and the notice for the client.
pub(super) fn without(dependents: &[Dependent]) -> (Vec<Definition>, Option<SqlError>) {
    let mut freed: BTreeMap<TableId, Schema> = BTreeMap::new();
    let mut lines = Vec::new();
    for Dependent { child, reference } in dependents {
        let schema = freed.entry(child.id).or_insert_with(|| child.schema.clone());
        schema.constraints.retain(|constraint| constraint.name() != reference.name);
        lines.push(format!("constraint {} on table {}", reference.name, child.schema.name));
    }
    let alter = |(table, schema)| Definition::Alter { table, alteration: Alteration::of_definition(schema) };
    let notice = match &lines[..] {
        [] => None,
        [line] => Some(SqlError::new("00000", format!("drop cascades to {line}"))),
        lines => {
            let detail: Vec<String> = lines.iter().map(|line| format!("drop cascades to {line}")).collect();
            let notice = SqlError::new("00000", format!("drop cascades to {} other objects", lines.len()));
            Some(notice.detail(detail.join("\n")))
        }
    };
    (freed.into_iter().map(alter).collect(), notice)
}

/// Adds references, which are over the columns of another definition, to a definition. `source` maps the
/// columns.
pub(super) fn with_references<'a>(
    mut schema: Schema,
    references: impl Iterator<Item = &'a Reference>,
    source: impl Fn(usize) -> usize,
) -> Schema {
    for reference in references {
        let columns = reference.columns.iter().map(|column| source(*column)).collect();
        schema.constraints.push(Constraint::Reference(Reference { columns, ..reference.clone() }));
    }
    schema
}

impl Session {
    /// Returns the error of a new reference if a row of the table breaks it, or if the rows cannot be read.
    pub(super) async fn broken_reference(&mut self, table: &str, constraint: &str) -> Option<SqlError> {
        self.look_for_parents(table, constraint).await.err()
    }

    async fn look_for_parents(&mut self, table: &str, constraint: &str) -> Result<()> {
        let catalog = self.backend.catalog();
        let changed = || {
            let message = "another session altered or dropped the table meanwhile";
            SqlError::new(code::SERIALIZATION_FAILURE, message)
        };
        let child = catalog.table(table).ok_or_else(changed)?;
        let named = |reference: &&Reference| reference.name == constraint;
        let reference = child.schema.references().find(named).ok_or_else(changed)?;
        let parent = catalog.table(&reference.parent).ok_or_else(changed)?;
        let parent_columns = positions(&parent.schema, &reference.parent_columns).ok_or_else(changed)?;
        let look = Look { child, reference, parent, parent_columns };
        let has_value = |&column: &usize| {
            let is_null = Expr::IsNull(Box::new(column_of(&child.schema, column)));
            Expr::Unary(Unary::Not, Box::new(is_null))
        };
        let filter = Expr::all(reference.columns.iter().map(has_value).collect());
        let mut stream = self.read_keys(child, &reference.columns, filter).await?;
        let mut hold = self.hold();
        let mut keys: BTreeMap<Vec<u8>, KeyValues> = BTreeMap::new();
        while let Some(piece) = next_of(&mut stream.parts).await {
            let answer = piece.and_then(|piece| piece.answer()).map_err(fault::read_error)?;
            let Answer::Rows(rows) = answer else { continue };
            for row in rows {
                if let Entry::Vacant(place) = keys.entry(key_of(&row)) {
                    hold.grow(weight(&row) + place.key().len())?;
                    place.insert(row);
                }
            }
            if keys.len() >= KEYS_MAX {
                self.look_up(&look, std::mem::take(&mut keys)).await?;
                hold = self.hold();
            }
        }
        self.look_up(&look, keys).await
    }

    /// Fails if one of these keys of the child is not in the parent.
    async fn look_up(&mut self, look: &Look<'_>, mut keys: BTreeMap<Vec<u8>, KeyValues>) -> Result<()> {
        let Look { child, reference, parent, parent_columns } = look;
        for number in 0..LOOKS {
            if number > 0 && !keys.is_empty() {
                // Only keys that the child still has.
                let sought: Vec<KeyValues> = keys.values().cloned().collect();
                let found = self.found(child, &reference.columns, &sought).await?;
                keys = found.into_iter().map(|key| (key_of(&key), key)).collect();
            }
            if keys.is_empty() {
                return Ok(());
            }
            let sought = converted(&parent.schema, parent_columns, keys.values());
            for found in self.found(parent, parent_columns, &sought).await? {
                keys.remove(&key_of(&found));
            }
        }
        match keys.values().next() {
            Some(key) => Err(missing_parent(&child.schema, reference, key)),
            None => Ok(()),
        }
    }

    /// Returns those of some keys that rows of a table have.
    async fn found(
        &mut self,
        table: &Table,
        columns: &[usize],
        keys: &[KeyValues],
    ) -> Result<Vec<KeyValues>> {
        let mut found = Vec::new();
        if keys.is_empty() {
            return Ok(found);
        }
        let mut hold = self.hold();
        let filter = has_any_key(&table.schema, columns, keys);
        let mut stream = self.read_keys(table, columns, filter).await?;
        while let Some(piece) = next_of(&mut stream.parts).await {
            let answer = piece.and_then(|piece| piece.answer()).map_err(fault::read_error)?;
            let Answer::Rows(rows) = answer else { continue };
            hold.grow(rows.iter().map(weight).sum())?;
            found.extend(rows);
        }
        Ok(found)
    }

    /// Reads some columns of the rows that a condition selects.
    async fn read_keys(&self, table: &Table, columns: &[usize], filter: Expr) -> Result<AnswerStream> {
        let columns = columns.iter().map(|&column| column_of(&table.schema, column)).collect();
        let output = Output::Rows { columns, order: Vec::new(), limit: None, distinct: false };
        let select = Select { table: table.id, filter: Some(filter), output };
        self.backend.read(Strength::Sequential, &select).await.map_err(fault::read_error)
    }
}

/// A reference whose rows are looked up.
struct Look<'a> {
    child: &'a Table,
    reference: &'a Reference,
    parent: &'a Table,
    /// The referenced columns, as indexes of the parent's columns.
    parent_columns: Vec<usize>,
}
