//! Scripts of process groups.

use quorate_protocol::{
    Duration,
    group::{Command, Phi, Settings, Strength},
};

use super::world::{GROUP, World, process, send};
use crate::world::script::{self, scripts};

fn check(name: &str) {
    let mut world = World::new(Settings { piece_bytes: 150, ..Settings::default() });
    script::check("group", name, |step| {
        world.trace.clear();
        perform(&mut world, step);
        world.trace.clone()
    });
}

fn millis(span: &str) -> Duration {
    Duration::from_millis(span.strip_suffix("ms").expect("ms").parse().expect("a number"))
}

fn strength(word: &str) -> Strength {
    match word {
        "soft" => Strength::Soft,
        "ordered" => Strength::Ordered,
        "safe" => Strength::Safe(Phi::All),
        "safe1" => Strength::Safe(Phi::Count(1)),
        word => panic!("what is the strength {word}?"),
    }
}

fn perform(world: &mut World, step: &str) {
    let words: Vec<_> = step.split_whitespace().collect();
    match words[..] {
        // Members that have joined one after the other.
        ["group", "of", ref members @ ..] => {
            world.run(Duration::from_millis(1_000));
            for member in members {
                perform(world, &format!("join {member}"));
                world.run(Duration::from_millis(100));
            }
            world.trace.clear();
        }
        ["join", ref members @ ..] => {
            for member in members {
                world.start(member);
                world.ask(member, |id| Command::Join { id, group: GROUP });
                world.drain(member);
            }
        }
        ["leave", who] => {
            world.ask(who, |id| Command::Leave { id, group: GROUP });
            world.drain(who);
        }
        ["flush", who] => {
            world.ask(who, |id| Command::Flush { id, group: GROUP });
            world.drain(who);
        }
        // All in one batch: `send a soft x ordered y`.
        ["send", who, ref what @ ..] => {
            for pair in what.chunks(2) {
                world.ask(who, |id| send(id, strength(pair[0]), pair[1]));
            }
            world.drain(who);
        }
        ["crash", who] => world.crash(who),
        ["pause", who] => drop(world.paused.insert(process(who))),
        ["resume", who] => drop(world.paused.remove(&process(who))),
        ["cut", a, b] => world.cut(a, b),
        ["heal"] => world.heal(),
        ["hold", from, to] => world.links.hold(process(from), process(to)),
        ["release"] => world.links.release(),
        ["settle"] => world.settle(),
        ["run", span] => world.run(millis(span)),
        ["show"] => world.show(),
        ["quietly", ..] => {
            perform(world, &words[1..].join(" "));
            world.trace.clear();
        }
        _ => panic!("what is `{step}`?"),
    }
}

scripts! { check:
    first_member
    joiner_gets_the_state
    strengths_in_one_order
    flush_waits_for_all
    leaves
    sender_dies_with_a_suffix
    ordered_behind_a_lost_soft
    safe_waits_for_all
    holder_dies_in_the_repair
    late_reporter
    joiner_dies
    giver_dies
    one_way_round
    isolated_and_back
}
