//! Answers on their way to clients, sent no faster than clients consume them.
//!
//! A short answer lies here completely and is sent at once. A long answer is read page by page from a
//! version that the engine keeps. A page is read when the client has consumed the earlier pages, so neither
//! side holds more than a window of the answer. Windows and pages shrink when many answers are open. A
//! batch reads one page each of a few answers, so that short reads do not wait for long ones.
//!
//! Bytes that are not sent at once are *held*. All answers together hold a bounded number of bytes. A new
//! answer above the bound is refused, unless some answer has been held for longer than the time limit; then
//! that old answer is dropped instead. An answer of which the client takes nothing for that time is dropped,
//! too, together with its version.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    reply::{retry, send_content},
    settings::StorageSettings,
};
use crate::{
    ecast::Position,
    id::ProcessId,
    rubberband::{Direct, Message, Range, ReadCost, Reply, ReplyContent},
    seam::{Destination, Protocol, Sink},
    time::{Duration, Time},
};

/// Maximum number of answers of which one batch reads a page.
const PAGES_MAX: usize = 4;
/// Size of a page in bytes, and the minimum size when many answers share the budget.
const PAGE_BYTES: usize = 256 << 10;
const PAGE_BYTES_MIN: usize = 16 << 10;
/// Budget of sent and unconsumed bytes of all long answers together, in addition to a page of each.
const OPEN_BYTES: u64 = 4 << 20;
/// Maximum number of rows of a page.
const PAGE_ROWS_MAX: usize = 4096;
/// Number of rows of the first page, when the length of a row is unknown.
const PAGE_ROWS: usize = 512;
/// Number of checks for untaken answers within the time limit.
const LOOKS: u32 = 4;

/// A client, and the number of its request.
pub(super) type RequestKey = (ProcessId, u64);

/// The properties of an answer that begins now.
#[derive(Clone, Copy)]
pub(super) struct OutboxAnswer<'a> {
    pub(super) at: Position,
    pub(super) ranges: &'a [Range],
    pub(super) spent: ReadCost,
    pub(super) now: Time,
}

/// The open answers.
pub(super) struct Outboxes {
    /// Maximum number of sent and unconsumed bytes of one answer.
    window: u64,
    /// Maximum number of bytes of all held answers.
    held_max: u64,
    /// Bytes of all held answers.
    held: u64,
    /// Time for which an answer may go untaken.
    patience: Duration,
    /// Time of the next check for untaken answers.
    look_at: Option<Time>,
    /// Number of answers that were refused because the memory was full.
    refused: u64,
    /// Number of answers that were dropped before clients took them.
    untaken: u64,
    open: BTreeMap<RequestKey, Outbox>,
    /// The answer whose page was read last. The answer that follows it in the order of keys gets the next
    /// page.
    turn: Option<RequestKey>,
    /// Versions that no answer needs any longer.
    released: Vec<Position>,
}

struct Outbox {
    at: Position,
    ranges: SmallVec<[Range; 2]>,
    spent: ReadCost,
    pieces: VecDeque<Bytes>,
    piece: u32,
    sent: u64,
    consumed: u64,
    /// Bytes of `pieces`.
    held: u64,
    begun: Time,
    /// Time at which a piece was last sent or consumed.
    moved: Time,
    /// The source of the remaining pages; `None` if all pieces are here.
    source: Option<PageSource>,
}

/// The rest of an answer that is read page by page.
struct PageSource {
    operation: Bytes,
    cursor: Option<Bytes>,
    rows: usize,
    /// Whether the engine is reading a page.
    reading: bool,
}

/// A page that the engine should read.
pub(super) struct WantedPage {
    pub(super) asked: RequestKey,
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

    /// Returns the window of one answer in bytes, given the number of open answers.
    fn share(&self) -> u64 {
        let share = OPEN_BYTES / self.open.len().max(1) as u64;
        share.clamp(2 * PAGE_BYTES_MIN as u64, self.window.max(2 * PAGE_BYTES_MIN as u64))
    }

    /// Returns the number of open answers.
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// Returns the number of held bytes.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Returns the number of answers that were refused because the memory was full, and the number of answers
    /// that were dropped untaken.
    pub(super) fn dropped(&self) -> (u64, u64) {
        (self.refused, self.untaken)
    }

    /// Sends an answer: a short answer at once, a long answer piece by piece.
    pub(super) fn reply(
        &mut self,
        asked: RequestKey,
        answer: OutboxAnswer<'_>,
        pieces: Vec<Bytes>,
        out: &mut dyn Sink<impl Protocol<Message = Message>>,
    ) {
        assert!(!pieces.is_empty(), "every request ends in an answer");
        let OutboxAnswer { at, now, .. } = answer;
        let mut outbox = Outbox::new(answer, pieces.into(), None);
        let (share, (client, token)) = (self.share(), asked);
        let rest = outbox.rest(share);
        if rest > 0 && !self.has_room(rest, now, out) {
            self.refused += 1;
            return send_content(client, token, at, ReplyContent::NoRoom, out);
        }
        outbox.pump(asked, share, now, out);
        if !outbox.is_done() {
            self.insert(asked, outbox, now);
        }
    }

    /// Whether `bytes` more bytes may be held. To make room, drops answers that have been held for too long,
    /// oldest first.
    fn has_room(
        &mut self,
        bytes: u64,
        now: Time,
        out: &mut dyn Sink<impl Protocol<Message = Message>>,
    ) -> bool {
        while self.held + bytes > self.held_max {
            let overdue =
                |(_, outbox): &(&RequestKey, &Outbox)| outbox.held > 0 && outbox.begun + self.patience <= now;
            let oldest = self.open.iter().filter(overdue).min_by_key(|(_, outbox)| outbox.begun);
            let Some(oldest) = oldest.map(|(asked, _)| *asked) else { return false };
            self.give_up(oldest, out);
        }
        true
    }

    /// Drops the rest of an answer, and reports that to its client.
    fn give_up(&mut self, asked: RequestKey, out: &mut dyn Sink<impl Protocol<Message = Message>>) {
        let outbox = self.take(asked).expect("the answer is open");
        self.untaken += 1;
        send_content(asked.0, asked.1, outbox.at, ReplyContent::Untaken, out);
        self.give_back(outbox);
    }

    fn take(&mut self, asked: RequestKey) -> Option<Outbox> {
        let outbox = self.open.remove(&asked)?;
        self.held -= outbox.held;
        Some(outbox)
    }

    /// Returns the time of the next check.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.look_at
    }

    /// Drops answers of which their clients have taken nothing for too long, if a check is due.
    pub(super) fn look_after(&mut self, now: Time, out: &mut dyn Sink<impl Protocol<Message = Message>>) {
        if self.look_at.is_none_or(|at| at > now) {
            return;
        }
        let share = self.share();
        // While the window of an answer is open, its client waits for this process. Such an answer is not
        // dropped.
        let untaken = |outbox: &Outbox| !outbox.is_open(share) && outbox.moved + self.patience <= now;
        let untaken = self.open.iter().filter(|(_, outbox)| untaken(outbox)).map(|(asked, _)| *asked);
        for asked in untaken.collect::<Vec<RequestKey>>() {
            self.give_up(asked, out);
        }
        self.look_at = (!self.open.is_empty()).then(|| now + self.patience / LOOKS);
    }

    /// Begins a long answer: its pages are read from the version kept at this position.
    pub(super) fn begin(&mut self, asked: RequestKey, answer: OutboxAnswer<'_>, operation: Bytes) {
        let source = PageSource { operation, cursor: None, rows: PAGE_ROWS, reading: false };
        self.insert(asked, Outbox::new(answer, VecDeque::new(), Some(source)), answer.now);
    }

    fn insert(&mut self, asked: RequestKey, outbox: Outbox, now: Time) {
        if let Some(before) = self.take(asked) {
            self.give_back(before);
        }
        self.held += outbox.held;
        self.open.insert(asked, outbox);
        self.look_at.get_or_insert(now + self.patience / LOOKS);
    }

    /// Returns the pages to read now.
    pub(super) fn wanted(&mut self) -> Vec<WantedPage> {
        let window = self.share();
        let ready = |outbox: &Outbox| {
            outbox.pieces.is_empty()
                && outbox.is_open(window)
                && outbox.source.as_ref().is_some_and(|source| !source.reading)
        };
        let turn = self.turn;
        let later = |asked: &RequestKey| turn.is_none_or(|turn| *asked > turn);
        let ready = self.open.iter().filter(|(_, outbox)| ready(outbox)).map(|(asked, _)| *asked);
        let (mut order, first): (Vec<RequestKey>, Vec<RequestKey>) = ready.partition(later);
        order.extend(first);
        order.truncate(PAGES_MAX);
        self.turn = order.last().copied().or(self.turn);
        let want = |asked: RequestKey| {
            let outbox = self.open.get_mut(&asked).expect("just seen");
            let source = outbox.source.as_mut().expect("just seen");
            source.reading = true;
            WantedPage {
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

    /// Takes a page from the engine and sends it.
    pub(super) fn page(
        &mut self,
        asked: RequestKey,
        at: Position,
        content: Bytes,
        cursor: Option<Bytes>,
        now: Time,
        out: &mut dyn Sink<impl Protocol<Message = Message>>,
    ) {
        let bytes = PAGE_BYTES.min(self.share() as usize / 2);
        // The answer may have been cancelled. Its version was then released with the cancelled answer.
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

    /// Whether pieces of an answer remain to be sent.
    pub(super) fn is_open(&self, asked: RequestKey) -> bool {
        self.open.contains_key(&asked)
    }

    /// Notes that the client has consumed `bytes` of an answer in total.
    pub(super) fn consumed(
        &mut self,
        asked: RequestKey,
        bytes: u64,
        now: Time,
        out: &mut dyn Sink<impl Protocol<Message = Message>>,
    ) {
        let Some(outbox) = self.open.get_mut(&asked) else { return };
        let consumed = bytes.min(outbox.sent);
        if consumed > outbox.consumed {
            (outbox.consumed, outbox.moved) = (consumed, now);
        }
        self.pump(asked, now, out);
    }

    fn pump(&mut self, asked: RequestKey, now: Time, out: &mut dyn Sink<impl Protocol<Message = Message>>) {
        let share = self.share();
        let Some(outbox) = self.open.get_mut(&asked) else { return };
        let before = outbox.held;
        outbox.pump(asked, share, now, out);
        self.held -= before - outbox.held;
        if outbox.is_done() {
            self.open.remove(&asked);
        }
    }

    /// Drops answers for which nobody waits.
    pub(super) fn cancel(&mut self, unwanted: impl Fn(RequestKey) -> bool) {
        let gone: Vec<RequestKey> = self.open.keys().copied().filter(|asked| unwanted(*asked)).collect();
        for asked in gone {
            let outbox = self.take(asked).expect("just seen");
            self.give_back(outbox);
        }
    }

    /// Handles a new link to a client: earlier pieces were lost, so the client must ask again.
    pub(super) fn restart(
        &mut self,
        client: ProcessId,
        out: &mut dyn Sink<impl Protocol<Message = Message>>,
    ) {
        let begun = |(asked, outbox): &(&RequestKey, &Outbox)| asked.0 == client && outbox.piece > 0;
        let begun: Vec<RequestKey> = self.open.iter().filter(begun).map(|(asked, _)| *asked).collect();
        for asked in begun {
            let outbox = self.take(asked).expect("just seen");
            retry(client, asked.1, outbox.at, out);
            self.give_back(outbox);
        }
    }

    /// Releases a version that was kept for a long answer, because no client waits for that answer.
    pub(super) fn unwanted(&mut self, at: Position) {
        self.released.push(at);
    }

    fn give_back(&mut self, outbox: Outbox) {
        if outbox.source.is_some() {
            self.released.push(outbox.at);
        }
    }

    /// Takes the versions to release; each entry releases one reference.
    pub(super) fn released(&mut self) -> Vec<Position> {
        std::mem::take(&mut self.released)
    }
}

impl Outbox {
    fn new(answer: OutboxAnswer<'_>, pieces: VecDeque<Bytes>, source: Option<PageSource>) -> Self {
        let OutboxAnswer { at, ranges, spent, now } = answer;
        let (ranges, (begun, moved)) = (SmallVec::from_slice(ranges), (now, now));
        let held = pieces.iter().map(|piece| piece.len() as u64).sum();
        Outbox { at, ranges, spent, pieces, piece: 0, sent: 0, consumed: 0, held, begun, moved, source }
    }

    /// Returns the number of bytes of held pieces that remain once the window is full.
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

    /// Whether the window permits one more piece.
    fn is_open(&self, window: u64) -> bool {
        self.sent == self.consumed || self.sent - self.consumed < window
    }

    fn is_done(&self) -> bool {
        self.pieces.is_empty() && self.source.is_none()
    }

    fn pump(
        &mut self,
        (client, token): RequestKey,
        window: u64,
        now: Time,
        out: &mut dyn Sink<impl Protocol<Message = Message>>,
    ) {
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
