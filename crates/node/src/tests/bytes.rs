//! Tests that pin the byte forms.

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Ticket,
    seam::PASS_BYTES_MAX,
    wire::{PAYLOAD_BYTES_SHARED, Wire, WireError},
};

use super::{channel, chat::Word};
use crate::{
    Channel, Encoded, Envelope, HEADER_BYTES, JournalEntry, Opaque,
    channel::{EnvelopeContent, RecordContent, Signal},
    records_of,
};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn encode(message: &impl Wire) -> Bytes {
    let mut out = BytesMut::new();
    message.encode(&mut out);
    out.freeze()
}

fn at(channel: Channel, content: EnvelopeContent<Word>) -> Envelope<Word> {
    Envelope { tag: channel.tag(), content }
}

fn signals() -> [(Signal, &'static str); 3] {
    let pass = || Bytes::from_static(b"pass");
    let domain = channel(0).domain;
    [
        (
            Signal::Open { number: 5, answers: 6, domain, pass: pass() },
            "00050000000600000088887777666655554444333322221111\
             0400000070617373",
        ),
        (Signal::Bye { number: 5 }, "0105000000"),
        (Signal::Refuse { number: 6, pass: pass() }, "02060000000400000070617373"),
    ]
}

#[test]
fn envelopes_are_pinned() {
    // The header holds the exclusive or of the domain's four words: 11112222 ^ 33334444 ^ 55556666 ^
    // 77778888.
    let header = "090000000000000088880000";
    let word = Word { session: 1, number: 2 };
    let pinned = format!("{header}1000000001000000000000000200000000000000");
    let typed = encode(&at(channel(9), EnvelopeContent::Typed(word)));
    assert_eq!(hex(&typed), pinned);
    let dynamic = encode(&at(channel(9), EnvelopeContent::Encoded(Encoded::of(&word))));
    assert_eq!(dynamic, typed, "typed and dynamic endpoints understand each other");
    for (signal, body) in signals() {
        let envelope = at(channel(9), EnvelopeContent::Signal(signal));
        let length = (body.len() as u32 / 2) | 1 << 31;
        assert_eq!(hex(&encode(&envelope)), format!("{header}{}{body}", hex(&length.to_le_bytes())));
    }
}

#[test]
fn entries_are_pinned() {
    let entry =
        JournalEntry { channel: channel(9), record: RecordContent::Typed(Word { session: 1, number: 2 }) };
    let bytes = encode(&entry);
    let pinned = "88887777666655554444333322221111090000000000000001000000000000000200000000000000";
    assert_eq!(hex(&bytes), pinned);
    let again: JournalEntry<Word> = JournalEntry::decode(&mut bytes.clone()).unwrap();
    assert_eq!(again.channel, channel(9));
    assert_eq!(again.record::<Word>(), Ok(Word { session: 1, number: 2 }));
    let other = encode(&JournalEntry {
        channel: channel(8),
        record: RecordContent::Typed(Word { session: 3, number: 4 }),
    });
    let entries = [other, bytes.clone(), bytes.clone()];
    let entries = entries.into_iter().zip(5..).map(|(entry, ticket)| (Ticket(ticket), entry));
    let records = records_of(channel(9), entries).unwrap();
    assert_eq!(
        records,
        [(Ticket(6), bytes.slice(24..)), (Ticket(7), bytes.slice(24..))],
        "those of one endpoint, in order"
    );
    assert!(records_of(channel(9), [(Ticket(1), bytes.slice(..23))]).is_err());
    let long = JournalEntry::<Word>::decode(&mut [&bytes[..], b"x"].concat().into()).unwrap();
    assert_eq!(long.record::<Word>(), Err(WireError::Trailing(1)));
}

#[test]
fn no_prefix_and_no_change_of_an_envelope_panics() {
    for (signal, _) in signals() {
        let bytes = encode(&at(channel(9), EnvelopeContent::Signal(signal)));
        for end in 0..bytes.len() {
            Envelope::<Word>::decode(&mut bytes.slice(..end)).expect_err("a prefix is not whole");
            for bit in 0..8 {
                let mut changed = bytes.to_vec();
                changed[end] ^= 1 << bit;
                let _ = Envelope::<Word>::decode(&mut changed.into());
            }
        }
    }
    let pass = Bytes::from(vec![0; PASS_BYTES_MAX]);
    let full = encode(&at(channel(9), EnvelopeContent::Signal(Signal::Refuse { number: 1, pass })));
    let mut long = [&full[..], &[0]].concat();
    long[HEADER_BYTES - 4] += 1;
    long[HEADER_BYTES + 5] += 1;
    let mut long = Bytes::from(long);
    assert_eq!(Envelope::<Word>::decode(&mut long), Err(WireError::Length { length: 65, limit: 64 }));
    let mut nameless = encode(&at(channel(9), EnvelopeContent::Signal(Signal::Bye { number: 0 })));
    assert_eq!(Envelope::<Word>::decode(&mut nameless), Err(WireError::Body), "no session has the number 0");
}

#[test]
fn a_large_payload_is_not_copied_and_the_next_message_is_found_behind_it() {
    struct Large(Bytes);
    impl Wire for Large {
        fn encode(&self, out: &mut BytesMut) {
            quorate_protocol::wire::encode_whole(self, out);
        }
        fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
            quorate_protocol::wire::put_payload(out, &self.0)
        }
        fn decode(input: &mut Bytes) -> Result<Self, WireError> {
            quorate_protocol::wire::take_bytes(input).map(Large)
        }
    }
    let payload = Bytes::from(vec![7; PAYLOAD_BYTES_SHARED]);
    let envelope =
        Envelope { tag: channel(9).tag(), content: EnvelopeContent::Typed(Large(payload.clone())) };
    let mut out = BytesMut::new();
    let shared = envelope.encode_head(&mut out).expect("it is large");
    assert_eq!((shared.as_ptr(), out.len()), (payload.as_ptr(), HEADER_BYTES + 4));
    out.extend_from_slice(&shared);
    Envelope::<Word>::encode(&at(channel(9), EnvelopeContent::Signal(Signal::Bye { number: 3 })), &mut out);
    let mut bytes = out.freeze();
    let first = Envelope::<Large>::decode(&mut bytes).unwrap();
    let EnvelopeContent::Encoded(first) = first.content else { panic!("a message") };
    assert_eq!(first.decode_as::<Large>().unwrap().0, payload);
    let second = Envelope::<Large>::decode(&mut bytes).unwrap();
    assert!(matches!(second.content, EnvelopeContent::Signal(Signal::Bye { number: 3 })));
    assert!(bytes.is_empty());
    // A node without typed endpoints uses the same byte form.
    let _: Option<Envelope<<Opaque as quorate_protocol::Protocol>::Message>> = None;
}
