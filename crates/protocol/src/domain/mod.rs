//! A domain of several parts: tables, groups and what may come, ordered by the same routers.
//!
//! **Promise.** Each *part* of a domain is an application of E-Cast with its own configuration and its own [`Routing`], in a folder
//! of its own, as if it had the routers to itself. All parts have one total order, one set of routers and one way to mend them.
//!
//! **Source.** 002 §5.6 has one application on its routers. That one set of routers serves several is design's (§5, §6): who runs a
//! cluster of tables has process groups without another quorum to found, watch and reform.
//!
//! **Shape.** [`compose!`](crate::compose) makes one routing of a list of parts; [`Domain`] is the list that routers run. To
//! add a part is one line there, an implementation of [`Part`], and the byte of it in front of what its members submit.
//!
//! ```text
//!   body:  tag │ the part's own bytes          Config:  tables ──▶ rubberband::Config     (shared, each by itself)
//!                                                       groups ──▶ group::Roster
//! ```
//!
//! **Invariants.**
//! - *One byte says whose it is.* The first byte of each message in the order is its part's [`Part::TAG`]. A part writes and checks it
//!   itself, so nothing is copied or cut off on the way to it, and a part alone is a routing, too (as simulations of one part have
//!   it). A message of no part is refused.
//! - *A process is a member of one part.* A control message of a process that belongs to another part is refused, so that
//!   nobody leaves twice or waits for itself. Where one program needs two parts, it has two processes.
//! - *A change costs its part.* Configurations are [`Shared`]: a change of one neither copies nor compares the others.
//! - *What is not of a part does not reach it.* A part sees its own messages alone, and names destinations among its own members.
//!
//! **Where we differ, and why.**
//! - Parts are known when this is compiled, and a message finds its part by a comparison of one byte. Tables are the hottest path of the
//!   system; a table of boxed parts would cost them an indirect call and their configuration's type.
//! - A domain that is founded anew from members ([`RouterCommand::Refound`](crate::ecast::RouterCommand::Refound)) goes on from the
//!   part whose members bear witness: tables. The others begin empty, and their members come back as new processes.

use std::{fmt, ops::Deref, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    ecast::{Refusal, Routing},
    group::Groups,
    rubberband::Rubberband,
};

/// An application of E-Cast that has the routers in common with others.
pub trait Part: Routing {
    /// The first byte of every message that its members submit, and of what they bear witness to.
    const TAG: u8;

    /// The configuration of one that nobody uses.
    fn vacant() -> Self::Config;
}

/// Why the routers refuse what no part is asked about. Reasons of parts are below.
pub mod refusal {
    use super::Refusal;

    /// The message is of no part that these routers know.
    pub const NO_PART: Refusal = Refusal(128);
    /// The sender is a member of another part.
    pub const OTHER_PART: Refusal = Refusal(129);
}

/// A configuration that several hold: copied as a pointer, and compared as one first.
pub struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    /// Of this value.
    pub fn new(value: T) -> Self {
        Shared(Arc::new(value))
    }

    /// The value, to be changed: a copy, if others hold it.
    pub fn to_mut(&mut self) -> &mut T
    where
        T: Clone,
    {
        Arc::make_mut(&mut self.0)
    }
}

impl<T: Default> Default for Shared<T> {
    fn default() -> Self {
        Shared::new(T::default())
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(self.0.clone())
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Serialize> Serialize for Shared<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        T::serialize(self, serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Shared::new)
    }
}

crate::compose! {
    /// The parts that the routers of a cluster route.
    pub Domain {
        /// Tables.
        tables: Rubberband,
        /// Process groups.
        groups: Groups,
    }
}

/// Makes one [`Routing`](crate::ecast::Routing) of several [`Part`](crate::domain::Part)s, with `Config` and `Ledger`, which have a
/// field for each. Of use once in a module.
#[macro_export]
macro_rules! compose {
    (
        $(#[$about:meta])*
        pub $domain:ident { $($(#[$doc:meta])* $part:ident: $kind:ty),+ $(,)? }
    ) => {
        $(#[$about])*
        pub struct $domain;

        /// The configuration of each part, at a position of the order.
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        pub struct Config {
            $($(#[$doc])* pub $part: $crate::domain::Shared<<$kind as $crate::ecast::Routing>::Config>,)+
        }

        /// The routers' own state of each part.
        #[derive(Default, ::serde::Serialize, ::serde::Deserialize)]
        pub struct Ledger {
            $($(#[$doc])* pub $part: <$kind as $crate::ecast::Routing>::Ledger,)+
        }

        impl Config {
            /// Of a domain whose parts nobody uses.
            pub fn vacant() -> Self {
                Config { $($part: $crate::domain::Shared::new(<$kind as $crate::domain::Part>::vacant()),)+ }
            }

            /// The part of which `process` is a member, by its tag.
            pub fn part_of(&self, process: $crate::ProcessId) -> Option<u8> {
                $(
                    if <$kind as $crate::ecast::Routing>::is_member(&self.$part, process) {
                        return Some(<$kind as $crate::domain::Part>::TAG);
                    }
                )+
                None
            }
        }

        const _: () = {
            let tags = [$(<$kind as $crate::domain::Part>::TAG),+];
            let mut place = 1;
            while place < tags.len() {
                assert!(tags[place - 1] < tags[place], "parts stand in the order of their tags, each with its own");
                place += 1;
            }
        };

        impl $crate::ecast::Routing for $domain {
            type Config = Config;
            type Ledger = Ledger;

            fn admit(
                ledger: &mut Ledger,
                at: $crate::ecast::Position,
                class: $crate::ecast::Class,
                body: &::bytes::Bytes,
            ) -> Result<(), $crate::ecast::Refusal> {
                match body.first() {
                    $(Some(&<$kind as $crate::domain::Part>::TAG) => {
                        <$kind as $crate::ecast::Routing>::admit(&mut ledger.$part, at, class, body)
                    })+
                    _ => Err($crate::domain::refusal::NO_PART),
                }
            }

            fn apply(
                config: &Config,
                at: $crate::ecast::Position,
                sender: $crate::ProcessId,
                body: &::bytes::Bytes,
            ) -> Result<Option<Config>, $crate::ecast::Refusal> {
                let Some(tag) = body.first() else { return Err($crate::domain::refusal::NO_PART) };
                if config.part_of(sender).is_some_and(|part| part != *tag) {
                    return Err($crate::domain::refusal::OTHER_PART);
                }
                match *tag {
                    $(<$kind as $crate::domain::Part>::TAG => {
                        let changed = <$kind as $crate::ecast::Routing>::apply(&config.$part, at, sender, body)?;
                        Ok(changed.map(|changed| {
                            let mut config = config.clone();
                            config.$part = $crate::domain::Shared::new(changed);
                            config
                        }))
                    })+
                    _ => Err($crate::domain::refusal::NO_PART),
                }
            }

            fn destinations(
                config: &Config,
                id: $crate::ecast::MessageId,
                class: $crate::ecast::Class,
                body: &::bytes::Bytes,
            ) -> Result<$crate::ecast::Destinations, $crate::ecast::Refusal> {
                match body.first() {
                    $(Some(&<$kind as $crate::domain::Part>::TAG) => {
                        <$kind as $crate::ecast::Routing>::destinations(&config.$part, id, class, body)
                    })+
                    _ => Err($crate::domain::refusal::NO_PART),
                }
            }

            fn is_member(config: &Config, process: $crate::ProcessId) -> bool {
                $(<$kind as $crate::ecast::Routing>::is_member(&config.$part, process))||+
            }

            fn not_admitted(
                config: &Config,
                sender: $crate::ProcessId,
                body: &::bytes::Bytes,
            ) -> Option<$crate::NotAdmitted> {
                match body.first() {
                    $(Some(&<$kind as $crate::domain::Part>::TAG) => {
                        <$kind as $crate::ecast::Routing>::not_admitted(&config.$part, sender, body)
                    })+
                    _ => None,
                }
            }

            fn of_node(config: &Config, node: u64) -> Option<$crate::Peer> {
                None$(.or_else(|| <$kind as $crate::ecast::Routing>::of_node(&config.$part, node)))+
            }

            fn expulsion(config: &Config, process: $crate::ProcessId) -> Option<::bytes::Bytes> {
                None$(.or_else(|| <$kind as $crate::ecast::Routing>::expulsion(&config.$part, process)))+
            }

            fn members(config: &Config) -> Vec<$crate::ProcessId> {
                let mut members = Vec::new();
                $(members.extend(<$kind as $crate::ecast::Routing>::members(&config.$part));)+
                members.sort_unstable();
                members
            }

            fn pace(config: &Config, process: $crate::ProcessId) -> $crate::ecast::Pace {
                // A part lets whom it does not know execute.
                $(
                    match <$kind as $crate::ecast::Routing>::pace(&config.$part, process) {
                        $crate::ecast::Pace::Executes => {}
                        pace => return pace,
                    }
                )+
                $crate::ecast::Pace::Executes
            }

            fn attachment(
                config: &Config,
                id: $crate::ecast::MessageId,
                body: &::bytes::Bytes,
                destination: $crate::ProcessId,
            ) -> Option<::bytes::Bytes> {
                match body.first() {
                    $(Some(&<$kind as $crate::domain::Part>::TAG) => {
                        <$kind as $crate::ecast::Routing>::attachment(&config.$part, id, body, destination)
                    })+
                    _ => None,
                }
            }

            fn witnessed(word: &::bytes::Bytes) -> Option<Config> {
                match word.first() {
                    $(Some(&<$kind as $crate::domain::Part>::TAG) => {
                        let known = <$kind as $crate::ecast::Routing>::witnessed(word)?;
                        let mut config = Config::vacant();
                        config.$part = $crate::domain::Shared::new(known);
                        Some(config)
                    })+
                    _ => None,
                }
            }
        }
    };
}
