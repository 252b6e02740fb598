//! A local cluster as it stands on disk: one directory, readable by its owner only.
//!
//! | file | what |
//! |---|---|
//! | `lock` | held by the `quorate up` that runs the cluster, as long as it lives |
//! | `cluster.json` | who runs where; replaced whole at every change |
//! | `NAME.toml`, `NAME.log` | a process's configuration and what it logs |
//! | `up.log` | what a detached `quorate up` says |
//!
//! A cluster on disk has more in it:
//!
//! | file | what |
//! |---|---|
//! | `quorate.toml` | what the cluster was made with ([`charter`](crate::charter)) |
//! | `journal-NODE` | a directory with what a router, a storage process or a cell keeps |
//! | `lock-NODE` | held by that process |
//! | `founded-DOMAIN` | the mark that the domain was founded |

use std::{
    env,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use quorate_protocol::{DomainId, Role};
use serde::{Deserialize, Serialize};

use crate::{charter::Content, config, lifeline::Bound};

const LOCK: &str = "lock";

/// Which cluster, for every command that works on a local one.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DirectoryArgs {
    /// Where the local cluster keeps its state and logs [default: $XDG_STATE_HOME/quorate or ~/.local/state/quorate].
    #[arg(long, env = "QUORATE_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// Which cluster, for every command that is a member of it for a while.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RoutersArgs {
    /// Where routers may be found, host:port, several with commas between; those of the local cluster unless said.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    routers: Vec<String>,
    #[command(flatten)]
    directory: DirectoryArgs,
}

impl RoutersArgs {
    /// Where they are: those that were named, or those of the local cluster that listen.
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

/// Who runs where.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Cluster {
    /// The domain.
    #[serde(with = "config::hex")]
    pub(crate) domain: DomainId,
    /// The supervisor's process id.
    pub(crate) pid: u32,
    /// Whether its tables or maps are on disk, and outlive it.
    #[serde(default)]
    pub(crate) durable: bool,
    /// Every process, by name.
    pub(crate) processes: Vec<Entry>,
}

/// One process of a local cluster.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Entry {
    /// What people call it.
    pub(crate) name: String,
    /// What it does.
    pub(crate) role: Role,
    /// Its place in the cluster.
    pub(crate) node: u64,
    /// Its operating-system process, while it runs.
    pub(crate) pid: Option<u32>,
    /// Where it listens, once it does.
    pub(crate) bound: Option<Bound>,
    /// How many times it was started.
    pub(crate) starts: u64,
    /// What it logs.
    pub(crate) log: PathBuf,
}

impl DirectoryArgs {
    /// The directory meant, whether it exists or not.
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

    /// What to append to a command so that it means the same cluster.
    pub(crate) fn as_flag(&self) -> String {
        match &self.data_dir {
            Some(path) => format!(" --data-dir {}", quoted(&path.display().to_string())),
            None => String::new(),
        }
    }
}

/// Quotes a word for a shell where it needs it.
fn quoted(word: &str) -> String {
    if word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+:".contains(c)) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl Directory {
    /// Makes it, if need be, and takes it for this process: at most one `up` a directory.
    pub(crate) fn acquire(&self) -> Result<File> {
        self.make()?;
        let mut lock = self.lock_file()?;
        // Whoever asks whether a cluster runs here holds the lock for a moment: look more than once.
        for _ in 0..20 {
            match lock.try_lock() {
                Ok(()) if !self.is_locked_by(&lock) => {
                    // The directory was removed since it was opened.
                    self.make()?;
                    lock = self.lock_file()?;
                }
                Ok(()) => {
                    // What another cluster left says nothing about this one.
                    match fs::remove_file(self.path.join("cluster.json")) {
                        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
                        _ => return Ok(lock),
                    }
                }
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
                Err(TryLockError::Error(error)) => return Err(error).with_context(|| self.shown()),
            }
        }
        let pid = self.read().map(|cluster| format!(" (pid {})", cluster.pid)).unwrap_or_default();
        bail!("a cluster runs here already{pid}: {}; stop it with `quorate down`", self.shown())
    }

    /// Makes it, if need be.
    pub(crate) fn make(&self) -> Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path).with_context(|| self.shown())
    }

    /// Whether some `up` holds it.
    pub(crate) fn is_held(&self) -> Result<bool> {
        if !self.path.join(LOCK).try_exists().with_context(|| self.shown())? {
            return Ok(false);
        }
        Ok(matches!(self.lock_file()?.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// The cluster that runs here.
    pub(crate) fn running(&self) -> Result<Cluster> {
        if !self.is_held()? {
            bail!("no cluster runs here: {}; start one with `quorate up`", self.shown());
        }
        self.read()
    }

    /// Whether this file, which [`Directory::acquire`] gave, is still the lock: not if somebody removed the directory.
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
        private(&fresh)?.write_all(&whole).with_context(|| fresh.display().to_string())?;
        fs::rename(&fresh, self.path.join("cluster.json")).with_context(|| self.shown())
    }

    /// A file in it, made anew and readable by its owner only.
    pub(crate) fn create(&self, name: &str) -> Result<File> {
        private(&self.path.join(name))
    }

    /// Gives a file in it these contents, durably: after a crash it has either the old or the new ones.
    pub(crate) fn replace(&self, name: &str, contents: &[u8]) -> Result<()> {
        let fresh = self.path.join(format!("{name}.new"));
        let mut file = private(&fresh)?;
        let written = file.write_all(contents).and_then(|()| file.sync_all());
        written
            .and_then(|()| fs::rename(&fresh, self.path.join(name)))
            .and_then(|()| File::open(&self.path)?.sync_all())
            .with_context(|| fresh.display().to_string())
    }

    /// The names of all that is in it, in order; of none if it is not there.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| self.shown())?,
        };
        let mut names = Vec::new();
        for entry in entries {
            // No name of ours is anything but UTF-8.
            names.extend(entry.with_context(|| self.shown())?.file_name().into_string().ok());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Removes what is written down of who runs where and logs, and the directory if nothing else is in it. This process has
    /// the lock, and nobody logs here.
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
            fs::remove_file(self.path.join(&name)).with_context(|| self.shown())?;
        }
        match fs::remove_dir(&self.path) {
            Err(error) if error.kind() != ErrorKind::DirectoryNotEmpty => {
                Err(error).with_context(|| self.shown())
            }
            _ => Ok(()),
        }
    }

    /// A file in it that is written at its end, made if need be and readable by its owner only.
    pub(crate) fn append(&self, name: &str) -> Result<File> {
        let path = self.path.join(name);
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600);
        options.open(&path).with_context(|| path.display().to_string())
    }

    /// Where a file of it is.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Its name, for people.
    pub(crate) fn shown(&self) -> String {
        self.path.display().to_string()
    }

    fn read(&self) -> Result<Cluster> {
        let path = self.path.join("cluster.json");
        let whole = fs::read(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => anyhow::anyhow!("the cluster is only starting: {}", self.shown()),
            _ => anyhow::Error::new(error).context(path.display().to_string()),
        })?;
        serde_json::from_slice(&whole).with_context(|| path.display().to_string())
    }

    fn lock_file(&self) -> Result<File> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        options.open(self.path.join(LOCK)).with_context(|| self.shown())
    }
}

impl Cluster {
    /// The process of this name.
    pub(crate) fn process(&self, name: &str) -> Result<&Entry> {
        self.processes.iter().find(|process| process.name == name).with_context(|| {
            let names: Vec<&str> = self.processes.iter().map(|process| process.name.as_str()).collect();
            format!("no process is called {name}; there are {}", names.join(", "))
        })
    }

    /// The addresses of its routers.
    pub(crate) fn routers(&self) -> Vec<&str> {
        let routers = self.processes.iter().filter(|process| process.role == Role::Router);
        routers.filter_map(|process| Some(process.bound.as_ref()?.listen.as_str())).collect()
    }

    /// Where SQL is spoken.
    pub(crate) fn sql(&self) -> Result<&str> {
        let mut doors = self.processes.iter().filter_map(|process| process.bound.as_ref()?.sql.as_deref());
        doors.next().context("no gateway runs at the moment; see `quorate status`")
    }
}

impl Cluster {
    /// Its contents.
    pub(crate) fn content(&self) -> Content {
        let has_cells = self.processes.iter().any(|process| process.role == Role::Cell);
        if has_cells { Content::Maps } else { Content::Tables }
    }

    /// Where the Redis protocol is spoken, in the order of the cells; empty if there are none.
    pub(crate) fn redis(&self) -> impl Iterator<Item = &str> {
        self.processes.iter().filter_map(|process| process.bound.as_ref()?.redis.as_deref())
    }
}

fn private(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true).mode(0o600);
    options.open(path).with_context(|| path.display().to_string())
}
