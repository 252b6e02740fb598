//! The status of a process, for people and for monitoring programs.

use quorate_protocol::{
    Peer, ProcessId,
    group::{Group, GroupId, Record, Roster, StateTransfer, ViewMember},
    partial,
    relay::Counters,
    role::{Role, State},
    rubberband::{Config, StorageState},
};
use serde::{Deserialize, Serialize};

/// The status of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The id of the process, `node.incarnation`.
    pub process: String,
    /// The role of the process.
    pub role: Role,
    /// The state of the process in its role.
    pub state: State,
    /// The reason why the process cannot do its work, as far as the process can tell by itself. `None` if it
    /// can do its work.
    pub hindrance: Option<String>,
    /// The last position that the process knows.
    pub position: u64,
    /// The last position whose effects the process has applied.
    pub executed: u64,
    /// Number of messages or requests that wait in this process.
    pub waiting: u64,
    /// Number of refused messages from peers.
    pub refused: u64,
    /// The generation of the process's domain.
    pub generation: u32,
    /// The incarnation of the router that began the generation, in hexadecimal. Two routers may have begun
    /// generations of the same number independently, and the incarnation distinguishes these generations.
    pub generation_of: String,
    /// The start of the current generation; `None` in the first generation.
    pub reformed: Option<ReformStatus>,
    /// The extent of a router's log, as text. Comparing the texts of two routers compares the extents of
    /// their logs.
    pub log: String,
    /// The version of the configuration; 0 if the process has no configuration yet.
    pub config_version: u64,
    /// The version of the placement.
    pub placement: u64,
    /// All members that the process knows.
    pub members: Vec<MemberStatus>,
    /// All tables that the process knows.
    pub tables: Vec<TableStatus>,
    /// Number of ranges of the ring.
    pub ranges: usize,
    /// Number of replicas of each range.
    pub replicas: u8,
    /// All routers. Empty if the process is not a router.
    pub routers: Vec<String>,
    /// The routers as they will be after the membership change that is under way, if this process is a router
    /// and knows such a change. The change needs a majority of these routers, too.
    pub routers_open: Option<Vec<String>>,
    /// Number of routers that the domain aims to have.
    pub wanted_routers: usize,
    /// Number of storage processes with which the ring is founded.
    pub wanted_storage: usize,
    /// The lead router, if the process knows it.
    pub leader: Option<String>,
    /// The address of the lead router, if this is an application process that knows it.
    pub leader_address: Option<String>,
    /// Counters of the role that have no field of their own, by name.
    pub figures: Vec<(String, u64)>,
}

/// The start of a generation of the domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReformStatus {
    /// Whether no router survived, so that the domain continued from the members' records.
    #[serde(default)]
    pub from_members: bool,
    /// The last position that the surviving router knew. If no router survived, the last position up to which
    /// every member had delivered everything.
    pub behind: u64,
    /// The last position that at least one member had delivered.
    pub through: u64,
    /// Number of positions after `behind` that were recovered from members.
    pub recovered: u64,
    /// Number of positions after `behind` that no member could supply.
    pub missing: u64,
    /// Former members that did not answer in time.
    pub fenced: Vec<String>,
}

/// A table of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableStatus {
    /// The name of the table.
    pub name: String,
    /// The number of the table.
    pub table: u32,
    /// The position at which the table was created.
    pub created: u64,
}

/// A member, as the configuration of the reporting process shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The id of the process, `node.incarnation`.
    pub process: String,
    /// The name of the member.
    pub name: String,
    /// The role of the member.
    pub role: Role,
    /// The incarnation of the process, in hexadecimal.
    #[serde(default)]
    pub incarnation: String,
    /// The address at which the member listens for other processes.
    #[serde(default)]
    pub address: String,
    /// The state of the member, if it is a storage process.
    pub state: Option<State>,
    /// The position of the member on the ring.
    pub ring: Option<u64>,
    /// The last position whose writes a keeper's kept rows contain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeps_through: Option<u64>,
}

/// A process group, as the configuration of a router shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// The name of the group.
    pub name: String,
    /// The number of the group's view: the position at which the view began. 0 if the group has no members
    /// and continues from a checkpoint.
    pub view: u64,
    /// Whether a change of the view is under way.
    pub changing: bool,
    /// The members, oldest first. A member's index in the list is its rank.
    pub members: Vec<GroupMemberStatus>,
    /// The processes that wait to join.
    pub joining: Vec<String>,
    /// The newest checkpoint that the routers know: the view at whose beginning the state was taken, and the
    /// group's life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// The group's IP multicast address. Several groups may share one address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<String>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupMemberStatus {
    /// The id of the process, `node.incarnation`.
    pub process: String,
    /// The address at which the member listens for other members.
    pub address: String,
    /// Whether the member has the group's state. A member without the state waits for it.
    pub whole: bool,
    /// Whether the member is about to leave.
    pub leaving: bool,
    /// Whether the member was suspected, so that it leaves with the current view.
    pub dropped: bool,
}

impl GroupStatus {
    /// Returns all groups, sorted by name: groups with members or with processes that join, and groups that
    /// continue from a checkpoint.
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
            "" => format!("{:016x} (the routers do not know its name)", id.0),
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
        let member = |entry: &ViewMember| GroupMemberStatus {
            process: entry.peer.id.to_string(),
            address: entry.peer.address.clone(),
            whole: entry.transfer == StateTransfer::Complete,
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

pub(super) fn of_storage(state: StorageState) -> State {
    match state {
        StorageState::Standby => State::Standby,
        StorageState::Receiving { .. } => State::Receiving,
        StorageState::Active => State::Serving,
        StorageState::Unreachable => State::Unreachable,
        StorageState::Keeping(_) => State::Keeping,
        StorageState::Away { .. } => State::Away,
    }
}

pub(super) fn names(peers: &[Peer]) -> Vec<String> {
    peers.iter().map(|peer| peer.id.to_string()).collect()
}

impl Status {
    pub(super) fn new(me: ProcessId, role: Role) -> Self {
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

    pub(super) fn config(&mut self, config: Option<&Config>) {
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

    /// Adds the members of maps, as the router's configuration shows them.
    pub(super) fn maps(&mut self, roster: &partial::Roster) {
        self.members.extend(roster.members().map(|(process, member)| MemberStatus {
            process: process.to_string(),
            name: member.name.clone(),
            role: Role::Cell,
            incarnation: format!("{:032x}", process.incarnation.0),
            address: member.address.clone(),
            state: None,
            ring: None,
            keeps_through: None,
        }));
    }

    /// Adds the counters of the relay.
    pub(crate) fn relay(&mut self, counters: Counters) {
        let Counters { sessions, begun, pairs, carried_bytes, refused } = counters;
        self.refused += refused;
        self.figure("relayed_links", sessions);
        self.figure("relayed_links_begun", begun);
        self.figure("pairs_relayed_for", pairs);
        self.figure("bytes_relayed", carried_bytes);
    }

    pub(super) fn figure(&mut self, name: &str, value: u64) {
        self.figures.push((name.to_owned(), value));
    }
}
