//! Going on alone, when a majority of the members is gone for good (rule S1).
//!
//! Agreement ends where a majority is lost, and no vote can mend it: somebody outside has to say that the others will not
//! come back. One survivor then takes everything in its log for chosen, also what it accepted without knowing whether a
//! majority did, and votes the others out one by one, as only member of what is left. From there on it is a leader like
//! any other, and takes fresh routers in.
//!
//! What makes this safe lies outside: no process of the new generation may be linked to a router of the old one
//! ([`Standing::may_link`](crate::Standing::may_link)), so that the two logs never meet.
//! What only the others held is lost to the log; [`ecast`](crate::ecast::Reformed) recovers what was delivered.

use super::{Ballot, Context, Paxos, Reign, Role, Sink, Value};

/// Why a router cannot go on alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReformRefusal {
    /// It knows a leader that seems well, or leads itself: nothing is lost.
    LeaderLives,
    /// It is no member, or about to be none: it may lack anything.
    NotMember,
    /// The generation is not a later one.
    NotLater,
}

impl Paxos {
    /// Whether this process could go on alone.
    pub fn can_reform(&self) -> Result<(), ReformRefusal> {
        let me = self.core.me.id;
        let stays = self.core.members_open().is_none_or(|open| open.iter().any(|peer| peer.id == me));
        if !self.is_voter() || !self.core.is_member(me) || !stays {
            return Err(ReformRefusal::NotMember);
        }
        if self.core.leader.is_some() {
            return Err(ReformRefusal::LeaderLives);
        }
        Ok(())
    }

    /// Goes on as the only member, with all that this process holds. It must be able to, and whoever calls this must
    /// know that no majority of the others ever acts again, or that nobody listens to them.
    pub(super) fn reform(&mut self, cx: &mut Context<'_>, out: &mut impl Sink<Self>) {
        assert!(self.can_reform().is_ok(), "only a member without a leader goes on alone");
        self.stand_back(cx, out);
        let ballot = Ballot { round: self.core.round.max(self.core.promised.round) + 1, router: cx.me };
        self.core.promise(ballot, out);
        let (chosen, last) = (self.core.chosen, self.core.log.last());
        let values = self.core.log.range(chosen, last);
        let mut ticket = self.core.replace(ballot, chosen, &values, out);
        self.core.learn(last, out);
        while let Some(other) = self.core.others().first().copied() {
            let members = self.core.members.iter().filter(|peer| peer.id != other).cloned().collect();
            ticket = self.core.append(ballot, vec![Value::Members(members)], out);
            self.core.learn(self.core.log.last(), out);
        }
        self.attempts = 0;
        self.election = None;
        self.core.leader = Some(ballot);
        self.role = Role::Leader(Box::new(Reign::new(&self.core, ballot, ticket)));
        self.core.tell_leader(true, out);
    }
}
