//! Executes CREATE INDEX and DROP INDEX.

use quorate_table::schema::TableId;

use super::{Session, StatementOutcome, write::DEFINITION_ATTEMPTS_MAX};
use crate::{
    backend::{Definition, OperationError},
    error::{Result, SqlError, code},
    fault,
    index::{self, IndexDefinition},
    statement::{
        create_index::CreateIndex,
        ddl::{CreateTable, DropTable, ProposedIndex},
    },
};

impl Session {
    /// Returns the definitions of the indexes of the UNIQUE constraints of a table that is about to be
    /// created, under names that are free. Fails if a given name is not free.
    pub(super) fn new_indexes(&self, create: &CreateTable) -> Result<Vec<Definition>> {
        let mut definitions = Vec::new();
        let mut names = vec![create.schema.name.clone(), create.schema.key_name()];
        for ProposedIndex { definition, is_named } in &create.indexes {
            let index = self.named_index(definition.clone(), *is_named, &names);
            let (index, left) = index.ok_or_else(|| taken(&definition.name))?;
            names.push(index.name.clone());
            definitions.extend(left.map(|table| Definition::Drop { table }));
            definitions.push(Definition::Create { schema: index.schema(), replicas: None });
        }
        Ok(definitions)
    }

    /// Gives an index a name that is free in the catalog and not among `others`. `None` if its given name is
    /// not free. Also returns an index of this name that has to be dropped, because its table is gone.
    fn named_index(
        &self,
        mut index: IndexDefinition,
        is_named: bool,
        others: &[String],
    ) -> Option<(IndexDefinition, Option<TableId>)> {
        let catalog = self.backend.catalog();
        let proposed = index.name.clone();
        let mut number = 0;
        loop {
            let is_key = catalog.tables.iter().any(|table| {
                !table.schema.primary_key.is_empty()
                    && !index::is_index(&table.schema)
                    && table.schema.key_name() == index.name
            });
            let known = catalog.table(&index.name);
            let left = known.filter(|table| {
                IndexDefinition::of(&table.schema).is_some_and(|left| !left.is_attached(&catalog))
            });
            if !is_key && !others.contains(&index.name) && (known.is_none() || left.is_some()) {
                return Some((index, left.map(|table| table.id)));
            }
            if is_named {
                return None;
            }
            number += 1;
            index.name = format!("{proposed}{number}");
        }
    }

    pub(super) async fn create_index(&mut self, create: &CreateIndex) -> Result<StatementOutcome> {
        let mut attempt = 1;
        let index = loop {
            let known = self.backend.catalog().version;
            let named = self.named_index(create.definition.clone(), create.is_named, &[]);
            let Some((index, left)) = named else {
                let exists = taken(&create.definition.name);
                if !create.if_not_exists {
                    return Err(exists);
                }
                let notice = format!("{}, skipping", exists.message);
                self.notices.push(SqlError::new(code::DUPLICATE_TABLE, notice));
                return Ok(StatementOutcome::Done("CREATE INDEX".to_owned()));
            };
            let mut definitions: Vec<Definition> =
                left.into_iter().map(|table| Definition::Drop { table }).collect();
            definitions.push(Definition::Create { schema: index.schema(), replicas: None });
            match self.define(definitions).await {
                Ok(()) => break index,
                // Another gateway may have taken the name first. The next round then finds the name taken.
                Err(OperationError::Failed(failure))
                    if failure.sqlstate == code::DUPLICATE_TABLE && attempt < DEFINITION_ATTEMPTS_MAX =>
                {
                    attempt += 1;
                    self.await_definitions(known).await;
                }
                Err(fault) => return Err(fault::unnamed_error(fault)),
            }
        };
        self.has_defined("CREATE INDEX");
        let message = format!("index \"{}\" is recorded, and has no effect", index.name);
        let notice = SqlError::new("00000", message)
            .detail("A scan answers all queries of a table together, so an index makes none of them faster.");
        self.notices.push(notice);
        Ok(StatementOutcome::Done("CREATE INDEX".to_owned()))
    }

    pub(super) async fn drop_index(&mut self, drop: &DropTable) -> Result<StatementOutcome> {
        let catalog = self.backend.catalog();
        let mut tables = Vec::with_capacity(drop.names.len());
        for name in &drop.names {
            let indexes = catalog.table(name).filter(|table| index::is_index(&table.schema));
            if let Some(table) = indexes {
                let index = IndexDefinition::of(&table.schema);
                if let Some(owner) = index.filter(|index| index.is_constraint()) {
                    return Err(needed_by_constraint(name, &owner.table));
                }
                tables.push(table.id);
                continue;
            }
            if catalog.table(name).is_some() {
                return Err(SqlError::new("42809", format!("\"{name}\" is not an index")));
            }
            let keyed = catalog
                .tables
                .iter()
                .find(|table| !table.schema.primary_key.is_empty() && table.schema.key_name() == *name);
            if let Some(table) = keyed {
                return Err(needed_by_constraint(name, &table.schema.name));
            }
            if !drop.if_exists {
                let message = format!("index \"{name}\" does not exist");
                return Err(SqlError::new("42704", message));
            }
            let notice = format!("index \"{name}\" does not exist, skipping");
            self.notices.push(SqlError::new("00000", notice));
        }
        if !tables.is_empty() {
            self.remove(tables).await?;
            self.has_defined("DROP INDEX");
        }
        Ok(StatementOutcome::Done("DROP INDEX".to_owned()))
    }

    /// Returns the indexes of a table.
    pub(super) fn indexes_of(&self, table: &str) -> Vec<TableId> {
        let catalog = self.backend.catalog();
        let indexes = index::all(&catalog).filter(|(_, index)| index.table == table);
        indexes.map(|(table, _)| table.id).collect()
    }
}

fn taken(name: &str) -> SqlError {
    SqlError::new(code::DUPLICATE_TABLE, format!("relation \"{name}\" already exists"))
}

fn needed_by_constraint(name: &str, table: &str) -> SqlError {
    let message = format!("cannot drop index {name} because constraint {name} on table {table} requires it");
    SqlError::new(code::DEPENDENT_OBJECTS, message)
        .hint(format!("You can drop constraint {name} on table {table} instead."))
}
