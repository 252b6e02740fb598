use smallvec::smallvec;

use super::*;
use crate::{
    id::Peer,
    rubberband::{
        Config, KeptRows, MemberInfo, Role, StorageState,
        config::State,
        sample::{RecordingSink, bytes, process, range, town, write_header},
        storage::StorageSettings,
    },
    time::Time,
};

const AT: Position = Position(50);
const CLIENT: u64 = 30;
const RANGES: [Range; 3] =
    [Range { low: 0, high: 9 }, Range { low: 10, high: 19 }, Range { low: 20, high: u64::MAX }];

fn storage(config: Config) -> Storage {
    let me = Peer { id: process(1), address: String::new() };
    let mut storage = Storage::new(me, String::from("storage-1"), StorageSettings::default());
    storage.membership.know(config);
    storage
}

/// Returns a write to all ranges, of which process 1 holds `held`.
fn write(held: &[Range], others: Vec<(ProcessId, Vec<Range>)>) -> Box<Write> {
    Box::new(Write {
        at: AT,
        client: process(CLIENT),
        header: write_header(&RANGES, true),
        held: held.to_vec(),
        segments: held.to_vec(),
        remembered: Vec::new(),
        answers: held.to_vec(),
        others,
        operation: bytes("operation"),
    })
}

/// Builds process 1, which holds an evaluated write. Processes 2 and 3 have the other ranges, and 2 has sent
/// a favourable verdict.
fn holding(config: Config, departed: u64) -> Storage {
    let mut storage = storage(config);
    let others = vec![(process(2), vec![RANGES[1]]), (process(3), vec![RANGES[2]])];
    let write = write(&RANGES[..1], others);
    storage.replies.begin(write.header.name);
    storage.verdicts.add(AT, &RANGES[..2], None);
    storage.decisions.hold(write, Ok(vec![bytes("done")]), Time(u64::MAX));
    storage.decisions.departed = Position(departed);
    storage
}

/// Builds three processes with a range each, and a keeper 4 of the rows of `former`.
fn with_keeper(states: &str, former: u64, through: u64) -> Config {
    let mut state = State::from(town(1, &[0, 10, 20], states));
    let info = MemberInfo { role: Role::Storage, name: String::new(), address: String::new() };
    let keeps = KeptRows { former: process(former), place: 20, through: Position(through) };
    state.members.insert(process(4), info);
    state.storage.insert(process(4), StorageState::Keeping(keeps));
    Config::from(state)
}

#[test]
fn a_held_write_is_given_up_only_when_no_process_can_know_its_verdict() {
    let dead = || town(1, &[0, 10, 20], "AAD");
    for (case, config, departed, unknowing, given_up) in [
        ("3 is out, and 2 has delivered that", dead(), 60, &[(2, 60)][..], true),
        ("at the very position of the write", dead(), 50, &[(2, 50)], true),
        ("nobody has left since", dead(), 49, &[(2, 60)], false),
        ("2 says nothing", dead(), 60, &[], false),
        ("2 may have heard 3 since it spoke", dead(), 60, &[(2, 59)], false),
        ("3 lives, and will speak", town(1, &[0, 10, 20], "AAA"), 60, &[(2, 60), (3, 60)], false),
        ("3 has a keeper that will speak", with_keeper("AAD", 3, 50), 60, &[(2, 60), (4, 60)], false),
        ("its keeper did not deliver it", with_keeper("AAD", 3, 49), 60, &[(2, 60), (4, 60)], true),
        ("the keeper of another has not answered", with_keeper("AAD", 7, 50), 60, &[(2, 60)], false),
        ("and has", with_keeper("AAD", 7, 50), 60, &[(2, 60), (4, 60)], true),
        ("nobody else is left", town(1, &[0, 10, 20], "ADD"), 60, &[], true),
    ] {
        let mut storage = holding(config, departed);
        for &(node, through) in unknowing {
            storage.verdicts.add_unknowing(AT, process(node), Position(through));
        }
        let mut said = RecordingSink::default();
        storage.give_up(&mut said);
        assert_eq!(!storage.decisions.is_holding(), given_up, "{case}");
        assert_eq!(storage.decisions.next_settled(), given_up.then_some((AT, true)), "{case}");
        assert_eq!(said.sent.len(), usize::from(given_up), "{case}: its client is told");
        let decided = storage.verdicts.known(AT).map(|(ranges, _)| ranges);
        assert_eq!(decided == Some(vec![Range::ALL]), given_up, "{case}: and who asks");
    }
}

/// The answer of a write, or the reason of its failure; the reason is `None` if it was dropped.
type Did = Result<&'static str, Option<Bytes>>;

/// Lets a range remember the write of [`write_header`].
fn remember(storage: &mut Storage, range: Range, at: u64, results: Did) {
    let results = results.map(|answer| vec![(range, Some(bytes(answer)))]);
    let name = write_header(&RANGES, true).name;
    storage.replies.remember(name, range, Remembered { at: Position(at), results });
}

#[test]
fn a_remembered_outcome_is_returned_as_a_verdict() {
    let name = write_header(&RANGES, true).name;
    let verdict_after = |remembered: &[(Range, u64, Did)], name| {
        let mut storage = storage(town(1, &[0, 10, 20], "AAA"));
        for (range, at, results) in remembered {
            remember(&mut storage, *range, *at, results.clone());
        }
        storage.remembered_verdict(AT, name)
    };
    let everywhere = vec![Range::ALL];
    assert_eq!(verdict_after(&[], name), None);
    assert_eq!(
        verdict_after(&[(RANGES[0], 50, Ok("a"))], name),
        Some((everywhere.clone(), None)),
        "at this position"
    );
    let before = [(RANGES[0], 40, Ok("a")), (RANGES[1], 41, Ok("a"))];
    assert_eq!(
        verdict_after(&before, name),
        Some((RANGES[..2].to_vec(), None)),
        "before: here it does no more"
    );
    let failed = [(RANGES[0], 40, Ok("a")), (RANGES[1], 40, Err(Some(bytes("why"))))];
    assert_eq!(verdict_after(&failed, name), Some((everywhere.clone(), Some(bytes("why")))));
    let forgotten = verdict_after(&[(RANGES[1], 40, Err(None))], name);
    assert_eq!(forgotten, Some((everywhere.clone(), Some(FORGOTTEN))));
    let other = WriteName { print: name.print + 1, ..name };
    assert_eq!(verdict_after(&before[..1], other), Some((everywhere, Some(OTHER_STATEMENT))));
}

/// Formats the replies to the client.
fn replies(said: &RecordingSink<Storage>) -> Vec<String> {
    let shown = said.sent.iter().filter_map(|(to, message)| match message {
        Message::Direct(Direct::Reply(reply)) => {
            assert_eq!(*to, process(CLIENT));
            let ranges: Vec<String> =
                reply.ranges.iter().map(|it| format!("{}-{}", it.low, it.high)).collect();
            let what = match &reply.content {
                ReplyContent::Answer(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                other => format!("{other:?}"),
            };
            Some(format!("{what} {}", ranges.join(" ")).trim_end().to_owned())
        }
        _ => None,
    });
    shown.collect()
}

#[test]
fn a_question_about_a_write_is_answered_from_memory() {
    let name = write_header(&RANGES, true).name;
    let mut storage = storage(town(1, &[0, 10, 20], "AAA"));
    let ask = |storage: &Storage, name| {
        let mut said = RecordingSink::default();
        storage.answer_from_memory(process(CLIENT), name, 5, &RANGES, &mut said);
        replies(&said)
    };
    assert_eq!(ask(&storage, name), ["Unknown"]);
    remember(&mut storage, RANGES[0], 40, Ok("done"));
    assert_eq!(ask(&storage, name), ["done 0-9"], "and nothing else");
    assert_eq!(ask(&storage, WriteName { print: 4, ..name }), ["OtherStatement"]);
}

#[test]
fn a_failure_is_sent_to_every_client_that_asked_for_ranges() {
    let failed = Remembered { at: AT, results: Err(Some(bytes("why"))) };
    for (asked, expected) in [(&RANGES[..1], vec!["why 0-9"]), (&[], vec![])] {
        let mut said = RecordingSink::default();
        send_remembered(process(CLIENT), 5, &failed, asked, &mut said);
        assert_eq!(replies(&said), expected);
    }
}

#[test]
fn a_write_that_failed_before_fails_in_every_range() {
    let mut storage = storage(town(1, &[0, 10, 20], "AAA"));
    remember(&mut storage, RANGES[0], 40, Err(Some(bytes("why"))));
    let (mut tasks, mut said) = (Vec::new(), RecordingSink::default());
    assert!(storage.push_write(&mut tasks, write(&RANGES[..2], Vec::new()), &mut said));
    assert!(tasks.is_empty(), "nothing is evaluated");
    let name = write_header(&RANGES, true).name;
    let KnownReply::Done(known) = storage.replies.known(name, RANGES[1]) else { panic!("it is remembered") };
    assert_eq!((known.at, &known.results), (AT, &Err(Some(bytes("why")))));
}

#[test]
fn a_repetition_with_other_keys_is_answered_for_these_keys() {
    let name = write_header(&RANGES, true).name;
    for (did, asks, expected) in [
        // The write changed 5-9 and is repeated for 0-4: it is answered as done, and not executed again.
        (range(5, 9), range(0, 4), vec!["done 0-4"]),
        (range(0, 4), range(0, 4), vec!["done 0-4"]),
        (range(3, 9), range(0, 4), vec!["done 3-9"]),
    ] {
        let mut storage = storage(town(1, &[0, 10, 20], "AAA"));
        let results = Ok(vec![(did, Some(bytes("done")))]);
        storage.replies.remember(name, RANGES[0], Remembered { at: Position(40), results });
        let mut again = write(&[asks], Vec::new());
        again.header.ranges = smallvec![asks];
        again.segments = vec![RANGES[0]];
        let mut said = RecordingSink::default();
        assert!(storage.push_write(&mut Vec::new(), again, &mut said));
        assert_eq!(replies(&said), expected, "{did:?} {asks:?}");
    }
}

#[test]
fn a_write_refused_for_its_id_leaves_no_trace() {
    let name = write_header(&RANGES, true).name;
    for (result, expected, known) in [
        (Err(OTHER_STATEMENT), "OtherStatement", false),
        (Err(bytes("why")), "why 0-9", true),
        (Ok(vec![bytes("done")]), "done 0-9", true),
    ] {
        let mut storage = storage(town(1, &[0, 10, 20], "AAA"));
        storage.replies.begin(name);
        let mut said = RecordingSink::default();
        storage.answer(&write(&RANGES[..1], Vec::new()), result, &mut said);
        assert_eq!(replies(&said), [expected]);
        assert_eq!(storage.replies.known(name, RANGES[0]) != KnownReply::Nothing, known, "{expected}");
        assert!(!storage.replies.is_pending(name));
    }
}

#[test]
fn verdicts_are_kept_for_the_oldest_change_under_way() {
    assert_eq!(storage(town(1, &[0, 10, 20], "AAA")).receiving(), None);
    let mut state = State::from(town(1, &[0, 10, 20], "ARA"));
    state.storage.insert(process(3), StorageState::Receiving { change: Position(7) });
    assert_eq!(storage(Config::from(state)).receiving(), Some(Position(7)));
}
