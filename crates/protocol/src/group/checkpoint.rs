//! The newest checkpoint of a group: routers remember it even while the group has no members.
//!
//! A [`Mark`] names a checkpoint. Everything here is a function of ordered messages, the same at routers and
//! members.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{id::GroupId, shards::Shards};
use crate::ecast::Position;

/// The name of a checkpoint, which is also its place in the group's order: later checkpoints have greater
/// names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mark {
    /// The group's life. A member that joins with a checkpoint raises the group's life above that
    /// checkpoint's life. So checkpoints that are saved later are newer, even if new routers count positions
    /// from the beginning.
    pub life: u64,
    /// The view at whose beginning the state was taken. The checkpoint includes everything that was delivered
    /// before that view.
    pub view: Position,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "view {} of life {}", self.view, self.life)
    }
}

/// The state with which a process asks to join a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The process's checkpoint; `None` if it would begin with a fresh state.
    pub checkpoint: Option<Mark>,
    /// Whether the process may begin with the offered state if no member has the group's state, even if a
    /// newer checkpoint is known.
    pub forced: bool,
}

/// The routers' and members' knowledge of a group's checkpoints. A group without a known checkpoint has no
/// record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The newest reported checkpoint.
    pub newest: Mark,
    /// The life of the next checkpoint.
    pub life: u64,
}

/// The life of a group without a reported checkpoint.
pub(super) const FIRST_LIFE: u64 = 1;
/// Upper bound of a life. A message with a larger life is malformed.
pub(super) const LIVES_MAX: u64 = 1 << 48;

impl Record {
    /// Whether a process with this offer may begin with the offered state, if no member has the group's
    /// state.
    pub(super) fn admits(known: Option<Record>, offer: Offer) -> bool {
        offer.forced || known.is_none_or(|known| offer.checkpoint >= Some(known.newest))
    }

    /// Returns the name of the state at the beginning of a view.
    pub(super) fn mark(known: Option<Record>, view: Position) -> Mark {
        Mark { life: known.map_or(FIRST_LIFE, |known| known.life), view }
    }

    /// Returns the record after a process has joined with this checkpoint. Checkpoints that are saved later
    /// will be newer.
    pub(super) fn brought(known: Option<Record>, checkpoint: Mark) -> Record {
        let life = known.map_or(FIRST_LIFE, |known| known.life).max(checkpoint.life + 1);
        Record { newest: known.map_or(checkpoint, |known| known.newest.max(checkpoint)), life }
    }

    /// Returns the record after a member has saved this checkpoint.
    pub(super) fn kept(known: Option<Record>, checkpoint: Mark) -> Record {
        let life = known.map_or(FIRST_LIFE, |known| known.life).max(checkpoint.life);
        Record { newest: known.map_or(checkpoint, |known| known.newest.max(checkpoint)), life }
    }
}

/// The records of a domain's groups, at routers.
pub(super) type Records = Shards<Record>;

/// Upper bound of the records that routers keep. A record takes less than 64 bytes, so all take 1 MiB. A
/// group without members also keeps its name, at less than 1 KiB.
pub(super) const RECORDS_MAX: usize = 16 << 10;

/// Stores a record. If there are too many, drops the record of the idle group whose newest checkpoint is the
/// oldest, and returns that group. Records of groups with members stay, because their next checkpoint depends
/// on them.
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
    fn the_newest_checkpoint_begins_unless_an_older_one_is_forced() {
        assert!(Record::admits(None, offers(None)) && Record::admits(None, offers(Some(mark(3, 9)))));
        let known = Some(Record::kept(None, mark(1, 20)));
        assert!(Record::admits(known, offers(Some(mark(1, 20)))));
        for stale in [None, Some(mark(1, 19)), Some(mark(0, 99))] {
            assert!(!Record::admits(known, offers(stale)), "{stale:?}");
            assert!(Record::admits(known, Offer { checkpoint: stale, forced: true }));
        }
        // The checkpoint belongs to a later life, although new routers count from smaller positions.
        assert!(Record::admits(known, offers(Some(mark(2, 3)))));
    }

    #[test]
    fn a_saved_checkpoint_is_newer_than_every_offered_one() {
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
