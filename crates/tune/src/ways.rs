//! Settings, and the ways between the two ends along which they are looked for.

use std::time::Duration;

use quorate::maps::Level;
use serde::Serialize;

use crate::dial::{Choice, Dial, Dials};

/// The two levels between which the dial is.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The faster one.
    pub weak: Level,
    /// The one at which reads and writes meet.
    pub strong: Level,
    /// How it is chosen which operations are strong.
    pub choice: Choice,
}

/// A place between the ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// The part of the reads that are strong.
    pub p_reads: f64,
    /// The part of the writes that are strong.
    pub p_writes: f64,
    /// Seconds before each read.
    pub delay_reads: f64,
    /// Seconds after each write.
    pub delay_writes: f64,
}

impl Setting {
    /// All operations weak, and none delayed.
    pub const WEAK: Setting = Setting { p_reads: 0.0, p_writes: 0.0, delay_reads: 0.0, delay_writes: 0.0 };
    /// All operations strong, and none delayed.
    pub const STRONG: Setting = Setting { p_reads: 1.0, p_writes: 1.0, ..Setting::WEAK };

    /// The dials of it.
    pub fn dials(&self, ends: Ends) -> Dials {
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

/// A line from all weak operations to somewhere: its places are from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    /// A part of all operations is strong.
    Levels,
    /// All operations are delayed, up to so many seconds.
    Delays(f64),
    /// Only writes are delayed.
    WriteDelays(f64),
    /// A part of the reads is strong.
    Reads,
    /// A part of the writes is strong.
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

/// A part of a way, within which a setting may keep the agreement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stretch {
    pub(crate) way: Way,
    /// Too weak up to here, as far as is known.
    pub(crate) low: f64,
    /// Too slow, or kept, from here on.
    pub(crate) high: f64,
    /// The least that was seen to keep the agreement.
    pub(crate) kept: Option<f64>,
    /// Places that were tried and did not keep it.
    failures: usize,
}

/// Stretches shorter than this have nothing left to try.
const NEAR: f64 = 0.04;

/// Places of a stretch that are considered, by how many have failed there: who proposed them was wrong, and is believed less. In the end they are halves.
const PLACES: [&[f64]; 3] = [&[0.12, 0.3, 0.5, 0.7, 0.88, 0.96], &[0.3, 0.5, 0.7], &[0.5]];

impl Stretch {
    pub(crate) fn whole(way: Way) -> Stretch {
        Stretch { way, low: 0.0, high: 1.0, kept: None, failures: 0 }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.high - self.low < NEAR
    }

    pub(crate) fn middle(&self) -> f64 {
        (self.low + self.high) / 2.0
    }

    /// Places to choose from.
    pub(crate) fn places(&self) -> impl Iterator<Item = f64> + use<> {
        let Stretch { low, high, failures, .. } = *self;
        PLACES[failures.min(PLACES.len() - 1)].iter().map(move |part| low + part * (high - low))
    }

    /// Takes the outcome of a place: whether it was too weak, too slow, or both, which says that the way does not lead there.
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
