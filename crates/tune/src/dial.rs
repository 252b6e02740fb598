//! The dial over any store: it mixes two levels and adds delays (004 §II.A).
//!
//! *Continuous partial quorums* choose the strong or the weak level for each operation. The fraction of
//! strong operations is p. *Artificial delays* make a read begin later and a write end later. Both delays lie
//! inside the recorded interval.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use quorate::maps::{Failure, Level, Store};
use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;
use serde::Serialize;

use crate::heat::Heat;

/// The dial of one kind of operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dial {
    /// Level of the remaining operations.
    pub weak: Level,
    /// Level of the fraction `p` of the operations.
    pub strong: Level,
    /// Fraction of operations at the strong level, from 0 to 1.
    pub p: f64,
    /// Delay before each read, or after each write.
    pub delay: Duration,
}

/// The rule that decides which operations are strong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// A random fraction of the operations is strong, whatever their keys: 004's continuous partial quorums.
    #[default]
    Chance,
    /// Operations on the keys that are both read and written most are strong: 004's future work.
    Heat,
}

/// The dials of reads and of writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dials {
    /// Dial of reads.
    pub reads: Dial,
    /// Dial of writes.
    pub writes: Dial,
    /// Rule that decides which reads and writes are strong.
    pub choice: Choice,
}

impl Dial {
    fn level(&self, is_strong: bool) -> Level {
        if is_strong { self.strong } else { self.weak }
    }

    /// Formats the dial as reports show it.
    pub fn spelt(&self) -> String {
        let (weak, strong) = (self.weak.name(), self.strong.name());
        let level = match self.p {
            0.0 => weak.to_owned(),
            1.0 => strong.to_owned(),
            p => format!("{strong} at {:?}, else {weak}", (p * 1e3).round() / 1e3),
        };
        let delay = if self.delay.is_zero() {
            String::new()
        } else {
            format!(" and {} ms", (self.delay.as_secs_f64() * 1e5).round() / 1e2)
        };
        level + &delay
    }
}

impl Dials {
    /// Returns the same dial for reads and writes.
    pub fn both(dial: Dial, choice: Choice) -> Dials {
        Dials { reads: dial, writes: dial, choice }
    }

    /// Formats the dials as reports show them.
    pub fn spelt(&self) -> String {
        if self.reads == self.writes {
            return self.reads.spelt();
        }
        format!("reads at {}, writes at {}", self.reads.spelt(), self.writes.spelt())
    }
}

/// A store with dials: it applies a level and a delay to each operation.
pub struct Dialled<S> {
    /// The store.
    pub store: S,
    /// Dials of the next operations.
    pub dials: Dials,
    /// Timing of the last operation at the store.
    pub served: Served,
    heat: Arc<Heat>,
    random: Pcg64Mcg,
}

/// The level and the duration of one operation at the store, without artificial delays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Whether the operation was at the strong level.
    pub is_strong: bool,
    /// Time from the request to the answer.
    pub took: Duration,
}

impl<S: Store> Dialled<S> {
    /// Wraps a store. All clients of a program share `heat`.
    pub fn new(store: S, dials: Dials, heat: Arc<Heat>, random: Pcg64Mcg) -> Self {
        Dialled { store, dials, served: Served::default(), heat, random }
    }

    /// Reads a key. Returns `None` if it has no value.
    pub fn read(&mut self, key: &[u8]) -> Result<Option<Bytes>, Failure> {
        let dial = self.dials.reads;
        let is_strong = self.is_strong(dial, key, false);
        pause(dial.delay);
        let began = Instant::now();
        let value = self.store.read(key, dial.level(is_strong));
        self.served = Served { is_strong, took: began.elapsed() };
        value
    }

    /// Writes a value to a key.
    pub fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        let dial = self.dials.writes;
        let is_strong = self.is_strong(dial, key, true);
        let began = Instant::now();
        let done = self.store.write(key, value, dial.level(is_strong));
        self.served = Served { is_strong, took: began.elapsed() };
        pause(dial.delay);
        done
    }

    fn is_strong(&mut self, dial: Dial, key: &[u8], is_write: bool) -> bool {
        match self.dials.choice {
            Choice::Chance => self.random.random::<f64>() < dial.p,
            Choice::Heat => self.heat.is_among_hottest(key, is_write, dial.p),
        }
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

    /// A store that records the kind and the level of each operation.
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
        let dial = |p| Dial { weak: Level::One, strong: Level::Quorum, p, delay: Duration::ZERO };
        let dials = Dials { reads: dial(0.25), writes: dial(1.0), choice: Choice::Chance };
        let random = Pcg64Mcg::seed_from_u64(1);
        let mut dialled = Dialled::new(Counting::default(), dials, Arc::default(), random);
        for _ in 0..4_000 {
            dialled.read(b"k").unwrap();
            dialled.write(b"k", b"v").unwrap();
        }
        let count = |what| dialled.store.0.iter().filter(|it| **it == what).count();
        assert!((850..1_150).contains(&count((false, Level::Quorum))));
        assert_eq!(count((true, Level::Quorum)), 4_000);
        dialled.dials.reads.delay = Duration::from_millis(20);
        dialled.dials.writes.delay = Duration::from_millis(30);
        let began = Instant::now();
        dialled.read(b"k").unwrap();
        dialled.write(b"k", b"v").unwrap();
        assert!(began.elapsed() >= Duration::from_millis(50));
        assert_eq!(
            dialled.dials.spelt(),
            "reads at quorum at 0.25, else one and 20 ms, writes at quorum and 30 ms"
        );
    }
}
