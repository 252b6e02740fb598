//! A set of replicas: what its members show to others, and what they write on disk.
//!
//! A set is named by random bits that only its members know at first. The pass of a replica shows the set
//! and its terms; that of a client shows the set. So no session exists between two sets of one name. On disk,
//! each record of a replica's log carries the pass of its set: a process that comes back knows its sets from
//! its journal alone, however often the log was collected.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_protocol::{
    Duration, Policy, paxos,
    service::{GroupId, Pipelining, Settings},
    wire::{Wire, WireError, need},
};

use super::object::ITEM_BYTES_MAX;

/// The facts that members of a set show: its id, and the terms in which all its replicas must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// The random number of the set.
    pub group: GroupId,
    /// The terms of its replicas.
    pub terms: Terms,
}

/// The founder's decisions for all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// A print of the state with which the service began.
    pub beginning: u64,
    /// Wanted number of replicas.
    pub replicas: u8,
    /// Whether replicas keep their logs on disk; all do, or none does.
    pub durable: bool,
}

impl Terms {
    /// Returns the reason why a replica with these terms cannot belong to a set with those, if there is one.
    pub fn differ(self, those: Terms) -> Option<&'static str> {
        if self.beginning != those.beginning {
            return Some(
                "the service was founded with another first state: all replicas have to begin with the same \
                 state",
            );
        }
        match (self.durable, those.durable) {
            (false, true) => {
                Some("the other replicas keep their logs on disk, and this host keeps its logs in memory")
            }
            (true, false) => {
                Some("the other replicas keep their logs in memory, and this host keeps its logs on disk")
            }
            _ => None,
        }
    }
}

impl Set {
    /// Returns the set that shows this pass, or `None` if it is not the pass of a replica.
    pub fn of_pass(mut pass: &[u8]) -> Option<Set> {
        if pass.len() != REPLICA_PASS_BYTES {
            return None;
        }
        let (group, beginning, replicas) = (GroupId(pass.get_u64_le()), pass.get_u64_le(), pass.get_u8());
        let durable = match pass.get_u8() {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Set { group, terms: Terms { beginning, replicas, durable } })
    }

    pub(super) fn pass(self) -> Bytes {
        let Set { group, terms } = self;
        let mut pass = BytesMut::with_capacity(REPLICA_PASS_BYTES);
        pass.put_u64_le(group.0);
        pass.put_u64_le(terms.beginning);
        pass.put_u8(terms.replicas);
        pass.put_u8(terms.durable.into());
        pass.freeze()
    }

    /// Returns the settings of the set's replicas on a host with these options.
    pub(super) fn settings(self, options: ReplicaOptions) -> Settings {
        let mut log = paxos::Settings {
            wanted: usize::from(self.terms.replicas),
            log_bytes_kept: options.log_bytes_kept,
            ..paxos::Settings::default()
        };
        if options.whole_states {
            // The latest state is enough for everybody, apart from changes that come while it is transferred.
            (log.window_min, log.window_max) = (1, 1);
            log.log_bytes_kept = log.log_bytes_kept.min(STATES_BYTES_KEPT);
        }
        if self.terms.durable {
            log.checkpoint_bytes = Some(CHECKPOINT_BYTES);
            log.remove_after = REMOVE_DURABLE_AFTER;
        }
        Settings {
            log,
            whole_states: options.whole_states,
            any_order: options.any_order,
            pipelining: options.pipelining,
            ..Settings::default()
        }
    }
}

/// Bytes of log after which a replica with a disk writes its whole state, and forgets the log before.
const CHECKPOINT_BYTES: usize = 64 << 20;

/// Upper bound of a kept log that carries whole states, in bytes.
const STATES_BYTES_KEPT: usize = 2 * ITEM_BYTES_MAX;

/// Silence after which a replica with a disk is removed. It is longer than without a disk, because the
/// replica may come back as the same one.
const REMOVE_DURABLE_AFTER: Duration = Duration::from_secs(30);

/// A record of a replica's log, and the set of that log.
#[derive(Debug)]
pub struct SetRecord {
    pub(super) set: Set,
    pub(super) log: paxos::Record,
}

impl Wire for SetRecord {
    fn encode(&self, out: &mut BytesMut) {
        out.put_slice(&self.set.pass());
        self.log.encode(out);
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        let set = take_set(input)?;
        Ok(SetRecord { set, log: paxos::Record::decode(input)? })
    }
}

pub(super) fn take_set(record: &mut Bytes) -> Result<Set, WireError> {
    need(record, REPLICA_PASS_BYTES)?;
    Set::of_pass(&record.split_to(REPLICA_PASS_BYTES)).ok_or(WireError::Body)
}

/// The pass of a seeker. It admits nobody, so all peers show their passes.
#[derive(Debug)]
pub(super) struct SeekerPolicy;

impl Policy for SeekerPolicy {
    fn pass(&self) -> Bytes {
        Bytes::new()
    }

    fn admits(&self, _: &[u8]) -> bool {
        false
    }
}

/// The pass of a replica. It admits the replicas and the clients of its set.
#[derive(Debug)]
pub(super) struct ReplicaPolicy(pub(super) Set);

impl Policy for ReplicaPolicy {
    fn pass(&self) -> Bytes {
        self.0.pass()
    }

    fn admits(&self, theirs: &[u8]) -> bool {
        theirs == &self.pass()[..] || theirs == self.0.group.0.to_le_bytes()
    }
}

/// The pass of a client. It admits the replicas of its set.
#[derive(Debug)]
pub(super) struct ClientPolicy(pub(super) GroupId);

impl Policy for ClientPolicy {
    fn pass(&self) -> Bytes {
        Bytes::copy_from_slice(&self.0.0.to_le_bytes())
    }

    fn admits(&self, theirs: &[u8]) -> bool {
        Set::of_pass(theirs).is_some_and(|set| set.group == self.0)
    }
}

const REPLICA_PASS_BYTES: usize = 18;

/// A host's options for a replica.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaOptions {
    /// Log that is kept for replicas that lag, in bytes.
    pub log_bytes_kept: usize,
    /// The way in which writes follow each other.
    pub pipelining: Pipelining,
    /// Whether the log carries whole states instead of changes.
    pub whole_states: bool,
    /// Whether the service has threads of its own, which complete requests in any order.
    pub any_order: bool,
}
