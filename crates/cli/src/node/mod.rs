//! `quorate node`: one process of a cluster, in the foreground.

mod exhibit;
mod founding;
mod gateway;

use std::{
    env, fs,
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use crossbeam_channel::{Receiver, select};
use quorate::{
    cluster::Events,
    process::{End, Parts, Process},
};
use quorate_protocol::{
    Generation, Peer, ProcessId,
    ecast::{Router, RouterSettings},
    paxos::{self, Paxos},
    rubberband::{
        self, Client, ClientCommand, ClientSettings, Remains, Storage, StorageCommand, StorageSettings,
        Super, SuperCommand, SuperSettings,
    },
};
use quorate_runtime::{Config, chance, clock, metrics::Metrics};
use quorate_table::{
    engine::Engine,
    scan::{Costs, ScanEngine},
};
use quorate_tables::{self as tables, Command};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tracing::{error, info, warn};

use self::{exhibit::Exhibit, founding::Beginning};
use crate::{
    Usage,
    config::{NodeConfig, Role},
    lifeline::{self, Bound},
};

/// Runs one process of a cluster, in the foreground.
///
/// It logs to standard error and, once it listens, prints its addresses on standard output as one line of JSON. SIGTERM
/// and Ctrl-C let it drain, leave the cluster and exit. One that listens at all addresses of its machine (`0.0.0.0`,
/// `[::]`), as in a container, is also told where the others reach it: `advertise`, host:port.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration, a TOML file.
    #[arg(long, env = "QUORATE_CONFIG")]
    config: PathBuf,
    /// Overrides a key of the configuration, as QUORATE_NODE_KEY in the environment does; can be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// How long a process that leaves waits for the others to take note.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);

/// However short a time is configured, a read is given so long to be heard of: who is at it is asked after two seconds and
/// passed over after two more, and who is at it then is asked after another two.
const READ_WAIT_MIN: Duration = Duration::from_secs(8);

pub(crate) fn run_configured(args: Args) -> Result<()> {
    let path = args.config.display();
    let file = fs::read_to_string(&args.config).map_err(|error| Usage(format!("{path}: {error}")))?;
    let environment =
        env::vars_os().filter_map(|(key, value)| key.into_string().ok().zip(value.into_string().ok()));
    let config = NodeConfig::read(&file, environment, &args.set)
        .map_err(|error| Usage(format!("{path}: {}", format!("{error:#}").trim_end())))?;
    crate::log_to_stderr();
    let name = config.name.clone();
    run(config).with_context(|| name)
}

/// Runs the process until it is asked to stop, or can not go on.
pub(crate) fn run(mut config: NodeConfig) -> Result<()> {
    let stop = lifeline::stop_requests(config.supervised)?;
    raise_descriptors();
    let mut before = None;
    while let Some(again) = live(&config, &stop, before.take())? {
        info!("back as a new process, with the rows of the one before");
        // Where it listened it is looked for.
        config.listen.clone_from(&again.listen);
        config.http_listen.clone_from(&again.http);
        before = Some(again);
    }
    Ok(())
}

/// What a storage process that is out leaves to its next life, and where it was.
struct Former {
    remains: Box<Remains>,
    engine: Box<dyn Engine>,
    listen: String,
    http: String,
}

/// Runs one life of the process; tells what the next one is to begin with if the others go on without this one, and it has
/// rows that nobody else may have.
fn live(config: &NodeConfig, stop: &Receiver<()>, former: Option<Former>) -> Result<Option<Former>> {
    let is_first = former.is_none();
    let me = ProcessId { node: config.node, incarnation: chance::incarnation() };
    let metrics = Metrics::new([("process", config.name.clone()), ("role", config.role.as_str().to_owned())]);
    let events = Arc::new(Events::default());
    let (process, listen) = start(config, me, metrics.clone(), events.clone(), former)?;
    let process = Arc::new(process);
    info!(process = %me, role = config.role.as_str(), %listen, advertised = config.advertised(listen), "started");

    let threads =
        tokio::runtime::Builder::new_multi_thread().worker_threads(door_threads()).enable_all().build()?;
    let (stopping, stopped) = tokio::sync::watch::channel(false);
    let until = |mut stopped: tokio::sync::watch::Receiver<bool>| async move {
        // An error means that the sender is gone, which is a stop as well.
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    let http = threads.block_on(bind(&config.http_listen))?;
    let mut bound = Bound { listen: listen.to_string(), http: http.local_addr()?.to_string(), sql: None };
    let exhibit = Exhibit::new(config, me, process.clone(), metrics.clone());
    threads.spawn(quorate_server::http::serve(http, Arc::new(exhibit), until(stopped.clone())));
    let mut sql = None;
    if let Some(address) = &config.sql_listen {
        let listener = threads.block_on(bind(address))?;
        bound.sql = Some(listener.local_addr()?.to_string());
        let backend = gateway::backend(config, me, &process, events);
        sql = Some(threads.spawn(gateway::serve(listener, backend, metrics, until(stopped.clone()))));
    }
    if is_first {
        bound.announce()?;
    }

    let ended = wait(stop, process.ended());
    // No new work; then what is under way; then out of the cluster.
    let _ = stopping.send(true);
    if let Some(sql) = sql {
        let _ = threads.block_on(async { tokio::time::timeout(LEAVE_PATIENCE, sql).await });
    }
    let result = match ended {
        None => {
            leave(config, &process);
            info!("stopped");
            Ok(None)
        }
        Some(End::Wedged) => match process.take_remains(LEAVE_PATIENCE) {
            Some((remains, engine)) => {
                Ok(Some(Former { remains, engine, listen: bound.listen, http: bound.http }))
            }
            None => Err(anyhow!("cut off from the cluster; start it again and it joins as a new process")),
        },
        Some(End::Outdated(generation)) => Err(anyhow!(
            "the domain went on as generation {generation} without this router; start it again and it joins as a new process"
        )),
        Some(End::NotAdmitted(why)) => Err(anyhow!("{why}")),
        Some(End::Broken(why)) => Err(anyhow!("broken: {why}")),
    };
    process.stop();
    threads.shutdown_timeout(Duration::from_millis(200));
    result
}

/// Takes as many descriptors as may be had: a gateway has one for each client, and many systems give 1,024 unasked.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
    {
        warn!(%error, "the limit of open files stays as it is");
    }
}

/// How many threads serve clients: half of the processors, for the protocol thread and other processes have work, too.
fn door_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| processors.get() / 2).clamp(1, 8)
}

/// Waits for a reason to stop; `None` when asked to.
fn wait(stop: &Receiver<()>, ended: &Receiver<End>) -> Option<End> {
    select! {
        recv(stop) -> _ => None,
        recv(ended) -> end => {
            let end = end.unwrap_or(End::Broken(String::from("the protocol thread is gone")));
            match &end {
                End::Wedged => warn!("cut off"),
                End::Outdated(generation) => warn!(%generation, "the domain went on without this router"),
                End::NotAdmitted(why) => error!(%why, "not taken in"),
                End::Broken(why) => error!(%why, "broken"),
            }
            Some(end)
        }
    }
}

fn leave(config: &NodeConfig, process: &Process) {
    let command = match config.role {
        // A router that goes is found out; its set changes one at a time, and it may be the only one.
        Role::Router => return,
        Role::Storage => Command::Storage(StorageCommand::Leave),
        Role::Super => Command::Super(SuperCommand::Leave),
        Role::Gateway => Command::Client(ClientCommand::Leave),
    };
    if process.port().command(command).is_ok() {
        // Out is who is told that it is cut off. When the whole cluster goes down nobody tells.
        let _ = process.ended().recv_timeout(LEAVE_PATIENCE);
    }
}

fn start(
    config: &NodeConfig,
    me: ProcessId,
    metrics: Metrics,
    events: Arc<Events>,
    former: Option<Former>,
) -> Result<(Process, SocketAddr)> {
    // Others' word is asked before we listen: to them a router that has not begun is not there.
    let beginning = (config.role == Role::Router).then(|| founding::begin(config)).transpose()?;
    let (listener, listen) = listen(&config.listen)?;
    let advertised = config.advertised(listen);
    let peer = Peer { id: me, address: advertised.clone() };
    let name = config.name.clone();
    let detector = config.detector.settings();
    let terms = config.terms()?;
    let mut parts = Parts { engine: None, client: None, routers: config.routers.clone(), terms };
    let terms = Some(terms);
    // Routers of different generations do not talk. Members follow whoever is later.
    let mut generation = Generation::FIRST;
    let role = match config.role {
        Role::Router => {
            let log =
                paxos::Settings { detector, wanted: config.wanted_routers, ..paxos::Settings::default() };
            let paxos = match beginning.expect("a router has asked") {
                Beginning::Found => Paxos::found(peer, log.clone(), clock::now()),
                Beginning::Join(current) => {
                    generation = current;
                    Paxos::join(peer, Vec::new(), log.clone(), clock::now())
                }
            };
            let settings = RouterSettings { paxos: log, generation, ..RouterSettings::default() };
            tables::Role::Router(Router::new(paxos, rubberband::Config::founded(parts.terms), settings))
        }
        Role::Storage if let Some(former) = former => {
            parts.engine = Some((former.engine, config.engine.muster()));
            tables::Role::Storage(Storage::again(peer, name, former.remains))
        }
        Role::Storage => {
            let begin = Instant::now();
            let costs = Costs::measured(|| begin.elapsed());
            info!(group = costs.group, row = costs.row, "what scanning costs here");
            let engine = ScanEngine::new(config.engine.bounds()).with_costs(costs);
            parts.engine = Some((Box::new(engine), config.engine.muster()));
            let settings = StorageSettings {
                alive_every: detector.interval,
                held_bytes_max: config.engine.held_bytes_max,
                held_max: Duration::from_millis(config.engine.held_max_ms),
                terms,
                ..StorageSettings::default()
            };
            tables::Role::Storage(Storage::new(peer, name, settings))
        }
        Role::Super => {
            let settings = SuperSettings { detector, terms, ..SuperSettings::default() };
            tables::Role::Super(Super::new(peer, name, settings))
        }
        Role::Gateway => {
            parts.client = Some(Box::new(move |event| events.take(event)));
            let settings = ClientSettings {
                alive_every: detector.interval,
                read_wait: Duration::from_millis(config.write_wait_ms).max(READ_WAIT_MIN),
                terms,
                ..ClientSettings::default()
            };
            tables::Role::Client(Client::new(peer, name, settings))
        }
    };
    let mut reactor = Config::new(config.domain, me, Vec::new());
    reactor.listening = vec![listener];
    reactor.advertise = Some(advertised);
    reactor.insecure = config.insecure;
    reactor.metrics = metrics;
    Ok((Process::start(role, reactor, parts)?, listen))
}

/// Listens for other processes. The node is told where before it starts, so it is done here, and not by the reactor.
fn listen(address: &str) -> Result<(Arc<std::net::TcpListener>, SocketAddr)> {
    let place = address.to_socket_addrs()?.next().ok_or_else(|| Usage(format!("{address}: no address")))?;
    let listener =
        std::net::TcpListener::bind(place).with_context(|| format!("cannot listen on {address}"))?;
    let bound = listener.local_addr()?;
    Ok((Arc::new(listener), bound))
}

async fn bind(address: &str) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}
