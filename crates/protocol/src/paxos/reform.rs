//! Going on alone, when a majority of the members is gone for good (rule S1).
//!
//! Agreement ends where a majority is lost, and no vote can mend it: somebody outside has to say that the others will not
//! come back. One survivor then votes the others out one by one behind all that it knows to be chosen, as only member of
//! what is left. From there on it is a leader like any other, and takes fresh routers in.
//!
//! What it accepted without knowing whether a majority did is no part of that log: others may have chosen something else in
//! its place, and acted on it. It is handed out first ([`Paxos::unchosen`]), to be proposed again behind what is found to
//! have been acted on.
//!
//! Whether a majority is lost is judged by the members that the newest change in the furthest log makes, chosen or not: it
//! is their votes that an election needs. So one that such a change takes in may be the survivor, and nobody whom it takes
//! out.
//!
//! Where no router is left, one that has just started begins a log anew, with a single member and nothing in it, and is told
//! by members what was in the old one.
//!
//! What makes this safe lies outside: no process of the new generation may be linked to a router of the old one
//! ([`Fence`](crate::ecast::Fence)), so that the two logs never meet.
//! What only the others held is lost to the log; [`ecast`](crate::ecast::Reformed) recovers what was delivered.

use bytes::Bytes;
use thiserror::Error;

use super::{Ballot, Context, Paxos, Reign, Sink, Slot, State, Value};

/// Why a router cannot go on alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReformRefusal {
    /// It knows a leader that seems well, or leads itself: nothing is lost.
    #[error("this router has a leader that seems well: nothing is lost")]
    LeaderLives,
    /// It is no member, nor about to be one, or about to be none: it may lack anything.
    #[error("this router does not vote: it may lack anything")]
    NotMember,
}

impl Paxos {
    /// Whether this process could go on alone.
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

    /// What this process accepted in the newest reign that it knows, and does not know to be chosen.
    pub fn unchosen(&self) -> Vec<Bytes> {
        let (chosen, (_, last)) = (self.core.chosen, self.core.known());
        let values = self.core.log.range(chosen, last).into_iter().map(|value| match value {
            Value::Payloads(payloads) => payloads.to_vec(),
            Value::Members(_) => Vec::new(),
        });
        values.flatten().collect()
    }

    /// Goes on as the only member, with all that this process knows to be chosen. It must be able to, and whoever calls this must
    /// know that no majority of the others ever acts again, or that nobody listens to them.
    pub(super) fn reform(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        assert!(self.can_reform().is_ok(), "only a member without a leader goes on alone");
        self.stand_back(cx, out);
        let ballot = Ballot { round: self.core.round.max(self.core.promised.round) + 1, router: cx.me };
        self.core.promise(ballot, out);
        let mut ticket = self.core.replace(ballot, self.core.chosen, &[], out);
        let me = self.core.me.clone();
        while self.core.members != [me.clone()] {
            let mut members = self.core.members.clone();
            match members.iter().position(|peer| peer.id != me.id) {
                // One whom only an open change took in comes in first.
                _ if !self.core.is_member(me.id) => members.push(me.clone()),
                Some(other) => drop(members.remove(other)),
                None => unreachable!("the only member is this one"),
            }
            members.sort_unstable();
            ticket = self.core.append(ballot, vec![Value::Members(members.into())], out);
            self.core.learn(self.core.log.last(), out);
        }
        self.attempts = 0;
        self.election = None;
        self.core.leader = Some(ballot);
        self.state = State::Leader(Box::new(Reign::begin(&self.core, ballot, ticket, out)));
        self.core.tell_leader(true, out);
    }

    /// Whether this process could begin a log of its own, where no router is left: it joins, and has been fed nothing.
    pub fn can_found(&self) -> bool {
        let empty = self.core.chosen == Slot::ZERO && self.core.log.last() == Slot::ZERO;
        matches!(self.state, State::Joining { .. }) && empty && self.core.leader.is_none()
    }

    /// Begins a log as the only member. It must be able to, and what was in the log that is lost comes from elsewhere.
    pub(super) fn found_anew(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        assert!(self.can_found(), "only a joiner that was fed nothing begins a log");
        if let State::Joining { seeds, .. } = &mut self.state {
            for seed in std::mem::take(seeds) {
                self.core.forget(seed.id, out);
            }
        }
        self.election = None;
        self.begin(cx, true, out);
    }
}
