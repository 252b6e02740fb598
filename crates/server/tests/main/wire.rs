//! Tests the PostgreSQL protocol as drivers use it.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_postgres::{Client, NoTls, types::Type};

use super::Gateway;

fn code(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("", |code| code.code())
}

/// Creates a table of `rows` numbers and their squares as text.
async fn squares(client: &Client, rows: i32) {
    client.batch_execute("create table squares (n int primary key, square text)").await.unwrap();
    let values: Vec<String> =
        (0..rows).map(|n| format!("({n}, '{}')", i64::from(n) * i64::from(n))).collect();
    for chunk in values.chunks(1000) {
        client.batch_execute(&format!("insert into squares values {}", chunk.join(","))).await.unwrap();
    }
}

#[tokio::test]
async fn parameters_take_their_types_from_their_surroundings() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    client
        .batch_execute(
            "create table t (id int8, name text, price numeric, size float8, made date, seen timestamptz)",
        )
        .await
        .unwrap();
    for (sql, expected) in [
        ("select id from t where id = $1", vec![Type::INT8]),
        (
            "select id from t where name like $1 and size between $2 and $3",
            vec![Type::TEXT, Type::FLOAT8, Type::FLOAT8],
        ),
        ("select id from t where made > $1 and seen < $2", vec![Type::DATE, Type::TIMESTAMPTZ]),
        (
            "insert into t (id, price) values ($1, $2), ($3, $4)",
            vec![Type::INT8, Type::NUMERIC, Type::INT8, Type::NUMERIC],
        ),
        ("update t set size = size + $1 where id in ($2, $3)", vec![Type::FLOAT8, Type::INT8, Type::INT8]),
        ("select $1::int2, $2", vec![Type::INT2, Type::TEXT]),
        ("select id from t limit $1 offset $2", vec![Type::INT8, Type::INT8]),
        ("select id + $1 from t where $2 is null or id = $2", vec![Type::INT8, Type::INT8]),
    ] {
        let statement = client.prepare(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert_eq!(statement.params(), expected, "{sql}");
    }
    let sums = client.prepare("select sum(1), sum(1::int8) where false").await.unwrap();
    let sums: Vec<&Type> = sums.columns().iter().map(|column| column.type_()).collect();
    assert_eq!(sums, [&Type::INT8, &Type::NUMERIC]);
    let open = client.prepare("select id from t where $1 is null").await.expect_err("nothing says its type");
    assert_eq!(code(&open), "42P18");
}

#[tokio::test]
async fn binary_values_are_written_and_read() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    client
        .batch_execute("create table t (id int, b bool, i2 int2, i8 int8, f float8, s text) with (partition_by = 'hash(id)')")
        .await
        .unwrap();
    let written = client
        .execute(
            "insert into t values ($1, $2, $3, $4, $5, $6)",
            &[&1i32, &true, &-2i16, &i64::MIN, &1.5e-300f64, &"zwölf"],
        )
        .await
        .unwrap();
    assert_eq!(written, 1);
    client.execute("insert into t values ($1, $2)", &[&2i32, &None::<bool>]).await.unwrap();
    let rows = client.query("select * from t order by id", &[]).await.unwrap();
    let row = &rows[0];
    assert_eq!(
        (
            row.get::<_, bool>(1),
            row.get::<_, i16>(2),
            row.get::<_, i64>(3),
            row.get::<_, f64>(4),
            row.get::<_, &str>(5)
        ),
        (true, -2, i64::MIN, 1.5e-300, "zwölf")
    );
    assert_eq!(rows[1].get::<_, Option<bool>>(1), None);
    assert_eq!(rows[1].get::<_, Option<&str>>(5), None);
    let totals = client.query_one("select count(*), sum(i2), avg(f) from t", &[]).await.unwrap();
    assert_eq!(
        (totals.get::<_, i64>(0), totals.get::<_, i64>(1), totals.get::<_, f64>(2)),
        (2, -2, 1.5e-300)
    );
    let types = client.prepare("select sum(id), sum(i8), avg(id), avg(f), min(s) from t").await.unwrap();
    let types: Vec<&Type> = types.columns().iter().map(|column| column.type_()).collect();
    assert_eq!(types, [&Type::INT8, &Type::NUMERIC, &Type::NUMERIC, &Type::FLOAT8, &Type::TEXT]);
}

#[tokio::test]
async fn arrays_are_accepted_as_parameters() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    squares(&client, 100).await;
    for (sql, ty) in [
        ("select n from squares where n = any($1)", Type::INT4_ARRAY),
        ("select n from squares where square <> all($1)", Type::TEXT_ARRAY),
        ("select n from squares where n = any($1::int8[])", Type::INT8_ARRAY),
    ] {
        assert_eq!(client.prepare(sql).await.unwrap().params(), [ty], "{sql}");
    }
    let numbers = |rows: Vec<tokio_postgres::Row>| rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>();
    let any = "select n from squares where n = any($1) order by n";
    for wanted in [vec![], vec![7], (0..100).collect::<Vec<i32>>()] {
        assert_eq!(numbers(client.query(any, &[&wanted]).await.unwrap()), wanted);
    }
    assert_eq!(numbers(client.query(any, &[&vec![Some(3), None]]).await.unwrap()), [3]);
    assert_eq!(numbers(client.query(any, &[&None::<Vec<i32>>]).await.unwrap()), [0; 0]);
    let words = vec!["0", "1", "a,\"b\""];
    let others = "select n from squares where square <> all($1) and n < 4 order by n";
    assert_eq!(numbers(client.query(others, &[&words]).await.unwrap()), [2, 3]);
    // A declared type is kept: the column is converted to the type of the elements if that is wider, and
    // otherwise the elements to the column's type.
    let declared = client.prepare_typed(any, &[Type::INT8_ARRAY]).await.unwrap();
    assert_eq!(numbers(client.query(&declared, &[&vec![5i64, 1 << 40]]).await.unwrap()), [5]);
    let later =
        client.query("delete from squares where n = any($1) returning n", &[&vec![1, 2]]).await.unwrap();
    assert_eq!(later.len(), 2);
    let nested = client.execute("select n from squares where n = any('{{1},{2}}')", &[]).await.unwrap_err();
    assert_eq!(code(&nested), "0A000");
}

#[tokio::test]
async fn a_rollback_to_a_savepoint_revives_a_failed_block() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    squares(&client, 3).await;
    client.batch_execute("begin; savepoint a; set statement_timeout = '5s'").await.unwrap();
    client.batch_execute("select 1/0").await.unwrap_err();
    let ignored = client.batch_execute("release savepoint a").await.unwrap_err();
    assert_eq!(code(&ignored), "25P02");
    client.batch_execute("rollback to savepoint a").await.unwrap();
    let timeout = client.query_one("show statement_timeout", &[]).await.unwrap();
    assert_eq!(timeout.get::<_, &str>(0), "0");
    client.batch_execute("insert into squares values (3, '9'); savepoint b; select 1").await.unwrap();
    client.batch_execute("rollback to b; release b").await.unwrap();
    let count =
        async || client.query_one("select count(*) from squares", &[]).await.unwrap().get::<_, i64>(0);
    assert_eq!(count().await, 4);
    client.batch_execute("rollback to a").await.unwrap();
    assert_eq!(count().await, 3);
    client.batch_execute("insert into squares values (4, '16'); commit").await.unwrap();
    let unknown = client.batch_execute("begin; rollback to nowhere").await.unwrap_err();
    assert_eq!(code(&unknown), "3B001");
    client.batch_execute("rollback").await.unwrap();
    assert_eq!(count().await, 4);
}

#[tokio::test]
async fn a_cursor_returns_rows_within_its_block() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    squares(&client, 1000).await;
    let outside = client.batch_execute("declare c cursor for select n from squares").await.unwrap_err();
    assert_eq!(code(&outside), "25P01");
    client.batch_execute("begin; declare c cursor for select n from squares order by n").await.unwrap();
    let numbers = |rows: Vec<tokio_postgres::Row>| rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>();
    assert_eq!(numbers(client.query("fetch 3 from c", &[]).await.unwrap()), [0, 1, 2]);
    assert_eq!(numbers(client.query("fetch next from c", &[]).await.unwrap()), [3]);
    client.batch_execute("savepoint s; declare d cursor for select 1; rollback to s").await.unwrap();
    assert_eq!(numbers(client.query("fetch forward 600 from c", &[]).await.unwrap()).len(), 600);
    assert_eq!(numbers(client.query("fetch all from c", &[]).await.unwrap()).len(), 396);
    assert_eq!(numbers(client.query("fetch 5 in c", &[]).await.unwrap()), [0; 0]);
    let gone = client.query("fetch 1 from d", &[]).await.unwrap_err();
    assert_eq!(code(&gone), "34000");
    client.batch_execute("rollback; begin").await.unwrap();
    assert_eq!(code(&client.batch_execute("close c").await.unwrap_err()), "34000");
    client.batch_execute("rollback").await.unwrap();
}

#[tokio::test]
async fn a_portal_returns_a_few_rows_at_a_time() {
    let gateway = Gateway::start().await;
    let mut client = gateway.connect().await;
    squares(&client, 2500).await;
    let block = client.transaction().await.unwrap();
    let portal = block.bind("select n from squares order by n", &[]).await.unwrap();
    let mut next = 0;
    loop {
        let rows = block.query_portal(&portal, 700).await.unwrap();
        if rows.is_empty() {
            break;
        }
        for row in rows {
            assert_eq!(row.get::<_, i32>(0), next);
            next += 1;
        }
    }
    assert_eq!(next, 2500);
    block.commit().await.unwrap();
}

#[tokio::test]
async fn an_error_leaves_the_connection_usable() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    squares(&client, 3).await;
    for (sql, state, position) in [
        ("select nope from squares", "42703", Some(8)),
        ("select * from nowhere", "42P01", Some(15)),
        ("select 1 +", "42601", Some(11)),
        ("select n from squares where n = 'x'", "22P02", Some(33)),
        ("select 1 / 0", "22012", None),
        ("insert into squares values (1, 'again')", "23505", None),
        ("insert into squares select 1, 'x'", "0A000", None),
        ("create table u (a int references squares match full)", "0A000", None),
        ("insert into squares select 9", "0A000", None),
        ("create table v (a int[])", "0A000", None),
        ("select n from squares for update of other", "42P01", None),
        ("savepoint s", "25P01", None),
        ("update squares set n = 5", "0A000", None),
        ("select a.n from squares a join squares b on a.n = b.n", "0A000", None),
    ] {
        for error in [client.query(sql, &[]).await.err(), client.simple_query(sql).await.err()] {
            let error = error.unwrap_or_else(|| panic!("{sql} was accepted"));
            assert_eq!(code(&error), state, "{sql}: {error}");
            if let Some(position) = position {
                let told = error.as_db_error().and_then(|error| error.position());
                assert_eq!(told, Some(&tokio_postgres::error::ErrorPosition::Original(position)), "{sql}");
            }
        }
        assert_eq!(client.query_one("select count(*) from squares", &[]).await.unwrap().get::<_, i64>(0), 3);
    }
}

#[tokio::test]
async fn the_statements_of_a_block_take_effect_together() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    squares(&client, 2).await;
    let other = gateway.connect().await;
    let count = async |client: &tokio_postgres::Client| {
        client.query_one("select count(*) from squares", &[]).await.unwrap().get::<_, i64>(0)
    };

    client.batch_execute("begin").await.unwrap();
    assert_eq!(count(&client).await, 2);
    client.execute("insert into squares values ($1, 'x')", &[&10]).await.unwrap();
    client.execute("insert into squares values ($1, 'x')", &[&11]).await.unwrap();
    assert_eq!((count(&client).await, count(&other).await), (4, 2));
    client.batch_execute("commit").await.unwrap();
    assert_eq!((count(&client).await, count(&other).await), (4, 4));

    client.batch_execute("begin; delete from squares").await.unwrap();
    assert_eq!(count(&client).await, 0);
    client.batch_execute("rollback").await.unwrap();
    assert_eq!(count(&client).await, 4);

    // The other session commits first.
    client.batch_execute("begin isolation level serializable").await.unwrap();
    assert_eq!(count(&client).await, 4);
    client.batch_execute("insert into squares values (12, 'x')").await.unwrap();
    other.batch_execute("begin; insert into squares values (13, 'x'); commit").await.unwrap();
    let commit = client.batch_execute("commit").await.unwrap_err();
    assert_eq!(code(&commit), "40001");
    assert_eq!(commit.as_db_error().unwrap().hint(), Some("The transaction might succeed if retried."));
    assert_eq!(count(&client).await, 5);
    assert_eq!(client.query("select 1", &[]).await.unwrap().len(), 1, "the block is over");

    client.batch_execute("begin; select 1; rollback").await.unwrap();
    client.batch_execute("begin read only").await.unwrap();
    assert_eq!(code(&client.batch_execute("delete from squares").await.unwrap_err()), "25006");
    client.batch_execute("rollback").await.unwrap();
}

#[tokio::test]
async fn a_write_repeated_under_one_id_is_applied_once() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    client.batch_execute("create table log (n int)").await.unwrap();
    for _ in 0..3 {
        client.batch_execute("set quorate.request_id = '000000000000000000000000000000ff-7'").await.unwrap();
        assert_eq!(client.execute("insert into log values (1)", &[]).await.unwrap(), 1);
    }
    assert_eq!(client.execute("insert into log values (2)", &[]).await.unwrap(), 1);
    // The gateway refuses another statement, and other parameters, under the same id. The id stays set until
    // the client resets it.
    client.batch_execute("set quorate.request_id = 'ff-7'").await.unwrap();
    assert_eq!(code(&client.execute("insert into log values ($1)", &[&1]).await.unwrap_err()), "22023");
    client.batch_execute("set quorate.request_id = 'ff-9'").await.unwrap();
    assert_eq!(client.execute("insert into log values ($1)", &[&3]).await.unwrap(), 1);
    for (n, outcome) in [(3, Ok(1)), (4, Err("22023"))] {
        client.batch_execute("set quorate.request_id = 'ff-9'").await.unwrap();
        let again = client.execute("insert into log values ($1)", &[&n]).await;
        assert_eq!(again.as_ref().map_err(code).copied(), outcome);
    }
    client.batch_execute("reset quorate.request_id").await.unwrap();
    assert_eq!(client.execute("insert into log values ($1)", &[&4]).await.unwrap(), 1);
    client.batch_execute("set quorate.request_id = 'ff-8'").await.unwrap();
    assert_eq!(code(&client.batch_execute("insert into nowhere values (1)").await.unwrap_err()), "42P01");
    assert_eq!(client.execute("insert into log values (5)", &[]).await.unwrap(), 1);
    let rows = client.query("select n from log order by n", &[]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get::<_, i32>(0)).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    // An id that the gateway issued belongs to one statement. An id that the gateway has not issued yet is
    // refused.
    for name in ["1-3-00000000000000aa", "1-1000000-00000000000000aa"] {
        client.batch_execute(&format!("set quorate.request_id = '{name}'")).await.unwrap();
        let refused = client.batch_execute("insert into log values (6)").await.unwrap_err();
        assert_eq!(code(&refused), "22023");
        client.batch_execute("reset quorate.request_id").await.unwrap();
        assert_eq!(client.execute("delete from log where n = 6", &[]).await.unwrap(), 0);
    }
    let refused = client.batch_execute("set quorate.request_id = 'seven'").await.unwrap_err();
    assert_eq!(code(&refused), "22023");
}

#[tokio::test]
async fn a_copy_loads_all_rows_or_none() {
    use bytes::Bytes;
    use futures_util::{SinkExt, StreamExt, pin_mut};

    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    client.batch_execute("create table t (id int not null, word text)").await.unwrap();
    let load = async |sql: &str, data: Vec<String>| {
        let sink = client.copy_in(sql).await?;
        pin_mut!(sink);
        for piece in data {
            sink.send(Bytes::from(piece)).await?;
        }
        sink.finish().await
    };
    let rows: Vec<String> = (0..5000).map(|n| format!("{n}\tword {n}\n")).collect();
    assert_eq!(load("copy t from stdin", rows).await.unwrap(), 5000);
    let mut bad: Vec<String> = (5000..9000).map(|n| format!("{n}\tx\n")).collect();
    bad.push("nine thousand\tx\n".to_owned());
    let error = load("copy t from stdin", bad).await.unwrap_err();
    assert_eq!(code(&error), "22P02");
    assert_eq!(
        error.as_db_error().unwrap().where_(),
        Some("COPY t, line 4001, column id: \"nine thousand\"")
    );
    for (line, state) in [("1\n", "22P04"), ("1\ta\tb\n", "22P04"), ("\\N\ta\n", "23502")] {
        let error = load("copy t from stdin", vec!["1\ta\n".to_owned(), line.to_owned()]).await.unwrap_err();
        assert_eq!(code(&error), state);
        assert!(error.as_db_error().unwrap().where_().unwrap().contains("line 2"));
    }
    let csv = vec!["id;word\n-1;'a;''b'\n".to_owned()];
    let options = "copy t from stdin with (format csv, header, delimiter ';', quote '''')";
    assert_eq!(load(options, csv).await.unwrap(), 1);
    assert_eq!(client.query_one("select count(*) from t", &[]).await.unwrap().get::<_, i64>(0), 5001);
    let out = client
        .copy_out("copy (select * from t where id < 1 order by id) to stdout csv header")
        .await
        .unwrap();
    pin_mut!(out);
    let mut text = String::new();
    while let Some(piece) = out.next().await {
        text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
    }
    assert_eq!(text, "id,word\n-1,a;'b\n0,word 0\n");
}

#[tokio::test]
async fn a_statement_can_be_cancelled_and_has_a_timeout() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    client.batch_execute("create table t (id int)").await.unwrap();
    let token = client.cancel_token();
    let canceller = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        token.cancel_query(NoTls).await.unwrap();
    };
    // A COPY waits for data until it is cancelled.
    let sink = client.copy_in::<_, bytes::Bytes>("copy t from stdin").await.unwrap();
    futures_util::pin_mut!(sink);
    canceller.await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let error = sink.finish().await.unwrap_err();
    assert_eq!(code(&error), "57014");
    assert_eq!(client.query_one("select count(*) from t", &[]).await.unwrap().get::<_, i64>(0), 0);
}

#[tokio::test]
async fn pipelined_statements_are_answered_in_order() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    squares(&client, 100).await;
    let statement = client.prepare("select square from squares where n = $1").await.unwrap();
    let numbers: Vec<i32> = (0..100).collect();
    let ask = async |n: &i32| client.query_one(&statement, &[n]).await;
    let answers = futures_util::future::try_join_all(numbers.iter().map(ask)).await.unwrap();
    for (n, row) in numbers.iter().zip(answers) {
        assert_eq!(row.get::<_, String>(0), (n * n).to_string());
    }
}

#[tokio::test]
async fn a_prepared_statement_follows_its_table() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    client.batch_execute("create table t (id int)").await.unwrap();
    let statement = client.prepare("select * from t").await.unwrap();
    assert_eq!(client.query(&statement, &[]).await.unwrap().len(), 0);
    client.batch_execute("create table other (id int)").await.unwrap();
    assert_eq!(client.query(&statement, &[]).await.unwrap().len(), 0);
    client.batch_execute("drop table t").await.unwrap();
    assert_eq!(code(&client.query(&statement, &[]).await.unwrap_err()), "42P01");
    client.batch_execute("create table t (id int)").await.unwrap();
    assert_eq!(client.query(&statement, &[]).await.unwrap().len(), 0);
    client.batch_execute("drop table t; create table t (id int, more text)").await.unwrap();
    let changed = client.query(&statement, &[]).await.unwrap_err();
    assert_eq!(code(&changed), "0A000");
    assert_eq!(changed.as_db_error().unwrap().routine(), Some("RevalidateCachedQuery"));
}

#[tokio::test]
async fn an_error_names_the_violated_constraint() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    client.batch_execute("create table t (id int primary key, word text not null)").await.unwrap();
    client.batch_execute("insert into t values (1, 'a')").await.unwrap();
    for (sql, expected) in [
        ("insert into t values (1, 'b')", ("23505", None, Some("t_pkey"))),
        ("insert into t values (2, null)", ("23502", Some("word"), None)),
        ("update t set word = null", ("23502", Some("word"), None)),
    ] {
        let error = client.batch_execute(sql).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!((error.code().code(), error.column(), error.constraint()), expected, "{sql}");
        assert_eq!((error.schema(), error.table()), (Some("public"), Some("t")), "{sql}");
    }
}

#[tokio::test]
async fn a_long_statement_is_answered_or_refused() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    squares(&client, 100).await;
    let chain = |count: usize, term: &str, between: &str| vec![term; count].join(between);
    let alternatives: Vec<String> = (0..5_000).map(|n| format!("n = {n}")).collect();
    let count = async |sql: &str| client.query_one(sql, &[]).await.map(|row| row.get::<_, i64>(0));
    let squares = format!("select count(*) from squares where n > 1 and ({})", alternatives.join(" or "));
    assert_eq!(count(&squares).await.unwrap(), 98);
    let squares = format!("select count(*) from squares where {}", chain(5_000, "n >= 50", " and "));
    assert_eq!(count(&squares).await.unwrap(), 50);
    let sum = format!("select count(*) from squares where n{} > 200", chain(180, " + 1", ""));
    assert_eq!(count(&sum).await.unwrap(), 79);
    let relations = alternatives.join(" or ").replace("n = ", "oid <> ");
    let relations = format!("select count(*) from pg_class where ({relations}) and relname = 'squares'");
    assert_eq!(count(&relations).await.unwrap(), 1);
    let united = chain(2_000, "select 1 as n", " union all ");
    assert_eq!(count(&format!("select count(*) from ({united}) u")).await.unwrap(), 2_000);
    let rows = (0..50_000).map(|n| format!("({n})")).collect::<Vec<_>>().join(",");
    assert_eq!(count(&format!("select count(*) from (values {rows}) v")).await.unwrap(), 50_000);
    let branches = chain(5_000, "when n = -1 then 1", " ");
    assert_eq!(count(&format!("select count(case {branches} else n end) from squares")).await.unwrap(), 100);
    let case = format!("select case {branches} end from (select 1 as n) q");
    assert_eq!(client.query_one(&case, &[]).await.unwrap().get::<_, Option<i32>>(0), None);
    for sql in [
        format!("select {}", chain(2_000, "1", " + ")),
        format!("select {}", chain(1_500, "'a'", " || ")),
        format!("select n{} from squares", chain(210, " + 1", "")),
        format!("select n{} from squares", chain(500, " + 1", "")),
        format!("select relname{} from pg_class", chain(500, " || 'a'", "")),
        format!("select n{} from squares", "::int8::int".repeat(2_500)),
        format!("select {}1{}", "(".repeat(5_000), ")".repeat(5_000)),
        format!("select count(*) from squares where {}n = 1", "not ".repeat(3_000)),
        format!("select {}n{} from squares", "abs(".repeat(17), ")".repeat(17)),
        format!("update squares set square = {}", chain(300, "square", " || ")),
    ] {
        let error = client.batch_execute(&sql).await.unwrap_err();
        assert_eq!(code(&error), "54001", "{}: {error:?}", &sql[..40]);
    }
    // The door accepts expressions of this depth in every kind of statement.
    for sql in [
        format!("select {}true", "not ".repeat(120)),
        format!("select {}1{}", "(".repeat(120), ")".repeat(120)),
        format!("select relname{} from pg_class", chain(180, " || 'a'", "")),
        format!("select n{} from squares", chain(190, " + 1", "")),
        format!("select {}n{} from squares", "abs(".repeat(16), ")".repeat(16)),
    ] {
        client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{}: {error:?}", &sql[..40]));
    }
}

#[tokio::test]
async fn the_reset_of_a_connection_pool_restores_all_settings() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    let row = client
        .query_one("select current_setting('jit') as cur, set_config('jit', 'on', false) as new", &[])
        .await
        .unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("off", "on"));
    let shown = async |sql: &str| client.query_one(sql, &[]).await.map(|row| row.get::<_, String>(0));
    assert_eq!(shown("show jit").await.unwrap(), "on");
    client
        .batch_execute("SELECT pg_advisory_unlock_all();\nCLOSE ALL;\nUNLISTEN *;\nRESET ALL;")
        .await
        .unwrap();
    assert_eq!(shown("show jit").await.unwrap(), "off");
    client
        .batch_execute("set work_mem = '64MB'; set app.user_id = '7'; set enable_seqscan = off")
        .await
        .unwrap();
    assert_eq!(shown("show work_mem").await.unwrap(), "64MB");
    assert_eq!(shown("show app.user_id").await.unwrap(), "7");
    assert_eq!(shown("select current_setting('app.user_id')").await.unwrap(), "7");
    assert_eq!(shown("show max_connections").await.unwrap(), "1000");
    client.batch_execute("begin; select set_config('app.user_id', '8', true)").await.unwrap();
    assert_eq!(shown("show app.user_id").await.unwrap(), "8");
    client.batch_execute("commit; set session authorization default; abort").await.unwrap();
    assert_eq!(shown("show app.user_id").await.unwrap(), "7");
    for (sql, state) in [
        ("show app.other", "42704"),
        ("set quorate.nothing = 1", "42704"),
        ("select set_config('nothing', '1', false)", "42704"),
        ("set xmloption = 'paper'", "22023"),
        ("set work_mem = 'much'", "22023"),
        ("set ssl = on", "55P02"),
    ] {
        assert_eq!(code(&client.batch_execute(sql).await.unwrap_err()), state, "{sql}");
    }
}

#[tokio::test]
async fn the_catalog_describes_the_tables() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    client
        .batch_execute("create table t (id int primary key, word text default 'x') with (partition_by = 'hash(id)', replicas = 3)")
        .await
        .unwrap();
    let columns = client
        .query(
            "select a.attname, t.typname, a.attnotnull, (select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d \
             where d.adrelid = a.attrelid and d.adnum = a.attnum) from pg_catalog.pg_attribute a \
             join pg_type t on t.oid = a.atttypid where a.attrelid = $1::text::regclass and a.attnum > 0 order by a.attnum",
            &[&"t"],
        )
        .await
        .unwrap();
    let shown: Vec<(String, String, bool, Option<String>)> =
        columns.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect();
    assert_eq!(
        shown,
        [
            ("id".to_owned(), "int4".to_owned(), true, None),
            ("word".to_owned(), "text".to_owned(), false, Some("'x'::text".to_owned())),
        ]
    );
    let routines = client
        .query(
            "select typname from pg_type where typreceive in ('timestamptz_recv', 'int4recv', 'array_recv') \
                and typinput <> 'array_in' order by 1",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(routines.iter().map(|row| row.get(0)).collect::<Vec<&str>>(), ["int4", "timestamptz"]);
    let names = client
        .query_one(
            "select array_to_string(array(select table_name::text from information_schema.tables \
             where table_schema = any(array['public']) union all select 'z' order by 1), ',')",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(names.get::<_, &str>(0), "t,z");
    // JDBC asks for foreign keys in this way. The product of the FROM items does not fit in memory, but the
    // conditions on the referencing table leave few of its rows.
    let keys = client
        .query(
            "select pkc.relname from pg_namespace pkn, pg_class pkc, pg_attribute pka, pg_namespace fkn, pg_class fkc, \
             pg_attribute fka, pg_constraint con, generate_series(1, 32) pos(n) where pkn.oid = pkc.relnamespace \
             and pkc.oid = pka.attrelid and pka.attnum = con.confkey[pos.n] and con.confrelid = pkc.oid \
             and fkn.oid = fkc.relnamespace and fkc.oid = fka.attrelid and fka.attnum = con.conkey[pos.n] \
             and con.conrelid = fkc.oid and con.contype = 'f' and fkn.nspname = 'public' and fkc.relname = 't'",
            &[],
        )
        .await
        .unwrap();
    assert!(keys.is_empty());

    client
        .batch_execute(
            "create table pairs (b text, a int, primary key (a, b)) with (partition_by = 'hash(a)')",
        )
        .await
        .unwrap();
    let keys = client
        .query(
            "select k.attname, k.number, (k.pair).x from (select a.attname, a.attnum, \
             (information_schema._pg_expandarray(i.indkey)).n as number, \
             information_schema._pg_expandarray(i.indkey) as pair \
             from pg_index i join pg_attribute a on a.attrelid = i.indrelid where i.indisprimary \
             and i.indrelid = 'pairs'::regclass) k where k.attnum = (k.pair).x order by k.number",
            &[],
        )
        .await
        .unwrap();
    let keys: Vec<(&str, i32, i16)> = keys.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    assert_eq!(keys, [("a", 1, 2), ("b", 2, 1)]);
    // Functions that return rows run side by side. NULL fills up the rows of the shorter one.
    let rows = client
        .query("select generate_subscripts(array[5, 6], 1), generate_series(1, 3) n order by n", &[])
        .await
        .unwrap();
    let rows: Vec<(Option<i32>, i32)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(rows, [(Some(1), 1), (Some(2), 2), (None, 3)]);
    let wide = client
        .query_one("select generate_series(1, 1::bigint), n from generate_series(5, 5) n", &[])
        .await
        .unwrap();
    assert_eq!((wide.get::<_, i64>(0), wide.get::<_, i32>(1)), (1, 5));
    let rows = client
        .query("select b, a from unnest(array['x', 'y']) with ordinality c(a, b) order by b desc", &[])
        .await
        .unwrap();
    let rows: Vec<(i64, &str)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(rows, [(2, "y"), (1, "x")]);
    // A column joined by USING appears once, and a parameter may name an object.
    let named = client
        .query_typed(
            "select * from (select oid::int8 as oid, relname from pg_class) c join pg_class p using (relname) \
             where p.oid = $1::regclass",
            &[(&"pairs", Type::TEXT)],
        )
        .await
        .unwrap();
    assert_eq!(named[0].get::<_, &str>(0), "pairs");
    assert_eq!(named[0].columns().iter().filter(|column| column.name() == "relname").count(), 1);
    for sql in ["select 1 where unnest(array[true])", "select count(*), unnest(array[1]) from pg_class"] {
        assert_eq!(code(&client.query(sql, &[]).await.unwrap_err()), "0A000", "{sql}");
    }
}

#[tokio::test]
async fn garbage_ends_only_its_own_connection() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 64], b"\0\0\0\x08\0\x03\0\0"] {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        drop(stream.read_to_end(&mut answer).await);
    }
    assert_eq!(client.query_one("select 1", &[]).await.unwrap().get::<_, i32>(0), 1);
}

#[tokio::test]
async fn explain_analyze_shows_how_rows_were_found() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    squares(&client, 100).await;
    let plan = |sql: &'static str| {
        let client = &client;
        async move {
            let rows = client.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            assert_eq!(rows[0].columns()[0].name(), "QUERY PLAN");
            rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join("\n")
        }
    };
    let planned = plan("explain select n from squares where square = '49'").await;
    assert!(!planned.contains("Execution Time"), "{planned}");
    for sql in [
        "explain analyze select n from squares where square = '49'",
        "explain (analyze) select n from squares where square = '49'",
        "explain (analyze true, format text) select n from squares where square = '49'",
    ] {
        let analyzed = plan(sql).await;
        assert!(analyzed.starts_with(&planned), "{analyzed}\nnot as\n{planned}");
        for told in [": 1 rows at epoch", "Strategy: ", "Blocks: ", "Waited: ", "Execution Time: "] {
            assert!(analyzed.contains(told), "no {told:?} in\n{analyzed}");
        }
    }
    let grouped = plan("explain analyze select square, count(*) from squares group by square").await;
    assert_eq!(grouped.matches("Strategy: ").count(), grouped.matches(" rows at epoch").count());
    for refused in ["explain analyze delete from squares", "explain (analyze, format json) select 1"] {
        let error = client.query(refused, &[]).await.expect_err(refused);
        assert_eq!(code(&error), "0A000", "{refused}");
    }
}
