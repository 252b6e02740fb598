//! Measurements as the source makes them (000 §9): runs of twenty updates of 100 bytes, one after another or in a series that is answered
//! for as a whole, and queries of all members.
//!
//! The source has a cluster of 78 machines. Here processes share one machine, with as many members each as are asked for.

use std::{
    io::{self, BufRead},
    mem,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use quorate::{
    Node, Wait,
    group::{Answer, Handlers, Member, Origin, Phi, View, Want},
};
use serde::{Deserialize, Serialize};

use super::{
    What,
    process::{Part, Spec, nanos, say},
    watch::joined,
};
use crate::bench::child::Child;

/// Operations of a run, and of a series.
const OPERATIONS: usize = 20;
/// Runs of one measurement, if its time is enough for them.
const RUNS_MAX: usize = 10;
const ROUTERS: usize = 3;
const UPDATE_BYTES: usize = 100;
/// From one operation to the next.
const PAUSE: Duration = Duration::from_millis(4);
/// The time that members may take to have all the others in their view, and an operation to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// The strength of an update.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) enum Verb {
    /// Soft.
    Send,
    /// Safe once so many processes have it, or all if there are fewer.
    Safe(u16),
}

/// The work of one run.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
enum Work {
    /// Updates, one after another.
    Apart(Verb),
    /// Updates at once, and a flush if they are soft.
    Series(Verb),
    /// Queries of all members, one after another.
    Queries,
}

/// Routers and processes with members of one group, of which the very first sends.
pub(crate) struct Stage {
    // Before the routers, so that members do not miss them.
    processes: Vec<Child>,
    _routers: Vec<Child>,
    addresses: Vec<String>,
    /// Members in each process.
    each: usize,
    /// Updates that were sent, each of which all members have applied once.
    pub(crate) sent: u64,
}

impl Stage {
    /// Starts routers, for processes with so many members each.
    pub(crate) fn begin(each: usize) -> Result<Stage> {
        let (mut routers, mut addresses) = (Vec::new(), Vec::new());
        for number in 1..=ROUTERS {
            let spec = spec(Part::Router, number, &addresses);
            let mut router = Child::start(format!("router-{number}"), "group-process", &spec)?;
            addresses.push(router.line()?);
            routers.push(router);
        }
        Ok(Stage { processes: Vec::new(), _routers: routers, addresses, each, sent: 0 })
    }

    /// Has so many processes in all. Returns once every member has all of them in its view.
    pub(crate) fn grow(&mut self, processes: usize) -> Result<()> {
        let there = self.processes.len();
        for number in there + 1..=processes {
            let spec = spec(Part::Source { members: self.each }, number, &self.addresses);
            self.processes.push(Child::start(format!("process-{number}"), "group-process", &spec)?);
        }
        for process in &mut self.processes[there..] {
            ensure!(process.line()? == "joined", "{} did not join", process.name);
        }
        let members = self.members();
        for process in &mut self.processes {
            process.tell(&format!("until {members}"))?;
        }
        for process in &mut self.processes {
            let said = process.line()?;
            ensure!(said == "so it is", "{}: {said}", process.name);
        }
        // Links and codecs have been used once when it is measured.
        self.run(Work::Apart(Verb::Send)).map(drop)
    }

    /// The members that there are.
    pub(crate) fn members(&self) -> usize {
        self.each * self.processes.len()
    }

    /// Milliseconds from each update until the last member has applied it. Updates are sent one after another.
    pub(crate) fn deliveries(&mut self, verb: Verb, seconds: f64) -> Result<Vec<f64>> {
        let runs = self.runs(Work::Apart(verb), seconds)?;
        Ok(runs.into_iter().map(|operation| millis(operation.last - operation.began)).collect())
    }

    /// Milliseconds that each series of updates takes until it is not lost any more with the member that sent it: flushed, or each of it safe.
    pub(crate) fn responses(&mut self, verb: Verb, seconds: f64) -> Result<Vec<f64>> {
        Ok(self.runs(Work::Series(verb), seconds)?.into_iter().map(|series| millis(series.took)).collect())
    }

    /// Milliseconds from each query until all members have replied.
    pub(crate) fn queries(&mut self, seconds: f64) -> Result<Vec<f64>> {
        Ok(self.runs(Work::Queries, seconds)?.into_iter().map(|query| millis(query.took)).collect())
    }

    /// Ten runs, or as many as the time allows, and one at least.
    fn runs(&mut self, work: Work, seconds: f64) -> Result<Vec<Operation>> {
        let (began, mut all) = (Instant::now(), Vec::new());
        for _ in 0..RUNS_MAX {
            all.extend(self.run(work)?);
            if began.elapsed().as_secs_f64() >= seconds {
                break;
            }
        }
        Ok(all)
    }

    fn run(&mut self, work: Work) -> Result<Vec<Operation>> {
        let asked = format!("work {}", serde_json::to_string(&work)?);
        let said = self.processes[0].ask(&asked)?;
        let mut done: Vec<Operation> =
            serde_json::from_str(&said).with_context(|| format!("{work:?}: {said}"))?;
        if matches!(work, Work::Queries) {
            return Ok(done);
        }
        for process in &mut self.processes {
            process.tell(&format!("applied {}", self.sent + 1))?;
        }
        let mut last = vec![0; OPERATIONS];
        for process in &mut self.processes {
            let said = process.line()?;
            let applied: Vec<u64> =
                serde_json::from_str(&said).with_context(|| format!("{}: {said}", process.name))?;
            for (last, applied) in last.iter_mut().zip(applied) {
                *last = applied.max(*last);
            }
        }
        self.sent += OPERATIONS as u64;
        if matches!(work, Work::Apart(_)) {
            done.iter_mut().zip(last).for_each(|(operation, last)| operation.last = last);
        }
        Ok(done)
    }
}

fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

fn spec(part: Part, number: usize, routers: &[String]) -> Spec {
    Spec {
        part,
        number: number as u64,
        routers: routers.to_vec(),
        wanted: ROUTERS,
        what: What::Soft,
        bytes: UPDATE_BYTES,
        in_flight: 1,
        apart: false,
        pack: None,
        datagram_bytes: None,
    }
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Operation {
    /// When it began, on the machine's clock.
    began: u64,
    /// How long it took its caller, in nanoseconds.
    took: u64,
    /// When the last member had applied it; 0 if that is not looked at.
    last: u64,
}

/// A member's view, and its updates.
#[derive(Default)]
struct Seen {
    /// The members of its view.
    size: usize,
    /// The updates since they were asked for: which, and when each was applied.
    applied: Vec<(u64, u64)>,
}

/// An update: which, and bytes that nobody reads.
type Update = (u64, String);

type Sender = Member<Handlers<(), Update, (), ()>>;

fn watcher(seen: &Arc<Mutex<Seen>>) -> Handlers<(), Update, (), ()> {
    let (applies, views) = (seen.clone(), seen.clone());
    Handlers::new("source/1", ())
        .update(move |(), (number, _): Update, _: &Origin| {
            applies.lock().expect("nobody panics with it").applied.push((number, nanos()));
        })
        .query(|(), (), _| Answer::Now(()))
        .view(move |(), view: &View| {
            views.lock().expect("nobody panics with it").size = view.members.len();
        })
}

pub(super) fn take_part(spec: &Spec, members: usize) -> Result<()> {
    let node = Node::builder().routers(&spec.routers).patience(PATIENCE).start().wait()?;
    let seen: Vec<Arc<Mutex<Seen>>> = (0..members).map(|_| Arc::default()).collect();
    let all = joined(seen.iter().map(|seen| node.group("source").join(watcher(seen))))?;
    say("joined")?;
    let wait_until = |is: &dyn Fn(&Seen) -> bool| -> Result<()> {
        let until = Instant::now() + PATIENCE;
        for seen in &seen {
            while !is(&seen.lock().expect("nobody panics with it")) {
                ensure!(Instant::now() < until, "not in {PATIENCE:?}");
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    };
    let mut sent = 0;
    for line in io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("until", size) => {
                let size: usize = size.parse()?;
                wait_until(&|seen| seen.size == size)?;
                say("so it is")?;
            }
            ("work", work) => {
                let work = serde_json::from_str(work)?;
                say(serde_json::to_string(&perform(&all[0], work, spec.bytes, &mut sent)?)?)?;
            }
            ("applied", first) => {
                let first: u64 = first.parse()?;
                wait_until(&|seen| seen.applied.len() >= OPERATIONS)?;
                let mut last = vec![0; OPERATIONS];
                for seen in &seen {
                    let applied = mem::take(&mut seen.lock().expect("nobody panics with it").applied);
                    let numbers = applied.iter().map(|(number, _)| *number);
                    ensure!(
                        numbers.eq(first..first + OPERATIONS as u64),
                        "updates are lost, doubled or out of order"
                    );
                    for (last, (_, at)) in last.iter_mut().zip(applied) {
                        *last = at.max(*last);
                    }
                }
                say(serde_json::to_string(&last)?)?;
            }
            _ => bail!("what is {line:?}?"),
        }
    }
    Ok(())
}

fn perform(member: &Sender, work: Work, bytes: usize, sent: &mut u64) -> Result<Vec<Operation>> {
    let mut done = Vec::with_capacity(OPERATIONS);
    let mut timed = |operation: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        let began = nanos();
        operation()?;
        done.push(Operation { began, took: nanos() - began, last: 0 });
        thread::sleep(PAUSE);
        Ok(())
    };
    let mut send = |verb| {
        *sent += 1;
        // Its number takes two bytes or three, and the length of the text one.
        let update = (*sent, "x".repeat(bytes - 4));
        match verb {
            Verb::Send => member.send(update),
            Verb::Safe(acceptors) => member.safe_send_to(Phi::Count(acceptors), update),
        }
    };
    match work {
        Work::Apart(verb) => {
            for _ in 0..OPERATIONS {
                timed(&mut || Ok(send(verb).wait().map(drop)?))?;
            }
        }
        Work::Series(verb) => timed(&mut || {
            let series: Vec<_> = (0..OPERATIONS).map(|_| send(verb)).collect();
            for update in series {
                update.wait()?;
            }
            if matches!(verb, Verb::Send) {
                member.flush().wait()?;
            }
            Ok(())
        })?,
        Work::Queries => {
            for _ in 0..OPERATIONS {
                timed(&mut || {
                    let told = member.query((), Want::All).deadline(PATIENCE).wait()?;
                    ensure!(told.complete, "members did not reply: {:?}", told.missing);
                    Ok(())
                })?;
            }
        }
    }
    Ok(done)
}
