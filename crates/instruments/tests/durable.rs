//! Routers on disks: all are killed at once and restart.

use crate::command::run;

/// A short run of the measurement `quorate bench paxos --kills 100`.
#[test]
fn nothing_acknowledged_is_lost_when_all_routers_are_killed_at_once() {
    let told = run(&["bench", "paxos", "--kills", "6", "--json"]);
    assert_eq!(told.code, Some(0), "{told:?}");
    let figures: serde_json::Value = serde_json::from_str(&told.out).unwrap();
    assert!(figures["acknowledged"].as_u64().unwrap() > 0, "{figures}");
    assert!(figures["rot"].as_str().unwrap().contains("cannot be read"), "{figures}");
}
