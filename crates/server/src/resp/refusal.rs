//! The texts with which commands are refused.

/// The kind of a map, which determines the commands that the map can carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapKind {
    /// A map of partial quorums, which carries out operations on single keys.
    Quorum,
    /// A map of a strategy other than partial quorums. Each command on it is one atomic request.
    Atomic,
}

pub(super) fn named(name: &[u8], why: &str) -> String {
    format!("ERR {} {why}", name.escape_ascii())
}

pub(super) fn invalid_expiry(name: &[u8]) -> String {
    format!("ERR invalid expire time in '{}' command", name.escape_ascii().to_string().to_lowercase())
}

pub(super) fn arity(name: &[u8]) -> String {
    let name = name.escape_ascii().to_string().to_lowercase();
    format!("ERR wrong number of arguments for '{name}' command")
}

/// Returns the refusal of a Redis command that is known but not offered by maps of this kind. `None` for all
/// other commands.
pub(super) fn refused(name: &[u8], kind: MapKind) -> Option<String> {
    let why = match (name, kind) {
        (b"KEYS" | b"RANDOMKEY", _) | (b"DBSIZE", MapKind::Quorum) => {
            "is not supported: SCAN returns the keys"
        }
        (b"HSCAN", _) => "is not supported: HGETALL returns all fields",
        (b"FLUSHDB" | b"FLUSHALL", _) => "is not supported: QUORATE DROP drops a map",
        (b"AUTH", _) => "is not supported: this server has no passwords, so connect without one",
        (b"WAIT" | b"WAITAOF", _) => {
            "is not supported: QUORATE LEVEL sets how many replicas a write waits for"
        }
        (
            b"RENAME" | b"RENAMENX" | b"COPY" | b"INCRBYFLOAT" | b"HINCRBYFLOAT" | b"SETRANGE" | b"SETBIT"
            | b"HGETDEL" | b"HGETEX" | b"HEXPIRE" | b"HPERSIST",
            MapKind::Atomic,
        ) => "is not supported",
        (b"INCRBYFLOAT" | b"HINCRBYFLOAT", MapKind::Quorum) => {
            "is not supported: counters are whole numbers, and INCRBY adds to them"
        }
        (b"HINCRBY", MapKind::Quorum) => {
            let why = "is not supported: a counter is a key of its own, and INCRBY adds to it";
            return Some(named(name, &format!("{why}{ELSEWHERE}")));
        }
        (_, MapKind::Quorum) => {
            let (why, elsewhere) = not_at_quorums(name)?;
            return Some(named(name, &format!("{why}, which {WHY_NOT}{elsewhere}")));
        }
        (_, MapKind::Atomic) => return None,
    };
    Some(named(name, why))
}

/// Returns what a command needs and partial quorums cannot give, and where the command is supported.
fn not_at_quorums(name: &[u8]) -> Option<(&'static str, &'static str)> {
    Some(match name {
        b"SETNX" | b"MSETNX" | b"HSETNX" => (CONDITIONAL, ELSEWHERE),
        b"RENAME" | b"RENAMENX" | b"COPY" => (CONDITIONAL, ""),
        b"APPEND" | b"GETSET" | b"GETDEL" | b"GETEX" | b"EXPIRE" | b"PEXPIRE" | b"EXPIREAT"
        | b"PEXPIREAT" | b"PERSIST" => (BOTH, ELSEWHERE),
        b"SETRANGE" | b"HGETDEL" | b"HGETEX" | b"SETBIT" | b"HEXPIRE" | b"HPERSIST" => (BOTH, ""),
        _ => return None,
    })
}

/// Returns the refusal of an option of `SET` that maps of this kind do not offer. `None` for all other
/// options.
pub(super) fn refused_option(option: &str, kind: MapKind) -> Option<String> {
    let why = match (option, kind) {
        (_, MapKind::Atomic) => return None,
        ("NX" | "XX" | "IFEQ" | "IFNE" | "IFDEQ" | "IFDNE", _) => CONDITIONAL,
        ("GET" | "KEEPTTL", _) => BOTH,
        ("EXAT" | "PXAT", _) => return Some(format!("ERR SET with {option} is not supported: use EX or PX")),
        _ => return None,
    };
    Some(format!("ERR SET with {option} {why}, which {WHY_NOT}{ELSEWHERE}"))
}

const CONDITIONAL: &str = "needs a conditional write";
const BOTH: &str = "reads and writes at once";

const WHY_NOT: &str = "a map of partial quorums does not support: replicas that cannot reach each other would both carry it out";

const ELSEWHERE: &str =
    "; a map of strategy service supports the command: QUORATE CREATE name STRATEGY service";

pub(super) const NO_IDS: &str = "ERR QUORATE ID is not supported by a map of partial quorums, whose replicas do not agree on which requests were carried out. \
     SET, DEL and HSET may be repeated without an id if no other client writes the key; a map of strategy service \
     remembers ids: QUORATE CREATE name STRATEGY service";

pub(super) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
pub(super) const NO_NUMBER: &str = "ERR value is not an integer or out of range";
pub(super) const SYNTAX: &str = "ERR syntax error";
