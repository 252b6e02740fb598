//! A load over SQL: connections to one server, each of which sends the next request as soon as the last one
//! has ended. A request that fails with 40001 is repeated.
//!
//! The load is a process of its own. All its connections share one thread, so that the load uses as little as
//! possible of the processors on which it measures. The process prints `measuring` when its warm-up ends, and
//! then its results as one line of JSON. A bench gives the requests ([`Load`]), and measures them on a new
//! cluster and on PostgreSQL ([`measure_each`]).

use std::{
    cell::{Cell, RefCell},
    io::Write,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use rand::SeedableRng;
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::task::LocalSet;
use tokio_postgres::{Client, Error, error::SqlState};

use super::{child::Child, postgres::Postgres, spawned::Spawned};
use crate::sql;

/// The options of each bench with such a load.
#[derive(clap::Args)]
pub(crate) struct LoadOptions {
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5.0)]
    pub(super) seconds: f64,
    /// Warm-up seconds before each measurement.
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// Seed of the rows that the load draws.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure a cluster on disk.
    #[arg(long)]
    durable: bool,
    /// Also measure PostgreSQL with fsync off, if it is installed.
    #[arg(long)]
    postgres: bool,
    /// Print one JSON object for each measurement.
    #[arg(long)]
    pub(super) json: bool,
}

/// A server that is measured.
pub(super) struct System {
    pub(super) name: String,
    pub(super) address: String,
    /// Names of the server's processes, with their operating-system ids. Empty for PostgreSQL.
    pub(super) processes: Vec<(String, u32)>,
    pub(super) durable: bool,
    pub(super) is_quorate: bool,
}

/// Measures a new cluster, and then PostgreSQL if the options say so.
pub(super) fn measure_each(options: &LoadOptions, measure: impl Fn(&System) -> Result<()>) -> Result<()> {
    let spawned = Spawned::maybe_durable(options.durable)?;
    let processes = spawned.processes().iter().filter_map(|entry| Some((entry.name.clone(), entry.pid?)));
    measure(&System {
        name: String::from("quorate"),
        address: spawned.sql()?.to_owned(),
        processes: processes.collect(),
        durable: options.durable,
        is_quorate: true,
    })?;
    spawned.succeeded();
    drop(spawned);
    if options.postgres {
        let Some(server) = Postgres::start()? else {
            eprintln!("left out: PostgreSQL is not installed (Debian: postgresql)");
            return Ok(());
        };
        measure(&System {
            name: server.version()?,
            address: server.address(),
            processes: Vec::new(),
            durable: false,
            is_quorate: false,
        })?;
    }
    Ok(())
}

impl System {
    /// Creates a table with its rows, of which `row` gives the values in parentheses.
    pub(super) fn fill(
        &self,
        table: &str,
        columns: &str,
        rows: u64,
        row: impl Fn(u64) -> String,
    ) -> Result<()> {
        const BATCH: u64 = 1000;
        let runtime = sql::runtime()?;
        let client = runtime.block_on(sql::connect(&self.address))?;
        let create = format!("create table {table} ({columns})");
        runtime.block_on(client.batch_execute(&create)).context("creating the table")?;
        for first in (0..rows).step_by(BATCH as usize) {
            let batch: Vec<String> = (first..rows.min(first + BATCH)).map(&row).collect();
            let insert = format!("insert into {table} values {}", batch.join(", "));
            runtime.block_on(client.batch_execute(&insert)).context("filling the table")?;
        }
        Ok(())
    }
}

/// The requests of a load.
pub(super) trait Load: 'static {
    /// The requests, as the bench describes them to the load process.
    type Work: Serialize + DeserializeOwned;
    /// A connection with its prepared statements.
    type Connection: 'static;
    /// The random values of one request.
    type Draw: Copy;

    fn new(work: Self::Work) -> Self;

    /// Returns the number of requests that each connection has under way at a time.
    fn pipeline(&self) -> usize {
        1
    }

    async fn prepare(&self, client: Client) -> Result<Self::Connection>;

    fn draw(&self, random: &mut Pcg64) -> Self::Draw;

    /// Sends a request once. Returns whether it found the rows that it must find. After an error the
    /// connection is outside a block.
    async fn attempt(&self, connection: &Self::Connection, draw: Self::Draw) -> Result<bool, Error>;
}

/// The task of the load process: the server, the requests, and the times.
#[derive(Deserialize, Serialize)]
struct LoadSpec<W> {
    address: String,
    clients: usize,
    warm_up: f64,
    seconds: f64,
    seed: u64,
    work: W,
}

/// The results of a load.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct LoadRun {
    /// Requests that succeeded, those of the warm-up included.
    pub(super) succeeded: u64,
    /// Requests that succeeded during the measurement.
    pub(super) measured: u64,
    pub(super) seconds: f64,
    /// Requests of the measurement that did not find the rows that they must find.
    pub(super) wrong: u64,
    /// Attempts that failed with 40001.
    pub(super) conflicts: u64,
    /// Connections without a success during the measurement.
    pub(super) starved: usize,
    failed: u64,
    failure: Option<String>,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) longest_us: f64,
}

impl LoadRun {
    pub(super) fn per_second(&self) -> f64 {
        (self.measured as f64 / self.seconds).round()
    }
}

/// A load process that runs.
pub(super) struct LoadProcess {
    process: Child,
    seconds: f64,
}

impl LoadProcess {
    /// Starts `quorate bench COMMAND` with these requests.
    pub(super) fn start<L: Load>(
        command: &str,
        system: &System,
        options: &LoadOptions,
        clients: usize,
        work: L::Work,
    ) -> Result<LoadProcess> {
        let LoadOptions { seconds, warm_up, seed, .. } = *options;
        let spec = LoadSpec { address: system.address.clone(), clients, warm_up, seconds, seed, work };
        Ok(LoadProcess { process: Child::start(String::from("load"), command, &spec)?, seconds })
    }

    /// Returns the operating-system id of the process.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the warm-up is over.
    pub(super) fn wait_for_begin(&mut self) -> Result<()> {
        let line = self.process.line()?;
        ensure!(line == "measuring", "the load process of the bench did not begin to measure");
        Ok(())
    }

    /// Waits for the end of the measurement, and returns the line with the results.
    pub(super) fn wait_for_end(&mut self) -> Result<String> {
        self.process.line()
    }

    /// Reads the results, and fails if a request failed or none succeeded.
    pub(super) fn results(&self, line: &str) -> Result<LoadRun> {
        let run: LoadRun = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let failure = run.failure.as_deref().unwrap_or_default();
        ensure!(run.failed == 0, "{} requests failed, the first of these with: {failure}", run.failed);
        ensure!(run.measured > 0, "nothing was answered in {} s: give more --seconds", self.seconds);
        Ok(run)
    }
}

/// Loads a server; the bench starts this process.
#[derive(clap::Args)]
pub(crate) struct LoadArgs {
    /// The task, as JSON.
    spec: String,
}

pub(super) fn run_load<L: Load>(args: &LoadArgs) -> Result<()> {
    let spec: LoadSpec<L::Work> = serde_json::from_str(&args.spec)?;
    let run = LocalSet::new().block_on(&sql::runtime()?, load::<L>(spec))?;
    say(&serde_json::to_string(&run)?)
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// A connection, and the number of its successes during the measurement.
struct BenchConnection<L: Load> {
    inner: L::Connection,
    measured: Cell<u64>,
}

async fn load<L: Load>(spec: LoadSpec<L::Work>) -> Result<LoadRun> {
    let LoadSpec { address, clients, warm_up, seconds, seed, work } = spec;
    let load = Rc::new(L::new(work));
    let mut connections: Vec<Rc<BenchConnection<L>>> = Vec::with_capacity(clients);
    for _ in 0..clients {
        let inner = load.prepare(sql::connect(&address).await?).await?;
        connections.push(Rc::new(BenchConnection { inner, measured: Cell::new(0) }));
    }
    let shared = Rc::new(RefCell::new(LoadShared::new(seed)));
    let tasks: Vec<_> = connections
        .iter()
        .flat_map(|connection| (0..load.pipeline()).map(|_| connection.clone()))
        .map(|connection| tokio::task::spawn_local(repeat(load.clone(), connection, shared.clone())))
        .collect();
    tokio::time::sleep(Duration::from_secs_f64(warm_up)).await;
    shared.borrow_mut().since = Some(Instant::now());
    say("measuring")?;
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    shared.borrow_mut().end();
    for task in tasks {
        task.await?;
    }
    let starved = connections.iter().filter(|connection| connection.measured.get() == 0).count();
    Ok(Rc::try_unwrap(shared).ok().expect("all clients have ended").into_inner().results(starved))
}

/// The shared state of the clients.
struct LoadShared {
    random: Pcg64,
    /// The beginning of the measurement, after the warm-up.
    since: Option<Instant>,
    /// The length of the measurement, in seconds, once it is over.
    seconds: f64,
    over: bool,
    /// Latencies in nanoseconds.
    latencies: Histogram<u64>,
    succeeded: u64,
    wrong: u64,
    conflicts: u64,
    failed: u64,
    failure: Option<String>,
}

impl LoadShared {
    fn new(seed: u64) -> LoadShared {
        LoadShared {
            random: Pcg64::seed_from_u64(seed),
            since: None,
            seconds: 0.0,
            over: false,
            latencies: Histogram::new_with_bounds(1, 600_000_000_000, 3)
                .expect("the bounds of the histogram are valid"),
            succeeded: 0,
            wrong: 0,
            conflicts: 0,
            failed: 0,
            failure: None,
        }
    }

    /// Counts a success. Returns whether it is part of the measurement.
    fn succeeded(&mut self, began: Instant, is_right: bool) -> bool {
        self.succeeded += 1;
        let counts = self.since.is_some() && !self.over;
        if counts {
            self.latencies.saturating_record(began.elapsed().as_nanos() as u64);
            self.wrong += u64::from(!is_right);
        }
        counts
    }

    fn end(&mut self) {
        self.over = true;
        self.seconds = self.since.map_or(0.0, |since| since.elapsed().as_secs_f64());
    }

    fn results(self, starved: usize) -> LoadRun {
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        LoadRun {
            succeeded: self.succeeded,
            measured: self.latencies.len(),
            seconds: self.seconds,
            wrong: self.wrong,
            conflicts: self.conflicts,
            starved,
            failed: self.failed,
            failure: self.failure,
            p50_us: micros(self.latencies.value_at_quantile(0.5)),
            p99_us: micros(self.latencies.value_at_quantile(0.99)),
            longest_us: micros(self.latencies.max()),
        }
    }
}

/// Sends one request after another, until the time is over or one fails.
async fn repeat<L: Load>(load: Rc<L>, connection: Rc<BenchConnection<L>>, shared: Rc<RefCell<LoadShared>>) {
    while !shared.borrow().over {
        let draw = load.draw(&mut shared.borrow_mut().random);
        let began = Instant::now();
        loop {
            let answered = load.attempt(&connection.inner, draw).await;
            let mut shared = shared.borrow_mut();
            match answered {
                Ok(is_right) => {
                    if shared.succeeded(began, is_right) {
                        connection.measured.set(connection.measured.get() + 1);
                    }
                    break;
                }
                Err(error) if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => {
                    shared.conflicts += 1;
                    if shared.over {
                        return;
                    }
                }
                Err(error) => {
                    shared.failed += 1;
                    shared.failure.get_or_insert_with(|| format!("{error:?}"));
                    return;
                }
            }
        }
    }
}
