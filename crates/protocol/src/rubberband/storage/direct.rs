//! Direct messages: clients' questions, and other storage processes' verdicts and rows.

use bytes::Bytes;

use super::{
    Storage,
    import::{ChunkOutcome, Import},
    reply::{retry, send_content},
    work::{Fetch, QueuedStep},
};
use crate::{
    ecast::Position,
    id::ProcessId,
    rubberband::{Direct, Message, Range, ReplyContent, StorageState, WriteName, range::covers},
    seam::{Context, Destination, Sink},
    time::Time,
};

impl Storage {
    pub(super) fn on_direct(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        message: Direct,
        out: &mut dyn Sink<Self>,
    ) {
        let Some(config) = self.membership.config() else {
            self.refused += 1;
            return;
        };
        if !config.members.contains_key(&from) {
            self.refused += 1;
            return;
        }
        match message {
            Direct::Basic { token, placement, ranges, operation } => {
                self.on_basic(cx.now, (from, token), placement, &ranges, operation, out);
            }
            Direct::Consumed { token, bytes } => self.outboxes.consumed((from, token), bytes, cx.now, out),
            Direct::Cancel { token } => self.withdraw(|asked| asked == (from, token), out),
            Direct::Ask { name, token, ranges } => self.answer_from_memory(from, name, token, &ranges, out),
            Direct::AskRead { token } => {
                let known = self.is_underway((from, token));
                let content = if known { ReplyContent::Underway } else { ReplyContent::Unknown };
                send_content(from, token, Position(0), content, out);
            }
            Direct::Verdict { at, ranges, failure, settled } => {
                self.verdicts.note_settled(from, settled);
                // A write that is settled here needs no more verdicts from other processes.
                if at > self.executed || self.decisions.held().is_some_and(|write| write.at == at) {
                    self.verdicts.add(at, &ranges, failure);
                    self.decide(out);
                }
            }
            Direct::AskVerdict { at, name } => self.on_ask_verdict(from, at, name, out),
            Direct::NoVerdict { at, through } => {
                self.verdicts.add_unknowing(at, from, through);
                self.give_up(out);
            }
            Direct::Fetch { change, ranges, cursor } => {
                self.on_fetch(Fetch { from, change, ranges, cursor }, out);
            }
            Direct::Chunk { change, asked, content, next } => {
                let taken =
                    self.import.as_mut().map(|import| import.chunk(from, change, asked, content, next));
                match taken {
                    Some(ChunkOutcome::Rows) => {}
                    Some(ChunkOutcome::Replies(step)) => self.import_step(cx, step, out),
                    Some(ChunkOutcome::Not) => self.refused += 1,
                    // The chunk belongs to an import that has ended.
                    None => {}
                }
            }
            Direct::FetchRefused { change } => {
                let ours = |import: &Import| import.change() == change && import.source() == Some(from);
                if self.import.as_ref().is_some_and(ours) {
                    self.import_failed(cx.now, from, out);
                }
            }
            Direct::Alive { .. } | Direct::Reply(_) | Direct::AskOpinion { .. } | Direct::Opinion { .. } => {
                self.refused += 1
            }
        }
    }

    /// Queues a read of this replica's current rows, or has the client ask again with a newer placement.
    fn on_basic(
        &mut self,
        now: Time,
        (client, token): (ProcessId, u64),
        placement: u64,
        ranges: &[Range],
        operation: Bytes,
        out: &mut dyn Sink<Self>,
    ) {
        let config = self.membership.config().expect("a message is taken only with a configuration");
        let held = config.ranges_of(self.membership.me);
        let active = config.storage.get(&self.membership.me) == Some(&StorageState::Active);
        let covered = ranges
            .iter()
            .all(|range| held.iter().any(|mine| mine.low <= range.low && range.high <= mine.high));
        let at = self.membership.member.delivered();
        if active && covered && placement == config.placement {
            let ranges = ranges.to_vec();
            self.queue.push(QueuedStep::Read { at, client, token, ranges, operation, since: now });
        } else {
            retry(client, token, at, out);
        }
    }

    /// Answers a question for the verdict on a write.
    fn on_ask_verdict(&mut self, from: ProcessId, at: Position, name: WriteName, out: &mut dyn Sink<Self>) {
        // The ranges' memory answers for a write whose rows this process imported, or that it executed at
        // another position. If this process is still importing, it may not know the write yet. The asker also
        // asks the sources of the import, which may know the write. If a source has departed, this process
        // already has the source's memory, or will not take it.
        let known = self.verdicts.known(at).or_else(|| self.remembered_verdict(at, name));
        let through = self.membership.member.delivered();
        let settled = known.as_ref().is_some_and(|(ranges, _)| covers(ranges, Range::ALL));
        if let Some((ranges, failure)) = known {
            let settled = self.decided_through();
            let verdict = Direct::Verdict { at, ranges, failure, settled };
            out.send(Destination::One(from), Message::Direct(verdict), None);
        }
        if !settled {
            let nothing = Direct::NoVerdict { at, through };
            out.send(Destination::One(from), Message::Direct(nothing), None);
        }
    }

    /// Sends a standby the rows that it asks for, at once or once the pinned version is there.
    fn on_fetch(&mut self, fetch: Fetch, out: &mut dyn Sink<Self>) {
        let (from, change) = (fetch.from, fetch.change);
        let known = self.exports.knows(change);
        if self.send_section(&fetch, out) {
            // `send_section` has answered: a section of the ranges' memory needs no work of the engine.
        } else if known || change > self.membership.member.delivered() {
            self.exports.request(fetch);
        } else {
            out.send(Destination::One(from), Message::Direct(Direct::FetchRefused { change }), None);
        }
    }
}
