//! Answers on their way to clients, no faster than they are consumed.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use smallvec::SmallVec;

use super::{Direct, Message, Range, Reply, ReplyContent, Storage};
use crate::{
    ecast::Position,
    id::ProcessId,
    seam::{Destination, Sink},
};

/// Long answers that are under way.
pub(super) struct Outboxes {
    /// Bytes of one answer that may be sent and not consumed.
    window: u64,
    open: BTreeMap<(ProcessId, u64), Outbox>,
}

struct Outbox {
    at: Position,
    ranges: SmallVec<[Range; 2]>,
    pieces: VecDeque<Bytes>,
    piece: u32,
    sent: u64,
    consumed: u64,
}

impl Outboxes {
    pub(super) fn new(window: u64) -> Self {
        Outboxes { window, open: BTreeMap::new() }
    }

    /// Sends an answer: a short one at once, a long one piece by piece.
    pub(super) fn reply<S: Sink<Storage>>(
        &mut self,
        client: ProcessId,
        token: u64,
        at: Position,
        ranges: &[Range],
        pieces: Vec<Bytes>,
        out: &mut S,
    ) {
        assert!(!pieces.is_empty(), "every request ends in an answer");
        let ranges = SmallVec::from_slice(ranges);
        let mut outbox = Outbox { at, ranges, pieces: pieces.into(), piece: 0, sent: 0, consumed: 0 };
        outbox.pump(client, token, self.window, out);
        if !outbox.pieces.is_empty() {
            self.open.insert((client, token), outbox);
        }
    }

    /// The client has consumed so many bytes of an answer in all.
    pub(super) fn consumed<S: Sink<Storage>>(
        &mut self,
        client: ProcessId,
        token: u64,
        bytes: u64,
        out: &mut S,
    ) {
        let Some(outbox) = self.open.get_mut(&(client, token)) else { return };
        outbox.consumed = outbox.consumed.max(bytes).min(outbox.sent);
        outbox.pump(client, token, self.window, out);
        if outbox.pieces.is_empty() {
            self.open.remove(&(client, token));
        }
    }

    /// Nobody waits for this answer any more.
    pub(super) fn cancel(&mut self, client: ProcessId, token: u64) {
        self.open.remove(&(client, token));
    }

    /// The client is gone, or its link broke: its answers would arrive with a gap.
    pub(super) fn drop_client(&mut self, client: ProcessId) {
        self.open.retain(|(other, _), _| *other != client);
    }
}

impl Outbox {
    fn pump<S: Sink<Storage>>(&mut self, client: ProcessId, token: u64, window: u64, out: &mut S) {
        while self.sent == self.consumed || self.sent - self.consumed < window {
            let Some(piece) = self.pieces.pop_front() else { return };
            self.sent += piece.len() as u64;
            let reply = Reply {
                token,
                at: self.at,
                ranges: self.ranges.clone(),
                piece: self.piece,
                last: self.pieces.is_empty(),
                content: ReplyContent::Answer(piece),
            };
            self.piece += 1;
            out.send(Destination::One(client), Message::Direct(Direct::Reply(reply)), None);
        }
    }
}
