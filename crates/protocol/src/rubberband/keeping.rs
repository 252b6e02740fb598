//! Keeping: a storage process that was removed keeps its rows until others have them.
//!
//! **Promise.** A process that lives and was complete when it was removed does not drop a range's rows while nobody else has
//! them. If all other replicas of the range are gone, and an operator says so, the range goes on from the rows that are kept.
//! Nothing that was acknowledged is given up silently: only an operator's word takes rows up that may be behind.
//!
//! **Source.** None that we know. Viewstamped Replication (Liskov and Cowling, 2012, §4.3) and ZooKeeper's leader election both
//! prefer, among survivors, the one whose log ends last; they count a majority, which a range with few replicas lacks.
//!
//! **Roles.** A *keeper* is the next life of a storage process that was removed while it was complete, or unreachable. It has
//! the same engine, the same memory of replies and a new id. Supers dismiss it, or have a standby copy from it.
//!
//! ```text
//!  P (removed)          routers           super            standby E
//!     │ wedged: it delivered all that was for it through @40
//!     │ as K: Join { former P, place, through 40 } ─▶ @61         K is a member, on no ring
//!     │                                    │
//!     │  either   others are complete and heard: Dismiss K @62    K drops its rows, and is a standby
//!     │  or       they are unreachable: nothing happens, until one returns or
//!     │           an operator declares the last one lost @70
//!     │                                    │ Replace { new E, copy [range from K] } @71
//!     ├── pin @71 ◀─────────────────────── Fetch ─────────────────┤
//!     ├── Chunk ─────────────────────────────────────────────────▶│ Complete @72: then Dismiss K @73
//! ```
//!
//! **Rules.**
//! - *The position.* A keeper has every write of its ranges up to `through`, the last position that it delivered, and none behind
//!   it. What of that waited in its queue it still executes. Writes behind may have been acknowledged by others.
//! - *When it counts.* `apply` has a range copied from a keeper only while no replica of it is active or unreachable: as long
//!   as one is unreachable it may return, and knows more or as much. The keeper with the last position is taken, and no other.
//! - *One copy at a time.* While a range without a complete replica is received by one process, no second one begins: they could
//!   have begun with different rows, for keepers come and go.
//! - *When it is over.* A super dismisses a keeper once every range of its place has a complete replica that nobody suspects
//!   and that is heard at that moment, and nobody is taking the place. `apply` checks all but that they are heard, and so no
//!   keeper leaves before.
//! - *Who seems to have failed* while it is needed is not removed. It stays, suspected, as an unreachable replica does: it returns and
//!   refutes, or an operator declares it lost, too. Its node may have another life beside it meanwhile, which is a standby.
//! - *Who makes way.* A process whose place an operator gives to a standby keeps its rows in the same way, under the id that it
//!   has: so a move lowers the number of complete replicas for no longer than it takes (S15).
//! - *What is remembered* goes along: replies, so that a repetition is answered (S6), and verdicts, so that a write that waits for
//!   them is decided as it was. Sessions that ended meanwhile, and numbers that may be forgotten, are forgotten as it joins.
//! - *Not across generations.* What was delivered may be no part of a later generation's history. A process that was cut off as
//!   one began ends, as before.
//!
//! **Why an operator decides.** Nobody who is left knows whether a write behind `through` was acknowledged: the routers know
//! that it was ordered and for whom, and the lead router alone which confirmations it told. So the safe rule is that rows
//! are taken up only when the last replica that may know more has been declared lost, and the operator is shown both what
//! is given up and the position at which the keeper stands. If nothing was acknowledged behind it, nothing is lost.
//!
//! **Attacks considered.**
//! - *Two keepers of a range at different positions:* the later is taken. Writes are refused as long as no replica is complete, so
//!   that neither falls back further. Of a place whose other ranges have replicas that live, only the lost range is copied from
//!   the keeper; the others come from where they are newer.
//! - *The offer races with the return of the last replica:* both are ordered. Behind the return it is active, and the keeper is
//!   dismissed; a copy that was composed before names another placement version and is void.
//! - *The offer races with the declaration:* a keeper that joins before the range is received by anybody is taken up. One
//!   that joins later finds a range that is being received, or complete and empty: its rows stay until that one is complete
//!   and are dropped then. The declaration was the operator's word that nobody has them.
//! - *The declared process lives and returns:* it is a keeper like any other, with a later position.
//! - *The keeper dies while it sends:* an operator declares it lost; the receiver ends, and comes back empty; the next keeper is
//!   taken, or the range is lost. The receiver had acknowledged nothing, since a range without a complete replica takes no writes.
//! - *The keeper is cut off while it sends:* the receiver waits, and goes on asking where it was once the keeper is back. (It used to
//!   be removed. What had been declared lost was another process; the range began empty, though its rows were there.)
//! - *The keeper is cut off when it is not needed:* it is removed, and joins anew with the same rows and position.
//! - *A migration for which it was a source:* its pins are released, and the receiver reads elsewhere. One that it received itself
//!   is void: a process that was not complete keeps nothing.
//! - *A write that waits for verdicts:* the keeper asks for them, and answers; those who wait for its former life's verdict wait
//!   for the keeper's, if it delivered the write. If it comes too late for them, theirs was published: as in
//!   `verdicts`, what the write did in the lost range is lost.
//! - *Staged rows* belong to a session and stay while that is open. A part that was staged behind `through` is missed when the load is
//!   published, since its rows are counted.
//! - *A statement's id* that was used behind `through` is not known to the keeper: a repetition is executed. Its effect was
//!   lost with the range, so it takes effect once.

use serde::{Deserialize, Serialize};

use super::{Config, Range, StorageState, placement::Segment};
use crate::{ecast::Position, id::ProcessId};

/// The rows that a keeper has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeps {
    /// The life that was removed.
    pub former: ProcessId,
    /// Its place on the ring, whose ranges they are.
    pub place: u64,
    /// They contain every write up to here, and none behind.
    pub through: Position,
}

impl Config {
    /// What `process` keeps, if it is a keeper.
    pub fn keeps(&self, process: ProcessId) -> Option<Keeps> {
        match self.storage.get(&process) {
            Some(StorageState::Keeping(keeps)) => Some(*keeps),
            _ => None,
        }
    }

    /// All keepers.
    pub fn keepers(&self) -> impl Iterator<Item = (ProcessId, Keeps)> + '_ {
        self.storage.keys().filter_map(|&process| Some((process, self.keeps(process)?)))
    }

    /// The ranges of a place on the ring.
    pub fn ranges_at(&self, place: u64) -> Vec<Range> {
        self.ring.get(&place).map(|holder| self.ranges_of(*holder)).unwrap_or_default()
    }

    /// The segments of what a keeper keeps.
    pub(super) fn kept_by(&self, keeps: Keeps) -> impl Iterator<Item = &Segment> {
        let holder = self.ring.get(&keeps.place);
        self.segments().iter().filter(move |segment| holder.is_some_and(|it| segment.replicas.contains(it)))
    }

    /// Whether `process` is a keeper, and some range of its place has no complete replica that nobody suspects, or its
    /// successor there is not complete.
    pub(super) fn is_needed(&self, process: ProcessId) -> bool {
        let Some(keeps) = self.keeps(process) else { return false };
        let successor = self.ring.get(&keeps.place).and_then(|holder| self.storage.get(holder));
        if matches!(successor, Some(StorageState::Receiving { .. })) {
            return true;
        }
        let spared =
            |segment: &Segment| self.complete(segment).any(|replica| !self.suspected.contains_key(&replica));
        !self.kept_by(keeps).all(spared)
    }

    /// The keeper from whose rows a segment goes on that no replica has, or will have again: the one that delivered most.
    pub fn keeper(&self, segment: &Segment) -> Option<(ProcessId, Keeps)> {
        let keeps = |(_, keeps): &(ProcessId, Keeps)| {
            self.ring.get(&keeps.place).is_some_and(|holder| segment.replicas.contains(holder))
        };
        let keepers = self.keepers().filter(|_| self.is_lost(segment)).filter(keeps);
        keepers.max_by_key(|(process, keeps)| (keeps.through, *process))
    }

    /// Whether `new` may copy a segment from `source`, or begin with nothing.
    pub(super) fn may_copy(&self, segment: &Segment, new: ProcessId, source: Option<ProcessId>) -> bool {
        if !self.is_lost(segment) {
            return source.is_some_and(|source| self.complete(segment).any(|replica| replica == source));
        }
        !self.is_received(segment, new) && self.keeper(segment).map(|(keeper, _)| keeper) == source
    }

    /// Whether somebody else than `new` receives a segment.
    pub(super) fn is_received(&self, segment: &Segment, new: ProcessId) -> bool {
        let receives = |replica: &ProcessId| {
            *replica != new && matches!(self.storage.get(replica), Some(StorageState::Receiving { .. }))
        };
        segment.replicas.iter().any(receives)
    }

    /// Whether a keeper will still tell what its former life, which was concerned by a write at `at`, makes of it.
    pub(super) fn is_kept_of(&self, former: ProcessId, at: Position) -> bool {
        self.keepers().any(|(_, keeps)| keeps.former == former && at <= keeps.through)
    }
}
