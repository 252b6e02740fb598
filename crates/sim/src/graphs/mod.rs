//! The theorem of partial partitions, by exhaustion (rule S19).
//!
//! **Promise.** Suppose that some router of the newest membership can talk both ways with a majority of it,
//! counting itself. Then clients that can talk both ways with that router, directly or through other routers,
//! get acknowledgements again within four election timeouts after the graph took effect. Meanwhile the lead
//! moves at most once. No router is voted out if the leader hears of it along any chain of routers. If no
//! router can talk with a majority, no write is lost or falsely acknowledged, and writes continue within the
//! same time after the cut has healed.
//!
//! **Method.** The cases enumerate graphs that say which router hears which: all directed graphs on three
//! routers with every leader; all undirected graphs on five routers, and all directed ones up to isomorphism,
//! with every leader and in two numberings (elections prefer the greater id among equals); and every
//! undirected graph that changes into every other. In each case a domain settles with that leader, and the
//! network takes the graph's shape. Clients with links to every router or to a single router write. At the
//! end the cut heals. [`Graph`] computes from the graph alone, without a line of the protocols' code, which
//! clients are promised progress.
//!
//! **Limits.** Each case draws its random numbers once, so it is one schedule of the many with this graph. In
//! half of the cases, links that pass messages one way last as long as the shape; in the other half they
//! break after a while, as TCP connections do. The seeds of the other scenarios cover more than five routers,
//! and shapes that change faster than the promise.

mod case;
mod domain;
mod finding;
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

pub use finding::{Finding, Phase, Served};

/// The promised time after the network took a shape or healed: four election timeouts.
pub const PROMISED: Duration = domain::PROMISED;

/// Runs one case.
pub fn run(case: &Case, mutation: Option<Mutation>) -> Finding {
    domain::run(case, mutation)
}

/// Runs all these cases, `jobs` at a time, and stops early after `failures_max` failures. Calls `progress`
/// with each finding.
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
