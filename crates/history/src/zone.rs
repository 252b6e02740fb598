//! Zones: what the operations on one value say about when that value was there.
//!
//! A *cluster* is the write of a value and all reads that returned it. Let `f` be the earliest finish in it and `s` the
//! latest start. All of cluster *a* up to some operation must come before some operation of cluster *b* exactly if
//! `f_a < s_b`. Values that are written once are replaced for good, so *a* before *b* and *b* before *a* cannot both be:
//! the two *conflict* ⇔ `f_a < s_b && f_b < s_a` (004 §II.B after Gibbons and Korach).
//!
//! That no two clusters conflict is also enough. Suppose the relation has a longer cycle. Take the cluster with the
//! earliest `f` on it: every cluster on the cycle starts after somebody's `f`, hence after this one, so this one
//! comes before its own predecessor on the cycle, and the two conflict. Without cycles there is an order of the clusters,
//! and within a cluster the write goes first — possible unless a read finished before the write began.
//!
//! A zone with `f < s` is *forward*: the value was certainly there from `f` to `s`. Otherwise it is *backward*.
//! Two conflict exactly if two forward zones overlap or a backward one lies strictly inside a forward one.
//!
//! Ties: an operation is its closed interval, so one that finishes at the instant another starts may come after it.

use crate::history::{BEGINNING, FOREVER, KeyHistory, NOTHING, Step, ValueId, Verb};
use crate::operation::Nanos;

/// One cluster, summed up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zone {
    pub value: ValueId,
    /// Recorded operations in the cluster. The initial value's write is not one.
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

    /// `f`: from here on the value has been there.
    pub(crate) fn first_finish(&self) -> Nanos {
        self.write_finish.min(self.read_finish_min)
    }

    /// `s`: until here the value was still to come or was there.
    pub(crate) fn last_start(&self) -> Nanos {
        self.write_start.max(self.read_start_max)
    }

    /// Whether it is a point in time whatever the clocks say: with a single operation it never is a forward zone. The initial value's
    /// write is one that is not counted.
    pub(crate) fn is_lone_operation(&self) -> bool {
        self.operations == 1 && self.write_start != BEGINNING
    }

    /// How long before the write began the earliest impossible read ended; zero if there is none.
    pub(crate) fn future(&self) -> u64 {
        if self.reads == 0 { 0 } else { distance(self.read_finish_min, self.write_start) }
    }
}

/// How far `to` lies after `from`, zero if it does not.
pub(crate) fn distance(from: Nanos, to: Nanos) -> u64 {
    if from < to { to.abs_diff(from) } else { 0 }
}

/// The clusters of one key.
pub(crate) struct Zones {
    /// Values that were written, and "nothing" where it was read.
    pub written: Vec<Zone>,
    /// Values that were read and that nobody wrote.
    pub orphans: Vec<Zone>,
}

impl Zones {
    /// Groups the reads and writes of a key with distinct writes.
    pub(crate) fn of(key: &KeyHistory) -> Self {
        Self::of_steps(key, key.steps.iter())
    }

    /// Groups some of them.
    pub(crate) fn of_steps<'a>(key: &KeyHistory, steps: impl Iterator<Item = &'a Step>) -> Self {
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

/// The score of one zone: how much it disagrees with the zone it disagrees with most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Worst {
    /// Γ of the zone: `max over the others of max(0, min(s_a − f_b, s_b − f_a))`.
    pub gamma: u64,
    /// The index of the zone where the maximum lies, if Γ is positive.
    pub partner: usize,
}

/// Γ of every zone, in O(n log n): entry `i` belongs to `zones[i]`.
///
/// With the zones sorted by `f` and `best(i)` the largest `s` among the first `i`, a zone `x` scores the maximum over `i` of
/// `min(s_x − f_i, best(i) − f_x)`. The first term falls with `i` and the second rises, so the maximum lies where they
/// cross, which a binary search finds.
pub(crate) fn worst(zones: &[Zone]) -> Vec<Worst> {
    struct Prefix {
        first_finish: Nanos,
        // The zones with the largest and second largest last start up to here.
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
                Worst { gamma, partner: partner as usize }
            };
            let crossing = prefixes.partition_point(|prefix| {
                // Not yet crossed: best − f_x < s_x − f_i, in arithmetic that cannot overflow.
                i128::from(other(prefix).0) - i128::from(first_finish)
                    < i128::from(last_start) - i128::from(prefix.first_finish)
            });
            let at = |at: usize| if at < prefixes.len() { score(at) } else { Worst { gamma: 0, partner: 0 } };
            let (before, here) = (at(crossing.wrapping_sub(1)), at(crossing));
            if before.gamma > here.gamma { before } else { here }
        })
        .collect()
}
