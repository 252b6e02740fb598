//! Every rule that is broken on purpose is caught within the allowed seeds: a checker that sees nothing is no checker.

use std::thread;

use quorate_sim::{Mutation, Scenario, mutation::SEEDS_MAX, run, sweep};

#[test]
fn every_mutation_is_caught() {
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    for mutation in Mutation::ALL {
        let scenario =
            Scenario::named(mutation.scenario()).expect("mutations name scenarios that come along");
        // A seed that fails without the mutation shows nothing about it: some more are looked at.
        let caught = sweep(&scenario, 0..SEEDS_MAX, Some(mutation), jobs, SUSPECTS, |_| {});
        let holds = |seed: u64| run(&scenario, seed, None).failure.is_none();
        let seen = caught.failures.iter().any(|report| holds(report.seed));
        assert!(seen, "{} went unseen for {} seeds", mutation.name(), caught.seeds);
    }
}

#[test]
fn mutations_have_names_that_lead_back() {
    for mutation in Mutation::ALL {
        assert_eq!(Mutation::named(&mutation.name()), Some(mutation));
    }
}

/// How many failing seeds of a mutation are looked at.
const SUSPECTS: usize = 16;
