//! The result: the strongest level that holds, and the anomalies that refute the levels above.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// An isolation level. Each level promises everything that the levels before it promise, and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IsolationLevel {
    /// Writes of transactions do not interleave: no G0.
    ReadUncommitted,
    /// Reads see final values of committed transactions: also no G1.
    ReadCommitted,
    /// Reads see one snapshot, and if two transactions replace the same version, one of them fails: also no
    /// G-single, lost update or internal anomaly.
    SnapshotIsolation,
    /// Some order of the transactions explains all reads: also no cycle, unless the cycle needs the order of
    /// a session or of time.
    Serializable,
    /// Some order that explains all reads also agrees with real time.
    StrictSerializable,
}

impl IsolationLevel {
    /// All levels, the weakest first.
    pub const ALL: [Self; 5] = [
        Self::ReadUncommitted,
        Self::ReadCommitted,
        Self::SnapshotIsolation,
        Self::Serializable,
        Self::StrictSerializable,
    ];

    /// Returns the level's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadUncommitted => "read-uncommitted",
            Self::ReadCommitted => "read-committed",
            Self::SnapshotIsolation => "snapshot",
            Self::Serializable => "serializable",
            Self::StrictSerializable => "strict",
        }
    }

    /// Returns the next weaker level, if there is one.
    pub fn weaker(self) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|level| *level < self)
    }
}

impl fmt::Display for IsolationLevel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::ReadUncommitted => "read uncommitted",
            Self::ReadCommitted => "read committed",
            Self::SnapshotIsolation => "snapshot isolation",
            Self::Serializable => "serializable",
            Self::StrictSerializable => "strict serializable",
        })
    }
}

impl FromStr for IsolationLevel {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|level| level.name() == name).ok_or_else(|| {
            let names = "read-uncommitted, read-committed, snapshot, serializable or strict";
            format!("expected {names}, found {name:?}")
        })
    }
}

impl Serialize for IsolationLevel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A kind of violation. The order is that of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anomaly {
    /// A list holds an element twice.
    DuplicateElement,
    /// A cycle of writes alone.
    G0,
    /// A read of a value that a failed transaction wrote.
    G1a,
    /// A read of a value that the writing transaction itself replaced later.
    G1b,
    /// A cycle of writes, and of at least one read of a written value.
    G1c,
    /// A committed write that replaced or followed a write of a failed transaction.
    DirtyUpdate,
    /// Two reads of a list, of which neither continues the other.
    IncompatibleOrder,
    /// A read of a value that nobody wrote.
    UnwrittenValue,
    /// A transaction that does not see its own earlier steps, or sees a later step of its own.
    Internal,
    /// Two transactions that read the same version of a key and both replaced it.
    LostUpdate,
    /// A cycle with exactly one anti-dependency.
    GSingle,
    /// A cycle with several anti-dependencies, no two of them next to each other.
    GNonadjacent,
    /// A cycle with several anti-dependencies.
    G2Item,
    /// A read that the writes at earlier positions do not explain.
    WrongAtPosition,
    /// A cycle as in `G0` that needs the order in which a client worked.
    G0Session,
    /// A cycle as in `G1c` that needs the order in which a client worked.
    G1cSession,
    /// A cycle as in `GSingle` that needs the order in which a client worked.
    GSingleSession,
    /// A cycle as in `G2Item` that needs the order in which a client worked.
    G2ItemSession,
    /// A cycle as in `G0` that needs the order of time.
    G0Time,
    /// A cycle as in `G1c` that needs the order of time.
    G1cTime,
    /// A cycle as in `GSingle` that needs the order of time.
    GSingleTime,
    /// A cycle as in `G2Item` that needs the order of time.
    G2ItemTime,
    /// A transaction that ended before another began, but has the later position.
    PositionAgainstTime,
}

impl Anomaly {
    /// Returns the anomaly's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::DuplicateElement => "duplicate-element",
            Self::G0 => "G0",
            Self::G1a => "G1a",
            Self::G1b => "G1b",
            Self::G1c => "G1c",
            Self::DirtyUpdate => "dirty-update",
            Self::IncompatibleOrder => "incompatible-order",
            Self::UnwrittenValue => "unwritten-value",
            Self::Internal => "internal",
            Self::LostUpdate => "lost-update",
            Self::GSingle => "G-single",
            Self::GNonadjacent => "G-nonadjacent",
            Self::G2Item => "G2-item",
            Self::WrongAtPosition => "wrong-at-position",
            Self::G0Session => "G0-session",
            Self::G1cSession => "G1c-session",
            Self::GSingleSession => "G-single-session",
            Self::G2ItemSession => "G2-item-session",
            Self::G0Time => "G0-realtime",
            Self::G1cTime => "G1c-realtime",
            Self::GSingleTime => "G-single-realtime",
            Self::G2ItemTime => "G2-item-realtime",
            Self::PositionAgainstTime => "position-against-time",
        }
    }

    /// Returns the weakest level that the anomaly refutes.
    pub fn refutes(self) -> IsolationLevel {
        match self {
            Self::DuplicateElement | Self::G0 => IsolationLevel::ReadUncommitted,
            Self::G1a
            | Self::G1b
            | Self::G1c
            | Self::DirtyUpdate
            | Self::IncompatibleOrder
            | Self::UnwrittenValue => IsolationLevel::ReadCommitted,
            Self::Internal | Self::LostUpdate | Self::GSingle | Self::GNonadjacent => {
                IsolationLevel::SnapshotIsolation
            }
            Self::G2Item | Self::WrongAtPosition => IsolationLevel::Serializable,
            Self::G0Session
            | Self::G1cSession
            | Self::GSingleSession
            | Self::G2ItemSession
            | Self::G0Time
            | Self::G1cTime
            | Self::GSingleTime
            | Self::G2ItemTime
            | Self::PositionAgainstTime => IsolationLevel::StrictSerializable,
        }
    }
}

impl Serialize for Anomaly {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// An anomaly that was found, with one example.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AnomalyReport {
    /// The kind of anomaly.
    #[serde(rename = "name")]
    pub anomaly: Anomaly,
    /// The weakest level that the anomaly refutes.
    pub refutes: IsolationLevel,
    /// Number of cases that were found. For a cycle it is 1, because the judge does not count cycles.
    pub count: u64,
    /// The transactions of the example, such as `T3 of client 2: append x 1, read y [4]`.
    pub transactions: Vec<String>,
    /// Sentences that say why the example is an anomaly. For a cycle, each sentence explains one edge.
    pub because: Vec<String>,
}

/// The result for a history of transactions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TransactionReport {
    /// Number of transactions that took effect or may have taken effect.
    pub transactions: u64,
    /// Number of keys.
    pub keys: u64,
    /// The strongest level that no anomaly refutes, or `None` if even the weakest level is refuted.
    pub level: Option<IsolationLevel>,
    /// The anomalies, at most one of each kind.
    pub anomalies: Vec<AnomalyReport>,
}

impl TransactionReport {
    /// Derives the level from the anomalies.
    pub(super) fn new(transactions: u64, keys: u64, mut anomalies: Vec<AnomalyReport>) -> Self {
        anomalies.sort_by_key(|report| (report.refutes, report.anomaly));
        let level = match anomalies.first() {
            // A wrong read at a position says nothing about weaker levels, so no level is reported.
            Some(worst) if worst.anomaly == Anomaly::WrongAtPosition => None,
            Some(worst) => worst.refutes.weaker(),
            None => Some(IsolationLevel::StrictSerializable),
        };
        Self { transactions, keys, level, anomalies }
    }

    /// Whether no anomaly was found that refutes `level`.
    pub fn holds(&self, level: IsolationLevel) -> bool {
        self.level.is_some_and(|strongest| strongest >= level)
    }

    /// Whether an anomaly of this kind was found.
    pub fn has(&self, anomaly: Anomaly) -> bool {
        self.anomalies.iter().any(|report| report.anomaly == anomaly)
    }
}

impl fmt::Display for TransactionReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = self.level.map_or("none".into(), |level| level.to_string());
        writeln!(out, "{} transactions on {} keys", self.transactions, self.keys)?;
        writeln!(out, "strongest level that holds: {level}")?;
        for AnomalyReport { anomaly, refutes, count, transactions, because } in &self.anomalies {
            let times = if *count > 1 { format!(", {count} cases; the first") } else { String::new() };
            writeln!(out, "\n{}: not {refutes}{times}", anomaly.name())?;
            for transaction in transactions {
                writeln!(out, "  {transaction}")?;
            }
            for sentence in because {
                writeln!(out, "  - {sentence}")?;
            }
        }
        Ok(())
    }
}
