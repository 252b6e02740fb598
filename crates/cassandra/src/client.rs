//! Reads and writes of a client, and their failures.

use std::sync::Arc;

use bytes::Bytes;
use quorate::maps::{Failure, Level, Store};
use scylla::{
    errors::{DbError, ExecutionError, RequestAttemptError},
    statement::{Consistency, prepared::PreparedStatement},
};

use crate::connections::SharedCluster;

/// A client of a table. Its operations block. All clients of a cluster share its connections.
pub struct TableClient {
    shared: Arc<SharedCluster>,
    read: PreparedStatement,
    write: PreparedStatement,
}

impl TableClient {
    pub(crate) fn new(
        shared: Arc<SharedCluster>,
        read: PreparedStatement,
        write: PreparedStatement,
    ) -> TableClient {
        TableClient { shared, read, write }
    }
}

impl Store for TableClient {
    fn read(&mut self, key: &[u8], level: Level) -> Result<Option<Bytes>, Failure> {
        self.read.set_consistency(consistency(level));
        let SharedCluster { session, runtime, .. } = &*self.shared;
        // A read writes nothing, so a failed read is always `NotDone`.
        let answer = runtime.block_on(session.execute_unpaged(&self.read, (key,))).map_err(not_done)?;
        let rows = answer.into_rows_result().map_err(not_done)?;
        let row = rows.maybe_first_row::<(Option<&[u8]>,)>().map_err(not_done)?;
        Ok(row.and_then(|(value,)| value).map(Bytes::copy_from_slice))
    }

    fn write(&mut self, key: &[u8], value: &[u8], level: Level) -> Result<(), Failure> {
        self.write.set_consistency(consistency(level));
        let SharedCluster { session, runtime, .. } = &*self.shared;
        let answer = runtime.block_on(session.execute_unpaged(&self.write, (key, value)));
        answer.map(|_| ()).map_err(|error| failure_of_write(&error))
    }
}

/// Returns Cassandra's name of a level.
fn consistency(level: Level) -> Consistency {
    match level {
        Level::One => Consistency::One,
        Level::Two => Consistency::Two,
        Level::Quorum => Consistency::Quorum,
        Level::All => Consistency::All,
        Level::LocalQuorum => Consistency::LocalQuorum,
        Level::EachQuorum => Consistency::EachQuorum,
    }
}

fn not_done(error: impl ToString) -> Failure {
    Failure::NotDone(error.to_string())
}

/// Returns the failure of a write that ended in this error. Only an error that arose before any replica was
/// asked proves that nothing was written. A timeout, a failed replica and a broken connection prove nothing.
/// An overloaded coordinator proves nothing, either, because it may have asked some replicas already.
fn failure_of_write(error: &ExecutionError) -> Failure {
    if was_not_sent(error) { not_done(error) } else { Failure::MaybeApplied(error.to_string()) }
}

fn was_not_sent(error: &ExecutionError) -> bool {
    match error {
        ExecutionError::BadQuery(_)
        | ExecutionError::EmptyPlan
        | ExecutionError::PrepareError(_)
        | ExecutionError::ConnectionPoolError(_)
        | ExecutionError::UseKeyspaceError(_) => true,
        ExecutionError::LastAttemptError(attempt) => match attempt {
            RequestAttemptError::SerializationError(_)
            | RequestAttemptError::CqlRequestSerialization(_)
            | RequestAttemptError::UnableToAllocStreamId => true,
            RequestAttemptError::DbError(error, _) => matches!(
                error,
                DbError::Unavailable { .. }
                    | DbError::IsBootstrapping
                    | DbError::SyntaxError
                    | DbError::Invalid
                    | DbError::AuthenticationError
                    | DbError::Unauthorized
                    | DbError::ConfigError
                    | DbError::Unprepared { .. }
                    | DbError::ProtocolError
            ),
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use scylla::errors::{ConnectionPoolError, WriteType};

    use super::*;

    /// Converts the error with which a write ended to the write's failure.
    fn failure(error: impl Into<ExecutionError>) -> Failure {
        failure_of_write(&error.into())
    }

    fn answered(error: DbError) -> ExecutionError {
        RequestAttemptError::DbError(error, "the reason".to_owned()).into()
    }

    #[test]
    fn a_write_refused_before_any_replica_is_asked_is_not_done() {
        let refused = [
            answered(DbError::Unavailable { consistency: Consistency::Quorum, required: 2, alive: 1 }),
            answered(DbError::Invalid),
            answered(DbError::IsBootstrapping),
            ConnectionPoolError::Initializing.into(),
            ExecutionError::EmptyPlan,
            RequestAttemptError::UnableToAllocStreamId.into(),
        ];
        for error in refused {
            assert!(matches!(failure(error.clone()), Failure::NotDone(_)), "{error}");
        }
    }

    #[test]
    fn a_write_with_an_unknown_outcome_is_maybe_applied() {
        let timeout = DbError::WriteTimeout {
            consistency: Consistency::Quorum,
            received: 1,
            required: 2,
            write_type: WriteType::Simple,
        };
        let unknown = [
            answered(timeout),
            answered(DbError::Overloaded),
            answered(DbError::ServerError),
            answered(DbError::Other(0x1700)),
            ExecutionError::RequestTimeout(Duration::from_secs(10)),
            RequestAttemptError::NonfinishedPagingState.into(),
        ];
        for error in unknown {
            assert!(matches!(failure(error.clone()), Failure::MaybeApplied(_)), "{error}");
        }
    }
}
