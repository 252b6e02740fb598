//! A router that is made again from its records is the one that wrote them.

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Duration, Incarnation, Input, Peer, ProcessId, Time,
    paxos::{Ballot, Corrupt, Paxos, Record, Settings, Slot, Value},
    wire::{Wire, WireError},
};

use super::world::{World, peer, process};

/// Makes every router of `world` again, and compares.
pub(crate) fn check(world: &World) {
    for (&id, node) in &world.nodes {
        let recovered = Paxos::recover(peer(id), world.settings.clone(), node.records.clone(), world.now);
        let Some(recovered) = recovered.expect("records follow from each other") else {
            assert!(node.records.is_empty());
            continue;
        };
        let (before, after) = (node.paxos.status(), recovered.status());
        assert_eq!(after.promised, before.promised, "{id}");
        assert_eq!(after.accepted, before.accepted, "{id}");
        assert_eq!(after.last, before.last, "{id}");
        assert_eq!(after.known.0, before.known.0, "{id}");
        // What was learned from the leader's word alone is learned again.
        assert!(after.chosen <= before.chosen, "{id}");
        if after.chosen == before.chosen {
            assert_eq!(after.members, before.members, "{id}");
            assert_eq!(after.members_open, before.members_open, "{id}");
        }
        assert!(recovered.unchosen().len() >= node.paxos.unchosen().len(), "{id}");
    }
}

/// A checkpoint takes the place of everything before it.
#[test]
fn what_a_checkpoint_replaces_is_not_needed() {
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
        Paxos::recover(peer(founder), world.settings.clone(), records, world.now)
    };
    let whole = recover(0).unwrap().unwrap().status();
    assert_eq!(recover(newest).unwrap().unwrap().status(), whole);
    assert!(recover(newest + 1).is_err() || newest + 1 == node.records.len());
}

#[test]
fn nothing_written_is_nothing_to_go_on_from() {
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
        values: vec![Value::Payloads([Bytes::from_static(b"x")].into())],
    };
    assert_eq!(recover(vec![encode(accepted(3))]), Some(Corrupt::Disconnected(0)));
    assert_eq!(recover(vec![encode(accepted(0)), encode(accepted(2))]), Some(Corrupt::Disconnected(1)));
    assert_eq!(recover(vec![Bytes::from_static(&[9])]), Some(Corrupt::Malformed(0, WireError::Tag(9))));
    let mut long = BytesMut::from(&encode(Record::Promised(ballot))[..]);
    long.extend_from_slice(&[0]);
    assert_eq!(recover(vec![long.freeze()]), Some(Corrupt::Malformed(0, WireError::Trailing(1))));
}

/// The bytes of every record, pinned: disks keep them.
#[test]
fn records_have_these_bytes() {
    let router = ProcessId { node: 3, incarnation: Incarnation(0xab) };
    let ballot = Ballot { round: 2, router };
    let members = [Peer { id: router, address: String::from("h:1") }];
    let values = || vec![Value::Payloads([Bytes::from_static(b"xyz")].into())];
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
                members: members.into(),
                state,
                values: values(),
            },
            "0502000000000000000300000000000000ab00000000000000000000000000000002000000000000000300000000000000ab\
             000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000009000000\
             00000000080000000103ab0103683a310200000073740100000000010000000300000078797a",
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
