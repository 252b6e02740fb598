//! Checks that each transaction sees its own earlier steps, and does not see its own later steps.

use rustc_hash::FxHashSet;

use super::atoms::Atom;
use super::history::{PackedStep, StepVerb, name};
use super::inference::Inference;
use super::report::Anomaly;
use crate::operation::Outcome;

/// A transaction's knowledge about a key after some of the transaction's steps.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The transaction that has this knowledge. An entry of an earlier transaction is stale.
    transaction: Option<u32>,
    /// The last read step, if the transaction has read the key.
    read: Option<u32>,
    /// Elements that the transaction appended since its last read of the key, or the value that it wrote
    /// since.
    own: Vec<Atom>,
}

/// Judges all answered transactions. The places of the appends must have been computed before.
pub(super) fn infer(all: &mut Inference<'_>) {
    let history = all.history;
    let mut known: Vec<Known> = vec![Known::default(); history.keys.len()];
    let mut later: FxHashSet<(u32, Atom)> = FxHashSet::default();
    for (transaction, packed) in (0..).zip(&history.transactions) {
        let range = history.step_range(transaction);
        if packed.outcome != Outcome::Ok || range.len() < 2 {
            continue;
        }
        for number in range.clone() {
            let step = history.steps[number];
            let known = &mut known[step.key as usize];
            if known.transaction != Some(transaction) {
                known.own.clear();
                (known.transaction, known.read) = (Some(transaction), None);
            }
            match step.verb {
                StepVerb::Append(atom) => known.own.push(atom),
                StepVerb::Write(atom) => {
                    known.own.clear();
                    known.own.push(atom);
                }
                StepVerb::Unanswered => {}
                _ => {
                    let agrees = match history.list(step) {
                        Some(_) if step.verb == StepVerb::Value(Atom::NOTHING) => {
                            agrees_with_absence(all, known)
                        }
                        Some(_) => agrees_list(all, known, step),
                        None => agrees_value(all, known, step),
                    };
                    if !agrees {
                        unexpected(all, transaction, step, known);
                    }
                    known.read = Some(number as u32);
                    known.own.clear();
                }
            }
        }
        future(all, transaction, range, &mut later);
    }
}

fn agrees_value(all: &Inference<'_>, known: &Known, step: PackedStep) -> bool {
    let StepVerb::Value(atom) = step.verb else { return true };
    match (known.own.last(), known.read) {
        (Some(own), _) => *own == atom,
        (None, Some(read)) => all.history.steps[read as usize].verb == StepVerb::Value(atom),
        (None, None) => true,
    }
}

/// Whether a read in the transaction may return "nothing" for this key.
fn agrees_with_absence(all: &Inference<'_>, known: &Known) -> bool {
    let read = known.read.map(|read| all.history.steps[read as usize]);
    known.own.is_empty() && read.is_none_or(|read| all.history.list(read).is_some_and(<[Atom]>::is_empty))
}

fn agrees_list(all: &Inference<'_>, known: &Known, step: PackedStep) -> bool {
    let history = all.history;
    let list = history.list(step).unwrap_or_default();
    let Some(base) = list.len().checked_sub(known.own.len()) else { return false };
    if list[base..] != known.own[..] {
        return false;
    }
    let Some(read) = known.read else { return true };
    let read = history.steps[read as usize];
    match (read.verb, step.verb) {
        // Both reads are prefixes of the same order, so comparing their lengths is enough.
        (StepVerb::Prefix(length), StepVerb::Prefix(_)) => length as usize == base,
        _ => history.list(read).is_some_and(|before| *before == list[..base]),
    }
}

fn unexpected(all: &mut Inference<'_>, transaction: u32, step: PackedStep, known: &Known) {
    all.anomaly(Anomaly::Internal, &[transaction], |history| {
        let key = &history.keys[step.key as usize].name;
        let mut before = Vec::new();
        before.extend(known.read.map(|read| history.step_text(history.steps[read as usize])));
        if !known.own.is_empty() {
            before.push(format!("its own {} in {key}", history.atoms.list_text(&known.own)));
        }
        vec![format!("{} saw {} after {}.", name(transaction), history.step_text(step), before.join(" and "))]
    });
}

/// Judges whether a read shows a value that the transaction wrote only later.
fn future(
    all: &mut Inference<'_>,
    transaction: u32,
    range: std::ops::Range<usize>,
    later: &mut FxHashSet<(u32, Atom)>,
) {
    let history = all.history;
    later.clear();
    // The first place, over all keys, of an append that comes later in the transaction. A read of so few
    // elements that it ends before this place shows no such append.
    let mut first_place = u32::MAX;
    for number in range.rev() {
        let step = history.steps[number];
        let shown = match step.verb {
            StepVerb::Append(atom) => {
                first_place = first_place.min(all.places[number].checked_sub(1).unwrap_or(u32::MAX));
                later.insert((step.key, atom));
                continue;
            }
            StepVerb::Write(atom) => {
                later.insert((step.key, atom));
                continue;
            }
            _ if later.is_empty() => continue,
            StepVerb::Value(atom) => later.contains(&(step.key, atom)).then_some(atom),
            StepVerb::Prefix(length) if length <= first_place => None,
            StepVerb::Prefix(_) | StepVerb::Stray(_) => {
                let list = history.list(step).unwrap_or_default();
                list.iter()
                    .rev()
                    .take(FUTURE_SHOWN_MAX)
                    .copied()
                    .find(|atom| later.contains(&(step.key, *atom)))
            }
            StepVerb::Unanswered => None,
        };
        if let Some(atom) = shown {
            all.anomaly(Anomaly::Internal, &[transaction], |history| {
                let (key, value) = (&history.keys[step.key as usize].name, history.atoms.text(atom));
                vec![format!("{} read {value} in {key} before it wrote it.", name(transaction))]
            });
        }
    }
}

/// Largest number of elements at the end of a list that the check compares with the reader's own later
/// writes.
const FUTURE_SHOWN_MAX: usize = 1_024;
