//! A replicated service: what is told of calls is one history, and replicas are the same.
//!
//! Every call has a number, and what chance added to a call shows which execution of it was seen. So it is judged without
//! a model of the service: a call has one execution that anybody ever sees, an answered one is there at the end, and one
//! that was told to have had no effect is nowhere.

use std::collections::{BTreeMap, BTreeSet};

use quorate_history::{self as history, Action, History, Operation, Outcome, Verdict};
use quorate_world::Violation;

use super::serial::{self, Unit, Versions};

/// What is known of calls and of states.
#[derive(Debug, Default)]
pub(crate) struct ServiceCheck {
    /// What was added to each call's execution, and where it was seen first.
    seen: BTreeMap<u64, (u64, &'static str)>,
    answered: BTreeSet<u64>,
    /// Calls that never take effect.
    void: BTreeSet<u64>,
    operations: Vec<Operation>,
    /// What took effect in one step, or may have.
    units: Vec<Unit>,
    /// Calls of each transaction that took effect together or not at all.
    together: Vec<Vec<u64>>,
    /// The state behind each instance, and whose it was that was seen first.
    states: BTreeMap<u64, (u64, u64)>,
}

/// A call on its way: when it was made, and what it asks for.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) call: u64,
    pub(crate) key: u64,
    pub(crate) write: bool,
    pub(crate) at: i64,
}

/// A transaction, as its client knows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deal {
    /// It takes effect no earlier.
    pub(crate) at: i64,
    /// Calls that were to write.
    pub(crate) asked: Vec<u64>,
    /// Those that were answered: key and value.
    pub(crate) wrote: Vec<(u64, (u64, u64))>,
    /// Keys that it read, and what it saw.
    pub(crate) read: Vec<(u64, Option<(u64, u64)>)>,
}

impl Deal {
    fn unit(&self, finish: Option<i64>) -> Unit {
        Unit {
            start: self.at,
            finish,
            writes: self.wrote.iter().map(|(_, (call, _))| *call).collect(),
            reads: self.read.iter().map(|(key, seen)| (*key, seen.map(|(call, _)| call))).collect(),
        }
    }

    /// The writes that others may see, as operations on registers: the last of each key.
    fn operations(&self, finish: Option<i64>) -> Vec<Operation> {
        let last: BTreeMap<u64, u64> = self.wrote.iter().map(|(key, (call, _))| (*key, *call)).collect();
        let write = |(key, call): (u64, u64)| {
            let asked = Asked { call, key, write: true, at: self.at };
            asked.operation(Action::Write(call.into()), finish)
        };
        last.into_iter().map(write).collect()
    }
}

impl Asked {
    fn unit(&self, finish: Option<i64>) -> Unit {
        Unit { start: self.at, finish, ..Unit::default() }
    }

    fn operation(&self, action: Action, finish: Option<i64>) -> Operation {
        let outcome = if finish.is_some() { Outcome::Ok } else { Outcome::Unknown };
        // Calls of one client are not made one after the other: each is a client of its own here.
        Operation {
            client: self.call,
            key: self.key.to_string().into(),
            action,
            start: self.at,
            finish,
            outcome,
        }
    }
}

impl ServiceCheck {
    fn see(&mut self, (call, added): (u64, u64), place: &'static str) -> Result<(), Violation> {
        let (first, before) = *self.seen.entry(call).or_insert((added, place));
        if first == added {
            return Ok(());
        }
        let what = format!("{place} has another execution of call {call} than {before}");
        Err(Violation::new("exactly once", what))
    }

    /// A write was answered.
    pub(crate) fn wrote(&mut self, asked: &Asked, reply: (u64, u64), now: i64) -> Result<(), Violation> {
        if reply.0 != asked.call {
            let what = format!("call {} is given the answer of {}", asked.call, reply.0);
            return Err(Violation::new("answer", what));
        }
        self.answered.insert(asked.call);
        self.units.push(Unit { writes: vec![asked.call], ..asked.unit(Some(now)) });
        self.operations.push(asked.operation(Action::Write(asked.call.into()), Some(now)));
        self.see(reply, "an answer")
    }

    /// A register was looked at.
    pub(crate) fn read(
        &mut self,
        asked: &Asked,
        value: Option<(u64, u64)>,
        now: i64,
    ) -> Result<(), Violation> {
        let action = Action::Read(value.map(|(call, _)| call.into()));
        self.operations.push(asked.operation(action, Some(now)));
        let reads = vec![(asked.key, value.map(|(call, _)| call))];
        self.units.push(Unit { reads, ..asked.unit(Some(now)) });
        value.map_or(Ok(()), |written| self.see(written, "a read"))
    }

    /// A call was told to have had no effect, nor to have one ever.
    pub(crate) fn nothing(&mut self, asked: &Asked) {
        if asked.write {
            self.void.insert(asked.call);
        }
    }

    /// Nobody knows what becomes of a call.
    pub(crate) fn unknown(&mut self, asked: &Asked) {
        if asked.write {
            self.operations.push(asked.operation(Action::Write(asked.call.into()), None));
            self.units.push(Unit { writes: vec![asked.call], ..asked.unit(None) });
        }
    }

    /// A transaction was committed.
    pub(crate) fn committed(&mut self, deal: &Deal, now: i64) -> Result<(), Violation> {
        self.units.push(deal.unit(Some(now)));
        self.operations.extend(deal.operations(Some(now)));
        for (_, written) in &deal.wrote {
            self.answered.insert(written.0);
            self.see(*written, "a commit")?;
        }
        deal.read.iter().filter_map(|(_, seen)| *seen).try_for_each(|seen| self.see(seen, "a commit"))
    }

    /// A transaction was told to have had no effect, nor to have one ever.
    pub(crate) fn aborted(&mut self, deal: &Deal) {
        self.void.extend(&deal.asked);
    }

    /// Nobody knows what becomes of a transaction whose commit was asked for. What it saw counts only if it took effect.
    pub(crate) fn open(&mut self, deal: &Deal) {
        self.units.push(Unit { reads: Vec::new(), ..deal.unit(None) });
        self.operations.extend(deal.operations(None));
        self.together.push(deal.wrote.iter().map(|(_, (call, _))| *call).collect());
    }

    /// The state of a life behind an instance.
    pub(crate) fn state(&mut self, life: u64, instance: u64, digest: u64) -> Result<(), Violation> {
        let (first, by) = *self.states.entry(instance).or_insert((digest, life));
        if first == digest {
            return Ok(());
        }
        let what = format!("behind instance {instance} the state of life {life} is not that of life {by}");
        Err(Violation::new("same states", what))
    }

    /// Judges all that was told by what the service holds at the end: the executions of each call, as what chance added, the key
    /// and the value that was replaced.
    pub(crate) fn judge(
        &mut self,
        effects: impl Iterator<Item = (u64, Vec<(u64, u64, Option<u64>)>)>,
    ) -> Result<(), Violation> {
        let mut missing = self.answered.clone();
        let mut versions = Versions::new();
        for (call, executions) in effects {
            let [(added, key, before)] = executions[..] else {
                let what = format!("call {call} took effect {} times", executions.len());
                return Err(Violation::new("exactly once", what));
            };
            versions.insert(call, (key, before));
            self.see((call, added), "the state")?;
            if self.void.contains(&call) {
                return Err(Violation::new(
                    "outcome",
                    format!("call {call} took effect, and was told not to"),
                ));
            }
            missing.remove(&call);
        }
        if let Some(call) = missing.first() {
            return Err(Violation::new("durable", format!("call {call} was answered, and is gone")));
        }
        for calls in &self.together {
            let there = calls.iter().filter(|call| versions.contains_key(call)).count();
            if there > 0 && there < calls.len() {
                let what = format!("of the transaction of calls {calls:?}, {there} took effect");
                return Err(Violation::new("together", what));
            }
        }
        serial::check(&self.units, &versions).map_err(|what| Violation::new("serializable", what))?;
        let history: History = std::mem::take(&mut self.operations).into_iter().collect();
        let report = history::check(&history);
        match report.verdict {
            Verdict::Atomic => Ok(()),
            verdict => Err(Violation::new("atomic", format!("{verdict:?}: {report}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(call: u64, write: bool, at: i64) -> Asked {
        Asked { call, key: 1, write, at }
    }

    fn rule(result: Result<(), Violation>) -> &'static str {
        result.unwrap_err().rule
    }

    #[test]
    fn a_call_has_one_execution() {
        let mut check = ServiceCheck::default();
        check.wrote(&asked(1, true, 0), (1, 70), 10).unwrap();
        assert_eq!(rule(check.read(&asked(2, false, 20), Some((1, 71)), 30)), "exactly once");
        let mut check = ServiceCheck::default();
        assert_eq!(rule(check.judge([(1, vec![(70, 1, None), (71, 1, None)])].into_iter())), "exactly once");
        assert_eq!(rule(check.wrote(&asked(1, true, 0), (2, 70), 10)), "answer");
    }

    #[test]
    fn what_was_told_is_what_is_there() {
        let mut check = ServiceCheck::default();
        check.wrote(&asked(1, true, 0), (1, 70), 10).unwrap();
        assert_eq!(rule(check.judge([].into_iter())), "durable");
        let mut check = ServiceCheck::default();
        check.nothing(&asked(1, true, 0));
        assert_eq!(rule(check.judge([(1, vec![(70, 1, None)])].into_iter())), "outcome");
        let mut check = ServiceCheck::default();
        check.unknown(&asked(1, true, 0));
        check.judge([(1, vec![(70, 1, None)])].into_iter()).unwrap();
    }

    #[test]
    fn a_read_sees_what_was_answered_before() {
        let mut check = ServiceCheck::default();
        check.wrote(&asked(1, true, 0), (1, 70), 10).unwrap();
        check.read(&asked(2, false, 20), None, 30).unwrap();
        let judged = check.judge([(1, vec![(70, 1, None)])].into_iter());
        assert_eq!(rule(judged), "serializable", "and it would not be atomic");
    }

    #[test]
    fn states_of_one_instance_are_equal() {
        let mut check = ServiceCheck::default();
        check.state(1, 5, 99).unwrap();
        check.state(2, 5, 99).unwrap();
        assert_eq!(rule(check.state(3, 5, 98)), "same states");
    }
}
