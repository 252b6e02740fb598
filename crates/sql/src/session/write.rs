//! Executes statements that change rows, and statements that create or drop tables.

use std::{cmp::Ordering, collections::BTreeSet};

use quorate_table::{
    engine::Answer,
    eval::eval,
    expr::Expr,
    operation::{Conflict, Operation},
    schema::TableId,
    value::{Row, Value},
};

use super::{
    Session, StatementOutcome,
    in_flight::{InFlight, WriteRequest},
    reference_ddl::{dependents, refuse_dependents, renumber, without},
};
use crate::{
    backend::{Definition, OperationError},
    budget::{self, MemoryReservation},
    catalog,
    error::{Result, SqlError, code},
    fault,
    index::is_index,
    sequence::is_sequence,
    statement::{
        action::Action,
        ddl, fold,
        parameters::{Arguments, SessionValue},
        write::{self, Write},
    },
};

/// Maximum number of attempts of a definition, if other gateways take the names of its tables, indexes or
/// sequences.
pub(super) const DEFINITION_ATTEMPTS_MAX: usize = 8;

impl Session {
    pub(super) async fn write(&mut self, write: &Write, values: &[Value]) -> Result<StatementOutcome> {
        let session = |value| self.session_value(value);
        let arguments = Arguments { values, session: &session };
        let schema = &write.table.schema;
        let mut operation = operation(write, &arguments).map_err(|error| error.within(schema))?;
        if write.restarts {
            self.check_restart(&schema.name)?;
        }
        // An INSERT's rows come from the gateway, so the gateway computes RETURNING itself, in the order of
        // the rows.
        let mut hold = self.hold();
        let mut returned = match &operation {
            Operation::Insert { rows, .. } => returned(write, rows, &arguments, &mut hold)?,
            _ => Vec::new(),
        };
        let mut is_remembered = false;
        if let Some(upkeep) = write.upkeep.as_ref().filter(|upkeep| upkeep.concerns(&write.action)) {
            let are_remembered = !self.is_in_block() && remember_numbers(write, &mut operation, &arguments);
            if are_remembered {
                returned.clear();
            }
            let returned = ReturnedRows { rows: returned, hold, are_remembered };
            return self.write_with_upkeep(write, upkeep, operation, returned).await;
        }
        let (rows, more) = if self.is_in_block() {
            if self.defers {
                return self.defer_write(operation, write, returned, hold);
            }
            self.wait_for_row(&write.table, operation.filter()).await;
            self.attempt_write(operation, &write.table).await
        } else {
            let request = self.request()?;
            let is_numbered = remember_numbers(write, &mut operation, &arguments);
            self.in_flight = Some(InFlight::Write(request));
            let answered = self.backend.write(request.sent, operation).await;
            let written = self.written(answered, request);
            is_remembered = is_numbered && request.sent.repeated;
            written.map(|(rows, more)| (rows, if is_numbered { in_order(more) } else { more }))
        }
        .map_err(|error| error.within(schema))?;
        match (&write.action, is_remembered) {
            // An earlier attempt may have stored other numbers than this attempt drew.
            (_, true) => returned = more,
            (Action::Insert { conflict: None, .. }, false) => {}
            _ => returned.extend(more),
        }
        if write.restarts {
            self.restart_sequences(&schema.name).await?;
        }
        let tag = write::tag(write.action.verb(), rows);
        if write.fields.is_empty() {
            Ok(StatementOutcome::Done(tag))
        } else {
            Ok(StatementOutcome::Buffered(returned, tag, hold))
        }
    }

    /// Adds up the answers of a write. Marks the write as no longer in flight, because the caller reports its
    /// outcome.
    pub(super) fn written(
        &mut self,
        answered: std::result::Result<Vec<Answer>, OperationError>,
        request: WriteRequest,
    ) -> Result<(u64, Vec<Row>)> {
        self.in_flight = None;
        self.conclude_request(&answered);
        let write_error = |fault| fault::write_error(fault, request.name, request.sent.repeated);
        let answers = answered.map_err(write_error)?;
        let mut total = 0;
        let mut returned = Vec::new();
        for answer in answers {
            match answer {
                Answer::Written(ranges) => {
                    for range in ranges {
                        total += range.rows;
                        returned.extend(range.returning);
                    }
                }
                Answer::Failed(failure) => return Err(failure.into()),
                _ => {
                    return Err(SqlError::new(code::INTERNAL_ERROR, "a range answered a write with rows"));
                }
            }
        }
        Ok((total, returned))
    }

    pub(super) async fn create_table(&mut self, create: &ddl::CreateTable) -> Result<StatementOutcome> {
        let name = &create.schema.name;
        let exists = || SqlError::new(code::DUPLICATE_TABLE, format!("relation \"{name}\" already exists"));
        if self.backend.catalog().table(name).is_some() {
            return self.exists_already(create, exists());
        }
        // Indexes and sequences are made together with the table. Another gateway may take one of their names
        // first.
        let mut attempt = 1;
        loop {
            let mut schema = create.schema.clone();
            let mut definitions = self.new_indexes(create)?;
            definitions.extend(self.new_sequences(create, &mut schema));
            definitions.push(Definition::Create { schema, replicas: create.replicas });
            definitions.extend(create.parents.iter().map(|parent| renumber(parent)));
            let are_several = definitions.len() > 1;
            match self.define(definitions).await {
                Ok(()) => {
                    self.has_defined("CREATE TABLE");
                    return Ok(StatementOutcome::Done("CREATE TABLE".to_owned()));
                }
                Err(OperationError::Failed(failure)) if failure.sqlstate == code::DUPLICATE_TABLE => {
                    if self.backend.catalog().table(name).is_some() {
                        return self.exists_already(create, exists());
                    }
                    if !are_several || attempt == DEFINITION_ATTEMPTS_MAX {
                        return Err(failure.into());
                    }
                    attempt += 1;
                }
                Err(fault) => return Err(fault::unnamed_error(fault)),
            }
        }
    }

    fn exists_already(&mut self, create: &ddl::CreateTable, error: SqlError) -> Result<StatementOutcome> {
        if !create.if_not_exists {
            return Err(error);
        }
        let notice = format!("relation \"{}\" already exists, skipping", create.schema.name);
        self.notices.push(SqlError::new(code::DUPLICATE_TABLE, notice));
        Ok(StatementOutcome::Done("CREATE TABLE".to_owned()))
    }

    pub(super) async fn drop_table(&mut self, drop: &ddl::DropTable) -> Result<StatementOutcome> {
        let catalog = self.backend.catalog();
        let mut tables = Vec::with_capacity(drop.names.len());
        for name in &drop.names {
            match catalog.table(name) {
                Some(table) if is_sequence(&table.schema) => {
                    return Err(SqlError::new("42809", format!("\"{name}\" is not a table"))
                        .hint("Use DROP SEQUENCE to remove a sequence."));
                }
                Some(table) if is_index(&table.schema) => {
                    return Err(SqlError::new("42809", format!("\"{name}\" is not a table"))
                        .hint("Use DROP INDEX to remove an index."));
                }
                Some(table) => tables.push(table.clone()),
                None if drop.if_exists => {
                    let notice = format!("table \"{name}\" does not exist, skipping");
                    self.notices.push(SqlError::new("00000", notice));
                }
                None if catalog::is_relation(name) => {
                    return Err(SqlError::new(
                        "42809",
                        format!("\"{name}\" is part of the system catalog and cannot be dropped"),
                    ));
                }
                None => {
                    return Err(SqlError::new(
                        code::UNDEFINED_TABLE,
                        format!("table \"{name}\" does not exist"),
                    ));
                }
            }
        }
        let mut dropped: Vec<TableId> = Vec::new();
        for table in &tables {
            let name = &table.schema.name;
            dropped.push(table.id);
            dropped.extend(self.sequences_of(name));
            dropped.extend(self.indexes_of(name));
        }
        let dependents = dependents(&catalog, &tables);
        if !drop.cascades {
            refuse_dependents(&tables, &dependents)?;
        }
        let (freed, notice) = without(&dependents);
        self.notices.extend(notice);
        if !dropped.is_empty() {
            let mut seen = BTreeSet::new();
            dropped.retain(|table| seen.insert(*table));
            let drops = dropped.into_iter().map(|table| Definition::Drop { table });
            self.define(drops.chain(freed).collect()).await.map_err(fault::unnamed_error)?;
            self.has_defined("DROP TABLE");
        }
        Ok(StatementOutcome::Done("DROP TABLE".to_owned()))
    }
}

/// The rows of RETURNING that the gateway knows, and their memory.
pub(super) struct ReturnedRows {
    pub(super) rows: Vec<Row>,
    pub(super) hold: MemoryReservation,
    /// Whether the replicas return the rows, with a number behind by which they are sorted.
    pub(super) are_remembered: bool,
}

/// Returns the operation that the ranges execute for a write, with its arguments.
pub(super) fn operation(write: &Write, arguments: &Arguments<'_>) -> Result<Operation> {
    let table = write.table.id;
    let filtered = |filter: &Option<Expr>| filter.as_ref().map(|f| fold::substitute(f, arguments));
    let returning = || write.returning.iter().map(|expr| fold::substitute(expr, arguments)).collect();
    let assigned = |assignments: &[(usize, Expr)]| {
        let value = |(column, expr): &(usize, Expr)| (*column, fold::substitute(expr, arguments));
        assignments.iter().map(value).collect::<Vec<_>>()
    };
    Ok(match &write.action {
        Action::Insert { rows, conflict, .. } => {
            let mut computed = Vec::with_capacity(rows.len());
            for row in rows {
                let row: Row = row.iter().map(|expr| fold::value(expr, arguments)).collect::<Result<_>>()?;
                write::check_not_null(&write.table.schema, &row)?;
                computed.push(row);
            }
            let rows = computed;
            match conflict.as_ref().map(|on| &on.conflict) {
                None => Operation::Insert { table, rows, returning: Vec::new() },
                Some(Conflict::Skip) => {
                    Operation::Upsert { table, rows, conflict: Conflict::Skip, returning: returning() }
                }
                Some(Conflict::Update { assignments, filter }) => {
                    let (assignments, filter) = (assigned(assignments), filtered(filter));
                    let conflict = Conflict::Update { assignments, filter };
                    Operation::Upsert { table, rows, conflict, returning: returning() }
                }
            }
        }
        Action::Update { assignments, filter } => Operation::Update {
            table,
            assignments: assigned(assignments),
            filter: filtered(filter),
            returning: returning(),
        },
        Action::Delete { filter } => {
            Operation::Delete { table, filter: filtered(filter), returning: returning() }
        }
        Action::Truncate => Operation::Delete { table, filter: None, returning: Vec::new() },
    })
}

/// Lets the replicas compute RETURNING of an INSERT whose rows have numbers of sequences or random values, so
/// that they remember it, and a repetition of the statement returns the values that are stored. The last
/// column is a value by which the rows are sorted. Returns whether the INSERT is of this kind.
fn remember_numbers(write: &Write, operation: &mut Operation, arguments: &Arguments<'_>) -> bool {
    let (Action::Insert { rows, draws: true, .. }, Operation::Insert { returning, .. }) =
        (&write.action, operation)
    else {
        return false;
    };
    let is_result = |expr: &Expr| match expr {
        Expr::Parameter(number, _) => {
            SessionValue::from_number(*number).is_some_and(SessionValue::differs_by_row)
        }
        _ => false,
    };
    let numbered = |row: &Vec<Expr>| row.iter().position(|expr| fold::any(expr, &is_result));
    let Some(column) = rows.iter().find_map(numbered) else { return false };
    *returning = write.returning.iter().map(|expr| fold::substitute(expr, arguments)).collect();
    returning.push(Expr::Column(column, write.table.schema.columns[column].ty));
    true
}

/// Sorts rows by their last column, and removes the column.
pub(super) fn in_order(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by(|a, b| match (a.last(), b.last()) {
        (Some(a), Some(b)) => a.order(b),
        _ => Ordering::Equal,
    });
    for row in &mut rows {
        row.pop();
    }
    rows
}

/// Computes RETURNING over rows that the gateway knows.
fn returned(
    write: &Write,
    rows: &[Row],
    arguments: &Arguments<'_>,
    hold: &mut MemoryReservation,
) -> Result<Vec<Row>> {
    if write.returning.is_empty() {
        return Ok(Vec::new());
    }
    let returning: Vec<Expr> = write.returning.iter().map(|expr| fold::substitute(expr, arguments)).collect();
    let mut returned = Vec::with_capacity(rows.len());
    for row in rows {
        let row = returning.iter().map(|expr| Ok(eval(expr, row)?)).collect::<Result<Row>>()?;
        hold.grow(budget::weight(&row))?;
        returned.push(row);
    }
    Ok(returned)
}
