//! Changes of the members, one at a time: requests for admission, and removals.

use super::{
    Change, ChangeRefusal, Context, Core, Duration, Event, Message, Paxos, Peer, ProcessId, Reign, Sink,
    Slot, SlotValue, State,
    reign::{FollowerPhase, Progress},
};
use crate::{detector::Opinion, quorum, time::Time};

impl Paxos {
    /// Handles a process's request for admission.
    pub(super) fn asked_to_admit(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        peer: Peer,
        out: &mut dyn Sink<Self>,
    ) {
        if peer.id != from {
            return;
        }
        match &mut self.state {
            State::Leader(reign) => reign.asked_to_admit(&mut self.core, cx.now, peer, out),
            State::Joining { .. } => self.remember(peer, out),
            State::Removed => {}
            _ => {
                let (leader, members) = (self.leader(), self.core.members.clone());
                self.core.send(from, Message::Refer { leader, members }, out);
            }
        }
    }

    /// Handles an answer that names the leader and the members to ask for admission.
    pub(super) fn referred(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        leader: Option<ProcessId>,
        members: Vec<Peer>,
        out: &mut dyn Sink<Self>,
    ) {
        if !matches!(self.state, State::Joining { .. }) {
            return;
        }
        if self.leader() == Some(from) {
            // This process took the sender for the leader, but the sender no longer leads. So this process
            // must ask other processes.
            self.lose_leader(cx, Duration::ZERO, out);
        }
        self.look_for(members, out);
        if let Some(leader) = leader.filter(|leader| *leader != cx.me && self.core.links.contains(leader)) {
            self.core.send(leader, Message::Join { peer: self.core.me.clone() }, out);
        }
    }

    /// Adds processes to ask for admission.
    pub(super) fn look_for(&mut self, members: Vec<Peer>, out: &mut dyn Sink<Self>) {
        let State::Joining { seeds, .. } = &mut self.state else { return };
        for peer in members {
            self.core.reach(&peer, out);
            if !seeds.contains(&peer) && seeds.len() < SEEDS_MAX {
                seeds.push(peer);
            }
        }
    }

    /// Asks for links to these unknown processes, and gives up earlier such requests whose links never came
    /// up.
    pub(super) fn meet(&mut self, peers: &[Peer], out: &mut dyn Sink<Self>) {
        if matches!(self.state, State::Follower) {
            let linked = |id: &ProcessId| self.core.links.contains(id) || self.core.concerns(*id);
            let gone: Vec<_> = self.core.reached.keys().filter(|id| !linked(id)).copied().collect();
            for process in gone {
                self.core.forget(process, out);
            }
        }
        for peer in peers {
            if !self.core.reached.contains_key(&peer.id) && !self.core.links.contains(&peer.id) {
                self.core.reach(peer, out);
            }
        }
    }

    /// Adds `peer` to the processes to ask for admission, in place of an older process of its node. `peer` is
    /// joining, too, and may be admitted before this process. By then all other known processes may be gone.
    fn remember(&mut self, peer: Peer, out: &mut dyn Sink<Self>) {
        let State::Joining { seeds, .. } = &mut self.state else { return };
        if seeds.contains(&peer) {
            return;
        }
        if let Some(older) = seeds.iter().position(|seed| seed.id.node == peer.id.node) {
            self.core.forget(seeds.remove(older).id, out);
        }
        if seeds.len() < SEEDS_MAX {
            self.core.reach(&peer, out);
            seeds.push(peer);
        }
    }

    /// Asks for admission if the time of the next request has come.
    pub(super) fn ask(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let State::Joining { ask_at, .. } = &mut self.state else { return };
        if cx.now >= *ask_at {
            *ask_at = cx.now + self.core.settings.detector.interval * 5;
            let asked = match self.core.leader {
                Some(ballot) => vec![ballot.router],
                None => self.core.links.iter().copied().collect(),
            };
            self.core.send_all(asked, Message::Join { peer: self.core.me.clone() }, out);
        }
    }

    /// Handles a change of the members, requested by `from`, which may be this process.
    pub(super) fn change(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        change: Change,
        out: &mut dyn Sink<Self>,
    ) {
        if !self.core.is_member(from) {
            return;
        }
        match (&mut self.state, self.core.leader) {
            (State::Leader(reign), _) => reign.change(&mut self.core, cx.now, from, change, out),
            (_, Some(ballot)) if from == cx.me => {
                self.core.send(ballot.router, Message::Change(change), out);
            }
            _ => answer_change(&self.core, from, change, ChangeRefusal::NoLeader, out),
        }
    }

    /// Applies a change of the members after the last slot learned.
    pub(super) fn members_changed(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let member = self.core.concerns(cx.me);
        if !self.is_leader() {
            self.core.watch_members(self.leader(), cx.now);
        }
        match &mut self.state {
            State::Joining { .. } if self.core.is_member(cx.me) => {
                self.state = State::Follower;
                self.core.announce_leader(true, out);
                if self.core.leader.is_none() {
                    self.lose_leader(cx, self.interval() * 4, out);
                }
            }
            State::Joining { .. } => {
                // The next leader will be one of these members.
                for peer in self.core.members.clone() {
                    self.core.reach(&peer, out);
                }
                return;
            }
            State::Removed => return,
            State::Leader(reign) => {
                // A leader that is voted out leads until the other members know of the change.
                reign.members_changed(&mut self.core, cx.now, out);
                self.core.announce_leader(false, out);
                self.reach_members(out);
                return;
            }
            State::Candidate(candidacy) => candidacy.ask(&mut self.core, out),
            State::Follower => self.core.announce_leader(false, out),
        }
        if member {
            self.reach_members(out);
            self.count_votes(cx, out);
        } else {
            self.be_removed(out);
        }
    }

    /// Asks for links to exactly the processes with which this router has to talk, and gives up all other
    /// links.
    pub(super) fn reach_members(&mut self, out: &mut dyn Sink<Self>) {
        if matches!(self.state, State::Joining { .. }) {
            return;
        }
        for peer in [&self.core.members[..], self.core.acting()].concat() {
            self.core.reach(&peer, out);
        }
        let gone: Vec<_> = match &self.state {
            State::Leader(reign) => {
                self.core.reached.keys().filter(|id| !reign.needs(**id)).copied().collect()
            }
            _ => self.core.reached.keys().filter(|id| !self.core.concerns(**id)).copied().collect(),
        };
        for process in gone {
            self.core.forget(process, out);
        }
    }

    /// Ends this process's part in the log, because it is no longer a member.
    pub(super) fn be_removed(&mut self, out: &mut dyn Sink<Self>) {
        if let State::Leader(reign) = &self.state {
            out.emit(Event::Deposed { ballot: reign.ballot });
        }
        self.state = State::Removed;
        self.core.leader = None;
        self.core.announce_leader(false, out);
        self.election = None;
        for process in self.core.reached.keys().copied().collect::<Vec<_>>() {
            self.core.forget(process, out);
        }
        out.emit(Event::Removed);
    }
}

impl Reign {
    fn asked_to_admit(&mut self, core: &mut Core, now: Time, peer: Peer, out: &mut dyn Sink<Paxos>) {
        if core.departed.contains(&peer.id) {
            return self.send_not_member(core, peer.id, out);
        }
        if self.peers.contains_key(&peer.id) || core.is_member(peer.id) {
            return;
        }
        // A namesake (a process with the same node number) that is heard stays, and the joining process is
        // refused. But if the namesake's link is broken and the joining process listens at its address, the
        // joining process is the namesake's next life.
        let well = |id: &ProcessId, namesake: &Peer| {
            let succeeded = || {
                namesake.address == peer.address && core.detector.opinion(*id, now) == Some(Opinion::Unlinked)
            };
            id.node == peer.id.node && !core.detector.suspects(*id, now) && !succeeded()
        };
        let namesake = match self.peers.iter().find(|(id, progress)| well(id, &progress.peer)) {
            Some((_, progress)) => Some(&progress.peer),
            None => Some(&core.me).filter(|me| me.id.node == peer.id.node),
        };
        if let Some(by) = namesake {
            let by = by.clone();
            return core.send(peer.id, Message::NodeInUse { by }, out);
        }
        // An older incarnation of the same node is gone, and its promises with it. So that incarnation is
        // replaced if it is a member, and dismissed otherwise.
        let older: Vec<_> = self.peers.keys().filter(|id| id.node == peer.id.node).copied().collect();
        for id in older {
            match self.peers.get_mut(&id) {
                Some(progress) if progress.member => progress.replaced = true,
                _ => self.dismiss(core, id, ChangeRefusal::Unreachable, out),
            }
        }
        let voting = self.peers.values().filter(|peer| peer.member && !peer.replaced);
        let well = 1 + voting.filter(|peer| peer.suspected.is_none()).count();
        let learners = self.peers.values().filter(|peer| !peer.member).count();
        if well + learners < core.settings.wanted {
            self.admit(core, now, peer, None, out);
        }
    }

    /// Makes a process a learner, which is fed until it can be a member.
    fn admit(
        &mut self,
        core: &mut Core,
        now: Time,
        peer: Peer,
        demanded: Option<ProcessId>,
        out: &mut dyn Sink<Paxos>,
    ) {
        let id = peer.id;
        core.reach(&peer, out);
        core.detector.watch(id, now);
        let progress = self.peers.entry(id).or_insert_with(|| Progress::new(peer, false));
        progress.demanded = progress.demanded.or(demanded);
        self.probe(core, id, out);
    }

    /// Handles a learner that has promised a higher ballot, so that it can never follow this leader. Once the
    /// reign has [ground](Reign::has_ground), no log with which anybody continues names that learner. So this
    /// router tells the learner that it is no member, and the learner's node comes back as a new process.
    pub(super) fn outbid_by_learner(&self, core: &Core, id: ProcessId, out: &mut dyn Sink<Paxos>) {
        if self.peers.contains_key(&id) && self.has_ground(core) {
            let message = Message::NotMember { chosen: core.chosen, members: core.members.clone() };
            core.send(id, message, out);
        }
    }

    /// Gives up a learner.
    fn dismiss(&mut self, core: &mut Core, id: ProcessId, reason: ChangeRefusal, out: &mut dyn Sink<Paxos>) {
        let Some(progress) = self.peers.remove(&id) else { return };
        assert!(!progress.member, "members are not dismissed but voted out");
        core.detector.unwatch(id);
        core.forget(id, out);
        if let Some(asker) = progress.demanded {
            answer_change(core, asker, Change::Add(progress.peer), reason, out);
        }
    }

    pub(super) fn change(
        &mut self,
        core: &mut Core,
        now: Time,
        from: ProcessId,
        change: Change,
        out: &mut dyn Sink<Paxos>,
    ) {
        match change {
            Change::Add(peer) if core.departed.contains(&peer.id) => {
                answer_change(core, from, Change::Add(peer), ChangeRefusal::Unreachable, out);
            }
            Change::Add(peer) if !core.is_member(peer.id) => self.admit(core, now, peer, Some(from), out),
            Change::Remove(process) if core.is_member(process) => self.removals.push_back((process, from)),
            change => answer_change(core, from, change, ChangeRefusal::AlreadySo, out),
        }
    }

    /// Updates which processes seem to have failed.
    pub(super) fn suspect(&mut self, core: &mut Core, now: Time, out: &mut dyn Sink<Paxos>) {
        let mut lost = Vec::new();
        for (id, peer) in &mut self.peers {
            if !core.detector.suspects(*id, now) {
                peer.suspected = None;
                continue;
            }
            let since = *peer.suspected.get_or_insert(now);
            if !core.concerns(*id) && now.since(since) >= core.settings.remove_after {
                lost.push(*id);
            }
        }
        for id in lost {
            self.dismiss(core, id, ChangeRefusal::Unreachable, out);
        }
    }

    /// Proposes a change of the members, if one is due and none is open: commanded changes first, then
    /// removals, then admissions.
    pub(super) fn consider_change(&mut self, core: &mut Core, now: Time, out: &mut dyn Sink<Paxos>) {
        if !core.is_member(core.me.id) || !self.has_ground(core) {
            return;
        }
        while core.members_open().is_none()
            && let Some((process, asker)) = self.removals.front().copied()
        {
            let refusal = if !core.is_member(process) {
                Some(ChangeRefusal::AlreadySo)
            } else if !bears_loss_of(core, process, now) {
                Some(ChangeRefusal::TooFew)
            } else {
                None
            };
            if refusal.is_none() && !self.propose_members(core, now, without(core, process), out) {
                return;
            }
            self.removals.pop_front();
            if let Some(reason) = refusal {
                answer_change(core, asker, Change::Remove(process), reason, out);
            }
        }
        if core.members_open().is_some() {
            return;
        }
        let floor = quorum::majority(core.settings.wanted);
        if core.members.len() > floor {
            let patience = core.settings.remove_after;
            // A member that any router hears is alive and stays: a cut link is no reason to lose a vote.
            let overdue = |id: ProcessId, peer: &Progress| {
                let excused = core.away.get(&id).is_some_and(|until| now < *until);
                let long = peer.suspected.is_some_and(|since| now.since(since) >= patience) && !excused;
                peer.replaced || long && core.is_silent(id, now, patience)
            };
            let failed = self.peers.iter().find(|(id, peer)| peer.member && overdue(**id, peer));
            if let Some((id, _)) = failed {
                let id = *id;
                self.propose_members(core, now, without(core, id), out);
                return;
            }
        }
        let room = core.members.len() < core.settings.wanted;
        // The process to add holds the whole chosen prefix, and all later slots are on their way to it.
        let ready = self.peers.values().find(|peer| {
            !peer.member
                && (room || peer.demanded.is_some())
                && peer.suspected.is_none()
                && peer.phase == FollowerPhase::Streaming
                && peer.acked >= core.chosen
        });
        if let Some(peer) = ready {
            let mut members = core.members.clone();
            members.push(peer.peer.clone());
            members.sort_unstable();
            self.propose_members(core, now, members, out);
        }
    }

    /// Proposes new members if a majority of the new members was heard just now. If such a majority were
    /// dead, neither the new nor the old members could choose anything any longer. Returns whether the new
    /// members were proposed.
    fn propose_members(
        &mut self,
        core: &mut Core,
        now: Time,
        members: Vec<Peer>,
        out: &mut dyn Sink<Paxos>,
    ) -> bool {
        let near = |peer: &&Peer| core.in_touch(peer.id, now);
        let ready = members.iter().filter(near).count() >= quorum::majority(members.len());
        if ready {
            self.append(core, SlotValue::Members(members.into()), out);
        }
        ready
    }

    pub(super) fn members_changed(&mut self, core: &mut Core, now: Time, out: &mut dyn Sink<Paxos>) {
        for peer in core.members.clone() {
            if peer.id != core.me.id {
                let progress =
                    self.peers.entry(peer.id).or_insert_with(|| Progress::new(peer.clone(), false));
                if !progress.member {
                    // The router's earlier absence as a learner is no reason to vote it out as a member.
                    progress.suspected = None;
                }
                progress.member = true;
                progress.demanded = None;
                core.watch(peer.id, now);
            }
        }
        let gone: Vec<_> =
            self.peers.extract_if(.., |id, peer| peer.member && !core.is_member(*id)).collect();
        for (id, _) in gone {
            core.detector.unwatch(id);
            self.leaving.push((core.chosen, id));
        }
        if !core.is_member(core.me.id) {
            self.leaving.push((core.chosen, core.me.id));
        }
        self.heartbeat(core, out);
    }

    /// Notifies a process again that it was voted out, because an earlier message may have been lost. Does
    /// nothing if the process was not voted out, or may not go yet.
    pub(super) fn send_not_member(&self, core: &Core, process: ProcessId, out: &mut dyn Sink<Paxos>) {
        if core.departed.contains(&process) && !self.leaving.iter().any(|(_, leaving)| *leaving == process) {
            let message = Message::NotMember { chosen: core.chosen, members: core.members.clone() };
            core.send(process, message, out);
        }
    }

    /// Whether a link to this process is needed.
    fn needs(&self, process: ProcessId) -> bool {
        self.peers.contains_key(&process) || self.leaving.iter().any(|(_, leaving)| *leaving == process)
    }

    /// Dismisses voted-out processes once a majority of the remaining members has learned the change. If the
    /// leader fails before that, the remaining members need the votes of the voted-out processes to learn it.
    /// Returns whether this process itself may go.
    pub(super) fn dismiss_departed(&mut self, core: &Core, out: &mut dyn Sink<Paxos>) -> bool {
        let learned = |slot: Slot| {
            let known = self.peers.values().filter(|peer| peer.member && peer.chosen >= slot).count();
            known + usize::from(core.is_member(core.me.id)) >= quorum::majority(core.members.len())
        };
        let gone: Vec<_> =
            self.leaving.iter().filter(|(slot, _)| learned(*slot)).map(|(_, id)| *id).collect();
        self.leaving.retain(|(_, id)| !gone.contains(id));
        for id in gone.iter().filter(|id| **id != core.me.id) {
            let message = Message::NotMember { chosen: core.chosen, members: core.members.clone() };
            core.send(*id, message, out);
        }
        gone.contains(&core.me.id)
    }
}

/// Whether the domain can lose `process`: enough members remain, and the leader talks with a majority of
/// them.
fn bears_loss_of(core: &Core, process: ProcessId, now: Time) -> bool {
    let left = core.members.len() - 1;
    let rest = core.members.iter().filter(|peer| peer.id != process);
    let well = rest.filter(|peer| core.talks(peer.id, now)).count();
    left >= quorum::majority(core.settings.wanted) && well >= quorum::majority(left)
}

fn without(core: &Core, process: ProcessId) -> Vec<Peer> {
    core.members.iter().filter(|peer| peer.id != process).cloned().collect()
}

/// Tells the asker that a change is refused.
fn answer_change(
    core: &Core,
    asker: ProcessId,
    change: Change,
    reason: ChangeRefusal,
    out: &mut dyn Sink<Paxos>,
) {
    if asker == core.me.id {
        out.emit(Event::ChangeRefused { change, reason });
    } else {
        core.send(asker, Message::ChangeRefused { change, reason }, out);
    }
}

/// Maximum number of processes that a joining process remembers, to ask them for admission.
const SEEDS_MAX: usize = 64;
