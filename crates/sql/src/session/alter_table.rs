//! Executes ALTER TABLE.
//!
//! **One position.** The new definition, those of the table's indexes and sequences, and those of tables that
//! refer to the table change together ([`quorate_table::alter`]).
//!
//! **Requirements.** If the new definition demands something of the rows that exist, there are three steps.
//! First the earlier definition gets the demand as a condition, so that no row can break it from now on. Then
//! a read at a later position looks for rows that break it. If there is such a row, the first step is taken
//! back and the client gets the error. Otherwise the new definition follows. If the gateway ends between the
//! steps, the demand stays in force for new rows.
//!
//! **Another session alters the table meanwhile.** Then the cluster refuses the message, because its table is
//! gone. Nothing happened, and the statement is bound again ([`Session::execute`]).

use std::sync::Arc;

use quorate_table::{
    alter::{Alteration, ColumnSource},
    constraint::Check,
    engine::Answer,
    expr::{Expr, Unary},
    operation::{Output, Select},
    schema::{Schema, TableId},
    value::{Type, Value},
};

use super::{Session, StatementOutcome, reference_ddl::with_references};
use crate::{
    backend::{Definition, OperationError, Strength, Table},
    error::{Result, SqlError, code},
    fault,
    index::{self, IndexDefinition},
    sequence::SequenceDefinition,
    statement::{
        alter_table::{AlterTable, NewColumn, Requirement},
        fold,
        parameters::Arguments,
        reference::rename_references,
    },
};

impl Session {
    pub(super) async fn alter_table(&mut self, alter: &AlterTable) -> Result<StatementOutcome> {
        let done = || Ok(StatementOutcome::Done("ALTER TABLE".to_owned()));
        let Some(table) = &alter.table else {
            self.notices.extend(alter.notices.iter().cloned());
            return done();
        };
        let values = self.added_values(alter)?;
        let sources: Vec<ColumnSource> = alter.columns.iter().zip(&values).map(source).collect();
        let last = Alteration { schema: alter.schema.clone(), columns: sources };
        let demands = demands(alter, &values)?;
        if last == Alteration::of_definition(table.schema.clone()) {
            self.notices.extend(alter.notices.iter().cloned());
            return done();
        }
        let mut current = table.id;
        if !demands.is_empty() || !alter.references.is_empty() {
            let strict = strict_schema(&table.schema, &demands);
            let strict =
                with_references(strict, alter.new_references(), |column| alter.earlier_column(column));
            let only = strict == alter.schema && last == Alteration::of_definition(strict.clone());
            let mut alterations = vec![(table.id, Alteration::of_definition(strict))];
            // Each parent gets another number (see `reference_ddl`).
            let renumbered =
                |parent: &Arc<Table>| (parent.id, Alteration::of_definition(parent.schema.clone()));
            alterations.extend(alter.parents.iter().map(renumbered));
            let strict = alterations[0].1.schema.clone();
            self.alter(alterations, Vec::new()).await?;
            current = self.altered(&strict)?;
            if let Some(error) = self.first_violation(current, &table.schema.name, &demands, alter).await {
                let back = Alteration::of_definition(table.schema.clone());
                self.alter(vec![(current, back)], Vec::new()).await?;
                return Err(error);
            }
            if only {
                self.notices.extend(alter.notices.iter().cloned());
                self.has_defined("ALTER TABLE");
                return done();
            }
        }
        let orphans = self.orphans(alter, table);
        let mut alterations = vec![(current, last)];
        alterations.extend(self.followers(alter, table));
        alterations.retain(|(table, _)| !orphans.contains(table));
        self.alter(alterations, orphans).await?;
        self.notices.extend(alter.notices.iter().cloned());
        self.has_defined("ALTER TABLE");
        done()
    }

    /// Returns the values of added columns: `None` for a column that is kept.
    fn added_values(&self, alter: &AlterTable) -> Result<Vec<Option<Value>>> {
        let session = |value| self.session_value(value);
        let arguments = Arguments { values: &[], session: &session };
        let value = |column: &NewColumn| match column {
            NewColumn::Kept(_) => Ok(None),
            NewColumn::Added(expr) => fold::value(expr, &arguments).map(Some),
        };
        alter.columns.iter().map(value).collect()
    }

    /// Alters tables and drops others, at one position.
    async fn alter(&mut self, alterations: Vec<(TableId, Alteration)>, dropped: Vec<TableId>) -> Result<()> {
        let altered =
            alterations.into_iter().map(|(table, alteration)| Definition::Alter { table, alteration });
        let dropped = dropped.into_iter().map(|table| Definition::Drop { table });
        self.define(altered.chain(dropped).collect()).await.map_err(fault::unnamed_error)
    }

    /// Returns the number of the table that was just given this definition. Another session may have altered
    /// it since; then its definition must not be replaced.
    fn altered(&self, schema: &Schema) -> Result<TableId> {
        let catalog = self.backend.catalog();
        let table = catalog.table(&schema.name).filter(|table| table.schema == *schema);
        table.map(|table| table.id).ok_or_else(|| {
            SqlError::new(
                code::SERIALIZATION_FAILURE,
                "another session altered or dropped the table meanwhile",
            )
        })
    }

    /// Returns the error of the first requirement or reference that a row breaks.
    async fn first_violation(
        &mut self,
        table: TableId,
        name: &str,
        demands: &[Demand<'_>],
        alter: &AlterTable,
    ) -> Option<SqlError> {
        for demand in demands {
            if let Some(error) = self.violation(table, demand).await {
                return Some(error);
            }
        }
        for reference in &alter.references {
            if let Some(error) = self.broken_reference(name, reference).await {
                return Some(error);
            }
        }
        None
    }

    /// Returns the error of a requirement if a row breaks it, or if the rows cannot be read.
    async fn violation(&mut self, table: TableId, demand: &Demand<'_>) -> Option<SqlError> {
        let broken = Expr::Unary(Unary::Not, Box::new(demand.condition.clone()));
        let columns = vec![Expr::Constant(Value::Bool(true), Type::Bool)];
        let output = Output::Rows { columns, order: Vec::new(), limit: Some(1), distinct: false };
        let select = Select { table, filter: Some(broken), output };
        match self.has_rows(&select).await {
            Ok(false) => None,
            Ok(true) => Some(demand.requirement.violation.clone()),
            Err(fault) => Some(fault::read_error(fault)),
        }
    }

    async fn has_rows(&self, select: &Select) -> std::result::Result<bool, OperationError> {
        let stream = self.backend.read(Strength::Sequential, select).await?;
        let mut has_rows = false;
        for mut part in stream.parts {
            while let Some(answer) = part.next().await {
                has_rows |= matches!(answer?, Answer::Rows(rows) if !rows.is_empty());
            }
        }
        Ok(has_rows)
    }

    /// Returns the alterations of the indexes, sequences and references that name the table or its columns.
    fn followers(&self, alter: &AlterTable, table: &Table) -> Vec<(TableId, Alteration)> {
        let (before, after) = (&table.schema.name, &alter.schema.name);
        if before == after && alter.renamed.is_empty() {
            return Vec::new();
        }
        let renamed = |column: &mut String| {
            if let Some((_, now)) = alter.renamed.iter().find(|(earlier, _)| earlier == column) {
                column.clone_from(now);
            }
        };
        let follow = |other: &Arc<Table>| -> Option<(TableId, Alteration)> {
            let schema = if let Some(mut index) = IndexDefinition::of(&other.schema) {
                (index.table == *before).then_some(())?;
                index.table.clone_from(after);
                index.keys.iter_mut().for_each(|key| renamed(&mut key.column));
                if let Some(enforced) = &mut index.enforced {
                    enforced.columns.iter_mut().for_each(|column| renamed(&mut column.name));
                }
                index.schema()
            } else if let Some(mut sequence) = SequenceDefinition::of(&other.schema) {
                let owner = sequence.owner.as_mut().filter(|owner| owner.table == *before)?;
                owner.table.clone_from(after);
                renamed(&mut owner.column);
                sequence.schema()
            } else {
                let mut schema = other.schema.clone();
                rename_references(&mut schema, (before, after), &alter.renamed).then_some(schema)?
            };
            let is_other = other.id != table.id && schema != other.schema;
            is_other.then(|| (other.id, Alteration::of_definition(schema)))
        };
        self.backend.catalog().tables.iter().filter_map(follow).collect()
    }

    /// Returns the indexes and sequences of dropped columns.
    fn orphans(&self, alter: &AlterTable, table: &Table) -> Vec<TableId> {
        if alter.dropped.is_empty() {
            return Vec::new();
        }
        let catalog = self.backend.catalog();
        let name = &table.schema.name;
        let indexes = index::all(&catalog).filter(|(_, index)| {
            index.table == *name && index.keys.iter().any(|key| alter.dropped.contains(&key.column))
        });
        let sequences = catalog.tables.iter().filter(|other| {
            SequenceDefinition::of(&other.schema)
                .and_then(|sequence| sequence.owner)
                .is_some_and(|owner| owner.table == *name && alter.dropped.contains(&owner.column))
        });
        indexes.map(|(table, _)| table.id).chain(sequences.map(|table| table.id)).collect()
    }
}

/// A requirement of the existing rows, over the earlier definition.
struct Demand<'a> {
    requirement: &'a Requirement,
    condition: Expr,
    /// The column that must not be NULL, in the earlier definition.
    not_null: Option<usize>,
}

/// Returns the requirements that not all rows satisfy in any case.
fn demands<'a>(alter: &'a AlterTable, values: &[Option<Value>]) -> Result<Vec<Demand<'a>>> {
    let mut demands = Vec::new();
    for requirement in &alter.requirements {
        let condition = alter.over_earlier(&requirement.condition, values);
        if let Expr::Constant(Value::Bool(true) | Value::Null, _) = condition {
            continue;
        }
        let not_null = match requirement.not_null.map(|index| &alter.columns[index]) {
            Some(NewColumn::Kept(source)) => Some(*source),
            _ => None,
        };
        demands.push(Demand { requirement, condition, not_null });
    }
    Ok(demands)
}

/// Returns the earlier definition with the requirements as conditions.
fn strict_schema(earlier: &Schema, demands: &[Demand<'_>]) -> Schema {
    let mut schema = earlier.clone();
    for (number, demand) in demands.iter().enumerate() {
        if let Some(column) = demand.not_null {
            schema.columns[column].not_null = true;
            continue;
        }
        let named = demand.requirement.violation.about.constraint.clone();
        let is_free = |name: &String| schema.constraints.iter().all(|known| known.name() != name);
        let name = named.filter(is_free).unwrap_or_else(|| format!("{}_altering_{number}", schema.name));
        let text = crate::statement::condition_text::text_of(&demand.condition, earlier, false);
        let text = text.unwrap_or_default();
        schema.add_check(Check { name, condition: demand.condition.clone(), text });
    }
    schema
}

fn source((column, value): (&NewColumn, &Option<Value>)) -> ColumnSource {
    match (column, value) {
        (NewColumn::Kept(index), _) => ColumnSource::Column(*index),
        (NewColumn::Added(_), value) => ColumnSource::Constant(value.clone().unwrap_or(Value::Null)),
    }
}
