//! The services that the host of an engine provides during a batch: news of withdrawn jobs, and threads. The
//! engine itself never waits and starts no threads. Its answers do not depend on these services.

/// The host of an engine.
pub trait Host: Sync {
    /// Returns the withdrawn jobs of the batch, in the order of their withdrawal, without the first `seen`.
    /// Their clients no longer wait for answers, so the engine drops the reads among them.
    fn withdrawn(&self, _seen: usize) -> Vec<usize> {
        Vec::new()
    }

    /// Reports that a read failed because the engine panicked.
    fn panicked(&self) {}

    /// Returns the number of threads that [`Host::each`] uses.
    fn threads(&self) -> usize {
        1
    }

    /// Returns the least work for which it is worth waking a thread, in looks. A look is one query at one
    /// block of 4,096 rows, and takes most of a microsecond. On a busy machine a woken thread may start
    /// milliseconds late, and the pass waits for it. So work that takes less than a fraction of a millisecond
    /// is left to the threads that are awake.
    fn looks_min(&self) -> usize {
        512
    }

    /// Calls `work` once for each number below `count`, on any thread and in any order, and returns after all
    /// calls.
    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(work);
    }
}

/// A host with one thread and without withdrawn jobs.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleThread;

impl Host for SingleThread {}
