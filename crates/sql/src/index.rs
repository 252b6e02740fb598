//! Indexes: recorded and shown, without an effect.
//!
//! Programs create indexes to make queries fast. A storage process scans all rows of a range for all queries
//! at once, so an index would not make a query faster. Migration tools create indexes nevertheless, and read
//! them back. So CREATE INDEX records the definition, the catalog shows it, and the client receives a notice.
//!
//! **Definition.** An index is a table without rows, as a [sequence](crate::sequence) is a table of one row.
//! The defaults of the table's columns hold the definition: the indexed table, the method and the keys. So
//! every gateway knows the index from the same position on. The total order, moves and backups treat the
//! index as any table.
//!
//! **Uniqueness.** If the keys of a unique index contain the primary key, no two rows can have equal keys,
//! and nothing has to be checked. Otherwise the index's table has a row for each row of the indexed table:
//! the values of the keys, which are its primary key. A row with NULL in a key has none. A gateway writes
//! both tables in one transaction ([`Upkeep`](crate::statement::upkeep::Upkeep)). So a second row with the
//! same keys fails as a second row with the same primary key does. UNIQUE in CREATE TABLE makes such an
//! index.
//!
//! **Life.** CREATE TABLE makes a table and the indexes of its UNIQUE constraints at one position, and DROP
//! TABLE drops a table with its indexes at one position. In a domain of an earlier version of routing each is
//! a message of its own. If the gateway ends between them, an index without a table can stay. The catalog
//! does not show it, and the next CREATE INDEX of its name takes its place.

use std::sync::Arc;

use quorate_table::{
    constraint::Constraint,
    expr::Expr,
    schema::{Column, Partition, Schema},
    value::{Row, Type, Value},
};

use crate::backend::{Catalog, Table};

/// The key of an index's table. No statement can create a column of this name.
pub const KEY: &str = "quorate_index";

/// The most keys of an index; PostgreSQL's limit.
pub const KEYS_MAX: usize = 32;

/// The methods of PostgreSQL's indexes, with their object ids and whether their keys have an order.
pub const METHODS: [(&str, u32, bool); 6] = [
    ("btree", 403, true),
    ("hash", 405, false),
    ("gist", 783, false),
    ("gin", 2742, false),
    ("spgist", 4000, false),
    ("brin", 3580, false),
];

/// The definition of an index.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexDefinition {
    /// The index's name.
    pub name: String,
    /// The name of the indexed table.
    pub table: String,
    /// The method, such as `btree`.
    pub method: String,
    /// Whether the statement was CREATE UNIQUE INDEX.
    pub is_unique: bool,
    /// The keys, in order.
    pub keys: Vec<IndexKey>,
    /// The rows of the index's table. `None` if the table has none, because nothing has to be checked.
    pub enforced: Option<EnforcedKeys>,
}

/// The keys of a unique index whose table has rows.
#[derive(Clone, Debug, PartialEq)]
pub struct EnforcedKeys {
    /// Whether the index belongs to a UNIQUE constraint.
    pub is_constraint: bool,
    /// The columns of the index's table that hold the keys, in their order.
    pub columns: Vec<Column>,
}

/// A key of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexKey {
    /// The column's name.
    pub column: String,
    /// The operator class, if the statement names one.
    pub class: Option<String>,
    /// Whether the key descends.
    pub descends: bool,
    /// Whether NULLs come first.
    pub nulls_first: bool,
}

impl IndexKey {
    /// Returns the number of `pg_index.indoption`.
    pub fn option(&self) -> i64 {
        i64::from(self.descends) | i64::from(self.nulls_first) << 1
    }
}

/// The columns of an index's table before those of its keys.
const HEAD: usize = 4;

/// The columns of an index's table for each key.
const PER_KEY: usize = 3;

/// The column, behind the others of the head, that only an index with rows has. The columns of its head have
/// names with a dot, so that they differ from those of the keys.
const IS_CONSTRAINT: &str = "quorate_index.is_constraint";

impl IndexDefinition {
    /// Returns the definition of the index's table.
    pub fn schema(&self) -> Schema {
        let column = |name: String, default: Value, ty: Type| Column {
            name,
            ty,
            modifier: None,
            not_null: !default.is_null(),
            default: Some(Expr::Constant(default, ty)),
        };
        let text = |name: String, text: &str| column(name, Value::text_of(text), Type::Text);
        let mut columns = vec![
            column(KEY.to_owned(), Value::Int4(0), Type::Int4),
            text("indexed_table".to_owned(), &self.table),
            text("method".to_owned(), &self.method),
            column("is_unique".to_owned(), Value::Bool(self.is_unique), Type::Bool),
        ];
        let mut constraints = Vec::new();
        let mut primary_key = vec![0];
        if let Some(EnforcedKeys { is_constraint, .. }) = &self.enforced {
            columns.push(column(IS_CONSTRAINT.to_owned(), Value::Bool(*is_constraint), Type::Bool));
            constraints.push(Constraint::KeyName(self.name.clone()));
        }
        for (number, key) in (1..).zip(&self.keys) {
            let class = key.class.as_deref().map_or(Value::Null, Value::text_of);
            columns.push(text(format!("column_{number}"), &key.column));
            columns.push(column(format!("class_{number}"), class, Type::Text));
            columns.push(column(format!("option_{number}"), Value::Int8(key.option()), Type::Int8));
        }
        if let Some(EnforcedKeys { columns: keys, .. }) = &self.enforced {
            for column in columns.iter_mut() {
                column.not_null = false;
                if !column.name.starts_with(KEY) {
                    column.name = format!("{KEY}.{}", column.name);
                }
            }
            primary_key = (columns.len()..columns.len() + keys.len()).collect();
            columns.extend(keys.iter().cloned());
        }
        let partition = Partition::Hash { column: primary_key[0] };
        Schema { name: self.name.clone(), columns, primary_key, partition, constraints }
    }

    /// Returns the row of the index's table for a row with these keys. `None` if a key is NULL.
    pub fn row(schema: &Schema, keys: Vec<Value>) -> Option<Row> {
        if keys.iter().any(Value::is_null) {
            return None;
        }
        let mut row = vec![Value::Null; schema.columns.len() - keys.len()];
        row.extend(keys);
        Some(row)
    }

    /// Returns the index whose table has this definition. `None` if the table is no index.
    pub fn of(schema: &Schema) -> Option<IndexDefinition> {
        if !is_index(schema) {
            return None;
        }
        let default = |column: &Column| match column.default.as_ref()? {
            Expr::Constant(value, _) => Some(value.clone()),
            _ => None,
        };
        let text = |column: &Column| match default(column)? {
            Value::Text(text) => Some(text.to_string()),
            _ => None,
        };
        let (head, rest) = schema.columns.split_at_checked(HEAD).filter(|(_, rest)| !rest.is_empty())?;
        let is_enforced = rest[0].name == IS_CONSTRAINT;
        let (keys, enforced) = if is_enforced {
            let (parts, columns) = rest[1..].split_at_checked((rest.len() - 1) / (PER_KEY + 1) * PER_KEY)?;
            let is_constraint = default(&rest[0])? == Value::Bool(true);
            let is_whole = !columns.is_empty() && columns.len() * PER_KEY == parts.len();
            let enforced = is_whole.then(|| EnforcedKeys { is_constraint, columns: columns.to_vec() })?;
            (parts, Some(enforced))
        } else {
            (rest, None)
        };
        let key = |columns: &[Column]| {
            let [column, class, option] = columns else { return None };
            let option = default(option)?.as_integer()?;
            let (column, class) = (text(column)?, text(class));
            Some(IndexKey { column, class, descends: option & 1 != 0, nulls_first: option & 2 != 0 })
        };
        Some(IndexDefinition {
            name: schema.name.clone(),
            table: text(&head[1])?,
            method: text(&head[2])?,
            is_unique: default(&head[3])? == Value::Bool(true),
            keys: keys.chunks(PER_KEY).map(key).collect::<Option<_>>()?,
            enforced,
        })
    }

    /// Whether the index belongs to a UNIQUE constraint.
    pub fn is_constraint(&self) -> bool {
        self.enforced.as_ref().is_some_and(|enforced| enforced.is_constraint)
    }

    /// Whether the catalog has the indexed table, with all keys.
    pub fn is_attached(&self, catalog: &Catalog) -> bool {
        catalog.table(&self.table).is_some_and(|table| {
            let has = |key: &IndexKey| table.schema.columns.iter().any(|column| column.name == key.column);
            self.keys.iter().all(has)
        })
    }
}

/// Whether a table is an index.
pub fn is_index(schema: &Schema) -> bool {
    schema.columns.first().is_some_and(|column| column.name == KEY)
}

/// Returns the columns of the unique keys of a table other than its primary key, as indexes of its columns.
pub fn unique_keys(catalog: &Catalog, schema: &Schema) -> Vec<Vec<usize>> {
    let own = all(catalog).filter(|(_, index)| index.table == schema.name && index.enforced.is_some());
    let position = |key: &IndexKey| schema.columns.iter().position(|column| column.name == key.column);
    own.filter_map(|(_, index)| index.keys.iter().map(position).collect()).collect()
}

/// Returns the indexes, with their tables.
pub fn all(catalog: &Catalog) -> impl Iterator<Item = (&Arc<Table>, IndexDefinition)> {
    catalog.tables.iter().filter_map(|table| Some((table, IndexDefinition::of(&table.schema)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_survives_its_table() {
        let key = |column: &str, class: Option<&str>, descends, nulls_first| IndexKey {
            column: column.to_owned(),
            class: class.map(str::to_owned),
            descends,
            nulls_first,
        };
        for keys in [
            vec![key("a", None, false, false)],
            vec![
                key("a", None, true, true),
                key("B \"c\"", Some("text_pattern_ops"), false, true),
                key("d", None, true, false),
            ],
        ] {
            let index = IndexDefinition {
                name: "i".to_owned(),
                table: "T".to_owned(),
                method: "btree".to_owned(),
                is_unique: keys.len() == 1,
                keys,
                enforced: None,
            };
            let schema = index.schema();
            schema.check().unwrap();
            let bytes = postcard::to_stdvec(&schema).unwrap();
            let read: Schema = postcard::from_bytes(&bytes).unwrap();
            assert_eq!(IndexDefinition::of(&read), Some(index));
        }
    }

    #[test]
    fn a_damaged_definition_is_no_index() {
        let key = IndexKey { column: "a".to_owned(), class: None, descends: false, nulls_first: false };
        let index = IndexDefinition {
            name: "i".to_owned(),
            table: "t".to_owned(),
            method: "btree".to_owned(),
            is_unique: false,
            keys: vec![key],
            enforced: None,
        };
        let whole = index.schema();
        for len in 1..whole.columns.len() {
            let mut cut = whole.clone();
            cut.columns.truncate(len);
            assert_eq!(IndexDefinition::of(&cut), None, "{len} columns");
        }
    }
}
