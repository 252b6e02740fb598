//! The status of a cell, for display.

use std::collections::BTreeMap;

use quorate_protocol::role::{Role, State};
use serde::{Deserialize, Serialize};

use super::strategy::StrategyMapStatus;

/// The status of a cell. Its counters count from the start of the cell's present life.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// State of the cell.
    pub state: State,
    /// Reason why the process cannot do its work, as far as the process itself knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hindrance: Option<String>,
    /// The process id, in the form that other reports use.
    pub process: String,
    /// The position in the order of changes that the process has reached.
    pub position: u64,
    /// The position up to which the process has executed changes. It equals `position`, because a cell
    /// executes a change on delivery.
    pub executed: u64,
    /// The routers that the process knows.
    pub routers: Vec<String>,
    /// The generation of the domain.
    pub generation: u32,
    /// The incarnation of the router that began the generation, in hexadecimal.
    pub generation_of: String,
    /// The members of maps according to the order.
    pub members: Vec<MemberStatus>,
    /// The maps.
    pub maps: Vec<MapStatus>,
    /// The state, in this cell, of the maps whose strategy is not partial quorums.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<StrategyMapStatus>,
    /// The gauges and counters of the cell.
    pub cell: CellStatus,
}

/// A member's entry in the configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemberStatus {
    /// The member's name.
    pub name: String,
    /// The member's role: a cell, with keys or without.
    pub role: Role,
    /// The process.
    pub process: String,
    /// The incarnation of the process, in hexadecimal.
    pub incarnation: String,
    /// The address at which the member listens, as `host:port`.
    pub address: String,
    /// The member's site.
    pub site: u16,
    /// The member's number as a cell; `None` for a spare.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<u32>,
}

/// A map.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MapStatus {
    /// The map's name.
    pub name: String,
    /// The way in which the map is replicated.
    pub strategy: String,
    /// Copies of each key at all sites together, for partial quorums; replicas, for a service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<usize>,
    /// The way in which reads treat replicas that differ, for partial quorums.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_repair: Option<String>,
}

/// The gauges of a cell, with their values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellStatus {
    /// The cell's number; `None` for a spare.
    pub number: Option<u32>,
    /// Cells, itself included, to which the cell can send requests now.
    pub reachable: Vec<u32>,
    /// Operations that the cell coordinates at this moment.
    pub running: usize,
    /// Shortest and longest time to other sites, one way, in milliseconds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub distances_ms: BTreeMap<u16, [f64; 2]>,
    /// Approximate size of the cell's keys and entries, in bytes.
    pub bytes: usize,
    /// Requests that the cell refused because the sender had another layout.
    pub refused_layout: u64,
    /// Writes that the cell refused because their stamps were too far ahead.
    pub refused_skewed: u64,
    /// Writes that the cell refused because of their size.
    pub refused_too_large: u64,
    /// Writes that the cell refused because it lacked memory.
    pub refused_full: u64,
    /// Messages of processes that are not cells.
    pub strays: u64,
    /// Hints that the cell keeps for other cells.
    pub hints: usize,
    /// Approximate size of these hints, in bytes.
    pub hint_bytes: usize,
    /// Hints that their owners acknowledged.
    pub hints_delivered: u64,
    /// Hints that the cell gave up.
    pub hints_lost: u64,
    /// Reads that the cell coordinated and after which it updated replicas, or tried to.
    pub repairs: u64,
    /// Rounds in which the cell compared its keys with those of all other cells.
    pub compared: u64,
    /// Rounds of comparison in which not all other cells took part.
    pub compared_in_part: u64,
    /// Entries that the cell lacked and took from other cells.
    pub entries_taken: u64,
    /// Entries that other cells lacked and that this cell gave them.
    pub entries_given: u64,
    /// Size of the messages for comparisons, in bytes.
    pub compared_bytes: u64,
    /// Number of keys that have an entry in this cell, deleted keys included.
    pub keys: usize,
    /// A print of the keys that have an entry, and of their stamps, in hexadecimal. Two cells that own the
    /// same keys and have the same writes have the same print.
    pub keys_print: String,
    /// Deleted and expired values that the cell has forgotten, because every cell knew of them.
    pub forgotten: u64,
    /// Time up to which the cell has all writes, in nanoseconds of hybrid clocks.
    pub horizon: u64,
    /// Numbers of the cells for which this cell gave up hints.
    pub lacking: Vec<u32>,
    /// Number of cells that have not yet given this cell all its entries, while this cell is arriving.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arriving: Option<usize>,
    /// Whether the cell came back from its disk, so that the hints that it kept before are gone.
    pub resumed: bool,
}
