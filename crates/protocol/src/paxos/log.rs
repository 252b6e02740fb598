//! Values, and the part of their sequence that is kept.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::Peer;

/// What a slot is for. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    /// What users proposed, in order.
    Payloads(Arc<[Bytes]>),
    /// From the next slot on these are the members: a stop command, alone in its slot, with nothing proposed behind it
    /// until it is chosen.
    Members(Arc<[Peer]>),
}
