//! Process groups, judged by the reports of members: views, deliveries, states.
//!
//! The checker keeps the deliveries of each process in the simplest form: the last message of each sender,
//! and a hash of the ordered messages in their order. When two processes begin the same view, their
//! deliveries in this form must be equal.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    ProcessId,
    ecast::Position,
    group::{Mark, Phi, Place, SeatId, View},
    wire::{decode_body, encode_body},
};
use quorate_world::Violation;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::locks::{Fences, GroupLocks, LockChange};
use crate::mutation::Mutation;

/// The deliveries of a member and of the members whose state it took over: the state of the replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct History {
    /// The number of each sender's last message.
    pub(crate) last: BTreeMap<ProcessId, u64>,
    /// The hash of the ordered messages.
    ordered: u64,
    /// The group's locks.
    locks: GroupLocks,
}

impl History {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        encode_body(&mut out, self);
        out.freeze()
    }
}

/// A message between members, with its sender and number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GroupMessage {
    pub(crate) sender: ProcessId,
    /// The number of the message, counted by the sender over all strengths.
    pub(crate) number: u64,
    /// The number of the sender's last message before it joined. A group that was empty in between does not
    /// know the messages up to this number.
    pub(crate) since: u64,
    /// The number of processes that must hold the message before any member delivers it, if the message is
    /// safe.
    pub(crate) safe: Option<Phi>,
    /// The change of a lock that the message carries.
    pub(crate) lock_change: Option<LockChange>,
    /// The place of the safe message that this message follows: nobody delivers this message before the safe
    /// one.
    pub(crate) follows: Position,
    /// Bytes without meaning.
    pub(crate) padding: String,
}

impl GroupMessage {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        encode_body(&mut out, self);
        out.freeze()
    }
}

/// The reports of one process about one group.
#[derive(Debug, Default)]
struct MemberRecord {
    history: History,
    view: Option<u64>,
    members: BTreeSet<ProcessId>,
    /// The last place in the order that the process delivered.
    at: (Position, u32),
    /// The place of the last safe message that the process delivered.
    safe_at: Position,
    /// Senders of which this process has the later messages, but not some earlier ones.
    gaps: BTreeSet<ProcessId>,
    /// Members of the view that lacked a safe message when this process delivered it although too few members
    /// held it. Such a delivery is right only if these members are suspected, so they must be in no later
    /// view.
    lacking: BTreeSet<ProcessId>,
    /// Members of the view that lacked a safe message of the present step when this process delivered it. If
    /// a view begins in this step, the deliveries were right: routers have the messages, and each survivor
    /// gets them before that view.
    lacking_this_step: BTreeSet<ProcessId>,
}

/// A member: its process, and its seat in that process.
type Seated = (ProcessId, SeatId);

/// The known facts about a view.
#[derive(Debug, Default)]
struct ViewRecord {
    members: Vec<Seated>,
    state: History,
    /// The next view of the survivors.
    next: Option<u64>,
    /// The last safe or flushed message of each sender in this view. The survivors have these messages.
    kept: BTreeMap<ProcessId, u64>,
}

/// The checker of views.
#[derive(Default)]
pub(crate) struct ViewCheck {
    records: BTreeMap<(ProcessId, u64), MemberRecord>,
    views: BTreeMap<(u64, u64), ViewRecord>,
    places: BTreeMap<(u64, Position, u32), GroupMessage>,
    /// The states of written checkpoints, by group.
    checkpoints: BTreeMap<(u64, Mark), History>,
    /// The checkpoints of each group that were confirmed to a user as kept.
    kept: BTreeMap<u64, BTreeSet<Mark>>,
    /// The checkpoint with which a member begins, until the member reports its view.
    started_from: BTreeMap<(ProcessId, u64), Option<Mark>>,
    /// Processes that were dropped, or received the failure of an operation.
    ended: BTreeSet<ProcessId>,
    /// Messages, by sender, group and number, that were not sent.
    unsent: BTreeSet<(ProcessId, u64, u64)>,
    /// Processes that are out of touch with the routers, each with the position up to which it had the order
    /// when it lost contact.
    out_of_touch: BTreeMap<ProcessId, Position>,
    /// The position up to which each process has the order.
    held: BTreeMap<ProcessId, Position>,
    fences: Fences,
    /// Number of grants through messages, and through views, summed over the members' reports.
    pub(crate) grants: (u64, u64),
    /// The rule that hosts of members break.
    mutation: Option<Mutation>,
}

fn judge(holds: bool, rule: &'static str, detail: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation::new(rule, detail())) }
}

/// Returns the number of members, out of `members`, that must hold a safe message.
fn wanted(phi: Phi, members: usize) -> usize {
    match phi {
        Phi::All => members,
        Phi::Majority => members / 2 + 1,
        Phi::Count(count) => usize::from(count).clamp(1, members),
    }
}

impl ViewCheck {
    pub(crate) fn new(mutation: Option<Mutation>) -> Self {
        ViewCheck { mutation, ..ViewCheck::default() }
    }

    /// Returns the deliveries of `me` in `group` while it is a member.
    pub(crate) fn history(&self, me: ProcessId, group: u64) -> Option<&History> {
        self.records.get(&(me, group)).filter(|record| record.view.is_some()).map(|record| &record.history)
    }

    /// Checks that `me` may report an event at this place in the order. Zero stands for an event without a
    /// place.
    ///
    /// A process that has lost contact with the routers delivers nothing. But while it joins, its host still
    /// receives the state, and step by step the events that the process delivered before the loss: those
    /// events waited for the host, as in an inbox. They have no places beyond the order that the process had
    /// when it lost contact.
    fn lives(&self, me: ProcessId, at: Position, joins: bool) -> Result<(), Violation> {
        judge(!self.ended.contains(&me), "nothing after the end", || {
            format!("process {me} reported an event after it had ended")
        })?;
        let stops = |lost_at: &Position| !joins || at > *lost_at;
        judge(!self.out_of_touch.get(&me).is_some_and(stops), "S11", || {
            format!("process {me} goes on although it has lost contact with the routers")
        })
    }

    /// Records that `me`, which joins, begins with a state, or without one.
    pub(crate) fn restored(
        &mut self,
        me: ProcessId,
        group: u64,
        state: Option<Bytes>,
    ) -> Result<(), Violation> {
        self.lives(me, Position(0), true)?;
        let history = match state {
            None => History::default(),
            Some(mut state) => {
                decode_body(&mut state).map_err(|error| Violation::new("state", error.to_string()))?
            }
        };
        self.records.insert((me, group), MemberRecord { history, ..MemberRecord::default() });
        Ok(())
    }

    /// Ends a step of a process, which has the order up to this position.
    pub(crate) fn stepped(&mut self, me: ProcessId, order: Position) {
        self.held.insert(me, order);
        for (_, record) in self.records.range_mut((me, 0)..=(me, u64::MAX)) {
            record.lacking.append(&mut record.lacking_this_step);
        }
    }

    /// Records that a member writes a checkpoint.
    pub(crate) fn written(&mut self, group: u64, mark: Mark, state: &History) -> Result<(), Violation> {
        let known = self.checkpoints.entry((group, mark)).or_insert_with(|| state.clone());
        judge(known == state, "checkpoints", || {
            format!("two members wrote different checkpoints of {mark}: {state:?} and {known:?}")
        })
    }

    /// Checks an answer that a save covers the given deliveries.
    pub(crate) fn covered(
        &self,
        group: u64,
        mark: Mark,
        delivered: &BTreeMap<ProcessId, u64>,
    ) -> Result<(), Violation> {
        let state = self.checkpoints.get(&(group, mark));
        let has = |sender| state.and_then(|state| state.last.get(sender)).copied().unwrap_or(0);
        let whole = delivered.iter().all(|(sender, number)| has(sender) >= *number);
        judge(whole, "checkpoints", || {
            format!(
                "the checkpoint of {mark} contains {state:?}, but the member that asked for the checkpoint \
                 had delivered {delivered:?}"
            )
        })
    }

    /// Records that a user received the confirmation that a checkpoint is kept.
    pub(crate) fn confirmed(&mut self, group: u64, mark: Mark) {
        self.kept.entry(group).or_default().insert(mark);
    }

    /// Records that `me` begins with its own checkpoint, or with nothing, because no process has the group's
    /// state.
    pub(crate) fn begins(&mut self, me: ProcessId, group: u64, own: Option<Mark>) {
        self.started_from.insert((me, group), own);
    }

    /// Checks the recorded beginning of `me`: no newer checkpoint may have been kept before the view. Later
    /// checkpoints do not count, because the process may have slept while other members continued and kept
    /// more.
    fn judge_begun(&mut self, me: ProcessId, group: u64, view: Position) -> Result<(), Violation> {
        let Some(own) = self.started_from.remove(&(me, group)) else { return Ok(()) };
        let kept = self.kept.get(&group).into_iter().flatten();
        let newest = kept.copied().filter(|kept| kept.view < view).max();
        judge(own >= newest, "checkpoints", || {
            format!(
                "process {me} begins view {view} from its checkpoint {own:?}, although the newer \
                 checkpoint {newest:?} was kept"
            )
        })
    }

    /// Records that `me` begins a view. `joins` is as in [`Self::delivered`].
    pub(crate) fn began(
        &mut self,
        me: ProcessId,
        group: u64,
        view: &View,
        (arrived, departed): (&[Seated], &[Seated]),
        missing: &BTreeMap<ProcessId, u64>,
        joins: bool,
    ) -> Result<(), Violation> {
        self.lives(me, view.number, joins)?;
        self.judge_begun(me, group, view.number)?;
        let number = view.number.0;
        let (members, places): (Vec<ProcessId>, Vec<_>) = (view.ids().collect(), view.places().collect());
        let record = self.records.get_mut(&(me, group));
        let record = record.ok_or_else(|| {
            Violation::new("state", format!("process {me} begins a view before it has a state"))
        })?;
        judge(members.contains(&me), "self-inclusion", || {
            format!("process {me} begins view {number}, but is no member of this view")
        })?;
        judge(record.view < Some(number), "views", || {
            format!("process {me} begins view {number} after view {:?}, which is not earlier", record.view)
        })?;
        for sender in std::mem::take(&mut record.gaps) {
            // A sender that left and joined again within one view is a new member, so it counts as a sender
            // that left.
            let has_left = !members.contains(&sender) || view.joined.contains(&sender);
            let told = missing.contains_key(&sender) && has_left;
            judge(told, "FIFO", || {
                format!(
                    "process {me} begins view {number}, but lacks messages of {sender} that were sent \
                     before this view"
                )
            })?;
        }
        let before = record.view.replace(number);
        record.members = members.iter().copied().collect();
        record.lacking_this_step.clear();
        for lacks in std::mem::take(&mut record.lacking) {
            judge(!members.contains(&lacks) || view.joined.contains(&lacks), "S10", || {
                format!(
                    "process {me} delivered a safe message before view {number}, but member {lacks} did \
                     not hold this message"
                )
            })?;
        }
        for (lock, grant) in record.history.locks.view(view, self.mutation)? {
            self.grants.1 += 1;
            self.fences.granted((group, lock), (view.number, 0), &grant)?;
        }
        let known = self.views.entry((group, number)).or_insert_with(|| ViewRecord {
            members: places.clone(),
            state: record.history.clone(),
            ..ViewRecord::default()
        });
        judge(known.members == places, "views", || {
            format!(
                "process {me} has the members {places:?} in view {number}, and other processes have {:?}",
                known.members
            )
        })?;
        judge(known.state == record.history, "virtual synchrony", || {
            format!(
                "process {me} begins view {number} with the state {:?}, and other members begin with {:?}",
                record.history, known.state
            )
        })?;
        let Some(before) = before else { return Ok(()) };
        let known = self.views.get_mut(&(group, before)).expect("the process has begun the view");
        let was: BTreeSet<_> = known.members.iter().copied().collect();
        let (is, arrived): (BTreeSet<_>, BTreeSet<_>) =
            (places.into_iter().collect(), arrived.iter().copied().collect());
        let departed: BTreeSet<_> = departed.iter().copied().collect();
        judge(&is - &was == arrived && &was - &is == departed, "views", || {
            format!(
                "process {me} goes from the members {was:?} to {is:?}, but reports that {arrived:?} \
                 arrived and {departed:?} departed"
            )
        })?;
        let next = *known.next.get_or_insert(number);
        judge(next == number, "views", || {
            format!(
                "process {me} goes from view {before} to view {number}, but another member went to view {next}"
            )
        })?;
        self.keeps(group, before)
    }

    /// Checks that the next view's state contains every message that was kept in this view.
    fn keeps(&self, group: u64, view: u64) -> Result<(), Violation> {
        let known = &self.views[&(group, view)];
        let Some(next) = known.next.and_then(|next| self.views.get(&(group, next))) else { return Ok(()) };
        for (sender, number) in &known.kept {
            let has = next.state.last.get(sender).copied().unwrap_or(0);
            judge(has >= *number, "safe is never lost", || {
                format!(
                    "message {number} of {sender} was safe or flushed in view {view}, but the members of \
                     the next view have only the messages up to {has}"
                )
            })?;
        }
        Ok(())
    }

    /// Records a delivery of `me`. While `me` joins (`joins`), the protocol has already delivered the
    /// messages behind the state, and the host receives them step by step.
    pub(crate) fn delivered(
        &mut self,
        me: ProcessId,
        group: u64,
        (sender, place): (ProcessId, Place),
        mut body: Bytes,
        joins: bool,
    ) -> Result<GroupMessage, Violation> {
        let at = if let Place::Ordered(at, _) = place { at } else { Position(0) };
        self.lives(me, at, joins)?;
        let word: GroupMessage =
            decode_body(&mut body).map_err(|error| Violation::new("integrity", error.to_string()))?;
        let record = self.records.entry((me, group)).or_default();
        let what = || format!("process {me} delivered {word:?} at {place:?} in view {:?}", record.view);
        judge(word.sender == sender, "integrity", what)?;
        judge(record.members.contains(&sender), "firewall", what)?;
        let reached = record.at.0.max(Position(record.view.unwrap_or(0)));
        let follows = matches!(place, Place::Ordered(..)) || reached >= word.follows;
        judge(follows, "following", || {
            format!(
                "{}, before it had reached the place that this message follows; it has reached {reached}",
                what()
            )
        })?;
        // A checkpoint may lack some messages that the sender sent before it left.
        let last = record.history.last.get(&sender).copied().unwrap_or(0).max(word.since);
        judge(word.number > last, "FIFO", || format!("{} after message {last} of the same sender", what()))?;
        let is_back = |number| self.unsent.contains(&(sender, group, number));
        judge(!is_back(word.number), "one outcome", || {
            format!("{}, but the sender of this message was told that it was not sent", what())
        })?;
        if (last + 1..word.number).any(|number| !is_back(number)) {
            record.gaps.insert(sender);
        }
        if let Place::Ordered(at, index) = place {
            judge((at, index) > record.at, "order", || {
                format!("{} after the later place {:?}", what(), record.at)
            })?;
            let first = self.places.entry((group, at, index)).or_insert_with(|| word.clone());
            judge(*first == word, "order", || {
                format!("{}, where another member delivered {first:?}", what())
            })?;
            record.at = (at, index);
            if let Some(phi) = word.safe {
                record.safe_at = at;
                let has = |member: &ProcessId| *member == me || self.held.get(member) >= Some(&at);
                let (holders, others): (Vec<ProcessId>, Vec<ProcessId>) =
                    record.members.iter().copied().partition(has);
                if !joins && holders.len() < wanted(phi, record.members.len()) {
                    record.lacking_this_step.extend(others);
                }
            }
            if let Some(lock_change) = word.lock_change {
                for (lock, grant) in
                    record.history.locks.take((at, index), sender, lock_change, self.mutation)?
                {
                    self.grants.0 += 1;
                    self.fences.granted((group, lock), (at, index), &grant)?;
                }
            }
            let mut bytes = word.encode().to_vec();
            bytes.extend_from_slice(&record.history.ordered.to_le_bytes());
            record.history.ordered = xxh3_64(&bytes);
        }
        record.history.last.insert(sender, word.number);
        let view = record.view;
        if word.safe.is_some() {
            self.keep(group, view, [(sender, word.number)])?;
        }
        Ok(word)
    }

    /// Records that these messages were safe, or flushed, in a view.
    pub(crate) fn keep(
        &mut self,
        group: u64,
        view: Option<u64>,
        words: impl IntoIterator<Item = (ProcessId, u64)>,
    ) -> Result<(), Violation> {
        let Some(view) = view else { return Ok(()) };
        let known = self.views.get_mut(&(group, view)).expect("the process has begun the view");
        for (sender, number) in words {
            let kept = known.kept.entry(sender).or_default();
            *kept = (*kept).max(number);
        }
        self.keeps(group, view)
    }

    /// Returns the place of the last safe message that `me` delivered since it joined.
    pub(crate) fn safe_at(&self, me: ProcessId, group: u64) -> Position {
        self.records.get(&(me, group)).map(|record| record.safe_at).unwrap_or_default()
    }

    /// Returns the view of `me`.
    pub(crate) fn view(&self, me: ProcessId, group: u64) -> Option<u64> {
        self.records.get(&(me, group))?.view
    }

    /// Records that `me` is out of a group.
    pub(crate) fn left(&mut self, me: ProcessId, group: u64) {
        self.records.remove(&(me, group));
    }

    /// Records that `me` was notified that this message to a group was not sent.
    pub(crate) fn unsent(&mut self, me: ProcessId, group: u64, number: u64) {
        self.unsent.insert((me, group, number));
    }

    /// Records that `me` reports nothing from now on.
    pub(crate) fn ended(&mut self, me: ProcessId) {
        self.ended.insert(me);
    }

    /// Notes whether `me` is in touch with the order.
    pub(crate) fn touched(&mut self, me: ProcessId, in_touch: bool) {
        if in_touch {
            self.out_of_touch.remove(&me);
        } else {
            let held = self.held.get(&me).copied().unwrap_or_default();
            self.out_of_touch.insert(me, held);
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_protocol::Incarnation;

    use super::*;

    #[test]
    fn a_joiner_out_of_touch_receives_only_what_it_delivered_before() {
        let (me, soft) = (ProcessId { node: 1, incarnation: Incarnation(1) }, Position(0));
        let mut check = ViewCheck::new(None);
        check.stepped(me, Position(7));
        check.touched(me, false);
        assert!(check.lives(me, soft, true).is_ok() && check.lives(me, Position(7), true).is_ok());
        assert!(check.lives(me, Position(8), true).is_err(), "it has not had this position");
        assert!(check.lives(me, soft, false).is_err(), "it has joined");
        check.touched(me, true);
        assert!(check.lives(me, Position(8), false).is_ok());
        check.ended(me);
        assert!(check.lives(me, soft, true).is_err(), "it has ended");
    }
}
