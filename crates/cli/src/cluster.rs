//! A local cluster that runs, as `cluster.json` in its directory lists it.

use std::{
    fs::{self, File, TryLockError},
    io::{self, ErrorKind, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use quorate_protocol::{DomainId, Role};
use serde::{Deserialize, Serialize};

use crate::{
    charter::{Charter, ClusterContent},
    config,
    directory::{Directory, DirectoryArgs},
    lifeline::BoundAddresses,
};

/// The choice of a cluster, for commands that join the cluster for a while.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RoutersArgs {
    /// Addresses of routers, host:port, separated by commas. By default those of the local cluster.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    routers: Vec<String>,
    #[command(flatten)]
    directory: DirectoryArgs,
}

impl RoutersArgs {
    /// Returns the addresses given by the user, or those of the local cluster's routers that listen.
    pub(crate) fn addresses(self) -> Result<Vec<String>> {
        if !self.routers.is_empty() {
            return Ok(self.routers);
        }
        let cluster = self.directory.directory()?.running()?;
        let routers = cluster.processes.into_iter().filter(|process| process.role == Role::Router);
        Ok(routers.filter_map(|router| Some(router.bound?.listen)).collect())
    }
}

/// The processes of a local cluster, as `cluster.json` lists them.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Cluster {
    /// Domain of the cluster.
    #[serde(with = "config::hex")]
    pub(crate) domain: DomainId,
    /// Process id of the supervisor.
    pub(crate) pid: u32,
    /// Whether the tables or maps are on disk, and so outlive the cluster's processes.
    #[serde(default)]
    pub(crate) durable: bool,
    /// All processes, in the order of their nodes.
    pub(crate) processes: Vec<ProcessEntry>,
}

/// One process of a local cluster.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ProcessEntry {
    /// Name for display, such as `router-1`.
    pub(crate) name: String,
    /// Role of the process.
    pub(crate) role: Role,
    /// Node of the process in the cluster.
    pub(crate) node: u64,
    /// Operating-system process id, while it runs.
    pub(crate) pid: Option<u32>,
    /// Addresses on which the process listens, once it listens.
    pub(crate) bound: Option<BoundAddresses>,
    /// Number of times that the process was started.
    pub(crate) starts: u64,
    /// Path of the process's log.
    pub(crate) log: PathBuf,
    /// Whether the supervisor no longer starts the process again.
    #[serde(default)]
    pub(crate) stays_down: bool,
}

impl Directory {
    /// Creates the directory if necessary and takes its lock. At most one `up` holds the lock.
    pub(crate) fn acquire(&self) -> Result<File> {
        self.make()?;
        let mut lock = self.lock_file()?;
        // A command that checks whether a cluster runs here holds the lock for a moment. So `acquire` tries
        // more than once.
        for _ in 0..20 {
            match lock.try_lock() {
                Ok(()) if !self.is_locked_by(&lock) => {
                    // Somebody removed the directory after this process had opened the lock.
                    self.make()?;
                    lock = self.lock_file()?;
                }
                Ok(()) => {
                    // `cluster.json` of an earlier cluster does not describe this cluster.
                    match fs::remove_file(self.join("cluster.json")) {
                        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
                        _ => return Ok(lock),
                    }
                }
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("cannot lock {}", self.shown()));
                }
            }
        }
        let pid = self.read().map(|cluster| format!(" (pid {})", cluster.pid)).unwrap_or_default();
        bail!("a cluster runs here already{pid}: {}; stop it with `quorate down`", self.shown())
    }

    /// Returns the cluster that runs in this directory, or an error if none does.
    pub(crate) fn running(&self) -> Result<Cluster> {
        if !self.is_held()? {
            let kept = match Charter::read(self) {
                Ok(Some(charter)) => {
                    format!(
                        "its {} are kept there, and `quorate up` goes on with them",
                        charter.made_with.contents()
                    )
                }
                _ => String::from("start one with `quorate up`"),
            };
            bail!("no cluster runs here: {}; {kept}", self.shown());
        }
        self.read()
    }

    /// Replaces `cluster.json`.
    pub(crate) fn write(&self, cluster: &Cluster) -> Result<()> {
        let whole = serde_json::to_vec_pretty(cluster)?;
        let fresh = self.join("cluster.json.new");
        self.create("cluster.json.new")?.write_all(&whole).with_context(|| fresh.display().to_string())?;
        fs::rename(&fresh, self.join("cluster.json")).with_context(|| self.shown())
    }

    fn read(&self) -> Result<Cluster> {
        let path = self.join("cluster.json");
        let whole = fs::read(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                anyhow::anyhow!("the cluster in {} is still starting; try again in a moment", self.shown())
            }
            _ => anyhow::Error::new(error).context(format!("cannot read {}", path.display())),
        })?;
        serde_json::from_slice(&whole)
            .with_context(|| format!("{} is not a list of processes", path.display()))
    }
}

impl Cluster {
    /// Returns the process with this name.
    pub(crate) fn process(&self, name: &str) -> Result<&ProcessEntry> {
        self.processes
            .iter()
            .find(|process| process.name == name)
            .with_context(|| format!("no process is called {name}; the processes are {}", self.names()))
    }

    /// Returns the names of all processes, for display.
    pub(crate) fn names(&self) -> String {
        let names: Vec<&str> = self.processes.iter().map(|process| process.name.as_str()).collect();
        names.join(", ")
    }

    /// Returns the addresses of the routers.
    pub(crate) fn routers(&self) -> Vec<&str> {
        let routers = self.processes.iter().filter(|process| process.role == Role::Router);
        routers.filter_map(|process| Some(process.bound.as_ref()?.listen.as_str())).collect()
    }

    /// Returns the address of the SQL door.
    pub(crate) fn sql(&self) -> Result<&str> {
        let mut doors = self.processes.iter().filter_map(|process| process.bound.as_ref()?.sql.as_deref());
        doors.next().context("no gateway runs at the moment; see `quorate status`")
    }
}

impl Cluster {
    /// Returns the name of the cluster's contents for use inside a sentence.
    pub(crate) fn contents(&self) -> &'static str {
        let kept_by = [(Role::Storage, ClusterContent::Tables), (Role::Cell, ClusterContent::Maps)];
        let has = |role| self.processes.iter().any(|process| process.role == role);
        let contents = kept_by.into_iter().filter(|(role, _)| has(*role)).map(|(_, content)| content);
        ClusterContent::name_of(&contents.collect::<Vec<_>>())
    }

    /// Returns the addresses of the Redis doors, in the order of the cells. A cluster without cells has no
    /// such door.
    pub(crate) fn redis(&self) -> impl Iterator<Item = &str> {
        self.processes.iter().filter_map(|process| process.bound.as_ref()?.redis.as_deref())
    }
}

/// Returns the end of a log, or an empty text if it cannot be read.
pub(crate) fn end_of(log: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
        let mut end = Vec::new();
        file.take(LOG_BYTES).read_to_end(&mut end)?;
        Ok(end)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// Bytes at the end of a log that are read.
const LOG_BYTES: u64 = 64 << 10;
