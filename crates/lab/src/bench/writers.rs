//! Clients that insert numbered rows one at a time, each as soon as the one before is acknowledged, and note when.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use tokio::{runtime::Runtime, task::JoinHandle};
use tokio_postgres::{Client, Statement};

use super::sql;

/// How long a client may wait for an acknowledgement before something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// The clients, and when each had its writes acknowledged.
pub(super) struct Writers {
    stop: Arc<AtomicBool>,
    clients: Vec<(Log, JoinHandle<()>)>,
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
    /// Starts so many, each writing into the table `acknowledged` as fast as it is answered.
    pub(super) fn start(runtime: &Runtime, at: &str, clients: usize) -> Writers {
        let (at, stop): (Arc<str>, _) = (at.into(), Arc::new(AtomicBool::new(false)));
        let client = |client| {
            let acknowledged = Log::default();
            let task = write(client, at.clone(), acknowledged.clone(), stop.clone());
            (acknowledged, runtime.spawn(task))
        };
        Writers { clients: (0..clients as i32).map(client).collect(), stop }
    }

    /// Waits until each client had a write acknowledged after this time.
    pub(super) fn wait_for_all_since(&self, since: Instant) -> Result<()> {
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

    /// How many writes were acknowledged to all clients between two instants.
    pub(super) fn acknowledged(&self, from: Instant, to: Instant) -> usize {
        let logs = self.clients.iter().filter_map(|(log, _)| log.lock().ok());
        let between = |log: MutexGuard<'_, Journal>| {
            let before = |at| log.acknowledged.partition_point(|write| write.at <= at);
            before(to) - before(from)
        };
        logs.map(between).sum()
    }

    /// Since a kill, over all clients: the longest until the next acknowledged write, and the longest silence.
    pub(super) fn stood_still(&self, killed: Instant) -> (Duration, Duration) {
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
    pub(super) fn troubles(&self) -> (u64, u64) {
        let logs = self.clients.iter().filter_map(|(log, _)| log.lock().ok());
        logs.fold((0, 0), |(failed, again), log| {
            (failed + log.failed, again + log.connections.saturating_sub(1))
        })
    }

    /// Ends them; the numbers acknowledged to each.
    pub(super) async fn stop(self) -> Vec<Vec<i32>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for (log, task) in self.clients {
            let _ = task.await;
            let numbers = log.lock().map(|log| log.acknowledged.iter().map(|write| write.number).collect());
            all.push(numbers.unwrap_or_default());
        }
        all
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
