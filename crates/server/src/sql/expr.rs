//! Expressions: from syntax to the engine's bound form, by PostgreSQL's rules.

use quorate_table::{
    expr::{Aggregate, AggregateFunction, Binary, Expr, Function, Unary},
    numeric::Numeric,
    value::{Type, Value},
};
use sqlparser::{
    ast::{
        self, BinaryOperator, CeilFloorKind, FunctionArg, FunctionArgExpr, FunctionArguments, Spanned,
        UnaryOperator,
    },
    tokenizer::Span,
};

use super::{
    coerce::{self, Operand},
    fold,
    parameters::{Parameters, SessionValue},
    scope::{self, Scope},
};
use crate::{
    error::{Result, SqlError, code},
    types::{self, PgType},
};

/// Results of aggregates are columns from this number on, until the select knows how many grouping keys come first.
pub const AGGREGATE: usize = 1 << 32;

/// Binds expressions over the columns of one scope.
pub struct Binder<'a> {
    /// The columns in reach.
    pub scope: &'a Scope<'a>,
    /// Types of parameters, decided along the way.
    pub parameters: &'a mut Parameters,
    /// Where aggregates are collected; `None` where none may stand, and then what that place is called.
    pub aggregates: Result<&'a mut Vec<Aggregate>, &'static str>,
}

impl Binder<'_> {
    /// Binds an expression; an undecided one stays so.
    pub fn operand(&mut self, expr: &ast::Expr) -> Result<Operand> {
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
                let ty = self.cast_type(&typed.data_type, span)?;
                let literal = Operand::Literal(text.clone(), typed.value.span);
                Ok(Operand::Typed(literal.implicit(ty, self.parameters)?, ty))
            }
            ast::Expr::Cast {
                kind: ast::CastKind::Cast | ast::CastKind::DoubleColon,
                expr,
                data_type,
                format: None,
                ..
            } => {
                let ty = self.cast_type(data_type, span)?;
                let operand = self.operand(expr)?;
                Ok(Operand::Typed(operand.explicit(ty, span, self.parameters)?, ty))
            }
            ast::Expr::UnaryOp { op, expr } => self.unary(*op, expr, span),
            ast::Expr::BinaryOp { left, op, right } => self.binary(left, op, right, span),
            ast::Expr::IsNull(inner) => self.is_null(inner),
            ast::Expr::IsNotNull(inner) => self.is_null(inner).map(negated),
            ast::Expr::IsTrue(inner) => self.is_bool(inner, true, "IS TRUE"),
            ast::Expr::IsNotTrue(inner) => self.is_bool(inner, true, "IS NOT TRUE").map(negated),
            ast::Expr::IsFalse(inner) => self.is_bool(inner, false, "IS FALSE"),
            ast::Expr::IsNotFalse(inner) => self.is_bool(inner, false, "IS NOT FALSE").map(negated),
            ast::Expr::IsUnknown(inner) => self.is_null(inner),
            ast::Expr::IsNotUnknown(inner) => self.is_null(inner).map(negated),
            ast::Expr::IsNotDistinctFrom(a, b) => self.same(a, b, span),
            ast::Expr::IsDistinctFrom(a, b) => self.same(a, b, span).map(negated),
            ast::Expr::Between { expr, negated: not, low, high } => {
                let at_least = self.binary(expr, &BinaryOperator::GtEq, low, span)?;
                let at_most = self.binary(expr, &BinaryOperator::LtEq, high, span)?;
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
                let ty = self.comparable(&operands, span)?;
                let mut bound = Vec::with_capacity(operands.len());
                for operand in operands {
                    bound.push(operand.implicit(ty, self.parameters)?);
                }
                let subject = bound.remove(0);
                Ok(when(*not, boolean(Expr::In(Box::new(subject), bound))))
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
            ast::Expr::Subquery(_) | ast::Expr::Exists { .. } | ast::Expr::InSubquery { .. } => {
                self.parameters.beyond = true;
                Err(SqlError::unsupported("a sub-select over tables").at(span))
            }
            ast::Expr::AnyOp { .. } | ast::Expr::AllOp { .. } => {
                self.parameters.beyond = true;
                Err(SqlError::unsupported("ANY or ALL of an array").hint("Use IN with a list.").at(span))
            }
            ast::Expr::Collate { collation, expr } => {
                let name = scope::parts(collation)?.pop().unwrap_or_default();
                if !matches!(name.as_str(), "C" | "POSIX" | "default") {
                    return Err(SqlError::unsupported(format!("collation \"{name}\"")).at(span));
                }
                self.operand(expr)
            }
            ast::Expr::AtTimeZone { .. } => Err(SqlError::unsupported("AT TIME ZONE").at(span)),
            ast::Expr::Interval(_) => Err(SqlError::unsupported("type interval").at(span)),
            ast::Expr::Tuple(_) => Err(SqlError::unsupported("a row value").at(span)),
            ast::Expr::Array(_) => {
                self.parameters.beyond = true;
                Err(SqlError::unsupported("an array").at(span))
            }
            ast::Expr::SimilarTo { .. } => Err(SqlError::unsupported("SIMILAR TO").at(span)),
            other => {
                self.parameters.beyond = true;
                Err(SqlError::unsupported(format!("the expression {other}")).at(span))
            }
        }
    }

    /// Binds an expression; an undecided one becomes text.
    pub fn decided(&mut self, expr: &ast::Expr) -> Result<(Expr, Type)> {
        self.operand(expr)?.decided(self.parameters)
    }

    /// Binds the condition of a clause.
    pub fn condition(&mut self, expr: &ast::Expr, clause: &str) -> Result<Expr> {
        self.operand(expr)?.condition(clause, expr.span(), self.parameters)
    }

    fn cast_type(&mut self, data_type: &ast::DataType, span: Span) -> Result<Type> {
        // The catalog has more types (`regclass`, `oid`, arrays).
        types::declared(data_type).map_err(|error| {
            self.parameters.beyond |= types::named(data_type).is_ok();
            error.at(span)
        })
    }

    fn column(&mut self, name: &[ast::Ident]) -> Result<Operand> {
        // Some functions are called without parentheses and arrive as names.
        if let [ident] = name
            && ident.quote_style.is_none()
            && let Some(value) = SessionValue::named(&ident.value.to_lowercase())
            && self.scope.column(name).is_err()
            && !ident.value.eq_ignore_ascii_case("now")
        {
            return Ok(session_value(value));
        }
        let (index, ty) = self.scope.column(name)?;
        Ok(Operand::Typed(Expr::Column(index, ty), ty))
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
                match self.parameters.ty(number) {
                    Some(ty) if ty != PgType::Unknown => {
                        Operand::Typed(Expr::Parameter(number, ty.plain()), ty.plain())
                    }
                    _ => Operand::Parameter(number, span),
                }
            }
            other => return Err(SqlError::unsupported(format!("the constant {other}")).at(span)),
        })
    }

    fn unary(&mut self, op: UnaryOperator, inner: &ast::Expr, span: Span) -> Result<Operand> {
        if op == UnaryOperator::Not {
            return Ok(negated(boolean(self.condition(inner, "NOT")?)));
        }
        // The sign of a constant is part of it: -2147483648 is an integer, 2147483648 is not.
        if let (UnaryOperator::Minus, ast::Expr::Value(value)) = (op, inner)
            && let ast::Value::Number(digits, _) = &value.value
        {
            let (value, ty) = number(&format!("-{digits}")).map_err(|error| error.at(span))?;
            return Ok(Operand::Typed(Expr::Constant(value, ty), ty));
        }
        let operand = self.operand(inner)?;
        let (expr, ty) = match operand {
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

    fn binary(
        &mut self,
        left: &ast::Expr,
        op: &BinaryOperator,
        right: &ast::Expr,
        span: Span,
    ) -> Result<Operand> {
        let symbol = op.to_string();
        let op = match op {
            BinaryOperator::And => return self.logical(Binary::And, left, right, "AND"),
            BinaryOperator::Or => return self.logical(Binary::Or, left, right, "OR"),
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
            BinaryOperator::PGLikeMatch => return self.like(left, right, None, false, span),
            BinaryOperator::PGNotLikeMatch => return self.like(left, right, None, false, span).map(negated),
            BinaryOperator::PGILikeMatch => return self.like(left, right, None, true, span),
            BinaryOperator::PGNotILikeMatch => return self.like(left, right, None, true, span).map(negated),
            _ => {
                self.parameters.beyond = true;
                return Err(SqlError::unsupported(format!("operator {symbol}")).at(span));
            }
        };
        if let (ast::Expr::Tuple(a), ast::Expr::Tuple(b)) = (left, right) {
            return self.rows_compared(op, a, b, span);
        }
        let (left, right) = (self.operand(left)?, self.operand(right)?);
        match op {
            Binary::Concat => self.concat(left, right, span),
            Binary::Add | Binary::Subtract | Binary::Multiply | Binary::Divide | Binary::Modulo => {
                self.arithmetic(op, &symbol, left, right, span)
            }
            _ => self.comparison(op, &symbol, left, right, span),
        }
    }

    /// `(a, b) = (c, d)`, and the opposite.
    fn rows_compared(
        &mut self,
        op: Binary,
        left: &[ast::Expr],
        right: &[ast::Expr],
        span: Span,
    ) -> Result<Operand> {
        if left.len() != right.len() {
            return Err(
                SqlError::new(code::SYNTAX_ERROR, "unequal number of entries in row expressions").at(span)
            );
        }
        let symbol = match op {
            Binary::Equal => BinaryOperator::Eq,
            Binary::NotEqual => BinaryOperator::NotEq,
            _ => return Err(SqlError::unsupported("an order of row values").at(span)),
        };
        let mut terms = Vec::with_capacity(left.len());
        for (a, b) in left.iter().zip(right) {
            terms.push(self.binary(a, &symbol, b, span)?.implicit(Type::Bool, self.parameters)?);
        }
        Ok(boolean(if op == Binary::Equal { Expr::all(terms) } else { Expr::any(terms) }))
    }

    /// A chain of ANDs or ORs leans to the left in the text and may be long; it is bound as a balanced tree.
    fn logical(&mut self, op: Binary, left: &ast::Expr, right: &ast::Expr, word: &str) -> Result<Operand> {
        let same = if op == Binary::And { BinaryOperator::And } else { BinaryOperator::Or };
        let mut parts = vec![right];
        let mut rest = left;
        while let ast::Expr::BinaryOp { left, op, right } = rest
            && *op == same
        {
            parts.push(right);
            rest = left;
        }
        parts.push(rest);
        let terms =
            parts.into_iter().rev().map(|part| self.condition(part, word)).collect::<Result<Vec<_>>>()?;
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
        let ty = match (left.ty(), right.ty()) {
            (Some(a), Some(b)) => coerce::wider(a, b)
                .ok_or_else(|| no_operator(&format!("{} {symbol} {}", a.name(), b.name()), span))?,
            (Some(ty), None) | (None, Some(ty)) => ty,
            (None, None) => Type::Text,
        };
        let left = left.implicit(ty, self.parameters)?;
        let right = right.implicit(ty, self.parameters)?;
        Ok(boolean(Expr::Binary(op, Box::new(left), Box::new(right))))
    }

    fn arithmetic(
        &mut self,
        op: Binary,
        symbol: &str,
        left: Operand,
        right: Operand,
        span: Span,
    ) -> Result<Operand> {
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
                let ty = coerce::wider(a, b).expect("numbers have a wider one");
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
                return Err(SqlError::unsupported(
                    "type interval, which the difference of two timestamps has,",
                )
                .at(span));
            }
            (Some(Type::Timestamp | Type::Timestamptz), None)
            | (None, Some(Type::Timestamp | Type::Timestamptz)) => {
                return Err(SqlError::unsupported("type interval").at(span));
            }
            _ => return Err(absent(&left, &right)),
        };
        if op == Binary::Modulo && result == Type::Float8 {
            return Err(absent(&left, &right));
        }
        let left = left.implicit(operands.0, self.parameters)?;
        let right = right.implicit(operands.1, self.parameters)?;
        Ok(Operand::Typed(fold::constant(Expr::Binary(op, Box::new(left), Box::new(right))), result))
    }

    fn concat(&mut self, left: Operand, right: Operand, span: Span) -> Result<Operand> {
        let is_text = |operand: &Operand| matches!(operand.ty(), None | Some(Type::Text));
        if !is_text(&left) && !is_text(&right) {
            return Err(no_operator(&format!("{} || {}", left.type_name(), right.type_name()), span));
        }
        let left = left.implicit(Type::Text, self.parameters)?;
        let right = right.implicit(Type::Text, self.parameters)?;
        let joined = Expr::Binary(Binary::Concat, Box::new(left), Box::new(right));
        Ok(Operand::Typed(fold::constant(joined), Type::Text))
    }

    fn is_null(&mut self, inner: &ast::Expr) -> Result<Operand> {
        let expr = match self.operand(inner)? {
            // Being NULL says nothing of a parameter's type; something else must.
            Operand::Parameter(number, _) => Expr::Parameter(number, Type::Text),
            operand => operand.decided(self.parameters)?.0,
        };
        Ok(boolean(Expr::IsNull(Box::new(expr))))
    }

    /// `x IS TRUE`: not NULL, and true. Never NULL itself.
    fn is_bool(&mut self, inner: &ast::Expr, truth: bool, clause: &str) -> Result<Operand> {
        let condition = self.condition(inner, clause)?;
        let known = Expr::Unary(Unary::Not, Box::new(Expr::IsNull(Box::new(condition.clone()))));
        let wanted = if truth { condition } else { Expr::Unary(Unary::Not, Box::new(condition)) };
        Ok(boolean(Expr::Binary(Binary::And, Box::new(known), Box::new(wanted))))
    }

    /// `a IS NOT DISTINCT FROM b`: equal, or both NULL. Never NULL itself.
    fn same(&mut self, a: &ast::Expr, b: &ast::Expr, span: Span) -> Result<Operand> {
        let operands = vec![self.operand(a)?, self.operand(b)?];
        let ty = self.comparable(&operands, span)?;
        let mut bound = Vec::with_capacity(2);
        for operand in operands {
            bound.push(operand.implicit(ty, self.parameters)?);
        }
        let (b, a) = (bound.pop().expect("two"), bound.pop().expect("two"));
        let null = |expr: &Expr| Expr::IsNull(Box::new(expr.clone()));
        let and = |a, b| Expr::Binary(Binary::And, Box::new(a), Box::new(b));
        let both_null = and(null(&a), null(&b));
        let neither = Expr::Unary(
            Unary::Not,
            Box::new(Expr::Binary(Binary::Or, Box::new(null(&a)), Box::new(null(&b)))),
        );
        let equal = Expr::Binary(Binary::Equal, Box::new(a), Box::new(b));
        Ok(boolean(Expr::Binary(Binary::Or, Box::new(both_null), Box::new(and(neither, equal)))))
    }

    fn comparable(&self, operands: &[Operand], span: Span) -> Result<Type> {
        let mut met = operands[0].ty();
        for ty in operands[1..].iter().filter_map(Operand::ty) {
            met = Some(match met {
                None => ty,
                Some(so_far) => coerce::wider(so_far, ty)
                    .ok_or_else(|| no_operator(&format!("{} = {}", so_far.name(), ty.name()), span))?,
            });
        }
        Ok(met.unwrap_or(Type::Text))
    }

    fn like(
        &mut self,
        text: &ast::Expr,
        pattern: &ast::Expr,
        escape: Option<&ast::ValueWithSpan>,
        case_insensitive: bool,
        span: Span,
    ) -> Result<Operand> {
        let (text, pattern) = (self.operand(text)?, self.operand(pattern)?);
        for operand in [&text, &pattern] {
            if !matches!(operand.ty(), None | Some(Type::Text)) {
                let symbol = if case_insensitive { "~~*" } else { "~~" };
                return Err(no_operator(
                    &format!("{} {symbol} {}", text.type_name(), pattern.type_name()),
                    span,
                ));
            }
        }
        let escape = match escape {
            None => Some('\\'),
            Some(value) => {
                let Some(text) = value.value.clone().into_string() else {
                    return Err(SqlError::unsupported("an ESCAPE that is no constant").at(value.span));
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
        let text = Box::new(text.implicit(Type::Text, self.parameters)?);
        let pattern = Box::new(pattern.implicit(Type::Text, self.parameters)?);
        Ok(boolean(Expr::Like { text, pattern, escape, case_insensitive }))
    }

    fn case(
        &mut self,
        subject: Option<&ast::Expr>,
        conditions: &[ast::CaseWhen],
        otherwise: Option<&ast::Expr>,
        span: Span,
    ) -> Result<Operand> {
        let mut tests = Vec::with_capacity(conditions.len());
        let mut results = Vec::with_capacity(conditions.len() + 1);
        for when in conditions {
            tests.push(match subject {
                None => self.condition(&when.condition, "CASE/WHEN")?,
                Some(subject) => {
                    let test =
                        self.binary(subject, &BinaryOperator::Eq, &when.condition, when.condition.span())?;
                    test.implicit(Type::Bool, self.parameters)?
                }
            });
            results.push(self.operand(&when.result)?);
        }
        results.push(match otherwise {
            Some(otherwise) => self.operand(otherwise)?,
            None => Operand::Null,
        });
        let ty = coerce::common(&results, "CASE", span)?.unwrap_or(Type::Text);
        let mut bound = Vec::with_capacity(results.len());
        for result in results {
            bound.push(result.implicit(ty, self.parameters)?);
        }
        let otherwise = bound.pop().map(Box::new);
        let branches = tests.into_iter().zip(bound).collect();
        Ok(Operand::Typed(Expr::Case { branches, otherwise, ty }, ty))
    }

    fn function(&mut self, function: &ast::Function, span: Span) -> Result<Operand> {
        let mut parts = scope::parts(&function.name)?;
        let name = parts.pop().unwrap_or_default();
        if !parts.is_empty() && parts != ["pg_catalog"] {
            return Err(SqlError::new(
                code::INVALID_SCHEMA_NAME,
                format!("schema \"{}\" does not exist", parts.join(".")),
            )
            .at(span));
        }
        for (present, what) in [
            (function.over.is_some(), "a window function"),
            (function.filter.is_some(), "FILTER"),
            (!function.within_group.is_empty(), "WITHIN GROUP"),
            (function.null_treatment.is_some(), "IGNORE NULLS"),
        ] {
            if present {
                return Err(SqlError::unsupported(what).at(span));
            }
        }
        let (arguments, distinct) = match &function.args {
            FunctionArguments::None => (&[][..], false),
            FunctionArguments::Subquery(_) => {
                self.parameters.beyond = true;
                return Err(SqlError::unsupported("a sub-select over tables").at(span));
            }
            FunctionArguments::List(list) => {
                if !list.clauses.is_empty() {
                    return Err(SqlError::unsupported(format!("a clause within the call of {name}")).at(span));
                }
                let distinct = list.duplicate_treatment == Some(ast::DuplicateTreatment::Distinct);
                (&list.args[..], distinct)
            }
        };
        if let Some(aggregate) = aggregate_named(&name) {
            return self.aggregate(aggregate, &name, arguments, distinct, span);
        }
        if distinct {
            return Err(SqlError::new(
                "42809",
                format!("DISTINCT specified, but {name} is not an aggregate function"),
            )
            .at(span));
        }
        if arguments.is_empty()
            && let Some(value) = SessionValue::named(&name)
        {
            return Ok(session_value(value));
        }
        if name == "version" && arguments.is_empty() {
            return Ok(text(crate::version()));
        }
        let mut operands = Vec::with_capacity(arguments.len());
        for argument in arguments {
            match argument {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => operands.push(self.operand(expr)?),
                _ => return Err(SqlError::unsupported(format!("the argument {argument}")).at(span)),
            }
        }
        self.call(&name, operands, span)
    }

    fn aggregate(
        &mut self,
        function: AggregateFunction,
        name: &str,
        arguments: &[FunctionArg],
        distinct: bool,
        span: Span,
    ) -> Result<Operand> {
        if let Err(place) = &self.aggregates {
            let message = match *place {
                "" => "aggregate function calls cannot be nested".to_owned(),
                place => format!("aggregate functions are not allowed in {place}"),
            };
            return Err(SqlError::new(code::GROUPING_ERROR, message).at(span));
        }
        let argument = match arguments {
            [FunctionArg::Unnamed(FunctionArgExpr::Wildcard | FunctionArgExpr::WildcardWithOptions(_))]
                if function == AggregateFunction::Count && !distinct =>
            {
                None
            }
            [FunctionArg::Unnamed(FunctionArgExpr::Expr(argument))] => {
                let mut inner =
                    Binder { scope: self.scope, parameters: self.parameters, aggregates: Err("") };
                let operand = inner.operand(argument)?;
                let (argument, ty) = match (function, operand) {
                    (AggregateFunction::Sum | AggregateFunction::Avg, undecided)
                        if undecided.ty().is_none() =>
                    {
                        return Err(SqlError::new(
                            code::AMBIGUOUS_FUNCTION,
                            format!("function {name}(unknown) is not unique"),
                        )
                        .hint("Could not choose a best candidate function. You might need to add explicit type casts.")
                        .at(span));
                    }
                    (_, operand) => operand.decided(self.parameters)?,
                };
                let defined = match function {
                    AggregateFunction::Count => true,
                    AggregateFunction::Min | AggregateFunction::Max => ty != Type::Bool,
                    AggregateFunction::Sum | AggregateFunction::Avg => ty.is_number(),
                };
                if !defined {
                    return Err(no_function(name, &[ty.name()], span));
                }
                Some(argument)
            }
            [] if function == AggregateFunction::Count => {
                return Err(SqlError::new(
                    "42809",
                    "count(*) must be used to call a parameterless aggregate function",
                )
                .at(span));
            }
            _ => {
                let shown: Vec<&str> = arguments.iter().map(|_| "unknown").collect();
                return Err(no_function(name, &shown, span));
            }
        };
        let aggregate = Aggregate { function, argument, distinct };
        let ty = aggregate.ty();
        let Ok(aggregates) = &mut self.aggregates else { unreachable!("checked above") };
        let index = aggregates.iter().position(|known| *known == aggregate).unwrap_or_else(|| {
            aggregates.push(aggregate);
            aggregates.len() - 1
        });
        Ok(Operand::Typed(Expr::Column(AGGREGATE + index, ty), ty))
    }

    /// A scalar function by name.
    fn call(&mut self, name: &str, arguments: Vec<Operand>, span: Span) -> Result<Operand> {
        let shown: Vec<&'static str> = arguments.iter().map(Operand::type_name).collect();
        let absent = || no_function(name, &shown, span);
        let count = arguments.len();
        let first = arguments.first().and_then(Operand::ty);
        use Type::{Date, Float8, Int4, Numeric, Text, Timestamp, Timestamptz};
        let same = |arguments: &[Operand], what: &str| -> Result<Vec<Type>> {
            let ty = coerce::common(arguments, what, span)?.unwrap_or(Text);
            Ok(vec![ty; arguments.len()])
        };
        // Numeric where the argument is numeric, else a float.
        let float = if first == Some(Numeric) { Numeric } else { Float8 };
        let (function, wanted): (Function, Vec<Type>) = match (name, count) {
            ("abs", 1) => (Function::Abs, vec![first.filter(|ty| ty.is_number()).unwrap_or(Float8)]),
            ("sign", 1) => (Function::Sign, vec![float]),
            ("round", 1) => (Function::Round, vec![float]),
            ("trunc", 1) => (Function::Trunc, vec![float]),
            ("floor", 1) => (Function::Floor, vec![float]),
            ("ceil" | "ceiling", 1) => (Function::Ceil, vec![float]),
            ("round", 2) => (Function::Round, vec![Numeric, Int4]),
            ("trunc", 2) => (Function::Trunc, vec![Numeric, Int4]),
            ("sqrt", 1) => (Function::Sqrt, vec![float]),
            ("power" | "pow", 2) => {
                let has = |ty| arguments.iter().any(|argument| argument.ty() == Some(ty));
                if has(Numeric) && !has(Float8) {
                    return Err(SqlError::unsupported("power of numeric")
                        .hint("Cast to double precision.")
                        .at(span));
                }
                (Function::Power, vec![Float8, Float8])
            }
            ("exp" | "ln" | "log10" | "log", 1) => {
                if first == Some(Numeric) {
                    return Err(SqlError::unsupported(format!("{name} of numeric"))
                        .hint("Cast to double precision.")
                        .at(span));
                }
                let function = match name {
                    "exp" => Function::Exp,
                    "ln" => Function::Ln,
                    _ => Function::Log10,
                };
                (function, vec![Float8])
            }
            ("lower", 1) => (Function::Lower, vec![Text]),
            ("upper", 1) => (Function::Upper, vec![Text]),
            ("length" | "char_length" | "character_length", 1) => (Function::Length, vec![Text]),
            ("octet_length", 1) => (Function::OctetLength, vec![Text]),
            ("substring" | "substr", 2 | 3) => (Function::Substring, [Text, Int4, Int4][..count].to_vec()),
            ("left", 2) => (Function::Left, vec![Text, Int4]),
            ("right", 2) => (Function::Right, vec![Text, Int4]),
            ("btrim", 1 | 2) => (Function::Trim, vec![Text; count]),
            ("ltrim", 1 | 2) => (Function::TrimLeft, vec![Text; count]),
            ("rtrim", 1 | 2) => (Function::TrimRight, vec![Text; count]),
            ("lpad", 2 | 3) => (Function::PadLeft, [Text, Int4, Text][..count].to_vec()),
            ("rpad", 2 | 3) => (Function::PadRight, [Text, Int4, Text][..count].to_vec()),
            ("replace", 3) => (Function::Replace, vec![Text; 3]),
            ("repeat", 2) => (Function::Repeat, vec![Text, Int4]),
            ("reverse", 1) => (Function::Reverse, vec![Text]),
            ("strpos", 2) => (Function::Position, vec![Text, Text]),
            ("starts_with", 2) => (Function::StartsWith, vec![Text, Text]),
            ("split_part", 3) => (Function::SplitPart, vec![Text, Text, Int4]),
            ("concat", 1..) => {
                // Whatever they are, they are put one behind the other as text.
                let mut bound = Vec::with_capacity(count);
                for argument in arguments {
                    bound.push(match argument {
                        // As it is printed, which is not how it is cast.
                        Operand::Typed(truth, Type::Bool) => {
                            let letter = |letter: &str| Expr::Constant(Value::text_of(letter), Text);
                            let not = Expr::Unary(Unary::Not, Box::new(truth.clone()));
                            let branches = vec![(truth, letter("t")), (not, letter("f"))];
                            fold::constant(Expr::Case { branches, otherwise: None, ty: Text })
                        }
                        other => other.implicit(Text, self.parameters)?,
                    });
                }
                return Ok(called(Function::Concat, bound));
            }
            ("coalesce", 1..) => (Function::Coalesce, same(&arguments, "COALESCE")?),
            ("greatest", 1..) => (Function::Greatest, same(&arguments, "GREATEST")?),
            ("least", 1..) => (Function::Least, same(&arguments, "LEAST")?),
            ("nullif", 2) => (Function::NullIf, vec![self.comparable(&arguments, span)?; 2]),
            ("date_trunc", 2) => {
                let source = if arguments[1].ty() == Some(Timestamp) { Timestamp } else { Timestamptz };
                (Function::DateTrunc, vec![Text, source])
            }
            ("extract", 2) => {
                let source = match arguments[1].ty() {
                    None => Timestamptz,
                    Some(ty @ (Date | Timestamp | Timestamptz)) => ty,
                    Some(_) => return Err(absent()),
                };
                (Function::Extract, vec![Text, source])
            }
            ("make_date", 3) => (Function::MakeDate, vec![Int4; 3]),
            _ => {
                self.parameters.beyond |= !SCALARS.contains(&name);
                return Err(absent());
            }
        };
        let mut bound = Vec::with_capacity(count);
        for (argument, ty) in arguments.into_iter().zip(wanted) {
            if let Some(from) = argument.ty()
                && coerce::wider(from, ty) != Some(ty)
            {
                return Err(absent());
            }
            bound.push(argument.implicit(ty, self.parameters)?);
        }
        Ok(called(function, bound))
    }
}

/// Scalar functions that are known here, whatever their arguments.
const SCALARS: &[&str] = &[
    "abs",
    "sign",
    "round",
    "trunc",
    "floor",
    "ceil",
    "ceiling",
    "sqrt",
    "power",
    "pow",
    "exp",
    "ln",
    "log",
    "log10",
    "lower",
    "upper",
    "length",
    "char_length",
    "character_length",
    "octet_length",
    "substring",
    "substr",
    "left",
    "right",
    "btrim",
    "ltrim",
    "rtrim",
    "lpad",
    "rpad",
    "replace",
    "repeat",
    "reverse",
    "strpos",
    "starts_with",
    "split_part",
    "concat",
    "coalesce",
    "greatest",
    "least",
    "nullif",
    "date_trunc",
    "extract",
    "make_date",
];

/// The aggregate of this name.
pub fn aggregate_named(name: &str) -> Option<AggregateFunction> {
    Some(match name {
        "count" => AggregateFunction::Count,
        "sum" => AggregateFunction::Sum,
        "min" => AggregateFunction::Min,
        "max" => AggregateFunction::Max,
        "avg" => AggregateFunction::Avg,
        _ => return None,
    })
}

/// A number's type: `integer` where it fits, then `bigint`, then `numeric`; with a point or exponent `numeric`.
fn number(digits: &str) -> Result<(Value, Type)> {
    if let Ok(integer) = digits.parse::<i32>() {
        return Ok((Value::Int4(integer), Type::Int4));
    }
    if let Ok(integer) = digits.parse::<i64>() {
        return Ok((Value::Int8(integer), Type::Int8));
    }
    Ok((Value::Numeric(Numeric::parse(digits)?), Type::Numeric))
}

fn text(text: impl AsRef<str>) -> Operand {
    Operand::Typed(Expr::Constant(Value::text_of(text), Type::Text), Type::Text)
}

fn session_value(value: SessionValue) -> Operand {
    let ty = value.ty().plain();
    Operand::Typed(Expr::Parameter(value.number(), ty), ty)
}

fn called(function: Function, arguments: Vec<Expr>) -> Operand {
    let call = Expr::Call(function, arguments);
    let ty = call.ty();
    Operand::Typed(fold::constant(call), ty)
}

fn boolean(expr: Expr) -> Operand {
    Operand::Typed(fold::constant(expr), Type::Bool)
}

fn negated(operand: Operand) -> Operand {
    let Operand::Typed(expr, Type::Bool) = operand else { unreachable!("only conditions are negated") };
    boolean(Expr::Unary(Unary::Not, Box::new(expr)))
}

fn when(not: bool, operand: Operand) -> Operand {
    if not { negated(operand) } else { operand }
}

fn ambiguous(shown: &str, span: Span) -> SqlError {
    SqlError::new(code::AMBIGUOUS_FUNCTION, format!("operator is not unique: {shown}"))
        .hint("Could not choose a best candidate operator. You might need to add explicit type casts.")
        .at(span)
}

fn no_operator(shown: &str, span: Span) -> SqlError {
    SqlError::new(code::UNDEFINED_FUNCTION, format!("operator does not exist: {shown}"))
        .hint("No operator matches the given name and argument types. You might need to add explicit type casts.")
        .at(span)
}

fn no_function(name: &str, arguments: &[&str], span: Span) -> SqlError {
    SqlError::new(
        code::UNDEFINED_FUNCTION,
        format!("function {name}({}) does not exist", arguments.join(", ")),
    )
    .hint("No function matches the given name and argument types. You might need to add explicit type casts.")
    .at(span)
}

/// The name PostgreSQL gives a column that has no alias.
pub fn column_name(expr: &ast::Expr) -> String {
    inner_name(expr).unwrap_or_else(|| "?column?".to_owned())
}

/// A name that comes from a column or function rather than from a type or keyword.
fn strong_name(expr: &ast::Expr) -> Option<String> {
    match expr {
        ast::Expr::Nested(inner) | ast::Expr::Cast { expr: inner, .. } => strong_name(inner),
        ast::Expr::TypedString(_) | ast::Expr::Value(_) | ast::Expr::Case { .. } => None,
        other => inner_name(other),
    }
}

fn inner_name(expr: &ast::Expr) -> Option<String> {
    let last = |name: &ast::ObjectName| scope::parts(name).ok().and_then(|mut parts| parts.pop());
    Some(match expr {
        ast::Expr::Identifier(ident) => scope::fold(ident),
        ast::Expr::CompoundIdentifier(idents) => scope::fold(idents.last()?),
        ast::Expr::Nested(inner) | ast::Expr::Collate { expr: inner, .. } => inner_name(inner)?,
        ast::Expr::Function(function) => last(&function.name)?,
        ast::Expr::Cast { expr, data_type, .. } => match strong_name(expr) {
            Some(name) => name,
            None => types::named(data_type).ok()?.info().name.to_owned(),
        },
        ast::Expr::TypedString(typed) => types::named(&typed.data_type).ok()?.info().name.to_owned(),
        ast::Expr::Value(value) if matches!(value.value, ast::Value::Boolean(_)) => "bool".to_owned(),
        // PostgreSQL looks into ELSE first.
        ast::Expr::Case { else_result, .. } => {
            else_result.as_deref().and_then(strong_name).unwrap_or_else(|| "case".to_owned())
        }
        ast::Expr::Exists { .. } => "exists".to_owned(),
        ast::Expr::Array(_) => "array".to_owned(),
        ast::Expr::Ceil { .. } => "ceil".to_owned(),
        ast::Expr::Floor { .. } => "floor".to_owned(),
        ast::Expr::Substring { shorthand, .. } => if *shorthand { "substr" } else { "substring" }.to_owned(),
        ast::Expr::Extract { .. } => "extract".to_owned(),
        ast::Expr::Position { .. } => "position".to_owned(),
        ast::Expr::Trim { .. } => "btrim".to_owned(),
        ast::Expr::Subquery(query) => match &*query.body {
            ast::SetExpr::Select(select) => match select.projection.first()? {
                ast::SelectItem::UnnamedExpr(expr) => inner_name(expr)?,
                ast::SelectItem::ExprWithAlias { alias, .. } => scope::fold(alias),
                _ => return None,
            },
            _ => return None,
        },
        _ => return None,
    })
}
