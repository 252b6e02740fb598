//! Executes the calls of sequence functions, and statements that create or drop sequences.
//!
//! A statement's calls are executed once, in order, before the statement itself. Their results are values of
//! the session, like the time. So the rest of the statement sees constants, and a retry sends the same rows.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use quorate_table::{
    expr::Expr,
    schema::{Column, Schema, TableId},
    value::{Type, Value},
};

use super::{Session, StatementOutcome, in_flight::InFlight};
use crate::{
    backend::{Catalog, Definition, OperationError},
    error::{Result, SqlError, code},
    fault,
    sequence::{self, Sequence, SequenceCall, SequenceDefinition, SequenceName},
    statement::{
        create_sequence::CreateSequence,
        ddl::{CreateTable, DropTable},
        fold,
        parameters::Arguments,
    },
};

impl Session {
    /// Executes the calls of a statement.
    pub(super) async fn call_sequences(&mut self, calls: &[SequenceCall], values: &[Value]) -> Result<()> {
        self.numbers.results.clear();
        // Numbers of each sequence that were drawn for later calls of the statement.
        let mut drawn: BTreeMap<TableId, VecDeque<i64>> = BTreeMap::new();
        for (index, call) in calls.iter().enumerate() {
            let number = match call {
                SequenceCall::Next(name) => {
                    self.check_read_only("nextval()")?;
                    let sequence = self.sequence(name, values)?;
                    let id = sequence.table.id;
                    let ready = drawn.entry(id).or_default();
                    if ready.is_empty() {
                        let count = calls_of(id, &calls[index..]).max(1);
                        ready.extend(self.cache.numbers().take(&self.backend, &sequence, count).await?);
                    }
                    let number = ready.pop_front().ok_or_else(|| {
                        SqlError::new(code::INTERNAL_ERROR, "a sequence gave fewer numbers than were drawn")
                    })?;
                    self.numbers.record(id, number);
                    number
                }
                SequenceCall::Current(name) => {
                    let sequence = self.sequence(name, values)?;
                    *self.numbers.latest.get(&sequence.table.id).ok_or_else(|| {
                        let name = &sequence.definition.name;
                        undefined(&format!("currval of sequence \"{name}\""))
                    })?
                }
                SequenceCall::Last => {
                    let last = self.numbers.last.and_then(|last| self.numbers.latest.get(&last));
                    *last.ok_or_else(|| undefined("lastval"))?
                }
                SequenceCall::Set { sequence, value, is_called } => {
                    self.check_read_only("setval()")?;
                    let sequence = self.sequence(sequence, values)?;
                    let (value, is_called) =
                        (self.argument(value, values)?, self.argument(is_called, values)?);
                    // setval of NULL does nothing, as in PostgreSQL.
                    let (Some(value), Value::Bool(is_called)) = (value.as_integer(), is_called) else {
                        self.numbers.results.push(Value::Null);
                        continue;
                    };
                    drawn.remove(&sequence.table.id);
                    self.set_sequence(&sequence, value, is_called).await?;
                    if is_called {
                        self.numbers.latest.insert(sequence.table.id, value);
                    }
                    value
                }
            };
            self.numbers.results.push(Value::Int8(number));
        }
        Ok(())
    }

    /// Gives each call a number without drawing one, for EXPLAIN.
    pub(super) fn pretend_sequences(&mut self, calls: &[SequenceCall]) {
        self.numbers.results = vec![Value::Int8(0); calls.len()];
    }

    fn argument(&self, expr: &Expr, values: &[Value]) -> Result<Value> {
        let session = |value| self.session_value(value);
        fold::value(expr, &Arguments { values, session: &session })
    }

    fn sequence(&self, name: &SequenceName, values: &[Value]) -> Result<Arc<Sequence>> {
        match name {
            SequenceName::Known(sequence) => Ok(sequence.clone()),
            SequenceName::Computed(text) => match self.argument(text, values)? {
                Value::Text(text) => sequence::named(&self.backend.catalog(), &text),
                _ => Err(SqlError::new("22004", "the name of a sequence must not be NULL")),
            },
        }
    }

    async fn set_sequence(&mut self, sequence: &Sequence, value: i64, is_called: bool) -> Result<()> {
        self.cache.numbers().set(&self.backend, sequence, value, is_called).await
    }

    /// Refuses to restart sequences in a block. ROLLBACK could not undo the restart, and the sequence would
    /// give the numbers of the rows that stay again.
    pub(super) fn check_restart(&self, table: &str) -> Result<()> {
        if !self.is_in_block() || self.owned_sequences(table).is_empty() {
            return Ok(());
        }
        Err(SqlError::unsupported("TRUNCATE … RESTART IDENTITY in a transaction block")
            .hint("Commit first, or call setval after COMMIT."))
    }

    /// Sets the sequences that belong to columns of a table to their first numbers.
    pub(super) async fn restart_sequences(&mut self, table: &str) -> Result<()> {
        for name in self.owned_sequences(table) {
            let sequence = sequence::find(&self.backend.catalog(), &name)?;
            self.set_sequence(&sequence, sequence.definition.start, false).await?;
        }
        Ok(())
    }

    /// Returns the names of the sequences that belong to columns of a table.
    fn owned_sequences(&self, table: &str) -> Vec<String> {
        let catalog = self.backend.catalog();
        let sequences = catalog.tables.iter().filter_map(|table| SequenceDefinition::of(&table.schema));
        let owned =
            sequences.filter(|sequence| sequence.owner.as_ref().is_some_and(|owner| owner.table == table));
        owned.map(|sequence| sequence.name).collect()
    }

    /// Returns the definitions of the sequences of a table that is about to be created, under names that are
    /// free and that its columns use from then on.
    pub(super) fn new_sequences(&self, create: &CreateTable, schema: &mut Schema) -> Vec<Definition> {
        let catalog = self.backend.catalog();
        let mut definitions = Vec::new();
        for (column, wanted) in &create.sequences {
            let mut sequence = wanted.clone();
            let mut number = 0;
            while let Some(known) = catalog.table(&sequence.name) {
                // A gateway of an earlier build made the sequence and ended before it made the table. The new
                // table takes the sequence over.
                if SequenceDefinition::of(&known.schema).as_ref() == Some(&sequence) {
                    break;
                }
                number += 1;
                sequence.name = format!("{}{number}", wanted.name);
            }
            let column = &mut schema.columns[*column];
            column.default = Some(sequence::nextval(&sequence.name, column.ty));
            if catalog.table(&sequence.name).is_none() {
                definitions.push(Definition::Create { schema: sequence.schema(), replicas: None });
            }
        }
        definitions
    }

    pub(super) async fn create_sequence(&mut self, create: &CreateSequence) -> Result<StatementOutcome> {
        let done = || Ok(StatementOutcome::Done("CREATE SEQUENCE".to_owned()));
        let name = &create.definition.name;
        let exists = SqlError::new(code::DUPLICATE_TABLE, format!("relation \"{name}\" already exists"));
        let error = if self.backend.catalog().table(name).is_some() {
            exists
        } else {
            match self
                .define(vec![Definition::Create { schema: create.definition.schema(), replicas: None }])
                .await
            {
                Ok(()) => {
                    self.has_defined("CREATE SEQUENCE");
                    return done();
                }
                // Another gateway may have taken the name first. The statement then fails as if it had found
                // the name taken.
                Err(OperationError::Failed(failure)) if failure.sqlstate == code::DUPLICATE_TABLE => {
                    failure.into()
                }
                Err(fault) => return Err(fault::unnamed_error(fault)),
            }
        };
        if !create.if_not_exists {
            return Err(error);
        }
        let notice = format!("relation \"{name}\" already exists, skipping");
        self.notices.push(SqlError::new(code::DUPLICATE_TABLE, notice));
        done()
    }

    /// Changes the tables: all changes take effect at one position, or none does.
    pub(super) async fn define(
        &mut self,
        definitions: Vec<Definition>,
    ) -> std::result::Result<(), OperationError> {
        self.in_flight = Some(InFlight::Definition);
        let defined = self.backend.define(self.backend.request_id(), definitions).await;
        self.in_flight = None;
        defined
    }

    pub(super) async fn drop_sequence(&mut self, drop: &DropTable) -> Result<StatementOutcome> {
        if drop.names.len() > 1 {
            return Err(SqlError::unsupported("DROP SEQUENCE of several sequences at once"));
        }
        let catalog = self.backend.catalog();
        for name in &drop.names {
            let found = match sequence::find(&catalog, name) {
                Ok(found) => found,
                Err(error) if error.code == code::UNDEFINED_TABLE => {
                    if !drop.if_exists {
                        let message = format!("sequence \"{name}\" does not exist");
                        return Err(SqlError::new(code::UNDEFINED_TABLE, message));
                    }
                    let notice = format!("sequence \"{name}\" does not exist, skipping");
                    self.notices.push(SqlError::new("00000", notice));
                    continue;
                }
                Err(error) => return Err(error),
            };
            check_unused(&catalog, name)?;
            self.remove(vec![found.table.id]).await?;
            self.has_defined("DROP SEQUENCE");
        }
        Ok(StatementOutcome::Done("DROP SEQUENCE".to_owned()))
    }

    /// Returns the sequences that belong to columns of a table.
    pub(super) fn sequences_of(&self, table: &str) -> Vec<TableId> {
        let catalog = self.backend.catalog();
        let names = self.owned_sequences(table);
        names.iter().filter_map(|name| Some(catalog.table(name)?.id)).collect()
    }

    /// Drops tables.
    pub(super) async fn remove(&mut self, tables: Vec<TableId>) -> Result<()> {
        let drops = tables.into_iter().map(|table| Definition::Drop { table }).collect();
        self.define(drops).await.map_err(fault::unnamed_error)
    }
}

/// Refuses to drop a sequence from which a column of a table takes its default.
fn check_unused(catalog: &Catalog, name: &str) -> Result<()> {
    let next = sequence::nextval(name, Type::Int8);
    for schema in catalog.tables.iter().map(|table| &table.schema) {
        let uses = |column: &&Column| match &column.default {
            Some(Expr::Cast(inner, _)) => **inner == next,
            Some(default) => *default == next,
            None => false,
        };
        if let Some(column) = schema.columns.iter().find(uses) {
            let message = format!("cannot drop sequence {name} because other objects depend on it");
            let (column, table) = (&column.name, &schema.name);
            return Err(SqlError::new(code::DEPENDENT_OBJECTS, message)
                .detail(format!(
                    "default value for column {column} of table {table} depends on sequence {name}"
                ))
                .hint("Drop the table, which drops its sequences, too."));
        }
    }
    Ok(())
}

/// Returns the number of calls that take the next number of a sequence, before the first that sets any
/// sequence or whose sequence is not known yet.
fn calls_of(sequence: TableId, calls: &[SequenceCall]) -> usize {
    let before = calls.iter().take_while(|call| {
        !matches!(call, SequenceCall::Set { .. } | SequenceCall::Next(SequenceName::Computed(_)))
    });
    let takes = |call: &&SequenceCall| match call {
        SequenceCall::Next(SequenceName::Known(known)) => known.table.id == sequence,
        _ => false,
    };
    before.filter(takes).count()
}

fn undefined(what: &str) -> SqlError {
    let message = format!("{what} is not yet defined in this session");
    SqlError::new(code::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
}
