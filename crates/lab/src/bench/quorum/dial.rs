//! The dial at the client: continuous partial quorums and artificial delays over any store (004 §II.A).

use std::{thread, time::Duration};

use bytes::Bytes;
use quorate::maps::{Failure, Level, Store};
use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;

/// How strong operations of one kind are, and how long they take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dial {
    pub(super) weak: Level,
    pub(super) strong: Level,
    /// The probability of the strong level.
    pub(super) p: f64,
    pub(super) delay: Duration,
}

impl Dial {
    fn level(&self, random: &mut Pcg64Mcg) -> Level {
        if random.random::<f64>() < self.p { self.strong } else { self.weak }
    }

    /// As figures name it.
    pub(super) fn spelt(&self) -> String {
        let (weak, strong) = (self.weak.name(), self.strong.name());
        let level = match self.p {
            0.0 => weak.to_owned(),
            1.0 => strong.to_owned(),
            p => format!("{strong} at {p}, else {weak}"),
        };
        let delay = if self.delay.is_zero() { String::new() } else { format!(" and {:?}", self.delay) };
        level + &delay
    }
}

/// A store whose operations are dialled: reads begin later, and writes end later.
pub(super) struct Dialled<S> {
    pub(super) store: S,
    pub(super) reads: Dial,
    pub(super) writes: Dial,
    pub(super) random: Pcg64Mcg,
}

impl<S: Store> Dialled<S> {
    pub(super) fn read(&mut self, key: &[u8]) -> Result<Option<Bytes>, Failure> {
        let level = self.reads.level(&mut self.random);
        pause(self.reads.delay);
        self.store.read(key, level)
    }

    pub(super) fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        let level = self.writes.level(&mut self.random);
        let done = self.store.write(key, value, level);
        pause(self.writes.delay);
        done
    }
}

fn pause(delay: Duration) {
    if !delay.is_zero() {
        thread::sleep(delay);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rand::SeedableRng as _;

    use super::*;

    /// Counts what it is asked for, by level.
    #[derive(Default)]
    struct Counting(Vec<(bool, Level)>);

    impl Store for Counting {
        fn read(&mut self, _: &[u8], level: Level) -> Result<Option<Bytes>, Failure> {
            self.0.push((false, level));
            Ok(None)
        }

        fn write(&mut self, _: &[u8], _: &[u8], level: Level) -> Result<(), Failure> {
            self.0.push((true, level));
            Ok(())
        }
    }

    #[test]
    fn the_strong_level_comes_with_its_probability_and_delays_take_their_time() {
        let dial = |p, delay| Dial { weak: Level::One, strong: Level::Quorum, p, delay };
        let mut dialled = Dialled {
            store: Counting::default(),
            reads: dial(0.25, Duration::ZERO),
            writes: dial(1.0, Duration::ZERO),
            random: Pcg64Mcg::seed_from_u64(1),
        };
        for _ in 0..4_000 {
            dialled.read(b"k").unwrap();
            dialled.write(b"k", b"v").unwrap();
        }
        let count = |what| dialled.store.0.iter().filter(|it| **it == what).count();
        assert!((850..1_150).contains(&count((false, Level::Quorum))));
        assert_eq!(count((true, Level::Quorum)), 4_000);
        (dialled.reads.delay, dialled.writes.delay) = (Duration::from_millis(20), Duration::from_millis(30));
        let began = Instant::now();
        dialled.read(b"k").unwrap();
        dialled.write(b"k", b"v").unwrap();
        assert!(began.elapsed() >= Duration::from_millis(50));
        assert_eq!(dialled.reads.spelt(), "quorum at 0.25, else one and 20ms");
    }
}
