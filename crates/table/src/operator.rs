//! Operators, and their evaluation on values.

use serde::{Deserialize, Serialize};

use crate::{calendar, failure::Failure, json, length::bounded, types::Type, value::Value};

/// Unary operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unary {
    /// Boolean NOT.
    Not,
    /// Arithmetic minus.
    Negate,
}

/// Binary operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Binary {
    /// Boolean AND, three-valued.
    And,
    /// Boolean OR, three-valued.
    Or,
    /// `=`
    Equal,
    /// `<>`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterEqual,
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `%`
    Modulo,
    /// `||`
    Concat,
    /// `IS DISTINCT FROM`: `<>`, but NULL is an ordinary value.
    Distinct,
}

impl Binary {
    /// Returns the result's type for operands of these types.
    pub fn ty(self, left: Type, right: Type) -> Type {
        match self {
            Binary::Add | Binary::Subtract if left == Type::Date && right == Type::Date => Type::Int4,
            Binary::Add if right == Type::Date => Type::Date,
            Binary::Add | Binary::Subtract | Binary::Multiply | Binary::Divide | Binary::Modulo => left,
            Binary::Concat => left,
            _ => Type::Bool,
        }
    }

    /// Returns the comparison with its sides exchanged.
    pub(crate) fn mirrored(self) -> Binary {
        match self {
            Binary::Less => Binary::Greater,
            Binary::LessEqual => Binary::GreaterEqual,
            Binary::Greater => Binary::Less,
            Binary::GreaterEqual => Binary::LessEqual,
            other => other,
        }
    }

    /// Whether the operator compares two values of one type.
    pub fn is_comparison(self) -> bool {
        use Binary::*;
        matches!(self, Equal | NotEqual | Less | LessEqual | Greater | GreaterEqual)
    }
}

/// Evaluates a binary operator on values, except AND and OR.
pub(crate) fn binary(operator: Binary, left: &Value, right: &Value) -> Result<Value, Failure> {
    if operator == Binary::Distinct {
        return Ok(Value::Bool(match (left.is_null(), right.is_null()) {
            (false, false) => comparable(left, right)?.is_ne(),
            (left, right) => left != right,
        }));
    }
    if left.is_null() || right.is_null() {
        return Ok(Value::Null);
    }
    let order = |holds: fn(std::cmp::Ordering) -> bool| Ok(Value::Bool(holds(comparable(left, right)?)));
    match operator {
        Binary::Equal => order(std::cmp::Ordering::is_eq),
        Binary::NotEqual => order(std::cmp::Ordering::is_ne),
        Binary::Less => order(std::cmp::Ordering::is_lt),
        Binary::LessEqual => order(std::cmp::Ordering::is_le),
        Binary::Greater => order(std::cmp::Ordering::is_gt),
        Binary::GreaterEqual => order(std::cmp::Ordering::is_ge),
        Binary::Concat => match (left, right) {
            (Value::Text(left), Value::Text(right)) => {
                bounded(left.len() + right.len()).map(|()| Value::text_of(format!("{left}{right}")))
            }
            (Value::Bytea(left), Value::Bytea(right)) => {
                bounded(left.len() + right.len()).map(|()| Value::bytes_of([&**left, &**right].concat()))
            }
            (Value::Jsonb(left), Value::Jsonb(right)) => {
                bounded(left.len() + right.len())?;
                Ok(Value::Jsonb(json::concat(left, right)?.into()))
            }
            _ => Err(Failure::malformed("the operator || gets a value that is not text")),
        },
        _ => arithmetic(operator, left, right),
    }
}

fn comparable(left: &Value, right: &Value) -> Result<std::cmp::Ordering, Failure> {
    if left.compares_with(right) {
        Ok(left.order(right))
    } else {
        Err(Failure::malformed("a comparison gets values of different types"))
    }
}

fn arithmetic(operator: Binary, left: &Value, right: &Value) -> Result<Value, Failure> {
    match (left, right) {
        (Value::Int2(a), Value::Int2(b)) => {
            let result = integer(operator, (*a).into(), (*b).into())?;
            i16::try_from(result).map(Value::Int2).map_err(|_| Failure::out_of_range(Type::Int2))
        }
        (Value::Int4(a), Value::Int4(b)) => {
            let result = integer(operator, (*a).into(), (*b).into())?;
            i32::try_from(result).map(Value::Int4).map_err(|_| Failure::out_of_range(Type::Int4))
        }
        (Value::Int8(a), Value::Int8(b)) => {
            let result = integer(operator, (*a).into(), (*b).into())?;
            i64::try_from(result).map(Value::Int8).map_err(|_| Failure::out_of_range(Type::Int8))
        }
        (Value::Float8(a), Value::Float8(b)) => float(operator, *a, *b).map(Value::Float8),
        (Value::Float4(a), Value::Float4(b)) => real(operator, *a, *b).map(Value::Float4),
        (Value::Numeric(a), Value::Numeric(b)) => match operator {
            Binary::Add => a.add(b),
            Binary::Subtract => a.subtract(b),
            Binary::Multiply => a.multiply(b),
            Binary::Divide => a.divide(b),
            _ => a.remainder(b),
        }
        .map(Value::Numeric),
        (Value::Date(a), Value::Date(b)) if operator == Binary::Subtract => {
            if [a, b].iter().any(|date| matches!(**date, i32::MIN | i32::MAX)) {
                return Err(Failure::new("22008", "cannot subtract infinite dates"));
            }
            a.checked_sub(*b).map(Value::Int4).ok_or_else(|| Failure::out_of_range(Type::Int4))
        }
        (Value::Date(date), Value::Int4(days)) if operator == Binary::Add => shift(*date, (*days).into()),
        (Value::Date(date), Value::Int4(days)) if operator == Binary::Subtract => {
            shift(*date, -i64::from(*days))
        }
        (Value::Int4(days), Value::Date(date)) if operator == Binary::Add => shift(*date, (*days).into()),
        _ => Err(Failure::malformed(format_args!(
            "the operator {operator:?} does not take the types of its operands"
        ))),
    }
}

fn shift(date: i32, days: i64) -> Result<Value, Failure> {
    if matches!(date, i32::MIN | i32::MAX) {
        return Ok(Value::Date(date));
    }
    calendar::check_date(i64::from(date) + days).map(Value::Date)
}

/// Computes in 128 bits, which hold every result on 64-bit operands.
fn integer(operator: Binary, a: i128, b: i128) -> Result<i128, Failure> {
    match operator {
        Binary::Add => Ok(a + b),
        Binary::Subtract => Ok(a - b),
        Binary::Multiply => Ok(a * b),
        _ if b == 0 => Err(Failure::division_by_zero()),
        Binary::Divide => Ok(a / b),
        _ => Ok(a % b),
    }
}

fn float(operator: Binary, a: f64, b: f64) -> Result<f64, Failure> {
    let result = match operator {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a * b,
        Binary::Divide if b == 0.0 && !a.is_nan() => return Err(Failure::division_by_zero()),
        Binary::Divide => a / b,
        _ => return Err(Failure::malformed("% of floats")),
    };
    let infinite_operand = match operator {
        Binary::Divide => a.is_infinite(),
        _ => a.is_infinite() || b.is_infinite(),
    };
    if result.is_infinite() && !infinite_operand {
        return Err(Failure::out_of_range(Type::Float8));
    }
    let lost = match operator {
        Binary::Multiply => a != 0.0 && b != 0.0,
        Binary::Divide => a != 0.0 && !b.is_infinite(),
        _ => false,
    };
    if result == 0.0 && lost {
        return Err(Failure::new("22003", "value out of range: underflow"));
    }
    Ok(result)
}

/// Computes with 64-bit floats, which hold the sum, the difference and the product of two `real`s exactly
/// enough to be rounded once more.
fn real(operator: Binary, a: f32, b: f32) -> Result<f32, Failure> {
    let wide = float(operator, a.into(), b.into())?;
    let result = wide as f32;
    if result.is_infinite() && wide.is_finite() {
        return Err(Failure::out_of_range(Type::Float4));
    }
    if result == 0.0 && wide != 0.0 {
        return Err(Failure::new("22003", "value out of range: underflow"));
    }
    Ok(result)
}

pub(crate) fn negate(value: &Value) -> Result<Value, Failure> {
    Ok(match value {
        Value::Null => Value::Null,
        Value::Int2(i) => Value::Int2(i.checked_neg().ok_or_else(|| Failure::out_of_range(Type::Int2))?),
        Value::Int4(i) => Value::Int4(i.checked_neg().ok_or_else(|| Failure::out_of_range(Type::Int4))?),
        Value::Int8(i) => Value::Int8(i.checked_neg().ok_or_else(|| Failure::out_of_range(Type::Int8))?),
        Value::Float8(f) => Value::Float8(-f),
        Value::Float4(f) => Value::Float4(-f),
        Value::Numeric(number) => Value::Numeric(number.negate()),
        _ => return Err(Failure::malformed("the minus sign gets a value that is not a number")),
    })
}
