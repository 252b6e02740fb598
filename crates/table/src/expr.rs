//! Bound expressions: names are resolved, types checked, coercions explicit.
//!
//! The binder (in the SQL interface) turns text into expressions; `eval.rs` evaluates them. A statement is
//! bound once with open parameters, and [`Expr::bind`] fills them in for each execution. Trees must stay
//! shallow, because evaluation, encoding and drop are recursive. So [`Expr::all`] and [`Expr::any`] build
//! long conjunctions and disjunctions as balanced trees, and a binder refuses trees whose [`Expr::depth`]
//! exceeds [`DEPTH_MAX`].

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use crate::{
    failure::Failure,
    modifier::Modifier,
    value::{Type, Value},
};

pub use crate::operator::{Binary, Unary};

/// The greatest depth of an expression. A deeper expression is refused as too complex (54001).
pub const DEPTH_MAX: usize = 200;

/// An expression over one row. The type of every node is known (`Expr::ty`). The binder has brought the
/// operands of a binary operator to one type by explicit casts, so evaluation never guesses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")] // `wire`, below, implements the traits.
pub enum Expr {
    /// The value of the column at this index of the input row.
    Column(usize, Type),
    /// A constant with its type; NULL has a type, too.
    Constant(Value, Type),
    /// The value bound to parameter `$n` (zero-based here).
    Parameter(usize, Type),
    /// A unary operator.
    Unary(Unary, Box<Expr>),
    /// A binary operator on operands of one type, except date/time arithmetic.
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// `expr IS NULL`.
    IsNull(Box<Expr>),
    /// `expr IN (list)`; NULL logic as in SQL. NOT IN is `Not` of this node.
    In(Box<Expr>, List),
    /// `expr LIKE pattern ESCAPE escape`; `None` = no escape character. NOT LIKE is `Not` of this node.
    Like {
        /// The string that is matched.
        text: Box<Expr>,
        /// The pattern that the string must match.
        pattern: Box<Expr>,
        /// The escape character, by default a backslash.
        escape: Option<char>,
        /// Whether the operator is ILIKE, which ignores case.
        case_insensitive: bool,
    },
    /// `CAST(expr AS type)`, explicit or inserted by the binder.
    Cast(Box<Expr>, Type),
    /// `CASE WHEN … THEN … ELSE … END` (searched form).
    Case {
        /// The conditions and their results.
        branches: Vec<(Expr, Expr)>,
        /// The result of ELSE; NULL if absent.
        otherwise: Option<Box<Expr>>,
        /// The result type.
        ty: Type,
    },
    /// A scalar function.
    Call(Function, Vec<Expr>),
}

/// The alternatives of an `IN`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct List {
    pub(crate) items: Vec<Expr>,
    /// The sorted constants, after the first use; `None` if the items are few, or not all constants of one
    /// kind.
    #[serde(skip)]
    pub(crate) members: OnceLock<Option<SortedMembers>>,
}

/// Sorted constants that compare with each other.
#[derive(Clone, Debug)]
pub(crate) struct SortedMembers {
    pub(crate) sorted: Sorted,
    /// Whether NULL was among the members.
    pub(crate) unknown: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Sorted {
    Integers(Vec<i64>),
    /// The sorted values, at least one.
    Values(Vec<Value>),
}

impl Expr {
    /// Returns the type of the expression's values.
    pub fn ty(&self) -> Type {
        match self {
            Expr::Column(_, ty)
            | Expr::Constant(_, ty)
            | Expr::Parameter(_, ty)
            | Expr::Cast(_, ty)
            | Expr::Case { ty, .. } => *ty,
            Expr::Unary(Unary::Not, _) | Expr::IsNull(_) | Expr::In(..) | Expr::Like { .. } => Type::Bool,
            Expr::Unary(Unary::Negate, inner) => inner.ty(),
            Expr::Binary(operator, left, right) => operator.ty(left.ty(), right.ty()),
            Expr::Call(function, arguments) => function.ty(arguments),
        }
    }

    /// Builds a constant.
    pub fn constant(value: Value, ty: Type) -> Expr {
        Expr::Constant(value, ty)
    }

    /// Builds a binary operator on two expressions.
    pub fn binary(operator: Binary, left: Expr, right: Expr) -> Expr {
        Expr::Binary(operator, Box::new(left), Box::new(right))
    }

    /// Builds a balanced conjunction; TRUE for no terms.
    pub fn all(terms: Vec<Expr>) -> Expr {
        Expr::balanced(Binary::And, terms).unwrap_or(Expr::Constant(Value::Bool(true), Type::Bool))
    }

    /// Builds a balanced disjunction; FALSE for no terms.
    pub fn any(terms: Vec<Expr>) -> Expr {
        Expr::balanced(Binary::Or, terms).unwrap_or(Expr::Constant(Value::Bool(false), Type::Bool))
    }

    fn balanced(operator: Binary, mut terms: Vec<Expr>) -> Option<Expr> {
        if terms.len() <= 1 {
            return terms.pop();
        }
        let rest = terms.split_off(terms.len() / 2);
        Some(Expr::binary(operator, Expr::balanced(operator, terms)?, Expr::balanced(operator, rest)?))
    }

    /// Returns the expression with constants for parameters, folded. Fails with 42P02 for a parameter without
    /// a value, and with 42804 for a value of another type.
    pub fn bind(&self, parameters: &[Value]) -> Result<Expr, Failure> {
        let mut bound = self.clone();
        bound.substitute(parameters)?;
        Ok(bound.fold())
    }

    fn substitute(&mut self, parameters: &[Value]) -> Result<(), Failure> {
        if let Expr::Parameter(number, ty) = *self {
            let value = parameters
                .get(number)
                .ok_or_else(|| Failure::new("42P02", format!("there is no parameter ${}", number + 1)))?;
            if !value.fits(ty) {
                return Err(Failure::new(
                    "42804",
                    format!(
                        "parameter ${} is of type {}, not of the type of its value",
                        number + 1,
                        ty.name()
                    ),
                ));
            }
            *self = Expr::Constant(value.clone(), ty);
            return Ok(());
        }
        self.children_mut().into_iter().try_for_each(|child| child.substitute(parameters))
    }

    /// Returns the number of levels of nodes.
    pub fn depth(&self) -> usize {
        1 + self.children().into_iter().map(Expr::depth).max().unwrap_or(0)
    }

    /// Adds the columns that the expression reads to `columns`.
    pub(crate) fn mentioned(&self, columns: &mut Vec<usize>) {
        match self {
            Expr::Column(column, _) => columns.push(*column),
            _ => self.children().into_iter().for_each(|child| child.mentioned(columns)),
        }
    }

    /// Whether the expression reads one of these columns.
    pub fn reads_any_of(&self, columns: &[usize]) -> bool {
        match self {
            Expr::Column(column, _) => columns.contains(column),
            _ => self.children().into_iter().any(|child| child.reads_any_of(columns)),
        }
    }

    /// Returns the columns that the expression reads, sorted.
    pub fn columns(&self) -> Vec<usize> {
        let mut columns = Vec::new();
        self.mentioned(&mut columns);
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    /// Returns the operands from left to right.
    pub fn children(&self) -> SmallVec<[&Expr; 4]> {
        match self {
            Expr::Column(..) | Expr::Constant(..) | Expr::Parameter(..) => SmallVec::new(),
            Expr::Unary(_, inner) | Expr::IsNull(inner) | Expr::Cast(inner, _) => smallvec![&**inner],
            Expr::Binary(_, left, right) => smallvec![&**left, &**right],
            Expr::Like { text, pattern, .. } => smallvec![&**text, &**pattern],
            Expr::In(probe, list) => std::iter::once(&**probe).chain(&**list).collect(),
            Expr::Case { branches, otherwise, .. } => {
                let branches = branches.iter().flat_map(|(condition, result)| [condition, result]);
                branches.chain(otherwise.as_deref()).collect()
            }
            Expr::Call(_, arguments) => arguments.iter().collect(),
        }
    }

    /// Returns the operands from left to right, to be changed in place.
    pub fn children_mut(&mut self) -> SmallVec<[&mut Expr; 4]> {
        match self {
            Expr::Column(..) | Expr::Constant(..) | Expr::Parameter(..) => SmallVec::new(),
            Expr::Unary(_, inner) | Expr::IsNull(inner) | Expr::Cast(inner, _) => smallvec![&mut **inner],
            Expr::Binary(_, left, right) => smallvec![&mut **left, &mut **right],
            Expr::Like { text, pattern, .. } => smallvec![&mut **text, &mut **pattern],
            Expr::In(probe, list) => std::iter::once(&mut **probe).chain(list.items_mut()).collect(),
            Expr::Case { branches, otherwise, .. } => {
                let branches = branches.iter_mut().flat_map(|(condition, result)| [condition, result]);
                branches.chain(otherwise.as_deref_mut()).collect()
            }
            Expr::Call(_, arguments) => arguments.iter_mut().collect(),
        }
    }
}

/// Serialisation. Decoding refuses expressions deeper than [`DEPTH_MAX`], because bytes from outside must not
/// exhaust the stack.
mod wire {
    use std::cell::Cell;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

    use super::{DEPTH_MAX, Expr};

    thread_local! {
        /// The depth of the present decoding on this thread, which serde cannot pass along.
        static DEPTH: Cell<usize> = const { Cell::new(0) };
    }

    impl Serialize for Expr {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            Expr::serialize(self, serializer)
        }
    }

    impl<'de> Deserialize<'de> for Expr {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Expr, D::Error> {
            let depth = DEPTH.get();
            if depth >= DEPTH_MAX {
                return Err(D::Error::custom("an expression is nested too deeply"));
            }
            DEPTH.set(depth + 1);
            let expr = Expr::deserialize(deserializer);
            DEPTH.set(depth);
            expr
        }
    }
}

/// Scalar functions. If any argument is NULL the result is NULL, unless stated otherwise. If a function takes
/// several types, the binder has cast the arguments to one of them, and the result has that type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Function {
    /// `abs(number)`
    Abs,
    /// `sign(float8 | numeric)`
    Sign,
    /// `round(float8 | numeric)`, `round(numeric, int4)`
    Round,
    /// `trunc(float8 | numeric)`, `trunc(numeric, int4)`
    Trunc,
    /// `floor(float8 | numeric)`
    Floor,
    /// `ceil(float8 | numeric)`
    Ceil,
    /// `sqrt(float8 | numeric)`
    Sqrt,
    /// `power(float8, float8)`
    Power,
    /// `exp(float8)`
    Exp,
    /// `ln(float8)`
    Ln,
    /// `log10(float8)`
    Log10,
    /// `lower(text)`
    Lower,
    /// `upper(text)`
    Upper,
    /// `length(text)`, in characters; `length(bytea)`, in bytes
    Length,
    /// `octet_length(text | bytea)`, in bytes
    OctetLength,
    /// `substring(text | bytea, from int4 [, for int4])`
    Substring,
    /// `left(text, int4)`
    Left,
    /// `right(text, int4)`
    Right,
    /// `btrim(text [, characters])`, also `trim(both …)`
    Trim,
    /// `ltrim(text [, characters])`
    TrimLeft,
    /// `rtrim(text [, characters])`
    TrimRight,
    /// `lpad(text, int4 [, fill])`
    PadLeft,
    /// `rpad(text, int4 [, fill])`
    PadRight,
    /// `replace(text, from, to)`
    Replace,
    /// `repeat(text, int4)`
    Repeat,
    /// `reverse(text)`
    Reverse,
    /// `strpos(text, part)`, also `position(part in text)`
    Position,
    /// `starts_with(text, prefix)`
    StartsWith,
    /// `split_part(text, delimiter, int4)`
    SplitPart,
    /// `concat(…)` of texts; NULLs are empty
    Concat,
    /// `coalesce(…)`: the first argument that is not NULL
    Coalesce,
    /// `nullif(a, b)`: NULL if they are equal
    NullIf,
    /// `greatest(…)`; ignores NULLs
    Greatest,
    /// `least(…)`; ignores NULLs
    Least,
    /// `date_trunc(field text, timestamp | timestamptz)`, zones in UTC
    DateTrunc,
    /// `extract(field text from date | timestamp | timestamptz)`: numeric, zones in UTC
    Extract,
    /// `make_date(int4, int4, int4)`
    MakeDate,
    /// `timestamp + interval`, with the interval in parts: `(timestamp | timestamptz, months int4, days int4,
    /// micros int8)`
    Shift,
    /// The microseconds from the second timestamp to the first: int8
    Elapsed,
    /// The text of an interval in parts: `(months int4, days int4, micros int8)`
    IntervalText,
    /// `extract(field text from interval)`, with the field and then the interval in parts: numeric
    IntervalField,
    /// The value as a column with this modifier stores it
    Fit(Modifier),
    /// `to_char(timestamp | timestamptz, template text)`, zones in UTC
    ToChar,
    /// `initcap(text)`
    InitCap,
    /// `translate(text, from, to)`
    Translate,
    /// `ascii(text)`: the code point of the first character
    Ascii,
    /// `chr(int4)`
    Chr,
    /// `concat_ws(separator, …)` of texts; skips NULLs
    Join,
    /// `encode(bytea, form text)`
    Encode,
    /// `decode(text, form text)`
    Decode,
    /// `(json | jsonb) -> (key text | index int4)`
    JsonField,
    /// `(json | jsonb) ->> (key text | index int4)`
    JsonFieldText,
    /// `(json | jsonb) #> path`, with a text for each step of the path
    JsonPath,
    /// `(json | jsonb) #>> path`, with a text for each step of the path
    JsonPathText,
    /// `jsonb @> jsonb`
    JsonContains,
    /// `jsonb ? text`
    JsonExists,
    /// `json_typeof(json)`, `jsonb_typeof(jsonb)`
    JsonTypeOf,
    /// `json_array_length(json)`, `jsonb_array_length(jsonb)`
    JsonArrayLength,
}

impl Function {
    /// Returns the result's type for these arguments.
    pub fn ty(self, arguments: &[Expr]) -> Type {
        use Function::*;
        let argument = |index: usize| arguments.get(index).map_or(Type::Text, Expr::ty);
        match self {
            Length | OctetLength | Position | Ascii | JsonArrayLength => Type::Int4,
            StartsWith | JsonContains | JsonExists => Type::Bool,
            Extract | IntervalField => Type::Numeric,
            Concat | Join | IntervalText | ToChar | Chr | Encode | JsonFieldText | JsonPathText
            | JsonTypeOf => Type::Text,
            Decode => Type::Bytea,
            Elapsed => Type::Int8,
            DateTrunc => argument(1),
            MakeDate => Type::Date,
            _ => argument(0),
        }
    }
}

/// An aggregate over the rows of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Aggregate {
    /// The function that is computed over the rows.
    pub function: AggregateFunction,
    /// The aggregate's argument; `None` only for `count(*)`.
    pub argument: Option<Expr>,
    /// `DISTINCT` inside the call.
    pub distinct: bool,
}

impl Aggregate {
    /// Whether the result depends on the order of the values, because sums of floats are rounded at each
    /// step.
    pub(crate) fn adds_floats(&self) -> bool {
        use AggregateFunction::{Count, Max, Min};
        !matches!(self.function, Count | Min | Max)
            && self.argument.as_ref().is_some_and(|argument| argument.ty() == Type::Float8)
    }

    /// Returns the aggregate with constants for parameters (see [`Expr::bind`]).
    pub fn bind(&self, parameters: &[Value]) -> Result<Aggregate, Failure> {
        let argument = self.argument.as_ref().map(|argument| argument.bind(parameters)).transpose()?;
        Ok(Aggregate { function: self.function, argument, distinct: self.distinct })
    }

    /// Returns the result's type.
    pub fn ty(&self) -> Type {
        let argument = self.argument.as_ref().map_or(Type::Int8, Expr::ty);
        match self.function {
            AggregateFunction::Count => Type::Int8,
            AggregateFunction::Min | AggregateFunction::Max => argument,
            AggregateFunction::Sum => match argument {
                Type::Int2 | Type::Int4 => Type::Int8,
                Type::Int8 => Type::Numeric,
                other => other,
            },
            AggregateFunction::Avg
            | AggregateFunction::VarianceSample
            | AggregateFunction::VariancePopulation
            | AggregateFunction::DeviationSample
            | AggregateFunction::DeviationPopulation => {
                if argument == Type::Float8 {
                    Type::Float8
                } else {
                    Type::Numeric
                }
            }
        }
    }
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
    /// `var_samp(x)`, `variance(x)`; the types are those of `avg`
    VarianceSample,
    /// `var_pop(x)`
    VariancePopulation,
    /// `stddev_samp(x)`, `stddev(x)`
    DeviationSample,
    /// `stddev_pop(x)`
    DeviationPopulation,
}

impl AggregateFunction {
    /// Returns, for a variance or deviation, whether it is of a sample, and whether it is the square root.
    pub(crate) fn spread(self) -> Option<(bool, bool)> {
        match self {
            AggregateFunction::VarianceSample => Some((true, false)),
            AggregateFunction::VariancePopulation => Some((false, false)),
            AggregateFunction::DeviationSample => Some((true, true)),
            AggregateFunction::DeviationPopulation => Some((false, true)),
            _ => None,
        }
    }
}
