//! Scripts: a scenario and, below each of its steps, what happens. Run with `UPDATE_SCRIPTS=1` they are written anew;
//! commit the changes only if you understand what caused them.

use std::{fmt::Write as _, path::PathBuf};

use bytes::Bytes;
use quorate_protocol::{
    Duration,
    paxos::{Command, Settings},
};

use super::world::{World, name, names, process};

#[expect(clippy::disallowed_methods, reason = "the environment says whether to write the scripts anew")]
fn check(script: &str) {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/paxos/scripts").join(format!("{script}.txt"));
    let text = std::fs::read_to_string(&path).expect("the script is there");
    let mut world = World::new(settings(&text), 1);
    let mut rendered = String::new();
    for line in text.lines() {
        if line.starts_with('#') || line.is_empty() && rendered.ends_with('\n') {
            writeln!(rendered, "{line}").expect("strings take everything");
        }
        if let Some(step) = line.strip_prefix("> ") {
            world.trace.clear();
            perform(&mut world, step);
            writeln!(rendered, "> {step}\n{}", world.trace.trim_end()).expect("strings take everything");
        }
    }
    let rendered = rendered.replace("\n\n\n", "\n\n");
    if std::env::var_os("UPDATE_SCRIPTS").is_some() {
        std::fs::write(&path, &rendered).expect("the script can be written");
    } else if rendered != text {
        let differing = rendered.lines().zip(text.lines()).position(|(a, b)| a != b);
        panic!("{script}: from line {:?} on it went otherwise:\n{rendered}", differing.map(|line| line + 1));
    }
}

/// Small numbers, so that scripts stay short. A line `# settings: log_bytes_kept=…` changes them.
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
                "batch_bytes_max" => settings.batch_bytes_max = value,
                key => panic!("no setting {key}"),
            }
        }
    }
    settings
}

/// How often a slow link lets something through.
const TICK: Duration = Duration::from_millis(20);

fn millis(span: &str) -> Duration {
    Duration::from_millis(span.strip_suffix("ms").expect("ms").parse().expect("a number"))
}

fn perform(world: &mut World, step: &str) {
    let words: Vec<_> = step.split_whitespace().collect();
    match words[..] {
        ["found", id] => world.found(process(id)),
        ["join", id, "via", ref seeds @ ..] => {
            let seeds: Vec<_> = seeds.iter().map(|seed| process(seed)).collect();
            world.join(process(id), &seeds);
        }
        ["crash", id] => world.crash(process(id)),
        ["cut", a, b] => world.cut(process(a), process(b)),
        ["isolate", id] => {
            for other in world.nodes.keys().copied().filter(|other| *other != process(id)).collect::<Vec<_>>()
            {
                world.cut(process(id), other);
            }
        }
        ["heal"] => world.heal(),
        ["hold", from, to] => world.hold(process(from), process(to)),
        ["release"] => world.release(),
        ["deliver", from, to, ref count @ ..] => {
            let count = count.first().map_or(1, |count| count.parse().expect("a number"));
            for _ in 0..count {
                world.let_through(process(from), process(to));
            }
        }
        ["reform", id] => {
            let id = process(id);
            match world.nodes[&id].paxos.can_reform() {
                Ok(()) => {
                    // As the fence between generations does.
                    for other in world.nodes.keys().copied().filter(|other| *other != id).collect::<Vec<_>>()
                    {
                        world.cut(id, other);
                    }
                    world.begin_anew(id);
                    world.input(id, quorate_protocol::Input::Command(Command::Reform));
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
            world.input(process(id), quorate_protocol::Input::Drained);
        }
        ["fill", id, count, bytes] => {
            let bytes: usize = bytes.parse().expect("a number");
            for n in 0..count.parse::<u8>().expect("a number") {
                world.propose(process(id), Bytes::from(vec![b'a' + n % 26; bytes]));
                world.settle();
            }
            // What was sent and learned is as many lines again; the count says it.
            let learned = world.trace.lines().filter(|line| line.contains(" learned ")).count();
            world.trace.clear();
            world.say(&format!("({learned} times a slot is learned)"));
        }
        ["add", id, new] => {
            let peer = super::world::peer(process(new));
            world.input(process(id), quorate_protocol::Input::Command(Command::AddRouter(peer)));
        }
        ["remove", id, old] => {
            world.input(process(id), quorate_protocol::Input::Command(Command::RemoveRouter(process(old))));
        }
        ["run", span] => {
            world.run(millis(span));
        }
        ["quietly", ..] => {
            perform(world, &words[1..].join(" "));
            world.trace.clear();
        }
        ["status"] => {
            for id in world.nodes.keys().copied().collect::<Vec<_>>() {
                let status = world.nodes[&id].paxos.status();
                let leader = status.leader.map_or("none".to_owned(), name);
                world.say(&format!(
                    "{} {} leader {leader} promised b{} chosen {} last {} members {}",
                    name(id),
                    status.role,
                    status.promised.round,
                    status.chosen,
                    status.last,
                    names(&status.members)
                ));
            }
        }
        _ => panic!("what is `{step}`?"),
    }
}

macro_rules! scripts {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*
    };
}

scripts! {
    founding_and_growth
    leader_crash
    isolated_node_raises_no_ballot
    stale_leader_returns
    catch_up_by_log
    catch_up_by_snapshot
    replace_a_dead_router
    stop_command_cut_off
    old_incarnation
    forwarded_in_order
    leader_leaves
    newcomer_alone_holds_the_change
    newcomer_whose_change_is_gone
    newcomer_that_lost_the_change_answers
    newcomer_that_is_named_is_fed_on
    newcomer_of_an_idle_domain_is_told
    reform_though_half_of_the_former_are_there
    reform_goes_on_from_what_is_chosen
}
