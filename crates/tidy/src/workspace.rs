//! The workspace as Cargo sees it.

use std::{collections::BTreeSet, env, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// What `cargo metadata` says, as far as the rules ask.
#[derive(Clone, Debug, Deserialize)]
pub struct Workspace {
    /// Every package of the build on this platform, ours and others'.
    pub packages: Vec<Package>,
    /// The ids of ours.
    pub workspace_members: BTreeSet<String>,
    /// The folder of the root `Cargo.toml`.
    pub workspace_root: PathBuf,
}

/// A package, ours or not.
#[derive(Clone, Debug, Deserialize)]
pub struct Package {
    /// Cargo's name for name, version and source together.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Where it comes from; none for a path.
    pub source: Option<String>,
    /// An SPDX expression.
    pub license: Option<String>,
    /// What it asks for, in every kind (normal, build, development).
    pub dependencies: Vec<Dependency>,
    /// Its `Cargo.toml`.
    pub manifest_path: PathBuf,
}

/// An edge from a package to a crate it asks for.
#[derive(Clone, Debug, Deserialize)]
pub struct Dependency {
    /// The package's name there.
    pub name: String,
    /// `dev` or `build`; none for what the crate itself needs.
    pub kind: Option<String>,
}

impl Workspace {
    /// Asks the Cargo that runs this test, which runs it in the package's folder.
    pub fn read() -> Result<Workspace> {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let version = Command::new(&cargo).args(["-vV"]).output().context("cargo does not run")?;
        let version = String::from_utf8(version.stdout)?;
        let host =
            version.lines().find_map(|line| line.strip_prefix("host: ")).context("cargo names no host")?;
        let output = Command::new(&cargo)
            .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", host])
            .output()?;
        ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Our own packages.
    pub fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }

    /// Everybody else's.
    pub fn foreigners(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| !self.workspace_members.contains(&package.id))
    }
}

impl Package {
    /// The folder name under `crates/`, by which this project calls its crates.
    pub fn short_name(&self) -> &str {
        self.name.strip_prefix("quorate-").unwrap_or(&self.name)
    }
}
