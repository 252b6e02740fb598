//! The leader's part: route, deliver, count confirmations, tell stability, hand out credits. All of it is soft: a new
//! leader builds it anew from [`Order`] and what members confirm.
//!
//! A message's *route* counts what is missing until all its destinations have confirmed it, when the submitter is told,
//! until all have executed it, when the submitter has credit for another, and until it is durable at all, when the log says that
//! it is stable and routers may forget it. A destination that is waited for, or catches
//! up, does not count for credit ([`Pace`](super::Pace)): one replica that can not be reached holds back nobody's other messages.
//! One that is away holds back nobody at all, and what it missed is kept for it.

use std::collections::VecDeque;

use bytes::Bytes;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{
    Class, MessageId, Outcome, Position, Routing,
    message::{Message, Notice},
    order::Order,
    stretch::Stretch,
};
use crate::id::ProcessId;

mod destination;
mod stability;

pub(super) use destination::Watermarks;
use destination::{Awaited, DELIVERY_HEAD_BYTES, Destination, Left, Settled};
use stability::Stability;

/// Soft state of a leader.
pub(super) struct Dispatch {
    /// Routes of the messages that are not done with, and of those behind them.
    routes: Stretch<Route>,
    destinations: Vec<Destination>,
    by_process: FxHashMap<ProcessId, u32>,
    submitters: Vec<Submitter>,
    by_sender: FxHashMap<ProcessId, u32>,
    /// Places of the departed, oldest first, that routes may still name.
    departed: VecDeque<Departed>,
    /// Places that nothing names, to be taken by others.
    free_destinations: Vec<u32>,
    free_submitters: Vec<u32>,
    stability: Stability,
    /// How many of a sender's data messages may be under way.
    credit: u64,
    /// Whether any submitter asked again for what the log did not know.
    asked: bool,
    /// Destinations and submitters that have something to be flushed.
    dirty: Vec<u32>,
    notify: Vec<u32>,
    /// Times that a destination was resent to, for the curious.
    pub(super) resends: u64,
}

/// The places of a process that has left.
struct Departed {
    /// No route behind this position names them.
    last: Position,
    destination: Option<u32>,
    submitter: Option<u32>,
}

struct Route {
    destinations: SmallVec<[u32; 4]>,
    groups: SmallVec<[u64; 2]>,
    /// Bit per destination that has confirmed, of use where there are groups.
    confirmed: u64,
    unconfirmed: u32,
    unexecuted: u32,
    undurable: u32,
    submitter: u32,
    /// None if its submitter is not told: the routers submitted it in its name.
    number: Option<u64>,
    told: bool,
}

struct Submitter {
    process: ProcessId,
    notice: Notice,
    /// Its messages under way: routed and not executed everywhere.
    outstanding: u64,
    learned: u64,
    /// It asked again for messages up to this number when the log did not know yet what became of all of them.
    asked: u64,
    dirty: bool,
}

impl Dispatch {
    /// Routes all that is live. `linked` tells to whom a link stands.
    pub(super) fn new<R: Routing>(order: &Order<R>, credit: u64, linked: impl Fn(ProcessId) -> bool) -> Self {
        let mut dispatch = Dispatch {
            routes: Stretch::new(order.flights().base(), order.flights().recent_max()),
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
        for straggler in order.flights().stragglers(Position(0), order.last()) {
            dispatch.route_one(order, straggler, &linked);
        }
        dispatch.route(order, &linked);
        dispatch
    }

    /// Routes what was appended since the last call.
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
            // All that are left have confirmed it: nobody is to be sent anything, and every chain may leave it out.
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
            told: false,
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
                    // One that has left since confirms no more.
                    if !R::is_member(order.config(), process) {
                        route.destinations.push(u32::MAX);
                        continue;
                    }
                    let place = self.destination(process, order, linked);
                    route.destinations.push(place);
                    let destination = &mut self.destinations[place as usize];
                    let Awaited { confirmed, confirmation, execution, durability } =
                        destination.route(at, bytes);
                    route.unexecuted += u32::from(execution);
                    route.undurable += u32::from(durability);
                    route.unconfirmed += u32::from(confirmation);
                    if confirmed {
                        // Where there are groups, there are 64 at most.
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
                Some(outcome) => self.tell(at, outcome),
                None => self.tell_stable(at),
            }
            self.routes.let_go(at, Route::is_done);
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
        let place = settle_in(&mut self.destinations, &mut self.free_destinations, destination);
        self.by_process.insert(process, place);
        place
    }

    fn submitter<R: Routing>(&mut self, process: ProcessId, order: &Order<R>) -> u32 {
        if let Some(&place) = self.by_sender.get(&process) {
            return place;
        }
        // All that the history has of it; what is not done of that is counted as it is routed.
        let learned = order.sender(process).map_or(0, |sender| sender.learned);
        let notice = Notice::default();
        let submitter = Submitter { process, notice, outstanding: 0, learned, asked: 0, dirty: false };
        let place = settle_in(&mut self.submitters, &mut self.free_submitters, submitter);
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

    /// Every destination of `at` has confirmed or left.
    fn tell_stable(&mut self, at: Position) {
        let route = self.route_at(at).expect("told of a routed message");
        let outcome = route.outcome();
        self.tell(at, outcome);
    }

    /// Tells the submitter, and the log as soon as no destination needs the message any more.
    fn tell(&mut self, at: Position, outcome: Outcome) {
        let route = self.route_at(at).expect("told of a routed message");
        assert_eq!(route.unconfirmed, 0, "stability of {at} told before its last confirmation");
        if std::mem::replace(&mut route.told, true) {
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

    /// The log says what became of a message. Usually it repeats what was told here; but the entry may be an earlier
    /// leader's, who counted confirmations that this one has not seen: whoever has not left by now has confirmed.
    pub(super) fn settle(&mut self, at: Position, id: MessageId, outcome: Outcome) {
        let mut unconfirmed = SmallVec::new();
        let news = self.route_at(at).is_some_and(|route| {
            if route.unconfirmed + route.undurable > 0 {
                unconfirmed = route.destinations.clone();
            }
            !std::mem::replace(&mut route.told, true)
        });
        for place in unconfirmed {
            if let Some(destination) = self.destinations.get(place as usize) {
                let through = at.max(destination.reached());
                self.confirm(destination.process, Watermarks { through, executed: Position(0), durable: at });
            }
        }
        self.routes.let_go(at, Route::is_done);
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

    /// The log has chosen `entry`: if it was proposed here, it need not be proposed again.
    pub(super) fn logged(&mut self, entry: &Bytes) {
        self.stability.logged(entry);
    }

    pub(super) fn has_unlogged(&self) -> bool {
        !self.stability.unlogged().is_empty()
    }

    /// Entries about stability that may have been lost on their way into the log.
    pub(super) fn unlogged(&self) -> Vec<Bytes> {
        self.stability.unlogged().iter().cloned().collect()
    }

    /// A member tells what it has.
    pub(super) fn confirm(&mut self, process: ProcessId, has: Watermarks) {
        let Some(&place) = self.by_process.get(&process) else { return };
        let destination = &mut self.destinations[place as usize];
        let settled = destination.confirm(has.through, has.durable);
        if destination.has_unsent() && !std::mem::replace(&mut destination.dirty, true) {
            self.dirty.push(place);
        }
        for Settled { at, durable } in settled {
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
        let route = self.route_at(at).expect("what is not confirmed is still routed");
        // Looked for only where it matters who has confirmed: there are many without groups.
        if !route.groups.is_empty() {
            let index = route.destinations.iter().position(|&other| other == place);
            route.confirmed |= 1 << index.expect("it was destined there");
        }
        route.unconfirmed -= 1;
        route.undurable -= u32::from(durable);
        if route.unconfirmed == 0 {
            self.tell_stable(at);
            self.routes.let_go(at, Route::is_done);
        }
    }

    /// A message is durable at one more of those that it went to, or that one has left.
    fn kept(&mut self, at: Position) {
        let route = self.route_at(at).expect("what is not durable is still routed");
        route.undurable -= 1;
        if route.undurable == 0 && route.told {
            let outcome = route.outcome();
            self.stability.note(at, outcome);
            self.routes.let_go(at, Route::is_done);
        }
    }

    fn executed(&mut self, at: Position) {
        let route = self.route_at(at).expect("what is not executed is still routed");
        route.unexecuted -= 1;
        if route.unexecuted == 0 {
            let submitter = route.submitter;
            self.submitters[submitter as usize].outstanding -= 1;
            self.mark(submitter);
            self.routes.let_go(at, Route::is_done);
        }
    }

    /// One destination of a message is not waited for any more, which has not confirmed it.
    fn excused(&mut self, at: Position) {
        let route = self.route_at(at).expect("what is not confirmed is still routed");
        route.unconfirmed -= 1;
        if route.unconfirmed == 0 {
            self.tell_stable(at);
            self.routes.let_go(at, Route::is_done);
        }
    }

    fn trim(&mut self) {
        self.routes.collect(Route::is_done);
    }

    /// `process` has left the configuration: nobody waits for it any more.
    pub(super) fn depart(&mut self, process: ProcessId) {
        let submitter = self.by_sender.remove(&process);
        if let Some(submitter) = submitter {
            self.submitters[submitter as usize].notice.wedged = true;
            self.mark(submitter);
        }
        let destination = self.by_process.remove(&process);
        // Everything learned so far is routed, and what comes is not routed to or from it.
        let last = self.routes.last();
        self.departed.push_back(Departed { last, destination, submitter });
        let Some(place) = destination else { return };
        let Left { unconfirmed, unexecuted, undurable } = self.destinations[place as usize].leave();
        for at in unconfirmed {
            self.excused(at);
        }
        for at in undurable {
            self.kept(at);
        }
        for at in unexecuted {
            self.executed(at);
        }
        self.trim();
    }

    /// The configuration has changed: who does not count now gives back what waits for it.
    pub(super) fn reconfigured<R: Routing>(&mut self, order: &Order<R>) {
        let (mut freed, mut excused) = (Vec::new(), Vec::new());
        for destination in &mut self.destinations {
            // The departed keep their places until no route names them, and none is routed to.
            let pace = R::pace(order.config(), destination.process);
            if pace != destination.pace() {
                let waived = destination.change_pace(pace);
                freed.extend(waived.unexecuted);
                excused.extend(waived.unconfirmed);
            }
        }
        for at in excused {
            self.excused(at);
        }
        for at in freed {
            self.executed(at);
        }
        self.trim();
    }

    /// Puts a message behind everything routed so far, without a position of its own. `false` if it can not be.
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

    /// A link to `process` stands or has broken: on a new one everything unconfirmed is sent again.
    pub(super) fn link(&mut self, process: ProcessId, linked: bool) {
        if let Some(&submitter) = self.by_sender.get(&process) {
            self.mark(submitter);
        }
        if let Some(&place) = self.by_process.get(&process) {
            self.destinations[place as usize].linked = linked;
            self.resend(process);
        }
    }

    /// `process` misses something: everything unconfirmed is sent again. Injected messages are not: their senders ask anew.
    pub(super) fn resend(&mut self, process: ProcessId) {
        let Some(&place) = self.by_process.get(&process) else { return };
        let destination = &mut self.destinations[place as usize];
        self.resends += u64::from(destination.rewind());
        if !std::mem::replace(&mut destination.dirty, true) {
            self.dirty.push(place);
        }
    }

    /// Writes what is to be sent.
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

    /// Gives free the places that no route names any more. Only after a flush, when none of them waits for one.
    fn release(&mut self) {
        let done = self.routes.done_through();
        while self.departed.front().is_some_and(|departed| departed.last <= done) {
            let departed = self.departed.pop_front().expect("just seen");
            self.free_destinations.extend(departed.destination);
            self.free_submitters.extend(departed.submitter);
        }
    }

    /// What has become stable since the last call, as a log entry.
    pub(super) fn stable_entry(&mut self) -> Option<Bytes> {
        self.stability.entry()
    }

    /// Whether a log entry about stability waits.
    pub(super) fn has_stable(&self) -> bool {
        self.stability.has_news()
    }

    /// A sender asks again for messages that are done with: answers from the log's memory or from soft state.
    pub(super) fn answer<R: Routing>(&mut self, order: &Order<R>, sender: ProcessId, first: u64, last: u64) {
        let place = self.submitter(sender, order);
        let Some(known) = order.sender(sender) else { return };
        let submitter = &mut self.submitters[place as usize];
        let last = last.min(known.learned);
        let mut open = false;
        for number in first..=last {
            match known.outcome(number) {
                Some(outcome) => submitter.notice.push(number, outcome),
                // Told here and not logged yet, or still to come: it is told (again) when the log has it.
                None => {
                    submitter.asked = submitter.asked.max(number);
                    (self.asked, open) = (true, true);
                }
            }
        }
        if open {
            // What some destination may still lose is not logged for long.
            let routes = self.routes.behind(Position(0)).map(|(_, route)| route);
            let told = routes.filter(|route| route.told && route.undurable > 0 && route.submitter == place);
            for route in told {
                if let Some(number) = route.number.filter(|number| (first..=last).contains(number)) {
                    submitter.notice.push(number, route.outcome());
                }
            }
        }
        self.mark(place);
    }

    /// Members whose messages are not confirmed, with how far behind they are.
    pub(super) fn lags(&self) -> impl Iterator<Item = (ProcessId, usize)> + '_ {
        self.destinations.iter().filter_map(|destination| Some((destination.process, destination.lag()?)))
    }
}

impl Route {
    /// Whether nobody is waited for any more.
    fn is_done(&self) -> bool {
        self.told && self.unconfirmed == 0 && self.unexecuted == 0 && self.undurable == 0
    }

    /// What became of the message, once nobody is waited for.
    fn outcome(&self) -> Outcome {
        let alive = self.groups.iter().all(|&group| group & self.confirmed != 0);
        if alive { Outcome::Stable } else { Outcome::MaybeApplied }
    }

    /// The route of a message that is done with.
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
            told: true,
        }
    }
}

/// Puts a newcomer into a free place, or behind all others.
fn settle_in<T>(all: &mut Vec<T>, free: &mut Vec<u32>, newcomer: T) -> u32 {
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
