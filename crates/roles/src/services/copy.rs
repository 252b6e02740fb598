//! Copies of the state, on their way out.

use bytes::Bytes;

/// A copy of the state, or the reason why there is none.
pub type Exported = Result<Bytes, String>;

/// A requested copy. It leaves once no change in it can be reverted.
#[derive(Debug)]
pub(super) struct Copying<C> {
    receiver: C,
    /// The copy, and the number of its last change that was not chosen when it was taken.
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

    /// Drops the copy if it holds the change of this number, which is taken back.
    pub(super) fn spoil(&mut self, number: u64) {
        self.taken.take_if(|(_, through)| number <= *through);
    }

    /// Whether the copy holds no revertible change. `unchosen` is the oldest revertible change.
    pub(super) fn is_ready(&self, unchosen: Option<u64>) -> bool {
        let is_chosen = |through: u64| unchosen.is_none_or(|unchosen| unchosen > through);
        self.taken.as_ref().is_some_and(|(_, through)| is_chosen(*through))
    }

    /// Returns the receiver and the copy, which is ready.
    pub(super) fn into_parts(self) -> (C, Exported) {
        let (copy, _) = self.taken.expect("a copy that is ready was taken");
        (self.receiver, copy)
    }
}
