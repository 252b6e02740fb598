//! The speed of judging histories of transactions.

use std::time::{Duration, Instant};

use quorate_history::transactions::{
    IsolationLevel, PositionReplay, RecordedTransaction, TransactionHistory, TransactionReport, judge,
};
use quorate_history::{Action, Outcome, Value};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use serde::Serialize;

use super::peak::{forget_peak, peak};

/// One measurement.
#[derive(Serialize)]
pub(super) struct TransactionCheckResult {
    name: String,
    transactions: u64,
    /// Time from recorded transactions in memory to the verdict, in seconds.
    seconds: f64,
    /// Peak memory of the process while it judged, in bytes.
    peak_bytes: Option<u64>,
    level: Option<IsolationLevel>,
}

impl TransactionCheckResult {
    /// Returns the measurement as a sentence.
    pub(super) fn sentence(&self) -> String {
        let Self { name, transactions, seconds, peak_bytes, level } = self;
        let peak = peak_bytes.map_or_else(String::new, |bytes| format!(", peak {} MB", bytes / 1_000_000));
        let level = level.map_or_else(|| "none".into(), |level| level.to_string());
        format!("{name}: {transactions} transactions in {seconds:.3} s{peak}, {level}")
    }
}

/// Measures how long it takes to judge `transactions` transactions of a strict serializable store: either
/// from the clients' observations, or by the positions of the transactions.
pub(super) fn measure(transactions: u64, by_position: bool) -> anyhow::Result<TransactionCheckResult> {
    let mut store = GeneratedStore::new();
    forget_peak();
    let mut seconds = Duration::ZERO;
    let mut timed = |work: &mut dyn FnMut() -> anyhow::Result<Option<TransactionReport>>| {
        let begin = Instant::now();
        let report = work();
        seconds += begin.elapsed();
        report
    };
    let mut replay = by_position.then(|| PositionReplay::new(WINDOW));
    let mut history = TransactionHistory::new();
    let mut left = transactions;
    while left > 0 {
        // The transactions are generated between the measured pieces, so that they need little memory.
        let mut piece: Vec<RecordedTransaction> = (0..left.min(PIECE)).map(|_| store.transaction()).collect();
        left -= piece.len() as u64;
        timed(&mut || {
            for transaction in piece.drain(..) {
                match &mut replay {
                    Some(replay) => replay.push(transaction)?,
                    None => history.push(&transaction)?,
                }
            }
            Ok(None)
        })?;
    }
    let report = timed(&mut || {
        Ok(Some(match replay.take() {
            Some(replay) => replay.finish()?,
            None => judge(&history)?,
        }))
    })?;
    let report = report.expect("the last piece judges");
    let method = if by_position { "by position" } else { "by dependencies" };
    Ok(TransactionCheckResult {
        name: format!("64 clients, lists and registers, {method}"),
        transactions: report.transactions,
        seconds: seconds.as_secs_f64(),
        peak_bytes: peak(),
        level: report.level,
    })
}

/// Number of transactions that are generated at a time.
const PIECE: u64 = 10_000;

/// Transactions among which the next position is sought.
const WINDOW: usize = 65_536;

const CLIENTS: u64 = 64;

/// Number of elements of a list after which the generator no longer uses its key.
const LIST_MAX: usize = 32;

/// Number of keys of each kind that are in use at one time.
const KEYS: usize = 64;

/// A strict serializable store and its clients, which do four steps a transaction.
struct GeneratedStore {
    random: Pcg64,
    position: u64,
    next_key: u64,
    lists: Vec<(Box<str>, Vec<Value>)>,
    registers: Vec<(Box<str>, Option<Value>)>,
    /// The time at which each client is free again.
    free: Vec<i64>,
}

impl GeneratedStore {
    fn new() -> Self {
        let keys = 0..KEYS;
        Self {
            random: Pcg64::seed_from_u64(4),
            position: 0,
            next_key: KEYS as u64,
            lists: keys.clone().map(|key| (format!("l{key}").into(), Vec::new())).collect(),
            registers: keys.map(|key| (format!("r{key}").into(), None)).collect(),
            free: vec![0; CLIENTS as usize],
        }
    }

    /// Returns the next transaction, which takes effect at the next position.
    fn transaction(&mut self) -> RecordedTransaction {
        self.position += 1;
        let at = self.position as i64 * 1_000;
        let client = self.random.random_range(0..CLIENTS);
        // The transaction begins before it takes effect, but not before its client is free.
        let free = &mut self.free[client as usize];
        let start = (at - self.random.random_range(0..20_000)).max(*free).min(at);
        let finish = at + self.random.random_range(0..20_000);
        *free = finish + 1;
        let client = if start < at { client } else { CLIENTS + self.position };
        let steps = (0..4).map(|step| self.step(step)).collect();
        let (outcome, position) = (Outcome::Ok, Some(self.position));
        RecordedTransaction { client, steps, start, finish: Some(finish), outcome, position }
    }

    fn step(&mut self, step: u64) -> (Box<str>, Action) {
        let value = Value::from(self.position * 4 + step);
        let index = self.random.random_range(0..KEYS);
        let writes = self.random.random_bool(0.5);
        if self.random.random_bool(0.5) {
            let (key, held) = &mut self.registers[index];
            let action = match writes {
                true => Action::Write(held.insert(value).clone()),
                false => Action::Read(held.clone()),
            };
            return (key.clone(), action);
        }
        let (key, list) = &mut self.lists[index];
        if !writes {
            return (key.clone(), Action::Read(Some(list.clone().into())));
        }
        list.push(value.clone());
        let key = key.clone();
        if list.len() >= LIST_MAX {
            self.lists[index] = (format!("l{}", self.next_key).into(), Vec::new());
            self.next_key += 1;
        }
        (key, Action::Append(value))
    }
}
