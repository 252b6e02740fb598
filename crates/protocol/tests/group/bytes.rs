//! Pins the bytes of messages between members, and decodes arbitrary bytes from outside.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Incarnation, ProcessId,
    ecast::Position,
    group::{Direct, GroupId, Holders, Message, PackWriter, Soft},
    wire::Wire,
};

fn sender() -> ProcessId {
    ProcessId { node: 3, incarnation: Incarnation(0xab) }
}

const SENDER: &str = "0300000000000000ab000000000000000000000000000000";

/// Checks that the message encodes to `pinned`, that these bytes decode to the message, and that no part of
/// them decodes.
fn check(direct: Direct, pinned: &str) {
    let message = Message::Group { group: GroupId(7), view: Position(9), direct };
    let mut bytes = BytesMut::new();
    message.encode(&mut bytes);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let whole = format!("04 0700000000000000 0900000000000000 {pinned}").replace(' ', "");
    assert_eq!(hex, whole, "{message:?}");
    let mut bytes = bytes.freeze();
    assert_eq!(Message::decode(&mut bytes.clone()).as_ref(), Ok(&message));
    while !bytes.is_empty() {
        bytes.truncate(bytes.len() - 1);
        assert!(Message::decode(&mut bytes.clone()).is_err(), "a part of {message:?} decodes");
    }
}

#[test]
fn messages_have_these_bytes() {
    let soft = |updates: &[&str]| {
        let mut pack = PackWriter::default();
        updates.iter().for_each(|update| pack.push(update.as_bytes()));
        Soft { after: Position(2), pack: pack.finish().expect("it has an update") }
    };
    check(
        Direct::Soft { sender: sender(), first: 5, messages: vec![soft(&["ab", "c"]), soft(&["d"])] },
        &format!(
            "01 {SENDER} 0500000000000000 02000000 \
             0200000000000000 0b000000 02000000 6162 01000000 63 0200000000000000 05000000 01000000 64"
        ),
    );
    check(
        Direct::Receipts {
            of: Holders::Branch,
            counts: BTreeMap::from([(sender(), 4)]),
            ordered: vec![Position(6), Position(7)],
            asks: true,
        },
        &format!("02 01 01 02000000 0600000000000000 0700000000000000 01000000 {SENDER} 0400000000000000"),
    );
    check(Direct::Want { sender: sender(), from: 8 }, &format!("03 {SENDER} 0800000000000000"));
    check(
        Direct::Gap { sender: sender(), first: 8, last: 9 },
        &format!("07 {SENDER} 0800000000000000 0900000000000000"),
    );
    check(Direct::Word { body: Bytes::from_static(b"ab") }, "06 02000000 6162");
    check(Direct::StateWanted { offset: 1 }, "04 0100000000000000");
    check(
        Direct::State { offset: 1, total: 3, piece: Bytes::from_static(b"x") },
        "05 0100000000000000 0300000000000000 01000000 78",
    );
}

#[test]
fn bytes_from_outside_are_refused() {
    for garbage in [&[0u8][..], &[9], &[4, 0], &[4; 18], &[1, 99]] {
        assert!(Message::decode(&mut Bytes::copy_from_slice(garbage)).is_err(), "{garbage:?}");
    }
    // This count promises more entries than follow.
    let mut forged = BytesMut::new();
    let receipts = Direct::Receipts {
        of: Holders::Sender,
        counts: BTreeMap::new(),
        ordered: vec![Position(0)],
        asks: false,
    };
    Message::Group { group: GroupId(7), view: Position(9), direct: receipts }.encode(&mut forged);
    let end = forged.len();
    forged[end - 4..].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(Message::decode(&mut forged.freeze()).is_err());
}
