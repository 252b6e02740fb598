//! The commands that a user gives a client, and the events that end them: each command that calls the service
//! ends in one event with the fate of the call.

use bytes::Bytes;

use crate::{
    id::Peer,
    seam::CommandId,
    service::{Abort, CallId},
};

/// A request of a user to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientCommand {
    /// Calls the service. Ends in one [`ClientEvent`].
    Call {
        /// The name that the user gives the command.
        command: CommandId,
        /// Whether the call changes nothing.
        read: bool,
        /// The names of the items that the call touches ([`Scope::keys`](crate::service::Scope::keys)). If
        /// the list is empty, the call touches everything.
        keys: Vec<u64>,
        /// The request, which only the service understands.
        request: Bytes,
    },
    /// Calls the service under a key of the user's choice. The call takes effect only once, whichever clients
    /// repeat it under this key, as long as the replicas remember the key. Ends in one [`ClientEvent`].
    Keyed {
        /// The name that the user gives the command.
        command: CommandId,
        /// A hash of the key.
        key: u64,
        /// The names of the items that the call touches. If the list is empty, the call touches everything.
        keys: Vec<u64>,
        /// The request, which only the service understands.
        request: Bytes,
    },
    /// Calls the service in a transaction. The user must have the answer to the transaction's previous call.
    /// The first such call begins the transaction. Ends in one [`ClientEvent`].
    Part {
        /// The name that the user gives the command.
        command: CommandId,
        /// The user's number for the transaction, never used before.
        transaction: u64,
        /// Whether the call changes nothing.
        read: bool,
        /// The names of the items that the call touches. If the list is empty, the call touches everything.
        keys: Vec<u64>,
        /// The request, which only the service understands.
        request: Bytes,
    },
    /// Commits a transaction. Ends in one [`ClientEvent`], whose reply is empty.
    Commit {
        /// The name that the user gives the command.
        command: CommandId,
        /// The number of the transaction.
        transaction: u64,
    },
    /// Abandons a transaction. No event ends this command, because replicas cannot tell an abandoned
    /// transaction from a forgotten one.
    Abandon {
        /// The number of the transaction.
        transaction: u64,
    },
    /// Repeats a call whose fate was [`Fate::MaybeApplied`]: the call takes effect now unless it already has.
    /// Ends in one [`ClientEvent`].
    Again {
        /// The name that the user gives the repetition.
        command: CommandId,
        /// The id of the call whose outcome is unknown.
        id: CallId,
    },
    /// Names further replicas that the client can ask.
    Seeds(Vec<Peer>),
}

impl ClientCommand {
    /// Returns the name of the command, if the command ends in an event.
    pub fn command(&self) -> Option<CommandId> {
        match self {
            ClientCommand::Call { command, .. }
            | ClientCommand::Keyed { command, .. }
            | ClientCommand::Part { command, .. }
            | ClientCommand::Commit { command, .. }
            | ClientCommand::Again { command, .. } => Some(*command),
            ClientCommand::Abandon { .. } | ClientCommand::Seeds(_) => None,
        }
    }

    /// Returns the approximate memory of the command, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            ClientCommand::Call { request, .. }
            | ClientCommand::Keyed { request, .. }
            | ClientCommand::Part { request, .. } => request.len(),
            _ => 0,
        }
    }
}

/// The report that a command has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientEvent {
    /// The name of the command.
    pub command: CommandId,
    /// The fate of the call.
    pub fate: Fate,
}

/// The fate of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The call took effect once, with this reply.
    Done(Bytes),
    /// The service refused the call, with this reason. Nothing was changed.
    Rejected(Bytes),
    /// The call has changed nothing and never will: either it was sent to no replica, or no replica had room
    /// for it, or it is a read that got no answer.
    NotSent,
    /// The call's transaction has ended without effect, and never takes effect.
    Aborted(Abort),
    /// The call was sent, and may have taken effect or may still do so. The user can repeat it under this id.
    MaybeApplied {
        /// The call's id.
        id: CallId,
    },
    /// The call's key was already used for a different request. Nothing was changed.
    Reused,
    /// The repeated call is no longer remembered: its session has ended, or too many later calls were made.
    /// From now on the call never takes effect, and whether it already has is unknown.
    Expired,
}
