//! Modifiers: the part of a declaration that restricts values beyond their type, as in `varchar(n)` or
//! `numeric(p, s)`.
//!
//! A statement fits its values before they are stored, by [`Function::Fit`](crate::expr::Function::Fit), so
//! rows hold only values that fit.

use serde::{Deserialize, Serialize};

use crate::{failure::Failure, numeric::Numeric, value::Value};

/// A type's modifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Modifier {
    /// `varchar`, with the maximum number of characters of a text.
    Varchar(Option<u32>),
    /// `numeric(precision, scale)`: the number of digits in all, and behind the point.
    Digits {
        /// The number of digits, from 1 to 1000.
        precision: u16,
        /// The number of decimals, from 0 to the precision.
        scale: u16,
    },
    /// `character`, with the number of characters of a text, which is padded with blanks.
    Char(u32),
}

impl Modifier {
    /// Returns the value as it is stored: rounded to the scale, without trailing spaces beyond the length, or
    /// padded to the length.
    /// Fails with 22001 if a text is too long, and with 22003 if a number is too large.
    pub fn fit(self, value: Value) -> Result<Value, Failure> {
        match (self, value) {
            (Modifier::Varchar(Some(most)), Value::Text(text)) => {
                let Some((end, _)) = text.char_indices().nth(most as usize) else {
                    return Ok(Value::Text(text));
                };
                if text[end..].bytes().all(|byte| byte == b' ') {
                    return Ok(Value::text_of(&text[..end]));
                }
                Err(Failure::new("22001", format!("value too long for type character varying({most})")))
            }
            (Modifier::Char(length), Value::Bpchar(text)) => match text.char_indices().nth(length as usize) {
                None => {
                    let missing = length as usize - text.chars().count();
                    if missing == 0 {
                        return Ok(Value::Bpchar(text));
                    }
                    Ok(Value::Bpchar((text.to_string() + &" ".repeat(missing)).into()))
                }
                Some((end, _)) if text[end..].bytes().all(|byte| byte == b' ') => {
                    Ok(Value::Bpchar(text[..end].into()))
                }
                Some(_) => Err(Failure::new("22001", format!("value too long for type character({length})"))),
            },
            (Modifier::Digits { precision, scale }, Value::Numeric(number)) => {
                let rounded = number.round(scale.into())?;
                let whole = i32::from(precision) - i32::from(scale);
                if rounded.abs().order(&power_of_ten(whole)?).is_ge() {
                    let power = if whole > 0 { format!("10^{whole}") } else { "1".to_owned() };
                    return Err(Failure::new("22003", "numeric field overflow").with_detail(format!(
                        "A field with precision {precision}, scale {scale} must round to an absolute value less than \
                         {power}."
                    )));
                }
                Ok(Value::Numeric(rounded))
            }
            (_, value) => Ok(value),
        }
    }
}

fn power_of_ten(exponent: i32) -> Result<Numeric, Failure> {
    Numeric::parse(&format!("1e{exponent}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_fitted_to_their_modifier_or_refused() {
        let text = |text: &str| Modifier::Varchar(Some(3)).fit(Value::text_of(text));
        assert_eq!(text("äöü"), Ok(Value::text_of("äöü")));
        assert_eq!(text("abc  "), Ok(Value::text_of("abc")));
        assert_eq!(text("abcd").unwrap_err().sqlstate, "22001");
        let padded = |text: &str| Modifier::Char(3).fit(Value::Bpchar(text.into()));
        assert_eq!(padded("ä"), Ok(Value::Bpchar("ä  ".into())));
        assert_eq!(padded("abc  "), Ok(Value::Bpchar("abc".into())));
        assert_eq!(padded("abcd").unwrap_err().sqlstate, "22001");
        let number = |precision, scale, text: &str| {
            let value = Value::Numeric(Numeric::parse(text).unwrap());
            Modifier::Digits { precision, scale }.fit(value).map(|value| value.text().unwrap())
        };
        assert_eq!(number(5, 2, "123.456").as_deref(), Ok("123.46"));
        assert_eq!(number(5, 2, "-1").as_deref(), Ok("-1.00"));
        assert_eq!(number(5, 2, "999.995").unwrap_err().sqlstate, "22003");
        assert_eq!(number(2, 2, "0.994").as_deref(), Ok("0.99"));
        assert_eq!(number(2, 2, "0.995").unwrap_err().sqlstate, "22003");
    }
}
