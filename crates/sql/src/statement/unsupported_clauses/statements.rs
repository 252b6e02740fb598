//! The fields of statements, apart from CREATE TABLE and queries.

use sqlparser::{
    ast::{self, Spanned},
    tokenizer::Span,
};

use super::{
    clause::{Others, Postgres, absent, foreign},
    create_table::create_table,
    tables::joins,
};
use crate::{error::Result, statement::spelling::overriding_of};

pub(super) fn statement(statement: &ast::Statement) -> Result<()> {
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
            // A cursor always reads one fixed state of the tables, as INSENSITIVE demands.
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
        // The binder matches all fields of the remaining statements, or refuses the statement altogether.
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
        // Hints have no effect, because they are comments in PostgreSQL.
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
    let is_partitioned = partitioned.is_some() && overriding_of(insert).is_none();
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
            (is_partitioned || !after_columns.is_empty(), Others, "INSERT … PARTITION"),
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
        identity: _,
        // CASCADE changes nothing if no table refers to the table, and is refused otherwise.
        cascade: _,
        on_cluster,
    } = truncate;
    for target in table_names {
        // ONLY and `*` change nothing, because tables have no inheritance here.
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
