//! 000, figure 6: latency by the number of members that must have a safe update before its delivery.

use anyhow::Result;
use quorate::group::SendStrength;

use super::{
    figure::{Figure, Panel},
    group::{Curve, SIZES, acceptors, record},
};
use crate::{
    Setting,
    bench::group_source::GroupBench,
    claim::{Claim, Compared},
    record::Record,
};

/// The experiment of figure 6 of the paper 000.
pub(super) struct Acceptors;

const CLAIMS: &[Claim] = &[
    Claim {
        says: "a SafeSend with φ = N takes longer than one with φ = 1",
        value: "all_to_one",
        compared: Compared::Above(1.0),
    },
    Claim {
        says: "a SafeSend with φ = N takes longer than one with φ = 3",
        value: "all_to_three",
        compared: Compared::Above(1.0),
    },
    Claim {
        says: "a SafeSend with φ = N takes longer than one with φ = N/2",
        value: "all_to_half",
        compared: Compared::Above(1.0),
    },
];

impl Figure for Acceptors {
    fn id(&self) -> &'static str {
        "000/figure-6"
    }

    fn title(&self) -> &'static str {
        "SafeSend with several numbers of acceptors"
    }

    fn section(&self) -> &'static str {
        "§9"
    }

    fn method(&self) -> &'static str {
        "Each member is a process, and all processes share one machine. The lab makes up to ten runs of \
         twenty safe sends of 100 bytes, one after another, for φ = 1, 3, N/2 and N. An update counts as \
         delivered when the last member has applied the update. In every case a majority of three routers, \
         which are separate processes, has the update, too."
    }

    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn panels(&self) -> &'static [Panel] {
        super::group::PANELS
    }

    fn run(&self, setting: &Setting) -> Result<Record> {
        let mut curves = ["φ = 1", "φ = 3", "φ = N/2", "φ = N"].map(Curve::new);
        let mut bench = GroupBench::begin(1)?;
        for size in SIZES {
            bench.grow(size)?;
            for (curve, acceptors) in curves.iter_mut().zip(acceptors(size)) {
                let took = bench.deliveries(SendStrength::Safe(acceptors), setting.phase_seconds)?;
                curve.points.push((size, took));
            }
        }
        let [one, three, half, all] = curves.each_ref().map(Curve::of_largest);
        let values = [("all_to_one", all / one), ("all_to_three", all / three), ("all_to_half", all / half)];
        Ok(record(self, setting, &values, &curves, bench.sent))
    }
}
