//! JSON lines: one operation a line.
//!
//! ```text
//! {"client":3,"key":"k","op":"write","value":"v1","start_ns":10,"end_ns":20,"outcome":"ok"}
//! {"client":3,"key":"k","op":"read","value":null,"start_ns":30,"end_ns":40,"outcome":"ok"}
//! {"client":3,"key":"k","op":"cas","expected":"v1","value":"v2","matched":true,"start_ns":50,"end_ns":60,"outcome":"ok"}
//! {"client":3,"key":"k","op":"delete","start_ns":70,"outcome":"unknown"}
//! {"host":"a","clock_error_ns":50000}
//! ```
//!
//! A line with neither `end_ns` nor `outcome` is a *start record*: the operation was about to be sent. The line with the same
//! client, key, operation and start that comes when it ended replaces it; without one its outcome is unknown.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::{Decoder, Fault, Record};
use crate::operation::{Action, Nanos, Operation, Outcome, Value};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Ended {
    Ok,
    #[serde(alias = "fail")]
    Failed,
    #[serde(alias = "info")]
    Unknown,
}

#[derive(Deserialize)]
struct Line {
    client: Option<u64>,
    key: Option<Value>,
    op: Option<String>,
    value: Option<Value>,
    expected: Option<Value>,
    matched: Option<bool>,
    start_ns: Option<Nanos>,
    end_ns: Option<Nanos>,
    outcome: Option<Ended>,
    host: Option<String>,
    clock_error_ns: Option<u64>,
}

/// Decodes JSON lines.
#[derive(Debug, Default)]
pub struct Json {
    // By (client, start): the operations that were started, oldest first.
    started: BTreeMap<(u64, Nanos), Vec<Operation>>,
}

impl Decoder for Json {
    fn line(&mut self, line: &str, out: &mut Vec<Record>) -> Result<(), Fault> {
        let line: Line = serde_json::from_str(line).map_err(|error| {
            let text = error.to_string();
            let message = text.split(" at line ").next().unwrap_or(&text);
            Fault::new(error.column().max(1), message)
        })?;
        if let (Some(host), Some(error)) = (line.host, line.clock_error_ns) {
            out.push(Record::Clock { host, error });
            return Ok(());
        }
        let missing = |field| Fault::new(1, format!("expected a field \"{field}\""));
        let start = line.start_ns.ok_or_else(|| missing("start_ns"))?;
        let client = line.client.ok_or_else(|| missing("client"))?;
        let key = match line.key.ok_or_else(|| missing("key"))? {
            Value::Text(key) => key,
            Value::List(_) => return Err(Fault::new(1, "expected \"key\" to be a string")),
        };
        let op = line.op.ok_or_else(|| missing("op"))?;
        let value = line.value;
        let written = |value: Option<Value>| value.ok_or_else(|| missing("value"));
        let action = match op.as_str() {
            "read" => Action::Read(value),
            "write" => value.map_or(Action::Delete, Action::Write),
            "cas" => {
                let (expected, new) = (line.expected, written(value)?);
                Action::Cas { expected, new, matched: line.matched.unwrap_or(true) }
            }
            "delete" => Action::Delete,
            "append" => Action::Append(written(value)?),
            "add" => Action::Add(written(value)?),
            "remove" => Action::Remove(written(value)?),
            "enqueue" => Action::Enqueue(written(value)?),
            "dequeue" => Action::Dequeue(value),
            other => {
                let names = "read, write, cas, delete, append, add, remove, enqueue or dequeue";
                return Err(Fault::new(1, format!("expected \"op\" to be {names}, found {other:?}")));
            }
        };
        let is_start = line.outcome.is_none() && line.end_ns.is_none();
        let outcome = match (line.outcome, line.end_ns) {
            (Some(Ended::Ok), Some(_)) | (None, Some(_)) => Outcome::Ok,
            (Some(Ended::Ok), None) => {
                return Err(Fault::new(1, "expected a field \"end_ns\", since the outcome is ok"));
            }
            (Some(Ended::Failed), _) => Outcome::Failed,
            (Some(Ended::Unknown) | None, _) => Outcome::Unknown,
        };
        let operation = Operation { client, key, action, start, finish: line.end_ns, outcome };
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

/// Whether two actions were the same before they were answered.
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
struct Written<'a> {
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
    outcome: Option<Ended>,
}

/// Writes an operation that ended as one line.
pub fn write(out: &mut impl Write, operation: &Operation) -> io::Result<()> {
    line(out, operation, true)
}

/// Writes that an operation is about to be sent.
pub fn write_start(out: &mut impl Write, operation: &Operation) -> io::Result<()> {
    line(out, operation, false)
}

/// Writes how far the clock of `host` may be off.
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
        Outcome::Ok => Ended::Ok,
        Outcome::Failed => Ended::Failed,
        Outcome::Unknown => Ended::Unknown,
    };
    let mut bytes = serde_json::to_vec(&Written {
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
    // One write, so that what other writers append to the same file cannot come in between.
    out.write_all(&bytes)
}
