//! Settings, and the ways between the two ends along which the controller searches.

use std::time::Duration;

use quorate::maps::Level;
use serde::Serialize;

use crate::dial::{Choice, Dial, Dials};

/// The two levels between which the dials turn.
#[derive(Clone, Copy, Debug)]
pub struct LevelEnds {
    /// The faster level.
    pub weak: Level,
    /// The level whose reads and writes meet.
    pub strong: Level,
    /// Rule that decides which operations are strong.
    pub choice: Choice,
}

/// A setting of the dials, between the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// Fraction of the reads that are strong.
    pub p_reads: f64,
    /// Fraction of the writes that are strong.
    pub p_writes: f64,
    /// Delay before each read, in seconds.
    pub delay_reads: f64,
    /// Delay after each write, in seconds.
    pub delay_writes: f64,
}

impl Setting {
    /// All operations weak, without delays.
    pub const WEAK: Setting = Setting { p_reads: 0.0, p_writes: 0.0, delay_reads: 0.0, delay_writes: 0.0 };
    /// All operations strong, without delays.
    pub const STRONG: Setting = Setting { p_reads: 1.0, p_writes: 1.0, ..Setting::WEAK };

    /// Returns the dials of this setting.
    pub fn dials(&self, ends: LevelEnds) -> Dials {
        let dial = |p, delay| Dial {
            weak: ends.weak,
            strong: ends.strong,
            p,
            delay: Duration::from_secs_f64(delay),
        };
        Dials {
            reads: dial(self.p_reads, self.delay_reads),
            writes: dial(self.p_writes, self.delay_writes),
            choice: ends.choice,
        }
    }
}

/// A line of settings that begins with all operations weak. Its places are numbers from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    /// The fraction of strong operations grows.
    Levels,
    /// The delay of all operations grows, up to this number of seconds.
    Delays(f64),
    /// The delay of writes grows, up to this number of seconds.
    WriteDelays(f64),
    /// The fraction of strong reads grows.
    Reads,
    /// The fraction of strong writes grows.
    Writes,
}

impl Way {
    pub(crate) fn at(self, x: f64) -> Setting {
        match self {
            Way::Levels => Setting { p_reads: x, p_writes: x, ..Setting::WEAK },
            Way::Delays(longest) => {
                Setting { delay_reads: x * longest, delay_writes: x * longest, ..Setting::WEAK }
            }
            Way::WriteDelays(longest) => Setting { delay_writes: x * longest, ..Setting::WEAK },
            Way::Reads => Setting { p_reads: x, ..Setting::WEAK },
            Way::Writes => Setting { p_writes: x, ..Setting::WEAK },
        }
    }
}

/// A stretch: the part of a way in which some setting may still keep the agreement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WayRange {
    pub(crate) way: Way,
    /// The highest place on the way whose setting is known to be too weak, from 0 to 1. All settings below it
    /// count as too weak.
    pub(crate) low: f64,
    /// The lowest place on the way that is known to be too slow or to keep the agreement.
    pub(crate) high: f64,
    /// Lowest place that kept the agreement.
    pub(crate) kept: Option<f64>,
    /// Number of settings on the stretch that were tried and did not keep the agreement.
    failures: usize,
}

/// Length below which a stretch is not searched further.
const WAY_RANGE_MIN: f64 = 0.04;

/// Places on a stretch that are considered, as fractions of its length. The index is the number of failures
/// on the stretch: the more failures, the fewer places the model may choose from. In the end only the middle
/// is left, which halves the stretch.
const PLACES: [&[f64]; 3] = [&[0.12, 0.3, 0.5, 0.7, 0.88, 0.96], &[0.3, 0.5, 0.7], &[0.5]];

impl WayRange {
    pub(crate) fn whole(way: Way) -> WayRange {
        WayRange { way, low: 0.0, high: 1.0, kept: None, failures: 0 }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.high - self.low < WAY_RANGE_MIN
    }

    pub(crate) fn middle(&self) -> f64 {
        (self.low + self.high) / 2.0
    }

    /// Returns the places of the stretch from which the next setting is chosen.
    pub(crate) fn places(&self) -> impl Iterator<Item = f64> + use<> {
        let WayRange { low, high, failures, .. } = *self;
        PLACES[failures.min(PLACES.len() - 1)].iter().map(move |part| low + part * (high - low))
    }

    /// Records that a place failed: the setting there was too weak, too slow, or both. If it was both, no
    /// other place on the way can keep the agreement.
    pub(crate) fn fails(&mut self, x: f64, is_weak: bool, is_slow: bool) {
        self.failures += 1;
        if is_weak {
            self.low = self.low.max(x);
        }
        if is_slow {
            self.high = self.high.min(x);
        }
    }
}
