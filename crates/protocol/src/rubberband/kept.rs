//! [`KeptRows`]: the rows of its former life that a removed storage process keeps until the cluster no longer
//! needs them ([`keeping`](super::keeping)).

use serde::{Deserialize, Serialize};

use crate::{ecast::Position, id::ProcessId};

/// The rows of a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptRows {
    /// The former life, which was removed.
    pub former: ProcessId,
    /// The former life's ring id, whose ranges the rows belong to.
    pub place: u64,
    /// Last position whose writes the rows contain.
    pub through: Position,
}
