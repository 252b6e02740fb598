//! Parts that the figures of process groups (000 §9) share.

use quorate::group::Phi;

use super::figure::{Figure, Form, Panel};
use crate::{
    Setting,
    record::{Record, RowAudit},
};

/// Numbers of members in figures 6 to 8, each a process. The source measures groups of a few to 65 members.
pub(super) const SIZES: [usize; 5] = [5, 17, 33, 49, 65];

/// Returns the numbers of acceptors in a group of this size: φ = 1, 3, N/2 and N.
pub(super) fn acceptors(size: usize) -> [Phi; 4] {
    let count = |count| u16::try_from(count).expect("a group has fewer than 65,536 members");
    [1, 3, size / 2, size].map(|acceptors| Phi::Count(count(acceptors)))
}

const fn panel(of: &'static str, up: &'static str) -> Panel {
    Panel { of, across: "members", up, form: Form::Curves }
}

/// The panels of the means and of the maxima.
pub(super) const PANELS: &[Panel] = &[panel("mean", "mean (ms)"), panel("longest", "longest (ms)")];

/// Latencies of one kind of operation, for each number of members.
pub(super) struct Curve {
    pub(super) name: &'static str,
    /// The numbers of members, each with its measurements in milliseconds.
    pub(super) points: Vec<(usize, Vec<f64>)>,
}

impl Curve {
    pub(super) fn new(name: &'static str) -> Curve {
        Curve { name, points: Vec::new() }
    }

    /// Returns the means of the smallest and of the largest group.
    pub(super) fn ends(&self) -> (f64, f64) {
        let mean_of = |point: Option<&(usize, Vec<f64>)>| mean(&point.expect("every curve has points").1);
        (mean_of(self.points.first()), mean_of(self.points.last()))
    }

    /// Returns the mean of the largest group.
    pub(super) fn of_largest(&self) -> f64 {
        self.ends().1
    }

    /// Returns the largest of the means.
    pub(super) fn slowest(&self) -> f64 {
        self.points.iter().map(|(_, took)| mean(took)).fold(0.0, f64::max)
    }

    /// Returns the largest measurement.
    pub(super) fn longest(&self) -> f64 {
        self.points.iter().map(|(_, took)| longest(took)).fold(0.0, f64::max)
    }
}

fn mean(took: &[f64]) -> f64 {
    took.iter().sum::<f64>() / took.len() as f64
}

fn longest(took: &[f64]) -> f64 {
    took.iter().copied().fold(0.0, f64::max)
}

/// Returns the value below which this fraction of the measurements lies.
pub(super) fn quantile(took: &[f64], part: f64) -> f64 {
    let mut sorted = took.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(part * (sorted.len() - 1) as f64) as usize]
}

/// Returns a record of these curves: for each, the means with their errors, and the maxima of each point.
pub(super) fn record(
    figure: &dyn Figure,
    setting: &Setting,
    values: &[(&str, f64)],
    curves: &[Curve],
    sent: u64,
) -> Record {
    let mut record = Record {
        values: values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        account: RowAudit { acknowledged: sent, ..RowAudit::default() },
        ..Record::of_phases(figure.id(), setting)
    };
    for Curve { name, points } in curves {
        let of = |value: fn(&[f64]) -> f64| {
            points.iter().map(|(members, took)| (*members as f64, value(took))).collect::<Vec<_>>()
        };
        record.errors.insert(format!("mean/{name}"), points.iter().map(|(_, took)| error(took)).collect());
        record.series.insert(format!("mean/{name}"), of(mean));
        record.series.insert(format!("longest/{name}"), of(longest));
    }
    record
}

/// Returns the standard error of the mean.
fn error(took: &[f64]) -> f64 {
    let mean = mean(took);
    let variance = took.iter().map(|took| (took - mean).powi(2)).sum::<f64>() / took.len() as f64;
    (variance / took.len() as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_summed_up() {
        let curve = Curve { name: "", points: vec![(5, vec![1.0, 3.0]), (65, vec![2.0, 4.0, 9.0])] };
        assert_eq!(
            (curve.ends(), curve.of_largest(), curve.slowest(), curve.longest()),
            ((2.0, 5.0), 5.0, 5.0, 9.0)
        );
        assert_eq!(acceptors(65), [1, 3, 32, 65].map(Phi::Count));
        assert_eq!([0.0, 0.5, 0.95, 1.0].map(|part| quantile(&[3.0, 1.0, 2.0], part)), [1.0, 2.0, 2.0, 3.0]);
        assert!((error(&[1.0, 3.0]) - 0.5f64.sqrt()).abs() < 1e-9);
    }
}
