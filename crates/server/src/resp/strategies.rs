//! Commands on maps of other strategies than partial quorums. Each command is one atomic request.
//!
//! So the commands that partial quorums refuse are answered here: conditional writes, writes that return the
//! old value, and changes of a life. Commands that only read are parsed and answered as for partial quorums.

use std::time::Duration;

use bytes::Bytes;
use quorate::maps::strategy::{
    Outcome, RequestError,
    keyspace::{ANSWER_BYTES_MAX, KeyspaceAnswer, Life, Only, Refusal, Request, VALUE_BYTES_MAX, When},
};
use quorate_protocol::partial::{Action, Scanned, Token, Value, counter::integer};

use super::{
    arguments::Arguments,
    command,
    command_plan::{CommandPlan, ReplyForm},
    parse::number,
    refusal::{NO_NUMBER, WRONG_TYPE, arity, invalid_expiry, named},
    reply::Reply,
    scan,
};

/// A command on keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StrategyPlan {
    pub(super) request: Request,
    pub(super) form: StrategyReply,
}

/// The way in which an outcome is answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StrategyReply {
    /// The values of keys, in the form in which maps of partial quorums answer.
    Read(ReplyForm),
    Scan(scan::ScanRequest),
    /// `OK`.
    Done,
    /// `OK`, or null if the condition did not hold.
    DoneIf,
    /// The value before the write.
    Before,
    /// The number of keys, fields or bytes that the command reports.
    Count,
}

/// Returns the work of a command on keys, by its name in capitals. `None` if the command is not one on keys.
/// An error is the reason for a refusal.
pub(super) fn work(name: &[u8], arguments: Arguments<'_>) -> Result<Option<StrategyPlan>, String> {
    if command::is_id(name, arguments) {
        return once(arguments).map(Some);
    }
    let count = arguments.len();
    let wants = |holds: bool| if holds { Ok(()) } else { Err(arity(name)) };
    let key = || arguments.bytes(0);
    let (request, form) = match name {
        b"SET" => {
            wants(count >= 2)?;
            set(arguments)?
        }
        b"SETEX" | b"PSETEX" => {
            wants(count == 3)?;
            let life =
                life(name, arguments.get(1), if name == b"SETEX" { Unit::Seconds } else { Unit::Millis })?;
            (put(vec![(key(), arguments.bytes(2))], life, When::Always, false), StrategyReply::Done)
        }
        b"SETNX" | b"GETSET" => {
            wants(count == 2)?;
            let pair = vec![(key(), arguments.bytes(1))];
            match name {
                b"SETNX" => (put(pair, Life::Unlimited, When::Absent, false), StrategyReply::Count),
                _ => (put(pair, Life::Unlimited, When::Always, true), StrategyReply::Before),
            }
        }
        b"MSET" | b"MSETNX" => {
            wants(count >= 2 && count.is_multiple_of(2))?;
            let pair = |index| (arguments.bytes(index), arguments.bytes(index + 1));
            let pairs = (0..count).step_by(2).map(pair).collect();
            match name {
                b"MSET" => (put(pairs, Life::Unlimited, When::Always, false), StrategyReply::Done),
                _ => (put(pairs, Life::Unlimited, When::Absent, false), StrategyReply::Count),
            }
        }
        b"DEL" | b"UNLINK" => {
            wants(count >= 1)?;
            (Request::Delete { keys: arguments.all(), tell: false }, StrategyReply::Count)
        }
        b"GETDEL" => {
            wants(count == 1)?;
            (Request::Delete { keys: vec![key()], tell: true }, StrategyReply::Before)
        }
        b"GETEX" => {
            wants(count >= 1)?;
            match lives(name, arguments, 1)? {
                None => (Request::Read(vec![key()]), StrategyReply::Read(ReplyForm::Get)),
                Some(life) => (
                    Request::Live { key: key(), life, only: Only::Always, tell: true },
                    StrategyReply::Before,
                ),
            }
        }
        b"EXPIRE" | b"PEXPIRE" | b"EXPIREAT" | b"PEXPIREAT" => {
            wants(count >= 2)?;
            let only = only(arguments.from(2))?;
            let unit = if name[0] == b'P' { Unit::Millis } else { Unit::Seconds };
            let from_now = !name.ends_with(b"AT");
            let life = end(name, arguments.get(1), unit, from_now)?;
            (Request::Live { key: key(), life, only, tell: false }, StrategyReply::Count)
        }
        b"PERSIST" => {
            wants(count == 1)?;
            let (life, only) = (Life::Unlimited, Only::Always);
            (Request::Live { key: key(), life, only, tell: false }, StrategyReply::Count)
        }
        b"INCR" | b"DECR" => {
            wants(count == 1)?;
            (Request::Add { key: key(), added: if name == b"INCR" { 1 } else { -1 } }, StrategyReply::Count)
        }
        b"INCRBY" | b"DECRBY" => {
            wants(count == 2)?;
            let number = arguments.get(1).and_then(integer).ok_or(NO_NUMBER)?;
            let added = if name == b"INCRBY" { Some(number) } else { number.checked_neg() };
            let added = added.ok_or("ERR decrement would overflow")?;
            (Request::Add { key: key(), added }, StrategyReply::Count)
        }
        b"APPEND" => {
            wants(count == 2)?;
            (Request::Append { key: key(), tail: arguments.bytes(1) }, StrategyReply::Count)
        }
        b"HSET" | b"HMSET" | b"HSETNX" => {
            wants(count >= 3 && !count.is_multiple_of(2) && (name != b"HSETNX" || count == 3))?;
            let pair = |index| (arguments.bytes(index), arguments.bytes(index + 1));
            let fields = (1..count).step_by(2).map(pair).collect();
            let request = Request::PutFields { key: key(), fields, absent: name == b"HSETNX" };
            (request, if name == b"HMSET" { StrategyReply::Done } else { StrategyReply::Count })
        }
        b"HDEL" => {
            wants(count >= 2)?;
            let names = arguments.from(1).all();
            (Request::DeleteFields { key: key(), names }, StrategyReply::Count)
        }
        b"HINCRBY" => {
            wants(count == 3)?;
            let added = arguments.get(2).and_then(integer).ok_or(NO_NUMBER)?;
            (Request::AddField { key: key(), name: arguments.bytes(1), added }, StrategyReply::Count)
        }
        b"DBSIZE" => {
            wants(count == 0)?;
            (Request::Size, StrategyReply::Count)
        }
        b"SCAN" => {
            let request = scan::ScanRequest::parse(arguments)?;
            let behind = request.behind.map(|Token(hash)| hash);
            (Request::Scan { behind, limit: SCANNED_AT_ONCE }, StrategyReply::Scan(request))
        }
        b"KEYS" | b"RANDOMKEY" => {
            return Err(named(name, "is not supported: SCAN returns the keys"));
        }
        b"RENAME" | b"RENAMENX" | b"COPY" | b"INCRBYFLOAT" | b"HINCRBYFLOAT" | b"SETRANGE" | b"SETBIT"
        | b"HGETDEL" | b"HGETEX" | b"HEXPIRE" | b"HPERSIST" => {
            return Err(named(name, "is not supported"));
        }
        _ => match command::work(name, arguments)? {
            None => return Ok(None),
            Some(CommandPlan { shape, operations }) => {
                let only_reads = operations.iter().all(|(_, action)| *action == Action::Read);
                if !only_reads || shape.has_second() {
                    return Err(named(name, "is not supported"));
                }
                let keys = operations.into_iter().map(|(key, _)| key).collect();
                (Request::Read(keys), StrategyReply::Read(shape))
            }
        },
    };
    Ok(Some(StrategyPlan { request, form }))
}

/// Parses `QUORATE ID id command …`: a write that a client may repeat.
fn once(arguments: Arguments<'_>) -> Result<StrategyPlan, String> {
    let usage = || String::from("ERR usage: QUORATE ID id write …");
    let id = arguments.get(1).ok_or_else(usage)?;
    if id.is_empty() || id.len() > ID_BYTES_MAX {
        return Err(format!("ERR QUORATE ID: an id has 1 to {ID_BYTES_MAX} bytes"));
    }
    let name = arguments.word(2).ok_or_else(usage)?;
    let inner = (name != "QUORATE").then(|| work(name.as_bytes(), arguments.from(3))).transpose()?.flatten();
    let once = inner.and_then(|StrategyPlan { request, form }| {
        Some(StrategyPlan { request: Request::once(Bytes::copy_from_slice(id), &request)?, form })
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

/// Keys that a piece of a scan looks at, about.
const SCANNED_AT_ONCE: u32 = 100;

fn put(pairs: Vec<(Bytes, Bytes)>, life: Life, when: When, tell: bool) -> Request {
    Request::Put { pairs, life, when, tell }
}

/// Parses `SET` with its options. As in Redis, syntax errors are reported before errors in numbers.
fn set(arguments: Arguments<'_>) -> Result<(Request, StrategyReply), String> {
    let (mut when, mut tell, mut life): (_, _, Option<Expiry<'_>>) = (When::Always, false, None);
    let mut index = 2;
    while let Some(option) = arguments.word(index) {
        let syntax = || String::from("ERR syntax error");
        match option.as_str() {
            "NX" if when != When::Present => when = When::Absent,
            "XX" if when != When::Absent => when = When::Present,
            "GET" => tell = true,
            option => {
                let limit = limit(option, arguments.get(index + 1)).ok_or_else(syntax)?;
                if life.is_some_and(|before| !before.is_like(limit)) || limit == Expiry::Persist {
                    return Err(syntax());
                }
                index += limit.numbers();
                life = Some(limit);
            }
        }
        index += 1;
    }
    let form = match (tell, when) {
        (true, _) => StrategyReply::Before,
        (false, When::Always) => StrategyReply::Done,
        (false, _) => StrategyReply::DoneIf,
    };
    let pairs = vec![(arguments.bytes(0), arguments.bytes(1))];
    let life = life.map_or(Ok(Life::Unlimited), |limit| limit.life(b"SET"))?;
    Ok((put(pairs, life, when, tell), form))
}

/// Parses the options of `GETEX`, from index `at` on. Returns `None` if there are no options.
fn lives(name: &[u8], arguments: Arguments<'_>, at: usize) -> Result<Option<Life>, String> {
    let syntax = || String::from("ERR syntax error");
    let (mut life, mut index): (Option<Expiry<'_>>, _) = (None, at);
    while let Some(option) = arguments.word(index) {
        let limit = limit(&option, arguments.get(index + 1)).ok_or_else(syntax)?;
        if life.is_some_and(|before| !before.is_like(limit)) || limit == Expiry::Kept {
            return Err(syntax());
        }
        index += 1 + limit.numbers();
        life = Some(limit);
    }
    life.map(|limit| limit.life(name)).transpose()
}

/// Parses the condition of `EXPIRE` and its like.
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
        // An unlimited life is longer than any other, so `GT` never applies to it.
        (_, true, false) => Only::Longer,
        (true, false, true) => Only::LimitedShorter,
        (false, false, true) => Only::Shorter,
        (true, false, false) => Only::Limited,
        (false, false, false) if unlimited => Only::Unlimited,
        (false, false, false) => Only::Always,
    })
}

/// An option about a life, with its digits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expiry<'a> {
    Kept,
    Persist,
    After(Unit, &'a [u8]),
    At(Unit, &'a [u8]),
}

/// Returns the option of this name. `None` if there is no such option, or its number is missing.
fn limit<'a>(option: &str, digits: Option<&'a [u8]>) -> Option<Expiry<'a>> {
    Some(match option {
        "KEEPTTL" => Expiry::Kept,
        "PERSIST" => Expiry::Persist,
        "EX" => Expiry::After(Unit::Seconds, digits?),
        "PX" => Expiry::After(Unit::Millis, digits?),
        "EXAT" => Expiry::At(Unit::Seconds, digits?),
        "PXAT" => Expiry::At(Unit::Millis, digits?),
        _ => return None,
    })
}

impl Expiry<'_> {
    /// Whether both are the same option. It may be given twice, and the last one counts.
    fn is_like(self, other: Expiry<'_>) -> bool {
        match (self, other) {
            (Expiry::Kept, Expiry::Kept) | (Expiry::Persist, Expiry::Persist) => true,
            (Expiry::After(one, _), Expiry::After(two, _)) | (Expiry::At(one, _), Expiry::At(two, _)) => {
                one == two
            }
            _ => false,
        }
    }

    /// Returns the number of strings after the option.
    fn numbers(self) -> usize {
        match self {
            Expiry::Kept | Expiry::Persist => 0,
            Expiry::After(..) | Expiry::At(..) => 1,
        }
    }

    fn life(self, name: &[u8]) -> Result<Life, String> {
        match self {
            Expiry::Kept => Ok(Life::Kept),
            Expiry::Persist => Ok(Life::Unlimited),
            Expiry::After(unit, digits) => life(name, Some(digits), unit),
            Expiry::At(unit, digits) => {
                if number(digits).ok_or(NO_NUMBER)? <= 0 {
                    return Err(invalid_expiry(name));
                }
                end(name, Some(digits), unit, false)
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Seconds,
    Millis,
}

impl Unit {
    fn millis(self) -> u64 {
        match self {
            Unit::Seconds => 1_000,
            Unit::Millis => 1,
        }
    }
}

/// Parses a positive time from now on.
fn life(name: &[u8], digits: Option<&[u8]>, unit: Unit) -> Result<Life, String> {
    command::millis(name, digits, unit.millis()).map(Life::For)
}

/// Parses the end of a life: a time from now on, or a time on the wall clock. A past end deletes at once.
fn end(name: &[u8], digits: Option<&[u8]>, unit: Unit, from_now: bool) -> Result<Life, String> {
    let count = digits.and_then(number).ok_or(NO_NUMBER)?;
    // The milliseconds must fit in 64 bits, for times in the past, too.
    let in_millis = count.checked_mul(unit.millis() as i64);
    let in_millis = in_millis.ok_or_else(|| invalid_expiry(name))?;
    let Ok(span) = u64::try_from(in_millis) else { return Ok(Life::Until(0)) };
    if span >= MILLIS_MAX {
        return Err(invalid_expiry(name));
    }
    let span = Duration::from_millis(span);
    let nanos = u64::try_from(span.as_nanos()).map_err(|_| invalid_expiry(name))?;
    Ok(if !from_now {
        Life::Until(nanos)
    } else if count == 0 {
        Life::Until(0)
    } else {
        Life::For(span)
    })
}

/// Upper bound of an instant or a duration, in milliseconds, so that sums in nanoseconds fit in 64 bits.
const MILLIS_MAX: u64 = u64::MAX / 2_000_000;

impl StrategyReply {
    /// Makes the answer. `wall` is the wall clock in nanoseconds.
    pub(super) fn answer(self, outcome: Outcome, wall: u64) -> Reply {
        let answer = match outcome {
            Ok(answer) => answer,
            Err(undone) => {
                return Reply::Error(words(
                    &undone,
                    matches!(self, StrategyReply::Read(_) | StrategyReply::Scan(_)),
                ));
            }
        };
        match (self, answer) {
            (_, KeyspaceAnswer::Refused(refusal)) => Reply::Error(refused(refusal)),
            (StrategyReply::Read(shape), KeyspaceAnswer::Found(found)) => shape.answer(found.into(), wall),
            (StrategyReply::Scan(request), KeyspaceAnswer::Keys { keys, next }) => {
                request.answer(Scanned::Piece { keys, next: next.map(Token) })
            }
            (StrategyReply::Done, KeyspaceAnswer::Done { .. }) => Reply::OK,
            (StrategyReply::DoneIf, KeyspaceAnswer::Done { count: 1, .. }) => Reply::OK,
            (StrategyReply::DoneIf, KeyspaceAnswer::Done { .. }) => Reply::Null,
            (StrategyReply::Count, KeyspaceAnswer::Done { count, .. }) => Reply::Number(count),
            (StrategyReply::Before, KeyspaceAnswer::Done { before, .. }) => match before {
                Value::String(value) => Reply::Bulk(value),
                Value::Nothing => Reply::Null,
                Value::Hash(_) => Reply::Error(String::from(WRONG_TYPE)),
            },
            (form, answer) => unreachable!("{form:?} was answered with {answer:?}"),
        }
    }
}

/// Describes a request that failed. Only a write adds that nothing was written.
fn words(undone: &RequestError, reads: bool) -> String {
    match (undone, reads) {
        (RequestError::Unsupported(what), _) => format!("ERR this map does not support {what}"),
        (RequestError::NotDone(why), true) => format!("UNAVAILABLE {why}"),
        (RequestError::NotDone(why), false) => format!("UNAVAILABLE {why}: nothing was written"),
        (RequestError::MaybeApplied(why), true) => format!("UNANSWERED {why}"),
        (RequestError::MaybeApplied(why), false) => {
            format!("MAYBEAPPLIED {why}: the write may take effect at any time from now on, or never")
        }
    }
}

fn refused(refusal: Refusal) -> String {
    match refusal {
        Refusal::WrongType => WRONG_TYPE.to_owned(),
        Refusal::NoNumber => NO_NUMBER.to_owned(),
        Refusal::NoNumberInField => String::from("ERR hash value is not an integer"),
        Refusal::Overflow => String::from("ERR increment or decrement would overflow"),
        Refusal::Answer => {
            format!(
                "TOOLARGE the answer would have more than {ANSWER_BYTES_MAX} bytes: read fewer keys at once"
            )
        }
        Refusal::OtherRequest => String::from(
            "ERR QUORATE ID: this id belongs to another request, and nothing was written: use a new id for each request",
        ),
        Refusal::TooLarge => {
            format!("TOOLARGE a value has at most {VALUE_BYTES_MAX} bytes: nothing was written")
        }
        Refusal::Full => String::from("OOM the map holds as many bytes as it may: nothing was written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::arguments::parsed_by;

    fn parsed(line: &str) -> Result<Option<StrategyPlan>, String> {
        parsed_by(work, line)
    }

    fn request(line: &str) -> (Request, StrategyReply) {
        let StrategyPlan { request, form } = parsed(line).unwrap().unwrap();
        (request, form)
    }

    fn bytes(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    #[test]
    fn set_takes_its_options_in_any_order() {
        let pair = || vec![(bytes("k"), bytes("v"))];
        let seconds = |count| Life::For(Duration::from_secs(count));
        for (line, life, when, tell, form) in [
            ("set k v", Life::Unlimited, When::Always, false, StrategyReply::Done),
            ("set k v nx ex 5", seconds(5), When::Absent, false, StrategyReply::DoneIf),
            ("set k v px 2000 get XX", seconds(2), When::Present, true, StrategyReply::Before),
            ("set k v keepttl", Life::Kept, When::Always, false, StrategyReply::Done),
            ("set k v exat 7", Life::Until(7_000_000_000), When::Always, false, StrategyReply::Done),
        ] {
            assert_eq!(request(line), (put(pair(), life, when, tell), form), "{line}");
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
    fn an_id_stands_in_front_of_a_write() {
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
    fn lives_change_on_conditions() {
        let live = |life, only| Request::Live { key: bytes("k"), life, only, tell: false };
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
            assert_eq!(request(line), (live(life, only), StrategyReply::Count), "{line}");
        }
        assert_eq!(request("getex k").1, StrategyReply::Read(ReplyForm::Get));
        assert_eq!(request("getex k persist").1, StrategyReply::Before);
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
    fn what_only_reads_is_as_of_partial_quorums() {
        assert_eq!(
            request("mget a b"),
            (
                Request::Read(vec![bytes("a"), bytes("b")]),
                StrategyReply::Read(ReplyForm::GetMany(Vec::new()))
            )
        );
        assert_eq!(
            request("hget h f"),
            (Request::Read(vec![bytes("h")]), StrategyReply::Read(ReplyForm::Field(bytes("f"))))
        );
        assert_eq!(parsed("ping"), Ok(None));
        assert!(parsed("get").unwrap_err().contains("wrong number"));
        for line in ["rename a b", "keys *", "incrbyfloat a 1"] {
            assert!(parsed(line).unwrap_err().contains("is not supported"), "{line}");
        }
    }

    #[test]
    fn outcomes_make_answers() {
        let done = |count, before| Ok(KeyspaceAnswer::Done { count, before });
        assert_eq!(StrategyReply::DoneIf.answer(done(0, Value::Nothing), 0), Reply::Null);
        assert_eq!(
            StrategyReply::Before.answer(done(1, Value::String(bytes("v"))), 0),
            Reply::Bulk(bytes("v"))
        );
        assert_eq!(StrategyReply::Count.answer(done(3, Value::Nothing), 0), Reply::Number(3));
        let Reply::Error(text) =
            StrategyReply::Count.answer(Ok(KeyspaceAnswer::Refused(Refusal::NoNumber)), 0)
        else {
            panic!("no error")
        };
        assert_eq!(text, NO_NUMBER);
        let maybe = StrategyReply::Done.answer(Err(RequestError::MaybeApplied(String::from("why"))), 0);
        assert!(matches!(maybe, Reply::Error(text) if text.starts_with("MAYBEAPPLIED why")));
    }
}
