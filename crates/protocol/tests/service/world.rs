//! Replicas with their hosts, and clients that follow a script.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_protocol::{
    Context, Destination, Incarnation, Input, Lift, Peer, ProcessId, Protocol, Sink, Time, paxos,
    service::{
        self, Body, Call, CallOutcome, Event, GroupId, Kind, Message, Part, Replica, Scope, SessionId,
        Settings,
    },
    wire::Wire,
};
use quorate_world::{Environment, Violation};

use super::host::Host;
use crate::{
    paxos::trace::brief,
    world::{Chance, Rig, Trace, Traced},
};

const GROUP: GroupId = GroupId(7);

/// Node number of client `c0`. Clients are named `c1`, `c2`.
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

/// A process on a machine.
pub(crate) enum Role {
    Replica(Box<Replica>),
    /// A client, which does what a script asks.
    Client,
}

/// Commands of replicas and clients.
pub(crate) enum Asked {
    Replica(service::Command),
    Send(ProcessId, Message),
    Reach(Peer),
}

/// Events of replicas and clients.
pub(crate) enum EndpointEvent {
    Replica(Event),
    Client(Body),
}

impl Protocol for Role {
    type Message = Message;
    type Record = paxos::Record;
    type Command = Asked;
    type Event = EndpointEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match (self, input) {
            (Role::Replica(replica), input) => {
                let command = |command| match command {
                    Asked::Replica(command) => command,
                    Asked::Send(..) | Asked::Reach(_) => panic!("a replica is asked what clients are asked"),
                };
                let input = input.map(std::convert::identity, command);
                let mut lift = Lift::<Role, _, _>::new::<Replica>(
                    out,
                    |_, _, message| Some(message),
                    |out, event| out.emit(EndpointEvent::Replica(event)),
                );
                replica.handle(cx, input, &mut lift);
            }
            (Role::Client, Input::Command(Asked::Send(to, message))) => {
                out.send(Destination::One(to), message, None);
            }
            (Role::Client, Input::Command(Asked::Reach(peer))) => out.reach(peer.id, &peer.address),
            (Role::Client, Input::Receive { message, .. }) => out.emit(EndpointEvent::Client(message.body)),
            (Role::Client, _) => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Role::Replica(replica) => replica.deadline(),
            Role::Client => None,
        }
    }
}

#[derive(Default)]
struct Client {
    session: Option<SessionId>,
    done: u64,
}

/// The hosts of the replicas, and what the clients know.
pub(crate) struct Users {
    hosts: BTreeMap<ProcessId, Host>,
    clients: BTreeMap<ProcessId, Client>,
    settings: Settings,
    /// The replica that the next replica asks to join. `None` for a founder.
    seed: Option<ProcessId>,
    /// Messages that arrived at clients and were not read yet.
    pub(crate) heard: Vec<(ProcessId, Body)>,
    pub(crate) trace: Trace,
}

type Virtual = quorate_world::World<Role>;

impl Users {
    /// Handles the next event of a host. Returns whether the host was allowed to: it executes nothing while
    /// its replica holds too many results.
    fn host_step(&mut self, world: &mut Virtual, id: ProcessId) -> Result<bool, Violation> {
        let Some(host) = self.hosts.get_mut(&id) else { return Ok(false) };
        let is_full = match world.place(id).and_then(|place| world.process(place)) {
            Some(Role::Replica(replica)) => replica.holds_too_much(),
            _ => false,
        };
        if is_full && matches!(host.queue.front(), Some(Event::Execute { .. })) {
            return Ok(false);
        }
        let chance = world.draw();
        let more = !host.queue.is_empty();
        if let Some(command) = host.step(chance) {
            let free = !std::mem::replace(&mut host.busy, true);
            world.ask(self, id, Asked::Replica(command))?;
            self.hosts.get_mut(&id).expect("a host stays").busy = !free;
        }
        Ok(more)
    }
}

impl Environment<Role> for Users {
    fn start(&mut self, world: &mut Virtual, _: usize, id: ProcessId) -> Role {
        if self.clients.contains_key(&id) {
            return Role::Client;
        }
        self.hosts.insert(id, Host::default());
        let (settings, now) = (self.settings.clone(), world.now());
        Role::Replica(Box::new(match self.seed {
            None => Replica::found(GROUP, peer(id), settings, now),
            Some(seed) => Replica::join(GROUP, peer(id), vec![peer(seed)], settings, now),
        }))
    }

    fn event(&mut self, world: &mut Virtual, machine: usize, event: EndpointEvent) -> Result<(), Violation> {
        let id = world.id(machine).expect("it lives");
        match event {
            EndpointEvent::Replica(event) => {
                self.trace.say(world.now(), &format!("{} {}", name(id), shown(&event)));
                self.hosts.get_mut(&id).expect("a replica has a host").queue.push_back(event);
            }
            EndpointEvent::Client(body) => {
                if let Body::Opened { session, .. } = &body {
                    self.clients.get_mut(&id).expect("a client").session = Some(*session);
                }
                self.heard.push((id, body));
            }
        }
        Ok(())
    }

    fn delivered(&mut self, world: &Virtual, from: ProcessId, to: ProcessId, message: &Message) {
        if let Some(line) = said(&message.body) {
            self.trace.say(world.now(), &format!("{} > {} {line}", name(from), name(to)));
        }
    }

    /// Lets a host that is not slow handle all its events at once.
    fn stepped(&mut self, world: &mut Virtual, machine: usize) -> Result<(), Violation> {
        let Some(id) = world.id(machine) else { return Ok(()) };
        while self.hosts.get(&id).is_some_and(|host| !host.slow && !host.busy) && self.host_step(world, id)? {
        }
        Ok(())
    }
}

impl Traced for Users {
    fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }
}

pub(crate) type World = Rig<Role, Users>;

impl World {
    pub(crate) fn new(settings: Settings, seed: u64) -> World {
        let users = Users {
            hosts: BTreeMap::new(),
            clients: BTreeMap::new(),
            settings,
            seed: None,
            heard: Vec::new(),
            trace: Trace::default(),
        };
        Rig::of(users, Chance(seed.wrapping_mul(2).wrapping_add(1)))
    }

    pub(crate) fn found(&mut self, id: ProcessId) {
        self.add(id, None);
    }

    pub(crate) fn join(&mut self, id: ProcessId, seed: ProcessId) {
        self.add(id, Some(seed));
    }

    fn add(&mut self, id: ProcessId, seed: Option<ProcessId>) {
        self.seed = seed;
        self.begin(id, &peer(id).address);
        for client in self.clients.keys().copied().collect::<Vec<_>>() {
            self.command(client, Asked::Reach(peer(id)));
        }
    }

    pub(crate) fn client(&mut self, id: ProcessId) {
        self.clients.insert(id, Client::default());
        self.begin(id, &peer(id).address);
        for replica in self.replicas() {
            self.command(id, Asked::Reach(peer(replica)));
        }
    }

    pub(crate) fn replicas(&self) -> Vec<ProcessId> {
        let mut everybody = self.everybody();
        everybody.retain(|id| self.hosts.contains_key(id));
        everybody
    }

    fn replica(&self, id: ProcessId) -> &Replica {
        match self.process(id) {
            Role::Replica(replica) => replica,
            Role::Client => panic!("{} is a client", name(id)),
        }
    }

    /// A client sends a message to a replica.
    pub(crate) fn ask(&mut self, client: ProcessId, to: ProcessId, body: Body) {
        self.command(client, Asked::Send(to, Message { group: GROUP, body }));
    }

    /// Sends calls: `3:add:x` is a write, `4?get` a read, and `5!get` a read that the client sends to all
    /// replicas. Keys and transaction follow: `3:add:x/k1,k2@7`, or `@+7` for the transaction's first call.
    pub(crate) fn call(&mut self, client: ProcessId, to: ProcessId, calls: &[&str]) {
        let Client { session, done } = &self.clients[&client];
        let (session, done) = (session.expect("it has opened a session"), *done);
        self.call_in(session, done, client, to, calls);
    }

    /// Sends calls with keys. Hashes of the keys take the place of the calls' numbers.
    pub(crate) fn keyed(&mut self, client: ProcessId, to: ProcessId, calls: &[&str]) {
        self.call_in(SessionId::KEYED, 0, client, to, calls);
    }

    fn call_in(&mut self, session: SessionId, done: u64, client: ProcessId, to: ProcessId, calls: &[&str]) {
        let call = |text: &&str| {
            let (text, scope) = scope(text);
            let at = text.find([':', '?', '!']).expect("number, and :, ? or !");
            let number = text[..at].parse().expect("a number");
            let request = Bytes::copy_from_slice(&text.as_bytes()[at + 1..]);
            let kind = match (text.as_bytes()[at], &request[..]) {
                (_, b"commit") => Kind::Commit,
                (b':', _) => Kind::Write,
                (b'?', _) => Kind::Read,
                _ => Kind::AnnouncedRead,
            };
            Call { number, kind, scope, request }
        };
        let body = Body::Calls { session, done, calls: calls.iter().map(call).collect() };
        self.ask(client, to, body);
    }

    /// A client announces a read to a replica.
    pub(crate) fn announce_read(&mut self, client: ProcessId, to: ProcessId, number: u64) {
        let session = self.clients[&client].session.expect("it has opened a session");
        self.ask(client, to, Body::Reads { session, numbers: vec![number] });
    }

    /// A client abandons a transaction.
    pub(crate) fn abandon(&mut self, client: ProcessId, to: ProcessId, transaction: u64) {
        let session = self.clients[&client].session.expect("it has opened a session");
        self.ask(client, to, Body::Abandon { session, transactions: vec![transaction] });
    }

    pub(crate) fn done(&mut self, client: ProcessId, done: u64) {
        self.clients.get_mut(&client).expect("a client").done = done;
    }

    /// Handles the next event of a host. Returns whether there was one.
    pub(crate) fn host_step(&mut self, id: ProcessId) -> bool {
        self.go(|world, users| users.host_step(world, id))
    }

    /// Delivers the oldest message of a link, even a held message. Messages that are sent in response are not
    /// delivered.
    pub(crate) fn let_through(&mut self, from: ProcessId, to: ProcessId) {
        self.deliver(from, to);
        self.drain(to);
    }

    pub(crate) fn statuses(&self) -> Vec<(ProcessId, paxos::Status)> {
        self.replicas().into_iter().map(|id| (id, self.replica(id).status().log)).collect()
    }

    /// A host reports that it can do nothing more.
    pub(crate) fn resign(&mut self, id: ProcessId) {
        self.command(id, Asked::Replica(service::Command::Resign));
    }

    /// A host completes a waiting call.
    pub(crate) fn complete(&mut self, id: ProcessId, word: &str) {
        let command = self.hosts.get_mut(&id).expect("it lives").complete(word);
        self.command(id, Asked::Replica(command));
    }

    /// Makes a host wait until further notice, or lets it continue.
    pub(crate) fn set_slow(&mut self, id: ProcessId, slow: bool) {
        self.hosts.get_mut(&id).expect("it lives").slow = slow;
        if !slow {
            while self.host_step(id) {}
            self.drain(id);
        }
    }

    /// Returns the list of the first replica.
    pub(crate) fn words(&self) -> Vec<String> {
        self.replicas().first().map_or_else(Vec::new, |id| self.hosts[id].words.clone())
    }

    /// Whether all replicas are members, have learned the same number of instances, and have the same list.
    pub(crate) fn agree(&self) -> bool {
        let words = self.words();
        let replicas = self.replicas();
        let chosen = replicas.first().map(|id| self.replica(*id).status().chosen);
        replicas.iter().all(|id| {
            let (status, host) = (self.replica(*id).status(), &self.hosts[id]);
            let all = status.log.members.len() == replicas.len();
            let same = Some(status.chosen) == chosen && host.queue.is_empty();
            assert!(
                !same || host.words == words,
                "replicas differ at instance {}: {words:?} {:?}",
                status.chosen,
                host.words
            );
            all && same
        })
    }

    /// Writes the state of each replica and its host to the trace.
    pub(crate) fn show(&mut self) {
        for id in self.replicas() {
            let status = self.replica(id).status();
            let serves = if status.serving { ", serving" } else { "" };
            let line = format!(
                "{} {}{serves}, {} chosen, {} refused: {}",
                name(id),
                status.log.state,
                status.chosen,
                status.refused,
                shortened(&self.hosts[&id].words.join(" "))
            );
            self.say(&line);
        }
    }
}

/// Splits a call's text into the call itself, and its keys and transaction.
fn scope(text: &str) -> (&str, Option<Box<Scope>>) {
    let (rest, part) = match text.split_once('@') {
        None => (text, None),
        Some((rest, number)) => {
            let transaction = number.trim_start_matches('+').parse().expect("a transaction");
            (rest, Some(Part { transaction, first: number.starts_with('+') }))
        }
    };
    let (rest, keys) = match rest.split_once('/') {
        None => (rest, Vec::new()),
        Some((rest, keys)) => (rest, keys.split(',').map(|key| key[1..].parse().expect("a key")).collect()),
    };
    let is_plain = part.is_none() && keys.is_empty();
    (rest, (!is_plain).then(|| Box::new(Scope { keys, part })))
}

fn text(bytes: &[u8]) -> String {
    shortened(&String::from_utf8_lossy(bytes))
}

/// Returns the words. A very long word is replaced by its first letter and its length.
fn shortened(words: &str) -> String {
    let shorten = |word: &str| match word.len() {
        length if length > WORD_BYTES_SHOWN => format!("{}…({length} bytes)", &word[..1]),
        _ => word.to_owned(),
    };
    words.split(' ').map(shorten).collect::<Vec<_>>().join(" ")
}

/// Longest word that traces show in full, in bytes.
const WORD_BYTES_SHOWN: usize = 64;

/// Returns the trace of a call's keys and transaction.
fn place(call: &Call) -> String {
    let Some(Scope { keys, part }) = call.scope.as_deref() else { return String::new() };
    let keys = if keys.is_empty() { String::new() } else { format!(" on {keys:?}") };
    let part = part.map_or(String::new(), |part| {
        format!("{} transaction {}", if part.first { ", begins" } else { ", in" }, part.transaction)
    });
    format!("{keys}{part}")
}

/// Returns the trace of an event.
fn shown(event: &Event) -> String {
    let names = |members: &[Peer]| members.iter().map(|peer| name(peer.id)).collect::<Vec<_>>().join(" ");
    match event {
        Event::Execute { work, request, read, transaction } => {
            let of = transaction.map_or(String::new(), |it| format!(" of transaction {}", it.number));
            format!("executes {} {work}{of}: {}", if *read { "read" } else { "write" }, text(request))
        }
        Event::Commit { work, transaction } => {
            format!("commits transaction {} as {work}", transaction.number)
        }
        Event::Abort { transaction } => format!("aborts transaction {}", transaction.number),
        Event::Chosen { work } => format!("keeps what works up to {work} changed"),
        Event::Revert => "reverts what is not chosen".to_owned(),
        Event::Apply { through, changes } => {
            let changes: Vec<_> = changes.iter().map(|change| text(change)).collect();
            format!("applies up to instance {through}: {}", changes.join(" "))
        }
        Event::Rest { .. } => "rests".to_owned(),
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
        Event::Resigned => "has resigned".to_owned(),
        Event::ChangeRefused { reason, .. } => format!("is refused a change: {reason:?}"),
        Event::Corrupt(error) => format!("is corrupt: {error}"),
    }
}

/// Returns the trace of a message.
fn said(body: &Body) -> Option<String> {
    Some(match body {
        Body::Paxos(paxos::Message::Accept { slot, value: paxos::SlotValue::Payloads(payloads), .. }) => {
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
            let calls: Vec<_> = calls
                .iter()
                .map(|call| format!("{}:{}{}", call.number, text(&call.request), place(call)))
                .collect();
            format!("Calls of session {}, done {done}: {}", session.0, calls.join(", "))
        }
        Body::Reads { session, numbers } => format!("Reads of session {}: {numbers:?}", session.0),
        Body::ReadsConfirmed { ballot, reads } => {
            let reads: Vec<_> =
                reads.iter().map(|id| format!("{} of session {}", id.number, id.session.0)).collect();
            format!("ReadsConfirmed {}/{}: {}", ballot.round, name(ballot.router), reads.join(", "))
        }
        Body::Answers { session, answers } => {
            let answers = answers.iter().map(|(number, outcome)| match outcome {
                CallOutcome::Done(reply) => format!("{number} done: {}", text(reply)),
                CallOutcome::Rejected(reason) => format!("{number} rejected: {}", text(reason)),
                CallOutcome::Expired => format!("{number} expired"),
                CallOutcome::Full => format!("{number} full"),
                CallOutcome::Reused => format!("{number} reused"),
                CallOutcome::Aborted(why) => format!("{number} aborted: {why:?}"),
            });
            format!("Answers of session {}: {}", session.0, answers.collect::<Vec<_>>().join(", "))
        }
        Body::Abandon { transactions, .. } => format!("Abandon {transactions:?}"),
        Body::Members { members } => {
            let names: Vec<_> = members.iter().map(|peer| name(peer.id)).collect();
            format!("Members {}", names.join(" "))
        }
        Body::Redirect { leader, .. } => {
            format!("Redirect to {}", leader.map_or("nobody".to_owned(), name))
        }
    })
}
