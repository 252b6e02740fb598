//! The log of the clients' calls that have no answer. The workload compares answers with it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quorate_protocol::CommandId;

use super::store::Request;
use crate::check::service::{ClientTransaction, PendingCall};

/// The calls that have no answer.
#[derive(Debug, Default)]
pub(super) struct RequestLog {
    pub(super) made: u64,
    pub(super) commands: u64,
    pub(super) under_way: BTreeMap<CommandId, (usize, PendingCall)>,
    /// The writes that have a key, among all calls that clients made.
    pub(super) keyed: BTreeSet<u64>,
    /// Calls with keys and an unknown outcome, which another client repeats.
    pub(super) orphans: Vec<PendingCall>,
    /// Calls whose outcome was unknown once.
    pub(super) maybe: BTreeSet<u64>,
    /// Open transactions, by the open command of each.
    pub(super) open_transactions: BTreeMap<CommandId, OpenTransaction>,
    pub(super) transactions: u64,
}

/// A transaction of a client.
#[derive(Debug)]
pub(super) struct OpenTransaction {
    pub(super) machine: usize,
    pub(super) transaction: u64,
    pub(super) deal: ClientTransaction,
    /// The open request; `None` at the commit.
    pub(super) now: Option<Request>,
    /// The later requests.
    pub(super) later: VecDeque<Request>,
    /// Whether the client abandons the transaction at the end.
    pub(super) abandons: bool,
}

impl RequestLog {
    pub(super) fn under_way(&self) -> usize {
        self.under_way.len() + self.open_transactions.len() + self.orphans.len()
    }

    pub(super) fn of(&self, machine: usize) -> usize {
        self.under_way.values().filter(|(at, _)| *at == machine).count()
            + self
                .open_transactions
                .values()
                .filter(|open_transaction| open_transaction.machine == machine)
                .count()
    }

    pub(super) fn command(&mut self) -> CommandId {
        self.commands += 1;
        CommandId(self.commands)
    }

    pub(super) fn begin(&mut self, machine: usize, asked: PendingCall) -> CommandId {
        let command = self.command();
        self.under_way.insert(command, (machine, asked));
        command
    }
}
