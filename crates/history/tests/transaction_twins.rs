//! Compares the judge of transactions with simulated stores, and with a slow twin that tries all orders.

use std::collections::BTreeMap;

use quorate_history::transactions::{
    Anomaly, IsolationLevel, PositionReplay, RecordedTransaction, TransactionReport,
};
use quorate_history::{Action, Outcome, Value};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::transactions::judged;

/// The values of each key. A key whose name begins with `l` is a list, every other key a register.
type Held = BTreeMap<Box<str>, Vec<Value>>;

/// Performs a step on a state and fills in the answer of a read.
fn perform(held: &mut Held, key: &str, action: &mut Action) {
    let list = held.entry(key.into()).or_default();
    match action {
        Action::Read(answer) => *answer = answer_of(key, list),
        Action::Write(value) => *list = vec![value.clone()],
        Action::Append(value) => list.push(value.clone()),
        _ => unreachable!("no other step is generated"),
    }
}

fn answer_of(key: &str, list: &[Value]) -> Option<Value> {
    match key.starts_with('l') {
        true => Some(list.to_vec().into()),
        false => list.last().cloned(),
    }
}

/// Returns random transactions without answers. Their intervals contain the instants 10, 20, 30 and so on, in
/// turn.
fn requests(random: &mut Pcg64, count: usize, registers: bool) -> Vec<RecordedTransaction> {
    let mut value = 0;
    let transactions = (0..count).map(|index| {
        let steps = random.random_range(1..=4);
        let steps = (0..steps).map(|_| {
            value += 1;
            let kind = if registers && random.random_bool(0.5) { "r" } else { "l" };
            let key = format!("{kind}{}", random.random_range(0..2)).into();
            let action = match (random.random_bool(0.5), kind) {
                (true, _) => Action::Read(None),
                (false, "l") => Action::Append(value.into()),
                (false, _) => Action::Write(value.into()),
            };
            (key, action)
        });
        let steps = steps.collect();
        let at = 10 * (index as i64 + 1);
        let (start, finish) = (at - random.random_range(0..15), at + random.random_range(0..15));
        let (client, outcome) = (index as u64, Outcome::Ok);
        RecordedTransaction {
            client,
            steps,
            start,
            finish: Some(finish),
            outcome,
            position: Some(index as u64),
        }
    });
    transactions.collect()
}

/// Adds a transaction that reads all lists after all other transactions, so that the order of their elements
/// is known.
fn read_all(transactions: &mut Vec<RecordedTransaction>, held: &Held) {
    let lists = held.iter().filter(|(key, _)| key.starts_with('l'));
    let steps: Vec<_> = lists.map(|(key, list)| (key.clone(), Action::Read(answer_of(key, list)))).collect();
    let (client, position) = (transactions.len() as u64, Some(transactions.len() as u64));
    let (start, finish, outcome) = (100_000, Some(100_001), Outcome::Ok);
    transactions.push(RecordedTransaction { client, steps, start, finish, outcome, position });
}

#[test]
fn serial_executions_are_strict_and_replay() {
    for seed in 0..400 {
        let mut random = Pcg64::seed_from_u64(seed);
        let mut transactions = requests(&mut random, 40, true);
        let mut held = Held::new();
        for transaction in &mut transactions {
            for (key, action) in &mut transaction.steps {
                perform(&mut held, key, action);
            }
        }
        // Lets some clients not learn the outcome, and removes some positions.
        let mut seen = transactions.clone();
        for transaction in seen.iter_mut().filter(|_| random.random_bool(0.1)) {
            (transaction.outcome, transaction.finish, transaction.position) = (Outcome::Unknown, None, None);
        }
        for history in [&transactions, &seen] {
            let report = judged(history);
            assert!(report.holds(IsolationLevel::StrictSerializable), "seed {seed}: {report}");
            let without: Vec<RecordedTransaction> = history
                .iter()
                .map(|transaction| RecordedTransaction { position: None, ..transaction.clone() })
                .collect();
            let report = judged(&without);
            assert!(report.holds(IsolationLevel::StrictSerializable), "seed {seed}: {report}");
            let mut replay = PositionReplay::new(7);
            history.iter().for_each(|transaction| replay.push(transaction.clone()).unwrap());
            let report = replay.finish().unwrap();
            assert!(report.holds(IsolationLevel::StrictSerializable), "seed {seed}: {report}");
        }
        planted(&mut random, transactions, seed);
    }
}

/// Shortens the answer of a read that must return more, and checks that the judge and the replay find this
/// fault.
fn planted(random: &mut Pcg64, mut transactions: Vec<RecordedTransaction>, seed: u64) {
    let first = random.random_range(0..transactions.len());
    let mut writers: BTreeMap<Value, i64> = BTreeMap::new();
    let mut planted = false;
    for (index, transaction) in transactions.iter_mut().enumerate() {
        let own: Vec<Value> = transaction
            .steps
            .iter()
            .filter_map(|(_, action)| match action {
                Action::Append(value) => Some(value.clone()),
                _ => None,
            })
            .collect();
        for (_, action) in &mut transaction.steps {
            let Action::Read(Some(Value::List(list))) = action else { continue };
            let Some((last, shorter)) = list.split_last() else { continue };
            let ended = writers.get(last).is_some_and(|finish| *finish < transaction.start);
            if !planted && index >= first && ended && !own.contains(last) {
                *action = Action::Read(Some(shorter.to_vec().into()));
                planted = true;
            }
        }
        for value in own {
            writers.insert(value, transaction.finish.unwrap());
        }
    }
    if planted {
        let report = judged(&transactions);
        assert!(!report.holds(IsolationLevel::StrictSerializable), "seed {seed}: {report}");
        let mut replay = PositionReplay::new(100);
        transactions.into_iter().for_each(|transaction| replay.push(transaction).unwrap());
        let report = replay.finish().unwrap();
        assert!(report.has(Anomaly::WrongAtPosition), "seed {seed}: {report}");
    }
}

/// Each transaction reads a snapshot. If two transactions write one key at the same time, the second fails.
#[test]
fn snapshot_isolation_shows_write_skew_at_most() {
    let mut skews = 0;
    for seed in 0..400 {
        let mut random = Pcg64::seed_from_u64(seed);
        let mut transactions = requests(&mut random, 30, true);
        let mut versions: Vec<Held> = vec![Held::new()];
        let mut written: BTreeMap<Box<str>, usize> = BTreeMap::new();
        for transaction in &mut transactions {
            let snapshot = versions.len() - 1 - random.random_range(0..4).min(versions.len() - 1);
            let mut own = versions[snapshot].clone();
            for (key, action) in &mut transaction.steps {
                perform(&mut own, key, action);
            }
            let writes: Vec<Box<str>> = transaction
                .steps
                .iter()
                .filter(|(_, action)| !matches!(action, Action::Read(_)))
                .map(|(key, _)| key.clone())
                .collect();
            if writes.iter().any(|key| written.get(key).is_some_and(|at| *at > snapshot)) {
                transaction.outcome = Outcome::Failed;
                continue;
            }
            let mut now = versions.last().unwrap().clone();
            for key in writes {
                written.insert(key.clone(), versions.len());
                now.insert(key.clone(), own[&key].clone());
            }
            versions.push(now);
        }
        for transaction in &mut transactions {
            transaction.position = None;
        }
        read_all(&mut transactions, versions.last().unwrap());
        let report = judged(&transactions);
        assert!(report.holds(IsolationLevel::SnapshotIsolation), "seed {seed}: {report}");
        skews += u32::from(report.has(Anomaly::G2Item));
    }
    assert!(skews > 20, "{skews}");
}

/// Whether some order of the transactions explains all answers. If `by_time` is true, the order must also
/// agree with time.
fn some_order(transactions: &[RecordedTransaction], by_time: bool) -> bool {
    fn go(left: &[&RecordedTransaction], held: &Held, by_time: bool) -> bool {
        left.is_empty()
            || (0..left.len()).any(|index| {
                let next = left[index];
                if by_time && left.iter().any(|other| other.finish.unwrap() < next.start) {
                    return false;
                }
                let mut after = held.clone();
                for (key, action) in &next.steps {
                    let mut performed = action.clone();
                    perform(&mut after, key, &mut performed);
                    if performed != *action {
                        return false;
                    }
                }
                let mut left = left.to_vec();
                left.remove(index);
                go(&left, &after, by_time)
            })
    }
    go(&transactions.iter().collect::<Vec<_>>(), &Held::new(), by_time)
}

/// Transactions take their steps on one state, in any order of steps, so that all kinds of anomalies occur.
#[test]
fn a_slow_twin_agrees() {
    let mut counts: BTreeMap<Anomaly, u32> = BTreeMap::new();
    for seed in 0..6_000 {
        let mut random = Pcg64::seed_from_u64(seed);
        let registers = seed % 2 == 1;
        let count = random.random_range(2..=4);
        let mut transactions = requests(&mut random, count, registers);
        let mut order: Vec<usize> = Vec::new();
        for (index, transaction) in transactions.iter().enumerate() {
            order.extend(transaction.steps.iter().map(|_| index));
        }
        if random.random_bool(0.8) {
            for index in (1..order.len()).rev() {
                order.swap(index, random.random_range(0..=index));
            }
        }
        let mut held = Held::new();
        let mut next = vec![0; transactions.len()];
        for index in order {
            let (key, action) = &mut transactions[index].steps[next[index]];
            next[index] += 1;
            perform(&mut held, key, action);
        }
        for transaction in &mut transactions {
            transaction.position = None;
        }
        read_all(&mut transactions, &held);
        let report: TransactionReport = judged(&transactions);
        for (level, by_time) in
            [(IsolationLevel::Serializable, false), (IsolationLevel::StrictSerializable, true)]
        {
            let explained = some_order(&transactions, by_time);
            // Registers do not show the order of all versions, so the judge may miss a violation on
            // registers.
            let agrees = report.holds(level) == explained || registers && !explained;
            assert!(agrees, "seed {seed}, {level}, some order: {explained}\n{report}");
        }
        for anomaly in report.anomalies {
            *counts.entry(anomaly.anomaly).or_default() += 1;
        }
    }
    for anomaly in [
        Anomaly::G0,
        Anomaly::G1b,
        Anomaly::G1c,
        Anomaly::Internal,
        Anomaly::LostUpdate,
        Anomaly::GSingle,
        Anomaly::G2Item,
        Anomaly::GSingleTime,
    ] {
        assert!(counts.get(&anomaly).is_some_and(|count| *count > 5), "{anomaly:?} in {counts:?}");
    }
}
