//! Claims of a source about a figure, and their comparison with the measurements.

use std::fmt;

use crate::{record::Record, source::Values};

/// A sentence of a source that numbers can contradict.
pub struct Claim {
    /// The sentence, shortened.
    pub says: &'static str,
    /// The name of the deciding value in [`Record::values`].
    pub value: &'static str,
    /// The comparison with the source's value.
    pub compared: Compared,
}

/// A comparison of a measured value with the source's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compared {
    /// At most the source's value of this name; smaller is better.
    AtMost(&'static str),
    /// At least the source's value of this name, less this fraction of the value; larger is better.
    AtLeast(&'static str, f64),
    /// At least this number. For claims that compare two of the source's own measurements, without a value.
    Above(f64),
}

/// The verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Every run is better than the source by a tenth or more.
    Beaten,
    /// Every run is as good as the source.
    Matched,
    /// Some runs are as good as the source, and other runs are not.
    Undecided,
    /// No run is as good as the source, or the history of a run is wrong.
    Differs,
    /// No run measured the deciding value, or the source does not give it.
    Missing,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Beaten => "beaten",
            Verdict::Matched => "matched",
            Verdict::Undecided => "undecided",
            Verdict::Differs => "differs",
            Verdict::Missing => "missing",
        })
    }
}

/// A claim with its verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The verdict.
    pub verdict: Verdict,
    /// The source's value, if it gives one.
    pub theirs: Option<f64>,
    /// The smallest, the median and the largest measured value.
    pub ours: Option<[f64; 3]>,
}

impl Claim {
    /// Judges the claim by all runs of its figure.
    pub fn judge(&self, source: &Values, records: &[Record]) -> Judged {
        let mut measured: Vec<f64> =
            records.iter().filter_map(|record| record.values.get(self.value).copied()).collect();
        measured.sort_by(f64::total_cmp);
        let (limit, theirs, better) = match self.compared {
            Compared::AtMost(name) => {
                let theirs = source.get(name);
                (theirs, theirs, theirs.map(|value| value * 0.9))
            }
            Compared::AtLeast(name, part) => {
                let theirs = source.get(name);
                (theirs.map(|value| value * (1.0 - part)), theirs, theirs.map(|value| value * 1.1))
            }
            Compared::Above(least) => (Some(least), None, None),
        };
        let ours = measured
            .first()
            .zip(measured.last())
            .map(|(first, last)| [*first, measured[measured.len() / 2], *last]);
        let (Some(limit), Some(_)) = (limit, ours) else {
            return Judged { verdict: Verdict::Missing, theirs, ours };
        };
        let smaller_is_better = matches!(self.compared, Compared::AtMost(_));
        let reaches =
            |value: f64, limit: f64| if smaller_is_better { value <= limit } else { value >= limit };
        let good = measured.iter().filter(|value| reaches(**value, limit)).count();
        let verdict = if good == 0 || !records.iter().all(|record| record.account.is_complete()) {
            Verdict::Differs
        } else if good < measured.len() {
            Verdict::Undecided
        } else if better.is_some_and(|better| measured.iter().all(|value| reaches(*value, better))) {
            Verdict::Beaten
        } else {
            Verdict::Matched
        };
        Judged { verdict, theirs, ours }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RowAudit;

    fn runs(values: &[f64]) -> Vec<Record> {
        let record =
            |value: &f64| Record { values: [(String::from("silence"), *value)].into(), ..Record::sample() };
        values.iter().map(record).collect()
    }

    #[test]
    fn every_run_counts() {
        let source = Values::from_iter([(String::from("theirs"), 3.0)]);
        let judge = |compared, values: &[f64]| {
            Claim { says: "", value: "silence", compared }.judge(&source, &runs(values)).verdict
        };
        let most = Compared::AtMost("theirs");
        assert_eq!(judge(most, &[]), Verdict::Missing);
        assert_eq!(judge(most, &[2.0, 1.0]), Verdict::Beaten);
        assert_eq!(judge(most, &[2.0, 2.9]), Verdict::Matched);
        assert_eq!(judge(most, &[2.0, 3.1]), Verdict::Undecided);
        assert_eq!(judge(most, &[3.2, 3.1]), Verdict::Differs);
        let least = Compared::AtLeast("theirs", 0.1);
        assert_eq!(judge(least, &[2.8]), Verdict::Matched);
        assert_eq!(judge(least, &[3.4]), Verdict::Beaten);
        assert_eq!(judge(least, &[2.6]), Verdict::Differs);
        assert_eq!(judge(Compared::AtMost("absent"), &[1.0]), Verdict::Missing);
        assert_eq!(judge(Compared::Above(1.0), &[1.0, 1.2]), Verdict::Matched);
        assert_eq!(judge(Compared::Above(1.0), &[0.9, 1.2]), Verdict::Undecided);
    }

    #[test]
    fn a_run_whose_history_is_wrong_proves_nothing() {
        let source = Values::from_iter([(String::from("theirs"), 3.0)]);
        let claim = Claim { says: "", value: "silence", compared: Compared::AtMost("theirs") };
        let mut runs = runs(&[1.0, 1.0]);
        runs[1].account = RowAudit { lost: 1, ..runs[1].account };
        assert_eq!(claim.judge(&source, &runs).verdict, Verdict::Differs);
    }
}
