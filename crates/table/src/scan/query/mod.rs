//! The demands of a batch: for each operation a query, the plan that finds its rows, and the rows that it has
//! received.
//!
//! | file | what |
//! |---|---|
//! | `compile` | filters as terms over numbers |
//! | `received`, `shape` | the rows that queries received, and the columns that they want of them |
//! | `scan_query` | a query, and its result |
//! | `span`, `block_set` | the blocks that queries look at |
//! | `costs` | measured costs of the ways to find rows, for the planner |
//! | `group` | queries found by one hash, and the plan that decides between groups and single queries |

mod block_set;
pub(super) mod compile;
pub(super) mod costs;
pub(super) mod group;
pub(super) mod received;
pub(super) mod scan_query;
pub(super) mod shape;
pub(super) mod span;
