//! A simulated system is a workload and its checkers: what all systems have in common stands on the stage, once.

use crate::{Findings, texts::Text};

/// The folder of the systems.
const SYSTEMS: &str = "crates/sim/src/system/";

/// Things that belong to the stage, and whose they are there.
const COMMON: [(&str, &str); 5] = [
    ("Nemesis", "Stage strikes; see Workload::targets and Workload::struck"),
    ("impl Environment", "Stage is the environment; implement Workload"),
    ("world.timer(", "Stage keeps timers; see Stage::after"),
    ("world.heal(", "Stage heals"),
    ("RouterSet::", "Stage owns the routers; see Stage::routers"),
];

/// The lines that the entry file of a system may have: the one with its `impl Workload`.
const ENTRY_LINES_MAX: usize = 200;

/// Systems with a piece of the stage of their own, and entry files that hold more than an entry.
pub fn findings(texts: &[Text]) -> Findings {
    let mut findings = Findings::new();
    for text in texts.iter().filter(|text| text.path.starts_with(SYSTEMS)) {
        let path = text.path.display();
        for (common, instead) in COMMON.iter().filter(|(common, _)| text.content.contains(common)) {
            findings.push(format!("{path}: has {common} of its own: {instead}"));
        }
        let lines = text.content.lines().count();
        if text.content.contains("impl Workload for") && lines > ENTRY_LINES_MAX {
            findings.push(format!(
                "{path}: has {lines} lines, and the entry of a system {ENTRY_LINES_MAX} at most"
            ));
        }
    }
    findings
}
