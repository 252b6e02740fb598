//! Checks the calls with which each COPY ends at the backend.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{SinkExt, pin_mut};
use quorate_sql::{
    backend::{
        Analyzed, AnswerStream, Attempt, Backend, Catalog, ClientError, Definition, OperationError,
        RequestId, Strength, WriteName, refusal,
    },
    local::LocalBackend,
};
use quorate_table::{
    engine::Answer,
    operation::{LoadId, Operation, Select, TableTransaction, Trial},
};
use tokio_postgres::Client;

use super::Gateway;

/// Tables in this process, with a record of the calls that each COPY makes.
struct Observed {
    tables: LocalBackend,
    seen: Mutex<Vec<(&'static str, LoadId, WriteName)>>,
    /// Errors with which the next discards end, in order.
    faults: Mutex<VecDeque<OperationError>>,
    /// Number of rows that the backend loses from the next chunk.
    lost: Mutex<usize>,
}

impl Observed {
    fn new() -> Arc<Observed> {
        let (seen, faults, lost) = Default::default();
        Arc::new(Observed { tables: LocalBackend::new(), seen, faults, lost })
    }

    fn loads(&self, what: &str) -> Vec<LoadId> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|(kind, ..)| *kind == what).map(|(_, load, _)| *load).collect()
    }

    async fn wait_for_discards(&self, count: usize) -> Vec<LoadId> {
        for _ in 0..1000 {
            if self.loads("discard").len() >= count {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.loads("discard")
    }
}

#[async_trait]
impl Backend for Observed {
    fn catalog(&self) -> Arc<Catalog> {
        self.tables.catalog()
    }

    fn request_id(&self) -> RequestId {
        self.tables.request_id()
    }

    fn may_have_issued(&self, id: RequestId) -> bool {
        self.tables.may_have_issued(id)
    }

    async fn define(&self, id: RequestId, definitions: Vec<Definition>) -> Result<(), OperationError> {
        self.tables.define(id, definitions).await
    }

    async fn write(&self, name: WriteName, mut operation: Operation) -> Result<Vec<Answer>, OperationError> {
        let noted = match &mut operation {
            Operation::Stage { load, rows, .. } => {
                rows.drain(..std::mem::take(&mut *self.lost.lock().unwrap()));
                Some(("stage", *load))
            }
            Operation::Publish { load, .. } => Some(("publish", *load)),
            Operation::Discard { load, .. } => Some(("discard", *load)),
            _ => None,
        };
        if let Some((what, load)) = noted {
            self.seen.lock().unwrap().push((what, load, name));
            if what == "discard"
                && let Some(fault) = self.faults.lock().unwrap().pop_front()
            {
                return Err(fault);
            }
        }
        self.tables.write(name, operation).await
    }

    async fn transact(
        &self,
        name: WriteName,
        transaction: TableTransaction,
    ) -> Result<Vec<Answer>, OperationError> {
        for statement in transaction.statements() {
            if let Operation::Publish { load, .. } = &statement.operation {
                self.seen.lock().unwrap().push(("publish", *load, name));
            }
        }
        self.tables.transact(name, transaction).await
    }

    async fn attempt(&self, strength: Strength, trial: Trial) -> Result<Attempt, OperationError> {
        self.tables.attempt(strength, trial).await
    }

    async fn read(&self, strength: Strength, select: &Select) -> Result<AnswerStream, OperationError> {
        self.tables.read(strength, select).await
    }

    async fn analyze(&self, strength: Strength, select: &Select) -> Result<Vec<Analyzed>, OperationError> {
        self.tables.analyze(strength, select).await
    }

    fn explain(&self, operation: &Operation) -> Vec<String> {
        self.tables.explain(operation)
    }
}

async fn load(client: &Client, data: &'static str) -> Result<u64, tokio_postgres::Error> {
    let sink = client.copy_in("copy t from stdin").await?;
    pin_mut!(sink);
    sink.send(Bytes::from_static(data.as_bytes())).await?;
    sink.finish().await
}

async fn table(backend: &Arc<Observed>) -> (Gateway, Client) {
    let gateway = Gateway::on(backend.clone()).await;
    let client = gateway.connect().await;
    client.batch_execute("create table t (n int)").await.unwrap();
    (gateway, client)
}

fn code(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("", |code| code.code())
}

#[tokio::test]
async fn a_repeated_copy_is_applied_once_and_leaves_no_staged_rows() {
    let backend = Observed::new();
    let (_gateway, client) = table(&backend).await;
    for _ in 0..2 {
        client.batch_execute("set quorate.request_id = 'ff-7'").await.unwrap();
        assert_eq!(load(&client, "1\n2\n3\n").await.unwrap(), 3);
    }
    assert_eq!(client.query_one("select count(*) from t", &[]).await.unwrap().get::<_, i64>(0), 3);
    let staged = backend.loads("stage");
    assert_eq!(staged.len(), 2);
    assert_eq!(backend.wait_for_discards(2).await, staged, "the second load was answered from memory");
    // No earlier client can have sent this load, because the load has no id. The gateway publishes it, and
    // has nothing to discard.
    assert_eq!(load(&client, "4\n").await.unwrap(), 1);
    client.batch_execute("select 1").await.unwrap();
    assert_eq!(backend.loads("discard").len(), 2);
}

#[tokio::test]
async fn a_failed_discard_is_repeated_under_another_number() {
    let backend = Observed::new();
    let (_gateway, client) = table(&backend).await;
    let errors = [
        ClientError::Rejected(refusal::range(0)),
        ClientError::Expired,
        ClientError::Rejected(refusal::PLACEMENT_CHANGED),
    ];
    backend.faults.lock().unwrap().extend(errors.map(OperationError::from_client));
    assert_eq!(code(&load(&client, "1\ntwo\n").await.unwrap_err()), "22P02");
    // The failed load staged nothing, so the gateway has nothing to discard.
    assert_eq!(backend.loads("stage").len(), 0);
    let mut data = String::new();
    for n in 0..9000 {
        data += &format!("{n}\n");
    }
    data += "nine thousand\n";
    assert_eq!(code(&load(&client, data.leak()).await.unwrap_err()), "22P02");
    let discards = backend.wait_for_discards(4).await;
    assert_eq!(discards.len(), 4);
    assert!(discards.iter().all(|load| *load == discards[0]));
    let seen = backend.seen.lock().unwrap();
    let mut numbers: Vec<u64> =
        seen.iter().filter(|(what, ..)| *what == "discard").map(|(.., name)| name.request.number).collect();
    numbers.dedup();
    assert_eq!(numbers.len(), 4, "each attempt has a number that was drawn for it: {numbers:?}");
    let staged =
        seen.iter().filter(|(what, ..)| *what == "stage").map(|(.., name)| name.request.number).max();
    assert!(numbers[0] > staged.unwrap(), "drawn when it is used, and not before");
}

/// In a block, COMMIT publishes the rows. However else the block ends, the rows are discarded.
#[tokio::test]
async fn a_copy_in_a_block_is_published_by_commit_or_discarded() {
    let backend = Observed::new();
    let (_gateway, client) = table(&backend).await;
    client.batch_execute("begin").await.unwrap();
    assert_eq!(load(&client, "1\n2\n").await.unwrap(), 2);
    assert_eq!(backend.loads("publish").len(), 0);
    client.batch_execute("commit").await.unwrap();
    assert_eq!(backend.loads("publish").len(), 1);
    for end in ["rollback", "select 1 / 0; commit", "rollback to s; commit"] {
        client.batch_execute("begin; savepoint s").await.unwrap();
        assert_eq!(load(&client, "3\n").await.unwrap(), 1);
        let before = backend.loads("discard").len();
        let _ = client.batch_execute(end).await;
        let _ = client.batch_execute("rollback").await;
        assert_eq!(backend.wait_for_discards(before + 1).await.len(), before + 1, "{end}");
    }
    assert_eq!(client.query_one("select count(*) from t", &[]).await.unwrap().get::<_, i64>(0), 2);
    assert_eq!(backend.loads("publish").len(), 1);
}

#[tokio::test]
async fn a_copy_that_lost_rows_fails() {
    let backend = Observed::new();
    let (_gateway, client) = table(&backend).await;
    *backend.lost.lock().unwrap() = 2;
    let error = load(&client, "1\n2\n3\n").await.unwrap_err();
    assert_eq!((code(&error), error.as_db_error().unwrap().message()), ("XX001", "1 of 3 rows were loaded"));
}
