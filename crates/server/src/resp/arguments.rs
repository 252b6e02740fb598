//! The arguments of a command, which lie in the bytes of the client's request.

use std::ops::Range;

use bytes::Bytes;

/// The strings of a request that follow the command's name.
#[derive(Clone, Copy)]
pub(super) struct Arguments<'a> {
    input: &'a [u8],
    strings: &'a [Range<usize>],
}

impl<'a> Arguments<'a> {
    pub(super) fn new(input: &'a [u8], strings: &'a [Range<usize>]) -> Self {
        Arguments { input, strings }
    }

    pub(super) fn len(&self) -> usize {
        self.strings.len()
    }

    pub(super) fn get(&self, index: usize) -> Option<&'a [u8]> {
        Some(&self.input[self.strings.get(index)?.clone()])
    }

    /// Copies a string, so that the copy does not keep the whole request in memory.
    pub(super) fn bytes(&self, index: usize) -> Bytes {
        Bytes::copy_from_slice(&self.input[self.strings[index].clone()])
    }

    /// Returns a string as text in capitals.
    pub(super) fn word(&self, index: usize) -> Option<String> {
        Some(String::from_utf8_lossy(self.get(index)?).to_ascii_uppercase())
    }

    pub(super) fn from(&self, first: usize) -> Arguments<'a> {
        Arguments { input: self.input, strings: self.strings.get(first..).unwrap_or_default() }
    }

    pub(super) fn all(&self) -> Vec<Bytes> {
        (0..self.len()).map(|index| self.bytes(index)).collect()
    }
}

/// Parses a line of words with `work`.
#[cfg(test)]
pub(super) fn parsed_by<T>(work: fn(&[u8], Arguments<'_>) -> T, line: &str) -> T {
    let (mut strings, mut at) = (Vec::new(), 0);
    for word in line.split(' ') {
        strings.push(at..at + word.len());
        at += word.len() + 1;
    }
    let name = line[strings[0].clone()].to_uppercase();
    work(name.as_bytes(), Arguments::new(line.as_bytes(), &strings[1..]))
}
