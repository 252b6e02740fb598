//! PostgreSQL's conversions: which type two operands meet at, and what a value may become by itself.
//!
//! A literal string, NULL and a parameter nobody declared have no type yet; they take that of their surroundings.
//! Everything else converts by an explicit [`Expr::Cast`] that is put in here, so that the engine never guesses.

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

/// A bound expression, or something that has no type yet.
#[derive(Clone, Debug)]
pub enum Operand {
    /// Decided.
    Typed(Expr, Type),
    /// A string constant.
    Literal(String, Span),
    /// NULL.
    Null,
    /// A parameter.
    Parameter(usize, Span),
    /// An interval, which the engine has no type for.
    Interval(Box<Parts>),
}

/// The parts of an interval.
#[derive(Clone, Debug)]
pub struct Parts {
    /// An integer.
    pub months: Expr,
    /// An integer.
    pub days: Expr,
    /// A bigint.
    pub micros: Expr,
}

impl Parts {
    /// As it is printed.
    pub fn text(self) -> Expr {
        super::fold::constant(Expr::Call(Function::IntervalText, vec![self.months, self.days, self.micros]))
    }
}

impl Operand {
    /// The type, where one is decided.
    pub fn ty(&self) -> Option<Type> {
        match self {
            Operand::Typed(_, ty) => Some(*ty),
            _ => None,
        }
    }

    /// What messages call its type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Operand::Interval(_) => "interval",
            other => other.ty().map_or("unknown", Type::name),
        }
    }

    /// Makes it `ty`, by what PostgreSQL does unasked (an undecided operand becomes anything; a number or a date
    /// becomes a wider one).
    pub fn implicit(self, ty: Type, parameters: &mut Parameters) -> Result<Expr> {
        match self {
            Operand::Typed(expr, from) if from == ty => Ok(expr),
            Operand::Typed(expr, _) => Ok(cast(expr, ty)),
            Operand::Null => Ok(Expr::Constant(Value::Null, ty)),
            Operand::Literal(text, span) => {
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

    /// Makes an undecided operand text, as in a select list.
    pub fn decided(self, parameters: &mut Parameters) -> Result<(Expr, Type)> {
        match self {
            Operand::Typed(expr, ty) => Ok((expr, ty)),
            other => Ok((other.implicit(Type::Text, parameters)?, Type::Text)),
        }
    }

    /// Makes it `ty` because the statement says so.
    pub fn explicit(self, ty: Type, span: Span, parameters: &mut Parameters) -> Result<Expr> {
        if let Operand::Typed(expr, from) = self {
            return if from == ty {
                Ok(expr)
            } else if castable(from, ty) {
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
            Operand::Interval(parts) if ty == Type::Text => Ok(parts.text()),
            Operand::Interval(_) => {
                Err(SqlError::new(code::CANNOT_COERCE, format!("cannot cast type interval to {}", ty.name()))
                    .at(span))
            }
            other => other.implicit(ty, parameters),
        }
    }

    /// Makes it fit a column it is stored in.
    pub fn assigned(self, column: &str, ty: Type, span: Span, parameters: &mut Parameters) -> Result<Expr> {
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
            Operand::Interval(parts) => Ok(parts.text()),
            other => other.implicit(ty, parameters),
        }
    }

    /// Makes it what a column stores.
    pub fn stored(self, column: &Column, span: Span, parameters: &mut Parameters) -> Result<Expr> {
        let expr = self.assigned(&column.name, column.ty, span, parameters)?;
        Ok(match column.modifier {
            None | Some(Modifier::Varchar(None)) => expr,
            Some(modifier) => super::fold::constant(Expr::Call(Function::Fit(modifier), vec![expr])),
        })
    }

    /// Makes it boolean, for a clause that takes a condition.
    pub fn condition(self, clause: &str, span: Span, parameters: &mut Parameters) -> Result<Expr> {
        if let Operand::Interval(_) = self {
            let message = format!("argument of {clause} must be type boolean, not type interval");
            return Err(SqlError::new(code::DATATYPE_MISMATCH, message).at(span));
        }
        match self.ty() {
            None | Some(Type::Bool) => self.implicit(Type::Bool, parameters).map_err(|error| error.at(span)),
            Some(ty) => Err(SqlError::new(
                code::DATATYPE_MISMATCH,
                format!("argument of {clause} must be type boolean, not type {}", ty.name()),
            )
            .at(span)),
        }
    }
}

/// A cast, done now when its operand is a constant.
pub fn cast(expr: Expr, ty: Type) -> Expr {
    super::fold::constant(Expr::Cast(Box::new(expr), ty))
}

/// Where a type stands among those that widen into each other: its family and its place there.
fn width(ty: Type) -> (u8, u8) {
    match ty {
        Type::Int2 => (0, 0),
        Type::Int4 => (0, 1),
        Type::Int8 => (0, 2),
        Type::Numeric => (0, 3),
        Type::Float8 => (0, 4),
        Type::Date => (1, 0),
        Type::Timestamp => (1, 1),
        Type::Timestamptz => (1, 2),
        Type::Bool => (2, 0),
        Type::Text => (3, 0),
    }
}

/// The wider of two types of one family.
pub fn wider(a: Type, b: Type) -> Option<Type> {
    let ((family_a, place_a), (family_b, place_b)) = (width(a), width(b));
    (family_a == family_b).then_some(if place_a >= place_b { a } else { b })
}

/// The type that all operands become, for CASE, COALESCE, IN and VALUES; `None` when all are undecided.
pub fn common(operands: &[Operand], what: &str, span: Span) -> Result<Option<Type>> {
    let mut met: Option<Type> = None;
    for ty in operands.iter().filter_map(Operand::ty) {
        met = Some(match met {
            None => ty,
            Some(so_far) => wider(so_far, ty).ok_or_else(|| {
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

fn castable(from: Type, to: Type) -> bool {
    use Type::*;
    match (from, to) {
        (Text, _) | (_, Text) => true,
        (Bool, Int4) | (Int4, Bool) => true,
        _ => width(from).0 == width(to).0,
    }
}

fn assignable(from: Type, to: Type) -> bool {
    to == Type::Text || (width(from).0 == width(to).0)
}
