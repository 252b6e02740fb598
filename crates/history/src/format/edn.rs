//! Jepsen histories: an event a line, as EDN maps or as the lines of its console log.
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
//! Where events have no `:time`, their order is the time. `:info` is an unknown outcome. A `:fail` did not take effect; with
//! [`FailedCas::Observed`] a failed compare-and-set says that the value was another one. The operations of a transaction are
//! taken one by one over the same interval, which is necessary for serializability but not sufficient.

use std::collections::BTreeMap;

use super::{Decoder, Fault, Record};
use crate::operation::{Action, Nanos, Operation, Outcome, Value};

/// What a compare-and-set with `:type :fail` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailedCas {
    /// Only that it did not happen: it may not even have been sent.
    #[default]
    Ignored,
    /// That the comparison was made and failed.
    Observed,
}

/// Decodes Jepsen histories.
#[derive(Debug, Default)]
pub struct Edn {
    failed_cas: FailedCas,
    events: Nanos,
    open: BTreeMap<u64, Open>,
}

#[derive(Debug)]
struct Open {
    start: Nanos,
    calls: Vec<(Box<str>, Action)>,
    /// Whether values are [key value].
    keyed: bool,
}

impl Edn {
    /// Decodes Jepsen histories, taking failed compare-and-sets as told.
    pub fn new(failed_cas: FailedCas) -> Self {
        Self { failed_cas, ..Self::default() }
    }
}

struct Event {
    process: u64,
    kind: String,
    function: String,
    key: Option<Box<str>>,
    value: Form,
    time: Option<Nanos>,
}

/// The key of histories that name none.
const ONLY_KEY: &str = "register";

impl Decoder for Edn {
    fn line(&mut self, line: &str, out: &mut Vec<Record>) -> Result<(), Fault> {
        let Some(event) = event(line)? else { return Ok(()) };
        self.events += 1;
        let now = event.time.unwrap_or(self.events);
        if event.kind == "invoke" {
            let open = opened(&event, now)?;
            if let Some(Open { start, calls, .. }) = self.open.insert(event.process, open) {
                unknown(event.process, start, calls, out); // it never ended, and the process goes on
            }
            return Ok(());
        }
        let Some(Open { start, calls, keyed }) = self.open.remove(&event.process) else {
            return Err(Fault::new(1, format!("expected an :invoke of process {} before", event.process)));
        };
        match event.kind.as_str() {
            "ok" => {
                let answers = answers(&event, &calls, keyed);
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
                let column = line.find(other).unwrap_or(0) + 1;
                let expected = format!("expected :invoke, :ok, :fail or :info, found :{other}");
                return Err(Fault::new(column, expected));
            }
        }
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<Record>) {
        for (process, Open { start, calls, .. }) in std::mem::take(&mut self.open) {
            unknown(process, start, calls, out);
        }
    }
}

fn unknown(client: u64, start: Nanos, calls: Vec<(Box<str>, Action)>, out: &mut Vec<Record>) {
    for (key, action) in calls {
        let outcome = Outcome::Unknown;
        out.push(Record::Operation(Operation { client, key, action, start, finish: None, outcome }));
    }
}

/// The event of a line; `None` if it is no client's.
fn event(line: &str) -> Result<Option<Event>, Fault> {
    if let Some((_, rest)) = line.split_once("jepsen.util - ") {
        let base = line.len() - rest.len();
        let mut forms = Forms { text: line, at: base };
        let process = forms.next()?;
        let Form::Number(process) = process else { return Ok(None) };
        let (kind, function, value) = (forms.next()?, forms.next()?, forms.next()?);
        let word = |form: Form| match form {
            Form::Keyword(word) => Ok(word),
            other => Err(Fault::new(base + 1, format!("expected a keyword, found {other:?}"))),
        };
        let (kind, function) = (word(kind)?, word(function)?);
        let process = process.parse().map_err(|_| Fault::new(base + 1, "expected a process number"))?;
        return Ok(Some(Event { process, kind, function, key: None, value, time: None }));
    }
    // The vector around all events may begin and end on any line.
    let begin = line.len() - line.trim_start_matches([' ', '[', ',', '\t']).len();
    if line[begin..].trim().trim_start_matches([']', ' ']).is_empty() {
        return Ok(None);
    }
    let mut forms = Forms { text: line, at: begin };
    let Form::Map(map) = forms.next()? else {
        return Err(Fault::new(begin + 1, "expected a map {:process … :type … :f …}"));
    };
    let mut fields: BTreeMap<String, Form> = BTreeMap::new();
    for (name, value) in map {
        if let Form::Keyword(name) = name {
            fields.insert(name, value);
        }
    }
    let mut word = |name: &str| match fields.remove(name) {
        Some(Form::Keyword(word)) => Ok(word),
        Some(other) => {
            Err(Fault::new(begin + 1, format!("expected :{name} to be a keyword, found {other:?}")))
        }
        None => Err(Fault::new(begin + 1, format!("expected a field :{name}"))),
    };
    let (kind, function) = (word("type")?, word("f")?);
    let process = match fields.remove("process") {
        Some(Form::Number(number)) => number
            .parse()
            .map_err(|_| Fault::new(begin + 1, format!("expected a process number, found {number}")))?,
        Some(_) => return Ok(None), // the nemesis
        None => return Err(Fault::new(begin + 1, "expected a field :process")),
    };
    let time = match fields.remove("time") {
        Some(Form::Number(time)) => Some(
            time.parse().map_err(|_| Fault::new(begin + 1, format!("expected :time in ns, found {time}")))?,
        ),
        _ => None,
    };
    let key = fields.remove("key").and_then(Form::value).map(|key| key.to_string().into());
    let value = fields.remove("value").unwrap_or(Form::Nil);
    Ok(Some(Event { process, kind, function, key, value, time }))
}

fn opened(event: &Event, start: Nanos) -> Result<Open, Fault> {
    let fault = |expected: String| Fault::new(1, expected);
    let mut calls = Vec::new();
    if event.function == "txn" {
        let Form::Sequence(steps) = &event.value else {
            return Err(fault("expected the :value of a :txn to be a vector".into()));
        };
        for step in steps {
            let Form::Sequence(parts) = step else {
                return Err(fault("expected [:r key nil] or [:append key value]".into()));
            };
            let [Form::Keyword(function), key, value] = &parts[..] else {
                return Err(fault("expected [:r key nil] or [:append key value]".into()));
            };
            let key = key.clone().value().map_or_else(String::new, |key| key.to_string());
            calls.push((key.into(), action(function, value.clone()).map_err(fault)?));
        }
        return Ok(Open { start, calls, keyed: false });
    }
    // [key value], where value is what this function takes: an invoked read takes nil, a compare-and-set takes a pair.
    let keyed = event.key.is_none()
        && match (&event.value, event.function.as_str()) {
            (Form::Sequence(parts), "cas") => matches!(&parts[..], [_, Form::Sequence(_)]),
            (Form::Sequence(parts), _) => parts.len() == 2,
            _ => false,
        };
    let (key, value) = match (&event.value, &event.key) {
        (Form::Sequence(parts), None) if keyed => {
            let key = parts[0].clone().value().map_or_else(String::new, |key| key.to_string());
            (key.into(), parts[1].clone())
        }
        (value, Some(key)) => (key.clone(), value.clone()),
        (value, None) => (ONLY_KEY.into(), value.clone()),
    };
    calls.push((key, action(&event.function, value).map_err(fault)?));
    Ok(Open { start, calls, keyed })
}

fn action(function: &str, value: Form) -> Result<Action, String> {
    let given = |value: Form| value.value().ok_or_else(|| format!("expected a value for :{function}"));
    Ok(match function {
        "read" | "r" | "get" => Action::Read(None),
        "write" | "w" | "put" => value.value().map_or(Action::Delete, Action::Write),
        "delete" => Action::Delete,
        "append" => Action::Append(given(value)?),
        "add" => Action::Add(given(value)?),
        "remove" => Action::Remove(given(value)?),
        "enqueue" => Action::Enqueue(given(value)?),
        "dequeue" => Action::Dequeue(None),
        "cas" => match value {
            Form::Sequence(pair) if pair.len() == 2 => {
                let mut pair = pair.into_iter().map(Form::value);
                let (expected, new) = (pair.next().flatten(), pair.next().flatten());
                let new = new.ok_or("expected a value to set for :cas")?;
                Action::Cas { expected, new, matched: true }
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

/// What each call of the event returned.
fn answers(event: &Event, calls: &[(Box<str>, Action)], keyed: bool) -> Vec<Option<Value>> {
    let value = event.value.clone();
    match (value, event.function.as_str()) {
        (Form::Sequence(steps), "txn") => {
            let last = |step| match step {
                Form::Sequence(parts) => parts.into_iter().nth(2).and_then(Form::value),
                _ => None,
            };
            steps.into_iter().map(last).collect()
        }
        (Form::Sequence(parts), _) if keyed => vec![parts.into_iter().nth(1).and_then(Form::value)],
        // Stores of texts that can be appended to begin with an empty one.
        (Form::Text(text), "get") if text.is_empty() => vec![None],
        (value, _) => {
            let mut answers = vec![value.value()];
            answers.resize(calls.len(), None);
            answers
        }
    }
}

/// A piece of EDN.
#[derive(Clone, Debug, PartialEq)]
enum Form {
    Nil,
    Number(String),
    Text(String),
    Keyword(String),
    Symbol(String),
    Sequence(Vec<Form>),
    Map(Vec<(Form, Form)>),
}

impl Form {
    fn value(self) -> Option<Value> {
        match self {
            Self::Nil => None,
            Self::Number(text) | Self::Text(text) | Self::Symbol(text) => Some(text.into()),
            Self::Keyword(word) => Some(format!(":{word}").into()),
            Self::Sequence(forms) => {
                Some(forms.into_iter().filter_map(Form::value).collect::<Vec<_>>().into())
            }
            Self::Map(pairs) => Some(format!("{pairs:?}").into()),
        }
    }
}

/// Reads forms off a line.
struct Forms<'a> {
    text: &'a str,
    at: usize,
}

/// No event nests deeper; what does is not followed to the end of the stack.
const DEPTH_MAX: usize = 32;

impl Forms<'_> {
    fn next(&mut self) -> Result<Form, Fault> {
        self.form(0)
    }

    fn form(&mut self, depth: usize) -> Result<Form, Fault> {
        if depth > DEPTH_MAX {
            return Err(self.fault("expected less nesting"));
        }
        self.skip_space();
        let rest = &self.text[self.at..];
        match rest.chars().next() {
            None => Err(self.fault("expected a value, found the end of the line")),
            Some('[') => self.sequence(']', depth).map(Form::Sequence),
            Some('(') => self.sequence(')', depth).map(Form::Sequence),
            Some('{') => {
                let forms = self.sequence('}', depth)?;
                if forms.len() % 2 == 1 {
                    return Err(self.fault("expected a value for every key of the map"));
                }
                let mut forms = forms.into_iter();
                let pairs = std::iter::from_fn(|| Some((forms.next()?, forms.next()?)));
                Ok(Form::Map(pairs.collect()))
            }
            Some('"') => self.text(),
            Some('#') if rest.starts_with("#{") => {
                self.at += 1;
                self.sequence('}', depth).map(Form::Sequence)
            }
            Some('#') => {
                self.at += 1;
                self.word(); // the tag: what follows is taken for itself
                self.form(depth + 1)
            }
            Some(':') => {
                self.at += 1;
                Ok(Form::Keyword(self.word().into()))
            }
            Some(c) if c == ']' || c == ')' || c == '}' => {
                Err(self.fault(&format!("expected a value, found {c}")))
            }
            Some(_) => Ok(match self.word() {
                "nil" => Form::Nil,
                number if number.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
                    Form::Number(number.into())
                }
                symbol => Form::Symbol(symbol.into()),
            }),
        }
    }

    fn sequence(&mut self, close: char, depth: usize) -> Result<Vec<Form>, Fault> {
        self.at += 1;
        let mut forms = Vec::new();
        loop {
            self.skip_space();
            if self.text[self.at..].starts_with(close) {
                self.at += 1;
                return Ok(forms);
            }
            if self.at == self.text.len() {
                return Err(self.fault(&format!("expected {close}")));
            }
            forms.push(self.form(depth + 1)?);
        }
    }

    fn text(&mut self) -> Result<Form, Fault> {
        let mut text = String::new();
        let mut chars = self.text[self.at..].char_indices().skip(1);
        while let Some((offset, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += offset + 1;
                    return Ok(Form::Text(text));
                }
                '\\' => text.push(match chars.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, 't')) => '\t',
                    Some((_, 'r')) => '\r',
                    Some((_, other)) => other,
                    None => break,
                }),
                c => text.push(c),
            }
        }
        self.at = self.text.len();
        Err(self.fault("expected a closing quotation mark"))
    }

    fn word(&mut self) -> &str {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| c.is_whitespace() || ",[](){}\"".contains(c)).unwrap_or(rest.len());
        // A character that begins nothing is a word of its own, so that reading always goes on.
        let end = if end == 0 { rest.chars().next().map_or(0, char::len_utf8) } else { end };
        self.at += end;
        &rest[..end]
    }

    fn skip_space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',').len();
    }

    fn fault(&self, expected: &str) -> Fault {
        Fault::new(self.at + 1, expected)
    }
}
