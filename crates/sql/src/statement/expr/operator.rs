//! Binds operators, comparisons and patterns.

use quorate_table::{
    expr::{Binary, Expr, Unary},
    value::Type,
};
use sqlparser::{
    ast::{self, BinaryOperator, Spanned, UnaryOperator},
    tokenizer::Span,
};

use super::{
    binder::Binder,
    operand::{boolean, negated, number, unequal_rows},
};
use crate::{
    error::{Result, SqlError, code},
    statement::{
        coerce::{self, Operand},
        fold,
    },
};

impl Binder<'_> {
    pub(super) fn unary(&mut self, op: UnaryOperator, inner: &ast::Expr, span: Span) -> Result<Operand> {
        if op == UnaryOperator::Not {
            return Ok(negated(boolean(self.condition(inner, "NOT")?)));
        }
        // The sign of a constant is part of the constant: -2147483648 is an integer, 2147483648 is not.
        if let (UnaryOperator::Minus, ast::Expr::Value(value)) = (op, inner)
            && let ast::Value::Number(digits, _) = &value.value
        {
            let (value, ty) = number(&format!("-{digits}")).map_err(|error| error.at(span))?;
            return Ok(Operand::Typed(Expr::Constant(value, ty), ty));
        }
        let (expr, ty) = match self.operand(inner)? {
            Operand::Interval(parts) if op == UnaryOperator::Minus => return Ok(parts.negated().operand()),
            Operand::Typed(expr, ty) if ty.is_number() => (expr, ty),
            Operand::Typed(_, ty) => {
                return Err(no_operator(&format!("{op} {}", ty.name()), span));
            }
            _ => return Err(ambiguous(&format!("{op} unknown"), span)),
        };
        match op {
            UnaryOperator::Plus => Ok(Operand::Typed(expr, ty)),
            UnaryOperator::Minus => {
                Ok(Operand::Typed(fold::constant(Expr::Unary(Unary::Negate, Box::new(expr))), ty))
            }
            other => Err(SqlError::unsupported(format!("operator {other}")).at(span)),
        }
    }

    pub(super) fn binary(
        &mut self,
        left: &ast::Expr,
        op: &BinaryOperator,
        right: &ast::Expr,
        span: Span,
    ) -> Result<Operand> {
        match op {
            BinaryOperator::And => return self.logical(Binary::And, left, right, "AND"),
            BinaryOperator::Or => return self.logical(Binary::Or, left, right, "OR"),
            _ => {}
        }
        if let (ast::Expr::Tuple(a), ast::Expr::Tuple(b)) = (left, right) {
            return self.rows_compared(op, a, b, span);
        }
        if let BinaryOperator::HashArrow
        | BinaryOperator::HashLongArrow
        | BinaryOperator::QuestionAnd
        | BinaryOperator::QuestionPipe = op
        {
            return self.json_path(left, op, right, span);
        }
        let (left, right) = (self.operand(left)?, self.operand(right)?);
        self.applied(op, left, right, span)
    }

    /// Binds an operator on two operands.
    pub fn applied(
        &mut self,
        op: &BinaryOperator,
        left: Operand,
        right: Operand,
        span: Span,
    ) -> Result<Operand> {
        let symbol = op.to_string();
        let standard = match &mut self.extension {
            None => None,
            Some(extension) => {
                let symbol = match op {
                    BinaryOperator::PGCustomBinaryOperator(parts) => parts.last().map_or("", String::as_str),
                    _ => &symbol,
                };
                if let Some(bound) = extension.operator(symbol, [&left, &right], self.parameters)? {
                    return Ok(bound);
                }
                STANDARD.iter().find(|standard| standard.to_string() == symbol)
            }
        };
        let op = match standard.unwrap_or(op) {
            BinaryOperator::Eq => Binary::Equal,
            BinaryOperator::NotEq => Binary::NotEqual,
            BinaryOperator::Lt => Binary::Less,
            BinaryOperator::LtEq => Binary::LessEqual,
            BinaryOperator::Gt => Binary::Greater,
            BinaryOperator::GtEq => Binary::GreaterEqual,
            BinaryOperator::Plus => Binary::Add,
            BinaryOperator::Minus => Binary::Subtract,
            BinaryOperator::Multiply => Binary::Multiply,
            BinaryOperator::Divide => Binary::Divide,
            BinaryOperator::Modulo => Binary::Modulo,
            BinaryOperator::StringConcat => Binary::Concat,
            BinaryOperator::PGLikeMatch => return self.matched(left, right, Some('\\'), false, span),
            BinaryOperator::PGNotLikeMatch => {
                return self.matched(left, right, Some('\\'), false, span).map(negated);
            }
            BinaryOperator::PGILikeMatch => return self.matched(left, right, Some('\\'), true, span),
            BinaryOperator::PGNotILikeMatch => {
                return self.matched(left, right, Some('\\'), true, span).map(negated);
            }
            op @ (BinaryOperator::Arrow
            | BinaryOperator::LongArrow
            | BinaryOperator::AtArrow
            | BinaryOperator::ArrowAt
            | BinaryOperator::Question) => return self.on_json(op, left, right, span),
            _ => {
                self.parameters.needs_catalog = true;
                return Err(SqlError::unsupported(format!("operator {symbol}")).at(span));
            }
        };
        if matches!(left, Operand::Interval(_)) || matches!(right, Operand::Interval(_)) {
            return self.on_interval(op, &symbol, left, right, span);
        }
        match op {
            Binary::Concat => self.concat(left, right, span),
            Binary::Add | Binary::Subtract | Binary::Multiply | Binary::Divide | Binary::Modulo => {
                self.arithmetic(op, &symbol, left, right, span)
            }
            _ => self.comparison(op, &symbol, left, right, span),
        }
    }

    /// Binds a comparison of rows by `=` or `<>`, such as `(a, b) = (c, d)`.
    fn rows_compared(
        &mut self,
        op: &BinaryOperator,
        left: &[ast::Expr],
        right: &[ast::Expr],
        span: Span,
    ) -> Result<Operand> {
        if left.len() != right.len() {
            return Err(unequal_rows(span));
        }
        if !matches!(op, BinaryOperator::Eq | BinaryOperator::NotEq) {
            return Err(SqlError::unsupported("an order comparison of row values").at(span));
        }
        let mut terms = Vec::with_capacity(left.len());
        for (a, b) in left.iter().zip(right) {
            terms.push(self.binary(a, op, b, span)?.coerce_implicit(Type::Bool, self.parameters)?);
        }
        Ok(boolean(if *op == BinaryOperator::Eq { Expr::all(terms) } else { Expr::any(terms) }))
    }

    /// Binds a chain of ANDs or ORs as a balanced tree, because the chain may be long.
    fn logical(&mut self, op: Binary, left: &ast::Expr, right: &ast::Expr, word: &str) -> Result<Operand> {
        let same = if op == Binary::And { BinaryOperator::And } else { BinaryOperator::Or };
        let mut rest = vec![right, left];
        let mut parts = Vec::new();
        while let Some(part) = rest.pop() {
            match part {
                ast::Expr::BinaryOp { left, op, right } if *op == same => rest.extend([&**right, &**left]),
                part => parts.push(part),
            }
        }
        let terms = parts.into_iter().map(|part| self.condition(part, word)).collect::<Result<Vec<_>>>()?;
        Ok(boolean(if op == Binary::And { Expr::all(terms) } else { Expr::any(terms) }))
    }

    fn comparison(
        &mut self,
        op: Binary,
        symbol: &str,
        left: Operand,
        right: Operand,
        span: Span,
    ) -> Result<Operand> {
        let mut operands = [left, right];
        self.meet(&mut operands)?;
        let [left, right] = operands;
        let ty = match (left.ty(), right.ty()) {
            (Some(a), Some(b)) => coerce::operator_type(a, b)
                .ok_or_else(|| no_operator(&format!("{} {symbol} {}", a.name(), b.name()), span))?,
            (Some(ty), None) | (None, Some(ty)) => ty,
            (None, None) => Type::Text,
        };
        if ty == Type::Json {
            return Err(no_operator(&format!("{} {symbol} {}", left.type_name(), right.type_name()), span));
        }
        let (left, right) = self.both(left, right, ty)?;
        Ok(boolean(Expr::binary(op, left, right)))
    }

    fn arithmetic(
        &mut self,
        op: Binary,
        symbol: &str,
        left: Operand,
        right: Operand,
        span: Span,
    ) -> Result<Operand> {
        if left.ty() == Some(Type::Jsonb) && op == Binary::Subtract {
            return Err(SqlError::unsupported("operator - of jsonb").at(span));
        }
        if [left.ty(), right.ty()].contains(&Some(Type::Time)) {
            return Err(SqlError::unsupported(format!("operator {symbol} of time")).at(span));
        }
        let absent = |left: &Operand, right: &Operand| {
            no_operator(&format!("{} {symbol} {}", left.type_name(), right.type_name()), span)
        };
        let (operands, result) = match (left.ty(), right.ty()) {
            (None, None) => {
                return Err(ambiguous(&format!("unknown {symbol} unknown"), span));
            }
            (Some(Type::Date), None) if op == Binary::Subtract => ((Type::Date, Type::Date), Type::Int4),
            (None, Some(Type::Date)) if op == Binary::Subtract => ((Type::Date, Type::Date), Type::Int4),
            (Some(ty), None) | (None, Some(ty)) if ty.is_number() => ((ty, ty), ty),
            (Some(Type::Date), None) | (None, Some(Type::Date)) if op == Binary::Add => {
                let shown = format!("{} {symbol} {}", left.type_name(), right.type_name());
                return Err(ambiguous(&shown, span));
            }
            (Some(a), Some(b)) if a.is_number() && b.is_number() => {
                let ty = coerce::operator_type(a, b).expect("two types of numbers have a common wider type");
                ((ty, ty), ty)
            }
            (Some(Type::Date), Some(Type::Date)) if op == Binary::Subtract => {
                ((Type::Date, Type::Date), Type::Int4)
            }
            (Some(Type::Date), Some(Type::Int2 | Type::Int4))
                if matches!(op, Binary::Add | Binary::Subtract) =>
            {
                ((Type::Date, Type::Int4), Type::Date)
            }
            (Some(Type::Int2 | Type::Int4), Some(Type::Date)) if op == Binary::Add => {
                ((Type::Int4, Type::Date), Type::Date)
            }
            (Some(a), Some(b))
                if op == Binary::Subtract
                    && coerce::wider(a, b)
                        .is_some_and(|w| matches!(w, Type::Timestamp | Type::Timestamptz)) =>
            {
                let ty = coerce::wider(a, b).expect("the pattern found a common wider type");
                let (left, right) = self.both(left, right, ty)?;
                return Ok(Self::elapsed(left, right));
            }
            // A string next to a timestamp is read as an interval in an addition, and as a timestamp in a
            // subtraction.
            (Some(Type::Timestamp | Type::Timestamptz), None) if op == Binary::Add => {
                return self.moved(left, right, false, span);
            }
            (None, Some(Type::Timestamp | Type::Timestamptz)) if op == Binary::Add => {
                return self.moved(right, left, false, span);
            }
            (Some(ty @ (Type::Timestamp | Type::Timestamptz)), None)
            | (None, Some(ty @ (Type::Timestamp | Type::Timestamptz)))
                if op == Binary::Subtract =>
            {
                let (left, right) = self.both(left, right, ty)?;
                return Ok(Self::elapsed(left, right));
            }
            _ => return Err(absent(&left, &right)),
        };
        if op == Binary::Modulo && matches!(result, Type::Float4 | Type::Float8) {
            return Err(absent(&left, &right));
        }
        let left = left.coerce_implicit(operands.0, self.parameters)?;
        let right = right.coerce_implicit(operands.1, self.parameters)?;
        Ok(Operand::Typed(fold::constant(Expr::Binary(op, Box::new(left), Box::new(right))), result))
    }

    fn concat(&mut self, left: Operand, right: Operand, span: Span) -> Result<Operand> {
        for ty in [Type::Bytea, Type::Jsonb] {
            let types = [left.ty(), right.ty()];
            if types.contains(&Some(ty)) && types.iter().all(|known| known.is_none_or(|known| known == ty)) {
                let (left, right) = self.both(left, right, ty)?;
                return Ok(Operand::Typed(fold::constant(Expr::binary(Binary::Concat, left, right)), ty));
            }
        }
        let is_text = |operand: &Operand| matches!(operand.ty(), None | Some(Type::Text | Type::Bpchar));
        if !is_text(&left) && !is_text(&right) {
            return Err(no_operator(&format!("{} || {}", left.type_name(), right.type_name()), span));
        }
        let (left, right) = self.both(left, right, Type::Text)?;
        Ok(Operand::Typed(fold::constant(Expr::binary(Binary::Concat, left, right)), Type::Text))
    }

    pub(super) fn is_null(&mut self, inner: &ast::Expr) -> Result<Operand> {
        let expr = match self.operand(inner)? {
            // IS NULL does not decide a parameter's type.
            Operand::Parameter(number, _) => Expr::Parameter(number, Type::Text),
            Operand::Interval(parts) => parts.text(),
            operand => operand.resolve_unknown(self.parameters)?.0,
        };
        Ok(boolean(Expr::IsNull(Box::new(expr))))
    }

    /// Binds `x IS UNKNOWN`: whether the boolean `x` is NULL.
    pub(super) fn is_unknown(&mut self, inner: &ast::Expr, clause: &str) -> Result<Operand> {
        Ok(boolean(Expr::IsNull(Box::new(self.condition(inner, clause)?))))
    }

    /// Binds `x IS TRUE`, or `x IS FALSE` without `truth`: whether the boolean has this value. The result is
    /// never NULL.
    pub(super) fn is_bool(&mut self, inner: &ast::Expr, truth: bool, clause: &str) -> Result<Operand> {
        let condition = self.condition(inner, clause)?;
        let copy = self.parameters.copy(&condition, inner.span())?;
        let known = Expr::Unary(Unary::Not, Box::new(Expr::IsNull(Box::new(copy))));
        let wanted = if truth { condition } else { Expr::Unary(Unary::Not, Box::new(condition)) };
        Ok(boolean(Expr::Binary(Binary::And, Box::new(known), Box::new(wanted))))
    }

    /// Binds `a IS NOT DISTINCT FROM b`: whether both are equal, or both NULL. The result is never NULL.
    pub(super) fn same(&mut self, a: &ast::Expr, b: &ast::Expr, span: Span) -> Result<Operand> {
        let mut operands = [self.operand(a)?, self.operand(b)?];
        self.meet(&mut operands)?;
        let ty = self.comparable_by_operator(&operands, span)?;
        let [a, b] = operands;
        let (a, b) = self.both(a, b, ty)?;
        let mut nulls = |op| -> Result<Expr> {
            let mut null =
                |expr| Ok::<_, SqlError>(Expr::IsNull(Box::new(self.parameters.copy(expr, span)?)));
            Ok(Expr::binary(op, null(&a)?, null(&b)?))
        };
        let both_null = nulls(Binary::And)?;
        let neither = Expr::Unary(Unary::Not, Box::new(nulls(Binary::Or)?));
        let equal = Expr::binary(Binary::And, neither, Expr::binary(Binary::Equal, a, b));
        Ok(boolean(Expr::binary(Binary::Or, both_null, equal)))
    }

    /// Binds an IN list: whether the first operand equals any of the later operands.
    pub(super) fn list(&mut self, mut operands: Vec<Operand>, span: Span) -> Result<Operand> {
        self.meet(&mut operands)?;
        let ty = self.comparable(&operands, span)?;
        let mut bound = self.coerced(operands, ty)?;
        let subject = bound.remove(0);
        Ok(boolean(Expr::In(Box::new(subject), bound.into())))
    }

    /// Converts operands to one type.
    pub(super) fn coerced(&mut self, operands: Vec<Operand>, ty: Type) -> Result<Vec<Expr>> {
        operands.into_iter().map(|operand| operand.coerce_implicit(ty, self.parameters)).collect()
    }

    /// Converts two operands to one type.
    pub(super) fn both(&mut self, left: Operand, right: Operand, ty: Type) -> Result<(Expr, Expr)> {
        let left = left.coerce_implicit(ty, self.parameters)?;
        Ok((left, right.coerce_implicit(ty, self.parameters)?))
    }

    /// Returns the type in which `=` compares two operands.
    pub(super) fn comparable_by_operator(&self, operands: &[Operand], span: Span) -> Result<Type> {
        let ty = self.comparable(operands, span)?;
        let is_mixed = operands.iter().filter_map(Operand::ty).any(|own| own != ty);
        Ok(if ty == Type::Float4 && is_mixed { Type::Float8 } else { ty })
    }

    pub(super) fn comparable(&self, operands: &[Operand], span: Span) -> Result<Type> {
        let mut met = operands[0].ty();
        for ty in operands[1..].iter().filter_map(Operand::ty) {
            met = Some(match met {
                None => ty,
                Some(so_far) => coerce::wider(so_far, ty)
                    .ok_or_else(|| no_operator(&format!("{} = {}", so_far.name(), ty.name()), span))?,
            });
        }
        if met == Some(Type::Json) {
            let other = operands[1..].iter().find_map(Operand::ty).map_or("unknown", Type::name);
            return Err(no_operator(&format!("{} = {other}", operands[0].type_name()), span));
        }
        Ok(met.unwrap_or(Type::Text))
    }

    pub(super) fn like(
        &mut self,
        text: &ast::Expr,
        pattern: &ast::Expr,
        escape: Option<&ast::ValueWithSpan>,
        case_insensitive: bool,
        span: Span,
    ) -> Result<Operand> {
        let (text, pattern) = (self.operand(text)?, self.operand(pattern)?);
        let escape = match escape {
            None => Some('\\'),
            Some(value) => {
                let Some(text) = value.value.clone().into_string() else {
                    return Err(SqlError::unsupported("an ESCAPE that is not a constant").at(value.span));
                };
                let mut characters = text.chars();
                match (characters.next(), characters.next()) {
                    (escape, None) => escape,
                    _ => {
                        return Err(SqlError::new(code::INVALID_ESCAPE_SEQUENCE, "invalid escape string")
                            .hint("Escape string must be empty or one character.")
                            .at(value.span));
                    }
                }
            }
        };
        self.matched(text, pattern, escape, case_insensitive, span)
    }

    /// Binds LIKE or ILIKE of two operands.
    fn matched(
        &mut self,
        text: Operand,
        pattern: Operand,
        escape: Option<char>,
        case_insensitive: bool,
        span: Span,
    ) -> Result<Operand> {
        for operand in [&text, &pattern] {
            if operand.ty() == Some(Type::Bytea) {
                return Err(SqlError::unsupported("LIKE of bytea").at(span));
            }
            if !matches!(operand.ty(), None | Some(Type::Text | Type::Bpchar)) {
                let symbol = if case_insensitive { "~~*" } else { "~~" };
                return Err(no_operator(
                    &format!("{} {symbol} {}", text.type_name(), pattern.type_name()),
                    span,
                ));
            }
        }
        let ty = if text.ty() == Some(Type::Bpchar) { Type::Bpchar } else { Type::Text };
        let text = text.coerce_implicit(ty, self.parameters)?;
        let pattern = pattern.coerce_implicit(Type::Text, self.parameters)?;
        Ok(boolean(Expr::Like { text: Box::new(text), pattern: Box::new(pattern), escape, case_insensitive }))
    }
}

/// The operators that `OPERATOR(pg_catalog.…)` may name.
static STANDARD: [BinaryOperator; 16] = [
    BinaryOperator::Eq,
    BinaryOperator::NotEq,
    BinaryOperator::Lt,
    BinaryOperator::LtEq,
    BinaryOperator::Gt,
    BinaryOperator::GtEq,
    BinaryOperator::Plus,
    BinaryOperator::Minus,
    BinaryOperator::Multiply,
    BinaryOperator::Divide,
    BinaryOperator::Modulo,
    BinaryOperator::StringConcat,
    BinaryOperator::PGLikeMatch,
    BinaryOperator::PGNotLikeMatch,
    BinaryOperator::PGILikeMatch,
    BinaryOperator::PGNotILikeMatch,
];

pub(super) fn ambiguous(shown: &str, span: Span) -> SqlError {
    SqlError::new(code::AMBIGUOUS_FUNCTION, format!("operator is not unique: {shown}"))
        .hint("Could not choose a best candidate operator. You might need to add explicit type casts.")
        .at(span)
}

pub(super) fn no_operator(shown: &str, span: Span) -> SqlError {
    SqlError::new(code::UNDEFINED_FUNCTION, format!("operator does not exist: {shown}"))
        .hint("No operator matches the given name and argument types. You might need to add explicit type casts.")
        .at(span)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quorate_table::{
        schema::{Column, Partition, Schema, TableId},
        value::Type,
    };

    use super::code;
    use crate::{
        backend::{Catalog, Table},
        statement::{bind, parse::parse},
    };

    #[test]
    fn operators_that_are_not_supported_are_refused_by_name() {
        let column = |(name, ty): (&str, Type)| Column {
            name: name.to_owned(),
            ty,
            modifier: None,
            not_null: false,
            default: None,
        };
        let schema = Schema {
            name: "s".to_owned(),
            columns: [("n", Type::Int4), ("t", Type::Timestamp)].map(column).into(),
            primary_key: Vec::new(),
            partition: Partition::Hash { column: 0 },
            constraints: Vec::new(),
        };
        let table = Table { id: TableId(7), schema, replicas: 1, rows: None };
        let catalog = Arc::new(Catalog { version: 1, tables: vec![Arc::new(table)] });
        for (expression, name) in [
            ("n ^ 3", "operator ^"),
            ("n & 3", "operator &"),
            ("n | 3", "operator |"),
            ("n # 3", "operator #"),
            ("1 + (n & 3)", "operator &"),
            ("t at time zone 'UTC'", "AT TIME ZONE"),
        ] {
            for text in [
                format!("select {expression} from s"),
                format!("delete from s where n = 1 or {expression} is null"),
            ] {
                let statements = parse(&text).expect(&text);
                let refused = bind(&statements[0], Vec::new(), &catalog).expect_err(&text);
                assert_eq!(refused.code, code::FEATURE_NOT_SUPPORTED, "{text}: {refused}");
                assert_eq!(refused.message, format!("{name} is not supported"), "{text}");
            }
        }
    }
}
