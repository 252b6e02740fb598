//! Commands on maps of other strategies than partial quorums: one request each, with nothing in between.
//!
//! So what partial quorums must refuse is answered here: conditions, strings that are told when they are replaced, lives that change.
//! Commands that read and change nothing are parsed and answered as those of partial quorums.

use std::time::Duration;

use bytes::Bytes;
use quorate::maps::strategy::{
    Outcome, Undone,
    keyspace::{Answer, Life, Only, Refusal, Request, VALUE_BYTES_MAX, When},
};
use quorate_protocol::partial::{Action, Scanned, Token, Value, counter::integer};

use super::{
    command::{self, Arguments, NO_NUMBER, Shape, WRONG_TYPE, arity},
    parse::number,
    reply::Reply,
    scan,
};

/// A command on keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) request: Request,
    pub(super) form: Form,
}

/// The form in which an outcome is answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As of partial quorums.
    Read(Shape),
    Scan(scan::Request),
    /// Done.
    Done,
    /// Done, or no value if it was not.
    DoneIf,
    /// The value before.
    Before,
    /// The count.
    Count,
}

/// The work of a command on keys, by its name in capitals; none if it is none of these. An error says why it is refused.
pub(super) fn work(name: &[u8], arguments: Arguments<'_>) -> Result<Option<Work>, String> {
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
            (put(vec![(key(), arguments.bytes(2))], life, When::Always, false), Form::Done)
        }
        b"SETNX" | b"GETSET" => {
            wants(count == 2)?;
            let pair = vec![(key(), arguments.bytes(1))];
            match name {
                b"SETNX" => (put(pair, Life::Unlimited, When::Absent, false), Form::Count),
                _ => (put(pair, Life::Unlimited, When::Always, true), Form::Before),
            }
        }
        b"MSET" | b"MSETNX" => {
            wants(count >= 2 && count.is_multiple_of(2))?;
            let pair = |index| (arguments.bytes(index), arguments.bytes(index + 1));
            let pairs = (0..count).step_by(2).map(pair).collect();
            match name {
                b"MSET" => (put(pairs, Life::Unlimited, When::Always, false), Form::Done),
                _ => (put(pairs, Life::Unlimited, When::Absent, false), Form::Count),
            }
        }
        b"DEL" | b"UNLINK" => {
            wants(count >= 1)?;
            (Request::Delete { keys: arguments.all(), tell: false }, Form::Count)
        }
        b"GETDEL" => {
            wants(count == 1)?;
            (Request::Delete { keys: vec![key()], tell: true }, Form::Before)
        }
        b"GETEX" => {
            wants(count >= 1)?;
            match lives(name, arguments, 1)? {
                None => (Request::Read(vec![key()]), Form::Read(Shape::Get)),
                Some(life) => {
                    (Request::Live { key: key(), life, only: Only::Always, tell: true }, Form::Before)
                }
            }
        }
        b"EXPIRE" | b"PEXPIRE" | b"EXPIREAT" | b"PEXPIREAT" => {
            wants(count == 2 || count == 3)?;
            let unit = if name[0] == b'P' { Unit::Millis } else { Unit::Seconds };
            let from_now = !name.ends_with(b"AT");
            let life = end(name, arguments.get(1), unit, from_now)?;
            let only = match arguments.word(2).as_deref() {
                None => Only::Always,
                Some("NX") => Only::Unlimited,
                Some("XX") => Only::Limited,
                Some("GT") => Only::Longer,
                Some("LT") => Only::Shorter,
                Some(other) => return Err(format!("ERR Unsupported option {other}")),
            };
            (Request::Live { key: key(), life, only, tell: false }, Form::Count)
        }
        b"PERSIST" => {
            wants(count == 1)?;
            let (life, only) = (Life::Unlimited, Only::Always);
            (Request::Live { key: key(), life, only, tell: false }, Form::Count)
        }
        b"INCR" | b"DECR" => {
            wants(count == 1)?;
            (Request::Add { key: key(), added: if name == b"INCR" { 1 } else { -1 } }, Form::Count)
        }
        b"INCRBY" | b"DECRBY" => {
            wants(count == 2)?;
            let number = arguments.get(1).and_then(integer).ok_or(NO_NUMBER)?;
            let added = if name == b"INCRBY" { Some(number) } else { number.checked_neg() };
            let added = added.ok_or("ERR decrement would overflow")?;
            (Request::Add { key: key(), added }, Form::Count)
        }
        b"APPEND" => {
            wants(count == 2)?;
            (Request::Append { key: key(), tail: arguments.bytes(1) }, Form::Count)
        }
        b"HSET" | b"HMSET" | b"HSETNX" => {
            wants(count >= 3 && !count.is_multiple_of(2) && (name != b"HSETNX" || count == 3))?;
            let pair = |index| (arguments.bytes(index), arguments.bytes(index + 1));
            let fields = (1..count).step_by(2).map(pair).collect();
            let request = Request::PutFields { key: key(), fields, absent: name == b"HSETNX" };
            (request, if name == b"HMSET" { Form::Done } else { Form::Count })
        }
        b"HDEL" => {
            wants(count >= 2)?;
            let names = arguments.from(1).all();
            (Request::DeleteFields { key: key(), names }, Form::Count)
        }
        b"HINCRBY" => {
            wants(count == 3)?;
            let added = arguments.get(2).and_then(integer).ok_or(NO_NUMBER)?;
            (Request::AddField { key: key(), name: arguments.bytes(1), added }, Form::Count)
        }
        b"DBSIZE" => {
            wants(count == 0)?;
            (Request::Size, Form::Count)
        }
        b"SCAN" => {
            let request = scan::Request::parse(arguments)?;
            let behind = request.behind.map(|Token(hash)| hash);
            (Request::Scan { behind, limit: SCANNED_AT_ONCE }, Form::Scan(request))
        }
        b"KEYS" | b"RANDOMKEY" => return Err(command::named(name, "is not supported: SCAN tells the keys")),
        b"RENAME" | b"RENAMENX" | b"COPY" | b"INCRBYFLOAT" | b"HINCRBYFLOAT" | b"SETRANGE" | b"SETBIT"
        | b"HGETDEL" | b"HGETEX" | b"HEXPIRE" | b"HPERSIST" | b"MULTI" | b"EXEC" | b"DISCARD" | b"WATCH"
        | b"UNWATCH" => return Err(command::named(name, "is not supported")),
        _ => match command::work(name, arguments)? {
            None => return Ok(None),
            Some(command::Work { shape, operations }) => {
                let only_reads = operations.iter().all(|(_, action)| *action == Action::Read);
                if !only_reads || shape.has_second() {
                    return Err(command::named(name, "is not supported"));
                }
                let keys = operations.into_iter().map(|(key, _)| key).collect();
                (Request::Read(keys), Form::Read(shape))
            }
        },
    };
    Ok(Some(Work { request, form }))
}

/// A piece of a scan looks at about so many keys.
const SCANNED_AT_ONCE: u32 = 100;

fn put(pairs: Vec<(Bytes, Bytes)>, life: Life, when: When, tell: bool) -> Request {
    Request::Put { pairs, life, when, tell }
}

/// `SET` with its options.
fn set(arguments: Arguments<'_>) -> Result<(Request, Form), String> {
    let (mut when, mut tell, mut life) = (When::Always, false, None);
    let mut index = 2;
    while let Some(option) = arguments.word(index) {
        let syntax = || String::from("ERR syntax error");
        match option.as_str() {
            "NX" | "XX" if when == When::Always => {
                when = if option == "NX" { When::Absent } else { When::Present };
            }
            "GET" => tell = true,
            "KEEPTTL" if life.is_none() => life = Some(Life::Kept),
            option if life.is_none() => {
                life = Some(limited(b"SET", option, arguments.get(index + 1))?.ok_or_else(syntax)?);
                index += 1;
            }
            _ => return Err(syntax()),
        }
        index += 1;
    }
    let form = match (tell, when) {
        (true, _) => Form::Before,
        (false, When::Always) => Form::Done,
        (false, _) => Form::DoneIf,
    };
    let pairs = vec![(arguments.bytes(0), arguments.bytes(1))];
    Ok((put(pairs, life.unwrap_or(Life::Unlimited), when, tell), form))
}

/// The one option about lives from this place on, if there is one.
fn lives(name: &[u8], arguments: Arguments<'_>, at: usize) -> Result<Option<Life>, String> {
    let syntax = || String::from("ERR syntax error");
    match (arguments.word(at).as_deref(), arguments.len() - at) {
        (None, _) => Ok(None),
        (Some("PERSIST"), 1) => Ok(Some(Life::Unlimited)),
        (Some(option), 2) => limited(name, option, arguments.get(at + 1))?.map(Some).ok_or_else(syntax),
        _ => Err(syntax()),
    }
}

/// The life that an option sets with its number; none: it is no such option.
fn limited(name: &[u8], option: &str, digits: Option<&[u8]>) -> Result<Option<Life>, String> {
    match option {
        "EX" => life(name, digits, Unit::Seconds).map(Some),
        "PX" => life(name, digits, Unit::Millis).map(Some),
        "EXAT" | "PXAT" => {
            let unit = if option == "EXAT" { Unit::Seconds } else { Unit::Millis };
            match digits.and_then(number) {
                Some(1..) => end(name, digits, unit, false).map(Some),
                _ => Err(command::invalid_expiry(name)),
            }
        }
        _ => Ok(None),
    }
}

#[derive(Clone, Copy)]
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

/// A positive time from now on.
fn life(name: &[u8], digits: Option<&[u8]>, unit: Unit) -> Result<Life, String> {
    let life = command::millis(digits, unit.millis()).map(Life::For);
    life.ok_or_else(|| command::invalid_expiry(name))
}

/// A time from now on, or one of day; one that is over ends at once.
fn end(name: &[u8], digits: Option<&[u8]>, unit: Unit, from_now: bool) -> Result<Life, String> {
    let count = digits.and_then(number).ok_or(NO_NUMBER)?;
    let Ok(count) = u64::try_from(count) else { return Ok(Life::Until(0)) };
    let span = count.checked_mul(unit.millis()).filter(|millis| *millis < MILLIS_MAX);
    let span = Duration::from_millis(span.ok_or_else(|| command::invalid_expiry(name))?);
    let nanos = u64::try_from(span.as_nanos()).map_err(|_| command::invalid_expiry(name))?;
    Ok(if !from_now {
        Life::Until(nanos)
    } else if count == 0 {
        Life::Until(0)
    } else {
        Life::For(span)
    })
}

/// No instant, and no span, has more: nanoseconds of it are added to others in 64 bits.
const MILLIS_MAX: u64 = u64::MAX / 2_000_000;

impl Form {
    /// The answer. `wall` is the wall clock in nanoseconds.
    pub(super) fn answer(self, outcome: Outcome, wall: u64) -> Reply {
        let answer = match outcome {
            Ok(answer) => answer,
            Err(undone) => return Reply::Error(words(&undone)),
        };
        match (self, answer) {
            (_, Answer::Refused(refusal)) => Reply::Error(refused(refusal)),
            (Form::Read(shape), Answer::Found(found)) => shape.answer(found.into(), wall),
            (Form::Scan(request), Answer::Keys { keys, next }) => {
                request.answer(Scanned::Piece { keys, next: next.map(Token) })
            }
            (Form::Done, Answer::Done { .. }) => Reply::OK,
            (Form::DoneIf, Answer::Done { count: 1, .. }) => Reply::OK,
            (Form::DoneIf, Answer::Done { .. }) => Reply::Null,
            (Form::Count, Answer::Done { count, .. }) => Reply::Number(count),
            (Form::Before, Answer::Done { before, .. }) => match before {
                Value::String(value) => Reply::Bulk(value),
                Value::Nothing => Reply::Null,
                Value::Hash(_) => Reply::Error(String::from(WRONG_TYPE)),
            },
            (form, answer) => unreachable!("{form:?} was answered with {answer:?}"),
        }
    }
}

fn words(undone: &Undone) -> String {
    match undone {
        Undone::Unsupported(what) => format!("ERR {what}: this is not supported"),
        Undone::NotDone(why) => format!("UNAVAILABLE {why}: nothing was written"),
        Undone::MaybeApplied(why) => {
            format!("MAYBEAPPLIED {why}: a write takes effect at any time, or never")
        }
    }
}

fn refused(refusal: Refusal) -> String {
    match refusal {
        Refusal::WrongType => WRONG_TYPE.to_owned(),
        Refusal::NoNumber => NO_NUMBER.to_owned(),
        Refusal::NoNumberInField => String::from("ERR hash value is not an integer"),
        Refusal::Overflow => String::from("ERR increment or decrement would overflow"),
        Refusal::TooLarge => {
            format!("TOOLARGE a value has at most {VALUE_BYTES_MAX} bytes: nothing was written")
        }
        Refusal::Full => String::from("OOM the map has no room left: nothing was written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Option<Work>, String> {
        command::parsed_by(work, line)
    }

    fn request(line: &str) -> (Request, Form) {
        let Work { request, form } = parsed(line).unwrap().unwrap();
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
            ("set k v", Life::Unlimited, When::Always, false, Form::Done),
            ("set k v nx ex 5", seconds(5), When::Absent, false, Form::DoneIf),
            ("set k v px 2000 get XX", seconds(2), When::Present, true, Form::Before),
            ("set k v keepttl", Life::Kept, When::Always, false, Form::Done),
            ("set k v exat 7", Life::Until(7_000_000_000), When::Always, false, Form::Done),
        ] {
            assert_eq!(request(line), (put(pair(), life, when, tell), form), "{line}");
        }
        for line in ["set k v nx xx", "set k v ex 5 px 5", "set k v keepttl ex 1", "set k v often"] {
            assert_eq!(parsed(line), Err(String::from("ERR syntax error")), "{line}");
        }
        for line in ["set k v ex 0", "set k v ex", "set k v pxat -1", "setex k 0 v"] {
            assert!(parsed(line).unwrap_err().starts_with("ERR invalid expire time"), "{line}");
        }
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
        ] {
            assert_eq!(request(line), (live(life, only), Form::Count), "{line}");
        }
        assert_eq!(request("getex k").1, Form::Read(Shape::Get));
        assert_eq!(request("getex k persist").1, Form::Before);
        assert!(parsed("expire k 5 sometimes").unwrap_err().contains("Unsupported option"));
        assert!(parsed("expire k 99999999999999999").unwrap_err().contains("invalid expire time"));
        assert!(parsed("getex k ex").unwrap_err().contains("syntax"));
    }

    #[test]
    fn what_only_reads_is_as_of_partial_quorums() {
        assert_eq!(
            request("mget a b"),
            (Request::Read(vec![bytes("a"), bytes("b")]), Form::Read(Shape::GetMany))
        );
        assert_eq!(
            request("hget h f"),
            (Request::Read(vec![bytes("h")]), Form::Read(Shape::Field(bytes("f"))))
        );
        assert_eq!(parsed("ping"), Ok(None));
        assert!(parsed("get").unwrap_err().contains("wrong number"));
        for line in ["rename a b", "keys *", "multi", "incrbyfloat a 1"] {
            assert!(parsed(line).unwrap_err().contains("is not supported"), "{line}");
        }
    }

    #[test]
    fn outcomes_make_answers() {
        let done = |count, before| Ok(Answer::Done { count, before });
        assert_eq!(Form::DoneIf.answer(done(0, Value::Nothing), 0), Reply::Null);
        assert_eq!(Form::Before.answer(done(1, Value::String(bytes("v"))), 0), Reply::Bulk(bytes("v")));
        assert_eq!(Form::Count.answer(done(3, Value::Nothing), 0), Reply::Number(3));
        let Reply::Error(text) = Form::Count.answer(Ok(Answer::Refused(Refusal::NoNumber)), 0) else {
            panic!("no error")
        };
        assert_eq!(text, NO_NUMBER);
        let maybe = Form::Done.answer(Err(Undone::MaybeApplied(String::from("why"))), 0);
        assert!(matches!(maybe, Reply::Error(text) if text.starts_with("MAYBEAPPLIED why")));
    }
}
