//! Replicated services: the answers to calls form one history, and replicas have equal states.
//!
//! Every call has a number. A random number that marks each execution shows which execution a reader saw. So
//! calls are judged without a model of the service: users see at most one execution of a call, an answered
//! call is there at the end, and a call that was reported to have no effect is not among the executions.

use std::collections::{BTreeMap, BTreeSet};

use quorate_history::{self as history, Action, History, Operation, Outcome, Verdict};
use quorate_protocol::service::SessionId;
use quorate_world::Violation;

use super::serial::{self, Unit, Versions};

/// The known facts about calls and states.
#[derive(Debug, Default)]
pub(crate) struct ServiceCheck {
    /// By the number of each call: the random number that marks the call's execution, and the place where
    /// that mark was seen first.
    seen: BTreeMap<u64, (u64, &'static str)>,
    answered: BTreeSet<u64>,
    /// Calls that never take effect.
    void: BTreeSet<u64>,
    operations: Vec<Operation>,
    /// Transactions and plain calls that took effect in one step, or may have taken effect.
    units: Vec<Unit>,
    /// Groups of calls, by transaction, that took effect together or not at all.
    together: Vec<Vec<u64>>,
    /// The digest of the state behind each instance, and the life that showed it first.
    states: BTreeMap<u64, (u64, u64)>,
    /// The number of the last instance that any replica has learned.
    furthest: u64,
    /// The sessions that are open after `furthest`, each with the number below which it forgets calls.
    open: BTreeMap<SessionId, u64>,
}

/// A call that has no answer yet: its time, and its content.
#[derive(Clone, Debug)]
pub(crate) struct PendingCall {
    pub(crate) call: u64,
    pub(crate) key: u64,
    pub(crate) write: bool,
    pub(crate) at: i64,
}

/// A transaction as its client knows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientTransaction {
    /// The earliest time of the transaction's effect.
    pub(crate) at: i64,
    /// The calls by which the client wanted to write.
    pub(crate) asked: Vec<u64>,
    /// The answered writes: key and value.
    pub(crate) wrote: Vec<(u64, (u64, u64))>,
    /// The keys that the transaction read, with the values that it saw.
    pub(crate) read: Vec<(u64, Option<(u64, u64)>)>,
}

impl ClientTransaction {
    fn unit(&self, finish: Option<i64>) -> Unit {
        Unit {
            start: self.at,
            finish,
            writes: self.wrote.iter().map(|(_, (call, _))| *call).collect(),
            reads: self.read.iter().map(|(key, seen)| (*key, seen.map(|(call, _)| call))).collect(),
        }
    }

    /// Returns the writes that other clients may see, as operations on registers: the last write of each key.
    fn operations(&self, finish: Option<i64>) -> Vec<Operation> {
        let last: BTreeMap<u64, u64> = self.wrote.iter().map(|(key, (call, _))| (*key, *call)).collect();
        let write = |(key, call): (u64, u64)| {
            let asked = PendingCall { call, key, write: true, at: self.at };
            asked.operation(Action::Write(call.into()), finish)
        };
        last.into_iter().map(write).collect()
    }
}

impl PendingCall {
    fn unit(&self, finish: Option<i64>) -> Unit {
        Unit { start: self.at, finish, ..Unit::default() }
    }

    fn operation(&self, action: Action, finish: Option<i64>) -> Operation {
        let outcome = if finish.is_some() { Outcome::Ok } else { Outcome::Unknown };
        // The calls of one client overlap, so each call counts as a client of its own here.
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
        let what = format!("{place} shows another execution of call {call} than {before}");
        Err(Violation::new("exactly once", what))
    }

    /// Notes the sessions of a replica that has learned up to an instance. Each session has the number below
    /// which it forgets calls.
    pub(crate) fn sessions<S: Iterator<Item = (SessionId, u64)>>(
        &mut self,
        instance: u64,
        sessions: impl Fn() -> S,
    ) {
        if instance > self.furthest {
            (self.furthest, self.open) = (instance, sessions().collect());
        }
    }

    /// Checks the answer that a call is forgotten. The answer is right only if the chosen log has ended the
    /// session, has forgotten the call, or has never opened the session.
    pub(crate) fn expired(&self, session: SessionId, number: u64) -> Result<(), Violation> {
        match self.open.get(&session) {
            Some(done) if number >= *done => {
                let what = format!(
                    "the client of call {number} of {session:?} was told that the call is forgotten, but \
                     the replicas remember this call"
                );
                Err(Violation::new("expired", what))
            }
            _ => Ok(()),
        }
    }

    /// Records the answer to a write.
    pub(crate) fn wrote(
        &mut self,
        asked: &PendingCall,
        reply: (u64, u64),
        now: i64,
    ) -> Result<(), Violation> {
        if reply.0 != asked.call {
            let what = format!("call {} received the answer to call {}", asked.call, reply.0);
            return Err(Violation::new("answer", what));
        }
        self.answered.insert(asked.call);
        self.units.push(Unit { writes: vec![asked.call], ..asked.unit(Some(now)) });
        self.operations.push(asked.operation(Action::Write(asked.call.into()), Some(now)));
        self.see(reply, "an answer")
    }

    /// Records the answer to a read of a register.
    pub(crate) fn read(
        &mut self,
        asked: &PendingCall,
        value: Option<(u64, u64)>,
        now: i64,
    ) -> Result<(), Violation> {
        let action = Action::Read(value.map(|(call, _)| call.into()));
        self.operations.push(asked.operation(action, Some(now)));
        let reads = vec![(asked.key, value.map(|(call, _)| call))];
        self.units.push(Unit { reads, ..asked.unit(Some(now)) });
        value.map_or(Ok(()), |written| self.see(written, "a read"))
    }

    /// Records an answer that a call has had no effect and never will.
    pub(crate) fn without_effect(&mut self, asked: &PendingCall) {
        if asked.write {
            self.void.insert(asked.call);
        }
    }

    /// Records a call of unknown outcome.
    pub(crate) fn unknown(&mut self, asked: &PendingCall) {
        if asked.write {
            self.operations.push(asked.operation(Action::Write(asked.call.into()), None));
            self.units.push(Unit { writes: vec![asked.call], ..asked.unit(None) });
        }
    }

    /// Records the commit of a transaction.
    pub(crate) fn committed(&mut self, deal: &ClientTransaction, now: i64) -> Result<(), Violation> {
        self.units.push(deal.unit(Some(now)));
        self.operations.extend(deal.operations(Some(now)));
        for (_, written) in &deal.wrote {
            self.answered.insert(written.0);
            self.see(*written, "a commit")?;
        }
        deal.read.iter().filter_map(|(_, seen)| *seen).try_for_each(|seen| self.see(seen, "a commit"))
    }

    /// Records an answer that a transaction has had no effect and never will.
    pub(crate) fn aborted(&mut self, deal: &ClientTransaction) {
        self.void.extend(&deal.asked);
    }

    /// Records a transaction whose commit has an unknown outcome. Its reads count only if it took effect, so
    /// the check leaves them out.
    pub(crate) fn unknown_commit(&mut self, deal: &ClientTransaction) {
        self.units.push(Unit { reads: Vec::new(), ..deal.unit(None) });
        self.operations.extend(deal.operations(None));
        self.together.push(deal.wrote.iter().map(|(_, (call, _))| *call).collect());
    }

    /// Compares the state of a life behind an instance with the states of other lives.
    pub(crate) fn state(&mut self, life: u64, instance: u64, digest: u64) -> Result<(), Violation> {
        let (first, by) = *self.states.entry(instance).or_insert((digest, life));
        if first == digest {
            return Ok(());
        }
        let what =
            format!("after instance {instance} the states of the process lives {life} and {by} differ");
        Err(Violation::new("same states", what))
    }

    /// Judges all answers by the content of the service at the end. `effects` lists the executions of each
    /// call: the random mark, the key, and the replaced value.
    pub(crate) fn judge(
        &mut self,
        effects: impl Iterator<Item = (u64, Vec<(u64, u64, Option<u64>)>)>,
    ) -> Result<(), Violation> {
        let mut missing = self.answered.clone();
        let mut versions = Versions::new();
        for (call, executions) in effects {
            let [(added, key, before)] = executions[..] else {
                let what = format!("call {call} took effect {} times instead of once", executions.len());
                return Err(Violation::new("exactly once", what));
            };
            versions.insert(call, (key, before));
            self.see((call, added), "the state")?;
            if self.void.contains(&call) {
                return Err(Violation::new(
                    "outcome",
                    format!("call {call} took effect, but its client was told that the call never will"),
                ));
            }
            missing.remove(&call);
        }
        if let Some(call) = missing.first() {
            return Err(Violation::new(
                "durable",
                format!("call {call} was answered, but the final state does not contain its effect"),
            ));
        }
        for calls in &self.together {
            let there = calls.iter().filter(|call| versions.contains_key(call)).count();
            if there > 0 && there < calls.len() {
                let what = format!(
                    "the transaction with the calls {calls:?} took effect in part: {there} of these calls \
                     took effect"
                );
                return Err(Violation::new("together", what));
            }
        }
        serial::check(&self.units, &versions).map_err(|what| Violation::new("serializable", what))?;
        let history: History = std::mem::take(&mut self.operations).into_iter().collect();
        let report = history::check(&history);
        match report.verdict {
            Verdict::Atomic => Ok(()),
            verdict => {
                Err(Violation::new("atomic", format!("the history of calls is {verdict:?}: {report}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(call: u64, write: bool, at: i64) -> PendingCall {
        PendingCall { call, key: 1, write, at }
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
        check.without_effect(&asked(1, true, 0));
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
    fn a_session_that_is_open_is_not_over() {
        let mut check = ServiceCheck::default();
        assert!(check.expired(SessionId(1), 3).is_ok(), "it was never opened");
        let sessions = |sessions: &'static [(SessionId, u64)]| move || sessions.iter().copied();
        check.sessions(5, sessions(&[(SessionId(1), 3)]));
        assert_eq!(rule(check.expired(SessionId(1), 3)), "expired");
        assert!(check.expired(SessionId(1), 2).is_ok(), "that call is forgotten");
        check.sessions(4, sessions(&[]));
        assert_eq!(rule(check.expired(SessionId(1), 3)), "expired");
        check.sessions(6, sessions(&[]));
        assert!(check.expired(SessionId(1), 3).is_ok(), "the session is over");
    }

    #[test]
    fn states_of_one_instance_are_equal() {
        let mut check = ServiceCheck::default();
        check.state(1, 5, 99).unwrap();
        check.state(2, 5, 99).unwrap();
        assert_eq!(rule(check.state(3, 5, 98)), "same states");
    }
}
