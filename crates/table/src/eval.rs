//! The evaluation of expressions: PostgreSQL 15's evaluation of one expression over one row.
//!
//! Logic is three-valued. AND and OR evaluate their right side only if the left does not decide. Integers
//! overflow to 22003 instead of wrapping, and divide towards zero. Floats report overflow and underflow.
//! Every other impossible result is a [`Failure`] with PostgreSQL's SQLSTATE and text. Evaluation borrows
//! columns and constants, so that comparing them copies nothing.
//!
//! The binder has inserted every cast. An operator on unexpected types is a malformed operation (XX000); it
//! never falls back on an order between types.

use std::borrow::Cow;

use crate::{
    calendar, cast, expr::Binary, expr::Expr, expr::Unary, failure::Failure, function, pattern, value::Type,
    value::Value,
};

/// Returns the value of `expr` over `row`.
pub fn eval(expr: &Expr, row: &[Value]) -> Result<Value, Failure> {
    evaluate(expr, row).map(Cow::into_owned)
}

/// Whether the filter is TRUE for a row, neither FALSE nor NULL. Without a filter, every row satisfies it.
pub fn satisfies(filter: Option<&Expr>, row: &[Value]) -> Result<bool, Failure> {
    filter.map_or(Ok(true), |filter| Ok(truth(&*evaluate(filter, row)?)? == Some(true)))
}

impl Expr {
    /// Returns the expression with every part that depends on no column and no parameter replaced by its
    /// value. A part that fails stays, and fails when it is evaluated.
    pub fn fold(mut self) -> Expr {
        self.fold_in_place();
        self
    }

    /// Folds the expression in place. Returns whether it depends on no column and no parameter.
    fn fold_in_place(&mut self) -> bool {
        match self {
            Expr::Constant(..) => return true,
            Expr::Column(..) | Expr::Parameter(..) => return false,
            _ => {}
        }
        let mut constant = true;
        for child in self.children_mut() {
            constant &= child.fold_in_place();
        }
        self.join_alternatives();
        if constant && let Ok(value) = eval(self, &[]) {
            *self = Expr::Constant(value, self.ty());
        }
        constant
    }
}

/// Evaluates like [`eval`], and borrows the result where possible.
pub(crate) fn evaluate<'a>(expr: &'a Expr, row: &'a [Value]) -> Result<Cow<'a, Value>, Failure> {
    Ok(match expr {
        Expr::Column(column, _) => {
            Cow::Borrowed(row.get(*column).ok_or_else(|| {
                Failure::malformed("an expression reads a column that the row does not have")
            })?)
        }
        Expr::Constant(value, _) => Cow::Borrowed(value),
        Expr::Parameter(..) => {
            return Err(Failure::malformed("an expression has a parameter without a value"));
        }
        Expr::Unary(Unary::Not, inner) => {
            Cow::Owned(truth_value(truth(&*evaluate(inner, row)?)?.map(|truth| !truth)))
        }
        Expr::Unary(Unary::Negate, inner) => Cow::Owned(negate(&*evaluate(inner, row)?)?),
        Expr::Binary(Binary::And, left, right) => Cow::Owned(junction(false, left, right, row)?),
        Expr::Binary(Binary::Or, left, right) => Cow::Owned(junction(true, left, right, row)?),
        Expr::Binary(operator, left, right) => {
            Cow::Owned(binary(*operator, &*evaluate(left, row)?, &*evaluate(right, row)?)?)
        }
        Expr::IsNull(inner) => Cow::Owned(Value::Bool(evaluate(inner, row)?.is_null())),
        Expr::In(probe, list) => Cow::Owned(list.contains(&*evaluate(probe, row)?, row)?),
        Expr::Like { text, pattern, escape, case_insensitive } => {
            match (&*evaluate(text, row)?, &*evaluate(pattern, row)?) {
                (Value::Null, _) | (_, Value::Null) => Cow::Owned(Value::Null),
                (Value::Text(text), Value::Text(pattern)) if *case_insensitive => {
                    Cow::Owned(Value::Bool(pattern::like_ignoring_case(text, pattern, *escape)?))
                }
                (Value::Text(text), Value::Text(pattern)) => {
                    Cow::Owned(Value::Bool(pattern::like(text, pattern, *escape)?))
                }
                _ => return Err(Failure::malformed("LIKE gets a value that is not text")),
            }
        }
        Expr::Cast(inner, ty) => {
            let value = evaluate(inner, row)?;
            if value.fits(*ty) { value } else { Cow::Owned(cast::cast(&value, *ty)?) }
        }
        Expr::Case { branches, otherwise, .. } => {
            for (condition, result) in branches {
                if truth(&*evaluate(condition, row)?)? == Some(true) {
                    return evaluate(result, row);
                }
            }
            match otherwise {
                Some(result) => evaluate(result, row)?,
                None => Cow::Owned(Value::Null),
            }
        }
        Expr::Call(function, arguments) => function::call(*function, arguments, row)?,
    })
}

/// Returns the truth of a value; `None` (unknown) for NULL.
fn truth(value: &Value) -> Result<Option<bool>, Failure> {
    match value {
        Value::Bool(truth) => Ok(Some(*truth)),
        Value::Null => Ok(None),
        _ => Err(Failure::malformed("a condition is not boolean")),
    }
}

fn truth_value(truth: Option<bool>) -> Value {
    truth.map_or(Value::Null, Value::Bool)
}

/// Evaluates AND (which FALSE decides) or OR (which TRUE decides).
fn junction(decisive: bool, left: &Expr, right: &Expr, row: &[Value]) -> Result<Value, Failure> {
    let left = truth(&*evaluate(left, row)?)?;
    if left == Some(decisive) {
        return Ok(Value::Bool(decisive));
    }
    let right = truth(&*evaluate(right, row)?)?;
    if right == Some(decisive) {
        return Ok(Value::Bool(decisive));
    }
    Ok(truth_value(left.and(right)))
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
                function::bounded(left.len() + right.len()).map(|()| Value::text_of(format!("{left}{right}")))
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

fn negate(value: &Value) -> Result<Value, Failure> {
    Ok(match value {
        Value::Null => Value::Null,
        Value::Int2(i) => Value::Int2(i.checked_neg().ok_or_else(|| Failure::out_of_range(Type::Int2))?),
        Value::Int4(i) => Value::Int4(i.checked_neg().ok_or_else(|| Failure::out_of_range(Type::Int4))?),
        Value::Int8(i) => Value::Int8(i.checked_neg().ok_or_else(|| Failure::out_of_range(Type::Int8))?),
        Value::Float8(f) => Value::Float8(-f),
        Value::Numeric(number) => Value::Numeric(number.negate()),
        _ => return Err(Failure::malformed("the minus sign gets a value that is not a number")),
    })
}
