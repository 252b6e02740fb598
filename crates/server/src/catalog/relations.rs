//! The relations of the catalog: their columns, and the rows that the tables make of them.
//!
//! The columns are PostgreSQL 15's (`relations.txt`: schema, name, object id, columns with their types), so that a
//! query written for it finds what it names. Most relations are empty here, because there is nothing of their kind.

use std::{collections::BTreeMap, sync::LazyLock};

use quorate_table::{
    expr::Expr,
    schema::Partition,
    value::{Type, Value},
};

use super::{World, datum::Datum, index_oid, table_oid};
use crate::{
    backend::Table,
    sql::settings::SETTINGS,
    types::{PgType, TYPES},
};

/// A relation's shape.
#[derive(Debug)]
pub(super) struct Relation {
    /// `pg_catalog` or `information_schema`.
    pub(super) schema: &'static str,
    /// Its name.
    pub(super) name: &'static str,
    /// Its object id.
    pub(super) oid: u32,
    /// Names and types of its columns.
    pub(super) columns: Vec<(&'static str, PgType)>,
}

static RELATIONS: LazyLock<Vec<Relation>> = LazyLock::new(|| {
    include_str!("relations.txt")
        .lines()
        .map(|line| {
            let mut words = line.split(' ');
            let mut word = || words.next().expect("a relation has a schema, a name and an oid");
            let (schema, name, oid) = (word(), word(), word().parse().expect("an oid is a number"));
            let columns = words
                .map(|column| {
                    let (name, ty) = column.split_once(':').expect("a column has a type");
                    let info = TYPES.iter().find(|info| info.name == ty).expect("the type is known");
                    (name, info.ty)
                })
                .collect();
            Relation { schema, name, oid, columns }
        })
        .collect()
});

/// All of them.
pub(super) fn all() -> &'static [Relation] {
    &RELATIONS
}

/// The relation of this name, which `pg_catalog` need not qualify.
pub(super) fn find(schema: Option<&str>, name: &str) -> Option<&'static Relation> {
    let schema = schema.unwrap_or("pg_catalog");
    RELATIONS.iter().find(|relation| relation.schema == schema && relation.name == name)
}

/// Object ids of things that are always there, as PostgreSQL numbers them.
pub(super) mod oid {
    #![allow(missing_docs, reason = "the names say which")]
    pub(in crate::catalog) const USER: u32 = 10;
    pub(in crate::catalog) const PG_CATALOG: u32 = 11;
    pub(in crate::catalog) const PUBLIC: u32 = 2200;
    pub(in crate::catalog) const INFORMATION_SCHEMA: u32 = 13_221;
    pub(in crate::catalog) const DATABASE: u32 = 5;
    pub(in crate::catalog) const TABLESPACE: u32 = 1663;
    pub(in crate::catalog) const HEAP: u32 = 2;
    pub(in crate::catalog) const BTREE: u32 = 403;
    pub(in crate::catalog) const DEFAULT_COLLATION: u32 = 100;
    pub(in crate::catalog) const C_COLLATION: u32 = 950;
}

/// The encoding's number.
const UTF8: i64 = 6;

type Columns<'a> = Vec<(&'a str, Datum)>;

impl Relation {
    /// Its rows.
    pub(super) fn rows(&self, world: &World<'_>) -> Vec<Vec<Datum>> {
        let named: Vec<Columns<'_>> = match (self.schema, self.name) {
            ("pg_catalog", "pg_class") => classes(world),
            ("pg_catalog", "pg_attribute") => attributes(world),
            ("pg_catalog", "pg_type") => types(),
            ("pg_catalog", "pg_namespace") => namespaces(),
            ("pg_catalog", "pg_database") => vec![database(world)],
            ("pg_catalog", "pg_index") => indexes(world),
            ("pg_catalog", "pg_constraint") => constraints(world),
            ("pg_catalog", "pg_attrdef") => defaults(world),
            ("pg_catalog", "pg_am") => access_methods(),
            ("pg_catalog", "pg_roles" | "pg_authid" | "pg_user" | "pg_shadow") => {
                let mut role = role(world);
                role.retain(|(name, _)| self.columns.iter().any(|(column, _)| column == name));
                vec![role]
            }
            ("pg_catalog", "pg_collation") => collations(),
            ("pg_catalog", "pg_settings") => settings(world),
            ("pg_catalog", "pg_tablespace") => vec![vec![
                ("oid", Datum::int8(oid::TABLESPACE)),
                ("spcname", Datum::text("pg_default")),
                ("spcowner", Datum::int8(oid::USER)),
            ]],
            ("pg_catalog", "pg_tables") => tables(world),
            ("pg_catalog", "pg_indexes") => index_view(world),
            ("information_schema", "tables") => information_tables(world),
            ("information_schema", "columns") => information_columns(world),
            ("information_schema", "schemata") => information_schemata(world),
            ("information_schema", "table_constraints") => information_constraints(world),
            ("information_schema", "key_column_usage") => information_keys(world),
            ("information_schema", "information_schema_catalog_name") => {
                vec![vec![("catalog_name", Datum::text(world.database))]]
            }
            _ => Vec::new(),
        };
        named.into_iter().map(|columns| self.row(columns)).collect()
    }

    /// A full row of some named columns; the rest is what stands for nothing in their type.
    fn row(&self, named: Columns<'_>) -> Vec<Datum> {
        let mut named: BTreeMap<&str, Datum> = named.into_iter().collect();
        let row =
            self.columns.iter().map(|(name, ty)| named.remove(name).unwrap_or_else(|| absent(*ty))).collect();
        debug_assert!(named.is_empty(), "{} has no columns {:?}", self.name, named.keys());
        row
    }
}

fn absent(ty: PgType) -> Datum {
    match ty {
        PgType::Plain(Type::Bool) => Datum::bool(false),
        PgType::Plain(Type::Int2 | Type::Int4 | Type::Int8) => Datum::int8(0),
        PgType::Float4 => Datum::Value(Value::Float8(0.0)),
        ty if ty.is_oid() => Datum::int8(0),
        PgType::Char => Datum::text(""),
        _ => Datum::NULL,
    }
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
        ("reltuples", Datum::Value(Value::Float8(-1.0))),
    ]
}

fn classes(world: &World<'_>) -> Vec<Columns<'static>> {
    let mut rows = Vec::new();
    for relation in all() {
        let namespace =
            if relation.schema == "pg_catalog" { oid::PG_CATALOG } else { oid::INFORMATION_SCHEMA };
        rows.push(class(relation.oid, relation.name, namespace, "r", relation.columns.len()));
    }
    for table in &world.catalog.tables {
        let schema = &table.schema;
        let has_key = !schema.primary_key.is_empty();
        let mut row = class(table_oid(table.id), &schema.name, oid::PUBLIC, "r", schema.columns.len());
        row.retain(|(name, _)| *name != "reltuples");
        row.extend([
            ("relam", Datum::int8(oid::HEAP)),
            ("relhasindex", Datum::bool(has_key)),
            ("reltuples", Datum::Value(Value::Float8(table.rows.map_or(-1.0, |rows| rows as f64)))),
            ("reloptions", Datum::array(options(table).into_iter().map(Datum::text).collect())),
        ]);
        rows.push(row);
        if has_key {
            let mut row =
                class(index_oid(table.id), &key_name(table), oid::PUBLIC, "i", schema.primary_key.len());
            row.push(("relam", Datum::int8(oid::BTREE)));
            rows.push(row);
        }
    }
    rows
}

/// The options of WITH that would make the table again.
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

fn key_name(table: &Table) -> String {
    format!("{}_pkey", table.schema.name)
}

fn collation(ty: PgType) -> u32 {
    match ty {
        PgType::Plain(Type::Text) | PgType::Varchar | PgType::Bpchar => oid::DEFAULT_COLLATION,
        PgType::Name => oid::C_COLLATION,
        _ => 0,
    }
}

fn attribute(relation: u32, number: usize, name: &str, ty: PgType) -> Columns<'static> {
    let info = ty.info();
    vec![
        ("attrelid", Datum::int8(relation)),
        ("attname", Datum::text(name)),
        ("atttypid", Datum::int8(info.oid)),
        ("attlen", Datum::int8(info.length)),
        ("attnum", Datum::int8(number as i64)),
        ("atttypmod", Datum::int8(-1)),
        ("attstattarget", Datum::int8(-1)),
        ("attcacheoff", Datum::int8(-1)),
        ("attbyval", Datum::bool((1..=8).contains(&info.length))),
        ("attalign", Datum::text(alignment(info.length))),
        ("attstorage", Datum::text(if info.length < 0 { "x" } else { "p" })),
        ("attislocal", Datum::bool(true)),
        ("attcollation", Datum::int8(collation(ty))),
    ]
}

fn alignment(length: i16) -> &'static str {
    match length {
        1 => "c",
        2 => "s",
        8 => "d",
        _ => "i",
    }
}

fn attributes(world: &World<'_>) -> Vec<Columns<'static>> {
    let mut rows = Vec::new();
    for relation in all() {
        for (index, (name, ty)) in relation.columns.iter().enumerate() {
            rows.push(attribute(relation.oid, index + 1, name, *ty));
        }
    }
    for table in &world.catalog.tables {
        let relation = table_oid(table.id);
        for (index, column) in table.schema.columns.iter().enumerate() {
            let mut row = attribute(relation, index + 1, &column.name, PgType::Plain(column.ty));
            row.push(("attnotnull", Datum::bool(column.not_null)));
            row.push(("atthasdef", Datum::bool(column.default.is_some())));
            rows.push(row);
        }
        for (index, &position) in table.schema.primary_key.iter().enumerate() {
            let column = &table.schema.columns[position];
            rows.push(attribute(index_oid(table.id), index + 1, &column.name, PgType::Plain(column.ty)));
        }
    }
    rows
}

fn types() -> Vec<Columns<'static>> {
    TYPES
        .iter()
        .map(|info| {
            let array = info.ty.array().map_or(0, PgType::oid);
            let kind = match info.category {
                'P' | 'X' => "p",
                _ => "b",
            };
            let category = info.category.to_string();
            vec![
                ("oid", Datum::int8(info.oid)),
                ("typname", Datum::text(info.name)),
                ("typnamespace", Datum::int8(oid::PG_CATALOG)),
                ("typowner", Datum::int8(oid::USER)),
                ("typlen", Datum::int8(info.length)),
                ("typbyval", Datum::bool((1..=8).contains(&info.length))),
                ("typtype", Datum::text(kind)),
                ("typcategory", Datum::text(category)),
                ("typispreferred", Datum::bool(matches!(info.oid, 16 | 25 | 26 | 701 | 1184))),
                ("typisdefined", Datum::bool(true)),
                ("typdelim", Datum::text(",")),
                ("typelem", Datum::int8(info.element.map_or(0, PgType::oid))),
                ("typarray", Datum::int8(array)),
                ("typalign", Datum::text(alignment(info.length))),
                ("typstorage", Datum::text(if info.length < 0 { "x" } else { "p" })),
                ("typtypmod", Datum::int8(-1)),
                ("typcollation", Datum::int8(collation(info.ty))),
                // Clients tell an array from a vector by the function that reads it.
                (
                    "typinput",
                    Datum::text(match info.name {
                        name if name.starts_with('_') => "array_in".to_owned(),
                        name => format!("{name}in"),
                    }),
                ),
            ]
        })
        .collect()
}

/// Schemas and their object ids.
pub(super) const NAMESPACES: [(&str, u32); 3] = [
    ("pg_catalog", oid::PG_CATALOG),
    ("public", oid::PUBLIC),
    ("information_schema", oid::INFORMATION_SCHEMA),
];

fn namespaces() -> Vec<Columns<'static>> {
    NAMESPACES
        .iter()
        .map(|(name, number)| {
            vec![
                ("oid", Datum::int8(*number)),
                ("nspname", Datum::text(name)),
                ("nspowner", Datum::int8(oid::USER)),
            ]
        })
        .collect()
}

fn database(world: &World<'_>) -> Columns<'static> {
    vec![
        ("oid", Datum::int8(oid::DATABASE)),
        ("datname", Datum::text(world.database)),
        ("datdba", Datum::int8(oid::USER)),
        ("encoding", Datum::int8(UTF8)),
        ("datlocprovider", Datum::text("c")),
        ("datallowconn", Datum::bool(true)),
        ("datconnlimit", Datum::int8(-1)),
        ("dattablespace", Datum::int8(oid::TABLESPACE)),
        ("datcollate", Datum::text("C")),
        ("datctype", Datum::text("C")),
    ]
}

fn keyed<'a>(world: &'a World<'_>) -> impl Iterator<Item = &'a Table> {
    world.catalog.tables.iter().map(|table| &**table).filter(|table| !table.schema.primary_key.is_empty())
}

fn key_numbers(table: &Table) -> Datum {
    Datum::array(table.schema.primary_key.iter().map(|&p| Datum::int8(p as i64 + 1)).collect())
}

/// A vector is printed without braces.
fn vector(elements: impl Iterator<Item = i64>) -> Datum {
    let words: Vec<String> = elements.map(|number| number.to_string()).collect();
    Datum::text(words.join(" "))
}

fn indexes(world: &World<'_>) -> Vec<Columns<'static>> {
    keyed(world)
        .map(|table| {
            let key = &table.schema.primary_key;
            vec![
                ("indexrelid", Datum::int8(index_oid(table.id))),
                ("indrelid", Datum::int8(table_oid(table.id))),
                ("indnatts", Datum::int8(key.len() as i64)),
                ("indnkeyatts", Datum::int8(key.len() as i64)),
                ("indisunique", Datum::bool(true)),
                ("indisprimary", Datum::bool(true)),
                ("indimmediate", Datum::bool(true)),
                ("indisvalid", Datum::bool(true)),
                ("indisready", Datum::bool(true)),
                ("indislive", Datum::bool(true)),
                ("indkey", vector(key.iter().map(|&p| p as i64 + 1))),
                ("indoption", vector(key.iter().map(|_| 0))),
            ]
        })
        .collect()
}

fn constraints(world: &World<'_>) -> Vec<Columns<'static>> {
    keyed(world)
        .map(|table| {
            vec![
                ("oid", Datum::int8(index_oid(table.id))),
                ("conname", Datum::text(key_name(table))),
                ("connamespace", Datum::int8(oid::PUBLIC)),
                ("contype", Datum::text("p")),
                ("convalidated", Datum::bool(true)),
                ("conrelid", Datum::int8(table_oid(table.id))),
                ("conindid", Datum::int8(index_oid(table.id))),
                ("conislocal", Datum::bool(true)),
                ("connoinherit", Datum::bool(true)),
                ("conkey", key_numbers(table)),
            ]
        })
        .collect()
}

/// How a default is written.
pub(super) fn default_text(default: &Expr) -> String {
    match default {
        Expr::Constant(value, ty) => match (value.text(), ty) {
            (None, ty) => format!("NULL::{}", ty.name()),
            (Some(text), Type::Int2 | Type::Int4 | Type::Int8 | Type::Numeric | Type::Float8)
                if text.starts_with(|c: char| c.is_ascii_digit()) =>
            {
                text
            }
            (Some(text), Type::Bool) => if text == "t" { "true" } else { "false" }.to_owned(),
            (Some(text), ty) => format!("'{}'::{}", text.replace('\'', "''"), ty.name()),
        },
        other => format!("{other:?}"),
    }
}

fn defaults(world: &World<'_>) -> Vec<Columns<'static>> {
    let mut rows = Vec::new();
    for table in &world.catalog.tables {
        for (index, column) in table.schema.columns.iter().enumerate() {
            if let Some(default) = &column.default {
                rows.push(vec![
                    ("oid", Datum::int8(table_oid(table.id))),
                    ("adrelid", Datum::int8(table_oid(table.id))),
                    ("adnum", Datum::int8(index as i64 + 1)),
                    ("adbin", Datum::text(default_text(default))),
                ]);
            }
        }
    }
    rows
}

fn access_methods() -> Vec<Columns<'static>> {
    [(oid::HEAP, "heap", "t"), (oid::BTREE, "btree", "i")]
        .map(|(number, name, kind)| {
            vec![("oid", Datum::int8(number)), ("amname", Datum::text(name)), ("amtype", Datum::text(kind))]
        })
        .to_vec()
}

fn role(world: &World<'_>) -> Columns<'static> {
    // One list of columns for the table and its views, each of which takes its own.
    vec![
        ("oid", Datum::int8(oid::USER)),
        ("rolname", Datum::text(world.user)),
        ("rolsuper", Datum::bool(true)),
        ("rolinherit", Datum::bool(true)),
        ("rolcreaterole", Datum::bool(true)),
        ("rolcreatedb", Datum::bool(true)),
        ("rolcanlogin", Datum::bool(true)),
        ("rolreplication", Datum::bool(false)),
        ("rolconnlimit", Datum::int8(-1)),
        ("rolbypassrls", Datum::bool(true)),
        ("usename", Datum::text(world.user)),
        ("usesysid", Datum::int8(oid::USER)),
        ("usecreatedb", Datum::bool(true)),
        ("usesuper", Datum::bool(true)),
    ]
}

fn collations() -> Vec<Columns<'static>> {
    [(oid::DEFAULT_COLLATION, "default", "d"), (oid::C_COLLATION, "C", "c"), (951, "POSIX", "c")]
        .map(|(number, name, provider)| {
            vec![
                ("oid", Datum::int8(number)),
                ("collname", Datum::text(name)),
                ("collnamespace", Datum::int8(oid::PG_CATALOG)),
                ("collowner", Datum::int8(oid::USER)),
                ("collprovider", Datum::text(provider)),
                ("collisdeterministic", Datum::bool(true)),
                ("collencoding", Datum::int8(-1)),
            ]
        })
        .to_vec()
}

fn settings(world: &World<'_>) -> Vec<Columns<'static>> {
    SETTINGS
        .iter()
        .map(|setting| {
            vec![
                ("name", Datum::text(setting.name)),
                ("setting", Datum::text((world.setting)(setting.name).unwrap_or_default())),
                ("category", Datum::text("Quorate")),
                ("short_desc", Datum::text(setting.description)),
                ("context", Datum::text("user")),
                ("vartype", Datum::text("string")),
                ("source", Datum::text("session")),
                ("boot_val", Datum::text(setting.default)),
                ("reset_val", Datum::text(setting.default)),
            ]
        })
        .collect()
}

fn tables(world: &World<'_>) -> Vec<Columns<'static>> {
    let catalog = all().iter().map(|relation| (relation.schema, relation.name, false));
    let users = world
        .catalog
        .tables
        .iter()
        .map(|table| ("public", table.schema.name.as_str(), !table.schema.primary_key.is_empty()));
    catalog
        .chain(users)
        .map(|(schema, name, has_key)| {
            vec![
                ("schemaname", Datum::text(schema)),
                ("tablename", Datum::text(name)),
                ("tableowner", Datum::text(world.user)),
                ("hasindexes", Datum::bool(has_key)),
            ]
        })
        .collect()
}

fn index_view(world: &World<'_>) -> Vec<Columns<'static>> {
    keyed(world)
        .map(|table| {
            vec![
                ("schemaname", Datum::text("public")),
                ("tablename", Datum::text(&table.schema.name)),
                ("indexname", Datum::text(key_name(table))),
                ("indexdef", Datum::text(index_definition(table))),
            ]
        })
        .collect()
}

/// The statement that would make a key's index.
pub(super) fn index_definition(table: &Table) -> String {
    format!(
        "CREATE UNIQUE INDEX {} ON public.{} USING btree ({})",
        super::functions::quoted(&key_name(table)),
        super::functions::quoted(&table.schema.name),
        key_columns(table)
    )
}

/// The columns of a key, as they are written.
pub(super) fn key_columns(table: &Table) -> String {
    let names: Vec<String> = table
        .schema
        .primary_key
        .iter()
        .map(|&position| super::functions::quoted(&table.schema.columns[position].name))
        .collect();
    names.join(", ")
}

fn information_tables(world: &World<'_>) -> Vec<Columns<'static>> {
    let catalog = all().iter().map(|relation| (relation.schema, relation.name));
    let users = world.catalog.tables.iter().map(|table| ("public", table.schema.name.as_str()));
    catalog
        .chain(users)
        .map(|(schema, name)| {
            vec![
                ("table_catalog", Datum::text(world.database)),
                ("table_schema", Datum::text(schema)),
                ("table_name", Datum::text(name)),
                ("table_type", Datum::text("BASE TABLE")),
                ("is_insertable_into", Datum::text("YES")),
                ("is_typed", Datum::text("NO")),
            ]
        })
        .collect()
}

fn information_columns(world: &World<'_>) -> Vec<Columns<'static>> {
    let mut rows = Vec::new();
    for table in &world.catalog.tables {
        for (index, column) in table.schema.columns.iter().enumerate() {
            let ty = PgType::Plain(column.ty);
            let (precision, radix, scale) = match column.ty {
                Type::Int2 => (Datum::int8(16), Datum::int8(2), Datum::int8(0)),
                Type::Int4 => (Datum::int8(32), Datum::int8(2), Datum::int8(0)),
                Type::Int8 => (Datum::int8(64), Datum::int8(2), Datum::int8(0)),
                Type::Float8 => (Datum::int8(53), Datum::int8(2), Datum::NULL),
                Type::Numeric => (Datum::NULL, Datum::int8(10), Datum::NULL),
                _ => (Datum::NULL, Datum::NULL, Datum::NULL),
            };
            let subsecond = match column.ty {
                Type::Timestamp | Type::Timestamptz => Datum::int8(6),
                Type::Date => Datum::int8(0),
                _ => Datum::NULL,
            };
            rows.push(vec![
                ("table_catalog", Datum::text(world.database)),
                ("table_schema", Datum::text("public")),
                ("table_name", Datum::text(&table.schema.name)),
                ("column_name", Datum::text(&column.name)),
                ("ordinal_position", Datum::int8(index as i64 + 1)),
                (
                    "column_default",
                    column.default.as_ref().map_or(Datum::NULL, |d| Datum::text(default_text(d))),
                ),
                ("is_nullable", Datum::text(if column.not_null { "NO" } else { "YES" })),
                ("data_type", Datum::text(ty.display())),
                ("character_maximum_length", Datum::NULL),
                (
                    "character_octet_length",
                    if column.ty == Type::Text { Datum::int8(1 << 30) } else { Datum::NULL },
                ),
                ("numeric_precision", precision),
                ("numeric_precision_radix", radix),
                ("numeric_scale", scale),
                ("datetime_precision", subsecond),
                ("interval_precision", Datum::NULL),
                ("maximum_cardinality", Datum::NULL),
                ("udt_catalog", Datum::text(world.database)),
                ("udt_schema", Datum::text("pg_catalog")),
                ("udt_name", Datum::text(ty.info().name)),
                ("dtd_identifier", Datum::text((index + 1).to_string())),
                ("is_self_referencing", Datum::text("NO")),
                ("is_identity", Datum::text("NO")),
                ("identity_cycle", Datum::text("NO")),
                ("is_generated", Datum::text("NEVER")),
                ("is_updatable", Datum::text("YES")),
            ]);
        }
    }
    rows
}

fn information_schemata(world: &World<'_>) -> Vec<Columns<'static>> {
    NAMESPACES
        .iter()
        .map(|(name, _)| {
            vec![
                ("catalog_name", Datum::text(world.database)),
                ("schema_name", Datum::text(name)),
                ("schema_owner", Datum::text(world.user)),
            ]
        })
        .collect()
}

fn information_constraints(world: &World<'_>) -> Vec<Columns<'static>> {
    keyed(world)
        .map(|table| {
            vec![
                ("constraint_catalog", Datum::text(world.database)),
                ("constraint_schema", Datum::text("public")),
                ("constraint_name", Datum::text(key_name(table))),
                ("table_catalog", Datum::text(world.database)),
                ("table_schema", Datum::text("public")),
                ("table_name", Datum::text(&table.schema.name)),
                ("constraint_type", Datum::text("PRIMARY KEY")),
                ("is_deferrable", Datum::text("NO")),
                ("initially_deferred", Datum::text("NO")),
                ("enforced", Datum::text("YES")),
            ]
        })
        .collect()
}

fn information_keys(world: &World<'_>) -> Vec<Columns<'static>> {
    let mut rows = Vec::new();
    for table in keyed(world) {
        for (index, &position) in table.schema.primary_key.iter().enumerate() {
            rows.push(vec![
                ("constraint_catalog", Datum::text(world.database)),
                ("constraint_schema", Datum::text("public")),
                ("constraint_name", Datum::text(key_name(table))),
                ("table_catalog", Datum::text(world.database)),
                ("table_schema", Datum::text("public")),
                ("table_name", Datum::text(&table.schema.name)),
                ("column_name", Datum::text(&table.schema.columns[position].name)),
                ("ordinal_position", Datum::int8(index as i64 + 1)),
                ("position_in_unique_constraint", Datum::NULL),
            ]);
        }
    }
    rows
}
