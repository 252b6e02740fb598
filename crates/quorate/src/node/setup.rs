//! The settings with which each life of a member begins. The builder checks them first.

use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use quorate_protocol::{DomainId, Role, Terms, detector};
use quorate_table::engine::Bounds;

use crate::scan_threads::ScanThreadOptions;

use super::directory::DirectoryLock;

/// The limits of a storage process, for memory and processors.
#[derive(Clone, Debug)]
pub struct StorageOptions {
    /// The limits of the storage process's engine.
    pub bounds: Bounds,
    /// The threads that scan the rows.
    pub scan_thread_options: ScanThreadOptions,
    /// Most bytes of all results that their clients have not yet taken.
    pub held_bytes_max: u64,
    /// Time for which a result is held while its client takes nothing of it.
    pub held_max: Duration,
}

impl Default for StorageOptions {
    fn default() -> Self {
        let settings = quorate_protocol::rubberband::StorageSettings::default();
        StorageOptions {
            bounds: Bounds::default(),
            scan_thread_options: ScanThreadOptions::default(),
            held_bytes_max: settings.held_bytes_max,
            held_max: settings.held_max,
        }
    }
}

/// The settings with which each life of a node begins.
pub(crate) struct Setup {
    pub(super) role: Role,
    /// The node's limits as a storage process.
    pub(super) storage: StorageOptions,
    pub(super) name: String,
    pub(super) number: u64,
    pub(super) domain: DomainId,
    pub(super) routers: Vec<String>,
    pub(super) listener: Arc<TcpListener>,
    pub(super) listen: SocketAddr,
    pub(super) advertised: String,
    pub(super) insecure: bool,
    pub(super) directory: Option<PathBuf>,
    pub(super) detector: detector::Settings,
    pub(super) terms: Option<Terms>,
    pub(super) write_wait: Duration,
    /// The directory of the node's journal, if it has one.
    pub(super) journal: Option<PathBuf>,
    /// Whether the journal's files pass bytes to the system only at a sync.
    pub(super) late: bool,
    /// The lock on the directory, held as long as the member lives.
    pub(super) _directory_lock: Option<Arc<DirectoryLock>>,
}
