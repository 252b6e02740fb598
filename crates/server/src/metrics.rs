//! Metrics of a gateway, in addition to the metrics that every process has.
//!
//! Names follow Prometheus' conventions: the prefix `quorate_sql_`, the suffix `_total` for counters, seconds
//! and bytes as units.

use std::time::Instant;

use quorate_runtime::metrics::{Counter, EncodeLabelSet, Family, Gauge, Histogram, Metrics as Registry};
use quorate_sql::{
    error::code,
    statement::{self, action::Action},
};

/// The metrics of the SQL door.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Connections since the start.
    pub connections: Counter,
    /// Connections that are open now.
    pub sessions: Gauge,
    /// Rows sent to clients.
    pub rows: Counter,
    /// Bytes sent to clients.
    pub bytes: Counter,
    /// Connections that were closed because the client sent malformed bytes.
    pub malformed_connections: Counter,
    statements: Family<StatementLabels, Counter>,
    /// Counter and duration in seconds of successful statements, by kind, in the order of [`KINDS`]. Looked
    /// up once at the start, because most statements succeed.
    successes: Vec<(Counter, Histogram)>,
}

/// The outcome of a statement.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatementLabels {
    kind: &'static str,
    /// The class of the SQLSTATE, its first two characters. `00` is success.
    class: String,
}

/// The kind of a statement, one of [`KINDS`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

/// The kind of a statement that is being executed, and the time when its execution started.
#[derive(Debug)]
pub(crate) struct ExecutingStatement {
    kind: &'static str,
    since: Instant,
}

impl Metrics {
    /// Creates the metrics and adds them to `registry`.
    pub fn new(registry: &Registry) -> Metrics {
        let histogram: fn() -> Histogram = || Histogram::new(BOUNDS);
        let seconds: Family<KindLabel, Histogram> = Family::new_with_constructor(histogram);
        let statements: Family<StatementLabels, Counter> = Family::default();
        let success = |kind: &&'static str| {
            let ended = StatementLabels { kind, class: code::SUCCESSFUL_COMPLETION[..2].to_owned() };
            (statements.get_or_create(&ended).clone(), seconds.get_or_create(&KindLabel { kind }).clone())
        };
        let successes = KINDS.iter().map(success).collect();
        registry.register(
            "sql_statement_seconds",
            "Time from the start of a statement to its last row or error",
            seconds,
        );
        Metrics {
            connections: registry.counter("sql_connections", "Client connections accepted since the start"),
            sessions: registry.gauge("sql_sessions", "Client connections that are open now"),
            rows: registry.counter("sql_rows_sent", "Rows sent to clients"),
            bytes: registry.counter("sql_bytes_sent", "Bytes sent to clients"),
            malformed_connections: registry
                .counter("sql_garbage", "Client connections closed because the client sent malformed bytes"),
            statements: registry.register(
                "sql_statements",
                "Statements that ended, by kind and by class of SQLSTATE (00 is success)",
                statements,
            ),
            successes,
        }
    }

    /// Counts a statement that ended with this SQLSTATE. `running` is `None` if the statement was never
    /// executed, for example because its text did not parse.
    pub(crate) fn ended(&self, running: Option<ExecutingStatement>, sqlstate: &str) {
        let kind = running.as_ref().map_or("invalid", |running| running.kind);
        let known = KINDS.iter().position(|known| *known == kind).map(|known| &self.successes[known]);
        match known.filter(|_| sqlstate == code::SUCCESSFUL_COMPLETION) {
            Some((statements, _)) => statements.inc(),
            None => {
                let class = sqlstate.get(..2).unwrap_or(sqlstate).to_owned();
                self.statements.get_or_create(&StatementLabels { kind, class }).inc()
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

impl ExecutingStatement {
    /// Starts the clock of a statement. `None` is an empty statement.
    pub(crate) fn begin(statement: Option<&statement::Statement>) -> ExecutingStatement {
        ExecutingStatement { kind: statement.map_or("empty", kind), since: Instant::now() }
    }
}

/// The kinds of statements.
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
        definition if definition.is_definition() => "definition",
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

/// Upper bounds of the histogram's buckets, in seconds.
const BOUNDS: [f64; 14] =
    [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 2.0, 10.0];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn statements_are_counted_by_kind_and_sqlstate_class() {
        let registry = Registry::default();
        let metrics = Metrics::new(&registry);
        metrics.ended(
            Some(ExecutingStatement { kind: "select", since: Instant::now() - Duration::from_millis(1) }),
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
