//! `quorate node`: runs one process of a cluster in the foreground.

mod admin;
mod maps;
mod process;
mod restart_in_place;

use std::{env, fs, iter, os::fd::RawFd, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow};
use quorate::{
    Node, Wait,
    node::{self, Member, StorageOptions},
    process::End,
};
use quorate_command::{Coded, Usage};
use quorate_protocol::Role;
use quorate_runtime::metrics::Metrics;
use quorate_server::{
    http,
    metrics::Metrics as SqlMetrics,
    pg::{self, Closing, Door, HandedClient},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tracing::{info, warn};

use self::{
    admin::NodeView,
    process::{LEAVE_PATIENCE, bind, wait},
    restart_in_place::Program,
};
use crate::{
    config::NodeConfig,
    lifeline::{self, BoundAddresses, OLDER_COPY, StopRequest},
};

/// Runs one process of a cluster in the foreground.
///
/// The process logs to standard error. Once it listens, it prints its addresses on standard output as one
/// line of JSON. On SIGTERM and Ctrl-C it finishes running statements, leaves the cluster and exits. On
/// SIGUSR2 it restarts in the same operating-system process, with the program that is then at its path.
/// Meanwhile other processes do its work, and the clients of a gateway or cell stay connected. If the process
/// listens on all addresses of its machine (`0.0.0.0`, `[::]`), as in a container, it also needs the key
/// `advertise`, the address (host:port) that the other processes use. Exits with 4 if its data directory is
/// an older copy that somebody put back.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Configuration of the process, a TOML file.
    #[arg(long, env = "QUORATE_CONFIG")]
    config: PathBuf,
    /// Overrides a key of the configuration, as QUORATE_NODE_KEY in the environment does. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Door that the previous program left in the same process.
    #[arg(long, hide = true)]
    door: Option<RawFd>,
}

pub(crate) fn run_configured(args: Args) -> Result<()> {
    let path = args.config.display();
    let file =
        fs::read_to_string(&args.config).map_err(|error| Usage(format!("cannot read {path}: {error}")))?;
    let environment =
        env::vars_os().filter_map(|(key, value)| key.into_string().ok().zip(value.into_string().ok()));
    let config = NodeConfig::read(&file, environment, &args.set)
        .map_err(|error| Usage(format!("{path}: {}", format!("{error:#}").trim_end())))?;
    crate::logging::log_to_stderr();
    let name = config.name.clone();
    run(config, args.door).with_context(|| name)
}

/// Runs the process until a request stops it or it cannot continue. Its doors stay open while it is cut off.
fn run(config: NodeConfig, left: Option<RawFd>) -> Result<()> {
    raise_descriptors();
    let program = Program::current(config.supervised)?;
    let requests = lifeline::requests(config.supervised)?;
    if config.role == Role::Cell {
        return maps::run(config, left, &requests, &program);
    }
    let node = builder(&config)?.start().wait()?;
    let member = node.member().context("this process was started without a role in its domain")?;
    // A storage process with an SQL door is also a gateway, as a second member.
    let gateway = match &config.sql_listen {
        Some(address) => Some((address, node.gateway().wait()?)),
        None => None,
    };
    let beside = gateway.as_ref().map(|(_, gateway)| gateway).filter(|_| config.role != Role::Gateway);
    for member in iter::once(&member).chain(beside) {
        let (role, listen, advertised) = (member.role().name(), member.address(), member.advertised());
        info!(process = %member.id(), role, %listen, advertised, "this process has started");
    }

    let threads =
        tokio::runtime::Builder::new_multi_thread().worker_threads(door_threads()).enable_all().build()?;
    let (closing, closed) = tokio::sync::watch::channel(None);
    let until = |mut closed: tokio::sync::watch::Receiver<Option<Closing>>| async move {
        // Waiting fails if the sender is gone. In that case the doors drain, too.
        closed.wait_for(Option::is_some).await.ok().and_then(|how| *how).unwrap_or(Closing::Drain)
    };
    // The doors' counters last longer than a life of the member.
    let doors_of = |member: &Member| {
        let name = admin::name_of(&config, member.role());
        Metrics::new([("process", name), ("role", member.role().to_string())])
    };
    let doors = doors_of(&member);
    let shown = threads.block_on(bind(&config.http_listen))?;
    let mut bound = BoundAddresses {
        listen: member.address().to_string(),
        http: shown.local_addr()?.to_string(),
        sql: None,
        redis: None,
    };
    let mut further: Vec<(&'static str, Arc<dyn http::AdminView>)> = Vec::new();
    let mut sql = None;
    if let Some((address, gateway)) = &gateway {
        let doors = beside.map_or_else(|| doors.clone(), doors_of);
        let (listener, handed) = threads.block_on(async {
            match left.map(restart_in_place::take).transpose()? {
                Some((listener, connections)) => {
                    let handed = connections
                        .into_iter()
                        .map(|(stream, client_state)| HandedClient { stream, client_state });
                    anyhow::Ok((TcpListener::from_std(listener)?, Some(handed.collect())))
                }
                None => Ok((bind(address).await?, None)),
            }
        })?;
        bound.sql = Some(listener.local_addr()?.to_string());
        let backend = gateway.backend().context("the gateway has no access to tables")?;
        let server = pg::Server::with(backend, pg::CONNECTIONS_MAX, Arc::new(SqlMetrics::new(&doors)));
        sql = Some(threads.spawn(server.serve_at(listener, handed, until(closed.clone()))));
        if let Some(beside) = beside {
            further.push((beside.role().name(), Arc::new(NodeView::new(&config, beside.clone(), doors))));
        }
    }
    let admin_view = NodeView::new(&config, member.clone(), doors);
    let until_closed = until(closed.clone());
    threads.spawn(http::serve(shown, config.http(), Arc::new(admin_view), further, async {
        until_closed.await;
    }));
    bound.announce()?;

    let ended = wait(&config, &requests, member.ended(), beside.map(Member::ended));
    drop((member, gateway));
    let restarts = matches!(ended, Ok(StopRequest::Restart));
    // First refuse new work, then finish the running work, then leave the cluster.
    let _ = closing.send(Some(if restarts { Closing::HandOver(LEAVE_PATIENCE) } else { Closing::Drain }));
    let mut door = None;
    if let Some(sql) = sql {
        let patience = if restarts { 2 * LEAVE_PATIENCE } else { LEAVE_PATIENCE };
        let closed = threads.block_on(async { tokio::time::timeout(patience, sql).await });
        door = closed.ok().and_then(Result::ok).flatten();
    }
    if restarts && config.role == Role::Gateway {
        // The next life of a gateway joins and takes the place of this life.
        node.abandon().wait();
    } else if matches!(ended, Ok(StopRequest::End)) {
        // The other processes end as well, so none of them would answer for long.
        node.abandon().wait();
    } else if config.durable || restarts {
        // The process will return, so it pauses and does not leave. An operator replaces processes that shall
        // not return. A pause might not save the states of groups, but this process has no groups.
        let _ = node.pause().wait();
    } else {
        let _ = node.leave().wait();
    }
    threads.shutdown_timeout(Duration::from_millis(200));
    match ended.err() {
        None if restarts => {
            let left = door.map(|Door { listener, connections }| {
                let apart = connections
                    .into_iter()
                    .map(|HandedClient { stream, client_state }| (stream, client_state));
                restart_in_place::leave(listener, apart.collect())
            });
            Err(program.execute(&bound, left.transpose()?))
        }
        None => {
            info!("stopped");
            Ok(())
        }
        Some(End::Broken(why)) => Err(anyhow!("the process cannot go on: {why}")),
        Some(End::NotAdmitted(why)) => Err(anyhow!("{why}")),
        Some(End::OlderCopy(why)) => Err(Coded { code: OLDER_COPY, why }.into()),
        Some(End::Wedged | End::Outdated(_)) => unreachable!("the node comes back by itself"),
    }
}

/// Converts the configuration for the library.
fn builder(config: &NodeConfig) -> Result<node::Builder> {
    let storage = StorageOptions {
        bounds: config.engine.bounds(),
        scan_thread_options: config.engine.scan_thread_options(),
        held_bytes_max: config.engine.held_bytes_max,
        held_max: Duration::from_millis(config.engine.held_max_ms),
    };
    let mut builder = Node::builder()
        .role(config.role)
        .storage(storage)
        .name(&config.name)
        .number(config.node)
        .domain(config.domain)
        .routers(&config.routers)
        .listen(&config.listen)
        .insecure(config.insecure)
        .detector(config.detector.settings())
        .terms(config.terms()?)
        .write_wait(Duration::from_millis(config.write_wait_ms))
        .ready_at_listen();
    if let Some(address) = &config.advertise {
        builder = builder.advertise(address);
    }
    if let Some(path) = &config.data_dir {
        builder = builder.directory(path);
    }
    if config.found {
        builder = builder.found();
    }
    if config.durable {
        builder = builder.durable();
    }
    if config.late_files {
        builder = builder.late_files();
    }
    Ok(builder)
}

/// Raises the limit of open files to the maximum. A gateway needs a descriptor for each client, and many
/// systems allow only 1,024 by default.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
    {
        warn!(%error, "cannot raise the limit of open files, so fewer clients than intended may be able to connect");
    }
}

/// Returns the number of threads that serve clients. The number is half of the processors, because the
/// protocol thread and other processes need some, too.
fn door_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| processors.get() / 2).clamp(1, 8)
}
