//! SET and SHOW: what a session can change, and what it may be changed to.
//!
//! A setting that would have to change behaviour that is fixed here (the encoding, the time zone, the date style)
//! takes only the value that is true; one that changes nothing anybody could see is taken as it comes.

use sqlparser::ast::{self, Spanned};

use super::{Statement, scope};
use crate::{
    backend::ReadStrength,
    error::{Result, SqlError, code},
    session::request::RequestName,
};

/// A setting.
pub struct Setting {
    /// Its name as SHOW prints it.
    pub name: &'static str,
    /// Its value in a new session.
    pub default: &'static str,
    /// What may be assigned.
    pub takes: Takes,
    /// What it does.
    pub description: &'static str,
}

/// What a setting may be assigned.
pub enum Takes {
    /// Nothing: it tells what is.
    ReadOnly,
    /// Only values that mean what is true anyhow.
    Only(&'static [&'static str]),
    /// On or off.
    Switch,
    /// A time: a number of milliseconds, or with a unit.
    Milliseconds,
    /// A whole number between two.
    Integer(i64, i64),
    /// A read strength.
    Strength,
    /// A request id, or nothing.
    Request,
    /// Anything.
    Anything,
}

const fn setting(
    name: &'static str,
    default: &'static str,
    takes: Takes,
    description: &'static str,
) -> Setting {
    Setting { name, default, takes, description }
}

/// All settings, sorted by name without case.
pub const SETTINGS: &[Setting] = &[
    setting("application_name", "", Takes::Anything, "The client's name for itself."),
    setting("bytea_output", "hex", Takes::Only(&["hex", "escape"]), "There is no bytea."),
    setting(
        "client_encoding",
        "UTF8",
        Takes::Only(&["utf8", "utf-8", "unicode"]),
        "The client's character set.",
    ),
    setting("client_min_messages", "notice", Takes::Anything, "Which notices are sent."),
    setting(
        "DateStyle",
        "ISO, MDY",
        Takes::Only(&["iso", "iso, mdy", "iso,mdy", "mdy"]),
        "How dates are written.",
    ),
    setting("default_table_access_method", "heap", Takes::ReadOnly, "How tables are kept."),
    setting(
        "default_transaction_isolation",
        "read committed",
        Takes::Only(&["read committed"]),
        "The isolation of blocks.",
    ),
    setting("default_transaction_read_only", "off", Takes::Switch, "Whether new blocks refuse writes."),
    setting("extra_float_digits", "1", Takes::Integer(-15, 3), "Floats are always written exactly."),
    setting("idle_in_transaction_session_timeout", "0", Takes::Only(&["0"]), "Blocks hold nothing."),
    setting("in_hot_standby", "off", Takes::ReadOnly, "Whether this is a standby."),
    setting("integer_datetimes", "on", Takes::ReadOnly, "Times are integers."),
    setting("IntervalStyle", "postgres", Takes::Only(&["postgres"]), "How intervals are written."),
    setting("is_superuser", "on", Takes::ReadOnly, "Whether the user may do everything."),
    setting("lc_collate", "C", Takes::ReadOnly, "The collation."),
    setting("lc_ctype", "C", Takes::ReadOnly, "The character classes."),
    setting("lc_messages", "C", Takes::Only(&["c", "en_us.utf-8"]), "The language of messages."),
    setting("lock_timeout", "0", Takes::Milliseconds, "There are no locks to wait for."),
    setting("max_identifier_length", "63", Takes::ReadOnly, "The longest name."),
    setting("max_index_keys", "32", Takes::ReadOnly, "The most columns that clients expect in a key."),
    setting("quorate.read", "sequential", Takes::Strength, "The strength of reads."),
    setting("quorate.request_id", "", Takes::Request, "The id under which the next write is sent, once."),
    setting("row_security", "on", Takes::Switch, "There are no row policies."),
    setting(
        "search_path",
        "\"$user\", public",
        Takes::Only(&[
            "public",
            "\"$user\", public",
            "\"$user\",public",
            "$user, public",
            "",
            "public, pg_catalog",
            "pg_catalog",
            "pg_catalog, public",
        ]),
        "Where names are looked up.",
    ),
    setting("server_encoding", "UTF8", Takes::ReadOnly, "The server's character set."),
    setting(
        "server_version",
        crate::POSTGRES_VERSION,
        Takes::ReadOnly,
        "The PostgreSQL version whose answers are given.",
    ),
    setting("server_version_num", crate::POSTGRES_VERSION_NUMBER, Takes::ReadOnly, "The same as a number."),
    setting("session_authorization", "", Takes::ReadOnly, "The user."),
    setting(
        "standard_conforming_strings",
        "on",
        Takes::Only(&["on", "true", "1"]),
        "Backslashes in strings are plain.",
    ),
    setting("statement_timeout", "0", Takes::Milliseconds, "How long a statement may take; 0 is for ever."),
    setting("synchronize_seqscans", "on", Takes::Switch, "All scans are shared."),
    setting(
        "TimeZone",
        "UTC",
        Takes::Only(&["utc", "etc/utc", "gmt", "etc/gmt", "z", "zulu", "universal", "0", "+00:00"]),
        "The time zone.",
    ),
    setting(
        "transaction_isolation",
        "read committed",
        Takes::Only(&["read committed"]),
        "The isolation of this block.",
    ),
    setting("transaction_read_only", "off", Takes::Switch, "Whether this block refuses writes."),
];

/// Settings whose value a client is told whenever it changes.
pub const REPORTED: &[&str] = &[
    "application_name",
    "client_encoding",
    "DateStyle",
    "in_hot_standby",
    "integer_datetimes",
    "IntervalStyle",
    "is_superuser",
    "server_encoding",
    "server_version",
    "session_authorization",
    "standard_conforming_strings",
    "TimeZone",
];

/// The setting of this name, in any case.
pub fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name.eq_ignore_ascii_case(name))
}

/// How SHOW calls a setting.
pub fn display(name: &str) -> &str {
    find(name).map_or(name, |setting| setting.name)
}

/// The name in parts, such as `quorate.read`, as one.
pub fn name(parts: &[String]) -> Result<String> {
    let name = parts.join(".");
    match find(&name) {
        Some(setting) => Ok(setting.name.to_owned()),
        None => Err(unknown(&name)),
    }
}

fn unknown(name: &str) -> SqlError {
    SqlError::new(code::UNDEFINED_OBJECT, format!("unrecognized configuration parameter \"{name}\""))
}

impl Setting {
    /// The value as it is kept, if it may be assigned.
    pub fn check(&self, value: &str) -> Result<String> {
        let refuse = || {
            Err(SqlError::new(
                code::INVALID_PARAMETER_VALUE,
                format!("invalid value for parameter \"{}\": \"{value}\"", self.name),
            ))
        };
        match &self.takes {
            Takes::Anything => Ok(value.to_owned()),
            Takes::ReadOnly => Err(SqlError::new(
                code::CANT_CHANGE_RUNTIME_PARAM,
                format!("parameter \"{}\" cannot be changed", self.name),
            )),
            Takes::Only(values) if values.contains(&value.to_lowercase().as_str()) => {
                Ok(if self.name == "search_path" { value.to_owned() } else { self.default.to_owned() })
            }
            Takes::Only(_) => {
                Err(SqlError::unsupported(format!("the value \"{value}\" of parameter \"{}\"", self.name))
                    .hint(format!("It is always {}.", self.default)))
            }
            Takes::Switch => match value.to_lowercase().as_str() {
                "on" | "true" | "yes" | "1" => Ok("on".to_owned()),
                "off" | "false" | "no" | "0" => Ok("off".to_owned()),
                _ => refuse(),
            },
            Takes::Integer(low, high) => match value.parse::<i64>() {
                Ok(number) if (*low..=*high).contains(&number) => Ok(number.to_string()),
                _ => refuse(),
            },
            Takes::Milliseconds => match milliseconds(value) {
                Some(_) => Ok(value.to_owned()),
                None => refuse(),
            },
            Takes::Strength => match ReadStrength::named(value) {
                Some(strength) => Ok(strength.name().to_owned()),
                None => {
                    refuse().map_err(|error| error.hint("The strengths are sequential, snapshot and basic."))
                }
            },
            Takes::Request if value.is_empty() => Ok(String::new()),
            Takes::Request => match value.parse::<RequestName>() {
                Ok(id) => Ok(id.to_string()),
                Err(reason) => refuse().map_err(|error| error.detail(reason)),
            },
        }
    }
}

/// A time as PostgreSQL writes it: `1500`, `2s`, `1min`.
pub fn milliseconds(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim() {
        "" | "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(unit)
}

/// Binds a SET.
pub fn bind(set: &ast::Set) -> Result<Statement> {
    match set {
        ast::Set::SingleAssignment { scope, variable, values, hivevar: false } => {
            let parts = scope::parts(variable)?;
            let name = name(&parts).map_err(|error| error.at(variable.span()))?;
            let words: Vec<String> = values.iter().map(word).collect();
            let value = words.join(", ");
            let default = matches!(values.as_slice(), [ast::Expr::Identifier(i)] if i.value.eq_ignore_ascii_case("default"));
            let value = if default {
                None
            } else {
                let setting = find(&name).expect("the name was found");
                Some(setting.check(&value)?)
            };
            Ok(Statement::Set { name, value, local: matches!(scope, Some(ast::ContextModifier::Local)) })
        }
        ast::Set::SetTimeZone { local, value } => {
            let setting = find("TimeZone").expect("is a setting");
            let value = word(value);
            let value = match value.to_lowercase().as_str() {
                "local" | "default" => None,
                _ => Some(setting.check(&value)?),
            };
            Ok(Statement::Set { name: "TimeZone".to_owned(), value, local: *local })
        }
        ast::Set::SetNames { charset_name, collation_name: None } => {
            let setting = find("client_encoding").expect("is a setting");
            let value = Some(setting.check(&charset_name.value)?);
            Ok(Statement::Set { name: "client_encoding".to_owned(), value, local: false })
        }
        ast::Set::SetTransaction { modes, snapshot: None, session } => {
            Ok(Statement::SetTransaction { modes: super::modes_of(modes)?, session: *session })
        }
        ast::Set::SetRole { role_name: None, .. } => Ok(Statement::Nothing("SET")),
        other => Err(SqlError::unsupported(format!("SET {other}"))),
    }
}

fn word(expr: &ast::Expr) -> String {
    match expr {
        ast::Expr::Value(value) => {
            value.value.clone().into_string().unwrap_or_else(|| value.value.to_string())
        }
        ast::Expr::Identifier(ident) => ident.value.clone(),
        other => other.to_string(),
    }
}

/// Binds a SHOW.
pub fn show(variable: &[ast::Ident]) -> Result<Statement> {
    let words: Vec<String> = variable.iter().map(scope::fold).collect();
    let name = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["all"] => return Ok(Statement::Show(None)),
        ["time", "zone"] => "TimeZone".to_owned(),
        ["transaction", "isolation", "level"] => "transaction_isolation".to_owned(),
        ["session", "authorization"] => "session_authorization".to_owned(),
        _ => words.join("."),
    };
    match find(&name) {
        Some(setting) => Ok(Statement::Show(Some(setting.name.to_owned()))),
        None => Err(unknown(&name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_sorted_and_take_their_defaults() {
        let names: Vec<String> = SETTINGS.iter().map(|setting| setting.name.to_lowercase()).collect();
        assert!(names.is_sorted());
        for setting in SETTINGS {
            if !matches!(setting.takes, Takes::ReadOnly) && setting.name != "DateStyle" {
                assert_eq!(setting.check(setting.default).unwrap(), setting.default, "{}", setting.name);
            }
        }
        assert!(REPORTED.iter().all(|name| find(name).is_some()));
    }
}
