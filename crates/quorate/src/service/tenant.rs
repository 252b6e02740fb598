//! A service of a host: one replica after another.
//!
//! A replica ends for good as the process that it is: because the others went on without it, because the service panicked where a panic
//! leaves a state that nobody knows, or because it was too slow. What that process promised in the set is gone with it, so it cannot
//! begin again under its name. All services of a host are one process, and the others go on. So the one that ended comes back *beside*: as a
//! process of its own, with links, a port and, if the host has a disk, a journal of its own. It joins the set that it was of, in the
//! service's first state, like any newcomer.
//!
//! ```text
//!   host ── main process ── replica of a          replica of b ended: a signpost of b
//!       └── process beside ─────────────────────  replica of b, which joined again
//! ```
//!
//! At the main process a signpost stays, because callers and hosts know the host by its address: it shows them the set, and sends them on to the replicas
//! that the successor knows of (`hosted`).
//!
//! **A replica that ends again and again** (a change at which `apply` panics) comes back after a pause that doubles: it costs the others a
//! checkpoint each time.
//!
//! **After a restart** of a durable host, a service goes on from its side if there is one. The records that its former replica left in the host's journal
//! are let go of.

use std::{
    collections::BTreeMap,
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
    DomainId, Peer, Ticket,
    paxos::{Change, ChangeRefusal},
};
use tracing::{info, warn};

use super::{
    Export,
    directory::{Aside, Directory, remove_side},
    executor::{Performer, Runner, Tally},
    host::Standing,
    hosted::{Hosted, Keeping, Set, Terms},
    inline::Inline,
    process::{self, Hosting, Process, Seat, Side, config, lock},
};
use crate::{error::Error, node, seek};

/// Everything that a host's replicas have in common, whichever process they are.
pub(crate) struct House {
    pub(super) main: Arc<Process>,
    pub(super) domain: String,
    /// Where the others reach the main process.
    pub(super) address: String,
    pub(super) seeds: Vec<String>,
    pub(super) insecure: bool,
    /// Where processes beside the main one listen and are reached.
    pub(super) beside: (String, Option<String>),
    /// With a disk: where.
    pub(super) directory: Option<PathBuf>,
    pub(super) tenants: Mutex<BTreeMap<String, Arc<Tenant>>>,
    /// Where processes tell the endings of their replicas.
    pub(super) endings: Sender<String>,
}

/// A service of a host.
pub(super) struct Tenant {
    pub(super) name: String,
    /// Those of its own first state.
    pub(super) terms: Terms,
    pub(super) keeping: Keeping,
    pub(super) standing: Arc<Mutex<Standing>>,
    /// Makes the service anew, in its first state.
    fresh: Box<Fresh>,
    /// None between two of them.
    pub(super) life: Mutex<Option<Life>>,
    /// The set of which it is, once that is known.
    pub(super) set: Mutex<Option<Set>>,
    /// How long the next life is waited for.
    pause: Mutex<Duration>,
}

/// Makes a service that shows its figures here.
pub(super) type Fresh = dyn Fn(Arc<Tally>) -> Result<Made, Error> + Send + Sync;

/// A service, by the thread that executes it.
pub(super) enum Made {
    /// Its endpoint's.
    Inline(Box<dyn Performer>),
    /// Its own.
    Threaded(Box<dyn Runner>),
}

/// One replica, as one process.
#[derive(Clone)]
pub(super) struct Life {
    pub(super) lodging: Lodging,
    pub(super) seat: Arc<Seat>,
    began: Instant,
}

/// A process that has room for a replica.
#[derive(Clone)]
pub(super) struct Lodging {
    pub(super) process: Arc<Process>,
    /// Where the others reach it.
    pub(super) address: String,
    /// The side on which its journal is.
    side: Option<PathBuf>,
}

impl Lodging {
    /// The process as others know it.
    pub(super) fn peer(&self) -> Peer {
        Peer { id: self.process.me(), address: self.address.clone() }
    }
}

/// A replica that is about to begin: its endpoint, and its set and the first of its records if it goes on from some.
pub(super) type Beginning = (Hosted, Option<(Set, Ticket)>);

impl Tenant {
    pub(super) fn new(name: &str, (terms, keeping): (Terms, Keeping), fresh: Box<Fresh>) -> Arc<Tenant> {
        Arc::new(Tenant {
            name: name.to_owned(),
            terms,
            keeping,
            standing: Arc::default(),
            fresh,
            life: Mutex::default(),
            set: Mutex::default(),
            pause: Mutex::new(PAUSE_MIN),
        })
    }

    /// How its replica stands.
    pub(super) fn standing(&self) -> Standing {
        let life = lock(&self.life).clone();
        let standing = lock(&self.standing).clone();
        let Some(Life { lodging, seat, .. }) = life else { return standing };
        let Side::Replica(hosting) = &seat.side else { unreachable!("a tenant is a replica") };
        Standing {
            me: Some(lodging.process.me()),
            address: Some(lodging.address),
            inline: lock(&hosting.inline).is_some(),
            set: seat.set().map(|set| set.group.0),
            changes: hosting.tally.changes.load(Ordering::Relaxed),
            restored: hosting.tally.restored.load(Ordering::Relaxed),
            ..standing
        }
    }

    /// A copy of its state: [`Node::export`](crate::Node::export). Blocks.
    pub(super) fn export(&self) -> Result<Export, Error> {
        let life = lock(&self.life).clone();
        let Some(Life { lodging, seat, .. }) = life else {
            return Err(Error::not_sent(format!(
                "the replica of `{}` has ended, and comes back soon",
                self.name
            )));
        };
        let Some(set) = seat.set() else {
            return Err(Error::not_sent(format!("the host looks for the replicas of `{}`", self.name)));
        };
        let leads = || lock(&self.standing).serving;
        let led = leads();
        let (wanted, copy) = bounded(1);
        lodging.process.copy(&seat, wanted);
        let copy = copy.recv_timeout(EXPORT_PATIENCE).map_err(|_| {
            Error::not_sent("its replica had no state without open transactions to copy in time, or ended")
        })?;
        let copy = copy.map_err(Error::rejected)?;
        Export::of_copy(&self.name, set.group.0, led && leads(), &copy)
            .ok_or_else(|| Error::not_sent("its state is being restored"))
    }

    /// Whether it has ended, and does not come back.
    pub(super) fn has_ended(&self) -> Option<String> {
        lock(&self.standing).ended.clone()
    }

    /// Begins a life in this process. One that goes on from records has the terms of its set.
    pub(super) fn begin(
        &self,
        lodging: Lodging,
        (terms, founds): (Terms, bool),
        beginning: impl FnOnce(Peer, Option<Box<Inline>>) -> Result<Beginning, Error>,
    ) -> Result<Life, Error> {
        let tally = Arc::new(Tally::default());
        let (runner, inline) = match (self.fresh)(tally.clone())? {
            Made::Inline(performer) => (None, Some(Box::new(Inline::new(performer)))),
            Made::Threaded(runner) => (Some(runner), None),
        };
        let (hosted, recovered) = beginning(lodging.peer(), inline)?;
        let terms = recovered.map_or(terms, |(set, _)| set.terms);
        let (orders, waiting) = unbounded();
        let (inline, thread) = match runner {
            None => (Some(waiting), None),
            Some(runner) => (None, Some((runner, waiting))),
        };
        let hosting = Hosting {
            terms,
            founds,
            orders,
            inline: Mutex::new(inline),
            tally,
            standing: self.standing.clone(),
            over: AtomicBool::new(false),
            failed: Mutex::default(),
            refused: Mutex::default(),
        };
        {
            let mut standing = lock(&self.standing);
            (standing.leader, standing.serving) = (None, false);
            standing.lives += 1;
        }
        let side = Side::Replica(Box::new(hosting));
        let known = recovered.map(|(set, first)| (set, Some(first)));
        let added = lodging.process.add(&self.name, side, hosted, known);
        let seat = added.map_err(|_| Error::start(format!("this process serves `{}` already", self.name)))?;
        if let Some((runner, waiting)) = thread
            && let Err(error) = process::spawn(runner, waiting, lodging.process.results(&seat))
        {
            lodging.process.remove(&seat);
            return Err(Error::start(error));
        }
        Ok(Life { lodging, seat, began: Instant::now() })
    }
}

impl House {
    /// Hears of endings, and brings what ended back, on a thread of its own.
    pub(super) fn keep(house: &Arc<House>, endings: Receiver<String>) -> Result<(), Error> {
        let house = Arc::downgrade(house);
        let keeper = thread::Builder::new().name(String::from("keeper"));
        keeper.spawn(move || keep(&house, &endings)).map(drop).map_err(Error::start)
    }

    pub(super) fn tenant(&self, name: &str) -> Option<Arc<Tenant>> {
        lock(&self.tenants).get(name).cloned()
    }

    pub(super) fn serves(&self, name: &str) -> bool {
        lock(&self.tenants).contains_key(name)
    }

    /// The names of the services, and how their replicas stand.
    pub(super) fn services(&self) -> Vec<(String, Standing)> {
        let tenants = lock(&self.tenants).clone();
        tenants.into_iter().map(|(name, tenant)| (name, tenant.standing())).collect()
    }

    fn domain_id(&self) -> DomainId {
        super::domain(&self.domain)
    }

    /// Where a process beside the main one keeps its journal, if this host has a disk.
    pub(super) fn new_side(&self) -> Result<Option<Aside>, Error> {
        self.directory.as_deref().map(|place| Directory::new_side(place, self.domain_id())).transpose()
    }

    /// A process of one replica, beside the main one: where it was before, if it goes on from a side.
    pub(super) fn process_beside(
        &self,
        aside: Option<Aside>,
        known_at: Option<String>,
    ) -> Result<Lodging, Error> {
        let (listen, advertise) = &self.beside;
        let port = known_at.as_deref().and_then(|known| known.rsplit_once(':')).map(|(_, port)| port);
        let listen = match (port, listen.rsplit_once(':')) {
            (Some(port), Some((host, _))) => format!("{host}:{port}"),
            _ => listen.clone(),
        };
        let (listener, bound) = node::bind(&listen)?;
        let address = known_at.unwrap_or_else(|| node::advertised(advertise.as_deref(), bound));
        let mut config = config(&self.domain);
        config.listening = vec![listener];
        (config.insecure, config.advertise) = (self.insecure, Some(address.clone()));
        let (directory, disk, side) = match aside {
            Some(Aside { directory, disk, place }) => (Some(directory), Some(disk), Some(place)),
            None => (None, None, None),
        };
        // At its own main process a signpost may know the replicas.
        let seeds = self.seeds.iter().chain([&self.address]).cloned().collect();
        let on_disk = directory.as_ref().zip(disk);
        let process = Process::start(config, seeds, on_disk, Some(self.endings.clone()))?;
        Ok(Lodging { process, address, side })
    }

    /// Room in the main process.
    pub(super) fn main_process(&self) -> Lodging {
        Lodging { process: self.main.clone(), address: self.address.clone(), side: None }
    }

    /// Others are sent on from the main process, where a replica of this set is no more.
    pub(super) fn put_signpost(&self, tenant: &Tenant, set: Set) {
        let signpost = Hosted::signpost(set, tenant.standing.clone());
        // One that is there already is the same.
        let _ = self.main.add(&tenant.name, Side::Signpost, signpost, Some((set, None)));
    }

    /// A life is over: its place is another's, and its journal nobody's.
    fn let_go(&self, life: Life) {
        let Life { lodging: Lodging { process, side, .. }, seat, .. } = life;
        process.remove(&seat);
        drop((process, seat));
        if let Some(side) = side {
            remove_side(&side);
        }
    }

    /// Begins the next life of a service whose replica has ended.
    fn come_back(&self, name: &str) -> Result<(), Error> {
        let Some(tenant) = self.tenant(name) else { return Ok(()) };
        if let Some(before) = lock(&tenant.life).take() {
            if let Some(set) = before.seat.set() {
                *lock(&tenant.set) = Some(set);
            }
            self.let_go(before);
        }
        let set = *lock(&tenant.set);
        if let Some(set) = set {
            self.put_signpost(&tenant, set);
        }
        let lodging = self.process_beside(self.new_side()?, None)?;
        let terms = set.map_or(tenant.terms, |set| set.terms);
        let anew = |me, inline| Ok((Hosted::replica(me, tenant.keeping, inline), None));
        let life = tenant.begin(lodging, (terms, false), anew)?;
        let process = &life.lodging.process;
        if let Some(set) = set {
            let replicas = lock(&tenant.standing).replicas.clone();
            let replicas = replicas.into_iter().map(|(id, address)| Peer { id, address }).collect();
            process.begin(&life.seat, set, false);
            process.tell(&life.seat, replicas);
        }
        info!(service = name, process = %process.me(), address = life.lodging.address, "it comes back as another process");
        let mut tenants = lock(&self.tenants);
        match tenants.get_mut(name) {
            Some(there) if Arc::ptr_eq(there, &tenant) => *lock(&tenant.life) = Some(life),
            // It was withdrawn meanwhile.
            _ => {
                drop(tenants);
                self.let_go(life);
            }
        }
        Ok(())
    }

    /// Makes the process at `new` a replica, and the one at `old` none: [`Node::replace_replica`](crate::Node::replace_replica). Blocks.
    pub(crate) fn change(&self, name: &str, old: Option<&str>, new: &str) -> Result<(), Error> {
        let tenant = self.tenant(name);
        let tenant = tenant.ok_or_else(|| Error::start(format!("this node serves no `{name}`")))?;
        let life = lock(&tenant.life).clone();
        let between = || {
            Error::not_sent(format!("the replica of `{name}` at this node has ended, and comes back soon"))
        };
        let Life { lodging: Lodging { process, .. }, seat, .. } = life.ok_or_else(between)?;
        let replica_at = |address: &str| {
            let standing = lock(&tenant.standing);
            standing.replicas.iter().find(|(_, at)| at == address).map(|(id, _)| *id)
        };
        let old = match old.map(|address| (address, replica_at(address))) {
            None => None,
            Some((_, Some(id))) => Some(id),
            Some((address, None)) => {
                return Err(Error::rejected(format!("no replica of `{name}` is at {address}")));
            }
        };
        if replica_at(new).is_none() {
            let found = seek::ask(new, self.domain_id());
            let met =
                found.map_err(|error| Error::not_sent(format!("nobody was found at {new}: {error}")))?;
            let peer = Peer { id: met.process, address: new.to_owned() };
            self.have_changed(&process, &seat, &Change::Add(peer), &format!("{new} becomes a replica"))?;
        }
        match old {
            Some(old) => {
                self.have_changed(&process, &seat, &Change::Remove(old), "the old one is none any more")
            }
            None => Ok(()),
        }
    }

    fn have_changed(&self, process: &Process, seat: &Seat, change: &Change, what: &str) -> Result<(), Error> {
        match process.change(seat, change, CHANGE_PATIENCE) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let why = format!("it was not seen within {CHANGE_PATIENCE:?} that {what}");
                Err(Error::MaybeApplied { id: None, why })
            }
            Err(ChangeRefusal::TooFew) => {
                Err(Error::rejected("too few replicas that are well would be left: add or mend one first"))
            }
            Err(ChangeRefusal::Unreachable) => Err(Error::rejected(
                "the leader cannot reach that process, or it does not serve this service, or was removed before",
            )),
            Err(why @ (ChangeRefusal::AlreadySo | ChangeRefusal::NoLeader)) => {
                unreachable!("{why:?} is waited out")
            }
        }
    }

    /// Ends a service here for good.
    pub(super) fn withdraw(&self, name: &str) -> bool {
        let Some(tenant) = lock(&self.tenants).remove(name) else { return false };
        self.end(&tenant);
        true
    }

    /// Nothing of this tenant is left.
    pub(super) fn end(&self, tenant: &Tenant) {
        if let Some(life) = lock(&tenant.life).take() {
            self.let_go(life);
        }
        // A signpost, if there is one.
        if let Some(seat) = self.main.seat(&tenant.name) {
            self.main.remove(&seat);
        }
    }

    /// How long a service whose replica has ended is to wait for its next life.
    fn pause(&self, name: &str) -> Duration {
        let Some(tenant) = self.tenant(name) else { return Duration::ZERO };
        let began = lock(&tenant.life).as_ref().map(|life| life.began);
        let mut pause = lock(&tenant.pause);
        if began.is_some_and(|began| began.elapsed() > LIFE_LONG) {
            *pause = PAUSE_MIN;
        }
        let now = *pause;
        *pause = (now * 2).min(PAUSE_MAX);
        now
    }
}

fn keep(house: &Weak<House>, endings: &Receiver<String>) {
    let mut due: Vec<(Instant, String)> = Vec::new();
    loop {
        let next = due.iter().map(|(at, _)| *at).min();
        let heard = match next {
            Some(at) => endings.recv_deadline(at),
            None => endings.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        // The last who holds the host has let it go.
        let Some(house) = house.upgrade() else { return };
        match heard {
            Ok(name) => due.push((Instant::now() + house.pause(&name), name)),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let now = Instant::now();
                let (ripe, rest) = due.into_iter().partition(|(at, _)| *at <= now);
                due = rest;
                let ripe: Vec<(Instant, String)> = ripe;
                for (_, name) in ripe {
                    if let Err(error) = house.come_back(&name) {
                        warn!(service = name, %error, "it cannot come back now, and tries again");
                        due.push((now + house.pause(&name), name));
                    }
                }
            }
        }
    }
}

/// A life that was longer than this is followed by the next one soon.
const LIFE_LONG: Duration = Duration::from_secs(60);

/// A change of the replicas is waited for so long: a newcomer is fed with all that was agreed on first.
const CHANGE_PATIENCE: Duration = Duration::from_secs(60);

/// A copy of a state is waited for so long.
const EXPORT_PATIENCE: Duration = Duration::from_secs(60);

/// The first pause before a next life, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);
