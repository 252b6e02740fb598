//! Tests the types after `timestamptz` where they differ from PostgreSQL, or where a file of answers cannot
//! show them.

use quorate_table::{
    text::parse_text,
    value::{Type, Value},
};

use super::statements::Client;

async fn with_random() -> Client {
    let mut client = Client::new();
    client.run("create table r (id uuid default gen_random_uuid() primary key, n int)").await.unwrap();
    client
}

#[tokio::test]
async fn a_repeated_insert_returns_the_random_values_that_are_stored() {
    let mut client = with_random().await;
    let id = "set quorate.request_id = '0123456789abcdef0123456789abcdef-1'";
    let insert = "insert into r (n) values (1), (2), (3) returning id::text || n";
    client.run(id).await.unwrap();
    let mut first = client.column(insert).await;
    first.sort();
    for _ in 0..2 {
        client.run(id).await.unwrap();
        let mut again = client.column(insert).await;
        again.sort();
        assert_eq!(again, first);
    }
    assert_eq!(client.column("select id::text || n from r order by 1").await, first);
}

#[tokio::test]
async fn each_row_of_copy_gets_another_random_value() {
    let mut client = with_random().await;
    assert_eq!(client.copy("copy r (n) from stdin", "1\n2\n3\n").await.unwrap(), "COPY 3");
    assert_eq!(client.column("select count(distinct id) from r").await, ["3"]);
    client.run("begin; insert into r (n) values (4), (5)").await.unwrap();
    assert_eq!(client.column("select count(distinct id) from r").await, ["5"]);
    client.run("commit").await.unwrap();
    assert_eq!(client.column("select count(distinct id) from r").await, ["5"]);
}

#[tokio::test]
async fn what_the_types_lack_is_refused_by_name() {
    let mut client = with_random().await;
    client.run("create table d (id int primary key, b jsonb, t time, y bytea)").await.unwrap();
    let deep = format!("insert into d values (1, '{}{}')", "[".repeat(300), "]".repeat(300));
    for (text, code) in [
        ("select gen_random_uuid() from r", "0A000"),
        ("select n from r where id = gen_random_uuid()", "0A000"),
        ("update r set id = gen_random_uuid()", "0A000"),
        ("update r set id = default", "0A000"),
        (
            "insert into r values (gen_random_uuid(), 1) on conflict (id) do update set id = gen_random_uuid()",
            "0A000",
        ),
        ("create table x (a uuid default coalesce(gen_random_uuid(), null))", "0A000"),
        ("create table x (b jsonb) with (partition_by = 'range(b)')", "42P17"),
        ("create table x (j json) with (partition_by = 'range(j)')", "42P17"),
        ("create table x (a time(3))", "0A000"),
        ("create table x (a time with time zone)", "0A000"),
        ("create table x (a interval)", "0A000"),
        ("create table x (a uuid[])", "0A000"),
        ("create index on d (b)", "00000"),
        ("select b - 'a' from d", "0A000"),
        ("select t + interval '1 hour' from d", "0A000"),
        ("select t - t from d", "0A000"),
        ("select sum(t) from d", "0A000"),
        ("select id from d where y like 'a'", "0A000"),
        (&deep, "54001"),
    ] {
        assert_eq!(client.code(text).await, code, "{text}");
    }
    let path = client.with("select b #> $1 from d", &[Value::text_of("{a}")]).await;
    assert_eq!(path.unwrap_err().code, "0A000");
}

#[tokio::test]
async fn parameters_have_the_types_of_their_columns() {
    let mut client = Client::new();
    client
        .run("create table p (u uuid primary key, y bytea, j json, b jsonb, f real, t time, c char(3))")
        .await
        .unwrap();
    let of = |ty, text| parse_text(ty, text).unwrap();
    let uuid = of(Type::Uuid, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11");
    let values = [
        uuid.clone(),
        of(Type::Bytea, "\\x00ff"),
        of(Type::Json, " [1] "),
        of(Type::Jsonb, "{\"a\": [1, 2]}"),
        of(Type::Float4, "1.5"),
        of(Type::Time, "12:30"),
        of(Type::Bpchar, "ab"),
    ];
    client.with("insert into p values ($1, $2, $3, $4, $5, $6, $7)", &values).await.unwrap();
    for (condition, column) in [
        ("u = $1", 0),
        ("u in ($1, null)", 0),
        ("y = $1", 1),
        ("y || '' = $1", 1),
        ("b = $1", 3),
        ("b @> $1", 3),
        ("f = $1", 4),
        ("t = $1", 5),
        ("c = $1", 6),
    ] {
        let text = format!("select count(*) from p where {condition}");
        let found = client.with(&text, std::slice::from_ref(&values[column])).await;
        assert_eq!(found.unwrap(), [Some("1".to_owned())], "{text}");
    }
    let found = client.with("select b -> 'a' ->> $1 from p where u = $2", &[Value::text_of("a"), uuid]).await;
    assert_eq!(found.unwrap(), [None]);
    let texts = Value::text_of("{x,a}");
    let found = client.with("select count(*) from p where b ?| $1", &[texts]).await;
    assert_eq!(found.unwrap(), [Some("1".to_owned())]);
    let uuids = Value::text_of("{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,ffffffff-ffff-ffff-ffff-ffffffffffff}");
    let found = client.with("select count(*) from p where u = any($1)", &[uuids]).await;
    assert_eq!(found.unwrap(), [Some("1".to_owned())]);
}

#[tokio::test]
async fn tables_are_partitioned_by_ranges_of_the_types() {
    let mut client = Client::new();
    for (ty, low, high, values) in [
        (
            "uuid",
            "00000000-0000-0000-0000-000000000000",
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
            ["10000000-0000-0000-0000-000000000000", "7f000000-0000-0000-0000-000000000000"],
        ),
        ("bytea", "\\x00", "\\xff", ["\\x01", "\\x80ff"]),
        ("real", "0", "100", ["1.5", "99"]),
        ("time", "00:00", "24:00", ["01:00:00", "23:30:00"]),
        ("bpchar", "a", "z", ["b", "y"]),
    ] {
        let [first, second] = values;
        for bounds in [format!(", {low}, {high}"), String::new()] {
            client
                .run(&format!(
                    "drop table if exists x; create table x (k {ty} primary key) with (partition_by = 'range(k{bounds})');
                     insert into x values ('{first}'), ('{second}'), ('{low}'), ('{high}')"
                ))
                .await
                .unwrap();
            for (condition, count) in [
                (format!("k < '{second}'"), "2"),
                (format!("k >= '{second}'"), "2"),
                (format!("k = '{first}'"), "1"),
                (format!("k between '{low}' and '{first}'"), "2"),
                (format!("k in ('{first}', '{high}')"), "2"),
            ] {
                let text = format!("select count(*) from x where {condition}");
                assert_eq!(client.column(&text).await, [count], "{ty}: {text}");
            }
        }
    }
}
