//! A type name means one thing: at most three types of the product share a name.
//!
//! The rule counts the structs, enums, traits and aliases of all modules under `crates/*/src`. It leaves out
//! tests and modules within a file. Associated types do not count, because their trait gives them their
//! meaning.

use std::{
    collections::BTreeMap,
    path::{Component, Path},
};

use crate::{Findings, texts::Text};

/// Maximum number of types with one name.
pub const NAMESAKES_MAX: usize = 3;

/// Names whose meaning follows from their module.
const KNOWN: [&str; 15] = [
    "Args", "Builder", "Command", "Config", "Error", "Event", "Iter", "Kind", "Message", "Options",
    "Process", "Record", "Settings", "State", "Status",
];

/// Finds names that too many types share.
pub fn findings(texts: &[Text]) -> Findings {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for text in texts.iter().filter(|text| is_product(&text.path)) {
        for (number, line) in text.content.lines().enumerate() {
            if let Some(name) = defined(line).filter(|name| !KNOWN.contains(name)) {
                places.entry(name).or_default().push(format!("{}:{}", text.path.display(), number + 1));
            }
        }
    }
    let many = places.into_iter().filter(|(_, places)| places.len() > NAMESAKES_MAX);
    let describe = |(name, places): (&str, Vec<String>)| {
        format!("{} types are called {name}: rename some of them: {}", places.len(), places.join(", "))
    };
    many.map(describe).collect()
}

/// Whether a file is a source of a crate and no test.
fn is_product(path: &Path) -> bool {
    let parts: Vec<&str> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(part) => part.to_str(),
            _ => None,
        })
        .collect();
    matches!(parts[..], ["crates", _, "src", ..])
        && path.extension().is_some_and(|kind| kind == "rs")
        && !parts.iter().any(|part| ["tests", "tests.rs"].contains(part))
}

/// Returns the name of the type that a line of a module defines.
fn defined(line: &str) -> Option<&str> {
    let is_before = |word: &&str| word.starts_with("pub") || word.ends_with(')') || *word == "unsafe";
    let mut words = line.split(' ').skip_while(is_before);
    let is_type = ["struct", "enum", "trait", "union", "type"].contains(&words.next()?);
    let rest = words.next().filter(|_| is_type)?;
    Some(&rest[..rest.find(|sign: char| !sign.is_alphanumeric() && sign != '_').unwrap_or(rest.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_types_of_one_name_are_too_many() {
        let file = |path: &str, content: &str| Text { path: path.into(), content: content.into() };
        let mut texts = vec![
            file("crates/a/src/lib.rs", "pub struct Piece {\n}\npub(crate) enum Kind {}\n"),
            file("crates/a/src/b.rs", "struct Piece;\npub type Kind = u8;\n"),
            file("crates/b/src/lib.rs", "pub(super) trait Piece<T> {\n    type Piece;\n}\nenum Kind {}\n"),
            file("crates/b/src/tests.rs", "struct Piece;\nstruct Kind;\n"),
            file("crates/b/tests/main.rs", "struct Piece;\n"),
            file("crates/b/src/c.rs", "struct Pieces;\nenum Kind {}\n"),
        ];
        assert_eq!(findings(&texts), Findings::new());
        texts.push(file("crates/c/src/lib.rs", "pub(in crate::x) type Piece<'a> = &'a [u8];\n"));
        let findings = findings(&texts);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].starts_with("4 types are called Piece"), "{findings:?}");
        assert!(findings[0].ends_with("crates/c/src/lib.rs:1"), "{findings:?}");
    }
}
