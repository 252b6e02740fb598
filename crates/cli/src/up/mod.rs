//! `quorate up`: a whole cluster on this machine, each process an operating-system process of its own.
//!
//! This file decides what runs; [`supervisor`] keeps it running; [`cells`] is what a domain of maps has instead of tables; [`records`] is what is on disk of it; [`sample`] loads what there is to ask about. With
//! `--detach` a second `quorate up` in a session of its own supervises, and this one only waits, loads and leaves.

mod cells;
mod records;
pub(crate) mod sample;
mod supervisor;

use std::{
    env, fs,
    io::ErrorKind,
    net::TcpListener,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use quorate_protocol::{DomainId, Role, role::State, rubberband::RING_MAX};
use quorate_server::resp;
use rustix::process::Signal;
use tokio_postgres::Client;

use crate::{
    Usage,
    cluster::{Directory, DirectoryArgs},
    config::{self, CellConfig, DetectorConfig, EngineConfig, NodeConfig, Orders},
    kill::signal,
    sql,
    status::{self, Report},
};
use records::Records;
use supervisor::Supervisor;

/// Runs a whole cluster on this machine and loads a sample, the flights that left New York in 2013.
///
/// Every process is an operating-system process of its own and is started again when it dies. Tables live in memory:
/// when the cluster stops, they are gone. Ctrl-C, SIGTERM and `quorate down` stop it. With `--cells` it runs maps of partial
/// quorums instead of tables, for Redis clients.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// Routers: they order and route, and a majority of them must live.
    #[arg(long, env = "QUORATE_UP_ROUTERS", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=15))]
    routers: u16,
    /// Storage processes that hold rows; a ring has no more than 64.
    #[arg(long, env = "QUORATE_UP_STORAGE", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=RING_MAX as i64))]
    storage: u16,
    /// Storage processes that wait to replace a dead one.
    #[arg(long, env = "QUORATE_UP_STANDBY", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=256))]
    standby: u16,
    /// Storage processes that hold each row.
    #[arg(long, env = "QUORATE_UP_REPLICAS", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=RING_MAX as i64))]
    replicas: u16,
    /// Cells, which keep maps of partial quorums: the cluster has these and routers, and no tables.
    #[arg(long, env = "QUORATE_UP_CELLS", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=256))]
    cells: u16,
    /// The level at which connections to cells begin: one, two, quorum, all.
    #[arg(long, env = "QUORATE_UP_LEVEL", default_value = "quorum")]
    level: String,
    /// SQL is spoken at this port of 127.0.0.1; the processes use those after it, two each. 0: whatever is free.
    #[arg(long, env = "QUORATE_UP_PORT", default_value_t = 24700)]
    port: u16,
    /// Load no sample.
    #[arg(long)]
    empty: bool,
    /// Return once the cluster answers; stop it with `quorate down`.
    #[arg(long)]
    detach: bool,
    /// This is the supervisor that `--detach` started.
    #[arg(long, hide = true)]
    detached: bool,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// How many supers: one plans, the other is there when it dies (S14).
const SUPERS: u16 = 2;

/// How long a port may stay taken by a cluster that was just killed.
const PORT_PATIENCE: Duration = Duration::from_secs(1);

/// How long a fresh cluster may take to answer SQL.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn run(args: Args) -> Result<()> {
    if args.replicas > args.storage {
        let (replicas, storage) = (args.replicas, args.storage);
        return Err(
            Usage(format!("--replicas {replicas} needs as many storage processes, not {storage}")).into()
        );
    }
    resp::level(&args.level).map_err(|why| Usage(format!("--level: {why}")))?;
    let plan = plan(&args)?;
    let directory = args.directory.directory()?;
    if args.detach {
        return detach(&args, &plan, &directory);
    }
    let lock = directory.acquire()?;
    if args.detached {
        rustix::process::setsid().context("cannot leave the terminal")?;
    }
    crate::log_to_stderr();
    check_ports(&plan)?;
    let supervisor = Supervisor::new(Records::new(directory.clone(), lock), plan)?;
    if !args.detached {
        let failures = supervisor.failures();
        thread::Builder::new().name("welcome".into()).spawn(move || {
            if let Err(error) = welcome(&args, &directory, || Ok(())) {
                let _ = failures.send(error);
            }
        })?;
    }
    supervisor.run()
}

/// Every process of the cluster. The first founds the domain; the supervisor fills in whom the others join.
fn plan(args: &Args) -> Result<Vec<NodeConfig>> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| anyhow!("no random bytes: {error}"))?;
    let domain = DomainId(u128::from_le_bytes(id));
    let has_cells = args.cells > 0;
    let roles = if has_cells {
        vec![(Role::Router, args.routers), (Role::Cell, args.cells)]
    } else {
        vec![
            (Role::Router, args.routers),
            (Role::Super, SUPERS),
            (Role::Storage, args.storage + args.standby),
            (Role::Gateway, 1),
        ]
    };
    let names = roles.into_iter().flat_map(|(role, count)| (1..=count).map(move |number| (role, number)));
    let address = |offset: u64| match args.port {
        0 => Ok("127.0.0.1:0".to_string()),
        port => match u16::try_from(u64::from(port) + offset) {
            Ok(port) => Ok(format!("127.0.0.1:{port}")),
            Err(_) => Err(Usage(format!("--port {port}: the ports after it do not suffice"))),
        },
    };
    // Behind the ports of the processes; the first cell's clients come to the port that was chosen.
    let door = |number: u16| match number {
        1 => address(0),
        _ => address(2 * u64::from(args.routers + args.cells) + u64::from(number) - 1),
    };
    // Those that hold rows share the processors.
    let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let scan_threads = (processors / usize::from(args.storage)).clamp(1, config::SCAN_THREADS_MAX);
    let mut plan = Vec::new();
    for (node, (role, number)) in (1..).zip(names) {
        plan.push(NodeConfig {
            domain,
            node,
            name: format!("{role}-{number}"),
            role,
            listen: address(2 * node - 1)?,
            advertise: None,
            sql_listen: if role == Role::Gateway { Some(address(0)?) } else { None },
            redis_listen: if role == Role::Cell { Some(door(number)?) } else { None },
            orders: if has_cells && role == Role::Router { Orders::Maps } else { Orders::Tables },
            http_listen: address(2 * node)?,
            found: node == 1,
            routers: Vec::new(),
            wanted_routers: args.routers.into(),
            wanted_storage: args.storage.into(),
            replicas: args.replicas.into(),
            write_wait_ms: config::defaults::write_wait_ms(),
            insecure: false,
            supervised: true,
            data_dir: None,
            durable: false,
            detector: DetectorConfig::default(),
            engine: EngineConfig { scan_threads, ..EngineConfig::default() },
            cell: CellConfig { level: args.level.clone(), ..CellConfig::default() },
        });
    }
    Ok(plan)
}

/// Says at once which port is taken, rather than letting one of many processes fail. One that a cluster held which was just
/// killed is free in a moment.
fn check_ports(plan: &[NodeConfig]) -> Result<()> {
    let began = Instant::now();
    let listen = |address: &String| loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && began.elapsed() < PORT_PATIENCE => {
                thread::sleep(Duration::from_millis(20));
            }
            bound => return bound,
        }
    };
    // The door first: it is the port that people choose.
    let door = |config: &'_ NodeConfig| config.sql_listen.clone().or_else(|| config.redis_listen.clone());
    let doors = plan.iter().filter_map(|config| Some((config, door(config)?)));
    let others = plan
        .iter()
        .flat_map(|config| [(config, config.listen.clone()), (config, config.http_listen.clone())]);
    for (config, address) in doors.chain(others) {
        listen(&address).map_err(|error| {
            anyhow!(
                "{} cannot listen at {address}: {error}; another program has it, or processes of a killed cluster that do \
                 not end: choose other ports with --port",
                config.name
            )
        })?;
    }
    Ok(())
}

/// Starts the supervisor in a session of its own and stays until the cluster answers.
fn detach(args: &Args, plan: &[NodeConfig], directory: &Directory) -> Result<()> {
    if directory.is_held()? {
        // The same words as without --detach.
        directory.acquire()?;
    }
    check_ports(plan)?;
    directory.make()?;
    let log = directory.create("up.log")?;
    let mut command = Command::new(this_program()?);
    command.arg0("quorate").arg("up").arg("--detached").arg("--empty");
    let numbers = [
        ("--routers", args.routers),
        ("--storage", args.storage),
        ("--standby", args.standby),
        ("--replicas", args.replicas),
        ("--cells", args.cells),
        ("--port", args.port),
    ];
    for (flag, value) in numbers {
        command.arg(flag).arg(value.to_string());
    }
    command.arg("--level").arg(&args.level);
    if let Some(path) = &args.directory.data_dir {
        command.arg("--data-dir").arg(std::path::absolute(path)?);
    }
    let mut supervisor: Child = command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start the supervisor")?;
    let pid = supervisor.id();
    let alive = || match supervisor.try_wait()? {
        None => Ok(()),
        Some(_) => {
            let said = fs::read_to_string(directory.join("up.log")).unwrap_or_default();
            bail!(
                "{}",
                said.lines()
                    .last()
                    .unwrap_or("the supervisor ended without a word")
                    .trim_start_matches("quorate: ")
            )
        }
    };
    welcome(args, directory, alive).inspect_err(|_| {
        let _ = signal(pid, Signal::TERM);
    })
}

/// This very executable, even if the file was replaced since: all processes of a cluster must be of one build.
fn this_program() -> Result<std::path::PathBuf> {
    let running = Path::new("/proc/self/exe");
    if running.exists() { Ok(running.into()) } else { Ok(env::current_exe()?) }
}

/// Waits for the cluster to answer, loads the sample and tells what to do next. `alive` fails when there is no point in
/// waiting on.
fn welcome(args: &Args, directory: &Directory, alive: impl FnMut() -> Result<()>) -> Result<()> {
    if args.cells > 0 {
        return cells::welcome(args, directory, alive);
    }
    let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg}")?);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar.set_message("starting the processes");
    let runtime = sql::runtime()?;
    runtime.block_on(async {
        let client = first_answer(directory, args.storage.into(), alive).await?;
        bar.finish_and_clear();
        if !args.empty {
            sample::load(&client).await?;
        }
        anyhow::Ok(())
    })?;
    let cluster = directory.running()?;
    let (host, port) = cluster.sql()?.rsplit_once(':').context("the gateway's address has no port")?;
    let quorate = this_command();
    let flag = args.directory.as_flag();
    println!(
        "\nA cluster of {} processes is up; SQL is spoken at {host}:{port}, and nothing is encrypted. Its tables live in \
         memory: when it stops, they are gone.\n",
        cluster.processes.len()
    );
    if !args.empty {
        println!("  psql -h {host} -p {port} -U quorate -d quorate -c \"{}\"", sample::QUESTION);
        println!("  {quorate} sql{flag} \"{}\"", sample::QUESTION);
    } else {
        println!("  psql -h {host} -p {port} -U quorate -d quorate");
    }
    println!("  {quorate} status{flag}\n  {quorate} kill{flag} storage-2\n  {quorate} down{flag}");
    println!("\nLogs and state are in {}.", directory.shown());
    Ok(())
}

/// How the command is called that runs.
fn this_command() -> &'static str {
    if env::var_os("CARGO").is_some() { "cargo run --release --" } else { "quorate" }
}

/// Waits until SQL is answered and so many storage processes hold rows.
async fn first_answer(
    directory: &Directory,
    storage: usize,
    mut alive: impl FnMut() -> Result<()>,
) -> Result<Client> {
    let began = Instant::now();
    loop {
        alive()?;
        let error = match directory.running().and_then(|cluster| Ok(cluster.sql()?.to_string())) {
            Err(error) => error,
            Ok(address) => match sql::connect(&address).await {
                Err(error) => error,
                Ok(client) => match sql::single(&client, "select 1").await {
                    Ok(_) if serving(directory)? >= storage => return Ok(client),
                    Ok(_) => anyhow!("the storage processes are not in place yet"),
                    Err(error) => error,
                },
            },
        };
        if began.elapsed() > PATIENCE {
            return Err(error.context(format!("the cluster does not answer after {} s", PATIENCE.as_secs())));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// How many storage processes hold rows.
fn serving(directory: &Directory) -> Result<usize> {
    let reports = status::reports(&directory.running()?);
    let serves = |report: &&Report| report.role == Role::Storage && report.state == State::Serving;
    Ok(reports.iter().flatten().filter(serves).count())
}
