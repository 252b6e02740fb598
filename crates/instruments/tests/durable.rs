//! Routers on disks: all are killed at once and restart.

use crate::command::run;

/// A short run of the measurement `quorate bench paxos --kills 100`.
#[test]
fn acknowledged_entries_survive_a_kill_of_all_routers_at_once() {
    let output = run(&["bench", "paxos", "--kills", "6", "--json"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    let figures: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert!(figures["acknowledged"].as_u64().unwrap() > 0, "{figures}");
    assert!(figures["rot"].as_str().unwrap().contains("cannot be read"), "{figures}");
}
