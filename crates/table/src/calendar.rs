//! Civil dates and times, as PostgreSQL counts and writes them.
//!
//! A date is days since 2000-01-01 in the proleptic Gregorian calendar; a timestamp is microseconds since
//! that day's midnight, in UTC when it has a zone. The two ends of each integer stand for `-infinity` and
//! `infinity`. Years before 1 are written `BC`. Text has no year 0, while the arithmetic uses the
//! astronomical 0.
//!
//! Output is in ISO style, with zones as `+00`. Input is ISO 8601 (`2013-01-31 23:59:59.5+02`, with `T` or
//! a blank between), `20130131`, `1/31/2013` (month first), `epoch` or an infinity. Differently from
//! PostgreSQL, month names, two-digit years, named zones other than UTC, and words whose meaning depends on
//! the moment (`now`, `today`) are refused.

use std::fmt::Write as _;

use crate::{failure::Failure, value::Type};

/// Microseconds of a day.
pub const DAY: i64 = 86_400_000_000;
/// Days from 1970-01-01 to 2000-01-01.
pub const UNIX_EPOCH_DAYS: i64 = 10_957;
/// 4714-11-24 BC, PostgreSQL's Julian day 0.
const FIRST_DAY: i64 = -2_451_545;
/// The day after 5874897-12-31.
const END_DAY: i64 = 2_145_031_949;
/// The microsecond after 294276-12-31.
const END_TIMESTAMP: i64 = 9_223_371_331_200_000_000;

/// Returns the year (astronomical), month and day of a day number.
pub fn civil(days: i64) -> (i64, u32, u32) {
    // Days since 0000-03-01, split into 400-year eras of 146,097 days. The year begins in March so that the
    // leap day comes last.
    let shifted = days + UNIX_EPOCH_DAYS + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month as u32, day as u32)
}

/// Returns the day number of a civil date. The caller must have checked the month and the day.
pub fn day_number(year: i64, month: u32, day: u32) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = i64::from((month + 9) % 12);
    let day_of_year = (153 * month_from_march + 2) / 5 + i64::from(day) - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468 - UNIX_EPOCH_DAYS
}

pub(crate) fn month_length(year: i64, month: u32) -> u32 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the day number as a date; fails with 22008 outside PostgreSQL's years.
pub fn check_date(days: i64) -> Result<i32, Failure> {
    if (FIRST_DAY..END_DAY).contains(&days) {
        Ok(days as i32)
    } else {
        Err(Failure::out_of_range(Type::Date))
    }
}

/// Returns the microseconds as a timestamp; fails with 22008 outside PostgreSQL's years.
pub fn check_timestamp(micros: i128) -> Result<i64, Failure> {
    let first = i128::from(FIRST_DAY) * i128::from(DAY);
    if (first..i128::from(END_TIMESTAMP)).contains(&micros) {
        Ok(micros as i64)
    } else {
        Err(Failure::out_of_range(Type::Timestamp))
    }
}

/// Evaluates `make_date`. A negative year is before Christ.
pub fn make_date(year: i32, month: i32, day: i32) -> Result<i32, Failure> {
    let astronomical = if year < 0 { i64::from(year) + 1 } else { i64::from(year) };
    let shown = format!("{astronomical}-{month:02}-{day:02}");
    let wrong = || Failure::new("22008", format!("date field value out of range: {shown}"));
    if year == 0 || !(1..=12).contains(&month) || day < 1 {
        return Err(wrong());
    }
    let (month, day) = (month as u32, day as u32);
    if day > month_length(astronomical, month) {
        return Err(wrong());
    }
    check_date(day_number(astronomical, month, day))
        .map_err(|_| Failure::new("22008", format!("date out of range: {shown}")))
}

/// Returns the ISO text of a date.
pub fn date_text(date: i32) -> String {
    let mut text = String::with_capacity(10);
    match date {
        i32::MIN => text.push_str("-infinity"),
        i32::MAX => text.push_str("infinity"),
        _ => {
            let year = write_date(&mut text, i64::from(date));
            write_era(&mut text, year);
        }
    }
    text
}

/// Returns the ISO text of a timestamp; `zoned` adds `+00`.
pub fn timestamp_text(micros: i64, zoned: bool) -> String {
    match micros {
        i64::MIN => return "-infinity".to_owned(),
        i64::MAX => return "infinity".to_owned(),
        _ => {}
    }
    let mut text = String::with_capacity(32);
    let year = write_date(&mut text, micros.div_euclid(DAY));
    text.push(' ');
    write_time(&mut text, micros.rem_euclid(DAY));
    if zoned {
        text.push_str("+00");
    }
    write_era(&mut text, year);
    text
}

/// Returns the text of a time of day.
pub fn time_text(micros: i64) -> String {
    let mut text = String::with_capacity(15);
    write_time(&mut text, micros);
    text
}

fn write_time(text: &mut String, micros: i64) {
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    write!(text, "{hour:02}:{minute:02}:{second:02}").expect("writing to a string");
    if fraction != 0 {
        let digits = format!("{fraction:06}");
        write!(text, ".{}", digits.trim_end_matches('0')).expect("writing to a string");
    }
}

fn write_date(text: &mut String, days: i64) -> i64 {
    let (year, month, day) = civil(days);
    let shown = if year > 0 { year } else { 1 - year };
    write!(text, "{shown:04}-{month:02}-{day:02}").expect("writing to a string");
    year
}

fn write_era(text: &mut String, year: i64) {
    if year <= 0 {
        text.push_str(" BC");
    }
}

/// Reads a date, and ignores a time of day behind it.
pub fn parse_date(text: &str) -> Result<i32, Failure> {
    match ParsedTime::parse(text, Type::Date)? {
        ParsedTime::Infinity => Ok(i32::MAX),
        ParsedTime::MinusInfinity => Ok(i32::MIN),
        ParsedTime::At { days, .. } => check_date(days).map_err(|_| out_of_range("date out of range", text)),
    }
}

/// Reads a timestamp. Applies the text's zone if `zoned`, and ignores the zone otherwise. Without a zone, the
/// text is in UTC.
pub fn parse_timestamp(text: &str, zoned: bool) -> Result<i64, Failure> {
    let ty = if zoned { Type::Timestamptz } else { Type::Timestamp };
    match ParsedTime::parse(text, ty)? {
        ParsedTime::Infinity => Ok(i64::MAX),
        ParsedTime::MinusInfinity => Ok(i64::MIN),
        ParsedTime::At { days, micros, offset } => {
            let offset = if zoned { offset } else { 0 };
            let micros = i128::from(days) * i128::from(DAY) + i128::from(micros - offset * 1_000_000);
            check_timestamp(micros).map_err(|_| out_of_range("timestamp out of range", text))
        }
    }
}

/// Reads a time of day, `23:59:59.999` or `235959`, and ignores a zone. The time may stand behind a date.
pub fn parse_time(text: &str) -> Result<i64, Failure> {
    let invalid = || Failure::invalid_text(Type::Time, text);
    let trimmed = text.trim_matches(|c: char| c.is_ascii_whitespace());
    let mut scan = FieldScanner { rest: trimmed };
    let time = scan.time().or_else(|| {
        scan.rest = trimmed;
        scan.time_of_digits()
    });
    let Some((hour, minute, micros_of_minute)) = time else {
        return match ParsedTime::parse(text, Type::Time)? {
            ParsedTime::At { micros, .. } if trimmed.contains(':') => Ok(micros),
            _ => Err(invalid()),
        };
    };
    scan.blanks();
    scan.zone().ok_or_else(invalid)?;
    scan.blanks();
    if !scan.rest.is_empty() {
        return Err(invalid());
    }
    let whole_day = hour == 24 && minute == 0 && micros_of_minute == 0;
    if (hour > 23 && !whole_day) || minute > 59 || micros_of_minute > 60_000_000 {
        return Err(out_of_range("date/time field value out of range", text));
    }
    Ok((hour * 60 + minute) * 60_000_000 + micros_of_minute)
}

fn out_of_range(what: &str, text: &str) -> Failure {
    Failure::new("22008", format!("{what}: \"{text}\""))
}

/// The meaning of a text, before its type's range is checked.
enum ParsedTime {
    Infinity,
    MinusInfinity,
    /// The local day, the microseconds within it, and the zone's offset in seconds east of UTC.
    At {
        days: i64,
        micros: i64,
        offset: i64,
    },
}

impl ParsedTime {
    fn parse(text: &str, ty: Type) -> Result<ParsedTime, Failure> {
        let invalid = || Failure::invalid_text(ty, text);
        let field = || out_of_range("date/time field value out of range", text);
        let trimmed = text.trim_matches(|c: char| c.is_ascii_whitespace());
        match trimmed.to_ascii_lowercase().as_str() {
            "infinity" | "+infinity" => return Ok(ParsedTime::Infinity),
            "-infinity" => return Ok(ParsedTime::MinusInfinity),
            "epoch" => return Ok(ParsedTime::At { days: -UNIX_EPOCH_DAYS, micros: 0, offset: 0 }),
            _ => {}
        }
        let mut scan = FieldScanner { rest: trimmed };
        let (mut year, month, day) = scan.date().ok_or_else(invalid)?;
        let (mut micros, mut offset) = (0, 0);
        if scan.skip_separator() {
            if let Some((hour, minute, micros_of_minute)) = scan.time() {
                let whole_day = hour == 24 && minute == 0 && micros_of_minute == 0;
                if (hour > 23 && !whole_day) || minute > 59 || micros_of_minute > 60_000_000 {
                    return Err(field());
                }
                micros = (hour * 60 + minute) * 60_000_000 + micros_of_minute;
                scan.blanks();
            }
            offset = scan.zone().ok_or_else(invalid)?;
            if offset.abs() >= 16 * 3600 {
                return Err(Failure::new(
                    "22009",
                    format!("time zone displacement out of range: \"{text}\""),
                ));
            }
            scan.blanks();
        }
        let before_christ = scan.word("bc");
        if !before_christ {
            scan.word("ad");
        }
        if !scan.rest.is_empty() {
            return Err(invalid());
        }
        if year == 0 || month == 0 || month > 12 || day == 0 {
            return Err(field());
        }
        if before_christ {
            year = 1 - year;
        }
        if day > month_length(year, month) {
            return Err(field());
        }
        Ok(ParsedTime::At { days: day_number(year, month, day), micros, offset })
    }
}

/// The rest of a text, from whose front fields are read.
struct FieldScanner<'a> {
    rest: &'a str,
}

impl FieldScanner<'_> {
    /// Reads a number of `least` to `most` digits.
    fn number(&mut self, least: usize, most: usize) -> Option<i64> {
        let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits < least || digits > most {
            return None;
        }
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        number.parse().ok()
    }

    fn sign(&mut self, sign: char) -> bool {
        let found = self.rest.strip_prefix(sign);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    fn word(&mut self, word: &str) -> bool {
        match self.rest.get(..word.len()) {
            Some(start) if start.eq_ignore_ascii_case(word) => {
                self.rest = &self.rest[word.len()..];
                true
            }
            _ => false,
        }
    }

    fn blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Skips blanks or a `T` in front of a time, and returns whether there was such a separator.
    fn skip_separator(&mut self) -> bool {
        let before = self.rest.len();
        self.blanks();
        if self.rest.len() == before && self.rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit) {
            self.word("t");
        }
        self.rest.len() < before
    }

    /// Reads a date: `2013-01-31`, `2013/01/31`, `20130131` or `1/31/2013`. Returns year, month and day.
    fn date(&mut self) -> Option<(i64, u32, u32)> {
        let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        let first = self.number(1, 9)?;
        let separator = ['-', '/', '.'].into_iter().find(|&separator| self.sign(separator));
        let Some(separator) = separator else {
            return (digits == 8).then_some((
                first / 10_000,
                (first / 100 % 100) as u32,
                (first % 100) as u32,
            ));
        };
        let second = self.number(1, 2)? as u32;
        if !self.sign(separator) {
            return None;
        }
        if digits >= 3 {
            return Some((first, second, self.number(1, 2)? as u32));
        }
        Some((self.number(4, 9)?, first as u32, second))
    }

    /// Reads a time: `23:59` or `23:59:59.999`. Returns the hour, the minute, and the microseconds of the
    /// minute.
    fn time(&mut self) -> Option<(i64, i64, i64)> {
        let hour = self.number(1, 2)?;
        if !self.sign(':') {
            return None;
        }
        let minute = self.number(1, 2)?;
        let mut micros = 0;
        if self.sign(':') {
            micros = self.number(1, 2)? * 1_000_000;
            if self.sign('.') {
                let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
                let (fraction, rest) = self.rest.split_at(digits);
                self.rest = rest;
                let seconds: f64 = format!("0.{fraction}0").parse().ok()?;
                micros += (seconds * 1e6).round_ties_even() as i64;
            }
        }
        Some((hour, minute, micros))
    }

    /// Reads a time of six digits, such as `235959`. Returns what [`Self::time`] returns.
    fn time_of_digits(&mut self) -> Option<(i64, i64, i64)> {
        let number = self.number(6, 6)?;
        Some((number / 10_000, number / 100 % 100, number % 100 * 1_000_000))
    }

    /// Reads a zone: `Z`, `UTC`, `+02`, `-05:30`, `+0530`, or nothing. Returns seconds east of UTC.
    fn zone(&mut self) -> Option<i64> {
        if ["utc", "gmt", "zulu", "z"].iter().any(|name| self.word(name)) {
            return Some(0);
        }
        let east = if self.sign('+') {
            1
        } else if self.sign('-') {
            -1
        } else {
            return Some(0);
        };
        let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        let first = self.number(1, 4)?;
        let mut seconds = if digits > 2 { first / 100 * 3600 + first % 100 * 60 } else { first * 3600 };
        if digits <= 2 && self.sign(':') {
            seconds += self.number(2, 2)? * 60;
            if self.sign(':') {
                seconds += self.number(2, 2)?;
            }
        }
        Some(east * seconds)
    }
}
