//! The flags of `quorate up`, and the cluster that they and the directory describe.
//!
//! This file decides whether the cluster is kept on disk, and whether it is new or continues.

use std::time::Duration;

use anyhow::{Result, anyhow};
use quorate::maps::Between;
use quorate_command::Usage;
use quorate_protocol::{DomainId, rubberband::RING_MAX};

use super::plan::{ClusterPlan, check_ports};
use crate::{
    charter::{self, Charter, ClusterContent, ClusterSize, Sample},
    config::{CellConfig, NodeConfig},
    directory::{Directory, DirectoryArgs},
};

/// Runs a whole cluster on this machine and loads a sample, the flights that left New York in 2013.
///
/// Every process is an operating-system process of its own, and is started again when it dies. Tables are
/// kept on disk: the next `up` continues with the same tables, processes and ports, and does not load the
/// sample again. With `--memory` the tables are lost when the cluster stops. Ctrl-C, SIGTERM and
/// `quorate down` stop the cluster. With `--cells` it also runs maps of partial quorums, for Redis clients,
/// and keeps them in the same way; `--storage 0` leaves the tables out.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// Number of routers. They order and route messages, and a majority of them must live [default: 3].
    #[arg(long, env = "QUORATE_UP_ROUTERS", value_parser = clap::value_parser!(u16).range(1..=15))]
    routers: Option<u16>,
    /// Number of storage processes that hold rows, at most 64. With 0 the cluster has no tables, and needs
    /// cells [default: 4].
    #[arg(long, env = "QUORATE_UP_STORAGE", value_parser = clap::value_parser!(u16).range(0..=RING_MAX as i64))]
    storage: Option<u16>,
    /// Number of storage processes that wait to replace a dead one [default: 1].
    #[arg(long, env = "QUORATE_UP_STANDBY", value_parser = clap::value_parser!(u16).range(0..=256))]
    standby: Option<u16>,
    /// Number of storage processes that hold each row [default: 3].
    #[arg(long, env = "QUORATE_UP_REPLICAS", value_parser = clap::value_parser!(u16).range(1..=RING_MAX as i64))]
    replicas: Option<u16>,
    /// Number of cells, which keep maps of partial quorums [default: 0].
    #[arg(long, env = "QUORATE_UP_CELLS", value_parser = clap::value_parser!(u16).range(0..=256))]
    cells: Option<u16>,
    /// Number of sites, among which the cells are distributed in turn [default: 1].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    sites: Option<u16>,
    /// One-way distance of two sites in milliseconds: `0-1=18.5`, or `0-1=18.5~2` for up to 2 random
    /// milliseconds more. Repeat the option, or separate by commas. It delays only messages between cells,
    /// and only until the cluster stops. Give it again to the next `up`.
    #[arg(long = "distance", value_delimiter = ',')]
    pub(super) distances: Vec<Between>,
    /// Level of new connections to cells, until the cluster stops: one, two, quorum, all [default: quorum].
    #[arg(long, env = "QUORATE_UP_LEVEL")]
    pub(super) level: Option<String>,
    /// Maximum size of the writes that a cell stores for cells that do not acknowledge them, in bytes
    /// [default: 67108864].
    #[arg(long, env = "QUORATE_UP_HINT_BYTES_MAX")]
    pub(super) hint_bytes_max: Option<usize>,
    /// Port for SQL, at 127.0.0.1, or for the Redis protocol if there are no tables. The processes use the
    /// ports after it: two for each process, and two more for each cell, of which the first is for the Redis
    /// protocol. 0 means free ports [default: 24700].
    #[arg(long, env = "QUORATE_UP_PORT")]
    pub(super) port: Option<u16>,
    /// Keeps nothing on disk. When the cluster stops, its tables or maps are lost.
    #[arg(long, env = "QUORATE_UP_MEMORY", value_parser = clap::builder::FalseyValueParser::new())]
    pub(super) memory: bool,
    /// Loads no sample.
    #[arg(long)]
    pub(super) empty: bool,
    /// Returns once the cluster answers. Stop the cluster with `quorate down`.
    #[arg(long)]
    pub(super) detach: bool,
    /// For benchmarks: files get their bytes only at a sync, so that a kill loses what a power cut would
    /// lose.
    #[arg(long, hide = true)]
    pub(super) late_files: bool,
    /// Makes this process the supervisor for `--detach`.
    #[arg(long, hide = true)]
    pub(super) detached: bool,
    #[command(flatten)]
    pub(super) directory: DirectoryArgs,
}

/// The default numbers of processes, and the first port.
pub(super) const DEFAULT_SIZE: ClusterSize =
    ClusterSize { routers: 3, storage: 4, standby: 1, replicas: 3, port: 24700, cells: 0, sites: 0 };

/// Longest time until a fresh cluster must answer SQL.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Longest time that an answering cluster waits for a missing router. The cluster works without that router.
pub(super) const ROUTERS_PATIENCE: Duration = Duration::from_secs(10);

/// A cluster that is about to run.
pub(super) struct ClusterStart {
    pub(super) plan: ClusterPlan,
    /// Charter of a cluster on disk, or `None` in memory.
    pub(super) charter: Option<Charter>,
    /// Whether the cluster exists already and continues.
    pub(super) resumes: bool,
}

/// A flag whose value is fixed when the cluster is made.
pub(super) struct SizeFlag {
    pub(super) flag: &'static str,
    /// Content to which the flag belongs. `None` means any.
    of: Option<ClusterContent>,
    pub(super) given: Option<u16>,
    /// The flag's value with which the cluster was made.
    made_with: u16,
}

impl Args {
    /// Returns the flags with the values in `size`.
    pub(super) fn given(&self, size: &ClusterSize) -> [SizeFlag; 7] {
        let tables = Some(ClusterContent::Tables);
        let maps = Some(ClusterContent::Maps);
        [
            ("--routers", None, self.routers, size.routers),
            ("--storage", None, self.storage, size.storage),
            ("--standby", tables, self.standby, size.standby),
            ("--replicas", tables, self.replicas, size.replicas),
            ("--cells", None, self.cells, size.cells),
            ("--sites", maps, self.sites, size.sites),
            ("--port", None, self.port, size.port),
        ]
        .map(|(flag, of, given, made_with)| SizeFlag { flag, of, given, made_with })
    }

    /// Returns the size of a new cluster.
    fn size(&self) -> Result<ClusterSize, Usage> {
        let (routers, port) =
            (self.routers.unwrap_or(DEFAULT_SIZE.routers), self.port.unwrap_or(DEFAULT_SIZE.port));
        let storage = self.storage.unwrap_or(DEFAULT_SIZE.storage);
        let cells = self.cells.unwrap_or(DEFAULT_SIZE.cells);
        if storage == 0 && cells == 0 {
            return Err(Usage(String::from("--storage 0 leaves no tables, so the cluster needs --cells")));
        }
        let of_tables = |given: Option<u16>, default| if storage > 0 { given.unwrap_or(default) } else { 0 };
        let size = ClusterSize {
            routers,
            storage,
            standby: of_tables(self.standby, DEFAULT_SIZE.standby),
            replicas: of_tables(self.replicas, DEFAULT_SIZE.replicas),
            port,
            cells,
            sites: if cells > 0 { self.sites.unwrap_or(1) } else { 0 },
        };
        self.fit(&size, "the cluster would have")?;
        let ClusterSize { replicas, storage, .. } = size;
        if replicas > storage {
            return Err(Usage(format!(
                "--replicas {replicas} needs at least {replicas} storage processes, but --storage is {storage}"
            )));
        }
        Ok(size)
    }

    /// Refuses flags that have no meaning for a cluster of this size. The error describes the cluster by
    /// `description`.
    fn fit(&self, size: &ClusterSize, description: &str) -> Result<(), Usage> {
        let numbers =
            self.given(&DEFAULT_SIZE).map(|it| (it.flag, it.of, it.given.is_some_and(|given| given > 0)));
        let maps = Some(ClusterContent::Maps);
        let others = [
            ("--distance", maps, !self.distances.is_empty()),
            ("--level", maps, self.level.is_some()),
            ("--hint-bytes-max", maps, self.hint_bytes_max.is_some()),
        ];
        for (flag, of, is_given) in numbers.into_iter().chain(others) {
            if let Some(content) = of.filter(|content| is_given && !size.has(*content)) {
                let lacks = match content {
                    ClusterContent::Tables => "no tables",
                    ClusterContent::Maps => "no cells",
                };
                return Err(Usage(format!(
                    "{flag}: {description} {lacks}: leave the flag out, or give another --data-dir"
                )));
            }
        }
        Ok(())
    }

    /// Refuses flags that contradict the cluster in the directory.
    fn agree_with(&self, charter: &Charter, directory: &Directory) -> Result<(), Usage> {
        let kept = format!("{} keeps domain {}", directory.shown(), charter.domain);
        if self.memory {
            return Err(Usage(format!(
                "--memory: {kept} on disk; leave the flag out, give another --data-dir, or remove the {} for good with \
                 `quorate down --destroy`",
                charter.made_with.contents()
            )));
        }
        self.fit(&charter.made_with, &format!("{kept}, which has"))?;
        for SizeFlag { flag, given, made_with, .. } in self.given(&charter.made_with) {
            if let Some(given) = given.filter(|given| *given != made_with) {
                return Err(Usage(format!(
                    "{flag} {given}: {kept}, which was made with {flag} {made_with}: leave the flag out, or give another \
                     --data-dir"
                )));
            }
        }
        Ok(())
    }

    /// Returns the level of new connections to cells.
    pub(super) fn level(&self) -> String {
        self.level.clone().unwrap_or_else(|| CellConfig::default().level)
    }
}

impl ClusterStart {
    /// Returns the cluster that the flags and the directory describe, without changing anything.
    pub(super) fn of(args: &Args, directory: &Directory) -> Result<ClusterStart> {
        let defaults = CellConfig::default();
        let plan = |domain, size: ClusterSize, first_port, kept| ClusterPlan {
            domain,
            size,
            first_port,
            distances: args.distances.clone(),
            cell: CellConfig {
                level: args.level(),
                hint_bytes_max: args.hint_bytes_max.unwrap_or(defaults.hint_bytes_max),
                ..defaults.clone()
            },
            late_files: args.late_files,
            data_root: if kept { Some(directory.join("")) } else { None },
        };
        if let Some(charter) = Charter::read(directory)?
            && charter.has_begun(directory)?
        {
            args.agree_with(&charter, directory)?;
            let plan = plan(charter.domain, charter.made_with, charter.first_port, true);
            return Ok(ClusterStart { plan, charter: Some(charter), resumes: true });
        }
        let (domain, size) = (new_domain()?, args.size()?);
        let plan = plan(domain, size, size.port, !args.memory);
        // Fails if there are not enough ports.
        plan.processes()?;
        let has_sample = size.has(ClusterContent::Tables) && !args.empty;
        let sample = if has_sample { Sample::Wanted } else { Sample::None };
        let charter = (!args.memory).then(|| Charter::new(domain, size, sample));
        Ok(ClusterStart { plan, charter, resumes: false })
    }

    /// Returns the processes, after checking that their ports are free. The charter of a new cluster on disk
    /// is written before any process runs. The caller holds the lock of the directory.
    pub(super) fn prepare(&mut self, directory: &Directory) -> Result<Vec<NodeConfig>> {
        // Cells find each other's services at planned ports, so these ports are drawn even in memory.
        if self.plan.first_port == 0 && (self.charter.is_some() || self.plan.size.cells > 0) {
            self.plan.draw_ports()?;
            if let Some(charter) = &mut self.charter {
                charter.first_port = self.plan.first_port;
            }
        }
        let processes = self.plan.processes()?;
        check_ports(&processes, self.resumes)?;
        if let Some(charter) = &mut self.charter {
            if !self.resumes {
                // Files may remain of an `up` that ended before its domain existed.
                charter::remove(directory)?;
                charter.write(directory)?;
            } else if charter.is_of_earlier_format() {
                charter.write(directory)?;
            }
        }
        Ok(processes)
    }
}

fn new_domain() -> Result<DomainId> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| anyhow!("the system gives no random bytes: {error}"))?;
    Ok(DomainId(u128::from_le_bytes(id)))
}
