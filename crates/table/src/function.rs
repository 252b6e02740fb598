//! Scalar functions.
//!
//! Characters are Unicode scalar values. Case conversion maps one character to one, as C libraries do (`ß`
//! stays). Transcendental functions come from `libm` rather than from the platform, because replicas on
//! different machines must agree on every bit. A text grows to at most 64 MiB (54000), so that a statement
//! cannot exhaust a process's memory.

use crate::{
    bytea, calendar,
    expr::Function,
    failure::Failure,
    fields,
    interval::{self, Interval},
    json::{self, Kind, Step},
    length::bounded,
    numeric::Numeric,
    operator::{Binary, binary, negate},
    template,
    value::{Type, Value},
};

/// Returns the value of a function on arguments that were all evaluated.
pub(crate) fn apply(function: Function, values: &[&Value]) -> Result<Value, Failure> {
    Ok(match (function, values) {
        (Function::Concat, texts) => joined("", texts)?,
        (Function::Join, [Value::Text(separator), texts @ ..]) => joined(separator, texts)?,
        (Function::NullIf, [a, b]) => match binary(Binary::Equal, a, b)? {
            Value::Bool(true) => Value::Null,
            _ => (*a).clone(),
        },
        _ if values.iter().any(|value| value.is_null()) => Value::Null,
        (Function::Fit(modifier), [value]) => modifier.fit((*value).clone())?,
        (Function::Shift, [timestamp, Value::Int4(months), Value::Int4(days), Value::Int8(micros)]) => {
            let interval = Interval { months: *months, days: *days, micros: *micros };
            match timestamp {
                Value::Timestamp(at) => Value::Timestamp(interval.after(*at)?),
                Value::Timestamptz(at) => Value::Timestamptz(interval.after(*at)?),
                _ => return Err(misfit(function)),
            }
        }
        (
            Function::Elapsed,
            [Value::Timestamp(to), Value::Timestamp(from)]
            | [Value::Timestamptz(to), Value::Timestamptz(from)],
        ) => Value::Int8(interval::elapsed(*from, *to)?),
        (Function::IntervalText, [Value::Int4(months), Value::Int4(days), Value::Int8(micros)]) => {
            Value::text_of(Interval { months: *months, days: *days, micros: *micros }.text())
        }
        (
            Function::IntervalField,
            [Value::Text(field), Value::Int4(months), Value::Int4(days), Value::Int8(micros)],
        ) => Value::Numeric(Interval { months: *months, days: *days, micros: *micros }.extract(field)?),
        (Function::Abs, [Value::Float4(x)]) => Value::Float4(x.abs()),
        (_, [Value::Float8(x), rest @ ..]) => on_float(function, *x, rest)?,
        (_, [Value::Numeric(x), rest @ ..]) => on_numeric(function, x, rest)?,
        (Function::DateTrunc | Function::Extract, [Value::Text(field), source]) => {
            if function == Function::Extract {
                fields::extract(field, source)?
            } else {
                fields::truncate(field, source)?
            }
        }
        (Function::ToChar, [Value::Timestamp(at), Value::Text(template)]) => to_char(*at, false, template)?,
        (Function::ToChar, [Value::Timestamptz(at), Value::Text(template)]) => to_char(*at, true, template)?,
        (Function::Chr, [Value::Int4(number)]) => character(*number)?,
        (Function::Decode, [Value::Text(text), Value::Text(form)]) => {
            Value::bytes_of(bytea::decode(text, form)?)
        }
        (_, [Value::Text(text), rest @ ..]) => on_text(function, text, rest)?,
        (_, [Value::Json(document), rest @ ..]) => on_json(function, document, Kind::Json, rest)?,
        (_, [Value::Jsonb(document), rest @ ..]) => on_json(function, document, Kind::Jsonb, rest)?,
        (Function::OctetLength, [Value::Bpchar(text)]) => Value::Int4(text.len() as i32),
        (_, [Value::Bytea(bytes), rest @ ..]) => on_bytes(function, bytes, rest)?,
        (Function::Abs, [integer]) if integer.as_integer().is_some() => {
            let negative = integer.as_integer().is_some_and(i64::is_negative);
            if negative { negate(integer)? } else { (*integer).clone() }
        }
        (Function::MakeDate, [Value::Int4(year), Value::Int4(month), Value::Int4(day)]) => {
            Value::Date(calendar::make_date(*year, *month, *day)?)
        }
        _ => return Err(misfit(function)),
    })
}

fn misfit(function: Function) -> Failure {
    Failure::malformed(format_args!("the function {function:?} does not take the types of its arguments"))
}

/// Joins the texts that are not NULL.
fn joined(separator: &str, texts: &[&Value]) -> Result<Value, Failure> {
    let mut joined = String::new();
    let mut first = true;
    for text in texts {
        match text {
            Value::Null => {}
            Value::Text(text) | Value::Bpchar(text) => {
                bounded(joined.len() + separator.len() + text.len())?;
                if !std::mem::take(&mut first) {
                    joined.push_str(separator);
                }
                joined.push_str(text);
            }
            _ => return Err(misfit(Function::Join)),
        }
    }
    Ok(Value::text_of(joined))
}

fn to_char(at: i64, zoned: bool, template: &str) -> Result<Value, Failure> {
    if template.is_empty() || matches!(at, i64::MIN | i64::MAX) {
        return Ok(Value::Null);
    }
    bounded(template.len().saturating_mul(template::GROWTH_MAX))?;
    Ok(Value::text_of(template::formatted(at, zoned, template)))
}

fn character(number: i32) -> Result<Value, Failure> {
    let refused = |message: String| Err(Failure::new("54000", message));
    match u32::try_from(number) {
        Err(_) => Err(Failure::new("22023", "character number must be positive")),
        Ok(0) => refused("null character not permitted".to_owned()),
        Ok(number) if number > char::MAX.into() => {
            refused(format!("requested character too large for encoding: {number}"))
        }
        Ok(number) => match char::from_u32(number) {
            Some(character) => Ok(Value::text_of(character.to_string())),
            None => refused(format!("requested character not valid for encoding: {number}")),
        },
    }
}

fn on_float(function: Function, x: f64, rest: &[&Value]) -> Result<Value, Failure> {
    let domain = |message: &str| Err(Failure::new("2201F", message));
    let logarithm = || {
        let which = if x == 0.0 { "zero" } else { "a negative number" };
        Failure::new("2201E", format!("cannot take logarithm of {which}"))
    };
    Ok(Value::Float8(match (function, rest) {
        (Function::Abs, []) => x.abs(),
        // The sign of NaN is 0.
        (Function::Sign, []) => f64::from(i8::from(x > 0.0) - i8::from(x < 0.0)),
        (Function::Round, []) => x.round_ties_even(),
        (Function::Trunc, []) => x.trunc(),
        (Function::Floor, []) => x.floor(),
        (Function::Ceil, []) => x.ceil(),
        (Function::Sqrt, []) if x < 0.0 => return domain("cannot take square root of a negative number"),
        (Function::Sqrt, []) => x.sqrt(),
        (Function::Ln | Function::Log10, []) if x <= 0.0 => return Err(logarithm()),
        (Function::Ln, []) => libm::log(x),
        (Function::Log10, []) => libm::log10(x),
        (Function::Exp, []) => in_range(libm::exp(x), x.is_infinite(), x == f64::NEG_INFINITY)?,
        (Function::Power, [Value::Float8(y)]) => {
            if x == 0.0 && *y < 0.0 {
                return domain("zero raised to a negative power is undefined");
            }
            if x < 0.0 && x.is_finite() && y.is_finite() && y.fract() != 0.0 {
                return domain("a negative number raised to a non-integer power yields a complex result");
            }
            let infinite = x.is_infinite() || y.is_infinite();
            in_range(libm::pow(x, *y), infinite, infinite || x == 0.0)?
        }
        _ => return Err(misfit(function)),
    }))
}

/// Refuses an infinite result unless `may_be_infinite`, and a result of zero unless `may_be_zero`.
fn in_range(result: f64, may_be_infinite: bool, may_be_zero: bool) -> Result<f64, Failure> {
    if result.is_infinite() && !may_be_infinite {
        return Err(Failure::out_of_range(Type::Float8));
    }
    if result == 0.0 && !may_be_zero {
        return Err(Failure::new("22003", "value out of range: underflow"));
    }
    Ok(result)
}

fn on_numeric(function: Function, x: &Numeric, rest: &[&Value]) -> Result<Value, Failure> {
    Ok(Value::Numeric(match (function, rest) {
        (Function::Abs, []) => x.abs(),
        (Function::Sign, []) => Numeric::from_i128(x.signum().into()),
        (Function::Round, []) => x.round(0)?,
        (Function::Round, [Value::Int4(decimals)]) => x.round(*decimals)?,
        (Function::Trunc, []) => x.truncate(0)?,
        (Function::Trunc, [Value::Int4(decimals)]) => x.truncate(*decimals)?,
        (Function::Floor, []) => x.floor()?,
        (Function::Ceil, []) => x.ceil()?,
        (Function::Sqrt, []) => x.square_root()?,
        _ => return Err(misfit(function)),
    }))
}

fn on_json(function: Function, document: &str, kind: Kind, rest: &[&Value]) -> Result<Value, Failure> {
    let steps = || {
        let step = |value: &&Value| -> Result<String, Failure> {
            match value {
                Value::Text(text) => Ok(text.to_string()),
                _ => Err(misfit(function)),
            }
        };
        rest.iter().map(step).collect::<Result<Vec<_>, _>>()
    };
    let part = match (function, rest) {
        (Function::JsonField | Function::JsonFieldText, [Value::Text(key)]) => {
            json::field(document, kind, Step::Key(key))?
        }
        (Function::JsonField | Function::JsonFieldText, [Value::Int4(index)]) => {
            json::field(document, kind, Step::Index((*index).into()))?
        }
        (Function::JsonPath | Function::JsonPathText, _) => {
            let steps = steps()?;
            let steps: Vec<Step<'_>> = steps.iter().map(|step| Step::Either(step)).collect();
            json::at_path(document, kind, &steps)?
        }
        (Function::JsonContains, [Value::Jsonb(inner)]) => {
            return Ok(Value::Bool(json::contains(document, inner)?));
        }
        (Function::JsonExists, [Value::Text(key)]) => return Ok(Value::Bool(json::exists(document, key)?)),
        (Function::JsonTypeOf, []) => return Ok(Value::text_of(json::type_name(document)?)),
        (Function::JsonArrayLength, []) => return Ok(Value::Int4(json::array_length(document)? as i32)),
        _ => return Err(misfit(function)),
    };
    let Some(part) = part else { return Ok(Value::Null) };
    Ok(match (function, kind) {
        (Function::JsonFieldText | Function::JsonPathText, _) => {
            json::shown(&part)?.map_or(Value::Null, Value::text_of)
        }
        (_, Kind::Json) => Value::Json(part.into()),
        (_, Kind::Jsonb) => Value::Jsonb(part.into()),
    })
}

fn on_bytes(function: Function, bytes: &[u8], rest: &[&Value]) -> Result<Value, Failure> {
    let part = |from: i64, to: i64| {
        let place = |at: i64| at.clamp(0, bytes.len() as i64) as usize;
        let (from, to) = (place(from), place(to));
        Value::bytes_of(bytes.get(from..to).unwrap_or_default())
    };
    Ok(match (function, rest) {
        (Function::Length | Function::OctetLength, []) => Value::Int4(bytes.len() as i32),
        (Function::Encode, [Value::Text(form)]) => Value::text_of(bytea::encode(bytes, form)?),
        (Function::Substring, [Value::Int4(from)]) => part(i64::from(*from) - 1, i64::MAX),
        (Function::Substring, [Value::Int4(_), Value::Int4(count)]) if *count < 0 => {
            return Err(Failure::new("22011", "negative substring length not allowed"));
        }
        (Function::Substring, [Value::Int4(from), Value::Int4(count)]) => {
            let start = i64::from(*from) - 1;
            part(start, start + i64::from(*count))
        }
        _ => return Err(misfit(function)),
    })
}

fn on_text(function: Function, text: &str, rest: &[&Value]) -> Result<Value, Failure> {
    let length = || text.chars().count() as i64;
    Ok(Value::text_of(match (function, rest) {
        (Function::Lower, []) => lower(text),
        (Function::Upper, []) => upper(text),
        (Function::Length, []) => return Ok(Value::Int4(length() as i32)),
        (Function::OctetLength, []) => return Ok(Value::Int4(text.len() as i32)),
        (Function::Substring, [Value::Int4(from)]) => slice(text, i64::from(*from) - 1, i64::MAX).to_owned(),
        (Function::Substring, [Value::Int4(_), Value::Int4(count)]) if *count < 0 => {
            return Err(Failure::new("22011", "negative substring length not allowed"));
        }
        (Function::Substring, [Value::Int4(from), Value::Int4(count)]) => {
            let start = i64::from(*from) - 1;
            slice(text, start, start + i64::from(*count)).to_owned()
        }
        (Function::Left, [Value::Int4(count)]) => {
            let end = if *count < 0 { length() + i64::from(*count) } else { (*count).into() };
            slice(text, 0, end).to_owned()
        }
        (Function::Right, [Value::Int4(count)]) => {
            let start = if *count < 0 { -i64::from(*count) } else { length() - i64::from(*count) };
            slice(text, start, i64::MAX).to_owned()
        }
        (Function::Trim | Function::TrimLeft | Function::TrimRight, characters @ ([] | [Value::Text(_)])) => {
            let characters = if let [Value::Text(characters)] = characters { characters } else { " " };
            let ours = |c: char| characters.contains(c);
            match function {
                Function::Trim => text.trim_matches(ours),
                Function::TrimLeft => text.trim_start_matches(ours),
                _ => text.trim_end_matches(ours),
            }
            .to_owned()
        }
        (Function::PadLeft | Function::PadRight, [Value::Int4(width)]) => {
            pad(text, (*width).into(), " ", function == Function::PadLeft)?
        }
        (Function::PadLeft | Function::PadRight, [Value::Int4(width), Value::Text(fill)]) => {
            pad(text, (*width).into(), fill, function == Function::PadLeft)?
        }
        (Function::Replace, [Value::Text(from), Value::Text(to)]) => {
            if from.is_empty() {
                text.to_owned()
            } else {
                bounded(text.len() + text.matches(&**from).count() * to.len())?;
                text.replace(&**from, to)
            }
        }
        (Function::Repeat, [Value::Int4(count)]) => {
            let count = (*count).max(0) as usize;
            bounded(text.len().saturating_mul(count))?;
            text.repeat(count)
        }
        (Function::Reverse, []) => text.chars().rev().collect(),
        (Function::InitCap, []) => initial_capitals(text),
        (Function::Translate, [Value::Text(from), Value::Text(to)]) => translated(text, from, to),
        (Function::Ascii, []) => {
            return Ok(Value::Int4(text.chars().next().map_or(0, |first| u32::from(first) as i32)));
        }
        (Function::Position, [Value::Text(part)]) => {
            let at = text.find(&**part).map_or(0, |byte| text[..byte].chars().count() + 1);
            return Ok(Value::Int4(at as i32));
        }
        (Function::StartsWith, [Value::Text(prefix)]) => return Ok(Value::Bool(text.starts_with(&**prefix))),
        (Function::SplitPart, [Value::Text(delimiter), Value::Int4(field)]) => {
            split_part(text, delimiter, *field)?
        }
        _ => return Err(misfit(function)),
    }))
}

/// Maps the case of each character. A character that would become several stays.
fn map_case<I: Iterator<Item = char>>(text: &str, mut map: impl FnMut(char) -> I) -> String {
    let one = |c: char| {
        let mut mapped = map(c);
        match (mapped.next(), mapped.next()) {
            (Some(single), None) => single,
            _ => c,
        }
    };
    text.chars().map(one).collect()
}

/// Evaluates `lower(text)`.
pub(crate) fn lower(text: &str) -> String {
    map_case(text, char::to_lowercase)
}

/// Evaluates `upper(text)`.
fn upper(text: &str) -> String {
    map_case(text, char::to_uppercase)
}

/// Capitalises each word, and converts its other letters to lower case.
fn initial_capitals(text: &str) -> String {
    let mut within = false;
    map_case(text, |character| {
        let first = !std::mem::replace(&mut within, character.is_alphanumeric());
        let mapped: Vec<char> =
            if first { character.to_uppercase().collect() } else { character.to_lowercase().collect() };
        mapped.into_iter()
    })
}

/// Replaces each character of `from` by the character at the same index of `to`, or drops it if `to` is too
/// short.
fn translated(text: &str, from: &str, to: &str) -> String {
    let replaced = |character: char| match from.chars().position(|other| other == character) {
        Some(place) => to.chars().nth(place),
        None => Some(character),
    };
    text.chars().filter_map(replaced).collect()
}

/// Returns the characters from `start` (zero-based) up to `end`, as far as the text has them.
fn slice(text: &str, start: i64, end: i64) -> &str {
    let byte = |character: i64| match usize::try_from(character) {
        Ok(character) => text.char_indices().nth(character).map_or(text.len(), |(byte, _)| byte),
        Err(_) => 0,
    };
    let (from, to) = (byte(start), byte(end));
    if from < to { &text[from..to] } else { "" }
}

/// Cuts a text at the end, or pads it on one side, to exactly `width` characters.
fn pad(text: &str, width: i64, fill: &str, left: bool) -> Result<String, Failure> {
    let missing = width - text.chars().count() as i64;
    if missing <= 0 || fill.is_empty() {
        return Ok(slice(text, 0, width).to_owned());
    }
    bounded(text.len().saturating_add(missing as usize * 4))?;
    let filling: String = fill.chars().cycle().take(missing as usize).collect();
    Ok(if left { filling + text } else { text.to_owned() + &filling })
}

/// Returns field number `field` from the front, or from the end if negative; empty if there is no such field.
fn split_part(text: &str, delimiter: &str, field: i32) -> Result<String, Failure> {
    if field == 0 {
        return Err(Failure::new("22023", "field position must not be zero"));
    }
    let index = field.unsigned_abs() as usize - 1;
    let part = if delimiter.is_empty() {
        (index == 0).then_some(text)
    } else if field > 0 {
        text.split(delimiter).nth(index)
    } else {
        text.rsplit(delimiter).nth(index)
    };
    Ok(part.unwrap_or_default().to_owned())
}
