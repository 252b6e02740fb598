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
        /// The table.
        table: Arc<Table>,
        /// The replicas' work. Parameters are open, and an execution sets a pushed-down limit.
        select: Select,
        /// The encoded select, if arguments only fill holes in it.
        template: Option<EncodedTemplate>,
    },
    /// Constants: `VALUES`, or a select without FROM.
    Constants {
        /// The rows.
        rows: Vec<Vec<Expr>>,
        /// WHERE.
        filter: Option<Expr>,
    },
    /// The catalog.
    Catalog(Box<CatalogPlan>),
}

/// The gateway's work on the rows, in this order.
#[derive(Debug, Default)]
pub struct Finish {
    /// Groups to be merged and projected.
    pub groups: Option<MergedGroups>,
    /// DISTINCT over the visible columns.
    pub distinct: bool,
    /// ORDER BY. DISTINCT without it sorts by all columns, so that equal rows are adjacent.
    pub order: Vec<Order>,
    /// OFFSET, a bigint.
    pub offset: Option<Expr>,
    /// LIMIT, a bigint; NULL is no limit.
    pub limit: Option<Expr>,
    /// Number of columns that the client sees. Further columns exist to sort by.
    pub visible: usize,
}

/// The result of merged groups. A merged row has the keys, then the aggregates.
#[derive(Debug)]
pub struct MergedGroups {
    /// The aggregates.
    pub aggregates: Vec<Aggregate>,
    /// Number of keys.
    pub keys: usize,
    /// HAVING.
    pub having: Option<Expr>,
    /// The result's columns.
    pub columns: Vec<Expr>,
}
