//! Courtesy locks: blocks of one gateway wait for each other instead of failing.
//!
//! The cluster locks nothing. If several blocks change one row at the same time, all but one of them fail at
//! COMMIT, and have done their work in vain. So each gateway keeps a queue for each primary key that an open
//! block has written or locked. A block waits in the queue until the blocks before it have ended, but not for
//! long. Then it sees the row as those blocks left it.
//!
//! **Correctness never rests on these locks.** A block goes on without a lock if its wait is over, if it and
//! another block wait for each other, or if the gateway has too many locks. Blocks at other gateways do not
//! see the locks. With or without a lock, COMMIT compares the results of the block.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
};

use quorate_table::schema::TableId;
use tokio::sync::oneshot;

/// Maximum number of keys that are locked at a time. Beyond that, no further key is locked.
pub const LOCKS_MAX: usize = 65_536;

/// A row's table, and a hash of its primary key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockKey(pub TableId, pub u64);

/// The locks of a gateway's blocks.
#[derive(Debug, Default)]
pub struct Locks {
    blocks: AtomicU64,
    state: Mutex<LockState>,
}

#[derive(Debug, Default)]
struct LockState {
    /// The queues of locked keys; bounded by [`LOCKS_MAX`].
    queues: HashMap<LockKey, Queue>,
    /// The key that each waiting block waits for; bounded by the connections.
    waiting: HashMap<u64, LockKey>,
}

#[derive(Debug)]
struct Queue {
    holder: u64,
    /// The waiting blocks, in the order of their arrival; bounded by the connections.
    waiting: VecDeque<(u64, oneshot::Sender<()>)>,
}

/// The locks of one block. Dropping them releases them.
#[derive(Debug)]
pub struct BlockLocks {
    locks: Arc<Locks>,
    block: u64,
    /// The locked keys; bounded by [`LOCKS_MAX`].
    keys: Vec<LockKey>,
}

/// The outcome of a request for a lock.
enum Requested {
    /// The block holds the lock from now on.
    Taken,
    /// The block goes on without a new lock.
    Passed,
    /// The block has to wait for its turn.
    Queued(oneshot::Receiver<()>),
}

impl Locks {
    /// Returns the locks of a new block, which has none.
    pub fn of_block(self: &Arc<Self>) -> BlockLocks {
        let block = self.blocks.fetch_add(1, Ordering::Relaxed);
        BlockLocks { locks: self.clone(), block, keys: Vec::new() }
    }

    /// Returns the number of locked rows of a table.
    pub fn count(&self, table: TableId) -> usize {
        self.state().queues.keys().filter(|key| key.0 == table).count()
    }

    fn state(&self) -> MutexGuard<'_, LockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LockState {
    fn request(&mut self, block: u64, key: LockKey, waits: bool) -> Requested {
        let is_full = self.queues.len() >= LOCKS_MAX;
        let holder = match self.queues.get(&key) {
            None if is_full => return Requested::Passed,
            None => {
                self.queues.insert(key, Queue { holder: block, waiting: VecDeque::new() });
                return Requested::Taken;
            }
            Some(queue) => queue.holder,
        };
        if holder == block || !waits || self.waits_for(holder, block) {
            return Requested::Passed;
        }
        let (turn, comes) = oneshot::channel();
        self.queues.get_mut(&key).expect("the queue was found").waiting.push_back((block, turn));
        self.waiting.insert(block, key);
        Requested::Queued(comes)
    }

    /// Whether `block` waits for `other`, directly or by way of other blocks.
    fn waits_for(&self, mut block: u64, other: u64) -> bool {
        // Each block waits for at most one key, and no block begins a wait that would close a circle. So this
        // loop ends.
        while let Some(queue) = self.waiting.get(&block).and_then(|key| self.queues.get(key)) {
            if queue.holder == other {
                return true;
            }
            block = queue.holder;
        }
        false
    }

    fn release(&mut self, block: u64, key: LockKey) {
        let Some(queue) = self.queues.get_mut(&key).filter(|queue| queue.holder == block) else { return };
        while let Some((next, turn)) = queue.waiting.pop_front() {
            self.waiting.remove(&next);
            queue.holder = next;
            if turn.send(()).is_ok() {
                return;
            }
        }
        self.queues.remove(&key);
    }

    /// Takes a block out of the queue, or releases the lock that it got meanwhile.
    fn leave(&mut self, block: u64, key: LockKey) {
        if self.waiting.remove(&block).is_some() {
            if let Some(queue) = self.queues.get_mut(&key) {
                queue.waiting.retain(|(waiting, _)| *waiting != block);
            }
        } else {
            self.release(block, key);
        }
    }
}

impl BlockLocks {
    /// Whether another block holds this lock.
    pub fn is_held_by_other(&self, key: LockKey) -> bool {
        self.locks.state().queues.get(&key).is_some_and(|queue| queue.holder != self.block)
    }

    /// Takes a lock unless another block holds it. Returns false if another block does.
    pub fn try_take(&mut self, key: LockKey) -> bool {
        let mut state = self.locks.state();
        match state.request(self.block, key, false) {
            Requested::Taken => {
                drop(state);
                self.keys.push(key);
                true
            }
            _ => state.queues.get(&key).is_none_or(|queue| queue.holder == self.block),
        }
    }

    /// Takes a lock. Waits for the earlier blocks in the queue until `patience` ends, and then goes on
    /// without the lock.
    pub async fn take(&mut self, key: LockKey, patience: impl Future<Output = ()>) {
        let requested = self.locks.state().request(self.block, key, true);
        match requested {
            Requested::Taken => self.keys.push(key),
            Requested::Passed => {}
            Requested::Queued(mut turn) => {
                let place = QueuePlace { locks: &self.locks, block: self.block, key };
                let mut patience = pin!(patience);
                let comes = poll_fn(|cx| match Pin::new(&mut turn).poll(cx) {
                    Poll::Ready(turn) => Poll::Ready(turn.is_ok()),
                    Poll::Pending => patience.as_mut().poll(cx).map(|()| false),
                });
                if comes.await {
                    std::mem::forget(place);
                    self.keys.push(key);
                }
            }
        }
    }
}

impl Drop for BlockLocks {
    fn drop(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        let mut state = self.locks.state();
        for key in self.keys.drain(..) {
            state.release(self.block, key);
        }
    }
}

/// A block's place in a queue. Dropping the place leaves the queue.
struct QueuePlace<'a> {
    locks: &'a Locks,
    block: u64,
    key: LockKey,
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        self.locks.state().leave(self.block, self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::*;

    const LONG: Duration = Duration::from_secs(20);
    const KEY: LockKey = LockKey(TableId(1), 7);
    const OTHER: LockKey = LockKey(TableId(1), 8);

    #[tokio::test]
    async fn waiting_blocks_get_a_lock_in_the_order_of_their_arrival() {
        let locks = Arc::new(Locks::default());
        let mut first = locks.of_block();
        first.take(KEY, sleep(LONG)).await;
        first.take(KEY, sleep(LONG)).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..10 {
            let (mut block, order) = (locks.of_block(), order.clone());
            tasks.push(tokio::spawn(async move {
                block.take(KEY, sleep(LONG)).await;
                order.lock().unwrap().push(number);
                tokio::task::yield_now().await;
            }));
            while locks.state().waiting.len() < number + 1 {
                tokio::task::yield_now().await;
            }
        }
        assert!(order.lock().unwrap().is_empty() && locks.count(TableId(1)) == 1);
        assert!(!locks.of_block().try_take(KEY) && locks.of_block().is_held_by_other(KEY));
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
        assert_eq!(locks.count(TableId(1)), 0, "all locks are released");
    }

    #[tokio::test]
    async fn a_wait_ends_at_its_deadline_and_a_deadlock_is_broken_at_once() {
        let locks = Arc::new(Locks::default());
        let (mut one, mut two) = (locks.of_block(), locks.of_block());
        one.take(KEY, sleep(LONG)).await;
        two.take(OTHER, sleep(LONG)).await;
        two.take(KEY, sleep(Duration::from_millis(20))).await;
        assert!(locks.state().waiting.is_empty(), "the wait is over");
        let began = Instant::now();
        let waits = tokio::spawn(async move {
            two.take(KEY, sleep(LONG)).await;
            two
        });
        while locks.state().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        one.take(OTHER, sleep(LONG)).await;
        assert!(began.elapsed() < LONG / 2, "the circle is broken");
        drop(one);
        let two = waits.await.unwrap();
        assert_eq!(two.keys, [OTHER, KEY]);
        drop(two);
        assert!(locks.state().queues.is_empty());
    }

    /// A block gives its wait up in the moment in which it gets the lock.
    #[tokio::test]
    async fn a_released_lock_without_waiters_is_free() {
        let locks = Arc::new(Locks::default());
        let (mut one, mut two) = (locks.of_block(), locks.of_block());
        one.take(KEY, sleep(LONG)).await;
        {
            let mut wait = std::pin::pin!(two.take(KEY, sleep(LONG)));
            let is_pending = poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx).is_pending()));
            assert!(is_pending.await);
            drop(one);
        }
        assert!(locks.state().queues.is_empty());
        assert!(two.try_take(KEY));
    }

    #[test]
    fn the_number_of_locks_is_bounded() {
        let locks = Arc::new(Locks::default());
        let mut block = locks.of_block();
        for number in 0..LOCKS_MAX as u64 + 10 {
            assert!(block.try_take(LockKey(TableId(1), number)));
        }
        assert_eq!(block.keys.len(), LOCKS_MAX);
        drop(block);
        assert_eq!(locks.count(TableId(1)), 0);
    }
}
