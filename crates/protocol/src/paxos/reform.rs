//! Continuing alone after a majority of the members is gone for good (rule S1).
//!
//! Without a majority the routers cannot agree on anything, and no vote can change that: an operator must say
//! that the other routers will not come back. One survivor then votes the others out one by one, after all
//! slots that it knows to be chosen, as the only remaining member. From then on it is a leader like any
//! other, and admits new routers.
//!
//! The log lacks the slots that the survivor accepted and does not know to be chosen. The other routers may
//! have chosen other values in these slots, and members may have acted on those values. The survivor hands
//! out its own values first ([`Paxos::unchosen`]), so that they can be proposed again after the values that
//! were acted on.
//!
//! The members of the newest change in the furthest log, chosen or not, decide whether a majority is lost,
//! because an election needs their votes. So a process that such a change adds may be the survivor, and a
//! process that the change removes may not.
//!
//! If no router is left, a router that has just started begins an empty log with a single member. Members
//! then tell it what the old log contained.
//!
//! The log alone cannot make it safe to continue alone. It is safe because no process of the new generation
//! may have a link to a router of the old generation ([`Fence`](crate::ecast::Fence)), so the two logs never
//! meet. The log lacks the entries that only the other routers held; [`ecast`](crate::ecast::Reformed)
//! recovers those that were delivered.

use bytes::Bytes;
use thiserror::Error;

use super::{Ballot, Context, Paxos, Reign, Sink, Slot, SlotValue, State};

/// The reason why a router cannot continue alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReformRefusal {
    /// The router leads, or knows a leader that seems well, so nothing is lost.
    #[error("this router has a leader that seems well: nothing is lost, and no new generation is needed")]
    LeaderLives,
    /// By the newest change of the members the router has no vote, so its log may lack messages.
    #[error(
        "this router has no vote, so its log may lack messages: begin the generation with a router that votes"
    )]
    NotMember,
}

impl Paxos {
    /// Checks whether this process could continue alone.
    pub fn can_reform(&self) -> Result<(), ReformRefusal> {
        let counts = self.core.members_known().iter().any(|peer| peer.id == self.core.me.id);
        if matches!(self.state, State::Removed) || !counts {
            return Err(ReformRefusal::NotMember);
        }
        if self.core.leader.is_some() {
            return Err(ReformRefusal::LeaderLives);
        }
        Ok(())
    }

    /// Returns the payloads that this process accepted in the newest reign it knows, and that are not known
    /// to be chosen.
    pub fn unchosen(&self) -> Vec<Bytes> {
        let (chosen, (_, last)) = (self.core.chosen, self.core.known());
        let values = self.core.log.range(chosen, last).into_iter().map(|value| match value {
            SlotValue::Payloads(payloads) => payloads.to_vec(),
            SlotValue::Members(_) => Vec::new(),
        });
        values.flatten().collect()
    }

    /// Continues as the only member, with every slot that this process knows to be chosen.
    /// [`Paxos::can_reform`] must allow it. The caller must know that no majority of the other routers will
    /// ever act again, or that no process listens to them.
    pub(super) fn reform(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        assert!(self.can_reform().is_ok(), "only a member without a leader goes on alone");
        self.end_former_role(cx, out);
        let ballot = Ballot { round: self.core.round.max(self.core.promised.round) + 1, router: cx.me };
        self.core.promise(ballot, out);
        let mut ticket = self.core.replace(ballot, self.core.chosen, &[], out);
        let me = self.core.me.clone();
        while self.core.members != [me.clone()] {
            let mut members = self.core.members.clone();
            match members.iter().position(|peer| peer.id != me.id) {
                // If only an open change would add this process, it is added first.
                _ if !self.core.is_member(me.id) => members.push(me.clone()),
                Some(other) => drop(members.remove(other)),
                None => unreachable!("the loop ends when this router is the only member"),
            }
            members.sort_unstable();
            ticket = self.core.append(ballot, vec![SlotValue::Members(members.into())], out);
            self.core.learn(self.core.log.last(), out);
        }
        self.attempts = 0;
        self.election = None;
        self.core.leader = Some(ballot);
        self.state = State::Leader(Box::new(Reign::begin(&self.core, ballot, ticket, out)));
        self.core.announce_leader(true, out);
    }

    /// Whether this process could begin a log of its own if no router is left: it is joining, and has
    /// received nothing of the log.
    pub fn can_found(&self) -> bool {
        let empty = self.core.chosen == Slot::ZERO && self.core.log.last() == Slot::ZERO;
        matches!(self.state, State::Joining { .. }) && empty && self.core.leader.is_none()
    }

    /// Begins a log as the only member. [`Paxos::can_found`] must allow it. The contents of the lost log come
    /// from members.
    pub(super) fn found_again(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        assert!(self.can_found(), "only a joiner that was sent no log begins a log");
        if let State::Joining { seeds, .. } = &mut self.state {
            for seed in std::mem::take(seeds) {
                self.core.forget(seed.id, out);
            }
        }
        self.election = None;
        self.begin(cx, true, out);
    }
}
