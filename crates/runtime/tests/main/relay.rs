//! When the network blocks a link, a router relays its messages, over real sockets.

use std::{
    collections::BTreeSet,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use crossbeam_channel::{Receiver, unbounded};
use quorate_protocol::{
    Destination, ProcessId, Session,
    relay::{self, Relay},
};
use quorate_runtime::{Handle, Reactor};

use crate::chat::{Chat, Command, Event, Listener, Note, PATIENCE, config, id};

/// A process whose links may be relayed.
struct Process {
    id: ProcessId,
    handle: Handle<Relay<Chat>>,
    events: Receiver<Event>,
}

fn start(id: ProcessId, routers: &[ProcessId]) -> Process {
    let chat = Chat { routers: routers.to_vec(), me: Some(id), ..Chat::default() };
    let (sender, events) = unbounded();
    let config = config(id);
    let relay = Relay::new(chat, relay::Settings::default());
    let handle = Reactor::start(relay, Listener(sender), config).expect("starts");
    Process { id, handle, events }
}

impl Process {
    fn address(&self) -> SocketAddr {
        self.handle.addresses()[0]
    }

    fn reach(&self, peer: &Process, address: SocketAddr) {
        self.handle.command(Command::Reach(peer.id, address.to_string())).expect("runs");
    }

    #[track_caller]
    fn next(&self) -> Event {
        self.events.recv_timeout(PATIENCE).expect("an event")
    }

    #[track_caller]
    fn linked(&self, peers: &[&Process]) -> Session {
        let mut wanted: BTreeSet<ProcessId> = peers.iter().map(|peer| peer.id).collect();
        loop {
            match self.next() {
                Event::Linked(peer, session) if wanted.remove(&peer) => {
                    if wanted.is_empty() {
                        return session;
                    }
                }
                other => panic!("{other:?} instead of links to {wanted:?}"),
            }
        }
    }
}

/// Starts a proxy in front of `of`. A set flag stops the bytes of that direction. While either flag is set
/// the proxy makes no new connections, because a connection needs both directions.
fn front(of: SocketAddr, to_them: &Arc<AtomicBool>, from_them: &Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (to_them, from_them) = (to_them.clone(), from_them.clone());
    thread::spawn(move || {
        for here in listener.incoming() {
            while to_them.load(Ordering::Relaxed) || from_them.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
            let (Ok(here), Ok(there)) = (here, TcpStream::connect(of)) else { continue };
            for (from, to, stopped) in [
                (here.try_clone().unwrap(), there.try_clone().unwrap(), to_them.clone()),
                (there, here, from_them.clone()),
            ] {
                thread::spawn(move || pass(from, to, &stopped));
            }
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream, stopped: &AtomicBool) {
    from.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let mut buffer = [0; 1 << 16];
    loop {
        match from.read(&mut buffer) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Ok(0) | Err(_) => return drop(to.shutdown(std::net::Shutdown::Both)),
            Ok(count) => {
                while stopped.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
                if to.write_all(&buffer[..count]).is_err() {
                    return;
                }
            }
        }
    }
}

#[test]
fn a_link_that_stops_in_one_direction_is_relayed_until_it_recovers() {
    for towards_the_listener in [true, false] {
        let routers = [id(1), id(2)];
        let (one, other) = (start(routers[0], &routers), start(routers[1], &routers));
        let (dialler, listener) = (start(id(3), &routers), start(id(4), &routers));
        for router in [&one, &other] {
            dialler.reach(router, router.address());
            listener.reach(router, router.address());
        }
        dialler.linked(&[&one, &other]);
        listener.linked(&[&one, &other]);
        let (to_them, from_them) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        dialler.reach(&listener, front(listener.address(), &to_them, &from_them));
        let direct = dialler.linked(&[&listener]);
        assert_eq!(listener.linked(&[&dialler]), direct);
        // In this time the relay learns the usual rhythm of the link.
        thread::sleep(Duration::from_secs(3));

        let stopped = if towards_the_listener { &to_them } else { &from_them };
        stopped.store(true, Ordering::Relaxed);
        let began = Instant::now();
        for process in [(&dialler, &listener), (&listener, &dialler)] {
            assert_eq!(process.0.next(), Event::Unlinked(process.1.id));
        }
        let relayed = dialler.linked(&[&listener]);
        assert_eq!(listener.linked(&[&dialler]), relayed, "both ends name the session alike");
        let took = began.elapsed();
        assert!(took < Duration::from_millis(1_900), "gone round after {took:?}");

        // A message much larger than the window, and a small one after it.
        let large = Note { number: 1, payload: (0..9_000_000_u32).map(|i| ((i * 31) >> 7) as u8).collect() };
        let small = Note { number: 2, payload: Bytes::new() };
        for note in [large, small] {
            for (from, to) in [(&dialler, &listener), (&listener, &dialler)] {
                let send = Command::Send(Destination::One(to.id), note.clone());
                from.handle.command(send).expect("runs");
                assert!(to.next() == Event::Note(from.id, note.clone()), "arrives unchanged");
            }
        }

        stopped.store(false, Ordering::Relaxed);
        for process in [(&dialler, &listener), (&listener, &dialler)] {
            assert_eq!(process.0.next(), Event::Unlinked(process.1.id));
        }
        let direct_again = dialler.linked(&[&listener]);
        assert_eq!(listener.linked(&[&dialler]), direct_again);
        assert!(direct_again != direct && direct_again != relayed);
    }
}
