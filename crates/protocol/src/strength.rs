//! Strengths: the promise of a read or a write. All doors share these words. In this module, a *door* is one
//! of the interfaces for users that the table lists.
//!
//! [`ReadStrength`] and [`WriteStrength`] list all strengths. A door takes only the strengths that it can
//! keep, and that part of the list has a type of its own. So a protocol never meets a strength that it does
//! not know:
//!
//! | door | reads | writes |
//! |---|---|---|
//! | tables | [`Strength`] | always safe |
//! | groups | local; a query has the strength of a send | [`SendStrength`] |
//! | services | always linearizable | always safe, and linearizable |
//! | maps of partial quorums | [`Level`] | [`Level`] |
//!
//! A user's word becomes a strength by `parse`. A door that cannot take the word tells the user which door
//! can ([`StrengthRefusal`]). `docs/strengths.md` compares the promises, the costs, and the losses in a
//! crash.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::quorum::majority;

/// The strength of a read, at any door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadStrength {
    /// A read of a group. It returns the state of the member that executes it, however old that state is.
    Local,
    /// A read of tables.
    Cut(Strength),
    /// A read of a service: it sees all writes that were acknowledged before the read began.
    Linearizable,
    /// A read of a map of partial quorums.
    Level(Level),
}

/// The strength of a write, at any door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteStrength {
    /// An update of a group.
    Send(SendStrength),
    /// A write to a map of partial quorums.
    Level(Level),
}

/// The strength of a read of tables: the writes that it may miss. A stronger read waits for more.
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
    /// Each replica answers with its present state. The answers of several ranges may be of different ages.
    Basic,
    /// The read sees one consistent cut of all ranges, of unstated age.
    Snapshot,
    /// The read sees a cut after all writes that were acknowledged before the read began: it is linearizable.
    /// A majority of the routers confirms the cut.
    #[default]
    Sequential,
}

/// The strength of an update or a query that a member of a group sends.
///
/// ```
/// use quorate_protocol::strength::{Phi, SendStrength};
///
/// assert_eq!("safe".parse(), Ok(SendStrength::Safe(Phi::All)));
/// let refusal = "quorum".parse::<SendStrength>().unwrap_err();
/// let text = "'quorum' is a strength of maps of partial quorums: groups send soft, ordered or safe";
/// assert_eq!(refusal.to_string(), text);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SendStrength {
    /// The message is delivered at once at its sender, and at the other members in the order in which the
    /// sender sent.
    Soft,
    /// The message is delivered in one order at all members.
    Ordered,
    /// The message is delivered in one order at all members, and nowhere before the given number of processes
    /// has the message.
    Safe(Phi),
}

/// The number of processes of the view that must have a safe message before any process delivers the message
/// (000 §6). A process has the message once it has it for all members in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Phi {
    /// Every process. This is the right choice if nobody knows which machines fail together.
    #[default]
    All,
    /// More than half.
    Majority,
    /// The given number, or all if there are fewer.
    Count(u16),
}

/// The number and the sites of the replicas for which an operation on a map of partial quorums waits (004
/// §II.C; Cassandra's consistency levels).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Level {
    /// Any one replica.
    One,
    /// Any two replicas.
    Two,
    /// A majority of all replicas.
    Quorum,
    /// All replicas.
    All,
    /// A majority of the replicas at the coordinator's site.
    LocalQuorum,
    /// A majority of the replicas at each site. This is also a majority of all replicas: the halves of the
    /// sites add up to half of the whole, and each site gives more than its half.
    EachQuorum,
}

/// The refusal of a word at a door: no door has a strength of this name, or only other doors do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrengthRefusal {
    word: String,
    /// The refusing door's noun for a strength.
    noun: &'static str,
    /// The door that has a strength of this name.
    owner: Option<&'static str>,
    /// The strengths of the refusing door, as a clause.
    choice: &'static str,
}

impl StrengthRefusal {
    /// Creates the refusal of `word` by a door that calls each of its strengths a `noun`. `choice` lists
    /// these strengths.
    fn new(word: &str, noun: &'static str, choice: &'static str) -> StrengthRefusal {
        let reads = ReadStrength::all().map(|read| (read.name(), read.door()));
        let mut all = reads.chain(WriteStrength::all().map(|write| (write.name(), write.door())));
        let owner = all.find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, door)| door);
        StrengthRefusal { word: word.to_owned(), noun, owner, choice }
    }

    /// Returns the door that has a strength of this name, as a noun in the plural; `None` if no door has one.
    pub fn owner(&self) -> Option<&'static str> {
        self.owner
    }
}

impl fmt::Display for StrengthRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StrengthRefusal { word, noun, owner, choice } = self;
        match owner {
            Some(owner) => write!(f, "'{word}' is a strength of {owner}: {choice}"),
            None => write!(f, "there is no {noun} '{word}': {choice}"),
        }
    }
}

impl std::error::Error for StrengthRefusal {}

const TABLES: &str = "tables";
const GROUPS: &str = "groups";
const SERVICES: &str = "services";
const MAPS: &str = "maps of partial quorums";

impl ReadStrength {
    /// Returns all strengths of reads.
    fn all() -> impl Iterator<Item = ReadStrength> {
        let cuts = Strength::ALL.map(ReadStrength::Cut);
        let levels = Level::ALL.map(ReadStrength::Level);
        [ReadStrength::Local, ReadStrength::Linearizable].into_iter().chain(cuts).chain(levels)
    }

    /// Returns the strength's name.
    pub fn name(self) -> &'static str {
        match self {
            ReadStrength::Local => "local",
            ReadStrength::Cut(cut) => cut.name(),
            ReadStrength::Linearizable => "linearizable",
            ReadStrength::Level(level) => level.name(),
        }
    }

    /// Returns the door whose reads have this strength.
    fn door(self) -> &'static str {
        match self {
            ReadStrength::Local => GROUPS,
            ReadStrength::Cut(_) => TABLES,
            ReadStrength::Linearizable => SERVICES,
            ReadStrength::Level(_) => MAPS,
        }
    }
}

impl WriteStrength {
    /// Returns all strengths of writes. A safe send waits for all processes.
    fn all() -> impl Iterator<Item = WriteStrength> {
        let sends = SendStrength::ALL.map(WriteStrength::Send);
        sends.into_iter().chain(Level::ALL.map(WriteStrength::Level))
    }

    /// Returns the strength's name.
    pub fn name(self) -> &'static str {
        match self {
            WriteStrength::Send(send) => send.name(),
            WriteStrength::Level(level) => level.name(),
        }
    }

    /// Returns the door whose writes have this strength.
    fn door(self) -> &'static str {
        match self {
            WriteStrength::Send(_) => GROUPS,
            WriteStrength::Level(_) => MAPS,
        }
    }
}

impl Strength {
    /// All strengths, weakest first.
    pub const ALL: [Strength; 3] = [Strength::Basic, Strength::Snapshot, Strength::Sequential];

    /// Returns the strength's name.
    pub fn name(self) -> &'static str {
        match self {
            Strength::Basic => "basic",
            Strength::Snapshot => "snapshot",
            Strength::Sequential => "sequential",
        }
    }
}

impl SendStrength {
    /// All strengths, weakest first. The safe strength waits for all processes.
    pub const ALL: [SendStrength; 3] =
        [SendStrength::Soft, SendStrength::Ordered, SendStrength::Safe(Phi::All)];

    /// Returns the strength's name, without the number of processes.
    pub fn name(self) -> &'static str {
        match self {
            SendStrength::Soft => "soft",
            SendStrength::Ordered => "ordered",
            SendStrength::Safe(_) => "safe",
        }
    }
}

impl Phi {
    /// Returns how many processes must have a safe message, if the view has `members` processes.
    pub(crate) fn of(self, members: usize) -> usize {
        match self {
            Phi::All => members,
            Phi::Majority => majority(members),
            Phi::Count(count) => usize::from(count).clamp(1, members.max(1)),
        }
    }
}

impl Level {
    /// All levels.
    pub const ALL: [Level; 6] =
        [Level::One, Level::Two, Level::Quorum, Level::All, Level::LocalQuorum, Level::EachQuorum];

    /// Returns the name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Level::One => "one",
            Level::Two => "two",
            Level::Quorum => "quorum",
            Level::All => "all",
            Level::LocalQuorum => "local_quorum",
            Level::EachQuorum => "each_quorum",
        }
    }

    /// Whether any two sets that meet this level share a replica, and each such set shares a replica with
    /// every set that meets [`Level::Quorum`].
    pub fn is_quorum(self) -> bool {
        matches!(self, Level::Quorum | Level::All | Level::EachQuorum)
    }
}

/// Returns the strength of `all` that has this name, in any case of letters.
fn named<T: Copy>(all: &[T], name: fn(T) -> &'static str, word: &str) -> Option<T> {
    all.iter().copied().find(|strength| name(*strength).eq_ignore_ascii_case(word))
}

impl FromStr for Strength {
    type Err = StrengthRefusal;

    fn from_str(word: &str) -> Result<Strength, StrengthRefusal> {
        let choice = "tables read at basic, snapshot or sequential";
        named(&Strength::ALL, Strength::name, word)
            .ok_or_else(|| StrengthRefusal::new(word, "strength", choice))
    }
}

impl FromStr for SendStrength {
    type Err = StrengthRefusal;

    fn from_str(word: &str) -> Result<SendStrength, StrengthRefusal> {
        let choice = "groups send soft, ordered or safe";
        named(&SendStrength::ALL, SendStrength::name, word)
            .ok_or_else(|| StrengthRefusal::new(word, "strength", choice))
    }
}

impl FromStr for Level {
    type Err = StrengthRefusal;

    fn from_str(word: &str) -> Result<Level, StrengthRefusal> {
        let choice = "the levels are one, two, quorum, all, local_quorum and each_quorum";
        named(&Level::ALL, Level::name, word).ok_or_else(|| StrengthRefusal::new(word, "level", choice))
    }
}

impl fmt::Display for Strength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strength_names_parse_back() {
        for strength in Strength::ALL {
            assert_eq!(strength.name().to_uppercase().parse(), Ok(strength));
        }
        for strength in SendStrength::ALL {
            assert_eq!(strength.name().to_uppercase().parse(), Ok(strength));
        }
        for level in Level::ALL {
            assert_eq!(level.name().to_uppercase().parse(), Ok(level));
        }
    }

    /// Checks the text of a refusal.
    #[track_caller]
    fn refused<T: FromStr<Err = StrengthRefusal> + fmt::Debug>(word: &str, text: &str) {
        assert_eq!(word.parse::<T>().unwrap_err().to_string(), text);
    }

    #[test]
    fn an_unknown_strength_is_refused_with_the_door_that_offers_it() {
        let tables = "tables read at basic, snapshot or sequential";
        refused::<Strength>("most", &format!("there is no strength 'most': {tables}"));
        refused::<Strength>(
            "Quorum",
            &format!("'Quorum' is a strength of maps of partial quorums: {tables}"),
        );
        refused::<Strength>("soft", &format!("'soft' is a strength of groups: {tables}"));
        refused::<Strength>("local", &format!("'local' is a strength of groups: {tables}"));
        let groups = "groups send soft, ordered or safe";
        refused::<SendStrength>(
            "linearizable",
            &format!("'linearizable' is a strength of services: {groups}"),
        );
        let maps = "the levels are one, two, quorum, all, local_quorum and each_quorum";
        refused::<Level>("snapshot", &format!("'snapshot' is a strength of tables: {maps}"));
        refused::<Level>("most", &format!("there is no level 'most': {maps}"));
    }

    #[test]
    fn the_guide_names_all_strengths() {
        let guide = include_str!("../../../docs/strengths.md");
        let reads = ReadStrength::all().map(|read| (read.name(), read.door()));
        for (name, door) in reads.chain(WriteStrength::all().map(|write| (write.name(), write.door()))) {
            let row = |line: &&str| line.starts_with(&format!("| `{name}` | {door} |"));
            assert_eq!(guide.lines().filter(row).count(), 1, "docs/strengths.md: {name} of {door}");
        }
    }
}
