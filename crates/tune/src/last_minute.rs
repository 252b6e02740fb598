//! The last minute of what clients of cells got, from what each cell remembers of it.
//!
//! **Promise.** Each operation that a cell told, and that ended in a span that all cells told whole, counts once, and is inconsistent if it belongs to a
//! value without which the rest is atomic, as in a [`window`](crate::window).
//!
//! **How.** A value is the stamp of its write. Where no cell told of the write, it was long ago, or its cell has forgotten it, was not
//! asked or did not learn its outcome. A stamp holds the time at which it was issued: a write issued [`SETTLED`] before the span is taken to have ended by
//! then, and any other one as under way.
//!
//! **What is left out.** Keys with fields of a hash or counters, whose values stamps do not tell apart. A read that found nothing at all, of a key
//! that was deleted or whose values have a limited life: once all replicas have let such a value go, it looks like one that was never written.

use std::{collections::BTreeMap, time::Duration};

use quorate::maps::{Deed, Ending, Lately, Stamp, Told};
use quorate_history::{Action, Operation, Outcome, Value};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    figures::quantile,
    load::Tape,
    window::{Judge, Window},
};

/// A write takes no longer than this from its stamp to its end.
pub const SETTLED: Duration = Duration::from_secs(10);

/// A stamp is issued no longer than this before its write was asked for: clocks are allowed to be apart by half as much.
const EARLY: Duration = Duration::from_secs(2);

/// Consistency and latency of the last minute.
#[derive(Clone, Debug, Default)]
pub struct LastMinute {
    /// Consistency and latency.
    pub window: Window,
    /// Latencies of answered reads in nanoseconds, ascending.
    reads: Vec<u64>,
    /// Those of answered writes.
    writes: Vec<u64>,
    /// One key in so many was looked at.
    pub one_in: u64,
    /// The keys that were.
    pub keys: usize,
    /// Operations on keys that cannot be judged so.
    pub left_out: u64,
}

impl LastMinute {
    /// Puts together what cells told, each by the same clock.
    pub fn new(told: &[Lately]) -> LastMinute {
        let from = told.iter().map(|lately| lately.since_ns).max().unwrap_or(0);
        let to = told.iter().map(|lately| lately.now_ns).min().unwrap_or(0);
        let one_in = told.iter().map(|lately| lately.one_in).max().unwrap_or(1);
        let mut keys: BTreeMap<u64, Vec<(u64, Told)>> = BTreeMap::new();
        for (cell, lately) in (0..).zip(told) {
            for told in lately.operations.iter().filter(|told| told.key & (one_in - 1) == 0) {
                keys.entry(told.key).or_default().push((cell << CELL_BITS | told.client, *told));
            }
        }
        let mut minute = LastMinute { one_in, keys: keys.len(), ..LastMinute::default() };
        let (mut before, mut during) = (Tape::default(), Tape::default());
        for (key, told) in keys {
            let inside = |told: &Told| (from..=to).contains(&told.end_ns);
            if told.iter().any(|(_, told)| told.deed == Deed::Other) {
                minute.left_out += told.iter().filter(|(_, told)| inside(told)).count() as u64;
                continue;
            }
            before.operations.extend(unheard_of(key, &told, from));
            let vanishes = told.iter().any(|(_, told)| told.mortal || told.deed == Deed::Delete);
            for (client, told) in told {
                let operation = match told.ending {
                    Ending::Done(stamp) => operation(key, client, &told, stamp),
                    Ending::Unknown | Ending::Failed => {
                        during.failed += u64::from(inside(&told));
                        continue;
                    }
                };
                if told.end_ns < from {
                    before.operations.extend((told.deed != Deed::Read).then_some(operation));
                    continue;
                }
                if inside(&told) {
                    let latencies =
                        if told.deed == Deed::Read { &mut during.reads } else { &mut during.writes };
                    latencies.push((told.end_ns - told.start_ns).max(0) as u64);
                }
                let found_nothing = told.deed == Deed::Read && told.ending == Ending::Done(Stamp::ZERO);
                if vanishes && found_nothing {
                    minute.left_out += u64::from(inside(&told));
                } else {
                    during.operations.push(operation);
                }
            }
        }
        (minute.reads, minute.writes) = (during.reads.clone(), during.writes.clone());
        minute.reads.sort_unstable();
        minute.writes.sort_unstable();
        let mut judge = Judge::default();
        judge.begin(before);
        minute.window = judge.window(during, from, to);
        minute
    }

    /// The latency that this part of the answered reads did not exceed, in seconds; none if there were none.
    pub fn reads(&self, part: f64) -> Option<f64> {
        (!self.reads.is_empty()).then(|| quantile(&self.reads, part) / 1e9)
    }

    /// The same of the answered writes.
    pub fn writes(&self, part: f64) -> Option<f64> {
        (!self.writes.is_empty()).then(|| quantile(&self.writes, part) / 1e9)
    }

    /// Answered operations a second, of all keys.
    pub fn per_second(&self) -> f64 {
        self.window.throughput().value * self.one_in as f64
    }
}

/// Clients of one cell have numbers below this many bits.
const CELL_BITS: u32 = 48;

fn value(stamp: Stamp) -> Value {
    Value::from(format!("{}.{}", stamp.time, stamp.cell.0))
}

fn name(key: u64) -> String {
    format!("{key:016x}")
}

fn operation(key: u64, client: u64, told: &Told, stamp: Stamp) -> Operation {
    let action = match told.deed {
        Deed::Read => Action::Read((stamp != Stamp::ZERO).then(|| value(stamp))),
        Deed::Write | Deed::Delete | Deed::Other => Action::Write(value(stamp)),
    };
    Operation::answered(client, &name(key), action, told.start_ns, told.end_ns.max(told.start_ns))
}

/// The writes of values that were read, of which no cell told.
fn unheard_of(key: u64, told: &[(u64, Told)], from: i64) -> Vec<Operation> {
    let mut written = FxHashSet::default();
    // With the earliest end of a read.
    let mut read: FxHashMap<Stamp, i64> = FxHashMap::default();
    for (_, told) in told {
        match (told.deed, told.ending) {
            (Deed::Read, Ending::Done(stamp)) if stamp != Stamp::ZERO => {
                let end = read.entry(stamp).or_insert(told.end_ns);
                *end = (*end).min(told.end_ns);
            }
            (_, Ending::Done(stamp)) => {
                written.insert(stamp);
            }
            _ => {}
        }
    }
    read.retain(|stamp, _| !written.contains(stamp));
    let mut read: Vec<(Stamp, i64)> = read.into_iter().collect();
    read.sort_unstable();
    let write = |(number, (stamp, read)): (u64, (Stamp, i64))| {
        let issued = i64::try_from(stamp.time).unwrap_or(i64::MAX);
        let start = issued.saturating_sub(EARLY.as_nanos() as i64).min(read);
        let settled = issued.saturating_add(SETTLED.as_nanos() as i64);
        let finish = (settled < from).then_some(settled);
        let outcome = if finish.is_some() { Outcome::Ok } else { Outcome::Unknown };
        let (client, action) = (u64::MAX - number, Action::Write(value(stamp)));
        Operation { client, key: name(key).into(), action, start, finish, outcome }
    };
    (0..).zip(read).map(write).collect()
}

#[cfg(test)]
mod tests {
    use quorate::maps::CellNumber;

    use super::*;

    const SECOND: i64 = 1_000_000_000;
    /// The span begins at 100 s and ends at 160 s.
    const FROM: i64 = 100 * SECOND;

    fn stamp(second: i64) -> Stamp {
        Stamp { time: (second * SECOND) as u64, cell: CellNumber(1) }
    }

    /// An operation on a key that took a second, from this second on.
    fn told(key: u64, deed: Deed, second: i64, stamp: Stamp) -> Told {
        Told {
            key,
            client: 1,
            start_ns: second * SECOND,
            end_ns: (second + 1) * SECOND,
            deed,
            ending: Ending::Done(stamp),
            mortal: false,
        }
    }

    fn judged(operations: Vec<Told>) -> LastMinute {
        let (one, other) = operations.into_iter().partition(|told| told.start_ns / SECOND % 2 == 0);
        let lately = |operations| Lately { one_in: 1, since_ns: FROM, now_ns: 160 * SECOND, operations };
        LastMinute::new(&[lately(one), lately(other)])
    }

    /// Inconsistent operations, and all of them.
    fn counted(minute: &LastMinute) -> (u64, u64) {
        let all = minute.window.operations();
        ((minute.window.inconsistent() * all as f64).round() as u64, all)
    }

    #[test]
    fn a_read_of_what_was_replaced_is_counted_whichever_cell_told_it() {
        let fresh = [told(8, Deed::Write, 110, stamp(110)), told(8, Deed::Read, 113, stamp(110))];
        assert_eq!(counted(&judged(fresh.to_vec())), (0, 2));
        let stale = [fresh[0], told(8, Deed::Write, 120, stamp(120)), told(8, Deed::Read, 123, stamp(110))];
        let minute = judged(stale.to_vec());
        assert!(counted(&minute).0 > 0 && counted(&minute).1 == 3, "{:?}", counted(&minute));
        assert_eq!((minute.reads.len(), minute.writes.len(), minute.keys), (1, 2, 1));
        // Never written at the replica that was asked.
        let lost = [fresh[0], told(8, Deed::Read, 113, Stamp::ZERO)];
        assert!(counted(&judged(lost.to_vec())).0 > 0);
    }

    #[test]
    fn a_write_of_which_nobody_told_has_the_time_of_its_stamp() {
        let long_ago = [told(8, Deed::Read, 110, stamp(20)), told(8, Deed::Read, 150, stamp(20))];
        assert_eq!(counted(&judged(long_ago.to_vec())), (0, 2));
        let replaced = [told(8, Deed::Write, 110, stamp(110)), told(8, Deed::Read, 150, stamp(20))];
        assert!(counted(&judged(replaced.to_vec())).0 > 0);
        // Under way for all that is known: it may have come behind.
        let open = [told(8, Deed::Write, 110, stamp(111)), told(8, Deed::Read, 150, stamp(110))];
        assert_eq!(counted(&judged(open.to_vec())), (0, 2));
        // Before the span: known, and not counted.
        let before = [told(8, Deed::Write, 90, stamp(90)), told(8, Deed::Read, 110, stamp(90))];
        assert_eq!(counted(&judged(before.to_vec())), (0, 1));
    }

    #[test]
    fn what_stamps_do_not_tell_apart_is_left_out() {
        let mut counter = vec![told(8, Deed::Other, 110, stamp(110)), told(8, Deed::Read, 120, stamp(20))];
        counter.push(told(16, Deed::Write, 110, stamp(110)));
        let minute = judged(counter);
        assert_eq!((counted(&minute), minute.left_out), ((0, 1), 2));
        // Deleted, and let go by all.
        let gone = [
            told(8, Deed::Write, 110, stamp(110)),
            told(8, Deed::Delete, 120, stamp(120)),
            told(8, Deed::Read, 150, Stamp::ZERO),
        ];
        let minute = judged(gone.to_vec());
        assert_eq!((counted(&minute), minute.left_out), ((0, 2), 1));
        let failed = Told { ending: Ending::Failed, ..told(8, Deed::Read, 110, Stamp::ZERO) };
        assert_eq!(judged(vec![failed]).window.failed, 1);
    }

    #[test]
    fn the_smallest_sample_counts() {
        let lately = |one_in| Lately {
            one_in,
            since_ns: FROM,
            now_ns: 160 * SECOND,
            operations: vec![told(1, Deed::Write, 110, stamp(110)), told(4, Deed::Write, 110, stamp(110))],
        };
        let minute = LastMinute::new(&[lately(1), lately(4)]);
        assert_eq!((minute.one_in, minute.keys), (4, 1));
    }
}
