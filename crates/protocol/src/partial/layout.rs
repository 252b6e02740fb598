//! The layout: cells, their places on the ring, and maps. A cell learns it from ordered messages of its
//! domain.
//!
//! All cells compute equal [`Layout`]s from the same messages. No key and no value is sent as an ordered
//! message.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    id::{CellNumber, LayoutVersion, MapId, Site},
    owner::Owners,
    token::Token,
};
use crate::id::{Peer, ProcessId};

/// A cell's entry in the layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutMember {
    /// The process and its address.
    pub peer: Peer,
    /// The cell's site.
    pub site: Site,
    /// The cell's places on the ring.
    pub tokens: Vec<Token>,
    /// Whether the cell has taken another cell's place and may lack entries: it takes writes, and counts for
    /// no level.
    pub arriving: bool,
}

/// The number of copies of each key of a map at each site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies(BTreeMap<Site, u8>);

impl Copies {
    /// Returns the copies of a map with these numbers of copies at these sites. Returns `None` if there would
    /// be no copy, or more than [`Owners::MAX`].
    pub fn new(per_site: impl IntoIterator<Item = (Site, u8)>) -> Option<Copies> {
        let copies = Copies(per_site.into_iter().filter(|(_, count)| *count > 0).collect());
        (1..=Owners::MAX).contains(&copies.total()).then_some(copies)
    }

    /// Returns the number of copies at one site.
    pub fn at(&self, site: Site) -> usize {
        self.0.get(&site).copied().map_or(0, usize::from)
    }

    /// Returns the number of copies at all sites together.
    pub fn total(&self) -> usize {
        self.0.values().copied().map(usize::from).sum()
    }

    /// Returns the sites that have copies, in order.
    pub fn sites(&self) -> impl Iterator<Item = Site> + '_ {
        self.0.keys().copied()
    }
}

/// A read's treatment of replicas that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadRepair {
    /// The read answers with the newest entry that it saw, and repairs nothing.
    None,
    /// Some reads, drawn at random, ask every owner, and bring outdated owners up to date after the answer.
    Background {
        /// The number of reads in a million that ask every owner.
        per_million: u32,
    },
    /// A quorum holds the answer before the read gives it. Writes at a quorum ask for the newest stamp first.
    Blocking,
}

/// The way in which a map is replicated. Cells keep here only the keys of maps of partial quorums. Of a map
/// with another strategy the layout says only that it exists, and the cells keep its keys in tables, groups
/// or services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StrategyBytes", into = "StrategyBytes")]
pub enum Strategy {
    /// Partial quorums, with this treatment of replicas that differ.
    Quorum(ReadRepair),
    /// A table of the cells' own cluster.
    Ordered,
    /// A process group: a copy at each cell.
    Group,
    /// A replicated service.
    Service {
        /// The only process that may found the service, so that there is one service.
        founder: ProcessId,
    },
}

/// The byte form of a strategy. The first three variants are the variants of the format before strategies
/// existed.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum StrategyBytes {
    None,
    Background { per_million: u32 },
    Blocking,
    Ordered,
    Group,
    Service { founder: ProcessId },
}

impl From<Strategy> for StrategyBytes {
    fn from(strategy: Strategy) -> StrategyBytes {
        match strategy {
            Strategy::Quorum(ReadRepair::None) => StrategyBytes::None,
            Strategy::Quorum(ReadRepair::Background { per_million }) => {
                StrategyBytes::Background { per_million }
            }
            Strategy::Quorum(ReadRepair::Blocking) => StrategyBytes::Blocking,
            Strategy::Ordered => StrategyBytes::Ordered,
            Strategy::Group => StrategyBytes::Group,
            Strategy::Service { founder } => StrategyBytes::Service { founder },
        }
    }
}

impl From<StrategyBytes> for Strategy {
    fn from(written: StrategyBytes) -> Strategy {
        match written {
            StrategyBytes::None => Strategy::Quorum(ReadRepair::None),
            StrategyBytes::Background { per_million } => {
                Strategy::Quorum(ReadRepair::Background { per_million })
            }
            StrategyBytes::Blocking => Strategy::Quorum(ReadRepair::Blocking),
            StrategyBytes::Ordered => Strategy::Ordered,
            StrategyBytes::Group => Strategy::Group,
            StrategyBytes::Service { founder } => Strategy::Service { founder },
        }
    }
}

impl Strategy {
    /// Returns the name of the strategy.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Quorum(_) => "quorum",
            Strategy::Ordered => "ordered",
            Strategy::Group => "group",
            Strategy::Service { .. } => "service",
        }
    }
}

/// A map's settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    /// The number of copies at each site.
    pub copies: Copies,
    /// The way in which the copies are kept.
    pub strategy: Strategy,
}

impl Map {
    /// Returns how reads treat replicas that differ. `None` if this is not a map of partial quorums.
    pub fn read_repair(&self) -> Option<ReadRepair> {
        if let Strategy::Quorum(repair) = self.strategy { Some(repair) } else { None }
    }
}

/// A change of the layout, as the order decided it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayoutOrder {
    /// Adds a cell, only before the first map is created: later the cell would own keys without having them.
    AddCell(LayoutMember),
    /// Removes a cell, only before the first map is created: later no other cell would have its keys.
    RemoveCell(CellNumber),
    /// A process takes a cell's place: its site and its tokens. If any map was ever created, the process is
    /// arriving.
    Replace {
        /// The cell that is replaced.
        old: CellNumber,
        /// The process.
        new: Peer,
    },
    /// A cell that was arriving has all its entries, or all that are left of them.
    Complete(CellNumber),
    /// Creates an empty map.
    CreateMap(MapId, Map),
    /// Drops a map and all its content. Its id is not used again.
    DropMap(MapId),
}

/// The reason why a change of the layout was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum LayoutRefusal {
    /// This process is a cell already.
    #[error("this process is a cell already")]
    Known,
    /// The member has no tokens, has too many, has a token twice, or has a token of another cell.
    #[error("a cell needs 1 to {TOKENS_MAX} different tokens, and no token that another cell has")]
    Tokens,
    /// A map was created already: a new cell would own keys without having them, and the keys of a removed
    /// cell would be lost.
    #[error("cells can be added and removed only before the first map is created")]
    Serving,
    /// There is no such cell.
    #[error("there is no such cell")]
    NoCell,
    /// The cell is not arriving.
    #[error(
        "the cell is not arriving: the cell has copied all of its keys already, or has not begun to copy keys"
    )]
    NotArriving,
    /// The map's id is in use, or was used before.
    #[error("the map's id belongs to another map, or did before: use a new id")]
    MapUsed,
    /// There are [`MAPS_MAX`] maps.
    #[error("the domain has {MAPS_MAX} maps already, and no more are possible: drop a map first")]
    TooManyMaps,
    /// There is no such map.
    #[error("there is no such map")]
    NoMap,
    /// A site has fewer cells than the map wants copies there.
    #[error("site {} has {cells} cells, too few for the {wanted} copies that the map wants there", site.0)]
    TooFewCells {
        /// The site.
        site: Site,
        /// The number of the site's cells.
        cells: usize,
        /// The number of copies that the map wants there.
        wanted: usize,
    },
    /// The map has no copies, or too many.
    #[error("a map must have 1 to {} copies", Owners::MAX)]
    Copies,
}

/// Maximum number of tokens of a cell.
pub const TOKENS_MAX: usize = 1024;

/// Maximum number of maps in a domain. Each cell has a ring for each map, and a replica or a member for a map
/// of the strategy `service` or `group`.
pub const MAPS_MAX: usize = 256;

/// The cells and the maps.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Layout {
    version: LayoutVersion,
    /// The highest cell number that was given out so far.
    last: CellNumber,
    cells: BTreeMap<CellNumber, LayoutMember>,
    /// The existing maps. If the map with the last id was dropped, that id stays here with `None`, because no
    /// id up to it is used again.
    maps: BTreeMap<MapId, Option<Map>>,
}

impl Layout {
    /// Makes the next change. A refused change leaves the layout and its version as they are.
    pub fn apply(&mut self, order: &LayoutOrder) -> Result<LayoutVersion, LayoutRefusal> {
        match order {
            LayoutOrder::AddCell(member) => self.add_cell(member)?,
            LayoutOrder::RemoveCell(number) => self.remove_cell(*number)?,
            LayoutOrder::Replace { old, new } => self.replace(*old, new)?,
            LayoutOrder::Complete(number) => {
                let cell = self.cells.get_mut(number).ok_or(LayoutRefusal::NoCell)?;
                if !std::mem::take(&mut cell.arriving) {
                    return Err(LayoutRefusal::NotArriving);
                }
            }
            LayoutOrder::CreateMap(id, map) => self.create_map(*id, map)?,
            LayoutOrder::DropMap(id) => {
                *self.maps.get_mut(id).filter(|map| map.is_some()).ok_or(LayoutRefusal::NoMap)? = None;
                let last = self.maps.last_key_value().map(|(last, _)| *last);
                self.maps.retain(|id, map| map.is_some() || Some(*id) == last);
            }
        }
        self.version.0 += 1;
        Ok(self.version)
    }

    /// Returns the number of changes so far.
    pub fn version(&self) -> LayoutVersion {
        self.version
    }

    /// Returns the cells, in the order of their numbers.
    pub fn cells(&self) -> impl Iterator<Item = (CellNumber, &LayoutMember)> {
        self.cells.iter().map(|(number, member)| (*number, member))
    }

    /// Returns a cell.
    pub fn cell(&self, number: CellNumber) -> Option<&LayoutMember> {
        self.cells.get(&number)
    }

    /// Returns the cell number of a process.
    pub fn number(&self, process: ProcessId) -> Option<CellNumber> {
        self.cells().find(|(_, member)| member.peer.id == process).map(|(number, _)| number)
    }

    /// Returns the existing maps, in id order.
    pub fn maps(&self) -> impl Iterator<Item = (MapId, &Map)> {
        self.maps.iter().filter_map(|(id, map)| Some((*id, map.as_ref()?)))
    }

    /// Whether any map was ever created.
    pub fn is_serving(&self) -> bool {
        !self.maps.is_empty()
    }

    /// Returns a map.
    pub fn map(&self, id: MapId) -> Option<&Map> {
        self.maps.get(&id)?.as_ref()
    }

    fn add_cell(&mut self, member: &LayoutMember) -> Result<(), LayoutRefusal> {
        if self.number(member.peer.id).is_some() {
            return Err(LayoutRefusal::Known);
        }
        let mut tokens = member.tokens.clone();
        tokens.sort_unstable();
        let repeated = tokens.windows(2).any(|pair| pair[0] == pair[1]);
        let is_taken = |token: &Token| self.cells.values().any(|cell| cell.tokens.contains(token));
        if repeated || !(1..=TOKENS_MAX).contains(&tokens.len()) || tokens.iter().any(is_taken) {
            return Err(LayoutRefusal::Tokens);
        }
        if self.is_serving() {
            return Err(LayoutRefusal::Serving);
        }
        self.last.0 += 1;
        self.cells.insert(self.last, LayoutMember { tokens, ..member.clone() });
        Ok(())
    }

    fn replace(&mut self, old: CellNumber, new: &Peer) -> Result<(), LayoutRefusal> {
        if self.number(new.id).is_some() {
            return Err(LayoutRefusal::Known);
        }
        let former = self.cells.remove(&old).ok_or(LayoutRefusal::NoCell)?;
        self.last.0 += 1;
        let member = LayoutMember { peer: new.clone(), arriving: self.is_serving(), ..former };
        self.cells.insert(self.last, member);
        Ok(())
    }

    fn remove_cell(&mut self, number: CellNumber) -> Result<(), LayoutRefusal> {
        if !self.cells.contains_key(&number) {
            return Err(LayoutRefusal::NoCell);
        }
        if self.is_serving() {
            return Err(LayoutRefusal::Serving);
        }
        self.cells.remove(&number);
        Ok(())
    }

    fn create_map(&mut self, id: MapId, map: &Map) -> Result<(), LayoutRefusal> {
        if self.maps.last_key_value().is_some_and(|(last, _)| id <= *last) {
            return Err(LayoutRefusal::MapUsed);
        }
        if self.maps().count() >= MAPS_MAX {
            return Err(LayoutRefusal::TooManyMaps);
        }
        if !(1..=Owners::MAX).contains(&map.copies.total()) {
            return Err(LayoutRefusal::Copies);
        }
        for site in map.copies.sites() {
            let wanted = map.copies.at(site);
            let cells = self.cells.values().filter(|cell| cell.site == site).count();
            if cells < wanted {
                return Err(LayoutRefusal::TooFewCells { site, cells, wanted });
            }
        }
        self.maps.insert(id, Some(map.clone()));
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::id::Incarnation;

    pub(in super::super) fn process(node: u64) -> ProcessId {
        ProcessId { node, incarnation: Incarnation(0) }
    }

    /// Makes a layout of cells 1, 2 … with these sites and numbers of tokens. The tokens look random.
    pub(in super::super) fn layout(cells: &[(u16, u64)]) -> Layout {
        let mut layout = Layout::default();
        for (node, (site, tokens)) in (1u64..).zip(cells) {
            let token = |n: u64| Token(xxhash_rust::xxh3::xxh3_64_with_seed(&n.to_le_bytes(), node));
            let peer = Peer { id: process(node), address: format!("h{node}:1") };
            let member = LayoutMember {
                peer,
                site: Site(*site),
                tokens: (0..*tokens).map(token).collect(),
                arriving: false,
            };
            layout.apply(&LayoutOrder::AddCell(member)).expect("tokens differ");
        }
        layout
    }

    fn map(site: u16, copies: u8) -> Map {
        Map {
            copies: Copies::new([(Site(site), copies)]).unwrap(),
            strategy: Strategy::Quorum(ReadRepair::None),
        }
    }

    #[test]
    fn every_refusal_leaves_the_layout_as_it_was() {
        let mut layout = layout(&[(0, 2), (0, 2), (1, 1)]);
        let member = |node, tokens: &[u64]| LayoutMember {
            peer: Peer { id: process(node), address: String::new() },
            site: Site(0),
            tokens: tokens.iter().copied().map(Token).collect(),
            arriving: false,
        };
        let taken = layout.cell(CellNumber(1)).unwrap().tokens[0].0;
        let create = |id, map| LayoutOrder::CreateMap(MapId(id), map);
        let too_few = |site, cells, wanted| LayoutRefusal::TooFewCells { site: Site(site), cells, wanted };
        let before = layout.clone();
        for (order, refusal) in [
            (LayoutOrder::AddCell(member(1, &[5])), LayoutRefusal::Known),
            (LayoutOrder::AddCell(member(9, &[])), LayoutRefusal::Tokens),
            (LayoutOrder::AddCell(member(9, &[5, 5])), LayoutRefusal::Tokens),
            (LayoutOrder::AddCell(member(9, &[taken])), LayoutRefusal::Tokens),
            (create(1, map(0, 3)), too_few(0, 2, 3)),
            (create(1, map(4, 1)), too_few(4, 0, 1)),
            (LayoutOrder::DropMap(MapId(1)), LayoutRefusal::NoMap),
            (LayoutOrder::RemoveCell(CellNumber(9)), LayoutRefusal::NoCell),
            (LayoutOrder::Replace { old: CellNumber(9), new: member(9, &[]).peer }, LayoutRefusal::NoCell),
            (LayoutOrder::Replace { old: CellNumber(1), new: member(2, &[]).peer }, LayoutRefusal::Known),
            (LayoutOrder::Complete(CellNumber(1)), LayoutRefusal::NotArriving),
        ] {
            assert_eq!(layout.apply(&order), Err(refusal));
            assert_eq!(layout, before);
        }
        assert_eq!(layout.apply(&create(1, map(0, 2))), Ok(LayoutVersion(4)));
        assert_eq!(layout.apply(&LayoutOrder::AddCell(member(9, &[5]))), Err(LayoutRefusal::Serving));
        assert_eq!(layout.apply(&LayoutOrder::RemoveCell(CellNumber(3))), Err(LayoutRefusal::Serving));
        assert_eq!(layout.apply(&LayoutOrder::DropMap(MapId(1))), Ok(LayoutVersion(5)));
        assert_eq!(layout.maps().count(), 0);
        assert_eq!(layout.apply(&create(1, map(0, 2))), Err(LayoutRefusal::MapUsed));
        // An id that no earlier map had is free.
        assert_eq!(layout.apply(&create(2, map(0, 2))), Ok(LayoutVersion(6)));
        assert!(Copies::new([(Site(0), 0)]).is_none());
        assert!(Copies::new([(Site(0), 9), (Site(1), 8)]).is_none());
    }

    /// The whole layout is written to disk at each change, so a dropped map must leave nothing in it.
    #[test]
    fn maps_that_were_dropped_take_no_room() {
        let mut layout = layout(&[(0, 1), (0, 1)]);
        let bytes = |layout: &Layout| postcard::to_stdvec(layout).unwrap().len();
        layout.apply(&LayoutOrder::CreateMap(MapId(1), map(0, 2))).unwrap();
        let before = bytes(&layout);
        for id in 2..1_000 {
            layout.apply(&LayoutOrder::CreateMap(MapId(id), map(0, 2))).unwrap();
            layout.apply(&LayoutOrder::DropMap(MapId(id))).unwrap();
            for used in [2, id] {
                let again = layout.apply(&LayoutOrder::CreateMap(MapId(used), map(0, 2)));
                assert_eq!(again, Err(LayoutRefusal::MapUsed), "{used} after {id}");
            }
        }
        assert!(bytes(&layout) < before + 16, "{} bytes, and {before} before", bytes(&layout));
        layout.apply(&LayoutOrder::DropMap(MapId(1))).unwrap();
        assert!(layout.is_serving(), "there were maps");
    }

    #[test]
    fn a_number_is_not_given_twice() {
        let mut layout = layout(&[(0, 1), (0, 1)]);
        let member = layout.cell(CellNumber(2)).unwrap().clone();
        layout.apply(&LayoutOrder::RemoveCell(CellNumber(2))).unwrap();
        assert_eq!(layout.number(process(2)), None);
        layout.apply(&LayoutOrder::AddCell(member)).unwrap();
        assert_eq!(layout.number(process(2)), Some(CellNumber(3)));
    }

    #[test]
    fn a_replacing_cell_takes_the_tokens_of_its_predecessor() {
        let mut layout = layout(&[(0, 2), (3, 2)]);
        let new = |node| Peer { id: process(node), address: String::new() };
        let former = layout.cell(CellNumber(2)).unwrap().clone();
        layout.apply(&LayoutOrder::Replace { old: CellNumber(2), new: new(7) }).unwrap();
        let present = layout.cell(CellNumber(3)).unwrap();
        assert_eq!((&present.tokens, present.site, present.arriving), (&former.tokens, Site(3), false));
        assert!(layout.cell(CellNumber(2)).is_none());
        layout.apply(&LayoutOrder::CreateMap(MapId(1), map(0, 1))).unwrap();
        layout.apply(&LayoutOrder::Replace { old: CellNumber(3), new: new(8) }).unwrap();
        assert!(layout.cell(CellNumber(4)).unwrap().arriving);
        layout.apply(&LayoutOrder::Complete(CellNumber(4))).unwrap();
        assert!(!layout.cell(CellNumber(4)).unwrap().arriving);
    }

    #[test]
    fn each_life_of_a_cell_has_its_own_number() {
        let layout = layout(&[(0, 1), (0, 1)]);
        assert_eq!(layout.number(process(2)), Some(CellNumber(2)));
        assert_eq!(layout.number(ProcessId { node: 2, incarnation: Incarnation(7) }), None);
    }

    #[test]
    fn maps_stored_before_strategies_existed_are_read() {
        // The byte form is one site with its number of copies, then a byte. In the earlier format that byte
        // stood for read repair alone.
        let map = |strategy| Map { copies: Copies::new([(Site(0), 3)]).unwrap(), strategy };
        for (strategy, bytes) in [
            (Strategy::Quorum(ReadRepair::None), &[1, 0, 3, 0][..]),
            (Strategy::Quorum(ReadRepair::Background { per_million: 5 }), &[1, 0, 3, 1, 5]),
            (Strategy::Quorum(ReadRepair::Blocking), &[1, 0, 3, 2]),
            (Strategy::Ordered, &[1, 0, 3, 3]),
        ] {
            assert_eq!(postcard::to_stdvec(&map(strategy)).unwrap(), bytes);
            assert_eq!(postcard::from_bytes::<Map>(bytes).unwrap(), map(strategy));
        }
    }
}
