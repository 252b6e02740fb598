//! JSON lines: one operation a line.
//!
//! ```text
//! {"client":3,"key":"k","op":"write","value":"v1","start_ns":10,"end_ns":20,"outcome":"ok"}
//! {"client":3,"key":"k","op":"read","value":null,"start_ns":30,"end_ns":40,"outcome":"ok"}
//! {"client":3,"key":"k","op":"cas","expected":"v1","value":"v2","matched":true,"start_ns":50,"end_ns":60}
//! {"client":3,"key":"k","op":"delete","start_ns":70,"outcome":"unknown"}
//! {"host":"a","clock_error_ns":50000}
//! ```
//!
//! A line with neither `end_ns` nor `outcome` is a *start record*: the client was about to send the
//! operation. A later line with the same client, key, operation and start reports the end and replaces the
//! start record. Without such a line the outcome is unknown.
//!
//! `outcome` is `ok` by default if a line has `end_ns`.
//!
//! A value is a text. A number or a boolean counts as the text that stands in the file, digit by digit: `1`
//! and `"1"` are the same value, and `1`, `1.0` and `1e0` are three. No number is ever rounded.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::{Decoder, Record, SyntaxError};
use crate::operation::{Action, Nanos, Operation, Outcome, Value};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LineOutcome {
    Ok,
    #[serde(alias = "fail")]
    Failed,
    #[serde(alias = "info")]
    Unknown,
}

#[derive(Deserialize)]
struct JsonLine<'a> {
    client: Option<u64>,
    #[serde(borrow, default, deserialize_with = "present")]
    key: Option<&'a RawValue>,
    op: Option<String>,
    #[serde(borrow, default, deserialize_with = "present")]
    value: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    expected: Option<&'a RawValue>,
    matched: Option<bool>,
    start_ns: Option<Nanos>,
    end_ns: Option<Nanos>,
    outcome: Option<LineOutcome>,
    host: Option<String>,
    clock_error_ns: Option<u64>,
    #[serde(borrow)]
    txn: Option<&'a RawValue>,
}

/// Deserializes a field that is present, even if it is null.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(field: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(field).map(Some)
}

/// Returns the value of a field, or `None` for null.
pub(super) fn value(line: &str, field: &RawValue) -> Result<Option<Value>, SyntaxError> {
    let text = field.get();
    Ok(match text.as_bytes().first() {
        Some(b'n') => None,
        Some(b'[') => {
            let elements: Vec<&RawValue> =
                serde_json::from_str(text).map_err(|error| fault(line, text, &error))?;
            let mut values = Vec::new();
            for element in elements {
                let column = column(line, element.get());
                match value(line, element)? {
                    Some(value @ Value::Text(_)) => values.push(value),
                    Some(Value::List(_)) => {
                        return Err(SyntaxError::new(column, "expected no list inside a list"));
                    }
                    None => return Err(SyntaxError::new(column, "expected no null inside a list")),
                }
            }
            Some(values.into())
        }
        Some(b'{') => {
            let expected = "expected a string, a number, a boolean or a list of them, found an object";
            return Err(SyntaxError::new(column(line, text), expected));
        }
        Some(b'"') => {
            let decoded: String = serde_json::from_str(text).map_err(|error| fault(line, text, &error))?;
            Some(decoded.into())
        }
        _ => Some(text.into()),
    })
}

/// Returns the column at which `part` begins in `line`, from 1.
pub(super) fn column(line: &str, part: &str) -> usize {
    part.as_ptr() as usize - line.as_ptr() as usize + 1
}

/// Converts an error that the JSON library found in a part of a line.
pub(super) fn fault(line: &str, part: &str, error: &serde_json::Error) -> SyntaxError {
    let text = error.to_string();
    let message = text.split(" at line ").next().unwrap_or(&text);
    let whole = if error.is_eof() { ": expected a whole object on one line" } else { "" };
    SyntaxError::new(
        (column(line, part) + error.column()).saturating_sub(1).max(1),
        format!("{message}{whole}"),
    )
}

/// Decodes JSON lines.
#[derive(Debug, Default)]
pub struct Json {
    // Operations that started and have no end record so far, oldest first, by client and start.
    started: BTreeMap<(u64, Nanos), Vec<Operation>>,
}

impl Decoder for Json {
    fn line(&mut self, line: &str, out: &mut Vec<Record>) -> Result<(), SyntaxError> {
        match line.trim_start().as_bytes().first() {
            Some(b'{') => {}
            Some(b'[') => {
                let expected = "expected one object a line, found an array: give each of its operations a line of its own, \
                                as `jq -c '.[]'` does";
                return Err(SyntaxError::new(1, expected));
            }
            _ => return Err(SyntaxError::new(1, "expected one object a line, {\"client\":…}")),
        }
        let fields: JsonLine<'_> = serde_json::from_str(line).map_err(|error| fault(line, line, &error))?;
        if let (Some(host), Some(error)) = (fields.host, fields.clock_error_ns) {
            out.push(Record::Clock { host, error });
            return Ok(());
        }
        if let Some(steps) = fields.txn {
            let expected = "expected a single operation, found a transaction: judge transactions with --transactions LEVEL";
            return Err(SyntaxError::new(column(line, steps.get()), expected));
        }
        let missing = |field| SyntaxError::new(1, format!("expected a field \"{field}\""));
        let start = fields.start_ns.ok_or_else(|| missing("start_ns"))?;
        let client = fields.client.ok_or_else(|| missing("client"))?;
        let key = match value(line, fields.key.ok_or_else(|| missing("key"))?)? {
            Some(Value::Text(key)) => key,
            _ => return Err(SyntaxError::new(1, "expected \"key\" to be a string")),
        };
        let op = fields.op.ok_or_else(|| missing("op"))?;
        let is_start = fields.outcome.is_none() && fields.end_ns.is_none();
        let outcome = match (fields.outcome, fields.end_ns) {
            (Some(LineOutcome::Ok), Some(_)) | (None, Some(_)) => Outcome::Ok,
            (Some(LineOutcome::Ok), None) => {
                return Err(SyntaxError::new(1, "expected a field \"end_ns\", since the outcome is ok"));
            }
            (Some(LineOutcome::Failed), _) => Outcome::Failed,
            (Some(LineOutcome::Unknown) | None, _) => Outcome::Unknown,
        };
        let given = match fields.value {
            Some(field) => value(line, field)?,
            // An answered read must state its value. Null means "nothing was there".
            None if outcome == Outcome::Ok && matches!(op.as_str(), "read" | "dequeue") => {
                return Err(SyntaxError::new(
                    1,
                    "expected a field \"value\" (null if the operation found nothing)",
                ));
            }
            None if op == "write" => {
                return Err(SyntaxError::new(
                    1,
                    "expected a field \"value\" (null if the write deletes the key)",
                ));
            }
            None => None,
        };
        let written = |value: Option<Value>| value.ok_or_else(|| missing("value"));
        let action = match op.as_str() {
            "read" => Action::Read(given),
            "write" => given.map_or(Action::Delete, Action::Write),
            "cas" => {
                let expected = fields.expected.map_or(Ok(None), |field| value(line, field))?;
                Action::Cas { expected, new: written(given)?, matched: fields.matched.unwrap_or(true) }
            }
            "delete" => Action::Delete,
            "append" => Action::Append(written(given)?),
            "add" => Action::Add(written(given)?),
            "remove" => Action::Remove(written(given)?),
            "enqueue" => Action::Enqueue(written(given)?),
            "dequeue" => Action::Dequeue(given),
            other => {
                let names = "read, write, cas, delete, append, add, remove, enqueue or dequeue";
                return Err(SyntaxError::new(1, format!("expected \"op\" to be {names}, found {other:?}")));
            }
        };
        let operation = Operation { client, key, action, start, finish: fields.end_ns, outcome };
        let ops = self.started.entry((client, start));
        if is_start {
            ops.or_default().push(operation);
        } else {
            if let std::collections::btree_map::Entry::Occupied(mut started) = ops {
                let same = |other: &Operation| {
                    other.key == operation.key && begun_alike(&other.action, &operation.action)
                };
                if let Some(index) = started.get().iter().position(same) {
                    started.get_mut().remove(index);
                }
                if started.get().is_empty() {
                    started.remove();
                }
            }
            out.push(Record::Operation(operation));
        }
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<Record>) {
        let started = std::mem::take(&mut self.started);
        out.extend(started.into_values().flatten().map(Record::Operation));
    }
}

/// Whether two actions were equal when they were sent, before they had answers.
fn begun_alike(a: &Action, b: &Action) -> bool {
    match (a, b) {
        (Action::Read(_), Action::Read(_)) | (Action::Dequeue(_), Action::Dequeue(_)) => true,
        (Action::Cas { expected, new, .. }, Action::Cas { expected: other_expected, new: other_new, .. }) => {
            expected == other_expected && new == other_new
        }
        _ => a == b,
    }
}

#[derive(Serialize)]
struct WrittenLine<'a> {
    client: u64,
    key: &'a str,
    op: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<Option<&'a Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Option<&'a Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    matched: Option<bool>,
    start_ns: Nanos,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_ns: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<LineOutcome>,
}

/// Writes one line for an operation that ended.
pub fn write(out: &mut impl Write, operation: &Operation) -> io::Result<()> {
    line(out, operation, true)
}

/// Writes the start record of an operation that is about to be sent.
pub fn write_start(out: &mut impl Write, operation: &Operation) -> io::Result<()> {
    line(out, operation, false)
}

/// Writes the clock error of `host`, in nanoseconds in either direction.
pub fn write_clock(out: &mut impl Write, host: &str, error: u64) -> io::Result<()> {
    writeln!(out, "{}", serde_json::json!({ "host": host, "clock_error_ns": error }))
}

fn line(out: &mut impl Write, operation: &Operation, ended: bool) -> io::Result<()> {
    let (value, expected, matched) = match &operation.action {
        Action::Read(value) | Action::Dequeue(value) => (ended.then_some(value.as_ref()), None, None),
        Action::Cas { expected, new, matched } => {
            (Some(Some(new)), Some(expected.as_ref()), ended.then_some(*matched))
        }
        Action::Delete => (None, None, None),
        Action::Write(value)
        | Action::Append(value)
        | Action::Add(value)
        | Action::Remove(value)
        | Action::Enqueue(value) => (Some(Some(value)), None, None),
    };
    let outcome = match operation.outcome {
        Outcome::Ok => LineOutcome::Ok,
        Outcome::Failed => LineOutcome::Failed,
        Outcome::Unknown => LineOutcome::Unknown,
    };
    let mut bytes = serde_json::to_vec(&WrittenLine {
        client: operation.client,
        key: &operation.key,
        op: operation.action.name(),
        expected,
        value,
        matched,
        start_ns: operation.start,
        end_ns: operation.finish.filter(|_| ended),
        outcome: ended.then_some(outcome),
    })
    .map_err(io::Error::from)?;
    bytes.push(b'\n');
    // One write call writes the whole line, so that another writer to the same file cannot split it.
    out.write_all(&bytes)
}
