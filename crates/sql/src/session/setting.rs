//! The settings of a session.

use std::{collections::BTreeMap, time::Duration};

use crate::{backend::Strength, statement::settings};

/// The settings that a session has changed. Settings that are not listed have their defaults.
#[derive(Clone, Default)]
pub(super) struct Settings {
    pub(super) values: BTreeMap<String, String>,
    /// The timeout of a statement. Every statement needs this value and `strength`, so they are parsed when
    /// they are set.
    pub(super) timeout: Option<Duration>,
    pub(super) strength: Strength,
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
        // Every write removes the setting for its request id, which is rarely set.
        if removed.is_some() {
            self.read();
        }
        removed
    }

    /// Returns the settings that were changed.
    pub(super) fn values(&self) -> &BTreeMap<String, String> {
        &self.values
    }

    /// Creates settings with the values that [`Settings::values`] returned.
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
