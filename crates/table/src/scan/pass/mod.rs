//! One pass over the blocks for all queries of a batch.
//!
//! A pass uses the files in this order:
//!
//! | file | what |
//! |---|---|
//! | `search` | the queries and the plan of a batch, which all its passes share |
//! | `segment`, `early_ends` | the parts of a table that several threads look at in parallel |
//! | `walk` | the pass itself: one walk over the blocks of a segment |
//! | `prefetch`, `points` | prefetching: of the next blocks, and of single keys |
//! | `find`, `marks` | the rows of one block that one query wants; rows of a block as bits |
//! | `results` | the rows that queries receive, gathered by column |

mod early_ends;
pub(super) mod find;
mod marks;
mod points;
mod prefetch;
mod results;
pub(super) mod search;
mod segment;
mod walk;
