//! Parses requests from bytes: flat arrays of bulk strings, or one line.
//!
//! A request is an array of strings and nothing else, so a nested array is refused at its first byte, and
//! nothing here recurses. Lengths are checked when they are read, before the bytes that they count have come.
//! The parser remembers its place in an incomplete request. So a request that comes byte by byte costs no
//! more than a request that comes at once.
//!
//! A request of one line is split as Redis splits it (`sdssplitargs`), including quotes, escapes and
//! hexadecimal bytes.

use std::ops::Range;

use quorate_protocol::partial::counter::integer;
use thiserror::Error;

/// The limits of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Maximum number of strings in a request.
    pub strings_max: usize,
    /// Longest request, in bytes.
    pub bytes_max: usize,
    /// Longest line, in bytes: a request of one line, or the head of a string.
    pub line_bytes_max: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        RequestLimits { strings_max: 65_536, bytes_max: 16 << 20, line_bytes_max: 64 << 10 }
    }
}

/// The reasons why bytes are no request. No bytes after them can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The number of strings is not a number, or is above the limit.
    #[error("Protocol error: invalid multibulk length")]
    Count,
    /// A value of another type, for example an array, came instead of a string.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0).escape_default())]
    NoString(u8),
    /// The length of a string is not a number, or is above the limit.
    #[error("Protocol error: invalid bulk length")]
    Length,
    /// The bytes after a string are not the end of a line.
    #[error("Protocol error: a bulk string is longer than its declared length")]
    End,
    /// A line is longer than the limit.
    #[error("Protocol error: too big inline request")]
    Line,
    /// The request is longer than the limit.
    #[error("Protocol error: the request is too large")]
    Bytes,
    /// A quote in a line has no end, or its end is not followed by a space.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    /// A line contains a zero byte, at which Redis would stop reading the line.
    #[error("Protocol error: zero byte in an inline request")]
    Zero,
}

/// The state of parsing one client's requests.
#[derive(Debug, Default)]
pub struct Parser {
    limits: RequestLimits,
    /// The places of the strings of the first request in the input, as far as they were found.
    strings: Vec<Range<usize>>,
    /// The number of strings in the request, `None` until it is known.
    count: Option<usize>,
    /// The offset at which the next part of the request begins.
    at: usize,
    /// The offset up to which the input was searched for the end of a line in vain.
    searched: usize,
    /// The strings of a line with quotes, without the quotes. Empty if the request is not a line with quotes.
    unquoted: Vec<u8>,
}

impl Parser {
    /// Creates a parser with these limits.
    pub fn new(limits: RequestLimits) -> Parser {
        Parser { limits, ..Parser::default() }
    }

    /// Parses the request at the beginning of `input`. Returns the request's length once it is complete. Then
    /// [`Parser::take_strings`] returns its strings, and the input of the next call must begin after the
    /// request.
    pub fn parse(&mut self, input: &[u8]) -> Result<Option<usize>, Malformed> {
        if self.count.is_none() && self.at == 0 && input.first().is_some_and(|first| *first != b'*') {
            self.strings.clear();
            self.unquoted.clear();
            return self.parse_line(input);
        }
        let count = match self.count {
            Some(count) => count,
            None => {
                self.strings.clear();
                self.unquoted.clear();
                let Some(line) = self.line(input)? else { return Ok(None) };
                let count = number(&input[line.start + 1..line.end]).ok_or(Malformed::Count)?;
                // As in Redis, a count of zero or less is an empty request.
                let count = usize::try_from(count).unwrap_or(0);
                if count > self.limits.strings_max {
                    return Err(Malformed::Count);
                }
                *self.count.insert(count)
            }
        };
        while self.strings.len() < count {
            if !self.parse_string(input)? {
                return Ok(None);
            }
        }
        Ok(Some(self.finish()))
    }

    /// Returns the bytes that hold the strings of a line with quotes. `None` if the strings lie in the input.
    pub fn take_unquoted(&mut self) -> Option<Vec<u8>> {
        (!self.unquoted.is_empty()).then(|| std::mem::take(&mut self.unquoted))
    }

    /// Returns the places of the strings of the request that was completed last.
    pub fn take_strings(&mut self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.strings)
    }

    /// Takes the memory of these strings back, for the next request.
    pub fn give_back(&mut self, strings: Vec<Range<usize>>) {
        if strings.capacity() <= STRINGS_KEPT {
            self.strings = strings;
            self.strings.clear();
        }
    }

    fn finish(&mut self) -> usize {
        self.count = None;
        self.searched = 0;
        std::mem::take(&mut self.at)
    }

    /// Parses the next string. Returns whether the string was complete.
    fn parse_string(&mut self, input: &[u8]) -> Result<bool, Malformed> {
        let head = self.at;
        match input.get(head) {
            None => return Ok(false),
            Some(b'$') => {}
            Some(other) => return Err(Malformed::NoString(*other)),
        }
        let Some(line) = self.line(input)? else { return Ok(false) };
        let length = number(&input[line.start + 1..line.end]).ok_or(Malformed::Length)?;
        let length = usize::try_from(length).map_err(|_| Malformed::Length)?;
        if length > self.limits.bytes_max {
            return Err(Malformed::Length);
        }
        let (start, end) = (self.at, self.at + length);
        if end + 2 > self.limits.bytes_max {
            return Err(Malformed::Bytes);
        }
        let Some(tail) = input.get(end..end + 2) else {
            // The next call reads the head of the string again, which is short.
            (self.at, self.searched) = (head, head);
            return Ok(false);
        };
        if tail != b"\r\n" {
            return Err(Malformed::End);
        }
        self.strings.push(start..end);
        (self.at, self.searched) = (end + 2, end + 2);
        Ok(true)
    }

    /// Returns the line that begins at the current offset, without its end. `None` if the line is incomplete.
    fn line(&mut self, input: &[u8]) -> Result<Option<Range<usize>>, Malformed> {
        let from = self.searched.max(self.at);
        let Some(found) = input[from..].iter().position(|byte| *byte == b'\n') else {
            self.searched = input.len();
            let pending = input.len() - self.at;
            return if pending > self.limits.line_bytes_max { Err(Malformed::Line) } else { Ok(None) };
        };
        let (start, end) = (self.at, from + found);
        if end - start > self.limits.line_bytes_max {
            return Err(Malformed::Line);
        }
        self.at = end + 1;
        let bare = if end > start && input[end - 1] == b'\r' { end - 1 } else { end };
        Ok(Some(start..bare))
    }

    /// Parses a request of one line.
    fn parse_line(&mut self, input: &[u8]) -> Result<Option<usize>, Malformed> {
        let Some(line) = self.line(input)? else {
            // The next call starts at the same offset, and continues the search for the end of the line.
            return Ok(None);
        };
        let bytes = &input[line.clone()];
        if bytes.contains(&0) {
            return Err(Malformed::Zero);
        }
        if bytes.iter().any(|byte| matches!(byte, b'"' | b'\'')) {
            self.unquote(bytes)?;
        } else {
            let mut at = line.start;
            while let Some(begin) = (at..line.end).find(|index| !is_space(input[*index])) {
                at = (begin..line.end).find(|index| ends_word(input[*index])).unwrap_or(line.end);
                self.strings.push(begin..at);
            }
        }
        if self.strings.len() > self.limits.strings_max {
            return Err(Malformed::Count);
        }
        Ok(Some(self.finish()))
    }

    /// Splits a line that has quotes, and writes its strings to `unquoted`.
    fn unquote(&mut self, line: &[u8]) -> Result<(), Malformed> {
        let Parser { strings, unquoted, .. } = self;
        // An empty `unquoted` would mean that the strings lie in the input, so this byte makes it non-empty
        // even if all strings are empty.
        unquoted.push(b' ');
        let mut rest = line;
        loop {
            while let [first, tail @ ..] = rest
                && is_space(*first)
            {
                rest = tail;
            }
            if rest.is_empty() {
                return Ok(());
            }
            let begin = unquoted.len();
            loop {
                match rest {
                    [] => break,
                    [quote @ (b'"' | b'\''), tail @ ..] => {
                        rest = unquote_one(*quote, tail, unquoted)?;
                        break;
                    }
                    [byte, ..] if ends_word(*byte) => break,
                    [byte, tail @ ..] => {
                        unquoted.push(*byte);
                        rest = tail;
                    }
                }
            }
            strings.push(begin..unquoted.len());
        }
    }
}

/// Appends the text up to the quote that ends it. Returns the part of the line after this quote, which is
/// empty or begins with a space.
fn unquote_one<'a>(quote: u8, mut rest: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], Malformed> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    loop {
        let (byte, tail) = match rest {
            [] => return Err(Malformed::Quotes),
            [b'\\', b'x', high, low, tail @ ..]
                if quote == b'"' && digit(high).is_some() && digit(low).is_some() =>
            {
                (digit(high).unwrap_or(0) << 4 | digit(low).unwrap_or(0), tail)
            }
            [b'\\', escaped, tail @ ..] if quote == b'"' => {
                let byte = match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                };
                (byte, tail)
            }
            [b'\\', b'\'', tail @ ..] if quote == b'\'' => (b'\'', tail),
            [end, tail @ ..] if *end == quote => {
                let ends = tail.first().is_none_or(|byte| is_space(*byte));
                return if ends { Ok(tail) } else { Err(Malformed::Quotes) };
            }
            [byte, tail @ ..] => (*byte, tail),
        };
        out.push(byte);
        rest = tail;
    }
}

/// Whether a byte is a space that is skipped before a word, by the rules of the C library's `isspace`.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Whether a byte ends a word. Redis accepts fewer kinds of white space after a word than before a word.
fn ends_word(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Maximum number of strings whose memory a client keeps for its next request.
const STRINGS_KEPT: usize = 64;

/// Parses a number by the rules of Redis's `string2ll`: 64 bits, no plus sign, no leading zero, no space.
/// Every number of the protocol and of a command is parsed here.
pub(super) fn number(digits: &[u8]) -> Option<i64> {
    integer(digits)
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_pcg::Pcg64Mcg;

    use super::*;

    /// Returns all requests in the bytes, which are parsed in pieces of this size. The second result says how
    /// the parsing ended.
    fn requests(
        input: &[u8],
        piece: usize,
        limits: RequestLimits,
    ) -> (Vec<Vec<Vec<u8>>>, Result<(), Malformed>) {
        let mut parser = Parser::new(limits);
        let (mut requests, mut start, mut end) = (Vec::new(), 0, 0);
        while end < input.len() {
            end = (end + piece).min(input.len());
            loop {
                match parser.parse(&input[start..end]) {
                    Ok(Some(length)) => {
                        let unquoted = parser.take_unquoted();
                        let bytes = unquoted.as_deref().unwrap_or(&input[start..end]);
                        let strings = parser.take_strings();
                        requests.push(strings.iter().map(|range| bytes[range.clone()].to_vec()).collect());
                        parser.give_back(strings);
                        start += length;
                        if start == end {
                            break;
                        }
                    }
                    Ok(None) => break,
                    Err(malformed) => return (requests, Err(malformed)),
                }
            }
        }
        (requests, Ok(()))
    }

    fn strings(strings: &[&str]) -> Vec<Vec<u8>> {
        strings.iter().map(|string| string.as_bytes().to_vec()).collect()
    }

    #[test]
    fn input_in_pieces_of_any_size_gives_the_same_requests() {
        let input = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n*1\r\n$4\r\nPING\r\nGET  k\r\n\r\n*0\r\n*-1\r\nPING\n";
        let wanted = vec![
            strings(&["SET", "k", "a\r\nb"]),
            strings(&["PING"]),
            strings(&["GET", "k"]),
            strings(&[]),
            strings(&[]),
            strings(&[]),
            strings(&["PING"]),
        ];
        for piece in 1..=input.len() {
            assert_eq!(requests(input, piece, RequestLimits::default()), (wanted.clone(), Ok(())), "{piece}");
        }
    }

    #[test]
    fn a_malformed_request_is_refused_at_its_first_wrong_byte() {
        let limits = RequestLimits { strings_max: 4, bytes_max: 64, line_bytes_max: 32 };
        for (input, refusal) in [
            (&b"*5\r\n"[..], Malformed::Count),
            (b"*99999999999999999999\r\n", Malformed::Count),
            (b"*x\r\n", Malformed::Count),
            (b"*+1\r\n", Malformed::Count),
            (b"*1\r\n*1\r\n", Malformed::NoString(b'*')),
            (b"*1\r\n:1\r\n", Malformed::NoString(b':')),
            (b"*1\r\n$-1\r\n", Malformed::Length),
            (b"*1\r\n$65\r\n", Malformed::Length),
            (b"*1\r\n$1\r\nabc", Malformed::End),
            (&[b'x'; 33], Malformed::Line),
            (b"*00000000000000000000000000000001\r\n", Malformed::Line),
            (b"*01\r\n", Malformed::Count),
            (b"*1\r\n$01\r\n", Malformed::Length),
            (b"SET k \"ab\r\n", Malformed::Quotes),
            (b"SET k \"ab\"c\r\n", Malformed::Quotes),
            (b"SET k 'ab\r\n", Malformed::Quotes),
            (b"SET k a\0b\r\n", Malformed::Zero),
        ] {
            let (_, ended) = requests(input, 1, limits);
            assert_eq!(ended, Err(refusal), "{}", input.escape_ascii());
        }
        // Each of the two strings is short enough, but together they are too long for a request.
        let both = [&b"*2\r\n$40\r\n"[..], &[b'x'; 40], b"\r\n$20\r\n"].concat();
        assert_eq!(requests(&both, 1, limits).1, Err(Malformed::Bytes));
    }

    /// Lines are split as Redis splits them. Redis 7.0.15 gave the expected answers. `checks/redis` compares
    /// thousands of further lines with Redis.
    #[test]
    fn a_line_is_split_as_redis_splits_it() {
        for (line, wanted) in [
            (&b"SET k \"ab\""[..], &[&b"SET"[..], b"k", b"ab"][..]),
            (b"  a\t b \r", &[b"a", b"b"]),
            (br#"a "b c" 'd e'"#, &[b"a", b"b c", b"d e"]),
            (br#"a x"b"  "" ''"#, &[b"a", b"xb", b"", b""]),
            (br#""\x41\xfF\n\r\t\b\a\q\"\\""#, &[b"A\xff\n\r\t\x08\x07q\"\\"]),
            (br#""\x4" "\xg1""#, &[b"x4", b"xg1"]),
            (br"'a\'b' 'a\nb'", &[b"a'b", br"a\nb"]),
            (br"a\x41 \n", &[br"a\x41", br"\n"]),
            (b"\x0ba\x0bb \x0c\"c\"\x0bd", &[b"a\x0bb", b"c", b"d"]),
            (b"\"\" ", &[b""]),
        ] {
            let input = [line, b"\nPING\r\n"].concat();
            let wanted: Vec<Vec<u8>> = wanted.iter().map(|it| it.to_vec()).collect();
            for piece in [1, 3, input.len()] {
                let told = requests(&input, piece, RequestLimits::default());
                assert_eq!(
                    told,
                    (vec![wanted.clone(), strings(&["PING"])], Ok(())),
                    "{}",
                    line.escape_ascii()
                );
            }
        }
    }

    #[test]
    fn a_number_is_read_in_its_canonical_form_only() {
        for (digits, wanted) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
        ] {
            assert_eq!(number(digits.as_bytes()), wanted, "{digits}");
        }
        for digits in
            ["", "-", "-0", "+1", "01", "-01", " 1", "1 ", "1.0", "0x1", "9223372036854775808", "1\0"]
        {
            assert_eq!(number(digits.as_bytes()), None, "{digits}");
        }
    }

    #[test]
    fn random_input_is_parsed_alike_whole_and_byte_by_byte() {
        let alphabet = b"*$:0123456789-+\r\n\r\nab\0\xff\"'\\x ";
        for seed in 0..2_000 {
            let mut chance = Pcg64Mcg::seed_from_u64(seed);
            let length = chance.random_range(0..200);
            let input: Vec<u8> =
                (0..length).map(|_| alphabet[chance.random_range(0..alphabet.len())]).collect();
            let limits = RequestLimits { strings_max: 8, bytes_max: 128, line_bytes_max: 32 };
            let whole = requests(&input, input.len().max(1), limits);
            let bytes = requests(&input, 1, limits);
            assert_eq!(whole.0, bytes.0, "seed {seed}: {}", input.escape_ascii());
        }
    }
}
