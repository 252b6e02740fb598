//! Describes cycles by plain sentences.

use super::graph::{Dependency, Edge};
use super::history::{StepVerb, TransactionHistory, name};

/// An edge from one transaction to another, without the joints between them.
#[derive(Clone, Copy, Debug)]
struct Link {
    from: u32,
    to: u32,
    key: u32,
    dependency: Dependency,
}

/// Returns the transactions of a cycle and a sentence for each of its edges.
pub(super) fn explain(history: &TransactionHistory, cycle: &[Edge]) -> (Vec<u32>, Vec<String>) {
    let transactions = history.len() as u32;
    let mut links: Vec<Link> = Vec::new();
    for edge in cycle {
        match links.last_mut() {
            // An edge that leaves a joint continues the link that entered the joint.
            Some(link) if edge.from >= transactions => link.to = edge.to,
            _ => {
                let Edge { from, to, key, dependency } = *edge;
                links.push(Link { from, to, key, dependency });
            }
        }
    }
    let shown = &links[..links.len().min(LINKS_SHOWN_MAX)];
    let mut members: Vec<u32> = Vec::new();
    for link in shown {
        if !members.contains(&link.from) {
            members.push(link.from);
        }
    }
    let mut sentences: Vec<String> = shown.iter().map(|link| sentence(history, *link)).collect();
    if let (Some(hidden), Some(first)) =
        (links.get(shown.len()..).filter(|hidden| !hidden.is_empty()), links.first())
    {
        sentences.push(format!("{} more such steps lead back to {}.", hidden.len(), name(first.from)));
    }
    (members, sentences)
}

/// Largest number of edges of a cycle that the report explains.
const LINKS_SHOWN_MAX: usize = 64;

fn sentence(history: &TransactionHistory, link: Link) -> String {
    let Link { from, to, key, dependency } = link;
    let (former, latter) = (name(from), name(to));
    let key_name = &history.keys[key as usize].name;
    let value = |transaction: u32| match history.written(transaction, key) {
        Some(atom) => history.atoms.text(atom),
        None => "a value".into(),
    };
    match dependency {
        Dependency::WriteWrite | Dependency::Onward => {
            let (before, after) = neighbours(history, link).unwrap_or_else(|| (value(from), value(to)));
            format!("{former} wrote {before} to {key_name}, and {latter} wrote {after} after it.")
        }
        Dependency::SessionWriteWrite => format!(
            "{former} wrote {} to {key_name}, and a client saw it before it saw the {} of {latter}.",
            value(from),
            value(to)
        ),
        Dependency::TimeWriteWrite => format!(
            "{former} wrote {} to {key_name} and ended before a read began that found the {} of {latter}.",
            value(from),
            value(to)
        ),
        Dependency::WriteRead => {
            format!("{latter} saw {}, and {former} wrote that.", read(history, to, key))
        }
        Dependency::ReadWrite => {
            format!(
                "{former} saw {}, and {latter} wrote {} after that.",
                read(history, from, key),
                missing(history, link)
            )
        }
        Dependency::TimeReadWrite => format!(
            "{former} saw {}, which was written before {latter} began to write {}.",
            read(history, from, key),
            value(to)
        ),
        Dependency::Session => {
            format!("{former} came before {latter} at client {}.", history.transactions[to as usize].client)
        }
        Dependency::Time => format!("{former} ended before {latter} began."),
    }
}

/// Returns the first read of a key by a transaction, as text.
fn read(history: &TransactionHistory, transaction: u32, key: u32) -> String {
    let steps = &history.steps[history.step_range(transaction)];
    let read = steps.iter().find(|step| {
        step.key == key
            && !matches!(step.verb, StepVerb::Write(_) | StepVerb::Append(_) | StepVerb::Unanswered)
    });
    let key = &history.keys[key as usize].name;
    match read.map(|step| (step.verb, history.list(*step))) {
        Some((StepVerb::Value(atom), _)) => format!("{key} = {}", history.atoms.text(atom)),
        Some((_, Some(list))) => format!("{key} = {}", history.atoms.list_text(list)),
        _ => format!("{key}"),
    }
}

/// Returns the value that `to` wrote after the read of `from`: for a list, the element right after the
/// elements that `from` read; for a register, the last value of `to`.
fn missing(history: &TransactionHistory, link: Link) -> String {
    let Link { from, to, key, .. } = link;
    let order = &history.keys[key as usize].order;
    let steps =
        |transaction| history.steps[history.step_range(transaction)].iter().filter(|step| step.key == key);
    let length = steps(from).find_map(|step| match step.verb {
        StepVerb::Prefix(length) => Some(length as usize),
        StepVerb::Value(_) => Some(0),
        _ => None,
    });
    let mut appended = steps(to).filter_map(|step| match step.verb {
        StepVerb::Append(atom) | StepVerb::Write(atom) => Some(atom),
        _ => None,
    });
    let next = length.and_then(|length| order.get(length));
    let atom = match next {
        Some(next) if appended.any(|atom| atom == *next) => Some(*next),
        _ => history.written(to, key),
    };
    atom.map_or_else(|| "a value".into(), |atom| history.atoms.text(atom))
}

/// Returns two neighbouring elements of a list: one that the first transaction appended, and the next one,
/// which the second transaction appended.
fn neighbours(history: &TransactionHistory, link: Link) -> Option<(String, String)> {
    let appended = |transaction: u32| {
        let steps = history.steps[history.step_range(transaction)].iter();
        let elements = steps.filter(|step| step.key == link.key).filter_map(|step| match step.verb {
            StepVerb::Append(atom) => Some(atom),
            _ => None,
        });
        elements.collect::<Vec<_>>()
    };
    let (former, latter) = (appended(link.from), appended(link.to));
    let pairs = history.keys[link.key as usize].order.windows(2);
    let mut pairs = pairs.filter(|pair| former.contains(&pair[0]) && latter.contains(&pair[1]));
    pairs.next().map(|pair| (history.atoms.text(pair[0]), history.atoms.text(pair[1])))
}
