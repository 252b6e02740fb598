//! Reads files, for a check of the whole history and for a stream.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use indicatif::ProgressBar;
use quorate_history::format::edn::FailedCas;
use quorate_history::format::{Format, ReadError, Reader, Record, Torn};
use quorate_history::transactions::{RecordedTransaction, RefusedTransaction};
use quorate_history::{History, Impossible, Operation};

use quorate_command::Usage;

/// The records that a file should hold.
#[derive(Clone, Copy)]
pub(super) enum Wanted {
    /// Single operations, with the meaning of a failed compare-and-set.
    Operations(FailedCas),
    /// Transactions.
    Transactions,
}

/// A file, read record by record.
pub(super) struct HistorySource {
    format: Format,
    reader: Reader<Box<dyn BufRead>>,
    records: Vec<Record>,
    operations: VecDeque<Operation>,
}

impl HistorySource {
    /// Opens a file, or standard input for `-`. Returns `None` if the file is empty.
    pub(super) fn open(
        path: &Path,
        format: Option<Format>,
        wanted: Wanted,
        progress: &ProgressBar,
    ) -> Result<Option<Self>, Usage> {
        let name = path.display().to_string();
        let input: Box<dyn Read> = match name.as_str() {
            "-" => Box::new(io::stdin().lock()),
            _ => Box::new(File::open(path).map_err(|error| Usage(format!("cannot read {name}: {error}")))?),
        };
        let mut input = BufReader::with_capacity(1 << 20, progress.wrap_read(input));
        let begin = input.fill_buf().map_err(|error| Usage(format!("cannot read {name}: {error}")))?;
        let begin = String::from_utf8_lossy(begin);
        let format = match format {
            _ if begin.trim().is_empty() => return Ok(None),
            Some(format) => format,
            None => Format::detect(&begin).ok_or_else(|| {
                let formats = "JSON lines, R|W lines, Jepsen EDN or a WatCA log";
                Usage(format!("{name}:1:1: expected {formats}; name the format with --format"))
            })?,
        };
        let input: Box<dyn BufRead> = Box::new(input);
        let decoder = match wanted {
            Wanted::Operations(failed_cas) => format.decoder(failed_cas),
            Wanted::Transactions => format.transaction_decoder().ok_or_else(|| {
                Usage(format!("{name}:1:1: expected JSON lines or Jepsen EDN, which hold transactions"))
            })?,
        };
        let reader = Reader::new(name, input, decoder);
        Ok(Some(Self { format, reader, records: Vec::new(), operations: VecDeque::new() }))
    }

    /// Reads the whole file into `history`.
    pub(super) fn read_into(&mut self, history: &mut History) -> Result<(), Usage> {
        self.reader.read_into(history).map_err(unreadable)
    }

    /// Reads the whole file and hands each transaction to `take`.
    pub(super) fn read_transactions(
        &mut self,
        take: impl FnMut(RecordedTransaction) -> Result<(), RefusedTransaction>,
    ) -> Result<(), Usage> {
        self.reader.read_transactions(take).map_err(unreadable)
    }

    /// Returns the format of the file.
    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// Returns the end of the next operation, or its start if it never ended. Returns `None` after the last
    /// operation.
    pub(super) fn peek(&mut self) -> Result<Option<i64>, Usage> {
        while self.operations.is_empty() {
            let more = self.reader.read(&mut self.records).map_err(unreadable)?;
            let operations = self.records.drain(..).filter_map(|record| match record {
                Record::Operation(operation) => Some(operation),
                Record::Transaction(_) | Record::Clock { .. } => None,
            });
            self.operations.extend(operations);
            if !more {
                break;
            }
        }
        Ok(self.operations.front().map(|operation| operation.finish.unwrap_or(operation.start)))
    }

    /// Returns the next operation if [`peek`](Self::peek) found one.
    pub(super) fn next(&mut self) -> Option<Operation> {
        self.operations.pop_front()
    }

    /// Returns the error for an impossible operation of this file.
    pub(super) fn impossible(&self, impossible: &Impossible) -> Usage {
        Usage(self.reader.impossible(impossible).to_string())
    }

    /// Returns the last line if it was incomplete.
    pub(super) fn torn(&self) -> Option<&Torn> {
        self.reader.torn()
    }
}

fn unreadable(error: ReadError) -> Usage {
    Usage(error.to_string())
}
