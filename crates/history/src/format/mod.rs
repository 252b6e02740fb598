//! Reading recorded histories.
//!
//! In all formats a record is one line, so a reader keeps no more in memory than one line and the operations
//! that have not ended. A malformed line is an error with its position and the expected text. An incomplete
//! last line means that the writer was killed while it wrote that line. The reader skips the line and reports
//! it ([`Reader::torn`]), unless it is the only line of the file: then the file may not be a history at all.

pub mod edn;
pub mod edn_transactions;
mod form;
pub mod json;
pub mod json_transactions;
mod record;
pub mod text;
pub mod watca;

use std::fmt;
use std::io::{self, BufRead, Read};
use std::str::FromStr;

use thiserror::Error;

use crate::history::{History, Impossible};
use crate::transactions::{RecordedTransaction, RefusedTransaction};

pub use record::{Decoder, Record, SyntaxError};

/// An error in a line, with the file and the position.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}:{line}:{column}: {expected}")]
pub struct Malformed {
    /// Name of the file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: u64,
    /// Column in the line, from 1.
    pub column: usize,
    /// Expected text.
    pub expected: String,
}

/// Reasons why a history cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The input could not be read.
    #[error("{file}: the file cannot be read: {source}")]
    Input {
        /// Name of the file.
        file: String,
        /// Error of the input.
        source: io::Error,
    },
    /// A line is malformed.
    #[error(transparent)]
    Malformed(#[from] Malformed),
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
    /// Returns the format that the beginning of a file looks like. `begin` holds at least the first line. An
    /// array of JSON objects counts as JSON, because the JSON decoder then explains the error.
    pub fn detect(begin: &str) -> Option<Self> {
        let begin = begin.trim_start_matches('\u{feff}').trim_start();
        let line = begin.lines().next()?;
        let mut words = line.split_whitespace();
        match (words.next()?, words.next()) {
            ("R" | "W", _) => Some(Self::Text),
            (first, Some("INV" | "RES")) if first.parse::<i64>().is_ok() => Some(Self::Watca),
            _ if line.contains("jepsen.util - ") => Some(Self::Edn),
            _ if is_json_array(begin) => Some(Self::Json),
            _ if line.starts_with(['[', '(']) || line.starts_with("{:") => Some(Self::Edn),
            _ if line.starts_with('{') => Some(Self::Json),
            _ => None,
        }
    }

    /// Returns a decoder of transactions for one input, or `None` if the format has no transactions.
    pub fn transaction_decoder(self) -> Option<Box<dyn Decoder + Send>> {
        match self {
            Self::Json => Some(Box::<json_transactions::JsonTransactions>::default()),
            Self::Edn => Some(Box::<edn_transactions::EdnTransactions>::default()),
            Self::Text | Self::Watca => None,
        }
    }

    /// Returns a decoder for one input. `failed_cas` matters only to Jepsen histories.
    pub fn decoder(self, failed_cas: edn::FailedCas) -> Box<dyn Decoder + Send> {
        match self {
            Self::Json => Box::<json::Json>::default(),
            Self::Text => Box::<text::Text>::default(),
            Self::Edn => Box::new(edn::Edn::new(failed_cas)),
            Self::Watca => Box::<watca::Watca>::default(),
        }
    }
}

/// Whether the text begins like an array of JSON objects. A map of EDN does not begin like that, because its
/// first key is no text.
fn is_json_array(begin: &str) -> bool {
    let array = begin.trim_start().strip_prefix('[');
    let object = array.and_then(|rest| rest.trim_start().strip_prefix('{'));
    object.is_some_and(|rest| rest.trim_start().starts_with(['"', '}']))
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

/// Upper bound of a line, in bytes. The bound protects memory from a file without line breaks.
pub const LINE_BYTES_MAX: u64 = 256 << 20;

/// An incomplete last line, which the reader skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Name of the file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: u64,
}

impl fmt::Display for Torn {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: the last line is incomplete and was skipped", self.file, self.line)
    }
}

/// Reads one input, line by line.
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
    /// Reads `input` with `decoder`. Error messages name the input `file`.
    pub fn new(file: impl Into<String>, input: R, decoder: Box<dyn Decoder + Send>) -> Self {
        let file = file.into();
        Self { file, input, decoder, line: 0, buffer: Vec::new(), ended: false, torn: None, bytes: 0 }
    }

    /// Appends the records of the next line to `out`. Returns `false` after the last line.
    pub fn read(&mut self, out: &mut Vec<Record>) -> Result<bool, ReadError> {
        if self.ended {
            return Ok(false);
        }
        self.buffer.clear();
        let read = self.input.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut self.buffer);
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
            _ if self.buffer.len() as u64 > LINE_BYTES_MAX => {
                let expected = format!("expected a line of at most {} MiB", LINE_BYTES_MAX >> 20);
                return Err(self.malformed(SyntaxError::new(1, expected)).into());
            }
            Ok(line) => match line.trim_end_matches(['\n', '\r']) {
                line if line.trim().is_empty() => Ok(()),
                line => self.decoder.line(line, out),
            },
            Err(error) => Err(SyntaxError::new(error.valid_up_to() + 1, "expected UTF-8 text")),
        };
        match result {
            Ok(()) => Ok(true),
            Err(_) if !whole && self.line > 1 => {
                out.truncate(before);
                self.torn = Some(Torn { file: self.file.clone(), line: self.line });
                Ok(true)
            }
            Err(fault) => Err(self.malformed(fault).into()),
        }
    }

    /// Reads the whole input into `history`.
    pub fn read_into(&mut self, history: &mut History) -> Result<(), ReadError> {
        self.read_each(|record| history.record(record))
    }

    /// Reads the whole input of transactions and passes each transaction to `take`. If `take` refuses a
    /// transaction, the call returns an error with the number of its line.
    pub fn read_transactions(
        &mut self,
        mut take: impl FnMut(RecordedTransaction) -> Result<(), RefusedTransaction>,
    ) -> Result<(), ReadError> {
        self.read_each(|record| match record {
            Record::Transaction(transaction) => take(transaction),
            Record::Operation(_) | Record::Clock { .. } => Ok(()),
        })
    }

    fn read_each<E: fmt::Display>(
        &mut self,
        mut take: impl FnMut(Record) -> Result<(), E>,
    ) -> Result<(), ReadError> {
        let mut records = Vec::new();
        loop {
            let more = self.read(&mut records)?;
            for record in records.drain(..) {
                take(record).map_err(|refused| self.malformed(SyntaxError::new(1, refused.to_string())))?;
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Returns the error for an impossible operation on the line just read.
    pub fn impossible(&self, impossible: &Impossible) -> Malformed {
        self.malformed(SyntaxError::new(1, impossible.to_string()))
    }

    /// Returns the position of the last line if that line was incomplete.
    pub fn torn(&self) -> Option<&Torn> {
        self.torn.as_ref()
    }

    /// Returns the number of bytes read.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn malformed(&self, fault: SyntaxError) -> Malformed {
        let SyntaxError { column, expected } = fault;
        Malformed { file: self.file.clone(), line: self.line, column, expected }
    }
}
