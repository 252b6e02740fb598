//! Sequential models of the objects that a key can be.

mod queue;
mod register;
mod sequence;
mod set;

pub use queue::{Queue, QueueOperation};
pub use register::{Register, RegisterOperation};
pub use sequence::{List, ListOperation, Text, TextOperation};
pub use set::{Set, SetOperation};
