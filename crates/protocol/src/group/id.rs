//! The number of a group, which is a hash of the group's name, and the maximum length of a name.

use serde::{Deserialize, Serialize};

use crate::wire::Wire;

/// A group's number in its domain: a hash of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Wire)]
pub struct GroupId(pub u64);

/// Upper bound of a group's name, in bytes.
pub const GROUP_NAME_BYTES_MAX: usize = 255;
