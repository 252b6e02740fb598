//! `quorate up`: runs a whole cluster on this machine, each process as an operating-system process of its
//! own.
//!
//! This file decides whether the cluster is kept on disk, and starts or continues it.
//!
//! | file | subject |
//! |---|---|
//! | `plan` | the processes and their addresses |
//! | `supervisor` | keeps the processes running |
//! | `cells` | the parts that differ for a domain of maps |
//! | `records` | the files that describe the running processes |
//!
//! With `--detach`, a second `quorate up` in its own session supervises the cluster. The first one only
//! waits, loads the sample and ends.

mod cells;
mod plan;
mod records;
mod supervisor;

use std::{
    env, fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use quorate::maps::Between;
use quorate_command::{Usage, report};
use quorate_protocol::{DomainId, Role, role::State, rubberband::RING_MAX};
use quorate_sample as sample;
use quorate_server::resp;
use rustix::process::Signal;
use tokio_postgres::Client;

use self::{
    plan::{ClusterPlan, check_ports, warn_of_clients_ports},
    records::ProcessRecords,
    supervisor::Supervisor,
};
use crate::{
    charter::{self, Charter, ClusterContent, ClusterSize, Sample},
    cluster::{Directory, DirectoryArgs},
    config::{CellConfig, NodeConfig},
    kill::signal,
    sql,
    status::{self, Report},
};

/// Runs a whole cluster on this machine and loads a sample, the flights that left New York in 2013.
///
/// Every process is an operating-system process of its own, and is started again when it dies. Tables are
/// kept on disk: the next `up` continues with the same tables, processes and ports, and does not load the
/// sample again. With `--memory` the tables are lost when the cluster stops. Ctrl-C, SIGTERM and
/// `quorate down` stop the cluster. With `--cells` the cluster has maps (keys and values, for Redis clients)
/// instead of tables, and keeps them in the same way.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// Number of routers. They order and route messages, and a majority of them must live [default: 3].
    #[arg(long, env = "QUORATE_UP_ROUTERS", value_parser = clap::value_parser!(u16).range(1..=15))]
    routers: Option<u16>,
    /// Number of storage processes that hold rows, at most 64 [default: 4].
    #[arg(long, env = "QUORATE_UP_STORAGE", value_parser = clap::value_parser!(u16).range(1..=RING_MAX as i64))]
    storage: Option<u16>,
    /// Number of storage processes that wait to replace a dead one [default: 1].
    #[arg(long, env = "QUORATE_UP_STANDBY", value_parser = clap::value_parser!(u16).range(0..=256))]
    standby: Option<u16>,
    /// Number of storage processes that hold each row [default: 3].
    #[arg(long, env = "QUORATE_UP_REPLICAS", value_parser = clap::value_parser!(u16).range(1..=RING_MAX as i64))]
    replicas: Option<u16>,
    /// Number of cells, the processes that keep the keys of maps. A cluster with cells has no tables
    /// [default: 0].
    #[arg(long, env = "QUORATE_UP_CELLS", value_parser = clap::value_parser!(u16).range(0..=256))]
    cells: Option<u16>,
    /// Number of sites, among which the cells are distributed in turn [default: 1].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    sites: Option<u16>,
    /// Artificial one-way delay between the cells of two sites, in milliseconds: `0-1=18.5`, or `0-1=18.5~2`
    /// for up to 2 random milliseconds more. Repeat the option, or separate by commas. The delay holds until
    /// the cluster stops. Give the option again to the next `up`.
    #[arg(long = "distance", value_delimiter = ',')]
    distances: Vec<Between>,
    /// Level of new connections to cells, which is how many copies of a key an operation waits for: one, two,
    /// quorum or all. It holds until the cluster stops [default: quorum].
    #[arg(long, env = "QUORATE_UP_LEVEL")]
    level: Option<String>,
    /// Most bytes of writes that a cell stores for other cells that do not acknowledge these writes
    /// [default: 67108864].
    #[arg(long, env = "QUORATE_UP_HINT_BYTES_MAX")]
    hint_bytes_max: Option<usize>,
    /// Addresses of the routers of a cluster of tables, in which cells store maps of the strategies `ordered`
    /// and `group`. Repeat the option, or separate by commas. It holds until the cluster stops. Give it again
    /// to the next `up`.
    #[arg(long, env = "QUORATE_UP_TABLES", value_delimiter = ',', value_name = "HOST:PORT")]
    tables: Vec<String>,
    /// Port for SQL or for the Redis protocol, at 127.0.0.1. The processes use the ports after it: two for
    /// each process, and two more for each cell. 0 means free ports [default: 24700].
    #[arg(long, env = "QUORATE_UP_PORT")]
    port: Option<u16>,
    /// Keeps nothing on disk. When the cluster stops, its tables or maps are lost.
    #[arg(long, env = "QUORATE_UP_MEMORY", value_parser = clap::builder::FalseyValueParser::new())]
    memory: bool,
    /// Loads no sample data.
    #[arg(long)]
    empty: bool,
    /// Returns once the cluster answers. Stop the cluster with `quorate down`.
    #[arg(long)]
    detach: bool,
    /// For benchmarks: files get their bytes only at a sync, so that a kill loses what a power cut would
    /// lose.
    #[arg(long, hide = true)]
    late_files: bool,
    /// Makes this process the supervisor for `--detach`.
    #[arg(long, hide = true)]
    detached: bool,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// The default numbers of a cluster of tables.
const DEFAULT_SIZE: ClusterSize =
    ClusterSize { routers: 3, storage: 4, standby: 1, replicas: 3, port: 24700, cells: 0, sites: 0 };

/// Longest time until a fresh cluster must answer SQL.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longest time that an answering cluster waits for a missing router. It works without one.
const ROUTERS_PATIENCE: Duration = Duration::from_secs(10);

/// A cluster that is about to run.
struct ClusterStart {
    plan: ClusterPlan,
    /// Charter of a cluster on disk, or `None` in memory.
    charter: Option<Charter>,
    /// Whether the cluster exists already and continues.
    resumes: bool,
}

/// A flag whose value a cluster is made with.
struct SizeFlag {
    flag: &'static str,
    /// Kind of cluster that has the flag. `None` means both.
    of: Option<ClusterContent>,
    given: Option<u16>,
    /// Value of the cluster for the flag.
    made_with: u16,
}

pub(crate) fn run(args: Args) -> Result<()> {
    if let Some(level) = &args.level {
        resp::level(level).map_err(|why| Usage(format!("--level: {why}")))?;
    }
    let directory = args.directory.directory()?;
    if directory.is_held()? {
        directory.acquire()?;
    }
    let start = ClusterStart::of(&args, &directory)?;
    if !args.detached && args.port.is_some() && !start.resumes {
        warn_of_clients_ports(&start.plan.processes()?, start.plan.first_port);
    }
    if args.detach {
        return detach(&args, &start, &directory);
    }
    let lock = directory.acquire()?;
    if args.detached {
        rustix::process::setsid().context("cannot detach from the terminal")?;
    }
    crate::log_to_stderr();
    // Another `up` may have run in the meantime.
    let mut start = ClusterStart::of(&args, &directory)?;
    let processes = start.prepare(&directory)?;
    let durable = start.charter.is_some();
    let supervisor = Supervisor::new(ProcessRecords::new(directory.clone(), lock), processes, durable)?;
    if !args.detached {
        let failures = supervisor.failures();
        thread::Builder::new().name("welcome".into()).spawn(move || {
            if let Err(error) = await_and_greet(&args, &start, &directory, || Ok(())) {
                let _ = failures.send(error);
            }
        })?;
    }
    supervisor.run()
}

impl Args {
    /// Returns the flags with the values in `size`.
    fn given(&self, size: &ClusterSize) -> [SizeFlag; 7] {
        let tables = Some(ClusterContent::Tables);
        let maps = Some(ClusterContent::Maps);
        [
            ("--routers", None, self.routers, size.routers),
            ("--storage", tables, self.storage, size.storage),
            ("--standby", tables, self.standby, size.standby),
            ("--replicas", tables, self.replicas, size.replicas),
            ("--cells", None, self.cells, size.cells),
            ("--sites", maps, self.sites, size.sites),
            ("--port", None, self.port, size.port),
        ]
        .map(|(flag, of, given, made_with)| SizeFlag { flag, of, given, made_with })
    }

    /// Returns the numbers of a new cluster.
    fn size(&self) -> Result<ClusterSize, Usage> {
        let (routers, port) =
            (self.routers.unwrap_or(DEFAULT_SIZE.routers), self.port.unwrap_or(DEFAULT_SIZE.port));
        let size = match self.cells.unwrap_or(DEFAULT_SIZE.cells) {
            0 => ClusterSize {
                routers,
                storage: self.storage.unwrap_or(DEFAULT_SIZE.storage),
                standby: self.standby.unwrap_or(DEFAULT_SIZE.standby),
                replicas: self.replicas.unwrap_or(DEFAULT_SIZE.replicas),
                port,
                ..DEFAULT_SIZE
            },
            cells => ClusterSize {
                routers,
                storage: 0,
                standby: 0,
                replicas: 0,
                port,
                cells,
                sites: self.sites.unwrap_or(1),
            },
        };
        self.fit(size.content(), "the cluster would have")?;
        let ClusterSize { replicas, storage, .. } = size;
        if replicas > storage {
            return Err(Usage(format!(
                "--replicas {replicas} needs at least {replicas} storage processes, but --storage is {storage}"
            )));
        }
        Ok(size)
    }

    /// Refuses flags that have no meaning for a cluster with this content. The error describes the content by
    /// `it_has`.
    fn fit(&self, content: ClusterContent, it_has: &str) -> Result<(), Usage> {
        let numbers =
            self.given(&DEFAULT_SIZE).map(|it| (it.flag, it.of, it.given.is_some_and(|given| given > 0)));
        let maps = Some(ClusterContent::Maps);
        let others = [
            ("--distance", maps, !self.distances.is_empty()),
            ("--level", maps, self.level.is_some()),
            ("--hint-bytes-max", maps, self.hint_bytes_max.is_some()),
            ("--tables", maps, !self.tables.is_empty()),
        ];
        for (flag, of, is_given) in numbers.into_iter().chain(others) {
            if is_given && of.is_some_and(|of| of != content) {
                let has = match content {
                    ClusterContent::Tables => "tables and no cells",
                    ClusterContent::Maps => "cells and no tables",
                };
                return Err(Usage(format!(
                    "{flag}: {it_has} {has}: leave the flag out, or give another --data-dir"
                )));
            }
        }
        Ok(())
    }

    /// Refuses flags that contradict the cluster in the directory.
    fn agree_with(&self, charter: &Charter, directory: &Directory) -> Result<(), Usage> {
        let kept = format!("{} keeps domain {}", directory.shown(), charter.domain);
        let content = charter.made_with.content();
        if self.memory {
            return Err(Usage(format!(
                "--memory: {kept} on disk; leave the flag out, give another --data-dir, or remove the {} for good with \
                 `quorate down --destroy`",
                content.name()
            )));
        }
        self.fit(content, &format!("{kept}, which has"))?;
        for SizeFlag { flag, given, made_with, .. } in self.given(&charter.made_with) {
            if let Some(given) = given.filter(|given| *given != made_with) {
                return Err(Usage(format!(
                    "{flag} {given}: {kept}, which was made with {flag} {made_with}: leave the flag out, or give another \
                     --data-dir"
                )));
            }
        }
        Ok(())
    }

    /// Returns the level of new connections to cells.
    fn level(&self) -> String {
        self.level.clone().unwrap_or_else(|| CellConfig::default().level)
    }
}

impl ClusterStart {
    /// Returns the cluster that the flags and the directory describe, without changing anything.
    fn of(args: &Args, directory: &Directory) -> Result<ClusterStart> {
        let defaults = CellConfig::default();
        let plan = |domain, size: ClusterSize, first_port, kept| ClusterPlan {
            domain,
            size,
            first_port,
            distances: args.distances.clone(),
            cell: CellConfig {
                level: args.level(),
                hint_bytes_max: args.hint_bytes_max.unwrap_or(defaults.hint_bytes_max),
                tables: args.tables.clone(),
                ..defaults.clone()
            },
            late_files: args.late_files,
            data_root: if kept { Some(directory.join("")) } else { None },
        };
        if let Some(charter) = Charter::read(directory)?
            && charter.has_begun(directory)?
        {
            args.agree_with(&charter, directory)?;
            let plan = plan(charter.domain, charter.made_with, charter.first_port, true);
            return Ok(ClusterStart { plan, charter: Some(charter), resumes: true });
        }
        let (domain, size) = (new_domain()?, args.size()?);
        let plan = plan(domain, size, size.port, !args.memory);
        // Fails if there are not enough ports.
        plan.processes()?;
        let has_sample = size.content() == ClusterContent::Maps || !args.empty;
        let sample = if has_sample { Sample::Wanted } else { Sample::None };
        let charter = (!args.memory).then(|| Charter::new(domain, size, size.port, sample));
        Ok(ClusterStart { plan, charter, resumes: false })
    }

    /// Returns the processes, after checking that their ports are free. The charter of a new cluster on disk
    /// is written before any process runs. The caller holds the lock of the directory.
    fn prepare(&mut self, directory: &Directory) -> Result<Vec<NodeConfig>> {
        // Cells find each other's services at planned ports, so these are drawn even in memory.
        if self.plan.first_port == 0 && (self.charter.is_some() || self.plan.size.cells > 0) {
            self.plan.draw_ports()?;
            if let Some(charter) = &mut self.charter {
                charter.first_port = self.plan.first_port;
            }
        }
        let processes = self.plan.processes()?;
        check_ports(&processes, self.resumes)?;
        if let Some(charter) = &mut self.charter {
            if !self.resumes {
                // Files may remain of an `up` that ended before its domain existed.
                charter::remove(directory)?;
                charter.write(directory)?;
            } else if charter.is_of_earlier_format() {
                charter.write(directory)?;
            }
        }
        Ok(processes)
    }
}

fn new_domain() -> Result<DomainId> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| anyhow!("the system gives no random bytes: {error}"))?;
    Ok(DomainId(u128::from_le_bytes(id)))
}

/// Starts the supervisor in its own session and waits until the cluster answers.
fn detach(args: &Args, start: &ClusterStart, directory: &Directory) -> Result<()> {
    // Drawn ports are drawn by the supervisor, so they cannot be checked here.
    check_ports(&start.plan.processes()?, start.resumes)?;
    directory.make()?;
    let log = directory.create("up.log")?;
    let mut command = Command::new(this_program()?);
    command.arg0("quorate").arg("up").arg("--detached");
    for SizeFlag { flag, given, .. } in args.given(&DEFAULT_SIZE) {
        if let Some(given) = given {
            command.arg(flag).arg(given.to_string());
        }
    }
    for distance in &args.distances {
        command.arg("--distance").arg(distance.to_string());
    }
    for router in &args.tables {
        command.arg("--tables").arg(router);
    }
    if let Some(level) = &args.level {
        command.arg("--level").arg(level);
    }
    if let Some(bytes) = args.hint_bytes_max {
        command.arg("--hint-bytes-max").arg(bytes.to_string());
    }
    for (flag, is_set) in
        [("--memory", args.memory), ("--empty", args.empty), ("--late-files", args.late_files)]
    {
        if is_set {
            command.arg(flag);
        }
    }
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
                    .unwrap_or("the supervisor of the cluster ended without an error message")
                    .trim_start_matches("quorate: ")
            )
        }
    };
    await_and_greet(args, start, directory, alive).inspect_err(|_| {
        let _ = signal(pid, Signal::TERM);
    })
}

/// Returns this very executable, even if its file was replaced. All processes of a cluster must be of one
/// build.
fn this_program() -> Result<std::path::PathBuf> {
    let running = Path::new("/proc/self/exe");
    if running.exists() { Ok(running.into()) } else { Ok(env::current_exe()?) }
}

/// Waits until the cluster answers, loads the sample and prints what to do next. `alive` fails if waiting
/// longer is useless.
fn await_and_greet(
    args: &Args,
    start: &ClusterStart,
    directory: &Directory,
    alive: impl FnMut() -> Result<()>,
) -> Result<()> {
    if start.plan.size.content() == ClusterContent::Maps {
        return cells::await_and_greet(args, start, directory, alive);
    }
    let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg}")?);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar.set_message("starting the processes");
    let runtime = sql::runtime()?;
    let has_sample = runtime.block_on(async {
        let client = first_answer(directory, start.plan.size.storage.into(), alive).await?;
        bar.finish_and_clear();
        load_sample(args, start, directory, &client).await
    })?;
    let cluster = directory.running()?;
    let (host, port) = cluster.sql()?.rsplit_once(':').context("the gateway's address has no port")?;
    let quorate = this_command();
    let flag = args.directory.as_flag();
    let count = cluster.processes.len();
    let does = if start.resumes { "continues where it stopped" } else { "is up" };
    report!(
        "\nA cluster of {count} processes {does}; SQL is spoken at {host}:{port}, and nothing is encrypted. {}",
        if cluster.durable { "Its tables are kept on disk." } else { MEMORY }
    );
    report!(
        "Programs that use process groups connect to the routers of the cluster: {}.\n",
        cluster.routers().join(", ")
    );
    if has_sample {
        report!("  psql -h {host} -p {port} -U quorate -d quorate -c \"{}\"", sample::FIRST_QUERY);
        report!("  {quorate} sql{flag} \"{}\"", sample::FIRST_QUERY);
    } else {
        report!("  psql -h {host} -p {port} -U quorate -d quorate");
    }
    report!("  {quorate} status{flag}\n  {quorate} kill{flag} storage-2\n  {quorate} down{flag}");
    if cluster.durable {
        report!("\nTables, logs and state are in {}.", directory.shown());
    } else {
        report!("\nLogs and state are in {}.", directory.shown());
    }
    Ok(())
}

const MEMORY: &str = "Its tables live in memory: when the cluster stops, they are gone.";

/// Loads the sample if it is wanted and was never loaded. Returns whether it has been loaded, now or earlier.
async fn load_sample(
    args: &Args,
    start: &ClusterStart,
    directory: &Directory,
    client: &Client,
) -> Result<bool> {
    // A cluster in memory ignores what is kept in its directory.
    let charter = if start.charter.is_some() { Charter::read(directory)? } else { None };
    match charter {
        None if args.empty => Ok(false),
        None => sample::load(client).await.map(|_| true),
        Some(Charter { sample: Sample::Loaded, .. }) => Ok(true),
        Some(mut charter) if charter.sample == Sample::Wanted && !args.empty => {
            sample::load_once(client).await?;
            charter.sample = Sample::Loaded;
            charter.write(directory)?;
            Ok(true)
        }
        Some(_) => Ok(false),
    }
}

/// Returns the command by which users run this program.
fn this_command() -> &'static str {
    if env::var_os("CARGO").is_some() { "cargo run --release --" } else { "quorate" }
}

/// Waits until SQL is answered, `storage` storage processes hold rows, and the routers are in place.
async fn first_answer(
    directory: &Directory,
    storage: usize,
    mut alive: impl FnMut() -> Result<()>,
) -> Result<Client> {
    let began = Instant::now();
    let mut answered = None;
    loop {
        alive()?;
        let error = match directory.running().and_then(|cluster| Ok(cluster.sql()?.to_string())) {
            Err(error) => error,
            Ok(address) => match sql::connect(&address).await {
                Err(error) => error,
                Ok(client) => match sql::single(&client, "select 1").await {
                    Ok(_) => {
                        let reports = status::reports(&directory.running()?);
                        let waited = answered.get_or_insert_with(Instant::now).elapsed();
                        if serving(&reports) < storage {
                            anyhow!("fewer than {storage} storage processes hold rows so far")
                        } else if waited > ROUTERS_PATIENCE || routers_are_in_place(&reports) {
                            return Ok(client);
                        } else {
                            anyhow!("a router does not know the lead router yet")
                        }
                    }
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

/// Returns the number of storage processes that hold rows.
fn serving(reports: &[Option<Report>]) -> usize {
    let serves = |report: &&Report| report.role == Role::Storage && report.state == State::Serving;
    reports.iter().flatten().filter(serves).count()
}

/// Whether every router leads, knows the leader, or does not vote. A router that starts from an older copy of
/// its directory knows no leader until it has met the others.
fn routers_are_in_place(reports: &[Option<Report>]) -> bool {
    reports.iter().all(|report| {
        report.as_ref().is_some_and(|report| {
            report.role != Role::Router
                || report.hindrance.is_none()
                || matches!(report.state, State::Joining | State::Removed)
        })
    })
}
