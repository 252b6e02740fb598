//! Agreements: the latency and the consistency that the clients of a store shall get.
//!
//! ```
//! use quorate_tune::Agreement;
//!
//! let agreement: Agreement = "p95<=10ms, inconsistent<=0.5%, throughput>=3k".parse()?;
//! assert_eq!(agreement.to_string(), "p95<=10ms,inconsistent<=0.5%,throughput>=3k");
//! # Ok::<(), quorate_tune::AgreementError>(())
//! ```

use std::{fmt, str::FromStr};

use thiserror::Error;

use crate::window::{Estimate, Window};

/// Bounds that must all hold, the most important first, and optionally a measure to minimize.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreement {
    /// Bounds, at least one.
    pub lines: Vec<Line>,
    /// Measure to minimize among the settings that keep all lines, as in `min p99`.
    pub least: Option<Measure>,
}

/// A bound on one measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Bounded measure.
    pub measure: Measure,
    /// Bound in the measure's unit: seconds, a fraction from 0 to 1, or operations a second.
    pub bound: f64,
}

/// Measures that an agreement may bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// Latency in seconds that this fraction of the operations does not exceed, written `p95`.
    Latency(f64),
    /// Mean latency in seconds, written `mean`.
    Mean,
    /// Proportion of inconsistent operations (004 §II.B), written `inconsistent`.
    Inconsistent,
    /// Γ in seconds that this fraction of the reads does not exceed, written `gamma_p99`. Γ of a consistent
    /// read is 0.
    Gamma(f64),
    /// Answered operations a second, written `throughput`. It is the only measure with a lower bound.
    Throughput,
}

/// The result of comparing a window with a line of an agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LineStatus {
    /// The window keeps the line, with a confidence of 95 %.
    Kept,
    /// Undecided: the bound lies inside the confidence interval.
    Open,
    /// The window breaks the line, with a confidence of 95 %.
    Broken,
}

/// The reason why a text is no agreement.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum AgreementError {
    /// The text has no lines.
    #[error("an agreement needs a line such as p95<=10ms")]
    Empty,
    /// A line lacks `<=` or `>=`.
    #[error(
        "'{0}' is no line of an agreement: write for example p95<=10ms, mean<=5ms, inconsistent<=0.5%, gamma_p99<=50ms or throughput>=3k"
    )]
    NoLine(String),
    /// The measure does not exist.
    #[error(
        "'{0}' cannot be measured: the measures are percentiles of latency (p50, p99.9), mean, inconsistent, gamma_p99 and throughput"
    )]
    NoMeasure(String),
    /// The bound has the wrong direction.
    #[error("a bound of {0} must be written with {1}, as in {0}{1}VALUE")]
    Direction(Measure, &'static str),
    /// The bound is no number, or its unit does not fit the measure.
    #[error("'{0}' is no bound of {1}: a bound is a number with a unit, such as 10ms, 0.5% or 3k")]
    NoBound(String, Measure),
    /// The text has more than one `min`.
    #[error("an agreement has 'min' for one measure at most")]
    TwoLeast,
}

impl Measure {
    /// Returns the measure's value in a window, with its confidence interval.
    pub fn of(self, window: &Window) -> Estimate {
        match self {
            Measure::Latency(part) => window.latency(part),
            Measure::Mean => window.mean(),
            Measure::Inconsistent => window.proportion(),
            Measure::Gamma(part) => window.gamma(part),
            Measure::Throughput => window.throughput(),
        }
    }

    /// Returns the measure's value in a window, without the confidence interval.
    pub fn value(self, window: &Window) -> f64 {
        match self {
            Measure::Inconsistent => window.inconsistent(),
            _ => self.of(window).value,
        }
    }

    /// Whether stronger levels improve this measure. Stronger levels make all other measures worse.
    pub fn is_of_consistency(self) -> bool {
        matches!(self, Measure::Inconsistent | Measure::Gamma(_))
    }

    /// Formats a value of the measure in a readable unit.
    pub fn shown(self, value: f64) -> String {
        match self {
            Measure::Inconsistent => format!("{}%", rounded(value * 100.0)),
            Measure::Throughput if value >= 1e3 => format!("{}k", rounded(value / 1e3)),
            Measure::Throughput => rounded(value),
            _ if value > 1e6 => "∞".to_owned(),
            _ if value >= 1.0 => format!("{}s", rounded(value)),
            _ if value >= 1e-3 || value == 0.0 => format!("{}ms", rounded(value * 1e3)),
            _ => format!("{}µs", rounded(value * 1e6)),
        }
    }

    fn bound(self, text: &str) -> Option<f64> {
        let units: &[(&str, f64)] = match self {
            Measure::Inconsistent => &[("%", 0.01), ("", 1.0)],
            Measure::Throughput => &[("k", 1e3), ("M", 1e6), ("/s", 1.0), ("", 1.0)],
            _ => &[("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("s", 1.0)],
        };
        let (number, factor) =
            units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
        let bound = number.trim().parse::<f64>().ok().filter(|it| it.is_finite() && *it >= 0.0)? * factor;
        (self != Measure::Inconsistent || bound <= 1.0).then_some(bound)
    }
}

/// Formats with about three significant digits and no trailing zeros.
fn rounded(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        it if it < 0.1 => 4,
        it if it < 10.0 => 2,
        it if it < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

impl FromStr for Measure {
    type Err = AgreementError;

    fn from_str(text: &str) -> Result<Measure, AgreementError> {
        let part = |percent: &str| {
            let part = percent.parse::<f64>().ok()? / 100.0;
            (part > 0.0 && part < 1.0).then_some(part)
        };
        let measure = match text {
            "mean" => Some(Measure::Mean),
            "inconsistent" => Some(Measure::Inconsistent),
            "throughput" => Some(Measure::Throughput),
            _ => match text.strip_prefix("gamma_p") {
                Some(percent) => part(percent).map(Measure::Gamma),
                None => text.strip_prefix('p').and_then(part).map(Measure::Latency),
            },
        };
        measure.ok_or_else(|| AgreementError::NoMeasure(text.to_owned()))
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Measure::Latency(part) => write!(f, "p{}", (part * 1e5).round() / 1e3),
            Measure::Mean => f.write_str("mean"),
            Measure::Inconsistent => f.write_str("inconsistent"),
            Measure::Gamma(part) => write!(f, "gamma_p{}", (part * 1e5).round() / 1e3),
            Measure::Throughput => f.write_str("throughput"),
        }
    }
}

impl Line {
    /// Compares a window with this line.
    pub fn status(&self, window: &Window) -> LineStatus {
        let Estimate { low, high, .. } = self.measure.of(window);
        let (better, worse) = if self.measure == Measure::Throughput {
            (low >= self.bound, high < self.bound)
        } else {
            (high <= self.bound, low > self.bound)
        };
        match (better, worse) {
            (true, _) => LineStatus::Kept,
            (_, true) => LineStatus::Broken,
            _ => LineStatus::Open,
        }
    }

    /// Whether the line allows no inconsistency at all. No count can prove that, so only the strong levels
    /// keep such a line.
    pub fn allows_none(&self) -> bool {
        self.measure.is_of_consistency() && self.bound == 0.0
    }

    /// Returns the distance of a value from the bound: the logarithm of their ratio. The distance is negative
    /// if the value is beyond the bound.
    pub fn slack(&self, value: f64) -> f64 {
        let ratio = (self.bound.max(1e-9) / value.max(1e-9)).ln();
        if self.measure == Measure::Throughput { -ratio } else { ratio }
    }

    /// Returns how far the measured value is beyond the bound, as a fraction of the bound. Returns 0 if the
    /// value keeps the bound.
    pub fn excess(&self, window: &Window) -> f64 {
        let value = self.measure.value(window);
        let beyond =
            if self.measure == Measure::Throughput { self.bound - value } else { value - self.bound };
        (beyond / self.bound.max(1e-9)).max(0.0)
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.measure == Measure::Throughput { ">=" } else { "<=" };
        write!(f, "{}{sign}{}", self.measure, self.measure.shown(self.bound))
    }
}

impl FromStr for Line {
    type Err = AgreementError;

    fn from_str(text: &str) -> Result<Line, AgreementError> {
        let no_line = || AgreementError::NoLine(text.to_owned());
        let (name, bound) = text.split_once("<=").or_else(|| text.split_once(">=")).ok_or_else(no_line)?;
        let measure: Measure = name.trim().parse()?;
        let sign = if measure == Measure::Throughput { ">=" } else { "<=" };
        if !text.contains(sign) {
            return Err(AgreementError::Direction(measure, sign));
        }
        let bound = bound.trim();
        match measure.bound(bound) {
            Some(bound) => Ok(Line { measure, bound }),
            None => Err(AgreementError::NoBound(bound.to_owned(), measure)),
        }
    }
}

impl FromStr for Agreement {
    type Err = AgreementError;

    fn from_str(text: &str) -> Result<Agreement, AgreementError> {
        let mut agreement = Agreement { lines: Vec::new(), least: None };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.strip_prefix("min ") {
                Some(_) if agreement.least.is_some() => return Err(AgreementError::TwoLeast),
                Some(name) => agreement.least = Some(name.trim().parse()?),
                None => agreement.lines.push(part.parse()?),
            }
        }
        if agreement.lines.is_empty() { Err(AgreementError::Empty) } else { Ok(agreement) }
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.lines.iter().map(Line::to_string).collect();
        f.write_str(&lines.join(","))?;
        self.least.map_or(Ok(()), |measure| write!(f, ",min {measure}"))
    }
}

impl Agreement {
    /// Whether some line allows no inconsistency at all.
    pub fn wants_atomic(&self) -> bool {
        self.lines.iter().any(Line::allows_none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agreements_parse_to_their_printed_form() {
        for text in [
            "p95<=10ms,inconsistent<=0.5%",
            "mean<=5ms",
            "throughput>=3k",
            "gamma_p99<=50ms",
            "inconsistent<=0%,min p99",
            "p99.9<=250µs,throughput>=900",
        ] {
            assert_eq!(text.parse::<Agreement>().map(|it| it.to_string()), Ok(text.to_owned()));
        }
        let spaced: Agreement = " p50 <= 0.01 s , inconsistent<=0.005 , min mean".parse().unwrap();
        assert_eq!(spaced.to_string(), "p50<=10ms,inconsistent<=0.5%,min mean");
        assert!("inconsistent<=0".parse::<Agreement>().unwrap().wants_atomic());
        for (text, why) in [
            ("", "an agreement needs a line such as p95<=10ms"),
            ("min p99", "an agreement needs a line such as p95<=10ms"),
            ("p95", "'p95' is no line of an agreement"),
            ("p0<=1ms", "'p0' cannot be measured"),
            ("speed<=1ms", "'speed' cannot be measured"),
            ("throughput<=3k", "a bound of throughput must be written with >=, as in throughput>=VALUE"),
            ("p95>=3ms", "a bound of p95 must be written with <=, as in p95<=VALUE"),
            ("p95<=3", "'3' is no bound of p95"),
            ("mean<=-1ms", "'-1ms' is no bound of mean"),
            ("inconsistent<=101%", "'101%' is no bound of inconsistent"),
            ("mean<=nanms", "'nanms' is no bound of mean"),
            ("mean<=1ms,min p9,min p8", "an agreement has 'min' for one measure at most"),
        ] {
            let message = text.parse::<Agreement>().unwrap_err().to_string();
            assert!(message.starts_with(why), "{text}: {message}");
        }
    }
}
