//! A member's part in a view change: report, repair, install.

use std::collections::BTreeSet;

use super::{
    Backlog, CommandOutcome, Control, Direct, Event, Failure, GroupMember, Mark, Peer, Record, Scene,
    Standing, Streams, SurvivorReport,
};
use crate::{
    ecast::Position,
    group::{
        GroupStep, Turn,
        feed::{RequestReason, Wanted},
        member::exchange::early_bytes,
        routing::Admission,
    },
    id::ProcessId,
    time::Duration,
    wire::decode_body,
};

impl GroupMember {
    /// Applies the answer to the join: the routers' state of the group, in which this process waits or is a
    /// member, or a refusal because of a newer checkpoint. Returns whether the process was admitted.
    pub(in crate::group) fn admitted(
        &mut self,
        scene: &mut Scene<'_>,
        at: Position,
        told: Option<bytes::Bytes>,
    ) -> bool {
        let Some(Admission { group, record, address }) =
            told.and_then(|mut bytes| decode_body(&mut bytes).ok())
        else {
            scene.effects.refused += 1;
            return true;
        };
        self.record = record;
        self.readdress(scene.now, address);
        if !group.concerns(self.me) {
            if let Some(Record { newest, .. }) = record {
                self.refuse(scene, newest);
            } else {
                scene.effects.refused += 1;
            }
            return false;
        }
        let installed = group.view.number == at;
        self.places = group.view.places().filter(|_| !installed).collect();
        (self.group, self.reached_for) = (Some(group), None);
        !installed || self.install(scene)
    }

    /// Fails the command to join, because a newer checkpoint than the host's is known.
    fn refuse(&mut self, scene: &mut Scene<'_>, newest: Mark) {
        if let Some(id) = self.front.joined() {
            scene.effects.done(id, Err(Failure::Stale(newest)));
        }
        self.wedge(scene.effects);
    }

    /// Applies a step of the order to this group. Returns whether this process is still in the group, or
    /// about to join.
    pub(in crate::group) fn step(&mut self, scene: &mut Scene<'_>, at: Position, step: &GroupStep) -> bool {
        let Some(group) = &mut self.group else { return true };
        let turns = group.step(at, step).unwrap_or_default();
        if let GroupStep::Save { sender, by_all } = step
            && self.is_member()
            && (*by_all || *sender == self.me)
        {
            let own = if *sender == self.me { self.saves.pop_front() } else { None };
            self.keeps.get_or_insert_default().extend(own);
        }
        for turn in turns {
            match turn {
                Turn::Prepared => self.prepare(scene, at),
                Turn::Cut(ends) => {
                    if self.is_member() {
                        for (sender, stream) in self.streams.iter() {
                            let (end, delivered) = (ends.get(&sender), stream.delivered);
                            assert!(
                                end.is_some_and(|end| *end >= delivered),
                                "no message beyond the cut is delivered: {sender} delivered to {delivered}, \
                                 cut at {end:?}"
                            );
                        }
                        (self.limit, self.cut) = (Some(ends.clone()), Some(ends));
                        self.waiting_since = scene.now;
                        self.asked.clear();
                        self.deliver(scene);
                        self.repair(scene);
                    }
                }
                Turn::Installed => {
                    if !self.install(scene) {
                        return false;
                    }
                }
            }
        }
        // After a suspicion, or once a state has arrived, fewer processes may need a state from this member.
        let (me, group) = (self.me, self.group.as_ref().expect("the group stays while a message is handled"));
        let feeds = |view| {
            let feed = Standing::Fed { giver: me, since: view };
            group.view.members.iter().any(|entry| entry.standing == feed)
        };
        self.feed.keep(feeds);
        self.deliver(scene);
        true
    }

    fn prepare(&mut self, scene: &mut Scene<'_>, at: Position) {
        let survives = self.group.as_ref().is_some_and(|group| group.is_survivor(self.me));
        if !self.is_member() || !survives {
            return;
        }
        // No report includes messages after a gap. If such messages were held later, a later cut could reach
        // further than an earlier one.
        self.streams.forget_ahead();
        let counts = self.streams.counts();
        let report = SurvivorReport { change: at, held: counts.clone(), whole: !self.feed.is_awaited() };
        (self.limit, self.cut, self.repaired) = (Some(counts), None, false);
        (self.waiting_since, self.attempts) = (scene.now, 0);
        // A suspicion during a change restarts the change, and own soft messages keep waiting.
        self.changing_since.get_or_insert(scene.now);
        scene.effects.reports.push((self.id, report));
    }

    /// Requests messages of the cut that are missing here, or confirms that none is missing.
    pub(super) fn repair(&mut self, scene: &mut Scene<'_>) {
        let (Some(cut), Some(change)) = (&self.cut, self.group.as_ref().and_then(|it| it.change.as_ref()))
        else {
            return;
        };
        let (mut whole, mut wants) = (true, Vec::new());
        for (&sender, &end) in cut {
            let here = self.streams.received(sender);
            if here >= end {
                continue;
            }
            whole = false;
            if self.asked.get(&sender) == Some(&(here + 1)) {
                continue;
            }
            let holds = |id: &ProcessId| {
                let reported = change.reports.get(id).and_then(|report| report.held.get(&sender));
                *id != self.me && scene.linked.contains(id) && reported.is_some_and(|count| *count > here)
            };
            let holders: Vec<ProcessId> = self.others().into_iter().filter(holds).collect();
            if !holders.is_empty() {
                wants.push((sender, here + 1, holders[self.attempts % holders.len()]));
            }
        }
        let prepared = change.prepared;
        for (sender, from, holder) in wants {
            self.asked.insert(sender, from);
            self.say(scene, vec![holder], self.view.number, Direct::Want { sender, from });
        }
        if whole && !std::mem::replace(&mut self.repaired, true) {
            scene.effects.repaired.push((self.id, prepared));
        }
    }

    /// Begins a view. Returns whether this process is in the view.
    fn install(&mut self, scene: &mut Scene<'_>) -> bool {
        let was_member = self.is_member();
        if was_member {
            self.end_view(scene);
        }
        let group = self.group.as_ref().expect("a view is installed behind its beginning");
        let view = group.view.clone();
        let missing = std::mem::take(&mut self.missing);
        self.streams = Streams::new(view.ids(), view.number);
        self.lanes.begin(|id| view.entry(id).is_some());
        self.receipts.begin();
        self.gaps_at = None;
        self.passed = self.passed.max(view.number);
        self.confirmed_through = self.confirmed_through.max(view.number);
        self.view = view.clone();
        (self.limit, self.sent) = (None, 0);
        self.asked.clear();
        self.held_before.clear();
        let Some(entry) = view.entry(self.me) else {
            for id in self.saves.drain(..).chain(self.keeps.take().into_iter().flatten()) {
                scene.effects.done(id, Err(Failure::NotMember));
            }
            if let Some(id) = self.front.leaves() {
                scene.effects.done(id, Ok(CommandOutcome::Left));
            }
            return false;
        };
        match entry.standing {
            Standing::Whole if !was_member || self.feed.is_awaited() => {
                self.feed.give_up();
                if let Some(Record { newest, .. }) = self.record
                    && !Record::admits(self.record, self.offer)
                {
                    // All holders of the state are gone, and the checkpoint of another process may be the
                    // newest.
                    scene.effects.control(&Control::Quit { group: self.id });
                    self.refuse(scene, newest);
                    return false;
                }
                scene.effects.events.push(Event::Restore { group: self.id, state: None });
            }
            Standing::Fed { giver, since } if since == view.number => {
                assert!(!was_member || self.feed.is_awaited(), "a member that has the state says so");
                self.feed.begin(giver, since, scene.now);
                self.ask_state(scene, RequestReason::Next);
            }
            Standing::Whole | Standing::Fed { .. } => {}
        }
        let waited = self.changing_since.take().map_or(Duration::ZERO, |since| scene.now.since(since));
        scene.effects.views += 1;
        scene.effects.longest_wait = scene.effects.longest_wait.max(waited);
        let number = view.number;
        let feeds = Standing::Fed { giver: self.me, since: number };
        let gives = view.members.iter().any(|entry| entry.standing == feeds);
        let before = std::mem::replace(&mut self.places, view.places().collect());
        let arrived = view.places().filter(|place| !before.contains(place)).collect();
        let departed = before.into_iter().filter(|(id, seat)| !view.has(*id, *seat)).collect();
        self.tell(scene, Event::View { group: self.id, view, arrived, departed, missing, waited });
        if gives {
            self.feed.promise(number);
            self.tell(scene, Event::CheckpointWanted { group: self.id, view: number });
        }
        self.mark(scene, number);
        self.end_join(scene);
        let (now, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.early).into_iter().partition(|(_, view, _)| *view <= number);
        self.early_bytes = later.iter().map(|(_, _, direct)| early_bytes(direct)).sum();
        self.early = later;
        for (from, view, direct) in now {
            self.on_direct(scene, from, view, direct);
        }
        self.pump(scene);
        true
    }

    /// Requests the saved state at the beginning of a view, if a member wants it.
    fn mark(&mut self, scene: &mut Scene<'_>, view: Position) {
        let Some(commands) = self.keeps.take() else { return };
        let checkpoint = Record::mark(self.record, view);
        self.tell(scene, Event::Keep { group: self.id, checkpoint });
        for id in commands {
            scene.effects.done(id, Ok(CommandOutcome::Marked(checkpoint)));
        }
    }

    /// Delivers the remaining messages of the view that ends.
    fn end_view(&mut self, scene: &mut Scene<'_>) {
        self.installing = true;
        self.deliver(scene);
        self.installing = false;
        let cut = self.cut.take().expect("an install follows its cut");
        for (sender, stream) in self.streams.iter() {
            let (delivered, end) = (stream.delivered, cut.get(&sender));
            assert_eq!(
                Some(&delivered),
                end,
                "virtual synchrony: {} delivered {delivered} of {sender}, cut at {end:?}",
                self.me
            );
        }
        assert!(
            self.ordered.is_empty(),
            "virtual synchrony: {} ordered messages are left",
            self.ordered.len()
        );
        for (id, ..) in self.flushes.drain(..) {
            // All survivors hold all of the cut.
            scene.effects.done(id, Ok(CommandOutcome::Flushed));
        }
    }

    /// Ends the command to join, once the host has the state and all events after it.
    fn end_join(&mut self, scene: &mut Scene<'_>) {
        if self.feed.is_live()
            && let Some(id) = self.front.joined()
        {
            scene.effects.done(id, Ok(CommandOutcome::Joined));
        }
    }

    /// Requests the next piece of the state, now or when it is due.
    pub(super) fn ask_state(&mut self, scene: &mut Scene<'_>, ask: RequestReason) {
        match self.feed.wanted(ask, scene.now) {
            Some(Wanted::Now(giver, since, direct)) => self.say(scene, vec![giver], since, direct),
            Some(Wanted::At(due)) => scene.effects.wake(due),
            None => {}
        }
    }

    /// Stores a piece of the state, and hands the complete state to the host.
    pub(super) fn on_state(
        &mut self,
        scene: &mut Scene<'_>,
        from: ProcessId,
        view: Position,
        span: (u64, u64),
        piece: &bytes::Bytes,
    ) {
        if self.limit.is_some() {
            // This process reported that it has no state, so it accepts no piece of a state now. It requests
            // the state again once the view is installed.
            return;
        }
        let pace = scene.settings.state_bytes_per_second;
        match self.feed.piece(from, view, span, piece, (scene.now, pace)) {
            None => self.ask_state(scene, RequestReason::Next),
            Some((state, since)) => {
                scene.effects.events.push(Event::Restore { group: self.id, state: Some(state) });
                scene.effects.events.push(Event::ProgressWanted { group: self.id });
                scene.effects.control(&Control::Whole { group: self.id, view: since });
            }
        }
    }

    /// Passes the next events to the host, which has applied the state and all earlier events.
    pub(in crate::group) fn progressed(&mut self, scene: &mut Scene<'_>) {
        let Some(events) = self.feed.hand_over(scene.settings.hand_over_bytes) else { return };
        if !events.is_empty() {
            scene.effects.events.extend(events);
            return scene.effects.events.push(Event::ProgressWanted { group: self.id });
        }
        self.end_join(scene);
        self.deliver(scene);
    }

    /// Returns the reason to give up joining, if more events wait behind the state than allowed.
    pub(in crate::group) fn overrun(&self, scene: &Scene<'_>) -> Option<Backlog> {
        self.feed.overrun(scene.settings.behind_bytes_max, scene.now)
    }

    /// Gives up joining. The routers remove this process as if it had failed.
    pub(in crate::group) fn abandon(&mut self, scene: &mut Scene<'_>, backlog: Backlog) {
        scene.effects.control(&Control::Quit { group: self.id });
        let id = self.front.joined().expect("events wait behind a state while the process joins");
        scene.effects.done(id, Err(Failure::Behind(backlog)));
        self.wedge(scene.effects);
    }

    /// Suspects survivors that delay a change for too long. The survivors that delay nothing make the
    /// suspicion. If each survivor lacks messages that it cannot get from another survivor, all suspect one
    /// another one by one, the youngest first.
    pub(super) fn chase(&mut self, scene: &mut Scene<'_>) {
        let Some(group) = &self.group else { return };
        let Some(change) = &group.change else { return };
        let mut late: BTreeSet<ProcessId> = group.late().into_iter().collect();
        let judges = |late: &BTreeSet<ProcessId>| {
            group.survivors().filter(|id| !late.contains(id)).position(|id| id == self.me)
        };
        let rank = if group.survivors().any(|id| !late.contains(&id)) {
            judges(&late)
        } else if change.cut.is_some() && !self.repaired {
            late = group.survivors().filter(|id| *id != self.me).last().into_iter().collect();
            group.survivors().position(|id| id == self.me)
        } else {
            // This member's own message is on its way through the order, and the other survivors' messages
            // may be, too.
            None
        };
        let Some(rank) = rank else { return };
        let turn = u32::try_from(rank + 1).unwrap_or(u32::MAX);
        if scene.now.since(self.waiting_since) < scene.settings.patience * turn {
            return;
        }
        self.waiting_since = scene.now;
        let change = change.prepared;
        for process in late {
            scene.effects.control(&Control::Late { process, group: self.id, change });
        }
    }

    /// Restarts the waiting time after this process slept, because survivors may have answered meanwhile.
    pub(in crate::group) fn forgive(&mut self, scene: &Scene<'_>) {
        self.waiting_since = scene.now;
    }

    /// Whether `process` is in the group, as of the order's last delivery here, or waits for admission.
    pub(super) fn knows(&self, process: ProcessId) -> bool {
        let waits = |peer: &Peer| peer.id == process;
        self.group.as_ref().is_some_and(|group| group.is_survivor(process) || group.joining.iter().any(waits))
    }
}
