//! Routers that communicate in memory, for the tests of this folder. Members are mere ids; messages to them
//! are recorded.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::BytesMut;

use super::{
    Message, Router, RouterCommand, RouterEvent, RouterRefusal, RouterSettings,
    toy::{Toy, process},
};
use crate::{
    Context, Destination, Duration, Input, Peer, Policy, ProcessId, Protocol, Session, Sink, Ticket, Time,
    paxos::{self, Change, Paxos},
    seam::CommandId,
    wire::Wire,
};

/// Number of routers with which the domain is founded; their node numbers count from 1.
pub(super) const ROUTERS: u64 = 3;

pub(super) struct Routers {
    pub(super) routers: BTreeMap<ProcessId, Router<Toy>>,
    queue: VecDeque<(ProcessId, ProcessId, Message)>,
    /// A router that hears nobody and is heard by nobody.
    pub(super) silent: Option<ProcessId>,
    /// Pairs of routers without a link.
    cut: BTreeSet<(ProcessId, ProcessId)>,
    /// Every message sent, except the log's: sender, destination, message.
    pub(super) said: Vec<(ProcessId, ProcessId, Message)>,
    /// Ends of operators' commands.
    pub(super) ended: Vec<(u64, Result<(), RouterRefusal>)>,
    /// Links that routers asked for.
    pub(super) sought: Vec<ProcessId>,
    /// The records on each router's disk.
    pub(super) records: BTreeMap<ProcessId, Vec<paxos::Record>>,
    /// Routers that were removed from the set, or cannot continue.
    pub(super) removed: Vec<ProcessId>,
    pub(super) now: Time,
}

struct Out<'a> {
    me: ProcessId,
    sent: Vec<(ProcessId, ProcessId, Message)>,
    ended: &'a mut Vec<(u64, Result<(), RouterRefusal>)>,
    sought: &'a mut Vec<ProcessId>,
    records: &'a mut Vec<paxos::Record>,
    removed: &'a mut Vec<ProcessId>,
}

impl Sink<Router<Toy>> for Out<'_> {
    fn send(&mut self, to: Destination, message: Message, _: Option<Ticket>) {
        let to = match to {
            Destination::One(to) => vec![to],
            Destination::Many(many) => many,
        };
        self.sent.extend(to.into_iter().map(|to| (self.me, to, message.clone())));
    }

    fn persist(&mut self, record: paxos::Record) -> Ticket {
        self.records.push(record);
        Ticket(self.records.len() as u64)
    }

    fn emit(&mut self, event: RouterEvent<BTreeSet<ProcessId>>) {
        match event {
            RouterEvent::Ended { id, result } => self.ended.push((id.0, result)),
            RouterEvent::Removed => self.removed.push(self.me),
            _ => {}
        }
    }

    fn reach(&mut self, peer: ProcessId, _: &str) {
        self.sought.push(peer);
    }

    fn forget(&mut self, _: ProcessId) {}

    fn adopt(&mut self, _: Arc<dyn Policy>) {}
}

pub(super) fn peer(node: u64) -> Peer {
    Peer { id: process(node), address: format!("{node}") }
}

/// Creates a router: node 1 founds a domain of `wanted` routers with these members, any other node asks node
/// 1 for admission.
pub(super) fn router(node: u64, wanted: u64, members: &[u64]) -> Router<Toy> {
    let settings = paxos::Settings { wanted: wanted as usize, ..paxos::Settings::default() };
    let paxos = match node {
        1 => Paxos::found(peer(1), settings.clone(), Time::ZERO),
        node => Paxos::join(peer(node), vec![peer(1)], settings.clone(), Time::ZERO),
    };
    let settings = RouterSettings { paxos: settings, ..RouterSettings::default() };
    Router::new(paxos, members.iter().map(|&node| process(node)).collect(), settings)
}

impl Routers {
    /// Founds a domain of three routers.
    pub(super) fn founded() -> Routers {
        Routers::founded_with(&[])
    }

    /// Founds a domain of three routers with these members.
    pub(super) fn founded_with(members: &[u64]) -> Routers {
        let config = |node| if node == 1 { members } else { &[] };
        let mut domain = Routers::of((1..=ROUTERS).map(|node| (node, router(node, ROUTERS, config(node)))));
        for one in 1..=ROUTERS {
            for other in (1..=ROUTERS).filter(|other| *other != one) {
                domain.link(process(one), process(other));
            }
        }
        let complete =
            |it: &Routers| it.routers.values().all(|router| router.log().members().len() == ROUTERS as usize);
        domain.run_until(complete);
        domain
    }

    /// Starts a router with this node number in a domain without other routers.
    pub(super) fn fresh(node: u64) -> Routers {
        Routers::of([(node, router(node, 1, &[]))])
    }

    fn of(routers: impl IntoIterator<Item = (u64, Router<Toy>)>) -> Routers {
        let routers: BTreeMap<_, _> = routers.into_iter().map(|(node, it)| (process(node), it)).collect();
        Routers {
            records: routers.keys().map(|router| (*router, Vec::new())).collect(),
            removed: Vec::new(),
            routers,
            queue: VecDeque::new(),
            silent: None,
            cut: BTreeSet::new(),
            said: Vec::new(),
            ended: Vec::new(),
            sought: Vec::new(),
            now: Time::ZERO,
        }
    }

    pub(super) fn give(&mut self, to: ProcessId, input: Input<Router<Toy>>) {
        let Routers { routers, queue, ended, sought, records, removed, now, .. } = self;
        let router = routers.get_mut(&to).expect("the rig has this router");
        let records = records.get_mut(&to).expect("the rig has this router");
        let mut durable = records.len();
        let mut out = Out { me: to, sent: Vec::new(), ended, sought, records, removed };
        let mut random = || 0x1234_5678_9abc_def0 ^ to.node;
        let mut cx = Context { now: *now, me: to, random: &mut random };
        router.handle(&mut cx, input, &mut out);
        while durable < out.records.len() {
            durable = out.records.len();
            router.handle(&mut cx, Input::Persisted(Ticket(durable as u64)), &mut out);
        }
        let sent = out.sent;
        let said = |(_, _, message): &&(_, _, Message)| !matches!(message, Message::Paxos(_));
        self.said.extend(sent.iter().filter(said).cloned());
        queue.extend(sent.into_iter().filter(|(_, to, _)| routers.contains_key(to)));
    }

    /// Gives `to` a message on a standing link.
    pub(super) fn say(&mut self, from: ProcessId, to: ProcessId, message: Message) {
        self.give(to, Input::Receive { from, message });
    }

    /// Tells `at` that its link to `peer` stands.
    pub(super) fn link(&mut self, at: ProcessId, peer: ProcessId) {
        self.give(at, Input::Linked { peer, session: Session(at.node * peer.node) });
    }

    /// Tells `at` that its link to `peer` broke.
    pub(super) fn unlink(&mut self, at: ProcessId, peer: ProcessId) {
        self.give(at, Input::Unlinked { peer });
    }

    /// Cuts the link between two routers.
    pub(super) fn cut(&mut self, one: ProcessId, other: ProcessId) {
        self.cut.extend([(one, other), (other, one)]);
        self.unlink(one, other);
        self.unlink(other, one);
    }

    /// Removes a router for good.
    pub(super) fn lose(&mut self, router: ProcessId) {
        self.routers.remove(&router);
        self.queue.retain(|(_, to, _)| *to != router);
        for other in self.routers.keys().copied().collect::<Vec<_>>() {
            self.unlink(other, router);
        }
    }

    /// Kills a router and restarts it from its disk, which holds its first `durable` records and the
    /// generation that it had entered. Its links break.
    pub(super) fn restart(&mut self, router: ProcessId, durable: usize) {
        let records = self.records.get_mut(&router).expect("the rig has this router");
        records.truncate(durable);
        let bytes = records.iter().map(|record| {
            let mut bytes = BytesMut::new();
            record.encode(&mut bytes);
            bytes.freeze()
        });
        let router = self.routers.get_mut(&router).expect("the rig has this router");
        let (me, settings) = (peer(router.log().me().node), router.settings.clone());
        let paxos = Paxos::recover(me, settings.paxos.clone(), bytes, self.now);
        let paxos = paxos.expect("records follow from each other").expect("the router has durable records");
        *router = Router::new(paxos, BTreeSet::new(), settings);
    }

    /// Gives a router an operator's change of the routers.
    pub(super) fn ask(&mut self, to: ProcessId, id: u64, change: Change) {
        self.give(to, Input::Command(RouterCommand::Change { id: CommandId(id), change }));
    }

    /// Runs the domain for this time.
    pub(super) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.step();
        }
    }

    pub(super) fn run_until(&mut self, done: impl Fn(&Routers) -> bool) {
        let end = self.now + Duration::from_secs(60);
        while !done(self) {
            assert!(self.now < end, "the wanted state comes about within a minute: {:?}", self.ended);
            self.step();
        }
    }

    fn step(&mut self) {
        self.now = self.now + Duration::from_millis(10);
        for id in self.routers.keys().copied().collect::<Vec<_>>() {
            if self.routers[&id].deadline().is_some_and(|deadline| deadline <= self.now) {
                self.give(id, Input::Deadline);
            }
            self.give(id, Input::Drained);
        }
        for _ in 0..self.queue.len() {
            let (from, to, message) =
                self.queue.pop_front().expect("the queue has as many messages as were counted");
            let heard =
                self.silent != Some(from) && self.silent != Some(to) && !self.cut.contains(&(from, to));
            if from == to || heard {
                self.give(to, Input::Receive { from, message });
            }
        }
    }

    pub(super) fn leader(&self) -> ProcessId {
        *self.routers.iter().find(|(_, router)| router.is_leader()).expect("one of the routers leads").0
    }

    /// Returns the routers that do not lead.
    pub(super) fn followers(&self) -> Vec<ProcessId> {
        self.routers.iter().filter(|(_, router)| !router.is_leader()).map(|(id, _)| *id).collect()
    }

    /// Returns the number of messages that this router has refused.
    pub(super) fn refused(&self, router: ProcessId) -> u64 {
        self.routers[&router].refused
    }
}
