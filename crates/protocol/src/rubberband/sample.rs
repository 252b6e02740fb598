//! Small rings for the tests of this folder.

use super::{Config, Range, StorageState, config::State};
use crate::{
    ecast::Position,
    id::{Incarnation, ProcessId},
};

pub(super) fn process(node: u64) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(u128::from(node)) }
}

pub(super) fn range(low: u64, high: u64) -> Range {
    Range { low, high }
}

/// A ring of processes 1, 2, 3, … at `keys`, each in the state that its letter names: `A`ctive, `R`eceiving,
/// `U`nreachable, or `D`ead.
pub(super) fn ring(factor: u8, keys: &[u64], states: &str) -> Config {
    assert_eq!(keys.len(), states.len(), "a state for each key");
    let mut state = State::from(Config::new(factor));
    for (node, (&key, letter)) in (1..).zip(keys.iter().zip(states.chars())) {
        state.ring.insert(key, process(node));
        let stands = match letter {
            'A' => StorageState::Active,
            'R' => StorageState::Receiving { change: Position(9) },
            'U' => StorageState::Unreachable,
            'D' => continue,
            other => panic!("no state is called {other}"),
        };
        state.storage.insert(process(node), stands);
    }
    Config::from(state)
}

/// A range as text; the end of the ring is `end`.
pub(super) fn text(range: Range) -> String {
    match range.high {
        u64::MAX => format!("{}-end", range.low),
        high => format!("{}-{high}", range.low),
    }
}

/// Ranges as text.
pub(super) fn texts(ranges: &[Range]) -> String {
    ranges.iter().map(|range| text(*range)).collect::<Vec<_>>().join(" ")
}
