//! The jobs that a pass gives to the engine, and the rows of their answers.

use anyhow::{Result, bail};
use quorate_table::{
    engine::{Answer, Epoch, Job},
    expr::Expr,
    operation::Operation,
    schema::KeyRange,
    value::Row,
};

use super::super::tickets;

pub(super) fn job(epoch: u64, operation: Operation) -> Job {
    Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false }
}

pub(super) fn jobs_of(epoch: u64, filters: &[(usize, Expr)], all_columns: bool) -> Vec<Job> {
    let select = |(_, filter): &(usize, Expr)| tickets::select(filter.clone(), all_columns);
    filters.iter().map(|filter| job(epoch, Operation::Select(select(filter)))).collect()
}

pub(super) fn rows_of(answer: &Answer) -> Result<&[Row]> {
    match answer {
        Answer::Rows(rows) => Ok(rows),
        other => bail!("the engine answered a read with {other:?} instead of rows"),
    }
}
