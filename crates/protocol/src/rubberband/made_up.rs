//! Made-up ids: ids that applications choose themselves. For each id, routers know its statement and whether
//! it has expired (S6).
//!
//! **Promise.** A write under a made-up id takes effect once, however often and through whichever gateways
//! the application sends it, until the id expires. After that the write is refused, and nobody knows whether
//! it was applied. A different statement under the id is refused.
//!
//! **How.** A number that a gateway gives out belongs to a session, which opened when the gateway joined. A
//! made-up id belongs to no gateway: any gateway may be the first to send it. So the first write under the id
//! opens it, at the write's position. Routers then remember the hash of its statement. They admit a later
//! write under the id if it has the same statement, as a repetition, which the ranges answer from memory.
//! Otherwise they refuse it. Members store nothing, and opening costs no message.
//!
//! **Expiry.** [`Control::Expire`](super::Control::Expire) names a position. Ids first used up to it expire,
//! and ranges forget their replies to writes under made-up ids up to it. A super sends the message for a
//! position that it delivered [`SuperSettings::retention`](super::SuperSettings::retention) ago, by its own
//! clock. A gateway sends it after [`SENT_MAX`] later writes of its own under made-up ids. So an application
//! that makes up a million ids uses no more memory; its writes are remembered for a shorter time.
//!
//! **Why it is safe.** A range forgets a write that it executed at or before the position. The id of that
//! write was admitted no later than it was executed, so the same message expires the id, and routers route no
//! repetition after it. The message may come twice, late, or from two supers at once: it never reopens an id.
//!
//! - *Two gateways send one id at once.* One write is first in the order. The other write is a repetition, or
//!   refused.
//! - *The first write is refused by its range, or lost.* The id is open, and no range remembers it. A
//!   repetition is executed as if it were the first write.
//! - *An expired id comes again.* Routers remember the marks of the last [`EXPIRED_MAX`] expired ids. If two
//!   ids share a mark, one of them is refused without need.
//! - *An id comes again after its mark is forgotten.* It counts as a new id (`docs/limits.md`).

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use super::{RequestId, WriteName, refusal};
use crate::ecast::{Position, Refusal};

/// Number of a gateway's latest writes under made-up ids that the ranges remember.
pub(super) const SENT_MAX: usize = 65_536;
/// Maximum number of open ids; new ids are refused until some expire.
const OPEN_MAX: usize = 1 << 20;
/// Maximum number of expired ids whose marks are kept.
const EXPIRED_MAX: usize = 1 << 20;

/// The routers' knowledge of made-up ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "MadeUpIdsWire", into = "MadeUpIdsWire")]
pub struct MadeUpIds {
    /// Open ids, with their statement's hash and the position of their first use.
    open: BTreeMap<RequestId, (u64, Position)>,
    /// Open ids in the order of their first use.
    order: VecDeque<(Position, RequestId)>,
    /// Marks of expired ids, oldest first. `marks` holds the same marks as a set.
    expired: VecDeque<u64>,
    marks: FxHashSet<u64>,
}

/// The serialised form of [`MadeUpIds`].
#[derive(Serialize, Deserialize)]
struct MadeUpIdsWire {
    open: VecDeque<(RequestId, u64, Position)>,
    expired: VecDeque<u64>,
}

impl From<MadeUpIdsWire> for MadeUpIds {
    fn from(parts: MadeUpIdsWire) -> MadeUpIds {
        MadeUpIds {
            order: parts.open.iter().map(|(id, _, at)| (*at, *id)).collect(),
            open: parts.open.into_iter().map(|(id, print, at)| (id, (print, at))).collect(),
            marks: parts.expired.iter().copied().collect(),
            expired: parts.expired,
        }
    }
}

impl From<MadeUpIds> for MadeUpIdsWire {
    fn from(ids: MadeUpIds) -> MadeUpIdsWire {
        let open = ids.order.iter().map(|(at, id)| (*id, ids.open[id].0, *at));
        MadeUpIdsWire { open: open.collect(), expired: ids.expired }
    }
}

impl MadeUpIds {
    /// Admits or refuses the write under a made-up id that is ordered at `at`.
    pub(super) fn admit(&mut self, at: Position, name: WriteName) -> Result<(), Refusal> {
        let id = name.request;
        assert!(
            id.is_made_up(),
            "only an id that an application made up is kept here, but {id:?} is of a gateway"
        );
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

    /// Expires the ids first used up to `through`.
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

/// Returns the part of an expired id that is remembered. Ids are digests, so any 64 bits of them serve.
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
        // A snapshot carries the same knowledge: in the copy, too, an old expiry message reopens no id.
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
            // Real ids are digests, so the ids of this test, made from consecutive numbers, must not be
            // similar either.
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
