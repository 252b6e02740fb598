//! A process that hosts replicas of services.

use std::{
    net::TcpListener,
    sync::{Arc, Mutex, atomic::Ordering},
    thread,
    time::Duration,
};

use crossbeam_channel::unbounded;
use quorate_protocol::{Peer, ProcessId, service::GroupId};
use quorate_runtime::chance::Chance;

use super::{
    Service,
    executor::{Executor, Tally, print},
    hosted::{Hosted, Set, Terms},
    process::{Hosting, Process, Seat, Side, config, lock},
};
use crate::error::Error;

/// A process that hosts replicas of services. Dropped, it ends at once and says goodbye to nobody, as if it had been killed.
pub(crate) struct Host {
    process: Arc<Process>,
    address: String,
    asks: bool,
    log_bytes_kept: usize,
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
        let HostSettings { domain, listener, advertised, insecure, seeds, log_bytes_kept } = settings;
        let mut config = config(&domain);
        config.listening = vec![listener];
        (config.insecure, config.advertise) = (insecure, Some(advertised.clone()));
        let asks = !seeds.is_empty();
        let process = Process::start(config, seeds)?;
        Ok(Host { process, address: advertised, asks, log_bytes_kept })
    }

    /// Hosts a replica: [`Node::serve`](crate::Node::serve).
    pub(crate) fn serve<S: Service>(&self, name: &str, state: S, begin: Begin) -> Result<(), Error> {
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
        let seat = self
            .process
            .add(name, Side::Replica(hosting), hosted)
            .map_err(|there| refusal(&self.process, name, &there))?;
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
    pub(crate) fn standing(&self, name: &str) -> Option<Standing> {
        self.process.seat(name).map(|seat| standing(&self.process, &seat))
    }

    /// The names of the services, and how their replicas stand.
    pub(crate) fn services(&self) -> Vec<(String, Standing)> {
        self.process.seats().iter().map(|seat| (seat.name.clone(), standing(&self.process, seat))).collect()
    }

    /// Where the others reach it.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

fn refusal(process: &Process, name: &str, there: &Seat) -> Error {
    match standing(process, there).ended {
        Some(why) => Error::start(format!(
            "this process's replica of `{name}` has ended ({why}), and a process has one at most: start another process"
        )),
        None => Error::start(format!("this process serves `{name}` already")),
    }
}

fn standing(process: &Process, seat: &Seat) -> Standing {
    let Side::Replica(hosting) = &seat.side else { unreachable!("a host has replicas") };
    Standing {
        me: Some(process.me()),
        set: seat.set().map(|set| set.group.0),
        changes: hosting.tally.changes.load(Ordering::Relaxed),
        restored: hosting.tally.restored.load(Ordering::Relaxed),
        ..lock(&hosting.standing).clone()
    }
}

/// For so long the seeds are asked before a set is founded.
const SURVEY_PATIENCE: Duration = Duration::from_secs(2);

/// No set has more replicas.
const REPLICAS_MAX: u8 = 15;
