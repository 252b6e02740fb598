//! Services by the command. Hosts are real processes, which are killed.

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use quorate::{
    Error, Wait,
    service::{
        Export,
        ready::key_value::{KeyValue, KeyValueRequest},
    },
};
use quorate_testing::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::command::{CommandOutput, LocalCluster, freeze};

/// A `quorate service host` or `restore` process, which is killed when this is dropped.
struct Host {
    child: Child,
    /// Address for other hosts, and address for HTTP.
    address: String,
    http: String,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Host {
    fn start(place: &LocalCluster, words: &[&str]) -> Host {
        let mut command = place.command(&[&["service"], words].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (lines, out) = (Arc::new(Mutex::new(Vec::new())), child.stdout.take().unwrap());
        let shared_lines = lines.clone();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                shared_lines.lock().unwrap().push(line);
            }
        });
        let mut host = Host { child, address: String::new(), http: String::new(), lines };
        wait_for("the host listens", || {
            let lines = host.lines.lock().unwrap();
            let places =
                lines.first().and_then(|line| line.split_once(" listens at ")?.1.split_once(", HTTP at "));
            let Some((address, http)) = places else { return false };
            (host.address, host.http) = (address.to_owned(), http.to_owned());
            true
        });
        host
    }

    fn says(&self, line: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|said| said == line)
    }

    fn leads(&self) -> bool {
        self.lines.lock().unwrap().last().is_some_and(|line| line.ends_with("led from here"))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts three hosts of a service. The first one leads.
fn three(place: &LocalCluster, service: &str) -> Vec<Host> {
    let first = Host::start(place, &["host", service, "--found"]);
    let mut hosts = vec![first];
    for _ in 0..2 {
        let join = hosts[0].address.clone();
        hosts.push(Host::start(place, &["host", service, "--join", &join]));
    }
    wait_for("all are replicas", || hosts[0].says("3 replicas, led from here"));
    hosts
}

/// Runs a command at the doors of these hosts.
fn at(place: &LocalCluster, hosts: &[Host], words: &[&str]) -> CommandOutput {
    let doors: Vec<&str> = hosts.iter().map(|host| host.http.as_str()).collect();
    place.run(&[&["service"], words, &["--at", &doors.join(",")]].concat())
}

/// Checks that a command succeeded, and returns its output.
#[track_caller]
fn done(said: CommandOutput) -> String {
    assert_eq!(said.code, Some(0), "{said:?}");
    said.out.trim_end().to_owned()
}

/// Returns the hosts' reports about their services.
fn listed(place: &LocalCluster, hosts: &[Host]) -> Vec<Value> {
    let output = done(at(place, hosts, &["list", "--json"]));
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn calls_are_answered_once_while_leaders_are_killed_and_replicas_replaced() {
    let place = LocalCluster::new();
    let mut hosts = three(&place, "counter");
    let call = |hosts: &[Host], request: &str, key: &str| {
        at(&place, hosts, &["call", "counter", request, "--key", key])
    };
    assert_eq!(done(call(&hosts, r#"{"add": 1}"#, "first")), "1");

    // The leader dies, and the call is repeated under its key.
    drop(hosts.remove(0));
    assert_eq!(done(call(&hosts, r#"{"add": 1}"#, "first")), "1");
    assert_eq!(done(call(&hosts, r#"{"add": 1}"#, "second")), "2");
    assert_eq!(done(at(&place, &hosts, &["call", "counter", r#""read""#])), "2");

    // A new host replaces the dead leader, and another new host stays spare until it is added.
    for _ in 0..2 {
        hosts.push(Host::start(&place, &["host", "counter", "--join", &hosts[0].address]));
    }
    let states = |hosts: &[Host]| -> Vec<String> {
        listed(&place, hosts).iter().map(|it| it["state"].as_str().unwrap().to_owned()).collect()
    };
    wait_for("three are replicas and one is spare", || {
        let mut states = states(&hosts);
        states.sort_unstable();
        states == ["follows", "follows", "leads", "spare"]
    });
    let states_now = states(&hosts);
    let named = |state: &str| states_now.iter().position(|it| it == state).unwrap();
    let (leader, index) = (named("leads"), named("follows"));
    let (old, new) = (hosts[index].address.clone(), hosts[named("spare")].address.clone());
    let leader = hosts.remove(leader);
    let index = hosts.iter().position(|host| host.address == old).unwrap();
    // The commands ask only a replica, because other hosts may know an older set.
    let asked = |words: &[&str]| at(&place, std::slice::from_ref(&leader), words);
    let replicas = done(asked(&["replace", "counter", &old, &new]));
    assert!(replicas.contains(&new) && !replicas.contains(&old), "{replicas}");
    asked(&["replace", "counter", "127.0.0.1:1", &new])
        .failed(1, "rejected: the service `counter` has no replica at");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    asked(&["add", "counter", &free]).failed(1, "no process was found at");
    // The old host comes back as another process at another port, and is spare.
    let spare = || {
        let description = listed(&place, &hosts[index..=index]).remove(0);
        let is_back = description["state"] == "spare" && description["address"] != old.as_str();
        is_back.then(|| description["address"].as_str().unwrap().to_owned())
    };
    wait_for("the old one is spare", || spare().is_some());
    let all = done(asked(&["add", "counter", &spare().unwrap(), "--json"]));
    let all: Value = serde_json::from_str(&all).unwrap();
    assert_eq!(all["replicas"].as_array().map(Vec::len), Some(4), "{all}");

    // One host's replica is withdrawn, and the host's command exits with 0.
    let mut withdrawn = hosts.remove(index);
    hosts.push(leader);
    done(place.run(&["service", "withdraw", "counter", "--at", &withdrawn.http]));
    wait_for("the host ends", || withdrawn.child.try_wait().unwrap().is_some_and(|status| status.success()));
    assert!(withdrawn.says("counter was withdrawn"));
    assert_eq!(done(call(&hosts, r#"{"add": 5}"#, "third")), "7");
    let table = done(at(&place, &hosts, &["list"]));
    assert!(
        table.lines().count() == 4 && table.contains("leads") && table.contains(&hosts[0].http),
        "{table}"
    );
}

#[test]
fn a_state_is_exported_and_restored_when_all_its_hosts_are_gone() {
    let place = LocalCluster::new();
    let file = place.data_dir().with_extension("export");
    let file = file.to_str().unwrap();
    for (service, put, read, there) in [
        ("key-value", r#"{"put": ["colour", "blue"]}"#, r#"{"get": "colour"}"#, r#""blue""#),
        (
            "matchmaker",
            r#"{"advertise": {"address": "a", "size": {"megahertz": 3, "memory_gb": 4, "disk_gb": 5}, "capability": "c"}}"#,
            r#"{"submit": {"job": "j", "size": {"megahertz": 3, "memory_gb": 4, "disk_gb": 5}, "priority": 1}}"#,
            r#"{"address":"a","size":{"megahertz":3,"memory_gb":4,"disk_gb":5},"capability":"c"}"#,
        ),
    ] {
        let mut hosts = three(&place, service);
        assert_eq!(done(at(&place, &hosts, &["call", service, put])), "null");
        // The command finds the leading host among all hosts.
        hosts.rotate_left(1);
        let exported = done(at(&place, &hosts, &["export", service, file, "--json"]));
        let exported: Value = serde_json::from_str(&exported).unwrap();
        assert_eq!((&exported["led"], &exported["changes"]), (&true.into(), &1.into()), "{exported}");
        drop(hosts);

        let restored = Host::start(&place, &["restore", file, service]);
        let joined = Host::start(&place, &["host", service, "--join", &restored.address]);
        wait_for("another one joins", || restored.says("2 replicas, led from here"));
        let hosts = [restored, joined];
        let sets: Vec<Value> = listed(&place, &hosts).iter().map(|it| it["set"].clone()).collect();
        assert!(
            sets[0] == sets[1] && sets[0] != exported["set"],
            "the restored service is another set: {sets:?}"
        );
        // The host that joined later has the state, too.
        let joined = at(&place, &hosts[1..], &["call", service, read]);
        assert_eq!(done(joined), there);
    }
}

#[test]
fn hosts_on_disk_go_on_when_all_of_them_are_killed() {
    let place = LocalCluster::new();
    let directories: Vec<String> =
        (0..3).map(|number| place.data_dir().join(number.to_string()).display().to_string()).collect();
    let first = Host::start(&place, &["host", "scheduler", "--found", "--directory", &directories[0]]);
    let seed = first.address.clone();
    let mut hosts = vec![first];
    for directory in &directories[1..] {
        hosts.push(Host::start(&place, &["host", "scheduler", "--join", &seed, "--directory", directory]));
    }
    wait_for("all are replicas", || hosts[0].says("3 replicas, led from here"));
    let submit = r#"{"submit": {"job": "render", "priority": 5}}"#;
    assert_eq!(done(at(&place, &hosts, &["call", "scheduler", submit, "--key", "k"])), "null");
    let addresses: Vec<String> = hosts.iter().map(|host| host.address.clone()).collect();
    drop(hosts);
    let again = directories.iter().zip(&addresses).map(|(directory, address)| {
        Host::start(
            &place,
            &["host", "scheduler", "--join", &seed, "--directory", directory, "--listen", address],
        )
    });
    let hosts: Vec<Host> = again.collect();
    assert_eq!(done(at(&place, &hosts, &["call", "scheduler", submit, "--key", "k"])), "null", "once");
    let work = |key: &str| {
        done(at(&place, &hosts, &["call", "scheduler", r#"{"work": {"worker": "w"}}"#, "--key", key]))
    };
    assert!(work("a").starts_with(r#"{"job":"render","worker":"w","at":"#));
    assert_eq!(work("b"), "null", "the job was submitted once");
}

#[test]
fn mistakes_in_service_calls_are_named() {
    let place = LocalCluster::new();
    let host = Host::start(&place, &["host", "counter", "--found", "--replicas", "1"]);
    wait_for("the host leads", || host.leads());
    let hosts = [host];
    at(&place, &hosts, &["call", "counter", "{add: 1}"]).failed(2, "the request is not valid JSON");
    at(&place, &hosts, &["call", "counter", r#"{"sub": 1}"#]).failed(1, "malformed: ");
    at(&place, &hosts, &["call", "other", "1"]).failed(1, "unknown: this host serves no service `other`");
    let most = format!(r#"{{"add": {}}}"#, u64::MAX);
    done(at(&place, &hosts, &["call", "counter", &most, "--key", "k"]));
    at(&place, &hosts, &["call", "counter", r#"{"add": 1}"#]).failed(1, "rejected: ");
    at(&place, &hosts, &["call", "counter", r#"{"add": 1}"#, "--key", "k"]).failed(1, "reused: ");
    at(&place, &hosts, &["export", "counter", "/nowhere/at/all"]).failed(1, "/nowhere/at/all");
    let seed = hosts[0].address.clone();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    place.run(&["service", "host", "counter", "--found", "--join", &seed]).failed(2, "cannot be used with");
    place.run(&["service", "host", "counter", "--found", "--http", "0.0.0.0:0"]).failed(1, "loopback");
    place.run(&["service", "call", "counter", "1", "--at", &free]).failed(1, "does not answer");
    place.run(&["service", "list", "--at", &free]).failed(1, "no host answers");
    let other = place.run(&["service", "host", "scheduler", "--name", "counter", "--join", &seed]);
    other.failed(1, "first state");
    // A host that is gone does not matter if another host can take the call.
    let both = format!("{free},{}", hosts[0].http);
    let said = place.run(&["service", "call", "counter", r#""read""#, "--at", &both]);
    assert_eq!(said.out.trim_end(), u64::MAX.to_string());
}

/// Returns the number of times that the leader is paused, about four seconds each. `QUORATE_PAUSES=150` takes
/// ten minutes.
fn pauses() -> u32 {
    std::env::var("QUORATE_PAUSES").map_or(2, |pauses| pauses.parse().expect("QUORATE_PAUSES is a number"))
}

/// Writes rising numbers until `stop` is set. Returns the last acknowledged number. A write of unknown
/// outcome is repeated, so that no later write overtakes it.
fn write_on(stop: &AtomicBool, count: &AtomicU64, mut write: impl FnMut(u64) -> Result<(), Error>) -> u64 {
    let mut last = 0;
    for number in 1.. {
        loop {
            if stop.load(Ordering::Relaxed) {
                return last;
            }
            match write(number) {
                Ok(()) => break,
                Err(Error::NotSent { .. } | Error::Aborted { .. } | Error::MaybeApplied { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        last = number;
        count.fetch_add(1, Ordering::Relaxed);
    }
    unreachable!("numbers do not end")
}

/// Stops the writers when it is dropped, also by a panic, because the scope waits for them.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A paused leader undoes the changes that were not agreed on, and no other changes. In the end all replicas
/// have the same state, with all acknowledged writes.
#[test]
fn transactions_and_writes_go_on_while_leaders_are_paused() {
    let place = LocalCluster::new();
    let directories: Vec<String> =
        (0..3).map(|number| place.data_dir().join(number.to_string()).display().to_string()).collect();
    let host = |words: &[&str]| Host::start(&place, &[&["host", "key-value"], words].concat());
    let mut hosts = vec![host(&["--found", "--directory", &directories[0]])];
    for directory in &directories[1..] {
        let seed = hosts[0].address.clone();
        hosts.push(host(&["--join", &seed, "--directory", directory]));
    }
    wait_for("all are replicas", || hosts[0].says("3 replicas, led from here"));
    let addresses: Vec<String> = hosts.iter().map(|host| host.address.clone()).collect();
    let store = quorate::connect(addresses).wait().unwrap().service::<KeyValue>("key-value").unwrap();
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let put = |key: &str, number: u64| KeyValueRequest::Put(key.to_owned(), number.to_string());

    let last: Vec<(Vec<String>, u64)> = thread::scope(|scope| {
        let running = Stop(&stop);
        let mut writers = Vec::new();
        for writer in 0..4 {
            let (store, stop, count) = (&store, &stop, &count);
            writers.push(scope.spawn(move || {
                let key = format!("plain {writer}");
                let last = write_on(stop, count, |number| store.call(&put(&key, number)).wait().map(drop));
                (vec![key], last)
            }));
            writers.push(scope.spawn(move || {
                let keys = ["one", "other"].map(|which| format!("transaction {writer} {which}"));
                let last = write_on(stop, count, |number| {
                    let mut transaction = store.begin();
                    for key in &keys {
                        transaction.call(&put(key, number)).wait()?;
                    }
                    transaction.commit().wait()
                });
                (keys.to_vec(), last)
            }));
        }
        for round in 0..pauses() {
            let leads = |hosts: &[Host]| listed(&place, hosts).iter().position(|it| it["state"] == "leads");
            let mut leader = None;
            wait_for("one leads", || {
                leader = leads(&hosts);
                leader.is_some()
            });
            let leader = Pid::from_child(&hosts[leader.unwrap()].child);
            freeze(leader);
            thread::sleep(Duration::from_secs(3));
            kill_process(leader, Signal::CONT).unwrap();
            let before = count.load(Ordering::Relaxed);
            wait_for(&format!("writes go on after pause {round}"), || {
                count.load(Ordering::Relaxed) > before + 50
            });
        }
        drop(running);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });

    for (keys, last) in last {
        let values = keys.iter().map(|key| store.call(&KeyValueRequest::Get(key.clone())).wait().unwrap());
        let values: Vec<u64> = values.map(|value| value.map_or(0, |value| value.parse().unwrap())).collect();
        assert!(values.iter().all(|value| *value == values[0]), "{keys:?}: {values:?}");
        // The write after the last acknowledged write may have taken effect.
        assert!(values[0] == last || values[0] == last + 1, "{keys:?}: {} and not {last}", values[0]);
    }
    let changes = || listed(&place, &hosts).iter().map(|it| it["changes"].as_u64()).collect::<Vec<_>>();
    wait_for("all have the same changes", || changes().windows(2).all(|two| two[0] == two[1]));
    let states = hosts.iter().map(|host| {
        let file = place.data_dir().with_extension("export");
        let words = ["service", "export", "key-value", file.to_str().unwrap(), "--at", &host.http];
        done(place.run(&words));
        let export = Export::read(&file).unwrap();
        (export.changes(), export.state().to_vec())
    });
    let states: Vec<(u64, Vec<u8>)> = states.collect();
    assert!(
        states.windows(2).all(|two| two[0] == two[1]),
        "the replicas differ at the same number of changes"
    );
}
