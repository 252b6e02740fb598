//! The records of a service's replica about its object: works, undo, commits, reverts, checkpoints and
//! copies.
//!
//! The state of the object is always the chosen changes, followed by the changes in the undo list. The orders
//! that the driver passes are carried out in the same order, and each order that has an answer is answered
//! before the next order is carried out.

use std::mem;

use bytes::{Bytes, BytesMut};
use quorate_protocol::service::{self, Command, Event, TransactionId};

use super::{
    copy::{Copying, Exported},
    object::{Execution, ITEM_BYTES_MAX, Object, Refused},
    restoring::{Restoring, StatePart},
    state_bytes::{join_state, split_state},
    undo::{Unchosen, UndoList},
};

/// The reason why a replica ends.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken(pub String);

/// A request that is being executed (a work).
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The replica's number of the work.
    pub number: u64,
    /// The transaction to which a change belongs.
    pub transaction: Option<TransactionId>,
    /// Whether the request was sent as a read.
    pub read: bool,
}

/// The data that is needed to execute a service, to revert its changes and to copy its state. A `U` reverts a
/// change of the object, and a `C` receives a copy of the state.
#[derive(Debug)]
pub struct Executor<U, C> {
    undo: UndoList<Undo<U>>,
    /// Whether the log carries whole states instead of changes.
    whole_states: bool,
    /// The part of a checkpoint that is still to be sent.
    checkpoint: Bytes,
    /// The part of another replica's checkpoint that was received so far.
    coming: BytesMut,
    /// Copies of the state that were requested and not given yet.
    copies: Vec<Copying<C>>,
    /// The restoration of an earlier set's state, with which this set begins.
    restoring: Restoring,
    /// Number of changes in the state.
    changes: u64,
    /// Number of checkpoints of other replicas that replaced the state.
    restored: u64,
}

/// The data that reverts an executed request, or a part of an earlier set's state.
#[derive(Debug)]
enum Undo<U> {
    /// A change of the object.
    Change(U),
    /// A part of an earlier set's state. The number counts the bytes before this part.
    Part(usize),
    /// A request without a change.
    Nothing,
}

impl<U, C> Executor<U, C> {
    /// Makes an executor of an object in its first state.
    pub fn new(restoring: Restoring, whole_states: bool, any_order: bool) -> Executor<U, C> {
        Executor {
            undo: UndoList::new(any_order),
            whole_states,
            checkpoint: Bytes::new(),
            coming: BytesMut::new(),
            copies: Vec::new(),
            restoring,
            changes: 0,
            restored: 0,
        }
    }

    /// Returns the number of changes in the state.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the number of checkpoints of other replicas that replaced the state.
    pub fn restored(&self) -> u64 {
        self.restored
    }

    /// Whether every change in the object's state is chosen, so that none may be reverted.
    pub fn is_chosen(&self) -> bool {
        self.undo.is_empty()
    }

    /// Whether parts of the state of an earlier set are missing. As long as they are missing, no request
    /// reaches the object.
    pub fn is_restoring(&self) -> bool {
        self.restoring.is_under_way()
    }

    /// Carries out an order of the replica. Calls `put` with the answer, if the order has one.
    pub fn perform(
        &mut self,
        object: &mut impl Object<Undo = U>,
        order: Event,
        put: &mut dyn FnMut(Command),
    ) -> Result<(), Broken> {
        match order {
            Event::Rest { .. } => unreachable!("only services that complete in any order rest: see Tasks"),
            Event::Execute { work, request, read, transaction } => {
                let found = match self.restoring.answer(&request) {
                    Ok(None) => {
                        let execution = object.execute(&request, read);
                        return self.complete(
                            object,
                            Work { number: work, transaction, read },
                            execution,
                            put,
                        );
                    }
                    Ok(Some(change)) => self.begin_with(object, work, change),
                    Err(refused) => Err(refused),
                };
                report(work, found, put)?;
            }
            Event::Chosen { work } => self.undo.chosen(work),
            Event::Commit { work, transaction } => {
                self.undo.commit(work, transaction);
                let result = service::Executed::Unchanged { reply: Bytes::new() };
                put(Command::Executed { work, result });
            }
            Event::Abort { transaction } => {
                self.undo.abort(transaction).try_for_each(|it| self.take_back(object, it))?;
            }
            Event::Revert => {
                while let Some(it) = self.undo.pop() {
                    self.take_back(object, it)?;
                }
            }
            Event::Apply { through, changes } => self.apply(object, through, &changes)?,
            Event::Checkpoint { .. } => {
                assert!(self.undo.is_empty(), "a checkpoint holds what is chosen");
                self.checkpoint = self.state(object, 0).map_err(Broken)?;
            }
            Event::CheckpointPartWanted { checkpoint, bytes } => {
                let bytes = self.checkpoint.split_to(bytes.min(self.checkpoint.len()));
                let last = self.checkpoint.is_empty();
                put(Command::CheckpointPart { checkpoint, bytes, last });
            }
            Event::CheckpointUnwanted => self.checkpoint.clear(),
            Event::RestorePart { first, bytes } => {
                if first {
                    self.coming.clear();
                }
                self.coming.extend_from_slice(&bytes);
            }
            Event::Restore { through } => self.restore(object, through)?,
            // The host handles these events.
            Event::Leader(_)
            | Event::Serving
            | Event::Members(_)
            | Event::Removed
            | Event::ChangeRefused { .. }
            | Event::Corrupt(_)
            | Event::Resigned => {}
        }
        Ok(())
    }

    /// Completes a work with the result of its request. The object has already applied the change in this
    /// result.
    pub fn complete(
        &mut self,
        object: &mut impl Object<Undo = U>,
        work: Work,
        found: Result<Execution<U>, Refused>,
        put: &mut dyn FnMut(Command),
    ) -> Result<(), Broken> {
        let found = found.and_then(|execution| self.keep(object, work, execution));
        report(work.number, found, put)
    }

    /// Keeps the data that reverts a work, and returns the work's result.
    fn keep(
        &mut self,
        object: &mut impl Object<Undo = U>,
        Work { number, transaction, read }: Work,
        Execution { reply, change }: Execution<U>,
    ) -> Result<service::Executed, Refused> {
        let Some((change, undo)) = change else {
            if self.undo.lists_all_writes() && !read {
                self.undo.push(number, transaction, Undo::Nothing);
            }
            return Ok(service::Executed::Unchanged { reply });
        };
        let change = match self.whole_states {
            false => change,
            true => match self.state(object, 1) {
                Ok(state) if state.len() <= ITEM_BYTES_MAX => state,
                taken => {
                    object.revert(undo).map_err(Refused::Torn)?;
                    return Err(Refused::Whole(match taken {
                        Ok(state) => format!(
                            "the state has {} bytes, and at most {ITEM_BYTES_MAX} are allowed",
                            state.len()
                        ),
                        Err(why) => why,
                    }));
                }
            },
        };
        self.undo.push(number, transaction, Undo::Change(undo));
        self.changes += 1;
        Ok(service::Executed::Changed { reply, change })
    }

    fn take_back(
        &mut self,
        object: &mut impl Object<Undo = U>,
        Unchosen { number, undo, .. }: Unchosen<Undo<U>>,
    ) -> Result<(), Broken> {
        for copy in &mut self.copies {
            copy.spoil(number);
        }
        match undo {
            Undo::Nothing => return Ok(()),
            Undo::Change(undo) => object.revert(undo).map_err(Broken)?,
            Undo::Part(before) if self.restoring.take_back(before) => {}
            Undo::Part(_) => {
                return Err(Broken(String::from("the restored state of the service was not agreed on")));
            }
        }
        self.changes -= 1;
        Ok(())
    }

    fn apply(
        &mut self,
        object: &mut impl Object<Undo = U>,
        through: u64,
        changes: &[Bytes],
    ) -> Result<(), Broken> {
        assert!(self.undo.is_empty(), "a backup has nothing that is not chosen");
        for change in changes {
            let applied = if self.whole_states {
                self.take_over(object, change)
            } else if StatePart::is(change) {
                self.take_part(object, change)
            } else {
                object.apply(change).map(|()| self.changes += 1)
            };
            applied.map_err(|why| {
                Broken(format!(
                    "a change up to instance {through} of the service's log cannot be applied: {why}"
                ))
            })?;
        }
        Ok(())
    }

    /// Returns the bytes of the state. `more` is added to its number of changes.
    fn state(&self, object: &mut impl Object<Undo = U>, more: u64) -> Result<Bytes, String> {
        if self.restoring.is_under_way() {
            return Ok(self.restoring.checkpoint());
        }
        let state = object.state()?;
        Ok(join_state(object.clock(), self.changes + more, &state))
    }

    /// Replaces the state by the state of another replica.
    fn take_over(&mut self, object: &mut impl Object<Undo = U>, bytes: &[u8]) -> Result<(), String> {
        let cut_off = || String::from("the state is cut off");
        if StatePart::is(bytes) {
            self.restoring = Restoring::of_checkpoint(bytes).ok_or_else(cut_off)?;
            self.changes = self.restoring.came();
            return Ok(());
        }
        let (clock, changes, state) = split_state(bytes).ok_or_else(cut_off)?;
        object.restore(state)?;
        object.advance(clock);
        (self.restoring, self.changes) = (Restoring::default(), changes);
        Ok(())
    }

    fn restore(&mut self, object: &mut impl Object<Undo = U>, through: u64) -> Result<(), Broken> {
        assert!(self.undo.is_empty(), "a backup has nothing that is not chosen");
        let coming = mem::take(&mut self.coming);
        self.take_over(object, &coming).map_err(|why| {
            Broken(format!(
                "the checkpoint at instance {through} of the service's log cannot be restored: {why}"
            ))
        })?;
        self.restored += 1;
        Ok(())
    }

    /// Begins with the state of an earlier set, which the host of the set's founder puts into the log.
    /// `change` is a part of this state, or the whole state if the log carries whole states.
    fn begin_with(
        &mut self,
        object: &mut impl Object<Undo = U>,
        work: u64,
        change: Bytes,
    ) -> Result<service::Executed, Refused> {
        let before = self.restoring.bytes();
        let taken = match self.whole_states {
            true => self.take_over(object, &change),
            false => self.take_part(object, &change),
        };
        taken.map_err(Refused::Torn)?;
        self.undo.push(work, None, Undo::Part(before));
        Ok(service::Executed::Changed { reply: Bytes::new(), change })
    }

    /// Adds a part of an earlier set's state. The last part completes the state.
    fn take_part(&mut self, object: &mut impl Object<Undo = U>, change: &Bytes) -> Result<(), String> {
        let part =
            StatePart::decode(change).ok_or_else(|| String::from("a part of a restored state is cut off"))?;
        self.changes += 1;
        let Some(whole) = self.restoring.take(part) else { return Ok(()) };
        object.restore(&whole.state).map_err(|why| format!("the restored state cannot be used: {why}"))?;
        object.advance(whole.clock);
        Ok(())
    }

    /// Records a request for a copy of the state.
    pub fn want_copy(&mut self, receiver: C) {
        self.copies.push(Copying::wanted(receiver));
    }

    /// Gives the requested copies in which all changes are chosen. The driver calls this after it has passed
    /// orders.
    pub fn give_copies(&mut self, object: &mut impl Object<Undo = U>, give: impl Fn(C, Exported)) {
        if self.copies.is_empty() {
            return;
        }
        if !self.undo.has_uncommitted() && self.copies.iter().any(Copying::is_empty) {
            let taken = self.state(object, 0);
            let through = self.undo.latest().unwrap_or(0);
            for copy in self.copies.iter_mut().filter(|copy| copy.is_empty()) {
                copy.fill(taken.clone(), through);
            }
        }
        let unchosen = self.undo.oldest();
        for ready in self.copies.extract_if(.., |copy| copy.is_ready(unchosen)) {
            let (receiver, copy) = ready.into_parts();
            give(receiver, copy);
        }
    }
}

/// Calls `put` with the result of a work.
fn report(
    work: u64,
    found: Result<service::Executed, Refused>,
    put: &mut dyn FnMut(Command),
) -> Result<(), Broken> {
    let (command, broken) = match found {
        Ok(result) => (Command::Executed { work, result }, Ok(())),
        Err(Refused::Whole(reason)) => (rejection(work, &reason), Ok(())),
        Err(Refused::Torn(reason)) => (rejection(work, &reason), Err(Broken(reason))),
    };
    put(command);
    broken
}

/// Returns the result of a work that is refused for `reason`.
pub(super) fn rejection(work: u64, reason: &str) -> Command {
    let length = reason.len().min(REASON_BYTES_MAX);
    let reason = Bytes::copy_from_slice(&reason.as_bytes()[..length]);
    Command::Executed { work, result: service::Executed::Rejected { reason } }
}

/// Length to which the reason of a rejection is cut, in bytes.
const REASON_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests;
