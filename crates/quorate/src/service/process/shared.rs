//! State that the threads which use services share with the thread that serves the links.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{
        Arc, Condvar, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use crossbeam_channel::{Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::warn;

use quorate_node::{self as node, Channel, EndpointId, Node};
use quorate_protocol::{
    CommandId, DomainId, ProcessId,
    paxos::{Change, ChangeRefusal},
    service::{self, ClientEvent, Fate, GroupId},
};
use quorate_roles::services::result_bytes;
use quorate_runtime::Handle;

use crate::{
    lock::lock,
    service::{
        executor::{ExecutorOrder, Outlet, Runner, Tally},
        gate::Gate,
        replica_status::ReplicaStatus,
        service_endpoint::{Command, ServiceEndpoint, Set, Terms},
    },
    waiters::Waiters,
};

/// State that the threads of a process share.
pub(crate) struct ServiceShared {
    pub(in crate::service) handle: OnceLock<Handle<Node<ServiceEndpoint>>>,
    pub(in crate::service) domain: DomainId,
    pub(in crate::service) me: ProcessId,
    pub(in crate::service) addresses: Vec<String>,
    pub(in crate::service) endpoints: Mutex<BTreeMap<EndpointId, Arc<EndpointHandle>>>,
    /// The sender of the names of services whose replica in this process has ended. The host brings these
    /// replicas back as other processes.
    pub(in crate::service) endings: Option<Sender<String>>,
}

/// An endpoint, as other threads see it.
pub(crate) struct EndpointHandle {
    pub(in crate::service) name: String,
    pub(in crate::service) channel: Channel,
    pub(in crate::service) kind: EndpointKind,
    /// The sets that other processes have shown at this channel, and the processes that have shown no set.
    pub(in crate::service) heard: Mutex<SeenSets>,
    pub(in crate::service) news: Condvar,
}

/// The sets that processes have shown for one name.
#[derive(Default)]
pub(crate) struct SeenSets {
    pub(in crate::service) set: Option<Set>,
    pub(in crate::service) without_set: Vec<ProcessId>,
    /// Other sets of this name than `set`.
    pub(in crate::service) other_sets: Vec<GroupId>,
}

pub(crate) enum EndpointKind {
    Replica(Box<ReplicaHandle>),
    Client(ClientCalls),
    /// An endpoint that directs callers to other processes.
    Redirect,
}

/// A replica, as other threads see it.
pub(crate) struct ReplicaHandle {
    pub(in crate::service) terms: Terms,
    /// Whether the replica founds a set, instead of joining one.
    pub(in crate::service) founds: bool,
    pub(in crate::service) orders: Sender<ExecutorOrder>,
    /// The receiver of the replica's orders, while the endpoint executes the orders itself.
    pub(in crate::service) inline: Mutex<Option<Receiver<ExecutorOrder>>>,
    pub(in crate::service) tally: Arc<Tally>,
    /// The present state of the replica's service slot. All lives of the slot share it.
    pub(in crate::service) status: Arc<Mutex<ReplicaStatus>>,
    /// Whether the replica was rebuilt from its records.
    pub(in crate::service) goes_on: bool,
    /// Whether the other replicas have reported that this process is no replica.
    pub(in crate::service) voted_out: AtomicBool,
    /// Whether the end of this replica has been reported.
    pub(in crate::service) over: AtomicBool,
    /// The first reason for the replica's end, if it is going to end.
    pub(in crate::service) failed: Mutex<Option<String>>,
    /// The latest changes of the replicas that were refused.
    pub(in crate::service) refused: Mutex<VecDeque<(Change, ChangeRefusal)>>,
}

impl ReplicaHandle {
    /// Notes that the replica cannot continue. The replica may still have results to deliver. Returns the
    /// first reason that was noted.
    pub(in crate::service) fn fail(&self, name: &str, why: String) -> String {
        lock(&self.failed)
            .get_or_insert_with(|| {
                warn!(service = name, why, "a replica of a service ends at this host");
                lock(&self.status).serving = false;
                why
            })
            .clone()
    }

    /// Whether the set may still count on the records of this replica after the process `me` ends. It may if
    /// the process was a replica, its journal is on disk, and no report says that the other replicas voted
    /// the process out. If the same cause ends all replicas, these records are all that is left of the state.
    pub(in crate::service) fn keeps_records(&self, me: ProcessId) -> bool {
        let is_replica = || lock(&self.status).replicas.iter().any(|(id, _)| *id == me);
        self.terms.durable
            && !self.voted_out.load(Ordering::Relaxed)
            && (self.goes_on || self.founds || is_replica())
    }
}

/// The consequence of a replica's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::service) enum AfterEnd {
    /// The replica comes back as another process.
    ComeBack,
    /// The replica does not come back, because it would end again.
    StayEnded,
}

/// Calls in progress.
#[derive(Default)]
pub(crate) struct ClientCalls {
    /// Calls that were made together, by the token of their batch.
    pub(in crate::service) calls: Waiters<CallBatch>,
    /// Number of transactions so far.
    pub(in crate::service) transactions: AtomicU64,
}

/// Calls that were made together. Their fates are reported together.
pub(in crate::service) struct CallBatch {
    pub(in crate::service) fates: Vec<Option<Fate>>,
    /// Number of calls without a fate.
    pub(in crate::service) left: usize,
    pub(in crate::service) sender: oneshot::Sender<Vec<Fate>>,
    pub(in crate::service) permits: OwnedSemaphorePermit,
}

/// Upper bound of the number of calls in progress of a stub and its clones, and so of the calls in a batch.
pub(in crate::service) const CALLS_MAX: usize = 8192;

impl ClientCalls {
    /// Returns the command id of the first call of a batch. The other calls of the batch have the following
    /// ids.
    pub(in crate::service) fn first_command(token: u64) -> CommandId {
        CommandId(token * CALLS_MAX as u64)
    }

    /// Takes the fates of calls. Returns the batches in which every call now has a fate.
    pub(in crate::service) fn end(&self, fates: impl IntoIterator<Item = ClientEvent>) -> Vec<CallBatch> {
        let by_batch = |ClientEvent { command, fate }| {
            let (token, place) = (command.0 / CALLS_MAX as u64, command.0 % CALLS_MAX as u64);
            (token, (place as usize, fate))
        };
        self.calls.answer_each(fates.into_iter().map(by_batch), |mut batch, (place, fate)| {
            let CallBatch { fates, left, .. } = batch.get_mut();
            assert!(fates[place].replace(fate).is_none(), "a call ends once");
            *left -= 1;
            (*left == 0).then(|| batch.remove())
        })
    }
}

impl EndpointHandle {
    pub(in crate::service) fn home(&self, command: Command) -> node::Command<ServiceEndpoint> {
        node::Command::Typed(self.channel, command)
    }

    /// Returns the set to which the endpoint belongs, if the endpoint knows it.
    pub(in crate::service) fn set(&self) -> Option<Set> {
        lock(&self.heard).set
    }

    /// Whether the endpoint's replica has ended.
    pub(in crate::service) fn has_ended(&self) -> bool {
        matches!(&self.kind, EndpointKind::Replica(replica) if replica.over.load(Ordering::Relaxed))
    }

    /// Makes the endpoint's replica resign, because its service cannot continue.
    pub(in crate::service) fn fail(&self, why: String) {
        if let EndpointKind::Replica(replica) = &self.kind {
            replica.fail(&self.name, why);
        }
    }
}

/// Starts a thread for a service.
pub(crate) fn spawn(
    runner: Box<dyn Runner>,
    orders: Receiver<ExecutorOrder>,
    results: Results,
) -> io::Result<()> {
    thread::Builder::new()
        .name(String::from("service"))
        .spawn(move || runner.run(orders, Arc::new(results)))
        .map(drop)
}

impl ServiceShared {
    /// Reports that a replica has ended. The replica comes back as another process, unless it would end
    /// again.
    pub(in crate::service) fn end(&self, endpoint: &EndpointHandle, why: String, after: AfterEnd) {
        let EndpointKind::Replica(replica) = &endpoint.kind else { return };
        let why = replica.fail(&endpoint.name, why);
        if replica.over.swap(true, Ordering::Relaxed) {
            return;
        }
        let is_kept = replica.keeps_records(self.me);
        let mut status = lock(&replica.status);
        status.serving = false;
        status.last_end = Some(why.clone());
        let is_alone = matches!(&status.replicas[..], [(id, _)] if *id == self.me);
        match (after, &self.endings) {
            (AfterEnd::ComeBack, _) if is_alone && is_kept => {
                status.ended = Some(format!(
                    "{why}; this was the only replica, and its journal is kept: start the host again to go \
                     on from the journal, or withdraw the service"
                ));
            }
            (AfterEnd::ComeBack, _) if is_alone => {
                status.ended =
                    Some(format!("{why}; this was the only replica, so the service's state is lost"));
            }
            (AfterEnd::ComeBack, Some(endings)) => {
                // If the host has ended, no thread brings the replica back.
                let _ = endings.send(endpoint.name.clone());
            }
            _ => status.ended = Some(why),
        }
    }

    pub(in crate::service) fn handle(&self) -> &Handle<Node<ServiceEndpoint>> {
        self.handle.get().expect("the handle is set before the process is shared")
    }
}

/// The outlet of an executor's results.
#[derive(Clone)]
pub(crate) struct Results {
    pub(in crate::service) shared: Arc<ServiceShared>,
    /// A weak reference. An executor ends when the sender of its orders is dropped, and the endpoint handle
    /// holds that sender. So the executor must not keep the handle alive.
    pub(in crate::service) endpoint: Weak<EndpointHandle>,
    pub(in crate::service) gate: Arc<Gate>,
}

impl Results {
    pub(in crate::service) fn new(shared: &Arc<ServiceShared>, endpoint: &Arc<EndpointHandle>) -> Results {
        Results { shared: shared.clone(), endpoint: Arc::downgrade(endpoint), gate: Arc::default() }
    }
}

impl Outlet for Results {
    fn results(&self, results: Vec<service::Command>) -> bool {
        // A waiting executor must not hold a strong reference, because then the handle would never be
        // dropped.
        if !self.gate.wait(|| self.endpoint.upgrade().is_none_or(|endpoint| endpoint.has_ended())) {
            return false;
        }
        let Some(endpoint) = self.endpoint.upgrade() else { return false };
        let passage = self.gate.pass(results.iter().map(result_bytes).sum());
        self.shared.handle().command(endpoint.home(Command::Executed(results, passage))).is_ok()
    }

    fn broken(&self, why: String) {
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.fail(why);
            // The command is refused only if the process has ended.
            let resign = Command::Wish(service::Command::Resign);
            let _ = self.shared.handle().command(endpoint.home(resign));
        }
    }
}
