//! A transfer between a cluster and a file: its settings, progress and summary.

use std::{
    fmt,
    num::NonZeroU64,
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use quorate_protocol::DomainId;

use crate::db::Db;

use super::file::{Contents, End};

/// The summary of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The domain whose tables were saved.
    pub domain: DomainId,
    /// The position in the total order at which the tables had the rows of the backup.
    pub position: u64,
    /// Time of the backup's beginning, to the second.
    pub made_at: SystemTime,
    /// The tables, with the number of rows of each.
    pub tables: Vec<(String, u64)>,
    /// Size of the file, in bytes.
    pub bytes: u64,
}

/// The progress of a backup or a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of rows that were written or restored.
    pub rows: u64,
    /// Bytes that were read from the file, or written to it before compression.
    pub bytes: u64,
    /// Number of all bytes that the transfer will read or write, if it is known.
    pub of: Option<u64>,
}

/// A backup that will be made, restored or verified: await this future, or [`wait`](crate::Wait::wait) for
/// it.
///
/// A separate thread does the work, and continues if the future is dropped.
#[must_use = "the transfer begins only when this future is awaited"]
pub struct Transfer {
    pub(super) what: What,
    pub(super) file: PathBuf,
    /// Names of the requested tables; an empty list requests all tables.
    pub(super) tables: Vec<String>,
    /// Upper bound of the speed, in bytes a second.
    pub(super) pace: Option<NonZeroU64>,
    pub(super) watch: Box<dyn Fn(Progress) + Send + Sync>,
}

#[derive(Debug)]
pub(super) enum What {
    Save(Db),
    Load(Db),
    Verify,
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

impl Summary {
    pub(super) fn of(contents: &Contents, end: &End, bytes: u64) -> Summary {
        let names = contents.tables.iter().map(|table| table.name.clone());
        Summary {
            domain: DomainId(contents.domain),
            position: end.position,
            made_at: UNIX_EPOCH.checked_add(Duration::from_secs(contents.made_at)).unwrap_or(UNIX_EPOCH),
            tables: names.zip(end.rows.iter().copied()).collect(),
            bytes,
        }
    }

    /// Returns the number of rows, over all tables.
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|(_, rows)| rows).sum()
    }
}

/// Interval at which the progress is reported.
pub(super) const TELL_EVERY: Duration = Duration::from_millis(100);

/// Bytes that are gathered before a write.
pub(super) const BUFFER_BYTES: usize = 1 << 20;
