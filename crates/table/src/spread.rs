//! Variances and standard deviations.
//!
//! For exact numbers, the sum and the sum of squares are kept, exact at any size, and the result has
//! PostgreSQL's scale. For floats, the sum of squared deviations is updated with each value and combined over
//! ranges, by Youngs and Cramer's recurrence, as in PostgreSQL. So values that are close to each other and
//! far from zero lose no precision.

use crate::{
    failure::Failure,
    group::State,
    numeric::Numeric,
    total::Total,
    value::{Type, Value},
};

/// The sums that a variance is computed from.
pub(crate) struct Spread {
    count: u64,
    sum: Total,
    /// The sum of the squares for exact numbers; the sum of the squared deviations for floats.
    squares: Total,
}

impl Spread {
    /// Creates empty sums.
    pub(crate) fn new(float: bool) -> Spread {
        Spread { count: 0, sum: Total::new(float), squares: Total::new(float) }
    }

    /// Adds a value, which must not be NULL.
    pub(crate) fn add(&mut self, value: &Value) -> Result<(), Failure> {
        if let (Total::Float(sum), Total::Float(squares), Value::Float8(value)) =
            (&mut self.sum, &mut self.squares, value)
        {
            let fits = sum.is_finite() && value.is_finite();
            *sum += value;
            self.count += 1;
            if self.count > 1 {
                let count = self.count as f64;
                let deviation = value * count - *sum;
                *squares += deviation * deviation / (count * (count - 1.0));
            }
            return settle(*sum, squares, fits, value.is_finite());
        }
        let square = match value {
            Value::Numeric(number) => number.multiply(number)?,
            _ => {
                let integer = value.as_integer().ok_or_else(no_number)?;
                Numeric::from_i128(i128::from(integer) * i128::from(integer))
            }
        };
        self.count += 1;
        self.sum.add(value)?;
        self.squares.add(&Value::Numeric(square))
    }

    /// Adds the sums of another replica's rows.
    pub(crate) fn absorb(&mut self, count: u64, sum: &Value, squares: &Value) -> Result<(), Failure> {
        if count == 0 {
            return Ok(());
        }
        if let (Total::Float(mine), Total::Float(spread), Value::Float8(sum), Value::Float8(squares)) =
            (&mut self.sum, &mut self.squares, sum, squares)
        {
            if self.count > 0 {
                let (n, m) = (self.count as f64, count as f64);
                let between = *mine / n - sum / m;
                *spread += squares + n * m * between * between / (n + m);
            } else {
                *spread = *squares;
            }
            let fits = mine.is_finite() && sum.is_finite();
            *mine += sum;
            self.count += count;
            return settle(*mine, spread, fits, true);
        }
        self.count += count;
        self.sum.add(sum)?;
        self.squares.add(squares)
    }

    pub(crate) fn into_state(self) -> State {
        State::Spread { count: self.count, sum: self.sum.into_value(), squares: self.squares.into_value() }
    }

    /// Returns the variance, or its square root, of a sample or of the population; NULL if there are too few
    /// values.
    pub(crate) fn finish(self, sample: bool, root: bool) -> Result<Value, Failure> {
        if self.count <= u64::from(sample) {
            return Ok(Value::Null);
        }
        let degrees = self.count - u64::from(sample);
        match (self.sum.into_value(), self.squares.into_value()) {
            (Value::Float8(_), Value::Float8(squares)) => {
                let variance = squares / degrees as f64;
                Ok(Value::Float8(if root { variance.sqrt() } else { variance }))
            }
            (Value::Numeric(sum), Value::Numeric(squares)) => {
                let number = |count: u64| Numeric::from_i128(count.into());
                let spread = number(self.count).multiply(&squares)?.subtract(&sum.multiply(&sum)?)?;
                if spread.signum() <= 0 {
                    return Ok(Value::Numeric(Numeric::from_i128(0)));
                }
                let variance = spread.divide(&number(self.count).multiply(&number(degrees))?)?;
                let scale = variance.scale();
                Ok(Value::Numeric(if root { variance.square_root_at(scale)? } else { variance }))
            }
            _ => unreachable!("both sums are floats or both are numerics"),
        }
    }
}

/// Checks new sums. An overflow is an error, and an infinite value makes the result NaN.
fn settle(sum: f64, squares: &mut f64, fit: bool, finite: bool) -> Result<(), Failure> {
    if sum.is_finite() && squares.is_finite() {
        return Ok(());
    }
    if fit && finite {
        return Err(Failure::out_of_range(Type::Float8));
    }
    *squares = f64::NAN;
    Ok(())
}

fn no_number() -> Failure {
    Failure::malformed("a variance gets a value that is not a number")
}
