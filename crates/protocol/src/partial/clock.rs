//! Hybrid clocks: stamps that follow the wall clock, and never fall behind a stamp that was seen.
//!
//! After Kulkarni and others, *Logical Physical Clocks* (2014). The logical part needs no bits of its own:
//! the wall clock counts nanoseconds, and a clock that must go beyond it adds one nanosecond. Each stamp is
//! issued once. Its time ascends within one life of a cell, and its second half names this life. So two
//! writes never share a stamp.
//!
//! No promise of this module's users rests on clocks being right. If a key had a stamp far in the future,
//! other cells could not write the key until then. So such a stamp is refused twice: by the cell that would
//! issue it, and by each replica that would take it.

use thiserror::Error;

use super::{id::CellNumber, stamp::Stamp};
use crate::time::{Duration, Time};

/// A stamp is further ahead of a wall clock than is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a stamp is {ahead:?} ahead of this machine's wall clock, and at most {allowed:?} are allowed: set the \
     clocks of the machines"
)]
pub struct Skewed {
    /// The time by which the stamp is ahead.
    pub ahead: Duration,
    /// The greatest time by which a stamp may be ahead.
    pub allowed: Duration,
}

/// The clock of one life of a cell.
#[derive(Debug)]
pub struct Clock {
    /// Wall clock less boot-time clock, in nanoseconds.
    offset: i64,
    /// The greatest time issued or admitted, in nanoseconds.
    last: u64,
    /// The greatest time that this clock issued, or that it was [raised](Clock::raise) to, in nanoseconds.
    issued: u64,
    skew_max: Duration,
}

impl Clock {
    /// Returns a clock that has issued nothing. `offset` is the wall clock less the boot-time clock, in
    /// nanoseconds.
    pub fn new(offset: i64, skew_max: Duration) -> Clock {
        Clock { offset, last: 0, issued: 0, skew_max }
    }

    /// Corrects the offset after the wall clock was set or measured again.
    pub fn adjust(&mut self, offset: i64) {
        self.offset = offset;
    }

    /// Returns the wall clock, in nanoseconds.
    pub fn wall(&self, now: Time) -> u64 {
        now.0.saturating_add_signed(self.offset)
    }

    /// Issues a stamp of `cell`, which owns this clock. The stamp is above `floor` and above every stamp that
    /// this clock has issued or admitted.
    pub fn issue(&mut self, cell: CellNumber, floor: Stamp, now: Time) -> Result<Stamp, Skewed> {
        let time = self.last.max(floor.time).saturating_add(1).max(self.wall(now));
        self.check(time, now)?;
        assert!(time > self.last, "every stamp is issued once, but {time} is not new");
        self.last = time;
        self.issued = time;
        Ok(Stamp { time, cell })
    }

    /// Returns the greatest time that this clock issued or was raised to.
    pub(super) fn issued(&self) -> u64 {
        self.issued
    }

    /// Returns the latest time of a stamp that this clock admits.
    pub(super) fn latest(&self, now: Time) -> u64 {
        let ahead = u64::try_from(self.skew_max.as_nanos()).unwrap_or(u64::MAX);
        self.wall(now).saturating_add(ahead).min(u64::MAX - 1)
    }

    /// Admits a stamp of another cell: later stamps of this clock are above it.
    pub fn admit(&mut self, stamp: Stamp, now: Time) -> Result<(), Skewed> {
        self.check(stamp.time, now)?;
        self.last = self.last.max(stamp.time);
        Ok(())
    }

    /// Raises the clock: it issues nothing at or below this time from now on.
    pub(super) fn raise(&mut self, time: u64) {
        self.continue_above(time);
        self.issued = self.issued.max(time);
    }

    /// Continues above a time that an earlier life of the process had reserved. Unlike with
    /// [`raise`](Clock::raise), the time does not count as issued.
    pub(super) fn continue_above(&mut self, time: u64) {
        self.last = self.last.max(time);
    }

    fn check(&self, time: u64, now: Time) -> Result<(), Skewed> {
        let ahead = Duration::from_nanos(time.saturating_sub(self.wall(now)));
        if ahead > self.skew_max || time == u64::MAX {
            return Err(Skewed { ahead, allowed: self.skew_max });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: Duration = Duration::from_millis(100);

    const ME: CellNumber = CellNumber(2);

    fn clock(offset: i64) -> Clock {
        Clock::new(offset, ALLOWED)
    }

    #[test]
    fn stamps_ascend_though_the_wall_clock_stands_or_goes_back() {
        let mut clock = clock(1_000_000);
        let first = clock.issue(ME, Stamp::ZERO, Time(5)).unwrap();
        assert_eq!(first, Stamp { time: 1_000_005, cell: CellNumber(2) });
        let second = clock.issue(ME, Stamp::ZERO, Time(5)).unwrap();
        clock.adjust(0);
        let third = clock.issue(ME, Stamp::ZERO, Time(6)).unwrap();
        assert!(first < second && second < third);
    }

    #[test]
    fn a_stamp_is_above_its_floor_and_above_what_was_admitted() {
        let mut clock = clock(0);
        let floor = Stamp { time: 900, cell: CellNumber(7) };
        assert!(clock.issue(ME, floor, Time(10)).unwrap() > floor);
        let seen = Stamp { time: 5_000, cell: CellNumber(1) };
        clock.admit(seen, Time(10)).unwrap();
        assert!(clock.issue(ME, Stamp::ZERO, Time(10)).unwrap() > seen);
    }

    #[test]
    fn beyond_the_allowed_skew_stamps_are_neither_admitted_nor_issued() {
        let mut clock = clock(0);
        let allowed = ALLOWED.as_nanos() as u64;
        let far = Stamp { time: allowed + 1, cell: CellNumber(1) };
        assert_eq!(clock.admit(far, Time(0)).unwrap_err().ahead, Duration::from_nanos(allowed + 1));
        assert!(clock.issue(ME, far, Time(0)).is_err());
        // The refused stamps have not changed the clock.
        assert_eq!(clock.issue(ME, Stamp::ZERO, Time(3)).unwrap().time, 3);
        // The wall clock goes back by a second. The clock issues nothing above the last stamp until the wall
        // clock is near it again.
        clock.admit(Stamp { time: allowed, cell: CellNumber(1) }, Time(3)).unwrap();
        clock.adjust(-1_000_000_000);
        assert!(clock.issue(ME, Stamp::ZERO, Time(4)).is_err());
        assert!(clock.issue(ME, Stamp::ZERO, Time(1_000_000_001)).is_ok());
        assert!(clock.admit(Stamp { time: u64::MAX, cell: CellNumber(1) }, Time(u64::MAX)).is_err());
    }
}
