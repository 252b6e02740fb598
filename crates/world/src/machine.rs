//! A machine: its clock, its processor, its inbox, and the process on it.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use quorate_protocol::{ProcessId, Protocol, Ticket, Time, journal::RemoteDurability};
use serde::{Deserialize, Serialize};

use crate::{
    disk::Disk,
    network::{Frame, LifeNumber},
    random::{Chance, Delay},
};

/// Speeds of machines, and accuracy of their clocks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MachineSettings {
    /// Processing time of an input, in microseconds.
    pub input_micros: f64,
    /// Processing time of a thousand bytes, in or out, in microseconds.
    pub kilobyte_micros: f64,
    /// Time for which inputs gather before the process gets them as a batch, in microseconds.
    pub gather_micros: f64,
    /// Delay with which timers fire.
    pub timer_lateness: Delay,
    /// Largest fraction by which clocks run fast or slow.
    pub drift_max: f64,
    /// Upper bound of the factor by which processors are slower than the fastest.
    pub slowness_max: f64,
}

impl Default for MachineSettings {
    fn default() -> Self {
        MachineSettings {
            input_micros: 1.0,
            kilobyte_micros: 0.5,
            gather_micros: 5.0,
            timer_lateness: Delay::Exponential { least_micros: 1.0, mean_micros: 80.0 },
            drift_max: 2e-4,
            slowness_max: 2.0,
        }
    }
}

pub(crate) struct Machine<P: Protocol> {
    /// The address of processes on this machine.
    pub(crate) address: String,
    pub(crate) process: Option<P>,
    pub(crate) life: LifeNumber,
    pub(crate) inbox: VecDeque<Arrival<P>>,
    /// Lives with which the present process has or wants a link.
    pub(crate) neighbours: BTreeSet<LifeNumber>,
    pub(crate) chance: Chance,
    pub(crate) clock: MachineClock,
    pub(crate) slowness: f64,
    pub(crate) busy_until: Time,
    pub(crate) paused_until: Time,
    /// The name of the fault that caused the pause, for the counts.
    pub(crate) paused_by: &'static str,
    pub(crate) work_at: Option<Time>,
    pub(crate) wake_at: Option<Time>,
    pub(crate) tickets: u64,
    /// The machine's disk, in a world with disks.
    pub(crate) disk: Option<Disk>,
    /// The announcements of other processes about their journals.
    pub(crate) remote_durability: RemoteDurability,
}

/// A machine's boot-time clock.
#[derive(Clone, Copy)]
pub(crate) struct MachineClock {
    pub(crate) base: u64,
    /// Nanoseconds that the clock counts in a real second.
    pub(crate) rate: u64,
}

impl MachineClock {
    /// Makes a clock that shows `base` at the beginning and runs fast by the fraction `drift`.
    pub(crate) fn new(base: u64, drift: f64) -> Self {
        MachineClock { base, rate: (NANOS as f64 * (1.0 + drift)) as u64 }
    }

    pub(crate) fn local(self, real: Time) -> Time {
        Time(self.base + (u128::from(real.0) * u128::from(self.rate) / NANOS) as u64)
    }

    /// Returns the first real instant at which the clock shows `local` or later.
    pub(crate) fn real(self, local: Time) -> Time {
        let past = u128::from(local.0.saturating_sub(self.base));
        Time(u64::try_from((past * NANOS).div_ceil(u128::from(self.rate))).unwrap_or(u64::MAX))
    }
}

pub(crate) enum Arrival<P: Protocol> {
    Frame { from: LifeNumber, frame: Frame },
    Cast { from: LifeNumber, message: Bytes },
    Linked { peer: LifeNumber, session: u64 },
    Unlinked { peer: ProcessId },
    Command(P::Command),
    Deadline,
    Persisted(Ticket),
}

const NANOS: u128 = 1_000_000_000;
