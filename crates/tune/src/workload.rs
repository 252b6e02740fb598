//! Workloads: what clients do next. Those of YCSB (Cooper and others, 2010, §4), and that of 004 (§II.D).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;

use crate::keys::{Distribution, Keys};

/// A mixture of operations over keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Keys that are there at first.
    pub keys: u64,
    /// How often each is chosen.
    pub distribution: Distribution,
    /// The part of reads, from 0 to 1.
    pub reads: f64,
    /// The work of the other operations.
    pub others: Others,
    /// Bytes of a value.
    pub value_bytes: usize,
}

/// Operations other than reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// Write a key that is there.
    Update,
    /// Write a key that is new.
    Insert,
    /// Read a key, and then write it.
    ReadModifyWrite,
}

/// Names of workloads, with what each is.
pub const WORKLOADS: [(&str, &str); 6] = [
    ("004", "80 % reads and 20 % updates of 1,000 keys of 128 bytes"),
    ("a", "half reads, half updates"),
    ("b", "95 % reads, 5 % updates"),
    ("c", "reads alone"),
    ("d", "95 % reads of what was inserted last, 5 % inserts"),
    ("f", "half reads, half reads that are followed by a write of what was read"),
];

impl Workload {
    /// That of this name in [`WORKLOADS`]. `e` is of scans, which a store of registers has not.
    pub fn named(name: &str) -> Option<Workload> {
        let zipfian = |reads, others| Workload {
            keys: 1_000,
            distribution: Distribution::Zipfian,
            reads,
            others,
            value_bytes: 128,
        };
        match name {
            "004" => Some(zipfian(0.8, Others::Update)),
            "a" => Some(zipfian(0.5, Others::Update)),
            "b" => Some(zipfian(0.95, Others::Update)),
            "c" => Some(zipfian(1.0, Others::Update)),
            "d" => Some(Workload { distribution: Distribution::Latest, ..zipfian(0.95, Others::Insert) }),
            "f" => Some(zipfian(0.5, Others::ReadModifyWrite)),
            _ => None,
        }
    }
}

/// A client's next operation, and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Read(u64),
    Write(u64),
    ReadThenWrite(u64),
}

/// Chooses what clients do next. All of them share it.
#[derive(Debug)]
pub(crate) struct Chooser {
    workload: Workload,
    keys: Keys,
    /// Keys up to here have been written.
    written: AtomicU64,
    /// Keys up to here are being written.
    begun: AtomicU64,
}

impl Chooser {
    pub(crate) fn new(workload: &Workload) -> Chooser {
        Chooser {
            keys: Keys::new(workload.distribution, workload.keys),
            written: AtomicU64::new(workload.keys),
            begun: AtomicU64::new(workload.keys),
            workload: workload.clone(),
        }
    }

    pub(crate) fn next(&self, random: &mut Pcg64Mcg) -> Next {
        let is_read = random.random::<f64>() < self.workload.reads;
        if !is_read && self.workload.others == Others::Insert {
            return Next::Write(self.begun.fetch_add(1, Relaxed));
        }
        let key = self.keys.choose_of(self.written.load(Relaxed), random);
        match self.workload.others {
            _ if is_read => Next::Read(key),
            Others::ReadModifyWrite => Next::ReadThenWrite(key),
            _ => Next::Write(key),
        }
    }

    /// One of the keys that are there, as often as reads choose it.
    pub(crate) fn popular(&self, random: &mut Pcg64Mcg) -> u64 {
        self.keys.choose_of(self.written(), random)
    }

    /// The keys that reads choose from are those below this one.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// A key was written, and so were most that were begun before it: reads choose from all up to the newest.
    pub(crate) fn wrote(&self, key: u64) {
        self.written.fetch_max(key + 1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn workloads_mix_as_they_say_and_inserts_are_read() {
        for (name, _) in WORKLOADS {
            let workload = Workload::named(name).unwrap();
            let (chooser, mut random) = (Chooser::new(&workload), Pcg64Mcg::seed_from_u64(1));
            let (mut reads, mut newest) = (0, 0);
            for _ in 0..10_000 {
                match chooser.next(&mut random) {
                    Next::Read(key) => {
                        reads += 1;
                        newest += u32::from(key + 20 > chooser.written.load(Relaxed));
                    }
                    Next::Write(key) => {
                        assert_eq!(workload.others == Others::Insert, key >= workload.keys);
                        chooser.wrote(key);
                    }
                    Next::ReadThenWrite(_) => assert_eq!(name, "f"),
                }
            }
            assert!((f64::from(reads) / 10_000.0 - workload.reads).abs() < 0.02, "{name}: {reads}");
            // The 20 newest of 1,000 take 3.6 of 7.49, the sum of all weights.
            assert!(name != "d" || newest > 4_000, "{newest}");
        }
        assert_eq!(Workload::named("e"), None);
    }
}
