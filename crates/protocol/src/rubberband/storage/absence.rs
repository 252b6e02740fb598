//! The state of a storage process that stops before a restart: how far its pause has come, or the reason why
//! it may not stop ([`pause`](super::pause)).

use thiserror::Error;

use crate::{ecast::Position, seam::CommandId};

/// The reason why a storage process refuses to pause: its stop would disturb the other processes now, or it
/// cannot pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PauseRefusal {
    /// The process has no disk, so it would come back as another process.
    #[error("this process keeps no rows on disk, so its rows would be lost when it stops")]
    NoDisk,
    /// No other process could do this process's work while it is away.
    #[error(
        "the other processes need this process now: rows are moving, or some range has no other complete replica"
    )]
    Needed,
    /// The process is no member.
    #[error("this process has not joined the domain, or was cut off from the domain")]
    NotJoined,
    /// An earlier command to pause has not ended, or was accepted.
    #[error("this process was already asked to stop: wait until the first request is done")]
    Already,
}

/// The progress of stopping or coming back.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// The command to pause that has not ended.
    pub(super) asked: Option<CommandId>,
    /// Whether this process is about to stop.
    pub(super) going: bool,
    /// Position from which on the other processes count this process as away.
    pub(super) away: Option<Position>,
    /// Position up to which the process must execute before it has caught up.
    pub(super) back: Option<Position>,
}
