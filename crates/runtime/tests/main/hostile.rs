//! Hostile input: unknown processes and broken peers that send wrong bytes, or none.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use quorate_protocol::{
    Incarnation, ProcessId,
    wire::{PROTOCOL_VERSIONS, Wire as _},
};
use quorate_runtime::{Config, config::DATAGRAM_BYTES_MAX};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use crate::chat::{Command, DOMAIN, Event, Note, PATIENCE, Process, config, eventually, id, pair};

const NEWEST: u16 = *PROTOCOL_VERSIONS.end();

#[test]
fn garbage_is_counted_and_the_connection_closed() {
    let (a, b) = pair();
    let floods: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nHost: quorate\r\n\r\n",
        &[0; 64],
        &[0xff; 4096],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        &frame(b"QUORATE\n"),
        &frame(&[&b"QUORATE\n"[..], &NEWEST.to_le_bytes(), b"\x07 what kind is that?"].concat()),
    ];
    for (count, bytes) in floods.iter().enumerate() {
        let mut stream = connect(a.address());
        stream.write_all(bytes).unwrap();
        assert_closed(stream);
        assert_eq!(a.handle.counters().garbage.get(), count as u64 + 1);
    }
    a.note(&b, 1);
    b.noted(&a, 1);
}

#[test]
fn datagrams_are_accepted_only_while_the_link_of_their_token_stands() {
    // The unknown process connects from another address than the one that its hello names.
    let listen = vec!["127.0.3.200:0".parse().unwrap()];
    let a = Process::with(Config { datagrams: Some(DATAGRAM_BYTES_MAX), listen, ..config(id(1 << 23)) });
    let mut stream = connect(a.address());
    let me = peer(1);
    stream.write_all(&hello(NEWEST, DOMAIN.0, me, a.id, 1)).unwrap();
    let welcome = read_frame(&mut stream);
    assert!(matches!(a.next(), Event::Linked(peer, _) if peer == me));
    // The last 16 bytes are this link's token for datagrams, and the token of multicasts.
    let token = &welcome[welcome.len() - 16..welcome.len() - 8];
    let mut note = bytes::BytesMut::from(token);
    Note { number: 7, payload: bytes::Bytes::new() }.encode(&mut note);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let refused = |count| eventually("refused", || a.handle.counters().datagrams_refused.get() == count);
    socket.send_to(&note, a.address()).unwrap();
    assert!(matches!(a.next(), Event::Cast(from, note) if from == me && note.number == 7));
    // The note decodes and the byte after it does not. The process still delivers the note.
    socket.send_to(&[&note[..], b"?"].concat(), a.address()).unwrap();
    assert!(matches!(a.next(), Event::Cast(..)));
    refused(1);
    // The process refuses a wrong token, and an incomplete one.
    let mut other = note.clone();
    other[0] ^= 1;
    socket.send_to(&other, a.address()).unwrap();
    refused(2);
    socket.send_to(&note[..7], a.address()).unwrap();
    refused(3);
    drop(stream);
    a.unlinked(me);
    socket.send_to(&note, a.address()).unwrap();
    refused(4);
}

#[test]
fn another_version_is_refused_by_a_frame_that_names_ours() {
    let a = Process::start();
    let mut stream = connect(a.address());
    stream.write_all(&hello(NEWEST + 1, DOMAIN.0, peer(1), a.id, 1)).unwrap();
    let refusal = read_frame(&mut stream);
    assert_eq!(refusal[..8], *b"QUORATE\n");
    assert_eq!(refusal[8..10], NEWEST.to_le_bytes());
    assert_eq!(refusal[10..12], [2, 0], "a refusal, for the version");
    assert_eq!(refusal[12..28], DOMAIN.0.to_le_bytes());
    assert_closed(stream);
    assert_eq!(a.handle.counters().refused.get(), 1);
}

#[test]
fn a_hello_of_an_older_version_is_answered_in_that() {
    let mut speaking = config(id(1 << 22));
    speaking.versions = NEWEST - 1..=NEWEST;
    let a = Process::with(speaking);
    for version in [NEWEST - 1, NEWEST] {
        let mut stream = connect(a.address());
        stream.write_all(&hello(version, DOMAIN.0, peer(1), a.id, version.into())).unwrap();
        let welcome = read_frame(&mut stream);
        assert_eq!(welcome[8..11], [version.to_le_bytes()[0], 0, 1], "a welcome of that version");
    }
}

#[test]
fn another_domain_or_a_wrong_addressee_is_refused() {
    let a = Process::start();
    for (domain, wanted, reason) in [(DOMAIN.0 + 1, a.id, 1), (DOMAIN.0, id(9), 2)] {
        let mut stream = connect(a.address());
        stream.write_all(&hello(NEWEST, domain, peer(1), wanted, 1)).unwrap();
        assert_eq!(read_frame(&mut stream)[10..12], [2, reason]);
        assert_closed(stream);
    }
}

#[test]
fn silent_connections_are_closed() {
    let mut patient = config(id(1));
    patient.limits.hello_timeout = Duration::from_secs(1);
    patient.limits.unsettled_max = 8;
    let a = Process::with(patient);
    let silent: Vec<TcpStream> = (0..8).map(|_| connect(a.address())).collect();
    // Sending one byte does not extend the time.
    let mut slow = &silent[0];
    slow.write_all(b"\x08").unwrap();
    // A ninth connection is turned away.
    assert_closed(connect(a.address()));
    assert_eq!(a.handle.counters().crowded.get(), 1);
    for stream in silent {
        assert_closed(stream);
    }
    // The process has closed the other connections, so it accepts this one.
    let mut stream = connect(a.address());
    stream.write_all(&hello(NEWEST, DOMAIN.0, peer(1), a.id, 1)).unwrap();
    assert_eq!(read_frame(&mut stream)[10], 1, "a welcome");
}

/// Checks that a peer that sends a valid hello and then `bytes` loses its link.
fn check_rejected(bytes: &[u8]) {
    let mut small = config(id(1));
    small.limits.frame_bytes_max = 1000;
    let a = Process::with(small);
    let mut stream = connect(a.address());
    stream.write_all(&hello(NEWEST, DOMAIN.0, peer(1), a.id, 1)).unwrap();
    read_frame(&mut stream);
    assert!(matches!(a.next(), Event::Linked(id, _) if id == peer(1)));
    stream.write_all(bytes).unwrap();
    a.unlinked(peer(1));
    assert_closed(stream);
    assert_eq!(a.handle.counters().garbage.get(), 1);
}

#[test]
fn a_peer_that_sends_malformed_messages_loses_its_link() {
    check_rejected(&1001_u32.to_le_bytes());
    check_rejected(&frame(&[99]));
    check_rejected(&frame(&[crate::chat::NOTE, 1, 2]));
    check_rejected(&frame(&[crate::chat::NOTE, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]));
}

#[test]
fn a_later_hello_replaces_the_link_and_an_earlier_one_is_redundant() {
    let a = Process::start();
    let greet = |number| {
        let mut stream = connect(a.address());
        stream.write_all(&hello(NEWEST, DOMAIN.0, peer(1), a.id, number)).unwrap();
        let kind = read_frame(&mut stream)[10];
        (stream, kind)
    };
    let (first, welcome) = greet(5);
    assert_eq!(welcome, 1);
    assert!(matches!(a.next(), Event::Linked(..)));
    let (late, refusal) = greet(4);
    assert_eq!(refusal, 2);
    assert_closed(late);
    let (_second, welcome) = greet(6);
    assert_eq!(welcome, 1);
    a.unlinked(peer(1));
    assert!(matches!(a.next(), Event::Linked(..)));
    assert_closed(first);
}

#[test]
fn a_peer_that_does_not_read_loses_its_link_and_not_our_memory() {
    let mut small = config(id(1));
    small.limits.queue_bytes_max = 1 << 20;
    let a = Process::with(small);
    let mut stream = connect(a.address());
    stream.write_all(&hello(NEWEST, DOMAIN.0, peer(1), a.id, 1)).unwrap();
    assert!(matches!(a.next(), Event::Linked(..)));
    for _ in 0..64 {
        a.command(Command::Flood(peer(1), 1000, 1000));
    }
    a.unlinked(peer(1));
    assert_eq!(a.handle.counters().overrun.get(), 1);
    a.command(Command::Report(1));
    assert_eq!(a.next(), Event::Reported(1));
    eventually("the rest is counted as dropped", || a.handle.counters().messages_unlinked.get() > 10_000);
}

#[test]
fn a_peer_that_acknowledges_nothing_loses_its_link_in_time() {
    let mut hasty = config(id(1));
    hasty.limits.unacknowledged_timeout = Duration::from_millis(300);
    let a = Process::with(hasty);
    let mut stream = connect(a.address());
    stream.write_all(&hello(NEWEST, DOMAIN.0, peer(1), a.id, 1)).unwrap();
    assert!(matches!(a.next(), Event::Linked(..)));
    // Fewer bytes than the queue's bound, but more than the sockets take while nobody reads.
    a.command(Command::Flood(peer(1), 20_000, 1000));
    a.unlinked(peer(1));
    assert_eq!(a.handle.counters().overrun.get(), 0);
}

/// Random damage to handshakes and frames does not make a process panic, and a good peer is served all the
/// while.
#[test]
fn slightly_changed_handshakes_do_no_harm() {
    let (a, b) = pair();
    let mut random = Pcg64Mcg::seed_from_u64(11);
    for round in 0..400 {
        let mut bytes = hello(NEWEST, DOMAIN.0, peer(round), a.id, 1);
        let whole = bytes.len();
        for number in 0..random.random_range(0..4_u64) {
            let mut note = vec![crate::chat::NOTE];
            note.extend(number.to_le_bytes());
            note.extend(frame(b"a payload"));
            bytes.extend(frame(&note));
        }
        for _ in 0..random.random_range(0..4) {
            // Most damage is after the hello, so that many handshakes succeed.
            let from = if random.random_range(0..4) == 0 { 0 } else { whole };
            if from < bytes.len() {
                let place = random.random_range(from..bytes.len());
                bytes[place] ^= 1 << random.random_range(0..8);
            }
        }
        bytes.truncate(bytes.len() - random.random_range(0..3).min(bytes.len()));
        let mut stream = connect(a.address());
        let middle = random.random_range(0..=bytes.len());
        // The process may have closed the connection already.
        let _ = stream.write_all(&bytes[..middle]);
        let _ = stream.write_all(&bytes[middle..]);
        drop(stream);
        b.note(&a, round);
    }
    let mut notes = 0;
    while notes < 400 {
        match a.next() {
            Event::Note(from, note) if from == b.id => {
                assert_eq!(note.number, notes);
                notes += 1;
            }
            Event::Linked(from, _) | Event::Unlinked(from) | Event::Note(from, _) => assert!(from != b.id),
            other => panic!("{other:?}"),
        }
    }
    let counters = a.handle.counters();
    assert!(counters.garbage.get() > 20 && counters.linked.get() > 100, "{counters:?}");
}

fn peer(node: u64) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(1) }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Expects the end of the stream.
#[track_caller]
fn assert_closed(mut stream: TcpStream) {
    match stream.read(&mut [0; 16]) {
        Ok(count) => assert_eq!(count, 0, "the connection goes on"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

fn read_frame(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut frame = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut frame).unwrap();
    frame
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

/// Encodes a hello by hand.
fn hello(version: u16, domain: u128, from: ProcessId, wanted: ProcessId, number: u32) -> Vec<u8> {
    let mut bytes = b"QUORATE\n".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.push(0);
    bytes.push(1);
    bytes.extend(domain.to_le_bytes());
    // An empty pass.
    bytes.extend(frame(b""));
    for process in [from, wanted] {
        bytes.extend(process.node.to_le_bytes());
        bytes.extend(process.incarnation.0.to_le_bytes());
    }
    bytes.extend(number.to_le_bytes());
    // The sender has no disk, and remembers nothing of the receiver's disk.
    bytes.extend([0; 40]);
    bytes.extend(frame(b"127.0.0.1:1"));
    // The port for datagrams, and their token.
    bytes.extend(1u16.to_le_bytes());
    bytes.extend([9; 8]);
    // No token: the sender cannot multicast.
    bytes.extend([0; 8]);
    frame(&bytes)
}
