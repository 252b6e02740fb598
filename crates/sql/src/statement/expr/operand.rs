//! The operands that every part of the binder builds: constants, session values and conditions.

use quorate_table::{
    expr::{Expr, Unary},
    numeric::Numeric,
    value::{Type, Value},
};

use sqlparser::tokenizer::Span;

use crate::{
    error::{Result, SqlError, code},
    statement::{coerce::Operand, fold, parameters::SessionValue},
};

/// Returns the value and type of a number. A number with a point or an exponent is a `numeric`. Any other
/// number has the first type into which it fits: `integer`, `bigint`, `numeric`.
pub(super) fn number(digits: &str) -> Result<(Value, Type)> {
    if let Ok(integer) = digits.parse::<i32>() {
        return Ok((Value::Int4(integer), Type::Int4));
    }
    if let Ok(integer) = digits.parse::<i64>() {
        return Ok((Value::Int8(integer), Type::Int8));
    }
    Ok((Value::Numeric(Numeric::parse(digits)?), Type::Numeric))
}

pub(super) fn unequal_rows(span: Span) -> SqlError {
    SqlError::new(code::SYNTAX_ERROR, "unequal number of entries in row expressions").at(span)
}

pub(super) fn text(text: impl AsRef<str>) -> Operand {
    Operand::Typed(Expr::Constant(Value::text_of(text), Type::Text), Type::Text)
}

pub(super) fn session_value(value: SessionValue) -> Operand {
    let ty = value.ty().plain();
    Operand::Typed(Expr::Parameter(value.number(), ty), ty)
}

pub(super) fn boolean(expr: Expr) -> Operand {
    Operand::Typed(fold::constant(expr), Type::Bool)
}

pub(super) fn negated(operand: Operand) -> Operand {
    let Operand::Typed(expr, Type::Bool) = operand else { unreachable!("only conditions are negated") };
    boolean(Expr::Unary(Unary::Not, Box::new(expr)))
}
