//! When a member tells others what it holds, and when it asks them: at once in a small view, by turns in a large one.
//!
//! Telling all at the end of every turn would cost more than the messages themselves where there are many. There a member tells all
//! when something needs it soon, and otherwise when its turn comes; and at once those who asked lately.

use std::collections::BTreeMap;

use crate::{id::ProcessId, time::Time};

/// A member's debts of receipts, and its questions.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    /// The counts held here have changed since all were told.
    due: bool,
    /// It is needed soon: all are told at the end of the turn.
    urgent: bool,
    /// The counts held here have changed since those who asked were told.
    due_to_askers: bool,
    /// Members that asked what is held here, and until when they are told of each change.
    askers: BTreeMap<ProcessId, Time>,
    /// Others are to be asked what they hold.
    asks: bool,
    /// Ticks of this member, and at which of them it asked for room.
    ticks: usize,
    asked_for_room: Option<usize>,
    /// How many soft messages it had let go when its turn was to tell all others.
    freed_at_turn: Option<u64>,
}

/// A member's view, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// This member's place, and how many there are.
    pub(super) rank: usize,
    pub(super) members: usize,
    /// More are too many for each to tell all others at the end of each turn.
    pub(super) at_once: usize,
}

impl Size {
    pub(super) fn is_large(self) -> bool {
        self.members > self.at_once
    }
}

/// The consequence of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tick {
    Nothing,
    /// Others are sent what they lack.
    PushOn,
}

impl Receipts {
    /// The counts held here have changed: others are to be told.
    pub(super) fn owe(&mut self) {
        (self.due, self.due_to_askers) = (true, true);
    }

    /// Whether all others have been told what is held here.
    pub(super) fn are_told(&self) -> bool {
        !self.due
    }

    /// Somebody waits for what is owed.
    pub(super) fn hurry(&mut self) {
        self.urgent = true;
    }

    /// A member asks, and is told of each change until then.
    pub(super) fn asked_by(&mut self, member: ProcessId, until: Time) {
        self.askers.insert(member, until);
        self.owe();
    }

    /// Others are asked what they hold.
    pub(super) fn ask(&mut self) {
        self.asks = true;
    }

    /// The own window is filling up, and cannot wait until each member has told by itself that it may be emptied. Asked for once a tick.
    pub(super) fn ask_for_room(&mut self) {
        if self.asked_for_room != Some(self.ticks) {
            (self.asks, self.asked_for_room) = (true, Some(self.ticks));
        }
    }

    /// The end of a turn: who is told what is held here, and whether they are asked as well. None: nobody.
    pub(super) fn settle(
        &mut self,
        now: Time,
        others: &[ProcessId],
        size: Size,
    ) -> Option<(Vec<ProcessId>, bool)> {
        let large = size.is_large();
        let all = self.asks || self.due && (self.urgent || !large);
        self.askers.retain(|id, until| *until > now && others.contains(id));
        let to: Vec<ProcessId> = match all {
            true => others.to_vec(),
            false if self.due_to_askers && large => self.askers.keys().copied().collect(),
            false => return None,
        };
        if all {
            (self.due, self.urgent) = (false, false);
        }
        self.due_to_askers = false;
        Some((to, std::mem::take(&mut self.asks)))
    }

    /// Time has passed. `held` bytes of soft messages are here, `freed` were let go in this view, and whether ordered ones or a flush
    /// wait for others.
    pub(super) fn tick(&mut self, size: Size, (held, freed): (usize, u64), waits_for_others: bool) -> Tick {
        let mut comes = Tick::Nothing;
        let waits = held > 0 || waits_for_others;
        if waits && !size.is_large() {
            (self.due, self.asks) = (true, true);
            comes = Tick::PushOn;
        } else if waits || self.due {
            // All would hear from all at every tick: members take turns, and ask only for what somebody waits for.
            let turns = size.members.div_ceil(size.at_once);
            self.urgent |= (self.ticks + size.rank).is_multiple_of(turns);
            if self.urgent {
                self.owe();
                comes = Tick::PushOn;
                // If none was let go since the last turn, those that are held may wait for a receipt that got lost. How many are held
                // says nothing: as many come as go where members send at a steady pace.
                let here = (held > 0).then_some(freed);
                self.asks |= here.is_some() && self.freed_at_turn == here;
                self.freed_at_turn = here;
            }
            self.asks |= waits_for_others;
        }
        self.ticks += 1;
        comes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Incarnation;

    fn process(node: u64) -> ProcessId {
        ProcessId { node, incarnation: Incarnation(0) }
    }

    const SMALL: Size = Size { rank: 0, members: 3, at_once: 8 };
    const LARGE: Size = Size { rank: 1, members: 32, at_once: 8 };

    #[test]
    fn in_a_small_view_all_are_told_at_the_end_of_a_turn() {
        let (mut receipts, others) = (Receipts::default(), [process(2), process(3)]);
        assert_eq!(receipts.settle(Time(1), &others, SMALL), None);
        receipts.owe();
        assert_eq!(receipts.settle(Time(1), &others, SMALL), Some((others.to_vec(), false)));
        assert!(receipts.are_told());
        assert_eq!(receipts.tick(SMALL, (10, 0), false), Tick::PushOn);
        assert_eq!(
            receipts.settle(Time(1), &others, SMALL),
            Some((others.to_vec(), true)),
            "what waits is asked for"
        );
    }

    #[test]
    fn in_a_large_view_members_take_turns() {
        let (mut receipts, others) = (Receipts::default(), [process(2), process(3)]);
        let mut told = Vec::new();
        for tick in 0..8 {
            receipts.owe();
            if receipts.tick(LARGE, (0, 0), false) == Tick::PushOn {
                told.push(tick);
                assert_eq!(receipts.settle(Time(1), &others, LARGE), Some((others.to_vec(), false)));
            }
        }
        assert_eq!(told, [3, 7], "every fourth tick is its own");
    }

    #[test]
    fn in_a_large_view_those_who_asked_are_told_until_their_time_is_over() {
        let (mut receipts, others) = (Receipts::default(), [process(2), process(3)]);
        receipts.asked_by(process(3), Time(10));
        assert_eq!(receipts.settle(Time(1), &others, LARGE), Some((vec![process(3)], false)));
        assert!(!receipts.are_told(), "the others are owed theirs");
        receipts.owe();
        assert_eq!(receipts.settle(Time(10), &others, LARGE), Some((Vec::new(), false)));
        receipts.owe();
        receipts.hurry();
        assert_eq!(receipts.settle(Time(11), &others, LARGE), Some((others.to_vec(), false)));
    }

    #[test]
    fn in_a_large_view_others_are_asked_if_nothing_was_let_go_for_a_turn() {
        let (mut receipts, others) = (Receipts::default(), [process(2), process(3)]);
        let turn = |receipts: &mut Receipts, held, freed| {
            let told = (0..4).filter_map(|_| {
                receipts.tick(LARGE, (held, freed), false);
                receipts.settle(Time(1), &others, LARGE)
            });
            let told: Vec<(Vec<ProcessId>, bool)> = told.collect();
            assert_eq!(told.len(), 1, "one of four ticks is its own");
            told[0].1
        };
        let steady = [10, 20, 30].map(|freed| turn(&mut receipts, 640, freed));
        assert_eq!(steady, [false; 3], "as many come as go");
        assert!(turn(&mut receipts, 640, 30));
    }

    #[test]
    fn room_is_asked_for_once_a_tick() {
        let (mut receipts, others) = (Receipts::default(), [process(2)]);
        let asked = |receipts: &mut Receipts| {
            receipts.ask_for_room();
            receipts.settle(Time(1), &others, LARGE).is_some_and(|(_, asks)| asks)
        };
        assert_eq!([asked(&mut receipts), asked(&mut receipts)], [true, false]);
        receipts.tick(LARGE, (0, 0), false);
        assert!(asked(&mut receipts));
    }
}
