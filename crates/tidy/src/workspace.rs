//! Reads the workspace from Cargo.

use std::{collections::BTreeSet, env, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The part of `cargo metadata` that the rules need.
#[derive(Clone, Debug, Deserialize)]
pub struct Workspace {
    /// All packages of the build on this platform, including foreign packages.
    pub packages: Vec<Package>,
    /// The ids of our packages.
    pub workspace_members: BTreeSet<String>,
    /// The folder of the root `Cargo.toml`.
    pub workspace_root: PathBuf,
}

/// A package of this workspace, or a foreign package.
#[derive(Clone, Debug, Deserialize)]
pub struct Package {
    /// Cargo's id, which combines name, version and source.
    pub id: String,
    /// The name in the package's `Cargo.toml`.
    pub name: String,
    /// The source of the package; `None` for a package in a local folder.
    pub source: Option<String>,
    /// The licence as an SPDX expression.
    pub license: Option<String>,
    /// The package's dependencies of every kind (normal, build, development).
    pub dependencies: Vec<Dependency>,
    /// The path of the package's `Cargo.toml`.
    pub manifest_path: PathBuf,
}

/// A dependency of a package on a crate.
#[derive(Clone, Debug, Deserialize)]
pub struct Dependency {
    /// The name of the crate in its `Cargo.toml`.
    pub name: String,
    /// `dev` or `build`; `None` for a normal dependency.
    pub kind: Option<String>,
}

impl Workspace {
    /// Reads the metadata, in the package's folder, by the Cargo that runs this test.
    pub fn read() -> Result<Workspace> {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let version = Command::new(&cargo).args(["-vV"]).output().context("cargo cannot be run")?;
        let version = String::from_utf8(version.stdout)?;
        let host = version
            .lines()
            .find_map(|line| line.strip_prefix("host: "))
            .context("cargo -vV names no host")?;
        let output = Command::new(&cargo)
            .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", host])
            .output()?;
        ensure!(
            output.status.success(),
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Returns our packages.
    pub fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }

    /// Returns the foreign packages.
    pub fn foreigners(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| !self.workspace_members.contains(&package.id))
    }
}

impl Package {
    /// Returns the name of the folder under `crates/`, which is the project's short name for the crate.
    pub fn short_name(&self) -> &str {
        self.name.strip_prefix("quorate-").unwrap_or(&self.name)
    }
}
