//! 004, figures 2 and 5: fixed levels, in one site and between three.

use anyhow::Result;

use super::{
    figure::{Figure, Panel},
    partial::{
        self, Bench, Deployment, METHOD_OF_ONE_SITE, METHOD_OF_THREE_SITES, at, atomic, least, level_pairs,
        most, parts, times,
    },
};
use crate::{
    Running, Setting,
    claim::{Claim, Compared},
    record::Record,
};

/// Figure 2.
pub(super) struct LevelsInOneSite;

/// Figure 5.
pub(super) struct LevelsInThreeSites;

/// Values of the pairs of levels on the first axis.
const ONE_ONE: f64 = 1.0;
const QUORUM_ONE: f64 = 3.0;
const QUORUM_QUORUM: f64 = 4.0;

const QUORUMS_ARE_ATOMIC: Claim = Claim {
    says: "with quorums for reads and for writes no operation is inconsistent",
    value: "atomic_at_quorum",
    compared: Compared::Above(1.0),
};

const PANELS: &[Panel] = &parts("levels of reads and writes: 1 ONE-ONE, 2 ONE-QUO, 3 QUO-ONE, 4 QUO-QUO");

impl Figure for LevelsInOneSite {
    fn id(&self) -> &'static str {
        "004/figure-2"
    }

    fn title(&self) -> &'static str {
        "Consistency and latency of fixed levels in one site"
    }

    fn section(&self) -> &'static str {
        "§III.C"
    }

    fn method(&self) -> &'static str {
        METHOD_OF_ONE_SITE
    }

    fn claims(&self) -> &'static [Claim] {
        &[
            QUORUMS_ARE_ATOMIC,
            Claim {
                says: "the proportion of inconsistent operations is mostly under 0.03",
                value: "proportion_most",
                compared: Compared::AtMost("proportion_most"),
            },
            Claim {
                says: "a read at level quorum takes longer than a read at level one",
                value: "quorum_to_one_read",
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
        let points = bench.points(&level_pairs())?;
        bench.succeeded();
        let read_ms = |keys, pair| at(&points, keys, pair).read.mean_us;
        let values = [
            ("atomic_at_quorum", least(|keys| atomic(at(&points, keys, QUORUM_QUORUM)))),
            ("proportion_most", most(|keys| at(&points, keys, ONE_ONE).history.proportion)),
            ("quorum_to_one_read", least(|keys| read_ms(keys, QUORUM_ONE) / read_ms(keys, ONE_ONE))),
        ];
        Ok(partial::record(self, setting, &points, &values))
    }
}

impl Figure for LevelsInThreeSites {
    fn id(&self) -> &'static str {
        "004/figure-5"
    }

    fn title(&self) -> &'static str {
        "Consistency and latency of fixed levels between three sites"
    }

    fn section(&self) -> &'static str {
        "§III.D"
    }

    fn method(&self) -> &'static str {
        METHOD_OF_THREE_SITES
    }

    fn claims(&self) -> &'static [Claim] {
        &[
            QUORUMS_ARE_ATOMIC,
            Claim {
                says: "with level one for reads and for writes the proportion of inconsistent operations \
                    exceeds 0.25",
                value: "one_one_proportion",
                compared: Compared::AtLeast("one_one_proportion", 0.0),
            },
            Claim {
                says: "with level one more operations are inconsistent between three sites than in one site",
                value: "one_one_to_one_site",
                compared: Compared::Above(1.0),
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
        let mut bench = Bench::start(Deployment::OneSite, setting)?;
        let near = bench.points(&level_pairs()[..1])?;
        bench.succeeded();
        let mut bench = Bench::start(Deployment::ThreeSites, setting)?;
        let points = bench.points(&level_pairs())?;
        bench.succeeded();
        let one_one = |keys| at(&points, keys, ONE_ONE).history.proportion;
        let values = [
            ("atomic_at_quorum", least(|keys| atomic(at(&points, keys, QUORUM_QUORUM)))),
            ("one_one_proportion", most(one_one)),
            (
                "one_one_to_one_site",
                least(|keys| times(at(&points, keys, ONE_ONE), at(&near, keys, ONE_ONE))),
            ),
        ];
        Ok(partial::record(self, setting, &points, &values))
    }
}
