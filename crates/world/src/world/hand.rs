//! A world that is moved by hand: nothing happens in it unless somebody says so.
//!
//! Scripts that a person reads as a trace, and schedules that choose every step, need to say what comes next. By hand a
//! world queues nothing: messages wait on their ways until they are delivered, one by one if need be, links come about
//! when they are made, both ends of a link are told at once, and time passes only between steps. Starts, machines, sinks,
//! policies and bytes are those of every world. Clocks are right and begin at zero, work takes no time, nobody has a disk,
//! and all processes draw from one source of chance, which the owner of the world lends. Everything is done in the order
//! of process ids.
//!
//! Messages take no time either, unless [`World::messages_take`] says how much: then none is due before it has passed, and
//! what settles the world leaves the others on their ways. [`World::deliver`] delivers them all the same.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use quorate_protocol::{Duration, MulticastAddress, ProcessId, Protocol, Time, journal::Told, wire::Wire};

use super::{Crash, Environment, Violation, World};
use crate::{
    machine::{Arrival, MachineSettings},
    network::{End, Frame, Life, Link, LinkState, NetworkSettings, end},
};

/// What moves a world by hand.
pub(super) struct Hands {
    pub(super) chance: Box<dyn FnMut() -> u64 + Send>,
    /// What is on its way, by its receiver and its sender: when it is due, oldest first.
    ways: BTreeMap<ProcessId, BTreeMap<ProcessId, VecDeque<(Time, Bytes)>>>,
    /// Casts on their way, oldest first.
    casts: BTreeMap<ProcessId, BTreeMap<ProcessId, Casts>>,
    /// Ways on which casts are lost, and on which they move no more.
    deaf: BTreeSet<Way>,
    slow: BTreeSet<Way>,
    /// How long a message takes at least, and how much longer it may take.
    span: (Duration, Duration),
    /// Ways on which nothing moves by itself.
    held: BTreeSet<Way>,
    /// Pairs that may not be linked, the lesser first.
    parted: BTreeSet<Way>,
}

/// Casts of one way, and the addresses by which they go.
type Casts = VecDeque<(Option<MulticastAddress>, Bytes)>;

/// From one process to another.
type Way = (ProcessId, ProcessId);

impl<P: Protocol> World<P>
where
    P::Message: Wire,
{
    /// An empty world that is moved by hand, in which processes draw their random bits from `chance`.
    pub fn by_hand(chance: impl FnMut() -> u64 + Send + 'static) -> Self {
        let mut world = World::new(0, NetworkSettings::default(), MachineSettings::default());
        world.hands = Some(Hands {
            chance: Box::new(chance),
            ways: BTreeMap::new(),
            casts: BTreeMap::new(),
            deaf: BTreeSet::new(),
            slow: BTreeSet::new(),
            span: (Duration::ZERO, Duration::ZERO),
            held: BTreeSet::new(),
            parted: BTreeSet::new(),
        });
        world
    }

    /// Messages take `least` from now on, and up to `more` beside: most of them little, some much. None overtakes another on
    /// its way.
    pub fn messages_take(&mut self, least: Duration, more: Duration) {
        self.hands().span = (least, more);
    }

    /// From now on no message may have more bytes than this.
    pub fn limit_messages(&mut self, bytes: usize) {
        self.network_settings.message_bytes_max = bytes;
    }

    fn hands(&mut self) -> &mut Hands {
        self.hands.as_mut().expect(BY_HAND)
    }

    /// Random bits, from the same source as those of the processes.
    pub fn draw(&mut self) -> u64 {
        (self.hands().chance)()
    }

    /// The living, in the order of their ids.
    pub fn everybody(&self) -> Vec<ProcessId> {
        let mut everybody: Vec<_> = self.lives.iter().filter(|it| it.alive).map(|it| it.id).collect();
        everybody.sort_unstable();
        everybody
    }

    /// The living that do not stand still.
    fn awake(&self) -> Vec<ProcessId> {
        let mut everybody = self.everybody();
        everybody.retain(|&id| self.place(id).is_some_and(|machine| !self.paused(machine)));
        everybody
    }

    /// The machine of a process that lives.
    pub fn place(&self, id: ProcessId) -> Option<usize> {
        self.life_of.get(&id).and_then(|&life| self.living(life))
    }

    /// A process that lives.
    pub fn process_of(&self, id: ProcessId) -> Option<&P> {
        self.process(self.place(id)?)
    }

    /// Lets time pass in which nothing happens.
    pub fn pass_until(&mut self, until: Time) {
        assert!(until >= self.now, "time runs backwards");
        self.now = until;
    }

    /// Has the environment start a process on a machine of its own that listens at `address`, and ends its first batch.
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

    /// Ends a process; those linked with it are told at once.
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

    /// Hands over a command at once.
    pub fn ask<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        id: ProcessId,
        command: P::Command,
    ) -> Result<(), Violation> {
        self.hand(environment, id, Arrival::Command(command))
    }

    /// Ends a batch of a process.
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

    // Links.

    /// Those that stand, each once, in the order of their ends.
    pub fn links(&mut self) -> Vec<Way> {
        let mut links = Vec::new();
        for id in self.everybody() {
            links.extend(self.linked(id).into_iter().filter(|&peer| id < peer).map(|peer| (id, peer)));
        }
        links
    }

    /// Those with whom a process is linked, in the order of their ids.
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

    /// Makes the links that are wanted and possible.
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
        if self.hands().parted.contains(&pair(one, other))
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

    /// Breaks a link, if it stands: what was on its way is lost.
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

    /// Two may not be linked, and hear what the other shows.
    fn refuse<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        one: Life,
        other: Life,
    ) -> Result<(), Violation> {
        for (life, theirs) in [(one, other), (other, one)] {
            let Some(machine) = self.living(life) else { continue };
            let theirs = self.lives[theirs as usize].policy.pass();
            environment.stranger(self, machine, &theirs);
            environment.stepped(self, machine)?;
        }
        Ok(())
    }

    /// Breaks the links that a policy forbids which `life` has just adopted.
    pub(super) fn part_from_strangers<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        life: Life,
    ) -> Result<(), Violation> {
        let id = self.lives[life as usize].id;
        for peer in self.linked(id) {
            if !self.may_link(life, self.life_of[&peer]) {
                self.unlink(environment, id, peer)?;
            }
        }
        Ok(())
    }

    /// The link between two is no more. Says whether it stood.
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
            self.hands().ways.get_mut(&to).map(|ways| ways.remove(&from));
            self.hands().casts.get_mut(&to).map(|ways| ways.remove(&from));
        }
        true
    }

    /// Breaks the link between two, and has none come about until all is mended.
    pub fn part<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        one: ProcessId,
        other: ProcessId,
    ) -> Result<(), Violation> {
        self.hands().parted.insert(pair(one, other));
        self.unlink(environment, one, other)
    }

    /// Nobody is parted any more, and nothing held or lost.
    pub fn mend<E: Environment<P>>(&mut self, environment: &mut E) -> Result<(), Violation> {
        self.hands().parted.clear();
        self.hands().deaf.clear();
        self.release();
        self.relink(environment)
    }

    // Messages on their way.

    /// A message leaves by a link that stands.
    pub(super) fn leave(&mut self, (from, to): Way, message: Bytes) {
        let now = self.now;
        let hands = self.hands();
        let (least, more) = hands.span;
        let mut due = now + least;
        if !more.is_zero() {
            let cubed = ((hands.chance)() % 1000).pow(3) / 1_000_000;
            due = due + more * cubed as u32 / 1000;
        }
        let way = hands.ways.entry(to).or_default().entry(from).or_default();
        let due = way.back().map_or(due, |(last, _)| due.max(*last));
        way.push_back((due, message));
    }

    /// Keeps what `from` sends to `to` on its way until it is released.
    pub fn hold(&mut self, from: ProcessId, to: ProcessId) {
        self.hands().held.insert((from, to));
    }

    /// Nothing is held any more.
    pub fn release(&mut self) {
        self.hands().held.clear();
        self.hands().slow.clear();
    }

    // Casts on their way.

    /// A cast leaves, to `to` alone or by an address to which it listens.
    pub(super) fn leave_cast(&mut self, (from, to): Way, by: Option<MulticastAddress>, message: Bytes) {
        let hands = self.hands();
        if !hands.deaf.contains(&(from, to)) {
            hands.casts.entry(to).or_default().entry(from).or_default().push_back((by, message));
        }
    }

    /// Loses what `from` casts to `to` from now on, until all is mended.
    pub fn lose_casts(&mut self, from: ProcessId, to: ProcessId) {
        self.hands().deaf.insert((from, to));
    }

    /// Keeps what `from` casts to `to` on its way until it is released.
    pub fn hold_casts(&mut self, from: ProcessId, to: ProcessId) {
        self.hands().slow.insert((from, to));
    }

    /// Casts on their way from one to the other arrive once more than they will.
    pub fn double_casts(&mut self, from: ProcessId, to: ProcessId) {
        let ways = self.hands().casts.entry(to).or_default();
        if let Some(queue) = ways.get_mut(&from) {
            let again: Vec<_> = queue.iter().cloned().collect();
            queue.extend(again);
        }
    }

    /// Hands over the casts that are on their way to `id` and not held. Says whether there was any.
    fn take_in_casts<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        id: ProcessId,
    ) -> Result<bool, Violation> {
        let Hands { casts, slow, .. } = self.hands();
        let mut arrived = Vec::new();
        for (&from, queue) in casts.get_mut(&id).into_iter().flatten() {
            if !slow.contains(&(from, id)) {
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

    /// The ways on which something is due and nothing is held, and how much, in the order of their ends.
    pub fn on_the_way(&self) -> Vec<(Way, usize)> {
        let receivers = self.hands.as_ref().expect(BY_HAND).ways.keys();
        let mut ways: Vec<_> = receivers.flat_map(|&to| self.due(to)).collect();
        ways.sort_unstable();
        ways
    }

    /// Those of them that lead to `to`.
    fn due(&self, to: ProcessId) -> Vec<(Way, usize)> {
        let due = |queue: &VecDeque<_>| queue.iter().take_while(|(due, _)| *due <= self.now).count();
        let ways = self.moving(to).map(|(way, queue)| (way, due(queue)));
        ways.filter(|(_, count)| *count > 0).collect()
    }

    /// Messages on their way to `to` that are not held.
    fn moving(&self, to: ProcessId) -> impl Iterator<Item = (Way, &VecDeque<(Time, Bytes)>)> {
        let hands = self.hands.as_ref().expect(BY_HAND);
        let ways = hands.ways.get(&to).into_iter().flatten();
        ways.map(move |(from, queue)| ((*from, to), queue)).filter(|(way, _)| !hands.held.contains(way))
    }

    /// Hands over the oldest message that is on its way from one to the other, held or not, and says which it was.
    pub fn deliver<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        from: ProcessId,
        to: ProcessId,
    ) -> Result<Option<P::Message>, Violation> {
        let way = self.hands().ways.get_mut(&to).and_then(|ways| ways.get_mut(&from));
        let Some((_, bytes)) = way.and_then(VecDeque::pop_front) else { return Ok(None) };
        let message = P::Message::decode(&mut bytes.clone()).expect("our own bytes decode");
        environment.delivered(self, from, to, &message);
        let frame = Frame { messages: vec![bytes], cut: false, told: Told::default() };
        self.hand(environment, to, Arrival::Frame { from: self.life_of[&from], frame })?;
        Ok(Some(message))
    }

    /// Delivers until nothing is due, each process taking what has arrived as one batch.
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
        Err(Violation::new("quiet", format!("they still talk after {ROUNDS_MAX} rounds")))
    }

    /// Hands over what is due at a process. Says whether there was any.
    fn take_in<E: Environment<P>>(&mut self, environment: &mut E, id: ProcessId) -> Result<bool, Violation> {
        let due = self.due(id);
        for &((from, to), count) in &due {
            for _ in 0..count {
                self.deliver(environment, from, to)?;
            }
        }
        Ok(self.take_in_casts(environment, id)? | !due.is_empty())
    }

    // Time.

    /// When the next process wants to be woken.
    pub fn next_deadline(&self) -> Option<Time> {
        let awake = self.awake().into_iter();
        awake.filter_map(|id| self.deadline(self.place(id)?)).min()
    }

    /// When the next message falls due that somebody can take.
    fn next_arrival(&self) -> Option<Time> {
        let awake = self.awake().into_iter();
        let due = awake.flat_map(|id| self.moving(id)).filter_map(|(_, queue)| Some(queue.front()?.0));
        due.filter(|due| *due > self.now).min()
    }

    /// Wakes those whose deadline has come, until they want it no more.
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
        Err(Violation::new("quiet", format!("they want to be woken after {ROUNDS_MAX} rounds")))
    }

    /// Lets time pass, with every message delivered when it is due.
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
                // Messages come before deadlines of the same instant.
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

fn pair(one: ProcessId, other: ProcessId) -> Way {
    (one.min(other), one.max(other))
}

const BY_HAND: &str = "only a world by hand is moved by hand";

/// Processes that still talk after so many rounds talk for ever.
const ROUNDS_MAX: usize = 1000;
