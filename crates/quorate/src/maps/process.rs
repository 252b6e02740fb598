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
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, bounded};
use quorate_node::EndpointId;
use quorate_protocol::{
    DomainId, Generation, Peer, ProcessId, Protocol, Time, detector,
    ecast::{Router, RouterEvent, RouterSettings},
    partial::{self, Place, Resident, Roster, Site, resident},
    paxos::{self, Paxos},
    role::{Role, State},
};
use quorate_runtime::{
    Config, Door, Host, Port,
    calls::Calls,
    chance, clock,
    discover::{Answer, Presence},
    door::ClientLimits,
    metrics::Metrics,
};
use tracing::{error, info, warn};

use super::{
    distances::{Distance, Distances},
    kind::{Command, Event, Kind},
    status::Status,
};
use crate::{
    error::Error,
    node::founding::{self, Beginning},
    process::{End, Strangers},
    seek::Search,
};

/// The clients' side of a cell.
pub trait Front: Door<Kind> + Send {
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
        /// How far other sites are from its own. Those that are not named are near.
        distances: BTreeMap<Site, Distance>,
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

/// A running process. Dropped, it ends at once and says goodbye to nobody, as if it had been killed.
pub struct Process {
    me: ProcessId,
    port: Port<Kind>,
    address: SocketAddr,
    statuses: Arc<Calls<Status>>,
    metrics: Metrics,
    ended: Receiver<End>,
    /// The search for routers ends when this is dropped.
    seeks: Mutex<Option<Sender<()>>>,
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
        let role = if beginning.is_some() { Role::Router } else { Role::Cell };
        let metrics = Metrics::new([("process", setup.name.clone()), ("role", role.to_string())]);

        let mut config = Config::new(setup.domain, me, Vec::new());
        config.listening = vec![Arc::new(listener)];
        config.advertise = Some(advertised);
        config.insecure = setup.insecure;
        config.metrics = metrics.clone();
        let (statuses, (end, ended)) = (Arc::<Calls<Status>>::default(), bounded(1));
        let mut host = Desk {
            statuses: statuses.clone(),
            front: None,
            strangers: Strangers::default(),
            end: end.clone(),
        };
        let port = match setup.task {
            Task::Router { wanted, .. } => {
                let beginning = beginning.expect("routers have been asked");
                let router = router(peer, beginning, wanted, setup.detector);
                Port::alone(EndpointId::MAPS, Kind::Router(Box::new(router)), host, config)?
            }
            Task::Cell { place, distances, settings, front } => {
                let settings = partial::Settings { detector: setup.detector, ..settings };
                let resident = Resident::new(peer, place, settings, clock::wall_offset(), clock::now());
                let cell = Kind::Cell(Box::new(resident), Distances::new(distances));
                match front {
                    None => Port::alone(EndpointId::MAPS, cell, host, config)?,
                    Some((front, listener)) => {
                        host.front = Some(front);
                        let door = (listener, setup.clients);
                        Port::alone_with_door(EndpointId::MAPS, cell, host, config, door)?
                    }
                }
            }
        };
        let (kick, kicks) = bounded(0);
        let seeks = Mutex::new(Some(kick));
        let process = Process { me, port: port.clone(), address, statuses, metrics, ended, seeks };
        let (routers, domain, is_cell) = (setup.routers, setup.domain, role == Role::Cell);
        let told = port.clone();
        Search::quiet(domain, me, routers).every(ADJUST_EVERY).go_on(kicks, move |found| {
            // What is not taken is sent again soon.
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
        self.statuses.call(patience, ask).ok()
    }

    /// Stops the threads.
    pub fn stop(&self) {
        drop(self.seeks.lock().unwrap_or_else(PoisonError::into_inner).take());
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

/// How often a cell is told the wall clock.
const ADJUST_EVERY: Duration = Duration::from_secs(1);

/// The host of a process's protocol.
struct Desk {
    statuses: Arc<Calls<Status>>,
    front: Option<Box<dyn Front>>,
    strangers: Strangers,
    end: Sender<End>,
}

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
            RouterEvent::Removed => self.end(End::Wedged),
            RouterEvent::Corrupt(why) => self.end(End::Broken(format!("a router's snapshot: {why}"))),
            RouterEvent::Reformed(_) | RouterEvent::Ended { .. } => {
                unreachable!("no operator's command reaches a router of maps")
            }
        }
    }

    fn cell(&mut self, event: resident::Event, now: Time) {
        match &event {
            resident::Event::Wedged => self.end(End::Wedged),
            resident::Event::Lacks(cell) => {
                warn!(cell = cell.0, "hints for it were given up: it lacks writes until reads repair them");
            }
            resident::Event::Roster(roster) => {
                info!(layout = roster.layout().version().0, "roster");
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

impl Host<Kind> for Desk {
    fn event(&mut self, event: Event, now: Time) {
        match event {
            Event::Cell(event) => self.cell(event, now),
            Event::Router(event) => self.router(event),
            Event::Status { token, status } => self.statuses.answer(token, *status),
            Event::Unserved(command) => {
                error!(?command, "this process is of the other kind, and does not do that")
            }
        }
    }

    fn answer(&self, process: &Kind, _: DomainId) -> Answer {
        let presence = match process.router_state() {
            Some(State::Joining) => Presence::Joining,
            Some(State::Leaderless | State::Removed) => Presence::Leaderless,
            _ => Presence::Settled,
        };
        Answer { presence, pass: process.policy().pass() }
    }

    fn stranger(&mut self, peer: ProcessId, ours: &[u8], theirs: &[u8]) {
        if let Some(generation) = self.strangers.meet(peer, ours, theirs) {
            self.end(End::Outdated(generation));
        }
    }

    fn door(&mut self) -> Option<&mut dyn Door<Kind>> {
        self.front.as_deref_mut().map(|front| front as &mut dyn Door<Kind>)
    }
}
