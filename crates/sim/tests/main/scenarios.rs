//! The scenarios that come with Quorate, on a few seeds each; `quorate sim` runs many more. Seeds that once found a fault
//! are kept here.

use std::thread;

use quorate_sim::{Report, Scenario, run, sweep};

/// Runs seeds of a scenario, and says how to replay one that fails.
fn check(name: &str, seeds: std::ops::Range<u64>) {
    let scenario = Scenario::named(name).expect("it comes along");
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let sweep = sweep(&scenario, seeds, None, jobs, usize::MAX, |_| {});
    if let Some(Report { seed, failure, .. }) = sweep.failures.first() {
        panic!("quorate sim {name} --seed {seed}\n{}", failure.as_deref().unwrap_or_default());
    }
}

#[test]
fn paxos_holds() {
    check("paxos", 0..100);
}

#[test]
fn paxos_on_disk_holds() {
    check("paxos_disk", 0..100);
}

/// Joiners that had been told only of routers which died before they were taken in stayed outside for ever, though those
/// whom they had met as joiners were members by then.
#[test]
fn joiners_that_outlive_whom_they_know_come_in() {
    for seed in [3_104, 700_397, 801_200, 801_817, 805_242, 807_455] {
        check("paxos", seed..seed + 1);
    }
}

#[test]
fn a_token_goes_round() {
    check("token", 0..50);
}

#[test]
fn processes_in_two_domains_hold() {
    check("domains", 0..50);
}

/// Nothing in a world is done for each pair of machines.
#[test]
fn a_thousand_machines_cost_a_thousand_machines() {
    let text = "about = ''\nsafety_ms = 3000\nliveness_ms = 9000\nsystem.token.machines = 1000\nfaults.interval_ms = 60";
    let report = run(&Scenario::parse(text).expect("a scenario"), 1, None);
    assert_eq!(report.failure, None);
    // There are a million pairs.
    assert!(report.steps < 200_000, "{} steps", report.steps);
}

/// Routers come back with what they had promised, accepted and learned, and members go on with them.
#[test]
fn ecast_on_disk_holds() {
    check("ecast_disk", 0..60);
}

#[test]
fn service_holds() {
    check("service", 0..60);
}

/// Every map keeps its promise, and replicas hold in the end what was acknowledged.
#[test]
fn partial_quorums_hold() {
    check("quorum", 0..40);
}

/// Every increment that was acknowledged counts, and none twice.
#[test]
fn counters_hold() {
    check("counters", 0..40);
}

/// The same when cells come back with their tallies, and take them in.
#[test]
fn counters_on_disk_hold() {
    check("counters_disk", 0..40);
}

/// Cells come back with what they acknowledged and showed, whatever of them loses power at once.
#[test]
fn partial_quorums_on_disk_hold() {
    check("quorum_disk", 0..40);
}

#[test]
fn service_under_changing_leaders_holds() {
    check("service_reads", 0..20);
}

#[test]
fn service_with_transactions_holds() {
    check("service_transactions", 0..40);
}

#[test]
fn service_far_apart_holds() {
    check("service_far", 0..20);
}

#[test]
fn service_on_disk_holds() {
    check("service_disk", 0..60);
}

#[test]
fn ecast_holds() {
    check("ecast", 0..60);
}

#[test]
fn groups_hold() {
    check("group", 0..60);
}

#[test]
fn reform_holds() {
    check("reform", 0..60);
}

/// A process that was asked what it had delivered before it had delivered anything was told that it was out, though it could
/// join; or it joined once more while it was told so.
#[test]
fn who_is_asked_before_it_joined_joins() {
    for seed in [0, 2, 129, 312] {
        check("reform", seed..seed + 1);
    }
}

/// A router was voted out while it was cut off, and its fellows were replaced by such as had never heard of it: nobody told it, and
/// the members that knew it alone looked for no others.
#[test]
fn a_router_that_nobody_remembers_is_told() {
    check("reform", 1219..1220);
}

/// A process that had joined in what is lost found a router of the next generation, and submitted its joining there before it
/// heard which generation that was: it became a member, and stopped.
#[test]
fn who_joined_in_what_is_lost_does_not_join_once_more() {
    for seed in [1462, 2640, 4672] {
        check("reform", seed..seed + 1);
    }
}

/// What a process was to receive from on, where its joining was lost, counted for delivered by the checker.
#[test]
fn who_comes_anew_has_delivered_nothing() {
    check("reform", 1338..1339);
}

/// Routers that were silent, and had voted the survivor out meanwhile, and those of the next generation looked for links to
/// their own only: two domains went on side by side.
#[test]
fn generations_that_know_nothing_of_each_other_meet() {
    check("reform", 10..11);
    check("reform", 162..163);
    check("reform", 223..224);
}

#[test]
fn table_holds() {
    check("table", 0..30);
}

#[test]
fn tables_outlive_power_cuts() {
    check("power", 0..30);
}

#[test]
fn accidents_are_survived() {
    check("accidents", 0..30);
}

/// An operator gave the place of a process that was well to another. It dropped its rows at once, and the only other replica had
/// just died.
#[test]
fn who_makes_way_keeps_its_rows() {
    for seed in [3, 17, 22] {
        check("table", seed..seed + 1);
    }
    for seed in [28, 37, 45] {
        check("accidents", seed..seed + 1);
    }
}

/// A write was sent again under the id of a gateway that had died. Its session ended before all ranges had answered: they
/// remembered nothing, and the gateway asked them for ever.
#[test]
fn what_is_forgotten_is_not_asked_for() {
    check("table", 132..133);
}

/// All replicas of a range had died. One that imported other ranges did not say that it knew nothing of a write, and those that
/// waited for its word were its sources.
#[test]
fn who_imports_says_what_it_does_not_know() {
    for seed in [3, 9, 12, 32, 40] {
        check("accidents", seed..seed + 1);
    }
}

/// The last replica but one had crashed when the last, which lagged, was removed: nobody could know. What the first had written was
/// found to be missing by the checker.
#[test]
fn what_the_last_but_one_wrote_may_be_lost_with_it() {
    check("accidents", 175..176);
    check("accidents", 288..289);
}

/// A router that had just joined a generation told its members that they were out: it did not know yet who was in.
#[test]
fn who_does_not_know_the_cut_does_not_judge_by_it() {
    check("refound", 1054..1055);
}

/// Everybody who had delivered anything died before a generation could begin, and the checker waited for one.
#[test]
fn where_nobody_is_left_nothing_goes_on() {
    for seed in [113, 219, 948] {
        check("refound", seed..seed + 1);
    }
}

/// A cell that had just arrived held deletions that the others had forgotten. Each comparison found these, and a cell that was asked by
/// one that had found anything made all others wait: so it never came to ask, and nothing was forgotten any more. Two others: a
/// write at level one died with the only cell that had it, and the checker took it for lost; a barrier counted words of an earlier layout.
#[test]
fn few_differences_hold_nobody_up() {
    for seed in [17, 40, 44, 86, 325, 355, 531, 585, 1992] {
        check("quorum", seed..seed + 1);
    }
}

#[test]
fn a_seed_is_a_run() {
    for name in Scenario::names() {
        let scenario = Scenario::named(name).expect("it comes along");
        assert_eq!(run(&scenario, 5, None), run(&scenario, 5, None), "{name}");
        assert_ne!(run(&scenario, 5, None).trace, run(&scenario, 6, None).trace, "{name}");
    }
}

/// Both supers had died at once. Their next lives were refused because the dead ones had their nodes, and nobody else could
/// remove those.
#[test]
fn supers_that_all_died_come_back() {
    for seed in [30, 88, 116] {
        check("table", seed..seed + 1);
    }
}

/// One range remembered a repeated write and another did not, which waited for a verdict for ever.
#[test]
fn a_repetition_that_one_range_knows_ends() {
    check("table", 21..22);
}

/// A new leader did not count what the history had forgotten behind an open message, and gave its sender no credit any more.
#[test]
fn what_is_forgotten_counts_for_credit() {
    check("table", 515..516);
    check("table", 1410..1411);
}

/// A departed member that had nothing to ask for stayed a ghost when it was cut off as it departed.
#[test]
fn a_departed_member_learns_that_it_is_out() {
    check("ecast", 27..28);
    check("ecast", 73..74);
}

/// A new leader queued deliveries that its log called stable, on confirmations which only the old leader had seen.
#[test]
fn a_leader_heeds_stability_that_an_earlier_one_logged() {
    check("ecast", 358..359);
}

/// A change of the routers known to be chosen, or even held, by few stopped the log when those died: the others waited for a
/// majority of the old set. And an entry that was asked for in the last moment was missed by the checker.
#[test]
fn a_change_that_few_know_stops_nothing() {
    check("paxos", 206..207);
    check("paxos", 895..896);
    check("paxos", 1715..1716);
}

/// A leader proposed a change of the routers and was cut off with it; the next leader died before it had heard of it. By the
/// change it needed the dead, and it found everybody else behind, though they held what it had collected.
#[test]
fn a_change_of_a_dead_reign_stops_nothing() {
    check("paxos", 4148..4149);
    check("paxos", 10_229..10_230);
}

/// Two that waited for a third's verdict told each other what they knew, and each added what the other had from it: twice as
/// much every time, until no memory was left.
#[test]
fn verdicts_told_again_add_nothing() {
    check("table", 304..305);
}

/// A member that was away while every router it knew was replaced looked for no others: whoever waited for it waited for
/// ever.
#[test]
fn whose_routers_are_all_gone_finds_the_new_ones() {
    check("table", 1314..1315);
    check("table", 1689..1690);
    check("table", 1848..1849);
}

/// A process that died as the last replica of a range was waited for, and held up writes, when its successor had all rows
/// long since.
#[test]
fn who_is_not_the_last_any_more_is_not_waited_for() {
    check("table", 2528..2529);
    check("table", 2678..2679);
}

/// The last source of a migration was declared lost. The receiver said that it was out, and a moment later that it was complete:
/// the range was gone, and a process that kept its rows was not asked.
#[test]
fn who_lacks_rows_never_counts_for_complete() {
    check("accidents", 176..177);
}

/// A keeper seemed to have failed and was removed. Another replica had been declared lost, so its range began empty.
#[test]
fn a_needed_keeper_is_not_removed() {
    check("accidents", 773..774);
}

/// A read of all ranges was asked again of a process that had told the answer of other ranges: it was the last with the row that
/// kills.
#[test]
fn a_process_is_proven_for_the_ranges_that_it_told_alone() {
    check("table", 1536..1537);
    check("table", 4405..4406);
}

/// A super that had just joined dismissed a keeper because of a replica that had been killed a second before.
#[test]
fn who_was_not_heard_does_not_count_for_alive() {
    check("table", 1037..1038);
}

/// A process died of a task in the very step in which it submitted something, which the checker then did not know of.
#[test]
fn what_left_before_a_death_was_submitted() {
    check("table", 360..361);
}

/// Routers of a new generation waited for messages of a member that had their outcomes, and that it did not send again.
#[test]
fn who_has_outcomes_of_a_former_generation_is_ordered_on() {
    check("reform", 1635..1636);
}

/// A keeper heard that it was out, and then that it need not keep its rows: it had none to hand over.
#[test]
fn a_keeper_that_is_dismissed_as_it_goes_out_ends() {
    check("accidents", 880..881);
}

/// All replicas of a range died that had voided a write there, and nobody alive had heard of it: it took effect where another
/// replica was left, which did not hold any more what one of the dead had held of that range.
#[test]
fn who_is_left_is_not_measured_by_the_lost() {
    check("accidents", 367..368);
}
