//! Binds `x = ANY (array)` and comparisons of the same form.
//!
//! `= ANY` is IN and `<> ALL` is NOT IN over the elements. Any other comparison becomes a list of
//! comparisons. ANY asks whether TRUE is in the list, and ALL whether FALSE is absent from the list, which
//! follows PostgreSQL's rule for NULLs, too. The elements of an array parameter are unknown until execution,
//! so until then one item stands for all elements
//! ([`parameters::element_parameter`](crate::statement::parameters::element_parameter)).

use quorate_table::{
    expr::{Expr, Unary},
    value::{Type, Value},
};
use sqlparser::{
    ast::{self, ArrayElemTypeDef, BinaryOperator, DataType},
    tokenizer::Span,
};

use super::{
    binder::Binder,
    operand::{boolean, negated},
};
use crate::{
    array,
    error::{Result, SqlError},
    statement::{coerce::Operand, parameters::element_parameter},
    types::{self, PgType},
};

/// The number of elements for which the comparison must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantifier {
    /// At least one element.
    Any,
    /// All elements.
    All,
}

impl Binder<'_> {
    pub(super) fn quantified(
        &mut self,
        left: &ast::Expr,
        op: &BinaryOperator,
        right: &ast::Expr,
        quantifier: Quantifier,
        span: Span,
    ) -> Result<Operand> {
        let left = self.operand(left)?;
        let elements = self.elements(right, left.ty())?;
        let list = match (op, quantifier) {
            (BinaryOperator::Eq, Quantifier::Any) | (BinaryOperator::NotEq, Quantifier::All) => {
                let mut operands = vec![left];
                operands.extend(elements);
                let list = self.list(operands, span)?;
                return Ok(if quantifier == Quantifier::All { negated(list) } else { list });
            }
            _ => {
                let mut list = Vec::with_capacity(elements.len());
                for element in elements {
                    let copy = left.copy(span, self.parameters)?;
                    let compared = self.applied(op, copy, element, span)?;
                    list.push(compared.coerce_implicit(Type::Bool, self.parameters)?);
                }
                list
            }
        };
        let wanted = Value::Bool(quantifier == Quantifier::Any);
        let among = Expr::In(Box::new(Expr::Constant(wanted, Type::Bool)), list.into());
        Ok(boolean(match quantifier {
            Quantifier::Any => among,
            Quantifier::All => Expr::Unary(Unary::Not, Box::new(among)),
        }))
    }

    /// Returns the elements of an array. For a parameter, returns one item that stands for all elements.
    pub(super) fn elements(&mut self, expr: &ast::Expr, compared: Option<Type>) -> Result<Vec<Operand>> {
        let span = ast::Spanned::span(expr);
        let no_array = || SqlError::new("42809", "op ANY/ALL (array) requires array on right side").at(span);
        match expr {
            ast::Expr::Nested(inner) => self.elements(inner, compared),
            ast::Expr::Array(array) => array.elem.iter().map(|element| self.operand(element)).collect(),
            ast::Expr::Cast {
                expr,
                data_type: DataType::Array(ArrayElemTypeDef::SquareBracket(element, _)),
                ..
            } => {
                let ty = types::named(element).map_err(|error| error.at(span))?;
                if let Some(number) = self.placeholder(expr)? {
                    let array = ty.array().ok_or_else(no_array)?;
                    self.parameters.decide(number, array);
                    return self.each(number).ok_or_else(no_array);
                }
                let elements = self.elements(expr, Some(ty.plain()))?;
                let explicit = |element: Operand| {
                    Ok(Operand::Typed(element.cast_explicit(ty.plain(), span, self.parameters)?, ty.plain()))
                };
                elements.into_iter().map(explicit).collect()
            }
            ast::Expr::Value(value) => match &value.value {
                ast::Value::Null => Ok(vec![Operand::Null]),
                ast::Value::Placeholder(_) => {
                    let number = self.placeholder(expr)?.expect("it is one");
                    if self.parameters.ty(number).is_none() {
                        let element = PgType::Plain(compared.unwrap_or(Type::Text));
                        self.parameters.decide(number, element.array().ok_or_else(no_array)?);
                    }
                    self.each(number).ok_or_else(no_array)
                }
                other => {
                    let text = other.clone().into_string().ok_or_else(no_array)?;
                    let elements = array::read(&text).map_err(|error| error.at(value.span))?;
                    let element = |text: Option<String>| match text {
                        None => Operand::Null,
                        Some(text) => Operand::Literal(text, value.span),
                    };
                    Ok(elements.into_iter().map(element).collect())
                }
            },
            _ => {
                self.parameters.needs_catalog = true;
                Err(SqlError::unsupported("ANY or ALL of something that is neither an array nor a parameter")
                    .at(span))
            }
        }
    }

    /// Returns the number of the parameter that an expression is. `None` if the expression is no parameter.
    fn placeholder(&mut self, expr: &ast::Expr) -> Result<Option<usize>> {
        match expr {
            ast::Expr::Nested(inner) => self.placeholder(inner),
            ast::Expr::Value(ast::ValueWithSpan { value: ast::Value::Placeholder(name), span }) => {
                Ok(Some(self.parameters.number(name, *span)?))
            }
            _ => Ok(None),
        }
    }

    /// Returns the item that stands for all elements of an array parameter. `None` if the parameter is no
    /// array.
    fn each(&self, number: usize) -> Option<Vec<Operand>> {
        let element = self.parameters.ty(number)?.element()?.plain();
        Some(vec![Operand::Typed(Expr::Parameter(element_parameter(number), element), element)])
    }
}
