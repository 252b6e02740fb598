//! The end of a process: the reason, and the channel on which its threads report it.

use std::fmt;

use crossbeam_channel::{Receiver, Sender, bounded};
use quorate_protocol::Generation;
use quorate_runtime::disk::DiskError;

/// The reason why a process cannot continue. The process should end, and may be restarted as a new
/// incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The other processes removed this process and go on without it.
    Wedged,
    /// The domain went on in a later generation, without this router.
    Outdated(Generation),
    /// The domain does not admit the process, and will not admit it with the process's present configuration.
    NotAdmitted(String),
    /// The process's directory is an older copy that was put back in place of the directory.
    OlderCopy(String),
    /// The process broke an invariant, or received a state that does not decode.
    Broken(String),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Wedged => f.write_str("the other processes go on without this process, which was cut off"),
            End::Outdated(generation) => {
                write!(f, "the domain went on as generation {generation} without this router")
            }
            End::NotAdmitted(why) => write!(f, "the domain does not take this process in: {why}"),
            End::OlderCopy(why) => f.write_str(why),
            End::Broken(why) => write!(f, "this process cannot go on: {why}"),
        }
    }
}

/// The channel on which the threads of a process report its end. Only the first reason counts.
#[derive(Clone)]
pub(crate) struct EndReporter(Sender<End>);

impl EndReporter {
    /// Makes a reporter, and the receiver of its one message.
    pub(crate) fn new() -> (EndReporter, Receiver<End>) {
        let (sender, receiver) = bounded(1);
        (EndReporter(sender), receiver)
    }

    /// Reports why the process cannot continue.
    pub(crate) fn report(&self, end: End) {
        // If the channel is full, another thread has reported a reason before.
        let _ = self.0.try_send(end);
    }

    /// Reports the end after a fault of the disk.
    pub(crate) fn disk_failed(&self, error: &DiskError) {
        self.report(match error {
            DiskError::OlderCopy { .. } => End::OlderCopy(error.to_string()),
            _ => End::Broken(error.to_string()),
        });
    }
}
