//! Writes expressions as the parser reads them, with parentheses around every operator and its operands.
//!
//! `checks/postgres` names a file of expressions in `QUORATE_EXPRESSIONS`. Each line holds one expression
//! after a tab. The test writes the expressions with parentheses to the file in `QUORATE_EXPRESSIONS_READ`.
//! PostgreSQL must read both forms of an expression alike.

use std::ops::ControlFlow;

use quorate_sql::{error::SqlError, statement::parse::parse};
use sqlparser::ast::{Expr, Value, VisitMut, VisitorMut};

struct Parentheses;

impl VisitorMut for Parentheses {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let operator = matches!(
            expr,
            Expr::BinaryOp { .. }
                | Expr::UnaryOp { .. }
                | Expr::IsNull(_)
                | Expr::IsNotNull(_)
                | Expr::IsTrue(_)
                | Expr::IsNotTrue(_)
                | Expr::IsFalse(_)
                | Expr::IsNotFalse(_)
                | Expr::IsUnknown(_)
                | Expr::IsNotUnknown(_)
                | Expr::IsDistinctFrom(..)
                | Expr::IsNotDistinctFrom(..)
                | Expr::Between { .. }
                | Expr::InList { .. }
                | Expr::Like { .. }
                | Expr::ILike { .. }
                | Expr::SimilarTo { .. }
                | Expr::AnyOp { .. }
                | Expr::AllOp { .. }
                | Expr::Cast { .. }
                | Expr::Collate { .. }
                | Expr::AtTimeZone { .. }
        );
        if operator {
            let nothing = Expr::Value(Value::Null.with_empty_span());
            let inner = std::mem::replace(expr, nothing);
            *expr = Expr::Nested(Box::new(inner));
        }
        ControlFlow::Continue(())
    }
}

/// Returns the expression with all its parentheses.
fn parenthesised(expression: &str) -> Result<String, SqlError> {
    let mut statements = parse(&format!("select {expression}"))?;
    let _ = VisitMut::visit(&mut statements, &mut Parentheses);
    Ok(statements[0].to_string().trim_start_matches("SELECT ").to_owned())
}

#[test]
fn operators_bind_as_in_postgresql() {
    for (written, read) in [
        ("a or b and not c = d", "(a OR (b AND (NOT (c = d))))"),
        ("a is distinct from b and c", "((a IS DISTINCT FROM b) AND c)"),
        ("a is not distinct from b = c or d", "((a IS NOT DISTINCT FROM (b = c)) OR d)"),
        ("a = b isnull notnull", "(((a = b) IS NULL) IS NOT NULL)"),
        ("a <> b ~~ c || d", "(a <> ((b ~~ c) || d))"),
        ("a like b || c", "(a LIKE (b || c))"),
        ("a || b like c = d", "(((a || b) LIKE c) = d)"),
        ("- a ^ b", "((-a) ^ b)"),
        ("- a::int * b", "((-(a::INT)) * b)"),
        ("- a collate \"C\"::text", "(((-a) COLLATE \"C\")::TEXT)"),
        ("- - a", "(-(-a))"),
        ("a + - b - c", "((a + (-b)) - c)"),
        ("a = - b in (c)", "(a = ((-b) IN (c)))"),
        ("a between b = c and d + e = f", "((a BETWEEN (b = c) AND (d + e)) = f)"),
        ("a like b escape '!' = c", "((a LIKE b ESCAPE '!') = c)"),
        ("a like any (b) = c", "((a ~~ ANY(b)) = c)"),
        ("a operator(pg_catalog.+) b * c", "(a OPERATOR(pg_catalog.+) (b * c))"),
        ("a # b & c + d", "((a # b) & (c + d))"),
        ("a at time zone b || c", "((a AT TIME ZONE b) || c)"),
        ("a = any (b) = c", "((a = ANY(b)) = c)"),
        ("position(a || b in c) + 1", "(POSITION((a || b) IN c) + 1)"),
        ("interval + 1", "(interval + 1)"),
        ("x.y + z.a::text", "(x.y + (z.a::TEXT))"),
    ] {
        assert_eq!(parenthesised(written).unwrap(), read, "{written}");
    }
    for (written, code) in [
        ("a < b < c", "42601"),
        ("a = b <> c", "42601"),
        ("a like b like c", "42601"),
        ("a between b and c in (d)", "42601"),
        ("a is distinct from b is null", "42601"),
        ("a is distinct from b notnull", "42601"),
        ("a between b like c and d", "42601"),
        ("a not null", "42601"),
        ("a !", "42601"),
        ("a xor b", "42601"),
        ("a == b", "0A000"),
        ("a <=> b", "0A000"),
        ("@ a", "0A000"),
        ("abs(@ a)", "0A000"),
        ("not @ a = b", "0A000"),
        ("a like b escape c", "0A000"),
        ("a like b escape 'c' || d", "0A000"),
    ] {
        let refused = parenthesised(written).expect_err(written);
        assert_eq!(refused.code, code, "{written}: {refused}");
    }
}

#[test]
fn expressions_are_parenthesised_for_a_comparison_with_postgresql() {
    let (Ok(written), Ok(read)) =
        (std::env::var("QUORATE_EXPRESSIONS"), std::env::var("QUORATE_EXPRESSIONS_READ"))
    else {
        eprintln!("skipped: QUORATE_EXPRESSIONS names no file");
        return;
    };
    let written = std::fs::read_to_string(written).expect("the expressions can be read");
    let lines = written.lines().map(|line| {
        let (pair, expression) = line.split_once('\t').expect("an expression stands behind a tab");
        let shown = parenthesised(expression).unwrap_or_else(|error| format!("ERROR {}", error.code));
        format!("{pair}\t{shown}\n")
    });
    std::fs::write(read, lines.collect::<String>()).expect("they can be written");
}
