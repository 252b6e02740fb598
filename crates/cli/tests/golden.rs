//! Directories of earlier builds, one for each format. The present build must continue from each directory.
//!
//! `golden/FORMAT` holds the files that `quorate down` left in such a directory. The zeros at the end of each
//! file are cut off, and a list has the lengths. With `UPDATE_GOLDEN=1` the present build writes the
//! directory of its own format again. When the format of a directory changes, the old directory stays and a
//! new one is added.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use crate::{
    cluster::turn,
    command::{CommandOutput, LocalCluster},
};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");

/// The smallest cluster. Its ports are part of the directory.
const UP: [&str; 13] = [
    "up",
    "--detach",
    "--empty",
    "--port",
    "21731",
    "--routers",
    "1",
    "--storage",
    "1",
    "--standby",
    "0",
    "--replicas",
    "1",
];

/// A write with a request id, which is recognised and not repeated.
const ONCE: &str = "set quorate.request_id = '5e0c9a1d47b36f8210c4e7d2a9b3f581-1'; \
                    update kept set v = v || '!' where k = 1";

#[test]
fn directories_of_earlier_builds_go_on() {
    let _turn = turn();
    if env::var_os("UPDATE_GOLDEN").is_some() {
        make();
    }
    let mut formats: Vec<PathBuf> =
        fs::read_dir(GOLDEN).unwrap().map(|entry| entry.unwrap().path()).collect();
    formats.sort();
    assert!(!formats.is_empty());
    for format in formats {
        let place = LocalCluster::new();
        unpack(&format, &place.data_dir());
        let up = done(&place, &["up", "--detach"]);
        assert!(up.out.contains("continues where it stopped"), "{}: {up:?}", format.display());
        let rows = |query| done(&place, &["sql", "--csv", query]).out;
        let all = rows("select count(*), sum(amount), min(day), max(v) from kept where ok");
        assert_eq!(all, "count,sum,min,max\n45,2036.25,2024-01-02,row 9\n", "{}", format.display());
        done(&place, &["sql", ONCE]);
        assert_eq!(rows("select v from kept where k = 1"), "v\none!\n", "{}", format.display());
        let log = fs::read_to_string(place.data_dir().join("storage-1.log")).unwrap();
        assert!(!log.contains("aside"), "no process puts its journal aside: {log}");
        done(&place, &["sql", "insert into kept (k, v) values (101, 'new')"]);
        assert_eq!(rows("select count(*) from kept"), "count\n91\n");
        done(&place, &["down"]);
    }
}

/// Writes the directory of the present format. It has no checkpoint: the first checkpoint is due after 64
/// MiB, too much for the repository.
fn make() {
    let place = LocalCluster::new();
    done(&place, &UP);
    let sql = |statement: &str| done(&place, &["sql", statement]);
    sql("create table kept (k int primary key, v text, day date, amount numeric(10,2), ok boolean)");
    let row = |k: u32| format!("({k}, 'row {k}', date '2024-01-01' + {k}, {k}.25, {})", k % 2 == 1);
    sql(&format!("insert into kept values {}", (1..=100).map(row).collect::<Vec<_>>().join(", ")));
    sql("update kept set v = 'one' where k = 1");
    sql(ONCE);
    sql("delete from kept where k > 90");
    done(&place, &["down"]);
    pack(&place.data_dir(), &Path::new(GOLDEN).join(format(&place)));
}

/// Returns the format that the directory of a journal states.
fn format(place: &LocalCluster) -> String {
    let identity = fs::read_to_string(place.data_dir().join("journal-1/identity")).unwrap();
    identity.lines().next().unwrap().strip_prefix("quorate directory, ").unwrap().replace(' ', "-")
}

/// Keeps the files that a cluster continues from. All other files are written again at each start.
fn pack(data_dir: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    let mut lengths = String::new();
    for entry in fs::read_dir(data_dir).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let files = match &name[..] {
            it if it.starts_with("journal-") => {
                fs::read_dir(entry.path()).unwrap().map(|file| file.unwrap().path()).collect()
            }
            it if it == "quorate.toml" || it.starts_with("founded-") => vec![entry.path()],
            _ => continue,
        };
        for file in files {
            // A process creates this file when it opens the directory.
            if file.ends_with("lock") {
                continue;
            }
            let bytes = fs::read(&file).unwrap();
            let path = file.strip_prefix(data_dir).unwrap();
            let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            fs::create_dir_all(to.join(path).parent().unwrap()).unwrap();
            fs::write(to.join(path), &bytes[..written]).unwrap();
            lengths.push_str(&format!("{} {}\n", bytes.len(), path.display()));
        }
    }
    fs::write(to.join("lengths"), lengths).unwrap();
}

fn unpack(golden: &Path, data_dir: &Path) {
    for line in fs::read_to_string(golden.join("lengths")).unwrap().lines() {
        let (length, path) = line.split_once(' ').unwrap();
        fs::create_dir_all(data_dir.join(path).parent().unwrap()).unwrap();
        fs::copy(golden.join(path), data_dir.join(path)).unwrap();
        let file = fs::OpenOptions::new().write(true).open(data_dir.join(path)).unwrap();
        file.set_len(length.parse().unwrap()).unwrap();
    }
}

#[track_caller]
fn done(place: &LocalCluster, words: &[&str]) -> CommandOutput {
    let said = place.run(words);
    assert_eq!(said.code, Some(0), "{:?}…: {said:?}", &words[0]);
    said
}
