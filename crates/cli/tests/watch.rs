//! The last minute of clients of cells, as `quorate watch` shows it.

use quorate_testing::wait_for;
use serde_json::Value as Json;

use crate::{
    cells::{Redis, doors},
    cluster::turn,
    command::LocalCluster,
};

#[test]
fn stale_reads_of_the_last_minute_are_reported() {
    let _turn = turn();
    let place = LocalCluster::new();
    let far = "0-1=60,0-2=60,1-2=60";
    let up = ["up", "--detach", "--memory", "--port", "0", "--storage", "0"];
    let up = [&up[..], &["--cells", "3", "--sites", "3", "--distance", far]].concat();
    assert_eq!(place.run(&up).code, Some(0));
    let doors = doors(&place);
    let [mut near, mut away] = [0, 1].map(|cell| Redis::connect(&doors[cell]).unwrap());
    let watch = || {
        let said = place.run(&["watch", "--once", "--json"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        serde_json::from_str::<Json>(&said.out).unwrap()
    };
    let nothing = watch();
    assert_eq!((&nothing["cells"], &nothing["operations"]), (&3.into(), &0.into()), "{nothing}");

    near.check("QUORATE CREATE geo COPIES 0:1,1:1,2:1", "OK");
    for client in [&mut near, &mut away] {
        client.check("QUORATE MAP geo", "OK");
    }
    // All writes have the same value, and the instrument still distinguishes them.
    for _ in 0..10 {
        near.check("SET key value", "OK");
        away.check("GET key", "value");
    }
    let fresh = watch();
    assert_eq!((&fresh["operations"], &fresh["keys"]), (&20.into(), &1.into()), "{fresh}");
    assert_eq!((&fresh["inconsistent"], &fresh["failed"]), (&0.0.into(), &0.into()), "{fresh}");
    assert!(fresh["writes_p50_us"].as_f64() > Some(60_000.0), "from one site to another: {fresh}");

    for client in [&mut near, &mut away] {
        client.check("QUORATE LEVEL one", "OK");
    }
    for number in 0..10 {
        near.check(&format!("SET key {number}"), "OK");
        let read = |away: &mut Redis| away.ask(&["GET", "key"]).unwrap();
        assert_ne!(read(&mut away), number.to_string(), "the write is still on its way");
        wait_for("the write arrives", || read(&mut away) == number.to_string());
    }
    near.check("INCR visits", "1");
    let stale = watch();
    assert!(stale["operations"].as_u64() >= Some(50) && stale["left_out"] == 1, "{stale}");
    assert!(stale["inconsistent"].as_f64() > Some(0.1), "{stale}");
    assert!(stale["gamma_p99_ms"].as_f64() > Some(0.0), "{stale}");

    let table = place.run(&["watch", "--once"]);
    assert!(
        table.code == Some(0) && table.out.starts_with("LAST ") && table.out.lines().count() == 2,
        "{table:?}"
    );
    place.run(&["watch", "--every", "0"]).failed(2, "--every");
}

#[test]
fn a_watch_without_cells_is_refused() {
    let _turn = turn();
    let place = LocalCluster::new();
    place.run(&["watch", "--once"]).failed(1, "no cluster");
    place.run(&["watch", "--once", "--cells", "127.0.0.1:1"]).failed(1, "127.0.0.1:1 does not report");
}
