//! Dependencies come from the registry, under licences that `deny.toml` allows.

use anyhow::{Context, Result};
use spdx::{Expression, LicenseReq, ParseMode};

use crate::{Findings, Workspace};

/// Returns the licences that the text of a `deny.toml` allows.
pub fn allowed(deny: &str) -> Result<Vec<LicenseReq>> {
    let deny: toml::Table = deny.parse()?;
    let list = deny.get("licenses").and_then(|table| table.get("allow")).and_then(toml::Value::as_array);
    let list = list.context("deny.toml has no licenses.allow")?;
    list.iter()
        .map(|licence| {
            let licence = licence.as_str().context("a licence in deny.toml is not a string")?;
            let expression = Expression::parse(licence)?;
            Ok(expression.requirements().next().context("a licence in deny.toml is empty")?.req.clone())
        })
        .collect()
}

/// Finds foreign packages from outside the registry, and packages without an allowed licence.
pub fn findings(workspace: &Workspace, allowed: &[LicenseReq]) -> Findings {
    let mut findings = Findings::new();
    for package in workspace.foreigners() {
        if !package.source.as_deref().is_some_and(|source| source.starts_with("registry+")) {
            findings.push(format!(
                "{}: the package comes from {:?}, not from the registry",
                package.name, package.source
            ));
        }
        let licence = package.license.as_deref().unwrap_or("");
        match Expression::parse_mode(licence, ParseMode::LAX) {
            Err(_) => {
                findings.push(format!("{}: `{licence}` is no licence expression of SPDX", package.name));
            }
            Ok(expression) if !expression.evaluate(|asked| allowed.contains(asked)) => {
                findings.push(format!("{}: the licence {licence} is not allowed by deny.toml", package.name));
            }
            Ok(_) => {}
        }
    }
    findings
}
