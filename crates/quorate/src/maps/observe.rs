//! Reads the status of a cell.

use quorate_protocol::{
    Duration, ProcessId,
    partial::{Resident, Roster, Site, Strategy},
    role::{Role, State},
};

use super::{
    distances::{Distance, Distances},
    endpoint::CellEndpoint,
    status::{CellStatus, MapStatus, MemberStatus, Status},
};

impl CellEndpoint {
    pub(super) fn status(&self, me: ProcessId) -> Status {
        let CellEndpoint { resident, distances } = self;
        of_cell(resident, distances, me)
    }
}

fn of_cell(resident: &Resident, distances: &Distances, me: ProcessId) -> Status {
    let cell = resident.status();
    let (state, hindrance) = match (resident.roster(), cell.number) {
        (None, _) => (State::Joining, Some("joining: no router has taken this process in yet")),
        (Some(_), None) => (
            State::Spare,
            Some("spare: this process joined when there were maps already, and keeps no keys of maps"),
        ),
        (Some(_), Some(_)) if cell.arriving.is_some() => (
            State::Arriving,
            Some(
                "arriving: this cell copies the keys of the cell whose place it took, and counts for no \
                     level yet",
            ),
        ),
        (Some(_), Some(_)) => (State::Serving, None),
    };
    let (hints, refused, compared) = (cell.hints, cell.refused, cell.compared);
    let generation = resident.member().generation();
    let not_admitted = resident.member().not_admitted().map(|why| format!("joining: {why}"));
    Status {
        state,
        hindrance: not_admitted.or_else(|| hindrance.map(str::to_owned)),
        generation: generation.number,
        generation_of: format!("{:032x}", generation.survivor.0),
        process: me.to_string(),
        position: resident.member().delivered().0,
        executed: resident.member().executed().0,
        routers: resident.member().routers().map(|router| router.to_string()).collect(),
        members: resident.roster().map(|roster| members(roster)).unwrap_or_default(),
        kept: Vec::new(),
        maps: resident.roster().map(|roster| maps(roster)).unwrap_or_default(),
        cell: CellStatus {
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
        },
    }
}

fn shown((site, distance): (&Site, &Distance)) -> (u16, [f64; 2]) {
    let stall = distance.stall.map_or(Duration::ZERO, |stall| stall.span);
    let (least, most) = (distance.least, distance.least + distance.jitter + stall);
    (site.0, [least, most].map(|span| span.as_secs_f64() * 1e3))
}

fn members(roster: &Roster) -> Vec<MemberStatus> {
    let member = |(process, seat): (ProcessId, &quorate_protocol::partial::MemberEntry)| MemberStatus {
        name: seat.name.clone(),
        role: Role::Cell,
        process: process.to_string(),
        incarnation: format!("{:032x}", process.incarnation.0),
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
