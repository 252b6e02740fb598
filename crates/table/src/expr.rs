//! Bound expressions: names resolved, types checked, coercions explicit.

use serde::{Deserialize, Serialize};

use crate::value::{Type, Value};

/// An expression over one row. Every node's type is known (`Expr::ty`); operands of a binary operator have already
/// been brought to one type by explicit casts, so evaluation never guesses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Expr {
    /// The value of the column at this index of the input row.
    Column(usize, Type),
    /// A constant with its type (NULL has one too).
    Constant(Value, Type),
    /// The value bound to parameter `$n` (zero-based here).
    Parameter(usize, Type),
    /// A unary operator.
    Unary(Unary, Box<Expr>),
    /// A binary operator on operands of one type, except date/time arithmetic.
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// `expr IS NULL`.
    IsNull(Box<Expr>),
    /// `expr IN (list)`; NULL logic as in SQL. NOT IN is `Not` of it.
    In(Box<Expr>, Vec<Expr>),
    /// `expr LIKE pattern ESCAPE escape`; `None` = no escape character. NOT LIKE is `Not` of it.
    Like {
        /// The string.
        text: Box<Expr>,
        /// The pattern.
        pattern: Box<Expr>,
        /// The escape character, by default a backslash.
        escape: Option<char>,
        /// ILIKE.
        case_insensitive: bool,
    },
    /// `CAST(expr AS type)`, explicit or inserted by the binder.
    Cast(Box<Expr>, Type),
    /// `CASE WHEN … THEN … ELSE … END` (searched form).
    Case {
        /// Conditions and results.
        branches: Vec<(Expr, Expr)>,
        /// ELSE; NULL when absent.
        otherwise: Option<Box<Expr>>,
        /// The result type.
        ty: Type,
    },
    /// A scalar function.
    Call(Function, Vec<Expr>),
}

/// Unary operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unary {
    /// Boolean NOT.
    Not,
    /// Arithmetic minus.
    Negate,
}

/// Binary operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Binary {
    /// Boolean AND, three-valued.
    And,
    /// Boolean OR, three-valued.
    Or,
    /// `=`
    Equal,
    /// `<>`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterEqual,
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `%`
    Modulo,
    /// `||`
    Concat,
}

/// Scalar functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Function {
    /// `abs(x)`
    Abs,
    /// `lower(text)`
    Lower,
    /// `upper(text)`
    Upper,
    /// `length(text)`, in characters
    Length,
    /// `coalesce(…)`
    Coalesce,
    /// `nullif(a, b)`
    NullIf,
    /// `round(x [, digits])`
    Round,
    /// `floor(x)`
    Floor,
    /// `ceil(x)`
    Ceil,
    /// `substring(text, from [, for])`
    Substring,
    /// `date_trunc(field, timestamp)`
    DateTrunc,
    /// `extract(field from source)`
    Extract,
}

/// An aggregate over the rows of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Aggregate {
    /// Which one.
    pub function: AggregateFunction,
    /// Its argument; `None` only for `count(*)`.
    pub argument: Option<Expr>,
    /// `DISTINCT` inside the call.
    pub distinct: bool,
}

/// Aggregate functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AggregateFunction {
    /// `count(x)` or `count(*)`
    Count,
    /// `sum(x)`: int2/int4 → int8, int8 → numeric, else the argument's type.
    Sum,
    /// `min(x)`
    Min,
    /// `max(x)`
    Max,
    /// `avg(x)`: integers and numeric → numeric, float8 → float8.
    Avg,
}
