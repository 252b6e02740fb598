//! A process that hosts replicas of services.

use std::{
    fmt,
    net::{SocketAddr, ToSocketAddrs},
    sync::{Arc, Mutex, atomic::Ordering},
    thread,
    time::Duration,
};

use crossbeam_channel::unbounded;
use quorate_protocol::{Peer, ProcessId, paxos, service::GroupId};
use quorate_runtime::chance::Chance;

use super::{
    DOMAIN, Error, Service,
    executor::{Executor, Tally, print},
    hosted::{Hosted, Set, Terms},
    process::{Hosting, Process, Role, Seat, config, lock},
};

/// A process that hosts replicas of services. Dropped, it ends at once and says goodbye to nobody, as if it had been killed.
pub struct Host {
    process: Arc<Process>,
    address: String,
    asks: bool,
    log_bytes_kept: usize,
}

/// How a host is set up.
#[derive(Clone, Debug)]
pub struct HostBuilder {
    listen: String,
    advertise: Option<String>,
    insecure: bool,
    seeds: Vec<String>,
    domain: String,
    log_bytes_kept: usize,
}

/// How a replica begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// With a new set, of this one replica at first; others join it. Once for a service, ever: whoever does it again makes
    /// another service of the same name. A set that one of the seeds shows is not founded again.
    Found {
        /// How many replicas there should be: 1 to 15, best an odd number. More that join are spare, and take the place of
        /// those that fail.
        replicas: u8,
    },
    /// With the set that the seeds show, as soon as one of them does.
    Join,
}

/// How a replica stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The random number of its set; none while it looks for one.
    pub set: Option<u64>,
    /// The replica that leads, as far as this one knows.
    pub leader: Option<ProcessId>,
    /// Whether this one executes calls.
    pub serving: bool,
    /// The replicas and where they listen. This process is among them once it is taken in and not spare.
    pub replicas: Vec<(ProcessId, String)>,
    /// How many changes its state holds; at a leader some may not be agreed on yet.
    pub changes: u64,
    /// How often the checkpoint of another replica took the place of its state.
    pub restored: u64,
    /// Why it is a replica no more. To come back it needs another process.
    pub ended: Option<String>,
}

impl Host {
    /// How a host is set up.
    pub fn builder() -> HostBuilder {
        HostBuilder {
            listen: String::from("127.0.0.1:0"),
            advertise: None,
            insecure: false,
            seeds: Vec::new(),
            domain: String::from(DOMAIN),
            log_bytes_kept: paxos::Settings::default().log_bytes_kept,
        }
    }

    /// Hosts a replica of a service, which begins in `state`: the same state, in bytes, at all replicas of a set. The name and the
    /// type are all that clients know.
    ///
    /// Founding asks the seeds first, for at most 2 s or so: if one of them shows a set of this name, it is an error. Joining
    /// returns at once and comes about when it does ([`Host::standing`]).
    pub fn serve<S: Service>(&self, name: &str, state: S, begin: Begin) -> Result<(), Error> {
        let replicas = match begin {
            Begin::Found { replicas } if (1..=REPLICAS_MAX).contains(&replicas) => replicas,
            Begin::Found { replicas } => {
                return Err(Error::start(format!(
                    "{replicas} replicas of `{name}`: 1 to {REPLICAS_MAX} can be"
                )));
            }
            Begin::Join if !self.asks => {
                return Err(Error::start(format!(
                    "`{name}` cannot be joined without seeds: name a host that serves it"
                )));
            }
            // The founder's word counts.
            Begin::Join => 0,
        };
        let beginning = print(&state).map_err(|error| {
            Error::start(format!("the first state of `{name}` does not serialise: {error}"))
        })?;
        let terms = Terms { beginning, replicas };
        let (orders, waiting) = unbounded();
        let (tally, founds) = (Arc::new(Tally::default()), begin != Begin::Join);
        let standing = Mutex::default();
        let hosting = Hosting { terms, founds, orders, tally: tally.clone(), standing };
        let me = Peer { id: self.process.me(), address: self.address.clone() };
        let hosted = Hosted::replica(me, self.log_bytes_kept);
        let seat =
            self.process.add(name, Role::Replica(hosting), hosted).map_err(|there| refusal(name, &there))?;
        let (executor, results) = (Executor::new(state, tally), self.process.results(&seat));
        let spawned = thread::Builder::new()
            .name(String::from("service"))
            .spawn(move || executor.run(waiting, results));
        if let Err(error) = spawned {
            self.process.remove(&seat);
            return Err(Error::start(error));
        }
        if founds {
            if self.asks
                && let Some(set) = self.process.survey(&seat, SURVEY_PATIENCE)
            {
                self.process.remove(&seat);
                return Err(Error::start(format!(
                    "`{name}` is there already, as set {:016x}: it is founded once, and joined ever after",
                    set.group.0
                )));
            }
            let group = GroupId(Chance::new().bits());
            self.process.begin(&seat, Set { group, terms }, true);
        }
        Ok(())
    }

    /// How this process's replica of a service stands; none if it hosts none of this name.
    pub fn standing(&self, name: &str) -> Option<Standing> {
        self.process.seat(name).map(|seat| standing(&seat))
    }

    /// The names of the services, and how their replicas stand.
    pub fn services(&self) -> Vec<(String, Standing)> {
        self.process.seats().iter().map(|seat| (seat.name.clone(), standing(seat))).collect()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.process.addresses()[0]
    }

    /// This process.
    pub fn id(&self) -> ProcessId {
        self.process.me()
    }
}

fn refusal(name: &str, there: &Seat) -> Error {
    match standing(there).ended {
        Some(why) => Error::start(format!(
            "this process's replica of `{name}` has ended ({why}), and a process has one at most: start another process"
        )),
        None => Error::start(format!("this process serves `{name}` already")),
    }
}

fn standing(seat: &Seat) -> Standing {
    let Role::Replica(hosting) = &seat.role else { unreachable!("a host has replicas") };
    Standing {
        set: seat.set().map(|set| set.group.0),
        changes: hosting.tally.changes.load(Ordering::Relaxed),
        restored: hosting.tally.restored.load(Ordering::Relaxed),
        ..lock(&hosting.standing).clone()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("id", &self.id()).field("address", &self.address).finish_non_exhaustive()
    }
}

impl HostBuilder {
    /// Where it listens, `host:port`; `127.0.0.1` at a port of the system's choice, unless said otherwise.
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = address.into();
        self
    }

    /// Where the others reach it, `host:port`, if not where it listens.
    #[must_use]
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertise = Some(address.into());
        self
    }

    /// Lets it listen at addresses other than loopback. Links are neither encrypted nor authenticated.
    #[must_use]
    pub fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }

    /// Where other hosts may be. Its own address may be among them, and does no harm.
    #[must_use]
    pub fn seeds<A: Into<String>>(mut self, addresses: impl IntoIterator<Item = A>) -> Self {
        self.seeds = addresses.into_iter().map(Into::into).collect();
        self
    }

    /// The domain of its services, by name: processes of another one do not speak with it. There is one that is taken unless
    /// another is named.
    #[must_use]
    pub fn domain(mut self, name: impl Into<String>) -> Self {
        self.domain = name.into();
        self
    }

    /// How many bytes of agreed changes are kept for replicas that lag, 64 MiB unless said otherwise. Those that lack more
    /// are given a checkpoint.
    #[must_use]
    pub fn log_bytes_kept(mut self, bytes: usize) -> Self {
        self.log_bytes_kept = bytes;
        self
    }

    /// Starts it: it listens, and serves nothing yet.
    pub fn start(self) -> Result<Host, Error> {
        let place = self
            .listen
            .to_socket_addrs()
            .map_err(|error| Error::start(format!("{}: {error}", self.listen)))?;
        let place = place.take(1).collect::<Vec<_>>();
        if place.is_empty() {
            return Err(Error::start(format!("{} has no address", self.listen)));
        }
        let mut config = config(&self.domain, place);
        (config.insecure, config.advertise) = (self.insecure, self.advertise.clone());
        let asks = !self.seeds.is_empty();
        let process = Process::start(config, self.seeds)?;
        let address = self.advertise.unwrap_or_else(|| process.addresses()[0].to_string());
        Ok(Host { process, address, asks, log_bytes_kept: self.log_bytes_kept })
    }
}

/// For so long the seeds are asked before a set is founded.
const SURVEY_PATIENCE: Duration = Duration::from_secs(2);

/// No set has more replicas.
const REPLICAS_MAX: u8 = 15;
