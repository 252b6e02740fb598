//! Messages and data that PostgreSQL refuses or ignores, with PostgreSQL 15's answer to each.

use bytes::Bytes;
use futures_util::{SinkExt, pin_mut};
use tokio_postgres::{Client, SimpleQueryMessage};

use super::{
    Gateway,
    raw::{Raw, bind, execute, kinds, message, parse, query, sync},
};

/// Returns the SQLSTATEs of the errors among messages.
fn errors(said: &[super::raw::Said]) -> Vec<String> {
    said.iter().filter(|said| said.kind == 'E').map(|said| said.field(b'C')).collect()
}

async fn rows(client: &Client, sql: &str) -> Vec<Vec<Option<String>>> {
    let messages = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|index| row.get(index).map(str::to_owned)).collect())
        }
        _ => None,
    });
    rows.collect()
}

async fn code(client: &Client, sql: &str) -> String {
    match client.simple_query(sql).await {
        Ok(_) => "00000".to_owned(),
        Err(error) => error.code().expect("it is the server's").code().to_owned(),
    }
}

#[tokio::test]
async fn after_an_error_messages_are_skipped_until_sync() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    client.batch_execute("create table t (a int primary key)").await.unwrap();
    let (mut raw, _) = Raw::begin(gateway.address).await;
    let pipeline = [
        parse("", "select nothing from nowhere"),
        query("insert into t values (1)"),
        message(b'H', b""),
        parse("", "insert into t values (2)"),
        bind("", &[], &[], &[]),
        execute("", 0),
        query("insert into t values (3); insert into t values (4)"),
        message(b'Q', b"\xff\0"),
        sync(),
        query("select 1"),
    ];
    raw.send(&pipeline.concat()).await.unwrap();
    let said = raw.until_ready().await;
    assert_eq!((kinds(&said).as_str(), errors(&said)), ("EZ", vec!["42P01".to_owned()]));
    assert_eq!(kinds(&raw.until_ready().await), "TDCZ", "one ReadyForQuery for one Sync");
    assert!(rows(&client, "select a from t").await.is_empty(), "what was passed over is not executed");
}

#[tokio::test]
async fn a_finished_portal_is_an_error_and_is_not_executed_again() {
    let gateway = Gateway::start().await;
    gateway.connect().await.batch_execute("create table t (a int primary key)").await.unwrap();
    let (mut raw, _) = Raw::begin(gateway.address).await;
    let write = [parse("", "insert into t values (1)"), bind("", &[], &[], &[]), execute("", 0)].concat();
    raw.send(&[write, execute("", 0), sync()].concat()).await.unwrap();
    let said = raw.until_ready().await;
    assert_eq!((kinds(&said).as_str(), errors(&said)), ("12CEZ", vec!["55000".to_owned()]));
    raw.send(&[execute("", 0), sync()].concat()).await.unwrap();
    assert_eq!(errors(&raw.until_ready().await), ["34000"], "Sync takes it along");
    let read = [parse("", "select 1"), bind("", &[], &[], &[]), execute("", 0), execute("", 0), sync()];
    raw.send(&read.concat()).await.unwrap();
    assert_eq!(kinds(&raw.until_ready().await), "12DCCZ", "a read that is at its end has no more rows");
    let ended = [
        query("begin"),
        parse("c", "commit"),
        bind("c", &[], &[], &[]),
        execute("", 0),
        execute("", 0),
        sync(),
    ];
    raw.send(&ended.concat()).await.unwrap();
    raw.until_ready().await;
    assert_eq!(errors(&raw.until_ready().await), ["34000"], "a block takes its portals along");
}

#[tokio::test]
async fn a_text_that_is_not_utf8_does_not_end_the_session() {
    let gateway = Gateway::start().await;
    let (mut raw, _) = Raw::begin(gateway.address).await;
    raw.send(&message(b'Q', b"select '\xe4\xf6'\0")).await.unwrap();
    let said = raw.until_ready().await;
    assert_eq!((kinds(&said).as_str(), errors(&said)), ("EZ", vec!["22021".to_owned()]));
    assert!(said[0].field(b'M').ends_with("0xe4 0xf6 0x27"), "{}", said[0].field(b'M'));
    for bad in [
        message(b'P', b"\0select '\xff'\0\0\0"),
        message(b'P', b"\xff\0select 1\0\0\0"),
        message(b'D', b"S\xff\0"),
        message(b'C', b"P\xff\0"),
        message(b'B', b"\xff\0\0\0\0\0\0\0\0"),
        message(b'E', b"\xff\0\0\0\0\0"),
    ] {
        raw.send(&[bad, sync()].concat()).await.unwrap();
        let said = raw.until_ready().await;
        assert_eq!((kinds(&said).as_str(), errors(&said)), ("EZ", vec!["22021".to_owned()]));
    }
    raw.send(&query("select 1")).await.unwrap();
    assert_eq!(kinds(&raw.until_ready().await), "TDCZ");
}

#[tokio::test]
async fn binary_values_that_do_not_fit_their_type_are_refused() {
    let gateway = Gateway::start().await;
    let (mut raw, _) = Raw::begin(gateway.address).await;
    let numeric = |words: [u16; 4], digits: &[u16]| -> Vec<u8> {
        words.iter().chain(digits).flat_map(|word| word.to_be_bytes()).collect()
    };
    let array = |dimensions: i32, flags: i32, bounds: &[i32], elements: &[u8]| -> Vec<u8> {
        let mut bytes: Vec<u8> = [dimensions, flags, 23].iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes.extend(bounds.iter().flat_map(|bound| bound.to_be_bytes()));
        bytes.extend(elements);
        bytes
    };
    let one = [0, 0, 0, 4, 0, 0, 0, 1];
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("date", 2_147_483_646i32.to_be_bytes().to_vec(), "22008"),
        ("date", 2_145_031_949i32.to_be_bytes().to_vec(), "22008"),
        ("date", 2_145_031_948i32.to_be_bytes().to_vec(), "5874897-12-31"),
        ("date", (-2_451_545i32).to_be_bytes().to_vec(), "4714-11-24 BC"),
        ("date", (-2_451_546i32).to_be_bytes().to_vec(), "22008"),
        ("date", i32::MAX.to_be_bytes().to_vec(), "infinity"),
        ("date", i32::MIN.to_be_bytes().to_vec(), "-infinity"),
        ("timestamp", (i64::MAX - 1).to_be_bytes().to_vec(), "22008"),
        ("timestamp", 9_223_371_331_200_000_000i64.to_be_bytes().to_vec(), "22008"),
        ("timestamp", 9_223_371_331_199_999_999i64.to_be_bytes().to_vec(), "294276-12-31 23:59:59.999999"),
        ("timestamp", (-211_813_488_000_000_001i64).to_be_bytes().to_vec(), "22008"),
        ("timestamptz", (i64::MIN + 1).to_be_bytes().to_vec(), "22008"),
        ("timestamptz", i64::MIN.to_be_bytes().to_vec(), "-infinity"),
        ("timestamptz", i64::MAX.to_be_bytes().to_vec(), "infinity"),
        ("date", vec![0; 3], "08P01"),
        ("date", vec![0; 5], "22P03"),
        ("bool", vec![2], "t"),
        ("bool", vec![], "08P01"),
        ("text", b"a\0b".to_vec(), "22021"),
        ("text", b"\xff".to_vec(), "22021"),
        ("numeric", numeric([1, 0, 0, 0], &[7]), "7"),
        ("numeric", numeric([1, 0, 0x4000, 2], &[7]), "-7.00"),
        ("numeric", numeric([2, 0, 0, 1], &[7, 1234]), "7.1"),
        ("numeric", numeric([1, 0, 0, 0], &[10_000]), "22P03"),
        ("numeric", numeric([1, 0, 0, 0x4000], &[7]), "22P03"),
        ("numeric", numeric([1, 0, 0x1234, 0], &[7]), "22P03"),
        ("numeric", numeric([1, 0, 0, 0], &[7, 7]), "22P03"),
        ("numeric", numeric([0xffff, 0, 0, 0], &[]), "08P01"),
        // PostgreSQL has NaN and infinity as a numeric, and this gateway does not.
        ("numeric", numeric([0, 0, 0xc000, 0], &[]), "0A000"),
        ("numeric", numeric([0, 0, 0xd000, 0], &[]), "0A000"),
        ("numeric", numeric([0, 0, 0xf000, 0], &[]), "0A000"),
        ("int[]", array(1, 0, &[1, 1], &one), "{1}"),
        ("int[]", array(1, 2, &[1, 1], &one), "22P03"),
        ("int[]", array(-1, 0, &[], &[]), "22P03"),
        ("int[]", array(1, 0, &[1, 1], &[0xff, 0xff, 0xff, 0xfe]), "22P03"),
        ("int[]", array(1, 1, &[1, 1], &[0xff; 4]), "{NULL}"),
        // PostgreSQL accepts arrays with several dimensions or another first index. Here an array has one
        // dimension and begins at 1.
        ("int[]", array(1, 0, &[1, 0], &one), "0A000"),
        ("int[]", array(2, 0, &[1, 1, 1, 1], &one), "0A000"),
    ];
    for (ty, bytes, expected) in cases {
        let statement = parse("", &format!("select $1::{ty}"));
        let bound = bind("", &[1], &[Some(&bytes)], &[0]);
        raw.send(&[statement, bound, execute("", 0), sync()].concat()).await.unwrap();
        let said = raw.until_ready().await;
        let got = match errors(&said).pop() {
            Some(code) => code,
            None => {
                let row = said.iter().find(|said| said.kind == 'D').expect("a row").row();
                String::from_utf8_lossy(row[0].expect("no NULL")).into_owned()
            }
        };
        assert_eq!(got, expected, "{ty} of {bytes:?}");
    }
    let length = message(b'B', b"\0\0\0\0\0\x01\xff\xff\xff\xfe\0\0");
    raw.send(&[parse("", "select $1::int"), length, sync()].concat()).await.unwrap();
    let refused = raw.next().await.into_iter().chain(raw.next().await).any(|said| said.kind == 'E');
    assert!(refused, "a length of -2 is no NULL");
}

#[tokio::test]
async fn all_lines_of_a_copy_must_end_as_the_first_line() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    client.batch_execute("create table t (a text)").await.unwrap();
    for (data, options, expected) in LINES {
        client.batch_execute("delete from t").await.unwrap();
        let sink = client.copy_in::<_, Bytes>(&format!("copy t from stdin {options}")).await.unwrap();
        pin_mut!(sink);
        sink.send(Bytes::from_static(data)).await.unwrap();
        let done = sink.finish().await.map(drop).map_err(|error| error.code().unwrap().code().to_owned());
        let loaded = client.query("select a from t", &[]).await.unwrap();
        let mut loaded: Vec<Option<String>> = loaded.iter().map(|row| row.get(0)).collect();
        let mut wanted: Vec<Option<String>> =
            expected.unwrap_or_default().iter().map(|text| text.map(str::to_owned)).collect();
        loaded.sort();
        wanted.sort();
        assert_eq!(
            (done.err().as_deref(), loaded),
            (expected.err(), wanted),
            "{:?} {options}",
            String::from_utf8_lossy(data)
        );
    }
}

const TEXT: &str = "";
const CSV: &str = "(format csv)";
const HEADER: &str = "(header)";
const ESCAPED: &str = "(format csv, quote '''', escape '\\')";

/// A case: the data, the options of COPY, and PostgreSQL 15's outcome. The outcome is the loaded rows, or the
/// SQLSTATE of the refusal.
type Case = (&'static [u8], &'static str, Result<&'static [Option<&'static str>], &'static str>);

const LINES: &[Case] = &[
    (b"a\rb\n", TEXT, Err("22P04")),
    (b"a\nb\r", TEXT, Err("22P04")),
    (b"a\r\nb\n", TEXT, Err("22P04")),
    (b"a\r\nb\r", TEXT, Err("22P04")),
    (b"a\rb\r\n", TEXT, Err("22P04")),
    (b"a\r\nb\r\n", TEXT, Ok(&[Some("a"), Some("b")])),
    (b"a\rb\rc", TEXT, Ok(&[Some("a"), Some("b"), Some("c")])),
    (b"a\r", TEXT, Ok(&[Some("a")])),
    (b"a\r\n", TEXT, Ok(&[Some("a")])),
    (b"a\\\nb\n", TEXT, Ok(&[Some("a\nb")])),
    (b"a\\\r\nb\r\n", TEXT, Err("22P04")),
    (b"a\\\r\nb\n", TEXT, Ok(&[Some("a\r"), Some("b")])),
    (b"x\na\\\rb\n", TEXT, Ok(&[Some("x"), Some("a\rb")])),
    (b"x\r\na\\\r\nb\r\n", TEXT, Err("22P04")),
    (b"a\\", TEXT, Ok(&[Some("a")])),
    (b"a\\\n", TEXT, Ok(&[Some("a\n")])),
    (b"\\.\n", TEXT, Ok(&[])),
    (b"a\n\\.\nb\n", TEXT, Ok(&[Some("a")])),
    (b"a\\.\nb\n", TEXT, Ok(&[Some("a")])),
    (b"a\n\\.x\nb\n", TEXT, Err("22P04")),
    (b"a\n\\.", TEXT, Err("22P04")),
    (b"a\r\n\\.\n", TEXT, Err("22P04")),
    (b"a\r\n\\.\r\nb\r\n", TEXT, Ok(&[Some("a")])),
    (b"a\n\\.\r\n", TEXT, Err("22P04")),
    (b"a\r\\.\rb", TEXT, Ok(&[Some("a")])),
    (b"a\r\\.\n", TEXT, Err("22P04")),
    (b"\\.\r\nb", TEXT, Ok(&[])),
    (b"\\..\n", TEXT, Err("22P04")),
    (b"x\\.y\n", TEXT, Err("22P04")),
    (b"\\\\.\n", TEXT, Ok(&[Some("\\.")])),
    (b"\\\\.\nz\n", TEXT, Ok(&[Some("\\."), Some("z")])),
    (b"\\x41\\101\\q\n", TEXT, Ok(&[Some("AAq")])),
    (b"\\0\n", TEXT, Err("22021")),
    (b"\\x00\n", TEXT, Err("22021")),
    (b"\\xff\n", TEXT, Err("22021")),
    (b"\\N\n", TEXT, Ok(&[None])),
    (b"a\\N\n", TEXT, Ok(&[Some("aN")])),
    (b"\n\n", TEXT, Ok(&[Some(""), Some("")])),
    (b"", TEXT, Ok(&[])),
    (b"\n", TEXT, Ok(&[Some("")])),
    (b"\\\n", TEXT, Ok(&[Some("\n")])),
    (b"\xff\n", TEXT, Err("22021")),
    (b"a\0b\n", TEXT, Err("22021")),
    (b"\\xe4\\xf6\n", TEXT, Err("22021")),
    (b"a\\\\\nb\n", TEXT, Ok(&[Some("a\\"), Some("b")])),
    (b"a\\\\\r\nb\r\n", TEXT, Ok(&[Some("a\\"), Some("b")])),
    (b"\r\r", TEXT, Ok(&[Some(""), Some("")])),
    (b"\n\r", TEXT, Err("22P04")),
    (b"\n\r\n", TEXT, Err("22P04")),
    (b"a\r\r\nb", TEXT, Err("22P04")),
    (b"a\rb\n", CSV, Err("22P04")),
    (b"a\nb\r", CSV, Err("22P04")),
    (b"a\r\nb\n", CSV, Err("22P04")),
    (b"\"a\rb\"\nc\n", CSV, Ok(&[Some("a\rb"), Some("c")])),
    (b"\"a\nb\"\rc\r", CSV, Ok(&[Some("a\nb"), Some("c")])),
    (b"\"a\r\nb\"\nc\n", CSV, Ok(&[Some("a\r\nb"), Some("c")])),
    (b"\\.\n", CSV, Ok(&[])),
    (b"a\n\\.\nb\n", CSV, Ok(&[Some("a")])),
    (b"a\n\\.x\nb\n", CSV, Ok(&[Some("a"), Some("\\.x"), Some("b")])),
    (b"x\\.\nb\n", CSV, Ok(&[Some("x\\."), Some("b")])),
    (b"a\n\\.", CSV, Ok(&[Some("a"), Some("\\.")])),
    (b"a\r\n\\.\n", CSV, Err("22P04")),
    (b"a\r\n\\.\r\nb", CSV, Ok(&[Some("a")])),
    (b"\"\n\\.\n\"\n", CSV, Ok(&[Some("\n\\.\n")])),
    (b"\"x\n\\.\n\"\ny\n", CSV, Ok(&[Some("x\n\\.\n"), Some("y")])),
    (b"\"\\.\"\n", CSV, Ok(&[Some("\\.")])),
    (b"a\n\"\n", CSV, Err("22P04")),
    (b"\"a\"\"b\"\n", CSV, Ok(&[Some("a\"b")])),
    (b"\"a\\\"b\"\n", CSV, Err("22P04")),
    (b"\n", CSV, Ok(&[None])),
    (b"\"\"\n", CSV, Ok(&[Some("")])),
    (b"a\rb\r\n", CSV, Err("22P04")),
    (b"\\\n", CSV, Ok(&[Some("\\")])),
    (b"a\r\n\"b\nc\"\r\n", CSV, Ok(&[Some("a"), Some("b\nc")])),
    (b"a\n\\.\r\nb\n", CSV, Err("22P04")),
    (b"a\r\\.\nb\r", CSV, Err("22P04")),
    (b"'a\\'b'\n", ESCAPED, Ok(&[Some("a'b")])),
    (b"'a\\\\'\nb\n", ESCAPED, Ok(&[Some("a\\"), Some("b")])),
    (b"'a\\\nb'\n", ESCAPED, Ok(&[Some("a\\\nb")])),
    (b"'\\\\\\''\n", ESCAPED, Ok(&[Some("\\'")])),
    (b"\\\n", ESCAPED, Ok(&[Some("\\")])),
    (b"\\.\n", ESCAPED, Ok(&[])),
    (b"h\na\n", HEADER, Ok(&[Some("a")])),
    (b"h\ra\n", HEADER, Err("22P04")),
    (b"h\r\na\n", HEADER, Err("22P04")),
    (b"\\.\na\n", HEADER, Ok(&[])),
    (b"", HEADER, Ok(&[])),
];

/// A client asked for a time zone that the gateway refused. A time without a zone from this client is
/// refused, because the gateway would read it in another zone than the client means.
#[tokio::test]
async fn a_time_without_a_zone_is_refused_if_the_clients_zone_was_not_granted() {
    let gateway = Gateway::start().await;
    let (ip, port) = (gateway.address.ip(), gateway.address.port());
    let config =
        |zone: &str| format!("host={ip} port={port} user=test dbname=test options='-c TimeZone={zone}'");
    let tokyo = super::connect(&config("Asia/Tokyo")).await;
    let create = "create table t (a int primary key, tz timestamptz default now(), ts timestamp)";
    tokyo.batch_execute(create).await.unwrap();
    let local = [
        "insert into t (a, tz) values (1, '2020-01-01 00:00')",
        "insert into t (a, tz) values (1, timestamp '2020-01-01 00:00')",
        "insert into t (a, tz) values (1, date '2020-01-01')",
        "insert into t (a, tz) values (1, localtimestamp)",
        "update t set tz = ts",
        "select a from t where tz < '2020-01-01'",
        "select a from t where tz = ts",
        "create table u (a int primary key, tz timestamptz default '2020-01-01')",
        "prepare p as insert into t (a, tz) values (1, $1::timestamp)",
    ];
    for sql in &local[..8] {
        assert_eq!(code(&tokyo, sql).await, "0A000", "{sql}");
    }
    tokyo.batch_execute(local[8]).await.unwrap();
    assert_eq!(code(&tokyo, "execute p ('2020-01-01')").await, "0A000");
    let sink = tokyo.copy_in::<_, Bytes>("copy t (a, tz) from stdin").await.unwrap();
    pin_mut!(sink);
    sink.send(Bytes::from_static(b"1\t2020-01-01 00:00:00\n")).await.unwrap();
    assert_eq!(sink.finish().await.unwrap_err().code().unwrap().code(), "0A000");
    let (mut raw, _) = Raw::begin(gateway.address).await;
    raw.send(&query("select 1")).await.unwrap();
    raw.until_ready().await;
    for sql in [
        "insert into t (a, tz, ts) values (1, '2020-01-01 00:00+09', '2020-01-01')",
        "insert into t (a, tz) values (2, 'epoch'), (3, 'infinity'), (4, '2020-01-01 00:00 UTC'), (5, now())",
        "select a from t where ts < '2020-01-01'",
        "set time zone 'UTC'",
        "insert into t (a, tz) values (6, '2020-01-01 00:00')",
    ] {
        assert_eq!(code(&tokyo, sql).await, "00000", "{sql}");
    }
    let shown = rows(&tokyo, "select tz from t where a = 1").await;
    assert_eq!(shown, [[Some("2019-12-31 15:00:00+00".to_owned())]]);
    tokyo.batch_execute("reset time zone").await.unwrap();
    assert_eq!(code(&tokyo, local[0]).await, "0A000", "the client has what it connected with again");
    for zone in ["UTC", "Etc/UTC", "GMT", "GMT0", "UCT", "Zulu", "+00", "00:00", "-00:00", "0"] {
        let granted = super::connect(&config(zone)).await;
        assert_eq!(code(&granted, "select '2020-01-01'::timestamptz").await, "00000", "{zone}");
    }
}

/// Answers that must be gathered, and then prepared statements, need more memory than their limits. The
/// gateway counts their bytes, and refuses what would exceed a limit.
#[tokio::test]
async fn the_memory_of_gathered_answers_and_statements_is_bounded() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    let long = "x".repeat(1 << 20);
    for sql in [
        "select repeat('x', 60000000), repeat('x', 60000000), repeat('x', 60000000)",
        "select a.attname from pg_attribute a, pg_attribute b, pg_attribute c",
        "select count(*) from pg_attribute a, pg_attribute b, pg_attribute c",
        "select string_agg(a.attname, '') from pg_attribute a, pg_attribute b",
    ] {
        let refused = code(&client, sql).await;
        assert!(matches!(refused.as_str(), "53200" | "54000"), "{sql}: {refused}");
    }
    for number in 0..40 {
        let prepared = format!("prepare p{number} as select '{long}'");
        match code(&client, &prepared).await.as_str() {
            "00000" => assert!(number < 30, "prepared statements have no bound"),
            refused => {
                assert_eq!(refused, "53200");
                break;
            }
        }
    }
    client.batch_execute("deallocate all").await.unwrap();
    client.batch_execute(&format!("prepare p as select '{long}'")).await.unwrap();
    let (mut raw, _) = Raw::begin(gateway.address).await;
    raw.send(&query(&format!("select '{long}'::int"))).await.unwrap();
    let said = raw.until_ready().await;
    assert_eq!(errors(&said), ["22P02"]);
    assert!(said[0].body.len() < 40_000, "the text of an error is bounded: {}", said[0].body.len());
}
