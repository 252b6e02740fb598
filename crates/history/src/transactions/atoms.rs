//! Values as numbers.
//!
//! A history of transactions holds each value many times, because a read of a list returns the whole list. So
//! values are kept as 64-bit numbers. A text that is a plain number below 2^62 needs no table.

use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;

use crate::operation::Value;

/// The number of a value: odd for a plain number, even for a text of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Atom(u64);

impl Atom {
    /// The value of a key to which nothing was written.
    pub(super) const NOTHING: Self = Self(0);
}

/// The table of texts that are no plain numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Atoms {
    // Bounded by the history that the user supplies.
    texts: IndexSet<Box<str>, FxBuildHasher>,
}

impl Atoms {
    /// Returns the number of a text. A list is stored as its printed text.
    pub(super) fn intern(&mut self, value: &Value) -> Atom {
        match value {
            Value::Text(text) => self.intern_text(text),
            Value::List(_) => self.intern_text(&value.to_string()),
        }
    }

    fn intern_text(&mut self, text: &str) -> Atom {
        if let Some(number) = plain_number(text) {
            return Atom(number << 1 | 1);
        }
        let index = match self.texts.get_index_of(text) {
            Some(index) => index,
            None => self.texts.insert_full(text.into()).0,
        };
        Atom((index as u64 + 1) << 1)
    }

    /// Returns the text of a value.
    pub(super) fn text(&self, atom: Atom) -> String {
        match (atom.0 & 1, atom.0 >> 1) {
            (1, number) => number.to_string(),
            (_, 0) => "nothing".into(),
            (_, index) => self.texts[index as usize - 1].to_string(),
        }
    }

    /// Returns the text of a list. Of a long list, the text shows only the last elements.
    pub(super) fn list_text(&self, list: &[Atom]) -> String {
        let shown = &list[list.len().saturating_sub(LIST_SHOWN_MAX)..];
        let mut text = String::from(if shown.len() < list.len() { "[…" } else { "[" });
        for (index, atom) in shown.iter().enumerate() {
            if index > 0 || shown.len() < list.len() {
                text.push(' ');
            }
            text += &self.text(*atom);
        }
        text + "]"
    }
}

/// Returns the number that the text denotes, if the number is below 2^62 and would be printed as exactly this
/// text.
fn plain_number(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    let plain = matches!(bytes, [b'0'] | [b'1'..=b'9', ..]) && bytes.len() <= PLAIN_DIGITS_MAX;
    if !plain {
        return None;
    }
    bytes
        .iter()
        .try_fold(0u64, |number, byte| byte.is_ascii_digit().then(|| number * 10 + u64::from(byte - b'0')))
}

/// Largest number of digits of a plain number. All numbers with so few digits are below 2^62.
const PLAIN_DIGITS_MAX: usize = 18;

/// Largest number of elements of a list that a text shows.
const LIST_SHOWN_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_and_equal_texts_are_equal() {
        let mut atoms = Atoms::default();
        let texts = ["0", "7", "07", "999999999999999999", "1000000000000000000", "-1", "", "a", "1.0"];
        let numbers: Vec<Atom> = texts.iter().map(|text| atoms.intern(&Value::from(*text))).collect();
        for (text, number) in texts.iter().zip(&numbers) {
            assert_eq!(atoms.text(*number), *text);
            assert_eq!(atoms.intern(&Value::from(*text)), *number);
        }
        let distinct: std::collections::BTreeSet<&Atom> = numbers.iter().collect();
        assert_eq!(distinct.len(), texts.len());
    }
}
