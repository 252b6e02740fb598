//! Replies that are large together.

use quorate_protocol::{
    Duration,
    service::{Body, CallOutcome, Settings},
    wire::FRAME_BYTES_MAX,
};

use super::world::{World, process};

#[test]
fn the_answers_of_a_turn_travel_in_as_many_messages_as_they_need() {
    let mut world = World::new(Settings::default(), 1);
    let (replica, client) = (process("1"), process("c1"));
    world.found(replica);
    world.client(client);
    world.run(Duration::from_millis(200));
    world.ask(client, replica, Body::Open { nonce: 1 });
    world.settle();
    let word = "w".repeat(3 << 20);
    world.call(client, replica, &[&format!("0:add:{word}")]);
    world.settle();
    world.heard.clear();

    // One reply fits into a frame. All replies together do not.
    let reads: Vec<String> = (1..=40).map(|number| format!("{number}?get")).collect();
    world.call(client, replica, &reads.iter().map(String::as_str).collect::<Vec<_>>());
    world.settle();
    let mut answered = Vec::new();
    for (_, body) in std::mem::take(&mut world.heard) {
        let Body::Answers { answers, .. } = body else { panic!("{body:?}") };
        let bytes: usize = answers
            .iter()
            .map(|(_, outcome)| match outcome {
                CallOutcome::Done(reply) => reply.len(),
                other => panic!("{other:?}"),
            })
            .sum();
        assert!(bytes < FRAME_BYTES_MAX, "{bytes} bytes of answers are in one message");
        answered.extend(answers.into_iter().map(|(number, _)| number));
    }
    assert_eq!(answered, (1..=40).collect::<Vec<_>>());
}
