//! Clients that insert numbered rows one at a time, each as soon as the one before is acknowledged, and note when.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use tokio::{runtime::Runtime, task::JoinHandle};
use tokio_postgres::error::SqlState;

use super::spawned::Spawned;
use crate::sql;

/// How long a client may wait for an acknowledgement before something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// The clients, and when each had its writes acknowledged.
pub(super) struct Writers {
    stop: Arc<AtomicBool>,
    clients: Vec<(Log, JoinHandle<()>)>,
}

/// What one client had acknowledged, in its order.
type Log = Arc<Mutex<Vec<Acknowledged>>>;

#[derive(Clone, Copy)]
struct Acknowledged {
    number: i32,
    at: Instant,
}

impl Writers {
    /// Starts so many, each writing into the table `acknowledged` as fast as it is answered.
    pub(super) fn start(runtime: &Runtime, spawned: &Arc<Spawned>, clients: usize) -> Writers {
        let stop = Arc::new(AtomicBool::new(false));
        let client = |client| {
            let acknowledged = Arc::new(Mutex::new(Vec::new()));
            let task = write(client, spawned.clone(), acknowledged.clone(), stop.clone());
            (acknowledged, runtime.spawn(task))
        };
        Writers { clients: (0..clients as i32).map(client).collect(), stop }
    }

    /// Waits until each client had a write acknowledged after this time.
    pub(super) fn wait_for_all_since(&self, since: Instant) -> Result<()> {
        let began = Instant::now();
        let newest = |writes: &Mutex<Vec<Acknowledged>>| Some(writes.lock().ok()?.last()?.at);
        while !self.clients.iter().all(|(writes, _)| newest(writes).is_some_and(|at| at > since)) {
            ensure!(
                began.elapsed() < PATIENCE,
                "a client had nothing acknowledged for {} s",
                PATIENCE.as_secs()
            );
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Since a kill, over all clients: the longest until the next acknowledged write, and the longest silence.
    pub(super) fn stood_still(&self, killed: Instant) -> (Duration, Duration) {
        let (mut next_write, mut silence) = (Duration::ZERO, Duration::ZERO);
        for (writes, _) in &self.clients {
            let Ok(writes) = writes.lock() else { continue };
            let first = writes.partition_point(|write| write.at <= killed);
            let times = std::iter::once(killed).chain(writes[first..].iter().map(|write| write.at));
            let gaps = times.clone().zip(times.skip(1)).map(|(earlier, later)| later - earlier);
            next_write = next_write.max(gaps.clone().next().unwrap_or_default());
            silence = silence.max(gaps.max().unwrap_or_default());
        }
        (next_write, silence)
    }

    /// Ends them; the numbers acknowledged to each.
    pub(super) async fn stop(self) -> Vec<Vec<i32>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for (writes, task) in self.clients {
            let _ = task.await;
            all.push(
                writes
                    .lock()
                    .map(|writes| writes.iter().map(|write| write.number).collect())
                    .unwrap_or_default(),
            );
        }
        all
    }
}

/// One client: connects, again whenever it must, and inserts numbers.
async fn write(client: i32, spawned: Arc<Spawned>, acknowledged: Log, stop: Arc<AtomicBool>) {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let address = spawned.cluster().and_then(|cluster| Ok(cluster.sql()?.to_string()));
        let connected = match address {
            Ok(address) => sql::connect(&address).await,
            Err(error) => Err(error),
        };
        let Ok(connection) = connected else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let Ok(insert) = connection.prepare("insert into acknowledged values ($1, $2)").await else {
            continue;
        };
        while !stop.load(Ordering::Relaxed) {
            number += 1;
            match connection.execute(&insert, &[&client, &number]).await {
                Ok(_) => {
                    if let Ok(mut writes) = acknowledged.lock() {
                        writes.push(Acknowledged { number, at: Instant::now() });
                    }
                }
                // Not sent, or perhaps applied: the next number is another row either way.
                Err(error) if error.code().is_some_and(|code| code != &SqlState::ADMIN_SHUTDOWN) => {}
                Err(_) => break,
            }
        }
    }
}
