//! Casts between types, as PostgreSQL 15 makes them.
//!
//! Floats round half to even when they become integers, numerics half away from zero. Dates become midnights.
//! The session's zone is UTC, so that timestamps with and without a zone hold the same number. The binder
//! decides which casts are implicit.

use crate::{
    calendar::{self, DAY},
    failure::Failure,
    json,
    numeric::Numeric,
    text::parse_text,
    value::{Type, Value, unpadded},
};

/// Converts a value to type `ty`; fails with 42846 if there is no such cast.
pub fn cast(value: &Value, ty: Type) -> Result<Value, Failure> {
    if value.fits(ty) {
        return Ok(value.clone());
    }
    if let Some(integer) = value.as_integer() {
        return from_integer(integer, value, ty);
    }
    match (value, ty) {
        (Value::Text(text), _) => parse_text(ty, text),
        (Value::Bool(b), Type::Text) => Ok(Value::text_of(if *b { "true" } else { "false" })),
        (Value::Bpchar(text), Type::Text) => Ok(Value::text_of(unpadded(text))),
        (Value::Bpchar(text), _) => parse_text(ty, text),
        (_, Type::Bpchar) => cast(&cast(value, Type::Text)?, ty),
        (_, Type::Text) => Ok(value.text().map_or(Value::Null, Value::text_of)),
        (Value::Bool(b), Type::Int4) => Ok(Value::Int4((*b).into())),
        (Value::Float4(real), Type::Numeric) => Numeric::from_f32(*real).map(Value::Numeric),
        (Value::Float4(real), Type::Float8) => Ok(Value::Float8((*real).into())),
        (Value::Float4(real), Type::Int2 | Type::Int4 | Type::Int8) => {
            cast(&Value::Float8((*real).into()), ty)
        }
        (Value::Float8(float), Type::Float4) => {
            let real = *float as f32;
            if real.is_infinite() && float.is_finite() {
                return Err(Failure::out_of_range(ty));
            }
            if real == 0.0 && *float != 0.0 {
                return Err(Failure::new("22003", "value out of range: underflow"));
            }
            Ok(Value::Float4(real))
        }
        (Value::Numeric(number), Type::Float4) => parse_text(ty, &number.to_string()),
        (Value::Timestamp(micros) | Value::Timestamptz(micros), Type::Time) => Ok(match *micros {
            i64::MIN | i64::MAX => Value::Null,
            micros => Value::Time(micros.rem_euclid(DAY)),
        }),
        (Value::Float8(float), Type::Int2 | Type::Int4 | Type::Int8) => {
            // The upper bound is exclusive because 2^63 is a float and the greatest 64-bit integer is not.
            let rounded = float.round_ties_even();
            if !(-(2f64.powi(63))..2f64.powi(63)).contains(&rounded) {
                return Err(Failure::out_of_range(ty));
            }
            from_integer(rounded as i64, value, ty)
        }
        (Value::Float8(float), Type::Numeric) => Numeric::from_f64(*float).map(Value::Numeric),
        (Value::Numeric(number), Type::Int2 | Type::Int4 | Type::Int8) => {
            from_integer(number.to_i64().ok_or_else(|| Failure::out_of_range(ty))?, value, ty)
        }
        (Value::Numeric(number), Type::Float8) => {
            let float = number.to_f64();
            if float.is_infinite() || (float == 0.0 && !number.is_zero()) {
                let message = format!("\"{number}\" is out of range for type double precision");
                return Err(Failure::new("22003", message));
            }
            Ok(Value::Float8(float))
        }
        (Value::Json(text), Type::Jsonb) => parse_text(ty, text),
        (Value::Jsonb(text), Type::Json) => Ok(Value::Json(text.clone())),
        (Value::Jsonb(text), Type::Bool) => parse_text(ty, &json::scalar(text, true, ty.name())?),
        (
            Value::Jsonb(text),
            Type::Int2 | Type::Int4 | Type::Int8 | Type::Numeric | Type::Float8 | Type::Float4,
        ) => cast(&parse_text(Type::Numeric, &json::scalar(text, false, ty.name())?)?, ty),
        (Value::Date(date), Type::Timestamp) => midnight(*date).map(Value::Timestamp),
        (Value::Date(date), Type::Timestamptz) => midnight(*date).map(Value::Timestamptz),
        (Value::Timestamp(micros) | Value::Timestamptz(micros), Type::Date) => {
            Ok(Value::Date(match *micros {
                i64::MIN => i32::MIN,
                i64::MAX => i32::MAX,
                micros => micros.div_euclid(DAY) as i32,
            }))
        }
        (Value::Timestamp(micros), Type::Timestamptz) => Ok(Value::Timestamptz(*micros)),
        (Value::Timestamptz(micros), Type::Timestamp) => Ok(Value::Timestamp(*micros)),
        _ => Err(no_cast(value, ty)),
    }
}

fn from_integer(integer: i64, value: &Value, ty: Type) -> Result<Value, Failure> {
    let out_of_range = |_| Failure::out_of_range(ty);
    Ok(match ty {
        Type::Int2 => Value::Int2(integer.try_into().map_err(out_of_range)?),
        Type::Int4 => Value::Int4(integer.try_into().map_err(out_of_range)?),
        Type::Int8 => Value::Int8(integer),
        Type::Float8 => Value::Float8(integer as f64),
        Type::Float4 => Value::Float4(integer as f32),
        Type::Numeric => Value::Numeric(Numeric::from_i128(integer.into())),
        Type::Text => Value::text_of(integer.to_string()),
        Type::Bpchar => Value::Bpchar(integer.to_string().into()),
        Type::Bool if matches!(value, Value::Int4(_)) => Value::Bool(integer != 0),
        _ => return Err(no_cast(value, ty)),
    })
}

fn midnight(date: i32) -> Result<i64, Failure> {
    match date {
        i32::MIN => Ok(i64::MIN),
        i32::MAX => Ok(i64::MAX),
        _ => calendar::check_timestamp(i128::from(date) * i128::from(DAY))
            .map_err(|_| Failure::new("22008", "date out of range for timestamp")),
    }
}

fn no_cast(value: &Value, ty: Type) -> Failure {
    let from = value.ty().map_or("unknown", Type::name);
    Failure::new("42846", format!("cannot cast type {from} to {}", ty.name()))
}
