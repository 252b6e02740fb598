//! The part of a domain's order that concerns maps: which processes are cells, and which maps there are.
//!
//! **Promise.** All cells learn the same layouts in the same order. A change that cannot be made is refused to the one who asked
//! for it, with the reason, and changes nothing anywhere. Nobody is removed for being silent: only an operator removes a cell.
//!
//! **Source.** Dynamo §4.8.1 has membership changed by an administrator's explicit command, because a machine that is out of
//! reach is rarely gone for good. There such changes spread by gossip. Here the order of the domain decides them (002 §5).
//!
//! **Shape.** [`Maps`] is a [`Routing`]: the configuration is a [`Roster`], and every message is a [`Change`], which goes to all
//! members. There is no data in this order: keys and values go from cell to cell.
//!
//! **Members and cells.** Each process that joins is a *member*, which learns all changes. It becomes a *cell* when it joins, as long as
//! there has been no map. One that joins later is a *spare*: it would own keys without having them. A new life of a cell's node
//! takes the place of the one before, and an operator may give the place of a dead cell to a spare. Such a cell is *arriving*: it counts
//! for nothing until it has copied what it should have (`arrival`).
//!
//! **Where we differ, and why.** In 002 all members that do not confirm what they are sent are removed by a super process. Here a
//! message may stay unconfirmed for as long as a cell is away: there are few messages, and they are small.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    layout::{CellNumber, Layout, LayoutOrder, LayoutRefusal, Map, MapId, Member, TOKENS_MAX},
    ring::{Site, Token},
};
use crate::{
    ecast::{Class, Destinations, MessageId, Position, Refusal, Routing},
    id::{Incarnation, Peer, ProcessId},
};

/// The routing of a domain of maps.
#[derive(Clone, Copy, Debug)]
pub enum Maps {}

/// A change of the members, the cells or the maps. All but the first are an operator's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The sender becomes a member, and a cell if there has been no map.
    Join {
        /// Its name, for people.
        name: String,
        /// Where it listens for other members, `host:port`.
        address: String,
        /// Its site.
        site: Site,
        /// Its places on the ring.
        tokens: Vec<Token>,
    },
    /// A member is one no more. One that is a cell stays as long as there are maps: nobody else has its keys.
    Dismiss(ProcessId),
    /// A spare takes the place of a cell, which is a member no more, and copies what it should have.
    Replace {
        /// The cell that goes.
        old: ProcessId,
        /// The spare.
        new: ProcessId,
    },
    /// A cell that was arriving has what it should have; or, by an operator, all that is left of it.
    Complete(CellNumber),
    /// One more map, empty.
    CreateMap {
        /// Its name, unique.
        name: String,
        /// How it is kept.
        map: Map,
    },
    /// A map and all that is in it are gone.
    DropMap {
        /// Its name.
        name: String,
    },
}

/// Why a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChangeRefusal {
    /// The bytes are no change.
    #[error("these bytes are no change of maps")]
    Malformed,
    /// Data does not go through the order of maps.
    #[error("data does not go through the order of maps")]
    Data,
    /// There is no such member.
    #[error("there is no such member")]
    NoMember,
    /// A map with this name exists.
    #[error("a map with this name exists")]
    NameTaken,
    /// There is no map with this name.
    #[error("there is no map with this name")]
    NoMap,
    /// A name without characters, or with too many.
    #[error("a name has 1 to {NAME_BYTES_MAX} bytes")]
    Name,
    /// The layout cannot be changed so.
    #[error(transparent)]
    Layout(#[from] LayoutRefusal),
}

/// No name of a map or a member is longer.
pub const NAME_BYTES_MAX: usize = 255;

/// The configuration: members, cells and maps.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Roster {
    layout: Layout,
    members: BTreeMap<ProcessId, Seat>,
    names: BTreeMap<String, MapId>,
    /// The last map that was created.
    last: MapId,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Its name, for people.
    pub name: String,
    /// Where it listens for other members, `host:port`.
    pub address: String,
    /// Its site.
    pub site: Site,
}

impl Change {
    /// The byte form.
    pub fn encode(&self) -> Bytes {
        postcard::to_stdvec(self).expect("our own types always serialise").into()
    }

    /// From bytes; none if they are no change.
    pub fn decode(body: &[u8]) -> Option<Change> {
        match postcard::take_from_bytes(body) {
            Ok((change, [])) => Some(change),
            _ => None,
        }
    }
}

impl Roster {
    /// The cells and their keys.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The members, in id order. Those that the layout does not name as cells are spares.
    pub fn members(&self) -> impl Iterator<Item = (ProcessId, &Seat)> {
        self.members.iter().map(|(process, seat)| (*process, seat))
    }

    /// The member of this name.
    pub fn named(&self, name: &str) -> Option<ProcessId> {
        self.members().find(|(_, seat)| seat.name == name).map(|(process, _)| process)
    }

    /// The maps that there are, by name.
    pub fn maps(&self) -> impl Iterator<Item = (&str, MapId)> {
        self.names.iter().map(|(name, id)| (name.as_str(), *id))
    }

    /// The map of this name.
    pub fn map(&self, name: &str) -> Option<MapId> {
        self.names.get(name).copied()
    }

    /// Makes a change that `sender` asks for. One that is refused may leave the roster changed in part.
    fn change(&mut self, sender: ProcessId, change: Change) -> Result<(), ChangeRefusal> {
        match change {
            Change::Join { name, address, site, tokens } => self.join(sender, name, address, site, tokens),
            Change::Dismiss(process) => self.dismiss(process),
            Change::Replace { old, new } => {
                let address = self.members.get(&new).ok_or(ChangeRefusal::NoMember)?.address.clone();
                self.replace(old, Peer { id: new, address })
            }
            Change::Complete(number) => Ok(self.layout.apply(&LayoutOrder::Complete(number)).map(|_| ())?),
            Change::CreateMap { name, map } => self.create(name, map),
            Change::DropMap { name } => {
                let id = self.names.remove(&name).ok_or(ChangeRefusal::NoMap)?;
                Ok(self.layout.apply(&LayoutOrder::DropMap(id)).map(|_| ())?)
            }
        }
    }

    fn join(
        &mut self,
        sender: ProcessId,
        name: String,
        address: String,
        site: Site,
        tokens: Vec<Token>,
    ) -> Result<(), ChangeRefusal> {
        if !is_name(&name) {
            return Err(ChangeRefusal::Name);
        }
        let peer = Peer { id: sender, address: address.clone() };
        let former = self.of_node(sender.node).map(|(former, _)| former);
        match former {
            // The earlier life of the node is over, or the router would hear it.
            Some(former) if self.layout.number(former).is_some() => self.replace(former, peer)?,
            Some(former) => self.dismiss(former)?,
            None if self.layout.is_serving() => {}
            None => {
                let member = Member { peer, site, tokens, arriving: false };
                self.layout.apply(&LayoutOrder::AddCell(member))?;
            }
        }
        self.members.insert(sender, Seat { name, address, site });
        Ok(())
    }

    fn replace(&mut self, old: ProcessId, new: Peer) -> Result<(), ChangeRefusal> {
        let old_number = self.layout.number(old).ok_or(ChangeRefusal::Layout(LayoutRefusal::NoCell))?;
        self.layout.apply(&LayoutOrder::Replace { old: old_number, new })?;
        self.members.remove(&old);
        Ok(())
    }

    fn dismiss(&mut self, process: ProcessId) -> Result<(), ChangeRefusal> {
        if let Some(number) = self.layout.number(process) {
            self.layout.apply(&LayoutOrder::RemoveCell(number))?;
        }
        self.members.remove(&process).ok_or(ChangeRefusal::NoMember)?;
        Ok(())
    }

    fn create(&mut self, name: String, map: Map) -> Result<(), ChangeRefusal> {
        if !is_name(&name) {
            return Err(ChangeRefusal::Name);
        }
        if self.names.contains_key(&name) {
            return Err(ChangeRefusal::NameTaken);
        }
        let id = MapId(self.last.0 + 1);
        self.layout.apply(&LayoutOrder::CreateMap(id, map))?;
        self.last = id;
        self.names.insert(name, id);
        Ok(())
    }

    /// The member of a node; the latest life that joined, should there be several.
    fn of_node(&self, node: u64) -> Option<(ProcessId, &Seat)> {
        let first = ProcessId { node, incarnation: Incarnation(0) };
        let last = ProcessId { node, incarnation: Incarnation(u128::MAX) };
        self.members.range(first..=last).next_back().map(|(process, seat)| (*process, seat))
    }
}

#[cfg(test)]
impl Roster {
    /// One that has this layout, and no names.
    pub(super) fn of(layout: Layout) -> Roster {
        Roster { layout, ..Roster::default() }
    }
}

fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
}

impl Routing for Maps {
    type Config = Roster;
    type Ledger = ();

    fn admit(_: &mut (), _: Position, _: Class, _: &Bytes) -> Result<(), Refusal> {
        Ok(())
    }

    fn apply(
        roster: &Roster,
        _: Position,
        sender: ProcessId,
        body: &Bytes,
    ) -> Result<Option<Roster>, Refusal> {
        let change = Change::decode(body).ok_or(ChangeRefusal::Malformed)?;
        let mut after = roster.clone();
        after.change(sender, change)?;
        Ok(Some(after))
    }

    fn destinations(roster: &Roster, _: MessageId, class: Class, _: &Bytes) -> Result<Destinations, Refusal> {
        if class == Class::Data {
            return Err(ChangeRefusal::Data.into());
        }
        let processes = roster.members.keys().copied().collect();
        Ok(Destinations { processes, ..Destinations::default() })
    }

    fn is_member(roster: &Roster, process: ProcessId) -> bool {
        roster.members.contains_key(&process)
    }

    fn of_node(roster: &Roster, node: u64) -> Option<Peer> {
        roster.of_node(node).map(|(id, seat)| Peer { id, address: seat.address.clone() })
    }

    fn members(roster: &Roster) -> Vec<ProcessId> {
        roster.members.keys().copied().collect()
    }

    fn attachment(roster: &Roster, id: MessageId, body: &Bytes, destination: ProcessId) -> Option<Bytes> {
        let joins = id.sender == destination && matches!(Change::decode(body), Some(Change::Join { .. }));
        joins.then(|| postcard::to_stdvec(roster).expect("our own types always serialise").into())
    }
}

/// The number in which a refusal travels: its kind, and above that what it tells.
impl From<ChangeRefusal> for Refusal {
    fn from(refusal: ChangeRefusal) -> Refusal {
        let plain = match refusal {
            ChangeRefusal::Malformed => 0,
            ChangeRefusal::Data => 1,
            ChangeRefusal::NoMember => 2,
            ChangeRefusal::NameTaken => 3,
            ChangeRefusal::NoMap => 4,
            ChangeRefusal::Name => 5,
            ChangeRefusal::Layout(LayoutRefusal::Known) => 6,
            ChangeRefusal::Layout(LayoutRefusal::Tokens) => 7,
            ChangeRefusal::Layout(LayoutRefusal::Serving) => 8,
            ChangeRefusal::Layout(LayoutRefusal::MapUsed) => 9,
            ChangeRefusal::Layout(LayoutRefusal::NoMap) => 10,
            ChangeRefusal::Layout(LayoutRefusal::NoCell) => 11,
            ChangeRefusal::Layout(LayoutRefusal::Copies) => 12,
            ChangeRefusal::Layout(LayoutRefusal::NotArriving) => 13,
            ChangeRefusal::Layout(LayoutRefusal::TooFewCells { site, cells, wanted }) => {
                let few = |count: usize| count.min(usize::from(u16::MAX)) as u64;
                return Refusal(TOO_FEW | u64::from(site.0) << 8 | few(cells) << 24 | few(wanted) << 40);
            }
        };
        Refusal(plain)
    }
}

const TOO_FEW: u64 = 14;

impl ChangeRefusal {
    /// The refusal that travelled in this number; one of another version is [`ChangeRefusal::Malformed`].
    pub fn of(refusal: Refusal) -> ChangeRefusal {
        const PLAIN: [ChangeRefusal; 14] = [
            ChangeRefusal::Malformed,
            ChangeRefusal::Data,
            ChangeRefusal::NoMember,
            ChangeRefusal::NameTaken,
            ChangeRefusal::NoMap,
            ChangeRefusal::Name,
            ChangeRefusal::Layout(LayoutRefusal::Known),
            ChangeRefusal::Layout(LayoutRefusal::Tokens),
            ChangeRefusal::Layout(LayoutRefusal::Serving),
            ChangeRefusal::Layout(LayoutRefusal::MapUsed),
            ChangeRefusal::Layout(LayoutRefusal::NoMap),
            ChangeRefusal::Layout(LayoutRefusal::NoCell),
            ChangeRefusal::Layout(LayoutRefusal::Copies),
            ChangeRefusal::Layout(LayoutRefusal::NotArriving),
        ];
        let number = refusal.0;
        if number & 0xff == TOO_FEW {
            let part = |shift: u32| (number >> shift & 0xffff) as u16;
            return ChangeRefusal::Layout(LayoutRefusal::TooFewCells {
                site: Site(part(8)),
                cells: part(24).into(),
                wanted: part(40).into(),
            });
        }
        let plain = usize::try_from(number).ok().and_then(|number| PLAIN.get(number));
        plain.copied().unwrap_or(ChangeRefusal::Malformed)
    }
}

/// The tokens of a process that does not choose its own: the same for each life of a node.
pub fn tokens_of(node: u64, count: usize) -> Vec<Token> {
    let token = |index: u64| Token(xxhash_rust::xxh3::xxh3_64_with_seed(&index.to_le_bytes(), node));
    (0..count.min(TOKENS_MAX) as u64).map(token).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Copies, ReadRepair, Strategy, layout::tests::process},
        *,
    };

    fn join(node: u64) -> Change {
        Change::Join {
            name: format!("cell-{node}"),
            address: format!("h{node}:1"),
            site: Site(0),
            tokens: tokens_of(node, 4),
        }
    }

    fn create(name: &str, copies: u8) -> Change {
        let copies = Copies::new([(Site(0), copies)]).unwrap();
        Change::CreateMap {
            name: name.to_owned(),
            map: Map { copies, strategy: Strategy::Quorum(ReadRepair::None) },
        }
    }

    fn apply(roster: &mut Roster, node: u64, change: &Change) -> Result<(), ChangeRefusal> {
        let applied = Maps::apply(roster, Position(1), process(node), &change.encode());
        *roster = applied.map_err(ChangeRefusal::of)?.expect("what is not refused changes something");
        Ok(())
    }

    #[test]
    fn who_joins_is_a_cell_until_there_are_maps() {
        let mut roster = Roster::default();
        for node in 1..=3 {
            apply(&mut roster, node, &join(node)).unwrap();
        }
        apply(&mut roster, 1, &create("main", 3)).unwrap();
        apply(&mut roster, 4, &join(4)).unwrap();
        assert_eq!(roster.layout().cells().count(), 3);
        assert_eq!(Maps::members(&roster), (1..=4).map(process).collect::<Vec<_>>());
        let goes = Maps::destinations(
            &roster,
            MessageId { sender: process(4), number: 1 },
            Class::Control,
            &join(4).encode(),
        );
        assert_eq!(goes.unwrap().processes.len(), 4);
        assert_eq!(roster.map("main"), Some(MapId(1)));
        assert_eq!(roster.named("cell-4"), Some(process(4)));
    }

    #[test]
    fn before_there_are_maps_a_new_life_takes_the_place_of_the_one_before() {
        let mut roster = Roster::default();
        apply(&mut roster, 1, &join(1)).unwrap();
        let again = ProcessId { node: 1, incarnation: Incarnation(7) };
        let joined = Maps::apply(&roster, Position(2), again, &join(1).encode()).unwrap().unwrap();
        assert_eq!(Maps::members(&joined), [again]);
        assert_eq!(joined.layout().number(again), Some(CellNumber(2)));
        // Later, too, but it has to copy what the former life had.
        apply(&mut roster, 1, &create("main", 1)).unwrap();
        let mut joined = Maps::apply(&roster, Position(3), again, &join(1).encode()).unwrap().unwrap();
        assert_eq!(
            (Maps::members(&joined), joined.layout().number(again)),
            (vec![again], Some(CellNumber(2)))
        );
        let arriving = |roster: &Roster| roster.layout().cell(CellNumber(2)).unwrap().arriving;
        assert!(arriving(&joined));
        apply(&mut joined, 1, &Change::Complete(CellNumber(2))).unwrap();
        assert!(!arriving(&joined));
        let refused = apply(&mut joined, 1, &Change::Complete(CellNumber(2)));
        assert_eq!(refused, Err(LayoutRefusal::NotArriving.into()));
    }

    #[test]
    fn an_operator_gives_a_place_to_a_spare() {
        let mut roster = Roster::default();
        apply(&mut roster, 1, &join(1)).unwrap();
        apply(&mut roster, 1, &create("main", 1)).unwrap();
        let replace = |old, new| Change::Replace { old: process(old), new: process(new) };
        assert_eq!(apply(&mut roster, 1, &replace(1, 2)), Err(ChangeRefusal::NoMember));
        apply(&mut roster, 2, &join(2)).unwrap();
        assert_eq!(roster.layout().number(process(2)), None);
        assert_eq!(apply(&mut roster, 1, &replace(2, 1)), Err(LayoutRefusal::NoCell.into()));
        apply(&mut roster, 2, &replace(1, 2)).unwrap();
        assert_eq!(Maps::members(&roster), [process(2)]);
        assert_eq!(roster.layout().number(process(2)), Some(CellNumber(2)));
    }

    #[test]
    fn every_refusal_is_told_as_it_is_and_changes_nothing() {
        let mut roster = Roster::default();
        apply(&mut roster, 1, &join(1)).unwrap();
        let mut twin = join(2);
        if let (Change::Join { tokens, .. }, Change::Join { tokens: taken, .. }) = (&mut twin, join(1)) {
            *tokens = taken;
        }
        let before = roster.clone();
        let too_few = LayoutRefusal::TooFewCells { site: Site(0), cells: 1, wanted: 3 };
        for (change, refusal) in [
            (twin, LayoutRefusal::Tokens.into()),
            (create("main", 3), too_few.into()),
            (create("", 1), ChangeRefusal::Name),
            (Change::DropMap { name: "main".into() }, ChangeRefusal::NoMap),
            (Change::Dismiss(process(9)), ChangeRefusal::NoMember),
        ] {
            assert_eq!(apply(&mut roster, 2, &change), Err(refusal), "{change:?}");
            assert_eq!(roster, before);
        }
        apply(&mut roster, 1, &create("main", 1)).unwrap();
        assert_eq!(apply(&mut roster, 1, &create("main", 1)), Err(ChangeRefusal::NameTaken));
        assert_eq!(apply(&mut roster, 1, &Change::Dismiss(process(1))), Err(LayoutRefusal::Serving.into()));
        let malformed = Maps::apply(&roster, Position(1), process(1), &Bytes::from_static(b"\xff"));
        assert_eq!(malformed.map_err(ChangeRefusal::of), Err(ChangeRefusal::Malformed));
        let data = MessageId { sender: process(1), number: 1 };
        let data = Maps::destinations(&roster, data, Class::Data, &Bytes::new());
        assert_eq!(data.map_err(ChangeRefusal::of), Err(ChangeRefusal::Data));
    }

    #[test]
    fn a_name_that_is_free_again_is_another_map() {
        let mut roster = Roster::default();
        apply(&mut roster, 1, &join(1)).unwrap();
        apply(&mut roster, 1, &create("a", 1)).unwrap();
        apply(&mut roster, 1, &Change::DropMap { name: "a".into() }).unwrap();
        apply(&mut roster, 1, &create("a", 1)).unwrap();
        assert_eq!(roster.maps().collect::<Vec<_>>(), [("a", MapId(2))]);
    }

    #[test]
    fn refusals_travel_in_numbers() {
        for number in 0..TOO_FEW {
            assert_eq!(Refusal::from(ChangeRefusal::of(Refusal(number))), Refusal(number));
        }
        assert_eq!(ChangeRefusal::of(Refusal(u64::MAX)), ChangeRefusal::Malformed);
    }

    #[test]
    fn a_joiner_is_handed_the_roster() {
        let mut roster = Roster::default();
        apply(&mut roster, 1, &join(1)).unwrap();
        let id = MessageId { sender: process(1), number: 1 };
        let attached = Maps::attachment(&roster, id, &join(1).encode(), process(1)).unwrap();
        assert_eq!(postcard::from_bytes::<Roster>(&attached).unwrap(), roster);
        assert!(Maps::attachment(&roster, id, &join(1).encode(), process(2)).is_none());
        assert!(Maps::attachment(&roster, id, &create("a", 1).encode(), process(1)).is_none());
    }
}
