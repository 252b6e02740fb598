//! Refuses clauses that the parser accepts and no binder binds.
//!
//! A clause that is parsed and not bound would have no effect, so the statement would not do what it says.
//! Therefore every statement is walked here before it is bound. Each struct of the syntax tree is taken apart
//! field by field and without `..`. If a new version of the parser adds a field, this code does not compile
//! until somebody decides about it. A field that is matched with an underscore is one that a binder reads, or
//! one that changes nothing.
//!
//! A clause of PostgreSQL is refused with 0A000, a clause of another database with 42601. Sometimes only the
//! binder knows whether it reads a field (ORDER BY within the call of an aggregate). Then the binder refuses
//! it.

use std::ops::ControlFlow;

use sqlparser::{
    ast::{self, Spanned, Visit, Visitor},
    tokenizer::Span,
};

use crate::error::{Result, SqlError, code};

/// Refuses a statement with a clause that no binder binds.
pub(super) fn refuse(statement: &ast::Statement) -> Result<()> {
    match Visit::visit(statement, &mut Walk) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(*error),
    }
}

struct Walk;

/// A clause: whether it is present, which databases have it, and its name.
type Clause = (bool, ClauseOwner, &'static str);

#[derive(Clone, Copy, PartialEq, Eq)]
enum ClauseOwner {
    /// PostgreSQL has the clause.
    Postgres,
    /// Only other databases have the clause.
    Others,
}
use ClauseOwner::{Others, Postgres};

fn absent(clauses: &[Clause], span: Span) -> Result<()> {
    match clauses.iter().find(|(present, ..)| *present) {
        None => Ok(()),
        Some((_, Postgres, what)) => Err(SqlError::unsupported(what).at(span)),
        Some((_, Others, what)) => Err(foreign(what, span)),
    }
}

/// Returns the error about a clause of another database.
fn foreign(what: &str, span: Span) -> SqlError {
    SqlError::new(code::SYNTAX_ERROR, format!("syntax error: PostgreSQL has no {what}")).at(span)
}

fn broken(checked: Result<()>) -> ControlFlow<Box<SqlError>> {
    match checked {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(Box::new(error)),
    }
}

impl Visitor for Walk {
    type Break = Box<SqlError>;

    fn pre_visit_statement(&mut self, statement: &ast::Statement) -> ControlFlow<Self::Break> {
        broken(self::statement(statement))
    }

    fn pre_visit_query(&mut self, query: &ast::Query) -> ControlFlow<Self::Break> {
        broken(self::query(query))
    }

    fn pre_visit_select(&mut self, select: &ast::Select) -> ControlFlow<Self::Break> {
        broken(self::select(select))
    }

    fn pre_visit_table_factor(&mut self, factor: &ast::TableFactor) -> ControlFlow<Self::Break> {
        broken(self::factor(factor))
    }

    fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<Self::Break> {
        broken(self::expr(expr))
    }
}

fn statement(statement: &ast::Statement) -> Result<()> {
    use ast::Statement as Ast;
    let span = || statement.span();
    match statement {
        Ast::Insert(insert) => self::insert(insert),
        Ast::Update(update) => self::update(update),
        Ast::Delete(delete) => self::delete(delete),
        Ast::Truncate(truncate) => self::truncate(truncate),
        Ast::CreateTable(create) => create_table(create),
        Ast::Copy { source: _, to: _, target: _, options: _, legacy_options: _, values } => {
            absent(&[(!values.is_empty(), Others, "data within the text of COPY")], span())
        }
        Ast::Drop {
            object_type: _,
            if_exists: _,
            names: _,
            cascade: _,
            restrict: _,
            purge,
            temporary,
            table,
        } => absent(
            &[
                (*purge, Others, "DROP … PURGE"),
                (*temporary, Others, "DROP TEMPORARY"),
                (table.is_some(), Postgres, "DROP … ON"),
            ],
            span(),
        ),
        Ast::StartTransaction {
            modes: _,
            begin: _,
            transaction: _,
            modifier,
            statements,
            exception,
            has_end_keyword,
        } => absent(
            &[
                (modifier.is_some(), Others, "modifier of BEGIN"),
                (!statements.is_empty() || exception.is_some() || *has_end_keyword, Others, "BEGIN … END"),
            ],
            span(),
        ),
        Ast::Commit { chain: _, end: _, modifier } => {
            absent(&[(modifier.is_some(), Others, "modifier of COMMIT")], span())
        }
        Ast::Explain {
            describe_alias,
            analyze: _,
            verbose: _,
            query_plan,
            estimate,
            statement: _,
            format: _,
            options: _,
        } => absent(
            &[
                (!matches!(describe_alias, ast::DescribeAlias::Explain), Others, "DESCRIBE"),
                (*query_plan, Others, "EXPLAIN QUERY PLAN"),
                (*estimate, Others, "EXPLAIN ESTIMATE"),
            ],
            span(),
        ),
        Ast::ExplainTable { describe_alias: _, hive_format: _, has_table_keyword: _, table_name: _ } => {
            Err(foreign("DESCRIBE", span()))
        }
        Ast::Execute {
            name: _,
            parameters: _,
            has_parentheses: _,
            immediate,
            into,
            using,
            output,
            default,
        } => absent(
            &[
                (*immediate, Others, "EXECUTE IMMEDIATE"),
                (!into.is_empty(), Others, "EXECUTE … INTO"),
                (!using.is_empty(), Others, "EXECUTE … USING"),
                (*output || *default, Others, "EXECUTE with OUTPUT or DEFAULT"),
            ],
            span(),
        ),
        Ast::Declare { stmts } => stmts.iter().try_for_each(|declared| {
            // A cursor always sees its query's cut, which is what INSENSITIVE asks for.
            let ast::Declare {
                names: _,
                data_type,
                assignment,
                declare_type,
                binary: _,
                sensitive: _,
                scroll: _,
                hold: _,
                for_query: _,
            } = declared;
            let cursor = matches!(declare_type, None | Some(ast::DeclareType::Cursor));
            absent(
                &[(data_type.is_some() || assignment.is_some() || !cursor, Others, "DECLARE of a variable")],
                span(),
            )
        }),
        Ast::Fetch { name: _, direction: _, position: _, into } => {
            absent(&[(into.is_some(), Others, "FETCH … INTO")], span())
        }
        Ast::Set(set) => self::set(set, span()),
        // Statements whose fields the binder matches in full, and statements that it refuses altogether.
        _ => Ok(()),
    }
}

fn set(set: &ast::Set, span: Span) -> Result<()> {
    match set {
        ast::Set::SingleAssignment { scope, hivevar, variable: _, values: _ } => absent(
            &[
                (matches!(scope, Some(ast::ContextModifier::Global)), Others, "SET GLOBAL"),
                (*hivevar, Others, "SET HIVEVAR"),
            ],
            span,
        ),
        ast::Set::SetRole { context_modifier: _, role_name: _ }
        | ast::Set::SetTimeZone { local: _, value: _ }
        | ast::Set::SetNames { charset_name: _, collation_name: _ }
        | ast::Set::SetNamesDefault {}
        | ast::Set::SetTransaction { modes: _, snapshot: _, session: _ }
        | ast::Set::SetSessionAuthorization(_) => Ok(()),
        ast::Set::ParenthesizedAssignments { variables: _, values: _ }
        | ast::Set::MultipleAssignments { assignments: _ }
        | ast::Set::SetSessionParam(_) => Err(foreign("SET of this form", span)),
    }
}

fn insert(insert: &ast::Insert) -> Result<()> {
    let ast::Insert {
        insert_token: _,
        // A hint is a comment.
        optimizer_hints: _,
        or,
        ignore,
        into,
        table: _,
        table_alias: _,
        columns: _,
        overwrite,
        source: _,
        assignments,
        partitioned,
        after_columns,
        has_table_keyword,
        on: _,
        returning: _,
        output,
        replace_into,
        priority,
        insert_alias,
        settings,
        format_clause,
        multi_table_insert_type,
        multi_table_into_clauses,
        multi_table_when_clauses,
        multi_table_else_clause,
    } = insert;
    let several = multi_table_insert_type.is_some()
        || !multi_table_into_clauses.is_empty()
        || !multi_table_when_clauses.is_empty()
        || multi_table_else_clause.is_some();
    absent(
        &[
            (or.is_some() || *ignore || *replace_into, Others, "INSERT OR, IGNORE or REPLACE"),
            (!*into, Others, "INSERT without INTO"),
            (*overwrite, Others, "INSERT OVERWRITE"),
            (!assignments.is_empty(), Others, "INSERT … SET"),
            (partitioned.is_some() || !after_columns.is_empty(), Others, "INSERT … PARTITION"),
            (*has_table_keyword, Others, "INSERT INTO TABLE"),
            (output.is_some(), Others, "OUTPUT"),
            (priority.is_some(), Others, "priority of an INSERT"),
            (insert_alias.is_some(), Others, "alias after VALUES"),
            (settings.is_some() || format_clause.is_some(), Others, "SETTINGS or FORMAT"),
            (several, Others, "INSERT into several tables"),
        ],
        insert.table.span(),
    )
}

fn update(update: &ast::Update) -> Result<()> {
    let ast::Update {
        update_token: _,
        optimizer_hints: _,
        table,
        assignments: _,
        from,
        selection: _,
        returning: _,
        output,
        or,
        order_by,
        limit,
    } = update;
    absent(
        &[
            (from.is_some(), Postgres, "UPDATE … FROM"),
            (output.is_some(), Others, "OUTPUT"),
            (or.is_some(), Others, "UPDATE OR"),
            (!order_by.is_empty() || limit.is_some(), Others, "UPDATE with ORDER BY or LIMIT"),
        ],
        table.span(),
    )?;
    joins(table)
}

fn delete(delete: &ast::Delete) -> Result<()> {
    let ast::Delete {
        delete_token: _,
        optimizer_hints: _,
        tables,
        from,
        using,
        selection: _,
        returning: _,
        output,
        order_by,
        limit,
    } = delete;
    let plain = matches!(from, ast::FromTable::WithFromKeyword(_));
    absent(
        &[
            (using.is_some(), Postgres, "DELETE … USING"),
            (!plain || !tables.is_empty(), Others, "DELETE without FROM"),
            (output.is_some(), Others, "OUTPUT"),
            (!order_by.is_empty() || limit.is_some(), Others, "DELETE with ORDER BY or LIMIT"),
        ],
        delete.span(),
    )
}

fn truncate(truncate: &ast::Truncate) -> Result<()> {
    let ast::Truncate {
        table_names,
        partitions,
        table: _,
        if_exists,
        // There are no sequences to restart, and nothing refers to a table.
        identity: _,
        cascade: _,
        on_cluster,
    } = truncate;
    for target in table_names {
        // There is no inheritance.
        let ast::TruncateTableTarget { name: _, only: _, has_asterisk: _ } = target;
    }
    let span = table_names.first().map_or_else(Span::empty, |target| target.name.span());
    absent(
        &[
            (partitions.is_some(), Others, "TRUNCATE … PARTITION"),
            (*if_exists, Others, "TRUNCATE IF EXISTS"),
            (on_cluster.is_some(), Others, "ON CLUSTER"),
        ],
        span,
    )
}

fn create_table(create: &ast::CreateTable) -> Result<()> {
    let ast::CreateTable {
        or_replace,
        temporary,
        external,
        dynamic,
        global,
        if_not_exists: _,
        transient,
        volatile,
        iceberg,
        snapshot,
        name,
        columns,
        constraints,
        hive_distribution,
        hive_formats,
        table_options: _,
        file_format,
        location,
        query,
        without_rowid,
        like,
        clone,
        version,
        comment,
        on_commit,
        on_cluster,
        primary_key,
        order_by,
        partition_by,
        cluster_by,
        clustered_by,
        inherits,
        partition_of,
        for_values,
        strict,
        copy_grants,
        enable_schema_evolution,
        change_tracking,
        data_retention_time_in_days,
        max_data_extension_time_in_days,
        default_ddl_collation,
        with_aggregation_policy,
        with_row_access_policy,
        with_storage_lifecycle_policy,
        with_tags,
        external_volume,
        base_location,
        catalog,
        catalog_sync,
        storage_serialization_policy,
        target_lag,
        warehouse,
        refresh_mode,
        initialize,
        require_user,
        diststyle,
        distkey,
        sortkey,
        backup,
    } = create;
    let snowflake = *copy_grants
        || enable_schema_evolution.is_some()
        || change_tracking.is_some()
        || data_retention_time_in_days.is_some()
        || max_data_extension_time_in_days.is_some()
        || default_ddl_collation.is_some()
        || with_aggregation_policy.is_some()
        || with_row_access_policy.is_some()
        || with_storage_lifecycle_policy.is_some()
        || with_tags.is_some()
        || external_volume.is_some()
        || base_location.is_some()
        || catalog.is_some()
        || catalog_sync.is_some()
        || storage_serialization_policy.is_some()
        || target_lag.is_some()
        || warehouse.is_some()
        || refresh_mode.is_some()
        || initialize.is_some()
        || *require_user;
    let redshift = diststyle.is_some() || distkey.is_some() || sortkey.is_some() || backup.is_some();
    let hive = !matches!(hive_distribution, ast::HiveDistributionStyle::NONE)
        || hive_formats.as_ref().is_some_and(|formats| *formats != ast::HiveFormat::default())
        || file_format.is_some()
        || location.is_some()
        || clustered_by.is_some();
    absent(
        &[
            (*or_replace, Others, "CREATE OR REPLACE TABLE"),
            (*temporary || global.is_some(), Postgres, "a temporary table"),
            (
                *external || *dynamic || *transient || *volatile || *iceberg || *snapshot,
                Others,
                "EXTERNAL, DYNAMIC, TRANSIENT, VOLATILE, ICEBERG or SNAPSHOT table",
            ),
            (query.is_some(), Postgres, "CREATE TABLE … AS"),
            (like.is_some(), Postgres, "CREATE TABLE … LIKE"),
            (clone.is_some() || version.is_some(), Others, "CREATE TABLE … CLONE"),
            (inherits.is_some(), Postgres, "INHERITS"),
            (partition_of.is_some() || for_values.is_some(), Postgres, "PARTITION OF"),
            (
                partition_by.is_some(),
                Postgres,
                "PARTITION BY (write WITH (partition_by = 'hash(column)') instead)",
            ),
            (on_commit.is_some(), Postgres, "ON COMMIT"),
            (on_cluster.is_some(), Others, "ON CLUSTER"),
            (comment.is_some(), Others, "COMMENT of CREATE TABLE"),
            (primary_key.is_some(), Others, "PRIMARY KEY after the list of columns"),
            (order_by.is_some(), Others, "ORDER BY of CREATE TABLE"),
            (cluster_by.is_some(), Others, "CLUSTER BY"),
            (*without_rowid || *strict, Others, "WITHOUT ROWID or STRICT"),
            (snowflake || redshift || hive, Others, "table option of this form"),
        ],
        name.span(),
    )?;
    for constraint in constraints {
        if let ast::TableConstraint::PrimaryKey(key) = constraint {
            self::primary_key(key, name.span())?;
        }
    }
    for column in columns {
        let ast::ColumnDef { name, data_type: _, options } = column;
        let mut defaults = 0;
        for option in options {
            // The name of a constraint is not kept.
            let ast::ColumnOptionDef { name: _, option } = option;
            match option {
                ast::ColumnOption::PrimaryKey(key) => self::primary_key(key, name.span)?,
                ast::ColumnOption::Default(_) => defaults += 1,
                // The binder accepts each of the others, or refuses it by name.
                _ => {}
            }
        }
        if defaults > 1 {
            return Err(SqlError::new(
                code::SYNTAX_ERROR,
                format!("multiple default values specified for column \"{}\"", name.value),
            )
            .at(name.span));
        }
    }
    Ok(())
}

fn primary_key(key: &ast::PrimaryKeyConstraint, span: Span) -> Result<()> {
    let ast::PrimaryKeyConstraint {
        name: _,
        index_name,
        index_type,
        columns,
        index_options,
        characteristics,
    } = key;
    absent(
        &[
            (index_name.is_some() || index_type.is_some(), Others, "name or type of a key's index"),
            (!index_options.is_empty(), Postgres, "an option of a key's index"),
            (characteristics.is_some(), Postgres, "a deferrable constraint"),
        ],
        span,
    )?;
    for column in columns {
        let ast::IndexColumn { column, operator_class } = column;
        order_key(column)?;
        let ast::OrderByOptions { asc, nulls_first } = column.options;
        absent(
            &[
                (operator_class.is_some(), Others, "operator class of a key's column"),
                (asc.is_some() || nulls_first.is_some(), Others, "order of a key's column"),
            ],
            span,
        )?;
    }
    Ok(())
}

fn query(query: &ast::Query) -> Result<()> {
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
    if let Some(ast::With { with_token: _, recursive, cte_tables }) = with {
        absent(&[(*recursive, Postgres, "WITH RECURSIVE")], span)?;
        for cte in cte_tables {
            let ast::Cte { alias, query: _, from, materialized: _, closing_paren_token: _ } = cte;
            absent(&[(from.is_some(), Others, "FROM of a query of WITH")], span)?;
            self::alias(alias, span)?;
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

fn order_key(key: &ast::OrderByExpr) -> Result<()> {
    let ast::OrderByExpr { expr, options: ast::OrderByOptions { asc: _, nulls_first: _ }, with_fill } = key;
    absent(&[(with_fill.is_some(), Others, "WITH FILL")], expr.span())
}

fn select(select: &ast::Select) -> Result<()> {
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

fn wildcard(options: &ast::WildcardAdditionalOptions, span: Span) -> Result<()> {
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

fn joins(table: &ast::TableWithJoins) -> Result<()> {
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

fn factor(factor: &ast::TableFactor) -> Result<()> {
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
        // The binders refuse all of these.
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

fn alias(alias: &ast::TableAlias, span: Span) -> Result<()> {
    let ast::TableAlias { explicit: _, name: _, columns, at } = alias;
    absent(&[(at.is_some(), Others, "AT of an alias")], span)?;
    for column in columns {
        let ast::TableAliasColumnDef { name: _, data_type } = column;
        absent(&[(data_type.is_some(), Postgres, "a column definition list")], span)?;
    }
    Ok(())
}

fn expr(expr: &ast::Expr) -> Result<()> {
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
