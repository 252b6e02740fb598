//! Settings of maps of partial quorums in a scenario, and the maps.

use std::time::Duration;

use quorate_protocol::partial::{
    self, Copies, HintLimits, Level, Limits, Map, Patience, ReadRepair, RepairSettings, Site, Strategy,
};
use quorate_world::DiskSettings;
use serde::Deserialize;

use crate::{check::quorum::Promise, mutation::Mutation};

/// Size and load of the system.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The wanted number of routers; 0 if another workload has them.
    pub routers: usize,
    /// Number of cells. They are distributed over two sites in turn.
    pub cells: usize,
    /// Number of further processes that may take a cell's place.
    pub spares: usize,
    /// Number of users; each does one operation at a time.
    pub users: u64,
    /// Number of operations of all users.
    pub operations: u64,
    /// Number of keys of each map.
    pub keys: u64,
    /// Number of counters of each map. With counters, half of all operations are on them.
    pub counters: u64,
    /// Number of hashes, and of keys whose values expire, of each map. With 0, users write only strings and
    /// counters, there are no scans, and there is no temporary map.
    pub hashes: u64,
    /// Maximum size of an entry, in bytes, in seeds with small limits.
    pub entry_bytes_few: usize,
    /// Maximum size of all entries of a cell, in bytes, in seeds with small limits.
    pub store_bytes_few: usize,
    /// Time for which a coordinator tries to complete an operation, in milliseconds.
    pub timeout_ms: u64,
    /// Largest error of a clock, either way, in milliseconds, unless it jumps.
    pub skew_ms: u64,
    /// Time by which stamps may be ahead of a clock, in milliseconds.
    pub skew_ms_max: u64,
    /// Size of the hints that a coordinator keeps, in bytes, in seeds with few hints: so small that the
    /// coordinator gives some hints up.
    pub hint_bytes_few: usize,
    /// Number of seeds among which one has few hints.
    pub few_hints_every: u64,
    /// Number of requests that delete a string, out of ten requests for strings that users may delete.
    pub deletes: u64,
    /// The disks, if the processes have any.
    pub disk: Option<DiskSettings>,
    /// Pause between two rounds of comparing in seeds with comparison, in milliseconds. In other seeds cells
    /// never compare, so that the effect of hints alone shows.
    pub repair_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            routers: 3,
            cells: 5,
            spares: 1,
            users: 12,
            operations: 1_500,
            keys: 6,
            counters: 0,
            hashes: 0,
            entry_bytes_few: 450,
            store_bytes_few: 4_500,
            timeout_ms: 800,
            skew_ms: 200,
            skew_ms_max: 500,
            hint_bytes_few: 4 << 10,
            few_hints_every: 4,
            deletes: 1,
            disk: None,
            repair_ms: 150,
        }
    }
}

impl Settings {
    /// Returns the settings of the cell at this index among the machines.
    pub(super) fn cell(&self, at: usize, seed: u64, mutation: Option<Mutation>) -> partial::Settings {
        let usual = partial::Settings::default();
        let few = (seed + 1).is_multiple_of(self.few_hints_every);
        let bytes_max = if few { self.hint_bytes_few } else { usual.patience.hints.bytes_max };
        let skew_max = match mutation {
            Some(Mutation::SkewUnbounded) => Duration::from_secs(3_600),
            _ => self.skew_max(),
        };
        let hints = HintLimits { bytes_max, ..usual.patience.hints };
        let timeout = Duration::from_millis(self.timeout_ms);
        let compares = compares(seed) && (at > 0 || forgets(seed));
        let every = Duration::from_millis(if compares { self.repair_ms } else { 3_600_000 });
        let repair = RepairSettings { every, ..usual.repair };
        let patience = Patience { timeout, hints, ..usual.patience };
        let checkpoint_bytes = self.disk.map(|_| CHECKPOINT_BYTES);
        let limits = if self.is_small(seed) { self.limits() } else { usual.limits };
        partial::Settings { patience, limits, skew_max, repair, checkpoint_bytes, ..usual }
    }

    /// Returns small limits, with room for all copies of the largest map.
    fn limits(&self) -> Limits {
        let (entry_bytes_max, store_bytes_max) = (self.entry_bytes_few, self.store_bytes_few);
        Limits {
            entry_bytes_max,
            store_bytes_max,
            entry_bytes_spare: entry_bytes_max / 2,
            store_bytes_spare: store_bytes_max / 8,
            place_bytes_max: entry_bytes_max * 16,
        }
    }

    /// Whether the limits of this seed are small. They are never small if the cells do not compare their
    /// keys, because a cell would then never get the entries that it refused.
    pub(super) fn is_small(&self, seed: u64) -> bool {
        self.hashes > 0 && compares(seed) && seed % 10 < 5
    }

    pub(super) fn skew_max(&self) -> Duration {
        Duration::from_millis(self.skew_ms_max)
    }
}

/// Bytes written after which a cell writes a checkpoint.
const CHECKPOINT_BYTES: u64 = 8 << 10;

/// Whether the cells of this seed compare their keys.
pub(super) fn compares(seed: u64) -> bool {
    seed / 4 % 2 == 1 || seed % 4 < 2
}

/// Whether all cells compare their keys with other cells, so that they forget deletions in the end. Otherwise
/// one cell never asks: it gets missing entries from the cells that ask it. That cell never knows that it has
/// everything, so no cell may forget a deletion.
pub(super) fn forgets(seed: u64) -> bool {
    compares(seed) && seed.is_multiple_of(2)
}

/// A map, the levels at which users use it, and the promise that follows from its replication and these
/// levels.
#[derive(Debug)]
pub(super) struct MapKind {
    pub(super) name: &'static str,
    pub(super) promise: Promise,
    copies: [(u16, u8); 2],
    repair: ReadRepair,
    pub(super) reads: &'static [Level],
    pub(super) writes: &'static [Level],
    /// A smaller level that the users accept.
    pub(super) fallback: Option<Level>,
}

const QUORUMS: &[Level] = &[Level::Quorum, Level::Quorum, Level::Quorum, Level::All, Level::EachQuorum];

/// The maps: the rows of the table in the essay of `partial`.
pub(super) static MAPS: [MapKind; 4] = [
    MapKind {
        name: "atomic",
        promise: Promise::Atomic,
        copies: [(0, 2), (1, 1)],
        repair: ReadRepair::Blocking,
        reads: QUORUMS,
        writes: QUORUMS,
        fallback: None,
    },
    MapKind {
        name: "regular",
        promise: Promise::Regular,
        copies: [(0, 2), (1, 1)],
        repair: ReadRepair::None,
        reads: QUORUMS,
        writes: QUORUMS,
        fallback: None,
    },
    MapKind {
        name: "sites",
        promise: Promise::Regular,
        copies: [(0, 3), (1, 2)],
        repair: ReadRepair::None,
        reads: &[Level::LocalQuorum],
        writes: &[Level::EachQuorum],
        fallback: None,
    },
    MapKind {
        name: LOOSE,
        promise: Promise::Written,
        copies: [(0, 2), (1, 1)],
        repair: ReadRepair::Background { per_million: 1_000_000 },
        reads: &[Level::One, Level::Two, Level::Quorum],
        writes: &[Level::One, Level::One, Level::Two, Level::Quorum],
        fallback: Some(Level::One),
    },
];

/// A map that is created and dropped under traffic.
pub(super) static EXTRA: MapKind = MapKind {
    name: "extra",
    promise: Promise::Written,
    copies: [(0, 2), (1, 1)],
    repair: ReadRepair::Blocking,
    reads: QUORUMS,
    writes: QUORUMS,
    fallback: None,
};

/// The map in which each read asks every owner.
pub(super) const LOOSE: &str = "loose";

impl MapKind {
    pub(super) fn map(&self) -> Map {
        let per_site = self.copies.iter().map(|(site, count)| (Site(*site), *count));
        let copies =
            Copies::new(per_site).expect("the number of copies of a map is between one and the maximum");
        Map { copies, strategy: Strategy::Quorum(self.repair) }
    }
}

/// The scenarios of the system, by name.
pub(super) const SCENARIOS: &[(&str, &str)] = &[
    ("quorum", include_str!("../../../../../scenarios/quorum.toml")),
    ("deletions", include_str!("../../../../../scenarios/deletions.toml")),
    ("counters", include_str!("../../../../../scenarios/counters.toml")),
    ("counters_disk", include_str!("../../../../../scenarios/counters_disk.toml")),
    ("quorum_disk", include_str!("../../../../../scenarios/quorum_disk.toml")),
];
