//! Pure crates carry the purity rules, and `unsafe` needs a written argument.
//!
//! Cargo lets a crate inherit all lints of the workspace or write its own lints. A crate cannot inherit some
//! lints and change others. So a crate that may hold `unsafe` repeats the workspace's table with two lines
//! changed. This rule keeps the other lines equal.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use toml::{Table, Value};

use crate::{Findings, Workspace, floors::FLOORS};

/// Crates that may hold `unsafe` blocks, because they contain scan kernels and system calls. Each block
/// states its safety argument.
pub const MAY_BE_UNSAFE: [&str; 2] = ["table", "runtime"];

/// Whether a crate is on floor 0 or 1. Such crates have no clock, thread, socket, disk, randomness or hash
/// order of their own.
pub fn is_pure(name: &str) -> bool {
    FLOORS[..2].iter().any(|crates| crates.contains(&name))
}

/// Finds crates whose lints differ from the workspace's.
pub fn findings(workspace: &Workspace) -> Result<Findings> {
    let root = &workspace.workspace_root;
    let house = manifest(&root.join("Cargo.toml"))?;
    let house = table(&house, &["workspace", "lints"])
        .context("Cargo.toml of the workspace has no table workspace.lints")?;
    let purity = fs::read_to_string(root.join("pure.clippy.toml"))?;
    let mut findings = house_findings(house);
    for package in workspace.members() {
        let name = package.short_name();
        let crate_manifest = manifest(&package.manifest_path)?;
        let own = table(&crate_manifest, &["lints"]).cloned().unwrap_or_default();
        findings.extend(crate_findings(name, &own, house));
        if is_pure(name) {
            let rules = package.manifest_path.with_file_name("clippy.toml");
            findings.extend(purity_findings(name, fs::read_to_string(rules).ok().as_deref(), &purity));
        }
    }
    Ok(findings)
}

/// Finds lints of the workspace that are missing or too weak.
pub fn house_findings(house: &Table) -> Findings {
    let wanted = [("rust", "unsafe_code", "forbid"), ("clippy", "iter_over_hash_type", "deny")];
    let missing = wanted.into_iter().filter(|(tool, lint, level)| {
        house.get(*tool).and_then(|tool| tool.get(*lint)).and_then(Value::as_str) != Some(level)
    });
    missing.map(|(tool, lint, level)| format!("Cargo.toml: {tool} lint {lint} must be {level}")).collect()
}

/// Checks that a crate's `[lints]` are the workspace's, or the workspace's with `unsafe` allowed block by
/// block.
pub fn crate_findings(name: &str, own: &Table, house: &Table) -> Findings {
    if MAY_BE_UNSAFE.contains(&name) {
        let mut expected = house.clone();
        set(&mut expected, "rust", "unsafe_code", "deny");
        set(&mut expected, "clippy", "undocumented_unsafe_blocks", "deny");
        if *own != expected {
            return vec![format!(
                "{name}: its lints must be the workspace's with rust.unsafe_code and \
                 clippy.undocumented_unsafe_blocks = \"deny\""
            )];
        }
    } else if own.get("workspace") != Some(&Value::Boolean(true)) {
        return vec![format!(
            "{name}: the crate may hold no `unsafe`, so it must have `[lints] workspace = true`"
        )];
    }
    Findings::new()
}

/// Finds pure crates whose `clippy.toml` differs from `pure.clippy.toml`.
pub fn purity_findings(name: &str, rules: Option<&str>, purity: &str) -> Findings {
    match rules {
        None => {
            vec![format!(
                "{name}: the crate is pure, so crates/{name}/clippy.toml must link to ../../pure.clippy.toml"
            )]
        }
        Some(rules) if rules != purity => {
            vec![format!("{name}: the crate is pure, and its clippy.toml is not pure.clippy.toml")]
        }
        Some(_) => Findings::new(),
    }
}

fn set(lints: &mut Table, tool: &str, lint: &str, level: &str) {
    let tool = lints.entry(tool).or_insert_with(|| Value::Table(Table::new()));
    if let Some(tool) = tool.as_table_mut() {
        tool.insert(lint.into(), Value::String(level.into()));
    }
}

fn manifest(path: &Path) -> Result<Table> {
    fs::read_to_string(path)?.parse().with_context(|| path.display().to_string())
}

fn table<'a>(manifest: &'a Table, path: &[&str]) -> Option<&'a Table> {
    path.iter().try_fold(manifest, |table, key| table.get(*key)?.as_table())
}
