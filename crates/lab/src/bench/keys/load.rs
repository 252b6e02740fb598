//! The load: connections to one server, each of which sends the next statement as soon as it has the answer
//! to the last.
//!
//! All connections share one thread, so that the load uses as little as possible of the processors on which
//! it measures. The process prints `measuring` when its warm-up ends, and then its results as one line of
//! JSON.

use std::{
    cell::RefCell,
    io::Write,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};
use tokio::task::LocalSet;
use tokio_postgres::{Client, Statement};

use crate::sql;

/// The task of the load process: the server, the statements, and the times.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct LoadSpec {
    pub(super) address: String,
    /// The statement with which each connection begins.
    pub(super) begin: Option<String>,
    pub(super) work: Work,
    pub(super) clients: usize,
    pub(super) rows: u64,
    pub(super) warm_up: f64,
    pub(super) seconds: f64,
    pub(super) seed: u64,
}

/// The statement that the clients execute.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) enum Work {
    Read,
    Update,
}

impl Work {
    pub(super) fn name(self) -> &'static str {
        match self {
            Work::Read => "read",
            Work::Update => "update",
        }
    }

    fn statement(self) -> &'static str {
        match self {
            Work::Read => "select value from keys where id = $1",
            Work::Update => "update keys set value = value + 1 where id = $1",
        }
    }
}

/// The results of the measurement.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct LoadRun {
    pub(super) executions: u64,
    pub(super) seconds: f64,
    /// Number of statements that found no row.
    pub(super) wrong: u64,
    pub(super) failed: u64,
    pub(super) failure: Option<String>,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// Loads a server; `quorate bench keys` starts it.
#[derive(clap::Args)]
pub(crate) struct LoadArgs {
    /// The task, as JSON.
    spec: String,
}

pub(crate) fn run_load(args: &LoadArgs) -> Result<()> {
    let spec: LoadSpec = serde_json::from_str(&args.spec)?;
    let run = LocalSet::new().block_on(&sql::runtime()?, load(spec))?;
    say(&serde_json::to_string(&run)?)
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

async fn load(spec: LoadSpec) -> Result<LoadRun> {
    let mut connections = Vec::with_capacity(spec.clients);
    for _ in 0..spec.clients {
        let client = sql::connect(&spec.address).await?;
        if let Some(begin) = &spec.begin {
            client.batch_execute(begin).await.with_context(|| begin.clone())?;
        }
        let statement = client.prepare(spec.work.statement()).await.context(spec.work.statement())?;
        connections.push((client, statement));
    }
    let shared = Rc::new(RefCell::new(LoadShared::new(&spec)));
    let clients: Vec<_> = connections
        .into_iter()
        .map(|(client, statement)| {
            tokio::task::spawn_local(work(client, statement, spec.work, shared.clone()))
        })
        .collect();
    tokio::time::sleep(Duration::from_secs_f64(spec.warm_up)).await;
    shared.borrow_mut().since = Some(Instant::now());
    say("measuring")?;
    tokio::time::sleep(Duration::from_secs_f64(spec.seconds)).await;
    let run = shared.borrow_mut().end();
    for client in clients {
        client.await?;
    }
    Ok(run)
}

/// The shared state of the clients.
struct LoadShared {
    random: Pcg64,
    rows: i64,
    /// The beginning of the measurement, after the warm-up.
    since: Option<Instant>,
    over: bool,
    /// Latencies in nanoseconds.
    latencies: Histogram<u64>,
    wrong: u64,
    failed: u64,
    failure: Option<String>,
}

impl LoadShared {
    fn new(spec: &LoadSpec) -> LoadShared {
        LoadShared {
            random: Pcg64::seed_from_u64(spec.seed),
            rows: spec.rows as i64,
            since: None,
            over: false,
            latencies: Histogram::new_with_bounds(1, 600_000_000_000, 3)
                .expect("the bounds of the histogram are valid"),
            wrong: 0,
            failed: 0,
            failure: None,
        }
    }

    fn next_key(&mut self) -> Option<i64> {
        let key = self.random.random_range(0..self.rows);
        (!self.over).then_some(key)
    }

    fn answered(&mut self, began: Instant, rows: u64) {
        if self.since.is_some() && !self.over {
            self.latencies.saturating_record(began.elapsed().as_nanos() as u64);
            self.wrong += u64::from(rows != 1);
        }
    }

    fn end(&mut self) -> LoadRun {
        self.over = true;
        let micros = |share: f64| self.latencies.value_at_quantile(share) as f64 / 1000.0;
        LoadRun {
            executions: self.latencies.len(),
            seconds: self.since.map_or(0.0, |since| since.elapsed().as_secs_f64()),
            wrong: self.wrong,
            failed: self.failed,
            p50_us: micros(0.5),
            p99_us: micros(0.99),
            failure: self.failure.take(),
        }
    }
}

/// Runs one client.
async fn work(client: Client, statement: Statement, work: Work, shared: Rc<RefCell<LoadShared>>) {
    loop {
        let Some(key) = shared.borrow_mut().next_key() else { return };
        let began = Instant::now();
        let answered = match work {
            Work::Read => client.query(&statement, &[&key]).await.map(|rows| rows.len() as u64),
            Work::Update => client.execute(&statement, &[&key]).await,
        };
        let mut shared = shared.borrow_mut();
        match answered {
            Ok(rows) => shared.answered(began, rows),
            Err(error) => {
                shared.failed += 1;
                shared.failure.get_or_insert_with(|| format!("{error:?}"));
                if client.is_closed() {
                    return;
                }
            }
        }
    }
}
