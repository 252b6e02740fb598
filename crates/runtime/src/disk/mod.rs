//! Disk: the journal of a process on real files.
//!
//! **Promise.** A record that was told to be durable is read again after a crash, or its loss is found and the process
//! comes back as another one. Nothing is told to be durable whose sync did not succeed.
//!
//! ```text
//! protocol thread                          disk thread
//!   persist: a frame in the journal            │
//!   end of turn: writes ──────────────────────▶│ takes all that waits
//!   goes on                                    │ one write and one sync a segment
//!   Persisted, what waited leaves ◀── wakes ───┤ then tells up to which record all is durable
//! ```
//!
//! The form of the journal, and how rot is told from a torn tail, are pure ([`journal`]). This
//! module has what is left:
//!
//! | module | what it has |
//! |---|---|
//! | `files` | the files of one directory, as a trait with one real implementation |
//! | `identity` | whose directory it is |
//! | `writer` | the thread |
//! | `checkpoint` | how old the last checkpoint is, for people |
//! | `error` | what goes wrong, by who must act |
//! | [`faults`] | files that fail, are slow, or forget what was not synced: for tests |
//!
//! **Rules.**
//!
//! 1. *One process a directory.* It holds a lock that the system releases when it ends, however it ends.
//! 2. *A directory has one owner*: domain, node and incarnation, in the file `identity`. Another domain or node, or a
//!    later format, is refused by name.
//! 3. *An incarnation goes on only from all that was durable* (rule S15). If the journal is damaged, it is set aside and
//!    the directory gets a new incarnation; so it does if there are no records, because then nobody counts on the old one.
//! 4. *Numbers of greetings go on.* A link's peer refuses a greeting with a number below one that it knows. So numbers are
//!    reserved in blocks before they are used, and a process that comes back begins behind the last block.
//! 5. *An older copy is not gone on from.* A process that meets one which knows of more in its journal than there is
//!    ([`journal::Hearsay`]) says nothing any more, and ends with a [`DiskError`]. Nothing is removed: people decide.
//! 6. *A failed operation is the end.* After a failed sync nobody knows what is on the disk, and a second sync may succeed
//!    without it. The process ends with a [`DiskError`]; the next one reads what is there.
//!
//! **Bounds.** Bytes that wait for the disk stay below [`Settings::waiting_bytes_max`] and one turn more: beyond, the
//! process takes in neither messages nor commands until the disk has caught up, while its signs of life go on. Memory at
//! recovery is what the directory holds: the records since the last checkpoint, and up to five segments.
//!
//! **Segments** are created one ahead, with their length reserved: a sync then writes no metadata, which takes 0.15 ms
//! instead of 1.5 to 4 ms on the machine of `docs/performance.md`, and a disk that is full is found before it matters. Those
//! that are needed no more are written over as later ones.

mod checkpoint;
mod error;
pub mod faults;
mod files;
mod identity;
mod writer;

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use quorate_protocol::{
    DomainId, ProcessId, Ticket,
    journal::{self, Damage, Journal, Recovered},
};
use tracing::{info, warn};

pub use self::{
    error::{DiskError, OpenError},
    files::{Directory, Files},
};
pub(crate) use self::{
    identity::{Identity, NUMBERS_RESERVED},
    writer::Writer,
};
use crate::chance;

/// How a process uses its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The journal's.
    pub journal: journal::Settings,
    /// Bytes that may wait for the disk, or for what it has not made durable. Beyond it nothing more is taken in.
    pub waiting_bytes_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { journal: journal::Settings::default(), waiting_bytes_max: 64 << 20 }
    }
}

/// A directory of one process, locked, and ready to go on with.
#[derive(Debug)]
pub struct Disk {
    pub(crate) directory: PathBuf,
    pub(crate) files: Box<dyn Files>,
    pub(crate) journal: Journal,
    pub(crate) identity: Identity,
    pub(crate) settings: Settings,
    /// The first number of a greeting.
    pub(crate) number: u32,
    /// The segments that are kept, and how long they are.
    pub(crate) lengths: BTreeMap<u64, u64>,
    /// When the last checkpoint became whole, in seconds of Unix time; 0: there is none.
    pub(crate) checkpoint: i64,
    /// Held until the process ends.
    pub(crate) lock: File,
}

/// The contents of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No records: the process is a new one.
    Nothing,
    /// All that was durable: the process goes on.
    Records {
        /// Bytes behind the last whole record. They were never durable, or belong to a segment that is written over.
        torn_bytes: u64,
    },
    /// A journal from which no process goes on: its owner cannot be read, or a new incarnation had taken its place. It was
    /// set aside, and the process is a new one.
    Abandoned,
    /// Not all that was durable. What there is was set aside, and the process is a new one.
    Damaged(Damage),
}

/// A directory that was opened, and what it held.
#[derive(Debug)]
pub struct Opened {
    /// The directory.
    pub disk: Disk,
    /// The records that were durable, in order.
    pub records: Vec<(Ticket, Bytes)>,
    /// The finding.
    pub found: Found,
}

impl Opened {
    /// The ticket of the first of the records, or of the first that will be written.
    pub fn first(&self) -> Ticket {
        self.records.first().map_or(Ticket(self.disk.journal.last().0 + 1), |(first, _)| *first)
    }
}

impl Disk {
    /// Opens the directory of `node` in `domain`, which is created if need be.
    pub fn open(
        directory: &Path,
        domain: DomainId,
        node: u64,
        settings: Settings,
    ) -> Result<Opened, OpenError> {
        Disk::open_on(directory, |files| Box::new(files), domain, node, settings)
    }

    /// The same, with files that are not quite the real ones ([`faults`]).
    pub fn open_on(
        directory: &Path,
        files: impl FnOnce(Directory) -> Box<dyn Files>,
        domain: DomainId,
        node: u64,
        settings: Settings,
    ) -> Result<Opened, OpenError> {
        let real = Directory::create(directory).map_err(OpenError::System)?;
        let lock = identity::lock(directory)?;
        let mut files = files(real);
        let path = directory.to_owned();
        let found = Identity::read(&mut *files, &path, domain, node)?;
        let mut abandoned = false;
        let recovered = match found {
            None => {
                abandoned = names_segments(&mut *files)?;
                None
            }
            Some(identity) => {
                let owner = identity.owner();
                let segments = read_segments(&mut *files)?;
                match Journal::recover(owner, settings.journal, &segments) {
                    Ok(recovered) if !recovered.records.is_empty() => Some((identity, Ok(recovered))),
                    // A new incarnation was given to the directory, and the crash came before the old journal was set aside.
                    Err(Damage::Foreign { owner: old })
                        if old.process.node == node && old.domain == domain =>
                    {
                        abandoned = true;
                        None
                    }
                    Err(Damage::Newer(version)) => return Err(OpenError::Newer { directory: path, version }),
                    Err(Damage::Foreign { owner }) => {
                        return Err(OpenError::Foreign { directory: path, owner, domain, node });
                    }
                    Ok(_) => None,
                    Err(damage) => Some((identity, Err(damage))),
                }
            }
        };
        let found = match recovered {
            Some((before, Ok(recovered))) => {
                // All numbers used up: a new incarnation has them again.
                if let Some(mut next) = before.reserved(NUMBERS_RESERVED) {
                    next.starts.begin(chance::mark(), recovered.journal.last());
                    let Recovered { journal, records, torn_bytes, empty, lengths } = recovered;
                    // Else each life would leave a segment of full length.
                    for (number, length) in &lengths {
                        let name = files::segment_name(*number);
                        files.truncate(&name, *length).map_err(OpenError::System)?;
                    }
                    for number in empty {
                        files.remove(&files::segment_name(number)).map_err(OpenError::System)?;
                    }
                    next.write(&mut *files).map_err(OpenError::System)?;
                    let process = next.process;
                    info!(%process, records = records.len(), torn_bytes, "goes on from its disk");
                    let (number, lengths) = (before.numbers, lengths.into_iter().collect());
                    let checkpoint = checkpoint::read(&mut *files).map_err(OpenError::System)?;
                    let identity = next;
                    let disk = Disk {
                        directory: path,
                        files,
                        journal,
                        identity,
                        settings,
                        number,
                        lengths,
                        checkpoint,
                        lock,
                    };
                    return Ok(Opened { disk, records, found: Found::Records { torn_bytes } });
                }
                Found::Abandoned
            }
            Some((_, Err(damage))) => Found::Damaged(damage),
            None if abandoned => Found::Abandoned,
            None => Found::Nothing,
        };
        let disk = Disk::begin(files, &path, (domain, node), settings, lock)?;
        if let Found::Damaged(damage) = found {
            let process = disk.process();
            warn!(%process, %damage, directory = %path.display(), "a new process begins");
        }
        Ok(Opened { disk, records: Vec::new(), found })
    }

    /// Opens the directory of `node` in `domain` for another process than the one that had it: a new incarnation, from which
    /// nothing of the earlier one's is expected. Its journal is set aside.
    pub fn begin_anew(
        directory: &Path,
        files: impl FnOnce(Directory) -> Box<dyn Files>,
        domain: DomainId,
        node: u64,
        settings: Settings,
    ) -> Result<Disk, OpenError> {
        let mut files = files(Directory::create(directory).map_err(OpenError::System)?);
        let lock = identity::lock(directory)?;
        // Refuses a directory that is somebody else's.
        Identity::read(&mut *files, directory, domain, node)?;
        Disk::begin(files, directory, (domain, node), settings, lock)
    }

    /// A new incarnation. Whatever journal there is belongs to an earlier one, and is set aside.
    fn begin(
        mut files: Box<dyn Files>,
        path: &Path,
        (domain, node): (DomainId, u64),
        settings: Settings,
        lock: File,
    ) -> Result<Disk, OpenError> {
        let process = ProcessId { node, incarnation: chance::incarnation() };
        let mut identity = Identity::new(domain, process);
        identity.starts.begin(chance::mark(), Ticket(0));
        // First: a crash behind it finds a journal of somebody else, and no process goes on from that.
        identity.write(&mut *files).map_err(OpenError::System)?;
        set_aside(&mut *files, path)?;
        checkpoint::remove(&mut *files).map_err(OpenError::System)?;
        let journal = Journal::create(identity.owner(), settings.journal);
        let lengths = BTreeMap::new();
        let directory = path.to_owned();
        Ok(Disk { directory, files, journal, identity, settings, number: 0, lengths, checkpoint: 0, lock })
    }

    /// As whom the process goes on, or begins.
    pub fn process(&self) -> ProcessId {
        self.identity.process
    }

    /// What it showed last ([`Policy::pass`](quorate_protocol::Policy::pass)), unless that was what it began with.
    pub fn pass(&self) -> Option<&Bytes> {
        self.identity.pass.as_ref()
    }
}

fn names_segments(files: &mut dyn Files) -> Result<bool, OpenError> {
    let names = files.list().map_err(OpenError::System)?;
    Ok(names.iter().any(|name| files::segment_number(name).is_some()))
}

/// Reads all segments, and makes durable what it read: a killed process leaves unsynced bytes to the system.
fn read_segments(files: &mut dyn Files) -> Result<BTreeMap<u64, Bytes>, OpenError> {
    let mut segments = BTreeMap::new();
    for name in files.list().map_err(OpenError::System)? {
        if let Some(number) = files::segment_number(&name) {
            let bytes = files.read(&name).map_err(OpenError::System)?;
            files.sync(&name).map_err(OpenError::System)?;
            segments.insert(number, Bytes::from(bytes));
        }
    }
    Ok(segments)
}

/// Keeps one journal that no process goes on from, for whoever looks into what happened; an earlier one is removed.
fn set_aside(files: &mut dyn Files, path: &Path) -> Result<(), OpenError> {
    if !names_segments(files)? {
        return Ok(());
    }
    let names = files.list().map_err(OpenError::System)?;
    for name in &names {
        if name.ends_with(SET_ASIDE) {
            files.remove(name).map_err(OpenError::System)?;
        }
    }
    for name in names.iter().filter(|name| files::segment_number(name).is_some()) {
        files.rename(name, &format!("{name}{SET_ASIDE}")).map_err(OpenError::System)?;
    }
    warn!(directory = %path.display(), "an earlier journal is kept as *{SET_ASIDE}");
    Ok(())
}

const SET_ASIDE: &str = ".aside";

#[cfg(test)]
mod tests {
    use quorate_protocol::wire::{Wire, WireError};

    use super::*;

    struct Note;

    impl Wire for Note {
        fn encode(&self, out: &mut bytes::BytesMut) {
            out.extend_from_slice(b"note");
        }

        fn decode(_: &mut Bytes) -> Result<Self, WireError> {
            Ok(Note)
        }
    }

    /// A process that comes back never uses a number of a greeting again; a new one begins again.
    #[test]
    fn greetings_number_on() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Disk::open(directory.path(), DomainId(1), 1, Settings::default()).unwrap();
        for life in 0..3 {
            let Opened { disk, found, .. } = open();
            assert_eq!(
                (disk.number, disk.identity.numbers),
                (life * NUMBERS_RESERVED, (life + 1) * NUMBERS_RESERVED)
            );
            assert_eq!(matches!(found, Found::Records { .. }), life > 0);
            let Disk { mut files, mut journal, .. } = disk;
            journal.append(&Note);
            for write in journal.take_writes() {
                let name = files::segment_name(write.segment);
                files.create(&name, 4096).unwrap();
                files.write(&name, write.offset, &[write.bytes]).unwrap();
            }
        }
        for number in 1..=3 {
            std::fs::remove_file(directory.path().join(files::segment_name(number))).unwrap();
        }
        let Opened { disk, found: Found::Nothing, .. } = open() else { panic!("nothing durable is left") };
        assert_eq!(disk.number, 0);
    }
}
