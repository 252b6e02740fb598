//! What ranges remember of the writes that took effect in them, so that a repeated one takes effect once (S6).

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    ecast::Position,
    rubberband::{Range, RequestId},
};

/// What a write did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Remembered {
    /// Where it took effect.
    pub(super) at: Position,
    /// Per range its answer, or why it failed as a whole.
    pub(super) results: Result<Vec<(Range, Bytes)>, Bytes>,
}

/// Replies by session and number.
#[derive(Clone, Debug, Default)]
pub(super) struct Replies {
    sessions: BTreeMap<u128, BTreeMap<u64, Entry>>,
}

#[derive(Clone, Debug)]
enum Entry {
    /// Being executed.
    Pending,
    Done(Arc<Remembered>),
}

impl Replies {
    /// Whether the write is being executed right now.
    pub(super) fn is_pending(&self, request: RequestId) -> bool {
        matches!(self.entry(request), Some(Entry::Pending))
    }

    /// What the write did, if it took effect.
    pub(super) fn get(&self, request: RequestId) -> Option<&Remembered> {
        match self.entry(request) {
            Some(Entry::Done(remembered)) => Some(remembered),
            _ => None,
        }
    }

    fn entry(&self, request: RequestId) -> Option<&Entry> {
        self.sessions.get(&request.session)?.get(&request.number)
    }

    pub(super) fn begin(&mut self, request: RequestId) {
        let before = self.sessions.entry(request.session).or_default().insert(request.number, Entry::Pending);
        assert!(before.is_none(), "S6: {request:?} would be executed twice");
    }

    pub(super) fn finish(&mut self, request: RequestId, remembered: Remembered) {
        let session = self.sessions.entry(request.session).or_default();
        let before = session.insert(request.number, Entry::Done(Arc::new(remembered)));
        assert!(matches!(before, Some(Entry::Pending)), "S6: {request:?} finished without having begun");
    }

    /// The write is voided as if it had never been: all that were to tell its verdict are gone.
    pub(super) fn cancel(&mut self, request: RequestId) {
        let session = self.sessions.entry(request.session).or_default();
        let before = session.remove(&request.number);
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
            *replies = replies.split_off(&below);
        }
    }

    /// The byte form, for a range that moves.
    pub(super) fn encode(&self) -> Bytes {
        let done: Vec<(u128, u64, &Remembered)> = self
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
        let done: Vec<(u128, u64, Remembered)> = postcard::from_bytes(bytes).ok()?;
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
