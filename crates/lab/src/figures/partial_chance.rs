//! 004, figures 3 and 6: continuous partial quorums, in one site and between three.

use anyhow::Result;
use quorate_tune::SettingResults;

use super::{
    figure::{Figure, Panel},
    partial::{
        self, Bench, Deployment, METHOD_OF_ONE_SITE, METHOD_OF_THREE_SITES, at, by_chance, falling, least,
        mean_ms, parts,
    },
};
use crate::{
    Running, Setting,
    claim::{Claim, Compared},
    record::Record,
};

/// Figure 3.
pub(super) struct ChanceInOneSite;

/// Figure 6.
pub(super) struct ChanceInThreeSites;

const PROBABILITIES: [f64; 6] = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];

const FALLS: Claim = Claim {
    says: "the proportion of inconsistent operations falls as p grows: in nine of ten pairs of values of p \
        the larger p has the smaller proportion",
    value: "falling",
    compared: Compared::Above(0.9),
};

const VANISHES: Claim = Claim {
    says: "at p = 1 no operation is inconsistent, as with quorums",
    value: "atomic_at_one",
    compared: Compared::Above(1.0),
};

const PANELS: &[Panel] = &parts("p, the probability of quorum");

impl Figure for ChanceInOneSite {
    fn id(&self) -> &'static str {
        "004/figure-3"
    }

    fn title(&self) -> &'static str {
        "Consistency and latency of continuous partial quorums in one site"
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
            VANISHES,
            Claim {
                says: "the mean latency at p = 1 is larger than that at p = 0",
                value: "mean_growth",
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
        run(self, Deployment::OneSite, setting)
    }
}

impl Figure for ChanceInThreeSites {
    fn id(&self) -> &'static str {
        "004/figure-6"
    }

    fn title(&self) -> &'static str {
        "Consistency and latency of continuous partial quorums between three sites"
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
            VANISHES,
            Claim {
                says: "the 95th percentile of the latency of reads rises early: at p = 0.2 it has gone \
                    most of its way from the value at p = 0 to the value at p = 1",
                value: "p95_way_at_first",
                compared: Compared::Above(0.7),
            },
            Claim {
                says: "the mean latency rises late: at p = 0.2 most of its way from the value at p = 0 to \
                    the value at p = 1 is left",
                value: "mean_way_left_at_first",
                compared: Compared::Above(0.6),
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
        run(self, Deployment::ThreeSites, setting)
    }
}

fn run(figure: &dyn Figure, deployment: Deployment, setting: &Setting) -> Result<Record> {
    let mut bench = Bench::start(deployment, setting)?;
    let points = bench.points(&PROBABILITIES.map(by_chance))?;
    bench.succeeded();
    // The fraction of the change between p = 0 and p = 1 that happens after p = 0.2.
    let way = |of: fn(&SettingResults) -> f64| {
        let points = &points;
        move |keys| {
            let [first, second, last] = [0.0, PROBABILITIES[1], 1.0].map(|p| of(at(points, keys, p)));
            (second - first) / (last - first)
        }
    };
    let mean_way = way(mean_ms);
    let values = [
        ("falling", least(|keys| falling(&points, keys))),
        ("atomic_at_one", least(|keys| partial::atomic(at(&points, keys, 1.0)))),
        ("mean_growth", least(|keys| mean_ms(at(&points, keys, 1.0)) / mean_ms(at(&points, keys, 0.0)))),
        ("p95_way_at_first", least(way(|figures| figures.read.p95_us))),
        ("mean_way_left_at_first", least(|keys| 1.0 - mean_way(keys))),
    ];
    Ok(partial::record(figure, setting, &points, &values))
}
