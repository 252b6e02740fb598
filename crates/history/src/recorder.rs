//! Recording at the client.
//!
//! Each client has a [`Recorder`] of its own, so that nothing is shared and nothing locks; the tapes are merged at the end.
//! The clock is the caller's: it passes `now`. Every operation is put on the tape *before* it is sent and again when it ended, so
//! that a client that is killed leaves a write of unknown outcome behind, and never a read of a value that nobody
//! seems to have written.
//!
//! ```
//! use quorate_history::{Action, History, Recorder, Verdict, check};
//!
//! let mut client = Recorder::in_memory(7);
//! let call = client.start("x", Action::Write("v1".into()), 10).unwrap();
//! client.ok(call, 20).unwrap();
//! let call = client.start("x", Action::Read(None), 30).unwrap();
//! client.returned(call, Some("v1".into()), 40).unwrap();
//! let history: History = client.into_operations().into_iter().collect();
//! assert_eq!(check(&history).verdict, Verdict::Atomic);
//! ```

use std::convert::Infallible;
use std::io::{self, Write};

use crate::format::json;
use crate::operation::{Action, Nanos, Operation, Outcome, Value};

/// Where a recorder puts what it records.
pub trait Tape {
    /// Why recording failed.
    type Error;
    /// An operation is about to be sent.
    fn started(&mut self, operation: &Operation) -> Result<(), Self::Error>;
    /// It ended.
    fn ended(&mut self, operation: Operation) -> Result<(), Self::Error>;
}

impl Tape for Vec<Operation> {
    type Error = Infallible;

    fn started(&mut self, _: &Operation) -> Result<(), Infallible> {
        Ok(())
    }

    fn ended(&mut self, operation: Operation) -> Result<(), Infallible> {
        self.push(operation);
        Ok(())
    }
}

/// A tape of JSON lines. Start records are flushed before the operation may be sent.
#[derive(Debug)]
pub struct Lines<W: Write> {
    out: W,
}

impl<W: Write> Lines<W> {
    /// Writes to `out`, beginning with whose clock it is and how far that may be off.
    pub fn new(mut out: W, host: &str, clock_error: u64) -> io::Result<Self> {
        json::write_clock(&mut out, host, clock_error)?;
        Ok(Self { out })
    }
}

impl<W: Write> Tape for Lines<W> {
    type Error = io::Error;

    fn started(&mut self, operation: &Operation) -> io::Result<()> {
        json::write_start(&mut self.out, operation)?;
        self.out.flush()
    }

    fn ended(&mut self, operation: Operation) -> io::Result<()> {
        json::write(&mut self.out, &operation)
    }
}

/// An operation that was started and has not ended.
#[derive(Debug)]
#[must_use = "an operation that never ends is of unknown outcome"]
pub struct Call(usize);

/// Records the operations of one client.
#[derive(Debug)]
pub struct Recorder<T: Tape> {
    client: u64,
    tape: T,
    open: Vec<Option<Operation>>,
    free: Vec<usize>,
}

impl Recorder<Vec<Operation>> {
    /// Records in memory.
    pub fn in_memory(client: u64) -> Self {
        Self::new(client, Vec::new())
    }

    /// Everything recorded; what has not ended is of unknown outcome.
    pub fn into_operations(mut self) -> Vec<Operation> {
        self.tape.extend(self.open.into_iter().flatten());
        self.tape
    }
}

impl<T: Tape> Recorder<T> {
    /// Records on `tape`.
    pub fn new(client: u64, tape: T) -> Self {
        Self { client, tape, open: Vec::new(), free: Vec::new() }
    }

    /// Call this before sending. A read is `Action::Read(None)` and a dequeue `Action::Dequeue(None)` until they are answered.
    pub fn start(&mut self, key: &str, action: Action, now: Nanos) -> Result<Call, T::Error> {
        let outcome = Outcome::Unknown;
        let operation =
            Operation { client: self.client, key: key.into(), action, start: now, finish: None, outcome };
        self.tape.started(&operation)?;
        let index = self.free.pop().unwrap_or(self.open.len());
        if index == self.open.len() {
            self.open.push(None);
        }
        self.open[index] = Some(operation);
        Ok(Call(index))
    }

    /// It took effect.
    pub fn ok(&mut self, call: Call, now: Nanos) -> Result<(), T::Error> {
        self.end(call, Some(now), Outcome::Ok, |_| {})
    }

    /// A read, or a dequeue, returned this.
    ///
    /// # Panics
    /// If the operation is neither.
    pub fn returned(&mut self, call: Call, answer: Option<Value>, now: Nanos) -> Result<(), T::Error> {
        self.end(call, Some(now), Outcome::Ok, |action| match action {
            Action::Read(value) | Action::Dequeue(value) => *value = answer,
            other => panic!("{} returns no value", other.name()),
        })
    }

    /// A compare-and-set was answered: it found what it expected, or not.
    ///
    /// # Panics
    /// If the operation is no compare-and-set.
    pub fn compared(&mut self, call: Call, answer: bool, now: Nanos) -> Result<(), T::Error> {
        self.end(call, Some(now), Outcome::Ok, |action| match action {
            Action::Cas { matched, .. } => *matched = answer,
            other => panic!("{} compares nothing", other.name()),
        })
    }

    /// It certainly did not take effect and never will.
    pub fn failed(&mut self, call: Call, now: Nanos) -> Result<(), T::Error> {
        self.end(call, Some(now), Outcome::Failed, |_| {})
    }

    /// Nobody knows: it timed out, or the connection broke.
    pub fn unknown(&mut self, call: Call) -> Result<(), T::Error> {
        self.end(call, None, Outcome::Unknown, |_| {})
    }

    /// The tape, as it is: what has not ended is only there as started.
    pub fn into_tape(self) -> T {
        self.tape
    }

    fn end(
        &mut self,
        Call(index): Call,
        finish: Option<Nanos>,
        outcome: Outcome,
        answer: impl FnOnce(&mut Action),
    ) -> Result<(), T::Error> {
        let mut operation =
            self.open[index].take().expect("a call ends once, at the recorder that started it");
        self.free.push(index);
        operation.finish = finish;
        operation.outcome = outcome;
        answer(&mut operation.action);
        self.tape.ended(operation)
    }
}
