//! Processes are restarted while statements continue. No client notices, and each process keeps its identity.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use quorate_testing::wait_for;
use rustix::process::{Signal, kill_process};
use tokio_postgres::{Client, NoTls};

use crate::{
    cluster::{pid, process, status, turn},
    command::LocalCluster,
};

async fn connect(place: &LocalCluster) -> Client {
    let gateway = process(place, "gateway-1");
    let address: std::net::SocketAddr = gateway["bound"]["sql"].as_str().unwrap().parse().unwrap();
    let options = format!("host={} port={} user=quorate application_name=kept", address.ip(), address.port());
    let (client, connection) = tokio_postgres::connect(&options, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// All processes are restarted while writers never reconnect. No statement fails, all rows are there, and the
/// processes with a disk keep their identities.
#[test]
fn a_rolling_restart_is_not_noticed() {
    let _turn = turn();
    let place = LocalCluster::new();
    assert_eq!(place.run(&["up", "--detach", "--empty", "--port", "0"]).code, Some(0));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let before = status(&place);
    let create = "create table log (client int, n int) with (partition_by = 'hash(n)')";
    assert_eq!(place.run(&["sql", create]).code, Some(0));
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (0..8)
        .map(|client| {
            let (stop, written) = (stop.clone(), written.clone());
            let connection = runtime.block_on(connect(&place));
            runtime.spawn(async move {
                let insert = connection.prepare("insert into log values ($1, $2)").await.unwrap();
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    connection.execute(&insert, &[&client, &n]).await.unwrap();
                    written.fetch_add(1, Ordering::Relaxed);
                }
                n
            })
        })
        .collect();
    wait_for("clients write", || written.load(Ordering::Relaxed) > 50);
    let said = place.run(&["restart", "--rolling", "--json"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let lines: Vec<serde_json::Value> =
        said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 12, "one for each process, and one for all: {said:?}");
    assert_eq!(lines[11]["restarted"], 11);
    let roles: Vec<&str> = lines[..11].iter().map(|line| line["role"].as_str().unwrap()).collect();
    assert_eq!(&roles[4..9], ["storage", "router", "router", "router", "super"]);
    stop.store(true, Ordering::Relaxed);
    let counts: Vec<i32> = writers.into_iter().map(|it| runtime.block_on(it).unwrap()).collect();
    let sum: i32 = counts.iter().sum();
    let count = place.run(&["sql", "--csv", "select count(*) from log"]);
    assert_eq!(count.out, format!("count\n{sum}\n"));
    for (before, after) in before.iter().zip(status(&place)) {
        let keeps = matches!(before["role"].as_str(), Some("router" | "storage"));
        assert_eq!(before["incarnation"] == after["incarnation"], keeps, "{before} {after}");
        assert_eq!(before["pid"], after["pid"], "the process id stays the same");
        if before["role"] == "storage" {
            assert_eq!(before["state"], after["state"], "no rows were moved");
        }
    }
}

/// A gateway passes its connections to the next program. Settings and prepared statements of a session stay.
/// An open transaction block may finish first, and a client whose block does not finish in time gets an
/// error.
#[test]
fn a_gateway_keeps_its_clients() {
    let _turn = turn();
    let place = LocalCluster::new();
    let up = ["up", "--detach", "--memory", "--empty", "--port", "0"];
    assert_eq!(place.run(&up).code, Some(0));
    place.run(&["restart", "storage-1"]).failed(1, "has no disk");
    place.run(&["restart", "--rolling"]).failed(1, "has no disk");
    place.run(&["restart", "nobody"]).failed(1, "no process is called nobody");
    place.run(&["restart"]).failed(2, "or --rolling for all processes: router-1");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (idle, busy, stuck) = (connect(&place).await, connect(&place).await, connect(&place).await);
        idle.batch_execute("create table t (k int primary key, v text); set statement_timeout = 12345")
            .await
            .unwrap();
        idle.batch_execute("prepare named as select v from t where k = $1").await.unwrap();
        let by_protocol = idle.prepare("insert into t values ($1, $2)").await.unwrap();
        stuck.batch_execute("begin").await.unwrap();
        busy.batch_execute("begin; insert into t values (1, 'one')").await.unwrap();
        let gateway = process(&place, "gateway-1");
        kill_process(pid(&gateway), Signal::USR2).unwrap();
        busy.batch_execute("commit").await.unwrap();
        let begun = Instant::now();
        assert_eq!(idle.execute(&by_protocol, &[&2, &"two"]).await.unwrap(), 1);
        assert!(begun.elapsed() < Duration::from_secs(20));
        let after = process(&place, "gateway-1");
        assert_eq!((&after["pid"], &after["bound"]), (&gateway["pid"], &gateway["bound"]));
        assert_ne!(after["incarnation"], gateway["incarnation"]);
        let row = idle.query_one("show statement_timeout", &[]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), "12345");
        let row = idle.query_one("show application_name", &[]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), "kept");
        let rows = idle.simple_query("execute named(2)").await.unwrap();
        let texts = rows.iter().filter_map(|row| match row {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        assert_eq!(texts.collect::<Vec<_>>(), ["two"]);
        assert_eq!(
            busy.query_one("select v from t where k = 1", &[]).await.unwrap().get::<_, &str>(0),
            "one"
        );
        // The cancellation uses the number and the secret from before the restart.
        let cancel = idle.cancel_token();
        cancel.cancel_query(NoTls).await.unwrap();
        let error = stuck.batch_execute("commit").await.unwrap_err();
        assert!(error.is_closed() || error.code().is_some_and(|code| code.code() == "57P01"), "{error:?}");
    });
}
