//! Commands on keys: what each one asks of a map, and the answer that its outcomes make.
//!
//! A command is one operation for each of its keys. Those that tell how much they changed (`DEL`, `HSET`, `HDEL`) read first and
//! write then; another client may write in between, so their number is what this read saw, and no more. `INCR` and its like are
//! one operation: what is added at the same time adds up. A command whose very point is that nothing comes in between
//! (`SETNX`, `APPEND`, `EXPIRE`) is refused by name: two replicas that do not hear each other would both do it.

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use quorate_protocol::partial::{Action, Outcome, Rejection, Value, counter::integer};
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use super::{parse::number, reply::Reply};

/// The strings of a request behind its name.
#[derive(Clone, Copy)]
pub(super) struct Arguments<'a> {
    input: &'a [u8],
    strings: &'a [Range<usize>],
}

impl<'a> Arguments<'a> {
    pub(super) fn new(input: &'a [u8], strings: &'a [Range<usize>]) -> Self {
        Arguments { input, strings }
    }

    pub(super) fn len(&self) -> usize {
        self.strings.len()
    }

    pub(super) fn get(&self, index: usize) -> Option<&'a [u8]> {
        Some(&self.input[self.strings.get(index)?.clone()])
    }

    /// A copy, so that what is kept of a request holds nothing else of it.
    pub(super) fn bytes(&self, index: usize) -> Bytes {
        Bytes::copy_from_slice(&self.input[self.strings[index].clone()])
    }

    /// As text, in capitals.
    pub(super) fn word(&self, index: usize) -> Option<String> {
        Some(String::from_utf8_lossy(self.get(index)?).to_ascii_uppercase())
    }

    pub(super) fn from(&self, first: usize) -> Arguments<'a> {
        Arguments { input: self.input, strings: self.strings.get(first..).unwrap_or_default() }
    }

    pub(super) fn all(&self) -> Vec<Bytes> {
        (0..self.len()).map(|index| self.bytes(index)).collect()
    }
}

/// A command on keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) shape: Shape,
    /// The operations that it begins with, each on its key.
    pub(super) operations: Operations,
}

/// Most commands have one.
pub(super) type Operations = SmallVec<[(Bytes, Action); 1]>;

impl Work {
    /// Whether it changes something, at once or later.
    pub(super) fn writes(&self) -> bool {
        self.shape.has_second() || self.operations.iter().any(|(_, action)| *action != Action::Read)
    }

    fn read(key: Bytes, shape: Shape) -> Work {
        Work { shape, operations: smallvec![(key, Action::Read)] }
    }
}

/// How outcomes make an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Done, if all are.
    Done,
    /// The count that an increment came to.
    Count,
    Get,
    GetMany,
    /// How many there are.
    Exists,
    Length,
    Type,
    /// The rest of its life, in units of so many nanoseconds.
    Life(u64),
    Field(Bytes),
    Fields(Vec<Bytes>),
    AllFields,
    FieldNames,
    FieldValues,
    FieldCount,
    FieldExists(Bytes),
    FieldLength(Bytes),
    /// Then it deletes them.
    Delete,
    /// Then it writes these; the answer is the number of those that are new, or just that it is done.
    PutFields {
        fields: Vec<(Bytes, Bytes)>,
        counts: bool,
    },
    /// Then it deletes these.
    DeleteFields(Vec<Bytes>),
    /// The second step of one of the three above: this is its answer once all is done.
    Second(Reply),
}

/// The reply to be made once all outcomes are there.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Answer(Reply),
    /// These operations; their outcomes make the answer of this shape.
    More(Work),
}

/// The finding under a key: its value, and when it ends.
pub(super) type Found = (Value, Option<u64>);

impl Shape {
    /// Whether a second step follows.
    pub(super) fn has_second(&self) -> bool {
        matches!(self, Shape::Delete | Shape::PutFields { .. } | Shape::DeleteFields(_))
    }

    /// Whether it is of a command of two steps.
    pub(super) fn is_step(&self) -> bool {
        self.has_second() || matches!(self, Shape::Second(_))
    }

    /// Draws the consequence of outcomes, one for each operation. `wall` is the wall clock in nanoseconds.
    pub(super) fn conclude(
        self,
        keys: &[Bytes],
        outcomes: impl IntoIterator<Item = Outcome>,
        wall: u64,
    ) -> Next {
        let mut found: SmallVec<[Found; 1]> = SmallVec::new();
        let mut counted_to = 0;
        for outcome in outcomes {
            match outcome {
                Outcome::Found { value, expires, .. } => found.push((value, expires)),
                Outcome::Done { .. } => {}
                Outcome::Counted { count, .. } => counted_to = count,
                other => return Next::Answer(Reply::Error(failure(&other))),
            }
        }
        match self {
            Shape::Count => Next::Answer(Reply::Number(counted_to)),
            Shape::Delete => {
                let count = found.iter().filter(|(value, _)| *value != Value::Nothing).count();
                let operations = keys.iter().map(|key| (key.clone(), Action::Delete)).collect();
                Next::More(Work { shape: Shape::Second(counted(count)), operations })
            }
            Shape::PutFields { fields, counts } => match hash(&found[0]) {
                Err(wrong) => Next::Answer(wrong),
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
            Shape::DeleteFields(mut names) => match hash(&found[0]) {
                Err(wrong) => Next::Answer(wrong),
                Ok(present) => {
                    names.sort_unstable();
                    names.dedup();
                    let count = names.iter().filter(|name| value_of(present, name).is_some()).count();
                    let fields = names.into_iter().map(|name| (name, None)).collect();
                    second(counted(count), &keys[0], Action::PutFields(fields))
                }
            },
            shape => Next::Answer(shape.answer(found, wall)),
        }
    }

    /// The answer of a command that only reads, by what it found under each key.
    #[inline]
    pub(super) fn answer(self, mut found: SmallVec<[Found; 1]>, wall: u64) -> Reply {
        match self {
            Shape::Done => return Reply::OK,
            Shape::Second(reply) => return reply,
            Shape::Exists => {
                return counted(found.iter().filter(|(value, _)| *value != Value::Nothing).count());
            }
            Shape::GetMany => {
                // As Redis has it, what is no string is no value here.
                let reply = |(value, _)| {
                    if let Value::String(value) = value { Reply::Bulk(value) } else { Reply::Null }
                };
                return Reply::Array(found.into_iter().map(reply).collect());
            }
            _ => {}
        }
        let found = found.pop().expect("a read of one key has one outcome");
        match self {
            Shape::Get => match found.0 {
                Value::String(value) => Reply::Bulk(value),
                Value::Nothing => Reply::Null,
                Value::Hash(_) => wrong_type(),
            },
            Shape::Length => match found.0 {
                Value::String(value) => counted(value.len()),
                Value::Nothing => Reply::Number(0),
                Value::Hash(_) => wrong_type(),
            },
            Shape::Type => Reply::Simple(match found.0 {
                Value::String(_) => "string",
                Value::Nothing => "none",
                Value::Hash(_) => "hash",
            }),
            Shape::Life(unit) => Reply::Number(match found {
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
            Shape::Field(name) => one(&name),
            Shape::Fields(names) => Reply::Array(names.iter().map(one).collect()),
            Shape::AllFields => {
                let pair =
                    |(name, value): &(Bytes, Bytes)| (Reply::Bulk(name.clone()), Reply::Bulk(value.clone()));
                Reply::Map(fields.iter().map(pair).collect())
            }
            Shape::FieldNames => {
                Reply::Array(fields.iter().map(|(name, _)| Reply::Bulk(name.clone())).collect())
            }
            Shape::FieldValues => {
                Reply::Array(fields.iter().map(|(_, value)| Reply::Bulk(value.clone())).collect())
            }
            Shape::FieldCount => counted(fields.len()),
            Shape::FieldExists(name) => Reply::Number(value_of(fields, &name).is_some().into()),
            Shape::FieldLength(name) => counted(value_of(fields, &name).map_or(0, Bytes::len)),
            shape => unreachable!("{shape:?} is not about fields"),
        }
    }
}

fn second(reply: Reply, key: &Bytes, action: Action) -> Next {
    let operations = smallvec![(key.clone(), action)];
    Next::More(Work { shape: Shape::Second(reply), operations })
}

pub(super) fn counted(count: usize) -> Reply {
    Reply::Number(i64::try_from(count).unwrap_or(i64::MAX))
}

fn hash((value, _): &Found) -> Result<&[(Bytes, Bytes)], Reply> {
    match value {
        Value::Hash(fields) => Ok(fields),
        Value::Nothing => Ok(&[]),
        Value::String(_) => Err(wrong_type()),
    }
}

/// The value of a field; fields are in the order of their names.
fn value_of<'a>(fields: &'a [(Bytes, Bytes)], name: &Bytes) -> Option<&'a Bytes> {
    let at = fields.binary_search_by(|(other, _)| other.cmp(name)).ok()?;
    Some(&fields[at].1)
}

fn wrong_type() -> Reply {
    Reply::Error(String::from(WRONG_TYPE))
}

pub(super) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
pub(super) const NO_NUMBER: &str = "ERR value is not an integer or out of range";

/// An operation that did not do what was asked, in words. The first says what may have happened.
fn failure(outcome: &Outcome) -> String {
    let words = match outcome {
        Outcome::Unavailable => {
            "UNAVAILABLE fewer replicas can be asked than the level needs: nothing was written"
        }
        Outcome::MaybeApplied => {
            "MAYBEAPPLIED the level was not met in time: the write takes effect at any time from now on, or never"
        }
        Outcome::NotApplied => "NOTAPPLIED the replicas were not heard in time: nothing was written",
        Outcome::Unanswered => "UNANSWERED the level was not met in time",
        Outcome::Rejected(Rejection::NoCell) => {
            "NOCELL this process is no cell: it is joining, or joined when there were maps already"
        }
        Outcome::Rejected(Rejection::NoMap) => "NOMAP there is no such map any more",
        Outcome::Rejected(Rejection::TooLarge) => {
            "TOOLARGE the key or the value is too large: nothing was written"
        }
        Outcome::Rejected(Rejection::Busy) => "BUSY too much is under way: nothing was written",
        Outcome::Rejected(Rejection::Skewed) => {
            "SKEWED this cell's clock is too far from those of the others: nothing was written"
        }
        Outcome::Rejected(Rejection::Full) => "OOM the replicas have no memory left: nothing was written",
        Outcome::Rejected(Rejection::Hash) => WRONG_TYPE,
        Outcome::Rejected(Rejection::NoNumber) => NO_NUMBER,
        Outcome::Rejected(Rejection::Overflow) => "ERR increment or decrement would overflow",
        Outcome::Rejected(Rejection::Tallies) => {
            "TOOLARGE too many lives of cells have added to the counter, and nothing was written: SET makes one number of it"
        }
        Outcome::Found { .. } | Outcome::Done { .. } | Outcome::Counted { .. } => {
            unreachable!("that is what was asked")
        }
    };
    words.to_owned()
}

/// The work of a command on keys, by its name in capitals; none if it is none of these. An error says why it is refused.
pub(super) fn work(name: &[u8], arguments: Arguments<'_>) -> Result<Option<Work>, String> {
    let count = arguments.len();
    let wants = |holds: bool| if holds { Ok(()) } else { Err(arity(name)) };
    let one = |shape: Shape| Work::read(arguments.bytes(0), shape);
    let work = match name {
        b"GET" => {
            wants(count == 1)?;
            one(Shape::Get)
        }
        b"SET" => {
            wants(count >= 2)?;
            let lifetime = lifetime(arguments)?;
            put(arguments.bytes(0), arguments.bytes(1), lifetime)
        }
        b"SETEX" | b"PSETEX" => {
            wants(count == 3)?;
            let unit = if name == b"SETEX" { 1_000 } else { 1 };
            let lifetime = millis(arguments.get(1), unit).ok_or_else(|| invalid_expiry(name))?;
            put(arguments.bytes(0), arguments.bytes(2), Some(lifetime))
        }
        b"INCR" | b"DECR" => {
            wants(count == 1)?;
            add(arguments.bytes(0), if name == b"INCR" { 1 } else { -1 })
        }
        b"INCRBY" | b"DECRBY" => {
            wants(count == 2)?;
            let number = arguments.get(1).and_then(integer).ok_or(NO_NUMBER)?;
            let added = if name == b"INCRBY" { Some(number) } else { number.checked_neg() };
            add(arguments.bytes(0), added.ok_or("ERR decrement would overflow")?)
        }
        b"MSET" => {
            wants(count >= 2 && count.is_multiple_of(2))?;
            Work { shape: Shape::Done, operations: puts(arguments) }
        }
        b"MGET" | b"EXISTS" | b"DEL" | b"UNLINK" => {
            wants(count >= 1)?;
            let mut keys = arguments.all();
            let shape = match name {
                b"MGET" => Shape::GetMany,
                b"EXISTS" => Shape::Exists,
                _ => {
                    // Twice in one command counts once.
                    keys.sort_unstable();
                    keys.dedup();
                    Shape::Delete
                }
            };
            Work { shape, operations: keys.into_iter().map(|key| (key, Action::Read)).collect() }
        }
        b"STRLEN" | b"TYPE" | b"TTL" | b"PTTL" | b"HGETALL" | b"HKEYS" | b"HVALS" | b"HLEN" => {
            wants(count == 1)?;
            one(match name {
                b"STRLEN" => Shape::Length,
                b"TYPE" => Shape::Type,
                b"TTL" => Shape::Life(1_000_000_000),
                b"PTTL" => Shape::Life(1_000_000),
                b"HGETALL" => Shape::AllFields,
                b"HKEYS" => Shape::FieldNames,
                b"HVALS" => Shape::FieldValues,
                _ => Shape::FieldCount,
            })
        }
        b"HGET" | b"HEXISTS" | b"HSTRLEN" => {
            wants(count == 2)?;
            let field = arguments.bytes(1);
            one(match name {
                b"HGET" => Shape::Field(field),
                b"HEXISTS" => Shape::FieldExists(field),
                _ => Shape::FieldLength(field),
            })
        }
        b"HMGET" | b"HDEL" => {
            wants(count >= 2)?;
            let fields = arguments.from(1).all();
            one(if name == b"HMGET" { Shape::Fields(fields) } else { Shape::DeleteFields(fields) })
        }
        b"HSET" | b"HMSET" => {
            wants(count >= 3 && !count.is_multiple_of(2))?;
            let pair = |index| (arguments.bytes(index), arguments.bytes(index + 1));
            let fields = (1..count).step_by(2).map(pair).collect();
            one(Shape::PutFields { fields, counts: name == b"HSET" })
        }
        _ => return refused(name).map_or(Ok(None), Err),
    };
    Ok(Some(work))
}

/// The writes of `MSET`: of a key that is named twice the last value counts.
fn puts(arguments: Arguments<'_>) -> Operations {
    let mut operations = Operations::new();
    let mut places: FxHashMap<Bytes, usize> = FxHashMap::default();
    for index in (0..arguments.len()).step_by(2) {
        let action = Action::Put { value: arguments.bytes(index + 1), lifetime: None };
        let key = arguments.bytes(index);
        let place = *places.entry(key.clone()).or_insert(operations.len());
        if place == operations.len() {
            operations.push((key, action));
        } else {
            operations[place].1 = action;
        }
    }
    operations
}

fn put(key: Bytes, value: Bytes, lifetime: Option<Duration>) -> Work {
    Work { shape: Shape::Done, operations: smallvec![(key, Action::Put { value, lifetime })] }
}

fn add(key: Bytes, added: i64) -> Work {
    Work { shape: Shape::Count, operations: smallvec![(key, Action::Add(added))] }
}

/// The options of `SET`.
fn lifetime(arguments: Arguments<'_>) -> Result<Option<Duration>, String> {
    let mut lifetime = None;
    let mut index = 2;
    while let Some(option) = arguments.word(index) {
        let unit = match option.as_str() {
            "EX" => 1_000,
            "PX" => 1,
            "NX" | "XX" | "IFEQ" | "IFNE" | "IFDEQ" | "IFDNE" => {
                return Err(format!(
                    "ERR SET with {option} needs a conditional write, which {WHY_NOT}{ELSEWHERE}"
                ));
            }
            "GET" | "KEEPTTL" => {
                return Err(format!(
                    "ERR SET with {option} reads and writes at once, which {WHY_NOT}{ELSEWHERE}"
                ));
            }
            "EXAT" | "PXAT" => return Err(format!("ERR SET with {option} is not supported: use EX or PX")),
            _ => return Err(String::from("ERR syntax error")),
        };
        if lifetime.is_some() {
            return Err(String::from("ERR syntax error"));
        }
        lifetime = Some(millis(arguments.get(index + 1), unit).ok_or_else(|| invalid_expiry(b"SET"))?);
        index += 2;
    }
    Ok(lifetime)
}

/// A positive number of units of so many milliseconds.
pub(super) fn millis(digits: Option<&[u8]>, unit: u64) -> Option<Duration> {
    let count = u64::try_from(number(digits?)?).ok().filter(|count| *count > 0)?;
    // Beyond this the wall clock could not be added.
    count.checked_mul(unit).filter(|millis| *millis < LIFETIME_MILLIS_MAX).map(Duration::from_millis)
}

/// A hundred years.
const LIFETIME_MILLIS_MAX: u64 = 100 * 366 * 24 * 3_600 * 1_000;

pub(super) fn invalid_expiry(name: &[u8]) -> String {
    format!("ERR invalid expire time in '{}' command", name.escape_ascii().to_string().to_lowercase())
}

pub(super) fn arity(name: &[u8]) -> String {
    let name = name.escape_ascii().to_string().to_lowercase();
    format!("ERR wrong number of arguments for '{name}' command")
}

const WHY_NOT: &str =
    "a map of partial quorums does not have: replicas that do not hear each other would both do it";

const ELSEWHERE: &str = "; QUORATE CREATE name STRATEGY service makes a map that has it";

/// Why a command of Redis is refused, if it is known and not offered.
fn refused(name: &[u8]) -> Option<String> {
    let why = match name {
        b"SETNX" | b"MSETNX" | b"HSETNX" => {
            return Some(named(name, &format!("needs a conditional write, which {WHY_NOT}{ELSEWHERE}")));
        }
        b"RENAME" | b"RENAMENX" | b"COPY" => "needs a conditional write, which ",
        b"HINCRBY" => {
            let why = "is not supported: a counter is a key of its own, and INCRBY adds to it";
            return Some(named(name, &format!("{why}{ELSEWHERE}")));
        }
        b"INCRBYFLOAT" | b"HINCRBYFLOAT" => {
            return Some(named(
                name,
                "is not supported: counters are whole numbers, and INCRBY adds to them",
            ));
        }
        b"APPEND" | b"GETSET" | b"GETDEL" | b"GETEX" | b"EXPIRE" | b"PEXPIRE" | b"EXPIREAT"
        | b"PEXPIREAT" | b"PERSIST" => {
            return Some(named(name, &format!("reads and writes at once, which {WHY_NOT}{ELSEWHERE}")));
        }
        b"SETRANGE" | b"HGETDEL" | b"HGETEX" | b"SETBIT" | b"HEXPIRE" | b"HPERSIST" => {
            "reads and writes at once, which "
        }
        b"KEYS" | b"DBSIZE" | b"RANDOMKEY" => {
            return Some(named(name, "is not supported: SCAN tells the keys"));
        }
        b"HSCAN" => return Some(named(name, "is not supported: HGETALL tells all fields")),
        b"MULTI" | b"EXEC" | b"DISCARD" | b"WATCH" | b"UNWATCH" => "is about transactions, which ",
        b"FLUSHDB" | b"FLUSHALL" => return Some(named(name, "is not supported: QUORATE DROP drops a map")),
        b"AUTH" => {
            return Some(named(
                name,
                "is not supported: there are no passwords, and nobody is asked for one",
            ));
        }
        b"WAIT" | b"WAITAOF" => {
            return Some(named(
                name,
                "is not supported: QUORATE LEVEL says how many replicas a write waits for",
            ));
        }
        _ => return None,
    };
    Some(named(name, &format!("{why}{WHY_NOT}")))
}

pub(super) fn named(name: &[u8], why: &str) -> String {
    format!("ERR {} {why}", name.escape_ascii())
}

/// A line of words, parsed as a command on keys.
#[cfg(test)]
pub(super) fn parsed_by<T>(work: fn(&[u8], Arguments<'_>) -> T, line: &str) -> T {
    let (mut strings, mut at) = (Vec::new(), 0);
    for word in line.split(' ') {
        strings.push(at..at + word.len());
        at += word.len() + 1;
    }
    let name = line[strings[0].clone()].to_uppercase();
    work(name.as_bytes(), Arguments::new(line.as_bytes(), &strings[1..]))
}

#[cfg(test)]
mod tests {
    use quorate_protocol::partial::{CellNumber, Level, Stamp};

    use super::*;

    fn parsed(line: &str) -> Result<Option<Work>, String> {
        parsed_by(work, line)
    }

    fn found(value: Value) -> Outcome {
        let newest = Stamp { time: 1, cell: CellNumber(1) };
        Outcome::Found { value, expires: Some(5_600_000_000), newest, level: Level::One }
    }

    fn string(text: &'static str) -> Value {
        Value::String(Bytes::from_static(text.as_bytes()))
    }

    fn fields(pairs: &[(&'static str, &'static str)]) -> Value {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        Value::Hash(pairs.iter().map(|(name, value)| (bytes(name), bytes(value))).collect())
    }

    /// The answer to a command whose reads find these values; its writes are done.
    fn answer(line: &str, values: &[Value]) -> Reply {
        let mut work = parsed(line).unwrap().unwrap();
        let mut values = values.iter().cloned();
        loop {
            let keys: Vec<Bytes> = work.operations.iter().map(|(key, _)| key.clone()).collect();
            let outcome = |(_, action): (Bytes, Action)| match action {
                Action::Read => found(values.next().expect("a value for each read")),
                Action::Add(added) => {
                    let count = 40 + added;
                    Outcome::Counted { count, stamp: Stamp::ZERO, level: Level::One }
                }
                _ => Outcome::Done { stamp: Stamp::ZERO, level: Level::One },
            };
            let outcomes: Vec<Outcome> = work.operations.into_iter().map(outcome).collect();
            match work.shape.conclude(&keys, outcomes, 1_000_000_000) {
                Next::Answer(reply) => return reply,
                Next::More(next) => work = next,
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
            ("exists a a b", vec![string("1"), string("1"), Value::Nothing], number(2)),
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

    #[test]
    fn of_a_key_that_is_set_twice_at_once_the_last_value_counts() {
        let put = |key, value| {
            (Bytes::from_static(key), Action::Put { value: Bytes::from_static(value), lifetime: None })
        };
        let work = parsed("mset a 1 b 2 a 3").unwrap().unwrap();
        assert_eq!(work.operations.to_vec(), [put(b"a", b"3"), put(b"b", b"2")]);
    }

    #[test]
    fn an_outcome_that_is_none_is_told_in_words() {
        let work = parsed("mset a 1 b 2").unwrap().unwrap();
        let done = Outcome::Done { stamp: Stamp::ZERO, level: Level::One };
        let next = work.shape.conclude(&[], vec![done, Outcome::MaybeApplied], 0);
        let Next::Answer(Reply::Error(text)) = next else { panic!("{next:?}") };
        assert!(text.starts_with("MAYBEAPPLIED "), "{text}");
        for (rejection, wanted) in [
            (Rejection::Hash, "WRONGTYPE Operation against a key holding the wrong kind of value"),
            (Rejection::NoNumber, "ERR value is not an integer or out of range"),
            (Rejection::Overflow, "ERR increment or decrement would overflow"),
        ] {
            let work = parsed("incr k").unwrap().unwrap();
            let next = work.shape.conclude(&[], [Outcome::Rejected(rejection)], 0);
            assert_eq!(next, Next::Answer(Reply::Error(wanted.to_owned())));
        }
    }

    #[test]
    fn mistakes_and_what_cannot_be_are_refused_by_name() {
        for (line, text) in [
            ("get", "ERR wrong number of arguments for 'get' command"),
            ("mset a", "ERR wrong number of arguments for 'mset' command"),
            ("hset k a", "ERR wrong number of arguments for 'hset' command"),
            ("set k v ex", "ERR invalid expire time in 'set' command"),
            ("set k v ex 0", "ERR invalid expire time in 'set' command"),
            ("set k v px 9223372036854775807", "ERR invalid expire time in 'set' command"),
            ("set k v ex 5 px 6", "ERR syntax error"),
            ("set k v often", "ERR syntax error"),
            ("set k v nx", "ERR SET with NX needs a conditional write"),
            ("set k v get", "ERR SET with GET reads and writes at once"),
            ("incr", "ERR wrong number of arguments for 'incr' command"),
            ("incr k 2", "ERR wrong number of arguments for 'incr' command"),
            ("incrby k", "ERR wrong number of arguments for 'incrby' command"),
            ("incrby k x", "ERR value is not an integer or out of range"),
            ("incrby k 01", "ERR value is not an integer or out of range"),
            ("decrby k 9223372036854775808", "ERR value is not an integer or out of range"),
            ("decrby k -9223372036854775808", "ERR decrement would overflow"),
            ("incrbyfloat k 1", "ERR INCRBYFLOAT is not supported: counters are whole numbers"),
            ("hincrby k f 1", "ERR HINCRBY is not supported: a counter is a key"),
            ("expire k 1", "ERR EXPIRE reads and writes at once"),
            ("keys *", "ERR KEYS is not supported: SCAN"),
            ("auth x", "ERR AUTH is not supported"),
            ("flushall", "ERR FLUSHALL is not supported: QUORATE DROP"),
        ] {
            let refusal = parsed(line).unwrap_err();
            assert!(refusal.starts_with(text), "{line}: {refusal}");
        }
        assert_eq!(parsed("frobnicate"), Ok(None));
    }

    #[test]
    fn a_value_lives_as_long_as_it_is_told() {
        for (line, lifetime) in
            [("set k v ex 2", 2_000), ("set k v px 7", 7), ("setex k 3 v", 3_000), ("psetex k 4 v", 4)]
        {
            let work = parsed(line).unwrap().unwrap();
            let Action::Put { lifetime: told, .. } = &work.operations[0].1 else { panic!("{work:?}") };
            assert_eq!(*told, Some(Duration::from_millis(lifetime)), "{line}");
        }
    }
}
