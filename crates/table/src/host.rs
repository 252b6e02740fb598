//! What whoever runs an engine lends it while a batch is done. The engine itself waits for nobody and knows no threads.

/// The host of an engine.
pub trait Host: Sync {
    /// The jobs of the batch whose askers have withdrawn, in the order in which they did, without the first `seen`.
    /// Nobody wants their answers; those of reads are given up.
    fn withdrawn(&self, _seen: usize) -> Vec<usize> {
        Vec::new()
    }
}

/// A host in whose batches everybody waits for the answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Host for Alone {}
