//! Clients that insert numbered rows one at a time, each as soon as the one before is acknowledged, and note when. Afterwards each
//! acknowledged row is looked for.

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

use crate::{record::Account, sql};

/// How long a client may wait for an acknowledgement before something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// The clients, and when each had its writes acknowledged.
pub(crate) struct Writers {
    at: Arc<str>,
    stop: Arc<AtomicBool>,
    clients: Vec<(Log, JoinHandle<()>)>,
}

/// All that was acknowledged.
pub(crate) struct Written {
    /// When, in order.
    pub(crate) instants: Vec<Instant>,
    pub(crate) account: Account,
}

/// What one client met.
type Log = Arc<Mutex<Journal>>;

#[derive(Default)]
struct Journal {
    /// What was acknowledged, in its order.
    acknowledged: Vec<Acknowledged>,
    /// What it was last told when something was not.
    trouble: String,
    /// Statements that failed, and connections that were made.
    failed: u64,
    connections: u64,
}

#[derive(Clone, Copy)]
struct Acknowledged {
    number: i32,
    at: Instant,
}

impl Writers {
    /// Makes the table and starts so many clients, each of which writes as fast as it is answered.
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

    /// Waits until each client had a write acknowledged after this time.
    pub(crate) fn wait_for_all_since(&self, since: Instant) -> Result<()> {
        let began = Instant::now();
        for (client, (log, _)) in self.clients.iter().enumerate() {
            loop {
                let (newest, trouble) = match log.lock() {
                    Ok(log) => (log.acknowledged.last().map(|write| write.at), log.trouble.clone()),
                    Err(_) => bail!("client {client} panicked"),
                };
                if newest.is_some_and(|at| at > since) {
                    break;
                }
                ensure!(
                    began.elapsed() < PATIENCE,
                    "client {client} had nothing acknowledged for {} s; its last trouble: {trouble}",
                    PATIENCE.as_secs()
                );
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Waits until any client had a write acknowledged after this time, and tells when the first was.
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
            ensure!(since.elapsed() < PATIENCE, "nothing was acknowledged for {} s", PATIENCE.as_secs());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// How many writes were acknowledged to all clients between two instants.
    pub(crate) fn acknowledged(&self, from: Instant, to: Instant) -> usize {
        let logs = self.clients.iter().filter_map(|(log, _)| log.lock().ok());
        let between = |log: MutexGuard<'_, Journal>| {
            let before = |at| log.acknowledged.partition_point(|write| write.at <= at);
            before(to) - before(from)
        };
        logs.map(between).sum()
    }

    /// Since a kill, over all clients: the longest until the next acknowledged write, and the longest silence.
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

    /// Statements that failed, and connections that had to be made anew, over all clients.
    pub(crate) fn troubles(&self) -> (u64, u64) {
        let logs = self.clients.iter().filter_map(|(log, _)| log.lock().ok());
        logs.fold((0, 0), |(failed, again), log| {
            (failed + log.failed, again + log.connections.saturating_sub(1))
        })
    }

    /// Ends them, and looks whether everything that was acknowledged is there once.
    pub(crate) async fn stop(self) -> Result<Written> {
        self.stop.store(true, Ordering::Relaxed);
        let mut journals = Vec::new();
        for (log, task) in self.clients {
            task.await.context("a client panicked")?;
            let log = log.lock().map_or_else(|_| Vec::new(), |mut log| std::mem::take(&mut log.acknowledged));
            journals.push(log);
        }
        let mut there: BTreeMap<(i32, i32), u64> = BTreeMap::new();
        let connection = sql::connect(&self.at).await?;
        for row in connection.query("select client, number from acknowledged", &[]).await? {
            *there.entry((row.get(0), row.get(1))).or_default() += 1;
        }
        let mut account = Account {
            doubled: there.values().filter(|count| **count > 1).count() as u64,
            ..Account::default()
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

/// Makes the table of what is acknowledged, as soon as the cluster takes it.
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

/// One client: connects, again whenever it must, and inserts numbers.
async fn write(client: i32, at: Arc<str>, log: Log, stop: Arc<AtomicBool>) {
    let trouble = |what: String| {
        if let Ok(mut log) = log.lock() {
            log.trouble = what;
        }
    };
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let (connection, insert) = match connect(&at).await {
            Ok(connected) => connected,
            Err(error) => {
                trouble(format!("{error:#}"));
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
                // Not sent, or perhaps applied: the next number is another row either way.
                Err(error) => {
                    trouble(format!("at number {number}: {error:?}"));
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
