//! An encoded select with holes for its arguments.
//!
//! Most prepared statements compare columns with parameters, so their executions differ only in values. The
//! select of such a statement is encoded once, when it is bound. An execution copies the bytes and writes its
//! values between them. So no execution builds, encodes and drops an expression.
//!
//! **Promise.** [`EncodedTemplate::fill`] returns the same bytes as encoding the select after
//! [`fold::substitute`]. A select has a template only if its form guarantees these equal bytes. No arguments
//! may turn a part of the select into a constant, merge two parts, or decide which ranges take part.

use bytes::Bytes;
use quorate_roles::tables::gateway;
use quorate_table::{
    expr::{Binary, Expr},
    operation::Select,
    schema::{KeyRange, Schema},
    value::Value,
};

use super::{
    fold,
    parameters::{Arguments, array_parameter},
};

/// The bytes of an encoded select around its arguments.
#[derive(Debug)]
pub struct EncodedTemplate {
    /// The bytes before each argument, with the number of the argument's parameter.
    pieces: Vec<(Box<[u8]>, usize)>,
    /// The bytes after the last argument.
    end: Box<[u8]>,
    /// Length of all pieces with their markers, in bytes.
    bytes: usize,
}

/// Room reserved for an encoded value, in bytes.
const VALUE_BYTES: usize = 32;
/// Maximum number of arguments of a template. A statement with more arguments, such as a long list, is rarely
/// executed again.
const PLACES_MAX: usize = 64;
/// Length of the end of an encoded marker, in bytes: its digits and one more byte.
const PLACE_BYTES: usize = 6;

impl EncodedTemplate {
    /// Returns the template of a select from a table with the definition `schema`. `None` if the form of the
    /// select allows no template.
    pub fn of(select: &Select, schema: &Schema) -> Option<EncodedTemplate> {
        let filter = select.filter.as_ref()?;
        let partition =
            |expr: &Expr| matches!(expr, Expr::Column(column, _) if *column == schema.partition.column());
        if !is_fixed(filter) || fold::any(filter, &partition) {
            return None;
        }
        if schema.partition.ranges(filter) != [KeyRange::ALL] {
            return None;
        }
        // Markers show where the arguments are. A marker is a value that occurs nowhere else.
        let mut numbers = Vec::new();
        let mut marked = select.clone();
        mark(marked.filter.as_mut()?, &mut numbers);
        if numbers.len() > PLACES_MAX {
            return None;
        }
        let whole = gateway::encoded(&marked);
        let like = gateway::append(&marker(0), Vec::new());
        // Markers differ only in their last bytes. If other bytes begin like a marker, the select has no
        // template.
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
        // A parameter outside of the filter has no marker, so the select has no template.
        let open = |expr: &Expr| fold::any(expr, &|part| matches!(part, Expr::Parameter(..)));
        if marked.output.expressions().any(open) {
            return None;
        }
        let bytes = whole.len();
        Some(EncodedTemplate { pieces, end, bytes })
    }

    /// Returns the encoded select with these arguments.
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

/// Whether an expression keeps its form whatever the arguments are.
fn is_fixed(expr: &Expr) -> bool {
    match expr {
        Expr::Parameter(number, _) => array_parameter(*number).is_none(),
        Expr::Column(..) | Expr::Constant(..) => true,
        Expr::Binary(Binary::Or, ..) => false,
        inner => {
            let parts = inner.children();
            let open = |part: &&Expr| !matches!(part, Expr::Parameter(..) | Expr::Constant(..));
            parts.iter().any(open) && parts.into_iter().all(is_fixed)
        }
    }
}

/// Replaces each parameter by a marker, from left to right.
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
            constraints: Vec::new(),
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

    /// Checks that filling a template gives the same bytes as substituting the arguments. Returns whether the
    /// select has a template.
    fn check(condition: &str, values: &[Value]) -> bool {
        let query = bound(condition);
        let Source::Table { select, template, .. } = query.source else { panic!("it is of a table") };
        let session = |_: SessionValue| Value::Date(3);
        let arguments = Arguments { values, session: &session };
        let Some(template) = template else { return false };
        let filter = select.filter.as_ref().map(|filter| fold::substitute(filter, &arguments));
        let filled = gateway::operation(&template.fill(&arguments));
        assert_eq!(filled, Some(Operation::Select(Select { filter, ..select })), "{condition}");
        true
    }

    #[test]
    fn a_template_with_arguments_equals_the_encoded_select() {
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
    fn a_statement_whose_plan_depends_on_its_arguments_has_no_template() {
        // A statement has no template if a condition on a parameter is computed, merged with another
        // condition, spread out over an array, or decides the ranges.
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
        // The list has more arguments than `PLACES_MAX`, although they are all the same parameter.
        let list = |places: usize| format!("t in ({})", vec!["$1"; places].join(", "));
        assert!(check(&list(PLACES_MAX), &[Value::text_of("a")]));
        assert!(!check(&list(PLACES_MAX + 1), &[]));
        // The statement itself contains a marker's text.
        assert!(!check("t = $1 and t <> '\u{1}argument 00000\u{1}'", &[]));
    }
}
