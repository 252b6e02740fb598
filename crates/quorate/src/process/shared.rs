//! The state that the threads of a process share, and the end of a process.

use std::{
    fmt,
    sync::{Mutex, OnceLock},
};

use quorate_protocol::{
    DomainId, Generation, ProcessId, Terms, domain::Shared as Held, group::Roster, relay::Relay,
    rubberband::Handover,
};
use quorate_roles::tables::{self, status::Status};
use quorate_runtime::Port;

use crate::waiters::Calls;

/// The reason why a process cannot continue. The process should end, and may be restarted as a new
/// incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The other processes removed this one and go on without it.
    Wedged,
    /// The domain went on in a later generation, without this router.
    Outdated(Generation),
    /// The domain does not admit the process, and never will with the process's present configuration.
    NotAdmitted(String),
    /// The process's directory is an older copy of itself that was put back.
    OlderCopy(String),
    /// The process broke an invariant, or received a state that does not decode.
    Broken(String),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Wedged => f.write_str("the other processes go on without this process, which was cut off"),
            End::Outdated(generation) => {
                write!(f, "the domain went on as generation {generation} without this router")
            }
            End::NotAdmitted(why) => write!(f, "the domain does not take this process in: {why}"),
            End::OlderCopy(why) => f.write_str(why),
            End::Broken(why) => write!(f, "this process cannot go on: {why}"),
        }
    }
}

/// The state that the threads of a process share.
pub(crate) struct ProcessShared {
    pub(super) port: OnceLock<Port<Relay<tables::Process>>>,
    pub(super) statuses: Calls<Status>,
    pub(super) rosters: Calls<Held<Roster>>,
    pub(super) operations: Calls<Result<(), String>>,
    /// The state that a storage process which is out leaves to its next incarnation.
    pub(super) remains: Mutex<Option<Box<Handover>>>,
}

/// The identity of this process, for comparison with another one.
#[derive(Clone)]
pub(super) struct Identity {
    pub(super) domain: DomainId,
    pub(super) me: ProcessId,
    pub(super) address: String,
    pub(super) terms: Option<Terms>,
}
