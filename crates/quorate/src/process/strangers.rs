//! Processes that this process does not admit to a session.

use std::collections::BTreeSet;

use bytes::Bytes;
use quorate_protocol::{Generation, Policy, ProcessId, ecast::Fence};
use tracing::warn;

/// Processes that tried to open a session, with the passes that they showed. Each such process is logged
/// once.
#[derive(Default)]
pub(crate) struct Strangers(BTreeSet<(ProcessId, Bytes)>);

/// Upper bound of the remembered processes.
const STRANGERS_MAX: usize = 64;

impl Strangers {
    /// Notes that `peer` showed the pass `theirs` to this process, whose pass is `ours`. If the passes show
    /// that the domain has continued without this process, returns the generation in which the domain
    /// continued.
    pub(crate) fn meet(&mut self, peer: ProcessId, ours: &[u8], theirs: &[u8]) -> Option<Generation> {
        let ours = Fence::of_pass(ours)?;
        if self.0.len() >= STRANGERS_MAX {
            self.0.clear();
        }
        // The same process tries again and again, but this process logs it only once.
        if self.0.insert((peer, Bytes::copy_from_slice(theirs))) {
            warn!(%peer, "this process has no session with another process: {}", ours.refusal(theirs));
        }
        Fence::of_pass(theirs).filter(|theirs| ours.is_out(*theirs)).map(|theirs| theirs.generation)
    }
}
