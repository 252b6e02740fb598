//! Six processes in two domains: each is a router of one and a member of the other, over the same links.
//! Promise: each domain has its own order, which all its members see, and no message of one domain is
//! delivered in the other, whichever process sleeps or is cut off.

mod places;

use std::{collections::BTreeMap, time::Duration};

use quorate_node::{Event, NewEndpoint, Node};
use quorate_protocol::{
    Peer, ProcessId,
    ecast::{
        Member, MemberCommand, MemberEvent, MemberSettings, Outcome, Position, Router, RouterCommand,
        RouterSettings,
    },
    paxos::{self, Paxos},
};
use quorate_world::Violation;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    stage::Workload,
    system::{
        ecast::process::{EcastCommand, EcastEvent, Kind, Process},
        rooms::{Floor, Say},
    },
};
use places::{DomainsStage, DomainsTimer, DomainsWorld, ROUTERS, ask, channel, joined, routed, routers};

/// The workload: speeches, and their deliveries.
#[derive(Default)]
pub(crate) struct Domains {
    /// The message at each position, by domain.
    order: [BTreeMap<Position, u64>; 2],
    /// The last position that was delivered to each machine, by machine and domain.
    delivered: BTreeMap<(usize, usize), Position>,
    said: u64,
    answered: u64,
}

impl Workload for Domains {
    const NAME: &'static str = "domains";
    const SCENARIOS: &'static [(&'static str, &'static str)] = &[(
        "domains",
        "about = 'Six processes in two domains: routers of one, members of the other.'\nsafety_ms = 4000\n\
         liveness_ms = 20000\nexpect = ['heard in the first', 'heard in the second', 'came right']\n\
         system.domains = {}\nfaults.interval_ms = 80",
    )];
    type Settings = toml::Table;
    type Process = Node<Process>;
    type Timer = DomainsTimer;

    fn new(stage: &mut DomainsStage, world: &mut DomainsWorld, _: toml::Table) -> Self {
        stage.add_machines(world, 2 * ROUTERS);
        stage.after(world, Duration::from_millis(20), DomainsTimer::Enter);
        stage.after(world, Duration::from_millis(20), DomainsTimer::Seed);
        stage.after(world, Duration::from_millis(100), DomainsTimer::Speak);
        Domains::default()
    }

    fn start(
        &mut self,
        _: &mut DomainsStage,
        world: &mut DomainsWorld,
        machine: usize,
        id: ProcessId,
    ) -> Node<Process> {
        let now = world.clock(machine);
        // A sleeping router is not removed: a removed router would come back as a new process in both
        // domains.
        let remove_after = Duration::from_secs(60);
        let log = paxos::Settings { wanted: ROUTERS, remove_after, ..paxos::Settings::default() };
        let me = Peer { id, address: DomainsWorld::address(machine) };
        let paxos = match machine % ROUTERS {
            0 => Paxos::found(me, log.clone(), now),
            _ => Paxos::join(me, Vec::new(), log.clone(), now),
        };
        let router =
            Router::new(paxos, Floor::default(), RouterSettings { paxos: log, ..RouterSettings::default() });
        let member = Member::new(id, MemberSettings::default());
        let mut node = Node::new();
        for (domain, kind) in [
            (routed(machine), Kind::Router(Box::new(router))),
            (joined(machine), Kind::Member(Box::new(member))),
        ] {
            assert!(node.add(NewEndpoint::typed(channel(domain), Process::new(kind, None)).vital()).is_ok());
        }
        node
    }

    fn act(
        &mut self,
        stage: &mut DomainsStage,
        world: &mut DomainsWorld,
        timer: DomainsTimer,
    ) -> Result<(), Violation> {
        match timer {
            DomainsTimer::Enter => {
                for machine in 0..world.machines() {
                    for say in [Say::Join, Say::Enter { room: 0 }] {
                        self.say(world, machine, &say);
                    }
                }
            }
            DomainsTimer::Seed => {
                for machine in 0..world.machines() {
                    let seeds = |domain| routers(world, domain);
                    let (own, other) = (seeds(routed(machine)), seeds(joined(machine)));
                    ask(world, machine, routed(machine), EcastCommand::Router(RouterCommand::Seeds(own)));
                    ask(world, machine, joined(machine), EcastCommand::Member(MemberCommand::Seeds(other)));
                }
                stage.after(world, Duration::from_millis(100), DomainsTimer::Seed);
            }
            DomainsTimer::Speak => {
                let machine = stage.chance.index(world.machines());
                let word = (joined(machine) as u64) << 32 | self.said;
                self.say(world, machine, &Say::Word { room: 0, word, filler: Vec::new() });
                if !stage.is_healed() {
                    let pause = stage.chance.between(Duration::from_micros(100), Duration::from_millis(10));
                    stage.after(world, pause, DomainsTimer::Speak);
                }
            }
        }
        Ok(())
    }

    fn event(
        &mut self,
        _: &mut DomainsStage,
        world: &mut DomainsWorld,
        machine: usize,
        event: Event<Process>,
    ) -> Result<(), Violation> {
        let Event::Typed(channel, EcastEvent::Member(told)) = event else { return Ok(()) };
        let domain = channel.domain.0 as usize;
        match told {
            MemberEvent::Deliver { at, id, body, .. } => {
                let heard = Say::decode(&body);
                if let Some(Say::Word { word, .. }) = heard
                    && word >> 32 != domain as u64
                {
                    return Err(Violation::new(
                        "one domain",
                        format!("machine {machine} delivered a message of the other domain"),
                    ));
                }
                let last = self.delivered.insert((machine, domain), at).unwrap_or_default();
                let content = xxh3_64(format!("{id:?} {body:?}").as_bytes());
                let agreed = *self.order[domain].entry(at).or_insert(content) == content;
                if at <= last || !agreed {
                    let what = format!(
                        "machine {machine} delivered position {at} of domain {domain} after position \
                         {last}, or another message there than another machine"
                    );
                    return Err(Violation::new("one order", what));
                }
                world.count(["heard in the first", "heard in the second"][domain]);
            }
            MemberEvent::Outcome { outcome, .. } => {
                self.answered += 1;
                if outcome == Outcome::Wedged {
                    let what = format!("machine {machine} was cut off from domain {domain}");
                    return Err(Violation::new("nobody is cut off", what));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn settled(&mut self, stage: &mut DomainsStage, world: &mut DomainsWorld) -> bool {
        let ends = [0, 1].map(|domain| self.order[domain].last_key_value().map(|(at, _)| *at));
        let has_all = |machine: usize| {
            let domain = joined(machine);
            self.delivered.get(&(machine, domain)).copied() == ends[domain]
        };
        stage.is_healed() && self.answered == self.said && (0..world.machines()).all(has_all)
    }

    fn report(&self, _: &DomainsStage, _: &DomainsWorld) -> String {
        format!(
            "{} of {} messages are answered; the delivered positions are {:?}",
            self.answered, self.said, self.delivered
        )
    }

    fn may_crash(&self, _: &DomainsStage, _: &DomainsWorld, _machine: usize) -> bool {
        false
    }
}

impl Domains {
    fn say(&mut self, world: &mut DomainsWorld, machine: usize, say: &Say) {
        self.said += 1;
        let submit = MemberCommand::Submit { token: self.said, class: say.class(), body: say.encode() };
        ask(world, machine, joined(machine), EcastCommand::Member(submit));
    }
}
