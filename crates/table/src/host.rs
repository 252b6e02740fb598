//! What whoever runs an engine lends it while a batch is done: word of who waits no more, and threads. The engine itself
//! waits for nobody and starts none. What it answers does not depend on what it is lent.

/// The host of an engine.
pub trait Host: Sync {
    /// The jobs of the batch whose askers have withdrawn, in the order in which they did, without the first `seen`.
    /// Nobody wants their answers; those of reads are given up.
    fn withdrawn(&self, _seen: usize) -> Vec<usize> {
        Vec::new()
    }

    /// A read has failed because the engine panicked at it.
    fn panicked(&self) {}

    /// How many threads [`Host::each`] has.
    fn threads(&self) -> usize {
        1
    }

    /// How much a thread must have to do to be worth waking, in looks: those of one query at a block of 4,096 rows by
    /// itself, which take most of a microsecond each. Where others use the machine a thread that is woken may come late by
    /// milliseconds, and the pass waits for it: what takes no longer than a fraction of one is left to those who are awake.
    fn looks_min(&self) -> usize {
        512
    }

    /// Has `work` done for each number below `count`, once, by any thread and in any order, and waits for that.
    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(work);
    }
}

/// A host in whose batches everybody waits for the answer, on one thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Host for Alone {}
