//! Binds CREATE INDEX and DROP INDEX.

use quorate_table::schema::Schema;
use sqlparser::ast::{self, Spanned};

use super::{coerce, ddl::DropTable, scope};
use crate::{
    backend::Catalog,
    catalog,
    error::{Result, SqlError, code},
    index::{IndexDefinition, IndexKey, KEYS_MAX, METHODS},
    sequence::is_sequence,
};

/// A bound CREATE INDEX.
#[derive(Debug)]
pub struct CreateIndex {
    /// The index. If the statement has no name, the name is a proposal.
    pub definition: IndexDefinition,
    /// Whether the statement names the index.
    pub is_named: bool,
    /// Whether the statement says IF NOT EXISTS.
    pub if_not_exists: bool,
}

/// Binds a CREATE INDEX.
pub fn bind(create: &ast::CreateIndex, catalog: &Catalog) -> Result<CreateIndex> {
    let name = create.name.as_ref().map(index_name).transpose()?;
    let table = scope::table(catalog, &create.table_name)?;
    let schema = &table.schema;
    if is_sequence(schema) {
        let message = format!("cannot create index on relation \"{}\"", schema.name);
        return Err(SqlError::new("42809", message)
            .detail("This operation is not supported for sequences.")
            .at(create.table_name.span()));
    }
    refuse_clauses(create)?;
    let method = match &create.using {
        None => "btree".to_owned(),
        Some(ast::IndexType::Custom(name)) => scope::fold(name),
        Some(method) => method.to_string().to_lowercase(),
    };
    let Some((_, _, has_order)) = METHODS.iter().find(|(known, ..)| *known == method) else {
        let message = format!("access method \"{method}\" does not exist");
        return Err(SqlError::new("42704", message));
    };
    if create.columns.len() > KEYS_MAX {
        let message = format!("cannot use more than {KEYS_MAX} columns in an index");
        return Err(SqlError::new("54011", message));
    }
    let keys: Vec<IndexKey> =
        create.columns.iter().map(|column| key(column, schema)).collect::<Result<_>>()?;
    if !has_order {
        let is_ordered = |column: &&ast::IndexColumn| {
            column.column.options.asc.is_some() || column.column.options.nulls_first.is_some()
        };
        if let Some(column) = create.columns.iter().find(is_ordered) {
            let message = format!("access method \"{method}\" does not support ASC/DESC or NULLS options");
            return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message).at(column.column.expr.span()));
        }
    }
    if create.unique {
        check_unique(schema, &keys, &method)?;
    }
    let (is_named, name) = match name {
        Some(name) => (true, name),
        None => {
            let columns: Vec<&str> = keys.iter().map(|key| &*key.column).collect();
            (false, format!("{}_{}_idx", schema.name, columns.join("_")))
        }
    };
    let definition = IndexDefinition {
        name,
        table: schema.name.clone(),
        method,
        is_unique: create.unique,
        keys,
        enforced: None,
    };
    Ok(CreateIndex { definition, is_named, if_not_exists: create.if_not_exists })
}

fn index_name(name: &ast::ObjectName) -> Result<String> {
    let bare = scope::table_name(name)?;
    if catalog::is_relation(&bare) {
        let message = format!("the name \"{bare}\" belongs to a relation of the system catalog");
        return Err(SqlError::new("42939", message).at(name.span()));
    }
    Ok(bare)
}

fn refuse_clauses(create: &ast::CreateIndex) -> Result<()> {
    let unsupported = |what: &str| Err(SqlError::unsupported(what));
    if let Some(predicate) = &create.predicate {
        return Err(SqlError::unsupported("a partial index").at(predicate.span()));
    }
    if let Some(column) = create.include.first() {
        return Err(SqlError::unsupported("INCLUDE").at(column.span));
    }
    if create.nulls_distinct == Some(false) {
        return unsupported("NULLS NOT DISTINCT");
    }
    if !create.with.is_empty() {
        return unsupported("CREATE INDEX … WITH");
    }
    if !create.index_options.is_empty() || !create.alter_options.is_empty() {
        return Err(SqlError::new(code::SYNTAX_ERROR, "CREATE INDEX has clauses of another database"));
    }
    Ok(())
}

fn key(column: &ast::IndexColumn, schema: &Schema) -> Result<IndexKey> {
    let ast::IndexColumn { column: ast::OrderByExpr { expr, options, .. }, operator_class } = column;
    let ast::Expr::Identifier(ident) = expr else {
        return Err(SqlError::unsupported("an index over an expression").at(expr.span()));
    };
    let name = scope::fold(ident);
    if let Some(column) = schema.columns.iter().find(|column| column.name == name) {
        coerce::check_key(column.ty)?;
    } else {
        let message = format!("column \"{name}\" does not exist");
        return Err(SqlError::new(code::UNDEFINED_COLUMN, message).at(ident.span));
    }
    let class = match operator_class {
        None => None,
        Some(class) => {
            let bare = scope::parts(class)?.pop().unwrap_or_default();
            if !bare.ends_with("_ops") {
                let message = format!("operator class \"{bare}\" does not exist");
                return Err(SqlError::new("42704", message).at(class.span()));
            }
            Some(bare)
        }
    };
    let descends = options.asc == Some(false);
    let nulls_first = options.nulls_first.unwrap_or(descends);
    Ok(IndexKey { column: name, class, descends, nulls_first })
}

/// Refuses a unique index, unless the primary key makes its keys unique.
fn check_unique(schema: &Schema, keys: &[IndexKey], method: &str) -> Result<()> {
    if method != "btree" {
        let message = format!("access method \"{method}\" does not support unique indexes");
        return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message));
    }
    let is_key = |&column: &usize| keys.iter().any(|key| key.column == schema.columns[column].name);
    if schema.primary_key.is_empty() || !schema.primary_key.iter().all(is_key) {
        return Err(SqlError::unsupported("a unique index without the columns of the primary key")
            .hint("Only the primary key is checked to be unique."));
    }
    Ok(())
}

/// Binds a DROP INDEX.
pub fn drop_index(statement: &ast::Statement) -> Result<DropTable> {
    let ast::Statement::Drop { if_exists, names, .. } = statement else {
        unreachable!("only DROP is bound here")
    };
    // CASCADE and RESTRICT have the same effect, because no reference depends on an index that can be
    // dropped.
    let names = names.iter().map(scope::table_name).collect::<Result<_>>()?;
    Ok(DropTable { names, if_exists: *if_exists, cascades: false })
}
