//! The store as the object of its executor.

use std::num::NonZeroUsize;

use bytes::{Bytes, BytesMut};
use quorate_protocol::Context;
use quorate_roles::services::{Execution, Object, Refused, split_clock};

use super::{
    host_tamper::HostTamper,
    store::{Request, StoreChange, StoreState, StoreUndo, opened, sealed},
};

/// The store in one step of its host.
pub(super) struct StoreObject<'a, 'c> {
    pub(super) store: &'a mut StoreState,
    /// The latest time that the store has seen, in nanoseconds.
    pub(super) clock: &'a mut u64,
    /// The call that was executed last.
    pub(super) latest: &'a mut u64,
    pub(super) tamper: &'a mut HostTamper,
    pub(super) cx: &'a mut Context<'c>,
    /// Whether a change is the whole state.
    pub(super) whole_states: bool,
    /// Maximum padding of a reply, a change or a state, in bytes.
    pub(super) padding: usize,
}

impl Object for StoreObject<'_, '_> {
    type Undo = StoreUndo;

    fn execute(&mut self, request: &Bytes, read: bool) -> Result<Execution<StoreUndo>, Refused> {
        let request: Request = opened(request);
        *self.latest = request.call();
        match request {
            Request::Put { key, call } => {
                assert!(!read, "a read changes nothing");
                self.advance(self.cx.now.0);
                let before = self.store.values.get(&key).copied();
                let change = StoreChange { key, written: (call, (self.cx.random)()), before };
                let change = self.tamper.forwarded.remove(&call).map_or(change, |change| opened(&change));
                self.store.apply(change);
                let reply = self.padded(sealed(&change.written));
                let change = match self.whole_states {
                    true => Bytes::new(),
                    false => self.padded([&self.clock.to_le_bytes()[..], &sealed(&change)].concat().into()),
                };
                Ok(Execution { reply, change: Some((change, StoreUndo { key, call, before })) })
            }
            Request::Get { key, .. } => {
                Ok(Execution { reply: self.padded(self.store.look(key)), change: None })
            }
            Request::Refuse { key, .. } => Err(Refused::Whole(self.store.refusal(key))),
        }
    }

    fn apply(&mut self, change: &Bytes) -> Result<(), String> {
        let (clock, rest) = split_clock(change).expect("a change arrives as it was made");
        self.advance(clock);
        let mut change: StoreChange = opened(&change.slice_ref(rest));
        if self.tamper.draws_again() {
            change.written.1 = (self.cx.random)();
        }
        self.store.apply(change);
        Ok(())
    }

    fn revert(&mut self, undo: StoreUndo) -> Result<(), String> {
        if let Some(undo) = self.tamper.reverts(self.store, undo) {
            self.store.revert(&undo);
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Bytes, String> {
        Ok(self.padded(sealed(self.store)))
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        *self.store = opened(&Bytes::copy_from_slice(state));
        Ok(())
    }

    fn clock(&self) -> u64 {
        *self.clock
    }

    fn advance(&mut self, to: u64) {
        *self.clock = to.max(*self.clock);
    }
}

impl StoreObject<'_, '_> {
    /// Returns the bytes with random padding, which nobody reads.
    fn padded(&mut self, bytes: Bytes) -> Bytes {
        let Some(more) = NonZeroUsize::new(self.padding) else { return bytes };
        let mut padded = BytesMut::from(&bytes[..]);
        padded.resize(bytes.len() + (self.cx.random)() as usize % more, 0);
        padded.freeze()
    }
}
