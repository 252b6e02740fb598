//! A setting, and the values that it accepts.

/// A setting.
pub struct Setting {
    /// The setting's name in SHOW.
    pub name: &'static str,
    /// The value in a new session.
    pub default: &'static str,
    /// The values that the setting accepts.
    pub takes: Takes,
    /// The effect of the setting.
    pub description: &'static str,
}

/// The values that a setting accepts.
pub enum Takes {
    /// No value, because the setting only reports a fact.
    ReadOnly,
    /// Only these values, all of which describe the fixed behaviour.
    Only(&'static [&'static str]),
    /// Names and offsets of UTC.
    Utc,
    /// On or off.
    Switch,
    /// A time: a number of milliseconds, or a number with a unit.
    Milliseconds,
    /// An integer between these bounds.
    Integer(i64, i64),
    /// A read strength.
    Strength,
    /// A request id, or the empty string.
    Request,
    /// A size: a number of bytes, or a number with a unit.
    Size,
    /// A number, integral or not.
    Number,
    /// One of these words.
    Words(&'static [&'static str]),
    /// Any value.
    Anything,
}
