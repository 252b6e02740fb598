//! Replicas with their hosts, clients that do what a script says, links and a clock. Every message goes through its bytes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Context, Destination, Duration, Incarnation, Input, Peer, ProcessId, Protocol, Ticket, Time, paxos,
    service::{Body, Call, Event, GroupId, Kind, Message, Outcome, Replica, SessionId, Settings},
    wire::Wire,
};

use super::host::Host;
use crate::{
    paxos::trace::brief,
    world::{Chance, Links, Outputs},
};

const GROUP: GroupId = GroupId(7);

/// Clients are named `c1`, `c2`.
const CLIENTS: u64 = 100;

pub(crate) fn process(name: &str) -> ProcessId {
    let node = match name.strip_prefix('c') {
        Some(client) => CLIENTS + client.parse::<u64>().expect("a client"),
        None => name.parse().expect("a node"),
    };
    ProcessId { node, incarnation: Incarnation(0) }
}

pub(crate) fn name(process: ProcessId) -> String {
    match process.node {
        node if node > CLIENTS => format!("c{}", node - CLIENTS),
        node => node.to_string(),
    }
}

fn peer(process: ProcessId) -> Peer {
    Peer { id: process, address: format!("host{}:1", name(process)) }
}

struct Node {
    replica: Replica,
    host: Host,
    wanted: BTreeSet<ProcessId>,
    ticket: Ticket,
    /// Records that are not yet said to be on disk.
    unsaid: Option<Ticket>,
}

#[derive(Default)]
struct Client {
    session: Option<SessionId>,
    done: u64,
}

pub(crate) struct World {
    pub(crate) now: Time,
    nodes: BTreeMap<ProcessId, Node>,
    clients: BTreeMap<ProcessId, Client>,
    settings: Settings,
    pub(crate) links: Links<Bytes>,
    chance: Chance,
    /// Processes that do nothing at the moment.
    pub(crate) paused: BTreeSet<ProcessId>,
    /// Messages to clients that nobody has looked at.
    pub(crate) heard: Vec<(ProcessId, Body)>,
    pub(crate) trace: String,
}

impl World {
    pub(crate) fn new(settings: Settings, seed: u64) -> World {
        World {
            now: Time::ZERO,
            nodes: BTreeMap::new(),
            clients: BTreeMap::new(),
            settings,
            links: Links::default(),
            chance: Chance(seed.wrapping_mul(2).wrapping_add(1)),
            heard: Vec::new(),
            paused: BTreeSet::new(),
            trace: String::new(),
        }
    }

    pub(crate) fn say(&mut self, line: &str) {
        let millis = self.now.0 / 1_000_000;
        writeln!(self.trace, "{millis:>5} {line}").expect("strings take everything");
    }

    pub(crate) fn found(&mut self, id: ProcessId) {
        let replica = Replica::found(GROUP, peer(id), self.settings.clone(), self.now);
        self.add(id, replica);
    }

    pub(crate) fn join(&mut self, id: ProcessId, seed: ProcessId) {
        let replica = Replica::join(GROUP, peer(id), vec![peer(seed)], self.settings.clone(), self.now);
        self.add(id, replica);
    }

    fn add(&mut self, id: ProcessId, replica: Replica) {
        let (host, wanted) = (Host::default(), BTreeSet::new());
        self.nodes.insert(id, Node { replica, host, wanted, ticket: Ticket(0), unsaid: None });
        self.input(id, Input::Drained);
        self.relink();
    }

    pub(crate) fn client(&mut self, id: ProcessId) {
        self.clients.insert(id, Client::default());
        self.relink();
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

    pub(crate) fn unlink(&mut self, a: ProcessId, b: ProcessId) {
        if self.links.unmake(a, b) {
            self.input(a, Input::Unlinked { peer: b });
            self.input(b, Input::Unlinked { peer: a });
        }
    }

    pub(crate) fn heal(&mut self) {
        self.links.mend();
        self.relink();
    }

    pub(crate) fn replicas(&self) -> Vec<ProcessId> {
        self.nodes.keys().copied().collect()
    }

    pub(crate) fn relink(&mut self) {
        let mut wanted = BTreeSet::new();
        for (id, node) in &self.nodes {
            wanted.extend(node.wanted.iter().map(|peer| (*id.min(peer), *id.max(peer))));
            wanted.extend(self.clients.keys().map(|client| (*id, *client)));
        }
        for (a, b) in wanted {
            let there = |id| self.nodes.contains_key(&id) || self.clients.contains_key(&id);
            if there(a)
                && there(b)
                && let Some(session) = self.links.make(a, b)
            {
                self.input(a, Input::Linked { peer: b, session });
                self.input(b, Input::Linked { peer: a, session });
            }
        }
    }

    /// A client sends to a replica.
    pub(crate) fn ask(&mut self, client: ProcessId, to: ProcessId, body: Body) {
        self.send(client, to, &Message { group: GROUP, body });
    }

    /// Calls such as `3:add:x`, or `4?get` for a read, or `5!get` for one that replicas are told of.
    pub(crate) fn call(&mut self, client: ProcessId, to: ProcessId, calls: &[&str]) {
        let call = |text: &&str| {
            let at = text.find([':', '?', '!']).expect("number, and :, ? or !");
            let number = text[..at].parse().expect("a number");
            let request = Bytes::copy_from_slice(&text.as_bytes()[at + 1..]);
            let kind = match text.as_bytes()[at] {
                b':' => Kind::Write,
                b'?' => Kind::Read,
                _ => Kind::ToldRead,
            };
            Call { number, kind, request }
        };
        let Client { session, done } = &self.clients[&client];
        let session = session.expect("it has opened a session");
        let body = Body::Calls { session, done: *done, calls: calls.iter().map(call).collect() };
        self.ask(client, to, body);
    }

    /// A client tells a replica of a read.
    pub(crate) fn tell(&mut self, client: ProcessId, to: ProcessId, number: u64) {
        let session = self.clients[&client].session.expect("it has opened a session");
        self.ask(client, to, Body::Reads { session, numbers: vec![number] });
    }

    pub(crate) fn done(&mut self, client: ProcessId, done: u64) {
        self.clients.get_mut(&client).expect("a client").done = done;
    }

    fn send(&mut self, from: ProcessId, to: ProcessId, message: &Message) {
        let mut bytes = BytesMut::new();
        message.encode(&mut bytes);
        if let Some(queue) = self.links.queue(from, to) {
            queue.push_back(bytes.freeze());
        }
    }

    /// Hands an input to a replica and takes care of everything that comes of it, its host's results too.
    fn input(&mut self, id: ProcessId, input: Input<Replica>) {
        self.hand_over(id, input);
        while self.nodes.get(&id).is_some_and(|node| !node.host.slow) && self.host_step(id) {}
    }

    /// Has a host do the next thing. Says whether there was any.
    pub(crate) fn host_step(&mut self, id: ProcessId) -> bool {
        let chance = self.chance.next();
        let Some(node) = self.nodes.get_mut(&id) else { return false };
        let more = !node.host.queue.is_empty();
        if let Some(command) = node.host.step(chance) {
            self.hand_over(id, Input::Command(command));
        }
        more
    }

    fn slow(&mut self, id: ProcessId, slow: bool) {
        self.nodes.get_mut(&id).expect("it lives").host.slow = slow;
    }

    fn hand_over(&mut self, id: ProcessId, input: Input<Replica>) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let mut out = Outputs::<Replica>::behind(node.ticket);
        let mut chance = || self.chance.next();
        let mut cx = Context { now: self.now, me: id, random: &mut chance };
        if let Some(ticket) = node.unsaid.take() {
            node.replica.handle(&mut cx, Input::Persisted(ticket), &mut out);
        }
        node.replica.handle(&mut cx, input, &mut out);
        node.ticket = out.ticket;
        if out.persisted {
            node.unsaid = Some(out.ticket);
        }
        for peer in out.forgotten {
            node.wanted.remove(&peer);
        }
        let relink = !out.reached.is_empty();
        node.wanted.extend(out.reached);
        for (to, message) in out.sent {
            let many = match to {
                Destination::One(one) => vec![one],
                Destination::Many(many) => many,
            };
            for to in many {
                self.send(id, to, &message);
            }
        }
        for event in out.events {
            let line = shown(&event);
            self.say(&format!("{} {line}", name(id)));
            self.nodes.get_mut(&id).expect("it lives").host.queue.push_back(event);
        }
        if relink {
            self.relink();
        }
    }

    /// Delivers the oldest message of one link. Says whether there was one.
    pub(crate) fn deliver(&mut self, from: ProcessId, to: ProcessId) -> bool {
        let Some(mut bytes) = self.links.next_if(from, to, |_| true) else { return false };
        let message = Message::decode(&mut bytes).expect("our own bytes decode");
        assert!(bytes.is_empty(), "bytes left over");
        if let Some(line) = said(&message.body) {
            self.say(&format!("{} > {} {line}", name(from), name(to)));
        }
        if let (Some(client), Body::Opened { session, .. }) = (self.clients.get_mut(&to), &message.body) {
            client.session = Some(*session);
        }
        if self.clients.contains_key(&to) {
            self.heard.push((to, message.body));
        } else {
            self.input(to, Input::Receive { from, message });
        }
        true
    }

    /// Delivers the oldest message that is held on a link, and nothing that comes of it.
    pub(crate) fn let_through(&mut self, from: ProcessId, to: ProcessId) {
        let held = self.links.let_go(from, to);
        self.deliver(from, to);
        self.input(to, Input::Drained);
        if held {
            self.links.hold(from, to);
        }
    }

    pub(crate) fn drain(&mut self, id: ProcessId) {
        self.input(id, Input::Drained);
    }

    /// Delivers until nothing is on the way, each process taking what has arrived as one batch.
    pub(crate) fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 1000, "they talk for ever");
            let mut moved = false;
            let everybody = self.nodes.keys().chain(self.clients.keys()).copied();
            for to in everybody.filter(|id| !self.paused.contains(id)).collect::<Vec<_>>() {
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

    /// Tells those whose deadline has come.
    fn wake(&mut self) {
        for id in self.replicas() {
            let due = self.nodes.get(&id).and_then(|node| node.replica.deadline());
            if due.is_some_and(|due| due <= self.now) && !self.paused.contains(&id) {
                self.input(id, Input::Deadline);
                self.input(id, Input::Drained);
            }
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        let awake = self.nodes.iter().filter(|(id, _)| !self.paused.contains(id));
        awake.filter_map(|(_, node)| node.replica.deadline()).min()
    }

    pub(crate) fn random(&mut self) -> u64 {
        self.chance.next()
    }

    pub(crate) fn statuses(&self) -> Vec<(ProcessId, paxos::Status)> {
        self.nodes.iter().map(|(id, node)| (*id, node.replica.status().log)).collect()
    }

    /// Has a host do nothing until it is told to go on.
    pub(crate) fn set_slow(&mut self, id: ProcessId, slow: bool) {
        self.slow(id, slow);
        if !slow {
            while self.host_step(id) {}
            self.drain(id);
        }
    }

    /// Lets time pass until somebody is to be woken, and wakes it.
    pub(crate) fn wake_next(&mut self) {
        let Some(next) = self.next_deadline() else { return };
        self.now = self.now.max(next) + Duration::from_micros(self.random() % 3000);
        self.wake();
    }

    /// The list of the first replica.
    pub(crate) fn words(&self) -> Vec<String> {
        self.nodes.values().next().map_or_else(Vec::new, |node| node.host.words.clone())
    }

    /// Whether all replicas are members, know as much, and have the same list.
    pub(crate) fn agree(&self) -> bool {
        let words = self.words();
        let chosen = self.nodes.values().next().map(|node| node.replica.status().chosen);
        self.nodes.values().all(|node| {
            let status = node.replica.status();
            let all = status.log.members.len() == self.nodes.len();
            let same = Some(status.chosen) == chosen && node.host.queue.is_empty();
            assert!(
                !same || node.host.words == words,
                "replicas differ at instance {}: {words:?} {:?}",
                status.chosen,
                node.host.words
            );
            all && same
        })
    }

    /// Says the state of each replica and its host.
    pub(crate) fn show(&mut self) {
        for id in self.replicas() {
            let node = &self.nodes[&id];
            let status = node.replica.status();
            let serves = if status.serving { ", serving" } else { "" };
            let line = format!(
                "{} {}{serves}, {} chosen, {} refused: {}",
                name(id),
                status.log.role,
                status.chosen,
                status.refused,
                node.host.words.join(" ")
            );
            self.say(&line);
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The trace of an event.
fn shown(event: &Event) -> String {
    let names = |members: &[Peer]| members.iter().map(|peer| name(peer.id)).collect::<Vec<_>>().join(" ");
    match event {
        Event::Execute { work, request, read } => {
            format!("executes {} {work}: {}", if *read { "read" } else { "write" }, text(request))
        }
        Event::Chosen { work } => format!("keeps what works up to {work} changed"),
        Event::Revert => "reverts what is not chosen".to_owned(),
        Event::Apply { through, changes } => {
            let changes: Vec<_> = changes.iter().map(|change| text(change)).collect();
            format!("applies up to instance {through}: {}", changes.join(" "))
        }
        Event::Checkpoint { .. } => "takes a checkpoint".to_owned(),
        Event::CheckpointPartWanted { .. } => "gives a part of its checkpoint".to_owned(),
        Event::CheckpointUnwanted => "drops its checkpoint".to_owned(),
        Event::RestorePart { first, bytes } => {
            format!("is given {}: {}", if *first { "the first part" } else { "a part" }, text(bytes))
        }
        Event::Restore { through } => format!("restores instance {through}"),
        Event::Leader(leader) => format!("has leader {}", leader.map_or("none".to_owned(), name)),
        Event::Serving => "serves".to_owned(),
        Event::Members(members) => format!("has members {}", names(members)),
        Event::Removed => "is removed".to_owned(),
        Event::ChangeRefused { reason, .. } => format!("is refused a change: {reason:?}"),
        Event::Corrupt(error) => format!("is corrupt: {error}"),
    }
}

/// The trace of a message.
fn said(body: &Body) -> Option<String> {
    Some(match body {
        Body::Paxos(paxos::Message::Accept { slot, value: paxos::Value::Payloads(payloads), .. }) => {
            let batches = payloads.iter().map(|payload| {
                let batch = quorate_protocol::service::Batch::decode(&mut payload.clone());
                let batch = batch.expect("a batch");
                format!("{} from {}", batch.instances.len(), batch.first)
            });
            format!("Accept {slot} instances {}", batches.collect::<Vec<_>>().join(", "))
        }
        Body::Paxos(message) => return brief(message),
        Body::Open { nonce } => format!("Open {nonce}"),
        Body::Opened { nonce, session } => format!("Opened {nonce}: session {}", session.0),
        Body::Calls { session, done, calls } => {
            let calls: Vec<_> =
                calls.iter().map(|call| format!("{}:{}", call.number, text(&call.request))).collect();
            format!("Calls of session {}, done {done}: {}", session.0, calls.join(", "))
        }
        Body::Reads { session, numbers } => format!("Reads of session {}: {numbers:?}", session.0),
        Body::Told { ballot, reads } => {
            let reads: Vec<_> =
                reads.iter().map(|id| format!("{} of session {}", id.number, id.session.0)).collect();
            format!("Told {}/{}: {}", ballot.round, name(ballot.router), reads.join(", "))
        }
        Body::Answers { session, answers } => {
            let answers = answers.iter().map(|(number, outcome)| match outcome {
                Outcome::Done(reply) => format!("{number} done: {}", text(reply)),
                Outcome::Rejected(reason) => format!("{number} rejected: {}", text(reason)),
                Outcome::Expired => format!("{number} expired"),
                Outcome::Full => format!("{number} full"),
            });
            format!("Answers of session {}: {}", session.0, answers.collect::<Vec<_>>().join(", "))
        }
        Body::Redirect { leader, .. } => {
            format!("Redirect to {}", leader.map_or("nobody".to_owned(), name))
        }
    })
}
