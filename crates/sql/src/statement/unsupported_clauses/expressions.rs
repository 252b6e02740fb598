//! The fields of expressions and calls of functions.

use sqlparser::{
    ast::{self, Spanned},
    tokenizer::Span,
};

use super::{
    clause::{Others, Postgres, absent, foreign},
    queries::{order_key, wildcard},
};
use crate::error::Result;

pub(super) fn expr(expr: &ast::Expr) -> Result<()> {
    use ast::Expr::*;
    match expr {
        Function(function) => self::function(function, expr.span()),
        Cast { kind, expr: _, data_type: _, array, format } => absent(
            &[
                (
                    !matches!(kind, ast::CastKind::Cast | ast::CastKind::DoubleColon),
                    Others,
                    "TRY_CAST or SAFE_CAST",
                ),
                (*array, Others, "ARRAY of a cast"),
                (format.is_some(), Others, "FORMAT of a cast"),
            ],
            expr.span(),
        ),
        TypedString(ast::TypedString { data_type: _, value: _, uses_odbc_syntax }) => {
            absent(&[(*uses_odbc_syntax, Others, "constant in braces")], expr.span())
        }
        Extract { field: _, syntax, expr: _ } => {
            let comma = matches!(syntax, ast::ExtractSyntax::Comma);
            absent(&[(comma, Others, "EXTRACT with a comma")], expr.span())
        }
        Interval(interval) => {
            let ast::Interval {
                value: _,
                leading_field: _,
                leading_precision,
                last_field: _,
                fractional_seconds_precision,
            } = interval;
            let precise = leading_precision.is_some() || fractional_seconds_precision.is_some();
            absent(&[(precise, Postgres, "the precision of an interval")], expr.span())
        }
        _ => Ok(()),
    }
}

fn function(function: &ast::Function, span: Span) -> Result<()> {
    let ast::Function {
        name: _,
        uses_odbc_syntax,
        parameters,
        args,
        filter: _,
        null_treatment,
        over,
        within_group,
    } = function;
    absent(
        &[
            (*uses_odbc_syntax, Others, "call in braces"),
            (!matches!(parameters, ast::FunctionArguments::None), Others, "second list of arguments"),
            (null_treatment.is_some(), Others, "IGNORE NULLS"),
            (!within_group.is_empty(), Postgres, "WITHIN GROUP"),
        ],
        span,
    )?;
    if let Some(ast::WindowType::WindowSpec(spec)) = over {
        let ast::WindowSpec { window_name: _, partition_by: _, order_by, window_frame: _ } = spec;
        order_by.iter().try_for_each(order_key)?;
    }
    let ast::FunctionArguments::List(list) = args else { return Ok(()) };
    let ast::FunctionArgumentList { duplicate_treatment: _, args, clauses } = list;
    for argument in args {
        if let ast::FunctionArg::Unnamed(ast::FunctionArgExpr::WildcardWithOptions(options)) = argument {
            wildcard(options, span)?;
        }
    }
    for clause in clauses {
        match clause {
            ast::FunctionArgumentClause::OrderBy(keys) => keys.iter().try_for_each(order_key)?,
            _ => return Err(foreign("clause of this form in a function call", span)),
        }
    }
    Ok(())
}
