//! The evaluation of expressions: PostgreSQL 15's evaluation of one expression over one row.
//!
//! Logic is three-valued. AND and OR evaluate their right side only if the left side does not decide the
//! result. Integers overflow to 22003 instead of wrapping, and divide towards zero. Floats report overflow
//! and underflow. Every other impossible result is a [`Failure`] with PostgreSQL's SQLSTATE and text.
//! Evaluation borrows columns and constants, so that comparing them copies nothing.
//!
//! The binder has inserted every cast. An operator on unexpected types makes the operation malformed (XX000);
//! evaluation never falls back on an order between types.

use std::{borrow::Cow, cmp::Ordering};

use crate::{
    cast,
    expr::{Expr, Function, List},
    failure::Failure,
    function,
    operator::{Binary, Unary, binary, negate},
    pattern,
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

/// Whether the condition of a CHECK is FALSE for a row. NULL is permitted.
pub(crate) fn refuses(condition: &Expr, row: &[Value]) -> Result<bool, Failure> {
    Ok(truth(&*evaluate(condition, row)?)? == Some(false))
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

impl List {
    /// Whether the list contains a value: TRUE, FALSE or NULL.
    fn contains(&self, probe: &Value, row: &[Value]) -> Result<Value, Failure> {
        if let Some(members) = self.members() {
            return members.contains(probe);
        }
        let mut unknown = false;
        for item in self.iter() {
            match binary(Binary::Equal, probe, &*evaluate(item, row)?)? {
                Value::Bool(true) => return Ok(Value::Bool(true)),
                Value::Null => unknown = true,
                _ => {}
            }
        }
        Ok(if unknown { Value::Null } else { Value::Bool(false) })
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
                (Value::Text(text) | Value::Bpchar(text), Value::Text(pattern)) if *case_insensitive => {
                    Cow::Owned(Value::Bool(pattern::like_ignoring_case(text, pattern, *escape)?))
                }
                (Value::Text(text) | Value::Bpchar(text), Value::Text(pattern)) => {
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
        Expr::Call(function, arguments) => call(*function, arguments, row)?,
    })
}

/// Returns the value of `function` on `arguments` over `row`.
fn call<'a>(function: Function, arguments: &'a [Expr], row: &'a [Value]) -> Result<Cow<'a, Value>, Failure> {
    match function {
        Function::Coalesce => {
            for argument in arguments {
                let value = evaluate(argument, row)?;
                if !value.is_null() {
                    return Ok(value);
                }
            }
            return Ok(Cow::Owned(Value::Null));
        }
        Function::Greatest => return extreme(arguments, row, Ordering::Greater),
        Function::Least => return extreme(arguments, row, Ordering::Less),
        _ => {}
    }
    let values = arguments.iter().map(|argument| evaluate(argument, row)).collect::<Result<Vec<_>, _>>()?;
    let values: Vec<&Value> = values.iter().map(|value| &**value).collect();
    function::apply(function, &values).map(Cow::Owned)
}

fn extreme<'a>(arguments: &'a [Expr], row: &'a [Value], wanted: Ordering) -> Result<Cow<'a, Value>, Failure> {
    let mut best: Cow<'a, Value> = Cow::Owned(Value::Null);
    for argument in arguments {
        let value = evaluate(argument, row)?;
        if value.is_null() {
            continue;
        }
        if !best.is_null() && !value.compares_with(&best) {
            return Err(Failure::malformed("a comparison gets values of different types"));
        }
        if best.is_null() || value.order(&best) == wanted {
            best = value;
        }
    }
    Ok(best)
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
