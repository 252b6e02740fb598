//! A host's directory: who the host is, and the logs that its replicas go on from.
//!
//! All replicas of a host write to one journal. A host that is started again in its directory is the process that it was, if all that was
//! durable can be read; then each service that it serves goes on from its own records, whether it is told to found or to
//! join. Records of services that are not served again are kept.
//!
//! If the journal cannot be read, the host is another process: it may join, and founds nothing, for what it founded before may go on without
//! it. A mark for each founded service says so even when nothing else is left.
//!
//! A replica that ended comes back as another process ([`tenant`](super::tenant)), which has a journal of its own in the same directory: what it
//! writes may not stand among the records of the process that it was. Such a journal is a *side*, is of one service, and is removed when
//! its replica ends.

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
use quorate_runtime::{
    Disk,
    disk::{Found, Settings},
};
use tracing::{info, warn};

use super::process::lock;
use crate::{
    error::Error,
    node::directory::{FILE_MODE, draw},
};

/// The directory of a host that is about to start.
pub(super) struct Directory {
    directory: PathBuf,
    /// The ticket of the first record.
    pub(super) first: Ticket,
    /// Logs that no replica goes on from yet.
    logs: Mutex<BTreeMap<Channel, Vec<Bytes>>>,
}

impl Directory {
    /// Opens the directory of the node of this number, whose alone it is.
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
        match &opened.found {
            Found::Nothing => {}
            Found::Records { torn_bytes } => {
                info!(process = %opened.disk.process(), torn_bytes, "this host goes on from its journal");
            }
            Found::Abandoned => warn!("nobody goes on from the journal that is there: a new host begins"),
            Found::Damaged(damage) => {
                warn!(%damage, "not all that was durable can be read: a new host begins, and joins");
            }
        }
        let first = opened.first();
        let logs = records_by_channel(opened.records).map_err(|error| failed(&error))?;
        let bare = |(of, records): (Channel, Vec<(Ticket, Bytes)>)| {
            (of, records.into_iter().map(|(_, record)| record).collect())
        };
        let logs = logs.into_iter().map(bare).collect();
        let logs = Mutex::new(logs);
        Ok((Directory { directory: directory.to_owned(), first, logs }, opened.disk))
    }

    /// Where it is.
    pub(super) fn place(&self) -> PathBuf {
        self.directory.clone()
    }

    /// A new side.
    pub(super) fn new_side(directory: &Path, domain: DomainId) -> Result<Aside, Error> {
        Aside::open(directory, draw(), domain)
    }

    /// The sides that replicas may go on from, of each service the latest. Others are removed.
    pub(super) fn sides(directory: &Path, domain: DomainId) -> Result<Vec<Aside>, Error> {
        let failed = |error: std::io::Error| Error::start(format!("{}: {error}", directory.display()));
        let mut sides: BTreeMap<Channel, Aside> = BTreeMap::new();
        for entry in fs::read_dir(directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(SIDE)?.parse().ok());
            let Some(number) = number else { continue };
            let side = Aside::open(directory, number, domain)?;
            let Some(channel) = side.directory.channels().first().copied() else {
                side.remove();
                continue;
            };
            let incarnation = |side: &Aside| side.disk.process().incarnation;
            match sides.remove(&channel) {
                Some(other) if incarnation(&other) > incarnation(&side) => {
                    side.remove();
                    sides.insert(channel, other);
                }
                other => {
                    if let Some(other) = other {
                        other.remove();
                    }
                    sides.insert(channel, side);
                }
            }
        }
        Ok(sides.into_values().collect())
    }

    /// The channels of which there are logs.
    pub(super) fn channels(&self) -> Vec<Channel> {
        lock(&self.logs).keys().copied().collect()
    }

    /// The log of a service that has not been served since the start.
    pub(super) fn log(&self, channel: Channel) -> Option<Vec<Bytes>> {
        lock(&self.logs).get(&channel).cloned()
    }

    /// The service goes on from its log.
    pub(super) fn goes_on(&self, channel: Channel) {
        lock(&self.logs).remove(&channel);
    }

    /// Marks that a service is founded from here; an error if it was before.
    pub(super) fn found(&self, name: &str, channel: Channel) -> Result<(), Error> {
        let mark = self.directory.join(format!("founded-{:016x}", channel.endpoint.0));
        let made = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&mark);
        let made =
            made.and_then(|file| file.sync_all()).and_then(|()| File::open(&self.directory)?.sync_all());
        made.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Error::start(format!(
                "`{name}` was founded from {} before, and nothing of it can be read there: join it, or begin in another \
                 directory",
                self.directory.display()
            )),
            _ => Error::start(format!("{}: {error}: nothing is founded without a mark of it", mark.display())),
        })
    }
}

/// A journal beside the host's own, of a replica that came back as another process.
pub(super) struct Aside {
    pub(super) directory: Directory,
    pub(super) disk: Disk,
    /// Where it is.
    pub(super) place: PathBuf,
}

impl Aside {
    fn open(directory: &Path, number: u64, domain: DomainId) -> Result<Aside, Error> {
        let place = directory.join(format!("{SIDE}{number}"));
        let (directory, disk) = Directory::open_journal(directory, place.clone(), domain, number)?;
        Ok(Aside { directory, disk, place })
    }

    fn remove(self) {
        let place = self.place.clone();
        drop(self);
        remove_side(&place);
    }
}

/// Removes the journal of a replica that has ended.
pub(super) fn remove_side(place: &Path) {
    if let Err(error) = fs::remove_dir_all(place) {
        warn!(%error, place = %place.display(), "the journal of a replica that ended is still there");
    }
}

/// The journal's own directory.
const JOURNAL: &str = "services";

/// The directory of a side, before the number of its process.
const SIDE: &str = "services-";
