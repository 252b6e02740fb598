//! A process of a cluster in a role, over its lives.
//!
//! A process that the other processes have cut off, or a router whose domain went on as a later generation,
//! is out of its domain: no other process counts it. The member then comes back by itself as a new process.
//! That is a new incarnation at the same place, in the same operating-system process. Sockets stay, and so do
//! clients ([`Db`](crate::Db)), whose open requests end and report their fate. A storage process takes along
//! the rows that other processes may need (`Handover`). A member ends only if a new life would fail in the
//! same way: its configuration keeps it from admission, or an invariant broke.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, OnceLock, PoisonError, RwLock},
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, bounded, select};
use quorate_protocol::{DomainId, ProcessId, Role};
use quorate_roles::tables::operate::AdminOperation;
use quorate_runtime::metrics::Metrics;
use tokio::sync::oneshot;
use tracing::{error, info, warn};

use super::{
    disk::DiskStatus,
    journal,
    life::ProcessLife,
    role_work::{LifeStart, RoleWork},
    setup::Setup,
};
use crate::{
    error::Error,
    process::{End, NotDone, Process},
    timer,
};

/// Time for which a leaving process waits until the other processes have acknowledged the leave.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);

/// Length of a life after which the next life begins at once.
const LIFE_LONG: Duration = Duration::from_secs(10);
/// Shortest pause after a life that was not long. The pause doubles each time.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest pause between two lives.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Interval at which a caller that waits for the next life, or for admission, checks whether it waits in
/// vain.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A process in a role, over its lives. When its last clone is dropped, it leaves the cluster in the
/// background.
#[derive(Clone)]
pub struct Member(Arc<MemberOwner>);

/// The state that all clones share, and the member's own thread does not.
struct MemberOwner {
    inner: Arc<MemberInner>,
    stop: Sender<Stop>,
    /// A channel without messages, which ends with the member's thread.
    over: Receiver<()>,
    ended: Receiver<End>,
}

struct MemberInner {
    setup: Setup,
    work: Box<dyn RoleWork>,
    current: RwLock<Current>,
    /// The reason why no further life comes.
    last: OnceLock<String>,
}

/// The present process of a member.
#[derive(Clone)]
struct Current {
    me: ProcessId,
    process: Arc<Process>,
    metrics: Metrics,
    /// The number of this life, from 1.
    life: u64,
    /// The reason why the previous life ended.
    former_end: Option<Arc<str>>,
}

/// The way in which a member stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The process announces to the other processes that it leaves.
    Leave,
    /// The process announces to the other processes that it comes back.
    Pause,
    /// The process stops as if it had been killed.
    Abandon,
}

impl Member {
    /// Starts the member, whose first life begins as `start` says.
    pub(super) fn start(setup: Setup, work: Box<dyn RoleWork>, start: LifeStart) -> Result<Member, Error> {
        let first = ProcessLife::begin(&setup, &*work, start)?;
        let current = Current {
            me: first.me,
            process: first.process.clone(),
            metrics: first.metrics.clone(),
            life: 1,
            former_end: None,
        };
        let inner =
            Arc::new(MemberInner { setup, work, current: RwLock::new(current), last: OnceLock::new() });
        let (stop, stops) = bounded(1);
        let (end, ended) = bounded(1);
        let (running, over) = bounded(0);
        let lives = inner.clone();
        thread::Builder::new().name(String::from("lives")).spawn(move || {
            lives.run(first, &stops, &end);
            // The thread drops its state before it reports its end.
            drop(lives);
            drop(running);
        })?;
        Ok(Member(Arc::new(MemberOwner { inner, stop, over, ended })))
    }

    /// Returns the member's role.
    pub fn role(&self) -> Role {
        self.0.inner.setup.role
    }

    /// Returns the member's domain.
    pub fn domain(&self) -> DomainId {
        self.0.inner.setup.domain
    }

    /// Returns the member's present process: the node number, and the incarnation.
    pub fn id(&self) -> ProcessId {
        self.0.inner.current().me
    }

    /// Returns the address at which the member listens for other processes.
    pub fn address(&self) -> SocketAddr {
        self.0.inner.setup.listen
    }

    /// Returns the address at which other processes reach the member.
    pub fn advertised(&self) -> &str {
        &self.0.inner.setup.advertised
    }

    /// Returns the state of the disk, if the process has one.
    pub fn disk(&self) -> Option<DiskStatus> {
        let MemberInner { setup, .. } = &*self.0.inner;
        let place = journal::place(setup.journal.as_ref()?, setup.number);
        let Current { process, .. } = self.0.inner.current();
        Some(DiskStatus::of(process.port().node().counters(), &place))
    }

    /// Returns the member's present process, for operators.
    pub fn process(&self) -> Arc<Process> {
        self.0.inner.current().process
    }

    /// Returns the metrics of the member's present process.
    pub fn metrics(&self) -> Metrics {
        self.0.inner.current().metrics
    }

    /// Returns the number of the member's lives, the present one included, and the reason why the previous
    /// life ended.
    pub fn lives(&self) -> (u64, Option<Arc<str>>) {
        let Current { life, former_end, .. } = self.0.inner.current();
        (life, former_end)
    }

    /// Yields one message, with the reason, when the member cannot go on.
    pub fn ended(&self) -> &Receiver<End> {
        &self.0.ended
    }

    /// Leaves the cluster: announces the leave to the other processes, which take over this member's data.
    /// Returns once the other processes have acknowledged the leave, or after a time limit.
    pub async fn leave(self) {
        self.finish(Stop::Leave).await;
    }

    /// Stops before a restart. The other processes go on without waiting for this process, and a member with
    /// a disk comes back as the same process. Returns once the other processes have acknowledged the stop, or
    /// after a time limit.
    pub async fn pause(self) {
        self.finish(Stop::Pause).await;
    }

    /// Stops without a message, as if the process had been killed. The other processes notice its silence.
    pub async fn abandon(self) {
        self.finish(Stop::Abandon).await;
    }

    async fn finish(self, how: Stop) {
        // If the channel is full, another request to stop came first.
        let _ = self.0.stop.try_send(how);
        let (over, (sender, receiver)) = (self.0.over.clone(), oneshot::channel());
        let waiting = thread::Builder::new().name(String::from("leave")).spawn(move || {
            // The receive fails when the member's thread ends.
            let _ = over.recv();
            let _ = sender.send(());
        });
        match waiting {
            // A receive error means that the member's thread has ended, so there is nothing to wait for.
            Ok(_) => drop(receiver.await),
            Err(error) => warn!(%error, "the system gives no thread to wait for the end of this process"),
        }
    }

    /// Executes an operator's request, and waits until it has taken effect, at most for `patience`. The error
    /// is the reason why the request will not take effect, or has not taken effect yet. If a life ends before
    /// it accepts the request, the next life gets the request. If the request is to begin a generation from
    /// the members, the next life gets it even if the ended life had accepted it. Blocks.
    pub fn operate(&self, operation: &AdminOperation, patience: Duration) -> Result<(), String> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.process().operate(operation.clone(), left) {
                Ok(()) => return Ok(()),
                Err(why) if passes_on(&why, operation) && self.over().is_none() && !left.is_zero() => {
                    thread::sleep(left.min(LOOK_EVERY));
                }
                Err(why) => return Err(why.to_string()),
            }
        }
    }

    /// Waits until the cluster has admitted the member, at most for `patience`.
    pub(crate) async fn admitted(&self, patience: Duration) -> Result<(), Error> {
        let inner = &self.0.inner;
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if timer::timeout(left.min(LOOK_EVERY), inner.work.admitted()).await.is_some() {
                return Ok(());
            }
            if let Some(why) = self.over() {
                return Err(Error::start(why));
            }
            if left.is_zero() {
                return Err(Error::start(format!(
                    "no router at {} has admitted this client within {} ms",
                    inner.setup.routers.join(", "),
                    patience.as_millis()
                )));
            }
        }
    }

    /// Returns the member's work, if it is of this kind.
    #[cfg(feature = "tables")]
    pub(super) fn work<W: RoleWork>(&self) -> Option<&W> {
        let work: &dyn std::any::Any = &*self.0.inner.work;
        work.downcast_ref()
    }

    /// Returns the reason why the member has ended for good, if it has.
    pub(crate) fn over(&self) -> Option<&str> {
        self.0.inner.last.get().map(String::as_str)
    }
}

/// Whether the next life of a member gets an operation that ended in this way in the present life.
fn passes_on(why: &NotDone, operation: &AdminOperation) -> bool {
    match why {
        NotDone::Untaken => true,
        // A router that was restarted after all routers died may learn during the operation that the domain
        // is in a later generation. It then comes back as a new process. A second founder does no harm: if
        // the ended life has begun a generation, the members that hear the leader of that generation refuse
        // the second founder.
        NotDone::Ended => matches!(operation, AdminOperation::Refound { .. }),
        NotDone::Because(_) => false,
    }
}

#[cfg(feature = "tables")]
impl Member {
    /// Stops like [`Member::abandon`], but does not wait for the end.
    pub(crate) fn abandon_unwaited(&self) {
        // If the channel is full, another request to stop came first.
        let _ = self.0.stop.try_send(Stop::Abandon);
    }
}

impl Drop for MemberOwner {
    fn drop(&mut self) {
        // The drop does not wait, because it may run on a thread of an executor.
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

impl MemberInner {
    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs one life after another, until the last one has ended.
    fn run(&self, first: ProcessLife, stops: &Receiver<Stop>, ended: &Sender<End>) {
        let (mut life, mut pause) = (first, Duration::ZERO);
        let end = loop {
            let began = Instant::now();
            let end = match self.live(&life, stops) {
                Ok(end) => end,
                Err(how) => return self.stop(&life, how),
            };
            let generation = match end {
                End::Outdated(generation) => generation,
                End::Wedged => life.generation,
                End::NotAdmitted(_) | End::OlderCopy(_) | End::Broken(_) => break end,
            };
            let kept = self.work.take_handover(&life.process);
            warn!(process = %life.me, "{end}; this node comes back as a new process");
            // The next life listens at the same socket, so the process is stopped first.
            life.process.stop();
            self.work.end_requests();
            if began.elapsed() > LIFE_LONG {
                pause = Duration::ZERO;
            }
            let stopped = stops.recv_timeout(pause);
            pause = (pause * 2).clamp(PAUSE, PAUSE_MAX);
            if let Ok(how) = stopped {
                info!(?how, "this node was stopped before it came back as a new process");
                let _ = self.last.set(String::from("this node was stopped"));
                return;
            }
            let next = LifeStart::after(generation, &self.setup)
                .and_then(|start| ProcessLife::begin(&self.setup, &*self.work, start));
            life = match next {
                Ok(life) => life,
                Err(error) => break End::Broken(format!("no new process could begin: {error}")),
            };
            self.go_on(&life, kept, &end);
        };
        error!("{end}; this node does not come back");
        life.process.stop();
        let _ = self.last.set(match &end {
            End::NotAdmitted(why) | End::OlderCopy(why) | End::Broken(why) => why.clone(),
            End::Wedged | End::Outdated(_) => unreachable!("another life begins after that"),
        });
        self.work.end_requests();
        // The receiver may be gone.
        let _ = ended.try_send(end);
    }

    /// Waits for the end of a life, or for a reason to stop.
    fn live(&self, life: &ProcessLife, stops: &Receiver<Stop>) -> Result<End, Stop> {
        select! {
            recv(stops) -> how => Err(how.unwrap_or(Stop::Leave)),
            recv(life.process.ended()) -> end => {
                Ok(end.unwrap_or_else(|_| End::Broken(String::from("the protocol thread has ended"))))
            }
        }
    }

    /// Makes this life the member's present life. `kept` says whether this life kept the rows of the previous
    /// life.
    fn go_on(&self, life: &ProcessLife, kept: bool, end: &End) {
        let current = Current {
            me: life.me,
            process: life.process.clone(),
            metrics: life.metrics.clone(),
            life: self.current().life + 1,
            former_end: Some(end.to_string().into()),
        };
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
        let with = if kept { ", with the rows of the former process" } else { "" };
        info!(process = %life.me, "this node is back as a new process{with}");
    }

    fn stop(&self, life: &ProcessLife, how: Stop) {
        match how {
            // A router leaves without an announcement: the other routers notice that it is gone. The set of
            // routers changes by one router at a time, and this router may be the last.
            Stop::Leave if self.setup.role == Role::Router => {}
            // When the whole cluster stops, no process is left to acknowledge the leave.
            Stop::Leave => {
                if let Err(why) = life.process.leave(LEAVE_PATIENCE) {
                    info!(%why, "this process stops before the other processes have confirmed its leave");
                }
            }
            Stop::Pause => match life.process.pause(LEAVE_PATIENCE) {
                Ok(()) => {
                    info!("this process stops as announced, and the other processes do not suspect a failure")
                }
                Err(why) => info!(
                    %why,
                    "this process stops unannounced, and the other processes will suspect a failure"
                ),
            },
            Stop::Abandon => {}
        }
        life.process.stop();
        let _ = self.last.set(String::from("this node was stopped"));
        self.work.end_requests();
    }
}
