//! A world that is moved by hand: nothing happens in it unless somebody says so.
//!
//! Scripts that a person reads as a trace, and schedules that choose every step, need to say what comes next. By hand a
//! world queues nothing: messages wait on their ways until they are delivered, one by one if need be, links come about
//! when they are made, both ends of a link are told at once, and time passes only between steps. Starts, machines, sinks
//! and bytes are those of every world. Clocks are right and begin at zero, work takes no time, nobody has a disk, and all
//! processes draw from one source of chance, which the owner of the world lends. Everything is done in the order of
//! process ids. Policies are left out: a process that adopts one by hand is an error.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use quorate_protocol::{Duration, ProcessId, Protocol, Time, journal::Told, wire::Wire};

use super::{Crash, Environment, Violation, World};
use crate::{
    machine::{Arrival, MachineSettings},
    network::{End, Frame, Link, LinkState, NetworkSettings, end},
};

/// What moves a world by hand.
pub(super) struct Hands {
    pub(super) chance: Box<dyn FnMut() -> u64 + Send>,
    /// What is on its way from one process to another, oldest first.
    ways: BTreeMap<Way, VecDeque<Bytes>>,
    /// Ways on which nothing moves by itself.
    held: BTreeSet<Way>,
    /// Pairs that may not be linked, the lesser first.
    parted: BTreeSet<Way>,
}

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
            held: BTreeSet::new(),
            parted: BTreeSet::new(),
        });
        world
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
        let ways = &mut self.hands().ways;
        ways.remove(&(one, other));
        ways.remove(&(other, one));
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

    /// Nobody is parted any more, and nothing held.
    pub fn mend<E: Environment<P>>(&mut self, environment: &mut E) -> Result<(), Violation> {
        self.hands().parted.clear();
        self.release();
        self.relink(environment)
    }

    // Messages on their way.

    /// A message leaves by a link that stands.
    pub(super) fn leave(&mut self, way: Way, message: Bytes) {
        self.hands().ways.entry(way).or_default().push_back(message);
    }

    /// Keeps what `from` sends to `to` on its way until it is released.
    pub fn hold(&mut self, from: ProcessId, to: ProcessId) {
        self.hands().held.insert((from, to));
    }

    /// Nothing is held any more.
    pub fn release(&mut self) {
        self.hands().held.clear();
    }

    /// The ways on which something is and nothing is held, and how much, in the order of their ends.
    pub fn on_the_way(&self) -> Vec<(Way, usize)> {
        let hands = self.hands.as_ref().expect(BY_HAND);
        let moving = hands.ways.iter().filter(|(way, queue)| !queue.is_empty() && !hands.held.contains(way));
        moving.map(|(way, queue)| (*way, queue.len())).collect()
    }

    /// Hands over the oldest message that is on its way from one to the other, held or not, and says which it was.
    pub fn deliver<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        from: ProcessId,
        to: ProcessId,
    ) -> Result<Option<P::Message>, Violation> {
        let queue = self.hands().ways.get_mut(&(from, to));
        let Some(bytes) = queue.and_then(VecDeque::pop_front) else { return Ok(None) };
        let message = P::Message::decode(&mut bytes.clone()).expect("our own bytes decode");
        environment.delivered(self, from, to, &message);
        let frame = Frame { messages: vec![bytes], cut: false, told: Told::default() };
        self.hand(environment, to, Arrival::Frame { from: self.life_of[&from], frame })?;
        Ok(Some(message))
    }

    /// Delivers until nothing is on its way, each process taking what has arrived as one batch.
    pub fn settle<E: Environment<P>>(&mut self, environment: &mut E) -> Result<(), Violation> {
        for _ in 0..ROUNDS_MAX {
            let mut moved = false;
            for id in self.awake() {
                let mut waiting = self.on_the_way();
                waiting.retain(|((_, to), _)| *to == id);
                for ((from, to), count) in waiting {
                    for _ in 0..count {
                        moved |= self.deliver(environment, from, to)?.is_some();
                    }
                }
                self.drain(environment, id)?;
            }
            if !moved {
                return Ok(());
            }
        }
        Err(Violation::new("quiet", format!("they still talk after {ROUNDS_MAX} rounds")))
    }

    // Time.

    /// When the next process wants to be woken.
    pub fn next_deadline(&self) -> Option<Time> {
        let awake = self.awake().into_iter();
        awake.filter_map(|id| self.deadline(self.place(id)?)).min()
    }

    /// Wakes those whose deadline has come.
    pub fn wake<E: Environment<P>>(&mut self, environment: &mut E) -> Result<(), Violation> {
        for id in self.awake() {
            let due = |world: &Self| {
                world.place(id).and_then(|it| world.deadline(it)).is_some_and(|due| due <= world.now)
            };
            if due(self) {
                self.hand(environment, id, Arrival::Deadline)?;
                self.drain(environment, id)?;
                assert!(!due(self), "{id} wants to be woken for ever");
            }
        }
        Ok(())
    }

    /// Lets time pass, with every message delivered at once.
    pub fn settle_for<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        span: Duration,
    ) -> Result<(), Violation> {
        let end = self.now + span;
        self.settle(environment)?;
        while let Some(next) = self.next_deadline().filter(|next| *next <= end) {
            self.pass_until(self.now.max(next));
            self.wake(environment)?;
            self.settle(environment)?;
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
