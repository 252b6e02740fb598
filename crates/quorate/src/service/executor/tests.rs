//! Tests the executor with a service that keeps words.

use std::sync::Mutex;

use bytes::Bytes;
use crossbeam_channel::bounded;
use serde::{Deserialize, Serialize};

use quorate_protocol::service::TransactionId;
use quorate_roles::services::Object;

use super::{
    super::{Export, encoder::Encoder},
    *,
};

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

/// Executes orders, and keeps the results.
trait Carry {
    fn carry(&mut self, order: Event, results: &mut Vec<service::Command>) -> Result<(), Broken>;
}

impl<S: Service> Carry for ServiceExecutor<S> {
    fn carry(&mut self, order: Event, results: &mut Vec<service::Command>) -> Result<(), Broken> {
        self.perform(order, &mut |result| results.push(result))
    }
}

fn executor() -> ServiceExecutor<Words> {
    checked(Words::default(), false)
}

/// Makes an executor of a service in this state. `checks` says whether it checks each change.
fn checked<S: Service>(state: S, checks: bool) -> ServiceExecutor<S> {
    with(ServiceObject::new(state, checks), Restoring::default())
}

fn with<S: Service>(object: ServiceObject<S>, restoring: Restoring) -> ServiceExecutor<S> {
    ServiceExecutor::new(object, restoring, Arc::default(), false)
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
fn orders_of_a_past_reign_are_not_executed() {
    let (mut executor, mut results) = (executor(), Vec::new());
    let orders = [order(1, "a"), order(2, "b"), Event::Revert];
    orders.iter().take(1).for_each(|order| executor.tally.note(order));
    executor.carry(orders[0].clone(), &mut results).unwrap();
    orders.iter().skip(1).for_each(|order| executor.tally.note(order));
    executor.carry(orders[1].clone(), &mut results).unwrap();
    assert_eq!((results.len(), &executor.object.state.0), (1, &vec![String::from("a")]));
    executor.carry(Event::Revert, &mut results).unwrap();
    executor.carry(order(3, "c"), &mut results).unwrap();
    assert_eq!((results.len(), &executor.object.state.0), (2, &vec![String::from("c")]));
}

/// Executes `order` and returns its change.
fn change(executor: &mut ServiceExecutor<Words>, order: Event) -> Bytes {
    let mut results = Vec::new();
    executor.carry(order, &mut results).unwrap();
    match &results[..] {
        [service::Command::Executed { result: service::Executed::Changed { change, .. }, .. }] => {
            change.clone()
        }
        other => panic!("{other:?}"),
    }
}

fn perform(executor: &mut ServiceExecutor<Words>, event: Event) -> Result<Vec<service::Command>, Broken> {
    let mut results = Vec::new();
    executor.carry(event, &mut results)?;
    Ok(results)
}

#[test]
fn an_aborted_transaction_is_reverted_and_a_committed_one_takes_effect_at_its_commit() {
    let transaction = |number| TransactionId { session: service::SessionId(1), number };
    let mut executor = executor();
    for (work, word, number) in [(1, "a", 1), (2, "b", 0), (3, "c", 2), (4, "d", 1)] {
        let Event::Execute { work, request, read, .. } = order(work, word) else { unreachable!() };
        let transaction = (number > 0).then(|| transaction(number));
        change(&mut executor, Event::Execute { work, request, read, transaction });
    }
    perform(&mut executor, Event::Chosen { work: 2 }).unwrap();
    // By default `keys` puts every transaction under one lock, so this revert may remove the last word,
    // whichever transaction added it.
    perform(&mut executor, Event::Abort { transaction: transaction(1) }).unwrap();
    assert_eq!(executor.object.state.0.len(), 2);
    perform(&mut executor, Event::Commit { work: 5, transaction: transaction(2) }).unwrap();
    perform(&mut executor, Event::Chosen { work: 4 }).unwrap();
    assert!(!executor.executor.is_chosen(), "its commit is not chosen");
    perform(&mut executor, Event::Revert).unwrap();
    assert_eq!(executor.object.state.0.len(), 1);
}

#[test]
fn a_backup_and_a_joiner_come_to_the_same_state_and_clock() {
    let (mut leader, mut backup, mut joiner) = (executor(), executor(), executor());
    let changes = vec![change(&mut leader, order(1, "a")), change(&mut leader, order(2, "b"))];
    perform(&mut backup, Event::Apply { through: 2, changes }).unwrap();
    assert_eq!(backup.object.clock(), leader.object.clock());
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
    assert_eq!(joiner.object.state.0, ["a", "b"]);
    assert_eq!(joiner.object.clock(), leader.object.clock());
    assert_eq!(joiner.tally.changes.load(Ordering::Relaxed), 2);
}

#[test]
fn an_undecodable_request_is_refused_and_an_undecodable_change_ends_a_backup() {
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
    assert!(executor.object.state.0.is_empty());
}

struct ResultCollector(Arc<Mutex<(Vec<service::Command>, Option<String>)>>);

impl Outlet for ResultCollector {
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
    Box::new(executor).run(waiting, Arc::new(ResultCollector(heard.clone())));
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
fn checks_find_a_wrong_revert_and_a_delta_that_changes_by_encoding() {
    let outcome = |request: (u64, u64), checks| {
        let mut executor = checked(Careless::default(), checks);
        let request = Encoder::default().encode(&[], &request).unwrap();
        let execute = Event::Execute { work: 1, request, read: false, transaction: None };
        let mut results = Vec::new();
        let broken = executor.carry(execute, &mut results).err().map(|Broken(why)| why);
        let [service::Command::Executed { result, .. }] = &results[..] else { panic!("one result") };
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

/// All random draws. Executing a request again yields the same draw unless the request depends on
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
    let mut leader = checked(Draws::default(), true);
    let mut results = Vec::new();
    for work in 1..=3 {
        let execute = Event::Execute { work, request: ask(true), read: false, transaction: None };
        leader.carry(execute, &mut results).unwrap();
    }
    let change = |command: &service::Command| match command {
        service::Command::Executed { result: service::Executed::Changed { change, .. }, .. } => {
            change.clone()
        }
        other => panic!("{other:?}"),
    };
    let changes: Vec<Bytes> = results.drain(..).map(|command| change(&command)).collect();
    let mut backup = checked(Draws::default(), false);
    backup.carry(Event::Apply { through: 3, changes }, &mut results).unwrap();
    assert_eq!((backup.object.state.0.len(), &backup.object.state.0), (3, &leader.object.state.0));
    assert_eq!(backup.object.clock(), leader.object.clock());

    let mut leader = checked(Draws::default(), false);
    let execute = Event::Execute { work: 1, request: ask(false), read: false, transaction: None };
    leader.carry(execute, &mut results).unwrap();
    let changes = results.drain(..).map(|command| change(&command)).collect();
    let mut backup = checked(Draws::default(), false);
    let broken = backup.carry(Event::Apply { through: 1, changes }, &mut results);
    assert!(
        matches!(&broken, Err(Broken(why)) if why.contains("another result when it is executed again")),
        "{broken:?}"
    );
    assert!(backup.object.state.0.is_empty());
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
fn a_whole_state_replaces_another() {
    let (mut leader, mut backup) = (checked(Small::default(), true), checked(Small::default(), false));
    let mut results = Vec::new();
    for (work, word) in [(1, "a"), (2, "b"), (3, "c")] {
        leader.carry(order(work, word), &mut results).unwrap();
    }
    let states: Vec<Bytes> = (results.drain(..))
        .map(|command| match command {
            service::Command::Executed { result: service::Executed::Changed { change, .. }, .. } => change,
            other => panic!("{other:?}"),
        })
        .collect();
    backup.carry(Event::Apply { through: 2, changes: vec![states[1].clone()] }, &mut results).unwrap();
    assert_eq!(backup.object.state.0, ["a", "b"]);
    assert_eq!(backup.tally.changes.load(Ordering::Relaxed), 2);
    // A whole state in the log also serves as a checkpoint.
    let part = Event::RestorePart { first: true, bytes: states[2].clone() };
    backup.carry(part, &mut results).unwrap();
    backup.carry(Event::Restore { through: 3 }, &mut results).unwrap();
    assert_eq!(backup.object.state.0, ["a", "b", "c"]);
    assert_eq!(backup.object.clock(), leader.object.clock());
    leader.carry(Event::Revert, &mut results).unwrap();
    assert!(leader.object.state.0.is_empty());
    assert_eq!(leader.tally.changes.load(Ordering::Relaxed), 0);
}

/// Returns a copy of the state, all of whose changes are chosen.
fn state<S: Service>(executor: &mut ServiceExecutor<S>) -> Bytes {
    let (wanted, copy) = bounded(1);
    executor.want_copy(wanted);
    executor.give_copies();
    copy.try_recv().expect("a copy").expect("the state serialises")
}

/// Returns the exported copy, if it has arrived.
fn came(copy: &Receiver<Exported>) -> Option<Export> {
    let copy = copy.try_recv().ok()?.unwrap();
    Export::of_copy("words", 1, true, &copy)
}

#[test]
fn a_copied_state_holds_no_revertible_change() {
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
fn a_restored_state_comes_in_parts_before_any_change() {
    let mut old = executor();
    let words = ["x", "y"].map(|word| word.repeat(5 << 18));
    for (work, word) in (1..).zip(&words) {
        change(&mut old, order(work, word));
        perform(&mut old, Event::Chosen { work }).unwrap();
    }
    let copy = state(&mut old);
    let export = Export::of_copy("words", 1, true, &copy).unwrap();
    let parts = export.parts(false);
    assert_eq!(parts.len(), 3);
    let (word, restoring) = (7_u128.to_le_bytes(), Restoring::with(7, parts));
    let mut founder = with(ServiceObject::new(Words::default(), false), restoring);
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
            let bytes = state(&mut backup);
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
        assert!(executor.object.state.0 == words && executor.object.clock() >= old.object.clock());
        assert_eq!(executor.tally.changes.load(Ordering::Relaxed), 3);
    }
}

#[test]
fn a_whole_state_is_restored_as_one() {
    let mut old = checked(Small::default(), false);
    let mut results = Vec::new();
    old.carry(order(1, "a"), &mut results).unwrap();
    old.carry(Event::Chosen { work: 1 }, &mut results).unwrap();
    let copy = state(&mut old);
    let parts = Export::of_copy("small", 1, true, &copy).unwrap().parts(true);
    let mut founder = with(ServiceObject::new(Small::default(), false), Restoring::with(7, parts));
    let request = Bytes::copy_from_slice(&7_u128.to_le_bytes());
    let ask = Event::Execute { work: 1, request, read: false, transaction: None };
    results.drain(..).for_each(drop);
    founder.carry(ask, &mut results).unwrap();
    founder.carry(Event::Chosen { work: 1 }, &mut results).unwrap();
    let Some(service::Command::Executed { result: service::Executed::Changed { change, .. }, .. }) =
        results.drain(..).next()
    else {
        panic!("a state")
    };
    assert_eq!(change, copy, "it is the first state of the log");
    founder.carry(order(2, "b"), &mut results).unwrap();
    assert_eq!(founder.object.state.0, ["a", "b"]);
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
fn a_change_beyond_the_size_limit_is_refused_unless_the_state_shrinks() {
    let executor = |state: Vec<u8>, size| {
        let object = ServiceObject::new(Transcript(state), false).with_size(size, 1000);
        with(object, Restoring::default())
    };
    let mut leader = executor(Vec::new(), 1);
    let mut results = Vec::new();
    let mut ask = |leader: &mut ServiceExecutor<Transcript>, work, request: (usize, usize)| {
        let request = Encoder::default().encode(&[], &request).unwrap();
        let execute = Event::Execute { work, request, read: false, transaction: None };
        leader.carry(execute, &mut results).unwrap();
        let Some(service::Command::Executed { result, .. }) = results.drain(..).next() else {
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
        assert!(leader.object.measure().is_ok_and(|size| size <= 1000));
    }
    assert_eq!((taken, leader.object.state.0.len()), (11, 990));
    assert_eq!(leader.executor.changes(), 11, "what was refused is not a change");
    // The sum of these changes exceeds the bound, but each removes as much as it adds.
    for work in 101..200 {
        assert!(ask(&mut leader, work, (90, 90)).is_ok());
    }
    assert!(ask(&mut leader, 200, (500, 0)).is_ok());
    assert!(ask(&mut leader, 201, (0, 400)).is_ok());

    // At a host with a smaller bound the state may already be too large. Then the host accepts only changes
    // that make the state smaller.
    let mut small = executor(vec![0; 5000], 5002);
    assert!(ask(&mut small, 1, (0, 1)).is_err());
    assert!(ask(&mut small, 2, (2, 1)).is_ok());
    assert_eq!(small.object.state.0.len(), 4999);
    perform_revert(&mut small);
    assert_eq!(small.object.state.0.len(), 5000);
}

fn perform_revert(executor: &mut ServiceExecutor<Transcript>) {
    executor.carry(Event::Revert, &mut Vec::new()).unwrap();
}
