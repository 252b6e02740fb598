use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use quorate_protocol::{Context, Input, ProcessId, Sink};

use super::*;
use crate::{Config, Handle, Host, Reactor, chance};

/// A protocol that repeats each word one turn later.
struct Echo;

impl Protocol for Echo {
    type Message = ();
    type Record = ();
    type Command = (ClientId, Bytes);
    type Event = (ClientId, Bytes);

    fn handle(&mut self, _: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        if let Input::Command(word) = input {
            out.emit(word);
        }
    }

    fn deadline(&self) -> Option<Time> {
        None
    }
}

/// A door for requests that are lines. The request `bye` is the last of a client. Each client has one request
/// under way at a time.
#[derive(Default)]
struct Lines {
    held: BTreeMap<ClientId, bool>,
    answers: Vec<(ClientId, Bytes)>,
}

impl Host<Echo> for Lines {
    fn event(&mut self, answer: (ClientId, Bytes), _: Time) {
        self.answers.push(answer);
    }

    fn door(&mut self) -> Option<&mut dyn Door<Echo>> {
        Some(self)
    }
}

impl Door<Echo> for Lines {
    fn opened(&mut self, client: ClientId, _: Time) {
        assert_eq!(self.held.insert(client, false), None);
    }

    fn take(
        &mut self,
        client: ClientId,
        input: &[u8],
        _: Time,
        ask: &mut dyn FnMut((ClientId, Bytes)),
    ) -> (usize, Flow) {
        let held = self.held.get_mut(&client).expect("it was opened");
        if *held {
            return (0, Flow::Held);
        }
        let Some(end) = input.iter().position(|byte| *byte == b'\n') else { return (0, Flow::Wait) };
        let line = Bytes::copy_from_slice(&input[..=end]);
        *held = true;
        let last = line == "bye\n";
        ask((client, line));
        (end + 1, if last { Flow::End } else { Flow::Held })
    }

    fn give(&mut self, clients: &mut Clients) {
        for (client, answer) in self.answers.drain(..) {
            if let Some(out) = clients.output(client) {
                out.extend_from_slice(&answer);
            }
            self.held.insert(client, false);
            clients.resume(client);
            if answer == "bye\n" {
                clients.end(client);
            }
        }
    }

    fn closed(&mut self, client: ClientId) {
        assert!(self.held.remove(&client).is_some(), "it was open");
    }

    fn crowded(&mut self) -> &'static [u8] {
        b"full\n"
    }
}

fn start(limits: ClientLimits) -> (Handle<Echo>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let me = ProcessId { node: 1, incarnation: chance::incarnation() };
    let config = Config::new(chance::domain(), me, vec!["127.0.0.1:0".parse().unwrap()]);
    let handle = Reactor::start_with(Echo, Lines::default(), config, None, Some((listener, limits)));
    (handle.unwrap(), address)
}

fn line(client: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    line
}

fn connect(address: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    BufReader::new(stream)
}

#[test]
fn answers_keep_the_order_of_requests_in_any_pieces() {
    let (handle, address) = start(ClientLimits::default());
    let mut client = connect(address);
    let words: Vec<String> = (0..3_000).map(|n| format!("{n}\n")).collect();
    for piece in words.concat().as_bytes().chunks(7) {
        client.get_mut().write_all(piece).unwrap();
    }
    for word in &words {
        assert_eq!(line(&mut client), *word);
    }
    // All requests arrive at once, and the door takes none after `bye`.
    let all = words.concat() + "bye\nmore\n";
    client.get_mut().write_all(all.as_bytes()).unwrap();
    let mut answers = String::new();
    // Because of unread bytes, the system may report a reset instead of an end.
    let _ = client.read_to_string(&mut answers);
    assert_eq!(answers, words.concat() + "bye\n");
    handle.stop().unwrap();
}

#[test]
fn clients_are_bounded_in_number_and_a_departure_makes_room() {
    let (handle, address) = start(ClientLimits { clients_max: 2, ..ClientLimits::default() });
    let mut clients = [connect(address), connect(address)];
    for client in &mut clients {
        client.get_mut().write_all(b"a\n").unwrap();
        assert_eq!(line(client), "a\n");
    }
    let mut third = connect(address);
    assert_eq!(line(&mut third), "full\n");
    let [first, _second] = clients;
    drop(first);
    // The server notices a moment later that the client has gone.
    let began = std::time::Instant::now();
    loop {
        let mut next = connect(address);
        let _ = next.get_mut().write_all(b"b\n");
        if line(&mut next) == "b\n" {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "no room is made");
    }
    handle.stop().unwrap();
}

#[test]
fn unfinished_requests_are_bounded_in_time_and_bytes() {
    let limits = ClientLimits {
        patience: Duration::from_millis(100),
        input_bytes_max: 100,
        ..ClientLimits::default()
    };
    let (handle, address) = start(limits);
    let mut slow = connect(address);
    slow.get_mut().write_all(b"half a line").unwrap();
    assert_eq!(line(&mut slow), "", "it is cut off after a while");
    let mut silent = connect(address);
    let mut large = connect(address);
    large.get_mut().write_all(&[b'x'; 101]).unwrap();
    assert_eq!(line(&mut large), "", "it is cut off at once");
    // A client that has sent a request stays, although it is silent.
    silent.get_mut().write_all(b"still here\n").unwrap();
    assert_eq!(line(&mut silent), "still here\n");
    handle.stop().unwrap();
}

/// A client that sends lines of one mebibyte, and reads none of the answers, is cut off.
#[test]
fn unread_answers_are_bounded_in_bytes() {
    let limits =
        ClientLimits { output_bytes_max: 16 << 20, output_bytes_pause: 128 << 20, ..ClientLimits::default() };
    let (handle, address) = start(limits);
    // Of two clients, the one that sends without reading is cut off, and the one that reads its answers
    // stays.
    let mut good = connect(address);
    let mut hoarder = connect(address);
    let mut large = [b'x'; 1 << 16].repeat(16);
    large.push(b'\n');
    let sent = (0..64).take_while(|_| hoarder.get_mut().write_all(&large).is_ok()).count();
    let mut taken = Vec::new();
    good.get_mut().write_all(b"here\n").unwrap();
    assert_eq!(line(&mut good), "here\n");
    // The client can still read the bytes in the system's buffers. After them comes the end of the stream.
    if let Err(error) = hoarder.read_to_end(&mut taken) {
        assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "it is still connected, after {sent} lines");
    }
    assert!(taken.len() < 64 << 20, "{} bytes were read", taken.len());
    good.get_mut().write_all(b"still here\n").unwrap();
    assert_eq!(line(&mut good), "still here\n");
    handle.stop().unwrap();
}

/// A client that reads a few bytes now and then is cut off like one that reads no bytes.
#[test]
fn a_client_that_reads_a_byte_at_a_time_is_cut_off() {
    let limits = ClientLimits {
        patience: Duration::from_millis(500),
        progress_bytes: 16 << 20,
        output_bytes_pause: 64 << 20,
        ..ClientLimits::default()
    };
    let (handle, address) = start(limits);
    let mut slow = connect(address);
    let mut one = [b'x'; 1 << 16].repeat(16);
    one.push(b'\n');
    for _ in 0..24 {
        slow.get_mut().write_all(&one).unwrap();
    }
    let began = std::time::Instant::now();
    let mut read = 0;
    let mut piece = [0; 4096];
    // The client reads 4 KiB each 5 ms, which is less than it must.
    loop {
        match slow.get_mut().read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(count) => read += count,
        }
        // This is the pace of a slow reader, and not a wait for an event.
        std::thread::sleep(Duration::from_millis(5));
        if began.elapsed() > Duration::from_secs(4) {
            // By now the client is cut off, and only the bytes in the system's buffers are left to read.
            let mut rest = Vec::new();
            let _ = slow.read_to_end(&mut rest);
            read += rest.len();
            break;
        }
    }
    assert!(read < 24 << 20, "all of its answers came, {read} bytes");
    handle.stop().unwrap();
}

#[test]
fn the_client_with_the_most_input_is_cut_off_and_not_the_active_client() {
    let limits = ClientLimits { input_bytes_max: 100, ..ClientLimits::default() };
    let (handle, address) = start(limits);
    let mut hoarder = connect(address);
    hoarder.get_mut().write_all(&[b'x'; 90]).unwrap();
    // The first answer to `other` shows that the bytes of `hoarder` have already arrived.
    let mut other = connect(address);
    other.get_mut().write_all(b"a\n").unwrap();
    assert_eq!(line(&mut other), "a\n");
    other.get_mut().write_all(&[b'y'; 20]).unwrap();
    assert_eq!(line(&mut hoarder), "", "the one with most is cut off");
    other.get_mut().write_all(b"\n").unwrap();
    assert_eq!(line(&mut other), "y".repeat(20) + "\n");
    handle.stop().unwrap();
}

#[test]
fn silent_clients_make_room_for_active_clients() {
    let limits =
        ClientLimits { clients_max: 3, silence_max: Duration::from_millis(50), ..ClientLimits::default() };
    let (handle, address) = start(limits);
    let mut speaks = connect(address);
    speaks.get_mut().write_all(b"a\n").unwrap();
    assert_eq!(line(&mut speaks), "a\n");
    let silent = [connect(address), connect(address)];
    let began = std::time::Instant::now();
    let mut turned_away = 0;
    let mut later = loop {
        let mut next = connect(address);
        let _ = next.get_mut().write_all(b"b\n");
        match &line(&mut next)[..] {
            "b\n" => break next,
            "full\n" => turned_away += 1,
            other => panic!("{other:?}"),
        }
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{turned_away} were turned away, and nobody let in"
        );
    };
    // The client that has sent a request keeps its place, although it has been silent since.
    for client in [&mut speaks, &mut later] {
        client.get_mut().write_all(b"c\n").unwrap();
        assert_eq!(line(client), "c\n");
    }
    drop(silent);
    handle.stop().unwrap();
}
