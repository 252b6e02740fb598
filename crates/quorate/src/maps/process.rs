//! One process of a domain of maps on real threads.
//!
//! ```text
//!   protocol thread   links, the protocol, and the clients of the front
//!   discovery thread  ── Seeds ──▶ protocol thread      until the routers are known, and again while they are lost
//!                     ── Adjust ─▶                      the wall clock, once a second
//! ```

use std::{
    collections::BTreeMap,
    fmt, io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, bounded};
use quorate_node::EndpointId;
use quorate_protocol::{
    DomainId, Generation, Peer, Policy as _, ProcessId, Protocol, Time, detector,
    ecast::{Fence, Router, RouterEvent, RouterSettings},
    partial::{self, Place, Resident, Roster, resident},
    paxos::{self, Paxos},
};
use quorate_runtime::{
    Config, Door, Host, Port,
    calls::Calls,
    chance, clock,
    discover::{Answer, Presence, discover},
    door::ClientLimits,
    metrics::Metrics,
};
use tracing::{debug, info, warn};

use super::{
    role::{Command, Event, Role},
    status::{RouterState, Status},
};
use crate::{
    error::Error,
    node::founding::{self, Beginning},
};

/// The clients' side of a cell.
pub trait Front: Door<Role> + Send {
    /// The cell's word.
    fn event(&mut self, event: resident::Event, now: Time);
}

/// The work of a process.
#[allow(clippy::large_enum_variant, reason = "there is one per process")]
pub enum Task {
    /// It orders changes.
    Router {
        /// Whether it founds the domain if there is none. One router of a domain does, once.
        found: bool,
        /// How many routers the domain keeps.
        wanted: usize,
    },
    /// It keeps keys.
    Cell {
        /// Its site and its places on the ring.
        place: Place,
        /// How it behaves.
        settings: partial::Settings,
        /// Its clients, and where they connect.
        front: Option<(Box<dyn Front>, TcpListener)>,
    },
}

/// How a process is set up.
pub struct Setup {
    /// The domain.
    pub domain: DomainId,
    /// The number of its node: no two processes of a domain share it.
    pub number: u64,
    /// Its name, for people and in metrics.
    pub name: String,
    /// Where routers may be found, `host:port`.
    pub routers: Vec<String>,
    /// Where it listens for other processes, `host:port`; port 0 lets the system choose.
    pub listen: String,
    /// Where the others reach it, if not there; port 0 stands for that of `listen`.
    pub advertise: Option<String>,
    /// Lets it listen at addresses other than loopback.
    pub insecure: bool,
    /// Where a founder leaves its mark.
    pub directory: Option<PathBuf>,
    /// The patience with silent peers.
    pub detector: detector::Settings,
    /// The limits of a cell's clients.
    pub clients: ClientLimits,
    /// Its work.
    pub task: Task,
}

/// Why a process can not go on. It should end, and may be started anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The domain goes on without it: it was dismissed, refused, or taken out of the routers.
    Out,
    /// The domain went on as a later generation, without this router.
    Outdated(Generation),
    /// It broke an invariant, or was handed a state that does not decode.
    Broken(String),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Out => f.write_str("the domain goes on without this process"),
            End::Outdated(generation) => {
                write!(f, "the domain went on as generation {generation} without this router")
            }
            End::Broken(why) => write!(f, "broken: {why}"),
        }
    }
}

/// A running process. Dropped, it ends at once and says goodbye to nobody, as if it had been killed.
pub struct Process {
    me: ProcessId,
    port: Port<Role>,
    address: SocketAddr,
    shared: Arc<Shared>,
    metrics: Metrics,
    ended: Receiver<End>,
}

#[derive(Default)]
struct Shared {
    statuses: Calls<Status>,
    stopping: AtomicBool,
}

impl Process {
    /// Starts it. A router that founds asks the others first, as [`Node`](crate::Node) does.
    pub fn start(setup: Setup) -> Result<Process, Error> {
        let found = matches!(setup.task, Task::Router { found: true, .. });
        let beginning = match setup.task {
            Task::Router { .. } => {
                Some(founding::begin(setup.domain, &setup.routers, found, setup.directory.as_deref())?)
            }
            Task::Cell { .. } => None,
        };
        let failed = |error: io::Error| Error::start(format!("cannot listen on {}: {error}", setup.listen));
        let place = setup.listen.to_socket_addrs().map_err(failed)?.next();
        let place = place.ok_or_else(|| Error::start(format!("{}: no address", setup.listen)))?;
        let listener = TcpListener::bind(place).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let advertised = crate::node::advertised(setup.advertise.as_deref(), address);
        let me = ProcessId { node: setup.number, incarnation: chance::incarnation() };
        let peer = Peer { id: me, address: advertised.clone() };
        let role_name = if beginning.is_some() { "router" } else { "cell" };
        let metrics = Metrics::new([("process", setup.name.clone()), ("role", role_name.to_owned())]);

        let mut config = Config::new(setup.domain, me, Vec::new());
        config.listening = vec![Arc::new(listener)];
        config.advertise = Some(advertised);
        config.insecure = setup.insecure;
        config.metrics = metrics.clone();
        let (shared, (end, ended)) = (Arc::<Shared>::default(), bounded(1));
        let mut host =
            Desk { shared: shared.clone(), front: None, strangers: BTreeMap::new(), end: end.clone() };
        let port = match setup.task {
            Task::Router { wanted, .. } => {
                let beginning = beginning.expect("routers have been asked");
                let router = router(peer, beginning, wanted, setup.detector);
                Port::alone(EndpointId::MAPS, Role::Router(Box::new(router)), host, config)?
            }
            Task::Cell { place, settings, front } => {
                let settings = partial::Settings { detector: setup.detector, ..settings };
                let resident = Resident::new(peer, place, settings, clock::wall_offset(), clock::now());
                let role = Role::Cell(Box::new(resident));
                match front {
                    None => Port::alone(EndpointId::MAPS, role, host, config)?,
                    Some((front, listener)) => {
                        host.front = Some(front);
                        let door = (listener, setup.clients);
                        Port::alone_with_door(EndpointId::MAPS, role, host, config, door)?
                    }
                }
            }
        };
        let process = Process { me, port: port.clone(), address, shared: shared.clone(), metrics, ended };
        let (routers, domain, is_cell) = (setup.routers, setup.domain, role_name == "cell");
        thread::Builder::new().name(String::from("discovery")).spawn({
            let port = port.clone();
            move || attend(&shared, &port, &routers, domain, me, is_cell)
        })?;
        let watched = port.node().clone();
        thread::Builder::new().name(String::from("watch")).spawn(move || {
            if watched.wait().is_err() {
                let _ = end.try_send(End::Broken(String::from("the protocol thread panicked")));
            }
        })?;
        Ok(process)
    }

    /// This process.
    pub fn id(&self) -> ProcessId {
        self.me
    }

    /// Where it listens for other processes.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Yields one message when it can not go on, which says why.
    pub fn ended(&self) -> &Receiver<End> {
        &self.ended
    }

    /// Where it stands; `None` when the protocol thread does not answer within `patience`.
    pub fn status(&self, patience: Duration) -> Option<Status> {
        let ask = |token| self.port.try_command(Command::Status { token }).is_ok();
        self.shared.statuses.call(patience, ask).ok()
    }

    /// Stops the threads.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        // A panic has been told by [`Process::ended`].
        let _ = self.port.node().stop();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

fn router(
    peer: Peer,
    beginning: Beginning,
    wanted: usize,
    detector: detector::Settings,
) -> Router<partial::Maps> {
    let log = paxos::Settings { detector, wanted, ..paxos::Settings::default() };
    let (paxos, generation) = match beginning {
        Beginning::Found => (Paxos::found(peer, log.clone(), clock::now()), Generation::FIRST),
        Beginning::Join(generation) => (Paxos::join(peer, Vec::new(), log.clone(), clock::now()), generation),
    };
    let settings = RouterSettings { paxos: log, generation, ..RouterSettings::default() };
    Router::new(paxos, Roster::default(), settings)
}

/// Looks for routers until the process knows them, and again while it has lost them; tells a cell the wall clock.
fn attend(
    shared: &Shared,
    port: &Port<Role>,
    addresses: &[String],
    domain: DomainId,
    me: ProcessId,
    is_cell: bool,
) {
    let mut pause = SEEK_PAUSE;
    while !shared.stopping.load(Ordering::Acquire) {
        let mut seeds = Vec::new();
        for address in addresses {
            match discover(address, domain, DISCOVERY_PATIENCE) {
                Ok(met) if met.process != me => {
                    seeds.push(Peer { id: met.process, address: address.clone() })
                }
                Ok(_) => {}
                Err(error) => debug!(%address, %error, "no router found"),
            }
        }
        // One that is not taken is sent again soon.
        if !seeds.is_empty() {
            let _ = port.try_command(Command::Seeds(seeds));
        }
        if is_cell {
            let adjust = resident::Command::Adjust(clock::wall_offset());
            let _ = port.try_command(Command::Cell(adjust));
        }
        thread::sleep(pause);
        // Eager at first, when everything starts at once.
        pause = (pause * 2).min(SEEK_PAUSE_MAX);
    }
}

const DISCOVERY_PATIENCE: Duration = Duration::from_millis(500);
const SEEK_PAUSE: Duration = Duration::from_millis(20);
const SEEK_PAUSE_MAX: Duration = Duration::from_secs(1);

/// The host of a process's protocol.
struct Desk {
    shared: Arc<Shared>,
    front: Option<Box<dyn Front>>,
    /// Processes that may not be linked with this one, and what they showed last.
    strangers: BTreeMap<ProcessId, Vec<u8>>,
    end: Sender<End>,
}

/// So many strangers are remembered, so that each is logged once.
const STRANGERS_MAX: usize = 64;

impl Desk {
    fn end(&self, end: End) {
        // The first reason is the one that counts.
        let _ = self.end.try_send(end);
    }

    fn router(&self, event: RouterEvent<Roster>) {
        match event {
            RouterEvent::Leader(leader) => info!(?leader, "lead router"),
            RouterEvent::Routers(routers) => {
                let routers: Vec<String> = routers.iter().map(|router| router.id.to_string()).collect();
                info!(?routers, "routers");
            }
            RouterEvent::Config(at, roster) => info!(%at, layout = roster.layout().version().0, "roster"),
            RouterEvent::Removed => self.end(End::Out),
            RouterEvent::Corrupt(why) => self.end(End::Broken(format!("a router's snapshot: {why}"))),
            RouterEvent::Reformed(_) | RouterEvent::Ended { .. } => {
                unreachable!("no operator's command reaches a router of maps")
            }
        }
    }

    fn cell(&mut self, event: resident::Event, now: Time) {
        match &event {
            resident::Event::Wedged => self.end(End::Out),
            resident::Event::Lacks(cell) => {
                warn!(cell = cell.0, "hints for it were given up: it lacks writes until reads repair them");
            }
            resident::Event::Roster(roster) => {
                info!(layout = roster.layout().version().0, "roster");
            }
            resident::Event::Ended { .. } | resident::Event::Changed { .. } => {}
        }
        if let Some(front) = &mut self.front {
            front.event(event, now);
        }
    }
}

impl Host<Role> for Desk {
    fn event(&mut self, event: Event, now: Time) {
        match event {
            Event::Cell(event) => self.cell(event, now),
            Event::Router(event) => self.router(event),
            Event::Status { token, status } => self.shared.statuses.answer(token, *status),
        }
    }

    fn answer(&self, role: &Role, _: DomainId) -> Answer {
        let presence = match role.router_state() {
            Some(RouterState::Joining) => Presence::Joining,
            Some(RouterState::Leaderless | RouterState::Removed) => Presence::Leaderless,
            Some(RouterState::Following | RouterState::Leading) | None => Presence::Settled,
        };
        Answer { presence, pass: role.policy().pass() }
    }

    fn stranger(&mut self, peer: ProcessId, ours: &[u8], theirs: &[u8]) {
        let Some(ours) = Fence::of_pass(ours) else { return };
        if self.strangers.len() >= STRANGERS_MAX {
            self.strangers.clear();
        }
        // It is met again and again.
        if self.strangers.insert(peer, theirs.to_vec()).is_none_or(|before| before != theirs) {
            warn!(%peer, "no session: {}", ours.refusal(theirs));
        }
        if let Some(theirs) = Fence::of_pass(theirs)
            && ours.is_out(theirs)
        {
            self.end(End::Outdated(theirs.generation));
        }
    }

    fn door(&mut self) -> Option<&mut dyn Door<Role>> {
        self.front.as_deref_mut().map(|front| front as &mut dyn Door<Role>)
    }
}
