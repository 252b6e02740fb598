//! The state of a service at one of its replicas.

use quorate_protocol::ProcessId;

/// The present state of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// The process that hosts the replica.
    pub me: Option<ProcessId>,
    /// The random number of the replica's set, or `None` while the replica looks for a set.
    pub set: Option<u64>,
    /// The replica that leads, as far as this replica knows.
    pub leader: Option<ProcessId>,
    /// Whether this replica executes calls.
    pub serving: bool,
    /// Whether the thread that serves the links also executes the service
    /// ([`Service::SHORT`](super::Service::SHORT)).
    pub inline: bool,
    /// The replicas and their addresses. This process is among them once it is admitted and not spare.
    pub replicas: Vec<(ProcessId, String)>,
    /// Number of changes in the replica's state; at a leader some may not be agreed on yet.
    pub changes: u64,
    /// Number of checkpoints of other replicas that replaced this replica's state.
    pub restored: u64,
    /// The address at which other processes reach the replica. The address differs from the host's once the
    /// replica has come back as another process.
    pub address: Option<String>,
    /// Number of replicas of this service that this host has had so far, one after another.
    pub lives: u64,
    /// The reason why the latest replica ended. After a pause another replica replaces it.
    pub last_end: Option<String>,
    /// The reason why the host starts no further replica.
    pub ended: Option<String>,
    /// Former replica processes whose journals are kept, because they ended otherwise than by being voted
    /// out: the set may still count on them. A journal goes when the set has voted its process out, or when
    /// the service is withdrawn here.
    pub kept: Vec<ProcessId>,
}
