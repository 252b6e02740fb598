//! The plan of a command on a map of partial quorums: its operations, and the answer that their outcomes
//! make.
//!
//! A plan has one operation for each of its keys. Commands that count their changes (`DEL`, `HSET`, `HDEL`)
//! read first and then write. Another client may write between the two steps, so the count only reflects the
//! read. `INCR` and similar commands are one operation, so concurrent increments add up.

use bytes::Bytes;
use quorate::maps::strategy::keyspace::{Life, Request, When};
use quorate_protocol::partial::{Action, Level, OperationOutcome, Rejection};
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use super::{
    command::{KeyCommand, once_each},
    read_form::{ReadForm, ReadResult, counted, hash, is_there, value_of},
    refusal::{NO_NUMBER, WRONG_TYPE, named},
    reply::Reply,
    reply_form::ReplyForm,
};

/// A command on keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandPlan {
    pub(super) shape: PlanShape,
    /// The operations of the command's first step, each with its key.
    pub(super) operations: Operations,
}

/// The operations of a step. There is inline room for one, because most commands have one operation.
pub(super) type Operations = SmallVec<[(Bytes, Action); 1]>;

/// The way in which outcomes make an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PlanShape {
    /// `OK`, if all operations succeeded.
    Done,
    /// The count after an increment.
    Count,
    /// The values of the keys.
    Read(ReadForm),
    /// The second step deletes the keys that were found.
    Delete,
    /// The second step writes `fields`. The answer is the number of new fields if `counts`, otherwise `OK`.
    PutFields { fields: Vec<(Bytes, Bytes)>, counts: bool },
    /// The second step deletes these fields.
    DeleteFields(Vec<Bytes>),
    /// The second step of a command with the shape `Delete`, `PutFields` or `DeleteFields`. The reply is the
    /// answer if all operations of the step succeed.
    Second(Reply),
}

/// The next step of a command after all outcomes of the current step have come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    Answer(Reply),
    /// Operations of a second step, whose outcomes make the answer.
    More(CommandPlan),
}

impl CommandPlan {
    /// Makes the operations of a command. `name` is in capitals. Refuses a request that needs more than
    /// operations on single keys.
    pub(super) fn new(name: &[u8], KeyCommand { request, form }: KeyCommand) -> Result<CommandPlan, String> {
        let (shape, operations) = match (request, form) {
            (Request::Read(keys), ReplyForm::Read(form)) => (PlanShape::Read(form), reads(keys)),
            (
                Request::Put {
                    pairs, life: life @ (Life::Unlimited | Life::For(_)), when: When::Always, ..
                },
                ReplyForm::Done,
            ) => (PlanShape::Done, puts(pairs, life)),
            // The answer counts a key that is named twice once.
            (Request::Delete { keys, return_old: false }, _) => (PlanShape::Delete, reads(once_each(keys).0)),
            (Request::Add { key, added }, _) => (PlanShape::Count, smallvec![(key, Action::Add(added))]),
            (Request::PutFields { key, fields, absent: false }, form) => {
                let counts = form == ReplyForm::Count;
                (PlanShape::PutFields { fields, counts }, reads([key]))
            }
            (Request::DeleteFields { key, names }, _) => (PlanShape::DeleteFields(names), reads([key])),
            _ => return Err(named(name, "is not supported")),
        };
        Ok(CommandPlan { shape, operations })
    }

    /// Whether the command changes something, in its first or second step.
    pub(super) fn writes(&self) -> bool {
        self.shape.has_second() || self.operations.iter().any(|(_, action)| *action != Action::Read)
    }
}

fn reads(keys: impl IntoIterator<Item = Bytes>) -> Operations {
    keys.into_iter().map(|key| (key, Action::Read)).collect()
}

/// Returns the writes of strings. If a key is named twice, its last value is written.
fn puts(pairs: Vec<(Bytes, Bytes)>, life: Life) -> Operations {
    let lifetime = if let Life::For(span) = life { Some(span) } else { None };
    let put = |(key, value)| (key, Action::Put { value, lifetime });
    if pairs.len() == 1 {
        return pairs.into_iter().map(put).collect();
    }
    let mut operations = Operations::new();
    let mut places: FxHashMap<Bytes, usize> = FxHashMap::default();
    for (key, action) in pairs.into_iter().map(put) {
        let place = *places.entry(key.clone()).or_insert(operations.len());
        if place == operations.len() {
            operations.push((key, action));
        } else {
            operations[place].1 = action;
        }
    }
    operations
}

impl PlanShape {
    /// Whether the command has a second step after this step.
    pub(super) fn has_second(&self) -> bool {
        matches!(self, PlanShape::Delete | PlanShape::PutFields { .. } | PlanShape::DeleteFields(_))
    }

    /// Whether the answer contains the values that were found. If it does not, each value is dropped when it
    /// comes.
    pub(super) fn tells_value(&self) -> bool {
        match self {
            PlanShape::Read(form) => form.tells_value(),
            PlanShape::Delete => false,
            _ => true,
        }
    }

    /// Whether this is a step of a command of two steps.
    pub(super) fn is_step(&self) -> bool {
        self.has_second() || matches!(self, PlanShape::Second(_))
    }

    /// Makes the next step or the answer from the outcomes, one for each operation. `level` is the level of
    /// the second step's writes. A remaining life is computed by the clock of the read that found the value
    /// alive.
    ///
    /// If both steps are at quorum levels, the second step does not delete a key that the first step did not
    /// find. The tombstone would hide nothing, because the first step saw every write that a quorum
    /// acknowledged before the command began. The command then takes effect at the moment of that read, as a
    /// delete of nothing. At lower levels the first step may have missed the value, so the tombstone is
    /// written.
    pub(super) fn conclude(
        self,
        keys: &[Bytes],
        outcomes: impl IntoIterator<Item = OperationOutcome>,
        level: Level,
    ) -> NextStep {
        let mut found: SmallVec<[ReadResult; 1]> = SmallVec::new();
        let (mut counted_to, mut wall) = (0, 0);
        let mut sees_all = level.is_quorum();
        // A first step only reads, so only these shapes have written something.
        let wrote = matches!(self, PlanShape::Done | PlanShape::Count | PlanShape::Second(_));
        for outcome in outcomes {
            match outcome {
                OperationOutcome::Found { value, expires, level, wall: at, .. } => {
                    sees_all &= level.is_quorum();
                    found.push((value, expires));
                    wall = at;
                }
                OperationOutcome::Done { .. } => {}
                OperationOutcome::Counted { count, .. } => counted_to = count,
                other => return NextStep::Answer(Reply::Error(failure(&other, wrote))),
            }
        }
        match self {
            PlanShape::Done => NextStep::Answer(Reply::OK),
            PlanShape::Count => NextStep::Answer(Reply::Number(counted_to)),
            PlanShape::Read(form) => NextStep::Answer(form.answer(found, wall)),
            PlanShape::Second(reply) => NextStep::Answer(reply),
            PlanShape::Delete => {
                let reply = counted(found.iter().filter(|found| is_there(found)).count());
                let named = keys.iter().zip(&found).filter(|(_, found)| !sees_all || is_there(found));
                let operations: Operations = named.map(|(key, _)| (key.clone(), Action::Delete)).collect();
                if operations.is_empty() {
                    return NextStep::Answer(reply);
                }
                NextStep::More(CommandPlan { shape: PlanShape::Second(reply), operations })
            }
            PlanShape::PutFields { fields, counts } => match hash(&found[0]) {
                Err(wrong) => NextStep::Answer(wrong),
                Ok(present) => {
                    let mut fresh: Vec<&Bytes> = fields.iter().map(|(name, _)| name).collect();
                    fresh.sort_unstable();
                    fresh.dedup();
                    fresh.retain(|name| value_of(present, name).is_none());
                    let reply = if counts { counted(fresh.len()) } else { Reply::OK };
                    let fields = fields.into_iter().map(|(name, value)| (name, Some(value))).collect();
                    second(reply, &keys[0], Action::PutFields(fields))
                }
            },
            PlanShape::DeleteFields(mut names) => match hash(&found[0]) {
                Err(wrong) => NextStep::Answer(wrong),
                Ok(present) => {
                    names.sort_unstable();
                    names.dedup();
                    let is_there = |name: &Bytes| value_of(present, name).is_some();
                    let reply = counted(names.iter().filter(|name| is_there(name)).count());
                    names.retain(|name| !sees_all || is_there(name));
                    if names.is_empty() {
                        return NextStep::Answer(reply);
                    }
                    let fields = names.into_iter().map(|name| (name, None)).collect();
                    second(reply, &keys[0], Action::PutFields(fields))
                }
            },
        }
    }
}

fn second(reply: Reply, key: &Bytes, action: Action) -> NextStep {
    let operations = smallvec![(key.clone(), action)];
    NextStep::More(CommandPlan { shape: PlanShape::Second(reply), operations })
}

/// Describes a failed operation. The first word says what may have happened. If a write changed nothing, the
/// text says that, too.
fn failure(outcome: &OperationOutcome, wrote: bool) -> String {
    let nothing = if wrote { ": nothing was written" } else { "" };
    let words = match outcome {
        OperationOutcome::Unavailable => {
            return format!("UNAVAILABLE fewer replicas are reachable than the level needs{nothing}");
        }
        OperationOutcome::MaybeApplied => {
            "MAYBEAPPLIED too few replicas answered in time for the level: the write may take effect at any time from now on, or never"
        }
        OperationOutcome::NotApplied => {
            return format!("NOTAPPLIED too few replicas answered in time{nothing}");
        }
        OperationOutcome::Unanswered => "UNANSWERED too few replicas answered in time for the level",
        OperationOutcome::Rejected(Rejection::NoCell) => {
            "NOCELL this process is not a cell: it is joining, or is a spare because it joined after the first map was created"
        }
        OperationOutcome::Rejected(Rejection::NoMap) => "NOMAP the map does not exist, or was dropped",
        OperationOutcome::Rejected(Rejection::TooLarge) => {
            return format!("TOOLARGE the key or the value is too large{nothing}");
        }
        OperationOutcome::Rejected(Rejection::Busy) => {
            return format!("BUSY this cell has too many operations in progress{nothing}");
        }
        OperationOutcome::Rejected(Rejection::Skewed) => {
            return format!(
                "SKEWED the clock of this cell differs too much from the clocks of the other cells{nothing}"
            );
        }
        OperationOutcome::Rejected(Rejection::Full) => {
            return format!("OOM the replicas of the key have no memory left{nothing}");
        }
        OperationOutcome::Rejected(Rejection::Hash) => WRONG_TYPE,
        OperationOutcome::Rejected(Rejection::NoNumber) => NO_NUMBER,
        OperationOutcome::Rejected(Rejection::Overflow) => "ERR increment or decrement would overflow",
        OperationOutcome::Rejected(Rejection::Tallies) => {
            "TOOLARGE the counter has a tally for each start of a cell that added to it, and cannot take another; nothing was written: SET the key to its count to merge the tallies"
        }
        OperationOutcome::Found { .. } | OperationOutcome::Done { .. } | OperationOutcome::Counted { .. } => {
            unreachable!("an operation that succeeded is no failure")
        }
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quorate_protocol::partial::{CellNumber, Stamp, Value};

    use super::*;
    use crate::resp::{
        arguments::{Arguments, parsed_by},
        command::parse,
        refusal::MapKind,
    };

    fn plan(line: &str) -> CommandPlan {
        let plan = |name: &[u8], arguments: Arguments<'_>| {
            CommandPlan::new(name, parse(name, arguments, MapKind::Quorum).unwrap().unwrap())
        };
        parsed_by(plan, line).unwrap()
    }

    fn found(value: Value) -> OperationOutcome {
        let newest = Stamp { time: 1, cell: CellNumber(1) };
        let (expires, wall) = (Some(5_600_000_000), 1_000_000_000);
        OperationOutcome::Found { value, expires, wall, newest, level: Level::One }
    }

    fn string(text: &'static str) -> Value {
        Value::String(Bytes::from_static(text.as_bytes()))
    }

    fn fields(pairs: &[(&'static str, &'static str)]) -> Value {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        Value::Hash(pairs.iter().map(|(name, value)| (bytes(name), bytes(value))).collect())
    }

    /// Returns the answer to a command whose reads find these values and whose writes succeed.
    fn answer(line: &str, values: &[Value]) -> Reply {
        let mut work = plan(line);
        let mut values = values.iter().cloned();
        loop {
            let keys: Vec<Bytes> = work.operations.iter().map(|(key, _)| key.clone()).collect();
            let outcome = |(_, action): (Bytes, Action)| match action {
                Action::Read => found(values.next().expect("a value for each read")),
                Action::Add(added) => {
                    let count = 40 + added;
                    OperationOutcome::Counted { count, stamp: Stamp::ZERO, level: Level::One }
                }
                _ => OperationOutcome::Done { stamp: Stamp::ZERO, level: Level::One },
            };
            let outcomes: Vec<OperationOutcome> = work.operations.into_iter().map(outcome).collect();
            match work.shape.conclude(&keys, outcomes, Level::Quorum) {
                NextStep::Answer(reply) => return reply,
                NextStep::More(next) => work = next,
            }
        }
    }

    #[test]
    fn replies_equal_those_of_redis() {
        let hash = fields(&[("a", "1"), ("b", "22")]);
        let wrong = Reply::Error(WRONG_TYPE.to_owned());
        let number = Reply::Number;
        let text = Reply::text;
        for (line, values, reply) in [
            ("get k", vec![string("v")], text("v")),
            ("get k", vec![Value::Nothing], Reply::Null),
            ("get k", vec![hash.clone()], wrong.clone()),
            ("set k v", vec![], Reply::OK),
            ("mset a 1 b 2 a 3", vec![], Reply::OK),
            (
                "mget a b c",
                vec![string("1"), Value::Nothing, hash.clone()],
                Reply::Array(vec![text("1"), Reply::Null, Reply::Null]),
            ),
            ("exists a a b", vec![string("1"), Value::Nothing], number(2)),
            (
                "mget b a b c a",
                vec![string("2"), string("1"), Value::Nothing],
                Reply::Array(vec![text("2"), text("1"), text("2"), Reply::Null, text("1")]),
            ),
            ("del a a", vec![string("1")], number(1)),
            ("del a b", vec![string("1"), Value::Nothing], number(1)),
            ("incr k", vec![], number(41)),
            ("decr k", vec![], number(39)),
            ("incrby k -50", vec![], number(-10)),
            ("decrby k 2", vec![], number(38)),
            ("strlen k", vec![string("four")], number(4)),
            ("type k", vec![hash.clone()], Reply::Simple("hash")),
            ("ttl k", vec![string("v")], number(5)),
            ("pttl k", vec![string("v")], number(4_600)),
            ("ttl k", vec![Value::Nothing], number(-2)),
            ("ttl k", vec![hash.clone()], number(5)),
            ("hget k b", vec![hash.clone()], text("22")),
            ("hget k c", vec![hash.clone()], Reply::Null),
            ("hget k c", vec![string("v")], wrong.clone()),
            ("hmget k b c", vec![hash.clone()], Reply::Array(vec![text("22"), Reply::Null])),
            ("hlen k", vec![hash.clone()], number(2)),
            ("hlen k", vec![Value::Nothing], number(0)),
            ("hstrlen k b", vec![hash.clone()], number(2)),
            ("hexists k b", vec![hash.clone()], number(1)),
            ("hkeys k", vec![hash.clone()], Reply::Array(vec![text("a"), text("b")])),
            ("hset k b 3 c 4 c 5", vec![hash.clone()], number(1)),
            ("hset k b 3", vec![string("v")], wrong),
            ("hmset k b 3", vec![hash.clone()], Reply::OK),
            ("hdel k b b c", vec![hash.clone()], number(1)),
        ] {
            assert_eq!(answer(line, &values), reply, "{line}");
        }
    }

    /// A delete at quorum levels writes no tombstone for a key or field that its read did not find. The
    /// tombstone would stay for as long as a cell is away.
    #[test]
    fn a_delete_writes_no_tombstone_for_a_key_that_a_quorum_did_not_find() {
        use Level::{EachQuorum, LocalQuorum, One, Quorum};
        let second = |line: &str, values: &[Value], read, write| {
            let work = plan(line);
            let keys: Vec<Bytes> = work.operations.iter().map(|(key, _)| key.clone()).collect();
            let outcome = |value: &Value| OperationOutcome::Found {
                value: value.clone(),
                expires: None,
                newest: Stamp::ZERO,
                level: read,
                wall: 0,
            };
            match work.shape.conclude(&keys, values.iter().map(outcome), write) {
                NextStep::Answer(reply) => (vec![], reply),
                NextStep::More(CommandPlan { shape: PlanShape::Second(reply), operations }) => {
                    (operations.to_vec(), reply)
                }
                NextStep::More(other) => panic!("{other:?}"),
            }
        };
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        let delete = |key| (bytes(key), Action::Delete);
        let fields_gone = |names: &[&'static str]| {
            let names = names.iter().map(|name| (bytes(name), None)).collect();
            vec![(bytes("h"), Action::PutFields(names))]
        };
        let (here, nothing, hash) = (string("v"), Value::Nothing, fields(&[("a", "1")]));
        let number = Reply::Number;
        for (read, write) in [(Quorum, Quorum), (EachQuorum, Quorum)] {
            let values = [here.clone(), nothing.clone()];
            assert_eq!(second("del k l", &values, read, write), (vec![delete("k")], number(1)));
            assert_eq!(second("del k", std::slice::from_ref(&nothing), read, write), (vec![], number(0)));
            assert_eq!(
                second("hdel h a b", std::slice::from_ref(&hash), read, write),
                (fields_gone(&["a"]), number(1))
            );
            assert_eq!(second("hdel h b c", std::slice::from_ref(&hash), read, write), (vec![], number(0)));
            assert_eq!(second("hdel h a", std::slice::from_ref(&nothing), read, write), (vec![], number(0)));
        }
        // If the read may have missed the value, the delete is written anyway. The `level` of an outcome
        // shows whether the read fell back to a lower level.
        for (read, write) in [(One, Quorum), (Quorum, One), (LocalQuorum, EachQuorum), (One, One)] {
            assert_eq!(
                second("del k", std::slice::from_ref(&nothing), read, write),
                (vec![delete("k")], number(0))
            );
            let gone = (fields_gone(&["b", "c"]), number(0));
            assert_eq!(second("hdel h b c", std::slice::from_ref(&hash), read, write), gone);
        }
    }

    #[test]
    fn an_unknown_or_refused_outcome_is_an_error_with_the_reason() {
        let work = plan("mset a 1 b 2");
        let done = OperationOutcome::Done { stamp: Stamp::ZERO, level: Level::One };
        let next = work.shape.conclude(&[], vec![done, OperationOutcome::MaybeApplied], Level::Quorum);
        let NextStep::Answer(Reply::Error(text)) = next else { panic!("{next:?}") };
        assert!(text.starts_with("MAYBEAPPLIED "), "{text}");
        for (line, says_nothing) in [("get k", false), ("del k", false), ("set k v", true), ("incr k", true)]
        {
            let work = plan(line);
            let next = work.shape.conclude(&[], [OperationOutcome::Rejected(Rejection::Busy)], Level::Quorum);
            let NextStep::Answer(Reply::Error(text)) = next else { panic!("{next:?}") };
            assert_eq!(text.contains("nothing was written"), says_nothing, "{line}: {text}");
        }
        for (rejection, wanted) in [
            (Rejection::Hash, "WRONGTYPE Operation against a key holding the wrong kind of value"),
            (Rejection::NoNumber, "ERR value is not an integer or out of range"),
            (Rejection::Overflow, "ERR increment or decrement would overflow"),
        ] {
            let work = plan("incr k");
            let next = work.shape.conclude(&[], [OperationOutcome::Rejected(rejection)], Level::Quorum);
            assert_eq!(next, NextStep::Answer(Reply::Error(wanted.to_owned())));
        }
    }

    #[test]
    fn mset_keeps_the_last_value_of_a_repeated_key() {
        let put = |key, value| {
            (Bytes::from_static(key), Action::Put { value: Bytes::from_static(value), lifetime: None })
        };
        let work = plan("mset a 1 b 2 a 3");
        assert_eq!(work.operations.to_vec(), [put(b"a", b"3"), put(b"b", b"2")]);
    }

    #[test]
    fn a_set_command_sets_the_lifetime_that_it_names() {
        for (line, lifetime) in [
            ("set k v ex 2", 2_000),
            ("set k v ex 9 ex 2", 2_000),
            ("set k v px 7", 7),
            ("setex k 3 v", 3_000),
            ("psetex k 4 v", 4),
        ] {
            let work = plan(line);
            let Action::Put { lifetime: told, .. } = &work.operations[0].1 else { panic!("{work:?}") };
            assert_eq!(*told, Some(Duration::from_millis(lifetime)), "{line}");
        }
    }
}
