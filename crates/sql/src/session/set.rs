//! Settings: SET changes them, SHOW shows them, and the protocol reports some of them to the client.

use quorate_table::value::{Row, Type, Value};

use super::{Session, StatementOutcome, block::TransactionBlock};
use crate::{
    array,
    backend::Strength,
    encode,
    error::{Result, SqlError},
    statement::{
        Isolation, Modes,
        parameters::{SettingDependencies, ambiguous_time_error, is_local},
        settings,
    },
    types::PgType,
};

impl Session {
    /// Returns a setting's value.
    pub fn setting(&self, name: &str) -> String {
        match name {
            "session_authorization" => return self.user.clone(),
            "transaction_read_only"
                if let TransactionBlock::Open(open) | TransactionBlock::Failed(open) = &self.block =>
            {
                return if open.read_only { "on" } else { "off" }.to_owned();
            }
            "transaction_isolation" => {
                return match &self.block {
                    TransactionBlock::Open(open) | TransactionBlock::Failed(open) => open.isolation,
                    TransactionBlock::None => self.default_isolation(),
                }
                .name()
                .to_owned();
            }
            _ => {}
        }
        match self.settings.get(name) {
            Some(value) => value.clone(),
            None => settings::find(name).map_or_else(String::new, |setting| setting.default.to_owned()),
        }
    }

    /// Returns the value of a setting. `None` if no setting has this name.
    pub(super) fn known(&self, name: &str) -> Option<String> {
        match settings::find(name) {
            Some(setting) => Some(self.setting(setting.name)),
            None => self.settings.get(&name.to_lowercase()).cloned(),
        }
    }

    /// Returns the settings that a client gets when it connects.
    pub fn parameters(&self) -> Vec<(String, String)> {
        settings::REPORTED.iter().map(|name| ((*name).to_owned(), self.setting(name))).collect()
    }

    /// Assigns a setting when the client connects. A value that the session does not accept is a warning and
    /// does not end the connection. The exception is a setting by which the client would write dates in
    /// another order than the session reads them (0A000). A time zone that is not accepted is remembered: see
    /// [`Session::rejected_time_zone`].
    pub fn start_with(&mut self, name: &str, value: &str) -> Result<()> {
        let Ok(name) = settings::name(&[name.to_owned()]) else {
            self.notices.push(SqlError::new(
                "01000",
                format!("unrecognized configuration parameter \"{name}\" is ignored"),
            ));
            return Ok(());
        };
        match settings::check(&name, value) {
            Ok(value) => {
                self.settings.insert(name, value);
            }
            Err(error) if name == "DateStyle" && !value.to_lowercase().contains("mdy") => return Err(error),
            Err(mut error) => {
                if name == "TimeZone" {
                    self.refused_zone = Some(value.to_owned());
                    error = error.hint(
                        "The time zone of this session is UTC. A time without a zone is refused where a time with a zone is needed, until the client sends SET TIME ZONE 'UTC'.",
                    );
                }
                error.code = "01000".into();
                self.notices.push(error);
            }
        }
        Ok(())
    }

    /// Returns the time zone that the client asked for when it connected, if the session uses another zone
    /// and the client has not accepted that since. For such a client, a time without a zone means another
    /// instant than for the session.
    pub fn rejected_time_zone(&self) -> Option<&str> {
        let accepted = self.settings.get("TimeZone").is_some();
        self.refused_zone.as_deref().filter(|_| !accepted)
    }

    /// Refuses a statement if the session's settings give it another meaning than the client expects.
    pub(super) fn check_depends(&self, depends: SettingDependencies) -> Result<()> {
        if let (true, Some(zone)) = (depends.time_zone, self.rejected_time_zone()) {
            return Err(ambiguous_time_error(zone));
        }
        if depends.interval_style
            && let Some(style) = self.settings.get("IntervalStyle").filter(|style| *style != "postgres")
        {
            return Err(SqlError::unsupported(format!("the text of an interval in IntervalStyle {style}"))
                .hint("Use extract(epoch from …), or SET IntervalStyle = postgres."));
        }
        Ok(())
    }

    /// Refuses a text argument for a time with a zone that names no zone, if the client and the session may
    /// disagree on the zone.
    pub fn check_argument(&self, text: &[u8], ty: PgType) -> Result<()> {
        let zoned = matches!(ty, PgType::Plain(Type::Timestamptz) | PgType::TimestamptzArray);
        let Some(zone) = self.rejected_time_zone().filter(|_| zoned) else { return Ok(()) };
        let text = encode::utf8(text)?;
        let local = match ty {
            PgType::TimestamptzArray => array::read(text)?.iter().flatten().any(|text| is_local(text)),
            _ => is_local(text),
        };
        if local { Err(ambiguous_time_error(zone)) } else { Ok(()) }
    }

    pub(super) fn strength(&self) -> Strength {
        self.settings.strength
    }

    /// Resets all settings to their defaults.
    pub(super) fn reset(&mut self) {
        for name in std::mem::take(&mut self.settings).values.into_keys() {
            self.report(&name);
        }
    }

    pub(super) fn set(&mut self, name: &str, value: Option<String>, local: bool) -> Result<StatementOutcome> {
        if name == "transaction_read_only" {
            let modes = Modes { read_only: Some(value.as_deref() == Some("on")), isolation: None };
            return self.set_transaction(modes, false);
        }
        if name == "transaction_isolation" {
            let isolation = value.as_deref().and_then(Isolation::named);
            let isolation = Some(isolation.unwrap_or_else(|| self.default_isolation()));
            return self.set_transaction(Modes { read_only: None, isolation }, false);
        }
        let tag = if value.is_some() { "SET" } else { "RESET" };
        if local {
            match &mut self.block {
                TransactionBlock::Open(open) => {
                    open.local.entry(name.to_owned()).or_insert_with(|| self.settings.get(name).cloned());
                }
                _ => {
                    self.notices
                        .push(SqlError::new("25P01", "SET LOCAL can only be used in transaction blocks"));
                    return Ok(StatementOutcome::Done(tag.to_owned()));
                }
            }
        }
        match value {
            Some(value) => self.settings.insert(name.to_owned(), value),
            None => drop(self.settings.remove(name)),
        };
        self.report(name);
        Ok(StatementOutcome::Done(tag.to_owned()))
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
