//! The executor of a storage process's tasks, as the protocol thread sees it.

use std::{any::Any, sync::Arc};

use quorate_protocol::rubberband::{Task, TaskResult};
use quorate_runtime::{StartError, metrics::Metrics};
use thiserror::Error;

use super::shared::ProcessShared;
use crate::end::EndReporter;

/// An executor of tasks, on threads of its own. It returns the results of a batch as a command to the
/// process. It may execute a short batch on the calling thread, and then returns the results at once.
pub(crate) trait TaskExecutor: Any + Send + Sync {
    /// Takes a batch of tasks, after the results of the batch before have come. Returns the results if the
    /// batch was executed at once. Never blocks.
    fn execute(&self, tasks: Vec<Task>) -> Result<Option<Vec<TaskResult>>, ExecutorEnded>;

    /// Withdraws the task with this index from the last batch, because nobody waits for its result.
    fn withdraw(&self, task: usize);
}

/// The executor takes no more tasks.
#[derive(Clone, Copy, Debug, Error)]
#[error("the engine's thread has ended and takes no work")]
pub(crate) struct ExecutorEnded;

/// Starts the executor of a process. If the executor cannot go on, it sends the reason.
pub(crate) type StartExecutor =
    Box<dyn FnOnce(&Metrics, Arc<ProcessShared>, EndReporter) -> Result<Arc<dyn TaskExecutor>, StartError>>;
