//! The alternatives of an `IN`, and how a value is found among them.
//!
//! A list means what SQL says: the alternatives are compared from left to right until one is equal, and a comparison with
//! NULL leaves the answer unknown. A long list of constants is put in order when it is first asked, so that a row costs a
//! search by halving and not a comparison with each. The order is the one of [`Value::order`], so numbers are equal by
//! value, zeros are one and NaN is itself.

use std::{ops::Deref, sync::OnceLock};

use serde::{Deserialize, Serialize};

use crate::{
    eval::{binary, evaluate},
    expr::{Binary, Expr},
    failure::Failure,
    value::Value,
};

/// Fewer constants are compared one by one.
const PREPARED_MIN: usize = 8;

/// What an `IN` compares with.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct List {
    items: Vec<Expr>,
    /// The constants in order, once somebody asked; none if the items are few, or not all constants of one kind.
    #[serde(skip)]
    members: OnceLock<Option<Members>>,
}

/// Constants that compare with each other, in order.
#[derive(Clone, Debug)]
struct Members {
    sorted: Sorted,
    /// Whether NULL was among them.
    unknown: bool,
}

#[derive(Clone, Debug)]
enum Sorted {
    Integers(Vec<i64>),
    /// At least one.
    Values(Vec<Value>),
}

impl List {
    /// The items, to be changed.
    pub fn items_mut(&mut self) -> &mut Vec<Expr> {
        self.members.take();
        &mut self.items
    }

    /// Whether a value is in it: TRUE, FALSE or NULL.
    pub(crate) fn contains(&self, probe: &Value, row: &[Value]) -> Result<Value, Failure> {
        if let Some(members) = self.members.get_or_init(|| Members::new(&self.items)) {
            return members.contains(probe);
        }
        let mut unknown = false;
        for item in &self.items {
            match binary(Binary::Equal, probe, &*evaluate(item, row)?)? {
                Value::Bool(true) => return Ok(Value::Bool(true)),
                Value::Null => unknown = true,
                _ => {}
            }
        }
        Ok(if unknown { Value::Null } else { Value::Bool(false) })
    }
}

impl Members {
    fn new(items: &[Expr]) -> Option<Members> {
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
        Some(Members { sorted, unknown })
    }

    fn contains(&self, probe: &Value) -> Result<Value, Failure> {
        if probe.is_null() {
            return Ok(Value::Null);
        }
        let comparable = match &self.sorted {
            Sorted::Integers(_) => probe.compares_with(&Value::Int8(0)),
            Sorted::Values(values) => probe.compares_with(&values[0]),
        };
        if !comparable {
            return Err(Failure::malformed("a comparison between different types"));
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

/// By the items alone.
impl PartialEq for List {
    fn eq(&self, other: &List) -> bool {
        self.items == other.items
    }
}

impl Expr {
    /// Makes one `IN` of an OR both sides of which ask whether the same operand equals a constant, or is in a list. It
    /// means the same: a list is looked through from left to right as well, and the operand has one value.
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

/// What a question about alternatives is about.
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

/// The parts of such a question.
fn alternatives(expr: Expr) -> (Box<Expr>, List) {
    match expr {
        Expr::In(probe, list) => (probe, list),
        Expr::Binary(_, probe, value) if matches!(*value, Expr::Constant(..)) => (probe, vec![*value].into()),
        Expr::Binary(_, value, probe) => (probe, vec![*value].into()),
        _ => unreachable!("it has a subject"),
    }
}
