//! The configuration: members, ranges of each storage process, and tables (002 §6.3, algorithm 3).

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Control, DataHeader, DataKind, KeptRows, MadeUpIds, Range, RequestId, Role,
    control::{Removal, TableChange},
    message::TAG,
    range::Segment,
    refusal,
};
use crate::{
    admission::{NotAdmitted, Terms},
    domain::Part,
    ecast::{Class, Destinations, MessageId, Pace, Position, Refusal, Routing},
    id::{Incarnation, Peer, ProcessId},
    wire::{decode_body, take_u8},
};

/// The version of the routing logic of this build. The configuration of a domain names the version that its
/// members agreed to use (S8). Since version 2 a domain has [maps](crate::partial::Maps), too. Since
/// [`LATEST_SINCE`] routers inject the latest state. Since [`TRANSACTIONS_SINCE`] a write may have several
/// statements. Since [`DEFINITIONS_SINCE`] tables may have constraints and be altered, and since
/// [`TYPES_SINCE`] columns have more types.
pub const ROUTING_VERSION: u32 = 5;

/// The version of routing from which on all routers of a domain know
/// [`Message::InjectLatest`](crate::ecast::Message::InjectLatest). Older domains read the latest state
/// through the log.
pub const LATEST_SINCE: u32 = 3;

/// The version of routing from which on all storage processes of a domain know transactions of several
/// statements.
pub const TRANSACTIONS_SINCE: u32 = 4;

/// The version of routing from which on all processes of a domain know tables with constraints, and
/// [`Control::Define`], which [alters](super::altering) tables, too.
pub const DEFINITIONS_SINCE: u32 = 5;

/// The version of routing from which on all storage processes of a domain know `uuid`, `bytea` and the types
/// after them.
pub const TYPES_SINCE: u32 = 5;

/// The largest number of places on a ring. A write to the whole ring has one bit per destination in each of
/// its groups ([`Destinations::groups`]), and a group has 64 bits.
pub const RING_MAX: usize = 64;

/// A member's entry in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// The member's role: a role [of tables](Role::is_of_tables).
    pub role: Role,
    /// The member's name, for people.
    pub name: String,
    /// The address at which the member listens, as `host:port`.
    pub address: String,
}

/// The state of a storage process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StorageState {
    /// The process is in reserve, without rows.
    Standby,
    /// The process is on the ring, and imports the ranges that a placement change gave it. It takes writes
    /// and serves no reads.
    Receiving {
        /// The position of the placement change.
        change: Position,
    },
    /// The process is on the ring and complete.
    Active,
    /// The process is on the ring and suspected, and some range has no other complete, unsuspected replica.
    /// The cluster waits for the process (S14). The process's ranges take no writes until it returns, so it
    /// misses nothing.
    Unreachable,
    /// The process is not on the ring. It keeps the rows of its former life until other processes have them
    /// ([keeping](super::keeping)).
    Keeping(KeptRows),
    /// The process stopped by itself before a restart, and will come back from its disk
    /// ([away](super::away)). It takes writes, which routers store for it, and serves no reads.
    Away {
        /// Whether the member is on the ring, and so complete once it has caught up. If not, it is in
        /// reserve.
        on_ring: bool,
    },
}

/// A table's entry in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableEntry {
    /// The name, unique among tables.
    pub name: String,
    /// The table's definition, opaque here.
    pub definition: Bytes,
    /// The position at which the table was created.
    pub created: Position,
}

/// The routing configuration: the agreed state, and the ring's segments derived from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "State", into = "State")]
pub struct Config {
    state: State,
    segments: Vec<Segment>,
}

/// The part of a configuration that the members agree on; the rest is computed from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The version of the routing logic that the members agreed to use.
    pub routing: u32,
    /// Number of changes so far.
    pub version: u64,
    /// Number of changes of storage processes and keyspace so far.
    pub placement: u64,
    /// Number of replicas of each range, if the ring has that many places.
    pub replicas: u8,
    /// Number of storage processes with which the ring is founded.
    pub wanted_storage: u32,
    /// Number of routers that the domain keeps.
    pub wanted_routers: u32,
    /// All members.
    pub members: BTreeMap<ProcessId, MemberInfo>,
    /// Storage processes that are members. A dead process stays on the ring but has no state here.
    pub storage: BTreeMap<ProcessId, StorageState>,
    /// Members that a super suspects and that have not refuted the suspicion, with the suspicion's position.
    pub suspected: BTreeMap<ProcessId, Position>,
    /// Process at each place of the ring, by ring id.
    pub ring: BTreeMap<u64, ProcessId>,
    /// Sessions whose replies are remembered. Replies to numbers below the value are forgotten (S6). A
    /// session opens when its gateway joins, and outlives the gateway.
    pub sessions: BTreeMap<u128, u64>,
    /// Numbers below a session's value in `sessions` whose replies are remembered nevertheless.
    pub kept: BTreeMap<u128, BTreeSet<u64>>,
    /// Tables by number.
    pub tables: BTreeMap<u32, TableEntry>,
    /// The number of the next table.
    pub table_next: u32,
}

impl From<State> for Config {
    fn from(state: State) -> Config {
        let segments = Segment::of_ring(&state.ring, state.replicas);
        Config { state, segments }
    }
}

impl From<Config> for State {
    fn from(config: Config) -> State {
        config.state
    }
}

impl Deref for Config {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl Config {
    /// Returns the configuration of a new domain with this many replicas, and with default terms otherwise.
    pub fn new(replicas: u8) -> Config {
        Config::founded(Terms { replicas, ..Terms::default() })
    }

    /// Returns the configuration of a new domain.
    pub fn founded(terms: Terms) -> Config {
        let Terms { replicas, wanted_storage, wanted_routers } = terms;
        assert!(replicas >= 1, "a range has at least one replica");
        Config::from(State {
            routing: ROUTING_VERSION,
            version: 0,
            placement: 0,
            replicas,
            wanted_storage,
            wanted_routers,
            members: BTreeMap::new(),
            storage: BTreeMap::new(),
            suspected: BTreeMap::new(),
            ring: BTreeMap::new(),
            sessions: BTreeMap::new(),
            kept: BTreeMap::new(),
            tables: BTreeMap::new(),
            table_next: 1,
        })
    }

    /// Returns the ring's segments in key order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the members of a role, in id order.
    pub fn role(&self, role: Role) -> impl Iterator<Item = ProcessId> + '_ {
        self.members.iter().filter(move |(_, info)| info.role == role).map(|(&process, _)| process)
    }

    /// Returns a table by name.
    pub fn table(&self, name: &str) -> Option<(u32, &TableEntry)> {
        self.tables.iter().find(|(_, entry)| entry.name == name).map(|(&table, entry)| (table, entry))
    }

    /// Whether `process` is no storage process of the configuration, so that its place on the ring needs a
    /// new holder.
    pub fn is_dead(&self, process: ProcessId) -> bool {
        !self.storage.contains_key(&process)
    }

    /// Checks that `copy` gives `new` all rows of its ranges, each from a process that has them. A lost range
    /// without a keeper has no source and begins empty.
    fn check_copy(&self, new: ProcessId, copy: &[(Range, ProcessId)]) -> Result<(), Refusal> {
        for segment in self.segments().iter().filter(|segment| segment.replicas.contains(&new)) {
            let mut sources = copy.iter().filter(|(range, _)| *range == segment.range);
            let sound = match (sources.next(), sources.next()) {
                (Some((_, source)), None) => self.may_copy(segment, new, Some(*source)),
                (None, _) => self.may_copy(segment, new, None),
                _ => false,
            };
            if !sound {
                return Err(refusal::range(segment.range.low));
            }
        }
        Ok(())
    }

    /// Whether the ranges have forgotten this id. Routers refuse a request with a forgotten id.
    pub(super) fn is_forgotten(&self, RequestId { session, number }: RequestId) -> bool {
        let kept = || self.kept.get(&session).is_some_and(|kept| kept.contains(&number));
        self.sessions.get(&session).is_none_or(|below| number < *below && !kept())
    }

    /// Returns each storage process that is still importing, with the position of its placement change.
    pub fn receiving(&self) -> impl Iterator<Item = (ProcessId, Position)> + '_ {
        self.storage.iter().filter_map(|(&process, state)| match state {
            StorageState::Receiving { change } => Some((process, *change)),
            _ => None,
        })
    }
}

impl State {
    /// Returns the terms with which the domain was founded.
    pub fn terms(&self) -> Terms {
        let State { replicas, wanted_storage, wanted_routers, .. } = *self;
        Terms { replicas, wanted_storage, wanted_routers }
    }

    /// Returns the member of this node, unless the cluster waits for that member. A member for which the
    /// cluster waits does not block a new process of its node.
    fn of_node(&self, node: u64) -> Option<(ProcessId, &MemberInfo)> {
        let first = ProcessId { node, incarnation: Incarnation(0) };
        let last = ProcessId { node, incarnation: Incarnation(u128::MAX) };
        let mut of_node = self.members.range(first..=last).map(|(&process, info)| (process, info));
        of_node.rfind(|(process, _)| !self.is_waited_for(*process))
    }

    /// Whether the cluster waits for `process`, because it is out of reach and nobody else may have its rows.
    /// Such a process is unreachable, or a suspected keeper. The waiting ends when the process returns or an
    /// operator declares it lost.
    pub fn is_waited_for(&self, process: ProcessId) -> bool {
        match self.storage.get(&process) {
            Some(StorageState::Unreachable) => true,
            Some(StorageState::Keeping(_)) => self.suspected.contains_key(&process),
            _ => false,
        }
    }

    /// Whether every range of `process` has another complete replica that nobody suspects.
    pub(super) fn can_lose(&self, process: ProcessId) -> bool {
        let active = |replica: &ProcessId| {
            *replica != process
                && !self.suspected.contains_key(replica)
                && self.storage.get(replica) == Some(&StorageState::Active)
        };
        Segment::of_ring(&self.ring, self.replicas)
            .iter()
            .filter(|segment| segment.replicas.contains(&process))
            .all(|segment| segment.replicas.iter().any(active))
    }
}

/// A change of a configuration, in progress.
struct ConfigChange {
    state: State,
    placement: bool,
}

impl ConfigChange {
    /// Changes tables. All tables that end do so before any table begins.
    fn define(&mut self, at: Position, changes: Vec<TableChange>) -> Result<(), Refusal> {
        let state = &mut self.state;
        for table in changes.iter().filter_map(TableChange::ends) {
            state.tables.remove(&table).ok_or(refusal::NO_SUCH_TABLE)?;
        }
        for change in changes {
            let (name, definition) = match change {
                TableChange::Drop { .. } => continue,
                // Without a ring, nobody could read or write the table.
                TableChange::Create { .. } if state.ring.is_empty() => return Err(refusal::NO_RING),
                TableChange::Create { name, definition } => (name, definition),
                TableChange::Alter { table: _, name, definition, columns: _ } => (name, definition),
            };
            if state.tables.values().any(|entry| entry.name == name) {
                return Err(refusal::TABLE_EXISTS);
            }
            state.tables.insert(state.table_next, TableEntry { name, definition, created: at });
            state.table_next += 1;
        }
        Ok(())
    }

    fn finish(mut self) -> Config {
        self.state.version += 1;
        self.state.placement += u64::from(self.placement);
        Config::from(self.state)
    }

    /// Adds a process. If a former life of the process is a member, the process replaces it.
    fn join(
        &mut self,
        at: Position,
        process: ProcessId,
        info: MemberInfo,
        terms: Option<Terms>,
        keeps: Option<KeptRows>,
    ) -> Result<(), Refusal> {
        let former = match self.state.of_node(process.node) {
            Some((_, member)) if !is_next_life(info.role, &info.address, member) => {
                return Err(refusal::NODE_IN_USE);
            }
            namesake => namesake.map(|(process, _)| process),
        };
        if terms.is_some_and(|terms| terms != self.state.terms()) {
            return Err(refusal::OTHER_TERMS);
        }
        if let Some(former) = former {
            self.remove(former);
        }
        let (role, state) = (info.role, &mut self.state);
        state.members.insert(process, info);
        if role == Role::Gateway {
            state.sessions.insert(process.incarnation.0, 0);
        }
        if role == Role::Storage {
            // Accepts rows of a former life only if that life is no member and its place on the ring exists.
            let keeps = keeps.filter(|keeps| {
                state.ring.contains_key(&keeps.place)
                    && !state.members.contains_key(&keeps.former)
                    && keeps.through < at
            });
            let stands = keeps.map_or(StorageState::Standby, StorageState::Keeping);
            state.storage.insert(process, stands);
            self.placement = true;
        }
        Ok(())
    }

    /// Puts processes on the ring, which is empty.
    fn place(&mut self, ring: Vec<(u64, ProcessId)>) -> Result<(), Refusal> {
        if ring.is_empty() || ring.len() > RING_MAX {
            return Err(refusal::WRONG_STATE);
        }
        for (key, process) in ring {
            if self.state.storage.get(&process) != Some(&StorageState::Standby) {
                return Err(refusal::WRONG_STATE);
            }
            self.state.storage.insert(process, StorageState::Active);
            if self.state.ring.insert(key, process).is_some() {
                return Err(refusal::WRONG_STATE);
            }
        }
        self.placement = true;
        Ok(())
    }

    /// Gives the place of `old` on the ring to `new`, which then imports the rows.
    fn replace(&mut self, at: Position, old: ProcessId, new: ProcessId) -> Result<(), Refusal> {
        let state = &mut self.state;
        let key = state.ring.iter().find(|(_, process)| **process == old).map(|(&key, _)| key);
        let (Some(key), Some(StorageState::Standby)) = (key, state.storage.get(&new)) else {
            return Err(refusal::WRONG_STATE);
        };
        if state.storage.get(&old) == Some(&StorageState::Unreachable)
            || state.storage.contains_key(&old) && !state.can_lose(old)
        {
            return Err(refusal::range(key));
        }
        state.ring.insert(key, new);
        state.storage.insert(new, StorageState::Receiving { change: at });
        if let Some(stands) = state.storage.get_mut(&old) {
            *stands = StorageState::Keeping(KeptRows { former: old, place: key, through: at });
        }
        self.placement = true;
        Ok(())
    }

    /// Lets the ranges forget the writes of a session below a number, except `kept`.
    fn forget(&mut self, session: u128, below: u64, kept: Vec<u64>) -> Result<(), Refusal> {
        let state = &mut self.state;
        let floor = state.sessions.get_mut(&session).ok_or(refusal::EXPIRED)?;
        if below >= *floor {
            let before = state.kept.remove(&session).unwrap_or_default();
            let open = |number: &u64| *number < below && (*number >= *floor || before.contains(number));
            let kept: BTreeSet<u64> = kept.into_iter().filter(open).collect();
            if !kept.is_empty() {
                state.kept.insert(session, kept);
            }
            *floor = below;
        }
        if below == u64::MAX {
            state.sessions.remove(&session);
            state.kept.remove(&session);
        }
        Ok(())
    }

    /// Marks a storage process as away, if the other processes can do without it. `may_go` says whether a
    /// process on the ring may be away at all. Returns whether the process is away now.
    fn go_away(&mut self, process: ProcessId, may_go: bool) -> Result<bool, Refusal> {
        let on_ring = match self.state.storage.get(&process) {
            Some(StorageState::Active) if may_go && self.state.can_lose(process) => true,
            Some(StorageState::Standby) => false,
            Some(_) => return Ok(false),
            None => return Err(refusal::NOT_ALLOWED),
        };
        self.state.storage.insert(process, StorageState::Away { on_ring });
        self.placement = true;
        Ok(true)
    }

    fn remove(&mut self, process: ProcessId) {
        self.state.members.remove(&process);
        self.state.suspected.remove(&process);
        self.placement |= self.state.storage.remove(&process).is_some();
    }

    /// Removes `process`. If that would lose rows (S14), marks `process` as unreachable instead; `process`
    /// may then refute the suspicion.
    fn depart(&mut self, process: ProcessId, at: Position) {
        match self.state.storage.get(&process) {
            Some(StorageState::Active | StorageState::Unreachable | StorageState::Away { on_ring: true })
                if !self.state.can_lose(process) =>
            {
                self.state.suspected.entry(process).or_insert(at);
                let before = self.state.storage.insert(process, StorageState::Unreachable);
                self.placement |= before != Some(StorageState::Unreachable);
            }
            _ => self.remove(process),
        }
    }
}

/// Whether a joining process takes the place of the member of its node at once, instead of waiting for that
/// member's removal. A joining super takes the place: a super stores nothing, and if all supers died at
/// once, no process would be left to remove them. A joining gateway takes the place if it listens at the
/// member's address: a gateway stores nothing either, and two live processes cannot listen there. A joining
/// storage process waits, because supers must judge whether the cluster can do without the process's former
/// life. While the member has a link to the routers, the routers refuse the joining process in any case.
fn is_next_life(role: Role, address: &str, member: &MemberInfo) -> bool {
    match (role, member.role) {
        (Role::Super, Role::Super) => true,
        (Role::Gateway, Role::Gateway) => address == member.address,
        _ => false,
    }
}

/// Rubberband's routing logic, which E-Cast calls.
pub struct Rubberband;

impl Part for Rubberband {
    const TAG: u8 = TAG;

    fn vacant() -> Config {
        Config::founded(Terms::default())
    }

    fn version(config: &Config) -> Option<u32> {
        Some(config.routing)
    }
}

impl Routing for Rubberband {
    type Config = Config;
    type Ledger = MadeUpIds;

    fn admit(ids: &mut MadeUpIds, at: Position, class: Class, body: &Bytes) -> Result<(), Refusal> {
        match class {
            Class::Data => DataHeader::peek_made_up(body).map_or(Ok(()), |name| ids.admit(at, name)),
            Class::Control => {
                if let Some(Control::Expire { through }) = Control::decode(body) {
                    ids.expire(through);
                }
                Ok(())
            }
        }
    }

    fn apply(
        config: &Config,
        at: Position,
        sender: ProcessId,
        body: &Bytes,
    ) -> Result<Option<Config>, Refusal> {
        let control = Control::decode(body).ok_or(refusal::MALFORMED)?;
        let role = config.members.get(&sender).map(|info| info.role);
        let only = |allowed: Role| if role == Some(allowed) { Ok(()) } else { Err(refusal::NOT_ALLOWED) };
        let mut change = ConfigChange { state: config.state.clone(), placement: false };
        let state = &mut change.state;
        // One match lists which sender may make which change.
        match control {
            Control::Join { role, .. } if !role.is_of_tables() => return Err(refusal::MALFORMED),
            Control::Join { role, name, address, terms, keeps } => {
                if state.members.contains_key(&sender) {
                    return Ok(None);
                }
                change.join(at, sender, MemberInfo { role, name, address }, terms, keeps)?;
            }
            Control::Leave if config.is_needed(sender) => return Ok(None),
            Control::Leave => change.depart(sender, at),
            Control::Suspect { processes } => {
                only(Role::Super)?;
                for process in processes {
                    if process != sender && state.members.contains_key(&process) {
                        state.suspected.entry(process).or_insert(at);
                    }
                }
            }
            Control::Refute { suspected } => {
                if state.suspected.get(&sender) != Some(&suspected) {
                    return Ok(None);
                }
                state.suspected.remove(&sender);
                if let Some(stands @ StorageState::Unreachable) = state.storage.get_mut(&sender) {
                    *stands = StorageState::Active;
                    change.placement = true;
                }
            }
            Control::Remove { removals } => {
                only(Role::Super)?;
                if !removals.iter().all(|removal| removal.is_witnessed(sender)) {
                    return Err(refusal::NOT_ALLOWED);
                }
                for Removal { process, suspected, .. } in removals {
                    // A keeper that is needed stays in spite of the suspicion, because nobody else has its
                    // rows.
                    let due = change.state.suspected.get(&process) == Some(&suspected);
                    if due && !config.is_needed(process) {
                        change.depart(process, at);
                    }
                }
            }
            Control::Place { expected, ring } => {
                only(Role::Super)?;
                if expected != state.placement || !state.ring.is_empty() {
                    return Err(refusal::PLACEMENT_CHANGED);
                }
                change.place(ring)?;
            }
            Control::Replace { expected, old, new, copy } => {
                only(Role::Super)?;
                if expected != state.placement {
                    return Err(refusal::PLACEMENT_CHANGED);
                }
                change.replace(at, old, new)?;
                let changed = change.finish();
                changed.check_copy(new, &copy)?;
                return Ok(Some(changed));
            }
            Control::Complete { change: done } => {
                if state.storage.get(&sender) != Some(&StorageState::Receiving { change: done }) {
                    return Err(refusal::WRONG_STATE);
                }
                state.storage.insert(sender, StorageState::Active);
                change.placement = true;
            }
            Control::DeclareLost { process } => {
                only(Role::Super)?;
                if !state.is_waited_for(process) {
                    return Err(refusal::WRONG_STATE);
                }
                change.remove(process);
            }
            Control::CreateTable { name, definition } => {
                change.define(at, vec![TableChange::Create { name, definition }])?;
            }
            Control::DropTable { table } => change.define(at, vec![TableChange::Drop { table }])?,
            // Earlier builds cannot read the message, and a domain that they founded may have such routers.
            Control::Define { .. } if state.routing < DEFINITIONS_SINCE => return Err(refusal::MALFORMED),
            Control::Define { changes } => {
                let alters = changes.iter().any(|one| matches!(one, TableChange::Alter { .. }));
                if alters
                    && !config.segments().iter().all(|segment| config.complete(segment).next().is_some())
                {
                    return Err(refusal::WRONG_STATE);
                }
                change.define(at, changes)?;
            }
            Control::Forget { session, below, kept } => {
                if sender.incarnation.0 != session {
                    only(Role::Super)?;
                }
                change.forget(session, below, kept)?;
            }
            // The routers' ledger applies the message; the configuration does not change.
            Control::Expire { .. } => {
                if role != Some(Role::Gateway) {
                    only(Role::Super)?;
                }
                return Ok(None);
            }
            Control::Dismiss { process } => {
                only(Role::Super)?;
                if config.keeps(process).is_none() || config.is_needed(process) {
                    return Err(refusal::WRONG_STATE);
                }
                state.storage.insert(process, StorageState::Standby);
                change.placement = true;
            }
            Control::Away => {
                let may_go = config.receiving().next().is_none();
                if !change.go_away(sender, may_go)? {
                    return Ok(None);
                }
            }
            Control::Back { caught_up } => {
                let Some(StorageState::Away { on_ring }) = state.storage.get(&sender).copied() else {
                    return Ok(None);
                };
                if !caught_up {
                    return Ok(None);
                }
                let stands = if on_ring { StorageState::Active } else { StorageState::Standby };
                state.storage.insert(sender, stands);
                change.placement = true;
            }
        }
        let changed = change.state != config.state || change.placement;
        Ok(changed.then(|| change.finish()))
    }

    fn destinations(
        config: &Config,
        id: MessageId,
        class: Class,
        body: &Bytes,
    ) -> Result<Destinations, Refusal> {
        if class == Class::Control {
            // The message goes to all members, because all members keep the configuration.
            return Ok(Destinations {
                processes: config.members.keys().copied().collect(),
                ..Destinations::default()
            });
        }
        let header = DataHeader::peek(body).filter(DataHeader::is_disjoint).ok_or(refusal::MALFORMED)?;
        if config.members.get(&id.sender).is_none_or(|info| info.role != Role::Gateway) {
            return Err(refusal::NOT_ALLOWED);
        }
        if config.ring.is_empty() {
            return Err(refusal::NO_RING);
        }
        if !config.tables.contains_key(&header.table) && header.table != DataHeader::NO_TABLE {
            return Err(refusal::NO_SUCH_TABLE);
        }
        let refuse = |range: Range| refusal::range(range.low);
        match header.kind {
            DataKind::Write | DataKind::FallibleWrite
                if !header.name.request.is_made_up() && config.is_forgotten(header.name.request) =>
            {
                Err(refusal::EXPIRED)
            }
            DataKind::Write | DataKind::FallibleWrite => {
                config.write_destinations(&header.ranges).map_err(refuse)
            }
            DataKind::Read => {
                let assignments = config.assign_read(&header.ranges, header.offset).map_err(refuse)?;
                let processes = assignments.into_iter().map(|assignment| assignment.process).collect();
                Ok(Destinations { processes, ..Destinations::default() })
            }
        }
    }

    fn not_admitted(config: &Config, sender: ProcessId, body: &Bytes) -> Option<NotAdmitted> {
        let Some(Control::Join { role, address, terms, .. }) = Control::decode(body) else { return None };
        if let Some((id, info)) =
            config.of_node(sender.node).filter(|(_, info)| !is_next_life(role, &address, info))
        {
            return Some(NotAdmitted::NodeInUse(Peer { id, address: info.address.clone() }));
        }
        terms.is_some_and(|terms| terms != config.terms()).then(|| NotAdmitted::Terms(config.terms()))
    }

    fn of_node(config: &Config, node: u64) -> Option<Peer> {
        config.of_node(node).map(|(id, info)| Peer { id, address: info.address.clone() })
    }

    fn is_member(config: &Config, process: ProcessId) -> bool {
        config.members.contains_key(&process)
    }

    fn members(config: &Config) -> Vec<ProcessId> {
        config.members.keys().copied().collect()
    }

    fn pace(config: &Config, process: ProcessId) -> Pace {
        match config.storage.get(&process) {
            Some(_) if config.is_waited_for(process) => Pace::Waits,
            Some(StorageState::Away { .. }) => Pace::Away,
            Some(StorageState::Receiving { .. }) => Pace::Receives,
            Some(_) | None => Pace::Executes,
        }
    }

    fn attachment(config: &Config, id: MessageId, body: &Bytes, destination: ProcessId) -> Option<Bytes> {
        let joins = id.sender == destination && matches!(Control::decode(body), Some(Control::Join { .. }));
        joins.then(|| postcard::to_stdvec(config).expect("every type of this crate serialises").into())
    }

    fn witnessed(word: &Bytes) -> Option<Config> {
        let mut word = word.clone();
        (take_u8(&mut word) == Ok(TAG)).then(|| decode_body(&mut word).ok())?
    }
}

#[cfg(test)]
mod tests;
