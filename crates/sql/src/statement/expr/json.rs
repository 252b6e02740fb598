//! Binds the operators of `json` and `jsonb`.

use quorate_table::{
    expr::{Expr, Function, Unary},
    value::{Type, Value},
};
use sqlparser::{
    ast::{self, BinaryOperator},
    tokenizer::Span,
};

use super::{
    binder::Binder,
    operand::boolean,
    operator::{ambiguous, no_operator},
};
use crate::{
    error::{Result, SqlError},
    statement::{coerce::Operand, fold, parameters::array_parameter},
};

impl Binder<'_> {
    /// Binds `->`, `->>`, `@>`, `<@` and `?`.
    pub(super) fn on_json(
        &mut self,
        op: &BinaryOperator,
        left: Operand,
        right: Operand,
        span: Span,
    ) -> Result<Operand> {
        let shown = format!("{} {op} {}", left.type_name(), right.type_name());
        let is = |operand: &Operand, ty: Type| operand.ty().is_none_or(|own| own == ty);
        if left.ty().is_none() && right.ty().is_none() {
            return Err(ambiguous(&shown, span));
        }
        let (function, left, right) = match op {
            BinaryOperator::Arrow | BinaryOperator::LongArrow => {
                let text = matches!(op, BinaryOperator::LongArrow);
                let function = if text { Function::JsonFieldText } else { Function::JsonField };
                let step = match right.ty() {
                    None | Some(Type::Text) => Type::Text,
                    Some(Type::Int2 | Type::Int4) => Type::Int4,
                    Some(_) => return Err(no_operator(&shown, span)),
                };
                let document = self.document(left, &shown, span)?;
                (function, document, right.coerce_implicit(step, self.parameters)?)
            }
            BinaryOperator::Question => {
                if left.ty() != Some(Type::Jsonb) || !is(&right, Type::Text) {
                    return Err(no_operator(&shown, span));
                }
                let left = left.coerce_implicit(Type::Jsonb, self.parameters)?;
                (Function::JsonExists, left, right.coerce_implicit(Type::Text, self.parameters)?)
            }
            _ => {
                if !is(&left, Type::Jsonb) || !is(&right, Type::Jsonb) {
                    return Err(no_operator(&shown, span));
                }
                let (left, right) = self.both(left, right, Type::Jsonb)?;
                match op {
                    BinaryOperator::AtArrow => (Function::JsonContains, left, right),
                    _ => (Function::JsonContains, right, left),
                }
            }
        };
        Ok(called(function, vec![left, right]))
    }

    /// Binds `#>`, `#>>`, `?|` and `?&`, whose right operand is an array of texts.
    pub(super) fn json_path(
        &mut self,
        left: &ast::Expr,
        op: &BinaryOperator,
        right: &ast::Expr,
        span: Span,
    ) -> Result<Operand> {
        let left = self.operand(left)?;
        let steps = self.elements(right, Some(Type::Text))?;
        if let Some(other) = steps.iter().find_map(Operand::ty).filter(|ty| *ty != Type::Text) {
            return Err(no_operator(&format!("{} {op} {}[]", left.type_name(), other.name()), span));
        }
        let steps = self.coerced(steps, Type::Text)?;
        let shown = format!("{} {op} unknown", left.type_name());
        if let BinaryOperator::HashArrow | BinaryOperator::HashLongArrow = op {
            let is_open = |step: &Expr| matches!(step, Expr::Parameter(number, _) if array_parameter(*number).is_some());
            if steps.iter().any(is_open) {
                return Err(SqlError::unsupported("a path that is a parameter").at(span));
            }
            let text = matches!(op, BinaryOperator::HashLongArrow);
            let function = if text { Function::JsonPathText } else { Function::JsonPath };
            let mut arguments = vec![self.document(left, &shown, span)?];
            arguments.extend(steps);
            return Ok(called(function, arguments));
        }
        if left.ty() != Some(Type::Jsonb) {
            return Err(no_operator(&shown, span));
        }
        let document = left.coerce_implicit(Type::Jsonb, self.parameters)?;
        // `?|` asks whether TRUE is among the results, and `?&` whether FALSE is absent. A NULL in the array
        // is skipped.
        let any = matches!(op, BinaryOperator::QuestionPipe);
        let truth = |truth: bool| Expr::Constant(Value::Bool(truth), Type::Bool);
        let mut tests = Vec::with_capacity(steps.len());
        for key in steps {
            let document = self.parameters.copy(&document, span)?;
            let exists = Expr::Call(Function::JsonExists, vec![document, key]);
            tests.push(Expr::Call(Function::Coalesce, vec![exists, truth(!any)]));
        }
        let among = Expr::In(Box::new(truth(any)), tests.into());
        let among = if any { among } else { Expr::Unary(Unary::Not, Box::new(among)) };
        let known = Expr::Unary(Unary::Not, Box::new(Expr::IsNull(Box::new(document))));
        Ok(boolean(Expr::Case { branches: vec![(known, among)], otherwise: None, ty: Type::Bool }))
    }

    fn document(&mut self, operand: Operand, shown: &str, span: Span) -> Result<Expr> {
        match operand.ty() {
            Some(ty) if ty.is_json() => operand.coerce_implicit(ty, self.parameters),
            Some(_) => Err(no_operator(shown, span)),
            None => Err(ambiguous(shown, span)),
        }
    }
}

fn called(function: Function, arguments: Vec<Expr>) -> Operand {
    let call = Expr::Call(function, arguments);
    let ty = call.ty();
    Operand::Typed(fold::constant(call), ty)
}
