//! Tests the Redis door as clients use it: over a socket, with cells in this process, and with bounds so
//! small that the tests reach them.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use quorate::{
    Node, Wait,
    maps::{Front, Process, Setup, strategy::Services},
};
use quorate_protocol::{
    DomainId, Role, Terms, detector,
    partial::{self, JoinOptions, Level, Site, tokens_of},
};
use quorate_runtime::{door::ClientLimits, metrics::Metrics};
use quorate_server::resp::{HeldLimits, RedisClients, Settings};
use quorate_testing::{free_ports, wait_for};

/// A router and two cells in memory. One of the two cells holds each key of map `main`.
struct RedisCells {
    doors: Vec<SocketAddr>,
    processes: Vec<Process>,
    _router: Node,
}

const VALUE_BYTES: usize = 1 << 20;
const HELD: HeldLimits =
    HeldLimits { answer_bytes_max: 4 << 20, client_bytes_max: 64 << 10, bytes_max: 12 << 20 };

impl RedisCells {
    fn new(clients: ClientLimits) -> RedisCells {
        RedisCells::with(clients, partial::Settings::default())
    }

    fn with(clients: ClientLimits, settings: partial::Settings) -> RedisCells {
        let ports = free_ports::<6>();
        let domain = DomainId(0x4ed15);
        let router = format!("127.0.0.1:{}", ports[0]);
        let node = Node::builder()
            .role(Role::Router)
            .found()
            .domain(domain)
            .number(1)
            .listen(&router)
            .terms(Terms { wanted_routers: 1, ..Terms::default() });
        let _router = node.start().wait().unwrap();
        let mut cells = RedisCells { doors: Vec::new(), processes: Vec::new(), _router };
        for number in 1..3 {
            let front = Settings { level: Level::One, held: HELD, ..Settings::default() };
            let front = RedisClients::new(front, &Metrics::default());
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            cells.doors.push(listener.local_addr().unwrap());
            let seeds = (1..3).filter(|other| *other != number);
            let services = Services {
                listen: format!("127.0.0.1:{}", ports[number + 3]),
                advertise: None,
                seeds: seeds.map(|other| format!("127.0.0.1:{}", ports[other + 3])).collect(),
                directory: None,
            };
            let setup = Setup {
                domain,
                number: number as u64 + 1,
                name: format!("process-{number}"),
                routers: vec![router.clone()],
                listen: format!("127.0.0.1:{}", ports[number]),
                advertise: None,
                insecure: false,
                directory: None,
                durable: false,
                late_files: false,
                detector: detector::Settings::default(),
                clients,
                place: JoinOptions {
                    name: format!("cell-{number}"),
                    site: Site(0),
                    tokens: tokens_of(number as u64, 16),
                },
                distances: BTreeMap::new(),
                settings,
                strategies: Some(front.strategies()),
                services: Some(services),
                front: Some((Box::new(front) as Box<dyn Front>, listener)),
            };
            cells.processes.push(Process::start(setup).unwrap());
        }
        let is_cell = |process: &Process| {
            let status = process.status(Duration::from_secs(5));
            status.is_some_and(|it| it.cell.number.is_some() && it.cell.reachable.len() == 2)
        };
        wait_for("both are cells", || cells.processes.iter().all(is_cell));
        let mut client = cells.client(0);
        client.check("QUORATE CREATE main COPIES 1", "OK");
        client.check("QUORATE CREATE once STRATEGY service COPIES 1", "OK");
        wait_for("both have the maps", || {
            (0..2).all(|cell| cells.client(cell).ask("QUORATE MAP once") == "OK")
        });
        client.check("QUORATE MAP once", "OK");
        wait_for("the service answers", || client.ask("EXISTS k") == "0");
        cells
    }

    fn client(&self, cell: usize) -> RedisClient {
        let stream = TcpStream::connect(self.doors[cell]).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.set_nodelay(true).unwrap();
        RedisClient(BufReader::new(stream))
    }
}

/// A client that sends lines and reads RESP2.
struct RedisClient(BufReader<TcpStream>);

impl RedisClient {
    fn send(&mut self, lines: &str) {
        self.0.get_mut().write_all(lines.as_bytes()).unwrap();
    }

    /// Returns the next answer as one text, or `end` if the connection has ended.
    fn answer(&mut self) -> String {
        let mut line = String::new();
        if self.0.read_line(&mut line).unwrap_or(0) == 0 {
            return String::from("end");
        }
        let (tag, rest) = line.trim_end().split_at(1);
        match tag {
            "$" if rest == "-1" => String::from("(nil)"),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut bytes).unwrap();
                String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned()
            }
            "*" => {
                let parts: Vec<String> = (0..rest.parse::<usize>().unwrap()).map(|_| self.answer()).collect();
                parts.join(" ")
            }
            _ => rest.to_owned(),
        }
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(&format!("{line}\r\n"));
        self.answer()
    }

    /// Sends several lines at once, and returns their answers.
    fn ask_all(&mut self, lines: &[&str]) -> Vec<String> {
        self.send(&lines.iter().map(|line| format!("{line}\r\n")).collect::<String>());
        lines.iter().map(|_| self.answer()).collect()
    }

    #[track_caller]
    fn check(&mut self, line: &str, wanted: &str) {
        assert_eq!(self.ask(line), wanted, "{line}");
    }

    /// Sends words of any content as a command.
    fn set(&mut self, words: &[&str]) {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.send(&bytes);
    }
}

#[test]
fn an_answer_that_is_too_large_is_refused_and_a_pipeline_of_large_ones_is_not() {
    let cells = RedisCells::new(ClientLimits::default());
    let value = "v".repeat(VALUE_BYTES);
    // The client asks each cell for all keys, so each cell reads its own values and those of the other cell.
    for cell in 0..2 {
        let mut client = cells.client(cell);
        for key in ["a", "b", "c", "d", "e", "f"] {
            client.set(&["SET", key, &value]);
            assert_eq!(client.answer(), "OK");
        }
        for level in ["one", "quorum"] {
            client.check(&format!("QUORATE LEVEL {level}"), "OK");
            for keys in ["a b c d e f".to_owned(), "a ".repeat(6), "a ".repeat(9_000)] {
                let told = client.ask(&format!("MGET {keys}"));
                assert!(
                    told.starts_with("TOOLARGE the answer would have more than 4194304 bytes"),
                    "{told:.80}"
                );
            }
            assert_eq!(client.ask("MGET a a b").len(), 3 * VALUE_BYTES + 2);
            client.check("EXISTS a b c d e f a", "7");
            // These answers are far larger than the memory for all clients' answers.
            let keys = ["a", "b", "c", "d", "e", "f"].into_iter().cycle().take(64);
            let lines: String = keys.map(|key| format!("GET {key}\r\n")).collect();
            client.send(&format!("{lines}PING\r\n"));
            for number in 0..64 {
                assert_eq!(client.answer().len(), VALUE_BYTES, "{number} at level {level}");
            }
            assert_eq!(client.answer(), "PONG");
        }
        let field = "f".repeat(VALUE_BYTES / 2);
        client.set(&["HSET", "h", "x", &field, "y", &field]);
        client.answer();
        assert_eq!(client.ask("HMGET h x y x").len(), 3 * field.len() + 2);
        let told = client.ask(&format!("HMGET h {}", "x ".repeat(5_000)));
        assert!(told.starts_with("TOOLARGE"), "{told:.80}");
    }
    // The strategy of this map is a service.
    let mut client = cells.client(0);
    client.check("QUORATE MAP once", "OK");
    client.set(&["SET", "k", &value[..VALUE_BYTES - 64]]);
    assert_eq!(client.answer(), "OK");
    for count in [5, 5_000] {
        let told = client.ask(&format!("MGET {}", "k ".repeat(count)));
        assert!(told.starts_with("TOOLARGE"), "{told:.80}");
    }
    client.send(&"GET k\r\n".repeat(32));
    for _ in 0..32 {
        assert_eq!(client.answer().len(), VALUE_BYTES - 64);
    }
}

/// A command names more values than a cell has room for. The command continues as room becomes free. `EXISTS`
/// and `DEL` read the values, too, and once answered `BUSY` for ever.
#[test]
fn a_command_on_more_values_than_a_cell_has_room_for_is_answered() {
    let mut settings = partial::Settings::default();
    settings.patience.in_flight_bytes_max = 4 << 20;
    let cells = RedisCells::with(ClientLimits::default(), settings);
    let mut client = cells.client(0);
    let value = "v".repeat(VALUE_BYTES);
    let names: Vec<String> = (0..24).map(|number| format!("wide{number}")).collect();
    for name in &names {
        client.set(&["SET", name, &value]);
        assert_eq!(client.answer(), "OK");
    }
    let all = names.join(" ");
    client.check(&format!("EXISTS {all} absent"), "24");
    client.check(&format!("DEL {all} absent"), "24");
    client.check(&format!("EXISTS {all}"), "0");
}

#[test]
fn clients_that_read_nothing_hold_a_bounded_share_of_memory() {
    let limits = ClientLimits {
        output_bytes_pause: HELD.client_bytes_max,
        output_bytes_max: 8 << 20,
        patience: Duration::from_millis(500),
        ..ClientLimits::default()
    };
    let cells = RedisCells::new(limits);
    let mut client = cells.client(0);
    client.set(&["SET", "k", &"v".repeat(VALUE_BYTES)]);
    assert_eq!(client.answer(), "OK");
    let mut unread: Vec<RedisClient> = (0..24).map(|_| cells.client(0)).collect();
    for client in &mut unread {
        client.send(&"GET k\r\n".repeat(256));
    }
    let mut served = 0;
    wait_for("the others are cut off and this one is served", || {
        let told = client.ask("GET k");
        assert!(
            told.len() == VALUE_BYTES || told.starts_with("BUSY ") || told.starts_with("UNANSWERED "),
            "{told:.80}"
        );
        served += usize::from(told.len() == VALUE_BYTES);
        let clients = client.ask("INFO clients");
        served > 0 && clients.contains("connected_clients:1\r\n")
    });
}

#[test]
fn commands_after_a_refused_multi_or_select_are_refused() {
    let cells = RedisCells::new(ClientLimits::default());
    for map in ["main", "once"] {
        let mut client = cells.client(0);
        client.check(&format!("QUORATE MAP {map}"), "OK");
        let told = client.ask_all(&["MULTI", "INCR n", "SET n 7", "EXEC", "EXISTS n"]);
        assert!(told[0].contains("transaction=False") && told[0].contains("ioredis"), "{told:?}");
        assert!(told[1].contains("not applied") && told[3].starts_with("EXECABORT"), "{told:?}");
        assert_eq!(told[4], "0");
        assert_eq!(client.ask_all(&["MULTI", "INCR n", "DISCARD", "EXISTS n"])[2..], ["OK", "0"]);
        let told = client.ask_all(&["SELECT 1", "SET n 1", "SCAN 0", "SELECT 0", "EXISTS n"]);
        assert!(
            told[..3].iter().zip(["ERR", "NOMAP", "NOMAP"]).all(|(told, word)| told.starts_with(word)),
            "{told:?}"
        );
        assert_eq!(told[3..], ["OK", "0"]);
        let again = format!("QUORATE MAP {map}");
        let told =
            client.ask_all(&["QUORATE MAP nowhere", "SET n 1", "QUORATE ID x INCR n", &again, "EXISTS n"]);
        assert!(told[1].starts_with("NOMAP") && told[2].starts_with("NOMAP"), "{told:?}");
        assert_eq!(told[3..], ["OK", "0"]);
        // The door obeys a client that asks for silence, so that the client can assign each later answer to
        // its command.
        client.send("CLIENT REPLY OFF\r\nSET n 1\r\nGET n\r\nCLIENT REPLY ON\r\nCLIENT REPLY SKIP\r\nGET n\r\nGET n\r\n");
        assert_eq!([client.answer(), client.answer()], ["OK", "1"]);
        client.check("DEL n", "1");
        client.check("QUORATE LEVEL two", "OK");
        client.check("RESET", "RESET");
        client.check("QUORATE LEVEL", "read one write one");
        client.check("QUORATE MAP", "main");
    }
}

#[test]
fn an_http_request_closes_its_connection_at_the_first_line() {
    let cells = RedisCells::new(ClientLimits::default());
    for head in [
        "POST / HTTP/1.1\r\nHost: x",
        "GET /k HTTP/1.1",
        "SET /k HTTP/1.1",
        "Host: x",
        "post",
        "*1\r\n$4\r\nPOST",
    ] {
        let mut browser = cells.client(0);
        browser.send(&format!("{head}\r\n\r\nSET k 1\r\nPING\r\n"));
        assert!(browser.answer().contains("HTTP"), "{head}");
        assert_eq!(browser.answer(), "end", "{head}");
    }
    cells.client(0).check("EXISTS k /k", "0");
}

#[test]
fn a_write_with_an_id_is_applied_once_through_any_cell() {
    let cells = RedisCells::new(ClientLimits::default());
    let mut clients = [cells.client(0), cells.client(1)];
    for client in &mut clients {
        client.check("QUORATE MAP once", "OK");
    }
    for (number, id) in [(1, "a"), (2, "b"), (1, "a"), (3, "c"), (2, "b")] {
        for client in &mut clients {
            client.check(&format!("QUORATE ID {id} INCR n"), &number.to_string());
        }
    }
    let [one, two] = &mut clients;
    one.check("GET n", "3");
    assert!(two.ask("QUORATE ID a DECR n").contains("another request"));
    one.check("QUORATE ID set SET s 1 NX", "OK");
    two.check("QUORATE ID set SET s 1 NX", "OK");
    two.check("QUORATE ID other SET s 2 NX", "(nil)");
    assert!(one.ask("QUORATE ID get GET n").contains("writes keys"));
    one.check("QUORATE MAP main", "OK");
    assert!(one.ask("QUORATE ID a INCR n").contains("partial quorums"));
}
