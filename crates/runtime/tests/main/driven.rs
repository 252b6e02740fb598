//! A reactor whose turns are run by its owner.

use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{Receiver, unbounded};
use quorate_protocol::Destination;
use quorate_runtime::{Config, Driven};

use crate::chat::{Chat, Command, Event, Listener, Note, PATIENCE, Process, config, id};

/// Runs turns until an event comes.
#[track_caller]
fn next(driven: &mut Driven<Chat, Listener>, events: &Receiver<Event>) -> Event {
    let limit = Instant::now() + PATIENCE;
    loop {
        if let Ok(event) = events.try_recv() {
            return event;
        }
        assert!(Instant::now() < limit, "nothing is told");
        driven.turn(PATIENCE);
    }
}

#[test]
fn a_caller_drives_its_own_links() {
    let server = Process::start();
    server.command(Command::Echo);
    let (sender, events) = unbounded();
    let me = id(77);
    let config = Config { listen: Vec::new(), ..config(me) };
    let mut driven = Driven::start(Chat::default(), Listener(sender), config).expect("starts");
    assert!(driven.command(Command::Reach(server.id, server.address().to_string())).is_ok());
    assert!(matches!(next(&mut driven, &events), Event::Linked(peer, _) if peer == server.id));
    for number in 0..100 {
        let note = Note { number, payload: Bytes::from_static(b"asked") };
        assert!(driven.command(Command::Send(Destination::One(server.id), note.clone())).is_ok());
        assert_eq!(next(&mut driven, &events), Event::Note(server.id, note));
    }

    // A note that arrives between turns is delivered in the next turn.
    let note = Note { number: 1_000, payload: Bytes::new() };
    server.command(Command::Send(Destination::One(me), note.clone()));
    std::thread::sleep(Duration::from_millis(50));
    assert!(events.try_recv().is_err(), "it does nothing by itself");
    assert_eq!(next(&mut driven, &events), Event::Note(server.id, note));

    let (began, patience) = (Instant::now(), Duration::from_millis(30));
    driven.turn(patience);
    assert!(began.elapsed() >= patience / 2 && events.try_recv().is_err(), "nothing came meanwhile");
    // The reactor ends with its owner, and its peers lose the link.
    drop(driven);
    let ends = std::iter::repeat_with(|| server.next()).any(|event| event == Event::Unlinked(me));
    assert!(ends);
}
