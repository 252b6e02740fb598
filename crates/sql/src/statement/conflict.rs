//! ON CONFLICT: the action of an INSERT for a row whose primary key exists already.
//!
//! A table's only constraint is its primary key, so a target names the primary key or nothing. An assignment
//! of a key column's own value, `k = excluded.k`, has no effect. Any other assignment to a key column is
//! refused.

use quorate_table::{expr::Expr, operation::Conflict, schema::Schema};
use sqlparser::ast::{self, Spanned};

use super::{
    assignment::{assignments, columns, filter},
    parameters::Parameters,
    scope::{self, Scope},
};
use crate::error::{Result, SqlError, code};

/// Binds the clause. Returns `None` if there is no clause, or if no row can conflict.
pub(super) fn bind(
    clause: Option<&ast::OnInsert>,
    schema: &Schema,
    alias: Option<String>,
    parameters: &mut Parameters,
) -> Result<Option<Conflict>> {
    let conflict = match clause {
        None => return Ok(None),
        Some(ast::OnInsert::OnConflict(conflict)) => conflict,
        Some(_) => return Err(SqlError::unsupported("ON DUPLICATE KEY UPDATE").hint("Write ON CONFLICT.")),
    };
    if let Some(target) = &conflict.conflict_target {
        check_target(target, schema)?;
    }
    let update = match &conflict.action {
        ast::OnConflictAction::DoNothing => {
            return Ok((!schema.primary_key.is_empty()).then_some(Conflict::Skip));
        }
        ast::OnConflictAction::DoUpdate(update) => update,
    };
    if conflict.conflict_target.is_none() {
        return Err(SqlError::new(
            code::SYNTAX_ERROR,
            "ON CONFLICT DO UPDATE requires inference specification or constraint name",
        )
        .hint("For example, ON CONFLICT (column_name)."));
    }
    let scope = Scope::of_conflict(schema, alias);
    let mut assigned = Vec::with_capacity(update.assignments.len());
    for assignment in assignments(&update.assignments, &scope, parameters)? {
        let column = assignment.column;
        if schema.primary_key.contains(&column) {
            if matches!(assignment.value, Expr::Column(same, _) if same == column + schema.columns.len()) {
                continue;
            }
            let name = &schema.columns[column].name;
            return Err(SqlError::unsupported(format!("ON CONFLICT that changes the key column \"{name}\""))
                .at(assignment.span));
        }
        assigned.push((column, assignment.value));
    }
    let filter = filter(update.selection.as_ref(), &scope, parameters)?;
    Ok(Some(Conflict::Update { assignments: assigned, filter }))
}

/// Refuses a target that is not the primary key.
fn check_target(target: &ast::ConflictTarget, schema: &Schema) -> Result<()> {
    match target {
        ast::ConflictTarget::Columns(names) => {
            let spans: Vec<_> = names.iter().map(|name| name.span).collect();
            let names: Vec<String> = names.iter().map(scope::fold).collect();
            let mut named = Vec::with_capacity(names.len());
            for (name, span) in names.iter().zip(&spans) {
                named.extend(columns(schema, std::slice::from_ref(name), &[*span])?);
            }
            named.sort_unstable();
            named.dedup();
            let mut key = schema.primary_key.clone();
            key.sort_unstable();
            if named != key {
                return Err(SqlError::new(
                    code::INVALID_COLUMN_REFERENCE,
                    "there is no unique or exclusion constraint matching the ON CONFLICT specification",
                ));
            }
        }
        ast::ConflictTarget::OnConstraint(name) => {
            let shown = scope::parts(name)?.pop().unwrap_or_default();
            if schema.primary_key.is_empty() || shown != schema.key_name() {
                return Err(SqlError::new(
                    code::UNDEFINED_OBJECT,
                    format!("constraint \"{shown}\" for table \"{}\" does not exist", schema.name),
                )
                .at(name.span()));
            }
        }
    }
    Ok(())
}
