//! A single value with compare-and-set.

use crate::search::Model;

/// What a register is asked. Values are numbers; 0 is "nothing".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterOperation {
    /// It returned this.
    Read(u32),
    /// Write this; a delete writes "nothing".
    Write(u32),
    /// It held `expected` and was set to `new`.
    Cas {
        /// What it held.
        expected: u32,
        /// What it holds then.
        new: u32,
    },
    /// It held something else than this.
    Differs(u32),
}

/// A register that holds "nothing" at first.
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
