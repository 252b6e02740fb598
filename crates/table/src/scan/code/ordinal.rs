//! Values as numbers of the same order.
//!
//! Values of a type that fits 64 bits map to `u64`. Numbers have the order of their values
//! ([`Value::order`]). Different values have different numbers even if they are equal in SQL: -0 and 0 are
//! neighbours, and all NaNs are at the top. Texts and numerics get codes of a dictionary instead.

use crate::value::{Type, Value};

/// Whether values of this type get codes of a dictionary.
pub(in crate::scan) fn needs_dictionary(ty: Type) -> bool {
    matches!(
        ty,
        Type::Text | Type::Numeric | Type::Uuid | Type::Bytea | Type::Json | Type::Jsonb | Type::Bpchar
    )
}

/// The ordered bits of minus infinity. Negative NaNs lie below; subtracting this number moves them to the
/// top.
const NEGATIVE_NAN: u64 = 0x000F_FFFF_FFFF_FFFF;
/// The ordered bits of minus infinity as a `real`.
const NEGATIVE_NAN_REAL: u32 = 0x007F_FFFF;

fn signed(integer: i64) -> u64 {
    integer as u64 ^ 1 << 63
}

/// Returns the number of a value; `None` for NULL and for values with dictionary codes.
pub(in crate::scan) fn ordinal(value: &Value) -> Option<u64> {
    Some(match value {
        Value::Null
        | Value::Text(_)
        | Value::Numeric(_)
        | Value::Uuid(_)
        | Value::Bytea(_)
        | Value::Json(_)
        | Value::Jsonb(_)
        | Value::Bpchar(_) => return None,
        Value::Bool(b) => u64::from(*b),
        Value::Int2(i) => signed((*i).into()),
        Value::Int4(i) | Value::Date(i) => signed((*i).into()),
        Value::Int8(i) | Value::Timestamp(i) | Value::Timestamptz(i) => signed(*i),
        Value::Time(micros) => signed(*micros),
        Value::Float4(f) => {
            let bits = f.to_bits();
            let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
            ordered.wrapping_sub(NEGATIVE_NAN_REAL).into()
        }
        Value::Float8(f) => {
            let bits = f.to_bits();
            let ordered = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
            ordered.wrapping_sub(NEGATIVE_NAN)
        }
    })
}

/// Returns the value of a number.
pub(in crate::scan) fn value(ty: Type, ordinal: u64) -> Value {
    let integer = (ordinal ^ 1 << 63) as i64;
    match ty {
        Type::Bool => Value::Bool(ordinal == 1),
        Type::Int2 => Value::Int2(integer as i16),
        Type::Int4 => Value::Int4(integer as i32),
        Type::Int8 => Value::Int8(integer),
        Type::Date => Value::Date(integer as i32),
        Type::Timestamp => Value::Timestamp(integer),
        Type::Timestamptz => Value::Timestamptz(integer),
        Type::Time => Value::Time(integer),
        Type::Float4 => {
            let ordered = (ordinal as u32).wrapping_add(NEGATIVE_NAN_REAL);
            Value::Float4(f32::from_bits(if ordered >> 31 == 1 { ordered ^ 1 << 31 } else { !ordered }))
        }
        Type::Float8 => {
            let ordered = ordinal.wrapping_add(NEGATIVE_NAN);
            Value::Float8(f64::from_bits(if ordered >> 63 == 1 { ordered ^ 1 << 63 } else { !ordered }))
        }
        Type::Text | Type::Numeric | Type::Uuid | Type::Bytea | Type::Json | Type::Jsonb | Type::Bpchar => {
            unreachable!("a dictionary codes these")
        }
    }
}

/// Returns the first and last number of the values that are equal to this one.
pub(in crate::scan) fn equals(value: &Value) -> Option<(u64, u64)> {
    let one = ordinal(value)?;
    Some(match value {
        Value::Float8(f) if f.is_nan() => (ordinal(&Value::Float8(f64::INFINITY))? + 1, u64::MAX),
        Value::Float4(f) if f.is_nan() => (ordinal(&Value::Float4(f32::INFINITY))? + 1, u32::MAX.into()),
        Value::Float4(0.0) => (ordinal(&Value::Float4(-0.0))?, ordinal(&Value::Float4(0.0))?),
        Value::Float8(0.0) => (ordinal(&Value::Float8(-0.0))?, ordinal(&Value::Float8(0.0))?),
        _ => (one, one),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(a: Value, b: Value) {
        let ty = a.ty().expect("not NULL");
        let (x, y) = (ordinal(&a).expect("a number"), ordinal(&b).expect("a number"));
        assert_eq!(value(ty, x), a);
        assert_eq!(x == y, a == b);
        match a.order(&b) {
            std::cmp::Ordering::Equal => {
                let (low, high) = equals(&a).expect("a number");
                assert!(low <= y && y <= high, "{a:?} {b:?}");
            }
            order => {
                assert_eq!(x.cmp(&y), order, "{a:?} {b:?}");
                let (low, high) = equals(&a).expect("a number");
                assert!(y < low || high < y, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn special_floats_are_ordered_as_in_postgresql() {
        let special = [
            f64::NAN,
            -f64::NAN,
            f64::from_bits(0xFFF0_0000_0000_0001),
            f64::from_bits(0x7FFF_FFFF_FFFF_FFFF),
            f64::INFINITY,
            f64::NEG_INFINITY,
            0.0,
            -0.0,
            f64::MIN_POSITIVE,
            -1.5,
            f64::MAX,
        ];
        for a in special {
            for b in special {
                check(Value::Float8(a), Value::Float8(b));
                check(Value::Float4(a as f32), Value::Float4(b as f32));
            }
        }
    }

    proptest! {
        #[test]
        fn numbers_are_ordered_as_values_are(a: u64, b: u64, c: i32, d: i32) {
            check(Value::Float8(f64::from_bits(a)), Value::Float8(f64::from_bits(b)));
            check(Value::Int8(a as i64), Value::Int8(b as i64));
            check(Value::Timestamp(a as i64), Value::Timestamp(b as i64));
            check(Value::Date(c), Value::Date(d));
            check(Value::Int2(c as i16), Value::Int2(d as i16));
            check(Value::Float4(f32::from_bits(c as u32)), Value::Float4(f32::from_bits(d as u32)));
            check(Value::Time(a as i64), Value::Time(b as i64));
        }
    }
}
