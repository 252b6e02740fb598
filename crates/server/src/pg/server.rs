//! The state of a gateway, which all its connections share.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use quorate_sql::{backend::Backend, cache::Cache};
use tokio::sync::Semaphore;

use super::{openings::PendingStartups, sessions::Sessions};
use crate::metrics::Metrics;

/// Default limit of simultaneous connections.
pub const CONNECTIONS_MAX: usize = 1_000;

/// The state that all connections of a gateway share.
pub struct Server {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) cache: Arc<Cache>,
    pub(super) sessions: Sessions,
    pub(super) openings: PendingStartups,
    pub(super) connections: Semaphore,
    pub(super) metrics: Arc<Metrics>,
    /// Whether an earlier process handed its connections over to this one.
    pub(super) is_successor: AtomicBool,
}

impl Server {
    /// Creates a gateway to `backend` with [`CONNECTIONS_MAX`] and metrics that nobody reads.
    pub fn new(backend: Arc<dyn Backend>) -> Arc<Self> {
        Server::with(backend, CONNECTIONS_MAX, Arc::default())
    }

    /// Creates a gateway to `backend` with a limit of simultaneous connections and with metrics.
    pub fn with(backend: Arc<dyn Backend>, connections_max: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Server {
            backend,
            cache: Arc::default(),
            sessions: Sessions::default(),
            openings: PendingStartups::default(),
            connections: Semaphore::new(connections_max),
            metrics,
            is_successor: AtomicBool::new(false),
        })
    }

    /// Whether an earlier process handed its connections over to this one.
    pub(super) fn is_successor(&self) -> bool {
        self.is_successor.load(Ordering::Acquire)
    }
}
