//! Copies of a service's state, from the request until they are given to the receiver.

use bytes::Bytes;

/// A copy of the state, or the reason why it could not be made.
pub type Exported = Result<Bytes, String>;

/// A requested copy. The executor gives it to its receiver once none of its changes can be reverted.
#[derive(Debug)]
pub(super) struct Copying<C> {
    receiver: C,
    /// The copy, and the number of the latest change in it that was not chosen when the copy was taken.
    taken: Option<(Exported, u64)>,
}

impl<C> Copying<C> {
    pub(super) fn wanted(receiver: C) -> Copying<C> {
        Copying { receiver, taken: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken.is_none()
    }

    pub(super) fn fill(&mut self, copy: Exported, through: u64) {
        self.taken = Some((copy, through));
    }

    /// Drops the copy if it contains the change `number`, because this change is reverted.
    pub(super) fn spoil(&mut self, number: u64) {
        self.taken.take_if(|(_, through)| number <= *through);
    }

    /// Whether the copy contains no revertible change. `unchosen` is the number of the oldest revertible
    /// change.
    pub(super) fn is_ready(&self, unchosen: Option<u64>) -> bool {
        let is_chosen = |through: u64| unchosen.is_none_or(|unchosen| unchosen > through);
        self.taken.as_ref().is_some_and(|(_, through)| is_chosen(*through))
    }

    /// Returns the receiver and the copy. The copy must be ready.
    pub(super) fn into_parts(self) -> (C, Exported) {
        let (copy, _) = self.taken.expect("a copy that is ready was taken");
        (self.receiver, copy)
    }
}
