//! Routers, supers, storage processes and clients, the links between them and a clock. Deterministic; every message goes
//! through its bytes.
//!
//! The ghost order fixes what a position holds at its first learning anywhere; a router that learned it otherwise fails
//! the test.

mod calls;
mod checks;
mod links;
mod outputs;
mod process;
mod time;

use std::{collections::BTreeMap, fmt::Write as _};

use bytes::Bytes;
use quorate_protocol::{
    Duration, Generation, ProcessId, Ticket, Time,
    ecast::{Fence, MessageId, Position, Router, RouterSettings},
    paxos::Paxos,
    rubberband::{
        Client, ClientError, ClientSettings, Config, Remains, Storage, StorageSettings, Super, SuperSettings,
    },
};

use self::links::Links;
pub(crate) use self::{
    outputs::Outputs,
    process::{Happening, Process, Role},
};
use super::{
    engine::Engine,
    names::{name, peer},
};
use crate::world::Chance;

/// What a user was told of one of its requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) parts: Vec<Bytes>,
    pub(crate) end: Option<Result<Position, ClientError>>,
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) processes: BTreeMap<ProcessId, Process>,
    /// What positions hold.
    pub(crate) ghost: BTreeMap<Position, (MessageId, Bytes)>,
    /// The latest generation that began.
    generation: Generation,
    /// A router has founded the domain: whichever comes later joins.
    founded: bool,
    /// By client and token.
    pub(crate) told: BTreeMap<(ProcessId, u64), Told>,
    /// What is on the way, and when it arrives.
    pub(crate) links: Links<(Time, Bytes)>,
    /// How long a message takes at least, and how much longer it may take.
    pub(crate) latency: (Duration, Duration),
    /// How long the engine takes for a batch at most; `None`: it has stopped.
    pub(crate) work: Option<Duration>,
    /// Whether a process that was wedged or removed starts again as a new one.
    pub(crate) rebirth: bool,
    /// Replicas per range.
    pub(crate) replicas: u8,
    pub(crate) retention: Duration,
    /// How many data messages of one client may be under way.
    pub(crate) credit: u64,
    pub(crate) made_up_max: usize,
    relink_due: bool,
    chance: Chance,
    pub(crate) trace: String,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

impl World {
    pub(crate) fn new(seed: u64) -> World {
        World {
            now: Time::ZERO,
            processes: BTreeMap::new(),
            ghost: BTreeMap::new(),
            generation: Generation::FIRST,
            founded: false,
            told: BTreeMap::new(),
            links: Links::default(),
            latency: (Duration::from_micros(100), Duration::ZERO),
            work: Some(Duration::ZERO),
            rebirth: false,
            replicas: 2,
            retention: Duration::from_secs(600),
            credit: RouterSettings::default().credit,
            made_up_max: ClientSettings::default().made_up_max,
            relink_due: false,
            chance: Chance(seed),
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

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

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
                let settings =
                    RouterSettings { generation, credit: self.credit, ..RouterSettings::default() };
                let seeds = routers.iter().map(|router| peer(*router)).collect();
                let paxos = match !std::mem::replace(&mut self.founded, true) {
                    true => Paxos::found(me, settings.paxos.clone(), self.now),
                    false => Paxos::join(me, seeds, settings.paxos.clone(), self.now),
                };
                Role::Router(Router::new(paxos, Config::new(self.replicas), settings))
            }
            2 => {
                let retention = self.retention;
                let settings = SuperSettings { retention, ..SuperSettings::default() };
                Role::Super(Super::new(me, name, settings))
            }
            3 => {
                let settings = StorageSettings {
                    remembered_bytes_max: REMEMBERED_BYTES_MAX,
                    section_bytes_max: SECTION_BYTES_MAX,
                    reply_window: REPLY_WINDOW,
                    held_bytes_max: HELD_BYTES_MAX,
                    held_max: HELD_MAX,
                    ..StorageSettings::default()
                };
                Role::Storage(Storage::new(me, name, settings), Engine::default())
            }
            _ => {
                let (retention, made_up_max) = (self.retention, self.made_up_max);
                let settings = ClientSettings { retention, made_up_max, ..ClientSettings::default() };
                Role::Client(Client::new(me, name, settings))
            }
        };
        self.begin(id, role);
    }

    fn begin(&mut self, id: ProcessId, role: Role) {
        let routers = self.routers();
        let generation = match &role {
            Role::Router(router) => router.status().generation,
            _ => Generation::FIRST,
        };
        let process = Process {
            role,
            generation,
            wanted: routers.into_iter().collect(),
            undrained: true,
            tasks: None,
            wedged: false,
            remains: None,
            paused: false,
            compared: Position(0),
            ticket: Ticket(0),
        };
        self.processes.insert(id, process);
        self.relink_due = true;
    }

    /// A storage process that was out comes back with its rows.
    fn again(&mut self, id: ProcessId, remains: Box<Remains>, engine: Engine) {
        let storage = Storage::again(peer(id), name(id), remains);
        self.begin(id, Role::Storage(storage, engine));
    }

    pub(crate) fn crash(&mut self, id: ProcessId) -> Option<Process> {
        let process = self.processes.remove(&id);
        for other in self.links.of(id) {
            self.unlink(id, other);
        }
        process
    }

    pub(crate) fn cut(&mut self, a: ProcessId, b: ProcessId) {
        self.links.cut(a, b);
        self.unlink(a, b);
    }

    pub(crate) fn heal(&mut self) {
        self.links.mend();
        self.relink();
    }

    /// Breaks a link; what was on the way is lost.
    pub(crate) fn unlink(&mut self, a: ProcessId, b: ProcessId) {
        if self.links.unmake(a, b) {
            self.happen(a, Happening::Unlinked(b));
            self.happen(b, Happening::Unlinked(a));
        }
    }

    /// Makes the links that are wanted and possible.
    pub(crate) fn relink(&mut self) {
        let mut wanted = Vec::new();
        for (id, process) in &self.processes {
            wanted.extend(process.wanted.iter().map(|peer| (*id.min(peer), *id.max(peer))));
        }
        for (a, b) in wanted {
            let possible = self.processes.contains_key(&a) && self.processes.contains_key(&b);
            let outdated =
                [(a, b), (b, a)].into_iter().find(|(one, other)| possible && self.is_outdated(*one, *other));
            if let Some((outdated, _)) = outdated.filter(|_| !self.links.is_cut(a, b)) {
                self.say(&format!("{} is of an earlier generation", name(outdated)));
                self.processes.get_mut(&outdated).expect("just seen").wedged = true;
                continue;
            }
            if possible && let Some(session) = self.links.make(a, b) {
                self.happen(a, Happening::Linked(b, session));
                self.happen(b, Happening::Linked(a, session));
            }
        }
    }

    /// Whether `one` is the reason why the two may not be linked.
    fn is_outdated(&self, one: ProcessId, other: ProcessId) -> bool {
        let fence = |id: ProcessId| {
            let process = &self.processes[&id];
            Fence { router: matches!(process.role, Role::Router(_)), generation: process.generation }
        };
        !fence(one).may_link(fence(other)) && fence(one).generation < fence(other).generation
    }
}

/// Limits, scaled down: what ranges keep of answers, what of it travels at once, and what a message may have.
const REMEMBERED_BYTES_MAX: usize = 400 << 10;
const SECTION_BYTES_MAX: usize = 64 << 10;
/// What of an answer goes at once, what is held of all that are not taken, and for how long.
const REPLY_WINDOW: u64 = 40_000;
const HELD_BYTES_MAX: u64 = 300_000;
const HELD_MAX: Duration = Duration::from_secs(4);
pub(super) const MESSAGE_BYTES_MAX: usize = 200 << 10;
