//! One operation at its coordinator: the owners that it asked, their answers, and the decision.

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    clock::Skewed,
    entry::{Digest, Entry},
    id::{CellNumber, MapId, Site},
    layout::Layout,
    message::{Answer, Demand, Message, ReplicaRefusal, Request, Round},
    operation::{OperationOutcome, Rejection},
    owner::{Owners, Share},
    stamp::Stamp,
    tallies::OwnTallies,
};
use crate::{
    strength::Level,
    time::{Duration, Time},
};

/// The content of a write, without its stamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Draft {
    /// A write of the whole key: a string, or a delete without a value.
    Whole { value: Option<Bytes>, expires: Option<u64> },
    /// Writes of some fields.
    Fields(Vec<(Bytes, Option<Bytes>)>),
    /// The number to add to a counter.
    Add(i64),
}

impl Draft {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Draft::Whole { value, .. } => value.as_ref().map_or(0, Bytes::len),
            Draft::Fields(fields) => {
                let field = |(name, value): &(Bytes, Option<Bytes>)| {
                    name.len() + value.as_ref().map_or(0, Bytes::len)
                };
                fields.iter().map(field).sum()
            }
            Draft::Add(_) => 0,
        }
    }

    fn stamped(&self, stamp: Stamp) -> Entry {
        match self {
            Draft::Whole { value, expires } => Entry::whole(stamp, value.clone(), *expires),
            Draft::Fields(fields) => Entry::of_fields(stamp, fields.iter().cloned()),
            Draft::Add(_) => unreachable!("an increment is written as a tally"),
        }
    }
}

/// A replica's answer to a read.
#[derive(Debug)]
pub(super) struct ReadReply {
    index: usize,
    content: ReplyContent,
}

#[derive(Debug)]
enum ReplyContent {
    Entry(Entry),
    Digest(Digest),
}

impl ReadReply {
    fn entry(&self) -> Option<&Entry> {
        if let ReplyContent::Entry(entry) = &self.content { Some(entry) } else { None }
    }

    /// Whether the replica's entry equals `entry`.
    fn is_of(&self, entry: &Entry) -> bool {
        match &self.content {
            ReplyContent::Entry(own) => own == entry,
            ReplyContent::Digest(digest) => *digest == entry.digest(),
        }
    }
}

/// The progress of an operation.
#[derive(Debug)]
pub(super) enum OperationStage {
    /// A write asks a quorum for the highest stamp. The owners in `answered` have answered.
    Asking { answered: Share, newest: Stamp },
    /// A write is sent to all owners.
    Writing {
        stamp: Stamp,
        entry: Entry,
        /// The owners that hold the entry or a newer entry.
        held: Share,
        /// The highest stamp above `stamp` that the owners hold. Zero if there is none.
        newer: Stamp,
        /// Whether newer stamps no longer matter: the stamp is above all writes that ended before this write
        /// began.
        last: bool,
        /// Whether the user has its answer.
        answered: bool,
    },
    /// A read collects copies.
    Reading {
        copies: SmallVec<[ReadReply; 2]>,
        /// The owners that were asked for their entries rather than for digests.
        whole: Share,
        /// Whether every owner is asked, and outdated owners are brought up to date.
        repairs_all: bool,
        /// Whether the user has its answer.
        answered: bool,
    },
    /// A read brings a quorum up to date before it answers.
    Returning {
        entry: Entry,
        held: Share,
        /// The owners whose entries are merged into `entry`.
        seen: Share,
    },
}

/// The next step of an operation.
#[derive(Debug)]
pub(super) enum OperationStep {
    /// Sends requests to these owners, and waits.
    Wait(Share),
    /// Begins a new round, with requests to these owners.
    Round(Share),
    /// Reports the outcome to the user, and ends.
    End(OperationOutcome),
    /// Reports the outcome to the user, and waits for the other replicas that were asked.
    Linger(OperationOutcome),
    /// Reports the outcome to the user, unless it was reported before. Sends the entry to these outdated
    /// owners, and ends.
    Sweep(Option<OperationOutcome>, Entry, Share),
    /// Reports the outcome of a write to the user, unless it was reported before, keeps hints, and ends.
    Hint {
        /// The outcome, if it was not reported before.
        outcome: Option<OperationOutcome>,
        /// The write.
        entry: Entry,
        /// The owners for which hints of the write are kept.
        lacking: Share,
        /// The owners that have no room for the write. A hint would wait for that room in vain.
        no_room: Share,
    },
}

/// The facts about the coordinator's cell that an operation needs.
pub(super) struct OperationContext<'a> {
    pub(super) site: Site,
    pub(super) now: Time,
    pub(super) wall: u64,
    /// The owners that can be asked now.
    pub(super) reachable: Share,
    /// The owners that are not arriving. No other owner counts for a level.
    pub(super) settled: Share,
    /// Issues a stamp above the given stamp.
    pub(super) issue: &'a mut dyn FnMut(Stamp) -> Result<Stamp, Skewed>,
    /// The coordinator's cell.
    pub(super) me: CellNumber,
    /// The time up to which this cell has announced that its own writes have ended, in nanoseconds.
    pub(super) through: u64,
    pub(super) memory: &'a mut OwnTallies,
}

/// An increment that has read its key.
#[derive(Debug)]
pub(super) struct PendingIncrement {
    /// The entry that was read.
    pub(super) found: Entry,
    /// The count with this increment.
    pub(super) count: i64,
    /// The tally that this increment writes, without the other parts of the entry.
    pub(super) own: Entry,
    /// The time of the oldest write that some owner may still lack, in nanoseconds: the stamp of this
    /// increment if a replica is known to have the tally, and otherwise the tally's beginning. Horizons stay
    /// below this time.
    pub(super) oldest: u64,
}

/// An operation that has not ended.
#[derive(Debug)]
pub(super) struct RunningOperation {
    /// The id that the user gave the operation.
    pub(super) id: u64,
    pub(super) map: MapId,
    pub(super) key: Bytes,
    pub(super) level: Level,
    pub(super) fallback: Option<Level>,
    /// Whether the map has blocking repair: reads leave their answer at a quorum, and writes first ask for
    /// the highest stamp.
    pub(super) blocking: bool,
    /// The artificial delay before the outcome of a finished write.
    pub(super) delay: Duration,
    /// The content of a write. `None` for a read.
    pub(super) draft: Option<Draft>,
    /// The time up to which all owners had all writes when the operation began, in nanoseconds
    /// ([`Horizons::past`](super::horizon::Horizons::past)).
    pub(super) past: u64,
    /// The state of an increment that has read its key.
    pub(super) adding: Option<Box<PendingIncrement>>,
    pub(super) owners: Owners,
    /// Indexes of the owners, in the order in which to ask them.
    pub(super) preferred: SmallVec<[usize; 6]>,
    pub(super) deadline: Time,
    /// The pause that came before the last check of the operation's progress.
    pub(super) pause: Duration,
    /// The time of the next check of the operation's progress.
    pub(super) timer: Time,
    /// The memory that the operation counts for, in bytes: its own, and the entries that it holds or has
    /// asked for.
    pub(super) bytes: usize,
    /// The largest entry that an owner sends at the first attempt, in bytes.
    pub(super) read_bytes: u32,
    /// Owners whose entries are larger than `read_bytes`, with the size in bytes.
    pub(super) large: SmallVec<[(usize, u32); 1]>,
    /// The owners to which this round's request was sent over a link that has not broken since.
    pub(super) sent: Share,
    /// Whether a link broke after a request of this round was sent. The owner may have executed the request
    /// although no answer came.
    pub(super) repeated: bool,
    /// The owners that refused.
    pub(super) refused: Share,
    /// The latest reason of a refusal.
    pub(super) reason: Option<ReplicaRefusal>,
    pub(super) stage: OperationStage,
}

impl RunningOperation {
    /// Returns the first step of a write, and sets its stage.
    pub(super) fn begin_write(&mut self, context: &mut OperationContext<'_>) -> OperationStep {
        if self.asks_first() {
            self.stage = OperationStage::Asking { answered: Share::NONE, newest: Stamp::ZERO };
            let candidates = context.reachable.and(context.settled);
            let asked = Level::Quorum.choose(&self.owners, candidates, &self.preferred, context.site);
            return OperationStep::Wait(asked.expect("the level was found available, and includes a quorum"));
        }
        match self.write_above(Stamp::ZERO, false, context) {
            Ok(step) => step,
            Err(Skewed { .. }) => OperationStep::End(OperationOutcome::Rejected(Rejection::Skewed)),
        }
    }

    /// Returns the first step of a read, and sets its stage.
    pub(super) fn begin_read(&mut self, repairs_all: bool, context: &OperationContext<'_>) -> OperationStep {
        let candidates = context.reachable.and(context.settled);
        let chosen = self.level.choose(&self.owners, candidates, &self.preferred, context.site);
        let chosen = chosen.expect("the level was found available before");
        let first = self
            .preferred
            .iter()
            .find(|index| chosen.has(**index))
            .expect("every level asks at least one owner");
        let whole = Share::NONE.with(*first);
        self.stage = OperationStage::Reading { copies: SmallVec::new(), whole, repairs_all, answered: false };
        OperationStep::Wait(if repairs_all { candidates } else { chosen })
    }

    /// Returns the request of this round for an owner. `me` is the coordinator's own cell, which returns an
    /// entry of any size.
    pub(super) fn request(&self, round: Round, layout: &Layout, index: usize, me: CellNumber) -> Message {
        let demand = match &self.stage {
            OperationStage::Asking { .. } => Demand::Ask,
            OperationStage::Writing { entry, .. } => Demand::Write(entry.clone()),
            OperationStage::Returning { entry, .. } => Demand::Repair(entry.clone()),
            OperationStage::Reading { whole, .. } if whole.has(index) => {
                Demand::Read(if self.owners.cell(index) == me { u32::MAX } else { self.room_for(index) })
            }
            OperationStage::Reading { .. } => Demand::Digest,
        };
        let (map, key) = (self.map, self.key.clone());
        Message::Request(Request { round, layout: layout.version(), map, key, demand })
    }

    /// Returns the largest entry that an owner may send, in bytes: `read_bytes`, or the larger size that the
    /// owner has announced.
    fn room_for(&self, index: usize) -> u32 {
        let announced = self.large.iter().find(|(owner, _)| *owner == index);
        announced.map_or(self.read_bytes, |(_, bytes)| *bytes)
    }

    /// Whether the present round asked an owner for its whole entry rather than for a digest.
    pub(super) fn awaits_entry(&self, index: usize) -> bool {
        matches!(self.stage, OperationStage::Reading { whole, .. } if whole.has(index))
    }

    /// Records that an owner's entry has this many bytes.
    pub(super) fn announce(&mut self, index: usize, bytes: u32) {
        self.large.retain(|(owner, _)| *owner != index);
        self.large.push((index, bytes));
    }

    /// Returns the bytes of entries that these owners may send, except those of the coordinator's own cell.
    pub(super) fn awaited_bytes(&self, share: Share, me: CellNumber) -> usize {
        let others = share.iter().filter(|index| self.awaits_entry(*index) && self.owners.cell(*index) != me);
        others.map(|index| self.room_for(index) as usize).sum()
    }

    /// Returns the time of the oldest write that the operation sends to the key's owners.
    pub(super) fn oldest(&self) -> Option<u64> {
        let OperationStage::Writing { stamp, .. } = &self.stage else { return None };
        Some(self.adding.as_ref().map_or(stamp.time, |adding| adding.oldest))
    }

    /// Records an owner's answer to this round's request. Returns whether the answer fits the request: other
    /// answers are ignored.
    pub(super) fn take(&mut self, index: usize, answer: Answer) -> bool {
        match (&mut self.stage, answer) {
            (_, Answer::Refused(ReplicaRefusal::Layout)) => {
                // The coordinator or the owner has an outdated layout. The coordinator asks the owner again
                // later.
                self.sent = self.sent.without(index);
            }
            (_, Answer::Refused(refusal)) => {
                self.refused = self.refused.with(index);
                self.reason = Some(refusal);
            }
            (OperationStage::Asking { answered, newest }, Answer::HighestStamp(stamp)) => {
                *answered = answered.with(index);
                *newest = stamp.max(*newest);
            }
            (OperationStage::Writing { held, newer, .. }, Answer::Written { newer: stamp }) => {
                *held = held.with(index);
                *newer = stamp.max(*newer);
            }
            (OperationStage::Returning { held, .. }, Answer::Written { .. }) => *held = held.with(index),
            (OperationStage::Reading { copies, .. }, answer) => {
                let copy = match answer {
                    Answer::Entry(entry) => ReadReply { index, content: ReplyContent::Entry(entry) },
                    Answer::Digest(digest) => ReadReply { index, content: ReplyContent::Digest(digest) },
                    _ => return false,
                };
                match copies.iter_mut().find(|it| it.index == index) {
                    // The entry is known already, and a later digest adds nothing.
                    Some(present) if present.entry().is_some() && copy.entry().is_none() => {}
                    Some(present) => *present = copy,
                    None => copies.push(copy),
                }
            }
            _ => return false,
        }
        true
    }

    /// Returns the next step, given the answers so far.
    pub(super) fn advance(&mut self, context: &mut OperationContext<'_>) -> OperationStep {
        match &self.stage {
            OperationStage::Asking { answered, newest } => {
                if Level::Quorum.is_met(&self.owners, *answered, context.site) {
                    let newest = *newest;
                    if self.added().is_some() {
                        return self.begin_tally(newest, context);
                    }
                    return match self.write_above(newest, true, context) {
                        Ok(step) => step,
                        Err(Skewed { .. }) => {
                            OperationStep::End(OperationOutcome::Rejected(Rejection::Skewed))
                        }
                    };
                }
                self.wait_or(Level::Quorum, context, OperationOutcome::NotApplied)
            }
            OperationStage::Writing { answered: true, .. } => self.rest(None, context),
            OperationStage::Writing { stamp, held, newer, last, .. } => {
                if self.level.is_met(&self.owners, held.and(context.settled), context.site) {
                    let (stamp, newer) = (*stamp, *newer);
                    if *last || newer == Stamp::ZERO || !self.level.is_quorum() {
                        return self.rest(Some(self.done(stamp, self.level)), context);
                    }
                    return match self.write_above(newer, true, context) {
                        Ok(step) => step,
                        Err(Skewed { .. }) => self.close(Some(OperationOutcome::MaybeApplied)),
                    };
                }
                // In a second round of writing, some owner may hold the write under its first stamp.
                let first = !last || self.asks_first() || self.adding.is_some();
                // If all owners that the coordinator asked have refused, no owner has the write. The
                // coordinator asks no further owner after the operation ends.
                let nowhere = first && !self.repeated && self.refused == self.sent;
                match self.reason.and_then(rejection).filter(|_| nowhere) {
                    Some(rejection) => OperationStep::End(OperationOutcome::Rejected(rejection)),
                    // While no owner holds the write, it may still turn out that all owners refuse it.
                    None if first && held.is_empty() => OperationStep::Wait(Share::NONE),
                    None => match self.wait_or(self.level, context, self.late(context)) {
                        // Some owner may hold the write, so the other owners must get it, too.
                        OperationStep::End(outcome) => self.close(Some(outcome)),
                        step => step,
                    },
                }
            }
            OperationStage::Reading { .. } => self.advance_read(context),
            OperationStage::Returning { held, .. } => {
                if Level::Quorum.is_met(&self.owners, held.and(context.settled), context.site) {
                    return OperationStep::End(self.found(self.level, context.wall));
                }
                let outcome = self.late(context);
                self.wait_or(Level::Quorum, context, outcome)
            }
        }
    }

    /// Returns the outcome that the operation has if its time is over now.
    fn late(&self, context: &OperationContext<'_>) -> OperationOutcome {
        let fallback = |share: Share| {
            let share = share.and(context.settled);
            self.fallback.filter(|level| level.is_met(&self.owners, share, context.site))
        };
        match &self.stage {
            OperationStage::Asking { .. } => OperationOutcome::NotApplied,
            OperationStage::Writing { stamp, held, newer, last, .. } => {
                // At a quorum level a write is not done until its stamp is above the stamps in the owners'
                // answers.
                let lost = !last && *newer > Stamp::ZERO;
                match fallback(*held).filter(|level| !(lost && level.is_quorum())) {
                    Some(level) => self.done(*stamp, level),
                    None => OperationOutcome::MaybeApplied,
                }
            }
            OperationStage::Reading { .. } if self.added().is_some() => OperationOutcome::NotApplied,
            OperationStage::Reading { .. } | OperationStage::Returning { .. } => {
                let seen = match &self.stage {
                    OperationStage::Returning { seen, .. } => *seen,
                    _ => self.resolved(),
                };
                // At a quorum level a fallback would promise atomicity. So it needs the full rule, and not
                // only the owners' answers.
                match fallback(seen).filter(|level| !(self.blocking && level.is_quorum())) {
                    Some(level) => self.found(level, context.wall),
                    None => OperationOutcome::Unanswered,
                }
            }
        }
    }

    /// Returns the owners that are asked next, or once more, because a pause has passed and the operation has
    /// not ended.
    pub(super) fn press(&mut self, context: &OperationContext<'_>) -> Share {
        let open = context.reachable.minus(self.sent).minus(self.refused);
        let settled = context.settled;
        match &mut self.stage {
            OperationStage::Writing { held, .. } | OperationStage::Returning { held, .. } => {
                open.minus(*held)
            }
            OperationStage::Asking { answered, .. } => {
                first_of(open.and(settled).minus(*answered), &self.preferred)
            }
            OperationStage::Reading { copies, whole, .. } => {
                // An owner that has sent its digest may have to be asked for its entry again.
                let done = copies.iter().filter(|copy| copy.entry().is_some() || !whole.has(copy.index));
                let mut open =
                    open.and(settled).minus(done.fold(Share::NONE, |share, copy| share.with(copy.index)));
                if self.level == Level::LocalQuorum {
                    open = open.and(self.owners.of_site(context.site));
                }
                let next = first_of(open, &self.preferred);
                *whole = whole.or(next);
                next
            }
        }
    }

    /// Continues after a write met its level. Until the operation's time is over, waits for the owners that
    /// can be asked. Keeps hints for the other owners.
    fn rest(&mut self, outcome: Option<OperationOutcome>, context: &OperationContext<'_>) -> OperationStep {
        let OperationStage::Writing { held, answered, .. } = &mut self.stage else { unreachable!("a write") };
        let lacking = context.reachable.minus(*held).minus(self.refused);
        if lacking.is_empty() {
            return self.close(outcome);
        }
        *answered = true;
        match outcome {
            Some(outcome) => OperationStep::Linger(outcome),
            None => OperationStep::Wait(Share::NONE),
        }
    }

    /// Ends a write. Keeps hints for all owners that have not taken the write, except owners that have no
    /// room for it.
    fn close(&self, outcome: Option<OperationOutcome>) -> OperationStep {
        let OperationStage::Writing { entry, held, .. } = &self.stage else { unreachable!("a write") };
        let entry = self.adding.as_ref().map_or(entry, |adding| &adding.own);
        let lacking = self.owners.all().minus(*held);
        let has_no_room = matches!(self.reason, Some(ReplicaRefusal::TooLarge | ReplicaRefusal::Full));
        let no_room = if has_no_room { lacking.and(self.refused) } else { Share::NONE };
        OperationStep::Hint { outcome, entry: entry.clone(), lacking: lacking.minus(no_room), no_room }
    }

    /// Whether a write asks a quorum for the highest stamp before it takes a stamp.
    fn asks_first(&self) -> bool {
        self.blocking && self.level.is_quorum()
    }

    fn write_above(
        &mut self,
        floor: Stamp,
        last: bool,
        context: &mut OperationContext<'_>,
    ) -> Result<OperationStep, Skewed> {
        let stamp = (context.issue)(floor)?;
        assert!(stamp > floor, "a write's stamp is above all stamps that owners reported");
        let entry = self.draft.as_ref().expect("only a write has a draft to be stamped").stamped(stamp);
        let (held, newer) = (Share::NONE, Stamp::ZERO);
        self.stage = OperationStage::Writing { stamp, entry, held, newer, last, answered: false };
        Ok(OperationStep::Round(context.reachable))
    }

    /// Returns the outcome of a write that met this level.
    fn done(&self, stamp: Stamp, level: Level) -> OperationOutcome {
        match &self.adding {
            Some(adding) => OperationOutcome::Counted { count: adding.count, stamp, level },
            None => OperationOutcome::Done { stamp, level },
        }
    }

    /// Waits. If the owners that did not refuse are too few for `level`, ends with `outcome` instead.
    fn wait_or(
        &self,
        level: Level,
        context: &OperationContext<'_>,
        outcome: OperationOutcome,
    ) -> OperationStep {
        let left = self.owners.all().minus(self.refused);
        if level.is_met(&self.owners, left, context.site) {
            OperationStep::Wait(Share::NONE)
        } else {
            OperationStep::End(outcome)
        }
    }

    fn copies(&self) -> &[ReadReply] {
        match &self.stage {
            OperationStage::Reading { copies, .. } => copies,
            _ => &[],
        }
    }

    /// Returns the owners whose content is known: they sent their entry, or the digest of an entry that
    /// another owner sent.
    fn resolved(&self) -> Share {
        let is_known = |copy: &ReadReply| {
            copy.entry().is_some()
                || self.copies().iter().filter_map(ReadReply::entry).any(|it| copy.is_of(it))
        };
        let resolved = self.copies().iter().filter(|copy| is_known(copy));
        resolved.fold(Share::NONE, |share, copy| share.with(copy.index))
    }

    fn merged(&self) -> Entry {
        let mut merged = Entry::nothing();
        for entry in self.copies().iter().filter_map(ReadReply::entry) {
            merged.merge(entry);
        }
        merged
    }

    fn found(&self, level: Level, wall: u64) -> OperationOutcome {
        let entry = match &self.stage {
            OperationStage::Returning { entry, .. } => entry.clone(),
            _ => self.merged(),
        };
        let (value, newest) = (entry.value(wall), entry.newest());
        OperationOutcome::Found { value, expires: entry.expires(wall), wall, newest, level }
    }

    fn advance_read(&mut self, context: &mut OperationContext<'_>) -> OperationStep {
        let resolved = self.resolved();
        let has = self.copies().iter().fold(Share::NONE, |share, copy| share.with(copy.index));
        let OperationStage::Reading { whole, repairs_all, answered, .. } = &mut self.stage else {
            unreachable!("a read")
        };
        let (repairs_all, answered) = (*repairs_all, *answered);
        let enough = if answered {
            resolved.and(self.sent) == self.sent
        } else {
            self.level.is_met(&self.owners, resolved, context.site)
        };
        if !enough {
            // The read requests entries once the owners that answered would meet the level.
            let due = answered || self.level.is_met(&self.owners, has, context.site);
            let lacking = has.minus(resolved).minus(*whole);
            if due && !lacking.is_empty() {
                *whole = whole.or(lacking);
                return OperationStep::Wait(lacking);
            }
            if answered {
                return OperationStep::Wait(Share::NONE);
            }
            let outcome = if self.added().is_some() {
                OperationOutcome::NotApplied
            } else {
                OperationOutcome::Unanswered
            };
            return self.wait_or(self.level, context, outcome);
        }
        if self.added().is_some() {
            return self.count(self.merged(), context);
        }
        let outcome = self.found(self.level, context.wall);
        if self.blocking && self.level.is_quorum() {
            let entry = self.merged();
            let held = self.holders(&entry);
            if Level::Quorum.is_met(&self.owners, held, context.site) {
                return OperationStep::End(outcome);
            }
            self.stage = OperationStage::Returning { entry, held, seen: resolved };
            return OperationStep::Round(context.reachable.minus(held));
        }
        if !repairs_all {
            return OperationStep::End(outcome);
        }
        if resolved.and(self.sent) != self.sent {
            if let OperationStage::Reading { answered, .. } = &mut self.stage {
                *answered = true;
            }
            return OperationStep::Linger(outcome);
        }
        self.sweep((!answered).then_some(outcome))
    }

    /// Returns the owners whose entries equal `entry`.
    fn holders(&self, entry: &Entry) -> Share {
        let holders = self.copies().iter().filter(|copy| copy.is_of(entry));
        holders.fold(Share::NONE, |share, copy| share.with(copy.index))
    }

    /// Brings outdated owners that answered up to date.
    fn sweep(&self, outcome: Option<OperationOutcome>) -> OperationStep {
        let entry = self.merged();
        let has = self.copies().iter().fold(Share::NONE, |share, copy| share.with(copy.index));
        let behind = has.minus(self.holders(&entry));
        OperationStep::Sweep(outcome, entry, behind)
    }

    /// Whether the user already has the operation's answer.
    pub(super) fn is_answered(&self) -> bool {
        matches!(
            self.stage,
            OperationStage::Reading { answered: true, .. } | OperationStage::Writing { answered: true, .. }
        )
    }

    /// Ends the operation because its time is over.
    pub(super) fn expire(&self, context: &OperationContext<'_>) -> OperationStep {
        let outcome = (!self.is_answered()).then(|| self.late(context));
        match (&self.stage, outcome) {
            (OperationStage::Writing { .. }, outcome) => self.close(outcome),
            (_, Some(outcome)) => OperationStep::End(outcome),
            (_, None) => self.sweep(None),
        }
    }
}

fn first_of(share: Share, preferred: &[usize]) -> Share {
    preferred.iter().find(|index| share.has(**index)).map_or(Share::NONE, |index| Share::NONE.with(*index))
}

fn rejection(refusal: ReplicaRefusal) -> Option<Rejection> {
    match refusal {
        ReplicaRefusal::Layout | ReplicaRefusal::Arriving | ReplicaRefusal::Comparing => None,
        ReplicaRefusal::Skewed => Some(Rejection::Skewed),
        ReplicaRefusal::TooLarge => Some(Rejection::TooLarge),
        ReplicaRefusal::Full => Some(Rejection::Full),
    }
}
