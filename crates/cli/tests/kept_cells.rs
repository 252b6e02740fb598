//! Cells of a local cluster on disk: they continue with their keys and maps after any kind of stop.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use quorate_testing::{SetOnDrop, wait_for};
use serde_json::Value;

use crate::{
    cells::{Redis, doors},
    cluster::{process, status, turn},
    command::LocalCluster,
    kept::{copy, done, kill_everything},
};

const UP: [&str; 8] = ["up", "--detach", "--storage", "0", "--cells", "3", "--port", "0"];

/// Continues from the directory, so no flag is repeated.
const AGAIN: [&str; 2] = ["up", "--detach"];

fn connect(doors: &[String], cell: usize) -> Redis {
    Redis::connect(&doors[cell]).unwrap()
}

#[test]
fn cells_continue_after_a_restart() {
    let _turn = turn();
    let place = LocalCluster::new();
    let up = done(&place, &UP);
    for said in ["cells are up", "Map `main` has 3 copies of each key", "Keys are kept on disk."] {
        assert!(up.out.contains(said), "{up:?}");
    }
    let (doors_then, before) = (doors(&place), identities(&place));
    let [mut one, mut two] = [0, 1].map(|cell| connect(&doors_then, cell));
    one.check("SET greeting hello", "OK");
    two.check("HSET user name Ada born 1815", "2");
    two.check("INCRBY visits 41", "41");
    one.check("INCR visits", "42");
    one.check("SET gone soon", "OK");
    two.check("DEL gone", "1");
    one.check("QUORATE CREATE side COPIES 2", "OK");
    check_disks(&place);
    place.run(&["up", "--cells", "3"]).failed(1, "a cluster runs here already");
    let down = done(&place, &["down"]);
    assert!(down.out.contains("its maps are kept"), "{down:?}");
    contradictions_are_refused(&place);
    cells_of_the_former_format_are_refused(&place);

    let up = done(&place, &AGAIN);
    for said in
        ["continue where they stopped", "Map `main` has 3 copies of each key, map `side` 2", "kept on disk"]
    {
        assert!(up.out.contains(said), "{up:?}");
    }
    assert_eq!(identities(&place), before, "the domain, the processes, and where they listen");
    let mut three = connect(&doors_then, 2);
    three.check("GET greeting", "hello");
    three.check("HMGET user name born", "Ada 1815");
    three.check("INCR visits", "43");
    three.check("GET gone", "(nil)");

    // The first map is made only once in the life of a directory.
    three.check("QUORATE DROP main", "OK");
    done(&place, &["down"]);
    let up = done(&place, &AGAIN);
    assert!(up.out.contains("Map `side` has 2 copies") && !up.out.contains("main"), "{up:?}");
    connect(&doors_then, 0).refused("GET greeting", "NOMAP");

    place.run(&["down", "--destroy"]).failed(2, "give --yes");
    let down = done(&place, &["down", "--destroy", "--yes"]);
    assert!(down.out.contains("its maps are gone"), "{down:?}");
    assert!(!place.data_dir().exists(), "{:?}", fs::read_dir(place.data_dir()));
}

/// Tests that a directory of cells whose routers ordered nothing else is refused and left unchanged.
fn cells_of_the_former_format_are_refused(place: &LocalCluster) {
    let charter = place.data_dir().join("quorate.toml");
    let present = fs::read_to_string(&charter).unwrap();
    let former = present.replace("format = 3", "format = 2").replace("first_map = \"loaded\"\n", "");
    assert_ne!(present, former);
    fs::write(&charter, &former).unwrap();
    place.run(&["up", "--detach"]).failed(1, "only builds of quorate up to commit 71de61a6 open it");
    assert_eq!(fs::read_to_string(&charter).unwrap(), former);
    fs::write(&charter, present).unwrap();
}

/// Tests that each error names the flag and the value that the directory was made with.
fn contradictions_are_refused(place: &LocalCluster) {
    place.run(&["up", "--memory"]).failed(2, "remove the maps for good");
    place.run(&["up", "--cells", "5"]).failed(2, "which was made with --cells 3");
    place.run(&["up", "--cells", "0"]).failed(2, "which was made with --cells 3");
    place.run(&["up", "--sites", "3"]).failed(2, "which was made with --sites 1");
    place.run(&["up", "--routers", "1"]).failed(2, "which was made with --routers 3");
    place.run(&["up", "--storage", "1"]).failed(2, "which was made with --storage 0");
    for flag in ["--standby", "--replicas"] {
        place.run(&["up", "--detach", flag, "1"]).failed(2, "which has no tables: leave the flag out");
    }
}

/// Checks that every process has a disk.
fn check_disks(place: &LocalCluster) {
    let rows = status(place);
    assert_eq!(rows.len(), 6);
    for row in rows {
        let disk = row.get("disk").unwrap_or_else(|| panic!("{row}"));
        assert!(disk["syncs"].as_u64() > Some(0), "{row}");
        assert!(disk["restart_bytes"].as_u64() > Some(0), "{row}");
        let http = row["bound"]["http"].as_str().unwrap();
        let metrics = ureq::get(format!("http://{http}/metrics")).call().unwrap();
        let metrics = metrics.into_body().read_to_string().unwrap();
        for name in ["disk_used_bytes", "disk_restart_bytes", "disk_sync_seconds_bucket"] {
            assert!(metrics.contains(&format!("\nquorate_{name}{{")), "{name} is not in:\n{metrics}");
        }
    }
    assert!(place.run(&["status"]).out.contains("RESTART READS"));
}

/// Returns the domain, and the name, addresses and incarnation of each process.
fn identities(place: &LocalCluster) -> Vec<Value> {
    let said = place.run(&["status"]);
    let domain = said.out.lines().next().unwrap().split(',').next().unwrap().to_owned();
    let fields = |row: Value| ["name", "bound", "incarnation"].map(|field| row[field].clone());
    let rows = status(place).into_iter().map(|row| fields(row).into_iter().collect());
    [Value::from(domain)].into_iter().chain(rows).collect()
}

/// Everything is killed, twice, while clients write through all cells. Writes acknowledged at a quorum
/// survive, and each increment counts once.
#[test]
fn acknowledged_writes_are_there_after_all_was_killed_at_once() {
    let _turn = turn();
    let place = LocalCluster::new();
    done(&place, &UP);
    let doors = doors(&place);
    let (mut kept, mut counted, mut unknown) = (Vec::new(), 0, 0);
    for kill in 1..=2 {
        let written = AtomicU64::new(0);
        let clients: Vec<RecordedWrites> = thread::scope(|scope| {
            let clients: Vec<_> = (0..6)
                .map(|client| {
                    let (doors, written) = (&doors, &written);
                    scope.spawn(move || write_until_it_dies(&doors[client % 3], (kill, client), written))
                })
                .collect();
            wait_for("many writes are done", || written.load(Ordering::Relaxed) > 300);
            kill_everything(&place);
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        for client in clients {
            kept.extend((0..client.sets).map(|n| format!("{kill}.{}.{n}", client.number)));
            counted += client.increments;
            unknown += 1;
        }
        done(&place, &AGAIN);
        let mut redis = connect(&doors, kill % 3);
        for key in &kept {
            let words = if key.ends_with('3') { ["HGET", key, "f"].to_vec() } else { ["GET", key].to_vec() };
            assert_eq!(redis.ask(&words).unwrap(), *key, "acknowledged, and lost");
        }
        let count: u64 = redis.ask(&["GET", "n"]).unwrap().parse().unwrap();
        assert!((counted..=counted + unknown).contains(&count), "{count}: {counted} and {unknown}");
    }
}

struct RecordedWrites {
    number: usize,
    sets: u64,
    increments: u64,
}

/// Writes one client's strings, hashes and increments, each after the previous one was acknowledged.
fn write_until_it_dies(door: &str, (kill, number): (usize, usize), written: &AtomicU64) -> RecordedWrites {
    let mut redis = Redis::connect(door).unwrap();
    let mut done = RecordedWrites { number, sets: 0, increments: 0 };
    loop {
        let key = format!("{kill}.{number}.{}", done.sets);
        let (words, wanted) = match key.ends_with('3') {
            true => (vec!["HSET", &key, "f", &key], "1"),
            false => (vec!["SET", &key, &key], "OK"),
        };
        match redis.ask(&words) {
            Ok(answer) if answer == wanted => done.sets += 1,
            // The kills reach one cell after another, so this cell may still report that other cells do not
            // answer.
            Ok(error) => {
                assert!(error.starts_with("MAYBEAPPLIED") || error.starts_with("UNAVAILABLE"), "{error}");
                return done;
            }
            Err(_) => return done,
        }
        match redis.ask(&["INCR", "n"]) {
            Ok(answer) if answer.parse::<u64>().is_ok() => done.increments += 1,
            _ => return done,
        }
        written.fetch_add(1, Ordering::Relaxed);
    }
}

/// A cell with an older copy of its directory is refused, with an error that names the directory. Without a
/// directory the cell copies the keys of the other cells.
#[test]
fn an_older_copy_of_a_cell_is_refused() {
    let _turn = turn();
    let place = LocalCluster::new();
    done(&place, &UP);
    let doors = doors(&place);
    connect(&doors, 0).check("SET k 1", "OK");
    let file = |name: &str| place.data_dir().join(name);
    let journal = format!("journal-{}", process(&place, "cell-3")["node"]);
    done(&place, &["down"]);
    copy(&file(&journal), &file("older"));
    done(&place, &AGAIN);
    // The other processes must first receive reports of what this start made durable. A process reports that
    // 300 ms after it began, and again 100 ms after each change.
    let mut redis = connect(&doors, 2);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        redis.check("SET k 2", "OK");
    }
    done(&place, &["down"]);
    fs::rename(file(&journal), file("newest")).unwrap();
    copy(&file("older"), &file(&journal));
    for because in ["cell-3 cannot go on: ", "is an older copy"] {
        place.run(&AGAIN).failed(1, because);
    }
    fs::remove_dir_all(file(&journal)).unwrap();
    let before = incarnation(&file("newest"));
    done(&place, &AGAIN);
    assert_ne!(incarnation(&file(&journal)), before, "the cell is another process");
    wait_for("the cell has its keys", || process(&place, "cell-3")["state"] == "serving");
    assert_eq!(place.run(&["kill", "cell-1"]).code, Some(0));
    wait_for("a quorum answers", || connect(&doors, 2).ask(&["GET", "k"]).unwrap() == "2");
}

fn incarnation(journal: &Path) -> String {
    let identity = fs::read_to_string(journal.join("identity")).unwrap();
    let line = identity.lines().find(|line| line.contains("incarnation"));
    line.unwrap_or_else(|| panic!("no incarnation in {identity}")).to_owned()
}

#[test]
fn cells_in_memory_warn_and_keep_nothing() {
    let _turn = turn();
    let place = LocalCluster::new();
    let up: Vec<&str> = UP.into_iter().chain(["--memory"]).collect();
    for _ in 0..2 {
        let up = done(&place, &up);
        assert!(up.out.contains("Keys live in memory: when the cluster stops, they are gone."), "{up:?}");
        let mut redis = connect(&doors(&place), 0);
        redis.check("GET k", "(nil)");
        redis.check("SET k v", "OK");
        assert!(status(&place).iter().all(|row| row.get("disk").is_none()));
        place.run(&["restart", "cell-1"]).failed(1, "has no disk");
        place.run(&["down"]).failed(2, "give --yes");
        let down = done(&place, &["down", "--yes"]);
        assert!(down.out.contains("its maps are gone"), "{down:?}");
    }
    assert!(!place.data_dir().join("quorate.toml").exists());
    // A flag that belongs to contents that the cluster does not have is refused.
    for words in [["--sites", "2"], ["--level", "one"], ["--distance", "0-1=1"], ["--hint-bytes-max", "1"]] {
        let words = [&["up", "--detach"][..], &words].concat();
        place.run(&words).failed(2, "the cluster would have no cells: leave the flag out");
    }
    let words = ["up", "--cells", "3", "--storage", "0", "--standby", "1"];
    place.run(&words).failed(2, "the cluster would have no tables: leave the flag out");
    place.run(&["up", "--storage", "0"]).failed(2, "needs --cells");
}

/// All processes are restarted while clients work at level quorum and never reconnect. No request fails,
/// settings of connections stay, and every process keeps its identity.
#[test]
fn a_rolling_restart_of_cells_is_not_noticed() {
    let _turn = turn();
    let place = LocalCluster::new();
    done(&place, &UP);
    let (doors, before) = (doors(&place), status(&place));
    let mut set = connect(&doors, 0);
    set.check("QUORATE CREATE side COPIES 2", "OK");
    wait_for("the cell has it", || set.ask(&["QUORATE", "MAP", "side"]).unwrap() == "OK");
    set.check("QUORATE LEVEL one all", "OK");
    set.check("CLIENT SETNAME kept", "OK");
    set.check("SET k side", "OK");
    // The first half of a request. The other half follows after the cell has restarted.
    let mut half = connect(&doors, 1);
    half.send(b"*3\r\n$3\r\nSET\r\n$1\r\nh\r\n$6\r\nwh").unwrap();
    let stop = AtomicBool::new(false);
    let (asked, rolled) = (AtomicU64::new(0), AtomicBool::new(false));
    let (longest, said) = thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        let clients: Vec<_> = (0..6)
            .map(|client| {
                let (doors, stop, asked) = (&doors, &stop, &asked);
                scope.spawn(move || ask_until(stop, &doors[client % 3], client, asked))
            })
            .collect();
        // A client that reconnects for each request also finds the door open.
        let (doors, stopped, rolled) = (&doors, &stop, &rolled);
        let comer = scope.spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                doors.iter().for_each(|door| Redis::connect(door).unwrap().check("EXISTS none", "0"));
                rolled.store(true, Ordering::Relaxed);
            }
        });
        wait_for("clients ask", || asked.load(Ordering::Relaxed) > 300 && rolled.load(Ordering::Relaxed));
        let said = place.run(&["restart", "--rolling", "--json"]);
        let then = asked.load(Ordering::Relaxed);
        wait_for("clients go on", || asked.load(Ordering::Relaxed) > then + 300);
        drop(stopping);
        comer.join().unwrap();
        let longest = clients.into_iter().map(|client| client.join().unwrap()).max().unwrap();
        (longest, said)
    });
    assert_eq!(said.code, Some(0), "{said:?}");
    let lines: Vec<Value> = said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let roles: Vec<&str> = lines[..6].iter().map(|line| line["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["cell", "cell", "cell", "router", "router", "router"]);
    assert_eq!(lines[6]["restarted"], 6);
    for (before, after) in before.iter().zip(status(&place)) {
        for field in ["name", "incarnation", "pid", "bound", "starts"] {
            assert_eq!(before[field], after[field], "{field} of {}", before["name"]);
        }
    }
    assert!(longest < Duration::from_secs(20), "a request waited {longest:?}");
    println!("the longest wait of a request was {longest:?}");
    set.check("GET k", "side");
    set.check("QUORATE LEVEL", "read one write all");
    set.check("CLIENT GETNAME", "kept");
    half.send(b"olly\r\n").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(half.answer().unwrap(), "OK");
    half.check("GET h", "wholly");
    // One cell is restarted by name.
    done(&place, &["restart", "cell-2"]);
    half.check("GET h", "wholly");
}

/// Sends one client's requests on its own keys, and increments of a shared key. Returns the longest wait.
fn ask_until(stop: &AtomicBool, door: &str, client: usize, asked: &AtomicU64) -> Duration {
    let mut redis = Redis::connect(door).unwrap();
    let (string, hash) = (format!("s{client}"), format!("h{client}"));
    let mut longest = Duration::ZERO;
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let value = n.to_string();
        let began = Instant::now();
        redis.check(&format!("SET {string} {value}"), "OK");
        redis.check(&format!("GET {string}"), &value);
        redis.check(&format!("HSET {hash} f {value}"), if n == 1 { "1" } else { "0" });
        redis.check(&format!("HGET {hash} f"), &value);
        redis.check(&format!("INCR own{client}"), &value);
        let all = redis.ask(&["INCR", "all"]).unwrap();
        assert!(all.parse::<u64>().is_ok(), "{all}");
        longest = longest.max(began.elapsed());
        asked.fetch_add(6, Ordering::Relaxed);
    }
    longest
}
