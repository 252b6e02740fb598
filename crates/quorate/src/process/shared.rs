//! The state that the threads of a process share.

use std::sync::{Mutex, OnceLock};

use quorate_protocol::{
    DomainId, ProcessId, Terms, domain::Shared as Held, group::Roster, relay::Relay, rubberband::Handover,
};
use quorate_roles::tables::{self, status::Status};
use quorate_runtime::Port;

use crate::waiters::Calls;

/// The state that the threads of a process share.
pub(crate) struct ProcessShared {
    pub(super) port: OnceLock<Port<Relay<tables::Process>>>,
    pub(super) statuses: Calls<Status>,
    pub(super) rosters: Calls<Held<Roster>>,
    pub(super) operations: Calls<Result<(), String>>,
    /// The state that an excluded storage process leaves to its next life.
    pub(super) remains: Mutex<Option<Box<Handover>>>,
}

/// The identity of this process, for comparison with the identity of another process.
#[derive(Clone)]
pub(super) struct Identity {
    pub(super) domain: DomainId,
    pub(super) me: ProcessId,
    pub(super) address: String,
    pub(super) terms: Option<Terms>,
}
