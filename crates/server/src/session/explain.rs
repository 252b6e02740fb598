//! EXPLAIN: where a statement would go, and who would do what.

use quorate_table::{
    operation::{Operation, Output},
    value::Value,
};

use super::{
    Session,
    read::{instantiate, window},
    write::operation,
};
use crate::{
    error::Result,
    sql::{Statement, parameters::Arguments, select::Source, write::Action},
};

impl Session {
    pub(super) fn explain(&self, statement: &Statement, values: &[Value]) -> Result<Vec<String>> {
        let session = |value| self.session_value(value);
        let arguments = Arguments { values, session: &session };
        let strength = self.strength();
        let mut lines = Vec::new();
        match statement {
            Statement::Query(query) => match &query.source {
                Source::Constants { .. } => lines.push("Result of constants, at the gateway".to_owned()),
                Source::Catalog(_) => lines.push("Catalog, at the gateway".to_owned()),
                Source::Table { table, select } => {
                    let window = window(&query.finish, &arguments)?;
                    let select = instantiate(select, &window, &query.finish, &arguments);
                    lines.push(format!("Scan of {}", table.schema.name));
                    lines.push(format!("  Strength: {}", strength.name()));
                    lines.push(match &select.output {
                        Output::Rows { columns, order, limit, .. } => {
                            let sorted = if order.is_empty() { "" } else { ", sorted" };
                            let limited =
                                limit.map(|n| format!(", at most {n} per range")).unwrap_or_default();
                            format!("  Ranges send: rows of {} columns{sorted}{limited}", columns.len())
                        }
                        Output::Groups { keys, aggregates } => format!(
                            "  Ranges send: groups of {} keys, {} aggregates",
                            keys.len(),
                            aggregates.len()
                        ),
                    });
                    let gathers = match (&query.finish.groups, query.finish.order.is_empty()) {
                        (Some(_), _) => "merges groups",
                        (None, false) => "merges sorted rows",
                        (None, true) => "passes rows on",
                    };
                    lines.push(format!("  Gateway: {gathers}"));
                    lines.extend(
                        self.backend
                            .explain(&Operation::Select(select), strength)
                            .into_iter()
                            .map(|line| format!("  {line}")),
                    );
                }
            },
            Statement::Write(write) => {
                let operation = operation(write, &arguments)?;
                let word = match &write.action {
                    Action::Insert(_) => "Insert into",
                    Action::Update { .. } => "Update of",
                    Action::Delete { .. } => "Delete from",
                };
                lines.push(format!("{word} {}", write.table.schema.name));
                lines.push("  Strength: safe, in the total order".to_owned());
                lines.extend(
                    self.backend.explain(&operation, strength).into_iter().map(|line| format!("  {line}")),
                );
            }
            _ => unreachable!("the binder lets nothing else be explained"),
        }
        Ok(lines)
    }
}
