//! Binds calls of aggregates and scalar functions.

use quorate_table::{
    expr::{Aggregate, AggregateFunction, Expr, Function, Unary},
    value::{Type, Value},
};
use sqlparser::{
    ast::{self, BinaryOperator, FunctionArg, FunctionArgExpr, FunctionArguments},
    tokenizer::Span,
};

use super::{
    binder::{AGGREGATE, Binder},
    operand::{session_value, text},
};
use crate::{
    error::{Result, SqlError, code},
    statement::{
        coerce::{self, Operand},
        fold,
        parameters::SessionValue,
        scope,
    },
};

impl Binder<'_> {
    pub(super) fn function(&mut self, function: &ast::Function, span: Span) -> Result<Operand> {
        if let Some(extension) = &mut self.extension
            && let Some(call) = extension.function(function, span, self.parameters)?
        {
            return Ok(call);
        }
        let mut parts = scope::parts(&function.name)?;
        let name = parts.pop().unwrap_or_default();
        if !parts.is_empty() && parts != ["pg_catalog"] {
            return Err(SqlError::new(
                code::INVALID_SCHEMA_NAME,
                format!("schema \"{}\" does not exist", parts.join(".")),
            )
            .at(span));
        }
        for (present, what) in [
            (function.over.is_some(), "a window function"),
            (!function.within_group.is_empty(), "WITHIN GROUP"),
            (function.null_treatment.is_some(), "IGNORE NULLS"),
        ] {
            if present {
                return Err(SqlError::unsupported(what).at(span));
            }
        }
        let (arguments, distinct) = match &function.args {
            FunctionArguments::None => (&[][..], false),
            FunctionArguments::Subquery(_) => {
                self.parameters.needs_catalog = true;
                return Err(SqlError::unsupported("a sub-select over tables").at(span));
            }
            FunctionArguments::List(list) => {
                if !list.clauses.is_empty() {
                    if !is_other_aggregate(&name) && aggregate_named(&name).is_none() {
                        let message = format!("ORDER BY specified, but {name} is not an aggregate function");
                        return Err(SqlError::new("42809", message).at(span));
                    }
                    return Err(SqlError::unsupported(format!("a clause within the call of {name}")).at(span));
                }
                let distinct = list.duplicate_treatment == Some(ast::DuplicateTreatment::Distinct);
                (&list.args[..], distinct)
            }
        };
        if is_other_aggregate(&name) {
            self.parameters.needs_catalog = true;
            return Err(SqlError::unsupported(format!("the aggregate {name} over a table")).at(span));
        }
        if let Some(aggregate) = aggregate_named(&name) {
            return self.aggregate(aggregate, &name, arguments, distinct, function.filter.as_deref(), span);
        }
        if function.filter.is_some() {
            return Err(SqlError::new(
                "42809",
                format!("FILTER specified, but {name} is not an aggregate function"),
            )
            .at(span));
        }
        if distinct {
            return Err(SqlError::new(
                "42809",
                format!("DISTINCT specified, but {name} is not an aggregate function"),
            )
            .at(span));
        }
        if arguments.is_empty()
            && let Some(value) = SessionValue::named(&name)
        {
            if value.differs_by_row() && (self.scope.schema.is_some() || self.extension.is_some()) {
                return Err(SqlError::unsupported(format!("{name} in an expression over rows"))
                    .hint("Call it in VALUES, as a DEFAULT, or in a SELECT without FROM.")
                    .at(span));
            }
            return Ok(session_value(value));
        }
        if name == "version" && arguments.is_empty() {
            return Ok(text(crate::version()));
        }
        if matches!(name.as_str(), "nextval" | "currval" | "lastval" | "setval") {
            return self.sequence_call(&name, arguments, span);
        }
        let mut operands = Vec::with_capacity(arguments.len());
        for argument in arguments {
            match argument {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => operands.push(self.operand(expr)?),
                _ => return Err(SqlError::unsupported(format!("the argument {argument}")).at(span)),
            }
        }
        self.call(&name, operands, span)
    }

    fn aggregate(
        &mut self,
        function: AggregateFunction,
        name: &str,
        arguments: &[FunctionArg],
        distinct: bool,
        filter: Option<&ast::Expr>,
        span: Span,
    ) -> Result<Operand> {
        if let Err(place) = &self.aggregates {
            let message = match *place {
                "" => "aggregate function calls cannot be nested".to_owned(),
                place => format!("aggregate functions are not allowed in {place}"),
            };
            return Err(SqlError::new(code::GROUPING_ERROR, message).at(span));
        }
        let argument = match arguments {
            [FunctionArg::Unnamed(FunctionArgExpr::Wildcard | FunctionArgExpr::WildcardWithOptions(_))]
                if function == AggregateFunction::Count && !distinct =>
            {
                None
            }
            [FunctionArg::Unnamed(FunctionArgExpr::Expr(argument))] => {
                let mut inner = Binder::new(self.scope, self.parameters, Err(""));
                let operand = match inner.operand(argument)? {
                    open if is_boolean(name) && open.ty().is_none() => {
                        Operand::Typed(open.coerce_implicit(Type::Bool, inner.parameters)?, Type::Bool)
                    }
                    operand => operand,
                };
                let (argument, ty) = match (function, operand) {
                    (_, undecided) if undecided.ty().is_none() && is_of_numbers(function) => {
                        return Err(SqlError::new(
                            code::AMBIGUOUS_FUNCTION,
                            format!("function {name}(unknown) is not unique"),
                        )
                        .hint("Could not choose a best candidate function. You might need to add explicit type casts.")
                        .at(span));
                    }
                    (_, operand) => operand.resolve_unknown(self.parameters)?,
                };
                let defined = match function {
                    AggregateFunction::Count => true,
                    // The minimum of two booleans is their AND, the maximum their OR.
                    AggregateFunction::Min | AggregateFunction::Max if is_boolean(name) => ty == Type::Bool,
                    AggregateFunction::Min | AggregateFunction::Max => {
                        !matches!(ty, Type::Bool | Type::Uuid | Type::Bytea | Type::Json | Type::Jsonb)
                    }
                    _ => ty.is_number(),
                };
                if !defined && ty == Type::Time && is_of_numbers(function) {
                    return Err(SqlError::unsupported(format!("{name} of time")).at(span));
                }
                if !defined {
                    return Err(no_function(name, &[ty.name()], span));
                }
                if distinct {
                    coerce::check_equality(ty, span)?;
                }
                Some(argument)
            }
            [] if function == AggregateFunction::Count => {
                return Err(SqlError::new(
                    "42809",
                    "count(*) must be used to call a parameterless aggregate function",
                )
                .at(span));
            }
            _ => {
                let shown: Vec<&str> = arguments.iter().map(|_| "unknown").collect();
                return Err(no_function(name, &shown, span));
            }
        };
        let argument = match filter {
            None => argument,
            Some(filter) => Some(self.filtered(argument, filter)?),
        };
        // The engine adds values of type real as double precision.
        let added = is_of_numbers(function) && argument.as_ref().is_some_and(|one| one.ty() == Type::Float4);
        let argument = if added { argument.map(|one| coerce::cast(one, Type::Float8)) } else { argument };
        let aggregate = Aggregate { function, argument, distinct };
        let ty = aggregate.ty();
        let Ok(aggregates) = &mut self.aggregates else { unreachable!("checked above") };
        let index = aggregates.iter().position(|known| *known == aggregate).unwrap_or_else(|| {
            aggregates.push(aggregate);
            aggregates.len() - 1
        });
        let result = Expr::Column(AGGREGATE + index, ty);
        if added && function == AggregateFunction::Sum {
            return Ok(Operand::Typed(coerce::cast(result, Type::Float4), Type::Float4));
        }
        Ok(Operand::Typed(result, ty))
    }

    /// Binds FILTER. Aggregates skip NULL, so the argument becomes NULL in rows for which the condition is
    /// not true.
    fn filtered(&mut self, argument: Option<Expr>, filter: &ast::Expr) -> Result<Expr> {
        let mut inner = Binder::new(self.scope, self.parameters, Err("FILTER"));
        let condition = inner.condition(filter, "FILTER")?;
        let counted = argument.unwrap_or(Expr::Constant(Value::Bool(true), Type::Bool));
        let ty = counted.ty();
        Ok(Expr::Case { branches: vec![(condition, counted)], otherwise: None, ty })
    }

    /// Binds a scalar function by its name.
    pub fn call(&mut self, name: &str, mut arguments: Vec<Operand>, span: Span) -> Result<Operand> {
        let shown: Vec<&'static str> = arguments.iter().map(Operand::type_name).collect();
        let absent = || no_function(name, &shown, span);
        let count = arguments.len();
        let is_interval = |index: usize| matches!(arguments.get(index), Some(Operand::Interval(_)));
        match (name, &arguments[..]) {
            ("extract", [_, Operand::Interval(parts)]) => {
                let parts = parts.clone();
                let field = arguments
                    .into_iter()
                    .next()
                    .expect("two")
                    .coerce_implicit(Type::Text, self.parameters)?;
                let arguments = vec![field, parts.months, parts.days, parts.micros];
                return Ok(called(Function::IntervalField, arguments));
            }
            ("date_part", [_, _]) => {
                let field = self.call("extract", arguments, span)?.resolve_unknown(self.parameters)?.0;
                return Ok(Operand::Typed(coerce::cast(field, Type::Float8), Type::Float8));
            }
            ("date_bin", [_, _, _]) => {
                let [stride, source, origin] = arguments.try_into().expect("three");
                return self.date_bin(stride, source, origin, span);
            }
            _ if (0..count).any(is_interval) => return Err(absent()),
            _ => {}
        }
        if matches!(name, "coalesce" | "greatest" | "least" | "nullif") {
            self.meet(&mut arguments)?;
        }
        let first = arguments.first().and_then(Operand::ty);
        use Type::{Bytea, Date, Float8, Int4, Json, Jsonb, Numeric, Text, Time, Timestamp, Timestamptz};
        let same = |arguments: &[Operand], what: &str| -> Result<Vec<Type>> {
            let ty = coerce::common(arguments, what, span)?.unwrap_or(Text);
            if ty == Json && what != "COALESCE" {
                let message = "could not identify a comparison function for type json";
                return Err(SqlError::new(code::UNDEFINED_FUNCTION, message).at(span));
            }
            Ok(vec![ty; arguments.len()])
        };
        // The type is numeric if the argument is numeric, otherwise a float.
        let float = if first == Some(Numeric) { Numeric } else { Float8 };
        // The type is bytea if the argument is bytea, otherwise text.
        let string = if first == Some(Bytea) { Bytea } else { Text };
        let (function, wanted): (Function, Vec<Type>) = match (name, count) {
            ("abs", 1) => (Function::Abs, vec![first.filter(|ty| ty.is_number()).unwrap_or(Float8)]),
            ("sign", 1) => (Function::Sign, vec![float]),
            ("round", 1) => (Function::Round, vec![float]),
            ("trunc", 1) => (Function::Trunc, vec![float]),
            ("floor", 1) => (Function::Floor, vec![float]),
            ("ceil" | "ceiling", 1) => (Function::Ceil, vec![float]),
            ("round", 2) => (Function::Round, vec![Numeric, Int4]),
            ("trunc", 2) => (Function::Trunc, vec![Numeric, Int4]),
            ("sqrt", 1) => (Function::Sqrt, vec![float]),
            ("power" | "pow", 2) => {
                let has = |ty| arguments.iter().any(|argument| argument.ty() == Some(ty));
                if has(Numeric) && !has(Float8) {
                    return Err(SqlError::unsupported("power of numeric")
                        .hint("Cast to double precision.")
                        .at(span));
                }
                (Function::Power, vec![Float8, Float8])
            }
            ("exp" | "ln" | "log10" | "log", 1) => {
                if first == Some(Numeric) {
                    return Err(SqlError::unsupported(format!("{name} of numeric"))
                        .hint("Cast to double precision.")
                        .at(span));
                }
                let function = match name {
                    "exp" => Function::Exp,
                    "ln" => Function::Ln,
                    _ => Function::Log10,
                };
                (function, vec![Float8])
            }
            ("lower", 1) => (Function::Lower, vec![Text]),
            ("upper", 1) => (Function::Upper, vec![Text]),
            ("length", 1) => (Function::Length, vec![string]),
            ("char_length" | "character_length", 1) => (Function::Length, vec![Text]),
            ("octet_length", 1) if first == Some(Type::Bpchar) => (Function::OctetLength, vec![Type::Bpchar]),
            ("octet_length", 1) => (Function::OctetLength, vec![string]),
            ("substring" | "substr", 2 | 3) => (Function::Substring, [string, Int4, Int4][..count].to_vec()),
            ("encode", 2) => (Function::Encode, vec![Bytea, Text]),
            ("decode", 2) => (Function::Decode, vec![Text, Text]),
            ("left", 2) => (Function::Left, vec![Text, Int4]),
            ("right", 2) => (Function::Right, vec![Text, Int4]),
            ("btrim", 1 | 2) => (Function::Trim, vec![Text; count]),
            ("ltrim", 1 | 2) => (Function::TrimLeft, vec![Text; count]),
            ("rtrim", 1 | 2) => (Function::TrimRight, vec![Text; count]),
            ("lpad", 2 | 3) => (Function::PadLeft, [Text, Int4, Text][..count].to_vec()),
            ("rpad", 2 | 3) => (Function::PadRight, [Text, Int4, Text][..count].to_vec()),
            ("replace", 3) => (Function::Replace, vec![Text; 3]),
            ("repeat", 2) => (Function::Repeat, vec![Text, Int4]),
            ("reverse", 1) => (Function::Reverse, vec![Text]),
            ("strpos", 2) => (Function::Position, vec![Text, Text]),
            ("starts_with", 2) => (Function::StartsWith, vec![Text, Text]),
            ("split_part", 3) => (Function::SplitPart, vec![Text, Text, Int4]),
            ("concat", 1..) | ("concat_ws", 2..) => {
                let function = if name == "concat" { Function::Concat } else { Function::Join };
                let bound: Result<Vec<Expr>> =
                    arguments.into_iter().map(|argument| self.printed(argument)).collect();
                return Ok(called(function, bound?));
            }
            ("mod", 2) => {
                let [left, right] = arguments.try_into().expect("two");
                return self.applied(&BinaryOperator::Modulo, left, right, span);
            }
            ("to_char", 2) => {
                let source = match first {
                    Some(Timestamp) => Timestamp,
                    Some(Date | Timestamptz) => Timestamptz,
                    Some(ty) if ty.is_number() => {
                        return Err(SqlError::unsupported("to_char of a number").at(span));
                    }
                    _ => return Err(absent()),
                };
                (Function::ToChar, vec![source, Text])
            }
            ("initcap", 1) => (Function::InitCap, vec![Text]),
            ("translate", 3) => (Function::Translate, vec![Text; 3]),
            ("ascii", 1) => (Function::Ascii, vec![Text]),
            ("chr", 1) => (Function::Chr, vec![Int4]),
            ("coalesce", 1..) => (Function::Coalesce, same(&arguments, "COALESCE")?),
            ("greatest", 1..) => (Function::Greatest, same(&arguments, "GREATEST")?),
            ("least", 1..) => (Function::Least, same(&arguments, "LEAST")?),
            ("nullif", 2) => (Function::NullIf, vec![self.comparable_by_operator(&arguments, span)?; 2]),
            ("date_trunc", 2) => {
                let source = if arguments[1].ty() == Some(Timestamp) { Timestamp } else { Timestamptz };
                (Function::DateTrunc, vec![Text, source])
            }
            ("extract", 2) => {
                let source = match arguments[1].ty() {
                    None => Timestamptz,
                    Some(ty @ (Date | Timestamp | Timestamptz | Time)) => ty,
                    Some(_) => return Err(absent()),
                };
                (Function::Extract, vec![Text, source])
            }
            ("json_typeof", 1) => (Function::JsonTypeOf, vec![Json]),
            ("jsonb_typeof", 1) => (Function::JsonTypeOf, vec![Jsonb]),
            ("json_array_length", 1) => (Function::JsonArrayLength, vec![Json]),
            ("jsonb_array_length", 1) => (Function::JsonArrayLength, vec![Jsonb]),
            ("make_date", 3) => (Function::MakeDate, vec![Int4; 3]),
            _ => {
                self.parameters.needs_catalog |= !is_named(SCALARS, name);
                return Err(absent());
            }
        };
        let mut bound = Vec::with_capacity(count);
        for (argument, ty) in arguments.into_iter().zip(wanted) {
            if let Some(from) = argument.ty()
                && coerce::wider(from, ty) != Some(ty)
            {
                return Err(absent());
            }
            bound.push(argument.coerce_implicit(ty, self.parameters)?);
        }
        Ok(called(function, bound))
    }

    /// Converts an operand to its printed text, which for booleans differs from their cast to text.
    fn printed(&mut self, operand: Operand) -> Result<Expr> {
        if let Operand::Typed(padded, Type::Bpchar) = operand {
            return Ok(padded);
        }
        let Operand::Typed(truth, Type::Bool) = operand else {
            return operand.coerce_implicit(Type::Text, self.parameters);
        };
        let letter = |letter: &str| Expr::Constant(Value::text_of(letter), Type::Text);
        let not = Expr::Unary(Unary::Not, Box::new(truth.clone()));
        let branches = vec![(truth, letter("t")), (not, letter("f"))];
        Ok(fold::constant(Expr::Case { branches, otherwise: None, ty: Type::Text }))
    }
}

/// Names of the scalar functions that are bound here, with any arguments.
const SCALARS: &str = "\
    abs sign round trunc floor ceil ceiling sqrt power pow exp ln log log10 lower upper length \
    char_length character_length octet_length substring substr left right btrim ltrim rtrim lpad rpad \
    replace repeat reverse strpos starts_with split_part concat concat_ws mod to_char initcap translate \
    ascii chr encode decode json_typeof jsonb_typeof json_array_length jsonb_array_length coalesce greatest least nullif date_trunc extract date_part date_bin make_date";

fn is_boolean(aggregate: &str) -> bool {
    matches!(aggregate, "bool_and" | "every" | "bool_or")
}

fn is_of_numbers(aggregate: AggregateFunction) -> bool {
    use AggregateFunction::{Count, Max, Min};
    !matches!(aggregate, Count | Min | Max)
}

/// Whether the engine has an aggregate of this name.
pub fn is_aggregate(name: &str) -> bool {
    aggregate_named(name).is_some()
}

/// Returns the aggregate of this name.
fn aggregate_named(name: &str) -> Option<AggregateFunction> {
    Some(match name {
        "count" => AggregateFunction::Count,
        "sum" => AggregateFunction::Sum,
        "min" | "bool_and" | "every" => AggregateFunction::Min,
        "max" | "bool_or" => AggregateFunction::Max,
        "avg" => AggregateFunction::Avg,
        "variance" | "var_samp" => AggregateFunction::VarianceSample,
        "var_pop" => AggregateFunction::VariancePopulation,
        "stddev" | "stddev_samp" => AggregateFunction::DeviationSample,
        "stddev_pop" => AggregateFunction::DeviationPopulation,
        _ => return None,
    })
}

/// Whether PostgreSQL has this aggregate, but the engine does not compute it.
fn is_other_aggregate(name: &str) -> bool {
    is_named(OTHER_AGGREGATES, name) || name.starts_with("regr_")
}

const OTHER_AGGREGATES: &str = "\
    array_agg bit_and bit_or bit_xor corr covar_pop covar_samp cume_dist dense_rank json_agg \
    json_object_agg jsonb_agg jsonb_object_agg mode percent_rank percentile_cont percentile_disc \
    range_agg rank string_agg xmlagg";

/// Whether a list of names, separated by spaces, has this one.
fn is_named(names: &str, name: &str) -> bool {
    names.split(' ').any(|known| known == name)
}

fn called(function: Function, arguments: Vec<Expr>) -> Operand {
    let call = Expr::Call(function, arguments);
    let ty = call.ty();
    Operand::Typed(fold::constant(call), ty)
}

/// Returns the error about a function that does not exist, with the types of its arguments.
pub fn no_function(name: &str, arguments: &[&str], span: Span) -> SqlError {
    SqlError::new(
        code::UNDEFINED_FUNCTION,
        format!("function {name}({}) does not exist", arguments.join(", ")),
    )
    .hint("No function matches the given name and argument types. You might need to add explicit type casts.")
    .at(span)
}
