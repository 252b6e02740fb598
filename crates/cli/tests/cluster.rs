//! A cluster of real processes, and the failures that it survives.
//!
//! Each test has its own cluster of eleven processes, so the tests run one at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use quorate_testing::wait_for;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use crate::command::{CommandOutput, LocalCluster, freeze};

const LAX: &str = "select carrier, count(*), avg(dep_delay) from flights where dest = 'LAX' group by carrier order by 2 desc";

/// The answer of PostgreSQL 15 to this query.
const LAX_ANSWER: &str = "carrier,count,avg
UA,5823,10.7577381981670413
AA,3582,9.1681192015743604
VX,2580,10.5618898867629832
DL,2501,5.6685393258426966
B6,1688,8.9946524064171123
";

static TURN: Mutex<()> = Mutex::new(());

pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_cluster_survives_killed_processes() {
    let _turn = turn();
    let place = LocalCluster::new();
    let up = place.run(&["up", "--detach", "--memory", "--port", "0"]);
    assert_eq!(up.code, Some(0), "{up:?}");
    assert!(up.out.contains("psql -h 127.0.0.1 -p ") && up.out.contains("gone"), "{up:?}");
    check_answers(&place);
    place.run(&["up", "--port", "0"]).failed(1, "a cluster runs here already");
    place.run(&["kill", "router-9"]).failed(1, "router-1, router-2");
    mistakes_are_explained(&place);
    statements_come_from_anywhere(&place);
    status_fits(&place);
    what_is_too_long_is_refused_at_the_door(&place);

    for victim in ["super-1", "gateway-1", "storage-1", "router-1", "storage-2"] {
        let before = process(&place, victim);
        let killed = place.run(&["kill", victim]);
        assert_eq!(killed.code, Some(0), "{killed:?}");
        wait_for(&format!("{victim} is there again, as another"), || {
            let after = process(&place, victim);
            after["starts"].as_u64() > before["starts"].as_u64()
                && after["incarnation"].is_string()
                && after["incarnation"] != before["incarnation"]
                && is_mended(&place)
        });
        if victim == "gateway-1" {
            // Clients find the gateway at its old address. The gateway does not wait for the removal of its
            // earlier life.
            assert_eq!(process(&place, victim)["bound"]["sql"], before["bound"]["sql"]);
            assert_eq!(process(&place, victim)["bound"]["listen"], before["bound"]["listen"]);
        }
        check_answers(&place);
    }

    let pids = pids(&place);
    assert_eq!(pids.len(), 11);
    place.run(&["down"]).failed(2, "--yes");
    assert_eq!(place.run(&["down", "--yes"]).code, Some(0));
    assert!(!pids.iter().any(|pid| lives(*pid)), "processes outlive their cluster");
}

fn check_answers(place: &LocalCluster) {
    wait_for("the gateway answers", || place.run(&["sql", "select 1"]).code == Some(0));
    assert_eq!(place.run(&["sql", "--csv", "select count(*) from flights"]).out, "count\n336776\n");
    assert_eq!(place.run(&["sql", "--csv", LAX]).out, LAX_ANSWER);
    let row = place.run(&[
        "sql",
        "--json",
        "select count(*) as n, min(tailnum) as t from flights where month > 12",
    ]);
    assert_eq!(row.out, "{\"n\":0,\"t\":null}\n");
}

fn mistakes_are_explained(place: &LocalCluster) {
    place.run(&["sql", "select * from nowhere"]).failed(1, "SQLSTATE 42P01");
    let column = place.run(&["sql", "select dep_dely from flights"]);
    column.failed(1, "SQLSTATE 42703");
    assert!(column.err.contains("\n  select dep_dely from flights\n         ^"), "{column:?}");
    place.run(&["sql", "select 1 / 0"]).failed(1, "SQLSTATE 22012");
    place.run(&["sql", "selec 1"]).failed(1, "SQLSTATE 42601");
    place.run(&["kill"]).failed(2, "router-1, router-2");
    let restart = place.run(&["restart"]);
    restart.failed(2, "--rolling");
    assert!(restart.err.contains("storage-4"), "{restart:?}");
}

/// Tests that answers before a failure are printed, and that statements come from any source that a shell
/// offers.
fn statements_come_from_anywhere(place: &LocalCluster) {
    let some = "create table shown (k int primary key, v int); insert into shown values (1, 1), (2, 2); -- ; no statement\n";
    let said = place.run(&["sql", some]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "done\ndone, 2 rows touched\n"), "{said:?}");
    let some =
        "update shown set v = 9 where k > 0; select k as one from shown where k = 1; select 1 / 0; select 3";
    let said = place.run(&["sql", some]);
    said.failed(1, "SQLSTATE 22012");
    assert_eq!(said.out, "done, 2 rows touched\n one \n-----\n   1 \n(1 row)\n", "{said:?}");
    // The statements of one message are one transaction, as in PostgreSQL.
    let said = place.run(&["sql", "--csv", "select count(*) as n from shown where v = 9"]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "n\n0\n"), "{said:?}");
    let said = place.run(&["sql", "--csv", "select k from shown where k = 2; select nothing"]);
    assert_eq!((said.code, said.out.as_str()), (Some(1), "k\n2\n"), "{said:?}");

    let file = place.data_dir().with_extension("sql");
    std::fs::write(&file, "update shown set v = 0 where k = 7;\ndrop table shown;\n").unwrap();
    let said = place.run(&["sql", "-f", file.to_str().unwrap()]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "done, 0 rows touched\ndone\n"), "{said:?}");
    for words in [&["sql", "--csv"][..], &["sql", "--csv", "-f", "-"]] {
        let input = std::fs::File::open(&file).and_then(|_| {
            std::fs::write(&file, "select 7 as seven;")?;
            std::fs::File::open(&file)
        });
        let said = CommandOutput::of(place.command(words).stdin(input.unwrap()).output().unwrap());
        assert_eq!((said.code, said.out.as_str()), (Some(0), "seven\n7\n"), "{said:?}");
    }
    place.run(&["sql", "-f", "nowhere.sql"]).failed(2, "nowhere.sql");
}

/// Tests that the status table fits a screen, and that each process has a page.
fn status_fits(place: &LocalCluster) {
    let said = place.run(&["status"]);
    for line in said.out.lines() {
        assert!(line.chars().count() <= 100 && line == line.trim_end(), "{line:?}");
    }
    let few = said.out.lines().find(|line| line.starts_with("gateway-1")).unwrap();
    assert_eq!(few.split_whitespace().nth(3), Some("-"), "{few}");
    let gateway = process(place, "gateway-1");
    let http = format!("http://{}", gateway["bound"]["http"].as_str().unwrap());
    let page = ureq::get(&http).call().unwrap().into_body().read_to_string().unwrap();
    assert!(page.contains("gateway-1 (gateway)") && page.contains("href=\"/metrics\""), "{page}");
    let foreign = ureq::get(format!("{http}/status")).header("Host", "evil.example").call();
    assert!(matches!(foreign, Err(ureq::Error::StatusCode(421))), "{foreign:?}");
}

fn what_is_too_long_is_refused_at_the_door(place: &LocalCluster) {
    let gateway = process(place, "gateway-1");
    let address = gateway["bound"]["sql"].as_str().unwrap().parse::<std::net::SocketAddr>().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = format!("host={} port={} user=quorate", address.ip(), address.port());
        let (client, connection) = tokio_postgres::connect(&options, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("create table long (k int primary key, v text)").await.unwrap();
        let long = "x".repeat(20 << 20);
        let error = client.execute("insert into long values (1, $1)", &[&long]).await.unwrap_err();
        assert_eq!(error.code().map(|code| code.code()), Some("54000"), "{error:?}");
        let fits = &long[..15 << 20];
        assert_eq!(client.execute("insert into long values (2, $1)", &[&fits]).await.unwrap(), 1);
        // Three rows of 15 MiB are more than one message can carry.
        for k in [3, 4] {
            client.execute("insert into long values ($1, $2)", &[&k, &fits]).await.unwrap();
        }
        let rows = client.query("select k, v from long order by k", &[]).await.unwrap();
        let lengths: Vec<usize> = rows.iter().map(|row| row.get::<_, &str>(1).len()).collect();
        assert_eq!(lengths, [15 << 20; 3]);
        // An update cannot create a row too large to be moved, either.
        let twice = "update long set v = v || v where k = 2";
        assert_eq!(client.execute(twice, &[]).await.unwrap(), 1);
        let error = client.execute(twice, &[]).await.unwrap_err();
        assert_eq!(error.code().map(|code| code.code()), Some("54000"), "{error:?}");
        let length = client.query_one("select length(v) from long where k = 2", &[]).await.unwrap();
        assert_eq!(length.get::<_, i32>(0), 30 << 20);
        client.batch_execute("drop table long").await.unwrap();
    });
    assert_eq!(process(place, "gateway-1")["incarnation"], gateway["incarnation"], "nothing broke");
}

#[test]
fn no_orphans_survive_the_supervisor() {
    let _turn = turn();
    let place = LocalCluster::new();
    let mut up = place.start(&["up", "--empty", "--port", "0"]);
    wait_for("all processes run", || pids(&place).len() == 11);
    let pids = pids(&place);
    up.kill().unwrap();
    up.wait().unwrap();
    wait_for("the processes end", || !pids.iter().any(|pid| lives(*pid)));
    place.run(&["status"]).failed(1, "no cluster runs here");

    // The next cluster can use the directory again.
    assert_eq!(place.run(&["up", "--detach", "--empty", "--port", "0"]).code, Some(0));
}

#[test]
fn an_interrupt_ends_the_cluster_with_exit_code_0() {
    let _turn = turn();
    let place = LocalCluster::new();
    let mut up = place.start(&["up", "--empty", "--port", "0"]);
    wait_for("it answers", || place.run(&["sql", "select 1"]).code == Some(0));
    let pids = pids(&place);
    kill_process(Pid::from_child(&up), Signal::INT).unwrap();
    assert_eq!(up.wait().unwrap().code(), Some(0));
    assert!(!pids.iter().any(|pid| lives(*pid)), "processes outlive their cluster");
}

#[test]
fn a_write_of_open_outcome_is_applied_once() {
    let _turn = turn();
    let place = LocalCluster::new();
    assert_eq!(place.run(&["up", "--detach", "--memory", "--empty", "--port", "0"]).code, Some(0));
    let create = place.run(&["sql", "create table log (n int) with (partition_by = 'hash(n)')"]);
    assert_eq!(create.code, Some(0), "{create:?}");

    // Two routers fall silent, first without and then with the leader. The write is sent, and no slot is
    // chosen.
    for (n, keeps_leader) in [(1, true), (2, false)] {
        wait_for("one router leads", || is_mended(&place));
        let routers = status(&place).into_iter().filter(|row| row["role"] == "router");
        let (leader, mut stopped): (Vec<Value>, Vec<Value>) =
            routers.partition(|router| router["state"] == "leading");
        if !keeps_leader {
            stopped.truncate(1);
            stopped.extend(leader);
        }
        let stopped: Vec<Pid> = stopped.iter().map(pid).collect();
        assert_eq!(stopped.len(), 2);
        for router in &stopped {
            freeze(*router);
        }
        let insert = format!("insert into log values ({n})");
        let open = place.run(&["sql", &format!("set statement_timeout = 1000; {insert}")]);
        for router in &stopped {
            kill_process(*router, Signal::CONT).unwrap();
        }
        open.failed(1, "SQLSTATE 40003");
        let (_, id) = open.err.split_once("Request id: ").expect("the error names the request id");
        let (id, _) = id.split_once('.').expect("a full stop follows the request id");

        let again = format!("set quorate.request_id = '{id}'; {insert}");
        wait_for("the statement succeeds when it is sent again", || {
            place.run(&["sql", &again]).code == Some(0)
        });
        let twice = place.run(&["sql", &again]);
        assert!(twice.code == Some(0) && twice.out.ends_with("done, 1 row touched\n"), "{twice:?}");
        let count = place.run(&["sql", "--csv", &format!("select count(*) from log where n = {n}")]);
        assert_eq!(count.out, "count\n1\n");
    }
}

/// Returns the rows of `quorate status --json`, or none if no cluster runs.
pub(crate) fn status(place: &LocalCluster) -> Vec<Value> {
    let said = place.run(&["status", "--json"]);
    said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
pub(crate) fn process(place: &LocalCluster, name: &str) -> Value {
    status(place).into_iter().find(|row| row["name"] == name).unwrap()
}

pub(crate) fn pid(process: &Value) -> Pid {
    let number = process["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    number.and_then(Pid::from_raw).expect("a process has an id")
}

pub(crate) fn pids(place: &LocalCluster) -> Vec<i32> {
    status(place)
        .iter()
        .filter_map(|row| row["pid"].as_i64())
        .map(|pid| i32::try_from(pid).unwrap())
        .collect()
}

/// Whether every process answers, one router leads, and four storage processes hold rows.
pub(crate) fn is_mended(place: &LocalCluster) -> bool {
    let rows = status(place);
    let count = |state: &str| rows.iter().filter(|row| row["state"] == state).count();
    let serving = rows.iter().filter(|row| row["role"] == "storage" && row["state"] == "serving").count();
    rows.len() == 11 && count("leading") == 1 && serving >= 4 && count("joining") + count("silent") == 0
}

pub(crate) fn lives(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid).is_ok())
}
