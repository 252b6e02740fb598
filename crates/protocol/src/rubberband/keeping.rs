//! Keeping: a storage process that was removed keeps its rows until others have them.
//!
//! **Promise.** A live process that was complete when it was removed does not drop a range's rows while
//! nobody else has them. If all other replicas of the range are gone and an operator declares them lost, the
//! range continues from the kept rows. Acknowledged writes are never given up silently: only an operator's
//! declaration lets the range continue from rows that may be old.
//!
//! **Source.** None that we know. Viewstamped Replication (Liskov and Cowling, 2012, §4.3) and ZooKeeper's
//! leader election both prefer the survivor whose log ends last. Both count a majority, which a range with
//! few replicas lacks.
//!
//! **Roles.** A *keeper* is the next life of a storage process that was removed while it was complete or
//! unreachable. It has the same engine, the same memory of replies and a new id. Supers dismiss it, or let a
//! standby copy from it.
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
//! - *A keeper's position.* A keeper has every write of its ranges up to `through`, the last position that it
//!   delivered, and no later write. It still executes delivered writes that wait in its queue. Others may
//!   have acknowledged later writes.
//! - *When a keeper counts.* `apply` lets a standby copy a range from a keeper only if no replica of the
//!   range is active or unreachable. An unreachable replica may return, and has at least the writes that the
//!   keeper has. If there are several keepers, only the keeper with the highest position serves.
//! - *One copy at a time.* While one process receives a range that has no complete replica, no second process
//!   may begin to receive it. Keepers come and go, so the two could begin with different rows.
//! - *When a keeper ends.* A super dismisses a keeper when two conditions hold. Every range of the keeper's
//!   place has a complete, unsuspected replica that the super hears at that moment. Nobody is receiving the
//!   place. `apply` checks all of this except hearing, so no keeper leaves earlier.
//! - *A needed keeper is not removed* when it seems to have failed. It stays, suspected, like an unreachable
//!   replica. It returns and refutes the suspicion, or an operator declares it lost, too. Meanwhile its node
//!   may run another process, which is a standby.
//! - *A process that makes way* for a standby, because an operator wants so, keeps its rows in the same
//!   manner, under its old id. So the number of complete replicas is low only while the move lasts (S15).
//! - *Memory moves along:* replies, so that a repetition is answered (S6), and verdicts, so that a write that
//!   waits for them gets the same decision. When the keeper joins, it forgets sessions that ended meanwhile
//!   and numbers that may be forgotten.
//! - *Not across generations.* Messages that the process delivered may be missing from the history of a later
//!   generation. A process that was cut off when a generation began ends and keeps nothing. The same holds
//!   for a keeper: if the routers go on as another generation without it, it ends, and its rows end with it.
//!
//! **Why an operator decides.** No survivor knows whether a write after `through` was acknowledged. The
//! routers know that the write was ordered, and for which processes. Only the lead router knows which
//! confirmations it reported. So the safe rule is: the range continues from kept rows only after the last
//! replica that may know more was declared lost. The operator sees which replica is given up, and the
//! keeper's position. If nothing was acknowledged after that position, nothing is lost. But no process can
//! find out whether anything was acknowledged there: kept rows that lack acknowledged writes look like kept
//! rows that lack none.
//!
//! **Attacks considered.**
//! - *Two keepers of a range at different positions:* the keeper with the later position serves. The range
//!   refuses writes while no replica is complete, so neither keeper falls back further. If other ranges of
//!   the place have live replicas, the standby copies those from the replicas, which are newer, and only the
//!   lost range from the keeper.
//! - *The keeper's `Join` races with the return of the last replica:* both are ordered. After the return
//!   the replica is active, and supers dismiss the keeper. A copy that was planned before names an old
//!   placement version and has no effect.
//! - *The keeper's `Join` races with the declaration:* if the keeper joins before anybody receives the
//!   range, the range continues from the kept rows. If the keeper joins later, the range is being received,
//!   or complete and empty. The keeper holds its rows until the range is complete and then drops them: the
//!   operator declared that nobody has them.
//! - *The process that was declared lost returns:* it is a keeper like any other, with a later position.
//! - *The keeper dies while it sends:* an operator declares it lost. The receiver ends, and comes back empty.
//!   The next keeper serves, or the range is lost. The receiver had acknowledged nothing, because a range
//!   without a complete replica takes no writes.
//! - *The keeper is cut off while it sends:* the receiver waits, and continues the transfer when the keeper
//!   is back. (Earlier, the keeper was removed. Another process was then declared lost, and the range began
//!   empty although its rows existed.)
//! - *The keeper is cut off when nobody needs it:* it is removed, and joins again with the same rows and
//!   position.
//! - *The process was a source of a migration:* its pins are released, and the receiver reads elsewhere. A
//!   migration that it was receiving has no effect, because a process that was not complete keeps nothing.
//! - *A write waits for verdicts:* the keeper asks for them, and answers. Processes that wait for the verdict
//!   of its former life get the keeper's verdict if the keeper delivered the write. If the keeper comes too
//!   late, the other ranges have published the write: as in `verdicts`, the write's effect in the lost range
//!   is lost.
//! - *Staged rows* belong to a session and stay while it is open. Publishing a load counts its rows, so the
//!   engine notices if rows are missing because they were staged after `through`.
//! - *A statement's id was used after `through`:* the keeper does not know it, so a repetition is executed.
//!   The first effect was lost with the range, so the write takes effect once.

pub use super::kept::KeptRows;
use super::{Config, Range, StorageState, range::Segment};
use crate::{ecast::Position, id::ProcessId};

impl Config {
    /// Returns the rows that `process` keeps, if it is a keeper.
    pub fn keeps(&self, process: ProcessId) -> Option<KeptRows> {
        match self.storage.get(&process) {
            Some(StorageState::Keeping(keeps)) => Some(*keeps),
            _ => None,
        }
    }

    /// Returns all keepers with their rows.
    pub fn keepers(&self) -> impl Iterator<Item = (ProcessId, KeptRows)> + '_ {
        self.storage.keys().filter_map(|&process| Some((process, self.keeps(process)?)))
    }

    /// Returns the ranges of a place on the ring.
    pub fn ranges_at(&self, place: u64) -> Vec<Range> {
        self.ring.get(&place).map(|holder| self.ranges_of(*holder)).unwrap_or_default()
    }

    /// Returns the segments of which a keeper has rows.
    pub(super) fn kept_by(&self, keeps: KeptRows) -> impl Iterator<Item = &Segment> {
        let holder = self.ring.get(&keeps.place);
        self.segments().iter().filter(move |segment| holder.is_some_and(|it| segment.replicas.contains(it)))
    }

    /// Whether `process` is a keeper that must stay, because a range of its place has no complete,
    /// unsuspected replica, or because the process that took its place is still receiving.
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

    /// Returns the keeper from whose rows a lost segment continues: the keeper that delivered most.
    pub fn keeper(&self, segment: &Segment) -> Option<(ProcessId, KeptRows)> {
        let keeps = |(_, keeps): &(ProcessId, KeptRows)| {
            self.ring.get(&keeps.place).is_some_and(|holder| segment.replicas.contains(holder))
        };
        let keepers = self.keepers().filter(|_| self.is_lost(segment)).filter(keeps);
        keepers.max_by_key(|(process, keeps)| (keeps.through, *process))
    }

    /// Whether `new` may copy a segment from `source`, or, if `source` is `None`, begin it empty.
    pub(super) fn may_copy(&self, segment: &Segment, new: ProcessId, source: Option<ProcessId>) -> bool {
        if !self.is_lost(segment) {
            return source.is_some_and(|source| self.complete(segment).any(|replica| replica == source));
        }
        !self.is_received(segment, new) && self.keeper(segment).map(|(keeper, _)| keeper) == source
    }

    /// Whether a process other than `new` receives a segment.
    pub(super) fn is_received(&self, segment: &Segment, new: ProcessId) -> bool {
        let receives = |replica: &ProcessId| {
            *replica != new && matches!(self.storage.get(replica), Some(StorageState::Receiving { .. }))
        };
        segment.replicas.iter().any(receives)
    }

    /// Whether a keeper will still send the verdict of its former life on the write at `at`.
    pub(super) fn has_keeper_of(&self, former: ProcessId, at: Position) -> bool {
        self.keepers().any(|(_, keeps)| keeps.former == former && at <= keeps.through)
    }
}
