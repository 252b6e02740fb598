//! Sessions under random schedules: reach, forget, broken links, endpoints that come and go, crossing
//! requests.
//!
//! [`Chat`](super::chat) itself asserts that each message arrives in the session in which it was sent, in
//! order and without a gap.

use super::{
    World, channel,
    chat::{ChatEvent, Do, session},
};
use crate::Command;

struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }
}

const NODES: usize = 3;
const ENDPOINTS: u64 = 2;

#[test]
fn sessions_agree_and_come_about_under_any_schedule() {
    let (mut heard, mut agreed) = (0, 0);
    for seed in 0..2_000 {
        let (more_heard, more_agreed) = run(seed);
        heard += more_heard;
        agreed += more_agreed;
    }
    assert!(heard > 20_000 && agreed > 2_000, "{heard} messages, {agreed} sessions in the end");
}

fn run(seed: u64) -> (usize, usize) {
    let mut chance = Chance(seed);
    let mut world: World = World::new(NODES);
    let mut here = [[true; ENDPOINTS as usize]; NODES];
    let mut wants = [[[false; NODES]; ENDPOINTS as usize]; NODES];
    let mut chat_events: Vec<Vec<(u64, ChatEvent)>> = (0..NODES).map(|_| Vec::new()).collect();
    for node in 0..NODES {
        (0..ENDPOINTS).for_each(|endpoint| drop(world.chat(node, endpoint)));
    }
    for _ in 0..400 {
        let (node, peer) = (chance.below(NODES), chance.below(NODES));
        let at = chance.below(ENDPOINTS as usize);
        let endpoint = at as u64;
        match chance.below(20) {
            0 | 1 if here[node][at] && node != peer => {
                wants[node][at][peer] = true;
                world.command_chat(node, endpoint, Do::Reach(peer));
            }
            2 if here[node][at] => {
                wants[node][at][peer] = false;
                world.command_chat(node, endpoint, Do::Forget(peer));
            }
            3..=7 if here[node][at] => world.command_chat(node, endpoint, Do::Say(peer)),
            8 if world.wanted.contains(&(node, peer)) => world.link(node, peer),
            9 if chance.below(4) == 0 => world.unlink(node, peer),
            10 if chance.below(4) == 0 => {
                let ends = here[node][at];
                if ends {
                    wants[node][at] = [false; NODES];
                    if chance.below(2) == 0 {
                        world.command_chat(node, endpoint, Do::Panic);
                    } else {
                        world.command(node, Command::Remove(channel(endpoint)));
                    }
                    chat_events[node].append(&mut world.take_chat_events(node));
                    chat_events[node].retain(|(it, _)| *it != endpoint);
                } else {
                    world.chat(node, endpoint);
                }
                here[node][at] = !ends;
            }
            11 => world.now = world.now + quorate_protocol::Duration::from_millis(30),
            12 if world.nodes[node].deadline_is_due(world.now) => {
                world.give(node, quorate_protocol::Input::Deadline)
            }
            _ => {
                world.deliver(node, peer);
            }
        }
        chat_events[node].append(&mut world.take_chat_events(node));
    }
    world.settle();
    let mut agreed = 0;
    for (node, chat_events) in chat_events.iter_mut().enumerate() {
        chat_events.append(&mut world.take_chat_events(node));
    }
    for at in 0..ENDPOINTS as usize {
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let ours = session(&chat_events[one], at as u64, other).filter(|_| here[one][at]);
            let theirs = session(&chat_events[other], at as u64, one).filter(|_| here[other][at]);
            assert_eq!(ours, theirs, "seed {seed}: {one} and {other} name their session at {at} alike");
            let wanted = wants[one][at][other] || wants[other][at][one];
            let should = wanted && here[one][at] && here[other][at];
            assert!(!should || ours.is_some(), "seed {seed}: {one} and {other} come to a session at {at}");
            assert!(ours.is_none() || here[one][at] && here[other][at]);
            agreed += usize::from(ours.is_some());
        }
    }
    let heard = chat_events
        .iter()
        .flatten()
        .filter(|(_, chat_events)| matches!(chat_events, ChatEvent::Heard(..)))
        .count();
    (heard, agreed)
}

impl crate::Node {
    fn deadline_is_due(&self, now: quorate_protocol::Time) -> bool {
        quorate_protocol::Protocol::deadline(self).is_some_and(|deadline| deadline <= now)
    }
}
