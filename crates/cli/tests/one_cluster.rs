//! Tables and cells in one cluster, with one set of routers.

use quorate_testing::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    cells::{Redis, doors},
    cluster::{pid, process, status, turn},
    command::LocalCluster,
    kept::done,
};

const NUMBERS: [&str; 8] = ["--storage", "2", "--standby", "0", "--replicas", "2", "--cells", "3"];

/// Starts or continues a cluster of three routers, two supers, two storage processes, a gateway and three
/// cells.
fn up(place: &LocalCluster, flags: &[&str]) {
    let up = [&["up", "--detach", "--empty", "--port", "0"], flags, &NUMBERS[..]].concat();
    let said = done(place, &up);
    for door in ["SQL is spoken at ", "the Redis protocol is spoken at "] {
        assert!(said.out.contains(door), "{said:?}");
    }
}

fn is_whole(place: &LocalCluster) -> bool {
    let rows = status(place);
    let works = |row: &Value| ["leading", "following", "serving"].iter().any(|state| row["state"] == *state);
    rows.len() == 11 && rows.iter().all(works)
}

fn redis(place: &LocalCluster, cell: usize) -> Redis {
    Redis::connect(&doors(place)[cell]).unwrap()
}

/// Writes a row and a key, and reads all rows and keys written earlier.
fn write(place: &LocalCluster, number: usize) {
    let insert = format!("insert into t values ({number})");
    wait_for("a row is written", || place.run(&["sql", &insert]).code == Some(0));
    let count = done(place, &["sql", "--csv", "select count(*) from t"]).out;
    assert_eq!(count.lines().last(), Some(number.to_string().as_str()), "{count}");
    let mut redis = redis(place, number % 3);
    let key = format!("k{number}");
    wait_for("a key is written", || redis.ask(&["SET", &key, &key]).is_ok_and(|said| said == "OK"));
    for number in 1..=number {
        redis.check(&format!("GET k{number}"), &format!("k{number}"));
    }
}

#[test]
fn tables_and_cells_are_one_cluster() {
    let _turn = turn();
    let place = LocalCluster::new();
    up(&place, &[]);
    done(&place, &["sql", "create table t (k int primary key)"]);
    write(&place, 1);
    for (killed, victim) in ["router-1", "super-1", "storage-1", "cell-1", "gateway-1"].iter().enumerate() {
        done(&place, &["kill", victim]);
        wait_for("the process is back", || {
            process(&place, victim)["starts"].as_u64() == Some(2) && is_whole(&place)
        });
        write(&place, killed + 2);
    }
    let restarted = done(&place, &["restart", "--rolling", "--json"]);
    assert_eq!(restarted.out.lines().count(), 12, "{restarted:?}");
    write(&place, 7);
    let identity = || -> Vec<(Value, Value)> {
        status(&place).iter().map(|row| (row["name"].clone(), row["bound"].clone())).collect()
    };
    let before = identity();
    let down = done(&place, &["down"]);
    assert!(down.out.contains("its tables and maps are kept"), "{down:?}");
    up(&place, &[]);
    assert_eq!(identity(), before);
    write(&place, 8);
    redis(&place, 0).check("QUORATE CREATE side COPIES 2", "OK");
    let down = done(&place, &["down", "--destroy", "--yes"]);
    assert!(down.out.contains("its tables and maps are gone"), "{down:?}");
}

/// All routers die, and the domain goes on from its members: with all rows, all keys, and the same cells.
#[test]
fn tables_and_cells_go_on_without_their_routers() {
    let _turn = turn();
    let place = LocalCluster::new();
    up(&place, &["--memory"]);
    done(&place, &["sql", "create table t (k int primary key)"]);
    write(&place, 1);
    redis(&place, 0).check("QUORATE CREATE side COPIES 2", "OK");
    let cells = || -> Vec<Value> {
        let rows = status(&place).into_iter().filter(|row| row["role"] == "cell");
        rows.map(|row| row["incarnation"].clone()).collect()
    };
    let before = cells();
    for generation in 1..=2 {
        let routers = ["router-1", "router-2", "router-3"];
        let pids: Vec<Pid> = routers.map(|name| pid(&process(&place, name))).to_vec();
        for pid in pids {
            kill_process(pid, Signal::KILL).unwrap();
        }
        wait_for("the status says what can be done", || {
            let said = place.run(&["status"]);
            said.code == Some(1) && said.err.contains("`quorate router reform` would go on from the members")
        });
        redis(&place, 1).check("GET k1", "k1");
        let output = done(&place, &["router", "reform", "--yes", "--json"]);
        let reformed: Value = serde_json::from_str(&output.out).unwrap();
        assert_eq!(reformed["generation"], generation, "{reformed}");
        assert_eq!(reformed["reform"]["fenced"].as_array().map(Vec::len), Some(0), "{reformed}");
        wait_for("all is mended", || is_whole(&place));
        write(&place, generation + 1);
        assert_eq!(cells(), before, "the cells are the same processes");
        redis(&place, 2).check("QUORATE DROP side", "OK");
        redis(&place, 0).check("QUORATE CREATE side COPIES 2", "OK");
    }
    done(&place, &["down", "--yes"]);
}

/// A majority of the routers dies in a cluster of cells alone, and the domain goes on from the last router.
#[test]
fn cells_go_on_when_a_majority_of_the_routers_is_lost() {
    let _turn = turn();
    let place = LocalCluster::new();
    done(&place, &["up", "--detach", "--memory", "--storage", "0", "--cells", "3", "--port", "0"]);
    redis(&place, 0).check("SET k v", "OK");
    for name in ["router-1", "router-2"] {
        kill_process(pid(&process(&place, name)), Signal::KILL).unwrap();
    }
    wait_for("the status shows which routers are gone", || {
        place.run(&["status"]).err.contains("gone for good: router-1, router-2")
    });
    let said = done(&place, &["router", "reform", "--yes"]);
    assert!(said.out.contains("generation 1 of the domain began with router-3"), "{said:?}");
    wait_for("all is mended", || {
        let rows = status(&place);
        let works =
            |row: &Value| ["leading", "following", "serving"].iter().any(|state| row["state"] == *state);
        rows.len() == 6 && rows.iter().all(works)
    });
    redis(&place, 1).check("GET k", "v");
    redis(&place, 1).check("QUORATE CREATE side COPIES 2", "OK");
    done(&place, &["down", "--yes"]);
}
