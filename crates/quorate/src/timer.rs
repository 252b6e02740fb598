//! Timers for futures under any executor. The first timer starts one thread, which wakes all of them.

use std::{
    collections::BTreeMap,
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use tracing::warn;

/// The sleepers, earliest first. A number distinguishes sleepers that wake at the same instant.
#[derive(Default)]
struct Clock {
    sleepers: Mutex<BTreeMap<(Instant, u64), Waker>>,
    changed: Condvar,
    last: AtomicU64,
}

/// The clock; `None` if the system gave no thread. In that case every timer ends at once.
static CLOCK: OnceLock<Option<&'static Clock>> = OnceLock::new();

impl Clock {
    fn start() -> Option<&'static Clock> {
        let clock: &'static Clock = Box::leak(Box::default());
        let started = thread::Builder::new().name(String::from("timer")).spawn(move || clock.run());
        match started {
            Ok(_) => Some(clock),
            Err(error) => {
                warn!(
                    %error,
                    "the system gives no thread for timers, so every wait for a timer ends at once"
                );
                None
            }
        }
    }

    fn run(&self) {
        let mut sleepers = self.sleepers();
        loop {
            let now = Instant::now();
            sleepers = match sleepers.first_key_value().map(|(key, _)| key.0) {
                None => self.changed.wait(sleepers).unwrap_or_else(PoisonError::into_inner),
                Some(at) if at > now => {
                    let waited = self.changed.wait_timeout(sleepers, at - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    let waker = sleepers.pop_first().map(|(_, waker)| waker);
                    // The lock is released first, because the waker is the executor's code.
                    drop(sleepers);
                    waker.into_iter().for_each(Waker::wake);
                    self.sleepers()
                }
            };
        }
    }

    fn sleepers(&self) -> MutexGuard<'_, BTreeMap<(Instant, u64), Waker>> {
        // The map is valid at every step, so a panic elsewhere does no harm.
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A future that is ready at an instant.
pub(crate) struct Sleep {
    key: (Instant, u64),
    clock: Option<&'static Clock>,
}

/// Returns a future that is ready after this time.
pub(crate) fn sleep(time: Duration) -> Sleep {
    let clock = *CLOCK.get_or_init(Clock::start);
    let number = clock.map_or(0, |clock| clock.last.fetch_add(1, Ordering::Relaxed));
    Sleep { key: (Instant::now() + time, number), clock }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(clock) = self.clock.filter(|_| Instant::now() < self.key.0) else { return Poll::Ready(()) };
        let mut sleepers = clock.sleepers();
        sleepers.insert(self.key, cx.waker().clone());
        if sleepers.first_key_value().is_some_and(|(key, _)| *key == self.key) {
            clock.changed.notify_one();
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(clock) = self.clock {
            clock.sleepers().remove(&self.key);
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("until", &self.key.0).finish()
    }
}

/// Waits for the future, at most for `time`. Returns the future's output, or `None` if the time is over.
pub(crate) async fn timeout<F: Future>(time: Duration, future: F) -> Option<F::Output> {
    let (mut future, mut over) = (pin!(future), pin!(sleep(time)));
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        over.as_mut().poll(cx).map(|()| None)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;
    use crate::wait::block_on;

    #[test]
    fn sleepers_wake_in_their_order() {
        let began = Instant::now();
        let sleeper = |millis: u64| {
            thread::spawn(move || {
                block_on(sleep(Duration::from_millis(millis)));
                began.elapsed()
            })
        };
        let (late, soon) = (sleeper(60), sleeper(20));
        assert!(soon.join().unwrap() >= Duration::from_millis(20));
        assert!(late.join().unwrap() >= Duration::from_millis(60));
    }

    #[test]
    fn a_timeout_ends_the_wait_and_leaves_no_sleeper() {
        assert_eq!(block_on(timeout(Duration::from_millis(5), pending::<()>())), None);
        assert_eq!(block_on(timeout(Duration::from_secs(3600), async { 7 })), Some(7));
        let long = sleep(Duration::from_secs(3600));
        let key = long.key;
        block_on(timeout(Duration::from_millis(5), long));
        assert!(!CLOCK.get().unwrap().unwrap().sleepers().contains_key(&key));
    }
}
