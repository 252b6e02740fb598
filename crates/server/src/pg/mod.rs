//! The PostgreSQL protocol, version 3: connections, cancellation, and the close of the door.
//!
//! Messages are pgwire's. The conversation ([`connection`]) is our own, because blocks, pipelines, portals
//! and COPY form one state machine here. A connection is one task: it reads a message, acts, and writes.
//! While a result streams, the task waits for the socket, and the ranges wait for the task.

mod bulk;
pub mod connection;
mod extended;
pub mod frame;
mod handover;
mod limit;
mod output;
mod simple;
mod startup;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    time::Duration,
};

use quorate_sql::{backend::Backend, cache::Cache};
use rand::RngExt;
use tokio::{
    net::TcpListener,
    sync::{Notify, Semaphore, watch},
    task::JoinSet,
};

pub use self::handover::{ClientState, Closing, Door, HandedClient};
use self::limit::Cancel;
use crate::metrics::Metrics;

/// Default limit of simultaneous connections.
pub const CONNECTIONS_MAX: usize = 1_000;

/// Most connections that have not sent their startup packet yet. Beyond it the oldest is closed.
pub const OPENINGS_MAX: usize = 256;

/// The state that all connections of a gateway share.
pub struct Server {
    backend: Arc<dyn Backend>,
    cache: Arc<Cache>,
    sessions: Sessions,
    openings: PendingStartups,
    connections: Semaphore,
    metrics: Arc<Metrics>,
    /// Whether an earlier process handed its connections over to this one.
    is_successor: AtomicBool,
}

/// The open sessions, which can be cancelled, stopped and handed over.
#[derive(Default)]
struct Sessions {
    next: AtomicI32,
    open: Mutex<OpenSessions>,
}

#[derive(Default)]
struct OpenSessions {
    /// The secret and the cancellation of each session, by its process id in the protocol.
    sessions: BTreeMap<i32, (i32, Arc<Cancel>)>,
    /// Whether the server stops. A new session stops at once.
    stopping: bool,
    /// Whether sessions are handed over. A new session is handed over at once.
    handing_over: bool,
}

impl Server {
    /// Creates a gateway to `backend` with [`CONNECTIONS_MAX`] and metrics that nobody reads.
    pub fn new(backend: Arc<dyn Backend>) -> Arc<Self> {
        Server::with(backend, CONNECTIONS_MAX, Arc::default())
    }

    /// Creates a gateway to `backend` with a limit of simultaneous connections and its metrics.
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

    /// Serves connections until `shutdown` is ready, then lets every running statement finish.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let closing = async {
            shutdown.await;
            Closing::Drain
        };
        self.serve_at(listener, None, closing).await;
    }

    /// Serves new connections and those in `handed`, until `closing` is ready. `handed` is `None` if no
    /// earlier process handed connections over. Returns the door if `closing` asks to hand it over to another
    /// process.
    pub async fn serve_at(
        self: Arc<Self>,
        listener: TcpListener,
        handed: Option<Vec<HandedClient>>,
        closing: impl Future<Output = Closing>,
    ) -> Option<Door> {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        self.is_successor.store(handed.is_some(), Ordering::Release);
        for handed in handed.into_iter().flatten() {
            let server = self.clone();
            tasks.spawn(async move { server.counted(handover::resume(&server, handed)).await });
        }
        tokio::pin!(closing);
        let closing = loop {
            tokio::select! {
                closing = &mut closing => break closing,
                Some(_) = tasks.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let (server, stopped) = (self.clone(), stopped.clone());
                        tasks.spawn(async move {
                            server.metrics.connections.inc();
                            server.counted(startup::serve(&server, stream, stopped)).await
                        });
                    }
                    Err(error) => {
                        // The process has usually run out of descriptors. Waits for some to be closed.
                        tracing::warn!(%error, "the SQL door could not accept a connection; it tries again in 50 ms");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        };
        let mut handed = Vec::new();
        if let Closing::HandOver(within) = closing {
            stop.send_replace(true);
            self.sessions.hand_over();
            if tokio::time::timeout(within, join_all(&mut tasks, &mut handed)).await.is_err() {
                self.sessions.stop();
                // A connection that is still open after this ends with the process.
                let _ = tokio::time::timeout(FAREWELL_TIMEOUT, join_all(&mut tasks, &mut handed)).await;
            }
            return match listener.into_std() {
                Ok(listener) => Some(Door { listener, connections: handed }),
                Err(error) => {
                    tracing::warn!(%error, "the SQL door cannot be handed over to the next process, so all clients must connect again");
                    None
                }
            };
        }
        drop(listener);
        stop.send_replace(true);
        self.sessions.stop();
        join_all(&mut tasks, &mut handed).await;
        None
    }

    /// Whether an earlier process handed its connections over to this one.
    fn is_successor(&self) -> bool {
        self.is_successor.load(Ordering::Acquire)
    }

    /// Serves a connection to its end, and counts it as an open session meanwhile.
    async fn counted(
        &self,
        talk: impl Future<Output = io::Result<Option<HandedClient>>>,
    ) -> Option<HandedClient> {
        self.metrics.sessions.inc();
        let ended = talk.await;
        self.metrics.sessions.dec();
        match ended {
            Ok(handed) => handed,
            Err(error) => {
                if !matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) {
                    tracing::debug!(%error, "a client's connection to the SQL door ended with an error");
                }
                None
            }
        }
    }
}

/// Longest time for the last message to clients whose connections end.
const FAREWELL_TIMEOUT: Duration = Duration::from_millis(500);

/// Waits until all connections have ended, and collects those that are handed over.
async fn join_all(tasks: &mut JoinSet<Option<HandedClient>>, handed: &mut Vec<HandedClient>) {
    while let Some(ended) = tasks.join_next().await {
        handed.extend(ended.ok().flatten());
    }
}

/// Connections that have not sent their startup packet. They take no place of counted connections, so that a
/// client that opens many silent ones keeps nobody out. Above [`OPENINGS_MAX`] the oldest is closed.
#[derive(Default)]
struct PendingStartups {
    silent: Mutex<VecDeque<Arc<Notify>>>,
}

/// A connection that has not sent its startup packet. Dropping this ends its count.
struct PendingStartup<'a> {
    openings: &'a PendingStartups,
    displaced: Arc<Notify>,
}

impl PendingStartups {
    fn begin(&self) -> PendingStartup<'_> {
        let displaced = Arc::new(Notify::new());
        let mut silent = self.lock();
        silent.push_back(displaced.clone());
        if silent.len() > OPENINGS_MAX
            && let Some(oldest) = silent.pop_front()
        {
            oldest.notify_one();
        }
        PendingStartup { openings: self, displaced }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Notify>>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PendingStartup<'_> {
    fn drop(&mut self) {
        self.openings.lock().retain(|other| !Arc::ptr_eq(other, &self.displaced));
    }
}

/// A session's entry in [`Sessions`]. Dropping it removes the session.
struct Registration<'a> {
    sessions: &'a Sessions,
    pid: i32,
    secret: i32,
    cancel: Arc<Cancel>,
}

impl Sessions {
    fn register(&self) -> Registration<'_> {
        let pid = self.next.fetch_add(1, Ordering::Relaxed).wrapping_add(1) & i32::MAX;
        self.enter(pid, rand::rng().random())
    }

    /// Registers a session that an earlier process handed over, under its old id and secret.
    fn register_again(&self, pid: i32, secret: i32) -> Registration<'_> {
        self.next.fetch_max(pid, Ordering::Relaxed);
        self.enter(pid, secret)
    }

    fn enter(&self, pid: i32, secret: i32) -> Registration<'_> {
        let cancel = Arc::new(Cancel::default());
        let mut open = self.lock();
        if open.stopping {
            cancel.stop();
        }
        if open.handing_over {
            cancel.hand_over();
        }
        open.sessions.insert(pid, (secret, cancel.clone()));
        drop(open);
        Registration { sessions: self, pid, secret, cancel }
    }

    /// Cancels the session's current statement, if the secret is right.
    fn cancel(&self, pid: i32, secret: i32) {
        if let Some((own, cancel)) = self.lock().sessions.get(&pid)
            && *own == secret
        {
            cancel.request();
        }
    }

    /// Hands every session over as soon as it is between two statements.
    fn hand_over(&self) {
        let mut open = self.lock();
        open.handing_over = true;
        open.sessions.values().for_each(|(_, cancel)| cancel.hand_over());
    }

    /// Ends every session after its current statement.
    fn stop(&self) {
        let mut open = self.lock();
        open.stopping = true;
        open.sessions.values().for_each(|(_, cancel)| cancel.stop());
    }

    fn lock(&self) -> MutexGuard<'_, OpenSessions> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.sessions.lock().sessions.remove(&self.pid);
    }
}
