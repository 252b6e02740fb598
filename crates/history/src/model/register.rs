//! A single value with compare-and-set.

use crate::search::Model;

/// An operation on a register, with its answer. Values are numbers, and 0 is "nothing".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterOperation {
    /// A read that returned this value.
    Read(u32),
    /// A write of this value. A delete writes "nothing".
    Write(u32),
    /// A compare-and-set that found `expected` and wrote `new`.
    Cas {
        /// Value before.
        expected: u32,
        /// Value after.
        new: u32,
    },
    /// A compare-and-set that found another value than this one.
    Differs(u32),
}

/// The model of a register that holds "nothing" at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Register;

impl Model for Register {
    type State = u32;
    type Operation = RegisterOperation;

    fn initial(&self) -> u32 {
        0
    }

    fn apply(&self, state: &u32, operation: &RegisterOperation) -> Option<u32> {
        match *operation {
            RegisterOperation::Read(value) => (value == *state).then_some(value),
            RegisterOperation::Write(value) => Some(value),
            RegisterOperation::Cas { expected, new } => (expected == *state).then_some(new),
            RegisterOperation::Differs(value) => (value != *state).then_some(*state),
        }
    }

    fn is_read(&self, operation: &RegisterOperation) -> bool {
        matches!(operation, RegisterOperation::Read(_) | RegisterOperation::Differs(_))
    }
}
