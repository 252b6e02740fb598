//! Maps of other strategies than partial quorums.
//!
//! **Promise.** A map has a strategy from its creation on. This module does not keep maps of partial quorums.
//! Each other map is kept by a service, a group or a table, and has that keeper's promises. Each request ends
//! in one [`KeyspaceAnswer`](keyspace::KeyspaceAnswer), or in one [`RequestError`], which says what may have
//! happened.
//!
//! | strategy | kept by | reads | writes |
//! |---|---|---|---|
//! | `service` | a replicated service, hosted by the cells | linearizable | linearizable, once |
//! | `group` | a process group of the cells | of the cell's own copy | in one order at all cells |
//! | `ordered` | a table of the cells' own cluster | linearizable, at one position | linearizable, once |
//!
//! **Source.** 003 §VI, Isis2, 002 §6: other modules implement the strategies, and this module uses them to
//! keep maps.
//!
//! **Shape.** The effect of a command is defined by one pure state machine, [`keyspace`]. The service and the
//! group replicate it, each in its way; the table has statements instead.
//!
//! ```text
//!   protocol thread                          this thread
//!   front ── request ──────────────────────▶ service · group · table ═══ processes of their own
//!         ◀── Command::Answered ── port ────
//!   order ── roster: which maps there are ─▶ begin, end
//! ```
//!
//! **Invariants.**
//! - *The roster says which maps exist*, and which cell founds a service. All cells have the roster by the
//!   order of the domain. A cell that comes back begins all maps again.
//! - *A later map may have the name of a dropped map.* So services and groups use the map's number, which is
//!   never reused.
//! - *The protocol thread does not wait here*: it passes requests on, and gets their outcomes as commands.
//!
//! **Attacks considered.**
//! - *Clients send more than is answered.* Requests in progress are bounded in bytes and in number. Above
//!   these bounds, requests are refused at once. The values that reads in progress may return are bounded,
//!   too: further reads wait for earlier reads.
//! - *A map is dropped with requests in progress.* These requests end normally; later requests are refused.
//! - *This process lacks a setting that a strategy needs.* A request for such a map gets an error that names
//!   the setting.

mod group;
pub mod keyspace;
mod ordered;
mod outcome;
mod service;

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::Poll,
    thread::{self, JoinHandle},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use quorate_protocol::{
    DomainId, ProcessId,
    partial::{MapId, Roster, Strategy},
};
use serde::Serialize;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::info;

use self::{
    group::GroupMap,
    keyspace::{ANSWER_BYTES_MAX, Request, SCAN_BYTES, VALUE_BYTES_MAX},
    ordered::OrderedMap,
    service::ServiceMap,
};
use crate::{error::Error, node::Node, service::Begin, wait::Wait};

pub use outcome::{Outcome, RequestError};

/// The settings with which a cell keeps maps whose strategy is not partial quorums.
pub(super) struct Settings {
    /// The cell's domain.
    pub(super) domain: DomainId,
    /// The cell.
    pub(super) me: ProcessId,
    /// Addresses of the domain's routers, `host:port`.
    pub(super) routers: Vec<String>,
    /// The address at which members of groups and clients of tables listen, and the address that other
    /// processes use, if it differs.
    pub(super) addresses: (String, Option<String>),
    /// The addresses at which the cell and the other cells host services; `None` if the cell hosts none.
    pub(super) services: Option<Services>,
    /// Whether the processes of the maps may listen at addresses other than loopback.
    pub(super) insecure: bool,
}

/// The addresses at which cells host services.
#[derive(Clone, Debug)]
pub struct Services {
    /// The address at which this cell listens, `host:port`.
    pub listen: String,
    /// The address at which other cells reach this cell's services, if it is not `listen`.
    pub advertise: Option<String>,
    /// The addresses of the other cells.
    pub seeds: Vec<String>,
    /// The directory for the logs of the cell's replicas; `None` keeps logs in memory.
    pub directory: Option<PathBuf>,
}

/// The access to a cell's maps whose strategy is not partial quorums. Clones share it.
#[derive(Clone)]
pub struct Strategies(Arc<StrategiesShared>);

struct StrategiesShared {
    orders: UnboundedSender<StrategyCommand>,
    /// Number of the requests in progress.
    running: AtomicUsize,
    /// Bytes of the requests in progress.
    bytes: AtomicUsize,
    /// The receiver of commands, until the executing thread takes it.
    taken: Mutex<Option<UnboundedReceiver<StrategyCommand>>>,
}

enum StrategyCommand {
    Ask {
        id: u64,
        map: MapId,
        request: Request,
    },
    Roster(Arc<Roster>),
    /// Leaves the groups, and then ends the thread.
    Leave,
    End,
}

impl Default for Strategies {
    fn default() -> Self {
        let (orders, taken) = unbounded_channel();
        let (running, bytes, taken) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Some(taken)));
        Strategies(Arc::new(StrategiesShared { orders, running, bytes, taken }))
    }
}

impl Strategies {
    /// Sends a request to a map. The [front](super::Front) gets the outcome with this id, unless this call
    /// refuses the request.
    pub fn ask(&self, id: u64, map: MapId, request: Request) -> Result<(), RequestError> {
        let StrategiesShared { running, bytes, .. } = &*self.0;
        let more = request.bytes();
        if running.load(Relaxed) >= RUNNING_MAX || bytes.load(Relaxed) + more > BYTES_MAX {
            return Err(RequestError::NotDone(String::from("too many requests are under way at this cell")));
        }
        running.fetch_add(1, Relaxed);
        bytes.fetch_add(more, Relaxed);
        self.order(StrategyCommand::Ask { id, map, request });
        Ok(())
    }

    /// Subtracts a request of `bytes` bytes from the counts.
    fn over(&self, bytes: usize) {
        self.0.running.fetch_sub(1, Relaxed);
        self.0.bytes.fetch_sub(bytes, Relaxed);
    }

    /// Passes the present maps to the executing thread.
    pub(super) fn follow(&self, roster: Arc<Roster>) {
        self.order(StrategyCommand::Roster(roster));
    }

    fn order(&self, order: StrategyCommand) {
        // The executing thread ends with the process, and then there are no clients.
        let _ = self.0.orders.send(order);
    }

    /// Starts the thread that executes requests. `report` takes the outcomes.
    pub(super) fn start(
        &self,
        settings: Settings,
        report: impl Fn(u64, Outcome) + Send + 'static,
    ) -> Result<StrategyThread, Error> {
        let taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner).take();
        let orders =
            taken.ok_or_else(|| Error::start("the strategies of a process can be started only once"))?;
        let Settings { domain, me, routers, addresses: (listen, advertise), services, insecure } = settings;
        let services = services.map(|services| {
            let mut builder = Node::builder()
                .services(format!("maps of {domain}"))
                .listen(services.listen)
                .seeds(services.seeds)
                .call_wait(CALL_WAIT)
                .insecure(insecure);
            if let Some(advertise) = services.advertise {
                builder = builder.advertise(advertise);
            }
            if let Some(directory) = services.directory {
                builder = builder.directory(directory).number(me.node).durable();
            }
            builder.start().wait()
        });
        let services = services.transpose()?;
        let mut tables = Node::builder().routers(routers).domain(domain).listen(listen).insecure(insecure);
        if let Some(advertise) = advertise {
            tables = tables.advertise(advertise);
        }
        let tables = tables.start().wait()?;
        let maps = KeptMaps::default();
        let running = FuturesUnordered::new();
        let strategies = self.clone();
        let (reading, waiting) = (0, VecDeque::new());
        let executor =
            Executor { me, services, tables, maps: maps.clone(), running, reading, waiting, strategies };
        let run = move || executor.run(orders, report).wait();
        let thread = thread::Builder::new().name(String::from("strategies")).spawn(run)?;
        Ok(StrategyThread { strategies: self.clone(), maps, thread: Mutex::new(Some(thread)) })
    }
}

/// The state, in this cell, of a map whose strategy is not partial quorums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StrategyMapStatus {
    /// The map's name.
    pub name: String,
    /// The map's strategy.
    pub strategy: &'static str,
    /// Whether this cell takes part in the map: it is in the group, or among the replicas, or reaches the
    /// table.
    pub takes_part: bool,
    /// Number of processes that keep the map, as far as this cell knows: members of the group, or replicas.
    /// `None` for a map in a table, because only the table's cluster knows the number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<usize>,
    /// The setting that the cell lacks, and without which it will never take part in the map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
}

/// The maps that this cell keeps, with their names.
type KeptMaps = Arc<Mutex<BTreeMap<MapId, (String, MapKeeper)>>>;

fn lock(maps: &KeptMaps) -> MutexGuard<'_, BTreeMap<MapId, (String, MapKeeper)>> {
    // The state under this lock is valid at every step, so a panic elsewhere does no harm.
    maps.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that executes requests. Dropping it ends the thread at once.
pub(super) struct StrategyThread {
    strategies: Strategies,
    maps: KeptMaps,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl StrategyThread {
    /// Returns the state of each map in this cell.
    pub(super) fn statuses(&self) -> Vec<StrategyMapStatus> {
        lock(&self.maps).values().map(|(name, kept)| kept.status(name)).collect()
    }

    /// Leaves the groups that the thread serves, waits until the groups' other members have noticed or a time
    /// limit is over, and ends the thread.
    pub(super) fn leave(&self) {
        self.end(StrategyCommand::Leave);
    }

    fn end(&self, order: StrategyCommand) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            self.strategies.order(order);
            // If the thread has panicked, it has printed its panic.
            let _ = thread.join();
        }
    }
}

impl Drop for StrategyThread {
    fn drop(&mut self) {
        self.end(StrategyCommand::End);
    }
}

/// Time after which a call of a service reports its fate, as far as the fate is known.
const CALL_WAIT: Duration = Duration::from_secs(5);

/// Upper bound of the number of requests in progress.
const RUNNING_MAX: usize = 1 << 16;
/// Upper bound of the bytes of requests in progress.
const BYTES_MAX: usize = 48 << 20;

/// Upper bound of the answers to the requests in progress, in bytes. Above this bound, requests that return
/// values wait.
const READS_BYTES_MAX: usize = 64 << 20;

/// Returns the upper bound of the answer to a request, in bytes.
fn answer_bytes(request: &Request) -> usize {
    match request {
        Request::Read(keys) => (keys.len() * VALUE_BYTES_MAX).min(ANSWER_BYTES_MAX),
        Request::Put { return_old: true, .. }
        | Request::Delete { return_old: true, .. }
        | Request::Live { return_old: true, .. }
        | Request::Once { .. } => VALUE_BYTES_MAX,
        Request::Scan { .. } => SCAN_BYTES + VALUE_BYTES_MAX,
        _ => 0,
    }
}

/// A task in progress: a request, or work on a map for which no client waits.
type StrategyTask = Pin<Box<dyn Future<Output = Option<(u64, Weight, Outcome)>> + Send>>;

/// The bytes that a request counts for.
#[derive(Clone, Copy)]
struct Weight {
    request: usize,
    /// Upper bound of the request's answer, in bytes.
    answer: usize,
}

/// A request that waits for room for its answer, until other requests have ended.
struct WaitingRequest {
    id: u64,
    map: MapId,
    request: Request,
}

/// The executing thread's state.
struct Executor {
    me: ProcessId,
    services: Option<Node>,
    /// The node that has the cell's members of groups, and its client of tables.
    tables: Node,
    maps: KeptMaps,
    running: FuturesUnordered<StrategyTask>,
    /// Upper bound of the answers to the requests in `running`, in bytes.
    reading: usize,
    /// Requests that wait for room, oldest first. They count as requests in progress, in number and in bytes.
    waiting: VecDeque<WaitingRequest>,
    strategies: Strategies,
}

/// A map that this process keeps, by the map's strategy.
enum MapKeeper {
    Service(ServiceMap),
    Group(GroupMap),
    Ordered(OrderedMap),
    /// A map whose strategy this process does not keep: the strategy, and the setting that is missing.
    Not(&'static str, &'static str),
}

impl MapKeeper {
    fn status(&self, name: &str) -> StrategyMapStatus {
        let (strategy, takes_part, copies, lacks) = match self {
            MapKeeper::Service(map) => {
                let (takes_part, copies) = map.status();
                ("service", takes_part, Some(copies), None)
            }
            MapKeeper::Group(map) => {
                let members = map.members();
                ("group", members.is_some(), members, None)
            }
            MapKeeper::Ordered(map) => ("ordered", map.is_reached(), None, None),
            MapKeeper::Not(strategy, why) => (*strategy, false, None, Some((*why).to_owned())),
        };
        StrategyMapStatus { name: name.to_owned(), strategy, takes_part, copies, lacks }
    }
}

/// An event for the executing thread.
enum ExecutorEvent {
    Orders(Vec<StrategyCommand>),
    Over(Option<(u64, Weight, Outcome)>),
}

impl Executor {
    async fn run(mut self, mut orders: UnboundedReceiver<StrategyCommand>, report: impl Fn(u64, Outcome)) {
        let mut some = Vec::new();
        loop {
            let news = std::future::poll_fn(|cx| {
                if let Poll::Ready(count) = orders.poll_recv_many(cx, &mut some, RUNNING_MAX)
                    && count > 0
                {
                    return Poll::Ready(ExecutorEvent::Orders(std::mem::take(&mut some)));
                }
                match self.running.poll_next_unpin(cx) {
                    Poll::Ready(Some(over)) => Poll::Ready(ExecutorEvent::Over(over)),
                    // Without work, the thread waits for commands.
                    Poll::Ready(None) | Poll::Pending => Poll::Pending,
                }
            });
            match news.await {
                ExecutorEvent::Over(None) => {}
                ExecutorEvent::Over(Some((id, weight, outcome))) => {
                    self.strategies.over(weight.request);
                    report(id, outcome);
                    self.reading -= weight.answer;
                    while let Some(first) = self.waiting.front()
                        && self.has_room(&first.request)
                        && let Some(WaitingRequest { id, map, request }) = self.waiting.pop_front()
                    {
                        self.begin((id, map, request), &report);
                    }
                }
                ExecutorEvent::Orders(orders) => {
                    for order in orders {
                        match order {
                            StrategyCommand::Ask { id, map, request } => {
                                let is_next = answer_bytes(&request) == 0 || self.waiting.is_empty();
                                if is_next && self.has_room(&request) {
                                    self.begin((id, map, request), &report);
                                } else {
                                    self.waiting.push_back(WaitingRequest { id, map, request });
                                }
                            }
                            StrategyCommand::Roster(roster) => self.follow(&roster),
                            StrategyCommand::Leave => return self.leave().await,
                            StrategyCommand::End => return self.end().await,
                        }
                    }
                }
            }
        }
    }

    async fn leave(self) {
        lock(&self.maps).clear();
        // Requests in progress hold members of groups, so they are dropped before the node leaves.
        drop(self.running);
        for node in self.services.into_iter().chain([self.tables]) {
            // Groups of maps have no files.
            let _ = node.pause().await;
        }
    }

    async fn end(self) {
        for node in self.services.into_iter().chain([self.tables]) {
            node.abandon().await;
        }
    }

    /// Whether the answer to a request may be gathered together with the answers to the requests in progress.
    fn has_room(&self, request: &Request) -> bool {
        let bytes = answer_bytes(request);
        bytes == 0 || self.reading + bytes <= READS_BYTES_MAX
    }

    /// Begins a request. If the request cannot begin, reports the reason.
    fn begin(&mut self, (id, map, request): (u64, MapId, Request), report: &impl Fn(u64, Outcome)) {
        let bytes = request.bytes();
        if let Err(refusal) = self.ask(id, map, request) {
            self.strategies.over(bytes);
            report(id, Err(refusal));
        }
    }

    /// Begins a request. Fails if the map does not exist.
    fn ask(&mut self, id: u64, map: MapId, request: Request) -> Result<(), RequestError> {
        let weight = Weight { request: request.bytes(), answer: answer_bytes(&request) };
        let asked = match lock(&self.maps).get(&map) {
            Some((_, MapKeeper::Service(map))) => map.ask(request),
            Some((_, MapKeeper::Group(map))) => map.ask(request),
            Some((_, MapKeeper::Ordered(map))) => map.ask(&request),
            Some((_, MapKeeper::Not(_, why))) => return Err(RequestError::NotDone((*why).to_owned())),
            None => return Err(RequestError::NotDone(String::from("the map no longer exists"))),
        };
        self.reading += weight.answer;
        self.running.push(Box::pin(async move { Some((id, weight, asked.await)) }));
        Ok(())
    }

    /// Begins new maps, and ends maps that no longer exist.
    fn follow(&mut self, roster: &Roster) {
        let of = |(name, id): (&str, MapId)| Some((id, (name.to_owned(), roster.layout().map(id)?.clone())));
        let present: BTreeMap<MapId, _> = roster.maps().filter_map(of).collect();
        let mut maps = lock(&self.maps);
        let gone: Vec<MapId> = maps.keys().filter(|id| !present.contains_key(id)).copied().collect();
        for id in gone {
            if let Some((_, MapKeeper::Service(map))) = maps.remove(&id) {
                map.end();
            }
        }
        for (id, (name, map)) in present {
            if maps.contains_key(&id) {
                continue;
            }
            let no_services = "this cell hosts no services: set cell.services_listen";
            let strategy = map.strategy.name();
            let (kept, work) = match (map.strategy, &self.services) {
                (Strategy::Quorum(_), _) => continue,
                (Strategy::Service { founder }, Some(node)) => {
                    let begin = if founder == self.me {
                        Begin::Found { replicas: map.copies.total() as u8 }
                    } else {
                        Begin::Join
                    };
                    let (map, work) = ServiceMap::begin(node.clone(), id, begin);
                    (MapKeeper::Service(map), Some(work))
                }
                (Strategy::Service { .. }, None) => (MapKeeper::Not(strategy, no_services), None),
                (Strategy::Group, _) => {
                    let (map, work) = GroupMap::begin(self.tables.clone(), id);
                    (MapKeeper::Group(map), Some(work))
                }
                (Strategy::Ordered, _) => {
                    let (map, work) = OrderedMap::begin(self.tables.clone(), &name);
                    (MapKeeper::Ordered(map), Some(work))
                }
            };
            info!(name, map = id.0, strategy, "this cell serves a map");
            maps.insert(id, (name, kept));
            if let Some(work) = work {
                self.running.push(Box::pin(async move {
                    work.await;
                    None
                }));
            }
        }
    }
}
