//! Relations that describe tables: their columns and defaults.

use quorate_table::{
    expr::Expr,
    schema::{Column, Partition},
    value::{Type, Value},
};

use super::{
    definition::{Columns, all},
    indexes::{self, has_index},
};
use crate::{
    backend::Table,
    catalog::{
        CatalogContext,
        datum::Datum,
        identifier::quoted,
        oid::{self, table_oid},
    },
    index::is_index,
    sequence::{self, Identity, is_sequence},
    statement::parameters::SessionValue,
    types::{self, PgType},
};

pub(super) fn classes(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    let mut rows = Vec::new();
    for relation in all() {
        let namespace =
            if relation.schema == "pg_catalog" { oid::PG_CATALOG } else { oid::INFORMATION_SCHEMA };
        rows.push(class(relation.oid, relation.name, namespace, "r", relation.columns.len()));
    }
    for table in &context.catalog.tables {
        let schema = &table.schema;
        if is_sequence(schema) {
            rows.push(class(table_oid(table.id), &schema.name, oid::PUBLIC, "S", schema.columns.len()));
            continue;
        }
        if is_index(schema) {
            continue;
        }
        let mut row = class(table_oid(table.id), &schema.name, oid::PUBLIC, "r", schema.columns.len());
        row.retain(|(name, _)| *name != "reltuples");
        row.extend([
            ("relam", Datum::int8(oid::HEAP)),
            ("relhasindex", Datum::bool(has_index(context, table))),
            ("relchecks", Datum::int8(schema.checks().count() as i64)),
            ("reltuples", Datum::Value(Value::Float4(table.rows.map_or(-1.0, |rows| rows as f32)))),
            ("reloptions", Datum::array(options(table).into_iter().map(Datum::text).collect())),
        ]);
        rows.push(row);
    }
    for index in indexes::all(context) {
        let mut row = class(index.oid, &index.name, oid::PUBLIC, "i", index.keys.len());
        row.push(("relam", Datum::int8(index.method_oid())));
        rows.push(row);
    }
    rows
}

fn class(oid: u32, name: &str, namespace: u32, kind: &str, columns: usize) -> Columns<'static> {
    vec![
        ("oid", Datum::int8(oid)),
        ("relname", Datum::text(name)),
        ("relnamespace", Datum::int8(namespace)),
        ("relowner", Datum::int8(oid::USER)),
        ("relfilenode", Datum::int8(oid)),
        ("relkind", Datum::text(kind)),
        ("relnatts", Datum::int8(columns as i64)),
        ("relpersistence", Datum::text("p")),
        ("relreplident", Datum::text("d")),
        ("relispopulated", Datum::bool(true)),
        ("reltuples", Datum::Value(Value::Float4(-1.0))),
    ]
}

/// Returns the options of WITH with which the table could be created again.
fn options(table: &Table) -> Vec<String> {
    let schema = &table.schema;
    let column = &schema.columns[schema.partition.column()].name;
    let partition = match &schema.partition {
        Partition::Hash { .. } => format!("hash({column})"),
        Partition::Range { low: Some(low), high: Some(high), .. } => {
            let text = |value: &Value| value.text().unwrap_or_default();
            format!("range({column}, {}, {})", text(low), text(high))
        }
        Partition::Range { .. } => format!("range({column})"),
    };
    vec![format!("partition_by={partition}"), format!("replicas={}", table.replicas)]
}

pub(super) fn attributes(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    let mut rows = Vec::new();
    for relation in all() {
        for (index, (name, ty)) in relation.columns.iter().enumerate() {
            rows.push(attribute(relation.oid, index + 1, name, (*ty, -1)));
        }
    }
    for table in context.catalog.tables.iter().filter(|table| !is_index(&table.schema)) {
        let relation = table_oid(table.id);
        for (index, column) in table.schema.columns.iter().enumerate() {
            let mut row = attribute(relation, index + 1, &column.name, types::of_column(column));
            row.push(("attnotnull", Datum::bool(column.not_null)));
            let identity = identity(context, table, column);
            let has_default = column.default.is_some() && identity.is_none() && !is_sequence(&table.schema);
            row.push(("atthasdef", Datum::bool(has_default)));
            row.push(("attidentity", Datum::text(identity.map_or("", Identity::letter))));
            rows.push(row);
        }
    }
    for index in indexes::all(context) {
        for (number, key) in (1..).zip(&index.keys) {
            let column = &index.table.schema.columns[key.position];
            rows.push(attribute(index.oid, number, &column.name, types::of_column(column)));
        }
    }
    rows
}

fn attribute(relation: u32, number: usize, name: &str, (ty, modifier): (PgType, i32)) -> Columns<'static> {
    let info = ty.info();
    vec![
        ("attrelid", Datum::int8(relation)),
        ("attname", Datum::text(name)),
        ("atttypid", Datum::int8(info.oid)),
        ("attlen", Datum::int8(info.length)),
        ("attnum", Datum::int8(number as i64)),
        ("atttypmod", Datum::int8(modifier)),
        ("attstattarget", Datum::int8(-1)),
        ("attcacheoff", Datum::int8(-1)),
        ("attbyval", Datum::bool((1..=8).contains(&info.length))),
        ("attalign", Datum::text(alignment(info.length))),
        ("attstorage", Datum::text(if info.length < 0 { "x" } else { "p" })),
        ("attislocal", Datum::bool(true)),
        ("attcollation", Datum::int8(collation(ty))),
    ]
}

pub(super) fn collation(ty: PgType) -> u32 {
    match ty {
        PgType::Plain(Type::Text | Type::Bpchar) | PgType::Varchar => oid::DEFAULT_COLLATION,
        PgType::Name => oid::C_COLLATION,
        _ => 0,
    }
}

pub(super) fn alignment(length: i16) -> &'static str {
    match length {
        1 => "c",
        2 => "s",
        8 => "d",
        _ => "i",
    }
}

pub(super) fn defaults(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    let mut rows = Vec::new();
    for table in context.user_tables() {
        for (index, column) in table.schema.columns.iter().enumerate() {
            if let Some(default) = default_text(context, table, column) {
                rows.push(vec![
                    ("oid", Datum::int8(table_oid(table.id))),
                    ("adrelid", Datum::int8(table_oid(table.id))),
                    ("adnum", Datum::int8(index as i64 + 1)),
                    ("adbin", Datum::text(default)),
                ]);
            }
        }
    }
    rows
}

/// Returns the kind of an identity column.
pub(super) fn identity(context: &CatalogContext<'_>, table: &Table, column: &Column) -> Option<Identity> {
    if !sequence::takes_numbers(column.default.as_ref()?) {
        return None;
    }
    sequence::of_column(&context.catalog, &table.schema.name, &column.name)?.identity
}

/// Returns the text of a column's default. An identity column has none.
pub(super) fn default_text(context: &CatalogContext<'_>, table: &Table, column: &Column) -> Option<String> {
    if let Some(sequence) = sequence::of_default(&context.catalog, column.default.as_ref()?) {
        let name = &sequence?.definition.name;
        let next = format!("nextval('{}'::regclass)", quoted(name).replace('\'', "''"));
        return identity(context, table, column).is_none().then_some(next);
    }
    // `character` without a length would mean one character.
    let shown = match column.ty {
        Type::Bpchar => "bpchar",
        _ => types::of_column(column).0.display(),
    };
    Some(match column.default.as_ref()? {
        Expr::Constant(value, ty) => match (value.text(), ty) {
            (None, _) => format!("NULL::{shown}"),
            (
                Some(text),
                Type::Int2 | Type::Int4 | Type::Int8 | Type::Numeric | Type::Float8 | Type::Float4,
            ) if text.starts_with(|c: char| c.is_ascii_digit()) => text,
            (Some(text), Type::Bool) => if text == "t" { "true" } else { "false" }.to_owned(),
            (Some(text), _) => format!("'{}'::{shown}", text.replace('\'', "''")),
        },
        Expr::Parameter(number, _) => SessionValue::from_number(*number)?.text().to_owned(),
        Expr::Cast(inner, _) => match **inner {
            Expr::Parameter(number, _) => format!("({})::{shown}", SessionValue::from_number(number)?.text()),
            _ => return None,
        },
        _ => return None,
    })
}

pub(super) fn tables(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    let catalog = all().iter().map(|relation| (relation.schema, relation.name, false));
    let users =
        context.user_tables().map(|table| ("public", table.schema.name.as_str(), has_index(context, table)));
    catalog
        .chain(users)
        .map(|(schema, name, has_index)| {
            vec![
                ("schemaname", Datum::text(schema)),
                ("tablename", Datum::text(name)),
                ("tableowner", Datum::text(context.user)),
                ("hasindexes", Datum::bool(has_index)),
            ]
        })
        .collect()
}
