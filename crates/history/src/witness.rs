//! The evidence: which operations show that a key is not atomic, and a drawing of them.

use std::fmt;

use crate::history::{BEGINNING, FOREVER, KeyHistory, NOTHING, Step, ValueId, Verb};
use crate::operation::{Nanos, Value};
use crate::zone::Zone;

/// An operation as evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exhibit {
    /// What it was, as in `W(a)`.
    pub label: String,
    /// When it began; `None`: before everything.
    pub start: Option<Nanos>,
    /// When it ended; `None`: never, as far as is known.
    pub finish: Option<Nanos>,
}

/// Two operations of one cluster that bound its zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneEvidence {
    /// The value; `None` is "nothing".
    pub value: Option<Value>,
    /// The operation that ended first: from then on the value had been there.
    pub first: Exhibit,
    /// The operation that began last: until then it had to be there, or to come.
    pub last: Exhibit,
    /// The end of the first.
    pub first_finish: Option<Nanos>,
    /// The beginning of the last.
    pub last_start: Option<Nanos>,
}

/// Why a key is not atomic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Witness {
    /// Each of two values would have to be replaced by the other.
    Conflict {
        /// One of them.
        a: Box<ZoneEvidence>,
        /// The other.
        b: Box<ZoneEvidence>,
        /// Γ of the two.
        gamma: u64,
    },
    /// A value was returned before its write began.
    FutureRead {
        /// The read.
        read: Exhibit,
        /// The write.
        write: Exhibit,
        /// By how much.
        gamma: u64,
    },
    /// A value was returned that nobody wrote.
    Orphan {
        /// The read.
        read: Exhibit,
    },
    /// The search ended here in every order it tried.
    Stuck {
        /// The most operations that could be put in an order.
        ordered: usize,
        /// Of how many.
        operations: usize,
        /// The last of them.
        prefix: Vec<Exhibit>,
        /// The operations one of which had to come next and none could.
        candidates: Vec<Exhibit>,
    },
}

impl Witness {
    /// The first orphan read of a key.
    pub(crate) fn orphan(key: &KeyHistory, orphan: &Zone) -> Self {
        let read = first(key, |step| step.value == orphan.value, |step| step.finish);
        Self::Orphan { read: Exhibit::of(key, read) }
    }

    /// The read of `zone` that finished longest before the write began.
    pub(crate) fn future_read(key: &KeyHistory, zone: &Zone) -> Self {
        let read = first(key, |step| step.value == zone.value && step.verb == Verb::Read, |step| step.finish);
        let write =
            first(key, |step| step.value == zone.value && step.verb == Verb::Write, |step| step.start);
        Self::FutureRead {
            read: Exhibit::of(key, read),
            write: Exhibit::of(key, write),
            gamma: zone.future(),
        }
    }

    /// Two conflicting zones.
    pub(crate) fn conflict(key: &KeyHistory, a: &Zone, b: &Zone, gamma: u64) -> Self {
        Self::Conflict { a: Box::new(evidence(key, a)), b: Box::new(evidence(key, b)), gamma }
    }

    /// All operations shown, in the order of their beginning.
    pub fn exhibits(&self) -> Vec<&Exhibit> {
        let mut all = match self {
            Self::Conflict { a, b, .. } => vec![&a.first, &a.last, &b.first, &b.last],
            Self::FutureRead { read, write, .. } => vec![read, write],
            Self::Orphan { read } => vec![read],
            Self::Stuck { prefix, candidates, .. } => prefix.iter().chain(candidates).collect(),
        };
        all.sort_by_key(|exhibit| (exhibit.start, exhibit.finish.unwrap_or(FOREVER)));
        all.dedup();
        all
    }

    /// Draws the operations, and the zones of a conflict, on a time axis `width` columns wide.
    pub fn drawing(&self, width: usize) -> String {
        let exhibits = self.exhibits();
        let times = exhibits.iter().flat_map(|exhibit| [exhibit.start, exhibit.finish]).flatten();
        let (Some(earliest), Some(latest)) = (times.clone().min(), times.max()) else { return String::new() };
        let span = latest.abs_diff(earliest).max(1);
        let columns = width.clamp(20, 400);
        let column = |time: Nanos| {
            let at = u128::from(time.abs_diff(earliest)) * (columns as u128 - 1) / u128::from(span);
            usize::try_from(at).expect("within the width")
        };
        let label_width =
            exhibits.iter().map(|exhibit| exhibit.label.chars().count()).max().unwrap_or(0).max(8);
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
        for exhibit in exhibits {
            bar(&exhibit.label, exhibit.start, exhibit.finish, ['├', '─', '┤']);
        }
        if let Self::Conflict { a, b, .. } = self {
            for zone in [a, b] {
                let label = format!("zone {}", shown(zone.value.as_ref()));
                let (from, to) = (zone.first_finish, zone.last_start);
                // A missing first finish is the initial value's: before everything.
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
                write!(out, "{} and {} conflict, Γ = {gamma} ns", shown(a), shown(b))?;
            }
            Self::FutureRead { read, write, gamma } => {
                write!(out, "{} ended {gamma} ns before {} began", read.label, write.label)?;
            }
            Self::Orphan { read } => write!(out, "{} returned what nobody wrote", read.label)?,
            Self::Stuck { ordered, operations, candidates, .. } => {
                let candidates: Vec<&str> = candidates.iter().map(|exhibit| exhibit.label.as_str()).collect();
                let candidates = candidates.join(", ");
                write!(
                    out,
                    "{ordered} of {operations} operations can be ordered, then none of {candidates}"
                )?;
            }
        }
        write!(out, "\n{}", self.drawing(72))
    }
}

impl Exhibit {
    pub(crate) fn of(key: &KeyHistory, step: &Step) -> Self {
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

fn label(key: &KeyHistory, step: &Step) -> String {
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

/// A value for people: short, and ∅ for nothing.
pub(crate) fn shown(value: Option<&Value>) -> String {
    const LENGTH_MAX: usize = 24;
    let Some(value) = value else { return "∅".into() };
    let text = value.to_string();
    match text.char_indices().nth(LENGTH_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn first(key: &KeyHistory, which: impl Fn(&Step) -> bool, by: impl Fn(&Step) -> Nanos) -> &Step {
    key.steps.iter().filter(|step| which(step)).min_by_key(|step| by(step)).expect("a cluster has operations")
}

fn evidence(key: &KeyHistory, zone: &Zone) -> ZoneEvidence {
    let bound = |by: fn(&Step) -> Nanos| first(key, |step| step.value == zone.value, by);
    let last = bound(|step| -step.start);
    ZoneEvidence {
        value: key.value(zone.value).cloned(),
        first: if zone.value == NOTHING {
            Exhibit::initial()
        } else {
            Exhibit::of(key, bound(|step| step.finish))
        },
        last: Exhibit::of(key, last),
        first_finish: (zone.first_finish() > BEGINNING).then_some(zone.first_finish()),
        last_start: Some(zone.last_start()),
    }
}
