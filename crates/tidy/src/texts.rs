//! The map names every crate, links lead somewhere, and no file names a place of one machine.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, ensure};

use crate::{Findings, Workspace};

/// A file under version control and its text.
pub struct Text {
    /// Relative to the root.
    pub path: PathBuf,
    /// What it says.
    pub content: String,
}

/// Every file that the project keeps and that is text.
pub fn read(root: &Path) -> Result<Vec<Text>> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()?;
    ensure!(listing.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listing.stderr));
    let paths = String::from_utf8(listing.stdout)?;
    let texts = paths.split_terminator('\0').filter_map(|path| {
        let content = fs::read_to_string(root.join(path)).ok()?;
        Some(Text { path: path.into(), content })
    });
    Ok(texts.collect())
}

/// Crates that `ARCHITECTURE.md` does not name.
pub fn map_findings(workspace: &Workspace, architecture: &str) -> Findings {
    let missing =
        workspace.members().filter(|package| !architecture.contains(&format!("`{}/`", package.short_name())));
    missing.map(|package| format!("ARCHITECTURE.md: its codemap lacks `{}/`", package.short_name())).collect()
}

/// Relative links in Markdown whose target does not exist.
pub fn link_findings(root: &Path, texts: &[Text]) -> Findings {
    let mut findings = Findings::new();
    for text in texts.iter().filter(|text| text.path.extension().is_some_and(|kind| kind == "md")) {
        for target in text.content.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next()) {
            let here = text.path.parent().unwrap_or(Path::new(""));
            if !target.is_empty() && !target.contains("://") && !root.join(here).join(target).exists() {
                findings.push(format!("{}: links to {target}, which is not there", text.path.display()));
            }
        }
    }
    findings
}

/// Files that name a place which exists on one machine only.
pub fn place_findings(texts: &[Text]) -> Findings {
    // Put together here, so that this file passes its own rule.
    let places = [concat!("/", "work/"), concat!("/", "home/"), concat!("/", "root/"), concat!("/tmp", "/q")];
    let mut findings = Findings::new();
    for text in texts {
        for (number, line) in text.content.lines().enumerate() {
            for place in places.iter().filter(|place| line.contains(**place)) {
                findings.push(format!("{}:{}: names {place}", text.path.display(), number + 1));
            }
        }
    }
    findings
}
