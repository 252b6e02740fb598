//! The open sessions of a gateway, and their cancellation.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
};

use rand::RngExt;

use super::limit::Cancel;

/// The open sessions, which can be cancelled, stopped and handed over.
#[derive(Default)]
pub(super) struct Sessions {
    next: AtomicI32,
    open: Mutex<OpenSessions>,
}

#[derive(Default)]
struct OpenSessions {
    /// The secret and the cancellation of each session, by the session's process id in the protocol.
    sessions: BTreeMap<i32, (i32, Arc<Cancel>)>,
    /// Whether the server stops, so that a new session is stopped at once.
    stopping: bool,
    /// Whether sessions are handed over, so that a new session is handed over at once.
    handing_over: bool,
}

/// A session's entry in [`Sessions`]. Dropping the registration removes the session.
pub(super) struct Registration<'a> {
    sessions: &'a Sessions,
    pub(super) pid: i32,
    pub(super) secret: i32,
    pub(super) cancel: Arc<Cancel>,
}

impl Sessions {
    pub(super) fn register(&self) -> Registration<'_> {
        let pid = self.next.fetch_add(1, Ordering::Relaxed).wrapping_add(1) & i32::MAX;
        self.enter(pid, rand::rng().random())
    }

    /// Registers a session that an earlier process handed over, under the id and secret that it had there.
    pub(super) fn register_again(&self, pid: i32, secret: i32) -> Registration<'_> {
        self.next.fetch_max(pid, Ordering::Relaxed);
        self.enter(pid, secret)
    }

    fn enter(&self, pid: i32, secret: i32) -> Registration<'_> {
        let cancel = Arc::new(Cancel::default());
        let mut open = self.lock();
        if open.stopping {
            cancel.stop();
        }
        if open.handing_over {
            cancel.hand_over();
        }
        open.sessions.insert(pid, (secret, cancel.clone()));
        drop(open);
        Registration { sessions: self, pid, secret, cancel }
    }

    /// Cancels the session's current statement, if the secret is right.
    pub(super) fn cancel(&self, pid: i32, secret: i32) {
        if let Some((own, cancel)) = self.lock().sessions.get(&pid)
            && *own == secret
        {
            cancel.request();
        }
    }

    /// Hands every session over as soon as it is between two statements.
    pub(super) fn hand_over(&self) {
        let mut open = self.lock();
        open.handing_over = true;
        open.sessions.values().for_each(|(_, cancel)| cancel.hand_over());
    }

    /// Ends every session after its current statement.
    pub(super) fn stop(&self) {
        let mut open = self.lock();
        open.stopping = true;
        open.sessions.values().for_each(|(_, cancel)| cancel.stop());
    }

    fn lock(&self) -> MutexGuard<'_, OpenSessions> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.sessions.lock().sessions.remove(&self.pid);
    }
}
