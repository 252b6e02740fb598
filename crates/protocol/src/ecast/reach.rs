//! The members that a router reaches, directly or through other routers. The router uses this to choose the
//! way of a message to a member.

use std::collections::{BTreeMap, BTreeSet};

use super::{Routing, order::Order};
use crate::id::ProcessId;

/// A router's knowledge of members beyond its own links.
#[derive(Default)]
pub(super) struct Detours {
    /// For each other router, the members that it reported as reached.
    pub(super) reached: BTreeMap<ProcessId, BTreeSet<ProcessId>>,
    /// The routers in `reached` with which this router talks; statements of all other routers do not count.
    pub(super) talking: BTreeSet<ProcessId>,
    /// The router to which this router last reported the members that it reaches.
    pub(super) reported_to: Option<ProcessId>,
    /// Whether a new report of the reached members must be sent.
    pub(super) due: bool,
}

impl Detours {
    /// Returns the router through which this router reaches `member`.
    pub(super) fn through(&self, member: ProcessId) -> Option<ProcessId> {
        self.trusted().find(|(_, members)| members.contains(&member)).map(|(router, _)| router)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.trusted().flat_map(|(_, members)| members).copied()
    }

    /// Returns the statements of the routers with which this router talks.
    fn trusted(&self) -> impl Iterator<Item = (ProcessId, &BTreeSet<ProcessId>)> {
        let counts = |(router, _): &(&ProcessId, _)| self.talking.contains(router);
        self.reached.iter().filter(counts).map(|(&router, members)| (router, members))
    }
}

/// Whether messages can reach `process`, directly or through another router.
pub(super) fn is_reached<R: Routing>(
    linked: &BTreeSet<ProcessId>,
    detours: &Detours,
    order: &Order<R>,
    process: ProcessId,
) -> bool {
    (linked.contains(&process) || detours.through(process).is_some()) && !order.is_fenced(process)
}

/// Maximum number of hops of a message. The limit ends messages that go in circles.
pub(super) const HOPS_MAX: u8 = 16;
