//! Clients that insert numbered rows, each row as soon as the one before is acknowledged, and note the times.
//! Afterwards, a check looks for each acknowledged row.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use tokio::{runtime::Runtime, task::JoinHandle};
use tokio_postgres::{Client, Statement};

use crate::{record::RowAudit, sql};

/// Longest wait for an acknowledgement; a longer wait fails the run.
const PATIENCE: Duration = Duration::from_secs(60);

/// The clients, and the times of their acknowledgements.
pub(crate) struct Writers {
    at: Arc<str>,
    stop: Arc<AtomicBool>,
    clients: Vec<(Log, JoinHandle<()>)>,
}

/// The acknowledged rows of all clients.
pub(crate) struct Written {
    /// The times of the acknowledgements, in order.
    pub(crate) instants: Vec<Instant>,
    pub(crate) account: RowAudit,
}

/// The log of one client.
type Log = Arc<Mutex<WriterLog>>;

#[derive(Default)]
struct WriterLog {
    /// Acknowledged rows, in order.
    acknowledged: Vec<Acknowledged>,
    /// The last error.
    last_error: String,
    /// Number of failed statements.
    failed: u64,
    /// Number of connections.
    connections: u64,
}

#[derive(Clone, Copy)]
struct Acknowledged {
    number: i32,
    at: Instant,
}

impl Writers {
    /// Creates the table and starts `clients` clients, each of which writes as fast as it gets answers.
    pub(crate) fn start(runtime: &Runtime, at: &str, clients: usize) -> Result<Writers> {
        runtime.block_on(create(at))?;
        let (at, stop): (Arc<str>, _) = (at.into(), Arc::new(AtomicBool::new(false)));
        let client = |client| {
            let acknowledged = Log::default();
            let task = write(client, at.clone(), acknowledged.clone(), stop.clone());
            (acknowledged, runtime.spawn(task))
        };
        Ok(Writers { clients: (0..clients as i32).map(client).collect(), at, stop })
    }

    /// Waits until each client got an acknowledgement after this time.
    pub(crate) fn wait_for_all_since(&self, since: Instant) -> Result<()> {
        let began = Instant::now();
        for (client, (log, _)) in self.clients.iter().enumerate() {
            loop {
                let (newest, last_error) = match log.lock() {
                    Ok(log) => (log.acknowledged.last().map(|write| write.at), log.last_error.clone()),
                    Err(_) => bail!("writing client {client} panicked"),
                };
                if newest.is_some_and(|at| at > since) {
                    break;
                }
                ensure!(
                    began.elapsed() < PATIENCE,
                    "no write of client {client} was acknowledged for {} s; the last error of this client \
                     was: {last_error}",
                    PATIENCE.as_secs()
                );
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Waits until any client got an acknowledgement after this time. Returns the earliest.
    pub(crate) fn first_since(&self, since: Instant) -> Result<Instant> {
        loop {
            let logs = self.clients.iter().filter_map(|(log, _)| log.lock().ok());
            let firsts = logs.filter_map(|log| {
                let first = log.acknowledged.partition_point(|write| write.at <= since);
                log.acknowledged.get(first).map(|write| write.at)
            });
            if let Some(first) = firsts.min() {
                return Ok(first);
            }
            ensure!(
                since.elapsed() < PATIENCE,
                "no write of any client was acknowledged for {} s",
                PATIENCE.as_secs()
            );
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the number of writes that all clients had acknowledged between two instants.
    pub(crate) fn acknowledged(&self, from: Instant, to: Instant) -> usize {
        let logs = self.clients.iter().filter_map(|(log, _)| log.lock().ok());
        let between = |log: MutexGuard<'_, WriterLog>| {
            let before = |at| log.acknowledged.partition_point(|write| write.at <= at);
            before(to) - before(from)
        };
        logs.map(between).sum()
    }

    /// Returns two durations since a kill, each the longest of any client: the wait for the next acknowledged
    /// write, and the longest silence.
    pub(crate) fn stood_still(&self, killed: Instant) -> (Duration, Duration) {
        let (mut next_write, mut silence) = (Duration::ZERO, Duration::ZERO);
        for (log, _) in &self.clients {
            let Ok(log) = log.lock() else { continue };
            let writes = &log.acknowledged;
            let first = writes.partition_point(|write| write.at <= killed);
            let times = std::iter::once(killed).chain(writes[first..].iter().map(|write| write.at));
            let gaps = times.clone().zip(times.skip(1)).map(|(earlier, later)| later - earlier);
            next_write = next_write.max(gaps.clone().next().unwrap_or_default());
            silence = silence.max(gaps.max().unwrap_or_default());
        }
        (next_write, silence)
    }

    /// Returns the numbers of failed statements and of reconnections, over all clients.
    pub(crate) fn failures(&self) -> (u64, u64) {
        let logs = self.clients.iter().filter_map(|(log, _)| log.lock().ok());
        logs.fold((0, 0), |(failed, again), log| {
            (failed + log.failed, again + log.connections.saturating_sub(1))
        })
    }

    /// Stops the clients, and checks that every acknowledged row is there once.
    pub(crate) async fn stop(self) -> Result<Written> {
        self.stop.store(true, Ordering::Relaxed);
        let mut journals = Vec::new();
        for (log, task) in self.clients {
            task.await.context("a writing client panicked")?;
            let log = log.lock().map_or_else(|_| Vec::new(), |mut log| std::mem::take(&mut log.acknowledged));
            journals.push(log);
        }
        let mut there: BTreeMap<(i32, i32), u64> = BTreeMap::new();
        let connection = sql::connect(&self.at).await?;
        for row in connection.query("select client, number from acknowledged", &[]).await? {
            *there.entry((row.get(0), row.get(1))).or_default() += 1;
        }
        let mut account = RowAudit {
            doubled: there.values().filter(|count| **count > 1).count() as u64,
            ..RowAudit::default()
        };
        let mut instants = Vec::new();
        for (client, journal) in (0..).zip(journals) {
            for Acknowledged { number, at } in journal {
                account.acknowledged += 1;
                account.lost += u64::from(!there.contains_key(&(client, number)));
                instants.push(at);
            }
        }
        instants.sort();
        Ok(Written { instants, account })
    }
}

/// Creates the table of acknowledged rows, as soon as the cluster accepts it.
async fn create(at: &str) -> Result<()> {
    let table = "create table acknowledged (client int, number int) with (partition_by = 'hash(number)')";
    let began = Instant::now();
    loop {
        match sql::connect(at).await?.batch_execute(table).await {
            Ok(()) => return Ok(()),
            Err(error) if began.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Runs one client: connects, reconnects if needed, and inserts numbers.
async fn write(client: i32, at: Arc<str>, log: Log, stop: Arc<AtomicBool>) {
    let note_error = |what: String| {
        if let Ok(mut log) = log.lock() {
            log.last_error = what;
        }
    };
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let (connection, insert) = match connect(&at).await {
            Ok(connected) => connected,
            Err(error) => {
                note_error(format!("{error:#}"));
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
        };
        if let Ok(mut log) = log.lock() {
            log.connections += 1;
        }
        while !stop.load(Ordering::Relaxed) && !connection.is_closed() {
            number += 1;
            match connection.execute(&insert, &[&client, &number]).await {
                Ok(_) => {
                    if let Ok(mut log) = log.lock() {
                        log.acknowledged.push(Acknowledged { number, at: Instant::now() });
                    }
                }
                // The row was not sent, or it may have been applied. In both cases the next attempt inserts
                // another row, with the next number.
                Err(error) => {
                    note_error(format!("the insert of row {number} failed: {error:?}"));
                    if let Ok(mut log) = log.lock() {
                        log.failed += 1;
                    }
                }
            }
        }
    }
}

async fn connect(at: &str) -> Result<(Client, Statement)> {
    let connection = sql::connect(at).await?;
    let insert = connection.prepare("insert into acknowledged values ($1, $2)").await?;
    Ok((connection, insert))
}
