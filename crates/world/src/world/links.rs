//! The travel of frames, and the making and breaking of links.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use quorate_protocol::{
    Destination, Policy, ProcessId, Protocol, Time, journal::DurabilityReport, wire::Wire,
};
use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{
    Crash, LifeState, World, WorldEvent,
    faults::{CUT_PATIENCE_MAX, CUT_PATIENCE_MIN},
};
use crate::{
    disk::Disk,
    machine::Arrival,
    network::{End, Frame, LifeNumber, LinkState, end},
    outbox::Outgoing,
};

impl<P: Protocol> World<P>
where
    P::Message: Wire,
{
    /// Sends the messages of a batch: one frame for each peer, in the order in which the batch first names
    /// the peers.
    pub(super) fn dispatch(&mut self, machine: usize, leave: Time, sends: Vec<Outgoing>) {
        if sends.is_empty() {
            return;
        }
        let life = self.machines[machine].life;
        let mut frames: Vec<(ProcessId, Vec<Bytes>)> = Vec::new();
        let mut index: FxHashMap<ProcessId, usize> = FxHashMap::default();
        let mut frame = |to: ProcessId| {
            *index.entry(to).or_insert_with(|| {
                frames.push((to, Vec::new()));
                frames.len() - 1
            })
        };
        let mut numbered: Vec<(usize, Option<Bytes>)> = Vec::with_capacity(sends.len());
        for outgoing in sends {
            match outgoing {
                Outgoing::Message(Destination::One(to), bytes, _) => numbered.push((frame(to), Some(bytes))),
                Outgoing::Message(Destination::Many(all), bytes, _) => {
                    numbered.extend(all.into_iter().map(|to| (frame(to), Some(bytes.clone()))));
                }
                Outgoing::Barrier(to) => numbered.push((frame(to), None)),
            }
        }
        for (at, bytes) in numbered {
            match bytes {
                Some(bytes) => frames[at].1.push(bytes),
                None => frames[at].1.clear(),
            }
        }
        for (to, messages) in frames {
            if messages.is_empty() {
                continue;
            }
            if to == self.lives[life as usize].id {
                if self.manual.is_some() {
                    messages.into_iter().for_each(|message| self.leave((to, to), message));
                    continue;
                }
                let frame = Frame { messages, cut: false, durability: DurabilityReport::default() };
                self.push(leave, WorldEvent::Frame { from: life, to: life, session: 0, frame });
                continue;
            }
            let Some(&peer) = self.life_of.get(&to) else {
                self.count("sent to nobody");
                continue;
            };
            self.send(life, peer, leave, messages);
        }
    }

    fn send(&mut self, life: LifeNumber, peer: LifeNumber, leave: Time, mut messages: Vec<Bytes>) {
        let (from, to) = (self.lives[life as usize].machine, self.lives[peer as usize].machine);
        let Some(link) = self.network.existing(life, peer) else {
            self.count("sent without a link");
            return;
        };
        if link.state != LinkState::Up || !link.ends[end(life, peer)].open {
            self.count("sent without a link");
            return;
        }
        if self.manual.is_some() {
            let way = (self.lives[life as usize].id, self.lives[peer as usize].id);
            messages.into_iter().for_each(|message| self.leave(way, message));
            return;
        }
        let session = link.session;
        let report = self.durability_report(from);
        let split =
            messages.len() > 1 && self.chance_network.happens(self.network_settings.split_probability);
        let second = split.then(|| {
            let at = 1 + self.chance_network.index(messages.len() - 1);
            messages.split_off(at)
        });
        for (part, cut) in
            [Some((messages, split)), second.map(|second| (second, false))].into_iter().flatten()
        {
            let at = self.arrival(life, peer, from, to, leave);
            let frame = Frame { messages: part, cut, durability: report };
            self.push(at, WorldEvent::Frame { from: life, to: peer, session, frame });
        }
        if self.chance_network.happens(self.network_settings.break_probability) {
            self.count("link broken");
            let at = leave + self.chance_network.between(Duration::ZERO, Duration::from_micros(200));
            self.push(at, WorldEvent::Break { one: life, other: peer, session });
        }
    }

    /// Computes the arrival of a frame that leaves at `leave`: after the frame's delay, and not before
    /// earlier frames.
    fn arrival(&mut self, life: LifeNumber, peer: LifeNumber, from: usize, to: usize, leave: Time) -> Time {
        let held = match self.network.cut_until(from, to, leave) {
            Some((until, cause)) => {
                self.count(cause);
                until
            }
            None => leave,
        };
        let at =
            held + self.chance_network.span(self.network_settings.delay.scaled(self.unevenness(from, to)));
        let link = self.network.link(life, peer);
        let clear = &mut link.ends[end(peer, life)].clear;
        *clear = (*clear).max(at);
        *clear
    }

    /// Returns the factor by which this direction is slower than the fastest direction.
    pub(super) fn unevenness(&self, from: usize, to: usize) -> f64 {
        let most = self.network_settings.unevenness_max;
        if most <= 1.0 {
            return 1.0;
        }
        most.powf(self.drawn("", from, to))
    }

    /// Returns a number in `[0, 1)` that depends only on the seed, on `subject`, and on the direction from
    /// one machine to the other.
    pub(super) fn drawn(&self, subject: &str, from: usize, to: usize) -> f64 {
        let bytes = [&from.to_le_bytes()[..], &to.to_le_bytes(), subject.as_bytes()].concat();
        (xxh3_64_with_seed(&bytes, self.seed) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn reach(&mut self, machine: usize, peer: ProcessId, address: &str) {
        let life = self.machines[machine].life;
        let Some(&other) = self.life_of.get(&peer) else {
            self.count("reached for nobody");
            return;
        };
        if other == life {
            return;
        }
        assert_eq!(
            address, self.machines[self.lives[other as usize].machine].address,
            "a process received a false address of {peer}"
        );
        self.machines[machine].neighbours.insert(other);
        let link = self.network.link(life, other);
        link.ends[end(life, other)].wanted = true;
        if link.state == LinkState::Idle && !link.dialing {
            link.dialing = true;
            let delay = self.chance_network.span(self.network_settings.delay) * 2;
            self.push(self.now + delay, WorldEvent::Dial { from: life, to: other });
        }
    }

    pub(super) fn forget(&mut self, machine: usize, peer: ProcessId) {
        let life = self.machines[machine].life;
        let Some(&other) = self.life_of.get(&peer) else { return };
        let Some(link) = self.network.existing(life, other) else { return };
        link.ends[end(life, other)].wanted = false;
        // Forgetting a peer closes the connection, and the other end dials again if it wants the link. In a
        // world that is moved by hand, the link stays until it is broken.
        if link.state == LinkState::Up && self.manual.is_none() {
            let session = link.session;
            self.broken(life, other, session);
        }
    }

    pub(super) fn dial(&mut self, from: LifeNumber, to: LifeNumber) {
        let to = self.latest_life(from, to);
        let wanted = self.network.existing(from, to).is_some_and(|link| link.wanted());
        let Some(source) = self.living(from).filter(|_| wanted) else {
            if let Some(link) = self.network.existing(from, to) {
                link.dialing = false;
            }
            return;
        };
        if self.network.link(from, to).state != LinkState::Idle {
            self.network.link(from, to).dialing = false;
            return;
        }
        let target = self.lives[to as usize].machine;
        let cut = self.network.cut_until(source, target, self.now).is_some()
            || self.network.cut_until(target, source, self.now).is_some();
        let gone = &self.lives[to as usize];
        let silent = cut
            || (gone.alive && self.machines[target].paused_until > self.now)
            || (gone.vanished && self.machines[target].process.is_none());
        let alive = gone.alive;
        if silent {
            self.push(self.now + DIAL_PATIENCE, WorldEvent::DialFailed { from, to });
        } else if !alive || self.ends_older_copy(from, to) {
            self.dial_failed(from, to);
        } else if !self.may_link(from, to) {
            self.count("refused by a policy");
            self.report_policy_mismatch(from, to);
            self.dial_failed(from, to);
        } else {
            self.end_earlier_sessions(from, to);
            self.end_earlier_sessions(to, from);
            for (one, other) in [(source, to), (target, from)] {
                let LifeState { id, machine, .. } = self.lives[other as usize];
                let report = self.durability_report(machine);
                self.machines[one].remote_durability.record(id, report);
            }
            let session = self.network.session();
            let later = self.now + self.chance_network.span(self.network_settings.delay);
            let link = self.network.link(from, to);
            link.dialing = false;
            link.failures = 0;
            link.session = session;
            link.state = LinkState::Up;
            for one in &mut link.ends {
                *one = End { wanted: one.wanted, clear: self.now, ..End::default() };
            }
            link.ends[end(to, from)].clear = later;
            self.machines[target].neighbours.insert(from);
            self.machines[source].neighbours.insert(to);
            self.note(b'L', from.into(), to.into());
            self.push(self.now, WorldEvent::Linked { life: from, peer: to, session });
            self.push(later, WorldEvent::Linked { life: to, peer: from, session });
        }
    }

    /// Handles a failed dial: notifies the dialler, and schedules another dial.
    pub(super) fn dial_failed(&mut self, from: LifeNumber, to: LifeNumber) {
        let Some(machine) = self.living(from) else { return };
        let to = self.latest_life(from, to);
        let peer = self.lives[to as usize].id;
        let link = self.network.link(from, to);
        link.dialing = false;
        if link.state != LinkState::Idle {
            return;
        }
        link.failures += 1;
        let failures = link.failures;
        if link.wanted() {
            if !std::mem::replace(&mut link.ends[end(from, to)].is_notified, true) {
                self.arrive(machine, Arrival::Unlinked { peer });
            }
            self.redial(from, to, failures);
        }
    }

    /// Returns the present life of the process whose earlier life was `to`. If the process has been restored
    /// from its disk since then, this call moves the wish for a link to the present life.
    fn latest_life(&mut self, from: LifeNumber, to: LifeNumber) -> LifeNumber {
        let newest = self.life_of[&self.lives[to as usize].id];
        if newest != to {
            let link = self.network.link(from, to);
            link.dialing = false;
            let wanted = std::mem::take(&mut link.ends[end(from, to)].wanted);
            let link = self.network.link(from, newest);
            link.ends[end(from, newest)].wanted |= wanted;
            if wanted && let Some(machine) = self.living(from) {
                self.machines[machine].neighbours.insert(newest);
            }
        }
        newest
    }

    /// Ends the sessions of `life` with earlier lives of the process that now lives as `with`. `life` is
    /// notified before the new session begins.
    fn end_earlier_sessions(&mut self, life: LifeNumber, with: LifeNumber) {
        let machine = self.lives[life as usize].machine;
        let id = self.lives[with as usize].id;
        let earlier: Vec<LifeNumber> = self.machines[machine]
            .neighbours
            .iter()
            .copied()
            .filter(|&other| other != with && self.lives[other as usize].id == id)
            .collect();
        for other in earlier {
            self.latest_life(life, other);
            let link = self.network.link(life, other);
            link.state = LinkState::Idle;
            let was_open = std::mem::take(&mut link.ends[end(life, other)].open);
            self.machines[machine].neighbours.remove(&other);
            if was_open {
                self.arrive(machine, Arrival::Unlinked { peer: id });
            }
        }
    }

    fn redial(&mut self, one: LifeNumber, other: LifeNumber, failures: u32) {
        let link = self.network.link(one, other);
        if link.dialing || link.state != LinkState::Idle {
            return;
        }
        let dialer = match (link.ends[end(one, other)].wanted, link.ends[end(other, one)].wanted) {
            (true, _) => (one, other),
            (_, true) => (other, one),
            _ => return,
        };
        link.dialing = true;
        let most = DIAL_BACKOFF_MAX.min(DIAL_BACKOFF_MIN * (1 << failures.min(10)));
        let delay = self.chance_network.between(DIAL_BACKOFF_MIN, most);
        self.push(self.now + delay, WorldEvent::Dial { from: dialer.0, to: dialer.1 });
    }

    /// Breaks a session. Each end is notified after a delay of its own.
    pub(super) fn broken(&mut self, one: LifeNumber, other: LifeNumber, session: u64) {
        let Some(link) = self.network.existing(one, other) else { return };
        if link.session != session || link.state != LinkState::Up {
            return;
        }
        link.state = LinkState::Broken;
        self.note(b'B', one.into(), other.into());
        for life in [one, other] {
            let machine = self.lives[life as usize].machine;
            self.troubled(machine, self.now);
        }
        for (life, peer) in [(one, other), (other, one)] {
            let clear = self.network.link(one, other).ends[end(life, peer)].clear;
            // Either the end is notified at once and loses everything under way, or it is notified later and
            // some frames still arrive.
            let at = if self.chance_network.happens(0.5) {
                self.now
            } else {
                self.now + self.chance_network.span(self.network_settings.delay)
            };
            // `Linked` may still be under way to this end, and must arrive before `Unlinked`.
            let opened = self.network.link(one, other).ends[end(life, peer)].open;
            let at = if opened { at } else { at.max(clear) };
            self.push(at, WorldEvent::Unlinked { life, peer, session });
        }
    }

    /// Notifies one end that its session is lost.
    pub(super) fn unlinked(&mut self, life: LifeNumber, peer: LifeNumber, session: u64) {
        let peer_id = self.lives[peer as usize].id;
        let alive = self.living(life);
        let Some(link) = self.network.existing(life, peer) else { return };
        if link.session != session || link.state != LinkState::Broken {
            return;
        }
        let own = &mut link.ends[end(life, peer)];
        let was_open = std::mem::take(&mut own.open);
        own.is_notified |= was_open;
        let settled = !link.ends[0].open && !link.ends[1].open;
        if settled {
            link.state = LinkState::Idle;
        }
        if was_open && let Some(machine) = alive {
            self.arrive(machine, Arrival::Unlinked { peer: peer_id });
        }
        if settled {
            self.redial(life, peer, 0);
        }
    }

    /// Returns the report that the process on `machine` announces about its journal.
    fn durability_report(&self, machine: usize) -> DurabilityReport {
        self.machines[machine].disk.as_ref().map(Disk::durability_report).unwrap_or_default()
    }

    /// Checks two living processes. Ends each process that runs on an older copy of its disk, if the other
    /// process remembers a report which proves this. An operator then empties the disk, and a new process
    /// starts. Returns whether a process was ended.
    fn ends_older_copy(&mut self, one: LifeNumber, other: LifeNumber) -> bool {
        let mut found = false;
        for (life, witness) in [(one, other), (other, one)] {
            let LifeState { id, machine, .. } = self.lives[life as usize];
            let report =
                self.machines[self.lives[witness as usize].machine].remote_durability.last_report(id);
            if let Some(disk) = &mut self.machines[machine].disk
                && !disk.holds(report)
            {
                disk.forget();
                self.count("older copy refused");
                self.crash(machine, Crash::Killed);
                self.restart_after(machine, OPERATOR_PATIENCE);
                found = true;
            }
        }
        found
    }

    pub(super) fn may_link(&self, one: LifeNumber, other: LifeNumber) -> bool {
        let (one, other) = (&self.lives[one as usize].policy, &self.lives[other as usize].policy);
        self.all_admitted || one.admits(&other.pass()) && other.admits(&one.pass())
    }

    /// Reports to both processes that their policies forbid a link, and tells each process the pass of the
    /// other one.
    fn report_policy_mismatch(&mut self, one: LifeNumber, other: LifeNumber) {
        for (life, theirs) in [(one, other), (other, one)] {
            let theirs = self.lives[theirs as usize].policy.pass();
            self.push(self.now, WorldEvent::PolicyMismatch { life, theirs });
        }
    }

    /// Makes a process adopt a policy, and breaks the links that the policy forbids. The process is notified
    /// at once. In a world that is moved by hand, the links break after the events of the batch.
    pub(super) fn adopt(&mut self, life: LifeNumber, policy: Arc<dyn Policy>) {
        let machine = self.lives[life as usize].machine;
        self.note(b'E', life.into(), xxh3_64(&policy.pass()));
        self.lives[life as usize].policy = policy;
        if self.manual.is_some() {
            return;
        }
        for peer in self.machines[machine].neighbours.clone() {
            if self.may_link(life, peer) {
                continue;
            }
            let Some(link) = self.network.existing(life, peer) else { continue };
            if link.state == LinkState::Idle {
                continue;
            }
            let (session, before) = (link.session, link.state);
            link.state = LinkState::Broken;
            let own = &mut link.ends[end(life, peer)];
            own.shut = true;
            own.is_notified = true;
            let was_open = std::mem::take(&mut own.open);
            let theirs = link.ends[end(peer, life)];
            if was_open {
                let peer = self.lives[peer as usize].id;
                self.arrive(machine, Arrival::Unlinked { peer });
            }
            if before == LinkState::Up {
                let at = self.now + self.chance_network.span(self.network_settings.delay);
                let at = if theirs.open { at } else { at.max(theirs.clear) };
                self.push(at, WorldEvent::Unlinked { life: peer, peer: life, session });
            }
        }
    }

    /// Breaks the link of a dead process. The peer is notified soon, or after a long silence, depending on
    /// the crash.
    pub(super) fn sever(&mut self, dead: LifeNumber, peer: LifeNumber, crash: Crash) {
        let Some(link) = self.network.existing(dead, peer) else { return };
        link.ends[end(dead, peer)] = End::default();
        let wanted = link.ends[end(peer, dead)].wanted;
        let (session, state) = (link.session, link.state);
        match state {
            LinkState::Idle if !wanted => self.network.remove(dead, peer),
            LinkState::Idle => {
                // A dial of the dead process may have been under way.
                link.dialing = false;
                self.redial(peer, dead, 0);
            }
            LinkState::Up | LinkState::Broken => {
                link.state = LinkState::Broken;
                let clear = link.ends[end(peer, dead)];
                let delay = match crash {
                    Crash::Killed => self.chance_network.between(Duration::ZERO, Duration::from_micros(500)),
                    Crash::Vanished => self.chance_network.between(CUT_PATIENCE_MIN, CUT_PATIENCE_MAX),
                };
                let at = if clear.open { self.now + delay } else { (self.now + delay).max(clear.clear) };
                self.push(at, WorldEvent::Unlinked { life: peer, peer: dead, session });
            }
        }
    }
}

const OPERATOR_PATIENCE: Duration = Duration::from_millis(50);
const DIAL_PATIENCE: Duration = Duration::from_millis(500);
const DIAL_BACKOFF_MIN: Duration = Duration::from_millis(2);
const DIAL_BACKOFF_MAX: Duration = Duration::from_millis(250);
