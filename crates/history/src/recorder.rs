//! Recording at the client.
//!
//! Each client has its own [`Recorder`], so that clients share nothing and take no locks. The tapes are
//! merged at the end. The caller owns the clock and passes `now`. The recorder puts every operation on the
//! tape *before* the client sends it, and again when the operation ends. A killed client therefore leaves a
//! write of unknown outcome on the tape. Without that record, a read of its value would seem to return a
//! value that nobody wrote.
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

/// The place where a recorder stores operations.
pub trait Tape {
    /// Error of the storage.
    type Error;
    /// Stores an operation that is about to be sent.
    fn started(&mut self, operation: &Operation) -> Result<(), Self::Error>;
    /// Stores an operation that ended.
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

/// A tape of JSON lines. Each start record is flushed before `started` returns, and therefore before the
/// operation is sent.
#[derive(Debug)]
pub struct Lines<W: Write> {
    out: W,
}

impl<W: Write> Lines<W> {
    /// Creates a tape that writes to `out`. Writes the host's clock error, in nanoseconds, first.
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

/// Names an operation that has started and has not ended.
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
    /// Creates a recorder that records in memory.
    pub fn in_memory(client: u64) -> Self {
        Self::new(client, Vec::new())
    }

    /// Returns everything recorded. Operations that have not ended get an unknown outcome.
    pub fn into_operations(mut self) -> Vec<Operation> {
        self.tape.extend(self.open.into_iter().flatten());
        self.tape
    }
}

impl<T: Tape> Recorder<T> {
    /// Creates a recorder that records on `tape`.
    pub fn new(client: u64, tape: T) -> Self {
        Self { client, tape, open: Vec::new(), free: Vec::new() }
    }

    /// Records a request. Call this function before you send the request. A read that has no answer yet is
    /// `Action::Read(None)`, and such a dequeue is `Action::Dequeue(None)`.
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

    /// Records that the operation took effect.
    pub fn ok(&mut self, call: Call, now: Nanos) -> Result<(), T::Error> {
        self.end(call, Some(now), Outcome::Ok, |_| {})
    }

    /// Records the answer of a read or a dequeue.
    ///
    /// # Panics
    /// If the operation is neither a read nor a dequeue.
    pub fn returned(&mut self, call: Call, answer: Option<Value>, now: Nanos) -> Result<(), T::Error> {
        self.end(call, Some(now), Outcome::Ok, |action| match action {
            Action::Read(value) | Action::Dequeue(value) => *value = answer,
            other => panic!("the operation {} returns no value", other.name()),
        })
    }

    /// Records the answer of a compare-and-set: `true` if the key held the expected value.
    ///
    /// # Panics
    /// If the operation is not a compare-and-set.
    pub fn compared(&mut self, call: Call, answer: bool, now: Nanos) -> Result<(), T::Error> {
        self.end(call, Some(now), Outcome::Ok, |action| match action {
            Action::Cas { matched, .. } => *matched = answer,
            other => panic!("the operation {} compares no value", other.name()),
        })
    }

    /// Records that the operation did not take effect and never will.
    pub fn failed(&mut self, call: Call, now: Nanos) -> Result<(), T::Error> {
        self.end(call, Some(now), Outcome::Failed, |_| {})
    }

    /// Records that the outcome is unknown, for example after a time-out or a broken connection.
    pub fn unknown(&mut self, call: Call) -> Result<(), T::Error> {
        self.end(call, None, Outcome::Unknown, |_| {})
    }

    /// Returns the tape. Operations that have not ended appear on it only as started.
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
