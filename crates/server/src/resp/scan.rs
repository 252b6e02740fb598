//! `SCAN`: its cursor, and the filter on the keys of a piece.
//!
//! The cursor is the token after which the next piece begins. At the beginning and at the end of a scan it is
//! 0. So the cursor carries the whole state of a scan and never expires. The cells determine the number of
//! keys in a piece, so `COUNT` is accepted and changes nothing.

use bytes::Bytes;
use quorate_protocol::partial::{Kind, Rejection, Scanned, Token};

use super::{
    arguments::Arguments,
    parse::number,
    refusal::{NO_NUMBER, arity},
    reply::Reply,
};

/// A request for a piece of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScanRequest {
    pub(super) behind: Option<Token>,
    /// The pattern that a key must match to be returned. `None` returns every key.
    pattern: Option<Bytes>,
    kind: Option<Kind>,
}

impl ScanRequest {
    /// Parses the strings after the name `SCAN`.
    pub(super) fn parse(arguments: Arguments<'_>) -> Result<ScanRequest, String> {
        let cursor = arguments.get(0).ok_or_else(|| arity(b"SCAN"))?;
        let cursor = token(cursor).ok_or("ERR invalid cursor")?;
        let behind = (cursor > 0).then_some(Token(cursor));
        let mut request = ScanRequest { behind, pattern: None, kind: None };
        for index in (1..arguments.len()).step_by(2) {
            let syntax = || String::from("ERR syntax error");
            let value = arguments.get(index + 1).ok_or_else(syntax)?;
            match arguments.word(index).unwrap_or_default().as_str() {
                "MATCH" => request.pattern = Some(arguments.bytes(index + 1)),
                "COUNT" if number(value).ok_or(NO_NUMBER)? > 0 => {}
                "TYPE" => {
                    request.kind = Some(match &value.to_ascii_lowercase()[..] {
                        b"string" => Kind::String,
                        b"hash" => Kind::Hash,
                        // Maps hold no values of other types, so no key matches.
                        _ => Kind::Nothing,
                    });
                }
                _ => return Err(syntax()),
            }
        }
        Ok(request)
    }

    /// Makes the answer from the outcome of a piece.
    pub(super) fn answer(&self, outcome: Scanned) -> Reply {
        let failed = |words: &str| Reply::Error(words.to_owned());
        match outcome {
            Scanned::Piece { keys, next } => {
                // Cursor 0 means the end, so token 0 becomes cursor 1. One key in 2^64 has token 0.
                let cursor = next.map_or(0, |Token(token)| token.max(1));
                let wanted = |(key, kind): &(Bytes, Kind)| {
                    self.kind.is_none_or(|it| it == *kind)
                        && self.pattern.as_ref().is_none_or(|pattern| matches(pattern, key))
                };
                let keys = keys.into_iter().filter(wanted).map(|(key, _)| Reply::Bulk(key));
                Reply::Array(vec![Reply::text(cursor.to_string()), Reply::Array(keys.collect())])
            }
            Scanned::Unavailable => {
                failed("UNAVAILABLE fewer replicas are reachable than the level needs for some of the keys")
            }
            Scanned::Unanswered => {
                failed("UNANSWERED too few replicas of some of the keys answered in time for the level")
            }
            Scanned::Rejected(Rejection::NoMap) => failed("NOMAP the map does not exist, or was dropped"),
            Scanned::Rejected(Rejection::Busy) => failed("BUSY this cell has too many scans in progress"),
            Scanned::Rejected(_) => failed("NOCELL this process is not a cell of this domain"),
        }
    }
}

/// Parses a cursor: 64 bits without a sign, in canonical decimal form.
fn token(digits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok()?;
    let canonical = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| canonical)
}

/// Whether a key matches a pattern of `*`, `?`, `[a-c]`, `[^a]`, and `\\` before one of these signs. The time
/// is at most the product of both lengths, for any number of stars.
fn matches(pattern: &[u8], key: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    // The place in the pattern after the last star, and the place in the key at which the star's match ends.
    let mut star: Option<(usize, usize)> = None;
    while place < key.len() {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            star = Some((at, place));
        } else if let Some(width) = one(&pattern[at..], key[place]) {
            (at, place) = (at + width, place + 1);
        } else if let Some((behind, from)) = star {
            // The star's match grows by one byte.
            (at, place) = (behind, from + 1);
            star = Some((behind, from + 1));
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Returns the length of the pattern's first element if it matches `byte`.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => Some(1),
        b'[' => {
            let (negated, mut at) = if pattern.get(1) == Some(&b'^') { (true, 2) } else { (false, 1) };
            let mut found = false;
            // A class without a closing bracket extends to the end of the pattern.
            while at < pattern.len() && pattern[at] != b']' {
                if pattern[at] == b'\\' && at + 1 < pattern.len() {
                    at += 1;
                }
                let first = pattern[at];
                let last = if pattern.get(at + 1) == Some(&b'-') && at + 2 < pattern.len() {
                    at += 2;
                    pattern[at]
                } else {
                    first
                };
                found |= (first.min(last)..=first.max(last)).contains(&byte);
                at += 1;
            }
            (found != negated).then_some((at + 1).min(pattern.len()))
        }
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        other => (other == byte).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<ScanRequest, String> {
        let (mut strings, mut at) = (Vec::new(), 0);
        for word in line.split_terminator(' ') {
            strings.push(at..at + word.len());
            at += word.len() + 1;
        }
        ScanRequest::parse(Arguments::new(line.as_bytes(), &strings))
    }

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, key, wanted) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abbcd", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b*c", "xxaxxbxxbxxc", true),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h[a", "ha", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[\\]]", "]", true),
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), key.as_bytes()), wanted, "{pattern} of {key}");
        }
        // A pattern of many stars takes no more time than the product of both lengths.
        assert!(!matches("*a".repeat(200).as_bytes(), "b".repeat(20_000).as_bytes()));
    }

    #[test]
    fn a_part_of_a_scan_is_answered_with_its_cursor() {
        let piece = |next| {
            let key = |text: &'static str| Bytes::from_static(text.as_bytes());
            let keys =
                vec![(key("user1"), Kind::String), (key("user2"), Kind::Hash), (key("x"), Kind::String)];
            Scanned::Piece { keys, next }
        };
        let reply = |cursor: &str, keys: &[&str]| {
            let keys = keys.iter().map(|key| Reply::text(*key)).collect();
            Reply::Array(vec![Reply::text(cursor), Reply::Array(keys)])
        };
        let all = parsed("0").unwrap();
        assert_eq!(all.answer(piece(Some(Token(77)))), reply("77", &["user1", "user2", "x"]));
        let some = parsed("77 match user* count 10").unwrap();
        assert_eq!(some.behind, Some(Token(77)));
        assert_eq!(some.answer(piece(None)), reply("0", &["user1", "user2"]));
        assert_eq!(parsed("5 TYPE hash").unwrap().answer(piece(None)), reply("0", &["user2"]));
        assert_eq!(parsed("5 TYPE zset").unwrap().answer(piece(None)), reply("0", &[]));
        for line in [
            "x",
            "-1",
            "0 match",
            "0 count 0",
            "0 count x",
            "0 count 01",
            "00",
            "+1",
            "18446744073709551616",
            "0 often 5",
            "",
        ] {
            assert!(parsed(line).unwrap_err().starts_with("ERR "), "{line}");
        }
        assert!(matches!(all.answer(Scanned::Unavailable), Reply::Error(_)));
    }
}
