//! Strings of bytes: the text of a `bytea`, and the forms of `encode` and `decode`.

use std::fmt::Write as _;

use crate::{failure::Failure, length::bounded};

/// Returns the text in PostgreSQL's hexadecimal form.
pub fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("\\x");
    push_hex(bytes, &mut text);
    text
}

fn push_hex(bytes: &[u8], text: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

/// Reads a text in the hexadecimal form or in the form with escapes.
pub fn parse(text: &str) -> Result<Vec<u8>, Failure> {
    match text.strip_prefix("\\x") {
        Some(digits) => from_hex(digits),
        None => from_escape(text).ok_or_else(|| Failure::new("22P02", "invalid input syntax for type bytea")),
    }
}

/// Reads hexadecimal digits, with blanks between the bytes.
fn from_hex(text: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut characters = text.chars();
    let digit = |character: char| {
        let message = || format!("invalid hexadecimal digit: \"{character}\"");
        character.to_digit(16).ok_or_else(|| Failure::new("22023", message()))
    };
    while let Some(first) = characters.next() {
        if matches!(first, ' ' | '\n' | '\t' | '\r') {
            continue;
        }
        let high = digit(first)?;
        let Some(second) = characters.next() else {
            return Err(Failure::new("22023", "invalid hexadecimal data: odd number of digits"));
        };
        bytes.push((high << 4 | digit(second)?) as u8);
    }
    Ok(bytes)
}

/// Reads a text in which a backslash begins three octal digits or another backslash. `None` if a backslash
/// begins anything else.
fn from_escape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = match (first, behind) {
            (b'\\', [b'\\', behind @ ..]) => {
                bytes.push(b'\\');
                behind
            }
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', behind @ ..]) => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                behind
            }
            (b'\\', _) => return None,
            (byte, behind) => {
                bytes.push(*byte);
                behind
            }
        };
    }
    Some(bytes)
}

/// A form of `encode` and `decode`.
#[derive(Clone, Copy, Debug)]
enum Form {
    Hex,
    Base64,
    Escape,
}

impl Form {
    fn named(name: &str) -> Result<Form, Failure> {
        match name.to_ascii_lowercase().as_str() {
            "hex" => Ok(Form::Hex),
            "base64" => Ok(Form::Base64),
            "escape" => Ok(Form::Escape),
            _ => Err(Failure::new("22023", format!("unrecognized encoding: \"{name}\""))),
        }
    }
}

/// Evaluates `encode(bytes, form)`.
pub fn encode(bytes: &[u8], form: &str) -> Result<String, Failure> {
    let form = Form::named(form)?;
    // The form with escapes is the longest: up to four characters for a byte.
    bounded(bytes.len().saturating_mul(match form {
        Form::Escape => 4,
        Form::Hex | Form::Base64 => 2,
    }))?;
    Ok(match form {
        Form::Hex => {
            let mut text = String::with_capacity(2 * bytes.len());
            push_hex(bytes, &mut text);
            text
        }
        Form::Base64 => to_base64(bytes),
        Form::Escape => to_escape(bytes),
    })
}

/// Evaluates `decode(text, form)`.
pub fn decode(text: &str, form: &str) -> Result<Vec<u8>, Failure> {
    match Form::named(form)? {
        Form::Hex => from_hex(text),
        Form::Base64 => from_base64(text),
        Form::Escape => {
            from_escape(text).ok_or_else(|| Failure::new("22P02", "invalid input syntax for type bytea"))
        }
    }
}

fn to_escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'\\' => text.push_str("\\\\"),
            0 | 0x80.. => write!(text, "\\{byte:03o}").expect("a string takes all text"),
            byte => text.push(char::from(*byte)),
        }
    }
    text
}

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Characters of a line of base64, as in PostgreSQL.
const LINE: usize = 76;

fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    let mut column = 0;
    for chunk in bytes.chunks(3) {
        if column == LINE {
            text.push('\n');
            column = 0;
        }
        let group =
            chunk.iter().fold(0u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let letter = LETTERS[(group >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() { char::from(letter) } else { '=' });
        }
        column += 4;
    }
    text
}

fn from_base64(text: &str) -> Result<Vec<u8>, Failure> {
    let invalid = |message: String| Failure::new("22023", message);
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut group, mut filled, mut end) = (0u32, 0, 0);
    for character in text.chars() {
        let six = match character {
            ' ' | '\t' | '\n' | '\r' => continue,
            '=' => {
                if end == 0 {
                    end = match filled {
                        2 => 1,
                        3 => 2,
                        _ => {
                            return Err(invalid(
                                "unexpected \"=\" while decoding base64 sequence".to_owned(),
                            ));
                        }
                    };
                }
                0
            }
            character => {
                let known = LETTERS.iter().position(|letter| char::from(*letter) == character);
                let Some(six) = known else {
                    let shown =
                        format!("invalid symbol \"{character}\" found while decoding base64 sequence");
                    return Err(invalid(shown));
                };
                six as u32
            }
        };
        group = group << 6 | six;
        filled += 1;
        if filled == 4 {
            let [_, first, second, third] = group.to_be_bytes();
            bytes.push(first);
            if end == 0 || end > 1 {
                bytes.push(second);
            }
            if end == 0 {
                bytes.push(third);
            }
            (group, filled) = (0, 0);
        }
    }
    if filled != 0 {
        return Err(invalid("invalid base64 end sequence".to_owned()));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_as_in_postgresql() {
        let check = |text: &str, bytes: &[u8]| assert_eq!(parse(text).as_deref(), Ok(bytes), "{text}");
        check("", b"");
        check("\\x", b"");
        check("\\x00fFa0", &[0, 255, 160]);
        check("\\x 00\n01 ", &[0, 1]);
        check("a\\\\b\\000\\377", b"a\\b\0\xff");
        check("ä", "ä".as_bytes());
        for (text, sqlstate) in [
            ("\\x0", "22023"),
            ("\\x0 1", "22023"),
            ("\\xg0", "22023"),
            ("a\\b", "22P02"),
            ("\\400", "22P02"),
        ] {
            assert_eq!(parse(text).unwrap_err().sqlstate, sqlstate, "{text}");
        }
    }

    #[test]
    fn every_form_decodes_what_it_encodes() {
        let all: Vec<u8> = (0..=255).collect();
        for length in (0..8).chain([57, 58, 114, 256]) {
            let bytes = &all[256 - length..];
            for form in ["hex", "base64", "ESCAPE"] {
                let text = encode(bytes, form).unwrap();
                assert_eq!(decode(&text, form).as_deref(), Ok(bytes), "{text}");
            }
            assert_eq!(parse(&text(bytes)).as_deref(), Ok(bytes));
        }
        for (text, form) in [("a", "base64"), ("a=", "base64"), ("ä", "base64"), ("0", "hex"), ("", "none")]
        {
            assert_eq!(decode(text, form).unwrap_err().sqlstate, "22023", "{text}");
        }
    }
}
