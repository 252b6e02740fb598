//! The outside inputs of a service while it executes a request.

use std::{
    slice,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use quorate_runtime::chance::Chance;

/// The time and random numbers, for [`Service::execute`](super::Service::execute). The change carries what
/// the backups need of these values.
#[derive(Debug)]
pub struct Cx<'a> {
    pub(super) source: Source<'a>,
}

/// The source of the time and of the random numbers that a service sees.
#[derive(Debug)]
pub(super) enum Source<'a> {
    /// The machine's clock and random numbers. `noted` records the drawn values for a witness, with which
    /// backups repeat the execution.
    Machine { clock: &'a mut Clock, chance: &'a mut Chance, noted: Option<&'a mut Vec<u64>> },
    /// The values that the leader drew.
    Again(slice::Iter<'a, u64>),
}

impl Source<'_> {
    fn draw(&mut self, from: impl FnOnce(&mut Clock, &mut Chance) -> u64) -> u64 {
        match self {
            Source::Machine { clock, chance, noted } => {
                let drawn = from(clock, chance);
                if let Some(noted) = noted {
                    noted.push(drawn);
                }
                drawn
            }
            Source::Again(drawn) => {
                *drawn.next().expect("a repeated execution draws as often as the leader did")
            }
        }
    }
}

impl Cx<'_> {
    /// Returns the time of day. The time never goes backwards, neither at one replica nor from one change to
    /// a later change of another leader, because changes carry the time. If the clock of a machine is ahead,
    /// the service's time stands still until the other machines' clocks reach it.
    pub fn clock(&mut self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.source.draw(|clock, _| clock.read()))
    }

    /// Returns 64 random bits, which are not fit for secrets.
    pub fn random(&mut self) -> u64 {
        self.source.draw(|_, chance| chance.bits())
    }

    /// Returns a random number below `end`; all are equally likely.
    ///
    /// # Panics
    ///
    /// If `end` is 0, which rejects the request.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "the bound of a random number is above 0");
        // Lemire, *Fast Random Integer Generation in an Interval* (2019): the product's upper half is the
        // number. If the lower half is below the surplus, the draw is repeated, because otherwise some
        // numbers would be more likely.
        let surplus = end.wrapping_neg() % end;
        loop {
            let product = u128::from(self.random()) * u128::from(end);
            if product as u64 >= surplus {
                return (product >> 64) as u64;
            }
        }
    }
}

/// A time of day that never goes backwards, in nanoseconds since 1970.
#[derive(Debug, Default)]
pub(super) struct Clock {
    latest: u64,
}

impl Clock {
    fn read(&mut self) -> u64 {
        // A clock that stands before 1970 counts as standing at 1970. 2^64 ns are 584 years.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.advance(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
        self.latest
    }

    /// Advances the clock to the time that another replica's clock has shown.
    pub(super) fn advance(&mut self, to: u64) {
        self.latest = self.latest.max(to);
    }

    /// Returns the latest time that this clock has shown or adopted.
    pub(super) fn latest(&self) -> u64 {
        self.latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine<'a>(clock: &'a mut Clock, chance: &'a mut Chance) -> Cx<'a> {
        Cx { source: Source::Machine { clock, chance, noted: None } }
    }

    #[test]
    fn the_clock_never_falls_behind_an_earlier_machines_time() {
        let (mut clock, mut chance) = (Clock::default(), Chance::new());
        let mut cx = machine(&mut clock, &mut chance);
        let first = cx.clock();
        assert!(cx.clock() >= first && first > UNIX_EPOCH);
        let ahead = clock.latest() + 3_600_000_000_000;
        clock.advance(ahead);
        clock.advance(5);
        let mut cx = machine(&mut clock, &mut chance);
        assert_eq!(cx.clock(), UNIX_EPOCH + Duration::from_nanos(ahead), "time stands still");
    }

    #[test]
    fn random_numbers_stay_below_their_bound_and_reach_every_value() {
        let (mut clock, mut chance) = (Clock::default(), Chance::new());
        let mut cx = machine(&mut clock, &mut chance);
        let mut seen = [false; 6];
        for _ in 0..1000 {
            seen[cx.below(6) as usize] = true;
        }
        assert_eq!(seen, [true; 6]);
    }
}
