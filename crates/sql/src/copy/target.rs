//! The target of COPY: turns fields into values of columns, and fills in the defaults of columns that the
//! data lacks.

use std::sync::Arc;

use quorate_table::{
    cast::cast,
    failure::Failure,
    schema::{Column, Schema},
    text::parse_text,
    value::{Row, Type, Value},
};

use super::{
    lines::{Record, shown},
    tuples::Tuple,
};
use crate::{
    backend::{Catalog, Table},
    encode,
    error::{Result, SqlError, code},
    sequence::Sequence,
    statement::{
        Field,
        copy::Format,
        fold,
        parameters::{Arguments, SessionValue, ambiguous_time_error, is_local},
        write::{self, ColumnDefault},
    },
    types::PgType,
};

/// The columns of a table that the data fills.
pub(super) struct CopyTarget {
    table: Arc<Table>,
    columns: Vec<usize>,
    types: Vec<PgType>,
    /// A row that holds the default of every column.
    defaults: Row,
    /// The columns that take numbers from sequences, because the data lacks them. In `defaults` they are 0.
    numbered: Vec<(usize, Arc<Sequence>)>,
    /// The columns that take random values, because the data lacks them.
    random: Vec<usize>,
    /// The time zone that the client asked for, if the session uses another zone.
    rejected_time_zone: Option<String>,
}

impl CopyTarget {
    /// Creates the target, and computes the default of every column.
    pub(super) fn new(
        catalog: &Catalog,
        table: Arc<Table>,
        columns: Vec<usize>,
        session: &(dyn Fn(SessionValue) -> Value + Sync),
        rejected_time_zone: Option<&str>,
    ) -> Result<Self> {
        let none = Arguments { values: &[], session };
        let mut numbered = Vec::new();
        let default = |(index, default): (usize, ColumnDefault)| {
            let column = &table.schema.columns[index];
            match default {
                ColumnDefault::Value(default) => fold::value(&default, &none),
                _ if columns.contains(&index) => Ok(Value::Null),
                ColumnDefault::Next(sequence) => {
                    numbered.push((index, sequence));
                    Ok(cast(&Value::Int8(0), column.ty)?)
                }
                ColumnDefault::Missing => Err(write::no_sequence(&table.schema, column)),
            }
        };
        let defaults = write::defaults(catalog, &table.schema).into_iter().enumerate().map(default);
        let defaults = defaults.collect::<Result<Row>>()?;
        let is_random = |column: &usize| {
            let default = &table.schema.columns[*column].default;
            !columns.contains(column) && default.as_ref().is_some_and(SessionValue::is_random)
        };
        let random = (0..table.schema.columns.len()).filter(is_random).collect();
        let types = columns.iter().map(|&column| Field::of(&table.schema.columns[column]).ty).collect();
        Ok(CopyTarget {
            table,
            columns,
            types,
            defaults,
            numbered,
            random,
            rejected_time_zone: rejected_time_zone.map(str::to_owned),
        })
    }

    pub(super) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Returns the columns that take numbers from sequences.
    pub(super) fn numbered(&self) -> &[(usize, Arc<Sequence>)] {
        &self.numbered
    }

    /// Stores numbers of a sequence in a column of rows.
    pub(super) fn number(&self, rows: &mut [Row], column: usize, numbers: Vec<i64>) -> Result<()> {
        let ty = self.table.schema.columns[column].ty;
        for (row, number) in rows.iter_mut().zip(numbers) {
            row[column] = cast(&Value::Int8(number), ty)?;
        }
        Ok(())
    }

    /// Returns the number of columns of the data.
    pub(super) fn columns(&self) -> usize {
        self.columns.len()
    }

    /// Adds the place in the data to an error.
    pub(super) fn context(&self, error: SqlError, line: u64, rest: Option<String>) -> SqlError {
        let table = &self.table.schema.name;
        error
            .within(&self.table.schema)
            .context(format!("COPY {table}, line {line}{}", rest.unwrap_or_default()))
    }

    /// Returns a row of defaults.
    fn unfilled(&self) -> Result<Row> {
        let mut row = self.defaults.clone();
        for &column in &self.random {
            row[column] = cast(&SessionValue::random_uuid(), self.table.schema.columns[column].ty)?;
        }
        Ok(row)
    }

    /// Makes a row from a line. `line` is the number of the line, for errors.
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
        let mut row = self.unfilled()?;
        for (index, (field, &position)) in record.fields.iter().zip(&self.columns).enumerate() {
            let column = &schema.columns[position];
            let text = match field {
                None if format.force_not_null.contains(&index) => Some(format.null.as_str()),
                text => text.as_deref(),
            };
            row[position] = match text {
                None => Value::Null,
                Some(text) => self.read(column, text).map_err(|error| {
                    let rest = format!(", column {}: \"{}\"", column.name, shown(text));
                    self.context(error, line, Some(rest))
                })?,
            };
        }
        check(schema, &row).map_err(|error| self.context(error, line, whole()))?;
        Ok(row)
    }

    /// Reads a field's text as the value that its column stores.
    fn read(&self, column: &Column, text: &str) -> Result<Value> {
        if let (Type::Timestamptz, Some(zone)) = (column.ty, &self.rejected_time_zone)
            && is_local(text)
        {
            return Err(ambiguous_time_error(zone));
        }
        Ok(fitted(column, parse_text(column.ty, text)?)?)
    }

    /// Makes a row from a binary row.
    pub(super) fn row_of_tuple(&self, tuple: &Tuple, line: u64) -> Result<Row> {
        let schema = &self.table.schema;
        let (found, expected) = (tuple.fields.len(), self.columns.len());
        if found != expected {
            let what = format!("row field count is {found}, expected {expected}");
            return Err(self.context(SqlError::new(code::BAD_COPY_FILE_FORMAT, what), line, None));
        }
        let mut row = self.unfilled()?;
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
        check(schema, &row).map_err(|error| self.context(error, line, None))?;
        Ok(row)
    }
}

/// Refuses a row that a constraint on single rows refuses. The storage processes check it again; this check
/// knows the line.
fn check(schema: &Schema, row: &[Value]) -> Result<()> {
    write::check_not_null(schema, row)?;
    Ok(schema.check_conditions(row)?)
}

/// Applies a column's precision or length to a value.
fn fitted(column: &Column, value: Value) -> std::result::Result<Value, Failure> {
    match column.modifier {
        None => Ok(value),
        Some(modifier) => modifier.fit(value),
    }
}
