//! Services with threads of their own: requests are completed in any order, and that becomes the log's.
//!
//! A [`Service`] executes its requests one by one, in the order in which they came. A [`ServiceLoop`] is given them, and completes them when it wants,
//! from threads of its own: a job may wait for a machine while others are done (003 §III.C.1, the matchmaker). The
//! completion is the moment that counts: there the state is looked at, the change applied, and the instance's place in the log taken, at once.
//!
//! ```text
//!   replica ── Execute ──▶ desk ── next ──▶ threads ── complete ──▶ state, undo, results ──▶ replica
//!           ── Revert ───▶ (the reign is over: tasks are void, `next` ends)
//! ```
//!
//! **Reigns.** Threads work at the leader alone. When a reign ends, [`Desk::next`] ends, and what was not completed is void: callers call again at the next
//! leader, whose threads are given the tasks anew. So a thread keeps nothing of a reign but on its own stack.
//!
//! **Checkpoints.** One holds what is chosen, and tasks may wait for long. So when one is wanted of a leader, nothing is completed until that which was is
//! chosen, and the checkpoint is taken ([`Event::Rest`]): a round of the replicas.
//!
//! **The lock.** Threads and the replica's orders take turns at the state. A thread that computes for long looks at the state first
//! ([`Desk::look`]), computes without the lock, and completes with what it found.

use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::Receiver;
use quorate_node::panic_message;
use quorate_protocol::service::{Command, Event};

use super::{
    Cx, Executed, Service,
    executor::{Broken, Executor, Order, Outlet, Performer, Refused, Results, Runner, requested},
    process::lock,
};

/// A service that completes its requests by threads of its own, in any order. It has no transactions.
///
/// ```
/// use quorate::service::{Cx, Desk, Executed, Service, ServiceLoop};
/// use serde::{Deserialize, Serialize};
///
/// /// Tickets, and callers that wait for one.
/// #[derive(Default, Serialize, Deserialize)]
/// struct Tickets(u64);
///
/// #[derive(Serialize, Deserialize)]
/// enum Ask {
///     Print,
///     Take,
/// }
///
/// impl Service for Tickets {
///     type Request = Ask;
///     type Reply = u64;
///     type Delta = i64;
///     type Undo = i64;
///
///     fn execute(&self, ask: &Ask, _: &mut Cx<'_>) -> Executed<Self> {
///         let change = if matches!(ask, Ask::Print) { 1 } else { -1 };
///         Executed::Changed(self.0.wrapping_add_signed(change), change)
///     }
///     fn apply(&mut self, change: &i64) -> i64 {
///         self.0 = self.0.wrapping_add_signed(*change);
///         -change
///     }
///     fn revert(&mut self, undo: i64) {
///         self.apply(&undo);
///     }
/// }
///
/// impl ServiceLoop for Tickets {
///     fn run(desk: &Desk<Self>) {
///         let mut waiting = Vec::new(); // those that take, until there is something to be taken
///         while let Some(task) = desk.next() {
///             waiting.push(task);
///             waiting.sort_by_key(|task| matches!(task.request(), Ask::Take));
///             while let Some(task) = waiting.first()
///                 && (matches!(task.request(), Ask::Print) || desk.look(|tickets| tickets.0 > 0))
///             {
///                 waiting.remove(0).execute();
///             }
///         }
///     }
/// }
/// ```
pub trait ServiceLoop: Service<Request: Send> {
    /// How many threads run it.
    fn threads() -> usize {
        1
    }

    /// Takes tasks and completes them, until [`Desk::next`] ends: then the reign is over, or the replica. Called on each thread, again for each reign.
    /// A panic rejects the tasks that the thread holds, and it is called again.
    fn run(desk: &Desk<Self>)
    where
        Self: Sized;
}

/// The place where threads of a service are given its requests: in one reign of one replica.
pub struct Desk<S: Service> {
    room: Arc<Room<S>>,
    reign: u64,
}

/// A request that is to be completed. Dropped, it is rejected.
pub struct Task<S: Service> {
    room: Arc<Room<S>>,
    reign: u64,
    work: u64,
    read: bool,
    /// None once it is completed.
    request: Option<S::Request>,
}

struct Room<S: Service> {
    inner: Mutex<Inner<S>>,
    news: Condvar,
    outlet: Arc<dyn Outlet>,
}

/// Requests that no thread has taken: the replica's number of each, and whether it is a read.
type Waiting<R> = VecDeque<(u64, bool, R)>;

struct Inner<S: Service> {
    executor: Executor<S>,
    results: Results,
    waiting: Waiting<S::Request>,
    /// Counts up when tasks become void.
    reign: u64,
    /// Whether nothing is completed before a checkpoint.
    rests: bool,
    /// Whether the replica has ended.
    over: bool,
}

impl<S: Service> Desk<S> {
    /// The next request, in the order in which they came; waits for it. `None`: the reign is over, and what is held is void.
    pub fn next(&self) -> Option<Task<S>> {
        self.next_until(None)
    }

    /// The same, for at most so long: `None` says then that nothing came, unless [it is over](Desk::is_over).
    pub fn next_within(&self, patience: Duration) -> Option<Task<S>> {
        self.next_until(Some(Instant::now() + patience))
    }

    fn next_until(&self, until: Option<Instant>) -> Option<Task<S>> {
        let mut inner = lock(&self.room.inner);
        loop {
            if inner.over || inner.reign != self.reign {
                return None;
            }
            if let Some((work, read, request)) = inner.waiting.pop_front() {
                let (room, reign) = (self.room.clone(), self.reign);
                return Some(Task { room, reign, work, read, request: Some(request) });
            }
            inner = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return None,
                Some(left) => {
                    self.room.news.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.room.news.wait(inner).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Whether the reign is over.
    pub fn is_over(&self) -> bool {
        let inner = lock(&self.room.inner);
        inner.over || inner.reign != self.reign
    }

    /// Looks at the present state. Another thread may change it before this one completes something.
    pub fn look<T>(&self, look: impl FnOnce(&S) -> T) -> T {
        look(&lock(&self.room.inner).executor.state)
    }
}

impl<S: Service> Task<S> {
    /// The request.
    pub fn request(&self) -> &S::Request {
        self.request.as_ref().expect("it is there until it is completed")
    }

    /// Completes it with what [`Service::execute`] finds now. Says whether that counts: a task of a reign that is over is void.
    pub fn execute(mut self) -> bool {
        let request = self.request.take().expect("it is completed once");
        self.finish(|state, cx| state.execute(&request, cx))
    }

    /// Completes it with what is found in the present state. Nothing is done meanwhile, so this should be short. Says whether it counts.
    pub fn complete(mut self, find: impl FnOnce(&S, &mut Cx<'_>) -> Executed<S>) -> bool {
        self.request = None;
        self.finish(find)
    }

    fn finish(&self, find: impl FnOnce(&S, &mut Cx<'_>) -> Executed<S>) -> bool {
        let mut inner = lock(&self.room.inner);
        loop {
            if inner.over || inner.reign != self.reign {
                return false;
            }
            if !inner.rests {
                break;
            }
            inner = self.room.news.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        let Inner { executor, results, over, .. } = &mut *inner;
        let found = executor.complete((self.work, None), None, self.read, find);
        let told = executor.tell(self.work, found, results);
        *over |= !results.leave(&*self.room.outlet) || told.is_err();
        if let Err(Broken(why)) = told {
            self.room.outlet.broken(why);
            self.room.news.notify_all();
        }
        true
    }
}

impl<S: Service> Drop for Task<S> {
    fn drop(&mut self) {
        if self.request.is_some() {
            self.finish(|_, _| Executed::Rejected(String::from("the service let go of it")));
        }
    }
}

/// A service with threads of its own.
pub(super) struct Looped<S: ServiceLoop>(pub(super) Executor<S>);

impl<S: ServiceLoop> Runner for Looped<S> {
    /// Starts the threads; this one carries out the replica's orders.
    fn run(self: Box<Self>, orders: Receiver<Order>, outlet: Arc<dyn Outlet>) {
        let inner = Inner {
            executor: self.0.in_any_order(),
            results: Results::default(),
            waiting: VecDeque::new(),
            reign: 0,
            rests: false,
            over: false,
        };
        let room = Arc::new(Room { inner: Mutex::new(inner), news: Condvar::new(), outlet: outlet.clone() });
        for _ in 0..S::threads().max(1) {
            let room = room.clone();
            let thread = thread::Builder::new().name(String::from("service"));
            if let Err(error) = thread.spawn(move || work(&room)) {
                outlet.broken(format!("no thread for the service: {error}"));
                break;
            }
        }
        for order in orders {
            let mut inner = lock(&room.inner);
            let Inner { executor, results, waiting, reign, rests, over } = &mut *inner;
            let goes_on = !*over
                && executor.carry_out(order, results, &*outlet, |executor, event, results| {
                    take::<S>(executor, event, results, (waiting, reign, rests))
                });
            if !goes_on {
                break;
            }
            drop(inner);
            room.news.notify_all();
        }
        lock(&room.inner).over = true;
        room.news.notify_all();
    }
}

/// Carries out an order of the replica, or puts it before the threads.
fn take<S: ServiceLoop>(
    executor: &mut Executor<S>,
    event: Event,
    results: &mut Results,
    (waiting, reign, rests): (&mut Waiting<S::Request>, &mut u64, &mut bool),
) -> Result<(), Broken> {
    match event {
        Event::Execute { work, request, read, transaction } if !executor.restoring.is_under_way() => {
            let parse = || match transaction {
                None => requested::<S>(&request),
                Some(_) => Err(String::from("a service with threads of its own has no transactions")),
            };
            let parsed = catch_unwind(AssertUnwindSafe(parse));
            let parsed = parsed.unwrap_or_else(|panic| {
                Err(format!("reading the request panicked: {}", panic_message(&*panic)))
            });
            match parsed {
                Ok(request) => {
                    waiting.push_back((work, read, request));
                    Ok(())
                }
                Err(why) => executor.tell(work, Err(Refused::Whole(why)), results),
            }
        }
        Event::Rest { rest } => {
            *rests = true;
            results.put(Command::Rests { rest });
            Ok(())
        }
        Event::Checkpoint { .. } => {
            *rests = false;
            executor.perform(event, results)
        }
        Event::Revert => {
            (*reign, *rests) = (*reign + 1, false);
            waiting.clear();
            executor.perform(event, results)
        }
        event => executor.perform(event, results),
    }
}

/// A thread of the service, over all reigns.
fn work<S: ServiceLoop>(room: &Arc<Room<S>>) {
    loop {
        let reign = {
            let mut inner = lock(&room.inner);
            while !inner.over && inner.waiting.is_empty() {
                inner = room.news.wait(inner).unwrap_or_else(PoisonError::into_inner);
            }
            if inner.over {
                return;
            }
            inner.reign
        };
        let desk = Desk { room: room.clone(), reign };
        // The panic has been printed, and what the thread held was rejected.
        let _ = catch_unwind(AssertUnwindSafe(|| S::run(&desk)));
    }
}

impl<S: Service> fmt::Debug for Desk<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("reign", &self.reign).finish_non_exhaustive()
    }
}

impl<S: Service> fmt::Debug for Task<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("work", &self.work).finish_non_exhaustive()
    }
}
