//! `CASE`, with and without a subject.

use std::mem;

use quorate_table::{expr::Expr, value::Type};
use sqlparser::{
    ast::{self, BinaryOperator, Spanned},
    tokenizer::Span,
};

use super::{
    Binder,
    operand::{boolean, unequal_rows},
};
use crate::{
    error::Result,
    statement::coerce::{self, Operand},
};

/// The subject of a `CASE`: the value that each `WHEN` is compared with. The subject is bound once, and each
/// comparison takes a copy. If it were bound again for each `WHEN`, nested subjects would multiply the work
/// at each level.
enum Subject<'a> {
    Value(Operand),
    /// A row value, such as `(a, b)`: its expression, and its entries. A row value is no operand. Only its
    /// comparison with another row value is bound.
    Row(&'a ast::Expr, Vec<Subject<'a>>),
}

impl Binder<'_> {
    pub(super) fn case(
        &mut self,
        subject: Option<&ast::Expr>,
        conditions: &[ast::CaseWhen],
        otherwise: Option<&ast::Expr>,
        span: Span,
    ) -> Result<Operand> {
        let mut subject = subject.map(|subject| self.subject(subject)).transpose()?;
        let mut tests = Vec::with_capacity(conditions.len());
        let mut results = Vec::with_capacity(conditions.len() + 1);
        for when in conditions {
            tests.push(match &mut subject {
                None => self.condition(&when.condition, "CASE/WHEN")?,
                Some(subject) => self.is_equal(subject, &when.condition)?,
            });
            results.push(self.operand(&when.result)?);
        }
        results.push(match otherwise {
            Some(otherwise) => self.operand(otherwise)?,
            None => Operand::Null,
        });
        self.meet(&mut results)?;
        let ty = coerce::common(&results, "CASE", span)?.unwrap_or(Type::Text);
        let mut bound = self.coerced(results, ty)?;
        let otherwise = bound.pop().map(Box::new);
        let branches = tests.into_iter().zip(bound).collect();
        Ok(Operand::Typed(Expr::Case { branches, otherwise, ty }, ty))
    }

    fn subject<'a>(&mut self, expr: &'a ast::Expr) -> Result<Subject<'a>> {
        Ok(match expr {
            ast::Expr::Tuple(entries) => {
                Subject::Row(expr, entries.iter().map(|entry| self.subject(entry)).collect::<Result<_>>()?)
            }
            expr => Subject::Value(self.operand(expr)?),
        })
    }

    /// Binds the comparison of a subject with the value of a `WHEN`.
    fn is_equal(&mut self, subject: &mut Subject<'_>, value: &ast::Expr) -> Result<Expr> {
        let span = value.span();
        let test = match (subject, value) {
            (Subject::Value(kept), value) => {
                let value = self.operand(value)?;
                *kept = self.decided(mem::replace(kept, Operand::Null));
                let operand = kept.copy(span, self.parameters)?;
                self.applied(&BinaryOperator::Eq, operand, value, span)?
            }
            (Subject::Row(_, entries), ast::Expr::Tuple(values)) => {
                if entries.len() != values.len() {
                    return Err(unequal_rows(span));
                }
                let pairs = entries.iter_mut().zip(values);
                let terms = pairs.map(|(entry, value)| self.is_equal(entry, value));
                boolean(Expr::all(terms.collect::<Result<_>>()?))
            }
            (Subject::Row(expr, _), value) => self.binary(expr, &BinaryOperator::Eq, value, span)?,
        };
        test.coerce_implicit(Type::Bool, self.parameters)
    }
}
