//! The relations of the catalog: their columns, and the rows made from the tables.
//!
//! The columns are PostgreSQL 15's (`relations.txt`: schema, name, object id, columns with their types), so
//! that a query written for PostgreSQL finds all columns that it names. Most relations are empty here,
//! because Quorate has no objects of their kind.

mod cluster;
mod information;
mod tables;

use std::{collections::BTreeMap, sync::LazyLock};

use quorate_table::value::{Type, Value};

use super::{CatalogContext, datum::Datum};
use crate::types::{PgType, TYPES};

pub(super) use tables::{index_definition, key_columns};

/// The definition of a relation.
#[derive(Debug)]
pub(super) struct Relation {
    /// `pg_catalog` or `information_schema`.
    pub(super) schema: &'static str,
    /// The relation's name.
    pub(super) name: &'static str,
    /// The relation's object id.
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

/// Returns all relations.
pub(super) fn all() -> &'static [Relation] {
    &RELATIONS
}

/// Returns the relation of this name. The default schema is `pg_catalog`.
pub(super) fn find(schema: Option<&str>, name: &str) -> Option<&'static Relation> {
    let schema = schema.unwrap_or("pg_catalog");
    RELATIONS.iter().find(|relation| relation.schema == schema && relation.name == name)
}

/// Object ids of permanent objects, as in PostgreSQL.
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

/// Schemas and their object ids.
pub(super) const NAMESPACES: [(&str, u32); 3] = [
    ("pg_catalog", oid::PG_CATALOG),
    ("public", oid::PUBLIC),
    ("information_schema", oid::INFORMATION_SCHEMA),
];

type Columns<'a> = Vec<(&'a str, Datum)>;

impl Relation {
    /// Returns the relation's rows.
    pub(super) fn rows(&self, context: &CatalogContext<'_>) -> Vec<Vec<Datum>> {
        let named: Vec<Columns<'_>> = match (self.schema, self.name) {
            ("pg_catalog", "pg_class") => tables::classes(context),
            ("pg_catalog", "pg_attribute") => tables::attributes(context),
            ("pg_catalog", "pg_type") => cluster::types(),
            ("pg_catalog", "pg_namespace") => cluster::namespaces(),
            ("pg_catalog", "pg_database") => vec![cluster::database(context)],
            ("pg_catalog", "pg_index") => tables::indexes(context),
            ("pg_catalog", "pg_constraint") => tables::constraints(context),
            ("pg_catalog", "pg_attrdef") => tables::defaults(context),
            ("pg_catalog", "pg_am") => cluster::access_methods(),
            ("pg_catalog", "pg_roles" | "pg_authid" | "pg_user" | "pg_shadow") => {
                let mut role = cluster::role(context);
                role.retain(|(name, _)| self.columns.iter().any(|(column, _)| column == name));
                vec![role]
            }
            ("pg_catalog", "pg_collation") => cluster::collations(),
            ("pg_catalog", "pg_settings") => cluster::settings(context),
            ("pg_catalog", "pg_tablespace") => vec![vec![
                ("oid", Datum::int8(oid::TABLESPACE)),
                ("spcname", Datum::text("pg_default")),
                ("spcowner", Datum::int8(oid::USER)),
            ]],
            ("pg_catalog", "pg_tables") => tables::tables(context),
            ("pg_catalog", "pg_indexes") => tables::index_view(context),
            ("information_schema", "tables") => information::tables(context),
            ("information_schema", "columns") => information::columns(context),
            ("information_schema", "schemata") => information::schemata(context),
            ("information_schema", "table_constraints") => information::constraints(context),
            ("information_schema", "key_column_usage") => information::keys(context),
            ("information_schema", "information_schema_catalog_name") => {
                vec![vec![("catalog_name", Datum::text(context.database))]]
            }
            _ => Vec::new(),
        };
        named.into_iter().map(|columns| self.row(columns)).collect()
    }

    /// Makes a full row from some named columns. The others get the value for absence in their type.
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
