//! Locks a mutex whose state is valid at every step, so that a panic of another holder does no harm.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, even if a thread that held it panicked, because the state that the mutex protects is valid
/// at every step.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
