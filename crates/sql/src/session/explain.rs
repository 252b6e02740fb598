//! EXPLAIN: describes the destinations of a statement and the work of each destination. With ANALYZE a query
//! is executed, and each replica reports how it found the rows, with which other queries, and how long that
//! took.

use std::time::{Duration, Instant};

use quorate_table::{
    explain::{Explanation, Strategy},
    operation::{Conflict, Operation, Output},
    schema::Schema,
    value::Value,
};

use super::{
    Session,
    read::{instantiate, window},
    write::operation,
};
use crate::{
    backend::Analyzed,
    error::Result,
    fault,
    statement::{
        Statement,
        action::Action,
        parameters::Arguments,
        select::{Query, Source},
    },
};

impl Session {
    pub(super) fn explain(&self, statement: &Statement, values: &[Value]) -> Result<Vec<String>> {
        let session = |value| self.session_value(value);
        let arguments = Arguments { values, session: &session };
        let mut lines = Vec::new();
        match statement {
            Statement::Query(query) => match &query.source {
                Source::Constants { .. } => lines.push("Result of constants, at the gateway".to_owned()),
                Source::Catalog(_) => lines.push("Catalog, at the gateway".to_owned()),
                Source::Table { table, select, .. } => {
                    let window = window(&query.finish, &arguments)?;
                    let select = instantiate(select, &window, &query.finish, &arguments);
                    lines.push(format!("Scan of {}", table.schema.name));
                    lines.push(format!("  Strength: {}", self.strength().name()));
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
                            .explain(&Operation::Select(select))
                            .into_iter()
                            .map(|line| format!("  {line}")),
                    );
                }
            },
            Statement::Write(write) => {
                let operation = operation(write, &arguments)?;
                let word = match &write.action {
                    Action::Insert { .. } => "Insert into",
                    Action::Update { .. } => "Update of",
                    Action::Delete { .. } | Action::Truncate => "Delete from",
                };
                lines.push(format!("{word} {}", write.table.schema.name));
                lines.push("  Strength: safe, in the total order".to_owned());
                if let Action::Insert { conflict: Some(on), .. } = &write.action {
                    let resolution = match on.conflict {
                        Conflict::Skip => "NOTHING",
                        Conflict::Update { .. } => "UPDATE",
                    };
                    lines.push(format!("  Conflict Resolution: {resolution}"));
                }
                lines.extend(self.backend.explain(&operation).into_iter().map(|line| format!("  {line}")));
            }
            _ => unreachable!("the binder lets nothing else be explained"),
        }
        Ok(lines)
    }

    /// Executes a query. Returns a paragraph for each replica that took part.
    pub(super) async fn analyze(&self, query: &Query, values: &[Value]) -> Result<Vec<String>> {
        let Source::Table { table, select, .. } = &query.source else { return Ok(Vec::new()) };
        let session = |value| self.session_value(value);
        let arguments = Arguments { values, session: &session };
        let window = window(&query.finish, &arguments)?;
        let select = instantiate(select, &window, &query.finish, &arguments);
        let began = Instant::now();
        let parts = self.backend.analyze(self.strength(), &select).await.map_err(fault::read_error)?;
        let took = began.elapsed();
        let mut lines = Vec::new();
        for part in &parts {
            lines.extend(paragraph(part, &table.schema));
        }
        lines.push(format!("Execution Time: {} ms", milliseconds(took)));
        Ok(lines)
    }
}

fn milliseconds(duration: Duration) -> String {
    format!("{:.3}", duration.as_secs_f64() * 1e3)
}

fn paragraph(part: &Analyzed, schema: &Schema) -> Vec<String> {
    let Analyzed { replica, waited, took, explained } = part;
    let Explanation { epoch, batch, conditions, evaluated, blocks, visited, rows, .. } = explained;
    let name = |column: &usize| schema.columns.get(*column).map_or("?", |column| column.name.as_str());
    let strategy = match &explained.strategy {
        Strategy::RowByRow => "the conditions are evaluated on every row".to_owned(),
        Strategy::Nothing => "no row can match the conditions".to_owned(),
        Strategy::Points => "look-up of single keys of the ring".to_owned(),
        Strategy::Alone => "a pass over the blocks for this query alone".to_owned(),
        Strategy::Group { equal, range, queries } => {
            let equal: Vec<&str> = equal.iter().map(name).collect();
            let range = range.as_ref().map(|column| format!(", range {}", name(column))).unwrap_or_default();
            format!(
                "one pass over the blocks for {queries} queries that test the same columns ({}{range})",
                equal.join(", ")
            )
        }
    };
    let filter = if *evaluated { ", the rest of the filter evaluated row by row" } else { "" };
    vec![
        format!("  On {replica}: {rows} rows at epoch {}, in a batch of {batch}", epoch.0),
        format!("    Strategy: {strategy}"),
        format!("    Conditions: {conditions} decided by column codes{filter}"),
        format!("    Blocks: {visited} of {blocks} looked at, {} pruned", blocks.saturating_sub(*visited)),
        format!("    Waited: {} ms, scanned: {} ms", milliseconds(*waited), milliseconds(*took)),
    ]
}
