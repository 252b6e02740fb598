//! Runs a few seeds of each scenario that comes with Quorate; `quorate sim` runs many more. Seeds that once
//! found a fault are kept here.

use std::thread;

use quorate_sim::{Report, Scenario, run, sweep};

/// Runs seeds of a scenario. The panic message gives the command that replays the failing seed.
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

/// A joiner knew only processes that died before they admitted it, and it asked these dead processes for
/// ever. Now a joiner remembers the other joiners that asked it, because they may have become members in the
/// meantime.
#[test]
fn joiners_that_outlive_whom_they_know_come_in() {
    for seed in [3_104, 700_397, 801_200, 801_817, 805_242, 807_455] {
        check("paxos", seed..seed + 1);
    }
}

/// The results that clients of transactions receive are strict serializable, whatever fails.
#[test]
fn transactions_hold() {
    check("transactions", 0..40);
}

/// Processes execute every statement by the definition that its gateway used, although users alter tables
/// meanwhile.
#[test]
fn alterations_hold() {
    check("alterations", 0..30);
}

#[test]
fn alterations_on_disk_hold() {
    check("alterations_disk", 0..20);
}

#[test]
fn a_token_goes_round() {
    check("token", 0..50);
}

#[test]
fn processes_in_two_domains_hold() {
    check("domains", 0..50);
}

/// The simulator must do no work for each pair of machines.
#[test]
fn a_thousand_machines_cost_a_thousand_machines() {
    let text = "about = ''\nsafety_ms = 3000\nliveness_ms = 9000\nsystem.token.machines = 1000\nfaults.interval_ms = 60";
    let report = run(&Scenario::parse(text).expect("a scenario"), 1, None);
    assert_eq!(report.failure, None);
    // A thousand machines form a million pairs.
    assert!(report.steps < 200_000, "{} steps", report.steps);
}

/// Routers restart with everything that they had promised, accepted and learned, and members continue with
/// them.
#[test]
fn ecast_on_disk_holds() {
    check("ecast_disk", 0..60);
}

#[test]
fn service_holds() {
    check("service", 0..60);
}

/// Every map keeps its promise. In the end all replicas hold every acknowledged write.
#[test]
fn partial_quorums_hold() {
    check("quorum", 0..40);
}

/// A client dropped a map while a write of it was under way. The coordinator sent the write's hint in vain
/// for ever, and the hint held the horizon back. Now a coordinator drops the hints of a dropped map.
#[test]
fn a_dropped_map_leaves_no_hints() {
    check("quorum", 5..6);
}

/// An owner refused a write for want of room. The coordinator kept no hint for this owner and reported
/// nothing. Then the only owner that had taken the write failed, so the write was lost without a trace. Now
/// the coordinator lists the refusing owner among the owners that lack writes.
#[test]
fn an_owner_without_room_is_listed_as_lacking_writes() {
    for seed in [50_464, 51_780] {
        check("quorum", seed..seed + 1);
    }
}

/// One cell never compares. While that cell was out of the layout, some of the other cells forgot a deletion.
/// Once it was back, the remaining cells could not forget the deletion. The checker wrongly called this a
/// difference between replicas.
#[test]
fn deletions_that_only_some_cells_may_forget_are_no_difference() {
    for seed in [50_369, 51_519, 51_769] {
        check("quorum", seed..seed + 1);
    }
}

/// The last read of a key fell back to one owner, so the read repaired only that owner. The checker expected
/// that the read had repaired all owners.
#[test]
fn a_last_read_that_falls_back_is_made_again() {
    check("quorum", 51_546..51_547);
}

/// Every acknowledged increment counts exactly once.
#[test]
fn counters_hold() {
    check("counters", 0..40);
}

/// Cells restart with their tallies and take in the tallies of former lives. Every acknowledged increment
/// still counts exactly once.
#[test]
fn counters_on_disk_hold() {
    check("counters_disk", 0..40);
}

/// Cells restart with everything that they acknowledged or showed, even if all lose power at once.
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
fn service_with_transactions_far_apart_holds() {
    check("service_transactions_far", 0..20);
}

#[test]
fn service_far_apart_holds() {
    check("service_far", 0..20);
}

/// A joining replica received no further part of a checkpoint until a slower receiver had taken the earlier
/// parts. The slower receiver failed, and then no process requested the next part. Now the leader checks the
/// transfer at each tick. The seed found the fault before services ran in a node. Now the seed only guards
/// against another fault in its run.
#[test]
fn a_receiver_that_fails_does_not_stop_a_checkpoint() {
    check("service", 50_041..50_042);
}

/// A leader proposed a batch that it had held back, when it heard that a record was durable. The simulated
/// machine then failed to report that the batch's own record was durable. The log stood still, and three
/// calls got no answer. Now the machine reports every record. The seed found the fault before services ran in
/// a node. Now the seed only guards against another fault in its run.
#[test]
fn a_batch_that_was_kept_back_is_chosen() {
    check("service_far", 10..11);
}

/// A client sent a read to all replicas, and two of them refused. The client counted both refusals against
/// its only attempt, and panicked in debug builds. Now all refusals of one attempt count as one. The seed
/// found the fault before services ran in a node. Now the seed only guards against another fault in its run.
#[test]
fn a_read_is_refused_by_several_replicas() {
    check("service_far", 40..41);
}

#[test]
fn service_on_disk_holds() {
    check("service_disk", 0..60);
}

#[test]
fn ecast_holds() {
    check("ecast", 0..60);
}

/// Tables, groups and maps keep their promises at common routers, and a service in the same domain keeps its
/// own.
#[test]
fn everything_holds() {
    check("everything", 0..8);
}

/// Tables, groups, maps and a service keep their promises while processes come back from disks on which
/// writes are torn and bytes rot.
#[test]
fn everything_on_disk_holds() {
    check("everything_disk", 0..6);
}

/// Cells forget a deletion only once no cell can bring the deleted value back.
#[test]
fn deletions_hold() {
    check("deletions", 0..40);
}

#[test]
fn groups_hold() {
    check("group", 0..60);
}

/// A member quit and joined again in one view, and some of its former messages were missing. The checker took
/// the new member for the former one, and reported a gap.
#[test]
fn who_quits_and_joins_in_one_view_is_a_new_member() {
    for seed in [50_033, 50_194, 50_269, 50_377, 50_417, 50_420, 50_497, 50_837] {
        check("group", seed..seed + 1);
    }
}

/// A joiner lost contact with the routers while its host still received, step by step, what the joiner had
/// delivered before. The checker took these events for new deliveries.
#[test]
fn a_joiner_out_of_touch_hands_over_what_it_has() {
    check("group", 302_364..302_365);
}

/// Sends and a quit waited while their process paused. The routers dropped the process, and it refused these
/// requests when it resumed. The checker allowed a dropped process to refuse sends, but not if a quit
/// followed them.
#[test]
fn who_is_dropped_before_its_quit_refuses_its_sends() {
    check("group", 303_604..303_605);
}

#[test]
fn reform_holds() {
    check("reform", 0..60);
}

/// A survivor kept submissions of a process that did not answer the survivor, and the join of this process
/// could be among them. The process had delivered nothing. So it was refused although it could join, or
/// became a member twice. Now the survivor drops such submissions, and processes that answer submit theirs
/// again.
#[test]
fn who_is_asked_before_it_joined_joins() {
    for seed in [0, 2, 129, 312] {
        check("reform", seed..seed + 1);
    }
}

/// A router was voted out while it was cut off. Then routers that began with a snapshot replaced all other
/// routers that it knew. The new routers had never heard of it, so it was a candidate for ever, and members
/// that knew only this router ignored the addresses of other routers. Now it asks the new routers and learns
/// that it is out. Members accept addresses as long as no router in reach knows a leader.
#[test]
fn a_router_that_nobody_remembers_is_told() {
    check("reform", 1219..1220);
}

/// A member's join was in the part of the history that a new generation lost. The member reached a router of
/// this generation, and submitted its join there again before it heard which generation it had reached. So it
/// became a member with deliveries of another order, and stopped. Now a member submits only to routers that
/// have named the leader of its generation.
#[test]
fn who_joined_in_what_is_lost_does_not_join_once_more() {
    for seed in [1462, 2640, 4672] {
        check("reform", seed..seed + 1);
    }
}

/// The join of a process was lost. The checker assumed that the process had delivered everything before the
/// position at which its deliveries were to begin. Now the checker knows that such a process has delivered
/// nothing.
#[test]
fn who_comes_anew_has_delivered_nothing() {
    check("reform", 1338..1339);
}

/// The routers of the old generation were silent, and had voted the survivor out. Later they and the routers
/// of the new generation looked for links only to routers of their own generation, and two domains went on in
/// parallel. Now the two generations meet, and the older one ends.
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

/// An operator gave the place of a healthy process to a standby. The process dropped its rows at once, and
/// the only other replica had just died. Now a replaced process keeps its rows until the standby is complete.
#[test]
fn who_makes_way_keeps_its_rows() {
    for seed in [3, 17, 22] {
        check("table", seed..seed + 1);
    }
    for seed in [28, 37, 45] {
        check("accidents", seed..seed + 1);
    }
}

/// A client repeated a write under an id of a dead gateway. The dead gateway's session ended before all
/// ranges had answered. The ranges then remembered nothing of the write, and the new gateway asked them for
/// ever. Now the gateway stops asking.
#[test]
fn what_is_forgotten_is_not_asked_for() {
    check("table", 132..133);
}

/// All replicas of a range had died. A process that imported other ranges did not report that it did not know
/// a certain write. The processes from which it imported waited for this report, so neither side went on. Now
/// an importing process reports which writes it does not know.
#[test]
fn who_imports_says_what_it_does_not_know() {
    for seed in [3, 9, 12, 32, 40] {
        check("accidents", seed..seed + 1);
    }
}

/// A replica crashed. The only other replica lagged, and routers removed it, because they had heard the
/// crashed replica within the last 300 ms. No router could have known of the crash. The checker reported the
/// writes of the crashed replica as missing. Now the checker accepts that these writes may be lost.
#[test]
fn what_the_last_but_one_wrote_may_be_lost_with_it() {
    check("accidents", 175..176);
    check("accidents", 288..289);
}

/// A router had just joined a generation and did not know its members yet. It told every member that asked
/// that the member was out. Now a router keeps silent until it knows the cut.
#[test]
fn who_does_not_know_the_cut_does_not_judge_by_it() {
    check("refound", 1054..1055);
}

/// All processes that had delivered anything died before a founder had a majority. The checker still waited
/// for a generation. Now the checker counts such a run as lost.
#[test]
fn where_nobody_is_left_nothing_goes_on() {
    for seed in [113, 219, 948] {
        check("refound", seed..seed + 1);
    }
}

/// A newly arrived cell held deletions that the other cells had forgotten, and every comparison with it found
/// them. A cell that found any difference made all other cells that asked it wait for 100 ms. So the new cell
/// never came to ask, no horizon moved, and no cell forgot a deletion. Now only a cell that has found many
/// differences makes the others wait. The seed found two more faults: a write at level one died with its only
/// cell, and the checker called it lost; a barrier counted reports about an earlier layout.
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
        let first = run(&scenario, 5, None);
        assert_eq!(run(&scenario, 5, None), first, "{name}");
        assert_ne!(run(&scenario, 6, None).trace, first.trace, "{name}");
    }
}

/// Both supers died at once. Routers refused their next lives, because the dead supers still occupied their
/// nodes and only a super can remove a member. Now the next life of a super takes the place of the dead one
/// in one ordered step.
#[test]
fn supers_that_all_died_come_back() {
    for seed in [30, 88, 116] {
        check("table", seed..seed + 1);
    }
}

/// One range remembered a repeated write. Another range did not, and waited for a verdict for ever. Now the
/// repetition ends in all ranges.
#[test]
fn a_repetition_that_one_range_knows_ends() {
    check("table", 21..22);
}

/// Routers had forgotten stable messages behind an open message. A new leader did not count the forgotten
/// messages, and gave their sender no more credit. Now the leader counts them.
#[test]
fn what_is_forgotten_counts_for_credit() {
    check("table", 515..516);
    check("table", 1410..1411);
}

/// A member departed while it had no link, and it had no open request. It never learned of its departure. Now
/// a departed member always learns that it is out.
#[test]
fn a_departed_member_learns_that_it_is_out() {
    check("ecast", 27..28);
    check("ecast", 73..74);
}

/// A new leader learned from its log that deliveries were stable, and queued them nevertheless. It waited for
/// confirmations that only the old leader had seen. Now a leader does not queue deliveries that its log calls
/// stable.
#[test]
fn a_leader_heeds_stability_that_an_earlier_one_logged() {
    check("ecast", 358..359);
}

/// Only a few routers knew that a change of the routers was chosen, or held the change at all. When these
/// routers died, the others waited for a majority of the old set, and the log stopped. Now a majority of the
/// new set chooses the change, and a router acts on every change that it holds. The seed found a second
/// fault: the checker overlooked an entry that a user had requested in the last moment.
#[test]
fn a_change_that_few_know_stops_nothing() {
    check("paxos", 206..207);
    check("paxos", 895..896);
    check("paxos", 1715..1716);
}

/// A leader proposed a change of the routers that no other router held, and was cut off. The next leader died
/// before its routers learned what it had chosen. Then the first leader counted votes by its own change,
/// which needed dead routers. It also refused the living routers because their logs were behind, though they
/// held what it had collected. Now a voter refuses a candidate only if the voter's log beats the candidate's
/// log, and pre-votes name the newest members.
#[test]
fn a_change_of_a_dead_reign_stops_nothing() {
    check("paxos", 4148..4149);
    check("paxos", 10_229..10_230);
}

/// Two processes waited for a third process's verdict and told each other what they knew. Each process added
/// to its message what it had learned from the other one. So the messages doubled in size every time, until
/// memory ran out. Now a repeated verdict adds nothing.
#[test]
fn verdicts_told_again_add_nothing() {
    check("table", 304..305);
}

/// All routers that a member knew were replaced while it was away. A member that had ever known a leader
/// ignored the addresses of other routers. So this member stood still, and so did every process that waited
/// for it. Now such a member looks for the new routers.
#[test]
fn whose_routers_are_all_gone_finds_the_new_ones() {
    check("table", 1314..1315);
    check("table", 1689..1690);
    check("table", 1848..1849);
}

/// A process died as the last replica of a range. The other processes waited for it and held up writes, even
/// after its successor had all rows. Now a super drops such a process as soon as its ranges have other
/// replicas.
#[test]
fn who_is_not_the_last_any_more_is_not_waited_for() {
    check("table", 2528..2529);
    check("table", 2678..2679);
}

/// The last source of an import was declared lost. The receiver reported that it was out, and a millisecond
/// later that its rows were complete. So the range was gone, though another process had kept its rows. Now an
/// import without a source has failed, whatever still arrives.
#[test]
fn who_lacks_rows_never_counts_for_complete() {
    check("accidents", 176..177);
}

/// A keeper with the last rows of a range seemed to have failed, and a super removed it. Another replica had
/// been declared lost, so the range began empty. Now such a keeper stays suspected until it refutes the
/// suspicion, or until an operator declares it lost.
#[test]
fn a_needed_keeper_is_not_removed() {
    check("accidents", 773..774);
}

/// A process died of a read of all ranges. The read was repeated at a process that had already answered it
/// for other ranges, though that process held the last copy of the row that kills. Now an answer proves that
/// a process survives the read only for the ranges of the answer.
#[test]
fn a_process_is_proven_for_the_ranges_that_it_told_alone() {
    check("table", 1536..1537);
    check("table", 4405..4406);
}

/// A super that had just joined dismissed a keeper, because a replica had the rows, but that replica had died
/// a second before. Now a super counts a process as alive only once it has heard from it.
#[test]
fn who_was_not_heard_does_not_count_for_alive() {
    check("table", 1037..1038);
}

/// A process submitted a message and died of a task in the same step. The checker had not seen the submission
/// and called the message forged. Now the checker notes every message that left before a death.
#[test]
fn what_left_before_a_death_was_submitted() {
    check("table", 360..361);
}

/// A member had outcomes of messages that the routers of a new generation did not know. The member did not
/// send these messages again, so the routers waited for them and dropped all its later messages. Now each
/// block of submissions says which outcomes its sender has, and the routers accept the messages behind these.
#[test]
fn who_has_outcomes_of_a_former_generation_is_ordered_on() {
    check("reform", 1635..1636);
}

/// A keeper learned that it was out. Before its engine was idle, it also learned that it need not keep its
/// rows. It panicked, because it had no rows to hand over. Now such a keeper ends without rows.
#[test]
fn a_keeper_that_is_dismissed_as_it_goes_out_ends() {
    check("accidents", 880..881);
}

/// All replicas of one range voided a write, died before any process had heard their verdict, and were
/// declared lost. The write took effect in other ranges, as limits.md says. One of the dead processes had
/// held such a range, too, and had voided the write there. The checker compared its rows with the survivor's
/// rows and called the difference a fault. Now the checker leaves lost processes out of that comparison.
#[test]
fn who_is_left_is_not_measured_by_the_lost() {
    check("accidents", 367..368);
}
