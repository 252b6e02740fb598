//! Fuzz targets: every decoder of bytes from outside, fed with garbage.
//!
//! Each [`Target`] hands its input to one decoder, or to a whole door, as a peer, a client or a damaged disk
//! would. A target fails by a panic, by taking longer than ten seconds, or by using more memory than the
//! engine allows. Where a value decodes, the target also checks that its byte form decodes to the same value.
//!
//! `crates/fuzz/run` searches for new inputs with libFuzzer. The ordinary tests of this crate replay
//! `corpus/NAME/`, so an input that once failed stays a test on every machine. Only the search needs a C++
//! compiler, behind the feature `libfuzzer`.
//!
//! | target | bytes of | decoder |
//! |---|---|---|
//! | `links` | peers, before and after the handshake | greetings, frames, datagrams |
//! | `messages` | peers | the messages of every protocol |
//! | `records` | disks | the records of every journal |
//! | `journals` | disks | segments of a journal, after a crash |
//! | `checkpoints` | disks | checkpoint files of process groups |
//! | `backups` | disks | backups of tables |
//! | `histories` | users | recorded operations in every format |
//! | `postgres` | clients | the PostgreSQL protocol, a whole connection |
//! | `values` | clients | parameters of statements, rows of COPY |
//! | `redis` | clients | requests of the Redis protocol |
//! | `bodies` | clients | HTTP requests to a host of services |

mod disks;
mod doors;
mod histories;
mod links;
mod messages;
mod values;

/// A decoder, or a door, that takes bytes from outside.
pub struct Target {
    /// The name on the command line, and of the folder in `corpus/`.
    pub name: &'static str,
    /// Feeds one input.
    pub run: fn(&[u8]),
}

/// All targets, in the order of the table above.
pub static TARGETS: &[Target] = &[
    Target { name: "links", run: links::run },
    Target { name: "messages", run: messages::run },
    Target { name: "records", run: messages::records },
    Target { name: "journals", run: disks::journals },
    Target { name: "checkpoints", run: disks::checkpoints },
    Target { name: "backups", run: disks::backups },
    Target { name: "histories", run: histories::run },
    Target { name: "postgres", run: doors::postgres },
    Target { name: "values", run: values::run },
    Target { name: "redis", run: doors::redis },
    Target { name: "bodies", run: doors::bodies },
];

/// Returns the target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
