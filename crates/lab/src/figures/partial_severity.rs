//! 004, figures 8 and 9: the severity of violations, by the Γ of each key that is not atomic.

use anyhow::Result;
use quorate_tune::Distribution;

use super::{
    figure::{Figure, Form, Panel},
    partial::{
        Bench, Deployment, METHOD_OF_ONE_SITE, METHOD_OF_THREE_SITES, Point, account, at, by_chance, delayed,
        level_pairs, most, named,
    },
};
use crate::{
    Running, Setting,
    claim::{Claim, Compared},
    record::Record,
};

/// Figure 8.
pub(super) struct SeverityInOneSite;

/// Figure 9.
pub(super) struct SeverityInThreeSites;

const UP: &str = "Γ in ms: smallest, quartiles, largest";

const fn part(of: &'static str, across: &'static str) -> Panel {
    Panel { of, across, up: UP, form: Form::Boxes }
}

const PANELS: &[Panel] = &[
    part("levels", "levels of reads and writes: 1 ONE-ONE, 2 ONE-QUO, 3 QUO-ONE, 4 QUO-QUO"),
    part("chance", "p, the probability of quorum"),
    part("delays", "delay before reads and after writes, ms"),
];

impl Figure for SeverityInOneSite {
    fn id(&self) -> &'static str {
        "004/figure-8"
    }

    fn title(&self) -> &'static str {
        "Severity of violations in one site"
    }

    fn section(&self) -> &'static str {
        "appendix"
    }

    fn method(&self) -> &'static str {
        METHOD_OF_ONE_SITE
    }

    fn claims(&self) -> &'static [Claim] {
        &[
            Claim {
                says: "the largest Γ at level one is 100 ms or more, as long as the pauses of cells",
                value: "one_one_most_ms",
                compared: Compared::AtLeast("one_one_ms", 0.0),
            },
            Claim {
                says: "a delay of 40 ms does not reduce the largest Γ",
                value: "delayed_most_ms",
                compared: Compared::AtLeast("delay_ms", 0.0),
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
        run(self, Deployment::OneSite, [0, 10, 20, 30, 40], setting)
    }
}

impl Figure for SeverityInThreeSites {
    fn id(&self) -> &'static str {
        "004/figure-9"
    }

    fn title(&self) -> &'static str {
        "Severity of violations between three sites"
    }

    fn section(&self) -> &'static str {
        "appendix"
    }

    fn method(&self) -> &'static str {
        METHOD_OF_THREE_SITES
    }

    fn claims(&self) -> &'static [Claim] {
        &[Claim {
            says: "Γ at level one is mostly below 100 ms",
            value: "one_one_third_quartile_ms",
            compared: Compared::AtMost("one_one_ms"),
        }]
    }

    fn panels(&self) -> &'static [Panel] {
        PANELS
    }

    fn takes(&self, running: &Running) -> Result<(), &'static str> {
        Deployment::ThreeSites.takes(running)
    }

    fn run(&self, setting: &Setting) -> Result<Record> {
        run(self, Deployment::ThreeSites, [0, 25, 50, 75, 100], setting)
    }
}

fn run(
    figure: &dyn Figure,
    deployment: Deployment,
    delays_ms: [u32; 5],
    setting: &Setting,
) -> Result<Record> {
    let mut bench = Bench::start(deployment, setting)?;
    let levels = bench.points(&level_pairs())?;
    let chance = bench.points(&[0.2, 0.4, 0.6, 0.8].map(by_chance))?;
    let delays = bench.points(&delays_ms.map(delayed))?;
    bench.succeeded();
    let score = |points: &[Point], keys: Distribution, x: f64, which: usize| {
        at(points, keys, x).history.gamma_ms.map_or(f64::NAN, |scores| scores[which])
    };
    let [third_quartile, largest] = [3, 4];
    let longest = f64::from(delays_ms[4]);
    let values = [
        ("one_one_third_quartile_ms", most(|keys| score(&levels, keys, 1.0, third_quartile))),
        ("one_one_most_ms", most(|keys| score(&levels, keys, 1.0, largest))),
        ("delayed_most_ms", most(|keys| score(&delays, keys, longest, largest))),
    ];
    let mut record = Record { values: named(&values), ..Record::of_phases(figure.id(), setting) };
    for (of, points) in [("levels", &levels), ("chance", &chance), ("delays", &delays)] {
        for Point { distribution, at, figures } in points {
            // A setting without violations has an empty box.
            let scores = figures.history.gamma_ms.into_iter().flatten();
            let name = format!("{of}/{at:>3} {}", distribution.name());
            record.series.insert(name, scores.map(|score| (*at, score)).collect());
        }
        record.account.acknowledged += account(points).acknowledged;
    }
    Ok(record)
}
