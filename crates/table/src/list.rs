//! The alternatives of an `IN`, and the search for a value among them.
//!
//! A list means the same as in SQL: alternatives are compared from left to right until one is equal, and a
//! comparison with NULL leaves the answer unknown. A long list of constants is sorted at its first use, so
//! that a row costs a binary search and not a comparison with each constant. The order is that of
//! [`Value::order`]: numbers are equal by value, the zeros are equal, and NaN equals itself.

use std::{ops::Deref, sync::OnceLock};

use crate::{
    expr::{Expr, Sorted, SortedMembers},
    failure::Failure,
    operator::Binary,
    value::Value,
};

pub use crate::expr::List;

/// Minimum number of constants for which a list is sorted. The constants of a shorter list are compared one
/// by one.
const PREPARED_MIN: usize = 8;

impl List {
    /// Returns the items, to be changed in place.
    pub fn items_mut(&mut self) -> &mut Vec<Expr> {
        self.members.take();
        &mut self.items
    }

    /// Returns the sorted constants, which it sorts at the first use; `None` if each item is compared.
    pub(crate) fn members(&self) -> Option<&SortedMembers> {
        self.members.get_or_init(|| SortedMembers::new(&self.items)).as_ref()
    }
}

impl SortedMembers {
    fn new(items: &[Expr]) -> Option<SortedMembers> {
        if items.len() < PREPARED_MIN {
            return None;
        }
        let mut values = Vec::with_capacity(items.len());
        for item in items {
            match item {
                Expr::Constant(Value::Null, _) => {}
                Expr::Constant(value, _) => values.push(value),
                _ => return None,
            }
        }
        let first = *values.first()?;
        if !values.iter().all(|value| value.compares_with(first)) {
            return None;
        }
        let unknown = values.len() < items.len();
        let integers: Option<Vec<i64>> = values.iter().map(|value| value.as_integer()).collect();
        let sorted = match integers {
            Some(mut integers) => {
                integers.sort_unstable();
                Sorted::Integers(integers)
            }
            None => {
                values.sort_by(|a, b| a.order(b));
                Sorted::Values(values.into_iter().cloned().collect())
            }
        };
        Some(SortedMembers { sorted, unknown })
    }

    pub(crate) fn contains(&self, probe: &Value) -> Result<Value, Failure> {
        if probe.is_null() {
            return Ok(Value::Null);
        }
        let comparable = match &self.sorted {
            Sorted::Integers(_) => probe.compares_with(&Value::Int8(0)),
            Sorted::Values(values) => probe.compares_with(&values[0]),
        };
        if !comparable {
            return Err(Failure::malformed("a comparison gets values of different types"));
        }
        let found = match (&self.sorted, probe.as_integer()) {
            (Sorted::Integers(integers), Some(integer)) => integers.binary_search(&integer),
            (Sorted::Integers(integers), None) => {
                integers.binary_search_by(|integer| Value::Int8(*integer).order(probe))
            }
            (Sorted::Values(values), _) => values.binary_search_by(|value| value.order(probe)),
        };
        Ok(match found {
            Ok(_) => Value::Bool(true),
            Err(_) if self.unknown => Value::Null,
            Err(_) => Value::Bool(false),
        })
    }
}

impl From<Vec<Expr>> for List {
    fn from(items: Vec<Expr>) -> List {
        List { items, members: OnceLock::new() }
    }
}

impl FromIterator<Expr> for List {
    fn from_iter<I: IntoIterator<Item = Expr>>(items: I) -> List {
        Vec::from_iter(items).into()
    }
}

impl Deref for List {
    type Target = [Expr];

    fn deref(&self) -> &[Expr] {
        &self.items
    }
}

/// Compares the items only.
impl PartialEq for List {
    fn eq(&self, other: &List) -> bool {
        self.items == other.items
    }
}

impl Expr {
    /// Replaces an OR by one `IN` if both sides compare the same operand for equality with constants or
    /// lists. The meaning is the same: a list is also searched from left to right, and the operand has one
    /// value.
    pub fn join_alternatives(&mut self) {
        let Expr::Binary(Binary::Or, left, right) = self else { return };
        if !matches!((subject(left), subject(right)), (Some(left), Some(right)) if left == right) {
            return;
        }
        let (probe, mut list) = alternatives(std::mem::replace(&mut **left, placeholder()));
        let (_, more) = alternatives(std::mem::replace(&mut **right, placeholder()));
        list.items_mut().extend(more.items);
        *self = Expr::In(probe, list);
    }
}

fn placeholder() -> Expr {
    Expr::any(Vec::new())
}

/// Returns the operand of a comparison with alternatives.
fn subject(expr: &Expr) -> Option<&Expr> {
    let constant = |expr: &Expr| matches!(expr, Expr::Constant(..));
    let probe = match expr {
        Expr::In(probe, _) => probe,
        Expr::Binary(Binary::Equal, probe, value) if constant(value) => probe,
        Expr::Binary(Binary::Equal, value, probe) if constant(value) => probe,
        _ => return None,
    };
    (!constant(probe)).then_some(&**probe)
}

/// Splits a comparison with alternatives into its operand and its list.
fn alternatives(expr: Expr) -> (Box<Expr>, List) {
    match expr {
        Expr::In(probe, list) => (probe, list),
        Expr::Binary(_, probe, value) if matches!(*value, Expr::Constant(..)) => (probe, vec![*value].into()),
        Expr::Binary(_, value, probe) => (probe, vec![*value].into()),
        _ => unreachable!("the expression has a subject"),
    }
}
