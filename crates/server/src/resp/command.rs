//! Commands on keys: each one has a plan, or is refused by name.
//!
//! A command is one operation for each of its keys. Commands that count their changes (`DEL`, `HSET`, `HDEL`)
//! read first and then write. Another client may write in between, so the number is only what the read saw.
//! `INCR` and its like are one operation, so concurrent increments add up. Commands that need atomicity
//! (`SETNX`, `APPEND`, `EXPIRE`) are refused by name, because two replicas that do not hear each other would
//! both carry them out.

use std::time::Duration;

use bytes::Bytes;
use quorate_protocol::partial::{Action, counter::integer};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

use super::{
    arguments::Arguments,
    command_plan::{CommandPlan, Operations, Places, ReplyForm},
    parse::number,
    refusal::{NO_NUMBER, arity, invalid_expiry, named},
};

/// Whether a command is `QUORATE ID …`, a prefix of a write.
pub(super) fn is_id(name: &[u8], arguments: Arguments<'_>) -> bool {
    name == b"QUORATE" && arguments.get(0).is_some_and(|word| word.eq_ignore_ascii_case(b"ID"))
}

/// Returns the work of a command on keys, by its name in capitals. `None` if the command is not one on keys.
/// An error is the reason for a refusal.
pub(super) fn work(name: &[u8], arguments: Arguments<'_>) -> Result<Option<CommandPlan>, String> {
    let count = arguments.len();
    let wants = |holds: bool| if holds { Ok(()) } else { Err(arity(name)) };
    let one = |shape: ReplyForm| CommandPlan::read(arguments.bytes(0), shape);
    let work = match name {
        b"GET" => {
            wants(count == 1)?;
            one(ReplyForm::Get)
        }
        b"SET" => {
            wants(count >= 2)?;
            let lifetime = lifetime(arguments)?;
            put(arguments.bytes(0), arguments.bytes(1), lifetime)
        }
        b"SETEX" | b"PSETEX" => {
            wants(count == 3)?;
            let unit = if name == b"SETEX" { 1_000 } else { 1 };
            let lifetime = millis(name, arguments.get(1), unit)?;
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
            CommandPlan { shape: ReplyForm::Done, operations: puts(arguments) }
        }
        b"MGET" | b"EXISTS" | b"DEL" | b"UNLINK" => {
            wants(count >= 1)?;
            let (keys, places) = once_each(arguments.all());
            let shape = match name {
                b"MGET" => ReplyForm::GetMany(places),
                b"EXISTS" => ReplyForm::Exists(places),
                // A key that is named twice counts once.
                _ => ReplyForm::Delete,
            };
            CommandPlan { shape, operations: keys.into_iter().map(|key| (key, Action::Read)).collect() }
        }
        b"STRLEN" | b"TYPE" | b"TTL" | b"PTTL" | b"HGETALL" | b"HKEYS" | b"HVALS" | b"HLEN" => {
            wants(count == 1)?;
            one(match name {
                b"STRLEN" => ReplyForm::Length,
                b"TYPE" => ReplyForm::Type,
                b"TTL" => ReplyForm::Life(1_000_000_000),
                b"PTTL" => ReplyForm::Life(1_000_000),
                b"HGETALL" => ReplyForm::AllFields,
                b"HKEYS" => ReplyForm::FieldNames,
                b"HVALS" => ReplyForm::FieldValues,
                _ => ReplyForm::FieldCount,
            })
        }
        b"HGET" | b"HEXISTS" | b"HSTRLEN" => {
            wants(count == 2)?;
            let field = arguments.bytes(1);
            one(match name {
                b"HGET" => ReplyForm::Field(field),
                b"HEXISTS" => ReplyForm::FieldExists(field),
                _ => ReplyForm::FieldLength(field),
            })
        }
        b"HMGET" | b"HDEL" => {
            wants(count >= 2)?;
            let fields = arguments.from(1).all();
            one(if name == b"HMGET" { ReplyForm::Fields(fields) } else { ReplyForm::DeleteFields(fields) })
        }
        b"HSET" | b"HMSET" => {
            wants(count >= 3 && !count.is_multiple_of(2))?;
            let pair = |index| (arguments.bytes(index), arguments.bytes(index + 1));
            let fields = (1..count).step_by(2).map(pair).collect();
            one(ReplyForm::PutFields { fields, counts: name == b"HSET" })
        }
        _ if is_id(name, arguments) => return Err(String::from(NO_IDS)),
        _ => return refused(name).map_or(Ok(None), Err),
    };
    Ok(Some(work))
}

/// Returns each key once, in the order of first mention, and for each place the index of its key. The places
/// are empty if no key repeats.
fn once_each(keys: Vec<Bytes>) -> (Vec<Bytes>, Places) {
    // Sorting takes O(n log n) for any choice of keys, so that no client can make this slow.
    let mut order: Vec<u32> = (0..keys.len() as u32).collect();
    order.sort_by_key(|index| &keys[*index as usize]);
    let repeats = |pair: &[u32]| keys[pair[0] as usize] == keys[pair[1] as usize];
    if !order.windows(2).any(repeats) {
        return (keys, Places::new());
    }
    // The sort is stable: among equal keys the first one stands first.
    let mut firsts: Vec<u32> = vec![0; keys.len()];
    for (at, index) in order.iter().enumerate() {
        let repeats = at > 0 && repeats(&order[at - 1..=at]);
        firsts[*index as usize] = if repeats { firsts[order[at - 1] as usize] } else { *index };
    }
    let (mut once, mut places) = (Vec::new(), Places::with_capacity(keys.len()));
    for (index, key) in keys.into_iter().enumerate() {
        let first = firsts[index] as usize;
        if first == index {
            places.push(once.len() as u32);
            once.push(key);
        } else {
            places.push(places[first]);
        }
    }
    (once, places)
}

/// Returns the writes of `MSET`. If a key is named twice, its last value counts.
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

fn put(key: Bytes, value: Bytes, lifetime: Option<Duration>) -> CommandPlan {
    CommandPlan { shape: ReplyForm::Done, operations: smallvec![(key, Action::Put { value, lifetime })] }
}

fn add(key: Bytes, added: i64) -> CommandPlan {
    CommandPlan { shape: ReplyForm::Count, operations: smallvec![(key, Action::Add(added))] }
}

/// Parses the options of `SET`. As in Redis, syntax errors are reported before errors in numbers.
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
        let digits = arguments.get(index + 1);
        // The same unit may be given twice; the last number counts.
        if digits.is_none() || lifetime.is_some_and(|(before, _)| before != unit) {
            return Err(String::from("ERR syntax error"));
        }
        lifetime = Some((unit, digits));
        index += 2;
    }
    lifetime.map(|(unit, digits)| millis(b"SET", digits, unit)).transpose()
}

/// Parses a positive time. `unit` is the number of milliseconds in a unit.
pub(super) fn millis(name: &[u8], digits: Option<&[u8]>, unit: u64) -> Result<Duration, String> {
    let count = digits.and_then(number).ok_or(NO_NUMBER)?;
    let count = u64::try_from(count).ok().filter(|count| *count > 0);
    // A longer life could overflow when the wall clock is added to it.
    let millis = count.and_then(|count| count.checked_mul(unit)).filter(|it| *it < LIFETIME_MILLIS_MAX);
    millis.map(Duration::from_millis).ok_or_else(|| invalid_expiry(name))
}

/// A hundred years, in milliseconds.
const LIFETIME_MILLIS_MAX: u64 = 100 * 366 * 24 * 3_600 * 1_000;

const WHY_NOT: &str = "a map of partial quorums does not support: replicas that cannot reach each other would both carry it out";

const ELSEWHERE: &str =
    "; a map of strategy service supports the command: QUORATE CREATE name STRATEGY service";

const NO_IDS: &str = "ERR QUORATE ID is not supported by a map of partial quorums, whose replicas do not agree on which requests were carried out. \
     SET, DEL and HSET may be repeated without an id if no other client writes the key; a map of strategy service \
     remembers ids: QUORATE CREATE name STRATEGY service";

/// Returns the refusal of a Redis command that is known and not offered, otherwise `None`.
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
            return Some(named(name, "is not supported: SCAN returns the keys"));
        }
        b"HSCAN" => return Some(named(name, "is not supported: HGETALL returns all fields")),
        b"FLUSHDB" | b"FLUSHALL" => return Some(named(name, "is not supported: QUORATE DROP drops a map")),
        b"AUTH" => {
            return Some(named(
                name,
                "is not supported: this server has no passwords, so connect without one",
            ));
        }
        b"WAIT" | b"WAITAOF" => {
            return Some(named(
                name,
                "is not supported: QUORATE LEVEL sets how many replicas a write waits for",
            ));
        }
        _ => return None,
    };
    Some(named(name, &format!("{why}{WHY_NOT}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::arguments::parsed_by;

    fn parsed(line: &str) -> Result<Option<CommandPlan>, String> {
        parsed_by(work, line)
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
    fn mistakes_and_what_cannot_be_are_refused_by_name() {
        for (line, text) in [
            ("get", "ERR wrong number of arguments for 'get' command"),
            ("mset a", "ERR wrong number of arguments for 'mset' command"),
            ("hset k a", "ERR wrong number of arguments for 'hset' command"),
            ("set k v ex", "ERR syntax error"),
            ("set k v ex x", "ERR value is not an integer or out of range"),
            ("set k v ex 01", "ERR value is not an integer or out of range"),
            ("setex k +5 v", "ERR value is not an integer or out of range"),
            ("set k v ex x px 1", "ERR syntax error"),
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
            ("quorate id x incr k", "ERR QUORATE ID is not supported by a map of partial quorums"),
            ("flushall", "ERR FLUSHALL is not supported: QUORATE DROP"),
        ] {
            let refusal = parsed(line).unwrap_err();
            assert!(refusal.starts_with(text), "{line}: {refusal}");
        }
        assert_eq!(parsed("frobnicate"), Ok(None));
    }

    #[test]
    fn a_value_lives_as_long_as_it_is_told() {
        for (line, lifetime) in [
            ("set k v ex 2", 2_000),
            ("set k v ex 9 ex 2", 2_000),
            ("set k v px 7", 7),
            ("setex k 3 v", 3_000),
            ("psetex k 4 v", 4),
        ] {
            let work = parsed(line).unwrap().unwrap();
            let Action::Put { lifetime: told, .. } = &work.operations[0].1 else { panic!("{work:?}") };
            assert_eq!(*told, Some(Duration::from_millis(lifetime)), "{line}");
        }
    }
}
