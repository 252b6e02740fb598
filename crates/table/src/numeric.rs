//! `numeric`: exact decimals that keep their scale, as PostgreSQL 15 computes with them.
//!
//! A [`Numeric`] is an integer of any size and a scale, the number of decimals shown: `1.50` is (150, 2).
//! Sums have the larger scale, and products the sum of both. Quotients have the scale that PostgreSQL's
//! `select_div_scale` chooses, at least sixteen significant digits. Rounding is half away from zero. Most
//! numbers are small, so an integer that fits 64 bits is stored in place (sixteen bytes in all) and computed
//! in 128 bits; larger ones are shared big integers.
//!
//! The bounds are PostgreSQL's: 131,072 digits before the point, 16,383 after it. Differently from
//! PostgreSQL, NaN and infinity do not exist; text or a float that would yield one is refused as `0A000`.

use std::{cmp::Ordering, fmt, sync::Arc};

use num_bigint::BigInt;
use num_traits::{Signed, ToPrimitive, Zero};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{failure::Failure, types::Type};

/// Maximum number of decimals of a numeric.
pub const SCALE_MAX: u16 = 16_383;
/// Maximum number of digits before the decimal point.
const WHOLE_DIGITS_MAX: i64 = 131_072;
/// The additional digits that an unfinished sum may have: a sum of 2^64 numbers within the bounds needs them.
const SUM_DIGITS_MORE: i64 = 20;
/// The precision of a quotient, in significant decimal digits.
const QUOTIENT_DIGITS: i64 = 16;
/// Maximum number of decimals of a quotient or root.
const QUOTIENT_SCALE_MAX: i64 = 1000;

/// An exact decimal. `Eq` and `Hash` are identity (1.0 is not 1.00); [`Numeric::order`] compares by value.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Numeric(Repr);

/// The representation. `Large` only holds integers that do not fit `Small`, so that structural equality is
/// identity.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Small { scale: u16, digits: i64 },
    Large { scale: u16, digits: Arc<BigInt> },
}

impl Numeric {
    /// Zero, without decimals.
    pub const ZERO: Numeric = Numeric(Repr::Small { scale: 0, digits: 0 });

    /// Returns `digits` · 10^-`scale`. The caller guarantees the bounds.
    fn exact(digits: BigInt, scale: u16) -> Numeric {
        match digits.to_i64() {
            Some(digits) => Numeric(Repr::Small { scale, digits }),
            None => Numeric(Repr::Large { scale, digits: Arc::new(digits) }),
        }
    }

    fn exact_i128(digits: i128, scale: u16) -> Numeric {
        match i64::try_from(digits) {
            Ok(digits) => Numeric(Repr::Small { scale, digits }),
            Err(_) => Numeric(Repr::Large { scale, digits: Arc::new(BigInt::from(digits)) }),
        }
    }

    /// Returns `digits` · 10^-`scale`; fails with 22003 outside PostgreSQL's bounds.
    pub fn from_parts(digits: BigInt, scale: u16) -> Result<Numeric, Failure> {
        if scale > SCALE_MAX || whole_digits_exceed(&digits, scale, WHOLE_DIGITS_MAX) {
            return Err(Failure::out_of_range(Type::Numeric));
        }
        Ok(Numeric::exact(digits, scale))
    }

    /// Checks a finished sum; fails with 22003 outside PostgreSQL's bounds.
    pub(crate) fn bounded(self) -> Result<Numeric, Failure> {
        match &self.0 {
            Repr::Large { scale, digits } if whole_digits_exceed(digits, *scale, WHOLE_DIGITS_MAX) => {
                Err(Failure::out_of_range(Type::Numeric))
            }
            _ => Ok(self),
        }
    }

    /// Returns the integer as a numeric without decimals.
    pub fn from_i128(value: i128) -> Numeric {
        Numeric::exact_i128(value, 0)
    }

    /// Converts a float as PostgreSQL does, to fifteen significant digits. NaN and infinities are refused.
    pub fn from_f64(value: f64) -> Result<Numeric, Failure> {
        Numeric::from_float(value, 14)
    }

    /// Rounds a `real` to six significant digits, as PostgreSQL does.
    pub fn from_f32(value: f32) -> Result<Numeric, Failure> {
        Numeric::from_float(value.into(), 5)
    }

    fn from_float(value: f64, decimals: usize) -> Result<Numeric, Failure> {
        if !value.is_finite() {
            return Err(not_finite());
        }
        let printed = format!("{value:.decimals$e}");
        let (mantissa, exponent) = printed.split_once('e').expect("exponent form");
        let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
        Numeric::parse(&format!("{mantissa}e{exponent}"))
    }

    /// Reads PostgreSQL's input syntax: sign, digits, point, exponent, and blanks around them.
    pub fn parse(text: &str) -> Result<Numeric, Failure> {
        let invalid = || Failure::invalid_text(Type::Numeric, text);
        let trimmed = text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b');
        let unsigned = trimmed.strip_prefix(['-', '+']).unwrap_or(trimmed);
        if ["nan", "inf", "infinity"].iter().any(|word| unsigned.eq_ignore_ascii_case(word)) {
            return Err(not_finite());
        }
        let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
            Some(at) => (&unsigned[..at], parse_exponent(&unsigned[at + 1..]).ok_or_else(invalid)?),
            None => (unsigned, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if !all_digits(whole) || !all_digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
            return Err(invalid());
        }
        let mut digits = format!("{whole}{fraction}");
        let mut scale = fraction.len() as i64 - exponent;
        // The check precedes any large allocation, because an exponent can imply far more digits than the
        // text has.
        let significant = digits.trim_start_matches('0').len() as i64;
        if significant > 0 && significant - scale > WHOLE_DIGITS_MAX {
            return Err(Failure::out_of_range(Type::Numeric));
        }
        // Of the digits behind the last decimal, only the first matters for rounding.
        let excess = scale - i64::from(SCALE_MAX);
        if excess > 0 {
            digits.truncate((digits.len() as i64 + 1 - excess).max(0) as usize);
            scale = i64::from(SCALE_MAX) + 1;
        }
        let mut number = match digits.parse::<i64>() {
            Ok(small) => BigInt::from(small),
            Err(_) if digits.is_empty() => BigInt::zero(),
            Err(_) => digits.parse::<BigInt>().map_err(|_| invalid())?,
        };
        if trimmed.starts_with('-') {
            number = -number;
        }
        if scale < 0 && !number.is_zero() {
            number *= power_of_ten(-scale as u64);
        }
        if excess > 0 {
            number = divide_rounding(&number, &BigInt::from(10));
        }
        Numeric::from_parts(number, scale.clamp(0, i64::from(SCALE_MAX)) as u16)
    }

    /// Returns the number of decimals shown.
    pub fn scale(&self) -> u16 {
        match &self.0 {
            Repr::Small { scale, .. } | Repr::Large { scale, .. } => *scale,
        }
    }

    fn digits(&self) -> BigInt {
        match &self.0 {
            Repr::Small { digits, .. } => BigInt::from(*digits),
            Repr::Large { digits, .. } => (**digits).clone(),
        }
    }

    /// Whether the number is zero, of any scale.
    pub fn is_zero(&self) -> bool {
        matches!(self.0, Repr::Small { digits: 0, .. })
    }

    /// Returns -1, 0 or 1.
    pub fn signum(&self) -> i32 {
        match &self.0 {
            Repr::Small { digits, .. } => digits.signum() as i32,
            Repr::Large { digits, .. } => {
                if digits.is_negative() {
                    -1
                } else {
                    1
                }
            }
        }
    }

    /// Returns the digits at a scale not below their own.
    fn digits_at(&self, scale: u16) -> BigInt {
        let missing = scale - self.scale();
        if missing == 0 { self.digits() } else { self.digits() * power_of_ten(u64::from(missing)) }
    }

    /// Returns the digits at a scale not below their own, if 128 bits certainly hold them.
    fn small_at(&self, scale: u16) -> Option<i128> {
        match &self.0 {
            Repr::Small { scale: own, digits } if scale - own <= 18 => {
                Some(i128::from(*digits) * 10i128.pow(u32::from(scale - own)))
            }
            _ => None,
        }
    }

    /// Compares by value: 1.0 equals 1.00.
    pub fn order(&self, other: &Numeric) -> Ordering {
        let scale = self.scale().max(other.scale());
        match (self.small_at(scale), other.small_at(scale)) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => self.digits_at(scale).cmp(&other.digits_at(scale)),
        }
    }

    /// Returns the sum, at the larger scale; fails with 22003 outside PostgreSQL's bounds.
    pub fn add(&self, other: &Numeric) -> Result<Numeric, Failure> {
        self.accumulate(other).bounded()
    }

    /// Returns the sum, at the larger scale and without a bound. Only a finished sum is checked, so the order
    /// of its numbers does not matter.
    pub(crate) fn accumulate(&self, other: &Numeric) -> Numeric {
        let scale = self.scale().max(other.scale());
        match (self.small_at(scale), other.small_at(scale)) {
            (Some(a), Some(b)) => Numeric::exact_i128(a + b, scale),
            _ => Numeric::exact(self.digits_at(scale) + other.digits_at(scale), scale),
        }
    }

    /// Returns the difference, at the larger scale; fails with 22003 outside PostgreSQL's bounds.
    pub fn subtract(&self, other: &Numeric) -> Result<Numeric, Failure> {
        self.add(&other.negate())
    }

    /// Returns the product, with the sum of both scales; fails with 22003 outside PostgreSQL's bounds.
    pub fn multiply(&self, other: &Numeric) -> Result<Numeric, Failure> {
        let scale = self.scale() + other.scale();
        if let (Repr::Small { digits: a, .. }, Repr::Small { digits: b, .. }) = (&self.0, &other.0)
            && scale <= SCALE_MAX
        {
            return Ok(Numeric::exact_i128(i128::from(*a) * i128::from(*b), scale));
        }
        let product = self.digits() * other.digits();
        if scale > SCALE_MAX {
            let excess = power_of_ten(u64::from(scale - SCALE_MAX));
            return Numeric::from_parts(divide_rounding(&product, &excess), SCALE_MAX);
        }
        Numeric::from_parts(product, scale)
    }

    /// Returns the quotient, at PostgreSQL's scale; fails with 22012 for a zero divisor.
    pub fn divide(&self, other: &Numeric) -> Result<Numeric, Failure> {
        if other.is_zero() {
            return Err(Failure::division_by_zero());
        }
        let scale = self.quotient_scale(other);
        // self / other = (a · 10^shift / b) · 10^-scale
        let shift = i64::from(scale) + i64::from(other.scale()) - i64::from(self.scale());
        if let (Repr::Small { digits: a, .. }, Repr::Small { digits: b, .. }) = (&self.0, &other.0)
            && (0..=18).contains(&shift)
        {
            let (a, b) = (i128::from(*a) * 10i128.pow(shift as u32), i128::from(*b));
            let (quotient, rest) = (a / b, a % b);
            let away = if 2 * rest.abs() >= b.abs() { a.signum() * b.signum() } else { 0 };
            return Ok(Numeric::exact_i128(quotient + away, scale));
        }
        let (mut a, mut b) = (self.digits(), other.digits());
        if shift >= 0 {
            a *= power_of_ten(shift as u64);
        } else {
            b *= power_of_ten(-shift as u64);
        }
        Numeric::from_parts(divide_rounding(&a, &b), scale)
    }

    /// Computes `select_div_scale`. PostgreSQL stores digits in base 10,000, so weights and first digits are
    /// in that base.
    fn quotient_scale(&self, other: &Numeric) -> u16 {
        let (weight, first) = self.leading();
        let (other_weight, other_first) = other.leading();
        let quotient_weight = weight - other_weight - i64::from(first <= other_first);
        (QUOTIENT_DIGITS - quotient_weight * 4)
            .max(i64::from(self.scale()))
            .max(i64::from(other.scale()))
            .clamp(0, QUOTIENT_SCALE_MAX) as u16
    }

    /// Returns the weight and value of the first digit in base 10,000; zeros for zero.
    fn leading(&self) -> (i64, u32) {
        if self.is_zero() {
            return (0, 0);
        }
        let digits = match &self.0 {
            Repr::Small { digits, .. } => digits.unsigned_abs().to_string(),
            Repr::Large { digits, .. } => digits.magnitude().to_string(),
        };
        let exponent = digits.len() as i64 - 1 - i64::from(self.scale());
        let weight = exponent.div_euclid(4);
        let length = (exponent - 4 * weight + 1) as usize;
        let mut first = 0;
        for place in 0..length {
            first = first * 10 + digits.as_bytes().get(place).map_or(0, |digit| u32::from(digit - b'0'));
        }
        (weight, first)
    }

    /// Returns the remainder, with the dividend's sign, at the larger scale; fails with 22012 for a zero
    /// divisor.
    pub fn remainder(&self, other: &Numeric) -> Result<Numeric, Failure> {
        if other.is_zero() {
            return Err(Failure::division_by_zero());
        }
        let scale = self.scale().max(other.scale());
        Ok(match (self.small_at(scale), other.small_at(scale)) {
            (Some(a), Some(b)) => Numeric::exact_i128(a % b, scale),
            _ => Numeric::exact(self.digits_at(scale) % other.digits_at(scale), scale),
        })
    }

    /// Returns the square root, at PostgreSQL's scale; fails with 2201F for a negative argument.
    pub fn square_root(&self) -> Result<Numeric, Failure> {
        if self.signum() < 0 {
            return Err(Failure::new("2201F", "cannot take square root of a negative number"));
        }
        let (weight, _) = self.leading();
        let root_weight = if weight >= 0 { weight * 4 / 2 + 1 } else { 1 - (1 - weight * 4) / 2 };
        let scale =
            (QUOTIENT_DIGITS - root_weight).max(i64::from(self.scale())).clamp(0, QUOTIENT_SCALE_MAX) as u16;
        self.square_root_at(scale)
    }

    /// Returns the square root at a scale. The number must not be negative.
    pub(crate) fn square_root_at(&self, scale: u16) -> Result<Numeric, Failure> {
        // The root is computed with one digit more than shown, for rounding. A root never lies exactly half
        // way, so truncating it before the rounding is harmless.
        let shift = 2 * (i64::from(scale) + 1) - i64::from(self.scale());
        let ten = power_of_ten(shift.unsigned_abs());
        let root = if shift >= 0 { self.digits() * ten } else { self.digits() / ten }.sqrt();
        Numeric::from_parts(divide_rounding(&root, &BigInt::from(10)), scale)
    }

    /// Returns the number with the other sign.
    pub fn negate(&self) -> Numeric {
        match &self.0 {
            Repr::Small { scale, digits } => Numeric::exact_i128(-i128::from(*digits), *scale),
            Repr::Large { scale, digits } => Numeric::exact(-(**digits).clone(), *scale),
        }
    }

    /// Returns the absolute value.
    pub fn abs(&self) -> Numeric {
        if self.signum() < 0 { self.negate() } else { self.clone() }
    }

    /// Rounds half away from zero to `decimals` decimals; negative values round before the point.
    pub fn round(&self, decimals: i32) -> Result<Numeric, Failure> {
        self.rescale(decimals, divide_rounding)
    }

    /// Truncates behind `decimals` decimals; negative values truncate before the point.
    pub fn truncate(&self, decimals: i32) -> Result<Numeric, Failure> {
        self.rescale(decimals, |number, divisor| number / divisor)
    }

    fn rescale(
        &self,
        decimals: i32,
        divide: impl Fn(&BigInt, &BigInt) -> BigInt,
    ) -> Result<Numeric, Failure> {
        let decimals = decimals.clamp(-(WHOLE_DIGITS_MAX as i32), i32::from(SCALE_MAX));
        let scale = i32::from(self.scale());
        if decimals >= scale {
            return Numeric::from_parts(self.digits_at(decimals as u16), decimals as u16);
        }
        let kept = divide(&self.digits(), &power_of_ten((scale - decimals) as u64));
        if decimals >= 0 {
            return Numeric::from_parts(kept, decimals as u16);
        }
        Numeric::from_parts(kept * power_of_ten(-i64::from(decimals) as u64), 0)
    }

    /// Returns the greatest integer not above the number.
    pub fn floor(&self) -> Result<Numeric, Failure> {
        let whole = self.truncate(0)?;
        if self.order(&whole) == Ordering::Less { whole.subtract(&Numeric::from_i128(1)) } else { Ok(whole) }
    }

    /// Returns the least integer not below the number.
    pub fn ceil(&self) -> Result<Numeric, Failure> {
        Ok(self.negate().floor()?.negate())
    }

    /// Rounds half away from zero to 64 bits; `None` if the result does not fit.
    pub fn to_i64(&self) -> Option<i64> {
        match &self.0 {
            Repr::Small { scale: 0, digits } => Some(*digits),
            _ => self.round(0).ok()?.digits().to_i64(),
        }
    }

    /// Returns the nearest float; infinity if the number is too large.
    pub fn to_f64(&self) -> f64 {
        match &self.0 {
            Repr::Small { scale: 0, digits } => *digits as f64,
            _ => self.to_string().parse().expect("a decimal is a float"),
        }
    }

    /// Returns the number without trailing zeros behind the point, so that equal values have one form.
    pub fn normalized(&self) -> Numeric {
        let (mut scale, ten) = (self.scale(), BigInt::from(10));
        if let Repr::Small { digits, .. } = self.0 {
            let mut digits = digits;
            while scale > 0 && digits % 10 == 0 {
                digits /= 10;
                scale -= 1;
            }
            return Numeric(Repr::Small { scale, digits });
        }
        let mut digits = self.digits();
        while scale > 0 && (&digits % &ten).is_zero() {
            digits /= &ten;
            scale -= 1;
        }
        Numeric::exact(digits, scale)
    }

    /// Returns the memory outside of the value itself, in bytes.
    pub fn outside_bytes(&self) -> usize {
        match &self.0 {
            Repr::Small { .. } => 0,
            Repr::Large { digits, .. } => digits.bits().div_ceil(8) as usize + 6 * size_of::<usize>(),
        }
    }

    /// Returns the digits as little-endian two's complement, as short as possible.
    pub fn digit_bytes(&self) -> Vec<u8> {
        self.digits().to_signed_bytes_le()
    }
}

impl fmt::Display for Numeric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scale, digits) = match &self.0 {
            Repr::Small { scale, digits } => (usize::from(*scale), digits.unsigned_abs().to_string()),
            Repr::Large { scale, digits } => (usize::from(*scale), digits.magnitude().to_string()),
        };
        if self.signum() < 0 {
            f.write_str("-")?;
        }
        if scale == 0 {
            return f.write_str(&digits);
        }
        let padded = format!("{digits:0>width$}", width = scale + 1);
        let (whole, fraction) = padded.split_at(padded.len() - scale);
        write!(f, "{whole}.{fraction}")
    }
}

impl fmt::Debug for Numeric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Encodes the scale and the bytes of the digits. A decoded numeric may be an unfinished sum.
impl Serialize for Numeric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.scale(), self.digit_bytes()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Numeric {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Numeric, D::Error> {
        let (scale, bytes) = <(u16, Vec<u8>)>::deserialize(deserializer)?;
        let digits = BigInt::from_signed_bytes_le(&bytes);
        if scale > SCALE_MAX || whole_digits_exceed(&digits, scale, WHOLE_DIGITS_MAX + SUM_DIGITS_MORE) {
            return Err(D::Error::custom(Failure::out_of_range(Type::Numeric)));
        }
        Ok(Numeric::exact(digits, scale))
    }
}

fn not_finite() -> Failure {
    Failure::new("0A000", "NaN and infinity are not supported for type numeric")
}

/// Reads an exponent as PostgreSQL does, limited to a size that cannot overflow later sums.
fn parse_exponent(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let size = digits.parse::<i64>().unwrap_or(i64::MAX).min(1 << 40);
    Some(if negative { -size } else { size })
}

fn power_of_ten(exponent: u64) -> BigInt {
    match u32::try_from(exponent) {
        Ok(small) if small <= 18 => BigInt::from(10i64.pow(small)),
        Ok(exponent) => BigInt::from(10).pow(exponent),
        Err(_) => unreachable!("bounds are checked before powers are taken"),
    }
}

/// Whether there are more than `bound` digits before the point. The number of bits decides, except close to
/// the bound.
fn whole_digits_exceed(digits: &BigInt, scale: u16, bound: i64) -> bool {
    let most = (digits.bits() as f64 * std::f64::consts::LOG10_2) as i64 + 1 - i64::from(scale);
    match most - bound {
        ..=0 => false,
        1 => digits.magnitude().to_string().len() as i64 - i64::from(scale) > bound,
        _ => true,
    }
}

/// Returns the quotient, rounded half away from zero.
fn divide_rounding(number: &BigInt, divisor: &BigInt) -> BigInt {
    let (quotient, rest) = (number / divisor, number % divisor);
    if rest.magnitude() * 2u32 < *divisor.magnitude() {
        return quotient;
    }
    if number.is_negative() == divisor.is_negative() { quotient + 1 } else { quotient - 1 }
}
