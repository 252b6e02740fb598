//! One real process: a node on a reactor, its engine on a thread of its own, and whoever watches.
//!
//! ```text
//!   protocol thread ── Execute(tasks) ──▶ engine thread ── Executed(results) ──▶ protocol thread
//!                   ── client events ───▶ a callback that never blocks
//!   seeking thread  ── Seeds ──▶ protocol thread         (who listens at the routers' addresses)
//! ```

mod engine;
mod namesake;
mod strangers;
mod withdrawals;

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, bounded};
use quorate_node::EndpointId;
use quorate_protocol::{
    CommandId, DomainId, Generation, NotAdmitted, ProcessId, Protocol, Terms, Ticket, Time,
    domain::Shared as Held,
    ecast::RouterEvent,
    group::Roster,
    relay::{self, Relay},
    rubberband::{ClientEvent, Remains, StorageEvent, SuperEvent},
};
use quorate_runtime::{
    Config, Disk, Host, Port, StartError,
    calls::{Calls, Unanswered},
    discover::{Answer, Presence},
    disk::DiskError,
    worker::Worker,
};
use quorate_table::engine::{Engine, Usage};
use quorate_tables::{self as tables, Command, Event, health::Hindrance, operate::Operation, status::Status};
use tracing::{error, info, warn};

pub(crate) use self::strangers::Strangers;
use self::{
    engine::{Job, Passes},
    namesake::probe_namesake,
    withdrawals::Withdrawals,
};
use crate::{
    crew::{Crew, Muster},
    seek::Search,
};

/// Why a process can not go on. It should end, and may be started anew, as a new incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It was cut off: the others go on without it.
    Wedged,
    /// The domain went on as a later generation, without this router.
    Outdated(Generation),
    /// The domain does not take it in, and will not as long as it is configured so.
    NotAdmitted(String),
    /// Its directory is an older copy that was put back.
    OlderCopy(String),
    /// It broke an invariant, or was handed a state that does not decode.
    Broken(String),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Wedged => f.write_str("the others go on without this process, which was cut off"),
            End::Outdated(generation) => {
                write!(f, "the domain went on as generation {generation} without this router")
            }
            End::NotAdmitted(why) => write!(f, "the domain does not take this process in: {why}"),
            End::OlderCopy(why) => f.write_str(why),
            End::Broken(why) => write!(f, "broken: {why}"),
        }
    }
}

/// Why an operation has not come about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// The process has not taken it up: it has ended, or too much waits for it already. Nothing was done.
    Untaken,
    /// It was refused, or has not ended in time: the reason.
    Because(String),
}

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotDone::Untaken => f.write_str("the process does not answer"),
            NotDone::Because(why) => f.write_str(why),
        }
    }
}

/// What a process needs beside its node.
pub struct Parts {
    /// A storage process's engine, and the threads that look at its rows.
    pub engine: Option<(Box<dyn Engine>, Muster)>,
    /// Where a client's events go; called on the protocol thread, must not block.
    pub client: Option<Box<dyn FnMut(ClientEvent) + Send>>,
    /// Where routers may be found.
    pub routers: Vec<String>,
    /// What it takes the domain to be founded with; none: whatever it is.
    pub terms: Option<Terms>,
    /// Its disk, and the ticket of the first record there, if it has one.
    pub disk: Option<(Disk, Ticket)>,
}

/// A running process.
pub struct Process {
    port: Port<Relay<tables::Process>>,
    shared: Arc<Shared>,
    engine: Option<Arc<Worker<Job>>>,
    ended: Receiver<End>,
    /// The search for routers ends when this is dropped.
    seeks: Mutex<Option<Sender<()>>>,
}

/// What the threads of a process share.
struct Shared {
    port: OnceLock<Port<Relay<tables::Process>>>,
    statuses: Calls<Status>,
    rosters: Calls<Held<Roster>>,
    operations: Calls<Result<(), String>>,
    /// What a storage process that is out leaves to its next life.
    remains: Mutex<Option<Box<Remains>>>,
}

struct NodeHost {
    shared: Arc<Shared>,
    engine: Option<Arc<Worker<Job>>>,
    /// Of the batch at the engine.
    withdrawals: Arc<Withdrawals>,
    client: Option<Box<dyn FnMut(ClientEvent) + Send>>,
    identity: Identity,
    strangers: Strangers,
    /// Whether it is being found out if the process that has this one's node lives.
    probing: Arc<AtomicBool>,
    end: Sender<End>,
}

/// Who this process is, for those who compare it with another.
#[derive(Clone)]
struct Identity {
    domain: DomainId,
    me: ProcessId,
    address: String,
    terms: Option<Terms>,
}

impl Process {
    /// Starts the threads.
    pub fn start(process: tables::Process, config: Config, parts: Parts) -> Result<Process, StartError> {
        let shared = Arc::new(Shared {
            port: OnceLock::new(),
            statuses: Calls::default(),
            rosters: Calls::default(),
            operations: Calls::default(),
            remains: Mutex::new(None),
        });
        let (end, ended) = bounded(1);
        let engine = match parts.engine {
            Some((engine, muster)) => {
                let (crew, passes) = (Crew::start(muster)?, Passes::new(&config.metrics));
                Some(Arc::new(engine::start(engine, crew, passes, shared.clone(), end.clone())?))
            }
            None => None,
        };
        let host = NodeHost {
            shared: shared.clone(),
            engine: engine.clone(),
            withdrawals: Arc::default(),
            client: parts.client,
            identity: Identity {
                domain: config.domain,
                me: config.me,
                address: config.advertise.clone().unwrap_or_default(),
                terms: parts.terms,
            },
            strangers: Strangers::default(),
            probing: Arc::default(),
            end: end.clone(),
        };
        let (domain, me) = (config.domain, config.me);
        let relay = Relay::new(process, relay::Settings::default());
        let port = match parts.disk {
            None => Port::alone(EndpointId::TABLES, relay, host, config)?,
            Some(disk) => Port::alone_on_disk(EndpointId::TABLES, relay, host, config, disk)?,
        };
        shared.port.set(port.clone()).unwrap_or_else(|_| unreachable!("set once, here"));
        let (kick, kicks) = bounded(0);
        if !parts.routers.is_empty() {
            let port = port.clone();
            Search::warning(domain, me, parts.routers).go_on(kicks, move |found| {
                if !found.is_empty() {
                    // They are looked for again.
                    let _ = port.try_command(Command::Seeds(found));
                }
            })?;
        }
        let watched = port.node().clone();
        thread::Builder::new().name(String::from("watch")).spawn(move || {
            if watched.wait().is_err() {
                let _ = end.try_send(End::Broken(String::from("the protocol thread panicked")));
            }
        })?;
        Ok(Process { port, shared, engine, ended, seeks: Mutex::new(Some(kick)) })
    }

    /// For commands.
    pub fn port(&self) -> &Port<Relay<tables::Process>> {
        &self.port
    }

    /// Tells once why the process can not go on.
    pub fn ended(&self) -> &Receiver<End> {
        &self.ended
    }

    /// Where the process stands; `None` when the protocol thread does not answer within `patience`.
    pub fn status(&self, patience: Duration) -> Option<Status> {
        let ask = |token| self.port.try_command(Command::Status { token }).is_ok();
        self.shared.statuses.call(patience, ask).ok()
    }

    /// The process groups that a router knows of; `None` when its protocol thread does not answer within `patience`.
    pub fn groups(&self, patience: Duration) -> Option<Held<Roster>> {
        let ask = |token| self.port.try_command(Command::Groups { token }).is_ok();
        self.shared.rosters.call(patience, ask).ok()
    }

    /// What a storage process's tables take; `None` when its engine does not answer within `patience`, or there is none.
    pub fn usage(&self, patience: Duration) -> Option<Vec<Usage>> {
        let (sender, receiver) = bounded(1);
        self.engine.as_ref()?.submit(Job::Usage(sender)).ok()?;
        receiver.recv_timeout(patience).ok()
    }

    /// Does what an operator asks, and waits until it has come about, for at most `patience`. [`Member::operate`] asks a member
    /// over its lives.
    ///
    /// [`Member::operate`]: crate::node::Member::operate
    pub fn operate(&self, operation: Operation, patience: Duration) -> Result<(), NotDone> {
        self.ended_within(patience, |id| Command::Operate { id, operation })
    }

    /// Leaves the cluster, and waits until it is out. An error says why it is not, or not within `patience`.
    pub fn leave(&self, patience: Duration) -> Result<(), String> {
        self.ended_within(patience, |id| Command::Leave { id }).map_err(|why| why.to_string())
    }

    /// Has the others not wait for this process, which is about to stop for a moment, and waits until they do not. An error says
    /// why they will notice.
    pub fn pause(&self, patience: Duration) -> Result<(), String> {
        self.ended_within(patience, |id| Command::Pause { id }).map_err(|why| why.to_string())
    }

    fn ended_within(
        &self,
        patience: Duration,
        command: impl FnOnce(CommandId) -> Command,
    ) -> Result<(), NotDone> {
        let ask = |id| self.port.try_command(command(CommandId(id))).is_ok();
        match self.shared.operations.call(patience, ask) {
            Ok(answer) => answer.map_err(NotDone::Because),
            Err(Unanswered::Untaken) => Err(NotDone::Untaken),
            Err(Unanswered::Late) => {
                Err(NotDone::Because(format!("it has not come about within {} s", patience.as_secs())))
            }
        }
    }

    /// What a storage process that is out leaves to its next life, with its engine, once: that life is to keep its rows.
    pub fn take_remains(&self, patience: Duration) -> Option<(Box<Remains>, Box<dyn Engine>)> {
        let remains = lock(&self.shared.remains).take()?;
        let (sender, receiver) = bounded(1);
        self.engine.as_ref()?.submit(Job::Hand(sender)).ok()?;
        Some((remains, receiver.recv_timeout(patience).ok()?))
    }

    /// Stops the threads.
    pub fn stop(&self) {
        drop(lock(&self.seeks).take());
        // A panic has been told by [`Process::ended`].
        let _ = self.port.node().stop();
    }
}

/// What these locks guard is whole at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NodeHost {
    fn end(&self, end: End) {
        // The first reason is the one that counts.
        let _ = self.end.try_send(end);
    }

    fn not_admitted(&mut self, why: NotAdmitted) {
        match why {
            NotAdmitted::Terms(theirs) => self.compare_terms(theirs),
            NotAdmitted::NodeInUse(other) => {
                if !self.probing.swap(true, Ordering::AcqRel) {
                    let (me, end, probing) = (self.identity.clone(), self.end.clone(), self.probing.clone());
                    let spawned = thread::Builder::new().name(String::from("namesake")).spawn(move || {
                        probe_namesake(&me, &other, &end);
                        probing.store(false, Ordering::Release);
                    });
                    if let Err(error) = spawned {
                        warn!(%error, "no thread to look for the process that has this one's node");
                    }
                }
            }
        }
    }

    /// Ends if the domain was founded with other terms than this process is configured for.
    fn compare_terms(&self, theirs: Terms) {
        let Some(ours) = self.identity.terms else { return };
        let pairs = [
            ("replicas", u32::from(ours.replicas), u32::from(theirs.replicas)),
            ("wanted_storage", ours.wanted_storage, theirs.wanted_storage),
            ("wanted_routers", ours.wanted_routers, theirs.wanted_routers),
        ];
        let differing: Vec<String> = pairs
            .into_iter()
            .filter(|(_, ours, theirs)| ours != theirs)
            .map(|(key, ours, theirs)| format!("{key} = {ours}, but the domain was founded with {theirs}"))
            .collect();
        if !differing.is_empty() {
            self.end(End::NotAdmitted(format!(
                "{}: the router that founds a domain decides this for all of it; configure the same here",
                differing.join("; ")
            )));
        }
    }

    fn router(&mut self, event: RouterEvent<quorate_protocol::domain::Config>) {
        match event {
            RouterEvent::Leader(leader) => info!(?leader, "lead router"),
            RouterEvent::Routers(routers) => {
                let routers: Vec<String> = routers.iter().map(|router| router.id.to_string()).collect();
                info!(?routers, "routers");
            }
            RouterEvent::Config(at, config) => {
                let config = &config.tables;
                self.compare_terms(config.terms());
                info!(%at, version = config.version, placement = config.placement, "configuration");
            }
            RouterEvent::Reformed(reformed) => warn!(?reformed, "a new generation of the domain began here"),
            RouterEvent::Ended { .. } => unreachable!("told as operated"),
            RouterEvent::Removed => self.end(End::Wedged),
            RouterEvent::Corrupt(why) => self.end(End::Broken(format!("a router's snapshot: {why}"))),
        }
    }
}

impl Host<Relay<tables::Process>> for NodeHost {
    fn answer(&self, relay: &Relay<tables::Process>, _: DomainId) -> Answer {
        let presence = match relay.inner().hindrance() {
            None => Presence::Settled,
            Some(Hindrance::Joining) => Presence::Joining,
            // That is no matter of the routers.
            Some(Hindrance::Unreached(_) | Hindrance::Unfounded { .. }) => Presence::Settled,
            Some(_) => Presence::Leaderless,
        };
        Answer { presence, pass: relay.policy().pass() }
    }

    fn stranger(&mut self, peer: ProcessId, ours: &[u8], theirs: &[u8]) {
        if let Some(generation) = self.strangers.meet(peer, ours, theirs) {
            self.end(End::Outdated(generation));
        }
    }

    fn disk_failed(&mut self, error: &DiskError) {
        self.end(match error {
            DiskError::OlderCopy { .. } => End::OlderCopy(error.to_string()),
            _ => End::Broken(error.to_string()),
        });
    }

    fn event(&mut self, event: Event, _now: Time) {
        match event {
            Event::Status { token, status } => self.shared.statuses.answer(token, *status),
            Event::Groups { token, roster } => self.shared.rosters.answer(token, roster),
            Event::Operated { id, result } => {
                if let Err(why) = &result {
                    warn!(%why, "an operator's command came to nothing");
                }
                self.shared.operations.answer(id.0, result);
            }
            Event::Router(event) => self.router(event),
            Event::NotAdmitted(why) => self.not_admitted(why),
            Event::Unserved(command) => {
                error!(?command, "this process has another role, and does not do that")
            }
            Event::Storage(StorageEvent::Execute(tasks)) => {
                let worker = self.engine.as_ref().expect("a storage process has an engine");
                self.withdrawals = Arc::default();
                if worker.submit(Job::Execute(tasks, self.withdrawals.clone())).is_err() {
                    error!("the engine thread takes no work");
                    self.end(End::Broken(String::from("the engine thread takes no work")));
                }
            }
            Event::Storage(StorageEvent::Out(remains)) => {
                info!(?remains, "out, and the rows are kept until others have them");
                *lock(&self.shared.remains) = Some(remains);
                self.end(End::Wedged);
            }
            Event::Storage(StorageEvent::Withdraw { task }) => self.withdrawals.add(task),
            Event::Storage(StorageEvent::Left { .. } | StorageEvent::Paused { .. }) => {
                unreachable!("told as operated")
            }
            Event::Super(SuperEvent::Suspected(process)) => warn!(%process, "suspected, others are asked"),
            Event::Super(SuperEvent::Removing { process, witnesses }) => {
                let witnesses: Vec<String> = witnesses.iter().map(ProcessId::to_string).collect();
                warn!(%process, witnesses = witnesses.join(" "), "failed: these do not hear it either");
            }
            Event::Super(SuperEvent::Replacing { old, new }) => info!(%old, %new, "replacing"),
            Event::Super(SuperEvent::Ended { .. }) => unreachable!("told as operated"),
            Event::Super(SuperEvent::Config(config)) => {
                info!(version = config.version, placement = config.placement, "configuration");
            }
            Event::Client(event) => {
                match &event {
                    ClientEvent::Wedged => self.end(End::Wedged),
                    ClientEvent::Unreached { process, name, address } => warn!(
                        %process, name, address,
                        "a storage process serves, and no link to it has come about: reads that need it fail"
                    ),
                    _ => {}
                }
                if let Some(client) = &mut self.client {
                    client(event);
                }
            }
            Event::Storage(StorageEvent::Wedged) | Event::Super(SuperEvent::Wedged) => self.end(End::Wedged),
        }
    }
}
