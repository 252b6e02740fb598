//! Calls: threads that wait for the outcomes of commands that they sent.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::{Sender, bounded};

/// The callers that wait, by the names of their commands. A command has exactly one outcome. A caller that
/// has timed out does not get the outcome.
#[derive(Debug)]
pub struct Calls<T> {
    waiting: Mutex<BTreeMap<u64, Sender<T>>>,
    last: AtomicU64,
}

/// The reason why a call returned no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The process did not accept the command.
    NotTaken,
    /// The command was accepted, and may still be under way.
    TimedOut,
}

impl<T> Default for Calls<T> {
    fn default() -> Self {
        Calls { waiting: Mutex::default(), last: AtomicU64::new(0) }
    }
}

impl<T> Calls<T> {
    /// Draws a fresh name, lets `ask` send a command under this name, and waits at most `patience` for the
    /// outcome. `ask` returns whether the command was accepted.
    pub fn call(&self, patience: Duration, ask: impl FnOnce(u64) -> bool) -> Result<T, CallError> {
        let name = self.last.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = bounded(1);
        self.lock().insert(name, sender);
        let answer = if ask(name) {
            receiver.recv_timeout(patience).map_err(|_| CallError::TimedOut)
        } else {
            Err(CallError::NotTaken)
        };
        self.lock().remove(&name);
        answer
    }

    /// Delivers the outcome of the command `name`, if its caller still waits. Does not block.
    pub fn answer(&self, name: u64, answer: T) {
        if let Some(caller) = self.lock().remove(&name) {
            // The caller may have timed out at this very moment.
            let _ = caller.try_send(answer);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Sender<T>>> {
        // The guarded map is consistent at every step, so a poisoned lock does no harm.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn each_caller_gets_the_answer_to_its_own_command() {
        let calls: Arc<Calls<u64>> = Arc::default();
        let (asked, commands) = bounded(64);
        let callers: Vec<_> = (0..64)
            .map(|_| {
                let (calls, asked) = (calls.clone(), asked.clone());
                thread::spawn(move || {
                    let mut named = None;
                    let answer = calls.call(Duration::from_secs(60), |name| {
                        named = Some(name);
                        asked.send(name).is_ok()
                    });
                    assert_eq!(answer.ok(), named.map(|name| name * 10));
                })
            })
            .collect();
        let mut names: Vec<u64> = commands.iter().take(64).collect();
        names.sort_unstable_by_key(|name| std::cmp::Reverse(*name));
        for name in names {
            calls.answer(name, name * 10);
            calls.answer(name, 0);
        }
        for caller in callers {
            caller.join().unwrap();
        }
    }

    #[test]
    fn a_command_that_is_not_taken_or_does_not_end_leaves_nothing_behind() {
        let calls: Calls<()> = Calls::default();
        assert_eq!(calls.call(Duration::from_secs(60), |_| false), Err(CallError::NotTaken));
        assert_eq!(calls.call(Duration::from_millis(1), |_| true), Err(CallError::TimedOut));
        calls.answer(1, ());
        assert!(calls.lock().is_empty());
    }
}
