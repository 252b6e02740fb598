//! Which checkpoint of a group is the newest: what routers remember of it, whether anybody is in the group or not.
//!
//! A checkpoint is named by a [`Mark`]. All of this is a function of ordered messages, the same at routers and members.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{GroupId, shards::Shards};
use crate::ecast::Position;

/// The name of a checkpoint, and its place in the group's order: later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mark {
    /// The group's life. It is raised when a member comes with a checkpoint, above that one's: routers that began anew count
    /// positions anew, and what is saved then is newer all the same.
    pub life: u64,
    /// The view at whose beginning the state was so: everything that was delivered before it is in the checkpoint.
    pub view: Position,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "view {} of life {}", self.view, self.life)
    }
}

/// A process's own state of a group, as it asks to join.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The checkpoint that it has; none if it would begin with nothing.
    pub checkpoint: Option<Mark>,
    /// Whether it begins with that though a newer one is known, if nobody has the group's state.
    pub forced: bool,
}

/// What routers and members know of a group's checkpoints. There is none before the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The newest one that anybody told of.
    pub newest: Mark,
    /// The life in which the next one is made.
    pub life: u64,
}

/// The life of a group of whose checkpoints nobody told.
pub(super) const FIRST_LIFE: u64 = 1;
/// No life is greater: what says so is nonsense.
pub(super) const LIVES_MAX: u64 = 1 << 48;

impl Record {
    /// Whether a process with this offer may begin with it, where nobody has the group's state.
    pub(super) fn admits(known: Option<Record>, offer: Offer) -> bool {
        offer.forced || known.is_none_or(|known| offer.checkpoint >= Some(known.newest))
    }

    /// The name of the state at the beginning of a view.
    pub(super) fn mark(known: Option<Record>, view: Position) -> Mark {
        Mark { life: known.map_or(FIRST_LIFE, |known| known.life), view }
    }

    /// A process came with this checkpoint. What is saved from now on is newer.
    pub(super) fn brought(known: Option<Record>, checkpoint: Mark) -> Record {
        let life = known.map_or(FIRST_LIFE, |known| known.life).max(checkpoint.life + 1);
        Record { newest: known.map_or(checkpoint, |known| known.newest.max(checkpoint)), life }
    }

    /// A member has saved this checkpoint.
    pub(super) fn kept(known: Option<Record>, checkpoint: Mark) -> Record {
        let life = known.map_or(FIRST_LIFE, |known| known.life).max(checkpoint.life);
        Record { newest: known.map_or(checkpoint, |known| known.newest.max(checkpoint)), life }
    }
}

/// The records of a domain's groups, as routers keep them.
pub(super) type Records = Shards<Record>;

/// Of so many groups routers keep a record, at less than 64 bytes each, 1 MiB in all; and a group without members that has its name alone, at less
/// than 1 KiB each.
pub(super) const RECORDS_MAX: usize = 16 << 10;

/// Keeps a record. Of too many, that of an idle group goes whose newest checkpoint is the oldest: the group that is returned. Of a group with
/// members it stays: their next checkpoint follows from it.
pub(super) fn keep(
    records: &mut Records,
    group: GroupId,
    record: Record,
    idle: impl Fn(GroupId) -> bool,
) -> Option<GroupId> {
    records.insert(group, record);
    if records.len() <= RECORDS_MAX {
        return None;
    }
    let others = records.iter().filter(|(other, _)| *other != group && idle(*other));
    let (oldest, _) = others.min_by_key(|(other, record)| (record.newest.view, *other))?;
    records.remove(oldest);
    Some(oldest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(life: u64, view: u64) -> Mark {
        Mark { life, view: Position(view) }
    }

    fn offers(checkpoint: Option<Mark>) -> Offer {
        Offer { checkpoint, forced: false }
    }

    #[test]
    fn the_newest_begins_and_nothing_older_unless_forced() {
        assert!(Record::admits(None, offers(None)) && Record::admits(None, offers(Some(mark(3, 9)))));
        let known = Some(Record::kept(None, mark(1, 20)));
        assert!(Record::admits(known, offers(Some(mark(1, 20)))));
        for stale in [None, Some(mark(1, 19)), Some(mark(0, 99))] {
            assert!(!Record::admits(known, offers(stale)), "{stale:?}");
            assert!(Record::admits(known, Offer { checkpoint: stale, forced: true }));
        }
        // Of a later life, though routers that began anew count from less.
        assert!(Record::admits(known, offers(Some(mark(2, 3)))));
    }

    #[test]
    fn what_is_saved_is_newer_than_whatever_was_brought() {
        let mut known = None;
        for brought in [mark(1, 900), mark(7, 40), mark(2, 1_000)] {
            known = Some(Record::brought(known, brought));
            let saved = Record::mark(known, Position(5));
            assert!(saved > brought && saved > known.expect("it is one").newest, "{saved} behind {brought}");
        }
        assert_eq!(known.map(|known| known.newest), Some(mark(7, 40)), "an older one changes nothing");
        known = Some(Record::kept(known, mark(8, 6)));
        assert_eq!(known, Some(Record { newest: mark(8, 6), life: 8 }));
        assert_eq!(Record::kept(known, mark(8, 5)), known.expect("it is one"), "told late");
    }

    #[test]
    fn of_too_many_groups_the_idle_one_saved_first_is_forgotten() {
        let mut records = Records::default();
        let live = |group: GroupId| group.0 < 10;
        for group in 0..RECORDS_MAX as u64 {
            let record = Record::kept(None, mark(1, group + 1));
            assert_eq!(keep(&mut records, GroupId(group), record, |it| !live(it)), None);
        }
        assert_eq!(records.len(), RECORDS_MAX);
        let record = Record::kept(None, mark(1, 1));
        assert_eq!(keep(&mut records, GroupId(1 << 40), record, |it| !live(it)), Some(GroupId(10)));
        assert_eq!(records.len(), RECORDS_MAX);
        assert!(records.get(GroupId(1 << 40)).is_some() && records.get(GroupId(0)).is_some());
        assert_eq!(records.get(GroupId(10)), None, "the idle one saved first");
    }
}
