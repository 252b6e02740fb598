//! The users of a cluster's processes: what they have heard, and the known order.
//!
//! The ghost order records the content of a position when any router first learns it. A router that learned
//! anything else fails the test.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use bytes::Bytes;
use quorate_protocol::{
    Duration, Generation, ProcessId, Protocol, Time,
    ecast::{Fence, MessageId, Position, RefoundRefusal, Router, RouterEvent, RouterRefusal, RouterSettings},
    paxos::Paxos,
    rubberband::{
        Client, ClientError, ClientEvent, ClientSettings, Config, Handover, LeaveRefusal, ProcessAnswer,
        Rubberband, Storage, StorageEvent, StorageSettings, Super, SuperEvent, SuperSettings,
    },
};
use quorate_world::{Environment, Violation};

use super::{
    engine::Engine,
    names::{name, peer, reborn},
    process::{Asked, News, Role, Store},
};
use crate::world::{Trace, Traced};

pub(crate) type Virtual = quorate_world::World<Role>;

/// The answers that a user got to one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestResult {
    pub(crate) parts: Vec<Bytes>,
    pub(crate) end: Option<Result<Position, ClientError>>,
}

/// A process from the point of view of its host.
#[derive(Default)]
pub(crate) struct Node {
    pub(crate) generation: Generation,
    /// The position up to which a router's history was compared with the ghost order.
    compared: Position,
    /// Number of times that a client has repeated reads.
    retries: u64,
}

pub(crate) struct Users {
    /// The answers by client and token.
    pub(crate) results: BTreeMap<(ProcessId, u64), RequestResult>,
    pub(crate) nodes: BTreeMap<ProcessId, Node>,
    /// The content of each position.
    pub(crate) ghost: BTreeMap<Position, (MessageId, Bytes)>,
    /// The latest generation that began.
    pub(crate) generation: Generation,
    /// Whether a router has founded the domain, so that later routers join.
    founded: bool,
    /// Processes that have heard that they are out, and that stop.
    out: BTreeSet<ProcessId>,
    /// Rows that removed storage processes left to their next lives.
    keepers: BTreeMap<ProcessId, (Box<Handover>, Engine)>,
    /// Longest time that engines take for a batch. `None` if they stand still.
    pub(crate) work: Rc<Cell<Option<Duration>>>,
    /// Whether a wedged or removed process starts again as a new process.
    pub(crate) rebirth: bool,
    /// Number of replicas of each range.
    pub(crate) replicas: u8,
    pub(crate) retention: Duration,
    /// Number of data messages of one client that may be under way.
    pub(crate) credit: u64,
    pub(crate) made_up_max: usize,
    pub(crate) trace: Trace,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

/// Returns the living routers.
pub(crate) fn routers(world: &Virtual) -> Vec<ProcessId> {
    let mut routers = world.everybody();
    routers.retain(|id| world.process_of(*id).is_some_and(|role| role.router().is_some()));
    routers
}

impl Environment<Role> for Users {
    fn start(&mut self, world: &mut Virtual, _: usize, id: ProcessId) -> Role {
        let (me, name) = (peer(id), name(id));
        let role = match id.node / 100 {
            1 => {
                let routers = routers(world);
                let generation = routers.iter().map(|router| self.nodes[router].generation).max();
                let generation = generation.unwrap_or_default();
                let settings =
                    RouterSettings { generation, credit: self.credit, ..RouterSettings::default() };
                let seeds = routers.iter().map(|router| peer(*router)).collect();
                let paxos = match !std::mem::replace(&mut self.founded, true) {
                    true => Paxos::found(me, settings.paxos.clone(), world.now()),
                    false => Paxos::join(me, seeds, settings.paxos.clone(), world.now()),
                };
                Role::Router(Box::new(Router::new(paxos, Config::new(self.replicas), settings)))
            }
            2 => {
                let settings = SuperSettings { retention: self.retention, ..SuperSettings::default() };
                Role::Super(Box::new(Super::new(me, name, settings)))
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
                let (storage, engine) = match self.keepers.remove(&id) {
                    Some((remains, engine)) => (Storage::again(me, name, remains), engine),
                    None => (Storage::new(me, name, settings), Engine::default()),
                };
                Role::Storage(Box::new(Store::new(storage, engine, self.work.clone())))
            }
            _ => {
                let (retention, made_up_max) = (self.retention, self.made_up_max);
                let settings = ClientSettings { retention, made_up_max, ..ClientSettings::default() };
                Role::Client(Box::new(Client::new(me, name, settings)))
            }
        };
        let generation = shown_by(&role.policy().pass());
        self.nodes.insert(id, Node { generation, ..Node::default() });
        role
    }

    fn event(&mut self, world: &mut Virtual, machine: usize, news: News) -> Result<(), Violation> {
        // Nobody listens to the events that a process emitted after its end.
        let Some(id) = world.id(machine) else { return Ok(()) };
        let now = world.now();
        match news {
            News::Router(event) => self.router(now, id, event),
            News::Super(event) => self.superior(now, id, event),
            News::Storage(StorageEvent::Out(remains)) => {
                self.count("keeps");
                let through = remains.keeps().through;
                self.say(now, id, &format!("is out, and keeps its rows through @{through}"));
                let engine = world.process(machine).and_then(Role::store).map(|store| store.engine.clone());
                self.keepers.insert(reborn(id), (remains, engine.expect("it has an engine")));
                self.out.insert(id);
            }
            News::Storage(event) => self.storage(now, id, event),
            News::Client(event) => self.client(now, id, event),
            News::Engine(line) => self.say(now, id, &line),
            News::Died => {
                self.say(now, id, "dies of a read");
                return world.end(self, id);
            }
        }
        Ok(())
    }

    fn adopted(&mut self, world: &mut Virtual, machine: usize) -> Result<(), Violation> {
        if let (Some(id), Some(pass)) = (world.id(machine), world.pass(machine)) {
            let node = self.nodes.get_mut(&id).expect("it began");
            let before = std::mem::replace(&mut node.generation, shown_by(&pass));
            assert!(node.generation > before, "{} goes back to an earlier generation", name(id));
        }
        Ok(())
    }

    /// Handles a link that the fence forbids, between processes of two generations. The process of the
    /// earlier generation is out of the domain.
    fn policy_mismatch(&mut self, world: &mut Virtual, machine: usize, theirs: &[u8]) {
        let id = world.id(machine).expect("it lives");
        if self.nodes[&id].generation < shown_by(theirs) {
            self.say(world.now(), id, "is of an earlier generation");
            self.out.insert(id);
        }
    }

    fn stepped(&mut self, world: &mut Virtual, machine: usize) -> Result<(), Violation> {
        let Some(id) = world.id(machine) else { return Ok(()) };
        match world.process(machine) {
            Some(Role::Router(router)) => self.compare(id, router),
            Some(Role::Client(client)) => {
                let node = self.nodes.get_mut(&id).expect("it began");
                let before = std::mem::replace(&mut node.retries, client.retries());
                for _ in before..client.retries() {
                    self.count("restart");
                }
            }
            _ => {}
        }
        if !self.out.remove(&id) {
            return Ok(());
        }
        world.end(self, id)?;
        match self.rebirth || self.keepers.contains_key(&reborn(id)) {
            true => self.begin(world, reborn(id)),
            false => Ok(()),
        }
    }
}

impl Traced for Users {
    fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }
}

impl Users {
    pub(crate) fn new() -> Users {
        Users {
            results: BTreeMap::new(),
            nodes: BTreeMap::new(),
            ghost: BTreeMap::new(),
            generation: Generation::FIRST,
            founded: false,
            out: BTreeSet::new(),
            keepers: BTreeMap::new(),
            work: Rc::new(Cell::new(Some(Duration::ZERO))),
            rebirth: false,
            replicas: 2,
            retention: Duration::from_secs(600),
            credit: RouterSettings::default().credit,
            made_up_max: ClientSettings::default().made_up_max,
            trace: Trace::default(),
            counts: BTreeMap::new(),
        }
    }

    /// Starts a process, and names the routers to it.
    pub(crate) fn begin(&mut self, world: &mut Virtual, id: ProcessId) -> Result<(), Violation> {
        let routers = routers(world).into_iter().map(peer).collect();
        world.begin(self, id, &peer(id).address)?;
        world.ask(self, id, Asked::Reach(routers))
    }

    fn say(&mut self, now: Time, id: ProcessId, line: &str) {
        self.trace.say(now, &format!("{} {line}", name(id)));
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn router(&mut self, now: Time, id: ProcessId, event: RouterEvent<Config>) {
        match event {
            RouterEvent::Leader(Some(leader)) if leader == id => {
                self.count("leader");
                self.say(now, id, "leads");
            }
            RouterEvent::Reformed(reformed) => {
                if reformed.from_members.is_some() {
                    self.count("generation from members");
                }
                if !reformed.fenced.is_empty() {
                    self.count("cut off from a generation");
                }
                let fenced: Vec<_> = reformed.fenced.iter().map(|process| name(*process)).collect();
                let line = format!(
                    "begins generation {} behind @{}, through @{}: recovered {}, missing {}, without [{}]",
                    reformed.generation,
                    reformed.behind,
                    reformed.through,
                    reformed.recovered,
                    reformed.missing,
                    fenced.join(" ")
                );
                self.say(now, id, &line);
            }
            RouterEvent::Ended { result: Err(RouterRefusal::Reform(refusal)), .. } => {
                self.say(now, id, &format!("does not go on alone: {refusal:?}"));
            }
            RouterEvent::Ended { result: Err(RouterRefusal::Refound(refusal)), .. } => {
                let why = match refusal {
                    RefoundRefusal::FollowsAnother(other) => format!("members follow {}", name(other)),
                    RefoundRefusal::LeaderLives(leader) => format!("{} leads", name(leader)),
                    other => format!("{other:?}"),
                };
                self.say(now, id, &format!("does not go on from members: {why}"));
            }
            RouterEvent::Removed => {
                self.out.insert(id);
            }
            RouterEvent::Corrupt(why) => panic!("{}: {why}", name(id)),
            _ => {}
        }
    }

    fn superior(&mut self, now: Time, id: ProcessId, event: SuperEvent) {
        match event {
            SuperEvent::Suspected(whom) => self.say(now, id, &format!("suspects {}", name(whom))),
            SuperEvent::Replacing { old, new } => {
                self.count("replace");
                self.say(now, id, &format!("has {} take the place of {}", name(new), name(old)));
            }
            SuperEvent::Removing { process, witnesses } => {
                let witnesses: Vec<_> = witnesses.into_iter().map(name).collect();
                self.say(now, id, &format!("removes {}, as {} agree", name(process), witnesses.join(" ")));
            }
            SuperEvent::Wedged => self.wedge(now, id),
            SuperEvent::Config(_) | SuperEvent::Ended { .. } => {}
        }
    }

    fn storage(&mut self, now: Time, id: ProcessId, event: StorageEvent) {
        match event {
            StorageEvent::Left { result, .. } => self.left(now, id, result),
            StorageEvent::Wedged => self.wedge(now, id),
            StorageEvent::Paused { .. } => unreachable!("nobody has a disk here"),
            StorageEvent::Execute(_) | StorageEvent::Withdraw { .. } | StorageEvent::Out(_) => {
                unreachable!("these were taken before")
            }
        }
    }

    fn client(&mut self, now: Time, id: ProcessId, event: ClientEvent) {
        match event {
            ClientEvent::Begun { token, parts } => self.receive_parts(now, id, token, parts),
            ClientEvent::Part { token, from, content, .. } => {
                self.receive_piece(now, id, token, from, content)
            }
            ClientEvent::Done { token, at, parts } => {
                self.receive_parts(now, id, token, parts);
                self.count("done");
                self.end(id, token, Ok(at));
                self.say(now, id, &format!("{token} is done @{at}"));
            }
            ClientEvent::Failed { token, error } => {
                self.count(match error {
                    ClientError::NotSent => "not sent",
                    ClientError::MaybeApplied { .. } => "maybe applied",
                    ClientError::Rejected(_) => "rejected",
                    ClientError::Expired => "expired",
                    ClientError::OtherStatement => "other statement",
                    ClientError::Forgotten { .. } => "forgotten",
                    ClientError::Unanswered => "unanswered",
                    ClientError::Broken => "broken off",
                    ClientError::Unreached { .. } => "unreached",
                    ClientError::Died { .. } => "died",
                    ClientError::NoRoom { .. } => "no room",
                    ClientError::Untaken { .. } => "untaken",
                });
                self.end(id, token, Err(error));
                let error = match error {
                    ClientError::MaybeApplied { request } => format!("MaybeApplied {}", request.number),
                    ClientError::Unreached { process } => format!("Unreached {}", name(process)),
                    ClientError::NoRoom { process } => format!("NoRoom at {}", name(process)),
                    ClientError::Untaken { process } => format!("Untaken, says {}", name(process)),
                    ClientError::Died { process, again } => {
                        let which = if again { "the second" } else { "and no other may" };
                        format!("Died {}, {which}", name(process))
                    }
                    other => format!("{other:?}"),
                };
                self.say(now, id, &format!("{token} failed: {error}"));
            }
            ClientEvent::Config(_) => {}
            ClientEvent::Unreached { process, .. } => {
                self.say(now, id, &format!("cannot reach {}", name(process)));
            }
            ClientEvent::Adrift(true) => self.say(now, id, "is adrift"),
            ClientEvent::Adrift(false) => self.say(now, id, "hears of a leader"),
            ClientEvent::Left { result, .. } => self.left(now, id, result),
            ClientEvent::Wedged => self.wedge(now, id),
        }
    }

    fn left(&mut self, now: Time, id: ProcessId, result: Result<(), LeaveRefusal>) {
        match result {
            Ok(()) => self.say(now, id, "has left"),
            Err(why) => self.say(now, id, &format!("does not leave: {why}")),
        }
    }

    fn wedge(&mut self, now: Time, id: ProcessId) {
        self.count("wedged");
        self.say(now, id, "is wedged");
        self.out.insert(id);
    }

    fn receive_parts(&mut self, now: Time, id: ProcessId, token: u64, parts: Vec<ProcessAnswer>) {
        for ProcessAnswer { from, pieces, .. } in parts {
            for content in pieces {
                self.receive_piece(now, id, token, from, content);
            }
        }
    }

    fn receive_piece(&mut self, now: Time, id: ProcessId, token: u64, from: ProcessId, content: Bytes) {
        let result = self.results.get_mut(&(id, token)).expect("it was asked");
        assert!(result.end.is_none(), "a part behind the end of {token}");
        result.parts.push(content.clone());
        if content.len() < 8 && content.is_ascii() && !content.is_empty() && content[0] >= b' ' {
            let content = String::from_utf8_lossy(&content);
            self.say(now, id, &format!("{token} from {}: {content}", name(from)));
        }
    }

    fn end(&mut self, id: ProcessId, token: u64, end: Result<Position, ClientError>) {
        let result = self.results.get_mut(&(id, token)).expect("it was asked");
        assert!(result.end.is_none(), "{} {token} ends twice: {:?} and {end:?}", name(id), result.end);
        result.end = Some(end);
    }

    /// Compares the log of a router with the ghost order.
    fn compare(&mut self, id: ProcessId, router: &Router<Rubberband>) {
        if router.generation() > self.generation {
            let Some(reformed) = router.status().reformed else { return };
            // Messages that no answering process had are no longer a part of the history.
            self.generation = router.generation();
            self.ghost.retain(|at, _| *at <= reformed.through);
        }
        if router.generation() < self.generation {
            return;
        }
        let node = self.nodes.get_mut(&id).expect("it began");
        for (at, ordered) in router.live_after(node.compared) {
            if ordered.is_hole() {
                self.ghost.remove(&at);
                continue;
            }
            let known = self.ghost.entry(at).or_insert_with(|| (ordered.id, ordered.body.clone()));
            assert_eq!(known.0, ordered.id, "{} has another message at {at}", name(id));
            assert!(ordered.is_stable() || known.1 == ordered.body, "{} has other bytes at {at}", name(id));
        }
        node.compared = router.position();
    }
}

/// Returns the generation in the pass of a process.
fn shown_by(pass: &[u8]) -> Generation {
    Fence::of_pass(pass).expect("it shows its fence").generation
}

/// Scaled-down limits: the number of bytes of answers that a range remembers, and the number of bytes that
/// are moved in one section.
const REMEMBERED_BYTES_MAX: usize = 400 << 10;
const SECTION_BYTES_MAX: usize = 64 << 10;
/// Number of bytes of an answer that a process sends at once, maximum number of bytes that it keeps of all
/// unconsumed answers, and the longest time for which it keeps these bytes.
const REPLY_WINDOW: u64 = 40_000;
const HELD_BYTES_MAX: u64 = 300_000;
const HELD_MAX: Duration = Duration::from_secs(4);
