//! A gateway: a client of the tables. Its requests outlive the lives of the gateway.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use quorate_protocol::{
    Generation, Peer, ProcessId,
    rubberband::{Client, ClientSettings},
};
use quorate_roles::tables;

use crate::{
    cluster::{ClusterBackend, Requests},
    error::Error,
    node::{
        member::Member,
        role_work::{LifeStart, NewProcess, RoleWork},
        setup::Setup,
    },
    process::{Parts, Process},
};

/// Shortest time for which a read waits: two rounds of asking a silent replica (2 s each) and of replacing it
/// (2 s each).
const READ_WAIT_MIN: Duration = Duration::from_secs(8);

/// The work of a gateway.
pub(in crate::node) struct GatewayWork {
    write_wait: Duration,
    requests: Arc<Requests>,
    /// The tables, as sessions of SQL reach them. Set when the gateway's first process runs. A later process
    /// of the gateway takes it over.
    tables: OnceLock<Arc<ClusterBackend>>,
}

impl GatewayWork {
    /// Makes the work of a gateway whose writes wait for the cluster at most for `write_wait`.
    pub(in crate::node) fn new(write_wait: Duration) -> GatewayWork {
        GatewayWork { write_wait, requests: Arc::new(Requests::new(write_wait)), tables: OnceLock::new() }
    }

    fn client(&self, setup: &Setup, peer: Peer) -> Client {
        let settings = ClientSettings {
            alive_every: setup.detector.interval,
            write_wait: Some(self.write_wait),
            read_wait: self.write_wait.max(READ_WAIT_MIN),
            terms: setup.terms,
            ..ClientSettings::default()
        };
        Client::new(peer, setup.name.clone(), settings)
    }
}

impl RoleWork for GatewayWork {
    fn begin(&self, setup: &Setup, start: LifeStart) -> Result<NewProcess, Error> {
        let peer = setup.peer(start.journal.as_ref());
        let (me, requests) = (peer.id, self.requests.clone());
        Ok(NewProcess {
            me,
            generation: start.former.unwrap_or(Generation::FIRST),
            state: tables::Process::Client(self.client(setup, peer)),
            parts: Parts { client: Some(Box::new(move |event| requests.take(event))), ..setup.parts() },
        })
    }

    fn go_on(&self, process: &Process, me: ProcessId) {
        let port = || process.port().clone();
        match self.tables.get() {
            Some(tables) => tables.go_on(port(), me),
            None => {
                self.tables.get_or_init(|| Arc::new(ClusterBackend::new(port(), self.requests.clone(), me)));
            }
        }
    }

    fn end_requests(&self) {
        self.requests.end();
    }

    fn admitted(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.requests.config_where(|_| true))
    }
}

impl Member {
    /// Returns the access of SQL to tables if this member is a client. Doors use it for clients of their own.
    pub fn backend(&self) -> Option<Arc<ClusterBackend>> {
        self.work::<GatewayWork>()?.tables.get().cloned()
    }
}
