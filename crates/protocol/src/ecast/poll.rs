//! A founder polls the members, which pledge and report, before it begins a generation
//! ([`refound`](super::refound)).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Position, reform::Tail};
use crate::{id::ProcessId, time::Time};

/// A member's answer to a founder that calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pledge {
    /// The member will follow this founder, and no other as long as the link stands.
    Follows,
    /// The member follows another founder, this one.
    FollowsAnother(ProcessId),
    /// The member hears that this router leads.
    Led(ProcessId),
}

/// A member's report to the founder that it follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The answer that the member would give a survivor.
    pub tail: Tail,
    /// All deliveries behind this position are in the tail.
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
    /// This process is a router, or another router feeds it the log. It may continue as a survivor.
    #[error("this router belongs to the domain, or others feed it: nothing is lost, or it is a survivor")]
    NotFresh,
    /// An earlier command waits for members.
    #[error("it was asked already, and waits for members")]
    Underway,
    /// A member hears that this router leads.
    #[error("a member hears that {0} is the leader: nothing is lost")]
    LeaderLives(ProcessId),
    /// Too many members follow another founder for a majority; the value is one such founder.
    #[error("members follow the router {0}, which was told to go on from them too: see whether it does")]
    FollowsAnother(ProcessId),
    /// No more than half of the members followed in time.
    #[error(
        "only {followed} of {named} members followed, and more than half of them have to: wait for others, or name those \
         that are gone for good"
    )]
    Unfollowed {
        /// Number of members that followed.
        followed: usize,
        /// Number of members that the operator named.
        named: usize,
    },
    /// No following member has delivered anything from which to continue.
    #[error("no member that followed has anything that could be gone on from")]
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
    /// Whether a majority follows, so that the generation has been announced.
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
