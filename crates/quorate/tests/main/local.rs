//! A program that embeds a cluster: its statements, its sessions, and the effects of dropped futures.

use std::{
    future::IntoFuture,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use quorate::{Db, Error, Local, RequestName, Strength, Value, Wait};

/// Starts a cluster with a client and a table of `count` rows.
fn with_rows(count: i32) -> (Local, Db) {
    let cluster = Local::start().wait().unwrap();
    let db = quorate::connect(cluster.addresses()).wait().unwrap();
    db.execute("create table t (id int primary key, v text)").wait().unwrap();
    for from in (0..count).step_by(500) {
        let rows: Vec<String> =
            (from..count.min(from + 500)).map(|id| format!("({id}, 'row {id}')")).collect();
        db.execute(&format!("insert into t values {}", rows.join(", "))).wait().unwrap();
    }
    (cluster, db)
}

fn count(db: &Db) -> i64 {
    let mut rows = db.query("select count(*) from t").wait().unwrap();
    rows.next().unwrap().get(0).unwrap()
}

#[test]
fn written_rows_are_read_at_every_strength() {
    let (_cluster, db) = with_rows(3);
    let changed = db.execute("update t set v = $1 where id >= $2").bind("new").bind(1).wait().unwrap();
    assert_eq!(changed, 2);
    let rows = db.query("select id, v from t where v = $1 order by id").bind("new").wait().unwrap();
    assert_eq!(rows.columns().iter().map(|column| &*column.ty).collect::<Vec<_>>(), ["integer", "text"]);
    let ids: Vec<i32> = rows.map(|row| row.get("id").unwrap()).collect();
    assert_eq!(ids, [1, 2]);
    for strength in Strength::ALL {
        // A weak read may return older rows, but every strength sees the table.
        let rows = db.read(strength).query("select * from t").wait();
        assert!(rows.is_ok(), "{strength}: {rows:?}");
    }
    let returned = db.query("insert into t values (7, null) returning v, id").wait().unwrap();
    let values: Vec<Vec<Value>> = returned.map(|row| row.values().to_vec()).collect();
    assert_eq!(values, [[Value::Null, Value::Int4(7)]]);
}

#[test]
fn an_error_says_what_may_have_happened() {
    let (_cluster, db) = with_rows(2);
    let refused = |text: &str| match db.execute(text).wait() {
        Err(Error::Rejected(rejection)) => rejection.sqlstate.unwrap(),
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(refused("insert into t values (1, 'again')"), "23505");
    assert_eq!(refused("select nothing from t"), "42703");
    assert_eq!(refused("begin"), "0A000");
    assert_eq!(refused("copy t from stdin"), "0A000");
    assert_eq!(refused("insert into t values ($1, '')"), "08P01");
    assert_eq!(count(&db), 2);
}

#[test]
fn a_write_that_was_named_is_done_once() {
    let (_cluster, db) = with_rows(0);
    let name = RequestName::made_up();
    let send = || db.execute("insert into t values (1, 'once')").request(name).wait();
    assert_eq!(send().unwrap(), 1);
    assert_eq!(send().unwrap(), 1, "it is told what the first attempt did");
    assert_eq!(count(&db), 1);
    // A name belongs to one statement.
    let other = db.execute("insert into t values (2, 'other')").request(name).wait();
    assert!(
        matches!(&other, Err(Error::Rejected(rejection)) if rejection.sqlstate.as_deref() == Some("22023")),
        "{other:?}"
    );
}

#[test]
fn a_session_keeps_prepared_statements_and_transactions() {
    let (_cluster, db) = with_rows(3);
    let mut session = db.session();
    session.execute("prepare one as select v from t where id = 1").wait().unwrap();
    let row = session.query("execute one").wait().unwrap().next().unwrap();
    assert_eq!(row.get::<&str>("v").unwrap(), "row 1");

    let mut transaction = db.begin().wait().unwrap();
    assert_eq!(transaction.execute("delete from t where id = 0").wait().unwrap(), 1);
    assert_eq!(transaction.execute("delete from t where id = 1").wait().unwrap(), 1);
    assert_eq!(transaction.query("select id from t").wait().unwrap().count(), 1);
    assert_eq!(count(&db), 3);
    transaction.rollback().wait().unwrap();
    assert_eq!(count(&db), 3);
}

#[test]
fn a_transaction_is_applied_whole_and_is_repeated_after_a_conflict() {
    let (_cluster, db) = with_rows(3);
    let runs = AtomicU32::new(0);
    let result = db
        .transaction(async |tx| {
            let mut rows = tx.query("select v from t where id = 0 for update").await?;
            let v: String = rows.next().unwrap().get(0)?;
            if runs.fetch_add(1, Ordering::Relaxed) == 0 {
                db.execute("update t set v = 'other' where id = 0").await?;
            }
            tx.execute("update t set v = $1 where id = 1").bind(v.clone()).await?;
            tx.execute("insert into t values (10, 'new')").await?;
            Ok(v)
        })
        .wait()
        .unwrap();
    assert_eq!((&*result, runs.load(Ordering::Relaxed)), ("other", 2));
    let ids = db.query("select id from t where v = 'other' order by id").wait().unwrap();
    assert_eq!(ids.map(|row| row.get::<i32>(0).unwrap()).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(count(&db), 4);
    let failed = db
        .transaction(async |tx| {
            tx.execute("delete from t").await?;
            tx.execute("insert into t values (0, 'a'), (0, 'b')").await
        })
        .wait();
    assert_eq!(failed.unwrap_err().sqlstate(), Some("23505"));
    assert_eq!(count(&db), 4);
    let dropped = db.begin().wait().unwrap().execute("delete from t").wait();
    assert_eq!(dropped.unwrap(), 4);
    assert_eq!(count(&db), 4);
}

#[test]
fn a_batch_is_one_write() {
    let (_cluster, db) = with_rows(3);
    let name = RequestName::made_up();
    let batch = || {
        [
            db.execute("insert into t values ($1, 'a'), (21, 'b')").bind(20).request(name),
            db.execute("update t set v = 'c' where id >= 20 or id = 0"),
            db.execute("delete from t where id = 1"),
        ]
    };
    assert_eq!(db.batch(batch()).wait().unwrap(), [2, 3, 1]);
    assert_eq!(db.batch(batch()).wait().unwrap(), [2, 3, 1], "it is answered from memory");
    assert_eq!(count(&db), 4);
    let failed = db.batch([db.execute("delete from t"), db.execute("insert into t values (9, ''), (9, '')")]);
    assert_eq!(failed.wait().unwrap_err().sqlstate(), Some("23505"));
    let refused = db.batch([db.execute("delete from t"), db.execute("select * from t")]).wait();
    assert_eq!(refused.unwrap_err().sqlstate(), Some("0A000"));
    assert_eq!(count(&db), 4);
    assert!(db.batch([]).wait().unwrap().is_empty());
}

#[test]
fn a_stream_that_is_dropped_ends_the_read() {
    let (_cluster, db) = with_rows(20_000);
    let mut stream = db.query("select id, v from t").stream().wait().unwrap();
    assert!(stream.next().wait().unwrap().is_some());
    drop(stream);
    let mut whole = db.query("select id from t").stream().wait().unwrap();
    let mut seen = 0;
    while whole.next().wait().unwrap().is_some() {
        seen += 1;
    }
    assert_eq!(seen, 20_000);
}

#[test]
fn a_write_that_is_dropped_unsent_changes_nothing() {
    let (_cluster, db) = with_rows(0);
    drop(db.execute("insert into t values (1, 'never')").into_future());
    assert_eq!(count(&db), 0);
}

#[test]
fn a_larger_cluster_keeps_rows_when_a_storage_process_is_killed() {
    let cluster = Local::builder().routers(3).storage(2).replicas(2).start().wait().unwrap();
    let db = quorate::connect(cluster.addresses()).wait().unwrap();
    db.execute("create table t (id int primary key, v text)").wait().unwrap();
    db.execute("insert into t values (1, 'kept')").wait().unwrap();
    let storage = cluster.nodes().last().unwrap().clone();
    storage.abandon().wait();
    let until = Instant::now() + Duration::from_secs(30);
    // A read may fail until the gateway has learnt that the killed process is gone.
    while !matches!(db.query("select * from t").wait(), Ok(rows) if rows.len() == 1) {
        assert!(Instant::now() < until, "the other replica answers");
    }
}
