//! Reads the rows of an answer in place, so that a gateway can pass the rows on without making values of its
//! own.

use bytes::{Buf, Bytes};
use quorate_table::{numeric::Numeric, value::Value};
use serde::Deserialize;

/// The variant number of an answer with rows in `Answer`.
const ROWS: u32 = 1;

/// The first byte of an encoded NULL. `TEXT` is the first byte of an encoded string.
const NULL: u8 = 0;
const TEXT: u8 = 7;

/// A value that borrows its text from the answer. The variants are those of `Value`, in the same order, so
/// that a cell decodes the same bytes as a value.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub enum Cell<'a> {
    /// SQL NULL.
    Null,
    /// A boolean.
    Bool(bool),
    /// A `smallint`.
    Int2(i16),
    /// An `integer`.
    Int4(i32),
    /// A `bigint`.
    Int8(i64),
    /// A `double precision`.
    Float8(f64),
    /// A `numeric`.
    Numeric(Numeric),
    /// A string.
    #[serde(borrow)]
    Text(&'a str),
    /// A date, in days since 2000-01-01.
    Date(i32),
    /// A timestamp, in microseconds since 2000-01-01 00:00.
    Timestamp(i64),
    /// A timestamp with time zone, in microseconds since 2000-01-01 00:00 UTC.
    Timestamptz(i64),
    /// A `uuid`.
    Uuid([u8; 16]),
    /// A string of bytes.
    Bytea(&'a [u8]),
    /// A `json`.
    Json(&'a str),
    /// A `jsonb`.
    Jsonb(&'a str),
    /// A `real`.
    Float4(f32),
    /// A time of day, in microseconds.
    Time(i64),
    /// A `character`.
    Bpchar(&'a str),
}

impl Cell<'_> {
    /// Copies the cell into a value.
    pub fn value(self) -> Value {
        match self {
            Cell::Null => Value::Null,
            Cell::Bool(truth) => Value::Bool(truth),
            Cell::Int2(number) => Value::Int2(number),
            Cell::Int4(number) => Value::Int4(number),
            Cell::Int8(number) => Value::Int8(number),
            Cell::Float8(number) => Value::Float8(number),
            Cell::Numeric(number) => Value::Numeric(number),
            Cell::Text(text) => Value::text_of(text),
            Cell::Date(days) => Value::Date(days),
            Cell::Timestamp(micros) => Value::Timestamp(micros),
            Cell::Timestamptz(micros) => Value::Timestamptz(micros),
            Cell::Uuid(uuid) => Value::Uuid(uuid),
            Cell::Bytea(bytes) => Value::bytes_of(bytes),
            Cell::Json(text) => Value::Json(text.into()),
            Cell::Jsonb(text) => Value::Jsonb(text.into()),
            Cell::Float4(number) => Value::Float4(number),
            Cell::Time(micros) => Value::Time(micros),
            Cell::Bpchar(text) => Value::Bpchar(text.into()),
        }
    }
}

/// The error for bytes that are not a valid answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The rows of an encoded answer that are still to be read.
#[derive(Clone, Debug)]
pub struct EncodedRows {
    bytes: Bytes,
    left: usize,
}

impl EncodedRows {
    /// Returns the rows of an encoded answer. `None` if the answer is of another kind than rows.
    pub fn of(answer: &Bytes) -> Option<EncodedRows> {
        let mut bytes = answer.clone();
        let variant: u32 = take(&mut bytes).ok()?;
        let left: usize = take(&mut bytes).ok().filter(|_| variant == ROWS)?;
        Some(EncodedRows { bytes, left })
    }

    /// Returns the number of rows that are still to be read.
    pub fn len(&self) -> usize {
        self.left
    }

    /// Whether all rows were read.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Reads the next row. Passes each cell to `cell`, with the index of its column. Panics if no row is
    /// left.
    pub fn next(&mut self, mut cell: impl FnMut(usize, Cell<'_>)) -> Result<(), Malformed> {
        assert!(self.left > 0, "no row is left");
        self.left -= 1;
        let (width, mut rest) = postcard::take_from_bytes(&self.bytes).map_err(|_| Malformed)?;
        for column in 0..width {
            let (read, behind) = take_cell(rest)?;
            cell(column, read);
            rest = behind;
        }
        let rest = rest.len();
        self.bytes.advance(self.bytes.len() - rest);
        Ok(())
    }
}

/// Splits off the first cell. Most cells are NULL or a short string, so these two cases are decoded directly.
#[inline]
fn take_cell(bytes: &[u8]) -> Result<(Cell<'_>, &[u8]), Malformed> {
    match bytes {
        [NULL, rest @ ..] => Ok((Cell::Null, rest)),
        [TEXT, length @ ..0x80, rest @ ..] => {
            let (text, rest) = rest.split_at_checked(usize::from(*length)).ok_or(Malformed)?;
            Ok((Cell::Text(std::str::from_utf8(text).map_err(|_| Malformed)?), rest))
        }
        _ => postcard::take_from_bytes(bytes).map_err(|_| Malformed),
    }
}

fn take<T: for<'a> Deserialize<'a>>(bytes: &mut Bytes) -> Result<T, Malformed> {
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(|_| Malformed)?;
    let rest = rest.len();
    bytes.advance(bytes.len() - rest);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use quorate_table::{engine::Answer, failure::Failure, value::Row};

    use super::*;

    fn encoded(answer: &Answer) -> Bytes {
        postcard::to_stdvec(answer).unwrap().into()
    }

    fn rows() -> Vec<Row> {
        let number = Numeric::parse("-12345.678").unwrap();
        let all = vec![
            Value::Null,
            Value::Bool(true),
            Value::Int2(-7),
            Value::Int4(i32::MIN),
            Value::Int8(i64::MAX),
            Value::Float8(-0.5),
            Value::Numeric(number),
            Value::text_of("Zürich"),
            Value::text_of(""),
            Value::text_of("x".repeat(127)),
            Value::text_of("y".repeat(128)),
            Value::Date(-1),
            Value::Timestamp(i64::MIN),
            Value::Timestamptz(1),
            Value::Uuid([7; 16]),
            Value::bytes_of([0, 255]),
            Value::Json("[ 1]".into()),
            Value::Float4(-0.5),
            Value::Time(7),
            Value::Bpchar("a  ".into()),
            Value::Jsonb("{\"a\": 1.0}".into()),
        ];
        vec![all.clone(), Vec::new(), all.into_iter().rev().collect()]
    }

    #[test]
    fn cells_are_the_values() {
        let mut read = EncodedRows::of(&encoded(&Answer::Rows(rows()))).unwrap();
        let mut seen = Vec::new();
        while !read.is_empty() {
            let mut row = Vec::new();
            read.next(|column, cell| {
                assert_eq!(column, row.len());
                row.push(cell.value());
            })
            .unwrap();
            seen.push(row);
        }
        assert_eq!(seen, rows());
    }

    #[test]
    fn anything_else_is_left_alone() {
        let failed = Answer::Failed(Failure::new("22012", "division by zero"));
        for other in [Answer::Written(Vec::new()), Answer::Groups(Vec::new()), failed] {
            assert!(EncodedRows::of(&encoded(&other)).is_none());
        }
    }

    #[test]
    fn damaged_bytes_are_told() {
        let whole = encoded(&Answer::Rows(rows()));
        for length in 0..whole.len() {
            let Some(mut read) = EncodedRows::of(&whole.slice(..length)) else { continue };
            let mut read_all = || {
                while !read.is_empty() {
                    read.next(|_, _| {})?;
                }
                Ok(())
            };
            assert_eq!(read_all(), Err(Malformed), "of {length} bytes");
        }
    }
}
