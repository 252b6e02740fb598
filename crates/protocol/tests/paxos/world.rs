//! A few routers, the links between them and a clock. Deterministic; every message goes through its bytes.
//!
//! The ghost log fixes what a slot holds at its first learning anywhere; whoever learns it otherwise fails the test.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Write as _,
};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Context, Destination, Duration, Generation, Incarnation, Input, Peer, ProcessId, Protocol, Session, Sink,
    Ticket, Time,
    paxos::{Command, Event, Message, Paxos, Record, Settings, Slot, Value},
    wire::Wire,
};

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

pub(crate) fn peer(process: ProcessId) -> Peer {
    Peer { id: process, address: format!("host{}:1", name(process)) }
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
    ticket: u64,
    /// Records that are not yet said to be on disk.
    unsaid: Option<Ticket>,
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) nodes: BTreeMap<ProcessId, Node>,
    pub(crate) ghost: BTreeMap<Slot, Vec<Bytes>>,
    ghost_members: BTreeMap<Slot, Vec<Peer>>,
    pub(crate) settings: Settings,
    /// Whether users propose again what they have not learned (rule S3).
    pub(crate) persistent: bool,
    links: BTreeSet<(ProcessId, ProcessId)>,
    cuts: BTreeSet<(ProcessId, ProcessId)>,
    held: BTreeSet<(ProcessId, ProcessId)>,
    queues: BTreeMap<(ProcessId, ProcessId), VecDeque<Bytes>>,
    sessions: u64,
    random: u64,
    pub(crate) trace: String,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

/// What a router puts out during one call.
#[derive(Default)]
struct Outputs {
    sent: Vec<(Destination, Message)>,
    events: Vec<Event>,
    reached: Vec<ProcessId>,
    forgotten: Vec<ProcessId>,
    ticket: u64,
    persisted: bool,
}

impl Sink<Paxos> for Outputs {
    fn send(&mut self, to: Destination, message: Message, after: Option<Ticket>) {
        assert!(after.is_none_or(|after| after.0 <= self.ticket), "waits for a record that is not written");
        self.sent.push((to, message));
    }

    fn persist(&mut self, _record: Record) -> Ticket {
        self.ticket += 1;
        self.persisted = true;
        Ticket(self.ticket)
    }

    fn emit(&mut self, event: Event) {
        self.events.push(event);
    }

    fn reach(&mut self, peer: ProcessId, _address: &str) {
        self.reached.push(peer);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.forgotten.push(peer);
    }

    fn enter(&mut self, generation: Generation) {
        panic!("the log alone knows no generations: {generation}");
    }
}

fn pair(a: ProcessId, b: ProcessId) -> (ProcessId, ProcessId) {
    (a.min(b), a.max(b))
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
            links: BTreeSet::new(),
            cuts: BTreeSet::new(),
            held: BTreeSet::new(),
            queues: BTreeMap::new(),
            sessions: 0,
            random: seed.wrapping_mul(2).wrapping_add(1),
            trace: String::new(),
            counts: BTreeMap::new(),
        }
    }

    /// A random number; splitmix64.
    pub(crate) fn random(&mut self) -> u64 {
        random(&mut self.random)
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
            ticket: 0,
            unsaid: None,
        };
        self.nodes.insert(id, node);
        self.input(id, Input::Drained);
    }

    pub(crate) fn crash(&mut self, id: ProcessId) {
        self.nodes.remove(&id);
        for (a, b) in self.links.clone() {
            if a == id || b == id {
                self.unlink(a, b);
            }
        }
    }

    pub(crate) fn cut(&mut self, a: ProcessId, b: ProcessId) {
        self.cuts.insert(pair(a, b));
        self.unlink(a, b);
    }

    pub(crate) fn heal(&mut self) {
        self.cuts.clear();
        self.held.clear();
        self.relink();
    }

    /// Keeps what `from` sends to `to` on the way.
    pub(crate) fn hold(&mut self, from: ProcessId, to: ProcessId) {
        self.held.insert((from, to));
    }

    pub(crate) fn release(&mut self) {
        self.held.clear();
    }

    /// From now on what `id` knows is the history, and what others learned beyond is forgotten.
    pub(crate) fn begin_anew(&mut self, id: ProcessId) {
        let last = self.nodes[&id].applied;
        self.ghost.retain(|slot, _| *slot <= last);
        self.ghost_members.retain(|slot, _| *slot <= last);
    }

    /// Delivers the oldest message that is held on a link, if there is one, and nothing that comes of it.
    pub(crate) fn let_through(&mut self, from: ProcessId, to: ProcessId) {
        let held = self.held.remove(&(from, to));
        if self.deliver(from, to) {
            self.input(to, Input::Drained);
        }
        if held {
            self.held.insert((from, to));
        }
    }

    /// Breaks a link; what was on the way is lost.
    pub(crate) fn unlink(&mut self, a: ProcessId, b: ProcessId) {
        if self.links.remove(&pair(a, b)) {
            self.queues.remove(&(a, b));
            self.queues.remove(&(b, a));
            self.input(a, Input::Unlinked { peer: b });
            self.input(b, Input::Unlinked { peer: a });
        }
    }

    /// Makes the links that are wanted and possible.
    pub(crate) fn relink(&mut self) {
        let mut wanted = Vec::new();
        for (id, node) in &self.nodes {
            wanted.extend(node.wanted.iter().map(|peer| pair(*id, *peer)));
        }
        for (a, b) in wanted {
            let possible = self.nodes.contains_key(&a) && self.nodes.contains_key(&b);
            if possible && !self.cuts.contains(&(a, b)) && self.links.insert((a, b)) {
                self.sessions += 1;
                let session = Session(self.sessions);
                self.input(a, Input::Linked { peer: b, session });
                self.input(b, Input::Linked { peer: a, session });
            }
        }
    }

    pub(crate) fn links(&self) -> Vec<(ProcessId, ProcessId)> {
        self.links.iter().copied().collect()
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
        let mut out = Outputs { ticket: node.ticket, ..Outputs::default() };
        let mut state = self.random;
        let mut chance = || random(&mut state);
        let mut cx = Context { now: self.now, me: id, random: &mut chance };
        if let Some(ticket) = node.unsaid.take() {
            node.paxos.handle(&mut cx, Input::Persisted(ticket), &mut out);
        }
        node.paxos.handle(&mut cx, input, &mut out);
        self.random = state;
        node.ticket = out.ticket;
        if out.persisted {
            node.unsaid = Some(Ticket(out.ticket));
        }
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
                if self.links.contains(&pair(id, to)) {
                    self.queues.entry((id, to)).or_default().push_back(bytes.clone());
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
            Event::SnapshotWanted { slot } => format!("asks for a snapshot at {slot}"),
            Event::Install { slot, state } => format!("installs a snapshot at {slot}, {} bytes", state.len()),
            Event::Members(members) => format!("has members {}", names(members)),
            Event::Removed => "is removed".to_owned(),
            Event::ChangeRefused { change, reason } => format!("is refused {change:?}: {reason:?}"),
        };
        self.say(&format!("{} {line}", name(id)));
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
                let state = Bytes::from(encode_state(&node.state));
                *self.counts.entry("snapshot").or_default() += 1;
                self.input(id, Input::Command(Command::Snapshot { slot, state }));
            }
            Event::Install { slot, state } => {
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
            Event::ChangeRefused { .. } => {}
        }
    }

    /// Delivers the oldest message of one link. Says whether there was one.
    pub(crate) fn deliver(&mut self, from: ProcessId, to: ProcessId) -> bool {
        if self.held.contains(&(from, to)) {
            return false;
        }
        let Some(mut bytes) = self.queues.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
            return false;
        };
        let message = Message::decode(&mut bytes).expect("our own bytes decode");
        assert!(bytes.is_empty(), "bytes left over");
        if let Some(line) = brief(&message) {
            self.say(&format!("{} > {} {line}", name(from), name(to)));
        }
        self.input(to, Input::Receive { from, message });
        true
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
                let waiting: Vec<_> = self
                    .queues
                    .iter()
                    .filter(|((_, b), _)| *b == to)
                    .map(|(link, queue)| (*link, queue.len()))
                    .collect();
                for ((from, to), count) in waiting {
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

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
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

pub(crate) fn names(peers: &[Peer]) -> String {
    peers.iter().map(|peer| name(peer.id)).collect::<Vec<_>>().join(" ")
}

fn texts(payloads: &[Bytes]) -> String {
    let text = |payload: &Bytes| match payload.len() {
        0..=20 => String::from_utf8_lossy(payload).into_owned(),
        length => format!("({length} bytes)"),
    };
    payloads.iter().map(text).collect::<Vec<_>>().join(" ")
}

fn value(value: &Value) -> String {
    match value {
        Value::Payloads(payloads) => format!("[{}]", texts(payloads)),
        Value::Members(members) => format!("[members {}]", names(members)),
    }
}

fn values(values: &[Value]) -> String {
    values.iter().map(value).collect::<Vec<_>>().join(" ")
}

/// A message as traces show it; `None` for those that come all the time.
fn brief(message: &Message) -> Option<String> {
    let b = |ballot: &quorate_protocol::paxos::Ballot| format!("b{}/{}", ballot.round, name(ballot.router));
    Some(match message {
        Message::Heartbeat { .. } | Message::Following { lacks: false, .. } => return None,
        Message::Following { ballot, through, .. } => {
            format!("Following {} lacks, holds {through:?}", b(ballot))
        }
        Message::Forward { payloads, .. } => format!("Forward {}", texts(payloads)),
        Message::Accept { ballot, slot, chosen, value: v } => {
            format!("Accept {} {slot} {} chosen {chosen}", b(ballot), value(v))
        }
        Message::Accepted { ballot, through } => format!("Accepted {} {through}", b(ballot)),
        Message::Chosen { through, .. } => format!("Chosen {through}"),
        Message::Sync { ballot, start, chosen, values: v } => {
            format!("Sync {} behind {start}: {} chosen {chosen}", b(ballot), values(v))
        }
        Message::CatchUp { start, values, .. } => format!("CatchUp behind {start}: {} values", values.len()),
        Message::Chunk { slot, total, offset, bytes, .. } => {
            format!("Chunk {slot} {offset}+{} of {total}", bytes.len())
        }
        Message::ChunkTaken { slot, offset, .. } => format!("ChunkTaken {slot} {offset}"),
        Message::Promise { ballot, accepted, last, chosen, start, values: v } => format!(
            "Promise {} accepted {} {last} chosen {chosen}, behind {start}: {}",
            b(ballot),
            b(accepted),
            values(v)
        ),
        Message::PreVote(p) => format!("PreVote {} {} chosen {}", b(&p.ballot), p.last, p.chosen),
        Message::PreVoted { ballot } => format!("PreVoted {}", b(ballot)),
        Message::Prepare(p) => {
            format!("Prepare {} accepted {} {} chosen {}", b(&p.ballot), b(&p.accepted), p.last, p.chosen)
        }
        Message::Refused { ballot, promised, refusal } => {
            format!("Refused {}: {refusal:?}, promised {}", b(ballot), b(promised))
        }
        Message::Resign { ballot } => format!("Resign {}", b(ballot)),
        Message::Join { peer } => format!("Join {}", name(peer.id)),
        Message::Refer { leader, members } => {
            format!("Refer {:?} of {}", leader.map(name), names(members))
        }
        Message::Change(change) => format!("{change:?}"),
        Message::ChangeRefused { reason, .. } => format!("ChangeRefused {reason:?}"),
        Message::Dropped { .. } => "Dropped".to_owned(),
        Message::NotMember { chosen, members } => format!("NotMember as of {chosen}: {}", names(members)),
    })
}
