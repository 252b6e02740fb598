//! The files of a crate form no circle.
//!
//! A file *names* another file if its code takes a name that the other file defines, by a `use` or by a path
//! in a body or a type. A *circle* is a set of two or more files that all name each other, directly or
//! through the others (a strongly connected component). Nobody can read one file of a circle without the
//! rest. So shared vocabulary belongs below the files that use it, and a list of all implementations above
//! them.
//!
//! The rules:
//!
//! - A name leads to the file that defines it, through re-exports, aliases and glob imports (`tree`). So a
//!   parent module that only declares and re-exports its children stands in no circle: `mod` is no reference,
//!   and a re-export is a reference only if the file uses the name itself.
//! - Comments, strings and the code under `#[cfg(test)]` do not count.
//! - A method call names no file, because it has no path. A call through a type (`Type::method`) names the
//!   file that defines the type.

mod scan;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use crate::{Findings, texts::Text};

use tree::{Edges, Tree};

/// Returns a finding for each circle, with the references that close the circle.
pub fn findings(texts: &[Text]) -> Findings {
    let files: BTreeMap<&str, &str> =
        texts.iter().filter_map(|text| Some((text.path.to_str()?, text.content.as_str()))).collect();
    let mut findings = Findings::new();
    for root in files.keys().filter(|path| is_root(path)) {
        match Tree::read(&files, root) {
            Ok(tree) => {
                let edges = tree.edges();
                findings.extend(circles(&edges).iter().map(|circle| describe(root, circle, &edges)));
            }
            Err(error) => findings.push(format!("{error:#}")),
        }
    }
    findings
}

/// Whether a file is the root of a library or a program.
fn is_root(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["crates", _, "src", file] => ["lib.rs", "main.rs"].contains(&file),
        ["crates", _, "src", "bin", file] => file.ends_with(".rs"),
        _ => false,
    }
}

/// Returns the strongly connected components of two or more files.
fn circles(edges: &Edges) -> Vec<BTreeSet<&str>> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        next.entry(from).or_default().push(to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|file| (*file, reach(&next, file))).collect();
    let mut circles = Vec::new();
    let mut placed = BTreeSet::new();
    for (file, ahead) in &reached {
        if !placed.contains(file) && ahead.contains(file) {
            let returns = |other: &&str| reached.get(other).is_some_and(|ahead| ahead.contains(file));
            let circle: BTreeSet<&str> = ahead.iter().copied().filter(returns).collect();
            placed.extend(circle.iter().copied());
            circles.push(circle);
        }
    }
    circles
}

/// Returns the files that `file` names, directly or through other files.
fn reach<'a>(next: &BTreeMap<&'a str, Vec<&'a str>>, file: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![file];
    while let Some(file) = open.pop() {
        open.extend(next.get(file).into_iter().flatten().filter(|to| reached.insert(**to)));
    }
    reached
}

/// Describes a circle and its references, for an author who must move a name.
fn describe(root: &str, circle: &BTreeSet<&str>, edges: &Edges) -> String {
    let folder = &root[..root.rfind('/').map_or(0, |end| end + 1)];
    let short = |file: &str| file.strip_prefix(folder).unwrap_or(file).to_owned();
    let mut lines = vec![format!(
        "{root}: {} files name each other in a circle; move some names, so that the circle is broken:",
        circle.len()
    )];
    for ((from, to), names) in edges {
        if circle.contains(from.as_str()) && circle.contains(to.as_str()) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            lines.push(format!("    {} → {}: {}", short(from), short(to), names.join(", ")));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests;
