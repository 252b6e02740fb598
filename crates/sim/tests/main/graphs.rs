//! Runs a sample of the graphs; `quorate sim graphs` runs them all. Cases that once found a fault are kept
//! here.

use std::thread;

use quorate_sim::graphs::{Case, cases, run, sample, sweep};

fn check(cases: &[Case]) {
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let findings = sweep(cases, None, jobs, 1, |_, _| {});
    if let Some(failed) = findings.iter().find(|finding| finding.failure.is_some()) {
        panic!(
            "quorate sim graphs --seed {}\n{}",
            failed.number,
            failed.failure.as_deref().unwrap_or_default()
        );
    }
}

#[test]
fn progress_is_made_wherever_it_is_promised() {
    check(&sample(cases(), 40));
}

fn these(numbers: &[usize]) -> Vec<Case> {
    let all = cases();
    numbers.iter().map(|&number| all[number].clone()).collect()
}

/// A leader sent deliveries through a router that had once reported that it reaches the client. Later the
/// leader and this router lost each other, and the client waited until their link broke. Now a leader relies
/// on a router's report only while the two talk with each other.
#[test]
fn what_routers_said_that_are_not_heard_does_not_count() {
    check(&these(&[81, 187, 214, 246, 255, 291, 309, 57_768, 76_152]));
}

/// A member lost its way to the leader, and its submissions with it. The member did not send them again,
/// because every notice put the resending off, and the leader sent a notice with each new way to the member.
/// A router that could reach the leader again did not tell the member, either. Now only a notice with an
/// outcome or credit puts the resending off.
#[test]
fn what_is_lost_with_a_way_is_sent_again() {
    check(&these(&[1_131, 1_209, 1_606, 2_204]));
}

/// A router was cut off while other routers joined. It did not know the new routers and sent them nothing, so
/// they voted it out although they had links to it. Now a router answers the pulses of every router that
/// considers it a member.
#[test]
fn who_is_heard_by_newcomers_stays() {
    check(&these(&[539, 559, 671, 933]));
}

#[test]
fn a_case_is_a_run() {
    let case = &these(&[1_606])[0];
    assert_eq!(run(case, None), run(case, None));
}
