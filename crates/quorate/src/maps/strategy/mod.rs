//! Maps that are kept otherwise than by partial quorums.
//!
//! **Promise.** A map has a strategy from its creation on. Of a map of partial quorums nothing is here. Another one is kept by a service, a
//! group or a table, and does what that promises; each request ends in one [`Answer`], or in one [`Undone`], which says what may have
//! happened.
//!
//! | strategy | kept by | reads | writes |
//! |---|---|---|---|
//! | `service` | a replicated service, hosted by the cells | linearizable | linearizable, once |
//! | `group` | a process group of the cells | of the cell's own copy | in one order at all cells |
//! | `ordered` | a table of a cluster of tables | linearizable, one cut | linearizable, once |
//!
//! **Source.** 003 §VI, Isis2, 002 §6: the strategies are other rooms of this house, and here is what makes maps of them.
//!
//! **Shape.** What a command does is one pure state machine, [`keyspace`]. The service and the group replicate it, each in its way; the table has
//! statements instead.
//!
//! ```text
//!   protocol thread                          this thread
//!   front ── request ──────────────────────▶ service · group · table ═══ processes of their own
//!         ◀── Command::Answered ── port ────
//!   order ── roster: which maps there are ─▶ begin, end
//! ```
//!
//! **Invariants.**
//! - *The order says which maps there are*, and by whom a service is founded. A cell that comes back begins all of them again.
//! - *A map's name may be another map later*: services and groups go by its number, which is never used twice.
//! - *The protocol thread waits for nothing here*: it hands over, and is handed back.
//!
//! **Attacks considered.**
//! - *Clients ask for more than is answered.* What is under way is bounded in bytes and in number; beyond that it is refused at once.
//! - *A map is dropped with requests under way.* They end as they end; later ones are refused.
//! - *This process lacks what a strategy needs.* It says which setting that is, to whoever asks for such a map.

mod group;
pub mod keyspace;
mod ordered;
mod service;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::Poll,
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use quorate_protocol::{
    DomainId, ProcessId,
    partial::{MapId, Roster, Strategy},
};
use serde::Serialize;
use thiserror::Error as ThisError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::info;

use self::{
    group::GroupMap,
    keyspace::{Answer, Request},
    ordered::OrderedMap,
    service::ServiceMap,
};
use crate::{error::Error, node::Node, service::Begin, wait::Wait};

/// The means by which a cell keeps such maps.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The addresses at which it and the other cells host services; none: it hosts none.
    pub services: Option<Services>,
    /// Addresses of routers of a cluster of tables, `host:port`; none: there are neither ordered maps nor maps of groups.
    pub tables: Vec<String>,
}

/// The places at which cells host services.
#[derive(Clone, Debug)]
pub struct Services {
    /// The address at which this one listens, `host:port`.
    pub listen: String,
    /// The address at which the others reach it, if it is another one.
    pub advertise: Option<String>,
    /// The addresses of the others.
    pub seeds: Vec<String>,
    /// The directory for the logs of its replicas; none: in memory.
    pub directory: Option<PathBuf>,
}

/// A request that came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
pub enum Undone {
    /// Maps of this strategy do not have it.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// Nothing was read, and nothing was written, now or later.
    #[error("nothing was done: {0}")]
    NotDone(String),
    /// It is not known whether it takes effect: at any time from now on, or never.
    #[error("it may take effect: {0}")]
    MaybeApplied(String),
}

impl Undone {
    fn of(error: Error) -> Undone {
        match error {
            Error::MaybeApplied { why, .. } | Error::Expired { why } => Undone::MaybeApplied(why),
            // Its call took effect.
            Error::Mismatch { .. } => Undone::MaybeApplied(error.to_string()),
            other => Undone::NotDone(other.to_string()),
        }
    }
}

/// The outcome of a request.
pub type Outcome = Result<Answer, Undone>;

/// The outcome of a request that is under way.
type Asked = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// The way to the maps of a cell that are kept otherwise than by partial quorums. Clones share it.
#[derive(Clone)]
pub struct Strategies(Arc<Shared>);

struct Shared {
    orders: UnboundedSender<Order>,
    /// Requests under way, and their bytes.
    running: AtomicUsize,
    bytes: AtomicUsize,
    /// Taken by the thread that carries them out.
    taken: Mutex<Option<UnboundedReceiver<Order>>>,
}

enum Order {
    Ask {
        id: u64,
        map: MapId,
        request: Request,
    },
    Roster(Arc<Roster>),
    /// The groups are told; then it ends.
    Leave,
    End,
}

impl Default for Strategies {
    fn default() -> Self {
        let (orders, taken) = unbounded_channel();
        let (running, bytes, taken) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Some(taken)));
        Strategies(Arc::new(Shared { orders, running, bytes, taken }))
    }
}

impl Strategies {
    /// Asks a map. The outcome comes to the [front](super::Front) under this name, unless the request is refused at once.
    pub fn ask(&self, id: u64, map: MapId, request: Request) -> Result<(), Undone> {
        let Shared { running, bytes, .. } = &*self.0;
        let more = request.bytes();
        if running.load(Relaxed) >= RUNNING_MAX || bytes.load(Relaxed) + more > BYTES_MAX {
            return Err(Undone::NotDone(String::from("too much is under way")));
        }
        running.fetch_add(1, Relaxed);
        bytes.fetch_add(more, Relaxed);
        self.order(Order::Ask { id, map, request });
        Ok(())
    }

    /// A request of so many bytes is under way no more.
    fn over(&self, bytes: usize) {
        self.0.running.fetch_sub(1, Relaxed);
        self.0.bytes.fetch_sub(bytes, Relaxed);
    }

    /// The maps that there are.
    pub(super) fn follow(&self, roster: Arc<Roster>) {
        self.order(Order::Roster(roster));
    }

    fn order(&self, order: Order) {
        // Its thread ends with the process, which hears no more clients then.
        let _ = self.0.orders.send(order);
    }

    /// Starts the thread that carries out what is asked. `told` takes the outcomes.
    pub(super) fn start(
        &self,
        domain: DomainId,
        me: ProcessId,
        settings: Settings,
        insecure: bool,
        told: impl Fn(u64, Outcome) + Send + 'static,
    ) -> Result<Keeping, Error> {
        let taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner).take();
        let orders = taken.ok_or_else(|| Error::start("a process has strategies of its own"))?;
        let services = settings.services.map(|services| {
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
        let tables = (!settings.tables.is_empty())
            .then(|| Node::builder().routers(settings.tables).insecure(insecure).start().wait());
        let (services, tables) = (services.transpose()?, tables.transpose()?);
        let maps = Maps::default();
        let running = FuturesUnordered::new();
        let strategies = self.clone();
        let keeper = Keeper { me, services, tables, maps: maps.clone(), running, strategies };
        let run = move || keeper.run(orders, told).wait();
        let thread = thread::Builder::new().name(String::from("strategies")).spawn(run)?;
        Ok(Keeping { strategies: self.clone(), maps, thread: Mutex::new(Some(thread)) })
    }
}

/// A map of another strategy, as this cell keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// Its name.
    pub name: String,
    /// Its strategy.
    pub strategy: &'static str,
    /// True if this cell does what the strategy says: it is in the group, or among the replicas, or reaches the table.
    pub takes_part: bool,
    /// The number of those that keep it, as this cell knows: members of the group, or replicas. None of a table, whose cluster knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<usize>,
    /// The setting that it lacks, if it takes no part and never will.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
}

/// The maps that are kept, with their names.
type Maps = Arc<Mutex<BTreeMap<MapId, (String, Kept)>>>;

fn lock(maps: &Maps) -> MutexGuard<'_, BTreeMap<MapId, (String, Kept)>> {
    // The state under this lock is whole at every step.
    maps.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that carries out what is asked. Dropped, it ends at once.
pub(super) struct Keeping {
    strategies: Strategies,
    maps: Maps,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Keeping {
    /// The standing of this cell with each map.
    pub(super) fn standings(&self) -> Vec<Standing> {
        lock(&self.maps).values().map(|(name, kept)| kept.standing(name)).collect()
    }

    /// Leaves its groups, and waits until they know, or did not in time. Then all of it ends.
    pub(super) fn leave(&self) {
        self.end(Order::Leave);
    }

    fn end(&self, order: Order) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            self.strategies.order(order);
            // A panic has been printed by its own thread.
            let _ = thread.join();
        }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.end(Order::End);
    }
}

/// The fate of a call of a service is told after so long, as far as it is known.
const CALL_WAIT: Duration = Duration::from_secs(5);

/// The time of day, in nanoseconds since 1970.
fn wall() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Requests under way are bounded by number and by bytes of requests.
const RUNNING_MAX: usize = 1 << 16;
const BYTES_MAX: usize = 256 << 20;

/// Something under way: a request, with its name and its bytes, or work on a map that nobody waits for.
type Job = Pin<Box<dyn Future<Output = Option<(u64, usize, Outcome)>> + Send>>;

/// The one that carries out.
struct Keeper {
    me: ProcessId,
    services: Option<Node>,
    tables: Option<Node>,
    maps: Maps,
    running: FuturesUnordered<Job>,
    strategies: Strategies,
}

/// A map, as this process keeps it.
enum Kept {
    Service(ServiceMap),
    Group(GroupMap),
    Ordered(OrderedMap),
    /// It does not keep this strategy, for this reason.
    Not(&'static str, &'static str),
}

impl Kept {
    fn standing(&self, name: &str) -> Standing {
        let (strategy, takes_part, copies, lacks) = match self {
            Kept::Service(map) => {
                let (takes_part, copies) = map.standing();
                ("service", takes_part, Some(copies), None)
            }
            Kept::Group(map) => {
                let members = map.members();
                ("group", members.is_some(), members, None)
            }
            Kept::Ordered(map) => ("ordered", map.is_reached(), None, None),
            Kept::Not(strategy, why) => (*strategy, false, None, Some((*why).to_owned())),
        };
        Standing { name: name.to_owned(), strategy, takes_part, copies, lacks }
    }
}

/// News for the one that carries out.
enum News {
    Orders(Vec<Order>),
    Over(Option<(u64, usize, Outcome)>),
}

impl Keeper {
    async fn run(mut self, mut orders: UnboundedReceiver<Order>, told: impl Fn(u64, Outcome)) {
        let mut some = Vec::new();
        loop {
            let news = std::future::poll_fn(|cx| {
                if let Poll::Ready(count) = orders.poll_recv_many(cx, &mut some, RUNNING_MAX)
                    && count > 0
                {
                    return Poll::Ready(News::Orders(std::mem::take(&mut some)));
                }
                match self.running.poll_next_unpin(cx) {
                    Poll::Ready(Some(over)) => Poll::Ready(News::Over(over)),
                    // Without work it waits for orders.
                    Poll::Ready(None) | Poll::Pending => Poll::Pending,
                }
            });
            match news.await {
                News::Over(None) => {}
                News::Over(Some((id, bytes, outcome))) => {
                    self.strategies.over(bytes);
                    told(id, outcome);
                }
                News::Orders(orders) => {
                    for order in orders {
                        match order {
                            Order::Ask { id, map, request } => {
                                let bytes = request.bytes();
                                if let Err(refusal) = self.ask(id, map, request) {
                                    self.strategies.over(bytes);
                                    told(id, Err(refusal));
                                }
                            }
                            Order::Roster(roster) => self.follow(&roster),
                            Order::Leave => return self.leave().await,
                            Order::End => return self.end().await,
                        }
                    }
                }
            }
        }
    }

    async fn leave(self) {
        lock(&self.maps).clear();
        // Requests under way hold members of groups.
        drop(self.running);
        for node in [self.services, self.tables].into_iter().flatten() {
            // Groups of maps have no files.
            let _ = node.pause().await;
        }
    }

    async fn end(self) {
        for node in [self.services, self.tables].into_iter().flatten() {
            node.abandon().await;
        }
    }

    /// Begins a request, unless there is no such map.
    fn ask(&mut self, id: u64, map: MapId, request: Request) -> Result<(), Undone> {
        let bytes = request.bytes();
        let asked = match lock(&self.maps).get(&map) {
            Some((_, Kept::Service(map))) => map.ask(request),
            Some((_, Kept::Group(map))) => map.ask(request),
            Some((_, Kept::Ordered(map))) => map.ask(&request),
            Some((_, Kept::Not(_, why))) => return Err(Undone::NotDone((*why).to_owned())),
            None => return Err(Undone::NotDone(String::from("there is no such map any more"))),
        };
        self.running.push(Box::pin(async move { Some((id, bytes, asked.await)) }));
        Ok(())
    }

    /// Begins the maps that are new, and ends those that are gone.
    fn follow(&mut self, roster: &Roster) {
        let of = |(name, id): (&str, MapId)| Some((id, (name.to_owned(), roster.layout().map(id)?.clone())));
        let present: BTreeMap<MapId, _> = roster.maps().filter_map(of).collect();
        let mut maps = lock(&self.maps);
        let gone: Vec<MapId> = maps.keys().filter(|id| !present.contains_key(id)).copied().collect();
        for id in gone {
            if let Some((_, Kept::Service(map))) = maps.remove(&id) {
                map.end();
            }
        }
        for (id, (name, map)) in present {
            if maps.contains_key(&id) {
                continue;
            }
            let no_services = "this cell hosts no services (cell.services_listen)";
            let no_tables = "this cell knows of no cluster of tables (quorate up --tables, or cell.tables)";
            let strategy = map.strategy.name();
            let (kept, work) = match (map.strategy, &self.services, &self.tables) {
                (Strategy::Quorum(_), ..) => continue,
                (Strategy::Service { founder }, Some(node), _) => {
                    let begin = if founder == self.me {
                        Begin::Found { replicas: map.copies.total() as u8 }
                    } else {
                        Begin::Join
                    };
                    let (map, work) = ServiceMap::begin(node.clone(), id, begin);
                    (Kept::Service(map), Some(work))
                }
                (Strategy::Service { .. }, None, _) => (Kept::Not(strategy, no_services), None),
                (Strategy::Group, _, Some(node)) => {
                    let (map, work) = GroupMap::begin(node.clone(), id);
                    (Kept::Group(map), Some(work))
                }
                (Strategy::Ordered, _, Some(node)) => {
                    let (map, work) = OrderedMap::begin(node.clone(), &name);
                    (Kept::Ordered(map), Some(work))
                }
                (Strategy::Group | Strategy::Ordered, _, None) => (Kept::Not(strategy, no_tables), None),
            };
            info!(name, map = id.0, strategy, "a map");
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
