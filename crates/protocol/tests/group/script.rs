//! The steps of scripts about process groups.

use quorate_protocol::{
    Duration,
    ecast::Position,
    group::{Command, Phi, SeatId, SendStrength, Settings},
};

use super::world::{GROUP, World, process, send};
use crate::world::{play, script::scripts};

fn check(name: &str) {
    // Members cast nothing unless a script opens the window.
    let settings = Settings { piece_bytes: 150, cast_window_bytes: 0, ..Settings::default() };
    let world = World::new(settings);
    play(world, "group", name, process, perform);
}

fn strength(word: &str) -> SendStrength {
    match word {
        "soft" => SendStrength::Soft,
        "ordered" => SendStrength::Ordered,
        "safe" => SendStrength::Safe(Phi::All),
        "safe1" => SendStrength::Safe(Phi::Count(1)),
        word => panic!("what is the strength {word}?"),
    }
}

fn join(world: &mut World, who: &str, forced: bool) {
    world.start(who);
    let offer = world.offer(who, forced);
    world.ask(who, |id| Command::Join { id, group: GROUP, name: String::from("group"), offer });
    world.drain(process(who));
}

fn perform(world: &mut World, step: &[&str]) -> bool {
    match *step {
        // Joins these members, one after the other.
        ["group", "of", ref members @ ..] => {
            world.run(Duration::from_millis(1_000));
            for member in members {
                perform(world, &["join", member]);
                world.run(Duration::from_millis(100));
            }
            world.trace.clear();
        }
        ["join", "forced", who] => join(world, who, true),
        ["join", ref members @ ..] => {
            for member in members {
                join(world, member, false);
            }
        }
        ["save", who] => {
            world.ask(who, |id| Command::Save { id, group: GROUP, last: false });
            world.drain(process(who));
        }
        // The member saves the state, because it is about to leave.
        ["close", who] => {
            world.ask(who, |id| Command::Save { id, group: GROUP, last: true });
            world.drain(process(who));
        }
        // The member's host writes checkpoints, but its disk never reports that they are durable.
        ["mute", who] => {
            world.mute.insert(process(who));
        }
        // The member's host applies the state, and each later step, when the script says so.
        ["slow", who] => {
            world.slow.insert(process(who));
        }
        ["applied", who] => {
            world.ask(who, |_| Command::Progress { group: GROUP });
            world.drain(process(who));
        }
        // A living process quits and joins in one turn.
        ["quit", "and", "join", who] => {
            let offer = world.offer(who, false);
            world.ask(who, |_| Command::Quit { group: GROUP });
            world.ask(who, |id| Command::Join { id, group: GROUP, name: String::from("group"), offer });
            world.drain(process(who));
        }
        // The members leave the group as if they had failed.
        ["quit", ref members @ ..] => {
            for who in members {
                world.ask(who, |_| Command::Quit { group: GROUP });
                world.drain(process(who));
            }
        }
        // A living process that was in the group joins again.
        ["rejoin", who] => {
            let offer = world.offer(who, false);
            world.ask(who, |id| Command::Join { id, group: GROUP, name: String::from("group"), offer });
            world.drain(process(who));
        }
        // Sets the number of bytes that may wait behind a state, for members that join from now on.
        ["wait", "behind", "a", "state", "for", bytes] => {
            world.settings.behind_bytes_max = bytes.parse().expect("a number");
        }
        ["hand", "over", bytes] => {
            world.settings.hand_over_bytes = bytes.parse().expect("a number");
        }
        ["file", "of", from, "to", to] => world.hand_over(from, to),
        ["leave", who] => {
            world.ask(who, |id| Command::Leave { id, group: GROUP });
            world.drain(process(who));
        }
        ["flush", who] => {
            world.ask(who, |id| Command::Flush { id, group: GROUP });
            world.drain(process(who));
        }
        ["seats", who, ref seats @ ..] => {
            let seats = seats.iter().map(|seat| SeatId(seat.parse().expect("a number"))).collect();
            world.ask(who, |_| Command::Seats { group: GROUP, seats });
            world.drain(process(who));
        }
        // The member's soft messages follow this position from now on.
        ["follow", who, at] => {
            let at = Position(at.parse().expect("a position"));
            world.ask(who, |_| Command::Follow { group: GROUP, at });
            world.drain(process(who));
        }
        // All sends happen in one turn. `send a soft x ordered y+z` sends two messages, the second with a
        // pack of two.
        ["send", who, ref what @ ..] => {
            for pair in what.chunks(2) {
                world.ask(who, |id| send(id, strength(pair[0]), pair[1]));
            }
            world.drain(process(who));
        }
        // Sets `receipts_at_once`, for members that join from now on.
        ["tell", "at", "once", count] => {
            world.settings.receipts_at_once = count.parse().expect("a number");
        }
        // Sets the number of bytes of casts that may be unconfirmed, for members that join from now on.
        ["cast", bytes] => {
            world.settings.cast_window_bytes = bytes.parse().expect("a number");
        }
        // Sets the interval between reports of the groups' rates, for members that join from now on.
        ["rates", "every", millis] => {
            let millis = millis.parse().expect("a number");
            world.settings.rate_interval = Duration::from_millis(millis);
        }
        ["put", "aside", bytes] => {
            world.settings.ahead_bytes = bytes.parse().expect("a number");
        }
        ["show"] => world.show(),
        ["order"] => world.show_order(),
        _ => return false,
    }
    true
}

scripts! { check:
    first_member
    joiner_gets_the_state
    joiner_gets_waiting_messages_step_by_step
    joiner_falls_behind
    a_slow_joiner_counts_as_whole
    quits
    quits_and_joins_in_one_view
    quits_in_mid_change
    a_returning_process_has_one_seat
    a_member_quits_before_its_admission
    survivors_late_to_each_other
    strengths_in_one_order
    packed
    flush_waits_for_all
    follows
    leaves
    sender_dies_with_a_suffix
    ordered_behind_a_lost_soft
    safe_waits_for_all
    holder_dies_in_the_repair
    large_view
    receipts_in_a_tree
    late_reporter
    joiner_dies
    the_only_member_dies
    giver_dies
    a_third_member_repairs_between_two
    isolated_and_back
    saved
    the_last_one_saves
    stale_is_refused
    the_newest_returns_second
    an_unreported_checkpoint_is_newer
    stacked
    casts
    casts_do_not_pass
    casts_late_and_twice
    casts_beyond_the_buffer
    casts_and_a_view
    casts_of_the_dead
    casts_behind_a_gap
    multicasts
}
