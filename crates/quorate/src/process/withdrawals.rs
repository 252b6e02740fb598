//! Withdrawals: tasks of an engine's present batch whose results no caller awaits any longer.
//!
//! The protocol thread adds tasks while the engine's threads check for withdrawals once a block. So a check
//! must cost next to nothing while there are no withdrawals.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// The withdrawn tasks of one batch.
#[derive(Debug, Default)]
pub(crate) struct Withdrawals {
    count: AtomicUsize,
    tasks: Mutex<Vec<usize>>,
}

impl Withdrawals {
    /// Adds a task whose result no caller awaits any longer.
    pub(crate) fn add(&self, task: usize) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.push(task);
        self.count.store(tasks.len(), Ordering::Release);
    }

    /// Returns the withdrawn tasks except the first `seen`, in the order in which they were added.
    pub(crate) fn beyond(&self, seen: usize) -> Vec<usize> {
        if self.count.load(Ordering::Acquire) <= seen {
            return Vec::new();
        }
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)[seen..].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::Withdrawals;

    #[test]
    fn each_withdrawal_is_reported_once_to_a_counting_reader() {
        let withdrawals = Withdrawals::default();
        assert!(withdrawals.beyond(0).is_empty());
        withdrawals.add(7);
        withdrawals.add(3);
        assert_eq!(withdrawals.beyond(0), [7, 3]);
        withdrawals.add(5);
        assert_eq!(withdrawals.beyond(2), [5]);
        assert!(withdrawals.beyond(3).is_empty());
    }
}
