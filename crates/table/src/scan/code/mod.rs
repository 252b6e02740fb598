//! Values as numbers, and columns of numbers as narrow codes.
//!
//! | file | what |
//! |---|---|
//! | `ordinal` | values that fit 64 bits, as numbers of the same order |
//! | `texts`, `positions` | the texts of a dictionary, and the index that finds them |
//! | `dictionary` | codes for all other values of a column |
//! | `packed` | numbers as narrow codes |
//! | `chunk` | a column of a block: packed numbers and its NULLs |
//! | `kernel` | the inner loops over narrow codes |
//! | `hint` | hints to the processor |

pub(super) mod chunk;
pub(super) mod dictionary;
pub(super) mod hint;
pub mod kernel;
pub(super) mod ordinal;
pub(super) mod packed;
mod positions;
mod texts;
