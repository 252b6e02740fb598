//! A storage process that is also a gateway: two members in one operating-system process.

use quorate_testing::{free_ports, wait_for};
use rustix::process::Signal;
use tokio_postgres::NoTls;

use crate::{
    by_hand::{Machines, RunningProcess, refused},
    cluster::turn,
};

/// Starts the process, or its next life, with both doors.
fn together(machines: &Machines, port: u16, sql: u16) -> RunningProcess {
    machines.durable_storage_with(6, port, &format!("sql_listen = \"127.0.0.1:{sql}\""))
}

#[test]
fn a_storage_process_with_a_door_for_sql_is_a_gateway_as_well() {
    let _turn = turn();
    let machines = Machines::new();
    let _routers = [machines.router(1), machines.router(2), machines.router(3)];
    let _super = machines.member(5, "super-1");
    let [port, sql] = free_ports();
    let mut both = together(&machines, port, sql);
    wait_for("a table is there", || both.sql("create table if not exists kept (k int primary key)").is_ok());
    wait_for("both members are well", || both.is_well() && both.get("gateway/health").0 == 200);
    let (storage, gateway) = (both.status(), both.get("gateway/status").1);
    let gateway: serde_json::Value = serde_json::from_str(&gateway).unwrap();
    assert_eq!((&storage["role"], &storage["name"]), (&"storage".into(), &"storage-6".into()));
    assert_eq!((&gateway["role"], &gateway["name"]), (&"gateway".into(), &"storage-6-gateway".into()));
    assert_ne!(storage["process"], gateway["process"]);
    for (at, role) in [("metrics", "storage"), ("gateway/metrics", "gateway")] {
        assert!(both.get(at).1.contains(&format!("role=\"{role}\"")), "{at}");
    }

    // Both members die at once and come back: the rows from the disk, and the door with the process.
    for kill in 1..=2 {
        assert_eq!(both.sql(&format!("insert into kept values ({kill})")), Ok(()));
        both.signal(Signal::KILL);
        drop(both);
        both = together(&machines, port, sql);
        wait_for("writes succeed again", || both.sql(&format!("insert into kept values (-{kill})")).is_ok());
        assert_eq!(both.status()["process"], storage["process"], "the process is the same as before");
        let there = format!("select 1 / (count(*) - {}) from kept", 2 * kill);
        assert_eq!(both.sql(&there), Err(String::from("22012")), "all rows are there");
    }

    // The process restarts in place, and its clients stay connected.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&both.options(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("insert into kept values (100)").await.unwrap();
        both.signal(Signal::USR2);
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let again = client.batch_execute("insert into kept values (101)").await;
        again.unwrap_or_else(|error| panic!("{error}: {}", machines.log("storage-6")));
    });
    wait_for("both members are well", || both.is_well() && both.get("gateway/health").0 == 200);
    assert_eq!(both.status()["process"], storage["process"], "the process is the same as before");
    let said = refused(&[
        "domain=6f1c0f2f6f0b4b0c9d1f7e3a52b8d401",
        "node=5",
        "name=super-1",
        "role=super",
        "routers=[\"127.0.0.1:9\"]",
        "listen=127.0.0.1:0",
        "http_listen=127.0.0.1:0",
        "sql_listen=127.0.0.1:0",
    ]);
    assert!(said.contains("sql_listen: a gateway needs this key, a storage process can have it"), "{said}");
}
