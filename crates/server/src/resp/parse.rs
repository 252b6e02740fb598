//! Requests out of bytes: flat arrays of bulk strings, or one line.
//!
//! A request is an array of strings and nothing else, so a nested one is refused at its first byte; nothing here recurses.
//! Lengths are checked when they are read, before their bytes have come. A parser remembers how far it came in a
//! request that is not whole, so a client that sends a byte at a time costs no more than one that sends all at once.

use std::ops::Range;

use thiserror::Error;

/// Limits of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// No request has more strings.
    pub strings_max: usize,
    /// No request takes more bytes.
    pub bytes_max: usize,
    /// No line takes more bytes: a request of one line, or the head of a string.
    pub line_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { strings_max: 65_536, bytes_max: 16 << 20, line_bytes_max: 64 << 10 }
    }
}

/// Bytes that are no request. Nothing that follows them can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The number of strings is no number, or over the limit.
    #[error("Protocol error: invalid multibulk length")]
    Count,
    /// Something else than a string, an array among them.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0).escape_default())]
    NoString(u8),
    /// A string's length is no number, or over the limit.
    #[error("Protocol error: invalid bulk length")]
    Length,
    /// A string does not end where it says.
    #[error("Protocol error: a string is longer than it says")]
    End,
    /// A line is over the limit.
    #[error("Protocol error: too big inline request")]
    Line,
    /// The request is over the limit.
    #[error("Protocol error: the request is too large")]
    Bytes,
}

/// The state of one client's requests.
#[derive(Debug, Default)]
pub struct Parser {
    limits: Limits,
    /// The strings of the request at the front that were found so far.
    strings: Vec<Range<usize>>,
    /// How many it has; none while that is not known.
    count: Option<usize>,
    /// Where the next part of it begins.
    at: usize,
    /// Up to where no end of a line was found.
    searched: usize,
}

impl Parser {
    /// A parser with these limits.
    pub fn new(limits: Limits) -> Parser {
        Parser { limits, ..Parser::default() }
    }

    /// Looks at the bytes from the beginning of a request on. Returns how many it takes, once it is whole; then
    /// [`Parser::take_strings`] tells where its strings are, and the next call is about the bytes behind it.
    pub fn parse(&mut self, input: &[u8]) -> Result<Option<usize>, Malformed> {
        if self.count.is_none() && self.at == 0 && input.first().is_some_and(|first| *first != b'*') {
            self.strings.clear();
            return self.parse_line(input);
        }
        let count = match self.count {
            Some(count) => count,
            None => {
                self.strings.clear();
                let Some(line) = self.line(input)? else { return Ok(None) };
                let count = number(&input[line.start + 1..line.end]).ok_or(Malformed::Count)?;
                // As Redis has it, none and fewer than none are no request.
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

    /// Where the strings of the request are that was found whole.
    pub fn take_strings(&mut self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.strings)
    }

    /// The memory of these, for the next ones.
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

    /// One more string; says whether it is there.
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
            // The head is read again: it is short.
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

    /// The line at the present place, if it is whole: without its end.
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

    /// A request of one line, its strings apart by spaces.
    fn parse_line(&mut self, input: &[u8]) -> Result<Option<usize>, Malformed> {
        let Some(line) = self.line(input)? else {
            // Nothing was taken: the next call begins here as well, and goes on searching.
            return Ok(None);
        };
        let mut start = None;
        for index in line.start..=line.end {
            let ends = input[index..line.end].first().is_none_or(u8::is_ascii_whitespace);
            match start {
                None if !ends => start = Some(index),
                Some(begin) if ends => {
                    self.strings.push(begin..index);
                    start = None;
                }
                _ => {}
            }
        }
        if self.strings.len() > self.limits.strings_max {
            return Err(Malformed::Count);
        }
        Ok(Some(self.finish()))
    }
}

/// A client keeps memory for so many strings.
const STRINGS_KEPT: usize = 64;

/// A decimal number without anything around it.
pub(super) fn number(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_pcg::Pcg64Mcg;

    use super::*;

    /// All requests in the bytes, fed in pieces of this size; and how that ended.
    fn requests(input: &[u8], piece: usize, limits: Limits) -> (Vec<Vec<Vec<u8>>>, Result<(), Malformed>) {
        let mut parser = Parser::new(limits);
        let (mut requests, mut start, mut end) = (Vec::new(), 0, 0);
        while end < input.len() {
            end = (end + piece).min(input.len());
            loop {
                match parser.parse(&input[start..end]) {
                    Ok(Some(length)) => {
                        let bytes = &input[start..end];
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
    fn pieces_of_any_size_make_the_same_requests() {
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
            assert_eq!(requests(input, piece, Limits::default()), (wanted.clone(), Ok(())), "{piece}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused_at_once() {
        let limits = Limits { strings_max: 4, bytes_max: 64, line_bytes_max: 32 };
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
        ] {
            let (_, ended) = requests(input, 1, limits);
            assert_eq!(ended, Err(refusal), "{}", input.escape_ascii());
        }
        // Two that are short enough each are too long together.
        let both = [&b"*2\r\n$40\r\n"[..], &[b'x'; 40], b"\r\n$20\r\n"].concat();
        assert_eq!(requests(&both, 1, limits).1, Err(Malformed::Bytes));
    }

    #[test]
    fn chance_never_panics_and_never_takes_more_than_there_is() {
        let alphabet = b"*$:0123456789-+\r\n\r\nab\0\xff";
        for seed in 0..2_000 {
            let mut chance = Pcg64Mcg::seed_from_u64(seed);
            let length = chance.random_range(0..200);
            let input: Vec<u8> =
                (0..length).map(|_| alphabet[chance.random_range(0..alphabet.len())]).collect();
            let limits = Limits { strings_max: 8, bytes_max: 128, line_bytes_max: 32 };
            let whole = requests(&input, input.len().max(1), limits);
            let bytes = requests(&input, 1, limits);
            assert_eq!(whole.0, bytes.0, "seed {seed}: {}", input.escape_ascii());
        }
    }
}
