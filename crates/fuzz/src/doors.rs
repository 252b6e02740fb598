//! Whole connections of clients: the door runs in this process, and the input is the bytes that a client
//! sends.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{Arc, LazyLock},
    time::Duration,
};

use quorate::{
    Node, Wait,
    service::{Begin, ready::Counter},
};
use quorate_server::{
    pg,
    resp::parse::{Parser, RequestLimits},
};
use quorate_sql::local::LocalBackend;
use tokio::runtime::Runtime;

/// A startup packet of the PostgreSQL protocol that contains only the user's name.
const STARTUP: &[u8] = b"\x00\x00\x00\x10\x00\x03\x00\x00user\x00q\x00\x00";

/// Time after which a connection that has not ended counts as hanging.
const PATIENCE: Duration = Duration::from_secs(9);

/// Runs a connection of the PostgreSQL protocol. If the first byte is even, a startup packet precedes the
/// input. Otherwise the connection begins with the input.
pub(crate) fn postgres(input: &[u8]) {
    static DOOR: LazyLock<(Runtime, SocketAddr)> = LazyLock::new(|| {
        let runtime = Runtime::new().expect("threads can be started");
        let listener =
            runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port is free");
        let address = listener.local_addr().expect("it listens");
        let server = pg::Server::new(Arc::new(LocalBackend::new()));
        runtime.spawn(server.serve(listener, std::future::pending()));
        (runtime, address)
    });
    let Some((choice, bytes)) = input.split_first() else { return };
    let startup = if choice % 2 == 0 { STARTUP } else { b"" };
    exchange(DOOR.1, &[startup, bytes].concat());
}

/// Sends HTTP requests to a host of services. The first byte chooses what precedes the input: the head of a
/// call with a JSON body, the head of a call in an unknown transaction, or nothing.
pub(crate) fn bodies(input: &[u8]) {
    static HOST: LazyLock<Node> = LazyLock::new(|| {
        let host = Node::builder().http("127.0.0.1:0").start().wait().expect("a port is free");
        let begin = Begin::Found { replicas: 1 };
        host.serve("counter", Counter::default(), begin).wait().expect("one replica is enough");
        host
    });
    let Some((choice, body)) = input.split_first() else { return };
    let path = match choice % 3 {
        0 => "counter/call",
        1 => "counter/transactions/0/call",
        _ => return exchange(HOST.http_address().expect("the host has an HTTP door"), body),
    };
    let length = body.len();
    let head = format!(
        "POST /services/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\
         Content-Type: application/json\r\n\r\n"
    );
    exchange(HOST.http_address().expect("the host has an HTTP door"), &[head.as_bytes(), body].concat());
}

/// Sends all bytes, and reads until the door closes the connection.
fn exchange(door: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(door).expect("the door is open");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    // A door that has refused the input does not read the rest, so the write may fail.
    let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut answer = [0; 4096];
    loop {
        match stream.read(&mut answer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("the door did not close the connection within {PATIENCE:?}")
            }
            Err(_) => return,
        }
    }
}

/// Checks that the parser finds the same requests of the Redis protocol however the bytes are cut.
pub(crate) fn redis(input: &[u8]) {
    assert_eq!(
        requests(input, input.len().max(1)),
        requests(input, 1),
        "the requests depend on where the bytes are cut"
    );
}

/// Returns the requests in the input, and whether the input ends in a malformed request.
fn requests(input: &[u8], piece_bytes: usize) -> (Vec<Vec<Vec<u8>>>, bool) {
    let mut parser = Parser::new(RequestLimits::default());
    let (mut requests, mut begin, mut end) = (Vec::new(), 0, 0);
    loop {
        match parser.parse(&input[begin..end]) {
            Ok(Some(length)) => {
                let unquoted = parser.take_unquoted();
                let rest = unquoted.as_deref().unwrap_or(&input[begin..begin + length]);
                let strings = parser.take_strings();
                requests.push(strings.iter().map(|string| rest[string.clone()].to_vec()).collect());
                parser.give_back(strings);
                begin += length;
            }
            Ok(None) if end < input.len() => end = (end + piece_bytes).min(input.len()),
            Ok(None) => return (requests, false),
            Err(_) => return (requests, true),
        }
    }
}
