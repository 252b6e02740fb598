//! Writes the condition of a CHECK as SQL, in PostgreSQL's form.
//!
//! The text is made from the bound condition, so that catalogs show the columns by their present names.
//! Binding has computed the constants: `a > 1 + 1` is shown as `(a > 2)`. A condition that binding takes
//! apart, such as arithmetic with intervals, has no text here.

use quorate_table::{
    expr::{Binary, Expr, Function, Unary},
    schema::Schema,
    value::{Type, Value},
};

use crate::{
    catalog::identifier::quoted,
    types::{self, PgType},
};

/// Returns a condition over the columns of a table as SQL. `pretty` leaves out parentheses, as PostgreSQL
/// does for psql. `None` if no SQL says what the condition does.
pub(crate) fn text_of(expr: &Expr, schema: &Schema, pretty: bool) -> Option<String> {
    Writer { schema, pretty }.text(expr, Parent::Top)
}

struct Writer<'a> {
    schema: &'a Schema,
    pretty: bool,
}

/// The node around an expression, which decides whether the expression needs parentheses in the pretty form.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parent {
    /// No node, or a node with parentheses of its own, such as a call.
    Top,
    And,
    Or,
    Not,
    /// An operator, or a cast.
    Operator,
}

impl Writer<'_> {
    fn text(&self, expr: &Expr, parent: Parent) -> Option<String> {
        let text = match expr {
            Expr::Column(index, _) => return self.column(*index, true),
            Expr::Constant(value, ty) => return Some(constant(value, *ty, self.pretty)),
            Expr::Parameter(..) => return None,
            Expr::Unary(Unary::Not, inner) => match &**inner {
                Expr::IsNull(inner) => format!("{} IS NOT NULL", self.bare(inner, Parent::Operator)?),
                Expr::Like { text, pattern, escape, case_insensitive } => {
                    self.like(text, pattern, *escape, *case_insensitive, true)?
                }
                Expr::In(probe, members) => {
                    let probe = self.operand(Binary::NotEqual, probe)?;
                    format!("{probe} <> ALL (ARRAY[{}])", self.list(members.iter())?)
                }
                inner => format!("NOT {}", self.text(inner, Parent::Not)?),
            },
            Expr::Unary(Unary::Negate, inner) => format!("- {}", self.text(inner, Parent::Operator)?),
            Expr::Binary(operator, left, right) => {
                let (left, right) = (self.operand(*operator, left)?, self.operand(*operator, right)?);
                format!("{left} {} {right}", sign(*operator))
            }
            Expr::IsNull(inner) => format!("{} IS NULL", self.bare(inner, Parent::Operator)?),
            Expr::In(probe, members) => {
                let probe = self.operand(Binary::Equal, probe)?;
                format!("{probe} = ANY (ARRAY[{}])", self.list(members.iter())?)
            }
            Expr::Like { text, pattern, escape, case_insensitive } => {
                self.like(text, pattern, *escape, *case_insensitive, false)?
            }
            Expr::Cast(inner, ty) => {
                let inner = self.bare(inner, Parent::Operator)?;
                return Some(cast(inner, name(*ty), self.pretty));
            }
            Expr::Case { branches, otherwise, ty } => {
                let mut text = String::from("\nCASE");
                for (condition, result) in branches {
                    let (condition, result) =
                        (self.text(condition, Parent::Top)?, self.text(result, Parent::Top)?);
                    text.push_str(&format!("\n    WHEN {condition} THEN {result}"));
                }
                let otherwise = match otherwise {
                    Some(otherwise) => self.text(otherwise, Parent::Top)?,
                    None => constant(&Value::Null, *ty, self.pretty),
                };
                return Some(format!("{text}\n    ELSE {otherwise}\nEND"));
            }
            Expr::Call(Function::Extract, arguments) => {
                let [Expr::Constant(Value::Text(field), _), source] = &arguments[..] else { return None };
                return Some(format!("EXTRACT({} FROM {})", field, self.text(source, Parent::Top)?));
            }
            Expr::Call(function, arguments) => {
                return Some(format!("{}({})", function_name(*function)?, self.list(arguments.iter())?));
            }
        };
        let needs_parentheses = match (expr, parent) {
            _ if !self.pretty => true,
            (_, Parent::Top) => false,
            (_, Parent::Operator) => true,
            (Expr::Binary(Binary::And, ..), Parent::Not) => true,
            (Expr::Binary(Binary::Or, ..), Parent::Not | Parent::And) => true,
            _ => false,
        };
        Some(if needs_parentheses { format!("({text})") } else { text })
    }

    fn list<'e>(&self, exprs: impl Iterator<Item = &'e Expr>) -> Option<String> {
        let texts: Vec<String> = exprs.map(|expr| self.text(expr, Parent::Top)).collect::<Option<_>>()?;
        Some(texts.join(", "))
    }

    /// Returns the text of an operand of a binary operator. Most operators take integers of several widths
    /// together, so PostgreSQL writes no cast.
    fn operand(&self, operator: Binary, expr: &Expr) -> Option<String> {
        let parent = match operator {
            Binary::And => Parent::And,
            Binary::Or => Parent::Or,
            _ => Parent::Operator,
        };
        match expr {
            Expr::Cast(inner, ty) if operator != Binary::Modulo && widens(inner.ty(), *ty) => {
                self.text(inner, parent)
            }
            other => self.text(other, parent),
        }
    }

    /// Returns the text of an operand that needs no cast to `text`.
    fn bare(&self, expr: &Expr, parent: Parent) -> Option<String> {
        match expr {
            Expr::Column(index, _) => self.column(*index, false),
            other => self.text(other, parent),
        }
    }

    /// Returns the name of a column. Operators take a `varchar` as `text`, which PostgreSQL shows as a cast.
    fn column(&self, index: usize, as_operand: bool) -> Option<String> {
        let column = self.schema.columns.get(index)?;
        let name = quoted(&column.name);
        let is_varchar = column.ty == Type::Text && types::of_column(column).0 != PgType::TEXT;
        Some(if is_varchar && as_operand { cast(name, "text", self.pretty) } else { name })
    }

    /// Returns the text of LIKE, without parentheses.
    fn like(
        &self,
        text: &Expr,
        pattern: &Expr,
        escape: Option<char>,
        ignores_case: bool,
        is_negated: bool,
    ) -> Option<String> {
        let (text, pattern) = (self.text(text, Parent::Operator)?, self.text(pattern, Parent::Operator)?);
        let not = if is_negated { "!" } else { "" };
        let operator = if ignores_case { "~~*" } else { "~~" };
        if escape == Some('\\') {
            return Some(format!("{text} {not}{operator} {pattern}"));
        }
        let not = if is_negated { "NOT " } else { "" };
        let word = if ignores_case { "ILIKE" } else { "LIKE" };
        let escape = escape.map_or(String::new(), String::from).replace('\'', "''");
        Some(format!("{text} {not}{word} {pattern} ESCAPE '{escape}'"))
    }
}

/// Returns a cast of an operand.
fn cast(operand: String, ty: &str, pretty: bool) -> String {
    match pretty || operand.starts_with('(') {
        true => format!("{operand}::{ty}"),
        false => format!("({operand})::{ty}"),
    }
}

/// Whether a cast widens an integer.
fn widens(from: Type, to: Type) -> bool {
    let rank = |ty| [Type::Int2, Type::Int4, Type::Int8].iter().position(|known| *known == ty);
    rank(from).is_some() && rank(from) < rank(to)
}

/// Returns a type's name in a cast.
fn name(ty: Type) -> &'static str {
    PgType::Plain(ty).display()
}

fn constant(value: &Value, ty: Type, pretty: bool) -> String {
    let name = name(ty);
    let Some(text) = value.text() else { return format!("NULL::{name}") };
    let is_plain = text.starts_with(|letter: char| letter.is_ascii_digit());
    match ty {
        Type::Bool => if text == "t" { "true" } else { "false" }.to_owned(),
        Type::Int2 | Type::Int4 | Type::Int8 if is_plain => text,
        Type::Int2 | Type::Int4 | Type::Int8 if text.parse::<i32>().is_ok() => format!("'{text}'::integer"),
        Type::Numeric if is_plain && text.contains('.') => text,
        Type::Numeric | Type::Float8 if is_plain => cast(text, name, pretty),
        Type::Numeric | Type::Float8 if text.parse::<i32>().is_ok() => {
            cast(format!("'{text}'::integer"), name, pretty)
        }
        _ => format!("'{}'::{name}", text.replace('\'', "''")),
    }
}

fn sign(operator: Binary) -> &'static str {
    match operator {
        Binary::And => "AND",
        Binary::Or => "OR",
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
        Binary::Distinct => "IS DISTINCT FROM",
    }
}

/// Returns a function's name. `None` if calls have another form, or no SQL calls the function.
fn function_name(function: Function) -> Option<&'static str> {
    Some(match function {
        Function::Abs => "abs",
        Function::Sign => "sign",
        Function::Round => "round",
        Function::Trunc => "trunc",
        Function::Floor => "floor",
        Function::Ceil => "ceil",
        Function::Sqrt => "sqrt",
        Function::Power => "power",
        Function::Exp => "exp",
        Function::Ln => "ln",
        Function::Log10 => "log10",
        Function::Lower => "lower",
        Function::Upper => "upper",
        Function::Length => "length",
        Function::OctetLength => "octet_length",
        Function::Substring => "\"substring\"",
        Function::Left => "\"left\"",
        Function::Right => "\"right\"",
        Function::Trim => "btrim",
        Function::TrimLeft => "ltrim",
        Function::TrimRight => "rtrim",
        Function::PadLeft => "lpad",
        Function::PadRight => "rpad",
        Function::Replace => "replace",
        Function::Repeat => "repeat",
        Function::Reverse => "reverse",
        Function::Position => "strpos",
        Function::StartsWith => "starts_with",
        Function::SplitPart => "split_part",
        Function::Concat => "concat",
        Function::Coalesce => "COALESCE",
        Function::NullIf => "NULLIF",
        Function::Greatest => "GREATEST",
        Function::Least => "LEAST",
        Function::DateTrunc => "date_trunc",
        Function::MakeDate => "make_date",
        Function::ToChar => "to_char",
        Function::InitCap => "initcap",
        Function::Encode => "encode",
        Function::Decode => "decode",
        Function::JsonTypeOf => "jsonb_typeof",
        Function::JsonArrayLength => "jsonb_array_length",
        // SQL writes these functions as operators.
        Function::JsonField
        | Function::JsonFieldText
        | Function::JsonPath
        | Function::JsonPathText
        | Function::JsonContains
        | Function::JsonExists => return None,
        Function::Translate => "translate",
        Function::Ascii => "ascii",
        Function::Chr => "chr",
        Function::Join => "concat_ws",
        Function::Extract
        | Function::Shift
        | Function::Elapsed
        | Function::IntervalText
        | Function::IntervalField
        | Function::Fit(_) => return None,
    })
}
