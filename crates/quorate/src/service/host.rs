//! A process that hosts replicas of services.

use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use crossbeam_channel::unbounded;
use quorate_protocol::{
    Peer, ProcessId, Ticket,
    service::{GroupId, Pipelining},
};
use quorate_runtime::{chance::Chance, clock};

use super::{
    Service,
    directory::Directory,
    executor::{Executor, Performer, Tally, print},
    hosted::{Hosted, Keeping, Set, Terms, Unrecovered},
    http::Door,
    inline::Inline,
    process::{self, Hosting, Process, Seat, Side, config, lock},
};
use crate::error::Error;

/// A process that hosts replicas of services. Dropped, it ends at once and says goodbye to nobody, as if it had been killed.
pub(crate) struct Host {
    process: Arc<Process>,
    address: String,
    asks: bool,
    log_bytes_kept: usize,
    /// Whether it checks what its services do.
    checks: bool,
    pipelining: Pipelining,
    /// With a disk.
    directory: Option<Directory>,
    door: Option<Door>,
}

/// How a host is set up.
pub(crate) struct HostSettings {
    /// The domain of its services, by name.
    pub(crate) domain: String,
    pub(crate) listener: Arc<TcpListener>,
    /// Where the others reach it.
    pub(crate) advertised: String,
    /// Lets it listen at addresses other than loopback.
    pub(crate) insecure: bool,
    /// Where other hosts may be.
    pub(crate) seeds: Vec<String>,
    /// Bytes of agreed changes that are kept for replicas that lag.
    pub(crate) log_bytes_kept: usize,
    /// Has each change applied, reverted and applied again, and the states compared.
    pub(crate) checks: bool,
    /// How writes follow each other.
    pub(crate) pipelining: Pipelining,
    /// Where its replicas keep their logs, and the node's number there; none: in memory.
    pub(crate) directory: Option<(PathBuf, u64)>,
    /// Where it listens for calls over HTTP.
    pub(crate) http: Option<String>,
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
    /// The process that hosts it.
    pub me: Option<ProcessId>,
    /// The random number of its set; none while it looks for one.
    pub set: Option<u64>,
    /// The replica that leads, as far as this one knows.
    pub leader: Option<ProcessId>,
    /// Whether this one executes calls.
    pub serving: bool,
    /// Whether the service is executed by the thread that serves the links ([`Service::SHORT`]).
    pub inline: bool,
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
    /// Starts it: it listens, and serves nothing yet.
    pub(crate) fn start(settings: HostSettings) -> Result<Host, Error> {
        let HostSettings {
            domain,
            listener,
            advertised,
            insecure,
            seeds,
            log_bytes_kept,
            checks,
            pipelining,
            directory,
            http,
        } = settings;
        let mut config = config(&domain);
        config.listening = vec![listener];
        (config.insecure, config.advertise) = (insecure, Some(advertised.clone()));
        let asks = !seeds.is_empty();
        let open = |(directory, node): (PathBuf, u64)| Directory::open(&directory, config.domain, node);
        let (directory, disk) = directory.map(open).transpose()?.unzip();
        let hosts = seeds.iter().cloned().chain([advertised.clone()]).collect();
        let process = Process::start(config, seeds, directory.as_ref().zip(disk))?;
        let door = http.map(|http| Door::open(&http, insecure, (&process, hosts, &domain))).transpose()?;
        Ok(Host { process, address: advertised, asks, log_bytes_kept, checks, pipelining, directory, door })
    }

    /// Hosts a replica: [`Node::serve`](crate::Node::serve).
    pub(crate) fn serve<S: Service>(&self, name: &str, state: S, begin: Begin) -> Result<(), Error> {
        let channel = self.process.channel(name);
        let log = self.directory.as_ref().and_then(|place| place.log(channel));
        let replicas = match begin {
            Begin::Found { replicas } if (1..=REPLICAS_MAX).contains(&replicas) => replicas,
            Begin::Found { replicas } => {
                return Err(Error::start(format!(
                    "{replicas} replicas of `{name}`: 1 to {REPLICAS_MAX} can be"
                )));
            }
            Begin::Join if !self.asks && log.is_none() => {
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
        let terms = Terms { beginning, replicas, durable: self.directory.is_some() };
        let me = Peer { id: self.process.me(), address: self.address.clone() };
        let (log_bytes_kept, pipelining) = (self.log_bytes_kept, self.pipelining);
        let keeping = Keeping { log_bytes_kept, pipelining, carries: S::CARRIES };
        let tally = Arc::new(Tally::default());
        let performer: Box<dyn Performer> = Box::new(Executor::new(state, tally.clone(), self.checks));
        let (performer, inline) = match S::SHORT {
            true => (None, Some(Box::new(Inline::new(performer)))),
            false => (Some(performer), None),
        };
        let Some((log, place)) = log.zip(self.directory.as_ref()) else {
            let founds = begin != Begin::Join;
            let hosted = Hosted::replica(me, keeping, inline);
            let seat = self.begin::<S>(name, (performer, tally), (terms, founds), hosted, None)?;
            return if founds { self.found(&seat, terms) } else { Ok(()) };
        };
        let (set, hosted) = Hosted::recovered(&me, log, (keeping, inline), clock::now())
            .map_err(|error| unrecovered(name, &me.address, error))?;
        if let Some(why) = terms.differ(set.terms) {
            return Err(Error::start(format!("`{name}`: {why}")));
        }
        self.begin::<S>(name, (performer, tally), (set.terms, false), hosted, Some((set, place.first)))?;
        place.goes_on(channel);
        Ok(())
    }

    /// Takes a replica in, and starts the thread of its service, if that has one.
    fn begin<S: Service>(
        &self,
        name: &str,
        (performer, tally): (Option<Box<dyn Performer>>, Arc<Tally>),
        (terms, founds): (Terms, bool),
        hosted: Hosted,
        recovered: Option<(Set, Ticket)>,
    ) -> Result<Arc<Seat>, Error> {
        let (orders, waiting) = unbounded();
        let (inline, thread) = match performer {
            None => (Some(waiting), None),
            Some(performer) => (None, Some((performer, waiting))),
        };
        let (inline, standing) = (Mutex::new(inline), Mutex::default());
        let hosting = Hosting { terms, founds, orders, inline, tally, standing };
        let side = Side::Replica(Box::new(hosting));
        let added = self.process.add(name, side, hosted, recovered);
        let seat = added.map_err(|there| refusal(&self.process, name, &there))?;
        if let Some((performer, waiting)) = thread
            && let Err(error) = process::spawn(performer, waiting, self.process.results(&seat))
        {
            self.process.remove(&seat);
            return Err(Error::start(error));
        }
        if let Some(door) = &self.door {
            door.admit::<S>(name);
        }
        Ok(seat)
    }

    /// Founds the set, unless one of the seeds shows one.
    fn found(&self, seat: &Seat, terms: Terms) -> Result<(), Error> {
        let founded = match self.asks.then(|| self.process.survey(seat, SURVEY_PATIENCE)).flatten() {
            Some(set) => Err(Error::start(format!(
                "`{}` is there already, as set {:016x}: it is founded once, and joined ever after",
                seat.name, set.group.0
            ))),
            None => match &self.directory {
                Some(place) => place.found(&seat.name, self.process.channel(&seat.name)),
                None => Ok(()),
            },
        };
        if founded.is_err() {
            self.process.remove(seat);
            return founded;
        }
        let group = GroupId(Chance::new().bits());
        self.process.begin(seat, Set { group, terms }, true);
        Ok(())
    }

    /// How this process's replica of a service stands; none if it hosts none of this name.
    pub(crate) fn standing(&self, name: &str) -> Option<Standing> {
        self.process.seat(name).map(|seat| standing(&self.process, &seat))
    }

    /// The names of the services, and how their replicas stand.
    pub(crate) fn services(&self) -> Vec<(String, Standing)> {
        services(&self.process)
    }

    /// Where its HTTP door is, if it has one.
    pub(crate) fn http_address(&self) -> Option<SocketAddr> {
        self.door.as_ref().map(Door::address)
    }

    /// Where the others reach it.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

fn unrecovered(name: &str, address: &str, why: Unrecovered) -> Error {
    Error::start(match why {
        Unrecovered::Corrupt(why) => {
            format!("`{name}` cannot go on from the journal of this host, which does not decode: {why}")
        }
        Unrecovered::Moved(before) => format!(
            "the others know this replica of `{name}` at {before}, and it would be at {address} now: have the host listen \
             where it did, or begin in another directory"
        ),
    })
}

fn refusal(process: &Process, name: &str, there: &Seat) -> Error {
    match standing(process, there).ended {
        Some(why) => Error::start(format!(
            "this process's replica of `{name}` has ended ({why}), and a process has one at most: start another process"
        )),
        None => Error::start(format!("this process serves `{name}` already")),
    }
}

pub(super) fn services(process: &Process) -> Vec<(String, Standing)> {
    process.seats().iter().map(|seat| (seat.name.clone(), standing(process, seat))).collect()
}

fn standing(process: &Process, seat: &Seat) -> Standing {
    let Side::Replica(hosting) = &seat.side else { unreachable!("a host has replicas") };
    Standing {
        me: Some(process.me()),
        set: seat.set().map(|set| set.group.0),
        inline: lock(&hosting.inline).is_some(),
        changes: hosting.tally.changes.load(Ordering::Relaxed),
        restored: hosting.tally.restored.load(Ordering::Relaxed),
        ..lock(&hosting.standing).clone()
    }
}

/// For so long the seeds are asked before a set is founded.
const SURVEY_PATIENCE: Duration = Duration::from_secs(2);

/// No set has more replicas.
const REPLICAS_MAX: u8 = 15;
