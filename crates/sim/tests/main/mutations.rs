//! The checkers catch every mutation within the allowed seeds. A checker that catches nothing checks nothing.

use std::thread;

use quorate_sim::{Mutation, Scenario, graphs, mutation::SEEDS_MAX, run, sweep};

#[test]
fn every_mutation_is_caught() {
    each_is_caught(|scenario| !["graphs", "group"].contains(&scenario) && !scenario.starts_with("service"));
}

#[test]
fn every_mutation_of_groups_is_caught() {
    each_is_caught(|scenario| scenario == "group");
}

#[test]
fn every_mutation_of_services_is_caught() {
    each_is_caught(|scenario| scenario.starts_with("service"));
}

fn each_is_caught(of: impl Fn(&str) -> bool) {
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let pairs = Mutation::ALL
        .into_iter()
        .flat_map(|mutation| mutation.scenarios().into_iter().map(move |scenario| (mutation, scenario)));
    for (mutation, scenario) in pairs.filter(|(_, scenario)| of(scenario)) {
        let name = scenario;
        let scenario = Scenario::named(name).expect("mutations name scenarios that come along");
        // A seed that fails without the mutation proves nothing about the mutation.
        let holds = |seed: u64| run(&scenario, seed, None).failure.is_none();
        let seen = (0..SEEDS_MAX).step_by(FEW).any(|from| {
            let seeds = from..(from + FEW as u64).min(SEEDS_MAX);
            let caught = sweep(&scenario, seeds, Some(mutation), jobs, usize::MAX, |_| {});
            caught.failures.iter().any(|report| holds(report.seed))
        });
        assert!(seen, "{} went unseen for {SEEDS_MAX} seeds of {name}", mutation.name());
    }
}

/// The number of cases, equal to the seeds of other scenarios: fifty of each kind.
#[test]
fn every_mutation_of_graphs_is_caught() {
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let cases = graphs::sample(graphs::cases(), SEEDS_MAX as usize / 4);
    for mutation in Mutation::ALL.into_iter().filter(|mutation| mutation.scenario() == "graphs") {
        let findings = graphs::sweep(&cases, Some(mutation), jobs, 1, |_, _| {});
        let caught = findings.iter().any(|finding| finding.failure.is_some());
        assert!(caught, "{} went unseen in {} cases", mutation.name(), cases.len());
    }
}

#[test]
fn mutations_have_names_that_lead_back() {
    for mutation in Mutation::ALL {
        assert_eq!(Mutation::named(&mutation.name()), Some(mutation));
    }
}

/// Number of seeds that run before the test looks at their failures. Most mutations fail within these seeds.
const FEW: usize = 8;
