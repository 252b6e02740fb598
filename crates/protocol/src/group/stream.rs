//! Streams: what a member holds of the soft messages of one view, its own and the others', and who else holds them.
//!
//! A stream is held without gaps, and freed once every survivor holds it. Casts overtake each other, so what comes ahead of others is put
//! aside for a while, bounded in bytes: it counts as held by nobody until those are here.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::{ecast::Position, id::ProcessId};

/// A soft message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Soft {
    /// It is delivered behind this position: that of the last ordered message that its sender sent before it, or what it is to follow.
    pub after: Position,
    /// The message.
    pub body: Bytes,
}

impl Soft {
    /// What it counts for where bytes are bounded.
    pub(super) fn bytes(&self) -> usize {
        self.body.len() + 64
    }
}

/// What is held of one sender's messages, numbered from 1 in each view.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// The number of the last message that is not held any more.
    base: u64,
    held: VecDeque<Soft>,
    /// The number of the last message delivered here.
    pub(super) delivered: u64,
    /// Bytes held.
    pub(super) bytes: usize,
    /// Messages behind a gap, by number, and their bytes.
    ahead: BTreeMap<u64, Soft>,
    ahead_bytes: usize,
    /// The last number that its sender is known to have sent.
    told: u64,
}

/// How a message fits a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It was the next one, and is held now.
    Next,
    /// It was held before.
    Known,
    /// Others before it are missing: it is held by nobody, though it may have been put aside.
    Gap,
}

impl Stream {
    /// The number of the last message that was received.
    pub(super) fn received(&self) -> u64 {
        self.base + self.held.len() as u64
    }

    /// A message came. Ahead of others it is put aside if so many bytes have room for it.
    pub(super) fn take(&mut self, number: u64, soft: Soft, room: usize) -> Fit {
        self.told = self.told.max(number);
        match number.cmp(&(self.received() + 1)) {
            std::cmp::Ordering::Less => Fit::Known,
            std::cmp::Ordering::Greater => {
                if self.ahead_bytes + soft.bytes() <= room && !self.ahead.contains_key(&number) {
                    self.ahead_bytes += soft.bytes();
                    self.ahead.insert(number, soft);
                }
                Fit::Gap
            }
            std::cmp::Ordering::Equal => {
                self.hold(soft);
                while let Some(soft) = self.ahead.remove(&(self.received() + 1)) {
                    self.ahead_bytes -= soft.bytes();
                    self.hold(soft);
                }
                Fit::Next
            }
        }
    }

    fn hold(&mut self, soft: Soft) {
        self.bytes += soft.bytes();
        self.held.push_back(soft);
    }

    /// Its sender says that it has sent so many.
    pub(super) fn tell(&mut self, number: u64) {
        self.told = self.told.max(number);
    }

    /// Whether its sender has sent more than is held.
    pub(super) fn lacks(&self) -> bool {
        self.told > self.received()
    }

    /// The first and the last number of what is missing, of the first `most` places where something is.
    pub(super) fn holes(&self, most: usize) -> Vec<(u64, u64)> {
        let (mut holes, mut next) = (Vec::new(), Some(self.received() + 1));
        for number in self.ahead.keys().copied() {
            holes.extend(next.filter(|next| *next < number).map(|next| (next, number - 1)));
            next = number.checked_add(1);
            if holes.len() >= most {
                return holes;
            }
        }
        holes.extend(next.filter(|next| *next <= self.told).map(|next| (next, self.told)));
        holes
    }

    pub(super) fn get(&self, number: u64) -> Option<&Soft> {
        self.held.get(usize::try_from(number.checked_sub(self.base + 1)?).ok()?)
    }

    /// Messages that were put aside are let go.
    fn forget_ahead(&mut self) {
        self.ahead.clear();
        self.ahead_bytes = 0;
    }

    /// Messages from `number` on, as many as fit into `bytes`, but at least one.
    pub(super) fn from(&self, number: u64, bytes: usize) -> Vec<Soft> {
        let mut left = bytes;
        let mut messages = Vec::new();
        for soft in (number..).map_while(|number| self.get(number)) {
            if !messages.is_empty() && soft.bytes() > left {
                break;
            }
            left = left.saturating_sub(soft.bytes());
            messages.push(soft.clone());
        }
        messages
    }

    /// Frees what all hold, up to `number`, as far as it was delivered here.
    fn free(&mut self, number: u64) {
        while self.base < number.min(self.delivered)
            && let Some(soft) = self.held.pop_front()
        {
            self.base += 1;
            self.bytes -= soft.bytes();
        }
    }
}

/// What a member has said that it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Receipt {
    /// Of each stream.
    pub(super) counts: BTreeMap<ProcessId, u64>,
    /// Everything ordered up to here, and the soft predecessors of that.
    pub(super) ordered: Position,
}

/// The streams of a view.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: BTreeMap<ProcessId, Stream>,
    receipts: BTreeMap<ProcessId, Receipt>,
}

impl Streams {
    /// Of these members, in the view that begins at this position: all have what was ordered before.
    pub(super) fn new(members: impl Iterator<Item = ProcessId> + Clone, view: Position) -> Self {
        let receipt = Receipt { counts: BTreeMap::new(), ordered: view };
        Streams {
            streams: members.clone().map(|id| (id, Stream::default())).collect(),
            receipts: members.map(|id| (id, receipt.clone())).collect(),
        }
    }

    pub(super) fn get(&self, sender: ProcessId) -> Option<&Stream> {
        self.streams.get(&sender)
    }

    pub(super) fn get_mut(&mut self, sender: ProcessId) -> Option<&mut Stream> {
        self.streams.get_mut(&sender)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ProcessId, &Stream)> {
        self.streams.iter().map(|(id, stream)| (*id, stream))
    }

    pub(super) fn received(&self, sender: ProcessId) -> u64 {
        self.get(sender).map_or(0, Stream::received)
    }

    /// Messages ahead of others are let go, of all streams.
    pub(super) fn forget_ahead(&mut self) {
        self.streams.values_mut().for_each(Stream::forget_ahead);
    }

    /// The count held of each stream of which anything was received.
    pub(super) fn counts(&self) -> BTreeMap<ProcessId, u64> {
        self.iter().map(|(id, stream)| (id, stream.received())).filter(|(_, count)| *count > 0).collect()
    }

    /// How much was delivered of each.
    pub(super) fn delivered(&self) -> BTreeMap<ProcessId, u64> {
        self.iter().map(|(id, stream)| (id, stream.delivered)).collect()
    }

    /// A member says what it holds. Links may change between two of its words, so that the earlier comes later: counts only
    /// grow.
    pub(super) fn receipt(&mut self, member: ProcessId, receipt: &Receipt) {
        let Some(known) = self.receipts.get_mut(&member) else { return };
        known.ordered = known.ordered.max(receipt.ordered);
        for (sender, count) in &receipt.counts {
            let known = known.counts.entry(*sender).or_default();
            *known = (*known).max(*count);
        }
    }

    pub(super) fn receipt_of(&self, member: ProcessId) -> Option<&Receipt> {
        self.receipts.get(&member)
    }

    /// Whether `member` has said that it holds so much.
    pub(super) fn holds(
        &self,
        member: ProcessId,
        counts: &BTreeMap<ProcessId, u64>,
        ordered: Position,
    ) -> bool {
        let Some(receipt) = self.receipts.get(&member) else { return false };
        receipt.ordered >= ordered
            && counts.iter().all(|(id, count)| receipt.counts.get(id).copied().unwrap_or(0) >= *count)
    }

    /// How many messages were let go.
    pub(super) fn freed(&self) -> u64 {
        self.streams.values().map(|stream| stream.base).sum()
    }

    /// Frees what these members hold.
    pub(super) fn free(&mut self, members: &[ProcessId]) {
        for (sender, stream) in self.streams.iter_mut().filter(|(_, stream)| !stream.held.is_empty()) {
            let held = |id: &ProcessId| {
                self.receipts.get(id).and_then(|receipt| receipt.counts.get(sender)).copied().unwrap_or(0)
            };
            if let Some(all) = members.iter().map(held).min() {
                stream.free(all);
            } else {
                stream.free(u64::MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soft(number: u64) -> Soft {
        Soft { after: Position(0), body: Bytes::from(number.to_string()) }
    }

    /// A stream that got these, with room for `room` messages ahead of others.
    fn stream(numbers: &[u64], room: usize) -> Stream {
        let mut stream = Stream::default();
        for &number in numbers {
            stream.take(number, soft(number), room * 65);
        }
        stream
    }

    #[test]
    fn what_comes_ahead_is_held_once_the_others_are_here() {
        let mut stream = stream(&[1, 4, 3, 6], 9);
        assert_eq!(stream.received(), 1);
        assert_eq!(stream.holes(9), [(2, 2), (5, 5)]);
        assert_eq!(stream.take(2, soft(2), 9 * 65), Fit::Next);
        assert_eq!((stream.received(), stream.lacks()), (4, true));
        assert_eq!(stream.take(5, soft(5), 9 * 65), Fit::Next);
        assert_eq!((stream.received(), stream.lacks()), (6, false));
        assert_eq!(stream.ahead_bytes, 0);
        let bodies: Vec<Bytes> = stream.from(1, 1 << 20).into_iter().map(|soft| soft.body).collect();
        assert_eq!(bodies, ["1", "2", "3", "4", "5", "6"]);
    }

    #[test]
    fn a_double_is_taken_once() {
        let mut stream = stream(&[1, 3, 3], 9);
        assert_eq!(stream.take(1, soft(9), 9 * 65), Fit::Known);
        assert_eq!(stream.ahead_bytes, 65);
        stream.take(2, soft(2), 9 * 65);
        assert_eq!(stream.take(3, soft(9), 9 * 65), Fit::Known);
        assert_eq!((stream.received(), stream.bytes), (3, 3 * 65));
    }

    #[test]
    fn a_burst_ahead_of_others_is_bounded_and_missed_again() {
        let stream = stream(&[2, 3, 4, 5], 2);
        assert_eq!(stream.ahead_bytes, 2 * 65);
        assert_eq!(stream.holes(9), [(1, 1), (4, 5)]);
        assert_eq!(stream.holes(1), [(1, 1)]);
    }

    #[test]
    fn the_last_one_is_missed_by_its_senders_word() {
        let mut stream = stream(&[1], 2);
        assert!(!stream.lacks() && stream.holes(9).is_empty());
        stream.tell(2);
        assert_eq!(stream.holes(9), [(2, 2)]);
    }

    #[test]
    fn numbers_may_be_anything() {
        let stream = stream(&[u64::MAX, u64::MAX - 2], 9);
        assert_eq!(stream.holes(9), [(1, u64::MAX - 3), (u64::MAX - 1, u64::MAX - 1)]);
    }
}
