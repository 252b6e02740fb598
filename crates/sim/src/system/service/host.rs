//! The host of a replica: it carries out orders at its own pace, as the thread of an executor does.

use std::{cell::RefCell, collections::VecDeque, convert::Infallible, rc::Rc};

use bytes::Bytes;
use quorate_protocol::{
    Context, Duration, Time,
    service::{Command, Event},
};
use quorate_roles::services::{
    Broken, Executor, InlineExecutor, Object, PendingTask, Restoring, Tasks, Work,
};

use super::{
    host_tamper::HostTamper,
    object::StoreObject,
    store::{StoreState, StoreUndo},
};
use crate::mutation::Mutation;

/// The time that a host takes for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Always the same time.
    Exactly(Duration),
    /// A random time up to this bound.
    UpTo(Duration),
}

impl Pace {
    fn span(self, chance: u64) -> Duration {
        match self {
            Pace::Exactly(span) => span,
            Pace::UpTo(most) => most.mul_f64((chance % 1000) as f64 / 1e3),
        }
    }

    /// Whether the host answers in the turn of the request.
    fn is_instant(self) -> bool {
        let (Pace::Exactly(most) | Pace::UpTo(most)) = self;
        most.is_zero()
    }
}

/// The manner in which a host works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) pace: Pace,
    /// Whether a change is the whole state.
    pub(crate) whole_states: bool,
    /// Whether the host executes requests in any order.
    pub(crate) any_order: bool,
    /// Maximum padding of a reply, a change or a state, in bytes.
    pub(crate) padding: usize,
}

/// A replica's host. It drives the executor that production drives, with the store as its object.
pub(crate) struct StoreHost {
    pub(crate) store: StoreState,
    /// The latest time that the store has seen, in nanoseconds.
    clock: u64,
    executor: Executor<StoreUndo, Infallible>,
    pub(crate) queue: VecDeque<Event>,
    manner: Manner,
    /// Requests that wait for a thread, if the host executes them in any order.
    tasks: Tasks<Bytes>,
    /// Requests that threads have taken and not completed.
    taken: Vec<PendingTask<Bytes>>,
    /// The call that was executed last.
    pub(super) latest: u64,
    /// The time until which the host executes the present request.
    busy_until: Option<Time>,
    /// The mutated part of the host, which the adapter of the replica shares.
    pub(super) tamper: Rc<RefCell<HostTamper>>,
    /// Names of the orders that were carried out since the workload counted last.
    pub(super) news: Rc<RefCell<Vec<&'static str>>>,
}

impl StoreHost {
    pub(crate) fn new(manner: Manner, mutation: Option<Mutation>) -> Self {
        StoreHost {
            store: StoreState::default(),
            clock: 0,
            executor: Executor::new(Restoring::default(), manner.whole_states, manner.any_order),
            queue: VecDeque::new(),
            manner,
            tasks: Tasks::default(),
            taken: Vec::new(),
            latest: 0,
            busy_until: None,
            tamper: Rc::new(RefCell::new(HostTamper::new(mutation))),
            news: Rc::default(),
        }
    }

    /// Whether the host takes no time, so that the endpoint executes the store in its turns.
    pub(super) fn is_instant(&self) -> bool {
        self.manner.pace.is_instant()
    }

    /// Whether the host's state equals what its replica has learned.
    pub(super) fn is_quiet(&self) -> bool {
        let waits = !self.queue.is_empty() || !self.tasks.is_empty() || !self.taken.is_empty();
        !waits && self.executor.is_chosen() && !self.tamper.borrow().holds()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.busy_until.filter(|_| !self.tasks.rests())
    }

    /// Works up to the next result. Executes a request only if it `may_execute`.
    pub(super) fn step(&mut self, cx: &mut Context<'_>, may_execute: bool) -> Option<Command> {
        loop {
            let executes = match self.queue.front() {
                Some(order) => matches!(order, Event::Execute { .. }),
                None => return self.complete_any(cx, may_execute),
            };
            if executes && !self.manner.any_order && (!may_execute || self.is_busy(cx)) {
                return None;
            }
            let order = self.queue.pop_front()?;
            if let Some(command) = self.carry_out(cx, order) {
                return Some(command);
            }
        }
    }

    /// Whether the next request is still being executed.
    fn is_busy(&mut self, cx: &mut Context<'_>) -> bool {
        if self.manner.pace.is_instant() {
            return false;
        }
        let span = self.manner.pace.span((cx.random)());
        let end = *self.busy_until.get_or_insert(cx.now + span);
        let is_busy = cx.now < end;
        if !is_busy {
            self.busy_until = None;
        }
        is_busy
    }

    /// Completes any of the requests that threads have taken.
    fn complete_any(&mut self, cx: &mut Context<'_>, may_execute: bool) -> Option<Command> {
        while let Some(task) = self.tasks.pop() {
            self.taken.push(task);
        }
        if self.taken.is_empty() || self.tasks.rests() || !may_execute || self.is_busy(cx) {
            return None;
        }
        let any = (cx.random)() as usize % self.taken.len();
        let PendingTask { work, read, request } = self.taken.swap_remove(any);
        self.drive(cx, |executor, object, put| {
            let found = object.execute(&request, read);
            executor.complete(object, Work { number: work, transaction: None, read }, found, put)
        })
    }

    /// Carries out an order, and returns the answer, if the order has one.
    fn carry_out(&mut self, cx: &mut Context<'_>, order: Event) -> Option<Command> {
        self.count(&order);
        let mut answer = None;
        let order = match self.manner.any_order {
            false => order,
            true => {
                let reign = self.tasks.reign();
                let put = &mut |command| answer = Some(command);
                let order = self.tasks.take(order, &self.executor, |request| Ok(request.clone()), put);
                if self.tasks.reign() != reign {
                    self.taken.clear();
                    self.busy_until = None;
                }
                match order {
                    Some(order) => order,
                    None => return answer,
                }
            }
        };
        let order = self.tamper.borrow_mut().before(order, &mut self.store);
        let is_checkpoint = matches!(order, Event::Checkpoint { .. });
        let answer = self.drive(cx, |executor, object, put| executor.perform(object, order, put));
        self.tamper.borrow_mut().after(is_checkpoint, &mut self.store);
        answer
    }

    /// Notes the name of an order, if scenarios expect that such an order occurs.
    fn count(&self, order: &Event) {
        let what = match order {
            Event::Rest { .. } => "host rests",
            Event::Checkpoint { .. } => "checkpoint taken",
            Event::Restore { .. } => "checkpoint restored",
            _ => return,
        };
        self.news.borrow_mut().push(what);
    }

    /// Drives the executor by one step, and returns the answer, if there is one.
    fn drive(
        &mut self,
        cx: &mut Context<'_>,
        step: impl FnOnce(
            &mut Executor<StoreUndo, Infallible>,
            &mut StoreObject<'_, '_>,
            &mut dyn FnMut(Command),
        ) -> Result<(), Broken>,
    ) -> Option<Command> {
        let Manner { whole_states, padding, .. } = self.manner;
        let StoreHost { store, clock, executor, latest, tamper, .. } = self;
        let tamper = &mut tamper.borrow_mut();
        let mut object = StoreObject { store, clock, latest, tamper, cx, whole_states, padding };
        let mut answer = None;
        let put = &mut |command| assert!(answer.replace(command).is_none(), "a step has one answer");
        if let Err(Broken(why)) = step(executor, &mut object, put) {
            unreachable!("the store does not fail: {why}");
        }
        if let Some(answer) = &answer {
            tamper.note(*latest, answer);
        }
        answer
    }
}

impl InlineExecutor for StoreHost {
    type Receiver = Infallible;

    fn begin_batch(&mut self) {}

    fn perform(
        &mut self,
        cx: &mut Context<'_>,
        order: Event,
        put: &mut dyn FnMut(Command),
    ) -> Result<(), Broken> {
        self.carry_out(cx, order).into_iter().for_each(put);
        Ok(())
    }

    fn end_batch(&mut self, _: u32) -> bool {
        false
    }

    fn want_copy(&mut self, receiver: Infallible) {
        match receiver {}
    }

    fn give_copies(&mut self, _: &mut Context<'_>) {}
}
