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
    paxos,
    service::{self, GroupId, Pipelining},
};
use quorate_roles::services::Restoring;
use quorate_runtime::{chance::Chance, clock};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Carries, Export, Service, ServiceLoop,
    directory::{Directory, SideJournal},
    encoder::decode,
    executor::{ServiceExecutor, Tally},
    http::{Door, bounds::DoorLimits},
    looped::Looped,
    object::ServiceObject,
    process::{Process, config},
    replica_status::ReplicaStatus,
    service_endpoint::{ReplicaOptions, ServiceEndpoint, Set, Terms, Unrecovered},
    slot::{ExecutorKind, HostShared, ReplicaLife, ServiceMaker, ServiceSlot},
    stub::Connection,
};
use crate::{error::Error, lock::lock, wait::Wait};

/// A process that hosts replicas of services. Dropping it ends it at once without a goodbye, as if it had
/// been killed.
pub(crate) struct Host {
    host_shared: Arc<HostShared>,
    log_bytes_kept: usize,
    /// Whether the host checks its services.
    checks: bool,
    /// Upper bound of a service's state after a change, in bytes.
    state_bytes_max: usize,
    pipelining: Pipelining,
    /// The directory with the journal of the main process.
    directory: Option<Directory>,
    side_journals: Mutex<Vec<SideJournal>>,
    /// Services that the main process has served. It does not begin a replica of them again.
    served: Mutex<BTreeSet<String>>,
    door: Option<Door>,
}

/// The settings of a host.
pub(crate) struct HostSettings {
    /// Name of the domain of the host's services.
    pub(crate) domain: String,
    pub(crate) listener: Arc<TcpListener>,
    /// The address at which other processes reach the host.
    pub(crate) advertised: String,
    /// The addresses for the host's further processes: where they listen, and where other processes reach
    /// them.
    pub(crate) further_addresses: (String, Option<String>),
    /// Whether the host may listen at addresses other than loopback.
    pub(crate) insecure: bool,
    /// Addresses of other hosts.
    pub(crate) seeds: Vec<String>,
    /// Upper bound of the agreed changes that a replica keeps for replicas that lag, in bytes.
    pub(crate) log_bytes_kept: usize,
    /// Whether each change is applied, reverted and applied again, and the states compared.
    pub(crate) checks: bool,
    /// Upper bound of a service's state after a change, in bytes.
    pub(crate) state_bytes_max: usize,
    /// Whether the leader executes a write before the previous write is chosen.
    pub(crate) pipelining: Pipelining,
    /// The directory for the logs of the host's replicas, and the node's number in it. `None` keeps logs in
    /// memory.
    pub(crate) directory: Option<(PathBuf, u64)>,
    /// The address at which the host listens for calls over HTTP.
    pub(crate) http: Option<String>,
}

/// The way in which a replica begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Founds a new set with this one replica; other replicas join the set. A service is founded once: a
    /// second founding makes another service of the same name. If a seed already belongs to a set, founding
    /// fails.
    Found {
        /// Wanted number of replicas: 1 to 15, best odd. Further hosts are spare, and replace failed
        /// replicas.
        replicas: u8,
    },
    /// Joins the set of the seeds, as soon as a seed shows the set.
    Join,
}

impl Host {
    /// Starts the host: it listens, and serves nothing yet.
    pub(crate) fn start(settings: HostSettings) -> Result<Host, Error> {
        let HostSettings {
            domain,
            listener,
            advertised,
            further_addresses,
            insecure,
            seeds,
            log_bytes_kept,
            checks,
            state_bytes_max,
            pipelining,
            directory,
            http,
        } = settings;
        let mut config = config(&domain);
        config.listening = vec![listener];
        (config.insecure, config.advertise) = (insecure, Some(advertised.clone()));
        let open = |(place, node): &(PathBuf, u64)| -> Result<_, Error> {
            let (directory, disk) = Directory::open(place, config.domain, *node)?;
            Ok((directory, disk, Directory::side_journals(place, config.domain)?))
        };
        let (directory, disk, side_journals) = match directory.as_ref().map(open).transpose()? {
            Some((directory, disk, side_journals)) => (Some(directory), Some(disk), side_journals),
            None => (None, None, Vec::new()),
        };
        let hosts = seeds.iter().cloned().chain([advertised.clone()]).collect();
        let (endings, ended) = unbounded();
        let on_disk = directory.as_ref().zip(disk);
        let main = Process::start(config, seeds.clone(), on_disk, Some(endings.clone()))?;
        let host_shared = Arc::new(HostShared {
            main,
            domain: domain.clone(),
            address: advertised,
            seeds,
            insecure,
            further_addresses,
            directory: directory.as_ref().map(Directory::place),
            slots: Mutex::default(),
            endings,
        });
        HostShared::keep(&host_shared, ended)?;
        let door = http
            .map(|http| Door::open(&http, (insecure, DoorLimits::default()), (&host_shared, hosts, &domain)))
            .transpose()?;
        let (side_journals, served) = (Mutex::new(side_journals), Mutex::default());
        Ok(Host {
            host_shared,
            log_bytes_kept,
            checks,
            state_bytes_max,
            pipelining,
            directory,
            side_journals,
            served,
            door,
        })
    }

    /// Hosts a replica: [`Node::serve`](crate::Node::serve).
    pub(crate) fn serve<S: Service>(&self, name: &str, state: S, begin: Begin) -> Result<(), Error> {
        self.host(
            name,
            state,
            begin,
            ExecutionMode { restoring: Restoring::default(), any_order: false, made: sequential_executor },
        )
    }

    /// Hosts a replica of a service with threads of its own: [`Node::serve_loop`](crate::Node::serve_loop).
    pub(crate) fn serve_loop<S: ServiceLoop>(&self, name: &str, state: S, begin: Begin) -> Result<(), Error> {
        goes_without_witness::<S>(name)?;
        let restoring = Restoring::default();
        self.host(name, state, begin, ExecutionMode { restoring, any_order: true, made: in_any_order })
    }

    /// Founds a set that begins with the state of an earlier set: [`Node::restore`](crate::Node::restore).
    pub(crate) fn restore<S: Service>(
        &self,
        name: &str,
        first: S,
        export: &Export,
        replicas: u8,
    ) -> Result<(), Error> {
        self.restore_with(name, first, (export, replicas), (false, sequential_executor))
    }

    /// Restores a service with threads of its own: [`Node::restore_loop`](crate::Node::restore_loop).
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
        (any_order, made): (bool, fn(ServiceExecutor<S>) -> ExecutorKind),
    ) -> Result<(), Error> {
        let channel = self.host_shared.main.channel(name);
        let has_log = |directory: &Directory| directory.log(channel).is_some();
        let has_side_journal =
            lock(&self.side_journals).iter().any(|side_journal| has_log(&side_journal.directory));
        if has_side_journal || self.directory.as_ref().is_some_and(has_log) {
            return Err(Error::start(format!(
                "this host has a replica of the service `{name}` on its disk: serve that replica, or \
                 restore into another directory"
            )));
        }
        self.check_size(export.state().len())?;
        decode::<S>(export.state()).map_err(|error| {
            let of = export.name();
            Error::start(format!(
                "the exported state of the service `{of}` does not decode as a state of this service: \
                     {error}"
            ))
        })?;
        let mut chance = Chance::new();
        let word = u128::from(chance.bits()) << 64 | u128::from(chance.bits());
        let parts = export.parts(S::CARRIES == Carries::State);
        let count = parts.len();
        let begin = Begin::Found { replicas };
        let restoring = Restoring::with(word, parts);
        self.host(name, first, begin, ExecutionMode { restoring, any_order, made })?;
        let own = vec![self.host_shared.address.clone()];
        let stub = Connection::start(&self.host_shared.domain, own, RESTORE_PATIENCE)?.service::<S>(name);
        let word = Bytes::copy_from_slice(&word.to_le_bytes());
        let put = (0..count).try_for_each(|_| stub.call_raw(word.clone()).wait());
        put.inspect_err(|_| {
            // Restoring failed, and no client knows of the service yet, so the host withdraws it.
            let _ = self.withdraw(name);
        })
    }

    /// Refuses a state above the bound, because every further change would be refused.
    fn check_size(&self, bytes: usize) -> Result<(), Error> {
        let limit = self.state_bytes_max;
        if bytes > limit { Err(Error::TooLarge { bytes, limit }) } else { Ok(()) }
    }

    fn host<S: Service>(
        &self,
        name: &str,
        state: S,
        begin: Begin,
        ExecutionMode { restoring, any_order, made }: ExecutionMode<S>,
    ) -> Result<(), Error> {
        let host_shared = &self.host_shared;
        let channel = host_shared.main.channel(name);
        let side_journal = self.take_side_journal(channel);
        let log = match &side_journal {
            Some(side_journal) => side_journal.directory.log(channel),
            None => self.directory.as_ref().and_then(|place| place.log(channel)),
        };
        let replicas = match begin {
            Begin::Found { replicas } if (1..=REPLICAS_MAX).contains(&replicas) => replicas,
            Begin::Found { replicas } => {
                return Err(Error::start(format!(
                    "{replicas} replicas of the service `{name}` are not possible: a service has 1 to \
                     {REPLICAS_MAX} replicas"
                )));
            }
            Begin::Join if host_shared.seeds.is_empty() && log.is_none() => {
                return Err(Error::start(format!(
                    "the service `{name}` cannot be joined without seeds: name a host that serves `{name}`"
                )));
            }
            // A host that joins passes no number of replicas, because the founder's number counts.
            Begin::Join => 0,
        };
        let first = postcard::to_stdvec(&state).map_err(|error| {
            Error::start(format!("the first state of `{name}` does not serialise: {error}"))
        })?;
        self.check_size(first.len())?;
        let terms = Terms { beginning: xxh3_64(&first), replicas, durable: self.directory.is_some() };
        let options = ReplicaOptions::new(service::Settings {
            log: paxos::Settings { log_bytes_kept: self.log_bytes_kept, ..paxos::Settings::default() },
            // Requests may wait for each other in the service, so executing one request at a time could block
            // for ever.
            pipelining: if any_order { Pipelining::Speculative } else { self.pipelining },
            whole_states: S::CARRIES == Carries::State,
            any_order,
            ..service::Settings::default()
        });
        let settings =
            ExecutorSettings { checks: self.checks, state_bytes_max: self.state_bytes_max, any_order, made };
        let make_service = make_service((state, restoring), first, settings);
        let slot = ServiceSlot::new(name, (terms, options), make_service);
        self.take_in(&slot)?;
        let begun = match log {
            Some(log) => self.go_on(&slot, side_journal, log),
            None => self.begin(&slot, begin != Begin::Join),
        };
        match begun {
            Ok(life) => *lock(&slot.life) = Some(life),
            Err(error) => {
                lock(&host_shared.slots).remove(name);
                return Err(error);
            }
        }
        if let Some(door) = &self.door {
            door.admit::<S>(name);
        }
        Ok(())
    }

    /// Reserves the slot's name for this slot. Fails if another slot has the name, unless that slot's replica
    /// has ended for good and no journal of it is kept.
    fn take_in(&self, slot: &Arc<ServiceSlot>) -> Result<(), Error> {
        let mut slots = lock(&self.host_shared.slots);
        if let Some(there) = slots.get(&slot.name) {
            if there.has_ended().is_none() {
                return Err(Error::start(format!("this process serves the service `{}` already", slot.name)));
            }
            if !there.kept().is_empty() {
                return Err(Error::start(format!(
                    "the replica of the service `{}` at this host has ended, and its journal is kept: start \
                     the host again to go on from the journal, or withdraw the service",
                    slot.name
                )));
            }
        }
        let before = slots.insert(slot.name.clone(), slot.clone());
        drop(slots);
        if let Some(before) = before {
            self.host_shared.end(&before);
        }
        Ok(())
    }

    /// Removes the side journal that has a log of this service from the list, and returns it, if there is
    /// one.
    fn take_side_journal(&self, channel: Channel) -> Option<SideJournal> {
        let mut side_journals = lock(&self.side_journals);
        let place = side_journals
            .iter()
            .position(|side_journal| side_journal.directory.channels().contains(&channel))?;
        Some(side_journals.swap_remove(place))
    }

    /// Begins a replica without a log.
    fn begin(&self, slot: &ServiceSlot, founds: bool) -> Result<ReplicaLife, Error> {
        let Host { host_shared, served, .. } = self;
        let runs_in = match lock(served).insert(slot.name.clone()) {
            true => host_shared.main_process(),
            false => host_shared.further_process(host_shared.new_side_journal()?, None)?,
        };
        let new_endpoint =
            |me, inline| Ok((ServiceEndpoint::replica(me, slot.options.clone(), inline), None));
        let life = slot.begin(runs_in, (slot.terms, founds), new_endpoint)?;
        if founds {
            self.found(&life, slot.terms)?;
        }
        Ok(life)
    }

    /// Continues a replica from the log that it wrote, in a side journal or in the main journal.
    fn go_on(
        &self,
        slot: &ServiceSlot,
        side_journal: Option<SideJournal>,
        log: Vec<Bytes>,
    ) -> Result<ReplicaLife, Error> {
        let Host { host_shared, directory, served, .. } = self;
        let ServiceSlot { name, terms, options, .. } = slot;
        lock(served).insert(name.clone());
        let has_side_journal = side_journal.is_some();
        let (runs_in, first) = match side_journal {
            Some(side_journal) => {
                let first = side_journal.directory.first;
                let known_at =
                    ServiceEndpoint::known_at(side_journal.disk.process(), log.clone(), options.clone());
                // The records of the former replica in the main journal are not needed any longer.
                host_shared.main.release(name);
                (host_shared.further_process(Some(side_journal), known_at)?, first)
            }
            None => {
                let first = directory.as_ref().expect("a log is in a directory").first;
                (host_shared.main_process(), first)
            }
        };
        let life = slot.begin(runs_in, (*terms, false), |me, inline| {
            let (set, service_endpoint) =
                ServiceEndpoint::recovered(&me, log, (options.clone(), inline), clock::now())
                    .map_err(|error| unrecovered(name, &me.address, error))?;
            match terms.differ(set.terms) {
                Some(why) => Err(Error::start(format!("`{name}`: {why}"))),
                None => Ok((service_endpoint, Some((set, first)))),
            }
        })?;
        if has_side_journal {
            host_shared
                .put_redirect(slot, life.endpoint.set().expect("a replica that goes on belongs to a set"));
        } else if let Some(directory) = directory {
            directory.goes_on(host_shared.main.channel(name));
        }
        Ok(life)
    }

    /// Founds the service's set, unless a process at one of the seeds already shows a set for the service.
    fn found(&self, life: &ReplicaLife, terms: Terms) -> Result<(), Error> {
        let (process, endpoint) = (&life.runs_in.process, &life.endpoint);
        let asks = !self.host_shared.seeds.is_empty();
        let founded = match asks.then(|| process.survey(endpoint, SURVEY_PATIENCE)).flatten() {
            Some(set) => Err(Error::start(format!(
                "the service `{}` exists already, as set {:016x}: a service is founded once, and then joined",
                endpoint.name, set.group.0
            ))),
            None => match &self.directory {
                Some(place) => place.found(&endpoint.name, process.channel(&endpoint.name)),
                None => Ok(()),
            },
        };
        if founded.is_err() {
            process.remove(endpoint);
            lock(&self.served).remove(&endpoint.name);
            return founded;
        }
        let group = GroupId(Chance::new().bits());
        process.begin(endpoint, Set { group, terms }, true);
        Ok(())
    }

    /// Ends a service here for good: [`Node::withdraw`](crate::Node::withdraw).
    pub(crate) fn withdraw(&self, name: &str) -> Result<(), Error> {
        match self.host_shared.withdraw(name) {
            true => Ok(()),
            false => Err(Error::start(format!("this node serves no service `{name}`"))),
        }
    }

    /// Copies the state of the host's replica: [`Node::export`](crate::Node::export).
    pub(crate) fn export(&self, name: &str) -> Result<Export, Error> {
        let slot = self.host_shared.slot(name);
        slot.ok_or_else(|| Error::start(format!("this node serves no service `{name}`")))?.export()
    }

    pub(crate) fn host_shared(&self) -> &Arc<HostShared> {
        &self.host_shared
    }

    /// Returns the present state of this process's replica of a service, or `None` if it hosts none.
    pub(crate) fn replica_status(&self, name: &str) -> Option<ReplicaStatus> {
        self.host_shared.slot(name).map(|slot| slot.replica_status())
    }

    /// Returns the names of the services, and the present states of their replicas.
    pub(crate) fn services(&self) -> Vec<(String, ReplicaStatus)> {
        self.host_shared.services()
    }

    /// Returns the address of the host's HTTP door, if it has one.
    pub(crate) fn http_address(&self) -> Option<SocketAddr> {
        self.door.as_ref().map(Door::address)
    }

    /// Returns the address at which other processes reach the host.
    pub(crate) fn address(&self) -> &str {
        &self.host_shared.address
    }
}

/// The way in which a host executes a service.
struct ExecutionMode<S: Service> {
    restoring: Restoring,
    /// Whether the service has threads of its own, which complete requests in any order.
    any_order: bool,
    made: fn(ServiceExecutor<S>) -> ExecutorKind,
}

/// The settings of a service's executors, for all lives of the service's replica.
struct ExecutorSettings<S: Service> {
    /// Whether each change is checked.
    checks: bool,
    /// Upper bound of the state after a change, in bytes.
    state_bytes_max: usize,
    /// Whether the service has threads of its own, which complete requests in any order.
    any_order: bool,
    made: fn(ServiceExecutor<S>) -> ExecutorKind,
}

/// Returns a function that makes the service. Its first call uses the given state, and later calls decode
/// that state from its bytes.
fn make_service<S: Service>(
    given: (S, Restoring),
    first: Vec<u8>,
    ExecutorSettings { checks, state_bytes_max, any_order, made }: ExecutorSettings<S>,
) -> Box<ServiceMaker> {
    let given = Mutex::new(Some(given));
    Box::new(move |tally: Arc<Tally>| {
        let (state, restoring) = match lock(&given).take() {
            Some(given) => given,
            None => {
                let state = decode(&first).map_err(|error| {
                    Error::start(format!(
                        "the first state of the service cannot be decoded from its own bytes: {error}"
                    ))
                })?;
                (state, Restoring::default())
            }
        };
        let object = ServiceObject::new(state, checks).with_size(first.len(), state_bytes_max);
        Ok(made(ServiceExecutor::new(object, restoring, tally, any_order)))
    })
}

/// Wraps a service that executes its requests in order of arrival.
fn sequential_executor<S: Service>(executor: ServiceExecutor<S>) -> ExecutorKind {
    match S::SHORT {
        true => ExecutorKind::Inline(Box::new(executor)),
        false => ExecutorKind::Threaded(Box::new(executor)),
    }
}

/// Wraps a service with threads of its own.
fn in_any_order<S: ServiceLoop>(executor: ServiceExecutor<S>) -> ExecutorKind {
    ExecutorKind::Threaded(Box::new(Looped(executor)))
}

/// Refuses witnesses for a service with threads of its own: it completes requests in an order that no witness
/// records.
fn goes_without_witness<S: ServiceLoop>(name: &str) -> Result<(), Error> {
    match S::CARRIES {
        Carries::Witness => Err(Error::start(format!(
            "the service `{name}` has threads of its own, so it cannot carry witnesses: have the service \
             carry deltas or states"
        ))),
        Carries::Delta | Carries::State => Ok(()),
    }
}

fn unrecovered(name: &str, address: &str, why: Unrecovered) -> Error {
    let corrupt = |why: String| {
        format!(
            "the service `{name}` cannot go on from the journal of this host: {why}. Have the host begin in \
             an empty directory, and its replica join"
        )
    };
    Error::start(match why {
        Unrecovered::Corrupt(why) => corrupt(why),
        Unrecovered::Log(why) => corrupt(why.to_string()),
        Unrecovered::Moved(before) => format!(
            "the other replicas know this replica of the service `{name}` at {before}, and now the host \
             would listen at {address}: have the host listen at {before} again, or begin in another \
             directory"
        ),
    })
}

/// Time for which a founder asks the seeds for a set.
const SURVEY_PATIENCE: Duration = Duration::from_secs(2);

/// Time that the call for a part of a restored state may take. The founder is the only replica at that time,
/// so no other replica has to agree.
const RESTORE_PATIENCE: Duration = Duration::from_secs(30);

/// Upper bound of the number of replicas in a set.
const REPLICAS_MAX: u8 = 15;
