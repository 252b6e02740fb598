//! The commands of a process that have not ended.

use quorate_protocol::group::{CommandOutcome, Failure, GroupId, Mark, Place};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// A command that has not ended.
pub(super) enum OpenCommand {
    /// Updates in progress. Their share of the member's room is released when they have ended.
    Send { result_sender: oneshot::Sender<Result<Place, Failure>>, _rooms: Vec<OwnedSemaphorePermit> },
    /// A command other than a send, join or leave, with a waiting caller.
    Other(oneshot::Sender<Result<CommandOutcome, Failure>>),
    /// A join of this process's row of the group, with the checkpoint that the process has in a file. `life`
    /// distinguishes this row from a later row.
    Join {
        life: RowLife,
        file: Option<Mark>,
        result_sender: oneshot::Sender<Result<CommandOutcome, Failure>>,
    },
    /// A leave of this process.
    Leave(RowLife),
}

/// A group, and the number of this process's row of the group. A later row of the same group has a larger
/// number.
pub(super) type RowLife = (GroupId, u64);

/// The end of a command that sends nothing, as a future. A receive error means that the process has ended.
pub(super) type CommandEnd = oneshot::Receiver<Result<CommandOutcome, Failure>>;

/// Passes the result to the caller, who may no longer wait.
pub(super) fn complete<T>(caller: oneshot::Sender<T>, result: T) {
    let _ = caller.send(result);
}
