//! Instants and spans as plain numbers, so that the simulator can invent them.

use std::{fmt, ops};

pub use std::time::Duration;

/// Nanoseconds on the boot-time clock of the machine (in the simulator: since the run began). Monotone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Time(pub u64);

impl Time {
    /// The instant at which the clock begins.
    pub const ZERO: Time = Time(0);

    /// Returns the span since `earlier`; zero when `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the first later instant that is a multiple of `interval`, which is not zero. The instant is
    /// the same for all processes of a machine. So their periodic messages coincide, and wake each process
    /// once instead of once for each sender.
    pub fn next_multiple(self, interval: Duration) -> Time {
        let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        Time((self.0 / interval).saturating_add(1).saturating_mul(interval))
    }
}

impl ops::Add<Duration> for Time {
    type Output = Time;

    fn add(self, span: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}ms", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}
