//! Evaluates expressions.

use quorate_table::{
    eval::eval,
    expr::{Binary, Expr},
    value::{Type, Value},
};

use super::{
    datum::{Datum, elements},
    functions,
    plan::{Aggregate, AggregateFunction, PlanNode},
    run::{CatalogRows, Evaluation, Frame, compare, descending, distinct, weight},
};
use crate::error::{Result, SqlError, code};

impl PlanNode {
    /// Returns the expression's value in a row.
    pub(super) fn eval(&self, evaluation: &Evaluation<'_>, frame: &Frame<'_>) -> Result<Datum> {
        let eval = |node: &PlanNode| node.eval(evaluation, frame);
        Ok(match self {
            PlanNode::Constant(datum) => datum.clone(),
            PlanNode::Parameter(number) => Datum::Value(evaluation.context.arguments.value(*number)),
            PlanNode::Column { level, index } => {
                let mut frame = frame;
                for _ in 0..*level {
                    frame = frame.outer.expect("the binder counted the levels");
                }
                frame.row.get(*index).cloned().unwrap_or(Datum::NULL)
            }
            PlanNode::And(a, b) => match eval(a)?.truth() {
                Some(false) => Datum::bool(false),
                a => match (a, eval(b)?.truth()) {
                    (_, Some(false)) => Datum::bool(false),
                    (Some(true), Some(true)) => Datum::bool(true),
                    _ => Datum::NULL,
                },
            },
            PlanNode::Or(a, b) => match eval(a)?.truth() {
                Some(true) => Datum::bool(true),
                a => match (a, eval(b)?.truth()) {
                    (_, Some(true)) => Datum::bool(true),
                    (Some(false), Some(false)) => Datum::bool(false),
                    _ => Datum::NULL,
                },
            },
            PlanNode::Not(a) => eval(a)?.truth().map_or(Datum::NULL, |truth| Datum::bool(!truth)),
            PlanNode::IsNull(a) => Datum::bool(eval(a)?.is_null()),
            PlanNode::Distinct(a, b) => {
                let (a, b) = (eval(a)?, eval(b)?);
                Datum::bool(a.order(&b).is_ne())
            }
            PlanNode::Binary(op, a, b) => binary(*op, eval(a)?, eval(b)?)?,
            PlanNode::Negate(a) => binary(Binary::Subtract, Datum::int8(0), eval(a)?)?,
            PlanNode::BitAnd(a, b) => match (eval(a)?.integer(), eval(b)?.integer()) {
                (Some(a), Some(b)) => Datum::int8(a & b),
                _ => Datum::NULL,
            },
            PlanNode::Match { text, pattern, insensitive } => {
                match (eval(text)?.to_text(), eval(pattern)?.to_text()) {
                    (Some(text), Some(pattern)) => {
                        Datum::bool(evaluation.matches(&text, &pattern, *insensitive)?)
                    }
                    _ => Datum::NULL,
                }
            }
            PlanNode::Like { text, pattern, escape, insensitive } => {
                match (eval(text)?.to_text(), eval(pattern)?.to_text()) {
                    (Some(text), Some(pattern)) => {
                        let like = Expr::Like {
                            text: Box::new(Expr::Constant(Value::text_of(text), Type::Text)),
                            pattern: Box::new(Expr::Constant(Value::text_of(pattern), Type::Text)),
                            escape: *escape,
                            case_insensitive: *insensitive,
                        };
                        Datum::Value(quorate_table::eval::eval(&like, &[])?)
                    }
                    _ => Datum::NULL,
                }
            }
            PlanNode::In(subject, list) => {
                let subject = eval(subject)?;
                let items = list.iter().map(eval).collect::<Result<Vec<_>>>()?;
                any(&subject, Binary::Equal, &items, false)?
            }
            PlanNode::Case { subject, branches, otherwise } => {
                let subject = match subject {
                    Some(subject) => Some(eval(subject)?),
                    None => None,
                };
                for (condition, result) in branches {
                    let condition = eval(condition)?;
                    let chosen = match &subject {
                        None => condition.truth() == Some(true),
                        Some(subject) => {
                            binary(Binary::Equal, subject.clone(), condition)?.truth() == Some(true)
                        }
                    };
                    if chosen {
                        return eval(result);
                    }
                }
                match otherwise {
                    Some(otherwise) => eval(otherwise)?,
                    None => Datum::NULL,
                }
            }
            PlanNode::Any { left, op, right, all } => match elements(eval(right)?)? {
                None => Datum::NULL,
                Some(items) => any(&eval(left)?, *op, &items, *all)?,
            },
            PlanNode::Array(nodes) => Datum::array(nodes.iter().map(eval).collect::<Result<_>>()?),
            PlanNode::Element(array, index) => {
                let items = elements(eval(array)?)?.unwrap_or_default();
                let index = eval(index)?.integer().and_then(|index| usize::try_from(index - 1).ok());
                index.and_then(|index| items.get(index).cloned()).unwrap_or(Datum::NULL)
            }
            PlanNode::Field(record, place) => match eval(record)? {
                Datum::Record(fields) => fields.get(*place).cloned().unwrap_or(Datum::NULL),
                _ => Datum::NULL,
            },
            PlanNode::Cast(inner, from, to) => functions::cast(eval(inner)?, *from, *to, evaluation.context)?,
            PlanNode::Call(builtin, arguments) => {
                let arguments = arguments.iter().map(eval).collect::<Result<Vec<_>>>()?;
                functions::call(*builtin, &arguments, evaluation.context)?
            }
            PlanNode::Scalar(plan) => {
                let mut rows = plan.run(evaluation, Some(frame))?;
                if rows.len() > 1 {
                    return Err(SqlError::new(
                        code::CARDINALITY_VIOLATION,
                        "more than one row returned by a subquery used as an expression",
                    ));
                }
                rows.pop().and_then(|mut row| row.pop()).unwrap_or(Datum::NULL)
            }
            PlanNode::Exists(plan) => Datum::bool(!plan.run(evaluation, Some(frame))?.is_empty()),
            PlanNode::InQuery(subject, plan) => {
                let subject = eval(subject)?;
                let items: Vec<Datum> =
                    plan.run(evaluation, Some(frame))?.into_iter().filter_map(|mut row| row.pop()).collect();
                any(&subject, Binary::Equal, &items, false)?
            }
            PlanNode::ArrayOf(plan) => Datum::array(
                plan.run(evaluation, Some(frame))?.into_iter().filter_map(|mut row| row.pop()).collect(),
            ),
            PlanNode::Aggregate(aggregate) => aggregate.eval(evaluation, frame)?,
            PlanNode::Number(window) => {
                frame.numbers.get(*window).map_or(Datum::NULL, |number| Datum::int8(*number))
            }
        })
    }
}

/// Evaluates `left op ANY (items)`, or ALL.
fn any(left: &Datum, op: Binary, items: &[Datum], all: bool) -> Result<Datum> {
    let mut unknown = false;
    for item in items {
        match binary(op, left.clone(), item.clone())?.truth() {
            Some(truth) if truth != all => return Ok(Datum::bool(truth)),
            Some(_) => {}
            None => unknown = true,
        }
    }
    Ok(if unknown { Datum::NULL } else { Datum::bool(all) })
}

/// Applies an operator to values whose types are known only now. Numbers are converted to the wider type.
fn binary(op: Binary, a: Datum, b: Datum) -> Result<Datum> {
    if a.is_null() || b.is_null() {
        return Ok(Datum::NULL);
    }
    if op.is_comparison() {
        let (a, b) = alike(a, b);
        let ordering = a.order(&b);
        return Ok(Datum::bool(match op {
            Binary::Equal => ordering.is_eq(),
            Binary::NotEqual => ordering.is_ne(),
            Binary::Less => ordering.is_lt(),
            Binary::LessEqual => ordering.is_le(),
            Binary::Greater => ordering.is_gt(),
            _ => ordering.is_ge(),
        }));
    }
    match (op, a, b) {
        (Binary::Concat, Datum::Array(a), Datum::Array(b)) => {
            Ok(Datum::array(a.iter().chain(b.iter()).cloned().collect()))
        }
        (Binary::Concat, a, b) => {
            Ok(Datum::text(a.to_text().unwrap_or_default() + &b.to_text().unwrap_or_default()))
        }
        (op, Datum::Value(a), Datum::Value(b)) => {
            let ty = match (a.ty(), b.ty()) {
                (Some(a), Some(b)) => crate::statement::coerce::wider(a, b),
                _ => None,
            };
            let Some(ty) = ty.filter(|ty| ty.is_number()) else {
                return Err(SqlError::unsupported(
                    "arithmetic on these types in a query of the system catalog",
                ));
            };
            let operand = |value: Value| {
                let from = value.ty().expect("both operands have a type, so neither is NULL");
                Expr::Cast(Box::new(Expr::Constant(value, from)), ty)
            };
            Ok(Datum::Value(eval(&Expr::binary(op, operand(a), operand(b)), &[])?))
        }
        _ => Err(SqlError::unsupported("arithmetic on arrays or records")),
    }
}

/// Converts a text to the type of the number or boolean that it is compared with.
fn alike(a: Datum, b: Datum) -> (Datum, Datum) {
    let parsed = |text: &str, like: &Value| {
        quorate_table::text::parse_text(like.ty().unwrap_or(Type::Text), text).ok().map(Datum::Value)
    };
    match (&a, &b) {
        (Datum::Value(Value::Text(text)), Datum::Value(value)) if value.ty() != Some(Type::Text) => {
            match parsed(text, value) {
                Some(parsed) => (parsed, b),
                None => (a, b),
            }
        }
        (Datum::Value(value), Datum::Value(Value::Text(text))) if value.ty() != Some(Type::Text) => {
            match parsed(text, value) {
                Some(parsed) => (a, parsed),
                None => (a, b),
            }
        }
        _ => (a, b),
    }
}

impl Aggregate {
    fn eval(&self, evaluation: &Evaluation<'_>, frame: &Frame<'_>) -> Result<Datum> {
        let group = frame.group.unwrap_or(&[]);
        let mut kept = evaluation.kept();
        let mut inputs: Vec<(Vec<Datum>, Vec<Datum>)> = Vec::with_capacity(group.len());
        for row in group {
            let frame = Frame { row, group: None, numbers: &[], outer: frame.outer };
            let arguments: Vec<Datum> =
                self.arguments.iter().map(|node| node.eval(evaluation, &frame)).collect::<Result<_>>()?;
            let keys: Vec<Datum> =
                self.order.iter().map(|(node, _)| node.eval(evaluation, &frame)).collect::<Result<_>>()?;
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
                    sum = if sum.is_null() { item } else { binary(Binary::Add, sum, item)? };
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
