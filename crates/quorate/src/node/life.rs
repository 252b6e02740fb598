//! One life of a node: a process, made for its role.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use quorate_protocol::{
    Generation, Peer, ProcessId, Role,
    domain::{self, Domain, Shared},
    ecast::{Router, RouterSettings},
    paxos::{self, Paxos},
    rubberband::{self, Client, ClientSettings, Handover, Storage, StorageSettings, Super, SuperSettings},
};
use quorate_runtime::{Config, chance, clock, metrics::Metrics};
use quorate_table::{
    engine::Engine,
    scan::{Costs, ScanEngine},
};
use quorate_tables as tables;
use tracing::info;

use super::{
    founding::{self, Beginning},
    journal::{Journal, Owner},
    setup::Setup,
};
use crate::{
    cluster::Requests,
    error::Error,
    process::{Parts, Process},
};

/// Shortest wait of a read: two rounds of asking (2 s each) and replacing (2 s each) a silent replica.
const READ_WAIT_MIN: Duration = Duration::from_secs(8);

/// Bytes of records after which a process with a disk writes its whole state, and forgets the records before.
pub(crate) const CHECKPOINT_BYTES: usize = 64 << 20;

/// A process that began.
pub(super) struct ProcessLife {
    pub(super) me: ProcessId,
    pub(super) generation: Generation,
    pub(super) process: Arc<Process>,
    pub(super) metrics: Metrics,
}

/// The state with which a life begins.
#[allow(clippy::large_enum_variant, reason = "there is one per life")]
pub(super) enum LifeStart {
    /// The first life of the process. A router's beginning is known, and its journal, if it has one.
    Nothing { beginning: Option<Beginning>, journal: Option<Journal> },
    /// The process had an earlier life, and the other processes go on without that life.
    Life(LifeRemains),
}

/// The state that a life leaves to the next one.
pub(super) struct LifeRemains {
    /// The last generation of the domain that it knew.
    pub(super) generation: Generation,
    /// A storage process's rows, which nobody else may have.
    pub(super) rows: Option<(Box<Handover>, Box<dyn Engine>)>,
}

impl ProcessLife {
    /// Begins a life.
    pub(super) fn begin(
        setup: &Setup,
        before: LifeStart,
        requests: &Arc<Requests>,
    ) -> Result<ProcessLife, Error> {
        let Setup { domain, number: node, role, late, .. } = *setup;
        let owner = Owner { domain, node, role, late };
        let anew = |place: &PathBuf| Journal::begin_anew(place, owner);
        let (former, beginning, mut journal) = match before {
            LifeStart::Nothing { beginning, journal } => (None, beginning, journal),
            LifeStart::Life(former) => (Some(former), None, setup.journal.as_ref().map(anew).transpose()?),
        };
        let (mut recovered, mut log) = (None, None);
        if let (Role::Storage | Role::Router, Some(place)) = (setup.role, &setup.journal)
            && let Some(opened) = journal.take_if(|journal| journal.goes_on())
        {
            let (address, anew) = (&setup.advertised, || anew(place));
            let opened = if setup.role == Role::Storage {
                let (opened, storage) = opened.storage(address, storage_settings(setup), anew)?;
                recovered = storage;
                opened
            } else {
                let (opened, before) = opened.router(address, &log_settings(setup), anew)?;
                log = before;
                opened
            };
            journal = Some(opened);
        }
        let fresh = ProcessId { node: setup.number, incarnation: chance::incarnation() };
        let me = journal.as_ref().map_or(fresh, Journal::process);
        let labels = [("process", setup.name.clone()), ("role", setup.role.to_string())];
        let metrics = Metrics::new(labels);
        let peer = Peer { id: me, address: setup.advertised.clone() };
        let mut parts = Parts {
            engine: None,
            client: None,
            routers: setup.routers.clone(),
            terms: setup.terms,
            disk: None,
        };
        // Routers of different generations do not talk. Members follow the later generation.
        let mut generation = former.as_ref().map_or(Generation::FIRST, |former| former.generation);
        if let Some(storage) = &recovered {
            generation = storage.member().generation();
        }
        let state = match setup.role {
            Role::Router => {
                let begun = match beginning {
                    Some(beginning) => beginning,
                    // Only a first life may found.
                    None => founding::begin(setup.domain, &setup.routers, false, setup.directory.as_deref())?,
                };
                if let Beginning::Join(current) = begun {
                    generation = generation.max(current);
                }
                let routing = journal.as_ref().map_or(Ok(1), Journal::routing)?;
                let router = router(setup, peer, begun, (generation, routing), log);
                parts.disk = journal.map(|journal| (journal.disk, journal.first));
                tables::Process::Router(router)
            }
            Role::Storage => {
                let rows = former.and_then(|former| former.rows);
                let (storage, engine) = storage(setup, peer, rows, recovered);
                parts.disk = journal.map(|journal| (journal.disk, journal.first));
                parts.engine = Some((engine, setup.storage.scan_thread_options.clone()));
                tables::Process::Storage(storage)
            }
            Role::Super => {
                let settings = SuperSettings {
                    detector: setup.detector,
                    terms: setup.terms,
                    ..SuperSettings::default()
                };
                tables::Process::Super(Super::new(peer, setup.name.clone(), settings))
            }
            Role::Gateway => {
                let requests = requests.clone();
                parts.client = Some(Box::new(move |event| requests.take(event)));
                tables::Process::Client(client(setup, peer))
            }
            Role::Cell => unreachable!("refused when it was set up"),
        };
        let mut config = Config::new(setup.domain, me, Vec::new());
        config.listening = vec![setup.listener.clone()];
        config.advertise = Some(setup.advertised.clone());
        config.insecure = setup.insecure;
        config.metrics = metrics.clone();
        let process = Arc::new(Process::start(state, config, parts)?);
        Ok(ProcessLife { me, generation, process, metrics })
    }
}

fn log_settings(setup: &Setup) -> paxos::Settings {
    paxos::Settings {
        detector: setup.detector,
        wanted: setup.terms.unwrap_or_default().wanted_routers as usize,
        checkpoint_bytes: setup.journal.as_ref().map(|_| CHECKPOINT_BYTES),
        ..paxos::Settings::default()
    }
}

fn router(
    setup: &Setup,
    peer: Peer,
    begun: Beginning,
    (generation, routing): (Generation, u32),
    recovered: Option<Paxos>,
) -> Router<Domain> {
    let (terms, log) = (setup.terms.unwrap_or_default(), log_settings(setup));
    let paxos = match (recovered, begun) {
        (Some(paxos), _) => paxos,
        (None, Beginning::Found) => Paxos::found(peer, log.clone(), clock::now()),
        (None, Beginning::Join(_)) => Paxos::join(peer, Vec::new(), log.clone(), clock::now()),
    };
    let settings = RouterSettings { paxos: log, generation, routing, ..RouterSettings::default() };
    let tables = Shared::new(rubberband::Config::founded(terms));
    Router::new(paxos, domain::Config { tables, ..domain::Config::vacant() }, settings)
}

fn storage(
    setup: &Setup,
    peer: Peer,
    rows: Option<(Box<Handover>, Box<dyn Engine>)>,
    recovered: Option<Storage>,
) -> (Storage, Box<dyn Engine>) {
    let name = setup.name.clone();
    if let Some((remains, engine)) = rows {
        return (Storage::again(peer, name, remains), engine);
    }
    let engine = ScanEngine::new(setup.storage.bounds).with_costs(costs());
    let storage = recovered.unwrap_or_else(|| Storage::new(peer, name, storage_settings(setup)));
    (storage, Box::new(engine))
}

fn storage_settings(setup: &Setup) -> StorageSettings {
    let options = &setup.storage;
    StorageSettings {
        alive_every: setup.detector.interval,
        held_bytes_max: options.held_bytes_max,
        held_max: options.held_max,
        terms: setup.terms,
        checkpoint_bytes: setup.journal.as_ref().map(|_| CHECKPOINT_BYTES as u64),
        ..StorageSettings::default()
    }
}

/// Returns the costs of scanning on this machine, measured once.
fn costs() -> Costs {
    static COSTS: OnceLock<Costs> = OnceLock::new();
    *COSTS.get_or_init(|| {
        let begin = Instant::now();
        let costs = Costs::measured(|| begin.elapsed());
        info!(group = costs.group, row = costs.row, "the costs of scanning were measured on this machine");
        costs
    })
}

fn client(setup: &Setup, peer: Peer) -> Client {
    let settings = ClientSettings {
        alive_every: setup.detector.interval,
        write_wait: Some(setup.write_wait),
        read_wait: setup.write_wait.max(READ_WAIT_MIN),
        terms: setup.terms,
        ..ClientSettings::default()
    };
    Client::new(peer, setup.name.clone(), settings)
}
