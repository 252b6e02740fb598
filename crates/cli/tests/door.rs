//! The SQL door of a real cluster: malformed messages leave no permanent cost, and a statement can be
//! cancelled at any stage.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use quorate_testing::wait_for;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio_postgres::{Client, NoTls, error::SqlState};

use crate::{
    cluster::{is_mended, status, turn},
    command::{LocalCluster, freeze},
};

/// Largest growth of a gateway's memory by the storm, in bytes.
const GROWTH_MAX: u64 = 48 << 20;

#[test]
fn the_door_survives_hostile_clients() {
    let _turn = turn();
    let place = LocalCluster::new();
    let up = place.run(&["up", "--detach", "--memory", "--empty", "--port", "0"]);
    assert_eq!(up.code, Some(0), "{up:?}");
    wait_for("the cluster stands", || is_mended(&place));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let gateway = process(&place, "gateway");
    let address: SocketAddr = gateway["bound"]["sql"].as_str().unwrap().parse().unwrap();
    let client = runtime.block_on(connect(address));
    runtime.block_on(client.batch_execute("create table t (n int primary key)")).unwrap();

    let before = (descriptors(&gateway), memory(&gateway));
    storm(address);
    let silent: Vec<TcpStream> = (0..700).map(|_| TcpStream::connect(address).unwrap()).collect();
    runtime.block_on(async {
        let client = connect(address).await;
        assert_eq!(client.execute("insert into t values (1)", &[]).await.unwrap(), 1);
    });
    drop(silent);
    wait_for("the gateway has as many descriptors as before", || descriptors(&gateway) <= before.0);
    let growth = memory(&gateway).saturating_sub(before.1);
    assert!(growth <= GROWTH_MAX, "the gateway holds {growth} bytes more than before");
    assert!(counted(&gateway, "quorate_sql_garbage_total") > 100);
    wait_for("one session is left", || counted(&gateway, "quorate_sql_sessions") == 1);

    runtime.block_on(async {
        // No router orders anything. A cancelled read fails at once, and a cancelled write has an unknown
        // outcome.
        let routers = pids(&place, "router");
        routers.iter().copied().for_each(freeze);
        let read = cancelled(&client, "select count(*) from t").await;
        let write = cancelled(&client, "insert into t values (2)").await;
        signal(&routers, Signal::CONT);
        assert_eq!(read, SqlState::QUERY_CANCELED);
        assert_eq!(write, SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN);
        // The statement is ordered, and no storage process answers.
        client.batch_execute("set quorate.read = 'snapshot'").await.unwrap();
        wait_for("the cluster goes on", || is_mended(&place));
        client.query("select n from t", &[]).await.unwrap();
        let storage = pids(&place, "storage");
        storage.iter().copied().for_each(freeze);
        let read = cancelled(&client, "select n from t").await;
        signal(&storage, Signal::CONT);
        assert_eq!(read, SqlState::QUERY_CANCELED);
        // A cancellation that comes too late does not affect the next statement.
        client.cancel_token().cancel_query(NoTls).await.unwrap();
        let row = client.query_one("select count(*) from t where n = 1", &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 1);
    });
    wait_for("nothing is under way", || {
        let status = got(&process(&place, "gateway"), "status");
        let status = status.split_once("\r\n\r\n").expect("a head and a body").1;
        serde_json::from_str::<Value>(status).unwrap()["waiting"] == 0
    });
    let after = process(&place, "gateway");
    assert_eq!((&after["pid"], &after["incarnation"]), (&gateway["pid"], &gateway["incarnation"]));
}

/// Sends nonsense from two thousand clients, in eight threads.
fn storm(address: SocketAddr) {
    let rows: Vec<_> = (0..8).map(|row| thread::spawn(move || nonsense(address, row))).collect();
    rows.into_iter().for_each(|row| row.join().unwrap());
}

fn nonsense(address: SocketAddr, seed: u64) {
    let mut random = Pcg64::seed_from_u64(seed);
    for _ in 0..250 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut bytes = Vec::new();
        if random.random() {
            let startup = b"\0\x03\0\0user\0test\0\0";
            bytes.extend((startup.len() as i32 + 4).to_be_bytes());
            bytes.extend(startup);
        }
        if random.random() {
            // The length of this message exceeds the bytes that follow.
            let kinds = b"QPBDCEHSXdcfp";
            bytes.push(kinds[random.random_range(0..kinds.len())]);
            bytes.extend((1i32 << random.random_range(0..31)).to_be_bytes());
        }
        bytes.extend((0..random.random_range(0..400)).map(|_| random.random::<u8>()));
        // The door may have closed the connection already.
        let _ = stream.write_all(&bytes);
        if random.random() {
            let _ = stream.shutdown(std::net::Shutdown::Write);
            // A reset is also an end, but half a minute of silence is not.
            if let Err(error) = stream.read_to_end(&mut Vec::new()) {
                assert_ne!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock,
                    "the door keeps a client that has left"
                );
            }
        }
    }
}

async fn connect(address: SocketAddr) -> Client {
    let config = format!("host={} port={} user=quorate dbname=quorate", address.ip(), address.port());
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Cancels a statement that has been running for a moment. Returns the code of its error.
async fn cancelled(client: &Client, statement: &str) -> SqlState {
    let token = client.cancel_token();
    let cancel = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        token.cancel_query(NoTls).await.unwrap();
    };
    let (ended, ()) = tokio::join!(client.simple_query(statement), cancel);
    ended.expect_err(statement).code().cloned().expect("the error comes from the gateway")
}

fn process(place: &LocalCluster, role: &str) -> Value {
    status(place).into_iter().find(|row| row["role"] == role).expect("a process has this role")
}

fn pids(place: &LocalCluster, role: &str) -> Vec<Pid> {
    let of = |row: &Value| Pid::from_raw(row["pid"].as_i64()? as i32);
    status(place).iter().filter(|row| row["role"] == role).filter_map(of).collect()
}

fn signal(pids: &[Pid], signal: Signal) {
    pids.iter().for_each(|pid| kill_process(*pid, signal).unwrap());
}

fn descriptors(process: &Value) -> usize {
    fs::read_dir(format!("/proc/{}/fd", process["pid"])).map_or(0, Iterator::count)
}

fn memory(process: &Value) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process["pid"])).unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    resident.trim().trim_end_matches(" kB").parse().unwrap_or(0) << 10
}

fn counted(process: &Value, name: &str) -> u64 {
    let text = got(process, "metrics");
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Returns a process's HTTP answer, with head and body.
fn got(process: &Value, what: &str) -> String {
    let address = process["bound"]["http"].as_str().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /{what} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}
