//! The options of tables.

use std::time::Duration;

use crate::node::roles::storage::StorageOptions;

/// The options of a node's access to tables, and of its storage process.
#[derive(Clone, Debug)]
pub(in crate::node) struct TableOptions {
    pub(in crate::node) storage: StorageOptions,
    /// Time that a write waits for a majority of the routers.
    pub(in crate::node) write_wait: Duration,
}

impl Default for TableOptions {
    fn default() -> TableOptions {
        TableOptions { storage: StorageOptions::default(), write_wait: Duration::from_secs(3) }
    }
}
