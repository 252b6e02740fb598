//! The surroundings of a member during one call: the process's state that it borrows, and the effects that it
//! requests.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::{
    ecast::{Class, Position},
    group::{CommandOutcome, Event, Failure, GroupId, Message, Settings, SurvivorReport, routing::Control},
    id::ProcessId,
    seam::{CommandId, Destination, MulticastAddress},
    time::{Duration, Time},
};

/// A message for the order.
pub(in crate::group) struct Submission {
    pub(in crate::group) class: Class,
    pub(in crate::group) body: Bytes,
    /// The group and the number of the send that awaits the message's outcome; `None` for other messages.
    pub(in crate::group) send: Option<(GroupId, u64)>,
}

/// The effects that members request of their process.
#[derive(Default)]
pub(in crate::group) struct Effects {
    pub(in crate::group) events: Vec<Event>,
    pub(in crate::group) sends: Vec<(Destination, Message)>,
    pub(in crate::group) casts: Vec<(Destination, Message)>,
    /// Casts by multicast address, each with the processes that should receive it.
    pub(in crate::group) multicasts: Vec<(MulticastAddress, Vec<ProcessId>, Message)>,
    pub(in crate::group) submits: Vec<Submission>,
    /// Survivors' reports, by group. Reports of several groups go out as one message, and so do completed
    /// repairs.
    pub(in crate::group) reports: Vec<(GroupId, SurvivorReport)>,
    pub(in crate::group) repaired: Vec<(GroupId, Position)>,
    /// Number of refused messages, which no correct peer sends.
    pub(in crate::group) refused: u64,
    /// Number of messages from processes that were dropped.
    pub(in crate::group) firewalled: u64,
    /// Number of views that began here.
    pub(in crate::group) views: u64,
    /// Longest time that a member's own soft messages waited for a view.
    pub(in crate::group) longest_wait: Duration,
    /// Number of times that this process requested gaps in a stream of another member, each time one gap or
    /// several.
    pub(in crate::group) gaps: u64,
    /// Number of soft messages that were sent again.
    pub(in crate::group) resent: u64,
    /// Number of casts, counted once for each receiving process.
    pub(in crate::group) cast: u64,
    /// Number of casts to a multicast address.
    pub(in crate::group) multicast: u64,
    /// Number of times that this process gave up casts to another process.
    pub(in crate::group) fallbacks: u64,
    /// Time at which members next check for due work.
    pub(in crate::group) wake_at: Option<Time>,
}

impl Effects {
    pub(super) fn done(&mut self, id: CommandId, result: Result<CommandOutcome, Failure>) {
        self.events.push(Event::Done { id, result });
    }

    /// Makes members check for due work at this instant at the latest.
    pub(super) fn wake(&mut self, at: Time) {
        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }

    pub(super) fn control(&mut self, control: &Control) {
        self.submits.push(Submission { class: Class::Control, body: control.encode(), send: None });
    }
}

/// The resources that a member borrows from its process for one call.
pub(in crate::group) struct MemberContext<'a> {
    pub(in crate::group) now: Time,
    pub(in crate::group) settings: &'a Settings,
    pub(in crate::group) linked: &'a BTreeSet<ProcessId>,
    /// Whether a reachable router knows a leader.
    pub(in crate::group) in_touch: bool,
    pub(in crate::group) effects: &'a mut Effects,
}
