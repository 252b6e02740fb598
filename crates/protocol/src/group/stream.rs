//! Streams: what a member holds of the soft messages of one view, its own and the others', and who else holds them.
//!
//! A stream is kept without gaps: what does not continue it is not taken. It is freed once every survivor holds it.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::{ecast::Position, id::ProcessId};

/// A soft message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Soft {
    /// The last ordered message that its sender sent before it: it is delivered behind that.
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
}

/// How a message fits a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It was the next one, and is held now.
    Next,
    /// It was held before.
    Known,
    /// Others before it are missing.
    Gap,
}

impl Stream {
    /// The number of the last message that was received.
    pub(super) fn received(&self) -> u64 {
        self.base + self.held.len() as u64
    }

    pub(super) fn take(&mut self, number: u64, soft: Soft) -> Fit {
        match number.cmp(&(self.received() + 1)) {
            std::cmp::Ordering::Less => Fit::Known,
            std::cmp::Ordering::Greater => Fit::Gap,
            std::cmp::Ordering::Equal => {
                self.bytes += soft.bytes();
                self.held.push_back(soft);
                Fit::Next
            }
        }
    }

    pub(super) fn get(&self, number: u64) -> Option<&Soft> {
        self.held.get(usize::try_from(number.checked_sub(self.base + 1)?).ok()?)
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
