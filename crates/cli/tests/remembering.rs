//! The large answers that ranges remember, while the processes that hold them are killed one after another.

use std::collections::BTreeMap;

use quorate_testing::wait_for;
use serde_json::Value;
use tokio_postgres::{Client, NoTls};

use crate::{
    cluster::{is_mended, status, turn},
    command::LocalCluster,
};

/// Number of writes. The answer to each write is one mebibyte. Together the answers exceed what a message can
/// carry and what a range keeps.
const WRITES: u64 = 80;
/// Maximum size of the answers that a range keeps, in bytes.
const REMEMBERED_BYTES_MAX: u64 = 64 << 20;
/// Number of ranges of a storage process.
const RANGES: u64 = 3;

#[test]
fn large_answers_are_remembered_within_a_bound_and_move_with_their_range() {
    let _turn = turn();
    let place = LocalCluster::new();
    let up = place.run(&["up", "--detach", "--memory", "--empty", "--port", "0"]);
    assert_eq!(up.code, Some(0), "{up:?}");
    wait_for("the cluster is whole", || is_mended(&place));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = connect(&place).await;
        client.batch_execute("create table t (id bigint primary key, n bigint, body text)").await.unwrap();
        let body = "x".repeat(1 << 20);
        client.execute("insert into t values (1, 0, $1)", &[&body]).await.unwrap();
        for n in 1..=WRITES {
            let update = "update t set n = n + 1 where id = 1 returning n, body";
            let row = client.query_one(update, &[]).await.unwrap();
            assert_eq!((row.get::<_, i64>(0), row.get::<_, &str>(1).len()), (n as i64, body.len()));
        }
    });

    let most = remembered(&place).into_values().max().unwrap();
    assert!(most > REMEMBERED_BYTES_MAX - (2 << 20) && most <= RANGES * REMEMBERED_BYTES_MAX, "{most} bytes");
    for victim in serving(&place).into_keys() {
        let mut others = serving(&place);
        let former = others.remove(&victim);
        let killed = place.run(&["kill", &victim]);
        assert_eq!(killed.code, Some(0), "{killed:?}");
        // A spare takes the place of the killed process, or its own next life does if that is faster.
        wait_for(&format!("{victim} is replaced"), || {
            let now = serving(&place);
            now.get(&victim) != former.as_ref() && now.len() == others.len() + 1 && is_mended(&place)
        });
        let now = serving(&place);
        assert!(others.iter().all(|(name, was)| now.get(name) == Some(was)), "others died with {victim}");
        for (name, bytes) in remembered(&place) {
            assert!(bytes <= RANGES * REMEMBERED_BYTES_MAX, "{name} remembers {bytes} bytes");
        }
    }
    let most = remembered(&place).into_values().max().unwrap();
    assert!(most > REMEMBERED_BYTES_MAX - (2 << 20), "the memory has moved: {most} bytes");
    runtime.block_on(async {
        let client = connect(&place).await;
        let row = client.query_one("select n, length(body) from t", &[]).await.unwrap();
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i32>(1)), (WRITES as i64, 1 << 20));
    });
}

/// Returns the incarnations of the serving storage processes, by name.
fn serving(place: &LocalCluster) -> BTreeMap<String, Value> {
    let rows = status(place).into_iter();
    let rows = rows.filter(|row| row["role"] == "storage" && row["state"] == "serving");
    rows.map(|row| (row["name"].as_str().unwrap().to_owned(), row["incarnation"].clone())).collect()
}

/// Returns the bytes of answers that each serving storage process remembers.
fn remembered(place: &LocalCluster) -> BTreeMap<String, u64> {
    let serving = serving(place);
    let rows = status(place).into_iter();
    let rows = rows.filter_map(|row| {
        let name = row["name"].as_str()?.to_owned();
        serving.contains_key(&name).then_some(())?;
        let url = format!("http://{}/status", row["bound"]["http"].as_str()?);
        let said = ureq::get(url).call().ok()?.body_mut().read_to_string().ok()?;
        let said: Value = serde_json::from_str(&said).ok()?;
        let figures = said["figures"].as_array()?;
        let figure = figures.iter().find(|figure| figure[0] == "remembered_bytes")?;
        Some((name, figure[1].as_u64()?))
    });
    rows.collect()
}

async fn connect(place: &LocalCluster) -> Client {
    let gateway = status(place).into_iter().find(|row| row["name"] == "gateway-1").unwrap();
    let (host, port) = gateway["bound"]["sql"].as_str().unwrap().rsplit_once(':').unwrap();
    let options = format!("host={host} port={port} user=quorate dbname=quorate connect_timeout=5");
    let (client, connection) = tokio_postgres::connect(&options, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
