//! A router as the user of its log: it hands inputs to the log, and appends to the history what the log has
//! learned.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    super::{Routing, commands::RouterEvent, message::Message, reach::is_reached},
    Router, command_of,
};
use crate::{
    paxos::{self, Paxos},
    seam::{Context, Input, Lift, Protocol, Sink},
};

impl<R: Routing> Router<R> {
    /// Hands an input to the log, and handles all events that follow from it.
    pub(in crate::ecast) fn drive(
        &mut self,
        cx: &mut Context<'_>,
        input: Input<Paxos>,
        out: &mut dyn Sink<Self>,
    ) {
        let mut events = std::mem::take(&mut self.events);
        self.log_input(cx, input, &mut events, out);
        // Handling an event may create new events (a wanted snapshot), which go to the end of the queue.
        let mut next = 0;
        loop {
            while next < events.len() {
                let event = std::mem::replace(&mut events[next], paxos::Event::Leader(None));
                next += 1;
                if let Some(command) = self.on_paxos(event, out) {
                    self.log_input(cx, Input::Command(command), &mut events, out);
                }
            }
            let again = self.commands.take_again();
            if again.is_empty() {
                break;
            }
            for change in again {
                self.log_input(cx, Input::Command(command_of(change)), &mut events, out);
            }
        }
        events.clear();
        self.events = events;
    }

    /// Hands an input to the log, and collects the log's events.
    fn log_input(
        &mut self,
        cx: &mut Context<'_>,
        input: Input<Paxos>,
        events: &mut Vec<paxos::Event>,
        out: &mut dyn Sink<Self>,
    ) {
        let mut lift = Lift::<Self, _, _>::new::<Paxos>(
            out,
            |_, _, message| Some(Message::Paxos(message)),
            |_, event| events.push(event),
        );
        self.paxos.handle(cx, input, &mut lift);
    }

    fn on_paxos(&mut self, event: paxos::Event, out: &mut dyn Sink<Self>) -> Option<paxos::Command> {
        let knew_cut = self.knows_beginning();
        match event {
            paxos::Event::Learned { payloads, .. } => {
                for payload in payloads {
                    self.learn(payload, out);
                }
            }
            paxos::Event::Leader(leader) => {
                self.commands.leader(leader);
                self.lead(leader, out);
            }
            // Members learn of a new way to the leader, or that no way is left, because messages on the old
            // way may be lost.
            paxos::Event::Detour(_) => self.announce_leader(self.linked.iter().copied().collect(), out),
            paxos::Event::SnapshotWanted { slot } => {
                return Some(paxos::Command::Snapshot { slot, state: self.order.snapshot() });
            }
            paxos::Event::Install { state, .. } => match self.order.install(&state) {
                Ok(()) => {
                    // A leader installs no snapshot of another router. A router that gets one does not lead,
                    // and its soft state belongs to an old history.
                    self.dispatch = None;
                    self.show_routing(out);
                    out.emit(RouterEvent::Config(self.order.last(), Arc::new(self.order.config().clone())));
                    if knew_cut != self.knows_beginning() {
                        self.begun(out);
                    }
                }
                Err(error) => out.emit(RouterEvent::Corrupt(error.to_string())),
            },
            paxos::Event::Members(routers) => {
                self.announce_leader(self.linked.iter().copied().collect(), out);
                for id in self.commands.settle(&routers) {
                    out.emit(RouterEvent::Ended { id, result: Ok(()) });
                }
                out.emit(RouterEvent::Routers(routers));
            }
            paxos::Event::Removed => {
                self.dispatch = None;
                self.end_latest(out);
                self.stable_due = None;
                for (id, result) in self.commands.take_all(self.paxos.me()) {
                    out.emit(RouterEvent::Ended { id, result });
                }
                out.emit(RouterEvent::Removed);
            }
            paxos::Event::Reign { ballot, .. } => self.unconfirmed.reign_began(ballot),
            paxos::Event::Settled { ballot } => self.unconfirmed.reign_settled(ballot),
            paxos::Event::Confirmed { ballot, through } => self.confirm_latest(ballot, through, out),
            paxos::Event::Deposed { .. } => self.end_latest(out),
            // None of this router's proposals depends on the reign that chooses it. The state is small, so
            // snapshots are not sent in parts.
            paxos::Event::SnapshotPartWanted { .. }
            | paxos::Event::SnapshotUnwanted { .. }
            | paxos::Event::InstallPart { .. }
            | paxos::Event::Refused { .. } => {}
            paxos::Event::ChangeRefused { change, reason } => {
                if let Some((id, result)) = self.commands.refuse(&change, reason) {
                    out.emit(RouterEvent::Ended { id, result });
                }
            }
        }
        None
    }

    fn learn(&mut self, payload: Bytes, out: &mut dyn Sink<Self>) {
        if let Some(dispatch) = &mut self.dispatch {
            dispatch.logged(&payload);
        }
        let before = self.order.reformed().map(|reformed| reformed.generation);
        let mut learned = self.order.learn(payload);
        let begins = self.order.reformed().map(|reformed| reformed.generation) != before;
        if learned.is_unreadable {
            out.emit(RouterEvent::Corrupt(String::from("the configuration of the domain does not decode")));
        }
        if learned.reconfigured {
            self.show_routing(out);
            self.monitor.reconfigured();
            out.emit(RouterEvent::Config(self.order.last(), Arc::new(self.order.config().clone())));
        }
        if let Some(dispatch) = &mut self.dispatch {
            if learned.reconfigured {
                dispatch.reconfigured(&self.order);
            }
            if learned.appended.is_some() {
                let (linked, detours, order) = (&self.linked, &self.detours, &self.order);
                dispatch.route(order, &|process| is_reached(linked, detours, order, process));
            }
            for (at, id, outcome) in learned.settled {
                dispatch.settle(at, id, outcome);
            }
            // Departed processes get their last outcomes first.
            for process in learned.departed.drain(..) {
                dispatch.depart(process);
            }
        }
        for (process, why) in learned.not_admitted {
            self.send_refusal(process, why, out);
        }
        // Every router informs the processes that it reaches, because they may have no link to the leader.
        for process in learned.departed.into_iter().chain(learned.departed_senders) {
            self.send_departure_notice(process, out);
        }
        if begins {
            self.begun(out);
        }
    }
}
