//! `quorate up`: a whole cluster on this machine, each process an operating-system process of its own.
//!
//! This file decides whether a cluster is kept on disk, and begins or goes on with it.
//!
//! | file | subject |
//! |---|---|
//! | `plan` | which processes there are, and where they listen |
//! | `supervisor` | keeps them running |
//! | `cells` | what a domain of maps has instead of tables |
//! | `records` | what is on disk of who runs where |
//!
//! With `--detach` a second `quorate up` in a session of its own supervises, and this one only waits, loads and leaves.

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
use quorate_command::{Usage, say};
use quorate_protocol::{DomainId, Role, role::State, rubberband::RING_MAX};
use quorate_sample as sample;
use quorate_server::resp;
use rustix::process::Signal;
use tokio_postgres::Client;

use self::{
    plan::{Plan, check_ports},
    records::Records,
    supervisor::Supervisor,
};
use crate::{
    charter::{self, Charter, Content, Sample, Shape},
    cluster::{Directory, DirectoryArgs},
    config::{CellConfig, NodeConfig},
    kill::signal,
    sql,
    status::{self, Report},
};

/// Runs a whole cluster on this machine and loads a sample, the flights that left New York in 2013.
///
/// Every process is an operating-system process of its own and is started again when it dies. Tables are kept on disk: the
/// next `up` goes on where this one stopped, with the same tables, processes and ports, and loads the sample no second time.
/// With `--memory` they are gone when the cluster stops. Ctrl-C, SIGTERM and `quorate down` stop it. With `--cells` it runs
/// maps of partial quorums instead of tables, for Redis clients, and keeps them in the same way.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// Routers: they order and route, and a majority of them must live [default: 3].
    #[arg(long, env = "QUORATE_UP_ROUTERS", value_parser = clap::value_parser!(u16).range(1..=15))]
    routers: Option<u16>,
    /// Storage processes that hold rows; a ring has no more than 64 [default: 4].
    #[arg(long, env = "QUORATE_UP_STORAGE", value_parser = clap::value_parser!(u16).range(1..=RING_MAX as i64))]
    storage: Option<u16>,
    /// Storage processes that wait to replace a dead one [default: 1].
    #[arg(long, env = "QUORATE_UP_STANDBY", value_parser = clap::value_parser!(u16).range(0..=256))]
    standby: Option<u16>,
    /// Storage processes that hold each row [default: 3].
    #[arg(long, env = "QUORATE_UP_REPLICAS", value_parser = clap::value_parser!(u16).range(1..=RING_MAX as i64))]
    replicas: Option<u16>,
    /// Cells, which keep maps of partial quorums: the cluster has these and routers, and no tables [default: 0].
    #[arg(long, env = "QUORATE_UP_CELLS", value_parser = clap::value_parser!(u16).range(0..=256))]
    cells: Option<u16>,
    /// Sites at which the cells stand, in turns [default: 1].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    sites: Option<u16>,
    /// How far two sites are, in milliseconds one way: `0-1=18.5`, or `0-1=18.5~2` with up to 2 more by chance. Repeated, or with
    /// commas. Only messages between cells are late, until the cluster stops: the next `up` is told again.
    #[arg(long = "distance", value_delimiter = ',')]
    distances: Vec<Between>,
    /// The level at which connections to cells begin, until the cluster stops: one, two, quorum, all [default: quorum].
    #[arg(long, env = "QUORATE_UP_LEVEL")]
    level: Option<String>,
    /// Bytes of writes that a cell keeps at most for cells that do not acknowledge them [default: 67108864].
    #[arg(long, env = "QUORATE_UP_HINT_BYTES_MAX")]
    hint_bytes_max: Option<usize>,
    /// Routers of a cluster of tables, HOST:PORT: it keeps ordered maps and those of groups. Repeated, or with
    /// commas. Until the cluster stops: the next `up` is told again.
    #[arg(long, env = "QUORATE_UP_TABLES", value_delimiter = ',', value_name = "HOST:PORT")]
    tables: Vec<String>,
    /// SQL, or the Redis protocol, is spoken at this port of 127.0.0.1; the processes use those after it, two each, and cells two
    /// more. 0: whatever is free [default: 24700].
    #[arg(long, env = "QUORATE_UP_PORT")]
    port: Option<u16>,
    /// Keep nothing on disk: when the cluster stops, its tables or maps are gone.
    #[arg(long, env = "QUORATE_UP_MEMORY", value_parser = clap::builder::FalseyValueParser::new())]
    memory: bool,
    /// Load no sample.
    #[arg(long)]
    empty: bool,
    /// Return once the cluster answers; stop it with `quorate down`.
    #[arg(long)]
    detach: bool,
    /// For benches: files hand bytes to the system only at a sync, so that a kill takes what a power cut would take.
    #[arg(long, hide = true)]
    late_files: bool,
    /// This is the supervisor that `--detach` started.
    #[arg(long, hide = true)]
    detached: bool,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// The numbers of a cluster of tables where nobody says otherwise.
const SHAPE: Shape =
    Shape { routers: 3, storage: 4, standby: 1, replicas: 3, port: 24700, cells: 0, sites: 0 };

/// How long a fresh cluster may take to answer SQL.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster that answers waits so long for a router that does not come: without one of them it works.
const ROUTERS_PATIENCE: Duration = Duration::from_secs(10);

/// A cluster that is about to run.
struct Intent {
    plan: Plan,
    /// Of a cluster on disk.
    charter: Option<Charter>,
    /// It is there already, and goes on.
    goes_on: bool,
}

/// A flag that says what a cluster is made with.
struct Given {
    flag: &'static str,
    /// The kind of clusters that has it; none: both.
    of: Option<Content>,
    given: Option<u16>,
    /// The cluster has so many.
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
    let intent = Intent::of(&args, &directory)?;
    if args.detach {
        return detach(&args, &intent, &directory);
    }
    let lock = directory.acquire()?;
    if args.detached {
        rustix::process::setsid().context("cannot leave the terminal")?;
    }
    crate::log_to_stderr();
    // Another `up` may have come and gone since.
    let mut intent = Intent::of(&args, &directory)?;
    let processes = intent.prepare(&directory)?;
    let durable = intent.charter.is_some();
    let supervisor = Supervisor::new(Records::new(directory.clone(), lock), processes, durable)?;
    if !args.detached {
        let failures = supervisor.failures();
        thread::Builder::new().name("welcome".into()).spawn(move || {
            if let Err(error) = welcome(&args, &intent, &directory, || Ok(())) {
                let _ = failures.send(error);
            }
        })?;
    }
    supervisor.run()
}

impl Args {
    /// The flags that a cluster is made with, beside what this one is made with.
    fn given(&self, shape: &Shape) -> [Given; 7] {
        let tables = Some(Content::Tables);
        let maps = Some(Content::Maps);
        [
            ("--routers", None, self.routers, shape.routers),
            ("--storage", tables, self.storage, shape.storage),
            ("--standby", tables, self.standby, shape.standby),
            ("--replicas", tables, self.replicas, shape.replicas),
            ("--cells", None, self.cells, shape.cells),
            ("--sites", maps, self.sites, shape.sites),
            ("--port", None, self.port, shape.port),
        ]
        .map(|(flag, of, given, made_with)| Given { flag, of, given, made_with })
    }

    /// The numbers of a new cluster.
    fn shape(&self) -> Result<Shape, Usage> {
        let (routers, port) = (self.routers.unwrap_or(SHAPE.routers), self.port.unwrap_or(SHAPE.port));
        let shape = match self.cells.unwrap_or(SHAPE.cells) {
            0 => Shape {
                routers,
                storage: self.storage.unwrap_or(SHAPE.storage),
                standby: self.standby.unwrap_or(SHAPE.standby),
                replicas: self.replicas.unwrap_or(SHAPE.replicas),
                port,
                ..SHAPE
            },
            cells => Shape {
                routers,
                storage: 0,
                standby: 0,
                replicas: 0,
                port,
                cells,
                sites: self.sites.unwrap_or(1),
            },
        };
        self.fit(shape.content(), "the cluster would have")?;
        let Shape { replicas, storage, .. } = shape;
        if replicas > storage {
            return Err(Usage(format!(
                "--replicas {replicas} needs as many storage processes, not {storage}"
            )));
        }
        Ok(shape)
    }

    /// Refuses flags that a cluster with this content does nothing with. `it_has` is how the error tells of the content.
    fn fit(&self, content: Content, it_has: &str) -> Result<(), Usage> {
        let numbers = self.given(&SHAPE).map(|it| (it.flag, it.of, it.given.is_some_and(|given| given > 0)));
        let maps = Some(Content::Maps);
        let others = [
            ("--distance", maps, !self.distances.is_empty()),
            ("--level", maps, self.level.is_some()),
            ("--hint-bytes-max", maps, self.hint_bytes_max.is_some()),
            ("--tables", maps, !self.tables.is_empty()),
        ];
        for (flag, of, is_given) in numbers.into_iter().chain(others) {
            if is_given && of.is_some_and(|of| of != content) {
                let has = match content {
                    Content::Tables => "tables and no cells",
                    Content::Maps => "cells and no tables",
                };
                return Err(Usage(format!(
                    "{flag}: {it_has} {has}: leave the flag out, or give another --data-dir"
                )));
            }
        }
        Ok(())
    }

    /// Refuses what contradicts the cluster that is kept in the directory.
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
        for Given { flag, given, made_with, .. } in self.given(&charter.made_with) {
            if let Some(given) = given.filter(|given| *given != made_with) {
                return Err(Usage(format!(
                    "{flag} {given}: {kept}, which was made with {flag} {made_with}: leave the flag out, or give another \
                     --data-dir"
                )));
            }
        }
        Ok(())
    }

    /// The level at which connections to cells begin.
    fn level(&self) -> String {
        self.level.clone().unwrap_or_else(|| CellConfig::default().level)
    }
}

impl Intent {
    /// A cluster as the flags ask for it in this directory. Nothing is changed yet.
    fn of(args: &Args, directory: &Directory) -> Result<Intent> {
        let defaults = CellConfig::default();
        let plan = |domain, shape: Shape, first_port, kept| Plan {
            domain,
            shape,
            first_port,
            distances: args.distances.clone(),
            cell: CellConfig {
                level: args.level(),
                hint_bytes_max: args.hint_bytes_max.unwrap_or(defaults.hint_bytes_max),
                tables: args.tables.clone(),
                ..defaults.clone()
            },
            late_files: args.late_files,
            kept_in: if kept { Some(directory.join("")) } else { None },
        };
        if let Some(charter) = Charter::read(directory)?
            && charter.has_begun(directory)?
        {
            args.agree_with(&charter, directory)?;
            let plan = plan(charter.domain, charter.made_with, charter.first_port, true);
            return Ok(Intent { plan, charter: Some(charter), goes_on: true });
        }
        let (domain, shape) = (new_domain()?, args.shape()?);
        let plan = plan(domain, shape, shape.port, !args.memory);
        // Whether the ports suffice.
        plan.processes()?;
        let has_sample = shape.content() == Content::Maps || !args.empty;
        let sample = if has_sample { Sample::Wanted } else { Sample::None };
        let charter = (!args.memory).then(|| Charter::new(domain, shape, shape.port, sample));
        Ok(Intent { plan, charter, goes_on: false })
    }

    /// The processes, whose ports are free. What a new cluster on disk is made with is written down before anything of it
    /// runs. The caller holds the directory.
    fn prepare(&mut self, directory: &Directory) -> Result<Vec<NodeConfig>> {
        // Cells that host services find each other where the plan says.
        if self.plan.first_port == 0 && (self.charter.is_some() || self.plan.shape.cells > 0) {
            self.plan.draw_ports()?;
            if let Some(charter) = &mut self.charter {
                charter.first_port = self.plan.first_port;
            }
        }
        let processes = self.plan.processes()?;
        check_ports(&processes, self.goes_on)?;
        if let Some(charter) = &mut self.charter {
            if !self.goes_on {
                // Of an `up` that ended before its domain was there.
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
    getrandom::fill(&mut id).map_err(|error| anyhow!("no random bytes: {error}"))?;
    Ok(DomainId(u128::from_le_bytes(id)))
}

/// Starts the supervisor in a session of its own and stays until the cluster answers.
fn detach(args: &Args, intent: &Intent, directory: &Directory) -> Result<()> {
    // Ports that are drawn are drawn by the supervisor.
    check_ports(&intent.plan.processes()?, intent.goes_on)?;
    directory.make()?;
    let log = directory.create("up.log")?;
    let mut command = Command::new(this_program()?);
    command.arg0("quorate").arg("up").arg("--detached");
    for Given { flag, given, .. } in args.given(&SHAPE) {
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
                    .unwrap_or("the supervisor ended without a word")
                    .trim_start_matches("quorate: ")
            )
        }
    };
    welcome(args, intent, directory, alive).inspect_err(|_| {
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
fn welcome(
    args: &Args,
    intent: &Intent,
    directory: &Directory,
    alive: impl FnMut() -> Result<()>,
) -> Result<()> {
    if intent.plan.shape.content() == Content::Maps {
        return cells::welcome(args, intent, directory, alive);
    }
    let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg}")?);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar.set_message("starting the processes");
    let runtime = sql::runtime()?;
    let has_sample = runtime.block_on(async {
        let client = first_answer(directory, intent.plan.shape.storage.into(), alive).await?;
        bar.finish_and_clear();
        load_sample(args, intent, directory, &client).await
    })?;
    let cluster = directory.running()?;
    let (host, port) = cluster.sql()?.rsplit_once(':').context("the gateway's address has no port")?;
    let quorate = this_command();
    let flag = args.directory.as_flag();
    let count = cluster.processes.len();
    let does = if intent.goes_on { "goes on where it was" } else { "is up" };
    say!(
        "\nA cluster of {count} processes {does}; SQL is spoken at {host}:{port}, and nothing is encrypted. {}",
        if cluster.durable { "Its tables are kept on disk." } else { MEMORY }
    )?;
    say!("Programs with process groups find it through its routers: {}.\n", cluster.routers().join(", "))?;
    if has_sample {
        say!("  psql -h {host} -p {port} -U quorate -d quorate -c \"{}\"", sample::QUESTION)?;
        say!("  {quorate} sql{flag} \"{}\"", sample::QUESTION)?;
    } else {
        say!("  psql -h {host} -p {port} -U quorate -d quorate")?;
    }
    say!("  {quorate} status{flag}\n  {quorate} kill{flag} storage-2\n  {quorate} down{flag}")?;
    if cluster.durable {
        say!("\nTables, logs and state are in {}.", directory.shown())?;
    } else {
        say!("\nLogs and state are in {}.", directory.shown())?;
    }
    Ok(())
}

const MEMORY: &str = "Its tables live in memory: when it stops, they are gone.";

/// Loads the sample if it is wanted and was not loaded before. Whether it was loaded, now or once.
async fn load_sample(args: &Args, intent: &Intent, directory: &Directory, client: &Client) -> Result<bool> {
    // A cluster in memory has nothing to do with what is kept in its directory.
    let charter = if intent.charter.is_some() { Charter::read(directory)? } else { None };
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

/// How the command is called that runs.
fn this_command() -> &'static str {
    if env::var_os("CARGO").is_some() { "cargo run --release --" } else { "quorate" }
}

/// Waits until SQL is answered, so many storage processes hold rows, and the routers are in place.
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
                            anyhow!("the storage processes are not in place yet")
                        } else if waited > ROUTERS_PATIENCE || routers_are_in_place(&reports) {
                            return Ok(client);
                        } else {
                            anyhow!("a router knows no leader yet")
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

/// How many storage processes hold rows.
fn serving(reports: &[Option<Report>]) -> usize {
    let serves = |report: &&Report| report.role == Role::Storage && report.state == State::Serving;
    reports.iter().flatten().filter(serves).count()
}

/// Whether every router leads, knows who does, or votes no more or not yet. One that goes on from an older copy of its
/// directory knows no leader before it has met those who know better.
fn routers_are_in_place(reports: &[Option<Report>]) -> bool {
    reports.iter().all(|report| {
        report.as_ref().is_some_and(|report| {
            report.role != Role::Router
                || report.hindrance.is_none()
                || matches!(report.state, State::Joining | State::Removed)
        })
    })
}
