//! A set of replicas: the bytes that its members show to other processes, and the bytes that they write on
//! disk.
//!
//! A set is named by random bits that only its members know at first. The pass of a replica shows the set and
//! its terms, and the pass of a client shows the set alone. So no session exists between members of two sets
//! with one name. On disk, each record of a replica's log carries the pass of its set. So a process that
//! comes back knows its sets from its journal alone, however often the log was collected.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_protocol::{
    Duration, Policy, paxos,
    service::{GroupId, Settings},
    wire::{Wire, WireError, need},
};

use super::object::ITEM_BYTES_MAX;

/// The facts that members of a set show to each other: the set's id, and the terms in which all its replicas
/// must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// The random number of the set.
    pub group: GroupId,
    /// The terms in which all replicas of the set agree.
    pub terms: Terms,
}

/// The decisions that the founder made for all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// A print of the state with which the service began, which all replicas must share.
    pub beginning: u64,
    /// Wanted number of replicas.
    pub replicas: u8,
    /// Whether replicas keep their logs on disk. It is the same for all replicas of a set.
    pub durable: bool,
}

impl Terms {
    /// Compares the terms of a replica with the terms `those` of a set. Returns the reason why the replica
    /// cannot belong to the set, if there is one.
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
    /// Returns the set that a replica's pass shows. `None` if the bytes are not the pass of a replica.
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
        let ReplicaOptions { mut settings, checkpoint_bytes, remove_durable_after } = options;
        let log = &mut settings.log;
        log.wanted = usize::from(self.terms.replicas);
        if settings.whole_states {
            // A joining replica needs only the latest state, and the changes that come while that state is
            // transferred.
            (log.window_min, log.window_max) = (1, 1);
            log.log_bytes_kept = log.log_bytes_kept.min(STATES_BYTES_KEPT);
        }
        if self.terms.durable {
            log.checkpoint_bytes = Some(checkpoint_bytes);
            log.remove_after = remove_durable_after;
        }
        settings
    }
}

/// Maximum size of the log that is kept, if it carries whole states, in bytes.
const STATES_BYTES_KEPT: usize = 2 * ITEM_BYTES_MAX;

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

/// The pass of a seeker. It admits no process, so all peers show their own passes.
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
#[derive(Clone, Debug)]
pub struct ReplicaOptions {
    /// The settings of the replica. The set decides about the wanted number of replicas, and about the disk.
    pub settings: Settings,
    /// Number of bytes of log after which a replica with a disk writes its whole state, and forgets the
    /// earlier log.
    pub checkpoint_bytes: usize,
    /// Time of silence after which a replica with a disk is removed. It is longer than without a disk,
    /// because the replica may come back as the same process.
    pub remove_durable_after: Duration,
}

impl ReplicaOptions {
    /// Returns the usual options of a replica with these settings.
    pub fn new(settings: Settings) -> ReplicaOptions {
        ReplicaOptions {
            settings,
            checkpoint_bytes: CHECKPOINT_BYTES,
            remove_durable_after: REMOVE_DURABLE_AFTER,
        }
    }
}

const CHECKPOINT_BYTES: usize = 64 << 20;
const REMOVE_DURABLE_AFTER: Duration = Duration::from_secs(30);
