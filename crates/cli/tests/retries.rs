//! Writes that are repeated under an id, over a real cluster with two gateways, as `docs/operating.md`
//! describes.

use std::{
    io::{BufRead, BufReader},
    pin::pin,
    process::{Child, Stdio},
    time::Duration,
};

use bytes::Bytes;
use futures_util::SinkExt;
use quorate_testing::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio_postgres::{Client, NoTls};

use crate::{
    cluster::{is_mended, pid, process, status, turn},
    command::{LocalCluster, freeze},
};

const OPERATING: &str = include_str!("../../../docs/operating.md");

/// A gateway in addition to the one of `up`.
struct Gateway {
    child: Child,
    address: String,
}

impl Gateway {
    fn start(place: &LocalCluster) -> Gateway {
        let file = place.data_dir().join("gateway-1.toml");
        let mut words = vec!["node", "--config", file.to_str().unwrap(), "--set", "supervised=false"];
        for own in ["name=gateway-2", "node=99", "listen=127.0.0.1:0", "http_listen=127.0.0.1:0"] {
            words.extend(["--set", own]);
        }
        words.extend(["--set", "sql_listen=127.0.0.1:0"]);
        let mut child = place.command(&words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let bound: Value = serde_json::from_str(&line).expect("the process prints its addresses");
        Gateway { child, address: bound["sql"].as_str().unwrap().to_owned() }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn connect(address: &str) -> Option<Client> {
    let (host, port) = address.rsplit_once(':')?;
    let options = format!("host={host} port={port} user=quorate dbname=quorate connect_timeout=5");
    let (client, connection) = tokio_postgres::connect(&options, NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

/// Returns a connection that accepts statements.
async fn connected(address: impl Fn() -> Option<String>) -> Client {
    let began = std::time::Instant::now();
    loop {
        if let Some(address) = address()
            && let Some(client) = connect(&address).await
            && client.batch_execute("select count(*) from payments").await.is_ok()
        {
            return client;
        }
        assert!(began.elapsed().as_secs() < 60, "no gateway for a minute");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the documentation's example of a made-up id: the setting and the statement.
fn documented() -> (&'static str, &'static str) {
    let (_, example) = OPERATING.split_once("```sql\nSET quorate.request_id").expect("the example is there");
    let (example, _) = example.split_once("```").expect("the code block ends");
    let from = OPERATING.find(example).unwrap() - "SET quorate.request_id".len();
    let example = &OPERATING[from..from + "SET quorate.request_id".len() + example.len()];
    let (set, statement) = example.trim().split_once('\n').expect("two statements");
    (set, statement.trim())
}

fn code(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("", |code| code.code())
}

async fn rows(client: &Client) -> i64 {
    client.query_one("select count(*) from payments", &[]).await.unwrap().get(0)
}

#[test]
fn the_documented_use_of_a_made_up_id_survives_its_gateway() {
    let _turn = turn();
    let place = LocalCluster::new();
    assert_eq!(place.run(&["up", "--detach", "--memory", "--empty", "--port", "0"]).code, Some(0));
    wait_for("the cluster is whole", || is_mended(&place));
    let create = place.run(&["sql", "create table payments (id bigint primary key, cents bigint)"]);
    assert_eq!(create.code, Some(0), "{create:?}");
    let second = Gateway::start(&place);
    let (set, insert) = documented();
    let first = || process(&place, "gateway-1")["bound"]["sql"].as_str().map(str::to_owned);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // Two routers are silent, so the write is sent and hangs. Then the gateway of the write is killed.
        let client = connected(first).await;
        let routers = status(&place).into_iter().filter(|row| row["role"] == "router");
        let silent: Vec<Pid> =
            routers.filter(|router| router["state"] != "leading").map(|router| pid(&router)).collect();
        for router in &silent {
            freeze(*router);
        }
        client.batch_execute(set).await.unwrap();
        let hanging = client.batch_execute(insert);
        let hung = tokio::time::timeout(Duration::from_millis(500), hanging).await;
        let gateway = pid(&process(&place, "gateway-1"));
        kill_process(gateway, Signal::KILL).unwrap();
        for router in &silent {
            kill_process(*router, Signal::CONT).unwrap();
        }
        assert!(hung.is_err_and(|_| true), "the statement is not answered without a majority");

        // The same write through the other gateway is applied only once, however often a driver repeats it.
        let client = connected(|| Some(second.address.clone())).await;
        client.batch_execute(set).await.unwrap();
        let mut attempts = 0;
        while let Err(error) = client.batch_execute(insert).await {
            assert_eq!(code(&error), "40003", "{error:?}");
            attempts += 1;
            assert!(attempts < 100, "{error:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(rows(&client).await, 1);

        // The first gateway, once it is back, does not apply the write again, either. It refuses another
        // statement under the same id.
        let client = connected(first).await;
        client.batch_execute(set).await.unwrap();
        assert_eq!(client.execute(insert.trim_end_matches(';'), &[]).await.unwrap(), 1);
        for other in 0..4 {
            client.batch_execute(set).await.unwrap();
            let other = format!("insert into payments values ({}, 1)", 1000 + other);
            assert_eq!(code(&client.batch_execute(&other).await.unwrap_err()), "22023");
            // The setting stays, so that no statement is sent under a new id by mistake.
            assert_eq!(code(&client.batch_execute(&other).await.unwrap_err()), "22023");
        }
        client.batch_execute("RESET quorate.request_id").await.unwrap();
        client.batch_execute("insert into payments values (1000, 1)").await.unwrap();
        assert_eq!(rows(&client).await, 2);
    });
}

/// Number of rows, each of a kilobyte. The gateway must put most of the rows aside before it gets the last
/// one.
const LOADED: i64 = 20_000;
const LINES_AT_ONCE: usize = 100;

/// Sends rows of the load. Returns whether the gateway survived all of them.
async fn send(copy: &mut (impl SinkExt<Bytes, Error = tokio_postgres::Error> + Unpin), rows: i64) -> bool {
    for first in (0..rows).step_by(LINES_AT_ONCE) {
        let lines: String =
            (first..first + LINES_AT_ONCE as i64).map(|id| format!("{id}\t{id:01000}\n")).collect();
        if copy.send(Bytes::from(lines)).await.is_err() {
            return false;
        }
    }
    true
}

#[test]
fn a_copy_whose_gateway_is_killed_is_done_once_when_it_is_repeated() {
    let _turn = turn();
    let place = LocalCluster::new();
    assert_eq!(place.run(&["up", "--detach", "--memory", "--empty", "--port", "0"]).code, Some(0));
    wait_for("the cluster is whole", || is_mended(&place));
    // The table has no key, so rows that are loaded twice are there twice.
    let create = "create table payments (id bigint, note text) with (partition_by = 'hash(id)')";
    let create = place.run(&["sql", create]);
    assert_eq!(create.code, Some(0), "{create:?}");
    let second = Gateway::start(&place);
    let first = || process(&place, "gateway-1")["bound"]["sql"].as_str().map(str::to_owned);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // In the first round the gateway dies when it has put half of the rows aside. In the second it dies
        // after all rows, so the outcome is unknown.
        for (round, sent) in [(1, LOADED / 2), (2, LOADED)] {
            wait_for("the cluster is whole", || is_mended(&place));
            let set = format!("set quorate.request_id = '5e0c9a1d47b36f8210c4e7d2a9b3f586-{round}'");
            let client = connected(first).await;
            client.batch_execute(&set).await.unwrap();
            let mut copy = pin!(client.copy_in("copy payments from stdin").await.unwrap());
            assert!(send(&mut copy, sent).await);
            let gateway = pid(&process(&place, "gateway-1"));
            if sent < LOADED {
                kill_process(gateway, Signal::KILL).unwrap();
                while send(&mut copy, LINES_AT_ONCE as i64).await {}
            } else {
                let routers = status(&place).into_iter().filter(|row| row["role"] == "router");
                let silent: Vec<Pid> =
                    routers.filter(|row| row["state"] != "leading").map(|row| pid(&row)).collect();
                for router in &silent {
                    freeze(*router);
                }
                let hung = tokio::time::timeout(Duration::from_millis(500), copy.finish()).await;
                kill_process(gateway, Signal::KILL).unwrap();
                for router in &silent {
                    kill_process(*router, Signal::CONT).unwrap();
                }
                assert!(hung.is_err(), "the statement is not answered without a majority: {hung:?}");
            }

            // The same load through the other gateway may be repeated any number of times.
            let client = connected(|| Some(second.address.clone())).await;
            if round == 1 {
                assert_eq!(rows(&client).await, 0, "the rows of an unfinished load are not seen");
            }
            for _ in 0..2 {
                let mut attempts = 0;
                loop {
                    client.batch_execute(&set).await.unwrap();
                    let mut copy = pin!(client.copy_in("copy payments from stdin").await.unwrap());
                    assert!(send(&mut copy, LOADED).await);
                    match copy.finish().await {
                        Ok(count) => break assert_eq!(count, LOADED as u64),
                        Err(error) => assert!(["40001", "40003"].contains(&code(&error)), "{error:?}"),
                    }
                    attempts += 1;
                    assert!(attempts < 100, "the load is answered within 100 attempts");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                assert_eq!(rows(&client).await, round * LOADED);
            }
        }
    });
}
