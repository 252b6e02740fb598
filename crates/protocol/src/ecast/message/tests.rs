use bytes::{BufMut, BytesMut};

use super::*;
use crate::{
    ecast::{
        Class, MessageId, Position, Refusal,
        block::{DeliverBlockBuilder, Delivery, DeliveryKind},
        entry::{LogEntry, RouteBlockBuilder},
    },
    id::Incarnation,
    wire::WireError,
};

fn process(node: u64) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(u128::from(node) << 64 | 0xab) }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks that the message's byte form is `expected`, as in other versions, and that it decodes.
fn check(message: &Message, expected: &str) {
    let mut bytes = BytesMut::new();
    message.encode(&mut bytes);
    assert_eq!(hex(&bytes), expected.split_whitespace().collect::<String>());
    let mut bytes = bytes.freeze();
    assert_eq!(Message::decode(&mut bytes).as_ref(), Ok(message));
    assert!(bytes.is_empty());
}

fn route(acknowledged: u64, first: u64, bodies: &[&[u8]]) -> Bytes {
    let mut block = RouteBlockBuilder::new(process(7), acknowledged, first);
    for body in bodies {
        block.push(Class::Data, body);
    }
    block.finish()
}

#[test]
fn hot_messages_keep_their_bytes() {
    let mut block = RouteBlockBuilder::new(process(7), 3, 5);
    block.push(Class::Data, b"ab");
    block.push(Class::Control, b"");
    check(
        &Message::Route(block.finish()),
        "02 39000000
         01 0700000000000000 ab000000000000000700000000000000 0300000000000000 0500000000000000 02000000
         00 02000000 6162  01 00000000",
    );
    check(
        &Message::Confirm { through: Position(9), executed: Position(8), durable: Position(7) },
        "05 0900000000000000 0800000000000000 0700000000000000",
    );
    let confirm = Message::Confirm { through: Position(9), executed: Position(8), durable: Position(7) };
    let mut bytes = BytesMut::new();
    confirm.encode(&mut bytes);
    check(
        &Message::Up { member: process(7), hops: 15, message: bytes.freeze() },
        "11 0700000000000000 ab000000000000000700000000000000 0f 19000000
         05 0900000000000000 0800000000000000 0700000000000000",
    );
    check(
        &Message::Down { member: process(7), hops: 16, message: Bytes::from_static(&[9]) },
        "12 0700000000000000 ab000000000000000700000000000000 10 01000000 09",
    );
    check(
        &Message::InjectLatest { token: 9, body: Bytes::from_static(b"read") },
        "1a 0900000000000000 04000000 72656164",
    );
    check(&Message::Latest { tokens: vec![9, 10] }, "1b 02000000 0900000000000000 0a00000000000000");
    check(
        &Message::Reach { members: vec![process(7)] },
        "13 01000000 0700000000000000 ab000000000000000700000000000000",
    );
    let mut notice = Notice { credit: 100, wedged: true, ..Notice::default() };
    notice.push(1, Outcome::Stable);
    notice.push(2, Outcome::Stable);
    notice.push(3, Outcome::Rejected(Refusal(5)));
    notice.push(4, Outcome::MaybeApplied);
    check(
        &Message::Notice(notice),
        "03 01000000 0100000000000000 02000000
            02000000 0300000000000000 02 0500000000000000  0400000000000000 01 0000000000000000
            6400000000000000 01",
    );
    let mut block = DeliverBlockBuilder::default();
    let id = MessageId { sender: process(7), number: 2 };
    let mut delivery = Delivery {
        kind: DeliveryKind::Data,
        at: Position(9),
        previous: Position(4),
        sender: id.sender,
        number: id.number,
        body: Bytes::from_static(b"x"),
        attachment: None,
    };
    block.push(&delivery);
    (delivery.kind, delivery.attachment) = (DeliveryKind::Control, Some(Bytes::from_static(b"yz")));
    block.push(&delivery);
    let block = block.finish(Position(3));
    check(
        &Message::Deliver(block.clone()),
        "04 01000000 0700000000000000 ab000000000000000700000000000000 02000000 0300000000000000 46000000
         00 0000 0900000000000000 0400000000000000 0200000000000000 01000000 78
         11 0000 0900000000000000 0400000000000000 0200000000000000 01000000 78 02000000 797a",
    );
    let items: Result<Vec<Delivery>, WireError> = block.into_items().collect();
    assert_eq!(items.map(|items| items[1].clone()), Ok(delivery));
}

#[test]
fn messages_to_a_founder_keep_their_bytes() {
    let (whom, generation) =
        ("0700000000000000 ab000000000000000700000000000000", Generation::FIRST.next(process(7)));
    let g1 = "01000000 ab000000000000000700000000000000";
    let blocks = vec![DeliverBlockBuilder::default().finish(Position(8))];
    let tail = Tail {
        generation,
        before: Generation::FIRST,
        delivered: Position(9),
        acknowledged: 5,
        blocks: blocks.clone(),
    };
    check(&Message::Gather { generation }, &format!("0a {g1}"));
    check(
        &Message::Tail(tail),
        &format!(
            "0b {g1} 00000000 00000000000000000000000000000000 0900000000000000 0500000000000000
             01000000 00000000 00000000 0800000000000000 00000000"
        ),
    );
    check(&Message::Call, "14");
    check(&Message::Pledge(Pledge::Follows), "15 01000000 00");
    check(&Message::Refound { generation }, &format!("16 {g1}"));
    let tail =
        Tail { generation, before: Generation::FIRST, delivered: Position(9), acknowledged: 5, blocks };
    let (kept_behind, base, sent, counted) = (Position(2), Position(8), 6, vec![process(7)]);
    let config = Bytes::from_static(b"c");
    let first = "00000000 00000000000000000000000000000000";
    check(
        &Message::Witness(Box::new(Witness { tail, kept_behind, base, sent, counted, config })),
        &format!(
            "17 {g1} {first} 0900000000000000 0500000000000000
             01000000 00000000 00000000 0800000000000000 00000000
             0200000000000000 0800000000000000 0600000000000000 01000000 {whom} 01000000 63"
        ),
    );
    check(&Message::Counted { generation, members: vec![process(7)] }, &format!("18 {g1} 01000000 {whom}"));
    check(&Message::Release, "19");
}

#[test]
fn messages_of_routers_keep_their_bytes() {
    let id = ProcessId { node: 7, incarnation: Incarnation(0xab) };
    let peer = Peer { id, address: "h:1".to_owned() };
    let (generation, learned) = (Generation::FIRST, 5);
    check(
        &Message::Lead { generation, leader: Some(id), routers: vec![peer.clone()], learned },
        "07 0f000000 00 00 01 07 ab01 01 07 ab01 03 683a31 05",
    );
    check(
        &Message::Lead { generation, leader: None, routers: vec![], learned },
        "07 05000000 00 00 00 00 05",
    );
    check(&Message::NotAdmitted(NotAdmitted::NodeInUse(peer)), "10 08000000 00 07 ab01 03 683a31");
    check(&Message::Paxos(paxos::Message::Away), "01 0c 01000000 0e");
    check(&Message::Repair, "06");
    let body = Bytes::from_static(b"ab");
    check(&Message::Inject { token: 3, body }, "08 0300000000000000 02000000 6162");
    check(&Message::InjectRefused { token: 3 }, "09 0300000000000000");
}

#[test]
fn questions_about_others_keep_their_bytes() {
    let whom = "0700000000000000 ab000000000000000700000000000000";
    let (about, asker, second_opinion) = (process(7), process(7), 3);
    for (opinion, byte) in [(Opinion::Unlinked, 0), (Opinion::Linked, 1), (Opinion::Heard, 2)] {
        let expected = format!("0d {whom} 0300000000000000 0{byte}");
        check(&Message::Opinion { about, second_opinion, opinion }, &expected);
    }
    check(&Message::AskOpinion { about, second_opinion }, &format!("0c {whom} 0300000000000000"));
    check(&Message::Probe { asker, second_opinion }, &format!("0e {whom} 0300000000000000"));
    check(&Message::Alive { asker, second_opinion }, &format!("0f {whom} 0300000000000000"));
    let mut unknown = BytesMut::new();
    Message::Opinion { about, second_opinion, opinion: Opinion::Heard }.encode(&mut unknown);
    *unknown.last_mut().expect("it has bytes") = 3;
    assert_eq!(Message::decode(&mut unknown.freeze()), Err(WireError::Tag(3)));
}

/// A block that some router could not handle is refused before it is proposed, because a chosen block cannot
/// be refused.
#[test]
fn poison_is_no_route_block() {
    let sound = |bytes: Bytes| match LogEntry::decode(bytes) {
        Ok(LogEntry::Route(block)) => block.is_sound(),
        _ => false,
    };
    assert!(sound(route(0, 1, &[b"a", b"b"])));
    assert!(!sound(route(0, 0, &[b"a"])), "numbers begin at 1");
    assert!(!sound(route(0, 1, &[])), "a block has a message");
    assert!(!sound(route(1, 1, &[b"a"])), "it acknowledges itself");
    assert!(!sound(route(u64::MAX, u64::MAX, &[b"a"])), "the number behind does not exist");
    assert!(!sound(route(0, u64::MAX, &[b"a"])), "the number behind does not exist");
    let mut longer = BytesMut::from(&route(0, 1, &[b"a"])[..]);
    longer.put_u8(0);
    assert!(!sound(longer.freeze()), "bytes left over");
    let whole = route(0, 1, &[b"abc"]);
    assert!(!sound(whole.slice(..whole.len() - 1)), "a body is cut off");
}

/// Random bytes never make a decoder panic. Half of the inputs are noise and half are changed messages, so
/// that decoders get far.
#[test]
fn random_bytes_never_panic() {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut block = DeliverBlockBuilder::default();
    block.push(&Delivery {
        kind: DeliveryKind::Injected,
        at: Position(9),
        previous: Position(4),
        sender: process(1),
        number: 2,
        body: Bytes::from_static(b"body"),
        attachment: None,
    });
    let mut seed = BytesMut::new();
    Message::Deliver(block.finish(Position(0))).encode(&mut seed);
    let mut decoded = 0;
    for round in 0..200_000 {
        let bytes: Vec<u8> = if round % 2 == 1 {
            let length = random() % 80;
            (0..length).map(|_| random() as u8 % 16).collect()
        } else {
            let mut bytes = seed.to_vec();
            for _ in 0..=random() % 3 {
                let place = random() as usize % bytes.len();
                bytes[place] = random() as u8;
            }
            bytes
        };
        let bytes = Bytes::from(bytes);
        if let Ok(LogEntry::Route(block)) = LogEntry::decode(bytes.clone()) {
            assert!(block.last() >= block.first);
            block.is_sound();
        }
        if let Ok(Message::Deliver(block)) = Message::decode(&mut bytes.clone()) {
            decoded += block.into_items().filter(Result::is_ok).count();
        }
    }
    assert!(decoded > 1000, "the changed messages decode often enough to matter: {decoded}");
}

#[test]
fn a_large_body_ends_its_block_unless_something_is_attached() {
    let (small, large) = (Bytes::from_static(b"body"), Bytes::from(vec![7; 16 << 10]));
    let attached = || Some(Bytes::from_static(b"attached"));
    for (body, attachment, ends) in [
        (&small, None, false),
        (&small, attached(), false),
        (&large, None, true),
        (&large, attached(), false),
    ] {
        let delivery = Delivery {
            kind: DeliveryKind::Control,
            at: Position(5),
            previous: Position(3),
            sender: process(7),
            number: 2,
            body: body.clone(),
            attachment,
        };
        let mut block = DeliverBlockBuilder::default();
        block.push(&delivery);
        assert_eq!(block.is_full(), ends, "{} bytes", body.len());
        let items: Vec<_> = block.finish(Position(1)).into_items().collect();
        assert_eq!(items, [Ok(delivery)]);
    }
}
