//! Values of the catalog's expressions: the values that tables have, and arrays and records of these values.

use std::{cmp::Ordering, sync::Arc};

use quorate_table::value::Value;

use crate::{array, error::Result};

/// A value, an array of values, or a record of values.
#[derive(Clone, Debug)]
pub enum Datum {
    /// One value, which may be NULL.
    Value(Value),
    /// Several values of one type.
    Array(Arc<Vec<Datum>>),
    /// The fields of a record.
    Record(Arc<Vec<Datum>>),
}

impl Datum {
    /// NULL.
    pub const NULL: Datum = Datum::Value(Value::Null);

    /// Creates a string.
    pub fn text(text: impl AsRef<str>) -> Datum {
        Datum::Value(Value::text_of(text))
    }

    /// Creates a boolean.
    pub fn bool(truth: bool) -> Datum {
        Datum::Value(Value::Bool(truth))
    }

    /// Creates a bigint, or an object id.
    pub fn int8(number: impl Into<i64>) -> Datum {
        Datum::Value(Value::Int8(number.into()))
    }

    /// Creates an array.
    pub fn array(elements: Vec<Datum>) -> Datum {
        Datum::Array(Arc::new(elements))
    }

    /// Creates a record.
    pub fn record(fields: Vec<Datum>) -> Datum {
        Datum::Record(Arc::new(fields))
    }

    /// Whether the datum is NULL.
    pub fn is_null(&self) -> bool {
        matches!(self, Datum::Value(Value::Null))
    }

    /// Returns the truth of a condition; `None` for NULL.
    pub fn truth(&self) -> Option<bool> {
        match self {
            Datum::Value(Value::Bool(truth)) => Some(*truth),
            _ => None,
        }
    }

    /// Returns the integer, of any width. `None` if the datum is no integer.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Datum::Value(value) => value.as_integer(),
            Datum::Array(_) | Datum::Record(_) => None,
        }
    }

    /// Returns the text form; `None` for NULL.
    pub fn to_text(&self) -> Option<String> {
        match self {
            Datum::Value(value) => value.text(),
            Datum::Array(elements) => Some(array_text(elements)),
            Datum::Record(fields) => Some(record_text(fields)),
        }
    }

    /// Compares two values. Arrays and records compare element by element.
    pub fn order(&self, other: &Datum) -> Ordering {
        match (self, other) {
            (Datum::Value(a), Datum::Value(b)) => a.order(b),
            (Datum::Array(a), Datum::Array(b)) | (Datum::Record(a), Datum::Record(b)) => a
                .iter()
                .zip(b.iter())
                .map(|(a, b)| a.order(b))
                .find(|ordering| ordering.is_ne())
                .unwrap_or_else(|| a.len().cmp(&b.len())),
            (Datum::Value(Value::Null), _) => Ordering::Greater,
            (_, Datum::Value(Value::Null)) => Ordering::Less,
            // An array may be compared with a constant, which is still the text form of an array.
            (a, b) => a.to_text().cmp(&b.to_text()),
        }
    }

    /// Appends bytes that are equal exactly for equal values.
    pub fn write_key(&self, key: &mut Vec<u8>) {
        match self {
            Datum::Value(value) => value.write_key(key),
            Datum::Array(elements) | Datum::Record(elements) => {
                key.push(0xff);
                key.extend((elements.len() as u64).to_le_bytes());
                elements.iter().for_each(|element| element.write_key(key));
            }
        }
    }

    /// Returns the value in a row of a result. Arrays and records become text.
    pub fn into_value(self) -> Value {
        match self {
            Datum::Value(value) => value,
            Datum::Array(elements) => Value::text_of(array_text(&elements)),
            Datum::Record(fields) => Value::text_of(record_text(&fields)),
        }
    }
}

/// Returns the text form of an array. The text of an inner array is not quoted.
fn array_text(elements: &[Datum]) -> String {
    if elements.iter().any(|element| matches!(element, Datum::Array(_))) {
        let inner: Vec<String> =
            elements.iter().map(|element| element.to_text().unwrap_or_default()).collect();
        return format!("{{{}}}", inner.join(","));
    }
    array::text(elements.iter().map(Datum::to_text))
}

/// Returns the text form of a record. Records here hold only numbers, which need no quotes.
fn record_text(fields: &[Datum]) -> String {
    let fields: Vec<String> = fields.iter().map(|field| field.to_text().unwrap_or_default()).collect();
    format!("({})", fields.join(","))
}

/// Returns the elements of an array, or of the text form of an array or a vector. `None` if the datum is
/// neither.
pub(super) fn elements(datum: Datum) -> Result<Option<Vec<Datum>>> {
    let text = match datum {
        Datum::Array(elements) => return Ok(Some(elements.to_vec())),
        Datum::Value(Value::Text(text)) => text,
        Datum::Value(_) | Datum::Record(_) => return Ok(None),
    };
    // The elements of a vector are numbers separated by spaces.
    let numbers: std::result::Result<Vec<i64>, _> = text.split_ascii_whitespace().map(str::parse).collect();
    if let Ok(numbers) = numbers {
        return Ok(Some(numbers.into_iter().map(Datum::int8).collect()));
    }
    let elements = array::read(&text)?.into_iter();
    Ok(Some(elements.map(|element| element.map_or(Datum::NULL, Datum::text)).collect()))
}
