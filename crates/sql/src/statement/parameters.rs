//! What an expression may hold a place for: the client's `$n`, and values that only its session knows.

use quorate_table::{
    interval::Interval,
    value::{Type, Value},
};
use sqlparser::tokenizer::Span;

use crate::{
    array,
    error::{Result, SqlError, code},
    types::PgType,
};

/// Most parameters of a statement, as in PostgreSQL's protocol.
const PARAMETERS_MAX: usize = 65_535;

/// The types of `$1`, `$2`, … as far as they are known; the first use decides what the client left open.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    types: Vec<Option<PgType>>,
    /// Something was met that the engine's expressions do not have and the catalog's evaluator may.
    pub beyond: bool,
}

impl Parameters {
    /// Starts with the types that the client declared.
    pub fn declared(types: Vec<Option<PgType>>) -> Self {
        Parameters { types, beyond: false }
    }

    /// The zero-based number of a placeholder such as `$3`.
    pub fn number(&mut self, placeholder: &str, span: Span) -> Result<usize> {
        let number = placeholder.strip_prefix('$').and_then(|digits| digits.parse::<usize>().ok());
        match number {
            Some(number @ 1..=PARAMETERS_MAX) => {
                if self.types.len() < number {
                    self.types.resize(number, None);
                }
                Ok(number - 1)
            }
            _ => {
                Err(SqlError::new(code::UNDEFINED_PARAMETER, format!("there is no parameter {placeholder}"))
                    .at(span))
            }
        }
    }

    /// The type of a parameter if it is known.
    pub fn ty(&self, number: usize) -> Option<PgType> {
        self.types[number]
    }

    /// Decides a type.
    pub fn decide(&mut self, number: usize, ty: PgType) {
        self.types[number].get_or_insert(ty);
    }

    /// All types; what nothing decided is text, what nothing mentioned is an error as in PostgreSQL.
    pub fn finish(self) -> Result<Vec<PgType>> {
        self.types
            .into_iter()
            .enumerate()
            .map(|(index, ty)| {
                ty.ok_or_else(|| {
                    SqlError::new(
                        code::INDETERMINATE_DATATYPE,
                        format!("could not determine data type of parameter ${}", index + 1),
                    )
                })
            })
            .collect()
    }
}

/// A value that differs between sessions or executions, so that a prepared statement leaves it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionValue {
    /// `now()`, `current_timestamp`: when the statement (or its block) began.
    Now,
    /// `current_date`.
    Today,
    /// `localtimestamp`.
    LocalNow,
    /// `current_user`, `session_user`, `user`.
    User,
    /// `current_database()`, `current_catalog`.
    Database,
    /// `current_schema()`.
    Schema,
    /// `pg_backend_pid()`.
    Pid,
}

/// Session values are parameters from this number on, far above any `$n`.
const SESSION: usize = 1 << 32;

impl SessionValue {
    /// Tables' defaults keep a value's place in this list.
    const ALL: [SessionValue; 7] = [
        SessionValue::Now,
        SessionValue::Today,
        SessionValue::LocalNow,
        SessionValue::User,
        SessionValue::Database,
        SessionValue::Schema,
        SessionValue::Pid,
    ];

    /// The value that a function or keyword of this name stands for.
    pub fn named(function: &str) -> Option<Self> {
        Some(match function {
            "now" | "current_timestamp" | "transaction_timestamp" | "statement_timestamp" => {
                SessionValue::Now
            }
            "current_date" => SessionValue::Today,
            "localtimestamp" => SessionValue::LocalNow,
            "current_user" | "session_user" | "user" | "current_role" => SessionValue::User,
            "current_database" | "current_catalog" => SessionValue::Database,
            "current_schema" => SessionValue::Schema,
            "pg_backend_pid" => SessionValue::Pid,
            _ => return None,
        })
    }

    /// How PostgreSQL writes it.
    pub fn text(self) -> &'static str {
        match self {
            SessionValue::Now => "now()",
            SessionValue::Today => "CURRENT_DATE",
            SessionValue::LocalNow => "LOCALTIMESTAMP",
            SessionValue::User => "CURRENT_USER",
            SessionValue::Database => "current_database()",
            SessionValue::Schema => "CURRENT_SCHEMA",
            SessionValue::Pid => "pg_backend_pid()",
        }
    }

    /// Its type.
    pub fn ty(self) -> PgType {
        match self {
            SessionValue::Now => PgType::Plain(Type::Timestamptz),
            SessionValue::Today => PgType::Plain(Type::Date),
            SessionValue::LocalNow => PgType::Plain(Type::Timestamp),
            SessionValue::User | SessionValue::Database | SessionValue::Schema => PgType::Name,
            SessionValue::Pid => PgType::INT4,
        }
    }

    /// The parameter number that stands for it.
    pub fn number(self) -> usize {
        SESSION + Self::ALL.iter().position(|value| *value == self).expect("all are in the list")
    }

    /// The value that a parameter number stands for; `None` for the client's own.
    pub fn numbered(number: usize) -> Option<Self> {
        number.checked_sub(SESSION).and_then(|index| Self::ALL.get(index)).copied()
    }
}

/// Parameters from this number on stand for each element of an array in turn.
const EACH: usize = 1 << 33;

/// The number that stands for each element of the array `$number`. In the list of an `IN` it makes as many items as
/// the array has elements; it stands nowhere else.
pub fn each(number: usize) -> usize {
    EACH + number
}

/// The array whose elements a number stands for.
pub fn array_of(number: usize) -> Option<usize> {
    number.checked_sub(EACH).filter(|_| number < PARTS)
}

/// Parameters from this number on stand for parts of an interval.
const PARTS: usize = 1 << 34;

/// A part of an interval that a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// An integer.
    Months,
    /// An integer.
    Days,
    /// A bigint.
    Micros,
}

impl Part {
    const ALL: [Part; 3] = [Part::Months, Part::Days, Part::Micros];

    /// The number that stands for this part of the interval `$number`.
    pub fn number(self, number: usize) -> usize {
        PARTS + Self::ALL.len() * number + self as usize
    }

    /// The part and the interval that a number stands for.
    fn numbered(number: usize) -> Option<(Self, usize)> {
        let index = number.checked_sub(PARTS)?;
        Some((Self::ALL[index % Self::ALL.len()], index / Self::ALL.len()))
    }

    fn of(self, interval: &Value) -> Value {
        let Value::Text(text) = interval else { return Value::Null };
        let interval = Interval::parse(text).expect("checked when it came");
        match self {
            Part::Months => Value::Int4(interval.months),
            Part::Days => Value::Int4(interval.days),
            Part::Micros => Value::Int8(interval.micros),
        }
    }
}

/// What a statement is executed with.
pub struct Arguments<'a> {
    /// The values of `$1`, `$2`, …, each of its parameter's type or NULL.
    pub values: &'a [Value],
    /// The session's values.
    pub session: &'a (dyn Fn(SessionValue) -> Value + Sync),
}

impl Arguments<'_> {
    /// The value of a numbered parameter.
    pub fn value(&self, number: usize) -> Value {
        match (SessionValue::numbered(number), Part::numbered(number)) {
            (Some(value), _) => (self.session)(value),
            (None, Some((part, interval))) => part.of(&self.values[interval]),
            (None, None) => self.values[number].clone(),
        }
    }

    /// The elements of an array parameter; one NULL for no array.
    pub fn elements(&self, number: usize, ty: Type) -> Vec<Value> {
        match &self.values[number] {
            Value::Text(text) => array::values(text, PgType::Plain(ty)).expect("checked when it came"),
            _ => vec![Value::Null],
        }
    }
}
