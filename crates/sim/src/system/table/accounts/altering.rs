//! Alterations of the tables during the run.
//!
//! An alteration replaces a table's *added column* by another added column. The value of the column is the
//! same in all rows, and is a part of the column's name. So a statement shows by which definition its gateway
//! made it: the statement writes this value into all its rows, and every row that it reads must have this
//! value. A row with another value was written or read by another definition than that of its table.

use quorate_protocol::rubberband::{ClientCommand, Config, Control, TableChange};
use quorate_roles::tables::{Command, gateway};
use quorate_table::{
    alter::ColumnSource,
    schema::{Column, Schema},
    value::{Type, Value},
};
use quorate_world::{Chance, Violation};

use super::{ACCOUNTS, AccountStatement, AccountWorkload, PendingStatement};
use crate::system::table::world::{TableWorld, ask};

/// The name of an added column without its value.
const ADDED: &str = "added_";

impl AccountWorkload {
    /// Alters one table at the gateway on `machine`, or two tables at one position.
    pub(super) fn alter(
        &mut self,
        world: &mut TableWorld,
        machine: usize,
        config: &Config,
        chance: &mut Chance,
    ) {
        let first = chance.index(self.schemas.len());
        let second = chance.happens(0.3).then(|| (first + 1) % self.schemas.len());
        let token = self.token();
        let alteration = |index: usize| {
            let earlier = &self.schemas[index];
            let (table, _) = config.table(&earlier.name)?;
            let mut schema = earlier.clone();
            let value = token as i64;
            schema.columns.push(Column {
                name: format!("{ADDED}{value}"),
                ty: Type::Int8,
                modifier: None,
                not_null: true,
                default: None,
            });
            let kept = (0..earlier.columns.len()).map(ColumnSource::Column);
            let columns: Vec<ColumnSource> =
                kept.chain([ColumnSource::Constant(Value::Int8(value))]).collect();
            Some(TableChange::Alter {
                table,
                name: schema.name.clone(),
                definition: gateway::definition(&schema),
                columns: gateway::column_sources(&columns),
            })
        };
        let Some(changes) = std::iter::once(first).chain(second).map(alteration).collect() else { return };
        self.begin(world, machine, token, AccountStatement::Alter, false);
        let control = Control::Define { changes };
        world.command(machine, ask(Command::Client(ClientCommand::Control { token, control })));
    }

    /// Whether a statement belongs to a bulk load whose table was altered. The staged rows ended with the
    /// table.
    pub(super) fn has_load_ended(&self, config: &Config, what: &AccountStatement) -> bool {
        let (AccountStatement::Stage { load, .. }
        | AccountStatement::Publish { load }
        | AccountStatement::Discard { load }) = what
        else {
            return false;
        };
        self.loads.get(load).is_some_and(|load| !config.tables.contains_key(&load.table.0))
    }

    /// Returns the value of the added column in the rows that a statement reads with all their columns.
    pub(super) fn added_for(&self, config: &Config, what: &AccountStatement) -> Option<i64> {
        match what {
            AccountStatement::Sum | AccountStatement::Glance => added_column(config, ACCOUNTS),
            AccountStatement::LastLook { table } => added_column(config, &self.schemas[*table].name),
            _ => None,
        }
    }
}

impl PendingStatement {
    /// Fails if a row has another value of the added column than that of the definition by which the
    /// statement was made. Removes the values.
    pub(super) fn check_added(&mut self) -> Result<(), Violation> {
        let Some(added) = self.added else { return Ok(()) };
        for row in &mut self.rows {
            let found = row.pop();
            if found != Some(Value::Int8(added)) {
                let what = format!(
                    "{:?} was made by a definition whose added column has the value {added}, but a row has {found:?}",
                    self.what
                );
                return Err(Violation::new("definition", what));
            }
        }
        Ok(())
    }
}

impl AccountStatement {
    /// Whether the statement is a read, which may be refused because its table was altered meanwhile.
    pub(super) fn is_read(&self) -> bool {
        matches!(
            self,
            AccountStatement::Look { .. }
                | AccountStatement::Sum
                | AccountStatement::Glance
                | AccountStatement::LastLook { .. }
                | AccountStatement::KillerQuery { .. }
        )
    }
}

/// Returns the value of a table's added column. `None` if the table was never altered.
pub(super) fn added_column(config: &Config, table: &str) -> Option<i64> {
    let (_, entry) = config.table(table)?;
    let schema: Schema = gateway::schema(&entry.definition)?;
    schema.columns.last()?.name.strip_prefix(ADDED)?.parse().ok()
}
