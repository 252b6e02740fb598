//! The whole state as bytes: checkpoints, copies, and the state of an earlier set.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering,
};

use bytes::Bytes;
use quorate_node::panic_message;
use quorate_protocol::service;

use super::{
    super::{
        Carries, Service,
        encoder::decode,
        export::{Copying, Restoring, StatePart},
    },
    Broken, Executor, Undo,
};

use crate::service::export::{Refused, split_clock};

impl<S: Service> Executor<S> {
    /// Returns the state, whose count of changes is the present one plus `more`.
    pub(super) fn take_state(&self, more: u64) -> Result<Bytes, Broken> {
        if self.restoring.is_under_way() {
            return Ok(self.restoring.checkpoint());
        }
        let taken = catch_unwind(AssertUnwindSafe(|| self.bytes()));
        let taken = taken.map_err(|panic| {
            Broken(format!(
                "the service's code panicked while it serialised the state: {}",
                panic_message(&*panic)
            ))
        })?;
        let state = taken.map_err(Broken)?;
        let (clock, changes) = (self.clock.latest(), self.tally.changes.load(Ordering::Relaxed) + more);
        Ok([&clock.to_le_bytes()[..], &changes.to_le_bytes(), &state].concat().into())
    }

    /// Replaces the state by another replica's.
    pub(super) fn take_over(&mut self, bytes: &[u8]) -> Result<(), String> {
        let cut_off = || String::from("the state is cut off");
        if StatePart::is(bytes) {
            self.restoring = Restoring::of_checkpoint(bytes).ok_or_else(cut_off)?;
            self.size = bytes.len();
            self.tally.changes.store(self.restoring.came(), Ordering::Relaxed);
            return Ok(());
        }
        let split = split_clock(bytes).and_then(|(clock, rest)| Some((clock, split_clock(rest)?)));
        let (clock, (changes, state)) = split.ok_or_else(cut_off)?;
        self.state = read(state)?;
        self.size = state.len();
        self.restoring = Restoring::default();
        self.clock.advance(clock);
        self.tally.changes.store(changes, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn restore(&mut self, through: u64) -> Result<(), Broken> {
        assert!(self.undo.is_empty(), "a backup has nothing that is not chosen");
        let coming = mem::take(&mut self.coming);
        self.take_over(&coming).map_err(|why| {
            Broken(format!(
                "the checkpoint at instance {through} of the service's log cannot be restored: {why}"
            ))
        })?;
        self.tally.restored.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Begins with the state of an earlier set, which the founder's host puts into the log: a part of it, or
    /// all.
    pub(super) fn begin_with(&mut self, work: u64, change: Bytes) -> Result<service::Executed, Refused> {
        let before = self.restoring.bytes();
        let taken = match S::CARRIES {
            Carries::State => self.take_over(&change),
            Carries::Delta | Carries::Witness => self.take_part(&change),
        };
        taken.map_err(Refused::Torn)?;
        self.remember(work, None, Undo::Part(before));
        Ok(service::Executed::Changed { reply: Bytes::new(), change })
    }

    /// Takes a part of an earlier set's state.
    pub(super) fn take_part(&mut self, change: &Bytes) -> Result<(), String> {
        let part =
            StatePart::decode(change).ok_or_else(|| String::from("a part of a restored state is cut off"))?;
        self.tally.changes.fetch_add(1, Ordering::Relaxed);
        let Some(whole) = self.restoring.take(part) else { return Ok(()) };
        self.state = read(&whole.state).map_err(|why| format!("the restored state cannot be used: {why}"))?;
        self.size = whole.state.len();
        self.clock.advance(whole.clock);
        Ok(())
    }

    /// Sends the requested copies of the state, as soon as all changes in them are chosen.
    pub(super) fn copy(&mut self) {
        if self.uncommitted == 0 && self.copies.iter().any(Copying::is_empty) {
            let taken = self.take_state(0).map_err(|Broken(why)| why);
            let through = self.undo.back().map_or(0, |it| it.number);
            for copy in self.copies.iter_mut().filter(|copy| copy.is_empty()) {
                copy.fill(taken.clone(), through);
            }
        }
        let unchosen = self.undo.front().map(|it| it.number);
        self.copies.retain_mut(|copy| !copy.leaves(unchosen));
    }
}

fn read<S: Service>(state: &[u8]) -> Result<S, String> {
    let state = catch_unwind(|| decode(state).map_err(|error| error.to_string()));
    state.unwrap_or_else(|panic| {
        Err(format!("the service's code panicked while it restored the state: {}", panic_message(&*panic)))
    })
}
