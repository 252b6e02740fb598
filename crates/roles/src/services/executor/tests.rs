//! Tests the executor with an object that keeps values by key.

use std::{cell::RefCell, collections::BTreeMap};

use super::*;
use crate::services::{Tasks, split_clock};

/// Values by key. Changes of different keys commute.
#[derive(Default)]
struct Values {
    values: BTreeMap<u64, u64>,
    clock: u64,
}

impl Object for Values {
    type Undo = (u64, Option<u64>);

    fn execute(&mut self, request: &Bytes, read: bool) -> Result<Execution<Self::Undo>, Refused> {
        if read {
            return Ok(Execution { reply: Bytes::new(), change: None });
        }
        self.clock += 1;
        let (key, value) = pair(request);
        let undo = (key, self.values.insert(key, value));
        let change = [&self.clock.to_le_bytes()[..], request].concat().into();
        Ok(Execution { reply: Bytes::new(), change: Some((change, undo)) })
    }

    fn apply(&mut self, change: &Bytes) -> Result<(), String> {
        let (clock, change) = split_clock(change).ok_or("the change is cut off")?;
        let (key, value) = pair(change);
        self.values.insert(key, value);
        self.advance(clock);
        Ok(())
    }

    fn revert(&mut self, (key, before): (u64, Option<u64>)) -> Result<(), String> {
        match before {
            Some(value) => self.values.insert(key, value),
            None => self.values.remove(&key),
        };
        Ok(())
    }

    fn state(&mut self) -> Result<Bytes, String> {
        Ok(self.values.iter().flat_map(|(key, value)| bytes((*key, *value))).collect())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        self.values = state.chunks(16).map(pair).collect();
        Ok(())
    }

    fn clock(&self) -> u64 {
        self.clock
    }

    fn advance(&mut self, to: u64) {
        self.clock = self.clock.max(to);
    }
}

fn bytes((key, value): (u64, u64)) -> Bytes {
    [key.to_le_bytes(), value.to_le_bytes()].concat().into()
}

fn pair(bytes: &[u8]) -> (u64, u64) {
    let (key, value) = bytes.split_first_chunk().expect("a key");
    (u64::from_le_bytes(*key), u64::from_le_bytes(value.try_into().expect("a value")))
}

/// Drives an executor. Transactions are numbered from 1, and number 0 means a write outside of transactions.
struct Bench {
    object: Values,
    executor: Executor<(u64, Option<u64>), &'static str>,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(Restoring::default(), false, false)
    }

    fn with(restoring: Restoring, whole_states: bool, any_order: bool) -> Bench {
        Bench { object: Values::default(), executor: Executor::new(restoring, whole_states, any_order) }
    }

    fn transaction(number: u64) -> Option<TransactionId> {
        (number > 0).then_some(TransactionId { session: service::SessionId(1), number })
    }

    fn execute(&mut self, work: u64, transaction: u64, change: (u64, u64)) -> Bytes {
        let transaction = Bench::transaction(transaction);
        let order = Event::Execute { work, request: bytes(change), read: false, transaction };
        match &self.perform(order)[..] {
            [Command::Executed { result: service::Executed::Changed { change, .. }, .. }] => change.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn commit(&mut self, work: u64, transaction: u64) {
        let transaction = Bench::transaction(transaction).unwrap();
        self.perform(Event::Commit { work, transaction });
    }

    fn abort(&mut self, transaction: u64) {
        let transaction = Bench::transaction(transaction).unwrap();
        self.perform(Event::Abort { transaction });
    }

    fn perform(&mut self, order: Event) -> Vec<Command> {
        let mut commands = Vec::new();
        let Bench { object, executor } = self;
        executor.perform(object, order, &mut |command| commands.push(command)).unwrap();
        commands
    }

    fn keys(&self) -> Vec<u64> {
        self.object.values.keys().copied().collect()
    }

    /// Returns the receivers that get a copy at this call, each with the number of changes in its copy.
    fn copies(&mut self) -> Vec<(&'static str, u64)> {
        let given = RefCell::new(Vec::new());
        self.executor.give_copies(&mut self.object, |receiver, copy| {
            let copy = copy.unwrap();
            let (_, changes, _) = split_state(&copy).unwrap();
            given.borrow_mut().push((receiver, changes));
        });
        given.into_inner()
    }
}

#[test]
fn changes_that_are_not_chosen_are_reverted_and_chosen_ones_stay() {
    let mut bench = Bench::new();
    for work in 1..=3 {
        bench.execute(work, 0, (10 * work, 0));
    }
    bench.perform(Event::Chosen { work: 2 });
    bench.perform(Event::Revert);
    assert_eq!((bench.keys(), bench.executor.changes()), (vec![10, 20], 2));
}

#[test]
fn works_that_complete_in_any_order_are_chosen_in_that_order() {
    let mut bench = Bench::with(Restoring::default(), false, true);
    for work in [3, 1, 2] {
        bench.execute(work, 0, (10 * work, 0));
    }
    bench.perform(Event::Chosen { work: 1 });
    bench.perform(Event::Revert);
    assert_eq!(bench.keys(), [10, 30]);
}

#[test]
fn a_chosen_change_in_front_of_which_a_commit_stands_is_not_taken_back() {
    let mut bench = Bench::new();
    bench.execute(1, 1, (10, 0));
    bench.execute(2, 0, (20, 0));
    bench.commit(3, 1);
    bench.perform(Event::Chosen { work: 2 });
    bench.perform(Event::Revert);
    assert_eq!(bench.keys(), [20], "the plain write is chosen, and the commit is not");
}

#[test]
fn of_two_transactions_that_commit_in_the_other_order_the_chosen_one_stays() {
    let mut bench = Bench::new();
    bench.execute(1, 1, (10, 0));
    bench.execute(2, 2, (20, 0));
    bench.commit(3, 2);
    bench.commit(4, 1);
    bench.perform(Event::Chosen { work: 3 });
    bench.perform(Event::Revert);
    assert_eq!(bench.keys(), [20]);
}

/// A transaction without changes commits before a transaction with changes. Choosing the first commit must
/// not choose the second.
#[test]
fn a_transaction_without_changes_commits_between_others() {
    let mut bench = Bench::new();
    bench.execute(1, 1, (10, 0));
    bench.execute(2, 0, (20, 0));
    bench.commit(3, 3);
    bench.commit(4, 1);
    bench.execute(5, 0, (30, 0));
    bench.perform(Event::Chosen { work: 3 });
    bench.execute(6, 0, (40, 0));
    bench.perform(Event::Revert);
    assert_eq!(bench.keys(), [20]);
}

/// Executes random orders. The result must equal that of a plain list of changes, each of which names its
/// work.
#[test]
fn random_transactions_keep_exactly_what_is_chosen() {
    struct Change {
        work: u64,
        transaction: u64,
        change: (u64, u64),
    }
    let mut chance = 1_u64;
    let mut below = |end: u64| {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (chance >> 33) % end
    };
    for _ in 0..300 {
        let mut bench = Bench::new();
        let (mut kept, mut unchosen) = (BTreeMap::new(), Vec::<Change>::new());
        let mut transactions = 0;
        let mut open: Vec<u64> = Vec::new();
        let mut chosen = 0;
        for work in 1..=40 {
            let of = |transaction: u64| move |it: &Change| it.transaction == transaction;
            match below(10) {
                0..4 => {
                    // Keys of plain writes are below 8. Keys of transactions are 100 or higher, because open
                    // transactions lock their keys.
                    let change = (below(8), work);
                    bench.execute(work, 0, change);
                    unchosen.push(Change { work, transaction: 0, change });
                }
                4..6 => {
                    if open.len() < 3 {
                        transactions += 1;
                        open.push(transactions);
                    }
                    let transaction = open[below(open.len() as u64) as usize];
                    let change = (100 * transaction + below(2), work);
                    bench.execute(work, transaction, change);
                    unchosen.push(Change { work, transaction, change });
                }
                6..8 if !open.is_empty() => {
                    let transaction = open.swap_remove(below(open.len() as u64) as usize);
                    bench.commit(work, transaction);
                    for it in unchosen.iter_mut().filter(|it| of(transaction)(it)) {
                        (it.work, it.transaction) = (work, 0);
                    }
                }
                8 if !open.is_empty() => {
                    let transaction = open.swap_remove(below(open.len() as u64) as usize);
                    bench.abort(transaction);
                    unchosen.retain(|it| !of(transaction)(it));
                }
                _ => {
                    chosen += below(work - chosen);
                    bench.perform(Event::Chosen { work: chosen });
                    let is_chosen = |it: &Change| it.transaction == 0 && it.work <= chosen;
                    kept.extend(unchosen.iter().filter(|it| is_chosen(it)).map(|it| it.change));
                    unchosen.retain(|it| !is_chosen(it));
                }
            }
            let mut all = kept.clone();
            all.extend(unchosen.iter().map(|it| it.change));
            assert_eq!(bench.object.values, all);
        }
        bench.perform(Event::Revert);
        assert_eq!(bench.object.values, kept);
        assert!(bench.executor.is_chosen() && !bench.executor.undo.has_uncommitted());
    }
}

#[test]
fn a_backup_and_a_joiner_come_to_the_same_state_and_clock() {
    let (mut leader, mut backup, mut joiner) = (Bench::new(), Bench::new(), Bench::new());
    let changes = vec![leader.execute(1, 0, (10, 1)), leader.execute(2, 0, (20, 2))];
    backup.perform(Event::Apply { through: 2, changes });
    backup.perform(Event::Checkpoint { checkpoint: 1 });
    let mut first = true;
    loop {
        let given = backup.perform(Event::CheckpointPartWanted { checkpoint: 1, bytes: 7 });
        let [Command::CheckpointPart { bytes, last, .. }] = &given[..] else { panic!("{given:?}") };
        joiner.perform(Event::RestorePart { first, bytes: bytes.clone() });
        first = false;
        if *last {
            break;
        }
    }
    joiner.perform(Event::Restore { through: 2 });
    for bench in [&backup, &joiner] {
        assert_eq!(bench.object.values, leader.object.values);
        assert_eq!((bench.object.clock, bench.executor.changes()), (leader.object.clock, 2));
    }
    assert_eq!((backup.executor.restored(), joiner.executor.restored()), (0, 1));
}

#[test]
fn a_whole_state_in_the_log_replaces_the_state_of_a_backup() {
    let mut leader = Bench::with(Restoring::default(), true, false);
    let mut backup = Bench::with(Restoring::default(), true, false);
    let states: Vec<Bytes> = (1..=2).map(|work| leader.execute(work, 0, (10 * work, 0))).collect();
    backup.perform(Event::Apply { through: 2, changes: vec![states[1].clone()] });
    assert_eq!((backup.keys(), backup.executor.changes()), (vec![10, 20], 2));
    leader.perform(Event::Revert);
    assert_eq!((leader.keys(), leader.executor.changes()), (vec![], 0));
}

#[test]
fn a_copy_holds_no_change_that_may_be_taken_back() {
    let mut bench = Bench::new();
    bench.execute(1, 0, (10, 0));
    bench.executor.want_copy("first");
    assert_eq!(bench.copies(), [], "a change in it is not chosen");
    bench.execute(2, 0, (20, 0));
    bench.perform(Event::Chosen { work: 1 });
    assert_eq!(bench.copies(), [("first", 1)], "the copy is of the state before the second change");

    bench.executor.want_copy("second");
    assert_eq!(bench.copies(), []);
    bench.perform(Event::Revert);
    assert_eq!(bench.copies(), [("second", 1)], "the change was taken back, and another copy was taken");

    bench.execute(3, 1, (30, 0));
    bench.executor.want_copy("third");
    assert_eq!(bench.copies(), [], "a transaction is open");
    bench.commit(4, 1);
    assert_eq!(bench.copies(), [], "the commit is not chosen");
    bench.perform(Event::Chosen { work: 4 });
    assert_eq!(bench.copies(), [("third", 2)]);
}

#[test]
fn tasks_are_void_when_the_reign_ends_and_wait_while_the_service_rests() {
    let mut tasks = Tasks::default();
    let executor = Executor::<(), ()>::new(Restoring::default(), false, true);
    let mut answers = Vec::new();
    let mut take = |tasks: &mut Tasks<Bytes>, order| {
        let decode = |request: &Bytes| match request.is_empty() {
            true => Err(String::from("no request")),
            false => Ok(request.clone()),
        };
        tasks.take(order, &executor, decode, &mut |command| answers.push(command))
    };
    let execute = |work, request: &'static [u8]| {
        let request = Bytes::from_static(request);
        Event::Execute { work, request, read: false, transaction: None }
    };
    assert_eq!(take(&mut tasks, execute(1, b"a")), None);
    assert_eq!(take(&mut tasks, execute(2, b"")), None);
    assert_eq!(take(&mut tasks, Event::Rest { rest: 1 }), None);
    assert!(tasks.rests() && tasks.reign() == 0);
    let checkpoint = Event::Checkpoint { checkpoint: 1 };
    assert_eq!(take(&mut tasks, checkpoint.clone()), Some(checkpoint));
    assert!(!tasks.rests());
    assert_eq!(take(&mut tasks, Event::Revert), Some(Event::Revert));
    assert!(tasks.is_empty() && tasks.pop().is_none() && tasks.reign() == 1);
    assert!(matches!(
        &answers[..],
        [
            Command::Executed { work: 2, result: service::Executed::Rejected { .. } },
            Command::Rests { rest: 1 }
        ]
    ));
}
