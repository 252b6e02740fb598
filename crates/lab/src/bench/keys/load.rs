//! The statements of the load: each reads or updates one row by its key.

use anyhow::{Context, Result};
use rand::RngExt;
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, Error, Statement};

use super::super::sql_load::Load;

/// The statement that the clients execute.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) enum Verb {
    Read,
    Update,
}

impl Verb {
    pub(super) fn name(self) -> &'static str {
        match self {
            Verb::Read => "read",
            Verb::Update => "update",
        }
    }

    fn statement(self) -> &'static str {
        match self {
            Verb::Read => "select value from keys where id = $1",
            Verb::Update => "update keys set value = value + 1 where id = $1",
        }
    }
}

/// The work of the clients.
#[derive(Deserialize, Serialize)]
pub(crate) struct KeysLoad {
    /// The statement with which each connection begins.
    pub(super) begin: Option<String>,
    pub(super) verb: Verb,
    pub(super) rows: u64,
}

impl Load for KeysLoad {
    type Work = KeysLoad;
    type Connection = (Client, Statement);
    type Draw = i64;

    fn new(work: KeysLoad) -> KeysLoad {
        work
    }

    async fn prepare(&self, client: Client) -> Result<(Client, Statement)> {
        if let Some(begin) = &self.begin {
            client.batch_execute(begin).await.with_context(|| begin.clone())?;
        }
        let statement = client.prepare(self.verb.statement()).await.context(self.verb.statement())?;
        Ok((client, statement))
    }

    fn draw(&self, random: &mut Pcg64) -> i64 {
        random.random_range(0..self.rows as i64)
    }

    async fn attempt(&self, (client, statement): &(Client, Statement), key: i64) -> Result<bool, Error> {
        let rows = match self.verb {
            Verb::Read => client.query(statement, &[&key]).await?.len() as u64,
            Verb::Update => client.execute(statement, &[&key]).await?,
        };
        Ok(rows == 1)
    }
}
