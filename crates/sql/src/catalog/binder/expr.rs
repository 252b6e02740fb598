//! Binds expressions.

use quorate_table::{
    expr::Binary,
    value::{Type, Value},
};
use sqlparser::{
    ast::{self, BinaryOperator, Spanned, UnaryOperator},
    tokenizer::Span,
};

use super::{Binder, Typed, element_of, known, parameter, query::one_column, select::shown, ta_or_text};
use crate::{
    catalog::{datum::Datum, functions::first_index, plan::PlanNode},
    error::{Result, SqlError, code},
    statement::{coerce, scope},
    types::{self, PgType},
};

/// Most stack that binding one level takes, in bytes.
const STACK_BYTES: usize = 128 << 10;

/// Stack that is added if less than [`STACK_BYTES`] is left, in bytes.
const STACK_MORE_BYTES: usize = 2 << 20;

impl Binder<'_> {
    pub(super) fn expr(&mut self, expr: &ast::Expr) -> Result<Typed> {
        stacker::maybe_grow(STACK_BYTES, STACK_MORE_BYTES, || self.form(expr))
    }

    fn form(&mut self, expr: &ast::Expr) -> Result<Typed> {
        let span = expr.span();
        let boolean = |node| Ok(Typed(node, PgType::BOOL));
        let negated = |not: bool, node: PlanNode| if not { PlanNode::Not(Box::new(node)) } else { node };
        match expr {
            ast::Expr::Identifier(ident) => self.column(std::slice::from_ref(ident)),
            ast::Expr::CompoundIdentifier(idents) => self.column(idents),
            ast::Expr::Nested(inner) => self.expr(inner),
            ast::Expr::Collate { expr, .. } => self.expr(expr),
            ast::Expr::Value(value) => self.literal(&value.value, value.span),
            ast::Expr::Cast { expr, data_type, .. } => {
                let to = types::named(data_type).map_err(|error| error.at(span))?;
                let Typed(node, from) = self.expr(expr)?;
                if matches!(to, PgType::Float4 | PgType::Float4Array)
                    && !matches!(node, PlanNode::Column { .. })
                {
                    return Err(types::no_real().at(span));
                }
                if let (PlanNode::Parameter(number), PgType::Unknown) = (&node, from) {
                    self.parameters.decide(*number, to);
                    return Ok(parameter(*number, to));
                }
                Ok(Typed(PlanNode::Cast(Box::new(node), from, to), to))
            }
            ast::Expr::UnaryOp { op: UnaryOperator::Not, expr } => {
                let node = self.condition(expr)?;
                boolean(PlanNode::Not(Box::new(node)))
            }
            ast::Expr::UnaryOp { op: UnaryOperator::Minus, expr } => {
                let Typed(node, ty) = self.expr(expr)?;
                Ok(Typed(PlanNode::Negate(Box::new(node)), ty))
            }
            ast::Expr::UnaryOp { op: UnaryOperator::Plus, expr } => self.expr(expr),
            ast::Expr::BinaryOp { left, op, right } => self.binary(left, op, right, span),
            ast::Expr::IsNull(inner) => boolean(PlanNode::IsNull(Box::new(self.expr(inner)?.0))),
            ast::Expr::IsNotNull(inner) => {
                boolean(PlanNode::Not(Box::new(PlanNode::IsNull(Box::new(self.expr(inner)?.0)))))
            }
            ast::Expr::IsTrue(inner) => self.is(inner, true, true),
            ast::Expr::IsNotTrue(inner) => self.is(inner, true, false),
            ast::Expr::IsFalse(inner) => self.is(inner, false, true),
            ast::Expr::IsNotFalse(inner) => self.is(inner, false, false),
            ast::Expr::IsDistinctFrom(a, b) | ast::Expr::IsNotDistinctFrom(a, b) => {
                let (a, b) = (self.expr(a)?, self.expr(b)?);
                let (a, b) = self.meet(a, b);
                let not = matches!(expr, ast::Expr::IsNotDistinctFrom(..));
                boolean(negated(not, PlanNode::Distinct(Box::new(a), Box::new(b))))
            }
            ast::Expr::Between { expr, negated: not, low, high } => {
                let low = self.binary(expr, &BinaryOperator::GtEq, low, span)?.0;
                let high = self.binary(expr, &BinaryOperator::LtEq, high, span)?.0;
                boolean(negated(*not, PlanNode::And(Box::new(low), Box::new(high))))
            }
            ast::Expr::InList { expr, list, negated: not } => {
                let Typed(subject, ty) = self.expr(expr)?;
                let mut items = Vec::with_capacity(list.len());
                for item in list {
                    let typed = self.expr(item)?;
                    items.push(self.coerced(typed, ta_or_text(ty)).0);
                }
                let subject = self.coerced(Typed(subject, ty), PgType::TEXT).0;
                boolean(negated(*not, PlanNode::In(Box::new(subject), items)))
            }
            ast::Expr::InSubquery { expr, subquery, negated: not } => {
                let subject = self.expr(expr)?;
                let (plan, columns) = self.query(subquery)?;
                one_column(&columns, span)?;
                let subject = self.coerced(subject, columns[0].ty).0;
                boolean(negated(*not, PlanNode::InQuery(Box::new(subject), Box::new(plan))))
            }
            ast::Expr::Exists { subquery, negated: not } => {
                let (plan, _) = self.query(subquery)?;
                boolean(negated(*not, PlanNode::Exists(Box::new(plan))))
            }
            ast::Expr::Subquery(query) => {
                let (plan, columns) = self.query(query)?;
                one_column(&columns, span)?;
                Ok(Typed(PlanNode::Scalar(Box::new(plan)), columns[0].ty))
            }
            ast::Expr::AnyOp { left, compare_op, right, .. } => {
                self.any(left, compare_op, right, false, span)
            }
            ast::Expr::AllOp { left, compare_op, right } => self.any(left, compare_op, right, true, span),
            ast::Expr::Like { negated: not, expr, pattern, escape_char, any: false } => self
                .like(expr, pattern, escape_char.as_ref(), false)
                .map(|node| Typed(negated(*not, node), PgType::BOOL)),
            ast::Expr::ILike { negated: not, expr, pattern, escape_char, any: false } => self
                .like(expr, pattern, escape_char.as_ref(), true)
                .map(|node| Typed(negated(*not, node), PgType::BOOL)),
            ast::Expr::Case { operand, conditions, else_result, .. } => {
                let subject = match operand {
                    Some(operand) => Some(self.expr(operand)?),
                    None => None,
                };
                let subject_type = subject.as_ref().map(|typed| typed.1);
                let mut branches = Vec::with_capacity(conditions.len());
                let mut ty = PgType::Unknown;
                for when in conditions {
                    let condition = match subject_type {
                        None => self.condition(&when.condition)?,
                        Some(ty) => {
                            let typed = self.expr(&when.condition)?;
                            self.coerced(typed, ta_or_text(ty)).0
                        }
                    };
                    let Typed(result, result_type) = self.expr(&when.result)?;
                    ty = known(ty, result_type);
                    branches.push((condition, shown(result, result_type)));
                }
                let otherwise = match else_result {
                    Some(otherwise) => {
                        let Typed(node, other) = self.expr(otherwise)?;
                        ty = known(ty, other);
                        Some(Box::new(node))
                    }
                    None => None,
                };
                let ty = ta_or_text(ty);
                Ok(Typed(
                    PlanNode::Case { subject: subject.map(|typed| Box::new(typed.0)), branches, otherwise },
                    ty,
                ))
            }
            ast::Expr::Array(array) => {
                if !array.named {
                    return Err(SqlError::new(code::SYNTAX_ERROR, "syntax error at or near \"[\"").at(span));
                }
                let nested = |element: &ast::Expr| matches!(element, ast::Expr::Array(_));
                if array.elem.iter().any(nested) {
                    return Err(SqlError::unsupported("an array of several dimensions").at(span));
                }
                let mut nodes = Vec::with_capacity(array.elem.len());
                let mut ty = PgType::Unknown;
                for element in &array.elem {
                    let Typed(node, element) = self.expr(element)?;
                    ty = known(ty, element);
                    nodes.push(node);
                }
                Ok(Typed(PlanNode::Array(nodes), ta_or_text(ty).array().unwrap_or(PgType::TextArray)))
            }
            ast::Expr::CompoundFieldAccess { root, access_chain } => {
                // The first names are a column, after its table if it is qualified.
                let mut name = match &**root {
                    ast::Expr::Identifier(ident) => vec![ident.clone()],
                    ast::Expr::CompoundIdentifier(idents) => idents.clone(),
                    _ => Vec::new(),
                };
                let mut rest = &access_chain[..];
                if !name.is_empty() {
                    while let [ast::AccessExpr::Dot(ast::Expr::Identifier(part)), more @ ..] = rest {
                        name.push(part.clone());
                        rest = more;
                    }
                }
                let Typed(mut node, mut ty) =
                    if name.is_empty() { self.expr(root)? } else { self.column(&name)? };
                for access in rest {
                    match access {
                        ast::AccessExpr::Subscript(ast::Subscript::Index { index }) => {
                            let index = Box::new(self.expr(index)?.0);
                            let first = PlanNode::Constant(Datum::int8(1 - first_index(ty)));
                            let place = PlanNode::Binary(Binary::Add, index, Box::new(first));
                            node = PlanNode::Element(Box::new(node), Box::new(place));
                            ty = element_of(ty);
                        }
                        ast::AccessExpr::Dot(ast::Expr::Identifier(field)) if ty == PgType::Record => {
                            let (place, field) = record_field(field)?;
                            node = PlanNode::Field(Box::new(node), place);
                            ty = field;
                        }
                        _ => return Err(SqlError::unsupported("this field or slice of a value").at(span)),
                    }
                }
                Ok(Typed(node, ty))
            }
            ast::Expr::Substring { expr, substring_from, substring_for, .. } => {
                let mut arguments = vec![self.expr(expr)?];
                for part in [substring_from, substring_for].into_iter().flatten() {
                    arguments.push(self.expr(part)?);
                }
                self.call("substring", arguments, span)
            }
            ast::Expr::Trim { trim_where, trim_what, expr, trim_characters } => {
                let mut arguments = vec![self.expr(expr)?];
                for what in trim_what.iter().map(|what| &**what).chain(trim_characters.iter().flatten()) {
                    arguments.push(self.expr(what)?);
                }
                let name = match trim_where {
                    None | Some(ast::TrimWhereField::Both) => "btrim",
                    Some(ast::TrimWhereField::Leading) => "ltrim",
                    Some(ast::TrimWhereField::Trailing) => "rtrim",
                };
                self.call(name, arguments, span)
            }
            ast::Expr::Position { expr, r#in } => {
                let arguments = vec![self.expr(r#in)?, self.expr(expr)?];
                self.call("strpos", arguments, span)
            }
            ast::Expr::Function(function) => self.function(function, span),
            other => {
                Err(SqlError::unsupported(format!("the expression {other} in a query of the system catalog"))
                    .at(span))
            }
        }
    }

    fn literal(&mut self, value: &ast::Value, span: Span) -> Result<Typed> {
        Ok(match value {
            ast::Value::Number(digits, _) => match digits.parse::<i64>() {
                Ok(number) => {
                    let ty = if i32::try_from(number).is_ok() { PgType::INT4 } else { PgType::INT8 };
                    Typed(PlanNode::Constant(Datum::int8(number)), ty)
                }
                Err(_) => {
                    let value = quorate_table::text::parse_text(Type::Numeric, digits)?;
                    Typed(PlanNode::Constant(Datum::Value(value)), PgType::Plain(Type::Numeric))
                }
            },
            ast::Value::Boolean(truth) => Typed(PlanNode::Constant(Datum::bool(*truth)), PgType::BOOL),
            ast::Value::Null => Typed(PlanNode::Constant(Datum::NULL), PgType::Unknown),
            ast::Value::Placeholder(name) => {
                let number = self.parameters.number(name, span)?;
                let ty = self.parameters.ty(number).unwrap_or(PgType::Unknown);
                parameter(number, ty)
            }
            other => match other.clone().into_string() {
                Some(text) => Typed(PlanNode::Constant(Datum::Value(Value::text_of(text))), PgType::Unknown),
                None => return Err(SqlError::unsupported(format!("the constant {other}")).at(span)),
            },
        })
    }

    fn binary(
        &mut self,
        left: &ast::Expr,
        op: &BinaryOperator,
        right: &ast::Expr,
        span: Span,
    ) -> Result<Typed> {
        use BinaryOperator as Op;
        let symbol = match op {
            Op::PGCustomBinaryOperator(parts) => parts.last().cloned().unwrap_or_default(),
            other => other.to_string(),
        };
        let boxed = |node| Box::new(node);
        match symbol.as_str() {
            "AND" | "OR" => {
                let (left, right) = (self.condition(left)?, self.condition(right)?);
                let node = if symbol == "AND" {
                    PlanNode::And(boxed(left), boxed(right))
                } else {
                    PlanNode::Or(boxed(left), boxed(right))
                };
                return Ok(Typed(node, PgType::BOOL));
            }
            "~" | "!~" | "~*" | "!~*" => {
                let (text, pattern) = (self.expr(left)?, self.expr(right)?);
                let (text, pattern) =
                    (self.coerced(text, PgType::TEXT).0, self.coerced(pattern, PgType::TEXT).0);
                let insensitive = symbol.ends_with('*');
                let node = PlanNode::Match { text: boxed(text), pattern: boxed(pattern), insensitive };
                let node = if symbol.starts_with('!') { PlanNode::Not(boxed(node)) } else { node };
                return Ok(Typed(node, PgType::BOOL));
            }
            "~~" | "!~~" | "~~*" | "!~~*" => {
                let node = self.like(left, right, None, symbol.ends_with('*'))?;
                let node = if symbol.starts_with('!') { PlanNode::Not(boxed(node)) } else { node };
                return Ok(Typed(node, PgType::BOOL));
            }
            "&" => {
                let (left, right) = (self.expr(left)?, self.expr(right)?);
                let ty = known(left.1, right.1);
                let (left, right) = self.meet(left, right);
                return Ok(Typed(PlanNode::BitAnd(boxed(left), boxed(right)), ty));
            }
            _ => {}
        }
        let Some(op) = operator(&symbol) else {
            return Err(
                SqlError::unsupported(format!("operator {symbol} in a query of the system catalog")).at(span)
            );
        };
        let (a, b) = (self.expr(left)?, self.expr(right)?);
        let (ta, tb) = (a.1, b.1);
        let (a, b) = self.meet(a, b);
        let ty = if op.is_comparison() {
            PgType::BOOL
        } else if op == Binary::Concat {
            [ta, tb].into_iter().find(|ty| ty.info().category == 'A').unwrap_or(PgType::TEXT)
        } else {
            match (ta, tb) {
                (PgType::Plain(a), PgType::Plain(b)) => coerce::wider(a, b).map_or(ta, PgType::Plain),
                _ => known(ta, tb),
            }
        };
        let node = PlanNode::Binary(op, boxed(a), boxed(b));
        // Integers are computed as bigint, and the result must fit in the expression's type.
        let narrow = !op.is_comparison() && matches!(ty, PgType::Plain(Type::Int2 | Type::Int4));
        Ok(Typed(if narrow { PlanNode::Cast(boxed(node), PgType::INT8, ty) } else { node }, ty))
    }

    fn is(&mut self, inner: &ast::Expr, truth: bool, wanted: bool) -> Result<Typed> {
        let node = self.condition(inner)?;
        let other = PlanNode::Constant(Datum::bool(truth));
        let distinct = PlanNode::Distinct(Box::new(node), Box::new(other));
        Ok(Typed(if wanted { PlanNode::Not(Box::new(distinct)) } else { distinct }, PgType::BOOL))
    }

    fn any(
        &mut self,
        left: &ast::Expr,
        op: &BinaryOperator,
        right: &ast::Expr,
        all: bool,
        span: Span,
    ) -> Result<Typed> {
        let Some(op) = operator(&op.to_string()) else {
            return Err(SqlError::unsupported("ANY with this operator").at(span));
        };
        let left = self.expr(left)?;
        let unwrapped = match right {
            ast::Expr::Nested(inner) => inner,
            other => other,
        };
        let (right, element) = match unwrapped {
            ast::Expr::Subquery(query) => {
                let (plan, columns) = self.query(query)?;
                one_column(&columns, span)?;
                (PlanNode::ArrayOf(Box::new(plan)), columns[0].ty)
            }
            other => {
                let typed = self.expr(other)?;
                let wanted = ta_or_text(left.1).array().unwrap_or(PgType::TextArray);
                let Typed(node, ty) = self.coerced(typed, wanted);
                (node, element_of(ty))
            }
        };
        let left = self.coerced(left, element).0;
        Ok(Typed(PlanNode::Any { left: Box::new(left), op, right: Box::new(right), all }, PgType::BOOL))
    }

    fn like(
        &mut self,
        text: &ast::Expr,
        pattern: &ast::Expr,
        escape: Option<&ast::ValueWithSpan>,
        insensitive: bool,
    ) -> Result<PlanNode> {
        let (text, pattern) = (self.expr(text)?, self.expr(pattern)?);
        let (text, pattern) = (self.coerced(text, PgType::TEXT).0, self.coerced(pattern, PgType::TEXT).0);
        let escape = match escape {
            None => Some('\\'),
            Some(value) => value.value.clone().into_string().and_then(|text| text.chars().next()),
        };
        Ok(PlanNode::Like { text: Box::new(text), pattern: Box::new(pattern), escape, insensitive })
    }
}

/// Returns the index and type of a record's field. All records come from `_pg_expandarray`: an element and
/// its number.
fn record_field(field: &ast::Ident) -> Result<(usize, PgType)> {
    match scope::fold(field).as_str() {
        "x" => Ok((0, PgType::Plain(Type::Int2))),
        "n" => Ok((1, PgType::INT4)),
        other => Err(SqlError::new(
            code::UNDEFINED_COLUMN,
            format!("could not identify column \"{other}\" in record data type"),
        )
        .at(field.span)),
    }
}

fn operator(symbol: &str) -> Option<Binary> {
    Some(match symbol {
        "=" => Binary::Equal,
        "<>" | "!=" => Binary::NotEqual,
        "<" => Binary::Less,
        "<=" => Binary::LessEqual,
        ">" => Binary::Greater,
        ">=" => Binary::GreaterEqual,
        "+" => Binary::Add,
        "-" => Binary::Subtract,
        "*" => Binary::Multiply,
        "/" => Binary::Divide,
        "%" => Binary::Modulo,
        "||" => Binary::Concat,
        _ => return None,
    })
}
