//! A matchmaker, replicated three times (003 §III.C.1): machines are advertised, and jobs submitted that each ask for a machine.
//!
//! ```text
//! cargo run -p quorate --example matchmaker -- --listen 127.0.0.1:7101 --found
//! cargo run -p quorate --example matchmaker -- --listen 127.0.0.1:7102 --join 127.0.0.1:7101
//! cargo run -p quorate --example matchmaker -- --listen 127.0.0.1:7103 --join 127.0.0.1:7101
//! cargo run -p quorate --example matchmaker -- --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 advertise 10.0.0.5 3000 16 500
//! cargo run -p quorate --example matchmaker -- --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 submit render 2000 8 100 5
//! ```
//!
//! Figures are a machine's or a job's MHz, GB of memory and GB of disk, and a job's priority. Of the machines that are good enough, one is chosen by chance. Requests are
//! taken in by one thread and executed by another: those of a higher priority first, and of those the one that came first. `play COUNT`
//! advertises so many machines and submits as many jobs; kill one of the three meanwhile, and each machine is given away once all the same.

mod program;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::{Condvar, Mutex},
    thread,
};

use quorate::{
    Error, Node, Wait,
    service::{Cx, Desk, Executed, Service, ServiceLoop, Stub, Task},
};
use serde::{Deserialize, Serialize};

/// The machines that are free, by their addresses.
#[derive(Default, Serialize, Deserialize)]
struct Matchmaker(BTreeMap<String, Machine>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Machine {
    address: String,
    size: Size,
    /// Lets its holder use the machine.
    capability: String,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Size {
    megahertz: u32,
    memory_gb: u32,
    disk_gb: u32,
}

impl Size {
    fn is_enough_for(self, wanted: Size) -> bool {
        self.megahertz >= wanted.megahertz
            && self.memory_gb >= wanted.memory_gb
            && self.disk_gb >= wanted.disk_gb
    }
}

#[derive(Serialize, Deserialize)]
enum Ask {
    Advertise(Machine),
    Submit { job: String, size: Size, priority: u8 },
}

#[derive(Serialize, Deserialize)]
enum Change {
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
            Ask::Advertise(machine) => return Executed::Changed(None, Change::Free(machine.clone())),
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
        Executed::Changed(Some(chosen.clone()), Change::Given(chosen.address.clone()))
    }

    fn apply(&mut self, change: &Change) -> (String, Option<Machine>) {
        match change {
            Change::Free(machine) => {
                let before = self.0.insert(machine.address.clone(), machine.clone());
                (machine.address.clone(), before)
            }
            Change::Given(address) => (address.clone(), self.0.remove(address)),
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

fn main() {
    let serve = |node: &Node, begin| node.serve_loop("matchmaker", Matchmaker::default(), begin).wait();
    let words_of_calls =
        "advertise ADDRESS MHZ MEMORY DISK | submit JOB MHZ MEMORY DISK PRIORITY | play COUNT";
    program::run("matchmaker", serve, words_of_calls, |matchmaker, words| {
        let ask = match *words {
            ["advertise", address, megahertz, memory, disk] => {
                Ask::Advertise(machine(address, size([megahertz, memory, disk])?))
            }
            ["submit", job, megahertz, memory, disk, priority] => Ask::Submit {
                job: job.to_owned(),
                size: size([megahertz, memory, disk])?,
                priority: priority.parse().ok()?,
            },
            ["play", count] => return Some(play(matchmaker, count.parse().ok()?)),
            _ => return None,
        };
        Some(matchmaker.call(&ask).wait().map(|machine| match (machine, ask) {
            (Some(machine), _) => println!("{machine:?}"),
            (None, Ask::Advertise(_)) => println!("it is known"),
            (None, Ask::Submit { .. }) => println!("no free machine is good enough"),
        }))
    });
}

fn size(words: [&str; 3]) -> Option<Size> {
    let [megahertz, memory_gb, disk_gb] = words.map(|word| word.parse().ok());
    Some(Size { megahertz: megahertz?, memory_gb: memory_gb?, disk_gb: disk_gb? })
}

fn machine(address: &str, size: Size) -> Machine {
    Machine { address: address.to_owned(), size, capability: format!("for the holder of {address}") }
}

/// Advertises so many machines, and has four clients submit as many jobs.
fn play(matchmaker: &Stub<Matchmaker>, count: usize) -> Result<(), Error> {
    let size = Size { megahertz: 3000, memory_gb: 16, disk_gb: 500 };
    for number in 0..count {
        matchmaker.call(&Ask::Advertise(machine(&format!("machine {number}"), size))).wait()?;
    }
    println!("{count} machines are free");
    let submit = |client: usize| -> Result<Vec<String>, Error> {
        let mut given = Vec::new();
        for number in (client..count).step_by(CLIENTS) {
            let (job, priority) = (format!("job {number}"), (number % 3) as u8);
            let machine = matchmaker.call(&Ask::Submit { job, size, priority }).wait()?;
            given.push(machine.expect("there is one for each job").address);
            if given.len().is_multiple_of(25) {
                println!("client {client} was given {} machines", given.len());
            }
        }
        Ok(given)
    };
    let mut given = Vec::new();
    thread::scope(|scope| -> Result<(), Error> {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let submit = &submit;
                scope.spawn(move || submit(client))
            })
            .collect();
        for client in clients {
            given.extend(client.join().expect("no client panics")?);
        }
        Ok(())
    })?;
    let different: BTreeSet<&String> = given.iter().collect();
    assert!(given.len() == count && different.len() == count, "each machine is given away once");
    println!("{count} jobs on {count} machines, each given away once");
    Ok(())
}

const CLIENTS: usize = 4;
