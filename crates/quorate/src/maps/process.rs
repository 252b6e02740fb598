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
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::Receiver;
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
    end::{End, EndReporter},
    error::Error,
    node::{
        DiskStatus,
        journal::{self, Journal, Owner},
        life::CHECKPOINT_BYTES,
    },
    process::Strangers,
    seek::Search,
    shell::{Shell, seeds_to},
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
    /// The process's name, for display and for metrics.
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
    shell: Shell<Relay<CellEndpoint>>,
    shared: Arc<CellShared>,
    address: SocketAddr,
    /// The maps of other strategies.
    strategy_thread: Option<StrategyThread>,
    metrics: Metrics,
    ended: Receiver<End>,
    /// The directory of the process's journal, and the journal's owner.
    journal: Option<(PathBuf, Owner)>,
}

/// The state that the threads of a cell share.
#[derive(Default)]
struct CellShared {
    port: OnceLock<Port<Relay<CellEndpoint>>>,
    statuses: Calls<Status>,
    /// Whether the other processes go on without this process.
    is_out: AtomicBool,
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
            let begin_new = || Journal::begin_anew(place, owner);
            let (opened, resident) = opened.cell(&advertised, settings, begin_new)?;
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
        let (end, ended) = EndReporter::new();
        let shared = Arc::<CellShared>::default();
        let (mut front, door) = setup.front.unzip();
        front.iter_mut().for_each(|front| front.attach(me));
        let host = CellHost {
            shared: shared.clone(),
            front,
            strategies: setup.strategies.clone(),
            strangers: Strangers::default(),
            end: end.clone(),
        };
        let new = || Resident::new(peer, setup.place, settings, clock::wall_offset(), clock::now());
        let resident = recovered.unwrap_or_else(new);
        let cell = CellEndpoint::new(resident, Distances::new(setup.distances));
        let cell = Relay::new(cell, relay::Settings::default());
        let disk = journal.map(|journal| (journal.disk, journal.first));
        let door = door.map(|listener| (listener, setup.clients));
        let shell = Shell::start(cell, host, config, disk, door, &shared.port)?;
        let journal = directory.map(|place| (place, owner));
        let mut process =
            Process { me, shell, shared, address, strategy_thread: None, metrics, ended, journal };
        let port = process.shared.port().clone();
        if let Some(strategies) = setup.strategies {
            let port = port.clone();
            let report_outcome = move |id, outcome| {
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
            process.strategy_thread = Some(strategies.start(settings, report_outcome)?);
        }
        let mut seeds = seeds_to(port.clone(), |seeds| Command::Resident(resident::Command::Seeds(seeds)));
        let search = Search::quiet(setup.domain, me, setup.routers).every(ADJUST_EVERY);
        process.shell.seek(search, move |found| {
            seeds(found);
            let adjust = partial::Command::Adjust(clock::wall_offset());
            // The command is repeated soon, so a lost one does no harm.
            let _ = port.try_command(Command::Resident(adjust.into()));
        })?;
        process.shell.watch(end)?;
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
        Some(DiskStatus::of(self.shared.port().node().counters(), &place))
    }

    /// Yields one message when the process cannot continue: the reason.
    pub fn ended(&self) -> &Receiver<End> {
        &self.ended
    }

    /// Returns the status, or `None` if the protocol thread does not answer within `patience`.
    pub fn status(&self, patience: Duration) -> Option<Status> {
        let ask = |token| self.shared.port().try_command(Command::Status { token }).is_ok();
        let mut status = self.shared.statuses.call(patience, ask).ok()?;
        if let Some(strategy_thread) = &self.strategy_thread {
            status.kept = strategy_thread.statuses();
        }
        Some(status)
    }

    /// Prepares the other processes for a stop: the cell leaves the groups that keep its maps. Its other
    /// requests go to other cells as soon as it is gone.
    pub fn pause(&self) {
        self.strategy_thread.iter().for_each(StrategyThread::leave);
    }

    /// Stops the threads. If the other processes go on without this process, its directory is reset, and the
    /// next process in the directory is a new one.
    pub fn stop(&self) {
        self.shell.stop();
        self.shared.statuses.close();
        if let Some((place, owner)) = &self.journal
            && self.shared.is_out.swap(false, Ordering::AcqRel)
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

impl CellShared {
    fn port(&self) -> &Port<Relay<CellEndpoint>> {
        self.port.get().expect("the port is set when the process starts")
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
    shared: Arc<CellShared>,
    front: Option<Box<dyn Front>>,
    strategies: Option<Strategies>,
    strangers: Strangers,
    end: EndReporter,
}

impl CellHost {
    fn end(&self, end: End) {
        if end == End::Wedged {
            self.shared.is_out.store(true, Ordering::Release);
        }
        self.end.report(end);
    }

    fn resident(&mut self, event: resident::Event, now: Time) {
        match &event {
            resident::Event::Wedged => self.end(End::Wedged),
            // If another process has the same node number, this process waits until that process is gone.
            resident::Event::NotAdmitted(NotAdmitted::NodeInUse(_)) => {}
            resident::Event::NotAdmitted(why) => self.end(End::NotAdmitted(why.to_string())),
            resident::Event::Cell(partial::Event::Lacks(cell)) => {
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
            resident::Event::Cell(_) | resident::Event::Changed { .. } => {}
        }
        if let Some(front) = &mut self.front {
            front.event(event, now);
        }
    }
}

impl Host<Relay<CellEndpoint>> for CellHost {
    fn event(&mut self, event: Event, now: Time) {
        match event {
            Event::Resident(event) => self.resident(event, now),
            Event::Answered { id, outcome } => {
                if let Some(front) = &mut self.front {
                    front.answered(id, *outcome, now);
                }
            }
            Event::Status { token, status } => self.shared.statuses.answer(token, *status),
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
        self.end.disk_failed(error);
    }

    fn door(&mut self) -> Option<&mut dyn Door<Relay<CellEndpoint>>> {
        self.front.as_deref_mut().map(|front| front as &mut dyn Door<Relay<CellEndpoint>>)
    }
}
