//! Queries that run while storage processes are killed, and results that clients do not read.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::SinkExt;
use quorate_testing::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio_postgres::{Client, NoTls};

use crate::{
    cluster::{is_mended, status, turn},
    command::LocalCluster,
};

const ROWS: i32 = 100_000;

/// Returns a query that neither an index nor a shared pass speeds up. It takes longer for a larger `times`.
fn long(times: u32) -> String {
    format!(
        "select count(*) from t where repeat(body, {times}) like '%a%b%c%d%e%f%g%' or repeat(body, {}) like '%x_y%z%'",
        times + 1
    )
}

/// Shortest time of the query, so that processes are killed while it runs.
const LONG: Duration = Duration::from_millis(1_500);

#[test]
fn a_query_outlives_one_process_and_ends_with_the_second() {
    let _turn = turn();
    let place = LocalCluster::new();
    let up = place.run(&["up", "--detach", "--memory", "--empty", "--port", "0"]);
    assert_eq!(up.code, Some(0), "{up:?}");
    wait_for("the cluster is whole", || is_mended(&place));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let address = gateway(&place);
        let client = connect_to(&address).await;
        client
            .batch_execute("create table t (id int, body text) with (partition_by = 'hash(id)')")
            .await
            .unwrap();
        fill(&client).await;
        // The first query waits until the rows are in place.
        let count: i64 = client.query_one("select count(*) from t", &[]).await.unwrap().get(0);
        assert_eq!(count, i64::from(ROWS));
        let mut times = 40;
        let expected: i64 = loop {
            let began = Instant::now();
            let count = client.query_one(&long(times), &[]).await.unwrap().get(0);
            if began.elapsed() >= LONG {
                break count;
            }
            times *= 2;
        };

        // One process is killed while the queries run, and no query fails.
        let before = serving(&place);
        let asked: Vec<_> = (0..4).map(|_| ask(&address, times)).collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let victim = before.keys().next().unwrap().clone();
        kill(&before[&victim]);
        for asked in asked {
            assert_eq!(asked.await.unwrap().unwrap(), expected);
        }
        wait_for("a standby has the place of the victim", || is_mended(&place));
        let after = serving(&place);
        assert!(
            before.iter().all(|(name, it)| *name == victim || after[name]["pid"] == it["pid"]),
            "no other process died"
        );

        // The test kills two processes. The queries may have caused the deaths, so no further process gets
        // these queries, although the remaining processes have all rows.
        let asked: Vec<_> = (0..4).map(|_| ask(&address, times)).collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        for victim in after.values().take(2) {
            kill(victim);
        }
        for asked in asked {
            let error = asked.await.unwrap().unwrap_err();
            let error = error.as_db_error().unwrap_or_else(|| panic!("{error}"));
            assert_eq!(error.code().code(), "XX000", "{error}");
            assert!(
                error.message().contains("ended while it executed this query, as another process did before"),
                "{error}"
            );
        }
        wait_for("standbys have the places of the victims", || is_mended(&place));
        let now = serving(&place);
        let same = |(name, it): (&String, &Value)| now.get(name).is_some_and(|now| now["pid"] == it["pid"]);
        assert_eq!(after.iter().filter(|it| same(*it)).count(), after.len() - 2, "no other process died");
        let count: i64 = client.query_one("select count(*) from t", &[]).await.unwrap().get(0);
        assert_eq!(count, i64::from(ROWS));
    });
}

async fn fill(client: &Client) {
    let copy = client.copy_in("copy t from stdin").await.unwrap();
    let mut copy = std::pin::pin!(copy);
    for first in (0..ROWS).step_by(1_000) {
        let lines: String = (first..first + 1_000).map(|n| format!("{n}\t{}\n", body(n))).collect();
        copy.send(Bytes::from(lines)).await.unwrap();
    }
    assert_eq!(copy.finish().await.unwrap(), ROWS as u64);
}

/// Returns letters without an obvious pattern.
fn body(n: i32) -> String {
    let mut state = n as u64;
    let letter = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'a' + (state >> 33) as u8 % 26)
    };
    (0..64).map(letter).collect()
}

/// Runs a query on its own connection.
fn ask(address: &str, times: u32) -> tokio::task::JoinHandle<Result<i64, tokio_postgres::Error>> {
    let address = address.to_owned();
    tokio::spawn(async move {
        let client = connect_to(&address).await;
        client.query_one(&long(times), &[]).await.map(|row| row.get(0))
    })
}

/// Returns the serving storage processes by name.
fn serving(place: &LocalCluster) -> BTreeMap<String, Value> {
    let rows = status(place).into_iter();
    let rows = rows.filter(|row| row["role"] == "storage" && row["state"] == "serving");
    rows.map(|row| (row["name"].as_str().unwrap().to_owned(), row)).collect()
}

/// `kill -9`.
fn kill(process: &Value) {
    let pid = i32::try_from(process["pid"].as_i64().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

fn gateway(place: &LocalCluster) -> String {
    let gateway = status(place).into_iter().find(|row| row["name"] == "gateway-1").unwrap();
    gateway["bound"]["sql"].as_str().unwrap().to_owned()
}

async fn connect_to(address: &str) -> Client {
    let (host, port) = address.rsplit_once(':').unwrap();
    let options = format!("host={host} port={port} user=quorate dbname=quorate connect_timeout=5");
    let (client, connection) = tokio_postgres::connect(&options, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
