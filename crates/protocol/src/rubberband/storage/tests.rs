//! Tests of a storage process alone, in a given configuration.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use smallvec::smallvec;

use super::*;
use crate::{
    ecast::Submissions,
    id::{Generation, ProcessId},
    rubberband::{
        Control, DataHeader, DataKind, MemberInfo, ReplyContent, TableEntry, TransferCursor,
        config::State,
        sample::{RecordingSink, bytes, process, range, texts, town, write_header},
        storage::work::{QueuedStep, Write},
    },
};

const CLIENT: u64 = 30;

/// Builds process 2 of three, which holds 10-19 of a ring with a single replica of each range; 30 and 31 are
/// clients.
fn storage(states: &str) -> Storage {
    let mut state = State::from(town(1, &[0, 10, 20], states));
    let client = MemberInfo { role: Role::Gateway, name: String::new(), address: String::new() };
    for node in [CLIENT, CLIENT + 1] {
        state.members.insert(process(node), client.clone());
    }
    let me = Peer { id: process(2), address: String::new() };
    let mut storage = Storage::new(me, String::from("storage-2"), StorageSettings::default());
    storage.membership.know(Config::from(state));
    storage
}

fn give(storage: &mut Storage, input: Input<Storage>) -> RecordingSink<Storage> {
    let (mut said, mut random) = (RecordingSink::default(), || 0);
    let mut cx = Context { now: Time(1_000_000), me: process(2), random: &mut random };
    storage.handle(&mut cx, input, &mut said);
    said
}

/// Gives the process a direct message, and returns the direct messages that it sends.
fn hear(storage: &mut Storage, from: u64, message: Direct) -> Vec<(ProcessId, Direct)> {
    let said = give(storage, Input::Receive { from: process(from), message: Message::Direct(message) });
    let direct = said.sent.into_iter().filter_map(|(to, message)| match message {
        Message::Direct(direct) => Some((to, direct)),
        Message::Order(_) => None,
    });
    direct.collect()
}

/// Returns the replies to clients, each with whether it was the last piece.
fn replies_to_clients(said: &[(ProcessId, Direct)]) -> Vec<(ReplyContent, bool)> {
    let replies = said.iter().filter_map(|(_, message)| match message {
        Direct::Reply(reply) => Some((reply.content.clone(), reply.last)),
        _ => None,
    });
    replies.collect()
}

fn basic(token: u64, placement: u64, low: u64, high: u64) -> Direct {
    Direct::Basic { token, placement, ranges: smallvec![range(low, high)], operation: bytes("count") }
}

#[test]
fn a_basic_read_is_accepted_only_where_its_whole_range_is_complete() {
    let version = storage("AAA").config().expect("it is known").placement;
    for (states, placement, low, high, taken) in [
        ("AAA", version, 10, 19, true),
        ("AAA", version, 12, 15, true),
        ("AAA", version, 5, 15, false),
        ("AAA", version, 15, 25, false),
        ("AAA", version + 1, 12, 15, false),
        ("ARA", version, 12, 15, false),
        ("ARA", version, 30, 35, false),
    ] {
        let mut storage = storage(states);
        let said = hear(&mut storage, CLIENT, basic(7, placement, low, high));
        assert_eq!(storage.queue.len(), usize::from(taken), "{states} {low}-{high}");
        let expected = if taken { vec![] } else { vec![(ReplyContent::Retry, true)] };
        assert_eq!(replies_to_clients(&said), expected, "{states} {low}-{high}");
    }
}

#[test]
fn a_client_hears_which_of_its_reads_are_under_way() {
    let mut storage = storage("AAA");
    let version = storage.config().expect("it is known").placement;
    for (client, token) in [(CLIENT, 7), (CLIENT, 8), (CLIENT + 1, 7)] {
        hear(&mut storage, client, basic(token, version, 12, 15));
    }
    let ask = |storage: &mut Storage, client, token| {
        replies_to_clients(&hear(storage, client, Direct::AskRead { token }))
    };
    let (underway, unknown) = (vec![(ReplyContent::Underway, false)], vec![(ReplyContent::Unknown, true)]);
    assert_eq!(ask(&mut storage, CLIENT, 7), underway);
    assert_eq!(ask(&mut storage, CLIENT, 9), unknown);
    // A cancelled read is gone, and all other reads stay.
    hear(&mut storage, CLIENT, Direct::Cancel { token: 7 });
    assert_eq!(ask(&mut storage, CLIENT, 7), unknown);
    assert_eq!(ask(&mut storage, CLIENT, 8), underway);
    assert_eq!(ask(&mut storage, CLIENT + 1, 7), underway);
}

/// Makes the process hold an evaluated write of all three processes.
fn hold(storage: &mut Storage, at: u64) {
    let all = [range(0, 9), range(10, 19), range(20, u64::MAX)];
    let write = Write {
        at: Position(at),
        client: process(CLIENT),
        header: write_header(&all, true),
        held: vec![all[1]],
        segments: vec![all[1]],
        remembered: Vec::new(),
        answers: vec![all[1]],
        others: vec![(process(1), vec![all[0]]), (process(3), vec![all[2]])],
        operation: bytes("operation"),
    };
    storage.decisions.hold(Box::new(write), Ok(vec![bytes("done")]), Time(u64::MAX));
}

#[test]
fn a_verdict_is_recorded_only_for_unsettled_writes() {
    for (held, at, noted) in [
        (None, 49, false),
        (None, 50, false),
        (None, 51, true),
        // A held write counts as executed only when it is settled.
        (Some(50), 49, false),
        (Some(50), 50, true),
        (Some(50), 51, true),
    ] {
        let mut storage = storage("AAA");
        storage.executed = Position(50);
        if let Some(at) = held {
            hold(&mut storage, at);
        }
        let ranges = vec![range(0, 9)];
        let verdict = Direct::Verdict { at: Position(at), ranges, failure: None, settled: Position(0) };
        hear(&mut storage, 1, verdict);
        assert_eq!(storage.verdicts.known(Position(at)).is_some(), noted, "{held:?} {at}");
    }
}

/// Everything delivered counts as executed once no step waits and no write is held.
#[test]
fn nothing_counts_as_executed_before_waiting_steps() {
    for (waits, held, executed) in [(false, false, 60), (true, false, 50), (false, true, 50)] {
        let mut storage = storage("AAA");
        let settings = MemberSettings { executes: true, ..MemberSettings::default() };
        let submissions = Submissions { passed: 0, messages: Vec::new() };
        let (me, delivered) = (process(2), Position(60));
        storage.membership.member =
            Member::recovered(me, settings, delivered, submissions, Generation::FIRST);
        storage.executed = Position(50);
        if waits {
            let copy = vec![(range(10, 19), process(1))];
            storage.import = Some(Import::new(Position(55), copy, vec![range(10, 19)]));
            storage.queue.push(QueuedStep::Await { at: Position(55) });
        }
        if held {
            hold(&mut storage, 55);
        }
        give(&mut storage, Input::Drained);
        assert_eq!(storage.executed, Position(executed), "{waits} {held}");
    }
}

fn fetch(change: u64) -> Direct {
    Direct::Fetch {
        change: Position(change),
        ranges: vec![range(10, 19)],
        cursor: TransferCursor::Rows(None),
    }
}

#[test]
fn a_repeated_request_for_rows_is_answered_once() {
    let mut storage = storage("AAA");
    for (from, change) in [(1, 5), (1, 6), (3, 5), (1, 5)] {
        assert!(hear(&mut storage, from, fetch(change)).is_empty(), "the change is not here yet");
    }
    let waiting = |storage: &Storage| -> Vec<(u64, u64)> {
        storage.exports.fetches.iter().map(|fetch| (fetch.from.node, fetch.change.0)).collect()
    };
    assert_eq!(waiting(&storage), [(1, 6), (3, 5), (1, 5)]);
    // A change that was delivered here without pinning a version will never have a pin.
    let refused = hear(&mut storage, 1, fetch(0));
    assert_eq!(refused, [(process(1), Direct::FetchRefused { change: Position(0) })]);
    assert_eq!(waiting(&storage).len(), 3);
    // When a change ends, nobody waits for its rows any longer; receivers of other changes still wait for
    // theirs.
    storage.queue.push(QueuedStep::Release { at: Position(5) });
    give(&mut storage, Input::Drained);
    assert_eq!(waiting(&storage), [(1, 6)]);
}

#[test]
fn rows_are_asked_for_elsewhere_when_their_source_refuses_them() {
    let copy = || vec![(range(10, 19), process(1))];
    for (from, change, goes_on) in [(1, 9, false), (1, 8, true), (3, 9, true)] {
        let mut storage = storage("ARA");
        let mut import = Import::new(Position(9), copy(), vec![range(10, 19)]);
        assert!(import.fetch(Time(5)).is_some(), "it asks 1");
        storage.import = Some(import);
        let refused = Direct::FetchRefused { change: Position(change) };
        let message = Message::Direct(refused);
        let said = give(&mut storage, Input::Receive { from: process(from), message });
        // The ring has no other replica, so the failure is final.
        let wedged = said.events.iter().any(|event| matches!(event, StorageEvent::Wedged));
        assert_eq!(wedged, !goes_on, "{from} {change}");
    }
}

#[test]
fn only_reads_are_injected_past_the_log() {
    for (kind, taken) in [(DataKind::Read, true), (DataKind::Write, false), (DataKind::FallibleWrite, false)]
    {
        let mut storage = storage("AAA");
        let header = DataHeader { kind, ..write_header(&[range(12, 15)], true) };
        let mut said = RecordingSink::default();
        let (client, operation) = (process(CLIENT), bytes("count"));
        storage.on_injected(Time(0), Position(5), client, header, operation, &mut said);
        assert_eq!((storage.queue.len(), said.sent.len()), if taken { (1, 0) } else { (0, 1) }, "{kind:?}");
    }
}

#[test]
fn only_a_departure_is_noted_as_one() {
    let mut storage = storage("AAA");
    let before = storage.config().expect("it is known").clone();
    let forget = Control::Forget { session: 1, below: 2, kept: Vec::new() };
    let control = |storage: &mut Storage, at: u64| {
        let (mut said, mut random) = (RecordingSink::default(), || 0);
        let mut cx = Context { now: Time(0), me: process(2), random: &mut random };
        let (control, before) = (forget.clone(), before.clone());
        storage.on_control(&mut cx, Position(at), control, Some(before), &mut said);
    };
    control(&mut storage, 60);
    assert_eq!(storage.decisions.departed, Position(0));
    let mut after = State::from(before.clone());
    after.members.remove(&process(CLIENT));
    storage.membership.know(Config::from(after));
    control(&mut storage, 61);
    assert_eq!(storage.decisions.departed, Position(61));
}

#[test]
fn a_session_that_is_over_ends_at_the_engine() {
    for (below, ends) in [(7, false), (u64::MAX, true)] {
        let mut storage = storage("AAA");
        storage.queue.push(QueuedStep::Forget { at: Position(5), session: 77, below, kept: Vec::new() });
        let said = give(&mut storage, Input::Drained);
        let tasks = said.events.iter().filter_map(|event| match event {
            StorageEvent::Execute(tasks) => Some(tasks),
            _ => None,
        });
        let ended = |task: &Task| matches!(task.kind, TaskKind::EndSession { session: 77 });
        assert_eq!(tasks.flatten().any(ended), ends, "{below}");
        assert!(storage.queue.steps.is_empty());
    }
}

#[test]
fn a_paged_read_continues_when_its_client_takes_a_page() {
    let mut storage = storage("AAA");
    let version = storage.config().expect("it is known").placement;
    hear(&mut storage, CLIENT, basic(7, version, 12, 15));
    let next = |said: RecordingSink<Storage>| -> Vec<Task> {
        let tasks = said.events.into_iter().filter_map(|event| match event {
            StorageEvent::Execute(tasks) => Some(tasks),
            _ => None,
        });
        tasks.flatten().collect()
    };
    let executed =
        |storage: &mut Storage, result| give(storage, Input::Command(StorageCommand::Executed(vec![result])));
    let tasks = next(give(&mut storage, Input::Drained));
    assert!(matches!(tasks[..], [Task { kind: TaskKind::Read { .. }, .. }]), "{tasks:?}");
    executed(&mut storage, TaskResult::Long);
    let tasks = next(give(&mut storage, Input::Drained));
    assert!(matches!(tasks[..], [Task { kind: TaskKind::Page { cursor: None, .. }, .. }]), "{tasks:?}");
    let rows = Bytes::from(vec![1; 600 << 10]);
    let page = TaskResult::Page { rows: rows.clone(), cursor: Some(bytes("on")) };
    let said = executed(&mut storage, page);
    assert_eq!(said.sent.len(), 1, "the page goes at once");
    assert!(next(give(&mut storage, Input::Drained)).is_empty(), "more than a window is under way");
    let consumed = Direct::Consumed { token: 7, bytes: rows.len() as u64 };
    hear(&mut storage, CLIENT, consumed);
    let tasks = next(give(&mut storage, Input::Drained));
    let [Task { kind: TaskKind::Page { cursor: Some(cursor), .. }, .. }] = &tasks[..] else {
        panic!("{tasks:?}")
    };
    assert_eq!(cursor, &bytes("on"));
    executed(&mut storage, TaskResult::Page { rows: bytes("last"), cursor: None });
    let tasks = next(give(&mut storage, Input::Drained));
    assert!(matches!(tasks[..], [Task { kind: TaskKind::Finish, .. }]), "the version goes back: {tasks:?}");
}

#[test]
fn a_former_life_forgets_what_was_forgotten_meanwhile() {
    let kept = |numbers: &[u64]| numbers.iter().copied().collect::<BTreeSet<u64>>();
    let mut state = State::from(town(1, &[0, 10, 20], "AAA"));
    state.sessions = BTreeMap::from([(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]);
    state.kept = BTreeMap::from([(1, kept(&[3])), (2, kept(&[3])), (3, kept(&[3])), (5, kept(&[3]))]);
    let entry =
        |name: &str| TableEntry { name: name.to_owned(), definition: Bytes::new(), created: Position(1) };
    state.tables = BTreeMap::from([(1, entry("stays")), (2, entry("goes"))]);
    let former = Config::from(state.clone());
    // The first session is unchanged, the second forgets more numbers, the third lost a kept number, the
    // fourth ended.
    state.sessions = BTreeMap::from([(1, 5), (2, 7), (3, 5), (5, 5)]);
    state.kept = BTreeMap::from([(1, kept(&[3])), (2, kept(&[3])), (5, kept(&[3]))]);
    state.tables.remove(&2);
    let taken_for_another = Config::from(state.clone());
    let keeps = KeptRows { former: process(7), place: 10, through: Position(40) };
    state.storage.insert(process(2), StorageState::Keeping(keeps));
    let forgets =
        ["drop 2 60", "forget 2 7 [3] 60", "forget 3 5 [] 60", "forget 4 18446744073709551615 [] 60"];
    for (config, expected) in [
        (Config::from(state), &forgets[..]),
        // The kept rows are dropped, and all steps that concern these rows.
        (taken_for_another, &["drop 2 60", "clear 0-9 60"]),
    ] {
        let mut storage = storage("AAA");
        storage.catch_up(Position(60), &former, &config);
        let steps = storage.queue.steps.iter().map(|step| match step {
            QueuedStep::Drop { at, table } => format!("drop {table} {at}"),
            QueuedStep::Forget { at, session, below, kept } => {
                format!("forget {session} {below} {kept:?} {at}")
            }
            QueuedStep::Clear { at, ranges } => format!("clear {} {at}", texts(ranges)),
            _ => String::from("something else"),
        });
        assert_eq!(steps.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_process_back_in_reserve_was_dismissed() {
    for (stands, dismissed) in
        [(StorageState::Standby, true), (StorageState::Active, false), (StorageState::Unreachable, false)]
    {
        let mut storage = storage("AAA");
        let mut state = State::from(storage.config().expect("it is known").clone());
        state.storage.insert(process(2), stands);
        storage.membership.know(Config::from(state));
        assert_eq!(storage.is_dismissed(), dismissed, "{stands:?}");
    }
}
