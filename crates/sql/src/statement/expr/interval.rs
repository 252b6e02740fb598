//! Binds intervals.
//!
//! No column holds an interval, so the engine has no type for intervals. An expression over intervals is
//! three expressions: months, days and microseconds ([`IntervalParts`]). In the end they are added to a
//! timestamp or become text. Two intervals are compared by their length, where a month counts as 30 days and
//! a day as 24 hours.

use quorate_table::{
    eval::eval,
    expr::{Binary, Expr, Function, Unary},
    interval::Interval,
    value::{Type, Value},
};
use sqlparser::{ast, tokenizer::Span};

use super::{binder::Binder, operand::boolean, operator::no_operator};
use crate::{
    error::{Result, SqlError, code},
    statement::{
        coerce::{IntervalParts, Operand, cast},
        fold,
        parameters::IntervalPart,
    },
    types::PgType,
};

/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;

impl Binder<'_> {
    /// Binds `INTERVAL '…'`, with or without a unit after it.
    pub(super) fn interval_literal(&mut self, interval: &ast::Interval, span: Span) -> Result<Operand> {
        let text = match &*interval.value {
            ast::Expr::Value(value) => value.value.clone().into_string(),
            _ => None,
        };
        let Some(text) = text else {
            return Err(SqlError::unsupported("an INTERVAL that is not a string").at(span));
        };
        let text = match &interval.leading_field {
            None => text,
            Some(unit) if interval.last_field.is_none() && text.trim().parse::<f64>().is_ok() => {
                format!("{} {unit}", text.trim())
            }
            Some(_) => return Err(SqlError::unsupported("fields of an INTERVAL").at(span)),
        };
        self.interval(Operand::Literal(text, span), span).map(IntervalParts::operand)
    }

    /// Converts an operand to an interval. Fails if the operand cannot become an interval.
    pub(super) fn interval(&mut self, operand: Operand, span: Span) -> Result<IntervalParts> {
        match operand {
            Operand::Interval(parts) => Ok(*parts),
            Operand::Literal(text, span) => {
                let interval = Interval::parse(&text).map_err(|failure| SqlError::from(failure).at(span))?;
                Ok(IntervalParts::constant(interval))
            }
            Operand::Null => Ok(IntervalParts {
                months: Expr::Constant(Value::Null, Type::Int4),
                days: Expr::Constant(Value::Null, Type::Int4),
                micros: Expr::Constant(Value::Null, Type::Int8),
            }),
            Operand::Parameter(number, _) => {
                self.parameters.decide(number, PgType::Interval);
                Ok(parameter(number))
            }
            Operand::Typed(_, Type::Text) => {
                Err(SqlError::unsupported("a cast of an expression to interval").at(span))
            }
            Operand::Typed(_, ty) => {
                Err(SqlError::new(code::CANNOT_COERCE, format!("cannot cast type {} to interval", ty.name()))
                    .at(span))
            }
        }
    }

    /// Binds an operator of which at least one operand is an interval.
    pub(super) fn on_interval(
        &mut self,
        op: Binary,
        symbol: &str,
        left: Operand,
        right: Operand,
        span: Span,
    ) -> Result<Operand> {
        if [left.ty(), right.ty()].contains(&Some(Type::Time)) {
            return Err(SqlError::unsupported(format!("operator {symbol} of time")).at(span));
        }
        let absent = || no_operator(&format!("{} {symbol} {}", left.type_name(), right.type_name()), span);
        let is_moment = |operand: &Operand| {
            matches!(operand.ty(), Some(Type::Date | Type::Timestamp | Type::Timestamptz))
        };
        let is_number = |operand: &Operand| operand.ty().is_some_and(Type::is_number);
        let is_open = |operand: &Operand| {
            matches!(operand, Operand::Literal(..) | Operand::Null | Operand::Parameter(..))
        };
        // An operand without a type next to an interval is an interval, too.
        let is_interval = |operand: &Operand| !matches!(operand, Operand::Typed(..));
        match op {
            Binary::Add if is_moment(&left) => self.moved(left, right, false, span),
            Binary::Add if is_moment(&right) => self.moved(right, left, false, span),
            Binary::Subtract if is_moment(&left) => self.moved(left, right, true, span),
            Binary::Add | Binary::Subtract if is_interval(&left) && is_interval(&right) => {
                let (left, right) = (self.interval(left, span)?, self.interval(right, span)?);
                Ok(left.zip(right, |a, b| Expr::binary(op, a, b)).operand())
            }
            Binary::Multiply if is_number(&right) || is_open(&right) => self.scaled(left, right, false, span),
            Binary::Multiply if is_number(&left) || is_open(&left) => self.scaled(right, left, false, span),
            Binary::Divide
                if matches!(left, Operand::Interval(_)) && (is_number(&right) || is_open(&right)) =>
            {
                self.scaled(left, right, true, span)
            }
            _ if op.is_comparison() && is_interval(&left) && is_interval(&right) => {
                let (left, right) = (self.interval(left, span)?, self.interval(right, span)?);
                Ok(boolean(Expr::binary(op, left.length(), right.length())))
            }
            _ => Err(absent()),
        }
    }

    /// Adds an interval to a date or timestamp. With `back`, subtracts the interval instead.
    pub(super) fn moved(
        &mut self,
        moment: Operand,
        interval: Operand,
        back: bool,
        span: Span,
    ) -> Result<Operand> {
        let ty = match moment.ty() {
            Some(Type::Timestamptz) => Type::Timestamptz,
            _ => Type::Timestamp,
        };
        let moment = moment.coerce_implicit(ty, self.parameters)?;
        let parts = self.interval(interval, span)?;
        let parts = if back { parts.negated() } else { parts };
        let call = Expr::Call(Function::Shift, vec![moment, parts.months, parts.days, parts.micros]);
        Ok(Operand::Typed(fold::constant(call), ty))
    }

    /// Returns the difference of two timestamps as an interval of days and the rest of a day.
    pub(super) fn elapsed(to: Expr, from: Expr) -> Operand {
        let micros = Expr::Call(Function::Elapsed, vec![to, from]);
        let day = || Expr::Constant(Value::Int8(DAY), Type::Int8);
        IntervalParts {
            months: Expr::Case {
                branches: vec![(
                    Expr::IsNull(Box::new(micros.clone())),
                    Expr::Constant(Value::Null, Type::Int4),
                )],
                otherwise: Some(Box::new(Expr::Constant(Value::Int4(0), Type::Int4))),
                ty: Type::Int4,
            },
            days: cast(Expr::binary(Binary::Divide, micros.clone(), day()), Type::Int4),
            micros: Expr::binary(Binary::Modulo, micros, day()),
        }
        .operand()
    }

    /// Multiplies an interval by a number, or divides it. Multiplication by an integer multiplies each part.
    /// Multiplication by a fraction, and division, need constants, because the fraction of a part is carried
    /// into another part.
    fn scaled(&mut self, interval: Operand, by: Operand, divide: bool, span: Span) -> Result<Operand> {
        let parts = self.interval(interval, span)?;
        let whole = matches!(by.ty(), Some(Type::Int2 | Type::Int4 | Type::Int8));
        if whole && !divide {
            let by = by.coerce_implicit(Type::Int8, self.parameters)?;
            let times = |part: Expr| {
                let ty = part.ty();
                cast(Expr::binary(Binary::Multiply, cast(part, Type::Int8), by.clone()), ty)
            };
            return Ok(parts.map(times).operand());
        }
        let by = fold::constant(by.coerce_implicit(Type::Float8, self.parameters)?);
        let (Some(interval), Expr::Constant(by, _)) = (parts.known(), by) else {
            return Err(
                SqlError::unsupported("an interval times a fraction, unless both are constants,").at(span)
            );
        };
        let Value::Float8(by) = by else {
            return self.interval(Operand::Null, span).map(IntervalParts::operand);
        };
        if divide && by == 0.0 {
            return Err(SqlError::new("22012", "division by zero").at(span));
        }
        Ok(IntervalParts::constant(interval.times(if divide { 1.0 / by } else { by })?).operand())
    }

    /// Binds `date_bin(stride, source, origin)`: the beginning of the stride that contains `source`, counted
    /// from `origin`.
    pub(super) fn date_bin(
        &mut self,
        stride: Operand,
        source: Operand,
        origin: Operand,
        span: Span,
    ) -> Result<Operand> {
        let parts = self.interval(stride, span)?;
        let Some(interval) = parts.known() else {
            return Err(SqlError::unsupported("date_bin with a stride that is not a constant").at(span));
        };
        if interval.months != 0 {
            let what = "timestamps cannot be binned into intervals containing months or years";
            return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, what).at(span));
        }
        let stride =
            i64::from(interval.days).checked_mul(DAY).and_then(|days| days.checked_add(interval.micros));
        let Some(stride) = stride.filter(|stride| *stride > 0) else {
            return Err(SqlError::new("22008", "stride must be greater than zero").at(span));
        };
        let ty = match (source.ty(), origin.ty()) {
            (Some(Type::Timestamptz), _) | (_, Some(Type::Timestamptz)) | (None, None) => Type::Timestamptz,
            _ => Type::Timestamp,
        };
        let (source, origin) = self.both(source, origin, ty)?;
        let stride = || Expr::Constant(Value::Int8(stride), Type::Int8);
        let rest = |micros| Expr::binary(Binary::Modulo, micros, stride());
        let since = Expr::Call(Function::Elapsed, vec![source.clone(), origin]);
        // Shifts the remainder into the stride, because it is negative for times before the origin.
        let into = rest(Expr::binary(Binary::Add, rest(since), stride()));
        let none = || Expr::Constant(Value::Int4(0), Type::Int4);
        let back = Expr::Unary(Unary::Negate, Box::new(into));
        let call = Expr::Call(Function::Shift, vec![source, none(), none(), back]);
        Ok(Operand::Typed(fold::constant(call), ty))
    }
}

/// Returns the interval that a parameter stands for.
pub(super) fn parameter(number: usize) -> IntervalParts {
    IntervalParts {
        months: Expr::Parameter(IntervalPart::Months.number(number), Type::Int4),
        days: Expr::Parameter(IntervalPart::Days.number(number), Type::Int4),
        micros: Expr::Parameter(IntervalPart::Micros.number(number), Type::Int8),
    }
}

impl IntervalParts {
    fn constant(interval: Interval) -> IntervalParts {
        IntervalParts {
            months: Expr::Constant(Value::Int4(interval.months), Type::Int4),
            days: Expr::Constant(Value::Int4(interval.days), Type::Int4),
            micros: Expr::Constant(Value::Int8(interval.micros), Type::Int8),
        }
    }

    /// Returns the interval, if all its parts are constants.
    fn known(&self) -> Option<Interval> {
        match [&self.months, &self.days, &self.micros].map(|part| eval(part, &[])) {
            [Ok(Value::Int4(months)), Ok(Value::Int4(days)), Ok(Value::Int8(micros))] => {
                Some(Interval { months, days, micros })
            }
            _ => None,
        }
    }

    fn map(self, each: impl Fn(Expr) -> Expr) -> IntervalParts {
        let each = |part| fold::constant(each(part));
        IntervalParts { months: each(self.months), days: each(self.days), micros: each(self.micros) }
    }

    fn zip(self, other: IntervalParts, both: impl Fn(Expr, Expr) -> Expr) -> IntervalParts {
        let both = |a, b| fold::constant(both(a, b));
        IntervalParts {
            months: both(self.months, other.months),
            days: both(self.days, other.days),
            micros: both(self.micros, other.micros),
        }
    }

    pub(super) fn negated(self) -> IntervalParts {
        self.map(|part| Expr::Unary(Unary::Negate, Box::new(part)))
    }

    /// Returns the interval's length in microseconds, by which intervals are compared.
    fn length(self) -> Expr {
        let times = |part: Expr, by: i64| {
            Expr::binary(
                Binary::Multiply,
                cast(part, Type::Int8),
                Expr::Constant(Value::Int8(by), Type::Int8),
            )
        };
        let days = Expr::binary(Binary::Add, times(self.months, 30), cast(self.days, Type::Int8));
        fold::constant(Expr::binary(Binary::Add, times(days, DAY), self.micros))
    }

    pub(super) fn operand(self) -> Operand {
        Operand::Interval(Box::new(self))
    }
}
