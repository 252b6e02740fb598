//! The injections of the latest state that wait for a confirmation ([`latest`](super::latest)).

use std::collections::{BTreeMap, VecDeque};

use crate::{
    id::ProcessId,
    paxos::{self, Ballot},
};

/// Maximum number of injections of the latest state that wait for a round.
pub(super) const OPEN_MAX: usize = 65_536;

/// The injections of the latest state that a lead router has delivered and not confirmed.
#[derive(Default)]
pub(super) struct UnconfirmedInjections {
    /// The reign of this router, while it leads.
    pub(super) reign: Option<ReignState>,
    /// The last number given to an injection.
    last: u64,
    /// The last injection for which this router has asked the log for a round.
    asked: u64,
    /// The injections without a confirmation, oldest first. Bounded by [`OPEN_MAX`].
    pub(super) open: VecDeque<OpenInjection>,
}

/// A reign of this router.
pub(super) struct ReignState {
    pub(super) ballot: Ballot,
    /// Whether this router has learned everything that earlier leaders chose.
    pub(super) settled: bool,
}

/// An injection that waits for a round.
pub(super) struct OpenInjection {
    number: u64,
    member: ProcessId,
    /// The member's number of the injection.
    token: u64,
}

impl UnconfirmedInjections {
    /// Whether an injection may be delivered now.
    pub(super) fn is_ready(&self) -> bool {
        self.reign.as_ref().is_some_and(|reign| reign.settled) && self.open.len() < OPEN_MAX
    }

    /// Notes an injection that was delivered.
    pub(super) fn push(&mut self, member: ProcessId, token: u64) {
        self.last += 1;
        self.open.push_back(OpenInjection { number: self.last, member, token });
    }

    /// Takes the injections up to this number. Returns the senders' numbers by sender, oldest first. Takes
    /// none if the reign of `ballot` has ended.
    pub(super) fn confirm(&mut self, ballot: Ballot, through: u64) -> BTreeMap<ProcessId, Vec<u64>> {
        let mut confirmed: BTreeMap<ProcessId, Vec<u64>> = BTreeMap::new();
        if self.reign.as_ref().is_some_and(|reign| reign.ballot == ballot) {
            while let Some(injection) = self.open.pop_front_if(|injection| injection.number <= through) {
                confirmed.entry(injection.member).or_default().push(injection.token);
            }
        }
        confirmed
    }

    /// Ends the reign. Returns the senders of the open injections, each with the sender's number.
    pub(super) fn end(&mut self) -> Vec<(ProcessId, u64)> {
        self.reign = None;
        self.asked = self.last;
        let open = std::mem::take(&mut self.open);
        open.into_iter().map(|injection| (injection.member, injection.token)).collect()
    }

    pub(super) fn reign_began(&mut self, ballot: Ballot) {
        self.reign = Some(ReignState { ballot, settled: false });
    }

    pub(super) fn reign_settled(&mut self, ballot: Ballot) {
        if let Some(reign) = self.reign.as_mut().filter(|reign| reign.ballot == ballot) {
            reign.settled = true;
        }
    }

    /// Returns a question to the log whether this reign still stands, if an injection has arrived since the
    /// last question.
    pub(super) fn question(&mut self) -> Option<paxos::Command> {
        let reign = self.reign.as_ref().filter(|_| self.asked < self.last)?;
        self.asked = self.last;
        Some(paxos::Command::Confirm { ballot: reign.ballot, through: self.last })
    }
}
