//! Clients write and read while processes are killed. No acknowledged write is lost or doubled, and no read
//! is stale.
//!
//! Each client inserts numbered rows, and overwrites and reads registers that all clients share.
//! `quorate_history` judges the registers' history. It must be atomic, so no sequential read was stale.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use quorate_history::{
    History, Operation, Recorder, check,
    operation::{Action, Value},
};
use quorate_testing::wait_for;
use tokio_postgres::{Client, NoTls, error::SqlState};

use crate::{
    cluster::{is_mended, process, status, turn},
    command::LocalCluster,
};

const CLIENTS: i64 = 8;
const REGISTERS: i64 = 4;

/// The results of one client.
struct ClientResult {
    operations: Vec<Operation>,
    acknowledged: BTreeSet<i64>,
    /// Numbers of inserts with an unknown outcome.
    open: BTreeSet<i64>,
}

#[test]
fn nothing_acknowledged_is_lost_doubled_or_stale_while_processes_are_killed() {
    let _turn = turn();
    let place = Arc::new(LocalCluster::new());
    let up = place.run(&["up", "--detach", "--memory", "--empty", "--port", "0"]);
    assert_eq!(up.code, Some(0), "{up:?}");
    wait_for("the cluster is whole", || is_mended(&place));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(prepare(&place));

    let stop = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| runtime.spawn(client(number, place.clone(), stop.clone(), began)))
        .collect();

    let leading = || named(&place, |row| row["state"] == "leading");
    let following = || named(&place, |row| row["state"] == "following");
    let storages =
        |place: &LocalCluster| named_all(place, |row| row["role"] == "storage" && row["state"] == "serving");
    kill(&place, &leading());
    kill(&place, &following());
    for victim in storages(&place) {
        kill(&place, &victim);
    }
    kill(&place, "super-1");
    kill(&place, "gateway-1");
    kill(&place, &leading());

    stop.store(true, Ordering::Relaxed);
    let results: Vec<ClientResult> = clients
        .into_iter()
        .map(|client| runtime.block_on(client).expect("a client ends by itself"))
        .collect();
    let rows = runtime.block_on(rows(&place));
    for (number, result) in results.iter().enumerate() {
        let there = rows.get(&(number as i64)).cloned().unwrap_or_default();
        let doubled: Vec<_> = there.iter().filter(|(_, count)| **count > 1).collect();
        assert!(doubled.is_empty(), "client {number}: there more than once: {doubled:?}");
        let there: BTreeSet<i64> = there.into_keys().collect();
        let lost: Vec<_> = result.acknowledged.difference(&there).collect();
        assert!(lost.is_empty(), "client {number}: acknowledged and lost: {lost:?}");
        let sent: BTreeSet<i64> = result.acknowledged.union(&result.open).copied().collect();
        let forged: Vec<_> = there.difference(&sent).collect();
        assert!(forged.is_empty(), "client {number}: there and never sent: {forged:?}");
        assert!(
            result.acknowledged.len() > 20,
            "client {number} hardly wrote: {}",
            result.acknowledged.len()
        );
    }
    let history: History = results.into_iter().flat_map(|result| result.operations).collect();
    assert!(history.len() > 500, "hardly a history: {} operations", history.len());
    check(&history).assert_atomic();
}

fn named(place: &LocalCluster, is: impl Fn(&serde_json::Value) -> bool) -> String {
    named_all(place, is).first().expect("a process has this role or state").clone()
}

fn named_all(place: &LocalCluster, is: impl Fn(&serde_json::Value) -> bool) -> Vec<String> {
    let rows = status(place);
    rows.iter().filter(|row| is(row)).map(|row| row["name"].as_str().unwrap().to_owned()).collect()
}

/// Kills a process and waits until `status` shows a replacement and a whole cluster.
fn kill(place: &LocalCluster, victim: &str) {
    let before = process(place, victim);
    let killed = place.run(&["kill", victim]);
    assert_eq!(killed.code, Some(0), "{killed:?}");
    wait_for(&format!("{victim} is replaced"), || {
        let after = process(place, victim);
        after["incarnation"].is_string() && after["incarnation"] != before["incarnation"] && is_mended(place)
    });
}

async fn connect(place: &LocalCluster) -> Option<Client> {
    let gateway = status(place).into_iter().find(|row| row["name"] == "gateway-1")?;
    let address = gateway["bound"]["sql"].as_str()?.to_owned();
    let (host, port) = address.rsplit_once(':')?;
    let options = format!("host={host} port={port} user=quorate dbname=quorate connect_timeout=5");
    let (client, connection) = tokio_postgres::connect(&options, NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

async fn connected(place: &LocalCluster) -> Client {
    let began = Instant::now();
    loop {
        if let Some(client) = connect(place).await {
            return client;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "no gateway for a minute");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn prepare(place: &LocalCluster) {
    let client = connected(place).await;
    client.batch_execute("create table numbered (client bigint, number bigint)").await.unwrap();
    client.batch_execute("create table register (name bigint primary key, value bigint)").await.unwrap();
    for register in 0..REGISTERS {
        client.execute("insert into register values ($1, 0)", &[&register]).await.unwrap();
    }
}

/// Counts the rows by client and number.
async fn rows(place: &LocalCluster) -> BTreeMap<i64, BTreeMap<i64, u64>> {
    let client = connected(place).await;
    let mut counts: BTreeMap<i64, BTreeMap<i64, u64>> = BTreeMap::new();
    for row in client.query("select client, number from numbered", &[]).await.unwrap() {
        *counts.entry(row.get(0)).or_default().entry(row.get(1)).or_default() += 1;
    }
    counts
}

/// The outcome of a write, as its client knows it.
enum InsertFate {
    Done,
    NotDone,
    Open,
}

fn fate(result: Result<u64, tokio_postgres::Error>) -> InsertFate {
    match result {
        Ok(_) => InsertFate::Done,
        // The gateway reports that nothing was sent.
        Err(error) if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => InsertFate::NotDone,
        Err(_) => InsertFate::Open,
    }
}

async fn client(
    number: i64,
    place: Arc<LocalCluster>,
    stop: Arc<AtomicBool>,
    began: Instant,
) -> ClientResult {
    let now = || began.elapsed().as_nanos() as i64;
    let mut recorder = Recorder::in_memory(number as u64);
    let mut result =
        ClientResult { operations: Vec::new(), acknowledged: BTreeSet::new(), open: BTreeSet::new() };
    let mut turn = 0;
    let mut connection = connected(&place).await;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        if connection.is_closed() {
            connection = connected(&place).await;
        }
        match fate(connection.execute("insert into numbered values ($1, $2)", &[&number, &turn]).await) {
            InsertFate::Done => drop(result.acknowledged.insert(turn)),
            InsertFate::NotDone => {}
            InsertFate::Open => drop(result.open.insert(turn)),
        }
        let register = (number + turn) % REGISTERS;
        let key = register.to_string();
        if turn % 3 == 0 {
            // No two writes of the test have the same value.
            let value = turn * CLIENTS + number + 1;
            let Ok(call) = recorder.start(&key, Action::Write(Value::from(value.to_string())), now());
            let update = "update register set value = $2 where name = $1";
            let Ok(()) = match fate(connection.execute(update, &[&register, &value]).await) {
                InsertFate::Done => recorder.ok(call, now()),
                InsertFate::NotDone => recorder.failed(call, now()),
                InsertFate::Open => recorder.unknown(call),
            };
        } else {
            let Ok(call) = recorder.start(&key, Action::Read(None), now());
            let read = connection.query_one("select value from register where name = $1", &[&register]).await;
            let Ok(()) = match read.map(|row| row.get::<_, i64>(0)) {
                Ok(value) => {
                    let value = (value != 0).then(|| Value::from(value.to_string()));
                    recorder.returned(call, value, now())
                }
                Err(_) => recorder.unknown(call),
            };
        }
        // Recovery from a kill takes seconds, so a row every few milliseconds is enough.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    result.operations = recorder.into_operations();
    result
}
