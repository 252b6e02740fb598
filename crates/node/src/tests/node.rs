//! Tests of a node's promises, except those about sessions.

use std::sync::{Arc, atomic::Ordering};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Duration, Generation, Input, Policy, Protocol, Ticket, Time, ecast::Fence, wire::Wire,
};

use super::{
    World, channel,
    chat::{Chat, ChatEvent, Do, Word, session},
    id,
};
use crate::{
    Channel, Command, Counters, Dynamic, Encoded, Ending, Envelope, Event, NewEndpoint,
    channel::EnvelopeContent,
};

fn envelope(channel: Channel, body: &'static [u8]) -> Bytes {
    let content = EnvelopeContent::Encoded(Encoded { head: Bytes::from_static(body), payload: None });
    let mut out = BytesMut::new();
    Envelope::<Encoded> { tag: channel.tag(), content }.encode(&mut out);
    out.freeze()
}

/// Makes two linked nodes. Each has a chat at each of these endpoints, and the sessions of the chats are
/// open.
fn talking(endpoints: &[u64]) -> World {
    let mut world: World = World::new(2);
    for &endpoint in endpoints {
        for node in 0..2 {
            world.chat(node, endpoint);
        }
        world.command_chat(0, endpoint, Do::Reach(1));
    }
    world.settle();
    for node in 0..2 {
        let chat_events = world.take_chat_events(node);
        let has_session = |endpoint: &u64| session(&chat_events, *endpoint, 1 - node).is_some();
        assert!(endpoints.iter().all(has_session));
    }
    world
}

#[test]
fn ten_thousand_idle_endpoints_are_not_called() {
    let mut world: World = World::new(1);
    let calls: Vec<_> = (0..10_000).map(|endpoint| world.chat(0, endpoint)).collect();
    for endpoint in 0..10_000 {
        world.command_chat(0, endpoint, Do::Wake(Time::ZERO + Duration::from_secs(1 + endpoint)));
    }
    let counts = || calls.iter().map(|calls| calls.load(Ordering::Relaxed)).collect::<Vec<_>>();
    assert!(counts().iter().all(|&calls| calls == 2), "a command, and the end of its batch");
    world.command_chat(0, 7, Do::Say(0));
    assert!(world.deliver(0, 0));
    let said = counts();
    assert_eq!((said[7], said.iter().sum::<usize>()), (6, 20_004), "four calls to the one that was meant");
    world.now = Time::ZERO + Duration::from_secs(10);
    assert_eq!(world.nodes[0].deadline(), Some(Time::ZERO + Duration::from_secs(1)));
    world.give(0, Input::Deadline);
    assert_eq!(counts().iter().sum::<usize>(), 20_004 + 2 * 10, "the ten that were due");
    assert_eq!(world.nodes[0].deadline(), Some(Time::ZERO + Duration::from_secs(11)));
    let one = world.take_events(0).len();
    assert_eq!(one, 11, "one heard itself, ten woke");
    for _ in 0..100 {
        world.hand(0, Input::Drained);
    }
    assert_eq!(counts().iter().sum::<usize>(), 20_024, "a turn in which nothing happened to them");
}

/// The node serves every endpoint, and often calls only the endpoint with many messages. One of ten thousand
/// endpoints gets a hundred thousand messages. Each other endpoint gets one message in between, on the same
/// link.
#[test]
fn ten_thousand_endpoints_are_served_beside_one_that_is_flooded() {
    const COUNT: u64 = 10_000;
    const FLOOD: usize = 100_000;
    let mut world: World = World::new(2);
    let calls: Vec<_> = (0..COUNT).map(|endpoint| world.chat(1, endpoint)).collect();
    for endpoint in 0..COUNT {
        world.chat(0, endpoint);
        world.hand(0, Input::Command(Command::Dynamic(channel(endpoint), Box::new(Do::Reach(1)))));
    }
    world.hand(0, Input::Drained);
    world.settle();
    assert_eq!(world.take_chat_events(0).len() as u64, COUNT, "each has a session with its twin");
    world.take_chat_events(1);
    calls.iter().for_each(|calls| calls.store(0, Ordering::Relaxed));

    let say = |world: &mut World, endpoint| {
        world.hand(0, Input::Command(Command::Dynamic(channel(endpoint), Box::new(Do::Say(1)))));
    };
    for endpoint in 1..COUNT {
        if endpoint % 10 == 1 {
            (0..FLOOD as u64 * 10 / COUNT).for_each(|_| say(&mut world, 0));
        }
        say(&mut world, endpoint);
    }
    world.hand(0, Input::Drained);
    // All messages arrive in one batch.
    for mut bytes in world.queues.remove(&(0, 1)).expect("they were sent") {
        let message = Envelope::decode(&mut bytes).expect("nodes write what they read");
        world.hand(1, Input::Receive { from: id(0), message });
    }
    world.hand(1, Input::Drained);
    let mut heard = vec![0; COUNT as usize];
    for (endpoint, chat_events) in world.take_chat_events(1) {
        assert!(
            matches!(chat_events, ChatEvent::Heard(from, _) if from == id(0)),
            "{endpoint}: {chat_events:?}"
        );
        heard[endpoint as usize] += 1;
    }
    assert_eq!(heard[0], FLOOD, "the flood arrives whole");
    assert!(heard[1..].iter().all(|&heard| heard == 1), "and so does one word of each other");
    let called = |endpoint: usize| calls[endpoint].load(Ordering::Relaxed);
    assert_eq!(called(0), FLOOD + 1, "a message each, and the end of the batch");
    assert!((1..COUNT as usize).all(|endpoint| called(endpoint) == 2));
    let counters = world.nodes[1].counters();
    assert_eq!(counters, Counters { absent: 0, foreign: 0, late: 0, malformed: 0 });
}

#[test]
fn a_batch_is_closed_once_for_each_endpoint_with_input() {
    let mut world = talking(&[1, 2, 3]);
    for endpoint in [1, 1, 2] {
        world.hand(0, Input::Command(Command::Dynamic(channel(endpoint), Box::new(Do::Say(1)))));
    }
    let calls = world.chat(0, 4);
    world.hand(0, Input::Drained);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    while world.deliver(0, 1) {}
    assert_eq!(world.take_chat_events(1).len(), 3);
}

#[test]
fn a_deadline_counts_before_the_batch_is_closed() {
    let mut world: World = World::new(1);
    world.chat(0, 1);
    let at = Time::ZERO + Duration::from_secs(5);
    world.hand(0, Input::Command(Command::Dynamic(channel(1), Box::new(Do::Wake(at)))));
    assert_eq!(world.nodes[0].deadline(), Some(at));
    world.hand(0, Input::Drained);
    assert_eq!(world.nodes[0].deadline(), Some(at));
    // The endpoint moves its deadline. It is not called at the earlier deadline, which is still in the index.
    let later = at + Duration::from_secs(5);
    world.hand(0, Input::Command(Command::Dynamic(channel(1), Box::new(Do::Wake(later)))));
    world.now = at;
    assert_eq!(world.nodes[0].deadline(), Some(later));
    world.give(0, Input::Deadline);
    assert_eq!(world.take_chat_events(0), []);
}

#[test]
fn a_link_is_shared_and_given_up_by_its_last_endpoint() {
    let mut world = talking(&[1, 2]);
    assert!(world.are_linked(0, 1));
    world.command_chat(0, 1, Do::Forget(1));
    while world.deliver(0, 1) || world.deliver(1, 0) {}
    assert!(world.are_linked(0, 1), "the other endpoint has a session on it");
    assert_eq!(world.take_chat_events(0), [(1, ChatEvent::Unlinked(id(1)))]);
    assert_eq!(world.take_chat_events(1), [(1, ChatEvent::Unlinked(id(0)))]);
    world.command_chat(0, 2, Do::Say(1));
    assert!(world.deliver(0, 1));
    assert!(matches!(world.take_chat_events(1)[..], [(2, ChatEvent::Heard(..))]));
    world.command_chat(0, 2, Do::Forget(1));
    assert!(!world.are_linked(0, 1));
}

#[test]
fn an_endpoint_that_panics_ends_and_others_go_on() {
    let mut world = talking(&[1, 2]);
    world.command_chat(0, 1, Do::Panic);
    let ended = world.take_events(0);
    let why = Ending::Panicked(String::from("as told"));
    assert!(matches!(&ended[..], [Event::Ended(at, it)] if *at == channel(1) && *it == why));
    while world.deliver(0, 1) {}
    assert_eq!(world.take_chat_events(1), [(1, ChatEvent::Unlinked(id(0)))]);
    world.command_chat(0, 1, Do::Say(1));
    assert!(matches!(world.take_events(0)[..], [Event::Unserved(_)]), "a command ends in an event");
    world.command_chat(0, 2, Do::Say(1));
    while world.deliver(0, 1) {}
    assert!(matches!(world.take_chat_events(1)[..], [(2, ChatEvent::Heard(..))]));
}

#[test]
#[should_panic = "as told"]
fn the_panic_of_a_vital_endpoint_ends_the_process() {
    let mut world: World = World::new(1);
    let new_endpoint = NewEndpoint::dynamic(channel(1), Dynamic(Chat::default())).vital();
    assert!(world.nodes[0].add(new_endpoint).is_ok());
    world.command_chat(0, 1, Do::Panic);
}

#[test]
fn envelopes_without_an_endpoint_are_counted_and_dropped() {
    let mut world = talking(&[1]);
    world.receive(0, 1, envelope(channel(9), b"anything"));
    let mut foreign = channel(1);
    foreign.domain.0 ^= 1;
    world.receive(0, 1, envelope(foreign, b"anything"));
    assert_eq!(world.nodes[1].counters(), Counters { absent: 1, foreign: 1, late: 0, malformed: 0 });
    world.chat(1, 3);
    world.receive(0, 1, envelope(channel(3), b"anything"));
    assert_eq!(world.nodes[1].counters().late, 1, "there is no session");
    // A domain with another id and the same 32-bit fold is still refused.
    let mut alike = channel(5);
    alike.domain.0 ^= 1 | 1 << 32;
    assert_eq!(alike.tag(), channel(5).tag());
    world.chat(0, 5);
    let new_endpoint = NewEndpoint::dynamic(alike, Dynamic(Chat::default()));
    assert!(world.nodes[1].add(new_endpoint).is_ok());
    world.command_chat(0, 5, Do::Reach(1));
    world.settle();
    assert_eq!(
        world.take_chat_events(0),
        [(5, ChatEvent::Unlinked(id(1)))],
        "told once that it comes to nothing"
    );
    assert!(world.nodes[1].counters().foreign > 1);
    assert_eq!(world.take_chat_events(1), []);
}

#[test]
fn a_malformed_message_ends_its_session_and_no_other() {
    let mut world = talking(&[1, 2]);
    world.receive(0, 1, envelope(channel(1), b"too short"));
    let events = world.take_events(1);
    assert!(
        matches!(&events[0], Event::Malformed { channel: at, peer, .. } if (*at, *peer) == (channel(1), id(0)))
    );
    assert_eq!(world.nodes[1].counters().malformed, 1);
    world.settle();
    let chat_events = world.take_chat_events(0);
    assert!(
        matches!(chat_events[..], [(1, ChatEvent::Unlinked(_)), (1, ChatEvent::Linked(..))]),
        "and it asks again: {chat_events:?}"
    );
    assert!(world.are_linked(0, 1));
}

#[test]
fn a_channel_has_one_endpoint_and_every_command_an_end() {
    let mut world: World = World::new(1);
    world.command(0, Command::Add(NewEndpoint::dynamic(channel(1), Dynamic(Chat::default()))));
    world.command(0, Command::Add(NewEndpoint::dynamic(channel(1), Dynamic(Chat::default()))));
    world.command(0, Command::Remove(channel(1)));
    world.command(0, Command::Remove(channel(1)));
    let events = world.take_events(0);
    assert!(matches!(
        events[..],
        [
            Event::Added(_),
            Event::Occupied(_),
            Event::Ended(_, Ending::Removed),
            Event::Ended(_, Ending::Removed)
        ]
    ));
}

#[test]
fn records_of_all_endpoints_share_one_numbering() {
    let mut world: World = World::new(1);
    let idle = world.chat(0, 3);
    for endpoint in [1, 2] {
        world.chat(0, endpoint);
    }
    for endpoint in [1, 2, 1] {
        world.command_chat(0, endpoint, Do::Persist);
    }
    let channels: Vec<u64> = world.outputs[0].entries.iter().map(|it| it.channel.endpoint.0).collect();
    assert_eq!(channels, [1, 2, 1]);
    world.give(0, Input::Persisted(Ticket(2)));
    let persisted = |ticket| ChatEvent::Persisted(Ticket(ticket));
    assert_eq!(world.take_chat_events(0), [(1, persisted(2)), (2, persisted(2))]);
    world.give(0, Input::Persisted(Ticket(3)));
    assert_eq!(world.take_chat_events(0), [(1, persisted(3))], "the other one has nothing new");
    assert_eq!(idle.load(Ordering::Relaxed), 0);

    world.command_chat(0, 1, Do::Collect(Ticket(3)));
    assert_eq!(world.outputs[0].collected, Some(Ticket(2)), "the other one needs its own");
    world.command_chat(0, 2, Do::Panic);
    assert_eq!(world.outputs[0].collected, Some(Ticket(2)), "a process made again may have it back");
    world.command(0, Command::Remove(channel(2)));
    assert_eq!(world.outputs[0].collected, Some(Ticket(3)));

    let mut world: World = World::new(1);
    for endpoint in [1, 2] {
        world.chat(0, endpoint);
        world.command_chat(0, endpoint, Do::Persist);
    }
    world.command_chat(0, 1, Do::Collect(Ticket(2)));
    world.take_events(0);
    world.command(0, Command::Retire(channel(2)));
    assert!(matches!(world.take_events(0)[..], [Event::Ended(_, Ending::Retired)]));
    // A new endpoint takes the channel and writes nothing.
    world.chat(0, 2);
    world.command_chat(0, 1, Do::Persist);
    world.command_chat(0, 1, Do::Collect(Ticket(3)));
    assert_eq!(world.outputs[0].collected, Some(Ticket(2)), "the records of the retired endpoint are kept");
    world.command(0, Command::Release(channel(2)));
    assert_eq!(world.outputs[0].collected, Some(Ticket(3)));
    assert!(world.take_events(0).is_empty(), "the one in its place goes on");

    let mut world: World = World::new(1);
    let new_endpoint = NewEndpoint::dynamic(channel(1), Dynamic(Chat::default())).recovered(Ticket(5));
    assert!(world.nodes[0].add(new_endpoint).is_ok());
    world.chat(0, 2);
    world.command_chat(0, 2, Do::Persist);
    world.command_chat(0, 2, Do::Collect(Ticket(9)));
    assert_eq!(world.outputs[0].collected, Some(Ticket(5)));
}

#[test]
fn a_fence_separates_one_endpoint_and_not_its_process() {
    let mut world = talking(&[2]);
    world.chat_with(0, 1, Fence::of_router(Generation::FIRST));
    world.chat_with(1, 1, Fence::of_member(Generation::FIRST));
    world.command_chat(1, 1, Do::Reach(0));
    world.settle();
    assert!(session(&world.take_chat_events(0), 1, 1).is_some());
    assert!(session(&world.take_chat_events(1), 1, 0).is_some());
    // The old router's messages are under way when the other endpoint adopts the next generation, and are not
    // accepted.
    world.command_chat(0, 1, Do::Say(1));
    let next = Generation { number: 1, survivor: id(5).incarnation };
    world.command_chat(1, 1, Do::Adopt(Arc::new(Fence::of_member(next))));
    assert_eq!(world.take_chat_events(1), [(1, ChatEvent::Unlinked(id(0)))]);
    while world.deliver(0, 1) {}
    assert_eq!((world.take_chat_events(1), world.nodes[1].counters().late), (vec![], 1));
    world.settle();
    let events = world.take_events(0);
    let is_reported = events.iter().any(|event| match event {
        Event::PolicyMismatch { peer, ours, theirs, .. } => {
            let [ours, theirs] = [ours, theirs].map(|pass| Fence::of_pass(pass).expect("a fence"));
            *peer == id(1) && ours.is_out(theirs)
        }
        _ => false,
    });
    assert!(is_reported, "the router hears of the generation that leaves it behind");
    assert!(events.iter().all(|event| !matches!(event, Event::Ended(..))));
    // The session of the endpoints on the other channel goes on.
    world.take_events(1);
    world.command_chat(0, 2, Do::Say(1));
    while world.deliver(0, 1) {}
    assert!(matches!(world.take_chat_events(1)[..], [(2, ChatEvent::Heard(..))]));
    // The router adopts the next generation, too, and the two endpoints get a session again.
    world.command_chat(0, 1, Do::Adopt(Arc::new(Fence::of_router(next))));
    world.settle();
    assert!(session(&world.take_chat_events(1), 1, 0).is_some());
}

/// A process shows the pass of its vital endpoint, so that a disk keeps it and the endpoint can be restored
/// with this pass. The process still admits the passes of all others.
#[test]
fn a_process_shows_the_pass_of_its_vital_endpoint_and_is_linked_with_everybody() {
    let mut world: World = World::new(1);
    world.chat_with(0, 1, Fence::of_router(Generation::FIRST));
    assert!(world.nodes[0].policy().pass().is_empty(), "a dynamic endpoint's pass is its own");
    let mut world: World = World::new(1);
    let policy: Arc<dyn Policy> = Arc::new(Fence::of_router(Generation::FIRST));
    let new_endpoint = NewEndpoint::dynamic(channel(1), Dynamic(Chat::showing(policy.clone()))).vital();
    assert!(world.nodes[0].add(new_endpoint).is_ok());
    world.chat(0, 2);
    assert_eq!(world.nodes[0].policy().pass(), policy.pass());
    world.command_chat(0, 2, Do::Adopt(Arc::new(Fence::of_member(Generation::FIRST))));
    assert!(world.outputs[0].shown.is_none(), "what a dynamic endpoint shows is not kept");
    let next = Fence::of_router(Generation { number: 1, survivor: id(5).incarnation });
    world.command_chat(0, 1, Do::Adopt(Arc::new(next)));
    let shown = world.outputs[0].shown.take().expect("it is kept before anything leaves");
    assert_eq!((shown.pass(), shown.admits(&policy.pass())), (next.pass(), true));
}

#[test]
fn typed_and_dynamic_endpoints_of_a_channel_exchange_messages() {
    let mut world: World<Chat> = World::new(2);
    assert!(world.nodes[0].add(NewEndpoint::typed(channel(1), Chat::default())).is_ok());
    assert!(world.nodes[0].typed(channel(1)).is_some() && world.nodes[0].typed(channel(2)).is_none());
    world.chat(0, 2);
    world.chat(1, 1);
    for what in [Do::Reach(1), Do::Persist] {
        world.command(0, Command::Typed(channel(1), what));
    }
    world.settle();
    let chat_events = world.take_chat_events(1);
    let ours = session(&chat_events, 1, 0).expect("they are in session");
    let heard = |chat_events: &[(u64, ChatEvent)]| {
        chat_events.iter().filter(|(_, chat_events)| matches!(chat_events, ChatEvent::Heard(..))).count()
    };
    for to in [1, 0] {
        world.command(0, Command::Typed(channel(1), Do::Say(to)));
    }
    world.command_chat(1, 1, Do::Say(0));
    while world.deliver(0, 0) || world.deliver(0, 1) || world.deliver(1, 0) {}
    assert_eq!(heard(&world.take_chat_events(1)), 1);
    let events = world.take_events(0);
    let homely: Vec<&ChatEvent> = events
        .iter()
        .filter_map(|event| match event {
            Event::Typed(at, event) if *at == channel(1) => Some(event),
            _ => None,
        })
        .collect();
    assert!(
        matches!(homely[..], [ChatEvent::Linked(_, session), ChatEvent::Heard(..), ChatEvent::Heard(..)] if *session == ours),
        "{homely:?}"
    );
    assert_eq!(world.outputs[0].entries[0].record(), Ok(Word { session: 1, number: 2 }));
    world.command(0, Command::Typed(channel(2), Do::Panic));
    assert!(matches!(world.take_events(0)[..], [Event::Unserved(_)]), "no typed endpoint is there");
}
