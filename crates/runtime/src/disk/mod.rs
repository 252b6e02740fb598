//! Disk: the journal of a process on real files.
//!
//! **Promise.** A record that was reported as durable is read again after a crash, or its loss is detected
//! and the process comes back under a new identity. A record is reported as durable only after its sync has
//! succeeded.
//!
//! ```text
//! protocol thread                          disk thread
//!   persist: a frame in the journal            │
//!   end of turn, or when enough has gathered:  │
//!   writes ───────────────────────────────────▶│ takes all that waits
//!   goes on                                    │ one write and one sync a segment
//!   Persisted, held messages leave ◀── wakes ──┤ then reports the last durable record
//! ```
//!
//! The format of the journal, and the distinction between damage and a torn tail, are pure code
//! ([`journal`]). This module has the rest:
//!
//! | module | contents |
//! |---|---|
//! | `files` | the files of one directory, as a trait with one real implementation |
//! | `identity` | the owner of the directory |
//! | `writer` | the disk thread |
//! | `checkpoint` | the time of the last checkpoint, for people |
//! | `error` | errors, named by who must act |
//! | [`faults`] | test files that fail, are slow, or forget unsynced writes |
//!
//! **Rules.**
//!
//! 1. *One process a directory.* The process holds a lock that the system releases when the process ends in
//!    any way.
//! 2. *A directory has one owner*: domain, node and incarnation, in the file `identity`. Another domain or
//!    node, or a later format, is refused by name.
//! 3. *An incarnation continues only from all its durable records* (rule S15). If the journal is damaged, it
//!    is set aside and the directory gets a new incarnation. The directory also gets a new incarnation if
//!    there are no records, because then no process relies on the old one.
//! 4. *Numbers of greetings are never reused.* A link's peer refuses a greeting whose number is below one
//!    that it knows. So numbers are reserved in blocks before they are used, and a restarted process begins
//!    after the last block.
//! 5. *No process continues from an older copy.* If a peer remembers more of the journal than the directory
//!    holds ([`journal::RemoteDurability`]), the process sends nothing more and ends with a [`DiskError`]. It
//!    removes nothing: an operator decides.
//! 6. *The first failed operation ends the process.* After a failed sync the contents of the disk are
//!    unknown, and a second sync may succeed without having written the data. So the process ends with a
//!    [`DiskError`], and the next process reads the records that are on the disk.
//!
//! **Bounds.** At most [`Settings::waiting_bytes_max`] bytes, plus those of one turn, wait for the disk.
//! Beyond that the process takes neither messages nor commands until the disk has caught up, while its signs
//! of life go on. Recovery needs memory for the contents of the directory: the records since the last
//! checkpoint, and up to five segments.
//!
//! **Segments** are created one ahead, with their full length reserved. A sync then writes no metadata, which
//! takes 0.15 ms instead of 1.5 to 4 ms on the machine of `docs/performance.md`, and a full disk is found
//! before it matters. Segments that are no longer needed are reused as new ones.

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
    DomainId, Duration, ProcessId, Ticket,
    journal::{self, Damage, Journal, Key, Recovered},
};
use tracing::{info, warn};

pub use self::{
    error::{DiskError, OpenError},
    files::{Directory, Files, make_directories},
};
pub(crate) use self::{
    identity::{Identity, NUMBERS_RESERVED},
    writer::Writer,
};
use crate::chance;

/// Settings of a process's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The settings of the journal.
    pub journal: journal::Settings,
    /// Limit of the bytes that wait for the disk. It holds separately for unwritten records, and for messages
    /// that wait for records. Above the limit, the process accepts no further input.
    pub waiting_bytes_max: usize,
    /// Time for which records may gather before they are written together, while no message waits for a
    /// record. Zero writes the records of each turn at its end.
    pub gathering: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            journal: journal::Settings::default(),
            waiting_bytes_max: 64 << 20,
            gathering: Duration::ZERO,
        }
    }
}

/// The locked directory of one process, ready for use.
#[derive(Debug)]
pub struct Disk {
    pub(crate) directory: PathBuf,
    pub(crate) files: Box<dyn Files>,
    pub(crate) journal: Journal,
    pub(crate) identity: Identity,
    pub(crate) settings: Settings,
    /// The number of the next greeting.
    pub(crate) number: u32,
    /// The lengths of the segments in use, in bytes, by segment number.
    pub(crate) lengths: BTreeMap<u64, u64>,
    /// The time of the last complete checkpoint, in seconds of Unix time; 0 if there is none.
    pub(crate) checkpoint: i64,
    /// The lock on the directory, held until the process ends.
    pub(crate) lock: File,
}

/// The state in which a directory was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryState {
    /// The directory holds no records, so the process is new.
    Nothing,
    /// The directory holds all durable records, so the process continues.
    Records {
        /// Number of bytes after the last complete record. They were never durable, or belong to a segment
        /// that was overwritten.
        torn_bytes: u64,
    },
    /// The directory held a journal from which no process can continue: the owner is unreadable, or the
    /// directory already has a new incarnation. The journal was set aside, and the process is new.
    Abandoned,
    /// Durable records are missing. The remaining journal was set aside, and the process is new.
    Damaged(Damage),
}

/// An opened directory and its contents.
#[derive(Debug)]
pub struct Opened {
    /// The directory, locked for this process.
    pub disk: Disk,
    /// The durable records, in order.
    pub records: Vec<(Ticket, Bytes)>,
    /// The state in which the directory was found.
    pub found: DirectoryState,
}

impl Opened {
    /// Returns the ticket of the first record in [`Opened::records`], or of the next record to be written if
    /// there are no records.
    pub fn first(&self) -> Ticket {
        self.records.first().map_or(Ticket(self.disk.journal.last().0 + 1), |(first, _)| *first)
    }
}

impl Disk {
    /// Opens the directory of `node` in `domain`, and creates it if it does not exist.
    pub fn open(
        directory: &Path,
        domain: DomainId,
        node: u64,
        settings: Settings,
    ) -> Result<Opened, OpenError> {
        Disk::open_on(directory, |files| Box::new(files), domain, node, settings)
    }

    /// Opens a directory through these files instead of the real ones ([`faults`]).
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
                // A directory of an earlier format has no key. The next segment uses the new key.
                let key = identity.key.unwrap_or_else(|| Key::of_older(chance::mark()));
                match Journal::recover(owner, journal::Settings { key, ..settings.journal }, &segments) {
                    Ok(recovered) if !recovered.records.is_empty() => Some((identity, Ok(recovered))),
                    // The directory had already got a new incarnation when a crash came, before the old
                    // journal was set aside.
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
                // If all numbers are used up, the process gets a new incarnation, whose numbers begin at 0.
                if let Some(mut next) = before.reserved(NUMBERS_RESERVED) {
                    next.starts.begin(chance::mark(), recovered.journal.last());
                    next.key = Some(recovered.journal.key());
                    let Recovered { journal, records, torn_bytes, empty, lengths, hashed_bytes } = recovered;
                    // Unused reserved space is freed, because otherwise each start would leave a segment with
                    // its full length reserved.
                    for (number, length) in &lengths {
                        let name = files::segment_name(*number);
                        files.truncate(&name, *length).map_err(OpenError::System)?;
                    }
                    for number in empty {
                        files.remove(&files::segment_name(number)).map_err(OpenError::System)?;
                    }
                    next.write(&mut *files).map_err(OpenError::System)?;
                    let process = next.process;
                    info!(
                        %process,
                        records = records.len(),
                        torn_bytes,
                        hashed_bytes,
                        "the process continues from its journal"
                    );
                    let (number, lengths) = (before.numbers, lengths.into_iter().collect());
                    let checkpoint = checkpoint::read(&mut *files);
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
                    return Ok(Opened { disk, records, found: DirectoryState::Records { torn_bytes } });
                }
                DirectoryState::Abandoned
            }
            Some((_, Err(damage))) => DirectoryState::Damaged(damage),
            None if abandoned => DirectoryState::Abandoned,
            None => DirectoryState::Nothing,
        };
        let disk = Disk::begin(files, &path, (domain, node), settings, lock)?;
        if let DirectoryState::Damaged(damage) = found {
            let process = disk.process();
            warn!(
                %process,
                %damage,
                directory = %path.display(),
                "the journal is damaged, so a new process starts without the journal's records"
            );
        }
        Ok(Opened { disk, records: Vec::new(), found })
    }

    /// Opens the directory of `node` in `domain` under a new incarnation, which does not have to continue the
    /// records of the earlier incarnation. Sets the earlier journal aside.
    pub fn begin_anew(
        directory: &Path,
        files: impl FnOnce(Directory) -> Box<dyn Files>,
        domain: DomainId,
        node: u64,
        settings: Settings,
    ) -> Result<Disk, OpenError> {
        let mut files = files(Directory::create(directory).map_err(OpenError::System)?);
        let lock = identity::lock(directory)?;
        // Reading the identity refuses a directory that belongs to a domain or node other than these.
        Identity::read(&mut *files, directory, domain, node)?;
        Disk::begin(files, directory, (domain, node), settings, lock)
    }

    /// Gives the directory a new incarnation. A journal in the directory belongs to an earlier incarnation,
    /// and is set aside.
    fn begin(
        mut files: Box<dyn Files>,
        path: &Path,
        (domain, node): (DomainId, u64),
        settings: Settings,
        lock: File,
    ) -> Result<Disk, OpenError> {
        let process = ProcessId { node, incarnation: chance::incarnation() };
        let key = Key { secret: chance::mark(), since: 0 };
        let mut identity = Identity::new(domain, process, key);
        identity.starts.begin(chance::mark(), Ticket(0));
        // The identity is written before the journal is moved. After a crash in between, the journal belongs
        // to another incarnation than the directory, so no process continues from it.
        identity.write(&mut *files).map_err(OpenError::System)?;
        set_aside(&mut *files, path)?;
        checkpoint::remove(&mut *files);
        let journal = Journal::create(identity.owner(), journal::Settings { key, ..settings.journal });
        let lengths = BTreeMap::new();
        let directory = path.to_owned();
        Ok(Disk { directory, files, journal, identity, settings, number: 0, lengths, checkpoint: 0, lock })
    }

    /// Returns the process that owns the directory now.
    pub fn process(&self) -> ProcessId {
        self.identity.process
    }

    /// Returns the last pass that the process showed ([`Policy::pass`](quorate_protocol::Policy::pass)), or
    /// `None` if it still shows its first pass.
    pub fn pass(&self) -> Option<&Bytes> {
        self.identity.pass.as_ref()
    }
}

fn names_segments(files: &mut dyn Files) -> Result<bool, OpenError> {
    let names = files.list().map_err(OpenError::System)?;
    Ok(names.iter().any(|name| files::segment_number(name).is_some()))
}

/// Reads all segments and syncs them, because a killed process may have left unsynced bytes in the system's
/// cache.
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

/// Keeps a journal from which no process continues, so that people can examine it. The first such journal
/// stays until somebody removes it: it may hold the only copy of the rows, and later processes often live
/// only briefly. Of later journals only the latest is kept.
fn set_aside(files: &mut dyn Files, path: &Path) -> Result<(), OpenError> {
    if !names_segments(files)? {
        return Ok(());
    }
    let names = files.list().map_err(OpenError::System)?;
    let is_first = |name: &String| name.ends_with(SET_ASIDE) && !name.ends_with(SET_ASIDE_LATER);
    let suffix = if names.iter().any(is_first) { SET_ASIDE_LATER } else { SET_ASIDE };
    if suffix == SET_ASIDE_LATER {
        for name in names.iter().filter(|name| name.ends_with(SET_ASIDE_LATER)) {
            files.remove(name).map_err(OpenError::System)?;
        }
    }
    for name in names.iter().filter(|name| files::segment_number(name).is_some()) {
        files.rename(name, &format!("{name}{suffix}")).map_err(OpenError::System)?;
    }
    warn!(
        directory = %path.display(),
        "the files of an earlier journal were renamed to *{suffix} and are not used again: remove these \
         files when nobody needs them"
    );
    Ok(())
}

const SET_ASIDE: &str = ".aside";
const SET_ASIDE_LATER: &str = ".later.aside";

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

    /// The first journal that is set aside stays, although the processes that follow end at once and leave
    /// journals, too.
    #[test]
    fn the_first_journal_that_is_set_aside_stays() {
        let place = tempfile::tempdir().unwrap();
        let mut files = Directory::create(place.path()).unwrap();
        let mut set_aside = |contents: &str| {
            files.replace(&files::segment_name(1), contents.as_bytes()).unwrap();
            super::set_aside(&mut files, place.path()).unwrap();
        };
        ["first", "second", "third"].into_iter().for_each(&mut set_aside);
        let read = |name: &str| std::fs::read_to_string(place.path().join(name)).ok();
        let name = |suffix: &str| format!("{}{suffix}", files::segment_name(1));
        assert_eq!(read(&name(SET_ASIDE)).as_deref(), Some("first"));
        assert_eq!(read(&name(SET_ASIDE_LATER)).as_deref(), Some("third"));
        assert_eq!(read(&name("")), None);
        // After somebody has removed the first journal, the next one takes its place.
        std::fs::remove_file(place.path().join(name(SET_ASIDE))).unwrap();
        set_aside("fourth");
        assert_eq!(read(&name(SET_ASIDE)).as_deref(), Some("fourth"));
        assert_eq!(read(&name(SET_ASIDE_LATER)).as_deref(), Some("third"));
    }

    /// A restarted process never reuses the number of a greeting. A new process starts from 0.
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
            assert_eq!(matches!(found, DirectoryState::Records { .. }), life > 0);
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
        let Opened { disk, found: DirectoryState::Nothing, .. } = open() else {
            panic!("nothing durable is left")
        };
        assert_eq!(disk.number, 0);
    }
}
