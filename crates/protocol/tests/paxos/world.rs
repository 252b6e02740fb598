//! A few routers and their users.
//!
//! The ghost log records the content of a slot when any router first learns it. A router that learns anything
//! else fails the test.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use quorate_protocol::{
    Incarnation, Input, Peer, ProcessId,
    paxos::{Ballot, Command, Event, Message, Paxos, Settings, Slot},
};
use quorate_world::{Environment, Violation};

use super::trace::{brief, names, round, texts};
use crate::world::{Chance, Rig, Trace, Traced};

/// Returns the process with this name in scripts: `3` is the first life of node 3, `3b` the second.
pub(crate) fn process(name: &str) -> ProcessId {
    let digits = name.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let life = name[digits.len()..].bytes().next().unwrap_or(b'a') - b'a';
    ProcessId { node: digits.parse().expect("a node"), incarnation: Incarnation(u128::from(life)) }
}

pub(crate) fn name(process: ProcessId) -> String {
    let life = match process.incarnation.0 {
        0 => String::new(),
        life => char::from(b'a' + life as u8).to_string(),
    };
    format!("{}{life}", process.node)
}

/// Returns the address of a process. All lives of a node listen at the same address.
pub(crate) fn peer(process: ProcessId) -> Peer {
    Peer { id: process, address: format!("host{}:1", process.node) }
}

/// The user of a router.
#[derive(Default)]
pub(crate) struct Node {
    /// The learned payloads, in order.
    pub(crate) state: Vec<Bytes>,
    pub(crate) applied: Slot,
    /// The slot of the latest installed snapshot.
    installed: Slot,
    pub(crate) removed: bool,
    /// Payloads that the user proposed and has not learned.
    pub(crate) unlearned: VecDeque<Bytes>,
    /// The latest reign that the user heard of.
    pub(crate) reign: Option<Ballot>,
    /// The state that the user hands out in parts, fixed when the first part was requested.
    giving: Vec<u8>,
    /// The parts of a state that have arrived.
    coming: Vec<u8>,
    /// All records of the user's router, as bytes.
    pub(crate) records: Vec<Bytes>,
}

/// The users of all routers, including the dead ones.
pub(crate) struct Users {
    pub(crate) nodes: BTreeMap<ProcessId, Node>,
    pub(crate) ghost: BTreeMap<Slot, Vec<Bytes>>,
    ghost_members: BTreeMap<Slot, Vec<Peer>>,
    pub(crate) settings: Settings,
    /// The routers that the next router asks to join. `None` for a founder.
    seeds: Option<Vec<Peer>>,
    /// Whether users propose again what they have not learned (rule S3).
    pub(crate) persistent: bool,
    /// Whether the trace shows the reigns that users hear of.
    pub(crate) reigns: bool,
    /// Whether users hand out their state in parts.
    pub(crate) parts: bool,
    /// Whether users begin to hand out their state only when a script says so.
    pub(crate) later: bool,
    pub(crate) trace: Trace,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

type Virtual = quorate_world::World<Paxos>;

impl Environment<Paxos> for Users {
    fn start(&mut self, world: &mut Virtual, _: usize, id: ProcessId) -> Paxos {
        let records = self.nodes.insert(id, Node::default()).map_or(Vec::new(), |before| before.records);
        if !records.is_empty() {
            // A member with this id existed before, so the router recovers from its disk.
            self.nodes.get_mut(&id).expect("it was just made").records.clone_from(&records);
            let back = Paxos::recover(peer(id), self.settings.clone(), records, world.now());
            return back.expect("records follow from each other").expect("there are some");
        }
        match self.seeds.take() {
            None => Paxos::found(peer(id), self.settings.clone(), world.now()),
            Some(seeds) => Paxos::join(peer(id), seeds, self.settings.clone(), world.now()),
        }
    }

    fn wrote(&mut self, world: &Virtual, machine: usize, records: Vec<Bytes>) {
        let id = world.id(machine).expect("it lives");
        self.nodes.get_mut(&id).expect("every router has a user").records.extend(records);
    }

    fn delivered(&mut self, world: &Virtual, from: ProcessId, to: ProcessId, message: &Message) {
        assert!(from != to, "a router talks to itself");
        if let Some(line) = brief(message) {
            self.trace.say(world.now(), &format!("{} > {} {line}", name(from), name(to)));
        }
    }

    fn event(&mut self, world: &mut Virtual, machine: usize, event: Event) -> Result<(), Violation> {
        let id = world.id(machine).expect("it lives");
        let line = match &event {
            Event::Learned { slot, payloads } if payloads.is_empty() => format!("learned {slot}"),
            Event::Learned { slot, payloads } => format!("learned {slot} {}", texts(payloads)),
            Event::Leader(None) => "knows no leader".to_owned(),
            Event::Leader(Some(leader)) => format!("has leader {}", name(*leader)),
            Event::Reign { ballot, start } => {
                format!("begins to reign in {}, behind {start}", round(*ballot))
            }
            Event::Settled { ballot } => format!("is settled in {}", round(*ballot)),
            Event::Deposed { ballot } => format!("is deposed from {}", round(*ballot)),
            Event::Refused { ballot, payload } => {
                format!("is refused {} in {}", texts(std::slice::from_ref(payload)), round(*ballot))
            }
            Event::Confirmed { ballot, through } => {
                format!("has {} confirmed for questions up to {through}", round(*ballot))
            }
            Event::Detour(None) => "goes round no more".to_owned(),
            Event::Detour(Some(router)) => format!("goes round by {}", name(*router)),
            Event::SnapshotWanted { slot } => format!("asks for a snapshot at {slot}"),
            Event::SnapshotPartWanted { slot, .. } => format!("asks for a part of {slot}"),
            Event::SnapshotUnwanted { slot } => format!("needs no more of {slot}"),
            Event::InstallPart { number, bytes, .. } => {
                format!("is given part {number}, {} bytes", bytes.len())
            }
            Event::Install { slot, state } => format!("installs a snapshot at {slot}, {} bytes", state.len()),
            Event::Members(members) => format!("has members {}", names(members)),
            Event::Removed => "is removed".to_owned(),
            Event::ChangeRefused { change, reason } => format!("is refused {change:?}: {reason:?}"),
        };
        let of_reigns = matches!(
            event,
            Event::Reign { .. } | Event::Settled { .. } | Event::Deposed { .. } | Event::Confirmed { .. }
        );
        if self.reigns || !of_reigns {
            self.trace.say(world.now(), &format!("{} {line}", name(id)));
        }
        let node = self.nodes.get_mut(&id).expect("every router has a user");
        match event {
            Event::Learned { slot, payloads } => {
                assert_eq!(slot, node.applied.next(), "{id} learns without gaps, each slot once");
                node.applied = slot;
                let first = self.ghost.entry(slot).or_insert_with(|| payloads.clone());
                assert_eq!(*first, payloads, "{id} learned something else in {slot}");
                for payload in payloads {
                    node.unlearned.retain(|unlearned| *unlearned != payload);
                    node.state.push(payload);
                }
            }
            Event::SnapshotWanted { slot } => {
                assert_eq!(slot, node.applied, "a snapshot is wanted of the state that there is");
                if self.parts {
                    return if self.later { Ok(()) } else { self.begin_snapshot(world, id) };
                }
                let state = Bytes::from(encode_state(&node.state));
                *self.counts.entry("snapshot").or_default() += 1;
                return world.ask(self, id, Command::Snapshot { slot, state });
            }
            Event::SnapshotPartWanted { slot, bytes } => {
                let rest = node.giving.split_off(bytes.min(node.giving.len()));
                let bytes = Bytes::from(std::mem::replace(&mut node.giving, rest));
                let last = node.giving.is_empty();
                return world.ask(self, id, Command::SnapshotPart { slot, bytes, last });
            }
            Event::InstallPart { number, bytes, .. } => {
                if number == 0 {
                    node.coming.clear();
                }
                node.coming.extend_from_slice(&bytes);
            }
            Event::Install { slot, state } => {
                let state =
                    if state.is_empty() { Bytes::from(std::mem::take(&mut node.coming)) } else { state };
                assert!(slot > node.applied, "a snapshot never goes back");
                node.applied = slot;
                node.installed = slot;
                node.state = decode_state(&state);
                let ghost: Vec<_> =
                    self.ghost.range(..=slot).flat_map(|(_, payloads)| payloads.clone()).collect();
                assert_eq!(node.state, ghost, "{id} installed another state");
                let state = &node.state;
                node.unlearned.retain(|unlearned| !state.contains(unlearned));
                *self.counts.entry("install").or_default() += 1;
            }
            Event::Leader(leader) => {
                *self.counts.entry("leader").or_default() += 1;
                if leader.is_some() && self.persistent {
                    for payload in node.unlearned.clone() {
                        world.ask(self, id, Command::Propose { payload })?;
                    }
                }
            }
            Event::Removed => {
                node.removed = true;
                *self.counts.entry("removed").or_default() += 1;
            }
            Event::Members(members) => {
                let slot = node.applied;
                if node.installed != slot {
                    let first = self.ghost_members.entry(slot).or_insert_with(|| members.clone());
                    assert_eq!(*first, members, "{id} learned other members in {slot}");
                }
                let made = self.ghost_members.range(..=slot).next_back().map(|(_, made)| made);
                assert_eq!(made, Some(&members), "{id} installed other members at {slot}");
                *self.counts.entry("members").or_default() += 1;
            }
            Event::Reign { ballot, start } => {
                assert!(start >= node.applied, "{id} begins behind what it has learned");
                node.reign = Some(ballot);
            }
            Event::SnapshotUnwanted { .. }
            | Event::ChangeRefused { .. }
            | Event::Detour(_)
            | Event::Settled { .. }
            | Event::Deposed { .. }
            | Event::Refused { .. }
            | Event::Confirmed { .. } => {}
        }
        Ok(())
    }
}

impl Users {
    /// The user of `id` begins to hand out its state in parts.
    fn begin_snapshot(&mut self, world: &mut Virtual, id: ProcessId) -> Result<(), Violation> {
        let node = self.nodes.get_mut(&id).expect("every router has a user");
        node.giving = encode_state(&node.state);
        let slot = node.applied;
        *self.counts.entry("snapshot").or_default() += 1;
        world.ask(self, id, Command::SnapshotBegins { slot })
    }
}

impl Traced for Users {
    fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }
}

pub(crate) type World = Rig<Paxos, Users>;

impl World {
    pub(crate) fn new(settings: Settings, seed: u64) -> World {
        let users = Users {
            nodes: BTreeMap::new(),
            ghost: BTreeMap::new(),
            ghost_members: BTreeMap::new(),
            settings,
            seeds: None,
            persistent: false,
            reigns: false,
            parts: false,
            later: false,
            trace: Trace::default(),
            counts: BTreeMap::new(),
        };
        Rig::of(users, Chance(seed.wrapping_mul(2).wrapping_add(1)))
    }

    pub(crate) fn found(&mut self, id: ProcessId) {
        self.seeds = None;
        self.begin(id, &peer(id).address);
    }

    pub(crate) fn join(&mut self, id: ProcessId, seeds: &[ProcessId]) {
        self.seeds = Some(seeds.iter().map(|seed| peer(*seed)).collect());
        self.begin(id, &peer(id).address);
    }

    /// Restarts a crashed router from its disk.
    pub(crate) fn come_back(&mut self, id: ProcessId) {
        self.go(|world, _| {
            world.reuse_ids();
            Ok(())
        });
        self.begin(id, &peer(id).address);
    }

    /// Returns the living routers with their users.
    pub(crate) fn living(&self) -> impl Iterator<Item = (ProcessId, &Paxos, &Node)> {
        self.everybody().into_iter().map(|id| (id, self.process(id), &self.nodes[&id]))
    }

    /// Makes the log of `id` the history, and forgets everything that other routers learned beyond its end.
    pub(crate) fn begin_anew(&mut self, id: ProcessId) {
        let last = self.nodes[&id].applied;
        self.ghost.retain(|slot, _| *slot <= last);
        self.ghost_members.retain(|slot, _| *slot <= last);
    }

    /// Delivers the oldest message of a link, even a held message, and the pulses before it. Messages that
    /// are sent in response are not delivered.
    pub(crate) fn let_through(&mut self, from: ProcessId, to: ProcessId) {
        while let Some(message) = self.take(from, to) {
            self.drain(to);
            if !matches!(message, Message::Pulse(_)) {
                break;
            }
        }
    }

    /// Proposes a payload as the user of `id`.
    pub(crate) fn propose(&mut self, id: ProcessId, payload: Bytes) {
        if self.persistent
            && let Some(node) = self.nodes.get_mut(&id)
        {
            node.unlearned.push_back(payload.clone());
        }
        self.command(id, Command::Propose { payload });
    }

    /// Passes an input of a user to its router: a command, or the end of a batch.
    pub(crate) fn input(&mut self, id: ProcessId, input: Input<Paxos>) {
        match input {
            Input::Command(command) => self.command(id, command),
            Input::Drained => self.drain(id),
            _ => panic!("links and deadlines are the world's"),
        }
    }

    /// The user of `id` begins to hand out its state in parts.
    pub(crate) fn begin_snapshot(&mut self, id: ProcessId) {
        self.go(|world, users| users.begin_snapshot(world, id));
    }
}

fn encode_state(state: &[Bytes]) -> Vec<u8> {
    let mut out = Vec::new();
    for payload in state {
        out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        out.extend_from_slice(payload);
    }
    out
}

fn decode_state(mut bytes: &[u8]) -> Vec<Bytes> {
    let mut state = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let (payload, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
        state.push(Bytes::copy_from_slice(payload));
        bytes = rest;
    }
    state
}
