//! A router set and its log, without anything on top.
//!
//! Each router has a user that appends numbered entries: an entry is proposed until its proposer learns it, and appended
//! iff it is the next one of its proposer (rule S3). Routers are killed and come back as new processes that ask to be
//! admitted; the log must go on, and be one.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use quorate_protocol::{
    Context, Destination, Incarnation, Input, Lift, Peer, ProcessId, Protocol, Sink, Time,
    paxos::{self, Command, Event, Paxos},
    wire::{decode_body, encode_body, put_process, take_process, take_u64},
};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use quorate_world::{Chance, DiskSettings, Environment, Nemesis, Violation, World};

use crate::{
    check::GhostLog,
    mutation::{Mutation, Tamper},
    run::{Report, Stage, two_phases},
    scenario::Scenario,
    system::routers::{RouterSet, open_changes},
};

/// How large, and how busy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How many routers there should be.
    pub routers: usize,
    /// How many more machines ask to be admitted.
    pub spares: usize,
    /// How many entries all users together append.
    pub entries: u64,
    /// An entry's payload has up to this many bytes.
    pub payload_bytes_max: u64,
    /// How much chosen log is kept; little, so that snapshots are needed.
    pub log_bytes_kept: usize,
    /// What the disks are like, if the routers have any.
    pub disk: Option<DiskSettings>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            routers: 3,
            spares: 1,
            entries: 1_500,
            payload_bytes_max: 200,
            log_bytes_kept: 16 << 10,
            disk: None,
        }
    }
}

/// A router and its user.
pub(crate) struct Replica {
    paxos: Paxos,
    /// Under which name it numbers its entries: one that is made again from its disk does not know which it proposed last.
    author: ProcessId,
    state: State,
    /// Own entries that are not learned yet, in order.
    own: VecDeque<(u64, Bytes)>,
    own_next: u64,
    queue: VecDeque<Event>,
    tamper: Option<Tamper>,
}

/// What the log adds up to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct State {
    slot: u64,
    chain: u64,
    /// How many entries of each proposer are in.
    appended: BTreeMap<ProcessId, u64>,
}

pub(crate) enum Ask {
    Append(Bytes),
    Remove(ProcessId),
    /// Routers that were found where some should be.
    Seeds(Vec<Peer>),
}

#[derive(Debug)]
pub(crate) enum Told {
    Learned { slot: u64, payloads: Vec<Bytes>, chain: u64 },
    Installed { slot: u64, chain: u64 },
    Members(Vec<Peer>),
    Leader(Option<ProcessId>),
    SnapshotMade,
    Removed,
    ChangeRefused,
}

impl Replica {
    fn new(paxos: Paxos, author: ProcessId, tamper: Option<Tamper>) -> Self {
        let state = State::default();
        Replica { paxos, author, state, own: VecDeque::new(), own_next: 0, queue: VecDeque::new(), tamper }
    }

    fn give(&mut self, cx: &mut Context<'_>, input: Input<Paxos>, out: &mut impl Sink<Replica>) {
        let Replica { paxos, queue, tamper, .. } = self;
        let mut lift = Lift::<Replica, _, _, _>::new::<Paxos>(
            out,
            |_, _, message| match tamper {
                Some(tamper) => tamper.told(message),
                None => Some(message),
            },
            |_, event| queue.push_back(event),
        );
        paxos.handle(cx, input, &mut lift);
    }

    fn settle(&mut self, cx: &mut Context<'_>, out: &mut impl Sink<Replica>) {
        while let Some(event) = self.queue.pop_front() {
            match event {
                Event::Learned { slot, payloads } => {
                    for payload in &payloads {
                        self.learned(payload);
                    }
                    self.state.slot = slot.0;
                    self.state.chain = chained(self.state.chain, slot.0, &payloads);
                    out.emit(Told::Learned { slot: slot.0, payloads, chain: self.state.chain });
                }
                Event::Leader(leader) => {
                    let once = self.tamper.as_ref().is_some_and(Tamper::proposes_once);
                    if leader.is_some() && !once {
                        for (_, payload) in self.own.clone() {
                            self.give(cx, Input::Command(Command::Propose { payload }), out);
                        }
                    }
                    out.emit(Told::Leader(leader));
                }
                Event::SnapshotWanted { slot } => {
                    assert_eq!(slot.0, self.state.slot, "a snapshot is wanted of what was not last learned");
                    let mut state = BytesMut::new();
                    encode_body(&mut state, &self.state);
                    let command = Command::Snapshot { slot, state: state.freeze() };
                    self.give(cx, Input::Command(command), out);
                    out.emit(Told::SnapshotMade);
                }
                Event::Install { slot, mut state } => {
                    self.state = decode_body(&mut state).expect("a snapshot arrives as it was made");
                    let known = self.state.appended.get(&self.author).copied().unwrap_or(0);
                    self.own.retain(|&(number, _)| number >= known);
                    out.emit(Told::Installed { slot: slot.0, chain: self.state.chain });
                }
                Event::Members(members) => out.emit(Told::Members(members)),
                Event::Removed => out.emit(Told::Removed),
                Event::ChangeRefused { .. } => out.emit(Told::ChangeRefused),
                Event::Detour(_)
                | Event::SnapshotPartWanted { .. }
                | Event::SnapshotUnwanted { .. }
                | Event::InstallPart { .. }
                | Event::Reign { .. }
                | Event::Settled { .. }
                | Event::Deposed { .. }
                | Event::Refused { .. }
                | Event::Confirmed { .. } => {}
            }
        }
    }

    fn learned(&mut self, payload: &Bytes) {
        let (proposer, number) = opened(payload);
        let next = self.state.appended.entry(proposer).or_insert(0);
        if number == *next {
            *next += 1;
            if proposer == self.author {
                let (first, _) = self.own.pop_front().expect("what we propose we keep until it is learned");
                assert_eq!(first, number, "own entries are learned in order");
            }
        }
    }
}

impl Protocol for Replica {
    type Message = paxos::Message;
    type Record = paxos::Record;
    type Command = Ask;
    type Event = Told;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut impl Sink<Self>) {
        let author = self.author;
        let input = input.map(std::convert::identity, |ask| match ask {
            Ask::Append(filler) => {
                let payload = sealed(author, self.own_next, &filler);
                self.own.push_back((self.own_next, payload.clone()));
                self.own_next += 1;
                Command::Propose { payload }
            }
            Ask::Remove(router) => Command::RemoveRouter(router),
            Ask::Seeds(seeds) => Command::Seeds(seeds),
        });
        match (input, &mut self.tamper) {
            (Input::Receive { from, message }, Some(tamper)) => {
                for (to, vote) in tamper.votes(cx.me, &self.paxos, &message) {
                    out.send(Destination::One(to), vote, None);
                }
                self.give(cx, Input::Receive { from, message }, out);
            }
            (input, _) => self.give(cx, input, out),
        }
        self.settle(cx, out);
    }

    fn deadline(&self) -> Option<Time> {
        self.paxos.deadline()
    }
}

fn sealed(proposer: ProcessId, number: u64, filler: &[u8]) -> Bytes {
    let mut payload = BytesMut::with_capacity(32 + filler.len());
    put_process(&mut payload, proposer);
    payload.put_u64_le(number);
    payload.put_slice(filler);
    payload.freeze()
}

fn opened(payload: &Bytes) -> (ProcessId, u64) {
    let mut rest = payload.clone();
    let proposer = take_process(&mut rest).expect("a payload is as it was proposed");
    (proposer, take_u64(&mut rest).expect("a payload is as it was proposed"))
}

fn chained(chain: u64, slot: u64, payloads: &[Bytes]) -> u64 {
    let chain = xxh3_64_with_seed(&slot.to_le_bytes(), chain);
    payloads.iter().fold(chain, |chain, payload| xxh3_64_with_seed(payload, chain))
}

/// The users, the nemesis and the checkers.
struct Users {
    settings: Settings,
    paxos: paxos::Settings,
    routers: RouterSet,
    ghost: GhostLog<Vec<u64>>,
    /// What the log adds up to at each position, computed from its first learning.
    chains: BTreeMap<u64, u64>,
    /// Under which name the process on each machine numbers its entries.
    authors: BTreeMap<usize, ProcessId>,
    /// Which machine founded the domain.
    founder: Option<usize>,
    /// Entries asked for, by their author.
    asked: BTreeMap<ProcessId, u64>,
    /// First appearances in the ghost log: how many entries of each life were appended.
    appended: BTreeMap<ProcessId, u64>,
    asked_total: u64,
    /// The longest pause between two appends, so that they last as long as the faults.
    pace: Duration,
    workload: Chance,
    nemesis: Option<Nemesis>,
    healed: bool,
    mutation: Option<Mutation>,
}

/// Little, so that every router makes checkpoints.
const CHECKPOINT_BYTES: usize = 24 << 10;

const STRIKE: u64 = 0;
const APPEND: u64 = 1;
const REMOVE: u64 = 2;

/// Runs one seed.
pub(crate) fn simulate(
    scenario: &Scenario,
    settings: &Settings,
    seed: u64,
    mutation: Option<Mutation>,
) -> Report {
    let mut world = World::new(seed, scenario.network, scenario.machines);
    if let Some(disk) = settings.disk {
        world.with_disks(disk, mutation.and_then(Mutation::breach));
    }
    let users = Users {
        settings: settings.clone(),
        paxos: paxos::Settings {
            wanted: settings.routers,
            log_bytes_kept: settings.log_bytes_kept,
            chunk_bytes: 2 << 10,
            batch_bytes_max: 2 << 10,
            window_max: 8,
            checkpoint_bytes: settings.disk.map(|_| CHECKPOINT_BYTES),
            ..paxos::Settings::default()
        },
        routers: RouterSet::new((0..settings.routers + settings.spares).collect(), settings.routers),
        ghost: GhostLog::default(),
        chains: BTreeMap::from([(0, 0)]),
        authors: BTreeMap::new(),
        founder: None,
        asked: BTreeMap::new(),
        appended: BTreeMap::new(),
        asked_total: 0,
        pace: scenario.safety().mul_f64(9.0 / settings.entries as f64),
        workload: Chance::new(seed, "workload"),
        nemesis: Some(Nemesis::new(seed, scenario.faults.clone())),
        healed: false,
        mutation,
    };
    for number in 0..settings.routers + settings.spares {
        let machine = world.machine();
        world.restart_after(machine, Duration::from_millis(number as u64));
    }
    world.timer(Duration::from_millis(50), APPEND);
    world.timer(Duration::from_millis(300), STRIKE);
    world.timer(Duration::from_millis(700), REMOVE);
    two_phases(world, users, scenario, seed)
}

impl Users {
    fn machines(&self) -> usize {
        self.settings.routers + self.settings.spares
    }

    /// What a member was asked to append is in the log.
    fn terminated(&self, world: &World<Replica>) -> Result<(), Violation> {
        for (&machine, author) in &self.authors {
            let Some(id) = world.id(machine).filter(|id| self.routers.members.contains(id)) else { continue };
            let asked = self.asked.get(author).copied().unwrap_or(0);
            let appended = self.appended.get(author).copied().unwrap_or(0);
            if appended != asked {
                let what = format!("{id} was asked for {asked} entries, and {appended} are in the log");
                return Err(Violation::new("terminated", what));
            }
        }
        Ok(())
    }

    /// Processes that know no leader look for routers where some should be, as every real process does.
    fn look_for_routers(&self, world: &mut World<Replica>) {
        for machine in 0..self.machines() {
            let lost = |replica: &Replica| replica.paxos.leader().is_none();
            if world.process(machine).is_some_and(lost) {
                let found = self.routers.living(world);
                let others = found.into_iter().filter(|peer| Some(peer.id) != world.id(machine)).collect();
                world.command(machine, Ask::Seeds(others));
            }
        }
    }

    fn append(&mut self, world: &mut World<Replica>) {
        let machine = self.workload.index(self.machines());
        let Some(&author) = self.authors.get(&machine).filter(|_| world.id(machine).is_some()) else {
            return;
        };
        for _ in 0..1 + self.workload.below(8) {
            let length = self.workload.below(self.settings.payload_bytes_max + 1);
            let filler = Bytes::from(vec![self.workload.bits() as u8; length as usize]);
            let later = self.workload.between(Duration::ZERO, Duration::from_micros(300));
            world.command_after(machine, later, Ask::Append(filler));
            *self.asked.entry(author).or_default() += 1;
            self.asked_total += 1;
        }
    }
}

/// The members that changes under way would make.
fn changes(world: &World<Replica>) -> Vec<Vec<Peer>> {
    let replicas = (0..world.machines()).filter_map(|machine| world.process(machine));
    open_changes(replicas.map(|replica| &replica.paxos))
}

impl Environment<Replica> for Users {
    fn start(&mut self, world: &mut World<Replica>, machine: usize, id: ProcessId) -> Replica {
        let mut settings = self.paxos.clone();
        match self.mutation {
            Some(Mutation::FoundsAgain) => self.routers.found_again(),
            Some(Mutation::BelowTheFloor) if self.routers.founded() => settings.wanted = 1,
            _ => {}
        }
        let records = world.records(machine);
        let me = Peer { id, address: World::<Replica>::address(machine) };
        let recovered = Paxos::recover(me, settings.clone(), records, world.clock(machine));
        let recovered = recovered.expect("what was durable follows from itself");
        let author = match recovered {
            // Numbered by life: this world gives no number twice.
            Some(_) => ProcessId {
                node: id.node,
                incarnation: Incarnation(id.incarnation.0 ^ u128::from(world.births()) << 64),
            },
            None => id,
        };
        self.authors.insert(machine, author);
        let paxos = match recovered {
            Some(paxos) => {
                world.count("recovered from disk");
                paxos
            }
            None => {
                if self.founder == Some(machine) && !self.routers.begun() {
                    // Nobody has ever heard of the domain.
                    self.routers.found_again();
                }
                if !self.routers.founded() {
                    self.founder = Some(machine);
                }
                self.routers.start(world, machine, id, settings)
            }
        };
        Replica::new(paxos, author, self.mutation.map(Tamper::new))
    }

    fn event(&mut self, world: &mut World<Replica>, machine: usize, event: Told) -> Result<(), Violation> {
        let Some(me) = world.id(machine) else { return Ok(()) };
        let life = world.life(machine);
        match event {
            Told::Learned { slot, payloads, chain } => {
                let value = payloads.iter().map(|payload| xxh3_64(payload)).collect();
                if self.ghost.learned(life, slot, value)? {
                    let before = self.chains.get(&(slot - 1)).copied().unwrap_or(0);
                    self.chains.insert(slot, chained(before, slot, &payloads));
                    for payload in &payloads {
                        let (proposer, number) = opened(payload);
                        let next = self.appended.entry(proposer).or_insert(0);
                        *next += u64::from(number == *next);
                        if number >= self.asked.get(&proposer).copied().unwrap_or(0) {
                            let what = format!("{proposer} never proposed the entry {number} at {slot}");
                            return Err(Violation::new("valid", what));
                        }
                    }
                }
                if self.chains.get(&slot) != Some(&chain) {
                    return Err(Violation::new(
                        "agreement",
                        format!("{me} adds up to another log at {slot}"),
                    ));
                }
            }
            Told::Installed { slot, chain } => {
                world.count("snapshot catch-up");
                self.ghost.installed(life, slot)?;
                if self.chains.get(&slot) != Some(&chain) {
                    return Err(Violation::new(
                        "agreement",
                        format!("{me} installed another state at {slot}"),
                    ));
                }
            }
            Told::Members(members) => {
                let position = self.ghost.learned_through(life);
                self.routers.told_members(world, position, &members, true)?;
            }
            Told::Leader(leader) => self.routers.told_leader(world, leader),
            Told::SnapshotMade => world.count("snapshot made"),
            Told::Removed => {
                world.count("removed process starts anew");
                world.wipe_at_end(machine);
                world.stop_after(machine, Duration::from_millis(1));
            }
            Told::ChangeRefused => world.count("change refused"),
        }
        Ok(())
    }

    fn timer(&mut self, world: &mut World<Replica>, token: u64) -> Result<(), Violation> {
        match token {
            STRIKE => {
                if let Some(mut nemesis) = self.nemesis.take() {
                    nemesis.strike(world, &self.routers.targets(), |world, machine| {
                        self.routers.may_crash(world, machine, &changes(world))
                    });
                    if let Some(pause) = nemesis.pause() {
                        world.timer(pause, STRIKE);
                    }
                    self.nemesis = Some(nemesis);
                }
            }
            APPEND => {
                if self.asked_total < self.settings.entries {
                    self.append(world);
                    let pause = self.workload.between(Duration::from_micros(100), self.pace);
                    world.timer(pause, APPEND);
                }
            }
            REMOVE => {
                if !self.healed
                    && let Some((asked, router)) = self.routers.operate(world, &mut self.workload, 0.3)
                {
                    world.command(asked, Ask::Remove(router));
                }
                world.timer(Duration::from_secs(1), REMOVE);
                if self.settings.disk.is_some() {
                    self.look_for_routers(world);
                }
            }
            _ => unreachable!("no such timer"),
        }
        Ok(())
    }
}

impl Stage<Replica> for Users {
    fn heal(&mut self, world: &mut World<Replica>) {
        self.nemesis = None;
        self.healed = true;
        for machine in 0..self.machines() {
            world.restart_after(machine, Duration::ZERO);
        }
    }

    fn settled(&mut self, world: &mut World<Replica>) -> bool {
        let wanted = self.settings.routers;
        self.asked_total >= self.settings.entries
            && self.routers.members.len() == wanted
            && self.terminated(world).is_ok()
            && self.routers.members.iter().all(|&id| {
                let process = world.process(id.node as usize).filter(|_| world.alive(id));
                process.is_some_and(|replica| {
                    replica.own.is_empty()
                        && replica.state.slot == self.ghost.end()
                        && replica.paxos.leader().is_some_and(|leader| self.routers.members.contains(&leader))
                        && replica.paxos.members().iter().map(|peer| peer.id).eq(self.routers.members.clone())
                })
            })
    }

    fn unsettled(&self, world: &World<Replica>) -> Result<&'static str, Violation> {
        if let Some(lost) = self.routers.lost(world, &changes(world)) {
            return Ok(lost);
        }
        let routers: Vec<String> = (0..self.machines())
            .map(|machine| match world.process(machine) {
                Some(replica) => format!(
                    "machine {machine}: {:?}, {} own entries left; {:?}",
                    world.id(machine),
                    replica.own.len(),
                    replica.paxos.status()
                ),
                None => format!("machine {machine}: down"),
            })
            .collect();
        Err(Violation::new(
            "liveness",
            format!(
                "the log ends at {}, members {:?}; {:?}; {}",
                self.ghost.end(),
                self.routers.members,
                self.terminated(world),
                routers.join("; ")
            ),
        ))
    }

    fn judge(&mut self, world: &mut World<Replica>) -> Result<(), Violation> {
        self.terminated(world)
    }
}
