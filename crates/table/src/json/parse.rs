//! A parser of JSON (RFC 8259), with PostgreSQL's errors.
//!
//! The parser keeps the text of each value, so that numbers lose no digit and a `json` shows its parts as
//! they were written. The depth is bounded, because documents come from outside and the parser is recursive.

use std::borrow::Cow;

use crate::failure::{self, Failure};

/// Maximum number of arrays and objects within one another.
pub const DEPTH_MAX: usize = 256;

/// A value of a document.
#[derive(Clone, Debug)]
pub(super) struct Json<'a> {
    /// The value's text, without blanks around it.
    pub(super) raw: &'a str,
    pub(super) node: JsonNode<'a>,
}

#[derive(Clone, Debug)]
pub(super) enum JsonNode<'a> {
    Null,
    String(Cow<'a, str>),
    /// A number, which `raw` holds.
    Number,
    Bool(bool),
    Array(Vec<Json<'a>>),
    /// The members, in the order of the text.
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

/// Whether escapes in strings are decoded. A `json` may have escapes that no text can have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Escapes {
    Decoded,
    Kept,
}

/// Parses a document.
pub(super) fn parse(text: &str, escapes: Escapes) -> Result<Json<'_>, Failure> {
    let mut parser = Parser { text, escapes, token: Token::End, start: 0, end: 0, previous_end: 0 };
    parser.advance()?;
    let value = parser.value(0)?;
    match parser.token {
        Token::End => Ok(value),
        _ => Err(parser.expected("end of input")),
    }
}

#[derive(Debug)]
enum Token<'a> {
    ObjectStart,
    ObjectEnd,
    ArrayStart,
    ArrayEnd,
    Comma,
    Colon,
    String(Cow<'a, str>),
    Number,
    True,
    False,
    Null,
    End,
}

struct Parser<'a> {
    text: &'a str,
    escapes: Escapes,
    /// The next token, which lies at `start..end` of the text.
    token: Token<'a>,
    start: usize,
    end: usize,
    /// The end of the token before.
    previous_end: usize,
}

impl<'a> Parser<'a> {
    fn value(&mut self, depth: usize) -> Result<Json<'a>, Failure> {
        if depth > DEPTH_MAX {
            let message = format!("a JSON document may have at most {DEPTH_MAX} levels");
            return Err(Failure::new("54001", message));
        }
        let start = self.start;
        let node = match self.take()? {
            Token::Null => JsonNode::Null,
            Token::True => JsonNode::Bool(true),
            Token::False => JsonNode::Bool(false),
            Token::Number => JsonNode::Number,
            Token::String(text) => JsonNode::String(text),
            Token::ArrayStart => JsonNode::Array(self.elements(depth)?),
            Token::ObjectStart => JsonNode::Object(self.members(depth)?),
            other => {
                self.token = other;
                return Err(self.expected("JSON value"));
            }
        };
        Ok(Json { raw: &self.text[start..self.previous_end], node })
    }

    fn elements(&mut self, depth: usize) -> Result<Vec<Json<'a>>, Failure> {
        let mut elements = Vec::new();
        if let Token::ArrayEnd = self.token {
            self.advance()?;
            return Ok(elements);
        }
        loop {
            if elements.is_empty() && !self.begins_value() {
                return Err(self.expected("array element or \"]\""));
            }
            elements.push(self.value(depth + 1)?);
            match self.token {
                Token::Comma => self.advance()?,
                Token::ArrayEnd => break,
                _ => return Err(self.expected("\",\" or \"]\"")),
            }
        }
        self.advance()?;
        Ok(elements)
    }

    fn members(&mut self, depth: usize) -> Result<Vec<(Cow<'a, str>, Json<'a>)>, Failure> {
        let mut members = Vec::new();
        if let Token::ObjectEnd = self.token {
            self.advance()?;
            return Ok(members);
        }
        loop {
            if !matches!(self.token, Token::String(_)) {
                let wanted = if members.is_empty() { "string or \"}\"" } else { "string" };
                return Err(self.expected(wanted));
            }
            let Token::String(key) = self.take()? else { unreachable!("the token is a string") };
            let Token::Colon = self.token else { return Err(self.expected("\":\"")) };
            self.advance()?;
            members.push((key, self.value(depth + 1)?));
            match self.token {
                Token::Comma => self.advance()?,
                Token::ObjectEnd => break,
                _ => return Err(self.expected("\",\" or \"}\"")),
            }
        }
        self.advance()?;
        Ok(members)
    }

    fn begins_value(&self) -> bool {
        !matches!(self.token, Token::ObjectEnd | Token::ArrayEnd | Token::Comma | Token::Colon | Token::End)
    }

    /// Returns the token, and reads the next one. But if no value begins with the token, reads nothing
    /// further.
    fn take(&mut self) -> Result<Token<'a>, Failure> {
        if !self.begins_value() {
            return Ok(std::mem::replace(&mut self.token, Token::End));
        }
        let token = std::mem::replace(&mut self.token, Token::End);
        self.advance()?;
        Ok(token)
    }

    /// Returns the failure of a document that has another token than the `wanted` one.
    fn expected(&self, wanted: &str) -> Failure {
        match self.token {
            Token::End => invalid("The input string ended unexpectedly."),
            _ => invalid(format!("Expected {wanted}, but found \"{}\".", self.shown())),
        }
    }

    fn shown(&self) -> String {
        failure::shown(&self.text[self.start..self.end])
    }

    /// Reads the next token.
    fn advance(&mut self) -> Result<(), Failure> {
        self.previous_end = self.end;
        let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.start =
            self.end + self.text.as_bytes()[self.end..].iter().take_while(|byte| blank(byte)).count();
        let rest = &self.text.as_bytes()[self.start..];
        let Some(&first) = rest.first() else {
            (self.token, self.end) = (Token::End, self.start);
            return Ok(());
        };
        let single = match first {
            b'{' => Some(Token::ObjectStart),
            b'}' => Some(Token::ObjectEnd),
            b'[' => Some(Token::ArrayStart),
            b']' => Some(Token::ArrayEnd),
            b',' => Some(Token::Comma),
            b':' => Some(Token::Colon),
            _ => None,
        };
        if let Some(token) = single {
            (self.token, self.end) = (token, self.start + 1);
            return Ok(());
        }
        if first == b'"' {
            self.token = Token::String(self.string()?);
            return Ok(());
        }
        // A word or a number reaches as far as letters and digits do, so that the error shows all of it.
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
        if first == b'-' || first.is_ascii_digit() {
            let length = number(rest);
            let word = length.unwrap_or(1)
                + rest[length.unwrap_or(1)..].iter().take_while(|byte| is_word(byte)).count();
            self.end = self.start + word;
            if length != Some(word) {
                return Err(self.invalid_token());
            }
            self.token = Token::Number;
            return Ok(());
        }
        let word = rest.iter().take_while(|byte| is_word(byte)).count();
        self.end = self.start + word.max(1);
        self.token = match &rest[..word] {
            b"true" => Token::True,
            b"false" => Token::False,
            b"null" => Token::Null,
            _ => return Err(self.invalid_token()),
        };
        Ok(())
    }

    fn invalid_token(&self) -> Failure {
        invalid(format!("Token \"{}\" is invalid.", self.shown()))
    }

    /// Reads a string, which begins at `start`.
    fn string(&mut self) -> Result<Cow<'a, str>, Failure> {
        let text = self.text;
        let first = self.start + 1;
        let mut at = first;
        let mut decoded: Option<String> = None;
        // The part of the text that is not in `decoded` yet begins here.
        let mut kept = first;
        let mut high: Option<u32> = None;
        let lone = || invalid("Unicode low surrogate must follow a high surrogate.");
        loop {
            let Some(&byte) = text.as_bytes().get(at) else {
                self.end = text.len();
                return Err(self.invalid_token());
            };
            if byte != b'\\' && high.is_some() {
                return Err(lone());
            }
            match byte {
                b'"' => break,
                0..0x20 => {
                    return Err(invalid(format!("Character with value 0x{byte:02x} must be escaped.")));
                }
                b'\\' => {}
                _ => {
                    at += 1;
                    continue;
                }
            }
            let decode = self.escapes == Escapes::Decoded;
            if decode {
                decoded.get_or_insert_default().push_str(&text[kept..at]);
            }
            let Some(letter) = text[at + 1..].chars().next() else {
                self.end = text.len();
                return Err(self.invalid_token());
            };
            let simple = match letter {
                '"' | '\\' | '/' => Some(letter),
                'b' => Some('\u{8}'),
                'f' => Some('\u{c}'),
                'n' => Some('\n'),
                'r' => Some('\r'),
                't' => Some('\t'),
                'u' => None,
                _ => return Err(invalid(format!("Escape sequence \"\\{letter}\" is invalid."))),
            };
            let character = match simple {
                Some(_) if high.is_some() => return Err(lone()),
                Some(simple) => {
                    at += 2;
                    Some(simple)
                }
                None => {
                    let digits = text.as_bytes().get(at + 2..at + 6);
                    let unit = digits
                        .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
                        .and_then(|digits| u32::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
                    let Some(unit) = unit else {
                        return Err(invalid("\"\\u\" must be followed by four hexadecimal digits."));
                    };
                    at += 6;
                    match (unit, high.take()) {
                        _ if !decode => None,
                        (0, None) => {
                            return Err(Failure::new("22P05", "unsupported Unicode escape sequence")
                                .with_detail("\\u0000 cannot be converted to text."));
                        }
                        (0xD800..0xDC00, Some(_)) => {
                            return Err(invalid("Unicode high surrogate must not follow a high surrogate."));
                        }
                        (0xD800..0xDC00, None) => {
                            high = Some(unit);
                            None
                        }
                        (0xDC00..0xE000, Some(high)) => {
                            char::from_u32(0x1_0000 + ((high - 0xD800) << 10) + (unit - 0xDC00))
                        }
                        (0xDC00..0xE000, None) | (_, Some(_)) => return Err(lone()),
                        (unit, None) => char::from_u32(unit),
                    }
                }
            };
            if decode {
                decoded.get_or_insert_default().extend(character);
            }
            kept = at;
        }
        self.end = at + 1;
        Ok(match decoded {
            Some(mut decoded) => {
                decoded.push_str(&text[kept..at]);
                Cow::Owned(decoded)
            }
            None => Cow::Borrowed(&text[first..at]),
        })
    }
}

/// Returns the length of the number with which the bytes begin. `None` if they begin with no number.
fn number(bytes: &[u8]) -> Option<usize> {
    let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut at = usize::from(bytes[0] == b'-');
    at += match bytes.get(at)? {
        b'0' => 1,
        b'1'..=b'9' => digits(at),
        _ => return None,
    };
    if bytes.get(at) == Some(&b'.') {
        let decimals = digits(at + 1);
        if decimals == 0 {
            return None;
        }
        at += 1 + decimals;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        let sign = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
        let exponent = if at + 1 + sign <= bytes.len() { digits(at + 1 + sign) } else { 0 };
        if exponent == 0 {
            return None;
        }
        at += 1 + sign + exponent;
    }
    Some(at)
}

fn invalid(detail: impl Into<String>) -> Failure {
    Failure::new("22P02", "invalid input syntax for type json").with_detail(detail)
}
