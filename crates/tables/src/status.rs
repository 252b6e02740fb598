//! Where a process stands, for people and the programs they watch it with.

use quorate_protocol::{
    Peer, ProcessId,
    group::{AddressStatistics, Entry, Group, GroupId, Record, Roster, Standing},
    paxos::StateKind,
    relay::Figures,
    role::{Role, State},
    rubberband::{Config, StorageState},
};
use serde::{Deserialize, Serialize};

use crate::Process;

/// Where a process stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The process, `node.incarnation`.
    pub process: String,
    /// What it does.
    pub role: Role,
    /// What it is in that.
    pub state: State,
    /// Why it can not do its work, as far as it can tell alone, if it can not.
    pub hindrance: Option<String>,
    /// The last position that it knows of.
    pub position: u64,
    /// The last position whose effects it has.
    pub executed: u64,
    /// Messages or requests that wait here.
    pub waiting: u64,
    /// Messages from peers that were refused.
    pub refused: u64,
    /// The generation of the domain that it belongs to.
    pub generation: u32,
    /// Which life of a router that began with, in hexadecimal: two of one number may have begun beside each other.
    pub generation_of: String,
    /// What that generation began with, unless it is the first.
    pub reformed: Option<ReformStatus>,
    /// How far a router knows the log: the text of two compares as they do.
    pub log: String,
    /// The version of its configuration; 0 before it has one.
    pub config_version: u64,
    /// The version of the placement.
    pub placement: u64,
    /// All members it knows of.
    pub members: Vec<MemberStatus>,
    /// All tables it knows of.
    pub tables: Vec<TableStatus>,
    /// How many ranges the ring is cut into.
    pub ranges: usize,
    /// How many replicas each range has.
    pub replicas: u8,
    /// All routers, as a router knows them.
    pub routers: Vec<String>,
    /// The routers that a change under way would make, as a router knows of it: a majority of these is needed then.
    pub routers_open: Option<Vec<String>>,
    /// How many the domain keeps.
    pub wanted_routers: usize,
    /// How many storage processes its ring is founded with.
    pub wanted_storage: usize,
    /// The lead router, if known.
    pub leader: Option<String>,
    /// Where that listens, as an application process knows it.
    pub leader_address: Option<String>,
    /// Figures of this role.
    pub figures: Vec<(String, u64)>,
}

/// What a generation of the domain began with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReformStatus {
    /// No router survived: the domain went on from what members had.
    #[serde(default)]
    pub from_members: bool,
    /// The surviving router knew everything up to here, or, without one, no member lacked anything.
    pub behind: u64,
    /// The last position that a member had delivered.
    pub through: u64,
    /// How many positions between were recovered from members.
    pub recovered: u64,
    /// How many were not.
    pub missing: u64,
    /// Members that did not answer, and are members no more.
    pub fenced: Vec<String>,
}

/// A table, as the configuration has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableStatus {
    /// Its name.
    pub name: String,
    /// Its number.
    pub table: u32,
    /// Where it was created.
    pub created: u64,
}

/// A member, as another process's configuration has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The process, `node.incarnation`.
    pub process: String,
    /// Its name.
    pub name: String,
    /// What it does.
    pub role: Role,
    /// Which life of its node it is, in hexadecimal.
    #[serde(default)]
    pub incarnation: String,
    /// Where it listens for other processes.
    #[serde(default)]
    pub address: String,
    /// Of a storage process: what it is in that.
    pub state: Option<State>,
    /// Its place on the ring.
    pub ring: Option<u64>,
    /// Of one that keeps rows of a former life: up to which position it has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeps_through: Option<u64>,
}

/// A process group, as a router knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// The number of its view: where in the order that began. 0 if nobody is in it, and it goes on from a checkpoint.
    pub view: u64,
    /// Whether the view is about to be followed by another one.
    pub changing: bool,
    /// Its members, oldest first: the place is a member's rank.
    pub members: Vec<GroupMemberStatus>,
    /// Processes that wait to be taken in.
    pub joining: Vec<String>,
    /// The newest checkpoint that the routers know of: the view at whose beginning its state was taken, and the group's life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// Its IP multicast address. Groups may share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<String>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupMemberStatus {
    /// The process, `node.incarnation`.
    pub process: String,
    /// Where it listens for other members.
    pub address: String,
    /// Whether it has the group's state, or waits for it.
    pub whole: bool,
    /// Whether it is about to leave.
    pub leaving: bool,
    /// Whether it was suspected, and goes with this view.
    pub dropped: bool,
}

impl GroupStatus {
    /// Of all groups, by name: those that somebody is in or about to join, and those that go on from a checkpoint.
    pub fn of(roster: &Roster) -> Vec<GroupStatus> {
        let live = roster.groups().map(|(id, group)| GroupStatus {
            multicast: roster.address(id).map(|address| address.ip().to_string()),
            ..Self::one(group, roster.record(id))
        });
        let idle = roster.idle().map(|(id, name, record)| Self::idle(id, name, record));
        let mut groups: Vec<GroupStatus> = live.chain(idle).collect();
        groups.sort_by(|one, other| one.name.cmp(&other.name));
        groups
    }

    fn idle(id: GroupId, name: &str, record: Record) -> GroupStatus {
        let name = match name {
            "" => format!("{:016x}, of an unknown name", id.0),
            name => name.to_owned(),
        };
        GroupStatus {
            name,
            view: 0,
            changing: false,
            members: Vec::new(),
            joining: Vec::new(),
            checkpoint: Some(record.newest.to_string()),
            multicast: None,
        }
    }

    fn one(group: &Group, record: Option<Record>) -> GroupStatus {
        let member = |entry: &Entry| GroupMemberStatus {
            process: entry.peer.id.to_string(),
            address: entry.peer.address.clone(),
            whole: entry.standing == Standing::Whole,
            leaving: group.leaving.contains(&entry.peer.id),
            dropped: group.dropped.contains(&entry.peer.id),
        };
        GroupStatus {
            name: group.name.clone(),
            view: group.view.number.0,
            changing: group.change.is_some(),
            members: group.view.places().filter_map(|(id, _)| group.view.entry(id)).map(member).collect(),
            joining: names(&group.joining),
            checkpoint: record.map(|record| record.newest.to_string()),
            multicast: None,
        }
    }
}

fn of_storage(state: StorageState) -> State {
    match state {
        StorageState::Standby => State::Standby,
        StorageState::Receiving { .. } => State::Receiving,
        StorageState::Active => State::Serving,
        StorageState::Unreachable => State::Unreachable,
        StorageState::Keeping(_) => State::Keeping,
        StorageState::Away { .. } => State::Away,
    }
}

fn of_router(state: StateKind) -> State {
    match state {
        StateKind::Joining => State::Joining,
        StateKind::Follower => State::Following,
        StateKind::Candidate => State::Electing,
        StateKind::Leader => State::Leading,
        StateKind::Removed => State::Removed,
    }
}

fn names(peers: &[Peer]) -> Vec<String> {
    peers.iter().map(|peer| peer.id.to_string()).collect()
}

impl Status {
    fn new(me: ProcessId, role: Role) -> Self {
        Status {
            process: me.to_string(),
            role,
            state: State::Joining,
            hindrance: None,
            position: 0,
            executed: 0,
            waiting: 0,
            refused: 0,
            generation: 0,
            generation_of: String::new(),
            reformed: None,
            log: String::new(),
            config_version: 0,
            placement: 0,
            members: Vec::new(),
            tables: Vec::new(),
            ranges: 0,
            replicas: 0,
            routers: Vec::new(),
            routers_open: None,
            wanted_routers: 0,
            wanted_storage: 0,
            leader: None,
            leader_address: None,
            figures: Vec::new(),
        }
    }

    fn config(&mut self, config: Option<&Config>) {
        let Some(config) = config else { return };
        self.config_version = config.version;
        self.placement = config.placement;
        self.ranges = config.segments().len();
        self.replicas = config.replicas;
        self.wanted_routers = config.wanted_routers as usize;
        self.wanted_storage = config.wanted_storage as usize;
        let tables = config.tables.iter();
        let tables = tables.map(|(&table, entry)| TableStatus {
            name: entry.name.clone(),
            table,
            created: entry.created.0,
        });
        self.tables = tables.collect();
        self.state = State::Serving;
        for (process, info) in &config.members {
            self.members.push(MemberStatus {
                process: process.to_string(),
                name: info.name.clone(),
                role: info.role,
                incarnation: format!("{:032x}", process.incarnation.0),
                address: info.address.clone(),
                state: config.storage.get(process).copied().map(of_storage),
                ring: config.ring.iter().find(|(_, holder)| *holder == process).map(|(key, _)| *key),
                keeps_through: config.keeps(*process).map(|keeps| keeps.through.0),
            });
        }
    }

    /// Adds the figures of the links below the node.
    pub(crate) fn relay(&mut self, figures: Figures) {
        let Figures { sessions, begun, pairs, carried_bytes, refused } = figures;
        self.refused += refused;
        self.figure("relayed_links", sessions);
        self.figure("relayed_links_begun", begun);
        self.figure("pairs_relayed_for", pairs);
        self.figure("bytes_relayed", carried_bytes);
    }

    fn figure(&mut self, name: &str, value: u64) {
        self.figures.push((name.to_owned(), value));
    }
}

impl Process {
    /// Where the process stands.
    pub fn status(&self, me: ProcessId) -> Status {
        let mut status = self.standing(me);
        let generation = self.generation();
        status.generation = generation.number;
        status.generation_of = format!("{:032x}", generation.survivor.0);
        status.hindrance = self.hindrance_named();
        status.leader_address = self.leader_address().map(str::to_owned);
        status
    }

    fn standing(&self, me: ProcessId) -> Status {
        match self {
            Process::Router(router) => {
                let mut status = Status::new(me, Role::Router);
                let order = router.status();
                let log = router.log().status();
                status.config(Some(&router.config().tables));
                status.state = of_router(log.state);
                status.reformed = order.reformed.map(|reformed| ReformStatus {
                    from_members: reformed.from_members.is_some(),
                    behind: reformed.behind.0,
                    through: reformed.through.0,
                    recovered: reformed.recovered,
                    missing: reformed.missing,
                    fenced: reformed.fenced.iter().map(ProcessId::to_string).collect(),
                });
                let (ballot, through) = log.known;
                status.log = format!(
                    "{:020}.{:020}.{:032x}.{:020}",
                    ballot.round, ballot.router.node, ballot.router.incarnation.0, through.0
                );
                status.position = order.position.0;
                status.executed = order.base.0;
                status.waiting = order.position.0 - order.base.0;
                status.refused = order.refused;
                status.routers = names(&order.routers);
                status.routers_open = log.members_open.as_deref().map(names);
                status.wanted_routers = router.wanted();
                status.leader = order.leader.map(|leader| leader.to_string());
                let groups = &router.config().groups;
                status.figure("groups", groups.groups().count() as u64);
                status.figure("group_processes", groups.processes() as u64);
                let AddressStatistics { candidates, served, addresses, wanted, unwanted } =
                    groups.address_statistics();
                status.figure("multicast_candidates", candidates);
                status.figure("multicast_groups", served);
                status.figure("multicast_addresses", addresses);
                status.figure("multicast_wanted_deliveries", wanted);
                status.figure("multicast_unwanted_deliveries", unwanted);
                status.figure("slot", log.chosen.0);
                status.figure("configurations", order.configs as u64);
                status.figure("resends", order.resends);
                status
            }
            Process::Storage(storage) => {
                let mut status = Status::new(me, Role::Storage);
                let own = storage.status();
                status.config(storage.config());
                if let Some(state) = own.state {
                    status.state = of_storage(state);
                }
                status.position = own.delivered.0;
                status.executed = own.executed.0;
                status.waiting = own.queued as u64;
                status.refused = own.refused;
                status.leader = storage.member().leader().map(|leader| leader.to_string());
                status.figure("pins", own.pins as u64);
                status.figure("answering", own.answering as u64);
                status.figure("held_bytes", own.held_bytes);
                status.figure("results_without_room", own.no_room);
                status.figure("results_untaken", own.untaken);
                status.figure("repeated", own.repeated);
                status.figure("remembered", own.remembered);
                status.figure("remembered_bytes", own.remembered_bytes);
                status
            }
            Process::Super(superior) => {
                let mut status = Status::new(me, Role::Super);
                status.config(superior.config());
                status.position = superior.member().delivered().0;
                status.executed = status.position;
                status.refused = superior.refused();
                status.leader = superior.member().leader().map(|leader| leader.to_string());
                status.figure("suspected", superior.suspected().count() as u64);
                status
            }
            Process::Client(client) => {
                let mut status = Status::new(me, Role::Gateway);
                status.config(client.config());
                status.position = client.member().delivered().0;
                status.executed = status.position;
                status.waiting = client.outstanding() as u64;
                status.refused = client.refused();
                status.leader = client.member().leader().map(|leader| leader.to_string());
                status.figure("retries", client.retries());
                status
            }
        }
    }
}
