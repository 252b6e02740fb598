//! The door withstands bytes that are no messages, messages in a wrong order, clients that leave early or
//! stay silent, and cancellations at any moment.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use quorate_runtime::metrics::Metrics as Registry;
use quorate_server::{metrics::Metrics, pg};
use quorate_sql::local::LocalBackend;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use tokio::{net::TcpListener, sync::oneshot};

use super::{
    Gateway,
    raw::{Raw, bind, execute, kinds, message, parse, query, startup, sync},
};

/// Starts a gateway whose metrics the test can read.
async fn counted(connections: usize) -> (Gateway, Arc<Metrics>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let metrics = Arc::new(Metrics::new(&Registry::default()));
    let server = pg::Server::with(Arc::new(LocalBackend::new()), connections, metrics.clone());
    tokio::spawn(server.serve(listener, async {
        let _ = stopped.await;
    }));
    (Gateway { address, stop: Some(stop) }, metrics)
}

async fn becomes(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: not within ten seconds");
}

/// Returns the messages of a session that uses most message kinds of the protocol.
fn script() -> Vec<u8> {
    let statements = [
        query("create table if not exists t (n int primary key, s text)"),
        parse("s", "insert into t values ($1, $2)"),
        bind("s", &[1, 0], &[Some(&7i32.to_be_bytes()), Some(b"seven")], &[]),
        execute("", 0),
        sync(),
        parse("", "select n, s from t where n >= $1 order by n"),
        bind("", &[], &[Some(b"1")], &[1]),
        message(b'D', b"P\0"),
        execute("", 1),
        execute("", 0),
        message(b'C', b"Ss\0"),
        sync(),
        query("copy t from stdin (format csv)"),
        message(b'd', b"8,eight\n9,nine\n"),
        message(b'c', b""),
        query("copy t to stdout"),
        message(b'H', b""),
        query("delete from t"),
    ];
    [vec![startup()], statements.to_vec()].concat().concat()
}

/// Damages a script at random places.
fn damage(random: &mut Pcg64, bytes: &mut Vec<u8>) {
    // Half of the damaged scripts keep their startup packet intact, so that the server reads beyond it.
    let from = if random.random() { startup().len() } else { 0 };
    for _ in 0..random.random_range(1..4) {
        if bytes.len() <= from {
            return;
        }
        let at = random.random_range(from..bytes.len());
        match random.random_range(0..7) {
            0 => bytes[at] = random.random(),
            1 => bytes[at] ^= 1 << random.random_range(0..8),
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..bytes.len().min(at + random.random_range(1..9)))),
            4 => {
                drop(bytes.splice(at..at, (0..random.random_range(1..9)).map(|_| 0xff).collect::<Vec<u8>>()))
            }
            5 => {
                // The damage may hit a length, so these values are extremes of lengths.
                let lengths = [i32::MIN, -1, 0, 3, 5, 9_999, 1 << 24, 1 << 30, i32::MAX];
                let length = lengths[random.random_range(0..lengths.len())].to_be_bytes();
                drop(bytes.splice(at..bytes.len().min(at + 4), length));
            }
            _ => {
                let noise: Vec<u8> = (0..random.random_range(1..200)).map(|_| random.random()).collect();
                drop(bytes.splice(at..at, noise));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_session_ends_without_harm_to_other_sessions() {
    let (gateway, metrics) = counted(1_000).await;
    let address = gateway.address;
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..8 {
        tasks.spawn(async move {
            let mut random = Pcg64::seed_from_u64(worker);
            for _ in 0..250 {
                let mut bytes = script();
                damage(&mut random, &mut bytes);
                let mut raw = Raw::silent(address).await;
                // Sending may fail, because the server may have closed the connection before it read
                // everything.
                let _ = raw.send(&bytes).await;
                if random.random_range(0..4) > 0 {
                    well_formed(&raw.ended().await.unwrap_or_default());
                }
            }
        });
    }
    tasks.join_all().await;
    // The door may not have accepted the last connections yet, so the test waits.
    becomes("all are let in", || metrics.connections.get() == 2_000).await;
    becomes("every connection is gone", || metrics.sessions.get() == 0).await;
    assert!(
        metrics.malformed_connections.get() > 100,
        "{} were garbage",
        metrics.malformed_connections.get()
    );
    let client = gateway.connect().await;
    client.batch_execute("drop table if exists t").await.unwrap();
    let row = client.query_one("select 6 * 7", &[]).await.unwrap();
    assert_eq!(row.get::<_, i32>(0), 42);
}

/// Checks that the answer is a sequence of whole messages, however the server understood the damaged script.
fn well_formed(mut bytes: &[u8]) {
    while bytes.first() == Some(&b'N') && bytes.get(1).is_none_or(|kind| *kind != 0) {
        // The damaged packet asked for encryption, and the server declined with a single letter.
        bytes = &bytes[1..];
    }
    while let Some((head, rest)) = bytes.split_first_chunk::<5>() {
        assert!(head[0].is_ascii_alphanumeric(), "a message of kind {}", head[0]);
        let length = i32::from_be_bytes(head[1..].try_into().unwrap()) as usize - 4;
        assert!(rest.len() >= length, "the last message is cut off");
        bytes = &rest[length..];
    }
    assert!(bytes.is_empty(), "{bytes:?} behind the last message");
}

#[tokio::test]
async fn a_wrong_message_is_refused_and_the_connection_stays_usable() {
    let gateway = Gateway::start().await;
    let (mut raw, _) = Raw::begin(gateway.address).await;
    let statement = parse("s", "select $1::int + $2::int");
    raw.send(&[statement, sync()].concat()).await.unwrap();
    assert_eq!(kinds(&raw.until_ready().await), "1Z");
    let (one, two) = (1i32.to_be_bytes(), 2i32.to_be_bytes());
    let (one, two) = (Some(&one[..]), Some(&two[..]));
    for (what, bad, code) in [
        ("too few values", bind("s", &[1], &[one], &[]), "08P01"),
        ("too many values", bind("s", &[1], &[one, two, one], &[]), "08P01"),
        ("too many formats", bind("s", &[1, 1, 1], &[one, two], &[]), "08P01"),
        ("too many result formats", bind("s", &[1], &[one, two], &[1, 1]), "08P01"),
        ("a format that is none", bind("s", &[7], &[one, two], &[]), "22023"),
        ("no such statement", bind("nobody", &[], &[], &[]), "26000"),
        ("a value cut short", bind("s", &[1], &[one, Some(b"\0\0")], &[]), "08P01"),
        ("text that is no number", bind("s", &[0], &[Some(b"x"), Some(b"1")], &[]), "22P02"),
        ("text that is no text", bind("s", &[0], &[Some(b"\xff"), Some(b"1")], &[]), "22021"),
        ("no such portal", execute("nobody", 0), "34000"),
        ("describing no statement", message(b'D', b"Snobody\0"), "26000"),
        ("describing no portal", message(b'D', b"Pnobody\0"), "34000"),
        ("a name twice", parse("s", "select 1"), "42P05"),
        ("a statement that is none", parse("", "selec 1"), "42601"),
        ("two statements", parse("", "select 1; select 2"), "42601"),
    ] {
        // After an error, the server ignores messages up to Sync, and serves the messages after the Sync as
        // usual.
        let good = [bind("s", &[1], &[one, two], &[1]), execute("", 0), sync()].concat();
        raw.send(&[bad, good.clone(), good].concat()).await.unwrap();
        let refused = raw.until_ready().await;
        assert_eq!(kinds(&refused), "EZ", "{what}: {refused:?}");
        assert_eq!(refused[0].field(b'C'), code, "{what}: {}", refused[0].field(b'M'));
        let answered = raw.until_ready().await;
        assert_eq!(kinds(&answered), "2DCZ", "{what}");
        assert_eq!(answered[1].row(), [Some(&3i32.to_be_bytes()[..])], "{what}");
    }
}

#[tokio::test]
async fn a_long_pipeline_stops_only_at_its_error() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    client.batch_execute("create table t (n int primary key)").await.unwrap();
    let (mut raw, _) = Raw::begin(gateway.address).await;
    let one = |n: i32| {
        [
            parse("", "insert into t values ($1)"),
            bind("", &[1], &[Some(&n.to_be_bytes())], &[]),
            execute("", 0),
        ]
        .concat()
    };
    // The 300th statement inserts a key that exists.
    let mut pipeline: Vec<u8> = (0..600).flat_map(|n| one(if n == 300 { 7 } else { n })).collect();
    pipeline.extend(sync());
    // The second pipeline arrives together with the first.
    pipeline.extend((1_000..1_400).flat_map(one));
    pipeline.extend(sync());
    raw.send(&pipeline).await.unwrap();
    let first = raw.until_ready().await;
    // The whole pipeline is one write. Its error takes the place of the first result.
    assert_eq!(kinds(&first), "12EZ");
    assert_eq!(first[2].field(b'C'), "23505");
    assert!(first[2].field(b'D').contains("This was statement 301"), "{}", first[2].field(b'D'));
    assert_eq!(kinds(&raw.until_ready().await), "12C".repeat(400) + "Z");
    let row = client.query_one("select count(*), sum(n) from t", &[]).await.unwrap();
    let expected = (1_000..1_400).sum::<i64>();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (400, expected));
}

#[tokio::test]
async fn silent_connections_do_not_keep_clients_out() {
    let (gateway, metrics) = counted(2).await;
    let mut silent = Vec::new();
    for number in 0..2 * pg::OPENINGS_MAX {
        let mut raw = Raw::silent(gateway.address).await;
        // A client that sends a byte now and then counts as silent.
        raw.send(&startup()[..number % 8]).await.unwrap();
        silent.push(raw);
    }
    // A client that sends its startup packet is accepted.
    let client = gateway.connect().await;
    client.batch_execute("create table t (n int)").await.unwrap();
    let most = pg::OPENINGS_MAX as i64 + 1;
    becomes("the oldest are sent away", || metrics.sessions.get() <= most).await;
    // The gateway accepts two sessions, but no third session.
    let _second = gateway.connect().await;
    let mut third = Raw::silent(gateway.address).await;
    third.send(&startup()).await.unwrap();
    assert_eq!(third.next().await.expect("a refusal").field(b'C'), "53300");
    drop(silent);
    becomes("all are gone", || metrics.sessions.get() == 2).await;
    client.batch_execute("insert into t values (1)").await.unwrap();
}

#[tokio::test]
async fn thousands_of_closed_connections_leave_no_session() {
    let (gateway, metrics) = counted(1_000).await;
    for round in 0..3_000 {
        let mut raw = Raw::silent(gateway.address).await;
        match round % 4 {
            0 => {}
            1 => raw.send(&startup()[..20]).await.unwrap(),
            2 => raw.send(&startup()).await.unwrap(),
            _ => raw.send(&[startup(), query("select 1"), parse("", "select 2")].concat()).await.unwrap(),
        }
    }
    becomes("all are gone", || metrics.sessions.get() == 0).await;
    assert_eq!(metrics.connections.get(), 3_000);
    gateway.connect().await.batch_execute("select 1").await.unwrap();
}

/// Cancels a session over a new connection, and waits until the door has recorded the cancellation.
async fn cancel(gateway: &Gateway, key: &[u8]) {
    let mut raw = Raw::silent(gateway.address).await;
    raw.send(key).await.unwrap();
    assert_eq!(raw.ended().await.unwrap_or_default(), b"", "a cancellation is answered by nothing");
}

#[tokio::test]
async fn a_cancellation_ends_the_running_statement_and_no_other() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    rows_of_thirty_mebibytes(&client).await;
    let (mut raw, key) = Raw::begin(gateway.address).await;
    // A cancellation before any statement, or with a wrong secret, has no effect.
    cancel(&gateway, &key).await;
    raw.send(&query("select 1")).await.unwrap();
    assert_eq!(kinds(&raw.until_ready().await), "TDCZ");
    let mut wrong = key.clone();
    wrong[15] ^= 1;
    raw.send(&query("select n, s from t")).await.unwrap();
    cancel(&gateway, &wrong).await;
    assert!(kinds(&raw.until_ready().await).ends_with("DCZ"));
    // A cancellation while rows stream to a client that does not read ends the answer in the middle.
    for statement in [query("select n, s from t"), query("copy t to stdout")] {
        raw.send(&statement).await.unwrap();
        let first = raw.next().await.unwrap();
        cancel(&gateway, &key).await;
        let rest = raw.until_ready().await;
        assert!(kinds(&rest).ends_with("EZ"), "{first:?} … {:?}", &rest[rest.len() - 2..]);
        assert_eq!(rest[rest.len() - 2].field(b'C'), "57014");
    }
    let portal = [parse("", "select n, s from t"), bind("", &[], &[], &[]), execute("", 0), sync()].concat();
    raw.send(&portal).await.unwrap();
    raw.next().await.unwrap();
    cancel(&gateway, &key).await;
    assert!(kinds(&raw.until_ready().await).ends_with("EZ"));
    // A cancellation that comes after a statement's end does not affect the next statement.
    raw.send(&query("select 2")).await.unwrap();
    assert_eq!(kinds(&raw.until_ready().await), "TDCZ");
    cancel(&gateway, &key).await;
    raw.send(&query("select 3")).await.unwrap();
    assert_eq!(kinds(&raw.until_ready().await), "TDCZ");
    // A cancellation while the server waits for COPY data takes effect.
    raw.send(&query("copy t from stdin")).await.unwrap();
    assert_eq!(raw.next().await.unwrap().kind, 'G');
    cancel(&gateway, &key).await;
    assert_eq!(kinds(&raw.until_ready().await), "EZ");
}

/// Creates a table with more rows than the buffers of sockets hold.
async fn rows_of_thirty_mebibytes(client: &tokio_postgres::Client) {
    client.batch_execute("create table t (n int, s text)").await.unwrap();
    let mut copy = std::pin::pin!(client.copy_in("copy t from stdin").await.unwrap());
    let line = format!("1\t{}\n", "x".repeat(1_000));
    for _ in 0..30 {
        copy.send(Bytes::from(line.repeat(1_000))).await.unwrap();
    }
    assert_eq!(copy.finish().await.unwrap(), 30_000);
}

#[tokio::test]
async fn a_statement_timeout_covers_the_whole_statement() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    rows_of_thirty_mebibytes(&client).await;
    client.batch_execute("set statement_timeout = 500").await.unwrap();
    // Rows arrive all the time, but the timeout passes before the last row.
    let rows = client.query_raw("select s from t", Vec::<i32>::new()).await.unwrap();
    let mut rows = std::pin::pin!(rows);
    let mut last = None;
    for count in 0.. {
        match rows.next().await {
            Some(Ok(_)) if count % 1_000 == 0 => tokio::time::sleep(Duration::from_millis(100)).await,
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                last = Some(error);
                break;
            }
            None => break,
        }
    }
    let error = last.expect("it took too long");
    assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error:?}");
}

#[tokio::test]
async fn a_block_that_waits_for_its_client_or_takes_too_long_ends_its_connection() {
    let gateway = Gateway::start().await;
    let client = gateway.connect().await;
    client.batch_execute("create table t (id int primary key)").await.unwrap();
    for (setting, code) in
        [("idle_in_transaction_session_timeout", "25P03"), ("transaction_timeout", "25P04")]
    {
        let (mut raw, _) = Raw::begin(gateway.address).await;
        raw.send(&query(&format!("set {setting} = '100ms'"))).await.unwrap();
        raw.until_ready().await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        raw.send(&query("begin; insert into t values (1)")).await.unwrap();
        assert_eq!(kinds(&raw.until_ready().await), "CCZ", "outside of a block it has no effect");
        let last = raw.next().await.expect("the reason");
        assert_eq!((last.field(b'S').as_str(), last.field(b'C').as_str()), ("FATAL", code));
        assert!(raw.next().await.is_none(), "the connection has ended");
    }
    // A client that answers in time may keep its block open.
    let (mut raw, _) = Raw::begin(gateway.address).await;
    raw.send(&query("set idle_in_transaction_session_timeout = '2s'; begin")).await.unwrap();
    raw.until_ready().await;
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        raw.send(&query("select 1")).await.unwrap();
        raw.until_ready().await;
    }
    raw.send(&query("commit")).await.unwrap();
    raw.until_ready().await;
    let row = client.query_one("select count(*) from t", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0, "the blocks were rolled back");
}
