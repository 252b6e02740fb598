//! Pins the bytes of tables' messages, and checks that decoding bytes from outside never panics.

mod derive;

use bytes::{Buf, Bytes, BytesMut};
use quorate_protocol::{
    Duration, Incarnation, ProcessId, RequestId, Role,
    detector::Opinion,
    ecast::{self, Position},
    rubberband::{
        Control, DataHeader, DataKind, Direct, KeptRows, Message, Range, ReadCost, Removal, Reply,
        ReplyContent, TransferCursor, WriteName,
    },
    wire::Wire,
};
use smallvec::smallvec;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn encoded(message: &Message) -> Bytes {
    let mut bytes = BytesMut::new();
    message.encode(&mut bytes);
    bytes.freeze()
}

fn check(message: &Message, expected: &str) {
    let mut bytes = encoded(message);
    assert_eq!(hex(&bytes), expected.split_whitespace().collect::<String>());
    assert_eq!(Message::decode(&mut bytes).as_ref(), Ok(message));
    assert!(bytes.is_empty());
}

fn header() -> DataHeader {
    DataHeader {
        kind: DataKind::FallibleWrite,
        token: 1,
        name: WriteName { request: RequestId { session: 2, number: 3 }, print: 8, repeated: true },
        offset: 4,
        table: 5,
        ranges: smallvec![Range { low: 6, high: 7 }],
    }
}

fn reply(content: ReplyContent) -> Message {
    let ranges = smallvec![Range { low: 1, high: 2 }];
    let spent = ReadCost { waited: Duration::from_micros(6), took: Duration::from_micros(0x0708) };
    let at = Position(4);
    Message::Direct(Direct::Reply(Reply { token: 3, at, ranges, piece: 5, last: true, spent, content }))
}

#[test]
fn hot_messages_keep_their_bytes() {
    let body = header().encode(b"op");
    let expected = "01 82 0100000000000000 02000000000000000000000000000000 0300000000000000 0800000000000000
        04000000 05000000 01000000 0600000000000000 0700000000000000 6f70";
    assert_eq!(hex(&body), expected.split_whitespace().collect::<String>());
    let mut rest = body;
    assert_eq!((DataHeader::take(&mut rest), &rest[..]), (Ok(header()), &b"op"[..]));
    check(
        &reply(ReplyContent::Answer(Bytes::from_static(b"ok"))),
        "02 03 0300000000000000 0400000000000000 01000000 0100000000000000 0200000000000000
         05000000 01 06000000 08070000 00 02000000 6f6b",
    );
    check(
        &reply(ReplyContent::Retry),
        "02 03 0300000000000000 0400000000000000 01000000 0100000000000000 0200000000000000
         05000000 01 06000000 08070000 01",
    );
    check(&Message::Direct(Direct::Alive { executed: Position(9) }), "02 01 0900000000000000");
    check(
        &Message::Direct(Direct::NoVerdict { at: Position(3), through: Position(9) }),
        "02 0c 0300000000000000 0900000000000000",
    );
    check(&Message::Direct(Direct::AskRead { token: 3 }), "02 0d 0300000000000000");
    check(
        &Message::Direct(Direct::Ask {
            name: WriteName { repeated: false, ..header().name },
            token: 4,
            ranges: smallvec![Range { low: 6, high: 7 }],
        }),
        "02 06 02000000000000000000000000000000 0300000000000000 0800000000000000 00
         0400000000000000 01000000 0600000000000000 0700000000000000",
    );
    check(
        &Message::Direct(Direct::AskVerdict { at: Position(9), name: header().name }),
        "02 08 0900000000000000 02000000000000000000000000000000 0300000000000000 0800000000000000 01",
    );
    check(
        &Message::Direct(Direct::Chunk {
            change: Position(9),
            asked: TransferCursor::Replies(None),
            content: Bytes::from_static(b"rows"),
            next: Some(TransferCursor::Rows(Some(Bytes::from_static(b"c")))),
        }),
        "02 0a 08000000 09 01 00 01 00 01 01 63 04000000 726f7773",
    );
    check(
        &reply(ReplyContent::Forgotten { applied: true }),
        "02 03 0300000000000000 0400000000000000 01000000 0100000000000000 0200000000000000
         05000000 01 06000000 08070000 06",
    );
    check(
        &reply(ReplyContent::OtherStatement),
        "02 03 0300000000000000 0400000000000000 01000000 0100000000000000 0200000000000000
         05000000 01 06000000 08070000 05",
    );
    check(
        &reply(ReplyContent::Underway),
        "02 03 0300000000000000 0400000000000000 01000000 0100000000000000 0200000000000000
         05000000 01 06000000 08070000 04",
    );
}

#[test]
fn rare_messages_keep_their_bytes() {
    let (range, change, at) = (Range { low: 6, high: 7 }, Position(9), Position(9));
    let keys = "01000000 0600000000000000 0700000000000000";
    for (direct, expected) in [
        (
            Direct::Basic {
                token: 3,
                placement: 4,
                ranges: smallvec![range],
                operation: Bytes::from_static(b"op"),
            },
            format!("02 0300000000000000 0400000000000000 {keys} 02000000 6f70"),
        ),
        (Direct::Consumed { token: 3, bytes: 4 }, "04 0300000000000000 0400000000000000".to_owned()),
        (Direct::Cancel { token: 3 }, "05 0300000000000000".to_owned()),
        (
            Direct::Verdict {
                at,
                ranges: vec![range],
                failure: Some(Bytes::from_static(b"no")),
                settled: Position(8),
            },
            format!("07 0900000000000000 {keys} 01 02000000 6e6f 0800000000000000"),
        ),
        (
            Direct::Verdict { at, ranges: vec![range], failure: None, settled: Position(8) },
            format!("07 0900000000000000 {keys} 00 0800000000000000"),
        ),
        (
            Direct::Fetch { change, ranges: vec![range], cursor: TransferCursor::Rows(None) },
            "09 06000000 09 01 06 07 00 00".to_owned(),
        ),
        (Direct::FetchRefused { change }, "0b 0900000000000000".to_owned()),
    ] {
        check(&Message::Direct(direct), &format!("02 {expected}"));
    }
    for (content, tag) in [
        (ReplyContent::Expired, "02"),
        (ReplyContent::Unknown, "03"),
        (ReplyContent::Forgotten { applied: false }, "07"),
        (ReplyContent::NoRoom, "08"),
        (ReplyContent::Untaken, "09"),
    ] {
        let head = "0300000000000000 0400000000000000 01000000 0100000000000000 0200000000000000";
        check(&reply(content), &format!("02 03 {head} 05000000 01 06000000 08070000 {tag}"));
    }
    check(&Message::Order(ecast::Message::Repair), "01 06");
}

#[test]
fn suspicions_keep_their_bytes() {
    let about = ProcessId { node: 7, incarnation: Incarnation(0xab) };
    let whom = "0700000000000000 ab000000000000000000000000000000";
    let ask = Message::Direct(Direct::AskOpinion { about, second_opinion: 3 });
    check(&ask, &format!("02 0e {whom} 0300000000000000"));
    let opinion = Opinion::Linked;
    let message = Message::Direct(Direct::Opinion { about, second_opinion: 3, opinion });
    check(&message, &format!("02 0f {whom} 0300000000000000 01"));

    let witnesses = vec![ProcessId { node: 8, incarnation: Incarnation(1) }];
    let removals = vec![Removal { process: about, suspected: Position(9), witnesses }];
    for (control, expected) in [
        (Control::Suspect { processes: vec![about] }, "01 02 01 07 ab01"),
        (Control::Refute { suspected: Position(9) }, "01 06 09"),
        (Control::Remove { removals }, "01 0b 01 07 ab01 09 01 08 01"),
    ] {
        let bytes = control.encode();
        assert_eq!(hex(&bytes), expected.replace(' ', ""));
        assert_eq!(Control::decode(&bytes), Some(control));
    }
}

#[test]
fn ranges_that_end_before_they_begin_are_refused() {
    let mut bytes = BytesMut::from(&header().encode(b"")[..]);
    let low = bytes.len() - 16;
    bytes[low] = 8;
    assert!(DataHeader::take(&mut bytes.freeze()).is_err());
}

#[test]
fn random_bytes_never_panic() {
    let range = Range { low: 1, high: 2 };
    let operation = Bytes::from_static(b"operation");
    let seeds: Vec<Bytes> = [
        Message::Direct(Direct::Basic {
            token: 1,
            placement: 2,
            ranges: smallvec![range],
            operation: operation.clone(),
        }),
        reply(ReplyContent::Answer(operation.clone())),
        Message::Direct(Direct::Verdict {
            at: Position(1),
            ranges: vec![range],
            failure: Some(operation.clone()),
            settled: Position(1),
        }),
        Message::Direct(Direct::Fetch {
            change: Position(1),
            ranges: vec![range, range],
            cursor: TransferCursor::Rows(None),
        }),
        Message::Direct(Direct::Chunk {
            change: Position(1),
            asked: TransferCursor::Replies(Some(operation.clone())),
            content: operation,
            next: None,
        }),
    ]
    .iter()
    .map(encoded)
    .chain([
        header().encode(b"op"),
        Control::Join {
            role: Role::Storage,
            name: "s".into(),
            address: "a:1".into(),
            terms: None,
            keeps: Some(KeptRows {
                former: ProcessId { node: 1, incarnation: Incarnation(2) },
                place: 3,
                through: Position(4),
            }),
        }
        .encode(),
    ])
    .collect();
    let mut state = 7u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let (mut messages, mut headers, mut controls) = (0, 0, 0);
    for _ in 0..300_000 {
        let mut bytes = seeds[random() % seeds.len()].to_vec();
        for _ in 0..random() % 4 {
            let place = random() % bytes.len();
            bytes[place] = if random() % 2 == 1 { 0xff } else { random() as u8 };
        }
        bytes.truncate(bytes.len() - random() % 8 * (random() % 2) % bytes.len());
        let bytes = Bytes::from(bytes);
        let mut rest = bytes.clone();
        messages += usize::from(Message::decode(&mut rest).is_ok());
        assert!(rest.remaining() <= bytes.len());
        headers += usize::from(DataHeader::peek(&bytes).is_some());
        controls += usize::from(Control::decode(&bytes).is_some());
    }
    assert!(messages > 1000 && headers > 1000 && controls > 1000, "{messages} {headers} {controls}");
}
