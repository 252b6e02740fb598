//! Services by the command: hosts are real processes, which are killed.

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use serde_json::Value;

use crate::command::{Place, Said, wait_for};

/// `quorate service host`, or `restore`. It is killed when it is dropped.
struct Host {
    child: Child,
    /// Where it listens, and where it serves HTTP.
    address: String,
    http: String,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Host {
    fn start(place: &Place, words: &[&str]) -> Host {
        let mut command = place.command(&[&["service"], words].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (lines, out) = (Arc::new(Mutex::new(Vec::new())), child.stdout.take().unwrap());
        let told = lines.clone();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                told.lock().unwrap().push(line);
            }
        });
        let mut host = Host { child, address: String::new(), http: String::new(), lines };
        wait_for("it listens", || {
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
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Three hosts of a service; the first leads.
fn three(place: &Place, service: &str) -> Vec<Host> {
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
fn at(place: &Place, hosts: &[Host], words: &[&str]) -> Said {
    let doors: Vec<&str> = hosts.iter().map(|host| host.http.as_str()).collect();
    place.run(&[&["service"], words, &["--at", &doors.join(",")]].concat())
}

/// What it prints.
#[track_caller]
fn done(said: Said) -> String {
    assert_eq!(said.code, Some(0), "{said:?}");
    said.out.trim_end().to_owned()
}

/// What the hosts say of their services.
fn listed(place: &Place, hosts: &[Host]) -> Vec<Value> {
    let told = done(at(place, hosts, &["list", "--json"]));
    told.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn calls_are_answered_once_while_leaders_are_killed_and_replicas_replaced() {
    let place = Place::new();
    let mut hosts = three(&place, "counter");
    let call = |hosts: &[Host], request: &str, key: &str| {
        at(&place, hosts, &["call", "counter", request, "--key", key])
    };
    assert_eq!(done(call(&hosts, r#"{"add": 1}"#, "first")), "1");

    // The leader dies, and the call is sent again under its key.
    drop(hosts.remove(0));
    assert_eq!(done(call(&hosts, r#"{"add": 1}"#, "first")), "1");
    assert_eq!(done(call(&hosts, r#"{"add": 1}"#, "second")), "2");
    assert_eq!(done(at(&place, &hosts, &["call", "counter", r#""read""#])), "2");

    // One comes and takes its place, and another one is spare until it is told otherwise.
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
    // Asked at a replica: others know the set as it was.
    let asked = |words: &[&str]| at(&place, std::slice::from_ref(&leader), words);
    let replicas = done(asked(&["replace", "counter", &old, &new]));
    assert!(replicas.contains(&new) && !replicas.contains(&old), "{replicas}");
    asked(&["replace", "counter", "127.0.0.1:1", &new]).failed(1, "rejected: no replica");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    asked(&["add", "counter", &free]).failed(1, "nobody was found at");
    // The old one comes back as another process, at another port, and is spare.
    let spare = || {
        let told = listed(&place, &hosts[index..=index]).remove(0);
        let is_back = told["state"] == "spare" && told["address"] != old.as_str();
        is_back.then(|| told["address"].as_str().unwrap().to_owned())
    };
    wait_for("the old one is spare", || spare().is_some());
    let all = done(asked(&["add", "counter", &spare().unwrap(), "--json"]));
    let all: Value = serde_json::from_str(&all).unwrap();
    assert_eq!(all["replicas"].as_array().map(Vec::len), Some(4), "{all}");

    // One of them is withdrawn, and its command ends well.
    let mut withdrawn = hosts.remove(index);
    hosts.push(leader);
    done(place.run(&["service", "withdraw", "counter", "--at", &withdrawn.http]));
    wait_for("it ends", || withdrawn.child.try_wait().unwrap().is_some_and(|status| status.success()));
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
    let place = Place::new();
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
        // The host that leads is found among all of them.
        hosts.rotate_left(1);
        let told = done(at(&place, &hosts, &["export", service, file, "--json"]));
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!((&told["led"], &told["changes"]), (&true.into(), &1.into()), "{told}");
        drop(hosts);

        let restored = Host::start(&place, &["restore", file, service]);
        let joined = Host::start(&place, &["host", service, "--join", &restored.address]);
        wait_for("another one joins", || restored.says("2 replicas, led from here"));
        let hosts = [restored, joined];
        let sets: Vec<Value> = listed(&place, &hosts).iter().map(|it| it["set"].clone()).collect();
        assert!(sets[0] == sets[1] && sets[0] != told["set"], "it is another set: {sets:?}");
        // The one that joined has the state, too.
        let joined = at(&place, &hosts[1..], &["call", service, read]);
        assert_eq!(done(joined), there);
    }
}

#[test]
fn hosts_on_disk_go_on_when_all_of_them_are_killed() {
    let place = Place::new();
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
    assert_eq!(work("b"), "null", "it was submitted once");
}

#[test]
fn mistakes_are_told_by_name() {
    let place = Place::new();
    let host = Host::start(&place, &["host", "counter", "--found", "--replicas", "1"]);
    wait_for("it leads", || host.leads());
    let hosts = [host];
    at(&place, &hosts, &["call", "counter", "{add: 1}"]).failed(2, "no JSON");
    at(&place, &hosts, &["call", "counter", r#"{"sub": 1}"#]).failed(1, "malformed: ");
    at(&place, &hosts, &["call", "other", "1"]).failed(1, "unknown: this host serves no `other`");
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
    // One host that is gone does not matter to a call that others can take.
    let both = format!("{free},{}", hosts[0].http);
    let said = place.run(&["service", "call", "counter", r#""read""#, "--at", &both]);
    assert_eq!(said.out.trim_end(), u64::MAX.to_string());
}
