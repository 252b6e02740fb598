//! The staleness of reads: Δ, the bound on k, and regularity.
//!
//! The three measures concern pairs of clusters that conflict, so only the conflicting zones are examined.

use crate::history::{BEGINNING, FOREVER, KeyHistory, ValueId, Verb};
use crate::operation::Nanos;
use crate::proportion::FenwickTree;
use crate::zone::{Zone, distance};

/// Returns Δ: the time by which all reads must begin earlier so that no conflict is left (Golab, Li and
/// Shah).
///
/// Letting reads begin earlier moves a zone's last start down, but not below the start of its write. A
/// conflict of *a* and *b* is resolved by letting *b* come first. That costs `s_b − f_a` and is possible only
/// if `w_b <= f_a`. At least one of the two directions is possible, and the cheaper possible direction
/// counts. If both are possible, the cost is Γ of the pair, and otherwise the cost is more than Γ. So the
/// result is the maximum of Γ and of the costs of the pairs with only one direction. Two sorted passes find
/// these costs.
///
/// No Δ mends a read that finished before its write began, so `zones` must not contain such reads.
pub(crate) fn delta(zones: &[Zone], gamma: u64) -> u64 {
    // A pair has one direction only if `b` cannot come first, because its write began after the first finish
    // of `a`. Then `a` must come first, and the costliest partner `b` of that kind has the earliest first
    // finish.
    let mut by_write: Vec<(Nanos, Nanos)> =
        zones.iter().map(|zone| (zone.write_start, zone.first_finish())).collect();
    by_write.sort_unstable();
    let mut earliest_finish = FOREVER;
    for (_, first_finish) in by_write.iter_mut().rev() {
        earliest_finish = earliest_finish.min(*first_finish);
        *first_finish = earliest_finish;
    }
    zones.iter().fold(gamma, |delta, zone| {
        let later = by_write.partition_point(|(write_start, _)| *write_start <= zone.first_finish());
        let price = by_write.get(later).map_or(0, |(_, finish)| distance(*finish, zone.last_start()));
        delta.max(price)
    })
}

/// Returns a lower bound of the smallest k for which some order lets every read return one of the last k
/// values written. The bound is one more than the largest number of writes that began after some value's
/// first finish and ended before the last read of that value began.
pub(crate) fn k(key: &KeyHistory, zones: &[Zone]) -> u64 {
    if zones.is_empty() {
        return 1;
    }
    let mut writes: Vec<(Nanos, Nanos)> = key
        .steps
        .iter()
        .filter(|step| step.verb == Verb::Write && step.finish != FOREVER)
        .map(|step| (step.finish, step.start))
        .collect();
    writes.sort_unstable();
    let mut starts: Vec<Nanos> = writes.iter().map(|(_, start)| *start).collect();
    starts.sort_unstable();
    // If a value has no reads, its last read counts as begun before everything.
    let mut queries: Vec<(Nanos, Nanos)> =
        zones.iter().map(|zone| (zone.read_start_max, zone.first_finish())).collect();
    queries.sort_unstable();

    let mut seen = FenwickTree::new(starts.len());
    let mut arriving = writes.iter().peekable();
    let mut most = 0;
    for (last_start, first_finish) in queries {
        while let Some((_, start)) = arriving.next_if(|(finish, _)| *finish < last_start) {
            seen.add(starts.partition_point(|other| other < start), 1);
        }
        let not_after = starts.partition_point(|start| *start <= first_finish);
        most = most.max(seen.total() - seen.sum(not_after));
    }
    // A conflict means that no order lets every read return the last value, so k is at least 2.
    most.unsigned_abs().max(1) + 1
}

/// Returns for each value of `zones` the latest start of a regular read of it. If a read of the value starts
/// later, then a write that began after the value's own write ended has already ended (Lamport's regularity,
/// for several writers).
fn replaced<'a>(key: &KeyHistory, zones: impl Iterator<Item = &'a Zone>) -> Vec<(ValueId, Nanos)> {
    let mut writes: Vec<(Nanos, Nanos)> = key
        .steps
        .iter()
        .filter(|step| step.verb == Verb::Write)
        .map(|step| (step.start, step.finish))
        .collect();
    writes.sort_unstable();
    let mut earliest = FOREVER;
    for (_, finish) in writes.iter_mut().rev() {
        earliest = earliest.min(*finish);
        *finish = earliest;
    }
    zones
        .map(|zone| {
            let later = writes.partition_point(|(start, _)| *start <= zone.write_finish);
            (zone.value, writes.get(later).map_or(FOREVER, |(_, finish)| *finish))
        })
        .collect()
}

/// Returns the number of reads that are not regular, without the reads of values that nobody wrote.
pub(crate) fn irregular_reads(key: &KeyHistory, conflicting: &[Zone], future: &[Zone]) -> u64 {
    if conflicting.is_empty() && future.is_empty() {
        return 0;
    }
    // Limits of the reads of each value: the latest start and the earliest finish that a regular read may
    // have.
    let mut limits = vec![(FOREVER, BEGINNING); key.numbers()];
    for (value, instant) in replaced(key, conflicting.iter().chain(future)) {
        limits[value as usize].0 = instant;
    }
    for zone in future {
        limits[zone.value as usize].1 = zone.write_start;
    }
    let irregular =
        |(start_max, finish_min): (Nanos, Nanos), start, finish| start > start_max || finish < finish_min;
    key.steps
        .iter()
        .filter(|step| step.verb == Verb::Read)
        .filter(|step| irregular(limits[step.value as usize], step.start, step.finish))
        .count() as u64
}
