//! A session between two statements, as another process goes on with it.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{Session, Status, setting::Settings};
use crate::{
    backend::Backend,
    cache::{Cache, Prepared},
    error::Result,
    types::PgType,
};

/// What a session is made again from. It is in no block, and no write of it is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Its user.
    pub user: String,
    /// The database it connected to.
    pub database: String,
    /// Its number, by which it can be cancelled.
    pub pid: i32,
    settings: BTreeMap<String, String>,
    /// What PREPARE named.
    prepared: BTreeMap<String, CarriedStatement>,
}

/// A prepared statement, to be bound anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedStatement {
    text: String,
    /// The oids of the parameter types that were declared.
    declared: Vec<Option<u32>>,
}

impl CarriedStatement {
    /// As it was sent by the client.
    pub fn of(prepared: &Prepared) -> CarriedStatement {
        let declared = prepared.declared.iter().map(|ty| ty.map(|ty| ty.oid())).collect();
        CarriedStatement { text: prepared.text.to_string(), declared }
    }

    /// The statement itself: the text of one that PREPARE named has that word in it.
    fn inner(prepared: &Prepared) -> CarriedStatement {
        let text = prepared.syntax.as_ref().map_or_else(String::new, |syntax| syntax.to_string());
        CarriedStatement { text, ..CarriedStatement::of(prepared) }
    }

    /// Binds it against the tables as they are now.
    pub fn prepare(&self, session: &Session) -> Result<Arc<Prepared>> {
        let declared = self.declared.iter().map(|oid| oid.and_then(PgType::from_oid)).collect();
        session.prepare(&self.text, declared)
    }
}

impl Session {
    /// Whether it is in no block, and nothing of it is under way.
    pub fn is_between(&self) -> bool {
        self.status() == Status::Idle
            && self.cursors.is_empty()
            && self.in_flight.is_none()
            && self.notices.is_empty()
            && self.reported.is_empty()
    }

    /// What it is made again from, between two statements.
    pub fn carry(&self) -> Option<Carried> {
        self.is_between().then(|| Carried {
            user: self.user.clone(),
            database: self.database.clone(),
            pid: self.pid,
            settings: self.settings.values().clone(),
            prepared: self
                .prepared
                .iter()
                .map(|(name, prepared)| (name.clone(), CarriedStatement::inner(prepared)))
                .collect(),
        })
    }

    /// The session that was carried here. A statement that the tables do not allow any more is gone.
    pub fn resume(backend: Arc<dyn Backend>, cache: Arc<Cache>, carried: Carried) -> Session {
        let Carried { user, database, pid, settings, prepared } = carried;
        let mut session = Session::new(backend, cache, user, database, pid);
        session.settings = Settings::of(settings);
        for (name, statement) in prepared {
            match statement.prepare(&session) {
                Ok(prepared) => drop(session.prepared.insert(name, prepared)),
                Err(error) => tracing::debug!(name, %error, "a prepared statement is gone"),
            }
        }
        session
    }
}
