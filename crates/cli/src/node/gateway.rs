//! A gateway's SQL door.

use std::{future::Future, sync::Arc, time::Duration};

use quorate::{
    cluster::{ClusterBackend, Events},
    process::Process,
};
use quorate_protocol::ProcessId;
use quorate_runtime::metrics::Metrics;
use quorate_server::pg;
use tokio::net::TcpListener;

use crate::config::NodeConfig;

/// The cluster behind the door.
pub(crate) fn backend(
    config: &NodeConfig,
    me: ProcessId,
    process: &Process,
    events: Arc<Events>,
) -> Arc<ClusterBackend> {
    let wait = Duration::from_millis(config.write_wait_ms);
    Arc::new(ClusterBackend::new(process.port().clone(), events, me, wait))
}

/// Serves SQL clients until `stop` is ready.
pub(crate) async fn serve(
    listener: TcpListener,
    backend: Arc<ClusterBackend>,
    metrics: Metrics,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let metrics = Arc::new(quorate_server::metrics::Metrics::new(&metrics));
    pg::Server::with(backend, pg::CONNECTIONS_MAX, metrics).serve(listener, stop).await;
}
