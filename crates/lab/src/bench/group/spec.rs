//! The [`GroupProcessSpec`] of a process says which part it plays in the bench.

use serde::{Deserialize, Serialize};

use super::args::{Args, Measure};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum MemberPart {
    /// A router; the first one founds the domain.
    Router,
    Sender,
    Listener,
    /// A member of this number of groups.
    Many {
        groups: usize,
    },
    /// Members of one group, the first of which sends `rate` updates a second.
    Views {
        members: usize,
        rate: u64,
    },
    /// Members of one group; the first member of the first process sends.
    Stack {
        members: usize,
    },
    /// Members of one group; the first member of the first process repeats the source's measurements.
    Source {
        members: usize,
    },
    /// A member whose state has `bytes` bytes, and which sends `rate` updates a second.
    State {
        bytes: usize,
        rate: u64,
    },
    /// The first member sends series, one kind and length after another.
    Series,
}

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct GroupProcessSpec {
    pub(super) part: MemberPart,
    /// The number of the process among the processes with the same `part`, from 1.
    pub(super) number: u64,
    pub(super) routers: Vec<String>,
    /// The wanted number of routers.
    pub(super) wanted: usize,
    pub(super) what: Measure,
    pub(super) bytes: usize,
    pub(super) in_flight: usize,
    /// Whether the process listens at its own address.
    pub(super) apart: bool,
    /// Maximum number of updates that travel together, if bounded.
    pub(super) pack: Option<u32>,
    /// Maximum size of a datagram in bytes, if not the default.
    pub(super) datagram_bytes: Option<usize>,
}

pub(super) fn spec(args: &Args, part: MemberPart, number: usize, routers: &[String]) -> GroupProcessSpec {
    GroupProcessSpec {
        part,
        number: number as u64,
        routers: routers.to_vec(),
        wanted: args.routers,
        what: args.what,
        bytes: args.bytes,
        in_flight: args.in_flight,
        apart: args.apart,
        pack: args.pack,
        datagram_bytes: args.datagram_bytes,
    }
}
