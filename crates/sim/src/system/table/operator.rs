//! An operator with tables, and the accidents that make one necessary.
//!
//! In some runs all holders of a range die at once, for good. The rows of the range are lost, and the
//! operator declares the last holder lost once this holder is unreachable and will not return. The operator
//! declares no process lost while a living process holds all its rows, unless the living process is a
//! keeper that offers them to the others. Sometimes the operator lets a standby replace a healthy process.
//! Sometimes the operator makes a process with a disk stop for a moment; the process ends whether or not it
//! has announced the stop by then.

mod actions;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use quorate_protocol::{ProcessId, Time};
use quorate_world::Chance;

use crate::check::holders::Keys;

/// The operator.
pub(super) struct Operator {
    /// The time from which on a range is chosen whose holders will die.
    accident_at: Option<Time>,
    /// The range whose holders die next: when a write to it exchanges verdicts, or at this time at the
    /// latest.
    doomed: Option<(Keys, Time)>,
    /// Unreachable processes, each with the time at which the operator learned of it.
    unreachable: BTreeMap<ProcessId, Time>,
    /// Processes that the operator declared lost.
    declared: BTreeSet<ProcessId>,
    chance: Chance,
}

impl Operator {
    /// Whether the operator declared this process lost.
    pub(super) fn declared(&self, process: ProcessId) -> bool {
        self.declared.contains(&process)
    }

    /// Creates the operator. With probability `losses` the run has an accident while its faults last.
    pub(super) fn new(seed: u64, losses: f64, safety: Duration) -> Self {
        let mut chance = Chance::new(seed, "operator");
        let accident_at =
            chance.happens(losses).then(|| Time::ZERO + chance.between(safety / 4, safety.mul_f64(0.9)));
        Operator {
            accident_at,
            doomed: None,
            unreachable: BTreeMap::new(),
            declared: BTreeSet::new(),
            chance,
        }
    }
}
