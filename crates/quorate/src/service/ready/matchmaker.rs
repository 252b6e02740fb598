//! A matchmaker (003 §III.C.1): machines are advertised, and jobs are submitted that each ask for a machine.
//!
//! Among the machines that are good enough, chance chooses one. One thread receives requests and another
//! executes them: higher priorities first, and within a priority the earliest first.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{Condvar, Mutex},
    thread,
};

use serde::{Deserialize, Serialize};

use crate::service::{Cx, Executed, Service, ServiceLoop, Task, TaskQueue};

/// The free machines, by address.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Matchmaker(BTreeMap<String, Machine>);

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The machine's address. A new advertisement of an address replaces the former advertisement.
    pub address: String,
    /// The machine's resources.
    pub size: Size,
    /// The secret with which a user may use the machine.
    pub capability: String,
}

/// The resources of a machine, or the needs of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Speed of the processor, in MHz.
    pub megahertz: u32,
    /// Memory, in GB.
    pub memory_gb: u32,
    /// Disk, in GB.
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
pub enum MatchRequest {
    /// Advertises a free machine.
    Advertise(Machine),
    /// Requests a machine for a job.
    Submit {
        /// The name of the job, which is not empty.
        job: String,
        /// The job's needs.
        size: Size,
        /// The job's priority. Jobs with larger numbers come first.
        priority: u8,
    },
}

/// A change of a [`Matchmaker`].
#[derive(Debug, Serialize, Deserialize)]
pub struct MatchChange(Changed);

#[derive(Debug, Serialize, Deserialize)]
enum Changed {
    Free(Machine),
    Given(String),
}

impl Service for Matchmaker {
    type Request = MatchRequest;
    /// The machine for a job, or `None` if no free machine is good enough.
    type Reply = Option<Machine>;
    type Delta = MatchChange;
    /// A machine's address, and its former advertisement.
    type Undo = (String, Option<Machine>);

    fn execute(&self, request: &MatchRequest, cx: &mut Cx<'_>) -> Executed<Self> {
        let (job, wanted) = match request {
            MatchRequest::Advertise(machine) => {
                return Executed::Changed(None, MatchChange(Changed::Free(machine.clone())));
            }
            MatchRequest::Submit { job, size, .. } => (job, *size),
        };
        if job.is_empty() {
            return Executed::Rejected(String::from("a job must have a name"));
        }
        let good: Vec<&Machine> =
            self.0.values().filter(|machine| machine.size.is_enough_for(wanted)).collect();
        if good.is_empty() {
            return Executed::Unchanged(None);
        }
        let chosen = good[cx.below(good.len() as u64) as usize];
        Executed::Changed(Some(chosen.clone()), MatchChange(Changed::Given(chosen.address.clone())))
    }

    fn apply(&mut self, MatchChange(change): &MatchChange) -> (String, Option<Machine>) {
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

/// Tasks, ordered by priority and then by arrival.
type Tasks = BTreeMap<(Reverse<u8>, u64), Task<Matchmaker>>;

/// Requests that wait, the most urgent request first, and whether the reign is over.
#[derive(Default)]
struct Queue {
    waiting: Mutex<(Tasks, bool)>,
    news: Condvar,
}

impl Queue {
    /// Receives requests until the reign is over.
    fn fill(&self, tasks: &TaskQueue<Matchmaker>) {
        for arrival in 0.. {
            let task = tasks.next();
            let mut waiting = self.waiting.lock().expect("no thread panics while it holds this lock");
            match task {
                Some(task) => {
                    let priority = match task.request() {
                        MatchRequest::Advertise(_) => u8::MAX,
                        MatchRequest::Submit { priority, .. } => *priority,
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

    /// Waits for the next request to execute. `None` means that the reign is over.
    fn next(&self) -> Option<Task<Matchmaker>> {
        let mut waiting = self.waiting.lock().expect("no thread panics while it holds this lock");
        loop {
            if waiting.1 {
                return None;
            }
            if let Some((_, task)) = waiting.0.pop_first() {
                return Some(task);
            }
            waiting = self.news.wait(waiting).expect("no thread panics while it holds this lock");
        }
    }
}

impl ServiceLoop for Matchmaker {
    fn run(tasks: &TaskQueue<Self>) {
        let queue = Queue::default();
        thread::scope(|scope| {
            scope.spawn(|| queue.fill(tasks));
            while let Some(task) = queue.next() {
                task.execute();
            }
        });
    }
}
