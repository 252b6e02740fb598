//! The text of a `uuid`, and random values of the type.

use crate::{failure::Failure, types::Type};

/// The number of bytes of a `uuid`.
pub const BYTES: usize = 16;

/// The number of hexadecimal digits in each part of the text.
const PARTS: [usize; 5] = [8, 4, 4, 4, 12];

/// Returns the text: hexadecimal digits in five parts.
pub fn text(uuid: &[u8; BYTES]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(*uuid));
    let mut text = String::with_capacity(36);
    let mut rest = digits.as_str();
    for (index, length) in PARTS.into_iter().enumerate() {
        let (part, behind) = rest.split_at(length);
        if index > 0 {
            text.push('-');
        }
        text.push_str(part);
        rest = behind;
    }
    text
}

/// Reads a text. As in PostgreSQL, the text may be in braces, and a hyphen may stand behind each group of
/// four digits.
pub fn parse(text: &str) -> Result<[u8; BYTES], Failure> {
    digits(text).map(u128::to_be_bytes).ok_or_else(|| Failure::invalid_text(Type::Uuid, text))
}

fn digits(text: &str) -> Option<u128> {
    let inner = match text.strip_prefix('{') {
        Some(rest) => rest.strip_suffix('}')?,
        None => text,
    };
    let (mut number, mut count) = (0, 0);
    let mut bytes = inner.bytes().peekable();
    while count < 2 * BYTES {
        let digit = char::from(bytes.next()?).to_digit(16)?;
        number = number << 4 | u128::from(digit);
        count += 1;
        if count % 4 == 0 && count < 2 * BYTES {
            bytes.next_if_eq(&b'-');
        }
    }
    bytes.next().is_none().then_some(number)
}

/// Returns the value of version 4 that these random bytes make.
pub fn random(mut bytes: [u8; BYTES]) -> [u8; BYTES] {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_postgresql_are_read() {
        let canonical = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
        for form in [
            canonical,
            "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
            "{a0eebc99-9c0b4ef8-bb6d6bb9-bd380a11}",
            "a0eebc999c0b4ef8bb6d6bb9bd380a11",
            "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11",
        ] {
            assert_eq!(text(&parse(form).unwrap()), canonical, "{form}");
        }
        for form in [
            "",
            "{",
            "{}",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a111",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11-",
            "a0eebc99--9c0b-4ef8-bb6d-6bb9bd380a11",
            "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}",
            " a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "g0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        ] {
            assert_eq!(parse(form).unwrap_err().sqlstate, "22P02", "{form}");
        }
    }

    #[test]
    fn random_values_have_their_version_and_variant() {
        for fill in [0, 0xff] {
            let text = text(&random([fill; BYTES]));
            assert_eq!(&text[14..15], "4");
            assert!(matches!(&text[19..20], "8" | "b"), "{text}");
        }
    }
}
