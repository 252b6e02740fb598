//! E-Cast whole: routers that order and route, members that submit, deliver and confirm, and rooms for them to talk in.
//!
//! Members join, enter rooms, talk, and are killed; whoever misses a member has it suspected. Routers come and go as in
//! [`paxos`](super::paxos). The seven predicates of correct routing are judged against a naive twin of the routing.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use quorate_protocol::{
    Context, Destination, Input, Peer, ProcessId, Protocol, Sink, Ticket, Time,
    ecast::{
        Class, Member, MemberCommand, MemberEvent, MemberSettings, Message, MessageId, Outcome, Position,
        Router, RouterCommand, RouterEvent, RouterSettings,
    },
    paxos::{self, Paxos},
    wire::decode_body,
};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    check::RoutingCheck,
    fault::Nemesis,
    mutation::{Mutation, Tamper},
    random::Chance,
    run::{Report, Stage, two_phases},
    scenario::Scenario,
    system::{
        LINGER, child,
        rooms::{Floor, Rooms, Say, Twin, Unroutable},
        routers::{RouterSet, beliefs},
    },
    world::{Environment, Violation, World},
};

/// How large, and how busy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How many routers there should be.
    pub routers: usize,
    /// How many more machines ask to be admitted as routers.
    pub spares: usize,
    /// How many members there are.
    pub members: usize,
    /// How many rooms.
    pub rooms: u64,
    /// How many words all members together say.
    pub words: u64,
    /// A word has up to this many bytes more than it needs.
    pub filler_bytes_max: u64,
    /// How many words of one member may be under way; few, so that credits are exhausted.
    pub credit: u64,
    /// How much chosen log the routers keep; little, so that snapshots are needed.
    pub log_bytes_kept: usize,
    /// What the execution of a delivered word takes.
    pub execute_micros: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            routers: 3,
            spares: 1,
            members: 6,
            rooms: 4,
            words: 1_500,
            filler_bytes_max: 120,
            credit: 24,
            log_bytes_kept: 16 << 10,
            execute_micros: 30,
        }
    }
}

/// A process, and what tampers with it.
pub(crate) struct Process {
    role: Role,
    tamper: Option<Tamper>,
}

/// The roles.
pub(crate) enum Role {
    Router(Box<Router<Rooms>>),
    Member { member: Box<Member>, seeds: Vec<Peer> },
}

pub(crate) enum Ask {
    Router(RouterCommand),
    Member(MemberCommand),
    /// Routers to look for.
    Seeds(Vec<Peer>),
}

#[derive(Debug)]
pub(crate) enum Told {
    Router(RouterEvent<Floor>),
    Member(MemberEvent),
}

impl Protocol for Process {
    type Message = Message;
    type Record = paxos::Record;
    type Command = Ask;
    type Event = Told;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut impl Sink<Self>) {
        let Some(tamper) = &mut self.tamper else { return self.role.handle(cx, input, out) };
        let inputs = match input {
            Input::Receive { from, message } => {
                let messages = tamper.receive(cx.random, from, message);
                messages.into_iter().map(|(from, message)| Input::Receive { from, message }).collect()
            }
            other => vec![other],
        };
        for input in inputs {
            self.role.handle(cx, input, &mut Tampering { out, tamper });
        }
    }

    fn deadline(&self) -> Option<Time> {
        match &self.role {
            Role::Router(router) => router.deadline(),
            Role::Member { member, .. } => member.deadline(),
        }
    }
}

impl Role {
    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Process>, out: &mut impl Sink<Process>) {
        match self {
            Role::Router(router) => {
                let input = child(input, |ask| match ask {
                    Ask::Router(command) => command,
                    Ask::Member(_) | Ask::Seeds(_) => unreachable!("a router is asked as a router"),
                });
                router.handle(cx, input, &mut Through(out));
            }
            Role::Member { member, seeds } => {
                if let Input::Command(Ask::Seeds(more)) = input {
                    more.iter().for_each(|seed| out.reach(seed.id, &seed.address));
                    return;
                }
                for seed in seeds.drain(..) {
                    out.reach(seed.id, &seed.address);
                }
                let input = child(input, |ask| match ask {
                    Ask::Member(command) => command,
                    Ask::Router(_) | Ask::Seeds(_) => unreachable!("a member is asked as a member"),
                });
                member.handle(cx, input, &mut Through(out));
            }
        }
    }
}

/// Has a mutation change what a role puts out.
struct Tampering<'a, S> {
    out: &'a mut S,
    tamper: &'a mut Tamper,
}

impl<S: Sink<Process>> Sink<Process> for Tampering<'_, S> {
    fn send(&mut self, to: Destination, message: Message, after: Option<Ticket>) {
        if let Some(message) = self.tamper.send(message) {
            self.out.send(to, message, after);
        }
    }

    fn persist(&mut self, record: paxos::Record) -> Ticket {
        self.out.persist(record)
    }

    fn emit(&mut self, event: Told) {
        if let Told::Member(event @ MemberEvent::Deliver { .. }) = &event
            && self.tamper.delivers_twice()
        {
            self.out.emit(Told::Member(event.clone()));
        }
        self.out.emit(event);
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        self.out.reach(peer, address);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.out.forget(peer);
    }
}

/// Wraps what a role puts out.
struct Through<'a, S>(&'a mut S);

impl<S: Sink<Process>> Sink<Router<Rooms>> for Through<'_, S> {
    fn send(&mut self, to: Destination, message: Message, after: Option<Ticket>) {
        self.0.send(to, message, after);
    }

    fn persist(&mut self, record: paxos::Record) -> Ticket {
        self.0.persist(record)
    }

    fn emit(&mut self, event: RouterEvent<Floor>) {
        self.0.emit(Told::Router(event));
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        self.0.reach(peer, address);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.0.forget(peer);
    }
}

impl<S: Sink<Process>> Sink<Member> for Through<'_, S> {
    fn send(&mut self, to: Destination, message: Message, after: Option<Ticket>) {
        self.0.send(to, message, after);
    }

    fn persist(&mut self, record: paxos::Record) -> Ticket {
        self.0.persist(record)
    }

    fn emit(&mut self, event: MemberEvent) {
        self.0.emit(Told::Member(event));
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        self.0.reach(peer, address);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.0.forget(peer);
    }
}

/// The role of the process on `machine`, while one runs.
fn role(world: &World<Process>, machine: usize) -> Option<&Role> {
    world.process(machine).map(|process| &process.role)
}

/// The people behind the members, the nemesis and the checkers.
struct People {
    settings: Settings,
    router_settings: RouterSettings,
    routers: RouterSet,
    members: Vec<usize>,
    check: RoutingCheck,
    twin: Twin,
    /// The history as ordered: who, its number there, and what.
    order: BTreeMap<u64, (MessageId, u64)>,
    /// Why the twin found a position to be for nobody.
    refused: BTreeMap<u64, Unroutable>,
    /// How far each life of a router has been compared with the history.
    compared: BTreeMap<u64, u64>,
    /// What each life was asked to submit and has no outcome yet, by token.
    pending: BTreeMap<(u64, u64), Pending>,
    /// What was last seen of each machine, to tell what has happened since.
    seen: BTreeMap<usize, Seen>,
    words: u64,
    tokens: u64,
    workload: Chance,
    nemesis: Option<Nemesis>,
    healed: bool,
    mutation: Option<Mutation>,
}

struct Pending {
    say: Say,
    machine: usize,
}

#[derive(Default)]
struct Seen {
    life: u64,
    resends: u64,
    starved: bool,
}

const STRIKE: u64 = 0;
const TALK: u64 = 1;
const WATCH: u64 = 2;
const REMOVE: u64 = 3;

/// Runs one seed.
pub(crate) fn simulate(
    scenario: &Scenario,
    settings: &Settings,
    seed: u64,
    mutation: Option<Mutation>,
) -> Report {
    let mut world = World::new(seed, scenario.network, scenario.machines);
    let routers = settings.routers + settings.spares;
    if mutation == Some(Mutation::NoIncarnations) {
        world.reuse_ids();
    }
    let people = People {
        settings: settings.clone(),
        router_settings: RouterSettings {
            paxos: paxos::Settings {
                wanted: settings.routers,
                log_bytes_kept: settings.log_bytes_kept,
                chunk_bytes: 2 << 10,
                batch_bytes_max: 4 << 10,
                window_max: 8,
                ..paxos::Settings::default()
            },
            credit: settings.credit,
            ..RouterSettings::default()
        },
        routers: RouterSet::new((0..routers).collect()),
        members: (routers..routers + settings.members).collect(),
        check: RoutingCheck::default(),
        twin: Twin::default(),
        order: BTreeMap::new(),
        refused: BTreeMap::new(),
        compared: BTreeMap::new(),
        pending: BTreeMap::new(),
        seen: BTreeMap::new(),
        words: 0,
        tokens: 0,
        workload: Chance::new(seed, "workload"),
        nemesis: Some(Nemesis::new(seed, scenario.faults.clone())),
        healed: false,
        mutation,
    };
    for number in 0..routers + settings.members {
        let machine = world.machine();
        world.restart_after(machine, Duration::from_millis(number as u64));
    }
    world.timer(Duration::from_millis(50), TALK);
    world.timer(Duration::from_millis(300), STRIKE);
    world.timer(Duration::from_millis(100), WATCH);
    world.timer(Duration::from_millis(700), REMOVE);
    two_phases(world, people, scenario, seed)
}

impl People {
    /// Has the member on `machine` submit something.
    fn say(&mut self, world: &mut World<Process>, machine: usize, say: Say) {
        let Some(me) = world.id(machine) else { return };
        self.tokens += 1;
        let token = self.tokens;
        let (class, body) = (say.class(), say.encode());
        self.check.submitted(me, u8::from(class == Class::Data), xxh3_64(&body));
        self.pending.insert((world.life(machine), token), Pending { say, machine });
        let submit = MemberCommand::Submit { token, class, body };
        world.command(machine, Ask::Member(submit));
    }

    /// A member that lives, at random.
    fn somebody(&mut self, world: &World<Process>) -> Option<usize> {
        let alive: Vec<usize> = (self.members.iter().copied())
            .filter(|&machine| world.id(machine).is_some_and(|id| self.twin.is_member(id)))
            .collect();
        (!alive.is_empty()).then(|| alive[self.workload.index(alive.len())])
    }

    fn talk(&mut self, world: &mut World<Process>) {
        let Some(machine) = self.somebody(world) else { return };
        for _ in 0..1 + self.workload.below(20) {
            let room = self.workload.below(self.settings.rooms);
            let say = match self.workload.below(60) {
                0 => Say::Quit { room },
                1 | 2 => Say::Enter { room },
                _ => {
                    self.words += 1;
                    let length = self.workload.below(self.settings.filler_bytes_max + 1);
                    Say::Word { room, word: self.words, filler: vec![b'.'; length as usize] }
                }
            };
            self.say(world, machine, say);
        }
        if self.workload.happens(0.2) {
            self.tokens += 1;
            let room = self.workload.below(self.settings.rooms);
            let say = Say::Word { room, word: 0, filler: Vec::new() };
            let inject = MemberCommand::Inject { token: self.tokens, body: say.encode() };
            world.command(machine, Ask::Member(inject));
        }
    }

    /// Has those suspected who are members no longer alive, and once in a while one who is.
    fn watch(&mut self, world: &mut World<Process>) {
        let present: Vec<ProcessId> = self.twin.present().keys().copied().collect();
        let mut processes: Vec<ProcessId> = present.iter().copied().filter(|&id| !world.alive(id)).collect();
        if !self.healed && present.len() > 2 && self.workload.happens(0.03) {
            processes.push(present[self.workload.index(present.len())]);
            world.count("false suspicion");
        }
        if !processes.is_empty()
            && let Some(machine) = self.somebody(world)
        {
            self.say(world, machine, Say::Suspect { processes });
        }
        let seeds = self.routers.living(world);
        for machine in self.members.clone() {
            // Whoever knows only routers of the past asks its host, which knows where routers run.
            if let Some(Role::Member { member, .. }) = role(world, machine)
                && member.leader().is_none_or(|leader| !world.alive(leader))
            {
                world.command(machine, Ask::Seeds(seeds.clone()));
            }
        }
    }

    /// Compares what a router has learned with the history, and lengthens the history where it is the first.
    fn compare(&mut self, world: &mut World<Process>, machine: usize) -> Result<(), Violation> {
        let Some(Role::Router(router)) = role(world, machine) else { return Ok(()) };
        let (position, base) = (router.position().0, router.base().0);
        let compared = self.compared.entry(world.life(machine)).or_insert(0);
        if base > self.check.end() {
            let what = format!("machine {machine} calls {base} stable, and nobody has learned it");
            return Err(Violation::new("agreement", what));
        }
        let mut new = Vec::new();
        if position > *compared {
            for (position, ordered) in router.live_after(Position(*compared)) {
                let content = xxh3_64(&ordered.body);
                match self.order.get(&position.0) {
                    // What is stable has no body any more.
                    Some(&(id, known)) if id == ordered.id && (known == content || ordered.is_stable()) => {}
                    Some((id, _)) => {
                        let what =
                            format!("machine {machine} has {:?} at {position}, not {id:?}", ordered.id);
                        return Err(Violation::new("agreement", what));
                    }
                    None => new.push((position, ordered.clone())),
                }
            }
            *compared = position;
        }
        let told_at = router.log().applied().0;
        let routers = router.log().members().to_vec();
        for (position, ordered) in new {
            self.ordered(world, position, ordered.id, &ordered.body)?;
        }
        if !routers.is_empty() {
            self.routers.told_members(world, told_at, &routers, false)?;
        }
        Ok(())
    }

    /// A position is fixed.
    fn ordered(
        &mut self,
        world: &mut World<Process>,
        position: Position,
        id: MessageId,
        body: &Bytes,
    ) -> Result<(), Violation> {
        let content = xxh3_64(body);
        self.order.insert(position.0, (id, content));
        let say = Say::decode(body)
            .ok_or_else(|| Violation::new("valid", format!("what nobody says is at {position}")))?;
        let destinations = match self.twin.next(id.sender, &say) {
            Ok(destinations) => destinations,
            Err(Unroutable::Stranger) => {
                let what = format!("{id:?} is at {position}, and its sender is no member");
                return Err(Violation::new("valid", what));
            }
            Err(why @ Unroutable::Empty) => {
                world.count("word in an empty room");
                self.refused.insert(position.0, why);
                BTreeSet::new()
            }
        };
        self.check.ordered(position.0, (id.sender, id.number - 1), content, destinations)?;
        match say {
            Say::Join => {
                world.count("member joined");
                self.check.begins(id.sender, position.0 - 1);
            }
            Say::Leave | Say::Suspect { .. } => {
                for process in self.twin.departed() {
                    if !self.check.has_departed(process) {
                        world.count("member departed");
                        self.check.departed(process);
                    }
                }
            }
            Say::Enter { .. } | Say::Quit { .. } | Say::Word { .. } => {}
        }
        Ok(())
    }

    fn member_event(
        &mut self,
        world: &mut World<Process>,
        machine: usize,
        event: MemberEvent,
    ) -> Result<(), Violation> {
        let Some(me) = world.id(machine) else { return Ok(()) };
        match event {
            MemberEvent::Deliver { at, id, body, attachment, .. } => {
                self.check.delivered(me, at.0, (id.sender, id.number - 1), xxh3_64(&body))?;
                if let Some(mut attachment) = attachment {
                    let floor: Floor = decode_body(&mut attachment)
                        .map_err(|error| Violation::new("attachment", error.to_string()))?;
                    if id.sender != me || !floor.has(me) {
                        return Err(Violation::new("attachment", format!("{me} joined a floor without it")));
                    }
                }
                let execute = Duration::from_micros(self.settings.execute_micros);
                let executed = MemberCommand::Executed { through: at };
                world.command_after(machine, execute, Ask::Member(executed));
            }
            MemberEvent::Injected { at, fits, .. } => {
                if fits {
                    world.count("injected");
                    self.check.stamped(me, at.0)?;
                }
            }
            MemberEvent::Outcome { token, id, outcome } => {
                let pending = self.pending.remove(&(world.life(machine), token)).ok_or_else(|| {
                    Violation::new("one outcome", format!("{me} was told {outcome:?} of {id:?} twice"))
                })?;
                self.outcome(world, pending, id, outcome)?;
            }
            MemberEvent::NotSent { token } => {
                self.pending.remove(&(world.life(machine), token)).ok_or_else(|| {
                    Violation::new("one outcome", format!("{me} was told twice of its token {token}"))
                })?;
            }
            MemberEvent::NotInjected { .. } => world.count("not injected"),
            MemberEvent::Lead { .. } => {}
            MemberEvent::Wedged => {
                if !self.check.has_departed(me) {
                    return Err(Violation::new("wedged", format!("{me} was, and is a member")));
                }
                world.count("member wedged");
                world.stop_after(machine, Duration::from_millis(1));
            }
        }
        Ok(())
    }

    fn outcome(
        &mut self,
        world: &mut World<Process>,
        pending: Pending,
        id: MessageId,
        outcome: Outcome,
    ) -> Result<(), Violation> {
        let submission = (id.sender, id.number - 1);
        let position = self.check.position_of(submission);
        let refused = position.and_then(|position| self.refused.get(&position));
        match outcome {
            Outcome::Stable => {
                world.count("stable");
                self.check.stable(submission, pending.say.class() == Class::Data)?;
                if refused.is_some() {
                    let what = format!("{:?} was refused, and told to be stable", pending.say);
                    return Err(Violation::new("outcome", what));
                }
                if pending.say == Say::Join {
                    for room in 0..self.settings.rooms {
                        if self.workload.happens(0.5) {
                            self.say(world, pending.machine, Say::Enter { room });
                        }
                    }
                }
            }
            Outcome::MaybeApplied => {
                world.count("maybe applied");
                if !self.check.may_be_lost(submission) {
                    let what =
                        format!("{id:?} is told to be lost, perhaps, and all its destinations are well");
                    return Err(Violation::new("outcome", what));
                }
            }
            Outcome::Rejected(_) => {
                world.count("rejected");
                if refused.is_none() {
                    let what =
                        format!("{:?} at {position:?} was rejected, and had destinations", pending.say);
                    return Err(Violation::new("outcome", what));
                }
            }
            Outcome::Wedged => {
                world.count("told to be wedged");
                if position.is_some() {
                    let what = format!("{id:?} is told to be nowhere, and is at {position:?}");
                    return Err(Violation::new("outcome", what));
                }
            }
        }
        Ok(())
    }
}

/// What the routers believe that the routers are.
fn believed(world: &World<Process>) -> Vec<Vec<Peer>> {
    let processes = (0..world.machines()).filter_map(|machine| role(world, machine));
    beliefs(processes.filter_map(|process| match process {
        Role::Router(router) => Some(router.log()),
        Role::Member { .. } => None,
    }))
}

impl Environment<Process> for People {
    fn start(&mut self, world: &mut World<Process>, machine: usize, id: ProcessId) -> Process {
        if self.members.contains(&machine) {
            let settings = MemberSettings { executes: true, ..MemberSettings::default() };
            // Its first submission makes it a member; it is asked as soon as it runs.
            world.timer(Duration::ZERO, JOIN + machine as u64);
            let member = Box::new(Member::new(id, settings));
            let role = Role::Member { member, seeds: self.routers.living(world) };
            return Process { role, tamper: self.mutation.map(Tamper::new) };
        }
        let me = Peer { id, address: World::<Process>::address(machine) };
        let now = world.clock(machine);
        let paxos = self.router_settings.paxos.clone();
        let paxos = if self.routers.founded {
            Paxos::join(me, self.routers.living(world), paxos, now)
        } else {
            self.routers.founded = true;
            Paxos::found(me, paxos, now)
        };
        let router = Router::new(paxos, Floor::default(), self.router_settings.clone());
        Process { role: Role::Router(Box::new(router)), tamper: self.mutation.map(Tamper::new) }
    }

    fn event(&mut self, world: &mut World<Process>, machine: usize, event: Told) -> Result<(), Violation> {
        // What a router learned in this very batch is compared first: it may not outlive the event.
        if matches!(event, Told::Router(_)) {
            self.compare(world, machine)?;
        }
        match event {
            Told::Router(RouterEvent::Leader(leader)) => self.routers.told_leader(world, leader),
            Told::Router(RouterEvent::Removed) => {
                world.count("removed process starts anew");
                world.stop_after(machine, LINGER);
            }
            Told::Router(RouterEvent::Corrupt(why)) => {
                return Err(Violation::new("snapshot", format!("machine {machine}: {why}")));
            }
            Told::Router(RouterEvent::ChangeRefused) => world.count("change refused"),
            Told::Router(RouterEvent::Routers(_) | RouterEvent::Config(..)) => {}
            Told::Member(event) => self.member_event(world, machine, event)?,
        }
        Ok(())
    }

    fn timer(&mut self, world: &mut World<Process>, token: u64) -> Result<(), Violation> {
        match token {
            STRIKE => {
                if let Some(mut nemesis) = self.nemesis.take() {
                    let [routers, leader] = self.routers.targets();
                    let groups = [routers, leader, self.members.clone(), self.members.clone()];
                    nemesis.strike(world, &groups, |world, machine| {
                        self.members.contains(&machine)
                            || self.routers.may_crash(world, machine, &believed(world))
                    });
                    if let Some(pause) = nemesis.pause() {
                        world.timer(pause, STRIKE);
                    }
                    self.nemesis = Some(nemesis);
                }
            }
            TALK => {
                if self.words < self.settings.words {
                    self.talk(world);
                    let pause = self.workload.between(Duration::from_micros(100), Duration::from_millis(30));
                    world.timer(pause, TALK);
                }
            }
            WATCH => {
                self.watch(world);
                world.timer(Duration::from_millis(100), WATCH);
            }
            REMOVE => {
                // An operator takes out a router that is well, now and then; it comes back as a new process.
                let members = &self.routers.members;
                if !members.is_empty() && !self.healed && self.workload.happens(0.3) {
                    let router = members[self.workload.index(members.len())];
                    let asked = self.routers.machines[self.workload.index(self.routers.machines.len())];
                    world.command(asked, Ask::Router(RouterCommand::Remove(router)));
                }
                world.timer(Duration::from_secs(1), REMOVE);
            }
            join => {
                let machine = (join - JOIN) as usize;
                self.say(world, machine, Say::Join);
            }
        }
        Ok(())
    }

    fn stepped(&mut self, world: &mut World<Process>, machine: usize) -> Result<(), Violation> {
        let life = world.life(machine);
        let seen = self.seen.entry(machine).or_default();
        if seen.life != life {
            *seen = Seen { life, ..Seen::default() };
        }
        match role(world, machine) {
            Some(Role::Router(router)) => {
                let resends = router.resends();
                let again = resends > seen.resends;
                seen.resends = resends;
                if again {
                    world.count("delivered again");
                }
                self.compare(world, machine)?;
            }
            Some(Role::Member { member, .. }) => {
                let (resends, starved) = (member.resends(), member.starved());
                let (again, newly) = (resends > seen.resends, starved && !seen.starved);
                (seen.resends, seen.starved) = (resends, starved);
                if again {
                    world.count("submitted again");
                }
                if newly {
                    world.count("credits exhausted");
                }
            }
            None => {}
        }
        Ok(())
    }
}

impl Stage<Process> for People {
    fn heal(&mut self, world: &mut World<Process>) {
        self.nemesis = None;
        self.healed = true;
        for machine in 0..world.machines() {
            world.restart_after(machine, Duration::ZERO);
        }
    }

    fn settled(&mut self, world: &mut World<Process>) -> bool {
        let end = self.order.last_key_value().map_or(0, |(&position, _)| position);
        let routers = &self.routers.members;
        self.words >= self.settings.words
            && routers.len() == self.settings.routers
            && routers.iter().all(|&id| match role(world, id.node as usize) {
                Some(Role::Router(router)) if world.alive(id) => router.position().0 == end,
                _ => false,
            })
            && self.members.iter().all(|&machine| match role(world, machine) {
                Some(Role::Member { member, .. }) => member.outstanding() == (0, 0),
                _ => false,
            })
            && self.members.iter().all(|&machine| world.id(machine).is_some_and(|id| self.twin.is_member(id)))
            && self.check.finish(|id| world.alive(id)).is_ok()
    }

    fn unsettled(&self, world: &World<Process>) -> Option<Violation> {
        if !self.routers.has_majority(world, &believed(world)) {
            return None;
        }
        let violation = self.check.finish(|id| world.alive(id)).err();
        let processes: Vec<String> = (0..world.machines())
            .map(|machine| match role(world, machine) {
                Some(Role::Router(router)) => format!("router {machine}: {:?}", router.status()),
                Some(Role::Member { member, .. }) => format!(
                    "member {machine}: {:?}, delivered {}, outstanding {:?}, leader {:?}",
                    world.id(machine),
                    member.delivered(),
                    member.outstanding(),
                    member.leader()
                ),
                None => format!("machine {machine}: down"),
            })
            .collect();
        let (rule, detail) = violation.map_or(("liveness", String::new()), |it| (it.rule, it.detail + "; "));
        let what = format!("{detail}the order ends at {}; {}", self.check.end(), processes.join("; "));
        Some(Violation::new(rule, what))
    }

    fn judge(&mut self, world: &mut World<Process>) -> Result<(), Violation> {
        let waiting = (self.pending.keys()).find(|(life, _)| {
            self.members
                .iter()
                .any(|&machine| world.process(machine).is_some() && world.life(machine) == *life)
        });
        if let Some((life, token)) = waiting {
            let what = format!("life {life} was never told what became of its token {token}");
            return Err(Violation::new("one outcome", what));
        }
        self.check.finish(|id| world.alive(id))
    }
}

const JOIN: u64 = 1 << 32;
