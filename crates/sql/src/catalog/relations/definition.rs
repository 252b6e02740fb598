//! The definitions of the relations: their names and their columns.

use std::sync::LazyLock;

use crate::{
    catalog::datum::Datum,
    types::{PgType, TYPES},
};

/// The definition of a relation.
#[derive(Debug)]
pub(in crate::catalog) struct Relation {
    /// `pg_catalog` or `information_schema`.
    pub(in crate::catalog) schema: &'static str,
    /// The relation's name.
    pub(in crate::catalog) name: &'static str,
    /// The relation's object id.
    pub(in crate::catalog) oid: u32,
    /// Names and types of the relation's columns.
    pub(in crate::catalog) columns: Vec<(&'static str, PgType)>,
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
pub(in crate::catalog) fn all() -> &'static [Relation] {
    &RELATIONS
}

/// Returns the relation of this name. The default schema is `pg_catalog`.
pub(in crate::catalog) fn find(schema: Option<&str>, name: &str) -> Option<&'static Relation> {
    let schema = schema.unwrap_or("pg_catalog");
    RELATIONS.iter().find(|relation| relation.schema == schema && relation.name == name)
}

pub(super) type Columns<'a> = Vec<(&'a str, Datum)>;
