//! Connections that insert numbered rows, each as soon as the one before is acknowledged, and note when.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

use crate::record::Account;

/// The pause after a connection or a statement failed.
const PAUSE: Duration = Duration::from_millis(2);

/// What one connection had acknowledged: the numbers, and when.
type Journal = Vec<(i32, Instant)>;

pub(crate) struct Writers {
    at: SocketAddr,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Journal>>,
}

/// All that was acknowledged.
pub(crate) struct Written {
    /// When, in order.
    pub(crate) instants: Vec<Instant>,
    pub(crate) account: Account,
}

impl Writers {
    /// Makes the table and starts so many.
    pub(crate) async fn start(at: SocketAddr, clients: usize) -> Result<Writers> {
        let table = "create table acknowledged (client int, number int) with (partition_by = 'hash(number)')";
        connect(at).await?.batch_execute(table).await?;
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = (0..clients as i32).map(|client| tokio::spawn(write(client, at, stop.clone()))).collect();
        Ok(Writers { at, stop, tasks })
    }

    /// Ends them, and looks whether everything that was acknowledged is there once.
    pub(crate) async fn stop(self) -> Result<Written> {
        self.stop.store(true, Ordering::Relaxed);
        let mut journals = Vec::new();
        for task in self.tasks {
            journals.push(task.await.context("a writer panicked")?);
        }
        let mut there: BTreeMap<(i32, i32), u64> = BTreeMap::new();
        let client = connect(self.at).await?;
        for row in client.query("select client, number from acknowledged", &[]).await? {
            *there.entry((row.get(0), row.get(1))).or_default() += 1;
        }
        let mut account = Account {
            doubled: there.values().filter(|count| **count > 1).count() as u64,
            ..Account::default()
        };
        let mut instants = Vec::new();
        for (client, journal) in (0..).zip(journals) {
            for (number, instant) in journal {
                account.acknowledged += 1;
                account.lost += u64::from(!there.contains_key(&(client, number)));
                instants.push(instant);
            }
        }
        instants.sort();
        Ok(Written { instants, account })
    }
}

async fn write(client: i32, at: SocketAddr, stop: Arc<AtomicBool>) -> Journal {
    let mut journal = Journal::new();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(connection) = connect(at).await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let Ok(insert) = connection.prepare("insert into acknowledged values ($1, $2)").await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        while !stop.load(Ordering::Relaxed) && !connection.is_closed() {
            number += 1;
            match connection.execute(&insert, &[&client, &number]).await {
                Ok(_) => journal.push((number, Instant::now())),
                // Not sent, or perhaps applied: the next number is another row either way.
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
    journal
}

async fn connect(at: SocketAddr) -> Result<Client> {
    let mut config = tokio_postgres::Config::new();
    config.host(at.ip().to_string()).port(at.port()).user("quorate").dbname("quorate");
    config.connect_timeout(Duration::from_secs(5));
    let (client, connection) = config.connect(NoTls).await?;
    // Its errors come back to the statements that it carries.
    tokio::spawn(connection);
    Ok(client)
}
