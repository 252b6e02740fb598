//! Casts travel as datagrams if both ends receive them, and over links otherwise.

use std::{
    net::{SocketAddr, TcpListener, UdpSocket},
    sync::Arc,
};

use bytes::Bytes;
use quorate_protocol::MulticastAddress;
use quorate_runtime::{Config, config::DATAGRAM_BYTES_MAX};
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use crate::chat::{Command, Event, Note, Process, config, eventually, id};

/// Starts a process that receives datagrams. Its own IP address makes it look like a process on another
/// machine.
fn process(number: u8) -> Process {
    let address = SocketAddr::from(([127, 0, 3, number], 0));
    Process::with(Config {
        datagrams: Some(DATAGRAM_BYTES_MAX),
        listen: vec![address],
        ..config(id(300 + u64::from(number)))
    })
}

/// Links `a` with `b`; `a` dials.
fn linked(a: Process, b: Process) -> (Process, Process) {
    a.reach(&b);
    a.linked(&b);
    b.linked(&a);
    (a, b)
}

fn note(number: u64) -> Note {
    Note { number, payload: Bytes::new() }
}

#[test]
fn casts_of_one_turn_travel_in_one_datagram() {
    let (a, b) = linked(process(1), process(2));
    for (from, to) in [(&a, &b), (&b, &a)] {
        from.command(Command::Cast(to.id, 3));
        for number in 0..3 {
            assert_eq!(to.next(), Event::Cast(from.id, note(number)));
        }
        let (sent, received) = (from.handle.counters(), to.handle.counters());
        // The cast may arrive before its sender counts it.
        eventually("it is counted", || sent.datagrams_sent.get() == 1 && sent.datagrams_unsent.get() == 0);
        assert_eq!((received.datagrams_received.get(), received.datagrams_refused.get()), (1, 0));
    }
}

#[test]
fn a_burst_that_no_datagram_holds_is_several() {
    let (a, b) = linked(process(3), process(4));
    a.command(Command::Cast(b.id, 2_000));
    for number in 0..2_000 {
        assert_eq!(
            b.next(),
            Event::Cast(a.id, note(number)),
            "loopback keeps the order, and the socket holds so much"
        );
    }
    eventually("they are counted", || a.handle.counters().datagrams_sent.get() > 1);
}

#[test]
fn datagrams_keep_the_configured_length() {
    const BYTES: usize = 600;
    let listen = vec![SocketAddr::from(([127, 0, 3, 20], 0))];
    let a = Process::with(Config { datagrams: Some(BYTES), listen, ..config(id(320)) });
    let (a, b) = linked(a, process(21));
    a.command(Command::Cast(b.id, 2_000));
    for number in 0..2_000 {
        assert_eq!(b.next(), Event::Cast(a.id, note(number)));
    }
    let counters = a.handle.counters();
    let all_full = || counters.datagram_bytes_sent.get() / BYTES as u64;
    eventually("they are counted", || all_full() > 10 && counters.datagrams_sent.get() > all_full());
}

#[test]
fn a_peer_without_datagrams_gets_casts_over_the_link() {
    let (a, b) = linked(process(5), Process::with(config(id(306))));
    for (from, to) in [(&a, &b), (&b, &a)] {
        from.command(Command::Cast(to.id, 2));
        for number in 0..2 {
            assert_eq!(to.next(), Event::Note(from.id, note(number)));
        }
        assert_eq!(from.handle.counters().datagrams_sent.get(), 0);
    }
}

#[test]
fn processes_of_one_machine_cast_over_the_link() {
    let near = |node| Process::with(Config { datagrams: Some(DATAGRAM_BYTES_MAX), ..config(id(node)) });
    let (a, b) = linked(near(313), near(314));
    for (from, to) in [(&a, &b), (&b, &a)] {
        from.command(Command::Cast(to.id, 1));
        assert_eq!(to.next(), Event::Note(from.id, note(0)));
    }
}

#[test]
fn a_process_without_its_datagram_port_uses_links() {
    let (listener, _squatter) = taken();
    let c = config(id(307));
    let listening = vec![Arc::new(listener)];
    let without =
        Process::with(Config { datagrams: Some(DATAGRAM_BYTES_MAX), listen: Vec::new(), listening, ..c });
    let (a, b) = linked(process(8), without);
    for (from, to) in [(&a, &b), (&b, &a)] {
        from.command(Command::Cast(to.id, 1));
        assert_eq!(to.next(), Event::Note(from.id, note(0)));
    }
}

/// Returns a listener whose port is already taken for datagrams.
fn taken() -> (TcpListener, UdpSocket) {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        if let Ok(socket) = UdpSocket::bind(listener.local_addr().unwrap()) {
            return (listener, socket);
        }
    }
}

#[test]
fn datagrams_of_strangers_are_counted_and_dropped() {
    let (a, b) = linked(process(9), process(10));
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to: SocketAddr = b.address();
    let mut random = Pcg64Mcg::seed_from_u64(1);
    for count in 1..300 {
        let mut bytes = vec![0; random.random_range(1..2_000)];
        random.fill_bytes(&mut bytes);
        stranger.send_to(&bytes, to).unwrap();
        eventually("it is refused", || b.handle.counters().datagrams_refused.get() == count);
    }
    stranger.send_to(&[], to).unwrap();
    a.command(Command::Cast(b.id, 1));
    assert_eq!(b.next(), Event::Cast(a.id, note(0)), "nobody else was heard");
}

#[test]
fn a_link_that_ended_is_cast_to_no_more() {
    let (a, b) = linked(process(11), process(12));
    a.command(Command::Forget(b.id));
    a.unlinked(b.id);
    b.unlinked(a.id);
    a.command(Command::Cast(b.id, 1));
    b.command(Command::Cast(a.id, 1));
    // The new link has its own tokens.
    b.reach(&a);
    b.linked(&a);
    a.linked(&b);
    b.command(Command::Cast(a.id, 1));
    assert_eq!(a.next(), Event::Cast(b.id, note(0)));
    let counts = || {
        [&a, &b]
            .map(|it| it.handle.counters())
            .map(|it| (it.datagrams_sent.get(), it.messages_unlinked.get()))
    };
    eventually("they are counted", || counts() == [(0, 1), (1, 1)]);
}

/// Returns an address that no other test uses, nor a concurrent run of these tests.
fn address(number: u32) -> MulticastAddress {
    MulticastAddress(200_000 + std::process::id() % 10_000 * 4 + number)
}

/// Starts three processes, and links the first to the other two.
fn three(first: u8) -> [Process; 3] {
    let [a, b, c] = [0, 1, 2].map(|place| process(first + place));
    for other in [&b, &c] {
        a.reach(other);
        a.linked(other);
        other.linked(&a);
    }
    [a, b, c]
}

#[test]
fn a_multicast_leaves_once_and_reaches_every_listener() {
    let [a, b, c] = three(20);
    for process in [&a, &b, &c] {
        process.command(Command::Listen(address(0), true));
    }
    // Commands run in order, so the answer shows that the earlier ones are done.
    for process in [&b, &c] {
        process.command(Command::Report(1));
        assert_eq!(process.next(), Event::Reported(1));
    }
    a.command(Command::Multicast(address(0), vec![b.id, c.id], 3));
    for process in [&b, &c] {
        for number in 0..3 {
            assert_eq!(process.next(), Event::Cast(a.id, note(number)));
        }
    }
    eventually("it is counted", || a.handle.counters().datagrams_sent.get() == 1);
    assert_eq!(a.handle.counters().datagrams_unwanted.get(), 0, "its own are of no account");
}

#[test]
fn an_unintended_listener_counts_the_multicast() {
    let ([a, b, c], d) = (three(23), process(26));
    for process in [&b, &c, &d] {
        process.command(Command::Listen(address(1), true));
        process.command(Command::Report(1));
        assert_eq!(process.next(), Event::Reported(1));
    }
    a.command(Command::Multicast(address(1), vec![b.id, c.id], 1));
    eventually("no link to its sender stands", || d.handle.counters().datagrams_unwanted.get() == 1);
    for process in [&b, &c] {
        assert_eq!(process.next(), Event::Cast(a.id, note(0)));
    }
    b.command(Command::Listen(address(1), false));
    b.command(Command::Report(2));
    assert_eq!(b.next(), Event::Reported(2));
    a.command(Command::Multicast(address(1), vec![b.id, c.id], 1));
    assert_eq!(c.next(), Event::Cast(a.id, note(0)));
    a.command(Command::Cast(b.id, 2));
    for number in 0..2 {
        assert_eq!(b.next(), Event::Cast(a.id, note(number)), "it hears what is cast to it alone");
    }
    eventually("it is gone on with", || b.handle.counters().datagrams_received.get() == 2);
}
