//! A crate imports only from lower floors.

use crate::{Findings, Workspace};

/// The house, lowest floor first.
pub const FLOORS: [&[&str]; 6] = [
    &["protocol", "table", "history", "macros"],
    &["node", "tables", "world"],
    &["runtime", "sim", "sql"],
    &["quorate"],
    &["server", "lab"],
    &["cli"],
];

/// Stands beside the house.
pub const OUTSIDE: &str = "tidy";

/// The floor of a crate, by its short name.
pub fn floor(name: &str) -> Option<usize> {
    FLOORS.iter().position(|crates| crates.contains(&name))
}

/// Edges that climb or go sideways, of every kind of dependency, and crates without a floor.
pub fn findings(workspace: &Workspace) -> Findings {
    let mut findings = Findings::new();
    for package in workspace.members() {
        let from = package.short_name();
        if package.name != format!("quorate-{from}") && package.name != "quorate" {
            findings.push(format!("{from}: is called {}, not quorate-{from}", package.name));
        }
        if !package.manifest_path.ends_with(format!("crates/{from}/Cargo.toml")) {
            findings.push(format!("{from}: lies in {}, not crates/{from}", package.manifest_path.display()));
        }
        let ours = package
            .dependencies
            .iter()
            .filter_map(|edge| workspace.members().find(|member| member.name == edge.name));
        for to in ours.map(|member| member.short_name()) {
            match (floor(from), floor(to)) {
                (_, None) => findings.push(format!("{from} imports {to}, which stands on no floor")),
                (None, _) => findings.push(format!("{from} imports {to}, but stands on no floor itself")),
                (Some(above), Some(below)) if above <= below => findings.push(format!(
                    "{from} (floor {above}) imports {to} (floor {below}): only lower floors may be imported"
                )),
                _ => {}
            }
        }
        if floor(from).is_none() && from != OUTSIDE {
            findings.push(format!(
                "{from} stands on no floor: give it one in tidy's FLOORS and in ARCHITECTURE.md"
            ));
        }
    }
    findings
}
