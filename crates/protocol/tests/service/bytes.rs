//! Pins the bytes of every message and of a batch, and decodes arbitrary bytes from outside.

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Incarnation, Peer, ProcessId,
    paxos::{self, Ballot, Slot},
    service::{
        Abort, Batch, Body, Call, CallId, CallOutcome, GroupId, Instance, Kind, Message, Part, Scope,
        SessionId,
    },
    wire::Wire,
};

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn replica() -> ProcessId {
    ProcessId { node: 3, incarnation: Incarnation(0xab) }
}

fn ballot() -> Ballot {
    Ballot { round: 2, router: replica() }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks that the value encodes to `pinned`, that these bytes decode to the value, and that no part of them
/// decodes.
fn check<T: Wire + PartialEq + std::fmt::Debug>(value: &T, pinned: &str) {
    let mut bytes = BytesMut::new();
    value.encode(&mut bytes);
    assert_eq!(hex(&bytes), pinned, "{value:?}");
    let mut bytes = bytes.freeze();
    assert_eq!(T::decode(&mut bytes.clone()).as_ref(), Ok(value));
    while !bytes.is_empty() {
        bytes.truncate(bytes.len() - 1);
        assert!(T::decode(&mut bytes.clone()).is_err(), "a part of {value:?} decodes");
    }
}

#[test]
fn messages_have_these_bytes() {
    let peer = Peer { id: replica(), address: "h:1".to_owned() };
    let session = SessionId(5);
    let part = |first| Some(Part { transaction: 4, first });
    let accepted = paxos::Message::Accepted { ballot: ballot(), through: Slot(9) };
    let samples = [
        (
            Body::Paxos(accepted),
            "07000000000000000103\
             02000000000000000300000000000000ab0000000000000000000000000000000900000000000000",
        ),
        (Body::Open { nonce: 6 }, "070000000000000004020000000006"),
        (Body::Opened { nonce: 6, session }, "07000000000000000403000000010605"),
        (Body::Members { members: vec![peer.clone()] }, "07000000000000000409000000030103ab0103683a31"),
        (
            Body::Redirect { leader: Some(replica()), members: vec![peer] },
            "0700000000000000040d000000020103ab010103ab0103683a31",
        ),
        (
            Body::Calls {
                session,
                done: 2,
                calls: vec![Call { number: 3, kind: Kind::Read, scope: None, request: text("xy") }],
            },
            "07000000000000000205000000000000000200000000000000010000000300000000000000010200000078\
             79",
        ),
        (
            Body::Calls {
                session,
                done: 2,
                calls: vec![
                    Call {
                        number: 3,
                        kind: Kind::Write,
                        scope: Some(Box::new(Scope { keys: vec![9], part: part(true) })),
                        request: text("x"),
                    },
                    Call {
                        number: 4,
                        kind: Kind::Commit,
                        scope: Some(Box::new(Scope { keys: Vec::new(), part: part(false) })),
                        request: Bytes::new(),
                    },
                ],
            },
            "070000000000000002050000000000000002000000000000000200000003000000000000007001000000\
             090000000000000004000000000000000100000078\
             04000000000000003300000000040000000000000000000000",
        ),
        (Body::Abandon { session, transactions: vec![4] }, "0700000000000000040400000004050104"),
        (
            Body::Reads { session, numbers: vec![3, 4] },
            "07000000000000000505000000000000000200000003000000000000000400000000000000",
        ),
        (
            Body::ReadsConfirmed { ballot: ballot(), reads: vec![CallId { session, number: 3 }] },
            "070000000000000006\
             02000000000000000300000000000000ab000000000000000000000000000000\
             0100000005000000000000000300000000000000",
        ),
        (
            Body::Answers {
                session,
                answers: vec![
                    (3, CallOutcome::Done(text("r"))),
                    (4, CallOutcome::Rejected(text("no"))),
                    (5, CallOutcome::Expired),
                    (6, CallOutcome::Full),
                    (7, CallOutcome::Reused),
                    (8, CallOutcome::Aborted(Abort::Deadlock)),
                ],
            },
            "07000000000000000305000000000000000600000003000000000000000001000000720400000000000000\
             01020000006e6f0500000000000000020600000000000000\
             0307000000000000000508000000000000000401",
        ),
    ];
    for (body, pinned) in samples {
        check(&Message { group: GroupId(7), body }, pinned);
    }
}

#[test]
fn a_batch_has_these_bytes() {
    let id = |number| CallId { session: SessionId(5), number };
    let batch = Batch {
        ballot: ballot(),
        first: 8,
        instances: vec![
            Instance::Open,
            Instance::Call { id: id(1), done: 0, reply: text("r"), change: None },
            Instance::Call { id: id(2), done: 1, reply: text(""), change: Some(text("ch")) },
            Instance::Close(SessionId(5)),
            Instance::Transaction { id: id(3), done: 2, changes: vec![text("a"), text("bc")] },
        ],
    };
    check(
        &batch,
        "02000000000000000300000000000000ab000000000000000000000000000000080000000000000005000000\
         000105000000000000000100000000000000000000000000000001000000720205000000000000000200000000000000\
         010000000000000000000000020000006368030500000000000000\
         040500000000000000030000000000000002000000000000000200000001000000610200000062\
         63",
    );
}
