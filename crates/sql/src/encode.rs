//! Values on the wire, in text and in binary.

use bytes::{BufMut, BytesMut};
use quorate_roles::tables::rows::Cell;
use quorate_table::{
    calendar,
    interval::Interval,
    numeric::{Numeric, SCALE_MAX},
    text::parse_text,
    value::{Type, Value},
};
use smallvec::{SmallVec, smallvec};

use crate::{
    array,
    error::{Result, SqlError, code},
    types::PgType,
};

/// The format of a value on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// As PostgreSQL prints the value.
    Text,
    /// As PostgreSQL's `typsend` sends the value.
    Binary,
}

/// The formats of a result's columns. Few results have more than 16 columns.
pub type Formats = SmallVec<[Format; 16]>;

/// Returns the formats of `count` columns from the format codes of a Bind. No code means text, and one code
/// applies to all columns.
pub fn formats(mut codes: impl ExactSizeIterator<Item = i16>, count: usize) -> Result<Formats> {
    let format = |code: i16| match code {
        0 => Ok(Format::Text),
        1 => Ok(Format::Binary),
        other => {
            Err(SqlError::new(code::INVALID_PARAMETER_VALUE, format!("unsupported format code: {other}")))
        }
    };
    match codes.len() {
        0 => Ok(smallvec![Format::Text; count]),
        1 => Ok(smallvec![codes.next().map_or(Ok(Format::Text), format)?; count]),
        each if each == count => codes.map(format).collect(),
        each => Err(SqlError::new(
            code::PROTOCOL_VIOLATION,
            format!("bind message has {each} format codes but there are {count} values"),
        )),
    }
}

/// Writes a field: its length and its bytes, or the length of NULL.
pub fn field(value: &Value, ty: PgType, format: Format, buffer: &mut BytesMut) {
    if value.is_null() {
        buffer.put_i32(-1);
        return;
    }
    let at = buffer.len();
    buffer.put_i32(0);
    match format {
        Format::Text => text(value, buffer),
        Format::Binary => binary(value, ty, buffer),
    }
    let length = (buffer.len() - at - 4) as i32;
    buffer[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// Writes a field whose value is still encoded in an answer.
pub fn cell(cell: Cell<'_>, ty: PgType, format: Format, buffer: &mut BytesMut) {
    match (cell, ty) {
        // Only a plain text has the same bytes in both formats.
        (Cell::Text(text), PgType::Plain(Type::Text) | PgType::Varchar) => {
            buffer.put_i32(text.len() as i32);
            buffer.put_slice(text.as_bytes());
        }
        (cell, ty) => field(&cell.value(), ty, format, buffer),
    }
}

fn text(value: &Value, buffer: &mut BytesMut) {
    match value {
        Value::Text(text) | Value::Json(text) | Value::Jsonb(text) | Value::Bpchar(text) => {
            buffer.put_slice(text.as_bytes());
        }
        other => buffer.put_slice(other.text().unwrap_or_default().as_bytes()),
    }
}

fn binary(value: &Value, ty: PgType, buffer: &mut BytesMut) {
    match (value, ty) {
        (Value::Int8(oid), ty) if ty.is_oid() => buffer.put_u32(*oid as u32),
        (Value::Text(text), PgType::Interval) => {
            let interval = Interval::parse(text).unwrap_or_default();
            buffer.put_i64(interval.micros);
            buffer.put_i32(interval.days);
            buffer.put_i32(interval.months);
        }
        (Value::Text(text), ty) if ty.element().is_some() => array_to_binary(text, ty, buffer),
        (Value::Bool(truth), _) => buffer.put_u8(u8::from(*truth)),
        (Value::Int2(i), _) => buffer.put_i16(*i),
        (Value::Int4(i) | Value::Date(i), _) => buffer.put_i32(*i),
        (Value::Int8(i) | Value::Timestamp(i) | Value::Timestamptz(i), _) => buffer.put_i64(*i),
        (Value::Float8(float), _) => buffer.put_f64(*float),
        (Value::Float4(float), _) => buffer.put_f32(*float),
        (Value::Time(micros), _) => buffer.put_i64(*micros),
        (Value::Numeric(number), _) => numeric(number, buffer),
        (Value::Text(text), _) => buffer.put_slice(text.as_bytes()),
        (Value::Uuid(uuid), _) => buffer.put_slice(uuid),
        (Value::Bytea(bytes), _) => buffer.put_slice(bytes),
        (Value::Json(text) | Value::Bpchar(text), _) => buffer.put_slice(text.as_bytes()),
        (Value::Jsonb(text), _) => {
            buffer.put_u8(JSONB_VERSION);
            buffer.put_slice(text.as_bytes());
        }
        (Value::Null, _) => unreachable!("NULL has no bytes"),
    }
}

/// Writes an array of one dimension, which is carried as its text form.
fn array_to_binary(text: &str, ty: PgType, buffer: &mut BytesMut) {
    let element = ty.element().expect("an array has elements");
    let elements = array::values(text, ty).unwrap_or_default();
    buffer.put_i32(i32::from(!elements.is_empty()));
    buffer.put_i32(i32::from(elements.iter().any(Value::is_null)));
    buffer.put_u32(element.oid());
    if elements.is_empty() {
        return;
    }
    buffer.put_i32(elements.len() as i32);
    let vector = matches!(ty, PgType::Int2Vector | PgType::OidVector);
    buffer.put_i32(i32::from(!vector));
    for value in elements {
        field(&value, element, Format::Binary, buffer);
    }
}

/// The first byte of a `jsonb` on the wire.
const JSONB_VERSION: u8 = 1;

/// The signs of a numeric on the wire.
const POSITIVE: u16 = 0x0000;
const NEGATIVE: u16 = 0x4000;
const NOT_A_NUMBER: u16 = 0xC000;
const INFINITY: u16 = 0xD000;
const NEGATIVE_INFINITY: u16 = 0xF000;

/// Writes a numeric: digits in base 10,000 with a weight, a sign and a display scale. All four are derived
/// from the text form.
fn numeric(number: &Numeric, buffer: &mut BytesMut) {
    let text = number.to_string();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (NEGATIVE, digits),
        None => (POSITIVE, text.as_str()),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        buffer.put_i16(0);
        buffer.put_i16(0);
        buffer.put_u16(NOT_A_NUMBER);
        buffer.put_i16(0);
        return;
    }
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let lead = (4 - whole.len() % 4) % 4;
    let trail = (4 - fraction.len() % 4) % 4;
    let padded: Vec<u8> = std::iter::repeat_n(b'0', lead)
        .chain(whole.bytes())
        .chain(fraction.bytes())
        .chain(std::iter::repeat_n(b'0', trail))
        .collect();
    let groups: Vec<i16> = padded
        .chunks(4)
        .map(|group| group.iter().fold(0, |sum, digit| sum * 10 + i16::from(digit - b'0')))
        .collect();
    let whole_groups = (lead + whole.len()) / 4;
    let first = groups.iter().position(|group| *group != 0);
    let (groups, weight) = match first {
        None => (&[][..], 0),
        Some(first) => {
            let last = groups
                .iter()
                .rposition(|group| *group != 0)
                .expect("a number has a last group that is not zero if it has a first");
            (&groups[first..=last], whole_groups as i16 - 1 - first as i16)
        }
    };
    buffer.put_i16(groups.len() as i16);
    buffer.put_i16(weight);
    buffer.put_u16(if groups.is_empty() { POSITIVE } else { sign });
    buffer.put_i16(fraction.len() as i16);
    for group in groups {
        buffer.put_i16(*group);
    }
}

/// Reads the value of a parameter.
pub fn parameter(bytes: Option<&[u8]>, ty: PgType, format: Format, number: usize) -> Result<Value> {
    let Some(bytes) = bytes else { return Ok(Value::Null) };
    match format {
        Format::Text => {
            let text = utf8(bytes)?;
            // A parameter for an object id may be a name. The function that uses the parameter looks the
            // object id up.
            if ty.is_oid() && ty != PgType::Oid && text.parse::<u32>().is_err() {
                return Ok(Value::text_of(text));
            }
            let value = parse_text(ty.plain(), text)?;
            if ty.plain().is_json() { Ok(value) } else { checked(value, ty) }
        }
        Format::Binary => from_binary(bytes, ty).map_err(|mut error| {
            if error.code == code::INVALID_BINARY_REPRESENTATION {
                error.message = format!("{} in bind parameter {}", error.message, number + 1);
            }
            error
        }),
    }
}

/// Refuses a malformed text of an interval, an array or a document, and normalizes a `jsonb`.
pub fn checked(value: Value, ty: PgType) -> Result<Value> {
    match &value {
        Value::Json(text) | Value::Jsonb(text) => return Ok(parse_text(ty.plain(), text)?),
        Value::Text(text) if ty == PgType::Interval => {
            Interval::parse(text)?;
        }
        Value::Text(text) if ty.element().is_some() => {
            array::values(text, ty)?;
        }
        _ => {}
    }
    Ok(value)
}

/// Returns the bytes as text. Fails with an error that shows the malformed bytes (22021) if they are not
/// UTF-8.
pub fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|error| {
        let wrong = &bytes[error.valid_up_to()..];
        // The malformed character is shown with as many bytes as its first byte announces.
        let length = match wrong[0] {
            0xc0..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf7 => 4,
            _ => 1,
        };
        let shown: Vec<String> = wrong.iter().take(length).map(|byte| format!("0x{byte:02x}")).collect();
        let message = format!("invalid byte sequence for encoding \"UTF8\": {}", shown.join(" "));
        SqlError::new(code::CHARACTER_NOT_IN_REPERTOIRE, message)
    })
}

/// Refuses a date or a timestamp outside the range of its type (22008). A client can send such a value in
/// binary, and so can a program that uses the library. The value would be stored and could not be read again.
pub fn in_range(value: Value) -> Result<Value> {
    match value {
        Value::Date(days) if !matches!(days, i32::MIN | i32::MAX) => {
            calendar::check_date(days.into())?;
        }
        Value::Time(micros) if !(0..=calendar::DAY).contains(&micros) => {
            return Err(SqlError::new("22008", "time out of range"));
        }
        Value::Timestamp(micros) | Value::Timestamptz(micros) if !matches!(micros, i64::MIN | i64::MAX) => {
            calendar::check_timestamp(micros.into())?;
        }
        _ => {}
    }
    Ok(value)
}

/// Reads a binary value.
pub fn from_binary(bytes: &[u8], ty: PgType) -> Result<Value> {
    // As in PostgreSQL, too few bytes are a protocol error, and too many are a format error.
    fn exactly<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
        bytes.try_into().map_err(|_| if bytes.len() < N { short() } else { malformed() })
    }
    if ty.is_oid() {
        return exactly(bytes).map(|b| Value::Int8(i64::from(u32::from_be_bytes(b))));
    }
    if ty == PgType::Interval {
        let parts = exactly::<16>(bytes)?;
        let (micros, rest) = parts.split_first_chunk::<8>().expect("16 bytes");
        let (days, months) = rest.split_first_chunk::<4>().expect("8 bytes");
        let interval = Interval {
            months: i32::from_be_bytes(months.try_into().expect("4 bytes")),
            days: i32::from_be_bytes(*days),
            micros: i64::from_be_bytes(*micros),
        };
        // An interval travels as its text, so the text must mean the same interval.
        let text = interval.text();
        if Interval::parse(&text).ok() != Some(interval) {
            return Err(SqlError::new("22008", "interval out of range"));
        }
        return Ok(Value::text_of(text));
    }
    if ty == PgType::Char && bytes.len() != 1 {
        return Err(malformed());
    }
    if ty == PgType::Name && bytes.len() >= NAME_BYTES {
        return Err(SqlError::new("42622", "identifier too long")
            .detail(format!("Identifier must be less than {NAME_BYTES} characters.")));
    }
    if let Some(element) = ty.element() {
        let lowest = i32::from(!matches!(ty, PgType::Int2Vector | PgType::OidVector));
        return array_from_binary(bytes, element, lowest)?.ok_or_else(malformed);
    }
    let value = match ty.plain() {
        Type::Bool => exactly::<1>(bytes).map(|b| Value::Bool(b[0] != 0)),
        Type::Int2 => exactly(bytes).map(|b| Value::Int2(i16::from_be_bytes(b))),
        Type::Int4 => exactly(bytes).map(|b| Value::Int4(i32::from_be_bytes(b))),
        Type::Int8 => exactly(bytes).map(|b| Value::Int8(i64::from_be_bytes(b))),
        Type::Float4 => exactly(bytes).map(|b| Value::Float4(f32::from_be_bytes(b))),
        Type::Time => exactly(bytes).map(|b| Value::Time(i64::from_be_bytes(b))),
        Type::Float8 => exactly(bytes).map(|b| Value::Float8(f64::from_be_bytes(b))),
        Type::Date => exactly(bytes).map(|b| Value::Date(i32::from_be_bytes(b))),
        Type::Timestamp => exactly(bytes).map(|b| Value::Timestamp(i64::from_be_bytes(b))),
        Type::Timestamptz => exactly(bytes).map(|b| Value::Timestamptz(i64::from_be_bytes(b))),
        Type::Uuid => exactly(bytes).map(Value::Uuid),
        Type::Bytea => return Ok(Value::bytes_of(bytes)),
        ty @ (Type::Json | Type::Bpchar) => return Ok(parse_text(ty, utf8(bytes)?)?),
        Type::Jsonb => match bytes {
            [] => return Err(short()),
            [JSONB_VERSION, text @ ..] => return Ok(parse_text(Type::Jsonb, utf8(text)?)?),
            [other, ..] => {
                let message = format!("unsupported jsonb version number {other}");
                return Err(SqlError::new(code::INTERNAL_ERROR, message));
            }
        },
        Type::Numeric => return numeric_from_binary(bytes),
        Type::Text => return Ok(parse_text(Type::Text, utf8(bytes)?)?),
    };
    in_range(value?)
}

fn malformed() -> SqlError {
    SqlError::new(code::INVALID_BINARY_REPRESENTATION, "incorrect binary data format")
}

fn short() -> SqlError {
    SqlError::new(code::PROTOCOL_VIOLATION, "insufficient data left in message")
}

/// Size of a `name` in bytes, including the byte that ends it.
const NAME_BYTES: usize = 64;

/// Reads an array of one dimension. The binary form has the number of dimensions, whether there are NULLs,
/// the element's type, the length, the first index, and the elements.
fn array_from_binary(mut bytes: &[u8], element: PgType, lowest: i32) -> Result<Option<Value>> {
    fn word(bytes: &mut &[u8]) -> Option<i32> {
        let (word, rest) = bytes.split_first_chunk::<4>()?;
        *bytes = rest;
        Some(i32::from_be_bytes(*word))
    }
    let header = (word(&mut bytes), word(&mut bytes), word(&mut bytes));
    let (Some(dimensions), Some(0 | 1), Some(oid)) = header else { return Ok(None) };
    if oid as u32 != element.oid() {
        return Err(SqlError::new(code::DATATYPE_MISMATCH, "wrong element type"));
    }
    let count = match dimensions {
        0 => 0,
        1 => match (word(&mut bytes), word(&mut bytes)) {
            (Some(count @ 0..), Some(first)) if first == lowest || count == 0 => count,
            (Some(0..), Some(_)) => return Err(array::other_bounds()),
            _ => return Ok(None),
        },
        ..0 => return Ok(None),
        _ => return Err(SqlError::unsupported("an array of several dimensions")),
    };
    let mut elements = Vec::new();
    for _ in 0..count {
        let Some(length) = word(&mut bytes) else { return Ok(None) };
        elements.push(match usize::try_from(length) {
            Err(_) if length == -1 => None,
            Err(_) => return Ok(None),
            Ok(length) => {
                let Some((value, rest)) = bytes.split_at_checked(length) else { return Ok(None) };
                bytes = rest;
                from_binary(value, element)?.text()
            }
        });
    }
    Ok(bytes.is_empty().then(|| Value::text_of(array::text(elements))))
}

fn numeric_from_binary(bytes: &[u8]) -> Result<Value> {
    let invalid = |what: &str| {
        let message = format!("invalid {what} in external \"numeric\" value");
        Err(SqlError::new(code::INVALID_BINARY_REPRESENTATION, message))
    };
    let mut words = bytes.chunks_exact(2).map(|word| i16::from_be_bytes([word[0], word[1]]));
    let mut word = || words.next().ok_or_else(short);
    let (count, weight, sign, scale) = (usize::from(word()? as u16), word()?, word()? as u16, word()?);
    if !matches!(sign, POSITIVE | NEGATIVE | NOT_A_NUMBER | INFINITY | NEGATIVE_INFINITY) {
        return invalid("sign");
    }
    let Some(scale) = u16::try_from(scale).ok().filter(|scale| *scale <= SCALE_MAX) else {
        return invalid("scale");
    };
    let digits = (0..count).map(|_| word()).collect::<Result<Vec<i16>>>()?;
    if digits.iter().any(|digit| !(0..10_000).contains(digit)) {
        return invalid("digit");
    }
    if bytes.len() != 8 + 2 * count {
        return Err(malformed());
    }
    let mut text = String::new();
    match sign {
        POSITIVE => {}
        NEGATIVE => text.push('-'),
        NOT_A_NUMBER => return Ok(parse_text(Type::Numeric, "NaN")?),
        _ => return Ok(parse_text(Type::Numeric, "infinity")?),
    }
    let group = |position: i32| {
        let index = i32::from(weight) - position;
        usize::try_from(index).ok().and_then(|index| digits.get(index)).copied().unwrap_or(0)
    };
    text.push('0');
    for position in (0..=i32::from(weight)).rev() {
        text.push_str(&format!("{:04}", group(position)));
    }
    if scale > 0 {
        let mut fraction = String::new();
        let mut position = -1;
        while fraction.len() < usize::from(scale) {
            fraction.push_str(&format!("{:04}", group(position)));
            position -= 1;
        }
        text.push('.');
        text.push_str(&fraction[..usize::from(scale)]);
    }
    Ok(parse_text(Type::Numeric, &text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a value in both formats. Decoding must give the same value.
    fn check(ty: Type, text: &str) {
        let value = parse_text(ty, text).unwrap();
        for format in [Format::Text, Format::Binary] {
            let mut buffer = BytesMut::new();
            field(&value, PgType::Plain(ty), format, &mut buffer);
            let length = i32::from_be_bytes(buffer[..4].try_into().unwrap()) as usize;
            assert_eq!(length, buffer.len() - 4);
            let back = parameter(Some(&buffer[4..]), PgType::Plain(ty), format, 0).unwrap();
            assert_eq!(back, value, "{text} as {format:?}");
        }
    }

    #[test]
    fn encoded_values_decode_unchanged() {
        for text in
            ["0", "1", "-1", "0.5", "10000", "12345678.000100", "-0.00001", "99999999999999999999.9", "1.50"]
        {
            check(Type::Numeric, text);
        }
        check(Type::Int2, "-32768");
        check(Type::Int4, "2147483647");
        check(Type::Int8, "-9223372036854775808");
        check(Type::Float8, "1.5e-7");
        check(Type::Bool, "t");
        check(Type::Text, "Zürich");
        check(Type::Date, "2013-01-01");
        check(Type::Timestamp, "2013-01-01 05:15:00.25");
        check(Type::Timestamptz, "1969-12-31 23:59:59+00");
        check(Type::Uuid, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11");
        check(Type::Bytea, "\\x00ff41");
        check(Type::Bpchar, "ab  ");
        check(Type::Float4, "1.5e-07");
        check(Type::Time, "23:59:59.000001");
        check(Type::Json, " [1,  2] ");
        check(Type::Jsonb, "{\"a\": [1.0, \"é\"]}");
    }

    /// The encoding of 12345.678 as a numeric must equal the bytes that PostgreSQL 15 sends.
    #[test]
    fn a_numeric_is_encoded_as_postgresql_encodes_it() {
        let mut buffer = BytesMut::new();
        numeric(&Numeric::parse("12345.678").unwrap(), &mut buffer);
        assert_eq!(buffer[..], [0, 3, 0, 1, 0, 0, 0, 3, 0, 1, 9, 41, 26, 124]);
    }

    #[test]
    fn damaged_binary_parameters_are_refused() {
        for length in 0..12 {
            let bytes = vec![0xff; length];
            for ty in [Type::Bool, Type::Int2, Type::Numeric, Type::Date, Type::Timestamp, Type::Text] {
                let _ = parameter(Some(&bytes), PgType::Plain(ty), Format::Binary, 0);
            }
        }
        assert_eq!(parameter(Some(b"12"), PgType::INT4, Format::Binary, 0).unwrap_err().code, "08P01");
        assert_eq!(parameter(Some(b"12345"), PgType::INT4, Format::Binary, 0).unwrap_err().code, "22P03");
    }
}
