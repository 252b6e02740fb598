//! The work of a role: it makes the process of each life of a member, and has the state that outlives a life.

use std::{any::Any, future, pin::Pin};

use quorate_protocol::{Generation, ProcessId};
use quorate_roles::tables;

use super::{founding::Beginning, journal::Journal, setup::Setup};
use crate::{
    error::Error,
    process::{Parts, Process},
};

/// The work of a member in its role, over its lives.
pub(super) trait RoleWork: Any + Send + Sync {
    /// Makes the process of the next life.
    fn begin(&self, setup: &Setup, start: LifeStart) -> Result<NewProcess, Error>;

    /// Notes that this process is the member's present process, to which all requests go from now on.
    fn go_on(&self, _process: &Process, _me: ProcessId) {}

    /// Takes the state that the process of an ended life leaves to the next life. Returns whether that
    /// process left anything.
    fn take_handover(&self, _process: &Process) -> bool {
        false
    }

    /// Ends the requests to the process of an ended life.
    fn end_requests(&self) {}

    /// Returns a future that is ready when the cluster has admitted the process. The future is ready at once
    /// if no caller of this role waits for the admission.
    fn admitted(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(future::ready(()))
    }
}

/// The state with which a life begins.
pub(super) struct LifeStart {
    /// The last generation of the domain that the previous life knew; `None` for the first life.
    pub(super) former: Option<Generation>,
    /// The way in which a router's first life begins.
    pub(super) beginning: Option<Beginning>,
    /// The journal of a process with a disk.
    pub(super) journal: Option<Journal>,
}

impl LifeStart {
    /// Returns the start of the life that follows a life with this generation. The other processes go on
    /// without the former life, so the new journal is empty.
    pub(super) fn after(former: Generation, setup: &Setup) -> Result<LifeStart, Error> {
        Ok(LifeStart { former: Some(former), beginning: None, journal: setup.empty_journal()? })
    }
}

/// A process that is about to start.
pub(super) struct NewProcess {
    pub(super) me: ProcessId,
    pub(super) generation: Generation,
    pub(super) state: tables::Process,
    pub(super) parts: Parts,
}
