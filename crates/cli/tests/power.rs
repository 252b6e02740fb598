//! Tables on disk: every process of a cluster is killed at once, and all acknowledged writes survive.

use std::thread;

use quorate_testing::{free_ports, wait_for};
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    by_hand::{Machines, RunningProcess},
    cluster::turn,
};

/// Two storage processes without replicas, so that every row is on only one disk.
const STORAGE: [usize; 2] = [6, 7];

struct Cluster {
    routers: Vec<RunningProcess>,
    storage: Vec<RunningProcess>,
    gateway: RunningProcess,
    _super: RunningProcess,
}

impl Cluster {
    /// Starts all processes. Processes that wait for other processes start first.
    fn start(machines: &Machines, ports: [u16; 2]) -> Cluster {
        let gateway = machines.member(4, "gateway-1");
        let storage =
            STORAGE.iter().zip(ports).map(|(node, port)| machines.durable_storage(*node, port)).collect();
        let _super = machines.member(5, "super-1");
        let routers = [3, 1, 2].map(|number| machines.durable_router(number)).into();
        Cluster { routers, storage, gateway, _super }
    }

    fn kill(self) {
        let Cluster { routers, storage, gateway, _super } = &self;
        let all = || routers.iter().chain(storage).chain([gateway, _super]);
        all().for_each(|process| process.signal(Signal::KILL));
    }

    fn incarnations(&self) -> Vec<Value> {
        self.storage.iter().map(|process| process.status()["process"].clone()).collect()
    }
}

#[test]
fn every_row_is_there_after_all_processes_were_killed_at_once() {
    let _turn = turn();
    let mut machines = Machines::new();
    machines.storage = STORAGE.len();
    let ports = free_ports();
    let mut cluster = Cluster::start(&machines, ports);
    wait_for("a table is there", || {
        cluster.gateway.sql("create table if not exists kept (k int primary key, n int)").is_ok()
    });
    wait_for("a row is written", || cluster.gateway.sql("insert into kept values (0, 0)").is_ok());
    let before = cluster.incarnations();
    let mut acknowledged = 1;
    for kill in 1..=3 {
        // The test kills all processes in the middle of writes.
        let gateway = &cluster.gateway;
        let id = format!("set quorate.request_id = '5e0c9a1d47b36f8210c4e7d2a9b3f58{kill}-1'");
        let once = format!("{id}; update kept set n = n + 1 where k = 0");
        assert_eq!(gateway.sql(&once), Ok(()));
        let written: Vec<i32> = thread::scope(|scope| {
            let write = |writer: i32| {
                let first = kill * 10_000 + writer * 1_000;
                let ok = |k: &i32| gateway.sql(&format!("insert into kept values ({k}, 0)")).is_ok();
                (first..first + 25).filter(ok).collect::<Vec<i32>>()
            };
            let writers: Vec<_> = (0..4).map(|writer| scope.spawn(move || write(writer))).collect();
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        acknowledged += written.len();
        cluster.kill();
        cluster = Cluster::start(&machines, ports);
        wait_for("writes succeed again", || {
            cluster.gateway.sql(&format!("insert into kept values (-{kill}, 0)")).is_ok()
        });
        acknowledged += 1;
        assert_eq!(cluster.incarnations(), before, "the processes are the same as before");
        let there = format!("select 1 / (count(*) - {acknowledged}) from kept");
        assert_eq!(cluster.gateway.sql(&there), Err(String::from("22012")), "{acknowledged} rows are there");
        // The ranges recognise the earlier write and do not repeat it.
        assert_eq!(cluster.gateway.sql(&once), Ok(()));
        let sum = format!("select 1 / (sum(n) - {kill}) from kept");
        assert_eq!(cluster.gateway.sql(&sum), Err(String::from("22012")), "the update was applied once");
    }
    wait_for("all routers are well", || cluster.routers.iter().all(RunningProcess::is_well));
}
