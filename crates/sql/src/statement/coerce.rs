//! PostgreSQL's conversions: the common type of operands, and the implicit conversions of a value.
//!
//! A string literal, NULL and an undeclared parameter have no type at first, and get one from their
//! surroundings. Every other conversion is an explicit [`Expr::Cast`] that is inserted here, so that the
//! engine never guesses.

use quorate_table::{
    expr::{Expr, Function},
    modifier::Modifier,
    schema::Column,
    text::parse_text,
    value::{Type, Value},
};
use sqlparser::tokenizer::Span;

use super::parameters::Parameters;
use crate::{
    error::{Result, SqlError, code},
    types::PgType,
};

/// A bound expression, or an operand that has no type yet.
#[derive(Clone, Debug)]
pub enum Operand {
    /// An expression with a type.
    Typed(Expr, Type),
    /// A string constant without a type.
    Literal(String, Span),
    /// NULL without a type.
    Null,
    /// A parameter without a type.
    Parameter(usize, Span),
    /// An interval. The engine has no type for intervals.
    Interval(Box<IntervalParts>),
}

/// The parts of an interval.
#[derive(Clone, Debug)]
pub struct IntervalParts {
    /// Months, an integer.
    pub months: Expr,
    /// Days, an integer.
    pub days: Expr,
    /// Microseconds, a bigint.
    pub micros: Expr,
}

impl IntervalParts {
    /// Returns the interval's text.
    pub fn text(self) -> Expr {
        super::fold::constant(Expr::Call(Function::IntervalText, vec![self.months, self.days, self.micros]))
    }
}

impl Operand {
    /// Returns the operand's type, if it has one.
    pub fn ty(&self) -> Option<Type> {
        match self {
            Operand::Typed(_, ty) => Some(*ty),
            _ => None,
        }
    }

    /// Returns the name of the operand's type, for messages.
    pub fn type_name(&self) -> &'static str {
        match self {
            Operand::Interval(_) => "interval",
            other => other.ty().map_or("unknown", Type::name),
        }
    }

    /// Copies the operand, for a form of syntax that needs the operand at several places.
    pub fn copy(&self, span: Span, parameters: &mut Parameters) -> Result<Operand> {
        Ok(match self {
            Operand::Typed(expr, ty) => Operand::Typed(parameters.copy(expr, span)?, *ty),
            Operand::Interval(parts) => {
                let IntervalParts { months, days, micros } = &**parts;
                Operand::Interval(Box::new(IntervalParts {
                    months: parameters.copy(months, span)?,
                    days: parameters.copy(days, span)?,
                    micros: parameters.copy(micros, span)?,
                }))
            }
            undecided => undecided.clone(),
        })
    }

    /// Converts the operand to `ty` implicitly, as PostgreSQL does: an operand without a type becomes any
    /// type, and a number or a date becomes a wider type.
    pub fn coerce_implicit(self, ty: Type, parameters: &mut Parameters) -> Result<Expr> {
        match self {
            Operand::Typed(expr, from) if from == ty => Ok(expr),
            Operand::Typed(expr, from) => {
                parameters.converts(from, ty);
                Ok(cast(expr, ty))
            }
            Operand::Null => Ok(Expr::Constant(Value::Null, ty)),
            Operand::Literal(text, span) => {
                parameters.reads(&text, ty);
                let value = parse_text(ty, &text).map_err(|failure| SqlError::from(failure).at(span))?;
                Ok(Expr::Constant(value, ty))
            }
            Operand::Parameter(number, _) => {
                parameters.decide(number, PgType::Plain(ty));
                Ok(Expr::Parameter(number, ty))
            }
            Operand::Interval(_) => Err(SqlError::unsupported("type interval in this place")
                .hint("An interval can be added to a timestamp, compared, calculated with, and shown.")),
        }
    }

    /// Makes an operand without a type a text, as in a select list.
    pub fn resolve_unknown(self, parameters: &mut Parameters) -> Result<(Expr, Type)> {
        match self {
            Operand::Typed(expr, ty) => Ok((expr, ty)),
            other => Ok((other.coerce_implicit(Type::Text, parameters)?, Type::Text)),
        }
    }

    /// Converts the operand to `ty` because the statement asks for it.
    pub fn cast_explicit(self, ty: Type, span: Span, parameters: &mut Parameters) -> Result<Expr> {
        if let Operand::Typed(expr, from) = self {
            return if from == ty {
                Ok(expr)
            } else if castable(from, ty) {
                parameters.converts(from, ty);
                Ok(cast(expr, ty))
            } else {
                Err(SqlError::new(
                    code::CANNOT_COERCE,
                    format!("cannot cast type {} to {}", from.name(), ty.name()),
                )
                .at(span))
            };
        }
        match self {
            Operand::Interval(parts) if ty == Type::Text => {
                parameters.depends.interval_style = true;
                Ok(parts.text())
            }
            Operand::Interval(_) => {
                Err(SqlError::new(code::CANNOT_COERCE, format!("cannot cast type interval to {}", ty.name()))
                    .at(span))
            }
            other => other.coerce_implicit(ty, parameters),
        }
    }

    /// Converts the operand to the type of a column that it is assigned to.
    pub fn coerce_assignment(
        self,
        column: &str,
        ty: Type,
        span: Span,
        parameters: &mut Parameters,
    ) -> Result<Expr> {
        let fits = match &self {
            Operand::Typed(_, from) => assignable(*from, ty),
            Operand::Interval(_) => ty == Type::Text,
            Operand::Literal(..) | Operand::Null | Operand::Parameter(..) => true,
        };
        if !fits {
            return Err(SqlError::new(
                code::DATATYPE_MISMATCH,
                format!(
                    "column \"{column}\" is of type {} but expression is of type {}",
                    ty.name(),
                    self.type_name()
                ),
            )
            .hint("You will need to rewrite or cast the expression.")
            .at(span));
        }
        match self {
            Operand::Interval(parts) => {
                parameters.depends.interval_style = true;
                Ok(parts.text())
            }
            other => other.coerce_implicit(ty, parameters),
        }
    }

    /// Converts the operand to the value that a column stores, with the column's modifier.
    pub fn coerce_stored(self, column: &Column, span: Span, parameters: &mut Parameters) -> Result<Expr> {
        let expr = self.coerce_assignment(&column.name, column.ty, span, parameters)?;
        Ok(match column.modifier {
            None | Some(Modifier::Varchar(None)) => expr,
            Some(modifier) => super::fold::constant(Expr::Call(Function::Fit(modifier), vec![expr])),
        })
    }

    /// Converts the operand to boolean, for a clause that takes a condition.
    pub fn condition(self, clause: &str, span: Span, parameters: &mut Parameters) -> Result<Expr> {
        if let Operand::Interval(_) = self {
            let message = format!("argument of {clause} must be type boolean, not type interval");
            return Err(SqlError::new(code::DATATYPE_MISMATCH, message).at(span));
        }
        match self.ty() {
            None | Some(Type::Bool) => {
                self.coerce_implicit(Type::Bool, parameters).map_err(|error| error.at(span))
            }
            Some(ty) => Err(SqlError::new(
                code::DATATYPE_MISMATCH,
                format!("argument of {clause} must be type boolean, not type {}", ty.name()),
            )
            .at(span)),
        }
    }
}

/// Returns a cast. The cast of a constant is computed at once.
pub fn cast(expr: Expr, ty: Type) -> Expr {
    super::fold::constant(Expr::Cast(Box::new(expr), ty))
}

/// Returns the family of the types that widen into each other and that include `ty`, and the rank of `ty` in
/// the family.
fn width(ty: Type) -> (u8, u8) {
    match ty {
        Type::Int2 => (0, 0),
        Type::Int4 => (0, 1),
        Type::Int8 => (0, 2),
        Type::Numeric => (0, 3),
        Type::Float4 => (0, 4),
        Type::Float8 => (0, 5),
        Type::Date => (1, 0),
        Type::Timestamp => (1, 1),
        Type::Timestamptz => (1, 2),
        Type::Bool => (2, 0),
        Type::Bpchar => (3, 0),
        Type::Text => (3, 1),
        Type::Uuid => (4, 0),
        Type::Bytea => (5, 0),
        Type::Json => (6, 0),
        Type::Jsonb => (7, 0),
        Type::Time => (8, 0),
    }
}

/// Returns the wider of two types of one family. `None` for types of different families.
pub fn wider(a: Type, b: Type) -> Option<Type> {
    let ((family_a, place_a), (family_b, place_b)) = (width(a), width(b));
    (family_a == family_b).then_some(if place_a >= place_b { a } else { b })
}

/// Returns the type in which an operator takes operands of two types. `None` for types of different families.
/// PostgreSQL has operators of `real` and `real`, and those of `real` and another number take
/// `double precision`.
pub fn operator_type(a: Type, b: Type) -> Option<Type> {
    match wider(a, b) {
        Some(Type::Float4) if a != b => Some(Type::Float8),
        wider => wider,
    }
}

/// Returns the common type of the operands of CASE, COALESCE, IN and VALUES. `None` if no operand has a type.
pub fn common(operands: &[Operand], what: &str, span: Span) -> Result<Option<Type>> {
    let mut met: Option<Type> = None;
    for ty in operands.iter().filter_map(Operand::ty) {
        met = Some(match met {
            None => ty,
            Some(so_far) => wider(so_far, ty).ok_or_else(|| {
                if is_user_category(so_far) && is_user_category(ty) {
                    let (from, to) = (ty.name(), so_far.name());
                    let message = format!("{what} could not convert type {from} to {to}");
                    return SqlError::new(code::CANNOT_COERCE, message).at(span);
                }
                SqlError::new(
                    code::DATATYPE_MISMATCH,
                    format!("{what} types {} and {} cannot be matched", so_far.name(), ty.name()),
                )
                .at(span)
            })?,
        });
    }
    Ok(met)
}

/// Whether the type is in PostgreSQL's category of user-defined types.
fn is_user_category(ty: Type) -> bool {
    matches!(ty, Type::Uuid | Type::Bytea | Type::Json | Type::Jsonb)
}

/// Refuses a type whose values have no equality, for DISTINCT and GROUP BY.
pub fn check_equality(ty: Type, span: Span) -> Result<()> {
    match ty {
        Type::Json => Err(no_operation("an equality operator", ty, span)),
        _ => Ok(()),
    }
}

/// Refuses a type whose values have no order, for ORDER BY.
pub fn check_order(ty: Type, span: Span) -> Result<()> {
    match ty {
        Type::Json => Err(no_operation("an ordering operator", ty, span)
            .hint("Use an explicit ordering operator or modify the query.")),
        _ => Ok(()),
    }
}

fn no_operation(what: &str, ty: Type, span: Span) -> SqlError {
    SqlError::new(code::UNDEFINED_FUNCTION, format!("could not identify {what} for type {}", ty.name()))
        .at(span)
}

/// Refuses a key of a type whose values have no order.
pub fn check_key(ty: Type) -> Result<()> {
    match ty {
        Type::Json => {
            let message =
                format!("data type {} has no default operator class for access method \"btree\"", ty.name());
            Err(SqlError::new(code::UNDEFINED_OBJECT, message).hint(
                "You must specify an operator class for the index or define a default operator class for the data type.",
            ))
        }
        _ => Ok(()),
    }
}

fn castable(from: Type, to: Type) -> bool {
    use Type::*;
    match (from, to) {
        (Text | Bpchar, _) | (_, Text | Bpchar) => true,
        (Bool, Int4) | (Int4, Bool) | (Json, Jsonb) | (Jsonb, Json) => true,
        (Timestamp | Timestamptz, Time) => true,
        (Jsonb, to) => to == Bool || to.is_number(),
        _ => width(from).0 == width(to).0,
    }
}

fn assignable(from: Type, to: Type) -> bool {
    let timed = matches!(from, Type::Timestamp | Type::Timestamptz) && to == Type::Time;
    timed
        || matches!(to, Type::Text | Type::Bpchar)
        || width(from).0 == width(to).0
        || (from.is_json() && to.is_json())
}
