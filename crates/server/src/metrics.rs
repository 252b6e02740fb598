//! What a gateway counts, beside what every process does.
//!
//! Names follow Prometheus' habit: `quorate_sql_` in front, `_total` behind what only rises, seconds and bytes as units.

use std::time::Instant;

use quorate_runtime::metrics::{Counter, EncodeLabelSet, Family, Gauge, Histogram, Metrics as Registry};
use quorate_sql::{
    error::code,
    statement::{self, write::Action},
};

/// The counters of the SQL door.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Connections begun.
    pub connections: Counter,
    /// Connections open now.
    pub sessions: Gauge,
    /// Rows sent.
    pub rows: Counter,
    /// Bytes sent.
    pub bytes: Counter,
    /// Connections ended because what came was no message.
    pub garbage: Counter,
    statements: Family<Ended, Counter>,
    /// Those of statements that succeed, which are most, by kind as in [`KINDS`].
    successes: Vec<(Counter, Histogram)>,
}

/// How a statement ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    kind: &'static str,
    /// The class of its SQLSTATE: `00` is success.
    class: String,
}

/// What a statement is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

/// A statement that runs.
#[derive(Debug)]
pub(crate) struct Running {
    kind: &'static str,
    since: Instant,
}

impl Metrics {
    /// Counters that this registry shows.
    pub fn new(registry: &Registry) -> Metrics {
        let histogram: fn() -> Histogram = || Histogram::new(BOUNDS);
        let seconds: Family<Kind, Histogram> = Family::new_with_constructor(histogram);
        let statements: Family<Ended, Counter> = Family::default();
        let success = |kind: &&'static str| {
            let ended = Ended { kind, class: code::SUCCESSFUL_COMPLETION[..2].to_owned() };
            (statements.get_or_create(&ended).clone(), seconds.get_or_create(&Kind { kind }).clone())
        };
        let successes = KINDS.iter().map(success).collect();
        registry.register(
            "sql_statement_seconds",
            "From the execution of a statement to its last row or error",
            seconds,
        );
        Metrics {
            connections: registry.counter("sql_connections", "Connections begun"),
            sessions: registry.gauge("sql_sessions", "Connections open now"),
            rows: registry.counter("sql_rows_sent", "Rows sent to clients"),
            bytes: registry.counter("sql_bytes_sent", "Bytes sent to clients"),
            garbage: registry.counter("sql_garbage", "Connections ended by what is no message"),
            statements: registry.register(
                "sql_statements",
                "Statements ended, by kind and class of SQLSTATE (00 is success)",
                statements,
            ),
            successes,
        }
    }

    /// A statement ends with this SQLSTATE; it was not even executed where nothing ran.
    pub(crate) fn ended(&self, running: Option<Running>, sqlstate: &str) {
        let kind = running.as_ref().map_or("invalid", |running| running.kind);
        let known = KINDS.iter().position(|known| *known == kind).map(|known| &self.successes[known]);
        match known.filter(|_| sqlstate == code::SUCCESSFUL_COMPLETION) {
            Some((statements, _)) => statements.inc(),
            None => {
                let class = sqlstate.get(..2).unwrap_or(sqlstate).to_owned();
                self.statements.get_or_create(&Ended { kind, class }).inc()
            }
        };
        if let (Some((_, seconds)), Some(running)) = (known, running) {
            seconds.observe(running.since.elapsed().as_secs_f64());
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new(&Registry::default())
    }
}

impl Running {
    /// A statement of this kind begins now; none is an empty one.
    pub(crate) fn begin(statement: Option<&statement::Statement>) -> Running {
        Running { kind: statement.map_or("empty", kind), since: Instant::now() }
    }
}

/// What statements are.
const KINDS: [&str; 11] = [
    "select",
    "insert",
    "update",
    "delete",
    "definition",
    "copy",
    "explain",
    "transaction",
    "execute",
    "setting",
    "empty",
];

fn kind(statement: &statement::Statement) -> &'static str {
    match statement {
        statement::Statement::Query(_) => "select",
        statement::Statement::Write(write) => match write.action {
            Action::Insert { .. } => "insert",
            Action::Update { .. } => "update",
            Action::Delete { .. } | Action::Truncate => "delete",
        },
        statement::Statement::CreateTable(_) | statement::Statement::DropTable(_) => "definition",
        statement::Statement::Copy(_) => "copy",
        statement::Statement::Explain { .. } => "explain",
        statement::Statement::Begin(_)
        | statement::Statement::SetTransaction { .. }
        | statement::Statement::Commit
        | statement::Statement::Rollback => "transaction",
        statement::Statement::Execute { .. } => "execute",
        _ => "setting",
    }
}

/// Upper bounds of the buckets, in seconds.
const BOUNDS: [f64; 14] =
    [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 2.0, 10.0];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn statements_are_told_by_kind_and_class() {
        let registry = Registry::default();
        let metrics = Metrics::new(&registry);
        metrics.ended(
            Some(Running { kind: "select", since: Instant::now() - Duration::from_millis(1) }),
            "00000",
        );
        metrics.ended(None, "42601");
        let text = registry.render();
        for line in [
            "quorate_sql_statements_total{kind=\"select\",class=\"00\"} 1",
            "quorate_sql_statements_total{kind=\"invalid\",class=\"42\"} 1",
            "quorate_sql_statement_seconds_count{kind=\"select\"} 1",
            "quorate_sql_statement_seconds_bucket{le=\"0.0005\",kind=\"select\"} 0",
        ] {
            assert!(text.lines().any(|present| present == line), "{line} not in:\n{text}");
        }
    }
}
