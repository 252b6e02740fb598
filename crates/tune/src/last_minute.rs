//! The latency and consistency that clients of cells got in the last minute, from the operations that the
//! cells remember.
//!
//! **Promise.** The span is the time that all cells fully remember. Each operation that a cell reports and
//! that ended in the span counts once. As in a [`window`](crate::window), it is inconsistent if it belongs to
//! a value without which the rest is atomic.
//!
//! **How.** A value is identified by the stamp of its write. Sometimes no cell reports the write: the write
//! was long ago, or the cell that coordinated it forgot it, was not asked, or did not learn the outcome. A
//! stamp contains the time at which it was issued. A write issued [`WRITE_TIME_MAX`] before the span counts
//! as ended by then. A write issued later counts as still under way.
//!
//! **Left out.** Keys with hash fields or counters, because stamps do not distinguish their values. Also left
//! out are reads that found nothing on a key that was deleted or whose values expire: once all replicas have
//! dropped such a value, the key looks as if it had never been written.

use std::{collections::BTreeMap, time::Duration};

use quorate::maps::{OperationEnd, OperationKind, RecentOperation, RecentOperations, Stamp};
use quorate_history::{Action, Operation, Outcome, Value};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    figures::quantile,
    load::Tape,
    window::{Judge, Window},
};

/// Assumed longest time from the stamp of a write to the end of the write.
pub const WRITE_TIME_MAX: Duration = Duration::from_secs(10);

/// Assumed longest time from the request of a write to its stamp. It allows for clocks that differ by half of
/// this time.
const STAMP_LEAD_MAX: Duration = Duration::from_secs(2);

/// The span of [`LastMinute::last_second`].
const LAST_SECOND: Duration = Duration::from_secs(1);

/// Latency and consistency of the last minute.
#[derive(Clone, Debug, Default)]
pub struct LastMinute {
    /// Latency and consistency of the sampled keys.
    pub window: Window,
    /// Latencies of answered reads in nanoseconds, ascending.
    reads: Vec<u64>,
    /// Latencies of answered writes in nanoseconds, ascending.
    writes: Vec<u64>,
    /// Sampling rate: one key in `one_in` is examined.
    pub one_in: u64,
    /// Number of keys examined.
    pub keys: usize,
    /// Number of operations left out because they cannot be judged.
    pub left_out: u64,
    /// Number of answered operations on the examined keys that ended in the last second, or in the whole span
    /// if the span is shorter than a second.
    lately: u64,
}

impl LastMinute {
    /// Combines the reports of the cells. All times in the reports must be by the same clock.
    pub fn new(cells: &[RecentOperations]) -> LastMinute {
        let from = cells.iter().map(|lately| lately.since_ns).max().unwrap_or(0);
        let to = cells.iter().map(|lately| lately.now_ns).min().unwrap_or(0);
        let one_in = cells.iter().map(|lately| lately.one_in).max().unwrap_or(1);
        let lately = from.max(to.saturating_sub(LAST_SECOND.as_nanos() as i64));
        let mut keys: BTreeMap<u64, Vec<(u64, RecentOperation)>> = BTreeMap::new();
        for (cell, lately) in (0..).zip(cells) {
            for recent in lately.operations.iter().filter(|recent| recent.key & (one_in - 1) == 0) {
                keys.entry(recent.key).or_default().push((cell << CELL_BITS | recent.client, *recent));
            }
        }
        let mut minute = LastMinute { one_in, keys: keys.len(), ..LastMinute::default() };
        let (mut before, mut during) = (Tape::default(), Tape::default());
        for (key, recent) in keys {
            let inside = |recent: &RecentOperation| (from..=to).contains(&recent.end_ns);
            let is_late = |recent: &RecentOperation| (lately..=to).contains(&recent.end_ns);
            let answered = |recent: &RecentOperation| matches!(recent.ending, OperationEnd::Done(_));
            minute.lately += recent.iter().filter(|(_, it)| is_late(it) && answered(it)).count() as u64;
            if recent.iter().any(|(_, recent)| recent.deed == OperationKind::Other) {
                minute.left_out += recent.iter().filter(|(_, recent)| inside(recent)).count() as u64;
                continue;
            }
            before.operations.extend(unreported_writes(key, &recent, from));
            let vanishes =
                recent.iter().any(|(_, recent)| recent.mortal || recent.deed == OperationKind::Delete);
            for (client, recent) in recent {
                let operation = match recent.ending {
                    OperationEnd::Done(stamp) => operation(key, client, &recent, stamp),
                    OperationEnd::Unknown | OperationEnd::Failed => {
                        during.failed += u64::from(inside(&recent));
                        continue;
                    }
                };
                if recent.end_ns < from {
                    before.operations.extend((recent.deed != OperationKind::Read).then_some(operation));
                    continue;
                }
                if inside(&recent) {
                    let latencies = if recent.deed == OperationKind::Read {
                        &mut during.reads
                    } else {
                        &mut during.writes
                    };
                    latencies.push((recent.end_ns - recent.start_ns).max(0) as u64);
                }
                let found_nothing =
                    recent.deed == OperationKind::Read && recent.ending == OperationEnd::Done(Stamp::ZERO);
                if vanishes && found_nothing {
                    minute.left_out += u64::from(inside(&recent));
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

    /// Returns the latency in seconds that the fraction `part` of the answered reads did not exceed. Returns
    /// `None` without reads.
    pub fn reads(&self, part: f64) -> Option<f64> {
        (!self.reads.is_empty()).then(|| quantile(&self.reads, part) / 1e9)
    }

    /// Returns the latency in seconds that the fraction `part` of the answered writes did not exceed. Returns
    /// `None` without writes.
    pub fn writes(&self, part: f64) -> Option<f64> {
        (!self.writes.is_empty()).then(|| quantile(&self.writes, part) / 1e9)
    }

    /// Returns the answered operations a second over the whole span, on all keys that can be judged.
    pub fn per_second(&self) -> f64 {
        self.window.throughput().value * self.one_in as f64
    }

    /// Returns the answered operations a second of the last second, on all keys. Operations that cannot be
    /// judged are included.
    pub fn last_second(&self) -> f64 {
        let seconds = self.window.span.min(LAST_SECOND).as_secs_f64().max(1e-3);
        (self.lately * self.one_in) as f64 / seconds
    }
}

/// Number of bits for a client's number within its cell. The bits above hold the cell's index.
const CELL_BITS: u32 = 48;

fn value(stamp: Stamp) -> Value {
    Value::from(format!("{}.{}", stamp.time, stamp.cell.0))
}

fn name(key: u64) -> String {
    format!("{key:016x}")
}

fn operation(key: u64, client: u64, recent: &RecentOperation, stamp: Stamp) -> Operation {
    let action = match recent.deed {
        OperationKind::Read => Action::Read((stamp != Stamp::ZERO).then(|| value(stamp))),
        OperationKind::Write | OperationKind::Delete | OperationKind::Other => Action::Write(value(stamp)),
    };
    Operation::answered(client, &name(key), action, recent.start_ns, recent.end_ns.max(recent.start_ns))
}

/// Returns the writes that no cell reported and whose values were read.
fn unreported_writes(key: u64, recent: &[(u64, RecentOperation)], from: i64) -> Vec<Operation> {
    let mut written = FxHashSet::default();
    // Stamps that reads returned, each with the earliest end of such a read.
    let mut read: FxHashMap<Stamp, i64> = FxHashMap::default();
    for (_, recent) in recent {
        match (recent.deed, recent.ending) {
            (OperationKind::Read, OperationEnd::Done(stamp)) if stamp != Stamp::ZERO => {
                let end = read.entry(stamp).or_insert(recent.end_ns);
                *end = (*end).min(recent.end_ns);
            }
            (_, OperationEnd::Done(stamp)) => {
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
        let start = issued.saturating_sub(STAMP_LEAD_MAX.as_nanos() as i64).min(read);
        let settled = issued.saturating_add(WRITE_TIME_MAX.as_nanos() as i64);
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
    /// The span lasts from 100 s to 160 s.
    const FROM: i64 = 100 * SECOND;

    fn stamp(second: i64) -> Stamp {
        Stamp { time: (second * SECOND) as u64, cell: CellNumber(1) }
    }

    /// Returns an operation that starts at `second` and lasts one second.
    fn recent(key: u64, deed: OperationKind, second: i64, stamp: Stamp) -> RecentOperation {
        RecentOperation {
            key,
            client: 1,
            start_ns: second * SECOND,
            end_ns: (second + 1) * SECOND,
            deed,
            ending: OperationEnd::Done(stamp),
            mortal: false,
        }
    }

    fn judged(operations: Vec<RecentOperation>) -> LastMinute {
        let (one, other) = operations.into_iter().partition(|recent| recent.start_ns / SECOND % 2 == 0);
        let lately =
            |operations| RecentOperations { one_in: 1, since_ns: FROM, now_ns: 160 * SECOND, operations };
        LastMinute::new(&[lately(one), lately(other)])
    }

    /// Returns the numbers of inconsistent and of all operations.
    fn counted(minute: &LastMinute) -> (u64, u64) {
        let all = minute.window.operations();
        ((minute.window.inconsistent() * all as f64).round() as u64, all)
    }

    #[test]
    fn a_stale_read_is_counted_from_the_reports_of_all_cells() {
        let fresh = [
            recent(8, OperationKind::Write, 110, stamp(110)),
            recent(8, OperationKind::Read, 113, stamp(110)),
        ];
        assert_eq!(counted(&judged(fresh.to_vec())), (0, 2));
        let stale = [
            fresh[0],
            recent(8, OperationKind::Write, 120, stamp(120)),
            recent(8, OperationKind::Read, 123, stamp(110)),
        ];
        let minute = judged(stale.to_vec());
        assert!(counted(&minute).0 > 0 && counted(&minute).1 == 3, "{:?}", counted(&minute));
        assert_eq!((minute.reads.len(), minute.writes.len(), minute.keys), (1, 2, 1));
        // The replica that answered the read never got the write.
        let lost = [fresh[0], recent(8, OperationKind::Read, 113, Stamp::ZERO)];
        assert!(counted(&judged(lost.to_vec())).0 > 0);
    }

    #[test]
    fn an_unreported_write_has_the_time_of_its_stamp() {
        let long_ago =
            [recent(8, OperationKind::Read, 110, stamp(20)), recent(8, OperationKind::Read, 150, stamp(20))];
        assert_eq!(counted(&judged(long_ago.to_vec())), (0, 2));
        let replaced = [
            recent(8, OperationKind::Write, 110, stamp(110)),
            recent(8, OperationKind::Read, 150, stamp(20)),
        ];
        assert!(counted(&judged(replaced.to_vec())).0 > 0);
        // The write may still be under way, so it may come after the other write.
        let open = [
            recent(8, OperationKind::Write, 110, stamp(111)),
            recent(8, OperationKind::Read, 150, stamp(110)),
        ];
        assert_eq!(counted(&judged(open.to_vec())), (0, 2));
        // The write ended before the span, so it is known but not counted.
        let before =
            [recent(8, OperationKind::Write, 90, stamp(90)), recent(8, OperationKind::Read, 110, stamp(90))];
        assert_eq!(counted(&judged(before.to_vec())), (0, 1));
    }

    #[test]
    fn the_last_second_counts_every_answer_and_is_not_the_mean_of_the_minute() {
        let late = |key, deed| recent(key, deed, 158, stamp(158));
        let failed = RecentOperation { ending: OperationEnd::Failed, ..late(8, OperationKind::Read) };
        let minute = judged(vec![
            recent(8, OperationKind::Write, 110, stamp(110)),
            late(8, OperationKind::Read),
            late(16, OperationKind::Other),
            failed,
        ]);
        assert_eq!(minute.last_second(), 2.0);
        assert!(minute.per_second() < 0.1, "{}", minute.per_second());
    }

    #[test]
    fn keys_whose_stamps_do_not_identify_values_are_left_out() {
        let mut counter = vec![
            recent(8, OperationKind::Other, 110, stamp(110)),
            recent(8, OperationKind::Read, 120, stamp(20)),
        ];
        counter.push(recent(16, OperationKind::Write, 110, stamp(110)));
        let minute = judged(counter);
        assert_eq!((counted(&minute), minute.left_out), ((0, 1), 2));
        // The value was deleted, and all replicas have dropped it.
        let gone = [
            recent(8, OperationKind::Write, 110, stamp(110)),
            recent(8, OperationKind::Delete, 120, stamp(120)),
            recent(8, OperationKind::Read, 150, Stamp::ZERO),
        ];
        let minute = judged(gone.to_vec());
        assert_eq!((counted(&minute), minute.left_out), ((0, 2), 1));
        let failed = RecentOperation {
            ending: OperationEnd::Failed,
            ..recent(8, OperationKind::Read, 110, Stamp::ZERO)
        };
        assert_eq!(judged(vec![failed]).window.failed, 1);
    }

    #[test]
    fn the_smallest_sample_counts() {
        let lately = |one_in| RecentOperations {
            one_in,
            since_ns: FROM,
            now_ns: 160 * SECOND,
            operations: vec![
                recent(1, OperationKind::Write, 110, stamp(110)),
                recent(4, OperationKind::Write, 110, stamp(110)),
            ],
        };
        let minute = LastMinute::new(&[lately(1), lately(4)]);
        assert_eq!((minute.one_in, minute.keys), (4, 1));
    }
}
