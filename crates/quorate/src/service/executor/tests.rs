//! Tests the executor with a service that keeps words.

use std::{collections::BTreeMap, sync::Mutex};

use crossbeam_channel::bounded;
use serde::Deserialize;

use super::{super::Export, *};

/// A list of words. A delta is one word.
#[derive(Default, Serialize, Deserialize)]
struct Words(Vec<String>);

impl Service for Words {
    type Request = String;
    type Reply = usize;
    type Delta = String;
    type Undo = ();

    fn execute(&self, word: &String, cx: &mut Cx<'_>) -> Executed<Self> {
        cx.clock();
        assert!(!word.is_empty(), "no word");
        Executed::Changed(self.0.len() + 1, word.clone())
    }

    fn apply(&mut self, word: &String) {
        assert!(word != "poison", "no such word");
        self.0.push(word.clone());
    }

    fn revert(&mut self, (): ()) {
        self.0.pop();
    }
}

fn executor() -> Executor<Words> {
    Executor::new(Words::default(), Restoring::default(), Arc::default(), false)
}

fn order(work: u64, word: &str) -> Event {
    Event::Execute {
        work,
        request: Encoder::default().encode(&[], &word).unwrap(),
        read: false,
        transaction: None,
    }
}

#[test]
fn works_of_a_reign_that_is_over_are_not_carried_out() {
    let (mut executor, mut results) = (executor(), Results::default());
    let orders = [order(1, "a"), order(2, "b"), Event::Revert];
    orders.iter().take(1).for_each(|order| executor.tally.note(order));
    executor.perform(orders[0].clone(), &mut results).unwrap();
    orders.iter().skip(1).for_each(|order| executor.tally.note(order));
    executor.perform(orders[1].clone(), &mut results).unwrap();
    assert_eq!((results.waiting.len(), &executor.state.0), (1, &vec![String::from("a")]));
    executor.perform(Event::Revert, &mut results).unwrap();
    executor.perform(order(3, "c"), &mut results).unwrap();
    assert_eq!((results.waiting.len(), &executor.state.0), (2, &vec![String::from("c")]));
}

/// Executes `order` and returns its change.
fn change(executor: &mut Executor<Words>, order: Event) -> Bytes {
    let mut results = Results::default();
    executor.perform(order, &mut results).unwrap();
    match &results.waiting[..] {
        [service::Command::Executed { result: service::Executed::Changed { change, .. }, .. }] => {
            change.clone()
        }
        other => panic!("{other:?}"),
    }
}

fn perform(executor: &mut Executor<Words>, event: Event) -> Result<Vec<service::Command>, Broken> {
    let mut results = Results::default();
    executor.perform(event, &mut results)?;
    Ok(results.waiting)
}

#[test]
fn what_is_not_chosen_is_taken_back_and_what_is_chosen_stays() {
    let mut executor = executor();
    for (work, word) in [(1, "a"), (2, "b"), (3, "c")] {
        change(&mut executor, order(work, word));
    }
    perform(&mut executor, Event::Chosen { work: 2 }).unwrap();
    perform(&mut executor, Event::Revert).unwrap();
    assert_eq!(executor.state.0, ["a", "b"]);
    assert_eq!(executor.tally.changes.load(Ordering::Relaxed), 2);
}

#[test]
fn works_that_are_completed_in_any_order_are_chosen_in_that_order() {
    let mut executor = executor().in_any_order();
    for (work, word) in [(3, "c"), (1, "a"), (2, "b")] {
        change(&mut executor, order(work, word));
    }
    perform(&mut executor, Event::Chosen { work: 1 }).unwrap();
    perform(&mut executor, Event::Revert).unwrap();
    assert_eq!(executor.state.0, ["c", "a"]);
}

#[test]
fn an_aborted_transaction_is_taken_back_and_a_committed_one_goes_with_its_commit() {
    let transaction = |number| TransactionId { session: service::SessionId(1), number };
    let mut executor = executor();
    for (work, word, number) in [(1, "a", 1), (2, "b", 0), (3, "c", 2), (4, "d", 1)] {
        let Event::Execute { work, request, read, .. } = order(work, word) else { unreachable!() };
        let transaction = (number > 0).then(|| transaction(number));
        change(&mut executor, Event::Execute { work, request, read, transaction });
    }
    perform(&mut executor, Event::Chosen { work: 2 }).unwrap();
    // The default `keys` put every transaction under one lock, so this revert may take back the last word,
    // whichever transaction wrote it.
    perform(&mut executor, Event::Abort { transaction: transaction(1) }).unwrap();
    assert_eq!((executor.state.0.len(), executor.uncommitted), (2, 1));
    perform(&mut executor, Event::Commit { work: 5, transaction: transaction(2) }).unwrap();
    perform(&mut executor, Event::Chosen { work: 4 }).unwrap();
    assert_eq!(executor.undo.len(), 1, "its commit is not chosen");
    perform(&mut executor, Event::Revert).unwrap();
    assert_eq!((executor.state.0.len(), executor.uncommitted), (1, 0));
}

#[test]
fn a_backup_and_a_joiner_come_to_the_same_state_and_clock() {
    let (mut leader, mut backup, mut joiner) = (executor(), executor(), executor());
    let changes = vec![change(&mut leader, order(1, "a")), change(&mut leader, order(2, "b"))];
    perform(&mut backup, Event::Apply { through: 2, changes }).unwrap();
    assert_eq!(backup.clock.latest(), leader.clock.latest());
    perform(&mut backup, Event::Checkpoint { checkpoint: 1 }).unwrap();
    let mut first = true;
    loop {
        let wanted = Event::CheckpointPartWanted { checkpoint: 1, bytes: 7 };
        let given = perform(&mut backup, wanted).unwrap();
        let [service::Command::CheckpointPart { bytes, last, .. }] = &given[..] else { panic!("{given:?}") };
        let part = Event::RestorePart { first, bytes: bytes.clone() };
        perform(&mut joiner, part).unwrap();
        first = false;
        if *last {
            break;
        }
    }
    perform(&mut joiner, Event::Restore { through: 2 }).unwrap();
    assert_eq!(joiner.state.0, ["a", "b"]);
    assert_eq!(joiner.clock.latest(), leader.clock.latest());
    assert_eq!(joiner.tally.changes.load(Ordering::Relaxed), 2);
}

#[test]
fn what_does_not_decode_is_refused_to_a_client_and_ends_a_backup() {
    let mut executor = executor();
    let bytes = Bytes::from_static(&[200]);
    let execute = Event::Execute { work: 1, request: bytes.clone(), read: false, transaction: None };
    let given = perform(&mut executor, execute).unwrap();
    assert!(
        matches!(&given[..], [service::Command::Executed { result: service::Executed::Rejected { .. }, .. }]),
        "{given:?}"
    );
    let changes = vec![bytes.clone()];
    assert!(perform(&mut executor, Event::Apply { through: 1, changes }).is_err());
    perform(&mut executor, Event::RestorePart { first: true, bytes }).unwrap();
    assert!(perform(&mut executor, Event::Restore { through: 1 }).is_err());
    assert!(executor.state.0.is_empty());
}

struct Ear(Arc<Mutex<(Vec<service::Command>, Option<String>)>>);

impl Outlet for Ear {
    fn results(&self, results: Vec<service::Command>) -> bool {
        self.0.lock().unwrap().0.extend(results);
        true
    }

    fn broken(&self, why: String) {
        self.0.lock().unwrap().1 = Some(why);
    }
}

#[test]
fn a_panic_in_execute_is_a_refusal_and_one_in_apply_is_the_end_behind_a_refusal() {
    let (orders, waiting) = crossbeam_channel::unbounded();
    let (executor, heard) = (executor(), Arc::new(Mutex::default()));
    let tally = executor.tally.clone();
    let batch = vec![order(1, ""), order(2, "a"), order(3, "poison"), order(4, "b")];
    tally.backlog.fetch_add(batch.iter().map(weight).sum(), Ordering::Relaxed);
    orders.send(ExecutorOrder::Turn(batch)).unwrap();
    Box::new(executor).run(waiting, Arc::new(Ear(heard.clone())));
    let heard = heard.lock().unwrap();
    let works = heard.0.iter().map(|command| match command {
        service::Command::Executed { work, result } => {
            (*work, matches!(result, service::Executed::Rejected { .. }))
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(works.collect::<Vec<_>>(), [(1, true), (2, false), (3, true)], "none behind it is executed");
    assert!(heard.1.as_ref().unwrap().contains("no such word"), "{heard:?}");
}

/// A counter whose `revert` forgets `times`, and whose delta loses `hidden` when `serde` encodes it.
#[derive(Default, Serialize, Deserialize)]
struct Careless {
    sum: u64,
    times: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct Step {
    more: u64,
    #[serde(skip)]
    hidden: u64,
}

impl Service for Careless {
    type Request = (u64, u64);
    type Reply = u64;
    type Delta = Step;
    type Undo = u64;

    fn execute(&self, &(more, hidden): &(u64, u64), _: &mut Cx<'_>) -> Executed<Self> {
        Executed::Changed(self.sum, Step { more, hidden })
    }

    fn apply(&mut self, step: &Step) -> u64 {
        let before = self.sum;
        self.sum += step.more + step.hidden;
        self.times += step.more;
        before
    }

    fn revert(&mut self, before: u64) {
        self.sum = before;
    }
}

#[test]
fn checks_find_a_wrong_revert_and_a_delta_that_is_another_one_behind_its_bytes() {
    let outcome = |request: (u64, u64), checks| {
        let mut executor = Executor::new(Careless::default(), Restoring::default(), Arc::default(), checks);
        let request = Encoder::default().encode(&[], &request).unwrap();
        let execute = Event::Execute { work: 1, request, read: false, transaction: None };
        let mut results = Results::default();
        let broken = executor.perform(execute, &mut results).err().map(|Broken(why)| why);
        let [service::Command::Executed { result, .. }] = &results.waiting[..] else { panic!("one result") };
        assert_eq!(matches!(result, service::Executed::Rejected { .. }), broken.is_some());
        broken.unwrap_or_default()
    };
    assert_eq!(outcome((1, 0), false), "");
    assert!(
        outcome((1, 0), true).contains("a reverted change has not left the earlier state"),
        "{}",
        outcome((1, 0), true)
    );
    assert_eq!(outcome((0, 1), false), "");
    assert!(
        outcome((0, 1), true).contains("encoded and decoded has another effect"),
        "{}",
        outcome((0, 1), true)
    );
    assert_eq!(outcome((0, 0), true), "");
}

/// Random draws, kept. Executing a request again yields the same draw unless the request depends on
/// `ELSEWHERE`.
#[derive(Default, Serialize, Deserialize)]
struct Draws(Vec<u64>);

static ELSEWHERE: AtomicU64 = AtomicU64::new(0);

impl Service for Draws {
    type Request = bool;
    type Reply = u64;
    type Delta = u64;
    type Undo = ();

    const CARRIES: Carries = Carries::Witness;

    fn execute(&self, honest: &bool, cx: &mut Cx<'_>) -> Executed<Self> {
        let since = cx.clock().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        let elsewhere = if *honest { 0 } else { ELSEWHERE.fetch_add(1, Ordering::Relaxed) };
        let draw = cx.random() ^ since ^ elsewhere ^ self.0.len() as u64;
        Executed::Changed(draw, draw)
    }

    fn apply(&mut self, draw: &u64) {
        self.0.push(*draw);
    }

    fn revert(&mut self, (): ()) {
        self.0.pop();
    }
}

#[test]
fn a_witness_is_executed_again() {
    let ask = |honest: bool| Encoder::default().encode(&[], &honest).unwrap();
    let mut leader = Executor::new(Draws::default(), Restoring::default(), Arc::default(), true);
    let mut results = Results::default();
    for work in 1..=3 {
        let execute = Event::Execute { work, request: ask(true), read: false, transaction: None };
        leader.perform(execute, &mut results).unwrap();
    }
    let change = |command: &service::Command| match command {
        service::Command::Executed { result: service::Executed::Changed { change, .. }, .. } => {
            change.clone()
        }
        other => panic!("{other:?}"),
    };
    let changes: Vec<Bytes> = results.drain().map(|command| change(&command)).collect();
    let mut backup = Executor::new(Draws::default(), Restoring::default(), Arc::default(), false);
    backup.perform(Event::Apply { through: 3, changes }, &mut results).unwrap();
    assert_eq!((backup.state.0.len(), &backup.state.0), (3, &leader.state.0));
    assert_eq!(backup.clock.latest(), leader.clock.latest());

    let mut leader = Executor::new(Draws::default(), Restoring::default(), Arc::default(), false);
    let execute = Event::Execute { work: 1, request: ask(false), read: false, transaction: None };
    leader.perform(execute, &mut results).unwrap();
    let changes = results.drain().map(|command| change(&command)).collect();
    let mut backup = Executor::new(Draws::default(), Restoring::default(), Arc::default(), false);
    let broken = backup.perform(Event::Apply { through: 1, changes }, &mut results);
    assert!(
        matches!(&broken, Err(Broken(why)) if why.contains("another result when it is executed again")),
        "{broken:?}"
    );
    assert!(backup.state.0.is_empty());
}

/// Words whose log carries whole states instead of deltas.
#[derive(Default, Serialize, Deserialize)]
struct Small(Vec<String>);

impl Service for Small {
    type Request = String;
    type Reply = usize;
    type Delta = String;
    type Undo = ();

    const CARRIES: Carries = Carries::State;

    fn execute(&self, word: &String, cx: &mut Cx<'_>) -> Executed<Self> {
        cx.clock();
        Executed::Changed(self.0.len() + 1, word.clone())
    }

    fn apply(&mut self, word: &String) {
        self.0.push(word.clone());
    }

    fn revert(&mut self, (): ()) {
        self.0.pop();
    }
}

#[test]
fn a_whole_state_takes_the_place_of_another() {
    let (mut leader, mut backup) = (
        Executor::new(Small::default(), Restoring::default(), Arc::default(), true),
        Executor::new(Small::default(), Restoring::default(), Arc::default(), false),
    );
    let mut results = Results::default();
    for (work, word) in [(1, "a"), (2, "b"), (3, "c")] {
        leader.perform(order(work, word), &mut results).unwrap();
    }
    let states: Vec<Bytes> = (results.drain())
        .map(|command| match command {
            service::Command::Executed { result: service::Executed::Changed { change, .. }, .. } => change,
            other => panic!("{other:?}"),
        })
        .collect();
    backup.perform(Event::Apply { through: 2, changes: vec![states[1].clone()] }, &mut results).unwrap();
    assert_eq!(backup.state.0, ["a", "b"]);
    assert_eq!(backup.tally.changes.load(Ordering::Relaxed), 2);
    // A whole state in the log also serves as a checkpoint.
    let part = Event::RestorePart { first: true, bytes: states[2].clone() };
    backup.perform(part, &mut results).unwrap();
    backup.perform(Event::Restore { through: 3 }, &mut results).unwrap();
    assert_eq!(backup.state.0, ["a", "b", "c"]);
    assert_eq!(backup.clock.latest(), leader.clock.latest());
    leader.perform(Event::Revert, &mut results).unwrap();
    assert!(leader.state.0.is_empty());
    assert_eq!(leader.tally.changes.load(Ordering::Relaxed), 0);
}

/// Returns the exported copy, if it has arrived.
fn came(copy: &Receiver<Exported>) -> Option<Export> {
    let copy = copy.try_recv().ok()?.unwrap();
    Export::of_copy("words", 1, true, &copy)
}

#[test]
fn a_copy_holds_nothing_that_may_be_taken_back() {
    let mut executor = executor();
    change(&mut executor, order(1, "a"));
    let (wanted, copy) = bounded(2);
    executor.want_copy(wanted.clone());
    executor.give_copies();
    change(&mut executor, order(2, "b"));
    executor.give_copies();
    assert_eq!(came(&copy), None, "a is not chosen");
    perform(&mut executor, Event::Chosen { work: 1 }).unwrap();
    executor.give_copies();
    let given = came(&copy).unwrap();
    assert_eq!((given.changes(), given.state()), (1, &postcard::to_stdvec(&["a"][..]).unwrap()[..]));

    executor.want_copy(wanted.clone());
    executor.give_copies();
    perform(&mut executor, Event::Revert).unwrap();
    executor.give_copies();
    assert_eq!(came(&copy).unwrap().changes(), 1, "b was taken back, and a copy was taken anew");

    let transaction = TransactionId { session: service::SessionId(1), number: 1 };
    let Event::Execute { request, read, .. } = order(3, "c") else { unreachable!() };
    change(&mut executor, Event::Execute { work: 3, request, read, transaction: Some(transaction) });
    executor.want_copy(wanted);
    executor.give_copies();
    assert_eq!(came(&copy), None, "a transaction is open");
    perform(&mut executor, Event::Commit { work: 4, transaction }).unwrap();
    perform(&mut executor, Event::Chosen { work: 4 }).unwrap();
    executor.give_copies();
    assert_eq!(came(&copy).unwrap().changes(), 2);
}

/// A founder restores a state from three parts. A backup, and a joiner that arrives between two parts, reach
/// the same state.
#[test]
fn a_restored_state_comes_in_parts_and_nothing_else_does_before() {
    let mut old = executor();
    let words = ["x", "y"].map(|word| word.repeat(5 << 18));
    for (work, word) in (1..).zip(&words) {
        change(&mut old, order(work, word));
        perform(&mut old, Event::Chosen { work }).unwrap();
    }
    let copy = old.take_state(0).unwrap_or_else(|Broken(why)| panic!("{why}"));
    let export = Export::of_copy("words", 1, true, &copy).unwrap();
    let parts = export.parts(false);
    assert_eq!(parts.len(), 3);
    let (word, restoring) = (7_u128.to_le_bytes(), Restoring::with(7, parts));
    let mut founder = Executor::new(Words::default(), restoring, Arc::default(), false);
    let (mut backup, mut joiner) = (executor(), executor());
    for part in 0..3 {
        let refused = perform(&mut founder, order(1, "early")).unwrap();
        assert!(
            matches!(
                &refused[..],
                [service::Command::Executed { result: service::Executed::Rejected { .. }, .. }]
            ),
            "{refused:?}"
        );
        let (request, work) = (Bytes::copy_from_slice(&word), part + 1);
        let ask = || Event::Execute { work, request: request.clone(), read: false, transaction: None };
        if part == 1 {
            change(&mut founder, ask());
            perform(&mut founder, Event::Revert).unwrap();
        }
        let changes = vec![change(&mut founder, ask())];
        perform(&mut founder, Event::Chosen { work }).unwrap();
        if part == 1 {
            let bytes = backup.take_state(0).unwrap_or_else(|Broken(why)| panic!("{why}"));
            assert!(Export::of_copy("words", 1, true, &bytes).is_none(), "it is not there yet");
            perform(&mut joiner, Event::RestorePart { first: true, bytes }).unwrap();
            perform(&mut joiner, Event::Restore { through: 1 }).unwrap();
        }
        if part > 0 {
            perform(&mut joiner, Event::Apply { through: work, changes: changes.clone() }).unwrap();
        }
        perform(&mut backup, Event::Apply { through: work, changes }).unwrap();
    }
    change(&mut founder, order(9, "late"));
    perform(&mut founder, Event::Revert).unwrap();
    for executor in [&founder, &backup, &joiner] {
        assert!(executor.state.0 == words && executor.clock.latest() >= old.clock.latest());
        assert_eq!(executor.tally.changes.load(Ordering::Relaxed), 3);
    }
}

#[test]
fn a_whole_state_is_restored_as_one() {
    let mut old = Executor::new(Small::default(), Restoring::default(), Arc::default(), false);
    let mut results = Results::default();
    old.perform(order(1, "a"), &mut results).unwrap();
    old.perform(Event::Chosen { work: 1 }, &mut results).unwrap();
    let copy = old.take_state(0).unwrap_or_else(|Broken(why)| panic!("{why}"));
    let parts = Export::of_copy("small", 1, true, &copy).unwrap().parts(true);
    let mut founder = Executor::new(Small::default(), Restoring::with(7, parts), Arc::default(), false);
    let request = Bytes::copy_from_slice(&7_u128.to_le_bytes());
    let ask = Event::Execute { work: 1, request, read: false, transaction: None };
    results.drain().for_each(drop);
    founder.perform(ask, &mut results).unwrap();
    founder.perform(Event::Chosen { work: 1 }, &mut results).unwrap();
    let Some(service::Command::Executed { result: service::Executed::Changed { change, .. }, .. }) =
        results.drain().next()
    else {
        panic!("a state")
    };
    assert_eq!(change, copy, "it is the first state of the log");
    founder.perform(order(2, "b"), &mut results).unwrap();
    assert_eq!(founder.state.0, ["a", "b"]);
}

/// Values by key. Changes of different keys commute.
#[derive(Default, Serialize, Deserialize)]
struct Values(BTreeMap<u64, u64>);

impl Service for Values {
    type Request = (u64, u64);
    type Reply = ();
    type Delta = (u64, u64);
    type Undo = (u64, Option<u64>);

    const CARRIES: Carries = Carries::Delta;

    fn execute(&self, change: &(u64, u64), _: &mut Cx<'_>) -> Executed<Self> {
        Executed::Changed((), *change)
    }

    fn apply(&mut self, &(key, value): &(u64, u64)) -> (u64, Option<u64>) {
        (key, self.0.insert(key, value))
    }

    fn revert(&mut self, (key, before): (u64, Option<u64>)) {
        match before {
            Some(value) => self.0.insert(key, value),
            None => self.0.remove(&key),
        };
    }

    fn keys(&(key, _): &(u64, u64)) -> Vec<u64> {
        vec![key]
    }
}

/// Drives an executor of `Values`. Transactions have numbers above 0; 0 stands for a plain write.
struct Bench {
    executor: Executor<Values>,
    results: Results,
}

impl Bench {
    fn new() -> Bench {
        let executor = Executor::new(Values::default(), Restoring::default(), Arc::default(), false);
        Bench { executor, results: Results::default() }
    }

    fn transaction(number: u64) -> Option<TransactionId> {
        (number > 0).then_some(TransactionId { session: service::SessionId(1), number })
    }

    fn execute(&mut self, work: u64, transaction: u64, change: (u64, u64)) {
        let (request, read) = (Encoder::default().encode(&[], &change).unwrap(), false);
        let transaction = Bench::transaction(transaction);
        self.perform(Event::Execute { work, request, read, transaction });
    }

    fn commit(&mut self, work: u64, transaction: u64) {
        let transaction = Bench::transaction(transaction).unwrap();
        self.perform(Event::Commit { work, transaction });
    }

    fn abort(&mut self, transaction: u64) {
        let transaction = Bench::transaction(transaction).unwrap();
        self.perform(Event::Abort { transaction });
    }

    fn perform(&mut self, event: Event) {
        self.executor.perform(event, &mut self.results).unwrap();
        self.results.drain().for_each(drop);
    }

    fn keys(&self) -> Vec<u64> {
        self.executor.state.0.keys().copied().collect()
    }
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

/// A commit without changes must not hide the next commit in the order, which has some.
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

/// Compares random orders with a plain list of changes, each of which names its work.
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
                    // Open transactions lock their keys, which are 100 or higher. Plain writes use keys below
                    // 8.
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
            assert_eq!(bench.executor.state.0, all);
        }
        bench.perform(Event::Revert);
        assert_eq!(bench.executor.state.0, kept);
        assert!(bench.executor.undo.is_empty() && bench.executor.uncommitted == 0);
    }
}

/// A transcript of bytes. A request may remove some bytes from its end and append others.
#[derive(Default, Serialize, Deserialize)]
struct Transcript(Vec<u8>);

impl Service for Transcript {
    type Request = (usize, usize);
    type Reply = usize;
    type Delta = (usize, Vec<u8>);
    type Undo = Vec<u8>;

    fn execute(&self, &(removed, added): &(usize, usize), _: &mut Cx<'_>) -> Executed<Self> {
        Executed::Changed(self.0.len(), (removed, vec![0; added]))
    }

    fn apply(&mut self, (removed, added): &(usize, Vec<u8>)) -> Vec<u8> {
        let before = self.0.clone();
        self.0.truncate(self.0.len().saturating_sub(*removed));
        self.0.extend(added);
        before
    }

    fn revert(&mut self, before: Vec<u8>) {
        self.0 = before;
    }
}

#[test]
fn a_change_by_which_the_state_would_be_too_large_is_refused_and_one_that_makes_it_smaller_is_not() {
    let executor = || Executor::new(Transcript::default(), Restoring::default(), Arc::default(), false);
    let mut leader = executor().with_size(1, 1000);
    let mut results = Results::default();
    let mut ask = |leader: &mut Executor<Transcript>, work, request: (usize, usize)| {
        let request = Encoder::default().encode(&[], &request).unwrap();
        let execute = Event::Execute { work, request, read: false, transaction: None };
        leader.perform(execute, &mut results).unwrap();
        let Some(service::Command::Executed { result, .. }) = results.drain().next() else {
            panic!("a result")
        };
        match result {
            service::Executed::Changed { change, .. } => Ok(change),
            service::Executed::Rejected { reason } => Err(String::from_utf8_lossy(&reason).into_owned()),
            service::Executed::Unchanged { .. } => panic!("it changes something"),
        }
    };
    let mut taken = 0;
    for work in 1..=100 {
        match ask(&mut leader, work, (0, 90)) {
            Ok(_) => taken += 1,
            Err(why) => assert!(why.contains("at most 1000"), "{why}"),
        }
        assert!(leader.measure().is_ok_and(|size| size <= 1000));
    }
    assert_eq!((taken, leader.state.0.len()), (11, 990));
    assert_eq!(leader.undo.len(), 11, "what was refused is not taken back again");
    // The sum of these changes exceeds the bound, but each removes as much as it adds.
    for work in 101..200 {
        assert!(ask(&mut leader, work, (90, 90)).is_ok());
    }
    assert!(ask(&mut leader, 200, (500, 0)).is_ok());
    assert!(ask(&mut leader, 201, (0, 400)).is_ok());

    // A host with a smaller bound may find a state that is already too large. Only changes that shrink it may
    // pass.
    let mut small = executor();
    small.state.0 = vec![0; 5000];
    let mut small = small.with_size(5002, 1000);
    assert!(ask(&mut small, 1, (0, 1)).is_err());
    assert!(ask(&mut small, 2, (2, 1)).is_ok());
    assert_eq!(small.state.0.len(), 4999);
    perform_revert(&mut small);
    assert_eq!(small.state.0.len(), 5000);
}

fn perform_revert(executor: &mut Executor<Transcript>) {
    executor.perform(Event::Revert, &mut Results::default()).unwrap();
}
