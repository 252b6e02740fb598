//! The answers of commands that only read.

use bytes::Bytes;
use quorate_protocol::partial::Value;
use smallvec::SmallVec;

use super::{refusal::WRONG_TYPE, reply::Reply};

/// For each place in an answer, the index of the key that fills the place. Empty if every key has the index
/// of its place. A key that is named twice is read once, so that its value is held once.
pub(super) type Places = Vec<u32>;

/// The result of reading a key: its value and its expiry, in nanoseconds of the wall clock.
pub(super) type ReadResult = (Value, Option<u64>);

/// The way in which an answer is made from the values of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReadForm {
    Get,
    GetMany(Places),
    /// The number of keys that exist.
    Exists(Places),
    Length,
    Type,
    /// The remaining life of the value. The number is the answer's unit in nanoseconds.
    Life(u64),
    Field(Bytes),
    Fields(Vec<Bytes>),
    AllFields,
    FieldNames,
    FieldValues,
    FieldCount,
    FieldExists(Bytes),
    FieldLength(Bytes),
}

impl ReadForm {
    /// Whether the answer contains the value itself, and not only the value's kind or life. If it does not,
    /// the value is dropped when it comes.
    pub(super) fn tells_value(&self) -> bool {
        !matches!(self, ReadForm::Exists(_) | ReadForm::Type | ReadForm::Life(_))
    }

    /// Makes the answer. `found` has the result for each key, and `wall` is the time of the wall clock in
    /// nanoseconds.
    #[inline]
    pub(super) fn answer(self, mut found: SmallVec<[ReadResult; 1]>, wall: u64) -> Reply {
        match self {
            ReadForm::Exists(places) => {
                return counted(match &places[..] {
                    [] => found.iter().filter(|found| is_there(found)).count(),
                    places => places.iter().filter(|place| is_there(&found[**place as usize])).count(),
                });
            }
            ReadForm::GetMany(places) => {
                // As in Redis, `MGET` answers with null for a value that is no string.
                let reply = |(value, _)| {
                    if let Value::String(value) = value { Reply::Bulk(value) } else { Reply::Null }
                };
                let replies: Vec<Reply> = found.into_iter().map(reply).collect();
                return Reply::Array(match &places[..] {
                    [] => replies,
                    places => places.iter().map(|place| replies[*place as usize].clone()).collect(),
                });
            }
            _ => {}
        }
        let found = found.pop().expect("a read of one key has one outcome");
        match self {
            ReadForm::Get => match found.0 {
                Value::String(value) => Reply::Bulk(value),
                Value::Nothing => Reply::Null,
                Value::Hash(_) => wrong_type(),
            },
            ReadForm::Length => match found.0 {
                Value::String(value) => counted(value.len()),
                Value::Nothing => Reply::Number(0),
                Value::Hash(_) => wrong_type(),
            },
            ReadForm::Type => Reply::Simple(match found.0 {
                Value::String(_) => "string",
                Value::Nothing => "none",
                Value::Hash(_) => "hash",
            }),
            ReadForm::Life(unit) => Reply::Number(match found {
                (Value::Nothing, _) => -2,
                (Value::String(_) | Value::Hash(_), Some(expires)) => {
                    i64::try_from((expires.saturating_sub(wall) + unit / 2) / unit).unwrap_or(i64::MAX)
                }
                (Value::String(_) | Value::Hash(_), None) => -1,
            }),
            shape => match hash(&found) {
                Ok(fields) => shape.of_fields(fields),
                Err(wrong) => wrong,
            },
        }
    }

    fn of_fields(self, fields: &[(Bytes, Bytes)]) -> Reply {
        let one =
            |name: &Bytes| value_of(fields, name).map_or(Reply::Null, |value| Reply::Bulk(value.clone()));
        match self {
            ReadForm::Field(name) => one(&name),
            ReadForm::Fields(names) => Reply::Array(names.iter().map(one).collect()),
            ReadForm::AllFields => {
                let pair =
                    |(name, value): &(Bytes, Bytes)| (Reply::Bulk(name.clone()), Reply::Bulk(value.clone()));
                Reply::Map(fields.iter().map(pair).collect())
            }
            ReadForm::FieldNames => {
                Reply::Array(fields.iter().map(|(name, _)| Reply::Bulk(name.clone())).collect())
            }
            ReadForm::FieldValues => {
                Reply::Array(fields.iter().map(|(_, value)| Reply::Bulk(value.clone())).collect())
            }
            ReadForm::FieldCount => counted(fields.len()),
            ReadForm::FieldExists(name) => Reply::Number(value_of(fields, &name).is_some().into()),
            ReadForm::FieldLength(name) => counted(value_of(fields, &name).map_or(0, Bytes::len)),
            shape => unreachable!("{shape:?} is not the reply of a command on fields"),
        }
    }
}

/// Whether the key of a result exists.
pub(super) fn is_there((value, _): &ReadResult) -> bool {
    *value != Value::Nothing
}

pub(super) fn counted(count: usize) -> Reply {
    Reply::Number(i64::try_from(count).unwrap_or(i64::MAX))
}

pub(super) fn hash((value, _): &ReadResult) -> Result<&[(Bytes, Bytes)], Reply> {
    match value {
        Value::Hash(fields) => Ok(fields),
        Value::Nothing => Ok(&[]),
        Value::String(_) => Err(wrong_type()),
    }
}

/// Returns the value of a field. `fields` must be sorted by name.
pub(super) fn value_of<'a>(fields: &'a [(Bytes, Bytes)], name: &Bytes) -> Option<&'a Bytes> {
    let at = fields.binary_search_by(|(other, _)| other.cmp(name)).ok()?;
    Some(&fields[at].1)
}

fn wrong_type() -> Reply {
    Reply::Error(String::from(WRONG_TYPE))
}
