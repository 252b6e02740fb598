//! The options of process groups.

use quorate_runtime::config::{DATAGRAM_BYTES, DATAGRAM_BYTES_MAX};

use crate::error::Error;

/// The options of a node as a member of groups.
#[derive(Clone, Debug)]
pub(in crate::node) struct GroupOptions {
    /// Upper bound of the node's datagrams, in bytes.
    pub(in crate::node) datagram_bytes: usize,
    /// Upper bound of the updates that the node sends together.
    pub(in crate::node) pack: u32,
}

impl Default for GroupOptions {
    fn default() -> GroupOptions {
        GroupOptions { datagram_bytes: DATAGRAM_BYTES_MAX, pack: u32::MAX }
    }
}

impl GroupOptions {
    pub(super) fn check(&self) -> Result<(), Error> {
        if !DATAGRAM_BYTES.contains(&self.datagram_bytes) {
            let (bytes, most) = (self.datagram_bytes, DATAGRAM_BYTES_MAX);
            return Err(Error::invalid(format!(
                "datagrams of {bytes} bytes are not possible: the size is between {} and {most} bytes",
                DATAGRAM_BYTES.start()
            )));
        }
        Ok(())
    }
}
