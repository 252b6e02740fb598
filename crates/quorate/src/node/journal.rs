//! A router's log on disk: what its first life goes on from, and what a later one begins with.
//!
//! The first life of a node goes on as the process that the directory belongs to, if all that was durable can be read. A
//! later life is there because the others go on without the one before it: it is another process, and begins with an empty
//! journal.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use quorate_node::{Channel, EndpointId, records_of};
use quorate_protocol::{
    DomainId, Generation, Peer, ProcessId, Ticket,
    ecast::Fence,
    paxos::{self, Paxos},
};
use quorate_runtime::{
    Disk, clock,
    disk::{Found, Settings},
};
use tracing::{info, warn};

use crate::error::Error;

/// The disk of a router that is about to begin.
pub(super) struct Journal {
    pub(super) disk: Disk,
    /// The ticket of its first record.
    pub(super) first: Ticket,
    /// The log's records. None: it begins as a new process.
    records: Vec<Bytes>,
    place: PathBuf,
}

impl Journal {
    /// The journal that the directory holds for this node.
    pub(super) fn open(directory: &Path, domain: DomainId, node: u64) -> Result<Journal, Error> {
        let place = place(directory, node);
        let failed = |error: &dyn std::fmt::Display| Error::start(format!("{}: {error}", place.display()));
        let opened = Disk::open(&place, domain, node, Settings::default()).map_err(|error| failed(&error))?;
        match &opened.found {
            Found::Nothing => {}
            Found::Records { torn_bytes } => {
                info!(process = %opened.disk.process(), torn_bytes, "this router goes on from its journal");
            }
            Found::Abandoned => warn!("nobody goes on from the journal that is there: a new router begins"),
            Found::Damaged(damage) => {
                warn!(%damage, "not all that was durable can be read: a new router begins, and joins");
            }
        }
        let (first, channel) = (opened.first(), Channel { domain, endpoint: EndpointId::TABLES });
        let records = records_of(channel, opened.records).map_err(|error| failed(&error))?;
        Ok(Journal { disk: opened.disk, first, records, place })
    }

    /// For another process than the one that had the directory.
    pub(super) fn begin_anew(directory: &Path, domain: DomainId, node: u64) -> Result<Journal, Error> {
        let place = place(directory, node);
        let disk = Disk::begin_anew(&place, domain, node, Settings::default())
            .map_err(|error| Error::start(format!("{}: {error}", place.display())))?;
        Ok(Journal { disk, first: Ticket(1), records: Vec::new(), place })
    }

    /// As whom the router begins.
    pub(super) fn process(&self) -> ProcessId {
        self.disk.process()
    }

    /// Whether it goes on as the one that it was.
    pub(super) fn goes_on(&self) -> bool {
        !self.records.is_empty()
    }

    /// The generation that it belonged to.
    pub(super) fn generation(&self) -> Result<Generation, Error> {
        match self.disk.pass().map(|pass| Fence::of_pass(pass)) {
            None => Ok(Generation::FIRST),
            Some(Some(fence)) => Ok(fence.generation),
            Some(None) => {
                Err(Error::start(format!("{}: whose router it was cannot be read", self.place.display())))
            }
        }
    }

    /// The log as it was, if there is one.
    pub(super) fn log(&mut self, me: &Peer, settings: &paxos::Settings) -> Result<Option<Paxos>, Error> {
        let records = std::mem::take(&mut self.records);
        let log = Paxos::recover(me.clone(), settings.clone(), records, clock::now())
            .map_err(|error| Error::start(format!("{}: {error}", self.place.display())))?;
        let known = log.as_ref().and_then(|log| log.members().iter().find(|peer| peer.id == me.id));
        match known {
            Some(known) if known.address != me.address => Err(Error::start(format!(
                "{}: the others know this router at {}, and it would be at {} now: have it listen where it did, or remove \
                 the directory to begin as a new router",
                self.place.display(),
                known.address,
                me.address
            ))),
            _ => Ok(log),
        }
    }
}

fn place(directory: &Path, node: u64) -> PathBuf {
    directory.join(format!("journal-{node}"))
}
