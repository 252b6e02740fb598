//! 004, §III: the workload at a series of dial settings, on cells in one site and in three.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};
use quorate::maps::Level;
use quorate_history::Verdict;
use quorate_tune::{Choice, Dial, Dials, Distribution, Others, SettingResults, Workload, figures::Latencies};

use super::figure::{Figure, Form, Panel};
use crate::{
    Running, Setting,
    bench::quorum_rig::{Done, Experiment, Rig},
    record::{Record, RowAudit},
    store::Replication,
};

/// The repair of reads, like that of Cassandra's quorum reads.
const REPAIR: &str = "blocking";

/// The sites of the cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deployment {
    /// All cells in one site. Each cell stands still for 100 ms every 4 s, like a store whose garbage
    /// collector stops the world; so does each direction between two cells.
    OneSite,
    /// California, Virginia and São Paulo: 18.5 ms one way between the first two, 37.5 ms to the third.
    ThreeSites,
}

/// The source's distances: 18.5 ms one way between the first two sites, 37.5 ms to the third.
pub(crate) const FAR: &str = "0-1=18.5,0-2=37.5,1-2=37.5";

/// Near cells, with messages that hang in each direction.
const HANGING: &str = "0-1=0~1!100/4000,0-2=0~1!100/4000,1-2=0~1!100/4000";

/// Both key distributions of the source.
pub(super) const DISTRIBUTIONS: [Distribution; 2] = [Distribution::Latest, Distribution::Zipfian];

/// Number of clients. The source has 128 a host and three hosts. This number sustains the rate at every
/// delay, and the machine is fast enough for this number.
const CLIENTS: u64 = 192;

impl Deployment {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Deployment::OneSite => &["--storage", "0", "--cells", "3", "--sites", "3", "--distance", HANGING],
            Deployment::ThreeSites => &["--storage", "0", "--cells", "3", "--sites", "3", "--distance", FAR],
        }
    }

    /// Whether this store supports the deployment.
    pub(super) fn takes(self, running: &Running) -> Result<(), &'static str> {
        match (self, &running.store) {
            (_, None) | (Deployment::OneSite, _) => Ok(()),
            (Deployment::ThreeSites, Some(_)) => running.takes_distances(),
        }
    }

    /// Returns the source's rate, in operations a second.
    fn rate(self) -> f64 {
        match self {
            Deployment::OneSite => 3_000.0,
            Deployment::ThreeSites => 1_000.0,
        }
    }

    fn experiment(self, distribution: Distribution) -> Experiment {
        let pauses = match self {
            Deployment::OneSite => Some((Duration::from_millis(100), Duration::from_millis(4_000 / 3))),
            Deployment::ThreeSites => None,
        };
        Experiment {
            // Cells between which messages hang need sites of their own, however near they are.
            replication: Replication::quorum("0:1,1:1,2:1", REPAIR),
            clients: CLIENTS,
            rate: self.rate(),
            span: Duration::ZERO,
            workload: Workload {
                keys: 1_000,
                distribution,
                reads: 0.8,
                others: Others::Update,
                value_bytes: 128,
            },
            pauses,
        }
    }
}

/// A running store, with the setting for measurements.
pub(super) struct Bench<'a> {
    rig: Rig,
    deployment: Deployment,
    setting: &'a Setting,
}

/// The results of one setting under one distribution of keys.
pub(super) struct Point {
    pub(super) distribution: Distribution,
    /// The value on the figure's first axis.
    pub(super) at: f64,
    pub(super) figures: SettingResults,
}

impl<'a> Bench<'a> {
    /// Starts cells, or takes the store that the setting names. The nodes of that store pause if the setting
    /// names their processes.
    pub(super) fn start(deployment: Deployment, setting: &'a Setting) -> Result<Bench<'a>> {
        let mut bench = Bench { rig: Rig::of(&setting.running, deployment.flags())?, deployment, setting };
        setting.running.place(match deployment {
            Deployment::OneSite => "",
            Deployment::ThreeSites => FAR,
        })?;
        if setting.running.store.is_some() {
            // The driver and the store may be slow at first, so the first measurement would have the worst
            // latencies. This one is discarded.
            let (at, dials) = by_chance(0.5);
            bench.point(Distribution::Latest, at, dials)?;
        }
        Ok(bench)
    }

    /// Measures each setting under both distributions.
    pub(super) fn points(&mut self, settings: &[(f64, Dials)]) -> Result<Vec<Point>> {
        let of_both =
            settings.iter().flat_map(|setting| DISTRIBUTIONS.map(|distribution| (distribution, setting)));
        of_both.map(|(distribution, (at, dials))| self.point(distribution, *at, *dials)).collect()
    }

    fn point(&mut self, distribution: Distribution, at: f64, dials: Dials) -> Result<Point> {
        let mut experiment = self.deployment.experiment(distribution);
        experiment.span = Duration::from_secs_f64(self.setting.phase_seconds);
        experiment.rate = self.setting.rate.unwrap_or(experiment.rate);
        if let Some(store) = &self.setting.running.store {
            experiment.replication = Replication::quorum(store.copies().to_string(), REPAIR);
            experiment.pauses = experiment.pauses.filter(|_| self.rig.can_pause());
        }
        let done = self.rig.measure(&experiment, dials);
        let Done { before, tape, took } =
            done.with_context(|| format!("{}, {}", dials.spelt(), distribution.name()))?;
        Ok(Point { distribution, at, figures: SettingResults::of(before, tape, took) })
    }

    /// Notes that all measurements succeeded.
    pub(super) fn succeeded(self) {
        self.rig.succeeded();
    }
}

/// Returns the four pairs of levels that work with a dead replica, by the level of reads.
pub(super) fn level_pairs() -> [(f64, Dials); 4] {
    let dial = |level| Dial { weak: level, strong: level, p: 1.0, delay: Duration::ZERO };
    let pair = |read, write| Dials { reads: dial(read), writes: dial(write), choice: Choice::Chance };
    [
        (1.0, pair(Level::One, Level::One)),
        (2.0, pair(Level::One, Level::Quorum)),
        (3.0, pair(Level::Quorum, Level::One)),
        (4.0, pair(Level::Quorum, Level::Quorum)),
    ]
}

/// Returns continuous partial quorums: `p` is the probability of quorum.
pub(super) fn by_chance(p: f64) -> (f64, Dials) {
    (
        p,
        Dials::both(
            Dial { weak: Level::One, strong: Level::Quorum, p, delay: Duration::ZERO },
            Choice::Chance,
        ),
    )
}

/// Returns artificial delays at level one, before reads and after writes, in milliseconds.
pub(super) fn delayed(ms: u32) -> (f64, Dials) {
    let delay = Duration::from_millis(u64::from(ms));
    let dial = Dial { weak: Level::One, strong: Level::One, p: 0.0, delay };
    (f64::from(ms), Dials::both(dial, Choice::Chance))
}

/// Returns the results of the setting at this value of the first axis, under one distribution.
pub(super) fn at(points: &[Point], distribution: Distribution, at: f64) -> &SettingResults {
    let point = points.iter().find(|point| point.distribution == distribution && point.at == at);
    &point.expect("every setting is measured under both distributions of keys").figures
}

/// Returns the largest value over the distributions that have a value.
pub(super) fn most(of: impl Fn(Distribution) -> f64) -> f64 {
    DISTRIBUTIONS.map(of).into_iter().fold(f64::NAN, f64::max)
}

/// Returns the smallest value over the distributions that have a value.
pub(super) fn least(of: impl Fn(Distribution) -> f64) -> f64 {
    DISTRIBUTIONS.map(of).into_iter().fold(f64::NAN, f64::min)
}

/// Returns the mean latency of all operations, in milliseconds.
pub(super) fn mean_ms(figures: &SettingResults) -> f64 {
    let sum = |it: &Latencies| it.mean_us * it.count as f64;
    let SettingResults { read, write, .. } = figures;
    (sum(read) + sum(write)) / (read.count + write.count).max(1) as f64 / 1e3
}

/// Returns the ratio of two proportions. A proportion of zero counts as half an operation; if both are zero,
/// the ratio is no number.
pub(super) fn times(one: &SettingResults, other: &SettingResults) -> f64 {
    let [one, other] =
        [one, other].map(|it| (it.history.proportion, 0.5 / it.history.operations.max(1) as f64));
    if one.0 + other.0 > 0.0 { one.0.max(one.1) / other.0.max(other.1) } else { f64::NAN }
}

/// Returns the fraction of pairs of settings in which the setting farther right on the first axis has no
/// larger proportion of inconsistent operations. The result is no number if no operation is inconsistent.
pub(super) fn falling(points: &[Point], distribution: Distribution) -> f64 {
    let mut own: Vec<(f64, f64)> = points
        .iter()
        .filter(|point| point.distribution == distribution)
        .map(|point| (point.at, point.figures.history.proportion))
        .collect();
    own.sort_by(|a, b| a.0.total_cmp(&b.0));
    let pairs =
        || own.iter().enumerate().flat_map(|(i, left)| own[i + 1..].iter().map(move |right| (left, right)));
    if own.iter().all(|(_, proportion)| *proportion == 0.0) {
        return f64::NAN;
    }
    let fall = pairs().filter(|(left, right)| right.1 <= left.1).count();
    fall as f64 / pairs().count().max(1) as f64
}

/// Returns one if the history is atomic, else zero.
pub(super) fn atomic(figures: &SettingResults) -> f64 {
    if figures.history.atomic == Verdict::Atomic { 1.0 } else { 0.0 }
}

/// Returns the three panels of figures 2 to 7, over this axis.
pub(super) const fn parts(across: &'static str) -> [Panel; 3] {
    let form = Form::Curves;
    [
        Panel { of: "proportion", across, up: "proportion of inconsistent operations", form },
        Panel { of: "p95", across, up: "95th percentile, ms", form },
        Panel { of: "mean", across, up: "mean, ms", form },
    ]
}

/// Returns values by name, without those that are no numbers, because this run does not decide their claims.
pub(super) fn named(values: &[(&str, f64)]) -> BTreeMap<String, f64> {
    let numbers = values.iter().filter(|(_, value)| value.is_finite());
    numbers.map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// Returns a record with the curves of [`parts`]: the proportion with its standard error, and separate
/// latencies of reads and writes.
pub(super) fn record(
    figure: &dyn Figure,
    setting: &Setting,
    points: &[Point],
    values: &[(&str, f64)],
) -> Record {
    let mut series: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    let mut errors: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for Point { distribution, at, figures } in points {
        let keys = distribution.name();
        let judged = &figures.history;
        let error = (judged.proportion * (1.0 - judged.proportion) / judged.operations.max(1) as f64).sqrt();
        errors.entry(format!("proportion/{keys}")).or_default().push(error);
        series.entry(format!("proportion/{keys}")).or_default().push((*at, judged.proportion));
        for (kind, latencies) in [("reads", &figures.read), ("writes", &figures.write)] {
            series.entry(format!("p95/{kind}, {keys}")).or_default().push((*at, latencies.p95_us / 1e3));
            series.entry(format!("mean/{kind}, {keys}")).or_default().push((*at, latencies.mean_us / 1e3));
        }
    }
    Record {
        values: named(values),
        series,
        errors,
        account: account(points),
        ..Record::of_phases(figure.id(), setting)
    }
}

/// Returns the audit of a run's rows. The judged history contains every acknowledged write, so nothing else
/// needs counting.
pub(super) fn account(points: &[Point]) -> RowAudit {
    RowAudit {
        acknowledged: points.iter().map(|point| point.figures.write.count).sum(),
        ..RowAudit::default()
    }
}

/// The method of figures 2 to 4 and 8.
pub(super) const METHOD_OF_ONE_SITE: &str = "Three cells are processes on one machine, which the clients \
    share. There are three copies of 1,000 keys of 128 bytes, 80 % of the operations are reads, and there \
    are 3,000 operations a second, as in the source. A latency counts from the instant at which the \
    operation was due. Cells do not collect garbage; instead the lab stops each cell for 100 ms every 4 s. \
    A cell that goes on takes in the messages of other cells before it answers clients, so the stops alone \
    make no read stale; the source's store has separate threads for both, which run in any order. \
    Therefore the lab also holds the messages between any two cells for 100 ms every 4 s, and each message \
    takes up to 1 ms. The 192 clients are one process with one clock (the source has 384 clients on three \
    hosts), and each setting takes one phase (180 s in the source). Quorum reads repair before they \
    answer. A proportion counts over both distributions of keys.";

/// The method of figures 5 to 7 and 9.
pub(super) const METHOD_OF_THREE_SITES: &str = "The method is that of one site, with 1,000 operations a \
    second and a copy of each key at each of three sites; no cell pauses, and no message hangs. Messages \
    are held back by 18.5 ms one way between the cells of the first two sites, and by 37.5 ms to the third \
    site: half of the round trips that the source measured. Clients are at the sites of their cells. \
    Between the nodes of Cassandra a forwarder holds all bytes back as long.";

#[cfg(test)]
mod tests {
    use quorate_tune::Tape;

    use super::*;

    fn points(proportions: &[f64]) -> Vec<Point> {
        let point = |(at, proportion): (usize, &f64)| {
            let mut figures = SettingResults::of(Tape::default(), Tape::default(), Duration::from_secs(1));
            figures.history.proportion = *proportion;
            figures.history.operations = 100;
            Point { distribution: Distribution::Latest, at: at as f64, figures }
        };
        proportions.iter().enumerate().map(point).collect()
    }

    #[test]
    fn a_proportion_falls_as_far_as_its_pairs_do() {
        assert_eq!(falling(&points(&[0.3, 0.2, 0.2, 0.0]), Distribution::Latest), 1.0);
        assert_eq!(falling(&points(&[0.0, 0.1, 0.2]), Distribution::Latest), 0.0);
        assert_eq!(falling(&points(&[0.2, 0.3, 0.1, 0.0]), Distribution::Latest), 5.0 / 6.0);
    }

    #[test]
    fn a_proportion_of_zero_is_half_an_operation_in_ratios() {
        let points = points(&[0.0, 0.5]);
        let [none, half] = [0, 1].map(|i| &points[i].figures);
        assert_eq!((times(half, none), times(none, half), times(half, half)), (100.0, 0.01, 1.0));
        assert!(times(none, none).is_nan() && falling(&points[..1], Distribution::Latest).is_nan());
        assert_eq!(named(&[("a", f64::NAN), ("b", least(|_| 2.0))]), [("b".to_owned(), 2.0)].into());
    }
}
