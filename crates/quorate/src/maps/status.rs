//! Where a process of a domain of maps stands, for people.

use std::collections::BTreeMap;

use quorate_protocol::{
    Duration, ProcessId,
    ecast::Router,
    partial::{Maps, Resident, Roster, Site, Strategy},
    paxos::StateKind,
    role::{Role, State},
};
use serde::{Deserialize, Serialize};

use super::{
    distances::{Distance, Distances},
    kind::Kind,
    strategy::Standing,
};

/// Where a process stands. Figures of a cell are of its present life.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// What it is in its role.
    pub state: State,
    /// Why it cannot do its work, as far as it can tell alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hindrance: Option<String>,
    /// The process as others name it.
    pub process: String,
    /// The position in the order of changes that it has reached.
    pub position: u64,
    /// The same: a change is done as soon as it is delivered.
    pub executed: u64,
    /// The routers that it knows.
    pub routers: Vec<String>,
    /// How many routers the domain keeps, as a router knows it.
    pub wanted_routers: usize,
    /// The processes that the order calls members.
    pub members: Vec<MemberStatus>,
    /// The maps.
    pub maps: Vec<MapStatus>,
    /// Of a cell: how it stands with the maps that are not of partial quorums.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<Standing>,
    /// Of a cell: what it keeps and does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<CellStatus>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemberStatus {
    /// Its name.
    pub name: String,
    /// Its work: a cell's, with keys or without.
    pub role: Role,
    /// The process.
    pub process: String,
    /// Where it listens.
    pub address: String,
    /// Its site.
    pub site: u16,
    /// Its number as a cell; none: it is a spare.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<u32>,
}

/// A map.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MapStatus {
    /// Its name.
    pub name: String,
    /// The way in which it is replicated.
    pub strategy: String,
    /// Of partial quorums copies of each key, at all sites together; of a service its replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<usize>,
    /// Of partial quorums: the way in which reads deal with replicas that differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_repair: Option<String>,
}

/// The figures of a cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellStatus {
    /// Its number; none: it is a spare.
    pub number: Option<u32>,
    /// Cells that it would ask now, itself included.
    pub reachable: Vec<u32>,
    /// Operations that it coordinates at this moment.
    pub running: usize,
    /// How far other sites are from its own: milliseconds one way, the least and the most.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub distances_ms: BTreeMap<u16, [f64; 2]>,
    /// Bytes of keys and entries that it keeps, about.
    pub bytes: usize,
    /// Requests that it refused because of another layout.
    pub refused_layout: u64,
    /// Writes that it refused because their stamps were too far ahead.
    pub refused_skewed: u64,
    /// Writes that it refused because of their size.
    pub refused_too_large: u64,
    /// Writes that it refused for want of memory.
    pub refused_full: u64,
    /// Messages of processes that are no cells.
    pub strays: u64,
    /// Hints that it keeps for others.
    pub hints: usize,
    /// Bytes of these, about.
    pub hint_bytes: usize,
    /// Hints that their owners acknowledged.
    pub hints_delivered: u64,
    /// Hints that were given up.
    pub hints_lost: u64,
    /// Reads that it coordinated and that brought replicas up to date, or tried to.
    pub repairs: u64,
    /// Rounds in which it compared its keys with those of all other cells.
    pub compared: u64,
    /// Rounds that not all of them took part in.
    pub compared_in_part: u64,
    /// Entries that it took from others because it lacked them.
    pub entries_taken: u64,
    /// Entries that it gave to others that lacked them.
    pub entries_given: u64,
    /// Bytes of messages by which it compared.
    pub compared_bytes: u64,
    /// Keys that it has an entry of, deleted ones too.
    pub keys: usize,
    /// A print of these keys and their stamps, in hexadecimal: cells that own the same keys and have the same writes have the same one.
    pub keys_print: String,
    /// Deleted and expired values that it has forgotten, because every cell knew.
    pub forgotten: u64,
    /// Up to here it has all writes: nanoseconds of hybrid clocks.
    pub horizon: u64,
    /// Cells of which it gave hints up.
    pub lacking: Vec<u32>,
    /// While it is arriving: how many cells have not given it everything yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arriving: Option<usize>,
    /// It came back from its disk, and the hints that it kept before are gone.
    pub resumed: bool,
}

impl Kind {
    pub(super) fn status(&self, me: ProcessId) -> Status {
        match self {
            Kind::Router(router) => of_router(router, me),
            Kind::Cell(resident, distances) => of_cell(resident, distances, me),
        }
    }

    /// How a router stands in its log; none of a cell.
    pub(super) fn router_state(&self) -> Option<State> {
        let Kind::Router(router) = self else { return None };
        Some(router_state(router))
    }
}

fn router_state(router: &Router<Maps>) -> State {
    let log = router.log().status();
    match log.state {
        StateKind::Joining => State::Joining,
        StateKind::Removed => State::Removed,
        StateKind::Leader => State::Leading,
        StateKind::Follower if log.leader.is_some() => State::Following,
        StateKind::Follower | StateKind::Candidate => State::Leaderless,
    }
}

fn of_router(router: &Router<Maps>, me: ProcessId) -> Status {
    let state = router_state(router);
    let hindrance = match state {
        State::Joining => Some("joining: the domain has not taken this router in yet"),
        State::Leaderless => Some("no router leads a majority that it hears: nothing can be changed"),
        State::Removed => Some("removed: this router votes no more"),
        _ => None,
    };
    let status = router.status();
    let roster = router.config();
    Status {
        state,
        hindrance: hindrance.map(str::to_owned),
        process: me.to_string(),
        position: status.position.0,
        executed: status.position.0,
        routers: status.routers.iter().map(|router| router.id.to_string()).collect(),
        wanted_routers: router.wanted(),
        members: members(roster),
        maps: maps(roster),
        kept: Vec::new(),
        cell: None,
    }
}

fn of_cell(resident: &Resident, distances: &Distances, me: ProcessId) -> Status {
    let cell = resident.status();
    let (state, hindrance) = match (resident.roster(), cell.number) {
        (None, _) => (State::Joining, Some("joining: no router has taken this process in yet")),
        (Some(_), None) => {
            (State::Spare, Some("spare: it joined when there were maps already, and has no keys of them"))
        }
        (Some(_), Some(_)) if cell.arriving.is_some() => (
            State::Arriving,
            Some("arriving: it copies what the cell had whose place it took, and counts for no level"),
        ),
        (Some(_), Some(_)) => (State::Serving, None),
    };
    let (hints, refused, compared) = (cell.hints, cell.refused, cell.compared);
    Status {
        state,
        hindrance: hindrance.map(str::to_owned),
        process: me.to_string(),
        position: resident.member().delivered().0,
        executed: resident.member().executed().0,
        routers: resident.member().routers().map(|router| router.to_string()).collect(),
        wanted_routers: 0,
        members: resident.roster().map(|roster| members(roster)).unwrap_or_default(),
        kept: Vec::new(),
        maps: resident.roster().map(|roster| maps(roster)).unwrap_or_default(),
        cell: Some(CellStatus {
            number: cell.number.map(|number| number.0),
            reachable: cell.reachable.iter().map(|number| number.0).collect(),
            running: cell.running,
            distances_ms: distances.sites().iter().map(shown).collect(),
            bytes: cell.bytes,
            refused_layout: refused.layout,
            refused_skewed: refused.skewed,
            refused_too_large: refused.too_large,
            refused_full: refused.full,
            strays: cell.strays,
            hints: hints.kept,
            hint_bytes: hints.bytes,
            hints_delivered: hints.delivered,
            hints_lost: hints.lost,
            repairs: cell.repairs,
            compared: compared.rounds,
            compared_in_part: compared.broken,
            entries_taken: compared.taken,
            entries_given: compared.given,
            compared_bytes: compared.bytes,
            keys: cell.keys,
            keys_print: format!("{:016x}", cell.print),
            forgotten: cell.forgotten,
            horizon: cell.horizon.time,
            lacking: cell.lacking.iter().map(|number| number.0).collect(),
            arriving: cell.arriving,
            resumed: cell.resumed,
        }),
    }
}

fn shown((site, distance): (&Site, &Distance)) -> (u16, [f64; 2]) {
    let stall = distance.stall.map_or(Duration::ZERO, |stall| stall.span);
    let (least, most) = (distance.least, distance.least + distance.jitter + stall);
    (site.0, [least, most].map(|span| span.as_secs_f64() * 1e3))
}

fn members(roster: &Roster) -> Vec<MemberStatus> {
    let member = |(process, seat): (ProcessId, &quorate_protocol::partial::Seat)| MemberStatus {
        name: seat.name.clone(),
        role: Role::Cell,
        process: process.to_string(),
        address: seat.address.clone(),
        site: seat.site.0,
        cell: roster.layout().number(process).map(|number| number.0),
    };
    roster.members().map(member).collect()
}

fn maps(roster: &Roster) -> Vec<MapStatus> {
    let map = |(name, id): (&str, _)| {
        let map = roster.layout().map(id)?;
        let read_repair = map.read_repair().map(|repair| format!("{repair:?}").to_lowercase());
        let has_copies = matches!(map.strategy, Strategy::Quorum(_) | Strategy::Service { .. });
        Some(MapStatus {
            name: name.to_owned(),
            strategy: map.strategy.name().to_owned(),
            copies: has_copies.then(|| map.copies.total()),
            read_repair,
        })
    };
    roster.maps().filter_map(map).collect()
}
