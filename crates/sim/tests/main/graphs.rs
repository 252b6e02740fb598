//! Some of the graphs; `quorate sim graphs` runs them all. Cases that once found a fault are kept here.

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

/// The leader delivered through a router that had said, before the two were cut off from each other, that it reaches the
/// client: the client waited for as long as that link stood.
#[test]
fn what_routers_said_that_are_not_heard_does_not_count() {
    check(&these(&[81, 187, 214, 246, 255, 291, 309, 57_768, 76_152]));
}

/// What a client sent was lost with the way to the leader, and the client did not send it again: every notice put that off,
/// and the leader sent one with each new way that it found to the client. Nor was the client told of the new way.
#[test]
fn what_is_lost_with_a_way_is_sent_again() {
    check(&these(&[1_131, 1_209, 1_606, 2_204]));
}

/// A router that was cut off while others came in never learned of them, so it told them nothing, and was voted out though
/// they were linked with it.
#[test]
fn who_is_heard_by_newcomers_stays() {
    check(&these(&[539, 559, 671, 933]));
}

#[test]
fn a_case_is_a_run() {
    let case = &these(&[1_606])[0];
    assert_eq!(run(case, None), run(case, None));
}
