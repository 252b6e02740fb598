//! Streams: the soft messages of one view that a member holds, from itself and from other members, and the
//! receipts of other members.
//!
//! A member holds each stream without gaps, and frees its messages once every survivor holds them. Casts
//! overtake each other, so messages ahead of a gap are put aside for a while, bounded in bytes. They count as
//! not held until the gap closes.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::RangeInclusive,
};

use super::Pack;
use crate::{ecast::Position, id::ProcessId, wire::Wire};

/// Bytes that count for each soft message in addition to its pack.
pub(super) const SOFT_HEAD_BYTES: usize = 64;

/// A soft message: updates that travel together. A member holds either all of them or none.
#[derive(Clone, Debug, PartialEq, Eq, Wire)]
pub struct Soft {
    /// The position after which the message is delivered: the position of its sender's last earlier ordered
    /// message, or another position that the message must follow.
    pub after: Position,
    /// The updates.
    pub pack: Pack,
}

impl Soft {
    /// Returns the size that the message counts for in bounds, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.pack.bytes().len() + SOFT_HEAD_BYTES
    }

    /// Returns the number of the message's updates.
    pub fn count(&self) -> u64 {
        u64::from(self.pack.count())
    }
}

/// The held messages of one sender. Updates are numbered from 1 in each view, and all numbers here are
/// numbers of updates.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// The number of the last update that has been freed.
    base: u64,
    /// The number of the last update that was received.
    end: u64,
    /// The held messages, each with the number of its first update.
    held: VecDeque<(u64, Soft)>,
    /// The number of the last update that was delivered here.
    pub(super) delivered: u64,
    /// Size of the held messages, in bytes.
    pub(super) bytes: usize,
    /// Messages after a gap, by the number of their first update.
    ahead: BTreeMap<u64, Soft>,
    /// Size of the messages in `ahead`, in bytes.
    ahead_bytes: usize,
    /// The number of the last update that the stream's sender has sent, as far as this member knows.
    announced: u64,
}

/// Consecutive messages of a stream.
#[derive(Debug)]
pub(super) struct MessageRun {
    /// The number of the run's first update.
    pub(super) first: u64,
    /// The number of the run's last update.
    pub(super) last: u64,
    /// The run's size, in bytes.
    pub(super) bytes: usize,
    pub(super) messages: Vec<Soft>,
}

/// The relation of a message to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakeResult {
    /// The message continues the stream, and is held now.
    Next,
    /// The message was already held.
    Known,
    /// Earlier messages are missing. The message does not count as held, even if it was put aside.
    Gap,
}

impl Stream {
    /// Returns the number of the last update that was received.
    pub(super) fn received(&self) -> u64 {
        self.end
    }

    /// Returns the size of the messages that are held or put aside, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.bytes + self.ahead_bytes
    }

    /// Adds a message, given the number of its first update. A message after a gap is put aside if `room`
    /// bytes suffice.
    pub(super) fn take(&mut self, first: u64, soft: Soft, room: usize) -> TakeResult {
        self.announced = self.announced.max(first.saturating_add(soft.count() - 1));
        match first.cmp(&(self.end + 1)) {
            std::cmp::Ordering::Less => TakeResult::Known,
            std::cmp::Ordering::Greater => {
                if self.ahead_bytes + soft.bytes() <= room && !self.ahead.contains_key(&first) {
                    self.ahead_bytes += soft.bytes();
                    self.ahead.insert(first, soft);
                }
                TakeResult::Gap
            }
            std::cmp::Ordering::Equal => {
                self.hold(soft);
                while let Some(next) = self.ahead.first_entry().filter(|next| *next.key() <= self.end + 1) {
                    let (first, soft) = next.remove_entry();
                    self.ahead_bytes -= soft.bytes();
                    // A correct sender's messages do not overlap.
                    if first == self.end + 1 {
                        self.hold(soft);
                    }
                }
                TakeResult::Next
            }
        }
    }

    fn hold(&mut self, soft: Soft) {
        self.bytes += soft.bytes();
        let first = self.end + 1;
        self.end += soft.count();
        self.held.push_back((first, soft));
    }

    /// Records the number of updates that the sender has announced.
    pub(super) fn announce(&mut self, number: u64) {
        self.announced = self.announced.max(number);
    }

    /// Whether the stream's sender has sent more updates than are held here.
    pub(super) fn lacks(&self) -> bool {
        self.announced > self.received()
    }

    /// Returns the missing numbers of the first `most` gaps, each gap as the range from its first to its last
    /// number.
    pub(super) fn holes(&self, most: usize) -> Vec<(u64, u64)> {
        let (mut holes, mut next) = (Vec::new(), Some(self.received() + 1));
        for (&number, soft) in &self.ahead {
            holes.extend(next.filter(|next| *next < number).map(|next| (next, number - 1)));
            next = number.checked_add(soft.count());
            if holes.len() >= most {
                return holes;
            }
        }
        holes.extend(next.filter(|next| *next <= self.announced).map(|next| (next, self.announced)));
        holes
    }

    /// Returns the held messages from the message with this update on, each with the number of its first
    /// update.
    fn since(&self, number: u64) -> impl Iterator<Item = &(u64, Soft)> {
        let place = self.held.partition_point(|(first, soft)| first + soft.count() <= number);
        self.held.range(place..).filter(move |_| number > self.base)
    }

    /// Delivers the next message. Returns `None` if some of its updates lie beyond `limit`, or if it has to
    /// follow a position after `through`.
    pub(super) fn deliver(&mut self, limit: u64, through: Position) -> Option<(u64, Pack)> {
        let (first, soft) = self.since(self.delivered + 1).next()?;
        let last = self.delivered + soft.count();
        if last > limit || soft.after > through {
            return None;
        }
        let delivered = (*first, soft.pack.clone());
        self.delivered = last;
        Some(delivered)
    }

    /// Drops the messages that were put aside.
    fn forget_ahead(&mut self) {
        self.ahead.clear();
        self.ahead_bytes = 0;
    }

    /// Returns the messages with these updates, as many as fit into `bytes` bytes, but at least one. Returns
    /// `None` if the stream does not hold these updates.
    pub(super) fn messages(&self, numbers: RangeInclusive<u64>, bytes: usize) -> Option<MessageRun> {
        let mut wanted = self.since(*numbers.start()).take_while(|(first, _)| first <= numbers.end());
        let (first, soft) = wanted.next()?;
        let mut run = MessageRun {
            first: *first,
            last: first + soft.count() - 1,
            bytes: soft.bytes(),
            messages: vec![soft.clone()],
        };
        for (first, soft) in wanted {
            if run.bytes + soft.bytes() > bytes {
                break;
            }
            run.bytes += soft.bytes();
            run.last = first + soft.count() - 1;
            run.messages.push(soft.clone());
        }
        Some(run)
    }

    /// Frees the messages up to `number` that were delivered here, because all members hold them.
    fn free(&mut self, number: u64) {
        let number = number.min(self.delivered);
        while let Some((first, soft)) = self.held.front()
            && first + soft.count() - 1 <= number
        {
            self.base = first + soft.count() - 1;
            self.bytes -= soft.bytes();
            self.held.pop_front();
        }
    }
}

/// A member's receipt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Receipt {
    /// For each stream, the number of the last update that the member holds.
    pub(super) counts: BTreeMap<ProcessId, u64>,
    /// The position up to which the member holds every ordered message, with the soft predecessors of each.
    pub(super) ordered: Position,
}

/// The streams of a view.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: BTreeMap<ProcessId, Stream>,
    receipts: BTreeMap<ProcessId, Receipt>,
}

impl Streams {
    /// Makes the streams of these members, in the view that begins at position `view`. All members have the
    /// order up to that position.
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

    /// Drops the messages that wait after gaps, in all streams.
    pub(super) fn forget_ahead(&mut self) {
        self.streams.values_mut().for_each(Stream::forget_ahead);
    }

    /// Returns, for each stream that is not empty, the number of the last received update.
    pub(super) fn counts(&self) -> BTreeMap<ProcessId, u64> {
        self.iter().map(|(id, stream)| (id, stream.received())).filter(|(_, count)| *count > 0).collect()
    }

    /// Returns, for each stream, the number of the last delivered update.
    pub(super) fn delivered(&self) -> BTreeMap<ProcessId, u64> {
        self.iter().map(|(id, stream)| (id, stream.delivered)).collect()
    }

    /// Merges a member's receipt. Counts only grow, because a later receipt may arrive over another link
    /// before an earlier receipt.
    pub(super) fn receipt(
        &mut self,
        member: ProcessId,
        counts: &BTreeMap<ProcessId, u64>,
        ordered: Position,
    ) {
        let Some(known) = self.receipts.get_mut(&member) else { return };
        known.ordered = known.ordered.max(ordered);
        for (sender, count) in counts {
            match known.counts.get_mut(sender) {
                Some(known) => *known = (*known).max(*count),
                // Only members have streams, so a count of another process does not come from a correct
                // member.
                None if self.streams.contains_key(sender) => _ = known.counts.insert(*sender, *count),
                None => {}
            }
        }
    }

    /// Returns, for each stream, the number up to which this member and all these other members are known to
    /// hold it.
    pub(super) fn least<'a>(&self, others: impl Iterator<Item = &'a ProcessId>) -> BTreeMap<ProcessId, u64> {
        let mut least = self.counts();
        for receipt in others.filter_map(|id| self.receipts.get(id)) {
            least.retain(|sender, count| {
                *count = receipt.counts.get(sender).map_or(0, |held| (*held).min(*count));
                *count > 0
            });
        }
        least
    }

    pub(super) fn receipt_of(&self, member: ProcessId) -> Option<&Receipt> {
        self.receipts.get(&member)
    }

    /// Whether the latest receipt of `member` covers these counts and this position.
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

    /// Returns the number of updates that were freed.
    pub(super) fn freed(&self) -> u64 {
        self.streams.values().map(|stream| stream.base).sum()
    }

    /// Frees the messages that all these members hold.
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
    use crate::group::PackWriter;

    fn soft(number: u64) -> Soft {
        Soft { after: Position(0), pack: Pack::of(number.to_string().as_bytes()) }
    }

    /// Size of a message of one update, in bytes.
    const BYTES: usize = 64 + 4 + 1;

    fn text(soft: &Soft) -> String {
        soft.pack.iter().map(String::from_utf8_lossy).collect()
    }

    /// Makes a stream of these messages, with room for `room` messages after gaps.
    fn stream(numbers: &[u64], room: usize) -> Stream {
        let mut stream = Stream::default();
        for &number in numbers {
            stream.take(number, soft(number), room * BYTES);
        }
        stream
    }

    #[test]
    fn messages_after_a_gap_are_held_and_count_once_the_gap_is_filled() {
        let mut stream = stream(&[1, 4, 3, 6], 9);
        assert_eq!(stream.received(), 1);
        assert_eq!(stream.holes(9), [(2, 2), (5, 5)]);
        assert_eq!(stream.take(2, soft(2), 9 * BYTES), TakeResult::Next);
        assert_eq!((stream.received(), stream.lacks()), (4, true));
        assert_eq!(stream.take(5, soft(5), 9 * BYTES), TakeResult::Next);
        assert_eq!((stream.received(), stream.lacks()), (6, false));
        assert_eq!(stream.ahead_bytes, 0);
        let run = stream.messages(1..=6, 1 << 20).expect("they are held");
        let bodies: Vec<String> = run.messages.iter().map(text).collect();
        assert_eq!(bodies, ["1", "2", "3", "4", "5", "6"]);
        assert_eq!((run.first, run.last), (1, 6));
    }

    #[test]
    fn a_duplicate_message_is_taken_once() {
        let mut stream = stream(&[1, 3, 3], 9);
        assert_eq!(stream.take(1, soft(9), 9 * BYTES), TakeResult::Known);
        assert_eq!(stream.ahead_bytes, BYTES);
        stream.take(2, soft(2), 9 * BYTES);
        assert_eq!(stream.take(3, soft(9), 9 * BYTES), TakeResult::Known);
        assert_eq!((stream.received(), stream.bytes), (3, 3 * BYTES));
    }

    #[test]
    fn messages_after_a_gap_are_bounded_and_missed_again() {
        let stream = stream(&[2, 3, 4, 5], 2);
        assert_eq!(stream.ahead_bytes, 2 * BYTES);
        assert_eq!(stream.holes(9), [(1, 1), (4, 5)]);
        assert_eq!(stream.holes(1), [(1, 1)]);
    }

    #[test]
    fn a_lost_last_message_is_noticed_by_the_senders_announcement() {
        let mut stream = stream(&[1], 2);
        assert!(!stream.lacks() && stream.holes(9).is_empty());
        stream.announce(2);
        assert_eq!(stream.holes(9), [(2, 2)]);
    }

    /// Makes a message of `count` updates from this number on.
    fn several(first: u64, count: u64) -> (u64, Soft) {
        let mut writer = PackWriter::default();
        (first..first + count).for_each(|number| writer.push(number.to_string().as_bytes()));
        (first, Soft { after: Position(0), pack: writer.finish().expect("there are some") })
    }

    #[test]
    fn a_message_is_taken_delivered_and_freed_whole() {
        let mut stream = Stream::default();
        for (first, soft) in [several(4, 2), several(1, 3), several(8, 2), several(8, 2)] {
            stream.take(first, soft, 1 << 20);
        }
        assert_eq!((stream.received(), stream.holes(9)), (5, vec![(6, 7)]));
        let from =
            |stream: &Stream, numbers| stream.messages(numbers, 1 << 20).map(|run| (run.first, run.last));
        assert_eq!(from(&stream, 2..=3), Some((1, 3)));
        assert_eq!(from(&stream, 3..=4), Some((1, 5)));
        assert_eq!(from(&stream, 6..=9), None);
        assert_eq!(stream.messages(1..=5, 1).map(|run| run.last), Some(3));
        assert_eq!(stream.deliver(2, Position(0)), None, "a limit ends inside it");
        assert_eq!(stream.deliver(4, Position(0)).map(|(first, pack)| (first, pack.count())), Some((1, 3)));
        assert_eq!(stream.deliver(4, Position(0)), None);
        stream.free(u64::MAX);
        assert_eq!(from(&stream, 1..=9), None, "the first three are freed");
        assert_eq!(from(&stream, 4..=9), Some((4, 5)));
        assert_eq!(stream.deliver(u64::MAX, Position(0)).map(|(first, _)| first), Some(4));
        stream.free(4);
        assert_eq!(from(&stream, 5..=5), Some((4, 5)), "one of two is not freed");
        stream.free(5);
        assert_eq!((stream.bytes, stream.base), (0, 5));
    }

    #[test]
    fn a_message_that_begins_inside_another_is_dropped() {
        let mut stream = Stream::default();
        for (first, soft) in [several(3, 1), several(5, 1), several(1, 4), several(2, 9)] {
            stream.take(first, soft, 1 << 20);
        }
        assert_eq!((stream.received(), stream.ahead_bytes), (5, 0));
    }

    #[test]
    fn a_receipt_counts_streams_of_members_alone() {
        let process = |node| ProcessId { node, incarnation: crate::id::Incarnation(0) };
        let mut streams = Streams::new([1, 2].map(process).into_iter(), Position(3));
        let counts = (0..9).map(|node| (process(node), node + 1)).collect();
        streams.receipt(process(2), &counts, Position(4));
        streams.receipt(process(9), &counts, Position(4));
        let receipt = streams.receipt_of(process(2)).expect("it is a member");
        assert_eq!(receipt.counts, [(process(1), 2), (process(2), 3)].into());
        assert_eq!(streams.receipts.len(), 2);
    }

    #[test]
    fn numbers_may_be_anything() {
        let stream = stream(&[u64::MAX, u64::MAX - 2], 9);
        assert_eq!(stream.holes(9), [(1, u64::MAX - 3), (u64::MAX - 1, u64::MAX - 1)]);
    }
}
