//! Writes that are repeated under a request id, while the cluster gives no definite answer.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use quorate_sql::{
    backend::{
        Analyzed, AnswerStream, Attempt, Backend, Catalog, ClientError, Definition, OperationError,
        RequestId, Strength, WriteName, refusal,
    },
    local::LocalBackend,
    session::Session,
};
use quorate_table::{
    engine::Answer,
    operation::{Operation, Select, TableTransaction, Trial},
};

use super::{
    Gateway,
    raw::{Raw, bind, execute, kinds, parse, query, sync},
};

/// The way in which a write ends.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The write is applied, but its answer is lost.
    AppliedSilently,
    NotSent,
    Unavailable,
    Rejected,
    Expired,
}

/// Tables whose next writes end in the given ways. The writes after these succeed.
struct Troubled {
    tables: Arc<LocalBackend>,
    ways: Mutex<VecDeque<Way>>,
    /// The statements that another session executes, one after each trial.
    meddling: Mutex<VecDeque<&'static str>>,
}

impl Troubled {
    fn new() -> Arc<Troubled> {
        Arc::new(Troubled { tables: Arc::default(), ways: Mutex::default(), meddling: Mutex::default() })
    }

    /// Executes the next statement of the other session.
    async fn meddle(&self) {
        let sql = self.meddling.lock().unwrap().pop_front();
        if let Some(sql) = sql {
            let user = || "other".to_owned();
            let mut session = Session::new(self.tables.clone(), Arc::default(), user(), user(), 1);
            let prepared = session.prepare(sql, Vec::new()).unwrap();
            session.execute(&prepared, &[]).await.unwrap();
        }
    }

    /// Lets a write end in the next of the given ways.
    async fn trouble(
        &self,
        name: WriteName,
        write: impl Future<Output = Result<Vec<Answer>, OperationError>>,
    ) -> Result<Vec<Answer>, OperationError> {
        let way = self.ways.lock().unwrap().pop_front();
        match way {
            None => write.await,
            Some(Way::AppliedSilently) => {
                write.await?;
                Err(OperationError::from_client(ClientError::MaybeApplied { request: name.request }))
            }
            Some(Way::NotSent) => Err(OperationError::not_sent("no router took it")),
            Some(Way::Unavailable) => {
                Err(OperationError::from_client(ClientError::Rejected(refusal::range(0))))
            }
            Some(Way::Rejected) => {
                Err(OperationError::from_client(ClientError::Rejected(refusal::PLACEMENT_CHANGED)))
            }
            Some(Way::Expired) => Err(OperationError::from_client(ClientError::Expired)),
        }
    }
}

#[async_trait]
impl Backend for Troubled {
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

    async fn write(&self, name: WriteName, operation: Operation) -> Result<Vec<Answer>, OperationError> {
        self.trouble(name, self.tables.write(name, operation)).await
    }

    async fn transact(
        &self,
        name: WriteName,
        transaction: TableTransaction,
    ) -> Result<Vec<Answer>, OperationError> {
        self.trouble(name, self.tables.transact(name, transaction)).await
    }

    async fn attempt(&self, strength: Strength, trial: Trial) -> Result<Attempt, OperationError> {
        let attempt = self.tables.attempt(strength, trial).await;
        self.meddle().await;
        attempt
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

/// Sends the statement. An error is returned as its code and the request id in its detail.
async fn send(client: &tokio_postgres::Client, sql: &str) -> Result<u64, (String, Option<String>)> {
    client.execute(sql, &[]).await.map_err(|error| {
        let error = error.as_db_error().expect("the server refused it");
        let (_, id) = error.detail().and_then(|detail| detail.split_once("Request id: ")).unzip();
        let id = id.map(|id: &str| id.trim_end_matches('.').to_owned());
        if error.code().code() == "40003" {
            assert!(error.hint().is_some_and(|hint| hint.contains("quorate.request_id")), "{error:?}");
        }
        (error.code().code().to_owned(), id)
    })
}

async fn count(client: &tokio_postgres::Client) -> i64 {
    client.query_one("select count(*) from log", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_repeated_write_has_an_unknown_outcome_until_the_ranges_answer() {
    let open = [Way::NotSent, Way::Unavailable, Way::Rejected, Way::Expired];
    let ways = [&[Way::AppliedSilently][..], &open, &[Way::NotSent, Way::Unavailable]].concat();
    let backend = Troubled::new();
    let gateway = Gateway::on(backend.clone()).await;
    let client = gateway.connect().await;
    client.batch_execute("create table log (n int)").await.unwrap();
    backend.ways.lock().unwrap().extend(ways);

    let insert = "insert into log values (1)";
    let Err((code, Some(id))) = send(&client, insert).await else { panic!("its answer is lost") };
    assert_eq!(code, "40003");
    client.batch_execute(&format!("set quorate.request_id = '{id}'")).await.unwrap();
    // Like a driver, the client repeats the statement until it gets the outcome.
    for way in open {
        assert_eq!(send(&client, insert).await, Err(("40003".to_owned(), Some(id.clone()))), "{way:?}");
    }
    // The next two ways apply to statements of another session, which learns that nothing was applied.
    let other = gateway.connect().await;
    let fresh = "insert into log values (2)";
    assert!(matches!(send(&other, fresh).await, Err((code, _)) if code == "40001"));
    assert!(matches!(send(&other, fresh).await, Err((code, _)) if code == "58000"));
    assert_eq!(count(&client).await, 1);
    // The id belongs to the first statement. Another statement is refused and does not use up the id.
    assert!(matches!(send(&client, fresh).await, Err((code, _)) if code == "22023"));
    assert_eq!(send(&client, insert).await, Ok(1));
    assert_eq!(count(&client).await, 1);
    // The client knows the outcome, so its next statement is a new write.
    assert_eq!(send(&client, insert).await, Ok(1));
    assert_eq!(count(&client).await, 2);
}

/// The COMMIT of a block used a request id, and the end of the block restores the settings that SET LOCAL
/// changed. The end must not restore the id: the next write would pass for a repetition and would have no
/// effect.
#[tokio::test]
async fn the_end_of_a_block_does_not_restore_a_used_request_id() {
    let tables = LocalBackend::new();
    let gateway = Gateway::on(Arc::new(tables)).await;
    let client = gateway.connect().await;
    client.batch_execute("create table log (n int)").await.unwrap();
    let insert = "insert into log values (1)";
    let local = "set local quorate.request_id = '5e0c1d2f3a4b5c6d7e8f9a0b1c2d3e4f-9'";
    let blocks = [
        &["begin", insert, "commit"][..],
        &["begin", "savepoint s", insert, "rollback to s", insert, "commit"],
        &["begin", local, insert, "commit"],
    ];
    let mut expected = 0;
    for (number, block) in blocks.into_iter().enumerate() {
        let id = format!("5e0c1d2f3a4b5c6d7e8f9a0b1c2d3e4f-{number}");
        client.batch_execute(&format!("set quorate.request_id = '{id}'")).await.unwrap();
        for sql in block {
            client.batch_execute(sql).await.unwrap();
        }
        expected += 1;
        assert_eq!(count(&client).await, expected, "{block:?}");
        let set: String = client.query_one("show quorate.request_id", &[]).await.unwrap().get(0);
        // Only SET LOCAL leaves the id from before the block unused, because the write used the local id.
        assert_eq!(set, if block[1].starts_with("set local") { id } else { String::new() }, "{block:?}");
        client.batch_execute("reset quorate.request_id").await.unwrap();
        assert_eq!(send(&client, insert).await, Ok(1));
        expected += 1;
        assert_eq!(count(&client).await, expected, "{block:?}");
    }
}

/// The outcome of a COMMIT is unknown. The client repeats the whole block under the id of the error, and the
/// block is applied once.
#[tokio::test]
async fn a_block_whose_commit_has_an_unknown_outcome_is_applied_once() {
    let backend = Troubled::new();
    let gateway = Gateway::on(backend.clone()).await;
    let client = gateway.connect().await;
    client.batch_execute("create table log (n int); insert into log values (0)").await.unwrap();
    let block = "begin; insert into log values (1); delete from log where n = 7";
    backend.ways.lock().unwrap().push_back(Way::AppliedSilently);
    client.batch_execute(block).await.unwrap();
    let Err((code, Some(id))) = send(&client, "commit").await else { panic!("the outcome is unknown") };
    assert_eq!(code, "40003");
    let named = format!("set quorate.request_id = '{id}'");
    // Another block is refused under this id, and changes nothing.
    client.batch_execute(&format!("{named}; begin; insert into log values (1)")).await.unwrap();
    assert_eq!(send(&client, "commit").await, Err(("22023".to_owned(), Some(id))));
    assert_eq!(count(&client).await, 2);
    client.batch_execute(block).await.unwrap();
    client.batch_execute("commit").await.unwrap();
    assert_eq!(count(&client).await, 2);
    // The cluster did not take the COMMIT. Nothing was applied, and the block is over.
    for way in [Way::NotSent, Way::Rejected] {
        backend.ways.lock().unwrap().push_back(way);
        client.batch_execute(block).await.unwrap();
        assert!(matches!(send(&client, "commit").await, Err((code, _)) if code == "40001"), "{way:?}");
        assert_eq!(count(&client).await, 2);
    }
}

/// The outcome of statements that came together is unknown. The client repeats them under the id of the
/// error: all of them together or, if only one of them is a write, this write alone.
#[tokio::test]
async fn statements_of_one_message_have_one_request_id() {
    let backend = Troubled::new();
    let gateway = Gateway::on(backend.clone()).await;
    let client = gateway.connect().await;
    client.batch_execute("create table log (n int)").await.unwrap();
    let two = "insert into log values (1); insert into log values (2)";
    let one = "select 1; insert into log values (3)";
    for (sql, again, expected) in [(two, two, 2), (one, one, 3), (one, "insert into log values (3)", 4)] {
        backend.ways.lock().unwrap().push_back(Way::AppliedSilently);
        let error = client.batch_execute(sql).await.unwrap_err();
        let error = error.as_db_error().expect("the outcome is unknown");
        assert_eq!(error.code().code(), "40003");
        let (_, id) = error.detail().unwrap().split_once("Request id: ").unwrap();
        let set = format!("set quorate.request_id = '{}'", id.trim_end_matches('.'));
        // Other statements are refused under this id, and change nothing.
        let other = client.batch_execute(&format!("{set}; insert into log values (8); {again}")).await;
        assert_eq!(other.unwrap_err().code().unwrap().code(), "22023");
        assert_eq!(count(&client).await, expected);
        let alone = again.starts_with("insert") && !again.contains(';');
        if alone {
            client.batch_execute(&set).await.unwrap();
            client.batch_execute(again).await.unwrap();
        } else {
            client.batch_execute(&format!("{set}; {again}")).await.unwrap();
        }
        assert_eq!(count(&client).await, expected, "{sql}");
    }
    for way in [Way::NotSent, Way::Rejected] {
        backend.ways.lock().unwrap().push_back(way);
        let error = client.batch_execute(two).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "40001");
        assert_eq!(count(&client).await, 4, "{way:?}");
    }
}

/// Statements that come together read rows that they wrote, and another session changes these rows before the
/// statements take effect. The gateway repeats the statements, because their client has received nothing.
#[tokio::test]
async fn statements_of_one_message_are_repeated_after_a_conflict() {
    let backend = Troubled::new();
    let gateway = Gateway::on(backend.clone()).await;
    let client = gateway.connect().await;
    client.batch_execute("create table t (id int primary key, n int)").await.unwrap();
    let (mut raw, _) = Raw::begin(gateway.address).await;
    let update = "update t set n = n + 10 where id = 1";
    let read = "select n from t where id = 1";
    let run = |sql: &str| [parse("", sql), bind("", &[], &[], &[]), execute("", 0)].concat();
    let whole = format!("{update}; {read}; select 'end'");
    let block = format!("begin; {update}; {read} for update; commit; select 'end'");
    let named =
        |number| format!("set quorate.request_id = '5e0c1d2f3a4b5c6d7e8f9a0b1c2d3e4f-{number}'; {whole}");
    for (what, bytes, trials, answers) in [
        ("a message", query(&whole), 1, "CTDCTDCZ"),
        ("a block in a message", query(&block), 1, "CCTDCCTDCZ"),
        ("a pipeline", [run(update), run(read), run("select 'end'"), sync()].concat(), 1, "12C12DC12DCZ"),
        ("a message with an id of its own", Vec::new(), 0, "CCTDCTDCZ"),
    ] {
        for meddling in [0, 1, 3, 8, 9] {
            client.batch_execute("truncate t; insert into t values (1, 0)").await.unwrap();
            let other = std::iter::repeat_n("update t set n = n + 1 where id = 1", meddling);
            *backend.meddling.lock().unwrap() = other.collect();
            let bytes = if trials == 0 { query(&named(meddling)) } else { bytes.clone() };
            raw.send(&bytes).await.unwrap();
            let said = raw.until_ready().await;
            let n: i32 = client.query_one(read, &[]).await.unwrap().get(0);
            if meddling <= 8 * trials {
                assert_eq!(kinds(&said), answers, "{what}, {meddling} conflicts");
                let row = said.iter().find(|said| said.kind == 'D').unwrap().row()[0].unwrap();
                assert_eq!(row, (meddling + 10).to_string().as_bytes(), "{what}: the answer is true");
                assert_eq!(n, meddling as i32 + 10, "{what}");
            } else {
                let error = said.iter().find(|said| said.kind == 'E').expect("a conflict");
                assert_eq!(error.field(b'C'), "40001", "{what}");
                assert_eq!(n, if trials == 0 { 1 } else { meddling as i32 }, "{what}: nothing was applied");
            }
        }
    }
}

#[tokio::test]
async fn a_request_id_is_refused_for_another_statement() {
    let backend = Troubled::new();
    let gateway = Gateway::on(backend.clone()).await;
    let client = gateway.connect().await;
    client.batch_execute("create table log (n int)").await.unwrap();
    backend.ways.lock().unwrap().extend([Way::NotSent, Way::AppliedSilently]);
    let id = "5e0c1d2f3a4b5c6d7e8f9a0b1c2d3e4f-1";
    client.batch_execute(&format!("set quorate.request_id = '{id}'")).await.unwrap();
    let insert = "insert into log values (1)";
    for _ in 0..2 {
        assert_eq!(send(&client, insert).await, Err(("40003".to_owned(), Some(id.to_owned()))));
    }
    // The client loses its connection, and repeats the write with the same id on another connection.
    let other = gateway.connect().await;
    other.batch_execute(&format!("set quorate.request_id = '{id}'")).await.unwrap();
    assert_eq!(send(&other, insert).await, Ok(1));
    assert_eq!(count(&other).await, 1);
    other.batch_execute(&format!("set quorate.request_id = '{id}'")).await.unwrap();
    assert!(matches!(send(&other, "insert into log values (2)").await, Err((code, _)) if code == "22023"));
    other.batch_execute("reset quorate.request_id").await.unwrap();
    assert_eq!(send(&other, "insert into log values (2)").await, Ok(1));
}
