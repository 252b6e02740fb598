//! A local cluster on disk: one directory, which only its owner can read.
//!
//! | file | contents |
//! |---|---|
//! | `lock` | held by the `quorate up` that runs the cluster |
//! | `cluster.json` | the processes and their addresses, replaced as a whole at every change |
//! | `NAME.toml`, `NAME.log` | configuration and log of a process |
//! | `up.log` | output of a detached `quorate up` |
//!
//! A cluster with tables or maps on disk has more files:
//!
//! | file | contents |
//! |---|---|
//! | `quorate.toml` | settings that the cluster was made with ([`charter`](crate::charter)) |
//! | `journal-NODE` | directory with the data of a router, a storage process or a cell |
//! | `lock-NODE` | held by that process |
//! | `founded-DOMAIN` | mark that the domain was founded |

use std::{
    env,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
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
    lifeline::BoundAddresses,
};

const LOCK: &str = "lock";

/// The choice of a cluster, for commands that work on a local one.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DirectoryArgs {
    /// Directory of the local cluster's state and logs
    /// [default: $XDG_STATE_HOME/quorate or ~/.local/state/quorate].
    #[arg(long, env = "QUORATE_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// The choice of a cluster, for commands that join it for a while.
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

/// The directory of a local cluster.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    path: PathBuf,
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
    /// Name for people, such as `router-1`.
    pub(crate) name: String,
    /// Role of the process.
    pub(crate) role: Role,
    /// Node of the process in the cluster.
    pub(crate) node: u64,
    /// Operating-system process id, while it runs.
    pub(crate) pid: Option<u32>,
    /// Addresses on which the process listens, once it does.
    pub(crate) bound: Option<BoundAddresses>,
    /// Number of times that the process was started.
    pub(crate) starts: u64,
    /// Path of the process's log.
    pub(crate) log: PathBuf,
    /// Whether the supervisor has stopped starting it.
    #[serde(default)]
    pub(crate) stays_down: bool,
}

impl DirectoryArgs {
    /// Returns the chosen directory, which need not exist.
    pub(crate) fn directory(&self) -> Result<Directory> {
        let path = match &self.data_dir {
            Some(path) => path.clone(),
            None => match (env::var_os("XDG_STATE_HOME"), env::home_dir()) {
                (Some(state), _) if Path::new(&state).is_absolute() => PathBuf::from(state).join("quorate"),
                (_, Some(home)) => home.join(".local/state/quorate"),
                _ => bail!("there is no home directory: give --data-dir"),
            },
        };
        Ok(Directory { path: std::path::absolute(path)? })
    }

    /// Returns the flag to append to a command so that it applies to the same cluster.
    pub(crate) fn as_flag(&self) -> String {
        match &self.data_dir {
            Some(path) => format!(" --data-dir {}", quoted(&path.display().to_string())),
            None => String::new(),
        }
    }
}

/// Quotes a word for a shell if needed.
fn quoted(word: &str) -> String {
    if word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+:".contains(c)) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl Directory {
    #[cfg(test)]
    pub(crate) fn at(path: &Path) -> Directory {
        Directory { path: path.into() }
    }

    /// Creates the directory if necessary and takes its lock. At most one `up` holds it.
    pub(crate) fn acquire(&self) -> Result<File> {
        self.make()?;
        let mut lock = self.lock_file()?;
        // A command that checks whether a cluster runs here holds the lock for a moment. So this tries more
        // than once.
        for _ in 0..20 {
            match lock.try_lock() {
                Ok(()) if !self.is_locked_by(&lock) => {
                    // The directory was removed after its lock was opened.
                    self.make()?;
                    lock = self.lock_file()?;
                }
                Ok(()) => {
                    // An earlier cluster's file does not describe this one.
                    match fs::remove_file(self.path.join("cluster.json")) {
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

    /// Creates the directory if necessary.
    pub(crate) fn make(&self) -> Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)
            .with_context(|| format!("cannot create the directory {}", self.shown()))
    }

    /// Whether some `up` holds the lock.
    pub(crate) fn is_held(&self) -> Result<bool> {
        let lock = self.path.join(LOCK);
        if !lock.try_exists().with_context(|| format!("cannot look for {}", lock.display()))? {
            return Ok(false);
        }
        Ok(matches!(self.lock_file()?.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Returns the cluster that runs in this directory, or an error if none does.
    pub(crate) fn running(&self) -> Result<Cluster> {
        if !self.is_held()? {
            let kept = match Charter::read(self) {
                Ok(Some(charter)) => {
                    format!(
                        "its {} are kept there, and `quorate up` goes on with them",
                        charter.made_with.content().name()
                    )
                }
                _ => String::from("start one with `quorate up`"),
            };
            bail!("no cluster runs here: {}; {kept}", self.shown());
        }
        self.read()
    }

    /// Whether `lock`, from [`Directory::acquire`], is still the lock of the directory. It is not if somebody
    /// removed the directory.
    pub(crate) fn is_locked_by(&self, lock: &File) -> bool {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        match (lock.metadata(), fs::metadata(self.path.join(LOCK))) {
            (Ok(ours), Ok(there)) => identity(ours) == identity(there),
            _ => false,
        }
    }

    /// Replaces `cluster.json`.
    pub(crate) fn write(&self, cluster: &Cluster) -> Result<()> {
        let whole = serde_json::to_vec_pretty(cluster)?;
        let fresh = self.path.join("cluster.json.new");
        private(&fresh)?.write_all(&whole).with_context(|| format!("cannot write {}", fresh.display()))?;
        fs::rename(&fresh, self.path.join("cluster.json"))
            .with_context(|| format!("cannot write cluster.json in {}", self.shown()))
    }

    /// Creates or truncates a file that only its owner can read.
    pub(crate) fn create(&self, name: &str) -> Result<File> {
        private(&self.path.join(name))
    }

    /// Durably replaces the contents of a file. After a crash it has either the old or the new contents.
    pub(crate) fn replace(&self, name: &str, contents: &[u8]) -> Result<()> {
        let fresh = self.path.join(format!("{name}.new"));
        let mut file = private(&fresh)?;
        let written = file.write_all(contents).and_then(|()| file.sync_all());
        written
            .and_then(|()| fs::rename(&fresh, self.path.join(name)))
            .and_then(|()| File::open(&self.path)?.sync_all())
            .with_context(|| format!("cannot write {name} in {}", self.shown()))
    }

    /// Returns the sorted names of all files in the directory, or none if the directory does not exist.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| format!("cannot read the directory {}", self.shown()))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            // The program's own file names are all UTF-8, so other names are skipped.
            let entry = entry.with_context(|| format!("cannot read the directory {}", self.shown()))?;
            names.extend(entry.file_name().into_string().ok());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Removes the logs, the configurations and `cluster.json`, and also the directory if nothing else is in
    /// it. This process holds the lock, and no process writes a log here.
    pub(crate) fn clear(&self) -> Result<()> {
        let is_process = |stem: &str| {
            let number =
                stem.rsplit_once('-').map(|(role, number)| (role.parse::<Role>(), number.parse::<u16>()));
            matches!(number, Some((Ok(_), Ok(_))))
        };
        let is_ours = |name: &String| match name.rsplit_once('.') {
            Some(("cluster.json", "new") | ("cluster", "json") | ("quorate.toml", "new") | ("up", "log")) => {
                true
            }
            Some((stem, "toml" | "log")) => is_process(stem),
            _ => name == LOCK,
        };
        for name in self.names()?.into_iter().filter(is_ours) {
            fs::remove_file(self.path.join(&name))
                .with_context(|| format!("cannot remove {name} in {}", self.shown()))?;
        }
        // This may fail: others may have files in the directory, it may be a mount point, or its parent may
        // be write-protected. The cluster's own files are all gone.
        let _ = fs::remove_dir(&self.path);
        Ok(())
    }

    /// Opens a file for appending, and creates it if necessary. Only its owner can read it.
    pub(crate) fn append(&self, name: &str) -> Result<File> {
        let path = self.path.join(name);
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600);
        options.open(&path).with_context(|| format!("cannot open {}", path.display()))
    }

    /// Returns the path of a file in the directory.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the directory's path for people.
    pub(crate) fn shown(&self) -> String {
        self.path.display().to_string()
    }

    fn read(&self) -> Result<Cluster> {
        let path = self.path.join("cluster.json");
        let whole = fs::read(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                anyhow::anyhow!("the cluster in {} is still starting; try again in a moment", self.shown())
            }
            _ => anyhow::Error::new(error).context(format!("cannot read {}", path.display())),
        })?;
        serde_json::from_slice(&whole)
            .with_context(|| format!("{} is not a list of processes", path.display()))
    }

    fn lock_file(&self) -> Result<File> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        options
            .open(self.path.join(LOCK))
            .with_context(|| format!("cannot open the lock of the directory {}", self.shown()))
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

    /// Returns the names of all processes for people.
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
    /// Returns the contents of the cluster.
    pub(crate) fn content(&self) -> ClusterContent {
        let has_cells = self.processes.iter().any(|process| process.role == Role::Cell);
        if has_cells { ClusterContent::Maps } else { ClusterContent::Tables }
    }

    /// Returns the addresses of the Redis doors, in the order of the cells. There are none without cells.
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

fn private(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true).mode(0o600);
    options.open(path).with_context(|| format!("cannot create {}", path.display()))
}
