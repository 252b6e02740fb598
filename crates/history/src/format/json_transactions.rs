//! JSON lines of transactions: one transaction a line.
//!
//! ```text
//! {"client":3,"txn":[["append","x",1],["r","y",[4,5]]],"start_ns":10,"end_ns":20,"outcome":"ok"}
//! {"client":4,"txn":[["w","k","v1"],["r","k","v1"]],"start_ns":30,"end_ns":40,"outcome":"ok","position":7}
//! {"client":5,"txn":[["append","x",2]],"start_ns":50,"outcome":"unknown"}
//! ```
//!
//! A step is `["append", key, value]`, `["w", key, value]` or `["r", key, value]`. The words `read` and
//! `write` are understood, too. `outcome` is `ok`, `failed` or `unknown`, and `ok` by default if the line has
//! `end_ns`. A read of an answered transaction needs its value, `null` for nothing. `position` is the place
//! in the order in which the store says that transactions took effect.
//! A line with neither `end_ns` nor `outcome` is a start record. A later line with the same client and start
//! replaces that record. Values are texts, as in [`json`](super::json).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::json::{LineOutcome, column, fault, value};
use super::{Decoder, Record, SyntaxError};
use crate::operation::{Action, Nanos, Outcome, Value};
use crate::transactions::RecordedTransaction;

#[derive(Deserialize)]
struct TransactionLine<'a> {
    client: Option<u64>,
    #[serde(borrow)]
    txn: Option<Vec<&'a RawValue>>,
    start_ns: Option<Nanos>,
    end_ns: Option<Nanos>,
    outcome: Option<LineOutcome>,
    position: Option<u64>,
    host: Option<String>,
    clock_error_ns: Option<u64>,
}

/// Decodes JSON lines of transactions.
#[derive(Debug, Default)]
pub struct JsonTransactions {
    // Transactions without an end record so far. Bounded by the history that the user supplies.
    started: BTreeMap<(u64, Nanos), RecordedTransaction>,
}

impl Decoder for JsonTransactions {
    fn line(&mut self, line: &str, out: &mut Vec<Record>) -> Result<(), SyntaxError> {
        if !line.trim_start().starts_with('{') {
            return Err(SyntaxError::new(1, "expected one object a line, {\"client\":…,\"txn\":[…]}"));
        }
        let fields: TransactionLine<'_> =
            serde_json::from_str(line).map_err(|error| fault(line, line, &error))?;
        if let (Some(host), Some(error)) = (fields.host, fields.clock_error_ns) {
            out.push(Record::Clock { host, error });
            return Ok(());
        }
        let missing = |field| SyntaxError::new(1, format!("expected a field \"{field}\""));
        let client = fields.client.ok_or_else(|| missing("client"))?;
        let start = fields.start_ns.ok_or_else(|| missing("start_ns"))?;
        let is_start = fields.outcome.is_none() && fields.end_ns.is_none();
        let outcome = match (fields.outcome, fields.end_ns) {
            (Some(LineOutcome::Ok), Some(_)) | (None, Some(_)) => Outcome::Ok,
            (Some(LineOutcome::Ok), None) => return Err(missing("end_ns")),
            (Some(LineOutcome::Failed), _) => Outcome::Failed,
            (Some(LineOutcome::Unknown) | None, _) => Outcome::Unknown,
        };
        let mut steps = Vec::new();
        for field in fields.txn.ok_or_else(|| missing("txn"))? {
            steps.push(step(line, field, outcome == Outcome::Ok)?);
        }
        let (finish, position) = (fields.end_ns, fields.position);
        let transaction = RecordedTransaction { client, steps, start, finish, outcome, position };
        if is_start {
            out.extend(self.started.insert((client, start), transaction).map(Record::Transaction));
        } else {
            self.started.remove(&(client, start));
            out.push(Record::Transaction(transaction));
        }
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<Record>) {
        out.extend(std::mem::take(&mut self.started).into_values().map(Record::Transaction));
    }
}

fn step(line: &str, field: &RawValue, answered: bool) -> Result<(Box<str>, Action), SyntaxError> {
    let at = column(line, field.get());
    let wrong = || SyntaxError::new(at, "expected a step, such as [\"append\",\"x\",1] or [\"r\",\"x\",[1]]");
    let parts: Vec<&RawValue> = serde_json::from_str(field.get()).map_err(|_| wrong())?;
    let (word, key, given) = match parts[..] {
        [word, key] => (word, key, None),
        [word, key, given] => (word, key, Some(given)),
        _ => return Err(wrong()),
    };
    let Some(Value::Text(word)) = value(line, word)? else { return Err(wrong()) };
    let Some(Value::Text(key)) = value(line, key)? else {
        return Err(SyntaxError::new(column(line, key.get()), "expected the key to be a string"));
    };
    let is_given = given.is_some();
    let given = given.map_or(Ok(None), |given| value(line, given))?;
    let written =
        |given: Option<Value>| given.ok_or_else(|| SyntaxError::new(at, "expected a value to write"));
    let action = match &*word {
        "r" | "read" if answered && !is_given => {
            return Err(SyntaxError::new(at, "expected the value that the read returned (null for nothing)"));
        }
        "r" | "read" => Action::Read(given),
        "w" | "write" => Action::Write(written(given)?),
        "append" => Action::Append(written(given)?),
        _ => return Err(wrong()),
    };
    Ok((key, action))
}
