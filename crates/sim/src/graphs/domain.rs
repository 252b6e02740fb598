//! One case from beginning to end: a domain that settles, a network that takes the shape of each of the
//! case's graphs in turn, and the outcome of writes.
//!
//! One client has links to every router, and for each router one more client has a link to that router alone.
//! Each client writes to itself, one write at a time: a majority of the routers orders the write, the client
//! receives and confirms it, and the routers acknowledge it as stable.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use quorate_protocol::{
    ProcessId, Time,
    ecast::{
        Member, MemberCommand, MemberEvent, MemberSettings, MessageId, Outcome, Router, RouterEvent,
        RouterSettings,
    },
    paxos::{self, Ballot, StateKind},
    wire::decode_body,
};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Finding, Phase, Served,
    case::Case,
    graph::{Graph, Set},
};
use quorate_world::{Chance, Environment, MachineSettings, NetworkSettings, Violation, World};

use crate::{
    check::order::Order,
    failure::failure_of,
    mutation::{Mutation, Tamper},
    stage::{RouterSet, open_changes},
    system::{
        ecast::{
            process::{EcastCommand, EcastEvent, Kind, Process},
            world::kind,
        },
        rooms::{Floor, Rooms, RoomsTwin, Say},
    },
};

/// The domain of a case: its clients with their writes, the present graph of the network, and the facts by
/// which the case is judged.
struct Domain {
    case: Case,
    routers: RouterSet,
    router_settings: RouterSettings,
    clients: Vec<DomainClient>,
    order: Order<RoomsTwin>,
    /// Writes without an outcome, by token: the client, and the time of the write.
    pending: BTreeMap<u64, (usize, Time)>,
    tokens: u64,
    /// Whether clients continue to write.
    busy: bool,
    /// The present graph; `None` before the first and after the last.
    graph: Option<Graph>,
    /// The time at which the graph took effect.
    since: Time,
    /// The reigns that have begun since the graph took effect.
    reigns: BTreeSet<Ballot>,
    /// The router that began to lead last.
    leader: Option<usize>,
    /// Whether a path that passes nothing in one direction breaks after a while.
    breaks: bool,
    chance: Chance,
    mutation: Option<Mutation>,
}

struct DomainClient {
    machine: usize,
    /// The routers to which the client has links once the graph takes effect.
    linked: Set,
    /// Whether the client is a member, and in its room.
    ready: bool,
    /// The time of the first acknowledgement of a write that the client began after the graph took effect.
    answered: Option<Time>,
}

/// Runs one case.
pub(super) fn run(case: &Case, mutation: Option<Mutation>) -> Finding {
    let mut world = World::new(case.number, NetworkSettings::default(), MachineSettings::default());
    let mut domain = Domain::new(&mut world, case, mutation);
    let mut finding = Finding { number: case.number, failure: None, phases: Vec::new(), steps: 0, trace: 0 };
    let phases = &mut finding.phases;
    let failure = failure_of(|| domain.play(&mut world, phases));
    Finding { failure, steps: world.steps(), trace: world.trace(), ..finding }
}

impl Domain {
    fn new(world: &mut World<Process>, case: &Case, mutation: Option<Mutation>) -> Domain {
        let count = case.graphs[0].routers();
        let routers: Vec<usize> = (0..count).map(|_| world.machine()).collect();
        let linked = (0..count).map(|router| 1 << router).chain([case.graphs[0].all()]);
        let clients: Vec<DomainClient> = linked
            .map(|linked| DomainClient { machine: world.machine(), linked, ready: false, answered: None })
            .collect();
        // The first router to start founds the domain and leads.
        for machine in 0..world.machines() {
            let delay = if machine == case.leader { 0 } else { 1 + machine as u64 };
            world.restart_after(machine, Duration::from_millis(delay));
        }
        let mut chance = Chance::new(case.number, "graphs");
        Domain {
            case: case.clone(),
            routers: RouterSet::new(routers, count),
            router_settings: RouterSettings {
                paxos: paxos::Settings { wanted: count, ..paxos::Settings::default() },
                ..RouterSettings::default()
            },
            clients,
            order: Order::new(RoomsTwin::default()),
            pending: BTreeMap::new(),
            tokens: 0,
            busy: false,
            graph: None,
            since: Time::ZERO,
            reigns: BTreeSet::new(),
            leader: None,
            breaks: chance.happens(0.5),
            chance,
            mutation,
        }
    }

    fn play(&mut self, world: &mut World<Process>, phases: &mut Vec<Phase>) -> Result<(), Violation> {
        self.settle(world)?;
        self.busy = true;
        for at in 0..self.case.graphs.len() {
            self.take_shape(world, at);
            let graph = self.case.graphs[at];
            let before = self.members(world);
            let standing = self.candidates(world) > 0;
            world.run(self, self.since + PROMISED, |_, _| false)?;
            phases.push(self.phase(graph, &before));
            self.judge_progress(world, graph, &before, standing)?;
        }
        self.heal(world, phases)
    }

    /// Waits until all processes have joined and the intended router leads.
    fn settle(&mut self, world: &mut World<Process>) -> Result<(), Violation> {
        let end = world.now() + SETTLING;
        while !self.is_settled(world) {
            if world.now() >= end {
                let what =
                    format!("the domain did not settle before the experiment began: {}", self.state(world));
                return Err(Violation::new("settling", what));
            }
            let next = world.now() + GLANCE;
            world.run(self, next, |_, _| false)?;
        }
        // Waits for a few more heartbeats, until a random time between two heartbeats.
        let interval = self.router_settings.paxos.detector.interval;
        let more = self.chance.between(interval * 2, interval * 3);
        let next = world.now() + more;
        world.run(self, next, |_, _| false).map(drop)
    }

    fn is_settled(&self, world: &World<Process>) -> bool {
        let count = self.case.graphs[0].routers();
        let leader = world.id(self.case.leader);
        self.clients.iter().all(|client| client.ready)
            && self.pending.is_empty()
            && self.routers.members.len() == count
            && routers(world).filter(|(_, router)| router.log().leader() == leader).count() == count
            && routers(world).all(|(_, router)| router.log().members().len() == count)
    }

    /// Gives the network the shape of its next graph. A pair that hears nothing in either direction loses its
    /// link after a while.
    fn take_shape(&mut self, world: &mut World<Process>, at: usize) {
        let graph = self.case.graphs[at];
        let next = self.case.graphs.get(at + 1);
        world.blame("withheld by the graph");
        let before = self.graph.replace(graph);
        self.since = world.now();
        self.reigns.clear();
        for from in 0..graph.routers() {
            for to in (0..graph.routers()).filter(|&to| to != from && !graph.passes(from, to)) {
                if before.is_some_and(|before| !before.passes(from, to)) {
                    // The direction was cut before, and that cut lasts.
                    continue;
                }
                let span = if next.is_some_and(|next| next.passes(from, to)) { PROMISED } else { FOR_EVER };
                if self.breaks || !graph.passes(to, from) {
                    world.cut(from, to, span);
                } else {
                    world.clog(from, to, span);
                }
            }
        }
        for client in 0..self.clients.len() {
            let DomainClient { machine, linked, .. } = self.clients[client];
            self.clients[client].answered = None;
            let far = (0..graph.routers()).filter(|router| linked & 1 << router == 0);
            for router in far.filter(|_| before.is_none()) {
                world.clog(machine, router, FOR_EVER);
                world.clog(router, machine, FOR_EVER);
                // A process takes this long to notice that the path to a router is cut (`relay`).
                let noticed = self.chance.between(NOTICED_MIN, NOTICED_MAX);
                world.timer(noticed, BREAK | (router as u64) << 8 | client as u64);
            }
            self.write(world, client);
        }
    }

    fn heal(&mut self, world: &mut World<Process>, phases: &mut Vec<Phase>) -> Result<(), Violation> {
        self.graph = None;
        self.since = world.now();
        self.reigns.clear();
        world.heal();
        for client in 0..self.clients.len() {
            self.clients[client].answered = None;
            self.write(world, client);
        }
        self.busy = false;
        let until = self.since + PROMISED;
        world.run(self, until, |_, domain| domain.pending.is_empty())?;
        let complete = Graph::complete(self.case.graphs[0].routers());
        phases.push(self.phase(complete, &[complete.all()]));
        if let Some((client, _)) = self.pending.values().min() {
            let what = format!(
                "{} after the cut has healed, {} still waits for an answer: {}",
                seconds(PROMISED),
                self.describe(*client),
                self.state(world)
            );
            return Err(Violation::new("progress", what));
        }
        self.order.check.finish(|id| world.alive(id))
    }

    /// Summarises how the clients fared under `graph`.
    fn phase(&self, graph: Graph, members: &[Set]) -> Phase {
        let promised = members.iter().all(|members| graph.connected(*members) != 0);
        let served = self.clients.iter().map(|client| Served {
            promised: members.iter().all(|members| graph.promises(*members, client.linked)),
            after: client.answered.map(|at| at.since(self.since)),
        });
        Phase { graph, promised, served: served.collect(), reigns: self.reigns.len() }
    }

    fn judge_progress(
        &self,
        world: &World<Process>,
        graph: Graph,
        members: &[Set],
        standing: bool,
    ) -> Result<(), Violation> {
        let Phase { promised, served, reigns, .. } = self.phase(graph, members);
        for (at, served) in served.iter().enumerate().filter(|(_, served)| served.promised) {
            let waiting = self.pending.values().find(|(client, began)| {
                *client == at
                    && world.now().since(*began) > self.router_settings.paxos.detector.silence_min / 2
            });
            if served.after.is_none() || waiting.is_some() {
                let what = format!(
                    "{} after the network took its shape, {} still waits for an answer: {}",
                    seconds(PROMISED),
                    self.describe(at),
                    self.state(world)
                );
                return Err(Violation::new("progress", what));
            }
        }
        // An election that is under way when the graph takes effect may end in a leader that is not
        // connected.
        if promised && reigns > 1 + usize::from(standing) {
            let what = format!(
                "the lead moved {reigns} times under one shape of the network, with the ballots {:?}; {}",
                self.reigns,
                self.state(world)
            );
            return Err(Violation::new("one move", what));
        }
        Ok(())
    }

    /// Returns the newest set of members, and the sets to which unfinished changes of the members would lead.
    /// Each is a set of machines.
    fn members(&self, world: &World<Process>) -> Vec<Set> {
        let set = |ids: &mut dyn Iterator<Item = ProcessId>| ids.fold(0, |set: Set, id| set | 1 << id.node);
        let known = set(&mut self.routers.members.iter().copied());
        let open = open_changes(routers(world).map(|(_, router)| router.log()));
        let open = open.iter().map(|peers| set(&mut peers.iter().map(|peer| peer.id)));
        [known].into_iter().chain(open).collect()
    }

    fn candidates(&self, world: &World<Process>) -> usize {
        routers(world).filter(|(_, router)| router.log().status().state == StateKind::Candidate).count()
    }

    fn describe(&self, client: usize) -> String {
        let graph = self.case.graphs[0];
        match self.clients[client].linked {
            linked if linked == graph.all() => "the client of all routers".to_owned(),
            linked => format!("the client of router {}", linked.trailing_zeros()),
        }
    }

    fn state(&self, world: &World<Process>) -> String {
        let routers = routers(world).map(|(machine, router)| {
            let status = router.log().status();
            format!(
                "router {machine} is {} in a set of {} routers, follows the leader {:?} by way of the relay \
                 {:?}, and is at position {}",
                status.state,
                status.members.len(),
                status.leader.map(|it| it.node),
                router.log().detour().map(|it| it.node),
                router.position()
            )
        });
        let clients = self.clients.iter().enumerate().filter_map(|(at, client)| {
            let Some(Kind::Member(member)) = kind(world, client.machine) else { return None };
            let (ordered, other) = member.outstanding();
            (ordered + other > 0).then(|| {
                format!(
                    "{} waits for the outcomes of {ordered} messages that have a number and {other} that \
                     have none, has sent messages again {} times, and follows the leader {:?}",
                    self.describe(at),
                    member.resends(),
                    member.leader().map(|it| it.node)
                )
            })
        });
        let links: Vec<_> = self.graph.iter().flat_map(|graph| graph.links()).collect();
        let all: Vec<String> = routers.chain(clients).collect();
        format!("the links are {links:?}; {}", all.join("; "))
    }

    fn submit(&mut self, world: &mut World<Process>, client: usize, say: &Say) {
        self.tokens += 1;
        self.pending.insert(self.tokens, (client, world.now()));
        let submit = MemberCommand::Submit { token: self.tokens, class: say.class(), body: say.encode() };
        world.command(self.clients[client].machine, EcastCommand::Member(submit));
    }

    fn write(&mut self, world: &mut World<Process>, client: usize) {
        let room = self.clients[client].machine as u64;
        let word = self.tokens;
        self.submit(world, client, &Say::Word { room, word, filler: Vec::new() });
    }

    fn client_event(
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
                    decode_body::<Floor>(&mut attachment)
                        .map_err(|error| Violation::new("attachment", error.to_string()))?;
                }
            }
            MemberEvent::Outcome { token, id, outcome } => self.outcome(world, token, id, outcome)?,
            MemberEvent::NotSent { token } => {
                return Err(Violation::new(
                    "one outcome",
                    format!(
                        "member {me} says that message {token} was not sent, although nobody prevented the \
                         member from sending"
                    ),
                ));
            }
            MemberEvent::Wedged => {
                return Err(Violation::new(
                    "wedged",
                    format!("member {me} found that it is removed, but no process had suspected it"),
                ));
            }
            MemberEvent::Injected { .. }
            | MemberEvent::NotInjected { .. }
            | MemberEvent::Latest { .. }
            | MemberEvent::Rerouted
            | MemberEvent::Lead { .. }
            | MemberEvent::Adrift(_)
            | MemberEvent::WitnessWanted { .. } => {}
        }
        Ok(())
    }

    fn outcome(
        &mut self,
        world: &mut World<Process>,
        token: u64,
        id: MessageId,
        outcome: Outcome,
    ) -> Result<(), Violation> {
        let submission = (id.sender, id.number - 1);
        let Some((client, began)) = self.pending.remove(&token) else {
            return Err(Violation::new(
                "one outcome",
                format!("message {id:?} has two outcomes; the second is {outcome:?}"),
            ));
        };
        if outcome != Outcome::Stable {
            return Err(Violation::new(
                "outcome",
                format!("message {id:?} has the outcome {outcome:?}, although no member has departed"),
            ));
        }
        self.order.check.stable(submission, true)?;
        self.order.check.outcome_heard(submission);
        let machine = self.clients[client].machine as u64;
        if !self.clients[client].ready {
            let inside =
                self.order.twin.present().get(&id.sender).is_some_and(|rooms| rooms.contains(&machine));
            if inside {
                self.clients[client].ready = true;
            } else {
                self.submit(world, client, &Say::Enter { room: machine });
            }
            return Ok(());
        }
        if began >= self.since {
            self.clients[client].answered.get_or_insert(world.now());
        }
        if self.busy {
            let pause = self.chance.between(PAUSE_MIN, PAUSE_MAX);
            world.timer(pause, WRITE | client as u64);
        }
        Ok(())
    }

    /// Judges a change of the members: the leader must not remove a router from which it hears, directly or
    /// through other routers.
    fn members_changed(&mut self, world: &mut World<Process>, machine: usize) -> Result<(), Violation> {
        let Some(Kind::Router(router)) = kind(world, machine) else { return Ok(()) };
        let (told_at, members) = (router.log().applied().0, router.log().members().to_vec());
        let before = self.routers.members.clone();
        self.routers.told_members(world, told_at, &members, false)?;
        let (Some(graph), Some(leader)) = (self.graph, self.leader) else { return Ok(()) };
        if world.now() < self.since + HEARD_AFTER {
            return Ok(());
        }
        let gone = before.iter().find(|id| !self.routers.members.contains(id));
        if let Some(gone) = gone.filter(|gone| world.alive(**gone)) {
            let gone = gone.node as usize;
            // A link that passes messages in only one direction breaks after a while.
            let members = before.iter().fold(0, |set: Set, id| set | 1 << id.node);
            if graph.hears_of(members, gone, leader, self.breaks) {
                let what = format!(
                    "router {gone} was voted out, although the leader, router {leader}, hears of this \
                     router: {}",
                    self.state(world)
                );
                return Err(Violation::new("who is heard stays", what));
            }
        }
        Ok(())
    }
}

/// Returns the running routers, with their machines.
fn routers(world: &World<Process>) -> impl Iterator<Item = (usize, &Router<Rooms>)> {
    (0..world.machines()).filter_map(|machine| match kind(world, machine)? {
        Kind::Router(router) => Some((machine, router.as_ref())),
        Kind::Member(_) => None,
    })
}

fn seconds(span: Duration) -> String {
    format!("{:.1} s", span.as_secs_f64())
}

impl Environment<Process> for Domain {
    fn start(&mut self, world: &mut World<Process>, machine: usize, id: ProcessId) -> Process {
        let tamper = self.mutation.map(Tamper::new);
        if let Some(client) = self.clients.iter().position(|client| client.machine == machine) {
            world.timer(Duration::ZERO, JOIN | client as u64);
            return Process::new(Kind::Member(Box::new(Member::new(id, MemberSettings::default()))), tamper);
        }
        let paxos = self.routers.start(world, machine, id, self.router_settings.paxos.clone());
        let router = Router::new(paxos, Floor::default(), self.router_settings.clone());
        Process::new(Kind::Router(Box::new(router)), tamper)
    }

    fn event(
        &mut self,
        world: &mut World<Process>,
        machine: usize,
        event: EcastEvent,
    ) -> Result<(), Violation> {
        match event {
            EcastEvent::Learned(position, learned) => {
                let learned = learned.iter().map(|(at, ordered)| (*at, ordered));
                self.order.learned(world.life(machine), position, learned)?;
            }
            EcastEvent::Router(RouterEvent::Leader(leader)) => {
                if leader.is_some()
                    && leader == world.id(machine)
                    && let Some(Kind::Router(router)) = kind(world, machine)
                {
                    self.reigns.insert(router.log().status().promised);
                    self.leader = Some(machine);
                }
            }
            EcastEvent::Router(RouterEvent::Removed) => world.stop_after(machine, Duration::from_millis(1)),
            EcastEvent::Router(RouterEvent::Corrupt(why)) => {
                return Err(Violation::new(
                    "snapshot",
                    format!("the router on machine {machine} received a snapshot that it cannot read: {why}"),
                ));
            }
            EcastEvent::Router(RouterEvent::Routers(_)) => self.members_changed(world, machine)?,
            EcastEvent::Router(_) => {}
            EcastEvent::Submitted(content) => {
                if let Some(id) = world.id(machine) {
                    self.order.check.submitted(id, content);
                }
            }
            EcastEvent::Member(event) => self.client_event(world, machine, event)?,
        }
        Ok(())
    }

    fn timer(&mut self, world: &mut World<Process>, token: u64) -> Result<(), Violation> {
        let client = (token & 0xff) as usize;
        match token & !0xffff {
            JOIN => {
                let seeds = self.routers.living(world);
                world
                    .command(self.clients[client].machine, EcastCommand::Member(MemberCommand::Seeds(seeds)));
                self.submit(world, client, &Say::Join);
            }
            WRITE if self.busy => self.write(world, client),
            WRITE => {}
            _ => {
                if self.graph.is_some() {
                    let router = (token >> 8 & 0xff) as usize;
                    world.break_link(self.clients[client].machine, router);
                }
            }
        }
        Ok(())
    }
}

/// The time promised until clients make progress: four election timeouts.
pub(super) const PROMISED: Duration = Duration::from_millis(4 * 600);
/// Upper bound of the time in which a domain forms.
const SETTLING: Duration = Duration::from_secs(10);
/// Time that is longer than any case.
const FOR_EVER: Duration = Duration::from_secs(60);
/// Time within which processes renew and use a broken link after its path passes again. The judge ignores
/// votes during this time.
const HEARD_AFTER: Duration = Duration::from_secs(1);
/// Interval at which the test looks whether the domain has settled.
const GLANCE: Duration = Duration::from_millis(10);
/// Shortest wait of a client between an acknowledgement and its next write.
const PAUSE_MIN: Duration = Duration::from_millis(60);
/// Longest wait of a client between an acknowledgement and its next write.
const PAUSE_MAX: Duration = Duration::from_millis(140);
/// Shortest time after which a process notices that the path to a router is cut.
const NOTICED_MIN: Duration = Duration::from_millis(450);
/// Longest time after which a process notices that the path to a router is cut.
const NOTICED_MAX: Duration = Duration::from_secs(1);

const JOIN: u64 = 1 << 32;
const WRITE: u64 = 2 << 32;
const BREAK: u64 = 3 << 32;
