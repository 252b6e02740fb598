//! Work that is under way.

use std::{io, pin::Pin, thread};

use tokio::sync::oneshot;

use crate::error::Error;

/// Something that is under way, for any executor; [`Wait::wait`](crate::Wait::wait) is its blocking form.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Does work that waits for others on a thread of its own, because a thread of an executor must not. Whoever drops the future gives
/// the outcome up.
pub(crate) fn on_a_thread<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Pending<'static, T> {
    let (sender, receiver) = oneshot::channel();
    let started = thread::Builder::new().name(name.to_owned()).spawn(move || {
        // Nobody takes it who has dropped the future.
        let _ = sender.send(work());
    });
    Box::pin(async move {
        started?;
        receiver.await.map_err(|_| Error::start(format!("the thread \"{name}\" panicked")))?
    })
}

/// How far a thread in the background stands back, of 19 steps.
const NICE: i32 = 10;

/// Starts work on a thread of its own that may keep a core busy for seconds, such as writing a large state down. Whatever else the machine has
/// to do goes first.
pub(crate) fn in_background(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let stand_back = || {
        // There it concerns the calling thread alone, and nobody may be refused it.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::setpriority_process(None, NICE);
    };
    let run = move || {
        stand_back();
        work();
    };
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}
