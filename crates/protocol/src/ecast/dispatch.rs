//! The leader's part: it routes and delivers messages, counts confirmations, reports stability, and gives out
//! credits. All of this state is soft: a new leader builds it again from [`Order`] and from its members'
//! confirmations.
//!
//! The *route* of a message counts three things: destinations that have not confirmed it, have not executed
//! it, or do not have it durably. At the end of the first count, the submitter learns the outcome. At the end
//! of the second, it has credit for another message. At the end of the third, the log calls the message
//! stable, and routers may forget it. A destination for which the cluster waits, or that catches up, does not
//! count for credit ([`Pace`](super::Pace)), so an unreachable replica holds back nobody's other messages. An
//! away destination holds back nobody at all; its messages are kept for it.
//!
//! A new leader does not learn which stable messages are still unexecuted. It counts every message that the
//! log calls stable as executed, so the message's sender has the credit again. After each election a sender
//! may therefore have one more full window of messages on their way. A destination that executes more slowly
//! than it confirms holds back at most one window of messages of each sender. With n elections during that
//! time, it holds back at most n + 1 windows.

use std::collections::VecDeque;

use bytes::Bytes;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{
    Class, MessageId, Outcome, Position, Routing,
    live_range::LiveRange,
    message::{Message, Notice},
    order::Order,
};
use crate::id::ProcessId;

mod destination;
mod stability;

pub(super) use destination::Watermarks;
use destination::{AwaitedSteps, ConfirmedMessage, DELIVERY_HEAD_BYTES, DepartedWaits, Destination};
use stability::Stability;

/// Soft state of a leader.
pub(super) struct Dispatch {
    /// Routes of unfinished messages, and of finished messages that are kept because an earlier message is
    /// unfinished.
    routes: LiveRange<Route>,
    destinations: Vec<Destination>,
    by_process: FxHashMap<ProcessId, u32>,
    submitters: Vec<Submitter>,
    by_sender: FxHashMap<ProcessId, u32>,
    /// Indices of departed processes that routes may still name, oldest first.
    departed: VecDeque<Departed>,
    /// Free indices, for new processes.
    free_destinations: Vec<u32>,
    free_submitters: Vec<u32>,
    stability: Stability,
    /// Maximum number of a sender's unexecuted data messages.
    credit: u64,
    /// Whether a submitter asked for an outcome that the log did not know.
    asked: bool,
    /// Indices of destinations to which something waits to be sent. The indices of submitters to which
    /// something waits are in `notify`.
    dirty: Vec<u32>,
    notify: Vec<u32>,
    /// Number of times that deliveries to a destination were sent again, for operators.
    pub(super) resends: u64,
}

/// The indices of a process that has left.
struct Departed {
    /// Routes after this position do not name the process.
    last: Position,
    destination: Option<u32>,
    submitter: Option<u32>,
}

struct Route {
    destinations: SmallVec<[u32; 4]>,
    groups: SmallVec<[u64; 2]>,
    /// One bit for each destination that has confirmed. Used only for a message with groups.
    confirmed: u64,
    unconfirmed: u32,
    unexecuted: u32,
    undurable: u32,
    submitter: u32,
    /// The message's number; `None` if the routers submitted the message in its sender's name: then the
    /// sender gets no outcome.
    number: Option<u64>,
    is_reported: bool,
}

struct Submitter {
    process: ProcessId,
    notice: Notice,
    /// Number of the sender's messages that are routed and not executed everywhere.
    outstanding: u64,
    learned: u64,
    /// The highest number about which the sender asked while the log lacked the outcome of a message.
    asked: u64,
    dirty: bool,
}

impl Dispatch {
    /// Routes all live messages. `linked` says whether a process has a link.
    pub(super) fn new<R: Routing>(order: &Order<R>, credit: u64, linked: impl Fn(ProcessId) -> bool) -> Self {
        let mut dispatch = Dispatch {
            routes: LiveRange::new(order.live_messages().base(), order.live_messages().recent_max()),
            destinations: Vec::new(),
            by_process: FxHashMap::default(),
            submitters: Vec::new(),
            by_sender: FxHashMap::default(),
            departed: VecDeque::new(),
            free_destinations: Vec::new(),
            free_submitters: Vec::new(),
            stability: Stability::default(),
            credit,
            asked: false,
            dirty: Vec::new(),
            notify: Vec::new(),
            resends: 0,
        };
        for process in R::members(order.config()) {
            dispatch.destination(process, order, &linked);
            dispatch.submitter(process, order);
        }
        for straggler in order.live_messages().stragglers(Position(0), order.last()) {
            dispatch.route_one(order, straggler, &linked);
        }
        dispatch.route(order, &linked);
        dispatch
    }

    /// Routes the messages appended since the last call.
    pub(super) fn route<R: Routing>(&mut self, order: &Order<R>, linked: &impl Fn(ProcessId) -> bool) {
        while self.routes.last() < order.last() {
            let at = Position(self.routes.last().0 + 1);
            self.route_one(order, at, linked);
        }
    }

    fn route_one<R: Routing>(&mut self, order: &Order<R>, at: Position, linked: &impl Fn(ProcessId) -> bool) {
        let flight = order.flight(at).expect("a message above the base is kept");
        let (id, class) = (flight.id, flight.class);
        if flight.stable {
            // All remaining destinations have confirmed the message. It is not sent again, and every
            // destination's chain of previous positions may skip it.
            let submitter = self.submitter(id.sender, order);
            let place = &mut self.submitters[submitter as usize];
            place.learned = place.learned.max(id.number);
            self.routes.put(at, Route::stable(submitter));
            return;
        }
        let bytes = (flight.body.len() + DELIVERY_HEAD_BYTES) as u32;
        let found = match flight.refused {
            Some(outcome) => Err(outcome),
            None => R::destinations(order.config_at(at), id, class, &flight.body).map_err(Outcome::Rejected),
        };
        let submitter = self.submitter(id.sender, order);
        let mut route = Route {
            destinations: SmallVec::new(),
            groups: SmallVec::new(),
            confirmed: 0,
            unconfirmed: 0,
            unexecuted: 0,
            undurable: 0,
            submitter,
            number: (!flight.in_name).then_some(id.number),
            is_reported: false,
        };
        let mut refused = None;
        match found {
            Ok(found) => {
                assert!(
                    found.groups.is_empty() || found.processes.len() <= 64,
                    "groups cover at most 64 processes"
                );
                route.groups = found.groups;
                for (index, process) in found.processes.into_iter().enumerate() {
                    // A process that has left will not confirm.
                    if !R::is_member(order.config(), process) {
                        route.destinations.push(u32::MAX);
                        continue;
                    }
                    let place = self.destination(process, order, linked);
                    route.destinations.push(place);
                    let destination = &mut self.destinations[place as usize];
                    let AwaitedSteps { confirmed, confirmation, execution, durability } =
                        destination.route(at, bytes);
                    route.unexecuted += u32::from(execution);
                    route.undurable += u32::from(durability);
                    route.unconfirmed += u32::from(confirmation);
                    if confirmed {
                        // A message with groups has at most 64 destinations.
                        route.confirmed |= 1u64.checked_shl(index as u32).unwrap_or(0);
                    } else if !std::mem::replace(&mut destination.dirty, true) {
                        self.dirty.push(place);
                    }
                }
            }
            Err(outcome) => refused = Some(outcome),
        }
        let place = &mut self.submitters[submitter as usize];
        place.learned = place.learned.max(id.number);
        place.outstanding += u64::from(route.unexecuted > 0);
        let unconfirmed = route.unconfirmed;
        self.routes.put(at, route);
        if unconfirmed == 0 {
            match refused {
                Some(outcome) => self.report_outcome(at, outcome),
                None => self.report_stable(at),
            }
            self.routes.forget_finished(at, Route::is_done);
        }
    }

    fn destination<R: Routing>(
        &mut self,
        process: ProcessId,
        order: &Order<R>,
        linked: &impl Fn(ProcessId) -> bool,
    ) -> u32 {
        if let Some(&place) = self.by_process.get(&process) {
            return place;
        }
        let pace = R::pace(order.config(), process);
        let destination = Destination::new(process, linked(process), pace);
        let place = insert_into_free_slot(&mut self.destinations, &mut self.free_destinations, destination);
        self.by_process.insert(process, place);
        place
    }

    fn submitter<R: Routing>(&mut self, process: ProcessId, order: &Order<R>) -> u32 {
        if let Some(&place) = self.by_sender.get(&process) {
            return place;
        }
        // The submitter's unfinished messages are not counted here, because each is counted when it is
        // routed.
        let learned = order.sender(process).map_or(0, |sender| sender.learned);
        let notice = Notice::default();
        let submitter = Submitter { process, notice, outstanding: 0, learned, asked: 0, dirty: false };
        let place = insert_into_free_slot(&mut self.submitters, &mut self.free_submitters, submitter);
        self.by_sender.insert(process, place);
        self.mark(place);
        place
    }

    fn mark(&mut self, submitter: u32) {
        if !std::mem::replace(&mut self.submitters[submitter as usize].dirty, true) {
            self.notify.push(submitter);
        }
    }

    fn route_at(&mut self, at: Position) -> Option<&mut Route> {
        self.routes.get_mut(at)
    }

    /// Reports the outcome of `at`, because every destination has confirmed or left.
    fn report_stable(&mut self, at: Position) {
        let route = self.route_at(at).expect("the outcome of a routed message is reported");
        let outcome = route.outcome();
        self.report_outcome(at, outcome);
    }

    /// Reports the outcome to the submitter, and to the log once no destination needs the message any longer.
    fn report_outcome(&mut self, at: Position, outcome: Outcome) {
        let route = self.route_at(at).expect("the outcome of a routed message is reported");
        assert_eq!(
            route.unconfirmed, 0,
            "the outcome of message {at} is reported only after its last confirmation"
        );
        if std::mem::replace(&mut route.is_reported, true) {
            return;
        }
        let (submitter, number, durable) = (route.submitter, route.number, route.undurable == 0);
        if let Some(number) = number {
            self.submitters[submitter as usize].notice.push(number, outcome);
            self.mark(submitter);
        }
        if durable {
            self.stability.note(at, outcome);
        }
    }

    /// Notes the outcome of a message in the log. Usually this leader has already reported the outcome. But
    /// the log entry may come from an earlier leader, which counted confirmations that this leader has not
    /// received. Then every present destination has confirmed.
    pub(super) fn settle(&mut self, at: Position, id: MessageId, outcome: Outcome) {
        let mut unconfirmed = SmallVec::new();
        let news = self.route_at(at).is_some_and(|route| {
            if route.unconfirmed + route.undurable > 0 {
                unconfirmed = route.destinations.clone();
            }
            !std::mem::replace(&mut route.is_reported, true)
        });
        for place in unconfirmed {
            if let Some(destination) = self.destinations.get(place as usize) {
                let through = at.max(destination.reached());
                self.confirm(destination.process, Watermarks { through, executed: Position(0), durable: at });
            }
        }
        self.routes.forget_finished(at, Route::is_done);
        if !news && !self.asked {
            return;
        }
        let Some(&place) = self.by_sender.get(&id.sender) else { return };
        let submitter = &mut self.submitters[place as usize];
        if news || id.number <= submitter.asked {
            submitter.notice.push(id.number, outcome);
            self.mark(place);
        }
    }

    /// Notes that the log has chosen `entry`, so that it is not proposed again.
    pub(super) fn logged(&mut self, entry: &Bytes) {
        self.stability.logged(entry);
    }

    pub(super) fn has_unlogged(&self) -> bool {
        !self.stability.unlogged().is_empty()
    }

    /// Returns entries about stability that may have been lost on their way into the log.
    pub(super) fn unlogged(&self) -> Vec<Bytes> {
        self.stability.unlogged().iter().cloned().collect()
    }

    /// Handles a member's progress report.
    pub(super) fn confirm(&mut self, process: ProcessId, has: Watermarks) {
        let Some(&place) = self.by_process.get(&process) else { return };
        let destination = &mut self.destinations[place as usize];
        let settled = destination.confirm(has.through, has.durable);
        if destination.has_unsent() && !std::mem::replace(&mut destination.dirty, true) {
            self.dirty.push(place);
        }
        for ConfirmedMessage { at, durable } in settled {
            self.confirmed(at, place, durable);
        }
        for at in self.destinations[place as usize].keep(has.durable) {
            self.kept(at);
        }
        let done = self.destinations[place as usize].execute(has.executed);
        for at in done {
            self.executed(at);
        }
        self.trim();
    }

    fn confirmed(&mut self, at: Position, place: u32, durable: bool) {
        let route = self.route_at(at).expect("an unconfirmed message is still routed");
        // The bit is needed only with groups; a message without groups may have many destinations.
        if !route.groups.is_empty() {
            let index = route.destinations.iter().position(|&other| other == place);
            route.confirmed |= 1 << index.expect("a confirmation comes from a destination of the message");
        }
        route.unconfirmed -= 1;
        route.undurable -= u32::from(durable);
        if route.unconfirmed == 0 {
            self.report_stable(at);
            self.routes.forget_finished(at, Route::is_done);
        }
    }

    /// Notes that a message is durable at one more destination, or that the destination has left.
    fn kept(&mut self, at: Position) {
        let route = self.route_at(at).expect("a message that is not durable is still routed");
        route.undurable -= 1;
        if route.undurable == 0 && route.is_reported {
            let outcome = route.outcome();
            self.stability.note(at, outcome);
            self.routes.forget_finished(at, Route::is_done);
        }
    }

    fn executed(&mut self, at: Position) {
        let route = self.route_at(at).expect("a message that is not executed is still routed");
        route.unexecuted -= 1;
        if route.unexecuted == 0 {
            let submitter = route.submitter;
            self.submitters[submitter as usize].outstanding -= 1;
            self.mark(submitter);
            self.routes.forget_finished(at, Route::is_done);
        }
    }

    /// Stops waiting for one destination's confirmation of a message.
    fn waive_confirmation(&mut self, at: Position) {
        let route = self.route_at(at).expect("an unconfirmed message is still routed");
        route.unconfirmed -= 1;
        if route.unconfirmed == 0 {
            self.report_stable(at);
            self.routes.forget_finished(at, Route::is_done);
        }
    }

    fn trim(&mut self) {
        self.routes.collect(Route::is_done);
    }

    /// Handles that `process` has left the configuration: messages no longer wait for it.
    pub(super) fn depart(&mut self, process: ProcessId) {
        let submitter = self.by_sender.remove(&process);
        if let Some(submitter) = submitter {
            self.submitters[submitter as usize].notice.wedged = true;
            self.mark(submitter);
        }
        let destination = self.by_process.remove(&process);
        // Everything learned so far is routed; later messages are routed neither to nor from the process.
        let last = self.routes.last();
        self.departed.push_back(Departed { last, destination, submitter });
        let Some(place) = destination else { return };
        let DepartedWaits { unconfirmed, unexecuted, undurable } = self.destinations[place as usize].leave();
        for at in unconfirmed {
            self.waive_confirmation(at);
        }
        for at in undurable {
            self.kept(at);
        }
        for at in unexecuted {
            self.executed(at);
        }
        self.trim();
    }

    /// Applies a changed configuration: if messages to a destination no longer use credit, their submitters
    /// get that credit back.
    pub(super) fn reconfigured<R: Routing>(&mut self, order: &Order<R>) {
        let (mut freed, mut excused) = (Vec::new(), Vec::new());
        for destination in &mut self.destinations {
            // Departed processes keep their indices until no route names them. Nothing is routed to them.
            let pace = R::pace(order.config(), destination.process);
            if pace != destination.pace() {
                let waived = destination.change_pace(pace);
                freed.extend(waived.unexecuted);
                excused.extend(waived.unconfirmed);
            }
        }
        for at in excused {
            self.waive_confirmation(at);
        }
        for at in freed {
            self.executed(at);
        }
        self.trim();
    }

    /// Sends a message after everything routed so far, without a position of its own. Returns `false` if a
    /// destination is missing or cannot take it.
    pub(super) fn inject<R: Routing>(
        &mut self,
        order: &Order<R>,
        from: ProcessId,
        token: u64,
        body: &Bytes,
    ) -> bool {
        let id = MessageId { sender: from, number: 0 };
        if !R::is_member(order.config(), from) {
            return false;
        }
        let Ok(found) = R::destinations(order.config(), id, Class::Data, body) else { return false };
        let places: Option<SmallVec<[u32; 4]>> =
            found.processes.iter().map(|process| self.by_process.get(process).copied()).collect();
        let Some(places) = places.filter(|places| !places.is_empty()) else { return false };
        let ready = |place: &u32| self.destinations[*place as usize].takes_injected();
        if !places.iter().all(ready) {
            return false;
        }
        for place in places {
            let destination = &mut self.destinations[place as usize];
            destination.inject(order.last(), from, token, body.clone());
            if !std::mem::replace(&mut destination.dirty, true) {
                self.dirty.push(place);
            }
        }
        true
    }

    /// Notes that a link to `process` came up or broke. On a new link, this leader sends everything
    /// unconfirmed again.
    pub(super) fn link(&mut self, process: ProcessId, linked: bool) {
        if let Some(&submitter) = self.by_sender.get(&process) {
            self.mark(submitter);
        }
        if let Some(&place) = self.by_process.get(&process) {
            self.destinations[place as usize].linked = linked;
            self.resend(process);
        }
    }

    /// Sends everything unconfirmed to `process` again, because it misses something. Injected messages are
    /// dropped; their senders ask again.
    pub(super) fn resend(&mut self, process: ProcessId) {
        let Some(&place) = self.by_process.get(&process) else { return };
        let destination = &mut self.destinations[place as usize];
        self.resends += u64::from(destination.rewind());
        if !std::mem::replace(&mut destination.dirty, true) {
            self.dirty.push(place);
        }
    }

    /// Sends everything that waits.
    pub(super) fn flush<R: Routing>(&mut self, order: &Order<R>, send: &mut impl FnMut(ProcessId, Message)) {
        for place in std::mem::take(&mut self.dirty) {
            self.destinations[place as usize].flush(order, send);
        }
        for place in std::mem::take(&mut self.notify) {
            let submitter = &mut self.submitters[place as usize];
            submitter.dirty = false;
            let mut notice = std::mem::take(&mut submitter.notice);
            notice.credit = submitter.learned.saturating_sub(submitter.outstanding) + self.credit;
            send(submitter.process, Message::Notice(notice));
        }
        self.release();
    }

    /// Frees the indices that no route names. Must follow a call of `flush`, so that nothing waits to be sent
    /// under a freed index.
    fn release(&mut self) {
        let done = self.routes.done_through();
        while self.departed.front().is_some_and(|departed| departed.last <= done) {
            let departed = self.departed.pop_front().expect("just seen");
            self.free_destinations.extend(departed.destination);
            self.free_submitters.extend(departed.submitter);
        }
    }

    /// Returns the positions that have become stable since the last call, as a log entry.
    pub(super) fn stable_entry(&mut self) -> Option<Bytes> {
        self.stability.entry()
    }

    /// Whether positions that have become stable wait to be proposed as a log entry.
    pub(super) fn has_stable(&self) -> bool {
        self.stability.has_news()
    }

    /// Answers a sender that asks about its earlier messages, from the log's memory or from soft state.
    pub(super) fn answer<R: Routing>(&mut self, order: &Order<R>, sender: ProcessId, first: u64, last: u64) {
        let place = self.submitter(sender, order);
        let Some(known) = order.sender(sender) else { return };
        let submitter = &mut self.submitters[place as usize];
        let last = last.min(known.learned);
        let mut open = false;
        for number in first..=last {
            match known.outcome(number) {
                Some(outcome) => submitter.notice.push(number, outcome),
                // The outcome is not logged yet, or not known. The sender learns it, perhaps for a second
                // time, when the outcome is in the log.
                None => {
                    submitter.asked = submitter.asked.max(number);
                    (self.asked, open) = (true, true);
                }
            }
        }
        if open {
            // If some destination may still lose the message, the outcome is known but not logged.
            let routes = self.routes.behind(Position(0)).map(|(_, route)| route);
            let reported =
                routes.filter(|route| route.is_reported && route.undurable > 0 && route.submitter == place);
            for route in reported {
                if let Some(number) = route.number.filter(|number| (first..=last).contains(number)) {
                    submitter.notice.push(number, route.outcome());
                }
            }
        }
        self.mark(place);
    }

    /// Returns the members with unconfirmed messages, each with the number of its unconfirmed messages.
    pub(super) fn lags(&self) -> impl Iterator<Item = (ProcessId, usize)> + '_ {
        self.destinations.iter().filter_map(|destination| Some((destination.process, destination.lag()?)))
    }
}

impl Route {
    /// Whether no destination needs the message any longer.
    fn is_done(&self) -> bool {
        self.is_reported && self.unconfirmed == 0 && self.unexecuted == 0 && self.undurable == 0
    }

    /// Returns the outcome. It is meaningful once every confirmation has come or is waived.
    fn outcome(&self) -> Outcome {
        let alive = self.groups.iter().all(|&group| group & self.confirmed != 0);
        if alive { Outcome::Stable } else { Outcome::MaybeApplied }
    }

    /// Creates the route of a finished message.
    fn stable(submitter: u32) -> Route {
        Route {
            destinations: SmallVec::new(),
            groups: SmallVec::new(),
            confirmed: 0,
            unconfirmed: 0,
            unexecuted: 0,
            undurable: 0,
            submitter,
            number: None,
            is_reported: true,
        }
    }
}

/// Puts `newcomer` at an index that `free` lists, or at the end. Returns its index.
fn insert_into_free_slot<T>(all: &mut Vec<T>, free: &mut Vec<u32>, newcomer: T) -> u32 {
    match free.pop() {
        Some(place) => {
            all[place as usize] = newcomer;
            place
        }
        None => {
            all.push(newcomer);
            (all.len() - 1) as u32
        }
    }
}

#[cfg(test)]
mod tests;
