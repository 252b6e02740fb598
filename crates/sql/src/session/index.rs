//! Executes CREATE INDEX and DROP INDEX.

use super::{Session, StatementOutcome};
use crate::{
    backend::OperationError,
    error::{Result, SqlError, code},
    fault,
    index::{self, IndexDefinition},
    statement::{
        create_index::CreateIndex,
        ddl::{CreateTable, DropTable, ProposedIndex},
    },
};

impl Session {
    /// Creates the indexes of the UNIQUE constraints of a table that is about to be created.
    pub(super) async fn create_indexes(&mut self, create: &CreateTable) -> Result<()> {
        for ProposedIndex { definition, is_named } in &create.indexes {
            if !self.record(&mut definition.clone(), *is_named).await? {
                let message = format!("relation \"{}\" already exists", definition.name);
                return Err(SqlError::new(code::DUPLICATE_TABLE, message));
            }
        }
        Ok(())
    }

    /// Creates the table of an index. Changes the proposed name of an index that has no name until it is free.
    /// Returns false if the given name is not free.
    async fn record(&mut self, definition: &mut IndexDefinition, is_named: bool) -> Result<bool> {
        let proposed = definition.name.clone();
        let mut number = 0;
        loop {
            let catalog = self.backend.catalog();
            let known = catalog.table(&definition.name).cloned();
            let is_key = catalog.tables.iter().any(|table| {
                !table.schema.primary_key.is_empty()
                    && !index::is_index(&table.schema)
                    && table.schema.key_name() == definition.name
            });
            match known.as_ref().and_then(|table| IndexDefinition::of(&table.schema)) {
                // The gateway that dropped the indexed table ended before it dropped this index.
                Some(left) if !left.is_attached(&catalog) => {
                    self.remove(known.expect("the index has a table").id).await?;
                    continue;
                }
                _ if known.is_some() || is_key => {}
                _ => match self.define(definition.schema()).await {
                    Ok(()) => return Ok(true),
                    // Another gateway may have taken the name first.
                    Err(OperationError::Failed(failure)) if failure.sqlstate == code::DUPLICATE_TABLE => {}
                    Err(fault) => return Err(fault::unnamed_error(fault)),
                },
            }
            if is_named {
                return Ok(false);
            }
            number += 1;
            definition.name = format!("{proposed}{number}");
        }
    }

    pub(super) async fn create_index(&mut self, create: &CreateIndex) -> Result<StatementOutcome> {
        let mut definition = create.definition.clone();
        if !self.record(&mut definition, create.is_named).await? {
            let message = format!("relation \"{}\" already exists", definition.name);
            if !create.if_not_exists {
                return Err(SqlError::new(code::DUPLICATE_TABLE, message));
            }
            self.notices.push(SqlError::new(code::DUPLICATE_TABLE, format!("{message}, skipping")));
            return Ok(StatementOutcome::Done("CREATE INDEX".to_owned()));
        }
        self.has_defined("CREATE INDEX");
        let message = format!("index \"{}\" is recorded, and has no effect", definition.name);
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
        for table in tables {
            self.remove(table).await?;
            self.has_defined("DROP INDEX");
        }
        Ok(StatementOutcome::Done("DROP INDEX".to_owned()))
    }

    /// Drops the indexes of a dropped table.
    pub(super) async fn drop_indexes_of(&mut self, table: &str) -> Result<()> {
        let catalog = self.backend.catalog();
        let indexes = index::all(&catalog).filter(|(_, index)| index.table == table);
        let indexes: Vec<_> = indexes.map(|(table, _)| table.id).collect();
        for index in indexes {
            self.remove(index).await?;
        }
        Ok(())
    }
}

fn needed_by_constraint(name: &str, table: &str) -> SqlError {
    let message = format!("cannot drop index {name} because constraint {name} on table {table} requires it");
    SqlError::new("2BP01", message)
        .hint(format!("You can drop constraint {name} on table {table} instead."))
}
