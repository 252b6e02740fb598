//! Zones: the times at which a value was current, derived from the operations on the value.
//!
//! A *cluster* is the write of a value with all reads that returned the value. Let `f` be the earliest finish
//! in the cluster and `s` its latest start. Some operation of cluster *a* must come before some operation of
//! cluster *b* exactly if `f_a < s_b`. A value that is written once never comes back after it was replaced.
//! So *a* before *b* and *b* before *a* cannot both hold: the two *conflict* ⇔ `f_a < s_b && f_b < s_a` (004
//! §II.B after Gibbons and Korach).
//!
//! If no two clusters conflict, the history is atomic. To see this, suppose that the relation "before" has a
//! longer cycle. Take the cluster on the cycle with the earliest `f`. Every cluster on the cycle starts after
//! the `f` of its predecessor, and hence after the earliest `f`. So the taken cluster comes before its own
//! predecessor, and the two conflict. Without cycles the clusters have an order. Within a cluster the write
//! goes first, which is possible unless a read finished before the write began.
//!
//! A zone with `f < s` is *forward*: the value was certainly there from `f` to `s`. Any other zone is
//! *backward*. Two zones conflict exactly if both are forward and overlap, or if a backward one lies strictly
//! inside a forward one.
//!
//! Ties: an operation is a closed interval, so an operation that finishes at the instant another starts may
//! come after it.

use crate::history::{BEGINNING, FOREVER, KeyHistory, KeyStep, NOTHING, ValueId, Verb};
use crate::operation::Nanos;

/// Summary of one cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zone {
    pub value: ValueId,
    /// Number of recorded operations in the cluster. The initial value's write is not recorded.
    pub operations: u32,
    pub reads: u32,
    pub write_start: Nanos,
    pub write_finish: Nanos,
    pub read_finish_min: Nanos,
    pub read_start_max: Nanos,
}

impl Zone {
    const EMPTY: Self = Self {
        value: NOTHING,
        operations: 0,
        reads: 0,
        write_start: FOREVER,
        write_finish: FOREVER,
        read_finish_min: FOREVER,
        read_start_max: BEGINNING,
    };

    /// Returns `f`, the earliest finish of an operation on the value. At `f` the value had been written.
    pub(crate) fn first_finish(&self) -> Nanos {
        self.write_finish.min(self.read_finish_min)
    }

    /// Returns `s`, the latest start of an operation on the value. At `s` the value was current or not yet
    /// written.
    pub(crate) fn last_start(&self) -> Nanos {
        self.write_start.max(self.read_start_max)
    }

    /// Whether the cluster is a single recorded operation, which is no forward zone at any clock error. The
    /// cluster of the initial value also has a write that is not recorded, so it never counts as one
    /// operation.
    pub(crate) fn is_lone_operation(&self) -> bool {
        self.operations == 1 && self.write_start != BEGINNING
    }

    /// Returns how long before the write the first impossible read ended, in nanoseconds. Returns zero if no
    /// read is impossible.
    pub(crate) fn future_read_lead(&self) -> u64 {
        if self.reads == 0 { 0 } else { distance(self.read_finish_min, self.write_start) }
    }
}

/// Returns how many nanoseconds `to` lies after `from`, or zero if `to` does not lie after `from`.
pub(crate) fn distance(from: Nanos, to: Nanos) -> u64 {
    if from < to { to.abs_diff(from) } else { 0 }
}

/// The clusters of one key.
pub(crate) struct Zones {
    /// Clusters with a write. The cluster of "nothing" is here if a read returned it.
    pub written: Vec<Zone>,
    /// Clusters of values that nobody wrote.
    pub orphans: Vec<Zone>,
}

impl Zones {
    /// Groups the operations of `key` by the value that they wrote or returned. No value of the key may have
    /// been written twice.
    pub(crate) fn of(key: &KeyHistory) -> Self {
        Self::of_steps(key, key.steps.iter())
    }

    /// Groups `steps`, operations of `key`, by the value that they wrote or returned. No value of the key may
    /// have been written twice.
    pub(crate) fn of_steps<'a>(key: &KeyHistory, steps: impl Iterator<Item = &'a KeyStep>) -> Self {
        assert!(key.has_distinct_writes(), "zones need distinct writes");
        let mut zones = vec![Zone::EMPTY; key.numbers()];
        if key.from_nothing {
            zones[NOTHING as usize].write_start = BEGINNING;
            zones[NOTHING as usize].write_finish = BEGINNING;
        }
        for step in steps {
            let zone = &mut zones[step.value as usize];
            zone.operations += 1;
            if step.verb == Verb::Write {
                zone.write_start = step.start;
                zone.write_finish = step.finish;
            } else {
                zone.reads += 1;
                zone.read_finish_min = zone.read_finish_min.min(step.finish);
                zone.read_start_max = zone.read_start_max.max(step.start);
            }
        }
        for (value, zone) in (0..).zip(&mut zones) {
            zone.value = value;
        }
        zones.retain(|zone| zone.operations > 0);
        let orphans: Vec<Zone> = zones.extract_if(.., |zone| zone.write_start == FOREVER).collect();
        Self { written: zones, orphans }
    }
}

/// The score of one zone: its Γ with the zone that it conflicts with most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZoneScore {
    /// Γ of the zone in nanoseconds: the maximum of `max(0, min(s_a − f_b, s_b − f_a))` over all other zones
    /// `b`.
    pub gamma: u64,
    /// Index of the zone that gives the maximum. Meaningful only if Γ is positive.
    pub partner: usize,
}

/// Returns Γ of every zone in O(n log n). Entry `i` belongs to `zones[i]`.
///
/// Sort the zones by `f`, and let `best(i)` be the largest `s` among the first `i`. Zone `x` scores the
/// maximum over `i` of `min(s_x − f_i, best(i) − f_x)`. The first term falls with `i` and the second rises.
/// So the maximum lies where they cross, and a binary search finds it.
pub(crate) fn worst(zones: &[Zone]) -> Vec<ZoneScore> {
    struct Prefix {
        first_finish: Nanos,
        // The largest last start up to this zone and the index of its zone, and (`second`) the second
        // largest.
        best: (Nanos, u32),
        second: (Nanos, u32),
    }
    const NONE: (Nanos, u32) = (BEGINNING, u32::MAX);

    let mut order: Vec<(Nanos, u32)> = (0..).zip(zones).map(|(i, zone)| (zone.first_finish(), i)).collect();
    order.sort_unstable();
    let mut prefixes: Vec<Prefix> = Vec::with_capacity(zones.len());
    let (mut best, mut second) = (NONE, NONE);
    for (first_finish, index) in order {
        let this = (zones[index as usize].last_start(), index);
        if best == NONE || this.0 > best.0 {
            (best, second) = (this, best);
        } else if second == NONE || this.0 > second.0 {
            second = this;
        }
        prefixes.push(Prefix { first_finish, best, second });
    }
    (0u32..)
        .zip(zones)
        .map(|(index, zone)| {
            let (first_finish, last_start) = (zone.first_finish(), zone.last_start());
            let other = |prefix: &Prefix| if prefix.best.1 == index { prefix.second } else { prefix.best };
            let score = |at: usize| {
                let (partner_start, partner) = other(&prefixes[at]);
                let gamma = distance(prefixes[at].first_finish, last_start)
                    .min(distance(first_finish, partner_start));
                ZoneScore { gamma, partner: partner as usize }
            };
            let crossing = prefixes.partition_point(|prefix| {
                // Whether the prefix lies before the crossing: best − f_x < s_x − f_i. The arithmetic of 128
                // bits cannot overflow.
                i128::from(other(prefix).0) - i128::from(first_finish)
                    < i128::from(last_start) - i128::from(prefix.first_finish)
            });
            let at =
                |at: usize| if at < prefixes.len() { score(at) } else { ZoneScore { gamma: 0, partner: 0 } };
            let (before, here) = (at(crossing.wrapping_sub(1)), at(crossing));
            if before.gamma > here.gamma { before } else { here }
        })
        .collect()
}
