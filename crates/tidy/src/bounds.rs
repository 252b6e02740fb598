//! Every growing field has a written bound.
//!
//! A queue, a map or a channel in a struct grows when a client, a peer or a disk makes it grow. The rule
//! finds each such field on floors 0 to 3 and asks for its bound: a comment at the field that contains
//! *bounded by*, or a row of `docs/bounds.md`. A row names a file and then the fields that this file
//! declares, as `Type::field`. Or it names a folder, and then covers all files below the folder.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Findings, floors::FLOORS, texts::Text};

/// The page that lists the bounds.
pub const PAGE: &str = "docs/bounds.md";

/// The highest floor that the rule covers.
const HIGHEST_FLOOR: usize = 3;

/// Types that grow.
const GROWING: [&str; 16] = [
    "BTreeMap<",
    "BTreeSet<",
    "BinaryHeap<",
    "HashMap<",
    "HashSet<",
    "FxHashMap<",
    "FxHashSet<",
    "IndexMap<",
    "IndexSet<",
    "Receiver<",
    "Sender<",
    "Slab<",
    "UnboundedReceiver<",
    "UnboundedSender<",
    "SyncSender<",
    "VecDeque<",
];

/// A field that can grow.
struct Growing<'a> {
    line: usize,
    name: String,
    /// Whether a comment at the field says what bounds it.
    marked: bool,
    text: &'a Text,
}

/// Finds fields without a written bound, and rows of the page that name missing fields.
pub fn findings(texts: &[Text]) -> Findings {
    let page = texts.iter().find(|text| text.path.as_os_str() == PAGE).map_or("", |text| &text.content);
    let (fields, folders) = listed(page);
    let growing: Vec<Growing<'_>> =
        texts.iter().filter(|text| is_looked_at(text)).flat_map(growing).collect();
    let mut findings = Findings::new();
    for Growing { line, name, text, .. } in growing.iter().filter(|field| !field.marked) {
        let path = text.path.display().to_string();
        if !fields.contains_key(&(path.clone(), name.clone()))
            && !folders.iter().any(|it| path.starts_with(it))
        {
            findings.push(format!(
                "{path}:{line}: {name} can grow, but no row of {PAGE} and no comment says its bound"
            ));
        }
    }
    let declared: BTreeSet<(String, &str)> =
        growing.iter().map(|field| (field.text.path.display().to_string(), field.name.as_str())).collect();
    for ((path, name), line) in &fields {
        if !declared.contains(&(path.clone(), name.as_str())) {
            findings
                .push(format!("{PAGE}:{line}: {path} has no field {name} that can grow, so remove the row"));
        }
    }
    findings
}

/// Returns the product files of the covered floors.
fn is_looked_at(text: &Text) -> bool {
    let mut crates = FLOORS[..=HIGHEST_FLOOR].iter().flat_map(|names| names.iter());
    let path = text.path.to_string_lossy();
    path.ends_with(".rs")
        && !path.contains("/tests/")
        && !path.ends_with("/tests.rs")
        && crates.any(|name| path.starts_with(&format!("crates/{name}/src/")))
}

/// Returns the fields that the page names, with their lines, and the folders.
fn listed(page: &str) -> (BTreeMap<(String, String), usize>, Vec<String>) {
    let (mut fields, mut folders) = (BTreeMap::new(), Vec::new());
    for (number, line) in page.lines().enumerate() {
        let Some(first) = line.strip_prefix('|').and_then(|row| row.split('|').next()) else { continue };
        let mut words = first.split('`').skip(1).step_by(2);
        let Some(path) = words.next().filter(|path| path.contains('/')) else { continue };
        let path = format!("crates/{path}");
        if path.ends_with('/') {
            folders.push(path);
            continue;
        }
        fields.extend(words.map(|name| ((path.clone(), name.to_owned()), number + 1)));
    }
    (fields, folders)
}

/// Returns the growing fields of a file. The search relies on `rustfmt`: each field has its own line, and a
/// type ends at the indent at which it begins.
fn growing(text: &Text) -> Vec<Growing<'_>> {
    let mut found = Vec::new();
    let mut open: Option<(String, usize)> = None;
    let mut comment = String::new();
    let product = text.content.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    for (number, line) in product.lines().enumerate() {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if content.starts_with("//") {
            comment.push_str(content);
            continue;
        }
        let declared = declaration(content);
        match (&open, declared) {
            (None, Some((name, rest))) if rest.starts_with('(') => {
                if let Some(kind) = rest.strip_prefix('(').filter(|kind| grows(kind)) {
                    let marked = is_mark(&comment) || is_mark(kind);
                    found.push(Growing { line: number + 1, name: format!("{name}::0"), marked, text });
                }
            }
            (None, Some((name, rest))) if rest.ends_with('{') => open = Some((name.to_owned(), indent)),
            (Some((_, begin)), _) if indent == *begin && content.starts_with('}') => open = None,
            (Some((owner, _)), _) => {
                // All fields of a short variant are on one line.
                let places = if content.contains('{') {
                    content.split(['{', ','])
                } else {
                    content.split(['\n', '\n'])
                };
                for (name, _) in
                    places.filter_map(|place| field(place.trim())).filter(|(_, kind)| grows(kind))
                {
                    let marked = is_mark(&comment) || is_mark(content);
                    found.push(Growing { line: number + 1, name: format!("{owner}::{name}"), marked, text });
                }
            }
            _ => {}
        }
        if !content.starts_with("#[") {
            comment.clear();
        }
    }
    found
}

/// Returns the name of the struct or enum that this line declares, and the text after the name and its
/// parameters.
fn declaration(line: &str) -> Option<(&str, &str)> {
    let line = without_visibility(line);
    let rest = line.strip_prefix("struct ").or_else(|| line.strip_prefix("enum "))?;
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
    let (name, rest) = rest.split_at(end);
    let rest = match rest.strip_prefix('<') {
        None => rest,
        Some(parameters) => {
            let mut depth = 1;
            let end = parameters.find(|letter| {
                depth += i32::from(letter == '<') - i32::from(letter == '>');
                depth == 0
            });
            &parameters[end? + 1..]
        }
    };
    Some((name, rest.trim_start()))
}

/// Returns a field's name and its type.
fn field(line: &str) -> Option<(&str, &str)> {
    let (name, kind) = without_visibility(line).split_once(": ")?;
    let is_name = name.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    (is_name && !name.is_empty()).then_some((name, kind))
}

fn without_visibility(line: &str) -> &str {
    let Some(rest) = line.strip_prefix("pub") else { return line };
    match rest.strip_prefix('(') {
        Some(inner) => inner.split_once(") ").map_or(line, |(_, rest)| rest),
        None => rest.strip_prefix(' ').unwrap_or(line),
    }
}

/// Whether a value of this type grows. A reference does not grow, because its owner holds the value that
/// does. A channel for one value does not grow.
fn grows(kind: &str) -> bool {
    let is_whole_name = |before: &str| {
        let inside = before.ends_with(|letter: char| letter.is_alphanumeric() || letter == '_');
        !inside && !before.ends_with("oneshot::") && !before.ends_with("watch::")
    };
    !kind.starts_with('&')
        && GROWING.iter().any(|name| kind.match_indices(name).any(|(at, _)| is_whole_name(&kind[..at])))
}

fn is_mark(text: &str) -> bool {
    text.to_lowercase().contains("bounded by")
}
