//! Naive checkers of one key's history. They share no code with what they check.

use std::collections::BTreeSet;

/// One operation as its client saw it. Instants are steps of the run, all different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) start: u64,
    /// The end. `None` for a write of unknown outcome.
    pub(super) end: Option<u64>,
    pub(super) what: What,
}

/// The action of an operation. No value is written twice. `None` is a deleted or unwritten key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Wrote(Option<u64>),
    Read(Option<u64>),
}

/// Whether some order of the operations explains all answers and contradicts no interval. Tries all orders.
/// Of two attempts that have done the same operations and hold the same value, the search follows only one.
pub(super) fn is_atomic(history: &[Seen]) -> bool {
    assert!(history.len() <= 64, "too many operations to try all orders");
    let mut tried: BTreeSet<(u64, Option<u64>)> = BTreeSet::new();
    let mut open: Vec<(u64, Option<u64>)> = vec![(0, None)];
    while let Some((done, value)) = open.pop() {
        if !tried.insert((done, value)) {
            continue;
        }
        let left = || history.iter().enumerate().filter(|(index, _)| done >> index & 1 == 0);
        if left().all(|(_, seen)| seen.end.is_none()) {
            return true;
        }
        let first_end = left().filter_map(|(_, seen)| seen.end).min().expect("one is left that ended");
        for (index, seen) in left().filter(|(_, seen)| seen.start < first_end) {
            match seen.what {
                What::Wrote(written) => open.push((done | 1 << index, written)),
                What::Read(read) if read == value => open.push((done | 1 << index, value)),
                What::Read(_) => {}
            }
        }
    }
    false
}

/// Whether no read returned a value that another write had replaced before the read began.
pub(super) fn is_regular(history: &[Seen]) -> bool {
    let writes = || {
        history.iter().filter_map(|seen| match seen.what {
            What::Wrote(value) => Some((seen, value)),
            What::Read(_) => None,
        })
    };
    let replaced = |end: Option<u64>, read: &Seen| {
        let after = |write: &Seen| end.is_some_and(|end| end < write.start);
        writes().any(|(write, _)| after(write) && write.end.is_some_and(|end| end < read.start))
    };
    history.iter().all(|read| {
        let What::Read(value) = read.what else { return true };
        let began = |write: &Seen| read.end.is_some_and(|end| write.start < end);
        let mut sources = writes().filter(|(write, written)| *written == value && began(write));
        let unwritten = value.is_none() && !replaced(Some(0), read);
        unwritten || sources.any(|(write, _)| !replaced(write.end, read))
    })
}

#[test]
fn the_test_checkers_detect_known_violations() {
    let wrote = |start, end, value| Seen { start, end, what: What::Wrote(Some(value)) };
    let read = |start, end, value| Seen { start, end: Some(end), what: What::Read(value) };
    let stale = [wrote(1, Some(2), 7), wrote(3, Some(4), 8), read(5, 6, Some(7))];
    assert!(!is_atomic(&stale) && !is_regular(&stale));
    let inversion = [wrote(1, Some(2), 7), wrote(3, Some(10), 8), read(4, 5, Some(8)), read(6, 7, Some(7))];
    assert!(!is_atomic(&inversion) && is_regular(&inversion));
    let twice = [
        wrote(1, Some(12), 7),
        wrote(2, None, 8),
        read(3, 4, Some(7)),
        read(5, 6, Some(8)),
        read(7, 8, Some(7)),
    ];
    assert!(!is_atomic(&twice) && is_regular(&twice));
    let late = [wrote(1, None, 7), read(2, 3, None), read(4, 5, Some(7))];
    assert!(is_atomic(&late) && is_regular(&late));
    assert!(!is_atomic(&[read(1, 2, Some(7))]) && !is_regular(&[read(1, 2, Some(7))]));
}
