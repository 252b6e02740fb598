//! Commands and events of a client.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{
    ecast::{Position, Refusal},
    fate::Fate,
    id::{Peer, ProcessId, RequestId},
    rubberband::{Config, Control, LeaveRefusal, Range, ReadCost, refusal},
    seam::CommandId,
    strength::Strength,
};

/// Commands of a client. A request with a token ends in exactly one [`ClientEvent::Done`] or
/// [`ClientEvent::Failed`].
#[derive(Clone, Debug)]
pub enum ClientCommand {
    /// A write.
    Write {
        /// The token that the user gave the request.
        token: u64,
        /// The write's id. The id of an earlier write repeats that write. A new id has a number of this
        /// client's session, close to the newest number. `None` lets the client choose.
        request: Option<RequestId>,
        /// Hash of the statement. The ranges refuse a different statement under a known id.
        print: u64,
        /// Whether the id may have been used before.
        repeated: bool,
        /// The number of the table.
        table: u32,
        /// The ring keys that the write touches; disjoint.
        ranges: SmallVec<[Range; 2]>,
        /// Whether the write can fail at run time.
        fallible: bool,
        /// The operation, opaque here.
        operation: Bytes,
    },
    /// A read.
    Read {
        /// The token that the user gave the request.
        token: u64,
        /// The strength, which says how fresh the rows must be.
        strength: Strength,
        /// The number of the table.
        table: u32,
        /// The ring keys that the read touches; disjoint.
        ranges: SmallVec<[Range; 2]>,
        /// The operation, opaque here.
        operation: Bytes,
    },
    /// A change of the configuration.
    Control {
        /// The token that the user gave the request.
        token: u64,
        /// The change.
        control: Control,
    },
    /// The user has consumed more of the pieces from one process.
    Consumed {
        /// The read's token.
        token: u64,
        /// The process that sent the pieces.
        from: ProcessId,
        /// Bytes that the user has consumed since the beginning of this process's answer.
        bytes: u64,
    },
    /// The user stops waiting. Ends the request at once: a write with [`ClientError::NotSent`] or
    /// [`ClientError::MaybeApplied`].
    Cancel {
        /// The token of the request.
        token: u64,
    },
    /// Names processes that may be routers.
    Seeds(Vec<Peer>),
    /// Leaves the cluster. Ends in [`ClientEvent::Left`].
    Leave {
        /// The caller's id of the command.
        id: CommandId,
    },
}

/// Events of a client.
#[derive(Clone, Debug)]
pub enum ClientEvent {
    /// The read's answer has begun: first pieces have come from every process that answers it, and more
    /// pieces follow as [`ClientEvent::Part`]. A read that ends with its first pieces has no such event.
    Begun {
        /// The token of the request.
        token: u64,
        /// The pieces so far, in the order of the processes.
        parts: Vec<ProcessAnswer>,
    },
    /// The next piece of an answer that has begun.
    Part {
        /// The token of the request.
        token: u64,
        /// The process that sent the piece.
        from: ProcessId,
        /// The piece, opaque here.
        content: Bytes,
        /// Whether it is that process's last piece.
        last: bool,
    },
    /// The request is answered in full.
    Done {
        /// The token of the request.
        token: u64,
        /// The position of an ordered request, or the stamp of an injected read; 0 for control messages and
        /// basic reads.
        at: Position,
        /// The answer: of a read by process, in id order; of a write by range. Empty for a read that has
        /// begun, because the user already has all its pieces.
        parts: Vec<ProcessAnswer>,
    },
    /// The request failed.
    Failed {
        /// The token of the request.
        token: u64,
        /// The reason.
        error: ClientError,
    },
    /// No router in reach has known a leader for a while (`true`), or such a router knows a leader again
    /// (`false`). Without a leader nothing is ordered, and every request that needs the order fails at once.
    Adrift(bool),
    /// A new configuration.
    Config(Arc<Config>),
    /// This serving storage process has had no link for [`ClientSettings::unreached_after`]. Reads that need
    /// it fail until it has one.
    ///
    /// [`ClientSettings::unreached_after`]: super::ClientSettings::unreached_after
    Unreached {
        /// The process.
        process: ProcessId,
        /// The process's name, for people.
        name: String,
        /// The address at which the process should listen.
        address: String,
    },
    /// The end of the command to leave.
    Left {
        /// The caller's id of the command.
        id: CommandId,
        /// The result: this process is no longer a member, or the reason why it still is.
        result: Result<(), LeaveRefusal>,
    },
    /// This process is no longer a member and must stop; it may come back under a new id.
    Wedged,
}

/// The answer of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessAnswer {
    /// The process.
    pub from: ProcessId,
    /// The read's cost at the process.
    pub spent: ReadCost,
    /// The answer, opaque here; usually one piece.
    pub pieces: SmallVec<[Bytes; 1]>,
    /// Whether all pieces of the answer are here.
    pub ended: bool,
}

impl ClientError {
    /// Returns what may have happened to the request, for its user. `None` if that is known: the write was
    /// applied, and only its answer was forgotten.
    pub fn fate(self) -> Option<Fate> {
        match self {
            ClientError::MaybeApplied { request } => Some(Fate::MaybeApplied { id: Some(request) }),
            // Supers will found the ring soon, so the request may be sent again.
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

    /// Returns the error to report if the write may have been sent under its id before. An error that the
    /// order or the ranges derive from the id itself remains as it is. Any other error concerns this
    /// attempt alone, so it becomes [`ClientError::MaybeApplied`]: an earlier attempt may have been
    /// applied.
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

/// The reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// The request was never sent, so it may be repeated freely. Never the error of a write whose id may have
    /// been used before.
    NotSent,
    /// The request may have been applied, or may still be. It must be repeated under this id.
    MaybeApplied {
        /// The request's id.
        request: RequestId,
    },
    /// The request was refused and applied nowhere. Never the error of a write whose id may have been used
    /// before.
    Rejected(Refusal),
    /// The request's id has expired. This attempt was not executed. Whether an earlier attempt was executed
    /// is unknown.
    Expired,
    /// The request's id belongs to a different statement. The request was not executed.
    OtherStatement,
    /// The request is a repetition of a write whose answer is no longer known.
    Forgotten {
        /// Whether the write took effect. If not, it failed and changed nothing.
        applied: bool,
    },
    /// A read had no news for too long. It may be repeated freely.
    Unanswered,
    /// A process that sent a part of an answer was lost after the answer had begun. The read may be repeated
    /// freely.
    Broken,
    /// A read needs a storage process that serves, but that this gateway cannot reach.
    Unreached {
        /// The process.
        process: ProcessId,
    },
    /// Storage processes died while they executed a read. The client sends the read to no other process,
    /// because that process might die of it, too.
    Died {
        /// The process that died last.
        process: ProcessId,
        /// Whether two processes died. If not, one died, and the death of a second one would leave some range
        /// without a complete replica.
        again: bool,
    },
    /// A storage process had no memory left for this read's answer, because other clients take their answers
    /// too slowly.
    NoRoom {
        /// The process.
        process: ProcessId,
    },
    /// A storage process dropped the rest of a read's answer, because the client did not take it in time.
    Untaken {
        /// The process.
        process: ProcessId,
    },
}
