//! Counts the memory that the requests of a process hold, in bytes.
//!
//! An answer that streams holds only a piece at a time. Some answers cannot stream: groups wait for the last
//! range, a sort over several ranges waits for a piece of each range, and `FETCH` and the library's `query`
//! gather all their rows. The rows that such an answer gathers are counted before they are kept: for the
//! request, for the session and for the process. A request that would exceed a limit is refused by name
//! (53200), and all its memory is freed.
//!
//! Sizes are estimates of memory, not of bytes on the wire.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use quorate_table::value::{Row, Value};

use crate::error::{Result, SqlError, code};

/// Maximum memory that may be held, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Maximum memory that one request may hold.
    pub request_bytes_max: usize,
    /// Maximum memory that one session may hold, over all its requests, cursors and prepared statements.
    pub session_bytes_max: usize,
    /// Maximum memory that all sessions of the process may hold together.
    pub process_bytes_max: usize,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        MemoryLimits {
            request_bytes_max: 128 << 20,
            session_bytes_max: 192 << 20,
            process_bytes_max: 384 << 20,
        }
    }
}

/// The memory of a process.
#[derive(Debug, Default)]
pub struct Budget {
    limits: MemoryLimits,
    held: AtomicUsize,
}

impl Budget {
    /// Creates a budget with these limits.
    pub fn new(limits: MemoryLimits) -> Arc<Self> {
        Arc::new(Budget { limits, held: AtomicUsize::new(0) })
    }

    /// Creates an account for a session.
    pub fn account(self: &Arc<Self>) -> Account {
        Account(Arc::new(SessionAccount { budget: self.clone(), held: AtomicUsize::new(0) }))
    }

    /// Returns the memory that all sessions hold now, in bytes.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

/// The memory account of a session. Clones share the account.
#[derive(Clone, Debug)]
pub struct Account(Arc<SessionAccount>);

#[derive(Debug)]
struct SessionAccount {
    budget: Arc<Budget>,
    held: AtomicUsize,
}

impl Account {
    /// Starts counting the memory of a new request.
    pub fn hold(&self) -> MemoryReservation {
        MemoryReservation { account: Some(self.clone()), bytes: 0 }
    }
}

/// Memory that a request holds. Dropping the reservation frees the memory.
#[derive(Debug, Default)]
pub struct MemoryReservation {
    /// The session's account. Without an account, nothing is counted.
    account: Option<Account>,
    bytes: usize,
}

impl MemoryReservation {
    /// Counts more bytes, before the memory is used. Fails with 53200 and counts nothing if the sum would
    /// exceed a limit.
    pub fn grow(&mut self, bytes: usize) -> Result<()> {
        let Some(Account(session)) = &self.account else { return Ok(()) };
        let SessionAccount { budget, held } = &**session;
        let limits = &budget.limits;
        if self.bytes.saturating_add(bytes) > limits.request_bytes_max {
            return Err(refused("one request", limits.request_bytes_max));
        }
        if !add(held, bytes, limits.session_bytes_max) {
            return Err(refused("one session", limits.session_bytes_max));
        }
        if !add(&budget.held, bytes, limits.process_bytes_max) {
            held.fetch_sub(bytes, Ordering::Relaxed);
            return Err(refused("all sessions of this gateway", limits.process_bytes_max));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Frees bytes that were counted.
    pub fn shrink(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes, "only memory that was counted is freed");
        self.bytes -= bytes;
        if let Some(Account(session)) = &self.account {
            session.held.fetch_sub(bytes, Ordering::Relaxed);
            session.budget.held.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the memory that this reservation holds, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

/// Adds `bytes` to a count unless the sum would exceed `most`. Returns whether the bytes were added.
fn add(count: &AtomicUsize, bytes: usize, most: usize) -> bool {
    let added = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= most);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, added).is_ok()
}

fn refused(whose: &str, most: usize) -> SqlError {
    SqlError::new(code::OUT_OF_MEMORY, "the request needs more memory than the gateway allows")
        .detail(format!(
            "The gateway holds at most {most} bytes at a time for {whose}. The request changed nothing."
        ))
        .hint("Ask for fewer or shorter rows or groups at a time, with WHERE, LIMIT or FETCH.")
}

/// Returns the memory of a row, in bytes.
pub fn weight(row: &Row) -> usize {
    size_of::<Row>() + row.iter().map(weight_of).sum::<usize>()
}

/// Returns the memory of a value, in bytes.
pub fn weight_of(value: &Value) -> usize {
    let more = match value {
        Value::Text(text) => text.len(),
        _ => 0,
    };
    size_of::<Value>() + more
}

/// Returns the estimated memory of a decoded answer, in bytes, from its length on the wire. The factor allows
/// for the growth by decoding: a number of two bytes becomes a whole value.
pub fn decoded_bytes_estimate(bytes: usize) -> usize {
    bytes.saturating_mul(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> MemoryLimits {
        MemoryLimits { request_bytes_max: 100, session_bytes_max: 150, process_bytes_max: 200 }
    }

    #[test]
    fn each_memory_limit_is_enforced_and_freed_memory_can_be_used_again() {
        let budget = Budget::new(limits());
        let (one, other) = (budget.account(), budget.account());
        let mut first = one.hold();
        first.grow(100).unwrap();
        assert_eq!(first.grow(1).unwrap_err().code, "53200", "the request's limit");
        let mut second = one.hold();
        second.grow(50).unwrap();
        assert_eq!(second.grow(1).unwrap_err().code, "53200", "the session's limit");
        let mut third = other.hold();
        third.grow(50).unwrap();
        assert_eq!(third.grow(1).unwrap_err().code, "53200", "the process's limit");
        assert_eq!(budget.held(), 200);
        first.shrink(40);
        third.grow(40).unwrap();
        drop((first, second));
        assert_eq!(budget.held(), 90);
        drop(third);
        assert_eq!(budget.held(), 0);
    }
}
