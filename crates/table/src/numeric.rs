//! `numeric`: exact decimals that keep their scale, as PostgreSQL 15 computes with them.
//!
//! A [`Numeric`] is an integer of any size and a scale, the number of decimals shown: `1.50` is (150, 2). Sums keep the
//! larger scale, products add them, quotients take the scale that PostgreSQL's `select_div_scale` chooses (at least
//! sixteen significant digits), and rounding is half away from zero. Most numbers are small, so an integer that fits
//! into 64 bits is held in place (sixteen bytes in all) and computed in 128; larger ones are shared big integers.
//!
//! Bounds are PostgreSQL's: 131,072 digits before the point, 16,383 after it. Differs: there is no NaN and no infinity;
//! both are refused as `0A000` where text or a float would make one.

use std::{cmp::Ordering, fmt, sync::Arc};

use num_bigint::BigInt;
use num_traits::{Signed, ToPrimitive, Zero};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{failure::Failure, value::Type};

/// The most decimals a numeric can show.
pub const SCALE_MAX: u16 = 16_383;
/// The most digits before the decimal point.
const WHOLE_DIGITS_MAX: i64 = 131_072;
/// So many more a sum may have on its way: that of 2^64 numbers within the bounds.
const SUM_DIGITS_MORE: i64 = 20;
/// What a quotient is computed to, in significant decimal digits.
const QUOTIENT_DIGITS: i64 = 16;
/// The most decimals a quotient or root is computed to.
const QUOTIENT_SCALE_MAX: i64 = 1000;

/// An exact decimal. `Eq` and `Hash` are identity (1.0 is not 1.00); [`Numeric::order`] compares by value.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Numeric(Repr);

/// `Large` only ever holds what does not fit `Small`, so that identity is structural.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Small { scale: u16, digits: i64 },
    Large { scale: u16, digits: Arc<BigInt> },
}

impl Numeric {
    /// Zero, with no decimals.
    pub const ZERO: Numeric = Numeric(Repr::Small { scale: 0, digits: 0 });

    /// `digits` · 10^-`scale`; the caller answers for the bounds.
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

    /// `digits` · 10^-`scale`, refused (22003) outside PostgreSQL's bounds.
    pub fn from_parts(digits: BigInt, scale: u16) -> Result<Numeric, Failure> {
        if scale > SCALE_MAX || whole_digits_exceed(&digits, scale, WHOLE_DIGITS_MAX) {
            return Err(Failure::out_of_range(Type::Numeric));
        }
        Ok(Numeric::exact(digits, scale))
    }

    /// A sum at its end: refused (22003) outside PostgreSQL's bounds.
    pub(crate) fn bounded(self) -> Result<Numeric, Failure> {
        match &self.0 {
            Repr::Large { scale, digits } if whole_digits_exceed(digits, *scale, WHOLE_DIGITS_MAX) => {
                Err(Failure::out_of_range(Type::Numeric))
            }
            _ => Ok(self),
        }
    }

    /// The integer as a numeric without decimals.
    pub fn from_i128(value: i128) -> Numeric {
        Numeric::exact_i128(value, 0)
    }

    /// What PostgreSQL makes of a float: its first fifteen significant digits. NaN and infinities are refused.
    pub fn from_f64(value: f64) -> Result<Numeric, Failure> {
        if !value.is_finite() {
            return Err(not_finite());
        }
        let printed = format!("{value:.14e}");
        let (mantissa, exponent) = printed.split_once('e').expect("exponent form");
        let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
        Numeric::parse(&format!("{mantissa}e{exponent}"))
    }

    /// Reads PostgreSQL's input syntax: sign, digits, point, exponent, blanks around.
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
        // Checked before anything of that size is built: an exponent can promise far more digits than it writes.
        let significant = digits.trim_start_matches('0').len() as i64;
        if significant > 0 && significant - scale > WHOLE_DIGITS_MAX {
            return Err(Failure::out_of_range(Type::Numeric));
        }
        // Of what exceeds the last decimal only the first digit matters, for rounding.
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

    /// How many decimals are shown.
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

    /// Whether it is zero of any scale.
    pub fn is_zero(&self) -> bool {
        matches!(self.0, Repr::Small { digits: 0, .. })
    }

    /// -1, 0 or 1.
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

    /// The digits at a scale not below their own.
    fn digits_at(&self, scale: u16) -> BigInt {
        let missing = scale - self.scale();
        if missing == 0 { self.digits() } else { self.digits() * power_of_ten(u64::from(missing)) }
    }

    /// The digits at a scale not below their own, if 128 bits are sure to hold them.
    fn small_at(&self, scale: u16) -> Option<i128> {
        match &self.0 {
            Repr::Small { scale: own, digits } if scale - own <= 18 => {
                Some(i128::from(*digits) * 10i128.pow(u32::from(scale - own)))
            }
            _ => None,
        }
    }

    /// By value: 1.0 equals 1.00.
    pub fn order(&self, other: &Numeric) -> Ordering {
        let scale = self.scale().max(other.scale());
        match (self.small_at(scale), other.small_at(scale)) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => self.digits_at(scale).cmp(&other.digits_at(scale)),
        }
    }

    /// The sum, at the larger scale.
    pub fn add(&self, other: &Numeric) -> Result<Numeric, Failure> {
        self.accumulate(other).bounded()
    }

    /// The sum, at the larger scale and of any size: of many numbers in whatever order only their sum is judged.
    pub(crate) fn accumulate(&self, other: &Numeric) -> Numeric {
        let scale = self.scale().max(other.scale());
        match (self.small_at(scale), other.small_at(scale)) {
            (Some(a), Some(b)) => Numeric::exact_i128(a + b, scale),
            _ => Numeric::exact(self.digits_at(scale) + other.digits_at(scale), scale),
        }
    }

    /// The difference, at the larger scale.
    pub fn subtract(&self, other: &Numeric) -> Result<Numeric, Failure> {
        self.add(&other.negate())
    }

    /// The product; scales add up.
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

    /// The quotient, at PostgreSQL's scale; 22012 for a zero divisor.
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

    /// `select_div_scale`: it counts in base 10,000, so weights and first digits are taken in that base.
    fn quotient_scale(&self, other: &Numeric) -> u16 {
        let (weight, first) = self.leading();
        let (other_weight, other_first) = other.leading();
        let quotient_weight = weight - other_weight - i64::from(first <= other_first);
        (QUOTIENT_DIGITS - quotient_weight * 4)
            .max(i64::from(self.scale()))
            .max(i64::from(other.scale()))
            .clamp(0, QUOTIENT_SCALE_MAX) as u16
    }

    /// Weight and value of the first digit in base 10,000; zeros for zero.
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

    /// The remainder, with the dividend's sign, at the larger scale; 22012 for a zero divisor.
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

    /// The square root, at PostgreSQL's scale; 2201F for a negative argument.
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

    /// The square root at a scale; of a number that is not negative.
    pub(crate) fn square_root_at(&self, scale: u16) -> Result<Numeric, Failure> {
        // One more digit than shown, to round by; a root is never exactly half, so truncating before is harmless.
        let shift = 2 * (i64::from(scale) + 1) - i64::from(self.scale());
        let ten = power_of_ten(shift.unsigned_abs());
        let root = if shift >= 0 { self.digits() * ten } else { self.digits() / ten }.sqrt();
        Numeric::from_parts(divide_rounding(&root, &BigInt::from(10)), scale)
    }

    /// The same with the other sign.
    pub fn negate(&self) -> Numeric {
        match &self.0 {
            Repr::Small { scale, digits } => Numeric::exact_i128(-i128::from(*digits), *scale),
            Repr::Large { scale, digits } => Numeric::exact(-(**digits).clone(), *scale),
        }
    }

    /// Without its sign.
    pub fn abs(&self) -> Numeric {
        if self.signum() < 0 { self.negate() } else { self.clone() }
    }

    /// Rounded half away from zero to so many decimals; negative counts round before the point.
    pub fn round(&self, decimals: i32) -> Result<Numeric, Failure> {
        self.rescale(decimals, divide_rounding)
    }

    /// Cut off behind so many decimals; negative counts cut before the point.
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

    /// The greatest integer not above it.
    pub fn floor(&self) -> Result<Numeric, Failure> {
        let whole = self.truncate(0)?;
        if self.order(&whole) == Ordering::Less { whole.subtract(&Numeric::from_i128(1)) } else { Ok(whole) }
    }

    /// The least integer not below it.
    pub fn ceil(&self) -> Result<Numeric, Failure> {
        Ok(self.negate().floor()?.negate())
    }

    /// Rounded half away from zero to 64 bits; `None` if it does not fit.
    pub fn to_i64(&self) -> Option<i64> {
        match &self.0 {
            Repr::Small { scale: 0, digits } => Some(*digits),
            _ => self.round(0).ok()?.digits().to_i64(),
        }
    }

    /// The nearest float; infinite if it is too large.
    pub fn to_f64(&self) -> f64 {
        match &self.0 {
            Repr::Small { scale: 0, digits } => *digits as f64,
            _ => self.to_string().parse().expect("a decimal is a float"),
        }
    }

    /// The value without trailing zeros behind the point: one form for equal values.
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

    /// Bytes of what does not lie in the value itself.
    pub fn outside_bytes(&self) -> usize {
        match &self.0 {
            Repr::Small { .. } => 0,
            Repr::Large { digits, .. } => digits.bits().div_ceil(8) as usize + 6 * size_of::<usize>(),
        }
    }

    /// The digits as little-endian two's complement, as short as possible.
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

/// On the wire: the scale and the digits' bytes. What comes may be a sum on its way.
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

/// An exponent as PostgreSQL reads it, cut to a size that no bound below minds.
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

/// Whether there are more than `bound` digits before the point. Bits tell, except close to it.
fn whole_digits_exceed(digits: &BigInt, scale: u16, bound: i64) -> bool {
    let most = (digits.bits() as f64 * std::f64::consts::LOG10_2) as i64 + 1 - i64::from(scale);
    match most - bound {
        ..=0 => false,
        1 => digits.magnitude().to_string().len() as i64 - i64::from(scale) > bound,
        _ => true,
    }
}

/// Quotient, rounded half away from zero.
fn divide_rounding(number: &BigInt, divisor: &BigInt) -> BigInt {
    let (quotient, rest) = (number / divisor, number % divisor);
    if rest.magnitude() * 2u32 < *divisor.magnitude() {
        return quotient;
    }
    if number.is_negative() == divisor.is_negative() { quotient + 1 } else { quotient - 1 }
}
