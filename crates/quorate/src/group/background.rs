//! Work for which all other work of the machine has precedence.

use std::{io, thread};

/// Niceness of a background thread, of 19 steps.
const NICE: i32 = 10;

/// Starts work on a thread of its own, such as encoding a large state. The work may keep a core busy for
/// seconds, so all other work of the machine has precedence.
pub(super) fn in_background(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let stand_back = || {
        // On Linux the call changes the priority of this thread alone, and lowering a priority is always
        // permitted.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::setpriority_process(None, NICE);
    };
    let run = move || {
        stand_back();
        work();
    };
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}
