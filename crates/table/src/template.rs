//! `to_char` of timestamps: fields replace the patterns of a template, and all other text stays.
//!
//! The patterns are PostgreSQL's. Their case matters where it determines the output: `YYYY`, `Mon`, `HH24`, …
//! with `FM` in front (no padding) and `TH` or `th` behind (an ordinal). Text between double quotes is
//! copied. Zones are UTC.

use crate::{
    calendar::{DAY, civil, day_number},
    fields::{JULIAN_2000, iso_week, weekday},
};

/// The field of a pattern. Where case matters, the first letters of the pattern determine it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    Era { dotted: bool },
    HalfOfDay { dotted: bool },
    Century,
    DayName,
    DayNameShort,
    DayOfYear,
    IsoDayOfYear,
    Day,
    DayOfWeek,
    IsoDayOfWeek,
    Fraction(usize),
    Nothing,
    Hour24,
    Hour12,
    Week,
    IsoWeek,
    Year { digits: usize, iso: bool },
    YearWithComma,
    Julian,
    Minute,
    Month,
    MonthName,
    MonthNameShort,
    MonthRoman,
    Quarter,
    Second,
    SecondOfDay,
    WeekOfMonth,
    Zone,
    ZoneHour,
    ZoneMinute,
    Offset,
}

/// The patterns, in upper case. If one pattern begins with another pattern, the longer one comes first. Every
/// pattern is also recognised in lower case, and the names of days and months also with a capital first
/// letter.
const PATTERNS: &[(&str, Pattern)] = &[
    ("A.D.", Pattern::Era { dotted: true }),
    ("A.M.", Pattern::HalfOfDay { dotted: true }),
    ("AD", Pattern::Era { dotted: false }),
    ("AM", Pattern::HalfOfDay { dotted: false }),
    ("B.C.", Pattern::Era { dotted: true }),
    ("BC", Pattern::Era { dotted: false }),
    ("CC", Pattern::Century),
    ("DAY", Pattern::DayName),
    ("DDD", Pattern::DayOfYear),
    ("DD", Pattern::Day),
    ("DY", Pattern::DayNameShort),
    ("D", Pattern::DayOfWeek),
    ("FF1", Pattern::Fraction(1)),
    ("FF2", Pattern::Fraction(2)),
    ("FF3", Pattern::Fraction(3)),
    ("FF4", Pattern::Fraction(4)),
    ("FF5", Pattern::Fraction(5)),
    ("FF6", Pattern::Fraction(6)),
    ("FX", Pattern::Nothing),
    ("HH24", Pattern::Hour24),
    ("HH12", Pattern::Hour12),
    ("HH", Pattern::Hour12),
    ("IDDD", Pattern::IsoDayOfYear),
    ("ID", Pattern::IsoDayOfWeek),
    ("IW", Pattern::IsoWeek),
    ("IYYY", Pattern::Year { digits: 4, iso: true }),
    ("IYY", Pattern::Year { digits: 3, iso: true }),
    ("IY", Pattern::Year { digits: 2, iso: true }),
    ("I", Pattern::Year { digits: 1, iso: true }),
    ("J", Pattern::Julian),
    ("MI", Pattern::Minute),
    ("MM", Pattern::Month),
    ("MONTH", Pattern::MonthName),
    ("MON", Pattern::MonthNameShort),
    ("MS", Pattern::Fraction(3)),
    ("OF", Pattern::Offset),
    ("P.M.", Pattern::HalfOfDay { dotted: true }),
    ("PM", Pattern::HalfOfDay { dotted: false }),
    ("Q", Pattern::Quarter),
    ("RM", Pattern::MonthRoman),
    ("SSSSS", Pattern::SecondOfDay),
    ("SSSS", Pattern::SecondOfDay),
    ("SS", Pattern::Second),
    ("TZH", Pattern::ZoneHour),
    ("TZM", Pattern::ZoneMinute),
    ("TZ", Pattern::Zone),
    ("US", Pattern::Fraction(6)),
    ("WW", Pattern::Week),
    ("W", Pattern::WeekOfMonth),
    ("Y,YYY", Pattern::YearWithComma),
    ("YYYY", Pattern::Year { digits: 4, iso: false }),
    ("YYY", Pattern::Year { digits: 3, iso: false }),
    ("YY", Pattern::Year { digits: 2, iso: false }),
    ("Y", Pattern::Year { digits: 1, iso: false }),
];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const ROMANS: [&str; 12] = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"];
/// The width in characters to which names are padded.
const NAME_WIDTH: usize = 9;
const ROMAN_WIDTH: usize = 4;

/// Maximum number of bytes of output for one byte of a template. A single letter, such as `I` or `Y`, yields
/// at most the digits of a Julian day or a name.
pub(crate) const GROWTH_MAX: usize = 9;

/// The case of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Upper,
    Capital,
    Lower,
}

impl Case {
    fn write(self, name: &str) -> String {
        match self {
            Case::Upper => name.to_uppercase(),
            Case::Capital => name.to_owned(),
            Case::Lower => name.to_lowercase(),
        }
    }
}

/// Returns the pattern with only its first letter as a capital.
fn capital(pattern: &str) -> String {
    pattern[..1].to_owned() + &pattern[1..].to_lowercase()
}

/// Returns the pattern that a template begins with, its case and its length.
fn pattern(template: &str) -> Option<(Pattern, Case, usize)> {
    PATTERNS.iter().find_map(|&(text, pattern)| {
        let written = template.get(..text.len())?;
        let named = matches!(
            pattern,
            Pattern::DayName | Pattern::DayNameShort | Pattern::MonthName | Pattern::MonthNameShort
        );
        let case = if written == text {
            Case::Upper
        } else if written == text.to_lowercase() {
            Case::Lower
        } else if named && capital(text) == written {
            Case::Capital
        } else {
            return None;
        };
        Some((pattern, case, text.len()))
    })
}

/// Evaluates `to_char` of a finite timestamp, shown with a zone or without.
pub(crate) fn formatted(micros: i64, zoned: bool, template: &str) -> String {
    let moment = TimeFields::new(micros, zoned);
    let mut out = String::new();
    let mut rest = template;
    while let Some(first) = rest.chars().next() {
        let unfilled = ["FM", "fm"].iter().any(|prefix| rest.starts_with(prefix));
        let prefixed = unfilled || ["TM", "tm"].iter().any(|prefix| rest.starts_with(prefix));
        let behind = if prefixed { &rest[2..] } else { rest };
        if let Some((pattern, case, length)) = pattern(behind) {
            rest = &behind[length..];
            let (text, number) = moment.show(pattern, case, unfilled, prefixed);
            out.push_str(&text);
            for (suffix, case) in [("TH", Case::Upper), ("th", Case::Lower), ("SP", Case::Upper)] {
                if let Some(shorter) = rest.strip_prefix(suffix) {
                    rest = shorter;
                    if number && suffix != "SP" {
                        out.push_str(&case.write(ordinal(&text)));
                    }
                    break;
                }
            }
            continue;
        }
        // A prefix without a pattern is dropped, and the character behind it begins no pattern.
        let Some(first) = (if prefixed { behind.chars().next() } else { Some(first) }) else { break };
        rest = &behind[first.len_utf8()..];
        match first {
            '"' => rest = quoted(rest, &mut out),
            '\\' if rest.starts_with('"') => {
                out.push('"');
                rest = &rest[1..];
            }
            other => out.push(other),
        }
    }
    out
}

/// Copies the text before the next quote, and returns the text behind it.
fn quoted<'a>(text: &'a str, out: &mut String) -> &'a str {
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return &text[at + 1..],
            '\\' => out.push(characters.next().map_or('\\', |(_, escaped)| escaped)),
            other => out.push(other),
        }
    }
    ""
}

/// Returns the ordinal suffix of a number.
fn ordinal(number: &str) -> &'static str {
    let mut digits = number.bytes().rev();
    match (digits.next(), digits.next()) {
        (_, Some(b'1')) => "th",
        (Some(b'1'), _) => "st",
        (Some(b'2'), _) => "nd",
        (Some(b'3'), _) => "rd",
        _ => "th",
    }
}

/// The fields of a timestamp.
struct TimeFields {
    days: i64,
    year: i64,
    month: usize,
    day: i64,
    /// The microseconds of the day.
    micros: i64,
    zoned: bool,
}

impl TimeFields {
    fn new(micros: i64, zoned: bool) -> TimeFields {
        let days = micros.div_euclid(DAY);
        let (year, month, day) = civil(days);
        TimeFields {
            days,
            year,
            month: month as usize,
            day: day.into(),
            micros: micros.rem_euclid(DAY),
            zoned,
        }
    }

    /// Returns the text of a pattern, and whether the text is a number that can become an ordinal. Numbers
    /// are padded unless `unfilled`, and names unless `narrow`.
    fn show(&self, pattern: Pattern, case: Case, unfilled: bool, narrow: bool) -> (String, bool) {
        let number = |value: i64, width: usize| {
            let width = if unfilled { 0 } else { width + usize::from(value < 0) };
            (format!("{value:0width$}"), true)
        };
        let name = |name: &str, width: usize| {
            let width = if narrow { 0 } else { width };
            (format!("{:width$}", case.write(name)), false)
        };
        let dotted = |letters: &str, dots: bool| {
            let text: String = if dots {
                letters.chars().flat_map(|letter| [letter, '.']).collect()
            } else {
                letters.into()
            };
            (case.write(&text), false)
        };
        let seconds = self.micros / 1_000_000;
        let hour = seconds / 3600;
        let weekday = weekday(self.days);
        let (iso_year, iso_week) = iso_week(self.days);
        let day_of_year = self.days - day_number(self.year, 1, 1) + 1;
        match pattern {
            Pattern::Era { dotted: dots } => dotted(if self.year <= 0 { "BC" } else { "AD" }, dots),
            Pattern::HalfOfDay { dotted: dots } => dotted(if hour >= 12 { "PM" } else { "AM" }, dots),
            Pattern::Century => {
                let year = self.year;
                number(if year > 0 { (year - 1) / 100 + 1 } else { year / 100 - 1 }, 2)
            }
            Pattern::DayName => name(DAYS[weekday as usize - 1], NAME_WIDTH),
            Pattern::DayNameShort => name(&DAYS[weekday as usize - 1][..3], 0),
            Pattern::DayOfYear => number(day_of_year, 3),
            Pattern::IsoDayOfYear => number((iso_week - 1) * 7 + weekday, 3),
            Pattern::Day => number(self.day, 2),
            Pattern::DayOfWeek => number(weekday % 7 + 1, 0),
            Pattern::IsoDayOfWeek => number(weekday, 0),
            Pattern::Fraction(digits) => {
                let fraction = format!("{:06}", self.micros % 1_000_000);
                (fraction[..digits].to_owned(), true)
            }
            Pattern::Nothing => (String::new(), false),
            Pattern::Hour24 => number(hour, 2),
            Pattern::Hour12 => number(if hour % 12 == 0 { 12 } else { hour % 12 }, 2),
            Pattern::Week => number((day_of_year - 1) / 7 + 1, 2),
            Pattern::IsoWeek => number(iso_week, 2),
            Pattern::Year { digits, iso } => {
                let year = common_year(if iso { iso_year } else { self.year });
                match digits {
                    4 => number(year, 4),
                    digits => number(year % 10_i64.pow(digits as u32), digits),
                }
            }
            Pattern::YearWithComma => {
                let year = common_year(self.year);
                (format!("{},{:03}", year / 1000, year % 1000), true)
            }
            Pattern::Julian => number(self.days + JULIAN_2000, 0),
            Pattern::Minute => number(seconds / 60 % 60, 2),
            Pattern::Month => number(self.month as i64, 2),
            Pattern::MonthName => name(MONTHS[self.month - 1], NAME_WIDTH),
            Pattern::MonthNameShort => name(&MONTHS[self.month - 1][..3], 0),
            Pattern::MonthRoman => {
                let width = if unfilled { 0 } else { ROMAN_WIDTH };
                (format!("{:width$}", case.write(ROMANS[self.month - 1])), false)
            }
            Pattern::Quarter => number((self.month as i64 - 1) / 3 + 1, 0),
            Pattern::Second => number(seconds % 60, 2),
            Pattern::SecondOfDay => number(seconds, 0),
            Pattern::WeekOfMonth => number((self.day - 1) / 7 + 1, 0),
            Pattern::Zone => (if self.zoned { case.write("UTC") } else { String::new() }, false),
            Pattern::Offset if unfilled => ("+0".to_owned(), false),
            Pattern::ZoneHour | Pattern::Offset => ("+00".to_owned(), false),
            Pattern::ZoneMinute => ("00".to_owned(), false),
        }
    }
}

/// Returns the year as people count: there is no year 0, and the years before 1 count backwards.
fn common_year(year: i64) -> i64 {
    if year > 0 { year } else { 1 - year }
}
