//! The PostgreSQL protocol, version 3: connections, and who may cancel what.
//!
//! Messages are pgwire's; the conversation is ours ([`connection`]), because blocks, pipelines, portals and COPY are
//! one state machine here. A connection is one task: it reads a message, acts, and writes; while a result streams, it
//! waits for the socket, and the ranges wait for it.

mod bulk;
mod carry;
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

pub use self::carry::{Carried, Closing, Door, Handed};
use self::limit::Cancel;
use crate::metrics::Metrics;

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
    /// There was a process before whose connections it took over.
    follows: AtomicBool,
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
    /// The same for those who are to go on elsewhere.
    handing: bool,
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
            follows: AtomicBool::new(false),
        })
    }

    /// Takes connections until `shutdown`, then lets every statement that runs come to its end.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let closing = async {
            shutdown.await;
            Closing::Drain
        };
        self.serve_at(listener, None, closing).await;
    }

    /// Takes connections, and goes on with those that were handed over if there was a process before, until the door is to close.
    /// Returns it if its connections are to go on in another process.
    pub async fn serve_at(
        self: Arc<Self>,
        listener: TcpListener,
        handed: Option<Vec<Handed>>,
        closing: impl Future<Output = Closing>,
    ) -> Option<Door> {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        self.follows.store(handed.is_some(), Ordering::Release);
        for handed in handed.into_iter().flatten() {
            let server = self.clone();
            tasks.spawn(async move { server.counted(carry::resume(&server, handed)).await });
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
                        // Out of descriptors, mostly: wait for some to come back.
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        };
        let mut handed = Vec::new();
        if let Closing::HandOver(within) = closing {
            stop.send_replace(true);
            self.sessions.hand_over();
            if tokio::time::timeout(within, gather(&mut tasks, &mut handed)).await.is_err() {
                self.sessions.stop();
                // What does not end then ends with this process.
                let _ = tokio::time::timeout(LAST_WORDS, gather(&mut tasks, &mut handed)).await;
            }
            return match listener.into_std() {
                Ok(listener) => Some(Door { listener, connections: handed }),
                Err(error) => {
                    tracing::warn!(%error, "the door cannot be handed over");
                    None
                }
            };
        }
        drop(listener);
        stop.send_replace(true);
        self.sessions.stop();
        gather(&mut tasks, &mut handed).await;
        None
    }

    /// Whether there was a process before whose connections it took over.
    fn follows(&self) -> bool {
        self.follows.load(Ordering::Acquire)
    }

    /// Talks to a client, which is counted meanwhile.
    async fn counted(&self, talk: impl Future<Output = io::Result<Option<Handed>>>) -> Option<Handed> {
        self.metrics.sessions.inc();
        let ended = talk.await;
        self.metrics.sessions.dec();
        match ended {
            Ok(handed) => handed,
            Err(error) => {
                if !matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) {
                    tracing::debug!(%error, "a connection ended");
                }
                None
            }
        }
    }
}

/// How long clients whose connections end may take to be told.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Waits for all connections to end, and takes those that are to go on elsewhere.
async fn gather(tasks: &mut JoinSet<Option<Handed>>, handed: &mut Vec<Handed>) {
    while let Some(ended) = tasks.join_next().await {
        handed.extend(ended.ok().flatten());
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
        self.enter(pid, rand::rng().random())
    }

    /// One that the process before has registered.
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
        if open.handing {
            cancel.hand_over();
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

    /// Has every session go on elsewhere as soon as it is between two statements.
    fn hand_over(&self) {
        let mut open = self.lock();
        open.handing = true;
        open.sessions.values().for_each(|(_, cancel)| cancel.hand_over());
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
