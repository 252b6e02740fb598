//! The settings with which each life of a member begins. The builder checks them first.

use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
};

use quorate_protocol::{DomainId, Peer, ProcessId, Role, Terms, detector};
use quorate_runtime::chance;

use super::{
    directory::DirectoryLock,
    journal::{Journal, Owner},
};
use crate::{error::Error, process::Parts};

/// The settings with which each life of a node begins.
pub(crate) struct Setup {
    pub(super) role: Role,
    pub(super) name: String,
    pub(super) number: u64,
    pub(super) domain: DomainId,
    pub(super) routers: Vec<String>,
    pub(super) listener: Arc<TcpListener>,
    pub(super) listen: SocketAddr,
    pub(super) advertised: String,
    pub(super) insecure: bool,
    pub(super) directory: Option<PathBuf>,
    pub(super) detector: detector::Settings,
    pub(super) terms: Option<Terms>,
    /// The directory of the node's journal, if it has one.
    pub(super) journal: Option<PathBuf>,
    /// Whether the journal's files pass bytes to the system only at a sync.
    pub(super) late: bool,
    /// The lock on the directory, held as long as the member lives.
    pub(super) _directory_lock: Option<Arc<DirectoryLock>>,
}

impl Setup {
    /// Returns the process of this journal, or a new process without a journal.
    pub(super) fn peer(&self, journal: Option<&Journal>) -> Peer {
        let fresh = || ProcessId { node: self.number, incarnation: chance::incarnation() };
        Peer { id: journal.map_or_else(fresh, Journal::process), address: self.advertised.clone() }
    }

    /// Returns the parts that processes of all roles have in common.
    pub(super) fn parts(&self) -> Parts {
        Parts { executor: None, client: None, routers: self.routers.clone(), terms: self.terms, disk: None }
    }

    /// Begins the empty journal of a new process, if the node has a journal.
    pub(super) fn empty_journal(&self) -> Result<Option<Journal>, Error> {
        self.journal.is_some().then(|| self.another_journal()).transpose()
    }

    /// Begins the empty journal of a new process of a node that has a journal.
    pub(super) fn another_journal(&self) -> Result<Journal, Error> {
        let place = self.journal.as_ref().expect("only a node with a journal begins another one");
        let Setup { domain, number: node, role, late, .. } = *self;
        Journal::begin_anew(place, Owner { domain, node, role, late })
    }
}
