//! The fields of the tables of FROM, and of their joins and aliases.

use sqlparser::{
    ast::{self, Spanned},
    tokenizer::Span,
};

use super::clause::{Others, Postgres, absent, foreign};
use crate::error::Result;

pub(super) fn joins(table: &ast::TableWithJoins) -> Result<()> {
    use ast::JoinOperator::*;
    let ast::TableWithJoins { relation: _, joins } = table;
    for join in joins {
        let ast::Join { relation: _, global, join_operator } = join;
        let span = join.span();
        absent(&[(*global, Others, "GLOBAL JOIN")], span)?;
        match join_operator {
            Join(constraint)
            | Inner(constraint)
            | Left(constraint)
            | LeftOuter(constraint)
            | Right(constraint)
            | RightOuter(constraint)
            | FullOuter(constraint) => {
                let none = matches!(constraint, ast::JoinConstraint::None);
                absent(&[(none, Others, "JOIN without ON or USING")], span)?;
            }
            CrossJoin(constraint) => {
                let none = matches!(constraint, ast::JoinConstraint::None);
                absent(&[(!none, Others, "condition of a CROSS JOIN")], span)?;
            }
            Semi(_)
            | LeftSemi(_)
            | RightSemi(_)
            | Anti(_)
            | LeftAnti(_)
            | RightAnti(_)
            | CrossApply
            | OuterApply
            | AsOf { match_condition: _, constraint: _ }
            | StraightJoin(_)
            | ArrayJoin
            | LeftArrayJoin
            | InnerArrayJoin => return Err(foreign("such a join", span)),
        }
    }
    Ok(())
}

pub(super) fn factor(factor: &ast::TableFactor) -> Result<()> {
    use ast::TableFactor::*;
    let span = factor.span();
    let alias = match factor {
        Table {
            name: _,
            alias,
            args,
            with_hints,
            version,
            with_ordinality,
            partitions,
            json_path,
            sample,
            index_hints,
        } => {
            let settings = match args {
                None => false,
                Some(ast::TableFunctionArgs { args: _, settings }) => settings.is_some(),
            };
            absent(
                &[
                    (sample.is_some(), Postgres, "TABLESAMPLE"),
                    (*with_ordinality && args.is_none(), Others, "WITH ORDINALITY of a table"),
                    (!with_hints.is_empty() || !index_hints.is_empty(), Others, "hint of a table"),
                    (version.is_some(), Others, "version of a table"),
                    (!partitions.is_empty(), Others, "PARTITION of a table"),
                    (json_path.is_some(), Others, "path into a table"),
                    (settings, Others, "SETTINGS"),
                ],
                span,
            )?;
            alias
        }
        Derived { lateral: _, subquery: _, alias, sample } => {
            absent(&[(sample.is_some(), Others, "TABLESAMPLE of a sub-select")], span)?;
            alias
        }
        Function { lateral: _, name: _, args: _, with_ordinality: _, alias } => alias,
        UNNEST { alias, array_exprs: _, with_offset, with_offset_alias, with_ordinality: _ } => {
            absent(&[(*with_offset || with_offset_alias.is_some(), Others, "WITH OFFSET")], span)?;
            alias
        }
        NestedJoin { table_with_joins, alias } => {
            joins(table_with_joins)?;
            alias
        }
        // The binders refuse all these forms.
        TableFunction { expr: _, alias: _ }
        | JsonTable { .. }
        | OpenJsonTable { .. }
        | Pivot { .. }
        | Unpivot { .. }
        | MatchRecognize { .. }
        | XmlTable { .. }
        | SemanticView { .. } => return Ok(()),
    };
    alias.as_ref().map_or(Ok(()), |alias| self::alias(alias, span))
}

pub(super) fn alias(alias: &ast::TableAlias, span: Span) -> Result<()> {
    let ast::TableAlias { explicit: _, name: _, columns, at } = alias;
    absent(&[(at.is_some(), Others, "AT of an alias")], span)?;
    for column in columns {
        let ast::TableAliasColumnDef { name: _, data_type } = column;
        absent(&[(data_type.is_some(), Postgres, "a column definition list")], span)?;
    }
    Ok(())
}
