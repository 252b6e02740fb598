//! A select in the byte form it travels in, with holes for its arguments.
//!
//! Most statements that are prepared compare columns with parameters, and an execution changes nothing but the values.
//! Their selects are encoded once, when they are bound, and an execution copies the bytes and writes its values between
//! them, instead of building an expression, encoding it and dropping it.
//!
//! Promise: what [`Stencil::fill`] gives is what encoding the select with its arguments put in ([`fold::substitute`])
//! gives. A select has a stencil only if that can be told from its form: no part of it becomes a constant by its arguments or
//! is joined with another, and no argument can decide which ranges are concerned.

use bytes::Bytes;
use quorate_table::{
    expr::{Binary, Expr},
    operation::Select,
    schema::{KeyRange, Schema},
    value::Value,
};
use quorate_tables::gateway;

use super::{
    fold,
    parameters::{Arguments, array_of},
};

/// The bytes of a select around its arguments.
#[derive(Debug)]
pub struct Stencil {
    /// What stands before each argument, and its parameter's number.
    pieces: Vec<(Box<[u8]>, usize)>,
    /// What stands behind the last.
    end: Box<[u8]>,
    /// Of all pieces.
    bytes: usize,
}

/// A value rarely takes more.
const VALUE_BYTES: usize = 32;
/// A statement with more arguments, such as a long list, is hardly executed again.
const PLACES_MAX: usize = 64;
/// What a marker ends in: its place, and one byte more.
const PLACE_BYTES: usize = 6;

impl Stencil {
    /// The stencil of a select of a table with this definition, if it can have one.
    pub fn of(select: &Select, schema: &Schema) -> Option<Stencil> {
        let filter = select.filter.as_ref()?;
        let partition =
            |expr: &Expr| matches!(expr, Expr::Column(column, _) if *column == schema.partition.column());
        if !is_fixed(filter) || fold::any(filter, &partition) {
            return None;
        }
        if schema.partition.ranges(filter) != [KeyRange::ALL] {
            return None;
        }
        // Values that cannot be mistaken for another show where the arguments stand.
        let mut numbers = Vec::new();
        let mut marked = select.clone();
        mark(marked.filter.as_mut()?, &mut numbers);
        if numbers.len() > PLACES_MAX {
            return None;
        }
        let whole = gateway::encoded(&marked);
        let like = gateway::append(&marker(0), Vec::new());
        // All markers are alike but for their last bytes, and nothing else may look like one.
        let alike = &like[..like.len() - PLACE_BYTES];
        let mut found = whole.windows(like.len()).enumerate().filter(|(_, bytes)| bytes.starts_with(alike));
        let (mut pieces, mut behind) = (Vec::with_capacity(numbers.len()), 0);
        for (place, number) in numbers.into_iter().enumerate() {
            let (at, _) =
                found.next().filter(|(_, bytes)| *bytes == gateway::append(&marker(place), Vec::new()))?;
            pieces.push((whole[behind..at].into(), number));
            behind = at + like.len();
        }
        if found.next().is_some() {
            return None;
        }
        let end: Box<[u8]> = whole[behind..].into();
        // A parameter anywhere else has been left open.
        let open = |expr: &Expr| fold::any(expr, &|part| matches!(part, Expr::Parameter(..)));
        if marked.output.expressions().any(open) {
            return None;
        }
        let bytes = whole.len();
        Some(Stencil { pieces, end, bytes })
    }

    /// The select's byte form with these arguments.
    pub fn fill(&self, arguments: &Arguments<'_>) -> Bytes {
        let mut filled = Vec::with_capacity(self.bytes + VALUE_BYTES * self.pieces.len());
        for (before, number) in &self.pieces {
            filled.extend_from_slice(before);
            filled = gateway::append(&arguments.value(*number), filled);
        }
        filled.extend_from_slice(&self.end);
        filled.into()
    }
}

/// Whether an expression keeps its form whatever its arguments are.
fn is_fixed(expr: &Expr) -> bool {
    match expr {
        Expr::Parameter(number, _) => array_of(*number).is_none(),
        Expr::Column(..) | Expr::Constant(..) => true,
        Expr::Binary(Binary::Or, ..) => false,
        inner => {
            let parts = inner.children();
            let open = |part: &&Expr| !matches!(part, Expr::Parameter(..) | Expr::Constant(..));
            parts.iter().any(open) && parts.into_iter().all(is_fixed)
        }
    }
}

/// Puts a marker for each parameter, from left to right.
fn mark(expr: &mut Expr, numbers: &mut Vec<usize>) {
    if let Expr::Parameter(number, ty) = *expr {
        *expr = Expr::Constant(marker(numbers.len()), ty);
        numbers.push(number);
        return;
    }
    for child in expr.children_mut() {
        mark(child, numbers);
    }
}

fn marker(place: usize) -> Value {
    Value::text_of(format!("\u{1}argument {place:05}\u{1}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quorate_table::{
        operation::Operation,
        schema::{Column, Partition, TableId},
        value::Type,
    };

    use super::*;
    use crate::{
        backend::{Catalog, Table},
        statement::{
            self, Statement,
            parameters::SessionValue,
            parse,
            select::{Query, Source},
        },
    };

    fn bound(condition: &str) -> Query {
        let column = |(name, ty): (&str, Type)| Column {
            name: name.to_owned(),
            ty,
            modifier: None,
            not_null: false,
            default: None,
        };
        let columns = [("k", Type::Int8), ("t", Type::Text), ("n", Type::Int4), ("d", Type::Date)];
        let schema = Schema {
            name: "s".to_owned(),
            columns: columns.map(column).into(),
            primary_key: Vec::new(),
            partition: Partition::Hash { column: 0 },
        };
        let table = Table { id: TableId(7), schema, replicas: 1, rows: None };
        let catalog = Arc::new(Catalog { version: 1, tables: vec![Arc::new(table)] });
        let text = format!("select t, k from s where {condition}");
        let syntax = parse::parse(&text).unwrap().pop().unwrap();
        match statement::bind(&syntax, Vec::new(), &catalog).unwrap().statement {
            Statement::Query(query) => *query,
            other => panic!("{other:?}"),
        }
    }

    /// Whether it has a stencil; what that gives is what the arguments make of the select.
    fn check(condition: &str, values: &[Value]) -> bool {
        let query = bound(condition);
        let Source::Table { select, stencil, .. } = query.source else { panic!("it is of a table") };
        let session = |_: SessionValue| Value::Date(3);
        let arguments = Arguments { values, session: &session };
        let Some(stencil) = stencil else { return false };
        let filter = select.filter.as_ref().map(|filter| fold::substitute(filter, &arguments));
        let filled = gateway::operation(&stencil.fill(&arguments));
        assert_eq!(filled, Some(Operation::Select(Select { filter, ..select })), "{condition}");
        true
    }

    #[test]
    fn a_stencil_gives_what_the_arguments_make_of_the_select() {
        let (text, number, day) = (Value::text_of("Zürich"), Value::Int4(-5), Value::Date(9));
        assert!(check("t = $1", std::slice::from_ref(&text)));
        assert!(check("t = $1", &[Value::Null]));
        assert!(check("t = $2 and n = $1 and d between $3 and $3", &[number.clone(), text.clone(), day]));
        assert!(check("t in ($1, 'b', $2) and n > 3", &[text.clone(), Value::text_of("")]));
        assert!(check("t like $1 and not n <> $2", &[text.clone(), number.clone()]));
        assert!(check("d = current_date and n is null", &[]));
        assert!(check("t = 'no argument'", &[]));
    }

    #[test]
    fn what_arguments_can_change_has_none() {
        // What is computed, joined, spread, or decides the ranges.
        for condition in [
            "n = $1::int + 1",
            "n = $1 or n = $2",
            "n = any($1)",
            "k = $1",
            "k > 5 and t = $1",
            "false and t = $1",
            "$1::int = 4 and n = 1",
        ] {
            assert!(!check(condition, &[]), "{condition}");
        }
        // More than are worth looking for, however they are repeated.
        let list = |places: usize| format!("t in ({})", vec!["$1"; places].join(", "));
        assert!(check(&list(PLACES_MAX), &[Value::text_of("a")]));
        assert!(!check(&list(PLACES_MAX + 1), &[]));
        // A marker's text in the statement itself.
        assert!(!check("t = $1 and t <> '\u{1}argument 00000\u{1}'", &[]));
    }
}
