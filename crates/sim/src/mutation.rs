//! Mutations: rules broken on purpose, to see that the checkers see it.
//!
//! Most are adapters around a process that is as it should be: they forge, drop or repeat what it receives and sends, so
//! that to the others it looks like one that breaks the rule. The rest break it where the simulator stands in for the
//! world: ids, engines, users. Product code has no switch for any of them. Every mutation is caught within
//! [`SEEDS_MAX`] seeds of its scenario; a test sees to that.

mod tamper;

pub(crate) use tamper::Tamper;

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutation {
    /// A confirmation of one member is counted for another, too.
    ForeignConfirmation,
    /// Stability is told before the last confirmation.
    StableTooEarly,
    /// What is refused or perhaps lost is told to be stable (S5).
    OutcomeForged,
    /// A member confirms what it has not got (S4).
    ConfirmBeyond,
    /// A delivery is lost, and so is the request for its repair (S4).
    RepairLost,
    /// A member delivers without looking at `previous` (S4).
    PreviousUnchecked,
    /// A member delivers twice.
    DeliverTwice,
    /// Nobody looks whether a submission is its sender's next (S3).
    SequenceUnchecked,
    /// A process that restarts without its memory is taken for the one it was (S1).
    NoIncarnations,
    /// A router votes for what it does not hold (S2).
    VoteWithoutHolding,
    /// A router accepts below its promise.
    AcceptBelowPromise,
    /// A promise keeps back what was accepted.
    PromiseEmptied,
    /// A replica publishes a write that all others void (S15).
    VoidedPublished,
    /// A replica skips a write.
    WriteSkipped,
    /// A migration loses rows.
    ImportLost,
    /// A write is repeated under a new name (S6).
    RepeatedUnderNewName,
}

/// Within so many seeds every mutation is caught.
pub const SEEDS_MAX: u64 = 200;

impl Mutation {
    /// Those that the seeds must catch.
    pub const ALL: [Mutation; 16] = [
        Mutation::ForeignConfirmation,
        Mutation::StableTooEarly,
        Mutation::OutcomeForged,
        Mutation::ConfirmBeyond,
        Mutation::RepairLost,
        Mutation::PreviousUnchecked,
        Mutation::DeliverTwice,
        Mutation::SequenceUnchecked,
        Mutation::NoIncarnations,
        Mutation::VoteWithoutHolding,
        Mutation::AcceptBelowPromise,
        Mutation::PromiseEmptied,
        Mutation::VoidedPublished,
        Mutation::WriteSkipped,
        Mutation::ImportLost,
        Mutation::RepeatedUnderNewName,
    ];

    /// The scenario whose seeds catch it.
    pub fn scenario(self) -> &'static str {
        match self {
            Mutation::VoidedPublished
            | Mutation::WriteSkipped
            | Mutation::ImportLost
            | Mutation::RepeatedUnderNewName => "table",
            Mutation::VoteWithoutHolding | Mutation::AcceptBelowPromise | Mutation::PromiseEmptied => "paxos",
            _ => "ecast",
        }
    }

    /// How the command line calls it.
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }

    /// The mutation of this name.
    pub fn named(name: &str) -> Option<Self> {
        Mutation::ALL.into_iter().find(|mutation| mutation.name() == name)
    }
}
