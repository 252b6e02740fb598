//! One operation at its coordinator: whom it asked, what came back, and what that amounts to.

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    clock::{Skewed, Stamp},
    counter::Memory,
    entry::{Digest, Entry, Value},
    increment::Adding,
    layout::{CellNumber, Layout, MapId},
    level::Level,
    message::{Answer, Demand, Message, Refusal, Request, Round},
    ring::{Owners, Share, Site},
};
use crate::time::{Duration, Time};

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The read's answer.
    Found {
        /// The value under the key.
        value: Value,
        /// The wall clock from which on a string is as good as deleted, in nanoseconds; none: it stays.
        expires: Option<u64>,
        /// The highest stamp that was seen.
        newest: Stamp,
        /// The level that was met: the one asked for, or the smaller one that was allowed.
        level: Level,
    },
    /// The write is done.
    Done {
        /// Its stamp.
        stamp: Stamp,
        /// The level that was met: the one asked for, or the smaller one that was allowed.
        level: Level,
    },
    /// The increment is done.
    Counted {
        /// The count as its coordinator knew it, with this increment.
        count: i64,
        /// The stamp of the increment.
        stamp: Stamp,
        /// The level that was met: the one asked for, or the smaller one that was allowed.
        level: Level,
    },
    /// Fewer replicas can be asked than the level needs. Nothing was written.
    Unavailable,
    /// The write did not meet its level in time. It may take effect at any time from now on, or never.
    MaybeApplied,
    /// The write had no stamp yet when its time was over. Nothing was written.
    NotApplied,
    /// The read did not meet its level in time.
    Unanswered,
    /// Nothing was done, and trying again as it is would not help.
    Rejected(Rejection),
}

/// Why an operation was not even begun, was refused by the replicas, or does not fit what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// This process is no cell.
    NoCell,
    /// There is no such map.
    NoMap,
    /// The key or the value is too large.
    TooLarge,
    /// So much is under way already that there is no room.
    Busy,
    /// The coordinator's clock is too far from those of the replicas.
    Skewed,
    /// The replicas have no memory left.
    Full,
    /// An increment of a hash.
    Hash,
    /// An increment of a string that is no number.
    NoNumber,
    /// An increment beyond 64 bits.
    Overflow,
    /// An increment would add a tally to a counter that has very many.
    Tallies,
}

/// The content of a write, without its stamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Draft {
    /// The whole key.
    Whole { value: Option<Bytes>, expires: Option<u64> },
    /// Some fields.
    Fields(Vec<(Bytes, Option<Bytes>)>),
    /// So much more in a counter.
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
pub(super) struct Reply {
    index: usize,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Entry(Entry),
    Digest(Digest),
}

impl Reply {
    fn entry(&self) -> Option<&Entry> {
        if let Content::Entry(entry) = &self.content { Some(entry) } else { None }
    }

    /// Whether the replica has this entry.
    fn is_of(&self, entry: &Entry) -> bool {
        match &self.content {
            Content::Entry(own) => own == entry,
            Content::Digest(digest) => *digest == entry.digest(),
        }
    }
}

/// How far an operation is.
#[derive(Debug)]
pub(super) enum Stage {
    /// A write asks a quorum for the highest stamp.
    Asking { told: Share, newest: Stamp },
    /// A write is sent to all owners.
    Writing {
        stamp: Stamp,
        entry: Entry,
        /// Those that hold it, or newer.
        held: Share,
        /// The highest stamp that they hold above it.
        newer: Stamp,
        /// Whether newer stamps are none of its concern: it is above all that ended before it began.
        last: bool,
        /// The user has its answer.
        answered: bool,
    },
    /// A read gathers copies.
    Reading {
        copies: SmallVec<[Reply; 2]>,
        /// Those that were asked for their entries, and not for digests only.
        whole: Share,
        /// Every owner is asked, and those behind are brought up to date.
        thorough: bool,
        /// The user has its answer.
        answered: bool,
    },
    /// A read brings a quorum up to date before it answers.
    Returning {
        entry: Entry,
        held: Share,
        /// Those whose entries are in it.
        seen: Share,
    },
}

/// The next step of an operation.
#[derive(Debug)]
pub(super) enum Step {
    /// It waits, after it has sent requests to these.
    Wait(Share),
    /// It goes on in a new round, for which requests go to these.
    Round(Share),
    /// It tells the user, and has nothing more to do.
    End(Outcome),
    /// It tells the user, and waits for the replicas that were asked besides.
    Linger(Outcome),
    /// The user has been told; those that are behind get this. An outcome that is left to be told comes first.
    Sweep(Option<Outcome>, Entry, Share),
    /// The same of a write: hints of it are kept for these.
    Hint(Option<Outcome>, Entry, Share),
}

/// The facts of its cell that an operation needs.
pub(super) struct Surroundings<'a> {
    pub(super) site: Site,
    pub(super) now: Time,
    pub(super) wall: u64,
    /// The owners that can be asked now.
    pub(super) reachable: Share,
    /// The owners that have all that they should have: no other counts for a level.
    pub(super) settled: Share,
    /// Issues a stamp above another.
    pub(super) issue: &'a mut dyn FnMut(Stamp) -> Result<Stamp, Skewed>,
    /// The coordinator.
    pub(super) me: CellNumber,
    /// Writes up to this time were said to have ended.
    pub(super) through: u64,
    pub(super) memory: &'a mut Memory,
}

/// An operation that has not ended.
#[derive(Debug)]
pub(super) struct Running {
    /// The user's name for it.
    pub(super) id: u64,
    pub(super) map: MapId,
    pub(super) key: Bytes,
    pub(super) level: Level,
    pub(super) fallback: Option<Level>,
    /// Whether reads leave what they answer at a quorum, and writes ask first.
    pub(super) blocking: bool,
    /// How much later its outcome is told if it is a write that is done.
    pub(super) delay: Duration,
    /// The content of a write; none for a read.
    pub(super) draft: Option<Draft>,
    /// All owners had all writes up to this time when it began ([`Horizons::past`](super::horizon::Horizons::past)).
    pub(super) past: u64,
    /// Of an increment that has read.
    pub(super) adding: Option<Box<Adding>>,
    pub(super) owners: Owners,
    /// Indexes of owners, those to be asked first at the front.
    pub(super) preferred: SmallVec<[usize; 6]>,
    pub(super) deadline: Time,
    /// How long it waited before it was looked at last.
    pub(super) pause: Duration,
    /// The next look at it.
    pub(super) timer: Time,
    /// How many bytes of memory it is counted for.
    pub(super) bytes: usize,
    /// Those that have this round's request, as far as is known.
    pub(super) sent: Share,
    /// Whether a request of this round may have to be sent again: its first copy may have been taken, or not.
    pub(super) repeated: bool,
    /// Those that will not do it.
    pub(super) refused: Share,
    /// The last of their reasons.
    pub(super) reason: Option<Refusal>,
    pub(super) stage: Stage,
}

impl Running {
    /// The first step of a write; its stage is yet to be set.
    pub(super) fn begin_write(&mut self, around: &mut Surroundings<'_>) -> Step {
        if self.asks_first() {
            self.stage = Stage::Asking { told: Share::NONE, newest: Stamp::ZERO };
            let candidates = around.reachable.and(around.settled);
            let asked = Level::Quorum.choose(&self.owners, candidates, &self.preferred, around.site);
            return Step::Wait(asked.expect("a quorum level includes a quorum"));
        }
        match self.write_above(Stamp::ZERO, false, around) {
            Ok(step) => step,
            Err(Skewed { .. }) => Step::End(Outcome::Rejected(Rejection::Skewed)),
        }
    }

    /// The first step of a read.
    pub(super) fn begin_read(&mut self, thorough: bool, around: &Surroundings<'_>) -> Step {
        let candidates = around.reachable.and(around.settled);
        let chosen = self.level.choose(&self.owners, candidates, &self.preferred, around.site);
        let chosen = chosen.expect("the level was found available");
        let first = self.preferred.iter().find(|index| chosen.has(**index)).expect("a level needs somebody");
        let whole = Share::NONE.with(*first);
        self.stage = Stage::Reading { copies: SmallVec::new(), whole, thorough, answered: false };
        Step::Wait(if thorough { candidates } else { chosen })
    }

    /// The request of this round for an owner.
    pub(super) fn request(&self, round: Round, layout: &Layout, index: usize) -> Message {
        let demand = match &self.stage {
            Stage::Asking { .. } => Demand::Ask,
            Stage::Writing { entry, .. } | Stage::Returning { entry, .. } => Demand::Write(entry.clone()),
            Stage::Reading { whole, .. } if whole.has(index) => Demand::Read,
            Stage::Reading { .. } => Demand::Digest,
        };
        let (map, key) = (self.map, self.key.clone());
        Message::Request(Request { round, layout: layout.version(), map, key, demand })
    }

    /// The time of the oldest write that it sends to its owners.
    pub(super) fn oldest(&self) -> Option<u64> {
        let Stage::Writing { stamp, .. } = &self.stage else { return None };
        Some(self.adding.as_ref().map_or(stamp.time, |adding| adding.oldest))
    }

    /// An owner answered this round's request. Says whether the answer fits the request; one that does not is ignored.
    pub(super) fn take(&mut self, index: usize, answer: Answer) -> bool {
        match (&mut self.stage, answer) {
            (_, Answer::Refused(Refusal::Layout)) => {
                // One of the two is behind the order; asked again later.
                self.sent = self.sent.without(index);
            }
            (_, Answer::Refused(refusal)) => {
                self.refused = self.refused.with(index);
                self.reason = Some(refusal);
            }
            (Stage::Asking { told, newest }, Answer::Told(stamp)) => {
                *told = told.with(index);
                *newest = stamp.max(*newest);
            }
            (Stage::Writing { held, newer, .. }, Answer::Written { newer: stamp }) => {
                *held = held.with(index);
                *newer = stamp.max(*newer);
            }
            (Stage::Returning { held, .. }, Answer::Written { .. }) => *held = held.with(index),
            (Stage::Reading { copies, .. }, answer) => {
                let copy = match answer {
                    Answer::Entry(entry) => Reply { index, content: Content::Entry(entry) },
                    Answer::Digest(digest) => Reply { index, content: Content::Digest(digest) },
                    _ => return false,
                };
                match copies.iter_mut().find(|it| it.index == index) {
                    // A digest that comes behind the entry says nothing that the entry does not.
                    Some(present) if present.entry().is_some() && copy.entry().is_none() => {}
                    Some(present) => *present = copy,
                    None => copies.push(copy),
                }
            }
            _ => return false,
        }
        true
    }

    /// Draws the consequence of the answers so far.
    pub(super) fn advance(&mut self, around: &mut Surroundings<'_>) -> Step {
        match &self.stage {
            Stage::Asking { told, newest } => {
                if Level::Quorum.is_met(&self.owners, *told, around.site) {
                    let newest = *newest;
                    if self.added().is_some() {
                        return self.begin_tally(newest, around);
                    }
                    return match self.write_above(newest, true, around) {
                        Ok(step) => step,
                        Err(Skewed { .. }) => Step::End(Outcome::Rejected(Rejection::Skewed)),
                    };
                }
                self.wait_or(Level::Quorum, around, Outcome::NotApplied)
            }
            Stage::Writing { answered: true, .. } => self.rest(None, around),
            Stage::Writing { stamp, held, newer, last, .. } => {
                if self.level.is_met(&self.owners, held.and(around.settled), around.site) {
                    let (stamp, newer) = (*stamp, *newer);
                    if *last || newer == Stamp::ZERO || !self.level.is_quorum() {
                        return self.rest(Some(self.done(stamp, self.level)), around);
                    }
                    return match self.write_above(newer, true, around) {
                        Ok(step) => step,
                        Err(Skewed { .. }) => self.close(Some(Outcome::MaybeApplied)),
                    };
                }
                // In a round that follows another one something was written before.
                let first = !last || self.asks_first() || self.adding.is_some();
                let nowhere = first && !self.repeated && self.refused == self.owners.all();
                match self.reason.and_then(rejection).filter(|_| nowhere) {
                    Some(rejection) => Step::End(Outcome::Rejected(rejection)),
                    // As long as nobody has taken it, it may still turn out that nobody did.
                    None if first && held.is_empty() => Step::Wait(Share::NONE),
                    None => match self.wait_or(self.level, around, self.late(around)) {
                        // Some may hold it: the others are to get it, too.
                        Step::End(outcome) => self.close(Some(outcome)),
                        step => step,
                    },
                }
            }
            Stage::Reading { .. } => self.advance_read(around),
            Stage::Returning { held, .. } => {
                if Level::Quorum.is_met(&self.owners, held.and(around.settled), around.site) {
                    return Step::End(self.found(self.level, around.wall));
                }
                let outcome = self.late(around);
                self.wait_or(Level::Quorum, around, outcome)
            }
        }
    }

    /// How it ends if its time is over now.
    fn late(&self, around: &Surroundings<'_>) -> Outcome {
        let fallback = |share: Share| {
            let share = share.and(around.settled);
            self.fallback.filter(|level| level.is_met(&self.owners, share, around.site))
        };
        match &self.stage {
            Stage::Asking { .. } => Outcome::NotApplied,
            Stage::Writing { stamp, held, newer, last, .. } => {
                // At a quorum level a write is not done as long as it is not above what others told.
                let lost = !last && *newer > Stamp::ZERO;
                match fallback(*held).filter(|level| !(lost && level.is_quorum())) {
                    Some(level) => self.done(*stamp, level),
                    None => Outcome::MaybeApplied,
                }
            }
            Stage::Reading { .. } if self.added().is_some() => Outcome::NotApplied,
            Stage::Reading { .. } | Stage::Returning { .. } => {
                let seen = match &self.stage {
                    Stage::Returning { seen, .. } => *seen,
                    _ => self.resolved(),
                };
                // Of a level that promises atomicity nothing smaller than its own rule will do.
                match fallback(seen).filter(|level| !(self.blocking && level.is_quorum())) {
                    Some(level) => self.found(level, around.wall),
                    None => Outcome::Unanswered,
                }
            }
        }
    }

    /// A while has passed without an end: these are asked, too, or again.
    pub(super) fn press(&mut self, around: &Surroundings<'_>) -> Share {
        let open = around.reachable.minus(self.sent).minus(self.refused);
        let settled = around.settled;
        match &mut self.stage {
            Stage::Writing { held, .. } | Stage::Returning { held, .. } => open.minus(*held),
            Stage::Asking { told, .. } => first_of(open.and(settled).minus(*told), &self.preferred),
            Stage::Reading { copies, whole, .. } => {
                // One that has sent its digest may have to be asked for its entry again.
                let done = copies.iter().filter(|copy| copy.entry().is_some() || !whole.has(copy.index));
                let mut open =
                    open.and(settled).minus(done.fold(Share::NONE, |share, copy| share.with(copy.index)));
                if self.level == Level::LocalQuorum {
                    open = open.and(self.owners.of_site(around.site));
                }
                let next = first_of(open, &self.preferred);
                *whole = whole.or(next);
                next
            }
        }
    }

    /// The rest of a write that met its level: those owners that can be asked are waited for, as long as its time
    /// lasts; for the others hints are kept.
    fn rest(&mut self, outcome: Option<Outcome>, around: &Surroundings<'_>) -> Step {
        let Stage::Writing { held, answered, .. } = &mut self.stage else { unreachable!("a write") };
        let lacking = around.reachable.minus(*held).minus(self.refused);
        if lacking.is_empty() {
            return self.close(outcome);
        }
        *answered = true;
        match outcome {
            Some(outcome) => Step::Linger(outcome),
            None => Step::Wait(Share::NONE),
        }
    }

    /// Keeps hints for all owners that have not taken the write, those that refused it for its size apart.
    fn close(&self, outcome: Option<Outcome>) -> Step {
        let Stage::Writing { entry, held, .. } = &self.stage else { unreachable!("a write") };
        let entry = self.adding.as_ref().map_or(entry, |adding| &adding.own);
        let lacking = self.owners.all().minus(*held);
        let lacking =
            if self.reason == Some(Refusal::TooLarge) { lacking.minus(self.refused) } else { lacking };
        Step::Hint(outcome, entry.clone(), lacking)
    }

    /// Whether a write asks a quorum before it takes a stamp.
    fn asks_first(&self) -> bool {
        self.blocking && self.level.is_quorum()
    }

    fn write_above(
        &mut self,
        floor: Stamp,
        last: bool,
        around: &mut Surroundings<'_>,
    ) -> Result<Step, Skewed> {
        let stamp = (around.issue)(floor)?;
        assert!(stamp > floor, "a write's stamp is above those that it was told");
        let entry = self.draft.as_ref().expect("only writes are written").stamped(stamp);
        let (held, newer) = (Share::NONE, Stamp::ZERO);
        self.stage = Stage::Writing { stamp, entry, held, newer, last, answered: false };
        Ok(Step::Round(around.reachable))
    }

    /// The outcome of a write that met this level.
    fn done(&self, stamp: Stamp, level: Level) -> Outcome {
        match &self.adding {
            Some(adding) => Outcome::Counted { count: adding.count, stamp, level },
            None => Outcome::Done { stamp, level },
        }
    }

    /// Waits, unless those that refused leave too few for `level`.
    fn wait_or(&self, level: Level, around: &Surroundings<'_>, outcome: Outcome) -> Step {
        let left = self.owners.all().minus(self.refused);
        if level.is_met(&self.owners, left, around.site) {
            Step::Wait(Share::NONE)
        } else {
            Step::End(outcome)
        }
    }

    fn copies(&self) -> &[Reply] {
        match &self.stage {
            Stage::Reading { copies, .. } => copies,
            _ => &[],
        }
    }

    /// Those whose content is known: they sent it, or a digest of it.
    fn resolved(&self) -> Share {
        let is_known = |copy: &Reply| {
            copy.entry().is_some() || self.copies().iter().filter_map(Reply::entry).any(|it| copy.is_of(it))
        };
        let resolved = self.copies().iter().filter(|copy| is_known(copy));
        resolved.fold(Share::NONE, |share, copy| share.with(copy.index))
    }

    fn merged(&self) -> Entry {
        let mut merged = Entry::nothing();
        for entry in self.copies().iter().filter_map(Reply::entry) {
            merged.merge(entry);
        }
        merged
    }

    fn found(&self, level: Level, wall: u64) -> Outcome {
        let entry = match &self.stage {
            Stage::Returning { entry, .. } => entry.clone(),
            _ => self.merged(),
        };
        let (value, newest) = (entry.value(wall), entry.newest());
        Outcome::Found { value, expires: entry.expires(wall), newest, level }
    }

    fn advance_read(&mut self, around: &mut Surroundings<'_>) -> Step {
        let resolved = self.resolved();
        let has = self.copies().iter().fold(Share::NONE, |share, copy| share.with(copy.index));
        let Stage::Reading { whole, thorough, answered, .. } = &mut self.stage else {
            unreachable!("a read")
        };
        let (thorough, answered) = (*thorough, *answered);
        let enough = if answered {
            resolved.and(self.sent) == self.sent
        } else {
            self.level.is_met(&self.owners, resolved, around.site)
        };
        if !enough {
            // Entries are asked for once digests alone would do.
            let due = answered || self.level.is_met(&self.owners, has, around.site);
            let lacking = has.minus(resolved).minus(*whole);
            if due && !lacking.is_empty() {
                *whole = whole.or(lacking);
                return Step::Wait(lacking);
            }
            if answered {
                return Step::Wait(Share::NONE);
            }
            let outcome = if self.added().is_some() { Outcome::NotApplied } else { Outcome::Unanswered };
            return self.wait_or(self.level, around, outcome);
        }
        if self.added().is_some() {
            return self.count(self.merged(), around);
        }
        let outcome = self.found(self.level, around.wall);
        if self.blocking && self.level.is_quorum() {
            let entry = self.merged();
            let held = self.holders(&entry);
            if Level::Quorum.is_met(&self.owners, held, around.site) {
                return Step::End(outcome);
            }
            self.stage = Stage::Returning { entry, held, seen: resolved };
            return Step::Round(around.reachable.minus(held));
        }
        if !thorough {
            return Step::End(outcome);
        }
        if resolved.and(self.sent) != self.sent {
            if let Stage::Reading { answered, .. } = &mut self.stage {
                *answered = true;
            }
            return Step::Linger(outcome);
        }
        self.sweep((!answered).then_some(outcome))
    }

    /// Those whose entries are as this one.
    fn holders(&self, entry: &Entry) -> Share {
        let holders = self.copies().iter().filter(|copy| copy.is_of(entry));
        holders.fold(Share::NONE, |share, copy| share.with(copy.index))
    }

    /// Brings those that answered and are behind up to date.
    fn sweep(&self, outcome: Option<Outcome>) -> Step {
        let entry = self.merged();
        let has = self.copies().iter().fold(Share::NONE, |share, copy| share.with(copy.index));
        let behind = has.minus(self.holders(&entry));
        Step::Sweep(outcome, entry, behind)
    }

    /// Whether the user has its answer already.
    fn is_answered(&self) -> bool {
        matches!(self.stage, Stage::Reading { answered: true, .. } | Stage::Writing { answered: true, .. })
    }

    /// Its time is over.
    pub(super) fn expire(&self, around: &Surroundings<'_>) -> Step {
        let outcome = (!self.is_answered()).then(|| self.late(around));
        match (&self.stage, outcome) {
            (Stage::Writing { .. }, outcome) => self.close(outcome),
            (_, Some(outcome)) => Step::End(outcome),
            (_, None) => self.sweep(None),
        }
    }
}

fn first_of(share: Share, preferred: &[usize]) -> Share {
    preferred.iter().find(|index| share.has(**index)).map_or(Share::NONE, |index| Share::NONE.with(*index))
}

fn rejection(refusal: Refusal) -> Option<Rejection> {
    match refusal {
        Refusal::Layout | Refusal::Arriving | Refusal::Comparing => None,
        Refusal::Skewed => Some(Rejection::Skewed),
        Refusal::TooLarge => Some(Rejection::TooLarge),
        Refusal::Full => Some(Rejection::Full),
    }
}
