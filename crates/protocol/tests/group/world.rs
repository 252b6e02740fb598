//! One router and members of one group, links and a clock. Every message goes through its bytes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    CommandId, Context, Destination, Duration, Incarnation, Input, Lift, Peer, ProcessId, Protocol, Sink,
    Ticket, Time,
    ecast::{MemberSettings, Router, RouterSettings},
    group::{
        self, Command, Direct, Event, Groups, Message, Outcome, Place, Roster, Settings, Standing, Strength,
    },
    paxos::{self, Paxos},
    wire::Wire,
};

use crate::world::{Chance, Links, Outputs};

pub(crate) const GROUP: group::GroupId = group::GroupId(7);

/// The router is `r`, members are `a`, `b`, `c`.
pub(crate) fn process(name: &str) -> ProcessId {
    let node = match name {
        "r" => 0,
        name => u64::from(name.bytes().next().expect("a name") - b'a') + 1,
    };
    ProcessId { node, incarnation: Incarnation(0) }
}

pub(crate) fn name(process: ProcessId) -> String {
    match process.node {
        0 => "r".to_owned(),
        node => char::from(b'a' + (node - 1) as u8).to_string(),
    }
}

fn peer(process: ProcessId) -> Peer {
    Peer { id: process, address: format!("{}:1", name(process)) }
}

enum Role {
    Router(Box<Router<Groups>>),
    Member(Box<group::Process>),
}

struct Node {
    role: Role,
    wanted: BTreeSet<ProcessId>,
    ticket: Ticket,
    unsaid: Option<Ticket>,
    /// What was delivered here: the state.
    words: Vec<String>,
}

impl Protocol for Role {
    type Message = Message;
    type Record = paxos::Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut impl Sink<Self>) {
        match self {
            Role::Member(member) => {
                let input = input.map(std::convert::identity, std::convert::identity);
                let mut lift = Lift::<Role, _, _, _>::new::<group::Process>(
                    out,
                    |_, _, message| Some(message),
                    |out, event| out.emit(event),
                );
                member.handle(cx, input, &mut lift);
            }
            Role::Router(router) => {
                let order = |message| match message {
                    Message::Order(message) => message,
                    other => panic!("a router is told {other:?}"),
                };
                let input = input.map(order, |command| panic!("a router is asked {command:?}"));
                let mut lift = Lift::<Role, _, _, _>::new::<Router<Groups>>(
                    out,
                    |_, _, message| Some(Message::Order(message)),
                    |_, _| {},
                );
                router.handle(cx, input, &mut lift);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Role::Router(router) => router.deadline(),
            Role::Member(member) => member.deadline(),
        }
    }
}

pub(crate) struct World {
    now: Time,
    nodes: BTreeMap<ProcessId, Node>,
    settings: Settings,
    pub(crate) links: Links<Bytes>,
    chance: Chance,
    commands: u64,
    pub(crate) paused: BTreeSet<ProcessId>,
    pub(crate) trace: String,
}

impl World {
    pub(crate) fn new(settings: Settings) -> World {
        let mut world = World {
            now: Time::ZERO,
            nodes: BTreeMap::new(),
            settings,
            links: Links::default(),
            chance: Chance(1),
            commands: 0,
            paused: BTreeSet::new(),
            trace: String::new(),
        };
        let settings = paxos::Settings { wanted: 1, ..paxos::Settings::default() };
        let log = Paxos::found(peer(process("r")), settings.clone(), Time::ZERO);
        let settings = RouterSettings { paxos: settings, ..RouterSettings::default() };
        world.add("r", Role::Router(Box::new(Router::new(log, Roster::default(), settings))));
        world
    }

    fn say(&mut self, line: &str) {
        writeln!(self.trace, "{:>5} {line}", self.now.0 / 1_000_000).expect("strings take everything");
    }

    fn add(&mut self, who: &str, role: Role) {
        let node = Node { role, wanted: BTreeSet::new(), ticket: Ticket(0), unsaid: None, words: Vec::new() };
        self.nodes.insert(process(who), node);
        self.input(process(who), Input::Drained);
    }

    pub(crate) fn start(&mut self, who: &str) {
        let member =
            group::Process::new(peer(process(who)), self.settings.clone(), MemberSettings::default());
        self.add(who, Role::Member(Box::new(member)));
        self.input(process(who), Input::Command(Command::Seeds(vec![peer(process("r"))])));
        self.relink();
    }

    /// Asks a member something; a batch ends with it, unless several are asked at once.
    pub(crate) fn ask(&mut self, who: &str, command: impl FnOnce(CommandId) -> Command) {
        self.commands += 1;
        let command = command(CommandId(self.commands));
        self.input(process(who), Input::Command(command));
    }

    pub(crate) fn drain(&mut self, who: &str) {
        self.input(process(who), Input::Drained);
    }

    pub(crate) fn crash(&mut self, who: &str) {
        self.nodes.remove(&process(who));
        for other in self.links.of(process(who)) {
            self.unlink(process(who), other);
        }
    }

    pub(crate) fn cut(&mut self, a: &str, b: &str) {
        self.links.cut(process(a), process(b));
        self.unlink(process(a), process(b));
    }

    fn unlink(&mut self, a: ProcessId, b: ProcessId) {
        if self.links.unmake(a, b) {
            self.input(a, Input::Unlinked { peer: b });
            self.input(b, Input::Unlinked { peer: a });
        }
    }

    pub(crate) fn heal(&mut self) {
        self.links.mend();
        self.relink();
    }

    fn relink(&mut self) {
        let mut wanted = BTreeSet::new();
        for (id, node) in &self.nodes {
            wanted.extend(node.wanted.iter().map(|peer| (*id.min(peer), *id.max(peer))));
        }
        for (a, b) in wanted {
            if self.nodes.contains_key(&a)
                && self.nodes.contains_key(&b)
                && let Some(session) = self.links.make(a, b)
            {
                self.input(a, Input::Linked { peer: b, session });
                self.input(b, Input::Linked { peer: a, session });
            }
        }
    }

    fn input(&mut self, id: ProcessId, input: Input<Role>) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let mut out = Outputs::<Role>::behind(node.ticket);
        let mut chance = || self.chance.next();
        let mut cx = Context { now: self.now, me: id, random: &mut chance };
        if let Some(ticket) = node.unsaid.take() {
            node.role.handle(&mut cx, Input::Persisted(ticket), &mut out);
        }
        node.role.handle(&mut cx, input, &mut out);
        node.ticket = out.ticket;
        node.unsaid = out.persisted.then_some(out.ticket);
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
                let mut bytes = BytesMut::new();
                message.encode(&mut bytes);
                if let Some(queue) = self.links.queue(id, to) {
                    queue.push_back(bytes.freeze());
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

    /// The host of a member takes an event.
    fn event(&mut self, id: ProcessId, event: Event) {
        let node = self.nodes.get_mut(&id).expect("it lives");
        match &event {
            Event::Deliver { body, .. } => node.words.push(text(body)),
            Event::Restore { state, .. } => {
                let state = state.as_ref().map(text).unwrap_or_default();
                node.words = state.split_whitespace().map(str::to_owned).collect();
            }
            _ => {}
        }
        let words = node.words.join(" ");
        let line = format!("{} {}", name(id), shown(&event));
        self.say(&line);
        if let Event::CheckpointWanted { group, view } = event {
            self.input(id, Input::Command(Command::Checkpoint { group, view, state: Bytes::from(words) }));
        }
    }

    fn deliver(&mut self, from: ProcessId, to: ProcessId) -> bool {
        let Some(mut bytes) = self.links.next_if(from, to, |_| true) else { return false };
        let message = Message::decode(&mut bytes).expect("our own bytes decode");
        assert!(bytes.is_empty(), "bytes left over");
        if let Message::Group { direct, .. } = &message
            && let Some(line) = said(direct)
        {
            self.say(&format!("{} > {} {line}", name(from), name(to)));
        }
        self.input(to, Input::Receive { from, message });
        true
    }

    /// Delivers until nothing is on the way, each process taking what has arrived as one batch.
    pub(crate) fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 1000, "they talk for ever");
            let mut moved = false;
            for to in self.awake() {
                let waiting = self.links.moving().filter(|((_, b), _)| *b == to);
                let waiting: Vec<_> = waiting.map(|((from, _), queue)| (from, queue.len())).collect();
                for (from, count) in waiting {
                    for _ in 0..count {
                        moved |= self.deliver(from, to);
                    }
                }
                self.input(to, Input::Drained);
            }
            if !moved && self.nodes.values().all(|node| node.unsaid.is_none()) {
                break;
            }
        }
    }

    fn awake(&self) -> Vec<ProcessId> {
        self.nodes.keys().copied().filter(|id| !self.paused.contains(id)).collect()
    }

    /// Lets time pass, with every message delivered at once.
    pub(crate) fn run(&mut self, span: Duration) {
        let end = self.now + span;
        self.settle();
        let due = |world: &Self, id: &ProcessId| world.nodes[id].role.deadline();
        while let Some(next) =
            self.awake().iter().filter_map(|id| due(self, id)).min().filter(|it| *it <= end)
        {
            self.now = self.now.max(next);
            for id in self.awake() {
                if due(self, &id).is_some_and(|due| due <= self.now) {
                    self.input(id, Input::Deadline);
                    self.input(id, Input::Drained);
                }
            }
            self.settle();
        }
        self.now = end;
    }

    /// Says the state of each member.
    pub(crate) fn show(&mut self) {
        let line = |(id, node): (&ProcessId, &Node)| {
            let Role::Member(member) = &node.role else { return None };
            let (bytes, waiting) = member.held(GROUP);
            let view = member.view(GROUP).map_or(0, |view| view.number.0);
            let words = node.words.join(" ");
            Some(format!("{} view {view}, holds {bytes} bytes and {waiting} ordered: {words}", name(*id)))
        };
        let lines: Vec<String> = self.nodes.iter().filter_map(line).collect();
        lines.iter().for_each(|line| self.say(line));
    }
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The trace of an event.
fn shown(event: &Event) -> String {
    match event {
        Event::Done { id, result: Ok(outcome) } => {
            let what = match outcome {
                Outcome::Joined => "joined".to_owned(),
                Outcome::Left => "left".to_owned(),
                Outcome::Delivered(Place::Soft(number)) => format!("delivered, soft {number}"),
                Outcome::Delivered(Place::Ordered(at)) => format!("delivered @{at}"),
                Outcome::Flushed => "flushed".to_owned(),
            };
            format!("command {} done: {what}", id.0)
        }
        Event::Done { id, result: Err(failure) } => format!("command {} failed: {failure}", id.0),
        Event::Restore { state: None, .. } => "begins afresh".to_owned(),
        Event::Restore { state: Some(state), .. } => format!("restores: {}", text(state)),
        Event::View { view, missing, .. } => {
            let member = |entry: &group::Entry| match entry.standing {
                Standing::Whole => name(entry.peer.id),
                Standing::Fed { giver, .. } => format!("{} (fed by {})", name(entry.peer.id), name(giver)),
            };
            let members: Vec<String> = view.members.iter().map(member).collect();
            let lost = missing.iter().map(|(id, count)| format!(", {count} of {} lost", name(*id)));
            format!("view {}: {}{}", view.number, members.join(" "), lost.collect::<String>())
        }
        Event::CheckpointWanted { view, .. } => format!("gives its state as of view {view}"),
        Event::Deliver { sender, place, body, .. } => {
            let place = match place {
                Place::Soft(number) => format!("soft {number}"),
                Place::Ordered(at) => format!("@{at}"),
            };
            format!("delivers {} of {}: {}", place, name(*sender), text(body))
        }
        Event::InTouch(true) => "is in touch".to_owned(),
        Event::InTouch(false) => "is out of touch".to_owned(),
        Event::Wedged => "is wedged".to_owned(),
    }
}

/// The trace of what members say to each other, but for receipts.
fn said(direct: &Direct) -> Option<String> {
    Some(match direct {
        Direct::Soft { sender, first, messages } => {
            let bodies: Vec<String> = messages.iter().map(|soft| text(&soft.body)).collect();
            format!("Soft of {} from {first}: {}", name(*sender), bodies.join(" "))
        }
        Direct::Receipts { .. } => return None,
        Direct::Want { sender, from } => format!("Want of {} from {from}", name(*sender)),
        Direct::StateWanted { offset } => format!("StateWanted from {offset}"),
        Direct::State { offset, total, piece } => {
            format!("State {offset}+{} of {total}", piece.len())
        }
    })
}

/// A send of `body`.
pub(crate) fn send(id: CommandId, strength: Strength, body: &str) -> Command {
    Command::Send { id, group: GROUP, strength, body: Bytes::from(body.to_owned()) }
}
