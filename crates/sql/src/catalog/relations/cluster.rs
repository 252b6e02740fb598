//! Relations that describe types, schemas, the database, its role and the settings.

use super::{
    definition::Columns,
    tables::{alignment, collation},
};
use crate::{
    catalog::{
        CatalogContext,
        datum::Datum,
        oid::{self, NAMESPACES},
    },
    index::METHODS,
    statement::settings::SETTINGS,
    types::{PgType, TYPES},
};

/// PostgreSQL's number of the encoding UTF8.
const UTF8: i64 = 6;

pub(super) fn types() -> Vec<Columns<'static>> {
    TYPES
        .iter()
        .map(|info| {
            let array = info.ty.array().map_or(0, PgType::oid);
            let kind = match info.category {
                'P' | 'X' => "p",
                _ => "b",
            };
            let category = info.category.to_string();
            let routine = |does: &str| {
                Datum::text(match info.name {
                    name if name.starts_with('_') => format!("array_{does}"),
                    "aclitem" if matches!(does, "recv" | "send") => "-".to_owned(),
                    name @ ("date" | "interval" | "json" | "numeric" | "pg_node_tree" | "record"
                    | "timestamp" | "timestamptz" | "void") => format!("{name}_{does}"),
                    name => format!("{name}{does}"),
                })
            };
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
                // Clients distinguish an array from a vector by the function that reads its text.
                ("typinput", routine("in")),
                ("typoutput", routine("out")),
                ("typreceive", routine("recv")),
                ("typsend", routine("send")),
            ]
        })
        .collect()
}

pub(super) fn namespaces() -> Vec<Columns<'static>> {
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

pub(super) fn database(context: &CatalogContext<'_>) -> Columns<'static> {
    vec![
        ("oid", Datum::int8(oid::DATABASE)),
        ("datname", Datum::text(context.database)),
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

pub(super) fn access_methods() -> Vec<Columns<'static>> {
    let indexes = METHODS.iter().map(|(name, number, _)| (*number, *name, "i"));
    let methods = [(oid::HEAP, "heap", "t")].into_iter().chain(indexes);
    let row = |(number, name, kind)| {
        vec![("oid", Datum::int8(number)), ("amname", Datum::text(name)), ("amtype", Datum::text(kind))]
    };
    methods.map(row).collect()
}

pub(super) fn role(context: &CatalogContext<'_>) -> Columns<'static> {
    // One list of columns serves the table and its views. The table and each view take those columns of the
    // list that they have.
    vec![
        ("oid", Datum::int8(oid::USER)),
        ("rolname", Datum::text(context.user)),
        ("rolsuper", Datum::bool(true)),
        ("rolinherit", Datum::bool(true)),
        ("rolcreaterole", Datum::bool(true)),
        ("rolcreatedb", Datum::bool(true)),
        ("rolcanlogin", Datum::bool(true)),
        ("rolreplication", Datum::bool(false)),
        ("rolconnlimit", Datum::int8(-1)),
        ("rolbypassrls", Datum::bool(true)),
        ("usename", Datum::text(context.user)),
        ("usesysid", Datum::int8(oid::USER)),
        ("usecreatedb", Datum::bool(true)),
        ("usesuper", Datum::bool(true)),
    ]
}

pub(super) fn collations() -> Vec<Columns<'static>> {
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

pub(super) fn settings(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    SETTINGS
        .iter()
        .map(|setting| {
            vec![
                ("name", Datum::text(setting.name)),
                ("setting", Datum::text((context.setting)(setting.name).unwrap_or_default())),
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
