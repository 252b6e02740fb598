//! The commands of a process that have not ended.

use quorate_protocol::group::{CommandOutcome, Failure, GroupId, Mark, Place};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// A command that has not ended.
pub(super) enum OpenCommand {
    /// Updates in progress. Their room is released when they have ended.
    Send { told: oneshot::Sender<Result<Place, Failure>>, _rooms: Vec<OwnedSemaphorePermit> },
    /// Another command with a waiting caller.
    Other(oneshot::Sender<Result<CommandOutcome, Failure>>),
    /// A join of this process, in this life of the group's row, with the checkpoint of this file.
    Join { life: RowLife, file: Option<Mark>, told: oneshot::Sender<Result<CommandOutcome, Failure>> },
    /// A leave of this process.
    Leave(RowLife),
}

/// A group, and the number of its row. A later row of the same group has another number.
pub(super) type RowLife = (GroupId, u64);

/// The end of a command that sends nothing, as a future. An error says that the process has ended.
pub(super) type CommandEnd = oneshot::Receiver<Result<CommandOutcome, Failure>>;

/// Gives a caller its result. The caller may have lost interest.
pub(super) fn complete<T>(caller: oneshot::Sender<T>, result: T) {
    let _ = caller.send(result);
}
