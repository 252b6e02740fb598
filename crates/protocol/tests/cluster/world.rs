//! Routers, supers, storage processes and clients, the links between them and a clock. Deterministic; every message goes
//! through its bytes.
//!
//! The ghost order fixes what a position holds at its first learning anywhere; a router that learned it otherwise fails
//! the test.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Write as _,
};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Context, Destination, Duration, Generation, Incarnation, Input, Peer, ProcessId, Protocol, Session, Sink,
    Standing, Ticket, Time,
    ecast::{MessageId, Position, Router, RouterCommand, RouterEvent, RouterSettings},
    paxos::Paxos,
    rubberband::{
        Client, ClientCommand, ClientError, ClientEvent, ClientSettings, Config, DataHeader, Message, Range,
        RequestId, Rubberband, Storage, StorageCommand, StorageEvent, StorageSettings, Super, SuperCommand,
        SuperEvent, SuperSettings, Task, TaskKind,
    },
    wire::Wire,
};

use super::engine::{Engine, Row, decode};

/// A process by the name that scripts give it: `s2` is the first life of storage process 2, `s2b` the second.
pub(crate) fn process(name: &str) -> ProcessId {
    let base = match name.as_bytes()[0] {
        b'r' => 100,
        b'u' => 200,
        b's' => 300,
        b'c' => 400,
        _ => panic!("{name} is no process"),
    };
    let digits = name[1..].trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let life = name[1 + digits.len()..].bytes().next().unwrap_or(b'a') - b'a';
    let node = base + digits.parse::<u64>().expect("a number");
    ProcessId { node, incarnation: Incarnation((u128::from(node) << 8) | u128::from(life)) }
}

pub(crate) fn name(process: ProcessId) -> String {
    let role = ["r", "u", "s", "c"][(process.node / 100 - 1) as usize];
    let life = match process.incarnation.0 & 0xff {
        0 => String::new(),
        life => char::from(b'a' + life as u8).to_string(),
    };
    format!("{role}{}{life}", process.node % 100)
}

/// The next life of the same node.
pub(crate) fn reborn(process: ProcessId) -> ProcessId {
    ProcessId { incarnation: Incarnation(process.incarnation.0 + 1), ..process }
}

fn peer(process: ProcessId) -> Peer {
    Peer { id: process, address: format!("{}:1", name(process)) }
}

/// Four storage processes cut the ring into quarters; a range is named by them: `1` is a quarter, `1+5` a key.
pub(crate) fn range(text: &str) -> Range {
    if text == "all" {
        return Range::ALL;
    }
    match text.split_once('+') {
        Some((quarter, key)) => {
            let key = (quarter.parse::<u64>().expect("a quarter") << 62) + key.parse::<u64>().expect("a key");
            Range { low: key, high: key }
        }
        None => {
            let low = text.parse::<u64>().expect("a quarter") << 62;
            Range { low, high: low + ((1 << 62) - 1) }
        }
    }
}

pub(crate) fn range_name(range: Range) -> String {
    let quarter = range.low >> 62;
    let key = range.low - (quarter << 62);
    if range == Range::ALL {
        "all".to_owned()
    } else if range.low == range.high {
        format!("{quarter}+{key}")
    } else if key == 0 && range.high - range.low == (1 << 62) - 1 {
        quarter.to_string()
    } else {
        format!("{}-{}", range.low, range.high)
    }
}

fn range_names(ranges: &[Range]) -> String {
    ranges.iter().map(|range| range_name(*range)).collect::<Vec<_>>().join(",")
}

#[allow(
    clippy::large_enum_variant,
    reason = "there are few, and whether the lint fires varies with the build"
)]
pub(crate) enum Role {
    Router(Router<Rubberband>),
    Super(Super),
    Storage(Storage, Engine),
    Client(Client),
}

pub(crate) struct Process {
    pub(crate) role: Role,
    wanted: BTreeSet<ProcessId>,
    /// Something was handed over since the last drain.
    undrained: bool,
    /// What the engine is at, and when it will be done.
    tasks: Option<(Time, Vec<Task>)>,
    wedged: bool,
    generation: Generation,
    /// How much of a router's history was compared.
    compared: Position,
}

impl Process {
    pub(crate) fn config(&self) -> Option<&Config> {
        match &self.role {
            Role::Router(router) => Some(router.config()),
            Role::Super(it) => it.config(),
            Role::Storage(it, _) => it.config(),
            Role::Client(it) => it.config(),
        }
    }

    fn deadline(&self) -> Option<Time> {
        match &self.role {
            Role::Router(it) => it.deadline(),
            Role::Super(it) => it.deadline(),
            Role::Storage(it, _) => it.deadline(),
            Role::Client(it) => it.deadline(),
        }
    }
}

/// What a user was told of one of its requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) parts: Vec<Bytes>,
    pub(crate) end: Option<Result<Position, ClientError>>,
}

/// What happens to a process.
pub(crate) enum Happening {
    Receive(ProcessId, Message),
    Deadline,
    Linked(ProcessId, Session),
    Unlinked(ProcessId),
    Drained,
}

impl Happening {
    fn input<P: Protocol>(self, unwrap: impl Fn(Message) -> P::Message) -> Input<P> {
        match self {
            Happening::Receive(from, message) => Input::Receive { from, message: unwrap(message) },
            Happening::Deadline => Input::Deadline,
            Happening::Linked(peer, session) => Input::Linked { peer, session },
            Happening::Unlinked(peer) => Input::Unlinked { peer },
            Happening::Drained => Input::Drained,
        }
    }
}

/// What a process puts out during one call.
struct Outputs<P: Protocol> {
    sent: Vec<(Destination, P::Message)>,
    events: Vec<P::Event>,
    reached: Vec<ProcessId>,
    forgotten: Vec<ProcessId>,
    entered: Option<Generation>,
    persisted: bool,
}

impl<P: Protocol> Default for Outputs<P> {
    fn default() -> Self {
        Outputs {
            sent: Vec::new(),
            events: Vec::new(),
            reached: Vec::new(),
            forgotten: Vec::new(),
            entered: None,
            persisted: false,
        }
    }
}

impl<P: Protocol> Sink<P> for Outputs<P> {
    fn send(&mut self, to: Destination, message: P::Message, _after: Option<Ticket>) {
        self.sent.push((to, message));
    }

    fn persist(&mut self, _record: P::Record) -> Ticket {
        self.persisted = true;
        Ticket(1)
    }

    fn emit(&mut self, event: P::Event) {
        self.events.push(event);
    }

    fn reach(&mut self, peer: ProcessId, _address: &str) {
        self.reached.push(peer);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.forgotten.push(peer);
    }

    fn enter(&mut self, generation: Generation) {
        self.entered = Some(generation);
    }
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) processes: BTreeMap<ProcessId, Process>,
    /// What positions hold.
    pub(crate) ghost: BTreeMap<Position, (MessageId, Bytes)>,
    /// The latest generation that began.
    generation: Generation,
    /// By client and token.
    pub(crate) told: BTreeMap<(ProcessId, u64), Told>,
    links: BTreeSet<(ProcessId, ProcessId)>,
    cuts: BTreeSet<(ProcessId, ProcessId)>,
    held: BTreeSet<(ProcessId, ProcessId)>,
    queues: BTreeMap<(ProcessId, ProcessId), VecDeque<(Time, Bytes)>>,
    /// How long a message takes at least, and how much longer it may take.
    pub(crate) latency: (Duration, Duration),
    /// How long the engine takes for a batch at most; `None`: it has stopped.
    pub(crate) work: Option<Duration>,
    /// Whether a process that was wedged or removed starts again as a new one.
    pub(crate) rebirth: bool,
    /// Replicas per range.
    pub(crate) replicas: u8,
    pub(crate) retention: Duration,
    relink_due: bool,
    sessions: u64,
    random: u64,
    pub(crate) trace: String,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

fn pair(a: ProcessId, b: ProcessId) -> (ProcessId, ProcessId) {
    (a.min(b), a.max(b))
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl World {
    pub(crate) fn new(seed: u64) -> World {
        World {
            now: Time::ZERO,
            processes: BTreeMap::new(),
            ghost: BTreeMap::new(),
            generation: Generation(0),
            told: BTreeMap::new(),
            links: BTreeSet::new(),
            cuts: BTreeSet::new(),
            held: BTreeSet::new(),
            queues: BTreeMap::new(),
            latency: (Duration::from_micros(100), Duration::ZERO),
            work: Some(Duration::ZERO),
            rebirth: false,
            replicas: 2,
            retention: Duration::from_secs(600),
            relink_due: false,
            sessions: 0,
            random: seed,
            trace: String::new(),
            counts: BTreeMap::new(),
        }
    }

    pub(crate) fn random(&mut self) -> u64 {
        random(&mut self.random)
    }

    pub(crate) fn say(&mut self, line: &str) {
        let millis = self.now.0 / 1_000_000;
        writeln!(self.trace, "{millis:>5} {line}").expect("strings take everything");
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    // --- Processes ---------------------------------------------------------------------------------------------------

    /// The living routers.
    pub(crate) fn routers(&self) -> Vec<ProcessId> {
        let routers = self.processes.iter().filter(|(_, process)| matches!(process.role, Role::Router(_)));
        routers.map(|(id, _)| *id).collect()
    }

    pub(crate) fn start(&mut self, id: ProcessId) {
        let routers = self.routers();
        let me = peer(id);
        let name = name(id);
        let role = match id.node / 100 {
            1 => {
                let generation = routers.iter().map(|router| self.processes[router].generation).max();
                let generation = generation.unwrap_or_default();
                let settings = RouterSettings { generation, ..RouterSettings::default() };
                let seeds = routers.iter().map(|router| peer(*router)).collect();
                let paxos = match routers.is_empty() {
                    true => Paxos::found(me, settings.paxos.clone(), self.now),
                    false => Paxos::join(me, seeds, settings.paxos.clone(), self.now),
                };
                Role::Router(Router::new(paxos, Config::new(self.replicas), settings))
            }
            2 => {
                let settings = SuperSettings { storage_wanted: 4, ..SuperSettings::default() };
                Role::Super(Super::new(me, name, settings))
            }
            3 => Role::Storage(Storage::new(me, name, StorageSettings::default()), Engine::default()),
            _ => {
                let settings = ClientSettings { retention: self.retention, ..ClientSettings::default() };
                Role::Client(Client::new(me, name, settings))
            }
        };
        let generation = match &role {
            Role::Router(router) => router.status().generation,
            _ => Generation(0),
        };
        let process = Process {
            role,
            generation,
            wanted: routers.into_iter().collect(),
            undrained: true,
            tasks: None,
            wedged: false,
            compared: Position(0),
        };
        self.processes.insert(id, process);
        self.relink_due = true;
    }

    pub(crate) fn crash(&mut self, id: ProcessId) {
        self.processes.remove(&id);
        for (a, b) in self.links.clone() {
            if a == id || b == id {
                self.unlink(a, b);
            }
        }
    }

    // --- Links -------------------------------------------------------------------------------------------------------

    pub(crate) fn links(&self) -> Vec<(ProcessId, ProcessId)> {
        self.links.iter().copied().collect()
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

    /// Breaks a link; what was on the way is lost.
    pub(crate) fn unlink(&mut self, a: ProcessId, b: ProcessId) {
        if self.links.remove(&pair(a, b)) {
            self.queues.remove(&(a, b));
            self.queues.remove(&(b, a));
            self.happen(a, Happening::Unlinked(b));
            self.happen(b, Happening::Unlinked(a));
        }
    }

    /// Makes the links that are wanted and possible.
    pub(crate) fn relink(&mut self) {
        let mut wanted = Vec::new();
        for (id, process) in &self.processes {
            wanted.extend(process.wanted.iter().map(|peer| pair(*id, *peer)));
        }
        for (a, b) in wanted {
            let possible = self.processes.contains_key(&a) && self.processes.contains_key(&b);
            let outdated =
                [(a, b), (b, a)].into_iter().find(|(one, other)| possible && self.is_outdated(*one, *other));
            if let Some((outdated, _)) = outdated.filter(|_| !self.cuts.contains(&(a, b))) {
                self.say(&format!("{} is of an earlier generation", name(outdated)));
                self.processes.get_mut(&outdated).expect("just seen").wedged = true;
                continue;
            }
            if possible && !self.cuts.contains(&(a, b)) && self.links.insert((a, b)) {
                self.sessions += 1;
                let session = Session(self.sessions);
                self.happen(a, Happening::Linked(b, session));
                self.happen(b, Happening::Linked(a, session));
            }
        }
    }

    /// Whether `one` is the reason why the two may not be linked.
    fn is_outdated(&self, one: ProcessId, other: ProcessId) -> bool {
        let standing = |id: ProcessId| {
            let process = &self.processes[&id];
            Standing { router: matches!(process.role, Role::Router(_)), generation: process.generation }
        };
        !standing(one).may_link(standing(other)) && standing(one).generation < standing(other).generation
    }

    fn post(&mut self, from: ProcessId, to: Destination, message: &Message) {
        let mut bytes = BytesMut::new();
        message.encode(&mut bytes);
        let bytes = bytes.freeze();
        let many = match to {
            Destination::One(one) => vec![one],
            Destination::Many(many) => many,
        };
        for to in many {
            if !self.links.contains(&pair(from, to)) {
                continue;
            }
            let (least, spread) = self.latency;
            let mut due = self.now + least;
            if !spread.is_zero() {
                // Mostly quick, sometimes slow.
                let cubed = (self.random() % 1000).pow(3) / 1_000_000;
                due = due + spread * cubed as u32 / 1000;
            }
            let queue = self.queues.entry((from, to)).or_default();
            let due = queue.back().map_or(due, |(last, _)| due.max(*last));
            queue.push_back((due, bytes.clone()));
        }
    }

    // --- Time --------------------------------------------------------------------------------------------------------

    fn next_instant(&self) -> Option<Time> {
        let arriving = self.queues.iter().filter(|(link, _)| !self.held.contains(link));
        let arriving = arriving.filter_map(|(_, queue)| queue.front().map(|(due, _)| *due));
        let deadlines = self.processes.values().filter(|it| !it.wedged).filter_map(Process::deadline);
        let work = self.processes.values().filter_map(|it| it.tasks.as_ref().map(|(due, _)| *due));
        let work = work.filter(|_| self.work.is_some());
        arriving.chain(deadlines).chain(work).min()
    }

    /// Lets time pass.
    pub(crate) fn run(&mut self, span: Duration) {
        let end = self.now + span;
        self.drain();
        while let Some(next) = self.next_instant().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.step();
        }
        self.now = end;
    }

    /// Does everything that is due.
    fn step(&mut self) {
        let links: Vec<_> = self.queues.keys().copied().filter(|link| !self.held.contains(link)).collect();
        for (from, to) in links {
            while let Some(queue) = self.queues.get_mut(&(from, to))
                && queue.front().is_some_and(|(due, _)| *due <= self.now)
            {
                let (_, mut bytes) = queue.pop_front().expect("just seen");
                let message = Message::decode(&mut bytes).expect("our own bytes decode");
                assert!(bytes.is_empty(), "bytes left over");
                self.happen(to, Happening::Receive(from, message));
            }
        }
        for id in self.processes.keys().copied().collect::<Vec<_>>() {
            let due = self.processes.get(&id).filter(|it| !it.wedged).and_then(Process::deadline);
            if due.is_some_and(|due| due <= self.now) {
                self.happen(id, Happening::Deadline);
            }
            self.work(id);
        }
        self.drain();
    }

    fn drain(&mut self) {
        if std::mem::take(&mut self.relink_due) {
            self.relink();
        }
        while let Some(id) = self.processes.iter().find(|(_, it)| it.undrained).map(|(id, _)| *id) {
            self.happen(id, Happening::Drained);
            if let Some(process) = self.processes.get_mut(&id) {
                process.undrained = false;
            }
        }
        self.bury();
    }

    /// Who was told that it is out stops.
    fn bury(&mut self) {
        let out: Vec<_> = self.processes.iter().filter(|(_, it)| it.wedged).map(|(id, _)| *id).collect();
        for id in out {
            self.crash(id);
            if self.rebirth {
                self.start(reborn(id));
            }
        }
    }

    /// Runs the engine's batch if it is due.
    fn work(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        if self.work.is_none() || process.tasks.as_ref().is_none_or(|(due, _)| *due > self.now) {
            return;
        }
        let (_, tasks) = process.tasks.take().expect("just seen");
        let Role::Storage(_, engine) = &mut process.role else { panic!("only storage works") };
        let results: Vec<_> = tasks.iter().map(|task| engine.run(task)).collect();
        for task in &tasks {
            let what = match &task.kind {
                TaskKind::Write { ranges, operation, held } => {
                    let how = if *held { "holds" } else { "writes" };
                    format!("{how} {} in {}", String::from_utf8_lossy(operation), range_names(ranges))
                }
                TaskKind::Settle { publish: true } => "publishes".to_owned(),
                TaskKind::Settle { publish: false } => "voids".to_owned(),
                TaskKind::Read { ranges, .. } => format!("reads {}", range_names(ranges)),
                TaskKind::Page { ranges, .. } => format!("reads on in {}", range_names(ranges)),
                TaskKind::CreateTable { table, .. } => format!("creates table {table}"),
                TaskKind::DropTable { table } => format!("drops table {table}"),
                TaskKind::Pin => "pins".to_owned(),
                TaskKind::Finish | TaskKind::Release => "releases".to_owned(),
                TaskKind::Export { ranges, cursor } => {
                    let from = cursor.as_ref().map_or(0, |cursor| decode::<usize>(cursor));
                    format!("exports {} from {from}", range_names(ranges))
                }
                TaskKind::Import { rows } => format!("imports {} rows", decode::<Vec<Row>>(rows).len()),
                TaskKind::Forget { ranges } => format!("forgets {}", range_names(ranges)),
            };
            self.say(&format!("{} @{} {what}", name(id), task.at));
        }
        self.command_storage(id, StorageCommand::Executed(results));
    }

    // --- Inputs and outputs ------------------------------------------------------------------------------------------

    /// Hands something to a process and takes care of everything that comes of it.
    pub(crate) fn happen(&mut self, id: ProcessId, happening: Happening) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        if !matches!(happening, Happening::Drained) {
            process.undrained = true;
        }
        match &process.role {
            Role::Router(_) => {
                let input = happening.input::<Router<Rubberband>>(|message| match message {
                    Message::Order(message) => message,
                    Message::Direct(message) => panic!("a router is sent {message:?}"),
                });
                self.input_router(id, input);
            }
            Role::Super(_) => self.input_super(id, happening.input::<Super>(|message| message)),
            Role::Storage(..) => self.input_storage(id, happening.input::<Storage>(|message| message)),
            Role::Client(_) => self.input_client(id, happening.input::<Client>(|message| message)),
        }
    }

    fn input_router(&mut self, id: ProcessId, input: Input<Router<Rubberband>>) {
        let events = self.call(id, input, Message::Order, |role| match role {
            Role::Router(router) => router,
            _ => panic!("{} is no router", name(id)),
        });
        self.compare(id);
        for event in events {
            match event {
                RouterEvent::Leader(Some(leader)) if leader == id => {
                    self.count("leader");
                    self.say(&format!("{} leads", name(id)));
                }
                RouterEvent::Reformed(reformed) => {
                    let fenced: Vec<_> = reformed.fenced.iter().map(|process| name(*process)).collect();
                    self.say(&format!(
                        "{} begins generation {} behind @{}, through @{}: recovered {}, missing {}, without [{}]",
                        name(id),
                        reformed.generation,
                        reformed.behind,
                        reformed.through,
                        reformed.recovered,
                        reformed.missing,
                        fenced.join(" ")
                    ));
                }
                RouterEvent::ReformRefused(refusal) => {
                    self.say(&format!("{} does not go on alone: {refusal:?}", name(id)));
                }
                RouterEvent::Removed => self.processes.get_mut(&id).expect("it lives").wedged = true,
                RouterEvent::Corrupt(why) => panic!("{}: {why}", name(id)),
                _ => {}
            }
        }
    }

    /// An operator has a router begin the next generation.
    pub(crate) fn reform(&mut self, id: ProcessId) {
        let process = self.processes.get_mut(&id).expect("it lives");
        process.undrained = true;
        let generation = Generation(process.generation.0 + 1);
        let patience = Duration::from_secs(1);
        self.input_router(id, Input::Command(RouterCommand::Reform { generation, patience }));
    }

    fn input_super(&mut self, id: ProcessId, input: Input<Super>) {
        let events = self.call(
            id,
            input,
            |message| message,
            |role| match role {
                Role::Super(it) => it,
                _ => panic!("{} is no super", name(id)),
            },
        );
        for event in events {
            match event {
                SuperEvent::Suspected(whom) => self.say(&format!("{} suspects {}", name(id), name(whom))),
                SuperEvent::Replacing { old, new } => {
                    self.count("replace");
                    self.say(&format!("{} has {} take the place of {}", name(id), name(new), name(old)));
                }
                SuperEvent::Wedged => self.wedge(id),
                SuperEvent::Config(_) => {}
            }
        }
    }

    pub(crate) fn command_super(&mut self, id: ProcessId, command: SuperCommand) {
        self.processes.get_mut(&id).expect("it lives").undrained = true;
        self.input_super(id, Input::Command(command));
    }

    fn command_storage(&mut self, id: ProcessId, command: StorageCommand) {
        self.processes.get_mut(&id).expect("it lives").undrained = true;
        self.input_storage(id, Input::Command(command));
    }

    fn input_storage(&mut self, id: ProcessId, input: Input<Storage>) {
        let events = self.call(
            id,
            input,
            |message| message,
            |role| match role {
                Role::Storage(it, _) => it,
                _ => panic!("{} is no storage process", name(id)),
            },
        );
        for event in events {
            match event {
                StorageEvent::Execute(tasks) => {
                    let span = self.work.unwrap_or_default().as_micros() as u64;
                    let span = if span == 0 { 0 } else { self.random() % span };
                    let due = self.now + Duration::from_micros(span);
                    let before = self.processes.get_mut(&id).expect("it lives").tasks.replace((due, tasks));
                    assert!(before.is_none(), "{} is given a batch while at another", name(id));
                }
                StorageEvent::Withdraw { task } => {
                    let (_, tasks) = self.processes[&id].tasks.as_ref().expect("a batch is at the engine");
                    let at = tasks[task].at;
                    self.say(&format!("{} @{at} is waited for no more", name(id)));
                }
                StorageEvent::Wedged => self.wedge(id),
            }
        }
    }

    fn wedge(&mut self, id: ProcessId) {
        self.count("wedged");
        self.say(&format!("{} is wedged", name(id)));
        self.processes.get_mut(&id).expect("it lives").wedged = true;
    }

    pub(crate) fn command_client(&mut self, id: ProcessId, command: ClientCommand) {
        if let Some(process) = self.processes.get_mut(&id) {
            process.undrained = true;
            self.input_client(id, Input::Command(command));
        }
    }

    pub(crate) fn write(
        &mut self,
        id: ProcessId,
        token: u64,
        again: Option<RequestId>,
        ranges: &[Range],
        op: &str,
    ) {
        self.told.insert((id, token), Told::default());
        let write = ClientCommand::Write {
            token,
            request: again,
            table: DataHeader::NO_TABLE,
            ranges: ranges.into(),
            fallible: op.starts_with('!'),
            operation: Bytes::copy_from_slice(op.as_bytes()),
        };
        self.command_client(id, write);
    }

    fn input_client(&mut self, id: ProcessId, input: Input<Client>) {
        let events = self.call(
            id,
            input,
            |message| message,
            |role| match role {
                Role::Client(it) => it,
                _ => panic!("{} is no client", name(id)),
            },
        );
        for event in events {
            match event {
                ClientEvent::Part { token, from, content, .. } => {
                    let told = self.told.get_mut(&(id, token)).expect("it was asked");
                    assert!(told.end.is_none(), "a part behind the end of {token}");
                    told.parts.push(content.clone());
                    if content.len() < 8 && content.is_ascii() && !content.is_empty() && content[0] >= b' ' {
                        let content = String::from_utf8_lossy(&content);
                        self.say(&format!("{} {token} from {}: {content}", name(id), name(from)));
                    }
                }
                ClientEvent::Restart { token } => {
                    self.count("restart");
                    self.told.get_mut(&(id, token)).expect("it was asked").parts.clear();
                }
                ClientEvent::Underway { token } => {
                    self.say(&format!("{} {token} is under way", name(id)));
                }
                ClientEvent::Gathered { .. } | ClientEvent::Ordered { .. } => {}
                ClientEvent::Done { token, at } => {
                    self.count("done");
                    self.end(id, token, Ok(at));
                    self.say(&format!("{} {token} is done @{at}", name(id)));
                }
                ClientEvent::Failed { token, error } => {
                    self.count(match error {
                        ClientError::NotSent => "not sent",
                        ClientError::MaybeApplied { .. } => "maybe applied",
                        ClientError::Rejected(_) => "rejected",
                        ClientError::Expired => "expired",
                    });
                    self.end(id, token, Err(error));
                    let error = match error {
                        ClientError::MaybeApplied { request } => format!("MaybeApplied {}", request.number),
                        other => format!("{other:?}"),
                    };
                    self.say(&format!("{} {token} failed: {error}", name(id)));
                }
                ClientEvent::Config(_) => {}
                ClientEvent::Wedged => self.wedge(id),
            }
        }
    }

    fn end(&mut self, id: ProcessId, token: u64, end: Result<Position, ClientError>) {
        let told = self.told.get_mut(&(id, token)).expect("it was asked");
        assert!(told.end.is_none(), "{} {token} ends twice: {:?} and {end:?}", name(id), told.end);
        told.end = Some(end);
    }

    fn call<P: Protocol>(
        &mut self,
        id: ProcessId,
        input: Input<P>,
        wrap: impl Fn(P::Message) -> Message,
        pick: impl Fn(&mut Role) -> &mut P,
    ) -> Vec<P::Event> {
        let process = self.processes.get_mut(&id).expect("it lives");
        let protocol = pick(&mut process.role);
        let mut out = Outputs::<P>::default();
        let mut state = self.random;
        let mut chance = || random(&mut state);
        let mut cx = Context { now: self.now, me: id, random: &mut chance };
        protocol.handle(&mut cx, input, &mut out);
        // In memory mode a record is on disk before the next input.
        while std::mem::take(&mut out.persisted) {
            protocol.handle(&mut cx, Input::Persisted(Ticket(1)), &mut out);
        }
        self.random = state;
        for peer in out.forgotten {
            process.wanted.remove(&peer);
        }
        if let Some(generation) = out.entered {
            assert!(generation > process.generation, "{} goes back to an earlier generation", name(id));
            process.generation = generation;
            for other in self.links().into_iter().filter_map(|(a, b)| match id {
                _ if a == id => Some(b),
                _ if b == id => Some(a),
                _ => None,
            }) {
                if self.is_outdated(other, id) {
                    self.unlink(id, other);
                }
            }
        }
        let process = self.processes.get_mut(&id).expect("it lives");
        self.relink_due |= !out.reached.is_empty();
        process.wanted.extend(out.reached);
        for (to, message) in out.sent {
            self.post(id, to, &wrap(message));
        }
        out.events
    }

    // --- Checks ------------------------------------------------------------------------------------------------------

    /// Compares what a router has learned with what is known to be ordered.
    fn compare(&mut self, id: ProcessId) {
        let process = self.processes.get_mut(&id).expect("it lives");
        let Role::Router(router) = &process.role else { return };
        if process.generation > self.generation {
            let Some(reformed) = router.status().reformed else { return };
            // What nobody who answered had is no part of the history any more.
            self.generation = process.generation;
            self.ghost.retain(|at, _| *at <= reformed.through);
        }
        if process.generation < self.generation {
            return;
        }
        for (at, ordered) in router.live_after(process.compared) {
            if ordered.is_hole() {
                self.ghost.remove(&at);
                continue;
            }
            let known = self.ghost.entry(at).or_insert_with(|| (ordered.id, ordered.body.clone()));
            assert_eq!(known.0, ordered.id, "{} has another message at {at}", name(id));
            assert!(ordered.is_stable() || known.1 == ordered.body, "{} has other bytes at {at}", name(id));
        }
        process.compared = router.position();
    }

    /// Every sender's messages were ordered as they were submitted, each once, without gaps.
    pub(crate) fn check_senders(&self) {
        let mut next: BTreeMap<ProcessId, u64> = BTreeMap::new();
        if self.generation > Generation(0) {
            // Positions and numbers may have holes; what is there is in order.
            for (id, _) in self.ghost.values() {
                let before = next.insert(id.sender, id.number);
                assert!(before.is_none_or(|before| before < id.number), "{} out of order", name(id.sender));
            }
            return;
        }
        for (expected, (at, (id, _))) in (1..).zip(&self.ghost) {
            assert_eq!(at.0, expected, "positions run without gaps");
            let number = next.entry(id.sender).or_insert(1);
            assert_eq!(id.number, *number, "{} at {at}", name(id.sender));
            *number += 1;
        }
    }

    /// The newest configuration that anybody has.
    pub(crate) fn config(&self) -> Option<&Config> {
        self.processes.values().filter_map(Process::config).max_by_key(|config| config.version)
    }

    /// Per segment what its complete replicas hold, which is the same.
    pub(crate) fn check_replicas(&self) -> Vec<Row> {
        let config = self.config().expect("somebody has a configuration");
        let mut all = Vec::new();
        for segment in config.segments() {
            let mut first: Option<(ProcessId, Vec<&Row>)> = None;
            for id in config.complete(segment) {
                let Some(Process { role: Role::Storage(_, engine), .. }) = self.processes.get(&id) else {
                    panic!("{} is active and not there", name(id));
                };
                let rows = engine.rows.iter();
                let rows = rows.filter(|row| row.range.intersect(segment.range) == Some(row.range));
                let rows: Vec<&Row> = rows.collect();
                assert!(rows.is_sorted_by_key(|row| row.at), "{} executed out of order", name(id));
                match &first {
                    None => first = Some((id, rows)),
                    Some((other, theirs)) => {
                        assert_eq!(*theirs, rows, "{} and {} differ in {segment:?}", name(*other), name(id));
                    }
                }
            }
            let (_, rows) = first.unwrap_or_else(|| panic!("nobody has {segment:?}"));
            all.extend(rows.into_iter().cloned());
        }
        let mut seen = BTreeSet::new();
        for row in &all {
            assert!(seen.insert((row.range, &row.operation)), "{row:?} took effect twice");
        }
        all
    }
}
