//! Processes that may not be linked with this one.

use std::collections::BTreeSet;

use bytes::Bytes;
use quorate_protocol::{Generation, Policy, ProcessId, ecast::Fence};
use tracing::warn;

/// Those that were met, and what they showed: each is logged once.
#[derive(Default)]
pub(crate) struct Strangers(BTreeSet<(ProcessId, Bytes)>);

/// So many are remembered.
const STRANGERS_MAX: usize = 64;

impl Strangers {
    /// Takes note of one that showed `theirs` where this process showed `ours`. Yields the generation of the domain in which this process is
    /// out, if that is why.
    pub(crate) fn meet(&mut self, peer: ProcessId, ours: &[u8], theirs: &[u8]) -> Option<Generation> {
        let ours = Fence::of_pass(ours)?;
        if self.0.len() >= STRANGERS_MAX {
            self.0.clear();
        }
        // It is met again and again.
        if self.0.insert((peer, Bytes::copy_from_slice(theirs))) {
            warn!(%peer, "no session: {}", ours.refusal(theirs));
        }
        Fence::of_pass(theirs).filter(|theirs| ours.is_out(*theirs)).map(|theirs| theirs.generation)
    }
}
