//! Binds expressions: from syntax to the engine's bound form, by PostgreSQL's rules.
//!
//! This file has a case for each form of syntax. `operator` has operators and the forms made of them,
//! `case` CASE, `quantified` ANY and ALL of arrays, `interval` intervals, `json` operators of documents,
//! `function` calls, `sequence` calls of sequence functions, and `name` the name of a column without an
//! alias. `binder` has the state that all these files share, and `operand` the operands that they build.
//! `extension` names the places where a query of the catalog has forms of its own.

mod binder;
mod case;
mod extension;
mod function;
mod interval;
mod json;
pub mod name;
mod operand;
mod operator;
mod quantified;
mod sequence;

use quorate_table::{
    expr::{Binary, DEPTH_MAX, Expr, Function},
    modifier::Modifier,
    value::{Type, Value},
};
use sqlparser::{
    ast::{self, BinaryOperator, CeilFloorKind, Spanned},
    tokenizer::Span,
};

use super::{
    coerce::{self, IntervalParts, Operand},
    depth, fold,
    parameters::SessionValue,
    scope,
};
use crate::{
    error::{Result, SqlError, code},
    types::{self, PgType},
};
use operand::{boolean, negated, number, session_value};
use quantified::Quantifier;

pub use binder::{AGGREGATE, Binder};
pub use extension::Extension;
pub use function::{is_aggregate, no_function};
pub use sequence::constant_sequence;

/// Maximum number of levels of an expression. The select around the expression may need the engine's
/// remaining levels.
const LEVELS_MAX: usize = DEPTH_MAX - 8;

/// Maximum stack that binding one level takes, in bytes.
const STACK_BYTES: usize = 128 << 10;

/// Stack that is added if less than [`STACK_BYTES`] is left, in bytes.
const STACK_MORE_BYTES: usize = 2 << 20;

impl Binder<'_> {
    /// Binds an expression, which may stay without a type. Fails with 54001 if the expression is too deep for
    /// the engine.
    pub fn operand(&mut self, expr: &ast::Expr) -> Result<Operand> {
        let operand = stacker::maybe_grow(STACK_BYTES, STACK_MORE_BYTES, || self.form(expr))?;
        match &operand {
            Operand::Typed(bound, _) if bound.depth() > LEVELS_MAX => {
                Err(depth::refused(LEVELS_MAX).at(expr.span()))
            }
            _ => Ok(operand),
        }
    }

    fn form(&mut self, expr: &ast::Expr) -> Result<Operand> {
        let span = expr.span();
        match expr {
            ast::Expr::Identifier(ident) => self.column(std::slice::from_ref(ident)),
            ast::Expr::CompoundIdentifier(idents) => self.column(idents),
            ast::Expr::Nested(inner) => self.operand(inner),
            ast::Expr::Value(value) => self.literal(&value.value, value.span),
            ast::Expr::TypedString(typed) => {
                let ast::Value::SingleQuotedString(text) = &typed.value.value else {
                    return Err(SqlError::unsupported(format!("the constant {typed}")).at(span));
                };
                self.cast(Operand::Literal(text.clone(), typed.value.span), &typed.data_type, span)
            }
            ast::Expr::Cast {
                kind: ast::CastKind::Cast | ast::CastKind::DoubleColon,
                expr,
                data_type,
                format: None,
                ..
            } => {
                let operand = self.operand(expr)?;
                self.cast(operand, data_type, span)
            }
            ast::Expr::UnaryOp { op, expr } => self.unary(*op, expr, span),
            ast::Expr::BinaryOp { left, op, right } => self.binary(left, op, right, span),
            ast::Expr::IsNull(inner) => self.is_null(inner),
            ast::Expr::IsNotNull(inner) => self.is_null(inner).map(negated),
            ast::Expr::IsTrue(inner) => self.is_bool(inner, true, "IS TRUE"),
            ast::Expr::IsNotTrue(inner) => self.is_bool(inner, true, "IS NOT TRUE").map(negated),
            ast::Expr::IsFalse(inner) => self.is_bool(inner, false, "IS FALSE"),
            ast::Expr::IsNotFalse(inner) => self.is_bool(inner, false, "IS NOT FALSE").map(negated),
            ast::Expr::IsUnknown(inner) => self.is_unknown(inner, "IS UNKNOWN"),
            ast::Expr::IsNotUnknown(inner) => self.is_unknown(inner, "IS NOT UNKNOWN").map(negated),
            ast::Expr::IsNotDistinctFrom(a, b) => self.same(a, b, span),
            ast::Expr::IsDistinctFrom(a, b) => self.same(a, b, span).map(negated),
            ast::Expr::Between { expr, negated: not, low, high } => {
                let (operand, low) = (self.operand(expr)?, self.operand(low)?);
                let at_least = operand.copy(span, self.parameters)?;
                let at_least = self.applied(&BinaryOperator::GtEq, at_least, low, span)?;
                let (operand, high) = (self.decided(operand), self.operand(high)?);
                let at_most = self.applied(&BinaryOperator::LtEq, operand, high, span)?;
                let (Operand::Typed(at_least, _), Operand::Typed(at_most, _)) = (at_least, at_most) else {
                    unreachable!("comparisons are decided")
                };
                Ok(when(*not, boolean(Expr::Binary(Binary::And, Box::new(at_least), Box::new(at_most)))))
            }
            ast::Expr::InList { expr, list, negated: not } => {
                let mut operands = vec![self.operand(expr)?];
                for item in list {
                    operands.push(self.operand(item)?);
                }
                self.list(operands, span).map(|list| when(*not, list))
            }
            ast::Expr::Like { negated: not, any: false, expr, pattern, escape_char } => {
                self.like(expr, pattern, escape_char.as_ref(), false, span).map(|like| when(*not, like))
            }
            ast::Expr::ILike { negated: not, any: false, expr, pattern, escape_char } => {
                self.like(expr, pattern, escape_char.as_ref(), true, span).map(|like| when(*not, like))
            }
            ast::Expr::Case { operand, conditions, else_result, .. } => {
                self.case(operand.as_deref(), conditions, else_result.as_deref(), span)
            }
            ast::Expr::Function(function) => self.function(function, span),
            ast::Expr::Ceil { expr, field: CeilFloorKind::DateTimeField(ast::DateTimeField::NoDateTime) } => {
                let operand = self.operand(expr)?;
                self.call("ceil", vec![operand], span)
            }
            ast::Expr::Floor {
                expr,
                field: CeilFloorKind::DateTimeField(ast::DateTimeField::NoDateTime),
            } => {
                let operand = self.operand(expr)?;
                self.call("floor", vec![operand], span)
            }
            ast::Expr::Substring { expr, substring_from, substring_for, .. } => {
                let mut arguments = vec![self.operand(expr)?];
                match (substring_from, substring_for) {
                    (None, None) => {}
                    (from, length) => {
                        arguments.push(match from {
                            Some(from) => self.operand(from)?,
                            None => Operand::Typed(Expr::Constant(Value::Int4(1), Type::Int4), Type::Int4),
                        });
                        if let Some(length) = length {
                            arguments.push(self.operand(length)?);
                        }
                    }
                }
                self.call("substring", arguments, span)
            }
            ast::Expr::Position { expr, r#in } => {
                let arguments = vec![self.operand(r#in)?, self.operand(expr)?];
                self.call("strpos", arguments, span)
            }
            ast::Expr::Trim { trim_where, trim_what, expr, trim_characters } => {
                let mut arguments = vec![self.operand(expr)?];
                if let Some(what) = trim_what {
                    arguments.push(self.operand(what)?);
                }
                for what in trim_characters.iter().flatten() {
                    arguments.push(self.operand(what)?);
                }
                let name = match trim_where {
                    None | Some(ast::TrimWhereField::Both) => "btrim",
                    Some(ast::TrimWhereField::Leading) => "ltrim",
                    Some(ast::TrimWhereField::Trailing) => "rtrim",
                };
                self.call(name, arguments, span)
            }
            ast::Expr::Extract { field, expr, .. } => {
                let field = Operand::Literal(field.to_string().trim_matches('\'').to_lowercase(), span);
                let source = self.operand(expr)?;
                self.call("extract", vec![field, source], span)
            }
            ast::Expr::Subquery(_)
            | ast::Expr::Exists { .. }
            | ast::Expr::InSubquery { .. }
            | ast::Expr::AnyOp { .. }
            | ast::Expr::AllOp { .. }
            | ast::Expr::Array(_)
            | ast::Expr::CompoundFieldAccess { .. }
                if let Some(extension) = &mut self.extension =>
            {
                extension.form(expr, span, self.parameters)
            }
            ast::Expr::Subquery(_) | ast::Expr::Exists { .. } | ast::Expr::InSubquery { .. } => {
                self.parameters.needs_catalog = true;
                Err(SqlError::unsupported("a sub-select over tables").at(span))
            }
            ast::Expr::AnyOp { left, compare_op, right, .. } => {
                self.quantified(left, compare_op, right, Quantifier::Any, span)
            }
            ast::Expr::AllOp { left, compare_op, right } => {
                self.quantified(left, compare_op, right, Quantifier::All, span)
            }
            ast::Expr::Collate { collation, expr } => {
                let name = scope::parts(collation)?.pop().unwrap_or_default();
                if !matches!(name.as_str(), "C" | "POSIX" | "default") {
                    return Err(SqlError::unsupported(format!("collation \"{name}\"")).at(span));
                }
                match self.operand(expr)? {
                    operand @ Operand::Typed(_, Type::Text | Type::Bpchar) => Ok(operand),
                    Operand::Typed(_, ty) => Err(no_collation(ty.name(), span)),
                    Operand::Interval(_) => Err(no_collation("interval", span)),
                    undecided => Ok(undecided),
                }
            }
            ast::Expr::AtTimeZone { .. } => Err(SqlError::unsupported("AT TIME ZONE").at(span)),
            ast::Expr::Interval(interval) => self.interval_literal(interval, span),
            ast::Expr::Tuple(_) => Err(SqlError::unsupported("a row value").at(span)),
            ast::Expr::Array(_) => {
                self.parameters.needs_catalog = true;
                Err(SqlError::unsupported("an array").at(span))
            }
            ast::Expr::SimilarTo { .. } => Err(SqlError::unsupported("SIMILAR TO").at(span)),
            other => {
                self.parameters.needs_catalog = true;
                Err(SqlError::unsupported(format!("the expression {other}")).at(span))
            }
        }
    }

    /// Binds an expression. An operand without a type becomes text.
    pub fn resolve_unknown(&mut self, expr: &ast::Expr) -> Result<(Expr, Type)> {
        self.operand(expr)?.resolve_unknown(self.parameters)
    }

    /// Binds the condition of a clause.
    pub fn condition(&mut self, expr: &ast::Expr, clause: &str) -> Result<Expr> {
        self.operand(expr)?.condition(clause, expr.span(), self.parameters)
    }

    /// Binds a column of a result, with its type and modifier for clients.
    pub fn shown(&mut self, expr: &ast::Expr) -> Result<(Expr, (PgType, i32))> {
        match self.operand(expr)? {
            Operand::Interval(parts) => {
                self.parameters.depends.interval_style = true;
                Ok((parts.text(), (PgType::Interval, -1)))
            }
            other => {
                let (bound, ty) = other.resolve_unknown(self.parameters)?;
                Ok((bound, types::type_with_modifier(ty, cast_to(expr))))
            }
        }
    }

    fn cast(&mut self, operand: Operand, data_type: &ast::DataType, span: Span) -> Result<Operand> {
        if let ast::DataType::Interval { fields: None, precision: None } = data_type {
            return self.interval(operand, span).map(IntervalParts::operand);
        }
        if let Some(extension) = &mut self.extension
            && let Some(cast) = extension.cast(&operand, data_type, span, self.parameters)?
        {
            return Ok(cast);
        }
        // The catalog has more types (`regclass`, `oid`, arrays).
        let (ty, modifier) = types::modified(data_type).map_err(|error| {
            self.parameters.needs_catalog |= types::named(data_type).is_ok();
            error.at(span)
        })?;
        let expr = operand.cast_explicit(ty, span, self.parameters)?;
        let expr = match modifier {
            None | Some(Modifier::Varchar(None)) => expr,
            // An explicit cast cuts a text that is too long.
            Some(Modifier::Varchar(Some(most))) => {
                let most = Value::Int4(i32::try_from(most).unwrap_or(i32::MAX));
                Expr::Call(Function::Left, vec![expr, Expr::Constant(most, Type::Int4)])
            }
            Some(padded @ Modifier::Char(length)) => {
                let length = Value::Int4(i32::try_from(length).unwrap_or(i32::MAX));
                let text = coerce::cast(expr, Type::Text);
                let cut = Expr::Call(Function::Left, vec![text, Expr::Constant(length, Type::Int4)]);
                Expr::Call(Function::Fit(padded), vec![coerce::cast(fold::constant(cut), Type::Bpchar)])
            }
            Some(digits) => Expr::Call(Function::Fit(digits), vec![expr]),
        };
        Ok(Operand::Typed(fold::constant(expr), ty))
    }

    fn column(&mut self, name: &[ast::Ident]) -> Result<Operand> {
        let column = match &mut self.extension {
            Some(extension) => extension.column(name),
            None => self.scope.column(name).map(|column| {
                let ty = column.ty();
                Operand::Typed(column, ty)
            }),
        };
        // Some functions are called without parentheses, so the parser reads their calls as names.
        if let [ident] = name
            && ident.quote_style.is_none()
            && let Some(value) = SessionValue::named(&ident.value.to_lowercase())
            && column.is_err()
            && !ident.value.eq_ignore_ascii_case("now")
            && !value.differs_by_row()
        {
            return Ok(session_value(value));
        }
        column
    }

    fn literal(&mut self, value: &ast::Value, span: Span) -> Result<Operand> {
        Ok(match value {
            ast::Value::Number(digits, _) => {
                let (value, ty) = number(digits).map_err(|error| error.at(span))?;
                Operand::Typed(Expr::Constant(value, ty), ty)
            }
            ast::Value::SingleQuotedString(text)
            | ast::Value::EscapedStringLiteral(text)
            | ast::Value::UnicodeStringLiteral(text)
            | ast::Value::NationalStringLiteral(text) => Operand::Literal(text.clone(), span),
            ast::Value::DollarQuotedString(quoted) => Operand::Literal(quoted.value.clone(), span),
            ast::Value::Boolean(truth) => {
                Operand::Typed(Expr::Constant(Value::Bool(*truth), Type::Bool), Type::Bool)
            }
            ast::Value::Null => Operand::Null,
            ast::Value::Placeholder(name) => {
                let number = self.parameters.number(name, span)?;
                self.parameter(number, span)
            }
            other => return Err(SqlError::unsupported(format!("the constant {other}")).at(span)),
        })
    }

    fn parameter(&mut self, number: usize, span: Span) -> Operand {
        match self.parameters.ty(number) {
            Some(PgType::Interval) => interval::parameter(number).operand(),
            Some(ty)
                if ty != PgType::Unknown
                    && let Some(extension) = &mut self.extension =>
            {
                extension.parameter(number, ty)
            }
            Some(ty) if ty != PgType::Unknown => {
                Operand::Typed(Expr::Parameter(number, ty.plain()), ty.plain())
            }
            _ => Operand::Parameter(number, span),
        }
    }

    /// Returns the operand, with a type if the operand is a parameter whose type another use has decided.
    fn decided(&mut self, operand: Operand) -> Operand {
        match operand {
            Operand::Parameter(number, span) => self.parameter(number, span),
            other => other,
        }
    }
}

/// Returns the modifier of the outermost cast of an expression.
fn cast_to(expr: &ast::Expr) -> Option<Modifier> {
    match expr {
        ast::Expr::Nested(inner) => cast_to(inner),
        ast::Expr::Cast { data_type, .. } => types::modified(data_type).ok()?.1,
        ast::Expr::TypedString(typed) => types::modified(&typed.data_type).ok()?.1,
        _ => None,
    }
}

fn no_collation(ty: &str, span: Span) -> SqlError {
    SqlError::new(code::DATATYPE_MISMATCH, format!("collations are not supported by type {ty}")).at(span)
}

fn when(not: bool, operand: Operand) -> Operand {
    if not { negated(operand) } else { operand }
}
