//! What ranges remember of the writes that took effect in them, so that a repeated one takes effect once (S6).
//!
//! A write is remembered with the print of its statement. A repetition under the same id and another print is refused,
//! so that nobody is told what another's statement returned. A number that its gateway gives out for the first time is
//! never refused: whoever guessed it before has used up nothing.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    ecast::Position,
    rubberband::{Range, RequestId, WriteName},
};

/// What a write did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Remembered {
    /// Where it took effect.
    pub(super) at: Position,
    /// Per range its answer, or why it failed as a whole.
    pub(super) results: Result<Vec<(Range, Bytes)>, Bytes>,
}

/// Replies by session, number and print.
#[derive(Clone, Debug, Default)]
pub(super) struct Replies {
    sessions: BTreeMap<u128, BTreeMap<(u64, u64), Entry>>,
}

/// What is known of a write's name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known<'a> {
    /// It is to be executed.
    Nothing,
    /// It is being executed, or another statement under its id is, of which it depends.
    Pending,
    /// It took effect.
    Done(&'a Remembered),
    /// The id is that of another statement.
    OtherStatement,
}

#[derive(Clone, Debug)]
enum Entry {
    /// Being executed.
    Pending,
    Done(Arc<Remembered>),
}

impl Replies {
    /// What is known of a write.
    pub(super) fn known(&self, name: WriteName) -> Known<'_> {
        let WriteName { request, print, repeated } = name;
        let Some(session) = self.sessions.get(&request.session) else { return Known::Nothing };
        let same_id = || session.range((request.number, 0)..=(request.number, u64::MAX));
        match session.get(&(request.number, print)) {
            Some(Entry::Done(remembered)) => Known::Done(remembered),
            Some(Entry::Pending) => Known::Pending,
            None if !repeated => Known::Nothing,
            None if same_id().any(|(_, entry)| matches!(entry, Entry::Pending)) => Known::Pending,
            None if same_id().next().is_some() => Known::OtherStatement,
            None => Known::Nothing,
        }
    }

    pub(super) fn begin(&mut self, name: WriteName) {
        let WriteName { request, print, .. } = name;
        let session = self.sessions.entry(request.session).or_default();
        let before = session.insert((request.number, print), Entry::Pending);
        assert!(before.is_none(), "S6: {request:?} would be executed twice");
    }

    pub(super) fn finish(&mut self, name: WriteName, remembered: Remembered) {
        let WriteName { request, print, .. } = name;
        let session = self.sessions.entry(request.session).or_default();
        let before = session.insert((request.number, print), Entry::Done(Arc::new(remembered)));
        assert!(matches!(before, Some(Entry::Pending)), "S6: {request:?} finished without having begun");
    }

    /// The write is voided as if it had never been: all that were to tell its verdict are gone, or another range refused
    /// it.
    pub(super) fn cancel(&mut self, name: WriteName) {
        let WriteName { request, print, .. } = name;
        let session = self.sessions.entry(request.session).or_default();
        let before = session.remove(&(request.number, print));
        assert!(matches!(before, Some(Entry::Pending)), "S6: {request:?} is cancelled without having begun");
    }

    /// What the write at `at` did, if it is remembered.
    pub(super) fn at(&self, at: Position) -> Option<&Remembered> {
        let done = self.sessions.values().flat_map(BTreeMap::values).filter_map(|entry| match entry {
            Entry::Done(remembered) => Some(&**remembered),
            Entry::Pending => None,
        });
        done.into_iter().find(|remembered| remembered.at == at)
    }

    /// An ordered message allows to forget the session's numbers below `below`.
    pub(super) fn forget(&mut self, session: u128, below: u64) {
        if below == u64::MAX {
            self.sessions.remove(&session);
        } else if let Some(replies) = self.sessions.get_mut(&session) {
            *replies = replies.split_off(&(below, 0));
        }
    }

    /// An ordered message allows to forget what writes under made-up ids did up to `through`.
    pub(super) fn expire(&mut self, through: Position) {
        let (first, last) = (RequestId::made_up(0).session, RequestId::made_up(u128::MAX).session);
        let over = |entry: &Entry| matches!(entry, Entry::Done(remembered) if remembered.at <= through);
        let mut empty = Vec::new();
        for (session, replies) in self.sessions.range_mut(first..=last) {
            replies.retain(|_, entry| !over(entry));
            if replies.is_empty() {
                empty.push(*session);
            }
        }
        for session in empty {
            self.sessions.remove(&session);
        }
    }

    /// The byte form, for a range that moves.
    pub(super) fn encode(&self) -> Bytes {
        let done: Vec<(u128, (u64, u64), &Remembered)> = self
            .sessions
            .iter()
            .flat_map(|(&session, replies)| {
                replies.iter().filter_map(move |(&number, entry)| match entry {
                    Entry::Done(remembered) => Some((session, number, &**remembered)),
                    Entry::Pending => None,
                })
            })
            .collect();
        postcard::to_stdvec(&done).expect("our own types always serialise").into()
    }

    /// From bytes; `None` when they are no replies.
    pub(super) fn decode(bytes: &[u8]) -> Option<Replies> {
        let done: Vec<(u128, (u64, u64), Remembered)> = postcard::from_bytes(bytes).ok()?;
        let mut replies = Replies::default();
        for (session, number, remembered) in done {
            let session = replies.sessions.entry(session).or_default();
            session.insert(number, Entry::Done(Arc::new(remembered)));
        }
        Some(replies)
    }

    /// Adds what another replica remembers; what a write did in several ranges is put together.
    pub(super) fn merge(&mut self, other: Replies) {
        for (session, replies) in other.sessions {
            let known = self.sessions.entry(session).or_default();
            for (number, entry) in replies {
                let Entry::Done(theirs) = &entry else { continue };
                let ours = match known.get_mut(&number) {
                    Some(Entry::Done(ours)) => ours,
                    _ => {
                        known.insert(number, entry);
                        continue;
                    }
                };
                if let (Ok(ours), Ok(theirs)) = (&mut Arc::make_mut(ours).results, &theirs.results) {
                    for (range, result) in theirs {
                        if !ours.iter().any(|(known, _)| known == range) {
                            ours.push((*range, result.clone()));
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
