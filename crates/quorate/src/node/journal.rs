//! The journal of a router, a storage process or a cell: the state from which a life begins.
//!
//! The first life of a node continues as the process to which the directory belongs, if all durable records
//! can be read. A later life exists because the other processes go on without the former life: it is another
//! process, and begins with an empty journal.

#[cfg(feature = "maps")]
mod cell;
#[cfg(feature = "tables")]
mod storage;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use quorate_node::{Channel, EndpointId, records_by_channel};
use quorate_protocol::{
    DomainId, Generation, Peer, ProcessId, Role, Ticket,
    ecast::Fence,
    journal,
    paxos::{self, Paxos},
};
use quorate_runtime::{
    Disk, clock,
    disk::{Directory, Files, Settings, faults::UnsyncedFiles},
};
use tracing::warn;

use super::directory::log_state;
use crate::error::Error;

/// The owner of a journal, and the way in which the journal is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) domain: DomainId,
    pub(crate) node: u64,
    pub(crate) role: Role,
    /// Whether the owner's files pass bytes on only at a sync ([`UnsyncedFiles`]).
    pub(crate) late: bool,
}

impl Owner {
    fn files(self, files: Directory) -> Box<dyn Files> {
        if self.late { Box::new(UnsyncedFiles::new(files)) } else { Box::new(files) }
    }

    /// Returns the settings of the owner's journal. A storage process still needs some fragments of
    /// checkpoints before the last checkpoint, and names these fragments, so its journal may have gaps. No
    /// answer waits for its disk, so its records gather.
    fn settings(self) -> Settings {
        let is_storage = self.role == Role::Storage;
        Settings {
            journal: journal::Settings { gaps: is_storage, ..journal::Settings::default() },
            gathering: if is_storage { STORAGE_GATHERING } else { Duration::ZERO },
            ..Settings::default()
        }
    }
}

/// Time for which the records of a storage process gather. Routers keep each message until it is durable
/// here, so a longer time costs them memory.
const STORAGE_GATHERING: Duration = Duration::from_millis(5);

/// The disk of a process that is about to begin.
pub(crate) struct Journal {
    pub(crate) disk: Disk,
    /// The ticket of the process's first record.
    pub(crate) first: Ticket,
    /// The process's records; empty if it begins as a new process.
    records: Vec<(Ticket, Bytes)>,
    place: PathBuf,
}

impl Journal {
    /// Opens the journal that the directory holds for this node.
    pub(crate) fn open(directory: &Path, owner: Owner) -> Result<Journal, Error> {
        let Owner { domain, node, .. } = owner;
        let place = place(directory, node);
        let failed = |error: &dyn std::fmt::Display| Error::start(format!("{}: {error}", place.display()));
        let opened = Disk::open_on(&place, |files| owner.files(files), domain, node, owner.settings())
            .map_err(|error| failed(&error))?;
        log_state(&opened, "process");
        let first = opened.first();
        let mut records = records_by_channel(opened.records).map_err(|error| failed(&error))?;
        if records.contains_key(&Channel { domain, endpoint: EndpointId::FORMER_MAPS }) {
            return Err(failed(
                &"this journal belongs to a cluster of cells alone, as builds of quorate up to commit 71de61a6 \
                  made it: only these builds open it",
            ));
        }
        let records = records.remove(&Channel { domain, endpoint: EndpointId::TABLES }).unwrap_or_default();
        Ok(Journal { disk: opened.disk, first, records, place })
    }

    /// Begins an empty journal for another process than the directory's owner.
    pub(crate) fn begin_anew(directory: &Path, owner: Owner) -> Result<Journal, Error> {
        let Owner { domain, node, .. } = owner;
        let place = place(directory, node);
        let disk = Disk::begin_anew(&place, |files| owner.files(files), domain, node, owner.settings())
            .map_err(|error| Error::start(format!("{}: {error}", place.display())))?;
        Ok(Journal { disk, first: Ticket(1), records: Vec::new(), place })
    }

    /// Returns the identity with which the process begins.
    pub(crate) fn process(&self) -> ProcessId {
        self.disk.process()
    }

    /// Whether the process continues its former life.
    pub(crate) fn goes_on(&self) -> bool {
        !self.records.is_empty()
    }

    /// Returns the generation of the order to which the journal belongs.
    pub(crate) fn generation(&self) -> Result<Generation, Error> {
        Ok(self.fence()?.map_or(Generation::FIRST, |fence| fence.generation))
    }

    /// Returns the version of routing that the process of the journal showed last.
    pub(crate) fn routing(&self) -> Result<u32, Error> {
        Ok(self.fence()?.map_or(1, |fence| fence.routing))
    }

    /// Returns the fence that the process of the journal showed last, unless that is the process's first
    /// fence.
    fn fence(&self) -> Result<Option<Fence>, Error> {
        match self.disk.pass().map(|pass| Fence::of_pass(pass)) {
            None => Ok(None),
            Some(Some(fence)) => Ok(Some(fence)),
            Some(None) => Err(Error::start(format!(
                "{}: the generation to which this journal belongs cannot be read",
                self.place.display()
            ))),
        }
    }

    /// Rebuilds the router's log, if there is one. Also returns the journal with which to continue. If
    /// records are missing, a new process continues, with the journal that `begin_new` makes.
    pub(crate) fn router(
        mut self,
        address: &str,
        settings: &paxos::Settings,
        begin_new: impl FnOnce() -> Result<Journal, Error>,
    ) -> Result<(Journal, Option<Paxos>), Error> {
        let me = Peer { id: self.process(), address: address.to_owned() };
        let records = std::mem::take(&mut self.records).into_iter().map(|(_, record)| record);
        match Paxos::recover(me.clone(), settings.clone(), records, clock::now()) {
            Ok(log) => {
                let known = log.as_ref().and_then(|log| log.members().iter().find(|peer| peer.id == me.id));
                match known {
                    Some(known) if known.address != me.address => Err(self.moved(&known.address, address)),
                    _ => Ok((self, log)),
                }
            }
            Err(why @ paxos::Corrupt::Disconnected(_)) => {
                warn!(
                    %why,
                    "not all records of the router's journal can be read: a new router begins, and joins"
                );
                // The old journal holds the lock.
                drop(self);
                Ok((begin_new()?, None))
            }
            Err(error) => Err(Error::start(format!("{}: {error}", self.place.display()))),
        }
    }

    fn moved(&self, known: &str, address: &str) -> Error {
        Error::start(format!(
            "{}: the other processes know this process at {known}, and now this process would listen at \
             {address}: have this process listen at {known} again, or remove the directory to begin as a \
             new process",
            self.place.display(),
        ))
    }
}

/// Returns the directory of the journal of this node's process.
pub(crate) fn place(directory: &Path, node: u64) -> PathBuf {
    directory.join(format!("journal-{node}"))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use quorate_protocol::{
        paxos::{Ballot, Record, Slot},
        wire::Wire,
    };

    use super::*;

    #[test]
    fn a_router_that_lacks_records_begins_as_another() {
        let directory = tempfile::tempdir().unwrap();
        let owner = Owner { domain: DomainId(7), node: 3, role: Role::Router, late: false };
        let mut journal = Journal::open(directory.path(), owner).unwrap();
        let before = journal.process();
        // The record begins after slot 5, and nothing before it exists.
        let learned = Record::Learned {
            ballot: Ballot { round: 1, router: before },
            start: Slot(5),
            values: Vec::new(),
        };
        let mut bytes = BytesMut::new();
        learned.encode(&mut bytes);
        journal.records = vec![(Ticket(1), bytes.freeze())];
        let begin_new = || Journal::begin_anew(directory.path(), owner);
        let (journal, log) = journal.router("127.0.0.1:1", &paxos::Settings::default(), begin_new).unwrap();
        assert!(log.is_none(), "it joins");
        assert_eq!(journal.process().node, before.node);
        assert_ne!(journal.process(), before);
    }
}
