//! What a client is asked, and what it tells.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{
    ecast::{Position, Refusal},
    fate::Fate,
    id::{Peer, ProcessId, RequestId},
    rubberband::{Config, Control, LeaveRefusal, Range, Spent, refusal},
    seam::CommandId,
    strength::Strength,
};

/// What a client may be asked. Requests with a token end in exactly one [`ClientEvent::Done`] or [`ClientEvent::Failed`].
#[derive(Clone, Debug)]
pub enum ClientCommand {
    /// Write.
    Write {
        /// The user's name for it.
        token: u64,
        /// An id given by the user (an earlier write's, to repeat it, or a new one of this client's session, not far
        /// behind the newest); a new one when absent.
        request: Option<RequestId>,
        /// A hash of the statement: another one under a known id is refused.
        print: u64,
        /// Whether the id may have been used before.
        repeated: bool,
        /// The table.
        table: u32,
        /// The ring keys concerned; disjoint.
        ranges: SmallVec<[Range; 2]>,
        /// Whether it can fail at run time.
        fallible: bool,
        /// What to do, opaque here.
        operation: Bytes,
    },
    /// Read.
    Read {
        /// The user's name for it.
        token: u64,
        /// How fresh.
        strength: Strength,
        /// The table.
        table: u32,
        /// The ring keys concerned; disjoint.
        ranges: SmallVec<[Range; 2]>,
        /// What to read, opaque here.
        operation: Bytes,
    },
    /// Change the configuration.
    Control {
        /// The user's name for it.
        token: u64,
        /// How.
        control: Control,
    },
    /// So many bytes of one process's parts have been consumed in all.
    Consumed {
        /// Of which request.
        token: u64,
        /// Whose.
        from: ProcessId,
        /// How many.
        bytes: u64,
    },
    /// Stop waiting. Ends the request at once: a write with [`ClientError::NotSent`] or [`ClientError::MaybeApplied`].
    Cancel {
        /// Which request.
        token: u64,
    },
    /// Processes that may be routers.
    Seeds(Vec<Peer>),
    /// Leave the cluster. Ends in [`ClientEvent::Left`].
    Leave {
        /// The asker's name for it.
        id: CommandId,
    },
}

/// What a client tells.
#[derive(Clone, Debug)]
pub enum ClientEvent {
    /// Every process that answers the read has told its first pieces, no further ones will, and more pieces come
    /// ([`ClientEvent::Part`]). Not told of a read that ends with its first pieces.
    Begun {
        /// Which request.
        token: u64,
        /// What has come so far, in the order of the processes.
        parts: Vec<Answered>,
    },
    /// A further piece of an answer that has begun.
    Part {
        /// Of which request.
        token: u64,
        /// Whose.
        from: ProcessId,
        /// The piece, opaque here.
        content: Bytes,
        /// Whether it is that process's last one.
        last: bool,
    },
    /// The request is answered in full.
    Done {
        /// Which request.
        token: u64,
        /// Its position, or stamp; 0 for control messages and basic reads.
        at: Position,
        /// The answer: of a read by process, in their order, of a write by range. Nothing of a read that has begun, whose pieces
        /// are all told.
        parts: Vec<Answered>,
    },
    /// The request failed.
    Failed {
        /// Which request.
        token: u64,
        /// Why.
        error: ClientError,
    },
    /// No router that is in reach has known a leader for a while (`true`), or one does again. Meanwhile nothing is ordered,
    /// and every request that needs it fails at once.
    Adrift(bool),
    /// A new configuration.
    Config(Arc<Config>),
    /// This storage process serves, and no link to it has come about for [`ClientSettings::unreached_after`]: reads that need
    /// it fail until one does.
    ///
    /// [`ClientSettings::unreached_after`]: super::ClientSettings::unreached_after
    Unreached {
        /// Who.
        process: ProcessId,
        /// What people call it.
        name: String,
        /// Where it is said to listen.
        address: String,
    },
    /// The end of the command to leave: this process is out, or the reason why not.
    Left {
        /// The asker's name for it.
        id: CommandId,
        /// The outcome.
        result: Result<(), LeaveRefusal>,
    },
    /// This process is out and must stop; it may come back as a new one.
    Wedged,
}

/// The answer of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Whose answer.
    pub from: ProcessId,
    /// Its cost there.
    pub spent: Spent,
    /// The answer, opaque here. Nearly always it is one piece.
    pub pieces: SmallVec<[Bytes; 1]>,
    /// Whether all of it is here.
    pub ended: bool,
}

impl ClientError {
    /// What may have happened to the request, for its user. None if that is known: it was applied, and its answer is not
    /// known any more.
    pub fn fate(self) -> Option<Fate> {
        match self {
            ClientError::MaybeApplied { request } => Some(Fate::MaybeApplied { id: Some(request) }),
            // It is founded any moment.
            ClientError::Rejected(refusal::NO_RING) => Some(Fate::NotSent),
            ClientError::Rejected(_)
            | ClientError::OtherStatement
            | ClientError::Forgotten { applied: false }
            | ClientError::NoRoom { .. }
            | ClientError::Untaken { .. } => Some(Fate::Rejected),
            ClientError::Expired => Some(Fate::Expired),
            ClientError::Forgotten { applied: true } => None,
            ClientError::NotSent
            | ClientError::Unanswered
            | ClientError::Broken
            | ClientError::Unreached { .. }
            | ClientError::Died { .. } => Some(Fate::NotSent),
        }
    }

    /// What it means if the write may have been sent before under its id. Only what the order or the ranges say of the id
    /// itself is definite. All else is about this attempt: it says nothing of an earlier one, which may have been applied.
    pub fn of_repetition(self, request: RequestId) -> ClientError {
        match self {
            ClientError::Expired | ClientError::OtherStatement | ClientError::Forgotten { .. } => self,
            ClientError::NotSent
            | ClientError::Rejected(_)
            | ClientError::MaybeApplied { .. }
            | ClientError::Unanswered
            | ClientError::Broken
            | ClientError::Unreached { .. }
            | ClientError::Died { .. }
            | ClientError::NoRoom { .. }
            | ClientError::Untaken { .. } => ClientError::MaybeApplied { request },
        }
    }
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// It was never sent: repeat it freely. Not said of a write whose id may have been used before.
    NotSent,
    /// It may have been applied, or still be: repeat it with this id.
    MaybeApplied {
        /// Its name.
        request: RequestId,
    },
    /// It was refused and applied nowhere. Not said of a write whose id may have been used before.
    Rejected(Refusal),
    /// Its id has expired; it was not executed. Whether it was before, under the same id, is not known.
    Expired,
    /// Its id is that of another statement; it was not executed.
    OtherStatement,
    /// It was repeated, and what it answered is no longer known.
    Forgotten {
        /// Whether it took effect; otherwise it failed and changed nothing.
        applied: bool,
    },
    /// A read of which there was no news for too long: repeat it freely.
    Unanswered,
    /// A read whose answer had begun lost one of the processes that told it: repeat it freely.
    Broken,
    /// A read needs a storage process that serves, and that this gateway cannot reach.
    Unreached {
        /// Who.
        process: ProcessId,
    },
    /// Storage processes died while a read was there. It is not asked of another: that one might die of it, too.
    Died {
        /// The last of them.
        process: ProcessId,
        /// Whether it was the second. Otherwise it was the first, and if another one died some range would be left without a
        /// complete replica.
        again: bool,
    },
    /// A storage process holds too much of other answers that their clients do not take to hold this read's as well.
    NoRoom {
        /// Which.
        process: ProcessId,
    },
    /// A storage process dropped the rest of a read's answer, because it was not taken in time.
    Untaken {
        /// Which.
        process: ProcessId,
    },
}
