//! The operator: creates the maps, gives places to spares, and disturbs the clocks and the links between
//! sites.

mod actions;

pub(super) use actions::begin;

use std::{collections::BTreeMap, time::Duration};

use quorate_protocol::{CommandId, ProcessId, Time};
use quorate_world::Chance;

use super::{Settings, world::QuorumWorld};

/// The knowledge and plans of the operator.
pub(super) struct Operator {
    chance: Chance,
    /// The error of each machine's clock, in nanoseconds.
    skews: BTreeMap<usize, i64>,
    skew_max: Duration,
    /// The last clock that jumped, the distance in nanoseconds, and the end of the jump.
    jump: Option<(usize, i64, Time)>,
    /// The time from which the last jump of any clock is over for all machines.
    calm_from: Time,
    /// A place that is being given away: the command, and the old cell.
    replacing: Option<(CommandId, ProcessId)>,
}

impl Operator {
    pub(super) fn new(seed: u64, settings: &Settings, machines: &[usize]) -> Self {
        let mut chance = Chance::new(seed, "operator");
        let skew_max = Duration::from_millis(settings.skew_ms);
        let widest = skew_max.as_nanos() as u64;
        let mut skew = |machine: &usize| (*machine, chance.below(2 * widest + 1) as i64 - widest as i64);
        let skews = machines.iter().map(&mut skew).collect();
        Operator { chance, skews, skew_max, jump: None, calm_from: Time::ZERO, replacing: None }
    }

    /// Whether a spare may be about to take the place of a cell.
    pub(super) fn is_replacing(&self) -> bool {
        self.replacing.is_some()
    }

    /// Returns the wall clock of a machine less its boot-time clock, in nanoseconds.
    pub(super) fn offset(&self, world: &QuorumWorld, machine: usize) -> i64 {
        let jumped = self.jump.filter(|(at, _, until)| *at == machine && world.now() < *until);
        let skew = self.skews[&machine] + jumped.map_or(0, |(_, by, _)| by);
        world.now().0 as i64 + skew - world.clock(machine).0 as i64
    }

    /// Returns the upper bound of stamps of writes at a quorum: one of the replicas that took such a write
    /// has a clock that did not jump.
    pub(super) fn latest_stamp(&self, world: &QuorumWorld, allowed: Duration) -> u64 {
        (world.now() + self.skew_max + allowed + DRIFT).0
    }

    /// Returns the sum of two bounds: how far a coordinator's clock may be ahead of a reader's, and how late
    /// an operation may end.
    pub(super) fn apart_max(&self) -> Duration {
        let jumps = Duration::from_nanos(AHEAD.unsigned_abs() + BEHIND.unsigned_abs());
        self.skew_max * 2 + jumps + DRIFT * 2 + LATE
    }

    /// Whether all stamps of clocks that jumped lie in the past for all cells.
    pub(super) fn clocks_are_right(&self, world: &QuorumWorld) -> bool {
        self.calm_from <= world.now()
    }

    /// Notes the end of a requested change.
    pub(super) fn changed(&mut self, world: &mut QuorumWorld, id: CommandId, done: bool) {
        if self.replacing.is_some_and(|(asked, _)| asked == id) {
            world.count(if done { "replaced by a spare" } else { "replacement refused" });
            self.replacing = None;
        }
    }
}

/// The distance of a jump ahead, in nanoseconds: further than a stamp may be ahead.
const AHEAD: i64 = 3_000_000_000;
/// The distance of a jump back, in nanoseconds.
const BEHIND: i64 = -1_500_000_000;
/// Longest wait of a read for its answers, and of a write for its delay.
const LATE: Duration = Duration::from_secs(2);
/// Longest error of fast clocks before they are set again.
const DRIFT: Duration = Duration::from_millis(20);
