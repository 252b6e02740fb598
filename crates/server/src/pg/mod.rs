//! The PostgreSQL protocol, version 3: connections, and who may cancel what.
//!
//! Messages are pgwire's; the conversation is ours ([`connection`]), because blocks, pipelines, portals and COPY are
//! one state machine here. A connection is one task: it reads a message, acts, and writes; while a result streams, it
//! waits for the socket, and the ranges wait for it.

mod bulk;
pub mod connection;
pub mod encode;
mod extended;
pub mod frame;
mod limit;
mod output;
mod simple;
mod startup;

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
};

use rand::RngExt;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore, watch},
    task::JoinSet,
};

use crate::{backend::Backend, cache::Cache, metrics::Metrics};

/// Connections at a time, unless said otherwise.
pub const CONNECTIONS_MAX: usize = 1_000;

/// What all connections of a gateway share.
pub struct Server {
    backend: Arc<dyn Backend>,
    cache: Arc<Cache>,
    sessions: Sessions,
    connections: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

/// The sessions that can be cancelled.
#[derive(Default)]
struct Sessions {
    next: AtomicI32,
    open: Mutex<BTreeMap<i32, (i32, Arc<Notify>)>>,
}

impl Server {
    /// A gateway to this backend.
    pub fn new(backend: Arc<dyn Backend>) -> Arc<Self> {
        Server::with(backend, CONNECTIONS_MAX, Arc::default())
    }

    /// A gateway that takes at most so many connections and counts into these metrics.
    pub fn with(backend: Arc<dyn Backend>, connections_max: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Server {
            backend,
            cache: Arc::default(),
            sessions: Sessions::default(),
            connections: Arc::new(Semaphore::new(connections_max)),
            metrics,
        })
    }

    /// Takes connections until `shutdown`, then lets every statement that runs come to its end.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                Some(_) = tasks.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let (server, stopped) = (self.clone(), stopped.clone());
                        tasks.spawn(async move { server.connection(stream, stopped).await });
                    }
                    Err(error) => {
                        // Out of descriptors, mostly: wait for some to come back.
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    }
                }
            }
        }
        drop(listener);
        stop.send_replace(true);
        while tasks.join_next().await.is_some() {}
    }

    async fn connection(&self, stream: TcpStream, stopped: watch::Receiver<bool>) {
        let permit = self.connections.clone().try_acquire_owned().ok();
        self.metrics.connections.inc();
        self.metrics.sessions.inc();
        let ended = startup::serve(self, stream, permit.is_none(), stopped).await;
        self.metrics.sessions.dec();
        if let Err(error) = ended
            && !matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
        {
            tracing::debug!(%error, "a connection ended");
        }
    }
}

/// A session's entry among those that can be cancelled; gone when dropped.
struct Registration<'a> {
    sessions: &'a Sessions,
    pid: i32,
    secret: i32,
    cancelled: Arc<Notify>,
}

impl Sessions {
    fn register(&self) -> Registration<'_> {
        let pid = self.next.fetch_add(1, Ordering::Relaxed).wrapping_add(1) & i32::MAX;
        let secret = rand::rng().random();
        let cancelled = Arc::new(Notify::new());
        self.lock().insert(pid, (secret, cancelled.clone()));
        Registration { sessions: self, pid, secret, cancelled }
    }

    /// Cancels what the session is doing now, if the secret is its own.
    fn cancel(&self, pid: i32, secret: i32) {
        if let Some((own, cancelled)) = self.lock().get(&pid)
            && *own == secret
        {
            cancelled.notify_waiters();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<i32, (i32, Arc<Notify>)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.sessions.lock().remove(&self.pid);
    }
}
