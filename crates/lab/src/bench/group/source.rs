//! Measurements made in the source's way (000 §9): runs of twenty updates of 100 bytes, one after another or
//! in a series that is answered as a whole, and queries of all members.
//!
//! The source has a cluster of 78 machines. Here all processes share one machine, each with the requested
//! number of members.

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
    group::{Answer, Handlers, Member, Origin, SendStrength, View, Want},
};
use serde::{Deserialize, Serialize};

use super::{
    args::Measure,
    clock::nanos,
    report::say,
    spec::{GroupProcessSpec, MemberPart},
    watch::joined,
};
use crate::bench::child::Child;

/// Number of operations of a run, and of a series.
const OPERATIONS: usize = 20;
/// Maximum number of runs of one measurement. There are fewer runs if the time is over before.
const RUNS_MAX: usize = 10;
const ROUTERS: usize = 3;
const UPDATE_BYTES: usize = 100;
/// Time between two operations.
const PAUSE: Duration = Duration::from_millis(4);
/// Time within which each member must have all other members in its view, and an operation must end.
const PATIENCE: Duration = Duration::from_secs(120);

/// The operations of one run.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
enum Operations {
    /// Updates, one after another.
    Apart(SendStrength),
    /// Concurrent updates, and a flush if they are soft.
    Series(SendStrength),
    /// Queries of all members, one after another.
    Queries,
}

/// Routers and processes with members of one group; the first member of the first process sends.
pub(crate) struct GroupBench {
    // This field stands before `routers`, so that the processes are dropped first and their members never
    // lack the routers.
    processes: Vec<Child>,
    _routers: Vec<Child>,
    addresses: Vec<String>,
    /// Number of members in each process.
    each: usize,
    /// Number of sent updates, each of which all members have applied once.
    pub(crate) sent: u64,
}

impl GroupBench {
    /// Starts routers, for processes with `each` members each.
    pub(crate) fn begin(each: usize) -> Result<GroupBench> {
        let (mut routers, mut addresses) = (Vec::new(), Vec::new());
        for number in 1..=ROUTERS {
            let spec = spec(MemberPart::Router, number, &addresses);
            let mut router = Child::start(format!("router-{number}"), "group-process", &spec)?;
            addresses.push(router.line()?);
            routers.push(router);
        }
        Ok(GroupBench { processes: Vec::new(), _routers: routers, addresses, each, sent: 0 })
    }

    /// Starts processes up to this number. Returns once every member has all members in its view.
    pub(crate) fn grow(&mut self, processes: usize) -> Result<()> {
        let there = self.processes.len();
        for number in there + 1..=processes {
            let spec = spec(MemberPart::Source { members: self.each }, number, &self.addresses);
            self.processes.push(Child::start(format!("process-{number}"), "group-process", &spec)?);
        }
        for process in &mut self.processes[there..] {
            ensure!(process.line()? == "joined", "{} did not join its group", process.name);
        }
        let members = self.members();
        for process in &mut self.processes {
            process.send_line(&format!("until {members}"))?;
        }
        for process in &mut self.processes {
            let said = process.line()?;
            ensure!(said == "so it is", "{}: {said}", process.name);
        }
        // Every link and codec is used once before the measurement.
        self.run(Operations::Apart(SendStrength::Soft)).map(drop)
    }

    /// Returns the number of members.
    pub(crate) fn members(&self) -> usize {
        self.each * self.processes.len()
    }

    /// Returns the milliseconds from each update until the last member has applied it. Updates follow each
    /// other.
    pub(crate) fn deliveries(&mut self, strength: SendStrength, seconds: f64) -> Result<Vec<f64>> {
        let runs = self.runs(Operations::Apart(strength), seconds)?;
        Ok(runs.into_iter().map(|operation| millis(operation.last - operation.began)).collect())
    }

    /// Returns the milliseconds until each series of updates survives the loss of its sender: it is flushed,
    /// or every update is safe.
    pub(crate) fn responses(&mut self, strength: SendStrength, seconds: f64) -> Result<Vec<f64>> {
        Ok(self
            .runs(Operations::Series(strength), seconds)?
            .into_iter()
            .map(|series| millis(series.took))
            .collect())
    }

    /// Returns the milliseconds from each query until all members have replied.
    pub(crate) fn queries(&mut self, seconds: f64) -> Result<Vec<f64>> {
        Ok(self.runs(Operations::Queries, seconds)?.into_iter().map(|query| millis(query.took)).collect())
    }

    /// Makes ten runs, or as many as the time allows, and at least one.
    fn runs(&mut self, work: Operations, seconds: f64) -> Result<Vec<TimedOperation>> {
        let (began, mut all) = (Instant::now(), Vec::new());
        for _ in 0..RUNS_MAX {
            all.extend(self.run(work)?);
            if began.elapsed().as_secs_f64() >= seconds {
                break;
            }
        }
        Ok(all)
    }

    fn run(&mut self, work: Operations) -> Result<Vec<TimedOperation>> {
        let asked = format!("work {}", serde_json::to_string(&work)?);
        let said = self.processes[0].ask(&asked)?;
        let mut done: Vec<TimedOperation> = serde_json::from_str(&said)
            .with_context(|| format!("cannot read the report of the first process on {work:?}: {said}"))?;
        if matches!(work, Operations::Queries) {
            return Ok(done);
        }
        for process in &mut self.processes {
            process.send_line(&format!("applied {}", self.sent + 1))?;
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
        if matches!(work, Operations::Apart(_)) {
            done.iter_mut().zip(last).for_each(|(operation, last)| operation.last = last);
        }
        Ok(done)
    }
}

fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

fn spec(part: MemberPart, number: usize, routers: &[String]) -> GroupProcessSpec {
    GroupProcessSpec {
        part,
        number: number as u64,
        routers: routers.to_vec(),
        wanted: ROUTERS,
        what: Measure::Soft,
        bytes: UPDATE_BYTES,
        in_flight: 1,
        apart: false,
        pack: None,
        datagram_bytes: None,
    }
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct TimedOperation {
    /// The time of the operation's start, on the machine's clock.
    began: u64,
    /// The operation's duration for the caller, in nanoseconds.
    took: u64,
    /// The time at which the last member had applied the update; 0 if that is not measured.
    last: u64,
}

/// A member's view, and its updates.
#[derive(Default)]
struct MemberUpdates {
    /// Number of members in the view.
    size: usize,
    /// The updates since the last report: the number of each, and the time at which it was applied.
    applied: Vec<(u64, u64)>,
}

/// An update: its number, and padding.
type NumberedUpdate = (u64, String);

type Sender = Member<Handlers<(), NumberedUpdate, (), ()>>;

fn watcher(seen: &Arc<Mutex<MemberUpdates>>) -> Handlers<(), NumberedUpdate, (), ()> {
    let (applies, views) = (seen.clone(), seen.clone());
    Handlers::new("source/1", ())
        .update(move |(), (number, _): NumberedUpdate, _: &Origin| {
            applies
                .lock()
                .expect("no thread panics while it holds this lock")
                .applied
                .push((number, nanos()));
        })
        .query(|(), (), _| Answer::Now(()))
        .view(move |(), view: &View| {
            views.lock().expect("no thread panics while it holds this lock").size = view.members.len();
        })
}

pub(super) fn take_part(spec: &GroupProcessSpec, members: usize) -> Result<()> {
    let node = Node::builder().routers(&spec.routers).patience(PATIENCE).start().wait()?;
    let seen: Vec<Arc<Mutex<MemberUpdates>>> = (0..members).map(|_| Arc::default()).collect();
    let all = joined(seen.iter().map(|seen| node.group("source").join(watcher(seen))))?;
    say("joined")?;
    let wait_until = |is: &dyn Fn(&MemberUpdates) -> bool| -> Result<()> {
        let until = Instant::now() + PATIENCE;
        for seen in &seen {
            while !is(&seen.lock().expect("no thread panics while it holds this lock")) {
                ensure!(
                    Instant::now() < until,
                    "a member of the bench did not come to the awaited state within {PATIENCE:?}"
                );
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
                    let applied = mem::take(
                        &mut seen.lock().expect("no thread panics while it holds this lock").applied,
                    );
                    let numbers = applied.iter().map(|(number, _)| *number);
                    ensure!(
                        numbers.eq(first..first + OPERATIONS as u64),
                        "a member applied updates that are lost, doubled or out of order"
                    );
                    for (last, (_, at)) in last.iter_mut().zip(applied) {
                        *last = at.max(*last);
                    }
                }
                say(serde_json::to_string(&last)?)?;
            }
            _ => bail!("a process of the bench received the unknown command {line:?}"),
        }
    }
    Ok(())
}

fn perform(member: &Sender, work: Operations, bytes: usize, sent: &mut u64) -> Result<Vec<TimedOperation>> {
    let mut done = Vec::with_capacity(OPERATIONS);
    let mut timed = |operation: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        let began = nanos();
        operation()?;
        done.push(TimedOperation { began, took: nanos() - began, last: 0 });
        thread::sleep(PAUSE);
        Ok(())
    };
    let mut send = |strength| {
        *sent += 1;
        // The number takes two or three bytes, and the length of the text takes one.
        let update = (*sent, "x".repeat(bytes - 4));
        member.send_as(strength, update)
    };
    match work {
        Operations::Apart(strength) => {
            for _ in 0..OPERATIONS {
                timed(&mut || Ok(send(strength).wait().map(drop)?))?;
            }
        }
        Operations::Series(strength) => timed(&mut || {
            let series: Vec<_> = (0..OPERATIONS).map(|_| send(strength)).collect();
            for update in series {
                update.wait()?;
            }
            if strength == SendStrength::Soft {
                member.flush().wait()?;
            }
            Ok(())
        })?,
        Operations::Queries => {
            for _ in 0..OPERATIONS {
                timed(&mut || {
                    let answer = member.query((), Want::All).deadline(PATIENCE).wait()?;
                    ensure!(answer.complete, "these members did not reply to a query: {:?}", answer.missing);
                    Ok(())
                })?;
            }
        }
    }
    Ok(done)
}
