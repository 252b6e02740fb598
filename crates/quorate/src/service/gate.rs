//! The gate between an executor's thread and its replica.
//!
//! **Promise.** Results of an executor that the log of its replica has not taken are bounded in bytes. These
//! are results on their way to the replica ([`QUEUED_BYTES_MAX`]), results that the replica holds
//! ([`Settings::results_held_max`]), and one batch of results that the executor still has: 32 + 32 + 8.25
//! MiB.
//!
//! A request does not show how long its result will be, and a replica cannot refuse a result, because later
//! results depend on it. So the executor's thread waits here before it passes more results on. The gate opens
//! when the log proceeds, or when the reign ends. The log itself may wait for the executor: it may miss the
//! acceptance of a replica that needs parts of a checkpoint. In that case the leader steps back after half a
//! second, which opens the gate.
//!
//! [`Settings::results_held_max`]: quorate_protocol::service::Settings::results_held_max

use std::{
    mem,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use quorate_roles::services::ResultLatch;

use crate::lock::lock;

#[derive(Debug, Default)]
pub(super) struct Gate {
    inner: Mutex<GateInner>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct GateInner {
    /// Size of the results on their way to the replica, in bytes.
    queued_bytes: usize,
    /// Whether the replica holds as many results as it may.
    is_shut: bool,
}

impl Gate {
    /// Waits until more results may pass. Returns `false` if the replica has ended.
    pub(super) fn wait(&self, has_ended: impl Fn() -> bool) -> bool {
        let mut inner = lock(&self.inner);
        while inner.is_shut || inner.queued_bytes > QUEUED_BYTES_MAX {
            // A replica that ends does not notify this gate.
            if has_ended() {
                return false;
            }
            inner = self.news.wait_timeout(inner, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Counts results on their way to the replica, until the returned passage is dropped.
    pub(super) fn pass(self: &Arc<Self>, bytes: usize) -> Passage {
        lock(&self.inner).queued_bytes += bytes;
        Passage { gate: self.clone(), bytes }
    }

    /// Shuts or opens the gate.
    fn set(&self, is_shut: bool) {
        lock(&self.inner).is_shut = is_shut;
        self.news.notify_all();
    }
}

/// Results on their way to the replica. They count towards the gate's bound until this value is dropped.
#[derive(Debug)]
pub(super) struct Passage {
    gate: Arc<Gate>,
    bytes: usize,
}

impl Drop for Passage {
    fn drop(&mut self) {
        lock(&self.gate.inner).queued_bytes -= self.bytes;
        self.gate.news.notify_all();
    }
}

/// The replica's control of its executor's gate.
#[derive(Debug, Default)]
pub(super) struct Latch {
    gate: Option<Arc<Gate>>,
    is_shut: bool,
}

impl ResultLatch for Latch {
    type Passage = Passage;

    fn hold(&mut self, Passage { gate, .. }: &Passage) {
        if !self.gate.as_ref().is_some_and(|held| Arc::ptr_eq(held, gate)) {
            (self.gate, self.is_shut) = (Some(gate.clone()), false);
        }
    }

    fn set(&mut self, is_shut: bool) {
        if mem::replace(&mut self.is_shut, is_shut) != is_shut
            && let Some(gate) = &self.gate
        {
            gate.set(is_shut);
        }
    }
}

/// Size of the results on their way to the replica above which an executor waits, in bytes.
const QUEUED_BYTES_MAX: usize = 32 << 20;

/// Interval at which a waiting executor checks whether its replica has ended.
const LOOK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn an_executor_waits_for_the_taking_of_its_results_and_for_the_log() {
        let gate = Arc::new(Gate::default());
        let mut latch = Latch::default();
        let passage = gate.pass(QUEUED_BYTES_MAX + 1);
        latch.hold(&passage);
        latch.set(true);
        let (went, gone) = mpsc::channel();
        let waiting = thread::spawn({
            let gate = gate.clone();
            move || {
                let may = gate.wait(|| false);
                went.send(()).expect("the test waits for it");
                may
            }
        });
        assert!(gone.try_recv().is_err(), "the queue is full, and the replica holds too much");
        drop(passage);
        assert!(gone.try_recv().is_err(), "the replica holds too much");
        latch.set(false);
        gone.recv_timeout(Duration::from_secs(10)).expect("the gate is open");
        assert!(waiting.join().expect("it did not panic"));
        let _passage = gate.pass(QUEUED_BYTES_MAX + 1);
        assert!(!gate.wait(|| true), "its replica has ended");
    }
}
