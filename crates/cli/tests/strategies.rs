//! Maps of each strategy for Redis clients. Clients work while processes are killed, and the verdict on their
//! history is the strategy's promise.

use std::{
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use quorate_history::{History, Operation, Verdict, check};
use quorate_testing::{SetOnDrop, wait_for};
use serde_json::Value as Json;

use crate::{
    cells::{Redis, doors, work},
    cluster::{process, status, turn},
    command::LocalCluster,
};

/// Whether all processes of the cluster do their work.
fn is_whole(place: &LocalCluster) -> bool {
    let rows = status(place);
    let works = |row: &Json| ["leading", "following", "serving"].iter().any(|state| row["state"] == *state);
    rows.iter().filter(|row| row["state"] == "leading").count() == 1 && rows.iter().all(works)
}

/// A cluster with cells, and with tables for the strategy that needs them.
struct MapCluster {
    cells: LocalCluster,
    has_tables: bool,
    doors: Vec<String>,
}

impl MapCluster {
    /// Starts a cluster whose cells have a map `m` of this strategy and all take part in it.
    fn with(strategy: &str) -> MapCluster {
        let has_tables = strategy == "ordered";
        let cells = LocalCluster::new();
        let up = ["up", "--detach", "--memory", "--empty", "--cells", "3", "--port", "0"];
        let numbers: &[&str] = match has_tables {
            true => &["--storage", "2", "--standby", "0", "--replicas", "2"],
            false => &["--storage", "0"],
        };
        let up = cells.run(&[&up[..], numbers].concat());
        assert_eq!(up.code, Some(0), "{up:?}");
        wait_for("all processes work", || is_whole(&cells));
        let doors = doors(&cells);
        let town = MapCluster { cells, has_tables, doors };
        town.client(0, "main").check(&format!("QUORATE CREATE m STRATEGY {strategy}"), "OK");
        town.await_all();
        town
    }

    fn client(&self, cell: usize, map: &str) -> Redis {
        let mut client = Redis::connect(&self.doors[cell]).unwrap();
        client.check(&format!("QUORATE MAP {map}"), "OK");
        client
    }

    /// Waits until each cell takes part in the map and knows all other cells.
    fn await_all(&self) {
        for cell in 1..=3 {
            wait_for(&format!("cell-{cell} takes part"), || {
                let row = process(&self.cells, &format!("cell-{cell}"));
                let Some(http) = row["bound"]["http"].as_str() else { return false };
                let Ok(mut status) = ureq::get(format!("http://{http}/status")).call() else { return false };
                let status = status.body_mut().read_to_string().unwrap_or_default();
                let Ok(status) = serde_json::from_str::<Json>(&status) else { return false };
                let map = &status["kept"][0];
                row["state"] == "serving"
                    && map["takes_part"] == true
                    && map["copies"].as_u64().unwrap_or(3) == 3
            });
        }
    }

    /// Lets clients work at all cells while processes are killed, each after the cluster is whole again. Each
    /// connection is its own client, because the promises to a session hold at one cell.
    fn record(&self) -> History {
        let (began, stop) = (Instant::now(), AtomicBool::new(false));
        let operations: Vec<Operation> = thread::scope(|scope| {
            let stopping = SetOnDrop(&stop);
            let client = |number: u64| {
                let (doors, stop) = (&self.doors, &stop);
                scope.spawn(move || work(number, doors, "m", began, stop))
            };
            let clients: Vec<_> = (0..6).map(client).collect();
            // Clients work undisturbed for a while. Nothing depends on how long.
            let pause = || thread::sleep(Duration::from_millis(500));
            pause();
            let of_tables = if self.has_tables { &["storage-1"][..] } else { &[] };
            for victim in ["cell-2", "cell-1", "router-1"].iter().chain(of_tables) {
                assert_eq!(self.cells.run(&["kill", victim]).code, Some(0));
                wait_for("the process is back", || {
                    process(&self.cells, victim)["starts"].as_u64() == Some(2) && is_whole(&self.cells)
                });
                self.await_all();
                pause();
            }
            drop(stopping);
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        let done = operations.iter().filter(|operation| operation.finish.is_some()).count();
        assert!(done > 500, "only {done} operations");
        let late = operations.iter().map(|operation| operation.start).max().unwrap() - 400_000_000;
        let goes_on = operations.iter().any(|operation| operation.start > late && operation.finish.is_some());
        assert!(goes_on, "operations succeed until the end");
        operations.into_iter().collect()
    }

    fn down(self) {
        assert_eq!(self.cells.run(&["down", "--yes"]).code, Some(0));
    }
}

/// Tests string commands that maps of all strategies but partial quorums have.
fn strings(town: &MapCluster) {
    let [mut one, mut two] = [0, 1].map(|cell| town.client(cell, "m"));
    one.check("SET a 1 NX", "OK");
    wait_for("the others have it", || two.ask(&["GET", "a"]).unwrap() == "1");
    two.check("SET a 2 NX", "(nil)");
    two.check("SETNX a 2", "0");
    two.check("INCR a", "2");
    two.check("APPEND a 0", "2");
    two.check("INCRBY a 5", "25");
    two.check("SET text hello", "OK");
    two.refused("INCR text", "ERR value is not an integer or out of range");
    two.check("EXPIRE a 100", "1");
    two.check("TTL a", "100");
    two.check("SET a 3 KEEPTTL", "OK");
    two.check("TTL a", "100");
    two.check("PERSIST a", "1");
    two.check("PERSIST a", "0");
    two.check("TTL a", "-1");
    two.check("SET short v PX 100", "OK");
    wait_for("the key expires", || two.ask(&["GET", "short"]).unwrap() == "(nil)");
    two.check("SETNX short w", "1");
    two.check("EXPIRE short -1", "1");
    two.check("EXISTS short", "0");
    two.check("MSET k1 v1 k2 v2 k1 v3", "OK");
    two.check("MGET k1 k2 k3", "v3 v2 (nil)");
    two.check("GETDEL k1", "v3");
    two.check("GETEX k2 EX 10", "v2");
    two.check("DEL k1 k2 text", "2");
    two.check("DBSIZE", "1");
    two.refused("RENAME a b", "not supported");
    two.check("PING", "PONG");
    // In a pipeline each command sees the commands before it.
    let mut pipeline = Vec::new();
    for n in 0..100 {
        pipeline.extend(format!("SET p {n}\r\nGET p\r\n").into_bytes());
    }
    two.send(&pipeline).unwrap();
    for n in 0..100 {
        let answers = [0; 2].map(|_| two.answer().unwrap());
        assert_eq!(answers, [String::from("OK"), n.to_string()]);
    }
    two.check("DEL p a", "2");
}

/// Tests commands that only maps of services and groups have.
fn hashes(town: &MapCluster) {
    let mut client = town.client(2, "m");
    client.check("GETSET a 1", "(nil)");
    client.check("SET a 2 GET", "1");
    client.check("MSETNX b 1 a 1", "0");
    client.check("HSET h x 1 y 2", "2");
    client.check("HINCRBY h x 5", "6");
    client.check("HSETNX h x 7", "0");
    client.check("HGETALL h", "x 6 y 2");
    client.refused("INCR h", "WRONGTYPE");
    let scanned = client.ask(&["SCAN", "0"]).unwrap();
    let mut keys: Vec<&str> = scanned.split(' ').collect();
    keys.sort_unstable();
    assert_eq!(keys, ["0", "a", "h"]);
    client.check("SCAN 0 TYPE hash", "0 h");
    client.check("HDEL h x y", "2");
    client.check("DEL a h", "1");
}

/// Returns the number of values that nobody wrote, and of reads that broke the two session guarantees.
fn strays(history: &History) -> (u64, u64, u64) {
    let report = check(history);
    let sessions = report.measures.as_ref().map(|measures| measures.sessions);
    let sessions = sessions.unwrap_or_else(|| panic!("not measured: {report}"));
    (report.orphan_reads, sessions.read_your_writes, sessions.monotonic_reads)
}

#[test]
fn a_map_of_a_service_is_atomic_while_cells_are_killed() {
    let _turn = turn();
    let town = MapCluster::with("service");
    strings(&town);
    hashes(&town);
    let report = check(&town.record());
    assert_eq!(report.verdict, Verdict::Atomic, "{report}");
    // In a cluster without tables, a cell refuses commands on an ordered map, and names the missing tables as
    // the reason. A dropped map is gone.
    let mut client = town.client(0, "m");
    client.check("QUORATE CREATE o STRATEGY ordered", "OK");
    client.check("QUORATE MAP o", "OK");
    client.refused("SET a 1", "UNAVAILABLE the tables of the cluster cannot be reached");
    client.refused("QUORATE CREATE g2 STRATEGY group COPIES 2", "a group has a copy at each cell");
    client.refused("QUORATE CREATE g2 STRATEGY luck", "there is no strategy 'luck'");
    client.check("QUORATE MAP m", "OK");
    client.check("SET a 1", "OK");
    client.check("QUORATE DROP m", "OK");
    client.refused("GET a", "NOMAP");
    client.check("QUORATE CREATE m STRATEGY service COPIES 1", "OK");
    client.check("GET a", "(nil)");
    client.check("SET a 2", "OK");
    town.down();
}

#[test]
fn sessions_of_a_map_of_a_group_never_go_back() {
    let _turn = turn();
    let town = MapCluster::with("group");
    strings(&town);
    hashes(&town);
    let history = town.record();
    assert_eq!(strays(&history), (0, 0, 0));
    // In the end all copies are equal.
    let copies = || {
        let mut clients = [0, 1, 2].map(|cell| town.client(cell, "m"));
        clients.each_mut().map(|client| client.ask(&["MGET", "k0", "k1", "k2"]).unwrap())
    };
    wait_for("all copies are the same", || {
        let [one, two, three] = copies();
        one == two && two == three
    });
    town.down();
}

#[test]
fn an_ordered_map_is_atomic_while_cells_and_storage_are_killed() {
    let _turn = turn();
    let town = MapCluster::with("ordered");
    strings(&town);
    let mut client = town.client(2, "m");
    client.refused("HSET h x 1", "a hash in an ordered map");
    client.refused("GETSET a 1", "ordered map");
    client.refused("SCAN 0", "whose keys SQL can list");
    client.check("MSET a 1 b two", "OK");
    // SQL shows the map as a table.
    let rows = town.cells.run(&["sql", "select key, value from m order by key"]);
    assert!(rows.code == Some(0) && rows.out.contains("two"), "{rows:?}");
    // A table of another shape stays untouched. Once that table is dropped, the map creates its own table.
    let sql = |text: &str| {
        let done = town.cells.run(&["sql", text]);
        assert_eq!(done.code, Some(0), "{text}: {done:?}");
        done.out
    };
    sql("create table taken (id int primary key, expires timestamptz)");
    sql("insert into taken values (17, '2001-01-01')");
    client.check("QUORATE CREATE taken STRATEGY ordered", "OK");
    client.check("QUORATE MAP taken", "OK");
    client.refused("SET a 1", "has other columns than the map of this name");
    client.refused("GET a", "has other columns than the map of this name");
    assert!(sql("select id from taken").contains("17"));
    sql("drop table taken");
    wait_for("the map has its own table", || client.ask(&["SET", "a", "1"]).unwrap() == "OK");
    assert!(sql("select key from taken").contains('a'));
    client.check("QUORATE DROP taken", "OK");
    let report = check(&town.record());
    assert_eq!(report.verdict, Verdict::Atomic, "{report}");
    town.down();
}

/// A map of a service on disk survives the kill of all processes, and its counter continues.
#[test]
fn a_map_of_a_service_is_kept_on_disk() {
    let _turn = turn();
    let cells = LocalCluster::new();
    let up = ["up", "--detach", "--storage", "0", "--cells", "3", "--port", "0"];
    assert_eq!(cells.run(&up).code, Some(0));
    let mut town = MapCluster { doors: doors(&cells), cells, has_tables: false };
    town.client(0, "main").check("QUORATE CREATE m STRATEGY service", "OK");
    town.await_all();
    let mut client = town.client(1, "m");
    for n in 1..=20 {
        client.check("INCR n", &n.to_string());
    }
    // The cells restart one after another in place.
    let restarted = town.cells.run(&["restart", "--rolling"]);
    assert_eq!(restarted.code, Some(0), "{restarted:?}");
    town.await_all();
    town.client(2, "m").check("INCR n", "21");
    assert_eq!(town.cells.run(&["down"]).code, Some(0));
    assert_eq!(town.cells.run(&up).code, Some(0));
    town.doors = doors(&town.cells);
    town.await_all();
    town.client(0, "m").check("INCR n", "22");
    for cell in ["cell-1", "cell-2", "cell-3"] {
        assert_eq!(town.cells.run(&["kill", cell]).code, Some(0));
    }
    wait_for("the cells are back", || {
        (1..=3).all(|cell| process(&town.cells, &format!("cell-{cell}"))["starts"].as_u64() == Some(2))
    });
    town.await_all();
    town.client(0, "m").check("INCR n", "23");
    assert_eq!(town.cells.run(&["down", "--destroy", "--yes"]).code, Some(0));
}
