//! Reading recorded histories.
//!
//! All formats are one record a line, so a reader holds one line and the operations that have not ended. A line that cannot be
//! read is an error that says where and what was expected; a torn last line — the writer was killed in the middle of it — is
//! noted and skipped.

pub mod edn;
pub mod json;
pub mod text;
pub mod watca;

use std::fmt;
use std::io::{self, BufRead};
use std::str::FromStr;

use thiserror::Error;

use crate::history::{History, Impossible};
use crate::operation::Operation;

/// What is wrong with a line, from its decoder's view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where in the line, from 1.
    pub column: usize,
    /// What should have been there.
    pub expected: String,
}

impl Fault {
    /// At `column`, counted from 1, `expected` was missing.
    pub fn new(column: usize, expected: impl Into<String>) -> Self {
        Self { column, expected: expected.into() }
    }
}

/// A line that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}:{line}:{column}: {expected}")]
pub struct Malformed {
    /// The file's name.
    pub file: String,
    /// The line, from 1.
    pub line: u64,
    /// The column in it, from 1.
    pub column: usize,
    /// What was expected there.
    pub expected: String,
}

/// Why a history could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The input itself failed.
    #[error("{file}: {source}")]
    Input {
        /// The file's name.
        file: String,
        /// What happened.
        source: io::Error,
    },
    /// The input makes no sense.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// One thing that a line said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An operation ended, or will never.
    Operation(Operation),
    /// How far this host's clock may be off.
    Clock {
        /// The host.
        host: String,
        /// Its clock's error in nanoseconds, in either direction.
        error: u64,
    },
}

/// Understands the lines of one format.
pub trait Decoder {
    /// Takes one line, without its line break, and appends what it completes.
    fn line(&mut self, line: &str, out: &mut Vec<Record>) -> Result<(), Fault>;
    /// The input ended: appends the operations that never did.
    fn end(&mut self, out: &mut Vec<Record>);
}

/// The formats that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON lines, see [`json`].
    Json,
    /// `R|W key start_ns end_ns value`, see [`text`].
    Text,
    /// Jepsen histories, see [`edn`].
    Edn,
    /// Logs of WatCA, see [`watca`].
    Watca,
}

impl Format {
    /// The format that a first line looks like.
    pub fn detect(line: &str) -> Option<Self> {
        let line = line.trim_start_matches('\u{feff}').trim_start();
        let mut words = line.split_whitespace();
        match (words.next()?, words.next()) {
            ("R" | "W", _) => Some(Self::Text),
            (first, Some("INV" | "RES")) if first.parse::<i64>().is_ok() => Some(Self::Watca),
            _ if line.contains("jepsen.util - ") => Some(Self::Edn),
            _ if line.starts_with('[') || line.starts_with("{:") => Some(Self::Edn),
            _ if line.starts_with('{') => Some(Self::Json),
            _ => None,
        }
    }

    /// A decoder for one input. `failed_cas` matters to Jepsen histories only.
    pub fn decoder(self, failed_cas: edn::FailedCas) -> Box<dyn Decoder + Send> {
        match self {
            Self::Json => Box::<json::Json>::default(),
            Self::Text => Box::<text::Text>::default(),
            Self::Edn => Box::new(edn::Edn::new(failed_cas)),
            Self::Watca => Box::<watca::Watca>::default(),
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            "edn" => Ok(Self::Edn),
            "watca" => Ok(Self::Watca),
            other => Err(format!("expected json, text, edn or watca, found {other:?}")),
        }
    }
}

/// Something a reader passed over, and says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The file's name.
    pub file: String,
    /// The line, from 1.
    pub line: u64,
}

impl fmt::Display for Torn {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: the last line is incomplete and was skipped", self.file, self.line)
    }
}

/// Reads one input, a batch of records at a time.
pub struct Reader<R> {
    file: String,
    input: R,
    decoder: Box<dyn Decoder + Send>,
    line: u64,
    buffer: Vec<u8>,
    ended: bool,
    torn: Option<Torn>,
    bytes: u64,
}

impl<R: BufRead> Reader<R> {
    /// Reads `input` with `decoder`; `file` is its name in messages.
    pub fn new(file: impl Into<String>, input: R, decoder: Box<dyn Decoder + Send>) -> Self {
        let file = file.into();
        Self { file, input, decoder, line: 0, buffer: Vec::new(), ended: false, torn: None, bytes: 0 }
    }

    /// Appends the records of the next line to `out`; `false` after the last.
    pub fn read(&mut self, out: &mut Vec<Record>) -> Result<bool, ReadError> {
        if self.ended {
            return Ok(false);
        }
        self.buffer.clear();
        let read = self.input.read_until(b'\n', &mut self.buffer);
        let read = read.map_err(|source| ReadError::Input { file: self.file.clone(), source })?;
        self.bytes += read as u64;
        if read == 0 {
            self.ended = true;
            self.decoder.end(out);
            return Ok(false);
        }
        self.line += 1;
        let whole = self.buffer.last() == Some(&b'\n');
        let before = out.len();
        let result = match std::str::from_utf8(&self.buffer) {
            Ok(line) => match line.trim_end_matches(['\n', '\r']) {
                line if line.trim().is_empty() => Ok(()),
                line => self.decoder.line(line, out),
            },
            Err(error) => Err(Fault::new(error.valid_up_to() + 1, "expected UTF-8 text")),
        };
        match result {
            Ok(()) => Ok(true),
            Err(_) if !whole => {
                out.truncate(before);
                self.torn = Some(Torn { file: self.file.clone(), line: self.line });
                Ok(true)
            }
            Err(fault) => Err(self.malformed(fault).into()),
        }
    }

    /// Reads everything into `history`.
    pub fn read_into(&mut self, history: &mut History) -> Result<(), ReadError> {
        let mut records = Vec::new();
        loop {
            let more = self.read(&mut records)?;
            for record in records.drain(..) {
                history.record(record).map_err(|impossible| self.impossible(&impossible))?;
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// The error for an operation of the line just read that cannot be.
    pub fn impossible(&self, impossible: &Impossible) -> Malformed {
        self.malformed(Fault::new(1, impossible.to_string()))
    }

    /// The last line, if it was incomplete.
    pub fn torn(&self) -> Option<&Torn> {
        self.torn.as_ref()
    }

    /// How much of the input has been read.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn malformed(&self, fault: Fault) -> Malformed {
        let Fault { column, expected } = fault;
        Malformed { file: self.file.clone(), line: self.line, column, expected }
    }
}
