//! The policy of a process about its links: the pass that it shows to a peer, and the passes that it admits.
//! Each end of a link judges the other end's pass.

use std::fmt;

use bytes::Bytes;

/// The rule that decides which processes may have a link with a protocol. Each end of a link shows a pass,
/// and each end judges the other end's pass.
pub trait Policy: fmt::Debug + Send + Sync {
    /// Returns the pass of this end; at most [`PASS_BYTES_MAX`] bytes.
    fn pass(&self) -> Bytes;

    /// Whether an end with the pass `theirs` may be linked. The pass comes from outside and may hold any
    /// bytes.
    fn admits(&self, theirs: &[u8]) -> bool;

    /// Returns the reason why an end with the pass `theirs` is not admitted, as a text for people.
    fn refusal(&self, theirs: &[u8]) -> String {
        format!("this process does not admit the peer, whose pass has {} bytes", theirs.len())
    }
}

/// Upper bound of a pass, in bytes.
pub const PASS_BYTES_MAX: usize = 64;

/// The policy that admits every peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Anyone;

impl Policy for Anyone {
    fn pass(&self) -> Bytes {
        Bytes::new()
    }

    fn admits(&self, _: &[u8]) -> bool {
        true
    }
}
