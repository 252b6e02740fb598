//! Work in progress.

use std::{io, pin::Pin, thread};

use tokio::sync::oneshot;

use crate::error::Error;

/// Work in progress, for any executor; [`Wait::wait`](crate::Wait::wait) is its blocking form.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Runs work that waits for others on a thread of its own, because a thread of an executor must not wait.
/// Dropping the future gives the outcome up.
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

/// Niceness of a background thread, of 19 steps.
const NICE: i32 = 10;

/// Starts work on a thread of its own that may keep a core busy for seconds, such as encoding a large state.
/// All other work of the machine has precedence.
pub(crate) fn in_background(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let stand_back = || {
        // On Linux this concerns the calling thread alone, and is always permitted.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::setpriority_process(None, NICE);
    };
    let run = move || {
        stand_back();
        work();
    };
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}
