//! A few routers, the links between them and a clock. Deterministic; every message goes through its bytes.
//!
//! The ghost log fixes what a slot holds at its first learning anywhere; whoever learns it otherwise fails the test.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Write as _,
};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Context, Destination, Duration, Incarnation, Input, Peer, ProcessId, Protocol, Ticket, Time,
    paxos::{Ballot, Command, Event, Message, Paxos, Settings, Slot},
    wire::Wire,
};

use super::trace::{brief, names, round, texts};
use crate::world::{Chance, Links, Outputs};

/// A process by the name that scripts give it: `3` is the first life of node 3, `3b` the second.
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

/// All lives of a node listen at the same address.
pub(crate) fn peer(process: ProcessId) -> Peer {
    Peer { id: process, address: format!("host{}:1", process.node) }
}

pub(crate) struct Node {
    pub(crate) paxos: Paxos,
    /// What it learned, as its user has it: the payloads, in order.
    pub(crate) state: Vec<Bytes>,
    pub(crate) applied: Slot,
    /// The slot of the snapshot it installed last.
    installed: Slot,
    pub(crate) removed: bool,
    /// What its user proposed and has not learned.
    pub(crate) unlearned: VecDeque<Bytes>,
    wanted: BTreeSet<ProcessId>,
    ticket: Ticket,
    /// Records that are not yet said to be on disk.
    unsaid: Option<Ticket>,
    /// The reign that it was told of last.
    pub(crate) reign: Option<Ballot>,
    /// The state that it gives in parts, as it was when it began.
    giving: Vec<u8>,
    /// The state that comes to it in parts.
    coming: Vec<u8>,
    /// All that it has written, as bytes.
    pub(crate) records: Vec<Bytes>,
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) nodes: BTreeMap<ProcessId, Node>,
    pub(crate) ghost: BTreeMap<Slot, Vec<Bytes>>,
    ghost_members: BTreeMap<Slot, Vec<Peer>>,
    pub(crate) settings: Settings,
    /// Whether users propose again what they have not learned (rule S3).
    pub(crate) persistent: bool,
    /// Whether the trace shows what users are told of reigns.
    pub(crate) reigns: bool,
    /// Whether users give their state in parts.
    pub(crate) parts: bool,
    /// Whether users begin to give their state only when a script says so.
    pub(crate) later: bool,
    pub(crate) links: Links<Bytes>,
    chance: Chance,
    pub(crate) trace: String,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

impl World {
    pub(crate) fn new(settings: Settings, seed: u64) -> World {
        World {
            now: Time::ZERO,
            nodes: BTreeMap::new(),
            ghost: BTreeMap::new(),
            ghost_members: BTreeMap::new(),
            settings,
            persistent: false,
            reigns: false,
            parts: false,
            later: false,
            links: Links::default(),
            chance: Chance(seed.wrapping_mul(2).wrapping_add(1)),
            trace: String::new(),
            counts: BTreeMap::new(),
        }
    }

    pub(crate) fn random(&mut self) -> u64 {
        self.chance.next()
    }

    pub(crate) fn say(&mut self, line: &str) {
        let millis = self.now.0 / 1_000_000;
        writeln!(self.trace, "{millis:>5} {line}").expect("strings take everything");
    }

    pub(crate) fn found(&mut self, id: ProcessId) {
        let paxos = Paxos::found(peer(id), self.settings.clone(), self.now);
        self.add(id, paxos);
    }

    pub(crate) fn join(&mut self, id: ProcessId, seeds: &[ProcessId]) {
        let seeds = seeds.iter().map(|seed| peer(*seed)).collect();
        let paxos = Paxos::join(peer(id), seeds, self.settings.clone(), self.now);
        self.add(id, paxos);
    }

    fn add(&mut self, id: ProcessId, paxos: Paxos) {
        let node = Node {
            paxos,
            state: Vec::new(),
            applied: Slot::ZERO,
            installed: Slot::ZERO,
            removed: false,
            unlearned: VecDeque::new(),
            wanted: BTreeSet::new(),
            ticket: Ticket(0),
            unsaid: None,
            reign: None,
            giving: Vec::new(),
            coming: Vec::new(),
            records: Vec::new(),
        };
        self.nodes.insert(id, node);
        self.input(id, Input::Drained);
    }

    pub(crate) fn crash(&mut self, id: ProcessId) {
        self.nodes.remove(&id);
        for other in self.links.of(id) {
            self.unlink(id, other);
        }
    }

    pub(crate) fn cut(&mut self, a: ProcessId, b: ProcessId) {
        self.links.cut(a, b);
        self.unlink(a, b);
    }

    pub(crate) fn heal(&mut self) {
        self.links.mend();
        self.relink();
    }

    /// From now on what `id` knows is the history, and what others learned beyond is forgotten.
    pub(crate) fn begin_anew(&mut self, id: ProcessId) {
        let last = self.nodes[&id].applied;
        self.ghost.retain(|slot, _| *slot <= last);
        self.ghost_members.retain(|slot, _| *slot <= last);
    }

    /// Delivers the oldest message that is held on a link, if there is one, and the pulses before it, and nothing that comes
    /// of them.
    pub(crate) fn let_through(&mut self, from: ProcessId, to: ProcessId) {
        let held = self.links.let_go(from, to);
        while let Some(message) = self.deliver_one(from, to) {
            self.input(to, Input::Drained);
            if !matches!(message, Message::Pulse(_)) {
                break;
            }
        }
        if held {
            self.links.hold(from, to);
        }
    }

    /// Breaks a link; what was on the way is lost.
    pub(crate) fn unlink(&mut self, a: ProcessId, b: ProcessId) {
        if self.links.unmake(a, b) {
            self.input(a, Input::Unlinked { peer: b });
            self.input(b, Input::Unlinked { peer: a });
        }
    }

    /// Makes the links that are wanted and possible.
    pub(crate) fn relink(&mut self) {
        let mut wanted = Vec::new();
        for (id, node) in &self.nodes {
            wanted.extend(node.wanted.iter().map(|peer| (*id.min(peer), *id.max(peer))));
        }
        for (a, b) in wanted {
            let possible = self.nodes.contains_key(&a) && self.nodes.contains_key(&b);
            if possible && let Some(session) = self.links.make(a, b) {
                self.input(a, Input::Linked { peer: b, session });
                self.input(b, Input::Linked { peer: a, session });
            }
        }
    }

    /// Proposes as the user of `id` does.
    pub(crate) fn propose(&mut self, id: ProcessId, payload: Bytes) {
        if let Some(node) = self.nodes.get_mut(&id) {
            if self.persistent {
                node.unlearned.push_back(payload.clone());
            }
            self.input(id, Input::Command(Command::Propose { payload }));
        }
    }

    /// Hands an input to a process and takes care of everything that comes of it.
    pub(crate) fn input(&mut self, id: ProcessId, input: Input<Paxos>) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let mut out = Outputs::<Paxos>::behind(node.ticket);
        let mut chance = || self.chance.next();
        let mut cx = Context { now: self.now, me: id, random: &mut chance };
        if let Some(ticket) = node.unsaid.take() {
            node.paxos.handle(&mut cx, Input::Persisted(ticket), &mut out);
        }
        node.paxos.handle(&mut cx, input, &mut out);
        node.ticket = out.ticket;
        node.records.extend(out.records.drain(..).map(|record| {
            let mut bytes = BytesMut::new();
            record.encode(&mut bytes);
            bytes.freeze()
        }));
        if out.persisted {
            node.unsaid = Some(out.ticket);
        }
        assert!(out.adopted.is_none(), "the log alone knows no policies: {:?}", out.adopted);
        for peer in out.forgotten {
            node.wanted.remove(&peer);
        }
        let relink = !out.reached.is_empty();
        node.wanted.extend(out.reached);
        for (to, message) in out.sent {
            let mut bytes = BytesMut::new();
            message.encode(&mut bytes);
            let bytes = bytes.freeze();
            let many = match to {
                Destination::One(one) => vec![one],
                Destination::Many(many) => many,
            };
            for to in many {
                assert!(to != id, "a router talks to itself");
                if let Some(queue) = self.links.queue(id, to) {
                    queue.push_back(bytes.clone());
                }
            }
        }
        for event in out.events {
            self.event(id, event);
        }
        if relink {
            self.relink();
        }
    }

    fn event(&mut self, id: ProcessId, event: Event) {
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
            self.say(&format!("{} {line}", name(id)));
        }
        let node = self.nodes.get_mut(&id).expect("events come from living processes");
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
                    if !self.later {
                        self.begin_snapshot(id);
                    }
                    return;
                }
                let state = Bytes::from(encode_state(&node.state));
                *self.counts.entry("snapshot").or_default() += 1;
                self.input(id, Input::Command(Command::Snapshot { slot, state }));
            }
            Event::SnapshotPartWanted { slot, bytes } => {
                let rest = node.giving.split_off(bytes.min(node.giving.len()));
                let bytes = Bytes::from(std::mem::replace(&mut node.giving, rest));
                let last = node.giving.is_empty();
                self.input(id, Input::Command(Command::SnapshotPart { slot, bytes, last }));
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
                        self.input(id, Input::Command(Command::Propose { payload }));
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
    }

    /// The user of `id` begins to give its state in parts.
    pub(crate) fn begin_snapshot(&mut self, id: ProcessId) {
        let node = self.nodes.get_mut(&id).expect("it lives");
        node.giving = encode_state(&node.state);
        let slot = node.applied;
        *self.counts.entry("snapshot").or_default() += 1;
        self.input(id, Input::Command(Command::SnapshotBegins { slot }));
    }

    /// Delivers the oldest message of one link. Says whether there was one.
    pub(crate) fn deliver(&mut self, from: ProcessId, to: ProcessId) -> bool {
        self.deliver_one(from, to).is_some()
    }

    fn deliver_one(&mut self, from: ProcessId, to: ProcessId) -> Option<Message> {
        let mut bytes = self.links.next_if(from, to, |_| true)?;
        let message = Message::decode(&mut bytes).expect("our own bytes decode");
        assert!(bytes.is_empty(), "bytes left over");
        if let Some(line) = brief(&message) {
            self.say(&format!("{} > {} {line}", name(from), name(to)));
        }
        self.input(to, Input::Receive { from, message: message.clone() });
        Some(message)
    }

    /// Delivers until nothing is on the way, each process taking what has arrived as one batch.
    pub(crate) fn settle(&mut self) {
        for round in 0.. {
            if round == 1000 {
                let tail: Vec<_> = self.trace.lines().rev().take(40).collect();
                panic!("they talk for ever; last, newest first:\n{}", tail.join("\n"));
            }
            let mut moved = false;
            for to in self.nodes.keys().copied().collect::<Vec<_>>() {
                let waiting = self.links.moving().filter(|((_, b), _)| *b == to);
                let waiting: Vec<_> = waiting.map(|((from, _), queue)| (from, queue.len())).collect();
                for (from, count) in waiting {
                    for _ in 0..count {
                        moved |= self.deliver(from, to);
                    }
                }
                self.input(to, Input::Drained);
            }
            let unsaid = self.nodes.values().any(|node| node.unsaid.is_some());
            if !moved && !unsaid {
                break;
            }
        }
    }

    /// Lets time pass, with every message delivered at once.
    pub(crate) fn run(&mut self, span: Duration) {
        let end = self.now + span;
        self.settle();
        while let Some(next) = self.next_deadline().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.wake();
            self.settle();
        }
        self.now = end;
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.nodes.values().filter_map(|node| node.paxos.deadline()).min()
    }

    /// Tells those whose deadline has come.
    pub(crate) fn wake(&mut self) {
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            let due = self.nodes.get(&id).and_then(|node| node.paxos.deadline());
            if due.is_some_and(|due| due <= self.now) {
                self.input(id, Input::Deadline);
                self.input(id, Input::Drained);
                let due = self.nodes.get(&id).and_then(|node| node.paxos.deadline());
                assert!(due.is_none_or(|due| due > self.now), "{id} wants to be woken for ever");
            }
        }
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
