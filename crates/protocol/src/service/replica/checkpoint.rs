//! The checkpoints of a replica. The replica takes a checkpoint when its log requests one, gives checkpoints
//! to other replicas, and restores its state from the checkpoints of other replicas.

use bytes::{Bytes, BytesMut};

use super::Replica;
use crate::{
    paxos::{self, Ballot, Slot},
    seam::{Context, Input, Sink},
    service::{
        Event,
        checkpoint::{HOST, OutgoingCheckpoint, TABLE, piece, put_piece, take_piece},
    },
    wire::{Wire, WireError, take_u64},
};

impl Replica {
    /// Takes a checkpoint, if one is wanted and all changes that the host has applied are chosen.
    pub(super) fn checkpoint(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let Some(reign) = &mut self.reign else { return };
        if !reign.pausing || !reign.is_quiet() {
            return;
        }
        assert!(!reign.transactions.have_changed(), "a checkpoint holds nothing that is not committed");
        reign.go_on_behind_checkpoint();
        let command = self.begin_checkpoint(out);
        self.drive(cx, Input::Command(command), out);
    }

    /// Orders the host to take a checkpoint of its state, all of which is chosen.
    pub(super) fn begin_checkpoint(&mut self, out: &mut dyn Sink<Self>) -> paxos::Command {
        self.checkpoints += 1;
        let checkpoint = self.checkpoints;
        out.emit(Event::Checkpoint { checkpoint });
        let (table, mut whole) = (self.table(), self.on_disk().then(BytesMut::new));
        if let Some(whole) = &mut whole {
            put_piece(whole, TABLE, &table);
            out.emit(Event::CheckpointPartWanted { checkpoint, bytes: self.settings.log.chunk_bytes });
        }
        let awaits_host = self.on_disk();
        self.giving =
            Some(OutgoingCheckpoint { checkpoint, slot: self.slot, table, whole, state: None, awaits_host });
        match self.on_disk() {
            true => paxos::Command::SnapshotLater { slot: self.slot },
            false => paxos::Command::SnapshotBegins { slot: self.slot },
        }
    }

    fn table(&self) -> Bytes {
        let mut table = BytesMut::new();
        table.extend_from_slice(&self.chosen.to_le_bytes());
        self.ballot.encode(&mut table);
        self.sessions.encode(&mut table);
        table.freeze()
    }

    /// Gives the last chosen whole state as a checkpoint, without the host.
    pub(super) fn give_latest(&mut self, state: Bytes) -> paxos::Command {
        let (slot, table) = (self.slot, self.table());
        if self.on_disk() {
            let mut whole = BytesMut::new();
            put_piece(&mut whole, TABLE, &table);
            put_piece(&mut whole, HOST, &state);
            return paxos::Command::Snapshot { slot, state: whole.freeze() };
        }
        // Parts that the host may still give belong to an earlier checkpoint.
        self.checkpoints += 1;
        let checkpoint = self.checkpoints;
        let state = Some(state);
        self.giving =
            Some(OutgoingCheckpoint { checkpoint, slot, table, whole: None, state, awaits_host: false });
        paxos::Command::SnapshotBegins { slot }
    }

    /// Handles a part of the checkpoint that the host gave.
    pub(super) fn take_host_part(
        &mut self,
        checkpoint: u64,
        bytes: &[u8],
        last: bool,
        out: &mut dyn Sink<Self>,
    ) -> Option<paxos::Command> {
        let giving = self.giving.as_mut().filter(|giving| giving.checkpoint == checkpoint)?;
        let slot = giving.slot;
        giving.awaits_host = giving.whole.is_some() && !last;
        let Some(whole) = &mut giving.whole else {
            return Some(paxos::Command::SnapshotPart { slot, bytes: piece(HOST, bytes), last });
        };
        put_piece(whole, HOST, bytes);
        if !last {
            out.emit(Event::CheckpointPartWanted { checkpoint, bytes: self.settings.log.chunk_bytes });
            return None;
        }
        let state = std::mem::take(whole).freeze();
        self.give_up(out);
        Some(paxos::Command::Snapshot { slot, state })
    }

    pub(super) fn on_disk(&self) -> bool {
        self.settings.log.checkpoint_bytes.is_some()
    }

    pub(super) fn part_wanted(
        &mut self,
        slot: Slot,
        bytes: usize,
        out: &mut dyn Sink<Self>,
    ) -> Option<paxos::Command> {
        let giving = self.giving.as_mut().filter(|giving| giving.slot == slot)?;
        if giving.table.is_empty()
            && let Some(state) = &mut giving.state
        {
            let some = state.split_to(bytes.min(state.len()));
            let last = state.is_empty();
            return Some(paxos::Command::SnapshotPart { slot, bytes: piece(HOST, &some), last });
        }
        if giving.table.is_empty() {
            giving.awaits_host = true;
            out.emit(Event::CheckpointPartWanted { checkpoint: giving.checkpoint, bytes });
            return None;
        }
        let some = giving.table.split_to(bytes.clamp(1, giving.table.len()));
        Some(paxos::Command::SnapshotPart { slot, bytes: piece(TABLE, &some), last: false })
    }

    /// Whether a part of a checkpoint waits until the log chooses more. The host executes nothing before
    /// that, and it gives the part only after the requests that it got earlier.
    pub(super) fn part_waits_for_room(&self) -> bool {
        self.giving.as_ref().is_some_and(|giving| giving.awaits_host) && self.holds_too_much()
    }

    pub(super) fn give_up(&mut self, out: &mut dyn Sink<Self>) {
        if self.giving.take().is_some() {
            out.emit(Event::CheckpointUnwanted);
        }
    }

    /// Handles pieces of another replica's state.
    pub(super) fn take_part(&mut self, first: bool, mut bytes: Bytes, out: &mut dyn Sink<Self>) {
        if first {
            self.coming.clear();
            self.has_incoming = false;
        }
        while !bytes.is_empty() {
            match take_piece(&mut bytes) {
                Ok((TABLE, piece)) => self.coming.extend_from_slice(&piece),
                Ok((HOST, bytes)) => {
                    let first = !std::mem::replace(&mut self.has_incoming, true);
                    out.emit(Event::RestorePart { first, bytes });
                }
                Ok((tag, _)) => return self.fail(WireError::Tag(tag), out),
                Err(error) => return self.fail(error, out),
            }
        }
    }

    pub(super) fn install(&mut self, slot: Slot, out: &mut dyn Sink<Self>) {
        assert!(self.reign.is_none(), "a leader needs no other replica's state");
        if self.corrupt {
            return;
        }
        let mut table = std::mem::take(&mut self.coming).freeze();
        if let Err(error) = self.restore(&mut table) {
            return self.fail(error, out);
        }
        self.slot = slot;
        self.latest = None;
        out.emit(Event::Restore { through: self.chosen });
    }

    fn restore(&mut self, table: &mut Bytes) -> Result<(), WireError> {
        self.chosen = take_u64(table)?;
        self.ballot = Ballot::decode(table)?;
        self.sessions.restore(table)
    }
}
