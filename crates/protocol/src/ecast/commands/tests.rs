//! Operators' commands among three routers, of which one may fall silent.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use super::*;
use crate::{
    Context, Destination, Generation, Input, Policy, Protocol, Session, Sink, Ticket, Time,
    ecast::{
        Message, Router, RouterSettings,
        toy::{Toy, process},
    },
    paxos::{self, Paxos},
};

const ROUTERS: u64 = 3;

struct Routers {
    routers: BTreeMap<ProcessId, Router<Toy>>,
    queue: VecDeque<(ProcessId, ProcessId, Message)>,
    /// It hears nobody, and nobody hears it.
    silent: Option<ProcessId>,
    ended: Vec<(u64, Result<(), RouterRefusal>)>,
    tickets: BTreeMap<ProcessId, Ticket>,
    now: Time,
}

struct Out<'a> {
    me: ProcessId,
    queue: &'a mut VecDeque<(ProcessId, ProcessId, Message)>,
    ended: &'a mut Vec<(u64, Result<(), RouterRefusal>)>,
    ticket: &'a mut Ticket,
}

impl Sink<Router<Toy>> for Out<'_> {
    fn send(&mut self, to: Destination, message: Message, _: Option<Ticket>) {
        let to = match to {
            Destination::One(to) => vec![to],
            Destination::Many(many) => many,
        };
        self.queue.extend(to.into_iter().map(|to| (self.me, to, message.clone())));
    }

    fn persist(&mut self, _: paxos::Record) -> Ticket {
        self.ticket.0 += 1;
        *self.ticket
    }

    fn emit(&mut self, event: RouterEvent<BTreeSet<ProcessId>>) {
        if let RouterEvent::Ended { id, result } = event {
            self.ended.push((id.0, result));
        }
    }

    fn reach(&mut self, _: ProcessId, _: &str) {}

    fn forget(&mut self, _: ProcessId) {}

    fn adopt(&mut self, _: Arc<dyn Policy>) {}
}

fn peer(node: u64) -> Peer {
    Peer { id: process(node), address: format!("{node}") }
}

impl Routers {
    /// Three routers that are a domain.
    fn founded() -> Routers {
        let settings = paxos::Settings { wanted: ROUTERS as usize, ..paxos::Settings::default() };
        let router = |node| {
            let paxos = match node {
                1 => Paxos::found(peer(1), settings.clone(), Time::ZERO),
                node => Paxos::join(peer(node), vec![peer(1)], settings.clone(), Time::ZERO),
            };
            let settings = RouterSettings { paxos: settings.clone(), ..RouterSettings::default() };
            (process(node), Router::new(paxos, BTreeSet::new(), settings))
        };
        let routers = (1..=ROUTERS).map(router).collect();
        let (queue, ended, now) = (VecDeque::new(), Vec::new(), Time::ZERO);
        let tickets = (1..=ROUTERS).map(|node| (process(node), Ticket(0))).collect();
        let mut domain = Routers { routers, queue, silent: None, ended, tickets, now };
        for one in 1..=ROUTERS {
            for other in (1..=ROUTERS).filter(|other| *other != one) {
                let session = Session(one * other);
                domain.give(process(one), Input::Linked { peer: process(other), session });
            }
        }
        let complete =
            |it: &Routers| it.routers.values().all(|router| router.log().members().len() == ROUTERS as usize);
        domain.run_until(complete);
        domain
    }

    fn give(&mut self, to: ProcessId, input: Input<Router<Toy>>) {
        let Routers { routers, queue, ended, tickets, now, .. } = self;
        let router = routers.get_mut(&to).expect("they are three");
        let ticket = tickets.get_mut(&to).expect("they are three");
        let mut durable = *ticket;
        let mut out = Out { me: to, queue, ended, ticket };
        let mut random = || 0x1234_5678_9abc_def0 ^ to.node;
        let mut cx = Context { now: *now, me: to, random: &mut random };
        router.handle(&mut cx, input, &mut out);
        while durable < *out.ticket {
            durable = *out.ticket;
            router.handle(&mut cx, Input::Persisted(durable), &mut out);
        }
    }

    fn ask(&mut self, to: ProcessId, id: u64, change: Change) {
        self.give(to, Input::Command(RouterCommand::Change { id: CommandId(id), change }));
    }

    fn run_until(&mut self, done: impl Fn(&Routers) -> bool) {
        let end = self.now + Duration::from_secs(60);
        while !done(self) {
            assert!(self.now < end, "it comes about within a minute: {:?}", self.ended);
            self.now = self.now + Duration::from_millis(10);
            for id in self.routers.keys().copied().collect::<Vec<_>>() {
                if self.routers[&id].deadline().is_some_and(|deadline| deadline <= self.now) {
                    self.give(id, Input::Deadline);
                }
                self.give(id, Input::Drained);
            }
            for _ in 0..self.queue.len() {
                let (from, to, message) = self.queue.pop_front().expect("it is counted");
                if from == to || self.silent != Some(from) && self.silent != Some(to) {
                    self.give(to, Input::Receive { from, message });
                }
            }
        }
    }

    fn leader(&self) -> ProcessId {
        *self.routers.iter().find(|(_, router)| router.is_leader()).expect("somebody leads").0
    }
}

#[test]
fn two_operators_whose_commands_conflict_each_get_their_own_answer() {
    let mut domain = Routers::founded();
    let leader = domain.leader();
    let others: Vec<ProcessId> = domain.routers.keys().copied().filter(|id| *id != leader).collect();
    // Without both, one would be left of three.
    domain.ask(leader, 1, Change::Remove(others[0]));
    domain.ask(leader, 2, Change::Remove(others[1]));
    domain.run_until(|it| it.ended.len() == 2);
    assert_eq!(domain.ended, [(1, Ok(())), (2, Err(RouterRefusal::Change(ChangeRefusal::TooFew)))]);
}

#[test]
fn two_operators_at_two_routers_each_get_their_own_answer() {
    let mut domain = Routers::founded();
    let leader = domain.leader();
    let others: Vec<ProcessId> = domain.routers.keys().copied().filter(|id| *id != leader).collect();
    let nobody = Peer { id: process(9), address: String::from("nowhere") };
    domain.ask(others[0], 1, Change::Add(nobody));
    domain.ask(others[1], 2, Change::Remove(leader));
    domain.run_until(|it| it.ended.len() == 2);
    domain.ended.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(domain.ended, [(1, Err(RouterRefusal::Change(ChangeRefusal::Unreachable))), (2, Ok(()))]);
}

#[test]
fn a_change_outlives_the_leader_that_was_asked() {
    let mut domain = Routers::founded();
    let leader = domain.leader();
    let asked = *domain.routers.keys().find(|id| **id != leader).expect("there are three");
    domain.silent = Some(leader);
    domain.ask(asked, 1, Change::Remove(leader));
    domain.run_until(|it| !it.ended.is_empty());
    assert_eq!(domain.ended, [(1, Ok(()))]);
}

#[test]
fn what_is_refused_at_once_ends_at_once() {
    let mut domain = Routers::founded();
    let leader = domain.leader();
    domain.ask(leader, 1, Change::Add(peer(1)));
    let reform = RouterCommand::Reform { id: CommandId(2), patience: Duration::from_secs(1) };
    domain.give(leader, Input::Command(reform));
    let members = vec![peer(1)];
    let (id, before, patience) = (CommandId(3), Generation::FIRST, Duration::from_secs(1));
    domain.give(leader, Input::Command(RouterCommand::Refound { id, before, members, patience }));
    let lives = paxos::ReformRefusal::LeaderLives;
    let refused = [(1, Ok(())), (2, Err(lives.into())), (3, Err(RefoundRefusal::NotFresh.into()))];
    assert_eq!(domain.ended, refused);
}
