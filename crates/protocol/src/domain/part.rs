//! The trait [`Part`] of the applications that share the routers of a domain, such as tables and groups, and
//! the reasons for which a router refuses a message before any part sees it.

use crate::ecast::{Refusal, Routing};

/// An application of E-Cast that shares the routers with other applications.
pub trait Part: Routing {
    /// The first byte of every message that the part's members submit, and of every configuration that they
    /// report when a domain is founded again from its members.
    const TAG: u8;

    /// The version of routing from which on domains have this part. Routers of earlier builds do not know it.
    const SINCE: u32 = 1;

    /// Returns the configuration of a part without members.
    fn vacant() -> Self::Config;

    /// Returns the version of routing that the members of the domain agreed to use, if this part records it.
    fn version(_config: &Self::Config) -> Option<u32> {
        None
    }
}

/// Reasons for which routers refuse a message before any part sees it. The parts' own reasons have smaller
/// numbers.
pub mod refusal {
    use super::Refusal;

    /// The message belongs to no part that these routers know.
    pub const NO_PART: Refusal = Refusal(128);
    /// The sender is a member of a part other than the message's part.
    pub const OTHER_PART: Refusal = Refusal(129);
}
