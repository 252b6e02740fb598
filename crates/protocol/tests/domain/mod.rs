//! Parts of one domain: tables, groups, and a counter that this test adds by one line in a list.

mod counter;

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use quorate_protocol::{
    Incarnation, NotAdmitted, ProcessId, Role,
    domain::{Domain, Part, Shared, refusal},
    ecast::{Class, MessageId, Pace, Position, Refusal, Routing},
    group::{self, GroupId, Groups},
    partial::{Change, Maps, Site, tokens_of},
    rubberband::{self, ROUTING_VERSION, Rubberband},
    wire::encode_body,
};

use counter::{Counters, Message};

quorate_protocol::compose! {
    /// The domain of a cluster, with counters added.
    pub Trio {
        /// Tables.
        tables: Rubberband,
        /// Process groups.
        groups: Groups,
        /// Counters.
        counters: Counters,
    }
}

fn process(node: u64) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(1) }
}

/// Orders messages one by one, as routers do, and lets counters apply their deliveries.
struct Order {
    config: Config,
    ledger: Ledger,
    at: u64,
    values: BTreeMap<u64, u64>,
}

impl Order {
    fn new() -> Order {
        let (config, ledger) = (Config::vacant(), Ledger::default());
        Order { config, ledger, at: 0, values: BTreeMap::new() }
    }

    /// Orders a message. Returns the nodes that receive it.
    fn submit(&mut self, node: u64, (class, body): (Class, Bytes)) -> Result<Vec<u64>, Refusal> {
        self.at += 1;
        let (at, sender) = (Position(self.at), process(node));
        if class == Class::Control
            && let Some(config) = Trio::apply(&self.config, at, sender, &body)?
        {
            self.config = config;
        }
        Trio::admit(&mut self.ledger, at, class, &body)?;
        let id = MessageId { sender, number: self.at };
        let found = Trio::destinations(&self.config, id, class, &body)?;
        let nodes: Vec<u64> = found.processes.iter().map(|process| process.node).collect();
        if let Ok(Message::Add(count)) = Message::decode(&body) {
            nodes.iter().for_each(|node| *self.values.entry(*node).or_default() += u64::from(count));
        }
        Ok(nodes)
    }
}

fn control(body: Bytes) -> (Class, Bytes) {
    (Class::Control, body)
}

fn join_tables(role: Role) -> (Class, Bytes) {
    let (name, address) = (String::from("somebody"), String::from("somewhere"));
    control(rubberband::Control::Join { role, name, address, terms: None, keeps: None }.encode())
}

fn enter_groups() -> (Class, Bytes) {
    control(group::Control::Enter.encode())
}

fn join_group() -> (Class, Bytes) {
    control(
        group::Control::Join {
            group: GroupId(5),
            name: String::from("five"),
            address: String::from("somewhere"),
        }
        .encode(),
    )
}

/// Returns an order with two processes of each part: tables, groups and counters.
fn six() -> Order {
    let mut order = Order::new();
    assert_eq!(order.submit(1, join_tables(Role::Super)), Ok(vec![1]));
    assert_eq!(order.submit(2, join_tables(Role::Storage)), Ok(vec![1, 2]));
    for node in [3, 4] {
        assert_eq!(order.submit(node, enter_groups()), Ok(vec![node]));
        assert!(order.submit(node, join_group()).is_ok());
    }
    assert_eq!(order.submit(5, Message::Join.encode()), Ok(vec![5]));
    assert_eq!(order.submit(6, Message::Join.encode()), Ok(vec![5, 6]));
    order
}

#[test]
fn parts_do_not_receive_each_others_messages() {
    let mut order = six();
    assert_eq!(order.submit(5, Message::Add(2).encode()), Ok(vec![5, 6]));
    assert_eq!(order.submit(6, Message::Add(3).encode()), Ok(vec![5, 6]));
    assert_eq!(order.submit(6, Message::Leave.encode()), Ok(vec![5]));
    assert_eq!(order.submit(5, Message::Add(4).encode()), Ok(vec![5]));
    assert_eq!(order.values, BTreeMap::from([(5, 9), (6, 5)]));
    assert!(order.config.groups.group(GroupId(5)).is_some_and(|group| group.change.is_some()));
    let everybody: Vec<u64> = Trio::members(&order.config).iter().map(|process| process.node).collect();
    assert_eq!(everybody, [1, 2, 3, 4, 5]);
    assert!(everybody.iter().all(|node| Trio::is_member(&order.config, process(*node))));
    assert!(!Trio::is_member(&order.config, process(6)));
    assert_eq!(order.ledger.counters, 6, "and nobody else's messages");
}

#[test]
fn a_process_is_in_one_part() {
    let mut order = six();
    let before = order.config.clone();
    for (node, message) in [
        (1, enter_groups()),
        (2, Message::Join.encode()),
        (3, join_tables(Role::Gateway)),
        (5, enter_groups()),
    ] {
        assert_eq!(order.submit(node, message), Err(refusal::OTHER_PART), "{node}");
    }
    assert_eq!(order.config, before);
    assert_eq!(order.config.part_of(process(4)), Some(Groups::TAG));
    assert_eq!(order.config.part_of(process(7)), None);
}

#[test]
fn messages_of_no_part_are_refused() {
    let mut order = six();
    for body in [&[][..], &[0], &[77, 1, 2]] {
        for class in [Class::Control, Class::Data] {
            let refused = order.submit(5, (class, Bytes::copy_from_slice(body)));
            assert!(matches!(refused, Err(refusal::NO_PART | refusal::OTHER_PART)), "{body:?}: {refused:?}");
        }
    }
    // Routers that do not know the part of counters refuse its messages.
    let (_, join) = Message::Join.encode();
    let known = quorate_protocol::domain::Config::vacant();
    assert_eq!(Domain::apply(&known, Position(1), process(5), &join), Err(refusal::NO_PART));
}

#[test]
fn a_change_of_one_part_leaves_the_others_where_they_are() {
    let mut order = six();
    let before = order.config.clone();
    order.submit(7, Message::Join.encode()).unwrap();
    let place = |config: &Config| (&raw const *config.tables, &raw const *config.groups);
    assert_eq!(place(&order.config), place(&before));
    assert_ne!(order.config, before);
    // All parts survive a snapshot.
    let mut bytes = BytesMut::new();
    encode_body(&mut bytes, &order.config);
    let read: Config = quorate_protocol::wire::decode_body(&mut bytes.freeze()).unwrap();
    assert_eq!(read, order.config);
}

#[test]
fn each_part_defines_its_pace_and_its_process_of_a_node() {
    let order = six();
    for node in 1..=6 {
        assert_eq!(Trio::pace(&order.config, process(node)), Pace::Executes, "{node}");
    }
    assert_eq!(Trio::of_node(&order.config, 2).map(|peer| peer.id), Some(process(2)));
    assert_eq!(Trio::of_node(&order.config, 5), None);
    // A second process of the storage process's node hears why the routers refuse it.
    let namesake = ProcessId { node: 2, incarnation: Incarnation(9) };
    let (_, body) = join_tables(Role::Storage);
    assert!(Trio::not_admitted(&order.config, namesake, &body).is_some());
    assert!(Trio::not_admitted(&order.config, namesake, &enter_groups().1).is_none());
}

/// Returns the tables of a domain that the build before maps founded.
fn former_tables() -> rubberband::Config {
    let mut bytes = postcard::to_stdvec(&*Config::vacant().tables).unwrap();
    let version = u32::from(bytes[0]);
    assert_eq!(version, ROUTING_VERSION, "the configuration of tables begins with the version of routing");
    bytes[0] = 1;
    postcard::from_bytes(&bytes).unwrap()
}

/// The configuration as the build before maps wrote it into snapshots.
#[derive(serde::Serialize, serde::Deserialize)]
struct FormerConfig {
    tables: rubberband::Config,
    groups: group::Roster,
}

#[test]
fn snapshots_from_before_maps_open_and_stay_as_they_were() {
    let order = six();
    let former = FormerConfig { tables: former_tables(), groups: (*order.config.groups).clone() };
    let bytes = postcard::to_stdvec(&former).unwrap();
    // In a snapshot, further bytes follow the configuration.
    let (read, rest): (quorate_protocol::domain::Config, _) =
        postcard::take_from_bytes(&[&bytes[..], &[77]].concat())
            .map(|(read, rest)| (read, rest.to_vec()))
            .unwrap();
    assert_eq!((&*read.tables, &*read.groups, rest), (&former.tables, &former.groups, vec![77]));
    assert_eq!(*read.maps, Maps::vacant());
    assert_eq!(read.version(), 1);
    assert_eq!(postcard::to_stdvec(&read).unwrap(), bytes, "a router of the build before maps can read it");
    // The routers' ledger of maps takes no bytes either.
    let ledger = postcard::to_stdvec(&quorate_protocol::domain::Ledger::default()).unwrap();
    let of_two = (<Rubberband as Routing>::Ledger::default(), <Groups as Routing>::Ledger::default());
    assert_eq!(ledger, postcard::to_stdvec(&of_two).unwrap());
    // A domain of this build has maps.
    let present = quorate_protocol::domain::Config::vacant();
    let bytes = postcard::to_stdvec(&present).unwrap();
    assert_eq!(postcard::from_bytes::<quorate_protocol::domain::Config>(&bytes).unwrap(), present);
    assert_ne!(bytes, postcard::to_stdvec(&(&*present.tables, &*present.groups)).unwrap());
}

#[test]
fn a_domain_from_before_maps_has_none() {
    let cell = Change::Join {
        name: String::from("cell"),
        address: String::from("somewhere"),
        site: Site(0),
        tokens: tokens_of(1, 4),
    };
    let apply = |config: &quorate_protocol::domain::Config| {
        Domain::apply(config, Position(1), process(1), &cell.encode())
    };
    let mut config = quorate_protocol::domain::Config::vacant();
    let with_cell = apply(&config).unwrap().expect("a cell joins");
    assert_eq!(with_cell.part_of(process(1)), Some(Maps::TAG));
    config.tables = Shared::new(former_tables());
    assert_eq!(apply(&config), Err(refusal::NO_PART));
    let why = Domain::not_admitted(&config, process(1), &cell.encode());
    assert_eq!(why, Some(NotAdmitted::NoPart));
    let id = MessageId { sender: process(1), number: 1 };
    let routed = Domain::destinations(&config, id, Class::Control, &cell.encode());
    assert_eq!(routed, Err(refusal::NO_PART));
}

#[test]
fn a_continued_domain_merges_the_reports_of_all_its_parts() {
    let order = six();
    let begun = Config::vacant();
    let mut of_tables = Config::vacant();
    of_tables.tables = order.config.tables.clone();
    let mut of_counters = Config::vacant();
    of_counters.counters = order.config.counters.clone();
    let reported = vec![(Rubberband::TAG, of_tables), (Counters::TAG, of_counters)];
    let config = Trio::continued(&begun, reported);
    assert_eq!((&config.tables, &config.counters), (&order.config.tables, &order.config.counters));
    assert_eq!(config.groups, begun.groups);
}

#[test]
fn members_bear_witness_to_their_part() {
    let order = six();
    let mut word = BytesMut::new();
    word.put_u8(Rubberband::TAG);
    encode_body(&mut word, &*order.config.tables);
    let config = Trio::witnessed(&word.clone().freeze()).expect("it is a configuration");
    assert_eq!(config.tables, order.config.tables);
    assert_eq!((config.groups.clone(), config.counters.clone()), {
        let vacant = Config::vacant();
        (vacant.groups, vacant.counters)
    });
    word.truncate(word.len() - 1);
    assert!(Trio::witnessed(&word.freeze()).is_none());
    assert!(Trio::witnessed(&Bytes::new()).is_none());
}
