//! Intervals: months, days and microseconds, which PostgreSQL keeps apart because months and days differ in
//! length.
//!
//! No column holds an interval. An expression over intervals is bound as three expressions, one for each
//! part, and the functions here combine the parts with timestamps or text. Adding an interval adds its months
//! first (a day beyond the month's end becomes its last day), then its days, then the time.

use std::fmt::Write as _;

use crate::{
    calendar::{DAY, check_timestamp, civil, day_number, month_length},
    failure::Failure,
    fields::Field,
    numeric::Numeric,
};

/// The parts of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// The months, years included.
    pub months: i32,
    /// The days, weeks included.
    pub days: i32,
    /// The time, in microseconds.
    pub micros: i64,
}

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

fn out_of_range() -> Failure {
    Failure::new("22008", "interval out of range")
}

impl Interval {
    /// Reads PostgreSQL's output, and most forms that people write: `1 day 02:03:04.5`, `90 minutes`, `1.5
    /// hours ago`, `1-2`, `P1Y2M3DT4H5M6S`. Fails with 22007 for anything else.
    pub fn parse(text: &str) -> Result<Interval, Failure> {
        let invalid = || Failure::new("22007", format!("invalid input syntax for type interval: \"{text}\""));
        let trimmed = text.trim();
        if let Some(designators) = trimmed.strip_prefix(['P', 'p']) {
            return iso(designators).ok_or_else(invalid)?;
        }
        let mut sum = IntervalSum::default();
        let mut words = trimmed.split([' ', '\t', '\n', ',']).filter(|word| !word.is_empty()).peekable();
        if words.next_if_eq(&"@").is_none() && words.peek().is_none() {
            return Err(invalid());
        }
        while let Some(word) = words.next() {
            if word.eq_ignore_ascii_case("ago") && words.peek().is_none() {
                return sum.negated().interval();
            }
            let unsigned = word.trim_start_matches(['+', '-']);
            let split = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
            let (digits, rest) = word.split_at(word.len() - unsigned.len() + split);
            if rest.starts_with(':') {
                sum.add_clock(word).ok_or_else(invalid)?;
            } else if let Some(months) = rest.strip_prefix('-') {
                let negative = digits.starts_with('-');
                let years: i64 = digits.trim_start_matches(['+', '-']).parse().map_err(|_| invalid())?;
                let months: i64 = months.parse().map_err(|_| invalid())?;
                let months = years.checked_mul(12).and_then(|m| m.checked_add(months)).ok_or_else(invalid)?;
                sum.months += i128::from(if negative { -months } else { months });
            } else {
                let unit = if !rest.is_empty() {
                    rest
                } else {
                    match words.peek() {
                        // A number in front of a time counts days.
                        Some(next) if next.contains(':') => "day",
                        Some(next) if next.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                            words.next().expect("it was seen")
                        }
                        _ => "second",
                    }
                };
                sum.add(digits, unit).ok_or_else(invalid)?;
            }
        }
        sum.interval()
    }

    /// Returns the text in PostgreSQL's default style: `1 year 2 mons -3 days +04:05:06.7`.
    pub fn text(self) -> String {
        let mut text = String::new();
        let mut after_negative = false;
        for (value, unit) in [(self.months / 12, "year"), (self.months % 12, "mon"), (self.days, "day")] {
            if value != 0 {
                let space = if text.is_empty() { "" } else { " " };
                let sign = if after_negative && value > 0 { "+" } else { "" };
                let plural = if value == 1 { "" } else { "s" };
                write!(text, "{space}{sign}{value} {unit}{plural}").expect("writing to a string");
                after_negative = value < 0;
            }
        }
        if text.is_empty() || self.micros != 0 {
            let space = if text.is_empty() { "" } else { " " };
            let sign = match self.micros < 0 {
                true => "-",
                false if after_negative => "+",
                false => "",
            };
            let micros = self.micros.unsigned_abs();
            let (seconds, fraction) = (micros / SECOND as u64, micros % SECOND as u64);
            let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
            write!(text, "{space}{sign}{hour:02}:{minute:02}:{second:02}").expect("writing to a string");
            if fraction != 0 {
                let digits = format!("{fraction:06}");
                write!(text, ".{}", digits.trim_end_matches('0')).expect("writing to a string");
            }
        }
        text
    }

    /// Adds the interval to a timestamp; fails with 22008 if the result is out of range.
    pub fn after(self, timestamp: i64) -> Result<i64, Failure> {
        if matches!(timestamp, i64::MIN | i64::MAX) {
            return Ok(timestamp);
        }
        let (mut days, time) = (timestamp.div_euclid(DAY), timestamp.rem_euclid(DAY));
        if self.months != 0 {
            let (year, month, day) = civil(days);
            let months = year * 12 + i64::from(month) - 1 + i64::from(self.months);
            let (year, month) = (months.div_euclid(12), months.rem_euclid(12) as u32 + 1);
            days = day_number(year, month, day.min(month_length(year, month)));
        }
        let days = i128::from(days) + i128::from(self.days);
        check_timestamp(days * i128::from(DAY) + i128::from(time) + i128::from(self.micros))
    }

    /// Evaluates `extract(name from interval)`.
    pub fn extract(self, name: &str) -> Result<Numeric, Failure> {
        let whole = |integer: i64| Numeric::from_i128(integer.into());
        let scaled = |digits: i128, scale: u16| Numeric::from_parts(digits.into(), scale);
        let (years, months) = (i64::from(self.months / 12), i64::from(self.months % 12));
        Ok(match Field::parse(name, "interval")? {
            Field::Microseconds => whole(self.micros % MINUTE),
            Field::Milliseconds => scaled((self.micros % MINUTE).into(), 3)?,
            Field::Second => scaled((self.micros % MINUTE).into(), 6)?,
            Field::Minute => whole(self.micros / MINUTE % 60),
            Field::Hour => whole(self.micros / HOUR),
            Field::Day => whole(self.days.into()),
            Field::Month => whole(months),
            Field::Quarter => whole(months / 3 + 1),
            Field::Year => whole(years),
            Field::Decade => whole(years / 10),
            Field::Century => whole(years / 100),
            Field::Millennium => whole(years / 1000),
            Field::Epoch => {
                // A year counts 365.25 days, a month 30.
                let seconds = i128::from(years) * 31_557_600
                    + (i128::from(months) * 30 + i128::from(self.days)) * 86_400;
                scaled(seconds * i128::from(SECOND) + i128::from(self.micros), 6)?
            }
            _ => {
                let message = format!("unit \"{}\" not supported for type interval", name.to_lowercase());
                return Err(Failure::new("0A000", message));
            }
        })
    }

    /// Multiplies the interval. The fraction of a month becomes days, 30 to the month, and the fraction of a
    /// day becomes time.
    pub fn times(self, factor: f64) -> Result<Interval, Failure> {
        // The result has a precision of microseconds.
        let rounded = |days: f64| (days * 1e6).round_ties_even() / 1e6;
        let part = |value: f64| {
            let whole = value.trunc();
            let fits = whole >= f64::from(i32::MIN) && whole <= f64::from(i32::MAX);
            if fits { Ok(whole as i32) } else { Err(out_of_range()) }
        };
        let months = f64::from(self.months) * factor;
        let days = f64::from(self.days) * factor;
        let (whole_months, mut whole_days) = (part(months)?, part(days)?);
        let month_rest = rounded((months - f64::from(whole_months)) * 30.0);
        let mut seconds =
            rounded((days - f64::from(whole_days) + month_rest - month_rest.trunc()) * 86_400.0);
        if seconds.abs() >= 86_400.0 {
            whole_days = whole_days.checked_add((seconds / 86_400.0) as i32).ok_or_else(out_of_range)?;
            seconds -= (seconds / 86_400.0).trunc() * 86_400.0;
        }
        let whole_days = whole_days.checked_add(part(month_rest)?).ok_or_else(out_of_range)?;
        let micros = (self.micros as f64 * factor + seconds * 1e6).round_ties_even();
        if !(micros >= i64::MIN as f64 && micros < i64::MAX as f64) {
            return Err(out_of_range());
        }
        Ok(Interval { months: whole_months, days: whole_days, micros: micros as i64 })
    }
}

/// Returns the time between two timestamps, in microseconds.
pub fn elapsed(from: i64, to: i64) -> Result<i64, Failure> {
    if matches!(from, i64::MIN | i64::MAX) || matches!(to, i64::MIN | i64::MAX) {
        return Err(Failure::new("22008", "cannot subtract infinite timestamps"));
    }
    to.checked_sub(from).ok_or_else(out_of_range)
}

/// The sum of the parts read so far.
#[derive(Default)]
struct IntervalSum {
    months: i128,
    days: i128,
    micros: i128,
}

impl IntervalSum {
    /// Adds a number of some unit, with an optional sign and fraction.
    fn add(&mut self, number: &str, unit: &str) -> Option<()> {
        let negative = number.starts_with('-');
        let digits = number.trim_start_matches(['+', '-']);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if (whole.is_empty() && fraction.is_empty()) || digits.len() + 1 < number.len() {
            return None;
        }
        let mut whole: i128 = if whole.is_empty() { 0 } else { whole.parse::<i64>().ok()?.into() };
        let mut fraction: f64 =
            if fraction.is_empty() { 0.0 } else { format!("0.{fraction}").parse().ok()? };
        if negative {
            (whole, fraction) = (-whole, -fraction);
        }
        let unit = unit.to_ascii_lowercase();
        match Field::parse(&unit, "interval").ok()? {
            Field::Microseconds => self.micros += whole + fraction.round_ties_even() as i128,
            Field::Milliseconds => self.time(whole, fraction, 1_000),
            Field::Second => self.time(whole, fraction, SECOND),
            Field::Minute => self.time(whole, fraction, MINUTE),
            Field::Hour => self.time(whole, fraction, HOUR),
            Field::Day => self.days_of(whole, fraction, 1),
            Field::Week => self.days_of(whole, fraction, 7),
            Field::Month => {
                self.months += whole;
                self.days_of(0, fraction, 30);
            }
            field => {
                let years = match field {
                    Field::Year => 1,
                    Field::Decade => 10,
                    Field::Century => 100,
                    Field::Millennium => 1000,
                    _ => return None,
                };
                self.months +=
                    whole * 12 * years + (fraction * 12.0 * years as f64).round_ties_even() as i128;
            }
        }
        Some(())
    }

    fn time(&mut self, whole: i128, fraction: f64, unit: i64) {
        self.micros += whole * i128::from(unit) + (fraction * unit as f64).round_ties_even() as i128;
    }

    /// Adds days; the fraction of a day becomes time.
    fn days_of(&mut self, whole: i128, fraction: f64, unit: i128) {
        let days = fraction * unit as f64;
        self.days += whole * unit + days.trunc() as i128;
        self.time(0, days - days.trunc(), DAY);
    }

    /// Adds `hh:mm` or `hh:mm:ss.ffffff`, with an optional sign for all of it.
    fn add_clock(&mut self, word: &str) -> Option<()> {
        let negative = word.starts_with('-');
        let parts: Vec<&str> = word.strip_prefix(['+', '-']).unwrap_or(word).split(':').collect();
        let (hour, minute, second) = match parts[..] {
            [hour, minute] => (hour, minute, "0"),
            [hour, minute, second] => (hour, minute, second),
            _ => return None,
        };
        let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let (whole, fraction) = second.split_once('.').unwrap_or((second, "0"));
        if ![hour, minute, whole, fraction].into_iter().all(all_digits) {
            return None;
        }
        let (minute, second): (i128, i128) = (minute.parse().ok()?, whole.parse().ok()?);
        if minute > 59 || second > 60 {
            return None;
        }
        let hour: i128 = hour.parse::<i64>().ok()?.into();
        let mut clock = IntervalSum::default();
        clock.time(hour * 3600 + minute * 60 + second, format!("0.{fraction}").parse().ok()?, SECOND);
        self.micros += if negative { -clock.micros } else { clock.micros };
        Some(())
    }

    fn negated(self) -> IntervalSum {
        IntervalSum { months: -self.months, days: -self.days, micros: -self.micros }
    }

    fn interval(self) -> Result<Interval, Failure> {
        let beyond = || Failure::new("22015", "interval field value out of range");
        Ok(Interval {
            months: self.months.try_into().map_err(|_| beyond())?,
            days: self.days.try_into().map_err(|_| beyond())?,
            micros: self.micros.try_into().map_err(|_| beyond())?,
        })
    }
}

/// Reads ISO 8601 with designators, behind the P.
fn iso(text: &str) -> Option<Result<Interval, Failure>> {
    let mut sum = IntervalSum::default();
    let mut is_time = false;
    let mut rest = text;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        if let Some(time) = rest.strip_prefix(['T', 't']) {
            if is_time || time.is_empty() {
                return None;
            }
            (is_time, rest) = (true, time);
            continue;
        }
        let end = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let (number, unit) = rest.split_at(end);
        let unit_name = match (unit.as_bytes()[0].to_ascii_uppercase(), is_time) {
            (b'Y', false) => "year",
            (b'M', false) => "month",
            (b'W', false) => "week",
            (b'D', false) => "day",
            (b'H', true) => "hour",
            (b'M', true) => "minute",
            (b'S', true) => "second",
            _ => return None,
        };
        sum.add(number, unit_name)?;
        rest = &unit[1..];
    }
    Some(sum.interval())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each text is read as an interval and written as PostgreSQL 15 writes it.
    #[test]
    fn intervals_are_read_and_written_as_postgresql_does() {
        for (text, printed) in [
            ("1 hour", "01:00:00"),
            ("90 minutes", "01:30:00"),
            ("1.5 hours", "01:30:00"),
            ("1 day 02:03:04.5", "1 day 02:03:04.5"),
            ("1 02:03:04", "1 day 02:03:04"),
            ("-1 day +02:00", "-1 days +02:00:00"),
            ("1 year 2 mons -3 days +04:05:06.7", "1 year 2 mons -3 days +04:05:06.7"),
            ("2 weeks", "14 days"),
            ("1.5 months", "1 mon 15 days"),
            ("1.5 years", "1 year 6 mons"),
            ("1-2", "1 year 2 mons"),
            ("-1-2", "-1 years -2 mons"),
            ("5", "00:00:05"),
            ("0", "00:00:00"),
            ("1 day ago", "-1 days"),
            ("P1Y2M3DT4H5M6.5S", "1 year 2 mons 3 days 04:05:06.5"),
            ("PT36H", "36:00:00"),
            ("5m", "00:05:00"),
            ("@ 1 minute", "00:01:00"),
            ("1 decade 1 century", "110 years"),
            ("0.1 day", "02:24:00"),
            ("-0.000001 s", "-00:00:00.000001"),
            ("1 month -1 day", "1 mon -1 days"),
            ("-1 month 1 day", "-1 mons +1 day"),
            ("0 years 0 mons 0 days 1 hours 0 mins 0.0 secs", "01:00:00"),
            ("1 day, 2:00:00", "1 day 02:00:00"),
        ] {
            assert_eq!(Interval::parse(text).map(Interval::text).as_deref(), Ok(printed), "{text}");
        }
        for text in
            ["", "one hour", "1 fortnight", "1:2:3:4", "P", "PT", "P1H", "1 hour hour", "--1 s", "ago 1"]
        {
            assert_eq!(Interval::parse(text).unwrap_err().sqlstate, "22007", "{text}");
        }
        assert_eq!(Interval::parse("3000000000 days").unwrap_err().sqlstate, "22015");
    }

    #[test]
    fn adding_months_stays_within_the_month() {
        let day = |year, month, day| day_number(year, month, day) * DAY;
        let month = Interval { months: 1, ..Interval::default() };
        assert_eq!(month.after(day(2013, 1, 31)), Ok(day(2013, 2, 28)));
        assert_eq!(month.after(day(2012, 12, 31)), Ok(day(2013, 1, 31)));
        let back = Interval { months: -12, days: 1, micros: -1 };
        assert_eq!(back.after(day(2012, 2, 29)), Ok(day(2011, 3, 1) - 1));
        assert!(Interval { days: i32::MAX, ..month }.after(0).is_err());
    }

    #[test]
    fn multiples_of_intervals_are_computed_as_in_postgresql() {
        let times = |text, factor| Interval::parse(text).unwrap().times(factor).unwrap().text();
        assert_eq!(times("1 month", 1.5), "1 mon 15 days");
        assert_eq!(times("1 day", 0.1), "02:24:00");
        assert_eq!(times("1 hour", 2.5), "02:30:00");
        assert_eq!(times("1 mon 1 day 01:00", -1.5), "-1 mons -16 days -13:30:00");
    }
}
