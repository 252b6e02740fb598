//! The plan of a command on keys: its operations, and the answer that their outcomes make.

use bytes::Bytes;
use quorate_protocol::partial::{Action, Level, OperationOutcome, Rejection, Value};
use smallvec::{SmallVec, smallvec};

use super::{
    refusal::{NO_NUMBER, WRONG_TYPE},
    reply::Reply,
};

/// A command on keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandPlan {
    pub(super) shape: ReplyForm,
    /// The operations of the command's first step, each with its key.
    pub(super) operations: Operations,
}

/// Room for one operation, because most commands have one.
pub(super) type Operations = SmallVec<[(Bytes, Action); 1]>;

impl CommandPlan {
    /// Whether the command changes something, in its first or second step.
    pub(super) fn writes(&self) -> bool {
        self.shape.has_second() || self.operations.iter().any(|(_, action)| *action != Action::Read)
    }

    pub(super) fn read(key: Bytes, shape: ReplyForm) -> CommandPlan {
        CommandPlan { shape, operations: smallvec![(key, Action::Read)] }
    }
}

/// For each place of an answer, the index of the operation that fills it. Empty if operation and place have
/// the same index throughout. A key that is named twice is read once, so that its value is held once.
pub(super) type Places = Vec<u32>;

/// The way in which outcomes make an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReplyForm {
    /// `OK`, if all operations succeeded.
    Done,
    /// The count after an increment.
    Count,
    Get,
    GetMany(Places),
    /// The number of keys that exist.
    Exists(Places),
    Length,
    Type,
    /// The remaining life, in units of this many nanoseconds.
    Life(u64),
    Field(Bytes),
    Fields(Vec<Bytes>),
    AllFields,
    FieldNames,
    FieldValues,
    FieldCount,
    FieldExists(Bytes),
    FieldLength(Bytes),
    /// The second step deletes the keys that were found.
    Delete,
    /// The second step writes `fields`. The answer is the number of new ones if `counts`, otherwise `OK`.
    PutFields {
        fields: Vec<(Bytes, Bytes)>,
        counts: bool,
    },
    /// The second step deletes these fields.
    DeleteFields(Vec<Bytes>),
    /// The second step of one of the three above. This is the answer once all its operations succeeded.
    Second(Reply),
}

/// The next thing to do once all outcomes have come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    Answer(Reply),
    /// More operations, whose outcomes make the answer.
    More(CommandPlan),
}

/// The result of reading a key: its value and its expiry, in nanoseconds of the wall clock.
pub(super) type ReadResult = (Value, Option<u64>);

impl ReplyForm {
    /// Whether a second step follows.
    pub(super) fn has_second(&self) -> bool {
        matches!(self, ReplyForm::Delete | ReplyForm::PutFields { .. } | ReplyForm::DeleteFields(_))
    }

    /// Whether the answer contains the value itself, and not only its kind or its life. If not, the value is
    /// dropped when it comes.
    pub(super) fn tells_value(&self) -> bool {
        !matches!(self, ReplyForm::Exists(_) | ReplyForm::Type | ReplyForm::Life(_) | ReplyForm::Delete)
    }

    /// Whether the command has two steps.
    pub(super) fn is_step(&self) -> bool {
        self.has_second() || matches!(self, ReplyForm::Second(_))
    }

    /// Makes the next step or the answer from the outcomes, one for each operation. `level` is the level of a
    /// second step's writes. A remaining life is computed by the clock of the read that found the value
    /// alive.
    ///
    /// A delete of a key that the first step did not find is left out if both steps are at quorum levels. Its
    /// tombstone would hide nothing, because the first step saw every write that a quorum acknowledged before
    /// it began. The command takes effect at the moment of that read, as a delete of nothing. At lower levels
    /// the first step may have missed the value, so the tombstone is written.
    pub(super) fn conclude(
        self,
        keys: &[Bytes],
        outcomes: impl IntoIterator<Item = OperationOutcome>,
        level: Level,
    ) -> NextStep {
        let mut found: SmallVec<[ReadResult; 1]> = SmallVec::new();
        let (mut counted_to, mut wall) = (0, 0);
        let mut sees_all = level.is_quorum();
        // A first step has only read.
        let wrote = matches!(self, ReplyForm::Done | ReplyForm::Count | ReplyForm::Second(_));
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
            ReplyForm::Count => NextStep::Answer(Reply::Number(counted_to)),
            ReplyForm::Delete => {
                let is_there = |(value, _): &ReadResult| *value != Value::Nothing;
                let reply = counted(found.iter().filter(|found| is_there(found)).count());
                let named = keys.iter().zip(&found).filter(|(_, found)| !sees_all || is_there(found));
                let operations: Operations = named.map(|(key, _)| (key.clone(), Action::Delete)).collect();
                if operations.is_empty() {
                    return NextStep::Answer(reply);
                }
                NextStep::More(CommandPlan { shape: ReplyForm::Second(reply), operations })
            }
            ReplyForm::PutFields { fields, counts } => match hash(&found[0]) {
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
            ReplyForm::DeleteFields(mut names) => match hash(&found[0]) {
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
            shape => NextStep::Answer(shape.answer(found, wall)),
        }
    }

    /// Returns the answer of a command that only reads. `found` has the result for each key.
    #[inline]
    pub(super) fn answer(self, mut found: SmallVec<[ReadResult; 1]>, wall: u64) -> Reply {
        match self {
            ReplyForm::Done => return Reply::OK,
            ReplyForm::Second(reply) => return reply,
            ReplyForm::Exists(places) => {
                let is_there = |(value, _): &ReadResult| *value != Value::Nothing;
                return counted(match &places[..] {
                    [] => found.iter().filter(|found| is_there(found)).count(),
                    places => places.iter().filter(|place| is_there(&found[**place as usize])).count(),
                });
            }
            ReplyForm::GetMany(places) => {
                // As in Redis, a value that is no string counts as missing here.
                let reply = |(value, _)| {
                    if let Value::String(value) = value { Reply::Bulk(value) } else { Reply::Null }
                };
                let replies: Vec<Reply> = found.into_iter().map(reply).collect();
                return Reply::Array(match &places[..] {
                    [] => replies,
                    places => places.iter().map(|place| replies[*place as usize].clone()).collect(),
                });
            }
            _ => {}
        }
        let found = found.pop().expect("a read of one key has one outcome");
        match self {
            ReplyForm::Get => match found.0 {
                Value::String(value) => Reply::Bulk(value),
                Value::Nothing => Reply::Null,
                Value::Hash(_) => wrong_type(),
            },
            ReplyForm::Length => match found.0 {
                Value::String(value) => counted(value.len()),
                Value::Nothing => Reply::Number(0),
                Value::Hash(_) => wrong_type(),
            },
            ReplyForm::Type => Reply::Simple(match found.0 {
                Value::String(_) => "string",
                Value::Nothing => "none",
                Value::Hash(_) => "hash",
            }),
            ReplyForm::Life(unit) => Reply::Number(match found {
                (Value::Nothing, _) => -2,
                (Value::String(_) | Value::Hash(_), Some(expires)) => {
                    i64::try_from((expires.saturating_sub(wall) + unit / 2) / unit).unwrap_or(i64::MAX)
                }
                (Value::String(_) | Value::Hash(_), None) => -1,
            }),
            shape => match hash(&found) {
                Ok(fields) => shape.of_fields(fields),
                Err(wrong) => wrong,
            },
        }
    }

    fn of_fields(self, fields: &[(Bytes, Bytes)]) -> Reply {
        let one =
            |name: &Bytes| value_of(fields, name).map_or(Reply::Null, |value| Reply::Bulk(value.clone()));
        match self {
            ReplyForm::Field(name) => one(&name),
            ReplyForm::Fields(names) => Reply::Array(names.iter().map(one).collect()),
            ReplyForm::AllFields => {
                let pair =
                    |(name, value): &(Bytes, Bytes)| (Reply::Bulk(name.clone()), Reply::Bulk(value.clone()));
                Reply::Map(fields.iter().map(pair).collect())
            }
            ReplyForm::FieldNames => {
                Reply::Array(fields.iter().map(|(name, _)| Reply::Bulk(name.clone())).collect())
            }
            ReplyForm::FieldValues => {
                Reply::Array(fields.iter().map(|(_, value)| Reply::Bulk(value.clone())).collect())
            }
            ReplyForm::FieldCount => counted(fields.len()),
            ReplyForm::FieldExists(name) => Reply::Number(value_of(fields, &name).is_some().into()),
            ReplyForm::FieldLength(name) => counted(value_of(fields, &name).map_or(0, Bytes::len)),
            shape => unreachable!("{shape:?} is not the reply of a command on fields"),
        }
    }
}

fn second(reply: Reply, key: &Bytes, action: Action) -> NextStep {
    let operations = smallvec![(key.clone(), action)];
    NextStep::More(CommandPlan { shape: ReplyForm::Second(reply), operations })
}

fn counted(count: usize) -> Reply {
    Reply::Number(i64::try_from(count).unwrap_or(i64::MAX))
}

fn hash((value, _): &ReadResult) -> Result<&[(Bytes, Bytes)], Reply> {
    match value {
        Value::Hash(fields) => Ok(fields),
        Value::Nothing => Ok(&[]),
        Value::String(_) => Err(wrong_type()),
    }
}

/// Returns the value of a field. `fields` are sorted by name.
fn value_of<'a>(fields: &'a [(Bytes, Bytes)], name: &Bytes) -> Option<&'a Bytes> {
    let at = fields.binary_search_by(|(other, _)| other.cmp(name)).ok()?;
    Some(&fields[at].1)
}

fn wrong_type() -> Reply {
    Reply::Error(String::from(WRONG_TYPE))
}

/// Describes a failed operation. The first word says what may have happened. Only a write adds that nothing
/// was written.
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
    use quorate_protocol::partial::{CellNumber, Stamp};

    use super::*;
    use crate::resp::{arguments::parsed_by, command::work};

    fn parsed(line: &str) -> Result<Option<CommandPlan>, String> {
        parsed_by(work, line)
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
        let mut work = parsed(line).unwrap().unwrap();
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
    fn answers_are_those_of_redis() {
        let hash = fields(&[("a", "1"), ("b", "22")]);
        let wrong = wrong_type();
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

    /// A tombstone for a missing key would stay for as long as a cell is away.
    #[test]
    fn what_a_quorum_did_not_find_is_not_deleted() {
        use Level::{EachQuorum, LocalQuorum, One, Quorum};
        let second = |line: &str, values: &[Value], read, write| {
            let work = parsed(line).unwrap().unwrap();
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
                NextStep::More(CommandPlan { shape: ReplyForm::Second(reply), operations }) => {
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
        // A read that may have missed the value does not decide. `level` of an outcome shows a read that fell
        // back.
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
    fn an_outcome_that_is_none_is_told_in_words() {
        let work = parsed("mset a 1 b 2").unwrap().unwrap();
        let done = OperationOutcome::Done { stamp: Stamp::ZERO, level: Level::One };
        let next = work.shape.conclude(&[], vec![done, OperationOutcome::MaybeApplied], Level::Quorum);
        let NextStep::Answer(Reply::Error(text)) = next else { panic!("{next:?}") };
        assert!(text.starts_with("MAYBEAPPLIED "), "{text}");
        for (line, says_nothing) in [("get k", false), ("del k", false), ("set k v", true), ("incr k", true)]
        {
            let work = parsed(line).unwrap().unwrap();
            let next = work.shape.conclude(&[], [OperationOutcome::Rejected(Rejection::Busy)], Level::Quorum);
            let NextStep::Answer(Reply::Error(text)) = next else { panic!("{next:?}") };
            assert_eq!(text.contains("nothing was written"), says_nothing, "{line}: {text}");
        }
        for (rejection, wanted) in [
            (Rejection::Hash, "WRONGTYPE Operation against a key holding the wrong kind of value"),
            (Rejection::NoNumber, "ERR value is not an integer or out of range"),
            (Rejection::Overflow, "ERR increment or decrement would overflow"),
        ] {
            let work = parsed("incr k").unwrap().unwrap();
            let next = work.shape.conclude(&[], [OperationOutcome::Rejected(rejection)], Level::Quorum);
            assert_eq!(next, NextStep::Answer(Reply::Error(wanted.to_owned())));
        }
    }
}
