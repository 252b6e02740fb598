//! Options and arguments that limit the life of a value.

use std::time::Duration;

use quorate::maps::strategy::keyspace::Life;

use super::{
    parse::number,
    refusal::{NO_NUMBER, SYNTAX, invalid_expiry},
};

/// An option that limits the life of a value, with the digits of its number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Expiry<'a> {
    Kept,
    Persist,
    After(Unit, &'a [u8]),
    At(Unit, &'a [u8]),
}

/// Parses the option `word` into `chosen`. Returns the number of strings that belong to the option after its
/// word. If the same option is given twice, the last one counts.
pub(super) fn option<'a>(
    chosen: &mut Option<Expiry<'a>>,
    word: &str,
    digits: Option<&'a [u8]>,
) -> Result<usize, String> {
    let option = Expiry::named(word, digits).ok_or(SYNTAX)?;
    if chosen.is_some_and(|before| !before.is_like(option)) {
        return Err(SYNTAX.to_owned());
    }
    *chosen = Some(option);
    Ok(match option {
        Expiry::Kept | Expiry::Persist => 0,
        Expiry::After(..) | Expiry::At(..) => 1,
    })
}

impl<'a> Expiry<'a> {
    /// Returns the option of this name. `None` if no option has this name, or if its number is missing.
    fn named(word: &str, digits: Option<&'a [u8]>) -> Option<Expiry<'a>> {
        Some(match word {
            "KEEPTTL" => Expiry::Kept,
            "PERSIST" => Expiry::Persist,
            "EX" => Expiry::After(Unit::Seconds, digits?),
            "PX" => Expiry::After(Unit::Millis, digits?),
            "EXAT" => Expiry::At(Unit::Seconds, digits?),
            "PXAT" => Expiry::At(Unit::Millis, digits?),
            _ => return None,
        })
    }

    /// Whether `self` and `other` are the same option, with the same or another number.
    fn is_like(self, other: Expiry<'_>) -> bool {
        match (self, other) {
            (Expiry::Kept, Expiry::Kept) | (Expiry::Persist, Expiry::Persist) => true,
            (Expiry::After(one, _), Expiry::After(two, _)) | (Expiry::At(one, _), Expiry::At(two, _)) => {
                one == two
            }
            _ => false,
        }
    }

    pub(super) fn life(self, name: &[u8]) -> Result<Life, String> {
        match self {
            Expiry::Kept => Ok(Life::Kept),
            Expiry::Persist => Ok(Life::Unlimited),
            Expiry::After(unit, digits) => life(name, Some(digits), unit),
            Expiry::At(unit, digits) => {
                if number(digits).ok_or(NO_NUMBER)? <= 0 {
                    return Err(invalid_expiry(name));
                }
                end(name, Some(digits), unit, false)
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Millis,
}

impl Unit {
    fn millis(self) -> u64 {
        match self {
            Unit::Seconds => 1_000,
            Unit::Millis => 1,
        }
    }
}

/// Parses the length of a value's life: a positive time from now on.
pub(super) fn life(name: &[u8], digits: Option<&[u8]>, unit: Unit) -> Result<Life, String> {
    let count = digits.and_then(number).ok_or(NO_NUMBER)?;
    let count = u64::try_from(count).ok().filter(|count| *count > 0);
    // A longer life is refused, because it could overflow when it is added to the wall clock.
    let millis = count.and_then(|count| count.checked_mul(unit.millis()));
    let millis = millis.filter(|millis| *millis < LIFETIME_MILLIS_MAX).ok_or_else(|| invalid_expiry(name))?;
    Ok(Life::For(Duration::from_millis(millis)))
}

/// A hundred years, in milliseconds.
const LIFETIME_MILLIS_MAX: u64 = 100 * 366 * 24 * 3_600 * 1_000;

/// Parses the end of a value's life: a time from now on, or a time on the wall clock. An end in the past
/// deletes the key at once.
pub(super) fn end(name: &[u8], digits: Option<&[u8]>, unit: Unit, from_now: bool) -> Result<Life, String> {
    let count = digits.and_then(number).ok_or(NO_NUMBER)?;
    // The milliseconds must fit in 64 bits, even for times in the past.
    let in_millis = count.checked_mul(unit.millis() as i64);
    let in_millis = in_millis.ok_or_else(|| invalid_expiry(name))?;
    let Ok(span) = u64::try_from(in_millis) else { return Ok(Life::Until(0)) };
    if span >= MILLIS_MAX {
        return Err(invalid_expiry(name));
    }
    let span = Duration::from_millis(span);
    let nanos = u64::try_from(span.as_nanos()).map_err(|_| invalid_expiry(name))?;
    Ok(if !from_now {
        Life::Until(nanos)
    } else if count == 0 {
        Life::Until(0)
    } else {
        Life::For(span)
    })
}

/// Upper bound of an instant or a duration, in milliseconds, so that sums in nanoseconds fit in 64 bits.
const MILLIS_MAX: u64 = u64::MAX / 2_000_000;
