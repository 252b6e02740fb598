//! Finding out whether a reign still stands, without a slot of the log (003 §VI.A.3; rule S16).
//!
//! A reign that has ended does not know it. An answer that rests on a leader's state alone is right only if no later leader
//! had anything chosen when the question was asked. So the leader asks the members whether they still hold its ballot to be the
//! highest. A later leader has the promises of a majority before it chooses anything; a majority that confirms afterwards
//! has promised it nothing.
//!
//! A round counts for the questions that came before it began, and for no others. All questions of a batch of inputs share
//! a round. At most two rounds are under way: what is asked meanwhile gathers for the third.
//!
//! **Who counts.** The members that the leader knows, and those that an open change would make too: a later leader may have
//! been elected by either. It cannot have been elected by any others before this reign ends. The reign is settled, so a majority of
//! the members accepted its log; any candidate sees that log, and with it the newest change but the open one.
//!
//! **Disk.** A promise that is on its way to the disk holds the confirmation back; nothing else does, for a read rests on no
//! record.

use std::collections::VecDeque;

use super::{Core, Event, Message, Paxos, Reign, State};
use crate::{
    id::{Peer, ProcessId},
    quorum,
    seam::{Sink, Ticket},
};

/// The rounds of one reign.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// The number of the last question.
    asked: u64,
    /// The last question that belongs to a round.
    covered: u64,
    /// The last round begun.
    last: u64,
    /// The rounds under way, each with the last question that came before it began.
    open: VecDeque<(u64, u64)>,
}

/// Rounds under way at a time.
const ROUNDS_OPEN_MAX: usize = 2;

impl Reign {
    /// Tells the user once both phases are complete for all that the reign began with.
    pub(super) fn settle(&mut self, core: &Core, out: &mut dyn Sink<Paxos>) {
        if !self.settled && core.chosen >= self.start && self.has_ground(core) {
            self.settled = true;
            out.emit(Event::Settled { ballot: self.ballot });
        }
    }

    /// The user wants to know whether the reign stood when the questions up to this one were asked.
    pub(super) fn ask(&mut self, through: u64) {
        self.rounds.asked = self.rounds.asked.max(through);
    }

    /// Begins a round for the questions that belong to none, if the reign is settled.
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

    /// The link to `peer` is new, so an earlier question or its answer may be lost.
    pub(super) fn ask_again(&self, core: &Core, peer: ProcessId, out: &mut dyn Sink<Paxos>) {
        if !self.rounds.open.is_empty() && core.concerns(peer) {
            let message = Message::Confirm { ballot: self.ballot, round: self.rounds.last };
            core.send_aside(peer, message, out);
        }
    }

    /// Asks those again that have not confirmed the last round: they may not have been voters when it began.
    pub(super) fn repeat_round(&self, core: &Core, out: &mut dyn Sink<Paxos>) {
        let late = self.peers.iter().filter(|(_, peer)| peer.confirmed < self.rounds.last);
        for (id, _) in late.filter(|(id, _)| core.links.contains(id)) {
            self.ask_again(core, *id, out);
        }
    }

    /// A member confirms the ballot.
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
    /// Whether a majority says so, with this process itself: of the members, and of those that an open change would make.
    fn is_majority(&self, says: impl Fn(ProcessId) -> bool) -> bool {
        let carried = |members: &[Peer]| {
            let votes = members.iter().filter(|peer| peer.id == self.me.id || says(peer.id)).count();
            votes >= quorum::majority(members.len())
        };
        carried(&self.members) && self.members_open().is_none_or(|open| carried(open))
    }
}

impl Paxos {
    /// The ballot that this process, a member, follows: it has promised no higher one.
    pub fn followed(&self) -> Option<super::Ballot> {
        let member = self.core.is_member(self.core.me.id);
        let follows = member && matches!(self.state, State::Follower);
        self.core.leader.filter(|ballot| follows && *ballot == self.core.promised)
    }

    /// The record of the last promise, if it is not durable yet: nothing that rests on the promise is said before.
    pub fn promise_awaited(&self) -> Option<Ticket> {
        self.core.promise_awaited()
    }

    /// Whether the processes that `says` names, with this one, are a majority of the members, and of those that an open change
    /// would make.
    pub fn is_majority(&self, says: impl Fn(ProcessId) -> bool) -> bool {
        self.core.is_majority(says)
    }
}
