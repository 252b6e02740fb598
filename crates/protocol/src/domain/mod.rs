//! A domain of several parts (tables, groups and maps), whose messages the same routers order.
//!
//! **Promise.** Each *part* of a domain is an application of E-Cast with its own configuration and its own
//! [`Routing`](crate::ecast::Routing), in its own folder. A part works as if the routers served it alone. All
//! parts share one total order, one set of routers and one way to repair that set.
//!
//! **Source.** 002 §5.6 has one application on its routers. Our design (§5, §6) lets one set of routers serve
//! several applications. So a cluster of tables also offers process groups and maps, without another quorum
//! to found, watch and reform.
//!
//! **Shape.** [`compose!`](crate::compose) makes one routing of a list of parts. [`Domain`] is the list that
//! routers run. To add a part, add a line to [`Domain`], implement [`Part`], and choose the byte that
//! precedes the part's messages.
//!
//! ```text
//!   body:  tag │ the part's own bytes      Config:  tables ──▶ rubberband::Config   (each shared separately)
//!                                                   groups ──▶ group::Roster
//!                                                   maps   ──▶ partial::Roster
//! ```
//!
//! **Invariants.**
//! - *The first byte names the part.* The first byte of each ordered message is its part's [`Part::TAG`]. The
//!   part itself writes and checks this byte, so no layer copies or cuts the message on its way. A part can
//!   also be the only routing, as in simulations of one part. Routers refuse a message that belongs to no
//!   part.
//! - *A process is a member of one part.* Routers refuse a control message of a process that belongs to
//!   another part, so that no process leaves twice or waits for itself. A program that needs two parts has
//!   two processes.
//! - *A change costs only its part.* Configurations are [`Shared`]: a change of one configuration neither
//!   copies nor compares the other configurations.
//! - *A part sees only its own messages.* It also names destinations only among its own members.
//! - *Routers of two builds never fork* (S8). The configuration of tables records the version of routing with
//!   which the domain was founded. A part of a later version ([`Part::SINCE`]) does not exist in the domain:
//!   every router refuses its messages with [`refusal::NO_PART`], like a router that does not know the part.
//!   The encoded configuration has no bytes of such a part either. So routers of an earlier build read the
//!   snapshots of later routers, and later routers read earlier snapshots and logs. In a domain of a later
//!   version, routers of an earlier build get no link ([`Fence`](crate::ecast::Fence)).
//!
//! **Where we differ, and why.**
//! - Parts are known at compile time, and one byte of a message selects its part. Tables are the hottest path
//!   of the system. A list of boxed parts would cost each message an indirect call, and would hide the type
//!   of the configuration.
//! - A domain that is founded again from members
//!   ([`RouterCommand::Refound`](crate::ecast::RouterCommand::Refound)) continues with the parts whose
//!   members testify: tables and maps. Groups begin empty, and their members return as new processes.

mod part;
mod shared;

use crate::{group::Groups, partial::Maps, rubberband::Rubberband};

pub use self::{
    part::{Part, refusal},
    shared::Shared,
};

crate::compose! {
    /// The parts that the routers of a cluster route.
    pub Domain {
        /// Tables.
        tables: Rubberband,
        /// Process groups.
        groups: Groups,
        /// Maps of partial quorums.
        maps: Maps,
    }
}

/// Makes one [`Routing`](crate::ecast::Routing) from several [`Part`](crate::domain::Part)s. The routing's
/// `Config` and `Ledger` have a field for each part. A module can use the macro only once.
#[macro_export]
macro_rules! compose {
    (
        $(#[$about:meta])*
        pub $domain:ident { $($(#[$doc:meta])* $part:ident: $kind:ty),+ $(,)? }
    ) => {
        $(#[$about])*
        pub struct $domain;

        /// The configuration of each part, at a position of the order.
        ///
        /// Its bytes are the bytes of the parts' configurations, in the order of the list. Parts that the
        /// version of routing does not have are left out.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[$doc])* pub $part: $crate::domain::Shared<<$kind as $crate::ecast::Routing>::Config>,)+
        }

        /// The routers' own state of each part. A part of a later version of routing than the first has none,
        /// so that the bytes are the same for all versions.
        #[derive(Default, ::serde::Serialize, ::serde::Deserialize)]
        pub struct Ledger {
            $($(#[$doc])* pub $part: <$kind as $crate::ecast::Routing>::Ledger,)+
        }

        impl Config {
            /// Returns the configuration of a domain whose parts have no members.
            pub fn vacant() -> Self {
                Config { $($part: $crate::domain::Shared::new(<$kind as $crate::domain::Part>::vacant()),)+ }
            }

            /// Returns the version of routing that the domain uses.
            pub fn version(&self) -> u32 {
                let known = [$(<$kind as $crate::domain::Part>::version(&self.$part)),+];
                known.into_iter().flatten().next().unwrap_or(1)
            }

            /// Returns the tag of the part of which `process` is a member.
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

        impl ::serde::Serialize for Config {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use ::serde::ser::SerializeTuple as _;
                let version = self.version();
                let parts = [$(<$kind as $crate::domain::Part>::SINCE),+];
                let count = parts.into_iter().filter(|since| *since <= version).count();
                let mut tuple = serializer.serialize_tuple(count)?;
                $(
                    if <$kind as $crate::domain::Part>::SINCE <= version {
                        tuple.serialize_element(&self.$part)?;
                    }
                )+
                tuple.end()
            }
        }

        impl<'de> ::serde::Deserialize<'de> for Config {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Parts;

                impl<'de> ::serde::de::Visitor<'de> for Parts {
                    type Value = Config;

                    fn expecting(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                        f.write_str("the configurations of a domain's parts")
                    }

                    fn visit_seq<A: ::serde::de::SeqAccess<'de>>(self, mut parts: A) -> Result<Config, A::Error> {
                        // The first part records the version, so the version is known when the other parts
                        // are read.
                        let mut config = Config::vacant();
                        $(
                            if <$kind as $crate::domain::Part>::SINCE <= config.version() {
                                let missing = || ::serde::de::Error::custom("a part is missing");
                                config.$part = parts.next_element()?.ok_or_else(missing)?;
                            }
                        )+
                        if config.version() > Config::vacant().version() {
                            return Err(::serde::de::Error::custom("a later build founded the domain"));
                        }
                        Ok(config)
                    }
                }

                deserializer.deserialize_tuple([$(<$kind as $crate::domain::Part>::TAG),+].len(), Parts)
            }
        }

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
                    $(<$kind as $crate::domain::Part>::TAG
                        if <$kind as $crate::domain::Part>::SINCE <= config.version() =>
                    {
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
                    $(Some(&<$kind as $crate::domain::Part>::TAG)
                        if <$kind as $crate::domain::Part>::SINCE <= config.version() =>
                    {
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
                        if <$kind as $crate::domain::Part>::SINCE > config.version() {
                            return Some($crate::NotAdmitted::NoPart);
                        }
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
                // Parts that do not know `process` answer `Executes`, so the answer of the part that knows it
                // counts.
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

            fn version(config: &Config) -> u32 {
                config.version()
            }

            fn witnessed_part(word: &::bytes::Bytes) -> u8 {
                word.first().copied().unwrap_or_default()
            }

            fn continued(begun: &Config, reported: Vec<(u8, Config)>) -> Config {
                let mut config = begun.clone();
                for (part, known) in reported {
                    match part {
                        $(<$kind as $crate::domain::Part>::TAG => config.$part = known.$part,)+
                        _ => {}
                    }
                }
                config
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
