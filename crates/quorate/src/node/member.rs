//! A process of a cluster in a role, over its lives.
//!
//! A process that the others have cut off, or a router whose domain went on as a later generation, is out: nobody
//! counts it any more. The member then comes back by itself as a new process, a new incarnation at the same place, in the same
//! operating-system process: sockets stay, and so do clients ([`Db`](crate::Db)), whose open requests end with their fate. A storage
//! process takes along the rows that the others may need (`Remains`). A member ends only where a new life would go the same
//! way: it is not admitted as it is configured, or an invariant broke.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, OnceLock, PoisonError, RwLock},
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, bounded, select};
use quorate_protocol::{DomainId, ProcessId, Role};
use quorate_runtime::metrics::Metrics;
use quorate_tables::operate::Operation;
use tokio::sync::oneshot;
use tracing::{error, info, warn};

use super::{
    builder::Setup,
    disk::DiskStatus,
    founding::Beginning,
    journal::{self, Journal},
    life::{Before, Former, Life},
};
use crate::{
    cluster::{ClusterBackend, Requests},
    error::Error,
    process::{End, NotDone, Process},
    timer,
};

/// How long a process that leaves waits for the others to take note.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);

/// A life that lasted so long was no failed attempt, and the next begins at once; after a shorter one it waits, twice as long each
/// time.
const LIFE_LONG: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A caller that waits for the next life, or to be taken in, looks so often whether that ever comes.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A process in a role, over its lives. When the last clone of it is dropped, it leaves the cluster, unwaited for.
#[derive(Clone)]
pub struct Member(Arc<Owner>);

/// What all clones share, and the member's own thread does not.
struct Owner {
    inner: Arc<Inner>,
    stop: Sender<Stop>,
    /// Yields nothing, and ends when the member's thread does.
    over: Receiver<()>,
    ended: Receiver<End>,
}

struct Inner {
    setup: Setup,
    requests: Arc<Requests>,
    tables: Option<Arc<ClusterBackend>>,
    current: RwLock<Current>,
    /// Why there is no further life.
    last: OnceLock<String>,
}

/// The process that a member is at present.
#[derive(Clone)]
struct Current {
    me: ProcessId,
    process: Arc<Process>,
    metrics: Metrics,
}

/// How a member is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The others are told.
    Leave,
    /// The others are told that it comes back.
    Pause,
    /// As if it had been killed.
    Abandon,
}

impl Member {
    /// Starts it; of a router it is known how it begins, and with which journal, if it has one.
    pub(super) fn start(
        setup: Setup,
        beginning: Option<Beginning>,
        journal: Option<Journal>,
    ) -> Result<Member, Error> {
        let requests = Arc::new(Requests::new(setup.write_wait));
        let first = Life::begin(&setup, Before::Nothing { beginning, journal }, &requests)?;
        let current =
            Current { me: first.me, process: first.process.clone(), metrics: first.metrics.clone() };
        let tables = (setup.role == Role::Gateway).then(|| {
            let handle = current.process.port().clone();
            Arc::new(ClusterBackend::new(handle, requests.clone(), current.me))
        });
        let inner =
            Arc::new(Inner { setup, requests, tables, current: RwLock::new(current), last: OnceLock::new() });
        let (stop, stops) = bounded(1);
        let (end, ended) = bounded(1);
        let (running, over) = bounded(0);
        let lives = inner.clone();
        thread::Builder::new().name(String::from("lives")).spawn(move || {
            lives.run(first, &stops, &end);
            // All that the thread held is let go before others are told that it is over.
            drop(lives);
            drop(running);
        })?;
        Ok(Member(Arc::new(Owner { inner, stop, over, ended })))
    }

    /// What it does.
    pub fn role(&self) -> Role {
        self.0.inner.setup.role
    }

    /// The domain that it belongs to.
    pub fn domain(&self) -> DomainId {
        self.0.inner.setup.domain
    }

    /// Which process it is at present: its node number, and which life of it.
    pub fn id(&self) -> ProcessId {
        self.0.inner.current().me
    }

    /// Where it listens for other processes.
    pub fn address(&self) -> SocketAddr {
        self.0.inner.setup.listen
    }

    /// Where the others are told to reach it.
    pub fn advertised(&self) -> &str {
        &self.0.inner.setup.advertised
    }

    /// What SQL asks, if it is a client: for doors that speak to clients of their own.
    pub fn backend(&self) -> Option<Arc<ClusterBackend>> {
        self.0.inner.tables.clone()
    }

    /// How it stands with its disk, if it has one.
    pub fn disk(&self) -> Option<DiskStatus> {
        let Inner { setup, .. } = &*self.0.inner;
        let place = journal::place(setup.journal.as_ref()?, setup.number);
        let Current { process, .. } = self.0.inner.current();
        Some(DiskStatus::of(process.port().node().counters(), &place))
    }

    /// The process that it is at present, for operators.
    pub fn process(&self) -> Arc<Process> {
        self.0.inner.current().process
    }

    /// What its present process counts.
    pub fn metrics(&self) -> Metrics {
        self.0.inner.current().metrics
    }

    /// Yields one message when it can not go on, which says why.
    pub fn ended(&self) -> &Receiver<End> {
        &self.0.ended
    }

    /// Leaves the cluster: the others are told, and take over what it held. Ready once they took note, or did not in time.
    pub async fn leave(self) {
        self.finish(Stop::Leave).await;
    }

    /// Stops for a moment, to be started again: nobody waits for it meanwhile, and one with a disk comes back as who it is. Ready
    /// once the others took note, or did not in time.
    pub async fn pause(self) {
        self.finish(Stop::Pause).await;
    }

    /// Stops without a word, as if it had been killed: the others find out.
    pub async fn abandon(self) {
        self.finish(Stop::Abandon).await;
    }

    async fn finish(self, how: Stop) {
        // Full: somebody was first.
        let _ = self.0.stop.try_send(how);
        let (over, (sender, receiver)) = (self.0.over.clone(), oneshot::channel());
        let waiting = thread::Builder::new().name(String::from("leave")).spawn(move || {
            // Ends in an error, which is the end of the member's thread.
            let _ = over.recv();
            let _ = sender.send(());
        });
        match waiting {
            // An error says that the thread is gone: nothing is left to wait for.
            Ok(_) => drop(receiver.await),
            Err(error) => warn!(%error, "no thread to wait for the others to take note"),
        }
    }

    /// Does what an operator asks, and waits until it has come about, for at most `patience`. An error says why it will not, or
    /// has not. Where a life is over before it takes the operation up, the next one is asked. Blocks.
    pub fn operate(&self, operation: &Operation, patience: Duration) -> Result<(), String> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.process().operate(operation.clone(), left) {
                Ok(()) => return Ok(()),
                Err(NotDone::Untaken) if self.over().is_none() && !left.is_zero() => {
                    thread::sleep(left.min(LOOK_EVERY));
                }
                Err(why) => return Err(why.to_string()),
            }
        }
    }

    /// Waits until the cluster has taken it in, for at most `patience`.
    pub(crate) async fn admitted(&self, patience: Duration) -> Result<(), Error> {
        let inner = &self.0.inner;
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if timer::timeout(left.min(LOOK_EVERY), inner.requests.config_where(|_| true)).await.is_some() {
                return Ok(());
            }
            if let Some(why) = self.over() {
                return Err(Error::start(why));
            }
            if left.is_zero() {
                return Err(Error::start(format!(
                    "no router of {} has taken this client in within {} ms",
                    inner.setup.routers.join(", "),
                    patience.as_millis()
                )));
            }
        }
    }

    /// Why it has ended for good, if it has.
    pub(crate) fn over(&self) -> Option<&str> {
        self.0.inner.last.get().map(String::as_str)
    }
}

impl Member {
    /// Stops as [`Member::abandon`] does, but nobody waits for that.
    pub(crate) fn abandon_unwaited(&self) {
        // Full: somebody was first.
        let _ = self.0.stop.try_send(Stop::Abandon);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Not waited for: this may be a thread of an executor.
        let _ = self.stop.try_send(Stop::Leave);
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("id", &self.id())
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One life after another, until one is the last.
    fn run(&self, first: Life, stops: &Receiver<Stop>, ended: &Sender<End>) {
        let (mut life, mut pause) = (first, Duration::ZERO);
        let end = loop {
            let began = Instant::now();
            let end = match self.live(&life, stops) {
                Ok(end) => end,
                Err(how) => return self.stop(&life, how),
            };
            let former = match end {
                End::Wedged | End::Outdated(_) => self.leavings(&life, &end),
                End::NotAdmitted(_) | End::OlderCopy(_) | End::Broken(_) => break end,
            };
            warn!(process = %life.me, "{end}; it comes back as a new process");
            let kept = former.rows.is_some();
            // The next life listens at the same socket.
            life.process.stop();
            self.requests.end();
            if began.elapsed() > LIFE_LONG {
                pause = Duration::ZERO;
            }
            let stopped = stops.recv_timeout(pause);
            pause = (pause * 2).clamp(PAUSE, PAUSE_MAX);
            if let Ok(how) = stopped {
                info!(?how, "stopped between two lives");
                let _ = self.last.set(String::from("it was stopped"));
                return;
            }
            life = match Life::begin(&self.setup, Before::Life(former), &self.requests) {
                Ok(life) => life,
                Err(error) => break End::Broken(format!("no new process could begin: {error}")),
            };
            self.go_on(&life, kept);
        };
        error!("{end}; it does not come back");
        life.process.stop();
        let _ = self.last.set(match &end {
            End::NotAdmitted(why) | End::OlderCopy(why) | End::Broken(why) => why.clone(),
            End::Wedged | End::Outdated(_) => unreachable!("another life begins after that"),
        });
        self.requests.end();
        // Nobody may want to know.
        let _ = ended.try_send(end);
    }

    /// Waits for the end of a life, or for a reason to stop.
    fn live(&self, life: &Life, stops: &Receiver<Stop>) -> Result<End, Stop> {
        select! {
            recv(stops) -> how => Err(how.unwrap_or(Stop::Leave)),
            recv(life.process.ended()) -> end => {
                Ok(end.unwrap_or_else(|_| End::Broken(String::from("the protocol thread is gone"))))
            }
        }
    }

    /// What a life leaves to the next one.
    fn leavings(&self, life: &Life, end: &End) -> Former {
        let generation = match end {
            End::Outdated(generation) => *generation,
            End::Wedged | End::NotAdmitted(_) | End::OlderCopy(_) | End::Broken(_) => life.generation,
        };
        Former { generation, rows: life.process.take_remains(LEAVE_PATIENCE) }
    }

    /// From now on the member is this process, which may have kept the rows of the one before.
    fn go_on(&self, life: &Life, kept: bool) {
        let current = Current { me: life.me, process: life.process.clone(), metrics: life.metrics.clone() };
        if let Some(tables) = &self.tables {
            tables.go_on(current.process.port().clone(), current.me);
        }
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
        let with = if kept { ", with the rows of the one before" } else { "" };
        info!(process = %life.me, "back as a new process{with}");
    }

    fn stop(&self, life: &Life, how: Stop) {
        match how {
            // A router that goes is found out; its set changes one at a time, and it may be the only one.
            Stop::Leave if self.setup.role == Role::Router => {}
            // When the whole cluster goes down, nobody tells it that it is out.
            Stop::Leave => {
                if let Err(why) = life.process.leave(LEAVE_PATIENCE) {
                    info!(%why, "it stops without having left");
                }
            }
            Stop::Pause => match life.process.pause(LEAVE_PATIENCE) {
                Ok(()) => info!("nobody waits for it: it stops"),
                Err(why) => info!(%why, "it stops, and the others notice"),
            },
            Stop::Abandon => {}
        }
        life.process.stop();
        let _ = self.last.set(String::from("it was stopped"));
        self.requests.end();
    }
}
