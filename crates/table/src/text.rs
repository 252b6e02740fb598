//! Values as text, in PostgreSQL's output and input syntax.

use num_bigint::BigInt;
use num_traits::FromPrimitive;

use crate::{
    bytea, calendar,
    failure::Failure,
    json,
    numeric::Numeric,
    uuid,
    value::{Type, Value},
};

impl Value {
    /// Returns PostgreSQL's text output; `None` for NULL.
    pub fn text(&self) -> Option<String> {
        Some(match self {
            Value::Null => return None,
            Value::Bool(b) => if *b { "t" } else { "f" }.to_owned(),
            Value::Int2(i) => i.to_string(),
            Value::Int4(i) => i.to_string(),
            Value::Int8(i) => i.to_string(),
            Value::Float8(f) => float_text(*f),
            Value::Numeric(number) => number.to_string(),
            Value::Text(text) | Value::Json(text) | Value::Jsonb(text) | Value::Bpchar(text) => {
                text.to_string()
            }
            Value::Date(days) => calendar::date_text(*days),
            Value::Timestamp(micros) => calendar::timestamp_text(*micros, false),
            Value::Timestamptz(micros) => calendar::timestamp_text(*micros, true),
            Value::Uuid(uuid) => uuid::text(uuid),
            Value::Bytea(bytes) => bytea::text(bytes),
            Value::Float4(f) => real_text(*f),
            Value::Time(micros) => calendar::time_text(*micros),
        })
    }
}

/// Reads PostgreSQL's text input of a type. The type's module lists the forms that it refuses.
pub fn parse_text(ty: Type, text: &str) -> Result<Value, Failure> {
    Ok(match ty {
        Type::Bool => Value::Bool(parse_bool(text)?),
        Type::Int2 => Value::Int2(parse_integer(ty, text)?),
        Type::Int4 => Value::Int4(parse_integer(ty, text)?),
        Type::Int8 => Value::Int8(parse_integer(ty, text)?),
        Type::Float8 => Value::Float8(parse_float(Type::Float8, text)?),
        Type::Numeric => Value::Numeric(Numeric::parse(text)?),
        Type::Text | Type::Bpchar if text.contains('\0') => {
            return Err(Failure::new("22021", "invalid byte sequence for encoding \"UTF8\": 0x00"));
        }
        Type::Text => Value::text_of(text),
        Type::Bpchar => Value::Bpchar(text.into()),
        Type::Date => Value::Date(calendar::parse_date(text)?),
        Type::Timestamp => Value::Timestamp(calendar::parse_timestamp(text, false)?),
        Type::Timestamptz => Value::Timestamptz(calendar::parse_timestamp(text, true)?),
        Type::Uuid => Value::Uuid(uuid::parse(text)?),
        Type::Bytea => Value::bytes_of(bytea::parse(text)?),
        Type::Json => {
            json::check(text)?;
            Value::Json(text.into())
        }
        Type::Jsonb => Value::Jsonb(json::normalized(text)?.into()),
        Type::Float4 => Value::Float4(parse_real(text)?),
        Type::Time => Value::Time(calendar::parse_time(text)?),
    })
}

/// Removes the blanks that C's `isspace` accepts.
fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b')
}

/// Reads a boolean: any unambiguous prefix of a word.
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
    // Most texts are a number without blanks, so this case comes first.
    if let Some(integer) = text.parse::<i64>().ok().and_then(|integer| I::try_from(integer).ok()) {
        return Ok(integer);
    }
    let trimmed = trim(text);
    let sign = usize::from(trimmed.starts_with(['-', '+']));
    let digits = trimmed[sign..].bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return Err(Failure::invalid_text(ty, text));
    }
    // As in PostgreSQL, a number out of range is reported before any text behind it.
    let (number, rest) = trimmed.split_at(sign + digits);
    let integer =
        number.parse::<i64>().ok().and_then(|integer| I::try_from(integer).ok()).ok_or_else(|| {
            Failure::new("22003", format!("value \"{text}\" is out of range for type {}", ty.name()))
        })?;
    if rest.is_empty() { Ok(integer) } else { Err(Failure::invalid_text(ty, text)) }
}

fn parse_real(text: &str) -> Result<f32, Failure> {
    // Rounding twice could give another number, so the digits are read as they are.
    let wide = parse_float(Type::Float4, text)?;
    let number: f32 = trim(text).parse().map_err(|_| Failure::invalid_text(Type::Float4, text))?;
    if (wide.is_finite() && number.is_infinite()) || (wide != 0.0 && number == 0.0) {
        return Err(float_out_of_range(Type::Float4, trim(text)));
    }
    Ok(number)
}

/// Returns the failure of digits whose number overflows to infinity or underflows to zero.
pub(crate) fn float_out_of_range(ty: Type, digits: &str) -> Failure {
    Failure::new("22003", format!("\"{digits}\" is out of range for type {}", ty.name()))
}

fn parse_float(ty: Type, text: &str) -> Result<f64, Failure> {
    let trimmed = trim(text);
    let unsigned = trimmed.strip_prefix(['-', '+']).unwrap_or(trimmed);
    // Rust reads the same forms as C except hexadecimal. Only a word, such as `inf`, may give a number that
    // is not finite: digits that give such a number are out of range.
    let number: f64 = trimmed.parse().map_err(|_| Failure::invalid_text(ty, text))?;
    let worded = unsigned.starts_with(|c: char| c.is_ascii_alphabetic());
    let mantissa = unsigned.split(['e', 'E']).next().unwrap_or_default();
    let lost = number == 0.0 && mantissa.bytes().any(|b| (b'1'..=b'9').contains(&b));
    if !worded && (number.is_infinite() || lost) {
        return Err(float_out_of_range(ty, trimmed));
    }
    Ok(number)
}

/// Returns the shortest digits that read back as the same float, in PostgreSQL's layout: plain from 1e-4 up
/// to 1e15.
fn float_text(float: f64) -> String {
    if float.is_nan() {
        return "NaN".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    laid_out(&shortest_inside(float), 15)
}

/// Returns the shortest digits that read back as the same `real`, in PostgreSQL's layout: plain from 1e-4 up
/// to 1e6.
fn real_text(real: f32) -> String {
    match real.is_finite() {
        true => laid_out(&shortest_real(real), 6),
        false => float_text(real.into()),
    }
}

/// Lays out digits in exponent form. Numbers below ten to the power of `plain_max` are written without an
/// exponent.
fn laid_out(digits: &str, plain_max: i32) -> String {
    let (mantissa, exponent) = digits.split_once('e').expect("exponent form");
    let exponent: i32 = exponent.parse().expect("an exponent");
    if (-4..plain_max).contains(&exponent) {
        return plain(mantissa, exponent);
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Returns the shortest digits that are nearer to this `real` than to any other; see [`shortest_inside`].
fn shortest_real(real: f32) -> String {
    let shortest = format!("{real:e}");
    let decimals = shortest.bytes().take_while(|&b| b != b'e').filter(u8::is_ascii_digit).count() - 1;
    let half_way = |digits: &str| {
        let magnitude = real.abs();
        let neighbours = [magnitude.next_up(), magnitude.next_down()];
        // Below 2^25, a number half way between two floats has more digits than the shortest ones. From 2^25
        // on, all floats are integers, and the shortest digits may lie half way.
        magnitude >= 2f32.powi(25)
            && neighbours
                .into_iter()
                .any(|next| next.is_finite() && is_mean(digits, magnitude.into(), next.into()))
    };
    if decimals < 5 && !half_way(&shortest) {
        return shortest;
    }
    (decimals..9)
        .map(|decimals| format!("{real:.decimals$e}"))
        .find(|digits| digits.parse() == Ok(real) && !half_way(digits))
        .unwrap_or(shortest)
}

/// Returns the number of these digits and this exponent, written without an exponent.
fn plain(mantissa: &str, exponent: i32) -> String {
    let sign = if mantissa.starts_with('-') { "-" } else { "" };
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    if exponent < 0 {
        return format!("{sign}0.{}{digits}", "0".repeat((-exponent - 1) as usize));
    }
    let whole = exponent as usize + 1;
    match digits.split_at_checked(whole) {
        Some((whole, "")) => format!("{sign}{whole}"),
        Some((whole, fraction)) => format!("{sign}{whole}.{fraction}"),
        None => format!("{sign}{digits:0<whole$}"),
    }
}

/// Returns the shortest digits that are nearer to this float than to any other. Rust's shortest digits differ
/// in two cases. They may lie exactly half way to the next float, and read back only by the rule for ties
/// (1e23). And of two candidates that are equally short and near, Rust takes the upper, PostgreSQL the even
/// one (900719925474099.25). Both cases need at least fifteen digits, or a large number.
fn shortest_inside(float: f64) -> String {
    let shortest = format!("{float:e}");
    let decimals = shortest.bytes().take_while(|&b| b != b'e').filter(u8::is_ascii_digit).count() - 1;
    let half_way = is_half_way(&shortest, float);
    if decimals < 14 && !half_way {
        return shortest;
    }
    (decimals..17)
        .map(|decimals| format!("{float:.decimals$e}"))
        .find(|digits| digits.parse() == Ok(float) && !is_half_way(digits, float))
        .unwrap_or(shortest)
}

/// Whether digits lie exactly between a float and its neighbour. Below 2^54, that takes more than seventeen
/// digits.
fn is_half_way(digits: &str, float: f64) -> bool {
    let magnitude = float.abs();
    if magnitude < 2f64.powi(54) {
        return false;
    }
    let neighbours = [magnitude.next_up(), magnitude.next_down()];
    neighbours.into_iter().any(|next| next.is_finite() && is_mean(digits, magnitude, next))
}

/// Whether digits of either sign are the mean of two positive integers.
fn is_mean(digits: &str, a: f64, b: f64) -> bool {
    let exact = |float: f64| BigInt::from_f64(float).expect("finite");
    let number = Numeric::parse(digits.trim_start_matches('-')).expect("a decimal");
    let read: BigInt = number.to_string().parse().expect("an integer");
    exact(a) + exact(b) == read * 2
}
