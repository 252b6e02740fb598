//! Tests which journals a process continues from, and with which state.

use bytes::BytesMut;

use super::*;
use crate::{
    ecast::{Class, MessageId},
    rubberband::{
        KeptRows, StorageCommand, StorageEvent, TaskKind, TaskResult,
        sample::{RecordingSink, bytes, process, range, town, write_header},
        storage::{
            import::Import,
            replies::{KnownReply, Pinned, Remembered, Replies},
            verdicts::FORGOTTEN,
            work::Purpose,
        },
    },
    seam::{Input, Protocol, Ticket},
    time::{Duration, Time},
    wire::Wire,
};

const ME: u64 = 2;

fn join(keeps: Option<KeptRows>) -> Record {
    let (name, address) = (String::from("storage-2"), String::new());
    let join = Control::Join { role: Role::Storage, name, address, terms: None, keeps };
    Record::Submitted { token: 0, body: join.encode() }
}

fn delivered(at: u64) -> Record {
    delivery(at, Class::Data, bytes("operation"))
}

fn delivery(at: u64, class: Class, body: Bytes) -> Record {
    let id = MessageId { sender: process(30), number: at };
    Record::Delivered { at: Position(at), id, class, attachment: None, body }
}

fn replace(at: u64, new: u64, copies: bool) -> Record {
    let copy = if copies { vec![(range(0, 9), process(1))] } else { Vec::new() };
    let replace = Control::Replace { expected: 1, old: process(3), new: process(new), copy };
    delivery(at, Class::Control, replace.encode())
}

fn began(at: u64) -> Record {
    Record::Began(Box::new(Began {
        at: Position(at),
        config: town(1, &[0, 10, 20], "AAA"),
        passed: 1,
        submitted: vec![(0, bytes("submitted before"))],
        departed: Position(3),
        received: None,
    }))
}

fn outline(text: &'static str) -> Record {
    Record::Outline(bytes(text))
}

/// Encodes records with tickets from 1 on.
fn encoded(records: &[Record]) -> Vec<(Ticket, Bytes)> {
    let encode = |(ticket, record): (u64, &Record)| {
        let mut bytes = BytesMut::new();
        record.encode(&mut bytes);
        (Ticket(ticket), bytes.freeze())
    };
    (1..).zip(records).map(encode).collect()
}

/// A process that came back: last position delivered, positions to replay, pieces that are loaded first, and
/// the number of its own messages.
type Back = (u64, Vec<u64>, Vec<Bytes>, usize);

/// Recovers a process from these records.
fn recovered(records: &[Record]) -> Result<Option<Back>, Unrecoverable> {
    recovered_from(encoded(records))
}

fn recovered_from(records: Vec<(Ticket, Bytes)>) -> Result<Option<Back>, Unrecoverable> {
    let me = Peer { id: process(ME), address: String::new() };
    let settings = StorageSettings { checkpoint_bytes: Some(1), ..StorageSettings::default() };
    let storage = Storage::recover(me, settings, Generation::FIRST, records)?;
    Ok(storage.map(|storage| {
        let again = storage.replay.iter().flatten().map(|event| match event {
            MemberEvent::Deliver { at, .. } => at.0,
            other => panic!("{other:?} is replayed"),
        });
        let rows = storage.queue.steps.iter().map(|step| match step {
            QueuedStep::Restore { outline, .. } => outline.clone(),
            QueuedStep::RestoreRows { rows } => rows.clone(),
            _ => panic!("only a checkpoint comes before what is replayed"),
        });
        let own = storage.member().submissions().expect("all of it").messages.len();
        (storage.member().delivered().0, again.collect(), rows.collect(), own)
    }))
}

#[test]
fn a_journal_yields_the_durable_state() {
    let passed = |at| Record::Passed { at: Position(at) };
    let whole = |at, text| vec![began(at), outline(text), Record::Ended];
    for (records, expected) in [
        (vec![], None),
        (vec![join(None)], Some((0, vec![], vec![], 1))),
        (vec![join(None), delivered(4), delivered(6)], Some((6, vec![4, 6], vec![], 1))),
        (vec![join(None), delivered(4), passed(9)], Some((9, vec![4], vec![], 1))),
        // A checkpoint replaces everything before it. Records of other kinds may lie between its pieces.
        (
            vec![
                delivered(4),
                began(5),
                delivered(6),
                outline("r"),
                delivered(7),
                outline("s"),
                Record::Ended,
                passed(8),
            ],
            Some((8, vec![6, 7], vec![bytes("r"), bytes("s")], 1)),
        ),
        // An unfinished checkpoint does not replace the records before it.
        (
            [vec![delivered(4)], whole(5, "r"), vec![delivered(6), began(6), outline("s"), delivered(7)]]
                .concat(),
            Some((7, vec![6, 7], vec![bytes("r")], 1)),
        ),
        ([whole(5, "r"), whole(9, "s")].concat(), Some((9, vec![], vec![bytes("s")], 1))),
        // The numbers of the process's own messages continue after the numbers in the checkpoint.
        (
            [vec![join(None)], whole(5, "r"), vec![join(None)]].concat(),
            Some((5, vec![], vec![bytes("r")], 2)),
        ),
        // The import of a process other than this one does not matter, nor does a lost range that begins
        // empty.
        (vec![join(None), replace(4, 7, true)], Some((4, vec![4], vec![], 1))),
        (vec![join(None), replace(4, ME, false)], Some((4, vec![4], vec![], 1))),
        ([vec![replace(4, ME, true)], whole(5, "r")].concat(), Some((5, vec![], vec![bytes("r")], 1))),
    ] {
        assert_eq!(recovered(&records), Ok(expected), "{records:?}");
    }
}

#[test]
fn an_inconsistent_or_incomplete_journal_is_not_recovered() {
    let keeps = KeptRows { former: process(1), place: 0, through: Position(3) };
    let log = Record::Log(crate::paxos::Record::Promised(crate::paxos::Ballot::ZERO));
    let moved = Unrecoverable::Moved(String::from("elsewhere"));
    let elsewhere = Control::Join {
        role: Role::Storage,
        name: String::new(),
        address: String::from("elsewhere"),
        terms: None,
        keeps: None,
    };
    let elsewhere = Record::Submitted { token: 0, body: elsewhere.encode() };
    for (records, why) in [
        (vec![delivered(4)], Unrecoverable::Disconnected(0)),
        (vec![began(4), outline("r")], Unrecoverable::Disconnected(0)),
        (vec![join(None), delivered(4), delivered(4)], Unrecoverable::Disconnected(2)),
        (vec![began(5), Record::Ended, delivered(5)], Unrecoverable::Disconnected(2)),
        (vec![join(None), log], Unrecoverable::Disconnected(1)),
        (vec![join(Some(keeps))], Unrecoverable::Unfinished),
        (vec![join(None), replace(4, ME, true)], Unrecoverable::Unfinished),
        (vec![began(5), Record::Ended, replace(6, ME, true)], Unrecoverable::Unfinished),
        (vec![elsewhere], moved),
    ] {
        assert_eq!(recovered(&records), Err(why), "{records:?}");
    }
}

/// The memory of replies and the decisions survive a crash.
#[test]
fn replies_and_decisions_come_back() {
    let mut replies = Replies::new(usize::MAX, usize::MAX);
    let name = write_header(&[range(10, 19)], false).name;
    let remembered = Remembered { at: Position(4), results: Ok(vec![(range(10, 19), Some(bytes("done")))]) };
    replies.remember(name, range(10, 19), remembered);
    let pinned: Pinned = replies.pin_all();
    let (section, next) = pinned.section(&pinned.ranges(), None, usize::MAX);
    assert!(next.is_none());
    let mut verdicts = StorageSettings::default().verdicts();
    verdicts.restore(Position(4), (vec![Range::ALL], None));
    let failure = Some(bytes("22012"));
    // An earlier version of the program wrote reasons of any length.
    let long = Some(Bytes::from(vec![b'x'; 1 << 20]));
    let records = [
        began(5),
        Record::Verdicts(verdicts.encode(usize::MAX).remove(0)),
        Record::Replies(section),
        Record::Ended,
        Record::Decided { at: Position(6), failure: failure.clone() },
        Record::Decided { at: Position(7), failure: long },
    ];
    let me = Peer { id: process(ME), address: String::new() };
    let settings = StorageSettings { checkpoint_bytes: Some(1), ..StorageSettings::default() };
    let storage = Storage::recover(me, settings, Generation::FIRST, encoded(&records));
    let storage = storage.expect("it can be read").expect("there is one");
    assert_eq!(storage.replies.size().0, 1);
    assert!(matches!(storage.replies.known(name, range(10, 19)), KnownReply::Done(_)));
    assert_eq!(storage.verdicts.known(Position(4)), Some((vec![Range::ALL], None)));
    assert_eq!(storage.verdicts.known(Position(6)), Some((vec![Range::ALL], failure)));
    assert_eq!(storage.verdicts.known(Position(7)), Some((vec![Range::ALL], Some(FORGOTTEN))));
    assert_eq!(storage.decisions.departed, Position(3));
}

/// Gives the process an input, then the end of the batch. Returns the engine's tasks, and the last call of
/// `collect`.
fn give(
    storage: &mut Storage,
    records: &mut Vec<Record>,
    input: Input<Storage>,
) -> (Vec<TaskKind>, Option<(Ticket, Vec<Ticket>)>) {
    let (mut said, mut random) = (RecordingSink::<Storage>::default(), || 0);
    said.records = std::mem::take(records);
    let mut cx = Context { now: Time(1_000_000), me: process(ME), random: &mut random };
    storage.handle(&mut cx, input, &mut said);
    storage.handle(&mut cx, Input::Drained, &mut said);
    *records = said.records;
    let tasks = said.events.into_iter().flat_map(|event| match event {
        StorageEvent::Execute(tasks) => tasks.into_iter().map(|task| task.kind).collect(),
        _ => Vec::new(),
    });
    (tasks.collect(), said.collected.map(|before| (before, said.kept)))
}

#[test]
fn a_checkpoint_goes_to_disk_piece_by_piece_and_then_takes_the_place_of_the_journal() {
    let me = Peer { id: process(ME), address: String::new() };
    let settings = StorageSettings { checkpoint_bytes: Some(1), ..StorageSettings::default() };
    let mut storage = Storage::new(me.clone(), String::from("storage-2"), settings.clone());
    storage.membership.know(town(1, &[0, 10, 20], "AAA"));
    storage.membership.journal().expect("it has a disk").bytes = 1;
    let mut records = Vec::new();
    let persisted = |records: &Vec<Record>| Input::Persisted(Ticket(records.len() as u64));
    let executed = |results| Input::Command(StorageCommand::Executed(results));
    let save = |record, cursor: Option<&'static str>| TaskKind::Save {
        record,
        since: 1,
        carried: Arc::default(),
        cursor: cursor.map(bytes),
    };
    let saved = |count, outline, named, cursor: Option<&'static str>| TaskResult::Saved {
        fragments: bytes(if count > 0 { "fragments" } else { "" }),
        count,
        outline: bytes(outline),
        named,
        cursor: cursor.map(bytes),
    };

    let (tasks, _) = give(&mut storage, &mut records, Input::Drained);
    assert_eq!(tasks, [TaskKind::Pin]);
    assert!(matches!(records[..], [Record::Submitted { .. }, Record::Began(_), Record::Verdicts(_)]));
    let (tasks, _) = give(&mut storage, &mut records, executed(vec![TaskResult::Done]));
    assert_eq!(tasks, [save(1, None)]);
    let read = saved(2, "r", vec![(1, 2)], Some("c"));
    let (tasks, _) = give(&mut storage, &mut records, executed(vec![read]));
    assert!(tasks.is_empty(), "the next piece waits for this one: {tasks:?}");
    let before = Input::Persisted(Ticket(records.len() as u64 - 1));
    assert!(give(&mut storage, &mut records, before).0.is_empty());
    let durable = persisted(&records);
    assert_eq!(give(&mut storage, &mut records, durable).0, [save(2, Some("c"))]);
    let read = saved(0, "s", vec![(1, 1)], None);
    assert_eq!(give(&mut storage, &mut records, executed(vec![read])).0, [TaskKind::Release]);
    give(&mut storage, &mut records, executed(vec![TaskResult::Done]));
    let mut collected = None;
    for _ in 0..3 {
        assert_eq!(collected, None, "{records:?}");
        let durable = persisted(&records);
        collected = give(&mut storage, &mut records, durable).1;
    }
    let (before, kept) = collected.expect("the checkpoint is whole");
    assert_eq!(
        (before, kept),
        (Ticket(2), vec![Ticket(4)]),
        "before the checkpoint only named fragments are needed"
    );
    assert!(matches!(
        &records[3..],
        [
            Record::Fragments { number: 1, count: 2, .. },
            Record::Outline(_),
            Record::Outline(_),
            Record::Replies(_),
            Record::Named(named),
            Record::Ended
        ] if named[..] == [(1, 3)]
    ));
    let back = Ok(Some((0, vec![], vec![bytes("r"), bytes("s")], 1)));
    assert_eq!(recovered(&records[1..]), back);

    // The next checkpoint has no new fragments, and keeps the record of the first checkpoint.
    storage.membership.journal().expect("it has a disk").bytes = 1 << 20;
    let first = records.len();
    assert_eq!(give(&mut storage, &mut records, Input::Drained).0, [TaskKind::Pin]);
    let tasks = give(&mut storage, &mut records, executed(vec![TaskResult::Done])).0;
    assert!(matches!(tasks[..], [TaskKind::Save { record: 2, .. }]), "{tasks:?}");
    give(&mut storage, &mut records, executed(vec![saved(0, "t", vec![(1, 1)], None)]));
    give(&mut storage, &mut records, executed(vec![TaskResult::Done]));
    let mut collected = None;
    while collected.is_none() {
        let durable = persisted(&records);
        collected = give(&mut storage, &mut records, durable).1;
    }
    let began = Ticket(first as u64 + 1);
    assert_eq!(collected, Some((began, vec![Ticket(4)])));
    let whole = encoded(&records);
    let with = |kept: &[u64]| {
        let stays = |ticket: Ticket| ticket >= began || kept.contains(&ticket.0);
        recovered_from(whole.iter().filter(|(ticket, _)| stays(*ticket)).cloned().collect())
    };
    assert_eq!(with(&[4]), Ok(Some((0, vec![], vec![bytes("t")], 1))));
    assert_eq!(with(&[5]), Err(Unrecoverable::Missing), "named, and not there");
    let without = |gone: u64| {
        let stays = |ticket: Ticket| ticket.0 == 4 || ticket >= began && ticket.0 != gone;
        recovered_from(whole.iter().filter(|(ticket, _)| stays(*ticket)).cloned().collect())
    };
    assert_eq!(without(began.0 + 2), Err(Unrecoverable::Missing), "a gap behind the beginning");
}

#[test]
fn a_checkpoint_waits_for_state_that_it_cannot_hold() {
    let me = Peer { id: process(ME), address: String::new() };
    let settings = StorageSettings { checkpoint_bytes: Some(1), ..StorageSettings::default() };
    let due = |change: fn(&mut Storage)| {
        let mut storage = Storage::new(me.clone(), String::from("storage-2"), settings.clone());
        storage.membership.know(town(1, &[0, 10, 20], "AAA"));
        storage.membership.journal().expect("it has a disk").bytes = 1;
        change(&mut storage);
        let mut records = Vec::new();
        give(&mut storage, &mut records, Input::Drained);
        records.iter().any(|record| matches!(record, Record::Began(_)))
    };
    let keeps = KeptRows { former: process(1), place: 0, through: Position(3) };
    assert!(due(|_| {}));
    assert!(!due(|storage| storage.membership.journal().expect("it has a disk").bytes = 0));
    assert!(!due(|storage| storage.checkpoints.bytes = 2), "as much as the last one took is to come first");
    assert!(!due(|storage| storage.exports.expect(Position(3))));
    assert!(!due(|storage| storage.exports.pin(Position(3), Pinned::default())));
    assert!(!due(|storage| {
        let copy = vec![(range(10, 19), process(1))];
        storage.import = Some(Import::new(Position(3), copy, vec![range(10, 19)]));
    }));
    let mut storage = Storage::new(me.clone(), String::from("storage-2"), settings.clone());
    storage.membership.know(town(1, &[0, 10, 20], "AAA"));
    storage.keeps = Some(keeps);
    storage.membership.journal().expect("it has a disk").bytes = 1;
    let mut records = Vec::new();
    give(&mut storage, &mut records, Input::Drained);
    assert!(!records.iter().any(|record| matches!(record, Record::Began(_))));
}

/// A checkpoint comes sooner if the disk has had little to do. After a crash, the journal after the last
/// checkpoint is executed again, which takes many times longer than reading its effects.
#[test]
fn an_idle_disk_gets_its_checkpoint_earlier() {
    let me = Peer { id: process(ME), address: String::new() };
    let settings = StorageSettings { checkpoint_bytes: Some(64), ..StorageSettings::default() };
    let mut storage = Storage::new(me, String::from("storage-2"), settings);
    let mut due = |bytes, last, seconds| {
        storage.membership.journal().expect("it has a disk").bytes = bytes;
        storage.checkpoints.bytes = last;
        storage.is_checkpoint_due(64, Duration::from_secs(seconds))
    };
    assert!(due(64, 0, 0), "as many as make one due");
    assert!(!due(15, 0, 1_000), "less than a quarter of it");
    assert_eq!([due(16, 0, 0), due(16, 0, 1)], [false, true], "sixteen bytes a second");
    assert_eq!([due(16, 80, 4), due(16, 80, 5)], [false, true], "as long as the last one took");
    assert_eq!([due(79, 80, 4), due(80, 80, 0)], [false, true], "as many as the last one took");
}

/// Regression: a checkpoint that waited for steps that were then dropped prevented every later checkpoint, so
/// that the process's next import never completed.
#[test]
fn a_checkpoint_that_waits_for_steps_which_are_dropped_makes_way() {
    let me = Peer { id: process(ME), address: String::new() };
    let settings = StorageSettings { checkpoint_bytes: Some(1), ..StorageSettings::default() };
    let mut storage = Storage::new(me, String::from("storage-2"), settings);
    storage.membership.know(town(1, &[0, 10, 20], "AAA"));
    // The engine is busy, so steps wait.
    storage.queue.running.push(Purpose::Import);
    let mut records = Vec::new();
    let mut begun = |storage: &mut Storage| {
        storage.membership.journal().expect("it has a disk").bytes = 1;
        give(storage, &mut records, Input::Drained);
        records.iter().filter(|record| matches!(record, Record::Began(_))).count()
    };
    assert_eq!(begun(&mut storage), 1);
    assert_eq!(begun(&mut storage), 1, "one at a time");
    storage.drop_rows(Position(5), vec![range(10, 19)]);
    assert_eq!(begun(&mut storage), 2);
}
