//! Confirm rounds: finding out whether a reign still stands, without a slot of the log (003 §VI.A.3; rule
//! S16).
//!
//! A leader does not notice the end of its reign. An answer that depends on its state alone is correct only
//! if no later leader had chosen anything when the question was asked. So the leader asks the members whether
//! they have promised no higher ballot. A later leader has the promises of a majority before it chooses
//! anything. So a majority that confirms has promised nothing to a later leader.
//!
//! A round counts only for questions that came before it began. All questions of a batch of inputs share a
//! round. At most two rounds are in progress. Questions that come during these rounds gather for a third
//! round.
//!
//! **Who counts.** A round needs a majority of the members that the leader knows. If a change is open, it
//! also needs a majority of the members after that change, because either set may have elected a later
//! leader. No other set can have elected a leader before this reign ends. The reign is settled, so a majority
//! of the members accepted its log. Any candidate sees that log, and with it the newest change except the
//! open one.
//!
//! **Disk.** Only a promise on its way to the disk delays a confirmation. A read depends on no record, so no
//! other record delays it.

use super::{Core, Event, Message, Paxos, Reign, State};
use crate::{
    id::{Peer, ProcessId},
    quorum,
    seam::{Sink, Ticket},
};

/// Maximum number of rounds in progress.
const ROUNDS_OPEN_MAX: usize = 2;

impl Reign {
    /// Tells the user that the reign is settled, once both phases are complete for the reign's initial log.
    pub(super) fn settle(&mut self, core: &Core, out: &mut dyn Sink<Paxos>) {
        if !self.settled && core.chosen >= self.start && self.has_ground(core) {
            self.settled = true;
            out.emit(Event::Settled { ballot: self.ballot });
        }
    }

    /// Notes the user's questions up to number `through`, whether the reign stood when the user asked.
    pub(super) fn ask(&mut self, through: u64) {
        self.rounds.asked = self.rounds.asked.max(through);
    }

    /// Begins a round for the questions that no round covers, if the reign is settled.
    pub(super) fn open_rounds(&mut self, core: &Core, out: &mut dyn Sink<Paxos>) {
        let rounds = &mut self.rounds;
        if self.settled && rounds.asked > rounds.covered && rounds.open.len() < ROUNDS_OPEN_MAX {
            rounds.last += 1;
            rounds.covered = rounds.asked;
            rounds.open.push_back((rounds.last, rounds.asked));
            let message = Message::Confirm { ballot: self.ballot, round: rounds.last };
            let voters = self.peers.keys().copied().filter(|id| core.concerns(*id)).collect();
            core.send_all_aside(voters, message, out);
        }
        self.close_rounds(core, out);
    }

    /// Asks `peer` again, because its link is new and an earlier question or answer may be lost.
    pub(super) fn ask_again(&self, core: &Core, peer: ProcessId, out: &mut dyn Sink<Paxos>) {
        if !self.rounds.open.is_empty() && core.concerns(peer) {
            let message = Message::Confirm { ballot: self.ballot, round: self.rounds.last };
            core.send_aside(peer, message, out);
        }
    }

    /// Asks again those processes that have not confirmed the last round. They may have had no vote when the
    /// round began.
    pub(super) fn repeat_round(&self, core: &Core, out: &mut dyn Sink<Paxos>) {
        let late = self.peers.iter().filter(|(_, peer)| peer.confirmed < self.rounds.last);
        for (id, _) in late.filter(|(id, _)| core.links.contains(id)) {
            self.ask_again(core, *id, out);
        }
    }

    /// Handles a member's confirmation of the ballot.
    pub(super) fn confirmed(&mut self, core: &Core, from: ProcessId, round: u64, out: &mut dyn Sink<Paxos>) {
        if let Some(peer) = self.peers.get_mut(&from)
            && round <= self.rounds.last
        {
            peer.confirmed = peer.confirmed.max(round);
            self.close_rounds(core, out);
        }
    }

    /// Ends the rounds that a majority has confirmed.
    fn close_rounds(&mut self, core: &Core, out: &mut dyn Sink<Paxos>) {
        let mut through = None;
        while let Some((round, questions)) = self.rounds.open.front().copied() {
            let says = |id: ProcessId| self.peers.get(&id).is_some_and(|peer| peer.confirmed >= round);
            if !core.is_majority(says) {
                break;
            }
            self.rounds.open.pop_front();
            through = Some(questions);
        }
        if let Some(through) = through {
            out.emit(Event::Confirmed { ballot: self.ballot, through });
        }
    }
}

impl Core {
    /// Whether `says` holds for a majority of the members, this process included. If a change is open, it
    /// must also hold for a majority of the members after that change.
    fn is_majority(&self, says: impl Fn(ProcessId) -> bool) -> bool {
        let carried = |members: &[Peer]| {
            let votes = members.iter().filter(|peer| peer.id == self.me.id || says(peer.id)).count();
            votes >= quorum::majority(members.len())
        };
        carried(&self.members) && self.members_open().is_none_or(|open| carried(open))
    }
}

impl Paxos {
    /// Returns the ballot that this process follows as a member. The process has promised no higher ballot.
    pub fn followed(&self) -> Option<super::Ballot> {
        let member = self.core.is_member(self.core.me.id);
        let follows = member && matches!(self.state, State::Follower);
        self.core.leader.filter(|ballot| follows && *ballot == self.core.promised)
    }

    /// Returns the record of the last promise, if it is not durable yet. Messages that depend on the promise
    /// must wait for it.
    pub fn promise_awaited(&self) -> Option<Ticket> {
        self.core.promise_awaited()
    }

    /// Whether the processes for which `says` holds are, together with this process, a majority of the
    /// members. If a change is open, they must also be a majority of the members after that change.
    pub fn is_majority(&self, says: impl Fn(ProcessId) -> bool) -> bool {
        self.core.is_majority(says)
    }
}
