//! The PostgreSQL protocol, version 3: connections, and who may cancel what.
//!
//! Messages are pgwire's; the conversation is ours ([`connection`]), because blocks, pipelines, portals and COPY are
//! one state machine here. A connection is one task: it reads a message, acts, and writes; while a result streams, it
//! waits for the socket, and the ranges wait for it.

mod bulk;
pub mod connection;
mod extended;
pub mod frame;
mod limit;
mod output;
mod simple;
mod startup;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
};

use quorate_sql::{backend::Backend, cache::Cache};
use rand::RngExt;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore, watch},
    task::JoinSet,
};

use crate::metrics::Metrics;
use limit::Cancel;

/// Connections at a time, unless said otherwise.
pub const CONNECTIONS_MAX: usize = 1_000;

/// Connections that may be silent about who they are.
pub const OPENINGS_MAX: usize = 256;

/// What all connections of a gateway share.
pub struct Server {
    backend: Arc<dyn Backend>,
    cache: Arc<Cache>,
    sessions: Sessions,
    openings: Openings,
    connections: Semaphore,
    metrics: Arc<Metrics>,
}

/// The sessions, which can be cancelled and are told when the server stops.
#[derive(Default)]
struct Sessions {
    next: AtomicI32,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// The secret and the connection of each.
    sessions: BTreeMap<i32, (i32, Arc<Cancel>)>,
    /// Whoever comes now is told at once.
    stopping: bool,
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
            openings: Openings::default(),
            connections: Semaphore::new(connections_max),
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
        self.sessions.stop();
        while tasks.join_next().await.is_some() {}
    }

    async fn connection(&self, stream: TcpStream, stopped: watch::Receiver<bool>) {
        self.metrics.connections.inc();
        self.metrics.sessions.inc();
        let ended = startup::serve(self, stream, stopped).await;
        self.metrics.sessions.dec();
        if let Err(error) = ended
            && !matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
        {
            tracing::debug!(%error, "a connection ended");
        }
    }
}

/// Connections that have not said who they are. They have no place among those that are counted, so that nobody is kept
/// out by whoever opens many and says nothing; when there are too many, the oldest ends.
#[derive(Default)]
struct Openings {
    silent: Mutex<VecDeque<Arc<Notify>>>,
}

/// One of them; counted until this is dropped.
struct Opening<'a> {
    openings: &'a Openings,
    displaced: Arc<Notify>,
}

impl Openings {
    fn begin(&self) -> Opening<'_> {
        let displaced = Arc::new(Notify::new());
        let mut silent = self.lock();
        silent.push_back(displaced.clone());
        if silent.len() > OPENINGS_MAX
            && let Some(oldest) = silent.pop_front()
        {
            oldest.notify_one();
        }
        Opening { openings: self, displaced }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Notify>>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.openings.lock().retain(|other| !Arc::ptr_eq(other, &self.displaced));
    }
}

/// A session's entry among those that can be cancelled; gone when dropped.
struct Registration<'a> {
    sessions: &'a Sessions,
    pid: i32,
    secret: i32,
    cancel: Arc<Cancel>,
}

impl Sessions {
    fn register(&self) -> Registration<'_> {
        let pid = self.next.fetch_add(1, Ordering::Relaxed).wrapping_add(1) & i32::MAX;
        let secret = rand::rng().random();
        let cancel = Arc::new(Cancel::default());
        let mut open = self.lock();
        if open.stopping {
            cancel.stop();
        }
        open.sessions.insert(pid, (secret, cancel.clone()));
        drop(open);
        Registration { sessions: self, pid, secret, cancel }
    }

    /// Cancels what the session is doing now, if the secret is its own.
    fn cancel(&self, pid: i32, secret: i32) {
        if let Some((own, cancel)) = self.lock().sessions.get(&pid)
            && *own == secret
        {
            cancel.ask();
        }
    }

    /// Has every session end behind the statement that it executes.
    fn stop(&self) {
        let mut open = self.lock();
        open.stopping = true;
        open.sessions.values().for_each(|(_, cancel)| cancel.stop());
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.sessions.lock().sessions.remove(&self.pid);
    }
}
