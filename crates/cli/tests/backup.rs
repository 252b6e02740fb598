//! Backups of a real cluster are restored while its processes are killed.

use std::fs;

use quorate_testing::wait_for;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::{
    cluster::{is_mended, pid, status, turn},
    command::{CommandOutput, LocalCluster},
};

const ROWS: u64 = 40_000;

#[test]
fn tables_are_restored_once_despite_killed_processes() {
    let _turn = turn();
    let place = LocalCluster::new();
    done(&place, &["up", "--detach", "--memory", "--empty", "--port", "0"]);
    done(
        &place,
        &["sql", "create table t (id int primary key, v text); create table other (id int primary key)"],
    );
    done(&place, &["sql", "insert into other values (1)"]);
    let filling = "x".repeat(100);
    for from in (0..ROWS).step_by(1000) {
        let rows: Vec<String> = (from..from + 1000).map(|id| format!("({id}, '{filling}')")).collect();
        done(&place, &["sql", &format!("insert into t values {}", rows.join(","))]);
    }

    let file = place.data_dir().with_file_name("t.backup");
    let file = file.to_str().unwrap();
    let made: Value = serde_json::from_str(&done(&place, &["backup", file, "--json"]).out).unwrap();
    assert_eq!((made["rows"].as_u64(), made["tables"].as_array().map(Vec::len)), (Some(ROWS + 1), Some(2)));
    place.run(&["backup", file]).failed(1, "this file exists already");
    place.run(&["backup"]).failed(2, "<FILE>");
    place.run(&["restore", file]).failed(1, "already exists");
    let verified: Value =
        serde_json::from_str(&done(&place, &["backup", "--verify", file, "--json"]).out).unwrap();
    assert_eq!((&verified["position"], &verified["tables"]), (&made["position"], &made["tables"]));

    let mut damaged = fs::read(file).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 4;
    let broken = format!("{file}.broken");
    fs::write(&broken, damaged).unwrap();
    place.run(&["backup", "--verify", &broken]).failed(1, "damaged in the section at byte");

    done(&place, &["sql", "drop table t"]);
    place.run(&["restore", &broken, "t"]).failed(1, "damaged in the section at byte");
    let victims: [fn(&Value) -> bool; 3] = [
        |row| row["role"] == "storage" && row["state"] == "serving",
        |row| row["state"] == "leading",
        |row| row["role"] == "super",
    ];
    for victim in victims {
        wait_for("the cluster is whole", || is_mended(&place));
        let rows = status(&place);
        let victim = rows.iter().find(|row| victim(row)).expect("a process has this role");
        let restoring = place.start(&["restore", file, "t"]);
        wait_for("the table is there", || place.run(&["sql", "select count(*) from t"]).code == Some(0));
        kill_process(pid(victim), Signal::KILL).unwrap();
        let said = CommandOutput::of(restoring.wait_with_output().unwrap());
        match said.code {
            Some(0) => {
                let shown = done(&place, &["sql", "--csv", "select count(*), count(distinct id) from t"]);
                assert!(shown.out.contains(&format!("{ROWS},{ROWS}")), "after {victim}: {shown:?}");
                done(&place, &["sql", "drop table t"]);
            }
            _ => {
                let gone = || place.run(&["sql", "select count(*) from t"]).err.contains("42P01");
                wait_for("a failed restore leaves no table", gone);
            }
        }
    }
    done(&place, &["restore", file, "t"]);
    let shown = done(&place, &["sql", "--csv", "select count(*) from t where v = repeat('x', 100)"]);
    assert!(shown.out.contains(&ROWS.to_string()), "{shown:?}");
}

/// Runs a command that must succeed.
#[track_caller]
fn done(place: &LocalCluster, words: &[&str]) -> CommandOutput {
    let said = place.run(words);
    assert_eq!(said.code, Some(0), "{:?}: {said:?}", &words[..1]);
    said
}
