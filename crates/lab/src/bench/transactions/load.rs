//! The load: connections to one server, each of which begins the next transaction as soon as the last one has
//! ended. A transaction that fails with 40001 is repeated.
//!
//! All connections share one thread, so that the load uses as little as possible of the processors on which
//! it measures. The process prints its results as one line of JSON.

use std::{
    cell::{Cell, RefCell},
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
use tokio_postgres::{Client, Error, Statement, error::SqlState};

use super::super::zipf::Zipf;
use crate::sql;

/// The task of the load process: the server, the transactions, and the times.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct LoadSpec {
    pub(super) address: String,
    pub(super) work: Work,
    pub(super) clients: usize,
    /// Transactions that each connection has under way at a time.
    pub(super) pipeline: usize,
    pub(super) accounts: u64,
    pub(super) zipf: f64,
    pub(super) warm_up: f64,
    pub(super) seconds: f64,
    pub(super) seed: u64,
}

/// The transaction that the clients repeat.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) enum Work {
    /// One update of one row.
    KeyUpdate,
    /// Two updates in one message.
    OneMessage,
    /// BEGIN, two updates and COMMIT, each sent after the answer to the one before.
    Conversation,
    /// As `OneMessage`, but few accounts are frequent.
    Contended,
    /// BEGIN, SELECT … FOR UPDATE, an update and COMMIT, always of the same row.
    HotRow,
}

impl Work {
    /// Returns the number of updates of a transaction.
    pub(super) fn updates(self) -> i64 {
        match self {
            Work::KeyUpdate | Work::HotRow => 1,
            Work::OneMessage | Work::Conversation | Work::Contended => 2,
        }
    }
}

/// The results of a load.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct LoadRun {
    /// Committed transactions, those of the warm-up included.
    pub(super) committed: u64,
    /// Transactions that committed during the measurement.
    pub(super) measured: u64,
    pub(super) seconds: f64,
    /// Attempts that failed with 40001.
    pub(super) conflicts: u64,
    /// Clients that committed nothing during the measurement.
    pub(super) starved: usize,
    pub(super) failed: u64,
    pub(super) failure: Option<String>,
    pub(super) p50_us: f64,
    pub(super) longest_us: f64,
}

impl LoadRun {
    pub(super) fn per_second(&self) -> f64 {
        (self.measured as f64 / self.seconds).round()
    }
}

/// Loads a server; `quorate bench transactions` starts it.
#[derive(clap::Args)]
pub(crate) struct LoadArgs {
    /// The task, as JSON.
    spec: String,
}

pub(crate) fn run_load(args: &LoadArgs) -> Result<()> {
    let spec: LoadSpec = serde_json::from_str(&args.spec)?;
    let run = LocalSet::new().block_on(&sql::runtime()?, load(spec))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(&run)?)?;
    Ok(out.flush()?)
}

const UPDATE: &str = "update accounts set cents = cents + $2, moves = moves + 1 where id = $1";
const LOCK: &str = "select cents from accounts where id = $1 for update";

/// A connection with its prepared statements.
struct BenchConnection {
    client: Client,
    update: Statement,
    lock: Statement,
    /// Transactions that committed on this connection during the measurement.
    measured: Cell<u64>,
}

/// Two accounts, and the cents that go from one to the other.
#[derive(Clone, Copy)]
struct Transfer {
    from: i64,
    to: i64,
    cents: i64,
}

async fn load(spec: LoadSpec) -> Result<LoadRun> {
    let mut connections = Vec::with_capacity(spec.clients);
    for _ in 0..spec.clients {
        let client = sql::connect(&spec.address).await?;
        let update = client.prepare(UPDATE).await.context(UPDATE)?;
        let lock = client.prepare(LOCK).await.context(LOCK)?;
        connections.push(Rc::new(BenchConnection { client, update, lock, measured: Cell::new(0) }));
    }
    let shared = Rc::new(RefCell::new(LoadShared::new(&spec)));
    let tasks: Vec<_> = connections
        .iter()
        .flat_map(|connection| (0..spec.pipeline).map(|_| connection.clone()))
        .map(|connection| tokio::task::spawn_local(repeat(connection, spec.work, shared.clone())))
        .collect();
    tokio::time::sleep(Duration::from_secs_f64(spec.warm_up)).await;
    shared.borrow_mut().since = Some(Instant::now());
    tokio::time::sleep(Duration::from_secs_f64(spec.seconds)).await;
    shared.borrow_mut().end();
    for task in tasks {
        task.await?;
    }
    let starved = connections.iter().filter(|connection| connection.measured.get() == 0).count();
    let shared = shared.borrow();
    let micros = |nanos: u64| nanos as f64 / 1000.0;
    Ok(LoadRun {
        committed: shared.committed,
        measured: shared.latencies.len(),
        seconds: shared.seconds,
        conflicts: shared.conflicts,
        starved,
        failed: shared.failed,
        failure: shared.failure.clone(),
        p50_us: micros(shared.latencies.value_at_quantile(0.5)),
        longest_us: micros(shared.latencies.max()),
    })
}

/// The shared state of the clients.
struct LoadShared {
    random: Pcg64,
    accounts: i64,
    /// The law by which accounts are drawn; `None` draws each account alike.
    zipf: Option<Zipf>,
    /// The beginning of the measurement, after the warm-up.
    since: Option<Instant>,
    /// The length of the measurement, in seconds, once it is over.
    seconds: f64,
    over: bool,
    /// Latencies in nanoseconds.
    latencies: Histogram<u64>,
    committed: u64,
    conflicts: u64,
    failed: u64,
    failure: Option<String>,
}

impl LoadShared {
    fn new(spec: &LoadSpec) -> LoadShared {
        let zipf = (spec.work == Work::Contended).then(|| Zipf::new(spec.accounts as usize, spec.zipf));
        LoadShared {
            random: Pcg64::seed_from_u64(spec.seed),
            accounts: spec.accounts as i64,
            zipf,
            since: None,
            seconds: 0.0,
            over: false,
            latencies: Histogram::new_with_bounds(1, 600_000_000_000, 3)
                .expect("the bounds of the histogram are valid"),
            committed: 0,
            conflicts: 0,
            failed: 0,
            failure: None,
        }
    }

    fn account(&mut self) -> i64 {
        match &self.zipf {
            Some(zipf) => zipf.draw(&mut self.random) as i64,
            None => self.random.random_range(0..self.accounts),
        }
    }

    /// Draws the next transfer, or returns `None` if the time is over.
    fn next(&mut self) -> Option<Transfer> {
        if self.over {
            return None;
        }
        let from = self.account();
        let to = loop {
            let to = self.account();
            if to != from {
                break to;
            }
        };
        Some(Transfer { from, to, cents: self.random.random_range(1..100) })
    }

    fn end(&mut self) {
        self.over = true;
        self.seconds = self.since.map_or(0.0, |since| since.elapsed().as_secs_f64());
    }
}

/// Commits one transaction after another, until the time is over or the connection is lost.
async fn repeat(connection: Rc<BenchConnection>, work: Work, shared: Rc<RefCell<LoadShared>>) {
    loop {
        let Some(transfer) = shared.borrow_mut().next() else { return };
        let began = Instant::now();
        loop {
            let answered = attempt(&connection, work, transfer).await;
            let mut shared = shared.borrow_mut();
            match answered {
                Ok(()) => {
                    shared.committed += 1;
                    if shared.since.is_some() && !shared.over {
                        shared.latencies.saturating_record(began.elapsed().as_nanos() as u64);
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

/// Attempts one transaction. After an error the connection is outside a block.
async fn attempt(connection: &BenchConnection, work: Work, transfer: Transfer) -> Result<(), Error> {
    let BenchConnection { client, update, .. } = connection;
    let Transfer { from, to, cents } = transfer;
    match work {
        Work::KeyUpdate => client.execute(update, &[&from, &0_i64]).await.map(drop),
        Work::OneMessage | Work::Contended => {
            let change = |id: i64, cents: i64| {
                format!("update accounts set cents = cents + {cents}, moves = moves + 1 where id = {id}")
            };
            client.batch_execute(&format!("{}; {}", change(from, -cents), change(to, cents))).await
        }
        Work::Conversation | Work::HotRow => {
            client.batch_execute("begin").await?;
            if let Err(error) = statements(connection, work, transfer).await {
                client.batch_execute("rollback").await?;
                return Err(error);
            }
            client.batch_execute("commit").await
        }
    }
}

/// Executes the statements of a block.
async fn statements(connection: &BenchConnection, work: Work, transfer: Transfer) -> Result<(), Error> {
    /// The account that all clients lock.
    const HOT: i64 = 0;
    let BenchConnection { client, update, lock, .. } = connection;
    let Transfer { from, to, cents } = transfer;
    if work == Work::HotRow {
        client.query_one(lock, &[&HOT]).await?;
        return client.execute(update, &[&HOT, &0_i64]).await.map(drop);
    }
    client.execute(update, &[&from, &-cents]).await?;
    client.execute(update, &[&to, &cents]).await.map(drop)
}
