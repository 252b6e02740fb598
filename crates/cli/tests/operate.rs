//! Decisions of an operator: adding, removing and giving up routers, and replacing storage processes or
//! declaring them lost.

use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use quorate_testing::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    cluster::{is_mended, pid, process, status, turn},
    command::{CommandOutput, LocalCluster, freeze},
};

#[test]
fn an_operator_reforms_a_domain_that_lost_a_majority_of_routers() {
    let _turn = turn();
    let place = LocalCluster::new();
    up(&place);
    done(&place, &["sql", "create table log (n int) with (partition_by = 'hash(n)')"]);
    done(&place, &["sql", "insert into log values (1), (2), (3)"]);
    place.run(&["router", "reform", "--yes"]).failed(1, "which is a majority");

    // The leader and one more router freeze, so the other processes consider them lost.
    let routers = status(&place).into_iter().filter(|row| row["role"] == "router");
    let (mut frozen, mut rest): (Vec<Value>, Vec<Value>) = routers.partition(|row| row["state"] == "leading");
    frozen.push(rest.pop().expect("two routers follow"));
    let survivor = rest[0]["name"].as_str().expect("the router has a name").to_owned();
    let pids: Vec<Pid> = frozen.iter().map(pid).collect();
    for pid in &pids {
        freeze(*pid);
    }
    let said = place.run(&["status"]);
    said.failed(1, "only 1 of 3 answer");
    assert!(said.err.contains(&format!("would go on from {survivor}")), "{said:?}");
    let output = place.run(&["status", "--json"]);
    let last: Value = serde_json::from_str(output.out.lines().last().unwrap()).unwrap();
    assert_eq!(
        (output.code, &last["quorum"], &last["survivor"]),
        (Some(1), &"lost".into(), &survivor.as_str().into())
    );
    assert_eq!(last["silent"].as_array().map(Vec::len), Some(2));

    place.run(&["router", "reform"]).failed(2, "give --yes");
    let reformed = done(&place, &["router", "reform", "--yes", "--json"]);
    let reformed: Value = serde_json::from_str(&reformed.out).unwrap();
    assert_eq!((&reformed["generation"], &reformed["reform"]["missing"]), (&1.into(), &0.into()));
    wait_for("writes succeed again", || place.run(&["sql", "insert into log values (4)"]).code == Some(0));
    assert!(count(&place) >= 4, "what was acknowledged is there");

    // The old routers continue, are refused, and come back as new processes.
    for pid in &pids {
        kill_process(*pid, Signal::CONT).unwrap();
    }
    wait_for("the old routers come back as new ones", || {
        let new = |old: &Value| {
            let now = process(&place, old["name"].as_str().unwrap());
            now["incarnation"].is_string() && now["incarnation"] != old["incarnation"]
        };
        frozen.iter().all(new) && is_mended(&place)
    });
    for old in &frozen {
        let log = std::fs::read_to_string(old["log"].as_str().unwrap()).unwrap();
        assert!(log.contains("went on as generation 1 without this router"), "{log}");
    }
    assert!(count(&place) >= 4, "nothing is lost");
    done(&place, &["sql", "insert into log values (5)"]);
}

#[test]
fn routers_gone_for_good_are_distinguished_from_silent_routers() {
    let _turn = turn();
    let place = LocalCluster::new();
    up(&place);
    done(&place, &["sql", "create table log (n int) with (partition_by = 'hash(n)')"]);
    done(&place, &["sql", "insert into log values (1), (2), (3)"]);
    let pids: Vec<Pid> = ["router-1", "router-2"].iter().map(|name| pid(&process(&place, name))).collect();
    for pid in pids {
        kill_process(pid, Signal::KILL).unwrap();
    }
    // The killed routers are started again, but no router can accept them.
    wait_for("the status shows which routers are gone", || {
        place.run(&["status"]).err.contains("gone for good: router-1, router-2")
    });
    place.run(&["status"]).failed(1, "waiting will not help");
    let said = done(&place, &["router", "reform", "--yes"]);
    assert!(said.out.contains("generation 1 of the domain began with router-3"), "{said:?}");
    wait_for("all is mended", || is_mended(&place));
    assert_eq!(count(&place), 3);
}

#[test]
fn a_domain_whose_routers_all_died_goes_on_from_its_members() {
    let _turn = turn();
    let place = LocalCluster::new();
    up(&place);
    done(&place, &["sql", "create table log (n int) with (partition_by = 'hash(n)')"]);
    let routers = ["router-1", "router-2", "router-3"];
    let mut written = 0;
    for generation in 1..=2 {
        for _ in 0..20 {
            written += 1;
            done(&place, &["sql", &format!("insert into log values ({written})")]);
        }
        // In the second round, a storage process dies as well.
        let dying = routers.into_iter().chain((generation == 2).then_some("storage-2"));
        let pids: Vec<Pid> = dying.map(|name| pid(&process(&place, name))).collect();
        for pid in pids {
            kill_process(pid, Signal::KILL).unwrap();
        }
        // New routers start, but can do nothing by themselves.
        wait_for("the status says what can be done", || {
            let said = place.run(&["status"]);
            said.code == Some(1) && said.err.contains("`quorate router reform` would go on from the members")
        });
        for name in ["router-1", "gateway-1"] {
            wait_for("the health page tells the reason", || {
                // A process that is starting has no address yet.
                let Some(http) = process(&place, name)["bound"]["http"].as_str().map(str::to_owned) else {
                    return false;
                };
                let agent = ureq::Agent::config_builder().http_status_as_error(false).build();
                let agent: ureq::Agent = agent.into();
                let mut health = agent.get(format!("http://{http}/health")).call().unwrap();
                let said = health.body_mut().read_to_string().unwrap();
                health.status().as_u16() == 503 && said.contains("quorate router reform")
            });
        }
        place.run(&["router", "reform"]).failed(2, "give --yes");
        let output = place.run(&["router", "reform", "--yes", "--json"]);
        assert_eq!(output.code, Some(0), "{output:?}");
        assert!(output.err.contains("delivered to none of these members are lost"), "{output:?}");
        let reformed: Value = serde_json::from_str(&output.out).unwrap();
        assert_eq!(reformed["generation"], generation, "{reformed}");
        assert_eq!(reformed["reform"]["from_members"], true, "{reformed}");
        let cut_off = reformed["reform"]["fenced"].as_array().map(Vec::len);
        assert_eq!(cut_off, Some(generation - 1), "only dead processes were cut off: {reformed}");
        wait_for("writes succeed again", || {
            let insert = format!("insert into log values ({})", written + 1);
            place.run(&["sql", &insert]).code == Some(0)
        });
        written += 1;
        wait_for("all is mended", || is_mended(&place));
        assert!(count(&place) >= written, "what was acknowledged is there");
    }
    place.run(&["router", "reform", "--yes"]).failed(1, "which is a majority");
}

/// An operator removes a router at the moment when another router freezes. Two of three routers answer, but
/// the change needs both remaining routers. The next generation drops the change.
#[test]
fn a_change_of_routers_that_cannot_be_finished_is_given_up_with_the_generation() {
    let _turn = turn();
    let place = LocalCluster::new();
    up(&place);
    done(&place, &["sql", "create table log (n int) with (partition_by = 'hash(n)')"]);
    done(&place, &["sql", "insert into log values (1), (2), (3)"]);
    let (leader, frozen) = (0..20)
        .find_map(|_| half_changed(&place))
        .expect("a change of routers is caught half-way in one of 20 attempts");

    let said = place.run(&["status"]);
    said.failed(1, "only 1 of 2 answer");
    assert!(said.err.contains("a change of the routers is under way"), "{said:?}");
    let reformed = done(&place, &["router", "reform", "--yes"]);
    assert!(
        reformed.out.contains(&format!("generation 1 of the domain began with {leader}")),
        "{reformed:?}"
    );
    wait_for("writes succeed again", || place.run(&["sql", "insert into log values (4)"]).code == Some(0));
    kill_process(frozen, Signal::CONT).unwrap();
    wait_for("the others come back as new ones", || is_mended(&place));
    assert!(count(&place) >= 4, "what was acknowledged is there");
}

/// Freezes one following router, and makes the leader remove the other follower before the leader notices. If
/// the change began, returns the leader's name and the frozen process. Otherwise everything is as before.
fn half_changed(place: &LocalCluster) -> Option<(String, Pid)> {
    wait_for("the cluster is whole", || is_mended(place));
    let routers = status(place).into_iter().filter(|row| row["role"] == "router");
    let (leads, follow): (Vec<Value>, Vec<Value>) = routers.partition(|row| row["state"] == "leading");
    let http = leads[0]["bound"]["http"].as_str().unwrap().to_owned();
    let report = || -> Value {
        let said = ureq::get(format!("http://{http}/status")).call().unwrap().body_mut().read_to_string();
        serde_json::from_str(&said.unwrap()).unwrap()
    };
    let out = report()["routers"].as_array().unwrap().iter().find_map(|router| {
        let router = router.as_str().unwrap();
        router.starts_with(&format!("{}.", follow[1]["node"])).then(|| router.to_owned())
    });
    let operation = json!({ "remove_router": { "process": out.unwrap() } }).to_string();
    let frozen = pid(&follow[0]);
    freeze(frozen);
    // The request waits until the change is done. In this test the change should stay open.
    let operate = format!("http://{http}/operate");
    let asked = thread::spawn(move || ureq::post(operate).content_type("application/json").send(operation));
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        // The frozen router may still have voted. Only a change that stays open cannot be finished.
        let open = || !report()["routers_open"].is_null();
        if open()
            && (0..20).all(|_| {
                thread::sleep(Duration::from_millis(20));
                open()
            })
        {
            return Some((leads[0]["name"].as_str().unwrap().to_owned(), frozen));
        }
        thread::sleep(Duration::from_millis(20));
    }
    kill_process(frozen, Signal::CONT).unwrap();
    let _refused_or_done = asked.join();
    None
}

/// A storage process sleeps until another process has taken its place. It returns in the same
/// operating-system process, and keeps its rows until it knows that other processes have them.
#[test]
fn a_storage_process_that_slept_for_too_long_is_back_by_itself() {
    let _turn = turn();
    let place = LocalCluster::new();
    up(&place);
    done(&place, &["sql", "create table log (n int) with (partition_by = 'hash(n)')"]);
    done(&place, &["sql", "insert into log values (1), (2), (3)"]);
    let in_state =
        |state: &'static str| named(&place, |row| row["role"] == "storage" && row["state"] == state);
    let (sleeper, standby) = (in_state("serving"), in_state("standby"));
    let before = process(&place, &sleeper);
    freeze(pid(&before));
    wait_for("the standby takes its place", || process(&place, &standby)["state"] == "serving");
    kill_process(pid(&before), Signal::CONT).unwrap();
    wait_for("the storage process is a standby", || {
        process(&place, &sleeper)["state"] == "standby" && is_mended(&place)
    });
    let now = process(&place, &sleeper);
    assert_ne!(now["incarnation"], before["incarnation"]);
    assert_eq!((pid(&now), &now["bound"]), (pid(&before), &before["bound"]));
    let log = std::fs::read_to_string(now["log"].as_str().unwrap()).unwrap();
    assert!(log.contains("back as a new process, with the rows of the former process"), "{log}");
    assert_eq!(count(&place), 3);
}

#[test]
fn an_operator_moves_routers_and_ranges() {
    let _turn = turn();
    let place = LocalCluster::new();
    up(&place);
    done(&place, &["sql", "create table log (n int) with (partition_by = 'hash(n)')"]);
    let rows: Vec<String> = (1..=1000).map(|n| format!("({n})")).collect();
    done(&place, &["sql", &format!("insert into log values {}", rows.join(", "))]);

    let listed = done(&place, &["table", "list", "--json"]);
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    assert_eq!(
        (&listed["table"], &listed["rows"], &listed["ranges"]),
        (&"log".into(), &1000.into(), &4.into())
    );
    assert!(listed["bytes"].as_u64() > Some(1000) && listed["replicas"] == 3, "{listed}");

    place.run(&["storage", "lost", "storage-1", "--yes"]).failed(1, "storage-1 is not unreachable");
    place.run(&["storage", "lost", "storage-1"]).failed(2, "give --yes");
    place.run(&["storage", "lost", "nobody", "--yes"]).failed(1, "no storage process is called nobody");
    place.run(&["router", "remove", "nobody"]).failed(1, "nobody is not a voting router");

    let holder = named(&place, |row| row["role"] == "storage" && row["state"] == "serving");
    done(&place, &["table", "replace", &holder]);
    wait_for("a standby has taken the place", || {
        process(&place, &holder)["state"] == "standby" && is_mended(&place)
    });
    assert_eq!(count(&place), 1000);
    place.run(&["table", "replace", &holder]).failed(1, "is a standby");

    // A removed router comes back as a new process, because the domain wants three.
    let leader = named(&place, |row| row["state"] == "leading");
    let before = process(&place, &leader);
    done(&place, &["router", "remove", &leader]);
    wait_for("the removed router comes back as another process", || {
        let now = process(&place, &leader);
        now["incarnation"].is_string() && now["incarnation"] != before["incarnation"] && is_mended(&place)
    });
    assert_eq!(count(&place), 1000);
    let address = process(&place, &leader)["bound"]["listen"].as_str().unwrap().to_owned();
    place.run(&["router", "add", &address]).failed(1, "votes already");
    place.run(&["router", "add", "127.0.0.1:1"]).failed(1, "no router of this domain answers");
}

/// Two operators each remove a different one of three routers at the same moment. One command succeeds. The
/// other command is refused, because too few routers would be left.
#[test]
fn two_operators_whose_commands_conflict_each_get_their_own_answer() {
    let _turn = turn();
    let place = LocalCluster::new();
    up(&place);
    let routers = status(&place).into_iter().filter(|row| row["role"] == "router");
    let (leads, follow): (Vec<Value>, Vec<Value>) = routers.partition(|row| row["state"] == "leading");
    let http = leads[0]["bound"]["http"].as_str().unwrap();
    let mut before = voters(http);
    let both = Barrier::new(2);
    let remove = |router: &Value| {
        let out = before.iter().find(|voter| voter.starts_with(&format!("{}.", router["node"]))).unwrap();
        let operation = json!({ "remove_router": { "process": out } }).to_string();
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build();
        both.wait();
        let asked = ureq::Agent::from(agent).post(format!("http://{http}/operate"));
        let mut said = asked.content_type("application/json").send(operation).unwrap();
        (out.clone(), said.status().is_success(), said.body_mut().read_to_string().unwrap())
    };
    let answers = thread::scope(|scope| {
        let asked: Vec<_> = follow.iter().map(|router| scope.spawn(move || remove(router))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<_>>()
    });
    let (done, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(_, done, _)| *done);
    assert!(done.len() == 1 && refused.len() == 1, "{done:?} {refused:?}");
    let (out, _, said) = &done[0];
    let after: Value = serde_json::from_str(said).unwrap();
    assert!(
        !after["routers"].as_array().unwrap().contains(&json!(out)),
        "the change that was answered has come about: {after}"
    );
    let (stays, _, said) = &refused[0];
    assert!(said.contains("too few routers that are well would be left"), "{said}");
    assert!(voters(http).contains(stays), "the refused change did not come about");
    before.retain(|voter| voter != out);
    wait_for("another router takes the place", || {
        let now = voters(http);
        now.len() == 3 && before.iter().all(|voter| now.contains(voter)) && is_mended(&place)
    });
}

/// Returns the voting routers, as a router reports them.
fn voters(http: &str) -> Vec<String> {
    let said = ureq::get(format!("http://{http}/status")).call().unwrap().body_mut().read_to_string();
    let said: Value = serde_json::from_str(&said.unwrap()).unwrap();
    said["routers"].as_array().unwrap().iter().map(|voter| voter.as_str().unwrap().to_owned()).collect()
}

fn up(place: &LocalCluster) {
    done(place, &["up", "--detach", "--memory", "--empty", "--port", "0"]);
    wait_for("the cluster is whole", || is_mended(place));
}

#[track_caller]
fn done(place: &LocalCluster, words: &[&str]) -> CommandOutput {
    let said = place.run(words);
    assert_eq!(said.code, Some(0), "{words:?}: {said:?}");
    said
}

#[track_caller]
fn count(place: &LocalCluster) -> u64 {
    let said = done(place, &["sql", "--csv", "select count(*) from log"]);
    said.out.trim_start_matches("count\n").trim().parse().unwrap()
}

fn named(place: &LocalCluster, is: impl Fn(&Value) -> bool) -> String {
    let row = status(place).into_iter().find(|row| is(row)).expect("a process fits");
    row["name"].as_str().unwrap().to_owned()
}
