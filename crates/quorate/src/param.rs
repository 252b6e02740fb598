//! Values of parameters and of rows.

use std::{fmt, sync::Arc};

use quorate_sql::{
    encode::{self, Format},
    error::Result as SqlResult,
    statement::Field,
    types::PgType,
};
pub use quorate_table::value::Value;

use crate::error::Error;

/// The value of a parameter, `$1`, `$2` and so on. It is made from a number, a text, a truth value, a
/// [`Value`], or an option of these, of which `None` is NULL.
#[derive(Clone, Debug, PartialEq)]
pub struct Param(Value);

impl Param {
    /// Converts the value to the type of the parameter `index`. A value of another type is converted through
    /// its text, as if the statement contained the text in quotes.
    pub(crate) fn of_type(self, ty: PgType, index: usize) -> SqlResult<Value> {
        match self.0 {
            Value::Null => Ok(Value::Null),
            value if value.ty() == Some(ty.plain()) => encode::checked(value, ty),
            value => {
                let text = value.text().unwrap_or_default();
                encode::parameter(Some(text.as_bytes()), ty, Format::Text, index)
            }
        }
    }
}

impl From<Value> for Param {
    fn from(value: Value) -> Param {
        Param(value)
    }
}

impl From<&str> for Param {
    fn from(text: &str) -> Param {
        Param(Value::text_of(text))
    }
}

impl From<String> for Param {
    fn from(text: String) -> Param {
        Param(Value::text_of(text))
    }
}

impl From<bool> for Param {
    fn from(truth: bool) -> Param {
        Param(Value::Bool(truth))
    }
}

impl From<i16> for Param {
    fn from(number: i16) -> Param {
        Param(Value::Int2(number))
    }
}

impl From<i32> for Param {
    fn from(number: i32) -> Param {
        Param(Value::Int4(number))
    }
}

impl From<i64> for Param {
    fn from(number: i64) -> Param {
        Param(Value::Int8(number))
    }
}

impl From<f64> for Param {
    fn from(number: f64) -> Param {
        Param(Value::Float8(number))
    }
}

impl<P: Into<Param>> From<Option<P>> for Param {
    fn from(value: Option<P>) -> Param {
        value.map_or(Param(Value::Null), Into::into)
    }
}

/// A column of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// The column's name.
    pub name: String,
    /// The column's type, in PostgreSQL's spelling.
    pub ty: String,
}

impl Column {
    pub(crate) fn of(fields: &[Field]) -> Arc<[Column]> {
        let column = |field: &Field| Column { name: field.name.clone(), ty: field.ty.display().to_owned() };
        fields.iter().map(column).collect()
    }
}

/// A row of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    columns: Arc<[Column]>,
    values: Vec<Value>,
}

impl Row {
    pub(crate) fn new(columns: Arc<[Column]>, values: Vec<Value>) -> Row {
        Row { columns, values }
    }

    /// Returns the columns, in order.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Returns the values, in the order of the columns.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// Returns the value of a column, by its name or its index from 0.
    ///
    /// ```
    /// # fn show(row: &quorate::Row) -> Result<(), quorate::Error> {
    /// let id: i32 = row.get("id")?;
    /// let name: Option<&str> = row.get(1)?;
    /// # drop((id, name)); Ok(())
    /// # }
    /// ```
    ///
    /// Fails with [`Error::Mismatch`] if there is no such column, or its value is not of the requested type.
    pub fn get<'a, T: FromValue<'a>>(&'a self, column: impl Place) -> Result<T, Error> {
        let mismatch = |why: String| Error::mismatch(format!("column {column}"), why);
        let index = column
            .find(&self.columns)
            .ok_or_else(|| mismatch(String::from("the result has no such column")))?;
        let value = &self.values[index];
        T::from_value(value).ok_or_else(|| {
            let shown = value.text().map_or_else(|| String::from("NULL"), |text| format!("'{text}'"));
            mismatch(format!(
                "the value {shown} of type {} cannot be read as {}",
                self.columns[index].ty,
                T::WHAT
            ))
        })
    }
}

/// A column's name, or its index from 0.
pub trait Place: fmt::Display {
    /// Returns the column's index among these columns.
    fn find(&self, columns: &[Column]) -> Option<usize>;
}

impl Place for &str {
    fn find(&self, columns: &[Column]) -> Option<usize> {
        columns.iter().position(|column| column.name == **self)
    }
}

impl Place for usize {
    fn find(&self, columns: &[Column]) -> Option<usize> {
        Some(*self).filter(|index| *index < columns.len())
    }
}

/// A type to which values of rows can be converted. NULL converts only to an [`Option`].
pub trait FromValue<'a>: Sized {
    /// The name of the type in error texts.
    const WHAT: &'static str;

    /// Converts a value, or returns `None` if the value is of another type.
    fn from_value(value: &'a Value) -> Option<Self>;
}

impl<'a> FromValue<'a> for &'a Value {
    const WHAT: &'static str = "value";

    fn from_value(value: &'a Value) -> Option<Self> {
        Some(value)
    }
}

impl FromValue<'_> for Value {
    const WHAT: &'static str = "value";

    fn from_value(value: &Value) -> Option<Self> {
        Some(value.clone())
    }
}

impl<'a, T: FromValue<'a>> FromValue<'a> for Option<T> {
    const WHAT: &'static str = T::WHAT;

    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::Null => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
}

impl FromValue<'_> for bool {
    const WHAT: &'static str = "truth value";

    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Bool(truth) = value { Some(*truth) } else { None }
    }
}

impl FromValue<'_> for i64 {
    const WHAT: &'static str = "integer of 64 bits";

    fn from_value(value: &Value) -> Option<Self> {
        value.ty().filter(|ty| ty.is_integer()).and_then(|_| value.as_integer())
    }
}

impl FromValue<'_> for i32 {
    const WHAT: &'static str = "integer of 32 bits";

    fn from_value(value: &Value) -> Option<Self> {
        i64::from_value(value).and_then(|number| number.try_into().ok())
    }
}

impl FromValue<'_> for i16 {
    const WHAT: &'static str = "integer of 16 bits";

    fn from_value(value: &Value) -> Option<Self> {
        i64::from_value(value).and_then(|number| number.try_into().ok())
    }
}

impl FromValue<'_> for f64 {
    const WHAT: &'static str = "floating-point number";

    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Float8(number) = value { Some(*number) } else { None }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const WHAT: &'static str = "text";

    fn from_value(value: &'a Value) -> Option<Self> {
        if let Value::Text(text) = value { Some(text) } else { None }
    }
}

/// Converts a text unchanged, and other values to PostgreSQL's text form.
impl FromValue<'_> for String {
    const WHAT: &'static str = "text";

    fn from_value(value: &Value) -> Option<Self> {
        value.text()
    }
}

#[cfg(test)]
mod tests {
    use quorate_table::value::Type;

    use super::*;

    fn row() -> Row {
        let column = |name: &str, ty: Type| Column { name: name.to_owned(), ty: ty.name().to_owned() };
        let columns = vec![column("id", Type::Int8), column("name", Type::Text), column("at", Type::Date)];
        Row::new(columns.into(), vec![Value::Int8(1 << 40), Value::Null, Value::Date(1)])
    }

    #[test]
    fn values_are_read_as_their_types() {
        let row = row();
        assert_eq!(row.get::<i64>("id").unwrap(), 1 << 40);
        assert_eq!(row.get::<Option<&str>>(1).unwrap(), None);
        assert_eq!(row.get::<String>("at").unwrap(), "2000-01-02");
    }

    #[test]
    fn a_type_error_names_the_column() {
        let row = row();
        let message = |error: Error| error.to_string();
        assert_eq!(
            message(row.get::<i32>("id").unwrap_err()),
            "column id: the value '1099511627776' of type bigint cannot be read as integer of 32 bits"
        );
        assert_eq!(
            message(row.get::<&str>(1).unwrap_err()),
            "column 1: the value NULL of type text cannot be read as text"
        );
        assert_eq!(
            message(row.get::<i64>("height").unwrap_err()),
            "column height: the result has no such column"
        );
        assert_eq!(message(row.get::<i64>(3).unwrap_err()), "column 3: the result has no such column");
    }

    #[test]
    fn parameters_take_the_type_that_the_statement_wants() {
        let of = |param: Param, ty| param.of_type(PgType::Plain(ty), 0);
        assert_eq!(of(7.into(), Type::Int8).unwrap(), Value::Int8(7));
        assert_eq!(of("2000-01-02".into(), Type::Date).unwrap(), Value::Date(1));
        assert_eq!(of(None::<i32>.into(), Type::Int8).unwrap(), Value::Null);
        assert_eq!(of(70_000.into(), Type::Int2).unwrap_err().code, "22003");
        assert_eq!(of("seven".into(), Type::Int4).unwrap_err().code, "22P02");
    }
}
