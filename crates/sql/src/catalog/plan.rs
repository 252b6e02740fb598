//! Bound queries of the catalog: a tree that `run` and `eval` evaluate.

use quorate_table::{expr::Binary, operation::Order};

use super::{builtin::Builtin, datum::Datum, relations::Relation};
use crate::types::PgType;

/// A bound query.
#[derive(Debug)]
pub struct CatalogPlan {
    pub(super) body: Body,
    /// The order of the rows, over the body's columns. Columns after `visible` exist only to sort by.
    pub(super) order: Vec<Order>,
    pub(super) limit: Option<PlanNode>,
    pub(super) offset: Option<PlanNode>,
    pub(super) visible: usize,
    /// Types of the visible columns.
    pub(super) types: Vec<PgType>,
}

#[derive(Debug)]
pub(super) enum Body {
    Select(Box<Select>),
    Union { left: Box<CatalogPlan>, right: Box<CatalogPlan>, all: bool },
    Values(Vec<Vec<PlanNode>>),
}

#[derive(Debug)]
pub(super) struct Select {
    pub from: Vec<From>,
    /// The conjuncts of WHERE, each with the number of the level's first columns that it needs. `None` means
    /// all columns.
    pub conjuncts: Vec<(PlanNode, Option<usize>)>,
    /// The grouping keys. An empty list makes one group; `None` makes no groups.
    pub groups: Option<Vec<PlanNode>>,
    pub having: Option<PlanNode>,
    pub columns: Vec<PlanNode>,
    pub distinct: bool,
    /// The windows of `row_number()`.
    pub windows: Vec<Window>,
}

/// The partition and the order in which rows are numbered.
#[derive(Debug)]
pub(super) struct Window {
    pub partition: Vec<PlanNode>,
    pub order: Vec<(PlanNode, bool)>,
}

#[derive(Debug)]
pub(super) enum From {
    Relation(&'static Relation),
    Derived {
        plan: Box<CatalogPlan>,
        lateral: bool,
    },
    /// Arrays side by side: a row for their first elements, a row for the second ones, up to the end of the
    /// longest.
    Elements(Vec<PlanNode>),
    Join {
        left: Box<From>,
        right: Box<From>,
        on: Option<PlanNode>,
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
pub(super) enum PlanNode {
    Constant(Datum),
    Parameter(usize),
    /// A column of the select that is this many levels further out.
    Column {
        level: usize,
        index: usize,
    },
    And(Box<PlanNode>, Box<PlanNode>),
    Or(Box<PlanNode>, Box<PlanNode>),
    Not(Box<PlanNode>),
    IsNull(Box<PlanNode>),
    Binary(Binary, Box<PlanNode>, Box<PlanNode>),
    Distinct(Box<PlanNode>, Box<PlanNode>),
    Negate(Box<PlanNode>),
    /// `a & b`
    BitAnd(Box<PlanNode>, Box<PlanNode>),
    Match {
        text: Box<PlanNode>,
        pattern: Box<PlanNode>,
        insensitive: bool,
    },
    Like {
        text: Box<PlanNode>,
        pattern: Box<PlanNode>,
        escape: Option<char>,
        insensitive: bool,
    },
    In(Box<PlanNode>, Vec<PlanNode>),
    Case {
        subject: Option<Box<PlanNode>>,
        branches: Vec<(PlanNode, PlanNode)>,
        otherwise: Option<Box<PlanNode>>,
    },
    Any {
        left: Box<PlanNode>,
        op: Binary,
        right: Box<PlanNode>,
        all: bool,
    },
    Array(Vec<PlanNode>),
    Element(Box<PlanNode>, Box<PlanNode>),
    /// A field of a record, by its index.
    Field(Box<PlanNode>, usize),
    Cast(Box<PlanNode>, PgType, PgType),
    Call(Builtin, Vec<PlanNode>),
    Scalar(Box<CatalogPlan>),
    Exists(Box<CatalogPlan>),
    InQuery(Box<PlanNode>, Box<CatalogPlan>),
    ArrayOf(Box<CatalogPlan>),
    Aggregate(Box<Aggregate>),
    /// The row's number in this window of its select.
    Number(usize),
}

#[derive(Debug)]
pub(super) struct Aggregate {
    pub function: AggregateFunction,
    pub arguments: Vec<PlanNode>,
    pub distinct: bool,
    pub order: Vec<(PlanNode, bool)>,
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

/// Visits a node and the nodes in it on its own level, until `test` returns `false`.
pub(super) fn visit(node: &PlanNode, test: &mut dyn FnMut(&PlanNode) -> bool) -> bool {
    if !test(node) {
        return false;
    }
    match node {
        PlanNode::Constant(_) | PlanNode::Parameter(_) | PlanNode::Column { .. } | PlanNode::Number(_) => {
            true
        }
        PlanNode::And(a, b)
        | PlanNode::Or(a, b)
        | PlanNode::Binary(_, a, b)
        | PlanNode::Distinct(a, b)
        | PlanNode::BitAnd(a, b)
        | PlanNode::Element(a, b) => visit(a, test) && visit(b, test),
        PlanNode::Not(a)
        | PlanNode::IsNull(a)
        | PlanNode::Negate(a)
        | PlanNode::Cast(a, ..)
        | PlanNode::Field(a, _) => visit(a, test),
        PlanNode::Match { text, pattern, .. } | PlanNode::Like { text, pattern, .. } => {
            visit(text, test) && visit(pattern, test)
        }
        PlanNode::In(a, list) => visit(a, test) && list.iter().all(|node| visit(node, test)),
        PlanNode::Case { subject, branches, otherwise } => {
            subject.as_ref().is_none_or(|node| visit(node, test))
                && branches.iter().all(|(a, b)| visit(a, test) && visit(b, test))
                && otherwise.as_ref().is_none_or(|node| visit(node, test))
        }
        PlanNode::Any { left, right, .. } => visit(left, test) && visit(right, test),
        PlanNode::Array(list) | PlanNode::Call(_, list) => list.iter().all(|node| visit(node, test)),
        PlanNode::InQuery(a, _) => visit(a, test),
        PlanNode::Scalar(_) | PlanNode::Exists(_) | PlanNode::ArrayOf(_) => true,
        PlanNode::Aggregate(aggregate) => aggregate.arguments.iter().all(|node| visit(node, test)),
    }
}
