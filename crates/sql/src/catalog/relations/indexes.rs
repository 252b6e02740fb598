//! Relations that describe indexes: those of primary keys, and those that CREATE INDEX recorded.

use super::definition::Columns;
use crate::{
    backend::Table,
    catalog::{
        CatalogContext,
        datum::Datum,
        identifier::quoted,
        oid::{self, index_oid, table_oid},
    },
    index::{self, METHODS},
};

/// An index of a table.
pub(in crate::catalog) struct CatalogIndex<'a> {
    /// The index's object id.
    pub(in crate::catalog) oid: u32,
    /// The index's name.
    pub(in crate::catalog) name: String,
    /// The indexed table.
    pub(in crate::catalog) table: &'a Table,
    /// The method, such as `btree`.
    method: String,
    /// Whether the index belongs to the primary key.
    is_primary: bool,
    /// Whether no two rows have equal keys.
    is_unique: bool,
    /// The keys, in order.
    pub(in crate::catalog) keys: Vec<Key>,
}

/// A key of an index.
pub(in crate::catalog) struct Key {
    /// The column's index in the table's columns.
    pub(in crate::catalog) position: usize,
    /// The number that `pg_index.indoption` shows for the key.
    option: i64,
    /// The operator class, if the index names one.
    class: Option<String>,
}

/// Returns all indexes of tables.
pub(in crate::catalog) fn all<'a>(context: &'a CatalogContext<'_>) -> impl Iterator<Item = CatalogIndex<'a>> {
    let primary = context.keyed_tables().map(|table| CatalogIndex {
        oid: index_oid(table.id),
        name: table.schema.key_name(),
        table,
        method: "btree".to_owned(),
        is_primary: true,
        is_unique: true,
        keys: table
            .schema
            .primary_key
            .iter()
            .map(|&position| Key { position, option: 0, class: None })
            .collect(),
    });
    let recorded = index::all(&context.catalog).filter_map(|(own, definition)| {
        let table = context.user_tables().find(|table| table.schema.name == definition.table)?;
        let key = |key: index::IndexKey| {
            let position = table.schema.columns.iter().position(|column| column.name == key.column)?;
            Some(Key { position, option: key.option(), class: key.class })
        };
        Some(CatalogIndex {
            oid: table_oid(own.id),
            table,
            is_primary: false,
            is_unique: definition.is_unique,
            keys: definition.keys.into_iter().map(key).collect::<Option<_>>()?,
            name: definition.name,
            method: definition.method,
        })
    });
    primary.chain(recorded)
}

/// Whether a table has an index.
pub(super) fn has_index(context: &CatalogContext<'_>, table: &Table) -> bool {
    let indexes = |(_, index): (_, index::IndexDefinition)| {
        index.table == table.schema.name && index.is_attached(&context.catalog)
    };
    !table.schema.primary_key.is_empty() || index::all(&context.catalog).any(indexes)
}

impl CatalogIndex<'_> {
    /// Returns the object id of the index's method.
    pub(super) fn method_oid(&self) -> u32 {
        METHODS.iter().find(|(name, ..)| *name == self.method).map_or(oid::BTREE, |(_, oid, _)| *oid)
    }

    /// Returns the name of a key's column.
    pub(in crate::catalog) fn column(&self, key: &Key) -> &str {
        &self.table.schema.columns[key.position].name
    }

    /// Returns the SQL text of a key.
    fn key_text(&self, key: &Key) -> String {
        let mut text = quoted(self.column(key));
        if let Some(class) = &key.class {
            text.push(' ');
            text.push_str(class);
        }
        text.push_str(match key.option {
            0 => "",
            1 => " DESC NULLS LAST",
            2 => " NULLS FIRST",
            _ => " DESC",
        });
        text
    }

    /// Returns the statement that would create the index. `pretty` leaves out the schema of the table.
    pub(in crate::catalog) fn definition(&self, pretty: bool) -> String {
        let keys: Vec<String> = self.keys.iter().map(|key| self.key_text(key)).collect();
        format!(
            "CREATE {}INDEX {} ON {}{} USING {} ({})",
            if self.is_unique { "UNIQUE " } else { "" },
            quoted(&self.name),
            if pretty { "" } else { "public." },
            quoted(&self.table.schema.name),
            self.method,
            keys.join(", ")
        )
    }
}

/// Returns the text form of a vector, which has no braces.
fn vector(elements: impl Iterator<Item = i64>) -> Datum {
    let words: Vec<String> = elements.map(|number| number.to_string()).collect();
    Datum::text(words.join(" "))
}

pub(super) fn relation(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    all(context)
        .map(|index| {
            vec![
                ("indexrelid", Datum::int8(index.oid)),
                ("indrelid", Datum::int8(table_oid(index.table.id))),
                ("indnatts", Datum::int8(index.keys.len() as i64)),
                ("indnkeyatts", Datum::int8(index.keys.len() as i64)),
                ("indisunique", Datum::bool(index.is_unique)),
                ("indisprimary", Datum::bool(index.is_primary)),
                ("indimmediate", Datum::bool(true)),
                ("indisvalid", Datum::bool(true)),
                ("indisready", Datum::bool(true)),
                ("indislive", Datum::bool(true)),
                ("indkey", vector(index.keys.iter().map(|key| key.position as i64 + 1))),
                ("indoption", vector(index.keys.iter().map(|key| key.option))),
            ]
        })
        .collect()
}

pub(super) fn view(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    all(context)
        .map(|index| {
            vec![
                ("schemaname", Datum::text("public")),
                ("tablename", Datum::text(&index.table.schema.name)),
                ("indexname", Datum::text(&index.name)),
                ("indexdef", Datum::text(index.definition(false))),
            ]
        })
        .collect()
}
