//! The judgement of the whole run: nothing acknowledged is lost, nothing is there twice, histories are
//! atomic.

use std::collections::BTreeMap;

use quorate_history::{self as history, History, SessionViolations, Verdict};
use quorate_table::value::Value;

use super::{
    AccountWorkload, RowOutcome,
    request_log::{COUNTERS_AT, ENTRIES_AT},
};
use quorate_world::Violation;

impl AccountWorkload {
    /// Judges the whole run.
    pub(in super::super) fn judge(&mut self) -> Result<(), Violation> {
        let last = std::mem::take(&mut self.last);
        let rows = |table: usize| last.get(&table).map(Vec::as_slice).unwrap_or_default();
        self.judge_book(rows(ENTRIES_AT), rows(COUNTERS_AT))?;
        let last: Vec<i64> = rows(LOG_AT).iter().filter_map(|row| row[0].as_integer()).collect();
        let mut times: BTreeMap<i64, u64> = BTreeMap::new();
        for row in &last {
            *times.entry(*row).or_default() += 1;
        }
        for (row, count) in &times {
            match self.logged.get(row) {
                None => {
                    return Err(Violation::new(
                        "valid",
                        format!("the log has row {row}, which no client inserted"),
                    ));
                }
                Some(RowOutcome::Refused) => {
                    return Err(Violation::new(
                        "durable",
                        format!("row {row} of the log was refused, but the table has this row"),
                    ));
                }
                Some(_) if *count > 1 => {
                    return Err(Violation::new(
                        "once",
                        format!("row {row} of the log was inserted once, but the table has it {count} times"),
                    ));
                }
                Some(_) => {}
            }
        }
        let gone = self.logged.iter().find(|(row, fate)| match fate {
            RowOutcome::Acknowledged(asked) => {
                let key = self.schemas[1].partition.key_of(&Value::Int8(**row));
                !times.contains_key(row) && self.lost_at(key).is_none_or(|lost| lost < *asked)
            }
            _ => false,
        });
        if let Some((row, _)) = gone {
            return Err(Violation::new(
                "durable",
                format!("row {row} of the log was acknowledged, but the table does not have this row"),
            ));
        }
        self.judge_histories()
    }

    /// Judges the reads and writes of each account, however the run ended.
    pub(in super::super) fn judge_histories(&mut self) -> Result<(), Violation> {
        for (_, pending) in std::mem::take(&mut self.pending) {
            self.abandon(&pending);
        }
        self.judge_conversations()?;
        let history: History = std::mem::take(&mut self.operations).into_iter().collect();
        let report = history::check(&history);
        match report.verdict {
            Verdict::Atomic
                if report.measures.is_some_and(|it| it.sessions != SessionViolations::default()) =>
            {
                Err(Violation::new("session", format!("{report:?}")))
            }
            Verdict::Atomic => Ok(()),
            verdict => Err(Violation::new(
                "atomic",
                format!("the history of the accounts is {verdict:?}: {report:?}"),
            )),
        }
    }
}

/// The index of the schema of the log.
const LOG_AT: usize = 1;
