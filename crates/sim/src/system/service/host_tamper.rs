//! The rules that a mutated host breaks: between its orders and its executor, or between its executor and the
//! store.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_protocol::service::{Command, Event, TransactionId};

use super::store::{StoreState, StoreUndo};
use crate::mutation::Mutation;

/// The mutated part of a host.
#[derive(Default)]
pub(crate) struct HostTamper {
    mutation: Option<Mutation>,
    /// Executed calls and their results, which the adapter of the replica has not seen.
    pub(super) executed: Vec<(u64, Command)>,
    /// The reason for which the executor reverts changes in the present step.
    reverting: Reverting,
    /// Changes that the host undid when their reign ended, for a replica that forwards them.
    pub(super) reverted: Vec<(u64, Bytes)>,
    /// Changes that replicas computed in other reigns and forwarded, by call.
    pub(super) forwarded: BTreeMap<u64, Bytes>,
    /// Changes of aborted transactions that are undone only after the next checkpoint, the latest first.
    held: Vec<StoreUndo>,
    /// The first work of each open transaction that may have changed something.
    open: BTreeMap<TransactionId, u64>,
    /// Commits that are not chosen, each with the first work of its transaction.
    commits: BTreeMap<u64, u64>,
}

/// The reason for which the executor reverts changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reverting {
    /// The executor reverts nothing, or it reverts a change because the state would exceed its bound.
    #[default]
    Other,
    Abort,
    Reign,
}

impl HostTamper {
    pub(super) fn new(mutation: Option<Mutation>) -> HostTamper {
        HostTamper { mutation, ..HostTamper::default() }
    }

    /// Notes the result of the call that was executed last.
    pub(super) fn note(&mut self, call: u64, result: &Command) {
        if self.mutation.is_some() && matches!(result, Command::Executed { .. }) {
            self.executed.push((call, result.clone()));
        }
    }

    /// Whether changes wait that should be undone.
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether a backup draws new random numbers when it applies a change.
    pub(super) fn draws_again(&self) -> bool {
        self.mutation == Some(Mutation::ExecutedByBackups)
    }

    /// Prepares for an order, and returns the order that the executor receives instead.
    pub(super) fn before(&mut self, order: Event, store: &mut StoreState) -> Event {
        if !matches!(order, Event::Abort { .. } | Event::Chosen { .. } | Event::Checkpoint { .. }) {
            self.release(store);
        }
        self.reverting = match order {
            Event::Abort { .. } => Reverting::Abort,
            Event::Revert => Reverting::Reign,
            _ => Reverting::Other,
        };
        if self.mutation == Some(Mutation::UndoKeptBehindCommit) {
            return self.kept_behind_commit(order);
        }
        order
    }

    /// Notes that an order was carried out.
    pub(super) fn after(&mut self, was_checkpoint: bool, store: &mut StoreState) {
        self.reverting = Reverting::Other;
        if was_checkpoint {
            self.release(store);
        }
    }

    /// Undoes the changes of aborted transactions.
    pub(super) fn release(&mut self, store: &mut StoreState) {
        for undo in self.held.drain(..) {
            store.revert(&undo);
        }
    }

    /// Decides whether the store reverts a change that the executor undoes. Returns the change if the store
    /// reverts it now.
    pub(super) fn reverts(&mut self, store: &StoreState, undo: StoreUndo) -> Option<StoreUndo> {
        match (self.mutation, self.reverting) {
            (Some(Mutation::AbortUnreverted), Reverting::Abort)
            | (Some(Mutation::LeftUnreverted), Reverting::Reign) => return None,
            (Some(Mutation::CheckpointUncommitted), Reverting::Abort) => {
                self.held.push(undo);
                return None;
            }
            (Some(Mutation::ForwardedDelta), Reverting::Reign) => {
                self.reverted.extend(store.change(&undo).map(|change| (undo.call, change)));
            }
            _ => {}
        }
        Some(undo)
    }

    /// Makes the executor keep the undo of chosen changes that follow a commit which is not chosen. For that,
    /// the order *chosen* names no work after the first work of that commit's transaction.
    fn kept_behind_commit(&mut self, order: Event) -> Event {
        match order {
            Event::Execute { work, transaction: Some(transaction), read: false, .. } => {
                self.open.entry(transaction).or_insert(work);
            }
            Event::Commit { work, transaction } => {
                if let Some(first) = self.open.remove(&transaction) {
                    self.commits.insert(work, first);
                }
            }
            Event::Abort { transaction } => {
                self.open.remove(&transaction);
            }
            Event::Revert => {
                self.open.clear();
                self.commits.clear();
            }
            Event::Chosen { work } => {
                self.commits = self.commits.split_off(&(work + 1));
                let first = self.commits.values().min();
                return Event::Chosen { work: first.map_or(work, |first| work.min(first - 1)) };
            }
            _ => {}
        }
        order
    }
}
