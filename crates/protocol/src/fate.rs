//! The possible effects of a request that failed. All interfaces for users share these words.

use std::fmt;

use crate::id::RequestId;

/// The possible effect of a request that has no answer. The effect decides what the request's user may do
/// next.
///
/// A request that was answered, by a result or by an error of its own (a duplicate key), has no fate: its
/// effect is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// The request was not executed, and never will be: it may be repeated freely.
    NotSent,
    /// The request was executed once, or will be, or not at all. A repetition under the same id does not
    /// execute it a second time.
    MaybeApplied {
        /// The request's id; `None` for requests without one, such as a send to a group, whose repetition
        /// nothing recognizes.
        id: Option<RequestId>,
    },
    /// The request was refused and executed nowhere. Merely repeating it will not change that.
    Rejected,
    /// This process was cut off from the other processes: it must rejoin before it can serve requests.
    Wedged,
    /// The request's id, or its session, has expired: this attempt was not executed, and nobody knows whether
    /// an earlier attempt was.
    Expired,
}

impl Fate {
    /// Whether the request may be sent again as a new one without being executed twice.
    pub fn is_repeatable(self) -> bool {
        match self {
            Fate::NotSent | Fate::Rejected | Fate::Wedged => true,
            Fate::MaybeApplied { .. } | Fate::Expired => false,
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fate::NotSent => "the request was not sent",
            Fate::MaybeApplied { .. } => "the request may have been applied",
            Fate::Rejected => "the request was refused and not applied",
            Fate::Wedged => "this process was cut off from the other processes",
            Fate::Expired => "the request's id has expired, so its outcome is unknown",
        })
    }
}
