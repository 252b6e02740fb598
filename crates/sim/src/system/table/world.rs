//! The types of the stage and of the world of this system, and the timers of its workload.

use quorate_protocol::ProcessId;

use super::table_process::TableProcess;
use crate::stage;

pub(super) type TableStage = stage::Stage<TableTimer>;
pub(super) type TableWorld = quorate_world::World<TableProcess>;

pub(crate) enum TableTimer {
    Act,
    Watch,
    /// All holders of the doomed range die.
    Bereave,
    /// This process stops, as it announced, and is started again.
    Stop(ProcessId),
    /// A process that has just begun gets the addresses of routers.
    Seed(usize),
}
