//! What data goes into: its fields become values of columns, and rows are completed with defaults.

use std::sync::Arc;

use quorate_table::{
    failure::Failure,
    schema::Column,
    text::parse_text,
    value::{Row, Value},
};

use super::{lines::Record, tuples::Tuple};
use crate::{
    backend::Table,
    encode,
    error::{Result, SqlError, code},
    statement::{
        Field,
        copy::Format,
        parameters::{Arguments, SessionValue},
        write,
    },
    types::PgType,
};

/// Columns of a table.
pub(super) struct Target {
    table: Arc<Table>,
    columns: Vec<usize>,
    types: Vec<PgType>,
    /// A row of which nothing was given.
    defaults: Row,
}

impl Target {
    /// These columns; what the others get by default is settled now.
    pub(super) fn new(
        table: Arc<Table>,
        columns: Vec<usize>,
        session: &(dyn Fn(SessionValue) -> Value + Sync),
    ) -> Result<Self> {
        let none = Arguments { values: &[], session };
        let defaults = write::defaults(&table.schema)?
            .iter()
            .map(|expr| crate::statement::fold::value(expr, &none))
            .collect::<Result<Row>>()?;
        let types = columns.iter().map(|&column| Field::of(&table.schema.columns[column]).ty).collect();
        Ok(Target { table, columns, types, defaults })
    }

    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// How many columns data has.
    pub(super) fn columns(&self) -> usize {
        self.columns.len()
    }

    /// An error with where in the data it is.
    pub(super) fn context(&self, error: SqlError, line: u64, rest: Option<String>) -> SqlError {
        let table = &self.table.schema.name;
        error
            .within(&self.table.schema)
            .context(format!("COPY {table}, line {line}{}", rest.unwrap_or_default()))
    }

    /// The row of a line, whose number is told to say where a mistake is.
    pub(super) fn row(&self, record: &Record<'_>, format: &Format, line: u64) -> Result<Row> {
        let schema = &self.table.schema;
        let whole = || Some(format!(": \"{}\"", record.shown()));
        if record.fields.len() < self.columns.len() {
            let missing = &schema.columns[self.columns[record.fields.len()]].name;
            let error =
                SqlError::new(code::BAD_COPY_FILE_FORMAT, format!("missing data for column \"{missing}\""));
            return Err(self.context(error, line, whole()));
        }
        if record.fields.len() > self.columns.len() {
            let error = SqlError::new(code::BAD_COPY_FILE_FORMAT, "extra data after last expected column");
            return Err(self.context(error, line, whole()));
        }
        let mut row = self.defaults.clone();
        for (index, (field, &position)) in record.fields.iter().zip(&self.columns).enumerate() {
            let column = &schema.columns[position];
            let text = match field {
                None if format.force_not_null.contains(&index) => Some(format.null.as_str()),
                text => text.as_deref(),
            };
            row[position] = match text {
                None => Value::Null,
                Some(text) => read(column, text).map_err(|failure| {
                    let rest = format!(", column {}: \"{text}\"", column.name);
                    self.context(failure.into(), line, Some(rest))
                })?,
            };
        }
        write::check_not_null(schema, &row).map_err(|error| self.context(error, line, whole()))?;
        Ok(row)
    }

    /// The row of a row in binary.
    pub(super) fn row_of_tuple(&self, tuple: &Tuple, line: u64) -> Result<Row> {
        let schema = &self.table.schema;
        let (found, expected) = (tuple.fields.len(), self.columns.len());
        if found != expected {
            let what = format!("row field count is {found}, expected {expected}");
            return Err(self.context(SqlError::new(code::BAD_COPY_FILE_FORMAT, what), line, None));
        }
        let mut row = self.defaults.clone();
        for ((field, &position), ty) in tuple.fields.iter().zip(&self.columns).zip(&self.types) {
            let column = &schema.columns[position];
            row[position] = match field {
                None => Value::Null,
                Some(bytes) => {
                    encode::from_binary(bytes, *ty).and_then(|value| Ok(fitted(column, value)?)).map_err(
                        |error| self.context(error, line, Some(format!(", column {}", column.name))),
                    )?
                }
            };
        }
        write::check_not_null(schema, &row).map_err(|error| self.context(error, line, None))?;
        Ok(row)
    }
}

/// A field's text as its column stores it.
fn read(column: &Column, text: &str) -> std::result::Result<Value, Failure> {
    fitted(column, parse_text(column.ty, text)?)
}

/// A value with its column's precision or length.
fn fitted(column: &Column, value: Value) -> std::result::Result<Value, Failure> {
    match column.modifier {
        None => Ok(value),
        Some(modifier) => modifier.fit(value),
    }
}
