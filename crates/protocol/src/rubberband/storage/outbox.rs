//! Answers on their way to clients, no faster than they are consumed.
//!
//! A short answer is all here and goes at once. A long one is read page by page from a version that the engine keeps for
//! it: a page is asked for when the client has taken what went before, so that neither side ever holds more of it than a
//! window; when many are open, their windows and pages shrink. One page of each answer, and few answers, are read in a
//! batch, so that short reads do not wait for long ones.
//!
//! What does not go at once is *held*. All answers together hold a bounded number of bytes: the newest that would exceed
//! it is refused, unless there is one that has been held for longer than the time limit, which goes first. And an answer that
//! its client takes nothing of for that time is dropped, with the version that was kept for it.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    Storage, StorageSettings,
    direct::{retry, tell},
};
use crate::{
    ecast::Position,
    id::ProcessId,
    rubberband::{Direct, Message, Range, Reply, ReplyContent, Spent},
    seam::{Destination, Sink},
    time::{Duration, Time},
};

/// Answers that are read on in one batch.
const PAGES_MAX: usize = 4;
/// Bytes that a page should have, and the least when many share.
const PAGE_BYTES: usize = 256 << 10;
const PAGE_BYTES_MIN: usize = 16 << 10;
/// Bytes that may be under way of all long answers together, beside a page of each.
const OPEN_BYTES: u64 = 4 << 20;
/// Rows of a page, at most.
const PAGE_ROWS_MAX: usize = 4096;
/// Rows of the first page, when nobody knows how long they are.
const PAGE_ROWS: usize = 512;
/// How often, in the time that an answer may go untaken, it is looked for such answers.
const LOOKS: u32 = 4;

/// Whose answer, and to which of its questions.
pub(super) type Asked = (ProcessId, u64);

/// An answer that begins now.
#[derive(Clone, Copy)]
pub(super) struct Answer<'a> {
    pub(super) at: Position,
    pub(super) ranges: &'a [Range],
    pub(super) spent: Spent,
    pub(super) now: Time,
}

/// Long answers that are under way.
pub(super) struct Outboxes {
    /// Bytes of one answer that may be sent and not consumed.
    window: u64,
    /// Bytes that may be held of all of them, and that are.
    held_max: u64,
    held: u64,
    /// How long one may go untaken.
    patience: Duration,
    /// When it is looked for such answers next.
    look_at: Option<Time>,
    /// How many were refused for want of room, and dropped because nobody took them.
    refused: u64,
    untaken: u64,
    open: BTreeMap<Asked, Outbox>,
    /// Whose page was read last: the next one's turn comes first.
    turn: Option<Asked>,
    /// Versions that nobody reads any more.
    released: Vec<Position>,
}

struct Outbox {
    at: Position,
    ranges: SmallVec<[Range; 2]>,
    spent: Spent,
    pieces: VecDeque<Bytes>,
    piece: u32,
    sent: u64,
    consumed: u64,
    /// The bytes of the pieces.
    held: u64,
    begun: Time,
    /// When any of it was sent or consumed last.
    moved: Time,
    /// Where the rest is, if it is not here.
    source: Option<Source>,
}

/// The rest of an answer that is read page by page.
struct Source {
    operation: Bytes,
    cursor: Option<Bytes>,
    rows: usize,
    /// The engine is reading a page.
    reading: bool,
}

/// A page that the engine is to read.
pub(super) struct Wanted {
    pub(super) asked: Asked,
    pub(super) at: Position,
    pub(super) ranges: Vec<Range>,
    pub(super) operation: Bytes,
    pub(super) cursor: Option<Bytes>,
    pub(super) rows: usize,
}

impl Outboxes {
    pub(super) fn new(settings: &StorageSettings) -> Self {
        Outboxes {
            window: settings.reply_window,
            held_max: settings.held_bytes_max,
            held: 0,
            patience: settings.held_max,
            look_at: None,
            refused: 0,
            untaken: 0,
            open: BTreeMap::new(),
            turn: None,
            released: Vec::new(),
        }
    }

    /// Bytes of one answer that may be under way, as many as there are.
    fn share(&self) -> u64 {
        let share = OPEN_BYTES / self.open.len().max(1) as u64;
        share.clamp(2 * PAGE_BYTES_MIN as u64, self.window.max(2 * PAGE_BYTES_MIN as u64))
    }

    /// How many are under way.
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// Bytes that are held.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// How many were refused for want of room, and how many dropped because nobody took them.
    pub(super) fn dropped(&self) -> (u64, u64) {
        (self.refused, self.untaken)
    }

    /// Sends an answer: a short one at once, a long one piece by piece.
    pub(super) fn reply(
        &mut self,
        asked: Asked,
        answer: Answer<'_>,
        pieces: Vec<Bytes>,
        out: &mut dyn Sink<Storage>,
    ) {
        assert!(!pieces.is_empty(), "every request ends in an answer");
        let Answer { at, now, .. } = answer;
        let mut outbox = Outbox::new(answer, pieces.into(), None);
        let (share, (client, token)) = (self.share(), asked);
        let rest = outbox.rest(share);
        if rest > 0 && !self.has_room(rest, now, out) {
            self.refused += 1;
            return tell(client, token, at, ReplyContent::NoRoom, out);
        }
        outbox.pump(asked, share, now, out);
        if !outbox.is_done() {
            self.insert(asked, outbox, now);
        }
    }

    /// Whether so many bytes more may be held. Answers that have been held for too long make room, the oldest first.
    fn has_room(&mut self, bytes: u64, now: Time, out: &mut dyn Sink<Storage>) -> bool {
        while self.held + bytes > self.held_max {
            let overdue =
                |(_, outbox): &(&Asked, &Outbox)| outbox.held > 0 && outbox.begun + self.patience <= now;
            let oldest = self.open.iter().filter(overdue).min_by_key(|(_, outbox)| outbox.begun);
            let Some(oldest) = oldest.map(|(asked, _)| *asked) else { return false };
            self.give_up(oldest, out);
        }
        true
    }

    /// Drops the rest of an answer, and says so.
    fn give_up(&mut self, asked: Asked, out: &mut dyn Sink<Storage>) {
        let outbox = self.take(asked).expect("an open answer");
        self.untaken += 1;
        tell(asked.0, asked.1, outbox.at, ReplyContent::Untaken, out);
        self.give_back(outbox);
    }

    fn take(&mut self, asked: Asked) -> Option<Outbox> {
        let outbox = self.open.remove(&asked)?;
        self.held -= outbox.held;
        Some(outbox)
    }

    /// When answers are to be looked after.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.look_at
    }

    /// Drops answers of which their clients have taken nothing for too long, if it is time to look.
    pub(super) fn look_after(&mut self, now: Time, out: &mut dyn Sink<Storage>) {
        if self.look_at.is_none_or(|at| at > now) {
            return;
        }
        let share = self.share();
        // Where the window is open, the client waits for us.
        let untaken = |outbox: &Outbox| !outbox.is_open(share) && outbox.moved + self.patience <= now;
        let untaken = self.open.iter().filter(|(_, outbox)| untaken(outbox)).map(|(asked, _)| *asked);
        for asked in untaken.collect::<Vec<Asked>>() {
            self.give_up(asked, out);
        }
        self.look_at = (!self.open.is_empty()).then(|| now + self.patience / LOOKS);
    }

    /// Begins an answer of which nothing is here: it is read from the version kept at this position.
    pub(super) fn begin(&mut self, asked: Asked, answer: Answer<'_>, operation: Bytes) {
        let source = Source { operation, cursor: None, rows: PAGE_ROWS, reading: false };
        self.insert(asked, Outbox::new(answer, VecDeque::new(), Some(source)), answer.now);
    }

    fn insert(&mut self, asked: Asked, outbox: Outbox, now: Time) {
        if let Some(before) = self.take(asked) {
            self.give_back(before);
        }
        self.held += outbox.held;
        self.open.insert(asked, outbox);
        self.look_at.get_or_insert(now + self.patience / LOOKS);
    }

    /// The pages to be read now.
    pub(super) fn wanted(&mut self) -> Vec<Wanted> {
        let window = self.share();
        let ready = |outbox: &Outbox| {
            outbox.pieces.is_empty()
                && outbox.is_open(window)
                && outbox.source.as_ref().is_some_and(|source| !source.reading)
        };
        let turn = self.turn;
        let later = |asked: &Asked| turn.is_none_or(|turn| *asked > turn);
        let ready = self.open.iter().filter(|(_, outbox)| ready(outbox)).map(|(asked, _)| *asked);
        let (mut order, first): (Vec<Asked>, Vec<Asked>) = ready.partition(later);
        order.extend(first);
        order.truncate(PAGES_MAX);
        self.turn = order.last().copied().or(self.turn);
        let want = |asked: Asked| {
            let outbox = self.open.get_mut(&asked).expect("just seen");
            let source = outbox.source.as_mut().expect("just seen");
            source.reading = true;
            Wanted {
                asked,
                at: outbox.at,
                ranges: outbox.ranges.to_vec(),
                operation: source.operation.clone(),
                cursor: source.cursor.clone(),
                rows: source.rows,
            }
        };
        order.into_iter().map(want).collect()
    }

    /// Takes a page, and sends it.
    pub(super) fn page(
        &mut self,
        asked: Asked,
        at: Position,
        content: Bytes,
        cursor: Option<Bytes>,
        now: Time,
        out: &mut dyn Sink<Storage>,
    ) {
        let bytes = PAGE_BYTES.min(self.share() as usize / 2);
        // Nobody may want it any more; then its version was given back when that came out.
        let Some(outbox) = self.open.get_mut(&asked).filter(|outbox| outbox.at == at) else { return };
        let Some(source) = &mut outbox.source else { return };
        source.reading = false;
        let fitting = source.rows.saturating_mul(bytes) / content.len().max(1);
        source.rows = fitting.clamp(1, PAGE_ROWS_MAX);
        if cursor.is_none() {
            outbox.source = None;
            self.released.push(at);
        } else {
            source.cursor = cursor;
        }
        outbox.held += content.len() as u64;
        self.held += content.len() as u64;
        outbox.pieces.push_back(content);
        self.pump(asked, now, out);
    }

    /// Whether some of an answer is still to be sent.
    pub(super) fn is_open(&self, asked: Asked) -> bool {
        self.open.contains_key(&asked)
    }

    /// The client has consumed so many bytes of an answer in all.
    pub(super) fn consumed(&mut self, asked: Asked, bytes: u64, now: Time, out: &mut dyn Sink<Storage>) {
        let Some(outbox) = self.open.get_mut(&asked) else { return };
        let consumed = bytes.min(outbox.sent);
        if consumed > outbox.consumed {
            (outbox.consumed, outbox.moved) = (consumed, now);
        }
        self.pump(asked, now, out);
    }

    fn pump(&mut self, asked: Asked, now: Time, out: &mut dyn Sink<Storage>) {
        let share = self.share();
        let Some(outbox) = self.open.get_mut(&asked) else { return };
        let before = outbox.held;
        outbox.pump(asked, share, now, out);
        self.held -= before - outbox.held;
        if outbox.is_done() {
            self.open.remove(&asked);
        }
    }

    /// Nobody waits for these answers any more.
    pub(super) fn cancel(&mut self, unwanted: impl Fn(Asked) -> bool) {
        let gone: Vec<Asked> = self.open.keys().copied().filter(|asked| unwanted(*asked)).collect();
        for asked in gone {
            let outbox = self.take(asked).expect("just seen");
            self.give_back(outbox);
        }
    }

    /// There is a new link to this client: what was sent to it before is lost, and it is to ask again.
    pub(super) fn restart(&mut self, client: ProcessId, out: &mut dyn Sink<Storage>) {
        let begun = |(asked, outbox): &(&Asked, &Outbox)| asked.0 == client && outbox.piece > 0;
        let begun: Vec<Asked> = self.open.iter().filter(begun).map(|(asked, _)| *asked).collect();
        for asked in begun {
            let outbox = self.take(asked).expect("just seen");
            retry(client, asked.1, outbox.at, out);
            self.give_back(outbox);
        }
    }

    /// The version kept at this position for a long answer is not needed: nobody waits for it.
    pub(super) fn unwanted(&mut self, at: Position) {
        self.released.push(at);
    }

    fn give_back(&mut self, outbox: Outbox) {
        if outbox.source.is_some() {
            self.released.push(outbox.at);
        }
    }

    /// Versions to be given back, each as often as it stands here.
    pub(super) fn released(&mut self) -> Vec<Position> {
        std::mem::take(&mut self.released)
    }
}

impl Outbox {
    fn new(answer: Answer<'_>, pieces: VecDeque<Bytes>, source: Option<Source>) -> Self {
        let Answer { at, ranges, spent, now } = answer;
        let (ranges, (begun, moved)) = (SmallVec::from_slice(ranges), (now, now));
        let held = pieces.iter().map(|piece| piece.len() as u64).sum();
        Outbox { at, ranges, spent, pieces, piece: 0, sent: 0, consumed: 0, held, begun, moved, source }
    }

    /// The bytes that would be left, were as much sent as may be.
    fn rest(&self, window: u64) -> u64 {
        let mut sent = 0;
        for piece in &self.pieces {
            if sent > 0 && sent >= window {
                break;
            }
            sent += piece.len() as u64;
        }
        self.held - sent
    }

    /// Whether more may be sent.
    fn is_open(&self, window: u64) -> bool {
        self.sent == self.consumed || self.sent - self.consumed < window
    }

    fn is_done(&self) -> bool {
        self.pieces.is_empty() && self.source.is_none()
    }

    fn pump(&mut self, (client, token): Asked, window: u64, now: Time, out: &mut dyn Sink<Storage>) {
        while self.is_open(window) {
            let Some(piece) = self.pieces.pop_front() else { return };
            self.sent += piece.len() as u64;
            self.held -= piece.len() as u64;
            self.moved = now;
            let reply = Reply {
                token,
                at: self.at,
                ranges: self.ranges.clone(),
                piece: self.piece,
                last: self.is_done(),
                spent: self.spent,
                content: ReplyContent::Answer(piece),
            };
            self.piece += 1;
            out.send(Destination::One(client), Message::Direct(Direct::Reply(reply)), None);
        }
    }
}

#[cfg(test)]
mod tests;
