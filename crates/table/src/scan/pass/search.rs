//! The search of a batch: its queries and its plan, which all its passes share.

use crate::{
    scan::{
        Columns,
        query::{
            costs::Costs, group::QueryGroup, scan_query::ScanQuery, shape::OutputShapes, span::BlockSpan,
        },
    },
    schema::KeyRange,
};

/// The search of a batch: its queries and its plan, shared by all its passes.
pub(in crate::scan) struct Search<'p, 'a> {
    pub(super) columns: &'p Columns,
    pub(super) queries: &'p [ScanQuery<'a>],
    pub(super) shapes: &'p OutputShapes,
    pub(super) groups: &'p [QueryGroup],
    /// The block spans of the queries that belong to no group, by first block.
    pub(super) block_spans: &'p [BlockSpan],
    pub(super) costs: &'p Costs,
    pub(super) asked: Vec<QueryHeader>,
    pub(super) checks: Vec<Check>,
}

impl<'p, 'a> Search<'p, 'a> {
    pub(in crate::scan) fn new(
        columns: &'p Columns,
        queries: &'p [ScanQuery<'a>],
        shapes: &'p OutputShapes,
        groups: &'p [QueryGroup],
        block_spans: &'p [BlockSpan],
        costs: &'p Costs,
    ) -> Search<'p, 'a> {
        let mut checks = Vec::new();
        let mut asked = Vec::with_capacity(queries.len());
        for query in queries {
            let terms = &query.plan.terms;
            asked.push(QueryHeader {
                first: checks.len() as u32,
                count: terms.len() as u32,
                shape: query.shape.map(|shape| shape as u32),
                filter_left: query.plan.filter_left,
                all_rows: query.ranges == [KeyRange::ALL],
                over: false,
            });
            checks.extend(terms.iter().enumerate().map(|(position, term)| Check {
                low: term.low,
                high: term.high,
                column: term.column as u32,
                term: (!term.is_range()).then_some(position as u32),
            }));
        }
        Search { columns, queries, shapes, groups, block_spans, costs, asked, checks }
    }
}

/// The part of a query that decides whether the query wants a row. A header is small, because a pass reads
/// the headers of all queries side by side.
#[derive(Clone, Copy)]
pub(super) struct QueryHeader {
    /// Index of the query's first check.
    pub(super) first: u32,
    /// Number of the query's checks.
    pub(super) count: u32,
    /// The index of the query's shape, if it returns columns unchanged.
    pub(super) shape: Option<u32>,
    /// Whether the whole filter must be evaluated on rows that pass the terms.
    pub(super) filter_left: bool,
    /// Whether the query looks at all rows.
    pub(super) all_rows: bool,
    /// Whether the query takes no more rows.
    pub(super) over: bool,
}

/// A term of a query in a group.
#[derive(Clone, Copy)]
pub(super) struct Check {
    pub(super) low: u64,
    pub(super) high: u64,
    pub(super) column: u32,
    /// The index of the term in the plan, if the range alone does not express it.
    pub(super) term: Option<u32>,
}
