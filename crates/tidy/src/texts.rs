//! Checks the texts: `ARCHITECTURE.md` names every crate, links lead to files, quotes of code are exact, and
//! no file names a place that exists on one machine only.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, ensure};

use crate::{Findings, Workspace};

/// A text file under version control.
pub struct Text {
    /// The path relative to the root.
    pub path: PathBuf,
    /// The content of the file.
    pub content: String,
}

/// Returns all text files under version control.
pub fn read(root: &Path) -> Result<Vec<Text>> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()?;
    ensure!(listing.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&listing.stderr));
    let paths = String::from_utf8(listing.stdout)?;
    let texts = paths.split_terminator('\0').filter_map(|path| {
        let content = fs::read_to_string(root.join(path)).ok()?;
        Some(Text { path: path.into(), content })
    });
    Ok(texts.collect())
}

/// Finds crates that `ARCHITECTURE.md` does not name.
pub fn map_findings(workspace: &Workspace, architecture: &str) -> Findings {
    let missing =
        workspace.members().filter(|package| !architecture.contains(&format!("`{}/`", package.short_name())));
    missing.map(|package| format!("ARCHITECTURE.md: the codemap lacks `{}/`", package.short_name())).collect()
}

/// Finds crates that the drawing of the floors lacks.
pub fn drawing_findings(workspace: &Workspace, drawing: &str) -> Findings {
    let missing =
        workspace.members().filter(|package| !drawing.contains(&format!(">{}</text>", package.short_name())));
    missing.map(|package| format!("docs/floors.svg lacks a box for {}", package.short_name())).collect()
}

/// Finds relative Markdown links to missing files.
pub fn link_findings(root: &Path, texts: &[Text]) -> Findings {
    let mut findings = Findings::new();
    for text in texts.iter().filter(|text| text.path.extension().is_some_and(|kind| kind == "md")) {
        for target in text.content.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next()) {
            let here = text.path.parent().unwrap_or(Path::new(""));
            if !target.is_empty() && !target.contains("://") && !root.join(here).join(target).exists() {
                findings.push(format!(
                    "{}: the page links to {target}, which does not exist",
                    text.path.display()
                ));
            }
        }
    }
    findings
}

/// Finds quotes of code in `docs/tour` and `docs/extending.md` that no file linked from the page contains. A
/// line `// …` stands for parts that the page leaves out. Indentation does not count.
pub fn quote_findings(texts: &[Text]) -> Findings {
    let mut findings = Findings::new();
    let lines = |text: &str| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let has_quotes = |path: &Path| path.starts_with("docs/tour") || path == Path::new("docs/extending.md");
    for page in texts.iter().filter(|text| has_quotes(&text.path)) {
        let targets = page.content.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        let targets: Vec<PathBuf> = targets.map(|target| resolved(&page.path, target)).collect();
        let sources = texts.iter().filter(|text| targets.contains(&text.path));
        let sources: Vec<Vec<String>> = sources.map(|source| lines(&source.content)).collect();
        for quote in page.content.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            let quote = lines(quote);
            let mut pieces = quote.split(|line| line == "// …").filter(|piece| !piece.is_empty());
            let is_exact = |piece: &[String]| {
                sources.iter().any(|source| source.windows(piece.len()).any(|window| window == piece))
            };
            if let Some(changed) = pieces.find(|piece| !is_exact(piece)) {
                findings.push(format!(
                    "{}: no file that the page links has the quote that begins `{}`",
                    page.path.display(),
                    changed[0]
                ));
            }
        }
    }
    findings
}

/// Returns the path to which a link of a page leads, relative to the root.
fn resolved(page: &Path, target: &str) -> PathBuf {
    let mut path = page.parent().unwrap_or(Path::new("")).to_owned();
    for part in target.split('/') {
        match part {
            ".." => drop(path.pop()),
            "." => {}
            _ => path.push(part),
        }
    }
    path
}

/// Finds files that name a place which exists on one machine only.
pub fn place_findings(texts: &[Text]) -> Findings {
    // The code joins the places from parts, so that this file passes its own rule.
    let places = [concat!("/", "work/"), concat!("/", "home/"), concat!("/", "root/"), concat!("/tmp", "/q")];
    let mut findings = Findings::new();
    for text in texts {
        for (number, line) in text.content.lines().enumerate() {
            for place in places.iter().filter(|place| line.contains(**place)) {
                findings.push(format!(
                    "{}:{}: the line names {place}, a place that exists on one machine only",
                    text.path.display(),
                    number + 1
                ));
            }
        }
    }
    findings
}
