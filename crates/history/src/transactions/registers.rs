//! Infers edges and anomalies for a key that is a register. Each value is written to the register only once.
//!
//! Reads do not show the order of the versions. A part of the order follows from facts that are certain:
//!
//! * "Nothing" comes before all versions.
//! * If a transaction read a version and then wrote the register, it replaced exactly that version.
//! * With positions, versions are ordered by the positions of their transactions.
//! * If a client saw one version and saw another version later, the versions have this order. This is certain
//!   only if sessions count.
//! * If the write of a version ended before a read began, that version is not newer than the version that the
//!   read returned. This is certain only if time counts.

use rustc_hash::FxHashMap;

use super::atoms::Atom;
use super::graph::Dependency;
use super::history::{RefusedTransaction, StepVerb, TransactionHistory, name};
use super::inference::{Fan, Inference};
use super::report::Anomaly;
use crate::operation::{Nanos, Outcome};

/// The reads and writes of the register by one transaction.
#[derive(Clone, Copy, Debug)]
struct Visit {
    transaction: u32,
    /// The version that the transaction read first, unless it wrote the register before.
    read: Option<Atom>,
    /// The last version that the transaction wrote.
    wrote: Option<Atom>,
}

/// The write of a version.
#[derive(Clone, Copy, Debug)]
struct VersionWrite {
    owner: u32,
    /// Whether its transaction writes nothing later to the register.
    is_last: bool,
}

/// Infers edges and anomalies from the steps on one register. `steps` are the numbers of these steps, in
/// ascending order.
pub(super) fn infer(all: &mut Inference<'_>, key: u32, steps: &[u32]) -> Result<(), RefusedTransaction> {
    let versions = versions(all, key, steps)?;
    let visits = visits(all, key, steps, &versions);
    let outcome = |all: &Inference<'_>, one: u32| all.history.transactions[one as usize].outcome;
    let writer = |all: &Inference<'_>, atom: Atom| {
        let written = versions.get(&atom)?;
        (outcome(all, written.owner) != Outcome::Failed).then_some(written.owner)
    };
    for visit in &visits {
        if let Some(writer) = visit.read.and_then(|atom| writer(all, atom)) {
            all.committed[writer as usize] = true;
        }
    }

    let committed =
        visits.iter().filter(|visit| visit.wrote.is_some() && all.committed[visit.transaction as usize]);
    let mut writers: Vec<u32> = committed.map(|visit| visit.transaction).collect();
    writers.sort_unstable();
    if writers.is_empty() {
        return Ok(());
    }
    let first = Fan::new(&mut all.graph, key, writers.clone());

    // For each version, the transactions that are known to have replaced exactly this version. Two are
    // enough.
    let mut replaced: FxHashMap<Atom, [Option<u32>; 2]> = FxHashMap::default();
    for visit in &visits {
        let (Some(read), Some(_)) = (visit.read, visit.wrote) else { continue };
        if !all.committed[visit.transaction as usize] {
            continue;
        }
        let successors = replaced.entry(read).or_default();
        match successors {
            [None, _] => successors[0] = Some(visit.transaction),
            [Some(_), None] => successors[1] = Some(visit.transaction),
            _ => {}
        }
        if let Some(former) = successors[0].filter(|former| *former != visit.transaction) {
            lost_update(all, key, read, former, visit.transaction);
        }
    }

    let positioned = by_position(all, &visits);
    if let Some(order) = &positioned {
        for pair in order.windows(2) {
            all.graph.edge(pair[0].1, pair[1].1, key, Dependency::WriteWrite);
        }
    }
    for visit in &visits {
        let Some(read) = visit.read else { continue };
        let reader = visit.transaction;
        if read == Atom::NOTHING {
            first.after(&mut all.graph, reader, key, Dependency::ReadWrite);
            continue;
        }
        let Some(writer) = writer(all, read) else { continue };
        all.graph.edge(writer, reader, key, Dependency::WriteRead);
        if visit.wrote.is_some() {
            all.graph.edge(writer, reader, key, Dependency::WriteWrite);
        }
        for successor in replaced.get(&read).into_iter().flatten().flatten() {
            all.graph.edge(reader, *successor, key, Dependency::ReadWrite);
        }
        if let (Some(order), Some(position)) =
            (&positioned, all.history.transactions[writer as usize].position)
        {
            let next = order.partition_point(|(other, _)| *other <= position);
            if let Some((_, next)) = order.get(next) {
                all.graph.edge(reader, *next, key, Dependency::ReadWrite);
            }
        }
    }
    if positioned.is_none() {
        by_session(all, key, &visits, &|all, atom| writer(all, atom));
        by_time(all, key, &visits, &writers, &|all, atom| writer(all, atom));
    }
    Ok(())
}

fn versions(
    all: &Inference<'_>,
    key: u32,
    steps: &[u32],
) -> Result<FxHashMap<Atom, VersionWrite>, RefusedTransaction> {
    let history = all.history;
    let failed = |owner: u32| history.transactions[owner as usize].outcome == Outcome::Failed;
    let mut versions: FxHashMap<Atom, VersionWrite> = FxHashMap::default();
    let mut later = None;
    for step in steps.iter().rev() {
        let StepVerb::Write(atom) = history.steps[*step as usize].verb else { continue };
        let owner = history.owners[*step as usize];
        let written = VersionWrite { owner, is_last: later != Some(owner) };
        later = Some(owner);
        match versions.get(&atom) {
            Some(other) if !failed(other.owner) => {
                if !failed(owner) {
                    let key = history.keys[key as usize].name.clone();
                    return Err(RefusedTransaction::WrittenTwice { key, value: history.atoms.text(atom) });
                }
            }
            _ => {
                versions.insert(atom, written);
            }
        }
    }
    Ok(versions)
}

/// Gathers the reads and writes of each transaction, and judges each read by itself.
fn visits(
    all: &mut Inference<'_>,
    key: u32,
    steps: &[u32],
    versions: &FxHashMap<Atom, VersionWrite>,
) -> Vec<Visit> {
    let history = all.history;
    let mut visits: Vec<Visit> = Vec::new();
    for step in steps {
        let transaction = history.owners[*step as usize];
        if visits.last().is_none_or(|visit| visit.transaction != transaction) {
            visits.push(Visit { transaction, read: None, wrote: None });
        }
        let visit = visits.last_mut().expect("just pushed");
        let atom = match history.steps[*step as usize].verb {
            StepVerb::Write(atom) => {
                visit.wrote = Some(atom);
                continue;
            }
            StepVerb::Value(atom) => atom,
            _ => continue,
        };
        if visit.wrote.is_none() && visit.read.is_none() {
            visit.read = Some(atom);
        }
        if atom == Atom::NOTHING {
            continue;
        }
        let text = |because: &str, writer: u32| {
            let (key, value) = (&history.keys[key as usize].name, history.atoms.text(atom));
            let (reader, writer) = (name(transaction), name(writer));
            vec![format!("{reader} read {key} = {value}, which {writer} had written; {writer} {because}.")]
        };
        match versions.get(&atom) {
            None => all.anomaly(Anomaly::UnwrittenValue, &[transaction], |history| {
                let (key, value) = (&history.keys[key as usize].name, history.atoms.text(atom));
                vec![format!("{} read {key} = {value}, and nobody wrote it.", name(transaction))]
            }),
            Some(VersionWrite { owner, .. })
                if history.transactions[*owner as usize].outcome == Outcome::Failed =>
            {
                all.anomaly(Anomaly::G1a, &[*owner, transaction], |_| text("failed", *owner));
                if visit.read == Some(atom) && steps_write_later(history, key, *step) {
                    all.anomaly(Anomaly::DirtyUpdate, &[*owner, transaction], |_| {
                        text(&format!("failed, and {} replaced it", name(transaction)), *owner)
                    });
                }
            }
            Some(VersionWrite { owner, is_last: false }) if *owner != transaction => {
                all.anomaly(Anomaly::G1b, &[*owner, transaction], |_| text("wrote again later", *owner));
            }
            Some(_) => {}
        }
    }
    visits
}

/// Whether the transaction of a step writes the key in a later step.
fn steps_write_later(history: &TransactionHistory, key: u32, step: u32) -> bool {
    let end = history.step_range(history.owners[step as usize]).end;
    let later = &history.steps[step as usize + 1..end];
    later.iter().any(|step| step.key == key && matches!(step.verb, StepVerb::Write(_)))
}

/// Returns the committed writers with their positions, sorted by position. Returns `None` if some of them has
/// no position.
fn by_position(all: &Inference<'_>, visits: &[Visit]) -> Option<Vec<(u64, u32)>> {
    let mut order = Vec::new();
    for visit in visits.iter().filter(|visit| visit.wrote.is_some()) {
        if all.committed[visit.transaction as usize] {
            order.push((all.history.transactions[visit.transaction as usize].position?, visit.transaction));
        }
    }
    order.sort_unstable();
    Some(order)
}

type WriterOf<'a> = &'a dyn Fn(&Inference<'_>, Atom) -> Option<u32>;

/// Adds edges between the versions that a client saw one after the other.
fn by_session(all: &mut Inference<'_>, key: u32, visits: &[Visit], writer: WriterOf<'_>) {
    let transactions = &all.history.transactions;
    let mut visits: Vec<&Visit> = visits
        .iter()
        .filter(|visit| transactions[visit.transaction as usize].outcome == Outcome::Ok)
        .collect();
    visits.sort_by_key(|visit| (transactions[visit.transaction as usize].start, visit.transaction));
    let mut seen: FxHashMap<u64, u32> = FxHashMap::default();
    for visit in visits {
        let client = transactions[visit.transaction as usize].client;
        let read = visit.read.and_then(|atom| writer(all, atom));
        if let (Some(before), Some(now)) = (seen.get(&client), read) {
            all.graph.edge(*before, now, key, Dependency::SessionWriteWrite);
        }
        if let Some(now) = visit.wrote.map(|_| visit.transaction).or(read) {
            seen.insert(client, now);
        }
    }
}

/// A committed write with its times.
#[derive(Clone, Copy)]
struct TimedWrite {
    start: Nanos,
    finish: Nanos,
    owner: u32,
}

/// Orders versions by time. If several edges follow from each other, adds only the edges between the closest
/// writes.
fn by_time(all: &mut Inference<'_>, key: u32, visits: &[Visit], writers: &[u32], writer: WriterOf<'_>) {
    let transactions = &all.history.transactions;
    let timed = writers.iter().map(|owner| {
        let transaction = &transactions[*owner as usize];
        TimedWrite {
            start: transaction.start,
            finish: transaction.finish.unwrap_or(Nanos::MAX),
            owner: *owner,
        }
    });
    let mut by_start: Vec<TimedWrite> = timed.collect();
    by_start.sort_unstable_by_key(|write| (write.start, write.owner));
    let mut by_finish = by_start.clone();
    by_finish.sort_unstable_by_key(|write| (write.finish, write.owner));
    // For each prefix of `by_finish`, the latest start in this prefix. `earliest_finish` holds the earliest
    // finish of each suffix of `by_start`.
    let latest_start: Vec<Nanos> = by_finish
        .iter()
        .scan(Nanos::MIN, |latest, write| {
            *latest = write.start.max(*latest);
            Some(*latest)
        })
        .collect();
    let mut earliest_finish: Vec<Nanos> = by_start
        .iter()
        .rev()
        .scan(Nanos::MAX, |earliest, write| {
            *earliest = write.finish.min(*earliest);
            Some(*earliest)
        })
        .collect();
    earliest_finish.reverse();

    // Of all reads of a version, the read that began last has the most earlier writes. So only this read adds
    // edges.
    let mut last_read: FxHashMap<u32, Nanos> = FxHashMap::default();
    let mut sources: Vec<u32> = Vec::new();
    for visit in visits {
        let Some(source) = visit.read.and_then(|atom| writer(all, atom)) else { continue };
        let start = transactions[visit.transaction as usize].start;
        let last = last_read.entry(source).or_insert_with(|| {
            sources.push(source);
            start
        });
        *last = start.max(*last);

        let finish = transactions[source as usize].finish.unwrap_or(Nanos::MAX);
        let begin = by_start.partition_point(|write| write.start <= finish);
        let until = earliest_finish.get(begin).copied().unwrap_or(Nanos::MIN);
        let closest = by_start[begin..].iter().take(CLOSEST_MAX);
        for write in closest.take_while(|write| write.start <= until) {
            all.graph.edge(visit.transaction, write.owner, key, Dependency::TimeReadWrite);
        }
    }
    for source in sources {
        let end = by_finish.partition_point(|write| write.finish < last_read[&source]);
        let Some(latest) = end.checked_sub(1).map(|index| latest_start[index]) else { continue };
        let closest = by_finish[..end].iter().rev().take(CLOSEST_MAX);
        for write in closest.take_while(|write| write.finish >= latest) {
            all.graph.edge(write.owner, source, key, Dependency::TimeWriteWrite);
        }
    }
}

/// Largest number of time edges that one read adds for its key. If more clients write a register at the same
/// time, the judge leaves out further edges, and may miss an anomaly that only these edges would show.
const CLOSEST_MAX: usize = 24;

fn lost_update(all: &mut Inference<'_>, key: u32, read: Atom, former: u32, latter: u32) {
    all.anomaly(Anomaly::LostUpdate, &[former, latter], |history| {
        let (key, value) = (&history.keys[key as usize].name, history.atoms.text(read));
        vec![format!(
            "{} and {} both read {key} = {value}, and both wrote {key}.",
            name(former),
            name(latter)
        )]
    });
}
