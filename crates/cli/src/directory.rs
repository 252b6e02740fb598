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
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use quorate_protocol::Role;

const LOCK: &str = "lock";

/// The choice of a cluster, for commands that work on a local cluster.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DirectoryArgs {
    /// Directory of the local cluster's state and logs
    /// [default: $XDG_STATE_HOME/quorate or ~/.local/state/quorate].
    #[arg(long, env = "QUORATE_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// The directory of a local cluster.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    path: PathBuf,
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

    /// Creates the directory if necessary.
    pub(crate) fn make(&self) -> Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path).with_context(|| self.shown())
    }

    /// Whether some `up` holds the lock.
    pub(crate) fn is_held(&self) -> Result<bool> {
        if !self.path.join(LOCK).try_exists().with_context(|| self.shown())? {
            return Ok(false);
        }
        Ok(matches!(self.lock_file()?.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Whether `lock`, from [`Directory::acquire`], is still the lock of the directory. If somebody removed
    /// the directory, the lock is stale.
    pub(crate) fn is_locked_by(&self, lock: &File) -> bool {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        match (lock.metadata(), fs::metadata(self.path.join(LOCK))) {
            (Ok(ours), Ok(there)) => identity(ours) == identity(there),
            _ => false,
        }
    }

    /// Creates or truncates a file that only its owner can read.
    pub(crate) fn create(&self, name: &str) -> Result<File> {
        private(&self.path.join(name))
    }

    /// Durably replaces the contents of a file. After a crash the file has either the old or the new
    /// contents.
    pub(crate) fn replace(&self, name: &str, contents: &[u8]) -> Result<()> {
        let fresh = self.path.join(format!("{name}.new"));
        let mut file = private(&fresh)?;
        let written = file.write_all(contents).and_then(|()| file.sync_all());
        written
            .and_then(|()| fs::rename(&fresh, self.path.join(name)))
            .and_then(|()| File::open(&self.path)?.sync_all())
            .with_context(|| fresh.display().to_string())
    }

    /// Returns the sorted names of all files in the directory, or none if the directory does not exist.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| self.shown())?,
        };
        let mut names = Vec::new();
        for entry in entries {
            // The program's own file names are all UTF-8, so other names are skipped.
            names.extend(entry.with_context(|| self.shown())?.file_name().into_string().ok());
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
            fs::remove_file(self.path.join(&name)).with_context(|| self.shown())?;
        }
        // The removal may fail: another program may have files in the directory, the directory may be a mount
        // point, or its parent may be write-protected. The cluster's own files are all gone.
        let _ = fs::remove_dir(&self.path);
        Ok(())
    }

    /// Opens a file for appending, and creates it if necessary. Only its owner can read it.
    pub(crate) fn append(&self, name: &str) -> Result<File> {
        let path = self.path.join(name);
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600);
        options.open(&path).with_context(|| path.display().to_string())
    }

    /// Returns the path of a file in the directory.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the directory's path, for display.
    pub(crate) fn shown(&self) -> String {
        self.path.display().to_string()
    }

    pub(crate) fn lock_file(&self) -> Result<File> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        options.open(self.path.join(LOCK)).with_context(|| self.shown())
    }
}

fn private(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true).mode(0o600);
    options.open(path).with_context(|| path.display().to_string())
}
