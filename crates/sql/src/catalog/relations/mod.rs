//! The relations of the catalog: their columns, and the rows made from the tables.
//!
//! The columns are PostgreSQL 15's (`relations.txt`: schema, name, object id, columns with their types), so
//! that a query written for PostgreSQL finds all columns that it names. Most relations are empty here,
//! because Quorate has no objects of their kind.

mod cluster;
mod constraints;
mod definition;
mod indexes;
mod information;
mod sequences;
mod tables;

use std::collections::BTreeMap;

use quorate_table::value::{Type, Value};

use super::{CatalogContext, datum::Datum, oid};
use crate::types::PgType;
use definition::Columns;

pub(super) use constraints::all as all_constraints;
pub(super) use definition::{Relation, all, find};
pub(super) use indexes::{CatalogIndex, all as all_indexes};

impl Relation {
    /// Returns the relation's rows.
    pub(super) fn rows(&self, context: &CatalogContext<'_>) -> Vec<Vec<Datum>> {
        let named: Vec<Columns<'_>> = match (self.schema, self.name) {
            ("pg_catalog", "pg_class") => tables::classes(context),
            ("pg_catalog", "pg_attribute") => tables::attributes(context),
            ("pg_catalog", "pg_type") => cluster::types(),
            ("pg_catalog", "pg_namespace") => cluster::namespaces(),
            ("pg_catalog", "pg_database") => vec![cluster::database(context)],
            ("pg_catalog", "pg_index") => indexes::relation(context),
            ("pg_catalog", "pg_constraint") => constraints::relation(context),
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
            ("pg_catalog", "pg_sequence") => sequences::sequences(context),
            ("pg_catalog", "pg_sequences") => sequences::view(context),
            ("pg_catalog", "pg_depend") => sequences::dependencies(context),
            ("information_schema", "sequences") => sequences::information(context),
            ("pg_catalog", "pg_tables") => tables::tables(context),
            ("pg_catalog", "pg_indexes") => indexes::view(context),
            ("information_schema", "tables") => information::tables(context),
            ("information_schema", "columns") => information::columns(context),
            ("information_schema", "schemata") => information::schemata(context),
            ("information_schema", "table_constraints") => constraints::view(context),
            ("information_schema", "key_column_usage") => constraints::keys(context),
            ("information_schema", "check_constraints") => constraints::checks(context),
            ("information_schema", "referential_constraints") => constraints::referential(context),
            ("information_schema", "constraint_column_usage") => constraints::usage(context),
            ("information_schema", "information_schema_catalog_name") => {
                vec![vec![("catalog_name", Datum::text(context.database))]]
            }
            _ => Vec::new(),
        };
        named.into_iter().map(|columns| self.row(columns)).collect()
    }

    /// Makes a full row from some named columns. Each other column gets the value that means absence in its
    /// type.
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
        PgType::Plain(Type::Float4) => Datum::Value(Value::Float4(0.0)),
        ty if ty.is_oid() => Datum::int8(0),
        PgType::Char => Datum::text(""),
        _ => Datum::NULL,
    }
}
