//! Services with threads of their own. They complete requests in any order, and this becomes the order of the
//! log.
//!
//! A [`Service`] executes its requests one by one, in order of arrival. A [`ServiceLoop`] receives requests
//! and completes each of them when it wants, on threads of its own. For example, a job may wait for a machine
//! while other jobs are done (003 §III.C.1, the matchmaker). The completion is one step: it reads the state,
//! applies the change, and takes the instance's place in the log.
//!
//! ```text
//!   replica ── Execute ──▶ tasks ── next ──▶ threads ── complete ──▶ state, undo, results ──▶ replica
//!           ── Revert ───▶ (the reign is over: tasks are void, `next` ends)
//! ```
//!
//! **Reigns.** Only the leader's threads work. When a reign ends, [`TaskQueue::next`] returns `None`, and
//! uncompleted tasks are void. Callers call again at the next leader, whose threads get the tasks. So a
//! thread must keep data of a reign only on its own stack.
//!
//! **Checkpoints.** A checkpoint holds only chosen changes, and tasks may wait for long. So when a leader
//! needs a checkpoint, it completes no task until the changes of all completed tasks are chosen and the
//! checkpoint is taken ([`Event::Rest`]). This takes one round of the replicas.
//!
//! **The lock.** The service's threads and the thread that executes the replica's orders share the state
//! under a lock. A thread with a long computation first looks at the state ([`TaskQueue::look`]), computes
//! without the lock, and completes the task with the result.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use crossbeam_channel::Receiver;
use quorate_node::panic_message;
use quorate_protocol::service::{Command, Event};
use quorate_roles::services::{Broken, PendingTask, Tasks, Work};

use super::{
    Cx, Executed, Service,
    executor::{ExecutorOrder, Outlet, Performer, Results, Runner, ServiceExecutor},
    object::requested,
};

use crate::lock::lock;

/// A service that completes its requests on threads of its own, in any order. It has no transactions.
///
/// ```
/// use quorate::service::{Cx, TaskQueue, Executed, Service, ServiceLoop};
/// use serde::{Deserialize, Serialize};
///
/// /// Tickets, and callers that wait for one.
/// #[derive(Default, Serialize, Deserialize)]
/// struct Tickets(u64);
///
/// #[derive(Serialize, Deserialize)]
/// enum TicketRequest {
///     Print,
///     Take,
/// }
///
/// impl Service for Tickets {
///     type Request = TicketRequest;
///     type Reply = u64;
///     type Delta = i64;
///     type Undo = i64;
///
///     fn execute(&self, request: &TicketRequest, _: &mut Cx<'_>) -> Executed<Self> {
///         let change = if matches!(request, TicketRequest::Print) { 1 } else { -1 };
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
///     fn run(tasks: &TaskQueue<Self>) {
///         let mut waiting = Vec::new(); // those that take, until there is something to be taken
///         while let Some(task) = tasks.next() {
///             waiting.push(task);
///             waiting.sort_by_key(|task| matches!(task.request(), TicketRequest::Take));
///             while let Some(task) = waiting.first()
///                 && (matches!(task.request(), TicketRequest::Print) || tasks.look(|tickets| tickets.0 > 0))
///             {
///                 waiting.remove(0).execute();
///             }
///         }
///     }
/// }
/// ```
pub trait ServiceLoop: Service<Request: Send> {
    /// Returns the number of threads that run the service.
    fn threads() -> usize {
        1
    }

    /// Takes tasks and completes them, until [`TaskQueue::next`] returns `None` because the reign or the
    /// replica has ended. Each thread of the service calls this function once for each reign. If the function
    /// panics, the tasks that it holds are rejected, and the thread calls the function again.
    fn run(tasks: &TaskQueue<Self>)
    where
        Self: Sized;
}

/// The queue from which threads of a service take its requests, in one reign of one replica.
pub struct TaskQueue<S: Service> {
    shared: Arc<LoopShared<S>>,
    reign: u64,
}

/// A request to complete. Dropping it rejects the request.
pub struct Task<S: Service> {
    shared: Arc<LoopShared<S>>,
    reign: u64,
    work: u64,
    read: bool,
    /// The request; `None` once the task is completed.
    request: Option<S::Request>,
}

struct LoopShared<S: Service> {
    inner: Mutex<LoopInner<S>>,
    news: Condvar,
    outlet: Arc<dyn Outlet>,
}

struct LoopInner<S: Service> {
    executor: ServiceExecutor<S>,
    results: Results,
    tasks: Tasks<S::Request>,
    /// Whether the replica has ended.
    over: bool,
}

impl<S: Service> TaskQueue<S> {
    /// Waits for the next request, in order of arrival. `None` means that the reign is over, and held tasks
    /// are void.
    pub fn next(&self) -> Option<Task<S>> {
        self.next_until(None)
    }

    /// Waits for the next request, at most for `patience`. `None` means that no request came in time, or that
    /// [the reign is over](TaskQueue::is_over).
    pub fn next_within(&self, patience: Duration) -> Option<Task<S>> {
        self.next_until(Some(Instant::now() + patience))
    }

    fn next_until(&self, until: Option<Instant>) -> Option<Task<S>> {
        let mut inner = lock(&self.shared.inner);
        loop {
            if inner.over || inner.tasks.reign() != self.reign {
                return None;
            }
            if let Some(PendingTask { work, read, request }) = inner.tasks.pop() {
                let (shared, reign) = (self.shared.clone(), self.reign);
                return Some(Task { shared, reign, work, read, request: Some(request) });
            }
            inner = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return None,
                Some(left) => {
                    self.shared.news.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.shared.news.wait(inner).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Whether the reign is over.
    pub fn is_over(&self) -> bool {
        let inner = lock(&self.shared.inner);
        inner.over || inner.tasks.reign() != self.reign
    }

    /// Passes the present state to `look`. Another thread may change the state before this thread completes a
    /// task.
    pub fn look<T>(&self, look: impl FnOnce(&S) -> T) -> T {
        look(&lock(&self.shared.inner).executor.object.state)
    }
}

impl<S: Service> Task<S> {
    /// Returns the request.
    pub fn request(&self) -> &S::Request {
        self.request.as_ref().expect("a task has its request until the task is completed")
    }

    /// Completes the task with the result of [`Service::execute`] in the present state. Returns whether the
    /// completion takes effect. It does not if the task's reign is over.
    pub fn execute(mut self) -> bool {
        let request = self.request.take().expect("a task is completed only once");
        self.finish(|state, cx| state.execute(&request, cx))
    }

    /// Completes the task with the result of `find` in the present state. `find` should be short, because all
    /// other threads of the service wait meanwhile. Returns whether the completion takes effect.
    pub fn complete(mut self, find: impl FnOnce(&S, &mut Cx<'_>) -> Executed<S>) -> bool {
        self.request = None;
        self.finish(find)
    }

    fn finish(&self, find: impl FnOnce(&S, &mut Cx<'_>) -> Executed<S>) -> bool {
        let mut inner = lock(&self.shared.inner);
        loop {
            if inner.over || inner.tasks.reign() != self.reign {
                return false;
            }
            if !inner.tasks.rests() {
                break;
            }
            inner = self.shared.news.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        let LoopInner { executor, results, over, .. } = &mut *inner;
        let work = Work { number: self.work, transaction: None, read: self.read };
        let completed = executor.complete(work, results, find);
        *over |= !results.leave(&*self.shared.outlet) || completed.is_err();
        if let Err(Broken(why)) = completed {
            self.shared.outlet.broken(why);
            self.shared.news.notify_all();
        }
        true
    }
}

impl<S: Service> Drop for Task<S> {
    fn drop(&mut self) {
        if self.request.is_some() {
            self.finish(|_, _| {
                Executed::Rejected(String::from("the service dropped the task without completing it"))
            });
        }
    }
}

/// A service with threads of its own.
pub(super) struct Looped<S: ServiceLoop>(pub(super) ServiceExecutor<S>);

impl<S: ServiceLoop> Runner for Looped<S> {
    /// Starts the service's threads, and executes the replica's orders on the present thread.
    fn run(self: Box<Self>, orders: Receiver<ExecutorOrder>, outlet: Arc<dyn Outlet>) {
        let inner =
            LoopInner { executor: self.0, results: Results::default(), tasks: Tasks::default(), over: false };
        let shared =
            Arc::new(LoopShared { inner: Mutex::new(inner), news: Condvar::new(), outlet: outlet.clone() });
        for _ in 0..S::threads().max(1) {
            let shared = shared.clone();
            let thread = thread::Builder::new().name(String::from("service"));
            if let Err(error) = thread.spawn(move || work(&shared)) {
                outlet.broken(format!("the system gives no thread for the service: {error}"));
                break;
            }
        }
        for order in orders {
            let mut inner = lock(&shared.inner);
            let LoopInner { executor, results, tasks, over } = &mut *inner;
            let goes_on = !*over
                && executor.carry_out(order, results, &*outlet, |executor, event, put| {
                    take::<S>(executor, event, tasks, put)
                });
            if !goes_on {
                break;
            }
            drop(inner);
            shared.news.notify_all();
        }
        lock(&shared.inner).over = true;
        shared.news.notify_all();
    }
}

/// Executes an order of the replica, or queues it as a task for the service's threads.
fn take<S: ServiceLoop>(
    service: &mut ServiceExecutor<S>,
    order: Event,
    tasks: &mut Tasks<S::Request>,
    put: &mut dyn FnMut(Command),
) -> Result<(), Broken> {
    let decode = |request: &Bytes| {
        let decoded = catch_unwind(AssertUnwindSafe(|| requested::<S>(request)));
        decoded.unwrap_or_else(|panic| {
            Err(format!(
                "the service's code panicked while it decoded the request: {}",
                panic_message(&*panic)
            ))
        })
    };
    let order = tasks.take(order, &service.executor, decode, put);
    order.map_or(Ok(()), |order| service.perform(order, put))
}

/// Runs a thread of the service, over all reigns.
fn work<S: ServiceLoop>(shared: &Arc<LoopShared<S>>) {
    loop {
        let reign = {
            let mut inner = lock(&shared.inner);
            while !inner.over && inner.tasks.is_empty() {
                inner = shared.news.wait(inner).unwrap_or_else(PoisonError::into_inner);
            }
            if inner.over {
                return;
            }
            inner.tasks.reign()
        };
        let tasks = TaskQueue { shared: shared.clone(), reign };
        // A panic has been printed, and the tasks that the thread held were rejected.
        let _ = catch_unwind(AssertUnwindSafe(|| S::run(&tasks)));
    }
}

impl<S: Service> fmt::Debug for TaskQueue<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskQueue").field("reign", &self.reign).finish_non_exhaustive()
    }
}

impl<S: Service> fmt::Debug for Task<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("work", &self.work).finish_non_exhaustive()
    }
}
