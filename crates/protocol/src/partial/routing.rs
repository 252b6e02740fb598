//! The part of a domain's order that concerns maps. It decides which processes are cells, and which maps
//! exist.
//!
//! **Promise.** All cells learn the same layouts in the same order. A change that cannot be made is refused,
//! and its sender learns the reason. A refused change has no effect anywhere. Silence removes no cell: only
//! an operator does.
//!
//! **Source.** In Dynamo §4.8.1 an administrator's explicit command changes the membership, because an
//! unreachable machine is rarely gone for good. There such changes spread by gossip. Here the order of the
//! domain decides them (002 §5).
//!
//! **Shape.** [`Maps`] is a [`Part`] of a domain: the configuration is a [`Roster`], and every message is a
//! [`Change`], which goes to all members. The order carries no data: keys and values go from cell to cell.
//!
//! **Members and cells.** Each process that joins is a *member*, which learns all changes. If no map was ever
//! created, a process that joins becomes a *cell*. A process that joins later is a *spare*: as a cell it
//! would own keys without having them. A new life of a cell's node takes the place of the former life, and an
//! operator may give the place of a dead cell to a spare. Such a cell is *arriving*: it counts for no level
//! until it has copied its keys (`arrival`).
//!
//! **Where we differ, and why.** In 002 a super process removes all members that do not confirm messages.
//! Here a message may stay unconfirmed for as long as a cell is away: messages are few and small.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    id::{CellNumber, MapId, Site},
    layout::{Layout, LayoutMember, LayoutOrder, LayoutRefusal, Map, TOKENS_MAX},
    token::Token,
};
use crate::{
    domain::Part,
    ecast::{Class, Destinations, MessageId, Position, Refusal, Routing},
    id::{Incarnation, Peer, ProcessId},
    wire::{decode_body, encode_body, take_u8},
};

/// The routing of maps, a part of a domain.
#[derive(Clone, Copy, Debug)]
pub enum Maps {}

impl Part for Maps {
    const TAG: u8 = 3;
    const SINCE: u32 = 2;

    fn vacant() -> Roster {
        Roster::default()
    }
}

/// A change of the members, the cells or the maps. An operator asks for all changes except `Join` and, as a
/// rule, `Complete`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The sender becomes a member, and a cell if no map was ever created.
    Join {
        /// The member's name, for people.
        name: String,
        /// The address at which the member listens for other members, `host:port`.
        address: String,
        /// The member's site.
        site: Site,
        /// The member's places on the ring.
        tokens: Vec<Token>,
    },
    /// Removes a member. Refused for a cell once any map was created: no other cell has its keys.
    Dismiss(ProcessId),
    /// A spare takes the place of a cell and copies the place's keys. The former cell is no member from then
    /// on.
    Replace {
        /// The cell that is replaced.
        old: ProcessId,
        /// The spare.
        new: ProcessId,
    },
    /// An arriving cell has copied its keys, or an operator declares that the cell has all keys that are
    /// left.
    Complete(CellNumber),
    /// Creates an empty map.
    CreateMap {
        /// The map's name, which no other map has.
        name: String,
        /// The map's settings.
        map: Map,
    },
    /// Drops a map and all its content.
    DropMap {
        /// The map's name.
        name: String,
    },
}

/// The reason why a change was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChangeRefusal {
    /// The bytes do not decode as a change.
    #[error("the message does not decode as a change of maps")]
    Malformed,
    /// The message carries data, which does not go through this order.
    #[error("the message carries data, and routers order only changes of maps and their cells")]
    Data,
    /// No member has this id.
    #[error("the domain has no such member")]
    NoMember,
    /// Another map has this name.
    #[error("a map with this name exists already")]
    NameTaken,
    /// No map has this name.
    #[error("there is no map with this name")]
    NoMap,
    /// The name is empty or longer than [`NAME_BYTES_MAX`].
    #[error("a map's name must have 1 to {NAME_BYTES_MAX} bytes")]
    Name,
    /// The layout refuses the change.
    #[error(transparent)]
    Layout(#[from] LayoutRefusal),
}

/// Maximum length of the name of a map or a member, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// The configuration: members, cells and maps.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Roster {
    layout: Layout,
    members: BTreeMap<ProcessId, MemberEntry>,
    names: BTreeMap<String, MapId>,
    /// The id of the last map that was created.
    last: MapId,
}

/// A member's entry in the roster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberEntry {
    /// The member's name, for people.
    pub name: String,
    /// The address at which the member listens for other members, `host:port`.
    pub address: String,
    /// The member's site.
    pub site: Site,
}

impl Change {
    /// Returns the byte form.
    pub fn encode(&self) -> Bytes {
        postcard::to_extend(self, vec![Maps::TAG]).expect("every type of this crate serialises").into()
    }

    /// Decodes a change. Returns `None` if the bytes are no change.
    pub fn decode(body: &[u8]) -> Option<Change> {
        let (&Maps::TAG, body) = body.split_first()? else { return None };
        match postcard::take_from_bytes(body) {
            Ok((change, [])) => Some(change),
            _ => None,
        }
    }
}

impl Roster {
    /// Returns the cells and the maps.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the members, in id order. Members that are no cells of the layout are spares.
    pub fn members(&self) -> impl Iterator<Item = (ProcessId, &MemberEntry)> {
        self.members.iter().map(|(process, seat)| (*process, seat))
    }

    /// Returns the member of this name.
    pub fn named(&self, name: &str) -> Option<ProcessId> {
        self.members().find(|(_, seat)| seat.name == name).map(|(process, _)| process)
    }

    /// Returns the existing maps, by name.
    pub fn maps(&self) -> impl Iterator<Item = (&str, MapId)> {
        self.names.iter().map(|(name, id)| (name.as_str(), *id))
    }

    /// Returns the map of this name.
    pub fn map(&self, name: &str) -> Option<MapId> {
        self.names.get(name).copied()
    }

    /// Makes a change that `sender` asks for. If the change is refused, the roster may have been changed in
    /// part, and the caller must drop it.
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
            // The earlier life of the node is over, because the router admitted this life.
            Some(former) if self.layout.number(former).is_some() => self.replace(former, peer)?,
            Some(former) => self.dismiss(former)?,
            None if self.layout.is_serving() => {}
            None => {
                let member = LayoutMember { peer, site, tokens, arriving: false };
                self.layout.apply(&LayoutOrder::AddCell(member))?;
            }
        }
        self.members.insert(sender, MemberEntry { name, address, site });
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

    /// Returns the bytes with which a member reports the roster when a domain is founded again from members.
    pub(super) fn witness(&self) -> Bytes {
        let mut word = BytesMut::new();
        word.put_u8(Maps::TAG);
        encode_body(&mut word, self);
        word.freeze()
    }

    /// Returns the member of a node: its latest life, if several have joined.
    fn of_node(&self, node: u64) -> Option<(ProcessId, &MemberEntry)> {
        let first = ProcessId { node, incarnation: Incarnation(0) };
        let last = ProcessId { node, incarnation: Incarnation(u128::MAX) };
        self.members.range(first..=last).next_back().map(|(process, seat)| (*process, seat))
    }
}

#[cfg(test)]
impl Roster {
    /// Returns a roster that has this layout, and no names.
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
        joins.then(|| postcard::to_stdvec(roster).expect("every type of this crate serialises").into())
    }

    fn witnessed(word: &Bytes) -> Option<Roster> {
        let mut word = word.clone();
        (take_u8(&mut word) == Ok(Maps::TAG)).then(|| decode_body(&mut word).ok())?
    }
}

/// Packs a refusal into the number in which it is sent: the low byte is the refusal's kind, and the other
/// bytes are its details.
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
            ChangeRefusal::Layout(LayoutRefusal::TooManyMaps) => TOO_MANY,
            ChangeRefusal::Layout(LayoutRefusal::TooFewCells { site, cells, wanted }) => {
                let few = |count: usize| count.min(usize::from(u16::MAX)) as u64;
                return Refusal(TOO_FEW | u64::from(site.0) << 8 | few(cells) << 24 | few(wanted) << 40);
            }
        };
        Refusal(plain)
    }
}

const TOO_FEW: u64 = 14;
const TOO_MANY: u64 = 15;

impl ChangeRefusal {
    /// Returns the refusal that was sent as this number. A number of another version becomes
    /// [`ChangeRefusal::Malformed`].
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
        if number == TOO_MANY {
            return ChangeRefusal::Layout(LayoutRefusal::TooManyMaps);
        }
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

/// Returns the tokens of a process that does not choose its own. They are the same for each life of a node.
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
    fn a_joining_process_is_a_cell_only_until_maps_exist() {
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
        // After the first map was created, a new life becomes a cell, too, but it has to copy the keys of the
        // former life.
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
    fn every_refusal_names_its_reason_and_changes_nothing() {
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
        let malformed = Maps::apply(&roster, Position(1), process(1), &Bytes::from_static(b"\x03\xff"));
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
