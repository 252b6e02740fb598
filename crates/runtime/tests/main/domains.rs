//! A process in two domains. Its endpoints share one link to each peer, and the end of one domain does not
//! affect the other.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use quorate_node::{Channel, Command, Ending, EndpointId, Event, NewEndpoint, Node};
use quorate_protocol::{
    DomainId, Peer, ProcessId, Protocol as _, Time, domain,
    ecast::{Fence, Router, RouterSettings},
    paxos::{self, Paxos},
    relay::{self, Relay},
    rubberband::{Client, ClientSettings, Super, SuperSettings},
};
use quorate_roles::tables::{self, Command as Ask, status::Status};
use quorate_runtime::{
    Config, Handle, Host, Port, Reactor, clock,
    discover::{DomainAnswer, DomainState, discover},
};

use crate::chat::{DOMAIN, PATIENCE, config, eventually, id};

const OTHER: DomainId = DomainId(0xd1);

type Roles = Node<Relay<tables::Process>>;

/// A host that passes on statuses, and the channels of removed endpoints.
struct EventHandler(Sender<Result<Status, Channel>>);

impl Host<Roles> for EventHandler {
    fn event(&mut self, event: Event<Relay<tables::Process>>, _: Time) {
        match event {
            Event::Typed(_, quorate_roles::tables::Event::Status { status, .. }) => self.0.send(Ok(*status)),
            Event::Ended(channel, Ending::Removed) => self.0.send(Err(channel)),
            _ => Ok(()),
        }
        .expect("the test listens");
    }

    fn answer(&self, node: &Roles, domain: DomainId) -> DomainAnswer {
        match node.typed(channel(domain)) {
            Some(role) => DomainAnswer { presence: DomainState::Settled, pass: role.policy().pass() },
            None => DomainAnswer { presence: DomainState::Joining, pass: Bytes::new() },
        }
    }
}

struct Process {
    me: Peer,
    handle: Handle<Roles>,
    reports: Receiver<Result<Status, Channel>>,
}

fn channel(domain: DomainId) -> Channel {
    Channel { domain, endpoint: EndpointId::TABLES }
}

/// Starts a process with these roles, each in its domain.
fn start(node: u64, roles: impl FnOnce(Peer) -> [tables::Process; 2]) -> Process {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let me = Peer { id: id(node), address: listener.local_addr().unwrap().to_string() };
    let config = Config { others: vec![OTHER], listening: vec![Arc::new(listener)], ..config(me.id) };
    let mut node = Node::new();
    for (domain, role) in [DOMAIN, OTHER].into_iter().zip(roles(me.clone())) {
        let relay = Relay::new(role, relay::Settings::default());
        assert!(node.add(NewEndpoint::typed(channel(domain), relay)).is_ok());
    }
    let (sender, reports) = unbounded();
    let handle =
        Reactor::start(node, EventHandler(sender), Config { listen: Vec::new(), ..config }).expect("starts");
    Process { me, handle, reports }
}

fn founder(me: Peer) -> tables::Process {
    let log = paxos::Settings { wanted: 1, ..paxos::Settings::default() };
    let settings = RouterSettings { paxos: log.clone(), ..RouterSettings::default() };
    let founded = domain::Config::vacant();
    tables::Process::Router(Router::new(Paxos::found(me, log, clock::now()), founded, settings))
}

impl Process {
    fn status(&self, domain: DomainId) -> Status {
        let port = Port::new(self.handle.clone(), channel(domain));
        port.command(Ask::Status { token: 0 }).expect("runs");
        self.reports.recv_timeout(PATIENCE).expect("an answer").expect("nothing ends")
    }

    /// Whether the process is a member of the domain and knows its leader.
    fn follows(&self, domain: DomainId) -> bool {
        let status = self.status(domain);
        let is_member = status.members.iter().any(|member| member.process == self.me.id.to_string());
        is_member && status.leader_address.is_some()
    }
}

#[test]
fn a_process_belongs_to_two_domains_over_one_link() {
    let routers = start(1, |me| [founder(me.clone()), founder(me)]);
    let members = start(2, |me| {
        [
            tables::Process::Super(Super::new(me.clone(), String::from("super"), SuperSettings::default())),
            tables::Process::Client(Client::new(me, String::from("gateway"), ClientSettings::default())),
        ]
    });
    for domain in [DOMAIN, OTHER] {
        let port = Port::new(members.handle.clone(), channel(domain));
        port.command(Ask::Seeds(vec![routers.me.clone()])).expect("runs");
    }
    for domain in [DOMAIN, OTHER] {
        eventually("a member of both", || members.follows(domain));
        let status = members.status(domain);
        assert_eq!(status.members.len(), 1, "each domain has its own members: {:?}", status.members);
    }
    assert_eq!((routers.handle.counters().linked.get(), members.handle.counters().linked.get()), (1, 1));
    let met = |domain| discover(&routers.me.address, domain, Duration::from_secs(5)).unwrap();
    assert_eq!((met(DOMAIN).process, met(OTHER).process), (routers.me.id, routers.me.id));
    assert!(Fence::of_pass(&met(OTHER).answer.pass).unwrap().router);

    // The router of one domain is removed. The other domain does not notice, and the link stays.
    routers.handle.command(Command::Remove(channel(DOMAIN))).unwrap_or_else(|_| panic!("runs"));
    assert_eq!(routers.reports.recv_timeout(PATIENCE), Ok(Err(channel(DOMAIN))));
    eventually("the router is missed", || !members.follows(DOMAIN));
    assert!(members.follows(OTHER));
    assert_eq!(
        (met(DOMAIN).answer.presence, met(OTHER).answer.presence),
        (DomainState::Joining, DomainState::Settled)
    );
    assert_eq!((routers.handle.counters().linked.get(), members.handle.counters().links.get()), (1, 1));
}

/// A process of a third domain is refused, though it knows the address. A process that shares only the second
/// domain is linked.
#[test]
fn one_common_domain_is_enough_for_a_link() {
    let routers = start(1, |me| [founder(me.clone()), founder(me)]);
    let start_in = |node: u64, domain: DomainId| {
        let me: ProcessId = id(node);
        let role = tables::Process::Super(Super::new(
            Peer { id: me, address: String::from("127.0.0.1:1") },
            String::from("super"),
            SuperSettings::default(),
        ));
        let relay = Relay::new(role, relay::Settings::default());
        let node = Node::with(NewEndpoint::typed(channel(domain), relay));
        let (sender, reports) = unbounded();
        let handle =
            Reactor::start(node, EventHandler(sender), Config { domain, ..config(me) }).expect("starts");
        let port = Port::new(handle.clone(), channel(domain));
        port.command(Ask::Seeds(vec![routers.me.clone()])).expect("runs");
        Process { me: Peer { id: me, address: String::new() }, handle, reports }
    };
    let (second, third) = (start_in(2, OTHER), start_in(3, DomainId(0xd2)));
    eventually("a member of the second", || second.follows(OTHER));
    eventually("refused", || third.handle.counters().refused.get() > 0);
    assert_eq!(third.handle.counters().linked.get(), 0);
}

/// A host that ignores all events.
struct Deaf;

impl Host<Relay<tables::Process>> for Deaf {
    fn event(&mut self, _: quorate_roles::tables::Event, _: Time) {}
}

#[test]
fn messages_for_an_absent_endpoint_are_counted() {
    let start = |node: u64, endpoint| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let me = Peer { id: id(node), address: listener.local_addr().unwrap().to_string() };
        let config = Config { listen: Vec::new(), listening: vec![Arc::new(listener)], ..config(me.id) };
        let role = Super::new(me.clone(), String::from("super"), SuperSettings::default());
        let relay = Relay::new(tables::Process::Super(role), relay::Settings::default());
        let metrics = config.metrics.clone();
        (me, metrics, Port::alone(endpoint, relay, Deaf, config).expect("starts"))
    };
    let (there, metrics, _port) = start(1, EndpointId::TABLES);
    let (_, _, asks) = start(2, EndpointId(77));
    asks.command(Ask::Seeds(vec![there])).expect("runs");
    let dropped = |name: &str| {
        let text = metrics.render();
        let line = text.lines().find(|line| line.starts_with(&format!("quorate_letters_{name}_total")));
        line.unwrap_or_else(|| panic!("{name} is not in:\n{text}")).rsplit(' ').next().unwrap().to_owned()
    };
    eventually("it is counted", || dropped("absent") != "0");
    assert_eq!(
        [dropped("foreign"), dropped("late"), dropped("malformed")],
        ["0", "0", "0"].map(String::from)
    );
}
