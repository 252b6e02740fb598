//! The texts with which several commands are refused.

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

pub(super) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
pub(super) const NO_NUMBER: &str = "ERR value is not an integer or out of range";
