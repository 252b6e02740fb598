//! E-Cast whole: routers that order and route, members that submit, deliver and confirm, and rooms for them to talk in.
//!
//! Members join, enter rooms, talk, and are killed; whoever misses a member has it suspected. Routers come and go as in
//! [`paxos`](super::paxos). The seven predicates of correct routing are judged against a naive twin of the routing.

mod process;

use std::{collections::BTreeMap, time::Duration};

use quorate_protocol::{
    Peer, ProcessId, Time,
    ecast::{
        Class, Member, MemberCommand, MemberEvent, MemberSettings, MessageId, Outcome, Router, RouterCommand,
        RouterEvent, RouterSettings,
    },
    paxos,
    wire::decode_body,
};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    check::CreditCheck,
    fault::Nemesis,
    mutation::{Mutation, Tamper},
    random::Chance,
    run::{Report, Stage, two_phases},
    scenario::Scenario,
    system::{
        Signs,
        order::{Order, Twin},
        rooms::{Floor, RoomsTwin, Say},
        routers::{RouterSet, open_changes},
    },
    world::{Environment, Violation, World},
};
use process::{Ask, Process, Role, Told, role};

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
    /// One member is so many times slower, so that execution lags behind confirmation (S7).
    pub sloth: u32,
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
            sloth: 200,
        }
    }
}

/// The people behind the members, the nemesis and the checkers.
struct People {
    settings: Settings,
    router_settings: RouterSettings,
    routers: RouterSet,
    members: Vec<usize>,
    order: Order<RoomsTwin>,
    /// What each life was asked to submit and has no outcome yet, by token.
    pending: BTreeMap<(u64, u64), Pending>,
    /// Until when each life executes what it has delivered so far.
    busy: BTreeMap<u64, Time>,
    /// Who each life is.
    lives: BTreeMap<u64, ProcessId>,
    /// What was last seen of each machine, to tell what has happened since.
    signs: Signs,
    words: u64,
    tokens: u64,
    /// The longest pause between two speeches, so that they last as long as the faults.
    pace: Duration,
    workload: Chance,
    nemesis: Option<Nemesis>,
    healed: bool,
    mutation: Option<Mutation>,
}

struct Pending {
    say: Say,
    machine: usize,
}

/// Few, so that what is open is kept apart in every run.
const KEPT_MAX: usize = 8;

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
    let mut order = Order::new(RoomsTwin::default());
    // A new leader counts what the log calls stable for executed, so that an election may give credit anew.
    order.credits = Some(CreditCheck::new(3 * settings.credit as usize));
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
            kept_max: KEPT_MAX,
            ..RouterSettings::default()
        },
        routers: RouterSet::new((0..routers).collect(), settings.routers),
        members: (routers..routers + settings.members).collect(),
        order,
        pending: BTreeMap::new(),
        busy: BTreeMap::new(),
        lives: BTreeMap::new(),
        signs: Signs::default(),
        words: 0,
        tokens: 0,
        pace: scenario.safety().mul_f64(21.0 / settings.words as f64),
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
        self.order.check.submitted(me, u8::from(class == Class::Data), xxh3_64(&body));
        self.pending.insert((world.life(machine), token), Pending { say, machine });
        let submit = MemberCommand::Submit { token, class, body };
        world.command(machine, Ask::Member(submit));
    }

    /// A member that lives, at random.
    fn somebody(&mut self, world: &World<Process>) -> Option<usize> {
        let alive: Vec<usize> = (self.members.iter().copied())
            .filter(|&machine| world.id(machine).is_some_and(|id| self.order.twin.is_member(id)))
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
        let present: Vec<ProcessId> = self.order.twin.present().keys().copied().collect();
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

    /// Compares what a router has learned with the order.
    fn compare(&mut self, world: &mut World<Process>, machine: usize) -> Result<(), Violation> {
        let Some(Role::Router(router)) = role(world, machine) else { return Ok(()) };
        let (told_at, routers) = (router.log().applied().0, router.log().members().to_vec());
        for what in self.order.compare(world.life(machine), router)? {
            world.count(what);
        }
        self.routers.told_members(world, told_at, &routers, false)
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
                self.order.check.delivered(me, at.0, (id.sender, id.number - 1), xxh3_64(&body))?;
                if let Some(mut attachment) = attachment {
                    let floor: Floor = decode_body(&mut attachment)
                        .map_err(|error| Violation::new("attachment", error.to_string()))?;
                    if id.sender != me || !floor.has(me) {
                        return Err(Violation::new("attachment", format!("{me} joined a floor without it")));
                    }
                }
                let slower = if self.members[0] == machine { self.settings.sloth } else { 1 };
                let now = world.now();
                let busy = self.busy.entry(world.life(machine)).or_insert(now);
                *busy = now.max(*busy) + Duration::from_micros(self.settings.execute_micros) * slower;
                let executed = MemberCommand::Executed { through: at };
                world.command_after(machine, busy.since(now), Ask::Member(executed));
                world.timer(busy.since(now), EXECUTED | (world.life(machine) << 32) | at.0);
                self.lives.insert(world.life(machine), me);
            }
            MemberEvent::Injected { at, fits, .. } => {
                if fits {
                    world.count("injected");
                    self.order.check.stamped(me, at.0)?;
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
                if !self.order.check.has_departed(me) {
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
        let position = self.order.check.position_of(submission);
        let refused = position.is_some_and(|position| self.order.is_refused(position));
        match outcome {
            Outcome::Stable => {
                world.count("stable");
                self.order.check.stable(submission, pending.say.class() == Class::Data)?;
                if refused {
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
                if !self.order.check.may_be_lost(submission) {
                    let what =
                        format!("{id:?} is told to be lost, perhaps, and all its destinations are well");
                    return Err(Violation::new("outcome", what));
                }
            }
            Outcome::Rejected(_) => {
                world.count("rejected");
                if !refused {
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

/// The routers that changes under way would make.
fn changes(world: &World<Process>) -> Vec<Vec<Peer>> {
    let processes = (0..world.machines()).filter_map(|machine| role(world, machine));
    open_changes(processes.filter_map(|process| match process {
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
        let paxos = self.routers.start(world, machine, id, self.router_settings.paxos.clone());
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
                world.stop_after(machine, Duration::from_millis(1));
            }
            Told::Router(RouterEvent::Corrupt(why)) => {
                return Err(Violation::new("snapshot", format!("machine {machine}: {why}")));
            }
            Told::Router(RouterEvent::ChangeRefused(_)) => world.count("change refused"),
            Told::Router(RouterEvent::Routers(_) | RouterEvent::Config(..)) => {}
            Told::Router(event @ (RouterEvent::Reformed(_) | RouterEvent::ReformRefused(_))) => {
                panic!("no scenario begins a generation: {event:?}")
            }
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
                            || self.routers.may_crash(world, machine, &changes(world))
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
                    let pause = self.workload.between(Duration::from_micros(100), self.pace);
                    world.timer(pause, TALK);
                }
            }
            WATCH => {
                self.watch(world);
                world.timer(Duration::from_millis(100), WATCH);
            }
            REMOVE => {
                if !self.healed
                    && let Some((asked, router)) = self.routers.operate(world, &mut self.workload, 0.3)
                {
                    world.command(asked, Ask::Router(RouterCommand::Remove(router)));
                }
                world.timer(Duration::from_secs(1), REMOVE);
            }
            executed if executed & EXECUTED != 0 => {
                let life = (executed & !EXECUTED) >> 32;
                if let (Some(&who), Some(credits)) = (self.lives.get(&life), &mut self.order.credits) {
                    credits.executed(who, executed & u64::from(u32::MAX));
                }
            }
            join => {
                let machine = (join - JOIN) as usize;
                self.say(world, machine, Say::Join);
            }
        }
        Ok(())
    }

    fn stepped(&mut self, world: &mut World<Process>, machine: usize) -> Result<(), Violation> {
        match role(world, machine) {
            Some(Role::Router(router)) => {
                let again = ("delivered again", router.resends());
                self.signs.note(world, machine, again, false);
                self.compare(world, machine)?;
            }
            Some(Role::Member { member, .. }) => {
                let (again, starved) = (("submitted again", member.resends()), member.starved());
                self.signs.note(world, machine, again, starved);
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
        let end = self.order.end();
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
            && self
                .members
                .iter()
                .all(|&machine| world.id(machine).is_some_and(|id| self.order.twin.is_member(id)))
            && self.order.check.finish(|id| world.alive(id)).is_ok()
    }

    fn unsettled(&self, world: &World<Process>) -> Result<&'static str, Violation> {
        if let Some(lost) = self.routers.lost(world, &changes(world)) {
            return Ok(lost);
        }
        let violation = self.order.check.finish(|id| world.alive(id)).err();
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
        let what = format!("{detail}the order ends at {}; {}", self.order.end(), processes.join("; "));
        Err(Violation::new(rule, what))
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
        self.order.check.finish(|id| world.alive(id))
    }
}

const JOIN: u64 = 1 << 32;
/// With a life and a position: that has been executed there.
const EXECUTED: u64 = 1 << 63;
