//! Contacts: the knowledge of which members can talk with each other, and the rules if some cannot (rule
//! S19).
//!
//! At each tick, every member tells every other which members it hears ([`Pulse`]). Two members *talk* while
//! each hears the other: a vote, an acceptance and a confirmation need both directions. A member is
//! *connected* while it talks with a majority of the members, itself included.
//!
//! **Promise.** Suppose some router of the newest membership is connected. Its clients are those that talk
//! with it directly, or through other routers. Their writes are acknowledged again within four election
//! timeouts ([`silence_min`](crate::detector::Settings::silence_min)) after the last path broke or healed.
//! The lead moves at most once. No member is voted out while news of it reaches the leader, directly or
//! through other members.
//!
//! **Rules.**
//!
//! 1. A leader that is not connected resigns, and reports that to every member that it reaches.
//! 2. A follower stays with a leader that it hears. So the follower helps nobody to replace a connected
//!    leader.
//! 3. A member stands for election at once if a majority, itself included, talks with it and knows no leader;
//!    otherwise rarely. Better connected members stand first, one interval apart ([`Core::rank`]).
//! 4. A member helps one candidate at a time (`Paxos::granted`). A candidate gives way to a better connected
//!    candidate until it has begun phase 1.
//! 5. A member that does not talk with the leader finds the next router on a way to it ([`LeaderRoute`]), by
//!    distances, as in distance-vector routing. It passes messages on to the leader (`ecast::detour`).
//! 6. A member that lacks the newest changes answers the pulses of processes that count it as a member,
//!    whether it knows them or not.
//! 7. A pulse carries its sender's *count*, the number of pulses that the sender has sent, and the counts of
//!    all other members that the sender knows. A process whose count grows is alive, along whatever chain.
//!    The count of a dead process stands still, however often it is repeated. A member is voted out only if
//!    the leader suspects it and its count stands still.
//!
//! **Why that keeps the promise.** Let the network take its shape at instant 0, let *T* be the election
//! timeout, and let N(r) be the members with which router r talks, r included.
//!
//! - *A connected leader stays.* All of N(L) hear it, and refuse every other candidate by rule 2. Another
//!   candidate needs a majority, which meets N(L). So the lead does not move.
//! - *A leader that is not connected is gone by T and two ticks.* It suspects members that it does not hear
//!   at T. Members that do not hear it report that in a pulse after T. Then it resigns. Members that hear the
//!   leader learn that it resigned; the other members suspect it by T.
//! - *Then somebody is elected.* Let g be connected. All of N(g) know no leader, and g knows that from their
//!   next pulses. All of N(g) can answer g's questions. At most one candidate at a time has the help of a
//!   majority, because two majorities meet in a member that helps one of them. A candidate that fails tries
//!   again after some intervals. With fewer than a dozen members, the best connected member has its turn
//!   within one timeout.
//! - *Newest members count.* The log of a router may end in a change without effect. The router may be
//!   connected if the newest members count, and not if the members of the change count. It stands for
//!   election, if rarely, and members that answer describe the newer log. So the newest members elect it.
//! - *An elected leader is connected*: after instant 0, the messages of its pre-vote and of phase 1
//!   went to a majority and came back. So it stays, by the first point, and the lead moved once.
//! - *The promise covers every connected router.* If g and the leader L are both connected, N(g) and N(L)
//!   meet: there is a way from g to L over at most one router. Clients of a router that talks with g through
//!   other routers can continue along this way. Once a leader is elected, routers find the way to it within
//!   one tick for each link of the way.
//!
//! Together: T and two ticks until the old leader is gone, at most T of attempts, and half a T for finding
//! the ways to the new leader. That is less than four times T.
//!
//! The simulator tries every graph of three and five members with every leader (`quorate sim graphs`).
//!
//! **What is not promised.** An election in progress when the network takes its shape may end in a leader
//! that is not connected in the new shape: that move is not counted. The best connected router may lack more
//! of a better log than other routers keep
//! ([`Settings::log_bytes_kept`](super::Settings::log_bytes_kept)): then no other router can give it a
//! promise, and the next best connected router stands for election. If no member on the leader's side hears a
//! process, nobody there can distinguish it from a dead one.
//!
//! A router that others hear, and that hears nobody, stays a member for as long as that lasts. Its count
//! grows at those that hear it, so by rule 7 no leader votes it out. It cannot vote, accept or confirm,
//! because each of these needs both directions. So in every majority it counts like a dead member.
//!
//! All knowledge of contacts is a guess about the present: it decides which router tries what, and when. No
//! safety depends on it (rule S11).

use super::{
    Context, Core, Duration, Event, Message, Paxos, ProcessId, Sink, State,
    pulse::{Contact, KnownMember, LeaderRoute, Pulse},
};
use crate::{quorum, time::Time};

impl Core {
    /// Notes a sign of life. If the silence before it was long enough for a suspicion, the link was cut. Such
    /// a silence must not count as one of the peer's usual pauses, so the detector starts over.
    pub(super) fn heard(&mut self, process: ProcessId, now: Time) {
        if self.detector.suspects(process, now) {
            self.detector.unwatch(process);
            self.detector.watch(process, now);
        }
        self.detector.heard(process, now);
    }

    /// Whether this process and `process` hear each other; `true` if that is not known.
    pub(super) fn talks(&self, process: ProcessId, now: Time) -> bool {
        process == self.me.id
            || !self.detector.suspects(process, now)
                && self.contacts.known.get(&process).is_none_or(|known| known.hears_us)
    }

    /// Whether `process` was heard within the last two intervals, and hears this process.
    pub(super) fn in_touch(&self, process: ProcessId, now: Time) -> bool {
        process == self.me.id || self.detector.in_touch(process, now) && self.talks(process, now)
    }

    /// Returns the number of acting members (members of the newest change, chosen or not) with which this
    /// process talks. If this process is an acting member, it counts, too.
    pub(super) fn reach_now(&self, now: Time) -> usize {
        self.acting().iter().filter(|peer| self.talks(peer.id, now)).count()
    }

    /// Whether this process talks with a majority.
    pub(super) fn is_connected(&self, now: Time) -> bool {
        self.reach_now(now) >= quorum::majority(self.acting().len())
    }

    /// Whether no report of `process` has come for `span`.
    pub(super) fn is_silent(&self, process: ProcessId, now: Time, span: Duration) -> bool {
        self.contacts.known.get(&process).is_none_or(|known| now.since(known.alive_at) >= span)
    }

    /// Whether a majority of the members, this process included, talks with this process and knows no leader.
    pub(super) fn is_electable(&self, now: Time) -> bool {
        let free = |process: ProcessId| {
            process == self.me.id || !self.contacts.known.get(&process).is_some_and(|known| known.led)
        };
        let free = self.acting().iter().filter(|peer| self.talks(peer.id, now) && free(peer.id)).count();
        free >= quorum::majority(self.acting().len())
    }

    /// Returns the number of better leaders among the members with which this process talks. A member would
    /// be a better leader if it talks with more members than this process, or with equally many and has the
    /// greater id.
    pub(super) fn rank(&self, now: Time) -> u32 {
        let mine = (self.reach_now(now) as u32, self.me.id);
        let others = self.acting().iter().filter(|peer| peer.id != self.me.id && self.talks(peer.id, now));
        let better = others.filter(|peer| {
            self.contacts.known.get(&peer.id).is_some_and(|known| !known.led && (known.reach, peer.id) > mine)
        });
        better.count() as u32
    }

    /// Returns the members, and the members after an open change, except this process.
    fn concerned(&self) -> Vec<ProcessId> {
        let mut all = self.others();
        all.extend(self.acting().iter().map(|peer| peer.id).filter(|id| *id != self.me.id));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Watches the members, the members of an open change, and `more`, and no other process.
    pub(super) fn watch_members(&mut self, more: impl IntoIterator<Item = ProcessId>, now: Time) {
        let mut all = self.concerned();
        self.contacts.known.retain(|process, _| all.contains(process));
        all.extend(more);
        self.watch_only(&all, now);
    }

    fn pulse(&mut self, led: bool, way: Option<LeaderRoute>, now: Time, out: &mut dyn Sink<Paxos>) {
        self.contacts.beat += 1;
        let concerned = self.concerned();
        let contacts = concerned.iter().map(|&process| Contact {
            process,
            beat: self.contacts.known.get(&process).map_or(0, |known| known.beat),
            heard: !self.detector.suspects(process, now),
        });
        let pulse = Pulse {
            beat: self.contacts.beat,
            round: self.round.max(self.promised.round),
            reach: self.reach_now(now) as u32,
            led,
            way,
            contacts: contacts.collect(),
        };
        let patience = self.settings.detector.silence_min;
        self.contacts.strangers.retain(|_, said_at| now.since(*said_at) < patience);
        let strangers =
            self.contacts.strangers.keys().filter(|process| !concerned.contains(process)).copied();
        let all = strangers.chain(concerned.iter().copied());
        let linked = all.filter(|process| self.links.contains(process)).collect();
        self.send_all_aside(linked, Message::Pulse(pulse), out);
    }

    fn note_pulse(&mut self, from: ProcessId, pulse: Pulse, now: Time) {
        let concerned = self.concerned();
        let known = &mut self.contacts.known;
        let fresh =
            || KnownMember { beat: 0, alive_at: now, hears_us: true, reach: 0, led: false, way: None };
        let beats = pulse.contacts.iter().map(|contact| (contact.process, contact.beat));
        for (process, beat) in beats.chain([(from, pulse.beat)]) {
            if concerned.contains(&process) {
                let known = known.entry(process).or_insert_with(fresh);
                if beat > known.beat {
                    (known.beat, known.alive_at) = (beat, now);
                }
            }
        }
        let names_us = pulse.contacts.iter().any(|contact| contact.process == self.me.id);
        if names_us
            && !concerned.contains(&from)
            && (self.contacts.strangers.len() < STRANGERS_MAX || self.contacts.strangers.contains_key(&from))
        {
            self.contacts.strangers.insert(from, now);
        }
        if let Some(known) = self.contacts.known.get_mut(&from) {
            let us = pulse.contacts.iter().find(|contact| contact.process == self.me.id);
            known.hears_us = us.is_none_or(|contact| contact.heard);
            (known.reach, known.led, known.way) = (pulse.reach, pulse.led, pulse.way);
        }
        self.round = self.round.max(pulse.round);
    }

    /// Returns the best way to the newest known leader, directly or through another member. A way that leads
    /// back here does not count.
    fn find_way(&self, now: Time) -> Option<LeaderRoute> {
        let talks = |process: ProcessId| self.links.contains(&process) && self.talks(process, now);
        let direct = self.leader.filter(|ballot| talks(ballot.router));
        let direct = direct.map(|ballot| LeaderRoute { ballot, next: ballot.router, hops: 1 });
        let hops_max = self.concerned().len() as u32;
        let through = self.contacts.known.iter().filter(|(process, _)| talks(**process));
        let through = through.filter_map(|(&process, known)| {
            let way = known.way.filter(|way| {
                way.next != self.me.id && way.ballot.router != self.me.id && way.hops < hops_max
            })?;
            Some(LeaderRoute { ballot: way.ballot, next: process, hops: way.hops + 1 })
        });
        through.chain(direct).max_by_key(|way| (way.ballot, std::cmp::Reverse((way.hops, way.next))))
    }
}

impl Paxos {
    /// Returns the router to which to pass messages for the leader, if the leader is reached through another
    /// router.
    pub fn detour(&self) -> Option<ProcessId> {
        self.core.contacts.detour.map(|way| way.next)
    }

    /// Whether this router and `process` hear each other, as far as this router knows.
    pub fn talks_with(&self, process: ProcessId, now: Time) -> bool {
        self.core.talks(process, now)
    }

    /// Whether messages to this router reach the leader, as far as this router knows: it leads, talks with
    /// the leader, or knows another router on the way to the leader.
    pub fn reaches_leader(&self, now: Time) -> bool {
        self.is_leader()
            || self.detour().is_some()
            || self.leader().is_some_and(|leader| self.talks_with(leader, now))
    }

    /// Returns the leader, known directly or through another router.
    pub fn leader_known(&self) -> Option<ProcessId> {
        self.core.contacts.detour.map(|way| way.ballot.router).or(self.leader())
    }

    /// Sends this process's pulse to the other members, and updates its way to the leader.
    pub(super) fn pulse(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        if !self.core.concerns(cx.me) {
            return;
        }
        let leads = self.is_leader();
        let way = match self.core.leader {
            Some(ballot) if leads => Some(LeaderRoute { ballot, next: cx.me, hops: 0 }),
            _ => self.core.find_way(cx.now),
        };
        let direct = way.is_some_and(|way| way.next == way.ballot.router || leads);
        if direct {
            self.core.contacts.led_at = Some(cx.now);
        }
        // A short time without a leader is an election, and no reason for a detour.
        let patience = self.interval() * DETOUR_PATIENCE;
        let lasting = self.core.contacts.led_at.is_none_or(|led_at| cx.now.since(led_at) >= patience);
        let detour = way.filter(|_| !direct && lasting);
        let before = std::mem::replace(&mut self.core.contacts.detour, detour);
        if before.map(|way| (way.ballot, way.next)) != detour.map(|way| (way.ballot, way.next)) {
            out.emit(Event::Detour(detour.map(|way| way.next)));
        }
        let way = way.filter(|_| direct || detour.is_some());
        self.core.pulse(leads || self.core.leader.is_some(), way, cx.now, out);
    }

    pub(super) fn pulsed(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        pulse: Pulse,
        out: &mut dyn Sink<Self>,
    ) {
        let leads = pulse.way.filter(|way| way.hops == 0).map(|way| way.ballot);
        self.core.note_pulse(from, pulse, cx.now);
        if self.leader() == Some(from) && leads != self.core.leader {
            // The sender led until now and leads no longer. Its message about that was lost.
            self.lose_leader(cx, Duration::ZERO, out);
        }
        self.stand_sooner(cx);
    }

    /// Stands for election earlier if this process now knows a majority that talks with it and has no leader.
    fn stand_sooner(&mut self, cx: &mut Context<'_>) {
        if let Some(ready) = self.ready_from
            && matches!(self.state, State::Follower | State::Joining { .. })
            && self.core.is_electable(cx.now)
        {
            self.ready_from = None;
            let turn = self.turn(cx);
            self.election = self.election.map(|election| election.min(ready.max(cx.now) + turn));
        }
    }

    /// Returns the time for which this process lets better connected members stand for election first.
    fn turn(&self, cx: &mut Context<'_>) -> Duration {
        self.interval() * self.core.rank(cx.now) + self.chance(cx, self.interval() / 2)
    }

    /// Schedules standing for election after `patience`. A process that seems unelectable tries nevertheless,
    /// but rarely, because its knowledge of the members may be old.
    pub(super) fn stand_after(&mut self, cx: &mut Context<'_>, patience: Duration) {
        if self.pausing {
            return;
        }
        let from = cx.now + patience;
        if self.core.is_electable(cx.now) {
            self.ready_from = None;
            self.election = Some(from + self.turn(cx));
        } else {
            self.ready_from = Some(from);
            self.election = Some(from + self.interval() * 8 + self.chance(cx, self.interval() * 4));
        }
    }
}

/// Maximum number of unknown processes to which pulses are sent.
const STRANGERS_MAX: usize = 16;
/// Number of intervals without the leader before a detour is used.
const DETOUR_PATIENCE: u32 = 3;
