//! Evaluates expressions: the engine evaluates its own operators, and this file the leaves of the catalog.

use quorate_table::{
    cast::cast,
    eval,
    expr::{Binary, Expr, Function},
    value::{Type, Value},
};

use super::{
    datum::{Datum, elements},
    functions,
    plan::{Aggregate, AggregateFunction, LeafNode},
    run::{CatalogRows, Evaluation, Frame, compare, descending, distinct, weight},
};
use crate::{
    error::{Result, SqlError, code},
    statement::coerce,
};

impl Evaluation<'_> {
    /// Returns the expression's value in a row.
    pub(super) fn eval(&self, expr: &Expr, frame: &Frame<'_>) -> Result<Datum> {
        match expr {
            Expr::Column(leaf, _) => self.leaf(&self.leaves[*leaf].node, frame),
            other => self.value(other, frame).map(Datum::Value),
        }
    }

    /// Whether a condition is TRUE in a row, neither FALSE nor NULL.
    pub(super) fn holds(&self, condition: &Expr, frame: &Frame<'_>) -> Result<bool> {
        Ok(self.eval(condition, frame)?.truth() == Some(true))
    }

    /// Returns the expression's value in a row, as the engine carries it. An operand that cannot change the
    /// value is not evaluated, because a leaf may be costly and may fail.
    fn value(&self, expr: &Expr, frame: &Frame<'_>) -> Result<Value> {
        let value = |expr: &Expr| self.value(expr, frame);
        match expr {
            Expr::Constant(value, _) => Ok(value.clone()),
            Expr::Column(leaf, ty) => carried(self.leaf(&self.leaves[*leaf].node, frame)?, *ty),
            Expr::Parameter(number, ty) => carried(Datum::Value(self.context.arguments.value(*number)), *ty),
            Expr::Binary(op @ (Binary::And | Binary::Or), a, b) => {
                let decisive = Value::Bool(*op == Binary::Or);
                let a = value(a)?;
                if a == decisive {
                    return Ok(a);
                }
                let b = value(b)?;
                Ok(if b == decisive || a == Value::Bool(*op == Binary::And) { b } else { a })
            }
            Expr::Case { branches, otherwise, .. } => {
                for (condition, result) in branches {
                    if value(condition)? == Value::Bool(true) {
                        return value(result);
                    }
                }
                otherwise.as_deref().map_or(Ok(Value::Null), value)
            }
            Expr::Call(Function::Coalesce, arguments) => {
                for argument in arguments {
                    let value = value(argument)?;
                    if !value.is_null() {
                        return Ok(value);
                    }
                }
                Ok(Value::Null)
            }
            other => {
                let operand =
                    |expr: &Expr| -> Result<Expr> { Ok(Expr::Constant(self.value(expr, frame)?, expr.ty())) };
                Ok(eval::eval(&with_operands(other, operand)?, &[])?)
            }
        }
    }

    fn leaf(&self, node: &LeafNode, frame: &Frame<'_>) -> Result<Datum> {
        let eval = |expr: &Expr| self.eval(expr, frame);
        Ok(match node {
            LeafNode::Column { level, index } => {
                let mut frame = frame;
                for _ in 0..*level {
                    frame = frame.outer.expect("the binder counted the levels");
                }
                frame.row.get(*index).cloned().unwrap_or(Datum::NULL)
            }
            LeafNode::BitAnd(a, b) => match (eval(a)?.integer(), eval(b)?.integer()) {
                (Some(a), Some(b)) => Datum::int8(a & b),
                _ => Datum::NULL,
            },
            LeafNode::Match { text, pattern, insensitive } => {
                match (eval(text)?.to_text(), eval(pattern)?.to_text()) {
                    (Some(text), Some(pattern)) => {
                        Datum::bool(self.matches(&text, &pattern, *insensitive)?)
                    }
                    _ => Datum::NULL,
                }
            }
            LeafNode::Joined(a, b) => match (elements(eval(a)?)?, elements(eval(b)?)?) {
                (Some(a), Some(b)) => Datum::array(a.into_iter().chain(b).collect()),
                _ => Datum::NULL,
            },
            LeafNode::Any { left, op, right, all, compared } => match elements(eval(right)?)? {
                None => Datum::NULL,
                Some(items) => any(carried(eval(left)?, *compared)?, *op, items, *all, *compared)?,
            },
            LeafNode::Array(items) => Datum::array(items.iter().map(eval).collect::<Result<_>>()?),
            LeafNode::Element(array, index) => {
                let items = elements(eval(array)?)?.unwrap_or_default();
                let index = eval(index)?.integer().and_then(|index| usize::try_from(index - 1).ok());
                index.and_then(|index| items.get(index).cloned()).unwrap_or(Datum::NULL)
            }
            LeafNode::Field(record, place) => match eval(record)? {
                Datum::Record(fields) => fields.get(*place).cloned().unwrap_or(Datum::NULL),
                _ => Datum::NULL,
            },
            LeafNode::Cast(inner, from, to) => functions::cast(eval(inner)?, *from, *to, self.context)?,
            LeafNode::Call(builtin, arguments) => {
                let arguments = arguments.iter().map(eval).collect::<Result<Vec<_>>>()?;
                functions::call(*builtin, &arguments, self.context)?
            }
            LeafNode::Scalar(plan) => {
                let mut rows = plan.run(self, Some(frame))?;
                if rows.len() > 1 {
                    return Err(SqlError::new(
                        code::CARDINALITY_VIOLATION,
                        "more than one row returned by a subquery used as an expression",
                    ));
                }
                rows.pop().and_then(|mut row| row.pop()).unwrap_or(Datum::NULL)
            }
            LeafNode::Exists(plan) => Datum::bool(!plan.run(self, Some(frame))?.is_empty()),
            LeafNode::ArrayOf(plan) => Datum::array(
                plan.run(self, Some(frame))?.into_iter().filter_map(|mut row| row.pop()).collect(),
            ),
            LeafNode::Aggregate(aggregate) => aggregate.eval(self, frame)?,
            LeafNode::Number(window) => {
                frame.numbers.get(*window).map_or(Datum::NULL, |number| Datum::int8(*number))
            }
        })
    }
}

/// Returns a copy of the top level of an expression, in which each operand is replaced by the result of
/// `operand`.
fn with_operands(expr: &Expr, operand: impl Fn(&Expr) -> Result<Expr>) -> Result<Expr> {
    let boxed = |expr: &Expr| operand(expr).map(Box::new);
    Ok(match expr {
        Expr::Unary(op, inner) => Expr::Unary(*op, boxed(inner)?),
        Expr::Binary(op, left, right) => Expr::Binary(*op, boxed(left)?, boxed(right)?),
        Expr::IsNull(inner) => Expr::IsNull(boxed(inner)?),
        Expr::Cast(inner, ty) => Expr::Cast(boxed(inner)?, *ty),
        Expr::In(probe, list) => {
            let list = list.iter().map(&operand).collect::<Result<Vec<Expr>>>()?;
            Expr::In(boxed(probe)?, list.into())
        }
        Expr::Like { text, pattern, escape, case_insensitive } => Expr::Like {
            text: boxed(text)?,
            pattern: boxed(pattern)?,
            escape: *escape,
            case_insensitive: *case_insensitive,
        },
        Expr::Call(function, arguments) => {
            Expr::Call(*function, arguments.iter().map(operand).collect::<Result<_>>()?)
        }
        Expr::Column(..) | Expr::Constant(..) | Expr::Parameter(..) | Expr::Case { .. } => {
            unreachable!("these are evaluated by themselves")
        }
    })
}

/// Returns a value as the engine carries it.
fn carried(datum: Datum, ty: Type) -> Result<Value> {
    match datum {
        Datum::Value(value) if value.fits(ty) => Ok(value),
        datum => Ok(cast(&datum.into_value(), ty)?),
    }
}

/// Evaluates `left op ANY (items)`, or ALL.
fn any(left: Value, op: Binary, items: Vec<Datum>, all: bool, ty: Type) -> Result<Datum> {
    let mut unknown = false;
    for item in items {
        let item = Expr::Constant(carried(item, ty)?, ty);
        match eval::eval(&Expr::binary(op, Expr::Constant(left.clone(), ty), item), &[])? {
            Value::Bool(truth) if truth != all => return Ok(Datum::bool(truth)),
            Value::Bool(_) => {}
            _ => unknown = true,
        }
    }
    Ok(if unknown { Datum::NULL } else { Datum::bool(all) })
}

/// Adds two numbers. Integers are added as bigint, other numbers in the wider of their two types.
fn added(a: Datum, b: Datum) -> Result<Datum> {
    let (a, b) = (a.into_value(), b.into_value());
    let ty = a.ty().zip(b.ty()).and_then(|(a, b)| coerce::wider(a, b)).filter(|ty| ty.is_number());
    let ty = ty.map(|ty| if matches!(ty, Type::Int2 | Type::Int4) { Type::Int8 } else { ty });
    let Some(ty) = ty else { return Err(SqlError::unsupported("a sum of values that are no numbers")) };
    let operand = |value: Value| Ok::<_, SqlError>(Expr::Constant(cast(&value, ty)?, ty));
    Ok(Datum::Value(eval::eval(&Expr::binary(Binary::Add, operand(a)?, operand(b)?), &[])?))
}

impl Aggregate {
    fn eval(&self, evaluation: &Evaluation<'_>, frame: &Frame<'_>) -> Result<Datum> {
        let group = frame.group.unwrap_or(&[]);
        let mut kept = evaluation.kept();
        let mut inputs: Vec<(Vec<Datum>, Vec<Datum>)> = Vec::with_capacity(group.len());
        for row in group {
            let frame = Frame { row, group: None, numbers: &[], outer: frame.outer };
            let arguments: Vec<Datum> =
                self.arguments.iter().map(|node| evaluation.eval(node, &frame)).collect::<Result<_>>()?;
            let keys: Vec<Datum> =
                self.order.iter().map(|(node, _)| evaluation.eval(node, &frame)).collect::<Result<_>>()?;
            kept.bytes(weight(&keys) + weight(&arguments))?;
            inputs.push((keys, arguments));
        }
        if !self.order.is_empty() {
            let order = descending(&self.order);
            inputs.sort_by(|(a, _), (b, _)| compare(&order, a, b));
        }
        let mut inputs: CatalogRows = inputs.into_iter().map(|(_, arguments)| arguments).collect();
        if self.distinct {
            distinct(&mut inputs, 1);
        }
        let first = |row: &Vec<Datum>| row.first().cloned().unwrap_or(Datum::bool(true));
        if self.function == AggregateFunction::Array {
            let items: Vec<Datum> = inputs.iter().map(first).collect();
            return Ok(if items.is_empty() { Datum::NULL } else { Datum::array(items) });
        }
        inputs.retain(|row| row.first().is_none_or(|datum| !datum.is_null()));
        Ok(match self.function {
            AggregateFunction::Count => Datum::int8(inputs.len() as i64),
            AggregateFunction::Min => inputs.iter().map(first).min_by(Datum::order).unwrap_or(Datum::NULL),
            AggregateFunction::Max => inputs.iter().map(first).max_by(Datum::order).unwrap_or(Datum::NULL),
            AggregateFunction::Sum => {
                let mut sum = Datum::NULL;
                for item in inputs.iter().map(first) {
                    sum = if sum.is_null() { item } else { added(sum, item)? };
                }
                sum
            }
            AggregateFunction::String => {
                let mut text: Option<String> = None;
                for row in &inputs {
                    let item = row.first().and_then(Datum::to_text).unwrap_or_default();
                    let separator = row.get(1).and_then(Datum::to_text).unwrap_or_default();
                    text = Some(match text {
                        None => item,
                        Some(so_far) => so_far + &separator + &item,
                    });
                }
                text.map_or(Datum::NULL, Datum::text)
            }
            AggregateFunction::And | AggregateFunction::Or => {
                let any = self.function == AggregateFunction::Or;
                match inputs.is_empty() {
                    true => Datum::NULL,
                    false => {
                        let found = inputs.iter().map(first).any(|datum| datum.truth() == Some(any));
                        Datum::bool(found == any)
                    }
                }
            }
            AggregateFunction::Array => unreachable!("answered above"),
        })
    }
}
