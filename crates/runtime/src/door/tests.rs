use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use quorate_protocol::{Context, Input, ProcessId, Sink};

use super::*;
use crate::{Config, Handle, Host, Reactor, chance};

/// Says each word again, one turn later.
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

/// Requests are lines; `bye` is the last one. One request of a client is under way at a time.
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
    let handle = Reactor::start_with_door(Echo, Lines::default(), config, (listener, limits), None);
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
fn answers_come_in_the_order_of_requests_whatever_the_pieces() {
    let (handle, address) = start(ClientLimits::default());
    let mut client = connect(address);
    let words: Vec<String> = (0..3_000).map(|n| format!("{n}\n")).collect();
    for piece in words.concat().as_bytes().chunks(7) {
        client.get_mut().write_all(piece).unwrap();
    }
    for word in &words {
        assert_eq!(line(&mut client), *word);
    }
    // All at once, with a last one behind which nothing is taken.
    let all = words.concat() + "bye\nmore\n";
    client.get_mut().write_all(all.as_bytes()).unwrap();
    let mut answers = String::new();
    // Bytes that were not taken may make the system tell of a reset instead of an end.
    let _ = client.read_to_string(&mut answers);
    assert_eq!(answers, words.concat() + "bye\n");
    handle.stop().unwrap();
}

#[test]
fn clients_are_bounded_in_number_and_one_that_goes_makes_room() {
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
    // The other side takes note of it a moment later.
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
    // One that is merely silent is not.
    silent.get_mut().write_all(b"still here\n").unwrap();
    assert_eq!(line(&mut silent), "still here\n");
    handle.stop().unwrap();
}
