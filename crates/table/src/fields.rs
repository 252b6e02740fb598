//! Fields of dates and timestamps: `extract` and `date_trunc`. Zones are UTC.

use crate::{
    calendar::{DAY, UNIX_EPOCH_DAYS, check_timestamp, civil, day_number},
    failure::Failure,
    numeric::Numeric,
    value::{Type, Value},
};

/// A field of a date or timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Microseconds,
    Milliseconds,
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Quarter,
    Year,
    Decade,
    Century,
    Millennium,
    DayOfWeek,
    IsoDayOfWeek,
    DayOfYear,
    IsoYear,
    Julian,
    Epoch,
    Timezone,
    TimezoneHour,
    TimezoneMinute,
}

impl Field {
    /// Reads a field by PostgreSQL's names and their short forms.
    pub(crate) fn parse(name: &str, ty: &str) -> Result<Field, Failure> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "microseconds" | "microsecond" | "us" | "usec" | "usecs" | "useconds" => Field::Microseconds,
            "milliseconds" | "millisecond" | "ms" | "msec" | "msecs" | "mseconds" => Field::Milliseconds,
            "second" | "seconds" | "s" | "sec" | "secs" => Field::Second,
            "minute" | "minutes" | "m" | "min" | "mins" => Field::Minute,
            "hour" | "hours" | "h" | "hr" | "hrs" => Field::Hour,
            "day" | "days" | "d" => Field::Day,
            "week" | "weeks" | "w" => Field::Week,
            "month" | "months" | "mon" | "mons" => Field::Month,
            "quarter" | "qtr" => Field::Quarter,
            "year" | "years" | "y" | "yr" | "yrs" => Field::Year,
            "decade" | "decades" | "dec" | "decs" => Field::Decade,
            "century" | "centuries" | "c" | "cent" => Field::Century,
            "millennium" | "millennia" | "mil" | "mils" => Field::Millennium,
            "dow" => Field::DayOfWeek,
            "isodow" => Field::IsoDayOfWeek,
            "doy" => Field::DayOfYear,
            "isoyear" => Field::IsoYear,
            "julian" | "j" | "jd" => Field::Julian,
            "epoch" => Field::Epoch,
            "timezone" => Field::Timezone,
            "timezone_hour" => Field::TimezoneHour,
            "timezone_minute" => Field::TimezoneMinute,
            _ => return Err(unrecognized(name, ty)),
        })
    }

    /// Whether the field never decreases with time.
    fn is_monotone(self) -> bool {
        use Field::*;
        matches!(self, Year | Decade | Century | Millennium | IsoYear | Julian | Epoch)
    }

    fn is_within_day(self) -> bool {
        use Field::*;
        matches!(self, Microseconds | Milliseconds | Second | Minute | Hour)
    }

    fn is_timezone(self) -> bool {
        matches!(self, Field::Timezone | Field::TimezoneHour | Field::TimezoneMinute)
    }
}

fn unrecognized(name: &str, ty: &str) -> Failure {
    Failure::new("22023", format!("unit \"{}\" not recognized for type {ty}", name.to_lowercase()))
}

fn unsupported(name: &str, ty: Type) -> Failure {
    Failure::new("0A000", format!("unit \"{}\" not supported for type {}", name.to_lowercase(), ty.name()))
}

/// Evaluates `extract(name from source)`.
pub fn extract(name: &str, source: &Value) -> Result<Value, Failure> {
    let (days, micros, infinite) = match *source {
        Value::Date(days) => (i64::from(days), 0, matches!(days, i32::MIN | i32::MAX)),
        Value::Timestamp(micros) | Value::Timestamptz(micros) => {
            (micros.div_euclid(DAY), micros.rem_euclid(DAY), matches!(micros, i64::MIN | i64::MAX))
        }
        Value::Time(micros) => (-UNIX_EPOCH_DAYS, micros, false),
        _ => return Err(Failure::malformed("extract gets a value that is neither a date nor a timestamp")),
    };
    let ty = source.ty().expect("not NULL");
    let field = Field::parse(name, ty.name())?;
    let misfit = match ty {
        Type::Date => field.is_within_day() || field.is_timezone(),
        Type::Timestamp => field.is_timezone() && !infinite,
        Type::Time => !field.is_within_day() && field != Field::Epoch,
        _ => false,
    };
    if misfit {
        return Err(unsupported(name, ty));
    }
    if infinite {
        if field.is_monotone() {
            return Err(Failure::new("0A000", "NaN and infinity are not supported for type numeric"));
        }
        return Ok(Value::Null);
    }
    let (year, month, day) = civil(days);
    let whole = |integer: i64| Numeric::from_i128(integer.into());
    let scaled = |digits: i128, scale: u16| Numeric::from_parts(digits.into(), scale);
    let without_zero = |year: i64| if year > 0 { year } else { year - 1 };
    Ok(Value::Numeric(match field {
        Field::Microseconds => whole(micros % 60_000_000),
        Field::Milliseconds => scaled((micros % 60_000_000).into(), 3)?,
        Field::Second => scaled((micros % 60_000_000).into(), 6)?,
        Field::Minute => whole(micros / 60_000_000 % 60),
        Field::Hour => whole(micros / 3_600_000_000),
        Field::Day => whole(day.into()),
        Field::Week => whole(iso_week(days).1),
        Field::Month => whole(month.into()),
        Field::Quarter => whole((i64::from(month) - 1) / 3 + 1),
        Field::Year => whole(without_zero(year)),
        Field::Decade => whole(year.div_euclid(10)),
        Field::Century => whole(era(year, 100)),
        Field::Millennium => whole(era(year, 1000)),
        Field::DayOfWeek => whole(weekday(days) % 7),
        Field::IsoDayOfWeek => whole(weekday(days)),
        Field::DayOfYear => whole(days - day_number(year, 1, 1) + 1),
        Field::IsoYear => whole(without_zero(iso_week(days).0)),
        Field::Julian if ty == Type::Date => whole(days + JULIAN_2000),
        Field::Julian => whole(days + JULIAN_2000).add(&whole(micros).divide(&whole(DAY))?)?,
        Field::Epoch if ty == Type::Date => whole((days + UNIX_EPOCH_DAYS) * 86_400),
        Field::Epoch => {
            let day_micros = i128::from(days + UNIX_EPOCH_DAYS) * i128::from(DAY);
            scaled(day_micros + i128::from(micros), 6)?
        }
        Field::Timezone | Field::TimezoneHour | Field::TimezoneMinute => Numeric::ZERO,
    }))
}

/// Evaluates `date_trunc(name, source)` of a timestamp.
pub fn truncate(name: &str, source: &Value) -> Result<Value, Failure> {
    let (Value::Timestamp(micros) | Value::Timestamptz(micros)) = *source else {
        return Err(Failure::malformed("date_trunc gets a value that is not a timestamp"));
    };
    if matches!(micros, i64::MIN | i64::MAX) {
        return Ok(source.clone());
    }
    let ty = source.ty().expect("not NULL");
    let field = Field::parse(name, ty.name())?;
    let days = micros.div_euclid(DAY);
    let (year, month, _) = civil(days);
    let unit = |length: i64| i128::from(micros.div_euclid(length)) * i128::from(length);
    let midnight = |days: i64| i128::from(days) * i128::from(DAY);
    let new_year = |year: i64| midnight(day_number(year, 1, 1));
    let truncated = match field {
        Field::Microseconds => micros.into(),
        Field::Milliseconds => unit(1_000),
        Field::Second => unit(1_000_000),
        Field::Minute => unit(60_000_000),
        Field::Hour => unit(3_600_000_000),
        Field::Day => midnight(days),
        Field::Week => midnight(days - (weekday(days) - 1)),
        Field::Month => midnight(day_number(year, month, 1)),
        Field::Quarter => midnight(day_number(year, (month - 1) / 3 * 3 + 1, 1)),
        Field::Year => new_year(year),
        Field::Decade => new_year(year.div_euclid(10) * 10),
        // Centuries and millennia begin with a year that ends in 1, such as 1901 or 2001.
        Field::Century => new_year((year - 1).div_euclid(100) * 100 + 1),
        Field::Millennium => new_year((year - 1).div_euclid(1000) * 1000 + 1),
        _ if field.is_timezone() => return Err(unsupported(name, ty)),
        _ => return Err(unrecognized(name, ty.name())),
    };
    let truncated = check_timestamp(truncated)?;
    Ok(if ty == Type::Timestamp { Value::Timestamp(truncated) } else { Value::Timestamptz(truncated) })
}

/// The Julian day of 2000-01-01.
pub(crate) const JULIAN_2000: i64 = 2_451_545;

/// Returns the day of the week: Monday is 1, Sunday 7.
pub(crate) fn weekday(days: i64) -> i64 {
    // 2000-01-01 was a Saturday.
    (days + 5).rem_euclid(7) + 1
}

/// Returns the ISO 8601 year and week of a day. A week belongs to the year of its Thursday.
pub(crate) fn iso_week(days: i64) -> (i64, i64) {
    let thursday = days + 4 - weekday(days);
    let (year, _, _) = civil(thursday);
    (year, (thursday - day_number(year, 1, 1)) / 7 + 1)
}

/// Returns the century or millennium of a year. The first century or millennium begins with year 1, and the
/// one before year 1 has the number -1.
fn era(year: i64, length: i64) -> i64 {
    let index = (year - 1).div_euclid(length);
    if index >= 0 { index + 1 } else { index }
}
