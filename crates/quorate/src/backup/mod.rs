//! Backups: all rows of tables as of one position, written to a file while the cluster runs, and brought back.
//!
//! ```no_run
//! # async fn run(db: quorate::Db) -> Result<(), quorate::Error> {
//! let made = db.backup("tuesday.backup").await?;
//! println!("{} tables at position {}", made.tables.len(), made.position);
//! quorate::backup::verify("tuesday.backup").await?;
//! db.restore("tuesday.backup").only(["flights"]).await?;
//! # Ok(())
//! # }
//! ```
//!
//! **Promise.** A backup is one read in the total order: it has every write that was acknowledged before it was begun, and of
//! each write all or nothing, over all tables together. Reads and writes go on meanwhile. The file is whole and on disk, or it is not
//! there. A restore reads the whole file first, and asks nothing of the cluster if any of it is damaged.
//!
//! **How.** The read says which tables it is of. Each range of the ring is told by one replica, which keeps the version of the read's
//! position, and reads pages of it as fast as the file takes them, or at a [pace](Transfer::bytes_per_second_max) ([`Operation::Backup`]). If a replica is lost meanwhile, or
//! gives the version up because it keeps too much (256 MiB of overwritten rows), the backup fails, and nothing is left of it.
//!
//! A restore makes the tables anew, in whatever cluster: their rows find their places there. It puts all rows aside first, as COPY
//! does, and publishes a table at a time once all of them are there. If it fails it drops the tables
//! that it has made and that are not whole.
//!
//! | file | subject |
//! |---|---|
//! | `file` | the form of the file: sections, checksums |
//! | `save` | writing a backup |
//! | `load` | bringing one back, and verifying one |
//!
//! [`Operation::Backup`]: quorate_table::operation::Operation::Backup

mod file;
mod load;
mod save;

use std::{
    fmt,
    future::IntoFuture,
    num::NonZeroU64,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use quorate_protocol::DomainId;

use self::file::{Contents, End};
use crate::{
    db::Db,
    error::Error,
    pending::{Pending, on_a_thread},
};

/// What is in a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The domain that it was made of.
    pub domain: DomainId,
    /// The position in the total order that all rows are of.
    pub position: u64,
    /// When it was begun, to the second.
    pub made_at: SystemTime,
    /// The tables, and how many rows each has.
    pub tables: Vec<(String, u64)>,
    /// Bytes of the file.
    pub bytes: u64,
}

/// How far a backup or a restore is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rows that have been written or brought back.
    pub rows: u64,
    /// Bytes that were read of the file, or of rows that were written to it, before they were compressed.
    pub bytes: u64,
    /// How many bytes there are in all, if that is known.
    pub of: Option<u64>,
}

/// A backup that is to be made, brought back or verified: await it, or [`wait`](crate::Wait::wait) for it.
///
/// It is done on a thread of its own, and goes on if its future is dropped.
#[must_use = "nothing is done until it is awaited"]
pub struct Transfer {
    what: What,
    file: PathBuf,
    /// Which tables; all if it is empty.
    tables: Vec<String>,
    /// Bytes a second at most.
    pace: Option<NonZeroU64>,
    watch: Box<dyn Fn(Progress) + Send + Sync>,
}

#[derive(Debug)]
enum What {
    Save(Db),
    Load(Db),
    Verify,
}

impl Transfer {
    fn new(what: What, file: impl AsRef<Path>) -> Transfer {
        Transfer {
            what,
            file: file.as_ref().to_owned(),
            tables: Vec::new(),
            pace: None,
            watch: Box::new(|_| {}),
        }
    }

    /// Of these tables alone, by their names as they are stored.
    pub fn only<N: Into<String>>(mut self, tables: impl IntoIterator<Item = N>) -> Self {
        self.tables = tables.into_iter().map(Into::into).collect();
        self
    }

    /// Makes a backup no faster than so many bytes of rows a second, before they are compressed, so that it leaves more of the machines to
    /// others. The slower it is the more versions of overwritten rows are kept for it. Nothing else has a pace.
    pub fn bytes_per_second_max(mut self, most: NonZeroU64) -> Self {
        self.pace = Some(most);
        self
    }

    /// Has this called now and then, on the thread that does it, with how far it is.
    pub fn watch(mut self, watch: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.watch = Box::new(watch);
        self
    }

    /// The places in a list of tables of those that are asked for, in its order; or the name of one that is not there.
    fn choose<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Result<Vec<usize>, &str> {
        if let Some(missing) = self.tables.iter().find(|table| !names.clone().any(|name| name == **table)) {
            return Err(missing);
        }
        let wanted = |name: &str| self.tables.is_empty() || self.tables.iter().any(|table| table == name);
        Ok(names.enumerate().filter(|(_, name)| wanted(name)).map(|(place, _)| place).collect())
    }

    fn perform(&self) -> Result<Summary, Error> {
        match &self.what {
            What::Save(db) => save::save(db, self),
            What::Load(db) => load::load(db, self),
            What::Verify => load::verify(self),
        }
    }

    fn wrong(&self, why: impl ToString) -> Error {
        Error::file(&self.file, why)
    }
}

impl IntoFuture for Transfer {
    type Output = Result<Summary, Error>;
    type IntoFuture = Pending<'static, Summary>;

    fn into_future(self) -> Self::IntoFuture {
        on_a_thread("backup", move || self.perform())
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("what", &self.what)
            .field("file", &self.file)
            .field("tables", &self.tables)
            .field("pace", &self.pace)
            .finish_non_exhaustive()
    }
}

impl Db {
    /// Writes all rows of all tables, as of one position, to a file that does not exist yet. Others go on meanwhile.
    pub fn backup(&self, file: impl AsRef<Path>) -> Transfer {
        Transfer::new(What::Save(self.clone()), file)
    }

    /// Brings the tables of a backup back, which must not be there. The file is verified as a whole before.
    pub fn restore(&self, file: impl AsRef<Path>) -> Transfer {
        Transfer::new(What::Load(self.clone()), file)
    }
}

/// Reads the whole of a backup's file: all checksums, every row against its table's definition, and how many there are.
pub fn verify(file: impl AsRef<Path>) -> Transfer {
    Transfer::new(What::Verify, file)
}

impl Summary {
    fn of(contents: &Contents, end: &End, bytes: u64) -> Summary {
        let names = contents.tables.iter().map(|table| table.name.clone());
        Summary {
            domain: DomainId(contents.domain),
            position: end.position,
            made_at: UNIX_EPOCH.checked_add(Duration::from_secs(contents.made_at)).unwrap_or(UNIX_EPOCH),
            tables: names.zip(end.rows.iter().copied()).collect(),
            bytes,
        }
    }

    /// Rows of all tables.
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|(_, rows)| rows).sum()
    }
}
