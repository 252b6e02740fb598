//! Object ids of permanent objects, as in PostgreSQL, and object ids of tables and indexes.

#![allow(missing_docs, reason = "the names say which")]

use quorate_table::schema::TableId;

pub(super) const USER: u32 = 10;
pub(super) const PG_CATALOG: u32 = 11;
pub(super) const PUBLIC: u32 = 2200;
pub(super) const INFORMATION_SCHEMA: u32 = 13_221;
pub(super) const DATABASE: u32 = 5;
pub(super) const TABLESPACE: u32 = 1663;
pub(super) const HEAP: u32 = 2;
pub(super) const BTREE: u32 = 403;
pub(super) const DEFAULT_COLLATION: u32 = 100;
pub(super) const C_COLLATION: u32 = 950;

/// Schemas and their object ids.
pub(super) const NAMESPACES: [(&str, u32); 3] =
    [("pg_catalog", PG_CATALOG), ("public", PUBLIC), ("information_schema", INFORMATION_SCHEMA)];

/// The first object id of user objects.
const FIRST_USER_OID: u32 = 16_384;

/// The first object id of constraints other than primary keys.
const FIRST_CONSTRAINT_OID: u32 = 1 << 31;

/// Distance between the first constraints of two tables. A table with more constraints shares object ids with
/// another table, so that a catalog shows some constraints twice.
const CONSTRAINTS_MAX: u32 = 64;

/// Returns the object id of a table.
pub fn table_oid(table: TableId) -> u32 {
    FIRST_USER_OID + 2 * table.0
}

/// Returns the object id of the index of a table's primary key.
pub fn index_oid(table: TableId) -> u32 {
    table_oid(table) + 1
}

/// Returns the object id of a constraint other than the primary key. `index` is the constraint's index in the
/// table's definition. These ids are in the upper half of all ids, so that they are no ids of tables.
pub(super) fn constraint_oid(table: TableId, index: usize) -> u32 {
    FIRST_CONSTRAINT_OID | (table.0.wrapping_mul(CONSTRAINTS_MAX) + index as u32) & !FIRST_CONSTRAINT_OID
}
