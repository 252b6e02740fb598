//! How stale reads were: Δ, the bound on k, and regularity.
//!
//! All three look at pairs of clusters that conflict, so they are computed over the conflicting zones only.

use crate::history::{BEGINNING, FOREVER, KeyHistory, ValueId, Verb};
use crate::operation::Nanos;
use crate::proportion::FenwickTree;
use crate::zone::{Zone, distance};

/// Δ: by how much all reads would have to begin earlier for no conflict to be left (Golab, Li and Shah).
///
/// Beginning earlier moves a zone's last start down, but never below its write's start, so a conflict of *a* and *b* can be
/// dissolved by letting *b* come first, for `s_b − f_a`, only if `w_b <= f_a`. Of the two ways at least one is open, and the
/// cheaper open one counts. Where both are open that is Γ of the pair; where one is closed, it is more. So the maximum
/// over all pairs is the largest of Γ and of the price of the pairs that have one way only, which two sorted passes find.
///
/// A read that finished before its write began is not mended by any Δ; `zones` must not hold such.
pub(crate) fn delta(zones: &[Zone], gamma: u64) -> u64 {
    // Partners whose write began after this zone's first finish: this zone has to give way to the earliest f among them.
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

/// A lower bound on k, where a read returns one of the last k values written: one more than the writes that lie
/// wholly between the first finish and the last read start of some value.
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
    // A value that was not read has its last start before everything.
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
    // Conflicts mean that no order lets every read return the last value.
    most.unsigned_abs().max(1) + 1
}

/// For every value of `zones`, the instant from which on a read of it is not regular: some other write had begun after the
/// value's write was finished, and is finished too (Lamport's regularity, for several writers).
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

/// How many reads are not regular, apart from those of values nobody wrote.
pub(crate) fn irregular_reads(key: &KeyHistory, conflicting: &[Zone], future: &[Zone]) -> u64 {
    if conflicting.is_empty() && future.is_empty() {
        return 0;
    }
    // Per value: reads must start no later than the first and finish no earlier than the second.
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
