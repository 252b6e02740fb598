//! The answers that a founder collects from members before it begins a generation: their pledges, their
//! reports, and the reasons to refuse ([`refound`](super::refound)).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Position, reform::Tail};
use crate::{id::ProcessId, time::Time, wire::Wire};

/// A member's answer to a founder that calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pledge {
    /// The member will follow this founder, and no other founder as long as the link stands.
    Follows,
    /// The member follows another founder, which the answer names.
    FollowsAnother(ProcessId),
    /// The member has a link to a router that leads. The value names that router.
    Led(ProcessId),
}

/// A member's report to the founder that it follows.
#[derive(Clone, Debug, PartialEq, Eq, Wire)]
pub struct Witness {
    /// The answer that the member would give a survivor.
    pub tail: Tail,
    /// All deliveries after this position are in the tail.
    pub kept_behind: Position,
    /// All messages up to this position are stable, as routers reported.
    pub base: Position,
    /// The last number that the member gave to a message of its own.
    pub sent: u64,
    /// The members whose answers counted when the generation `tail.before` began; empty if the member does
    /// not know.
    pub counted: Vec<ProcessId>,
    /// The configuration at the member's last delivery, encoded; empty if it has none.
    pub config: Bytes,
}

/// The reason why no generation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RefoundRefusal {
    /// This process is a router, or another router feeds it the log. This process may continue as a survivor.
    #[error(
        "this router belongs to the domain, or another router sends it the log: only a fresh router can begin a generation from the members alone"
    )]
    NotFresh,
    /// An earlier command to begin a generation still waits for members.
    #[error(
        "an earlier request to begin a generation at this router still waits for members: wait until that request has ended"
    )]
    Underway,
    /// A member has a link to a router that leads. The value names that router.
    #[error("a member hears that router {0} is the leader: nothing is lost, and no new generation is needed")]
    LeaderLives(ProcessId),
    /// This founder cannot have a majority, because too many members follow another founder. The value is one
    /// such founder.
    #[error(
        "too many members follow router {0}, which was also asked to begin a generation from them: wait and see whether router {0} succeeds"
    )]
    FollowsAnother(ProcessId),
    /// No more than half of the members followed in time.
    #[error(
        "only {followed} of {named} members followed this router, and more than half have to: wait for the other members, or name the members that are gone for good"
    )]
    Unfollowed {
        /// Number of members that followed.
        followed: usize,
        /// Number of members that the operator named.
        named: usize,
    },
    /// No following member has delivered anything from which to continue.
    #[error(
        "no member that followed this router has delivered any message, so there is nothing to continue from"
    )]
    Nothing,
}

/// A founder's wait for members.
#[derive(Debug)]
pub(super) struct MemberPoll {
    /// The members that the operator named.
    pub(super) named: BTreeSet<ProcessId>,
    pub(super) until: Time,
    pub(super) pledged: BTreeSet<ProcessId>,
    pub(super) elsewhere: BTreeSet<ProcessId>,
    /// Whether a majority follows, and the founder has announced the generation.
    pub(super) begun: bool,
    pub(super) witnesses: BTreeMap<ProcessId, Witness>,
}

impl MemberPoll {
    pub(super) fn until(&self) -> Time {
        self.until
    }

    pub(super) fn is_majority(&self, count: usize) -> bool {
        count * 2 > self.named.len()
    }
}
