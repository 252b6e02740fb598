//! LIKE: `%` matches any string, `_` any one character, and the escape character makes the next character
//! literal.

use crate::{failure::Failure, function::lower};

/// Whether the whole of `text` matches. Fails with 22025 if matching reaches an escape character with nothing
/// behind it.
pub fn like(text: &str, pattern: &str, escape: Option<char>) -> Result<bool, Failure> {
    let (mut text, mut pattern) = (text, pattern);
    // The text and pattern behind the last `%`. If the rest does not match here, matching resumes from this
    // point, one character further in the text.
    let mut resume: Option<(&str, &str)> = None;
    loop {
        let mut rest = pattern.chars();
        let token = rest.next();
        if token == Some('%') && escape != Some('%') {
            pattern = rest.as_str();
            if pattern.is_empty() {
                return Ok(true);
            }
            // PostgreSQL checks the pattern behind a `%` even if no text is left.
            literal(pattern, escape)?;
            resume = Some((text, pattern));
            continue;
        }
        let mut characters = text.chars();
        let matched = match (characters.next(), token) {
            (None, None) => return Ok(true),
            (None, Some(_)) => return Ok(false),
            (Some(_), None) => false,
            (Some(_), Some('_')) if escape != Some('_') => {
                (text, pattern) = (characters.as_str(), rest.as_str());
                true
            }
            (Some(character), Some(_)) => {
                let (expected, behind) = literal(pattern, escape)?;
                if character == expected {
                    (text, pattern) = (characters.as_str(), behind);
                }
                character == expected
            }
        };
        if !matched {
            let Some((from, after)) = resume else { return Ok(false) };
            let mut characters = from.chars();
            if characters.next().is_none() {
                return Ok(false);
            }
            (text, pattern) = (characters.as_str(), after);
            resume = Some((text, pattern));
        }
    }
}

/// Matches like [`like`], but ignores case, except the case of the escape character.
pub fn like_ignoring_case(text: &str, pattern: &str, escape: Option<char>) -> Result<bool, Failure> {
    let mut rewritten = String::with_capacity(pattern.len());
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        if Some(character) == escape {
            rewritten.push('\\');
            rewritten.extend(characters.next());
        } else {
            if character == '\\' {
                rewritten.push('\\');
            }
            rewritten.push(character);
        }
    }
    like(&lower(text), &lower(&rewritten), Some('\\'))
}

/// Returns the first character that a pattern matches literally, and the rest of the pattern. Fails if the
/// pattern ends.
fn literal(pattern: &str, escape: Option<char>) -> Result<(char, &str), Failure> {
    let mut characters = pattern.chars();
    let mut first = characters.next();
    if first.is_some() && first == escape {
        first = characters.next();
    }
    let dangling = || Failure::new("22025", "LIKE pattern must not end with escape character");
    Ok((first.ok_or_else(dangling)?, characters.as_str()))
}
