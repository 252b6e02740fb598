//! ON CONFLICT: the action of an INSERT for a row whose key exists already.
//!
//! A target names the primary key, another unique key, or nothing. If it is the primary key, an assignment of
//! a key column's own value, `k = excluded.k`, has no effect. Any other assignment to a column of the primary
//! key is refused.

use quorate_table::{expr::Expr, operation::Conflict, schema::Schema};
use sqlparser::ast::{self, Spanned};

use super::{
    action::{Arbiter, OnConflict},
    assignment::{assignments, columns, filter},
    parameters::Parameters,
    scope::{self, Scope},
    upkeep::Upkeep,
};
use crate::error::{Result, SqlError, code};

/// Binds the clause. Returns `None` if there is no clause, or if no row can conflict.
pub(super) fn bind(
    clause: Option<&ast::OnInsert>,
    (schema, upkeep): (&Schema, Option<&Upkeep>),
    alias: Option<String>,
    parameters: &mut Parameters,
) -> Result<Option<OnConflict>> {
    let conflict = match clause {
        None => return Ok(None),
        Some(ast::OnInsert::OnConflict(conflict)) => conflict,
        Some(_) => return Err(SqlError::unsupported("ON DUPLICATE KEY UPDATE").hint("Write ON CONFLICT.")),
    };
    let arbiter = match &conflict.conflict_target {
        Some(target) => arbiter(target, schema, upkeep)?,
        None => Arbiter::Any,
    };
    let update = match &conflict.action {
        ast::OnConflictAction::DoNothing => {
            let has_key = upkeep.is_some() || !schema.primary_key.is_empty();
            return Ok(has_key.then_some(OnConflict { arbiter, conflict: Conflict::Skip }));
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
            let is_same =
                matches!(assignment.value, Expr::Column(same, _) if same == column + schema.columns.len());
            if is_same && arbiter == Arbiter::PrimaryKey {
                continue;
            }
            let name = &schema.columns[column].name;
            return Err(SqlError::unsupported(format!("ON CONFLICT that changes the key column \"{name}\""))
                .at(assignment.span));
        }
        assigned.push((column, assignment.value));
    }
    let filter = filter(update.selection.as_ref(), &scope, parameters)?;
    Ok(Some(OnConflict { arbiter, conflict: Conflict::Update { assignments: assigned, filter } }))
}

/// Returns the key that a target names.
fn arbiter(target: &ast::ConflictTarget, schema: &Schema, upkeep: Option<&Upkeep>) -> Result<Arbiter> {
    let uniques = upkeep.map_or(&[][..], |upkeep| &upkeep.uniques);
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
            let is_named = |columns: &[usize]| {
                let mut key = columns.to_vec();
                key.sort_unstable();
                named == key
            };
            if is_named(&schema.primary_key) {
                return Ok(Arbiter::PrimaryKey);
            }
            let unique = uniques.iter().position(|unique| is_named(&unique.columns));
            unique.map(Arbiter::Unique).ok_or_else(|| {
                SqlError::new(
                    code::INVALID_COLUMN_REFERENCE,
                    "there is no unique or exclusion constraint matching the ON CONFLICT specification",
                )
            })
        }
        ast::ConflictTarget::OnConstraint(name) => {
            let shown = scope::parts(name)?.pop().unwrap_or_default();
            if !schema.primary_key.is_empty() && shown == schema.key_name() {
                return Ok(Arbiter::PrimaryKey);
            }
            let unique = uniques.iter().position(|unique| unique.index.schema.name == shown);
            unique.map(Arbiter::Unique).ok_or_else(|| {
                SqlError::new(
                    code::UNDEFINED_OBJECT,
                    format!("constraint \"{shown}\" for table \"{}\" does not exist", schema.name),
                )
                .at(name.span())
            })
        }
    }
}
