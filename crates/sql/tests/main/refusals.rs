//! Statements that sessions refuse, and the statements that common programs send when they connect.

use super::statements::Client;

/// A clause that only PostgreSQL has is refused by its name. A clause that only other databases have is
/// refused as a syntax error.
#[tokio::test]
async fn unsupported_clauses_are_refused_by_name() {
    let mut client = Client::new();
    client.run("create table f (a int primary key, b int, c text)").await.unwrap();
    client.run("insert into f values (1, 10, 'x'), (2, 20, 'y'), (3, 30, 'z')").await.unwrap();
    for sql in [
        "select a from f order by a fetch first 2 rows with ties",
        "select a from f tablesample system (1)",
        "select relname from pg_class tablesample system (0)",
        "select distinct on (b) a from f",
        "select a into g from f",
        "select sum(a) over w from f window w as (order by a)",
        "select percentile_cont(0.5) within group (order by a) from f",
        "select array_agg(a order by a desc nulls last) from (values (1), (null), (2)) as t(a)",
        "select row_number() over (order by a nulls first) from (values (1), (null)) as t(a)",
        "update f set b = 2 from f as g",
        "delete from f using f as g",
        "insert into f (f.a) values (4)",
        "update f set f.b = 2",
        "with x as (select 1) insert into f values (4, 1, '')",
        "with f(a) as (select 1) select a from public.f",
        "create unique index on f (b)",
        "create index on f (lower(c))",
        "create index on f (b) where a > 1",
        "create index on f (b) include (c)",
        "create index on f (b) with (fillfactor = 70)",
        "insert into f with x as (select 1) values (4, 1, '')",
        "insert into f values (4, 1, '') fetch first row only",
        "create temp table g (a int)",
        "create table g (a int) inherits (f)",
        "create table g (like f)",
        "create table g as select 1",
        "create table g (a int primary key deferrable)",
        "create table g (a int) partition by hash (a)",
        "select '{{1,2},{3,4}}'::int[]",
        "select array[[1,2],[3,4]]",
        "select '[0:1]={1,2}'::int[]",
        "select interval '1.5' second(3)",
    ] {
        assert_eq!(client.code(sql).await, "0A000", "{sql}");
    }
    for sql in [
        "select a from f order by a limit 1 fetch first row only",
        "select a from f join f g",
        "select a from f limit 1, 2",
        "select top 1 a from f",
        "select * exclude (a) from f",
        "select a from f qualify row_number() over () = 1",
        "select a from f prewhere a = 1",
        "from f",
        "insert into table f values (4, 1, '')",
        "insert f values (4, 1, '')",
        "insert or ignore into f values (4, 1, '')",
        "insert into f set a = 1",
        "replace into f values (4, 1, '')",
        "insert into f values (4, 1, '') as n",
        "update f as t(x) set b = 1",
        "delete from f as t(x)",
        "update f set b = 2 limit 1",
        "delete from f order by a limit 1",
        "create table g (a int default 1 default 2)",
        "create table g (a int, primary key (a desc))",
        "create or replace table g (a int)",
        "explain query plan select 1",
        "describe f",
        "explain (nonsense) select 1",
        "copy f to stdout (header, header)",
        "set global work_mem = '1MB'",
    ] {
        assert_eq!(client.code(sql).await, "42601", "{sql}");
    }
    let all = client.rows("select a from f order by a").await;
    assert_eq!(all.len(), 3, "nothing that was refused is done");
    assert_eq!(client.code("select 1 from g").await, "42P01");
}

/// The first statements of common programs are accepted, although they spell supported statements
/// differently.
#[tokio::test]
async fn the_first_statements_of_common_clients_are_accepted() {
    let mut client = Client::new();
    for sql in [
        "SET TIME ZONE INTERVAL '+00:00' HOUR TO MINUTE",
        "SET TIME ZONE '+00'",
        "SET TIME ZONE '00:00'",
        "SET TIME ZONE 'UCT'",
        "SET TIME ZONE 'GMT0'",
        "SET TIME ZONE 0",
        "SET intervalstyle = iso_8601",
        "create table \"T t\" (a int primary key, b timestamp(6), c timestamp(6) with time zone)",
        "select * from information_schema.sequences",
    ] {
        assert_eq!(client.code(sql).await, "00000", "{sql}");
    }
    for (sql, expected) in [
        ("SELECT * FROM current_schema()", "public"),
        ("SELECT * FROM version()", "PostgreSQL"),
        ("SELECT 'test.public.\"T t\"'::regclass", "\"T t\""),
        ("SELECT '\"test\".\"public\".\"T t\"'::regclass", "\"T t\""),
        ("SELECT '\"pg_catalog\".\"int4\"'::regtype::text", "integer"),
        ("SELECT '{int,int8}'::regtype[]", "{integer,bigint}"),
        ("SELECT 23::oid::regtype = any('{int,int8}'::regtype[])", "t"),
        (
            "SELECT count(*) FROM pg_type WHERE typinput = 'array_in(cstring,oid,integer)'::regprocedure AND typname = '_int4'",
            "1",
        ),
        (
            "WITH a AS (SELECT oid, typname FROM pg_type), b (n) AS (SELECT typname FROM a WHERE oid = 23) SELECT n FROM b",
            "int4",
        ),
    ] {
        let shown = client.rows(sql).await;
        let first = shown[0][0].as_deref().unwrap_or("NULL");
        assert!(first.starts_with(expected), "{sql}: {first}");
    }
    assert_eq!(client.code("select interval '1 day'").await, "0A000", "it would be in another style");
    assert_eq!(client.code("SET TIME ZONE 'Asia/Tokyo'").await, "0A000");
    assert_eq!(client.code("SET TIME ZONE INTERVAL '+09:00' HOUR TO MINUTE").await, "0A000");
    let doubled: Vec<String> =
        (1..20).map(|n| format!("a{n} as (select x.oid from a{} x, a{} y)", n - 1, n - 1)).collect();
    let sql = format!("with a0 as (select oid from pg_am), {} select count(*) from a19", doubled.join(", "));
    assert_eq!(client.code(&sql).await, "54001");
}

/// A session refuses a write after a definition in a block, and its driver then sends ROLLBACK automatically.
/// The answer to the ROLLBACK must be a warning. An error would hide the refusal, which told the client that
/// the definition stays in effect.
#[tokio::test]
async fn a_rollback_after_a_create_table_and_a_refused_write_is_a_warning() {
    let mut client = Client::new();
    client.run("begin; create table t (a int primary key)").await.unwrap();
    let refused = client.run("insert into t values (2)").await.unwrap_err();
    assert_eq!(refused.code, "0A000");
    assert!(
        refused.detail.as_ref().unwrap().contains("CREATE TABLE was applied and cannot be rolled back"),
        "{refused:?}"
    );
    assert!(refused.hint.as_ref().unwrap().contains("Commit after CREATE TABLE"), "{refused:?}");
    assert_eq!(client.code("select 1").await, "25P02", "the block has failed");
    assert_eq!(client.code("rollback").await, "00000");
    assert_eq!(client.rows("select a from t").await.len(), 0, "the table stands, as was said");
    client.run("begin; create table u (a int)").await.unwrap();
    assert_eq!(client.code("rollback").await, "2D000", "nobody has told this client what stands");
    client.run("begin; savepoint s; drop table u").await.unwrap();
    assert_eq!(client.code("insert into t values (3)").await, "0A000");
    assert_eq!(client.code("rollback to s").await, "00000");
    assert_eq!(client.code("commit").await, "00000");
    client.run("begin; insert into t values (1)").await.unwrap();
    let refused = client.run("create table v (a int)").await.unwrap_err();
    assert_eq!(refused.message, "CREATE TABLE after a write in one transaction block is not supported");
    assert_eq!(client.code("rollback").await, "00000");
    client.run("begin; insert into t values (1)").await.unwrap();
    let refused = client.run("alter table t add column b int").await.unwrap_err();
    assert_eq!(refused.message, "ALTER TABLE after a write in one transaction block is not supported");
    assert_eq!(client.code("rollback").await, "00000");
    assert_eq!(client.rows("select a from t").await.len(), 0);
}

#[tokio::test]
async fn an_error_names_the_unsupported_or_wrong_part() {
    let mut client = Client::new();
    client.run("create table t (id int, word text)").await.unwrap();
    for (sql, state, message) in [
        ("select current_setting('server_version'), nosuch('y')", "42883", "function nosuch"),
        ("select string_agg(distinct word, ',') from t", "0A000", "the aggregate string_agg"),
        ("set session authorization other", "0A000", "SET SESSION AUTHORIZATION other"),
        ("create table d (a smallint default 70000)", "22003", "smallint out of range"),
        (
            "create table d (a int default length('x' || current_user))",
            "0A000",
            "a DEFAULT that is neither a constant",
        ),
    ] {
        let error = client.run(sql).await.unwrap_err();
        assert_eq!(error.code, state, "{sql}: {error}");
        assert!(error.message.starts_with(message), "{sql}: {}", error.message);
    }
}

/// A form that repeats its operand is bound to several copies of the operand. In a chain of such forms, the
/// number of copies would double at each link.
#[tokio::test]
async fn a_chain_of_operators_that_double_their_operand_is_refused() {
    let mut client = Client::new();
    client.run("create table b (b bool primary key)").await.unwrap();
    client.run("insert into b values (true)").await.unwrap();
    let nested =
        |count: usize, open: &str, close: &str| format!("{}b{}", open.repeat(count), close.repeat(count));
    for (open, close) in [
        ("", " is true"),
        ("(", " is not distinct from true)"),
        ("(", " between false and true)"),
        ("(", " >= any ('{false,true}'))"),
        ("(case ", " when false then false when true then true end)"),
        ("(case (", ", 1) when (false, 1) then false when (true, 1) then true end)"),
        ("(case (1, (", ", 1)) when (1, (false, 1)) then false when (1, (true, 1)) then true end)"),
    ] {
        let select = |count| format!("select b from b where {}", nested(count, open, close));
        assert_eq!(client.rows(&select(3)).await.len(), 1, "{}", select(3));
        assert_eq!(client.code(&select(30)).await, "54001", "{}", select(30));
    }
}

/// A recursion of WITH that does not end by itself ends at the bound of steps, or of memory.
#[tokio::test]
async fn a_recursion_without_an_end_is_refused() {
    let mut client = Client::new();
    for endless in [
        "with recursive t(n) as (select 1::bigint union select n + 1 from t) select max(n) from t",
        "with recursive t(n) as (select 1::bigint union all select n from t) select max(n) from t",
        "with recursive t(n) as (select oid::bigint from pg_type union all select t.n from t, pg_type) select 1 from t",
    ] {
        let code = client.code(endless).await;
        assert!(code == "54000" || code == "53200", "{endless}: {code}");
    }
}

#[tokio::test]
async fn invalid_values_of_settings_are_refused() {
    let mut client = Client::new();
    client.run("set quorate.read = 'snapshot'").await.unwrap();
    assert_eq!(client.rows("show quorate.read").await, [[Some("snapshot".to_owned())]]);
    client.run("begin; set local quorate.read = 'basic'; commit").await.unwrap();
    assert_eq!(client.rows("show quorate.read").await, [[Some("snapshot".to_owned())]]);
    client.run("begin; set quorate.read = 'basic'; rollback").await.unwrap();
    assert_eq!(client.rows("show quorate.read").await, [[Some("snapshot".to_owned())]]);
    for (sql, state) in [
        ("set quorate.read = 'eventual'", "22023"),
        ("set nothing = 1", "42704"),
        ("set server_version = '1'", "55P02"),
        ("set timezone = 'Europe/Zurich'", "0A000"),
    ] {
        assert_eq!(client.code(sql).await, state, "{sql}");
    }
}
