//! The forms of EDN: what Jepsen prints, read from one line.

use super::SyntaxError;
use crate::operation::Value;

/// A parsed piece of EDN.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum EdnForm {
    Nil,
    Number(String),
    Text(String),
    Keyword(String),
    Symbol(String),
    Sequence(Vec<EdnForm>),
    Map(Vec<(EdnForm, EdnForm)>),
}

impl EdnForm {
    /// Returns the value that this form denotes, or `None` for nil.
    pub(super) fn value(self) -> Result<Option<Value>, String> {
        Ok(Some(match self {
            Self::Nil => return Ok(None),
            Self::Number(text) | Self::Text(text) | Self::Symbol(text) => text.into(),
            Self::Keyword(word) => format!(":{word}").into(),
            Self::Sequence(forms) => {
                let mut values = Vec::new();
                for form in forms {
                    values.push(form.value()?.ok_or("expected no nil inside a list")?);
                }
                values.into()
            }
            Self::Map(pairs) => format!("{pairs:?}").into(),
        }))
    }
}

/// Parses the forms of a line.
pub(super) struct FormReader<'a> {
    pub(super) text: &'a str,
    /// Offset of the next byte to read.
    pub(super) at: usize,
}

/// Deepest accepted nesting. Deeper input is refused, so that it cannot overflow the stack.
const DEPTH_MAX: usize = 32;

impl FormReader<'_> {
    pub(super) fn next(&mut self) -> Result<EdnForm, SyntaxError> {
        self.form(0)
    }

    fn form(&mut self, depth: usize) -> Result<EdnForm, SyntaxError> {
        if depth > DEPTH_MAX {
            return Err(self.fault(&format!("expected at most {DEPTH_MAX} levels of nesting")));
        }
        self.skip_space();
        let rest = &self.text[self.at..];
        match rest.chars().next() {
            None => Err(self.fault("expected a value, found the end of the line")),
            Some('[') => self.sequence(']', depth).map(EdnForm::Sequence),
            Some('(') => self.sequence(')', depth).map(EdnForm::Sequence),
            Some('{') => {
                let forms = self.sequence('}', depth)?;
                if forms.len() % 2 == 1 {
                    return Err(self.fault("expected a value for every key of the map"));
                }
                let mut forms = forms.into_iter();
                let pairs = std::iter::from_fn(|| Some((forms.next()?, forms.next()?)));
                let mut pairs: Vec<(EdnForm, EdnForm)> = pairs.collect();
                // Maps are printed in any order, so the pairs are sorted: equal maps then get the same order.
                pairs.sort_by_cached_key(|pair| format!("{pair:?}"));
                Ok(EdnForm::Map(pairs))
            }
            Some('"') => self.text(),
            Some('#') if rest.starts_with("#{") => {
                self.at += 1;
                let mut forms = self.sequence('}', depth)?;
                // Sets are printed in any order, so the elements are sorted: equal sets then get the same
                // order.
                forms.sort_by_cached_key(|form| format!("{form:?}"));
                Ok(EdnForm::Sequence(forms))
            }
            Some('#') if rest.starts_with("#_") => Err(self.fault("expected no discarded form (#_)")),
            Some('#') => {
                self.at += 1;
                self.word(); // skip the tag and parse its form
                self.form(depth + 1)
            }
            Some(':') => {
                self.at += 1;
                Ok(EdnForm::Keyword(self.word().into()))
            }
            Some(c) if c == ']' || c == ')' || c == '}' => {
                Err(self.fault(&format!("expected a value, found {c}")))
            }
            Some(_) => Ok(match self.word() {
                "nil" => EdnForm::Nil,
                number if is_number(number) => EdnForm::Number(plain(number).into()),
                symbol => EdnForm::Symbol(symbol.into()),
            }),
        }
    }

    fn sequence(&mut self, close: char, depth: usize) -> Result<Vec<EdnForm>, SyntaxError> {
        self.at += 1;
        let mut forms = Vec::new();
        loop {
            self.skip_space();
            if self.text[self.at..].starts_with(close) {
                self.at += 1;
                return Ok(forms);
            }
            if self.at == self.text.len() {
                return Err(self.fault(&format!("expected {close} before the end of the line")));
            }
            forms.push(self.form(depth + 1)?);
        }
    }

    fn text(&mut self) -> Result<EdnForm, SyntaxError> {
        let mut text = String::new();
        let mut chars = self.text[self.at..].char_indices().skip(1);
        while let Some((offset, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += offset + 1;
                    return Ok(EdnForm::Text(text));
                }
                '\\' => text.push(match chars.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, 't')) => '\t',
                    Some((_, 'r')) => '\r',
                    Some((_, 'b')) => '\u{8}',
                    Some((_, 'f')) => '\u{c}',
                    Some((_, c @ ('"' | '\\'))) => c,
                    Some((at, 'u')) => {
                        let digits = self.text[self.at + at + 1..].get(..4).unwrap_or_default();
                        let code = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
                        chars.nth(3);
                        match code.filter(|_| digits.bytes().all(|digit| digit.is_ascii_hexdigit())) {
                            Some(c) => c,
                            None => {
                                let column = self.at + at + 1;
                                return Err(SyntaxError::new(
                                    column,
                                    "expected four hexadecimal digits of a character after \\u",
                                ));
                            }
                        }
                    }
                    Some((at, other)) => {
                        let expected = format!("expected an escape sequence of EDN, found \\{other}");
                        return Err(SyntaxError::new(self.at + at + 1, expected));
                    }
                    None => break,
                }),
                c => text.push(c),
            }
        }
        self.at = self.text.len();
        Err(self.fault("expected a closing quotation mark"))
    }

    fn word(&mut self) -> &str {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| c.is_whitespace() || ",[](){}\"".contains(c)).unwrap_or(rest.len());
        // A character that begins no word becomes a word by itself, so that the parser always advances.
        let end = if end == 0 { rest.chars().next().map_or(0, char::len_utf8) } else { end };
        self.at += end;
        &rest[..end]
    }

    fn skip_space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',').len();
    }

    fn fault(&self, expected: &str) -> SyntaxError {
        SyntaxError::new(self.at + 1, expected)
    }
}

fn is_number(word: &str) -> bool {
    word.trim_start_matches(['-', '+']).starts_with(|c: char| c.is_ascii_digit())
}

/// Strips from an integer the sign and the suffix that do not change it: `+3` and `3N` become `3`. Returns
/// any other number unchanged.
fn plain(number: &str) -> &str {
    let digits = number.strip_prefix('+').unwrap_or(number);
    let digits = digits.strip_suffix('N').unwrap_or(digits);
    let is_integer = digits.strip_prefix('-').unwrap_or(digits).bytes().all(|byte| byte.is_ascii_digit());
    if is_integer { digits } else { number }
}
