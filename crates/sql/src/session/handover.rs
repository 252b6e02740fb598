//! The state of a session between two statements, from which another process continues it.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{Session, Status, setting::Settings};
use crate::{
    backend::Backend,
    cache::{Cache, Prepared},
    error::Result,
    types::PgType,
};

/// The state from which a session is rebuilt. The session is in no block and has no write under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionState {
    /// The user.
    pub user: String,
    /// The database that the client connected to.
    pub database: String,
    /// The session's number, by which it can be cancelled.
    pub pid: i32,
    settings: BTreeMap<String, String>,
    refused_zone: Option<String>,
    /// The statements that PREPARE named.
    prepared: BTreeMap<String, StatementState>,
}

/// A prepared statement, which the next process binds again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatementState {
    text: String,
    /// The oids of the parameter types that the client declared.
    declared: Vec<Option<u32>>,
}

impl StatementState {
    /// Captures a statement that the client sent.
    pub fn of(prepared: &Prepared) -> StatementState {
        let declared = prepared.declared.iter().map(|ty| ty.map(|ty| ty.oid())).collect();
        StatementState { text: prepared.text.to_string(), declared }
    }

    /// Captures a statement that PREPARE named, without the PREPARE with which `prepared.text` begins.
    fn inner(prepared: &Prepared) -> StatementState {
        let text = prepared.syntax.as_ref().map_or_else(String::new, |syntax| syntax.to_string());
        StatementState { text, ..StatementState::of(prepared) }
    }

    /// Binds the statement against the present tables.
    pub fn prepare(&self, session: &Session) -> Result<Arc<Prepared>> {
        let declared = self.declared.iter().map(|oid| oid.and_then(PgType::from_oid)).collect();
        session.prepare(&self.text, declared)
    }
}

impl Session {
    /// Whether the session is in no block, and has no write under way.
    pub fn is_between(&self) -> bool {
        self.status() == Status::Idle
            && self.cursors.is_empty()
            && self.in_flight.is_none()
            && self.notices.is_empty()
            && self.reported.is_empty()
    }

    /// Returns the state from which the session is rebuilt. `None` if the session is not between two
    /// statements.
    pub fn handover_state(&self) -> Option<SessionState> {
        self.is_between().then(|| SessionState {
            user: self.user.clone(),
            database: self.database.clone(),
            pid: self.pid,
            settings: self.settings.values().clone(),
            refused_zone: self.refused_zone.clone(),
            prepared: self
                .prepared
                .iter()
                .map(|(name, named)| (name.clone(), StatementState::inner(&named.prepared)))
                .collect(),
        })
    }

    /// Rebuilds a session. A prepared statement that no longer fits the tables is dropped.
    pub fn resume(backend: Arc<dyn Backend>, cache: Arc<Cache>, session_state: SessionState) -> Session {
        let SessionState { user, database, pid, settings, refused_zone, prepared } = session_state;
        let mut session = Session::new(backend, cache, user, database, pid);
        session.settings = Settings::of(settings);
        session.refused_zone = refused_zone;
        for (name, statement) in prepared {
            match statement.prepare(&session).and_then(|prepared| session.name(name.clone(), prepared)) {
                Ok(()) => {}
                Err(error) => {
                    tracing::debug!(name, %error, "a prepared statement no longer fits the tables and was dropped")
                }
            }
        }
        session
    }
}
