//! The steps of scripts about whole clusters.

use bytes::Bytes;
use quorate_protocol::{
    CommandId, Duration, RequestId, Strength,
    rubberband::{ClientCommand, Control, DataHeader, SuperCommand},
};

use super::{
    names::{name, process, range, range_name},
    process::{Asked, Role},
    world::World,
};
use crate::world::{millis, play, script::scripts};

fn check(name: &str) {
    play(World::new(1), "cluster", name, process, perform).check_senders();
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{text} is no number"))
}

fn perform(world: &mut World, step: &[&str]) -> bool {
    match *step {
        ["replicas", count] => world.replicas = number(count),
        ["credit", count] => world.credit = number(count),
        ["start", ref all @ ..] => {
            for id in all {
                world.start(process(id));
                world.run(Duration::ZERO);
            }
        }
        // Starts three routers, two supers, four storage processes and a client.
        ["cluster"] => {
            for id in ["r1", "r2", "r3", "u1", "u2", "s1", "s2", "s3", "s4", "c1"] {
                world.start(process(id));
                world.run(Duration::from_millis(50));
            }
            world.run(Duration::from_millis(1500));
            world.trace.clear();
        }
        ["reform", id] => world.reform(process(id)),
        // The members are all living processes that are no routers, except the processes after `without`.
        ["refound", id, ref without @ ..] => {
            let without: Vec<_> = without.iter().skip(1).map(|id| process(id)).collect();
            let mut members = world.members();
            members.retain(|id| !without.contains(id));
            world.refound(process(id), &members);
        }
        ["engines", "stop"] => world.work.set(None),
        ["engines", "go"] => world.work.set(Some(Duration::ZERO)),
        ["write", id, token, ranges, ref op @ ..] => {
            let ranges: Vec<_> = ranges.split(',').map(range).collect();
            world.write(process(id), number(token), None, &ranges, &op.join(" "));
        }
        // Repeats an earlier request under its number. The request belongs to this client, or to the client
        // named before the dot.
        ["repeat", id, token, request, ranges, ref op @ ..] => {
            let (session, request) = request.split_once('.').unwrap_or((id, request));
            let again = RequestId { session: process(session).incarnation.0, number: number(request) };
            let id = process(id);
            let ranges: Vec<_> = ranges.split(',').map(range).collect();
            world.write(id, number(token), Some(again), &ranges, &op.join(" "));
        }
        // Writes under an id that an application made up.
        ["made-up", id, token, made_up, ranges, ref op @ ..] => {
            let request = RequestId::made_up(number::<u128>(made_up) << 32);
            let ranges: Vec<_> = ranges.split(',').map(range).collect();
            world.write(process(id), number(token), Some(request), &ranges, &op.join(" "));
        }
        // Number of writes under made-up ids that the ranges remember for a client.
        ["remember", count] => world.made_up_max = number(count),
        ["retention", span] => {
            world.retention = millis(span);
        }
        // `die` kills its reader, `die 17` only where key 17 is read. `large` fits only into a batch without
        // other reads.
        ["count", id, token, strength, ranges, ref op @ ..] => {
            let strength = match strength {
                "basic" => Strength::Basic,
                "snapshot" => Strength::Snapshot,
                _ => Strength::Sequential,
            };
            let read = ClientCommand::Read {
                token: number(token),
                strength,
                table: DataHeader::NO_TABLE,
                ranges: ranges.split(',').map(range).collect(),
                operation: if op.is_empty() { "count".into() } else { op.join(" ").into() },
            };
            world.request(process(id), number(token), read);
        }
        ["create", id, token, table] => {
            let control = Control::CreateTable { name: table.to_owned(), definition: Bytes::new() };
            let create = ClientCommand::Control { token: number(token), control };
            world.request(process(id), number(token), create);
        }
        ["cancel", id, token] => {
            world.command(process(id), Asked::Client(ClientCommand::Cancel { token: number(token) }));
        }
        // Shows the number of bytes of a read that a client has received.
        ["told", id, token] => {
            let parts = &world.results[&(process(id), number(token))].parts;
            let bytes: usize = parts.iter().map(Bytes::len).sum();
            world.say(&format!("{id} {token} has {bytes} bytes"));
        }
        // The client has consumed everything that it received from one storage process.
        ["take", id, token, from] => {
            let parts = &world.results[&(process(id), number(token))].parts;
            let bytes = parts.iter().map(|part| part.len() as u64).sum();
            let (token, from) = (number(token), process(from));
            world.command(process(id), Asked::Client(ClientCommand::Consumed { token, from, bytes }));
        }
        ["held", id] => {
            let held = world.store(process(id)).storage.status().held_bytes;
            world.say(&format!("{id} holds {held} bytes"));
        }
        ["leave", id] => world.leave(process(id)),
        ["lost", id, lost] => {
            let Role::Super(superior) = world.process(process(id)) else { panic!("{id} is no super") };
            match superior.hearer(process(lost)) {
                Some(hearer) => world.say(&format!("{lost} is not lost: {} hears it", name(hearer))),
                None => {
                    let (id, lost) = (process(id), process(lost));
                    let lost = SuperCommand::DeclareLost { id: CommandId(1), process: lost };
                    world.command(id, Asked::Super(lost));
                }
            }
        }
        ["placement"] => {
            let config = world.config().expect("there is one").clone();
            let ring: Vec<_> = config
                .ring
                .values()
                .map(|id| match config.storage.get(id) {
                    Some(state) => format!("{} {state:?}", name(*id)),
                    None => format!("{} dead", name(*id)),
                })
                .collect();
            let on_ring = |id: &&_| config.ring.values().any(|other| other == *id);
            let standby = config.storage.keys().filter(|id| !on_ring(id)).map(|id| name(*id));
            let standby: Vec<_> = standby.collect();
            world.say(&format!("ring {}; standby {}", ring.join(", "), standby.join(" ")));
        }
        ["rows"] => {
            for row in world.check_replicas() {
                let range = range_name(row.range);
                world.say(&format!("{range} @{} {}", row.at, row.operation));
            }
        }
        ["routers"] => {
            for id in world.routers() {
                let router = world.router(id);
                let (position, base) = (router.position(), router.base());
                let leads = if router.is_leader() { " leads," } else { "" };
                world.say(&format!("{}{leads} position {position} base {base}", name(id)));
            }
        }
        _ => return false,
    }
    true
}

scripts! { check:
    one_write
    a_stale_reach_report_is_not_used
    link_breaks_and_resend
    leader_change_with_unstable_messages
    unreachable_is_waited_for
    unreachable_is_replaced
    unreachable_costs_no_credit
    replace_while_senders_die
    atomic_or_void
    same_request_takes_effect_once
    a_repetition_never_claims_that_nothing_was_applied
    made_up_id_over_two_gateways
    majority_away
    made_up_ids_expire
    many_made_up_ids_expire_early
    another_statement_under_a_known_id
    wedged_member
    data_before_a_change_in_one_block
    lost_for_good
    a_later_sender_dies
    a_generation_goes_on
    a_generation_goes_on_without_some
    a_late_answer_finds_the_process_out
    all_routers_gone
    two_routers_refound_at_the_same_instant
    a_founder_dies
    refounding_is_refused_while_routers_live
    verdict_of_the_dead
    verdict_from_memory
    replies_move_in_sections
    a_cancelled_read_costs_no_work
    an_unsent_request_is_known_unapplied
    slow_read
    suspects_are_judged_together
    a_super_without_links_suspects_in_vain
    suspicions_are_withdrawn
    a_short_interruption_costs_no_place
    a_removal_waits_for_the_last_copy
    a_node_in_use
    the_next_life_of_a_gateway
    supers_die_at_once
    no_table_without_a_ring
    a_gateway_without_a_link_to_one_replica
    a_process_heard_by_one_router_is_not_lost
    two_supers_contradict_each_other
    a_read_that_kills
    a_read_that_kills_one_of_two
    a_read_of_all_that_kills
    a_read_of_all_that_kills_one_of_two
    a_death_unrelated_to_a_read
    a_read_is_probed
    a_read_survives_lost_links
    keeper_is_dismissed
    keeper_is_taken_up
    the_later_keeper_is_taken_up
    keeper_cut_off
    keeper_dies
    slow_clients
    reads_with_large_results_take_turns
    a_process_heard_by_one_router_stays
    a_needed_process_does_not_leave
    an_answer_breaks_off
}
