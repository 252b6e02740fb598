//! What SET changes, SHOW tells, and a client is told of unasked.

use std::{collections::BTreeMap, time::Duration};

use quorate_table::value::{Row, Value};

use super::{Outcome, Session, block::Block};
use crate::{
    backend::Strength,
    error::{Result, SqlError},
    statement::{Modes, settings},
};

/// What a session has set; all else is as it is by default.
#[derive(Clone, Default)]
pub(super) struct Settings {
    values: BTreeMap<String, String>,
    /// What every statement asks for, read when it is set.
    timeout: Option<Duration>,
    strength: Strength,
}

impl Settings {
    pub(super) fn get(&self, name: &str) -> Option<&String> {
        self.values.get(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.values.keys()
    }

    pub(super) fn insert(&mut self, name: String, value: String) {
        self.values.insert(name, value);
        self.read();
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<String> {
        let removed = self.values.remove(name);
        // Every write asks for a setting that is rarely there.
        if removed.is_some() {
            self.read();
        }
        removed
    }

    /// All that was set.
    pub(super) fn values(&self) -> &BTreeMap<String, String> {
        &self.values
    }

    /// Settings with these values, as [`Settings::values`] tells them.
    pub(super) fn of(values: BTreeMap<String, String>) -> Settings {
        let mut settings = Settings { values, ..Settings::default() };
        settings.read();
        settings
    }

    fn read(&mut self) {
        let milliseconds = self.get("statement_timeout").and_then(|value| settings::milliseconds(value));
        self.timeout = milliseconds.filter(|milliseconds| *milliseconds > 0).map(Duration::from_millis);
        self.strength = self.get("quorate.read").and_then(|name| name.parse().ok()).unwrap_or_default();
    }
}

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
        self.settings.timeout
    }

    pub(super) fn strength(&self) -> Strength {
        self.settings.strength
    }

    /// Puts all settings back to their defaults.
    pub(super) fn reset(&mut self) {
        for name in std::mem::take(&mut self.settings).values.into_keys() {
            self.report(&name);
        }
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
            None => drop(self.settings.remove(name)),
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
