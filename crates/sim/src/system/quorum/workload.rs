//! The workload: the requests of the users, and the known facts about the order and the cells.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use quorate_protocol::{ProcessId, Time, partial::Roster};
use quorate_world::Chance;

use super::{Settings, disks::Disks, operator::Operator, request_log::RequestLog};
use crate::check::{counters::CounterCheck, quorum::QuorumCheck};

/// The users, and the answers that they received.
pub(crate) struct MapsWorkload {
    pub(super) settings: Settings,
    pub(super) machines: Vec<usize>,
    /// The present or last process on each machine.
    pub(super) lives: BTreeMap<usize, ProcessId>,
    /// The cells and maps according to the order.
    pub(super) roster: Option<Arc<Roster>>,
    pub(super) operator: Operator,
    pub(super) disks: Disks,
    pub(super) request_log: RequestLog,
    pub(super) check: QuorumCheck,
    pub(super) counters: CounterCheck,
    /// Keys that must still be read at every owner before the end.
    pub(super) unread: Option<BTreeSet<String>>,
    /// Whether values are padded to a great length, in seeds with small limits.
    pub(super) padded: bool,
    /// The random generator that decides when the temporary map is created and dropped, and from which
    /// machine.
    pub(super) more: Chance,
    /// The time at which all operations had ended; all horizons pass this time in the end.
    pub(super) quiet_at: Option<Time>,
    pub(super) pace: Duration,
}
