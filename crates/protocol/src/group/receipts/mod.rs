//! The schedule of receipts: at once in a small view, up and down a tree in a large view.
//!
//! In a large view, receipts to all members at the end of every turn would cost more than the messages
//! themselves. In such a view a member sends the receipt of its whole branch to the member above it in the
//! tree, and the root sends the receipt of all members down. Both do so at each tick while anything is held,
//! and at once if a safe message waits for the receipt. Members that asked recently get receipts directly and
//! at once, not through the tree.

mod tree;

use std::collections::BTreeMap;

pub(super) use self::tree::Tree;
use crate::{ecast::Position, id::ProcessId, time::Time};

/// The receipts that a member has to send, and its requests for receipts.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    /// Whether this member's counts, or the counts of its branch, have changed since the last receipt to all
    /// other members or the last receipt of the branch.
    due: bool,
    /// Whether all members get a receipt at the end of the turn.
    urgent: bool,
    round: BranchReceipts,
    /// Whether this member's counts have changed since the members in `askers` got a receipt.
    due_to_askers: bool,
    /// Members that asked for receipts, each with the time until which it gets a receipt of every change.
    askers: BTreeMap<ProcessId, Time>,
    /// Whether to request receipts from the other members.
    asks: bool,
    /// Number of ticks of this member.
    ticks: usize,
    /// The tick at which this member last requested receipts because its window was filling up.
    asked_for_room: Option<usize>,
    /// Number of soft updates that were freed when it was last this member's turn to ask all other members.
    freed_at_turn: Option<u64>,
}

/// A member's part in the tree of a large view.
#[derive(Debug, Default)]
struct BranchReceipts {
    /// Whether a tick has passed since the last receipt of the branch. The branch sends a receipt at each
    /// tick even without news, because the last receipt may be lost.
    due: bool,
    /// The progress that the branch's next receipt will report, if a safe message may wait for that progress.
    soon: SafeNews,
    /// The positions of the branch's members, as the last receipt named them.
    reported: Vec<Position>,
    /// The position of this member's last delivery when it sent the last receipt of the branch.
    passed: Position,
    /// The receipt of all members, which has to go to the members below in the tree.
    down: Option<Sum>,
}

/// A receipt for a branch of the tree: the messages that its members hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    /// For each stream, the number up to which all members of the branch hold it.
    pub(super) counts: BTreeMap<ProcessId, u64>,
    /// For each member, in the order of [`Tree::branch`], the position up to which it has the order.
    pub(super) ordered: Vec<Position>,
}

/// The progress that a branch's next receipt reports, if a safe message may wait for that progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SafeNews {
    #[default]
    Nothing,
    /// Every member of the branch holds more of the order than before.
    All,
    /// At least one member of the branch holds more of the order than before.
    Some,
}

/// Number of ticks between two checks for lost messages in a large view: the ticks that a round of receipts
/// takes, plus one.
const TICKS_OF_A_ROUND: usize = 4;

/// The reason for which a member waits for receipts of other members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitReason {
    Nothing,
    /// The member waits for ordered messages, and has delivered some since the last tick.
    Moving,
    /// The member waits for ordered messages, and has delivered none since the last tick.
    Stuck,
    /// The member waits for the end of a flush.
    Flush,
}

/// The action that follows a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tick {
    Nothing,
    /// The member sends other members the messages that they lack.
    PushOn,
}

impl Receipts {
    /// Notes that this member's counts have changed, so that receipts are due.
    pub(super) fn owe(&mut self) {
        (self.due, self.due_to_askers) = (true, true);
    }

    /// Whether a receipt with this member's present counts has left: to all other members, or as part of the
    /// receipt of its branch.
    pub(super) fn are_sent(&self) -> bool {
        !self.due
    }

    /// Notes that more of the order is here, and that a safe message may wait for this news.
    pub(super) fn hurry(&mut self, awaited: SafeNews) {
        self.round.soon = self.round.soon.max(awaited);
    }

    /// Notes a receipt from a member below: this member's branch may hold more now, so its receipt is due. A
    /// safe message may wait for that receipt.
    pub(super) fn note_receipt_from_below(&mut self, awaited: SafeNews) {
        self.due = true;
        self.hurry(awaited);
    }

    /// Queues `sum`, which all members hold, for the members below in the tree.
    pub(super) fn pass_down(&mut self, sum: Sum) {
        self.round.down = Some(sum);
    }

    /// Takes the receipt of all members that is sent down the tree at the end of a turn.
    pub(super) fn passed_down(&mut self) -> Option<Sum> {
        self.round.down.take()
    }

    /// Whether the receipt of the branch may be sent at the end of this turn.
    pub(super) fn may_send_branch(&self) -> bool {
        self.round.due || self.round.soon != SafeNews::Nothing
    }

    /// Returns the receipt of the branch, if it has to be sent at the end of this turn. The receipt goes up
    /// the tree, or down if this member is the root. `ordered` has, for each member of the branch, the
    /// position up to which it has the order. `passed` is the position of the root's last delivery, and
    /// `None` at all other members. All members may deliver what the root has delivered, so a later delivery
    /// at the root is news for them.
    pub(super) fn branch(
        &mut self,
        ordered: Vec<Position>,
        passed: Option<Position>,
        counts: impl FnOnce() -> BTreeMap<ProcessId, u64>,
    ) -> Option<Sum> {
        let BranchReceipts { due, soon, reported, passed: before, .. } = &mut self.round;
        let further = match (std::mem::take(soon), passed) {
            (SafeNews::Nothing, _) => false,
            (_, Some(passed)) => passed > *before,
            (SafeNews::All, None) => ordered.iter().min() > reported.iter().min(),
            (SafeNews::Some, None) => ordered != *reported,
        };
        if !(*due || further) {
            return None;
        }
        (*due, *reported, self.due) = (false, ordered.clone(), false);
        *before = passed.unwrap_or(*before);
        Some(Sum { counts: counts(), ordered })
    }

    /// Begins a view. Message numbers start again in a new view.
    pub(super) fn begin(&mut self) {
        self.round = BranchReceipts::default();
    }

    /// Notes that a member asked for receipts. That member gets a receipt of each change until `until`.
    pub(super) fn asked_by(&mut self, member: ProcessId, until: Time) {
        self.askers.insert(member, until);
        self.owe();
    }

    /// Returns the members that recently asked for receipts.
    pub(super) fn askers(&self) -> impl Iterator<Item = ProcessId> {
        self.askers.keys().copied()
    }

    /// Requests receipts from all other members at the end of the turn.
    pub(super) fn ask(&mut self) {
        self.asks = true;
    }

    /// Requests receipts from all other members, because this member's window is filling up and cannot wait
    /// for the tree. Does so at most once a tick.
    pub(super) fn ask_for_room(&mut self) {
        if self.asked_for_room != Some(self.ticks) {
            (self.asks, self.asked_for_room) = (true, Some(self.ticks));
        }
    }

    /// Ends a turn. Returns the receivers of this member's receipt, and whether to request their receipts in
    /// return. Returns `None` if no member gets a receipt.
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

    /// Handles a tick. `held` is the size of held soft messages in bytes, and `freed` the number of updates
    /// freed in this view. `waits` is the reason to wait for other members, and `is_apart` whether the link
    /// to the member above is missing.
    pub(super) fn tick(
        &mut self,
        tree: Tree,
        (held, freed): (usize, u64),
        waits: WaitReason,
        is_apart: bool,
    ) -> Tick {
        let mut comes = Tick::Nothing;
        let any = held > 0 || waits != WaitReason::Nothing;
        if any && !tree.is_large() {
            (self.due, self.asks) = (true, true);
            comes = Tick::PushOn;
        } else if any || self.due {
            self.round.due = true;
            // If all members asked at every tick, each member would get receipts from all other members. So
            // members take turns to ask all other members directly instead of through the tree. Only a member
            // that waits for the end of a flush asks at every tick.
            let turns = tree.members.div_ceil(tree.width).max(TICKS_OF_A_ROUND);
            if (self.ticks + tree.rank).is_multiple_of(turns) {
                comes = Tick::PushOn;
                if is_apart {
                    self.owe();
                    self.urgent = true;
                }
                // If nothing was freed since this member's last turn, the held messages may wait for a lost
                // receipt. The number of held messages is no evidence, because it stays equal when members
                // send at a steady pace.
                let here = (held > 0).then_some(freed);
                self.asks |= here.is_some() && self.freed_at_turn == here;
                self.freed_at_turn = here;
                self.asks |= waits == WaitReason::Stuck;
            }
            self.asks |= waits == WaitReason::Flush;
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
    fn in_a_small_view_receipts_go_to_all_members_at_the_end_of_a_turn() {
        let (mut receipts, others) = (Receipts::default(), [process(2), process(3)]);
        assert_eq!(receipts.settle(Time(1), &others, SMALL), None);
        receipts.owe();
        assert_eq!(receipts.settle(Time(1), &others, SMALL), Some((others.to_vec(), false)));
        assert!(receipts.are_sent());
        assert_eq!(receipts.tick(SMALL, (10, 0), WaitReason::Nothing, false), Tick::PushOn);
        assert_eq!(
            receipts.settle(Time(1), &others, SMALL),
            Some((others.to_vec(), true)),
            "what waits is asked for"
        );
    }

    /// Returns the receipt of a branch whose members have the order up to these positions.
    fn branch(receipts: &mut Receipts, ordered: &[u64], passed: Option<u64>) -> Option<Vec<u64>> {
        let ordered = ordered.iter().copied().map(Position).collect();
        let sum = receipts.branch(ordered, passed.map(Position), BTreeMap::new)?;
        Some(sum.ordered.into_iter().map(|at| at.0).collect())
    }

    #[test]
    fn in_a_large_view_a_branch_sends_its_receipt_at_each_tick_while_it_holds_messages() {
        let mut receipts = Receipts::default();
        assert_eq!(branch(&mut receipts, &[1], None), None);
        receipts.tick(LARGE, (0, 0), WaitReason::Nothing, false);
        assert_eq!(branch(&mut receipts, &[1], None), None, "nothing is held");
        receipts.owe();
        for held in [0, 10, 10] {
            receipts.tick(LARGE, (held, 0), WaitReason::Nothing, false);
            assert_eq!(branch(&mut receipts, &[1], None), Some(vec![1]), "it may have been lost");
            assert_eq!(branch(&mut receipts, &[2], None), None, "not before the next tick");
            assert!(receipts.are_sent());
        }
    }

    #[test]
    fn a_branch_sends_news_for_a_waiting_safe_message_at_once() {
        let mut receipts = Receipts::default();
        receipts.hurry(SafeNews::All);
        assert_eq!(branch(&mut receipts, &[5, 6], None), Some(vec![5, 6]));
        receipts.hurry(SafeNews::All);
        assert_eq!(branch(&mut receipts, &[5, 7], None), None, "all are no further");
        assert_eq!(branch(&mut receipts, &[6, 7], None), None, "nobody waits");
        receipts.hurry(SafeNews::All);
        assert_eq!(branch(&mut receipts, &[7, 7], None), Some(vec![7, 7]));
        receipts.begin();
        receipts.hurry(SafeNews::All);
        assert_eq!(branch(&mut receipts, &[7, 7], None), Some(vec![7, 7]), "a view begins");
    }

    #[test]
    fn a_branch_reports_each_member_where_some_members_suffice() {
        let mut receipts = Receipts::default();
        receipts.note_receipt_from_below(SafeNews::Some);
        receipts.note_receipt_from_below(SafeNews::All);
        assert_eq!(branch(&mut receipts, &[5, 6], None), Some(vec![5, 6]));
        receipts.hurry(SafeNews::Some);
        assert_eq!(branch(&mut receipts, &[5, 6], None), None, "it is no news");
        receipts.hurry(SafeNews::Some);
        assert_eq!(branch(&mut receipts, &[5, 7], None), Some(vec![5, 7]));
    }

    #[test]
    fn the_root_sends_news_that_allows_its_delivery_at_once() {
        let mut receipts = Receipts::default();
        receipts.note_receipt_from_below(SafeNews::Some);
        assert_eq!(branch(&mut receipts, &[5, 4], Some(0)), None, "these are not enough");
        receipts.note_receipt_from_below(SafeNews::Some);
        assert_eq!(branch(&mut receipts, &[5, 5], Some(5)), Some(vec![5, 5]));
        assert_eq!(branch(&mut receipts, &[6, 6], Some(6)), None, "nobody waits");
    }

    #[test]
    fn a_member_cut_off_from_its_parent_sends_to_all_members_in_its_turn() {
        let (mut receipts, others) = (Receipts::default(), [process(2), process(3)]);
        let mut ticks = Vec::new();
        for tick in 0..8 {
            receipts.owe();
            receipts.tick(LARGE, (0, 0), WaitReason::Nothing, true);
            if let Some((to, asks)) =
                receipts.settle(Time(1), &others, LARGE).filter(|(to, _)| !to.is_empty())
            {
                assert_eq!((to, asks), (others.to_vec(), false));
                ticks.push(tick);
            }
        }
        assert_eq!(ticks, [3, 7], "every fourth tick is its own");
    }

    #[test]
    fn a_flush_requests_receipts_at_each_tick_and_stuck_messages_by_turns() {
        let (mut receipts, others) = (Receipts::default(), [process(2)]);
        let mut asks = |waits| {
            let asks = (0..4).map(|_| {
                receipts.tick(LARGE, (0, 0), waits, false);
                receipts.settle(Time(1), &others, LARGE).is_some_and(|(_, asks)| asks)
            });
            asks.collect::<Vec<_>>()
        };
        assert_eq!(asks(WaitReason::Moving), [false; 4]);
        assert_eq!(asks(WaitReason::Stuck), [false, false, false, true], "or all would ask all at once");
        assert_eq!(asks(WaitReason::Flush), [true; 4]);
    }

    #[test]
    fn in_a_large_view_requests_for_receipts_are_answered_until_they_expire() {
        let (mut receipts, others) = (Receipts::default(), [process(2), process(3)]);
        receipts.asked_by(process(3), Time(10));
        assert_eq!(receipts.settle(Time(1), &others, LARGE), Some((vec![process(3)], false)));
        assert!(!receipts.are_sent(), "the others are owed theirs");
        receipts.owe();
        assert_eq!(receipts.settle(Time(10), &others, LARGE), Some((Vec::new(), false)));
        receipts.owe();
        assert_eq!(receipts.settle(Time(11), &others, LARGE), Some((Vec::new(), false)));
    }

    #[test]
    fn in_a_large_view_receipts_are_requested_after_a_turn_without_progress() {
        let (mut receipts, others) = (Receipts::default(), [process(2), process(3)]);
        let turn = |receipts: &mut Receipts, held, freed| {
            let sent = (0..4).filter_map(|_| {
                receipts.tick(LARGE, (held, freed), WaitReason::Nothing, false);
                receipts.settle(Time(1), &others, LARGE)
            });
            sent.map(|(_, asks)| asks).collect::<Vec<_>>()
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
        receipts.tick(LARGE, (0, 0), WaitReason::Nothing, false);
        assert!(asked(&mut receipts));
    }
}
