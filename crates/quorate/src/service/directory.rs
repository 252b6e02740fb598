//! A host's directory: who the host is, and the logs that its replicas go on from.
//!
//! All replicas of a host write to one journal. A host that is started again in its directory is the process that it was, if all that was
//! durable can be read; then each service that it serves goes on from its own records, whether it is told to found or to
//! join. Records of services that are not served again are kept.
//!
//! If the journal cannot be read, the host is another process: it may join, and founds nothing, for what it founded before may go on without
//! it. A mark for each founded service says so even when nothing else is left.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
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
use crate::{error::Error, node::directory::FILE_MODE};

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
        let failed = |why: &dyn std::fmt::Display| Error::start(format!("{}: {why}", directory.display()));
        let journal = directory.join(JOURNAL);
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

/// The journal's own directory.
const JOURNAL: &str = "services";
