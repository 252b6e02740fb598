//! 004, figures 4 and 7: artificial delays, in one site and between three, compared with continuous partial
//! quorums.

use anyhow::Result;

use super::{
    figure::{Figure, Panel},
    partial::{
        self, Bench, Deployment, METHOD_OF_ONE_SITE, METHOD_OF_THREE_SITES, at, by_chance, delayed, least,
        mean_ms, parts, times,
    },
};
use crate::{
    Running, Setting,
    claim::{Claim, Compared},
    record::Record,
};

/// Figure 4.
pub(super) struct DelaysInOneSite;

/// Figure 7.
pub(super) struct DelaysInThreeSites;

const NEAR_MS: [u32; 5] = [0, 10, 20, 30, 40];
const FAR_MS: [u32; 5] = [0, 25, 50, 75, 100];

/// The probability at which the source compares delays with chance.
const P: f64 = 0.8;

const FALLS: Claim = Claim {
    says: "with the longest delay fewer operations are inconsistent than with no delay",
    value: "proportion_fall",
    compared: Compared::Above(1.0),
};

const PANELS: &[Panel] = &parts("delay before reads and after writes, ms");

impl Figure for DelaysInOneSite {
    fn id(&self) -> &'static str {
        "004/figure-4"
    }

    fn title(&self) -> &'static str {
        "Consistency and latency of artificial delays in one site"
    }

    fn section(&self) -> &'static str {
        "§III.C"
    }

    fn method(&self) -> &'static str {
        METHOD_OF_ONE_SITE
    }

    fn claims(&self) -> &'static [Claim] {
        &[
            FALLS,
            Claim {
                says: "the mean latency with a delay of 20 ms is larger than that with p = 0.8",
                value: "mean_to_chance",
                compared: Compared::Above(1.0),
            },
            Claim {
                says: "with a delay of 20 ms more operations are inconsistent than with p = 0.8",
                value: "proportion_to_chance",
                compared: Compared::Above(1.0),
            },
        ]
    }

    fn panels(&self) -> &'static [Panel] {
        PANELS
    }

    fn takes(&self, running: &Running) -> Result<(), &'static str> {
        Deployment::OneSite.takes(running)
    }

    fn run(&self, setting: &Setting) -> Result<Record> {
        let mut bench = Bench::start(Deployment::OneSite, setting)?;
        let points = bench.points(&NEAR_MS.map(delayed))?;
        let chance = bench.points(&[by_chance(P)])?;
        bench.succeeded();
        let values = [
            ("proportion_fall", least(|keys| times(at(&points, keys, 0.0), at(&points, keys, 40.0)))),
            (
                "mean_to_chance",
                least(|keys| mean_ms(at(&points, keys, 20.0)) / mean_ms(at(&chance, keys, P))),
            ),
            ("proportion_to_chance", least(|keys| times(at(&points, keys, 20.0), at(&chance, keys, P)))),
        ];
        Ok(partial::record(self, setting, &points, &values))
    }
}

impl Figure for DelaysInThreeSites {
    fn id(&self) -> &'static str {
        "004/figure-7"
    }

    fn title(&self) -> &'static str {
        "Consistency and latency of artificial delays between three sites"
    }

    fn section(&self) -> &'static str {
        "§III.D"
    }

    fn method(&self) -> &'static str {
        METHOD_OF_THREE_SITES
    }

    fn claims(&self) -> &'static [Claim] {
        &[
            FALLS,
            Claim {
                says: "with a delay of 50 ms fewer operations are inconsistent than with p = 0.8",
                value: "chance_proportion_to_50_ms",
                compared: Compared::Above(1.0),
            },
            Claim {
                says: "the 95th percentile of the latency of reads is smaller with a delay of 50 ms than \
                    with p = 0.8",
                value: "chance_p95_to_50_ms",
                compared: Compared::Above(1.0),
            },
            Claim {
                says: "the 95th percentile of the latency of reads grows evenly with the delay: at 50 ms \
                    it has gone half of its way to the value at 100 ms",
                value: "p95_evenness",
                compared: Compared::Above(0.8),
            },
        ]
    }

    fn panels(&self) -> &'static [Panel] {
        PANELS
    }

    fn takes(&self, running: &Running) -> Result<(), &'static str> {
        Deployment::ThreeSites.takes(running)
    }

    fn run(&self, setting: &Setting) -> Result<Record> {
        let mut bench = Bench::start(Deployment::ThreeSites, setting)?;
        let points = bench.points(&FAR_MS.map(delayed))?;
        let chance = bench.points(&[by_chance(P)])?;
        bench.succeeded();
        let p95 = |keys, ms| at(&points, keys, ms).read.p95_us;
        let values = [
            ("proportion_fall", least(|keys| times(at(&points, keys, 0.0), at(&points, keys, 100.0)))),
            (
                "chance_proportion_to_50_ms",
                least(|keys| times(at(&chance, keys, P), at(&points, keys, 50.0))),
            ),
            ("chance_p95_to_50_ms", least(|keys| at(&chance, keys, P).read.p95_us / p95(keys, 50.0))),
            (
                // One if the steps before and after 50 ms are equal, zero if there is a single step.
                "p95_evenness",
                least(|keys| {
                    let [first, half, last] = [0.0, 50.0, 100.0].map(|ms| p95(keys, ms));
                    1.0 - (2.0 * (half - first) / (last - first) - 1.0).abs()
                }),
            ),
        ];
        Ok(partial::record(self, setting, &points, &values))
    }
}
