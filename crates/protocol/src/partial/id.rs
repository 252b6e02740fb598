//! The numbers by which cells name cells, sites, maps and layouts.

use serde::{Deserialize, Serialize};

/// The number of one life of a cell. The layout counts lives from 1 on, and never gives a number twice.
/// Stamps and lists of owners name cells by this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct CellNumber(pub u32);

/// The number of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct MapId(pub u32);

/// The number of changes of a layout so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct LayoutVersion(pub u64);

/// A group of cells that are near each other, as a number. Only the equality of two numbers has a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Site(pub u16);
