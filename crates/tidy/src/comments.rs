//! Checks comments: none is wider than 110 columns, and none begins with a relative clause. A row of a table
//! may be wider.

use crate::{Findings, texts::Text};

/// Widest comment line, in columns.
pub const COLUMNS_MAX: usize = 110;

/// Words that begin a relative clause without a noun. Such a comment makes its reader look for the subject.
const HEADLESS: [&str; 5] = ["What ", "Who ", "Which ", "Whatever ", "Whoever "];

/// Finds comments of Rust files that break a rule.
pub fn findings(texts: &[Text]) -> Findings {
    let mut findings = Findings::new();
    for text in texts.iter().filter(|text| text.path.extension().is_some_and(|kind| kind == "rs")) {
        for (number, line) in text.content.lines().enumerate() {
            let Some(comment) = comment(line) else { continue };
            let place = format!("{}:{}", text.path.display(), number + 1);
            if line.chars().count() > COLUMNS_MAX && !comment.starts_with('|') {
                findings.push(format!("{place}: the comment is wider than {COLUMNS_MAX} columns"));
            }
            if HEADLESS.iter().any(|word| comment.starts_with(word)) && !comment.ends_with('?') {
                findings
                    .push(format!("{place}: the comment begins with a relative clause: name its subject"));
            }
        }
    }
    findings
}

/// Returns the text of a comment that has a line of its own.
fn comment(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("//")?;
    Some(rest.trim_start_matches(['/', '!']).trim_start())
}
