//! Sums, exact at any size unless they are of floats.

use crate::{
    failure::Failure,
    numeric::Numeric,
    value::{Type, Value},
};

/// A sum.
pub(crate) enum Total {
    /// A sum of integers, with room for 2^64 of them.
    Integer(i128),
    Numeric(Numeric),
    Float(f64),
}

impl Total {
    /// Returns an empty sum.
    pub(crate) fn new(float: bool) -> Total {
        if float { Total::Float(0.0) } else { Total::Integer(0) }
    }

    pub(crate) fn add(&mut self, value: &Value) -> Result<(), Failure> {
        match (&mut *self, value) {
            (Total::Float(sum), Value::Float8(value)) => {
                let finite = sum.is_finite() && value.is_finite();
                *sum += value;
                if finite && !sum.is_finite() {
                    return Err(Failure::out_of_range(Type::Float8));
                }
            }
            (Total::Numeric(sum), Value::Numeric(value)) => *sum = sum.accumulate(value),
            (Total::Integer(sum), Value::Numeric(value)) => {
                *self = Total::Numeric(Numeric::from_i128(*sum).accumulate(value));
            }
            (Total::Integer(sum), _) => {
                let integer = value
                    .as_integer()
                    .ok_or_else(|| Failure::malformed("a sum gets a value that is not a number"))?;
                *sum += i128::from(integer);
            }
            _ => return Err(Failure::malformed("a sum gets values of different types")),
        }
        Ok(())
    }

    /// Returns the sum; fails with 22003 if its type cannot hold it.
    pub(crate) fn finish(self) -> Result<Value, Failure> {
        match self.into_value() {
            Value::Numeric(sum) => sum.bounded().map(Value::Numeric),
            sum => Ok(sum),
        }
    }

    /// Returns the sum so far, unchecked.
    pub(crate) fn into_value(self) -> Value {
        match self {
            Total::Integer(sum) => Value::Numeric(Numeric::from_i128(sum)),
            Total::Numeric(sum) => Value::Numeric(sum),
            Total::Float(sum) => Value::Float8(sum),
        }
    }
}
