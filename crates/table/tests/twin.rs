//! Expressions compared with PostgreSQL: random ones, with every value and every error.

use proptest::{
    strategy::{Strategy as _, ValueTree as _},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use quorate_table::{
    cast::cast,
    eval::eval,
    expr::{Binary, Expr, Function, Unary},
    text::parse_text,
    value::{Row, Type, Value},
};

use crate::{postgres::Postgres, words::words};

pub(crate) const TYPES: [Type; 16] = [
    Type::Bool,
    Type::Int2,
    Type::Int4,
    Type::Int8,
    Type::Float8,
    Type::Numeric,
    Type::Text,
    Type::Date,
    Type::Timestamp,
    Type::Timestamptz,
    Type::Uuid,
    Type::Bytea,
    Type::Jsonb,
    Type::Float4,
    Type::Time,
    Type::Bpchar,
];
/// The number of columns of each type in the row over which expressions are evaluated.
pub(crate) const COLUMNS: usize = 6;
const ROUNDS: usize = 12;
const EXPRESSIONS: usize = 500;

/// Generates expressions and rows from a fixed seed.
pub(crate) struct Maker {
    runner: TestRunner,
}

impl Maker {
    pub(crate) fn new() -> Maker {
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        Maker { runner: TestRunner::new_with_rng(Config::default(), rng) }
    }

    /// Creates a generator with another seed.
    pub(crate) fn seeded(seed: u8) -> Maker {
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
        Maker { runner: TestRunner::new_with_rng(Config::default(), rng) }
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (0..bound).new_tree(&mut self.runner).expect("a number").current()
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// Generates a value of a type, often NULL or an extreme.
    pub(crate) fn value(&mut self, ty: Type) -> Value {
        if self.below(8) == 0 {
            return Value::Null;
        }
        let word = self.pick(words(ty));
        parse_text(ty, word).expect("a value")
    }

    fn column(&mut self, ty: Type) -> Expr {
        let first = TYPES.iter().position(|&known| known == ty).expect("a known type") * COLUMNS;
        Expr::Column(first + self.below(COLUMNS), ty)
    }

    fn exprs(&mut self, ty: Type, depth: usize, count: usize) -> Vec<Expr> {
        (0..count).map(|_| self.expr(ty, depth)).collect()
    }

    fn call(&mut self, function: Function, types: &[Type], depth: usize) -> Expr {
        Expr::Call(function, types.iter().map(|&ty| self.expr(ty, depth)).collect())
    }

    fn binary(&mut self, operator: Binary, left: Type, right: Type, depth: usize) -> Expr {
        let (left, right) = (self.expr(left, depth), self.expr(right, depth));
        Expr::binary(operator, left, right)
    }

    fn cast(&mut self, from: Type, to: Type, depth: usize) -> Expr {
        Expr::Cast(Box::new(self.expr(from, depth)), to)
    }

    /// Generates a template of `to_char`: patterns, their prefixes and suffixes, and text between them.
    fn template(&mut self) -> String {
        const PARTS: &[&str] = &[
            "YYYY",
            "yyyy",
            "Y,YYY",
            "YYY",
            "YY",
            "Y",
            "IYYY",
            "IYY",
            "IY",
            "I",
            "MM",
            "mm",
            "MON",
            "Mon",
            "mon",
            "MONTH",
            "Month",
            "month",
            "DD",
            "dd",
            "DDD",
            "D",
            "DAY",
            "Day",
            "day",
            "DY",
            "Dy",
            "dy",
            "ID",
            "IDDD",
            "HH24",
            "hh24",
            "HH12",
            "HH",
            "hh",
            "MI",
            "SS",
            "SSSS",
            "SSSSS",
            "MS",
            "US",
            "us",
            "FF1",
            "FF2",
            "FF3",
            "FF4",
            "FF5",
            "FF6",
            "AM",
            "pm",
            "A.M.",
            "p.m.",
            "AD",
            "bc",
            "B.C.",
            "a.d.",
            "CC",
            "W",
            "WW",
            "IW",
            "Q",
            "J",
            "RM",
            "rm",
            "TZ",
            "tz",
            "TZH",
            "TZM",
            "OF",
            "FX",
            "FM",
            "fm",
            "TM",
            "TH",
            "th",
            "SP",
            " ",
            "-",
            "/",
            ":",
            ".",
            ",",
            "T",
            "\"of \"",
            "\"a\\\"b\"",
            "\\\"",
            "\\",
            "\"open",
            "x",
            "é",
            "Hh",
            "mOn",
            "week",
        ];
        (0..1 + self.below(7)).map(|_| self.pick(PARTS)).collect()
    }

    /// Generates an expression of a type. Its leaves are columns, so that PostgreSQL folds nothing in
    /// advance.
    pub(crate) fn expr(&mut self, ty: Type, depth: usize) -> Expr {
        use Function::*;
        if depth == 0 {
            return self.column(ty);
        }
        let depth = depth - 1;
        match self.below(14) {
            0 => return self.column(ty),
            1 => {
                let branches = vec![(self.expr(Type::Bool, depth), self.expr(ty, depth))];
                let otherwise = (self.below(2) == 0).then(|| Box::new(self.expr(ty, depth)));
                return Expr::Case { branches, otherwise, ty };
            }
            2 => {
                let function = self.pick(&[Coalesce, Greatest, Least]);
                return Expr::Call(function, self.exprs(ty, depth, 3));
            }
            3 => return self.call(NullIf, &[ty, ty], depth),
            _ => {}
        }
        let arithmetic = [Binary::Add, Binary::Subtract, Binary::Multiply, Binary::Divide, Binary::Modulo];
        match ty {
            Type::Bool => self.condition(depth),
            Type::Int2 | Type::Int4 | Type::Int8 => match self.below(9) {
                0 => self.call(Abs, &[ty], depth),
                1 => Expr::Unary(Unary::Negate, Box::new(self.expr(ty, depth))),
                2 => {
                    let from = self.pick(&[
                        Type::Int2,
                        Type::Int4,
                        Type::Int8,
                        Type::Float8,
                        Type::Numeric,
                        Type::Text,
                        Type::Jsonb,
                    ]);
                    self.cast(from, ty, depth)
                }
                3 if ty == Type::Int4 => match self.below(3) {
                    0 => {
                        let function = self.pick(&[Length, OctetLength, Ascii]);
                        self.call(function, &[Type::Text], depth)
                    }
                    1 => {
                        let function = self.pick(&[Length, OctetLength]);
                        self.call(function, &[Type::Bytea], depth)
                    }
                    _ => self.call(JsonArrayLength, &[Type::Jsonb], depth),
                },
                4 if ty == Type::Int4 => self.call(Position, &[Type::Text, Type::Text], depth),
                5 if ty == Type::Int4 => self.binary(Binary::Subtract, Type::Date, Type::Date, depth),
                6 if ty == Type::Int4 => self.cast(Type::Bool, ty, depth),
                // The character becomes its number again, because some characters would break the lines of
                // the answers.
                7 if ty == Type::Int4 => {
                    let character = self.call(Chr, &[Type::Int4], depth);
                    Expr::Call(Ascii, vec![character])
                }
                _ => {
                    let operator = self.pick(&arithmetic);
                    self.binary(operator, ty, ty, depth)
                }
            },
            Type::Float8 => match self.below(6) {
                0 => Expr::Unary(Unary::Negate, Box::new(self.expr(ty, depth))),
                1 | 2 => {
                    let function = self.pick(&[Abs, Sign, Round, Trunc, Floor, Ceil, Sqrt]);
                    self.call(function, &[ty], depth)
                }
                3 => {
                    let from = self.pick(&[
                        Type::Int2,
                        Type::Int4,
                        Type::Int8,
                        Type::Numeric,
                        Type::Text,
                        Type::Float4,
                    ]);
                    self.cast(from, ty, depth)
                }
                _ => {
                    let operator = self.pick(&arithmetic[..4]);
                    self.binary(operator, ty, ty, depth)
                }
            },
            Type::Numeric => match self.below(8) {
                0 => Expr::Unary(Unary::Negate, Box::new(self.expr(ty, depth))),
                1 => {
                    let function = self.pick(&[Abs, Sign, Round, Trunc, Floor, Ceil, Sqrt]);
                    self.call(function, &[ty], depth)
                }
                2 => {
                    let function = self.pick(&[Round, Trunc]);
                    let digits = Expr::Cast(Box::new(self.expr(Type::Int2, 0)), Type::Int4);
                    Expr::Call(function, vec![self.expr(ty, depth), digits])
                }
                3 => {
                    let from = self.pick(&[
                        Type::Int2,
                        Type::Int4,
                        Type::Int8,
                        Type::Float8,
                        Type::Text,
                        Type::Float4,
                    ]);
                    self.cast(from, ty, depth)
                }
                4 => {
                    let source = self.pick(&[Type::Date, Type::Timestamp, Type::Timestamptz, Type::Time]);
                    let field = self.pick(&[
                        "microseconds",
                        "milliseconds",
                        "second",
                        "minute",
                        "hour",
                        "day",
                        "week",
                        "month",
                        "quarter",
                        "year",
                        "decade",
                        "century",
                        "millennium",
                        "dow",
                        "isodow",
                        "doy",
                        "isoyear",
                        "julian",
                        "epoch",
                        "timezone",
                        "timezone_hour",
                    ]);
                    let field = Expr::constant(Value::text_of(field), Type::Text);
                    Expr::Call(Extract, vec![field, self.expr(source, depth)])
                }
                _ => {
                    let operator = self.pick(&arithmetic);
                    self.binary(operator, ty, ty, depth)
                }
            },
            Type::Float4 => match self.below(4) {
                0 => Expr::Unary(Unary::Negate, Box::new(self.expr(ty, depth))),
                1 => self.call(Abs, &[ty], depth),
                2 => {
                    let from = self.pick(&[
                        Type::Int2,
                        Type::Int4,
                        Type::Int8,
                        Type::Float8,
                        Type::Numeric,
                        Type::Text,
                        Type::Jsonb,
                    ]);
                    self.cast(from, ty, depth)
                }
                _ => {
                    let operator = self.pick(&arithmetic[..4]);
                    self.binary(operator, ty, ty, depth)
                }
            },
            Type::Bpchar => {
                let from = self.pick(&TYPES);
                self.cast(from, ty, depth)
            }
            Type::Time => {
                let from = self.pick(&[Type::Text, Type::Timestamp, Type::Timestamptz]);
                self.cast(from, ty, depth)
            }
            Type::Uuid => self.cast(Type::Text, ty, depth),
            Type::Bytea => match self.below(5) {
                0 => self.binary(Binary::Concat, ty, ty, depth),
                1 => self.call(Substring, &[ty, Type::Int4], depth),
                2 => self.call(Substring, &[ty, Type::Int4, Type::Int4], depth),
                3 => {
                    let form = self.form();
                    Expr::Call(Decode, vec![self.expr(Type::Text, depth), form])
                }
                _ => self.cast(Type::Text, ty, depth),
            },
            Type::Json => self.cast(Type::Jsonb, ty, depth),
            Type::Jsonb => match self.below(6) {
                0 => self.binary(Binary::Concat, ty, ty, depth),
                1 | 2 => {
                    let step = self.pick(&[Type::Text, Type::Int4]);
                    self.call(JsonField, &[ty, step], depth)
                }
                3 => self.path(JsonPath, depth),
                4 => {
                    let json = self.cast(Type::Text, Type::Json, depth);
                    Expr::Cast(Box::new(json), ty)
                }
                _ => self.cast(Type::Text, ty, depth),
            },
            Type::Text => match self.below(16) {
                13 => match self.below(3) {
                    0 => self.path(JsonPathText, depth),
                    _ => {
                        let step = self.pick(&[Type::Text, Type::Int4]);
                        self.call(JsonFieldText, &[Type::Jsonb, step], depth)
                    }
                },
                14 => {
                    let form = self.form();
                    Expr::Call(Encode, vec![self.expr(Type::Bytea, depth), form])
                }
                15 => self.call(JsonTypeOf, &[Type::Jsonb], depth),
                9 | 10 => {
                    let template = Expr::constant(Value::text_of(self.template()), Type::Text);
                    let source = self.pick(&[Type::Timestamp, Type::Timestamptz]);
                    Expr::Call(ToChar, vec![self.expr(source, depth), template])
                }
                11 => self.call(Translate, &[ty, ty, ty], depth),
                12 => self.call(Join, &[ty, ty, ty, ty], depth),
                0 | 1 => {
                    let from = self.pick(&TYPES);
                    self.cast(from, ty, depth)
                }
                2 => self.binary(Binary::Concat, ty, ty, depth),
                3 => {
                    let function = self.pick(&[Lower, Upper, Trim, TrimLeft, TrimRight, Reverse]);
                    self.call(function, &[ty], depth)
                }
                4 => {
                    let function = self.pick(&[Trim, TrimLeft, TrimRight]);
                    self.call(function, &[ty, ty], depth)
                }
                5 => {
                    // The count is never the least 32-bit integer, because PostgreSQL negates the count and
                    // then returns the whole text.
                    let count = Expr::Cast(Box::new(self.expr(Type::Int2, depth)), Type::Int4);
                    let function = self.pick(&[Left, Right, Substring]);
                    Expr::Call(function, vec![self.expr(ty, depth), count])
                }
                6 => self.call(Substring, &[ty, Type::Int4, Type::Int4], depth),
                7 => {
                    let function = self.pick(&[Replace, Concat]);
                    self.call(function, &[ty, ty, ty], depth)
                }
                _ => self.call(SplitPart, &[ty, ty, Type::Int4], depth),
            },
            Type::Date => match self.below(4) {
                0 => self.binary(Binary::Add, Type::Date, Type::Int4, depth),
                1 => self.binary(Binary::Subtract, Type::Date, Type::Int4, depth),
                2 => {
                    let parts = self.exprs(Type::Int2, 0, 3).into_iter();
                    Expr::Call(MakeDate, parts.map(|part| Expr::Cast(Box::new(part), Type::Int4)).collect())
                }
                _ => {
                    let from = self.pick(&[Type::Text, Type::Timestamp, Type::Timestamptz]);
                    self.cast(from, ty, depth)
                }
            },
            Type::Timestamp | Type::Timestamptz => match self.below(2) {
                0 => {
                    let field = self.pick(&[
                        "microseconds",
                        "milliseconds",
                        "second",
                        "minute",
                        "hour",
                        "day",
                        "week",
                        "month",
                        "quarter",
                        "year",
                        "decade",
                        "century",
                        "millennium",
                        "dow",
                    ]);
                    let field = Expr::constant(Value::text_of(field), Type::Text);
                    Expr::Call(DateTrunc, vec![field, self.expr(ty, depth)])
                }
                _ => {
                    let from = self.pick(&[Type::Text, Type::Date, Type::Timestamp, Type::Timestamptz]);
                    self.cast(from, ty, depth)
                }
            },
        }
    }

    /// Generates a form of `encode` and `decode`. Base64 breaks its lines, which would break the answers.
    fn form(&mut self) -> Expr {
        let form = self.pick(&["hex", "HEX", "escape", "none"]);
        Expr::constant(Value::text_of(form), Type::Text)
    }

    /// Generates a step into a document along a path.
    fn path(&mut self, function: Function, depth: usize) -> Expr {
        let steps = self.below(3);
        let step = |maker: &mut Maker| {
            let text = maker.pick(&["a", "abc", "b", "", "0", "1", "-1", " 1", "x"]);
            Expr::constant(Value::text_of(text), Type::Text)
        };
        let mut arguments = vec![self.expr(Type::Jsonb, depth)];
        arguments.extend((0..steps).map(|_| step(self)));
        Expr::Call(function, arguments)
    }

    fn condition(&mut self, depth: usize) -> Expr {
        let ty = self.pick(&TYPES);
        match self.below(8) {
            0 => {
                let operator = self.pick(&[Binary::And, Binary::Or]);
                self.binary(operator, Type::Bool, Type::Bool, depth)
            }
            1 => Expr::Unary(Unary::Not, Box::new(self.expr(Type::Bool, depth))),
            2 => Expr::IsNull(Box::new(self.expr(ty, depth))),
            3 => Expr::In(Box::new(self.expr(ty, depth)), self.exprs(ty, depth, 3).into()),
            4 | 5 => Expr::Like {
                text: Box::new(self.expr(Type::Text, depth)),
                pattern: Box::new(self.expr(Type::Text, depth)),
                escape: self.pick(&[Some('\\'), None, Some('a')]),
                case_insensitive: self.below(4) == 0,
            },
            6 if self.below(2) == 0 => match self.below(2) {
                0 => self.call(Function::JsonContains, &[Type::Jsonb, Type::Jsonb], depth),
                _ => self.call(Function::JsonExists, &[Type::Jsonb, Type::Text], depth),
            },
            6 => self.call(Function::StartsWith, &[Type::Text, Type::Text], depth),
            _ => {
                let operator = self.pick(&[
                    Binary::Equal,
                    Binary::NotEqual,
                    Binary::Less,
                    Binary::LessEqual,
                    Binary::Greater,
                    Binary::GreaterEqual,
                    Binary::Distinct,
                ]);
                self.binary(operator, ty, ty, depth)
            }
        }
    }
}

/// Returns the expression in SQL.
fn sql(expr: &Expr) -> String {
    let list = |exprs: &[Expr]| exprs.iter().map(sql).collect::<Vec<_>>().join(", ");
    match expr {
        Expr::Column(column, _) => format!("c{column}"),
        Expr::Constant(value, ty) => literal(value, *ty),
        Expr::Parameter(number, _) => format!("${}", number + 1),
        Expr::Unary(Unary::Not, inner) => format!("(not {})", sql(inner)),
        Expr::Unary(Unary::Negate, inner) => format!("(- {})", sql(inner)),
        Expr::Binary(operator, left, right) => {
            let symbol = match operator {
                Binary::And => "and",
                Binary::Or => "or",
                Binary::Equal => "=",
                Binary::NotEqual => "<>",
                Binary::Less => "<",
                Binary::LessEqual => "<=",
                Binary::Greater => ">",
                Binary::GreaterEqual => ">=",
                Binary::Add => "+",
                Binary::Subtract => "-",
                Binary::Multiply => "*",
                Binary::Divide => "/",
                Binary::Modulo => "%",
                Binary::Concat => "||",
                Binary::Distinct => "is distinct from",
            };
            format!("({} {symbol} {})", sql(left), sql(right))
        }
        Expr::IsNull(inner) => format!("({} is null)", sql(inner)),
        Expr::In(probe, elements) => format!("({} in ({}))", sql(probe), list(elements)),
        Expr::Like { text, pattern, escape, case_insensitive } => {
            let operator = if *case_insensitive { "ilike" } else { "like" };
            let escape = escape.map_or(String::new(), String::from);
            format!("({} {operator} {} escape '{escape}')", sql(text), sql(pattern))
        }
        Expr::Cast(inner, ty) => format!("({})::{}", sql(inner), type_name(*ty)),
        Expr::Case { branches, otherwise, .. } => {
            let mut text = "(case".to_owned();
            for (condition, result) in branches {
                text += &format!(" when {} then {}", sql(condition), sql(result));
            }
            if let Some(otherwise) = otherwise {
                text += &format!(" else {}", sql(otherwise));
            }
            text + " end)"
        }
        Expr::Call(Function::Extract, arguments) => {
            let Expr::Constant(Value::Text(field), _) = &arguments[0] else {
                unreachable!("a constant field")
            };
            format!("extract({field} from {})", sql(&arguments[1]))
        }
        Expr::Call(function @ (Function::JsonPath | Function::JsonPathText), arguments) => {
            let symbol = if *function == Function::JsonPath { "#>" } else { "#>>" };
            format!("({} {symbol} array[{}]::text[])", sql(&arguments[0]), list(&arguments[1..]))
        }
        Expr::Call(
            function @ (Function::JsonField
            | Function::JsonFieldText
            | Function::JsonContains
            | Function::JsonExists),
            arguments,
        ) => {
            let symbol = match function {
                Function::JsonField => "->",
                Function::JsonFieldText => "->>",
                Function::JsonContains => "@>",
                _ => "?",
            };
            format!("({} {symbol} {})", sql(&arguments[0]), sql(&arguments[1]))
        }
        Expr::Call(function, arguments) => {
            use Function::*;
            let name = match function {
                Abs => "abs",
                Sign => "sign",
                Round => "round",
                Trunc => "trunc",
                Floor => "floor",
                Ceil => "ceil",
                Sqrt => "sqrt",
                Power => "power",
                Exp => "exp",
                Ln => "ln",
                Log10 => "log10",
                Lower => "lower",
                Upper => "upper",
                Length => "length",
                OctetLength => "octet_length",
                Substring => "substring",
                Left => "left",
                Right => "right",
                Trim => "btrim",
                TrimLeft => "ltrim",
                TrimRight => "rtrim",
                PadLeft => "lpad",
                PadRight => "rpad",
                Replace => "replace",
                Repeat => "repeat",
                Reverse => "reverse",
                Position => "strpos",
                StartsWith => "starts_with",
                SplitPart => "split_part",
                Concat => "concat",
                Coalesce => "coalesce",
                NullIf => "nullif",
                Greatest => "greatest",
                Least => "least",
                DateTrunc => "date_trunc",
                Extract => unreachable!("written above"),
                MakeDate => "make_date",
                ToChar => "to_char",
                InitCap => "initcap",
                Translate => "translate",
                Ascii => "ascii",
                Chr => "chr",
                Join => "concat_ws",
                Encode => "encode",
                Decode => "decode",
                JsonTypeOf => "jsonb_typeof",
                JsonArrayLength => "jsonb_array_length",
                JsonField | JsonFieldText | JsonPath | JsonPathText | JsonContains | JsonExists => {
                    unreachable!("written above")
                }
                Shift | Elapsed | IntervalText | IntervalField | Fit(_) => {
                    unreachable!("the door makes them of operators and casts; its own tests compare those")
                }
            };
            format!("{name}({})", list(arguments))
        }
    }
}

/// Returns a name that means the type without a modifier. `character` alone means one character.
pub(crate) fn type_name(ty: Type) -> &'static str {
    if ty == Type::Bpchar { "bpchar" } else { ty.name() }
}

pub(crate) fn literal(value: &Value, ty: Type) -> String {
    match value.text() {
        None => format!("null::{}", type_name(ty)),
        Some(text) => format!("'{}'::{}", text.replace('\'', "''"), type_name(ty)),
    }
}

/// Returns the outcome of an expression as one line.
fn outcome(expr: &Expr, row: &Row) -> String {
    match eval(expr, row).and_then(|value| cast(&value, Type::Text)) {
        Ok(Value::Null) => "null".to_owned(),
        Ok(value) => format!("={}", value.text().expect("not NULL")),
        Err(failure) => format!("!{} {}", failure.sqlstate, failure.message),
    }
}

/// Returns the expression with the row's values in place of its columns.
fn with_constants(expr: &Expr, row: &Row) -> Expr {
    let mut expr = expr.clone();
    if let Expr::Column(column, ty) = expr {
        return Expr::constant(row[column].clone(), ty);
    }
    for child in expr.children_mut() {
        *child = with_constants(child, row);
    }
    expr
}

/// Returns the columns in an expression, with their values.
fn operands(expr: &Expr, row: &Row) -> String {
    match expr {
        Expr::Column(column, _) => {
            format!(" c{column}={}", row[*column].text().unwrap_or_else(|| "null".to_owned()))
        }
        _ => expr.children().into_iter().map(|child| operands(child, row)).collect(),
    }
}

/// Whether this outcome may differ from PostgreSQL's. Its numerics have NaN and infinity, and it reads more
/// formats of dates; the table crate refuses both.
fn is_known_deviation(ours: &str) -> bool {
    ours.contains("NaN and infinity are not supported") || ours.starts_with("!22007")
}

#[test]
fn expressions_are_evaluated_as_in_postgresql() {
    let Some(postgres) = Postgres::start() else { return };
    postgres.query(
        "create table t ();
         create function attempt(expression text) returns text language plpgsql as $$
         declare result text;
         begin
             execute 'select (' || expression || ')::text from t' into result;
             return coalesce('=' || result, 'null');
         exception when others then return '!' || sqlstate || ' ' || sqlerrm;
         end $$;",
    );
    let mut maker = Maker::new();
    let mut differences = Vec::new();
    for _ in 0..ROUNDS {
        let types: Vec<Type> = TYPES.iter().flat_map(|&ty| [ty; COLUMNS]).collect();
        let row: Row = types.iter().map(|&ty| maker.value(ty)).collect();
        let columns: Vec<String> = row
            .iter()
            .zip(&types)
            .enumerate()
            .map(|(i, (value, ty))| format!("{} as c{i}", literal(value, *ty)))
            .collect();
        let mut script = format!("drop table t; create table t as select {};\n", columns.join(", "));
        let exprs: Vec<Expr> = (0..EXPRESSIONS)
            .map(|_| {
                let (ty, depth) = (maker.pick(&TYPES), 1 + maker.below(3));
                maker.expr(ty, depth)
            })
            .collect();
        for expr in &exprs {
            script += &format!("select attempt($x${}$x$);\n", sql(expr));
        }
        let theirs = postgres.query(&script);
        assert_eq!(theirs.len(), exprs.len());
        for (expr, theirs) in exprs.iter().zip(theirs) {
            let ours = outcome(expr, &row);
            assert_eq!(
                outcome(&with_constants(expr, &row).fold(), &Row::new()),
                ours,
                "folded: {}",
                sql(expr)
            );
            if ours != theirs && !is_known_deviation(&ours) {
                let operands = operands(expr, &row);
                differences
                    .push(format!("{}\n  ours {ours}\n  theirs {theirs}\n  with{operands}", sql(expr)));
            }
        }
    }
    differences.sort_by_key(String::len);
    let shown = differences[..differences.len().min(12)].join("\n");
    assert!(differences.is_empty(), "{} differences, the shortest:\n{shown}", differences.len());
}
