//! Tests statements that come together, in one Query or before one Sync: they are one transaction.

use super::{
    Gateway,
    raw::{Raw, Said, bind, execute, kinds, message, parse, query, sync},
};

/// Returns the columns of the rows among these messages.
fn rows(said: &[Said]) -> Vec<Vec<String>> {
    let text =
        |field: Option<&[u8]>| field.map_or("null".to_owned(), |field| String::from_utf8_lossy(field).into());
    said.iter()
        .filter(|said| said.kind == 'D')
        .map(|said| said.row().into_iter().map(text).collect())
        .collect()
}

/// Returns the tags of the statements among these messages.
fn tags(said: &[Said]) -> Vec<String> {
    let tag = |said: &Said| String::from_utf8_lossy(said.body.strip_suffix(b"\0").unwrap()).into_owned();
    said.iter().filter(|said| said.kind == 'C').map(tag).collect()
}

/// Sends a Query. Returns the SQLSTATE of its error, or `00000`, and the state of the block.
async fn outcome(raw: &mut Raw, sql: &str) -> (String, char) {
    raw.send(&query(sql)).await.unwrap();
    let said = raw.until_ready().await;
    let error = said.iter().find(|said| said.kind == 'E').map(|said| said.field(b'C'));
    (error.unwrap_or("00000".to_owned()), char::from(said.last().unwrap().body[0]))
}

/// Returns the keys in the table `t`.
async fn keys(raw: &mut Raw) -> Vec<String> {
    raw.send(&query("select id from t order by id")).await.unwrap();
    rows(&raw.until_ready().await).concat()
}

async fn table() -> (Gateway, Raw, Raw) {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    client.batch_execute("create table t (id int primary key, n int not null default 0)").await.unwrap();
    let (one, _) = Raw::begin(gateway.address).await;
    let (other, _) = Raw::begin(gateway.address).await;
    (gateway, one, other)
}

/// Encodes the messages that execute a statement without parameters.
fn run(sql: &str) -> Vec<u8> {
    [parse("", sql), bind("", &[], &[], &[]), execute("", 0)].concat()
}

#[tokio::test]
async fn the_statements_of_a_message_take_effect_together() {
    let (_gateway, mut one, mut other) = table().await;
    one.send(&query("insert into t values (1), (2); update t set n = 5; delete from t where id = 2"))
        .await
        .unwrap();
    let said = one.until_ready().await;
    assert_eq!(tags(&said), ["INSERT 0 2", "UPDATE 2", "DELETE 1"]);
    assert_eq!(said.last().unwrap().body, b"I");
    // Each message fails in another way, and changes nothing.
    for (sql, code) in [
        ("insert into t values (3); insert into t values (1)", "23505"),
        ("insert into t values (1); insert into t values (3)", "23505"),
        ("insert into t values (3); insert into t values (4, null)", "23502"),
        ("insert into t values (3); select 1/0", "22012"),
        ("insert into t values (3); insert into nowhere values (1)", "42P01"),
        ("insert into t values (1); insert into nowhere values (1)", "23505"),
        ("insert into t values (3); select nothing from t", "42703"),
        ("insert into t values (3); savepoint s", "25P01"),
        ("insert into t values (3); rollback to s", "25P01"),
        ("set datestyle = 'iso'; insert into t values (3); set quorate.read = 'nothing'", "22023"),
    ] {
        assert_eq!(outcome(&mut one, sql).await, (code.to_owned(), 'I'), "{sql}");
        assert_eq!(keys(&mut other).await, ["1"], "{sql}");
    }
    // The answers before an error are PostgreSQL's.
    one.send(&query("insert into t values (3) returning id; update t set n = 1; select n / 0 from t"))
        .await
        .unwrap();
    let said = one.until_ready().await;
    assert_eq!(tags(&said), ["INSERT 0 1", "UPDATE 2"]);
    assert_eq!(rows(&said), [["3"]]);
    assert_eq!(said[said.len() - 2].field(b'C'), "22012");
    assert_eq!(keys(&mut other).await, ["1"]);
    // If a message fails, its change of a setting is rolled back.
    assert_eq!(outcome(&mut one, "set application_name = 'lost'; select 1/0").await.0, "22012");
    one.send(&query("show application_name")).await.unwrap();
    assert_eq!(rows(&one.until_ready().await), [[""]]);
}

#[tokio::test]
async fn a_read_sees_the_writes_before_it_and_answers_come_in_order() {
    let (_gateway, mut one, _) = table().await;
    let sql = "insert into t values (1, 10), (2, 20); select n from t where id = 1; \
               update t set n = n + 1 returning id, n; select count(*), sum(n) from t; select 'end'";
    for level in ["read committed", "serializable"] {
        one.send(&query(&format!("set default_transaction_isolation = '{level}'"))).await.unwrap();
        one.until_ready().await;
        one.send(&query(sql)).await.unwrap();
        let said = one.until_ready().await;
        assert_eq!(kinds(&said), "CTDCTDDCTDCTDCZ", "{level}");
        assert_eq!(tags(&said), ["INSERT 0 2", "SELECT 1", "UPDATE 2", "SELECT 1", "SELECT 1"]);
        let mut updated = rows(&said)[1..3].to_vec();
        updated.sort();
        assert_eq!(updated, [["1", "11"], ["2", "21"]]);
        assert_eq!(rows(&said)[0], ["10"]);
        assert_eq!(rows(&said)[3..], [vec!["2".to_owned(), "32".to_owned()], vec!["end".to_owned()]]);
        assert_eq!(outcome(&mut one, "truncate t").await.0, "00000");
    }
    // The read returns more than may wait for the result of the write. So the session tries the write, and
    // the rows of the read stream.
    let values: Vec<String> = (0..20_000).map(|id| format!("({id})")).collect();
    assert_eq!(
        outcome(&mut one, &format!("insert into t (id) values {}", values.join(", "))).await.0,
        "00000"
    );
    one.send(&query("update t set n = 7 where id < 100; select id, n from t; delete from t where n = 7"))
        .await
        .unwrap();
    let said = one.until_ready().await;
    assert_eq!(tags(&said), ["UPDATE 100", "SELECT 20000", "DELETE 100"]);
}

#[tokio::test]
async fn begin_and_commit_divide_a_message() {
    let (_gateway, mut one, mut other) = table().await;
    // BEGIN takes the statements before it into its block.
    assert_eq!(outcome(&mut one, "insert into t values (1); begin; insert into t values (2)").await.1, 'T');
    assert_eq!(outcome(&mut one, "rollback").await.1, 'I');
    assert!(keys(&mut other).await.is_empty());
    // COMMIT and ROLLBACK end the part before them.
    let sql = "begin; insert into t values (1); insert into t values (2); commit; insert into t values (1)";
    one.send(&query(sql)).await.unwrap();
    let said = one.until_ready().await;
    assert_eq!(kinds(&said), "CCCCEZ");
    assert!(said[4].field(b'D').contains("applied up to its last COMMIT"), "{}", said[4].field(b'D'));
    assert_eq!(keys(&mut other).await, ["1", "2"]);
    one.send(&query("insert into t values (3); rollback; insert into t values (4)")).await.unwrap();
    let said = one.until_ready().await;
    assert_eq!(kinds(&said), "CNCCZ", "there is a warning, as in PostgreSQL");
    assert_eq!(keys(&mut other).await, ["1", "2", "4"]);
    assert_eq!(
        outcome(&mut one, "insert into t values (5); commit; insert into t values (1)").await.0,
        "23505"
    );
    assert_eq!(keys(&mut other).await, ["1", "2", "4", "5"]);
    // A block that stays open has results to compare.
    assert_eq!(
        outcome(&mut one, "begin; update t set n = 1; update t set n = n + 1 where id = 1").await.1,
        'T'
    );
    assert_eq!(outcome(&mut other, "delete from t where id = 1").await.0, "00000");
    assert_eq!(outcome(&mut one, "commit").await, ("40001".to_owned(), 'I'));
    // A block that fails in a message stays failed in later messages. A rollback to a savepoint restores the
    // effects of the statements before it.
    assert_eq!(outcome(&mut one, "begin; insert into t values (6); insert into t values (2)").await.1, 'E');
    assert_eq!(outcome(&mut one, "commit; insert into t values (7)").await, ("00000".to_owned(), 'I'));
    assert_eq!(keys(&mut other).await, ["2", "4", "5", "7"]);
    let nested =
        "begin; insert into t values (8); savepoint s; insert into t values (9); insert into t values (2)";
    assert_eq!(outcome(&mut one, nested).await, ("23505".to_owned(), 'E'));
    assert_eq!(outcome(&mut one, "rollback to s; commit").await, ("00000".to_owned(), 'I'));
    assert_eq!(keys(&mut other).await, ["2", "4", "5", "7", "8"]);
}

#[tokio::test]
async fn a_definition_ends_the_part_before_it() {
    let (_gateway, mut one, mut other) = table().await;
    let sql = "insert into t values (1); create table u (id int); insert into u values (1); insert into t values (1)";
    one.send(&query(sql)).await.unwrap();
    let said = one.until_ready().await;
    assert_eq!(kinds(&said), "CCEZ", "the error takes the place of the first result of its part");
    assert!(
        said[2].field(b'D').contains("applied up to its last COMMIT, COPY or definition"),
        "{}",
        said[2].field(b'D')
    );
    assert_eq!(keys(&mut other).await, ["1"]);
    other.send(&query("select * from u")).await.unwrap();
    assert!(rows(&other.until_ready().await).is_empty(), "the part behind the definition is rolled back");
    // The INSERT before the DROP TABLE fails, so the table stays.
    assert_eq!(outcome(&mut one, "insert into t values (1); drop table u").await.0, "23505");
    assert_eq!(outcome(&mut one, "select * from u").await.0, "00000");
}

#[tokio::test]
async fn a_pipeline_takes_effect_together() {
    let (_gateway, mut one, mut other) = table().await;
    let insert = |id: u32| run(&format!("insert into t values ({id})"));
    one.send(&[insert(1), insert(2), run("select id from t order by id"), insert(3), sync()].concat())
        .await
        .unwrap();
    let said = one.until_ready().await;
    assert_eq!(kinds(&said), "12C12C12DDC12CZ");
    assert_eq!(rows(&said).concat(), ["1", "2"]);
    assert_eq!(keys(&mut other).await, ["1", "2", "3"]);
    // Each pipeline fails in another way, and changes nothing.
    for (what, failing, seen) in [
        ("a duplicate key", insert(1), "12C12E"),
        ("a text that is no statement", parse("", "insert intoo"), "12CE"),
        ("a missing parameter", [parse("", "select $1::int"), bind("", &[], &[], &[])].concat(), "12C1E"),
        ("a missing portal", execute("nowhere", 0), "12CE"),
    ] {
        one.send(&[insert(4), failing, insert(5), sync()].concat()).await.unwrap();
        let said = one.until_ready().await;
        let seen = if what == "a duplicate key" { "12E".to_owned() } else { seen.to_owned() };
        assert_eq!(kinds(&said), format!("{seen}Z"), "{what}");
        assert_eq!(said.last().unwrap().body, b"I", "{what}");
        assert_eq!(keys(&mut other).await, ["1", "2", "3"], "{what}");
    }
    // Pieces arrive one by one. Nothing is applied before Sync, and a client that vanishes leaves nothing.
    one.send(&insert(4)).await.unwrap();
    assert_eq!(keys(&mut other).await, ["1", "2", "3"]);
    one.send(&insert(5)).await.unwrap();
    assert_eq!(keys(&mut other).await, ["1", "2", "3"]);
    one.send(&sync()).await.unwrap();
    assert_eq!(kinds(&one.until_ready().await), "12C12CZ");
    assert_eq!(keys(&mut other).await, ["1", "2", "3", "4", "5"]);
    one.send(&[insert(6), insert(7)].concat()).await.unwrap();
    drop(one);
    assert_eq!(keys(&mut other).await, ["1", "2", "3", "4", "5"]);
}

#[tokio::test]
async fn after_a_flush_a_pipeline_gets_answers_inside_its_transaction() {
    let (_gateway, mut one, mut other) = table().await;
    let flush = || message(b'H', b"");
    one.send(&[run("insert into t values (1) returning id, n + 1"), flush()].concat()).await.unwrap();
    let mut said = Vec::new();
    while said.last().is_none_or(|said: &Said| said.kind != 'C') {
        said.push(one.next().await.unwrap());
    }
    assert_eq!((kinds(&said).as_str(), rows(&said)), ("12DC", vec![vec!["1".to_owned(), "1".to_owned()]]));
    assert!(keys(&mut other).await.is_empty(), "the transaction is open");
    one.send(&[run("update t set n = 3"), sync()].concat()).await.unwrap();
    assert_eq!(tags(&one.until_ready().await), ["UPDATE 1"]);
    assert_eq!(keys(&mut other).await, ["1"]);
    // The result that the client received is no longer true at Sync.
    one.send(&[run("delete from t where id = 1"), flush()].concat()).await.unwrap();
    while one.next().await.unwrap().kind != 'C' {}
    assert_eq!(outcome(&mut other, "delete from t").await.0, "00000");
    one.send(&sync()).await.unwrap();
    let said = one.until_ready().await;
    assert_eq!((said[0].field(b'C').as_str(), said[1].body.as_slice()), ("40001", &b"I"[..]));
}

#[tokio::test]
async fn portals_and_blocks_work_in_a_pipeline() {
    let (_gateway, mut one, mut other) = table().await;
    // A row limit on RETURNING needs the result at once.
    let returning = "insert into t values (1), (2), (3) returning id";
    let pipeline = [
        run("insert into t values (9)"),
        parse("", returning),
        bind("", &[], &[], &[]),
        message(b'D', b"P\0"),
        execute("", 2),
        execute("", 2),
        run("select count(*) from t"),
        sync(),
    ];
    one.send(&pipeline.concat()).await.unwrap();
    let said = one.until_ready().await;
    assert_eq!(kinds(&said), "12C12TDDsDC12DCZ");
    assert_eq!(rows(&said).last().unwrap(), &["4"]);
    assert_eq!(keys(&mut other).await, ["1", "2", "3", "9"]);
    // A block within a pipeline takes effect at its COMMIT. The statements after it belong to the next part.
    let block = [
        run("begin"),
        run("delete from t where id < 3"),
        run("commit"),
        run("insert into t values (9)"),
        sync(),
    ];
    one.send(&block.concat()).await.unwrap();
    let said = one.until_ready().await;
    assert_eq!(
        (kinds(&said).as_str(), tags(&said)),
        ("12C12C12C12EZ", ["BEGIN", "DELETE 2", "COMMIT"].map(str::to_owned).to_vec())
    );
    assert_eq!(keys(&mut other).await, ["3", "9"]);
    // A statement is alone although Close messages come before its Sync.
    let close = message(b'C', b"P\0");
    one.send(&[run("delete from t"), close.clone(), close, sync()].concat()).await.unwrap();
    assert_eq!(kinds(&one.until_ready().await), "12C33Z");
    assert!(keys(&mut other).await.is_empty());
}

#[tokio::test]
async fn a_copy_belongs_to_its_message() {
    let (_gateway, mut one, mut other) = table().await;
    for (last, code, left) in [("1", "23505", vec![]), ("3", "00000", vec!["1", "2", "3"])] {
        one.send(&query(&format!(
            "insert into t values (1); copy t (id) from stdin; insert into t values ({last})"
        )))
        .await
        .unwrap();
        let mut said = Vec::new();
        while said.last().is_none_or(|said: &Said| said.kind != 'G') {
            said.push(one.next().await.unwrap());
        }
        assert_eq!(kinds(&said), "CG", "the client has all answers before it sends the data");
        one.send(&[message(b'd', b"2\n"), message(b'c', b"")].concat()).await.unwrap();
        let said = one.until_ready().await;
        let error = said.iter().find(|said| said.kind == 'E').map(|said| said.field(b'C'));
        assert_eq!(error.unwrap_or("00000".to_owned()), code);
        assert_eq!(keys(&mut other).await, left);
    }
    one.send(&query("update t set n = 4 where id = 1; copy (select id, n from t order by id) to stdout"))
        .await
        .unwrap();
    let said = one.until_ready().await;
    assert_eq!(kinds(&said), "CHdddcCZ");
    assert_eq!(said[2].body, b"1\t4\n");
}
