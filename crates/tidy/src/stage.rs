//! A simulated system is a workload with its checkers. The stage holds everything that all systems share.

use crate::{Findings, texts::Text};

/// The folder of the simulated systems.
const SYSTEMS: &str = "crates/sim/src/system/";

/// Words that only the stage may contain, each with the part of the stage that owns it.
const COMMON: [(&str, &str); 5] = [
    ("Nemesis", "the stage injects the faults; see Workload::targets and Workload::struck"),
    ("impl Environment", "the stage is the environment; implement Workload"),
    ("world.timer(", "the stage keeps the timers; see Stage::after"),
    ("world.heal(", "the stage heals the faults"),
    ("RouterSet::", "the stage owns the routers; see Stage::routers"),
];

/// Largest number of lines in the entry file of a system, which holds its `impl Workload`.
const ENTRY_LINES_MAX: usize = 200;

/// Finds systems that contain code which belongs in `stage.rs`, and entry files that are too long.
pub fn findings(texts: &[Text]) -> Findings {
    let mut findings = Findings::new();
    for text in texts.iter().filter(|text| text.path.starts_with(SYSTEMS)) {
        let path = text.path.display();
        for (common, instead) in COMMON.iter().filter(|(common, _)| text.content.contains(common)) {
            findings
                .push(format!("{path}: the file contains `{common}`, which belongs in stage.rs: {instead}"));
        }
        let lines = text.content.lines().count();
        if text.content.contains("impl Workload for") && lines > ENTRY_LINES_MAX {
            findings.push(format!(
                "{path}: the entry file of a system has {lines} lines, and may have {ENTRY_LINES_MAX} at most"
            ));
        }
    }
    findings
}
