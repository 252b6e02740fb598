//! A local cluster on disk: it continues after any kind of stop, and no other cluster can use its directory.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use quorate_testing::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    cluster::{lives, pids, status, turn},
    command::{CommandOutput, LocalCluster},
};

/// The smallest cluster: five processes, of which two have a disk.
const SMALL: [&str; 13] = [
    "up",
    "--detach",
    "--empty",
    "--port",
    "0",
    "--routers",
    "1",
    "--storage",
    "1",
    "--standby",
    "0",
    "--replicas",
    "1",
];

#[test]
fn a_cluster_continues_after_a_restart() {
    let _turn = turn();
    let place = LocalCluster::new();
    let up = done(&place, &["up", "--detach", "--port", "0"]);
    assert!(up.out.contains("is up") && up.out.contains("kept on disk"), "{up:?}");
    done(&place, &["sql", "create table mine (k int primary key, v text)"]);
    done(&place, &["sql", "insert into mine values (1, 'one'), (2, 'two')"]);
    let once = "set quorate.request_id = '5e0c9a1d47b36f8210c4e7d2a9b3f581-1'; \
                update mine set v = v || '!' where k = 1";
    done(&place, &["sql", once]);
    // One flight is missing afterwards, so a second load of the sample would show.
    done(&place, &["sql", "delete from flights where month = 1 and day = 1"]);
    let before = identities(&place);
    check_disks(&place);
    only_the_owner_can_read(&place.data_dir());

    place.run(&["up", "--port", "0"]).failed(1, "a cluster runs here already");
    let down = done(&place, &["down"]);
    assert!(down.out.contains("its tables are kept") && down.out.contains("all end together"), "{down:?}");
    for name in ["storage-1", "storage-2", "storage-3", "router-1"] {
        // No process waited for another process, which could have ended before it answered.
        let log = fs::read_to_string(place.data_dir().join(format!("{name}.log"))).unwrap();
        assert!(log.contains("stopped") && !log.contains("stops unannounced"), "{name}: {log}");
    }
    place.run(&["status"]).failed(1, "its tables are kept there, and `quorate up` goes on with them");
    contradictions_are_refused(&place);

    let up = done(&place, &["up", "--detach"]);
    assert!(up.out.contains("continues where it stopped"), "{up:?}");
    assert_eq!(identities(&place), before, "the domain, the addresses, and the processes that have a disk");
    assert_eq!(rows(&place, "select v from mine order by k"), "v\none!\ntwo\n");
    // The earlier write is recognised and not repeated.
    done(&place, &["sql", once]);
    assert_eq!(rows(&place, "select v from mine where k = 1"), "v\none!\n");
    assert_eq!(rows(&place, "select count(*) from flights"), "count\n335934\n");

    let data_dir = place.data_dir();
    place.run(&["down", "--destroy"]).failed(2, "give --yes");
    assert_eq!(rows(&place, "select count(*) from mine"), "count\n2\n");
    let down = done(&place, &["down", "--destroy", "--yes"]);
    assert!(down.out.contains("gone"), "{down:?}");
    assert!(!data_dir.exists(), "{:?}", fs::read_dir(&data_dir));
    place.run(&["down", "--destroy", "--yes"]).failed(1, "no cluster is kept in");
}

/// Tests that each error names the flag and the value that the directory was made with.
fn contradictions_are_refused(place: &LocalCluster) {
    let made_with = |flag: &str, value: &str| format!("which was made with {flag} {value}");
    place.run(&["up", "--memory"]).failed(2, "--memory: ");
    place.run(&["up", "--cells", "3"]).failed(2, "which was made with --cells 0");
    place.run(&["up", "--sites", "3"]).failed(2, "which has no cells");
    place.run(&["up", "--port", "24700"]).failed(2, &made_with("--port", "0"));
    for (flag, value, made) in
        [("--routers", "5", "3"), ("--storage", "3", "4"), ("--standby", "2", "1"), ("--replicas", "2", "3")]
    {
        place.run(&["up", "--detach", flag, value]).failed(2, &made_with(flag, made));
    }
}

/// Checks the disk of each process that has one.
fn check_disks(place: &LocalCluster) {
    let mut disks = 0;
    for row in status(place) {
        let has_disk = matches!(row["role"].as_str(), Some("router" | "storage"));
        let disk = row.get("disk");
        assert_eq!(disk.is_some(), has_disk, "{row}");
        let Some(disk) = disk else { continue };
        let figure = |name: &str| disk[name].as_u64().unwrap_or_else(|| panic!("no {name}: {disk}"));
        assert!(figure("restart_bytes") > 0 && figure("restart_bytes") <= figure("used_bytes"), "{disk}");
        assert!(figure("syncs") > 0 && figure("sync_us_mean") <= figure("sync_us_max"), "{disk}");
        let http = row["bound"]["http"].as_str().unwrap();
        let metrics = ureq::get(format!("http://{http}/metrics")).call().unwrap();
        let metrics = metrics.into_body().read_to_string().unwrap();
        for name in [
            "disk_used_bytes",
            "disk_restart_bytes",
            "disk_sync_seconds_bucket",
            "disk_checkpoint_timestamp_seconds",
        ] {
            assert!(metrics.contains(&format!("\nquorate_{name}{{")), "{name} is not in:\n{metrics}");
        }
        disks += 1;
    }
    assert_eq!(disks, 8);
    let shown = place.run(&["status"]).out;
    assert!(shown.contains("RESTART READS") && shown.contains(" ms"), "{shown}");
}

fn only_the_owner_can_read(path: &Path) {
    let metadata = fs::metadata(path).unwrap();
    let mode = metadata.permissions().mode() & 0o777;
    assert_eq!(mode, if metadata.is_dir() { 0o700 } else { 0o600 }, "{} has {mode:o}", path.display());
    if metadata.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| only_the_owner_can_read(&entry.unwrap().path()));
    }
}

#[test]
fn every_acknowledged_row_is_there_after_all_was_killed_at_once() {
    let _turn = turn();
    let place = LocalCluster::new();
    done(&place, &["up", "--detach", "--empty", "--port", "0"]);
    done(&place, &["sql", "create table kept (k int primary key)"]);
    let mut acknowledged = Vec::new();
    for kill in 1..=2 {
        // The test kills all processes in the middle of writes.
        let written: Vec<i32> = thread::scope(|scope| {
            let place = &place;
            let write = |writer: i32| {
                let first = kill * 10_000 + writer * 1_000;
                let is_acknowledged =
                    |k: &i32| place.run(&["sql", &format!("insert into kept values ({k})")]).code == Some(0);
                (first..first + 1_000).map_while(|k| is_acknowledged(&k).then_some(k)).collect::<Vec<i32>>()
            };
            let writers: Vec<_> = (0..3).map(|writer| scope.spawn(move || write(writer))).collect();
            let many = format!("select 1 / (count(*) / {}) from kept", acknowledged.len() + 20);
            wait_for("many rows are written", || place.run(&["sql", &many]).code == Some(0));
            kill_everything(place);
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        acknowledged.extend(written);
        done(&place, &["up", "--detach"]);
        let there = rows(&place, "select k from kept");
        let there: Vec<i32> = there.lines().skip(1).map(|k| k.parse().unwrap()).collect();
        let lost: Vec<&i32> = acknowledged.iter().filter(|k| !there.contains(k)).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    }
}

/// Kills the supervisor first, so that it starts no process again.
pub(crate) fn kill_everything(place: &LocalCluster) {
    let supervisor = supervisor(place);
    let pids = pids(place);
    for pid in [supervisor].iter().chain(&pids) {
        // The process may have ended before this signal.
        let _ = kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL);
    }
    wait_for("all are gone", || !pids.iter().any(|pid| lives(*pid)));
}

fn supervisor(place: &LocalCluster) -> i32 {
    let cluster = fs::read(place.data_dir().join("cluster.json")).unwrap();
    let cluster: Value = serde_json::from_slice(&cluster).unwrap();
    i32::try_from(cluster["pid"].as_i64().unwrap()).unwrap()
}

#[test]
fn a_directory_is_refused_to_every_other_cluster() {
    let _turn = turn();
    let place = LocalCluster::new();
    done(&place, &SMALL);
    done(&place, &["sql", "create table kept (k int primary key)"]);
    done(&place, &["sql", "insert into kept values (1)"]);
    done(&place, &["down"]);
    let file = |name: &str| place.data_dir().join(name);
    let charter = fs::read_to_string(file("quorate.toml")).unwrap();
    let refused = |because: &str| {
        place.run(&["up", "--detach"]).failed(1, because);
        place.run(&["status"]).failed(1, "no cluster runs here");
    };

    // The directory, or one journal, has a later format.
    write(&file("quorate.toml"), &charter.replace("format = 3", "format = 4\nmoons = 3"));
    refused("has format 4, but this program");
    write(&file("quorate.toml"), &charter);
    let identity = fs::read_to_string(file("journal-1/identity")).unwrap();
    write(&file("journal-1/identity"), &identity.replace("format 4", "format 5"));
    refused("has format 5, which this build does not read");
    write(&file("journal-1/identity"), &identity);

    // The charter names another domain, or journals are swapped between nodes.
    let (before, domain) = charter.split_once("domain = \"").unwrap();
    let other = format!("{before}domain = \"{}\"{}", "12".repeat(16), &domain[33..]);
    write(&file("quorate.toml"), &other);
    // Any process may report the foreign domain first.
    refused("of domain 12121212121212121212121212121212: give each node its own directory");
    write(&file("quorate.toml"), &charter);
    swap(&file("journal-1"), &file("journal-4"));
    refused("give each node its own directory");
    swap(&file("journal-1"), &file("journal-4"));

    // Without the charter, no new cluster begins in a directory with journals.
    fs::remove_file(file("quorate.toml")).unwrap();
    for words in [&["up", "--detach", "--empty"][..], &["up", "--memory", "--detach", "--empty"]] {
        place.run(words).failed(1, "exists, but quorate.toml does not");
    }
    write(&file("quorate.toml"), &charter);

    // The refusals changed nothing. A directory of an earlier format is accepted.
    let of_cells =
        |line: &str| ["cells = ", "sites = ", "first_map = "].iter().any(|it| line.starts_with(it));
    let former: Vec<&str> = charter.lines().filter(|line| !of_cells(line)).collect();
    write(&file("quorate.toml"), &former.join("\n").replace("format = 3", "format = 1"));
    done(&place, &["up", "--detach"]);
    assert_eq!(rows(&place, "select k from kept"), "k\n1\n");
    assert_eq!(
        fs::read_to_string(file("quorate.toml")).unwrap(),
        charter,
        "the charter has the present format from now on"
    );
}

/// A process's directory is replaced by an older copy: a router's, copied while it was stopped, and a storage
/// process's, copied while it ran. The error names the directory and says what to do.
#[test]
fn an_older_copy_that_is_put_back_is_refused() {
    let _turn = turn();
    let place = LocalCluster::new();
    done(&place, &["up", "--detach", "--empty", "--port", "0"]);
    done(&place, &["sql", "create table kept (k int primary key)"]);
    let file = |name: &str| place.data_dir().join(name);
    let node = |name: &str| {
        let row = status(&place).into_iter().find(|row| row["name"] == name).unwrap();
        format!("journal-{}", row["node"])
    };
    let (router, storage) = (node("router-2"), node("storage-3"));
    copy(&file(&storage), &file("storage.older"));
    done(&place, &["sql", "insert into kept values (1)"]);
    done(&place, &["down"]);
    copy(&file(&router), &file("router.older"));
    done(&place, &["up", "--detach"]);
    done(&place, &["sql", "insert into kept values (2)"]);
    // The other processes must first receive reports of what this start made durable. A process reports that
    // 300 ms after it began, and again 100 ms after each change.
    done(&place, &["sql", "create table beats (id int primary key, n int); insert into beats values (1, 0)"]);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        done(&place, &["sql", "update beats set n = n + 1 where id = 1"]);
    }
    done(&place, &["down"]);

    for (journal, older, name) in
        [(&router, "router.older", "router-2"), (&storage, "storage.older", "storage-3")]
    {
        fs::rename(file(journal), file("newest")).unwrap();
        copy(&file(older), &file(journal));
        let does_not = format!("{name} cannot go on: ");
        for because in [&does_not[..], "is an older copy", "remove the directory, and a new process begins"] {
            place.run(&["up", "--detach"]).failed(1, because);
        }
        fs::remove_dir_all(file(journal)).unwrap();
        fs::rename(file("newest"), file(journal)).unwrap();
    }
    // The newest copies are accepted.
    done(&place, &["up", "--detach"]);
    assert_eq!(rows(&place, "select k from kept order by k"), "k\n1\n2\n");
    done(&place, &["down"]);
    // A process without its directory starts empty, and the other processes bring it up to date.
    fs::remove_dir_all(file(&router)).unwrap();
    done(&place, &["up", "--detach"]);
    assert_eq!(rows(&place, "select k from kept order by k"), "k\n1\n2\n");
}

#[test]
fn a_failed_start_leaves_no_claim_on_its_directory() {
    let _turn = turn();
    let place = LocalCluster::new();
    done(&place, &SMALL);
    done(&place, &["down"]);
    // The directory is in the state of a power failure before any write.
    for entry in fs::read_dir(place.data_dir()).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().starts_with("journal-") {
            fs::remove_dir_all(path).unwrap();
        }
    }
    let other = ["up", "--detach", "--empty", "--port", "0", "--storage", "2", "--replicas", "2"];
    done(&place, &other);
    done(&place, &["sql", "create table t (k int primary key)"]);
}

#[test]
fn a_cluster_in_memory_warns_and_keeps_nothing() {
    let _turn = turn();
    let place = LocalCluster::new();
    let small: Vec<&str> = SMALL.into_iter().chain(["--memory"]).collect();
    for _ in 0..2 {
        let up = done(&place, &small);
        assert!(up.out.contains("live in memory: when the cluster stops, they are gone"), "{up:?}");
        done(&place, &["sql", "create table t (k int primary key)"]);
        place.run(&["down"]).failed(2, "give --yes");
        done(&place, &["down", "--yes"]);
    }
    assert!(!place.data_dir().join("quorate.toml").exists());
    done(&place, &SMALL);
}

/// Returns the domain, the address of each process, and the identity of each process with a disk.
fn identities(place: &LocalCluster) -> Vec<Value> {
    let said = place.run(&["status"]);
    let domain = said.out.lines().next().unwrap().split(',').next().unwrap().to_owned();
    let mut identities = vec![Value::from(domain)];
    for row in status(place) {
        let has_disk = matches!(row["role"].as_str(), Some("router" | "storage"));
        let incarnation = if has_disk { row["incarnation"].clone() } else { Value::Null };
        identities.push([row["name"].clone(), row["bound"].clone(), incarnation].into_iter().collect());
    }
    identities
}

fn rows(place: &LocalCluster, query: &str) -> String {
    let said = place.run(&["sql", "--csv", query]);
    assert_eq!(said.code, Some(0), "{said:?}");
    said.out
}

#[track_caller]
pub(crate) fn done(place: &LocalCluster, words: &[&str]) -> CommandOutput {
    let said = place.run(words);
    assert_eq!(said.code, Some(0), "{words:?}: {said:?}");
    said
}

fn write(path: &Path, text: &str) {
    let file = fs::OpenOptions::new().write(true).truncate(true).create(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).unwrap_or_else(|error: io::Error| {
        panic!("{}: {error}", path.display());
    });
}

/// Copies a directory of files.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

fn swap(one: &PathBuf, other: &PathBuf) {
    let aside = one.with_extension("aside");
    fs::rename(one, &aside).unwrap();
    fs::rename(other, one).unwrap();
    fs::rename(&aside, other).unwrap();
}
