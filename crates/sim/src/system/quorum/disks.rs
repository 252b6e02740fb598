//! Disks of routers and cells: the processes that recover from a disk.

mod recovery;

use std::collections::BTreeMap;

use quorate_protocol::partial::Resident;

use super::{
    Settings,
    world::{QuorumStage, QuorumWorld},
};
use crate::mutation::Mutation;

/// The processes that recover.
pub(super) struct Disks {
    /// The router that founds the domain, or has founded it.
    founder: Option<usize>,
    /// Recovered cells that are about to start, by machine.
    recovered: BTreeMap<usize, Resident>,
}

impl Disks {
    /// Gives all machines disks, if the scenario has any.
    pub(super) fn new(stage: &QuorumStage, world: &mut QuorumWorld, settings: &Settings) -> Disks {
        if let Some(disk) = settings.disk {
            world.with_disks(disk, stage.mutation.and_then(Mutation::breach));
        }
        Disks { founder: None, recovered: BTreeMap::new() }
    }
}
