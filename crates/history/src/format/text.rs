//! The plain text format: `R|W key start_ns end_ns value`, one operation a line.
//!
//! The value is the rest of the line and may contain spaces. Without a value, a read found nothing and a
//! write deleted. The format names no clients. Each operation counts as the operation of a separate client,
//! so session guarantees are not checked.

use super::{Decoder, Record, SyntaxError};
use crate::operation::{Action, Nanos, Operation, Value};

/// Decodes the text format.
#[derive(Debug, Default)]
pub struct Text {
    lines: u64,
}

impl Decoder for Text {
    fn line(&mut self, line: &str, out: &mut Vec<Record>) -> Result<(), SyntaxError> {
        self.lines += 1;
        let mut fields = Fields { line, at: 0 };
        let verb = fields.next("R or W")?;
        let key = fields.next("a key")?;
        let start = fields.nanos("the start in nanoseconds")?;
        let finish = fields.nanos("the end in nanoseconds")?;
        let rest = line[fields.at..].trim();
        let value = (!rest.is_empty()).then(|| Value::from(rest));
        let action = match verb {
            "R" => Action::Read(value),
            "W" => value.map_or(Action::Delete, Action::Write),
            other => return Err(SyntaxError::new(1, format!("expected R or W, found {other:?}"))),
        };
        out.push(Record::Operation(Operation::answered(self.lines, key, action, start, finish)));
        Ok(())
    }

    fn end(&mut self, _: &mut Vec<Record>) {}
}

/// The fields of a line, separated by white space, with their columns.
struct Fields<'a> {
    line: &'a str,
    at: usize,
}

impl<'a> Fields<'a> {
    fn next(&mut self, expected: &str) -> Result<&'a str, SyntaxError> {
        let rest = self.line[self.at..].trim_start();
        let begin = self.line.len() - rest.len();
        let field = rest.split_whitespace().next();
        let field = field.ok_or_else(|| SyntaxError::new(begin + 1, format!("expected {expected}")))?;
        self.at = begin + field.len();
        Ok(field)
    }

    fn nanos(&mut self, expected: &str) -> Result<Nanos, SyntaxError> {
        let field = self.next(expected)?;
        let column = self.at - field.len() + 1;
        field.parse().map_err(|_| SyntaxError::new(column, format!("expected {expected}, found {field:?}")))
    }
}
