//! A matchmaker (003 §III.C.1): machines are advertised, and jobs submitted that each ask for a machine.
//!
//! Of the machines that are good enough, one is chosen by chance. Requests are taken in by one thread and executed by another: those of
//! a higher priority first, and of those the one that came first.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{Condvar, Mutex},
    thread,
};

use serde::{Deserialize, Serialize};

use crate::service::{Cx, Desk, Executed, Service, ServiceLoop, Task};

/// The machines that are free, by their addresses.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Matchmaker(BTreeMap<String, Machine>);

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Where it is. A machine that is advertised again takes the place of the one before.
    pub address: String,
    /// What it has.
    pub size: Size,
    /// Lets its holder use the machine.
    pub capability: String,
}

/// What a machine has, or a job needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// MHz of its processor.
    pub megahertz: u32,
    /// GB of memory.
    pub memory_gb: u32,
    /// GB of disk.
    pub disk_gb: u32,
}

impl Size {
    fn is_enough_for(self, wanted: Size) -> bool {
        self.megahertz >= wanted.megahertz
            && self.memory_gb >= wanted.memory_gb
            && self.disk_gb >= wanted.disk_gb
    }
}

/// A request to a [`Matchmaker`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// A machine is free.
    Advertise(Machine),
    /// A job wants a machine.
    Submit {
        /// The job, which has a name.
        job: String,
        /// What it needs.
        size: Size,
        /// More is sooner.
        priority: u8,
    },
}

/// A change of a [`Matchmaker`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Change(Changed);

#[derive(Debug, Serialize, Deserialize)]
enum Changed {
    Free(Machine),
    Given(String),
}

impl Service for Matchmaker {
    type Request = Ask;
    /// The machine that a job is given; none: no free machine is good enough.
    type Reply = Option<Machine>;
    type Delta = Change;
    /// A machine's address, and how it was known before.
    type Undo = (String, Option<Machine>);

    fn execute(&self, ask: &Ask, cx: &mut Cx<'_>) -> Executed<Self> {
        let (job, wanted) = match ask {
            Ask::Advertise(machine) => {
                return Executed::Changed(None, Change(Changed::Free(machine.clone())));
            }
            Ask::Submit { job, size, .. } => (job, *size),
        };
        if job.is_empty() {
            return Executed::Rejected(String::from("a job has a name"));
        }
        let good: Vec<&Machine> =
            self.0.values().filter(|machine| machine.size.is_enough_for(wanted)).collect();
        if good.is_empty() {
            return Executed::Unchanged(None);
        }
        let chosen = good[cx.below(good.len() as u64) as usize];
        Executed::Changed(Some(chosen.clone()), Change(Changed::Given(chosen.address.clone())))
    }

    fn apply(&mut self, Change(change): &Change) -> (String, Option<Machine>) {
        match change {
            Changed::Free(machine) => {
                let before = self.0.insert(machine.address.clone(), machine.clone());
                (machine.address.clone(), before)
            }
            Changed::Given(address) => (address.clone(), self.0.remove(address)),
        }
    }

    fn revert(&mut self, (address, before): (String, Option<Machine>)) {
        match before {
            Some(machine) => self.0.insert(address, machine),
            None => self.0.remove(&address),
        };
    }
}

/// By urgency and time of arrival.
type Tasks = BTreeMap<(Reverse<u8>, u64), Task<Matchmaker>>;

/// Requests that wait, the most urgent first, and whether more may come.
#[derive(Default)]
struct Queue {
    waiting: Mutex<(Tasks, bool)>,
    news: Condvar,
}

impl Queue {
    /// Takes requests in.
    fn fill(&self, desk: &Desk<Matchmaker>) {
        for arrival in 0.. {
            let task = desk.next();
            let mut waiting = self.waiting.lock().expect("nobody panics with it");
            match task {
                Some(task) => {
                    let priority = match task.request() {
                        Ask::Advertise(_) => u8::MAX,
                        Ask::Submit { priority, .. } => *priority,
                    };
                    waiting.0.insert((Reverse(priority), arrival), task);
                }
                None => waiting.1 = true,
            }
            self.news.notify_all();
            if waiting.1 {
                return;
            }
        }
    }

    /// The next that is to be executed; none: the reign is over.
    fn next(&self) -> Option<Task<Matchmaker>> {
        let mut waiting = self.waiting.lock().expect("nobody panics with it");
        loop {
            if waiting.1 {
                return None;
            }
            if let Some((_, task)) = waiting.0.pop_first() {
                return Some(task);
            }
            waiting = self.news.wait(waiting).expect("nobody panics with it");
        }
    }
}

impl ServiceLoop for Matchmaker {
    fn run(desk: &Desk<Self>) {
        let queue = Queue::default();
        thread::scope(|scope| {
            scope.spawn(|| queue.fill(desk));
            while let Some(task) = queue.next() {
                task.execute();
            }
        });
    }
}
