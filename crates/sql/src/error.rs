//! The error that a client gets when a statement fails: SQLSTATE, message, and the place in the text.

use std::{
    borrow::Cow,
    fmt,
    ops::{Deref, DerefMut},
};

use quorate_protocol::Fate;
use quorate_table::{failure::Failure, schema::Schema};
use sqlparser::tokenizer::{Location, Span};
use thiserror::Error;

use crate::name::RequestName;

/// An error in PostgreSQL's terms. Boxed to keep results small, because errors are rare.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {}", .0.code, .0.message)]
pub struct SqlError(Box<Fields>);

/// The parts of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    /// The five characters of the SQLSTATE.
    pub code: Cow<'static, str>,
    /// The message: the mistake and the wrong value.
    pub message: String,
    /// More about the mistake.
    pub detail: Option<String>,
    /// The advice to the client.
    pub hint: Option<String>,
    /// The place in the statement.
    pub place: Option<SourcePosition>,
    /// The place in the data of a COPY, for example its line.
    pub context: Option<String>,
    /// The objects that the error is about. Some drivers read them.
    pub about: ErrorObjects,
    /// The PostgreSQL routine that reports this error. Some drivers recognise the error by it.
    pub routine: Option<&'static str>,
    /// The possible outcome of the statement, if the statement got no answer.
    pub fate: Option<Fate>,
    /// The name under which the write can be sent again.
    pub request: Option<RequestName>,
}

/// The objects that an error is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorObjects {
    /// The name of the table.
    pub table: Option<String>,
    /// A column of the table.
    pub column: Option<String>,
    /// A constraint of the table.
    pub constraint: Option<String>,
}

impl Deref for SqlError {
    type Target = Fields;

    fn deref(&self) -> &Fields {
        &self.0
    }
}

impl DerefMut for SqlError {
    fn deref_mut(&mut self) -> &mut Fields {
        &mut self.0
    }
}

/// A line and column of a statement's text, both counted from 1. Columns are counted in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourcePosition {
    /// Number of the line.
    pub line: u64,
    /// Number of the character within the line.
    pub column: u64,
}

impl SourcePosition {
    /// Returns the place of a token, if it has one.
    pub fn of(location: Location) -> Option<SourcePosition> {
        let Location { line, column } = location;
        (line > 0).then_some(SourcePosition { line, column })
    }

    /// Returns the offset in `text` in characters, counted from 1, as in the protocol.
    pub fn offset(self, text: &str) -> usize {
        let before: usize =
            text.split_inclusive('\n').take(self.line as usize - 1).map(|line| line.chars().count()).sum();
        before + self.column as usize
    }
}

/// Longest message, detail, hint or context that is sent to a client, in bytes.
const TEXT_BYTES_MAX: usize = 8 << 10;

/// The result of everything that may report an error to a client.
pub type Result<T, E = SqlError> = std::result::Result<T, E>;

impl SqlError {
    /// Creates an error with a code and a message.
    pub fn new(code: impl Into<Cow<'static, str>>, message: impl fmt::Display) -> Self {
        SqlError(Box::new(Fields {
            code: code.into(),
            message: message.to_string(),
            detail: None,
            hint: None,
            place: None,
            context: None,
            about: ErrorObjects::default(),
            routine: None,
            fate: None,
            request: None,
        }))
    }

    /// Creates the error about a feature of SQL that Quorate does not have (0A000).
    pub fn unsupported(what: impl fmt::Display) -> Self {
        SqlError::new(code::FEATURE_NOT_SUPPORTED, format!("{what} is not supported"))
    }

    /// Adds the place where `span` starts, unless a more exact place is known.
    #[must_use]
    pub fn at(mut self, span: Span) -> Self {
        self.place = self.place.or(SourcePosition::of(span.start));
        self
    }

    /// Adds the possible outcome of the statement, unless it is known already.
    #[must_use]
    pub fn with_fate(mut self, fate: Option<Fate>) -> Self {
        self.fate = self.fate.or(fate);
        self
    }

    /// Adds the name under which the write was sent.
    #[must_use]
    pub fn with_request(mut self, request: RequestName) -> Self {
        self.request = Some(request);
        self
    }

    /// Shortens the texts of the error to a bounded length before the error is sent. A message may quote a
    /// value of any length.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let Fields { message, detail, hint, context, .. } = &mut *self;
        for text in [Some(message), detail.as_mut(), hint.as_mut(), context.as_mut()].into_iter().flatten() {
            if text.len() > TEXT_BYTES_MAX {
                let end = (0..=TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
                text.truncate(end);
                text.push_str("...");
                text.shrink_to_fit();
            }
        }
        self
    }

    /// Adds a detail.
    #[must_use]
    pub fn detail(mut self, detail: impl fmt::Display) -> Self {
        self.detail = Some(detail.to_string());
        self
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Adds the names of the constraint, column and table that were violated, if the error is about a
    /// constraint.
    #[must_use]
    pub fn within(mut self, schema: &Schema) -> Self {
        match self.code.as_ref() {
            code::UNIQUE_VIOLATION => self.about.constraint = Some(schema.key_name()),
            code::NOT_NULL_VIOLATION => {
                let is_named = |name: &str| {
                    self.message.starts_with(&format!("null value in column \"{name}\" of relation"))
                };
                let column = schema.columns.iter().find(|column| is_named(&column.name));
                self.about.column = column.map(|column| column.name.clone());
            }
            code::CHECK_VIOLATION => {
                let is_named =
                    |name: &str| self.message.ends_with(&format!("violates check constraint \"{name}\""));
                let check = schema.checks().find(|check| is_named(&check.name));
                self.about.constraint = check.map(|check| check.name.clone());
            }
            _ => return self,
        }
        self.about.table = Some(schema.name.clone());
        self
    }

    /// Adds a context.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.context = Some(context.to_string());
        self
    }
}

impl From<Failure> for SqlError {
    fn from(failure: Failure) -> Self {
        let mut error = SqlError::new(failure.sqlstate, failure.message);
        error.detail = failure.detail;
        error
    }
}

/// The SQLSTATEs in use, by PostgreSQL's names.
#[allow(missing_docs, reason = "the names are PostgreSQL's own, appendix A of its manual")]
pub mod code {
    pub const SUCCESSFUL_COMPLETION: &str = "00000";
    pub const FEATURE_NOT_SUPPORTED: &str = "0A000";
    pub const PROTOCOL_VIOLATION: &str = "08P01";
    pub const CARDINALITY_VIOLATION: &str = "21000";
    pub const INVALID_ROW_COUNT_IN_LIMIT: &str = "2201W";
    pub const INVALID_ROW_COUNT_IN_OFFSET: &str = "2201X";
    pub const INVALID_PARAMETER_VALUE: &str = "22023";
    pub const INVALID_TEXT_REPRESENTATION: &str = "22P02";
    pub const INVALID_BINARY_REPRESENTATION: &str = "22P03";
    pub const BAD_COPY_FILE_FORMAT: &str = "22P04";
    pub const INVALID_REGULAR_EXPRESSION: &str = "2201B";
    pub const INVALID_ESCAPE_SEQUENCE: &str = "22025";
    pub const CHARACTER_NOT_IN_REPERTOIRE: &str = "22021";
    pub const DEPENDENT_OBJECTS: &str = "2BP01";
    pub const NOT_NULL_VIOLATION: &str = "23502";
    pub const UNIQUE_VIOLATION: &str = "23505";
    pub const CHECK_VIOLATION: &str = "23514";
    pub const ACTIVE_SQL_TRANSACTION: &str = "25001";
    pub const READ_ONLY_SQL_TRANSACTION: &str = "25006";
    pub const NO_ACTIVE_SQL_TRANSACTION: &str = "25P01";
    pub const IDLE_IN_TRANSACTION_SESSION_TIMEOUT: &str = "25P03";
    pub const TRANSACTION_TIMEOUT: &str = "25P04";
    pub const IN_FAILED_SQL_TRANSACTION: &str = "25P02";
    pub const INVALID_SQL_STATEMENT_NAME: &str = "26000";
    pub const INVALID_TRANSACTION_TERMINATION: &str = "2D000";
    pub const INVALID_CURSOR_NAME: &str = "34000";
    pub const INVALID_SCHEMA_NAME: &str = "3F000";
    pub const SERIALIZATION_FAILURE: &str = "40001";
    pub const STATEMENT_COMPLETION_UNKNOWN: &str = "40003";
    pub const SYNTAX_ERROR: &str = "42601";
    pub const DUPLICATE_COLUMN: &str = "42701";
    pub const AMBIGUOUS_COLUMN: &str = "42702";
    pub const UNDEFINED_COLUMN: &str = "42703";
    pub const UNDEFINED_OBJECT: &str = "42704";
    pub const DUPLICATE_OBJECT: &str = "42710";
    pub const AMBIGUOUS_FUNCTION: &str = "42725";
    pub const GROUPING_ERROR: &str = "42803";
    pub const DATATYPE_MISMATCH: &str = "42804";
    pub const CANNOT_COERCE: &str = "42846";
    pub const UNDEFINED_FUNCTION: &str = "42883";
    pub const INVALID_COLUMN_REFERENCE: &str = "42P10";
    pub const UNDEFINED_TABLE: &str = "42P01";
    pub const UNDEFINED_PARAMETER: &str = "42P02";
    pub const DUPLICATE_PREPARED_STATEMENT: &str = "42P05";
    pub const DUPLICATE_TABLE: &str = "42P07";
    pub const INDETERMINATE_DATATYPE: &str = "42P18";
    pub const INVALID_RECURSION: &str = "42P19";
    pub const INVALID_TABLE_DEFINITION: &str = "42P16";
    pub const WARNING: &str = "01000";
    pub const OUT_OF_MEMORY: &str = "53200";
    pub const PROGRAM_LIMIT_EXCEEDED: &str = "54000";
    pub const STATEMENT_TOO_COMPLEX: &str = "54001";
    pub const LOCK_NOT_AVAILABLE: &str = "55P03";
    pub const OBJECT_NOT_IN_PREREQUISITE_STATE: &str = "55000";
    pub const CANT_CHANGE_RUNTIME_PARAM: &str = "55P02";
    pub const QUERY_CANCELED: &str = "57014";
    pub const ADMIN_SHUTDOWN: &str = "57P01";
    pub const INTERNAL_ERROR: &str = "XX000";
    pub const DATA_CORRUPTED: &str = "XX001";
}
