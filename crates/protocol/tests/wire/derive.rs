//! Tests of the byte forms that `#[derive(Wire)]` writes, and of the bytes that its decoders refuse. The
//! crate `macros` tests the mistakes in declarations that the derive refuses.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use quorate_protocol::wire::{AnyFlag, PAYLOAD_BYTES_SHARED, Pass, Wire, WireError, decode_all};

#[derive(Clone, Debug, PartialEq, Wire)]
#[wire(rare = 9)]
enum Message {
    #[wire(tag = 1)]
    Lists { pairs: Vec<(u8, Bytes)>, counts: BTreeMap<u8, u32>, rest: Vec<Bytes> },
    #[wire(tag = 2, done = true)]
    #[wire(tag = 3, done = false)]
    Ended { at: u64, done: bool },
    #[wire(tag = 4)]
    Bodies(#[wire(body)] u64, #[wire(body)] Option<String>, bool, #[wire(body)] Vec<u64>),
    #[wire(tag = 5)]
    Flags {
        strict: bool,
        #[wire(with = AnyFlag)]
        any: bool,
        optional: Option<u8>,
        #[wire(with = AnyFlag)]
        any_optional: Option<u8>,
    },
    #[wire(tag = 6)]
    Pass(#[wire(with = Pass)] Bytes),
    #[wire(rare = 1)]
    Text(String, u64),
    #[wire(rare = 0)]
    Away,
    #[wire(first = 64..=255)]
    Inner(Box<Inner>),
}

#[derive(Clone, Debug, PartialEq, Wire)]
enum Inner {
    #[wire(tag = 64)]
    Unit,
    #[wire(tag = 65)]
    Parts(Vec<Part>),
}

#[derive(Clone, Debug, PartialEq, Wire)]
struct Part {
    number: u32,
    bytes: Bytes,
}

/// The variants of [`Message`] with the tag 9, as `serde` declares them.
#[derive(serde::Serialize)]
enum Rare {
    Away,
    Text(String, u64),
}

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn decode(bytes: &[u8]) -> Result<Message, WireError> {
    decode_all(Bytes::copy_from_slice(bytes))
}

/// Checks the bytes of a message in both directions, and that no part of them decodes.
#[track_caller]
fn check(message: Message, bytes: &[u8]) {
    let mut out = BytesMut::new();
    message.encode(&mut out);
    assert_eq!(out, bytes, "{message:?}");
    for end in 0..bytes.len() {
        assert!(matches!(decode(&bytes[..end]), Err(WireError::Short { .. } | WireError::Length { .. })));
    }
    assert_eq!(decode(bytes), Ok(message));
}

#[test]
fn fields_follow_their_tag_in_order() {
    check(
        Message::Lists {
            pairs: vec![(7, text("a")), (8, text(""))],
            counts: BTreeMap::from([(1, 2)]),
            rest: vec![text("b")],
        },
        b"\x01\x02\0\0\0\x07\x01\0\0\0a\x08\0\0\0\0\x01\0\0\0\x01\x02\0\0\0\x01\0\0\0\x01\0\0\0b",
    );
    check(Message::Ended { at: 5, done: true }, &[2, 5, 0, 0, 0, 0, 0, 0, 0]);
    check(Message::Ended { at: 5, done: false }, &[3, 5, 0, 0, 0, 0, 0, 0, 0]);
    check(
        Message::Bodies(300, Some("a".to_owned()), true, vec![1]),
        b"\x04\x05\0\0\0\xac\x02\x01\x01a\x01\x02\0\0\0\x01\x01",
    );
    check(
        Message::Flags { strict: true, any: true, optional: Some(7), any_optional: None },
        &[5, 1, 1, 1, 7, 0],
    );
    check(Message::Pass(text("p")), &[6, 1, 0, 0, 0, b'p']);
    check(Message::Inner(Box::new(Inner::Unit)), &[64]);
    let parts = vec![Part { number: 1, bytes: text("a") }];
    check(Message::Inner(Box::new(Inner::Parts(parts))), b"\x41\x01\0\0\0\x01\0\0\0\x01\0\0\0a");
}

/// Rare variants have the bytes of a `serde` enum with the same numbers.
#[test]
fn rare_variants_are_one_enum() {
    for (message, rare) in [
        (Message::Away, Rare::Away),
        (Message::Text("abc".to_owned(), 300), Rare::Text("abc".to_owned(), 300)),
    ] {
        let mut bytes = BytesMut::from(&[9][..]);
        quorate_protocol::wire::encode_body(&mut bytes, &rare);
        check(message, &bytes);
    }
    assert_eq!(decode(&[9, 1, 0, 0, 0, 2]), Err(WireError::Body), "no variant has this number");
    assert_eq!(decode(&[9, 2, 0, 0, 0, 1, 5]), Err(WireError::Body), "the text is cut off");
    assert_eq!(decode(&[9, 2, 0, 0, 0, 0, 0]), Err(WireError::Trailing(1)));
    assert_eq!(decode(&[9, 0, 0, 0, 0]), Err(WireError::Body));
}

#[test]
fn the_last_payload_is_not_copied() {
    let large = Bytes::from(vec![1; PAYLOAD_BYTES_SHARED]);
    let part = |bytes: &Bytes| Part { number: 1, bytes: bytes.clone() };
    let message = Message::Inner(Box::new(Inner::Parts(vec![part(&large), part(&large)])));
    let mut head = BytesMut::new();
    let payload = message.encode_head(&mut head).expect("it is large enough");
    assert_eq!(payload.as_ptr(), large.as_ptr());
    let mut whole = BytesMut::new();
    message.encode(&mut whole);
    assert_eq!([&head[..], &payload].concat(), whole);
    let lists =
        Message::Lists { pairs: vec![], counts: BTreeMap::new(), rest: vec![large.clone(), text("a")] };
    assert_eq!(lists.encode_head(&mut head), None, "the last payload is small");
    assert_eq!(Message::Pass(text("a")).encode_head(&mut head), None);
}

#[test]
fn decoders_refuse_what_no_encoder_writes() {
    assert_eq!(decode(&[7]), Err(WireError::Tag(7)));
    assert_eq!(decode(&[66]), Err(WireError::Tag(66)), "the inner message has no such tag");
    assert_eq!(decode(&[]), Err(WireError::Short { wanted: 1, left: 0 }));
    assert_eq!(decode(&[2, 5]), Err(WireError::Short { wanted: 8, left: 1 }));
    assert_eq!(decode(&[5, 2]), Err(WireError::Tag(2)));
    assert_eq!(decode(&[5, 0, 0, 2]), Err(WireError::Tag(2)));
    let flags = Message::Flags { strict: false, any: true, optional: None, any_optional: Some(7) };
    assert_eq!(decode(&[5, 0, 2, 0, 3, 7]), Ok(flags), "every byte but 0 means yes");
    assert_eq!(decode(&[64, 0]), Err(WireError::Trailing(1)));
    let pass = [&[6, 65, 0, 0, 0][..], &[0; 65]].concat();
    assert_eq!(decode(&pass), Err(WireError::Length { length: 65, limit: 64 }));
    // A pair has at least 1 + 4 bytes, and a part at least 4 + 4 bytes. The bytes behind these counts suffice
    // for fewer pairs or parts.
    let pairs = [&[1, 3, 0, 0, 0][..], &[0; 14]].concat();
    assert_eq!(decode(&pairs), Err(WireError::Length { length: 3, limit: 2 }));
    let parts = [&[65, 2, 0, 0, 0][..], &[0; 15]].concat();
    assert_eq!(decode(&parts), Err(WireError::Length { length: 2, limit: 1 }));
    assert_eq!((Inner::BYTES_LEAST, Message::BYTES_LEAST), (1, 1));
}
