//! Commands on keys: each command becomes a request to a map, or is refused by name.
//!
//! One parser serves maps of all strategies. A map whose requests are atomic takes every request unchanged
//! ([`reply_form`](super::reply_form) makes the answer). A map of partial quorums takes the requests that are
//! operations on single keys ([`command_plan`](super::command_plan)). For such a map the parser refuses all
//! other requests by name: conditional writes (`SETNX`), and writes that also read (`APPEND`, `EXPIRE`). Two
//! replicas that do not hear each other would both carry such a request out.

use bytes::Bytes;
use quorate::maps::strategy::keyspace::{Life, Only, Request, When};
use quorate_protocol::partial::{Token, counter::integer};

use super::{
    arguments::Arguments,
    expiry::{Unit, end, life, option},
    read_form::{Places, ReadForm},
    refusal::{MapKind, NO_IDS, NO_NUMBER, SYNTAX, arity, refused, refused_option},
    reply_form::ReplyForm,
    scan,
};

/// A command on keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeyCommand {
    pub(super) request: Request,
    pub(super) form: ReplyForm,
}

impl KeyCommand {
    fn read(keys: Vec<Bytes>, form: ReadForm) -> KeyCommand {
        KeyCommand { request: Request::Read(keys), form: ReplyForm::Read(form) }
    }

    fn put(pairs: Vec<(Bytes, Bytes)>, life: Life, when: When, form: ReplyForm) -> KeyCommand {
        let return_old = form == ReplyForm::Before;
        KeyCommand { request: Request::Put { pairs, life, when, return_old }, form }
    }

    /// Returns a command whose answer is a count.
    fn counted(request: Request) -> KeyCommand {
        KeyCommand { request, form: ReplyForm::Count }
    }
}

/// Whether a command begins with the prefix `QUORATE ID` of a write that may be repeated.
pub(super) fn is_id(name: &[u8], arguments: Arguments<'_>) -> bool {
    name == b"QUORATE" && arguments.get(0).is_some_and(|word| word.eq_ignore_ascii_case(b"ID"))
}

/// Parses a command on keys of a map of this kind. `name` is in capitals. Returns `None` if it is no command
/// on keys. An error is the reason for a refusal.
pub(super) fn parse(
    name: &[u8],
    arguments: Arguments<'_>,
    kind: MapKind,
) -> Result<Option<KeyCommand>, String> {
    let count = arguments.len();
    let wants = |holds: bool| if holds { Ok(()) } else { Err(arity(name)) };
    let key = || arguments.bytes(0);
    let pairs = |first: usize| {
        let pair = |index| (arguments.bytes(index), arguments.bytes(index + 1));
        (first..count).step_by(2).map(pair).collect::<Vec<(Bytes, Bytes)>>()
    };
    let is_atomic = kind == MapKind::Atomic;
    let command = match name {
        b"GET" => {
            wants(count == 1)?;
            KeyCommand::read(vec![key()], ReadForm::Get)
        }
        b"SET" => {
            wants(count >= 2)?;
            set(arguments, kind)?
        }
        b"SETEX" | b"PSETEX" => {
            wants(count == 3)?;
            let unit = if name == b"SETEX" { Unit::Seconds } else { Unit::Millis };
            let life = life(name, arguments.get(1), unit)?;
            KeyCommand::put(vec![(key(), arguments.bytes(2))], life, When::Always, ReplyForm::Done)
        }
        b"INCR" | b"DECR" => {
            wants(count == 1)?;
            let added = if name == b"INCR" { 1 } else { -1 };
            KeyCommand::counted(Request::Add { key: key(), added })
        }
        b"INCRBY" | b"DECRBY" => {
            wants(count == 2)?;
            let number = arguments.get(1).and_then(integer).ok_or(NO_NUMBER)?;
            let added = if name == b"INCRBY" { Some(number) } else { number.checked_neg() };
            let added = added.ok_or("ERR decrement would overflow")?;
            KeyCommand::counted(Request::Add { key: key(), added })
        }
        b"MSET" => {
            wants(count >= 2 && count.is_multiple_of(2))?;
            KeyCommand::put(pairs(0), Life::Unlimited, When::Always, ReplyForm::Done)
        }
        b"MGET" | b"EXISTS" => {
            wants(count >= 1)?;
            let (keys, places) = once_each(arguments.all());
            let form = if name == b"MGET" { ReadForm::GetMany } else { ReadForm::Exists };
            KeyCommand::read(keys, form(places))
        }
        b"DEL" | b"UNLINK" => {
            wants(count >= 1)?;
            KeyCommand::counted(Request::Delete { keys: arguments.all(), return_old: false })
        }
        b"STRLEN" | b"TYPE" | b"TTL" | b"PTTL" | b"HGETALL" | b"HKEYS" | b"HVALS" | b"HLEN" => {
            wants(count == 1)?;
            let form = match name {
                b"STRLEN" => ReadForm::Length,
                b"TYPE" => ReadForm::Type,
                b"TTL" => ReadForm::Life(1_000_000_000),
                b"PTTL" => ReadForm::Life(1_000_000),
                b"HGETALL" => ReadForm::AllFields,
                b"HKEYS" => ReadForm::FieldNames,
                b"HVALS" => ReadForm::FieldValues,
                _ => ReadForm::FieldCount,
            };
            KeyCommand::read(vec![key()], form)
        }
        b"HGET" | b"HEXISTS" | b"HSTRLEN" => {
            wants(count == 2)?;
            let form = match name {
                b"HGET" => ReadForm::Field,
                b"HEXISTS" => ReadForm::FieldExists,
                _ => ReadForm::FieldLength,
            };
            KeyCommand::read(vec![key()], form(arguments.bytes(1)))
        }
        b"HMGET" => {
            wants(count >= 2)?;
            KeyCommand::read(vec![key()], ReadForm::Fields(arguments.from(1).all()))
        }
        b"HDEL" => {
            wants(count >= 2)?;
            KeyCommand::counted(Request::DeleteFields { key: key(), names: arguments.from(1).all() })
        }
        b"HSET" | b"HMSET" => {
            wants(count >= 3 && !count.is_multiple_of(2))?;
            let request = Request::PutFields { key: key(), fields: pairs(1), absent: false };
            let form = if name == b"HMSET" { ReplyForm::Done } else { ReplyForm::Count };
            KeyCommand { request, form }
        }
        b"SCAN" => {
            let request = scan::ScanRequest::parse(arguments)?;
            let behind = request.behind.map(|Token(hash)| hash);
            let form = ReplyForm::Scan(request);
            KeyCommand { request: Request::Scan { behind, limit: SCANNED_AT_ONCE }, form }
        }
        b"SETNX" if is_atomic => {
            wants(count == 2)?;
            KeyCommand::put(pairs(0), Life::Unlimited, When::Absent, ReplyForm::Count)
        }
        b"MSETNX" if is_atomic => {
            wants(count >= 2 && count.is_multiple_of(2))?;
            KeyCommand::put(pairs(0), Life::Unlimited, When::Absent, ReplyForm::Count)
        }
        b"HSETNX" if is_atomic => {
            wants(count == 3)?;
            KeyCommand::counted(Request::PutFields { key: key(), fields: pairs(1), absent: true })
        }
        b"GETSET" if is_atomic => {
            wants(count == 2)?;
            KeyCommand::put(pairs(0), Life::Unlimited, When::Always, ReplyForm::Before)
        }
        b"GETDEL" if is_atomic => {
            wants(count == 1)?;
            KeyCommand {
                request: Request::Delete { keys: vec![key()], return_old: true },
                form: ReplyForm::Before,
            }
        }
        b"GETEX" if is_atomic => {
            wants(count >= 1)?;
            match new_life(name, arguments.from(1))? {
                None => KeyCommand::read(vec![key()], ReadForm::Get),
                Some(life) => {
                    let request = Request::Live { key: key(), life, only: Only::Always, return_old: true };
                    KeyCommand { request, form: ReplyForm::Before }
                }
            }
        }
        b"EXPIRE" | b"PEXPIRE" | b"EXPIREAT" | b"PEXPIREAT" if is_atomic => {
            wants(count >= 2)?;
            let only = only(arguments.from(2))?;
            let unit = if name[0] == b'P' { Unit::Millis } else { Unit::Seconds };
            let life = end(name, arguments.get(1), unit, !name.ends_with(b"AT"))?;
            KeyCommand::counted(Request::Live { key: key(), life, only, return_old: false })
        }
        b"PERSIST" if is_atomic => {
            wants(count == 1)?;
            let (life, only) = (Life::Unlimited, Only::Always);
            KeyCommand::counted(Request::Live { key: key(), life, only, return_old: false })
        }
        b"APPEND" if is_atomic => {
            wants(count == 2)?;
            KeyCommand::counted(Request::Append { key: key(), tail: arguments.bytes(1) })
        }
        b"HINCRBY" if is_atomic => {
            wants(count == 3)?;
            let added = arguments.get(2).and_then(integer).ok_or(NO_NUMBER)?;
            KeyCommand::counted(Request::AddField { key: key(), name: arguments.bytes(1), added })
        }
        b"DBSIZE" if is_atomic => {
            wants(count == 0)?;
            KeyCommand::counted(Request::Size)
        }
        _ if is_id(name, arguments) && is_atomic => once(arguments)?,
        _ if is_id(name, arguments) => return Err(String::from(NO_IDS)),
        _ => return refused(name, kind).map_or(Ok(None), Err),
    };
    Ok(Some(command))
}

/// Parses `QUORATE ID id command …`: a write that a client may repeat.
fn once(arguments: Arguments<'_>) -> Result<KeyCommand, String> {
    let usage = || String::from("ERR usage: QUORATE ID id write …");
    let id = arguments.get(1).ok_or_else(usage)?;
    if id.is_empty() || id.len() > ID_BYTES_MAX {
        return Err(format!("ERR QUORATE ID: an id has 1 to {ID_BYTES_MAX} bytes"));
    }
    let name = arguments.word(2).ok_or_else(usage)?;
    let inner = (name != "QUORATE").then(|| parse(name.as_bytes(), arguments.from(3), MapKind::Atomic));
    let once = inner.transpose()?.flatten().and_then(|KeyCommand { request, form }| {
        Some(KeyCommand { request: Request::once(Bytes::copy_from_slice(id), &request)?, form })
    });
    once.ok_or_else(|| {
        let name: String = name.chars().take(64).collect();
        format!(
            "ERR QUORATE ID must be followed by a command that writes keys, and {name} does not write keys"
        )
    })
}

/// Longest id of a request, in bytes.
const ID_BYTES_MAX: usize = 64;

/// Approximate number of keys that a piece of a scan looks at.
const SCANNED_AT_ONCE: u32 = 100;

/// Parses `SET` with its options. As in Redis, syntax errors are reported before errors in numbers.
fn set(arguments: Arguments<'_>, kind: MapKind) -> Result<KeyCommand, String> {
    let (mut when, mut return_old, mut life) = (When::Always, false, None);
    let mut index = 2;
    while let Some(word) = arguments.word(index) {
        if let Some(refusal) = refused_option(&word, kind) {
            return Err(refusal);
        }
        match word.as_str() {
            "NX" if when != When::Present => when = When::Absent,
            "XX" if when != When::Absent => when = When::Present,
            "GET" => return_old = true,
            "PERSIST" => return Err(SYNTAX.to_owned()),
            word => index += option(&mut life, word, arguments.get(index + 1))?,
        }
        index += 1;
    }
    let form = match (return_old, when) {
        (true, _) => ReplyForm::Before,
        (false, When::Always) => ReplyForm::Done,
        (false, _) => ReplyForm::DoneIf,
    };
    let life = life.map_or(Ok(Life::Unlimited), |option| option.life(b"SET"))?;
    Ok(KeyCommand::put(vec![(arguments.bytes(0), arguments.bytes(1))], life, when, form))
}

/// Parses the options of `GETEX`. Returns `None` if there are no options.
fn new_life(name: &[u8], options: Arguments<'_>) -> Result<Option<Life>, String> {
    let (mut life, mut index) = (None, 0);
    while let Some(word) = options.word(index) {
        if word == "KEEPTTL" {
            return Err(SYNTAX.to_owned());
        }
        index += 1 + option(&mut life, &word, options.get(index + 1))?;
    }
    life.map(|option| option.life(name)).transpose()
}

/// Parses the condition of `EXPIRE` and of similar commands.
fn only(options: Arguments<'_>) -> Result<Only, String> {
    let (mut unlimited, mut limited, mut longer, mut shorter) = (false, false, false, false);
    for index in 0..options.len() {
        match options.word(index).unwrap_or_default().as_str() {
            "NX" => unlimited = true,
            "XX" => limited = true,
            "GT" => longer = true,
            "LT" => shorter = true,
            _ => {
                let option = options.get(index).unwrap_or_default();
                let option = String::from_utf8_lossy(&option[..option.len().min(64)]);
                return Err(format!("ERR Unsupported option {option}"));
            }
        }
    }
    if unlimited && (limited || longer || shorter) {
        return Err(String::from("ERR NX and XX, GT or LT options at the same time are not compatible"));
    }
    Ok(match (limited, longer, shorter) {
        (_, true, true) => {
            return Err(String::from("ERR GT and LT options at the same time are not compatible"));
        }
        // An unlimited life is longer than any limited life, so `GT` never applies to a key without a limit.
        (_, true, false) => Only::Longer,
        (true, false, true) => Only::LimitedShorter,
        (false, false, true) => Only::Shorter,
        (true, false, false) => Only::Limited,
        (false, false, false) if unlimited => Only::Unlimited,
        (false, false, false) => Only::Always,
    })
}

/// Returns each key once, in the order of first mention, and for each place in `keys` the index of its key.
/// The list of places is empty if no key repeats.
pub(super) fn once_each(keys: Vec<Bytes>) -> (Vec<Bytes>, Places) {
    // Sorting takes O(n log n) for any choice of keys, so no client can choose keys that make this step slow.
    let mut order: Vec<u32> = (0..keys.len() as u32).collect();
    order.sort_by_key(|index| &keys[*index as usize]);
    let repeats = |pair: &[u32]| keys[pair[0] as usize] == keys[pair[1] as usize];
    if !order.windows(2).any(repeats) {
        return (keys, Places::new());
    }
    // The sort is stable, so the first mention of a key stands first among equal keys.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::resp::arguments::parsed_by;

    fn parsed(line: &str) -> Result<Option<KeyCommand>, String> {
        parsed_by(|name, arguments| parse(name, arguments, MapKind::Atomic), line)
    }

    fn request(line: &str) -> (Request, ReplyForm) {
        let KeyCommand { request, form } = parsed(line).unwrap().unwrap();
        (request, form)
    }

    fn bytes(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    fn put(pairs: Vec<(Bytes, Bytes)>, life: Life, when: When, return_old: bool) -> Request {
        Request::Put { pairs, life, when, return_old }
    }

    #[test]
    fn wrong_and_unsupported_commands_are_refused_with_the_reason() {
        let at_quorums = |line| parsed_by(|name, arguments| parse(name, arguments, MapKind::Quorum), line);
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
            let refusal = at_quorums(line).unwrap_err();
            assert!(refusal.starts_with(text), "{line}: {refusal}");
        }
        assert_eq!(at_quorums("frobnicate"), Ok(None));
    }

    #[test]
    fn set_takes_its_options_in_any_order() {
        let pair = || vec![(bytes("k"), bytes("v"))];
        let seconds = |count| Life::For(Duration::from_secs(count));
        for (line, life, when, return_old, form) in [
            ("set k v", Life::Unlimited, When::Always, false, ReplyForm::Done),
            ("set k v nx ex 5", seconds(5), When::Absent, false, ReplyForm::DoneIf),
            ("set k v px 2000 get XX", seconds(2), When::Present, true, ReplyForm::Before),
            ("set k v keepttl", Life::Kept, When::Always, false, ReplyForm::Done),
            ("set k v exat 7", Life::Until(7_000_000_000), When::Always, false, ReplyForm::Done),
        ] {
            assert_eq!(request(line), (put(pair(), life, when, return_old), form), "{line}");
        }
        assert_eq!(request("set k v nx nx ex 9 ex 5 get get").0, put(pair(), seconds(5), When::Absent, true));
        for line in [
            "set k v nx xx",
            "set k v ex 5 px 5",
            "set k v keepttl ex 1",
            "set k v often",
            "set k v ex",
            "set k v persist",
            "set k v ex x px 1",
        ] {
            assert_eq!(parsed(line), Err(String::from("ERR syntax error")), "{line}");
        }
        for line in ["set k v ex 0", "set k v pxat -1", "setex k 0 v"] {
            assert!(parsed(line).unwrap_err().starts_with("ERR invalid expire time"), "{line}");
        }
    }

    #[test]
    fn a_request_id_may_precede_a_write_only() {
        let (inner, form) = request("incrby k 5");
        let once = Request::once(bytes("a-1"), &inner).unwrap();
        assert_eq!(request("quorate id a-1 incrby k 5"), (once, form));
        for line in [
            "quorate id",
            "quorate id a",
            "quorate id a get k",
            "quorate id a ping",
            "quorate id a quorate id b incr k",
        ] {
            assert!(parsed(line).unwrap_err().contains("QUORATE ID"), "{line}");
        }
        assert!(
            parsed(&format!("quorate id {} incr k", "x".repeat(65))).unwrap_err().contains("1 to 64 bytes")
        );
        assert_eq!(parsed("quorate level one"), Ok(None));
    }

    #[test]
    fn expire_commands_are_parsed_with_their_conditions() {
        let live = |life, only| Request::Live { key: bytes("k"), life, only, return_old: false };
        for (line, life, only) in [
            ("expire k 5", Life::For(Duration::from_secs(5)), Only::Always),
            ("pexpire k 5 nx", Life::For(Duration::from_millis(5)), Only::Unlimited),
            ("expire k -5 gt", Life::Until(0), Only::Longer),
            ("expireat k 5 lt", Life::Until(5_000_000_000), Only::Shorter),
            ("persist k", Life::Unlimited, Only::Always),
            ("expire k 5 xx GT", Life::For(Duration::from_secs(5)), Only::Longer),
            ("expire k 5 lt xx lt", Life::For(Duration::from_secs(5)), Only::LimitedShorter),
            ("pexpire k -9223372036854775808", Life::Until(0), Only::Always),
        ] {
            assert_eq!(request(line), (live(life, only), ReplyForm::Count), "{line}");
        }
        assert_eq!(request("getex k").1, ReplyForm::Read(ReadForm::Get));
        assert_eq!(request("getex k persist").1, ReplyForm::Before);
        assert!(parsed("expire k 5 sometimes").unwrap_err().contains("Unsupported option"));
        for digits in ["99999999999999999", "-9223372036854775808", "9223372036854775807"] {
            let refusal = parsed(&format!("expire k {digits}")).unwrap_err();
            assert_eq!(refusal, "ERR invalid expire time in 'expire' command", "{digits}");
        }
        for digits in ["05", "+5", "5.0", "9223372036854775808", "x"] {
            assert_eq!(parsed(&format!("expire k {digits}")).unwrap_err(), NO_NUMBER, "{digits}");
        }
        for options in ["nx xx", "gt nx", "nx lt", "gt lt", "xx gt lt"] {
            assert!(parsed(&format!("expire k x {options}")).unwrap_err().contains("are not compatible"));
        }
        assert!(parsed("getex k ex").unwrap_err().contains("syntax"));
    }

    #[test]
    fn reading_commands_become_read_requests_with_a_reply_form() {
        assert_eq!(
            request("mget a b"),
            (Request::Read(vec![bytes("a"), bytes("b")]), ReplyForm::Read(ReadForm::GetMany(Vec::new())))
        );
        assert_eq!(
            request("hget h f"),
            (Request::Read(vec![bytes("h")]), ReplyForm::Read(ReadForm::Field(bytes("f"))))
        );
        assert_eq!(parsed("ping"), Ok(None));
        assert!(parsed("get").unwrap_err().contains("wrong number"));
        for line in ["rename a b", "keys *", "incrbyfloat a 1"] {
            assert!(parsed(line).unwrap_err().contains("is not supported"), "{line}");
        }
    }
}
