//! One process of a domain of maps on real threads.
//!
//! ```text
//!   protocol thread   links, the protocol, and the clients of the front
//!   seeking thread    ── Seeds ──▶ protocol thread      who listens at the routers' addresses
//!                     ── Adjust ─▶                      the wall clock, once a second
//! ```

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, bounded};
use quorate_node::EndpointId;
use quorate_protocol::{
    CommandId, DomainId, Generation, Peer, ProcessId, Protocol, Time, detector,
    ecast::{Router, RouterEvent, RouterSettings},
    partial::{self, JoinOptions, Resident, Roster, Site, resident},
    paxos::{self, Paxos},
    role::{Role, State},
};
use quorate_runtime::{
    Config, Door, Host, Port,
    calls::Calls,
    chance, clock,
    discover::{DomainAnswer, DomainState},
    disk::DiskError,
    door::ClientLimits,
    metrics::Metrics,
};
use tracing::{error, info, warn};

use super::{
    distances::{Distance, Distances},
    kind::{Command, Event, Kind},
    status::Status,
    strategy::{self, Outcome, Strategies, StrategyThread},
};
use crate::{
    error::Error,
    node::{
        DiskStatus,
        founding::{self, Beginning},
        journal::{self, Journal, Owner},
        life::CHECKPOINT_BYTES,
    },
    process::{End, Strangers},
    seek::Search,
};

/// The clients' side of a cell.
pub trait Front: Door<Kind> + Send {
    /// Tells the front its process. Called once, before all other calls.
    fn attach(&mut self, process: ProcessId);

    /// Takes an event of the cell.
    fn event(&mut self, event: resident::Event, now: Time);

    /// Takes the end of a request that the front gave to [`Strategies`].
    fn answered(&mut self, id: u64, outcome: Outcome, now: Time);
}

/// The work of a process.
#[allow(clippy::large_enum_variant, reason = "there is one per process")]
pub enum Task {
    /// A router, which orders changes.
    Router {
        /// Whether the router founds the domain if there is none. One router of a domain does, once.
        found: bool,
        /// Number of routers that the domain keeps.
        wanted: usize,
    },
    /// A cell, which keeps keys.
    Cell {
        /// The cell's site and its places on the ring.
        place: JoinOptions,
        /// Distances of other sites from its own. Sites without an entry are near.
        distances: BTreeMap<Site, Distance>,
        /// The settings of the cell's protocol.
        settings: partial::Settings,
        /// The front of the cell's clients, and the socket at which they connect.
        front: Option<(Box<dyn Front>, TcpListener)>,
        /// Maps of other strategies, as the front asks them, and their settings.
        strategies: Option<(Strategies, strategy::Settings)>,
    },
}

/// The settings of a process.
pub struct Setup {
    /// The domain.
    pub domain: DomainId,
    /// The number of the process's node. No two processes of a domain share it.
    pub number: u64,
    /// The process's name, for people and in metrics.
    pub name: String,
    /// Addresses of routers, `host:port`.
    pub routers: Vec<String>,
    /// Address for other processes, `host:port`. With port 0 the system chooses the port.
    pub listen: String,
    /// The address at which other processes reach this process, if it is not `listen`. Port 0 stands for the
    /// port of `listen`.
    pub advertise: Option<String>,
    /// Whether the process may listen at addresses other than loopback.
    pub insecure: bool,
    /// The directory of a founder's mark and of a process's journal.
    pub directory: Option<PathBuf>,
    /// Whether the process keeps its log, or its keys, on disk in the directory, and continues from there. It
    /// must listen at the same address each time.
    pub durable: bool,
    /// Whether the process's files pass bytes to the system only at a sync, and in pieces. Tests of power
    /// cuts use this: a kill then loses the same bytes as a power cut.
    pub late_files: bool,
    /// The patience with silent peers.
    pub detector: detector::Settings,
    /// The limits of a cell's clients.
    pub clients: ClientLimits,
    /// The process's work.
    pub task: Task,
}

/// A running process. Dropping it ends it at once without a goodbye, as if it had been killed.
pub struct Process {
    me: ProcessId,
    port: Port<Kind>,
    address: SocketAddr,
    statuses: Arc<Calls<Status>>,
    pauses: Arc<Calls<Result<(), String>>>,
    /// The maps of other strategies.
    strategy_thread: Option<StrategyThread>,
    role: Role,
    metrics: Metrics,
    ended: Receiver<End>,
    /// The search for routers ends when this is dropped.
    seeks: Mutex<Option<Sender<()>>>,
    /// Whether the other processes go on without this process.
    out: Arc<AtomicBool>,
    /// The directory of the process's journal, and the journal's owner.
    journal: Option<(PathBuf, Owner)>,
}

impl Process {
    /// Starts the process. A founding router asks the others first, as [`Node`](crate::Node) does.
    pub fn start(setup: Setup) -> Result<Process, Error> {
        let found = matches!(setup.task, Task::Router { found: true, .. });
        let role = if matches!(setup.task, Task::Router { .. }) { Role::Router } else { Role::Cell };
        let owner = Owner {
            domain: setup.domain,
            node: setup.number,
            role,
            endpoint: EndpointId::MAPS,
            late: setup.late_files,
        };
        let place = match (setup.durable, &setup.directory) {
            (false, _) => None,
            (true, Some(directory)) => Some(directory.clone()),
            (true, None) => return Err(Error::start("a durable process needs a directory")),
        };
        let mut journal = place.as_deref().map(|place| Journal::open(place, owner)).transpose()?;
        let beginning = match (role, &journal) {
            (Role::Router, Some(opened)) if opened.goes_on() => Some(Beginning::Join(opened.generation()?)),
            (Role::Router, _) => {
                Some(founding::begin(setup.domain, &setup.routers, found, setup.directory.as_deref())?)
            }
            _ => None,
        };
        let failed = |error: io::Error| Error::start(format!("cannot listen on {}: {error}", setup.listen));
        let resolved = setup.listen.to_socket_addrs().map_err(failed)?.next();
        let resolved = resolved.ok_or_else(|| {
            Error::start(format!("the address {} does not resolve to an IP address", setup.listen))
        })?;
        let listener = TcpListener::bind(resolved).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let advertised = crate::address::advertised(setup.advertise.as_deref(), address);
        let (mut cell, mut log) = (None, None);
        if let Some(place) = &place
            && let Some(opened) = journal.take_if(|journal| journal.goes_on())
        {
            let anew = || Journal::begin_anew(place, owner);
            let opened = match &setup.task {
                Task::Cell { settings, .. } => {
                    let settings = with_disk(*settings, setup.detector, true);
                    let (opened, resident) = opened.cell(&advertised, settings, anew)?;
                    cell = resident;
                    opened
                }
                Task::Router { wanted, .. } => {
                    let settings = log_settings(*wanted, setup.detector, true);
                    let (opened, before) = opened.router(&advertised, &settings, anew)?;
                    log = before;
                    opened
                }
            };
            journal = Some(opened);
        }
        let fresh = ProcessId { node: setup.number, incarnation: chance::incarnation() };
        let me = journal.as_ref().map_or(fresh, Journal::process);
        let peer = Peer { id: me, address: advertised.clone() };
        let metrics = Metrics::new([("process", setup.name.clone()), ("role", role.to_string())]);

        let mut config = Config::new(setup.domain, me, Vec::new());
        config.listening = vec![Arc::new(listener)];
        config.advertise = Some(advertised);
        config.insecure = setup.insecure;
        config.metrics = metrics.clone();
        let (statuses, (end, ended)) = (Arc::<Calls<Status>>::default(), bounded(1));
        let pauses = Arc::<Calls<Result<(), String>>>::default();
        let mut host = MapsHost {
            statuses: statuses.clone(),
            pauses: pauses.clone(),
            front: None,
            strategies: None,
            strangers: Strangers::default(),
            end: end.clone(),
            out: Arc::default(),
        };
        let out = host.out.clone();
        let mut asked = None;
        let port = match setup.task {
            Task::Router { wanted, .. } => {
                let beginning = beginning.expect("routers have been asked");
                let settings = log_settings(wanted, setup.detector, journal.is_some());
                let router = router(peer, beginning, settings, log);
                let router = Kind::Router(Box::new(router));
                match journal.map(|journal| (journal.disk, journal.first)) {
                    None => Port::alone(EndpointId::MAPS, router, host, config)?,
                    Some(disk) => Port::alone_on_disk(EndpointId::MAPS, router, host, config, disk)?,
                }
            }
            Task::Cell { place, distances, settings, front, strategies } => {
                asked = strategies;
                host.strategies = asked.as_ref().map(|(strategies, _)| strategies.clone());
                let settings = with_disk(settings, setup.detector, setup.durable);
                let new = || Resident::new(peer, place, settings, clock::wall_offset(), clock::now());
                let resident = cell.unwrap_or_else(new);
                let cell = Kind::Cell(Box::new(resident), Distances::new(distances));
                let disk = journal.map(|journal| (journal.disk, journal.first));
                match (front, disk) {
                    (None, None) => Port::alone(EndpointId::MAPS, cell, host, config)?,
                    (None, Some(disk)) => Port::alone_on_disk(EndpointId::MAPS, cell, host, config, disk)?,
                    (Some((mut front, listener)), disk) => {
                        front.attach(me);
                        host.front = Some(front);
                        let door = (listener, setup.clients);
                        Port::alone_with_door(EndpointId::MAPS, cell, host, config, door, disk)?
                    }
                }
            }
        };
        let strategy_thread = asked.map(|(strategies, settings)| {
            let port = port.clone();
            let told = move |id, outcome| {
                // The command is refused only if the process ends, and then it has no clients.
                let _ = port.command(Command::Answered { id, outcome: Box::new(outcome) });
            };
            strategies.start(setup.domain, me, settings, setup.insecure, told)
        });
        let strategy_thread = strategy_thread.transpose()?;
        let (kick, kicks) = bounded(0);
        let seeks = Mutex::new(Some(kick));
        let journal = place.map(|place| (place, owner));
        let process = Process {
            me,
            port: port.clone(),
            address,
            statuses,
            pauses,
            strategy_thread,
            role,
            metrics,
            ended,
            seeks,
            out,
            journal,
        };
        let (routers, domain, is_cell) = (setup.routers, setup.domain, role == Role::Cell);
        let told = port.clone();
        Search::quiet(domain, me, routers).every(ADJUST_EVERY).go_on(kicks, move |found| {
            // Commands that are refused are repeated soon.
            if !found.is_empty() {
                let _ = told.try_command(Command::Seeds(found));
            }
            if is_cell {
                let adjust = resident::Command::Adjust(clock::wall_offset());
                let _ = told.try_command(Command::Cell(adjust));
            }
        })?;
        let watched = port.node().clone();
        thread::Builder::new().name(String::from("watch")).spawn(move || {
            if watched.wait().is_err() {
                let _ = end.try_send(End::Broken(String::from("the protocol thread panicked")));
            }
        })?;
        Ok(process)
    }

    /// Returns the id of this process.
    pub fn id(&self) -> ProcessId {
        self.me
    }

    /// Returns the address at which the member listens for other processes.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the process's metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the state of the disk, if the process has one.
    pub fn disk(&self) -> Option<DiskStatus> {
        let (directory, owner) = self.journal.as_ref()?;
        let place = journal::place(directory, owner.node);
        Some(DiskStatus::of(self.port.node().counters(), &place))
    }

    /// Yields one message when it can not go on, which says why.
    pub fn ended(&self) -> &Receiver<End> {
        &self.ended
    }

    /// Returns the status, or `None` if the protocol thread does not answer within `patience`.
    pub fn status(&self, patience: Duration) -> Option<Status> {
        let ask = |token| self.port.try_command(Command::Status { token }).is_ok();
        let mut status = self.statuses.call(patience, ask).ok()?;
        if let Some(strategy_thread) = &self.strategy_thread {
            status.kept = strategy_thread.statuses();
        }
        Some(status)
    }

    /// Prepares the others for a process that is about to stop. If a router leads, another one takes over,
    /// and nobody votes this one out for half a minute. A cell leaves the groups that keep its maps; its
    /// other requests go to other cells as soon as it is gone. The error is the reason why the others will
    /// notice the stop.
    pub fn pause(&self, patience: Duration) -> Result<(), String> {
        if self.role != Role::Router {
            self.strategy_thread.iter().for_each(StrategyThread::leave);
            return Ok(());
        }
        let ask = |id| self.port.try_command(Command::Pause { id: CommandId(id) }).is_ok();
        let late = |_| Err(format!("no other router took the lead within {} s", patience.as_secs()));
        self.pauses.call(patience, ask).unwrap_or_else(late)
    }

    /// Stops the threads. If the others go on without this process, its directory is reset: the next process
    /// there is another one.
    pub fn stop(&self) {
        drop(self.seeks.lock().unwrap_or_else(PoisonError::into_inner).take());
        // [`Process::ended`] has reported a panic.
        let _ = self.port.node().stop();
        if let Some((place, owner)) = &self.journal
            && self.out.swap(false, Ordering::AcqRel)
            && let Err(error) = Journal::begin_anew(place, *owner)
        {
            // The next start learns again that the process of this journal is out.
            warn!(
                %error,
                "the journal of a process that was removed could not be reset; the next start tries again"
            );
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

fn log_settings(wanted: usize, detector: detector::Settings, durable: bool) -> paxos::Settings {
    let checkpoint_bytes = durable.then_some(CHECKPOINT_BYTES);
    paxos::Settings { detector, wanted, checkpoint_bytes, ..paxos::Settings::default() }
}

fn router(
    peer: Peer,
    beginning: Beginning,
    log: paxos::Settings,
    recovered: Option<Paxos>,
) -> Router<partial::Maps> {
    let generation = if let Beginning::Join(generation) = beginning { generation } else { Generation::FIRST };
    let paxos = match (recovered, beginning) {
        (Some(paxos), _) => paxos,
        (None, Beginning::Found) => Paxos::found(peer, log.clone(), clock::now()),
        (None, Beginning::Join(_)) => Paxos::join(peer, Vec::new(), log.clone(), clock::now()),
    };
    let settings = RouterSettings { paxos: log, generation, ..RouterSettings::default() };
    Router::new(paxos, Roster::default(), settings)
}

/// Returns the settings of a cell, with a disk or without.
fn with_disk(settings: partial::Settings, detector: detector::Settings, durable: bool) -> partial::Settings {
    partial::Settings { detector, checkpoint_bytes: durable.then_some(CHECKPOINT_BYTES as u64), ..settings }
}

/// Interval at which a cell gets the wall clock.
const ADJUST_EVERY: Duration = Duration::from_secs(1);

/// The host of a process's protocol.
struct MapsHost {
    statuses: Arc<Calls<Status>>,
    pauses: Arc<Calls<Result<(), String>>>,
    front: Option<Box<dyn Front>>,
    strategies: Option<Strategies>,
    strangers: Strangers,
    end: Sender<End>,
    /// Whether the others go on without this process.
    out: Arc<AtomicBool>,
}

impl MapsHost {
    fn end(&self, end: End) {
        if end == End::Wedged {
            self.out.store(true, Ordering::Release);
        }
        // The first reason counts.
        let _ = self.end.try_send(end);
    }

    fn router(&self, event: RouterEvent<Roster>) {
        match event {
            RouterEvent::Leader(leader) => info!(?leader, "the lead router has changed"),
            RouterEvent::Routers(routers) => {
                let routers: Vec<String> = routers.iter().map(|router| router.id.to_string()).collect();
                info!(?routers, "the set of routers has changed");
            }
            RouterEvent::Config(at, roster) => info!(
                %at, layout = roster.layout().version().0,
                "a new roster (members, layout and maps of the domain) applies"
            ),
            RouterEvent::Removed => self.end(End::Wedged),
            RouterEvent::Corrupt(why) => {
                self.end(End::Broken(format!("a router's snapshot cannot be decoded: {why}")))
            }
            RouterEvent::Ended { id, result } => {
                self.pauses.answer(id.0, result.map_err(|refusal| refusal.to_string()));
            }
            RouterEvent::Reformed(_) => unreachable!("no operator's command reaches a router of maps"),
        }
    }

    fn cell(&mut self, event: resident::Event, now: Time) {
        match &event {
            resident::Event::Wedged => self.end(End::Wedged),
            resident::Event::Lacks(cell) => {
                warn!(
                    cell = cell.0,
                    "hints for a cell were given up: the cell lacks writes until reads repair them"
                );
            }
            resident::Event::Roster(roster) => {
                info!(
                    layout = roster.layout().version().0,
                    "a new roster (members, layout and maps of the domain) applies"
                );
                if let Some(strategies) = &self.strategies {
                    strategies.follow(roster.clone());
                }
            }
            resident::Event::Ended { .. }
            | resident::Event::Scanned { .. }
            | resident::Event::Changed { .. } => {}
        }
        if let Some(front) = &mut self.front {
            front.event(event, now);
        }
    }
}

impl Host<Kind> for MapsHost {
    fn event(&mut self, event: Event, now: Time) {
        match event {
            Event::Cell(event) => self.cell(event, now),
            Event::Router(event) => self.router(event),
            Event::Answered { id, outcome } => {
                if let Some(front) = &mut self.front {
                    front.answered(id, *outcome, now);
                }
            }
            Event::Status { token, status } => self.statuses.answer(token, *status),
            Event::Unserved(command) => {
                error!(?command, "a command was refused, because this process has another role")
            }
        }
    }

    fn answer(&self, process: &Kind, _: DomainId) -> DomainAnswer {
        let presence = match process.router_state() {
            Some(State::Joining) => DomainState::Joining,
            Some(State::Leaderless | State::Removed) => DomainState::Leaderless,
            _ => DomainState::Settled,
        };
        DomainAnswer { presence, pass: process.policy().pass() }
    }

    fn policy_mismatch(&mut self, peer: ProcessId, ours: &[u8], theirs: &[u8]) {
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

    fn door(&mut self) -> Option<&mut dyn Door<Kind>> {
        self.front.as_deref_mut().map(|front| front as &mut dyn Door<Kind>)
    }
}
