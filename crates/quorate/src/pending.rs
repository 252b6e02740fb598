//! Work in progress.

use std::{pin::Pin, thread};

use tokio::sync::oneshot;

use crate::error::Error;

/// Work in progress, for any executor; [`Wait::wait`](crate::Wait::wait) is its blocking form.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Runs work on a thread of its own, because the work waits for other processes, and a thread of an executor
/// must not wait. Dropping the future does not stop the work.
pub(crate) fn on_a_thread<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Pending<'static, T> {
    let (sender, receiver) = oneshot::channel();
    let started = thread::Builder::new().name(name.to_owned()).spawn(move || {
        // If the future was dropped, nobody takes the result.
        let _ = sender.send(work());
    });
    Box::pin(async move {
        started?;
        receiver.await.map_err(|_| Error::start(format!("the thread \"{name}\" panicked")))?
    })
}
