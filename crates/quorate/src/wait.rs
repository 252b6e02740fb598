//! Waiting for a future without an executor.

use std::{
    future::{Future, IntoFuture},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

/// The blocking form of everything in this crate that can be awaited.
///
/// ```
/// use quorate::Wait;
///
/// assert_eq!(async { 6 * 7 }.wait(), 42);
/// ```
///
/// The calling thread sleeps until the output is ready. It must not be a thread of an executor, because the
/// executor's other tasks would wait, too.
pub trait Wait: IntoFuture {
    /// Waits for the output.
    fn wait(self) -> Self::Output;
}

impl<F: IntoFuture> Wait for F {
    fn wait(self) -> F::Output {
        block_on(self.into_future())
    }
}

/// Wakes a thread that sleeps.
struct Sleeper(Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Sleeper(thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            // If another thread woke this one meanwhile, it left a token, and `park` returns at once.
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn a_thread_waits_for_a_value_from_another_thread() {
        let (sender, receiver) = oneshot::channel();
        let other = thread::spawn(move || sender.send(7));
        assert_eq!(receiver.wait(), Ok(7));
        assert_eq!(other.join().unwrap(), Ok(()));
    }
}
