//! A member's part in a view change: report, repair, install.

use std::collections::BTreeSet;

use super::{GroupMember, context::MemberContext};
use crate::{
    ecast::Position,
    group::{
        Backlog, CommandOutcome, Event, Failure, GroupStep, Mark, StateTransfer, SurvivorReport, Turn,
        feed::{RequestReason, Wanted},
        routing::{Admission, Control},
    },
    id::{Peer, ProcessId},
    wire::decode_body,
};

impl GroupMember {
    /// Applies the answer to the message by which this process asked to join. The answer is the routers'
    /// state of the group, in which this process waits or is a member, or a refusal because of a newer
    /// checkpoint. Returns whether the process was admitted.
    pub(in crate::group) fn admitted(
        &mut self,
        context: &mut MemberContext<'_>,
        at: Position,
        attachment: Option<bytes::Bytes>,
    ) -> bool {
        let Some(Admission { group, record, address }) =
            attachment.and_then(|mut bytes| decode_body(&mut bytes).ok())
        else {
            context.effects.refused += 1;
            return true;
        };
        self.checkpoints.learn(record);
        self.readdress(context.now, address);
        if !group.concerns(self.here.me) {
            if let Some(newest) = self.checkpoints.newest() {
                self.refuse(context, newest);
            } else {
                context.effects.refused += 1;
            }
            return false;
        }
        let installed = group.view.number == at;
        self.places = group.view.places().filter(|_| !installed).collect();
        self.group = Some(group);
        self.neighbours.reset();
        !installed || self.install(context)
    }

    /// Fails the command to join, because a newer checkpoint than the host's is known.
    fn refuse(&mut self, context: &mut MemberContext<'_>, newest: Mark) {
        if let Some(id) = self.caller_commands.joined() {
            context.effects.done(id, Err(Failure::Stale(newest)));
        }
        self.wedge(context.effects);
    }

    /// Applies a step of the order to this group. Returns whether this process is still in the group, or
    /// about to join.
    pub(in crate::group) fn step(
        &mut self,
        context: &mut MemberContext<'_>,
        at: Position,
        step: &GroupStep,
    ) -> bool {
        let Some(group) = &mut self.group else { return true };
        let turns = group.step(at, step).unwrap_or_default();
        if let GroupStep::Save { sender, by_all } = step
            && self.is_member()
            && (*by_all || *sender == self.here.me)
        {
            self.checkpoints.ordered(*sender == self.here.me);
        }
        for turn in turns {
            match turn {
                Turn::Prepared => self.prepare(context, at),
                Turn::Cut(ends) => {
                    if self.is_member() {
                        for (sender, stream) in self.soft.streams.iter() {
                            let (end, delivered) = (ends.get(&sender), stream.delivered);
                            assert!(
                                end.is_some_and(|end| *end >= delivered),
                                "no message beyond the cut is delivered: {sender} delivered to {delivered}, \
                                 cut at {end:?}"
                            );
                        }
                        self.change.set_cut(ends, context.now);
                        self.soft.ask_again();
                        self.deliver(context);
                        self.repair(context);
                    }
                }
                Turn::Installed => {
                    if !self.install(context) {
                        return false;
                    }
                }
            }
        }
        // After a suspicion, or once a state has arrived, fewer processes may need a state from this member.
        let (me, group) =
            (self.here.me, self.group.as_ref().expect("the group stays while a message is handled"));
        let feeds = |view| {
            let feed = StateTransfer::Receiving { giver: me, since: view };
            group.view.members.iter().any(|entry| entry.transfer == feed)
        };
        self.feed.keep(feeds);
        self.deliver(context);
        true
    }

    fn prepare(&mut self, context: &mut MemberContext<'_>, at: Position) {
        let survives = self.group.as_ref().is_some_and(|group| group.is_survivor(self.here.me));
        if !self.is_member() || !survives {
            return;
        }
        // A report covers no messages after a gap. If such messages were held later, a later cut of the same
        // change could reach further than an earlier cut.
        self.soft.streams.forget_ahead();
        let counts = self.soft.streams.counts();
        let report = SurvivorReport { change: at, held: counts.clone(), whole: !self.feed.is_awaited() };
        self.change.prepare(counts, context.now);
        context.effects.reports.push((self.here.group, report));
    }

    /// Requests messages of the cut that are missing here, or confirms that none is missing.
    pub(super) fn repair(&mut self, context: &mut MemberContext<'_>) {
        let change = self.group.as_ref().and_then(|it| it.change.as_ref());
        let (Some(cut), Some(change)) = (self.change.cut(), change) else { return };
        let (mut whole, mut wants) = (true, Vec::new());
        for (&sender, &end) in cut {
            let here = self.soft.streams.received(sender);
            if here >= end {
                continue;
            }
            whole = false;
            if self.soft.has_asked(sender, here + 1) {
                continue;
            }
            let holds = |id: &ProcessId| {
                let reported = change.reports.get(id).and_then(|report| report.held.get(&sender));
                *id != self.here.me
                    && context.linked.contains(id)
                    && reported.is_some_and(|count| *count > here)
            };
            let holders: Vec<ProcessId> = self.others().into_iter().filter(holds).collect();
            wants.extend(self.change.choose(&holders).map(|holder| (holder, (sender, here + 1))));
        }
        let prepared = change.prepared;
        for (holder, want) in wants {
            self.soft.ask(context, &self.here, holder, want);
        }
        if whole && self.change.confirm_repair() {
            context.effects.repaired.push((self.here.group, prepared));
        }
    }

    /// Begins a view. Returns whether this process is in the view.
    fn install(&mut self, context: &mut MemberContext<'_>) -> bool {
        let was_member = self.is_member();
        if was_member {
            self.end_view(context);
        }
        let group = self.group.as_ref().expect("a view is installed behind its beginning");
        let view = group.view.clone();
        let missing = self.change.end();
        self.soft.begin(&view);
        self.ordered.begin(view.number);
        self.here.view = view.clone();
        let Some(entry) = view.entry(self.here.me) else {
            for id in self.checkpoints.drain() {
                context.effects.done(id, Err(Failure::NotMember));
            }
            if let Some(id) = self.caller_commands.leaves() {
                context.effects.done(id, Ok(CommandOutcome::Left));
            }
            return false;
        };
        match entry.transfer {
            StateTransfer::Complete if !was_member || self.feed.is_awaited() => {
                self.feed.give_up();
                if let Some(newest) = self.checkpoints.superseded_by() {
                    // All holders of the state are gone, and another process may have the newest checkpoint.
                    context.effects.control(&Control::Quit { group: self.here.group });
                    self.refuse(context, newest);
                    return false;
                }
                context.effects.events.push(Event::Restore { group: self.here.group, state: None });
            }
            StateTransfer::Receiving { giver, since } if since == view.number => {
                assert!(!was_member || self.feed.is_awaited(), "a member that has the state says so");
                self.feed.begin(giver, since, context.now);
                self.ask_state(context, RequestReason::Next);
            }
            StateTransfer::Complete | StateTransfer::Receiving { .. } => {}
        }
        let waited = self.change.waited(context.now);
        context.effects.views += 1;
        context.effects.longest_wait = context.effects.longest_wait.max(waited);
        let number = view.number;
        let feeds = StateTransfer::Receiving { giver: self.here.me, since: number };
        let gives = view.members.iter().any(|entry| entry.transfer == feeds);
        let before = std::mem::replace(&mut self.places, view.places().collect());
        let arrived = view.places().filter(|place| !before.contains(place)).collect();
        let departed = before.into_iter().filter(|(id, seat)| !view.has(*id, *seat)).collect();
        self.emit(context, Event::View { group: self.here.group, view, arrived, departed, missing, waited });
        if gives {
            self.feed.promise(number);
            self.emit(context, Event::CheckpointWanted { group: self.here.group, view: number });
        }
        self.mark(context, number);
        self.end_join(context);
        for (from, view, direct) in self.early.take(number) {
            self.on_direct(context, from, view, direct);
        }
        self.pump(context);
        true
    }

    /// Requests the saved state at the beginning of a view, if a member wants it.
    fn mark(&mut self, context: &mut MemberContext<'_>, view: Position) {
        let Some((checkpoint, commands)) = self.checkpoints.begin(view) else { return };
        self.emit(context, Event::Keep { group: self.here.group, checkpoint });
        for id in commands {
            context.effects.done(id, Ok(CommandOutcome::Marked(checkpoint)));
        }
    }

    /// Delivers the remaining messages of the view that ends.
    fn end_view(&mut self, context: &mut MemberContext<'_>) {
        self.change.installing = true;
        self.deliver(context);
        self.change.installing = false;
        let cut = self.change.take_cut().expect("an install follows its cut");
        for (sender, stream) in self.soft.streams.iter() {
            let (delivered, end) = (stream.delivered, cut.get(&sender));
            assert_eq!(
                Some(&delivered),
                end,
                "virtual synchrony: {} delivered {delivered} of {sender}, cut at {end:?}",
                self.here.me
            );
        }
        assert_eq!(self.ordered.len(), 0, "virtual synchrony: no ordered message is left");
        for (id, ..) in self.flushes.drain(..) {
            // All survivors hold all messages of the cut.
            context.effects.done(id, Ok(CommandOutcome::Flushed));
        }
    }

    /// Ends the command to join, once the host has the state and all events after it.
    fn end_join(&mut self, context: &mut MemberContext<'_>) {
        if self.feed.is_live()
            && let Some(id) = self.caller_commands.joined()
        {
            context.effects.done(id, Ok(CommandOutcome::Joined));
        }
    }

    /// Requests the next piece of the state, now or when it is due.
    pub(super) fn ask_state(&mut self, context: &mut MemberContext<'_>, ask: RequestReason) {
        match self.feed.wanted(ask, context.now) {
            Some(Wanted::Now(giver, since, direct)) => {
                self.here.send_in_view(since, context, vec![giver], direct);
            }
            Some(Wanted::At(due)) => context.effects.wake(due),
            None => {}
        }
    }

    /// Stores a piece of the state, and hands the complete state to the host.
    pub(super) fn on_state(
        &mut self,
        context: &mut MemberContext<'_>,
        from: ProcessId,
        view: Position,
        span: (u64, u64),
        piece: &bytes::Bytes,
    ) {
        if self.change.has_reported() {
            // This process reported that it has no state, so it accepts no piece of a state now. It requests
            // the state again once the view is installed.
            return;
        }
        let pace = context.settings.state_bytes_per_second;
        match self.feed.piece(from, view, span, piece, (context.now, pace)) {
            None => self.ask_state(context, RequestReason::Next),
            Some((state, since)) => {
                context.effects.events.push(Event::Restore { group: self.here.group, state: Some(state) });
                context.effects.events.push(Event::ProgressWanted { group: self.here.group });
                context.effects.control(&Control::Whole { group: self.here.group, view: since });
            }
        }
    }

    /// Passes the next events to the host, which has applied the state and all earlier events.
    pub(in crate::group) fn progressed(&mut self, context: &mut MemberContext<'_>) {
        let Some(events) = self.feed.hand_over(context.settings.hand_over_bytes) else { return };
        if !events.is_empty() {
            context.effects.events.extend(events);
            return context.effects.events.push(Event::ProgressWanted { group: self.here.group });
        }
        self.end_join(context);
        self.deliver(context);
    }

    /// Returns the backlog if more events wait behind the state than allowed. Then the member gives up
    /// joining.
    pub(in crate::group) fn overrun(&self, context: &MemberContext<'_>) -> Option<Backlog> {
        self.feed.overrun(context.settings.behind_bytes_max, context.now)
    }

    /// Gives up joining. The routers remove this process as if it had failed.
    pub(in crate::group) fn abandon(&mut self, context: &mut MemberContext<'_>, backlog: Backlog) {
        context.effects.control(&Control::Quit { group: self.here.group });
        let id = self.caller_commands.joined().expect("events wait behind a state while the process joins");
        context.effects.done(id, Err(Failure::Behind(backlog)));
        self.wedge(context.effects);
    }

    /// Suspects survivors that delay a change for too long. The survivors that delay nothing send the
    /// suspicion. If every survivor lacks messages that it cannot get from the others, all survivors delay
    /// the change. Then the survivors suspect the youngest other survivor, the oldest survivor first.
    pub(super) fn chase(&mut self, context: &mut MemberContext<'_>) {
        let Some(group) = &self.group else { return };
        let Some(change) = &group.change else { return };
        let mut late: BTreeSet<ProcessId> = group.late().into_iter().collect();
        let judges = |late: &BTreeSet<ProcessId>| {
            group.survivors().filter(|id| !late.contains(id)).position(|id| id == self.here.me)
        };
        let rank = if group.survivors().any(|id| !late.contains(&id)) {
            judges(&late)
        } else if change.cut.is_some() && !self.change.is_repaired() {
            late = group.survivors().filter(|id| *id != self.here.me).last().into_iter().collect();
            group.survivors().position(|id| id == self.here.me)
        } else {
            // This member's own message is on its way through the order, and the other survivors' messages
            // may be, too.
            None
        };
        let Some(rank) = rank else { return };
        let turn = u32::try_from(rank + 1).unwrap_or(u32::MAX);
        if !self.change.has_waited(context.settings.patience * turn, context.now) {
            return;
        }
        self.change.forgive(context.now);
        let change = change.prepared;
        for process in late {
            context.effects.control(&Control::Late { process, group: self.here.group, change });
        }
    }

    /// Restarts the time that this member waits for survivors, because this process slept, and the survivors
    /// may have answered meanwhile.
    pub(in crate::group) fn forgive(&mut self, context: &MemberContext<'_>) {
        self.change.forgive(context.now);
    }

    /// Whether `process` is in the group, as of the order's last delivery here, or waits for admission.
    pub(super) fn knows(&self, process: ProcessId) -> bool {
        let waits = |peer: &Peer| peer.id == process;
        self.group.as_ref().is_some_and(|group| group.is_survivor(process) || group.joining.iter().any(waits))
    }
}
