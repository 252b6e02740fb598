//! Workloads: the choice of the clients' next operations. The workloads are those of YCSB (Cooper and others,
//! 2010, §4) and of 004 (§II.D).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;

use crate::keys::{Distribution, Keys};

/// A mixture of operations over keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Number of keys at the start.
    pub keys: u64,
    /// Distribution by which keys are chosen.
    pub distribution: Distribution,
    /// Fraction of reads, from 0 to 1.
    pub reads: f64,
    /// Kind of the operations that are not reads.
    pub others: Others,
    /// Size of a value, in bytes.
    pub value_bytes: usize,
}

/// Operations that are not reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// Writes an existing key.
    Update,
    /// Writes a new key.
    Insert,
    /// Reads a key and then writes it.
    ReadModifyWrite,
}

/// Names of the workloads, with a description for users.
pub const WORKLOADS: [(&str, &str); 6] = [
    ("004", "80 % reads and 20 % updates of 1,000 keys of 128 bytes"),
    ("a", "half reads, half updates"),
    ("b", "95 % reads, 5 % updates"),
    ("c", "reads only"),
    ("d", "95 % reads of the latest keys, 5 % inserts of new keys"),
    ("f", "half reads, half reads that are each followed by a write of the same key"),
];

impl Workload {
    /// Returns the workload of this name in [`WORKLOADS`]. YCSB's `e` is missing, because it scans, which a
    /// store of registers cannot do.
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

/// A client's next operation, with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Read(u64),
    Write(u64),
    ReadThenWrite(u64),
}

/// Chooses the next operations of all clients, which share this chooser.
#[derive(Debug)]
pub(crate) struct Chooser {
    workload: Workload,
    keys: Keys,
    /// Number of keys that have been written, counted from key 0.
    written_keys: AtomicU64,
    /// Number of keys whose write has begun, counted from key 0.
    begun_keys: AtomicU64,
}

impl Chooser {
    pub(crate) fn new(workload: &Workload) -> Chooser {
        Chooser {
            keys: Keys::new(workload.distribution, workload.keys),
            written_keys: AtomicU64::new(workload.keys),
            begun_keys: AtomicU64::new(workload.keys),
            workload: workload.clone(),
        }
    }

    pub(crate) fn next(&self, random: &mut Pcg64Mcg) -> Next {
        let is_read = random.random::<f64>() < self.workload.reads;
        if !is_read && self.workload.others == Others::Insert {
            return Next::Write(self.begun_keys.fetch_add(1, Relaxed));
        }
        let key = self.keys.choose_of(self.written_keys.load(Relaxed), random);
        match self.workload.others {
            _ if is_read => Next::Read(key),
            Others::ReadModifyWrite => Next::ReadThenWrite(key),
            _ => Next::Write(key),
        }
    }

    /// Chooses an existing key, with the probabilities with which reads choose keys.
    pub(crate) fn popular(&self, random: &mut Pcg64Mcg) -> u64 {
        self.keys.choose_of(self.written_keys(), random)
    }

    /// Returns the first key that reads do not choose. Reads choose among the keys below that key.
    pub(crate) fn written_keys(&self) -> u64 {
        self.written_keys.load(Relaxed)
    }

    /// Allows reads to choose keys up to `key`. By then, most inserts that began before the insert of `key`
    /// have ended, too.
    pub(crate) fn wrote(&self, key: u64) {
        self.written_keys.fetch_max(key + 1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn workloads_have_their_documented_mix_and_read_inserted_keys() {
        for (name, _) in WORKLOADS {
            let workload = Workload::named(name).unwrap();
            let (chooser, mut random) = (Chooser::new(&workload), Pcg64Mcg::seed_from_u64(1));
            let (mut reads, mut newest) = (0, 0);
            for _ in 0..10_000 {
                match chooser.next(&mut random) {
                    Next::Read(key) => {
                        reads += 1;
                        newest += u32::from(key + 20 > chooser.written_keys.load(Relaxed));
                    }
                    Next::Write(key) => {
                        assert_eq!(workload.others == Others::Insert, key >= workload.keys);
                        chooser.wrote(key);
                    }
                    Next::ReadThenWrite(_) => assert_eq!(name, "f"),
                }
            }
            assert!((f64::from(reads) / 10_000.0 - workload.reads).abs() < 0.02, "{name}: {reads}");
            // The 20 newest of 1,000 keys get 3.6 of 7.49, the sum of all weights.
            assert!(name != "d" || newest > 4_000, "{newest}");
        }
        assert_eq!(Workload::named("e"), None);
    }
}
