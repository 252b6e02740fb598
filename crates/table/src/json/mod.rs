//! Values of types `json` and `jsonb`.
//!
//! A `json` is the text that the client wrote. A `jsonb` is the text in which PostgreSQL shows it: the
//! members of an object are in the order of the length and then the bytes of their keys, the last of several
//! members with one key stays, numbers are decimals, and blanks stand where PostgreSQL puts them. So two
//! equal documents differ at most in trailing zeros of numbers.
//!
//! *Rejected:* a binary form of `jsonb`. It would save the parsing when a document is compared or searched,
//! but most documents are only stored and returned.
//!
//! A text from another process may be malformed. Such a text is greater than all documents.

mod concat;
mod contain;
mod order;
mod parse;
mod path;

use std::{borrow::Cow, fmt::Write as _};

use crate::{failure::Failure, numeric::Numeric};

pub(crate) use concat::concat;
pub(crate) use contain::{contains, exists};
pub(crate) use order::{order, write_key};
pub use parse::DEPTH_MAX;
use parse::{Escapes, Json, JsonNode, parse};
pub(crate) use path::{Kind, Step, array_length, at_path, field, scalar, shown, type_name};

/// Refuses a text that is no JSON.
pub fn check(text: &str) -> Result<(), Failure> {
    parse(text, Escapes::Kept).map(drop)
}

/// Returns the text of a `jsonb` for a document.
pub fn normalized(text: &str) -> Result<String, Failure> {
    let document = parse(text, Escapes::Decoded)?;
    let mut normal = String::with_capacity(text.len());
    write(&document, &mut normal)?;
    Ok(normal)
}

fn write(json: &Json<'_>, out: &mut String) -> Result<(), Failure> {
    match &json.node {
        JsonNode::Null => out.push_str("null"),
        JsonNode::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        JsonNode::Number => write!(out, "{}", Numeric::parse(json.raw)?).expect("a string takes all text"),
        JsonNode::String(text) => write_string(text, out),
        JsonNode::Array(elements) => write_array(elements.iter(), out)?,
        JsonNode::Object(members) => write_object(members.iter(), out)?,
    }
    Ok(())
}

fn write_array<'j, 'a: 'j>(
    elements: impl Iterator<Item = &'j Json<'a>>,
    out: &mut String,
) -> Result<(), Failure> {
    out.push('[');
    for (index, element) in elements.enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        write(element, out)?;
    }
    out.push(']');
    Ok(())
}

fn write_object<'j, 'a: 'j>(
    members: impl Iterator<Item = &'j (Cow<'a, str>, Json<'a>)>,
    out: &mut String,
) -> Result<(), Failure> {
    let mut sorted: Vec<_> = members.collect();
    sorted.sort_by(|(a, _), (b, _)| a.len().cmp(&b.len()).then_with(|| a.as_bytes().cmp(b.as_bytes())));
    out.push('{');
    let mut is_first = true;
    for (index, (key, value)) in sorted.iter().enumerate() {
        if sorted.get(index + 1).is_some_and(|(next, _)| next == key) {
            // PostgreSQL reads the numbers of a dropped member, too, and refuses a number out of range.
            write(value, &mut String::new())?;
            continue;
        }
        if !std::mem::take(&mut is_first) {
            out.push_str(", ");
        }
        write_string(key, out);
        out.push_str(": ");
        write(value, out)?;
    }
    out.push('}');
    Ok(())
}

/// Writes a string in quotes, with the escapes that PostgreSQL writes.
fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if control < ' ' => {
                write!(out, "\\u{:04x}", u32::from(control)).expect("a string takes all text");
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::*;

    #[test]
    fn a_document_is_normalized_as_in_postgresql() {
        let check = |text: &str, normal: &str| assert_eq!(normalized(text).as_deref(), Ok(normal), "{text}");
        check(" {\"bb\" : 1, \"a\":[ ] , \"c\":{}} ", "{\"a\": [], \"c\": {}, \"bb\": 1}");
        check("{\"a\":1,\"b\":2,\"a\":3}", "{\"a\": 3, \"b\": 2}");
        check(
            "[1.50, 1e2, -0, 1E-3, 12345678901234567890.10]",
            "[1.50, 100, 0, 0.001, 12345678901234567890.10]",
        );
        check("\"\\u00e9\\ud83d\\ude00\\/\\n\\u0001\"", "\"é😀/\\n\\u0001\"");
        check("true", "true");
    }

    #[test]
    fn malformed_documents_are_refused_with_the_reason() {
        let check = |text: &str, detail: &str| {
            let failure = normalized(text).unwrap_err();
            assert_eq!((&*failure.sqlstate, failure.detail.as_deref()), ("22P02", Some(detail)), "{text}");
        };
        check("", "The input string ended unexpectedly.");
        check("{\"a\":1", "The input string ended unexpectedly.");
        check("{\"a\":1}}", "Expected end of input, but found \"}\".");
        check("[1,]", "Expected JSON value, but found \"]\".");
        check("[,1]", "Expected array element or \"]\", but found \",\".");
        check("[1 2]", "Expected \",\" or \"]\", but found \"2\".");
        check("{1:2}", "Expected string or \"}\", but found \"1\".");
        check("{\"a\":1,}", "Expected string, but found \"}\".");
        check("{\"a\" 1}", "Expected \":\", but found \"1\".");
        check("{\"a\":1 \"b\"}", "Expected \",\" or \"}\", but found \"\"b\"\".");
        check("tru", "Token \"tru\" is invalid.");
        check("01", "Token \"01\" is invalid.");
        check("1.", "Token \"1\" is invalid.");
        check("-", "Token \"-\" is invalid.");
        check("'a'", "Token \"'\" is invalid.");
        check("\"a", "Token \"\"a\" is invalid.");
        check("\"a\nb\"", "Character with value 0x0a must be escaped.");
        check("\"\\q\"", "Escape sequence \"\\q\" is invalid.");
        check("\"\\u12g4\"", "\"\\u\" must be followed by four hexadecimal digits.");
        check("\"\\ud800\"", "Unicode low surrogate must follow a high surrogate.");
        check("\"\\ud800\\ud800\"", "Unicode high surrogate must not follow a high surrogate.");
        assert_eq!(normalized("\"\\u0000\"").unwrap_err().sqlstate, "22P05");
        assert_eq!(super::check("\"\\u0000\\ud800\""), Ok(()));
    }

    #[test]
    fn deep_documents_are_refused_before_the_stack_ends() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(normalized(&nested(DEPTH_MAX)).is_ok());
        for depth in [DEPTH_MAX + 2, 1_000_000] {
            assert_eq!(normalized(&nested(depth)).unwrap_err().sqlstate, "54001");
            assert_eq!(super::check(&"{\"a\":".repeat(depth)).unwrap_err().sqlstate, "54001");
            // A text from another process may exceed the depth, and can be compared all the same.
            assert_eq!(order(&nested(depth), "1"), Ordering::Greater);
        }
    }

    #[test]
    fn documents_have_postgresqls_order() {
        let sorted = [
            "[]",
            "null",
            "\"\"",
            "\"a\"",
            "\"b\"",
            "-1",
            "1",
            "1.5",
            "2",
            "false",
            "true",
            "[null]",
            "[1]",
            "[true]",
            "[[]]",
            "[{}]",
            "[1, 1]",
            "{}",
            "{\"a\": 1}",
            "{\"a\": 2}",
            "{\"b\": 1}",
            "{\"a\": 1, \"b\": 1}",
        ];
        for (index, a) in sorted.iter().enumerate() {
            for (other, b) in sorted.iter().enumerate() {
                assert_eq!(order(a, b), index.cmp(&other), "{a} {b}");
            }
        }
        assert_eq!(order("[1.0, {\"a\": 2}]", "[1, {\"a\": 2.00}]"), Ordering::Equal);
    }
}
