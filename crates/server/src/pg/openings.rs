//! The connections of a gateway that have not sent their startup packet yet.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// Maximum number of connections that have not sent their startup packet yet. If there are more, the oldest
/// is closed.
pub const OPENINGS_MAX: usize = 256;

/// Connections that have not sent their startup packet. They do not count towards the limit of connections,
/// so that a client that opens many silent connections keeps nobody out. Above [`OPENINGS_MAX`] the oldest is
/// closed.
#[derive(Default)]
pub(super) struct PendingStartups {
    silent: Mutex<VecDeque<Arc<Notify>>>,
}

/// A connection that has not sent its startup packet. Dropping this value removes the connection from the
/// count.
pub(super) struct PendingStartup<'a> {
    openings: &'a PendingStartups,
    pub(super) displaced: Arc<Notify>,
}

impl PendingStartups {
    pub(super) fn begin(&self) -> PendingStartup<'_> {
        let displaced = Arc::new(Notify::new());
        let mut silent = self.lock();
        silent.push_back(displaced.clone());
        if silent.len() > OPENINGS_MAX
            && let Some(oldest) = silent.pop_front()
        {
            oldest.notify_one();
        }
        PendingStartup { openings: self, displaced }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Notify>>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PendingStartup<'_> {
    fn drop(&mut self) {
        self.openings.lock().retain(|other| !Arc::ptr_eq(other, &self.displaced));
    }
}
