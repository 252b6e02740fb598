//! E-Cast whole: routers that order and route, members that submit, deliver and confirm, and rooms for them to talk in.
//!
//! Members join, enter rooms, talk, and are killed; whoever misses a member has it suspected. Routers come and go as in
//! [`paxos`](super::paxos). The seven predicates of correct routing are judged against a naive twin of the routing.

mod operator;
pub(crate) mod process;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use quorate_protocol::{
    Generation, Peer, ProcessId, Standing, Time,
    ecast::{
        Class, Member, MemberCommand, MemberEvent, MemberSettings, MessageId, Ordered, Outcome, Position,
        RefoundRefusal, Router, RouterCommand, RouterEvent, RouterSettings,
    },
    paxos,
    wire::decode_body,
};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use quorate_world::{Chance, Environment, Nemesis, Violation, World};

use crate::{
    check::CreditCheck,
    mutation::{Mutation, Tamper},
    run::{Report, Stage, two_phases},
    scenario::Scenario,
    system::{
        Signs,
        order::{Generations, Order, Twin},
        rooms::{Floor, Rooms, RoomsTwin, Say},
        routers::{RouterSet, open_changes},
    },
};
use operator::Operator;
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
    /// How often a majority of the routers is lost, and an operator has the domain go on without it (S1).
    pub losses: u32,
    /// How often all routers die, and an operator has the domain go on from its members (S1).
    pub extinctions: u32,
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
            losses: 0,
            extinctions: 0,
        }
    }
}

/// The people behind the members, the nemesis and the checkers.
struct People {
    settings: Settings,
    router_settings: RouterSettings,
    routers: RouterSet,
    members: Vec<usize>,
    orders: Generations<RoomsTwin>,
    operator: Operator,
    /// What each process was asked to submit and has not sent, by class: one class may overtake another, and nothing its own.
    asked: BTreeMap<(ProcessId, bool), VecDeque<u64>>,
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
const OPERATE: u64 = 4;

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
    if mutation == Some(Mutation::FenceOpen) {
        world.unfence();
    }
    let mut order = Order::new(RoomsTwin::default());
    if settings.losses + settings.extinctions == 0 {
        // A new leader counts what the log calls stable for executed, so that an election may give credit anew.
        order.credits = Some(CreditCheck::new(3 * settings.credit as usize));
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
            kept_max: KEPT_MAX,
            ..RouterSettings::default()
        },
        routers: RouterSet::new((0..routers).collect(), settings.routers),
        members: (routers..routers + settings.members).collect(),
        orders: Generations::new(order),
        operator: Operator::new(seed, (settings.losses, settings.extinctions), scenario.safety()),
        asked: BTreeMap::new(),
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
    if settings.losses + settings.extinctions > 0 {
        world.timer(Duration::from_millis(500), OPERATE);
    }
    two_phases(world, people, scenario, seed)
}

impl People {
    /// Has the member on `machine` submit something.
    fn say(&mut self, world: &mut World<Process>, machine: usize, say: Say) {
        let Some(me) = world.id(machine) else { return };
        self.tokens += 1;
        let token = self.tokens;
        let (class, body) = (say.class(), say.encode());
        self.asked.entry((me, class == Class::Data)).or_default().push_back(xxh3_64(&body));
        self.pending.insert((world.life(machine), token), Pending { say, machine });
        let submit = MemberCommand::Submit { token, class, body };
        world.command(machine, Ask::Member(submit));
    }

    /// A member that lives, at random.
    fn somebody(&mut self, world: &World<Process>) -> Option<usize> {
        let mut alive = self.members.clone();
        alive.retain(|&machine| self.is_member(world, machine));
        self.workload.pick(&alive)
    }

    /// Whether a member lives on `machine`, as the generation has it that it belongs to.
    fn is_member(&mut self, world: &World<Process>, machine: usize) -> bool {
        let order = self.orders.of(world.generation(machine));
        order.zip(world.id(machine)).is_some_and(|(order, id)| order.twin.is_member(id))
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

    /// A living member, and what it was asked to submit and does not know the outcome of.
    fn waits(&self, world: &World<Process>) -> Option<(u64, u64)> {
        let lives = |life: u64| {
            let of = |&machine: &usize| world.process(machine).is_some() && world.life(machine) == life;
            self.members.iter().any(of)
        };
        self.pending.keys().copied().find(|(life, _)| lives(*life))
    }

    /// Has those suspected who are members no longer alive, and once in a while one who is.
    fn watch(&mut self, world: &mut World<Process>) {
        let present: Vec<ProcessId> = self.orders.last().twin.present().keys().copied().collect();
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
            if let Some(Role::Member(member, _)) = role(world, machine)
                && member.leader().is_none_or(|leader| !world.alive(leader))
            {
                world.command(machine, Ask::Member(MemberCommand::Seeds(seeds.clone())));
            }
        }
        if self.settings.losses + self.settings.extinctions > 0 {
            for &machine in &self.routers.machines {
                world.command(machine, Ask::Router(RouterCommand::Seeds(seeds.clone())));
            }
        }
    }

    /// Looks at what a router calls stable, and whom it knows for routers.
    fn look(&mut self, world: &mut World<Process>, machine: usize) -> Result<(), Violation> {
        let Some(Role::Router(router, _)) = role(world, machine) else { return Ok(()) };
        let (told_at, routers) = (router.log().applied().0, router.log().members().to_vec());
        let generation = router.generation();
        // The survivor's own begins with what it tells then.
        let Some(order) = self.orders.of(generation) else { return Ok(()) };
        order.is_stable_through(world.life(machine), router.base())?;
        if generation == self.orders.current() {
            self.routers.told_members(world, told_at, &routers, false)?;
        }
        Ok(())
    }

    /// A member sends a message for the first time: of what it was asked to submit in that class, the next.
    fn submitted(&mut self, world: &World<Process>, machine: usize, content: u64) -> Result<(), Violation> {
        let Some(me) = world.id(machine) else { return Ok(()) };
        let next = |asked: &&mut VecDeque<u64>| asked.front() == Some(&content);
        let lanes = self.asked.range_mut((me, false)..=(me, true)).map(|(_, asked)| asked);
        let Some(lane) = lanes.into_iter().find(next) else {
            return Err(Violation::new("submit-ordered", format!("{me} sends what it was not to send yet")));
        };
        lane.pop_front();
        self.orders.submitted(me, content);
        Ok(())
    }

    /// Compares what a router has learned with the order of its generation.
    fn learned(
        &mut self,
        world: &mut World<Process>,
        machine: usize,
        position: Position,
        learned: Vec<(Position, Ordered)>,
    ) -> Result<(), Violation> {
        let Some(order) = self.orders.of(world.generation(machine)) else {
            // The survivor's own begins with what it tells next.
            self.operator.learned = (position, learned);
            return Ok(());
        };
        let learned = learned.iter().map(|(at, ordered)| (*at, ordered));
        for what in order.learned(world.life(machine), position, learned)? {
            world.count(what);
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
        let generation = world.generation(machine);
        let unknown = || Violation::new("silence before the cut", format!("{me} hears of {generation:?}"));
        match event {
            MemberEvent::Deliver { at, id, body, attachment, .. } => {
                let order = self.orders.of(generation).ok_or_else(unknown)?;
                order.check.delivered(me, at.0, (id.sender, id.number - 1), xxh3_64(&body))?;
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
                    self.orders.of(generation).ok_or_else(unknown)?.check.stamped(me, at.0)?;
                }
            }
            MemberEvent::Outcome { token, id, outcome } => {
                let pending = self.pending.remove(&(world.life(machine), token)).ok_or_else(|| {
                    Violation::new("one outcome", format!("{me} was told {outcome:?} of {id:?} twice"))
                })?;
                self.outcome(world, pending, id, outcome)?;
                self.orders.told(me, id.number - 1);
            }
            MemberEvent::NotSent { token } => {
                self.pending.remove(&(world.life(machine), token)).ok_or_else(|| {
                    Violation::new("one outcome", format!("{me} was told twice of its token {token}"))
                })?;
            }
            MemberEvent::NotInjected { .. } => world.count("not injected"),
            MemberEvent::Lead { .. } | MemberEvent::Adrift(_) | MemberEvent::WitnessWanted { .. } => {}
            MemberEvent::Wedged => {
                if !self.orders.is_out(self.orders.judge_of(generation), me) {
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
        let generation = world.generation(pending.machine);
        let judge = self.orders.judge_of(generation);
        if judge != generation && outcome != Outcome::MaybeApplied {
            let what = format!("{} is told {outcome:?} in {generation:?}, which has not begun", id.sender);
            return Err(Violation::new("silence before the cut", what));
        }
        let out = self.orders.is_out(judge, id.sender);
        let order = self.orders.of(judge).expect("it has begun");
        let position = order.check.position_of(submission);
        let refused = position.is_some_and(|position| order.is_refused(position));
        match outcome {
            Outcome::Stable => {
                world.count("stable");
                order.check.stable(submission, pending.say.class() == Class::Data)?;
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
                if !out && !order.check.may_be_lost(submission) {
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

/// The routers of a generation.
fn routers(world: &World<Process>, generation: Generation) -> impl Iterator<Item = &Router<Rooms>> {
    let processes = (0..world.machines()).filter_map(|machine| role(world, machine));
    let routers = processes.filter_map(|process| match process {
        Role::Router(router, _) => Some(router.as_ref()),
        Role::Member(..) => None,
    });
    routers.filter(move |router| router.generation() == generation)
}

/// The routers that changes under way would make.
fn changes(world: &World<Process>, generation: Generation) -> Vec<Vec<Peer>> {
    open_changes(routers(world, generation).map(Router::log))
}

impl Environment<Process> for People {
    fn start(&mut self, world: &mut World<Process>, machine: usize, id: ProcessId) -> Process {
        if self.members.contains(&machine) {
            let settings = MemberSettings { executes: true, ..MemberSettings::default() };
            // Its first submission makes it a member; it is asked as soon as it runs.
            world.timer(Duration::ZERO, JOIN + machine as u64);
            let role = Role::Member(Box::new(Member::new(id, settings)), None);
            return Process::new(role, self.mutation.map(Tamper::new));
        }
        let paxos = self.routers.start(world, machine, id, self.router_settings.paxos.clone());
        // It finds out which generation others belong to before it joins them.
        let known = (0..world.machines()).filter_map(|machine| match role(world, machine)? {
            Role::Router(router, _) => Some(router.generation()),
            Role::Member(..) => None,
        });
        let generation = known.max().unwrap_or_default();
        let settings = RouterSettings { generation, ..self.router_settings.clone() };
        let router = Router::new(paxos, Floor::default(), settings);
        Process::new(Role::Router(Box::new(router), Position(0)), self.mutation.map(Tamper::new))
    }

    fn standing(&self, process: &Process) -> Standing {
        match &process.role {
            Role::Router(router, _) => Standing { router: true, generation: router.generation() },
            Role::Member(..) => Standing { router: false, generation: Generation::FIRST },
        }
    }

    fn entered(&mut self, world: &mut World<Process>, machine: usize) -> Result<(), Violation> {
        if self.members.contains(&machine) {
            world.count("followed into a generation");
        }
        Ok(())
    }

    fn outdated(&mut self, world: &mut World<Process>, machine: usize) {
        world.count("router of an earlier generation starts anew");
        world.stop_after(machine, Duration::from_millis(1));
    }

    fn event(&mut self, world: &mut World<Process>, machine: usize, event: Told) -> Result<(), Violation> {
        match event {
            Told::Learned(position, learned) => self.learned(world, machine, position, learned)?,
            Told::Router(RouterEvent::Leader(leader)) => {
                if world.generation(machine) == self.orders.current() {
                    self.routers.told_leader(world, leader);
                }
            }
            Told::Router(RouterEvent::Removed) => {
                world.count("removed process starts anew");
                world.stop_after(machine, Duration::from_millis(1));
            }
            Told::Router(RouterEvent::Corrupt(why)) => {
                return Err(Violation::new("snapshot", format!("machine {machine}: {why}")));
            }
            Told::Router(RouterEvent::ChangeRefused(_)) => world.count("change refused"),
            Told::Router(RouterEvent::Routers(_) | RouterEvent::Config(..)) => {}
            Told::Router(RouterEvent::Reformed(reformed)) => self.begin(world, machine, &reformed)?,
            Told::Router(RouterEvent::RefoundRefused(why)) => {
                world.count(match why {
                    RefoundRefusal::LeaderLives(_) => "refound refused: a leader is heard",
                    RefoundRefusal::Unfollowed { .. } => "refound refused: no majority",
                    _ => "refound refused",
                });
                self.operator.refused();
            }
            Told::Router(RouterEvent::ReformRefused(_)) => {
                world.count("reform refused");
                self.operator.refused();
            }
            Told::Submitted(content) => self.submitted(world, machine, content)?,
            Told::Member(event) => self.member_event(world, machine, event)?,
        }
        Ok(())
    }

    fn timer(&mut self, world: &mut World<Process>, token: u64) -> Result<(), Violation> {
        match token {
            STRIKE => {
                if let Some(mut nemesis) = self.nemesis.take() {
                    let current = self.orders.current();
                    let [routers, leader] = self.routers.targets();
                    let groups = [routers, leader, self.members.clone(), self.members.clone()];
                    nemesis.strike(world, &groups, |world, machine| {
                        self.members.contains(&machine)
                            || self.routers.may_crash(world, machine, &changes(world, current))
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
            OPERATE => {
                self.operate(world);
                world.timer(Duration::from_millis(100), OPERATE);
            }
            executed if executed & EXECUTED != 0 => {
                let life = (executed & !EXECUTED) >> 32;
                if let (Some(&who), Some(credits)) = (self.lives.get(&life), &mut self.orders.last().credits)
                {
                    credits.executed(who, executed & u64::from(u32::MAX));
                }
            }
            join => {
                let machine = (join - JOIN) as usize;
                self.say(world, machine, Say::Join);
                world.command(machine, Ask::Member(MemberCommand::Seeds(self.routers.living(world))));
            }
        }
        Ok(())
    }

    fn stepped(&mut self, world: &mut World<Process>, machine: usize) -> Result<(), Violation> {
        match role(world, machine) {
            Some(Role::Router(router, _)) => {
                let again = ("delivered again", router.resends());
                self.signs.note(world, machine, again, false);
                self.look(world, machine)?;
            }
            Some(Role::Member(member, _)) => {
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
        let end = self.orders.last().end();
        let routers = &self.routers.members;
        self.words >= self.settings.words
            && routers.len() == self.settings.routers
            && routers.iter().all(|&id| match role(world, id.node as usize) {
                Some(Role::Router(router, _)) if world.alive(id) => router.position().0 == end,
                _ => false,
            })
            && self.members.iter().all(|&machine| match role(world, machine) {
                Some(Role::Member(member, _)) => member.outstanding() == (0, 0),
                _ => false,
            })
            && self.members.clone().into_iter().all(|machine| {
                world.generation(machine) == self.orders.current() && self.is_member(world, machine)
            })
            && self.waits(world).is_none()
            && self.orders.last().check.finish(|id| world.alive(id)).is_ok()
    }

    fn unsettled(&self, world: &World<Process>) -> Result<&'static str, Violation> {
        if let Some(lost) = self.routers.lost(world, &changes(world, self.orders.current())) {
            if self.settings.losses + self.settings.extinctions == 0 {
                return Ok(lost);
            }
            if self.survivors(world).is_empty() && self.settings.extinctions == 0 {
                return Ok(self.operator.lost());
            }
        }
        let order = self.orders.newest();
        let waits = self.waits(world).map(|(life, token)| {
            let what = format!("life {life} was never told what became of its token {token}");
            Violation::new("one outcome", what)
        });
        let violation = order.check.finish(|id| world.alive(id)).err().or(waits);
        let processes: Vec<String> = (0..world.machines())
            .map(|machine| match role(world, machine) {
                Some(Role::Router(router, _)) => format!("router {machine}: {:?}", router.status()),
                Some(Role::Member(member, _)) => format!(
                    "member {machine}: {:?} in {:?}, delivered {}, outstanding {:?}, leader {:?}",
                    world.id(machine),
                    world.generation(machine),
                    member.delivered(),
                    member.outstanding(),
                    member.leader()
                ),
                None => format!("machine {machine}: down"),
            })
            .collect();
        let (rule, detail) = violation.map_or(("liveness", String::new()), |it| (it.rule, it.detail + "; "));
        let what = format!("{detail}the order ends at {}; {}", order.end(), processes.join("; "));
        Err(Violation::new(rule, what))
    }

    fn judge(&mut self, world: &mut World<Process>) -> Result<(), Violation> {
        self.orders.last().check.finish(|id| world.alive(id))
    }
}

const JOIN: u64 = 1 << 32;
/// With a life and a position: that has been executed there.
const EXECUTED: u64 = 1 << 63;
