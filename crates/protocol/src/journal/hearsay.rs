//! What processes know of each other's journals, so that an older copy of one is found.
//!
//! **Promise.** A process does not go on from a journal that lacks a record of which it had told a process that it meets now.
//! Such a journal is an older copy of a directory, put back: a restored snapshot of a machine, say. Everything in it
//! follows from itself, so the process alone cannot tell. It would break promises that it has forgotten: a router would
//! accept what it had promised not to, and a storage process lack what the routers keep no more.
//!
//! **How.** Each [`Start`] of a process from its directory has a number and a random mark. The directory keeps them,
//! and where in the journal each began ([`Starts`]). A process tells its peers now and then which start this is, and up to which
//! record its journal is durable ([`Told`]). They remember the last that each node told ([`Hearsay`]), in their own
//! journals, too. When two processes greet each other, each says what it remembers of the other, and the other compares that with
//! its starts. In an older copy the start that it had told of is not there, or is another one, or the next came before the
//! record that it had told of. Then it says nothing any more, and ends. Only after that comparison does it tell of itself, so that
//! an older copy is not believed; and not in its first moments, because a peer that remembers nothing would believe it before
//! it meets one that does. However often such a copy is started, and
//! whatever was written to it since, its starts give it away.
//!
//! **What is not found.** A copy is as good as its original until the original has told somebody of more: what was made durable
//! since the last telling, and what a peer forgot in a crash because it had not written it down. A process with an older
//! copy that can meet none but those that never heard of more goes on until it meets another. Copies of all directories
//! that were taken and put back together agree with each other, and nobody is left who knows better.

use std::collections::{BTreeMap, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    id::{Incarnation, ProcessId},
    seam::Ticket,
    wire::{Wire, WireError, put_process, take_process, take_u32, take_u64},
};

/// One start of a process from its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Counts those of the directory, from 1.
    pub number: u32,
    /// Drawn at random: two starts of one number are those of a directory and of a copy.
    pub mark: u64,
    /// The last record that was there when it began.
    pub began: Ticket,
}

/// How far a process had come when it told of it: since which start, and the last record that was durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The number of the start.
    pub start: u32,
    /// Its mark.
    pub mark: u64,
    /// The record; 0 if there is none.
    pub durable: Ticket,
}

/// The last starts from a directory, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Starts(VecDeque<Start>);

/// So many are kept. Nothing is found by what a peer remembers of an earlier one.
pub const STARTS_MAX: usize = 64;

impl Starts {
    /// These, which a directory kept; `None` if they do not follow from each other.
    pub fn of(starts: impl IntoIterator<Item = Start>) -> Option<Starts> {
        let starts: VecDeque<Start> = starts.into_iter().collect();
        let follows = |(one, next): (&Start, &Start)| {
            one.number.checked_add(1) == Some(next.number) && one.began <= next.began
        };
        let fits = starts.len() <= STARTS_MAX && starts.iter().zip(starts.iter().skip(1)).all(follows);
        fits.then_some(Starts(starts))
    }

    /// The same, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Start> {
        self.0.iter()
    }

    /// Another start, behind the record `began`.
    pub fn begin(&mut self, mark: u64, began: Ticket) {
        if self.0.len() == STARTS_MAX {
            self.0.pop_front();
        }
        let number = self.0.back().map_or(1, |last| last.number.saturating_add(1));
        self.0.push_back(Start { number, mark, began });
    }

    /// What a process tells since the last start once this record is durable.
    pub fn tell(&self, durable: Ticket) -> Told {
        let Some(Start { number, mark, .. }) = self.0.back() else { return Told::default() };
        Told { start: *number, mark: *mark, durable }
    }

    /// Whether a directory with these starts holds what it had told of, as far as they say.
    pub fn holds(&self, told: Told) -> bool {
        let (Some(first), Some(last)) = (self.0.front(), self.0.back()) else { return true };
        if told.durable == Ticket(0) || told.start < first.number {
            return true;
        }
        if told.start > last.number {
            return false;
        }
        let at = (told.start - first.number) as usize;
        let is_kept = self.0.get(at + 1).is_none_or(|next| next.began >= told.durable);
        self.0[at].mark == told.mark && is_kept
    }
}

impl Wire for Told {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u32_le(self.start);
        out.put_u64_le(self.mark);
        out.put_u64_le(self.durable.0);
    }

    fn decode(input: &mut Bytes) -> Result<Told, WireError> {
        Ok(Told { start: take_u32(input)?, mark: take_u64(input)?, durable: Ticket(take_u64(input)?) })
    }
}

/// What nodes told last of their journals, each in its last incarnation that told anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hearsay(BTreeMap<u64, (Incarnation, Told)>);

/// So many nodes are remembered. Others are not, until there is room.
const NODES_MAX: usize = 1024;

impl Hearsay {
    /// `process` told this. Whether it is news. One without a disk tells nothing.
    pub fn learn(&mut self, process: ProcessId, told: Told) -> bool {
        let known = self.0.get(&process.node);
        let is_news = known != Some(&(process.incarnation, told)) && told.durable > Ticket(0);
        let learns = is_news && (known.is_some() || self.0.len() < NODES_MAX);
        if learns {
            self.0.insert(process.node, (process.incarnation, told));
        }
        learns
    }

    /// What `process` told last, if it did.
    pub fn told(&self, process: ProcessId) -> Told {
        match self.0.get(&process.node) {
            Some((incarnation, told)) if *incarnation == process.incarnation => *told,
            _ => Told::default(),
        }
    }

    /// Whether nobody told anything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Wire for Hearsay {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u32_le(self.0.len() as u32);
        for (&node, &(incarnation, told)) in &self.0 {
            put_process(out, ProcessId { node, incarnation });
            told.encode(out);
        }
    }

    fn decode(input: &mut Bytes) -> Result<Hearsay, WireError> {
        let count = take_u32(input)? as usize;
        if count > NODES_MAX {
            return Err(WireError::Length { length: count as u64, limit: NODES_MAX as u64 });
        }
        let mut told = BTreeMap::new();
        for _ in 0..count {
            let ProcessId { node, incarnation } = take_process(input)?;
            told.insert(node, (incarnation, Told::decode(input)?));
        }
        Ok(Hearsay(told))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(node: u64, incarnation: u128) -> ProcessId {
        ProcessId { node, incarnation: Incarnation(incarnation) }
    }

    /// Each tells of 10 more records than the one before it.
    fn starts(marks: std::ops::Range<u64>) -> Starts {
        let mut starts = Starts::default();
        marks.for_each(|mark| starts.begin(mark, Ticket(mark * 10)));
        starts
    }

    #[test]
    fn a_directory_that_is_the_newest_holds_what_it_told() {
        let mut starts = Starts::default();
        let mut told = vec![Told::default()];
        for mark in 0..3 * STARTS_MAX as u64 {
            starts.begin(mark, Ticket(mark * 10));
            told.extend([1, 10].map(|more| starts.tell(Ticket(mark * 10 + more))));
            assert!(told.iter().all(|told| starts.holds(*told)), "start {mark}");
        }
        assert_eq!(Starts::of(starts.iter().copied()), Some(starts));
    }

    #[test]
    fn an_older_copy_does_not_hold_it_however_often_it_is_started() {
        for taken_in in 1..6 {
            // A copy that is taken behind this start and some of its records; and what later ones tell.
            let original = starts(0..6);
            let later = original.tell(Ticket(55));
            let since_that_start = starts(0..taken_in).tell(Ticket(taken_in * 10 - 1));
            let mut copy = starts(0..taken_in);
            for start in 0..2 * STARTS_MAX as u64 {
                copy.begin(1_000 + start, Ticket(taken_in * 10 - 5 + 100 * start));
                if copy.0.front().is_some_and(|first| first.number <= 1) {
                    assert!(!copy.holds(since_that_start), "taken in {taken_in}, started {start} times");
                    assert!(!copy.holds(later), "taken in {taken_in}, started {start} times");
                }
                assert!(copy.holds(starts(0..taken_in).tell(Ticket(taken_in * 10 - 5))), "that is in it");
            }
        }
        assert!(starts(0..0).holds(starts(0..3).tell(Ticket(5))), "nothing is said by none");
    }

    #[test]
    fn starts_that_do_not_follow_from_each_other_are_none() {
        let start = |number, began| Start { number, mark: 0, began: Ticket(began) };
        assert!(Starts::of([start(3, 5), start(4, 5)]).is_some());
        assert_eq!(Starts::of([start(3, 5), start(5, 5)]), None);
        assert_eq!(Starts::of([start(3, 5), start(4, 4)]), None);
        assert_eq!(Starts::of((1..100).map(|number| start(number, 5))), None);
    }

    #[test]
    fn of_each_node_is_known_what_it_told_last() {
        let told = |mark, durable| Told { start: 1, mark, durable: Ticket(durable) };
        let mut hearsay = Hearsay::default();
        assert!(!hearsay.learn(process(1, 1), told(1, 0)), "it has no disk");
        assert!(hearsay.is_empty() && hearsay.learn(process(1, 1), told(1, 7)));
        assert!(!hearsay.learn(process(1, 1), told(1, 7)), "that is known");
        assert_eq!(hearsay.told(process(1, 1)), told(1, 7));
        assert_eq!(hearsay.told(process(2, 1)), Told::default(), "another node");
        assert_eq!(
            hearsay.told(process(1, 2)),
            Told::default(),
            "another incarnation has a journal of its own"
        );
        for node in 0..NODES_MAX as u64 {
            hearsay.learn(process(node, 9), told(2, 1));
        }
        assert!(!hearsay.learn(process(5_000, 9), told(1, 1)), "there is no room");
        assert!(hearsay.learn(process(3, 9), told(2, 900)), "for those that are known there is");
        let mut out = BytesMut::new();
        hearsay.encode(&mut out);
        let bytes = out.freeze();
        assert_eq!(Hearsay::decode(&mut bytes.clone()), Ok(hearsay));
        for end in (0..bytes.len()).step_by(7) {
            Hearsay::decode(&mut bytes.slice(..end)).unwrap_err();
        }
        let mut more = bytes.to_vec();
        more[..4].copy_from_slice(&(NODES_MAX as u32 + 1).to_le_bytes());
        assert!(matches!(Hearsay::decode(&mut more.into()), Err(WireError::Length { .. })));
    }
}
