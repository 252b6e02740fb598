//! The changes that are not chosen, each with the data that reverts it.
//!
//! The list keeps the order of execution, because reverts go backwards, and because copies of the state rely
//! on this order. Each change belongs to a work. When a work is *chosen*, the changes of this work and of all
//! earlier works leave the list, except for changes of open transactions. A commit becomes the work of all
//! changes of its transaction, and these changes stay in their places. So after a commit the numbers of works
//! no longer rise along the list, and a change that is chosen may come after a change that is not.

use std::{collections::VecDeque, mem};

use quorate_protocol::service::TransactionId;

/// The changes that are not chosen, oldest first.
#[derive(Debug)]
pub(super) struct UndoList<T> {
    entries: VecDeque<Unchosen<T>>,
    /// Number of changes that were ever added to the list.
    added: u64,
    /// Whether requests may complete in an order other than their order of arrival.
    any_order: bool,
    /// Number of entries that belong to open transactions.
    uncommitted: usize,
    /// Whether the numbers of works rise along the list.
    is_sorted: bool,
}

/// A change that is not chosen.
#[derive(Debug)]
pub(super) struct Unchosen<T> {
    /// The change's number, which rises with each change that is added.
    pub(super) number: u64,
    work: u64,
    /// The open transaction to which the change belongs; `None` after its commit.
    transaction: Option<TransactionId>,
    pub(super) undo: T,
}

impl<T> UndoList<T> {
    pub(super) fn new(any_order: bool) -> UndoList<T> {
        UndoList { entries: VecDeque::new(), added: 0, any_order, uncommitted: 0, is_sorted: true }
    }

    /// Whether each write has an entry, even a write without a change. Then the entries show the order of
    /// completion.
    pub(super) fn lists_all_writes(&self) -> bool {
        self.any_order
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether changes of open transactions are in the list.
    pub(super) fn has_uncommitted(&self) -> bool {
        self.uncommitted > 0
    }

    /// Returns the number of the oldest change.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.entries.front().map(|it| it.number)
    }

    /// Returns the number of the latest change.
    pub(super) fn latest(&self) -> Option<u64> {
        self.entries.back().map(|it| it.number)
    }

    /// Adds the change that was executed last.
    pub(super) fn push(&mut self, work: u64, transaction: Option<TransactionId>, undo: T) {
        self.added += 1;
        self.uncommitted += usize::from(transaction.is_some());
        self.entries.push_back(Unchosen { number: self.added, work, transaction, undo });
    }

    /// Removes changes that will not be reverted: the changes of this work and of earlier works, except for
    /// changes of open transactions. If requests complete in any order, earlier works are the works that
    /// completed before this work.
    pub(super) fn chosen(&mut self, work: u64) {
        if self.any_order {
            while let Some(it) = self.entries.pop_front()
                && it.work != work
            {}
            return;
        }
        let is_chosen = |it: &mut Unchosen<T>| it.transaction.is_none() && it.work <= work;
        if self.uncommitted == 0 && self.is_sorted {
            while self.entries.pop_front_if(is_chosen).is_some() {}
        } else {
            self.entries.retain_mut(|it| !is_chosen(it));
            self.is_sorted = self.entries.iter().is_sorted_by_key(|it| it.work);
        }
    }

    /// Gives the transaction's changes to the work of its commit. From then on the changes belong to no open
    /// transaction.
    pub(super) fn commit(&mut self, work: u64, transaction: TransactionId) {
        for it in self.entries.iter_mut().filter(|it| it.transaction == Some(transaction)) {
            (it.work, it.transaction) = (work, None);
            self.uncommitted -= 1;
            self.is_sorted = false;
        }
    }

    /// Removes the changes of an open transaction, and returns them, latest first.
    pub(super) fn abort(&mut self, transaction: TransactionId) -> impl Iterator<Item = Unchosen<T>> + use<T> {
        let all = mem::take(&mut self.entries).into_iter();
        let (gone, kept) = all.partition::<VecDeque<_>, _>(|it| it.transaction == Some(transaction));
        self.entries = kept;
        self.uncommitted -= gone.len();
        gone.into_iter().rev()
    }

    /// Removes the latest change, and returns it.
    pub(super) fn pop(&mut self) -> Option<Unchosen<T>> {
        let it = self.entries.pop_back()?;
        self.uncommitted -= usize::from(it.transaction.is_some());
        Some(it)
    }
}
