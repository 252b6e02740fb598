//! A set of values.

use crate::search::Model;

/// An operation on a set, with its answer. Values are numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetOperation {
    /// A read that returned these values, sorted.
    Read(Box<[u32]>),
    /// An add of this value.
    Add(u32),
    /// A removal of this value.
    Remove(u32),
}

/// The model of a set that is empty at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Set;

impl Model for Set {
    /// The values, sorted.
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
