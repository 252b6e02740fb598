//! A world that is moved by hand: each step happens only when its owner asks for it.
//!
//! Readable scripts, and schedules that choose every step, need to decide what comes next. A world that is
//! moved by hand queues no events. Messages are under way until they are delivered, one by one if wanted.
//! Links are made on request, and both ends of a link learn of changes at once. Time passes only between
//! steps. Starts, machines, sinks, policies and bytes are the same as in every world. Clocks are exact and
//! begin at zero, work takes no time, no machine has a disk, and all processes draw from one source of
//! randomness, which the owner provides. Everything is done in the order of process ids.
//!
//! Messages take no time either, unless [`World::messages_take`] sets a delay. Then a message is due only
//! after its delay, and calls that settle the world leave messages that are due later under way.
//! [`World::deliver`] delivers such messages all the same.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use quorate_protocol::{
    Duration, MulticastAddress, ProcessId, Protocol, Time, journal::DurabilityReport, wire::Wire,
};

use super::{
    Crash, Environment, Violation, World,
    manual::{Direction, ManualControl},
};
use crate::{
    machine::{Arrival, MachineSettings},
    network::{End, Frame, LifeNumber, Link, LinkState, NetworkSettings, end},
};

impl<P: Protocol> World<P>
where
    P::Message: Wire,
{
    /// Makes an empty world that is moved by hand. Processes draw their random bits from `chance`.
    pub fn by_hand(chance: impl FnMut() -> u64 + Send + 'static) -> Self {
        let mut world = World::new(0, NetworkSettings::default(), MachineSettings::default());
        world.manual = Some(ManualControl {
            chance: Box::new(chance),
            messages: BTreeMap::new(),
            casts: BTreeMap::new(),
            lost_casts: BTreeSet::new(),
            held_casts: BTreeSet::new(),
            span: (Duration::ZERO, Duration::ZERO),
            held_messages: BTreeSet::new(),
            parted: BTreeSet::new(),
        });
        world
    }

    /// Gives messages a delay of `least` plus a random share of `more`, mostly a small share. Messages in one
    /// direction stay in order.
    pub fn messages_take(&mut self, least: Duration, more: Duration) {
        self.manual().span = (least, more);
    }

    /// Sets the length of the longest permitted message, in bytes.
    pub fn limit_messages(&mut self, bytes: usize) {
        self.network_settings.message_bytes_max = bytes;
    }

    fn manual(&mut self) -> &mut ManualControl {
        self.manual.as_mut().expect(BY_HAND)
    }

    /// Draws random bits from the source that the processes use.
    pub fn draw(&mut self) -> u64 {
        (self.manual().chance)()
    }

    /// Returns the living processes, in the order of their ids.
    pub fn everybody(&self) -> Vec<ProcessId> {
        let mut everybody: Vec<_> = self.lives.iter().filter(|it| it.alive).map(|it| it.id).collect();
        everybody.sort_unstable();
        everybody
    }

    /// Returns the living processes that are not paused.
    fn awake(&self) -> Vec<ProcessId> {
        let mut everybody = self.everybody();
        everybody.retain(|&id| self.place(id).is_some_and(|machine| !self.paused(machine)));
        everybody
    }

    /// Returns the machine on which a living process runs.
    pub fn place(&self, id: ProcessId) -> Option<usize> {
        self.life_of.get(&id).and_then(|&life| self.living(life))
    }

    /// Returns the process of this id, if it lives.
    pub fn process_of(&self, id: ProcessId) -> Option<&P> {
        self.process(self.place(id)?)
    }

    /// Advances time without any event.
    pub fn pass_until(&mut self, until: Time) {
        assert!(until >= self.now, "time runs backwards");
        self.now = until;
    }

    /// Starts a process of the environment on a new machine with this address, and ends the first batch of
    /// this process.
    pub fn begin<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        id: ProcessId,
        address: &str,
    ) -> Result<(), Violation> {
        let machine = self.machine();
        address.clone_into(&mut self.machines[machine].address);
        let process = environment.start(self, machine, id);
        self.start(machine, id, process);
        self.drain(environment, id)
    }

    /// Ends a process. Its linked peers are notified at once.
    pub fn end<E: Environment<P>>(&mut self, environment: &mut E, id: ProcessId) -> Result<(), Violation> {
        let Some(machine) = self.place(id) else { return Ok(()) };
        let peers = self.linked(id);
        for &peer in &peers {
            self.close(id, peer);
        }
        self.crash(machine, Crash::Killed);
        for peer in peers {
            self.hand(environment, peer, Arrival::Unlinked { peer: id })?;
        }
        Ok(())
    }

    /// Passes a command to a process at once.
    pub fn ask<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        id: ProcessId,
        command: P::Command,
    ) -> Result<(), Violation> {
        self.hand(environment, id, Arrival::Command(command))
    }

    /// Ends the present batch of a process.
    pub fn drain<E: Environment<P>>(&mut self, environment: &mut E, id: ProcessId) -> Result<(), Violation> {
        match self.place(id) {
            Some(machine) => self.turn(environment, machine, [], true),
            None => Ok(()),
        }
    }

    fn hand<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        id: ProcessId,
        arrival: Arrival<P>,
    ) -> Result<(), Violation> {
        match self.place(id) {
            Some(machine) => self.turn(environment, machine, [arrival], false),
            None => Ok(()),
        }
    }

    // Methods for links.

    /// Returns the links that stand, each once, in the order of their ends.
    pub fn links(&mut self) -> Vec<Direction> {
        let mut links = Vec::new();
        for id in self.everybody() {
            links.extend(self.linked(id).into_iter().filter(|&peer| id < peer).map(|peer| (id, peer)));
        }
        links
    }

    /// Returns the processes linked with `id`, in the order of their ids.
    pub fn linked(&mut self, id: ProcessId) -> Vec<ProcessId> {
        self.neighbours(id, |link, _| link.state == LinkState::Up)
    }

    fn neighbours(&mut self, id: ProcessId, which: impl Fn(&Link, usize) -> bool) -> Vec<ProcessId> {
        let Some(machine) = self.place(id) else { return Vec::new() };
        let life = self.machines[machine].life;
        let mut found = Vec::new();
        for &peer in &self.machines[machine].neighbours {
            if self.network.existing(life, peer).is_some_and(|link| which(link, end(life, peer))) {
                found.push(self.lives[peer as usize].id);
            }
        }
        found.sort_unstable();
        found
    }

    /// Makes all links that are wanted and possible.
    pub fn relink<E: Environment<P>>(&mut self, environment: &mut E) -> Result<(), Violation> {
        let mut wanted = BTreeSet::new();
        for id in self.everybody() {
            let peers = self.neighbours(id, |link, end| link.ends[end].wanted);
            wanted.extend(peers.into_iter().map(|peer| pair(id, peer)));
        }
        for (one, other) in wanted {
            self.link(environment, one, other)?;
        }
        Ok(())
    }

    fn link<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        one: ProcessId,
        other: ProcessId,
    ) -> Result<(), Violation> {
        let (Some(machine), Some(target)) = (self.place(one), self.place(other)) else { return Ok(()) };
        let (life, peer) = (self.life_of[&one], self.life_of[&other]);
        if self.manual().parted.contains(&pair(one, other))
            || self.network.link(life, peer).state == LinkState::Up
        {
            return Ok(());
        }
        if !self.may_link(life, peer) {
            return self.refuse(environment, life, peer);
        }
        let session = self.network.session();
        let link = self.network.link(life, peer);
        link.session = session;
        link.state = LinkState::Up;
        for one in &mut link.ends {
            *one = End { wanted: one.wanted, open: true, clear: self.now, ..End::default() };
        }
        self.machines[machine].neighbours.insert(peer);
        self.machines[target].neighbours.insert(life);
        self.hand(environment, one, Arrival::Linked { peer, session })?;
        self.hand(environment, other, Arrival::Linked { peer: life, session })
    }

    /// Breaks a link, if it stands. Messages under way on it are lost.
    pub fn unlink<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        one: ProcessId,
        other: ProcessId,
    ) -> Result<(), Violation> {
        if !self.close(one, other) {
            return Ok(());
        }
        self.hand(environment, one, Arrival::Unlinked { peer: other })?;
        self.hand(environment, other, Arrival::Unlinked { peer: one })
    }

    /// Reports to two processes that their policies forbid a link, and tells each process the pass of the
    /// other one.
    fn refuse<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        one: LifeNumber,
        other: LifeNumber,
    ) -> Result<(), Violation> {
        for (life, theirs) in [(one, other), (other, one)] {
            let Some(machine) = self.living(life) else { continue };
            let theirs = self.lives[theirs as usize].policy.pass();
            environment.policy_mismatch(self, machine, &theirs);
            environment.stepped(self, machine)?;
        }
        Ok(())
    }

    /// Breaks the links of `life` that its newly adopted policy forbids.
    pub(super) fn part_from_strangers<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        life: LifeNumber,
    ) -> Result<(), Violation> {
        let id = self.lives[life as usize].id;
        for peer in self.linked(id) {
            if !self.may_link(life, self.life_of[&peer]) {
                self.unlink(environment, id, peer)?;
            }
        }
        Ok(())
    }

    /// Closes the link between two processes. Returns whether the link stood.
    fn close(&mut self, one: ProcessId, other: ProcessId) -> bool {
        let (Some(&life), Some(&peer)) = (self.life_of.get(&one), self.life_of.get(&other)) else {
            return false;
        };
        let Some(link) = self.network.existing(life, peer).filter(|link| link.state == LinkState::Up) else {
            return false;
        };
        link.state = LinkState::Idle;
        link.ends.iter_mut().for_each(|end| end.open = false);
        for (from, to) in [(one, other), (other, one)] {
            self.manual().messages.get_mut(&to).map(|ways| ways.remove(&from));
            self.manual().casts.get_mut(&to).map(|ways| ways.remove(&from));
        }
        true
    }

    /// Breaks the link between two processes, and prevents a new link until [`World::mend`].
    pub fn part<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        one: ProcessId,
        other: ProcessId,
    ) -> Result<(), Violation> {
        self.manual().parted.insert(pair(one, other));
        self.unlink(environment, one, other)
    }

    /// Allows all links again, and ends all holding and losing of messages and casts.
    pub fn mend<E: Environment<P>>(&mut self, environment: &mut E) -> Result<(), Violation> {
        self.manual().parted.clear();
        self.manual().lost_casts.clear();
        self.release();
        self.relink(environment)
    }

    // Methods for messages under way.

    /// Puts a message on its way over a standing link.
    pub(super) fn leave(&mut self, (from, to): Direction, message: Bytes) {
        let now = self.now;
        let manual = self.manual();
        let (least, more) = manual.span;
        let mut due = now + least;
        if !more.is_zero() {
            let cubed = ((manual.chance)() % 1000).pow(3) / 1_000_000;
            due = due + more * cubed as u32 / 1000;
        }
        let way = manual.messages.entry(to).or_default().entry(from).or_default();
        let due = way.back().map_or(due, |(last, _)| due.max(*last));
        way.push_back((due, message));
    }

    /// Holds messages from `from` to `to` until [`World::release`].
    pub fn hold(&mut self, from: ProcessId, to: ProcessId) {
        self.manual().held_messages.insert((from, to));
    }

    /// Holds no messages and casts from now on.
    pub fn release(&mut self) {
        self.manual().held_messages.clear();
        self.manual().held_casts.clear();
    }

    // Methods for casts under way.

    /// Puts a cast on its way. `by` is the multicast address, or `None` for a cast to `to` alone.
    pub(super) fn leave_cast(&mut self, (from, to): Direction, by: Option<MulticastAddress>, message: Bytes) {
        let manual = self.manual();
        if !manual.lost_casts.contains(&(from, to)) {
            manual.casts.entry(to).or_default().entry(from).or_default().push_back((by, message));
        }
    }

    /// Loses casts from `from` to `to` from now on, until [`World::mend`].
    pub fn lose_casts(&mut self, from: ProcessId, to: ProcessId) {
        self.manual().lost_casts.insert((from, to));
    }

    /// Holds casts from `from` to `to` until [`World::release`].
    pub fn hold_casts(&mut self, from: ProcessId, to: ProcessId) {
        self.manual().held_casts.insert((from, to));
    }

    /// Duplicates the casts under way from `from` to `to`.
    pub fn double_casts(&mut self, from: ProcessId, to: ProcessId) {
        let ways = self.manual().casts.entry(to).or_default();
        if let Some(queue) = ways.get_mut(&from) {
            let again: Vec<_> = queue.iter().cloned().collect();
            queue.extend(again);
        }
    }

    /// Delivers the casts under way to `id` that are not held. Returns whether there were any.
    fn take_in_casts<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        id: ProcessId,
    ) -> Result<bool, Violation> {
        let ManualControl { casts, held_casts, .. } = self.manual();
        let mut arrived = Vec::new();
        for (&from, queue) in casts.get_mut(&id).into_iter().flatten() {
            if !held_casts.contains(&(from, id)) {
                arrived.extend(queue.drain(..).map(|(by, message)| (from, by, message)));
            }
        }
        let any = !arrived.is_empty();
        for (from, by, message) in arrived {
            let cast = P::Message::decode(&mut message.clone()).expect("our own bytes decode");
            environment.cast(self, (from, id), by, &cast);
            self.hand(environment, id, Arrival::Cast { from: self.life_of[&from], message })?;
        }
        Ok(any)
    }

    /// Returns the directions that are not held and have due messages, each with the number of due messages,
    /// in the order of the directions' ends.
    pub fn on_the_way(&self) -> Vec<(Direction, usize)> {
        let receivers = self.manual.as_ref().expect(BY_HAND).messages.keys();
        let mut ways: Vec<_> = receivers.flat_map(|&to| self.due(to)).collect();
        ways.sort_unstable();
        ways
    }

    /// Returns the directions to `to` that are not held and have due messages, each with the number of due
    /// messages.
    fn due(&self, to: ProcessId) -> Vec<(Direction, usize)> {
        let due = |queue: &VecDeque<_>| queue.iter().take_while(|(due, _)| *due <= self.now).count();
        let ways = self.moving(to).map(|(way, queue)| (way, due(queue)));
        ways.filter(|(_, count)| *count > 0).collect()
    }

    /// Returns the messages under way to `to` in directions that are not held, by direction.
    fn moving(&self, to: ProcessId) -> impl Iterator<Item = (Direction, &VecDeque<(Time, Bytes)>)> {
        let manual = self.manual.as_ref().expect(BY_HAND);
        let ways = manual.messages.get(&to).into_iter().flatten();
        ways.map(move |(from, queue)| ((*from, to), queue))
            .filter(|(way, _)| !manual.held_messages.contains(way))
    }

    /// Delivers the oldest message under way from `from` to `to`, even if it is held, and returns it.
    pub fn deliver<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        from: ProcessId,
        to: ProcessId,
    ) -> Result<Option<P::Message>, Violation> {
        let way = self.manual().messages.get_mut(&to).and_then(|ways| ways.get_mut(&from));
        let Some((_, bytes)) = way.and_then(VecDeque::pop_front) else { return Ok(None) };
        let message = P::Message::decode(&mut bytes.clone()).expect("our own bytes decode");
        environment.delivered(self, from, to, &message);
        let frame = Frame { messages: vec![bytes], cut: false, durability: DurabilityReport::default() };
        self.hand(environment, to, Arrival::Frame { from: self.life_of[&from], frame })?;
        Ok(Some(message))
    }

    /// Delivers messages and casts until no message is due. Each process gets its arrivals as one batch.
    pub fn settle<E: Environment<P>>(&mut self, environment: &mut E) -> Result<(), Violation> {
        for _ in 0..ROUNDS_MAX {
            let mut moved = false;
            for id in self.awake() {
                moved |= self.take_in(environment, id)?;
                self.drain(environment, id)?;
            }
            if !moved {
                return Ok(());
            }
        }
        Err(Violation::new(
            "quiet",
            format!("the processes still send messages to each other after {ROUNDS_MAX} rounds"),
        ))
    }

    /// Delivers the messages and casts that are due at a process. Returns whether there were any.
    fn take_in<E: Environment<P>>(&mut self, environment: &mut E, id: ProcessId) -> Result<bool, Violation> {
        let due = self.due(id);
        for &((from, to), count) in &due {
            for _ in 0..count {
                self.deliver(environment, from, to)?;
            }
        }
        Ok(self.take_in_casts(environment, id)? | !due.is_empty())
    }

    // Methods for time.

    /// Returns the earliest deadline of the processes that are not paused.
    pub fn next_deadline(&self) -> Option<Time> {
        let awake = self.awake().into_iter();
        awake.filter_map(|id| self.deadline(self.place(id)?)).min()
    }

    /// Returns the next time at which a message falls due for a process that is not paused.
    fn next_arrival(&self) -> Option<Time> {
        let awake = self.awake().into_iter();
        let due = awake.flat_map(|id| self.moving(id)).filter_map(|(_, queue)| Some(queue.front()?.0));
        due.filter(|due| *due > self.now).min()
    }

    /// Wakes processes whose deadline has come, until no such process is left.
    pub fn wake<E: Environment<P>>(&mut self, environment: &mut E) -> Result<(), Violation> {
        for _ in 0..ROUNDS_MAX {
            let mut woken = false;
            for id in self.awake() {
                if self.place(id).and_then(|it| self.deadline(it)).is_some_and(|due| due <= self.now) {
                    woken = true;
                    self.hand(environment, id, Arrival::Deadline)?;
                    self.drain(environment, id)?;
                }
            }
            if !woken {
                return Ok(());
            }
        }
        Err(Violation::new("quiet", format!("the processes still ask to be woken after {ROUNDS_MAX} rounds")))
    }

    /// Advances time by `span`, and delivers every message when it is due.
    pub fn settle_for<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        span: Duration,
    ) -> Result<(), Violation> {
        let end = self.now + span;
        self.settle(environment)?;
        loop {
            let (arrival, deadline) = (self.next_arrival(), self.next_deadline());
            let next = arrival.into_iter().chain(deadline).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.pass_until(self.now.max(next));
            if arrival == Some(next) {
                // Messages are delivered before deadlines of the same instant.
                for id in self.awake() {
                    if self.take_in(environment, id)? {
                        self.drain(environment, id)?;
                    }
                }
            } else {
                self.wake(environment)?;
                self.settle(environment)?;
            }
        }
        self.pass_until(end);
        Ok(())
    }
}

fn pair(one: ProcessId, other: ProcessId) -> Direction {
    (one.min(other), one.max(other))
}

const BY_HAND: &str = "only a world that was made for moves by hand can be moved by hand";

/// Number of rounds after which processes that still exchange messages are assumed to do so for ever.
const ROUNDS_MAX: usize = 1000;
