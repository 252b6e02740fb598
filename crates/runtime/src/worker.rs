//! A thread for work that would block the protocol thread: scans, checkpoints, user code.
//!
//! Protocols emit *execute* and receive the result as a command (design: floors 0 and 1 never call the
//! engine). A [`Worker`] executes the work in between. The host submits jobs without blocking. The worker's
//! thread passes *all* waiting jobs to its closure as one batch, so that one shared scan serves them all. The
//! closure sends the results back, usually through a `Handle`'s `command`. That call may block while the
//! command queue is full. But the protocol thread drains that queue and never waits for a worker, so the two
//! cannot wait for each other.

use std::{io, thread};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use thiserror::Error;

/// Submits jobs to a thread of its own. Dropping it waits until the thread has finished all jobs.
#[derive(Debug)]
pub struct Worker<J> {
    jobs: Option<Sender<J>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// The reason why a job was not queued, together with the job.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum Refused<J> {
    /// The queue is full: the code that limits the number of jobs (credits, rule S7) let too many through.
    #[error("the queue of the worker thread is full")]
    Full(J),
    /// The worker's closure panicked. Its state is lost, so this process should end.
    #[error("the worker thread has ended, so this process should end")]
    Gone(J),
}

impl<J: Send + 'static> Worker<J> {
    /// Starts a thread that calls `work` with every batch of jobs, in the order of submission. At most
    /// `bound` jobs wait.
    pub fn start(
        name: &str,
        bound: usize,
        mut work: impl FnMut(Vec<J>) + Send + 'static,
    ) -> io::Result<Worker<J>> {
        let (jobs, waiting): (Sender<J>, Receiver<J>) = bounded(bound);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Ok(first) = waiting.recv() {
                let mut batch = vec![first];
                // A batch is bounded even if jobs arrive faster than they are taken.
                batch.extend(waiting.try_iter().take(bound));
                work(batch);
            }
        })?;
        Ok(Worker { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Queues a job. Never blocks.
    pub fn submit(&self, job: J) -> Result<(), Refused<J>> {
        let jobs = self.jobs.as_ref().expect("the queue of jobs is taken only in drop");
        jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(job) => Refused::Full(job),
            TrySendError::Disconnected(job) => Refused::Gone(job),
        })
    }
}

impl<J> Drop for Worker<J> {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // A panicked closure has printed its own panic, and later submitters get `Gone`.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_worker_takes_waiting_work_as_one_batch_and_finishes_it_when_dropped() {
        let (started, entered) = mpsc::channel();
        let (open, gate) = mpsc::channel::<()>();
        let (done, batches) = mpsc::channel();
        let worker = Worker::start("worker", 4, move |batch: Vec<u32>| {
            started.send(()).unwrap();
            let _ = gate.recv();
            done.send(batch).unwrap();
        })
        .unwrap();

        worker.submit(0).unwrap();
        entered.recv().unwrap();
        for job in 1..=4 {
            worker.submit(job).unwrap();
        }
        assert_eq!(worker.submit(5), Err(Refused::Full(5)));
        drop(open);
        drop(worker);
        assert_eq!(batches.iter().collect::<Vec<_>>(), [vec![0], vec![1, 2, 3, 4]]);
    }

    #[test]
    fn a_worker_that_panicked_is_gone() {
        let worker = Worker::start("worker", 4, |_: Vec<u32>| panic!("as the test wants")).unwrap();
        worker.submit(1).unwrap();
        while !worker.thread.as_ref().unwrap().is_finished() {
            thread::yield_now();
        }
        assert_eq!(worker.submit(2), Err(Refused::Gone(2)));
    }
}
