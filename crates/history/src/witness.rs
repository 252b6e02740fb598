//! The evidence that a key is not atomic: the operations that prove this, and a drawing of them.

use std::fmt;

use crate::history::{BEGINNING, FOREVER, KeyHistory, KeyStep, NOTHING, ValueId, Verb};
use crate::operation::{Nanos, Value};
use crate::zone::Zone;

/// An operation, as evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvidenceOperation {
    /// Short form of the operation, as in `W(a)`.
    pub label: String,
    /// Start of the operation, or `None` for the initial value, which comes before everything.
    pub start: Option<Nanos>,
    /// End of the operation, or `None` if its outcome is unknown.
    pub finish: Option<Nanos>,
}

/// The two operations of one cluster that bound its zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneEvidence {
    /// Value of the cluster. `None` is "nothing".
    pub value: Option<Value>,
    /// Operation that ended first. Before its end, the value had been written.
    pub first: EvidenceOperation,
    /// Operation that began last. At its start, the value was current or not yet written.
    pub last: EvidenceOperation,
    /// End of `first`.
    pub first_finish: Option<Nanos>,
    /// Start of `last`.
    pub last_start: Option<Nanos>,
}

/// The proof that a key is not atomic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Witness {
    /// Two values conflict: each would have to replace the other.
    Conflict {
        /// One of the values.
        a: Box<ZoneEvidence>,
        /// The other value.
        b: Box<ZoneEvidence>,
        /// Γ of the two values, in nanoseconds.
        gamma: u64,
    },
    /// A read returned a value before the write of this value began.
    FutureRead {
        /// The read.
        read: EvidenceOperation,
        /// The write.
        write: EvidenceOperation,
        /// Time from the end of the read to the start of the write, in nanoseconds.
        gamma: u64,
    },
    /// A read returned a value that nobody wrote.
    Orphan {
        /// The read.
        read: EvidenceOperation,
    },
    /// The search found no order. The fields describe the longest attempt.
    NoOrder {
        /// Number of operations in the longest order found.
        ordered: usize,
        /// Number of operations on the key.
        operations: usize,
        /// The last operations of the longest order.
        prefix: Vec<EvidenceOperation>,
        /// Operations of which at least one had to come next; none of them fits.
        candidates: Vec<EvidenceOperation>,
    },
}

impl Witness {
    /// Returns the witness of an orphan read: of all reads of the value, the read that ended first.
    pub(crate) fn orphan(key: &KeyHistory, orphan: &Zone) -> Self {
        let read = first(key, |step| step.value == orphan.value, |step| step.finish);
        Self::Orphan { read: EvidenceOperation::of(key, read) }
    }

    /// Returns the witness of a future read: of all reads in `zone`, the read that finished longest before
    /// the write began.
    pub(crate) fn future_read(key: &KeyHistory, zone: &Zone) -> Self {
        let read = first(key, |step| step.value == zone.value && step.verb == Verb::Read, |step| step.finish);
        let write =
            first(key, |step| step.value == zone.value && step.verb == Verb::Write, |step| step.start);
        Self::FutureRead {
            read: EvidenceOperation::of(key, read),
            write: EvidenceOperation::of(key, write),
            gamma: zone.future_read_lead(),
        }
    }

    /// Returns the witness of two conflicting zones.
    pub(crate) fn conflict(key: &KeyHistory, a: &Zone, b: &Zone, gamma: u64) -> Self {
        Self::Conflict { a: Box::new(evidence(key, a)), b: Box::new(evidence(key, b)), gamma }
    }

    /// Returns all operations of the evidence, sorted by start.
    pub fn evidence_operations(&self) -> Vec<&EvidenceOperation> {
        let mut all = match self {
            Self::Conflict { a, b, .. } => vec![&a.first, &a.last, &b.first, &b.last],
            Self::FutureRead { read, write, .. } => vec![read, write],
            Self::Orphan { read } => vec![read],
            Self::NoOrder { prefix, candidates, .. } => prefix.iter().chain(candidates).collect(),
        };
        all.sort_by_key(|operation| (operation.start, operation.finish.unwrap_or(FOREVER)));
        all.dedup();
        all
    }

    /// Draws the operations, and the zones of a conflict, on a time axis of `width` columns.
    pub fn drawing(&self, width: usize) -> String {
        let evidence_operations = self.evidence_operations();
        let times =
            evidence_operations.iter().flat_map(|operation| [operation.start, operation.finish]).flatten();
        let (Some(earliest), Some(latest)) = (times.clone().min(), times.max()) else { return String::new() };
        let span = latest.abs_diff(earliest).max(1);
        let columns = width.clamp(20, 400);
        let column = |time: Nanos| {
            let at = u128::from(time.abs_diff(earliest)) * (columns as u128 - 1) / u128::from(span);
            usize::try_from(at).expect("a column of the drawing is within its width")
        };
        let label_width = evidence_operations
            .iter()
            .map(|operation| operation.label.chars().count())
            .max()
            .unwrap_or(0)
            .max(8);
        let mut lines = vec![format!("{:label_width$}  {earliest} ns … +{span} ns", "")];
        let mut bar =
            |label: &str, start: Option<Nanos>, finish: Option<Nanos>, [left, fill, right]: [char; 3]| {
                let (from, to) = (start.map_or(0, column), finish.map_or(columns - 1, column));
                let mut line = format!("{label:label_width$}  {}", " ".repeat(from));
                for at in from..=to {
                    line.push(match at {
                        _ if at == from && at == to && start.is_some() && finish.is_some() => '│',
                        _ if at == from && start.is_some() => left,
                        _ if at == to && finish.is_some() => right,
                        _ => fill,
                    });
                }
                lines.push(line);
            };
        for operation in evidence_operations {
            bar(&operation.label, operation.start, operation.finish, ['├', '─', '┤']);
        }
        if let Self::Conflict { a, b, .. } = self {
            for zone in [a, b] {
                let label = format!("zone {}", shown(zone.value.as_ref()));
                let (from, to) = (zone.first_finish, zone.last_start);
                // Only the initial value has no first finish. That finish counts as before everything.
                if zone.first_finish.is_none_or(|first| zone.last_start.is_some_and(|last| first < last)) {
                    bar(&label, from, to, ['╞', '═', '╡']);
                } else {
                    bar(&label, to, from, ['┆', '╌', '┆']);
                }
            }
        }
        lines.join("\n")
    }
}

impl fmt::Display for Witness {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict { a, b, gamma } => {
                let (a, b) = (a.value.as_ref(), b.value.as_ref());
                write!(out, "values {} and {} conflict, Γ = {gamma} ns", shown(a), shown(b))?;
            }
            Self::FutureRead { read, write, gamma } => {
                write!(out, "{} ended {gamma} ns before {} began", read.label, write.label)?;
            }
            Self::Orphan { read } => write!(out, "{} returned a value that nobody wrote", read.label)?,
            Self::NoOrder { ordered, operations, candidates, .. } => {
                let candidates: Vec<&str> =
                    candidates.iter().map(|operation| operation.label.as_str()).collect();
                let candidates = candidates.join(", ");
                write!(
                    out,
                    "{ordered} of {operations} operations can be ordered, and then none of {candidates} can follow"
                )?;
            }
        }
        write!(out, "\n{}", self.drawing(72))
    }
}

impl EvidenceOperation {
    pub(crate) fn of(key: &KeyHistory, step: &KeyStep) -> Self {
        Self {
            label: format!("{} by {}", label(key, step), step.client),
            start: Some(step.start),
            finish: (step.finish != FOREVER).then_some(step.finish),
        }
    }

    fn initial() -> Self {
        Self { label: "initially".into(), start: None, finish: None }
    }
}

fn label(key: &KeyHistory, step: &KeyStep) -> String {
    let value = |id: ValueId| shown(key.value(id));
    match step.verb {
        Verb::Read => format!("R({})", value(step.value)),
        Verb::Write if step.value == NOTHING => "delete".into(),
        Verb::Write => format!("W({})", value(step.value)),
        Verb::Cas => format!("CAS({}→{})", value(step.other), value(step.value)),
        Verb::CasRefused => format!("CAS({}→{}) refused", value(step.other), value(step.value)),
        Verb::CasUnknown => format!("CAS({}→{})?", value(step.other), value(step.value)),
        Verb::Append => format!("append({})", value(step.value)),
        Verb::Add => format!("add({})", value(step.value)),
        Verb::Remove => format!("remove({})", value(step.value)),
        Verb::Enqueue => format!("enqueue({})", value(step.value)),
        Verb::Dequeue => format!("dequeue → {}", value(step.value)),
        Verb::DequeueUnknown => "dequeue → ?".into(),
    }
}

/// Formats a value for people: shortened, and ∅ for "nothing".
pub(crate) fn shown(value: Option<&Value>) -> String {
    const LENGTH_MAX: usize = 24;
    let Some(value) = value else { return "∅".into() };
    let text = value.to_string();
    match text.char_indices().nth(LENGTH_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn first(key: &KeyHistory, which: impl Fn(&KeyStep) -> bool, by: impl Fn(&KeyStep) -> Nanos) -> &KeyStep {
    key.steps.iter().filter(|step| which(step)).min_by_key(|step| by(step)).expect("a cluster has operations")
}

fn evidence(key: &KeyHistory, zone: &Zone) -> ZoneEvidence {
    let bound = |by: fn(&KeyStep) -> Nanos| first(key, |step| step.value == zone.value, by);
    let last = bound(|step| -step.start);
    ZoneEvidence {
        value: key.value(zone.value).cloned(),
        first: if zone.value == NOTHING {
            EvidenceOperation::initial()
        } else {
            EvidenceOperation::of(key, bound(|step| step.finish))
        },
        last: EvidenceOperation::of(key, last),
        first_finish: (zone.first_finish() > BEGINNING).then_some(zone.first_finish()),
        last_start: Some(zone.last_start()),
    }
}
