//! A record of a history, and the trait of decoders of records.

use crate::operation::Operation;
use crate::transactions::RecordedTransaction;

/// An error in a line, as its decoder reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Column of the error, from 1.
    pub column: usize,
    /// Expected text.
    pub expected: String,
}

impl SyntaxError {
    /// Creates the error "`expected` is missing at `column`". Columns count from 1.
    pub fn new(column: usize, expected: impl Into<String>) -> Self {
        Self { column, expected: expected.into() }
    }
}

/// One record, as a decoder reads it from a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An operation that ended, or that will never end.
    Operation(Operation),
    /// A transaction that ended, or that will never end.
    Transaction(RecordedTransaction),
    /// The clock error of a host.
    Clock {
        /// Name of the host.
        host: String,
        /// Error of the host's clock in nanoseconds, in either direction.
        error: u64,
    },
}

/// Decodes the lines of one format.
pub trait Decoder {
    /// Decodes one line, without its line break, and appends the records that it completes.
    fn line(&mut self, line: &str, out: &mut Vec<Record>) -> Result<(), SyntaxError>;
    /// Ends the input and appends the operations that never ended.
    fn end(&mut self, out: &mut Vec<Record>);
}
