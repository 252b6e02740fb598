//! A crate imports only from lower floors.

use crate::{Findings, Workspace, texts::Text};

/// The floors of the workspace, lowest first. A crate may depend only on crates of lower floors.
pub const FLOORS: [&[&str]; 7] = [
    &["protocol", "table", "history"],
    &["node", "roles", "world"],
    &["runtime", "sim", "sql", "testing"],
    &["quorate"],
    &["server", "tune", "cassandra", "sample", "command"],
    &["lab"],
    &["cli", "instruments", "fuzz"],
];

/// Crates below floor 0: derives, which the crates of floor 0 need at compile time.
const BELOW: [&str; 1] = ["macros"];

/// Crates whose integration tests may use a crate on a higher floor.
const TESTED_IN: [(&str, &str); 1] = [("protocol", "world")];

/// Crates that stand outside the floors.
pub const OUTSIDE: &str = "tidy";

/// Returns the floor of a crate by its short name. A crate below floor 0 is on floor -1.
pub fn floor(name: &str) -> Option<i8> {
    let floors = (-1..).zip([&BELOW[..]].into_iter().chain(FLOORS));
    floors.into_iter().find(|(_, crates)| crates.contains(&name)).map(|(floor, _)| floor)
}

/// Finds crates without a floor, and dependencies of every kind on a crate that is not on a lower floor.
/// Tests in `TESTED_IN` are exempt.
pub fn findings(workspace: &Workspace) -> Findings {
    let mut findings = Findings::new();
    for package in workspace.members() {
        let from = package.short_name();
        if package.name != format!("quorate-{from}") && package.name != "quorate" {
            findings.push(format!(
                "{from}: the crate is called {}, and must be called quorate-{from}",
                package.name
            ));
        }
        if !package.manifest_path.ends_with(format!("crates/{from}/Cargo.toml")) {
            findings.push(format!(
                "{from}: the crate lies in {}, and must lie in crates/{from}",
                package.manifest_path.display()
            ));
        }
        for edge in &package.dependencies {
            let Some(member) = workspace.members().find(|member| member.name == edge.name) else { continue };
            let to = member.short_name();
            if edge.kind.as_deref() == Some("dev") && TESTED_IN.contains(&(from, to)) {
                continue;
            }
            match (floor(from), floor(to)) {
                (_, None) => {
                    findings.push(format!("{from} imports {to}, which has no floor in tidy's FLOORS"))
                }
                (None, _) => {
                    findings.push(format!("{from} imports {to}, but {from} has no floor in tidy's FLOORS"))
                }
                (Some(above), Some(below)) if above <= below => findings.push(format!(
                    "{from} (floor {above}) imports {to} (floor {below}): only lower floors may be imported"
                )),
                _ => {}
            }
        }
        if floor(from).is_none() && from != OUTSIDE {
            findings.push(format!(
                "{from} has no floor: give {from} a floor in tidy's FLOORS and in ARCHITECTURE.md"
            ));
        }
    }
    findings
}

/// Finds sources that name a crate which only their integration tests may use. That crate is linked with
/// another copy of the crate under unit test, so their types differ.
pub fn source_findings(texts: &[Text]) -> Findings {
    let mut findings = Findings::new();
    for (from, to) in TESTED_IN {
        let sources = texts.iter().filter(|text| text.path.starts_with(format!("crates/{from}/src")));
        for text in sources.filter(|text| text.content.contains(&format!("quorate_{to}"))) {
            let path = text.path.display();
            findings.push(format!(
                "{path}: the file names quorate_{to}, which only crates/{from}/tests may name"
            ));
        }
    }
    findings
}
