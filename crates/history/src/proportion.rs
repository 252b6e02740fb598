//! The proportion of inconsistent operations: the lightest set of clusters whose removal leaves no conflict
//! (004 §II.B after Golab, Li and Shah).
//!
//! The clusters that stay are a set of forward zones that do not overlap, and all backward zones that lie
//! inside no zone of this set. A backward zone inside a kept forward zone lies inside no other kept forward
//! zone. So keeping a forward zone gains its own weight less the weight of the backward zones inside it. The
//! best choice is weighted interval scheduling, in O(n log n).

use crate::operation::Nanos;
use crate::zone::Zone;

/// The weight of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Number of operations in the cluster, as in 004.
    Operations,
    /// The same weight, 1, for each cluster.
    One,
}

impl Weight {
    fn of(self, zone: &Zone) -> i64 {
        match self {
            Self::Operations => i64::from(zone.operations),
            Self::One => 1,
        }
    }
}

/// Returns the indices of a lightest set of zones whose removal leaves no conflict.
///
/// `slack` is added to every first finish. Zero takes the times as recorded. The clock error ε finds the
/// conflicts that no clock error can explain. −ε finds all conflicts that a clock error could hide. With a
/// negative slack a backward zone can touch two neighbours and counts against both neighbours. The result is
/// then an upper bound of the minimum.
pub(crate) fn lightest(zones: &[Zone], slack: i64, weight: Weight) -> Vec<usize> {
    let first_finish = |zone: &Zone| zone.first_finish().saturating_add(slack);
    // With a negative slack the first finish of a lone operation may lie before its start. The operation
    // still counts as backward.
    let is_forward = |zone: &Zone| first_finish(zone) < zone.last_start() && !zone.is_lone_operation();

    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    for (index, zone) in zones.iter().enumerate() {
        if is_forward(zone) { forward.push(index) } else { backward.push(index) }
    }
    forward.sort_by_key(|&index| (zones[index].last_start(), index));

    // For each forward zone a, the weight of the backward zones b inside it: the zones with f_b < s_a,
    // without the zones that also have s_b <= f_a.
    let mut inside = vec![0; forward.len()];
    let mut last_starts: Vec<Nanos> = backward.iter().map(|&index| zones[index].last_start()).collect();
    last_starts.sort_unstable();
    backward.sort_by_key(|&index| (first_finish(&zones[index]), index));
    let mut seen = FenwickTree::new(last_starts.len());
    let mut arriving = backward.iter().map(|&index| &zones[index]).peekable();
    for (inside, &index) in inside.iter_mut().zip(&forward) {
        let zone = &zones[index];
        while let Some(zone) = arriving.next_if(|inner| first_finish(inner) < zone.last_start()) {
            seen.add(last_starts.partition_point(|&start| start < zone.last_start()), weight.of(zone));
        }
        let not_after = last_starts.partition_point(|&start| start <= first_finish(zone));
        *inside = seen.total() - seen.sum(not_after);
    }

    // `best[i]` is the largest weight that the first `i` forward zones can keep. `compatible[i]` is the
    // number of zones that end before zone `i` begins.
    let ends: Vec<Nanos> = forward.iter().map(|&index| zones[index].last_start()).collect();
    let mut best = vec![0i64; forward.len() + 1];
    let mut compatible = vec![0; forward.len()];
    for (i, &index) in forward.iter().enumerate() {
        compatible[i] = ends[..i].partition_point(|&end| end <= first_finish(&zones[index]));
        best[i + 1] = best[i].max(best[compatible[i]] + weight.of(&zones[index]) - inside[i]);
    }

    let mut kept: Vec<&Zone> = Vec::new();
    let mut removed = Vec::new();
    let mut i = forward.len();
    while i > 0 {
        if best[i] == best[i - 1] {
            removed.push(forward[i - 1]);
            i -= 1;
        } else {
            let next = compatible[i - 1];
            kept.push(&zones[forward[i - 1]]);
            removed.extend(&forward[next..i - 1]);
            i = next;
        }
    }
    kept.reverse();
    for &index in &backward {
        let inner = &zones[index];
        // Kept zones are disjoint and sorted. `outer` is the first of them that ends after the first finish
        // of `inner`. Among the kept zones from `outer` on, `outer` begins earliest. So it is enough to test
        // whether `outer` begins before the last start of `inner`, also if with negative slack several of
        // them do.
        let outer = kept.partition_point(|outer| outer.last_start() <= first_finish(inner));
        if kept.get(outer).is_some_and(|outer| first_finish(outer) < inner.last_start()) {
            removed.push(index);
        }
    }
    removed
}

/// A Fenwick tree: prefix sums with updates in O(log n).
pub(crate) struct FenwickTree {
    sums: Vec<i64>,
    total: i64,
}

impl FenwickTree {
    pub(crate) fn new(len: usize) -> Self {
        Self { sums: vec![0; len + 1], total: 0 }
    }

    pub(crate) fn add(&mut self, index: usize, weight: i64) {
        self.total += weight;
        let mut at = index + 1;
        while at < self.sums.len() {
            self.sums[at] += weight;
            at += at & at.wrapping_neg();
        }
    }

    /// Returns the sum of the first `len` entries.
    pub(crate) fn sum(&self, len: usize) -> i64 {
        let (mut at, mut sum) = (len, 0);
        while at > 0 {
            sum += self.sums[at];
            at &= at - 1;
        }
        sum
    }

    pub(crate) fn total(&self) -> i64 {
        self.total
    }
}
