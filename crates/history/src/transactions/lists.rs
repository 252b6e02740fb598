//! Infers edges and anomalies for a key that is a list.
//!
//! The longest read of the key gives the order of the appends. If that read does not show an answered append,
//! the append's transaction comes after the longest read.

use rustc_hash::FxHashMap;

use super::atoms::Atom;
use super::graph::Dependency;
use super::history::{RefusedTransaction, StepVerb, name};
use super::inference::{Fan, Inference};
use super::report::Anomaly;
use crate::operation::Outcome;

/// An append to the key.
#[derive(Clone, Copy)]
struct Appended {
    step: u32,
    owner: u32,
    /// Whether its transaction appends nothing later to the key.
    is_last: bool,
}

/// An element of the key's order.
#[derive(Clone, Copy)]
enum Element {
    Committed(Appended),
    Failed(u32),
    Unwritten,
}

/// Infers edges and anomalies from the steps on one list. `steps` are the numbers of these steps, in
/// ascending order.
pub(super) fn infer(all: &mut Inference<'_>, key: u32, steps: &[u32]) -> Result<(), RefusedTransaction> {
    let history = all.history;
    let verb = |step: u32| history.steps[step as usize].verb;
    let owner = |step: u32| history.owners[step as usize];
    let outcome = |transaction: u32| history.transactions[transaction as usize].outcome;
    let log = &history.keys[key as usize];

    let mut appends: FxHashMap<Atom, Appended> = FxHashMap::default();
    let mut later: Option<u32> = None;
    for step in steps.iter().rev().copied() {
        let StepVerb::Append(atom) = verb(step) else { continue };
        let appended = Appended { step, owner: owner(step), is_last: later != Some(owner(step)) };
        later = Some(appended.owner);
        match appends.get(&atom) {
            Some(other) if outcome(other.owner) != Outcome::Failed => {
                if outcome(appended.owner) != Outcome::Failed {
                    return Err(twice(all, key, atom));
                }
            }
            _ => {
                appends.insert(atom, appended);
            }
        }
    }

    // Looks up the append of each element of the order.
    let mut elements: Vec<Element> = Vec::with_capacity(log.order.len());
    for (place, atom) in (1..).zip(&log.order) {
        let element = match appends.get(atom) {
            None => Element::Unwritten,
            Some(append) if outcome(append.owner) == Outcome::Failed => Element::Failed(append.owner),
            Some(append) => {
                all.committed[append.owner as usize] = true;
                if all.places[append.step as usize] != 0 {
                    all.anomaly(Anomaly::DuplicateElement, &[append.owner], |history| {
                        let (key, value) = (&log.name, history.atoms.text(*atom));
                        vec![format!(
                            "{} appended {value} to {key} once, and reads show it twice.",
                            name(append.owner)
                        )]
                    });
                }
                all.places[append.step as usize] = place;
                Element::Committed(*append)
            }
        };
        elements.push(element);
    }

    // Adds an edge from each committed append to the next one, and finds appends after a failed append.
    let mut last: Option<u32> = None;
    let mut failed: Option<u32> = None;
    for element in &elements {
        match *element {
            Element::Committed(append) => {
                if let Some(last) = last.replace(append.owner) {
                    all.graph.edge(last, append.owner, key, Dependency::WriteWrite);
                }
                if let Some(failed) = failed {
                    all.anomaly(Anomaly::DirtyUpdate, &[failed, append.owner], |_| {
                        let (failed, append) = (name(failed), name(append.owner));
                        vec![format!(
                            "{failed} failed, but the value that it appended to {} stayed there, and {append} \
                             appended the next one.",
                            log.name
                        )]
                    });
                }
            }
            Element::Failed(owner) => failed = failed.or(Some(owner)),
            Element::Unwritten => {}
        }
    }
    // For each place, the transaction of the first committed element at this place or after it.
    let mut next = vec![None; elements.len() + 1];
    for place in (0..elements.len()).rev() {
        next[place] = match elements[place] {
            Element::Committed(append) => Some(append.owner),
            _ => next[place + 1],
        };
    }
    let first_failed = elements.iter().position(|element| matches!(element, Element::Failed(_)));
    let first_unwritten = elements.iter().position(|element| matches!(element, Element::Unwritten));

    // An answered append that no read shows comes after the whole order.
    let mut unseen: Vec<u32> = Vec::new();
    for step in steps.iter().copied() {
        let owner = owner(step);
        let is_unseen = matches!(verb(step), StepVerb::Append(_)) && all.places[step as usize] == 0;
        if is_unseen && outcome(owner) == Outcome::Ok && unseen.last() != Some(&owner) {
            unseen.push(owner);
        }
    }
    let unseen = (!unseen.is_empty()).then(|| Fan::new(&mut all.graph, key, unseen));
    if let (Some(unseen), Some(last)) = (&unseen, last) {
        unseen.after(&mut all.graph, last, key, Dependency::WriteWrite);
    }

    // Judges the reads, and adds their edges.
    let (mut present, mut appended, mut latest) = (None, false, None);
    let mut updaters: FxHashMap<u32, u32> = FxHashMap::default();
    for step in steps.iter().copied() {
        let reader = owner(step);
        if present != Some(reader) {
            (present, appended, latest) = (Some(reader), false, None);
        }
        let length = match verb(step) {
            StepVerb::Append(_) => {
                // The transaction now replaces the version that its earlier read returned.
                if let (false, Some(read)) = (appended, latest) {
                    let other = *updaters.entry(read).or_insert(reader);
                    if other != reader {
                        lost_update(all, key, read, other, reader);
                    }
                }
                appended = true;
                continue;
            }
            StepVerb::Prefix(length) => length as usize,
            StepVerb::Value(Atom::NOTHING) => 0,
            StepVerb::Stray(_) => {
                judge_non_prefix_read(all, key, step, steps, &appends);
                continue;
            }
            _ => continue,
        };
        if let Some(place) = first_failed.filter(|place| *place < length)
            && let Element::Failed(writer) = elements[place]
        {
            aborted(all, key, log.order[place], writer, reader);
        }
        if let Some(place) = first_unwritten.filter(|place| *place < length) {
            unwritten(all, key, log.order[place], reader);
        }
        if appended || latest == Some(length as u32) {
            continue;
        }
        latest = Some(length as u32);
        if let Some(Element::Committed(append)) = length.checked_sub(1).map(|place| elements[place]) {
            all.graph.edge(append.owner, reader, key, Dependency::WriteRead);
            if !append.is_last && append.owner != reader {
                intermediate(all, key, log.order[length - 1], append.owner, reader);
            }
        }
        match (next[length], &unseen) {
            (Some(writer), _) => all.graph.edge(reader, writer, key, Dependency::ReadWrite),
            (None, Some(unseen)) => unseen.after(&mut all.graph, reader, key, Dependency::ReadWrite),
            (None, None) => {}
        }
    }
    Ok(())
}

/// Judges a read of a list that is no prefix of the key's order.
fn judge_non_prefix_read(
    all: &mut Inference<'_>,
    key: u32,
    step: u32,
    steps: &[u32],
    appends: &FxHashMap<Atom, Appended>,
) {
    let history = all.history;
    let reader = history.owners[step as usize];
    let list = history.list(history.steps[step as usize]).unwrap_or_default();
    let order = &history.keys[key as usize].order;
    let mut both = vec![reader];
    if !all.is_found(Anomaly::IncompatibleOrder) {
        // Any read of the order with more than the common elements contradicts this read.
        let common = list.iter().zip(order).take_while(|(a, b)| a == b).count();
        let other = steps.iter().find(|step| {
            matches!(history.steps[**step as usize].verb, StepVerb::Prefix(length) if length as usize > common)
        });
        both.extend(other.map(|step| history.owners[*step as usize]));
    }
    all.anomaly(Anomaly::IncompatibleOrder, &both, |history| {
        let (name, text) = (&history.keys[key as usize].name, |list| history.atoms.list_text(list));
        vec![format!(
            "Reads of {} returned {} and {}, and neither list is the beginning of the other.",
            name,
            text(list),
            text(order)
        )]
    });
    for atom in list {
        match appends.get(atom) {
            None => unwritten(all, key, *atom, reader),
            Some(append) => match history.transactions[append.owner as usize].outcome {
                Outcome::Failed => aborted(all, key, *atom, append.owner, reader),
                _ => all.committed[append.owner as usize] = true,
            },
        }
    }
}

fn twice(all: &Inference<'_>, key: u32, atom: Atom) -> RefusedTransaction {
    let history = all.history;
    RefusedTransaction::WrittenTwice {
        key: history.keys[key as usize].name.clone(),
        value: history.atoms.text(atom),
    }
}

fn aborted(all: &mut Inference<'_>, key: u32, atom: Atom, writer: u32, reader: u32) {
    all.anomaly(Anomaly::G1a, &[writer, reader], |history| {
        let (key, value) = (&history.keys[key as usize].name, history.atoms.text(atom));
        let (writer, reader) = (name(writer), name(reader));
        vec![format!("{writer} failed, and {reader} read {value} in {key}, which {writer} had appended.")]
    });
}

fn unwritten(all: &mut Inference<'_>, key: u32, atom: Atom, reader: u32) {
    all.anomaly(Anomaly::UnwrittenValue, &[reader], |history| {
        let (key, value) = (&history.keys[key as usize].name, history.atoms.text(atom));
        vec![format!("{} read {value} in {key}, and nobody appended it.", name(reader))]
    });
}

fn intermediate(all: &mut Inference<'_>, key: u32, atom: Atom, writer: u32, reader: u32) {
    all.anomaly(Anomaly::G1b, &[writer, reader], |history| {
        let (key, value) = (&history.keys[key as usize].name, history.atoms.text(atom));
        let (writer, reader) = (name(writer), name(reader));
        vec![format!(
            "{reader} read {key} with {value} as its last value, but {writer} appended {value} and more."
        )]
    });
}

fn lost_update(all: &mut Inference<'_>, key: u32, length: u32, former: u32, latter: u32) {
    all.anomaly(Anomaly::LostUpdate, &[former, latter], |history| {
        let log = &history.keys[key as usize];
        let list = history.atoms.list_text(&log.order[..length as usize]);
        vec![format!(
            "{} and {} both read {} as {list}, and both appended to it.",
            name(former),
            name(latter),
            log.name
        )]
    });
}
