//! Bound queries of the catalog: a tree that `run` and `eval` evaluate.
//!
//! The expressions of the tree are the engine's. A column of such an expression is a [`Leaf`]: a column of a
//! relation, or a value that the engine cannot compute, such as a sub-select or the name of an object id.

use quorate_table::{
    expr::{Binary, Expr},
    operation::Order,
    value::Type,
};

use super::{builtin::Builtin, relations::Relation};
use crate::types::PgType;

/// A bound query with everything that its expressions refer to.
#[derive(Debug)]
pub struct CatalogPlan {
    pub(super) query: QueryPlan,
    /// The columns that the expressions of the query refer to by index. Their number is bounded by the length
    /// of the statement.
    pub(super) leaves: Vec<Leaf>,
}

/// A query, or a sub-select.
#[derive(Debug)]
pub(super) struct QueryPlan {
    pub(super) body: Body,
    /// The order of the rows, over the body's columns. Columns after `visible` exist only to sort by.
    pub(super) order: Vec<Order>,
    pub(super) limit: Option<Expr>,
    pub(super) offset: Option<Expr>,
    pub(super) visible: usize,
    /// Types of the visible columns.
    pub(super) types: Vec<PgType>,
}

#[derive(Debug)]
pub(super) enum Body {
    Select(Box<Select>),
    Union { left: Box<QueryPlan>, right: Box<QueryPlan>, all: bool },
    Values(Vec<Vec<Expr>>),
    Recursion(Box<RecursionPlan>),
}

/// A recursive query of WITH. The rows of `base` are the first working table. Each round evaluates `step` on
/// the working table, and its rows are the next working table. The result has the rows of all rounds.
#[derive(Debug)]
pub(super) struct RecursionPlan {
    pub base: QueryPlan,
    pub step: QueryPlan,
    /// Whether rows that occur several times stay (UNION ALL). Otherwise a row that came before is dropped.
    pub all: bool,
    /// The number by which `step` names the working table.
    pub working_table: usize,
}

#[derive(Debug)]
pub(super) struct Select {
    pub from: Vec<From>,
    /// The conjuncts of WHERE, each with the number of the level's first columns that it needs. `None` means
    /// all columns.
    pub conjuncts: Vec<(Expr, Option<usize>)>,
    /// The grouping keys. An empty list makes one group; `None` makes no groups.
    pub groups: Option<Vec<Expr>>,
    pub having: Option<Expr>,
    pub columns: Vec<Expr>,
    pub distinct: bool,
    /// The windows of `row_number()`.
    pub windows: Vec<Window>,
}

/// The partition and the order in which rows are numbered.
#[derive(Debug)]
pub(super) struct Window {
    pub partition: Vec<Expr>,
    pub order: Vec<(Expr, bool)>,
}

#[derive(Debug)]
pub(super) enum From {
    Relation(&'static Relation),
    /// The working table of a recursion around this select.
    WorkingTable {
        number: usize,
        width: usize,
    },
    Derived {
        plan: Box<QueryPlan>,
        lateral: bool,
    },
    /// Arrays side by side. The first row has the first element of each array, the second row the second
    /// elements, and so on to the end of the longest array.
    Elements(Vec<Expr>),
    Join {
        left: Box<From>,
        right: Box<From>,
        on: Option<Expr>,
        outer: bool,
    },
}

impl From {
    pub(super) fn width(&self) -> usize {
        match self {
            From::Relation(relation) => relation.columns.len(),
            From::WorkingTable { width, .. } => *width,
            From::Derived { plan, .. } => plan.visible,
            From::Elements(arrays) => arrays.len(),
            From::Join { left, right, .. } => left.width() + right.width(),
        }
    }
}

/// A value that an expression of the engine refers to as a column, and that the catalog computes.
#[derive(Debug)]
pub(super) struct Leaf {
    pub node: LeafNode,
    /// The value's type. [`carrier`] returns the type in which the engine gets the value.
    pub ty: PgType,
}

#[derive(Debug)]
pub(super) enum LeafNode {
    /// A column of the select that is `level` levels further out. Level 0 is the leaf's own select.
    Column {
        level: usize,
        index: usize,
    },
    /// `a & b`
    BitAnd(Expr, Expr),
    Match {
        text: Expr,
        pattern: Expr,
        insensitive: bool,
    },
    /// The elements of two arrays, one after the other.
    Joined(Expr, Expr),
    Any {
        left: Expr,
        op: Binary,
        right: Expr,
        all: bool,
        /// The type in which the elements are compared.
        compared: Type,
    },
    Array(Vec<Expr>),
    Element(Expr, Expr),
    /// A field of a record, by its index.
    Field(Expr, usize),
    Cast(Expr, PgType, PgType),
    Call(Builtin, Vec<Expr>),
    Scalar(Box<QueryPlan>),
    Exists(Box<QueryPlan>),
    ArrayOf(Box<QueryPlan>),
    Aggregate(Box<Aggregate>),
    /// The number of the current row in this window of its select.
    Number(usize),
}

/// Returns the type in which the engine carries values of `ty`: a number for an object id, and text for
/// everything that no column of a table can hold.
pub(super) fn carrier(ty: PgType) -> Type {
    match ty {
        PgType::Regproc | PgType::Regprocedure => Type::Text,
        ty if ty.is_oid() => Type::Int8,
        ty => ty.plain(),
    }
}

#[derive(Debug)]
pub(super) struct Aggregate {
    pub function: AggregateFunction,
    pub arguments: Vec<Expr>,
    pub distinct: bool,
    pub order: Vec<(Expr, bool)>,
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

/// Visits the leaves of an expression on its own level, until `test` returns `false`.
pub(super) fn visit(expr: &Expr, leaves: &[Leaf], test: &mut dyn FnMut(&LeafNode) -> bool) -> bool {
    let Expr::Column(index, _) = expr else {
        return expr.children().into_iter().all(|child| visit(child, leaves, test));
    };
    let node = &leaves[*index].node;
    if !test(node) {
        return false;
    }
    let mut all = |list: &[Expr]| list.iter().all(|expr| visit(expr, leaves, test));
    match node {
        LeafNode::Column { .. }
        | LeafNode::Number(_)
        | LeafNode::Scalar(_)
        | LeafNode::Exists(_)
        | LeafNode::ArrayOf(_) => true,
        LeafNode::BitAnd(a, b)
        | LeafNode::Joined(a, b)
        | LeafNode::Element(a, b)
        | LeafNode::Match { text: a, pattern: b, .. }
        | LeafNode::Any { left: a, right: b, .. } => visit(a, leaves, test) && visit(b, leaves, test),
        LeafNode::Field(a, _) | LeafNode::Cast(a, ..) => visit(a, leaves, test),
        LeafNode::Array(list) | LeafNode::Call(_, list) => all(list),
        LeafNode::Aggregate(aggregate) => all(&aggregate.arguments),
    }
}
