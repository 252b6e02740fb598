//! SET and SHOW: the settings of a session, and the values that they accept.
//!
//! Some behaviour is fixed (the encoding, the time zone, the date style), and its setting accepts only the
//! actual value. A setting that cannot change an answer (options of the planner, logging) is kept, and SHOW
//! returns the value that was set. The same holds for names with a point, which applications invent. `list`
//! has all settings.

mod list;
mod setting;

use sqlparser::ast::{self, Spanned};

use super::{Statement, scope};
use crate::{
    backend::Strength,
    error::{Result, SqlError, code},
    name::RequestName,
};

pub use list::SETTINGS;
pub use setting::{Setting, Takes};

/// Settings that the protocol reports to the client when they change.
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

/// Returns the setting of this name, in any case of letters.
pub fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name.eq_ignore_ascii_case(name))
}

/// Returns the name of a setting as SHOW spells it.
pub fn display(name: &str) -> &str {
    find(name).map_or(name, |setting| setting.name)
}

/// Joins the parts of a name, such as `quorate.read`, and checks that the name is valid.
pub fn name(parts: &[String]) -> Result<String> {
    let name = parts.join(".");
    match find(&name) {
        Some(setting) => Ok(setting.name.to_owned()),
        None if is_custom(&name) => Ok(name.to_lowercase()),
        None => Err(unknown(&name)),
    }
}

/// Whether applications may use this name: it has a point, and its first part is not `quorate`.
pub fn is_custom(name: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '$'))
    };
    let mut parts = name.split('.');
    let first = parts.next().unwrap_or_default();
    !first.eq_ignore_ascii_case("quorate") && part(first) && name.contains('.') && parts.all(part)
}

/// Checks a value for a setting, and returns the value to keep.
pub fn check(name: &str, value: &str) -> Result<String> {
    match find(name) {
        Some(setting) => setting.check(value),
        None if is_custom(name) => Ok(value.to_owned()),
        None => Err(unknown(name)),
    }
}

/// Returns the error about an unknown setting (42704).
pub fn unknown(name: &str) -> SqlError {
    SqlError::new(code::UNDEFINED_OBJECT, format!("unrecognized configuration parameter \"{name}\""))
}

impl Setting {
    /// Checks a value for this setting, and returns the value to keep.
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
                    .hint(format!("The value of this parameter is always {}.", self.default)))
            }
            Takes::Utc if is_utc(value) => Ok(self.default.to_owned()),
            Takes::Utc => Err(SqlError::unsupported(format!("the time zone \"{value}\""))
                .hint("The time zone is always UTC.")),
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
                Err(refusal) => refuse().map_err(|error| {
                    let error = error.hint("The strengths are sequential, snapshot and basic.");
                    match refusal.owner() {
                        Some(owner) => error.detail(format!("\"{value}\" is a strength of {owner}.")),
                        None => error,
                    }
                }),
            },
            Takes::Request if value.is_empty() => Ok(String::new()),
            Takes::Request => match value.parse::<RequestName>() {
                Ok(id) => Ok(id.to_string()),
                Err(reason) => refuse().map_err(|error| error.detail(reason)),
            },
        }
    }
}

/// Whether a time zone of this name is always UTC.
pub fn is_utc(name: &str) -> bool {
    const NAMES: [&str; 10] =
        ["utc", "uct", "gmt", "gmt0", "gmt+0", "gmt-0", "greenwich", "universal", "zulu", "z"];
    let name = name.trim().to_lowercase();
    let bare = name.strip_prefix("etc/").unwrap_or(&name);
    if NAMES.contains(&bare) {
        return true;
    }
    // An offset of zero: `0`, `+00`, `-00:00`, `00:00:00`, `<+00>-00`, `UTC+0`, `GMT-00:00`.
    let offset = ["utc", "gmt"].iter().find_map(|name| bare.strip_prefix(name)).unwrap_or(bare);
    let offset = match offset.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
        Some((shown, offset)) if is_nothing(shown) => offset,
        Some(_) => return false,
        None => offset,
    };
    is_nothing(offset)
}

/// Whether an offset is zero.
fn is_nothing(offset: &str) -> bool {
    let digits = offset.strip_prefix(['+', '-']).unwrap_or(offset);
    let parts: Vec<&str> = digits.split(':').collect();
    parts.len() <= 3 && parts.iter().all(|part| matches!(*part, "0" | "00" | "0.0"))
}

/// Parses a time in PostgreSQL's spelling, such as `1500`, `2s`, `1min`. Returns milliseconds.
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
            if let ast::Expr::Interval(interval) = value {
                let text = offset(interval)?;
                let value = Some(setting.check(&text)?);
                return Ok(Statement::Set { name: "TimeZone".to_owned(), value, local: *local });
            }
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

/// Returns the offset of `SET TIME ZONE INTERVAL '+00:00' HOUR TO MINUTE`.
fn offset(interval: &ast::Interval) -> Result<String> {
    use ast::DateTimeField::{Hour, Minute};
    let fields = (&interval.leading_field, &interval.last_field);
    if !matches!(fields, (None | Some(Hour), None) | (Some(Hour), Some(Minute))) {
        return Err(SqlError::new(
            code::INVALID_PARAMETER_VALUE,
            "time zone interval must be HOUR or HOUR TO MINUTE",
        ));
    }
    let text = word(&interval.value);
    Ok(text)
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
    fn settings_are_sorted_and_accept_their_defaults() {
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
