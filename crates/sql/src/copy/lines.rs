//! The lines of COPY, in text and CSV: reads data that comes in pieces, and writes lines.

use std::borrow::Cow;

use crate::{
    encode,
    error::{Result, SqlError, code},
    statement::copy::Format,
};

/// Longest line that is accepted, in bytes.
const LINE_BYTES_MAX: usize = 64 << 20;

/// Cuts data into records.
pub struct LineReader {
    format: Format,
    buffer: Vec<u8>,
    /// Offset in the buffer at which the current record begins.
    begin: usize,
    /// Offset up to which the current record was searched for its end.
    seen: usize,
    /// Whether the searched part ends within quotes.
    quoted: bool,
    escaped: bool,
    number: u64,
    /// The line end of the first line, which all later lines must have, too.
    line_end: Option<LineEnd>,
    /// Whether the data has ended with `\.`.
    ended: bool,
}

/// The ways in which a line ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnd {
    Newline,
    Return,
    /// A carriage return and a newline.
    Both,
}

/// The meaning of `\.` at some place.
enum EndMarker {
    /// The data ends here.
    Ends,
    /// The two characters are ordinary data.
    Data,
    /// More bytes are needed to decide.
    NeedsMore,
}

/// A line, cut into its fields.
#[derive(Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The line as the client sent it, without its end.
    pub raw: &'a str,
    /// The texts of the fields, without escapes; `None` for NULL.
    pub fields: Vec<FieldText<'a>>,
}

/// A field's text, mostly borrowed from the line.
type FieldText<'a> = Option<Cow<'a, str>>;

/// Shortens a text for a message.
pub fn shown(text: &str) -> String {
    const SHOWN: usize = 100;
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

impl Record<'_> {
    /// Shortens the line for a message.
    pub fn shown(&self) -> String {
        shown(self.raw)
    }
}

impl LineReader {
    /// Creates a reader of lines in this format.
    pub fn new(format: Format) -> Self {
        LineReader {
            format,
            buffer: Vec::new(),
            begin: 0,
            seen: 0,
            quoted: false,
            escaped: false,
            number: 0,
            line_end: None,
            ended: false,
        }
    }

    /// Returns the number of the last record returned, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Adds data.
    pub fn push(&mut self, data: &[u8]) {
        self.buffer.drain(..self.begin);
        self.seen -= self.begin;
        self.begin = 0;
        if !self.ended {
            self.buffer.extend_from_slice(data);
        }
    }

    /// Returns the next complete record. With `last`, the data has ended, and a record may lack its line end.
    pub fn next(&mut self, last: bool) -> Result<Option<Record<'_>>> {
        let Some((line_end, next)) = self.find_end(last)? else { return Ok(None) };
        let begin = std::mem::replace(&mut self.begin, next);
        self.seen = next;
        self.quoted = false;
        self.escaped = false;
        if self.ended && begin == line_end {
            return Ok(None);
        }
        self.number += 1;
        let raw = encode::utf8(&self.buffer[begin..line_end])?;
        let fields = if self.format.csv { csv(&self.format, raw) } else { text(&self.format, raw)? };
        Ok(Some(Record { raw, fields }))
    }

    /// Returns the end of the current record and the beginning of the next. If the data ends with `\.`,
    /// everything after it is skipped.
    fn find_end(&mut self, last: bool) -> Result<Option<(usize, usize)>> {
        let Format { csv, quote, escape, .. } = self.format;
        while let Some(&byte) = self.buffer.get(self.seen) {
            let next = self.buffer.get(self.seen + 1).copied();
            // The meaning of these bytes depends on the next byte.
            if next.is_none() && !last && matches!(byte, b'\r' | b'\\') {
                return Ok(None);
            }
            let (mut quoted, mut escaped) = (self.quoted, self.escaped);
            if csv {
                let escapes = escape != quote && byte == escape;
                escaped = quoted && escapes && !escaped;
                if byte == quote && !self.escaped {
                    // A doubled quote ends the quoted part and begins it again, so it needs no case of its
                    // own.
                    quoted = !quoted;
                }
            }
            match byte {
                b'\r' if !quoted => {
                    let length = self.carriage_return(next == Some(b'\n'))?;
                    return Ok(Some((self.seen, self.seen + length)));
                }
                b'\n' if !quoted => {
                    if matches!(self.line_end, Some(LineEnd::Return | LineEnd::Both)) {
                        return Err(self.literal("newline", "\\n"));
                    }
                    self.line_end = Some(LineEnd::Newline);
                    return Ok(Some((self.seen, self.seen + 1)));
                }
                b'\\' if next == Some(b'.') && (!csv || self.seen == self.begin) => {
                    match self.end_of_data(last)? {
                        EndMarker::NeedsMore => return Ok(None),
                        EndMarker::Ends => {
                            self.ended = true;
                            return Ok(Some((self.seen, self.buffer.len())));
                        }
                        EndMarker::Data => {}
                    }
                }
                // In text format, a byte that follows a backslash ends neither a field nor a line.
                b'\\' if !csv && next.is_some() => self.seen += 1,
                _ => {}
            }
            (self.quoted, self.escaped) = (quoted, escaped);
            self.seen += 1;
        }
        if self.buffer.len() - self.begin > LINE_BYTES_MAX {
            return Err(SqlError::new(
                code::PROGRAM_LIMIT_EXCEEDED,
                format!("a COPY line is longer than {LINE_BYTES_MAX} bytes"),
            ));
        }
        if !last || self.begin == self.buffer.len() {
            return Ok(None);
        }
        if self.quoted {
            return Err(SqlError::new(code::BAD_COPY_FILE_FORMAT, "unterminated CSV quoted field"));
        }
        Ok(Some((self.buffer.len(), self.buffer.len())))
    }

    /// Returns the length of a line end that begins with a carriage return, in bytes.
    fn carriage_return(&mut self, with_newline: bool) -> Result<usize> {
        match (self.line_end, with_newline) {
            (None | Some(LineEnd::Both), true) => {
                self.line_end = Some(LineEnd::Both);
                Ok(2)
            }
            (None | Some(LineEnd::Return), _) => {
                self.line_end = Some(LineEnd::Return);
                Ok(1)
            }
            (Some(LineEnd::Newline | LineEnd::Both), _) => Err(self.literal("carriage return", "\\r")),
        }
    }

    /// Whether `\.` at the current place ends the data. It must be alone in its line, and the line must end
    /// as the earlier lines do.
    fn end_of_data(&self, last: bool) -> Result<EndMarker> {
        let malformed = |what: &str| match self.format.csv {
            true => Ok(EndMarker::Data),
            false => Err(SqlError::new(code::BAD_COPY_FILE_FORMAT, format!("end-of-copy marker {what}"))),
        };
        let other_style = "does not match previous newline style";
        let mut at = self.seen + 2;
        if self.line_end == Some(LineEnd::Both) {
            match self.buffer.get(at) {
                None if !last => return Ok(EndMarker::NeedsMore),
                Some(b'\r') => at += 1,
                Some(b'\n') => return malformed(other_style),
                _ => return malformed("corrupt"),
            }
        }
        let end = match self.buffer.get(at) {
            None if !last => return Ok(EndMarker::NeedsMore),
            Some(b'\r') => LineEnd::Return,
            Some(b'\n') => LineEnd::Newline,
            _ => return malformed("corrupt"),
        };
        let fits = match self.line_end {
            None => true,
            Some(LineEnd::Return) => end == LineEnd::Return,
            Some(LineEnd::Newline | LineEnd::Both) => end == LineEnd::Newline,
        };
        if fits {
            return Ok(EndMarker::Ends);
        }
        Err(SqlError::new(code::BAD_COPY_FILE_FORMAT, format!("end-of-copy marker {other_style}")))
    }

    /// Returns the error about a line end that differs from the end of the earlier lines.
    fn literal(&self, what: &str, escape: &str) -> SqlError {
        let (how, hint) = match self.format.csv {
            true => ("unquoted", format!("Use quoted CSV field to represent {what}.")),
            false => ("literal", format!("Use \"{escape}\" to represent {what}.")),
        };
        SqlError::new(code::BAD_COPY_FILE_FORMAT, format!("{how} {what} found in data")).hint(hint)
    }
}

/// Returns the fields of a line in text format.
fn text<'a>(format: &Format, line: &'a str) -> Result<Vec<FieldText<'a>>> {
    let bytes = line.as_bytes();
    let mut fields = Vec::new();
    let mut begin = 0;
    let mut at = 0;
    loop {
        match bytes.get(at) {
            Some(b'\\') => at += 2,
            Some(byte) if *byte != format.delimiter => at += 1,
            end => {
                let raw = &line[begin..at.min(line.len())];
                fields.push(if raw == format.null { None } else { Some(unescaped(raw)?) });
                if end.is_none() {
                    return Ok(fields);
                }
                at += 1;
                begin = at;
            }
        }
    }
}

/// Returns the fields of a line in CSV.
fn csv<'a>(format: &Format, line: &'a str) -> Vec<FieldText<'a>> {
    let Format { delimiter, quote, .. } = *format;
    let bytes = line.as_bytes();
    let mut fields = Vec::new();
    let mut at = 0;
    loop {
        let rest = &bytes[at..];
        let plain = rest.iter().position(|byte| *byte == delimiter || *byte == quote).unwrap_or(rest.len());
        fields.push(if rest.get(plain) == Some(&quote) {
            Some(Cow::Owned(quoted(format, bytes, &mut at)))
        } else {
            let text = &line[at..at + plain];
            at += plain;
            (text != format.null).then_some(Cow::Borrowed(text))
        });
        if at >= bytes.len() {
            return fields;
        }
        at += 1;
    }
}

/// Reads a CSV field with quotes that begins at `at`, and moves `at` to the end of the field.
fn quoted(format: &Format, bytes: &[u8], at: &mut usize) -> String {
    let Format { delimiter, quote, escape, .. } = *format;
    let mut text = Vec::new();
    let mut quoted = false;
    while let Some(&byte) = bytes.get(*at) {
        if quoted {
            let next = bytes.get(*at + 1).copied();
            if byte == escape && (next == Some(quote) || next == Some(escape)) {
                text.push(next.expect("a quote or an escape follows"));
                *at += 1;
            } else if byte == quote {
                quoted = false;
            } else {
                text.push(byte);
            }
        } else if byte == delimiter {
            break;
        } else if byte == quote {
            quoted = true;
        } else {
            text.push(byte);
        }
        *at += 1;
    }
    String::from_utf8(text).expect("a field is cut at ASCII bytes only")
}

/// Undoes the escapes of the text format.
fn unescaped(raw: &str) -> Result<Cow<'_, str>> {
    if !raw.contains('\\') {
        return Ok(Cow::Borrowed(raw));
    }
    let bytes = raw.as_bytes();
    let mut text = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        if byte != b'\\' {
            text.push(byte);
            continue;
        }
        // A backslash at the end of the data escapes nothing, and is dropped.
        let Some(&escaped) = bytes.get(at) else { break };
        at += 1;
        let number = |at: &mut usize, first: u8, radix: u32| {
            let mut value = char::from(first).to_digit(radix).unwrap_or(0);
            for _ in 0..2 {
                let Some(digit) = bytes.get(*at).and_then(|b| char::from(*b).to_digit(radix)) else { break };
                value = value * radix + digit;
                *at += 1;
            }
            value as u8
        };
        text.push(match escaped {
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 11,
            b'0'..=b'7' => number(&mut at, escaped, 8),
            b'x' if bytes.get(at).is_some_and(u8::is_ascii_hexdigit) => number(&mut at, b'0', 16),
            other => other,
        });
    }
    if text.contains(&0) {
        let message = "invalid byte sequence for encoding \"UTF8\": 0x00";
        return Err(SqlError::new(code::CHARACTER_NOT_IN_REPERTOIRE, message));
    }
    String::from_utf8(text).map(Cow::Owned).map_err(|error| {
        let bytes = error.into_bytes();
        encode::utf8(&bytes).expect_err("the bytes are not UTF-8")
    })
}

/// Writes a line of fields.
pub fn write(format: &Format, fields: &[Option<String>], line: &mut Vec<u8>) {
    for (index, field) in fields.iter().enumerate() {
        if index > 0 {
            line.push(format.delimiter);
        }
        match field {
            None => line.extend_from_slice(format.null.as_bytes()),
            Some(text) if format.csv => {
                let forced = format.force_quote.contains(&index);
                write_csv(format, text, forced || (fields.len() == 1 && text == "\\."), line);
            }
            Some(text) => write_text(format, text, line),
        }
    }
    line.push(b'\n');
}

/// Writes the line of column names.
pub fn write_header(format: &Format, names: &[&str], line: &mut Vec<u8>) {
    let names: Vec<Option<String>> = names.iter().map(|name| Some((*name).to_owned())).collect();
    write(&Format { force_quote: Vec::new(), ..format.clone() }, &names, line);
}

fn write_csv(format: &Format, text: &str, quoted: bool, line: &mut Vec<u8>) {
    let special =
        |byte: u8| byte == format.delimiter || byte == format.quote || matches!(byte, b'\n' | b'\r');
    if !quoted && text != format.null && !text.bytes().any(special) {
        line.extend_from_slice(text.as_bytes());
        return;
    }
    line.push(format.quote);
    for byte in text.bytes() {
        if byte == format.quote || byte == format.escape {
            line.push(format.escape);
        }
        line.push(byte);
    }
    line.push(format.quote);
}

fn write_text(format: &Format, text: &str, line: &mut Vec<u8>) {
    for byte in text.bytes() {
        let escape = match byte {
            8 => b'b',
            12 => b'f',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            11 => b'v',
            b'\\' => b'\\',
            other if other == format.delimiter => other,
            other => {
                line.push(other);
                continue;
            }
        };
        line.extend([b'\\', escape]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> Format {
        Format {
            csv: false,
            header: false,
            delimiter: b'\t',
            null: "\\N".to_owned(),
            quote: b'"',
            escape: b'"',
            force_not_null: Vec::new(),
            force_quote: Vec::new(),
        }
    }

    fn csv() -> Format {
        Format { csv: true, delimiter: b',', null: String::new(), ..text() }
    }

    fn owned(record: Record<'_>) -> Vec<Option<String>> {
        record.fields.into_iter().map(|text| text.map(Cow::into_owned)).collect()
    }

    /// Reads the data whole and cut at every place. The results must be equal.
    fn check(format: &Format, data: &str, expected: &[&[Option<&str>]]) {
        for cut in 0..=data.len() {
            let mut lines = LineReader::new(format.clone());
            let mut found = Vec::new();
            for (piece, last) in [(&data.as_bytes()[..cut], false), (&data.as_bytes()[cut..], true)] {
                lines.push(piece);
                while let Some(record) = lines.next(last).unwrap() {
                    found.push(owned(record));
                }
            }
            let expected: Vec<Vec<Option<String>>> =
                expected.iter().map(|row| row.iter().map(|f| f.map(str::to_owned)).collect()).collect();
            assert_eq!(found, expected, "cut at {cut}");
        }
    }

    #[test]
    fn text_lines_are_read_with_escapes_and_every_line_ending() {
        check(
            &text(),
            "1\t\\N\ta\\tb\n2\t\t\\\\\n",
            &[&[Some("1"), None, Some("a\tb")], &[Some("2"), Some(""), Some("\\")]],
        );
        check(&text(), "a\r\nb\r\nc", &[&[Some("a")], &[Some("b")], &[Some("c")]]);
        check(&text(), "a\rb\rc", &[&[Some("a")], &[Some("b")], &[Some("c")]]);
        check(&text(), "a\\\nb\n\\.\nrest", &[&[Some("a\nb")]]);
        check(&text(), "\\101\\x42\\q\n", &[&[Some("ABq")]]);
    }

    #[test]
    fn csv_lines_are_read_with_quotes_and_escapes() {
        check(
            &csv(),
            "1,,\"\"\n\"a\"\"b\",\"x\ny\",z\n",
            &[&[Some("1"), None, Some("")], &[Some("a\"b"), Some("x\ny"), Some("z")]],
        );
        let format = Format { escape: b'\\', ..csv() };
        check(&format, "\"a\\\"b\\\\\",c\n", &[&[Some("a\"b\\"), Some("c")]]);
    }

    #[test]
    fn written_lines_read_back_unchanged() {
        let rows: Vec<Vec<Option<String>>> = vec![
            vec![Some("a\tb\\c\nd\"e,f".to_owned()), None, Some(String::new()), Some("\\N".to_owned())],
            vec![Some("\\.".to_owned()), Some("ü\r".to_owned()), None, Some("x".to_owned())],
        ];
        for format in [text(), csv(), Format { escape: b'\\', delimiter: b'|', ..csv() }] {
            let mut data = Vec::new();
            for row in &rows {
                write(&format, row, &mut data);
            }
            let mut lines = LineReader::new(format.clone());
            lines.push(&data);
            let mut found = Vec::new();
            while let Some(record) = lines.next(true).unwrap() {
                found.push(owned(record));
            }
            assert_eq!(found, rows, "{format:?}");
        }
    }

    #[test]
    fn an_open_quote_at_the_end_is_an_error() {
        let mut lines = LineReader::new(csv());
        lines.push(b"1,\"abc\n");
        assert_eq!(lines.next(false).unwrap(), None);
        assert_eq!(lines.next(true).unwrap_err().code, "22P04");
    }
}
