//! A host's slot for one service, which holds one replica after another.
//!
//! A replica may end for good as the process that it is: the other replicas went on without it, the service
//! panicked and left an unknown state, or the service was too slow. The promises of that process in the set
//! are lost, so a replica with its identity must not begin again. All services of a host are in one process,
//! and the other services must go on. So the ended replica comes back as a *further* process, with its own
//! links, port and, if the host has a disk, its own journal. It joins its former set in the service's first
//! state, like any new replica.
//!
//! ```text
//!   host ── main process ── replica of a          replica of b ended: a redirect of b
//!       └── further process ────────────────────  replica of b, which joined again
//! ```
//!
//! At the main process a *redirect* takes the replica's place, because callers and other hosts know the host
//! by the address of this process. The redirect shows them the set, and directs them to the replicas that the
//! successor knows (`service_endpoint`).
//!
//! **Journals are kept** as long as the set may count on them. The cause that ends one replica (a panic, an
//! `apply` that panics, bytes that do not decode) may end all replicas, at the same change. In that case
//! their journals are all that is left of the set. So the host removes the journal of an ended replica only
//! in two cases: the successor has become a replica and knows that the set goes on without the ended process,
//! or an operator withdraws the service. If the host is restarted before that, the replica continues from the
//! journal.
//!
//! **A replica that ends again and again**, for example because `apply` panics at a change, comes back after
//! a pause. The pause doubles each time, because each return costs the other replicas a checkpoint.
//!
//! **After a restart** of a durable host, a service continues from its side journal if there is one. The host
//! drops the records of the service's former replica in its own journal.

use std::{
    collections::BTreeMap,
    mem,
    path::PathBuf,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use quorate_protocol::{
    DomainId, Peer, ProcessId, Ticket,
    paxos::{Change, ChangeRefusal},
};
use tracing::{info, warn};

use super::{
    Export,
    directory::{Directory, SideJournal, remove_side_journal},
    executor::{Performer, Runner, Tally},
    inline::Metered,
    process::{self, EndpointHandle, EndpointKind, Process, ReplicaHandle, config},
    replica_status::ReplicaStatus,
    service_endpoint::{Inline, ReplicaOptions, ServiceEndpoint, Set, SharedStatus, Terms},
};
use crate::{
    address::{advertised, bind},
    error::Error,
    lock::lock,
    seek,
};

/// The state that all replicas of a host share, in whichever process they are.
pub(crate) struct HostShared {
    pub(super) main: Arc<Process>,
    pub(super) domain: String,
    /// The address at which other processes reach the main process.
    pub(super) address: String,
    pub(super) seeds: Vec<String>,
    pub(super) insecure: bool,
    /// The addresses for further processes: where they listen, and where other processes reach them.
    pub(super) further_addresses: (String, Option<String>),
    /// The directory of the host's journals, if the host has a disk.
    pub(super) directory: Option<PathBuf>,
    pub(super) slots: Mutex<BTreeMap<String, Arc<ServiceSlot>>>,
    /// The channel through which processes report the ends of their replicas.
    pub(super) endings: Sender<String>,
}

/// A service of a host, with one replica at a time.
pub(super) struct ServiceSlot {
    pub(super) name: String,
    /// The terms that follow from the service's first state at this host.
    pub(super) terms: Terms,
    pub(super) options: ReplicaOptions,
    pub(super) status: Arc<Mutex<ReplicaStatus>>,
    /// Makes the service in its first state.
    make_service: Box<ServiceMaker>,
    /// The present life, or `None` between two lives.
    pub(super) life: Mutex<Option<ReplicaLife>>,
    /// The service's set, once the set is known.
    pub(super) set: Mutex<Option<Set>>,
    /// Journals of ended replicas, while the set may count on them. Each belonged to a replica of the set, so
    /// they are few.
    kept: Mutex<Vec<KeptJournal>>,
    /// The pause before the next life.
    pause: Mutex<Duration>,
}

/// The journal of a replica that ended.
#[derive(Clone)]
struct KeptJournal {
    process: ProcessId,
    /// The side journal of the ended replica, or `None` if the replica used the host's own journal.
    side_journal: Option<PathBuf>,
}

/// A function that makes a service. The service's executor records its figures in the given tally.
pub(super) type ServiceMaker = dyn Fn(Arc<Tally>) -> Result<ExecutorKind, Error> + Send + Sync;

/// A service that is executed by its endpoint's thread or by a thread of its own.
pub(super) enum ExecutorKind {
    /// A service that its endpoint executes.
    Inline(Box<dyn Performer>),
    /// A service with its own thread.
    Threaded(Box<dyn Runner>),
}

/// One life of a replica, in one process.
#[derive(Clone)]
pub(super) struct ReplicaLife {
    pub(super) runs_in: ReplicaProcess,
    pub(super) endpoint: Arc<EndpointHandle>,
    began: Instant,
}

/// A process in which a replica runs.
#[derive(Clone)]
pub(super) struct ReplicaProcess {
    pub(super) process: Arc<Process>,
    /// The address at which other processes reach this process.
    pub(super) address: String,
    side_journal: Option<PathBuf>,
}

impl ReplicaLife {
    /// Whether the replica has ended and its set may count on its records.
    fn keeps_records(&self) -> bool {
        let EndpointKind::Replica(replica) = &self.endpoint.kind else {
            unreachable!("a slot has a replica")
        };
        replica.over.load(Ordering::Relaxed) && replica.keeps_records(self.runs_in.process.me())
    }
}

impl ReplicaProcess {
    /// Returns the id and the address of the process, by which other processes reach it.
    pub(super) fn peer(&self) -> Peer {
        Peer { id: self.process.me(), address: self.address.clone() }
    }
}

/// A replica that is about to begin: its endpoint, and, if it continues from records, its set and its first
/// record.
pub(super) type Beginning = (ServiceEndpoint, Option<(Set, Ticket)>);

impl ServiceSlot {
    pub(super) fn new(
        name: &str,
        (terms, options): (Terms, ReplicaOptions),
        make_service: Box<ServiceMaker>,
    ) -> Arc<ServiceSlot> {
        Arc::new(ServiceSlot {
            name: name.to_owned(),
            terms,
            options,
            status: Arc::default(),
            make_service,
            life: Mutex::default(),
            set: Mutex::default(),
            kept: Mutex::default(),
            pause: Mutex::new(PAUSE_MIN),
        })
    }

    /// Returns the processes whose journals are kept here.
    pub(super) fn kept(&self) -> Vec<ProcessId> {
        let kept = lock(&self.kept).iter().map(|kept| kept.process).collect::<Vec<_>>();
        // The last replica may have ended and have no successor yet.
        let last = lock(&self.life).clone().filter(ReplicaLife::keeps_records);
        kept.into_iter().chain(last.map(|life| life.runs_in.process.me())).collect()
    }

    /// Returns the present state of the slot's replica.
    pub(super) fn replica_status(&self) -> ReplicaStatus {
        let life = lock(&self.life).clone();
        let kept = self.kept();
        let status = ReplicaStatus { kept, ..lock(&self.status).clone() };
        let Some(ReplicaLife { runs_in, endpoint, .. }) = life else { return status };
        let EndpointKind::Replica(replica) = &endpoint.kind else { unreachable!("a slot has a replica") };
        ReplicaStatus {
            me: Some(runs_in.process.me()),
            address: Some(runs_in.address),
            inline: lock(&replica.inline).is_some(),
            set: endpoint.set().map(|set| set.group.0),
            changes: replica.tally.changes.load(Ordering::Relaxed),
            restored: replica.tally.restored.load(Ordering::Relaxed),
            ..status
        }
    }

    /// Copies the service's state: [`Node::export`](crate::Node::export). Blocks.
    pub(super) fn export(&self) -> Result<Export, Error> {
        let life = lock(&self.life).clone();
        let Some(ReplicaLife { runs_in, endpoint, .. }) = life else {
            return Err(Error::not_sent(format!(
                "the replica of the service `{}` has ended, and comes back soon",
                self.name
            )));
        };
        let Some(set) = endpoint.set() else {
            return Err(Error::not_sent(format!(
                "this host still looks for the other replicas of the service `{}`",
                self.name
            )));
        };
        let leads = || lock(&self.status).serving;
        let led = leads();
        let (wanted, copy) = bounded(1);
        runs_in.process.copy(&endpoint, wanted);
        let copy = copy.recv_timeout(EXPORT_PATIENCE).map_err(|_| {
            Error::not_sent(
                "the replica of the service had open transactions all the time, or ended, so its state \
                     could not be copied",
            )
        })?;
        let copy = copy.map_err(Error::rejected)?;
        Export::of_copy(&self.name, set.group.0, led && leads(), &copy)
            .ok_or_else(|| Error::not_sent("the state of the service is still being restored"))
    }

    /// Returns the reason why the slot's replica does not come back, if it has ended for good.
    pub(super) fn has_ended(&self) -> Option<String> {
        lock(&self.status).ended.clone()
    }

    /// Begins a life in this process. A life that continues from records uses the terms of its set.
    pub(super) fn begin(
        &self,
        runs_in: ReplicaProcess,
        (terms, founds): (Terms, bool),
        beginning: impl FnOnce(Peer, Option<Box<Inline>>) -> Result<Beginning, Error>,
    ) -> Result<ReplicaLife, Error> {
        let tally = Arc::new(Tally::default());
        let (runner, inline) = match (self.make_service)(tally.clone())? {
            ExecutorKind::Inline(performer) => (None, Some(Box::new(Inline::new(Metered::new(performer))))),
            ExecutorKind::Threaded(runner) => (Some(runner), None),
        };
        let (service_endpoint, recovered) = beginning(runs_in.peer(), inline)?;
        let terms = recovered.map_or(terms, |(set, _)| set.terms);
        let (orders, waiting) = unbounded();
        let (inline, thread) = match runner {
            None => (Some(waiting), None),
            Some(runner) => (None, Some((runner, waiting))),
        };
        let replica = ReplicaHandle {
            terms,
            founds,
            orders,
            inline: Mutex::new(inline),
            tally,
            status: self.status.clone(),
            over: AtomicBool::new(false),
            goes_on: recovered.is_some(),
            voted_out: AtomicBool::new(false),
            failed: Mutex::default(),
            refused: Mutex::default(),
        };
        {
            let mut status = lock(&self.status);
            (status.leader, status.serving) = (None, false);
            status.lives += 1;
        }
        let kind = EndpointKind::Replica(Box::new(replica));
        let known = recovered.map(|(set, first)| (set, Some(first)));
        let added = runs_in.process.add(&self.name, kind, service_endpoint, known);
        let endpoint = added
            .map_err(|_| Error::start(format!("this process serves the service `{}` already", self.name)))?;
        if let Some((runner, waiting)) = thread
            && let Err(error) = process::spawn(runner, waiting, runs_in.process.results(&endpoint))
        {
            runs_in.process.remove(&endpoint);
            return Err(Error::start(error));
        }
        Ok(ReplicaLife { runs_in, endpoint, began: Instant::now() })
    }
}

impl HostShared {
    /// Starts the thread that brings ended replicas back.
    pub(super) fn keep(host_shared: &Arc<HostShared>, endings: Receiver<String>) -> Result<(), Error> {
        let host_shared = Arc::downgrade(host_shared);
        let keeper = thread::Builder::new().name(String::from("keeper"));
        keeper.spawn(move || keep(&host_shared, &endings)).map(drop).map_err(Error::start)
    }

    pub(super) fn slot(&self, name: &str) -> Option<Arc<ServiceSlot>> {
        lock(&self.slots).get(name).cloned()
    }

    pub(super) fn serves(&self, name: &str) -> bool {
        lock(&self.slots).contains_key(name)
    }

    /// Returns the names of the services, and the present states of their replicas.
    pub(super) fn services(&self) -> Vec<(String, ReplicaStatus)> {
        let slots = lock(&self.slots).clone();
        slots.into_iter().map(|(name, slot)| (name, slot.replica_status())).collect()
    }

    fn domain_id(&self) -> DomainId {
        super::domain(&self.domain)
    }

    /// Makes the journal of a further process. Returns `None` if this host has no disk.
    pub(super) fn new_side_journal(&self) -> Result<Option<SideJournal>, Error> {
        self.directory
            .as_deref()
            .map(|place| Directory::new_side_journal(place, self.domain_id()))
            .transpose()
    }

    /// Starts a further process for one replica. If the replica continues from a side journal, the process
    /// listens at its former address.
    pub(super) fn further_process(
        &self,
        side_journal: Option<SideJournal>,
        known_at: Option<String>,
    ) -> Result<ReplicaProcess, Error> {
        let (listen, advertise) = &self.further_addresses;
        let port = known_at.as_deref().and_then(|known| known.rsplit_once(':')).map(|(_, port)| port);
        let listen = match (port, listen.rsplit_once(':')) {
            (Some(port), Some((host, _))) => format!("{host}:{port}"),
            _ => listen.clone(),
        };
        let (listener, bound) = bind(&listen)?;
        let address = known_at.unwrap_or_else(|| advertised(advertise.as_deref(), bound));
        let mut config = config(&self.domain);
        config.listening = vec![listener];
        (config.insecure, config.advertise) = (self.insecure, Some(address.clone()));
        let (directory, disk, side_journal) = match side_journal {
            Some(SideJournal { directory, disk, place }) => (Some(directory), Some(disk), Some(place)),
            None => (None, None, None),
        };
        // The host's own address is among the seeds. If the main process has a redirect of this service, the
        // redirect shows the set's replicas.
        let seeds = self.seeds.iter().chain([&self.address]).cloned().collect();
        let on_disk = directory.as_ref().zip(disk);
        let process = Process::start(config, seeds, on_disk, Some(self.endings.clone()))?;
        Ok(ReplicaProcess { process, address, side_journal })
    }

    /// Returns the main process, in which a replica may run.
    pub(super) fn main_process(&self) -> ReplicaProcess {
        ReplicaProcess { process: self.main.clone(), address: self.address.clone(), side_journal: None }
    }

    /// Puts a redirect into the main process, at the channel of a former replica of this set.
    pub(super) fn put_redirect(&self, slot: &ServiceSlot, set: Set) {
        let redirect = ServiceEndpoint::redirect(set, SharedStatus(slot.status.clone()));
        // If the process already has a redirect of this set, that redirect does the same, so the error does
        // not matter.
        let _ = self.main.add(&slot.name, EndpointKind::Redirect, redirect, Some((set, None)));
    }

    /// Ends a life for good: removes its endpoint or its process, and its journal.
    fn drop_life(&self, life: ReplicaLife) {
        let ReplicaLife { runs_in: ReplicaProcess { process, side_journal, .. }, endpoint, .. } = life;
        process.remove(&endpoint);
        drop((process, endpoint));
        if let Some(side_journal) = side_journal {
            remove_side_journal(&side_journal);
        }
    }

    /// Ends a life before the next life begins. Keeps the life's journal while the set may count on it.
    fn retire_life(&self, slot: &ServiceSlot, life: ReplicaLife) {
        if !life.keeps_records() {
            return self.drop_life(life);
        }
        let ReplicaLife { runs_in: ReplicaProcess { process, side_journal, .. }, endpoint, .. } = life;
        let me = process.me();
        process.retire(&endpoint);
        warn!(
            service = slot.name, process = %me,
            "the journal of a replica that ended is kept until the other replicas have voted that replica out"
        );
        lock(&slot.kept).push(KeptJournal { process: me, side_journal });
    }

    /// Removes the kept journals of processes that their sets have voted out. Returns whether some journals
    /// are still kept.
    fn drop_voted_out_journals(&self) -> bool {
        let slots: Vec<_> = lock(&self.slots).values().cloned().collect();
        let mut are_kept = false;
        for slot in slots {
            let me = lock(&slot.life).as_ref().map(|life| life.runs_in.process.me());
            let replicas = lock(&slot.status).replicas.clone();
            let is_replica = |process: ProcessId| replicas.iter().any(|(id, _)| *id == process);
            let mut kept = lock(&slot.kept);
            // A successor that is not a replica yet knows only the replicas that its predecessor knew.
            if me.is_some_and(is_replica) {
                for kept in kept.extract_if(.., |kept| !is_replica(kept.process)) {
                    info!(
                        service = slot.name, process = %kept.process,
                        "the other replicas have voted out a replica that ended, and its journal is removed"
                    );
                    self.remove_kept(&slot, kept);
                }
            }
            are_kept |= !kept.is_empty();
        }
        are_kept
    }

    fn remove_kept(&self, slot: &ServiceSlot, kept: KeptJournal) {
        match kept.side_journal {
            Some(side_journal) => remove_side_journal(&side_journal),
            None => self.main.release_retired(&slot.name),
        }
    }

    /// Begins the next life of a service whose replica has ended.
    fn come_back(&self, name: &str) -> Result<(), Error> {
        let Some(slot) = self.slot(name) else { return Ok(()) };
        if let Some(before) = lock(&slot.life).take() {
            if let Some(set) = before.endpoint.set() {
                *lock(&slot.set) = Some(set);
            }
            self.retire_life(&slot, before);
        }
        let set = *lock(&slot.set);
        if let Some(set) = set {
            self.put_redirect(&slot, set);
        }
        let runs_in = self.further_process(self.new_side_journal()?, None)?;
        let terms = set.map_or(slot.terms, |set| set.terms);
        let new_endpoint =
            |me, inline| Ok((ServiceEndpoint::replica(me, slot.options.clone(), inline), None));
        let life = slot.begin(runs_in, (terms, false), new_endpoint)?;
        let process = &life.runs_in.process;
        if let Some(set) = set {
            let replicas = lock(&slot.status).replicas.clone();
            let replicas = replicas.into_iter().map(|(id, address)| Peer { id, address }).collect();
            process.begin(&life.endpoint, set, false);
            process.send_seeds(&life.endpoint, replicas);
        }
        info!(
            service = name, process = %process.me(), address = life.runs_in.address,
            "a replica of a service comes back as another process"
        );
        let mut slots = lock(&self.slots);
        match slots.get_mut(name) {
            Some(there) if Arc::ptr_eq(there, &slot) => *lock(&slot.life) = Some(life),
            // The service was withdrawn meanwhile.
            _ => {
                drop(slots);
                self.drop_life(life);
            }
        }
        Ok(())
    }

    /// Makes the process at `new` a replica, and removes the one at `old`:
    /// [`Node::replace_replica`](crate::Node::replace_replica). Blocks.
    pub(crate) fn change(&self, name: &str, old: Option<&str>, new: &str) -> Result<(), Error> {
        let slot = self.slot(name);
        let slot = slot.ok_or_else(|| Error::start(format!("this node serves no service `{name}`")))?;
        let life = lock(&slot.life).clone();
        let between = || {
            Error::not_sent(format!(
                "the replica of the service `{name}` at this node has ended, and comes back soon"
            ))
        };
        let ReplicaLife { runs_in: ReplicaProcess { process, .. }, endpoint, .. } =
            life.ok_or_else(between)?;
        let replica_at = |address: &str| {
            let status = lock(&slot.status);
            status.replicas.iter().find(|(_, at)| at == address).map(|(id, _)| *id)
        };
        let old = match old.map(|address| (address, replica_at(address))) {
            None => None,
            Some((_, Some(id))) => Some(id),
            Some((address, None)) => {
                return Err(Error::rejected(format!(
                    "the service `{name}` has no replica at {address} that could be replaced"
                )));
            }
        };
        if replica_at(new).is_none() {
            let found = seek::ask(new, self.domain_id());
            let met =
                found.map_err(|error| Error::not_sent(format!("no process was found at {new}: {error}")))?;
            let peer = Peer { id: met.process, address: new.to_owned() };
            self.have_changed(&process, &endpoint, &Change::Add(peer), &format!("{new} became a replica"))?;
        }
        match old {
            Some(old) => {
                self.have_changed(&process, &endpoint, &Change::Remove(old), "the old replica was removed")
            }
            None => Ok(()),
        }
    }

    fn have_changed(
        &self,
        process: &Process,
        endpoint: &EndpointHandle,
        change: &Change,
        what: &str,
    ) -> Result<(), Error> {
        match process.change(endpoint, change, CHANGE_PATIENCE) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let why = format!("no confirmation came within {CHANGE_PATIENCE:?} that {what}");
                Err(Error::MaybeApplied { id: None, why })
            }
            Err(ChangeRefusal::TooFew) => {
                Err(Error::rejected("too few healthy replicas would be left: add or repair a replica first"))
            }
            Err(ChangeRefusal::Unreachable) => Err(Error::rejected(
                "the leader cannot reach the new process, or that process does not serve this service, or \
                 was removed before",
            )),
            Err(why @ (ChangeRefusal::AlreadySo | ChangeRefusal::NoLeader)) => {
                unreachable!("{why:?} is waited out")
            }
        }
    }

    /// Ends a service at this host for good. Returns whether the host had the service.
    pub(super) fn withdraw(&self, name: &str) -> bool {
        let Some(slot) = lock(&self.slots).remove(name) else { return false };
        self.end(&slot);
        true
    }

    /// Ends the slot's present life, and removes its kept journals and its redirect.
    pub(super) fn end(&self, slot: &ServiceSlot) {
        if let Some(life) = lock(&slot.life).take() {
            self.drop_life(life);
        }
        for kept in mem::take(&mut *lock(&slot.kept)) {
            self.remove_kept(slot, kept);
        }
        // The main process may still have a redirect of this service.
        if let Some(endpoint) = self.main.endpoint(&slot.name) {
            self.main.remove(&endpoint);
        }
    }

    /// Returns the pause before the next life of a service's replica that has ended.
    fn pause(&self, name: &str) -> Duration {
        let Some(slot) = self.slot(name) else { return Duration::ZERO };
        let began = lock(&slot.life).as_ref().map(|life| life.began);
        let mut pause = lock(&slot.pause);
        if began.is_some_and(|began| began.elapsed() > LIFE_LONG) {
            *pause = PAUSE_MIN;
        }
        let now = *pause;
        *pause = (now * 2).min(PAUSE_MAX);
        now
    }
}

fn keep(host_shared: &Weak<HostShared>, endings: &Receiver<String>) {
    let mut due: Vec<(Instant, String)> = Vec::new();
    let mut look: Option<Instant> = None;
    loop {
        let next = due.iter().map(|(at, _)| *at).chain(look).min();
        let heard = match next {
            Some(at) => endings.recv_deadline(at),
            None => endings.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        // The program has dropped the host.
        let Some(host_shared) = host_shared.upgrade() else { return };
        match heard {
            Ok(name) => due.push((Instant::now() + host_shared.pause(&name), name)),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let now = Instant::now();
                let (ripe, rest) = due.into_iter().partition(|(at, _)| *at <= now);
                due = rest;
                let ripe: Vec<(Instant, String)> = ripe;
                for (_, name) in ripe {
                    if let Err(error) = host_shared.come_back(&name) {
                        warn!(
                            service = name, %error,
                            "a replica of a service cannot come back now, and the host tries again"
                        );
                        due.push((now + host_shared.pause(&name), name));
                    }
                }
                let are_kept = host_shared.drop_voted_out_journals();
                look = are_kept.then(|| Instant::now() + KEPT_PAUSE);
            }
        }
    }
}

/// Interval at which the host checks whether sets have voted out processes with kept journals.
const KEPT_PAUSE: Duration = Duration::from_secs(1);

/// Length of a life after which the next pause is the shortest again.
const LIFE_LONG: Duration = Duration::from_secs(60);

/// Upper bound of the wait for a change of the replicas. A new replica first receives all agreed changes.
const CHANGE_PATIENCE: Duration = Duration::from_secs(60);

/// Upper bound of the wait for a copy of a state.
const EXPORT_PATIENCE: Duration = Duration::from_secs(60);

/// Shortest and longest pause before the next life of a replica.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);
