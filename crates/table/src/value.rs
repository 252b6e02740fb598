//! Types and values, with PostgreSQL's meaning.
//!
//! A [`Value`] knows its type unless it is NULL. It has three relations, which must not be confused:
//!
//! - *identity* (`==`): same type, same representation. 1.0 is not 1.00, -0 is not 0, NaN equals itself.
//!   Tests and caches use it.
//! - *order* ([`Value::order`]): PostgreSQL's sort order, total over all values. NULL is last, NaN is above
//!   all floats, text is bytewise (C collation), and integers and numerics of any width compare by value.
//! - *key* ([`Value::write_key`]): bytes that are equal exactly for values that are equal in order. Ring
//!   keys, grouping, DISTINCT and unique indexes rely on it.

use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::{json, numeric::Numeric};

pub use crate::types::Type;

/// A value, or NULL.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// A `numeric`.
    Numeric(Numeric),
    /// A string, valid UTF-8 without NUL bytes.
    Text(Arc<str>),
    /// Days since 2000-01-01; the least and greatest integers are the infinities.
    Date(i32),
    /// Microseconds since 2000-01-01 00:00; the least and greatest integers are the infinities.
    Timestamp(i64),
    /// Microseconds since 2000-01-01 00:00 UTC; the least and greatest integers are the infinities.
    Timestamptz(i64),
    /// A `uuid`.
    Uuid([u8; 16]),
    /// A string of bytes.
    Bytea(#[serde(with = "raw")] Arc<[u8]>),
    /// A `json`, as the client wrote it.
    Json(Arc<str>),
    /// A `jsonb`, in the form of [`json::normalized`].
    Jsonb(Arc<str>),
    /// A `real`.
    Float4(f32),
    /// Microseconds since midnight, up to a whole day.
    Time(i64),
    /// A `character`, with its blanks at the end.
    Bpchar(Arc<str>),
}

/// One row: a value per column, in schema order.
pub type Row = Vec<Value>;

impl Value {
    /// Returns a string value.
    pub fn text_of(text: impl AsRef<str>) -> Value {
        Value::Text(Arc::from(text.as_ref()))
    }

    /// Returns a string of bytes.
    pub fn bytes_of(bytes: impl AsRef<[u8]>) -> Value {
        Value::Bytea(Arc::from(bytes.as_ref()))
    }

    /// Returns the length of the value's text or bytes; 0 for a value of bounded size.
    pub fn text_bytes(&self) -> usize {
        match self {
            Value::Text(text) | Value::Json(text) | Value::Jsonb(text) | Value::Bpchar(text) => text.len(),
            Value::Bytea(bytes) => bytes.len(),
            _ => 0,
        }
    }

    /// Returns the type; `None` for NULL, which belongs to every type.
    pub fn ty(&self) -> Option<Type> {
        Some(match self {
            Value::Null => return None,
            Value::Bool(_) => Type::Bool,
            Value::Int2(_) => Type::Int2,
            Value::Int4(_) => Type::Int4,
            Value::Int8(_) => Type::Int8,
            Value::Float8(_) => Type::Float8,
            Value::Numeric(_) => Type::Numeric,
            Value::Text(_) => Type::Text,
            Value::Date(_) => Type::Date,
            Value::Timestamp(_) => Type::Timestamp,
            Value::Timestamptz(_) => Type::Timestamptz,
            Value::Uuid(_) => Type::Uuid,
            Value::Bytea(_) => Type::Bytea,
            Value::Json(_) => Type::Json,
            Value::Jsonb(_) => Type::Jsonb,
            Value::Float4(_) => Type::Float4,
            Value::Time(_) => Type::Time,
            Value::Bpchar(_) => Type::Bpchar,
        })
    }

    /// Whether a column of type `ty` can hold the value.
    pub fn fits(&self, ty: Type) -> bool {
        self.ty().is_none_or(|own| own == ty)
    }

    /// Whether the value is NULL.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// Returns an integer of any width.
    pub fn as_integer(&self) -> Option<i64> {
        match *self {
            Value::Int2(i) => Some(i64::from(i)),
            Value::Int4(i) => Some(i64::from(i)),
            Value::Int8(i) => Some(i),
            _ => None,
        }
    }

    /// Compares in PostgreSQL's sort order, total over all values. NULL is last, and values of types that do
    /// not compare are in the order of their types.
    pub fn order(&self, other: &Value) -> Ordering {
        use Value::*;
        match (self, other) {
            (Bool(a), Bool(b)) => a.cmp(b),
            (Float8(a), Float8(b)) => order_floats(*a, *b),
            (Text(a), Text(b)) => a.as_bytes().cmp(b.as_bytes()),
            (Date(a), Date(b)) => a.cmp(b),
            (Timestamp(a), Timestamp(b)) | (Timestamptz(a), Timestamptz(b)) => a.cmp(b),
            (Numeric(a), Numeric(b)) => a.order(b),
            (Uuid(a), Uuid(b)) => a.cmp(b),
            (Bytea(a), Bytea(b)) => a.cmp(b),
            (Json(a), Json(b)) => a.as_bytes().cmp(b.as_bytes()),
            (Jsonb(a), Jsonb(b)) => json::order(a, b),
            (Float4(a), Float4(b)) => order_floats((*a).into(), (*b).into()),
            (Time(a), Time(b)) => a.cmp(b),
            (Bpchar(a), Bpchar(b)) => unpadded(a).as_bytes().cmp(unpadded(b).as_bytes()),
            (a, b) => match (a.as_integer(), b.as_integer()) {
                (Some(a), Some(b)) => a.cmp(&b),
                (Some(a), None) if matches!(b, Numeric(_)) => {
                    Numeric(crate::numeric::Numeric::from_i128(a.into())).order(b)
                }
                (None, Some(b)) if matches!(a, Numeric(_)) => {
                    a.order(&Numeric(crate::numeric::Numeric::from_i128(b.into())))
                }
                _ => a.rank().cmp(&b.rank()),
            },
        }
    }

    /// Whether SQL compares the two: they have one type, or both are integers or numerics. NULL compares only
    /// with NULL.
    pub fn compares_with(&self, other: &Value) -> bool {
        self.rank() == other.rank()
    }

    /// Returns the position of a value's kind in the order; integers and numerics are one kind.
    fn rank(&self) -> u8 {
        match self {
            Value::Bool(_) => 0,
            Value::Int2(_) | Value::Int4(_) | Value::Int8(_) | Value::Numeric(_) => 1,
            Value::Float8(_) => 2,
            Value::Text(_) => 3,
            Value::Date(_) => 4,
            Value::Timestamp(_) => 5,
            Value::Timestamptz(_) => 6,
            Value::Uuid(_) => 7,
            Value::Bytea(_) => 8,
            Value::Json(_) => 9,
            Value::Jsonb(_) => 10,
            Value::Float4(_) => 11,
            Value::Time(_) => 12,
            Value::Bpchar(_) => 13,
            Value::Null => u8::MAX,
        }
    }

    /// Appends bytes that are equal exactly for values that [`Value::order`] calls equal, and that are no
    /// prefix of another value's bytes. These bytes define the ring keys, so they must never change.
    pub fn write_key(&self, key: &mut Vec<u8>) {
        match self {
            Value::Null => key.push(0),
            Value::Bool(b) => key.extend([1, u8::from(*b)]),
            Value::Float8(f) => {
                let canonical = if f.is_nan() { f64::NAN } else { f + 0.0 };
                key.push(2);
                key.extend(canonical.to_bits().to_le_bytes());
            }
            Value::Text(text) => {
                key.push(3);
                key.extend((text.len() as u64).to_le_bytes());
                key.extend(text.as_bytes());
            }
            Value::Date(days) => {
                key.push(4);
                key.extend(days.to_le_bytes());
            }
            Value::Timestamp(micros) => {
                key.push(5);
                key.extend(micros.to_le_bytes());
            }
            Value::Timestamptz(micros) => {
                key.push(6);
                key.extend(micros.to_le_bytes());
            }
            Value::Numeric(number) => {
                let number = number.normalized();
                match number.to_i64() {
                    Some(integer) if number.scale() == 0 => write_integer_key(integer, key),
                    _ => {
                        let digits = number.digit_bytes();
                        key.push(8);
                        key.extend(number.scale().to_le_bytes());
                        key.extend((digits.len() as u64).to_le_bytes());
                        key.extend(digits);
                    }
                }
            }
            Value::Uuid(uuid) => {
                key.push(9);
                key.extend(uuid);
            }
            Value::Bytea(bytes) => {
                key.push(10);
                key.extend((bytes.len() as u64).to_le_bytes());
                key.extend(&**bytes);
            }
            Value::Json(text) => {
                key.push(11);
                key.extend((text.len() as u64).to_le_bytes());
                key.extend(text.as_bytes());
            }
            Value::Jsonb(text) => {
                key.push(12);
                json::write_key(text, key);
            }
            Value::Float4(f) => {
                let canonical = if f.is_nan() { f32::NAN } else { f + 0.0 };
                key.push(13);
                key.extend(canonical.to_bits().to_le_bytes());
            }
            Value::Time(micros) => {
                key.push(14);
                key.extend(micros.to_le_bytes());
            }
            Value::Bpchar(text) => {
                let text = unpadded(text);
                key.push(15);
                key.extend((text.len() as u64).to_le_bytes());
                key.extend(text.as_bytes());
            }
            Value::Int2(_) | Value::Int4(_) | Value::Int8(_) => {
                write_integer_key(self.as_integer().expect("an integer"), key);
            }
        }
    }

    /// Returns the memory of the value in bytes, with shared parts counted in full.
    pub fn bytes(&self) -> usize {
        let outside = match self {
            Value::Text(text) | Value::Json(text) | Value::Jsonb(text) | Value::Bpchar(text) => {
                text.len() + 2 * size_of::<usize>()
            }
            Value::Bytea(bytes) => bytes.len() + 2 * size_of::<usize>(),
            Value::Numeric(number) => number.outside_bytes(),
            _ => 0,
        };
        size_of::<Value>() + outside
    }
}

/// Returns the text of a `character` without the blanks at its end, which mean nothing.
pub fn unpadded(text: &str) -> &str {
    text.trim_end_matches(' ')
}

/// The encoding of a string of bytes: its length and its bytes.
mod raw {
    use std::{fmt, sync::Arc};

    use serde::{Deserializer, Serializer, de::Error, de::SeqAccess, de::Visitor};

    pub(super) fn serialize<S: Serializer>(bytes: &Arc<[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[u8]>, D::Error> {
        deserializer.deserialize_bytes(Bytes)
    }

    struct Bytes;

    impl<'de> Visitor<'de> for Bytes {
        type Value = Arc<[u8]>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a string of bytes")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Arc<[u8]>, E> {
            Ok(bytes.into())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Arc<[u8]>, A::Error> {
            let mut bytes: Vec<u8> = Vec::new();
            while let Some(byte) = items.next_element()? {
                bytes.push(byte);
            }
            Ok(bytes.into())
        }
    }
}

fn write_integer_key(integer: i64, key: &mut Vec<u8>) {
    key.push(7);
    key.extend(integer.to_le_bytes());
}

/// Returns the key bytes of several values, one behind the other.
pub fn key_of<'a>(values: impl IntoIterator<Item = &'a Value>) -> Vec<u8> {
    let mut key = Vec::with_capacity(32);
    for value in values {
        value.write_key(&mut key);
    }
    key
}

/// Compares floats. NaN equals itself and is above everything; the zeros are equal.
pub fn order_floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Compares by identity, and not by SQL equality.
impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        use Value::*;
        match (self, other) {
            (Null, Null) => true,
            (Bool(a), Bool(b)) => a == b,
            (Int2(a), Int2(b)) => a == b,
            (Int4(a), Int4(b)) => a == b,
            (Int8(a), Int8(b)) => a == b,
            (Float8(a), Float8(b)) => a.to_bits() == b.to_bits(),
            (Numeric(a), Numeric(b)) => a == b,
            (Text(a), Text(b)) | (Json(a), Json(b)) | (Jsonb(a), Jsonb(b)) | (Bpchar(a), Bpchar(b)) => a == b,
            (Uuid(a), Uuid(b)) => a == b,
            (Bytea(a), Bytea(b)) => a == b,
            (Float4(a), Float4(b)) => a.to_bits() == b.to_bits(),
            (Time(a), Time(b)) => a == b,
            (Date(a), Date(b)) => a == b,
            (Timestamp(a), Timestamp(b)) | (Timestamptz(a), Timestamptz(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Value {}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            Value::Null => {}
            Value::Bool(b) => b.hash(state),
            Value::Int2(i) => i.hash(state),
            Value::Int4(i) | Value::Date(i) => i.hash(state),
            Value::Int8(i) | Value::Timestamp(i) | Value::Timestamptz(i) => i.hash(state),
            Value::Float8(f) => f.to_bits().hash(state),
            Value::Numeric(number) => number.hash(state),
            Value::Text(text) | Value::Json(text) | Value::Jsonb(text) | Value::Bpchar(text) => {
                text.hash(state)
            }
            Value::Uuid(uuid) => uuid.hash(state),
            Value::Bytea(bytes) => bytes.hash(state),
            Value::Float4(f) => f.to_bits().hash(state),
            Value::Time(micros) => micros.hash(state),
        }
    }
}
