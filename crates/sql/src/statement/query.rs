//! Bound queries: the source of the rows, and the gateway's work on them.

use std::sync::Arc;

use quorate_table::{
    expr::{Aggregate, Expr},
    operation::{Order, Select},
};

use super::{encoded_template::EncodedTemplate, field::Field};
use crate::{backend::Table, catalog::CatalogPlan};

/// A bound query.
#[derive(Debug)]
pub struct Query {
    /// The source of the query's rows.
    pub source: Source,
    /// The gateway's work on the rows.
    pub finish: Finish,
    /// The columns of the result.
    pub fields: Vec<Field>,
}

/// The source of rows.
#[derive(Debug)]
pub enum Source {
    /// A table of the cluster.
    Table {
        /// The table that the replicas read.
        table: Arc<Table>,
        /// The replicas' work. Its parameters are open, and an execution sets the limit that is pushed down
        /// to the replicas.
        select: Select,
        /// The encoded select, if an execution only fills its arguments in.
        template: Option<EncodedTemplate>,
        /// The lock of a select that locks its rows.
        lock: Option<RowLock>,
    },
    /// Constants: `VALUES`, or a select without FROM.
    Constants {
        /// The expressions of each row.
        rows: Vec<Vec<Expr>>,
        /// The condition of WHERE.
        filter: Option<Expr>,
    },
    /// A query of the catalog.
    Catalog(Box<CatalogPlan>),
}

/// The lock of a select that locks its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLock {
    /// The verb, such as SELECT FOR UPDATE.
    pub verb: &'static str,
    /// The treatment of rows that another block has locked.
    pub wait: LockWait,
}

/// The treatment of rows that another block has locked, in the order in which it prevails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockWait {
    /// The select waits for the other block, for a while.
    Wait,
    /// The select leaves the rows out: SKIP LOCKED.
    Skip,
    /// The select fails: NOWAIT.
    NoWait,
}

/// The gateway's work on the rows, in this order.
#[derive(Debug, Default)]
pub struct Finish {
    /// Groups to be merged and projected.
    pub groups: Option<MergedGroups>,
    /// Whether equal rows are returned once, as DISTINCT demands. Only visible columns are compared.
    pub distinct: bool,
    /// ORDER BY. A DISTINCT without ORDER BY sorts by all columns, so that equal rows are adjacent.
    pub order: Vec<Order>,
    /// OFFSET, a bigint.
    pub offset: Option<Expr>,
    /// LIMIT, a bigint; NULL is no limit.
    pub limit: Option<Expr>,
    /// Number of columns that the client sees. The columns after them exist only to sort by.
    pub visible: usize,
}

/// The result of merged groups. A merged row has the keys, then the aggregates.
#[derive(Debug)]
pub struct MergedGroups {
    /// The aggregates whose partial states the gateway merges.
    pub aggregates: Vec<Aggregate>,
    /// Number of grouping keys.
    pub keys: usize,
    /// The condition of HAVING.
    pub having: Option<Expr>,
    /// The columns of the result, over a merged row.
    pub columns: Vec<Expr>,
}
