//! Maps of partial quorums for Redis clients, with real processes, real kills, and histories of the clients'
//! operations.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use quorate_history::{Action, History, Operation, Recorder, Value, Verdict, check};
use quorate_testing::{SetOnDrop, wait_for};
use serde_json::Value as Json;

use crate::{
    cluster::{process, status, turn},
    command::LocalCluster,
};

/// A connection that speaks RESP2.
pub(crate) struct Redis {
    stream: BufReader<TcpStream>,
}

impl Redis {
    pub(crate) fn connect(address: &str) -> std::io::Result<Redis> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.set_nodelay(true)?;
        Ok(Redis { stream: BufReader::new(stream) })
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Returns the next answer as text, with its parts separated by spaces.
    pub(crate) fn answer(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let (tag, rest) = line.split_at(1);
        match tag {
            "$" if rest == "-1" => Ok(String::from("(nil)")),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Ok(String::from_utf8(bytes).unwrap())
            }
            "*" => {
                let parts: std::io::Result<Vec<String>> =
                    (0..rest.parse::<usize>().unwrap()).map(|_| self.answer()).collect();
                Ok(parts?.join(" "))
            }
            "+" | ":" | "-" => Ok(rest.to_owned()),
            _ => panic!("what is {line:?}?"),
        }
    }

    pub(crate) fn ask(&mut self, words: &[&str]) -> std::io::Result<String> {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.send(bytes.as_bytes())?;
        self.answer()
    }

    #[track_caller]
    pub(crate) fn check(&mut self, line: &str, wanted: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = self.ask(&words).unwrap();
        assert_eq!(answer, wanted, "{line}");
    }

    #[track_caller]
    pub(crate) fn refused(&mut self, line: &str, because: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = self.ask(&words).unwrap();
        assert!(answer.contains(because), "{line}: {answer}");
    }
}

fn up(place: &LocalCluster, cells: &str) -> Vec<String> {
    let up = place.run(&["up", "--detach", "--memory", "--storage", "0", "--cells", cells, "--port", "0"]);
    assert_eq!(up.code, Some(0), "{up:?}");
    assert!(up.out.contains("redis-cli -h 127.0.0.1 -p "), "{up:?}");
    doors(place)
}

/// Returns the addresses of the Redis doors, in the order of the cells.
pub(crate) fn doors(place: &LocalCluster) -> Vec<String> {
    let rows = status(place).into_iter().filter(|row| row["role"] == "cell");
    rows.map(|row| row["bound"]["redis"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn redis_clients_are_served_by_every_cell() {
    let _turn = turn();
    let place = LocalCluster::new();
    let doors = up(&place, "3");
    assert_eq!(doors.len(), 3);
    let [mut one, mut two] = [0, 1].map(|cell| Redis::connect(&doors[cell]).unwrap());

    one.check("PING", "PONG");
    one.check("SET greeting hello", "OK");
    two.check("GET greeting", "hello");
    two.check("EXISTS greeting nothing", "1");
    one.check("MSET a 1 b 2 c 3", "OK");
    two.check("MGET a b c d", "1 2 3 (nil)");
    two.check("DEL a b nothing", "2");
    one.check("MGET a b c", "(nil) (nil) 3");
    one.check("HSET h x 1 y 2", "2");
    two.check("HSET h y 3 z 4", "1");
    one.check("HGETALL h", "x 1 y 3 z 4");
    two.check("HDEL h x nothing", "1");
    two.check("HMGET h x y", "(nil) 3");
    one.refused("GET h", "WRONGTYPE");
    one.check("SET short v PX 150", "OK");
    wait_for("the key expires", || two.ask(&["GET", "short"]).unwrap() == "(nil)");
    one.check("SET long v EX 100", "OK");
    two.check("TTL long", "100");

    // Each cell lists every key once.
    let scanned = two.ask(&["SCAN", "0", "MATCH", "*"]).unwrap();
    let mut keys: Vec<&str> = scanned.split(' ').collect();
    assert_eq!(keys.remove(0), "0", "{scanned}");
    keys.sort_unstable();
    assert_eq!(keys, ["c", "greeting", "h", "long"]);
    one.check("SCAN 0 TYPE hash", "0 h");
    one.refused("SCAN x", "invalid cursor");

    // Levels can be set for a connection, or for its next command.
    one.check("QUORATE LEVEL", "read quorum write quorum");
    one.check("QUORATE LEVEL one all", "OK");
    one.check("QUORATE LEVEL", "read one write all");
    one.check("QUORATE LEVEL two next", "OK");
    one.check("GET greeting", "hello");
    two_techniques_of_004(&mut one);
    for refused in ["SETNX k v", "HINCRBY k f 1", "EXPIRE k 5", "AUTH x", "KEYS *", "FROBNICATE"] {
        let name = refused.split(' ').next().unwrap();
        one.refused(refused, name);
    }

    // Maps are created and dropped for all cells.
    one.check("QUORATE CREATE side COPIES 2", "OK");
    wait_for("the others have it", || two.ask(&["QUORATE", "MAP", "side"]).unwrap() == "OK");
    two.check("GET greeting", "(nil)");
    two.check("SET greeting other", "OK");
    one.check("GET greeting", "hello");
    one.refused("QUORATE CREATE side", "exists");
    one.refused("QUORATE CREATE wide COPIES 4", "has 3 cells, too few for the 4 copies");
    one.check("QUORATE DROP side", "OK");
    wait_for("the map is gone", || two.ask(&["GET", "greeting"]).unwrap().starts_with("NOMAP"));
    two.check("QUORATE MAP main", "OK");

    // Answers of a pipeline come in the order of its requests, and a read sees the write before it.
    let mut pipeline = Vec::new();
    for n in 0..500 {
        pipeline.extend(format!("SET p{} {n}\r\nGET p{}\r\nPING\r\n", n % 7, n % 7).into_bytes());
    }
    one.send(&pipeline).unwrap();
    for n in 0..500 {
        let answers = [0; 3].map(|_| one.answer().unwrap());
        assert_eq!(answers, [String::from("OK"), n.to_string(), String::from("PONG")]);
    }
    hostile_clients_do_no_harm(&doors[0]);
    refused_openings_refuse_what_they_would_enclose(&doors[0]);
    answers_are_bounded(&place, &doors);
    figures_are_shown(&place);

    // The errors of the command explain themselves. A cluster without tables has no SQL.
    place.run(&["up", "--cells", "2", "--level", "most"]).failed(2, "no level 'most'");
    place.run(&["sql", "select 1"]).failed(1, "no gateway");
}

/// Clients increment through all cells, and one cell is killed. Every acknowledged increment counts exactly
/// once.
#[test]
fn increments_count_once_though_a_cell_dies() {
    let _turn = turn();
    let place = LocalCluster::new();
    let doors = up(&place, "3");
    let mut one = Redis::connect(&doors[0]).unwrap();
    one.check("SET n 40", "OK");
    one.check("INCR n", "41");
    one.check("DECRBY n -9", "50");
    one.check("DECR n", "49");
    one.check("TYPE n", "string");
    one.refused("INCRBY n 9223372036854775807", "ERR increment or decrement would overflow");
    one.check("SET text hello", "OK");
    one.refused("INCR text", "ERR value is not an integer or out of range");
    one.check("HSET h f 1", "1");
    one.refused("INCR h", "WRONGTYPE");
    one.check("SET short 5 PX 60000", "OK");
    one.check("INCR short", "6");
    one.check("TTL short", "60");
    one.check("DEL n", "1");
    let stop = AtomicBool::new(false);
    let counts: Vec<(i64, i64)> = thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        let clients: Vec<_> = (0..6)
            .map(|client| {
                let (doors, stop) = (&doors, &stop);
                scope.spawn(move || add_until(stop, doors, client))
            })
            .collect();
        thread::sleep(Duration::from_millis(500));
        assert_eq!(place.run(&["kill", "cell-3"]).code, Some(0));
        wait_for("the next life has its keys", || {
            let row = process(&place, "cell-3");
            row["starts"].as_u64() == Some(2) && row["state"] == "serving"
        });
        thread::sleep(Duration::from_millis(500));
        drop(stopping);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let (done, unknown) = counts.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    assert!(done > 100, "{counts:?}");
    for door in &doors {
        let count: i64 = Redis::connect(door).unwrap().ask(&["GET", "n"]).unwrap().parse().unwrap();
        assert!((done..=done + unknown).contains(&count), "{count}: {done} done, {unknown} unknown");
    }
    assert_eq!(place.run(&["down", "--yes"]).code, Some(0));
}

/// Sends increments as one client until `stop` is set. Returns the numbers of acknowledged increments and of
/// those of unknown outcome.
fn add_until(stop: &AtomicBool, doors: &[String], client: usize) -> (i64, i64) {
    let (mut done, mut unknown) = (0, 0);
    let mut connection = None;
    while !stop.load(Ordering::Relaxed) {
        if connection.is_none() {
            connection = Redis::connect(&doors[client % doors.len()]).ok();
        }
        let Some(redis) = &mut connection else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        match redis.ask(&["INCR", "n"]) {
            Ok(answer) if answer.parse::<i64>().is_ok() => done += 1,
            Ok(answer) if answer.starts_with("MAYBEAPPLIED") => unknown += 1,
            Ok(answer) => assert!(
                ["NOTAPPLIED", "UNAVAILABLE", "NOCELL"].iter().any(|word| answer.starts_with(word)),
                "{answer}"
            ),
            Err(_) => {
                unknown += 1;
                connection = None;
            }
        }
    }
    (done, unknown)
}

/// Tests levels by chance, and delays inside the interval that the client sees.
fn two_techniques_of_004(client: &mut Redis) {
    client.check("QUORATE P 0.25 1 between one all", "OK");
    client.check(
        "QUORATE P",
        "read all with probability 0.25, else one write all with probability 1, else one",
    );
    for n in 0..50 {
        client.check(&format!("SET dialled {n}"), "OK");
        client.check("GET dialled", &n.to_string());
    }
    client.refused("QUORATE P 2", "'2' is no probability");
    client.check("QUORATE LEVEL one all", "OK");
    client.check("QUORATE DELAY 60ms 0 next", "OK");
    let began = Instant::now();
    client.check("GET dialled", "49");
    assert!(began.elapsed() >= Duration::from_millis(60), "the read was not delayed: {:?}", began.elapsed());
    client.check("QUORATE DELAY 0 60ms", "OK");
    let began = Instant::now();
    client.check("SET dialled last", "OK");
    assert!(began.elapsed() >= Duration::from_millis(60), "the write was not delayed: {:?}", began.elapsed());
    client.check("QUORATE DELAY", "before reads 0ns, after writes 60ms");
    client.check("QUORATE DELAY 0", "OK");
    client.refused("QUORATE DELAY 61s", "is no delay");
    let info = client.ask(&["INFO", "server", "maps"]).unwrap();
    assert!(
        info.contains("redis_version:") && info.contains("cells:3") && !info.contains("# Clients"),
        "{info}"
    );
}

/// The clients use the dial. The bench judges their recorded history, and `quorate check` judges the same
/// history.
#[test]
fn the_bench_measures_client_results() {
    let _turn = turn();
    let place = LocalCluster::new();
    let kept = tempfile::tempdir().unwrap();
    let tape = kept.path().join("history.jsonl");
    let words =
        ["bench", "quorum", "--json", "--seconds", "1", "--clients", "6", "--keys", "40", "--rate", "300"];
    let tape = tape.to_str().unwrap();
    let more = ["--p", "0,1", "--delay", "0/1", "--repair", "blocking", "--record", tape];
    let bench = place.run(&[&words[..], &more[..]].concat());
    assert_eq!(bench.code, Some(0), "{bench:?}");
    let runs: Vec<Json> = bench.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(runs.len(), 2, "{bench:?}");
    for (run, p) in runs.iter().zip([0.0, 1.0]) {
        assert_eq!((&run["bench"], &run["p_read"], &run["failed"]), (&"quorum".into(), &p.into(), &0.into()));
        let rate = run["per_second"].as_f64().unwrap();
        assert!((200.0..320.0).contains(&rate), "{run}");
        // Each write ends a millisecond later than necessary.
        assert!(run["write"]["p50_us"].as_f64().unwrap() >= 1_000.0, "{run}");
        assert!(run["history"]["operations"].as_u64().unwrap() >= 200 + 40, "{run}");
    }
    // Quorums with blocking repair are atomic.
    assert_eq!(
        (&runs[1]["history"]["atomic"], &runs[1]["history"]["proportion"]),
        (&true.into(), &0.0.into())
    );
    let checked = place.run(&["check", tape]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

/// An agreement is held between distant sites. If no setting keeps an agreement, `quorate tune` says that it
/// is out of reach.
#[test]
fn an_agreement_is_held_or_out_of_reach() {
    let _turn = turn();
    let place = LocalCluster::new();
    let far = "0-1=5,0-2=5,1-2=5~1";
    let up = ["up", "--detach", "--memory", "--port", "0", "--storage", "0"];
    let up = [&up[..], &["--cells", "3", "--sites", "3", "--distance", far]].concat();
    let up = place.run(&up);
    assert_eq!(up.code, Some(0), "{up:?}");
    let cell = process(&place, "cell-1");
    let store = format!("quorate://{}/main", cell["bound"]["redis"].as_str().unwrap());
    let tune = |sla: &str, more: &[&str]| {
        let words = [
            "tune",
            "--json",
            "--store",
            &store,
            "--sla",
            sla,
            "--clients",
            "6",
            "--rate",
            "300",
            "--keys",
            "40",
        ];
        place.run(&[&words[..], more].concat())
    };
    let held = tune("p95<=2s,inconsistent<=90%", &["--window", "0.5", "--seconds", "3"]);
    assert_eq!(held.code, Some(0), "{held:?}");
    let end: Json = serde_json::from_str(held.out.lines().last().unwrap()).unwrap();
    assert_eq!((&end["held"], &end["setting"]["p_reads"]), (&true.into(), &0.0.into()), "{end}");
    // A message to a quorum and back takes 10 ms.
    let strict = tune("inconsistent<=0", &["--window", "0.5", "--seconds", "4"]);
    assert_eq!(strict.code, Some(0), "{strict:?}");
    let end: Json = serde_json::from_str(strict.out.lines().last().unwrap()).unwrap();
    assert_eq!(end["setting"]["p_writes"], 1.0, "{end}");
    let strong = end["tried"].as_array().unwrap().iter().find(|it| it["setting"] == end["setting"]).unwrap();
    assert!(strong["p50_us"].as_f64().unwrap() >= 9_000.0, "{strong}");
    let never = tune("mean<=1us,inconsistent<=90%", &["--window", "0.2", "--seconds", "16"]);
    assert_eq!(never.code, Some(1), "{never:?}");
    assert!(never.out.contains(r#""phase":"out-of-reach""#), "{never:?}");
    assert_eq!(tune("p95", &[]).code, Some(2));
    assert_eq!(place.run(&["down", "--yes"]).code, Some(0));
}

fn hostile_clients_do_no_harm(door: &str) {
    // Each client sends half a request and then nothing. 200 is as many as a test may have.
    let silent: Vec<Redis> = (0..200)
        .map(|_| {
            let mut client = Redis::connect(door).unwrap();
            client.send(b"*2\r\n$3\r\nGET\r\n$9\r\nhal").unwrap();
            client
        })
        .collect();
    for (bytes, because) in [
        (&b"*99999999\r\n"[..], "invalid multibulk length"),
        (b"*1\r\n*1\r\n*1\r\n", "expected '$', got '*'"),
        (b"*1\r\n$999999999\r\n", "invalid bulk length"),
        (b"*1\r\n$2\r\nabc\r\n", "longer than its declared"),
        (&[b'x'; (64 << 10) + 1], "too big inline request"),
    ] {
        let mut client = Redis::connect(door).unwrap();
        client.send(bytes).unwrap();
        assert!(client.answer().unwrap().contains(because), "{because}");
        assert!(client.answer().is_err(), "the client is cut off: {because}");
    }
    let mut client = Redis::connect(door).unwrap();
    client.check("GET greeting", "hello");
    drop(silent);
}

/// Tests clients that send a pipeline and ignore the refusal of its first command. The cell also refuses the
/// commands that the first command would have enclosed.
fn refused_openings_refuse_what_they_would_enclose(door: &str) {
    let mut client = Redis::connect(door).unwrap();
    let mut ask = |lines: &str| {
        client.send(lines.replace('\n', "\r\n").as_bytes()).unwrap();
        lines.lines().map(|_| client.answer().unwrap()).collect::<Vec<_>>()
    };
    // redis-py's pipelines send these commands by default.
    let lines = ask("MULTI\nINCR hits\nSET hits 7\nEXEC\nEXISTS hits\n");
    assert!(lines[0].contains("transaction=False") && lines[3].starts_with("EXECABORT"), "{lines:?}");
    assert_eq!(lines[4], "0", "{lines:?}");
    let lines = ask("MULTI\nINCR hits\nDISCARD\nEXISTS hits\n");
    assert_eq!(lines[2..], ["OK", "0"], "{lines:?}");
    // ioredis sends these commands with `db: 1`.
    let lines = ask("SELECT 1\nSET hits 1\nDEL greeting\nSELECT 0\nEXISTS hits greeting\n");
    assert!(lines[1].starts_with("NOMAP") && lines[2].starts_with("NOMAP"), "{lines:?}");
    assert_eq!(lines[3..], ["OK", "1"], "{lines:?}");
    assert_eq!(ask("QUORATE LEVEL one\nRESET\nQUORATE LEVEL\n")[2], "read quorum write quorum");
    // A web page can send such a request. The cell does not read its body.
    for head in ["POST / HTTP/1.1\r\nHost: x", "GET / HTTP/1.1", "Host: x"] {
        let mut browser = Redis::connect(door).unwrap();
        browser.send(format!("{head}\r\n\r\nSET hits 1\r\nPING\r\n").as_bytes()).unwrap();
        assert!(browser.answer().unwrap().contains("HTTP"), "{head}");
        assert!(browser.answer().is_err(), "the browser is cut off: {head}");
    }
    assert_eq!(ask("EXISTS hits\nSET quoted \"a b\"\nGET quoted\n"), ["0", "OK", "a b"]);
}

/// Tests short requests with huge answers, and clients that do not read these answers.
fn answers_are_bounded(place: &LocalCluster, doors: &[String]) {
    const VALUE_BYTES: usize = 4 << 20;
    /// Largest growth above the initial memory of a cell, in bytes, also in debug builds.
    const GROWTH_MAX: u64 = 512 << 20;
    let value = "v".repeat(VALUE_BYTES);
    let mut client = Redis::connect(&doors[0]).unwrap();
    assert_eq!(client.ask(&["SET", "large", &value]).unwrap(), "OK");
    let before: Vec<u64> = (1..=3).map(|cell| most_memory(place, cell)).collect();
    let many = [vec!["MGET"], vec!["large"; 65_535]].concat();
    for door in doors {
        let mut client = Redis::connect(door).unwrap();
        for level in ["one", "quorum", "all"] {
            client.check(&format!("QUORATE LEVEL {level}"), "OK");
            let answer = client.ask(&many).unwrap();
            assert!(
                answer.starts_with("TOOLARGE the answer would have more than 33554432 bytes"),
                "{level}: {answer}"
            );
            assert_eq!(client.ask(&["MGET", "large", "large"]).unwrap().len(), 2 * VALUE_BYTES + 1);
        }
    }
    // Nobody reads these answers, which are 4 GiB.
    let unread: Vec<Redis> = (0..4)
        .map(|_| {
            let mut client = Redis::connect(&doors[0]).unwrap();
            client.send("GET large\r\n".repeat(256).as_bytes()).unwrap();
            client
        })
        .collect();
    // This client reads all its answers. Clients that read nothing may hold the space for a moment.
    client.send("GET large\r\n".repeat(64).as_bytes()).unwrap();
    let answers: Vec<String> = (0..64).map(|_| client.answer().unwrap()).collect();
    let strange = answers.iter().find(|it| it.len() != VALUE_BYTES && !it.starts_with("BUSY"));
    assert_eq!(strange.map(|it| &it[..it.len().min(100)]), None);
    wait_for("there is space again", || client.ask(&["GET", "large"]).unwrap().len() == VALUE_BYTES);
    client.check("GET greeting", "hello");
    for (cell, before) in (1..=3).zip(before) {
        let grown = most_memory(place, cell).saturating_sub(before);
        assert!(grown <= GROWTH_MAX, "cell {cell} has grown by {grown} bytes");
    }
    drop(unread);
    client.check("DEL large", "1");
}

/// Returns the peak memory of a cell, in bytes.
fn most_memory(place: &LocalCluster, cell: usize) -> u64 {
    let pid = &process(place, &format!("cell-{cell}"))["pid"];
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    most.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn figures_are_shown(place: &LocalCluster) {
    let cell = process(place, "cell-1");
    let http = cell["bound"]["http"].as_str().unwrap();
    let fetch = |name: &str| {
        ureq::get(format!("http://{http}/{name}")).call().unwrap().body_mut().read_to_string().unwrap()
    };
    let text = fetch("metrics");
    for name in [
        "quorate_map_reads_quorum_total",
        "quorate_map_writes_all_seconds_count",
        "quorate_map_hints{",
        "quorate_map_refused_stamps{",
        "quorate_resp_malformed_total",
        "quorate_clients{",
    ] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name} in\n{text}");
    }
    let status: Json = serde_json::from_str(&fetch("status")).unwrap();
    assert_eq!(status["state"], "serving", "{status}");
    assert_eq!(status["cell"]["reachable"].as_array().unwrap().len(), 3, "{status}");
    assert_eq!(fetch("health"), "ok\n");
}

/// Clients write and read a few keys at level quorum, in a map with blocking repair. Meanwhile every cell is
/// killed, one after another, and a router. The clients' history is atomic, and they keep working.
#[test]
fn quorum_operations_are_atomic_while_cells_are_killed() {
    let _turn = turn();
    let place = LocalCluster::new();
    let doors = up(&place, "3");
    let began = Instant::now();
    let stop = AtomicBool::new(false);
    let operations: Vec<Operation> = thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        let client = |number: u64| {
            let (doors, stop) = (&doors, &stop);
            scope.spawn(move || work(number, doors, "main", began, stop))
        };
        let clients: Vec<_> = (0..6).map(client).collect();
        let pause = || thread::sleep(Duration::from_millis(700));
        pause();
        for victim in ["cell-2", "router-1"] {
            assert_eq!(place.run(&["kill", victim]).code, Some(0));
            pause();
        }
        // Once the next life of a cell has copied its keys, the next cell may be killed.
        for victim in ["cell-2", "cell-1", "cell-3"] {
            if victim != "cell-2" {
                assert_eq!(place.run(&["kill", victim]).code, Some(0));
            }
            wait_for("the next life of the cell serves", || {
                let row = process(&place, victim);
                row["starts"].as_u64() == Some(2) && row["state"] == "serving"
            });
            pause();
        }
        drop(stopping);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let done = operations.iter().filter(|operation| operation.finish.is_some()).count();
    assert!(done > 1_000, "only {done} operations");
    let late = operations.iter().map(|operation| operation.start).max().unwrap() - 300_000_000;
    assert!(
        operations.iter().any(|operation| operation.start > late && operation.finish.is_some()),
        "operations succeed until the end"
    );
    let history: History = operations.into_iter().collect();
    let report = check(&history);
    assert_eq!(report.verdict, Verdict::Atomic, "{report}");
}

/// Works as one client after another, each with one connection. Each client writes values that no other
/// client writes, and reads. If a cell fails, the next client uses the next cell.
pub(crate) fn work(
    number: u64,
    doors: &[String],
    map: &str,
    began: Instant,
    stop: &AtomicBool,
) -> Vec<Operation> {
    let mut recorder = Recorder::in_memory(number);
    let mut operations = Vec::new();
    let now = || began.elapsed().as_nanos() as i64;
    let (mut door, mut count) = (number as usize, 0u64);
    let mut connection = None;
    while !stop.load(Ordering::Relaxed) {
        count += 1;
        let redis = match &mut connection {
            Some(redis) => redis,
            empty => match enter(&doors[door % doors.len()], map) {
                Some(redis) => {
                    let before = std::mem::replace(&mut recorder, Recorder::in_memory(number + 100 * count));
                    operations.extend(before.into_operations());
                    empty.insert(redis)
                }
                None => {
                    door += 1;
                    thread::sleep(Duration::from_millis(5));
                    continue;
                }
            },
        };
        let key = format!("k{}", (count + number) % 3);
        let writes = (count * 7 + number).is_multiple_of(3);
        let value = format!("{number}.{count}");
        let action = if writes { Action::Write(Value::from(value.as_str())) } else { Action::Read(None) };
        let call = recorder.start(&key, action, now()).unwrap();
        let answer = if writes { redis.ask(&["SET", &key, &value]) } else { redis.ask(&["GET", &key]) };
        match answer.as_deref() {
            Ok("OK") if writes => recorder.ok(call, now()).unwrap(),
            Ok("(nil)") if !writes => recorder.returned(call, None, now()).unwrap(),
            Ok(error) if error.contains(' ') => {
                // The operation was refused, or its outcome is unknown. In the second case the recorded
                // operation has no end.
                if !error.starts_with("MAYBEAPPLIED") && !error.starts_with("UNANSWERED") {
                    recorder.failed(call, now()).unwrap();
                }
                if error.starts_with("NOCELL") {
                    door += 1;
                    connection = None;
                }
            }
            Ok(value) => recorder.returned(call, Some(Value::from(value)), now()).unwrap(),
            Err(_) => {
                door += 1;
                connection = None;
            }
        }
    }
    operations.extend(recorder.into_operations());
    operations
}

/// Connects to a cell and enters a map. Returns `None` if the cell does not have the map.
fn enter(door: &str, map: &str) -> Option<Redis> {
    let mut redis = Redis::connect(door).ok()?;
    (redis.ask(&["QUORATE", "MAP", map]).ok()? == "OK").then_some(redis)
}
