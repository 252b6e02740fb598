//! The transactions of the load: transfers between accounts.

use anyhow::{Context, Result};
use rand::RngExt;
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, Error, Statement};

use super::super::{sql_load::Load, zipf::Zipf};

/// The work of the clients.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Work {
    pub(super) kind: TransactionKind,
    /// Transactions that each connection has under way at a time.
    pub(super) pipeline: usize,
    pub(super) accounts: u64,
    pub(super) zipf: f64,
}

/// The transaction that the clients repeat.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) enum TransactionKind {
    /// One update of one row.
    KeyUpdate,
    /// Two updates in one message.
    OneMessage,
    /// BEGIN, two updates and COMMIT, each sent after the answer to the one before.
    Conversation,
    /// As `OneMessage`, but few accounts are frequent.
    Contended,
    /// BEGIN, SELECT … FOR UPDATE, an update and COMMIT, always of the same row.
    HotRow,
}

impl TransactionKind {
    /// Returns the number of updates of a transaction.
    pub(super) fn updates(self) -> i64 {
        match self {
            TransactionKind::KeyUpdate | TransactionKind::HotRow => 1,
            TransactionKind::OneMessage | TransactionKind::Conversation | TransactionKind::Contended => 2,
        }
    }
}

const UPDATE: &str = "update accounts set cents = cents + $2, moves = moves + 1 where id = $1";
const LOCK: &str = "select cents from accounts where id = $1 for update";

/// A connection with its prepared statements.
pub(crate) struct AccountsConnection {
    client: Client,
    update: Statement,
    lock: Statement,
}

/// Two accounts, and the cents that go from one to the other.
#[derive(Clone, Copy)]
pub(crate) struct Transfer {
    from: i64,
    to: i64,
    cents: i64,
}

/// The load of transfers.
pub(crate) struct TransactionsLoad {
    work: Work,
    /// The law by which accounts are drawn; `None` draws each account alike.
    zipf: Option<Zipf>,
}

impl Load for TransactionsLoad {
    type Work = Work;
    type Connection = AccountsConnection;
    type Draw = Transfer;

    fn new(work: Work) -> TransactionsLoad {
        let is_contended = work.kind == TransactionKind::Contended;
        let zipf = is_contended.then(|| Zipf::new(work.accounts as usize, work.zipf));
        TransactionsLoad { work, zipf }
    }

    fn pipeline(&self) -> usize {
        self.work.pipeline
    }

    async fn prepare(&self, client: Client) -> Result<AccountsConnection> {
        let update = client.prepare(UPDATE).await.context(UPDATE)?;
        let lock = client.prepare(LOCK).await.context(LOCK)?;
        Ok(AccountsConnection { client, update, lock })
    }

    fn draw(&self, random: &mut Pcg64) -> Transfer {
        let from = self.account(random);
        let to = loop {
            let to = self.account(random);
            if to != from {
                break to;
            }
        };
        Transfer { from, to, cents: random.random_range(1..100) }
    }

    async fn attempt(&self, connection: &AccountsConnection, transfer: Transfer) -> Result<bool, Error> {
        let AccountsConnection { client, update, .. } = connection;
        let Transfer { from, to, cents } = transfer;
        match self.work.kind {
            TransactionKind::KeyUpdate => client.execute(update, &[&from, &0_i64]).await.map(drop)?,
            TransactionKind::OneMessage | TransactionKind::Contended => {
                let change = |id: i64, cents: i64| {
                    format!("update accounts set cents = cents + {cents}, moves = moves + 1 where id = {id}")
                };
                client.batch_execute(&format!("{}; {}", change(from, -cents), change(to, cents))).await?;
            }
            TransactionKind::Conversation | TransactionKind::HotRow => {
                client.batch_execute("begin").await?;
                if let Err(error) = statements(connection, self.work.kind, transfer).await {
                    client.batch_execute("rollback").await?;
                    return Err(error);
                }
                client.batch_execute("commit").await?;
            }
        }
        Ok(true)
    }
}

impl TransactionsLoad {
    fn account(&self, random: &mut Pcg64) -> i64 {
        match &self.zipf {
            Some(zipf) => zipf.draw(random) as i64,
            None => random.random_range(0..self.work.accounts as i64),
        }
    }
}

/// Executes the statements of a block.
async fn statements(
    connection: &AccountsConnection,
    kind: TransactionKind,
    transfer: Transfer,
) -> Result<(), Error> {
    /// The account that all clients lock.
    const HOT: i64 = 0;
    let AccountsConnection { client, update, lock } = connection;
    let Transfer { from, to, cents } = transfer;
    if kind == TransactionKind::HotRow {
        client.query_one(lock, &[&HOT]).await?;
        return client.execute(update, &[&HOT, &0_i64]).await.map(drop);
    }
    client.execute(update, &[&from, &-cents]).await?;
    client.execute(update, &[&to, &cents]).await.map(drop)
}
