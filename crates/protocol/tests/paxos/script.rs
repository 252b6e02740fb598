//! The steps of scripts about the log. The only processes are routers.

use bytes::Bytes;
use quorate_protocol::{
    Duration, Input,
    paxos::{Command, Settings},
};

use super::{
    trace::names,
    world::{World, name, peer, process},
};
use crate::world::{
    millis, play,
    script::{self, scripts},
};

fn check(name: &str) {
    let world = World::new(settings(&script::text("paxos", name)), 1);
    play(world, "paxos", name, process, perform);
}

/// Returns small bounds, which keep scripts short. A line `# settings: log_bytes_kept=…` changes them.
fn settings(text: &str) -> Settings {
    let mut settings = Settings { chunk_bytes: 1000, ..Settings::default() };
    for line in text.lines() {
        let Some(pairs) = line.strip_prefix("# settings: ") else { continue };
        for pair in pairs.split_whitespace() {
            let (key, value) = pair.split_once('=').expect("key=value");
            let value = value.parse().expect("a number");
            match key {
                "log_bytes_kept" => settings.log_bytes_kept = value,
                "wanted" => settings.wanted = value,
                "chunk_bytes" => settings.chunk_bytes = value,
                "checkpoint_bytes" => settings.checkpoint_bytes = Some(value),
                "batch_bytes_max" => settings.batch_bytes_max = value,
                key => panic!("no setting {key}"),
            }
        }
    }
    settings
}

/// Interval at which a slow link delivers a message.
const TICK: Duration = Duration::from_millis(20);

fn perform(world: &mut World, step: &[&str]) -> bool {
    match *step {
        ["found", id] => world.found(process(id)),
        ["join", id, "via", ref seeds @ ..] => {
            let seeds: Vec<_> = seeds.iter().map(|seed| process(seed)).collect();
            world.join(process(id), &seeds);
        }
        ["deliver", from, to, ref count @ ..] => {
            let count = count.first().map_or(1, |count| count.parse().expect("a number"));
            for _ in 0..count {
                world.let_through(process(from), process(to));
            }
        }
        ["reform", id] => {
            let id = process(id);
            match world.process(id).can_reform() {
                Ok(()) => {
                    // The fence between generations cuts the router off like this.
                    world.isolate(id);
                    world.begin_anew(id);
                    world.input(id, Input::Command(Command::Reform));
                }
                Err(refusal) => world.say(&format!("{} may not go on alone: {refusal:?}", name(id))),
            }
        }
        ["run", span, "at", count, "a", "tick", from, to] => {
            let (span, count) = (millis(span), count.parse::<u64>().expect("a number"));
            for _ in 0..span.as_millis() / TICK.as_millis() {
                world.run(TICK);
                for _ in 0..count {
                    world.let_through(process(from), process(to));
                }
                world.settle();
            }
        }
        ["propose", id, ref payloads @ ..] => {
            for payload in payloads {
                world.propose(process(id), Bytes::copy_from_slice(payload.as_bytes()));
            }
            world.input(process(id), Input::Drained);
        }
        ["snapshots", "in", "parts", "later"] => (world.parts, world.later) = (true, true),
        ["begin", "snapshot", id] => world.begin_snapshot(process(id)),
        ["show", "reigns"] => world.reigns = true,
        // The user binds the payloads to the last reign that it heard of, whether that reign has ended or
        // not.
        ["bind", id, ref payloads @ ..] => {
            let ballot = world.nodes[&process(id)].reign.expect("it has led");
            for payload in payloads {
                let payload = Bytes::copy_from_slice(payload.as_bytes());
                world.input(process(id), Input::Command(Command::ProposeIn { ballot, payload }));
            }
            world.input(process(id), Input::Drained);
        }
        ["ask", id, ref questions @ ..] => {
            let ballot = world.nodes[&process(id)].reign.expect("it has led");
            for question in questions {
                let through = question.parse().expect("a number");
                world.input(process(id), Input::Command(Command::Confirm { ballot, through }));
            }
            world.input(process(id), Input::Drained);
        }
        ["fill", id, count, bytes] => {
            let bytes: usize = bytes.parse().expect("a number");
            for n in 0..count.parse::<u8>().expect("a number") {
                world.propose(process(id), Bytes::from(vec![b'a' + n % 26; bytes]));
                world.settle();
            }
            // A list of the messages and learned slots would be as long as the trace. The count replaces it.
            let learned = world.trace.lines().filter(|line| line.contains(" learned ")).count();
            world.trace.clear();
            world.say(&format!("({learned} times a slot is learned)"));
        }
        ["tell", id, "of", ref routers @ ..] => {
            let routers = routers.iter().map(|router| peer(process(router))).collect();
            world.input(process(id), Input::Command(Command::Seeds(routers)));
        }
        ["come", "back", id] => world.come_back(process(id)),
        ["pause", id] => {
            world.input(process(id), Input::Command(Command::Pause));
            world.input(process(id), Input::Drained);
        }
        ["add", id, new] => {
            let peer = peer(process(new));
            world.input(process(id), Input::Command(Command::AddRouter(peer)));
        }
        ["remove", id, old] => {
            world.input(process(id), Input::Command(Command::RemoveRouter(process(old))));
        }
        ["status"] => {
            for id in world.everybody() {
                let status = world.process(id).status();
                let leader = status.leader.map_or("none".to_owned(), name);
                world.say(&format!(
                    "{} {} leader {leader} promised b{} chosen {} last {} members {}",
                    name(id),
                    status.state,
                    status.promised.round,
                    status.chosen,
                    status.last,
                    names(&status.members)
                ));
            }
        }
        _ => return false,
    }
    true
}

scripts! { check:
    founding_and_growth
    leader_crash
    isolated_node_raises_no_ballot
    stale_leader_returns
    catch_up_by_log
    catch_up_by_snapshot
    replace_a_dead_router
    stop_command_cut_off
    change_of_a_dead_reign
    star_around_a_dead_change
    old_incarnation
    forwarded_in_order
    leader_leaves
    away_and_back
    lead_handed_over
    newcomer_alone_holds_the_change
    newcomer_whose_change_is_gone
    newcomer_that_lost_the_change_answers
    newcomer_named_by_a_change_gets_more_slots
    learner_that_promised_above_its_leader
    half_deaf_leader
    heard_by_another
    heard_by_a_newcomer
    newcomer_whose_leader_resigned
    newcomer_learns_of_its_dropped_change
    removed_by_routers_that_are_gone
    reform_with_half_of_the_former_members
    reform_continues_from_chosen_slots
    bound_to_a_reign
    bound_and_deposed
    a_reign_is_settled
    rounds_are_shared
    a_round_finds_a_later_reign
    a_round_waits_for_an_open_change
    a_snapshot_in_parts
    a_second_receiver_gets_the_next_snapshot
}
