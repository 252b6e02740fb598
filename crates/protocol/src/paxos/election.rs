//! Elections: which router may lead, and what it must know before it does.

use std::collections::BTreeMap;

use super::{
    Ballot, Better, Candidacy, CandidateStage, Context, Core, Duration, Message, Paxos, Prepare, ProcessId,
    Promise, Refusal, Reign, Sink, Slot, SlotValue, State, candidate,
};
use crate::{quorum, wire::FRAME_BYTES_MAX};

impl Paxos {
    /// Stands for election.
    pub(super) fn stand(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        assert!(
            self.core.concerns(cx.me),
            "only a member, or a process that is about to be a member, stands for leader"
        );
        self.end_former_role(cx, out);
        self.core.announce_leader(false, out);
        (self.election, self.ready_from) = (None, None);
        let ballot = self.next_ballot(cx);
        let patience = self.interval() * (4 << self.attempts.min(3));
        let until = cx.now + patience + self.chance(cx, patience / 2);
        let mut candidacy = Candidacy::new(&self.core, ballot, cx.now, until);
        candidacy.ask(&mut self.core, out);
        self.state = State::Candidate(candidacy);
        self.count_votes(cx, out);
    }

    fn next_ballot(&self, cx: &Context<'_>) -> Ballot {
        Ballot { round: self.core.round.max(self.core.promised.round) + 1, router: cx.me }
    }

    /// Asks a router outside the known members. Such a router has no vote. But the known members may all be
    /// gone after they voted this process out, and then only such a router can report the removal.
    pub(super) fn ask_stranger(&self, cx: &Context<'_>, stranger: ProcessId, out: &mut dyn Sink<Self>) {
        let question = Candidacy::new(&self.core, self.next_ballot(cx), cx.now, cx.now).question();
        self.core.send(stranger, question, out);
    }

    /// Gives up the candidacy for a while.
    pub(super) fn abandon(&mut self, cx: &mut Context<'_>, patience: Duration, out: &mut dyn Sink<Self>) {
        assert!(matches!(self.state, State::Candidate(_)), "only a candidate abandons");
        self.attempts += 1;
        self.lose_leader(cx, patience, out);
    }

    /// Whether this process answers a candidate's question. A candidate that is no longer a member gets a
    /// message about its removal instead.
    fn answers(&mut self, from: ProcessId, prepare: &Prepare, out: &mut dyn Sink<Self>) -> bool {
        if prepare.ballot.router != from {
            return false;
        }
        let core = &self.core;
        // A candidate whose log is newer may know of a change that makes the candidate, or this process, a
        // member.
        let knows_more = prepare.chosen > core.chosen
            || (prepare.accepted, prepare.last) > (core.accepted, core.log.last());
        if !self.is_voter() {
            // A learner has a vote only in sets of members that name it, and a set names a learner only once
            // the learner holds every chosen slot. This process may not have the slot with such a set any
            // longer, so it leaves the decision to the candidate.
            return core.accepted > Ballot::ZERO;
        }
        if core.concerns(from) || knows_more {
            return true;
        }
        let message = Message::NotMember { chosen: self.core.chosen, members: self.core.members.clone() };
        self.core.send(from, message, out);
        false
    }

    /// Returns the reason to refuse a candidate, if there is one.
    fn refusal(&self, prepare: &Prepare) -> Option<Refusal> {
        if prepare.ballot < self.core.promised {
            return Some(Refusal::Outbid);
        }
        // If this process's log beats the candidate's, the promise must carry the whole part of this log that
        // the candidate lacks. This part must still be kept and fit into a message. A candidate with the
        // better log lacks nothing.
        let behind =
            self.beats(prepare) && self.values_behind(prepare.chosen, self.core.log.last()).is_none();
        behind.then_some(Refusal::Behind)
    }

    /// Whether this process's log has a higher ballot than the candidate's, or is longer.
    fn beats(&self, prepare: &Prepare) -> bool {
        (self.core.accepted, self.core.log.last()) > (prepare.accepted, prepare.last)
    }

    /// Returns the log after `start`, up to `end`, if it is all kept and fits into a message.
    fn values_behind(&self, start: Slot, end: Slot) -> Option<Vec<SlotValue>> {
        if start >= end {
            return Some(Vec::new());
        }
        let log = &self.core.log;
        let fits = start >= log.start() && log.reach(start, end, FRAME_BYTES_MAX / 2) == end;
        fits.then(|| log.range(start, end))
    }

    pub(super) fn pre_vote(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        prepare: Prepare,
        out: &mut dyn Sink<Self>,
    ) {
        if !self.answers(from, &prepare, out) {
            return;
        }
        let ballot = prepare.ballot;
        if self.leader() == Some(from) {
            // A leader that asks for votes does not lead any longer.
            self.lose_leader(cx, self.interval() * 2, out);
        }
        // Stability: while a leader seems well to this process, this process helps no candidate.
        let lives = match &self.state {
            State::Leader(_) => true,
            _ => self.leader().is_some_and(|leader| !self.core.detector.suspects(leader, cx.now)),
        };
        let refusal = if lives { Some(Refusal::LeaderLives) } else { self.refusal(&prepare) };
        let refusal = refusal.or((ballot <= self.core.promised).then_some(Refusal::Outbid));
        let refusal = refusal.or(self.has_rival(cx, &prepare).then_some(Refusal::Rival));
        match refusal {
            Some(refusal) => {
                let promised = self.core.promised;
                self.core.send(from, Message::Refused { ballot, promised, refusal }, out);
            }
            None => {
                if matches!(self.state, State::Candidate(_)) {
                    // The candidate that asks is better connected than this process, so this process gives
                    // way.
                    self.lose_leader(cx, self.interval() * 4, out);
                }
                if self.could_be_carried(&prepare) {
                    self.granted = Some((from, cx.now + self.interval() * 2));
                }
                let better = self.beats(&prepare).then(|| Better {
                    accepted: self.core.accepted,
                    last: self.core.log.last(),
                    members: self.core.acting().to_vec(),
                });
                self.core.send(from, Message::PreVoted { ballot, better }, out);
                if let Some(election) = &mut self.election {
                    // The candidate that asks gets time to succeed.
                    *election = (*election).max(cx.now + self.core.settings.detector.interval * 2);
                }
            }
        }
    }

    /// Whether this process helps another candidate at present, so that of two simultaneous candidates only
    /// one reaches phase 1. A candidate gives way to a better connected candidate. A candidate that was
    /// refused or cannot win also gives way, until it reaches phase 1 itself.
    fn has_rival(&self, cx: &Context<'_>, prepare: &Prepare) -> bool {
        let own = match &self.state {
            State::Candidate(candidacy) if matches!(candidacy.stage, CandidateStage::PreVote(_)) => {
                let own = &candidacy.prepare;
                let better = (own.reach, own.ballot) > (prepare.reach, prepare.ballot);
                better && candidacy.refused.is_empty() && !candidacy.is_hopeless(&self.core, cx.now)
            }
            State::Candidate(_) => true,
            _ => false,
        };
        let helps = |(other, until): (ProcessId, _)| other != prepare.ballot.router && cx.now < until;
        own || self.could_be_carried(prepare) && self.granted.is_some_and(helps)
    }

    /// Whether the candidate reports that it talks with a majority.
    fn could_be_carried(&self, prepare: &Prepare) -> bool {
        prepare.reach as usize >= quorum::majority(self.core.acting().len())
    }

    /// Handles a candidate's message of phase 1a: promises its ballot (phase 1b), or refuses it.
    pub(super) fn prepare(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        prepare: Prepare,
        out: &mut dyn Sink<Self>,
    ) {
        if !self.answers(from, &prepare, out) {
            return;
        }
        let ballot = prepare.ballot;
        if let Some(refusal) = self.refusal(&prepare) {
            let promised = self.core.promised;
            self.core.send(from, Message::Refused { ballot, promised, refusal }, out);
            return;
        }
        if self.core.leader == Some(ballot) {
            // The candidate leads already: a repeated question arrived after its success.
            return;
        }
        if ballot > self.core.promised {
            self.core.promise(ballot, out);
        }
        self.lose_leader(cx, self.interval() * 6, out);
        self.granted = Some((from, cx.now + self.interval() * 4));
        let core = &self.core;
        let (accepted, last, start) = (core.accepted, core.log.last(), prepare.chosen);
        // This process may no longer keep slots known to be chosen. Then it promises like a router that has
        // accepted the same slots and has not learned yet which values were chosen. The better log holds
        // those slots.
        let (chosen, values) = if self.beats(&prepare) {
            (core.chosen, self.values_behind(start, last).expect("a candidate that lacks more was refused"))
        } else {
            let learned = self.values_behind(start, core.chosen);
            learned.map_or((start, Vec::new()), |values| (core.chosen, values))
        };
        core.send(from, Message::Promise { ballot, accepted, last, chosen, start, values }, out);
    }

    pub(super) fn pre_voted(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        ballot: Ballot,
        better: Option<Better>,
        out: &mut dyn Sink<Self>,
    ) {
        if let State::Candidate(candidacy) = &mut self.state
            && candidacy.prepare.ballot == ballot
            && let CandidateStage::PreVote(votes) = &mut candidacy.stage
        {
            votes.insert(from, better);
            candidacy.ask(&mut self.core, out);
            self.count_votes(cx, out);
        }
    }

    /// Handles a promise.
    pub(super) fn promised(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        ballot: Ballot,
        promise: Promise,
        out: &mut dyn Sink<Self>,
    ) {
        if let State::Candidate(candidacy) = &mut self.state
            && candidacy.prepare.ballot == ballot
            && let CandidateStage::Prepare(promises) = &mut candidacy.stage
            && promise.is_whole(&candidacy.prepare)
            && self.core.are_steps(promise.start, promise.learned())
        {
            self.core.learn_from(promise.accepted, promise.start, promise.learned(), out);
            promises.insert(from, promise);
            candidacy.ask(&mut self.core, out);
            self.count_votes(cx, out);
        }
    }

    pub(super) fn refused(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        ballot: Ballot,
        promised: Ballot,
        refusal: Refusal,
        out: &mut dyn Sink<Self>,
    ) {
        if !self.core.concerns(from) {
            if let State::Leader(reign) = &self.state
                && reign.ballot == ballot
                && promised > ballot
            {
                reign.outbid_by_learner(&self.core, from, out);
            }
            return;
        }
        self.core.round = self.core.round.max(promised.round);
        match &mut self.state {
            State::Leader(reign) if reign.ballot == ballot && promised > ballot => {
                self.lose_leader(cx, self.interval() * 2, out);
            }
            State::Candidate(candidacy) if candidacy.prepare.ballot == ballot => {
                candidacy.refused.insert(from);
                if candidacy.is_hopeless(&self.core, cx.now) {
                    // A candidate lets other members stand first if it lacks much of the log, or if its
                    // voters help another candidate.
                    let patience = match refusal {
                        Refusal::Behind => 8,
                        Refusal::Rival => 4,
                        Refusal::Outbid | Refusal::LeaderLives => 1,
                    };
                    self.abandon(cx, self.interval() * patience / 2, out);
                }
            }
            _ => {}
        }
    }

    /// Continues the candidacy as long as the electors' votes suffice: from the pre-vote to phase 1, and from
    /// phase 1 to the reign.
    pub(super) fn count_votes(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        while let State::Candidate(candidacy) = &mut self.state
            && self.core.concerns(cx.me)
            && candidacy.is_carried(&self.core)
        {
            match &candidacy.stage {
                CandidateStage::PreVote(_) => {
                    assert!(candidacy.prepare.ballot > self.core.promised, "a ballot is used once");
                    self.core.promise(candidacy.prepare.ballot, out);
                    candidacy.prepare(&mut self.core, out);
                }
                CandidateStage::Prepare(_) => self.lead(cx, out),
            }
        }
    }

    /// Begins a reign: phase 1 is complete, so everything that a majority may have chosen is known.
    fn lead(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let State::Candidate(candidacy) = std::mem::replace(&mut self.state, State::Follower) else {
            unreachable!("only a candidate comes to lead")
        };
        let CandidateStage::Prepare(promises) = candidacy.stage else {
            unreachable!("a candidate is in phase 1 until a majority has promised")
        };
        let ballot = candidacy.prepare.ballot;
        assert!(ballot == self.core.promised, "a leader promised its own ballot and no higher one");
        let ticket = match candidate::best(&candidacy.prepare, &promises) {
            Some(best) => {
                assert!(best.last >= self.core.chosen, "a majority of promises shows everything chosen");
                self.core.replace(ballot, best.start, &best.values, out)
            }
            None => {
                let values = self.core.log.range(self.core.chosen, self.core.log.last());
                self.core.replace(ballot, self.core.chosen, &values, out)
            }
        };
        if !self.core.concerns(cx.me) {
            // The change that made this process a member was not chosen and is gone, so this process is
            // removed instead of leading.
            return;
        }
        self.attempts = 0;
        self.election = None;
        self.core.leader = Some(ballot);
        let mut reign = Reign::begin(&self.core, ballot, ticket, out);
        self.core.watch_members(reign.peers.keys().copied(), cx.now);
        for progress in reign.peers.values() {
            self.core.reach(&progress.peer, out);
        }
        for (id, promise) in &promises {
            if self.core.links.contains(id) {
                reign.following(&mut self.core, *id, None, promise.chosen, false, out);
            }
        }
        reign.heartbeat(&self.core, out);
        self.state = State::Leader(Box::new(reign));
        self.core.announce_leader(true, out);
    }
}

impl Candidacy {
    /// Continues with phase 1, and asks everybody again: any of them may hold the best log.
    pub(super) fn prepare(&mut self, core: &mut Core, out: &mut dyn Sink<Paxos>) {
        self.stage = CandidateStage::Prepare(BTreeMap::new());
        self.refused.clear();
        core.send_all(self.asked.iter().copied().collect(), self.question(), out);
        self.ask(core, out);
    }

    /// Asks the electors and members that it has not asked yet. It also asks members without a vote: this
    /// process may hold a change of a reign that is over, and then some member knows that the reign is over.
    pub(super) fn ask(&mut self, core: &mut Core, out: &mut dyn Sink<Paxos>) {
        let mut asked = Vec::new();
        for peer in [self.electorate(core), &core.members].concat() {
            if peer.id != core.me.id && self.asked.insert(peer.id) {
                core.reach(&peer, out);
                asked.push(peer.id);
            }
        }
        core.send_all(asked, self.question(), out);
    }
}
