//! The steps of scripts about services.

use quorate_protocol::{
    Duration, paxos,
    service::{Body, Pipelining, Settings},
};

use super::world::{World, process};
use crate::world::{
    play,
    script::{self, scripts},
};

fn check(name: &str) {
    let world = World::new(settings(&script::text("service", name)), 1);
    play(world, "service", name, process, perform);
}

/// Returns the settings of a script. A line `# settings: sessions_max=…` changes them.
fn settings(text: &str) -> Settings {
    let log = paxos::Settings { chunk_bytes: 40, ..paxos::Settings::default() };
    let mut settings = Settings { log, ..Settings::default() };
    for line in text.lines() {
        let Some(pairs) = line.strip_prefix("# settings: ") else { continue };
        for pair in pairs.split_whitespace() {
            let (key, value) = pair.split_once('=').expect("key=value");
            let value: usize = value.parse().expect("a number");
            match key {
                "log_bytes_kept" => settings.log.log_bytes_kept = value,
                "wanted" => settings.log.wanted = value,
                "sessions_max" => settings.sessions_max = value,
                "keyed_max" => settings.keyed_max = value,
                "waiting_bytes_max" => settings.waiting_bytes_max = value,
                "in_flight_bytes_max" => settings.in_flight_bytes_max = value,
                "results_held_max" => settings.results_held_max = value,
                "session_bytes_max" => settings.session_bytes_max = value,
                "pending_bytes_max" => settings.log.pending_bytes_max = value,
                "batch_bytes_max" => settings.log.batch_bytes_max = value,
                "session_idle_ms" => settings.session_idle = Duration::from_millis(value as u64),
                "transaction_idle_ms" => settings.transaction_idle = Duration::from_millis(value as u64),
                "transaction_bytes_max" => settings.transaction_bytes_max = value,
                "any_order" => settings.any_order = true,
                "one_at_a_time" => settings.pipelining = Pipelining::OneAtATime,
                key => panic!("no setting {key}"),
            }
        }
    }
    settings
}

fn perform(world: &mut World, step: &[&str]) -> bool {
    match *step {
        ["found", id] => world.found(process(id)),
        ["join", id, "via", seed] => world.join(process(id), process(seed)),
        ["client", id] => world.client(process(id)),
        // Starts three replicas, the first of which leads, and a client with session 1.
        ["three", "replicas", "and", client] => {
            world.found(process("1"));
            world.join(process("2"), process("1"));
            world.join(process("3"), process("1"));
            world.client(process(client));
            world.run(Duration::from_millis(200));
            world.ask(process(client), process("1"), Body::Open { nonce: 1 });
            world.settle();
            world.trace.clear();
        }
        ["open", client, "at", id] => world.ask(process(client), process(id), Body::Open { nonce: 1 }),
        ["call", client, "at", id, ref calls @ ..] => world.call(process(client), process(id), calls),
        ["keyed", client, "at", id, ref calls @ ..] => world.keyed(process(client), process(id), calls),
        ["tell", client, number, "to", ref replicas @ ..] => {
            for id in replicas {
                world.announce_read(process(client), process(id), number.parse().expect("a number"));
            }
        }
        ["forge", client, "at", id] => {
            let ballot = paxos::Ballot::ZERO;
            let forward = paxos::Message::Forward { ballot, payloads: vec![bytes::Bytes::new()] };
            world.ask(process(client), process(id), Body::Paxos(forward));
        }
        ["abandon", client, transaction, "at", id] => {
            world.abandon(process(client), process(id), transaction.parse().expect("a number"));
        }
        // The host reports that it can do nothing more.
        ["resign", id] => world.resign(process(id)),
        // Completes a call that waits at its host.
        ["complete", id, word] => world.complete(process(id), word),
        ["done", client, number] => world.done(process(client), number.parse().expect("a number")),
        ["slow", id] => world.set_slow(process(id), true),
        ["fast", id] => world.set_slow(process(id), false),
        ["work", id, count] => {
            for _ in 0..count.parse::<u64>().expect("a number") {
                world.host_step(process(id));
            }
            world.drain(process(id));
        }
        // Cuts the replica off from the other replicas, but not from clients.
        ["isolate", id] => {
            for other in world.replicas() {
                if other != process(id) {
                    world.cut(process(id), other);
                }
            }
        }
        ["deliver", from, to, count] => {
            for _ in 0..count.parse::<u64>().expect("a number") {
                world.let_through(process(from), process(to));
            }
        }
        ["fill", client, "at", id, count] => {
            for number in 0..count.parse::<u64>().expect("a number") {
                let call = format!("{number}:add:w{number}");
                world.call(process(client), process(id), &[&call]);
                world.settle();
            }
            world.done(process(client), count.parse().expect("a number"));
        }
        ["show"] => world.show(),
        _ => return false,
    }
    true
}

scripts! { check:
    one_write
    writes_are_pipelined
    one_at_a_time
    a_refusal_and_a_draw
    a_read_is_confirmed
    a_read_waits_for_the_changes_it_saw
    an_announced_read_saves_a_hop
    an_unconfirmed_read_is_asked_about
    a_stale_leader_gets_no_confirmation
    deposed_with_a_full_pipeline
    deposed_while_the_host_executes
    a_reply_is_lost
    the_same_call_twice
    a_new_leader_waits_until_it_is_settled
    two_leaders
    a_session_ends
    a_session_ends_by_time
    a_joiner_gets_a_checkpoint
    a_joiner_dies_in_its_checkpoint
    a_checkpoint_waits_for_a_slow_host
    a_checkpoint_does_not_wait_for_tasks
    a_checkpoint_does_not_wait_for_room
    no_room
    results_wait_for_room_in_the_log
    calls_continue_after_a_full_log
    replies_of_reads_are_counted
    a_stale_leader_ends_no_session
    clients_get_the_list_of_new_replicas
    a_transaction_commits
    a_transaction_is_lost_with_its_leader
    a_deposed_leader_reverts_transactions
    plain_calls_wait_for_transactions
    a_circle_of_transactions_is_broken
    a_transaction_that_reads_is_confirmed
    an_abandoned_transaction_ends
    a_checkpoint_holds_no_open_transaction
    a_transaction_has_one_call_at_a_time
    a_transaction_with_too_much_is_aborted
    a_transaction_overtakes_requests_behind_its_waiters
    a_commit_is_repeated_at_the_next_leader
    a_call_key_identifies_one_request
    forwarded_proposals_to_a_follower_are_dropped
    a_leader_without_a_host_resigns
    a_backup_without_a_host_leaves
}
