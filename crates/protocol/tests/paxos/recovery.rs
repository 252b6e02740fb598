//! A router that is rebuilt from its records equals the router that wrote them.

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Duration, Incarnation, Input, Peer, ProcessId, Time,
    paxos::{Ballot, Command, Corrupt, Event, Paxos, Record, Settings, Slot, SlotValue, StateKind},
    wire::{Wire, WireError},
};

use super::{
    alone::{Alone, ballot, checkpoint, members, peers, recovered, value},
    world::{World, peer, process},
};

/// Rebuilds every router of `world` from its records, and compares the two.
pub(crate) fn check(world: &World) {
    for (id, paxos, node) in world.living() {
        let recovered = Paxos::recover(peer(id), world.settings.clone(), node.records.clone(), world.now());
        let Some(recovered) = recovered.expect("records follow from each other") else {
            assert!(node.records.is_empty());
            continue;
        };
        let (before, after) = (paxos.status(), recovered.status());
        assert_eq!(after.promised, before.promised, "{id}");
        assert_eq!(after.accepted, before.accepted, "{id}");
        assert_eq!(after.last, before.last, "{id}");
        assert_eq!(after.known.0, before.known.0, "{id}");
        // The rebuilt router must learn again the slots that the original router learned only from the
        // leader's statement.
        assert!(after.chosen <= before.chosen, "{id}");
        if after.chosen == before.chosen {
            assert_eq!(after.members, before.members, "{id}");
            assert_eq!(after.members_open, before.members_open, "{id}");
        }
        assert!(recovered.unchosen().len() >= paxos.unchosen().len(), "{id}");
    }
}

/// A checkpoint replaces all earlier records.
#[test]
fn records_before_a_checkpoint_are_not_needed() {
    let settings = Settings { checkpoint_bytes: Some(2_000), ..Settings::default() };
    let mut world = World::new(settings, 1);
    let founder = process("1");
    world.found(founder);
    for number in 0..200 {
        world.propose(founder, Bytes::from(format!("entry {number} of many")));
        world.input(founder, Input::Drained);
        world.run(Duration::from_millis(1));
    }
    check(&world);
    let node = &world.nodes[&founder];
    let is_checkpoint =
        |bytes: &Bytes| matches!(Record::decode(&mut bytes.clone()), Ok(Record::Checkpoint { .. }));
    let newest = node.records.iter().rposition(is_checkpoint).expect("enough was written for one");
    let checkpoints = node.records.iter().filter(|bytes| is_checkpoint(bytes)).count();
    assert!((5..100).contains(&checkpoints), "{checkpoints}");
    let recover = |from: usize| {
        let records = node.records[from..].to_vec();
        Paxos::recover(peer(founder), world.settings.clone(), records, world.now())
    };
    let whole = recover(0).unwrap().unwrap().status();
    assert_eq!(recover(newest).unwrap().unwrap().status(), whole);
    assert!(recover(newest + 1).is_err() || newest + 1 == node.records.len());
}

/// Appends one entry to the log of a sole member. Returns the events and the records.
fn append(alone: &mut Alone) -> (Vec<Event>, Vec<Record>) {
    let payload = Bytes::from_static(b"an entry that makes the journal longer");
    let turns = [
        alone.command(Command::Propose { payload }),
        alone.input(Input::Drained),
        alone.persisted(),
        alone.input(Input::Drained),
    ];
    let (mut events, mut records) = (Vec::new(), Vec::new());
    for said in turns {
        events.extend(said.events);
        records.extend(said.records);
    }
    (events, records)
}

fn wanted(events: &[Event]) -> Option<Slot> {
    events.iter().find_map(|event| match event {
        Event::SnapshotWanted { slot } => Some(*slot),
        _ => None,
    })
}

/// A user gathers its state over many turns. Meanwhile the log goes on, and the checkpoint contains the
/// entries behind the state.
#[test]
fn a_slowly_gathered_state_is_stored_with_the_log_behind_it() {
    let settings = Settings { checkpoint_bytes: Some(2_000), ..Settings::default() };
    let mut alone = Alone::founder(&settings);
    assert!((0..100).any(|_| wanted(&append(&mut alone).0).is_some()), "enough is written for one");
    let slot = alone.paxos.applied();
    assert_eq!(wanted(&alone.command(Command::SnapshotLater { slot: Slot(1) }).events), Some(slot));
    assert_eq!(alone.command(Command::SnapshotLater { slot }).events, []);
    for _ in 0..3 {
        assert_eq!(wanted(&append(&mut alone).0), None, "it is being gathered");
    }
    let state = Bytes::from_static(b"state");
    let mut records = alone.command(Command::Snapshot { slot, state: state.clone() }).records;
    assert!(
        matches!(&records[..], [Record::Checkpoint { slot: held, chosen, values, .. }]
            if *held == slot && chosen.0 == slot.0 + 3 && values.len() == 3),
        "{records:?}"
    );
    records.extend(append(&mut alone).1);
    let recovered = recovered("1", &settings, records).unwrap().unwrap();
    assert_eq!(recovered.status().known, alone.paxos.status().known);
    let mut again = Alone::of(recovered);
    let events = again.input(Input::Drained).events;
    assert_eq!(events[0], Event::Install { slot, state });
    let learned = events.iter().filter(|event| matches!(event, Event::Learned { .. })).count();
    assert!(learned >= 3, "what came behind the state is learned: {events:?}");
}

#[test]
fn an_empty_journal_has_nothing_to_recover() {
    let me = Peer { id: process("1"), address: String::from("h:1") };
    assert!(Paxos::recover(me, Settings::default(), [], Time::ZERO).unwrap().is_none());
}

#[test]
fn records_that_do_not_follow_are_refused() {
    let me = || Peer { id: process("1"), address: String::from("h:1") };
    let encode = |record: Record| {
        let mut bytes = BytesMut::new();
        record.encode(&mut bytes);
        bytes.freeze()
    };
    let recover = |records: Vec<Bytes>| Paxos::recover(me(), Settings::default(), records, Time::ZERO).err();
    let ballot = Ballot { round: 1, router: process("1") };
    let accepted = |start: u64| Record::Accepted {
        ballot,
        start: Slot(start),
        chosen: Slot(start),
        values: vec![SlotValue::Payloads([Bytes::from_static(b"x")].into())],
    };
    assert_eq!(recover(vec![encode(accepted(3))]), Some(Corrupt::Disconnected(0)));
    assert_eq!(recover(vec![encode(accepted(0)), encode(accepted(2))]), Some(Corrupt::Disconnected(1)));
    assert_eq!(recover(vec![Bytes::from_static(&[9])]), Some(Corrupt::Malformed(0, WireError::Tag(9))));
    let mut long = BytesMut::from(&encode(Record::Promised(ballot))[..]);
    long.extend_from_slice(&[0]);
    assert_eq!(recover(vec![long.freeze()]), Some(Corrupt::Malformed(0, WireError::Trailing(1))));
}

/// Pins the bytes of every record, because disks keep them.
#[test]
fn records_have_these_bytes() {
    let router = ProcessId { node: 3, incarnation: Incarnation(0xab) };
    let ballot = Ballot { round: 2, router };
    let members = [Peer { id: router, address: String::from("h:1") }];
    let values = || vec![SlotValue::Payloads([Bytes::from_static(b"xyz")].into())];
    let state = Bytes::from_static(b"st");
    let samples = [
        (Record::Promised(ballot), "0102000000000000000300000000000000ab000000000000000000000000000000"),
        (
            Record::Accepted { ballot, start: Slot(9), chosen: Slot(8), values: values() },
            "0202000000000000000300000000000000ab00000000000000000000000000000009000000000000000800000000000000\
             01000000000100000003000000\
             78797a",
        ),
        (
            Record::Learned { ballot, start: Slot(9), values: values() },
            "0302000000000000000300000000000000ab0000000000000000000000000000000900000000000000\
             0100000000010000000300000078797a",
        ),
        (
            Record::Installed {
                ballot,
                slot: Slot(9),
                members: members.clone().into(),
                state: state.clone(),
            },
            "0402000000000000000300000000000000ab0000000000000000000000000000000900000000000000\
             080000000103ab0103683a31020000007374",
        ),
        (
            Record::Checkpoint {
                promised: ballot,
                accepted: ballot,
                taught: Ballot::ZERO,
                slot: Slot(9),
                chosen: Slot(9),
                members: members.clone().into(),
                state: state.clone(),
                values: values(),
            },
            "0502000000000000000300000000000000ab00000000000000000000000000000002000000000000000300000000000000ab\
             000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000009000000\
             00000000080000000103ab0103683a310200000073740100000000010000000300000078797a",
        ),
        (
            Record::Checkpoint {
                promised: ballot,
                accepted: ballot,
                taught: Ballot::ZERO,
                slot: Slot(9),
                chosen: Slot(10),
                members: members.into(),
                state,
                values: values(),
            },
            "0602000000000000000300000000000000ab00000000000000000000000000000002000000000000000300000000000000ab\
             000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000009000000\
             000000000a00000000000000080000000103ab0103683a310200000073740100000000010000000300000078797a",
        ),
    ];
    for (record, hex) in samples {
        let mut bytes = BytesMut::new();
        record.encode(&mut bytes);
        let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, hex, "{record:?}");
        let mut bytes = bytes.freeze();
        assert_eq!(Record::decode(&mut bytes.clone()), Ok(record));
        while !bytes.is_empty() {
            bytes.truncate(bytes.len() - 1);
            assert!(Record::decode(&mut bytes.clone()).is_err());
        }
    }
}

#[test]
fn the_recovered_members_come_from_the_newest_log() {
    let record = |taught| Record::Checkpoint {
        promised: ballot(9, "1"),
        accepted: ballot(4, "1"),
        taught,
        slot: Slot(5),
        chosen: Slot(5),
        members: peers("1 2 3").into(),
        state: Bytes::new(),
        // This change would remove the router itself. It is part of a log that may be dead.
        values: vec![members("1 2")],
    };
    let alone = |taught| Alone::from("3", &Settings::default(), record(taught));
    let dead = alone(ballot(5, "2"));
    assert_eq!(dead.paxos.status().known, (ballot(5, "2"), Slot(5)));
    assert!(dead.paxos.can_reform().is_ok());
    let alive = alone(ballot(3, "2"));
    assert_eq!(alive.paxos.status().known, (ballot(4, "1"), Slot(6)));
    assert!(alive.paxos.can_reform().is_err());
}

#[test]
fn a_record_must_follow_from_earlier_records() {
    let values = |values: &[&str]| -> Vec<SlotValue> { values.iter().map(|names| members(names)).collect() };
    let accepted = |ballot, start, chosen| Record::Accepted {
        ballot,
        start: Slot(start),
        chosen: Slot(chosen),
        values: vec![value(1)],
    };
    let learned = |start, names: &[&str]| Record::Learned {
        ballot: ballot(5, "2"),
        start: Slot(start),
        values: values(names),
    };
    let installed = |slot| Record::Installed {
        ballot: ballot(5, "2"),
        slot: Slot(slot),
        members: peers("1 2 3").into(),
        state: Bytes::new(),
    };
    // The record follows a checkpoint with six slots of ballot b4, five of them chosen.
    let follows = |record: Record| {
        let before = checkpoint("1 2 3", ballot(4, "1"), 5, vec![value(9)]);
        recovered("3", &Settings::default(), [before, record]).is_ok()
    };
    let (same, lower, higher) = (ballot(4, "1"), ballot(3, "1"), ballot(5, "1"));
    for record in [
        accepted(same, 6, 5),
        accepted(same, 6, 6),
        accepted(higher, 5, 5),
        accepted(higher, 6, 6),
        learned(5, &["1 2 3 4"]),
        learned(6, &["1 2 3 4"]),
        installed(6),
        installed(9),
    ] {
        assert!(follows(record.clone()), "{record:?}");
    }
    for record in [
        accepted(same, 5, 5),
        accepted(same, 6, 7),
        accepted(lower, 5, 5),
        accepted(higher, 6, 5),
        accepted(higher, 7, 7),
        learned(4, &["1 2 3 4"]),
        learned(7, &["1 2 3 4"]),
        learned(5, &["1 2 3 4 5"]),
        installed(5),
    ] {
        assert!(!follows(record.clone()), "{record:?}");
    }
}

#[test]
fn a_recovered_router_reports_its_state_to_its_user() {
    let router = Alone::from("3", &Settings::default(), checkpoint("1 2 3", ballot(1, "1"), 5, vec![]));
    let events = router.events;
    assert!(
        matches!(events[..], [Event::Install { slot: Slot(5), .. }, Event::Members(_), ..]),
        "{events:?}"
    );
}

#[test]
fn only_a_router_without_a_log_can_found_a_domain() {
    let settings = Settings::default();
    assert!(Alone::joining("4", &settings).paxos.can_found());
    let member = Alone::from("3", &settings, checkpoint("1 2 3", ballot(1, "1"), 5, vec![]));
    assert!(!member.paxos.can_found(), "it is a member");
    let fed = Alone::from("4", &settings, checkpoint("1 2 3", ballot(1, "1"), 5, vec![]));
    assert_eq!((fed.state(), fed.paxos.can_found()), (StateKind::Joining, false));
    let accepted = Record::Accepted {
        ballot: ballot(1, "1"),
        start: Slot::ZERO,
        chosen: Slot::ZERO,
        values: vec![members("1")],
    };
    let fed = recovered("4", &settings, [accepted]).expect("it follows").expect("there is one");
    assert!(!fed.can_found(), "it holds what may be chosen");
}
