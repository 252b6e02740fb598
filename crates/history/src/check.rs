//! Checks every key on its own and adds up the keys' results.

use crate::decide::{self, Decide};
use crate::history::{Family, History, KeyHistory, KeyStep, NOTHING, Verb};
use crate::operation::Value;
use crate::proportion::{Weight, lightest};
use crate::report::{KeyReport, Measures, Method, Report, Score, Verdict};
use crate::search::SearchAnswer;
use crate::session::Sessions;
use crate::staleness;
use crate::witness::{EvidenceOperation, Witness};
use crate::zone::{Zone, Zones, distance, worst};

/// Settings of a check.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// ε: largest error, in nanoseconds, of the difference of two times that different hosts recorded.
    pub clock_error: u64,
    /// Steps that the general search may take for one key before it answers "unknown".
    pub search_steps: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { clock_error: 0, search_steps: 20_000_000 }
    }
}

/// Checks a whole history, one key after another.
///
/// ```
/// use quorate_history::{History, Operation, Score, Verdict, check};
///
/// // The second read returns a value that had been replaced 5 ns before the read began.
/// let history: History = [
///     Operation::write(1, "x", "old", 0, 10),
///     Operation::write(1, "x", "new", 20, 30),
///     Operation::read(2, "x", Some("new".into()), 32, 34),
///     Operation::read(2, "x", Some("old".into()), 35, 40),
/// ]
/// .into_iter()
/// .collect();
/// let report = check(&history);
/// assert_eq!(report.verdict, Verdict::NotAtomic);
/// assert_eq!(report.measures.unwrap().gamma, Score::Finite(5));
/// assert_eq!(report.proportion(), Some(0.5));
/// ```
pub fn check(history: &History) -> Report {
    check_with(history, &Options::default())
}

/// Steps that the search takes for every key before it takes more steps for any key. A hard key thus cannot
/// delay a verdict that an easier key already gives.
pub const GLANCE_STEPS: u64 = 50_000;

/// Checks a whole history under the given options.
///
/// As soon as one key is not atomic, the history is not atomic. Keys whose search is still open after
/// [`GLANCE_STEPS`] then stay undecided.
pub fn check_with(history: &History, options: &Options) -> Report {
    let mut report = Report::new();
    let mut unfinished = Vec::new();
    for key in history.keys() {
        let mut check = KeyCheck::new(key, options);
        match check.advance(options.search_steps.min(GLANCE_STEPS)) {
            Some(found) => report.add(found),
            None => unfinished.push(check),
        }
    }
    for mut check in unfinished {
        let steps = if report.verdict == Verdict::NotAtomic { 0 } else { options.search_steps };
        let found = check.advance(steps.saturating_sub(GLANCE_STEPS));
        report.add(found.unwrap_or_else(|| check.give_up()));
    }
    report.rank();
    report
}

/// Checks one key. Keys are independent, so a host may check them in parallel.
pub fn check_key(key: &KeyHistory, options: &Options) -> KeyReport {
    let mut check = KeyCheck::new(key, options);
    check.advance(options.search_steps).unwrap_or_else(|| check.give_up())
}

/// The check of one key in pieces, for a host that watches the time and may stop early.
pub struct KeyCheck<'a> {
    key: &'a KeyHistory,
    options: Options,
    search: Option<Box<dyn Decide>>,
}

impl<'a> KeyCheck<'a> {
    /// Creates a check that has done no work yet.
    pub fn new(key: &'a KeyHistory, options: &Options) -> Self {
        Self { key, options: *options, search: None }
    }

    /// Continues the general search for at most `steps` steps and returns the report once the key is decided.
    /// A key that zones can judge is decided in one call, whatever `steps` is.
    pub fn advance(&mut self, steps: u64) -> Option<KeyReport> {
        if self.key.has_distinct_writes() {
            return Some(by_zones(self.key, &self.options, &mut Sessions::default()));
        }
        let orphans = orphan_reads(self.key);
        if let Some(orphan) = orphans.first() {
            let witness = Witness::Orphan { read: EvidenceOperation::of(self.key, orphan) };
            return Some(self.searched(Verdict::NotAtomic, orphans.len() as u64, Some(witness)));
        }
        match self.search.get_or_insert_with(|| decide::search(self.key)).advance(steps) {
            SearchAnswer::Linearizable => Some(self.searched(Verdict::Atomic, 0, None)),
            SearchAnswer::NotLinearizable(end) => {
                let evidence_operations = |indices: Vec<usize>| {
                    indices
                        .into_iter()
                        .map(|index| EvidenceOperation::of(self.key, &self.key.steps[index]))
                        .collect()
                };
                let witness = Witness::NoOrder {
                    ordered: end.ordered,
                    operations: self.key.len(),
                    prefix: evidence_operations(end.prefix),
                    candidates: evidence_operations(end.candidates),
                };
                Some(self.searched(Verdict::NotAtomic, 0, Some(witness)))
            }
            SearchAnswer::OutOfSteps => None,
        }
    }

    /// Returns the report of an abandoned search, with the verdict "unknown".
    pub fn give_up(&self) -> KeyReport {
        self.searched(Verdict::Unknown, 0, None)
    }

    fn searched(&self, verdict: Verdict, orphan_reads: u64, witness: Option<Witness>) -> KeyReport {
        KeyReport {
            key: self.key.key().into(),
            operations: self.key.len() as u64,
            values: self.key.numbers() as u64 - 1,
            method: Method::Search,
            verdict,
            orphan_reads,
            measures: (verdict == Verdict::Atomic).then_some(Measures::ATOMIC),
            witness,
        }
    }
}

/// Returns the inconsistent values of a key with distinct writes: the values of a lightest set of clusters
/// without which the key is atomic. [`Measures::inconsistent_operations`] counts the operations of this set.
/// `None` in the result is the initial value, "nothing".
///
/// # Panics
/// If the key does not [have distinct writes](KeyHistory::has_distinct_writes).
pub fn inconsistent_values(key: &KeyHistory) -> Vec<Option<&Value>> {
    let Zones { mut written, orphans } = Zones::of(key);
    let future: Vec<Zone> = written.extract_if(.., |zone| zone.future_read_lead() > 0).collect();
    let lightest = lightest(&written, 0, Weight::Operations).into_iter().map(|index| &written[index]);
    lightest.chain(&orphans).chain(&future).map(|zone| key.value(zone.value)).collect()
}

/// Returns for each value of a key with distinct writes the number of reads that returned it, and its Γ: the
/// largest Γ of all pairs that the value is in. `None` is "nothing". A value that nobody wrote has an
/// infinite Γ.
///
/// # Panics
/// If the key does not [have distinct writes](KeyHistory::has_distinct_writes).
pub fn gammas(key: &KeyHistory) -> Vec<(Option<&Value>, u32, Score)> {
    let Zones { written, orphans } = Zones::of(key);
    let worst = worst(&written);
    let finite = written
        .iter()
        .zip(&worst)
        .map(|(zone, it)| (zone, Score::Finite(it.gamma.max(zone.future_read_lead()))));
    let all = finite.chain(orphans.iter().map(|zone| (zone, Score::Infinite)));
    all.map(|(zone, gamma)| (key.value(zone.value), zone.reads, gamma)).collect()
}

/// Returns the reads of a register whose value nobody wrote. For other objects the search finds such reads.
fn orphan_reads(key: &KeyHistory) -> Vec<&KeyStep> {
    if key.family() != Family::Register {
        return Vec::new();
    }
    let mut written = vec![false; key.numbers()];
    written[NOTHING as usize] = true;
    for step in key.steps.iter().filter(|step| !matches!(step.verb, Verb::Read | Verb::CasRefused)) {
        written[step.value as usize] = true;
    }
    key.steps.iter().filter(|step| step.verb == Verb::Read && !written[step.value as usize]).collect()
}

/// Decides and measures a key with distinct writes.
pub(crate) fn by_zones(key: &KeyHistory, options: &Options, sessions: &mut Sessions) -> KeyReport {
    let Zones { written, orphans } = Zones::of(key);
    let values = (written.len() + orphans.len()) as u64;
    let orphan_reads: u64 = orphans.iter().map(|zone| u64::from(zone.reads)).sum();

    let worst = worst(&written);
    let future: Vec<Zone> = written.iter().copied().filter(|zone| zone.future_read_lead() > 0).collect();
    let conflicting: Vec<Zone> = written
        .iter()
        .zip(&worst)
        .filter(|(zone, worst)| worst.gamma > 0 && zone.future_read_lead() == 0)
        .map(|(zone, _)| *zone)
        .collect();
    let gamma_future = future.iter().map(Zone::future_read_lead).max().unwrap_or(0);
    let gamma_pairs = worst.iter().map(|worst| worst.gamma).max().unwrap_or(0);
    let gamma = gamma_pairs.max(gamma_future);
    let sound = orphans.is_empty() && future.is_empty();

    let mut measures = Measures {
        gamma: if orphans.is_empty() { Score::Finite(gamma) } else { Score::Infinite },
        gamma_finite: gamma,
        sessions: sessions.observe(key),
        ..Measures::ATOMIC
    };
    let mut verdict = Verdict::Atomic;
    if gamma > 0 || !sound {
        verdict = Verdict::NotAtomic;
        measures.delta =
            if sound { Score::Finite(staleness::delta(&conflicting, gamma)) } else { Score::Infinite };
        measures.k = if sound { Score::Finite(staleness::k(key, &conflicting)) } else { Score::Infinite };
        measures.irregular_reads = orphan_reads + staleness::irregular_reads(key, &conflicting, &future);

        let bound = orphans.iter().chain(&future);
        measures.inconsistent_operations = removed(&conflicting, bound.clone(), 0, Weight::Operations);
        measures.inconsistent_values = removed(&conflicting, bound, 0, Weight::One);
    }
    measures.certain_operations = measures.inconsistent_operations;
    measures.possible_operations = measures.inconsistent_operations;
    if options.clock_error > 0 {
        let slack = i64::try_from(options.clock_error).unwrap_or(i64::MAX);
        // Certain: inconsistent even if every time difference were smaller by ε. Possible: inconsistent if
        // every difference were larger by ε.
        let future_by = |zone: &&Zone, slack: i64| {
            zone.reads > 0 && distance(zone.read_finish_min.saturating_add(slack), zone.write_start) > 0
        };
        let certain_future: Vec<&Zone> = written.iter().filter(|zone| future_by(zone, slack)).collect();
        let rest: Vec<Zone> = written.iter().copied().filter(|zone| !future_by(&zone, slack)).collect();
        let bound = orphans.iter().chain(certain_future);
        measures.certain_operations = removed(&rest, bound, slack, Weight::Operations);

        let possible_future: Vec<&Zone> = written.iter().filter(|zone| future_by(zone, -slack)).collect();
        let rest: Vec<Zone> = written.iter().copied().filter(|zone| !future_by(&zone, -slack)).collect();
        let bound = orphans.iter().chain(possible_future);
        measures.possible_operations = removed(&rest, bound, -slack, Weight::Operations);
        if verdict == Verdict::NotAtomic && measures.certain_operations == 0 {
            verdict = Verdict::Unknown;
        }
    }

    let witness = if let Some(orphan) = orphans.first() {
        Some(Witness::orphan(key, orphan))
    } else if gamma_future >= gamma_pairs {
        // The list is empty for an atomic key, which needs no witness.
        future.iter().max_by_key(|zone| zone.future_read_lead()).map(|zone| Witness::future_read(key, zone))
    } else {
        let most = written.iter().zip(&worst).max_by_key(|(_, worst)| worst.gamma);
        most.map(|(zone, worst)| Witness::conflict(key, zone, &written[worst.partner], worst.gamma))
    };
    KeyReport {
        key: key.key().into(),
        operations: key.len() as u64,
        values,
        method: Method::Zones,
        verdict,
        orphan_reads,
        measures: Some(measures),
        witness,
    }
}

/// Returns the weight of the lightest set of zones whose removal leaves no conflict. The clusters in `bound`
/// are always part of the set.
fn removed<'a>(zones: &[Zone], bound: impl Iterator<Item = &'a Zone>, slack: i64, weight: Weight) -> u64 {
    let weight_of = |zone: &Zone| if weight == Weight::One { 1 } else { u64::from(zone.operations) };
    let chosen: u64 = lightest(zones, slack, weight).into_iter().map(|index| weight_of(&zones[index])).sum();
    chosen + bound.map(weight_of).sum::<u64>()
}
