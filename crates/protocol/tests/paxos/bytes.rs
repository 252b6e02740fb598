//! Pins the bytes of every message, and decodes arbitrary bytes from outside.

use bytes::{BufMut, Bytes, BytesMut};
use quorate_protocol::{
    Incarnation, Peer, ProcessId,
    paxos::{
        Ballot, Better, Change, ChangeRefusal, Contact, LeaderRoute, Message, Prepare, Pulse, Refusal, Slot,
        SlotValue,
    },
    wire::Wire,
};

fn samples() -> Vec<(Message, &'static str)> {
    let router = ProcessId { node: 3, incarnation: Incarnation(0xab) };
    let ballot = Ballot { round: 2, router };
    let peer = Peer { id: router, address: "h:1".to_owned() };
    let payloads = || SlotValue::Payloads([Bytes::from_static(b"ab"), Bytes::from_static(b"c")].into());
    let members = || SlotValue::Members([peer.clone()].into());
    let prepare = Prepare { ballot, accepted: Ballot::ZERO, last: Slot(9), chosen: Slot(8), reach: 3 };
    let pulse = Pulse {
        beat: 5,
        round: 2,
        reach: 3,
        led: true,
        way: Some(LeaderRoute { ballot, next: router, hops: 1 }),
        contacts: vec![Contact { process: router, beat: 4, heard: true }],
    };
    vec![
        (
            Message::Forward { ballot, payloads: vec![Bytes::from_static(b"xyz")] },
            "0102000000000000000300000000000000ab000000000000000000000000000000010000000300000078797a",
        ),
        (
            Message::Accept { ballot, slot: Slot(9), chosen: Slot(8), value: payloads() },
            "0202000000000000000300000000000000ab0000000000000000000000000000000900000000000000080000000000000000020000000200000061620100000063",
        ),
        (
            Message::Accept { ballot, slot: Slot(9), chosen: Slot(8), value: members() },
            "0202000000000000000300000000000000ab0000000000000000000000000000000900000000000000080000000000000001080000000103ab0103683a31",
        ),
        (
            Message::Accepted { ballot, through: Slot(9) },
            "0302000000000000000300000000000000ab0000000000000000000000000000000900000000000000",
        ),
        (
            Message::Chosen { ballot, through: Slot(9) },
            "0402000000000000000300000000000000ab0000000000000000000000000000000900000000000000",
        ),
        (
            Message::Heartbeat { ballot, chosen: Slot(8), collect: Slot(7), sent: Slot(9) },
            "0502000000000000000300000000000000ab000000000000000000000000000000080000000000000007000000000000000900000000000000",
        ),
        (
            Message::Following { ballot, through: Some(Slot(9)), chosen: Slot(8), lacks: false },
            "0602000000000000000300000000000000ab000000000000000000000000000000010900000000000000080000000000000000",
        ),
        (
            Message::Following { ballot, through: None, chosen: Slot(8), lacks: true },
            "0602000000000000000300000000000000ab00000000000000000000000000000000080000000000000001",
        ),
        (
            Message::Confirm { ballot, round: 7 },
            "0d02000000000000000300000000000000ab0000000000000000000000000000000700000000000000",
        ),
        (
            Message::Confirmed { ballot, round: 7 },
            "0e02000000000000000300000000000000ab0000000000000000000000000000000700000000000000",
        ),
        (
            Message::Sync { ballot, start: Slot(7), chosen: Slot(8), values: vec![payloads(), members()] },
            "0702000000000000000300000000000000ab00000000000000000000000000000007000000000000000800000000000000020000000002000000020000006162010000006301080000000103ab0103683a31",
        ),
        (
            Message::CatchUp { ballot, start: Slot(7), values: vec![payloads()] },
            "0802000000000000000300000000000000ab00000000000000000000000000000007000000000000000100000000020000000200000061620100000063",
        ),
        (
            Message::Chunk {
                ballot,
                slot: Slot(8),
                members: vec![peer.clone()],
                total: 6,
                offset: 4,
                bytes: Bytes::from_static(b"ef"),
            },
            "0902000000000000000300000000000000ab0000000000000000000000000000000800000000000000080000000103ab0103683a3106000000000000000400000000000000020000006566",
        ),
        (
            Message::Part {
                ballot,
                slot: Slot(9),
                members: vec![peer.clone()],
                number: 2,
                last: true,
                bytes: Bytes::from_static(b"pq"),
            },
            "0f02000000000000000300000000000000ab0000000000000000000000000000000900000000000000080000000103ab0103683a310200000000000000010200000070\
             71",
        ),
        (
            Message::ChunkTaken { ballot, slot: Slot(8), offset: 6 },
            "0a02000000000000000300000000000000ab00000000000000000000000000000008000000000000000600000000000000",
        ),
        (
            Message::Promise {
                ballot,
                accepted: Ballot::ZERO,
                last: Slot(9),
                chosen: Slot(8),
                start: Slot(8),
                values: vec![payloads()],
            },
            "0b02000000000000000300000000000000ab00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000900000000000000080000000000000008000000000000000100000000020000000200000061620100000063",
        ),
        (Message::PreVote(prepare), "0c0b000000000203ab01000000090803"),
        (Message::PreVoted { ballot, better: None }, "0c06000000010203ab0100"),
        (
            Message::PreVoted {
                ballot,
                better: Some(Better { accepted: ballot, last: Slot(9), members: vec![peer.clone()] }),
            },
            "0c13000000010203ab01010203ab01090103ab0103683a31",
        ),
        (Message::Prepare(prepare), "0c0b000000020203ab01000000090803"),
        (
            Message::Refused { ballot, promised: ballot, refusal: Refusal::Behind },
            "0c0a000000030203ab010203ab0102",
        ),
        (Message::Resign { ballot }, "0c05000000040203ab01"),
        (Message::Join { peer: peer.clone() }, "0c080000000503ab0103683a31"),
        (
            Message::Refer { leader: Some(router), members: vec![peer.clone()] },
            "0c0d000000060103ab010103ab0103683a31",
        ),
        (Message::Change(Change::Add(peer.clone())), "0c09000000070003ab0103683a31"),
        (
            Message::ChangeRefused { change: Change::Remove(router), reason: ChangeRefusal::TooFew },
            "0c06000000080103ab0102",
        ),
        (Message::Dropped { ballot }, "0c05000000090203ab01"),
        (
            Message::NotMember { chosen: Slot(8), members: vec![peer.clone()] },
            "0c0a0000000a080103ab0103683a31",
        ),
        (Message::HandOver { ballot, successor: router }, "0c080000000d0203ab0103ab01"),
        (Message::Away, "0c010000000e"),
        (Message::Pulse(pulse), "0c140000000c05020301010203ab0103ab01010103ab010401"),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn encode(message: &Message) -> Bytes {
    let mut bytes = BytesMut::new();
    message.encode(&mut bytes);
    bytes.freeze()
}

#[test]
fn every_message_keeps_its_bytes() {
    for (message, golden) in samples() {
        let bytes = encode(&message);
        assert_eq!(hex(&bytes), golden, "{message:?}");
        let mut rest = bytes.clone();
        assert_eq!(Message::decode(&mut rest).as_ref(), Ok(&message));
        assert!(rest.is_empty(), "{message:?} leaves bytes over");
    }
}

#[test]
fn a_message_cut_short_is_an_error() {
    for (message, _) in samples() {
        let bytes = encode(&message);
        for length in 0..bytes.len() {
            assert!(Message::decode(&mut bytes.slice(..length)).is_err(), "{message:?} cut at {length}");
        }
    }
}

#[test]
fn bytes_from_outside_never_panic() {
    let mut state = 7_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    for (message, _) in samples() {
        let bytes = encode(&message);
        for _ in 0..2000 {
            let mut broken = BytesMut::from(&bytes[..]);
            for _ in 0..=random() % 3 {
                let at = random() as usize % broken.len();
                broken[at] = random() as u8;
            }
            if random().is_multiple_of(4) {
                broken.put_u64_le(random());
            }
            // The result may be an error or another message. Only a panic would be wrong.
            drop(Message::decode(&mut broken.freeze()));
        }
    }
}
