//! The files that `up` writes may fail in any way. The cluster keeps working, and `up` writes them again
//! later.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::Stdio,
};

use quorate_testing::wait_for;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::{
    cluster::{pid, process, turn},
    command::LocalCluster,
};

#[test]
fn a_cluster_survives_unwritable_records() {
    let _turn = turn();
    let place = LocalCluster::new();
    // Every write to this device fails with "disk full".
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let small =
        ["up", "--memory", "--empty", "--port", "0", "--routers", "1", "--storage", "1", "--replicas", "1"];
    let mut up = place.command(&small).stdout(Stdio::null()).stderr(full()).spawn().unwrap();
    wait_for("the cluster answers", || {
        place.run(&["sql", "create table kept (k int primary key)"]).code == Some(0)
    });
    wait_for("rows are taken", || place.run(&["sql", "insert into kept values (1)"]).code == Some(0));
    let file = |name: &str| place.data_dir().join(name);

    // The test removes a log.
    let before = killed(&place, "super-1", || fs::remove_file(file("super-1.log")).unwrap());
    comes_back(&place, &before);
    assert!(
        fs::read_to_string(file("super-1.log")).unwrap().contains("started"),
        "the process has a log again"
    );

    // Directories take the places of the files, so that `up` can write none of them.
    let names = ["super-1.log", "super-1.toml", "cluster.json.new"];
    let before = killed(&place, "super-1", || {
        for name in names {
            let _ = fs::remove_file(file(name));
            fs::create_dir(file(name)).unwrap();
        }
    });
    wait_for("the process runs without its files", || {
        children(up.id()).any(|words| words.contains("name=\"super-1\""))
    });
    let gateway = process(&place, "gateway-1")["bound"]["sql"].as_str().unwrap().to_owned();
    let count = ["sql", "--csv", "--address", &gateway, "select count(*) from kept"];
    assert_eq!(place.run(&count).out, "count\n1\n");
    names.iter().for_each(|name| fs::remove_dir(file(name)).unwrap());
    comes_back(&place, &before);
    assert!(!file("super-1.log").exists(), "the process was started while its log could not be created");

    // The test removes the whole directory.
    let before = killed(&place, "super-1", || fs::remove_dir_all(place.data_dir()).unwrap());
    comes_back(&place, &before);
    assert_eq!(place.run(&count).out, "count\n1\n");
    place.run(&small).failed(1, "a cluster runs here already");
    assert_eq!(up.try_wait().unwrap(), None);
    assert_eq!(place.run(&["down", "--yes"]).code, Some(0));
    assert!(up.wait().unwrap().success());
}

/// Returns the command lines of a process's children.
fn children(parent: u32) -> impl Iterator<Item = String> {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let parent = format!("\nPPid:\t{parent}\n");
    let of_parent = move |path: &PathBuf| {
        fs::read_to_string(path.join("status")).is_ok_and(|status| status.contains(&parent))
    };
    processes.filter(of_parent).filter_map(|path| fs::read_to_string(path.join("cmdline")).ok())
}

/// Kills a process after `hinder` has changed the files. Returns its earlier status.
fn killed(place: &LocalCluster, victim: &str, hinder: impl FnOnce()) -> Value {
    let before = process(place, victim);
    hinder();
    kill_process(pid(&before), Signal::KILL).unwrap();
    before
}

/// Waits until `status` shows the process serving with a new incarnation.
fn comes_back(place: &LocalCluster, before: &Value) {
    let name = before["name"].as_str().unwrap();
    wait_for(&format!("{name} comes back"), || {
        let rows = crate::cluster::status(place);
        rows.iter().any(|row| {
            row["name"] == name && row["state"] == "serving" && row["incarnation"] != before["incarnation"]
        })
    });
}
