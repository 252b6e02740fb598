//! Every rule that is broken on purpose is caught within the allowed seeds: a checker that sees nothing is no checker.

use std::thread;

use quorate_sim::{Mutation, Scenario, mutation::SEEDS_MAX, run, sweep};

#[test]
fn every_mutation_is_caught() {
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    for mutation in Mutation::ALL {
        let scenario =
            Scenario::named(mutation.scenario()).expect("mutations name scenarios that come along");
        // A seed that fails without the mutation shows nothing about it.
        let holds = |seed: u64| run(&scenario, seed, None).failure.is_none();
        let seen = (0..SEEDS_MAX).step_by(FEW).any(|from| {
            let seeds = from..(from + FEW as u64).min(SEEDS_MAX);
            let caught = sweep(&scenario, seeds, Some(mutation), jobs, usize::MAX, |_| {});
            caught.failures.iter().any(|report| holds(report.seed))
        });
        assert!(seen, "{} went unseen for {SEEDS_MAX} seeds", mutation.name());
    }
}

#[test]
fn mutations_have_names_that_lead_back() {
    for mutation in Mutation::ALL {
        assert_eq!(Mutation::named(&mutation.name()), Some(mutation));
    }
}

/// Seeds that are run before their failures are looked at: most mutations show within the first.
const FEW: usize = 8;
