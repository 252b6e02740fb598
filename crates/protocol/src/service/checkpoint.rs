//! Checkpoints of the host's state and the table of sessions, and the byte form of their pieces.
//!
//! A checkpoint is cheap to take and slow to read. The replica takes a checkpoint when all changes that the
//! host has applied are chosen, and reads the parts of the checkpoint while the host goes on executing. On
//! links and on disk a checkpoint is a sequence of pieces, each from the table or from the host. Without a
//! disk the leader hands pieces to a joiner on request. With a disk any replica gathers the pieces of its own
//! checkpoint.

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    paxos::Slot,
    wire::{WireError, put_bytes, take_bytes, take_u8},
};

/// A checkpoint that the replica gives to its disk or to another replica, piece by piece: first the table of
/// sessions, then the host's parts.
#[derive(Debug)]
pub(super) struct OutgoingCheckpoint {
    pub(super) checkpoint: u64,
    pub(super) slot: Slot,
    pub(super) table: Bytes,
    /// All pieces so far, if the checkpoint is gathered for a disk.
    pub(super) whole: Option<BytesMut>,
    /// The host's whole state, if the replica already has it and need not request it from the host.
    pub(super) state: Option<Bytes>,
    /// Whether a part was requested from the host and has not arrived yet.
    pub(super) awaits_host: bool,
}

/// The first byte of a piece with a part of the table of sessions. A piece of the host begins with [`HOST`].
/// After this byte come the length and the bytes of the piece.
pub(super) const TABLE: u8 = 0;
pub(super) const HOST: u8 = 1;

pub(super) fn piece(kind: u8, bytes: &[u8]) -> Bytes {
    let mut piece = BytesMut::with_capacity(5 + bytes.len());
    put_piece(&mut piece, kind, bytes);
    piece.freeze()
}

pub(super) fn put_piece(out: &mut BytesMut, kind: u8, bytes: &[u8]) {
    out.put_u8(kind);
    put_bytes(out, bytes);
}

pub(super) fn take_piece(input: &mut Bytes) -> Result<(u8, Bytes), WireError> {
    Ok((take_u8(input)?, take_bytes(input)?))
}
