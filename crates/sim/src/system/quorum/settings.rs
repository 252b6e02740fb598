//! Settings of maps of partial quorums in a scenario, and the maps.

use std::time::Duration;

use quorate_protocol::partial::{
    self, Copies, HintLimits, Level, Map, Patience, ReadRepair, RepairSettings, Site, Strategy,
};
use quorate_world::DiskSettings;
use serde::Deserialize;

use crate::{check::quorum::Promise, mutation::Mutation};

/// How large, and how busy.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How many routers there should be.
    pub routers: usize,
    /// How many cells, at two sites in turn.
    pub cells: usize,
    /// How many more processes may take a cell's place.
    pub spares: usize,
    /// How many users; each does one thing at a time.
    pub users: u64,
    /// How many operations all of them do.
    pub operations: u64,
    /// How many keys each map has.
    pub keys: u64,
    /// The number of counters of each map. Half of all operations are on them, if there are any.
    pub counters: u64,
    /// How long a coordinator tries.
    pub timeout_ms: u64,
    /// How far a clock is off, either way, as long as it does not jump.
    pub skew_ms: u64,
    /// How far stamps may be ahead of a clock.
    pub skew_ms_max: u64,
    /// How many bytes of hints a coordinator keeps in every fourth seed: so few that some are given up.
    pub hint_bytes_few: usize,
    /// What the disks are like, if the processes have any.
    pub disk: Option<DiskSettings>,
    /// The pause between two rounds of comparing, in every other seed. In the rest cells never compare, so that hints show what
    /// they do alone.
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
            timeout_ms: 800,
            skew_ms: 200,
            skew_ms_max: 500,
            hint_bytes_few: 4 << 10,
            disk: None,
            repair_ms: 150,
        }
    }
}

impl Settings {
    /// How the cell on the machine at this place among them behaves.
    pub(super) fn cell(&self, at: usize, seed: u64, mutation: Option<Mutation>) -> partial::Settings {
        let usual = partial::Settings::default();
        let bytes_max = if seed % 4 == 3 { self.hint_bytes_few } else { usual.patience.hints.bytes_max };
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
        partial::Settings { patience, skew_max, repair, checkpoint_bytes, ..usual }
    }

    pub(super) fn skew_max(&self) -> Duration {
        Duration::from_millis(self.skew_ms_max)
    }
}

/// A cell writes down all that it keeps once so much has been written.
const CHECKPOINT_BYTES: u64 = 8 << 10;

/// Whether the cells of this seed compare their keys.
pub(super) fn compares(seed: u64) -> bool {
    seed / 4 % 2 == 1 || seed % 4 < 2
}

/// Whether all of them do, so that deletions are forgotten in the end. Else one never asks: it gets what it lacks from those that ask it,
/// and as it never knows that it has everything, nobody may forget a deletion.
pub(super) fn forgets(seed: u64) -> bool {
    compares(seed) && seed.is_multiple_of(2)
}

/// A map, how it is used, and what that promises.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) promise: Promise,
    copies: [(u16, u8); 2],
    repair: ReadRepair,
    pub(super) reads: &'static [Level],
    pub(super) writes: &'static [Level],
    /// A smaller level that will do.
    pub(super) fallback: Option<Level>,
}

const QUORUMS: &[Level] = &[Level::Quorum, Level::Quorum, Level::Quorum, Level::All, Level::EachQuorum];

/// The maps: the rows of the table in the essay of `partial`.
pub(super) static MAPS: [Kind; 4] = [
    Kind {
        name: "atomic",
        promise: Promise::Atomic,
        copies: [(0, 2), (1, 1)],
        repair: ReadRepair::Blocking,
        reads: QUORUMS,
        writes: QUORUMS,
        fallback: None,
    },
    Kind {
        name: "regular",
        promise: Promise::Regular,
        copies: [(0, 2), (1, 1)],
        repair: ReadRepair::None,
        reads: QUORUMS,
        writes: QUORUMS,
        fallback: None,
    },
    Kind {
        name: "sites",
        promise: Promise::Regular,
        copies: [(0, 3), (1, 2)],
        repair: ReadRepair::None,
        reads: &[Level::LocalQuorum],
        writes: &[Level::EachQuorum],
        fallback: None,
    },
    Kind {
        name: LOOSE,
        promise: Promise::Written,
        copies: [(0, 2), (1, 1)],
        repair: ReadRepair::Background { per_million: 1_000_000 },
        reads: &[Level::One, Level::Two, Level::Quorum],
        writes: &[Level::One, Level::One, Level::Two, Level::Quorum],
        fallback: Some(Level::One),
    },
];

/// The map of which each read asks every owner.
pub(super) const LOOSE: &str = "loose";

impl Kind {
    pub(super) fn map(&self) -> Map {
        let per_site = self.copies.iter().map(|(site, count)| (Site(*site), *count));
        let copies = Copies::new(per_site).expect("between one and the most");
        Map { copies, strategy: Strategy::Quorum(self.repair) }
    }
}
