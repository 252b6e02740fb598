//! Jepsen histories, as EDN maps or as the lines of Jepsen's console log.
//!
//! ```text
//! {:process 0, :type :invoke, :f :write, :value 3, :time 120}
//! {:process 0, :type :ok, :f :write, :value 3, :time 190}
//! {:process 1, :type :invoke, :f :cas, :value [5 [3 4]], :time 200}          (independent keys: [key value])
//! {:process 2, :type :invoke, :f :txn, :value [[:append 5 1] [:r 5 nil]]}    (list-append)
//! {:process 2, :type :invoke, :f :append, :key "5", :value "x"}
//! INFO  jepsen.util - 4 :invoke :cas [3 0]
//! ```
//!
//! A line may hold any number of events, and a vector or list may enclose all events of the file. The order
//! of events without `:time` counts as their time. `:info` means an unknown outcome. An operation that ended
//! in `:fail` did not take effect. With [`FailedCas::Observed`], a failed compare-and-set also proves that
//! the key held another value. The steps of a transaction count as separate operations over the same
//! interval. That every such step is atomic is necessary for serializability but not sufficient.
//!
//! A completion must have the `:f`, the keys and the number of steps of its invocation. Events that
//! contradict their invocation are refused, as are a missing time where other events have one, and `nil`
//! inside a list. Each of these faults could make a history that is not atomic look atomic.

use std::collections::BTreeMap;

use super::form::{EdnForm, FormReader};
use super::{Decoder, Record, SyntaxError};
use crate::operation::{Action, Nanos, Operation, Outcome, Value};

/// Meaning of a compare-and-set that ended in `:type :fail`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailedCas {
    /// The operation did not take effect. Perhaps it was not even sent.
    #[default]
    Ignored,
    /// The store compared, and the key held another value.
    Observed,
}

/// Decodes Jepsen histories.
#[derive(Debug, Default)]
pub struct Edn {
    failed_cas: FailedCas,
    events: Nanos,
    /// Whether events have times. `None` before the first event; the first event decides for all events.
    timed: Option<bool>,
    open: BTreeMap<u64, OpenCall>,
}

#[derive(Debug)]
struct OpenCall {
    start: Nanos,
    /// The `:f` of the invocation.
    function: String,
    calls: Vec<(Box<str>, Action)>,
    /// Whether the values of the call have the form `[key value]`.
    keyed: bool,
}

impl Edn {
    /// Creates a decoder. `failed_cas` is the meaning of a failed compare-and-set.
    pub fn new(failed_cas: FailedCas) -> Self {
        Self { failed_cas, ..Self::default() }
    }
}

pub(super) struct EdnEvent {
    /// Column of the event's first character, from 1.
    column: usize,
    pub(super) process: u64,
    pub(super) kind: String,
    pub(super) function: String,
    key: Option<Box<str>>,
    pub(super) value: EdnForm,
    time: Option<Nanos>,
}

/// Values of the fields that an event may lack.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EventDefaults {
    pub(super) function: Option<&'static str>,
    pub(super) process: Option<u64>,
}

impl EdnEvent {
    pub(super) fn fault(&self, expected: impl Into<String>) -> SyntaxError {
        SyntaxError::new(self.column, expected)
    }
}

/// The key of all operations of a history that names no keys.
const ONLY_KEY: &str = "register";

impl Decoder for Edn {
    fn line(&mut self, line: &str, out: &mut Vec<Record>) -> Result<(), SyntaxError> {
        for event in events(line, EventDefaults::default())? {
            self.event(&event, out)?;
        }
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<Record>) {
        for (process, OpenCall { start, calls, .. }) in std::mem::take(&mut self.open) {
            unknown(process, start, calls, out);
        }
    }
}

impl Edn {
    fn event(&mut self, event: &EdnEvent, out: &mut Vec<Record>) -> Result<(), SyntaxError> {
        self.events += 1;
        if *self.timed.get_or_insert(event.time.is_some()) != event.time.is_some() {
            return Err(event.fault("expected a field :time in all events or in none"));
        }
        let now = event.time.unwrap_or(self.events);
        if event.kind == "invoke" {
            let open = opened(event, now)?;
            if let Some(OpenCall { start, calls, .. }) = self.open.insert(event.process, open) {
                unknown(event.process, start, calls, out); // the process went on without a completion
            }
            return Ok(());
        }
        let Some(OpenCall { start, function, calls, keyed }) = self.open.remove(&event.process) else {
            return Err(event.fault(format!("expected an earlier :invoke of process {}", event.process)));
        };
        if event.function != function {
            let found = &event.function;
            return Err(event.fault(format!("expected :f :{function}, as in the :invoke, found :{found}")));
        }
        match event.kind.as_str() {
            "ok" => {
                let answers = answers(event, &calls, keyed)?;
                for ((key, mut action), answer) in calls.into_iter().zip(answers) {
                    if let Action::Read(value) | Action::Dequeue(value) = &mut action {
                        *value = answer;
                    }
                    out.push(Record::Operation(Operation::answered(event.process, &key, action, start, now)));
                }
            }
            "fail" => {
                for (key, mut action) in calls {
                    let mut outcome = Outcome::Failed;
                    if let (Action::Cas { matched, .. }, FailedCas::Observed) = (&mut action, self.failed_cas)
                    {
                        (*matched, outcome) = (false, Outcome::Ok);
                    }
                    let (client, finish) = (event.process, Some(now));
                    out.push(Record::Operation(Operation { client, key, action, start, finish, outcome }));
                }
            }
            "info" => unknown(event.process, start, calls, out),
            other => {
                return Err(event.fault(format!("expected :invoke, :ok, :fail or :info, found :{other}")));
            }
        }
        Ok(())
    }
}

fn unknown(client: u64, start: Nanos, calls: Vec<(Box<str>, Action)>, out: &mut Vec<Record>) {
    for (key, action) in calls {
        let outcome = Outcome::Unknown;
        out.push(Record::Operation(Operation { client, key, action, start, finish: None, outcome }));
    }
}

/// Returns the client events of a line.
pub(super) fn events(line: &str, defaults: EventDefaults) -> Result<Vec<EdnEvent>, SyntaxError> {
    if let Some((_, rest)) = line.split_once("jepsen.util - ") {
        let base = line.len() - rest.len();
        let mut forms = FormReader { text: line, at: base };
        let process = forms.next()?;
        let EdnForm::Number(process) = process else { return Ok(Vec::new()) };
        let (kind, function, value) = (forms.next()?, forms.next()?, forms.next()?);
        let word = |form: EdnForm| match form {
            EdnForm::Keyword(word) => Ok(word),
            other => Err(SyntaxError::new(base + 1, format!("expected a keyword, found {other:?}"))),
        };
        let (kind, function) = (word(kind)?, word(function)?);
        let process = process
            .parse()
            .map_err(|_| SyntaxError::new(base + 1, "expected a process number below 2^64"))?;
        return Ok(vec![EdnEvent {
            column: base + 1,
            process,
            kind,
            function,
            key: None,
            value,
            time: None,
        }]);
    }
    let mut events = Vec::new();
    let mut forms = FormReader { text: line, at: 0 };
    loop {
        // The line may begin or end the vector or list that encloses all events.
        let rest = &line[forms.at..];
        forms.at += rest.len() - rest.trim_start_matches([' ', '[', ']', '(', ')', ',', '\t']).len();
        if line[forms.at..].trim().is_empty() || line[forms.at..].starts_with(';') {
            return Ok(events);
        }
        let column = forms.at + 1;
        let EdnForm::Map(map) = forms.next()? else {
            return Err(SyntaxError::new(column, "expected a map {:process … :type … :f …}"));
        };
        events.extend(event(map, column, defaults)?);
    }
}

/// Returns the event that a map describes, or `None` if it belongs to no client.
fn event(
    map: Vec<(EdnForm, EdnForm)>,
    column: usize,
    defaults: EventDefaults,
) -> Result<Option<EdnEvent>, SyntaxError> {
    let fault = |expected: String| SyntaxError::new(column, expected);
    let mut fields: BTreeMap<String, EdnForm> = BTreeMap::new();
    for (name, value) in map {
        if let EdnForm::Keyword(name) = name
            && fields.insert(name.clone(), value).is_some()
        {
            return Err(fault(format!("expected one field :{name}, found two")));
        }
    }
    let mut word = |name: &str, default: Option<&str>| match (fields.remove(name), default) {
        (Some(EdnForm::Keyword(word)), _) => Ok(word),
        (Some(other), _) => Err(fault(format!("expected :{name} to be a keyword, found {other:?}"))),
        (None, Some(default)) => Ok(default.into()),
        (None, None) => Err(fault(format!("expected a field :{name}"))),
    };
    let (kind, function) = (word("type", None)?, word("f", defaults.function)?);
    let process = match (fields.remove("process"), defaults.process) {
        (Some(EdnForm::Number(number)), _) => {
            number.parse().map_err(|_| fault(format!("expected a process number, found {number}")))?
        }
        (Some(_), _) => return Ok(None), // the nemesis
        (None, Some(process)) => process,
        (None, None) => return Err(fault("expected a field :process".into())),
    };
    let time = match fields.remove("time") {
        None | Some(EdnForm::Nil) => None,
        Some(EdnForm::Number(time)) => {
            Some(time.parse().map_err(|_| fault(format!("expected :time in ns, found {time}")))?)
        }
        Some(other) => return Err(fault(format!("expected :time in ns, found {other:?}"))),
    };
    let key = fields.remove("key").map_or(Ok(None), EdnForm::value).map_err(fault)?;
    let key = key.map(|key| key.to_string().into());
    let value = fields.remove("value").unwrap_or(EdnForm::Nil);
    Ok(Some(EdnEvent { column, process, kind, function, key, value, time }))
}

fn opened(event: &EdnEvent, start: Nanos) -> Result<OpenCall, SyntaxError> {
    let fault = |expected: String| event.fault(expected);
    let function = event.function.clone();
    let mut calls = Vec::new();
    if event.function == "txn" {
        let EdnForm::Sequence(steps) = &event.value else {
            return Err(fault("expected the :value of a :txn to be a vector".into()));
        };
        for step in steps {
            let (function, key, value) = transaction_step(step).map_err(fault)?;
            calls.push((key, action(function, value.clone()).map_err(fault)?));
        }
        return Ok(OpenCall { start, function, calls, keyed: false });
    }
    // `[key value]`, where the value fits the function: an invoked read takes nil, a compare-and-set takes a
    // pair.
    let keyed = event.key.is_none()
        && match (&event.value, event.function.as_str()) {
            (EdnForm::Sequence(parts), "cas") => matches!(&parts[..], [_, EdnForm::Sequence(_)]),
            (EdnForm::Sequence(parts), _) => parts.len() == 2,
            _ => false,
        };
    let (key, value) = match (&event.value, &event.key) {
        (EdnForm::Sequence(parts), None) if keyed => (key(&parts[0]).map_err(fault)?, parts[1].clone()),
        (value, Some(key)) => (key.clone(), value.clone()),
        (value, None) => (ONLY_KEY.into(), value.clone()),
    };
    calls.push((key, action(&event.function, value).map_err(fault)?));
    Ok(OpenCall { start, function, calls, keyed })
}

/// Returns the function, the key and the value of one step of a transaction.
fn transaction_step(step: &EdnForm) -> Result<(&str, Box<str>, &EdnForm), String> {
    if let EdnForm::Sequence(parts) = step
        && let [EdnForm::Keyword(function), of, value] = &parts[..]
    {
        return Ok((function, key(of)?, value));
    }
    Err(format!("expected [:r key nil] or [:append key value], found {step:?}"))
}

pub(super) fn key(form: &EdnForm) -> Result<Box<str>, String> {
    Ok(form.clone().value()?.map_or_else(String::new, |key| key.to_string()).into())
}

fn action(function: &str, value: EdnForm) -> Result<Action, String> {
    let given = |value: EdnForm| value.value()?.ok_or_else(|| format!("expected a value for :{function}"));
    Ok(match function {
        "read" | "r" | "get" => Action::Read(None),
        "write" | "w" | "put" => value.value()?.map_or(Action::Delete, Action::Write),
        "delete" => Action::Delete,
        "append" => Action::Append(given(value)?),
        "add" => Action::Add(given(value)?),
        "remove" => Action::Remove(given(value)?),
        "enqueue" => Action::Enqueue(given(value)?),
        "dequeue" => Action::Dequeue(None),
        "cas" => match value {
            EdnForm::Sequence(pair) if pair.len() == 2 => {
                let [expected, new] = <[EdnForm; 2]>::try_from(pair).expect("the pair has two parts");
                let new = new.value()?.ok_or("expected a new value for :cas, found nil")?;
                Action::Cas { expected: expected.value()?, new, matched: true }
            }
            other => return Err(format!("expected [old new] for :cas, found {other:?}")),
        },
        other => {
            return Err(format!(
                "expected :f to be :read, :write, :cas, :append, :add, :remove, :enqueue, :dequeue or :txn, found :{other}"
            ));
        }
    })
}

/// Returns the answer to each call of the event.
fn answers(
    event: &EdnEvent,
    calls: &[(Box<str>, Action)],
    keyed: bool,
) -> Result<Vec<Option<Value>>, SyntaxError> {
    let fault = |expected: String| event.fault(expected);
    let same_key = |found: &str, invoked: &str| {
        let wrong = || fault(format!("expected key {invoked}, as in the :invoke, found {found}"));
        if found == invoked { Ok(()) } else { Err(wrong()) }
    };
    match (&event.value, event.function.as_str()) {
        (EdnForm::Sequence(steps), "txn") if steps.len() == calls.len() => {
            let mut answers = Vec::new();
            for (step, (invoked, _)) in steps.iter().zip(calls) {
                let (_, key, value) = transaction_step(step).map_err(fault)?;
                same_key(&key, invoked)?;
                answers.push(value.clone().value().map_err(fault)?);
            }
            Ok(answers)
        }
        (_, "txn") => Err(fault(format!("expected a :value with the {} steps of the :invoke", calls.len()))),
        // Every function but `:txn` is one call. An update has no answer apart from its success.
        (_, function) if !matches!(function, "read" | "r" | "get" | "dequeue") => Ok(vec![None]),
        (EdnForm::Sequence(parts), _) if keyed && parts.len() == 2 => {
            same_key(&key(&parts[0]).map_err(fault)?, &calls[0].0)?;
            Ok(vec![parts[1].clone().value().map_err(fault)?])
        }
        _ if keyed => Err(fault("expected [key value], as in the :invoke".into())),
        // Stores of appendable texts begin with an empty text, which counts as "nothing".
        (EdnForm::Text(text), "get") if text.is_empty() => Ok(vec![None]),
        (value, _) => Ok(vec![value.clone().value().map_err(fault)?]),
    }
}
