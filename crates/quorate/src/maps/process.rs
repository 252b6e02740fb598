//! One cell on real threads.
//!
//! ```text
//!   protocol thread   links, the protocol, and the clients of the front
//!   seeking thread    ── Seeds ──▶ protocol thread      who listens at the routers' addresses
//!                     ── Adjust ─▶                      the wall clock, once a second
//! ```

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpListener},
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
    DomainId, NotAdmitted, Peer, ProcessId, Protocol, Time, detector,
    partial::{self, JoinOptions, Resident, Site, resident},
    relay::{self, Relay},
    role::Role,
};
use quorate_runtime::{
    Config, Door, Host, Port, chance, clock,
    discover::{DomainAnswer, DomainState},
    disk::DiskError,
    door::ClientLimits,
    metrics::Metrics,
};
use tracing::{info, warn};

use super::{
    distances::{Distance, Distances},
    endpoint::{CellEndpoint, Command, Event},
    status::Status,
    strategy::{self, Outcome, Services, Strategies, StrategyThread},
};
use crate::{
    address::{advertised, bind, further_addresses},
    error::Error,
    node::{
        DiskStatus,
        journal::{self, Journal, Owner},
        life::CHECKPOINT_BYTES,
    },
    process::{End, Strangers},
    seek::Search,
    waiters::Calls,
};

/// The clients' side of a cell.
pub trait Front: Door<Relay<CellEndpoint>> + Send {
    /// Tells the front its process. Called once, before all other calls.
    fn attach(&mut self, process: ProcessId);

    /// Takes an event of the cell.
    fn event(&mut self, event: resident::Event, now: Time);

    /// Takes the end of a request that the front gave to [`Strategies`].
    fn answered(&mut self, id: u64, outcome: Outcome, now: Time);
}

/// The settings of a cell.
pub struct Setup {
    /// The domain.
    pub domain: DomainId,
    /// The number of the process's node. No two processes of a domain share it.
    pub number: u64,
    /// The process's name, for people and in metrics.
    pub name: String,
    /// Addresses of routers, `host:port`. They also lead to the groups and tables that keep maps of other
    /// strategies.
    pub routers: Vec<String>,
    /// Address for other processes, `host:port`. With port 0 the system chooses the port.
    pub listen: String,
    /// The address at which other processes reach this process, if it is not `listen`. Port 0 stands for the
    /// port of `listen`.
    pub advertise: Option<String>,
    /// Whether the process may listen at addresses other than loopback.
    pub insecure: bool,
    /// The directory of the cell's journal.
    pub directory: Option<PathBuf>,
    /// Whether the cell keeps its keys on disk in the directory, and continues from there. It must listen at
    /// the same address each time.
    pub durable: bool,
    /// Whether the process's files pass bytes to the system only at a sync, and in pieces. Tests of power
    /// cuts use this: a kill then loses the same bytes as a power cut.
    pub late_files: bool,
    /// The patience with silent peers.
    pub detector: detector::Settings,
    /// The limits of the cell's clients.
    pub clients: ClientLimits,
    /// The cell's site and its places on the ring.
    pub place: JoinOptions,
    /// Distances of other sites from its own. Sites without an entry are near.
    pub distances: BTreeMap<Site, Distance>,
    /// The settings of the cell's protocol.
    pub settings: partial::Settings,
    /// The front of the cell's clients, and the socket at which they connect.
    pub front: Option<(Box<dyn Front>, TcpListener)>,
    /// Maps of other strategies, as the front asks them. A cell without them keeps none.
    pub strategies: Option<Strategies>,
    /// The addresses at which the cell and the other cells host services; `None` if it hosts none.
    pub services: Option<Services>,
}

/// A running cell. Dropping it ends it at once without a goodbye, as if it had been killed.
pub struct Process {
    me: ProcessId,
    port: Port<Relay<CellEndpoint>>,
    address: SocketAddr,
    statuses: Arc<Calls<Status>>,
    /// The maps of other strategies.
    strategy_thread: Option<StrategyThread>,
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
    /// Starts the cell.
    pub fn start(setup: Setup) -> Result<Process, Error> {
        let owner =
            Owner { domain: setup.domain, node: setup.number, role: Role::Cell, late: setup.late_files };
        let directory = match (setup.durable, setup.directory) {
            (false, _) => None,
            (true, Some(directory)) => Some(directory),
            (true, None) => return Err(Error::start("a durable process needs a directory")),
        };
        let mut journal = directory.as_deref().map(|place| Journal::open(place, owner)).transpose()?;
        let (listener, address) = bind(&setup.listen)?;
        let advertised = advertised(setup.advertise.as_deref(), address);
        let checkpoint_bytes = setup.durable.then_some(CHECKPOINT_BYTES as u64);
        let settings = partial::Settings { detector: setup.detector, checkpoint_bytes, ..setup.settings };
        let mut recovered = None;
        if let Some(place) = &directory
            && let Some(opened) = journal.take_if(|journal| journal.goes_on())
        {
            let anew = || Journal::begin_anew(place, owner);
            let (opened, resident) = opened.cell(&advertised, settings, anew)?;
            recovered = resident;
            journal = Some(opened);
        }
        let fresh = ProcessId { node: setup.number, incarnation: chance::incarnation() };
        let me = journal.as_ref().map_or(fresh, Journal::process);
        let peer = Peer { id: me, address: advertised.clone() };
        let metrics = Metrics::new([("process", setup.name), ("role", Role::Cell.to_string())]);

        let mut config = Config::new(setup.domain, me, Vec::new());
        config.listening = vec![listener];
        config.advertise = Some(advertised);
        config.insecure = setup.insecure;
        config.metrics = metrics.clone();
        let (statuses, (end, ended)) = (Arc::<Calls<Status>>::default(), bounded(1));
        let mut host = CellHost {
            statuses: statuses.clone(),
            front: None,
            strategies: setup.strategies.clone(),
            strangers: Strangers::default(),
            end: end.clone(),
            out: Arc::default(),
        };
        let out = host.out.clone();
        let new = || Resident::new(peer, setup.place, settings, clock::wall_offset(), clock::now());
        let resident = recovered.unwrap_or_else(new);
        let cell = CellEndpoint::new(resident, Distances::new(setup.distances));
        let cell = Relay::new(cell, relay::Settings::default());
        let disk = journal.map(|journal| (journal.disk, journal.first));
        let port = match (setup.front, disk) {
            (None, None) => Port::alone(EndpointId::TABLES, cell, host, config)?,
            (None, Some(disk)) => Port::alone_on_disk(EndpointId::TABLES, cell, host, config, disk)?,
            (Some((mut front, listener)), disk) => {
                front.attach(me);
                host.front = Some(front);
                let door = (listener, setup.clients);
                Port::alone_with_door(EndpointId::TABLES, cell, host, config, door, disk)?
            }
        };
        let strategy_thread = setup.strategies.map(|strategies| {
            let port = port.clone();
            let told = move |id, outcome| {
                // The command is refused only if the process ends, and then it has no clients.
                let _ = port.command(Command::Answered { id, outcome: Box::new(outcome) });
            };
            let settings = strategy::Settings {
                domain: setup.domain,
                me,
                routers: setup.routers.clone(),
                addresses: further_addresses(setup.advertise.as_deref(), address),
                services: setup.services,
                insecure: setup.insecure,
            };
            strategies.start(settings, told)
        });
        let strategy_thread = strategy_thread.transpose()?;
        let (kick, kicks) = bounded(0);
        let seeks = Mutex::new(Some(kick));
        let journal = directory.map(|place| (place, owner));
        let process = Process {
            me,
            port: port.clone(),
            address,
            statuses,
            strategy_thread,
            metrics,
            ended,
            seeks,
            out,
            journal,
        };
        let told = port.clone();
        Search::quiet(setup.domain, me, setup.routers).every(ADJUST_EVERY).go_on(kicks, move |found| {
            // Commands that are refused are repeated soon.
            if !found.is_empty() {
                let _ = told.try_command(Command::Seeds(found));
            }
            let adjust = resident::Command::Adjust(clock::wall_offset());
            let _ = told.try_command(Command::Cell(adjust));
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

    /// Prepares the others for a stop: the cell leaves the groups that keep its maps. Its other requests go
    /// to other cells as soon as it is gone.
    pub fn pause(&self) {
        self.strategy_thread.iter().for_each(StrategyThread::leave);
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

/// Interval at which a cell gets the wall clock.
const ADJUST_EVERY: Duration = Duration::from_secs(1);

/// The host of a cell's protocol.
struct CellHost {
    statuses: Arc<Calls<Status>>,
    front: Option<Box<dyn Front>>,
    strategies: Option<Strategies>,
    strangers: Strangers,
    end: Sender<End>,
    /// Whether the others go on without this process.
    out: Arc<AtomicBool>,
}

impl CellHost {
    fn end(&self, end: End) {
        if end == End::Wedged {
            self.out.store(true, Ordering::Release);
        }
        // The first reason counts.
        let _ = self.end.try_send(end);
    }

    fn cell(&mut self, event: resident::Event, now: Time) {
        match &event {
            resident::Event::Wedged => self.end(End::Wedged),
            // A process whose node is in use waits until the other one is gone.
            resident::Event::NotAdmitted(NotAdmitted::NodeInUse(_)) => {}
            resident::Event::NotAdmitted(why) => self.end(End::NotAdmitted(why.to_string())),
            resident::Event::Lacks(cell) => {
                warn!(
                    cell = cell.0,
                    "hints for a cell were given up: the cell lacks writes until reads repair them"
                );
            }
            resident::Event::Roster(roster) => {
                info!(
                    layout = roster.layout().version().0,
                    "a new roster (cells, layout and maps of the domain) applies"
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

impl Host<Relay<CellEndpoint>> for CellHost {
    fn event(&mut self, event: Event, now: Time) {
        match event {
            Event::Cell(event) => self.cell(event, now),
            Event::Answered { id, outcome } => {
                if let Some(front) = &mut self.front {
                    front.answered(id, *outcome, now);
                }
            }
            Event::Status { token, status } => self.statuses.answer(token, *status),
        }
    }

    fn answer(&self, cell: &Relay<CellEndpoint>, _: DomainId) -> DomainAnswer {
        let presence = match cell.inner().resident.roster() {
            None => DomainState::Joining,
            Some(_) => DomainState::Settled,
        };
        DomainAnswer { presence, pass: cell.policy().pass() }
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

    fn door(&mut self) -> Option<&mut dyn Door<Relay<CellEndpoint>>> {
        self.front.as_deref_mut().map(|front| front as &mut dyn Door<Relay<CellEndpoint>>)
    }
}
