//! The settings of a session.

use std::{collections::BTreeMap, time::Duration};

use crate::{backend::Strength, statement::settings};

/// The setting that names the next write or transaction.
pub(super) const REQUEST_ID: &str = "quorate.request_id";

/// The settings that a session has changed. Settings that are not listed have their defaults.
#[derive(Clone, Default)]
pub(super) struct Settings {
    pub(super) values: BTreeMap<String, String>,
    /// The limits of time. Every statement needs them and `strength`, so they are parsed when they are set.
    pub(super) timeouts: Timeouts,
    pub(super) strength: Strength,
}

/// The settings that limit time; `None` is no limit.
#[derive(Clone, Copy, Default)]
pub(super) struct Timeouts {
    pub(super) statement: Option<Duration>,
    pub(super) transaction: Option<Duration>,
    pub(super) idle_in_transaction: Option<Duration>,
    pub(super) lock: Option<Duration>,
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
        let timeout = |name| {
            let milliseconds = self.get(name).and_then(|value| settings::milliseconds(value));
            milliseconds.filter(|milliseconds| *milliseconds > 0).map(Duration::from_millis)
        };
        self.timeouts = Timeouts {
            statement: timeout("statement_timeout"),
            transaction: timeout("transaction_timeout"),
            lock: timeout("lock_timeout"),
            idle_in_transaction: timeout("idle_in_transaction_session_timeout"),
        };
        self.strength = self.get("quorate.read").and_then(|name| name.parse().ok()).unwrap_or_default();
    }
}
