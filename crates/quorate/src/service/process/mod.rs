//! A process of services: one node on a reactor, and the thread that looks for others.
//!
//! ```text
//!   protocol thread ── orders of a turn ──▶ executor of each replica that has one ── results ──▶ protocol thread
//!                   ── fates of a turn ───▶ whoever waits for them
//!   seeking thread  ── who listens at the addresses ──▶ protocol thread
//! ```
//!
//! The protocol thread's side of it is `view`.

mod view;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, bounded};
use quorate_node::{self as node, Channel, EndpointId, Newcomer, Node};
use quorate_protocol::{
    CommandId, DomainId, Peer, ProcessId, Ticket,
    paxos::{Change, ChangeRefusal},
    service::{self, ClientCommand, ClientEvent, Fate, GroupId},
};
use quorate_runtime::{Config, Disk, Dropped, Handle, Reactor, Untaken, chance};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::warn;

use self::view::View;
use super::{
    directory::Directory,
    executor::{Order, Outlet, Runner, Tally},
    export::Exported,
    host::Standing,
    hosted::{Command, Hosted, Set, Terms},
};
use crate::{error::Error, seek::Search};

/// A running process. It ends with the last who holds it.
pub(super) struct Process {
    shared: Arc<Shared>,
    /// Has the seeking thread look at once; it ends when this is dropped.
    kick: Sender<()>,
}

/// State that the threads of a process share.
pub(super) struct Shared {
    handle: OnceLock<Handle<Node<Hosted>>>,
    domain: DomainId,
    me: ProcessId,
    addresses: Vec<String>,
    seats: Mutex<BTreeMap<EndpointId, Arc<Seat>>>,
    /// Where the names of services go whose replicas here have ended, and come back elsewhere.
    endings: Option<Sender<String>>,
}

/// An endpoint, for those who wait for it.
pub(super) struct Seat {
    pub(super) name: String,
    channel: Channel,
    pub(super) side: Side,
    /// The sets that others show at this channel, and the processes that show none.
    heard: Mutex<Heard>,
    news: Condvar,
}

/// The sets that were heard of under a name.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) set: Option<Set>,
    pub(super) absent: Vec<ProcessId>,
    /// Sets beside the first.
    strange: Vec<GroupId>,
}

pub(super) enum Side {
    Replica(Box<Hosting>),
    Client(Calling),
    /// Others are sent on from here.
    Signpost,
}

/// A replica, from outside.
pub(super) struct Hosting {
    pub(super) terms: Terms,
    /// Whether it founds a set rather than joining one.
    pub(super) founds: bool,
    pub(super) orders: Sender<Order>,
    /// The other end of its orders, as long as the endpoint carries them out itself.
    pub(super) inline: Mutex<Option<Receiver<Order>>>,
    pub(super) tally: Arc<Tally>,
    /// Its tenant's, over all lives.
    pub(super) standing: Arc<Mutex<Standing>>,
    /// The end of this life is told once.
    pub(super) over: AtomicBool,
    /// Why it is going to end: the first reason.
    pub(super) failed: Mutex<Option<String>>,
    /// Changes of the replicas that were refused, the latest.
    pub(super) refused: Mutex<VecDeque<(Change, ChangeRefusal)>>,
}

impl Hosting {
    /// The replica cannot go on. It may still have something to tell. Returns the first reason.
    fn fail(&self, name: &str, why: String) -> String {
        lock(&self.failed)
            .get_or_insert_with(|| {
                warn!(service = name, why, "this replica ends");
                lock(&self.standing).serving = false;
                why
            })
            .clone()
    }
}

/// What comes behind the end of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// It comes back as another process.
    Life,
    /// Nothing would change if it did.
    Nothing,
}

/// Calls that are under way.
#[derive(Default)]
pub(super) struct Calling {
    /// Those that were made together, by the command of their first.
    calls: Mutex<BTreeMap<u64, Together>>,
    /// Commands that were given.
    last: AtomicU64,
    /// Transactions that were begun.
    transactions: AtomicU64,
}

/// Calls that were made together, whose fates are told together.
struct Together {
    fates: Vec<Option<Fate>>,
    /// How many have none yet.
    left: usize,
    sender: oneshot::Sender<Vec<Fate>>,
    permits: OwnedSemaphorePermit,
}

impl Calling {
    /// Notes a fate, and takes the calls that it was made with if it is the last of them.
    fn end(
        calls: &mut BTreeMap<u64, Together>,
        ClientEvent { command, fate }: ClientEvent,
    ) -> Option<Together> {
        let (&first, together) = calls.range_mut(..=command.0).next_back()?;
        let place = together.fates.get_mut((command.0 - first) as usize)?;
        assert!(place.replace(fate).is_none(), "a call ends once");
        together.left -= 1;
        if together.left == 0 { calls.remove(&first) } else { None }
    }
}

impl Process {
    /// Starts the threads. `addresses` are where others may be. On a disk it is the process of the disk, and keeps the records of those
    /// that will go on from them.
    pub(super) fn start(
        mut config: Config,
        addresses: Vec<String>,
        disk: Option<(&Directory, Disk)>,
        endings: Option<Sender<String>>,
    ) -> Result<Arc<Process>, Error> {
        if let Some((_, disk)) = &disk {
            config.me = disk.process();
        }
        let (domain, me) = (config.domain, config.me);
        let (handle, seats) = (OnceLock::new(), Mutex::default());
        let shared = Arc::new(Shared { handle, domain, me, addresses, seats, endings });
        let dropped = Dropped::new(&config.metrics);
        let view = View::new(shared.clone(), dropped);
        let mut node = Node::new();
        let handle = match disk {
            None => Reactor::start(node, view, config),
            Some((place, disk)) => {
                for channel in place.channels() {
                    node.expect(channel, place.first);
                }
                Reactor::start_on_disk(node, view, config, disk)
            }
        };
        let handle = handle.map_err(Error::start)?;
        assert!(shared.handle.set(handle).is_ok(), "a process has one reactor");
        let (kick, kicked) = bounded(1);
        let process = Arc::new(Process { shared: shared.clone(), kick });
        // All endpoints are told who listens there.
        process.search().go_on(kicked, move |found| {
            let seats: Vec<Arc<Seat>> = lock(&shared.seats).values().cloned().collect();
            for seat in seats.iter().filter(|_| !found.is_empty()) {
                // They are looked for again.
                let _ = shared.handle().try_command(seat.home(Command::Seeds(found.clone())));
            }
        })?;
        Ok(process)
    }

    fn handle(&self) -> &Handle<Node<Hosted>> {
        self.shared.handle()
    }

    pub(super) fn me(&self) -> ProcessId {
        self.shared.me
    }

    /// The configuration of another process of the same domain.
    pub(super) fn sibling(&self) -> Config {
        fresh(self.shared.domain)
    }

    /// The channel of a service.
    pub(super) fn channel(&self, name: &str) -> Channel {
        let endpoint = EndpointId(xxhash_rust::xxh3::xxh3_64(name.as_bytes()));
        Channel { domain: self.shared.domain, endpoint }
    }

    /// Takes an endpoint in, and has others looked for. Gives back the one that is there already. One that knows its set comes with it, and
    /// with the first of its records if it goes on from some.
    pub(super) fn add(
        &self,
        name: &str,
        side: Side,
        hosted: Hosted,
        known: Option<(Set, Option<Ticket>)>,
    ) -> Result<Arc<Seat>, Arc<Seat>> {
        let channel = self.channel(name);
        let set = known.map(|(set, _)| set);
        let (heard, news) = (Mutex::new(Heard { set, ..Heard::default() }), Condvar::new());
        let seat = Arc::new(Seat { name: name.to_owned(), channel, side, heard, news });
        {
            let mut seats = lock(&self.shared.seats);
            if let Some(there) = seats.get(&channel.endpoint) {
                return Err(there.clone());
            }
            seats.insert(channel.endpoint, seat.clone());
        }
        let newcomer = Newcomer::home(channel, hosted);
        let newcomer = match known {
            Some((_, Some(first))) => newcomer.recovered(first),
            _ => newcomer,
        };
        // Untaken only if the process has ended, and then nobody is heard of.
        let _ = self.handle().command(node::Command::Add(newcomer));
        let _ = self.kick.try_send(());
        Ok(seat)
    }

    /// The way of an executor's results.
    pub(super) fn results(&self, seat: &Arc<Seat>) -> Results {
        Results { shared: self.shared.clone(), seat: Arc::downgrade(seat) }
    }

    /// Takes an endpoint away.
    pub(super) fn remove(&self, seat: &Seat) {
        lock(&self.shared.seats).remove(&seat.channel.endpoint);
        let _ = self.handle().command(node::Command::Remove(seat.channel));
    }

    /// The endpoint of a service.
    pub(super) fn seat(&self, name: &str) -> Option<Arc<Seat>> {
        lock(&self.shared.seats).get(&self.channel(name).endpoint).cloned()
    }

    /// The records of a service that goes on elsewhere are needed no more.
    pub(super) fn release(&self, name: &str) {
        let _ = self.handle().command(node::Command::Remove(self.channel(name)));
    }

    /// Has a change of the replicas made. Says whether that was so when `patience` was over, or why it will not be.
    pub(super) fn change(
        &self,
        seat: &Seat,
        change: &Change,
        patience: Duration,
    ) -> Result<bool, ChangeRefusal> {
        let Side::Replica(hosting) = &seat.side else { unreachable!("a replica changes its set") };
        let is_so = || {
            let standing = lock(&hosting.standing);
            let has = |id: &ProcessId| standing.replicas.iter().any(|(replica, _)| replica == id);
            match change {
                Change::Add(peer) => has(&peer.id),
                Change::Remove(process) => !has(process),
            }
        };
        let refusal = || {
            let mut refused = lock(&hosting.refused);
            let place = refused.iter().position(|(refused, _)| refused == change)?;
            refused.remove(place).map(|(_, why)| why)
        };
        refusal();
        let until = Instant::now() + patience;
        let mut asked_at = None;
        let mut heard = lock(&seat.heard);
        loop {
            if is_so() {
                return Ok(true);
            }
            if hosting.over.load(Ordering::Relaxed) {
                return Ok(*change == Change::Remove(self.me()));
            }
            match refusal() {
                None => {}
                // Said of what came twice; the first is under way.
                Some(ChangeRefusal::AlreadySo) => {}
                Some(ChangeRefusal::NoLeader) => asked_at = None,
                Some(why) => return Err(why),
            }
            let now = Instant::now();
            if now >= until {
                return Ok(false);
            }
            // A leader that dies takes the wish with it.
            if asked_at.is_none_or(|asked: Instant| now.duration_since(asked) >= ASKED_AGAIN) {
                asked_at = Some(now);
                let wish = match change.clone() {
                    Change::Add(peer) => service::Command::AddReplica(peer),
                    Change::Remove(process) => service::Command::RemoveReplica(process),
                };
                let _ = self.handle().command(seat.home(Command::Results(vec![wish])));
            }
            let pause = (until - now).min(ASKED_AGAIN);
            heard = seat.news.wait_timeout(heard, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Tells an endpoint of replicas of its set.
    pub(super) fn tell(&self, seat: &Seat, replicas: Vec<Peer>) {
        // They are looked for, too.
        let _ = self.handle().command(seat.home(Command::Seeds(replicas)));
    }

    fn search(&self) -> Search {
        Search::quiet(self.shared.domain, self.me(), self.shared.addresses.clone())
    }

    /// Asks all who listen at the addresses whether they know a set of this name, for some time.
    pub(super) fn survey(&self, seat: &Seat, patience: Duration) -> Option<Set> {
        let until = Instant::now() + patience;
        let others: Vec<ProcessId> = self.search().look().into_iter().map(|peer| peer.id).collect();
        let mut heard = lock(&seat.heard);
        loop {
            let answered = others.iter().all(|other| heard.absent.contains(other));
            let left = until.saturating_duration_since(Instant::now());
            if heard.set.is_some() || answered || left.is_zero() {
                return heard.set;
            }
            heard = seat.news.wait_timeout(heard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Tells an endpoint its set.
    pub(super) fn begin(&self, seat: &Seat, set: Set, founded: bool) {
        lock(&seat.heard).set = Some(set);
        // Untaken only if the process has ended.
        let _ = self.handle().command(seat.home(Command::Begin { set, founded }));
    }

    /// Has a replica give a copy of its state. It gives none if it has ended, or was given a thread just now.
    pub(super) fn copy(&self, seat: &Seat, wanted: Sender<Exported>) {
        let Side::Replica(hosting) = &seat.side else { unreachable!("a replica has a state") };
        if lock(&hosting.inline).is_some() {
            let _ = self.handle().command(seat.home(Command::Copy(wanted)));
        } else {
            let _ = hosting.orders.send(Order::Copy(wanted));
        }
    }

    /// The number of a transaction that begins.
    pub(super) fn transaction(seat: &Seat) -> u64 {
        let Side::Client(calling) = &seat.side else { unreachable!("a client calls") };
        calling.transactions.fetch_add(1, Ordering::Relaxed)
    }

    /// Has a client give a transaction up.
    pub(super) fn abandon(&self, seat: &Seat, transaction: u64) {
        let abandon = vec![ClientCommand::Abandon { transaction }];
        // If it is not taken, the transaction ends when it has been idle for long.
        let _ = self.handle().try_command(seat.home(Command::Calls(abandon)));
    }

    /// Has a client make as many calls as there are permits, at least one, and returns what will become of them.
    pub(super) fn call(
        &self,
        seat: &Seat,
        permits: OwnedSemaphorePermit,
        calls: impl FnOnce(CommandId) -> Vec<ClientCommand>,
    ) -> Result<oneshot::Receiver<Vec<Fate>>, Error> {
        let Side::Client(calling) = &seat.side else { unreachable!("a client calls") };
        let count = permits.num_permits();
        let name = calling.last.fetch_add(count as u64, Ordering::Relaxed);
        let commands = calls(CommandId(name));
        assert!(count > 0 && commands.len() == count, "a permit for each call");
        let (sender, receiver) = oneshot::channel();
        let together = Together { fates: vec![None; count], left: count, sender, permits };
        lock(&calling.calls).insert(name, together);
        self.handle().try_command(seat.home(Command::Calls(commands))).map_err(|untaken| {
            lock(&calling.calls).remove(&name);
            match untaken {
                Untaken::Full(_) => Error::not_sent("too many calls wait for the protocol thread"),
                Untaken::Stopped(_) => Error::wedged("the process has ended"),
            }
        })?;
        Ok(receiver)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        lock(&self.shared.seats).clear();
        // A panic has been printed by its own thread.
        let _ = self.handle().stop();
    }
}

impl Seat {
    fn home(&self, command: Command) -> node::Command<Hosted> {
        node::Command::Home(self.channel, command)
    }

    /// The set of which it is.
    pub(super) fn set(&self) -> Option<Set> {
        lock(&self.heard).set
    }

    /// Its replica cannot go on, and resigns.
    fn fail(&self, why: String) {
        if let Side::Replica(hosting) = &self.side {
            hosting.fail(&self.name, why);
        }
    }
}

/// A wish of an operator is told again so long after it was told last.
const ASKED_AGAIN: Duration = Duration::from_secs(1);

/// Gives a service a thread of its own.
pub(super) fn spawn(runner: Box<dyn Runner>, orders: Receiver<Order>, results: Results) -> io::Result<()> {
    thread::Builder::new()
        .name(String::from("service"))
        .spawn(move || runner.run(orders, Arc::new(results)))
        .map(drop)
}

impl Shared {
    /// A replica has ended. It comes back elsewhere, unless nothing would change if it did.
    fn end(&self, seat: &Seat, why: String, behind: Behind) {
        let Side::Replica(hosting) = &seat.side else { return };
        let why = hosting.fail(&seat.name, why);
        if hosting.over.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut standing = lock(&hosting.standing);
        standing.serving = false;
        standing.last_end = Some(why.clone());
        let is_alone = matches!(&standing.replicas[..], [(id, _)] if *id == self.me);
        match (behind, &self.endings) {
            (Behind::Life, _) if is_alone => {
                standing.ended = Some(format!("{why}; it was the only replica, and its set is gone"));
            }
            (Behind::Life, Some(endings)) => {
                // Nobody is there to bring it back once the host has ended.
                let _ = endings.send(seat.name.clone());
            }
            _ => standing.ended = Some(why),
        }
    }

    fn handle(&self) -> &Handle<Node<Hosted>> {
        self.handle.get().expect("set before anybody else has it")
    }
}

/// The way of an executor's results.
#[derive(Clone)]
pub(super) struct Results {
    shared: Arc<Shared>,
    /// A seat holds the way of its orders, at whose end its executor ends.
    seat: Weak<Seat>,
}

impl Outlet for Results {
    fn results(&self, results: Vec<service::Command>) -> bool {
        let Some(seat) = self.seat.upgrade() else { return false };
        self.shared.handle().command(seat.home(Command::Results(results))).is_ok()
    }

    fn broken(&self, why: String) {
        if let Some(seat) = self.seat.upgrade() {
            seat.fail(why);
            // Untaken only if the process has ended.
            let resign = Command::Results(vec![service::Command::Resign]);
            let _ = self.shared.handle().command(seat.home(resign));
        }
    }
}

/// A process's configuration, but where it listens.
pub(super) fn config(domain: &str) -> Config {
    fresh(super::domain(domain))
}

fn fresh(domain: DomainId) -> Config {
    // It is nobody's successor, so that its number may be any.
    let node = chance::Chance::new().bits();
    let me = ProcessId { node, incarnation: chance::incarnation() };
    Config::new(domain, me, Vec::new())
}

/// What these locks guard is whole at every step.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
