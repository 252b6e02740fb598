//! Ids that applications make up: which statement each is for, and which have expired (S6).
//!
//! **Promise.** A write under an id that an application made up takes effect once, through whichever gateways it is sent
//! and however often, until the id expires. After that it is refused, and whether it was applied is no longer known.
//! Another statement under the id is refused.
//!
//! **How.** A number that a gateway gives out belongs to a session that its joining opened. A made-up id belongs to
//! nobody: any gateway may send it first. So the write itself opens it, at its place in the order. Routers keep what they
//! judge it by: the statement that the id was first used for. They admit a further write under the id as a repetition,
//! which the ranges answer from memory, or refuse it. Members keep nothing, and no message is spent on opening.
//!
//! **Expiry.** [`Control::Expire`](super::Control::Expire) names a position. Ids first used up to there expire, and ranges
//! forget what writes under made-up ids did up to there. A super sends it for a position that it had delivered
//! [`SuperSettings::retention`](super::SuperSettings::retention) ago, by its own clock. A gateway sends it when
//! [`SENT_MAX`] later writes of its own were made under such ids, so an application that makes up a million of them is
//! remembered for less long and takes no more memory.
//!
//! **Why it is safe.** A range forgets a write that it executed at or before the position. Its id was admitted at or
//! before it was executed, so the same message expires the id, and no repetition is routed from there on. The message may
//! come twice, late, or from two supers at once: it never gives back anything.
//!
//! - *Two gateways send one id at once.* One write is first in the order. The other is a repetition, or refused.
//! - *The first write is refused by its range, or lost.* The id is open, and nothing is remembered. A repetition is
//!   executed as the first.
//! - *An expired id comes again.* Routers remember the marks of the last [`EXPIRED_MAX`] expired ids. Two ids with one mark
//!   only mean that one is refused for nothing.
//! - *An id comes again when its mark is forgotten as well.* It is taken for a new one. `docs/limits.md` says so.

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use super::{RequestId, WriteName, refusal};
use crate::ecast::{Position, Refusal};

/// A gateway has the ranges remember so many of its writes under made-up ids.
pub(super) const SENT_MAX: usize = 65_536;
/// Ids that are open at once; further ones are refused until some expire.
const OPEN_MAX: usize = 1 << 20;
/// Expired ids whose marks are kept.
const EXPIRED_MAX: usize = 1 << 20;

/// What routers know of made-up ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Parts", into = "Parts")]
pub struct MadeUpIds {
    /// The statement's print and the position of the first use.
    open: BTreeMap<RequestId, (u64, Position)>,
    /// In the order of their first use.
    order: VecDeque<(Position, RequestId)>,
    /// Marks of expired ids, oldest first, and the same as a set.
    expired: VecDeque<u64>,
    marks: FxHashSet<u64>,
}

/// What of it is handed on.
#[derive(Serialize, Deserialize)]
struct Parts {
    open: VecDeque<(RequestId, u64, Position)>,
    expired: VecDeque<u64>,
}

impl From<Parts> for MadeUpIds {
    fn from(parts: Parts) -> MadeUpIds {
        MadeUpIds {
            order: parts.open.iter().map(|(id, _, at)| (*at, *id)).collect(),
            open: parts.open.into_iter().map(|(id, print, at)| (id, (print, at))).collect(),
            marks: parts.expired.iter().copied().collect(),
            expired: parts.expired,
        }
    }
}

impl From<MadeUpIds> for Parts {
    fn from(ids: MadeUpIds) -> Parts {
        let open = ids.order.iter().map(|(at, id)| (*id, ids.open[id].0, *at));
        Parts { open: open.collect(), expired: ids.expired }
    }
}

impl MadeUpIds {
    /// A write under a made-up id stands at `at`.
    pub(super) fn admit(&mut self, at: Position, name: WriteName) -> Result<(), Refusal> {
        let id = name.request;
        assert!(id.is_made_up(), "{id:?} was given out by a gateway");
        match self.open.get(&id) {
            Some((print, _)) if *print == name.print => Ok(()),
            Some(_) => Err(refusal::OTHER_STATEMENT),
            None if self.marks.contains(&mark(id)) => Err(refusal::EXPIRED),
            None if self.open.len() >= OPEN_MAX => Err(refusal::TOO_MANY_IDS),
            None => {
                self.open.insert(id, (name.print, at));
                self.order.push_back((at, id));
                Ok(())
            }
        }
    }

    /// Ids first used up to `through` are over.
    pub(super) fn expire(&mut self, through: Position) {
        while let Some((_, id)) = self.order.pop_front_if(|(at, _)| *at <= through) {
            self.open.remove(&id);
            if self.marks.insert(mark(id)) {
                self.expired.push_back(mark(id));
            }
            if self.expired.len() > EXPIRED_MAX
                && let Some(oldest) = self.expired.pop_front()
            {
                self.marks.remove(&oldest);
            }
        }
    }
}

/// What is kept of an expired id. Ids are digests, so any part of one will do.
fn mark(id: RequestId) -> u64 {
    id.number
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(id: u128, print: u64) -> WriteName {
        WriteName { request: RequestId::made_up(id), print, repeated: true }
    }

    #[test]
    fn an_id_is_for_one_statement_until_it_expires() {
        let mut ids = MadeUpIds::default();
        assert_eq!(ids.admit(Position(1), name(7, 1)), Ok(()));
        assert_eq!(ids.admit(Position(2), name(8, 1)), Ok(()));
        assert_eq!(ids.admit(Position(3), name(7, 1)), Ok(()), "a repetition");
        assert_eq!(ids.admit(Position(4), name(7, 2)), Err(refusal::OTHER_STATEMENT));
        ids.expire(Position(1));
        assert_eq!(ids.admit(Position(5), name(7, 1)), Err(refusal::EXPIRED));
        assert_eq!(ids.admit(Position(6), name(7, 2)), Err(refusal::EXPIRED));
        assert_eq!(ids.admit(Position(7), name(8, 1)), Ok(()));
        // A snapshot knows the same; an old message about expiry gives nothing back.
        let bytes = postcard::to_stdvec(&ids).expect("our own types always serialise");
        let mut copy: MadeUpIds = postcard::from_bytes(&bytes).expect("our own bytes decode");
        assert_eq!(copy, ids);
        copy.expire(Position(0));
        assert_eq!(copy.admit(Position(8), name(7, 1)), Err(refusal::EXPIRED));
        assert_eq!(copy.admit(Position(9), name(8, 2)), Err(refusal::OTHER_STATEMENT));
    }

    #[test]
    fn a_million_ids_take_bounded_memory() {
        let mut ids = MadeUpIds::default();
        let count = OPEN_MAX as u64 + EXPIRED_MAX as u64 + 10;
        let mut refused = 0;
        for id in 0..count {
            // An id is a digest: neighbours have nothing in common.
            let digest = u128::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            let admitted = ids.admit(Position(id), name(digest, 1));
            if admitted == Err(refusal::TOO_MANY_IDS) {
                refused += 1;
                ids.expire(Position(id - SENT_MAX as u64));
                assert_eq!(ids.admit(Position(id), name(digest, 1)), Ok(()));
            }
        }
        assert_eq!(refused, 2);
        assert_eq!((ids.open.len(), ids.order.len()), (ids.open.len().min(OPEN_MAX), ids.open.len()));
        assert_eq!((ids.expired.len(), ids.marks.len()), (EXPIRED_MAX, EXPIRED_MAX));
    }
}
