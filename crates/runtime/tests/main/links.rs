//! Links: made, kept, lost and made again.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use bytes::Bytes;
use quorate_protocol::{Destination, DomainId, Generation, ProcessId, ecast::Fence};
use quorate_runtime::{
    Reactor, StartError,
    config::Config,
    discover::{DiscoverError, DiscoveredProcess, DomainAnswer, DomainState, discover},
};

use crate::chat::{Chat, Command, DOMAIN, Event, Note, Process, config, eventually, id, pair};

#[test]
fn notes_go_both_ways_in_order() {
    let (a, b) = pair();
    b.command(Command::Echo);
    const COUNT: u64 = 50_000;
    a.command(Command::Flood(b.id, COUNT, 100));
    for number in 0..COUNT {
        b.noted(&a, number);
    }
    for number in 0..COUNT {
        a.noted(&b, number);
    }
    // A turn emits its events before it updates the counters, so the counters may be late.
    let counts = |process: &Process| {
        let counters = process.handle.counters();
        (counters.messages_sent.get(), counters.messages_received.get())
    };
    eventually("all are counted", || counts(&a) == (COUNT, COUNT) && counts(&b) == (COUNT, COUNT));
    assert!(b.handle.counters().frames_received.get() < COUNT / 100, "notes share frames");
}

#[test]
fn large_messages_to_several_arrive_whole() {
    let (a, b) = pair();
    let c = Process::start();
    c.reach(&a);
    assert_eq!(c.linked(&a), a.linked(&c));
    let payload: Bytes = (0..9_000_000_u32).map(|i| (i.wrapping_mul(i) >> 8) as u8).collect();
    let note = Note { number: 5, payload };
    let stranger = id(99);
    let to = Destination::Many(vec![b.id, a.id, c.id, stranger]);
    a.command(Command::Send(to, note.clone()));
    for receiver in [&a, &b, &c] {
        assert!(receiver.next() == Event::Note(a.id, note.clone()), "arrives unchanged");
    }
    eventually("the stranger's copy is counted", || a.handle.counters().messages_unlinked.get() == 1);
}

/// Builds that speak neighbouring versions can talk as long as both speak a common version.
#[test]
fn neighbouring_versions_talk() {
    let speaking = |node, versions| {
        let mut config = config(id(node));
        config.versions = versions;
        Process::with(config)
    };
    let (old, both) = (speaking(1 << 21, 10..=10), speaking(1 + (1 << 21), 10..=11));
    let (new, ahead) = (speaking(2 + (1 << 21), 11..=12), speaking(3 + (1 << 21), 12..=12));
    for (dialler, listener) in [(&both, &old), (&both, &new), (&ahead, &new)] {
        dialler.reach(listener);
        assert_eq!(dialler.linked(listener), listener.linked(dialler));
        dialler.note(listener, 1);
        listener.noted(dialler, 1);
    }
    for (dialler, listener) in [(&old, &new), (&new, &old), (&both, &ahead), (&ahead, &old)] {
        let before = listener.handle.counters().refused.get();
        dialler.reach(listener);
        dialler.unlinked(listener.id);
        assert!(listener.handle.counters().refused.get() > before);
    }
}

/// A message that no frame can hold is a bug of its sender. The sender counts it and ends that link, so that
/// nobody misses the message unknowingly. The process goes on, its other links stay, and the link is made
/// again.
#[test]
fn a_message_that_is_too_large_ends_the_link_of_its_sender() {
    const MOST: usize = 1000;
    for shared in [false, true] {
        let mut small = config(id(1 << 20));
        small.limits.frame_bytes_max = MOST;
        let a = Process::with(small);
        let (b, c) = (Process::start(), Process::start());
        for peer in [&b, &c] {
            a.reach(peer);
            assert_eq!(a.linked(peer), peer.linked(&a));
        }
        a.note(&b, 1);
        b.noted(&a, 1);
        let note = Note { number: 2, payload: Bytes::from(vec![b'x'; MOST]) };
        // A message to several peers is encoded once, by other code.
        let to = if shared { Destination::Many(vec![b.id]) } else { Destination::One(b.id) };
        a.command(Command::Send(to, note));
        a.unlinked(b.id);
        b.unlinked(a.id);
        let counters = a.handle.counters();
        assert_eq!(counters.oversized.get(), 1);
        assert_eq!((b.handle.counters().oversized.get(), b.handle.counters().garbage.get()), (0, 0));
        // The process still wants the link, so it is made again.
        assert_eq!(a.linked(&b), b.linked(&a));
        a.note(&b, 3);
        a.note(&c, 3);
        b.noted(&a, 3);
        c.noted(&a, 3);
        assert_eq!((counters.links.get(), counters.oversized.get()), (2, 1));
    }
}

#[test]
fn simultaneous_dials_make_one_link() {
    for round in 0..300 {
        let (a, b) = (Process::start(), Process::start());
        thread::scope(|scope| {
            scope.spawn(|| a.reach(&b));
            scope.spawn(|| b.reach(&a));
        });
        assert_eq!(a.linked(&b), b.linked(&a), "round {round}");
        a.note(&b, round);
        b.note(&a, round);
        // The note is the only event: the link did not break and was not made again.
        a.noted(&b, round);
        b.noted(&a, round);
        assert_eq!(a.handle.counters().links.get(), 1);
    }
}

#[test]
fn a_mesh_where_all_dial_all_settles() {
    let mesh: Vec<Process> = (0..12).map(|_| Process::start()).collect();
    for process in &mesh {
        for other in &mesh {
            process.reach(other);
        }
    }
    let linked = |process: &Process| process.handle.counters().links.get() == mesh.len() as i64 - 1;
    eventually("all are linked with all", || mesh.iter().all(linked));
    for process in &mesh {
        assert!(process.events.try_iter().all(|event| matches!(event, Event::Linked(..))), "none flaps");
    }
    for process in &mesh {
        for (number, other) in mesh.iter().enumerate() {
            process.note(other, number as u64);
        }
    }
    for (number, process) in mesh.iter().enumerate() {
        for _ in &mesh {
            assert!(matches!(process.next(), Event::Note(_, note) if note.number == number as u64));
        }
    }
}

#[test]
fn a_failed_dial_is_reported_once_and_repeated_until_success() {
    let a = Process::start();
    let mut later = config(id(50));
    later.listen = vec![free_port()];
    let b = later.me;
    a.command(Command::Reach(b, later.listen[0].to_string()));
    a.unlinked(b);
    eventually("it dials again", || a.handle.counters().dials.get() >= 4);
    let b = Process::with(later);
    assert_eq!(a.linked(&b), b.linked(&a));
}

/// The system probes an idle link at both ends. Otherwise a process that is cut off would not notice.
#[test]
fn an_idle_link_is_probed_from_both_ends() {
    let (a, b) = pair();
    a.note(&b, 1);
    b.noted(&a, 1);
    // The connection ends at the listening port of one of the two. Ids and timing decide which one dialled.
    let ports = [a.address().port(), b.address().port()].map(|port| format!(":{port:04X}"));
    eventually("two ends wait to probe", || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let probing = table.lines().filter(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let ours = words[1..3].iter().any(|end| ports.iter().any(|port| end.ends_with(port)));
            // State 01 is "established". Timer 02 is the keepalive timer, followed by the hundredths of a
            // second left.
            let due = words[5].strip_prefix("02:").and_then(|due| u32::from_str_radix(due, 16).ok());
            ours && words[3] == "01" && due.is_some_and(|due| due <= 500)
        });
        probing.count() == 2
    });
}

#[test]
fn another_incarnation_is_another_process() {
    let (a, b) = pair();
    let mut again = config(id(b.id.node));
    again.listen = vec![b.address()];
    b.handle.stop().unwrap();
    a.unlinked(b.id);
    let reborn = Process::with(again);
    // The process still dials the old incarnation, and the new one refuses the link, because the old one is
    // unknown to it.
    eventually("the dial is refused", || a.handle.counters().refused.get() >= 1);
    a.reach(&reborn);
    assert_eq!(a.linked(&reborn), reborn.linked(&a));
    a.command(Command::Forget(b.id));
    a.note(&reborn, 1);
    reborn.noted(&a, 1);
}

#[test]
fn a_broken_link_is_reported_at_both_ends_and_restored() {
    let (a, b) = (Process::start(), Process::start());
    let proxy = Proxy::start(b.address());
    a.command(Command::Reach(b.id, proxy.address.to_string()));
    let mut sessions = vec![a.linked(&b)];
    b.linked(&a);
    for round in 0..20 {
        a.note(&b, round);
        b.noted(&a, round);
        proxy.cut();
        a.unlinked(b.id);
        b.unlinked(a.id);
        sessions.push(a.linked(&b));
        assert_eq!(b.linked(&a), sessions[sessions.len() - 1]);
    }
    sessions.sort();
    sessions.dedup();
    assert_eq!(sessions.len(), 21, "no session repeats");
}

#[test]
fn links_that_both_ends_want_are_always_restored() {
    let (a, b) = (Process::start(), Process::start());
    let (to_a, to_b) = (Proxy::start(a.address()), Proxy::start(b.address()));
    a.command(Command::Reach(b.id, to_b.address.to_string()));
    b.command(Command::Reach(a.id, to_a.address.to_string()));
    for round in 0..40 {
        // Without a wait for events in between, some cuts hit handshakes.
        thread::sleep(Duration::from_millis(round % 7));
        to_a.cut();
        to_b.cut();
    }
    // Notes without a link are dropped, so each side sends until one arrives.
    for (from, to) in [(&a, &b), (&b, &a)] {
        let mut number = 1000;
        loop {
            number += 1;
            from.note(to, number);
            thread::sleep(Duration::from_millis(5));
            if to.events.try_iter().any(|event| matches!(event, Event::Note(_, note) if note.number > 1000)) {
                break;
            }
            assert!(number < 3000, "no link came again");
        }
    }
    eventually("one link", || [&a, &b].iter().all(|it| it.handle.counters().links.get() == 1));
}

#[test]
fn each_session_is_without_a_gap_from_its_first_message_however_links_break() {
    let impatient = |node| {
        let mut config = config(id(node));
        config.limits.backoff_max = Duration::from_millis(40);
        Process::with(config)
    };
    let (a, b) = (impatient(1), impatient(2));
    let (to_a, to_b) = (Proxy::start(a.address()), Proxy::start(b.address()));
    a.command(Command::Stream);
    b.command(Command::Stream);
    a.command(Command::Reach(b.id, to_b.address.to_string()));
    b.command(Command::Reach(a.id, to_a.address.to_string()));
    for round in 0..60 {
        let before = a.handle.counters().messages_received.get();
        eventually("the stream flows", || a.handle.counters().messages_received.get() > before + 500);
        thread::sleep(Duration::from_micros(round % 7 * 500));
        to_a.cut();
        to_b.cut();
    }
    for process in [&a, &b] {
        assert_eq!(process.handle.stop(), Ok(()), "the protocol insists, and would have panicked");
        // A cut may miss a connection that is just being made.
        assert!(process.handle.counters().linked.get() > 30);
    }
}

#[test]
fn the_process_at_an_address_can_be_discovered() {
    let a = Process::start();
    let ask = |address: &str, domain| discover(address, domain, Duration::from_secs(5));
    let address = a.address().to_string();
    let met = DiscoveredProcess {
        process: a.id,
        answer: DomainAnswer { presence: DomainState::Settled, pass: Bytes::new() },
    };
    assert_eq!(ask(&address, DOMAIN).unwrap(), met);
    assert_eq!(ask(&format!("localhost:{}", a.address().port()), DOMAIN).unwrap(), met);
    let refused = ask(&address, DomainId(0xd1)).unwrap_err().to_string();
    assert!(refused.contains(&DOMAIN.to_string()), "names the other domain: {refused}");
    assert!(matches!(ask(&free_port().to_string(), DOMAIN), Err(DiscoverError::Unreachable(_))));
}

#[test]
fn a_forgotten_peer_is_unlinked_and_dialled_no_more() {
    let (a, b) = pair();
    a.note(&b, 1);
    a.command(Command::Forget(b.id));
    b.noted(&a, 1);
    a.unlinked(b.id);
    b.unlinked(a.id);
    // Neither side wants the link now. Process `a` does not dial, and the link is made again because `b`
    // wants it.
    let dials = a.handle.counters().dials.get();
    b.reach(&a);
    assert_eq!(a.linked(&b), b.linked(&a));
    assert_eq!(a.handle.counters().dials.get(), dials);
}

#[test]
fn processes_of_two_domains_refuse_each_other() {
    let a = Process::start();
    let mut other = config(id(60));
    other.domain = DomainId(0xd1);
    let b = Process::with(other);
    a.reach(&b);
    a.unlinked(b.id);
    eventually("the refusal is counted at both ends", || {
        [&a, &b].iter().all(|process| process.handle.counters().refused.get() >= 1)
    });
    assert_eq!(b.handle.counters().linked.get(), 0);
}

#[test]
fn names_and_ipv6_addresses_are_reached() {
    let a = Process::start();
    let b = Process::start();
    a.command(Command::Reach(b.id, format!("localhost:{}", b.address().port())));
    assert_eq!(a.linked(&b), b.linked(&a));

    let nowhere = id(70);
    a.command(Command::Reach(nowhere, "no such name".to_owned()));
    a.unlinked(nowhere);

    let mut six = config(id(71));
    six.listen = vec!["[::1]:0".parse().unwrap()];
    if std::net::TcpListener::bind(six.listen[0]).is_err() {
        eprintln!("this machine has no IPv6: that part is left out");
        return;
    }
    let c = Process::with(six);
    a.reach(&c);
    assert_eq!(a.linked(&c), c.linked(&a));
}

#[test]
fn listening_where_others_reach_us_and_on_a_taken_port_is_refused() {
    struct Deaf;
    impl quorate_runtime::Host<Chat> for Deaf {
        fn event(&mut self, _: Event, _: quorate_protocol::Time) {}
    }
    let start = |listen: SocketAddr, insecure| {
        let mut config = config(id(80));
        (config.listen, config.insecure) = (vec![listen], insecure);
        Reactor::start(Chat::default(), Deaf, Config { advertise: Some("127.0.0.1:1".to_owned()), ..config })
    };
    let open: SocketAddr = "0.0.0.0:0".parse().unwrap();
    assert!(matches!(start(open, false), Err(StartError::Insecure(address)) if address == open));
    let unnamed = Config { listen: vec![open], insecure: true, ..config(id(80)) };
    let unnamed = Reactor::start(Chat::default(), Deaf, unnamed);
    assert!(matches!(unnamed, Err(StartError::Unspecified(address)) if address.contains("0.0.0.0")));
    let handle = start(open, true).unwrap();
    let taken = handle.addresses()[0];
    let Err(error) = start(taken, true) else { panic!("two listen on {taken}") };
    assert!(error.to_string().contains(&taken.to_string()), "{error}");
    handle.stop().unwrap();

    // The same rules hold for a socket that listens already.
    let start = |address: SocketAddr, insecure| {
        let mut config = config(id(80));
        config.listen.clear();
        config.listening = vec![Arc::new(TcpListener::bind(address).unwrap())];
        config.insecure = insecure;
        config.advertise = Some("127.0.0.1:1".to_owned());
        let bound = config.listening[0].local_addr().unwrap();
        (bound, Reactor::start(Chat::default(), Deaf, config))
    };
    assert!(matches!(start(open, false), (bound, Err(StartError::Insecure(address))) if address == bound));
    let (bound, handle) = start(open, true);
    let handle = handle.unwrap();
    assert_eq!(handle.addresses(), [bound]);
    handle.stop().unwrap();
    TcpListener::bind(bound).expect("nobody listens there any more");
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A proxy between two processes that can cut their connections.
struct Proxy {
    address: SocketAddr,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn start(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let streams = Arc::new(Mutex::new(Vec::new()));
        let ours = streams.clone();
        // The thread ends with the test program, since it waits for further connections.
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(target) else { continue };
                near.set_nodelay(true).and(far.set_nodelay(true)).unwrap();
                let mut ours = ours.lock().unwrap();
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    ours.push(from.try_clone().unwrap());
                    thread::spawn(move || pump(from, to));
                }
            }
        });
        Proxy { address, streams }
    }

    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 4096];
    let mut pass = || -> io::Result<bool> {
        let count = from.read(&mut buffer)?;
        to.write_all(&buffer[..count])?;
        Ok(count > 0)
    };
    while pass().unwrap_or(false) {}
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn a_process_that_dials_itself_makes_no_link() {
    let a = Process::start();
    a.reach(&a);
    a.note(&a, 3);
    a.noted(&a, 3);
    assert_eq!(a.handle.counters().dials.get(), 0);
    let twin = ProcessId { node: a.id.node, ..id(0) };
    a.command(Command::Reach(twin, a.address().to_string()));
    a.unlinked(twin);
}

fn generation_of(number: u32) -> Generation {
    Generation { number, ..Generation::FIRST }
}

/// Starts a process with this fence as its policy.
fn fenced(node: u64, fence: Fence) -> Process {
    Process::running(Chat { fence: Some(fence), ..Chat::default() }, config(id(node)))
}

/// Starts a process of this generation, a router or another one.
fn of(router: bool, generation: u32) -> Process {
    let fence = if router { Fence::of_router } else { Fence::of_member };
    fenced(1000 + u64::from(generation), fence(generation_of(generation)))
}

fn generation_at(address: SocketAddr) -> (ProcessId, Generation) {
    let found = discover(&address.to_string(), DOMAIN, Duration::from_secs(5)).unwrap();
    (found.process, Fence::of_pass(&found.answer.pass).unwrap().generation)
}

#[test]
fn routers_of_an_earlier_generation_learn_the_later_one_in_both_dial_directions() {
    let (old, new, member) = (of(true, 1), of(true, 2), of(false, 2));
    old.reach(&new);
    old.unlinked(new.id);
    assert_eq!(old.next(), Event::Outdated(generation_of(2)));
    assert_eq!(generation_at(new.address()), (new.id, generation_of(2)));
    let old = of(true, 1);
    new.reach(&old);
    assert_eq!(old.next(), Event::Outdated(generation_of(2)));
    new.unlinked(old.id);
    let old = of(true, 1);
    member.reach(&old);
    assert_eq!(old.next(), Event::Outdated(generation_of(2)));
    member.unlinked(old.id);
}

#[test]
fn two_generations_of_one_number_are_two_domains() {
    let generations = [id(1), id(3)].map(|survivor| Generation::FIRST.next(survivor));
    assert_ne!(generations[0], generations[1]);
    let [(router, member), (other, stray)] = [(1, generations[0]), (3, generations[1])]
        .map(|(node, it)| (fenced(node, Fence::of_router(it)), fenced(node + 1, Fence::of_member(it))));
    member.reach(&router);
    assert_eq!(member.linked(&router), router.linked(&member));
    // Neither generation is later: neither side learns that it is outdated, and they are not linked.
    for (from, to) in [(&other, &router), (&stray, &router), (&stray, &member), (&router, &other)] {
        from.reach(to);
        from.unlinked(to.id);
    }
    assert_eq!(generation_at(other.address()).1, generations[1]);
    router.note(&member, 7);
    member.noted(&router, 7);
}

#[test]
fn a_process_that_enters_a_generation_loses_its_links_to_earlier_routers() {
    let (old, member, peer) = (of(true, 1), of(false, 0), of(false, 3));
    member.reach(&old);
    assert_eq!(member.linked(&old), old.linked(&member), "members may be of any generation before");
    member.reach(&peer);
    assert_eq!(member.linked(&peer), peer.linked(&member), "members are not fenced from each other");
    member.command(Command::Adopt(Fence::of_member(generation_of(2))));
    member.unlinked(old.id);
    old.unlinked(member.id);
    assert_eq!(
        old.next(),
        Event::Outdated(generation_of(2)),
        "the member still wants the link, and so tells"
    );
    peer.note(&member, 7);
    member.noted(&peer, 7);
}
