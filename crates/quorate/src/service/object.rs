//! A service as the object of its executor: the user's code and state.
//!
//! **Failures.** A panic in `execute` rejects the request, because `execute` only borrowed the state. A panic
//! in `apply` or `revert` leaves an unknown state. If the bytes of a client's request do not decode, the
//! request is rejected. If the bytes of another replica's change do not decode, the change cannot be applied,
//! and this replica ends.
//!
//! **Bytes.** A change is the clock of the leader, followed by the content that [`Service::CARRIES`] chooses:
//! the delta, or the [`Witness`]. If the log carries whole states, the executor encodes and restores them.
//!
//! **Size.** A state has a bound, in bytes of its checkpoint, because a checkpoint is one record of a
//! journal, and is held in memory. The object adds the bytes of changes to the last measured size. If the sum
//! exceeds the bound, the object measures the state. It takes back and refuses a change that made the state
//! larger than the bound, unless the change made the state smaller than before. Backups apply all chosen
//! changes.
//!
//! **Checks.** A host can check its services. Then the leader applies each change, takes it back, and applies
//! it again from its bytes. It compares the states before and after byte by byte. If `revert` is wrong, or a
//! delta decodes to another delta, the leader refuses the request and its replica ends.

use std::{
    borrow::Cow,
    panic::{AssertUnwindSafe, catch_unwind},
};

use bytes::Bytes;
use quorate_node::panic_message;
use quorate_roles::services::{Execution, Object, Refused, split_clock};
use quorate_runtime::chance::Chance;
use serde::{Deserialize, Serialize};

use super::{
    Carries, Executed, Service,
    cx::{Clock, Cx, Source},
    encoder::{Encoder, STATE_BYTES_MAX, decode},
};

/// A service's state, and all that the service's code needs.
pub(super) struct ServiceObject<S: Service> {
    pub(super) state: S,
    clock: Clock,
    chance: Chance,
    encoder: Encoder,
    /// Whether each change is checked.
    checks: bool,
    /// The last known size of the state, plus the bytes of changes since.
    size: usize,
    /// Upper bound of the state after a change, in bytes.
    size_max: usize,
}

/// The content of a change that backups execute again: the request, all values that the leader drew, and a
/// print of the result.
#[derive(Serialize, Deserialize)]
struct Witness<'a> {
    #[serde(borrow)]
    request: Cow<'a, [u8]>,
    drawn: Vec<u64>,
    /// The print of the delta.
    print: u64,
}

impl<S: Service> Object for ServiceObject<S> {
    type Undo = S::Undo;

    fn execute(&mut self, request: &Bytes, read: bool) -> Result<Execution<S::Undo>, Refused> {
        let witness = (S::CARRIES == Carries::Witness).then_some(request);
        self.complete(witness, read, |state, cx| match requested::<S>(request) {
            Ok(request) => state.execute(&request, cx),
            Err(why) => Executed::Rejected(why),
        })
    }

    fn apply(&mut self, change: &Bytes) -> Result<(), String> {
        let (clock, rest) = split_clock(change).ok_or_else(|| String::from("the change is cut off"))?;
        let delta = self.delta(rest)?;
        self.size += change.len();
        self.clock.advance(clock);
        catch_unwind(AssertUnwindSafe(|| drop(self.state.apply(&delta))))
            .map_err(|panic| format!("the service's `apply` panicked: {}", panic_message(&*panic)))
    }

    fn revert(&mut self, undo: S::Undo) -> Result<(), String> {
        catch_unwind(AssertUnwindSafe(|| self.state.revert(undo)))
            .map_err(|panic| format!("the service's `revert` panicked: {}", panic_message(&*panic)))
    }

    fn state(&mut self) -> Result<Bytes, String> {
        let taken = catch_unwind(AssertUnwindSafe(|| self.bytes())).map_err(|panic| {
            format!("the service's code panicked while it serialised the state: {}", panic_message(&*panic))
        })?;
        let state = taken?;
        self.size = state.len();
        Ok(state.into())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        let read = catch_unwind(|| decode(state).map_err(|error| error.to_string()));
        self.state = read.unwrap_or_else(|panic| {
            Err(format!(
                "the service's code panicked while it restored the state: {}",
                panic_message(&*panic)
            ))
        })?;
        self.size = state.len();
        Ok(())
    }

    fn clock(&self) -> u64 {
        self.clock.latest()
    }

    fn advance(&mut self, to: u64) {
        self.clock.advance(to);
    }
}

impl<S: Service> ServiceObject<S> {
    pub(super) fn new(state: S, checks: bool) -> Self {
        ServiceObject {
            state,
            clock: Clock::default(),
            chance: Chance::new(),
            encoder: Encoder::default(),
            checks,
            size: 0,
            size_max: STATE_BYTES_MAX,
        }
    }

    /// Sets the present size of the state, and the upper bound of its size, in bytes.
    pub(super) fn with_size(self, size: usize, size_max: usize) -> Self {
        ServiceObject { size, size_max, ..self }
    }

    /// Finds the result of a request, and applies its change.
    pub(super) fn complete(
        &mut self,
        witness: Option<&Bytes>,
        read: bool,
        execute: impl FnOnce(&S, &mut Cx<'_>) -> Executed<S>,
    ) -> Result<Execution<S::Undo>, Refused> {
        let found = catch_unwind(AssertUnwindSafe(|| self.find_out(execute, witness, read)));
        let found = found.unwrap_or_else(|panic| {
            Err(Refused::Whole(format!("the service's `execute` panicked: {}", panic_message(&*panic))))
        })?;
        let ExecutionOutcome { reply, change, bytes } = found;
        let Some((delta, change)) = change else { return Ok(Execution { reply, change: None }) };
        let applied = catch_unwind(AssertUnwindSafe(|| match self.checks {
            true => self.rehearse(&delta, &change),
            false => Ok(self.state.apply(&delta)),
        }));
        let undo = applied.map_err(|panic| {
            let words = panic_message(&*panic);
            Refused::Torn(format!(
                "the service's `apply` panicked at the leader, before the change was proposed: {words}"
            ))
        })?;
        let undo = undo.map_err(Refused::Torn)?;
        let undo = self.grow(bytes, &delta, undo)?;
        Ok(Execution { reply, change: Some((change, undo)) })
    }

    /// Adds the size of an applied change. Takes the change back if it made the state too large.
    fn grow(&mut self, bytes: usize, delta: &S::Delta, undo: S::Undo) -> Result<S::Undo, Refused> {
        self.size += bytes;
        if self.size <= self.size_max {
            return Ok(undo);
        }
        self.size = self.measure()?;
        if self.size <= self.size_max {
            return Ok(undo);
        }
        let after = self.size;
        self.state.revert(undo);
        self.size = self.measure()?;
        if after < self.size {
            self.size = after;
            return Ok(self.state.apply(delta));
        }
        Err(Refused::Whole(format!(
            "the state would have {after} bytes, and at most {} are allowed: remove something before more \
             is added",
            self.size_max
        )))
    }

    /// Returns the exact size of the state, in bytes.
    pub(super) fn measure(&self) -> Result<usize, Refused> {
        let size = postcard::serialize_with_flavor(&self.state, postcard::ser_flavors::Size::default());
        size.map_err(|error| Refused::Torn(format!("the state does not serialise: {error}")))
    }

    /// Returns the result of a request. The state is unchanged, because `execute` only borrows it.
    fn find_out(
        &mut self,
        execute: impl FnOnce(&S, &mut Cx<'_>) -> Executed<S>,
        witness: Option<&Bytes>,
        read: bool,
    ) -> Result<ExecutionOutcome<S>, Refused> {
        let ServiceObject { state, clock, chance, encoder, .. } = self;
        let mut drawn = Vec::new();
        let noted = witness.is_some().then_some(&mut drawn);
        let mut cx = Cx { source: Source::Machine { clock, chance, noted } };
        match execute(state, &mut cx) {
            Executed::Unchanged(reply) => {
                Ok(ExecutionOutcome { reply: encoder.encode(&[], &reply)?, change: None, bytes: 0 })
            }
            Executed::Rejected(reason) => Err(Refused::Whole(reason)),
            Executed::Changed(..) if read => {
                Err(Refused::Whole(String::from("a request that was sent as a read would change the state")))
            }
            Executed::Changed(reply, delta) => {
                let reply = encoder.encode(&[], &reply)?;
                let front = clock.latest().to_le_bytes();
                let (change, bytes) = match S::CARRIES {
                    Carries::Delta => {
                        let change = encoder.encode(&front, &delta)?;
                        let bytes = change.len();
                        (change, bytes)
                    }
                    Carries::Witness => {
                        let (print, bytes) = print(&delta).map_err(|error| error.to_string())?;
                        let request = witness.expect("a change by witness keeps its request");
                        let request = Cow::Borrowed(&request[..]);
                        (encoder.encode(&front, &Witness { request, drawn, print })?, bytes)
                    }
                    // The change's bytes are the new state, which has a bound of its own.
                    Carries::State => (Bytes::new(), 0),
                };
                Ok(ExecutionOutcome { reply, change: Some((delta, change)), bytes })
            }
        }
    }

    /// Applies a change, takes it back, and applies it again from its bytes.
    fn rehearse(&mut self, delta: &S::Delta, change: &[u8]) -> Result<S::Undo, String> {
        let before = self.bytes()?;
        let undo = self.state.apply(delta);
        let after = self.bytes()?;
        self.state.revert(undo);
        same(&before, &self.bytes()?).map_err(|why| {
            format!("check of `revert`: a reverted change has not left the earlier state: {why}")
        })?;
        if S::CARRIES == Carries::State {
            return Ok(self.state.apply(delta));
        }
        let delta = split_clock(change).ok_or("the change is cut off").and_then(|(_, rest)| {
            self.delta(rest).map_err(|_| "check: a change cannot be decoded from its own bytes")
        })?;
        let undo = self.state.apply(&delta);
        same(&after, &self.bytes()?).map_err(|why| {
            format!("check of `apply`: a change that was encoded and decoded has another effect: {why}")
        })?;
        Ok(undo)
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        postcard::to_stdvec(&self.state).map_err(|error| format!("the state does not serialise: {error}"))
    }

    /// Returns the delta of a change that another replica executed.
    fn delta(&self, bytes: &[u8]) -> Result<S::Delta, String> {
        if S::CARRIES == Carries::Delta {
            return decode(bytes).map_err(|error| error.to_string());
        }
        let Witness { request, drawn, print: expected } =
            postcard::from_bytes(bytes).map_err(|error| error.to_string())?;
        let request: S::Request = decode(&request).map_err(|error| error.to_string())?;
        let mut cx = Cx { source: Source::Again(drawn.iter()) };
        let found = catch_unwind(AssertUnwindSafe(|| self.state.execute(&request, &mut cx)));
        let found = found.map_err(|panic| {
            format!(
                "the service's `execute` panicked when a request was executed again: {}",
                panic_message(&*panic)
            )
        })?;
        match found {
            Executed::Changed(_, delta) if print(&delta).is_ok_and(|(print, _)| print == expected) => {
                Ok(delta)
            }
            _ => Err(String::from(
                "a request has another result when it is executed again: `execute` may depend on nothing \
                 but state, request, and the clock and chance of `Cx`",
            )),
        }
    }
}

/// Compares two states. If they differ, the error says at which byte.
fn same(one: &[u8], other: &[u8]) -> Result<(), String> {
    if one == other {
        return Ok(());
    }
    let at = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    Err(format!("the states have {} and {} bytes, and differ from byte {at} on", one.len(), other.len()))
}

/// The result of a request, in bytes.
struct ExecutionOutcome<S: Service> {
    reply: Bytes,
    change: Option<(S::Delta, Bytes)>,
    /// Length of the delta, in bytes.
    bytes: usize,
}

/// Decodes a request.
pub(super) fn requested<S: Service>(request: &[u8]) -> Result<S::Request, String> {
    decode(request).map_err(|why| format!("the request does not decode as a request of this service: {why}"))
}

/// Returns the print of a delta, and its length in bytes. A witness whose second execution has another result
/// is found by this print.
fn print(delta: &impl Serialize) -> Result<(u64, usize), postcard::Error> {
    let bytes = postcard::to_stdvec(delta)?;
    Ok((xxhash_rust::xxh3::xxh3_64(&bytes), bytes.len()))
}
