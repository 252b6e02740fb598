//! The HTTP door of services.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use quorate::{
    Node, Wait,
    service::{Begin, Cx, Executed, Export, Kind, Service},
};
use serde::{Deserialize, Serialize};

/// A list of words.
#[derive(Default, Serialize, Deserialize)]
struct Words(Vec<String>);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WordsRequest {
    /// Adds a word. The reply is the word's place in the list.
    Add(String),
    Count,
}

impl Service for Words {
    type Request = WordsRequest;
    type Reply = usize;
    type Delta = String;
    type Undo = ();

    fn execute(&self, ask: &WordsRequest, _: &mut Cx<'_>) -> Executed<Self> {
        match ask {
            WordsRequest::Add(word) if word.is_empty() => Executed::Rejected(String::from("no word")),
            WordsRequest::Add(word) => Executed::Changed(self.0.len() + 1, word.clone()),
            WordsRequest::Count => Executed::Unchanged(self.0.len()),
        }
    }

    fn apply(&mut self, word: &String) {
        self.0.push(word.clone());
    }

    fn revert(&mut self, (): ()) {
        self.0.pop();
    }

    fn kind(ask: &WordsRequest) -> Kind {
        match ask {
            WordsRequest::Add(_) => Kind::Write,
            WordsRequest::Count => Kind::Read,
        }
    }
}

/// Sends bytes to a door, and returns everything that the door sends before it hangs up.
fn exchange(door: SocketAddr, bytes: &[u8]) -> String {
    String::from_utf8_lossy(&exchange_bytes(door, bytes)).into_owned()
}

fn exchange_bytes(door: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(door).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // A door that has refused a request may close the connection before it has read the whole request.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// Returns the status and the body of the answer to a request with these headers.
fn ask(door: SocketAddr, line: &str, headers: &str, body: &str) -> (u16, String) {
    let length = body.len();
    let request = format!(
        "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    let answer = exchange(door, request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("{head}")), body.to_owned())
}

fn post(door: SocketAddr, path: &str, body: &str) -> (u16, String) {
    ask(door, &format!("POST /services/words{path}"), JSON, body)
}

fn keyed(door: SocketAddr, key: &str, body: &str) -> (u16, String) {
    ask(door, "POST /services/words/call", &format!("{JSON}Idempotency-Key: {key}\r\n"), body)
}

const JSON: &str = "Content-Type: application/json\r\n";

/// Starts three hosts of words, each with an HTTP door.
fn hosts() -> (Vec<Node>, Vec<SocketAddr>) {
    let builder = || Node::builder().http("127.0.0.1:0");
    let mut hosts = vec![builder().start().wait().unwrap()];
    hosts[0].serve("words", Words::default(), Begin::Found { replicas: 3 }).wait().unwrap();
    let seed = hosts[0].address().to_string();
    for _ in 1..3 {
        let host = builder().seeds([&seed]).start().wait().unwrap();
        host.serve("words", Words::default(), Begin::Join).wait().unwrap();
        hosts.push(host);
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while hosts.iter().any(|host| host.replica_status("words").unwrap().replicas.len() < 3) {
        assert!(std::time::Instant::now() < deadline, "all are replicas");
        std::thread::sleep(Duration::from_millis(5));
    }
    let doors = hosts.iter().map(|host| host.http_address().unwrap()).collect();
    (hosts, doors)
}

#[test]
fn calls_are_made_at_any_host() {
    let (hosts, doors) = hosts();
    for (door, place) in doors.iter().zip(1..) {
        assert_eq!(post(*door, "/call", r#"{"add": "word"}"#), (200, place.to_string()));
        assert_eq!(post(*door, "/call", r#""count""#), (200, place.to_string()));
    }
    let (status, listed) = ask(doors[1], "GET /services", "", "");
    assert_eq!(status, 200);
    let set = hosts[0].replica_status("words").unwrap().set.unwrap();
    assert!(listed.contains(&format!(r#""name":"words","set":"{set:016x}""#)), "{listed}");
    assert!(listed.contains(&hosts[2].address().to_string()), "{listed}");
}

/// The key works at another host, too, even when the first host is dead.
#[test]
fn a_call_with_a_key_takes_effect_once_at_any_host() {
    let (mut hosts, doors) = hosts();
    assert_eq!(keyed(doors[0], "7f", r#"{"add": "a"}"#), (200, String::from("1")));
    assert_eq!(keyed(doors[1], "7f", r#"{"add": "a"}"#), (200, String::from("1")));
    let (status, why) = keyed(doors[1], "7f", r#"{"add": "b"}"#);
    assert_eq!((status, why.contains("reused")), (422, true), "{why}");
    drop(hosts.remove(0));
    assert_eq!(keyed(doors[2], "7f", r#"{"add": "a"}"#), (200, String::from("1")));
    assert_eq!(keyed(doors[2], "80", r#"{"add": "a"}"#), (200, String::from("2")));
    let client = Node::builder().seeds(hosts.iter().map(|host| host.address().to_string()));
    let words = client.start().wait().unwrap().service::<Words>("words").unwrap();
    assert_eq!(
        words.call_keyed("80", &WordsRequest::Add(String::from("a"))).wait(),
        Ok(2),
        "the library's keys are the same"
    );
    assert_eq!(words.call(&WordsRequest::Count).wait(), Ok(2));
}

#[test]
fn a_transaction_is_committed_once_or_not_at_all() {
    let (_hosts, doors) = hosts();
    let begin = || {
        let (status, begun) = post(doors[0], "/transactions", "");
        assert_eq!(status, 201, "{begun}");
        let id = begun.split('"').nth(3).unwrap().to_owned();
        format!("/transactions/{id}")
    };
    let first = begin();
    assert_eq!(post(doors[0], &format!("{first}/call"), r#"{"add": "a"}"#), (200, String::from("1")));
    assert_eq!(post(doors[0], &format!("{first}/call"), r#"{"add": "b"}"#), (200, String::from("2")));
    for _ in 0..2 {
        let committed = post(doors[0], &format!("{first}/commit"), "");
        assert_eq!(committed, (200, String::from(r#"{"committed":true}"#)));
    }
    let second = begin();
    assert_eq!(post(doors[0], &format!("{second}/call"), r#"{"add": "c"}"#), (200, String::from("3")));
    assert_eq!(ask(doors[0], &format!("DELETE /services/words{second}"), "", "").0, 204);
    assert_eq!(post(doors[0], "/call", r#""count""#), (200, String::from("2")), "its lock is gone, too");
    let (status, why) = post(doors[0], &format!("{second}/commit"), "");
    assert_eq!((status, why.contains("unknown")), (404, true), "{why}");
    assert_eq!(post(doors[1], &format!("{first}/commit"), "").0, 404, "it was begun at another host");
}

/// Through the door, an operator lists the replicas, copies the state and withdraws a host.
#[test]
fn replicas_are_changed_and_copied_at_a_door() {
    let (mut hosts, doors) = hosts();
    let seed = hosts[0].address().to_string();
    let spare = Node::builder().http("127.0.0.1:0").seeds([&seed]).start().wait().unwrap();
    spare.serve("words", Words::default(), Begin::Join).wait().unwrap();
    hosts.push(spare);
    assert_eq!(post(doors[0], "/call", r#"{"add": "a"}"#), (200, String::from("1")));
    let [old, new] = [1, 3].map(|place: usize| hosts[place].address().to_string());
    let wish = format!(r#"{{"new": "{new}", "old": "{old}"}}"#);
    let (status, listed) = post(doors[0], "/replicas", &wish);
    assert!(status == 200 && listed.contains(&new) && !listed.contains(&old), "{status}: {listed}");
    assert_eq!(ask(doors[0], "GET /services/words", "", "").0, 200);
    let (status, why) = post(doors[0], "/replicas", &wish);
    assert_eq!((status, why.contains("rejected")), (409, true), "the old one is gone: {why}");

    let copy = exchange_bytes(
        doors[0],
        b"GET /services/words/export HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    );
    let body = copy.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let export = Export::decode(copy[body..].to_vec().into()).unwrap();
    assert_eq!((export.name(), export.changes()), ("words", 1));

    assert_eq!(ask(doors[2], "DELETE /services/words", "", "").0, 204);
    for (line, body) in [
        ("DELETE /services/words", ""),
        ("GET /services/words", ""),
        ("GET /services/words/export", ""),
        ("POST /services/words/replicas", &wish),
        ("POST /services/words/call", r#""count""#),
    ] {
        let (status, why) = ask(doors[2], line, JSON, body);
        assert_eq!((status, why.contains("unknown")), (404, true), "{line}: {why}");
    }
    assert!(hosts[2].replica_status("words").is_none());
    assert_eq!(post(doors[0], "/call", r#""count""#), (200, String::from("1")), "the others go on");
}

#[test]
fn malformed_requests_are_refused_and_the_door_stays_open() {
    let host = Node::builder().http("127.0.0.1:0").start().wait().unwrap();
    host.serve("words", Words::default(), Begin::Found { replicas: 1 }).wait().unwrap();
    let door = host.http_address().unwrap();
    let call = "POST /services/words/call";
    let deep = "[".repeat(100_000);
    let long = format!(r#"{{"add": "{}"}}"#, "x".repeat(5 << 20));
    let key = format!("{JSON}Idempotency-Key: {}\r\n", "k".repeat(256));
    for (line, headers, body, status, word) in [
        (call, JSON, "", 400, "malformed"),
        (call, JSON, r#"{"add": 7}"#, 400, "malformed"),
        (call, JSON, r#"{"add": "a"} and more"#, 400, "malformed"),
        (call, JSON, r#"{"drop": "a"}"#, 400, "malformed"),
        (call, JSON, &deep, 400, "malformed"),
        (call, JSON, &long, 413, ""),
        (call, &key, r#"{"add": "a"}"#, 400, "malformed"),
        (call, "", r#"{"add": "a"}"#, 415, "application/json"),
        (call, "Content-Type: text/plain\r\n", r#"{"add": "a"}"#, 415, "application/json"),
        (call, JSON, r#"{"add": ""}"#, 409, "no word"),
        ("POST /services/words/transactions", "", "", 415, "application/json"),
        ("POST /services/other/call", JSON, r#"{"add": "a"}"#, 404, "unknown"),
        ("POST /services/words/transactions/17/call", JSON, r#"{"add": "a"}"#, 404, "unknown"),
        ("POST /services/words/replicas", JSON, r#"{"old": "a:1"}"#, 400, "malformed"),
        ("POST /services/words/replicas", JSON, r#"{"new": "a:1", "at": "b:1"}"#, 400, "malformed"),
        ("POST /services/words/replicas", "", r#"{"new": "a:1"}"#, 415, "application/json"),
        ("POST /services/words/replicas", JSON, r#"{"new": "127.0.0.1:1"}"#, 503, "not_sent"),
        ("GET /services/words/call", "", "", 405, ""),
        ("POST /services/../words/call", JSON, r#"{"add": "a"}"#, 404, ""),
    ] {
        let (found, why) = ask(door, line, headers, body);
        assert_eq!(found, status, "{line} {}: {why}", &body[..body.len().min(40)]);
        assert!(why.contains(word), "{line}: {why}");
    }
    for (host, status) in [
        ("evil.example", "421"),
        ("LOCALHOST:1", "200"),
        ("[::1]:80", "200"),
        ("127.0.0.1.evil.example", "421"),
    ] {
        let request = format!("GET /services HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = exchange(door, request.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {answer}");
    }
    for garbage in [&b"\x00\xff\x16\x03"[..], b"POST", b"POST / HTTP/9.9\r\n\r\n", &[b'A'; 1 << 20]] {
        let answer = exchange(door, &[garbage, b"\r\n\r\n"].concat());
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    assert_eq!(post(door, "/call", r#""count""#), (200, String::from("0")), "nothing of it took effect");
    drop(host);
    assert!(TcpStream::connect(door).is_err(), "the door closes with its host");
}

#[test]
fn a_door_beyond_loopback_needs_a_token() {
    let host = Node::builder().http("0.0.0.0:0").start().wait().unwrap();
    let served = host.serve("words", Words::default(), Begin::Found { replicas: 1 }).wait();
    let refused = served.unwrap_err().to_string();
    assert!(refused.contains("loopback"), "{refused}");
}

/// Numbers by key. A nap occupies the executor under a key of its own, so no other call waits for its lock.
#[derive(Default, Serialize, Deserialize)]
struct Numbers(std::collections::BTreeMap<u64, u64>);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum NumbersRequest {
    /// Adds one to the number of this key.
    Add(u64),
    Sum,
    /// Occupies the executor for this time in milliseconds.
    Nap(u64),
}

impl Service for Numbers {
    type Request = NumbersRequest;
    type Reply = u64;
    type Delta = (u64, bool);
    type Undo = (u64, bool);

    fn execute(&self, wish: &NumbersRequest, _: &mut Cx<'_>) -> Executed<Self> {
        match wish {
            NumbersRequest::Add(key) => {
                Executed::Changed(self.0.get(key).map_or(1, |there| there + 1), (*key, true))
            }
            NumbersRequest::Sum => Executed::Unchanged(self.0.values().sum()),
            NumbersRequest::Nap(millis) => {
                std::thread::sleep(Duration::from_millis(*millis));
                Executed::Unchanged(*millis)
            }
        }
    }

    fn apply(&mut self, &(key, more): &(u64, bool)) -> (u64, bool) {
        let there = self.0.entry(key).or_default();
        *there = if more { *there + 1 } else { *there - 1 };
        (key, !more)
    }

    fn revert(&mut self, undo: (u64, bool)) {
        self.apply(&undo);
    }

    fn kind(wish: &NumbersRequest) -> Kind {
        if matches!(wish, NumbersRequest::Add(_)) { Kind::Write } else { Kind::Read }
    }

    fn keys(wish: &NumbersRequest) -> Vec<u64> {
        match wish {
            NumbersRequest::Add(key) => vec![*key],
            NumbersRequest::Nap(_) => vec![u64::MAX],
            NumbersRequest::Sum => Vec::new(),
        }
    }
}

/// A host of numbers with an open transaction that has one call, and with an executor that naps.
struct Napping {
    _host: Node,
    door: SocketAddr,
    transaction: String,
    nap: std::thread::JoinHandle<()>,
}

impl Napping {
    fn start() -> Napping {
        let host = Node::builder().http("127.0.0.1:0").start().wait().unwrap();
        host.serve("numbers", Numbers::default(), Begin::Found { replicas: 1 }).wait().unwrap();
        let door = host.http_address().unwrap();
        let (status, begun) = ask(door, "POST /services/numbers/transactions", JSON, "");
        assert_eq!(status, 201, "{begun}");
        let transaction = format!("/services/numbers/transactions/{}", begun.split('"').nth(3).unwrap());
        let called = ask(door, &format!("POST {transaction}/call"), JSON, r#"{"add": 1}"#);
        assert_eq!(called, (200, String::from("1")));
        let nap = std::thread::spawn(move || {
            let napped = ask(door, "POST /services/numbers/call", JSON, r#"{"nap": 1500}"#);
            assert_eq!(napped.0, 200, "{napped:?}");
        });
        std::thread::sleep(Duration::from_millis(300));
        Napping { _host: host, door, transaction, nap }
    }

    fn ask(&self, method: &str, what: &str, body: &str) -> (u16, String) {
        ask(self.door, &format!("{method} {}{what}", self.transaction), JSON, body)
    }

    /// Sends a request, and hangs up before the answer can arrive.
    fn hang_up(&self, what: &str, body: &str) {
        let length = body.len();
        let line = format!("POST {}{what}", self.transaction);
        let request =
            format!("{line} HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: {length}\r\n\r\n{body}");
        let mut stream = TcpStream::connect(self.door).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(!self.nap.is_finished(), "it is not answered yet");
    }

    fn sum(self) -> String {
        self.nap.join().unwrap();
        let (status, sum) = ask(self.door, "POST /services/numbers/call", JSON, r#""sum""#);
        assert_eq!(status, 200, "{sum}");
        sum
    }
}

#[test]
fn a_commit_whose_caller_hung_up_is_answered_to_the_next_attempt() {
    let napping = Napping::start();
    napping.hang_up("/commit", "");
    let committed = napping.ask("POST", "/commit", "");
    assert_eq!(committed, (200, String::from(r#"{"committed":true}"#)));
    for (method, what, body) in [("DELETE", "", ""), ("POST", "/call", r#"{"add": 1}"#)] {
        let (status, why) = napping.ask(method, what, body);
        assert!(status == 409 && why.contains("committed before"), "{method} {what}: {status} {why}");
    }
    assert_eq!(napping.sum(), "1");
}

/// If the abort were answered before the commit had ended, the answer would wrongly say that nothing takes
/// effect.
#[test]
fn an_abort_waits_for_a_commit_whose_caller_hung_up() {
    let napping = Napping::start();
    napping.hang_up("/commit", "");
    let (status, why) = napping.ask("DELETE", "", "");
    assert!(status == 409 && why.contains("committed before"), "{status} {why}");
    assert_eq!(napping.sum(), "1");
}

/// The caller that hung up does not know whether its call was executed. If it repeated the call, the call
/// could be executed twice.
#[test]
fn a_call_whose_caller_hung_up_aborts_its_transaction() {
    for next in ["/call", "/commit"] {
        let napping = Napping::start();
        napping.hang_up("/call", r#"{"add": 1}"#);
        for what in [next, "/commit"] {
            let (status, why) = napping.ask("POST", what, r#"{"add": 1}"#);
            assert!(status == 409 && why.contains("aborted"), "{what}: {status} {why}");
        }
        assert_eq!(napping.sum(), "0");
    }
}
