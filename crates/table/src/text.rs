//! Values as text: what PostgreSQL prints and accepts.

use crate::{
    calendar,
    failure::Failure,
    numeric::Numeric,
    value::{Type, Value},
};

impl Value {
    /// PostgreSQL's text output; `None` for NULL.
    pub fn text(&self) -> Option<String> {
        Some(match self {
            Value::Null => return None,
            Value::Bool(b) => if *b { "t" } else { "f" }.to_owned(),
            Value::Int2(i) => i.to_string(),
            Value::Int4(i) => i.to_string(),
            Value::Int8(i) => i.to_string(),
            Value::Float8(f) => float_text(*f),
            Value::Numeric(number) => number.to_string(),
            Value::Text(text) => text.to_string(),
            Value::Date(days) => calendar::date_text(*days),
            Value::Timestamp(micros) => calendar::timestamp_text(*micros, false),
            Value::Timestamptz(micros) => calendar::timestamp_text(*micros, true),
        })
    }
}

/// Reads PostgreSQL's text input of a type. Refuses what the type's module says it refuses.
pub fn parse_text(ty: Type, text: &str) -> Result<Value, Failure> {
    Ok(match ty {
        Type::Bool => Value::Bool(parse_bool(text)?),
        Type::Int2 => Value::Int2(parse_integer(ty, text)?),
        Type::Int4 => Value::Int4(parse_integer(ty, text)?),
        Type::Int8 => Value::Int8(parse_integer(ty, text)?),
        Type::Float8 => Value::Float8(parse_float(text)?),
        Type::Numeric => Value::Numeric(Numeric::parse(text)?),
        Type::Text if text.contains('\0') => {
            return Err(Failure::new("22021", "invalid byte sequence for encoding \"UTF8\": 0x00"));
        }
        Type::Text => Value::text_of(text),
        Type::Date => Value::Date(calendar::parse_date(text)?),
        Type::Timestamp => Value::Timestamp(calendar::parse_timestamp(text, false)?),
        Type::Timestamptz => Value::Timestamptz(calendar::parse_timestamp(text, true)?),
    })
}

/// Blanks as C's `isspace` knows them.
fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b')
}

/// Any prefix of a word that tells it from the others.
fn parse_bool(text: &str) -> Result<bool, Failure> {
    let word = trim(text).to_ascii_lowercase();
    let begins = |full: &str, least: usize| word.len() >= least && full.starts_with(&word);
    if begins("true", 1) || begins("yes", 1) || begins("on", 2) || word == "1" {
        Ok(true)
    } else if begins("false", 1) || begins("no", 1) || begins("off", 2) || word == "0" {
        Ok(false)
    } else {
        Err(Failure::invalid_text(Type::Bool, text))
    }
}

fn parse_integer<I: TryFrom<i64>>(ty: Type, text: &str) -> Result<I, Failure> {
    let trimmed = trim(text);
    let digits = trimmed.strip_prefix(['-', '+']).unwrap_or(trimmed);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Failure::invalid_text(ty, text));
    }
    trimmed.parse::<i64>().ok().and_then(|integer| I::try_from(integer).ok()).ok_or_else(|| {
        Failure::new("22003", format!("value \"{text}\" is out of range for type {}", ty.name()))
    })
}

fn parse_float(text: &str) -> Result<f64, Failure> {
    let trimmed = trim(text);
    let unsigned = trimmed.strip_prefix(['-', '+']).unwrap_or(trimmed);
    // Rust reads what C reads except hexadecimal; words are told apart because only they may give no finite number.
    let number: f64 = trimmed.parse().map_err(|_| Failure::invalid_text(Type::Float8, text))?;
    let worded = unsigned.starts_with(|c: char| c.is_ascii_alphabetic());
    let mantissa = unsigned.split(['e', 'E']).next().unwrap_or_default();
    let lost = number == 0.0 && mantissa.bytes().any(|b| (b'1'..=b'9').contains(&b));
    if !worded && (number.is_infinite() || lost) {
        return Err(Failure::new(
            "22003",
            format!("\"{trimmed}\" is out of range for type double precision"),
        ));
    }
    Ok(number)
}

/// The shortest digits that read back as the same float, in PostgreSQL's layout: plain from 1e-4 up to 1e15.
fn float_text(float: f64) -> String {
    if float.is_nan() {
        return "NaN".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let shortest = format!("{float:e}");
    let (mantissa, exponent) = shortest.split_once('e').expect("exponent form");
    let exponent: i32 = exponent.parse().expect("an exponent");
    if (-4..15).contains(&exponent) {
        return format!("{float}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}
