//! One life of a node: a process, made by the work of its role.

use std::sync::Arc;

use quorate_protocol::{Generation, ProcessId};
use quorate_runtime::{Config, metrics::Metrics};

use super::{
    role_work::{LifeStart, NewProcess, RoleWork},
    setup::Setup,
};
use crate::{error::Error, process::Process};

/// Bytes of records after which a process with a disk writes its whole state, and forgets all earlier
/// records.
pub(crate) const CHECKPOINT_BYTES: usize = 64 << 20;

/// A process that began.
pub(super) struct ProcessLife {
    pub(super) me: ProcessId,
    pub(super) generation: Generation,
    pub(super) process: Arc<Process>,
    pub(super) metrics: Metrics,
}

impl ProcessLife {
    /// Begins a life.
    pub(super) fn begin(setup: &Setup, work: &dyn RoleWork, start: LifeStart) -> Result<ProcessLife, Error> {
        let NewProcess { me, generation, state, parts } = work.begin(setup, start)?;
        let metrics = Metrics::new([("process", setup.name.clone()), ("role", setup.role.to_string())]);
        let mut config = Config::new(setup.domain, me, Vec::new());
        config.listening = vec![setup.listener.clone()];
        config.advertise = Some(setup.advertised.clone());
        config.insecure = setup.insecure;
        config.metrics = metrics.clone();
        let process = Arc::new(Process::start(state, config, parts)?);
        work.go_on(&process, me);
        Ok(ProcessLife { me, generation, process, metrics })
    }
}
