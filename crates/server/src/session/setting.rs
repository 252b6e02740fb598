//! What SET changes, SHOW tells, and a client is told of unasked.

use std::time::Duration;

use quorate_table::value::{Row, Value};

use super::{Outcome, Session, block::Block};
use crate::{
    backend::ReadStrength,
    error::{Result, SqlError},
    sql::{Modes, settings},
};

impl Session {
    /// A setting's value.
    pub fn setting(&self, name: &str) -> String {
        match name {
            "session_authorization" => return self.user.clone(),
            "transaction_read_only" if let Block::Open(open) | Block::Failed(open) = &self.block => {
                return if open.read_only { "on" } else { "off" }.to_owned();
            }
            _ => {}
        }
        match self.settings.get(name) {
            Some(value) => value.clone(),
            None => settings::find(name).map_or_else(String::new, |setting| setting.default.to_owned()),
        }
    }

    /// The value of a setting by a name that may not be one.
    pub(super) fn known(&self, name: &str) -> Option<String> {
        match settings::find(name) {
            Some(setting) => Some(self.setting(setting.name)),
            None => self.settings.get(&name.to_lowercase()).cloned(),
        }
    }

    /// The settings that a client is told when it connects.
    pub fn parameters(&self) -> Vec<(String, String)> {
        settings::REPORTED.iter().map(|name| ((*name).to_owned(), self.setting(name))).collect()
    }

    /// Assigns a setting at start-up. What it does not take there is a warning, not the end of the connection.
    pub fn start_with(&mut self, name: &str, value: &str) {
        let Ok(name) = settings::name(&[name.to_owned()]) else {
            self.notices.push(SqlError::new(
                "01000",
                format!("unrecognized configuration parameter \"{name}\" is ignored"),
            ));
            return;
        };
        match settings::check(&name, value) {
            Ok(value) => {
                self.settings.insert(name, value);
            }
            Err(mut error) => {
                error.code = "01000".into();
                self.notices.push(error);
            }
        }
    }

    /// How long a statement may take.
    pub fn timeout(&self) -> Option<Duration> {
        // By default there is none.
        settings::milliseconds(self.settings.get("statement_timeout")?)
            .filter(|milliseconds| *milliseconds > 0)
            .map(Duration::from_millis)
    }

    pub(super) fn strength(&self) -> ReadStrength {
        self.settings.get("quorate.read").and_then(|name| ReadStrength::named(name)).unwrap_or_default()
    }

    pub(super) fn set(&mut self, name: &str, value: Option<String>, local: bool) -> Result<Outcome> {
        if name == "transaction_read_only" {
            let modes = Modes { read_only: Some(value.as_deref() == Some("on")) };
            return Ok(self.set_transaction(modes, false));
        }
        let tag = if value.is_some() { "SET" } else { "RESET" };
        if local {
            match &mut self.block {
                Block::Open(open) => {
                    open.local.entry(name.to_owned()).or_insert_with(|| self.settings.get(name).cloned());
                }
                _ => {
                    self.notices
                        .push(SqlError::new("25P01", "SET LOCAL can only be used in transaction blocks"));
                    return Ok(Outcome::Done(tag.to_owned()));
                }
            }
        }
        match value {
            Some(value) => self.settings.insert(name.to_owned(), value),
            None => self.settings.remove(name),
        };
        self.report(name);
        Ok(Outcome::Done(tag.to_owned()))
    }

    pub(super) fn report(&mut self, name: &str) {
        if settings::REPORTED.contains(&name) {
            self.reported.push((name.to_owned(), self.setting(name)));
        }
    }

    pub(super) fn show(&self, name: Option<&str>) -> Result<Vec<Row>> {
        Ok(match name {
            Some(name) => {
                let value = self.known(name).ok_or_else(|| settings::unknown(name))?;
                vec![vec![Value::text_of(value)]]
            }
            None => settings::SETTINGS
                .iter()
                .map(|setting| {
                    [setting.name, &self.setting(setting.name), setting.description]
                        .map(Value::text_of)
                        .to_vec()
                })
                .collect(),
        })
    }
}
