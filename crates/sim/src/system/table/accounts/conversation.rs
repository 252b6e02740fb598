//! The conversations of a run: transactions whose client tries each statement before it commits.

use std::collections::BTreeMap;

use quorate_history::transactions::RecordedTransaction;
use quorate_protocol::Time;
use quorate_table::operation::{Operation, Step};

use crate::mutation::Mutation;

/// The table that conversations read and write. It has no rows at first. Its rows are called cells in this
/// file; they are not cells of maps.
pub(super) const CELLS: &str = "cells";
/// Number of rows. The number is small, so that conversations use the same rows.
pub(super) const CELLS_MAX: u64 = 10;

/// The conversations of all gateways.
#[derive(Debug, Default)]
pub(super) struct Conversations {
    pub(super) open: BTreeMap<i64, Conversation>,
    pub(super) ended: Vec<RecordedTransaction>,
    /// For a mutation: whether gateways commit without the results that the client received.
    pub(super) is_blind: bool,
}

impl Conversations {
    pub(super) fn new(mutation: Option<Mutation>) -> Conversations {
        Conversations { is_blind: mutation == Some(Mutation::ResultsNotCompared), ..Conversations::default() }
    }
}

/// A conversation under way.
#[derive(Clone, Debug)]
pub(super) struct Conversation {
    pub(super) machine: usize,
    pub(super) life: u64,
    pub(super) start: Time,
    /// The keys of the two rows that the conversation reads.
    pub(super) reads: [i64; 2],
    /// The key of the row that the conversation writes, if any.
    pub(super) writes: Option<i64>,
    /// The steps that were tried so far.
    pub(super) steps: Vec<Step>,
    /// The values that the client has read.
    pub(super) seen: Vec<Option<i64>>,
    /// The statement that is being tried.
    pub(super) trying: Option<Operation>,
    /// Whether the commit was sent.
    pub(super) commits: bool,
}
