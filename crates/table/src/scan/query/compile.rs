//! Compiled filters: terms of a conjunction, each about the numbers of one column.
//!
//! A filter is split at its ANDs. A comparison of a column with constants becomes a [`Term`]. Constants
//! become numbers here, so a constant that is in no dictionary makes a term that no row satisfies. If some
//! part makes no term, `eval` evaluates the whole filter on the rows that pass the terms.
//!
//! `eval` goes through a conjunction from left to right, ends at the first FALSE but not at NULL, and can
//! fail. A compiled filter must fail on exactly the same rows. So only the parts before the first part that
//! can fail become terms, and those terms accept NULL.

use std::sync::Arc;

use crate::{
    expr::{Binary, Expr, Unary},
    partition::nearest,
    scan::code::{chunk::Chunk, dictionary::Dictionary, ordinal},
    schema::Schema,
    value::{Type, Value},
};

/// The demand of a filter on one column.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::scan) struct Term {
    pub(in crate::scan) column: usize,
    /// The range of numbers that satisfy the term; empty if `low` is above `high`.
    pub(in crate::scan) low: u64,
    pub(in crate::scan) high: u64,
    /// Further numbers that satisfy the term, sorted.
    pub(in crate::scan) others: Vec<u64>,
    /// Whether exactly the numbers that are not listed satisfy the term.
    pub(in crate::scan) negated: bool,
    /// Whether NULL satisfies the term.
    pub(in crate::scan) nulls: bool,
}

impl Term {
    #[inline]
    pub(in crate::scan) fn passes(&self, number: u64) -> bool {
        let listed = self.low <= number && number <= self.high
            || !self.others.is_empty() && self.others.binary_search(&number).is_ok();
        listed != self.negated
    }

    #[inline]
    pub(in crate::scan) fn admits(&self, value: Option<u64>) -> bool {
        value.map_or(self.nulls, |number| self.passes(number))
    }

    /// Drops from a list the rows whose values do not satisfy the term, except for the first `first` rows of
    /// the list.
    pub(in crate::scan) fn retain(&self, chunk: &Chunk, rows: &mut Vec<u32>, first: usize) {
        if self.is_range() && chunk.nulls().is_none() {
            return chunk.numbers.retain_within(self.low, self.high, rows, first);
        }
        let mut kept = first;
        for next in first..rows.len() {
            rows[kept] = rows[next];
            kept += usize::from(self.admits(chunk.value(rows[next] as usize)));
        }
        rows.truncate(kept);
    }

    /// Whether some value of a chunk may satisfy the term.
    pub(in crate::scan) fn may_pass(&self, chunk: &Chunk) -> bool {
        self.negated
            || self.nulls && chunk.nulls().is_some()
            || self.low <= self.high
                && if self.low == self.high {
                    chunk.may_hold(self.low)
                } else {
                    self.low <= chunk.high && chunk.low <= self.high
                }
            || self.listed_within(chunk).iter().any(|&number| chunk.may_hold(number))
    }

    /// Returns the single numbers within the bounds of a chunk.
    fn listed_within(&self, chunk: &Chunk) -> &[u64] {
        let first = self.others.partition_point(|&number| number < chunk.low);
        let last = self.others.partition_point(|&number| number <= chunk.high);
        &self.others[first..last.max(first)]
    }

    /// Estimates the fraction of a chunk's values that satisfy the term, from 0 to 1, as if the values were
    /// spread evenly.
    pub(in crate::scan) fn selectivity(&self, chunk: &Chunk) -> f64 {
        let numbers = (chunk.high - chunk.low) as f64 + 1.0;
        let inside = if self.low <= self.high { (self.high - self.low) as f64 + 1.0 } else { 0.0 };
        let part = ((inside + self.others.len() as f64) / numbers).min(1.0);
        if self.negated { 1.0 - part } else { part }
    }

    /// Whether the term is one comparison with a range.
    pub(in crate::scan) fn is_range(&self) -> bool {
        self.others.is_empty() && !self.negated && !self.nulls
    }

    /// Whether no value can satisfy the term.
    pub(in crate::scan) fn is_empty(&self) -> bool {
        !self.negated && !self.nulls && self.low > self.high && self.others.is_empty()
    }

    /// Whether at most `most` single numbers satisfy the term.
    pub(super) fn is_equality(&self, most: usize) -> bool {
        !self.negated && !self.nulls && self.low >= self.high && self.others.len() < most
    }

    /// Whether exactly an interval and up to `most` single numbers satisfy the term.
    pub(super) fn is_interval(&self, most: usize) -> bool {
        !self.negated && !self.nulls && self.low < self.high && self.others.len() <= most
    }

    /// Returns the intervals of the listed numbers.
    pub(super) fn intervals(&self) -> impl Iterator<Item = (u64, u64)> {
        let range = (self.low <= self.high).then_some((self.low, self.high));
        range.into_iter().chain(self.others.iter().map(|&number| (number, number)))
    }
}

/// A compiled filter.
#[derive(Default)]
pub(in crate::scan) struct FilterPlan {
    pub(in crate::scan) terms: Vec<Term>,
    /// Whether the whole filter must be evaluated on rows that pass the terms.
    pub(in crate::scan) filter_left: bool,
}

impl FilterPlan {
    /// Whether no row can satisfy the filter.
    pub(in crate::scan) fn is_empty(&self) -> bool {
        self.terms.iter().any(Term::is_empty)
    }
}

pub(in crate::scan) fn compile(
    schema: &Schema,
    dictionaries: &[Option<Arc<Dictionary>>],
    filter: Option<&Expr>,
) -> FilterPlan {
    let mut plan = FilterPlan::default();
    let Some(filter) = filter else { return plan };
    let mut parts = Vec::new();
    conjuncts(filter, &mut parts);
    let can_fail = parts.iter().position(|part| !is_total(part, schema));
    let binder = Binder { schema, dictionaries, nulls: can_fail.is_some() };
    for part in &parts[..can_fail.unwrap_or(parts.len())] {
        match binder.term(part) {
            Some(term) => plan.add(term),
            None => plan.filter_left = true,
        }
    }
    plan.filter_left |= can_fail.is_some();
    plan
}

impl FilterPlan {
    fn add(&mut self, term: Term) {
        let simple = |term: &Term| term.others.is_empty() && !term.negated;
        let other = self.terms.iter_mut().find(|other| {
            other.column == term.column && other.nulls == term.nulls && simple(other) && simple(&term)
        });
        match other {
            // Two bounds of a column make one range.
            Some(other) => {
                other.low = other.low.max(term.low);
                other.high = other.high.min(term.high);
                if other.low > other.high {
                    (other.low, other.high) = NONE;
                }
            }
            None => self.terms.push(term),
        }
    }
}

const NONE: (u64, u64) = (1, 0);

fn conjuncts<'a>(filter: &'a Expr, parts: &mut Vec<&'a Expr>) {
    match filter {
        Expr::Binary(Binary::And, left, right) => {
            conjuncts(left, parts);
            conjuncts(right, parts);
        }
        part => parts.push(part),
    }
}

/// Whether an expression has a value on every row of the table, as far as its form shows.
fn is_total(expr: &Expr, schema: &Schema) -> bool {
    let total = |expr: &Expr| is_total(expr, schema);
    let comparable = |a: &Expr, b: &Expr| {
        let exact = |ty: Type| ty.is_integer() || ty == Type::Numeric;
        a.ty() == b.ty() || exact(a.ty()) && exact(b.ty())
    };
    match expr {
        Expr::Column(column, ty) => schema.columns.get(*column).is_some_and(|column| column.ty == *ty),
        Expr::Constant(value, ty) => value.fits(*ty),
        Expr::Binary(Binary::And | Binary::Or, left, right) => {
            [left, right].iter().all(|side| side.ty() == Type::Bool && total(side))
        }
        Expr::Binary(operator, left, right) => {
            (operator.is_comparison() || *operator == Binary::Distinct)
                && comparable(left, right)
                && total(left)
                && total(right)
        }
        Expr::Unary(Unary::Not, inner) => inner.ty() == Type::Bool && total(inner),
        Expr::IsNull(inner) => total(inner),
        Expr::In(probe, list) => total(probe) && list.iter().all(|one| comparable(probe, one) && total(one)),
        Expr::Like { text, pattern, escape, .. } => {
            text.ty() == Type::Text
                && total(text)
                && matches!(&**pattern, Expr::Constant(Value::Text(pattern), _)
                    if escape.is_none_or(|escape| !pattern.contains(escape)))
        }
        Expr::Cast(inner, ty) => total(inner) && widens(inner.ty(), *ty),
        _ => false,
    }
}

/// Whether a cast always succeeds and keeps values and their order.
fn widens(from: Type, to: Type) -> bool {
    from == to
        || match from {
            Type::Int2 => matches!(to, Type::Int4 | Type::Int8 | Type::Numeric),
            Type::Int4 => matches!(to, Type::Int8 | Type::Numeric),
            Type::Int8 => to == Type::Numeric,
            _ => false,
        }
}

struct Binder<'a> {
    schema: &'a Schema,
    dictionaries: &'a [Option<Arc<Dictionary>>],
    /// Whether the terms must accept NULL.
    nulls: bool,
}

impl Binder<'_> {
    /// Returns the term that is equivalent to a part of the filter, if there is one.
    fn term(&self, part: &Expr) -> Option<Term> {
        match part {
            Expr::Binary(operator, left, right) if operator.is_comparison() => {
                match (self.column(left), &**right, &**left, self.column(right)) {
                    (Some(column), Expr::Constant(value, _), _, _) => self.compared(column, *operator, value),
                    (_, _, Expr::Constant(value, _), Some(column)) => {
                        self.compared(column, operator.mirrored(), value)
                    }
                    _ => None,
                }
            }
            Expr::In(probe, list) => self.listed(self.column(probe)?, list, false),
            Expr::IsNull(probe) => Some(Term { nulls: true, ..self.range(self.column(probe)?, NONE) }),
            Expr::Unary(Unary::Not, inner) => match &**inner {
                Expr::IsNull(probe) => {
                    Some(Term { nulls: false, ..self.range(self.column(probe)?, (0, u64::MAX)) })
                }
                Expr::In(probe, list) => self.listed(self.column(probe)?, list, true),
                Expr::Column(..) => self.compared(self.column(inner)?, Binary::Equal, &Value::Bool(false)),
                _ => None,
            },
            Expr::Column(..) => self.compared(self.column(part)?, Binary::Equal, &Value::Bool(true)),
            Expr::Like { text, pattern, escape: _, case_insensitive: false } => {
                // `is_total` has refused patterns that contain the escape character.
                let Expr::Constant(Value::Text(pattern), _) = &**pattern else { return None };
                let column = self.column(text)?;
                let prefix = pattern.strip_suffix('%')?;
                if prefix.contains(['%', '_']) {
                    return None;
                }
                let low = Value::text_of(prefix);
                let high = successor(prefix).map(Value::text_of);
                self.between(column, Some((&low, true)), high.as_ref().map(|high| (high, false)))
            }
            _ => None,
        }
    }

    fn column(&self, expr: &Expr) -> Option<usize> {
        match expr {
            Expr::Column(column, ty) => (self.schema.columns.get(*column)?.ty == *ty).then_some(*column),
            Expr::Cast(inner, ty) => widens(inner.ty(), *ty).then(|| self.column(inner))?,
            _ => None,
        }
    }

    fn range(&self, column: usize, (low, high): (u64, u64)) -> Term {
        Term { column, low, high, others: Vec::new(), negated: false, nulls: self.nulls }
    }

    fn compared(&self, column: usize, operator: Binary, value: &Value) -> Option<Term> {
        if value.is_null() {
            // The comparison is unknown for every row, so no row satisfies it. But a term that must accept
            // NULL would accept all rows, so the comparison becomes no term.
            return (!self.nulls).then(|| self.range(column, NONE));
        }
        if self.schema.columns[column].ty == Type::Jsonb {
            // The codes of documents have another order than the documents, so no term can express the
            // comparison.
            return None;
        }
        let (below, above) = nearest(self.schema.columns[column].ty, value)?;
        let exact = match (&below, &above) {
            (Some(below), Some(above)) => below.order(above).is_eq(),
            _ => false,
        };
        match operator {
            Binary::Equal if exact => self.equal(column, &below?),
            Binary::Equal => Some(self.range(column, NONE)),
            Binary::NotEqual if exact => Some(Term { negated: true, ..self.equal(column, &below?)? }),
            Binary::NotEqual => Some(self.range(column, (0, u64::MAX))),
            Binary::Less | Binary::LessEqual => match &below {
                Some(below) => {
                    self.between(column, None, Some((below, !exact || operator == Binary::LessEqual)))
                }
                None => Some(self.range(column, NONE)),
            },
            Binary::Greater | Binary::GreaterEqual => match &above {
                Some(above) => {
                    self.between(column, Some((above, !exact || operator == Binary::GreaterEqual)), None)
                }
                None => Some(self.range(column, NONE)),
            },
            _ => None,
        }
    }

    fn equal(&self, column: usize, value: &Value) -> Option<Term> {
        match (&self.dictionaries[column], value) {
            // Equal texts are identical, so one code is enough.
            (Some(dictionary), Value::Text(_) | Value::Uuid(_) | Value::Bytea(_)) => {
                Some(self.range(column, dictionary.find(value).map_or(NONE, |code| (code, code))))
            }
            (Some(_), _) => self.between(column, Some((value, true)), Some((value, true))),
            (None, _) => Some(self.range(column, ordinal::equals(value)?)),
        }
    }

    fn between(
        &self,
        column: usize,
        low: Option<(&Value, bool)>,
        high: Option<(&Value, bool)>,
    ) -> Option<Term> {
        if let Some(dictionary) = &self.dictionaries[column] {
            let (start, end, others) = dictionary.between(low, high);
            let range = if start < end { (start, end - 1) } else { NONE };
            return Some(Term { others, ..self.range(column, range) });
        }
        let low = match low {
            None => Some(0),
            Some((value, true)) => Some(ordinal::equals(value)?.0),
            Some((value, false)) => ordinal::equals(value)?.1.checked_add(1),
        };
        let high = match high {
            None => Some(u64::MAX),
            Some((value, true)) => Some(ordinal::equals(value)?.1),
            Some((value, false)) => ordinal::equals(value)?.0.checked_sub(1),
        };
        let range = low.zip(high).filter(|(low, high)| low <= high).unwrap_or(NONE);
        Some(self.range(column, range))
    }

    fn listed(&self, column: usize, list: &[Expr], negated: bool) -> Option<Term> {
        let mut others = Vec::new();
        for element in list {
            let Expr::Constant(value, _) = element else { return None };
            if value.is_null() {
                // IN is now unknown for values outside the list. A term may treat unknown as FALSE, unless
                // the term is negated or must accept NULL.
                if negated || self.nulls {
                    return None;
                }
                continue;
            }
            let term = self.compared(column, Binary::Equal, value)?;
            if term.low < term.high {
                return None;
            }
            others.extend((term.low == term.high).then_some(term.low));
            others.extend(term.others);
        }
        others.sort_unstable();
        others.dedup();
        Some(Term { others, negated, ..self.range(column, NONE) })
    }
}

/// Returns the least text above all texts with this prefix; `None` if there is no such text.
fn successor(prefix: &str) -> Option<String> {
    let mut prefix = prefix.to_owned();
    while let Some(last) = prefix.pop() {
        let next = if last == '\u{D7FF}' { Some('\u{E000}') } else { char::from_u32(last as u32 + 1) };
        if let Some(next) = next {
            prefix.push(next);
            return Some(prefix);
        }
    }
    None
}
