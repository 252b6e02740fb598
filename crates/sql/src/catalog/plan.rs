//! Bound queries of the catalog: a tree that `run` and `eval` walk.

use quorate_table::{expr::Binary, operation::Order};

use super::{datum::Datum, functions::Builtin, relations::Relation};
use crate::types::PgType;

/// A bound query.
#[derive(Debug)]
pub struct Plan {
    pub(super) body: Body,
    /// Over the body's columns, of which those behind `visible` exist to sort by.
    pub(super) order: Vec<Order>,
    pub(super) limit: Option<Node>,
    pub(super) offset: Option<Node>,
    pub(super) visible: usize,
    /// Types of the visible columns.
    pub(super) types: Vec<PgType>,
}

#[derive(Debug)]
pub(super) enum Body {
    Select(Box<Select>),
    Union { left: Box<Plan>, right: Box<Plan>, all: bool },
    Values(Vec<Vec<Node>>),
}

#[derive(Debug)]
pub(super) struct Select {
    pub from: Vec<From>,
    /// WHERE in its conjuncts, each with how many of the level's columns it needs; `None` for all.
    pub conjuncts: Vec<(Node, Option<usize>)>,
    /// Grouping keys; `Some` of none is one group.
    pub groups: Option<Vec<Node>>,
    pub having: Option<Node>,
    pub columns: Vec<Node>,
    pub distinct: bool,
    /// `row_number()` over partitions, each in an order.
    pub windows: Vec<Window>,
}

/// Rows numbered within their partition.
#[derive(Debug)]
pub(super) struct Window {
    pub partition: Vec<Node>,
    pub order: Vec<(Node, bool)>,
}

#[derive(Debug)]
pub(super) enum From {
    Relation(&'static Relation),
    Derived {
        plan: Box<Plan>,
        lateral: bool,
    },
    /// A row for the first element of every array, one for the second, until the longest ends.
    Elements(Vec<Node>),
    Join {
        left: Box<From>,
        right: Box<From>,
        on: Option<Node>,
        outer: bool,
    },
}

impl From {
    pub(super) fn width(&self) -> usize {
        match self {
            From::Relation(relation) => relation.columns.len(),
            From::Derived { plan, .. } => plan.visible,
            From::Elements(arrays) => arrays.len(),
            From::Join { left, right, .. } => left.width() + right.width(),
        }
    }
}

/// An expression.
#[derive(Debug)]
pub(super) enum Node {
    Constant(Datum),
    Parameter(usize),
    /// A column, so many levels out.
    Column {
        level: usize,
        index: usize,
    },
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Not(Box<Node>),
    IsNull(Box<Node>),
    Binary(Binary, Box<Node>, Box<Node>),
    Distinct(Box<Node>, Box<Node>),
    Negate(Box<Node>),
    /// `a & b`
    BitAnd(Box<Node>, Box<Node>),
    Match {
        text: Box<Node>,
        pattern: Box<Node>,
        insensitive: bool,
    },
    Like {
        text: Box<Node>,
        pattern: Box<Node>,
        escape: Option<char>,
        insensitive: bool,
    },
    In(Box<Node>, Vec<Node>),
    Case {
        subject: Option<Box<Node>>,
        branches: Vec<(Node, Node)>,
        otherwise: Option<Box<Node>>,
    },
    Any {
        left: Box<Node>,
        op: Binary,
        right: Box<Node>,
        all: bool,
    },
    Array(Vec<Node>),
    Element(Box<Node>, Box<Node>),
    /// A field of a record, by its place.
    Field(Box<Node>, usize),
    Cast(Box<Node>, PgType, PgType),
    Call(Builtin, Vec<Node>),
    Scalar(Box<Plan>),
    Exists(Box<Plan>),
    InQuery(Box<Node>, Box<Plan>),
    ArrayOf(Box<Plan>),
    Aggregate(Box<Aggregate>),
    /// The row's number in this window of its select.
    Number(usize),
}

#[derive(Debug)]
pub(super) struct Aggregate {
    pub function: AggregateFunction,
    pub arguments: Vec<Node>,
    pub distinct: bool,
    pub order: Vec<(Node, bool)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AggregateFunction {
    Count,
    Min,
    Max,
    Sum,
    Array,
    String,
    And,
    Or,
}

/// Visits a node and what is in it on its own level, until `test` fails.
pub(super) fn visit(node: &Node, test: &mut dyn FnMut(&Node) -> bool) -> bool {
    if !test(node) {
        return false;
    }
    match node {
        Node::Constant(_) | Node::Parameter(_) | Node::Column { .. } | Node::Number(_) => true,
        Node::And(a, b)
        | Node::Or(a, b)
        | Node::Binary(_, a, b)
        | Node::Distinct(a, b)
        | Node::BitAnd(a, b)
        | Node::Element(a, b) => visit(a, test) && visit(b, test),
        Node::Not(a) | Node::IsNull(a) | Node::Negate(a) | Node::Cast(a, ..) | Node::Field(a, _) => {
            visit(a, test)
        }
        Node::Match { text, pattern, .. } | Node::Like { text, pattern, .. } => {
            visit(text, test) && visit(pattern, test)
        }
        Node::In(a, list) => visit(a, test) && list.iter().all(|node| visit(node, test)),
        Node::Case { subject, branches, otherwise } => {
            subject.as_ref().is_none_or(|node| visit(node, test))
                && branches.iter().all(|(a, b)| visit(a, test) && visit(b, test))
                && otherwise.as_ref().is_none_or(|node| visit(node, test))
        }
        Node::Any { left, right, .. } => visit(left, test) && visit(right, test),
        Node::Array(list) | Node::Call(_, list) => list.iter().all(|node| visit(node, test)),
        Node::InQuery(a, _) => visit(a, test),
        Node::Scalar(_) | Node::Exists(_) | Node::ArrayOf(_) => true,
        Node::Aggregate(aggregate) => aggregate.arguments.iter().all(|node| visit(node, test)),
    }
}
