//! Messages of peers and records of disks. The first byte of an input chooses the type.

use std::fmt::Debug;

use bytes::{Bytes, BytesMut};
use quorate_node::{Envelope, JournalEntry};
use quorate_protocol::{
    ecast, group,
    journal::{DurabilityReport, RemoteDurability},
    partial, paxos, relay, rubberband, service,
    wire::{self, Wire},
};

/// Decodes the input as a message of the protocol that the first byte chooses.
pub(crate) fn run(input: &[u8]) {
    decode_one_of(
        input,
        &[
            check::<relay::Envelope<ecast::Message>>,
            check::<relay::EndMessage>,
            check::<Envelope<ecast::Message>>,
            check::<paxos::Message>,
            check::<ecast::Message>,
            check::<group::Message>,
            check::<group::Direct>,
            check::<partial::Message>,
            check::<partial::Entry>,
            check::<partial::resident::Message>,
            check::<service::Message>,
            check::<service::Batch>,
            check::<rubberband::Message>,
            check::<rubberband::Direct>,
            check::<DurabilityReport>,
        ],
    );
}

/// Decodes the input as a record of the journal that the first byte chooses.
pub(crate) fn records(input: &[u8]) {
    decode_one_of(
        input,
        &[
            check::<JournalEntry<paxos::Record>>,
            check::<paxos::Record>,
            check::<partial::Record>,
            check::<rubberband::Record>,
            check::<RemoteDurability>,
        ],
    );
}

fn decode_one_of(input: &[u8], types: &[fn(Bytes)]) {
    let Some((choice, bytes)) = input.split_first() else { return };
    types[usize::from(*choice) % types.len()](Bytes::copy_from_slice(bytes));
}

/// Checks that a value which decodes from these bytes has a byte form that decodes to the same value.
fn check<T: Wire + PartialEq + Debug>(bytes: Bytes) {
    let Ok(value) = wire::decode_all::<T>(bytes) else { return };
    let mut again = BytesMut::new();
    value.encode(&mut again);
    let decoded = wire::decode_all::<T>(again.freeze()).expect("the byte form of a decoded value decodes");
    assert_eq!(decoded, value, "the byte form of a decoded value means another value");
}
