//! A set of values.

use crate::search::Model;

/// What a set is asked. Values are numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetOperation {
    /// It returned these, sorted.
    Read(Box<[u32]>),
    /// Put this in.
    Add(u32),
    /// Take this out.
    Remove(u32),
}

/// A set, empty at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Set;

impl Model for Set {
    /// Sorted.
    type State = Box<[u32]>;
    type Operation = SetOperation;

    fn initial(&self) -> Box<[u32]> {
        [].into()
    }

    fn apply(&self, state: &Box<[u32]>, operation: &SetOperation) -> Option<Box<[u32]>> {
        match operation {
            SetOperation::Read(values) => (values == state).then(|| state.clone()),
            SetOperation::Add(value) => {
                let Err(at) = state.binary_search(value) else { return Some(state.clone()) };
                let (before, after) = state.split_at(at);
                Some([before, &[*value], after].concat().into())
            }
            SetOperation::Remove(value) => {
                Some(state.iter().copied().filter(|other| other != value).collect())
            }
        }
    }

    fn is_read(&self, operation: &SetOperation) -> bool {
        matches!(operation, SetOperation::Read(_))
    }
}
