//! SET and SHOW: what a session can change, and what it may be changed to.
//!
//! A setting that would have to change behaviour that is fixed here (the encoding, the time zone, the date style)
//! takes only the value that is true. One that cannot change an answer (what the planner may do, what is logged) is kept
//! and told as it was set, and so are the names with a point that applications make up; `list` has them all.

mod list;

use sqlparser::ast::{self, Spanned};

use super::{Statement, scope};
use crate::{
    backend::Strength,
    error::{Result, SqlError, code},
    session::request::RequestName,
};
pub use list::SETTINGS;

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
    /// A size in bytes: a number, or with a unit.
    Size,
    /// A number, whole or not.
    Number,
    /// One of these words.
    Words(&'static [&'static str]),
    /// Anything.
    Anything,
}

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
        None if is_custom(&name) => Ok(name.to_lowercase()),
        None => Err(unknown(&name)),
    }
}

/// Whether a name is free for applications to use: one in parts that are not ours.
pub fn is_custom(name: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '$'))
    };
    let mut parts = name.split('.');
    let first = parts.next().unwrap_or_default();
    !first.eq_ignore_ascii_case("quorate") && part(first) && name.contains('.') && parts.all(part)
}

/// The value of a setting as it is kept, if it may be assigned.
pub fn check(name: &str, value: &str) -> Result<String> {
    match find(name) {
        Some(setting) => setting.check(value),
        None if is_custom(name) => Ok(value.to_owned()),
        None => Err(unknown(name)),
    }
}

/// 42704: a setting that is not there.
pub fn unknown(name: &str) -> SqlError {
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
            Takes::Size => {
                let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
                let unit = value[digits..].trim();
                match digits > 0 && matches!(unit, "" | "B" | "kB" | "MB" | "GB" | "TB") {
                    true => Ok(value.to_owned()),
                    false => refuse(),
                }
            }
            Takes::Number => match value.parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(value.to_owned()),
                _ => refuse(),
            },
            Takes::Words(words) => match words.iter().find(|word| word.eq_ignore_ascii_case(value)) {
                Some(word) => Ok((*word).to_owned()),
                None => {
                    refuse().map_err(|error| error.hint(format!("Available values: {}.", words.join(", "))))
                }
            },
            Takes::Strength => match value.parse::<Strength>() {
                Ok(strength) => Ok(strength.name().to_owned()),
                Err(_) => {
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
            let value = if default { None } else { Some(check(&name, &value)?) };
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
        ast::Set::SetSessionAuthorization(ast::SetSessionAuthorizationParam {
            kind: ast::SetSessionAuthorizationParamKind::Default,
            ..
        }) => Ok(Statement::Nothing("SET")),
        other => Err(SqlError::unsupported(other)),
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
        _ => return Ok(Statement::Show(Some(self::name(&words)?))),
    };
    Ok(Statement::Show(Some(name)))
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
