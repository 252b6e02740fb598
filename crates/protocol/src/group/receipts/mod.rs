//! The moments at which a member tells others what it holds, and asks them: at once in a small view, up and down a tree in a large one.
//!
//! Telling all at the end of every turn would cost more than the messages themselves where there are many. There a member tells the one
//! above it in the tree what its whole branch holds, and the root tells down what all hold: at each tick while anything is held, and at
//! once where a safe message waits for it. Those who asked lately are told at once, and past the tree.

mod tree;

use std::collections::BTreeMap;

pub(super) use self::tree::Tree;
use crate::{ecast::Position, id::ProcessId, time::Time};

/// A member's debts of receipts, and its questions.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    /// The counts held here have changed since all were told.
    due: bool,
    /// It is needed soon: all are told at the end of the turn.
    urgent: bool,
    round: Round,
    /// The counts held here have changed since those who asked were told.
    due_to_askers: bool,
    /// Members that asked what is held here, and until when they are told of each change.
    askers: BTreeMap<ProcessId, Time>,
    /// Others are to be asked what they hold.
    asks: bool,
    /// Ticks of this member, and at which of them it asked for room.
    ticks: usize,
    asked_for_room: Option<usize>,
    /// The soft updates that it had let go when its turn came last.
    freed_at_turn: Option<u64>,
}

/// A member's part in the tree of a large view.
#[derive(Debug, Default)]
struct Round {
    /// A tick has passed: what the branch holds is to be told, news or not, since it may have been lost.
    due: bool,
    /// A safe message may wait for this.
    soon: Awaited,
    /// The members of the branch had the order up to here when that was told last.
    told: Vec<Position>,
    /// The order had been delivered here up to this position then.
    passed: Position,
    /// The sum of all, to be told to those below.
    down: Option<Sum>,
}

/// The holdings of the members of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    /// Of each stream, each of them at least.
    pub(super) counts: BTreeMap<ProcessId, u64>,
    /// Each has the order up to here; they stand as [`Tree::branch`] has them.
    pub(super) ordered: Vec<Position>,
}

/// News of a branch for which a safe message may wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Awaited {
    #[default]
    Nothing,
    /// All have more of the order.
    All,
    /// Any of them has.
    Some,
}

/// Ticks from one look at what got lost to the next, in a large view: those that a round takes, with one more.
const TICKS_OF_A_ROUND: usize = 4;

/// The things for which a member waits until others have told what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    Nothing,
    /// Ordered messages, some of which went on since the last tick.
    Moving,
    /// Ordered messages, none of which went on.
    Stuck,
    /// A flush.
    Flush,
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

    /// Says that all others have been told what is held here.
    pub(super) fn are_told(&self) -> bool {
        !self.due
    }

    /// More of the order is here, and a safe message may wait for that.
    pub(super) fn hurry(&mut self, awaited: Awaited) {
        self.round.soon = self.round.soon.max(awaited);
    }

    /// A branch below has told what it holds: the own branch may hold more now, for which a safe message may wait.
    pub(super) fn told_from_below(&mut self, awaited: Awaited) {
        self.due = true;
        self.hurry(awaited);
    }

    /// All hold this: those below are to be told.
    pub(super) fn pass_down(&mut self, sum: Sum) {
        self.round.down = Some(sum);
    }

    /// The sum that is to be passed down at the end of a turn.
    pub(super) fn passed_down(&mut self) -> Option<Sum> {
        self.round.down.take()
    }

    /// Says that the sum of the branch may be told at the end of this turn.
    pub(super) fn may_tell_branch(&self) -> bool {
        self.round.due || self.round.soon != Awaited::Nothing
    }

    /// The sum of the branch, if it is to be told at the end of this turn: up, or down by the root. `ordered` says how far the members of the
    /// branch have the order; `passed`, at the root alone, how far that was delivered here: what the root may deliver all may.
    pub(super) fn branch(
        &mut self,
        ordered: Vec<Position>,
        passed: Option<Position>,
        counts: impl FnOnce() -> BTreeMap<ProcessId, u64>,
    ) -> Option<Sum> {
        let Round { due, soon, told, passed: before, .. } = &mut self.round;
        let further = match (std::mem::take(soon), passed) {
            (Awaited::Nothing, _) => false,
            (_, Some(passed)) => passed > *before,
            (Awaited::All, None) => ordered.iter().min() > told.iter().min(),
            (Awaited::Some, None) => ordered != *told,
        };
        if !(*due || further) {
            return None;
        }
        (*due, *told, self.due) = (false, ordered.clone(), false);
        *before = passed.unwrap_or(*before);
        Some(Sum { counts: counts(), ordered })
    }

    /// A view begins, in which numbers begin anew.
    pub(super) fn begin(&mut self) {
        self.round = Round::default();
    }

    /// A member asks, and is told of each change until then.
    pub(super) fn asked_by(&mut self, member: ProcessId, until: Time) {
        self.askers.insert(member, until);
        self.owe();
    }

    /// Members that asked lately what is held here.
    pub(super) fn askers(&self) -> impl Iterator<Item = ProcessId> {
        self.askers.keys().copied()
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
        tree: Tree,
    ) -> Option<(Vec<ProcessId>, bool)> {
        let large = tree.is_large();
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

    /// Time has passed. `held` bytes of soft messages are here, `freed` were let go in this view. Something may wait for others, and this
    /// member may be apart from the one above it.
    pub(super) fn tick(
        &mut self,
        tree: Tree,
        (held, freed): (usize, u64),
        waits: Waits,
        is_apart: bool,
    ) -> Tick {
        let mut comes = Tick::Nothing;
        let any = held > 0 || waits != Waits::Nothing;
        if any && !tree.is_large() {
            (self.due, self.asks) = (true, true);
            comes = Tick::PushOn;
        } else if any || self.due {
            self.round.due = true;
            // All would hear from all at every tick: members take turns where they go past the tree, and ask only for what somebody waits
            // for.
            let turns = tree.members.div_ceil(tree.width).max(TICKS_OF_A_ROUND);
            if (self.ticks + tree.rank).is_multiple_of(turns) {
                comes = Tick::PushOn;
                if is_apart {
                    self.owe();
                    self.urgent = true;
                }
                // If none was let go since the last turn, those that are held may wait for a receipt that got lost. How many are held
                // says nothing: as many come as go where members send at a steady pace.
                let here = (held > 0).then_some(freed);
                self.asks |= here.is_some() && self.freed_at_turn == here;
                self.freed_at_turn = here;
                self.asks |= waits == Waits::Stuck;
            }
            self.asks |= waits == Waits::Flush;
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

    const SMALL: Tree = Tree { rank: 0, members: 3, width: 8 };
    const LARGE: Tree = Tree { rank: 1, members: 32, width: 8 };

    #[test]
    fn in_a_small_view_all_are_told_at_the_end_of_a_turn() {
        let (mut receipts, others) = (Receipts::default(), [process(2), process(3)]);
        assert_eq!(receipts.settle(Time(1), &others, SMALL), None);
        receipts.owe();
        assert_eq!(receipts.settle(Time(1), &others, SMALL), Some((others.to_vec(), false)));
        assert!(receipts.are_told());
        assert_eq!(receipts.tick(SMALL, (10, 0), Waits::Nothing, false), Tick::PushOn);
        assert_eq!(
            receipts.settle(Time(1), &others, SMALL),
            Some((others.to_vec(), true)),
            "what waits is asked for"
        );
    }

    /// A branch's word, if its members have the order up to here.
    fn branch(receipts: &mut Receipts, ordered: &[u64], passed: Option<u64>) -> Option<Vec<u64>> {
        let ordered = ordered.iter().copied().map(Position).collect();
        let sum = receipts.branch(ordered, passed.map(Position), BTreeMap::new)?;
        Some(sum.ordered.into_iter().map(|at| at.0).collect())
    }

    #[test]
    fn in_a_large_view_a_branch_tells_at_each_tick_while_anything_is_held() {
        let mut receipts = Receipts::default();
        assert_eq!(branch(&mut receipts, &[1], None), None);
        receipts.tick(LARGE, (0, 0), Waits::Nothing, false);
        assert_eq!(branch(&mut receipts, &[1], None), None, "nothing is held");
        receipts.owe();
        for held in [0, 10, 10] {
            receipts.tick(LARGE, (held, 0), Waits::Nothing, false);
            assert_eq!(branch(&mut receipts, &[1], None), Some(vec![1]), "it may have been lost");
            assert_eq!(branch(&mut receipts, &[2], None), None, "not before the next tick");
            assert!(receipts.are_told());
        }
    }

    #[test]
    fn a_branch_tells_at_once_what_a_safe_message_waits_for() {
        let mut receipts = Receipts::default();
        receipts.hurry(Awaited::All);
        assert_eq!(branch(&mut receipts, &[5, 6], None), Some(vec![5, 6]));
        receipts.hurry(Awaited::All);
        assert_eq!(branch(&mut receipts, &[5, 7], None), None, "all are no further");
        assert_eq!(branch(&mut receipts, &[6, 7], None), None, "nobody waits");
        receipts.hurry(Awaited::All);
        assert_eq!(branch(&mut receipts, &[7, 7], None), Some(vec![7, 7]));
        receipts.begin();
        receipts.hurry(Awaited::All);
        assert_eq!(branch(&mut receipts, &[7, 7], None), Some(vec![7, 7]), "a view begins");
    }

    #[test]
    fn a_branch_tells_of_each_member_where_some_are_enough() {
        let mut receipts = Receipts::default();
        receipts.told_from_below(Awaited::Some);
        receipts.told_from_below(Awaited::All);
        assert_eq!(branch(&mut receipts, &[5, 6], None), Some(vec![5, 6]));
        receipts.hurry(Awaited::Some);
        assert_eq!(branch(&mut receipts, &[5, 6], None), None, "it is no news");
        receipts.hurry(Awaited::Some);
        assert_eq!(branch(&mut receipts, &[5, 7], None), Some(vec![5, 7]));
    }

    #[test]
    fn the_root_tells_at_once_what_lets_it_deliver() {
        let mut receipts = Receipts::default();
        receipts.told_from_below(Awaited::Some);
        assert_eq!(branch(&mut receipts, &[5, 4], Some(0)), None, "these are not enough");
        receipts.told_from_below(Awaited::Some);
        assert_eq!(branch(&mut receipts, &[5, 5], Some(5)), Some(vec![5, 5]));
        assert_eq!(branch(&mut receipts, &[6, 6], Some(6)), None, "nobody waits");
    }

    #[test]
    fn who_is_apart_from_the_one_above_tells_all_in_its_turn() {
        let (mut receipts, others) = (Receipts::default(), [process(2), process(3)]);
        let mut told = Vec::new();
        for tick in 0..8 {
            receipts.owe();
            receipts.tick(LARGE, (0, 0), Waits::Nothing, true);
            if let Some((to, asks)) =
                receipts.settle(Time(1), &others, LARGE).filter(|(to, _)| !to.is_empty())
            {
                assert_eq!((to, asks), (others.to_vec(), false));
                told.push(tick);
            }
        }
        assert_eq!(told, [3, 7], "every fourth tick is its own");
    }

    #[test]
    fn a_flush_asks_at_each_tick_and_what_is_stuck_by_turns() {
        let (mut receipts, others) = (Receipts::default(), [process(2)]);
        let mut asks = |waits| {
            let asks = (0..4).map(|_| {
                receipts.tick(LARGE, (0, 0), waits, false);
                receipts.settle(Time(1), &others, LARGE).is_some_and(|(_, asks)| asks)
            });
            asks.collect::<Vec<_>>()
        };
        assert_eq!(asks(Waits::Moving), [false; 4]);
        assert_eq!(asks(Waits::Stuck), [false, false, false, true], "or all would ask all at once");
        assert_eq!(asks(Waits::Flush), [true; 4]);
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
        assert_eq!(receipts.settle(Time(11), &others, LARGE), Some((Vec::new(), false)));
    }

    #[test]
    fn in_a_large_view_others_are_asked_if_nothing_was_let_go_for_a_turn() {
        let (mut receipts, others) = (Receipts::default(), [process(2), process(3)]);
        let turn = |receipts: &mut Receipts, held, freed| {
            let told = (0..4).filter_map(|_| {
                receipts.tick(LARGE, (held, freed), Waits::Nothing, false);
                receipts.settle(Time(1), &others, LARGE)
            });
            told.map(|(_, asks)| asks).collect::<Vec<_>>()
        };
        let steady = [10, 20, 30].map(|freed| turn(&mut receipts, 640, freed));
        assert_eq!(steady, [const { Vec::<bool>::new() }; 3], "as many come as go");
        assert_eq!(turn(&mut receipts, 640, 30), [true]);
    }

    #[test]
    fn room_is_asked_for_once_a_tick() {
        let (mut receipts, others) = (Receipts::default(), [process(2)]);
        let asked = |receipts: &mut Receipts| {
            receipts.ask_for_room();
            receipts.settle(Time(1), &others, LARGE).is_some_and(|(_, asks)| asks)
        };
        assert_eq!([asked(&mut receipts), asked(&mut receipts)], [true, false]);
        receipts.tick(LARGE, (0, 0), Waits::Nothing, false);
        assert!(asked(&mut receipts));
    }
}
