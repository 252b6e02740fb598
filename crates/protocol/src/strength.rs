//! The promise of a read. All interfaces for users share these words.

use std::{fmt, str::FromStr};

/// The strength of a read: the writes that it may miss. A stronger read waits for more.
///
/// ```
/// use quorate_protocol::Strength;
///
/// assert_eq!("snapshot".parse(), Ok(Strength::Snapshot));
/// assert!(Strength::Basic < Strength::Snapshot && Strength::Snapshot < Strength::default());
/// assert_eq!(Strength::default().to_string(), "sequential");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Strength {
    /// The state of each replica that answers; the answers of several ranges may be of different ages.
    Basic,
    /// One consistent cut of all ranges, of unstated age.
    Snapshot,
    /// A cut after all writes that were acknowledged before the read began, through the total order:
    /// linearizable.
    #[default]
    Sequential,
}

/// A word that names no strength.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown strength of a read: use basic, snapshot or sequential")]
pub struct NoStrength;

impl Strength {
    /// All strengths, weakest first.
    pub const ALL: [Strength; 3] = [Strength::Basic, Strength::Snapshot, Strength::Sequential];

    /// Returns the strength's word.
    pub fn name(self) -> &'static str {
        match self {
            Strength::Basic => "basic",
            Strength::Snapshot => "snapshot",
            Strength::Sequential => "sequential",
        }
    }
}

impl fmt::Display for Strength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Strength {
    type Err = NoStrength;

    /// Parses the word, in any case.
    fn from_str(word: &str) -> Result<Strength, NoStrength> {
        let named = |strength: &Strength| strength.name().eq_ignore_ascii_case(word);
        Strength::ALL.into_iter().find(named).ok_or(NoStrength)
    }
}
