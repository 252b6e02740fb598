//! The state of each request of a client in progress: its attempts and the answers so far. The files for
//! reads and for writes change it.

use bytes::Bytes;
use smallvec::SmallVec;

use super::{command::ProcessAnswer, settings::ClientSettings};
use crate::{
    ecast::Position,
    id::ProcessId,
    rubberband::{Assignment, Range, ReadCost, WriteName, range::covers},
    strength::Strength,
    time::{Duration, Time},
};

/// A request that has not ended.
pub(super) struct OpenRequest {
    pub(super) attempt: u64,
    pub(super) kind: Kind,
    pub(super) look_at: Option<Time>,
}

pub(super) enum Kind {
    Write(OpenWrite),
    Read(Box<Read>),
    Control,
}

/// Maximum number of doublings of the pause between a read's attempts.
pub(super) const TRIES_MAX: u32 = 5;

/// A write that has not been answered in full.
pub(super) struct OpenWrite {
    pub(super) name: WriteName,
    pub(super) ranges: SmallVec<[Range; 2]>,
    pub(super) covered: Vec<Range>,
    pub(super) stable: bool,
    pub(super) at: Position,
    /// Whether all replicas of one of the write's ranges were lost for good since the write began.
    pub(super) lost: bool,
    /// Number of times that the client has asked about the write since the write became stable.
    pub(super) asked: u32,
    /// Whether a replica or a link was lost since the write began, and perhaps an answer with it.
    pub(super) doubted: bool,
    /// Whether some range remembers only that the write took effect, not its answer.
    pub(super) forgotten: bool,
    /// The ranges' answers so far.
    pub(super) answers: Vec<ProcessAnswer>,
}

impl OpenWrite {
    /// Creates a write that has not been sent.
    pub(super) fn new(name: WriteName, ranges: SmallVec<[Range; 2]>) -> Self {
        OpenWrite {
            name,
            ranges,
            covered: Vec::new(),
            stable: false,
            at: Position(0),
            lost: false,
            asked: 0,
            doubted: false,
            forgotten: false,
            answers: Vec::new(),
        }
    }
}

/// A read that has not been answered in full.
pub(super) struct Read {
    pub(super) strength: Strength,
    pub(super) table: u32,
    pub(super) ranges: SmallVec<[Range; 2]>,
    pub(super) operation: Bytes,
    pub(super) parts: SmallVec<[ReadPart; 4]>,
    /// Ranges whose first piece has arrived.
    pub(super) begun: SmallVec<[Range; 5]>,
    pub(super) covered: SmallVec<[Range; 5]>,
    pub(super) at: Option<Position>,
    /// Processes to which the attempt probably went.
    pub(super) expected: SmallVec<[ProcessId; 4]>,
    /// Whether the user has the beginning of the answer. Such a user gets the rest of this answer, or an
    /// error.
    pub(super) user_has_begun: bool,
    /// Number of attempts.
    pub(super) tries: u32,
    /// Number of attempts without any news. After each of them, the next attempt gets more time. Refused
    /// attempts do not count.
    pub(super) silent_attempts: u32,
    /// Processes that the client asked whether they execute the read, and that have not replied.
    pub(super) asked: Vec<ProcessId>,
    /// Processes that did not reply in earlier attempts. The client prefers other processes.
    pub(super) silent: Vec<ProcessId>,
    /// Processes that seem to have died while they executed the read.
    pub(super) died: SmallVec<[ProcessId; 2]>,
    /// Processes that have sent the answer for a range.
    pub(super) proven: SmallVec<[(ProcessId, Range); 4]>,
    /// Whether the attempt only tests which processes survive the read.
    pub(super) probing: bool,
    /// Whether the attempt has failed, so that its answers no longer count.
    pub(super) void: bool,
    /// Whether the attempt has its place in the order.
    pub(super) ordered: bool,
    /// Whether the lead router has yet to confirm that the attempt sees the latest state. Until then the user
    /// gets nothing of the answer.
    pub(super) unconfirmed: bool,
    /// Time of the last news of this attempt.
    pub(super) heard: Time,
    /// Time of the last news of any attempt, or of the last wait for the user.
    pub(super) news: Time,
    /// Start of the attempt.
    pub(super) begun_at: Time,
}

/// The pieces of one process's answer.
pub(super) struct ReadPart {
    pub(super) from: ProcessId,
    pub(super) pieces: u32,
    pub(super) received: u64,
    /// Bytes that the user has consumed.
    pub(super) consumed: u64,
    pub(super) ended: bool,
    pub(super) spent: ReadCost,
    /// Pieces that the user does not have yet.
    pub(super) held: SmallVec<[Bytes; 1]>,
}

impl Read {
    /// Creates a read without an attempt.
    pub(super) fn new(
        strength: Strength,
        table: u32,
        ranges: SmallVec<[Range; 2]>,
        operation: Bytes,
        now: Time,
    ) -> Self {
        Read {
            strength,
            table,
            ranges,
            operation,
            parts: SmallVec::new(),
            begun: SmallVec::new(),
            covered: SmallVec::new(),
            at: None,
            expected: SmallVec::new(),
            user_has_begun: false,
            tries: 0,
            silent_attempts: 0,
            asked: Vec::new(),
            silent: Vec::new(),
            died: SmallVec::new(),
            proven: SmallVec::new(),
            probing: false,
            void: false,
            ordered: false,
            unconfirmed: false,
            heard: now,
            news: now,
            begun_at: now,
        }
    }

    /// Whether `process` should answer the read, or has begun to.
    pub(super) fn concerns(&self, process: ProcessId) -> bool {
        self.expected.contains(&process) || self.parts.iter().any(|part| part.from == process)
    }

    /// Whether `process` may still begin to answer the current attempt.
    pub(super) fn may_await(&self, process: ProcessId) -> bool {
        let expected = self.expected.is_empty() || self.expected.contains(&process);
        !self.void && expected && self.parts.iter().all(|part| part.from != process)
    }

    /// Whether `process` may still be executing this read.
    pub(super) fn is_at(&self, process: ProcessId) -> bool {
        self.concerns(process) && !self.has_ended(process) || self.silent.contains(&process)
    }

    /// Notes that a process is out of reach or removed. The process counts as dead unless it `left`.
    pub(super) fn lost(&mut self, process: ProcessId, left: bool) {
        if left {
            self.died.retain(|died| *died != process);
        } else if self.is_at(process) && !self.died.contains(&process) {
            self.died.push(process);
        }
    }

    /// Stops counting processes as dead if they are alive.
    pub(super) fn revive(&mut self, lives: impl Fn(&ProcessId) -> bool) {
        self.died.retain(|died| !lives(died));
    }

    /// Returns the assigned processes that have not been seen to survive their share of the read.
    pub(super) fn unproven(&self, assigned: &[Assignment]) -> Vec<ProcessId> {
        assigned.iter().filter(|it| !self.is_proven(it)).map(|it| it.process).collect()
    }

    pub(super) fn is_proven(&self, assigned: &Assignment) -> bool {
        let ranges = self.proven.iter().filter(|(process, _)| *process == assigned.process);
        let ranges: SmallVec<[Range; 4]> = ranges.map(|(_, range)| *range).collect();
        assigned.held.iter().all(|range| covers(&ranges, *range))
    }

    /// Returns the pieces of `process`; at first it has none.
    pub(super) fn part(&mut self, process: ProcessId) -> &mut ReadPart {
        let place = self.parts.iter().position(|part| part.from == process).unwrap_or_else(|| {
            self.parts.push(ReadPart {
                from: process,
                pieces: 0,
                received: 0,
                consumed: 0,
                ended: false,
                spent: ReadCost::default(),
                held: SmallVec::new(),
            });
            self.parts.len() - 1
        });
        &mut self.parts[place]
    }

    /// Takes the pieces that the user does not have yet, by process.
    pub(super) fn hand_over(&mut self) -> Vec<ProcessAnswer> {
        let pending = self.parts.iter_mut().filter(|part| !part.held.is_empty());
        let answered = pending.map(|part| ProcessAnswer {
            from: part.from,
            spent: part.spent,
            pieces: std::mem::take(&mut part.held),
            ended: part.ended,
        });
        let mut answered: Vec<ProcessAnswer> = answered.collect();
        answered.sort_unstable_by_key(|part| part.from);
        answered
    }

    pub(super) fn has_ended(&self, process: ProcessId) -> bool {
        self.parts.iter().any(|part| part.from == process && part.ended)
    }

    /// Notes how many bytes of one process's pieces the user has consumed.
    pub(super) fn consumed(&mut self, from: ProcessId, bytes: u64) {
        if let Some(part) = self.parts.iter_mut().find(|part| part.from == from) {
            part.consumed = part.consumed.max(bytes);
        }
    }

    /// Returns the time that the attempt may go without news. It is at most a quarter of `read_wait`, so that
    /// the processes of later attempts have time to reply before the client gives up the read.
    pub(super) fn patience(&self, settings: &ClientSettings) -> Duration {
        let longer = settings.patience * (1 << self.silent_attempts.min(TRIES_MAX));
        longer.min(settings.read_wait / 4).max(settings.patience)
    }

    /// Returns the expected processes that have not sent their last piece.
    pub(super) fn owing(&self) -> Vec<ProcessId> {
        self.expected.iter().copied().filter(|process| !self.has_ended(*process)).collect()
    }

    /// Whether the read still waits for its place in the order, or for the leader's stamp or confirmation.
    pub(super) fn waits_for_order(&self) -> bool {
        self.strength != Strength::Basic && !self.ordered && (self.unconfirmed || self.parts.is_empty())
    }

    /// Whether the first piece of each range has arrived.
    pub(super) fn has_begun(&self) -> bool {
        self.ranges.iter().all(|range| covers(&self.begun, *range))
    }

    /// Whether all pieces have arrived.
    pub(super) fn is_complete(&self) -> bool {
        self.ranges.iter().all(|range| covers(&self.covered, *range))
    }

    /// Whether the read continues only when the user takes more pieces.
    pub(super) fn waits_for_user(&self) -> bool {
        let untaken = |part: &ReadPart| part.ended || part.consumed < part.received;
        !self.void && !self.unconfirmed && self.has_begun() && self.parts.iter().all(untaken)
    }
}
