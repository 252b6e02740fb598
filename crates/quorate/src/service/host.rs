//! A process that hosts replicas of services.

use std::{
    collections::BTreeSet,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use crossbeam_channel::unbounded;
use quorate_node::Channel;
use quorate_protocol::{
    ProcessId,
    service::{GroupId, Pipelining},
};
use quorate_runtime::{chance::Chance, clock};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Carries, Export, Service, ServiceLoop,
    directory::{Aside, Directory},
    executor::{Executor, Tally},
    export::Restoring,
    hosted::{Hosted, Keeping, Set, Terms, Unrecovered},
    http::Door,
    looped::Looped,
    press::opened,
    process::{Process, config, lock},
    stub::Connection,
    tenant::{Fresh, House, Life, Made, Tenant},
};
use crate::{error::Error, wait::Wait};

/// A process that hosts replicas of services. Dropped, it ends at once and says goodbye to nobody, as if it had been killed.
pub(crate) struct Host {
    house: Arc<House>,
    log_bytes_kept: usize,
    /// Whether it checks what its services do.
    checks: bool,
    pipelining: Pipelining,
    /// The journals of the main process, and of those beside it from which no replica goes on yet.
    directory: Option<Directory>,
    sides: Mutex<Vec<Aside>>,
    /// Services that the main process has served: it serves none of them again.
    served: Mutex<BTreeSet<String>>,
    door: Option<Door>,
}

/// How a host is set up.
pub(crate) struct HostSettings {
    /// The domain of its services, by name.
    pub(crate) domain: String,
    pub(crate) listener: Arc<TcpListener>,
    /// Where the others reach it.
    pub(crate) advertised: String,
    /// Where its further processes listen, and are reached.
    pub(crate) beside: (String, Option<String>),
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
    /// Where the others reach it: not where the host listens, once it has come back as another process.
    pub address: Option<String>,
    /// How many replicas there were of this service here, one after another.
    pub lives: u64,
    /// Why the last of them ended. Another one takes its place after a pause.
    pub last_end: Option<String>,
    /// Why no further one comes.
    pub ended: Option<String>,
}

impl Host {
    /// Starts it: it listens, and serves nothing yet.
    pub(crate) fn start(settings: HostSettings) -> Result<Host, Error> {
        let HostSettings {
            domain,
            listener,
            advertised,
            beside,
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
        let open = |(place, node): &(PathBuf, u64)| -> Result<_, Error> {
            let (directory, disk) = Directory::open(place, config.domain, *node)?;
            Ok((directory, disk, Directory::sides(place, config.domain)?))
        };
        let (directory, disk, sides) = match directory.as_ref().map(open).transpose()? {
            Some((directory, disk, sides)) => (Some(directory), Some(disk), sides),
            None => (None, None, Vec::new()),
        };
        let hosts = seeds.iter().cloned().chain([advertised.clone()]).collect();
        let (endings, ended) = unbounded();
        let on_disk = directory.as_ref().zip(disk);
        let main = Process::start(config, seeds.clone(), on_disk, Some(endings.clone()))?;
        let house = Arc::new(House {
            main,
            domain: domain.clone(),
            address: advertised,
            seeds,
            insecure,
            beside,
            directory: directory.as_ref().map(Directory::place),
            tenants: Mutex::default(),
            endings,
        });
        House::keep(&house, ended)?;
        let door = http.map(|http| Door::open(&http, insecure, (&house, hosts, &domain))).transpose()?;
        let (sides, served) = (Mutex::new(sides), Mutex::default());
        Ok(Host { house, log_bytes_kept, checks, pipelining, directory, sides, served, door })
    }

    /// Hosts a replica: [`Node::serve`](crate::Node::serve).
    pub(crate) fn serve<S: Service>(&self, name: &str, state: S, begin: Begin) -> Result<(), Error> {
        self.host(
            name,
            state,
            begin,
            Way { restoring: Restoring::default(), any_order: false, made: one_by_one },
        )
    }

    /// Hosts a replica of a service with threads of its own: [`Node::serve_loop`](crate::Node::serve_loop).
    pub(crate) fn serve_loop<S: ServiceLoop>(&self, name: &str, state: S, begin: Begin) -> Result<(), Error> {
        goes_without_witness::<S>(name)?;
        let restoring = Restoring::default();
        self.host(name, state, begin, Way { restoring, any_order: true, made: in_any_order })
    }

    /// Founds a set that begins with an earlier one's state: [`Node::restore`](crate::Node::restore).
    pub(crate) fn restore<S: Service>(
        &self,
        name: &str,
        first: S,
        export: &Export,
        replicas: u8,
    ) -> Result<(), Error> {
        self.restore_with(name, first, (export, replicas), (false, one_by_one))
    }

    /// The same of a service with threads of its own: [`Node::restore_loop`](crate::Node::restore_loop).
    pub(crate) fn restore_loop<S: ServiceLoop>(
        &self,
        name: &str,
        first: S,
        export: &Export,
        replicas: u8,
    ) -> Result<(), Error> {
        goes_without_witness::<S>(name)?;
        self.restore_with(name, first, (export, replicas), (true, in_any_order))
    }

    fn restore_with<S: Service>(
        &self,
        name: &str,
        first: S,
        (export, replicas): (&Export, u8),
        (any_order, made): (bool, fn(Executor<S>) -> Made),
    ) -> Result<(), Error> {
        let channel = self.house.main.channel(name);
        let has_log = |directory: &Directory| directory.log(channel).is_some();
        let beside = lock(&self.sides).iter().any(|side| has_log(&side.directory));
        if beside || self.directory.as_ref().is_some_and(has_log) {
            return Err(Error::start(format!(
                "this host has a replica of `{name}` on its disk: serve it, or restore into another directory"
            )));
        }
        opened::<S>(export.state()).map_err(|error| {
            let of = export.name();
            Error::start(format!("the exported state of `{of}` is none of this service: {error}"))
        })?;
        let mut chance = Chance::new();
        let word = u128::from(chance.bits()) << 64 | u128::from(chance.bits());
        let parts = export.parts(S::CARRIES == Carries::State);
        let count = parts.len();
        let begin = Begin::Found { replicas };
        let restoring = Restoring::with(word, parts);
        self.host(name, first, begin, Way { restoring, any_order, made })?;
        let own = vec![self.house.address.clone()];
        let stub = Connection::start(&self.house.domain, own, RESTORE_PATIENCE)?.service::<S>(name);
        let word = Bytes::copy_from_slice(&word.to_le_bytes());
        let put = (0..count).try_for_each(|_| stub.call_raw(word.clone()).wait());
        put.inspect_err(|_| {
            // Nobody was told of it.
            let _ = self.withdraw(name);
        })
    }

    fn host<S: Service>(
        &self,
        name: &str,
        state: S,
        begin: Begin,
        Way { restoring, any_order, made }: Way<S>,
    ) -> Result<(), Error> {
        let house = &self.house;
        let channel = house.main.channel(name);
        let aside = self.take_side(channel);
        let log = match &aside {
            Some(aside) => aside.directory.log(channel),
            None => self.directory.as_ref().and_then(|place| place.log(channel)),
        };
        let replicas = match begin {
            Begin::Found { replicas } if (1..=REPLICAS_MAX).contains(&replicas) => replicas,
            Begin::Found { replicas } => {
                return Err(Error::start(format!(
                    "{replicas} replicas of `{name}`: 1 to {REPLICAS_MAX} can be"
                )));
            }
            Begin::Join if house.seeds.is_empty() && log.is_none() => {
                return Err(Error::start(format!(
                    "`{name}` cannot be joined without seeds: name a host that serves it"
                )));
            }
            // The founder's word counts.
            Begin::Join => 0,
        };
        let first = postcard::to_stdvec(&state).map_err(|error| {
            Error::start(format!("the first state of `{name}` does not serialise: {error}"))
        })?;
        let terms = Terms { beginning: xxh3_64(&first), replicas, durable: self.directory.is_some() };
        let keeping = Keeping {
            log_bytes_kept: self.log_bytes_kept,
            // Where requests wait for each other at the service, one at a time would stand still.
            pipelining: if any_order { Pipelining::Speculative } else { self.pipelining },
            carries: S::CARRIES,
            any_order,
        };
        let fresh = fresh((state, restoring), first, self.checks, made);
        let tenant = Tenant::new(name, (terms, keeping), fresh);
        self.take_in(&tenant)?;
        let begun = match log {
            Some(log) => self.go_on(&tenant, aside, log),
            None => self.begin(&tenant, begin != Begin::Join),
        };
        match begun {
            Ok(life) => *lock(&tenant.life) = Some(life),
            Err(error) => {
                lock(&house.tenants).remove(name);
                return Err(error);
            }
        }
        if let Some(door) = &self.door {
            door.admit::<S>(name);
        }
        Ok(())
    }

    /// The name is this tenant's, unless another one has it that may come back.
    fn take_in(&self, tenant: &Arc<Tenant>) -> Result<(), Error> {
        let mut tenants = lock(&self.house.tenants);
        if let Some(there) = tenants.get(&tenant.name)
            && there.has_ended().is_none()
        {
            return Err(Error::start(format!("this process serves `{}` already", tenant.name)));
        }
        let before = tenants.insert(tenant.name.clone(), tenant.clone());
        drop(tenants);
        if let Some(before) = before {
            self.house.end(&before);
        }
        Ok(())
    }

    /// The side on which this service has a log, if it has one.
    fn take_side(&self, channel: Channel) -> Option<Aside> {
        let mut sides = lock(&self.sides);
        let place = sides.iter().position(|side| side.directory.channels().contains(&channel))?;
        Some(sides.swap_remove(place))
    }

    /// A replica without a past.
    fn begin(&self, tenant: &Tenant, founds: bool) -> Result<Life, Error> {
        let Host { house, served, .. } = self;
        let lodging = match lock(served).insert(tenant.name.clone()) {
            true => house.main_process(),
            false => house.process_beside(house.new_side()?, None)?,
        };
        let anew = |me, inline| Ok((Hosted::replica(me, tenant.keeping, inline), None));
        let life = tenant.begin(lodging, (tenant.terms, founds), anew)?;
        if founds {
            self.found(&life, tenant.terms)?;
        }
        Ok(life)
    }

    /// The replica that wrote this log, on a side or in the main journal.
    fn go_on(&self, tenant: &Tenant, aside: Option<Aside>, log: Vec<Bytes>) -> Result<Life, Error> {
        let Host { house, directory, served, .. } = self;
        let Tenant { name, terms, keeping, .. } = tenant;
        lock(served).insert(name.clone());
        let beside = aside.is_some();
        let (lodging, first) = match aside {
            Some(aside) => {
                let first = aside.directory.first;
                let known_at = Hosted::known_at(aside.disk.process(), log.clone(), *keeping);
                // Its former replica's.
                house.main.release(name);
                (house.process_beside(Some(aside), known_at)?, first)
            }
            None => {
                let first = directory.as_ref().expect("a log is in a directory").first;
                (house.main_process(), first)
            }
        };
        let life = tenant.begin(lodging, (*terms, false), |me, inline| {
            let (set, hosted) = Hosted::recovered(&me, log, (*keeping, inline), clock::now())
                .map_err(|error| unrecovered(name, &me.address, error))?;
            match terms.differ(set.terms) {
                Some(why) => Err(Error::start(format!("`{name}`: {why}"))),
                None => Ok((hosted, Some((set, first)))),
            }
        })?;
        if beside {
            house.put_signpost(tenant, life.seat.set().expect("it is of a set"));
        } else if let Some(directory) = directory {
            directory.goes_on(house.main.channel(name));
        }
        Ok(life)
    }

    /// Founds the set, unless one of the seeds shows one.
    fn found(&self, life: &Life, terms: Terms) -> Result<(), Error> {
        let (process, seat) = (&life.lodging.process, &life.seat);
        let asks = !self.house.seeds.is_empty();
        let founded = match asks.then(|| process.survey(seat, SURVEY_PATIENCE)).flatten() {
            Some(set) => Err(Error::start(format!(
                "`{}` is there already, as set {:016x}: it is founded once, and joined ever after",
                seat.name, set.group.0
            ))),
            None => match &self.directory {
                Some(place) => place.found(&seat.name, process.channel(&seat.name)),
                None => Ok(()),
            },
        };
        if founded.is_err() {
            process.remove(seat);
            lock(&self.served).remove(&seat.name);
            return founded;
        }
        let group = GroupId(Chance::new().bits());
        process.begin(seat, Set { group, terms }, true);
        Ok(())
    }

    /// Ends a service here for good: [`Node::withdraw`](crate::Node::withdraw).
    pub(crate) fn withdraw(&self, name: &str) -> Result<(), Error> {
        match self.house.withdraw(name) {
            true => Ok(()),
            false => Err(Error::start(format!("this node serves no `{name}`"))),
        }
    }

    /// A copy of its replica's state: [`Node::export`](crate::Node::export).
    pub(crate) fn export(&self, name: &str) -> Result<Export, Error> {
        let tenant = self.house.tenant(name);
        tenant.ok_or_else(|| Error::start(format!("this node serves no `{name}`")))?.export()
    }

    pub(crate) fn house(&self) -> &Arc<House> {
        &self.house
    }

    /// How this process's replica of a service stands; none if it hosts none of this name.
    pub(crate) fn standing(&self, name: &str) -> Option<Standing> {
        self.house.tenant(name).map(|tenant| tenant.standing())
    }

    /// The names of the services, and how their replicas stand.
    pub(crate) fn services(&self) -> Vec<(String, Standing)> {
        self.house.services()
    }

    /// Where its HTTP door is, if it has one.
    pub(crate) fn http_address(&self) -> Option<SocketAddr> {
        self.door.as_ref().map(Door::address)
    }

    /// Where the others reach it.
    pub(crate) fn address(&self) -> &str {
        &self.house.address
    }
}

/// How a service is executed.
struct Way<S: Service> {
    restoring: Restoring,
    /// Whether it has threads of its own.
    any_order: bool,
    made: fn(Executor<S>) -> Made,
}

/// Makes a service: the first time with the state as it was given, later with what its bytes say.
fn fresh<S: Service>(
    given: (S, Restoring),
    first: Vec<u8>,
    checks: bool,
    made: fn(Executor<S>) -> Made,
) -> Box<Fresh> {
    let given = Mutex::new(Some(given));
    Box::new(move |tally: Arc<Tally>| {
        let (state, restoring) = match lock(&given).take() {
            Some(given) => given,
            None => {
                let state = opened(&first).map_err(|error| {
                    Error::start(format!("the first state does not come back from its bytes: {error}"))
                })?;
                (state, Restoring::default())
            }
        };
        Ok(made(Executor::new(state, restoring, tally, checks)))
    })
}

/// A service that executes its requests in the order in which they come.
fn one_by_one<S: Service>(executor: Executor<S>) -> Made {
    match S::SHORT {
        true => Made::Inline(Box::new(executor)),
        false => Made::Threaded(Box::new(executor)),
    }
}

/// One with threads of its own.
fn in_any_order<S: ServiceLoop>(executor: Executor<S>) -> Made {
    Made::Threaded(Box::new(Looped(executor)))
}

/// A service with threads of its own completes requests in an order that no witness has.
fn goes_without_witness<S: ServiceLoop>(name: &str) -> Result<(), Error> {
    match S::CARRIES {
        Carries::Witness => Err(Error::start(format!(
            "`{name}` has threads of its own, which its witnesses do not tell of: have it carry deltas or states"
        ))),
        Carries::Delta | Carries::State => Ok(()),
    }
}

fn unrecovered(name: &str, address: &str, why: Unrecovered) -> Error {
    Error::start(match why {
        Unrecovered::Corrupt(why) => {
            format!(
                "`{name}` cannot go on from the journal of this host: {why}. Have the host begin in an empty directory, and its replica join"
            )
        }
        Unrecovered::Moved(before) => format!(
            "the others know this replica of `{name}` at {before}, and it would be at {address} now: have the host listen \
             where it did, or begin in another directory"
        ),
    })
}

/// For so long the seeds are asked before a set is founded.
const SURVEY_PATIENCE: Duration = Duration::from_secs(2);

/// A part of a restored state is agreed on by its founder alone.
const RESTORE_PATIENCE: Duration = Duration::from_secs(30);

/// No set has more replicas.
const REPLICAS_MAX: u8 = 15;
