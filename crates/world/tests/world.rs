//! A protocol that only logs the behaviour of its links tests whether the world keeps the promises of the
//! seam.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use quorate_protocol::{
    Context, Destination, Input, Peer, ProcessId, Protocol, Session, Sink, Time,
    wire::{Wire, WireError, take_u64},
};
use quorate_world::{
    CastSettings, Environment, FaultSettings, MachineSettings, Nemesis, NetworkSettings, Violation, World,
};

/// A protocol that sends numbered messages to every peer, from zero in each session, and checks the numbers
/// of the messages that it receives.
struct Gossip {
    peers: Vec<Peer>,
    reached: bool,
    sessions: BTreeMap<ProcessId, (Session, u64, u64)>,
    next: Time,
    last: Time,
}

#[derive(Debug)]
struct Numbered {
    session: u64,
    number: u64,
}

impl Wire for Numbered {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u64_le(self.session);
        out.put_u64_le(self.number);
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        Ok(Numbered { session: take_u64(input)?, number: take_u64(input)? })
    }
}

#[derive(Debug)]
enum GossipEvent {
    Received,
    Cast,
    Wrong(String),
}

impl Protocol for Gossip {
    type Message = Numbered;
    type Record = ();
    type Command = Peer;
    type Event = GossipEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        assert!(cx.now >= self.last, "a clock ran backwards");
        self.last = cx.now;
        if !self.reached {
            self.reached = true;
            for peer in &self.peers {
                out.reach(peer.id, &peer.address);
            }
        }
        match input {
            Input::Linked { peer, session } => {
                if let Some((before, ..)) = self.sessions.insert(peer, (session, 0, 0)) {
                    out.emit(GossipEvent::Wrong(format!("{session:?} with {peer} while {before:?} stands")));
                }
            }
            Input::Unlinked { peer } => {
                self.sessions.remove(&peer);
            }
            Input::Receive { from, message } => match self.sessions.get_mut(&from) {
                Some((session, received, _))
                    if session.0 == message.session && *received == message.number =>
                {
                    *received += 1;
                    out.emit(GossipEvent::Received);
                }
                known => out.emit(GossipEvent::Wrong(format!("{message:?} from {from} in {known:?}"))),
            },
            Input::Cast { from, message } => match self.sessions.get(&from) {
                Some((session, ..)) if session.0 == message.session => out.emit(GossipEvent::Cast),
                known => out.emit(GossipEvent::Wrong(format!("{message:?} cast by {from} in {known:?}"))),
            },
            Input::Deadline => {
                assert!(cx.now >= self.next, "woken {:?} before {:?}", cx.now, self.next);
                self.next = cx.now + Duration::from_millis(1);
                for (&peer, (session, _, sent)) in &mut self.sessions {
                    out.cast(Destination::One(peer), Numbered { session: session.0, number: *sent });
                    for _ in 0..3 {
                        let message = Numbered { session: session.0, number: *sent };
                        out.send(Destination::One(peer), message, None);
                        *sent += 1;
                    }
                }
            }
            Input::Command(peer) => {
                out.reach(peer.id, &peer.address);
                self.peers.push(peer);
            }
            Input::Persisted(_) | Input::Progress { .. } | Input::Drained => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        Some(self.next)
    }
}

#[derive(Default)]
struct Room {
    received: u64,
    cast: u64,
    lives: BTreeSet<ProcessId>,
    present: BTreeMap<usize, ProcessId>,
    nemesis: Option<Nemesis>,
    machines: usize,
}

impl Environment<Gossip> for Room {
    fn start(&mut self, world: &mut World<Gossip>, machine: usize, id: ProcessId) -> Gossip {
        assert!(self.lives.insert(id), "{id} lived before");
        for other in 0..self.machines {
            let peer = Peer { id, address: World::<Gossip>::address(machine) };
            // Each peer gets the address before the process starts, and reaches the process once it lives.
            world.command_after(other, Duration::from_millis(1), peer);
        }
        let peers = self
            .present
            .iter()
            .filter(|&(&other, _)| world.id(other).is_some())
            .map(|(&other, &id)| Peer { id, address: World::<Gossip>::address(other) })
            .collect();
        self.present.insert(machine, id);
        let last = world.clock(machine);
        Gossip { peers, reached: false, sessions: BTreeMap::new(), next: last, last }
    }

    fn event(&mut self, _: &mut World<Gossip>, machine: usize, event: GossipEvent) -> Result<(), Violation> {
        match event {
            GossipEvent::Received => self.received += 1,
            GossipEvent::Cast => self.cast += 1,
            GossipEvent::Wrong(what) => {
                return Err(Violation::new("link", format!("machine {machine}: {what}")));
            }
        }
        Ok(())
    }

    fn timer(&mut self, world: &mut World<Gossip>, _: u64) -> Result<(), Violation> {
        let machines = vec![(0..self.machines).collect()];
        if let Some(nemesis) = &mut self.nemesis {
            nemesis.strike(world, &machines, |_, _| true);
            if let Some(pause) = nemesis.pause() {
                world.timer(pause, 0);
            }
        }
        Ok(())
    }
}

fn simulate(seed: u64, faults: FaultSettings) -> (Room, World<Gossip>) {
    let network = NetworkSettings { break_probability: 0.01, ..Default::default() };
    let mut world = World::new(seed, network, MachineSettings::default());
    let mut room = Room { nemesis: Some(Nemesis::new(seed, faults)), machines: 5, ..Room::default() };
    for _ in 0..room.machines {
        let machine = world.machine();
        world.restart_after(machine, Duration::from_millis(machine as u64));
    }
    world.timer(Duration::from_millis(20), 0);
    world.run(&mut room, Time(3_000_000_000), |_, _| false).expect("links are FIFO and lossless");
    world.heal();
    (room, world)
}

#[test]
fn links_are_lossless_and_fifo_within_a_session_under_all_faults() {
    let mut counts = BTreeMap::new();
    for seed in 0..20 {
        let faults = FaultSettings { interval_ms: 20.0, ..Default::default() };
        let (mut room, mut world) = simulate(seed, faults);
        // After healing, every process has a link to every other process.
        let until = world.now() + Duration::from_secs(3);
        room.nemesis = None;
        world.run(&mut room, until, |_, _| false).expect("links are FIFO and lossless");
        for machine in 0..room.machines {
            let linked = world.process(machine).map(|process| process.sessions.len());
            let alive: Vec<_> = (0..room.machines).filter_map(|other| world.id(other)).collect();
            let to_living = world
                .process(machine)
                .map(|process| alive.iter().filter(|id| process.sessions.contains_key(*id)).count());
            assert_eq!(to_living, Some(4), "seed {seed}, machine {machine}: {linked:?} links in all");
        }
        assert!(room.received > 10_000, "seed {seed}: {} received", room.received);
        for (&what, &count) in world.counts() {
            *counts.entry(what).or_insert(0) += count;
        }
    }
    let faults = ["fault: kill", "fault: vanish", "fault: pause", "fault: cut", "fault: one-way cut"];
    let casts = ["cast lost", "cast doubled", "cast late", "cast into a cut", "cast in a closed direction"];
    for what in faults.into_iter().chain(casts) {
        assert!(counts.get(what).is_some_and(|&count| count > 5), "{what} hardly happened: {counts:?}");
    }
}

#[test]
fn casts_arrive_with_the_configured_probabilities() {
    let casts = CastSettings {
        loss_probability: 0.25,
        doubling_probability: 0.5,
        closed: 0.0,
        narrow: 0.0,
        ..Default::default()
    };
    let network = NetworkSettings { casts, ..Default::default() };
    let mut world = World::new(1, network, MachineSettings::default());
    let mut room = Room { machines: 3, ..Room::default() };
    for _ in 0..3 {
        let machine = world.machine();
        world.restart_after(machine, Duration::ZERO);
    }
    world.run(&mut room, Time(1_000_000_000), |_, _| false).expect("no violation");
    let (sent, arrived) = (world.counts()["cast"] as f64, room.cast as f64);
    assert!((arrived / sent - 0.75 * 1.5).abs() < 0.05, "{arrived} of {sent}");
}

#[test]
fn a_seed_replays_exactly_and_another_differs() {
    let run = |seed| {
        let (room, world) = simulate(seed, FaultSettings { interval_ms: 20.0, ..Default::default() });
        (room.received, world.steps(), world.trace())
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn a_quiet_world_loses_nothing() {
    let network = NetworkSettings::default();
    let mut world = World::new(1, network, MachineSettings::default());
    let mut room = Room { machines: 3, ..Room::default() };
    for _ in 0..3 {
        let machine = world.machine();
        world.restart_after(machine, Duration::ZERO);
    }
    world.run(&mut room, Time(100_000_000), |_, _| false).expect("no violation");
    let sent: u64 = (0..3)
        .flat_map(|machine| world.process(machine).expect("nobody crashed").sessions.values())
        .map(|&(_, _, sent)| sent)
        .sum();
    assert!(room.received <= sent && sent - room.received <= 3 * 2 * 3, "{} of {sent}", room.received);
    assert!(room.received > 1_000, "{}", room.received);
}
