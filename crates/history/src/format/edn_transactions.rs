//! Jepsen histories of transactions. Each transaction is one record, and is not split into its steps.
//!
//! ```text
//! {:process 2, :type :invoke, :f :txn, :value [[:append 5 1] [:r 5 nil]]}
//! {:process 2, :type :ok, :f :txn, :value [[:append 5 1] [:r 5 [1]]]}
//! {:process 3, :type :ok, :f :txn, :value [[:w :x 1] [:r :y 7]]}
//! ```
//!
//! Steps are `[:append key value]`, `[:w key value]` and `[:r key value]`. An event without `:f` is a
//! transaction, and an event without `:process` is of process 0. The order of the events is the order of
//! time, because one process writes a Jepsen history; `:time` is not read. `:info` leaves the transaction
//! open: it may take effect at any later time.

use std::collections::BTreeMap;

use super::edn::{EdnEvent, EventDefaults, events, key};
use super::form::EdnForm;
use super::{Decoder, Record, SyntaxError};
use crate::operation::{Action, Nanos, Outcome};
use crate::transactions::RecordedTransaction;

/// A key, and the action of the transaction on this key.
type Step = (Box<str>, Action);

/// Decodes Jepsen histories of transactions.
#[derive(Debug, Default)]
pub struct EdnTransactions {
    events: Nanos,
    // Transactions that have not ended. Bounded by the history that the user supplies.
    open: BTreeMap<u64, RecordedTransaction>,
}

const DEFAULTS: EventDefaults = EventDefaults { function: Some("txn"), process: Some(0) };

impl Decoder for EdnTransactions {
    fn line(&mut self, line: &str, out: &mut Vec<Record>) -> Result<(), SyntaxError> {
        for event in events(line, DEFAULTS)? {
            self.event(&event, out)?;
        }
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<Record>) {
        out.extend(std::mem::take(&mut self.open).into_values().map(Record::Transaction));
    }
}

impl EdnTransactions {
    fn event(&mut self, event: &EdnEvent, out: &mut Vec<Record>) -> Result<(), SyntaxError> {
        self.events += 1;
        let client = event.process;
        if event.kind == "invoke" {
            let steps = steps(event)?;
            let (start, finish, outcome) = (self.events, None, Outcome::Unknown);
            let begun = RecordedTransaction { client, steps, start, finish, outcome, position: None };
            // If a process begins a transaction without a completion of its previous one, the previous one
            // stays open.
            out.extend(self.open.insert(client, begun).map(Record::Transaction));
            return Ok(());
        }
        let Some(mut transaction) = self.open.remove(&client) else {
            return Err(event.fault(format!("expected an earlier :invoke of process {client}")));
        };
        match event.kind.as_str() {
            "ok" => {
                let answered = steps(event)?;
                let alike = |(a, b): (&Step, &Step)| {
                    a.0 == b.0 && (a.1 == b.1 || matches!((&a.1, &b.1), (Action::Read(_), Action::Read(_))))
                };
                if answered.len() != transaction.steps.len()
                    || !answered.iter().zip(&transaction.steps).all(alike)
                {
                    return Err(event.fault("expected the keys and writes of the :invoke"));
                }
                transaction.steps = answered;
                transaction.finish = Some(self.events);
                transaction.outcome = Outcome::Ok;
            }
            "fail" => {
                transaction.finish = Some(self.events);
                transaction.outcome = Outcome::Failed;
            }
            "info" => {}
            other => {
                return Err(event.fault(format!("expected :invoke, :ok, :fail or :info, found :{other}")));
            }
        }
        out.push(Record::Transaction(transaction));
        Ok(())
    }
}

/// Returns the steps of an event's value.
fn steps(event: &EdnEvent) -> Result<Vec<Step>, SyntaxError> {
    let EdnForm::Sequence(forms) = &event.value else {
        return Err(event.fault("expected :value to be a vector of steps, such as [:r key nil]"));
    };
    forms.iter().map(step).collect::<Result<_, String>>().map_err(|expected| event.fault(expected))
}

fn step(form: &EdnForm) -> Result<Step, String> {
    let wrong = || format!("expected [:r key value], [:w key value] or [:append key value], found {form:?}");
    let EdnForm::Sequence(parts) = form else { return Err(wrong()) };
    let (function, of, value) = match &parts[..] {
        [EdnForm::Keyword(function), of] => (function, of, EdnForm::Nil),
        [EdnForm::Keyword(function), of, value] => (function, of, value.clone()),
        _ => return Err(wrong()),
    };
    let value = value.value()?;
    let written =
        |value: Option<_>| value.ok_or_else(|| format!("expected a value for :{function}, found nil"));
    let action = match function.as_str() {
        "r" => Action::Read(value),
        "w" => Action::Write(written(value)?),
        "append" => Action::Append(written(value)?),
        _ => return Err(wrong()),
    };
    Ok((key(of)?, action))
}
