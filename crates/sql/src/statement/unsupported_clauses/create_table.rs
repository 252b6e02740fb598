//! The fields of CREATE TABLE, most of which only databases other than PostgreSQL have.

use sqlparser::{
    ast::{self, Spanned},
    tokenizer::Span,
};

use super::{
    clause::{Others, Postgres, absent},
    queries::order_key,
};
use crate::error::{Result, SqlError, code};

pub(super) fn create_table(create: &ast::CreateTable) -> Result<()> {
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
        match constraint {
            ast::TableConstraint::PrimaryKey(key) => self::primary_key(key, name.span())?,
            ast::TableConstraint::Unique(unique) => self::unique(unique, name.span())?,
            ast::TableConstraint::ForeignKey(key) => self::foreign_key(key, name.span())?,
            // The binder accepts each other constraint, or refuses it by name.
            _ => {}
        }
    }
    for column in columns {
        let ast::ColumnDef { name, data_type: _, options } = column;
        let mut defaults = 0;
        for option in options {
            // The names of NOT NULL and of defaults are not kept.
            let ast::ColumnOptionDef { name: _, option } = option;
            match option {
                ast::ColumnOption::PrimaryKey(key) => self::primary_key(key, name.span)?,
                ast::ColumnOption::Unique(unique) => self::unique(unique, name.span)?,
                ast::ColumnOption::ForeignKey(key) => self::foreign_key(key, name.span)?,
                ast::ColumnOption::Default(_) => defaults += 1,
                // The binder accepts each other option, or refuses it by name.
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
    index_columns(columns, span)
}

fn unique(unique: &ast::UniqueConstraint, span: Span) -> Result<()> {
    let ast::UniqueConstraint {
        name: _,
        index_name,
        index_type_display,
        index_type,
        columns,
        index_options,
        characteristics,
        nulls_distinct,
    } = unique;
    let is_deferrable = characteristics.is_some_and(|characteristics| {
        let ast::ConstraintCharacteristics { deferrable, initially, enforced } = characteristics;
        deferrable == Some(true)
            || initially == Some(ast::DeferrableInitial::Deferred)
            || enforced == Some(false)
    });
    let is_keyed = !matches!(index_type_display, ast::KeyOrIndexDisplay::None);
    absent(
        &[
            (
                index_name.is_some() || index_type.is_some() || is_keyed,
                Others,
                "name or type of a key's index",
            ),
            (!index_options.is_empty(), Postgres, "an option of a key's index"),
            (is_deferrable, Postgres, "a deferrable unique constraint"),
            (*nulls_distinct == ast::NullsDistinctOption::NotDistinct, Postgres, "NULLS NOT DISTINCT"),
        ],
        span,
    )?;
    index_columns(columns, span)
}

/// Refuses the clauses of a reference that no binder binds.
pub(in crate::statement) fn foreign_key(key: &ast::ForeignKeyConstraint, span: Span) -> Result<()> {
    let ast::ForeignKeyConstraint {
        name: _,
        index_name,
        columns: _,
        foreign_table: _,
        referred_columns: _,
        on_delete: _,
        on_update: _,
        match_kind,
        characteristics,
    } = key;
    let is_simple = matches!(match_kind, None | Some(ast::ConstraintReferenceMatchKind::Simple));
    let is_enforced = characteristics.is_none_or(|characteristics| {
        let ast::ConstraintCharacteristics { deferrable: _, initially: _, enforced } = characteristics;
        enforced != Some(false)
    });
    absent(
        &[
            (index_name.is_some(), Others, "name of a foreign key's index"),
            (!is_simple, Postgres, "MATCH FULL or PARTIAL"),
            (!is_enforced, Postgres, "NOT ENFORCED"),
        ],
        span,
    )
}

fn index_columns(columns: &[ast::IndexColumn], span: Span) -> Result<()> {
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
