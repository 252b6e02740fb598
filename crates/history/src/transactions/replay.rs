//! Transactions applied in the order of their positions.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::atoms::{Atom, Atoms};
use super::history::{RefusedTransaction, admit};
use super::report::{Anomaly, AnomalyReport, TransactionReport};
use super::transaction::RecordedTransaction;
use crate::operation::{Action, Nanos, Outcome, Value};

/// Applies transactions in the order of their positions and compares every read.
///
/// Transactions may come out of order, as long as each one is among the next `window` transactions by
/// position when it comes. A transaction of unknown outcome without a position may have taken effect
/// anywhere: each of its writes counts from the first read that shows it. The replay does not judge whether
/// these writes take effect together.
#[derive(Debug)]
pub struct PositionReplay {
    window: usize,
    /// Transactions that wait for their turn, sorted by position. At one position the transaction that writes
    /// comes first.
    // Bounded by the window.
    waiting: BTreeMap<(u64, bool, u64), RecordedTransaction>,
    arrived: u64,
    applied: u64,
    last_position: u64,
    /// Position of the last transaction that wrote.
    last_write: Option<u64>,
    /// The latest start of an applied transaction, and that transaction's client and position.
    latest_start: (Nanos, u64, u64),
    // Bounded by the keys of the history, which a user hands in.
    key_numbers: FxHashMap<Box<str>, u32>,
    keys: Vec<HeldKey>,
    atoms: Atoms,
    // Bounded by the transactions of unknown outcome.
    open: BTreeSet<(u32, Atom)>,
    wrong: Option<AnomalyReport>,
    against_time: Option<AnomalyReport>,
    /// The list that `explains` compared last. The replay keeps it to use its memory again.
    list: Vec<Atom>,
}

/// A key with its value after the transactions that were applied so far.
#[derive(Debug)]
struct HeldKey {
    name: Box<str>,
    held: Held,
    /// Position of the last write, if there was one.
    written_at: Option<u64>,
}

#[derive(Debug)]
enum Held {
    Nothing,
    Value(Atom),
    List(Vec<Atom>),
}

impl PositionReplay {
    /// Creates a replay that holds back at most `window` transactions.
    pub fn new(window: usize) -> Self {
        Self {
            window,
            waiting: BTreeMap::new(),
            arrived: 0,
            applied: 0,
            last_position: 0,
            last_write: None,
            latest_start: (Nanos::MIN, 0, 0),
            key_numbers: FxHashMap::default(),
            keys: Vec::new(),
            atoms: Atoms::default(),
            open: BTreeSet::new(),
            wrong: None,
            against_time: None,
            list: Vec::new(),
        }
    }

    /// Adds one transaction.
    pub fn push(&mut self, transaction: RecordedTransaction) -> Result<(), RefusedTransaction> {
        admit(&transaction)?;
        let position = match (transaction.outcome, transaction.position) {
            (Outcome::Failed, _) => return Ok(()),
            (Outcome::Unknown, None) => return self.leave_open(&transaction),
            (Outcome::Ok, None) => return Err(RefusedTransaction::PositionMissing),
            (_, Some(position)) => position,
        };
        if self.applied > 0 && position < self.last_position {
            let (applied, window) = (self.last_position, self.window);
            return Err(RefusedTransaction::BeyondWindow { position, applied, window });
        }
        let only_reads = transaction.steps.iter().all(|(_, action)| matches!(action, Action::Read(_)));
        self.arrived += 1;
        self.waiting.insert((position, only_reads, self.arrived), transaction);
        if self.waiting.len() > self.window {
            self.apply_first()?;
        }
        Ok(())
    }

    /// Applies the transactions that still wait, and returns the report.
    pub fn finish(mut self) -> Result<TransactionReport, RefusedTransaction> {
        while !self.waiting.is_empty() {
            self.apply_first()?;
        }
        let anomalies = self.wrong.into_iter().chain(self.against_time).collect();
        Ok(TransactionReport::new(self.applied, self.keys.len() as u64, anomalies))
    }

    fn key(&mut self, name: &str) -> u32 {
        if let Some(number) = self.key_numbers.get(name) {
            return *number;
        }
        let number = self.keys.len() as u32;
        self.keys.push(HeldKey { name: name.into(), held: Held::Nothing, written_at: None });
        self.key_numbers.insert(name.into(), number);
        number
    }

    fn leave_open(&mut self, transaction: &RecordedTransaction) -> Result<(), RefusedTransaction> {
        for (key, action) in &transaction.steps {
            let key = self.key(key);
            match action {
                Action::Write(value) | Action::Append(value) => {
                    self.open.insert((key, self.atoms.intern(value)));
                }
                Action::Read(_) => {}
                other => return Err(RefusedTransaction::OtherStep(other.name())),
            }
        }
        Ok(())
    }

    fn apply_first(&mut self) -> Result<(), RefusedTransaction> {
        let Some(((position, only_reads, _), transaction)) = self.waiting.pop_first() else { return Ok(()) };
        if !only_reads && self.last_write.replace(position) == Some(position) {
            return Err(RefusedTransaction::PositionTwice(position));
        }
        self.last_position = position;
        self.applied += 1;
        let answered = transaction.outcome == Outcome::Ok;
        let (latest, client, other) = self.latest_start;
        if let Some(finish) = transaction.finish.filter(|finish| answered && *finish < latest) {
            self.ended_before(&transaction, position, finish, (client, other));
        }
        if transaction.start > latest {
            self.latest_start = (transaction.start, transaction.client, position);
        }
        for (key, action) in &transaction.steps {
            let key = self.key(key);
            match action {
                Action::Read(_) if !answered => {}
                Action::Read(value) => {
                    if !self.explains(key, value.as_ref())? {
                        self.wrong_read(&transaction, position, key, value.as_ref());
                    }
                }
                Action::Write(value) => {
                    let atom = self.atoms.intern(value);
                    let held = &mut self.keys[key as usize];
                    if matches!(held.held, Held::List(_)) {
                        return Err(RefusedTransaction::MixedKinds(held.name.clone()));
                    }
                    (held.held, held.written_at) = (Held::Value(atom), Some(position));
                }
                Action::Append(value) => {
                    let atom = self.atoms.intern(value);
                    let held = &mut self.keys[key as usize];
                    held.written_at = Some(position);
                    match &mut held.held {
                        Held::List(list) => list.push(atom),
                        Held::Nothing => held.held = Held::List(vec![atom]),
                        Held::Value(_) => return Err(RefusedTransaction::MixedKinds(held.name.clone())),
                    }
                }
                other => return Err(RefusedTransaction::OtherStep(other.name())),
            }
        }
        Ok(())
    }

    /// Whether a read returned the value of the key. The read may also show writes of open transactions,
    /// which then take effect.
    fn explains(&mut self, key: u32, value: Option<&Value>) -> Result<bool, RefusedTransaction> {
        let held = &mut self.keys[key as usize];
        match value {
            None => Ok(match &held.held {
                Held::Nothing => true,
                Held::List(list) => list.is_empty(),
                Held::Value(_) => false,
            }),
            Some(Value::List(elements)) => {
                let none = Vec::new();
                let list = match &held.held {
                    Held::List(list) => list,
                    Held::Nothing => &none,
                    Held::Value(_) => return Err(RefusedTransaction::MixedKinds(held.name.clone())),
                };
                self.list.clear();
                self.list.extend(elements.iter().map(|value| self.atoms.intern(value)));
                if self.list == *list {
                    return Ok(true);
                }
                // Open transactions may have appended elements between the known elements.
                let mut known = list.iter().peekable();
                let mut adopted = Vec::new();
                for atom in &self.list {
                    if known.next_if_eq(&atom).is_some() {
                        continue;
                    }
                    if !self.open.contains(&(key, *atom)) {
                        return Ok(false);
                    }
                    adopted.push(*atom);
                }
                if known.next().is_some() {
                    return Ok(false);
                }
                for atom in adopted {
                    self.open.remove(&(key, atom));
                }
                held.held = Held::List(self.list.clone());
                Ok(true)
            }
            Some(value) => {
                if matches!(held.held, Held::List(_)) {
                    return Err(RefusedTransaction::MixedKinds(held.name.clone()));
                }
                let atom = self.atoms.intern(value);
                let same = matches!(held.held, Held::Value(other) if other == atom);
                let explained = same || self.open.remove(&(key, atom));
                if explained {
                    held.held = Held::Value(atom);
                }
                Ok(explained)
            }
        }
    }

    fn wrong_read(
        &mut self,
        transaction: &RecordedTransaction,
        position: u64,
        key: u32,
        value: Option<&Value>,
    ) {
        let (keys, atoms, list) = (&self.keys, &self.atoms, &self.list);
        let report = self.wrong.get_or_insert_with(|| {
            let HeldKey { name, held, written_at } = &keys[key as usize];
            let held = match held {
                Held::Nothing => "nothing".into(),
                Held::Value(atom) => atoms.text(*atom),
                Held::List(elements) => atoms.list_text(elements),
            };
            let written =
                written_at.map_or_else(String::new, |at| format!(", last written at position {at}"));
            let value = match value {
                None => "nothing".into(),
                Some(Value::List(_)) => atoms.list_text(list),
                Some(value) => value.to_string(),
            };
            let because =
                format!("The transaction read {name} = {value}; there {name} held {held}{written}.");
            first_case(Anomaly::WrongAtPosition, transaction, position, because)
        });
        report.count += 1;
    }

    fn ended_before(
        &mut self,
        transaction: &RecordedTransaction,
        position: u64,
        finish: Nanos,
        (client, other): (u64, u64),
    ) {
        let start = self.latest_start.0;
        let report = self.against_time.get_or_insert_with(|| {
            let because = format!(
                "The transaction ended at {finish}, and the one of client {client} at position {other} began at {start}."
            );
            first_case(Anomaly::PositionAgainstTime, transaction, position, because)
        });
        report.count += 1;
    }
}

fn first_case(
    anomaly: Anomaly,
    transaction: &RecordedTransaction,
    position: u64,
    because: String,
) -> AnomalyReport {
    let text =
        format!("client {} at position {position}, begun at {}", transaction.client, transaction.start);
    let (transactions, because) = (vec![text], vec![because]);
    AnomalyReport { anomaly, refutes: anomaly.refutes(), count: 0, transactions, because }
}
