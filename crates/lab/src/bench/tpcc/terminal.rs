//! The terminals: connections that run one transaction after another, and connect again after a failure.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use tokio::task::LocalSet;
use tokio_postgres::{Client, Error, error::SqlState};

use super::{
    population::Size,
    transactions::{Done, OrderKey, Statements, TpccTransaction},
};
use crate::sql;

/// All terminals, and what they have reached together.
pub(super) struct Terminals {
    address: String,
    size: Size,
    seed: u64,
    totals: Mutex<Totals>,
}

/// The counts of all terminals.
#[derive(Clone)]
pub(super) struct Totals {
    is_over: bool,
    /// The new orders whose commit was confirmed.
    pub(super) orders: BTreeSet<OrderKey>,
    /// Committed transactions of all kinds.
    pub(super) committed: u64,
    /// Attempts that failed with 40001.
    pub(super) conflicts: u64,
    /// Transactions without a known outcome.
    pub(super) unknown: u64,
    /// Times of new orders, in microseconds.
    times: Histogram<u64>,
}

/// Pause after a failed attempt to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// Time after which a terminal that cannot connect gives up.
const PATIENCE: Duration = Duration::from_secs(60);

impl Totals {
    /// Returns a quantile of the times of new orders, in milliseconds.
    pub(super) fn new_order_ms(&self, quantile: f64) -> f64 {
        self.times.value_at_quantile(quantile) as f64 / 1000.0
    }
}

impl Terminals {
    pub(super) fn new(address: &str, size: Size, seed: u64) -> Terminals {
        let times =
            Histogram::new_with_bounds(1, 600_000_000, 3).expect("the bounds of the histogram are valid");
        let totals =
            Totals { is_over: false, orders: BTreeSet::new(), committed: 0, conflicts: 0, unknown: 0, times };
        Terminals { address: address.to_owned(), size, seed, totals: Mutex::new(totals) }
    }

    /// Runs `count` terminals on this thread until [`Terminals::end`] is called.
    pub(super) fn run(self: Arc<Self>, count: usize) -> Result<()> {
        let tasks = LocalSet::new();
        tasks.block_on(&sql::runtime()?, async {
            let terminals: Vec<_> = (0..count as u64)
                .map(|number| tokio::task::spawn_local(self.clone().terminal(number)))
                .collect();
            for terminal in terminals {
                terminal.await??;
            }
            Ok(())
        })
    }

    /// Lets each terminal end after its present transaction.
    pub(super) fn end(&self) {
        self.with_totals(|totals| totals.is_over = true);
    }

    pub(super) fn totals(&self) -> Totals {
        self.with_totals(|totals| totals.clone())
    }

    fn with_totals<T>(&self, with: impl FnOnce(&mut Totals) -> T) -> T {
        with(&mut self.totals.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn terminal(self: Arc<Self>, number: u64) -> Result<()> {
        let mut random = Pcg64::seed_from_u64(self.seed.wrapping_mul(1 << 20).wrapping_add(number));
        let mut connection = self.connect().await?;
        loop {
            for transaction in TpccTransaction::draw(&mut random, self.size) {
                if self.with_totals(|totals| totals.is_over) {
                    return Ok(());
                }
                let began = Instant::now();
                let committed = self.repeat(&transaction, &mut connection, &mut random).await?;
                if committed && transaction.is_new_order() {
                    let micros = began.elapsed().as_micros() as u64;
                    self.with_totals(|totals| totals.times.saturating_record(micros));
                }
            }
        }
    }

    async fn connect(&self) -> Result<(Client, Statements)> {
        let began = Instant::now();
        loop {
            let connected = async {
                let client = sql::connect(&self.address).await?;
                let statements = Statements::prepare(&client).await?;
                anyhow::Ok((client, statements))
            };
            match connected.await {
                Ok(connection) => return Ok(connection),
                Err(error) if began.elapsed() > PATIENCE => return Err(error),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Attempts a transaction until it ends. Returns whether it has committed.
    async fn repeat(
        &self,
        transaction: &TpccTransaction,
        connection: &mut (Client, Statements),
        random: &mut Pcg64,
    ) -> Result<bool> {
        let mut conflicts = 0;
        loop {
            let (client, statements) = &*connection;
            match attempt(transaction, client, statements).await {
                Ok(Done::Committed(order)) => {
                    self.with_totals(|totals| {
                        totals.committed += 1;
                        totals.orders.extend(order);
                    });
                    return Ok(true);
                }
                Ok(Done::RolledBack) => return Ok(false),
                Err(error) if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => {
                    self.with_totals(|totals| totals.conflicts += 1);
                    // Transactions that conflicted with each other wait for different times, so that they do
                    // not conflict again.
                    conflicts = (conflicts + 1).min(6);
                    let most = 1000_u64 << conflicts;
                    tokio::time::sleep(Duration::from_micros(random.random_range(0..most))).await;
                }
                Err(error) if is_failure_of_processes(&error) || client.is_closed() => {
                    self.with_totals(|totals| totals.unknown += 1);
                    *connection = self.connect().await?;
                    return Ok(false);
                }
                Err(error) => bail!("a transaction failed: {error:?}"),
            }
        }
    }
}

/// Whether a statement failed because processes were killed.
fn is_failure_of_processes(error: &Error) -> bool {
    let of_processes = ["08", "57", "58", "XX", "40003", "53"];
    error.code().is_some_and(|code| of_processes.iter().any(|class| code.code().starts_with(class)))
}

async fn attempt(
    transaction: &TpccTransaction,
    client: &Client,
    statements: &Statements,
) -> Result<Done, Error> {
    client.batch_execute("begin").await?;
    let done = match transaction.execute(client, statements).await {
        Ok(done @ Done::Committed(_)) => {
            client.batch_execute("commit").await?;
            return Ok(done);
        }
        Ok(Done::RolledBack) => Ok(Done::RolledBack),
        Err(error) => Err(error),
    };
    // An error of the ROLLBACK means that the connection is lost, so the block is gone.
    let _ = client.batch_execute("rollback").await;
    done
}
