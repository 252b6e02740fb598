//! A host's directory: its identity, and the logs from which its replicas continue.
//!
//! All replicas of a host write to one journal. A host that is restarted in its directory is the same
//! process, if all durable records can be read. Then each service that it serves continues from its own
//! records, whether it was started to found or to join. Records of services that are not served again are
//! kept.
//!
//! If the journal cannot be read, the host is another process: it may join, but founds nothing, because
//! services that it founded earlier may go on without it. A mark for each founded service records that even
//! when nothing else is left.
//!
//! A replica that ended comes back as another process ([`slot`](super::slot)). That process has its own
//! journal in the same directory, because its records may not stand among those of the former process. Such a
//! journal is a *side journal*: it is of one service, and is removed when its replica ends.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::ErrorKind,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Mutex,
};

use bytes::Bytes;
use quorate_node::{Channel, records_by_channel};
use quorate_protocol::{DomainId, Ticket};
use quorate_runtime::{Disk, disk::Settings};
use tracing::warn;

use crate::{
    error::Error,
    lock::lock,
    node::directory::{FILE_MODE, draw, log_state},
};

/// The directory of a host that is about to start.
pub(super) struct Directory {
    directory: PathBuf,
    /// The ticket of the first record.
    pub(super) first: Ticket,
    /// Logs from which no replica has continued yet.
    logs: Mutex<BTreeMap<Channel, Vec<Bytes>>>,
}

impl Directory {
    /// Opens the directory of the node of this number. No other node uses it.
    pub(super) fn open(directory: &Path, domain: DomainId, node: u64) -> Result<(Directory, Disk), Error> {
        Directory::open_journal(directory, directory.join(JOURNAL), domain, node)
    }

    fn open_journal(
        directory: &Path,
        journal: PathBuf,
        domain: DomainId,
        node: u64,
    ) -> Result<(Directory, Disk), Error> {
        let failed = |why: &dyn std::fmt::Display| Error::start(format!("{}: {why}", directory.display()));
        let opened = Disk::open(&journal, domain, node, Settings::default());
        let opened = opened.map_err(|error| failed(&error))?;
        log_state(&opened, "host");
        let first = opened.first();
        let logs = records_by_channel(opened.records).map_err(|error| failed(&error))?;
        let bare = |(of, records): (Channel, Vec<(Ticket, Bytes)>)| {
            (of, records.into_iter().map(|(_, record)| record).collect())
        };
        let logs = logs.into_iter().map(bare).collect();
        let logs = Mutex::new(logs);
        Ok((Directory { directory: directory.to_owned(), first, logs }, opened.disk))
    }

    /// Returns the path of the host's directory.
    pub(super) fn place(&self) -> PathBuf {
        self.directory.clone()
    }

    /// Makes a new side journal.
    pub(super) fn new_side_journal(directory: &Path, domain: DomainId) -> Result<SideJournal, Error> {
        SideJournal::open(directory, draw(), domain)
    }

    /// Returns the side journals from which replicas may continue, the latest of each service. Removes the
    /// other side journals.
    pub(super) fn side_journals(directory: &Path, domain: DomainId) -> Result<Vec<SideJournal>, Error> {
        let failed = |error: std::io::Error| Error::start(format!("{}: {error}", directory.display()));
        let mut side_journals: BTreeMap<Channel, SideJournal> = BTreeMap::new();
        for entry in fs::read_dir(directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(SIDE)?.parse().ok());
            let Some(number) = number else { continue };
            let side_journal = SideJournal::open(directory, number, domain)?;
            let Some(channel) = side_journal.directory.channels().first().copied() else {
                side_journal.remove();
                continue;
            };
            let incarnation = |side_journal: &SideJournal| side_journal.disk.process().incarnation;
            match side_journals.remove(&channel) {
                Some(other) if incarnation(&other) > incarnation(&side_journal) => {
                    side_journal.remove();
                    side_journals.insert(channel, other);
                }
                other => {
                    if let Some(other) = other {
                        other.remove();
                    }
                    side_journals.insert(channel, side_journal);
                }
            }
        }
        Ok(side_journals.into_values().collect())
    }

    /// Returns the channels that have logs.
    pub(super) fn channels(&self) -> Vec<Channel> {
        lock(&self.logs).keys().copied().collect()
    }

    /// Returns the log of a service that has not been served since the start.
    pub(super) fn log(&self, channel: Channel) -> Option<Vec<Bytes>> {
        lock(&self.logs).get(&channel).cloned()
    }

    /// Notes that the service continues from its log.
    pub(super) fn goes_on(&self, channel: Channel) {
        lock(&self.logs).remove(&channel);
    }

    /// Marks that a service is founded from here. Fails if the service was founded from here before.
    pub(super) fn found(&self, name: &str, channel: Channel) -> Result<(), Error> {
        let mark = self.directory.join(format!("founded-{:016x}", channel.endpoint.0));
        let made = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&mark);
        let made =
            made.and_then(|file| file.sync_all()).and_then(|()| File::open(&self.directory)?.sync_all());
        made.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Error::start(format!(
                "the service `{name}` was founded from {} before, and nothing of the service can be read \
                 there: join the service, or begin in another directory",
                self.directory.display()
            )),
            _ => Error::start(format!(
                "{}: {error}: a host must write a mark in its directory before it founds a service, so it founded none",
                mark.display()
            )),
        })
    }
}

/// A journal in addition to the host's own, of a replica that came back as another process.
pub(super) struct SideJournal {
    pub(super) directory: Directory,
    pub(super) disk: Disk,
    /// The path of the side journal's directory.
    pub(super) place: PathBuf,
}

impl SideJournal {
    fn open(directory: &Path, number: u64, domain: DomainId) -> Result<SideJournal, Error> {
        let place = directory.join(format!("{SIDE}{number}"));
        let (directory, disk) = Directory::open_journal(directory, place.clone(), domain, number)?;
        Ok(SideJournal { directory, disk, place })
    }

    fn remove(self) {
        let place = self.place.clone();
        drop(self);
        remove_side_journal(&place);
    }
}

/// Removes the journal of a replica that has ended.
pub(super) fn remove_side_journal(place: &Path) {
    if let Err(error) = fs::remove_dir_all(place) {
        warn!(%error, place = %place.display(), "the journal of a replica that ended could not be removed");
    }
}

/// Name of the journal's own directory.
const JOURNAL: &str = "services";

/// Name of the directory of a side journal, without the number of its process.
const SIDE: &str = "services-";
