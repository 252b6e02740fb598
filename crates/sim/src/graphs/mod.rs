//! The theorem of partial partitions, by exhaustion (rule S19).
//!
//! **What is shown.** While some router of the newest membership can talk both ways with a majority of it (itself counted),
//! writes of clients that can talk both ways with that router, directly or through other routers, are acknowledged again
//! within four election timeouts after the network took its shape, and the lead moves at most once. No router is voted out of
//! which the leader hears along any chain of routers. Where no router can do so, nothing is lost or falsely acknowledged, and
//! writes go on within the same time after the cut has healed.
//!
//! **How.** Every graph that there is: which of the routers hears which. All directed graphs on three routers with every
//! leader; all undirected ones on five, all directed ones on five up to the names of the routers, with every leader and in
//! two numberings (of equals the greater id is preferred); and every undirected one that changes into every other. In each a
//! domain settles with that leader, the network takes its shape, clients that are linked to every router or to one alone
//! write, and at the end the cut heals. [`Graph`] says from the graph alone, without a line of the protocols' code, to whom
//! progress is promised.
//!
//! **What is not.** Chance is drawn once for each case, so that a case is one schedule of the many with this graph. Half of
//! the cases have links that pass one way for as long as the shape lasts; in the other half they break by and by, as TCP's do.
//! More than five routers, and shapes that change faster than the promise, are for the seeds of the other scenarios.

mod case;
mod domain;
mod graph;

use std::{
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

pub use self::{
    case::{Case, Family, cases, sample},
    graph::{Graph, Set, Shape, shapes, undirected},
};
use crate::mutation::Mutation;

/// What a case showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Which case.
    pub number: u64,
    /// What broke: the promise, or an assertion of the code itself.
    pub failure: Option<String>,
    /// The shapes that the network took, the last of them whole again.
    pub phases: Vec<Phase>,
    /// How many things happened.
    pub steps: u64,
    /// The hash of everything that happened: equal for equal cases.
    pub trace: u64,
}

/// What became of writes while the network had one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Which.
    pub graph: Graph,
    /// Whether progress is promised to anybody.
    pub promised: bool,
    /// How each client fared: those of router 0, 1 … alone, then the one of all.
    pub served: Vec<Served>,
    /// How often somebody began to lead.
    pub reigns: usize,
}

/// How a client fared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// Whether progress is promised to it.
    pub promised: bool,
    /// When its first write since the network took its shape was acknowledged, counted from then.
    pub after: Option<Duration>,
}

impl Phase {
    /// The longest that a client waited to whom progress is promised.
    pub fn longest(&self) -> Option<Duration> {
        self.served.iter().filter(|served| served.promised).filter_map(|served| served.after).max()
    }
}

/// What is promised after a shape was taken or has healed: four election timeouts.
pub const PROMISED: Duration = domain::PROMISED;

/// Runs one case.
pub fn run(case: &Case, mutation: Option<Mutation>) -> Finding {
    domain::run(case, mutation)
}

/// Runs all of these, several at a time, and stops early after `failures_max` failures. `progress` is told of each finding.
pub fn sweep(
    cases: &[Case],
    mutation: Option<Mutation>,
    jobs: usize,
    failures_max: usize,
    mut progress: impl FnMut(&Case, &Finding),
) -> Vec<Finding> {
    let next = AtomicUsize::new(0);
    let (done, findings) = mpsc::channel();
    let mut all = Vec::new();
    let mut failed = 0;
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (done, next) = (done.clone(), &next);
            scope.spawn(move || {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if done.send((case, run(case, mutation))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(done);
        for (case, finding) in findings {
            progress(case, &finding);
            failed += usize::from(finding.failure.is_some());
            all.push(finding);
            if failed >= failures_max {
                next.store(cases.len(), Ordering::Relaxed);
            }
        }
    });
    all.sort_by_key(|finding| finding.number);
    all
}
