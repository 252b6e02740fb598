//! The fields of queries and selects.

use sqlparser::{
    ast::{self, Spanned},
    tokenizer::Span,
};

use super::{
    clause::{Others, Postgres, absent, foreign},
    tables::{self, joins},
};
use crate::error::{Result, SqlError, code};

pub(super) fn query(query: &ast::Query) -> Result<()> {
    let ast::Query {
        with,
        body: _,
        order_by,
        limit_clause,
        fetch,
        locks: _,
        for_clause,
        settings,
        format_clause,
        pipe_operators,
    } = query;
    let span = query.span();
    absent(
        &[
            (for_clause.is_some(), Others, "FOR XML, JSON or BROWSE"),
            (settings.is_some() || format_clause.is_some(), Others, "SETTINGS or FORMAT"),
            (!pipe_operators.is_empty(), Others, "pipe operator"),
        ],
        span,
    )?;
    if let Some(ast::With { with_token: _, recursive: _, cte_tables }) = with {
        for cte in cte_tables {
            let ast::Cte { alias, query: _, from, materialized: _, closing_paren_token: _ } = cte;
            absent(&[(from.is_some(), Others, "FROM of a query of WITH")], span)?;
            tables::alias(alias, span)?;
        }
    }
    if let Some(ast::OrderBy { kind, interpolate }) = order_by {
        absent(&[(interpolate.is_some(), Others, "INTERPOLATE")], span)?;
        match kind {
            ast::OrderByKind::All(_) => return Err(foreign("ORDER BY ALL", span)),
            ast::OrderByKind::Expressions(keys) => keys.iter().try_for_each(order_key)?,
        }
    }
    let limited = match limit_clause {
        None => false,
        Some(ast::LimitClause::LimitOffset { limit, offset, limit_by }) => {
            if let Some(offset) = offset {
                let ast::Offset { value: _, rows: _ } = offset;
            }
            absent(&[(!limit_by.is_empty(), Others, "LIMIT … BY")], span)?;
            limit.is_some()
        }
        Some(ast::LimitClause::OffsetCommaLimit { offset: _, limit: _ }) => {
            return Err(SqlError::new(code::SYNTAX_ERROR, "LIMIT #,# syntax is not supported")
                .hint("Use separate LIMIT and OFFSET clauses.")
                .at(span));
        }
    };
    if let Some(ast::Fetch { with_ties, percent, quantity: _ }) = fetch {
        absent(&[(*percent, Others, "FETCH … PERCENT"), (*with_ties, Postgres, "FETCH … WITH TIES")], span)?;
        if limited {
            return Err(SqlError::new(code::SYNTAX_ERROR, "multiple LIMIT clauses not allowed").at(span));
        }
    }
    match &*query.body {
        ast::SetExpr::Values(values) => {
            let ast::Values { explicit_row, value_keyword, rows } = values;
            for row in rows {
                let ast::Parens { opening_token: _, content: _, closing_token: _ } = row;
            }
            absent(&[(*explicit_row, Others, "VALUES ROW"), (*value_keyword, Others, "word VALUE")], span)
        }
        ast::SetExpr::Select(_)
        | ast::SetExpr::Query(_)
        | ast::SetExpr::SetOperation { left: _, op: _, set_quantifier: _, right: _ }
        | ast::SetExpr::Insert(_)
        | ast::SetExpr::Update(_)
        | ast::SetExpr::Delete(_)
        | ast::SetExpr::Merge(_)
        | ast::SetExpr::Table(_) => Ok(()),
    }
}

pub(super) fn order_key(key: &ast::OrderByExpr) -> Result<()> {
    let ast::OrderByExpr { expr, options: ast::OrderByOptions { asc: _, nulls_first: _ }, with_fill } = key;
    absent(&[(with_fill.is_some(), Others, "WITH FILL")], expr.span())
}

pub(super) fn select(select: &ast::Select) -> Result<()> {
    let ast::Select {
        select_token: _,
        optimizer_hints: _,
        distinct,
        select_modifiers,
        top,
        top_before_distinct: _,
        projection,
        exclude,
        into,
        from,
        lateral_views,
        prewhere,
        selection: _,
        connect_by,
        group_by,
        cluster_by,
        distribute_by,
        sort_by,
        having: _,
        named_window,
        qualify,
        window_before_qualify: _,
        value_table_mode,
        flavor,
    } = select;
    let span = select.span();
    let grouped = match group_by {
        ast::GroupByExpr::All(_) => true,
        ast::GroupByExpr::Expressions(_, modifiers) => !modifiers.is_empty(),
    };
    absent(
        &[
            (matches!(distinct, Some(ast::Distinct::On(_))), Postgres, "DISTINCT ON"),
            (select_modifiers.is_some(), Others, "modifier of SELECT"),
            (top.is_some(), Others, "TOP"),
            (exclude.is_some(), Others, "EXCLUDE"),
            (into.is_some(), Postgres, "SELECT INTO"),
            (!lateral_views.is_empty(), Others, "LATERAL VIEW"),
            (prewhere.is_some(), Others, "PREWHERE"),
            (!connect_by.is_empty(), Others, "CONNECT BY"),
            (grouped, Others, "GROUP BY ALL or WITH"),
            (!cluster_by.is_empty(), Others, "CLUSTER BY"),
            (!distribute_by.is_empty(), Others, "DISTRIBUTE BY"),
            (!sort_by.is_empty(), Others, "SORT BY"),
            (!named_window.is_empty(), Postgres, "WINDOW"),
            (qualify.is_some(), Others, "QUALIFY"),
            (value_table_mode.is_some(), Others, "SELECT AS"),
            (!matches!(flavor, ast::SelectFlavor::Standard), Others, "FROM before SELECT"),
        ],
        span,
    )?;
    for item in projection {
        match item {
            ast::SelectItem::UnnamedExpr(_) | ast::SelectItem::ExprWithAlias { expr: _, alias: _ } => {}
            ast::SelectItem::ExprWithAliases { expr: _, aliases: _ } => {
                return Err(foreign("list of aliases", item.span()));
            }
            ast::SelectItem::QualifiedWildcard(_, options) | ast::SelectItem::Wildcard(options) => {
                wildcard(options, item.span())?;
            }
        }
    }
    from.iter().try_for_each(joins)
}

pub(super) fn wildcard(options: &ast::WildcardAdditionalOptions, span: Span) -> Result<()> {
    let ast::WildcardAdditionalOptions {
        wildcard_token: _,
        opt_ilike,
        opt_exclude,
        opt_except,
        opt_replace,
        opt_rename,
        opt_alias,
    } = options;
    let any = opt_ilike.is_some()
        || opt_exclude.is_some()
        || opt_except.is_some()
        || opt_replace.is_some()
        || opt_rename.is_some()
        || opt_alias.is_some();
    absent(&[(any, Others, "option after *")], span)
}
