//! A long result streams. No process holds all of it, a slow client delays only itself, and a client that
//! pauses longer than any patience still gets every row.

use std::{
    fs,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{SinkExt, TryStreamExt};
use quorate_testing::wait_for;
use serde_json::Value;
use tokio_postgres::{Client, NoTls};

use crate::{
    cluster::{is_mended, status, turn},
    command::LocalCluster,
};

const ROWS: i64 = 64_000;
const ROW_BYTES: usize = 1_000;
/// Largest growth of a process in bytes: half of the size of the result.
const GROWTH_MAX: u64 = 32 << 20;

#[test]
fn a_long_result_streams() {
    let _turn = turn();
    let place = LocalCluster::new();
    let up = place.run(&["up", "--detach", "--memory", "--empty", "--port", "0"]);
    assert_eq!(up.code, Some(0), "{up:?}");
    wait_for("the cluster stands", || is_mended(&place));
    let sql = status(&place).iter().find_map(|row| Some(row["bound"]["sql"].as_str()?.to_owned()));
    let sql = sql.expect("a gateway");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = connect(&sql).await;
        client
            .batch_execute("create table long (n bigint, t text) with (partition_by = 'hash(n)')")
            .await
            .unwrap();
        load(&client).await;
        let other = connect(&sql).await;
        let plan = other.query("explain analyze select n from long where t < '1'", &[]).await.unwrap();
        let plan: Vec<&str> = plan.iter().map(|row| row.get(0)).collect();
        assert!(plan.iter().any(|line| line.trim().starts_with("On storage-")), "{plan:?}");
        for strength in ["snapshot", "basic", "sequential"] {
            client.batch_execute(&format!("set quorate.read = '{strength}'")).await.unwrap();
            read(&place, &client, &other, strength).await;
        }
    });
}

async fn connect(address: &str) -> Client {
    let (host, port) = address.rsplit_once(':').unwrap();
    let config = format!("host={host} port={port} user=quorate dbname=quorate");
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn load(client: &Client) {
    let copy = client.copy_in("copy long from stdin").await.unwrap();
    let mut copy = std::pin::pin!(copy);
    for first in (0..ROWS).step_by(100) {
        let line = |n: i64| format!("{n}\t{}\n", text(n));
        let lines: String = (first..ROWS.min(first + 100)).map(line).collect();
        copy.send(Bytes::from(lines)).await.unwrap();
    }
    assert_eq!(copy.finish().await.unwrap(), ROWS as u64);
}

fn text(n: i64) -> String {
    format!("{n:0ROW_BYTES$}")
}

async fn read(place: &LocalCluster, client: &Client, other: &Client, strength: &str) {
    let before = memory(place);
    let rows = client.query_raw("select n, t from long", Vec::<i32>::new()).await.unwrap();
    let mut rows = std::pin::pin!(rows);
    let mut seen = vec![false; ROWS as usize];
    let mut count = 0;
    while let Some(row) = rows.try_next().await.unwrap() {
        let (n, t): (i64, &str) = (row.get(0), row.get(1));
        assert!(!std::mem::replace(&mut seen[n as usize], true), "{n} twice");
        assert_eq!(t, text(n));
        count += 1;
        if count == 1_000 {
            // The pause is longer than a read may go without progress while other clients are served.
            tokio::time::sleep(Duration::from_secs(3)).await;
            let began = Instant::now();
            let answer = other.query_one("select count(*) from long", &[]).await.unwrap();
            assert_eq!(answer.get::<_, i64>(0), ROWS);
            assert!(began.elapsed() < Duration::from_secs(2), "a short read waited {:?}", began.elapsed());
        }
        if count % 4_000 == 0 {
            for ((name, before), (_, now)) in before.iter().zip(memory(place)) {
                let growth = now.saturating_sub(*before);
                assert!(
                    growth <= GROWTH_MAX,
                    "{strength}: {name} grew by {growth} bytes behind {count} rows"
                );
            }
        }
    }
    assert_eq!(count, ROWS);
}

/// Returns the resident memory of gateways and storage processes, in bytes.
fn memory(place: &LocalCluster) -> Vec<(String, u64)> {
    let of = |row: &Value| {
        let name = row["name"].as_str()?;
        let status = fs::read_to_string(format!("/proc/{}/status", row["pid"])).ok()?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().ok()?;
        let counts = name.starts_with("gateway") || name.starts_with("storage");
        counts.then(|| (name.to_owned(), kilobytes << 10))
    };
    status(place).iter().filter_map(of).collect()
}
