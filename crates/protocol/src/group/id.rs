//! A group has a number, which is a hash of its name.

use serde::{Deserialize, Serialize};

/// A group's number in its domain: a hash of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupId(pub u64);

/// Upper bound of a group's name, in bytes.
pub const GROUP_NAME_BYTES_MAX: usize = 255;
