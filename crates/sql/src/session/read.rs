//! Executes queries: the ranges get a select with its arguments, and the gateway finishes their answers.

use std::sync::{Mutex, PoisonError};

use quorate_table::{
    expr::{Aggregate, Expr},
    merge,
    operation::{Operation, Output, Select},
    value::{Row, Value},
};

use super::{Session, Status, steps::Origin};
use crate::{
    budget,
    catalog::CatalogContext,
    error::{Result, SqlError, code},
    fault,
    finish::{RowWindow, Rows},
    statement::{
        fold,
        parameters::Arguments,
        select::{Finish, Query, Source},
        settings,
    },
};

impl Session {
    pub(super) async fn query(&mut self, query: &Query, values: &[Value]) -> Result<Rows> {
        let session = |value| self.session_value(value);
        let arguments = Arguments { values, session: &session };
        let window = window(&query.finish, &arguments)?;
        match &query.source {
            Source::Constants { rows, filter } => {
                let mut computed = Vec::with_capacity(rows.len());
                let mut hold = self.hold();
                if match filter {
                    None => true,
                    Some(filter) => fold::value(filter, &arguments)? == Value::Bool(true),
                } {
                    for row in rows {
                        let row =
                            row.iter().map(|expr| fold::value(expr, &arguments)).collect::<Result<Row>>()?;
                        hold.grow(budget::weight(&row))?;
                        computed.push(row);
                    }
                }
                Ok(Rows::ready(computed, &query.finish.order, window).holding(hold))
            }
            Source::Catalog(plan) => {
                let assigned = Mutex::new(Vec::new());
                let assign = |name: &str, value: Option<&str>, local: bool| -> Result<String> {
                    let name = settings::name(&[name.to_owned()])?;
                    let value = value.map(|value| settings::check(&name, value)).transpose()?;
                    let told = value.clone().or_else(|| Some(settings::find(&name)?.default.to_owned()));
                    assigned.lock().unwrap_or_else(PoisonError::into_inner).push((name, value, local));
                    Ok(told.unwrap_or_default())
                };
                let context = CatalogContext {
                    catalog: self.backend.catalog(),
                    user: &self.user,
                    database: &self.database,
                    setting: &|name| self.known(name),
                    assign: &assign,
                    arguments: &arguments,
                };
                let (rows, hold) = plan.rows(&context, self.hold())?;
                let assigned = assigned.into_inner().unwrap_or_else(PoisonError::into_inner);
                for (name, value, local) in assigned {
                    // Outside a block, a setting that lasts until the end of the block has no effect.
                    if !local || self.status() == Status::Block {
                        self.set(&name, value, local)?;
                    }
                }
                Ok(Rows::plain(rows).holding(hold))
            }
            Source::Table { table, select, lock: Some(lock), .. } => {
                let select = instantiate(select, &window, &query.finish, &arguments);
                self.locking_read(table, select, window, *lock).await
            }
            Source::Table { table, select, template, lock: None } => {
                let finish = query.finish.groups.as_ref().map(|groups| merge::Finish {
                    input: merge::Input::Groups {
                        keys: groups.keys,
                        aggregates: groups
                            .aggregates
                            .iter()
                            .map(|aggregate| instantiate_aggregate(aggregate, &arguments))
                            .collect(),
                        having: groups.having.as_ref().map(|having| fold::substitute(having, &arguments)),
                        columns: groups
                            .columns
                            .iter()
                            .map(|column| fold::substitute(column, &arguments))
                            .collect(),
                    },
                    distinct: window.distinct,
                    order: query.finish.order.clone(),
                    offset: window.offset,
                    limit: window.limit,
                    visible: window.visible,
                });
                let filled = || instantiate(select, &window, &query.finish, &arguments);
                let answers = match (self.compared_read(table, false, filled)?, template) {
                    (Some((select, compared)), _) => {
                        self.attempt(Operation::Select(select), compared, table, Origin::Read).await?
                    }
                    (None, Some(template)) => {
                        let operation = template.fill(&arguments);
                        let read = self.backend.read_encoded(self.strength(), select.table, operation);
                        read.await.map_err(fault::read_error)?
                    }
                    (None, None) => {
                        let select = filled();
                        self.backend.read(self.strength(), &select).await.map_err(fault::read_error)?
                    }
                };
                Ok(match finish {
                    Some(finish) => Rows::grouped(answers, finish, self.hold()),
                    None => Rows::merged(answers, query.finish.order.clone(), window, self.hold()),
                })
            }
        }
    }
}

pub(super) fn window(finish: &Finish, arguments: &Arguments<'_>) -> Result<RowWindow> {
    let count = |expr: &Option<Expr>, state: &'static str, clause: &str| -> Result<Option<u64>> {
        let Some(expr) = expr else { return Ok(None) };
        match fold::value(expr, arguments)? {
            Value::Int8(n) => match u64::try_from(n) {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(SqlError::new(state, format!("{clause} must not be negative"))),
            },
            _ => Ok(None),
        }
    };
    Ok(RowWindow {
        distinct: finish.distinct,
        offset: count(&finish.offset, code::INVALID_ROW_COUNT_IN_OFFSET, "OFFSET")?.unwrap_or(0),
        limit: count(&finish.limit, code::INVALID_ROW_COUNT_IN_LIMIT, "LIMIT")?,
        visible: finish.visible,
    })
}

fn instantiate_aggregate(aggregate: &Aggregate, arguments: &Arguments<'_>) -> Aggregate {
    Aggregate {
        function: aggregate.function,
        argument: aggregate.argument.as_ref().map(|argument| fold::substitute(argument, arguments)),
        distinct: aggregate.distinct,
    }
}

/// Returns the select for the ranges, with its arguments. The ranges get as much of the limit as each can
/// apply alone.
pub(super) fn instantiate(
    select: &Select,
    window: &RowWindow,
    finish: &Finish,
    arguments: &Arguments<'_>,
) -> Select {
    let many = |exprs: &[Expr]| exprs.iter().map(|expr| fold::substitute(expr, arguments)).collect();
    let output = match &select.output {
        Output::Rows { columns, distinct, .. } => Output::Rows {
            columns: many(columns),
            order: finish.order.clone(),
            limit: window.limit.map(|limit| limit.saturating_add(window.offset)),
            distinct: *distinct,
        },
        Output::Groups { keys, aggregates } => Output::Groups {
            keys: many(keys),
            aggregates: aggregates
                .iter()
                .map(|aggregate| instantiate_aggregate(aggregate, arguments))
                .collect(),
        },
    };
    let filter = select.filter.as_ref().map(|filter| fold::substitute(filter, arguments));
    Select { table: select.table, filter, output }
}
