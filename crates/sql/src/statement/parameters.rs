//! The placeholders of an expression: the client's `$n`, and values that only its session knows.

use std::{ops::Range, sync::Arc};

use quorate_table::{
    calendar,
    expr::Expr,
    interval::Interval,
    uuid,
    value::{Type, Value},
};
use sqlparser::tokenizer::Span;

use crate::{
    array,
    backend::Catalog,
    error::{Result, SqlError, code},
    sequence::SequenceCall,
    types::PgType,
};

/// Maximum number of parameters of a statement, as in PostgreSQL's protocol.
const PARAMETERS_MAX: usize = 65_535;

/// The known types of `$1`, `$2`, …. If the client declared no type for a parameter, its first use decides
/// the type.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    types: Vec<Option<PgType>>,
    /// Whether binding met something that the engine's expressions lack, and that the catalog's evaluator may
    /// have.
    pub needs_catalog: bool,
    /// The settings on which the statement's meaning depends.
    pub depends: SettingDependencies,
    /// The calls of sequence functions, in order.
    pub calls: Vec<SequenceCall>,
    /// The catalog in which calls of sequence functions find their sequences. `None` where such calls are not
    /// allowed.
    pub sequences: Option<Arc<Catalog>>,
    /// Number of nodes that were copied, because a form needs an operand at several places.
    copied: usize,
}

/// Maximum number of nodes of expressions that binding copies. A copy of a copy doubles at each level, so
/// that a short statement could take all memory.
const COPIED_NODES_MAX: usize = 1 << 18;

/// The settings on which a statement's meaning depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettingDependencies {
    /// Whether the statement converts a time without a zone to a time with a zone, by the session's time
    /// zone.
    pub time_zone: bool,
    /// Whether the statement writes an interval as text.
    pub interval_style: bool,
}

impl Parameters {
    /// Starts with the types that the client declared.
    pub fn declared(types: Vec<Option<PgType>>) -> Self {
        Parameters { types, ..Parameters::default() }
    }

    /// Adds a call of a sequence function. Returns the value that stands for its result.
    pub fn call(&mut self, call: SequenceCall) -> SessionValue {
        self.calls.push(call);
        SessionValue::SequenceResult(self.calls.len() - 1)
    }

    /// Returns the zero-based number of a placeholder such as `$3`.
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

    /// Returns the type of a parameter, if it is known.
    pub fn ty(&self, number: usize) -> Option<PgType> {
        self.types[number]
    }

    /// Decides the type of a parameter, unless the parameter has a type.
    pub fn decide(&mut self, number: usize, ty: PgType) {
        self.types[number].get_or_insert(ty);
    }

    /// Records a conversion whose meaning may depend on a setting.
    pub fn converts(&mut self, from: Type, to: Type) {
        let local = matches!(from, Type::Date | Type::Timestamp | Type::Text);
        self.depends.time_zone |= to == Type::Timestamptz && local;
    }

    /// Records a text that is read as a value, whose meaning may depend on a setting.
    pub fn reads(&mut self, text: &str, ty: Type) {
        self.depends.time_zone |= ty == Type::Timestamptz && is_local(text);
    }

    /// Copies an expression that a form needs at several places. The root is not counted, because copies of
    /// columns and constants are at most as many as the words of the statement.
    pub fn copy(&mut self, expr: &Expr, span: Span) -> Result<Expr> {
        fn nodes(expr: &Expr) -> usize {
            1 + expr.children().into_iter().map(nodes).sum::<usize>()
        }
        self.copied += nodes(expr) - 1;
        if self.copied > COPIED_NODES_MAX {
            return Err(SqlError::new(code::STATEMENT_TOO_COMPLEX, "the statement is too complex")
                .detail("IS TRUE, IS DISTINCT FROM, BETWEEN, CASE, ANY and ALL repeat their operands.")
                .at(span));
        }
        Ok(expr.clone())
    }

    /// Returns all types. A parameter that still has no type is an error, as in PostgreSQL.
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

/// Whether a text is a time without a zone, so that a zone can be appended to it.
pub fn is_local(text: &str) -> bool {
    let bare = text.trim_end();
    let era = bare.len().saturating_sub(2);
    let bare = match bare.get(era..) {
        Some(era_name) if era_name.eq_ignore_ascii_case("bc") || era_name.eq_ignore_ascii_case("ad") => {
            &bare[..era]
        }
        _ => bare,
    };
    calendar::parse_timestamp(&format!("{bare} +01"), true).is_ok()
}

/// Returns the error about a time without a zone, if the client asked for another time zone than the session
/// has (0A000).
pub fn ambiguous_time_error(zone: &str) -> SqlError {
    SqlError::unsupported(format!("a time without a zone in the time zone \"{zone}\""))
        .detail(
            "The time zone of every session is UTC, and this client asked for another time zone when \
             it connected.",
        )
        .hint("Write the zone with the time (+09), or SET TIME ZONE 'UTC' (JDBC: -Duser.timezone=UTC).")
}

/// A value that differs between sessions or executions. A prepared statement leaves the value open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionValue {
    /// `now()`, `current_timestamp`: the time when the statement, or its block, began.
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
    /// `gen_random_uuid()`, a new value for each row.
    RandomUuid,
    /// The result of a call of a sequence function, by the call's number within the statement.
    SequenceResult(usize),
}

/// Number of the first session value as a parameter, far above any `$n`.
const SESSION: usize = 1 << 32;

impl SessionValue {
    /// All session values that a default can have. Defaults in stored tables refer to a value by its index
    /// here, so the order is fixed.
    const ALL: [SessionValue; 8] = [
        SessionValue::Now,
        SessionValue::Today,
        SessionValue::LocalNow,
        SessionValue::User,
        SessionValue::Database,
        SessionValue::Schema,
        SessionValue::Pid,
        SessionValue::RandomUuid,
    ];

    /// Returns the session value that a function or keyword of this name stands for.
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
            "gen_random_uuid" => SessionValue::RandomUuid,
            _ => return None,
        })
    }

    /// Whether each row of a statement gets another value.
    pub fn differs_by_row(self) -> bool {
        matches!(self, SessionValue::RandomUuid | SessionValue::SequenceResult(_))
    }

    /// Whether a default takes another value for each row.
    pub fn is_random(default: &Expr) -> bool {
        match default {
            Expr::Parameter(number, _) => Self::from_number(*number) == Some(SessionValue::RandomUuid),
            Expr::Cast(inner, _) => Self::is_random(inner),
            _ => false,
        }
    }

    /// Returns a value for `gen_random_uuid()`.
    pub fn random_uuid() -> Value {
        Value::Uuid(uuid::random(rand::random()))
    }

    /// Returns the value's expression in PostgreSQL's SQL.
    pub fn text(self) -> &'static str {
        match self {
            SessionValue::Now => "now()",
            SessionValue::Today => "CURRENT_DATE",
            SessionValue::LocalNow => "LOCALTIMESTAMP",
            SessionValue::User => "CURRENT_USER",
            SessionValue::Database => "current_database()",
            SessionValue::Schema => "CURRENT_SCHEMA",
            SessionValue::Pid => "pg_backend_pid()",
            SessionValue::RandomUuid => "gen_random_uuid()",
            SessionValue::SequenceResult(_) => "nextval()",
        }
    }

    /// Returns the value's type.
    pub fn ty(self) -> PgType {
        match self {
            SessionValue::Now => PgType::Plain(Type::Timestamptz),
            SessionValue::Today => PgType::Plain(Type::Date),
            SessionValue::LocalNow => PgType::Plain(Type::Timestamp),
            SessionValue::User | SessionValue::Database | SessionValue::Schema => PgType::Name,
            SessionValue::Pid => PgType::INT4,
            SessionValue::RandomUuid => PgType::Plain(Type::Uuid),
            SessionValue::SequenceResult(_) => PgType::INT8,
        }
    }

    /// Returns the parameter number that stands for the value.
    pub fn number(self) -> usize {
        if let SessionValue::SequenceResult(call) = self {
            return RESULTS + call;
        }
        SESSION + Self::ALL.iter().position(|value| *value == self).expect("the list has all session values")
    }

    /// Returns the value that a parameter number stands for. `None` for the client's own parameters.
    pub fn from_number(number: usize) -> Option<Self> {
        if RESULTS_OF_SEQUENCES.contains(&number) {
            return Some(SessionValue::SequenceResult(number - RESULTS));
        }
        number.checked_sub(SESSION).and_then(|index| Self::ALL.get(index)).copied()
    }
}

/// First parameter number that stands for each element of an array in turn.
const EACH: usize = 1 << 33;

/// Returns the parameter number that stands for each element of the array `$number`. It occurs only in the
/// list of an `IN`, where it makes one item for each element.
pub fn element_parameter(number: usize) -> usize {
    EACH + number
}

/// Returns the number of the array parameter whose elements the parameter `number` stands for
/// ([`element_parameter`]).
pub fn array_parameter(number: usize) -> Option<usize> {
    number.checked_sub(EACH).filter(|_| number < PARTS)
}

/// First parameter number that stands for a part of an interval.
const PARTS: usize = 1 << 34;

/// First parameter number that stands for the result of a call of a sequence function.
const RESULTS: usize = 1 << 40;

/// The parameter numbers that stand for results of calls of sequence functions.
const RESULTS_OF_SEQUENCES: Range<usize> = RESULTS..RESULTS + (1 << 32);

/// A part of an interval parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntervalPart {
    /// Months, an integer.
    Months,
    /// Days, an integer.
    Days,
    /// Microseconds, a bigint.
    Micros,
}

impl IntervalPart {
    const ALL: [IntervalPart; 3] = [IntervalPart::Months, IntervalPart::Days, IntervalPart::Micros];

    /// Returns the parameter number that stands for this part of the interval `$number`.
    pub fn number(self, number: usize) -> usize {
        PARTS + Self::ALL.len() * number + self as usize
    }

    /// Returns the part that a parameter number stands for, and the number of the interval.
    fn from_number(number: usize) -> Option<(Self, usize)> {
        let index = number.checked_sub(PARTS)?;
        Some((Self::ALL[index % Self::ALL.len()], index / Self::ALL.len()))
    }

    fn of(self, interval: &Value) -> Value {
        let Value::Text(text) = interval else { return Value::Null };
        let interval = Interval::parse(text).expect("a parameter was checked when it arrived");
        match self {
            IntervalPart::Months => Value::Int4(interval.months),
            IntervalPart::Days => Value::Int4(interval.days),
            IntervalPart::Micros => Value::Int8(interval.micros),
        }
    }
}

/// The values with which a statement is executed.
pub struct Arguments<'a> {
    /// The values of `$1`, `$2`, …, each NULL or of its parameter's type.
    pub values: &'a [Value],
    /// A function that returns each of the session's values.
    pub session: &'a (dyn Fn(SessionValue) -> Value + Sync),
}

impl Arguments<'_> {
    /// Returns the value of a parameter number.
    pub fn value(&self, number: usize) -> Value {
        match (SessionValue::from_number(number), IntervalPart::from_number(number)) {
            (Some(value), _) => (self.session)(value),
            (None, Some((part, interval))) => part.of(&self.values[interval]),
            (None, None) => self.values[number].clone(),
        }
    }

    /// Returns the elements of an array parameter. A parameter that is NULL counts as one element that is
    /// NULL.
    pub fn elements(&self, number: usize, ty: Type) -> Vec<Value> {
        match &self.values[number] {
            Value::Text(text) => {
                // A vector has elements like an array, and its text has no braces.
                let of = if text.trim_start().starts_with('{') { PgType::array } else { PgType::vector };
                let array = of(PgType::Plain(ty))
                    .expect("a parameter that arrived as an array or a vector has an array type");
                array::values(text, array).expect("a parameter was checked when it arrived")
            }
            _ => vec![Value::Null],
        }
    }
}
