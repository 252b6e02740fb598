//! Large messages on busy machines: a process that is slow with them does not count as dead.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use crate::{
    cluster::{is_mended, process, turn},
    command::LocalCluster,
};
use quorate_testing::wait_for;

const STATEMENTS: i32 = 6;
const TEXT_BYTES: usize = 15 << 20;

#[test]
fn large_statements_among_busy_processes_are_answered() {
    let _turn = turn();
    let place = LocalCluster::new();
    assert_eq!(place.run(&["up", "--detach", "--memory", "--empty", "--port", "0"]).code, Some(0));
    wait_for("the cluster is whole", || is_mended(&place));
    let gateway = || process(&place, "gateway-1")["incarnation"].clone();
    let before = gateway();

    let enough = AtomicBool::new(false);
    thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let outcome = std::panic::catch_unwind(|| insert(&place));
        enough.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });

    assert_eq!(gateway(), before, "the gateway was given up");
}

/// Inserts rows. Every statement must succeed.
fn insert(place: &LocalCluster) {
    let gateway = process(place, "gateway-1");
    let address = gateway["bound"]["sql"].as_str().unwrap().parse::<std::net::SocketAddr>().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = format!("host={} port={} user=quorate", address.ip(), address.port());
        let (client, connection) = tokio_postgres::connect(&options, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("create table long (k int primary key, v text)").await.unwrap();
        let text = "x".repeat(TEXT_BYTES);
        for k in 0..STATEMENTS {
            let statement = format!("insert into long values ({k}, '{text}')");
            client.batch_execute(&statement).await.unwrap_or_else(|error| panic!("statement {k}: {error:?}"));
        }
        let sum = client.query_one("select count(*), sum(length(v)) from long", &[]).await.unwrap();
        assert_eq!(sum.get::<_, i64>(0), i64::from(STATEMENTS));
        assert_eq!(sum.get::<_, i64>(1), i64::from(STATEMENTS) * TEXT_BYTES as i64);
    });
}
