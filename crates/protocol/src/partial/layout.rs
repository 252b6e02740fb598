//! The layout: cells, their places, and maps. It is the configuration that the order hands in.
//!
//! A [`Layout`] is a value that all cells compute alike from the same orders. Data never passes through the order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::ring::{Owners, Site, Token};
use crate::id::{Peer, ProcessId};

/// One life of a cell, counted by the layout from 1 on; never given twice. Stamps and copies name cells by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct CellNumber(pub u32);

/// A map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct MapId(pub u32);

/// Counts the changes of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct LayoutVersion(pub u64);

/// A cell as the layout knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The process and its address.
    pub peer: Peer,
    /// Its site.
    pub site: Site,
    /// Its places on the ring.
    pub tokens: Vec<Token>,
    /// It has taken another cell's place and may not have all that it should: it takes writes, and counts for no level.
    pub arriving: bool,
}

/// How many copies of each key a map has at each site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies(BTreeMap<Site, u8>);

impl Copies {
    /// So many at each of these sites; none if that makes no copy or more than [`Owners::MAX`].
    pub fn new(per_site: impl IntoIterator<Item = (Site, u8)>) -> Option<Copies> {
        let copies = Copies(per_site.into_iter().filter(|(_, count)| *count > 0).collect());
        (1..=Owners::MAX).contains(&copies.total()).then_some(copies)
    }

    /// At one site.
    pub fn at(&self, site: Site) -> usize {
        self.0.get(&site).copied().map_or(0, usize::from)
    }

    /// At all sites together.
    pub fn total(&self) -> usize {
        self.0.values().copied().map(usize::from).sum()
    }

    /// The sites that have copies, in order.
    pub fn sites(&self) -> impl Iterator<Item = Site> + '_ {
        self.0.keys().copied()
    }
}

/// The way in which a read deals with replicas that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadRepair {
    /// Nothing: it answers with the newest that it saw.
    None,
    /// So many reads of a million ask every owner, and bring those that are behind up to date after they answered.
    Background {
        /// How many of a million.
        per_million: u32,
    },
    /// A quorum holds the answer before the read gives it. Writes at a quorum ask for the newest stamp first.
    Blocking,
}

/// The way in which a map is replicated. Cells keep the keys of partial quorums here; of other maps the order says no more than that there
/// are such maps, and cells keep them by other means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub enum Strategy {
    /// Partial quorums, whose reads deal so with replicas that differ.
    Quorum(ReadRepair),
    /// A table under the total order of a cluster of tables.
    Ordered,
    /// A process group: a copy at each cell.
    Group,
    /// A replicated service.
    Service {
        /// The process that founds it. No other ever does, so that there is one.
        founder: ProcessId,
    },
}

/// A strategy as it stands in bytes. The first three were all that there were.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Written {
    None,
    Background { per_million: u32 },
    Blocking,
    Ordered,
    Group,
    Service { founder: ProcessId },
}

impl From<Strategy> for Written {
    fn from(strategy: Strategy) -> Written {
        match strategy {
            Strategy::Quorum(ReadRepair::None) => Written::None,
            Strategy::Quorum(ReadRepair::Background { per_million }) => Written::Background { per_million },
            Strategy::Quorum(ReadRepair::Blocking) => Written::Blocking,
            Strategy::Ordered => Written::Ordered,
            Strategy::Group => Written::Group,
            Strategy::Service { founder } => Written::Service { founder },
        }
    }
}

impl From<Written> for Strategy {
    fn from(written: Written) -> Strategy {
        match written {
            Written::None => Strategy::Quorum(ReadRepair::None),
            Written::Background { per_million } => Strategy::Quorum(ReadRepair::Background { per_million }),
            Written::Blocking => Strategy::Quorum(ReadRepair::Blocking),
            Written::Ordered => Strategy::Ordered,
            Written::Group => Strategy::Group,
            Written::Service { founder } => Strategy::Service { founder },
        }
    }
}

impl Strategy {
    /// The word for it.
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
    /// How many copies, and where.
    pub copies: Copies,
    /// The way in which they are kept.
    pub strategy: Strategy,
}

impl Map {
    /// The way in which reads deal with replicas that differ; none: it is no map of partial quorums.
    pub fn read_repair(&self) -> Option<ReadRepair> {
        if let Strategy::Quorum(repair) = self.strategy { Some(repair) } else { None }
    }
}

/// A change of the layout, as the order hands it in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayoutOrder {
    /// One more cell. Only before the first map is created: a cell that owned keys at once would not have them.
    AddCell(Member),
    /// One cell less. Only before the first map is created: nobody else would have its keys.
    RemoveCell(CellNumber),
    /// A process takes a cell's place: its site and its tokens. Where there are or were maps it is arriving.
    Replace {
        /// The cell that goes.
        old: CellNumber,
        /// The process.
        new: Peer,
    },
    /// A cell that was arriving has all that it should have, or all that is left of it.
    Complete(CellNumber),
    /// One more map, empty.
    CreateMap(MapId, Map),
    /// A map and all that is in it are gone. Its id is not used again.
    DropMap(MapId),
}

/// Why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum LayoutRefusal {
    /// This process is a cell already.
    #[error("this process is a cell already")]
    Known,
    /// A member without tokens, with one twice, with one that another cell has, or with too many.
    #[error("a cell needs 1 to {TOKENS_MAX} tokens, and none that is taken")]
    Tokens,
    /// There are or were maps: a new cell would own keys without having them, and those of one that goes would be nowhere.
    #[error("cells are added and removed before the first map is created, and not any more")]
    Serving,
    /// There is no such cell.
    #[error("there is no such cell")]
    NoCell,
    /// The cell is not arriving.
    #[error("the cell is not arriving")]
    NotArriving,
    /// The map's id is or was used.
    #[error("the map's id is or was used")]
    MapUsed,
    /// There is no such map.
    #[error("there is no such map")]
    NoMap,
    /// A site has fewer cells than the map wants copies there.
    #[error("site {} has {cells} cells, and {wanted} copies are wanted there", site.0)]
    TooFewCells {
        /// The site.
        site: Site,
        /// How many cells it has.
        cells: usize,
        /// How many copies are wanted.
        wanted: usize,
    },
    /// No copies, or too many.
    #[error("a map has 1 to {} copies", Owners::MAX)]
    Copies,
}

/// No cell has more tokens.
pub const TOKENS_MAX: usize = 1024;

/// The cells and the maps.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Layout {
    version: LayoutVersion,
    /// The last number that was given.
    last: CellNumber,
    cells: BTreeMap<CellNumber, Member>,
    /// `None`: was dropped.
    maps: BTreeMap<MapId, Option<Map>>,
}

impl Layout {
    /// Makes the next change. One that is refused changes nothing, the version neither.
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
            }
        }
        self.version.0 += 1;
        Ok(self.version)
    }

    /// How often it was changed.
    pub fn version(&self) -> LayoutVersion {
        self.version
    }

    /// The cells, in the order of their numbers.
    pub fn cells(&self) -> impl Iterator<Item = (CellNumber, &Member)> {
        self.cells.iter().map(|(number, member)| (*number, member))
    }

    /// A cell.
    pub fn cell(&self, number: CellNumber) -> Option<&Member> {
        self.cells.get(&number)
    }

    /// The number of a process.
    pub fn number(&self, process: ProcessId) -> Option<CellNumber> {
        self.cells().find(|(_, member)| member.peer.id == process).map(|(number, _)| number)
    }

    /// The maps that there are, in id order.
    pub fn maps(&self) -> impl Iterator<Item = (MapId, &Map)> {
        self.maps.iter().filter_map(|(id, map)| Some((*id, map.as_ref()?)))
    }

    /// Whether there are or were maps.
    pub fn is_serving(&self) -> bool {
        !self.maps.is_empty()
    }

    /// A map.
    pub fn map(&self, id: MapId) -> Option<&Map> {
        self.maps.get(&id)?.as_ref()
    }

    fn add_cell(&mut self, member: &Member) -> Result<(), LayoutRefusal> {
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
        self.cells.insert(self.last, Member { tokens, ..member.clone() });
        Ok(())
    }

    fn replace(&mut self, old: CellNumber, new: &Peer) -> Result<(), LayoutRefusal> {
        if self.number(new.id).is_some() {
            return Err(LayoutRefusal::Known);
        }
        let former = self.cells.remove(&old).ok_or(LayoutRefusal::NoCell)?;
        self.last.0 += 1;
        let member = Member { peer: new.clone(), arriving: self.is_serving(), ..former };
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
        if self.maps.contains_key(&id) {
            return Err(LayoutRefusal::MapUsed);
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

    /// Cells 1, 2 … by site and number of tokens; the tokens look random.
    pub(in super::super) fn layout(cells: &[(u16, u64)]) -> Layout {
        let mut layout = Layout::default();
        for (node, (site, tokens)) in (1u64..).zip(cells) {
            let token = |n: u64| Token(xxhash_rust::xxh3::xxh3_64_with_seed(&n.to_le_bytes(), node));
            let peer = Peer { id: process(node), address: format!("h{node}:1") };
            let member = Member {
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
        let member = |node, tokens: &[u64]| Member {
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
        // Another id is free.
        assert_eq!(layout.apply(&create(2, map(0, 2))), Ok(LayoutVersion(6)));
        assert!(Copies::new([(Site(0), 0)]).is_none());
        assert!(Copies::new([(Site(0), 9), (Site(1), 8)]).is_none());
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
    fn a_place_changes_hands_with_its_tokens() {
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
    fn numbers_are_of_lives() {
        let layout = layout(&[(0, 1), (0, 1)]);
        assert_eq!(layout.number(process(2)), Some(CellNumber(2)));
        assert_eq!(layout.number(ProcessId { node: 2, incarnation: Incarnation(7) }), None);
    }

    #[test]
    fn what_was_written_before_there_were_strategies_is_read() {
        // Copies: one site, its number, how many. Then what was the way of repair alone.
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
