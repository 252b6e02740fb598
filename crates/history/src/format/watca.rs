//! Logs of the Waterloo Consistency Analyzer: `timestamp⇥INV|RES⇥client⇥R|W⇥key⇥value`, one event a line.
//!
//! The invocation of a write and the response of a read carry the value. A blank value is "nothing". A write
//! without a response has an unknown outcome. A read without a response is ignored.

use std::collections::BTreeMap;

use super::{Decoder, Record, SyntaxError};
use crate::operation::{Action, Nanos, Operation, Outcome, Value};

/// The identity of an open call: the client, whether the call writes, and the key.
type Call = (u64, bool, String);

/// Decodes the log format of WatCA.
#[derive(Debug, Default)]
pub struct Watca {
    clients: BTreeMap<String, u64>,
    // Open calls of each identity, oldest first: the time of the invocation, and the value to write.
    invoked: BTreeMap<Call, Vec<(Nanos, Option<Value>)>>,
}

impl Decoder for Watca {
    fn line(&mut self, line: &str, out: &mut Vec<Record>) -> Result<(), SyntaxError> {
        // Values may contain spaces, so a line with tabs is split at the tabs only.
        let fields: Vec<&str> = match line.contains('\t') {
            true => line.split('\t').map(str::trim).collect(),
            false => line.split_whitespace().collect(),
        };
        let column = |index: usize| {
            let field = fields.get(index).map(|field| field.as_ptr() as usize - line.as_ptr() as usize);
            field.unwrap_or(line.len()) + 1
        };
        let field = |index: usize, expected: &str| {
            fields
                .get(index)
                .copied()
                .ok_or_else(|| SyntaxError::new(column(index), format!("expected {expected}")))
        };
        let wrong = |index: usize, expected: &str| {
            SyntaxError::new(column(index), format!("expected {expected}, found {:?}", fields[index]))
        };
        let time = field(0, "a timestamp")?;
        let time: Nanos = time.parse().map_err(|_| wrong(0, "a timestamp in nanoseconds"))?;
        let is_invocation = match field(1, "INV or RES")? {
            "INV" => true,
            "RES" => false,
            _ => return Err(wrong(1, "INV or RES")),
        };
        let next = self.clients.len() as u64;
        let client = *self.clients.entry(field(2, "a client")?.into()).or_insert(next);
        let is_write = match field(3, "R or W")? {
            "W" => true,
            "R" => false,
            _ => return Err(wrong(3, "R or W")),
        };
        let key = field(4, "a key")?;
        let value = fields.get(5).filter(|value| !value.is_empty()).map(|value| Value::from(*value));
        let call = (client, is_write, key.to_owned());
        if is_invocation {
            self.invoked.entry(call).or_default().push((time, value));
            return Ok(());
        }
        let (start, written) = self.invoked.get_mut(&call).and_then(Vec::pop).ok_or_else(|| {
            SyntaxError::new(column(1), "expected an earlier INV of the same client, operation and key")
        })?;
        let action = match is_write {
            true => written.map_or(Action::Delete, Action::Write),
            false => Action::Read(value),
        };
        out.push(Record::Operation(Operation::answered(client, key, action, start, time)));
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<Record>) {
        for ((client, is_write, key), calls) in std::mem::take(&mut self.invoked) {
            for (start, value) in calls {
                let action = match is_write {
                    true => value.map_or(Action::Delete, Action::Write),
                    false => Action::Read(None),
                };
                let (key, outcome) = (key.as_str().into(), Outcome::Unknown);
                out.push(Record::Operation(Operation { client, key, action, start, finish: None, outcome }));
            }
        }
    }
}
