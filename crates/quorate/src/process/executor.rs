//! The executor of a storage process's tasks, as the protocol thread sees it.

use std::{any::Any, sync::Arc};

use quorate_protocol::rubberband::{Task, TaskResult};
use quorate_runtime::{StartError, metrics::Metrics};
use thiserror::Error;

use super::shared::ProcessShared;
use crate::end::EndReporter;

/// An executor of tasks, on threads of its own. It sends the results of a batch to the process as a command.
/// The executor may execute a short batch on the calling thread, and return the results from the call.
pub(crate) trait TaskExecutor: Any + Send + Sync {
    /// Takes a batch of tasks, once the results of the previous batch have come. Returns the results if it
    /// executed the batch in this call. Never blocks.
    fn execute(&self, tasks: Vec<Task>) -> Result<Option<Vec<TaskResult>>, ExecutorEnded>;

    /// Withdraws the task with this index from the last batch, because nobody waits for its result.
    fn withdraw(&self, task: usize);
}

/// The executor has ended, and takes no more tasks.
#[derive(Clone, Copy, Debug, Error)]
#[error("the engine's thread has ended and takes no work")]
pub(crate) struct ExecutorEnded;

/// A function that starts the executor of a process. If the executor cannot go on, it reports the reason to
/// the `EndReporter`.
pub(crate) type StartExecutor =
    Box<dyn FnOnce(&Metrics, Arc<ProcessShared>, EndReporter) -> Result<Arc<dyn TaskExecutor>, StartError>>;
