//! Types and values, with PostgreSQL's meaning.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The type of a column or expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Type {
    /// `boolean`.
    Bool,
    /// `smallint`, 16 bits.
    Int2,
    /// `integer`, 32 bits.
    Int4,
    /// `bigint`, 64 bits.
    Int8,
    /// `double precision`.
    Float8,
    /// `numeric`, exact decimal.
    Numeric,
    /// `text`; C collation (bytewise).
    Text,
    /// `date`.
    Date,
    /// `timestamp without time zone`.
    Timestamp,
    /// `timestamp with time zone`, held in UTC.
    Timestamptz,
}

/// A value, or NULL.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// SQL NULL, of any type.
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
    /// A `numeric` (see `numeric.rs` when it lands: arbitrary precision, keeps its scale).
    Numeric(String),
    /// A string, valid UTF-8 without NUL bytes.
    Text(Arc<str>),
    /// Days since 2000-01-01.
    Date(i32),
    /// Microseconds since 2000-01-01 00:00.
    Timestamp(i64),
    /// Microseconds since 2000-01-01 00:00 UTC.
    Timestamptz(i64),
}

/// One row: a value per column, in schema order.
pub type Row = Vec<Value>;
